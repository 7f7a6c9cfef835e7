/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - formats one event as one line and hands it to the sink. Called from any thread, no lock,
 * no allocation.
 * Invariant: a line holds no control characters, whatever the names in it were.
 */
#include "ckpt/base/log.h"
#include "ckpt/base/util.h"
#include <stdarg.h>
#include <stdio.h>

#define LINE_BYTES 1024

void log_line(const struct log *l, int level, const char *fmt, ...)
{
	char line[LINE_BYTES];
	va_list ap;
	int n;

	if (!l || !l->sink || level > l->level_max)
		return;
	va_start(ap, fmt);
	n = vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	if ((size_t)n >= sizeof line)
		memcpy(line + sizeof line - 4, "...", 4);
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = ' ';
	l->sink(l->ctx, level, line);
}

static const char *level_name(int level)
{
	static const char *const name[] = {
		[LOG_ERROR] = "error", [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice",
		[LOG_INFO] = "info",   [LOG_DEBUG] = "debug",
	};

	return level >= LOG_ERROR && level <= LOG_DEBUG ? name[level] : "?";
}

void log_to_stderr(void *ctx, int level, const char *line)
{
	uint64_t now = wall_ns();
	time_t s = (time_t)(now / NS_PER_S);
	char out[LINE_BYTES + 64], stamp[32];
	struct tm tm;
	int n;

	(void)ctx;
	gmtime_r(&s, &tm);
	strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
	n = snprintf(out, sizeof out, "%s.%03uZ %s %s", stamp,
		     (unsigned)(now % NS_PER_S / NS_PER_MS), level_name(level), line);
	if (n < 0)
		return;
	n = MIN(n, (int)sizeof out - 2);
	out[n++] = '\n';
	/* Nobody is left to tell when standard error itself fails. */
	if (write(STDERR_FILENO, out, (size_t)n) < 0)
		return;
}
