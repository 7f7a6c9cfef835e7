/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - one line per event: "level room: sentence key=value". The library's sink is the caller's callback; programs install stderr. */
#ifndef CKPT_BASE_LOG_H
#define CKPT_BASE_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTICE = 5, LOG_INFO = 6, LOG_DEBUG = 7 }; /* syslog's numbers */

struct log {
	void (*sink)(void *ctx, int level, const char *line); /* NULL: silent; called from any thread */
	void *ctx;
	int level_max;
};
void log_line(const struct log *l, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4))); /* a line is cut at 1 KiB */
void log_to_stderr(void *ctx, int level, const char *line); /* a sink: one write(2) per line, with a wall-clock time stamp */
#endif
