/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - fills struct ckpt_err and collects lists of mismatches. Called by every room.
 * Invariant: msg is always zero-terminated, and the arguments may point into the err that is being
 * filled.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <stdio.h>

#define MSG_BYTES sizeof(((struct ckpt_err *)0)->msg)

/* A message is put together in a buffer of its own: its arguments may point into err. */
static int text_end(const struct text *t, struct ckpt_err *err, int code)
{
	err->code = code;
	strcpy(err->msg, t->buf);
	return code;
}

int ckpt_error(struct ckpt_err *err, int code, const char *fmt, ...)
{
	char msg[MSG_BYTES];
	struct text t = text_in(msg, sizeof msg);
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	text_vadd(&t, fmt, ap);
	va_end(ap);
	return text_end(&t, err, code);
}

int ckpt_newer(struct ckpt_err *err, const char *fmt, ...)
{
	char msg[MSG_BYTES];
	struct text t = text_in(msg, sizeof msg);
	va_list ap;

	if (!err)
		return -EPROTONOSUPPORT;
	text_add(&t, "written by a newer version: ");
	va_start(ap, fmt);
	text_vadd(&t, fmt, ap);
	va_end(ap);
	text_add(&t, "; use the ckptd that wrote it, or a newer one");
	return text_end(&t, err, -EPROTONOSUPPORT);
}

int ckpt_error_errno(struct ckpt_err *err, int eno, const char *fmt, ...)
{
	char msg[MSG_BYTES];
	struct text t = text_in(msg, sizeof msg);
	const char *why = strerrordesc_np(eno);
	va_list ap;

	if (!err)
		return -eno;
	va_start(ap, fmt);
	text_vadd(&t, fmt, ap);
	va_end(ap);
	if (why)
		text_add(&t, ": %s", why);
	else
		text_add(&t, ": error %d", eno);
	return text_end(&t, err, -eno);
}

int ckpt_error_prefix(struct ckpt_err *err, int code, const char *fmt, ...)
{
	char msg[MSG_BYTES];
	struct text t = text_in(msg, sizeof msg);
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	text_vadd(&t, fmt, ap);
	va_end(ap);
	text_add(&t, ": %s", err->msg);
	return text_end(&t, err, err->code);
}

void ckpt_errlist_add(struct ckpt_errlist *l, const char *fmt, ...)
{
	size_t at = l->used ? l->used + 1 : 0; /* one byte for the '\n' between two lines */
	va_list ap;
	int n;

	l->n++;
	if (!l->text) {
		l->text = malloc(CKPT_ERRLIST_BYTES);
		if (!l->text)
			return;
		l->text[0] = 0;
	}
	if (at >= CKPT_ERRLIST_BYTES)
		return;
	va_start(ap, fmt);
	n = vsnprintf(l->text + at, CKPT_ERRLIST_BYTES - at, fmt, ap);
	va_end(ap);
	if (n <= 0 || (size_t)n >= CKPT_ERRLIST_BYTES - at) {
		l->text[l->used] = 0;
		return;
	}
	for (size_t i = at; i < at + (size_t)n; i++)
		if (l->text[i] == '\n')
			l->text[i] = ' ';
	if (at)
		l->text[l->used] = '\n';
	l->used = at + (size_t)n;
}

void ckpt_errlist_join(struct ckpt_errlist *l, const struct ckpt_errlist *other)
{
	uint64_t n = l->n + other->n;

	for (const char *p = other->text; p && other->used && *p;) {
		int line = (int)strcspn(p, "\n");

		ckpt_errlist_add(l, "%.*s", line, p);
		p += line;
		p += *p == '\n';
	}
	l->n = n;
}

int ckpt_errlist_end(struct ckpt_errlist *l, struct ckpt_err *err, const char *fmt, ...)
{
	const size_t more_max = sizeof "\nand 18446744073709551615 more" - 1;
	char msg[MSG_BYTES];
	struct text t = text_in(msg, sizeof msg);
	uint64_t shown = 0;
	va_list ap;

	if (!l->n)
		return 0;
	if (!err)
		return l->code;
	va_start(ap, fmt);
	text_vadd(&t, fmt, ap);
	va_end(ap);
	text_add(&t, ":");
	for (size_t at = 0; at < l->used;) {
		const char *line = l->text + at;
		size_t len = strcspn(line, "\n");
		size_t need = t.len + 1 + more_max;
		size_t room = need < sizeof msg ? sizeof msg - 1 - need : 0;

		/* A first line too long for its place is cut; a later one is left to the count. */
		if (shown && len > room)
			break;
		text_add(&t, "\n%.*s", (int)MIN(len, room), line);
		shown++;
		at += len + 1;
	}
	if (shown < l->n)
		text_add(&t, "\nand %llu more", (unsigned long long)(l->n - shown));
	return text_end(&t, err, l->code);
}

void ckpt_errlist_free(struct ckpt_errlist *l)
{
	free(TAKE(l->text));
	l->used = 0;
	l->n = 0;
}
