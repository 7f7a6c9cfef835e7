/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_dir.h - the directory in which a checkpoint is collected that a person asked for by
 * path: ".NAME.ckptctl-partial" beside it, locked, left for another run or removed, and renamed to
 * NAME when it is complete. Whoever finds NAME finds it whole; nothing that exists is replaced.
 */
#ifndef CKPT_CLI_CONVERSION_DIR_H
#define CKPT_CLI_CONVERSION_DIR_H
#include "ckpt/base/error.h"
#include "ckpt/io/io.h"
#include <limits.h>

#define PARTIAL_JOURNALS 2u

struct partial {
	const struct io_ops *ops;
	int parent_fd, fd; /* -1: not open; fd holds the lock */
	char base[NAME_MAX + 1], name[NAME_MAX + 32];
	char path[PATH_MAX + NAME_MAX + 36]; /* for messages */
	bool made;			     /* by this run, which has the lock */
};

/*
 * dst: the path to be created. src_fd, step: the checkpoint, in which nothing may be made. -EINVAL:
 * dst is taken, is no name, is a store's name of another step, or lies in a checkpoint, or the
 * partial directory holds what is not ours; -ENOENT: there is no parent; -EBUSY: another run has
 * the lock.
 */
int partial_open(const struct io_ops *ops, const char *dst, int src_fd, uint64_t step,
		 struct partial *ret, struct ckpt_err *err);
void partial_close(struct partial *p); /* releases the lock; everything stays */
/* The partial directory and all that is ours in it; dst stays away. */
void partial_remove(struct partial *p);
/* All but the directory itself. */
int partial_clear(struct partial *p, struct ckpt_err *err);

/* A part, to be read and written, made where it is missing; O_DIRECT where possible. */
int partial_part_open(struct partial *p, const char *name, bool create, struct ckpt_err *err);
/* A new file, synced, with its name. What had the name goes first. */
int partial_put(struct partial *p, const char *name, const void *bytes, uint64_t len,
		struct ckpt_err *err);
/* Bytes of a file, malloc'ed. -ENOENT without a sentence. */
int partial_get(struct partial *p, const char *name, uint64_t max, void **ret, uint64_t *ret_len,
		struct ckpt_err *err);
int partial_drop(struct partial *p, const char *name, struct ckpt_err *err); /* fine: none there */
int partial_sync(struct partial *p, struct ckpt_err *err);		     /* the names in it */
void partial_journal_name(uint64_t seq, char ret[16]);
/* Everything in it has been synced: it becomes dst. -EINVAL: that was taken meanwhile. */
int partial_publish(struct partial *p, struct ckpt_err *err);
#endif
