/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover.h - what runs of ckptctl that were killed have left in a directory, and what runs that
 * are not finished keep there (io/publish.h says how it is called). Called by ls, prune, doctor.
 */
#ifndef CKPT_IO_LEFTOVER_H
#define CKPT_IO_LEFTOVER_H
#include "ckpt/io/io.h"
#include <limits.h>

/* What has no lock may still be written if it changed so short a time ago. */
#define LEFTOVER_QUIET_NS (UINT64_C(600) * 1000000000)

enum leftover_is {
	LEFTOVER_WRITTEN,    /* a process writes it: its lock is held, or it changed a moment ago */
	LEFTOVER_UNFINISHED, /* the same command continues it: it has a journal */
	LEFTOVER_DEAD	     /* nothing continues it */
};
struct leftover {
	enum leftover_is is;
	char becomes[NAME_MAX + 1]; /* the name that it was to get */
	char at[NAME_MAX + 1];	    /* what lies there: ".NAME.ckptctl-new", or the lock alone */
	char lock[NAME_MAX + 1];    /* ".NAME.ckptctl"; "": it has none */
	uint64_t bytes;		    /* of both */
};
/* Each of a directory, in no order. != 0 ends it and is returned; else what listing said. */
typedef int leftover_fn(void *arg, const struct leftover *x);
int leftovers_find(const struct io_ops *ops, int dirfd, uint64_t now_ns, leftover_fn *fn,
		   void *arg);
/* -EBUSY: a process has its lock. */
int leftover_remove(const struct io_ops *ops, int dirfd, const struct leftover *x);
#endif
