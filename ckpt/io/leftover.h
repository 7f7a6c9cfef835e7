/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover.h - what convert and export keep in a directory before they finish, and leave there if
 * they are killed (io/publish.h has the names). Called by ls, prune, doctor.
 */
#ifndef CKPT_IO_LEFTOVER_H
#define CKPT_IO_LEFTOVER_H
#include "ckpt/io/io.h"
#include <limits.h>

/* Without a lock, a process may still be writing if the last change is not older than this. */
#define LEFTOVER_QUIET_NS (UINT64_C(600) * 1000000000)

enum leftover_is {
	LEFTOVER_WRITTEN,    /* a process writes it: its lock is held, or it changed a moment ago */
	LEFTOVER_UNFINISHED, /* the same command continues it: it has a journal */
	LEFTOVER_DEAD,	     /* nothing continues it */
	LEFTOVER_UNKNOWN     /* its lock cannot be opened: it may be another user's */
};
struct leftover {
	enum leftover_is is;
	char becomes[NAME_MAX + 1]; /* the name that it was to get */
	char at[NAME_MAX + 1];	    /* ".NAME.ckptctl-new"; if that is missing, the lock */
	char lock[NAME_MAX + 1];    /* ".NAME.ckptctl"; "": it has none */
	uint64_t bytes;		    /* of both */
};
/* Calls fn for each of them, in no order. If fn returns != 0, that ends it and is the result. Errors
 * of listing the directory. */
typedef int leftover_fn(void *arg, const struct leftover *x);
int leftovers_find(const struct io_ops *ops, int dirfd, uint64_t now_ns, leftover_fn *fn,
		   void *arg);
/* -EBUSY: a process has its lock. */
int leftover_remove(const struct io_ops *ops, int dirfd, const struct leftover *x);
#endif
