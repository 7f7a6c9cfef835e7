/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow.c - adds bytes up by old and new rank. Called by load_cost, and where the matrix is drawn.
 * Invariant: the sum of all cells is the sum of all that was added, however ranks are grouped.
 */
#include "ckpt/plan/flow.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/plan_reduce.h"

#define SIDE_MAX 256u /* its square is FLOW_CELLS_MAX */

/* Ranks in a block, for at most `most` blocks. Nearly as few are taken where all come out equal. */
static uint32_t block_of(uint32_t n, uint32_t most)
{
	uint32_t least = (uint32_t)div_up(n, most);

	for (uint32_t b = least; b < 2 * least; b++)
		if (n % b == 0)
			return b;
	return least;
}

static int matrix_make(struct flow *f)
{
	f->nrow = (uint32_t)div_up(f->nfrom, f->from_block);
	f->ncol = (uint32_t)div_up(f->nto, f->to_block);
	f->cell = calloc((size_t)f->nrow * f->ncol, sizeof *f->cell);
	return f->cell ? 0 : -ENOMEM;
}

int flow_begin(struct flow *f, uint32_t nfrom, uint32_t nto)
{
	uint32_t rows = nfrom, cols = nto;

	assert(nfrom && nto);
	if ((uint64_t)nfrom * nto > FLOW_CELLS_MAX) {
		/* The shorter side stays whole while it can. */
		rows = nfrom <= SIDE_MAX ? nfrom : MAX(SIDE_MAX, FLOW_CELLS_MAX / nto);
		cols = nto <= SIDE_MAX ? nto : MAX(SIDE_MAX, FLOW_CELLS_MAX / nfrom);
	}
	*f = (struct flow){ .nfrom = nfrom, .nto = nto };
	f->from_block = block_of(nfrom, rows);
	f->to_block = block_of(nto, cols);
	return matrix_make(f);
}

void flow_free(struct flow *f)
{
	free(f->cell);
	*f = (struct flow){ .nfrom = 0 };
}

void flow_add(struct flow *f, uint32_t from, uint32_t to, uint64_t bytes)
{
	assert(from < f->nfrom && to < f->nto);
	f->cell[(size_t)(from / f->from_block) * f->ncol + to / f->to_block] += bytes;
}

static void add_ops(struct flow *f, const struct plan_op *op, uint64_t nop, const uint32_t *from_of,
		    uint32_t first_to)
{
	for (uint64_t i = 0; i < nop; i++)
		flow_add(f, from_of[op[i].src_place], first_to + op[i].dst_place, op[i].bytes);
}

void flow_add_plan(struct flow *f, const struct plan *p, const uint32_t *from_of, uint32_t first_to)
{
	add_ops(f, p->op, p->nop, from_of, first_to);
	if (p->reduced)
		add_ops(f, p->reduced->op, p->reduced->nop, from_of, first_to);
}

int flow_group(const struct flow *f, uint32_t rows, uint32_t cols, struct flow *ret)
{
	uint32_t down = block_of(f->nrow, rows), across = block_of(f->ncol, cols);
	int rc;

	*ret = (struct flow){ .nfrom = f->nfrom, .nto = f->nto };
	ret->from_block = f->from_block * down;
	ret->to_block = f->to_block * across;
	rc = matrix_make(ret);
	for (uint32_t i = 0; i < f->nrow && !rc; i++)
		for (uint32_t j = 0; j < f->ncol; j++)
			ret->cell[(size_t)(i / down) * ret->ncol + j / across] += flow_at(f, i, j);
	return rc;
}

uint64_t flow_row(const struct flow *f, uint32_t row)
{
	uint64_t sum = 0;

	for (uint32_t j = 0; j < f->ncol; j++)
		sum += flow_at(f, row, j);
	return sum;
}

uint64_t flow_col(const struct flow *f, uint32_t col)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < f->nrow; i++)
		sum += flow_at(f, i, col);
	return sum;
}

uint64_t flow_all(const struct flow *f)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < f->nrow; i++)
		sum += flow_row(f, i);
	return sum;
}

uint64_t flow_most(const struct flow *f)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < f->nrow * f->ncol; i++)
		most = MAX(most, f->cell[i]);
	return most;
}
