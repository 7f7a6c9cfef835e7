/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - see view.h. Called by verbs that read a checkpoint under other names and shapes.
 * Invariant: whatever the rules are, an element of the result is an element of the source, at the
 * byte of the place where the source has it.
 *
 * While the rules are applied, a tensor is an item: its declaration and its pieces. Rules replace items
 * by others. At the end the items that remain become a table.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/table/operand.h"
#include "ckpt/table/view_parse.h"
#include "ckpt/table/view_piece.h"
#include <stdarg.h>
#include <stdio.h>

#define ITEMS_MAX (16 * TABLE_TENSORS_MAX) /* with those that are gone; a power of two */

struct item {
	struct table_tensor x;
	uint32_t npiece;
	const struct table_piece *piece; /* [npiece] their tensor numbers mean nothing */
	struct view_cast cast;
	bool gone;
	bool part; /* of what the present rule joins */
};

struct made {
	struct item *item;
	uint32_t n, cap;
};

struct making {
	const struct table *src;
	struct table *t;
	struct made all;  /* in the order of the result */
	struct made more; /* of the present rule */
	/* Finds items by name. An item also stays where its earlier names are. */
	struct keymap names;
	struct arena names_arena;
	const struct view_rule *rule;
	bool hit, hit_blob, hit_fixed; /* fixed: what no cast changes */
	struct view_cast *cast;	       /* [ntensor] */
	struct ckpt_errlist *list;
};

/* Add a line to the list of refusals. Returns -EINVAL. */
__attribute__((format(printf, 2, 3))) static int refuse(struct making *k, const char *fmt, ...)
{
	char why[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	ckpt_errlist_add(k->list, "%s: %s", k->rule->where, why);
	return -EINVAL;
}

#define LABEL_BYTES 200
#define LABEL(y) table_tensor_print(&(y)->x, (char[LABEL_BYTES]){ 0 }, LABEL_BYTES)

/* --- names --- */

static void name_of(const struct table_tensor *x, char ret[VIEW_NAME_MAX])
{
	bool slash = *x->component || strchr(x->name, '/');

	snprintf(ret, VIEW_NAME_MAX, "%s%s%s", x->component, slash ? "/" : "", x->name);
}

/* The component and name that a full name means, for what was made of `of`. */
static int set_name(struct making *k, const char *name, const struct table_tensor *of,
		    struct table_tensor *ret)
{
	size_t n = strlen(of->component);
	const char *at;
	char *component;

	if (!n || strncmp(name, of->component, n) != 0 || name[n] != '/') {
		at = strchr(name, '/');
		n = at ? (size_t)(at - name) : 0;
	}
	at = name + n + (name[n] == '/');
	if (!*at)
		return refuse(k, "\"%.200s\" has no name after its component", name);
	if (n > CKPT_NAME_MAX || strlen(at) > CKPT_NAME_MAX)
		return refuse(k, "\"%.60s..\": a component or name is longer than %d bytes", name,
			      CKPT_NAME_MAX);
	component = arena_dup(&k->t->arena, name, n + 1);
	ret->name = arena_str(&k->t->arena, at);
	if (!component || !ret->name)
		return -ENOMEM;
	component[n] = 0;
	ret->component = component;
	return 0;
}

static uint64_t item_key(const struct table_tensor *x)
{
	return key_hash(key_hash(x->rank, x->component, strlen(x->component)), x->name,
			strlen(x->name));
}

/* The item of this name that is not `other`; TABLE_NONE. */
static uint32_t item_find(const struct making *k, const struct table_tensor *x, uint32_t other)
{
	uint64_t hash = item_key(x);

	for (uint32_t at = 0, i; (i = keymap_next(&k->names, hash, &at)) != KEYMAP_NONE;) {
		const struct item *y = &k->all.item[i];

		if (i != other && !y->gone && y->x.rank == x->rank && !strcmp(y->x.name, x->name) &&
		    !strcmp(y->x.component, x->component))
			return i;
	}
	return TABLE_NONE;
}

/* Add the present names of the items from `first` on to the index. If it has no space for so many
 * more, begin it anew with the present names of all items. */
static int index_items(struct making *k, uint32_t first, uint32_t names)
{
	if (!k->names.slot || k->names.n + (uint64_t)names > k->names.mask / 2) {
		first = 0;
		arena_free(&k->names_arena);
		k->names = (struct keymap){ 0 };
		if (keymap_reserve(&k->names, &k->names_arena, 2 * ((uint64_t)k->all.n + names)) <
		    0)
			return -ENOMEM;
	}
	for (uint32_t i = first; i < k->all.n; i++)
		if (!k->all.item[i].gone)
			keymap_put(&k->names, item_key(&k->all.item[i].x), i);
	return 0;
}

/* --- items --- */

static struct item *item_add(struct made *m)
{
	if (m->n == m->cap) {
		uint32_t cap = m->cap ? 2 * m->cap : 64;
		struct item *p = cap > ITEMS_MAX ? NULL : reallocarray(m->item, cap, sizeof *p);

		if (!p)
			return NULL;
		m->item = p;
		m->cap = cap;
	}
	m->item[m->n] = (struct item){ 0 };
	return &m->item[m->n++];
}

/* Does the present rule take the item? The name lies in name, which the match points into. */
static bool rule_takes(struct making *k, const struct item *y, char name[VIEW_NAME_MAX],
		       struct view_match *ret)
{
	if (y->gone)
		return false;
	name_of(&y->x, name);
	if (!view_match(k->rule->src[0], name, ret))
		return false;
	if (y->x.flags & TENSOR_BLOB && k->rule->verb != VIEW_RENAME &&
	    k->rule->verb != VIEW_DROP) {
		k->hit_blob = true;
		return false;
	}
	if (k->rule->verb == VIEW_CAST && dtype_kind(y->x.dtype) == DTYPE_OTHER) {
		k->hit_fixed = true;
		return false;
	}
	k->hit = true;
	return true;
}

/* Give a tensor the name that the template makes of the match. */
static int name_expand(struct making *k, const char *template, const struct view_match *m,
		       uint64_t number, const struct table_tensor *of, struct table_tensor *ret)
{
	char name[VIEW_NAME_MAX];

	if (view_expand(template, m, number, name) < 0)
		return refuse(k, "\"%.200s\" makes a name of more than %d bytes", template,
			      VIEW_NAME_MAX - 1);
	return set_name(k, name, of, ret);
}

/* The rule's dim in a tensor of so many dimensions. */
static int dim_of(struct making *k, const struct item *y, uint32_t ndim, uint32_t *ret)
{
	int32_t d = k->rule->dim + (k->rule->dim < 0 ? (int32_t)ndim : 0);

	if (d < 0 || d >= (int32_t)ndim)
		return refuse(k, "%s has %u dimensions, and so no dim %d here", LABEL(y), y->x.ndim,
			      k->rule->dim);
	*ret = (uint32_t)d;
	return 0;
}

/* An element of some dtypes is several values of the last dimension (dtype_values). */
static uint64_t values_of(const struct item *y, uint32_t d)
{
	return d + 1 == y->x.ndim ? dtype_values(y->x.dtype) : 1;
}

/* Refuse a rule after which another dimension would be the last one. */
static int refuse_packed(struct making *k, const struct item *y)
{
	return refuse(k,
		      "%s is %s, of which a byte is %u values of the last dimension: that one must "
		      "stay the last",
		      LABEL(y), dtype_name(y->x.dtype), dtype_values(y->x.dtype));
}

/* --- layouts --- */

enum { GONE = UINT32_MAX }; /* a dimension that the placements cannot name any more */

/*
 * The layout with tensor dimension d as to[d]. Where a placement's dimension is GONE it is of no
 * use any more, but for its PARTIALs.
 */
static int layout_map(struct making *k, uint32_t id, const uint32_t *to, uint32_t *ret)
{
	struct ckpt_placement place[2 * CKPT_DIMS_MAX];
	struct layout l = { .place = place };
	struct ckpt_err why = { 0 };
	bool whole = true;
	int rc;

	*ret = TABLE_NONE;
	if (id == TABLE_NONE)
		return 0;
	l.mesh = k->t->layout[id].mesh;
	l.mode = k->t->layout[id].mode;
	l.nplace = k->t->layout[id].nplace;
	if (l.nplace > ARRAY_LEN(place))
		return -E2BIG;
	if (l.nplace)
		memcpy(place, k->t->layout[id].place, l.nplace * sizeof *place);
	for (uint32_t i = 0; i < l.nplace; i++) {
		if (place[i].how != CKPT_SHARD)
			continue;
		if (to[place[i].tensor_dim] == GONE)
			whole = false;
		else
			place[i].tensor_dim = (uint16_t)to[place[i].tensor_dim];
	}
	if (!whole) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < l.nplace; i++)
			if (place[i].how == CKPT_PARTIAL)
				place[n++] = place[i];
		if (!n)
			return 0;
		l.nplace = n;
		l.mode = CKPT_CHUNK;
	}
	rc = table_add_layout(k->t, &l, ret, &why);
	return rc == -EINVAL ? refuse(k, "%s", why.msg) : rc;
}

