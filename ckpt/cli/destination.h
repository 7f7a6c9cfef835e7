/* SPDX-License-Identifier: Apache-2.0 */
/*
 * destination.h - where a person wants something new to be made: the directory around it and its
 * name, and the places where it would damage what exists.
 */
#ifndef CKPT_CLI_DESTINATION_H
#define CKPT_CLI_DESTINATION_H
#include "ckpt/base/error.h"
#include "ckpt/io/io.h"
#include <limits.h>

struct destination {
	char parent[PATH_MAX];	 /* "." where the path has no slash */
	char base[NAME_MAX + 1]; /* never "", ".", ".." */
};

/* Split a path; slashes at its end do not count. -EINVAL: it has no name that can be made. */
int destination_split(const char *path, struct destination *ret, struct ckpt_err *err);

/*
 * May something be made in dir_fd? -EINVAL: that is the directory src_fd or lies below it, or it is
 * another checkpoint, which would be faulty with a file more. src_fd -1: the source is one file. path: what is to be made, for the
 * sentence.
 */
int destination_check(const struct io_ops *ops, const char *path, int dir_fd, int src_fd,
		      struct ckpt_err *err);
#endif
