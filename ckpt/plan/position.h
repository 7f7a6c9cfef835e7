/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position.h - between an index and its number in an index list. For those who turn offsets of a
 * piece into indices and back; whoever walks two lists together uses indices_next.
 */
#ifndef CKPT_PLAN_POSITION_H
#define CKPT_PLAN_POSITION_H
#include "ckpt/layout/layout.h"

/* How many indices of the list are below `index`: the position of `index` when the list has it.
 * O(runs). */
uint64_t position_below(const struct indices *x, uint64_t index);
/* The index at a position, which is below x->total. O(runs). */
uint64_t position_index(const struct indices *x, uint64_t position);
/* The first index, and one above the last, of a list that is not empty. */
uint64_t position_lo(const struct indices *x);
uint64_t position_hi(const struct indices *x);
#endif
