/* SPDX-License-Identifier: Apache-2.0 */
/*
 * indexset.c - products of index lists. Called by layout.c, the planner and the mover. numel is
 * always the product of the totals (see layout.h for ndim 0), and 0 for every empty set.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

int shape_numel(uint32_t ndim, const uint64_t *shape, uint64_t *ret_numel)
{
	bool zero = false;
	uint64_t n = 1;

	for (uint32_t d = 0; d < ndim; d++) {
		if (shape[d] > INT64_MAX)
			return -EOVERFLOW;
		zero = zero || shape[d] == 0;
	}
	for (uint32_t d = 0; d < ndim && !zero; d++)
		if (ckpt_mul(n, shape[d], &n) < 0 || n > INT64_MAX)
			return -EOVERFLOW;
	*ret_numel = zero ? 0 : n;
	return 0;
}

int indexset_box(uint32_t ndim, const uint64_t *start, const uint64_t *extent, struct arena *a,
		 struct indexset *ret)
{
	uint64_t numel, end;
	int e = shape_numel(ndim, extent, &numel);
	struct indices *dim;

	if (e < 0)
		return e;
	dim = arena_array(a, MAX(ndim, 1u), sizeof *dim);
	if (!dim)
		return -ENOMEM;
	for (uint32_t d = 0; d < ndim; d++) {
		if (ckpt_add(start[d], extent[d], &end) < 0 || end > INT64_MAX)
			return -EOVERFLOW;
		e = indices_range(start[d], end, a, &dim[d]);
		if (e < 0)
			return e;
	}
	*ret = (struct indexset){ .ndim = ndim, .numel = numel, .dim = dim };
	return 0;
}

int indexset_intersect(const struct indexset *x, const struct indexset *y, struct arena *a,
		       struct indexset *ret)
{
	assert(x->ndim == y->ndim);
	struct indices *dim = arena_array(a, MAX(x->ndim, 1u), sizeof *dim);
	uint64_t numel = x->numel > 0 && y->numel > 0;

	if (!dim)
		return -ENOMEM;
	for (uint32_t d = 0; d < x->ndim && numel > 0; d++) {
		int e = indices_intersect(&x->dim[d], &y->dim[d], a, &dim[d]);

		if (e < 0)
			return e;
		numel *= dim[d].total; /* at most the smaller of the two */
	}
	if (numel == 0)
		memset(dim, 0, x->ndim * sizeof *dim);
	*ret = (struct indexset){ .ndim = x->ndim, .numel = numel, .dim = dim };
	return 0;
}

bool indexset_equal(const struct indexset *x, const struct indexset *y)
{
	if (x->ndim != y->ndim || x->numel != y->numel)
		return false;
	for (uint32_t d = 0; d < x->ndim && x->numel > 0; d++)
		if (!indices_equal(&x->dim[d], &y->dim[d]))
			return false;
	return true;
}

bool indexset_meet(const struct indexset *x, const struct indexset *y)
{
	uint64_t first;

	assert(x->ndim == y->ndim);
	for (uint32_t d = 0; d < x->ndim; d++)
		if (indices_apart(&x->dim[d], &y->dim[d]))
			return false;
	for (uint32_t d = 0; d < x->ndim; d++)
		if (!indices_meet(&x->dim[d], &y->dim[d], &first))
			return false;
	return true;
}

int indexset_order(const struct indexset *x, const struct indexset *y)
{
	int r = 0;

	for (uint32_t d = 0; d < x->ndim && !r; d++)
		r = COMPARE(indices_lo(&x->dim[d]), indices_lo(&y->dim[d]));
	return r;
}

int indexset_copy(const struct indexset *x, struct arena *a, struct indexset *ret)
{
	struct indices *dim = arena_array(a, MAX(x->ndim, 1u), sizeof *dim);

	if (!dim)
		return -ENOMEM;
	for (uint32_t d = 0; d < x->ndim; d++) {
		dim[d] = x->dim[d];
		if (dim[d].n == 0)
			continue;
		dim[d].run = arena_dup(a, x->dim[d].run, dim[d].n * sizeof *dim[d].run);
		if (!dim[d].run)
			return -ENOMEM;
	}
	*ret = (struct indexset){ .ndim = x->ndim, .numel = x->numel, .dim = dim };
	return 0;
}
