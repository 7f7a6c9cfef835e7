/* SPDX-License-Identifier: Apache-2.0 */
/* from_memory.h - export --from-memory: the step that ckptd holds (host/memory_step.h). */
#ifndef CKPT_CLI_FROM_MEMORY_H
#define CKPT_CLI_FROM_MEMORY_H
#include "ckpt/cli/cli.h"
#include "ckpt/host/memory_step.h"

/*
 * name: "latest", a step's number, or one of these behind JOB@ (--job is not taken). Returns an
 * exit code, after the error was printed: 2 name, or several jobs; 10 no such job, or the step is
 * not in memory; 11 another drain; 14, 15 no daemon, or it is silent; or by why the step could not be
 * written. memory_step_drop in any case.
 */
int from_memory(struct cli *c, const char *name, const char *beside, struct memory_step *ret);
#endif
