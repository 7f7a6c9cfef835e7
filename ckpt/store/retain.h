/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain.h - which steps a policy keeps. Pure; the daemon and ckptctl prune share it.
 *
 * Without a policy nothing is removed. With one, a committed step is kept when any of these holds:
 *	it is the newest committed one
 *	it is held (and the hold has not expired) or tagged
 *	last	it is one of the keep_last newest
 *	every	its number is a multiple of keep_every (0 is)
 *	within	it is younger than keep_within_ns. Ages count from now or from the time of the newest
 *		committed step, whichever is earlier, so a clock that runs ahead makes no step old. A step
 *		with a time in the future is young, and no committed step is older than one before it in
 *		the line
 *	best	fewer than n committed steps have a better note of that key; of equal notes the newer step's
 *		is better; a step without the note, or with a note that is not a number, does not count
 * A step that was set aside is kept for set_aside_for_ns since then, whatever the policy says. Ages
 * count as above; if the time is unknown, it is now. After that, hold, tag and within keep it. last
 * and best keep it if fewer than n steps, committed or set aside, are newer or better; it takes no
 * place of a committed step. So a job that went back, or began anew, by mistake can return (ckptctl
 * rewind) for that time. Damaged and quarantined steps take no place either, and are kept: repair
 * mends or releases them, and store_prune removes them only on request (prune.h: bad). Steps that
 * are misplaced, or that a newer version wrote, are always kept, because their bytes may be right.
 * Claim and repair remove collecting directories.
 *
 * store_prune ensures that a newer step is committed, and one is verified, before it removes any, and
 * that it removes none that is being read.
 */
#ifndef CKPT_STORE_RETAIN_H
#define CKPT_STORE_RETAIN_H
#include "ckpt/base/retain_policy.h"
#include "ckpt/store/label.h"

struct retain_row {
	uint32_t step; /* index into the steps that were given */
	bool remove;
	char reason[160]; /* "last 1/3, newest committed"; "no rule matches" */
};

/* step: what store_scan gave, newest first, all or not; label: what store_labels gave. ret[n], in
 * the order of the steps. -ENOMEM: nothing is decided. */
int retain_decide(const struct retain_policy *p, const struct store_step *step, uint32_t n,
		  const struct store_label *label, uint32_t nlabel, uint64_t now_ns,
		  struct retain_row *ret);
#endif
