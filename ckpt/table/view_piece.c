/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_piece.c - see view_piece.h. Called by view.c. Invariant: an element of what is made is the
 * element of the piece that its new indices name, at the byte where the piece has it.
 */
#include "ckpt/table/view_piece.h"
#include "ckpt/base/util.h"

/* A piece while its shape is changed. */
struct shape {
	uint32_t ndim;
	struct indices dim[CKPT_DIMS_MAX];
	int64_t stride[CKPT_DIMS_MAX];
};

static void shape_of(const struct table_piece *p, struct shape *ret)
{
	int64_t step = 1;

	ret->ndim = p->set.ndim;
	for (uint32_t d = p->set.ndim; d-- > 0;) {
		ret->dim[d] = p->set.dim[d];
		ret->stride[d] = p->stride ? p->stride[d] : step;
		step *= (int64_t)p->set.dim[d].total;
	}
}

/* Is it row-major? The stride of a dimension of size 1 does not matter: it becomes the one that makes
 * rows as long as possible. */
static bool make_plain(struct shape *s)
{
	int64_t step = 1;
	bool plain = true;

	for (uint32_t d = s->ndim; d-- > 0;) {
		int64_t total = (int64_t)s->dim[d].total;

		if (total == 1)
			s->stride[d] = step;
		plain = plain && s->stride[d] == step;
		/* Nothing that lies inside a place is behind one that is too large. */
		if (__builtin_mul_overflow(s->stride[d], total, &step))
			plain = false, step = 0;
	}
	return plain;
}

/* The elements from number `from` of the piece's bytes on. */
static int piece_set(const struct table_piece *p, uint64_t from, uint32_t elem, struct shape *s,
		     struct arena *a, struct table_piece *ret)
{
	bool plain = make_plain(s);

	*ret = *p;
	ret->off += from * elem;
	if (p->flags & PIECE_DERIVED)
		ret->from += from * sizeof(float);
	ret->set = (struct indexset){ .ndim = s->ndim,
				      .numel = 1,
				      .dim = arena_dup(a, s->dim, s->ndim * sizeof *s->dim) };
	ret->stride = plain ? NULL : arena_dup(a, s->stride, s->ndim * sizeof *s->stride);
	if (!ret->set.dim || (!plain && !ret->stride))
		return -ENOMEM;
	for (uint32_t d = 0; d < s->ndim; d++)
		ret->set.numel *= s->dim[d].total;
	return 0;
}

int view_piece_cut(const struct table_piece *p, uint32_t elem, uint32_t d, uint64_t lo, uint64_t hi,
		   bool drop, struct arena *a, struct table_piece *ret)
{
	const struct indices *x = &p->set.dim[d];
	uint64_t before = indices_below(x, lo), end = indices_below(x, hi), from;
	struct shape s;
	int rc;

	if (before == end)
		return 0;
	shape_of(p, &s);
	rc = indices_slice(x, before, end, a, &s.dim[d]);
	rc = rc ? rc : indices_move(&s.dim[d], -lo, a, &s.dim[d]);
	if (rc)
		return rc;
	from = before * (uint64_t)s.stride[d];
	if (drop) {
		s.ndim--;
		memmove(&s.dim[d], &s.dim[d + 1], (s.ndim - d) * sizeof *s.dim);
		memmove(&s.stride[d], &s.stride[d + 1], (s.ndim - d) * sizeof *s.stride);
	}
	rc = piece_set(p, from, elem, &s, a, ret);
	return rc ? rc : 1;
}

int view_piece_join(const struct table_piece *p, uint32_t d, uint64_t at, bool insert,
		    struct arena *a, struct table_piece *ret)
{
	struct shape s;
	int rc;

	shape_of(p, &s);
	if (insert) {
		memmove(&s.dim[d + 1], &s.dim[d], (s.ndim - d) * sizeof *s.dim);
		memmove(&s.stride[d + 1], &s.stride[d], (s.ndim - d) * sizeof *s.stride);
		s.ndim++;
		rc = indices_range(at, at + 1, a, &s.dim[d]);
	} else {
		rc = indices_move(&s.dim[d], at, a, &s.dim[d]);
	}
	return rc ? rc : piece_set(p, 0, 0, &s, a, ret);
}

int view_piece_turn(const struct table_piece *p, const uint64_t *dims, struct arena *a,
		    struct table_piece *ret)
{
	struct shape old, s;

