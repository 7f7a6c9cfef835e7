/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.h - a table cut into windows, so that what does not fit into memory can pass through it:
 * each window is a table of its own that lies in one buffer.
 *
 * Windows follow the tensors in the order of their numbers, and inside a tensor the indices of its
 * first dimension (inside one such index the next dimension, ...), for all places at once. So a
 * source is read once whatever the two meshes are, and every place whose pieces are row-major and
 * lie in the order of the tensors is delivered front to back, without gaps inside a piece.
 * The cut depends on the table and the limit alone: window i is the same in every run.
 */
#ifndef CKPT_PLAN_WINDOW_H
#define CKPT_PLAN_WINDOW_H
#include "ckpt/table/table.h"

/* Bytes [dst_off, + len) of a place, which are elements of one piece and lie row-major at
 * buf_off. */
struct window_cut {
	uint32_t place, piece; /* of the table that is cut */
	uint64_t dst_off, buf_off, len;
	struct indexset set; /* the elements */
};

struct window {
	uint64_t number;
	/* Sealed; one place of `bytes` bytes, a piece per cut; to be planned as a destination. */
	struct table table;
	uint64_t bytes;
	uint32_t ncut;
	const struct window_cut *cut; /* sorted by (place, dst_off); in table.arena */
};

struct windows;
/*
 * dst: sealed, its pieces row-major; must outlive the windows. bytes_max: of a window's buffer; at
 * least one element fits. -EINVAL: a piece is not row-major; -ENOMEM.
 */
int windows_open(const struct table *dst, uint64_t bytes_max, struct windows **ret,
		 struct ckpt_err *err);
/* The next one: 1, 0 at the end, -ENOMEM, -E2BIG. The caller frees it with window_free. */
int windows_next(struct windows *w, struct window *ret, struct ckpt_err *err);
/* Pass n windows by without making them. */
int windows_skip(struct windows *w, uint64_t n, struct ckpt_err *err);
void windows_close(struct windows *w); /* NULL is fine */
void window_free(struct window *w);
#endif
