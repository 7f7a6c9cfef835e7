/* SPDX-License-Identifier: Apache-2.0 */
/*
 * piece_tree.h - which pieces of a tensor may share elements with a set? To compare many
 * pieces that no single dimension divides: 100,000 boxes in a grid of three dimensions. A tree
 * of bounds: each half of the pieces has the bounds of all its pieces.
 *
 * Making it takes O(n log n) steps. A question takes O(log n) and a step for each piece that it
 * returns, where the pieces lie side by side; where the bounds of all pieces meet, as those of
 * interleaved ones do, it returns them all.
 */
#ifndef CKPT_TABLE_PIECE_TREE_H
#define CKPT_TABLE_PIECE_TREE_H
#include "ckpt/table/table.h"

struct piece_tree {
	uint32_t n, ndim;
	uint32_t apart;	 /* bit per dimension: the pieces have different bounds in it */
	uint32_t *order; /* [n]: pieces that are close to each other come together */
	size_t order_cap, bounds_cap;
	struct piece_bounds {
		uint64_t lo, hi; /* [lo, hi) */
	} * bounds,		 /* [nodes][ndim]; the halves of node i are 2i + 1 and 2i + 2 */
		*own;		 /* [n][ndim]: of each piece */
};

#define PIECE_TREE_DEPTH 32
struct piece_tree_cursor {
	const struct piece_tree *tree;
	struct piece_bounds set[CKPT_DIMS_MAX];
	uint32_t n, leaf, leaf_end;
	struct piece_tree_node {
		uint32_t node, from, to; /* of order */
	} pending[PIECE_TREE_DEPTH + 2];
};

/* None of the pieces is empty. *t is zeroed, or a tree whose memory is used again. -ENOMEM. */
int piece_tree_make(struct piece_tree *t, const struct table_piece *piece, uint32_t n,
		    uint32_t ndim);
void piece_tree_free(struct piece_tree *t); /* a zeroed one is fine */

/* Called once for each pair of pieces whose bounds meet, i < k. Returning false ends it. */
typedef bool piece_tree_fn(void *arg, uint32_t i, uint32_t k);
void piece_tree_pairs(const struct piece_tree *t, piece_tree_fn *fn, void *arg);

/* piece_tree_next returns, one by one, the pieces whose bounds meet those of the set, always in the
 * same order. The set must not be empty. *ret: index of the piece; false: all have been
 * returned. */
void piece_tree_begin(const struct piece_tree *t, const struct indexset *set,
		      struct piece_tree_cursor *ret);
bool piece_tree_next(struct piece_tree_cursor *c, uint32_t *ret);
#endif
