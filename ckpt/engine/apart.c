/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apart.c - see apart.h. Called by diff --values, for every stretch that it reads.
 * Invariant: values <= bits where the dtypes are one.
 */
#include "ckpt/engine/apart.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/element.h"
#include <math.h>

#define BLOCK 512 /* elements */

void apart_begin(struct apart *x, uint32_t dtype_a, uint32_t dtype_b, uint32_t ndim,
		 const uint64_t *shape)
{
	assert(dtype_values(dtype_a) == dtype_values(dtype_b));
	*x = (struct apart){ .dtype_a = dtype_a, .dtype_b = dtype_b, .ndim = ndim, .shape = shape };
}

/* Element number i of the set differs. */
static void note_first(struct apart *x, const struct indexset *set, uint64_t i)
{
	uint64_t at[CKPT_DIMS_MAX], global = 0, values = dtype_values(x->dtype_a);
	uint64_t value = i % values;

	i /= values;
	for (uint32_t d = x->ndim; d-- > 0; i /= set->dim[d].total)
		at[d] = indices_at(&set->dim[d], i % set->dim[d].total);
	for (uint32_t d = 0; d < x->ndim; d++)
		global = global * x->shape[d] + at[d];
	global = global * values + value;
	if (x->has_first && global > x->first_at)
		return;
	x->has_first = true;
	x->first_at = global;
	memcpy(x->first, at, x->ndim * sizeof *at);
	if (values > 1)
		x->first[x->ndim - 1] = at[x->ndim - 1] * values + value;
}

/* As double, exact until here. */
static double whole_delta(const struct apart *x, const uint8_t *a, const uint8_t *b)
{
	uint64_t u = element_integer(x->dtype_a, a), v = element_integer(x->dtype_b, b);
	bool minus_a = element_is_signed(x->dtype_a) && u >> 63;
	bool minus_b = element_is_signed(x->dtype_b) && v >> 63;

	if (minus_a == minus_b)
		return (double)(u > v ? u - v : v - u);
	return minus_a ? (double)-u + (double)v : (double)u + (double)-v;
}

static bool has_nan(const double *z)
{
	return isnan(z[0]) || isnan(z[1]);
}

/* Do the values differ? Counts what kind of difference it is. */
static bool values_differ(struct apart *x, const double *a, const double *b, const uint8_t *pa,
			  const uint8_t *pb)
{
	double delta;

	if (element_is_integer(x->dtype_a) && element_is_integer(x->dtype_b)) {
		delta = whole_delta(x, pa, pb);
		x->max_delta = MAX(x->max_delta, delta);
		return delta != 0;
	}
	if ((a[0] == b[0] && a[1] == b[1]) || (has_nan(a) && has_nan(b)))
		return false;
	delta = hypot(a[0] - b[0], a[1] - b[1]);
	if (isfinite(a[0]) && isfinite(a[1]) && isfinite(b[0]) && isfinite(b[1]))
		x->max_delta = MAX(x->max_delta, delta);
	else
		x->nonfinite++;
	return true;
}

static void add_block(struct apart *x, const struct indexset *set, uint64_t from, uint32_t n,
		      const uint8_t *a, const uint8_t *b)
{
	uint32_t na = element_parts(x->dtype_a), nb = element_parts(x->dtype_b);
	uint32_t bytes_a = dtype_bytes(x->dtype_a), bytes_b = dtype_bytes(x->dtype_b);
	bool same = x->dtype_a == x->dtype_b;
	double va[2 * BLOCK], vb[2 * BLOCK];
	bool noted = false; /* in a block the first is the lowest */

	element_reals(x->dtype_a, a, n, va);
	element_reals(x->dtype_b, b, n, vb);
	for (uint32_t i = 0; i < n; i++, a += bytes_a, b += bytes_b) {
		double u[2] = { va[i * na], na == 2 ? va[i * na + 1] : 0 };
		double v[2] = { vb[i * nb], nb == 2 ? vb[i * nb + 1] : 0 };
		bool bits = same && memcmp(a, b, bytes_a);
		bool value = (bits || !same) && values_differ(x, u, v, a, b);

		x->nan_a += has_nan(u);
		x->nan_b += has_nan(v);
		x->bits += bits;
		x->values += value;
		if ((bits || value) && !noted)
			note_first(x, set, from + i);
		noted |= bits || value;
	}
}

static void add_packed(struct apart *x, const struct indexset *set, const uint8_t *a,
		       const uint8_t *b)
{
	uint8_t va[BLOCK], vb[BLOCK];

	for (uint64_t i = 0; i < set->numel; i += BLOCK / 2) {
		uint64_t n = MIN((uint64_t)BLOCK / 2, set->numel - i);

		element_unpack(a + i, n, va);
		element_unpack(b + i, n, vb);
		add_block(x, set, 2 * i, (uint32_t)(2 * n), va, vb);
	}
	x->count += 2 * set->numel;
}

void apart_add(struct apart *x, const struct indexset *set, const uint8_t *a, const uint8_t *b)
{
	uint32_t bytes_a = dtype_bytes(x->dtype_a), bytes_b = dtype_bytes(x->dtype_b);

	if (dtype_values(x->dtype_a) > 1) {
		add_packed(x, set, a, b);
		return;
	}
	for (uint64_t i = 0; i < set->numel; i += BLOCK)
		add_block(x, set, i, (uint32_t)MIN((uint64_t)BLOCK, set->numel - i),
			  a + i * bytes_a, b + i * bytes_b);
	x->count += set->numel;
}
