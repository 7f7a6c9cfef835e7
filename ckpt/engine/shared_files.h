/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_files.h - files that several checkpoints of one run have, under names of their own: their
 * data are read with the first of these checkpoints, and what was found then holds for the others
 * too. For verify.c. A file is the same by device, inode and time of modification. Zero-initialised
 * it knows none. One thread.
 */
#ifndef CKPT_ENGINE_SHARED_FILES_H
#define CKPT_ENGINE_SHARED_FILES_H
#include "ckpt/base/strmap.h"
#include "ckpt/move/move.h"

#define SHARED_FAULTS_MAX 10000u /* of one checkpoint; where there are more, none of it is kept */

struct shared_file;
struct engine_shared {
	struct shared_file *file; /* [nfile] those that have other names */
	uint32_t nfile, cap;
	struct format_fault
		*fault; /* [nfault] of the data that were read; strings are of the arena */
	uint32_t nfault, fault_cap;
	bool failed;	     /* out of memory: not all faults are in the list */
	struct strmap found; /* by device and inode */
	struct arena arena;
};

/* skip[i]: file i has been read with another checkpoint. */
void shared_find(struct engine_shared *s, const struct move_files *files, bool *skip);
/* A fault of the data that are being read. */
void shared_fault(struct engine_shared *s, const struct format_fault *fault);
/* The files that were not skipped are read; their faults are those from the first-th on. */
void shared_keep(struct engine_shared *s, const struct move_files *files, const bool *skip,
		 uint32_t first);
/* What was found in skipped files, under the names that they have here. */
void shared_tell(struct engine_shared *s, const struct move_files *files, const bool *skip,
		 format_fault_fn *fault, void *arg);
void engine_shared_free(struct engine_shared *s);
#endif
