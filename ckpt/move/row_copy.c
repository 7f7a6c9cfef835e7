/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_copy.c - the inner loops of every movement into memory. Called by move_copy and move_read.
 * Invariant: writes the row's destination bytes and no others.
 */
#include "ckpt/move/row_copy.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/util.h"

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
