/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - how far a long movement is, on stderr for people (a bar with rate and time left on a
 * terminal, which leaves nothing behind; elsewhere a line every 10 %), as a JSON line on stdout for
 * programs. The verb's document must have begun (output_ops.begin), so that the lines bear its schema.
 */
#ifndef CKPT_CLI_PROGRESS_H
#define CKPT_CLI_PROGRESS_H
#include "ckpt/cli/cli.h"

struct progress {
	struct cli *c;
	char what[80];
	uint64_t begin_ns, shown_ns, done, total, before;
	uint32_t tenths; /* told so far, where it is no terminal */
};

/* total: bytes; 0: unknown. With --quiet nothing is said; interrupts are still heard. */
void progress_begin(struct progress *p, struct cli *c, uint64_t total, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Bytes of the total that an earlier run has done: they count as done, not in the rate. */
void progress_skip(struct progress *p, uint64_t bytes);
/* A move_tick_fn: arg is the struct progress. != 0 when the process was asked to stop. */
int progress_tick(void *arg, uint64_t done);
/* Wipe the line. Returns bytes per second since the beginning. */
double progress_end(struct progress *p);
#endif
