/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - table x table -> operations. Save, restore, reshard and verify are the same question:
 * for every element that the destination wants, where does the source have it? An operation is one
 * source piece against one destination piece of the same tensor; its rows are enumerated on the fly
 * in ascending source offset and never all materialised.
 *
 * A plan is immutable once made; any number of threads may enumerate its rows at once.
 */
#ifndef CKPT_PLAN_PLAN_H
#define CKPT_PLAN_PLAN_H
#include "ckpt/base/error.h"
#include "ckpt/table/table.h"

/* Products that one destination piece may fall into while overlapping sources are told apart. */
#define PLAN_RESTS_MAX 4096

struct plan_op {
	uint32_t src_piece, dst_piece; /* in their tables */
	uint32_t src_place, dst_place;
	uint64_t bytes;
	uint64_t src_lo, src_hi; /* the bytes of the source place that it touches lie in [lo, hi) */
	/* Just these elements of what the two pieces share; NULL: all of them. */
	const struct indexset *only;
	uint32_t round; /* see plan_row */
	/* Bit d: in dimension d both pieces hold the same indices, and all of them are taken. */
	uint32_t whole;
};

struct plan {
	const struct table *src, *dst; /* must outlive the plan */
	struct arena arena;
	uint64_t nop, bytes;	      /* bytes: of op and of reduced */
	struct plan_op *op;	      /* sorted by (src_place, src_lo) */
	struct plan_reduced *reduced; /* NULL: all of it is copied; else see plan_reduce.h */
	uint32_t ntensor;	      /* destination tensors planned */
	uint32_t nmissing;	      /* left out because the source lacks them (lenient) */
};

struct plan_opts {
	const char *only;  /* this component only; NULL: all */
	bool sinks;	   /* CKPT_SINKs of dst only */
	bool lenient;	   /* tensors that the source lacks are left out */
	bool memory_blobs; /* match TENSOR_BLOBs too (snapshots); else blobs are skipped (restore) */
	bool casts; /* floating-point types may differ: elements are rounded to nearest even */
	/* Called for each wanted tensor of dst that does not fit, once. text: its lines of the
	 * list; NULL: the source lacks the tensor (which is a line only where that is not
	 * lenient). */
	void (*differs)(void *arg, uint32_t dst_tensor, const char *text);
	void *differs_arg;
};

/*
 * Plan src -> dst (both sealed). Tensors match by (component, name, rank). Every mismatch -
 * missing, other dtype, other shape, elements that no source piece has - is a line in the list, all
 * at once, and then nothing is planned: -EMEDIUMTYPE. Where several source pieces hold an element,
 * exactly one is used: the first in the table's order. CKPT_SINKs are planned in dst like others.
 * Pending reductions of the source are carried out on the way (plan_reduce.h), or kept where the
 * destination declares the same.
 * opts NULL: the defaults; ret_list NULL: err only. -ENOMEM, -E2BIG.
 */
int plan_make(const struct table *src, const struct table *dst, const struct plan_opts *opts,
	      struct plan *ret_plan, struct ckpt_errlist *ret_list, struct ckpt_err *err);
void plan_free(struct plan *p);

/*
 * A row: len bytes contiguous in both places; or, when elem != 0, n elements of elem bytes each
 * with byte strides (non-row-major memory), len = n * elem. When round != 0, a dtype, the source
 * has F32 elements in their place, which are to be rounded to it (a DERIVED piece); elem is not 0
 * then.
 */
struct plan_row {
	uint64_t src_off, dst_off, len;
	uint32_t elem; /* 0: contiguous */
	uint32_t round;
	uint64_t n, src_stride, dst_stride;
};
/* Bytes of an element of such a row in the source; and of all, from the first to the last. */
static inline uint32_t plan_row_src_elem(const struct plan_row *r)
{
	return r->round ? (uint32_t)sizeof(float) : r->elem;
}
static inline uint64_t plan_row_src_bytes(const struct plan_row *r)
{
	return r->elem ? (r->n - 1) * r->src_stride + plan_row_src_elem(r) : r->len;
}

/* A dimension on the way; plan_rows.c's. */
struct plan_dim {
	struct indices_cursor at;
	struct stretch cur;
	uint64_t in;			 /* position inside cur, for the outer dimensions */
	uint64_t src_stride, dst_stride; /* bytes */
	uint64_t src_at, dst_at;	 /* offsets by the dimensions before this one */
};

/*
 * Enumerates the rows of one operation; ascending in src_off where plan_rows_ascend says so.
 * Plain data: copy it to remember a position. All of it is plan_rows.c's.
 */
struct plan_cursor {
	const struct plan_op *op;
	const struct table_piece *src, *dst;
	uint32_t nouter;	     /* dimensions that are walked index by index */
	uint32_t elem, one;	     /* one: bit d, dimension d is a single stretch */
	uint32_t src_elem, dst_elem; /* bytes of an element in either place */
	bool has_row, done;	     /* has_row: dimension nouter gives rows, one a stretch */
	uint64_t unit;		     /* elements of an index of the innermost walked dimension */
	uint64_t src_off;	     /* of the source piece */
	/* Behind the outer dimensions and that of the rows only the offsets are used. */
	struct plan_dim dim[CKPT_DIMS_MAX + 1];
};
void plan_rows(const struct plan *p, const struct plan_op *op, struct plan_cursor *ret_cursor);
/* The same, without the rows that end at or before src_off. Where plan_rows_ascend says no, rows
 * are in no order, and all of them come. */
void plan_rows_from(const struct plan *p, const struct plan_op *op, uint64_t src_off,
		    struct plan_cursor *ret_cursor);
bool plan_row_next(struct plan_cursor *c, struct plan_row *ret_row);
/* Do the rows of this operation come in ascending src_off? They do where the source piece is
 * row-major, or a box of what is. */
bool plan_rows_ascend(const struct plan *p, const struct plan_op *op);
#endif
