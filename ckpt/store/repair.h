/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repair.h - put a job's directory in order. Called by ckptctl repair.
 *
 * 1. It removes trash, and collecting directories of launches older than the highest claim. Those
 * of the
 *    highest claim may belong to a live process and stay. With `abandoned` it claims a launch itself, which
 *    fences any process that still writes, and removes them all.
 * 2. It checks a quarantined step in full. If every byte is right, it releases the step and labels
 * it verified.
 * 3. A step-N may have a MANIFEST that is missing or wrong while its parts are all there and intact
 * (every
 *    rank 0..world-1 once; the same job, step, launch and uuid). Then repair makes a new MANIFEST: seq and
 *    parent by the step's place in the line, tool "ckptctl repair". It writes it under another name, checks
 *    the step in full, and renames it; the damaged one stays as MANIFEST.damaged-%08x, which readers
 *    ignore. Other content of the old MANIFEST (notes) is lost. The checkpoint gets a new id, and hold and
 *    tag labels move to it. If a MANIFEST cannot be read now, it may be good, and repair leaves it.
 * 4. It leaves a misplaced step, and a step that a newer version wrote. A person moves or adopts
 * the former.
 *    If a step's MANIFEST is that of another step and its parts are its own, repair mends it as in 3.
 * 5. Of the other steps it reads all but the data, and reports what it finds: a missing part, or a
 *    contradiction, has no label.
 *
 * Repair removes nothing that was committed. It locks a step (shared) while it works on it. After a
 * crash at any point the same call can repair the rest.
 */
#ifndef CKPT_STORE_REPAIR_H
#define CKPT_STORE_REPAIR_H
#include "ckpt/store/prune.h"

enum repair_act {
	REPAIR_REMOVED,	 /* trash or a collecting directory */
	REPAIR_RELEASED, /* from quarantine */
	REPAIR_REBUILT,	 /* has a MANIFEST again */
	REPAIR_LEFT, /* cannot be repaired, or may belong to a live process: text says what to do */
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
	uint64_t freed;	 /* bytes of files whose last name was removed */
	uint64_t shared; /* bytes of what was removed that stay, because steps share them */
	bool unseen;	 /* the state of some files is unknown: freed and shared may be wrong */
};

/* 0 also where some are left. -EINVAL: dir is no step directory; -ENOENT: there is none. */
int store_repair(struct store *s, const struct repair_opts *o, struct repair_result *ret,
		 struct ckpt_err *err);
#endif
