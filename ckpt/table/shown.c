/* SPDX-License-Identifier: Apache-2.0 */
/* shown.c - see shown.h. Called by the verbs that print shapes or elements. Invariant: all values of
 * an element are shown. */
#include "ckpt/table/shown.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"

uint64_t shown_numel(const struct table_tensor *x)
{
	return x->numel * dtype_values(x->dtype); /* below 2^64, for bytes are below 2^63 */
}

const uint64_t *shown_shape(const struct table_tensor *x, uint64_t buf[CKPT_DIMS_MAX])
{
	if (dtype_values(x->dtype) == 1 || !x->ndim)
		return x->shape;
	memcpy(buf, x->shape, x->ndim * sizeof *buf);
	buf[x->ndim - 1] *= dtype_values(x->dtype);
	return buf;
}

const struct indexset *shown_set(const struct table_tensor *x, const struct indexset *set,
				 struct arena *a)
{
	uint64_t values = dtype_values(x->dtype);
	struct indices all, *last;
	struct indexset *ret;
	struct indices *dim;

	if (values == 1 || !set->ndim)
		return set;
	ret = arena_alloc(a, sizeof *ret);
	dim = arena_dup(a, set->dim, set->ndim * sizeof *dim);
	if (!ret || !dim || indices_range(0, values, a, &all) < 0)
		return NULL;
	last = &dim[set->ndim - 1];
	if (indices_merge(last, &all, values, a, last) < 0)
		return NULL;
	*ret = (struct indexset){ .ndim = set->ndim, .numel = set->numel * values, .dim = dim };
	return ret;
}

char *shown_mesh(const struct table *t, char *buf, size_t bytes)
{
	uint32_t best = 0;

	buf[0] = 0;
	for (uint32_t i = 1; i < t->nmesh; i++)
		if (t->mesh[i].nrank > t->mesh[best].nrank)
			best = i;
	return t->nmesh ? mesh_print(&t->mesh[best], buf, bytes) : buf;
}