/* --- tensors --- */

static int set_shape(struct making *k, const uint64_t *shape, uint32_t ndim, struct item *y)
{
	y->x.ndim = ndim;
	y->x.shape = arena_dup(&k->t->arena, shape, ndim * sizeof *shape);
	if (!y->x.shape)
		return -ENOMEM;
	if (table_shape_count(&y->x) < 0)
		return refuse(k, "%s would have more than 2^63 - 1 bytes", LABEL(y));
	return 0;
}

/* The elements have other row-major indices now, or may have. */
static void fp_forget(struct item *y, struct table_piece *piece)
{
	y->x.fp = 0;
	y->x.fp_known = false;
	for (uint32_t i = 0; i < y->npiece; i++) {
		piece[i].fp = 0;
		piece[i].fp_known = false;
	}
}

/* from's indices [lo, hi) of dimension d as y, which has its name; drop: without that dimension. */
static int item_cut(struct making *k, const struct item *from, uint32_t d, uint64_t lo, uint64_t hi,
		    bool drop, bool only, struct item *y)
{
	uint32_t to[CKPT_DIMS_MAX], n = from->x.ndim - drop;
	uint64_t shape[CKPT_DIMS_MAX];
	struct table_piece *piece;
	uint32_t cap = 0;
	int rc;

	for (uint32_t i = 0; i < from->x.ndim; i++) {
		to[i] = i == d ? GONE : i - (drop && i > d);
		if (!drop || i != d)
			shape[i - (drop && i > d)] = i == d ? hi - lo : from->x.shape[i];
	}
	y->x.of = "";
	for (uint32_t i = 0; i < from->npiece; i++) {
		const struct indices *x = &from->piece[i].set.dim[d];

		cap += indices_lo(x) < hi && indices_hi(x) > lo;
	}
	piece = arena_array(&k->t->arena, cap, sizeof *piece);
	rc = piece ? layout_map(k, from->x.layout, to, &y->x.layout) : -ENOMEM;
	rc = rc ? rc : set_shape(k, shape, n, y);
	for (uint32_t i = 0; i < from->npiece && !rc; i++) {
		rc = y->npiece == cap ? 0
				      : view_piece_cut(&from->piece[i], from->x.elem_bytes, d, lo,
						       hi, drop, &k->t->arena, &piece[y->npiece]);
		if (rc == 1) {
			y->npiece++;
			rc = 0;
		}
	}
	y->piece = piece;
	if (!rc && !only)
		fp_forget(y, piece);
	return rc;
}

