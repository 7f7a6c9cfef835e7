/* SPDX-License-Identifier: Apache-2.0 */
/* picture.h - pictures that verbs write to files (--svg). */
#ifndef CKPT_CLI_PICTURE_H
#define CKPT_CLI_PICTURE_H
#include "ckpt/io/io.h"

/*
 * Puts a whole picture (ckpt/draw/svg.h) at path (io/publish.h). A picture that is there is
 * replaced; any other file stays as it is: -EBUSY. err has the sentence.
 */
int picture_write(const struct io_ops *ops, const char *path, const void *bytes, uint64_t len,
		  struct ckpt_err *err);
#endif
