/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_files.h - descriptors of many files, for reading: those of one directory, but for
 * io_files_in. A file is opened when it is first taken; at most IO_FILES_MAX are open at once, or a quarter of what this process may
 * have. Where the kernel refuses another one (EMFILE), fewer are open: then the file that was used
 * longest ago, and is not taken, is closed. Any thread.
 */
#ifndef CKPT_IO_IO_FILES_H
#define CKPT_IO_IO_FILES_H
#include "ckpt/io/io.h"

#define IO_FILES_MAX 256u

struct io_files;
/*
 * name: [n], as of source_open (io_source.h), borrowed until io_files_free; NULL: that file is not
 * there.
 * dirfd: the same. flags: SOURCE_LINKS. direct: past the page cache; where that is refused, the
 * page cache forgets the file when it is opened. -ENOMEM.
 */
int io_files_make(const struct io_ops *ops, int dirfd, const char *const *name, uint32_t n,
		  uint32_t flags, bool direct, struct io_files **ret);
/* File i lies in this directory, which is borrowed until io_files_free. Before it is first taken. */
void io_files_in(struct io_files *f, uint32_t i, int dirfd);
/*
 * A descriptor of file i, to be given back; several may have it. -EAGAIN: all that may be open are
 * taken: give one back first. -ENOENT, -EISDIR, -EINVAL (no regular file), ... as source_open;
 * -ESTALE: another file has the name since it was first opened.
 */
int io_files_take(struct io_files *f, uint32_t i);
void io_files_give(struct io_files *f, uint32_t i);
/* After all were given back. NULL is fine. */
void io_files_free(struct io_files *f);
#endif