	shape_of(p, &old);
	s.ndim = old.ndim;
	for (uint32_t d = 0; d < s.ndim; d++) {
		s.dim[d] = old.dim[dims[d]];
		s.stride[d] = old.stride[dims[d]];
	}
	return piece_set(p, 0, 0, &s, a, ret);
}

/* --- another shape --- */

/* The next dimension that is not of size 1. */
static uint32_t skip_ones(uint32_t d, uint32_t n, const uint64_t *shape)
{
	while (d < n && shape[d] == 1)
		d++;
	return d;
}

struct view_groups view_groups(uint32_t nwas, const uint64_t *was, uint32_t nis, const uint64_t *is)
{
	struct view_groups ret = { 0 };
	uint32_t i = skip_ones(0, nwas, was), j = skip_ones(0, nis, is);

	while (i < nwas && j < nis) {
		struct view_group *g = &ret.group[ret.n++];
		uint64_t have = was[i], want = is[j];

		g->was[g->nwas++] = (uint8_t)i;
		g->is[g->nis++] = (uint8_t)j;
		i = skip_ones(i + 1, nwas, was);
		j = skip_ones(j + 1, nis, is);
		while (have != want) {
			if (have < want) {
				have *= was[i];
				g->was[g->nwas++] = (uint8_t)i;
				i = skip_ones(i + 1, nwas, was);
			} else {
				want *= is[j];
				g->is[g->nis++] = (uint8_t)j;
				j = skip_ones(j + 1, nis, is);
			}
		}
	}
	return ret;
}

/* Indices of a dimension, and the elements of the place between consecutive ones. */
struct dim {
	struct indices list;
	int64_t stride;
	uint64_t extent;
};

/* Elements from `from` on, in the new dimensions of a group. */
struct part {
	uint64_t from;
	struct dim dim[CKPT_DIMS_MAX];
};

struct parts {
	uint32_t n, cap, nis;
	uint64_t extent[CKPT_DIMS_MAX]; /* [nis] of the dimensions as they will be */
	struct part *part;
	struct part now;
	struct arena *a;
};

static int part_add(struct parts *s)
{
	if (s->n == s->cap) {
		uint32_t cap = s->cap ? 4 * s->cap : 1;
		struct part *p = reallocarray(s->part, cap, sizeof *p);

		if (!p)
			return -ENOMEM;
		s->part = p;
		s->cap = cap;
	}
	if (s->n == VIEW_PIECES_MAX)
		return -E2BIG;
	s->part[s->n++] = s->now;
	return 0;
}

/* Split one dimension into the new dimensions from d on. */
static int split_dim(struct parts *s, const struct dim *x, uint64_t from, uint32_t d)
{
	const struct indices_rows *rows;
	uint64_t row = 1;
	uint32_t n;
	int rc;

	if (d + 1 == s->nis) {
		s->now.dim[d] = *x;
		s->now.from = from;
		return part_add(s);
	}
	for (uint32_t i = d + 1; i < s->nis; i++)
		row *= s->extent[i];
	rc = indices_fold(&x->list, row, VIEW_PIECES_MAX, s->a, &rows, &n);
	for (uint32_t i = 0; i < n && !rc; i++) {
		const struct dim inner = { .list = rows[i].inner, .stride = x->stride };

		/* A single index is never stepped over. */
		s->now.dim[d] = (struct dim){ .list = rows[i].outer,
					      .stride = rows[i].outer.total > 1
								? (int64_t)rows[i].step * x->stride
								: 0 };
		rc = split_dim(s, &inner, from + rows[i].first * (uint64_t)x->stride, d + 1);
	}
	return rc;
}

/* The stride of the two as one dimension; -1: there is none. */
static int64_t stride_merged(const struct dim *outer, const struct dim *inner)
{
	int64_t row;

	if (outer->list.total == 1)
		return inner->stride;
	if (inner->list.total == 1)
		return outer->stride;
	if (__builtin_mul_overflow(inner->stride, (int64_t)inner->list.total, &row))
		return -1;
	return row == outer->stride ? inner->stride : -1;
}

/* The number of parts that two neighbours make when they become one dimension. */
static uint64_t merge_cost(const struct dim *outer, const struct dim *inner)
{
	return stride_merged(outer, inner) < 0 ? MIN(outer->list.total, inner->list.total) : 1;
}

/*
 * Merge the dimensions into one, and split that one into the new dimensions. If the strides of two do
 * not fit, they are cut at every index of the one that has fewer. At most CKPT_DIMS_MAX deep.
 */
