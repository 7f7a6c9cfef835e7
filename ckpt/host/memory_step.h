/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_step.h - a step that the daemon of this host holds in memory, as a checkpoint on disk for
 * as long as it is read. For export --from-memory.
 *
 * The daemon writes the job's newest staged step, as it writes every step, to a temporary directory
 * (DRAIN with WIRE_TO and WIRE_COPY): so what is read has all its sums, and is checked as any
 * checkpoint is. It is not counted as saved: nothing changes for the job, and memory holds the step
 * as before.
 */
#ifndef CKPT_HOST_MEMORY_STEP_H
#define CKPT_HOST_MEMORY_STEP_H
#include "ckpt/io/io.h"
#include "ckpt/store/address.h"
#include "ckpt/wire/control.h"
#include <limits.h>

struct format;

struct memory_ask {
	const struct io_ops *ops;
	const struct format *format; /* what stores are made of */
	struct control *k;	     /* open */
	struct address step;	     /* the newest, or a number; of which job, if job is not "" */
	const char *beside;	     /* the directory that the temporary one is made in */
	void (*pause)(uint64_t ns);  /* sleeps, unless the process is asked to stop */
};

struct memory_step {
	char dir[PATH_MAX];  /* the temporary one; "": there is none */
	char path[PATH_MAX]; /* of the step in it */
};

/* -ENOENT: no such job, or the step is not in memory; -EBUSY: another drain; what control_call
 * says; or why the step could not be written. memory_step_drop in any case. */
int memory_step_write(const struct memory_ask *q, struct memory_step *ret, struct ckpt_err *err);
void memory_step_drop(struct memory_step *m);
#endif
