/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - how far a long movement is, through the output: for people on stderr a bar with rate
 * and time left on a terminal, which leaves nothing behind, and elsewhere (a pipe, a file,
 * TERM=dumb) a line a minute; for programs a line on stdout at most once a
 * second, and whenever another 10 % are done:
 *
 *	{"schema": "ckptd.VERB/1", "type": "progress", "percent_done": 50.0, "bytes_done": 5,
 *	 "bytes_total": 10, "bytes_per_second": 1, "seconds_remaining": 5, "what": "step 90"}
 *
 * Where the total is unknown, percent_done, bytes_total and seconds_remaining are null. The verb
 * has begun its document by output_line(o, schema, "summary"): in a document of output_begin
 * programs see no progress. SIGUSR1 asks for a line at once, also with --quiet, and stays a line on
 * a terminal.
 */
#ifndef CKPT_CLI_PROGRESS_H
#define CKPT_CLI_PROGRESS_H
#include "ckpt/cli/cli.h"

struct progress {
	struct cli *c;
	char what[80];
	uint64_t begin_ns, shown_ns, done, total, before;
	uint32_t tenths; /* of the total that were done when it was last shown */
	bool drawn;	 /* there may be a bar to wipe */
};

/* What time it is: now_ns, or the clock of a test. */
extern uint64_t (*progress_clock)(void);

/* total: bytes; 0: unknown. With --quiet nothing is said unasked; interrupts are still heard. */
void progress_begin(struct progress *p, struct cli *c, uint64_t total, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Bytes of the total that an earlier run has done: they count as done, not in the rate. */
void progress_skip(struct progress *p, uint64_t bytes);
/* A move_tick_fn: arg is the struct progress. != 0 when the process was asked to stop. */
int progress_tick(void *arg, uint64_t done);
/* Wipe the line. Returns bytes per second since the beginning. */
double progress_end(struct progress *p);
#endif
