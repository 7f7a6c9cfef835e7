/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rewind.h - make a step that was set aside, or an older one of the line, the newest of the line.
 * Called by ckptctl rewind.
 *
 * The line then consists of the ancestors of that step, and of the step. The parent's id in a
 * child's MANIFEST names the ancestor. If that ancestor does not exist any more, its place takes
 * the newest step that is older than it and was not set aside before the child was written. If a
 * step of the line has lost its MANIFEST, its name says which step it is.
 *
 * Under the exclusive lock of the line:
 *	1. the steps of the present line that are newer than the newest common ancestor are set aside, the newest
 *	   first, each durably before the next
 *	2. the ancestors that were set aside, and the step, get their names back, the oldest first, each durably
 *	   before the next
 * So after a crash at any point the line is the beginning of the old or of the new line, and
 * nothing is lost: the same call again continues. The next commit gets a seq above all that exist,
 * and the step as its parent.
 */
#ifndef CKPT_STORE_REWIND_H
#define CKPT_STORE_REWIND_H
#include "ckpt/store/label.h"

struct rewind_opts {
	const char *dir; /* the step's entry in the job directory: step-N, or .old-N-... */
	bool dry;	 /* report, and change nothing: needs no claim */
	/* NULL, or called for each step before it moves, in that order; back: from aside into the
	 * line */
	void (*row)(void *arg, const struct store_step *st, bool back);
	void *arg;
};
struct rewind_result {
	uint64_t step;		/* that is, or will be, the newest of the line */
	uint32_t naside, nback; /* that moved, or would */
};

/*
 * s has claimed a launch, unless dry; a launch that claims later ends the call (-ESTALE). 0 also if
 * no step has to move. -EBADMSG: the step is damaged, quarantined or misplaced; -EPROTONOSUPPORT: a
 * newer version wrote it;
 * -EUCLEAN: it is not committed; -ENOENT: there is none; -EBUSY: another process is changing the
 * line and does not end. After another error the line is one of those above, and err says how to
 * continue.
 */
int store_rewind(struct store *s, const struct rewind_opts *o, struct rewind_result *ret,
		 struct ckpt_err *err);
#endif
