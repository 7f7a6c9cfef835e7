/* SPDX-License-Identifier: Apache-2.0 */
/* casts.h - which dtypes convert and export write: those of --dtype and of a view's casts. */
#ifndef CKPT_CLI_CASTS_H
#define CKPT_CLI_CASTS_H
#include "ckpt/cli/cli.h"
#include "ckpt/cli/view_file.h"

/*
 * The target's tensors, which are the view's, get the dtypes that the view casts them to, and all
 * other floats that of --dtype. *ret_any: some are cast. Returns an exit code; what went wrong has
 * been told: --dtype cannot cast floats of 8 and 4 bits (7).
 */
int casts_apply(struct cli *c, const struct view_file *v, struct table *target, bool *ret_any);
/* Tell people how many elements became infinite, if any did. */
void casts_tell_overflow(struct cli *c, uint64_t n);
#endif
