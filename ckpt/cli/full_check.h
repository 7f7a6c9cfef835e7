/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full_check.h - is every byte of a step what was committed? For verbs that act on the answer: what
 * is deleted, released or built anew depends on it.
 */
#ifndef CKPT_CLI_FULL_CHECK_H
#define CKPT_CLI_FULL_CHECK_H
#include "ckpt/cli/cli.h"
#include "ckpt/engine/verify.h"

/* engine_check (engine/verify.h) of the step directory behind step_fd, which stays the caller's,
 * with progress as verify --data has it. ret may be NULL. */
int full_check(struct cli *c, int step_fd, const char *path, struct engine_checked *ret,
	       struct ckpt_err *err);
#endif
