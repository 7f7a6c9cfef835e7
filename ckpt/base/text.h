/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - text that is put together in a buffer of the caller's. The buffer is always terminated
 * and never overrun; text that does not fit is cut, and ends in "..".
 */
#ifndef CKPT_BASE_TEXT_H
#define CKPT_BASE_TEXT_H
#include <stdarg.h>
#include <stddef.h>

struct text {
	char *buf;
	size_t bytes, len; /* len == bytes: it was cut */
};

/* An empty text in buf; bytes >= 1. */
static inline struct text text_in(char *buf, size_t bytes)
{
	*buf = 0;
	return (struct text){ .buf = buf, .bytes = bytes };
}

void text_add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_vadd(struct text *t, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
#endif
