/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_tree.c - see module_tree.h. 200,000 names cost milliseconds a depth.
 * Invariant: every tensor is in exactly one row, so rows sum up to the whole.
 */
#include "ckpt/engine/module_tree.h"
#include "ckpt/base/strmap.h"
#include "ckpt/base/util.h"
#include "ckpt/table/shown.h"
#include <stdio.h>

#define NUMBERS_MAX 6 /* numeric parts of a path that are put together; more stay as they are */
#define NUMBER_DIGITS 9
#define MARK '\1' /* stands for a number in a key; nothing else does */
#define PATH_BYTES (2 * CKPT_NAME_MAX + 64)

struct numbers {
	uint32_t min, max, distinct;
};

struct group {
	const char *key;
	struct numbers number[NUMBERS_MAX];
	struct module_row row;
};

struct groups {
	struct arena *arena;
	struct group *group;
	uint32_t n, cap;
	struct arena names;    /* of the two maps */
	struct strmap by_key;  /* their numbers are those of the groups */
	struct strmap numbers; /* of struct numbered */
};

struct numbered { /* a number that stands at some place of a group's path */
	uint32_t group, place, number;
};

struct key {
	char text[PATH_BYTES];
	size_t len;
	uint32_t number[NUMBERS_MAX], nnumber;
};

static void key_add(struct key *k, const char *s, size_t n)
{
	n = MIN(n, sizeof k->text - 1 - k->len);
	for (size_t i = 0; i < n; i++)
		k->text[k->len++] = s[i] == MARK ? '?' : s[i];
}

static bool key_add_number(struct key *k, uint32_t number)
{
	if (k->nnumber == NUMBERS_MAX || k->len + 1 >= sizeof k->text)
		return false;
	k->text[k->len++] = MARK;
	k->number[k->nnumber++] = number;
	return true;
}

/* A number as people count layers: digits alone, without zeros in front. */
static bool is_number(const char *s, size_t n, uint32_t *ret)
{
	*ret = 0;
	if (!n || n > NUMBER_DIGITS || (n > 1 && *s == '0'))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		*ret = *ret * 10 + (uint32_t)(s[i] - '0');
	}
	return true;
}

static void key_make(const struct table_tensor *x, uint32_t depth, struct key *k)
{
	const char *p = x->name;

	k->len = k->nnumber = 0;
	key_add(k, x->component, strlen(x->component));
	for (uint32_t d = 0; d < depth && *p; d++) {
		size_t n = strcspn(p, ".");
		uint32_t number;

		key_add(k, d ? "." : "/", 1);
		if (!is_number(p, n, &number) || !key_add_number(k, number))
			key_add(k, p, n);
		p += n;
		if (*p == '.' && d + 1 < depth)
			p++;
	}
	k->text[k->len] = 0;
}

/* NULL: no memory. */
static struct group *group_get(struct groups *g, const struct key *k)
{
	uint32_t i = strmap_find(&g->by_key, k->text, k->len);
	struct group *x;

	if (i != KEYMAP_NONE)
		return &g->group[i];
	if (!ARRAY_GROW(g->group, g->n, g->cap))
		return NULL;
	x = &g->group[g->n];
	*x = (struct group){ .key = arena_str(g->arena, k->text) };
	for (i = 0; i < NUMBERS_MAX; i++)
		x->number[i].min = UINT32_MAX;
	if (!x->key || strmap_add(&g->by_key, &g->names, x->key, k->len, &i) < 0)
		return NULL;
	g->n++;
	return x;
}

static int number_add(struct groups *g, struct group *to, uint32_t place, uint32_t number)
{
	struct numbered key = { (uint32_t)(to - g->group), place, number };
	struct numbers *n = &to->number[place];
	uint32_t i;
	void *own;

	n->min = MIN(n->min, number);
	n->max = MAX(n->max, number);
	if (strmap_find(&g->numbers, &key, sizeof key) != KEYMAP_NONE)
		return 0;
	own = arena_dup(&g->names, &key, sizeof key);
	if (!own || strmap_add(&g->numbers, &g->names, own, sizeof key, &i) < 0)
		return -ENOMEM;
	n->distinct++;
	return 0;
}

