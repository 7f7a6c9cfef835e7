/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_step.h - a step that the daemon holds in memory, as a checkpoint on disk for as long as it
 * is read. For export --from-memory.
 *
 * The daemon writes the job's newest staged step, as it writes every step, to a temporary directory
 * (DRAIN with WIRE_TO and WIRE_COPY): so what is read has all its sums, and is checked as any
 * checkpoint is. It is not counted as saved: nothing changes for the job, and memory holds the step
 * as before.
 */
#ifndef CKPT_CLI_MEMORY_STEP_H
#define CKPT_CLI_MEMORY_STEP_H
#include "ckpt/cli/cli.h"
#include <limits.h>

struct memory_step {
	char dir[PATH_MAX];  /* the temporary one; "": there is none */
	char path[PATH_MAX]; /* of the step in it */
};

/*
 * name: "latest", a step's number, or one of these behind JOB@ (--job is not taken). beside: the
 * directory that the temporary one is made in. Returns an exit code; after the error was printed:
 * 2 name, or several jobs; 10 no such job, or the step is not in memory; 11 another drain; 14, 15
 * no daemon, or it is silent; or by why the step could not be written. memory_step_drop in any
 * case.
 */
int memory_step_get(struct cli *c, const char *name, const char *beside, struct memory_step *ret);
void memory_step_drop(struct memory_step *m);
#endif
