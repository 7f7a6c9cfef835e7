/* SPDX-License-Identifier: Apache-2.0 */
/* average_put.h - the averages of a checkpoint in the JSON of ema and show. */
#ifndef CKPT_CLI_AVERAGE_PUT_H
#define CKPT_CLI_AVERAGE_PUT_H
#include "ckpt/cli/cli.h"
#include "ckpt/engine/average_seen.h"

/* For programs: the list "averages" of them, with a list "rules" in each row. People get
 * nothing. */
void averages_put(struct output *o, const struct checkpoint *k, const struct average_seen *x,
		  uint32_t n);
#endif
