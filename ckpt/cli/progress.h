/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - one line on stderr that says how far a long movement is. Only on a terminal;
 * nothing remains of it afterwards. */
#ifndef CKPT_CLI_PROGRESS_H
#define CKPT_CLI_PROGRESS_H
#include "ckpt/cli/screen.h"

struct progress {
	FILE *f; /* NULL: silent */
	const struct screen *screen;
	char what[80];
	uint64_t begin_ns, shown_ns, done, total;
};

/* total: bytes; 0: unknown. quiet: say nothing. */
void progress_begin(struct progress *p, FILE *err, const struct screen *screen, bool quiet,
		    uint64_t total, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
int progress_tick(void *arg,
		  uint64_t done); /* a move_tick_fn: arg is the struct progress; always 0 */
/* Wipe the line. Returns bytes per second since the beginning. */
double progress_end(struct progress *p);
#endif
