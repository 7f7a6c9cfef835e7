/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - see text.h. Called wherever a message, a name or a legend has several parts. */
#include "ckpt/base/text.h"
#include <stdio.h>
#include <string.h>

void text_vadd(struct text *t, const char *fmt, va_list ap)
{
	size_t left = t->bytes - t->len;
	int n = left ? vsnprintf(t->buf + t->len, left, fmt, ap) : 0;

	if (n < 0)
		return;
	if ((size_t)n < left) {
		t->len += (size_t)n;
		return;
	}
	if (left && t->bytes > 3)
		memcpy(t->buf + t->bytes - 3, "..", 3);
	t->len = t->bytes;
}

void text_add(struct text *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	text_vadd(t, fmt, ap);
	va_end(ap);
}
