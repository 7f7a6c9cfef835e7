/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutants.h - every planted mistake of the project: its name, its room, which safety step it takes
 * away. MUTANT(NAME) of mutant.h is where it sits; tests/mutants/table says which tests find it.
 * A mistake that none of them finds is a test that is missing: add a line here for each step that
 * would be easy to lose.
 */
#ifndef CKPT_MUTANTS_H
#define CKPT_MUTANTS_H

/* One line each, which tests/mutants reads. */
/* clang-format off */
#define MUTANTS(X) \
	/* --- commit, recovery, fencing --- */ \
	X(PART_NOT_SYNCED, store, "a part is synced before it counts") \
	X(COLLECTING_NOT_SYNCED, store, "the collecting directory is synced before its rename") \
	X(MANIFEST_NOT_SYNCED, store, "MANIFEST is synced before its rename") \
	X(JOB_NOT_SYNCED, store, "the job's directory is synced before a commit is acknowledged") \
	X(FAILED_SYNC_RETRIED, store, "a sync that failed is not asked again") \
	X(NAMES_REUSED, store, "names of collecting directories and parts are used once") \
	X(CLAIM_NOT_CHECKED, store, "who has lost the claim commits nothing") \
	X(CLAIM_NOT_SYNCED, store, "a claim is durable before anything is written under it") \
	X(SWEEP_NOT_SYNCED, store, "what a claim finds is made durable before it is trusted") \
	X(ASIDE_AFTER_COMMIT, store, "steps are set aside before the step that replaces them appears") \
	X(ASIDE_NOT_UNDONE, store, "what was set aside comes back when the commit fails") \
	X(FAILED_PART_LEFT, store, "a part that failed is removed from its directory") \
	/* --- memory shared with trainers --- */ \
	X(TEAR_BLIND, client, "a guard tears by compare-and-swap") \
	X(TEAR_NEVER, client, "a guard tears a copy that has not ended") \
	X(COPIED_BLIND, client, "a copy ends by compare-and-swap") \
	X(MOVE_ANY_SEQ, client, "a copier decides for the snapshot that it copied, for no newer one") \
	X(TICKET_PER_RANK, client, "all ranks of a step have one ticket") \
	X(GATE_BLIND, client, "the gate is moved by compare-and-swap") \
	X(PAST_FORGOTTEN, client, "late ranks find the ticket of their step") \
	X(UPDATING_NOT_SET, client, "a trainer that changes its state says so") \
	X(UPDATING_NOT_CLEARED, client, "a snapshot says that the state is stable") \
	X(UNGUARDED_TRUSTED, client, "a rank that marks without a guard is known") \
	X(STEAL_FOR_ALL, client, "only what is to be written may take a staged snapshot's slot") \
	X(WAKE_FORGOTTEN, client, "a guard that waits for a copy is woken") \
	X(READ_UNCHECKED, client, "a record is read whole or not at all") \
	/* --- snapshots in the daemon --- */ \
	X(STAGED_BEFORE_ALL, daemon, "a step is staged when all ranks are copied") \
	X(TORN_STAGED, daemon, "a step of which one copy was given up is not staged") \
	X(RELEASED_BEFORE_STAGED, daemon, "a staged step is released only when a newer one is staged") \
	X(SLOT_NOT_GIVEN, daemon, "a slot that nobody needs goes back to the gate") \
	X(UNGUARDED_COMMITTED, daemon, "a step is committed when its ranks were seen to guard") \
	X(STAGED_UNTRUSTED, daemon, "a step is staged when its ranks are known to guard")
/* clang-format on */
#endif
