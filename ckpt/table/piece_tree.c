/* SPDX-License-Identifier: Apache-2.0 */
/*
 * piece_tree.c - see piece_tree.h. Called by cover.c and by the planner.
 * Invariant: a node's bounds contain every piece below it, so a piece that is passed over shares no
 * element with the set.
 */
#include "ckpt/table/piece_tree.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

#define LEAF 4u /* pieces that are not divided any further */

/* Twice the middle of a piece: below 2^64, because all indices are below 2^63. */
static uint64_t piece_middle(const struct piece_tree *t, uint32_t i, uint32_t dim)
{
	const struct indices *d = t->piece[t->order[i]].set.dim + dim;

	return t->ndim ? indices_lo(d) + indices_hi(d) : 0;
}

/* The dimension in which the most pieces of their mean size would lie side by side. */
static uint32_t dim_choose(const struct piece_tree *t, uint32_t from, uint32_t to)
{
	double most = -1;
	uint32_t best = 0;

	for (uint32_t d = 0; d < t->ndim; d++) {
		uint64_t low = UINT64_MAX, high = 0;
		double sizes = 0, side;

		for (uint32_t i = from; i < to; i++) {
			const struct indices *x = &t->piece[t->order[i]].set.dim[d];

			low = MIN(low, piece_middle(t, i, d));
			high = MAX(high, piece_middle(t, i, d));
			sizes += (double)(indices_hi(x) - indices_lo(x));
		}
		side = (double)(high - low) * (to - from) / sizes;
		if (side > most) {
			most = side;
			best = d;
		}
	}
	return best;
}

/* Those with the lower middles come to [from, at), the others to [at, to): Hoare's selection. */
static void select_lower(struct piece_tree *t, uint32_t from, uint32_t to, uint32_t at,
			 uint32_t dim)
{
	int64_t lo = from, hi = (int64_t)to - 1;

	while (lo < hi) {
		uint64_t pivot = piece_middle(t, (uint32_t)(lo + (hi - lo) / 2), dim);
		int64_t i = lo, j = hi;

		while (i <= j) {
			while (piece_middle(t, (uint32_t)i, dim) < pivot)
				i++;
			while (piece_middle(t, (uint32_t)j, dim) > pivot)
				j--;
			if (i <= j) {
				uint32_t x = t->order[i];

				t->order[i++] = t->order[j];
				t->order[j--] = x;
			}
		}
		if (at <= j)
			hi = j;
		else if (at >= i)
			lo = i;
		else
			return;
	}
}

static void bounds_of_leaf(const struct piece_tree *t, uint32_t from, uint32_t to,
			   struct piece_bounds *ret)
{
	for (uint32_t d = 0; d < t->ndim; d++) {
		ret[d] = (struct piece_bounds){ .lo = UINT64_MAX };
		for (uint32_t i = from; i < to; i++) {
			const struct indices *x = &t->piece[t->order[i]].set.dim[d];

			ret[d].lo = MIN(ret[d].lo, indices_lo(x));
			ret[d].hi = MAX(ret[d].hi, indices_hi(x));
		}
	}
}

static uint32_t span_half(uint32_t from, uint32_t to)
{
	return from + (to - from) / 2;
}

/* At most PIECE_TREE_DEPTH deep. */
static void node_divide(struct piece_tree *t, uint32_t node, uint32_t from, uint32_t to)
{
	struct piece_bounds *b = t->bounds + (size_t)node * t->ndim, *low, *high;
	uint32_t at = span_half(from, to);

	if (to - from <= LEAF) {
		bounds_of_leaf(t, from, to, b);
		return;
	}
	select_lower(t, from, to, at, dim_choose(t, from, to));
	node_divide(t, 2 * node + 1, from, at);
	node_divide(t, 2 * node + 2, at, to);
	low = t->bounds + (size_t)(2 * node + 1) * t->ndim;
	high = low + t->ndim;
	for (uint32_t d = 0; d < t->ndim; d++)
		b[d] = (struct piece_bounds){ .lo = MIN(low[d].lo, high[d].lo),
					      .hi = MAX(low[d].hi, high[d].hi) };
}

/* Room for so many elements, whatever they were. */
static int room_make(void **array, size_t *cap, size_t n, size_t elem)
{
	if (n <= *cap)
		return 0;
	free(*array);
	*array = reallocarray(NULL, n, elem);
	*cap = *array ? n : 0;
	return *array ? 0 : -ENOMEM;
}

int piece_tree_make(struct piece_tree *t, const struct table_piece *piece, uint32_t n,
		    uint32_t ndim)
{
	void *order = t->order, *bounds = t->bounds;
	size_t nodes = 1;
	int e;

	/* The larger half of n is (n + 1) / 2. */
	for (uint32_t k = n; k > LEAF; k = k / 2 + k % 2)
		nodes = 2 * nodes + 1;
	e = room_make(&order, &t->order_cap, n, sizeof *t->order);
	t->order = order;
	if (!e)
		e = room_make(&bounds, &t->bounds_cap, nodes * ndim, sizeof *t->bounds);
	t->bounds = bounds;
	if (e)
		return e;
	t->piece = piece;
	t->n = n;
	t->ndim = ndim;
	for (uint32_t i = 0; i < n; i++)
		t->order[i] = i;
	node_divide(t, 0, 0, n);
	return 0;
}

void piece_tree_free(struct piece_tree *t)
{
	free(t->order);
	free(t->bounds);
	*t = (struct piece_tree){ .n = 0 };
}

void piece_tree_begin(const struct piece_tree *t, const struct indexset *set,
		      struct piece_tree_cursor *ret)
{
	*ret = (struct piece_tree_cursor){ .tree = t, .set = set, .n = t->n ? 1 : 0 };
	ret->pending[0] = (struct piece_tree_node){ 0, 0, t->n };
}

static bool bounds_meet(const struct piece_tree_cursor *c, uint32_t node)
{
	const struct piece_bounds *b = c->tree->bounds + (size_t)node * c->tree->ndim;

	for (uint32_t d = 0; d < c->tree->ndim; d++)
		if (b[d].lo + MUTANT(BRANCHES_PASSED_OVER) >= indices_hi(&c->set->dim[d]) ||
		    indices_lo(&c->set->dim[d]) >= b[d].hi)
			return false;
	return true;
}

static bool piece_meets(const struct piece_tree_cursor *c, uint32_t piece)
{
	const struct indexset *x = &c->tree->piece[piece].set;

	for (uint32_t d = 0; d < c->tree->ndim; d++)
		if (indices_apart(&x->dim[d], &c->set->dim[d]))
			return false;
	return true;
}

bool piece_tree_next(struct piece_tree_cursor *c, uint32_t *ret)
{
	for (;;) {
		struct piece_tree_node x;
		uint32_t at;

		while (c->leaf < c->leaf_end) {
			*ret = c->tree->order[c->leaf++];
			if (piece_meets(c, *ret))
				return true;
		}
		if (!c->n)
			return false;
		x = c->pending[--c->n];
		if (!bounds_meet(c, x.node))
			continue;
		if (x.to - x.from <= LEAF) {
			c->leaf = x.from;
			c->leaf_end = x.to;
			continue;
		}
		at = span_half(x.from, x.to);
		c->pending[c->n++] = (struct piece_tree_node){ 2 * x.node + 2, at, x.to };
		c->pending[c->n++] = (struct piece_tree_node){ 2 * x.node + 1, x.from, at };
	}
}
