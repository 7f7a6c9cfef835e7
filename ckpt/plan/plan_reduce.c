/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_reduce.c - see plan_reduce.h. Called by plan_make for every tensor, and by the mover for
 * each window of those that are not copied. Invariant: operands are counted by the source's mesh
 * alone, so an element is made of the same operands in the same order whatever the destination is.
 */
#include "ckpt/plan/plan_reduce.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/plan_match.h"
#include "ckpt/table/operand.h"
#include <stdio.h>

#define WANT_ALIGN 64
#define OPERANDS_NAMED 4 /* more that are missing are a number */

/* A plan_sum in the making. Dimensions are bits of the source's mesh. */
struct group {
	struct plan_sum s;
	uint32_t reduce;	    /* their coordinates count the operands */
	uint32_t fixed;		    /* their coordinates are at[]; those that are kept, and zeros */
	uint32_t zeros;		    /* of fixed: a SHARD that becomes a PARTIAL */
	uint32_t at[CKPT_DIMS_MAX]; /* by dimension of the source's mesh */
	char label[160];
};

struct reducing {
	struct plan *p;
	struct rank_map src, dst;
	struct match match;
	struct op_list ops;
	struct group *group;
	uint32_t n, cap;
	struct ckpt_errlist *list;
};

bool plan_casts(uint32_t from, uint32_t to)
{
	static const uint32_t real =
		1u << CKPT_F16 | 1u << CKPT_BF16 | 1u << CKPT_F32 | 1u << CKPT_F64;

	return from < 32 && to < 32 && (real >> from & real >> to & 1);
}

int reducing_open(struct plan *p, struct reducing **ret)
{
	struct reducing *r = calloc(1, sizeof *r);

	*ret = r;
	if (!r)
		return -ENOMEM;
	r->p = p;
	if (rank_map_open(p->src, &r->src) < 0)
		return -ENOMEM;
	return rank_map_open(p->dst, &r->dst);
}

void reducing_close(struct reducing *r)
{
	if (!r)
		return;
	for (uint32_t i = 0; i < r->n; i++)
		free((void *)r->group[i].s.piece);
	free(r->group);
	free(r->ops.op);
	match_free(&r->match);
	if (r->src.t)
		rank_map_close(&r->src);
	if (r->dst.t)
		rank_map_close(&r->dst);
	free(r);
}

/* --- what a declaration asks for --- */

/* What becomes of operands does not depend on whether they are kept. NULL: nothing is placed. */
static const char *how_print(const struct mesh *m, const struct ckpt_placement *p,
			     uint32_t mesh_dim, char buf[static PLACEMENT_BYTES])
{
	struct ckpt_placement x =
		p ? *p : (struct ckpt_placement){ .mesh_dim = (uint16_t)mesh_dim };

	x.flags = 0;
	return placement_print(m, &x, buf, PLACEMENT_BYTES);
}

static uint32_t dim_of_name(const struct mesh *m, const char *name)
{
	uint32_t d = 0;

	while (d < m->ndim && strcmp(m->name[d], name) != 0)
		d++;
	return d;
}

static const struct ckpt_placement *place_of(const struct layout *l, uint32_t mesh_dim)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].mesh_dim == mesh_dim)
			return &l->place[i];
	return NULL;
}

const char *plan_why_not_partial(const struct ckpt_placement *from, const struct ckpt_placement *to)
{
	bool partial = from && from->how == CKPT_PARTIAL;

	if (partial && from->reduce != to->reduce)
		return "a pending reduction does not become another one";
	if (!partial && (!from || from->how != CKPT_SHARD))
		return "only a shard becomes an operand of a sum; a complete tensor does not";
	if (!partial && from->split_factor > 1)
		return "a strided shard does not become an operand";
	if (!partial && to->reduce != CKPT_SUM)
		return "a shard becomes an operand of a sum, and of nothing else";
	return NULL;
}

