/* SPDX-License-Identifier: Apache-2.0 */
/* interval.h - flattened intervals of a share as index sets, as a trainer that flattens declares
 * them. */
#ifndef TESTS_LIB_INTERVAL_H
#define TESTS_LIB_INTERVAL_H
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

/* x with one index each in the dimensions before d, n of them in d and all behind. */
static inline int interval_piece(const struct indexset *x, const uint64_t *at, uint32_t d,
				 uint64_t n, struct arena *a, struct indexset *ret)
{
	struct indices *dim = arena_array(a, x->ndim, sizeof *dim);

	if (!dim)
		return -ENOMEM;
	*ret = (struct indexset){ .ndim = x->ndim, .numel = 1, .dim = dim };
	for (uint32_t i = 0; i < x->ndim; i++) {
		uint64_t from = i <= d ? at[i] : 0;
		uint64_t to = i < d ? from + 1 : i == d ? from + n : x->dim[i].total;
		int e = indices_slice(&x->dim[i], from, to, a, &dim[i]);

		if (e < 0)
			return e;
		ret->numel *= dim[i].total;
	}
	return 0;
}

/*
 * The elements number [from, to) of x, counted row-major (a `to` above numel means numel): what a
 * rank holds of a tensor, or of its share of it, that was flattened and cut (ZeRO, Paddle's
 * flattened_range). As at most 2 * ndim - 1 products, in ascending order; *ret_n 0: none.
 */
static inline int indexset_interval(const struct indexset *x, uint64_t from, uint64_t to,
				    struct arena *a, const struct indexset **ret_set,
				    uint32_t *ret_n)
{
	assert(x->ndim <= CKPT_DIMS_MAX);
	uint64_t at[CKPT_DIMS_MAX], stride[CKPT_DIMS_MAX], n;
	uint32_t max = x->ndim > 0 ? 2 * x->ndim - 1 : 1, d;
	struct indexset *set = arena_array(a, max, sizeof *set);

	*ret_set = set;
	*ret_n = 0;
	if (!set)
		return -ENOMEM;
	to = MIN(to, x->numel);
	if (from >= to)
		return 0;
	if (x->ndim == 0) {
		set[(*ret_n)++] = *x;
		return 0;
	}
	for (d = x->ndim, n = 1; d-- > 0; n *= x->dim[d].total)
		stride[d] = n;
	for (; from < to; from += n * stride[d]) {
		for (uint32_t i = 0; i < x->ndim; i++)
			at[i] = from / stride[i] % x->dim[i].total;
		/* the outermost dimension of which whole indices follow */
		for (d = 0; from % stride[d] != 0 || to - from < stride[d];)
			d++;
		n = MIN((to - from) / stride[d], x->dim[d].total - at[d]);
		assert(*ret_n < max);
		int e = interval_piece(x, at, d, n, a, &set[*ret_n]);

		if (e < 0)
			return e;
		++*ret_n;
	}
	return 0;
}
#endif