static bool is_partial(const struct making *k, const struct item *y)
{
	return y->x.layout != TABLE_NONE && layout_is_partial(&k->t->layout[y->x.layout]);
}

/* Can b stand behind a along d (stack: anywhere)? */
static int items_fit(struct making *k, const struct item *a, const struct item *b, uint32_t d,
		     bool stack)
{
	char x[LABEL_BYTES], y[LABEL_BYTES];
	bool fits = a->x.ndim == b->x.ndim;

	table_tensor_print(&a->x, x, sizeof x);
	table_tensor_print(&b->x, y, sizeof y);
	if (a->x.dtype != b->x.dtype)
		return refuse(k,
			      "%s and %s have different dtypes: what is joined lies in one dtype "
			      "in the checkpoint, and casts come behind",
			      x, y);
	if (a->cast.dtype != b->cast.dtype)
		return refuse(k, "%s and %s are cast otherwise: cast what they are joined to", x,
			      y);
	if (a->x.role != b->x.role || a->x.cls != b->x.cls)
		return refuse(k, "%s and %s have different roles or classes", x, y);
	for (uint32_t i = 0; fits && i < a->x.ndim; i++)
		fits = a->x.shape[i] == b->x.shape[i] || (i == d && !stack);
	if (!fits)
		return refuse(k, "%s and %s have shapes that do not fit together", x, y);
	if (a->x.layout != b->x.layout && (is_partial(k, a) || is_partial(k, b)))
		return refuse(k, "%s and %s have pending reductions, and not the same layout", x,
			      y);
	return 0;
}

static int join_pieces(struct making *k, struct item *const *part, uint32_t n, uint32_t d,
		       bool stack, struct item *y)
{
	uint64_t total = 0, at = 0;
	struct table_piece *piece;
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		total += part[i]->npiece;
	if (total > TABLE_PIECES_MAX)
		return -E2BIG;
	piece = arena_array(&k->t->arena, total, sizeof *piece);
	if (!piece)
		return -ENOMEM;
	for (uint32_t i = 0; i < n && !rc; i++) {
		for (uint32_t j = 0; j < part[i]->npiece && !rc; j++)
			rc = view_piece_join(&part[i]->piece[j], d, at, stack, &k->t->arena,
					     &piece[y->npiece++]);
		at += stack ? 1 : part[i]->x.shape[d];
	}
	y->piece = piece;
	if (!rc && n > 1)
		fp_forget(y, piece);
	return rc;
}

/* The parts as y, which has its name. */
static int items_join(struct making *k, struct item *const *part, uint32_t n, bool stack,
		      struct item *y)
{
	const struct item *a = part[0];
	uint32_t to[CKPT_DIMS_MAX], d, ndim = a->x.ndim + stack;
	uint64_t shape[CKPT_DIMS_MAX] = { 0 }, sum = 0;
	bool alike = true;
	int rc = ndim > CKPT_DIMS_MAX ? refuse(k, "%s has %u dimensions: no room for one more",
					       LABEL(a), a->x.ndim)
				      : dim_of(k, a, ndim, &d);

	if (!rc && stack && d + 1 == ndim && dtype_values(a->x.dtype) > 1)
		rc = refuse_packed(k, a);
	for (uint32_t i = 0; i < n && rc != -ENOMEM && (!rc || i); i++) {
		int bad = i ? items_fit(k, a, part[i], d, stack) : 0;

		rc = bad ? bad : rc;
		alike = alike && part[i]->x.layout == a->x.layout;
		if (!rc && ckpt_add(sum, stack ? 1 : part[i]->x.shape[d], &sum) < 0)
			rc = refuse(k, "%s would have more than 2^63 - 1 bytes", LABEL(y));
	}
	if (rc)
		return rc;
	for (uint32_t i = 0; i < a->x.ndim; i++) {
		to[i] = stack ? i + (i >= d) : i == d ? GONE : i;
		shape[i + (stack && i >= d)] = a->x.shape[i];
	}
	shape[d] = sum;
	y->x.of = "";
	rc = layout_map(k, alike ? a->x.layout : TABLE_NONE, to, &y->x.layout);
	rc = rc ? rc : set_shape(k, shape, ndim, y);
	return rc ? rc : join_pieces(k, part, n, d, stack, y);
}