/* Fills fixed and zeros for a declared PARTIAL, or says why it cannot be. */
static void partial_take(struct reducing *r, struct group *g, const struct table_tensor *x,
			 const struct mesh *to, const struct ckpt_placement *p)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &r->p->src->layout[x->layout];
	const struct mesh *from = l ? &r->p->src->mesh[l->mesh] : NULL;
	const char *name = to->name[p->mesh_dim], *why;
	uint32_t d = from ? dim_of_name(from, name) : 0;
	const struct ckpt_placement *q;
	char have[PLACEMENT_BYTES], want[PLACEMENT_BYTES];

	how_print(to, p, 0, want);
	if (!from || d == from->ndim) {
		ckpt_errlist_add(
			r->list,
			"%s: declared %s, but the mesh of the checkpoint has no %s; declare "
			"it Replicate or Shard to have it reduced",
			g->label, want, name);
		return;
	}
	q = place_of(l, d);
	why = plan_why_not_partial(q, p);
	if (!why && from->dim[d] != to->dim[p->mesh_dim])
		why = "operands are taken as they are by a mesh dimension of the same size only";
	if (why) {
		ckpt_errlist_add(r->list,
				 "%s: declared %s (%u), the checkpoint has %s (%u): %s; declare it "
				 "Replicate or Shard",
				 g->label, want, to->dim[p->mesh_dim], how_print(from, q, d, have),
				 from->dim[d], why);
		return;
	}
	g->fixed |= UINT32_C(1) << d;
	if (q->how == CKPT_SHARD)
		g->zeros |= UINT32_C(1) << d;
}

/* Operation and divisor for the mesh dimensions that are reduced. */
static void reduction_take(const struct table *src, const struct table_tensor *x, struct group *g)
{
	const struct layout *l;
	const struct mesh *m;

	g->s.n = 1;
	g->s.divisor = 1;
	if (!g->reduce)
		return;
	l = &src->layout[x->layout];
	m = &src->mesh[l->mesh];
	g->s.n = operand_count(m, g->reduce);
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (!(g->reduce >> p->mesh_dim & 1))
			continue;
		if (p->reduce == CKPT_AVG)
			g->s.divisor *= m->dim[p->mesh_dim];
		/* SUM is the lowest: of SUM and AVG together AVG is left. */
		g->s.op = MAX(g->s.op, (uint32_t)p->reduce);
	}
}

/* What the two declarations say, for all pieces. False: it was refused. */
static bool group_init(struct reducing *r, uint32_t src_tensor, uint32_t dst_tensor,
		       struct group *ret)
{
	const struct table_tensor *x = &r->p->src->tensor[src_tensor],
				  *y = &r->p->dst->tensor[dst_tensor];
	uint64_t before = r->list->n;

	*ret = (struct group){ .s = { .src_tensor = src_tensor,
				      .dst_tensor = dst_tensor,
				      .dtype = x->dtype,
				      .to = y->dtype } };
	table_tensor_print(y, ret->label, sizeof ret->label);
	if (y->layout != TABLE_NONE) {
		const struct layout *l = &r->p->dst->layout[y->layout];

		for (uint32_t i = 0; i < l->nplace; i++)
			if (l->place[i].how == CKPT_PARTIAL)
				partial_take(r, ret, x, &r->p->dst->mesh[l->mesh], &l->place[i]);
	}
	ret->reduce = operand_dims(r->p->src, x) & ~ret->fixed;
	ret->s.zeros = ret->zeros != 0;
	reduction_take(r->p->src, x, ret);
	return r->list->n == before;
}

/* --- which pieces --- */

static const struct mesh *src_mesh(const struct reducing *r, const struct group *g)
{
	const struct table_tensor *x = &r->p->src->tensor[g->s.src_tensor];

	return &r->p->src->mesh[r->p->src->layout[x->layout].mesh];
}

/* The coordinate of a piece; one that has none is a line. 1, 0, -ENOMEM. */
static int coord_find(struct reducing *r, const struct group *g, struct rank_map *map,
		      uint32_t layout, const struct table_piece *p, uint32_t *ret_coord)
{
	int e = rank_map_coord(map, map->t->layout[layout].mesh, p->rank, ret_coord);

	if (!e)
		ckpt_errlist_add(
			r->list,
			"%s: the piece in %s is of rank %u, which is not in the mesh of the "
			"tensor: so it is not known whose operand it is",
			g->label, map->t->place[p->place].name, p->rank);
	return e;
}

