/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - one way to fail: a negative errno, and a sentence in the caller's struct ckpt_err. No
 * allocation. */
#ifndef CKPT_BASE_ERROR_H
#define CKPT_BASE_ERROR_H
#include "ckpt/ckpt.h"
#include <stddef.h>

/* Fill err (may be NULL) with code (negative errno) and the formatted sentence; a text that does
 * not fit ends in "...". Returns code. */
int ckpt_error(struct ckpt_err *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* What is whole and says something that this program does not know: "written by a newer version:
 * <sentence>; use the ckptd that wrote it, or a newer one". Returns -EPROTONOSUPPORT. */
int ckpt_newer(struct ckpt_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Append ": <strerror>" for a system call that failed with errno `eno` (positive). Returns -eno. */
int ckpt_error_errno(struct ckpt_err *err, int eno, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Put "context: " in front of what err already says. Keeps and returns err->code (or code when err
 * is NULL). */
int ckpt_error_prefix(struct ckpt_err *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * All mismatches at once: a list that collects lines and reports how many more there were than fit.
 * Use: struct ckpt_errlist l = { .code = -EMEDIUMTYPE }; ckpt_errlist_add(&l, "...", ...) as often
 * as needed; at the end ckpt_errlist_end(&l, err, "checkpoint %s does not fit", name) returns 0
 * when nothing was added, else l.code with the text in err. The list holds at most
 * CKPT_ERRLIST_BYTES of text; ckptctl prints it all through ckpt_errlist.text.
 */
#define CKPT_ERRLIST_BYTES 65536
struct ckpt_errlist {
	int code;
	uint64_t n; /* how many were added */
	size_t used;
	/* lines joined by '\n'; malloc'ed on first use; ckpt_errlist_free() */
	char *text;
};
void ckpt_errlist_add(struct ckpt_errlist *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* What the other one has is added. */
void ckpt_errlist_join(struct ckpt_errlist *l, const struct ckpt_errlist *other);
int ckpt_errlist_end(struct ckpt_errlist *l, struct ckpt_err *err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void ckpt_errlist_free(struct ckpt_errlist *l);
#endif
