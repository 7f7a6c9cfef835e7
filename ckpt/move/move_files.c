/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_files.c - the files of a checkpoint for those that read them.
 * Invariant: what is asked for directly comes from the disk: a file that refuses direct I/O, at
 * open or at a read (io_xfer.h), is read through the page cache when that has forgotten it.
 */
#include "ckpt/base/util.h"
#include "ckpt/io/io_source.h"
#include "ckpt/move/move.h"
#include "ckpt/move/range_sums.h"

int move_open(const struct io_ops *ops, int step_dirfd, const struct checkpoint *c, bool direct,
	      enum io_engine engine, struct move_files *ret, struct ckpt_err *err)
{
	cleanup_free const char **name = calloc((size_t)c->nfile + 1, sizeof *name);
	int rc = -ENOMEM;

	*ret = (struct move_files){
		.ops = ops, .ckpt = c, .direct = direct, .align = 4096, .engine = engine
	};
	for (uint32_t i = 0; name && i < c->nfile; i++)
		name[i] = c->file[i].lost || c->file[i].unread ? NULL : c->file[i].name;
	if (name)
		rc = range_sums_make(c, false, &ret->sums);
	if (!rc)
		rc = io_files_make(ops, step_dirfd, name, c->nfile, c->links ? SOURCE_LINKS : 0,
				   direct, &ret->files);
	if (!rc)
		return 0;
	range_sums_free(TAKE(ret->sums));
	return ckpt_error(err, rc, "out of memory for %u files", c->nfile);
}

void move_close(struct move_files *f)
{
	io_files_free(TAKE(f->files));
	range_sums_free(TAKE(f->sums));
}

int move_take(const struct move_files *f, uint32_t i, struct ckpt_err *err)
{
	int fd = io_files_take(f->files, i);

	if (fd >= 0 || fd == -EAGAIN)
		return fd;
	return ckpt_error_errno(err, -fd, "cannot open %s of the checkpoint",
				f->ckpt->file[i].name);
}
