/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wide.h - numbers of twice a double's precision: hi + lo, with |lo| at most half a unit of hi's
 * last place (Dekker 1971, "A floating-point technique for extending the available precision").
 * They are made of +, -, *, / of doubles alone, never of the C library's pow, whose last bit
 * differs from library to library and from processor to processor. So a decay has the same bits on
 * every host, and the library in a trainer needs libc only.
 */
#ifndef EMA_WIDE_H
#define EMA_WIDE_H
#include <stdint.h>

struct wide {
	double hi, lo;
};

struct wide wide_of(double x);
struct wide wide_of_u64(uint64_t x); /* exact */
double wide_double(struct wide x);   /* the nearest one */
struct wide wide_add(struct wide x, struct wide y);
struct wide wide_sub(struct wide x, struct wide y);
struct wide wide_mul(struct wide x, struct wide y); /* |x|, |y| < 2^400 */
struct wide wide_div(struct wide x, struct wide y); /* the same; y is not 0 */
/* x to the power of y, to about 2^-90 relative: 2^-400 < x < 2^400, |y| < 2^900; the result is at
 * most 1. */
struct wide wide_pow(struct wide x, struct wide y);
#endif
