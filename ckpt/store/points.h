/* SPDX-License-Identifier: Apache-2.0 */
/*
 * points.h - the named moments of the directory protocol, in their order. io_point reports a moment
 * to the table of system calls; tests kill the process, cut the power and count there. A test
 * checks that each name has a place in the store, and each place a name
 * (tests/unit/test_store_repair.c).
 */
#ifndef CKPT_STORE_POINTS_H
#define CKPT_STORE_POINTS_H

#define STORE_POINTS(X)                                                                      \
	X(CLAIM_MADE, "claim-made", "the file of the claim exists, perhaps empty")           \
	X(CLAIM_DURABLE, "claim-durable", "the claim is synced, and so is its name")         \
	X(SWEEP_TRASHED, "sweep-trashed", "an older launch's collecting directory is trash") \
	X(SWEEP_SYNCED, "sweep-synced", "the names of all trash are durable")                \
	X(SWEEP_UNLINKED, "sweep-unlinked", "a file of trash is removed")                    \
	X(SWEEP_REMOVED, "sweep-removed", "a directory of trash is removed")                 \
	X(SWEEP_CLAIM, "sweep-claim", "a claim below the highest is removed")                \
	X(BEGIN_MADE, "begin-made", "the collecting directory exists")                       \
	X(PART_CREATED, "part-created", "a part's file exists, empty")                       \
	X(PART_RESERVED, "part-reserved", "its space is allocated")                          \
	X(PART_CUT, "part-cut", "all is written and it has its length")                      \
	X(PART_SYNCED, "part-synced", "its bytes are durable")                               \
	X(PART_CLOSED, "part-closed", "it is finished")                                      \
	X(PART_LINKED, "part-linked", "another step's part has a name here too")             \
	X(MANIFEST_SYNCED, "manifest-synced", "MANIFEST is durable under another name")      \
	X(MANIFEST_RENAMED, "manifest-renamed", "it has its name")                           \
	X(COMMIT_DIR_SYNCED, "commit-dir-synced",                                            \
	  "every name in the collecting directory is durable")                               \
	X(ASIDE_LOCKED, "aside-locked", "no process removes steps from now on")              \
	X(COMMIT_CLAIM_CHECKED, "commit-claim-checked", "the claim is still the highest")    \
	X(ASIDE_RENAMED, "aside-renamed", "a newer step is set aside")                       \
	X(ASIDE_SYNCED, "aside-synced", "and durably so")                                    \
	X(BACK_RENAMED, "back-renamed", "a step that was set aside is in the line again")    \
	X(BACK_SYNCED, "back-synced", "and durably so")                                      \
	X(COMMIT_RENAMED, "commit-renamed", "step-N is visible")                             \
	X(COMMIT_SYNCED, "commit-synced", "step-N is committed")                             \
	X(UNDO_TRASHED, "undo-trashed", "a collecting directory is given up")                \
	X(UNDO_BACK, "undo-back", "a step that was set aside has its name again")            \
	X(LABEL_MADE, "label-made", "the file of a label exists, empty")                     \
	X(LABEL_WRITTEN, "label-written", "it is written")                                   \
	X(LABEL_SYNCED, "label-synced", "its bytes are durable")                             \
	X(LABEL_DURABLE, "label-durable", "and so is its name")                              \
	X(LABEL_GONE, "label-gone", "the file of a label is removed")                        \
	X(LABEL_GONE_SYNCED, "label-gone-synced", "and durably so")                          \
	X(POLICY_SYNCED, "policy-synced", "a job's policy is durable under another name")    \
	X(POLICY_RENAMED, "policy-renamed", "it has its name, and is in force")              \
	X(POLICY_DURABLE, "policy-durable", "and durably so")                                \
	X(PRUNE_VERIFIED, "prune-verified", "the newest committed step is verified")         \
	X(REMOVE_LOCKED, "remove-locked", "the step to remove is locked, without readers")   \
	X(REMOVE_CHECKED, "remove-checked", "it has no hold, and a newer step is there")     \
	X(REMOVE_TRASHED, "remove-trashed", "it is trash")                                   \
	X(REMOVE_SYNCED, "remove-synced", "and durably so")                                  \
	X(REMOVE_DONE, "remove-done", "its files are removed, its labels are there")         \
	X(REPAIR_SYNCED, "repair-synced", "a new MANIFEST is durable under another name")    \
	X(REPAIR_LABELLED, "repair-labelled",                                                \
	  "its new id is in quarantine, held and tagged as the old one")                     \
	X(REPAIR_ASIDE, "repair-aside", "the damaged MANIFEST has another name")             \
	X(REPAIR_RENAMED, "repair-renamed", "the new one has its name")                      \
	X(REPAIR_DURABLE, "repair-durable", "and durably so; it is in quarantine")           \
	X(REPAIR_VERIFIED, "repair-verified", "the step was checked in full")

#define STORE_POINT_NAME(id, name, text) \
	__attribute__((unused)) static const char POINT_##id[] = name;
STORE_POINTS(STORE_POINT_NAME)
#undef STORE_POINT_NAME
#endif
