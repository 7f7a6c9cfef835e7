/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position.c - index to position and back, for the planner and the mover.
 * Invariant: no overflow, as every list lies below 2^63 and has passed indices_check.
 */
#include "ckpt/plan/position.h"
#include "ckpt/base/util.h"

uint64_t position_below(const struct indices *x, uint64_t index)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < x->n && x->run[i].start < index; i++) {
		const struct run *r = &x->run[i];
		uint64_t rel = index - r->start, rep = rel / r->stride;

		if (rep >= r->count)
			n += r->len * r->count;
		else
			n += rep * r->len + MIN(rel % r->stride, r->len);
	}
	return n;
}

uint64_t position_index(const struct indices *x, uint64_t position)
{
	const struct run *r = x->run;

	assert(position < x->total);
	for (; position >= r->len * r->count; r++)
		position -= r->len * r->count;
	return r->start + position / r->len * r->stride + position % r->len;
}

uint64_t position_lo(const struct indices *x)
{
	return x->run[0].start;
}

uint64_t position_hi(const struct indices *x)
{
	const struct run *r = &x->run[x->n - 1];

	return r->start + (r->count - 1) * r->stride + r->len;
}
