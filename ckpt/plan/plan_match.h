/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_match.h - which source pieces give a destination piece its elements. For ckpt/plan only.
 *
 * A match is one tensor's source pieces, made ready once and asked for every destination piece.
 */
#ifndef CKPT_PLAN_PLAN_MATCH_H
#define CKPT_PLAN_PLAN_MATCH_H
#include "ckpt/plan/plan.h"
#include "ckpt/table/piece_tree.h"

/* Operations in the making: malloc'ed, as they grow. */
struct op_list {
	struct plan_op *op;
	uint64_t n, cap;
};

struct match {
	const struct table *src;
	uint32_t first, n;	/* the tensor's pieces in src */
	bool disjoint;		/* no two of the pieces share an element */
	struct piece_tree tree; /* of the pieces */
	struct arena arena;	/* of one selection */
};

int match_begin(struct match *m, const struct table *src, uint32_t src_tensor); /* -ENOMEM */
void match_free(struct match *m);

/*
 * Append the operations for one destination piece; index sets that they need live in `keep`.
 * *ret_missing: elements that no source piece has; then first_missing[ndim] is the first of them,
 * in row-major order, and what was appended is incomplete. -ENOMEM, -E2BIG.
 */
int match_piece(struct match *m, const struct table *dst, uint32_t dst_piece, struct op_list *ops,
		struct arena *keep, uint64_t *ret_missing, uint64_t *first_missing);
/* The same, and what no source piece has is left out without a word. */
int match_some(struct match *m, const struct table *dst, uint32_t dst_piece, struct op_list *ops,
	       struct arena *keep);

/* Into the plan, in its order; adds up the bytes. -ENOMEM. In plan.c. */
int op_list_end(const struct op_list *l, struct arena *a, struct plan_op **ret_op,
		uint64_t *ret_nop, uint64_t *ret_bytes);
#endif
