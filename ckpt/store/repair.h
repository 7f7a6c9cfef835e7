/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repair.h - put a job's directory in order. Called by ckptctl repair.
 *
 * 1. Trash, and collecting directories of launches older than the highest claim, are removed. Those of
 *    the highest may be alive and stay, unless abandoned: then a launch is claimed here, which fences
 *    whoever still writes, and all go.
 * 2. A quarantined step is checked in full; whole, it is released (and verified); else it stays.
 * 3. A step-N whose MANIFEST is missing or cannot be believed, whose parts are all there and intact
 *    (every rank 0..world-1 once; the same job, step, launch and uuid), gets a new MANIFEST: seq and
 *    parent by its place in the line, tool "ckptctl repair". It is written beside, the whole is checked
 *    in full, and it appears by a rename; the damaged one stays as MANIFEST.damaged-%08x, which readers
 *    pass over. What the old one said besides (notes) is lost, and the checkpoint's id is a new one;
 *    hold and tag marks move to it. A MANIFEST that cannot be read now may be whole, and stays.
 *
 * 4. A misplaced step stays as it is, and so does what a newer version wrote: the first is moved or adopted by
 *    who knows why it is there. One whose MANIFEST is that of another step while its parts are this one's
 *    is mended like 3.
 *
 * 5. Of the others all but the data is read, and what is found is said: a part that is missing, or what contradicts
 *    itself, has no mark.
 *
 * Nothing that was committed is removed. Steps are locked (shared) while they are worked on. A crash at
 * any point leaves what can be repaired again.
 */
#ifndef CKPT_STORE_REPAIR_H
#define CKPT_STORE_REPAIR_H
#include "ckpt/store/prune.h"

enum repair_act {
	REPAIR_REMOVED,	 /* trash or a collecting directory */
	REPAIR_RELEASED, /* from quarantine */
	REPAIR_REBUILT,	 /* has a MANIFEST again */
	REPAIR_LEFT,	 /* cannot be repaired, or may be alive: text says why and what to do */
};
struct repair_row {
	enum repair_act act; /* of a dry run: what would be done */
	int rc;		     /* REPAIR_LEFT: why; 0: alive */
	char dir[STORE_DIR_MAX];
	uint64_t step;	/* UINT64_MAX: trash */
	uint64_t bytes; /* of the directory; removed: without what steps share */
	char text[400];
};

struct repair_opts {
	bool dry;
	bool abandoned;
	const char *dir;	 /* this step directory only; NULL: the whole job */
	store_verify_fn *verify; /* required unless dry */
	void (*row)(void *arg, const struct repair_row *row);
	void *arg; /* of both */
};
struct repair_result {
	uint32_t removed, released, rebuilt, left;
	uint64_t freed;	 /* bytes of files whose last name has gone */
	uint64_t shared; /* bytes of what was removed that stay, because steps share them */
	bool unseen;	 /* some files could not be looked at: freed and shared may be wrong */
};

/* 0 also where some are left. -EINVAL: dir is no step directory; -ENOENT: there is none. */
int store_repair(struct store *s, const struct repair_opts *o, struct repair_result *ret,
		 struct ckpt_err *err);
#endif
