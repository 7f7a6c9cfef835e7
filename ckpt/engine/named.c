/* SPDX-License-Identifier: Apache-2.0 */
/* named.c - see named.h. Called by verbs that take TENSOR, --tensors or --only. Invariant: a name
 * that means nothing is an error with the nearest names that there are. */
#include "ckpt/engine/named.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include <fnmatch.h>
#include <stdio.h>

#define NEAR_SHOWN 3
#define NEAR_MAX 8 /* edits, of a long name: a third of its length at most */
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

const char *named_foreign(const struct checkpoint *k, uint32_t tensor)
{
	if (k->format->root)
		return NULL;
	return k->foreign_name ? k->foreign_name[tensor] : k->table.tensor[tensor].name;
}

/* Is word the tensor's name, or component/name? */
static bool is_called(const struct table_tensor *x, const char *foreign, const char *word)
{
	size_t n = strlen(x->component);

	if (foreign && !strcmp(foreign, word))
		return true;
	return !strcmp(x->name, word) || (!strncmp(x->component, word, n) && word[n] == '/' &&
					  !strcmp(x->name, word + n + 1));
}

static bool name_matches(const struct table_tensor *x, const char *foreign, const char *glob)
{
	char full[NAME_BYTES];

	snprintf(full, sizeof full, "%s%s%s", x->component, *x->component ? "/" : "", x->name);
	return !fnmatch(glob, full, 0) || !fnmatch(glob, x->name, 0) ||
	       (foreign && !fnmatch(glob, foreign, 0));
}

/* Edits from what was typed to the tensor's name; UINT32_MAX: too many. What is a part of the name
 * is as far as the farthest. */
static uint32_t name_distance(const struct table_tensor *x, const char *word)
{
	const char *slash = strchr(word, '/'), *name = word;
	uint32_t max, d;

	if (slash && !strncmp(x->component, word, (size_t)(slash - word)) &&
	    !x->component[slash - word])
		name = slash + 1;
	max = MAX(2u, (uint32_t)strlen(name) / 3);
	max = MIN(max, (uint32_t)NEAR_MAX);
	d = human_distance(name, x->name, max);
	return d == UINT32_MAX && *name && strstr(x->name, name) ? NEAR_MAX : d;
}

static bool same_name(const struct table_tensor *x, const struct table_tensor *y)
{
	return !strcmp(x->name, y->name) && !strcmp(x->component, y->component);
}

/* The names that lie nearest to word, as a sentence's end: ", ...". */
static void near_names(const struct table *t, const char *word, char *buf, size_t bytes)
{
	uint32_t id[NEAR_SHOWN], far[NEAR_SHOWN], n = 0;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint32_t d = name_distance(&t->tensor[i], word), at;
		bool listed = d == UINT32_MAX;

		/* Blobs of the ranks share a name. */
		for (at = 0; at < n && !listed; at++)
			listed = same_name(&t->tensor[id[at]], &t->tensor[i]);
		if (listed)
			continue;
		for (at = n; at && d < far[at - 1]; at--)
			if (at < NEAR_SHOWN) {
				id[at] = id[at - 1];
				far[at] = far[at - 1];
			}
		if (at < NEAR_SHOWN) {
			id[at] = i;
			far[at] = d;
			n = MIN(n + 1, (uint32_t)NEAR_SHOWN);
		}
	}
	buf[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct table_tensor *x = &t->tensor[id[i]];
		size_t len = strlen(buf);

		snprintf(buf + len, bytes - len, "%s%.200s%s%.200s",
			 i ? ", " : "; near it: ", x->component, *x->component ? "/" : "", x->name);
	}
}

/* The tensors of which `is` is true. */
static int names_collect(const struct checkpoint *k, const char *word,
			 bool (*is)(const struct table_tensor *, const char *, const char *),
			 uint32_t **ret_id, uint32_t *ret_n)
{
	const struct table *t = &k->table;
	uint32_t *id = calloc((size_t)t->ntensor + 1, sizeof *id), n = 0;

	if (!id)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (is(&t->tensor[i], named_foreign(k, i), word))
			id[n++] = i;
	*ret_id = id;
	*ret_n = n;
	return 0;
}

/* A name without a component means the weights, never their averages, which have it too. Returns
 * how many are left. */
static uint32_t leave_averages(const struct table *t, const char *word, uint32_t *id, uint32_t n)
{
	uint32_t raw = 0, left = 0;

	for (uint32_t i = 0; i < n; i++)
		raw += !t->tensor[id[i]].made;
	for (uint32_t i = 0; i < n && raw; i++)
		if (!t->tensor[id[i]].made || strcmp(t->tensor[id[i]].name, word) != 0)
			id[left++] = id[i];
	return raw ? left : n;
}

/* "step 12". Returns buf. */
static char *title_print(const struct checkpoint *k, char buf[static 32])
{
	if (k->has & HAS_STEP)
		snprintf(buf, 32, "step %llu", (unsigned long long)k->step);
	else
		strcpy(buf, "the checkpoint");
	return buf;
}

int named_tensors(const struct checkpoint *k, const char *word, uint32_t **ret_id, uint32_t *ret_n,
		  struct ckpt_err *err)
{
	char near[1400], title[32];
	int rc = names_collect(k, word, is_called, ret_id, ret_n);

	if (!rc)
		*ret_n = leave_averages(&k->table, word, *ret_id, *ret_n);
	if (rc || *ret_n)
		return rc;
	near_names(&k->table, word, near, sizeof near);
	return ckpt_error(err, -ENOENT, "there is no tensor \"%.200s\" in %s%s", word,
			  title_print(k, title), near);
}

int named_glob(const struct checkpoint *k, const char *glob, uint32_t **ret_id, uint32_t *ret_n,
	       struct ckpt_err *err)
{
	char title[32];
	int rc = names_collect(k, glob, name_matches, ret_id, ret_n);

	if (rc || *ret_n)
		return rc;
	return ckpt_error(err, -ENOENT, "none of the %u tensors in %s matches \"%.200s\"",
			  k->table.ntensor, title_print(k, title), glob);
}
