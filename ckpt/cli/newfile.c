/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.c - see newfile.h. Called by cat, and by whatever makes pictures.
 * Invariant: path names nothing of ours before newfile_commit has synced all of it.
 */
#include "ckpt/cli/newfile.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <stdio.h>

#define NAME_LONGEST (NAME_MAX - 32) /* what the other name adds must fit */
#define OURS_MAX 64

static int taken(const struct newfile *f, struct ckpt_err *err)
{
	return ckpt_error(
		err, -EBUSY,
		"%.3000s exists%s and was not changed: give another name, or move it away", f->path,
		f->ours ? ", was not made by ckptctl," : "");
}

/* Does anything stand in the way? */
static int look(const struct newfile *f, struct ckpt_err *err)
{
	const struct io_ops *ops = f->ops;
	size_t n = f->ours ? strlen(f->ours) : 0;
	char head[OURS_MAX];
	int fd, rc;

	if (faccessat(f->dir, f->name, F_OK, AT_SYMLINK_NOFOLLOW))
		return 0;
	assert(n <= sizeof head);
	if (!n)
		return taken(f, err);
	fd = ops->open(ops->ctx, f->dir, f->name, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return taken(f, err);
	rc = io_pread_all(ops, fd, head, n, 0);
	(void)ops->close(ops->ctx, fd);
	return rc || memcmp(head, f->ours, n) ? taken(f, err) : 0;
}

static int dir_fail(const char *dir, int error, struct ckpt_err *err)
{
	if (error == ENOENT || error == ENOTDIR)
		return ckpt_error(err, -EINVAL, "there is no directory %.3000s to write into", dir);
	return ckpt_error_errno(err, error, "%.3000s cannot be written into", dir);
}

int newfile_open(const struct io_ops *ops, const char *path, struct newfile *ret,
		 struct ckpt_err *err)
{
	return newfile_open_over(ops, path, NULL, ret, err);
}

int newfile_open_over(const struct io_ops *ops, const char *path, const char *ours,
		      struct newfile *ret, struct ckpt_err *err)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char parent[PATH_MAX];
	struct newfile *f = ret;
	int rc;

	*f = (struct newfile){ .ops = ops, .ours = ours, .dir = -1, .fd = -1 };
	if (strlen(path) >= sizeof f->path || !*name || strlen(name) > NAME_LONGEST ||
	    !strcmp(name, ".") || !strcmp(name, ".."))
		return ckpt_error(err, -EINVAL, "%.200s is not the name of a file", path);
	strcpy(f->path, path);
	f->name = f->path + (name - path);
	snprintf(parent, sizeof parent, "%.*s", slash ? (int)MAX(slash - path, 1) : 1,
		 slash ? path : ".");
	f->dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->dir < 0)
		return dir_fail(parent, errno, err);
	rc = look(f, err);
	if (rc)
		return rc;
	snprintf(f->part, sizeof f->part, ".%s.%08x.part", f->name,
		 (uint32_t)(now_ns() >> 4) ^ (uint32_t)getpid() << 16);
	f->fd = ops->open(ops->ctx, f->dir, f->part, O_WRONLY | O_CREAT | O_EXCL, 0666);
	if (f->fd >= 0)
		return 0;
	f->part[0] = 0;
	return ckpt_error_errno(err, -f->fd, "%.3000s cannot be created", path);
}

int newfile_write(struct newfile *f, const void *p, uint64_t len, struct ckpt_err *err)
{
	int rc = io_pwrite_all(f->ops, f->fd, p, len, f->bytes);

	f->bytes += len;
	return rc ? ckpt_error_errno(err, -rc, "%.3000s cannot be written", f->path) : 0;
}

/* rename never replaces: a file of ours, if it still is one, is put aside first, and back where that
 * was for nothing. aside: "" where there is none. */
static int replace(const struct newfile *f, char aside[NAME_MAX + 1])
{
	const struct io_ops *ops = f->ops;
	int rc = f->ours ? look(f, NULL) : 0;

	aside[0] = 0;
	if (rc)
		return rc == -EBUSY ? -EEXIST : rc;
	if (f->ours && !faccessat(f->dir, f->name, F_OK, AT_SYMLINK_NOFOLLOW)) {
		snprintf(aside, NAME_MAX + 1, "%.*s.old", NAME_MAX - 4, f->part);
		rc = ops->rename(ops->ctx, f->dir, f->name, aside);
		if (rc)
			aside[0] = 0;
	}
	return rc ? rc : ops->rename(ops->ctx, f->dir, f->part, f->name);
}

int newfile_commit(struct newfile *f, struct ckpt_err *err)
{
	const struct io_ops *ops = f->ops;
	int rc = MUTANT(NEWFILE_NOT_SYNCED) ? 0 : ops->sync(ops->ctx, f->fd),
	    closed = ops->close(ops->ctx, TAKE_FD(f->fd));

	char aside[NAME_MAX + 1] = "";

	rc = rc ? rc : closed;
	if (!rc)
		rc = replace(f, aside);
	if (rc && aside[0])
		(void)ops->rename(ops->ctx, f->dir, aside, f->name);
	else if (aside[0])
		(void)ops->unlink(ops->ctx, f->dir, aside, false);
	if (rc == -EEXIST)
		return taken(f, err);
	if (!rc) {
		f->part[0] = 0;
		rc = MUTANT(NEWFILE_NAME_NOT_SYNCED) ? 0 : ops->sync(ops->ctx, f->dir);
	}
	return rc ? ckpt_error_errno(err, -rc, "%.3000s cannot be written", f->path) : 0;
}

void newfile_drop(struct newfile *f)
{
	if (f->fd >= 0)
		(void)f->ops->close(f->ops->ctx, TAKE_FD(f->fd));
	if (f->dir >= 0 && f->part[0])
		(void)f->ops->unlink(f->ops->ctx, f->dir, f->part, false);
	f->part[0] = 0;
	if (f->dir >= 0)
		close(TAKE_FD(f->dir));
}