/* In place. */
static int item_turn(struct making *k, struct item *y)
{
	const uint64_t *dims = k->rule->number;
	uint64_t shape[CKPT_DIMS_MAX], last = 0;
	uint32_t to[CKPT_DIMS_MAX], n = y->x.ndim;
	struct table_piece *piece;
	bool moved = false;
	int rc;

	if (n != k->rule->n)
		return refuse(k, "%s has %u dimensions, the rule has %u", LABEL(y), n, k->rule->n);
	if (n && dims[n - 1] != n - 1 && dtype_values(y->x.dtype) > 1)
		return refuse_packed(k, y);
	for (uint32_t i = 0; i < n; i++) {
		to[dims[i]] = i;
		shape[i] = y->x.shape[dims[i]];
		if (shape[i] == 1)
			continue;
		moved = moved || dims[i] < last;
		last = dims[i];
	}
	piece = arena_array(&k->t->arena, y->npiece, sizeof *piece);
	rc = piece ? layout_map(k, y->x.layout, to, &y->x.layout) : -ENOMEM;
	rc = rc ? rc : set_shape(k, shape, n, y);
	for (uint32_t i = 0; i < y->npiece && !rc; i++)
		rc = view_piece_turn(&y->piece[i], dims, &k->t->arena, &piece[i]);
	y->piece = piece;
	if (!rc && moved)
		fp_forget(y, piece);
	return rc;
}

/* --- other shapes --- */

static char *shape_print(const struct item *y, char *buf, size_t bytes)
{
	size_t n = (size_t)snprintf(buf, bytes, "%s", y->x.ndim ? "" : "scalar");

	for (uint32_t d = 0; d < y->x.ndim && n < bytes; d++)
		n += (size_t)snprintf(buf + n, bytes - n, "%s%llu", d ? "," : "",
				      (unsigned long long)(y->x.shape[d] * values_of(y, d)));
	return buf;
}

/* The rule's shape of y, in elements, with what stands for VIEW_REST. */
static int reshape_find(struct making *k, const struct item *y, uint64_t *ret)
{
	uint64_t values = dtype_values(y->x.dtype), have = y->x.numel * values, want = 1;
	uint32_t n = k->rule->n, rest = n;
	char was[LABEL_BYTES];

	shape_print(y, was, sizeof was);
	for (uint32_t d = 0; d < n; d++) {
		ret[d] = k->rule->number[d];
		if (ret[d] == VIEW_REST)
			rest = d;
		else if (ckpt_mul(want, ret[d], &want) < 0)
			want = UINT64_MAX;
	}
	if (rest < n && (!want || have % want))
		return refuse(k, "%s has %llu elements (%s), of which -1 in %s cannot make %s",
			      LABEL(y), (unsigned long long)have, was, k->rule->arg,
			      want ? "a whole number" : "one size: write it");
	if (rest < n)
		ret[rest] = have / want;
	else if (want != have)
		return refuse(k, "%s has %llu elements (%s), %s has %llu", LABEL(y),
			      (unsigned long long)have, was, k->rule->arg,
			      (unsigned long long)want);
	if (values > 1 && (!n || ret[n - 1] % values))
		return refuse(k,
			      "%s is %s, of which a byte is %u values of the last dimension: its "
			      "last size in %s must be a multiple of %u",
			      LABEL(y), dtype_name(y->x.dtype), (uint32_t)values, k->rule->arg,
			      (uint32_t)values);
	if (n)
		ret[n - 1] /= values;
	return 0;
}

/* Do all placements of tensor dimension d together cut it in equal blocks, and another dimension of
 * which it is the first, too? */
static bool cuts_evenly(const struct making *k, const struct layout *l, uint32_t d, uint64_t was,
			uint64_t is)
{
	uint64_t cuts = 1;

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (p->how == CKPT_SHARD && p->tensor_dim == d &&
		    (ckpt_mul(cuts, k->t->mesh[l->mesh].dim[p->mesh_dim], &cuts) < 0 ||
		     ckpt_mul(cuts, MAX(p->split_factor, 1u), &cuts) < 0))
			return false;
	}
	return was % cuts == 0 && is % cuts == 0;
}

/* Where the dimensions of y are in the new shape: those that stay what they are, and the first of
 * several that the layout cuts in blocks. */
static void dims_follow(struct making *k, const struct item *y, uint32_t n, const uint64_t *shape,
			uint32_t *ret)
{
	struct view_groups groups = { 0 };

	for (uint32_t d = 0; d < y->x.ndim; d++)
		ret[d] = GONE;
	if (y->x.layout == TABLE_NONE || !y->x.numel)
		return;
	groups = view_groups(y->x.ndim, y->x.shape, n, shape);
	for (uint32_t i = 0; i < groups.n; i++) {
		const struct view_group *g = &groups.group[i];

		if ((g->nwas == 1 && g->nis == 1) ||
		    cuts_evenly(k, &k->t->layout[y->x.layout], g->was[0], y->x.shape[g->was[0]],
				shape[g->is[0]]))
			ret[g->was[0]] = g->is[0];
	}
}

