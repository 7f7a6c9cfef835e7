/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_reduce.h - what a redistribution that has to do with pending reductions leaves on every
 * rank: the values, computed.
 *
 * A mesh dimension that is P(op) in src and not in dst is reduced; one that is the same P(op) in
 * both keeps its operands apart; S(d) in src and P(sum) in dst puts each rank's elements among
 * zeros.
 * Nothing else becomes a partial: R, _S and another P are refused, as DTensor does. Everything else
 * is cut as dst says.
 */
#ifndef CKPT_ANSWER_ANSWER_REDUCE_H
#define CKPT_ANSWER_ANSWER_REDUCE_H
#include "ckpt/answer/answer.h"

/* q of kind ASK_REDUCE. -EINVAL, -EOPNOTSUPP, -E2BIG, -ENOMEM with the sentence, and then nothing
 * was written. */
int answer_reduction(struct answer *a, const struct question *q, struct arena *arena,
		     struct ckpt_err *err);
#endif
