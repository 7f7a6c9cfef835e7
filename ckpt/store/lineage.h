/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lineage.h - where a step stands in its job's line: its sequence number, its parent, and which
 * steps are set aside for it. Called by the daemon before each commit, by repair for a MANIFEST
 * that it makes again, and by convert.
 *
 * Sequence numbers order the steps by age, so each new step gets a number above all earlier ones,
 * whatever the numbers of the steps. The sequence number of a damaged, misplaced, newer or older
 * step (store_step_lost) is unknown. Each of them may have one more than all that can be read, so
 * the new step leaves one number free for each.
 */
#ifndef CKPT_STORE_LINEAGE_H
#define CKPT_STORE_LINEAGE_H
#include "ckpt/store/store.h"

enum lineage_how {
	/*
	 * The next step of a launch. It continues what the launch is known to continue, or the
	 * newest step that the launch itself has committed, whichever is newer. What is newer than
	 * that is set aside; so is every step, where it continues none.
	 */
	LINEAGE_NEXT,
	/*
	 * A step that joins an existing line (a rescue to another directory, a conversion into a
	 * job). It continues the newest step. Nothing is set aside, and a step that is not older is
	 * in its way.
	 */
	LINEAGE_ADD,
	/*
	 * A step that has lost its MANIFEST. Its place is right below the next newer step; if there
	 * is none, above all, with space for the lost steps below it.
	 */
	LINEAGE_MEND,
};

struct lineage_ask {
	enum lineage_how how;
	const char *job; /* for sentences */
	uint64_t step;
	/* of LINEAGE_NEXT alone */
	uint64_t generation; /* the launch */
	uint64_t
		continues; /* the newest step that it is known to continue; UINT64_MAX: none is known */
	/* NEXT: this launch's own steps above `continues` with a number up to this one are left
	 * behind */
	uint64_t left_seq;
	uint64_t seq_min; /* the highest that is known to be given, though it may not be readable */
	bool again;	  /* the launch was taken over: steps that cannot be read may be its own */
};

struct lineage {
	uint64_t seq, parent_step; /* UINT64_MAX: none */
	uint8_t parent_id[16];	   /* zero: none */
	uint64_t rewind;	   /* for store_commit; NEXT and ADD */
	bool there_already;	   /* NEXT: this launch has committed this very step before */
};

/*
 * From a store_scan with all, in its order; reads nothing. -EIO, NEXT: it continues nothing that is
 * known, and what cannot be read may be what it continues. -EEXIST, ADD: a step is in its way.
 * -ERANGE, MEND: there is no place for it.
 */
int lineage_find(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		 struct lineage *ret, struct ckpt_err *err);
/* The same after a scan. */
int lineage_scan(const struct store *s, const struct lineage_ask *ask, struct lineage *ret,
		 struct ckpt_err *err);

/*
 * The line as a launch knows it after it has committed a step, so that the next commit need not
 * read every MANIFEST. It holds while no other process changes the line. One listing of the job's
 * directory, which opens nothing, shows that: each entry of a step, in the line or set aside,
 * existed when all was read, or is the launch's own; the newest step of the line is the launch's;
 * its MANIFEST is the same file; and it has no bad label. Each change that gives the line another
 * number or another parent (another launch, prune, rm, rewind, adopt, convert, repair, a directory
 * that is moved in or away) changes one of these, or removes a step that no other needs. The times
 * of the directory do not count: a clock that ticks slowly would hide a change right behind our
 * own. One change stays unseen: the content of an older step's directory is replaced under
 * the same name.
 */
struct lineage_known {
	bool set;
	uint64_t generation, step, seq;
	uint8_t id[16];
	struct io_stat manifest; /* of that step */
	uint64_t *name;		 /* [nname] sorted sums of the entries */
	uint32_t nname;
};
void lineage_forget(struct lineage_known *k);
/* lineage_scan for NEXT, without the scan where k still holds. *ret_scanned: NULL, or it was
 * made. */
int lineage_next(const struct store *s, const struct lineage_ask *ask, struct lineage_known *k,
		 struct lineage *ret, bool *ret_scanned, struct ckpt_err *err);
/* After a commit at the place that lineage_next returned. Without memory, or if the file system
 * gives files no identity, nothing is known. */
void lineage_committed(const struct store *s, const struct lineage_ask *ask,
		       const struct lineage *at, const uint8_t id[16], struct lineage_known *k);
#endif
