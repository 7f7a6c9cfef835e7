/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_steps.h - ckptctl plan --steps: one tensor from one layout to another on the same mesh
 * (ckpt/redist/redistribute.h), without any checkpoint: the cheapest steps, what PyTorch would do,
 * and the drawing (ckpt/draw/steps_draw.h).
 */
#ifndef CKPT_CLI_PLAN_STEPS_H
#define CKPT_CLI_PLAN_STEPS_H
#include "ckpt/cli/cli.h"

/* Are the options of `plan` of one kind, with --steps or without? CLI_OK; CLI_USAGE, after the
 * error was printed. */
int plan_steps_check(struct cli *c);
/* Of a verb whose options have --steps and passed. Returns an exit code. */
int plan_steps_run(struct cli *c);
#endif