/* All pieces of y in the new shape. A piece that becomes one keeps its fingerprint. */
static int reshape_pieces(struct making *k, struct item *y, uint32_t n, const uint64_t *shape)
{
	struct made_pieces {
		struct table_piece *p;
		uint64_t n, cap;
	} m = { 0 };
	int rc = 0;

	for (uint32_t i = 0; i < y->npiece && !rc; i++) {
		const struct table_piece *x;
		uint32_t nx;

		rc = view_piece_reshape(&y->piece[i], y->x.elem_bytes, y->x.shape, n, shape,
					&k->t->arena, &x, &nx);
		if (!rc && m.n + nx > TABLE_PIECES_MAX)
			rc = -E2BIG;
		if (!rc && m.n + nx > m.cap) {
			struct table_piece *p;

			m.cap = MAX(m.n + nx, 2 * m.cap);
			p = reallocarray(m.p, m.cap, sizeof *p);
			m.p = p ? p : m.p;
			rc = p ? 0 : -ENOMEM;
		}
		for (uint32_t j = 0; j < nx && !rc; j++) {
			m.p[m.n] = x[j];
			if (nx > 1) {
				m.p[m.n].fp = 0;
				m.p[m.n].fp_known = false;
			}
			m.n++;
		}
	}
	if (!rc) {
		y->piece = arena_dup(&k->t->arena, m.p, m.n * sizeof *m.p);
		y->npiece = (uint32_t)m.n;
		rc = y->piece || !m.n ? 0 : -ENOMEM;
	}
	free(m.p);
	return rc;
}

/* In place. */
static int item_reshape(struct making *k, struct item *y)
{
	uint64_t shape[CKPT_DIMS_MAX];
	uint32_t to[CKPT_DIMS_MAX], n = k->rule->n;
	int rc = reshape_find(k, y, shape);

	if (rc)
		return rc;
	dims_follow(k, y, n, shape, to);
	rc = reshape_pieces(k, y, n, shape);
	if (rc == -E2BIG)
		return refuse(
			k,
			"%s: a piece of it would be more than %u pieces as %s, because of how "
			"it is cut or turned; leave this rule out, convert the checkpoint, "
			"and follow the rule on the result",
			LABEL(y), VIEW_PIECES_MAX, k->rule->arg);
	rc = rc ? rc : layout_map(k, y->x.layout, to, &y->x.layout);
	return rc ? rc : set_shape(k, shape, n, y);
}

/* --- rules --- */

/* After a refusal, which is in the list, the next items are checked, too; other errors end it. */
static bool is_fatal(int rc)
{
	return rc && rc != -EINVAL;
}

static int taken_twice(struct making *k, const struct item *y)
{
	return refuse(k, "there is already a tensor called %s", LABEL(y));
}

/* Keys ("component/name") before and after. */
struct new_name {
	const char *was, *is;
};

/* NULL: there is no memory. */
static const char *key_keep(struct making *k, const struct table_tensor *x)
{
	char key[TABLE_KEY_BYTES];

	return arena_str(&k->t->arena, table_key(x, key));
}

static int new_name_compare(const void *a, const void *b)
{
	return strcmp(((const struct new_name *)a)->was, ((const struct new_name *)b)->was);
}

static void rename_of(struct making *k, struct new_name *name, uint32_t n)
{
	qsort(name, n, sizeof *name, new_name_compare);
	for (uint32_t i = 0; i < k->all.n && n; i++) {
		struct new_name key = { k->all.item[i].x.of, NULL }, *hit;

		if (k->all.item[i].gone || !*key.was)
			continue;
		hit = bsearch(&key, name, n, sizeof *name, new_name_compare);
		if (hit)
			k->all.item[i].x.of = hit->is;
	}
}

/* reshape and cast change an item in place. */
static int change_items(struct making *k)
{
	char name[VIEW_NAME_MAX];
	struct view_match m;
	int rc = 0;

	for (uint32_t i = 0; i < k->all.n && !is_fatal(rc); i++) {
		struct item *y = &k->all.item[i];

		if (!rule_takes(k, y, name, &m))
			continue;
		if (k->rule->verb == VIEW_CAST)
			y->cast = (struct view_cast){ k->rule->dtype, k->rule->where };
		else
			rc = item_reshape(k, y);
	}
	return is_fatal(rc) ? rc : 0;
}

/* rename and transpose. */
static int rename_items(struct making *k)
{
	const char *dst = k->rule->ndst ? k->rule->dst[0] : NULL;
	cleanup_free uint32_t *hit = calloc((size_t)k->all.n + 1, sizeof *hit);
	cleanup_free struct new_name *of = calloc((size_t)k->all.n + 1, sizeof *of);
	uint32_t nhit = 0, nof = 0;
	char name[VIEW_NAME_MAX];
	struct view_match m;
	int rc = hit && of ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < k->all.n && !is_fatal(rc); i++) {
		struct item *y = &k->all.item[i];
		const char *was = NULL;

		if (!rule_takes(k, y, name, &m))
			continue;
		hit[nhit++] = i;
		if (dst && !(y->x.flags & TENSOR_BLOB))
			was = key_keep(k, &y->x);
		rc = k->rule->verb == VIEW_TRANSPOSE ? item_turn(k, y) : 0;
		if (!is_fatal(rc) && dst)
			rc = name_expand(k, dst, &m, 0, &y->x, &y->x);
		if (!is_fatal(rc) && dst && !(y->x.flags & TENSOR_BLOB)) {
			of[nof] = (struct new_name){ was, key_keep(k, &y->x) };
			rc = of[nof].was && of[nof].is ? rc : -ENOMEM;
			nof++;
		}
	}
	if (is_fatal(rc) || !dst)
		return is_fatal(rc) ? rc : 0;
	/* Old entries are stale now, all but those of names that came out as they were. */
	if (index_items(k, k->all.n, nhit) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < nhit; i++)
		keymap_put(&k->names, item_key(&k->all.item[hit[i]].x), hit[i]);
	for (uint32_t i = 0; i < nhit; i++)
		if (item_find(k, &k->all.item[hit[i]].x, hit[i]) != TABLE_NONE)
			(void)taken_twice(k, &k->all.item[hit[i]]);
	rename_of(k, of, nof);
	return 0;
}

