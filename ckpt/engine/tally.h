/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally.h - statistics of a tensor's values: count, minimum, maximum, mean, deviation, NaN and
 * infinities. In one pass over the elements, in any order.
 *
 * min, max, mean and the (population) standard deviation are of the finite values; complex numbers
 * count by their absolute value. Blocks are summed pairwise in two passes and merged (Chan, Golub,
 * LeVeque 1979) in long double: the error does not grow with the number of elements.
 */
#ifndef CKPT_ENGINE_TALLY_H
#define CKPT_ENGINE_TALLY_H
#include <stdbool.h>
#include <stdint.h>

struct tally {
	uint32_t dtype;
	uint64_t count;				   /* of all elements */
	uint64_t finite, zeros, nan, inf, neg_inf; /* zeros: of either sign, finite too */
	double min, max;			   /* where finite > 0 */
	uint64_t whole_min, whole_max; /* the same of integers, as element_integer gives them */
	long double mean, m2;	       /* m2: sum of squared distances from the mean */
};

void tally_begin(struct tally *t, uint32_t dtype);
/* n elements, of F4 bytes: each is two values, and counts as two. */
void tally_add(struct tally *t, const uint8_t *p, uint64_t n);
double tally_std(const struct tally *t);
/* "of" what min and the others are: the value, or "magnitude" */
bool tally_magnitude(const struct tally *t);
#endif
