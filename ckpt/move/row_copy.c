/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_copy.c - the inner loops of every movement into memory. Called by move_copy and move_read.
 * Invariant: writes the row's destination bytes and no others.
 */
#include "ckpt/move/row_copy.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/util.h"
#include "ckpt/move/round.h"

#define BLOCK 256u /* elements that are rounded on the way: they stay in the L1 cache */

/* One loop per element size, so that each element is one load and one store. */
#define STRIDED(bytes)                                               \
	case bytes:                                                  \
		for (; n > 0; n--, d += dst_stride, s += src_stride) \
			memcpy(d, s, bytes);                         \
		return

static void copy_strided(uint8_t *d, uint64_t dst_stride, const uint8_t *s, uint64_t src_stride,
			 uint32_t elem, uint64_t n)
{
	switch (elem) {
		STRIDED(1);
		STRIDED(2);
		STRIDED(4);
		STRIDED(8);
		STRIDED(16);
	}
	for (; n > 0; n--, d += dst_stride, s += src_stride)
		memcpy(d, s, elem);
}

/* n elements of a row that is rounded: dense ones at once, others as many as a buffer takes. */
static void round_strided(const struct plan_row *r, const uint8_t *s, uint8_t *d, uint64_t n)
{
	float wide[BLOCK];
	uint16_t narrow[BLOCK];

	if (r->src_stride == sizeof *wide && r->dst_stride == sizeof *narrow) {
		round_f32(r->round, s, d, n);
		return;
	}
	for (uint64_t at = 0, m; at < n; at += m) {
		m = MIN(n - at, (uint64_t)BLOCK);
		copy_strided((uint8_t *)wide, sizeof *wide, s + at * r->src_stride, r->src_stride,
			     sizeof *wide, m);
		round_f32(r->round, wide, narrow, m);
		copy_strided(d + at * r->dst_stride, r->dst_stride, (const uint8_t *)narrow,
			     sizeof *narrow, sizeof *narrow, m);
	}
}

void row_copy(const struct plan_row *r, uint64_t from, uint64_t to, const void *src_base,
	      void *dst_base)
{
	const uint8_t *s = (const uint8_t *)src_base + r->src_off;
	uint8_t *d = (uint8_t *)dst_base + r->dst_off;
	uint64_t i;

	if (!r->elem) {
		copy_stream(d + from, s + from, to - from);
		return;
	}
	i = from / r->elem;
	if (r->round) {
		round_strided(r, s + i * r->src_stride, d + i * r->dst_stride,
			      (to - from) / r->elem);
		return;
	}
	copy_strided(d + i * r->dst_stride, r->dst_stride, s + i * r->src_stride, r->src_stride,
		     r->elem, (to - from) / r->elem);
}

/* One element, of which the window may have a part only. */
static uint64_t element_window(const struct plan_row *r, uint64_t i, const uint8_t *window,
			       uint64_t lo, uint64_t hi, uint8_t *dst_base)
{
	uint64_t at = r->src_off + i * r->src_stride, from = MAX(at, lo),
		 to = MIN(at + r->elem, hi);

	if (from >= to)
		return 0;
	memcpy(dst_base + r->dst_off + i * r->dst_stride + (from - at), window + (from - lo),
	       to - from);
	return to - from;
}

/* Whole elements alone: one that the window's bound cuts is in no window, and will be missed. */
static uint64_t round_window(const struct plan_row *r, const uint8_t *window, uint64_t lo,
			     uint64_t hi, uint8_t *dst_base)
{
	uint64_t step = r->src_stride, i = 0, n = r->n;

	if (r->src_off + sizeof(float) > hi || (!step && r->src_off < lo))
		return 0;
	if (r->src_off < lo)
		i = div_up(lo - r->src_off, step);
	if (step)
		n = MIN(n, (hi - sizeof(float) - r->src_off) / step + 1);
	if (i >= n)
		return 0;
	round_strided(r, window + (r->src_off + i * r->src_stride - lo),
		      dst_base + r->dst_off + i * r->dst_stride, n - i);
	return (n - i) * r->elem;
}

uint64_t row_copy_window(const struct plan_row *r, const void *window, uint64_t lo, uint64_t hi,
			 void *dst_base)
{
	const uint8_t *w = window;
	uint64_t i = 0, n, moved = 0;

	if (!r->elem) {
		uint64_t from = MAX(r->src_off, lo), to = MIN(r->src_off + r->len, hi);

		if (from >= to)
			return 0;
		copy_stream((uint8_t *)dst_base + r->dst_off + (from - r->src_off), w + (from - lo),
			    to - from);
		return to - from;
	}
	if (r->round)
		return round_window(r, w, lo, hi, dst_base);
	if (r->src_off >= hi)
		return 0;
	if (!r->src_stride) {
		for (; i < r->n; i++)
			moved += element_window(r, i, w, lo, hi, dst_base);
		return moved;
	}
	if (r->src_off < lo)
		i = MIN((lo - r->src_off) / r->src_stride, r->n);
	/* Elements i..n-1 begin below hi; only the first and the last of them can be cut. */
	n = MIN(r->n, (hi - 1 - r->src_off) / r->src_stride + 1);
	for (; i < n && r->src_off + i * r->src_stride < lo; i++)
		moved += element_window(r, i, w, lo, hi, dst_base);
	for (; n > i && r->src_off + (n - 1) * r->src_stride + r->elem > hi; n--)
		moved += element_window(r, n - 1, w, lo, hi, dst_base);
	if (i < n)
		copy_strided((uint8_t *)dst_base + r->dst_off + i * r->dst_stride, r->dst_stride,
			     w + (r->src_off + i * r->src_stride - lo), r->src_stride, r->elem,
			     n - i);
	return moved + (n - i) * r->elem;
}