/* The same pieces under one more name. */
static int copy_items(struct making *k)
{
	char name[VIEW_NAME_MAX];
	struct view_match m;
	int rc = 0;

	for (uint32_t i = 0; i < k->all.n && !is_fatal(rc); i++) {
		struct item *y;

		if (!rule_takes(k, &k->all.item[i], name, &m))
			continue;
		y = item_add(&k->more);
		if (!y)
			return k->more.n < ITEMS_MAX ? -ENOMEM : -E2BIG;
		*y = k->all.item[i];
		rc = name_expand(k, k->rule->dst[0], &m, 0, &k->all.item[i].x, &y->x);
	}
	return is_fatal(rc) ? rc : 0;
}

static void drop_items(struct making *k)
{
	char name[VIEW_NAME_MAX];
	struct view_match m;

	for (uint32_t i = 0; i < k->all.n; i++)
		if (rule_takes(k, &k->all.item[i], name, &m))
			k->all.item[i].gone = true;
}

/* Append the items of k->more to all others. */
static int add_more(struct making *k)
{
	uint32_t first = k->all.n;

	for (uint32_t i = 0; i < k->more.n; i++) {
		struct item *y = item_add(&k->all);

		if (!y)
			return k->all.n < ITEMS_MAX ? -ENOMEM : -E2BIG;
		*y = k->more.item[i];
	}
	if (index_items(k, first, k->more.n) < 0)
		return -ENOMEM;
	k->more.n = 0;
	for (uint32_t i = first; i < k->all.n; i++)
		if (item_find(k, &k->all.item[i].x, i) != TABLE_NONE)
			(void)taken_twice(k, &k->all.item[i]);
	return 0;
}

/* How many parts y falls into. */
static int count_parts(struct making *k, const struct item *y, uint32_t d, uint32_t *ret)
{
	const struct view_rule *r = k->rule;
	uint64_t values = values_of(y, d), extent = y->x.shape[d] * values, sum = 0;

	if (r->verb == VIEW_UNSTACK) {
		if (values > 1)
			return refuse_packed(k, y);
		if (!r->dst_numbers && extent != r->ndst)
			return refuse(k, "%s has %llu indices in dim %d, but there are %u names",
				      LABEL(y), (unsigned long long)extent, r->dim, r->ndst);
		if (!extent || extent > VIEW_PARTS_MAX)
			return refuse(k,
				      "%s has %llu indices in dim %d: 1 to %u parts are "
				      "possible",
				      LABEL(y), (unsigned long long)extent, r->dim, VIEW_PARTS_MAX);
		*ret = (uint32_t)extent;
		return 0;
	}
	*ret = r->n ? r->n : r->ndst;
	if (!r->n && extent % r->ndst)
		return refuse(k, "%s: %llu indices in dim %d are not %u equal parts; write sizes",
			      LABEL(y), (unsigned long long)extent, r->dim, r->ndst);
	if (!r->n && extent / r->ndst % values)
		return refuse(k,
			      "%s: %u equal parts of dim %d would end inside of a byte of %llu "
			      "values; write sizes",
			      LABEL(y), r->ndst, r->dim, (unsigned long long)values);
	for (uint32_t i = 0; i < r->n; i++)
		if (ckpt_add(sum, r->number[i], &sum) < 0)
			sum = UINT64_MAX;
	for (uint32_t i = 0; i < r->n; i++)
		if (r->number[i] % values)
			return refuse(k,
				      "%s: size %llu of dim %d ends inside of a byte of %llu "
				      "values; %s needs multiples of %llu",
				      LABEL(y), (unsigned long long)r->number[i], r->dim,
				      (unsigned long long)values, dtype_name(y->x.dtype),
				      (unsigned long long)values);
	if (r->n && sum != extent)
		return refuse(k, "%s has %llu indices in dim %d, the sizes are %llu together",
			      LABEL(y), (unsigned long long)extent, r->dim,
			      (unsigned long long)sum);
	return 0;
}

/* split and unstack. */
static int cut_item(struct making *k, const struct item *from, const struct view_match *m)
{
	const struct view_rule *r = k->rule;
	bool drop = r->verb == VIEW_UNSTACK;
	uint64_t lo = 0;
	uint32_t d, n = 0;
	int rc = dim_of(k, from, from->x.ndim, &d);

	rc = rc ? rc : count_parts(k, from, d, &n);
	for (uint32_t i = 0; i < n && !rc; i++) {
		uint64_t hi = lo + (drop   ? 1
				    : r->n ? r->number[i] / values_of(from, d)
					   : from->x.shape[d] / n);
		struct item *y = item_add(&k->more);

		if (!y)
			return k->more.n < ITEMS_MAX ? -ENOMEM : -E2BIG;
		y->x = from->x;
		y->cast = from->cast;
		rc = name_expand(k, r->dst[r->dst_numbers ? 0 : i], m, i, &from->x, &y->x);
		rc = rc ? rc : item_cut(k, from, d, lo, hi, drop, n == 1, y);
		lo = hi;
	}
	return rc;
}

static int cut_items(struct making *k)
{
	char name[VIEW_NAME_MAX];
	struct view_match m;
	int rc = 0;

	for (uint32_t i = 0; i < k->all.n && !is_fatal(rc); i++) {
		if (!rule_takes(k, &k->all.item[i], name, &m))
			continue;
		rc = cut_item(k, &k->all.item[i], &m);
		k->all.item[i].gone = true;
	}
	return is_fatal(rc) ? rc : 0;
}