static int group_add(struct groups *g, const struct table_tensor *x, uint32_t depth)
{
	struct key k;
	struct group *to;
	uint64_t bytes;

	key_make(x, depth, &k);
	to = group_get(g, &k);
	if (!to)
		return -ENOMEM;
	to->row.tensors++;
	to->row.elements += shown_numel(x);
	to->row.bytes += ckpt_mul(x->numel, x->elem_bytes, &bytes) ? UINT64_MAX : bytes;
	for (uint32_t i = 0; i < k.nnumber; i++)
		if (number_add(g, to, i, k.number[i]))
			return -ENOMEM;
	return 0;
}

static void groups_free(struct groups *g)
{
	free(g->group);
	arena_free(&g->names);
}

static int groups_make(const struct table *t, const uint32_t *id, uint32_t n, uint32_t depth,
		       struct arena *a, struct groups *g)
{
	int rc = 0;

	*g = (struct groups){ .arena = a };
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = group_add(g, &t->tensor[id[i]], depth);
	return rc;
}

/* The key with what its numbers were: {0..31}, {0..31: 8 of them}, 7. */
static const char *path_of(const struct group *g, struct arena *a)
{
	char path[PATH_BYTES + NUMBERS_MAX * 48];
	size_t len = 0;
	uint32_t k = 0;

	for (const char *p = g->key; *p && len < sizeof path - 48; p++) {
		const struct numbers *n = &g->number[k];

		if (*p != MARK) {
			path[len++] = *p;
			continue;
		}
		k++;
		if (n->min == n->max)
			len += (size_t)sprintf(path + len, "%u", n->min);
		else if (n->distinct == n->max - n->min + 1)
			len += (size_t)sprintf(path + len, "{%u..%u}", n->min, n->max);
		else
			len += (size_t)sprintf(path + len, "{%u..%u: %u}", n->min, n->max,
					       n->distinct);
	}
	path[len] = 0;
	return arena_str(a, path);
}

static int row_compare(const void *a, const void *b)
{
	const struct module_row *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return strcmp(x->path, y->path);
}

static uint32_t depth_of(const struct table *t, const uint32_t *id, uint32_t n)
{
	uint32_t max = 1;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t d = 1;

		for (const char *p = t->tensor[id[i]].name; (p = strchr(p, '.')); p++)
			d++;
		max = MAX(max, d);
	}
	return MIN(max, (uint32_t)MODULE_DEPTH_MAX);
}

/* The deepest that fits. */
static int choose_depth(const struct table *t, const uint32_t *id, uint32_t n, uint32_t row_max,
			uint32_t *ret_depth)
{
	uint32_t max = depth_of(t, id, n);

	*ret_depth = 1;
	for (uint32_t d = 2; d <= max; d++) {
		struct arena a = { 0 };
		struct groups g;
		int rc = groups_make(t, id, n, d, &a, &g);
		bool fits = g.n <= row_max;

		groups_free(&g);
		arena_free(&a);
		if (rc)
			return rc;
		if (!fits)
			break;
		*ret_depth = d;
	}
	return 0;
}

int module_rows(const struct table *t, const uint32_t *id, uint32_t n, uint32_t depth,
		uint32_t row_max, struct arena *a, struct module_row **ret, uint32_t *ret_n,
		uint32_t *ret_depth)
{
	struct groups g = { 0 };
	int rc = 0;

	*ret_depth = depth;
	if (depth == MODULE_AUTO)
		rc = choose_depth(t, id, n, row_max, ret_depth);
	if (!rc)
		rc = groups_make(t, id, n, *ret_depth, a, &g);
	*ret_n = g.n;
	*ret = rc ? NULL : arena_array(a, (size_t)g.n + 1, sizeof **ret);
	if (!rc && !*ret)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < g.n && !rc; i++) {
		(*ret)[i] = g.group[i].row;
		(*ret)[i].path = path_of(&g.group[i], a);
		rc = (*ret)[i].path ? 0 : -ENOMEM;
	}
	if (!rc)
		qsort(*ret, g.n, sizeof **ret, row_compare);
	groups_free(&g);
	return rc;
}
