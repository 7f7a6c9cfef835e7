/* SPDX-License-Identifier: Apache-2.0 */
/*
 * destination.h - the places where something new would damage what exists.
 */
#ifndef CKPT_CLI_DESTINATION_H
#define CKPT_CLI_DESTINATION_H
#include "ckpt/base/error.h"
#include "ckpt/io/io.h"

/*
 * May something be made in dir_fd? -EINVAL: that is the directory src_fd or lies below it, or it is
 * another checkpoint, which would be faulty with a file more. src_fd -1: the source is one file. path: what is to be made, for the
 * sentence.
 */
int destination_check(const struct io_ops *ops, const char *path, int dir_fd, int src_fd,
		      struct ckpt_err *err);
#endif