/* A part of the tensor that gets the name x. */
struct part {
	struct table_tensor x; /* component and name are set */
	uint64_t number;
	uint32_t item, match; /* match: items of one have one; and those of one '#' one name */
};

struct parts {
	struct part *part;
	size_t n, cap;
};

static int part_add(struct parts *p, const struct part *x)
{
	if (p->n == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 64;
		struct part *q = reallocarray(p->part, cap, sizeof *q);

		if (!q)
			return -ENOMEM;
		p->part = q;
		p->cap = cap;
	}
	p->part[p->n++] = *x;
	return 0;
}

static int part_compare(const void *va, const void *vb)
{
	const struct part *a = va, *b = vb;
	int r = (a->match > b->match) - (a->match < b->match);

	if (!r)
		r = strcmp(a->x.component, b->x.component);
	if (!r)
		r = strcmp(a->x.name, b->x.name);
	return r ? r : (a->number > b->number) - (a->number < b->number);
}

/* The other parts of the tensor that the pattern matched. */
static int find_parts(struct making *k, struct part *x, const struct view_match *m, struct parts *p)
{
	const struct table_tensor of = k->all.item[x->item].x;
	int rc = 0;

	for (uint32_t i = 1; i < k->rule->nsrc && !is_fatal(rc); i++) {
		struct item want = { .x = { .rank = TABLE_NONE } };
		int bad = name_expand(k, k->rule->src[i], m, 0, &of, &want.x);

		if (!bad) {
			x->number = i;
			x->item = item_find(k, &want.x, TABLE_NONE);
			if (x->item == TABLE_NONE)
				bad = refuse(k, "there is no tensor %s", LABEL(&want));
			else if (k->all.item[x->item].x.flags & TENSOR_BLOB)
				bad = refuse(k, "%s is a blob, which has no dimensions to join",
					     LABEL(&want));
			else
				bad = part_add(p, x);
		}
		rc = bad ? bad : rc;
	}
	return rc;
}

static int list_parts(struct making *k, struct parts *p)
{
	bool numbers = k->rule->src_numbers;
	char name[VIEW_NAME_MAX];
	struct view_match m;
	int rc = 0;

	for (uint32_t i = 0; i < k->all.n && !is_fatal(rc); i++) {
		struct part x = { .item = i };

		if (!rule_takes(k, &k->all.item[i], name, &m))
			continue;
		x.number = numbers ? m.number : 0;
		x.match = numbers ? 0 : i;
		rc = name_expand(k, k->rule->dst[0], &m, 0, &k->all.item[i].x, &x.x);
		if (!rc)
			rc = part_add(p, &x);
		if (!is_fatal(rc) && !numbers)
			rc = find_parts(k, &x, &m, p);
	}
	return rc;
}

/* The parts [0, n) of one tensor, sorted by their numbers. */
static int join_parts(struct making *k, const struct part *p, size_t n)
{
	cleanup_free struct item **part = calloc(n, sizeof *part);
	struct item *y;

	if (!part)
		return -ENOMEM;
	if (n > VIEW_PARTS_MAX)
		return refuse(k, "%s/%s: more than %u parts", p->x.component, p->x.name,
			      VIEW_PARTS_MAX);
	for (size_t i = 0; i < n; i++) {
		if (p[i].number != i)
			return refuse(k, "%s%s%s: number %zu of its parts is %s", p->x.component,
				      *p->x.component ? "/" : "", p->x.name,
				      p[i].number < i ? i - 1 : i,
				      p[i].number < i ? "there twice" : "missing");
		part[i] = &k->all.item[p[i].item];
	}
	y = item_add(&k->more);
	if (!y)
		return k->more.n < ITEMS_MAX ? -ENOMEM : -E2BIG;
	y->x = part[0]->x;
	y->cast = part[0]->cast;
	y->x.component = p->x.component;
	y->x.name = p->x.name;
	return items_join(k, part, (uint32_t)n, k->rule->verb == VIEW_STACK, y);
}

static int join_items(struct making *k)
{
	struct parts p = { 0 };
	int rc = list_parts(k, &p);

	for (size_t i = 0; i < p.n && !is_fatal(rc); i++) {
		struct item *y = &k->all.item[p.part[i].item];

		if (y->part)
			(void)refuse(k, "%s is a part twice; a view has every byte once", LABEL(y));
		y->part = true;
	}
	/* Where some were not found, what is there would not be what was meant. */
	if (k->list->n && !is_fatal(rc))
		p.n = 0;
	if (p.n)
		qsort(p.part, p.n, sizeof *p.part, part_compare);
	for (size_t i = 0, n; i < p.n && !is_fatal(rc); i += n) {
		const struct part *x = &p.part[i];

		for (n = 1; i + n < p.n; n++)
			if (x->match != x[n].match || strcmp(x->x.name, x[n].x.name) != 0 ||
			    strcmp(x->x.component, x[n].x.component) != 0)
				break;
		rc = join_parts(k, x, n);
	}
	for (size_t i = 0; i < p.n; i++)
		k->all.item[p.part[i].item].gone = true;
	free(p.part);
	return is_fatal(rc) ? rc : 0;
}

