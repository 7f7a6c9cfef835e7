/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - the progress line. Called by verbs that read or write much.
 * Invariant: at most ten lines a second, never wider than the terminal.
 */
#include "ckpt/cli/progress.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/human.h"
#include <stdarg.h>

#define INTERVAL_NS (100 * NS_PER_MS)
#define BAR 20

static bool shown(const struct progress *p)
{
	return p->c->err_screen.terminal && !p->c->json && !p->c->quiet;
}

void progress_begin(struct progress *p, struct cli *c, uint64_t total, const char *fmt, ...)
{
	va_list ap;

	*p = (struct progress){ .c = c, .begin_ns = now_ns(), .total = total };
	p->shown_ns = p->begin_ns;
	va_start(ap, fmt);
	vsnprintf(p->what, sizeof p->what, fmt, ap);
	va_end(ap);
}

void progress_skip(struct progress *p, uint64_t bytes)
{
	p->before += bytes;
	p->done += bytes;
}

static double rate(const struct progress *p)
{
	uint64_t ns = now_ns() - p->begin_ns;

	return ns ? (double)(p->done - p->before) * (double)NS_PER_S / (double)ns : 0;
}

static void draw(const struct progress *p)
{
	double part = p->total ? MIN((double)p->done / (double)p->total, 1.0) : 0, speed = rate(p);
	char bar[4 * BAR + 1] = "", line[256], what[81];
	uint32_t full = (uint32_t)(part * BAR);
	uint64_t rest = p->total > p->done ? p->total - p->done : 0;
	int left = speed > 0 ? (int)MIN((double)rest / speed, 359999.0) : 0;

	for (uint32_t i = 0; i < BAR; i++)
		strcat(bar, i < full ? (p->c->err_screen.unicode ? "\u2588" : "#")
				     : (p->c->err_screen.unicode ? "\u2591" : "."));
	snprintf(line, sizeof line, "%s  %s %3.0f %%  %.2f GB/s  %d:%02d left",
		 screen_clean(p->what, what, sizeof what), bar, 100 * part, speed / 1e9, left / 60,
		 left % 60);
	if (screen_columns(line) < p->c->err_screen.width)
		fprintf(p->c->err, "\r%s\033[K", line);
	fflush(p->c->err);
}

int progress_tick(void *arg, uint64_t done)
{
	struct progress *p = arg;
	uint64_t now = now_ns();

	p->done += done;
	if (shown(p) && now - p->shown_ns >= INTERVAL_NS) {
		p->shown_ns = now;
		draw(p);
	}
	return cli_stopped();
}

double progress_end(struct progress *p)
{
	if (shown(p) && p->shown_ns != p->begin_ns)
		fputs("\r\033[K", p->c->err);
	if (shown(p))
		fflush(p->c->err);
	return rate(p);
}
