/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_copy.h - carries out the rows of a plan. For ckpt/move only. No allocation, no state.
 */
#ifndef CKPT_MOVE_ROW_COPY_H
#define CKPT_MOVE_ROW_COPY_H
#include "ckpt/plan/plan.h"

/* The bytes [from, to) of the row's own bytes; where it has elements, bounds are multiples of
 * elem. */
void row_copy(const struct plan_row *r, uint64_t from, uint64_t to, const void *src_base,
	      void *dst_base);

/* The part of the row whose source bytes lie in [lo, hi) of the place; window: the bytes at lo.
 * Returns how many bytes those were. */
uint64_t row_copy_window(const struct plan_row *r, const void *window, uint64_t lo, uint64_t hi,
			 void *dst_base);
#endif
