/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_reduce.h - the part of a plan that is made of operands (plan/plan_reduce.h), carried out in
 * bounded memory, whatever moves the bytes. For ckpt/move only.
 *
 * Per window: each operand is moved to a buffer and taken into accumulators, in the order of the
 * operands; then reduced, cast, and copied to its destinations.
 */
#ifndef CKPT_MOVE_MOVE_REDUCE_H
#define CKPT_MOVE_MOVE_REDUCE_H
#include "ckpt/plan/plan_reduce.h"

/* Carry out a plan without reductions; ticks and errors are its own. */
typedef int reduce_move_fn(void *arg, const struct plan *p, void *const *dst_base,
			   struct ckpt_err *err);

/* Can all of it be done? Asked before the first byte is written. dst_base as move_read has it.
 * -EOPNOTSUPP, -EINVAL. */
int reduce_check(const struct plan *p, void *const *dst_base, struct ckpt_err *err);
/* bytes_max: of all buffers (0: what is fast); a few elements are held whatever it is. */
int reduce_run(const struct plan *p, uint64_t bytes_max, void *const *dst_base,
	       reduce_move_fn *move, void *arg, struct ckpt_err *err);
#endif
