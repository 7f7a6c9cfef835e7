/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memdir_io.h - a directory in memory (memdir.h) as struct io_ops, for tests of move: descriptor i
 * is file i. Files are read and overwritten as long as they are; nothing is allocated. Include
 * memdir.c before it.
 */
#ifndef TESTS_MEMDIR_IO_H
#define TESTS_MEMDIR_IO_H
#include "ckpt/io/io.h"
#include "tests/lib/memdir.h"

static inline int memdir_io_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	const struct memdir *d = ctx;

	(void)dirfd;
	(void)flags;
	(void)mode;
	for (uint32_t i = 0; i < d->n; i++)
		if (!strcmp(d->file[i].name, name))
			return (int)i;
	return -ENOENT;
}

static inline int memdir_io_close(void *ctx, int fd)
{
	(void)ctx;
	(void)fd;
	return 0;
}

static inline int memdir_io_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	*ret_bytes = ((struct memdir *)ctx)->file[fd].len;
	return 0;
}

static inline int64_t memdir_io_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	const struct memdir_file *f = &((struct memdir *)ctx)->file[fd];

	if (off >= f->len)
		return 0;
	len = MIN(len, f->len - off);
	memcpy(buf, f->bytes + off, len);
	return (int64_t)len;
}

static inline int64_t memdir_io_pwrite(void *ctx, int fd, const void *buf, uint64_t len,
				       uint64_t off)
{
	const struct memdir_file *f = &((struct memdir *)ctx)->file[fd];

	if (off >= f->len)
		return -ENOSPC;
	len = MIN(len, f->len - off);
	memcpy(f->bytes + off, buf, len);
	return (int64_t)len;
}

static inline struct io_ops memdir_io(struct memdir *d)
{
	return (struct io_ops){ .ctx = d,
				.open = memdir_io_open,
				.close = memdir_io_close,
				.size = memdir_io_size,
				.pread = memdir_io_pread,
				.pwrite = memdir_io_pwrite };
}
#endif
