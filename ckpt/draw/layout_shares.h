/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_shares.h - what all ranks of a layout hold. Tensor dimensions do not know of each other:
 * each has one list for every coordinate in the mesh dimensions that cut it, so that many ranks
 * share few lists.
 */
#ifndef CKPT_DRAW_LAYOUT_SHARES_H
#define CKPT_DRAW_LAYOUT_SHARES_H
#include "ckpt/layout/layout.h"

#define SHARES_RECORDS_MAX (1u << 22) /* progressions of all lists together: 128 MiB */
#define SHARES_STEPS_MAX (1u << 28)   /* pieces taken one by one: a few seconds */

struct shares_list {
	struct indices x;
	uint64_t runs; /* its maximal stretches */
};

struct shares_dim {
	uint32_t n; /* lists */
	const struct shares_list *list;
	uint32_t step[CKPT_DIMS_MAX]; /* what a mesh coordinate adds to the number of the list */
};

struct shares {
	const struct mesh *mesh;
	const struct layout *layout;
	uint32_t ndim;
	uint64_t numel; /* of the tensor */
	struct shares_dim dim[CKPT_DIMS_MAX];
};

struct shares_totals {
	uint64_t held;	       /* elements, copies counted; UINT64_MAX: or more */
	uint64_t progressions; /* of all ranks and dimensions */
	uint64_t runs;
	uint64_t least, most; /* elements of a rank */
	uint32_t empty;	      /* ranks that hold nothing */
};

/* Everything lives as long as the arena, mesh and layout. -E2BIG (err says what), -ENOMEM. */
int shares_make(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape,
		struct arena *a, struct shares *ret, struct ckpt_err *err);
/* The lists of a coordinate, [ndim]; returns how many elements they are. */
uint64_t shares_at(const struct shares *s, const uint32_t *coord,
		   const struct shares_list **ret_dim);
void shares_count(const struct shares *s, struct shares_totals *ret);
#endif
