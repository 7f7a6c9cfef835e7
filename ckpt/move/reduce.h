/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h - pending reductions (CKPT_PARTIAL) carried out: the operands of an element become one
 * value. Floats of fewer than 32 bits are added up as F32 and rounded once, to nearest even;
 * operands come in a fixed order, so the result does not depend on who reads what first.
 */
#ifndef CKPT_MOVE_REDUCE_H
#define CKPT_MOVE_REDUCE_H
#include "ckpt/base/error.h"
#include <stdint.h>

/*
 * How one tensor's operands become one: op of enum ckpt_reduce; SUM and AVG together are a SUM over
 * all, divided by `divisor`, the product of the sizes of the AVG mesh dimensions (1: none).
 */
struct reduction {
	uint32_t op, dtype, divisor;
};

/* -EOPNOTSUPP with the reason: what has no such reduction (AVG of integers, anything of F8 or BOOL,
 * MIN and MAX of complex numbers). */
int reduction_check(const struct reduction *r, struct ckpt_err *err);
/* acc: n accumulators of reduction_acc_bytes each. The first operand begins them. */
uint32_t reduction_acc_bytes(const struct reduction *r);
void reduction_begin(const struct reduction *r, void *acc, const void *x, uint64_t n);
void reduction_add(const struct reduction *r, void *acc, const void *x, uint64_t n);
/* To elements of the dtype; out may be acc. */
void reduction_end(const struct reduction *r, const void *acc, void *out, uint64_t n);
#endif
