/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unique.h - a list as a set: sorted, each element once. Pure functions, from any thread.
 */
#ifndef CKPT_BASE_UNIQUE_H
#define CKPT_BASE_UNIQUE_H
#include "ckpt/base/util.h"

/* Sorts n elements of `size` bytes by `order` (as of qsort), and keeps one of those that are equal
 * by it: how many are left. n 0: at may be NULL. */
static inline uint32_t sort_unique(void *at, uint32_t n, size_t size,
				   int (*order)(const void *, const void *))
{
	uint8_t *p = at;
	uint32_t left = MIN(n, 1u);

	if (n)
		qsort(at, n, size, order);
	for (uint32_t i = 1; i < n; i++)
		if (order(p + (left - 1) * size, p + i * size) != 0)
			memmove(p + left++ * size, p + i * size, size);
	return left;
}
#endif
