/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_copy.c - memory to memory: the snapshot's copy, and restore from staged memory. Invariant:
 * what is only copied needs no allocation, no lock, no system call; the owner is asked about every
 * MOVE_BLOCK bytes, also inside one long row.
 */
#include "ckpt/move/move.h"
#include "ckpt/move/move_reduce.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/row_copy.h"

static int row_paced(const struct plan_row *r, const void *src, void *dst, struct pace *p)
{
	uint64_t at = 0;
	int e = 0;

	while (at < r->len && e == 0) {
		uint64_t n = MIN(r->len - at, MOVE_BLOCK - p->done);

		if (r->elem && n < r->len - at)
			n = MAX(n / r->elem, 1u) * r->elem;
		row_copy(r, at, at + n, src, dst);
		at += n;
		e = pace_add(p, n);
	}
	return e;
}

static int copy_all(const struct plan *p, const void *const *src_base, void *const *dst_base,
		    struct pace *pace)
{
	struct plan_cursor c;
	struct plan_row r;
	int e;

	for (uint64_t i = 0; i < p->nop; i++) {
		const struct plan_op *op = &p->op[i];

		plan_rows(p, op, &c);
		while (plan_row_next(&c, &r)) {
			e = row_paced(&r, src_base[op->src_place], dst_base[op->dst_place], pace);
			if (e < 0)
				return e;
		}
	}
	return 0;
}

/* --- what is made of operands --- */

struct copying {
	const void *const *src_base;
	struct pace *pace;
};

static int copy_operand(void *arg, const struct plan *p, void *const *dst_base,
			struct ckpt_err *err)
{
	const struct copying *c = arg;

	(void)err;
	return copy_all(p, c->src_base, dst_base, c->pace);
}

static int reduce_all(const struct plan *p, const void *const *src_base, void *const *dst_base,
		      struct pace *pace)
{
	struct copying c = { src_base, pace };
	const struct plan_reduced *x = p->reduced;
	int e = reduce_check(p, dst_base, NULL);

	for (uint64_t i = 0; i < x->nop && !e; i++)
		e = src_base[x->op[i].src_place] ? 0 : -EINVAL;
	return e ? e : reduce_run(p, 0, dst_base, copy_operand, &c, NULL);
}

int move_copy(const struct plan *p, const void *const *src_base, void *const *dst_base,
	      move_tick_fn *tick, void *arg)
{
	struct pace pace = { .tick = tick, .arg = arg };
	int e = 0;

	for (uint64_t i = 0; i < p->nop; i++)
		if (!src_base[p->op[i].src_place] || !dst_base[p->op[i].dst_place])
			return -EINVAL;
	if (p->reduced)
		e = reduce_all(p, src_base, dst_base, &pace);
	if (!e)
		e = copy_all(p, src_base, dst_base, &pace);
	return e < 0 ? e : pace_end(&pace);
}
