/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_partial.h - what a redistribution that has to do with pending reductions leaves on every
 * rank: the values, computed.
 *
 * A mesh dimension that is P(op) in src and not in dst is reduced; one that is the same P(op) in
 * both keeps its operands apart; S(d) in src and P(sum) in dst puts each rank's elements among
 * zeros.
 * Nothing else becomes a partial: R, _S and another P are refused, as DTensor does. Everything else
 * is cut as dst says.
 */
#ifndef CKPT_CLI_LAYOUT_PARTIAL_H
#define CKPT_CLI_LAYOUT_PARTIAL_H
#include "ckpt/cli/layout_answer.h"

/* q of kind ASK_REDUCE. -EINVAL, -EOPNOTSUPP, -E2BIG, -ENOMEM with the sentence, and then nothing
 * was written. */
int partial_answer(struct answer *a, const struct question *q, struct arena *arena,
		   struct ckpt_err *err);
#endif
