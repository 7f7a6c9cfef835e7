/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rewind.h - make a step that was set aside, or an older one of the line, the newest of the line. Called by
 * ckptctl rewind.
 *
 * The line becomes: the ancestors of that step, and the step. An ancestor is found by the id of the parent that
 * its child's MANIFEST names. Where that one is no longer there, the newest step that is older than the
 * missing one, and was not set aside before the child was written, takes its place. A step of the line whose
 * MANIFEST is lost is taken for what it is called.
 *
 * Under the exclusive lock of the line:
 *	1. the steps of the present line that are newer than the newest common ancestor are set aside, the newest
 *	   first, each durably before the next
 *	2. the ancestors that were set aside, and the step, get their names back, the oldest first, each durably
 *	   before the next
 * So after a crash at any point the line is the beginning of the old or of the new one, and nothing is lost: the
 * same call again finishes. The next commit gets a seq above all that are there, and the step as its parent.
 */
#ifndef CKPT_STORE_REWIND_H
#define CKPT_STORE_REWIND_H
#include "ckpt/store/mark.h"

struct rewind_opts {
	const char *dir; /* the step's entry in the job directory: step-N, or .old-N-... */
	bool dry;	 /* tell, and change nothing: needs no claim */
	/* NULL, or told of each step that moves, in that order, before it does; back: from aside into the line */
	void (*row)(void *arg, const struct store_step *st, bool back);
	void *arg;
};
struct rewind_result {
	uint64_t step;		/* that is, or will be, the newest of the line */
	uint32_t naside, nback; /* that moved, or would */
};

/*
 * s has claimed a launch, unless dry: a launch that claims after it ends the call (-ESTALE). 0 also where nothing
 * has to move. -EBADMSG: the step is damaged, quarantined or misplaced; -EPROTONOSUPPORT: a newer version wrote it; -EUCLEAN: it is not committed; -ENOENT: there is
 * none; -EBUSY: the line is being changed and that does not end. After another error the line is one of those
 * above: err says how to go on.
 */
int store_rewind(struct store *s, const struct rewind_opts *o, struct rewind_result *ret,
		 struct ckpt_err *err);
#endif
