/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_reduce.h - what a plan makes of operands rather than copies: pending reductions
 * (CKPT_PARTIAL in the source), the local shard in a tensor of zeros (a SHARD that the destination
 * declares as a PARTIAL sum), and casts. For ckpt/plan and the mover.
 *
 * Rules, as torch redistributes. A source PARTIAL mesh dimension that the destination declares
 * PARTIAL too, by name, with the same reduction and size, stays what it is: each coordinate gets
 * its own operand. All others are reduced, in the order of the operands (table/operand.h), whatever
 * the destination's mesh is. A mesh dimension that the destination alone declares PARTIAL must be a
 * plain SHARD of the same size in the source, and the reduction SUM. All else is refused.
 *
 * Windows over `want` bound the memory: for each, operand 0, 1, .. of its elements are fetched by
 * plan_operand, one after the other, and what has become of them goes to the destinations by
 * plan_result.
 */
#ifndef CKPT_PLAN_PLAN_REDUCE_H
#define CKPT_PLAN_PLAN_REDUCE_H
#include "ckpt/plan/plan.h"
#include "ckpt/plan/window.h"

/* One tensor's elements for destination pieces that want the same operands. */
struct plan_sum {
	uint32_t src_tensor, dst_tensor;
	uint32_t n; /* operands of an element */
	uint32_t op,
		divisor; /* of enum ckpt_reduce: SUM and AVG together are AVG; of what is summed */
	bool zeros;	 /* elements that no source piece has for this are zero */
	uint32_t dtype, to; /* of the operands; of the destination */
	uint32_t npiece;
	const uint32_t *piece; /* destination pieces */
};

struct plan_reduced {
	uint32_t nsum, most; /* most: operands that any of them has */
	const struct plan_sum *sum;
	uint64_t bytes; /* of all operands, as plan_operand moves them */
	/* What is read for it, operand by operand: of the plan's two tables, sorted as plan.op is.
	 * Not to be copied. */
	uint64_t nop;
	struct plan_op *op;
	/* Tensor i is what sum[i] makes, of its dtype; pieces are row-major, each set once. */
	struct table want;
	struct table *operand; /* [most] tensor i: the pieces with that operand of sum[i]; the
				* places are the source's; a piece's fp is its number there */
};

/* Operand k of a window of want, from the source's places to the window's buffer. No operation for
 * sums that have no operand k. */
int plan_operand(const struct plan *p, const struct window *w, uint32_t k, struct plan *ret,
		 struct ckpt_err *err);
/*
 * What has been made of a window of want, cut i at off[i] of a buffer of so many bytes, to the
 * plan's destination. ret_table, which the caller frees behind the plan, is the plan's source.
 */
int plan_result(const struct plan *p, const struct window *w, const uint64_t *off, uint64_t bytes,
		struct table *ret_table, struct plan *ret, struct ckpt_err *err);
/* Which sum a window's cut belongs to. */
const struct plan_sum *plan_sum_of(const struct plan *p, const struct window_cut *cut);

/* The rule above for one mesh dimension: why what is placed as `from` (NULL: replicated) does not
 * become an operand as `to` declares it, which is PARTIAL. NULL: it does. */
const char *plan_why_not_partial(const struct ckpt_placement *from,
				 const struct ckpt_placement *to);

/* --- for plan.c --- */

struct op_list;
struct reducing;
int reducing_open(struct plan *p, struct reducing **ret); /* -ENOMEM */
void reducing_close(struct reducing *r);		  /* NULL is fine */
/*
 * 1: the tensor is one of these, and planned (what is copied after all is in ops), or refused by
 * lines in the list; 0: it is not, plan it; -ENOMEM, -E2BIG.
 */
int reducing_tensor(struct reducing *r, uint32_t src_tensor, uint32_t dst_tensor,
		    struct op_list *ops, struct ckpt_errlist *list);
/* Fills plan.reduced, or leaves it NULL; missing elements are lines in the list. */
int reducing_end(struct reducing *r, struct ckpt_errlist *list, struct ckpt_err *err);
/* Can elements of the one type become the other's? */
bool plan_casts(uint32_t from, uint32_t to);
#endif
