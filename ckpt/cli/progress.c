/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - when to say how far a movement is; the output says how. Called by verbs that read or
 * write much.
 * Invariant: a bar is drawn at most ten times a second; a line for people comes once a minute,
 * unless it was asked for.
 */
#include "ckpt/cli/progress.h"
#include "ckpt/base/util.h"
#include <stdarg.h>

#define BAR_NS (100 * NS_PER_MS) /* between two looks of the bar */
#define JSON_NS NS_PER_S	 /* between two lines for programs */
#define LINE_NS (60 * NS_PER_S)	 /* between two lines for people: a log is read, not watched */

uint64_t (*progress_clock)(void) = now_ns;

void progress_begin(struct progress *p, struct cli *c, uint64_t total, const char *fmt, ...)
{
	va_list ap;

	*p = (struct progress){ .c = c, .begin_ns = progress_clock(), .total = total };
	p->shown_ns = p->begin_ns;
	cli_asked = 0;
	va_start(ap, fmt);
	vsnprintf(p->what, sizeof p->what, fmt, ap);
	va_end(ap);
}

static uint32_t percent_tenths(const struct progress *p)
{
	return p->total ? (uint32_t)((double)MIN(p->done, p->total) / (double)p->total * 10) : 0;
}

void progress_skip(struct progress *p, uint64_t bytes)
{
	p->before += bytes;
	p->done += bytes;
	p->tenths = percent_tenths(p);
}

static double bytes_rate(const struct progress *p, uint64_t now)
{
	return now > p->begin_ns ? (double)(p->done - p->before) * (double)NS_PER_S /
					   (double)(now - p->begin_ns)
				 : 0;
}

static void progress_show(struct progress *p, uint64_t now, bool fleeting)
{
	struct output_progress x = { .what = p->what,
				     .done = p->total ? MIN(p->done, p->total) : p->done,
				     .total = p->total,
				     .rate = bytes_rate(p, now),
				     .seconds_left = UINT64_MAX,
				     .fleeting = fleeting };

	if (p->total && x.rate > 0)
		x.seconds_left = (uint64_t)MIN((double)(x.total - x.done) / x.rate + 0.5, 1e9);
	p->c->o->ops->progress(p->c->o, &x);
	p->shown_ns = now;
	p->tenths = percent_tenths(p);
	p->drawn |= fleeting;
}

/* Is it time for a line? */
static bool progress_due(const struct progress *p, uint64_t now)
{
	if (p->c->json)
		return percent_tenths(p) > p->tenths || now - p->shown_ns >= JSON_NS;
	return now - p->shown_ns >= LINE_NS;
}

int progress_tick(void *arg, uint64_t done)
{
	struct progress *p = arg;
	uint64_t now = progress_clock();
	bool bar = !p->c->json && p->c->err_screen.terminal && !p->c->err_screen.dumb;

	p->done += done;
	if (cli_asked) {
		cli_asked = 0;
		progress_show(p, now, false);
	} else if (p->c->quiet) {
		/* nothing unasked */
	} else if (bar ? now - p->shown_ns >= BAR_NS : progress_due(p, now)) {
		progress_show(p, now, bar);
	}
	return cli_stopped();
}

double progress_end(struct progress *p)
{
	if (p->drawn)
		p->c->o->ops->progress(p->c->o, NULL);
	return bytes_rate(p, progress_clock());
}