/* The operand of the group that a source piece holds: 1; 0 none of them; -1 refused; -ENOMEM. */
static int piece_operand(struct reducing *r, const struct group *g, const struct table_piece *p,
			 uint32_t fixed, uint32_t *ret_operand)
{
	const struct mesh *m;
	uint32_t coord[CKPT_DIMS_MAX];
	int e;

	*ret_operand = 0;
	if (!g->reduce && !g->fixed)
		return 1;
	m = src_mesh(r, g);
	e = coord_find(r, g, &r->src, r->p->src->tensor[g->s.src_tensor].layout, p, coord);
	if (e <= 0)
		return e ? e : -1;
	for (uint32_t d = 0; d < m->ndim; d++)
		if (fixed >> d & 1 && coord[d] != g->at[d])
			return 0;
	*ret_operand = operand_number(m, g->reduce, coord);
	return 1;
}

/* A declaration may claim any number of operands: what they cost is bounded by the ranks that have
 * pieces. Each holds one operand. */
static bool has_operands(struct reducing *r, const struct group *g)
{
	const struct table *src = r->p->src;
	uint32_t ranks = 0;

	for (uint32_t i = src->first[g->s.src_tensor]; i < src->first[g->s.src_tensor + 1]; i++)
		ranks += i == src->first[g->s.src_tensor] ||
			 src->piece[i].rank != src->piece[i - 1].rank;
	if (g->s.n <= ranks + OPERANDS_NAMED)
		return true;
	ckpt_errlist_add(r->list,
			 "%s: of the %u operands of its pending reduction at least %u are in no "
			 "piece of the checkpoint",
			 g->label, g->s.n, g->s.n - ranks);
	return false;
}

/* An open table for pieces of the source: its places. */
static void view_places(struct table *v, const struct table *src)
{
	v->place = src->place;
	v->nplace = src->nplace;
}

/* Put the source pieces of operand k (UINT32_MAX: each into the table of its own) into view[].
 * -1 refused. */
static int view_fill(struct reducing *r, const struct group *g, uint32_t fixed, uint32_t only,
		     struct table *view, uint32_t view_tensor)
{
	const struct table *src = r->p->src;
	int e = 0;

	for (uint32_t i = src->first[g->s.src_tensor]; i < src->first[g->s.src_tensor + 1]; i++) {
		struct table_piece p = src->piece[i];
		uint32_t k;

		e = piece_operand(r, g, &p, fixed, &k);
		if (e < 0)
			return e;
		if (!e || (only != UINT32_MAX && only != k))
			continue;
		p.tensor = view_tensor;
		p.fp = i;
		p.fp_known = true;
		e = table_put_piece(&view[only == UINT32_MAX ? k : 0], &p, NULL);
		if (e < 0)
			return -ENOMEM;
	}
	return 0;
}

/* --- groups of destination pieces --- */

static int group_piece_add(struct group *g, uint32_t piece)
{
	uint32_t n = g->s.npiece, *p = (uint32_t *)g->s.piece;

	if (!(n & (n - 1))) { /* 0 and the powers of two: it is full */
		p = reallocarray(p, n ? 2 * (size_t)n : 1, sizeof *p);
		if (!p)
			return -ENOMEM;
		g->s.piece = p;
	}
	p[g->s.npiece++] = piece;
	return 0;
}

static bool same_fixed(const struct group *g, const uint32_t *at)
{
	for (uint32_t d = 0; d < CKPT_DIMS_MAX; d++)
		if (g->fixed >> d & 1 && g->at[d] != at[d])
			return false;
	return true;
}

/* What the piece's own coordinate says of the fixed dimensions. 1, 0 refused, -ENOMEM. */
static int piece_fixed(struct reducing *r, const struct group *g, const struct table_piece *p,
		       uint32_t *ret_at)
{
	const struct table *dst = r->p->dst;
	const struct mesh *from = src_mesh(r, g), *to;
	uint32_t coord[CKPT_DIMS_MAX], layout = dst->tensor[g->s.dst_tensor].layout;
	int e = coord_find(r, g, &r->dst, layout, p, coord);

	if (e <= 0)
		return e;
	to = &dst->mesh[dst->layout[layout].mesh];
	for (uint32_t d = 0; d < from->ndim; d++)
		if (g->fixed >> d & 1)
			ret_at[d] = coord[dim_of_name(to, from->name[d])];
	return 1;
}

