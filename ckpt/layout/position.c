/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position.c - between an index and its number in an index list, to turn offsets of a
 * piece into indices and back.
 * Invariant: no overflow, as every list lies below 2^63 and has passed indices_check.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include "ckpt/layout/run_builder.h"

uint64_t indices_below(const struct indices *x, uint64_t index)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < x->n && x->run[i].start < index; i++)
		n += run_below(&x->run[i], index);
	return n;
}

uint64_t indices_at(const struct indices *x, uint64_t position)
{
	const struct run *r = x->run;

	assert(position < x->total);
	for (; position >= run_total(r); r++)
		position -= run_total(r);
	return r->start + position / r->len * r->stride + position % r->len;
}

uint64_t indices_runs(const struct indices *x)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < x->n; i++)
		n += x->run[i].count;
	return n;
}
