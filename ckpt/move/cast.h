/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast.h - elements of one floating-point type as another: F16, BF16, F32, F64. What the target can
 * hold is exact; the rest is rounded once, to nearest even, to infinity where it is too large. A
 * NaN stays one. Used behind the reduction of operands (move_reduce.c), and by ckptctl export
 * --dtype (convert.c).
 */
#ifndef CKPT_MOVE_CAST_H
#define CKPT_MOVE_CAST_H
#include <stdbool.h>
#include <stdint.h>

bool cast_known(uint32_t from, uint32_t to);
/* n elements from x to ret, which do not overlap; any alignment. */
void cast(uint32_t from, const void *x, uint32_t to, void *ret, uint64_t n);
/* Of these n elements, which cast has made: how many are infinite in ret and were not in x? */
uint64_t cast_overflows(uint32_t from, const void *x, uint32_t to, const void *ret, uint64_t n);
#endif
