/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round.h - F32 elements rounded to BF16 and F16, as tensors of class derived have them
 * (docs/FORMAT.md, Pieces): to nearest even, to infinity where it is too large, subnormal numbers
 * and
 * -0 kept, and a NaN with the bits v becomes
 *	BF16: (v >> 16) | 0x40
 *	F16:  ((v >> 16) & 0x8000) | 0x7e00 | ((v >> 13) & 0x3ff)
 * For ckpt/move. Any thread, any alignment, at the speed of memory.
 */
#ifndef CKPT_MOVE_ROUND_H
#define CKPT_MOVE_ROUND_H
#include <stdbool.h>
#include <stdint.h>

#define ROUND_FROM_BYTES 4u /* of an element that is rounded */
#define ROUND_TO_BYTES 2u

bool round_known(uint32_t dtype); /* BF16, F16 */
/* n elements from x to ret, which do not overlap. */
void round_f32(uint32_t dtype, const void *x, void *ret, uint64_t n);
/*
 * How many of the n elements at y are not what rounding gives of those at x; a NaN on either side
 * counts. ret_first: the number of the first one, unchanged where there is none.
 */
uint64_t round_unequal(uint32_t dtype, const void *x, const void *y, uint64_t n,
		       uint64_t *ret_first);
#endif
