/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_files.c - opens and closes the files of a checkpoint for move_read and move_verify.
 * Invariant: what is asked for directly comes from the disk: a file that refuses direct I/O, at open
 * or at a read (io_xfer.h), is read through the page cache when that has forgotten it.
 */
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"
#include <fcntl.h>

/* A pipe in its place would keep an open waiting for ever. Not with the descriptor that stays: for
 * some kernels O_NONBLOCK means that reads may fail. */
static int file_check(const struct io_ops *ops, int dirfd, const char *name)
{
	int fd = ops->open(ops->ctx, dirfd, name, O_RDONLY | O_NONBLOCK, 0), r;
	uint64_t bytes;

	if (fd < 0)
		return fd;
	r = ops->size(ops->ctx, fd, &bytes);
	(void)ops->close(ops->ctx, fd);
	return r;
}

static int file_open(const struct io_ops *ops, int dirfd, const char *name, bool direct)
{
	int fd = file_check(ops, dirfd, name);

	if (fd < 0)
		return fd;
	fd = direct ? ops->open(ops->ctx, dirfd, name, O_RDONLY | O_DIRECT, 0) : -EINVAL;
	if (fd != -EINVAL && fd != -EOPNOTSUPP)
		return fd;
	fd = ops->open(ops->ctx, dirfd, name, O_RDONLY, 0);
	if (direct && fd >= 0)
		io_forget(fd);
	return fd;
}

int move_open(const struct io_ops *ops, int step_dirfd, const struct checkpoint *c, bool direct,
	      enum io_engine engine, struct move_files *ret, struct ckpt_err *err)
{
	int *fd = calloc((size_t)c->nfile + 1, sizeof *fd);

	*ret = (struct move_files){
		.ops = ops, .ckpt = c, .fd = fd, .direct = direct, .align = 4096, .engine = engine
	};
	if (!fd)
		return ckpt_error(err, -ENOMEM, "out of memory for %u open files", c->nfile);
	for (uint32_t i = 0; i < c->nfile; i++)
		fd[i] = -1;
	for (uint32_t i = 0; i < c->nfile; i++) {
		if (c->file[i].lost || c->file[i].unread)
			continue;
		fd[i] = file_open(ops, step_dirfd, c->file[i].name, direct);
		if (fd[i] < 0) {
			int e = ckpt_error_errno(err, -fd[i], "cannot open %s of the checkpoint",
						 c->file[i].name);

			move_close(ret);
			return e;
		}
	}
	return 0;
}

void move_close(struct move_files *f)
{
	for (uint32_t i = 0; f->fd && i < f->ckpt->nfile; i++)
		if (f->fd[i] >= 0)
			(void)f->ops->close(f->ops->ctx, f->fd[i]);
	free((void *)f->fd);
	f->fd = NULL;
}
