/* SPDX-License-Identifier: Apache-2.0 */
/* verb_convert.h - what convert and export have in common. */
#ifndef CKPT_CLI_VERB_CONVERT_H
#define CKPT_CLI_VERB_CONVERT_H
#include "ckpt/base/error.h"
#include "ckpt/cli/cli.h"
#include "ckpt/table/table.h"

/* The verb convert, with the options of c, also those that only export offers. Returns the exit
 * code. */
int convert_run(struct cli *c);
/* --dtype: the tensors of the target that can be cast get this one; 0: none. */
void convert_cast(uint32_t dtype, struct table *target);
/* What the format cannot hold, line by line. */
void convert_cannot_say(struct cli *c, const struct ckpt_errlist *cannot);
#endif
