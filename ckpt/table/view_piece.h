/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_piece.h - one piece of a tensor that is cut, joined, turned or has another shape. For
 * ckpt/table/view.c. What is made lies in the arena and borrows from the piece that it is made of;
 * its fingerprint is still that one's, for the caller to judge. -ENOMEM.
 */
#ifndef CKPT_TABLE_VIEW_PIECE_H
#define CKPT_TABLE_VIEW_PIECE_H
#include "ckpt/table/table.h"

#define VIEW_PIECES_MAX 65536u /* that one piece falls into */

/* The part [lo, hi) of dimension d, as [0, hi - lo); drop: without that dimension. 1, or 0: the
 * piece has none of it. */
int view_piece_cut(const struct table_piece *p, uint32_t elem, uint32_t d, uint64_t lo, uint64_t hi,
		   bool drop, struct arena *a, struct table_piece *ret);
/* As part of what is joined: its indices of dimension d begin at `at`; insert: that is a new
 * dimension. */
int view_piece_join(const struct table_piece *p, uint32_t d, uint64_t at, bool insert,
		    struct arena *a, struct table_piece *ret);
/* Its dimension i is what dims[i] was. */
int view_piece_turn(const struct table_piece *p, const uint64_t *dims, struct arena *a,
		    struct table_piece *ret);

/*
 * Which dimensions of two shapes with equally many elements are the same indices in row-major
 * order: group g is the dimensions was[g] .. of the one and is[g] .. of the other, and as few as
 * possible. Dimensions of size 1 are in none.
 */
struct view_groups {
	uint32_t n;
	struct view_group {
		uint32_t nwas, nis;
		uint8_t was[CKPT_DIMS_MAX], is[CKPT_DIMS_MAX];
	} group[CKPT_DIMS_MAX];
};
struct view_groups view_groups(uint32_t nwas, const uint64_t *was, uint32_t nis,
			       const uint64_t *is);

/*
 * The same elements in another shape: a product of indices is not always one there, so a piece may
 * fall into several, which are *ret. -E2BIG: more than VIEW_PIECES_MAX.
 */
int view_piece_reshape(const struct table_piece *p, uint32_t elem, const uint64_t *was,
		       uint32_t nis, const uint64_t *is, struct arena *a,
		       const struct table_piece **ret, uint32_t *ret_n);
#endif
