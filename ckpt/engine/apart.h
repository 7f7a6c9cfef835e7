/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apart.h - two arrays of one shape, element by element: how many differ, how far, and where the
 * first one stands. In one pass over stretches in any order.
 *
 * Two elements of one dtype differ in *bits* (0.0 and -0.0 do, and two NaNs may). They differ in
 * *value* where the numbers are not equal; NaN equals NaN. Elements of two dtypes are compared by
 * value alone. Integers are compared exactly, all else as double. F4 is compared with F4 alone: a
 * byte of it is two elements here, side by side in the last dimension.
 */
#ifndef CKPT_ENGINE_APART_H
#define CKPT_ENGINE_APART_H
#include "ckpt/layout/layout.h"

struct apart {
	uint32_t dtype_a, dtype_b, ndim;
	const uint64_t *shape;	      /* of F4 in bytes */
	uint64_t count, bits, values; /* of all, that differ; bits 0 where the dtypes differ */
	uint64_t nan_a, nan_b;
	uint64_t nonfinite; /* differ in value, and one of the two is no finite number */
	double max_delta;   /* largest |a - b| of two finite numbers */
	bool has_first;
	uint64_t first_at; /* row-major index of the first that differs in bits (dtypes: value) */
	uint64_t first[CKPT_DIMS_MAX];
};

void apart_begin(struct apart *x, uint32_t dtype_a, uint32_t dtype_b, uint32_t ndim,
		 const uint64_t *shape);
/* The elements of `set`, of F4 bytes, row-major at a and at b. */
void apart_add(struct apart *x, const struct indexset *set, const uint8_t *a, const uint8_t *b);
#endif
