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

static struct piece_bounds bounds_of(const struct indices *x)
{
	return (struct piece_bounds){ .lo = indices_lo(x), .hi = indices_hi(x) };
}

static const struct piece_bounds *bounds_at(const struct piece_tree *t, uint32_t i)
{
	return t->own + (size_t)t->order[i] * t->ndim;
}

/* Twice the middle of a piece: below 2^64, because all indices are below 2^63. */
static uint64_t piece_middle(const struct piece_tree *t, uint32_t i, uint32_t dim)
{
	const struct piece_bounds *b = bounds_at(t, i) + dim;

	return t->ndim ? b->lo + b->hi : 0;
}

/* The dimension in which the most pieces of their mean size would lie side by side. */
static uint32_t dim_choose(const struct piece_tree *t, uint32_t from, uint32_t to)
{
	double most = -1;
	uint32_t best = 0;

	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->apart == 1u << d)
			return d;
		if (!(t->apart >> d & 1))
			continue;

		uint64_t low = UINT64_MAX, high = 0;
		double sizes = 0, side;

		for (uint32_t i = from; i < to; i++) {
			const struct piece_bounds *b = bounds_at(t, i) + d;

			low = MIN(low, b->lo + b->hi);
			high = MAX(high, b->lo + b->hi);
			sizes += (double)(b->hi - b->lo);
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
			ret[d].lo = MIN(ret[d].lo, bounds_at(t, i)[d].lo);
			ret[d].hi = MAX(ret[d].hi, bounds_at(t, i)[d].hi);
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
		e = room_make(&bounds, &t->bounds_cap, (nodes + n) * ndim, sizeof *t->bounds);
	t->bounds = bounds;
	if (e)
		return e;
	t->own = t->bounds + nodes * ndim;
	t->n = n;
	t->ndim = ndim;
	t->apart = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct piece_bounds *own = t->own + (size_t)i * ndim;

		t->order[i] = i;
		for (uint32_t d = 0; d < ndim; d++) {
			own[d] = bounds_of(&piece[i].set.dim[d]);
			if (own[d].lo != t->own[d].lo || own[d].hi != t->own[d].hi)
				t->apart |= 1u << d;
		}
	}
	node_divide(t, 0, 0, n);
	return 0;
}

void piece_tree_free(struct piece_tree *t)
{
	free(t->order);
	free(t->bounds);
	*t = (struct piece_tree){ .n = 0 };
}

static bool bounds_meet(const struct piece_bounds *x, const struct piece_bounds *y, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (x[d].lo >= y[d].hi || y[d].lo >= x[d].hi)
			return false;
	return true;
}

static bool nodes_meet(const struct piece_tree *t, uint32_t node, const struct piece_bounds *set)
{
	const struct piece_bounds *b = t->bounds + (size_t)node * t->ndim;

	return bounds_meet(b, set, t->ndim) &&
	       !(MUTANT(BRANCHES_PASSED_OVER) && t->ndim && b->lo + 1 >= set->hi);
}

/* --- pairs --- */

struct pairs {
	const struct piece_tree *t;
	piece_tree_fn *fn;
	void *arg;
};

static struct piece_tree_node half_low(struct piece_tree_node x)
{
	return (struct piece_tree_node){ 2 * x.node + 1, x.from, span_half(x.from, x.to) };
}

static struct piece_tree_node half_high(struct piece_tree_node x)
{
	return (struct piece_tree_node){ 2 * x.node + 2, span_half(x.from, x.to), x.to };
}

/* Of order[x.from .. x.to) with those behind them in order[y.from .. y.to). */
static bool leaves_pair(const struct pairs *p, struct piece_tree_node x, struct piece_tree_node y)
{
	for (uint32_t i = x.from; i < x.to; i++)
		for (uint32_t j = MAX(y.from, i + 1); j < y.to; j++) {
			uint32_t a = p->t->order[i], b = p->t->order[j];

			if (bounds_meet(bounds_at(p->t, i), bounds_at(p->t, j), p->t->ndim) &&
			    !p->fn(p->arg, MIN(a, b), MAX(a, b)))
				return false;
		}
	return true;
}

/* x is y, or lies before it. At most twice as deep as the tree. */
static bool nodes_pair(const struct pairs *p, struct piece_tree_node x, struct piece_tree_node y)
{
	bool x_leaf = x.to - x.from <= LEAF, y_leaf = y.to - y.from <= LEAF;

	if (x.node == y.node && !x_leaf)
		return nodes_pair(p, half_low(x), half_low(x)) &&
		       nodes_pair(p, half_high(x), half_high(x)) &&
		       nodes_pair(p, half_low(x), half_high(x));
	if (x.node != y.node &&
	    !nodes_meet(p->t, x.node, p->t->bounds + (size_t)y.node * p->t->ndim))
		return true;
	if (x_leaf && y_leaf)
		return leaves_pair(p, x, y);
	if (y_leaf || (!x_leaf && x.to - x.from > y.to - y.from))
		return nodes_pair(p, half_low(x), y) && nodes_pair(p, half_high(x), y);
	return nodes_pair(p, x, half_low(y)) && nodes_pair(p, x, half_high(y));
}

void piece_tree_pairs(const struct piece_tree *t, piece_tree_fn *fn, void *arg)
{
	const struct pairs p = { t, fn, arg };
	const struct piece_tree_node root = { 0, 0, t->n };

	(void)nodes_pair(&p, root, root);
}

/* --- pieces that meet a set --- */

void piece_tree_begin(const struct piece_tree *t, const struct indexset *set,
		      struct piece_tree_cursor *ret)
{
	ret->tree = t;
	ret->leaf = ret->leaf_end = 0;
	ret->n = t->n ? 1 : 0;
	ret->pending[0] = (struct piece_tree_node){ 0, 0, t->n };
	for (uint32_t d = 0; d < t->ndim; d++)
		ret->set[d] = bounds_of(&set->dim[d]);
}

bool piece_tree_next(struct piece_tree_cursor *c, uint32_t *ret)
{
	const struct piece_tree *t = c->tree;

	for (;;) {
		struct piece_tree_node x;

		while (c->leaf < c->leaf_end) {
			*ret = t->order[c->leaf++];
			if (bounds_meet(t->own + (size_t)*ret * t->ndim, c->set, t->ndim))
				return true;
		}
		if (!c->n)
			return false;
		x = c->pending[--c->n];
		if (!nodes_meet(t, x.node, c->set))
			continue;
		if (x.to - x.from <= LEAF) {
			c->leaf = x.from;
			c->leaf_end = x.to;
			continue;
		}
		c->pending[c->n++] = half_high(x);
		c->pending[c->n++] = half_low(x);
	}
}
