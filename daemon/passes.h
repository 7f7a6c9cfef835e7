/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passes.h - what is made of a staged step in one walk over its slots (ckpt/move/walk.h), and which
 * steps are walked at all. Called by snap (when is a walk due?), persist (the walk of a step that is
 * written) and restore (the sums of a step in memory).
 *
 * A step is walked once it is GUARDED, never before: what a walk sees does not change any more. At most
 * one walk of a job runs at a time, the oldest step first, so a pass sees the steps in their order.
 */
#ifndef DAEMON_PASSES_H
#define DAEMON_PASSES_H
#include "ckpt/base/hash.h"
#include "daemon/state.h"

/*
 * The sums that a walk has made of a slot which stays in memory: entry i is of bytes [i MiB, + len) of
 * the slot (struct slotmem's base; main part and const part alike). len 0: nobody has summed that MiB.
 * What lies behind len in that MiB is no piece's, or is derived of what has sums.
 * Never changed once somebody can see it.
 */
struct slot_sum {
	struct hash128 sum;
	uint32_t len;
};
struct slot_sums {
	_Atomic uint32_t refs;
	uint64_t n;
	struct slot_sum mib[];
};
struct slot_sums *slot_sums_ref(struct slot_sums *x); /* NULL is fine */
void slot_sums_unref(struct slot_sums *x);	      /* NULL is fine */
/* Of rank r's slot of a step that is staged; NULL: no walk has made any yet. A reference, for a task that
 * has one of the slot, too. Owner. */
struct slot_sums *passes_sums(const struct snap *s, uint32_t r);
/* Is MIB number i of the slot, which lies at p, what its sum says? True where there is no sum. Any thread. */
bool slot_sums_match(const struct slot_sums *x, uint64_t i, const void *p);
#endif
