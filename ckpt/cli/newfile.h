/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.h - a file that a person asked for by name: written under another name
 * (".NAME.XXXXXXXX.part"), synced, then renamed. It appears when it is whole; nothing that exists is
 * ever replaced, but a file of ours where that is asked for; after newfile_drop nothing is left.
 */
#ifndef CKPT_CLI_NEWFILE_H
#define CKPT_CLI_NEWFILE_H
#include "ckpt/io/io.h"
#include <limits.h>

struct newfile {
	const struct io_ops *ops;
	char path[PATH_MAX], part[NAME_MAX + 1];
	const char *name; /* in path */
	const char *ours; /* what a file that may be replaced begins with; NULL: none may be */
	int dir, fd;	  /* -1: none */
	uint64_t bytes;	  /* written */
};

/* -EBUSY: there is something of that name. -EINVAL: it is no name of a file, or its directory does
 * not exist. Other errors are the system's; err has the sentence. */
int newfile_open(const struct io_ops *ops, const char *path, struct newfile *ret,
		 struct ckpt_err *err);
/* The same, but a file that begins with `ours` (64 bytes at most) gives way. */
int newfile_open_over(const struct io_ops *ops, const char *path, const char *ours,
		      struct newfile *ret, struct ckpt_err *err);
int newfile_write(struct newfile *f, const void *p, uint64_t len, struct ckpt_err *err);
/* -EBUSY: the name was taken meanwhile. */
int newfile_commit(struct newfile *f, struct ckpt_err *err);
void newfile_drop(struct newfile *f); /* also after commit, and of a zeroed one with fds -1 */
#endif