static int merge_dims(struct parts *s, const struct dim *x, uint32_t n, uint64_t from)
{
	struct dim y[CKPT_DIMS_MAX];
	uint32_t best = 0, cut;
	uint64_t parts;
	int rc = 0;

	if (n == 1)
		return split_dim(s, x, from, 0);
	for (uint32_t d = 1; d + 1 < n; d++)
		if (merge_cost(&x[d], &x[d + 1]) < merge_cost(&x[best], &x[best + 1]))
			best = d;
	parts = merge_cost(&x[best], &x[best + 1]);
	cut = best + (x[best].list.total > x[best + 1].list.total);
	for (uint64_t i = 0; i < parts && !rc; i++) {
		uint64_t at = from;

		memcpy(y, x, n * sizeof *y);
		if (parts > 1) {
			rc = indices_slice(&x[cut].list, i, i + 1, s->a, &y[cut].list);
			at += i * (uint64_t)x[cut].stride;
		}
		y[best].stride = stride_merged(&y[best], &y[best + 1]);
		y[best].extent *= y[best + 1].extent;
		rc = rc ? rc
			: indices_merge(&y[best].list, &y[best + 1].list, x[best + 1].extent, s->a,
					&y[best].list);
		memmove(&y[best + 1], &y[best + 2], (n - best - 2) * sizeof *y);
		rc = rc ? rc : merge_dims(s, y, n - 1, at);
	}
	return rc;
}

/* The piece's parts of a group. */
static int group_parts(const struct shape *old, const uint64_t *was, const uint64_t *is,
		       const struct view_group *g, struct parts *ret)
{
	struct dim x[CKPT_DIMS_MAX];

	for (uint32_t i = 0; i < g->nwas; i++)
		x[i] = (struct dim){ .list = old->dim[g->was[i]],
				     .stride = old->stride[g->was[i]],
				     .extent = was[g->was[i]] };
	ret->nis = g->nis;
	for (uint32_t i = 0; i < g->nis; i++)
		ret->extent[i] = is[g->is[i]];
	return merge_dims(ret, x, g->nwas, 0);
}

/* Number `number` of the products of one part of each group. */
static int product_make(const struct table_piece *p, uint32_t elem,
			const struct view_groups *groups, const struct parts *parts,
			uint64_t number, uint32_t nis, struct arena *a, struct table_piece *ret)
{
	static const struct run zero = { 0, 1, 1, 1 };
	struct shape s = { .ndim = nis };
	uint64_t from = 0;

	for (uint32_t d = 0; d < nis; d++)
		s.dim[d] = (struct indices){ 1, 1, &zero };
	for (uint32_t g = groups->n; g-- > 0; number /= parts[g].n) {
		const struct part *x = &parts[g].part[number % parts[g].n];

		from += x->from;
		for (uint32_t i = 0; i < groups->group[g].nis; i++) {
			s.dim[groups->group[g].is[i]] = x->dim[i].list;
			s.stride[groups->group[g].is[i]] = x->dim[i].stride;
		}
	}
	return piece_set(p, from, elem, &s, a, ret);
}

int view_piece_reshape(const struct table_piece *p, uint32_t elem, const uint64_t *was,
		       uint32_t nis, const uint64_t *is, struct arena *a,
		       const struct table_piece **ret, uint32_t *ret_n)
{
	struct view_groups groups = view_groups(p->set.ndim, was, nis, is);
	struct parts parts[CKPT_DIMS_MAX] = { 0 };
	struct table_piece *piece;
	struct shape old;
	uint64_t n = 1;
	int rc = 0;

	shape_of(p, &old);
	for (uint32_t g = 0; g < groups.n && !rc; g++) {
		parts[g].a = a;
		rc = group_parts(&old, was, is, &groups.group[g], &parts[g]);
		n *= parts[g].n;
		if (!rc && n > VIEW_PIECES_MAX)
			rc = -E2BIG;
	}
	piece = rc ? NULL : arena_array(a, n, sizeof *piece);
	if (!rc && !piece)
		rc = -ENOMEM;
	for (uint64_t i = 0; i < n && !rc; i++)
		rc = product_make(p, elem, &groups, parts, i, nis, a, &piece[i]);
	for (uint32_t g = 0; g < groups.n; g++)
		free(parts[g].part);
	*ret = piece;
	*ret_n = rc ? 0 : (uint32_t)n;
	return rc;
}
