/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit_copies.h - of which elements there are more copies than there were, for explicit.c:
 * range by range, because copies that one range loses do not outweigh those that another one gets.
 */
#ifndef CKPT_PLAN_EXPLICIT_COPIES_H
#define CKPT_PLAN_EXPLICIT_COPIES_H
#include "ckpt/layout/layout.h"

#define COPIES_CELLS_MAX (UINT64_C(1) << 20) /* ranges that are counted one by one: 8 MiB */
#define COPIES_STEPS_MAX (UINT64_C(1) << 26) /* ranges of all sets together: a tenth of a second */

/* What a rank holds. */
struct held {
	uint32_t rank;
	struct indexset set;
};

struct copies {
	uint64_t each; /* of every element: `at` is not looked at; 0: as `at` says */
	uint32_t operands;
	uint32_t n;
	const struct held *at; /* [n] */
};

/*
 * *ret: how many elements are held in addition, each counted as often; operands of a reduction are
 * one copy together. -ENOMEM; -E2BIG: the sets make too many ranges.
 */
int copies_added(uint32_t ndim, const uint64_t *shape, const struct copies *old,
		 const struct copies *new, uint64_t *ret);
#endif
