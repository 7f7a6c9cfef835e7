/* SPDX-License-Identifier: Apache-2.0 */
/* picture.h - pictures that verbs write to files (--svg). */
#ifndef CKPT_CLI_PICTURE_H
#define CKPT_CLI_PICTURE_H
#include "ckpt/io/io.h"
#include <stdio.h>

/* A picture (ckpt/draw/svg.h) on its way to a file: what is drawn goes to out. */
struct picture {
	FILE *out;
	char *svg;
	size_t len;
};
/* -ENOMEM. */
int picture_begin(struct picture *p, struct ckpt_err *err);
/*
 * rc: of the drawing; unless it is 0, nothing is written, and it is the result. Puts the whole
 * picture at path (io/publish.h). A picture that is there is replaced; any other file stays as it
 * is: -EBUSY. -ENOMEM, and what writing reports. err has the sentence, unless the drawing failed
 * otherwise than with -ENOMEM.
 */
int picture_end(struct picture *p, int rc, const struct io_ops *ops, const char *path,
		struct ckpt_err *err);
/* Puts a file that begins with a mark at path; it replaces only a file that begins so, too. */
int marked_file_write(const struct io_ops *ops, const char *path, const char *mark,
		      const void *bytes, uint64_t len, struct ckpt_err *err);
#endif
