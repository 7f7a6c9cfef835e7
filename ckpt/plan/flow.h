/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow.h - how much each rank takes of what each rank wrote: bytes from old ranks (rows) to new
 * ones (columns). Filled from plans as they come, a few ranks at a time, so that no plan of all
 * ranks is ever needed.
 *
 * Memory is bounded: where there are more pairs of ranks than cells, neighbouring ranks are put
 * together, equally many in each block but perhaps fewer in the last one. No byte is lost by that.
 */
#ifndef CKPT_PLAN_FLOW_H
#define CKPT_PLAN_FLOW_H
#include "ckpt/plan/plan.h"

#define FLOW_CELLS_MAX (1u << 16)

struct flow {
	uint32_t nfrom, nto; /* ranks */
	uint32_t from_block,
		to_block; /* ranks that a row, a column stands for; the last: the rest */
	uint32_t nrow, ncol;
	uint64_t *cell; /* [nrow][ncol] */
};

/* nfrom, nto: not 0. -ENOMEM. */
int flow_begin(struct flow *f, uint32_t nfrom, uint32_t nto);
void flow_free(struct flow *f);
void flow_add(struct flow *f, uint32_t from, uint32_t to, uint64_t bytes);
/*
 * All that a plan reads, operands of reductions too. from_of: the rank of each source place. The
 * plan's destination places are the new ranks from first_to on.
 */
void flow_add_plan(struct flow *f, const struct plan *p, const uint32_t *from_of,
		   uint32_t first_to);

/* The same with at most so many rows and columns (not 0). -ENOMEM. */
int flow_group(const struct flow *f, uint32_t rows, uint32_t cols, struct flow *ret);

static inline uint64_t flow_at(const struct flow *f, uint32_t row, uint32_t col)
{
	return f->cell[(size_t)row * f->ncol + col];
}
uint64_t flow_row(const struct flow *f, uint32_t row); /* added up */
uint64_t flow_col(const struct flow *f, uint32_t col);
uint64_t flow_all(const struct flow *f);
uint64_t flow_most(const struct flow *f); /* of the fullest cell */
#endif
