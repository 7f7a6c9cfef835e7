/* SPDX-License-Identifier: Apache-2.0 */
/*
 * home.h - from an open step to the job's directory that it belongs to: where its labels are, and
 * where it can be renamed or removed. A copy elsewhere has no home: it never gets a label that the
 * original would. Any thread may call; each struct store_home belongs to one thread at a time.
 */
#ifndef CKPT_STORE_HOME_H
#define CKPT_STORE_HOME_H
#include "ckpt/store/store.h"

struct store_home {
	struct store s; /* without a claim: enough for labels */
	struct store_step step;
	void *steps;	/* what the scan returned: the step's notes are behind it */
	char dir[4096]; /* of the job, absolute */
};

/*
 * The step in its job's directory, with all that a scan knows of it. ref: resolved, its step_fd
 * open. 0; 1: it is in no store (a copy, a converted one), so that it cannot have labels; -errno.
 * store_home_close after 0.
 */
int store_home_find(const struct io_ops *ops, const struct format *format,
		    const struct store_ref *ref, struct store_home *ret, struct ckpt_err *err);
/* The same, but the step is not read: of ret->step only `dir` is set. 1: nothing is open, and no
 * label belongs to this step. */
int store_home_open(const struct io_ops *ops, const struct format *format,
		    const struct store_ref *ref, struct store_home *ret, struct ckpt_err *err);
/* Can it be loaded, as far as a look at its files says? -EBADMSG: it is damaged, quarantined or
 * misplaced. For labels that promise people a step. */
int store_home_sound(const struct store_home *m, struct ckpt_err *err);
void store_home_close(struct store_home *h);

/* May this process write files into the job's directory that its owner can read? Root may write
 * everywhere, but files are 0600: -EPERM, and the sentence names the owner. */
int store_home_owner(int job_fd, const char *path, struct ckpt_err *err);
#endif
