/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_source.h - the files of a directory as a source (base/source.h), through io_ops.
 *
 * Names out of metadata never leave the directory: "a/b" is opened beneath it, and no component but
 * the last may be a symbolic link. A name that is empty, begins or ends with '/', or has an empty
 * component, "." or ".." is -EINVAL. The last component may be a link only with SOURCE_LINKS (a
 * directory of the command line: Hugging Face's cache consists of links), and only to a regular
 * file. Other kinds of files are -EISDIR or -EINVAL (a socket: -ENXIO), a link that may not be
 * followed -ELOOP. No open waits for the other end of a fifo.
 */
#ifndef CKPT_IO_IO_SOURCE_H
#define CKPT_IO_IO_SOURCE_H
#include "ckpt/base/hash.h"
#include "ckpt/base/source.h"
#include "ckpt/io/io.h"
#include <limits.h>

enum {
	SOURCE_LINKS = 1, /* an entry may be a link to a file */
	SOURCE_FRESH = 2  /* read from the disk, not from what the page cache still has */
};

/* Is it a name as above, "a" or "a/b"? */
bool source_name_stays(const char *name);

/*
 * Opens a path of the command line; follows links. If it is a directory: *ret_fd, and the entry is
 * "". If it is a regular file: *ret_fd is its parent directory, and the entry is its name there. The
 * caller closes *ret_fd. -ENOENT, -ENOTDIR, -EACCES, ...; -EINVAL: it is neither.
 */
int source_path(const struct io_ops *ops, const char *path, int *ret_fd,
		char ret_entry[NAME_MAX + 1], struct ckpt_err *err);

/* dirfd is borrowed until source_end; sources that were opened may outlive both. entry: copied; ""
 * or NULL: the directory. -ENOMEM. */
int source_make(const struct io_ops *ops, int dirfd, const char *entry, uint32_t flags,
		struct source_dir *ret);
void source_end(struct source_dir *d); /* NULL ctx is fine */

/* One file: as a source's open, with these flags. The caller closes it. */
int source_open(const struct io_ops *ops, int dirfd, const char *name, uint32_t flags,
		struct source *ret);
/* The same as a descriptor, opened with O_RDONLY and `how` (O_NONBLOCK, O_DIRECT; without
 * O_NONBLOCK a fifo may make it wait). */
int source_fd(const struct io_ops *ops, int dirfd, const char *name, uint32_t flags, int how,
	      uint64_t *ret_bytes);

/*
 * What a conversion is made of, as one number: the bytes that a reader was given (each read with
 * its name and offset), and the files that it names (each with its length, times of change and
 * inode). The order does not count. Two runs that read the same of the same files get the same;
 * another content, length, mtime, ctime or inode gives another.
 *
 * source_watch: what is read through ret counts. under: of source_make; it and ret live until
 * source_end(ret), and no source that ret opened outlives that. One thread opens and stamps; any
 * thread reads. -ENOMEM.
 */
int source_watch(const struct source_dir *under, struct source_dir *ret);
/* Count a file's length, mtime, ctime and inode. Errors as of open; -ESTALE: since it was opened
 * through the watch, it has changed, or another has its name. */
int source_stamp(const struct source_dir *watch, const char *name);
struct hash128 source_watched(const struct source_dir *watch);
#endif