static struct group *group_new(struct reducing *r, const struct group *like)
{
	if (!ARRAY_GROW(r->group, r->n, r->cap))
		return NULL;
	r->group[r->n] = *like;
	return &r->group[r->n++];
}

/* The destination's pieces to groups from number `first` on. 1, 0 refused, -ENOMEM. */
static int groups_make(struct reducing *r, const struct group *like, uint32_t first)
{
	const struct table *dst = r->p->dst;

	for (uint32_t i = dst->first[like->s.dst_tensor]; i < dst->first[like->s.dst_tensor + 1];
	     i++) {
		uint32_t at[CKPT_DIMS_MAX] = { 0 }, k = r->n;
		struct group *g;
		int e = like->fixed ? piece_fixed(r, like, &dst->piece[i], at) : 1;

		if (e <= 0)
			return e;
		while (k-- > first)
			if (same_fixed(&r->group[k], at))
				break;
		g = k + 1 > first ? &r->group[k] : group_new(r, like);
		if (!g)
			return -ENOMEM;
		memcpy(g->at, at, sizeof at);
		if (group_piece_add(g, i) < 0)
			return -ENOMEM;
	}
	return 1;
}

/* --- elements that are not there --- */

static void missing_tell(struct reducing *r, const struct group *g, uint32_t k,
			 const struct table_piece *p, uint64_t missing)
{
	const struct mesh *m;
	char at[128] = "";

	if (g->reduce || g->fixed) {
		uint32_t coord[CKPT_DIMS_MAX], left = g->s.n;

		m = src_mesh(r, g);
		memcpy(coord, g->at, sizeof coord);
		for (uint32_t d = 0; d < m->ndim; d++)
			if (g->reduce >> d & 1) {
				left /= m->dim[d];
				coord[d] = k / left % m->dim[d];
			}
		operand_print(m, g->reduce | g->fixed,
			      operand_number(m, g->reduce | g->fixed, coord), at, sizeof at);
	}
	ckpt_errlist_add(
		r->list,
		"%s: %llu of the %llu elements of %s are in no piece of the checkpoint%s%s",
		g->label, (unsigned long long)missing, (unsigned long long)p->set.numel,
		r->p->dst->place[p->place].name, *at ? " that holds the operand of " : "", at);
}

/* Operations for all destination pieces of a group from tensor `id` of a view; with `strict` what
 * is missing is a line. */
static int view_match(struct reducing *r, const struct group *g, const struct table *view,
		      uint32_t id, uint32_t k, bool strict, struct op_list *ops)
{
	uint64_t before = ops->n;
	int e = match_begin(&r->match, view, id);

	for (uint32_t i = 0; i < g->s.npiece && e == 0; i++) {
		uint64_t missing = 0, first[CKPT_DIMS_MAX];
		uint32_t piece = g->s.piece[i];

		if (strict)
			e = match_piece(&r->match, r->p->dst, piece, ops, &r->p->arena, &missing,
					first);
		else
			e = match_some(&r->match, r->p->dst, piece, ops, &r->p->arena);
		if (missing)
			missing_tell(r, g, k, &r->p->dst->piece[piece], missing);
	}
	for (uint64_t i = before; i < ops->n; i++)
		ops->op[i].src_piece = (uint32_t)view->piece[ops->op[i].src_piece].fp;
	return e;
}

/* One operand's pieces in a table of its own, matched. */
static int operand_match(struct reducing *r, const struct group *g, uint32_t fixed, uint32_t k,
			 struct op_list *ops)
{
	struct table_tensor x = r->p->src->tensor[g->s.src_tensor];
	struct table view = { 0 };
	uint32_t id;
	int e;

	x.layout = TABLE_NONE;
	x.made = 0;
	view_places(&view, r->p->src);
	e = table_add_tensor(&view, &x, &id, NULL) < 0 ? -ENOMEM : 0;
	if (e == 0)
		e = view_fill(r, g, fixed, k, &view, id);
	if (e == 0)
		e = table_seal(&view, NULL) < 0 ? -ENOMEM : 0;
	if (e == 0)
		e = view_match(r, g, &view, id, k, true, ops);
	table_free(&view);
	return e;
}

