/* SPDX-License-Identifier: Apache-2.0 */
/*
 * destination.c - see destination.h. Called by restore and convert. Invariant: nothing is made here,
 * and what cannot be looked at is no reason to refuse: making it says why.
 */
#include "ckpt/cli/destination.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/subject.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <sys/stat.h>

#define PARENTS_MAX 4096u /* as deep as a path can be */

static bool same_inode(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Is fd the directory `top`, or below it? */
static bool is_inside(int fd, const struct stat *top)
{
	cleanup_close int at = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st, last = { 0 };

	for (uint32_t i = 0; at >= 0 && i < PARENTS_MAX && !fstat(at, &st); i++) {
		int up;

		if (same_inode(&st, top))
			return true;
		if (i && same_inode(&st, &last))
			return false;
		last = st;
		up = openat(at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		util_close(&at);
		at = up;
	}
	return false;
}

/* Of the format of stores. A directory with files of another format is anybody's: its parent may be $HOME. */
static bool is_checkpoint(const struct io_ops *ops, int fd)
{
	char looked[FORMAT_LOOKED];
	struct source_dir dir;
	bool yes = false;

	if (source_make(ops, fd, NULL, 0, &dir))
		return false;
	yes = formats[0]->probe(&dir, looked) > 0;
	source_end(&dir);
	return yes;
}

int destination_check(const struct io_ops *ops, const char *path, int dir_fd, int src_fd,
		      struct ckpt_err *err)
{
	struct stat src;

	if (src_fd >= 0 && fstat(src_fd, &src))
		return ckpt_error_errno(err, errno, "the source cannot be examined");
	if (src_fd >= 0 && is_inside(dir_fd, &src))
		return ckpt_error(
			err, -EINVAL,
			"%.1000s is inside the checkpoint itself: no file is ever added to a "
			"checkpoint",
			path);
	if (is_checkpoint(ops, dir_fd))
		return ckpt_error(
			err, -EINVAL,
			"%.1000s is inside another checkpoint: no file is ever added to a "
			"checkpoint",
			path);
	return 0;
}
