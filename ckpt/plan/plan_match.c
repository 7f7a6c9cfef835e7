/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_match.c - the intersection of one destination piece with the source pieces of its tensor.
 * Invariant: every element of the destination piece is in exactly one operation or is counted as
 * missing. Where source pieces are disjoint their shares only need to be counted; else, and to name
 * what is missing, the destination piece is whittled down, source piece by source piece.
 */
#include "ckpt/plan/plan_match.h"
#include "ckpt/base/util.h"
#include "ckpt/table/declared.h"

/* --- the source pieces of a tensor --- */

static const struct indexset *piece_set(const struct match *m, uint32_t i)
{
	return &m->src->piece[m->first + i].set;
}

/* A pending reduction's pieces overlap, operand by operand. */
static bool all_as_declared(const struct match *m, uint32_t src_tensor)
{
	struct rank_map ranks = { 0 };
	bool known = !operand_dims(m->src, &m->src->tensor[src_tensor]) &&
		     pieces_as_declared(m->src, src_tensor, &m->src->piece[m->first], m->n, &ranks);

	rank_map_close(&ranks);
	return known;
}

struct disjoint {
	const struct match *m;
	uint32_t src_tensor;
	uint64_t pairs;
	bool overlap;
};

/* Interleaved pieces are very many pairs: the declaration may say it at once. */
static bool pair_check(void *arg, uint32_t i, uint32_t k)
{
	struct disjoint *d = arg;

	if (++d->pairs == DECLARED_PAIRS * (uint64_t)d->m->n &&
	    all_as_declared(d->m, d->src_tensor))
		return false;
	d->overlap = indexset_meet(piece_set(d->m, i), piece_set(d->m, k));
	return !d->overlap;
}

/* By their sum and, where bounds do not tell pieces apart, every pair of them. */
static bool all_disjoint(const struct match *m, uint32_t src_tensor)
{
	struct disjoint d = { .m = m, .src_tensor = src_tensor };
	uint64_t sum = 0;

	for (uint32_t i = 0; i < m->n; i++)
		if (ckpt_add(sum, piece_set(m, i)->numel, &sum) < 0 ||
		    sum > m->src->tensor[src_tensor].numel)
			return false;
	piece_tree_pairs(&m->tree, pair_check, &d);
	return !d.overlap;
}

int match_begin(struct match *m, const struct table *src, uint32_t src_tensor)
{
	m->src = src;
	m->first = src->first[src_tensor];
	m->n = src->first[src_tensor + 1] - m->first;
	m->tree.n = m->tree.ndim = 0; /* of a tensor without pieces, nothing of the one before */
	if (m->n &&
	    piece_tree_make(&m->tree, src->piece + m->first, m->n, piece_set(m, 0)->ndim) < 0)
		return -ENOMEM;
	m->disjoint = all_disjoint(m, src_tensor);
	return 0;
}

void match_free(struct match *m)
{
	piece_tree_free(&m->tree);
	arena_free(&m->arena);
}

/* --- operations --- */

static int op_append(struct op_list *l, const struct plan_op *op)
{
	if (!ARRAY_GROW(l->op, l->n, l->cap))
		return -ENOMEM;
	l->op[l->n++] = *op;
	return 0;
}

/* Append what two pieces share, or no more of it than `only`. *ret_numel: how much that is. */
static int op_make(const struct match *m, uint32_t src_piece, const struct table *dst,
		   uint32_t dst_piece, const struct indexset *only, struct op_list *ops,
		   uint64_t *ret_numel)
{
	const struct table_piece *s = &m->src->piece[src_piece], *d = &dst->piece[dst_piece];
	const struct piece_bytes bytes = table_piece_bytes(m->src, s);
	uint64_t step = 1, lo = 0, hi = 0, numel = 1;
	struct plan_op op = { .src_piece = src_piece,
			      .dst_piece = dst_piece,
			      .src_place = s->place,
			      .dst_place = d->place,
			      .only = only };
	const struct table_tensor *of = &m->src->tensor[s->tensor];

	*ret_numel = 0;
	for (uint32_t i = s->set.ndim; i-- > 0;) {
		const struct indices *x = &s->set.dim[i], *y = &d->set.dim[i];
		struct indices_common t =
			only ? indices_common(&only->dim[i], &only->dim[i]) : indices_common(x, y);
		uint64_t stride = s->stride ? (uint64_t)s->stride[i] : step;

		if (!t.n)
			return 0;
		if (t.n == x->total && t.n == y->total)
			op.whole |= 1u << i;
		lo += indices_below(x, t.first) * stride;
		hi += indices_below(x, t.last) * stride;
		numel *= t.n;
		step *= x->total;
	}
	op.bytes = numel * of->elem_bytes;
	op.src_lo = bytes.off + lo * bytes.elem;
	op.src_hi = bytes.off + (hi + 1) * bytes.elem;
	op.round = s->flags & PIECE_DERIVED ? of->dtype : 0;
	*ret_numel = numel;
	return op_append(ops, &op);
}

/* --- whittling down --- */

/* What is still wanted of the destination piece: disjoint products. */
struct rests {
	struct indexset *set;
	uint32_t n;
};

/* Append r without i, a part of it, as at most ndim products: those that differ from i first in
 * dimension d. */