int reducing_tensor(struct reducing *r, uint32_t src_tensor, uint32_t dst_tensor,
		    struct op_list *ops, struct ckpt_errlist *list)
{
	const struct table *src = r->p->src, *dst = r->p->dst;
	const struct table_tensor *x = &src->tensor[src_tensor], *y = &dst->tensor[dst_tensor];
	uint32_t first = r->n;
	struct group g;
	int e;

	if (x->dtype == y->dtype && !operand_dims(src, x) && !operand_dims(dst, y))
		return 0;
	r->list = list;
	if (!group_init(r, src_tensor, dst_tensor, &g) || !has_operands(r, &g))
		return 1;
	e = groups_make(r, &g, first);
	if (e > 0 && g.s.n == 1 && !g.zeros && x->dtype == y->dtype) {
		/* Every destination piece takes one operand as it is. */
		for (e = 0; r->n > first && e == 0; r->n--) {
			e = operand_match(r, &r->group[r->n - 1], g.fixed, 0, ops);
			free((void *)r->group[r->n - 1].s.piece);
		}
	}
	/* -1: it is a line in the list. */
	return e == 0 || e == -1 ? 1 : e;
}

/* --- what is wanted of all sums --- */

struct wanted {
	uint64_t key;
	uint32_t piece;
};

static uint64_t set_key(const struct indexset *s)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t d = 0; d < s->ndim; d++) {
		h = (h ^ indices_lo(&s->dim[d])) * UINT64_C(0x100000001b3);
		h = (h ^ indices_hi(&s->dim[d])) * UINT64_C(0x100000001b3);
		h = (h ^ s->dim[d].total) * UINT64_C(0x100000001b3);
	}
	return h;
}

static int wanted_compare(const void *va, const void *vb)
{
	const struct wanted *a = va, *b = vb;
	int r = COMPARE(a->key, b->key);

	return r ? r : COMPARE(a->piece, b->piece);
}

