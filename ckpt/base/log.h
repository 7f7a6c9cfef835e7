/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - one line per event: "level room: sentence key=value". The library's sink is the caller's
 * callback; programs install stderr. */
#ifndef CKPT_BASE_LOG_H
#define CKPT_BASE_LOG_H

/* syslog's numbers */
enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTICE = 5, LOG_INFO = 6, LOG_DEBUG = 7 };

struct log {
	/* NULL: silent; called from any thread */
	void (*sink)(void *ctx, int level, const char *line);
	void *ctx;
	int level_max;
};
/* a line is cut at 1 KiB */
void log_line(const struct log *l, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* a sink: one write(2) per line, with a wall-clock time stamp */
void log_to_stderr(void *ctx, int level, const char *line);
#endif