static int rests_minus(struct match *m, struct rests *out, const struct indexset *r,
		       const struct indexset *i)
{
	for (uint32_t d = 0; d < r->ndim; d++) {
		struct indices rest, *dim;
		uint64_t numel = 1;
		int e = indices_minus(&r->dim[d], &i->dim[d], &m->arena, &rest);

		if (e < 0)
			return e;
		if (!rest.total)
			continue;
		if (out->n == PLAN_RESTS_MAX)
			return -E2BIG;
		dim = arena_array(&m->arena, r->ndim, sizeof *dim);
		if (!dim)
			return -ENOMEM;
		for (uint32_t k = 0; k < r->ndim; k++) {
			dim[k] = k < d ? i->dim[k] : k == d ? rest : r->dim[k];
			numel *= dim[k].total;
		}
		out->set[out->n++] =
			(struct indexset){ .ndim = r->ndim, .numel = numel, .dim = dim };
	}
	return 0;
}

/* Take from the rests what a source piece has; with ops, as operations. */
static int rests_take(struct match *m, struct rests *from, struct rests *to, uint32_t src_piece,
		      const struct table *dst, uint32_t dst_piece, struct op_list *ops,
		      struct arena *keep)
{
	const struct indexset *s = &m->src->piece[src_piece].set;

	to->n = 0;
	for (uint32_t i = 0; i < from->n; i++) {
		struct indexset *only, part;
		uint64_t numel;
		int e = indexset_intersect(&from->set[i], s, &m->arena, &part);

		if (e < 0)
			return e;
		if (!part.numel) {
			if (to->n == PLAN_RESTS_MAX)
				return -E2BIG;
			to->set[to->n++] = from->set[i];
			continue;
		}
		e = rests_minus(m, to, &from->set[i], &part);
		if (e < 0)
			return e;
		if (!ops)
			continue;
		only = arena_alloc(keep, sizeof *only);
		if (!only || indexset_copy(&part, keep, only) < 0)
			return -ENOMEM;
		e = op_make(m, src_piece, dst, dst_piece, only, ops, &numel);
		if (e < 0)
			return e;
	}
	return 0;
}

static void rests_tell(const struct rests *r, uint64_t *ret_missing, uint64_t *first)
{
	const struct indexset *low = &r->set[0];

	*ret_missing = 0;
	for (uint32_t i = 0; i < r->n; i++) {
		*ret_missing += r->set[i].numel;
		if (indexset_order(&r->set[i], low) < 0)
			low = &r->set[i];
	}
	for (uint32_t d = 0; r->n && d < low->ndim; d++)
		first[d] = indices_lo(&low->dim[d]);
}

static int piece_whittle(struct match *m, const struct table *dst, uint32_t dst_piece,
			 struct op_list *ops, struct arena *keep, uint64_t *ret_missing,
			 uint64_t *first)
{
	struct rests r[2] = { 0 };
	int e = 0;

	arena_free(&m->arena);
	for (int i = 0; i < 2; i++) {
		r[i].set = arena_array(&m->arena, PLAN_RESTS_MAX, sizeof *r[i].set);
		if (!r[i].set)
			return -ENOMEM;
	}
	r[0].set[r[0].n++] = dst->piece[dst_piece].set;
	for (uint32_t i = 0; i < m->n && r[0].n && e == 0; i++) {
		if (!indexset_meet(piece_set(m, i), &dst->piece[dst_piece].set))
			continue;
		const struct rests from = r[0];

		e = rests_take(m, &r[0], &r[1], m->first + i, dst, dst_piece, ops, keep);
		r[0] = r[1];
		r[1] = from;
	}
	if (e == 0)
		rests_tell(&r[0], ret_missing, first);
	return e;
}

/* --- one destination piece --- */

/* Of disjoint pieces. *ret_have: elements that they have. */
static int take_all(struct match *m, const struct table *dst, uint32_t dst_piece,
		    struct op_list *ops, uint64_t *ret_have)
{
	struct piece_tree_cursor at;
	uint32_t k;

	*ret_have = 0;
	piece_tree_begin(&m->tree, &dst->piece[dst_piece].set, &at);
	while (piece_tree_next(&at, &k)) {
		uint64_t numel;
		int e = op_make(m, m->first + k, dst, dst_piece, NULL, ops, &numel);

		if (e < 0)
			return e;
		*ret_have += numel;
	}
	return 0;
}

int match_some(struct match *m, const struct table *dst, uint32_t dst_piece, struct op_list *ops,
	       struct arena *keep)
{
	uint64_t n, first[CKPT_DIMS_MAX];

	if (!m->disjoint)
		return piece_whittle(m, dst, dst_piece, ops, keep, &n, first);
	return take_all(m, dst, dst_piece, ops, &n);
}

int match_piece(struct match *m, const struct table *dst, uint32_t dst_piece, struct op_list *ops,
		struct arena *keep, uint64_t *ret_missing, uint64_t *first_missing)
{
	uint64_t have;
	int e;

	*ret_missing = 0;
	if (!m->disjoint)
		return piece_whittle(m, dst, dst_piece, ops, keep, ret_missing, first_missing);
	e = take_all(m, dst, dst_piece, ops, &have);
	if (e < 0 || have == dst->piece[dst_piece].set.numel)
		return e;
	return piece_whittle(m, dst, dst_piece, NULL, keep, ret_missing, first_missing);
}