static int rule_apply(struct making *k)
{
	int rc = 0;

	k->hit = k->hit_blob = k->hit_fixed = false;
	switch (k->rule->verb) {
	case VIEW_RENAME:
	case VIEW_TRANSPOSE:
		rc = rename_items(k);
		break;
	case VIEW_SPLIT:
	case VIEW_UNSTACK:
		rc = cut_items(k);
		break;
	case VIEW_CONCAT:
	case VIEW_STACK:
		rc = join_items(k);
		break;
	case VIEW_COPY:
		rc = copy_items(k);
		break;
	case VIEW_DROP:
		drop_items(k);
		break;
	case VIEW_RESHAPE:
	case VIEW_CAST:
		rc = change_items(k);
		break;
	}
	if (!rc && !k->hit)
		(void)refuse(k,
			     k->hit_fixed ? "\"%.200s\" matches no floating-point tensor, and "
					    "all others stay as they are"
			     : k->hit_blob
				     ? "\"%.200s\" matches blobs only, which can only be renamed "
				       "and dropped"
				     : "no tensor matches \"%.200s\"",
			     k->rule->src[0]);
	return rc || k->list->n ? rc : add_more(k);
}

/* --- from table to table --- */

static int table_start(struct making *k)
{
	uint32_t id;
	int rc = 0;

	for (uint32_t i = 0; i < k->src->nmesh && !rc; i++)
		rc = table_add_mesh(k->t, &k->src->mesh[i], &id, NULL);
	for (uint32_t i = 0; i < k->src->nlayout && !rc; i++) {
		rc = table_add_layout(k->t, &k->src->layout[i], &id, NULL);
		assert(rc || id == i);
	}
	for (uint32_t i = 0; i < k->src->naverage && !rc; i++)
		rc = table_add_average(k->t, &k->src->average[i], NULL, NULL);
	for (uint32_t i = 0; i < k->src->nplace && !rc; i++)
		rc = table_add_place(k->t, &k->src->place[i], NULL, NULL);
	for (uint32_t i = 0; i < k->src->ntensor && !rc; i++) {
		struct item *y = item_add(&k->all);

		if (!y)
			return -ENOMEM;
		*y = (struct item){ .x = k->src->tensor[i],
				    .npiece = k->src->first[i + 1] - k->src->first[i] };
		if (y->npiece)
			y->piece = k->src->piece + k->src->first[i];
	}
	return rc ? rc : index_items(k, 0, k->all.n);
}

/* After all rules: refuse casts that are impossible. */
static void check_casts(struct making *k)
{
	for (uint32_t i = 0; i < k->all.n; i++) {
		struct item *y = &k->all.item[i];
		uint32_t from = y->x.dtype, to = y->cast.dtype;

		if (y->gone || !to || to == from ||
		    (dtype_kind(from) == DTYPE_FLOAT && dtype_kind(to) == DTYPE_FLOAT))
			continue;
		ckpt_errlist_add(k->list,
				 "%s: %s is %s, which cannot become %s: F16, BF16, F32 and F64 are "
				 "cast to one another; a later rule \"cast NAME %s\" keeps it",
				 y->cast.where, LABEL(y), dtype_name(from), dtype_name(to),
				 dtype_name(from));
	}
}

static int table_finish(struct making *k, struct ckpt_err *err)
{
	uint64_t ntensor = 0, npiece = 0;
	int rc;

	for (uint32_t i = 0; i < k->all.n; i++)
		if (!k->all.item[i].gone) {
			ntensor++;
			npiece += k->all.item[i].npiece;
		}
	k->cast = arena_array(&k->t->arena, ntensor + 1, sizeof *k->cast);
	if (!k->cast || table_reserve(k->t, ntensor, npiece) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < k->all.n; i++) {
		const struct item *y = &k->all.item[i];
		uint32_t id = 0;

		if (y->gone)
			continue;
		rc = table_put_tensor(k->t, &y->x, &id, err);
		k->cast[id] = y->cast;
		for (uint32_t j = 0; j < y->npiece && !rc; j++) {
			struct table_piece p = y->piece[j];

			p.tensor = id;
			rc = table_put_piece(k->t, &p, err);
		}
		if (rc)
			return rc;
	}
	return table_seal(k->t, err);
}

static int rules_apply(struct making *k, const struct view *v, struct ckpt_err *err)
{
	int rc = table_start(k);

	for (uint32_t i = 0; i < v->nrule && !rc && !k->list->n; i++) {
		k->rule = &v->rule[i];
		rc = rule_apply(k);
	}
	if (!rc && !k->list->n)
		check_casts(k);
	if (!rc)
		rc = ckpt_errlist_end(k->list, err, "the view cannot be made");
	else if (rc == -E2BIG)
		return ckpt_error(err, rc, "%s: too many tensors, pieces, layouts or runs",
				  k->rule ? k->rule->where : "the view");
	else
		return ckpt_error(err, rc, "out of memory for a view");
	return rc ? rc : table_finish(k, err);
}

int view_make(const struct table *src, const struct view *v, struct table *ret,
	      const struct view_cast **ret_cast, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct making k = { .src = src, .t = ret, .list = &list };
	int rc;

	assert(src->sealed);
	*ret = (struct table){ 0 };
	rc = rules_apply(&k, v, err);
	if (rc)
		table_free(ret);
	*ret_cast = rc ? NULL : k.cast;
	free(k.all.item);
	free(k.more.item);
	arena_free(&k.names_arena);
	ckpt_errlist_free(&list);
	return rc;
}
