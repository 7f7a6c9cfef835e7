/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - table x table -> operations. Save, restore, reshard and verify are the same question: for every element that the destination wants, where does the source
 * have it? An operation is one source piece against one destination piece of the same tensor; its rows are enumerated on the fly in ascending source
 * offset and never all materialised.
 */
#ifndef CKPT_PLAN_PLAN_H
#define CKPT_PLAN_PLAN_H
#include "ckpt/base/error.h"
#include "ckpt/table/table.h"

struct plan_op {
	uint32_t src_piece, dst_piece;  /* in their tables */
	uint32_t src_place, dst_place;
	uint64_t bytes;
	uint64_t src_lo, src_hi;        /* the bytes of the source place that it touches lie in [lo, hi) */
};

struct plan {
	const struct table *src, *dst;  /* must outlive the plan */
	struct arena arena;
	uint64_t nop, bytes;
	struct plan_op *op;             /* sorted by (src_place, src_lo) */
	uint32_t ntensor, nmissing;     /* destination tensors planned; left out because the source lacks them (lenient) */
};

struct plan_opts {
	const char *only;               /* this component only; NULL: all */
	bool lenient;                   /* tensors that the source lacks are left out */
	bool memory_blobs;              /* match TENSOR_BLOBs too (snapshots); else blobs are skipped (restore) */
};

/*
 * Plan src -> dst (both sealed). Tensors match by (component, name, rank). Every mismatch - missing, other dtype, other shape, elements that no source piece
 * has - is a line in the list, all at once, and then nothing is planned: -EMEDIUMTYPE. Where several source pieces hold an element, exactly one is used.
 * CKPT_SINKs are planned in dst like others.
 */
int plan_make(const struct table *src, const struct table *dst, const struct plan_opts *opts, struct plan *ret_plan, struct ckpt_errlist *ret_list,
	      struct ckpt_err *err);
void plan_free(struct plan *p);

/* A row: len bytes contiguous in both places; or, when elem != 0, n elements of elem bytes with byte strides (non-row-major memory). */
struct plan_row {
	uint64_t src_off, dst_off, len;
	uint32_t elem;                  /* 0: contiguous */
	uint64_t n, src_stride, dst_stride;
};

/* Enumerates the rows of one operation; ascending in src_off when the source piece is row-major. Plain data: copy it to remember a position. */
struct plan_cursor {
	const struct plan *plan;
	const struct plan_op *op;
	uint32_t depth;                                 /* private from here */
	uint32_t ndim;
	uint32_t elem;
	bool done;
	struct indices_cursor at[CKPT_DIMS_MAX];
	struct stretch cur[CKPT_DIMS_MAX];
	uint64_t in[CKPT_DIMS_MAX];                     /* position inside cur, for the outer dimensions */
	uint64_t src_stride[CKPT_DIMS_MAX], dst_stride[CKPT_DIMS_MAX];
};
void plan_rows(const struct plan *p, const struct plan_op *op, struct plan_cursor *ret_cursor);
bool plan_row_next(struct plan_cursor *c, struct plan_row *ret_row);
#endif