/* The distinct sets of a group's pieces into `want`. */
static int want_pieces(struct reducing *r, const struct group *g, uint32_t id, struct table *want,
		       uint64_t *end)
{
	cleanup_free struct wanted *w = calloc((size_t)g->s.npiece + 1, sizeof *w);
	const struct table *dst = r->p->dst;
	uint32_t elem = want->tensor[id].elem_bytes;

	if (!w)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->s.npiece; i++)
		w[i] = (struct wanted){ set_key(&dst->piece[g->s.piece[i]].set), g->s.piece[i] };
	if (g->s.npiece > 1)
		qsort(w, g->s.npiece, sizeof *w, wanted_compare);
	for (uint32_t i = 0; i < g->s.npiece; i++) {
		struct table_piece p = { .tensor = id,
					 .set = dst->piece[w[i].piece].set,
					 .off = align_up(*end, WANT_ALIGN) };

		if (i && w[i].key == w[i - 1].key &&
		    indexset_equal(&dst->piece[w[i - 1].piece].set, &p.set))
			continue;
		*end = p.off + p.set.numel * elem;
		if (*end > INT64_MAX / 2 || table_put_piece(want, &p, NULL) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int want_make(struct reducing *r, struct table *want, struct ckpt_err *err)
{
	struct table_place place = { .name = "operands", .rank = TABLE_NONE, .bytes = INT64_MAX };
	uint64_t end = 0;
	int e = table_add_place(want, &place, NULL, err);

	for (uint32_t i = 0; i < r->n && !e; i++) {
		struct table_tensor x = r->p->src->tensor[r->group[i].s.src_tensor];
		char name[CKPT_NAME_MAX + 1];
		uint32_t id;

		x.layout = TABLE_NONE;
		x.made = 0;
		/* Several groups of one tensor: a table has no key twice. Of n + 1 names one is
		 * free. */
		for (uint32_t k = i; table_find(want, x.component, x.name, x.rank) != TABLE_NONE;
		     k++) {
			snprintf(name, sizeof name, "%.*s#%u", CKPT_NAME_MAX - 12,
				 r->p->src->tensor[r->group[i].s.src_tensor].name, k);
			x.name = name;
		}
		e = table_add_tensor(want, &x, &id, err);
		if (!e)
			e = want_pieces(r, &r->group[i], id, want, &end);
	}
	if (e)
		return e;
	want->place[0].bytes = end;
	return table_seal(want, err);
}

/* --- the operands of all sums --- */

static int operands_fill(struct reducing *r, struct plan_reduced *x)
{
	int e = 0;

	for (uint32_t k = 0; k < x->most; k++) {
		x->operand[k] = table_borrow(&x->want);
		view_places(&x->operand[k], r->p->src);
	}
	for (uint32_t i = 0; i < r->n && !e; i++)
		e = view_fill(r, &r->group[i], r->group[i].fixed, UINT32_MAX, x->operand, i);
	for (uint32_t k = 0; k < x->most && !e; k++)
		e = table_seal(&x->operand[k], NULL) < 0 ? -ENOMEM : 0;
	return e;
}

/* Is all there, and what is read for it? */
static int operands_check(struct reducing *r, struct plan_reduced *x)
{
	struct op_list all = { 0 };
	int e = 0;

	for (uint32_t i = 0; i < r->n && !e; i++) {
		const struct group *g = &r->group[i];

		for (uint32_t k = 0; k < g->s.n && !e; k++) {
			e = view_match(r, g, &x->operand[k], i, k, !g->zeros, &r->ops);
			/* Of zeros, the shards of all coordinates together are the whole. */
			if (!e && g->zeros)
				e = operand_match(r, g, g->fixed & ~g->zeros, k, &all);
		}
	}
	free(all.op);
	return e;
}

/* What the mover will count as moved: operands of want, each set once. */
static int operands_bytes(struct reducing *r, struct plan_reduced *x)
{
	struct op_list ops = { 0 };
	struct arena a = { 0 };
	int e = 0;

	for (uint32_t i = 0; i < r->n && !e; i++) {
		const struct group *g = &r->group[i];

		for (uint32_t p = x->want.first[i]; p < x->want.first[i + 1] && !g->zeros; p++)
			x->bytes += x->want.piece[p].len * g->s.n;
		for (uint32_t k = 0; k < g->s.n && g->zeros && !e; k++) {
			e = match_begin(&r->match, &x->operand[k], i);
			for (uint32_t p = x->want.first[i]; p < x->want.first[i + 1] && !e; p++)
				e = match_some(&r->match, &x->want, p, &ops, &a);
		}
	}
	for (uint64_t i = 0; i < ops.n; i++)
		x->bytes += ops.op[i].bytes;
	free(ops.op);
	arena_free(&a);
	return e;
}

static int sums_keep(struct reducing *r, struct plan_reduced *x)
{
	struct arena *a = &r->p->arena;
	struct plan_sum *s = arena_array(a, r->n, sizeof *s);

	for (uint32_t i = 0; s && i < r->n; i++) {
		s[i] = r->group[i].s;
		x->most = MAX(x->most, s[i].n);
		s[i].piece = arena_dup(a, s[i].piece, s[i].npiece * sizeof *s[i].piece);
		if (!s[i].piece)
			return -ENOMEM;
	}
	x->sum = s;
	x->nsum = r->n;
	x->operand = arena_array(a, x->most, sizeof *x->operand);
	return s && x->operand ? 0 : -ENOMEM;
}

int reducing_end(struct reducing *r, struct ckpt_errlist *list, struct ckpt_err *err)
{
	struct plan_reduced *x;
	uint64_t bytes = 0;
	int e;

	if (!r->n || list->n)
		return 0;
	r->list = list;
	x = r->p->reduced = arena_alloc(&r->p->arena, sizeof *x);
	e = x ? sums_keep(r, x) : -ENOMEM;
	if (!e)
		e = want_make(r, &x->want, NULL);
	if (!e)
		e = operands_fill(r, x);
	if (!e)
		e = operands_check(r, x);
	if (!e)
		e = operands_bytes(r, x);
	if (!e)
		e = op_list_end(&r->ops, &r->p->arena, &x->op, &x->nop, &bytes);
	if (e == -1)
		return 0;
	if (!e)
		r->p->bytes += x->bytes;
	return e ? ckpt_error(err, e == -E2BIG ? e : -ENOMEM,
			      e == -E2BIG ? "the operands of a pending reduction are too "
					    "interleaved to plan"
					  : "out of memory for %u pending reductions",
			      r->n)
		 : 0;
}

/* --- a window --- */

const struct plan_sum *plan_sum_of(const struct plan *p, const struct window_cut *cut)
{
	return &p->reduced->sum[p->reduced->want.piece[cut->piece].tensor];
}

static int window_error(struct ckpt_err *err, int e)
{
	return ckpt_error(err, e,
			  e == -EPROTO ? "an operand is missing that was there before"
				       : "out of memory for operands, or they are too interleaved");
}

static int plan_close(struct plan *p, struct op_list *ops, struct match *m, int e,
		      struct ckpt_err *err)
{
	if (e == 0)
		e = op_list_end(ops, &p->arena, &p->op, &p->nop, &p->bytes);
	free(ops->op);
	match_free(m);
	if (e == 0)
		return 0;
	plan_free(p);
	return window_error(err, e);
}

int plan_operand(const struct plan *p, const struct window *w, uint32_t k, struct plan *ret,
		 struct ckpt_err *err)
{
	const struct plan_reduced *x = p->reduced;
	const struct table *to = &w->table;
	struct op_list ops = { 0 };
	struct match m = { 0 };
	int e = 0;

	*ret = (struct plan){ .src = &x->operand[k], .dst = to };
	for (uint32_t t = 0; t < to->ntensor && !e; t++) {
		uint32_t i = table_find(&x->want, to->tensor[t].component, to->tensor[t].name,
					to->tensor[t].rank);
		uint64_t missing, first[CKPT_DIMS_MAX];

		if (k >= x->sum[i].n)
			continue;
		e = match_begin(&m, ret->src, i);
		for (uint32_t j = to->first[t]; j < to->first[t + 1] && !e; j++) {
			e = x->sum[i].zeros
				    ? match_some(&m, to, j, &ops, &ret->arena)
				    : match_piece(&m, to, j, &ops, &ret->arena, &missing, first);
			if (!e && !x->sum[i].zeros && missing)
				e = -EPROTO;
		}
	}
	return plan_close(ret, &ops, &m, e, err);
}

/* The window's cuts with the destination's types, where the mover has put them. sum[]: which sum a
 * tensor of it is. */
static int result_table(const struct plan *p, const struct window *w, const uint64_t *off,
			uint64_t bytes, struct table *ret, uint32_t *sum)
{
	struct table_place place = { .name = "what was reduced", .rank = TABLE_NONE };
	int e;

	place.bytes = bytes;
	e = table_add_place(ret, &place, NULL, NULL);
	for (uint32_t i = 0; i < w->ncut && !e; i++) {
		uint32_t s = p->reduced->want.piece[w->cut[i].piece].tensor, id;
		struct table_tensor x = p->reduced->want.tensor[s];
		struct table_piece piece = { .set = w->cut[i].set, .off = off[i] };

		x.dtype = p->reduced->sum[s].to;
		x.elem_bytes = dtype_bytes(x.dtype);
		id = table_find(ret, x.component, x.name, x.rank);
		if (id == TABLE_NONE) {
			e = table_add_tensor(ret, &x, &id, NULL);
			sum[id == TABLE_NONE ? 0 : id] = s;
		}
		piece.tensor = id;
		if (!e)
			e = table_put_piece(ret, &piece, NULL);
	}
	return e ? e : table_seal(ret, NULL);
}

int plan_result(const struct plan *p, const struct window *w, const uint64_t *off, uint64_t bytes,
		struct table *ret_table, struct plan *ret, struct ckpt_err *err)
{
	cleanup_free uint32_t *sum = calloc((size_t)w->ncut + 1, sizeof *sum);
	struct op_list ops = { 0 };
	struct match m = { 0 };
	int e;

	*ret_table = (struct table){ 0 };
	*ret = (struct plan){ .src = ret_table, .dst = p->dst };
	e = sum ? result_table(p, w, off, bytes, ret_table, sum) : -ENOMEM;
	for (uint32_t t = 0; !e && t < ret_table->ntensor; t++) {
		const struct plan_sum *s = &p->reduced->sum[sum[t]];

		e = match_begin(&m, ret_table, t);
		for (uint32_t i = 0; i < s->npiece && !e; i++)
			e = match_some(&m, p->dst, s->piece[i], &ops, &ret->arena);
	}
	e = plan_close(ret, &ops, &m, e, err);
	if (e < 0)
		table_free(ret_table);
	return e;
}
