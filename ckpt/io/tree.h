/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - files and directories beneath an open directory: how many bytes, and removing them. Through io_ops;
 * symbolic links are not followed. Called by publish and leftover.
 */
#ifndef CKPT_IO_TREE_H
#define CKPT_IO_TREE_H
#include "ckpt/io/io.h"

#define TREE_DEPTH_MAX 8u

/* Of an entry, a file or a directory with all its files, by their lengths; what cannot be opened
 * counts as nothing. ret_modified_ns, if it is not NULL: when one of them last changed; 0: not
 * known. */
uint64_t tree_entry_bytes(const struct io_ops *ops, int dirfd, const char *name,
			  uint64_t *ret_modified_ns);
/* Removes all entries. -ELOOP: deeper than TREE_DEPTH_MAX; files_only: a directory is -EISDIR. */
int tree_empty(const struct io_ops *ops, int fd, bool files_only);
#endif
