/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_step.h - a real checkpoint of two ranks and a few KiB, written through the store as a
 * daemon would, and held byte by byte against what was written.
 */
#ifndef CKPT_TESTS_CRASH_STEP_H
#define CKPT_TESTS_CRASH_STEP_H
#include "ckpt/base/util.h"
#include "ckpt/store/store.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/scratch.h"

#define CRASH_WORLD 2
#define CRASH_JOB "demo"
#define CRASH_WHY 600 /* bytes of a sentence that says what did not hold */

/* A directory for one store: below TMPDIR if that is in memory, else in /dev/shm if the machine has
 * it. Tests call fsync ten thousand times and judge by the calls, not by the disk. It goes with its
 * process at the latest. */
struct place {
	char path[200];
	int fd;
};
void place_make(struct place *p);
void place_remove(struct place *p);

struct crash_file {
	char name[48];
	uint8_t *bytes;
	uint64_t len;
};

/* What was written: the parts in the order of their ranks, then MANIFEST. */
struct crash_step {
	uint64_t step, seq, generation;
	struct crash_file file[CRASH_WORLD + 1];
	struct crash_file
		base; /* rank 0's const part, which later steps link; no name: there is none */
	struct store_part_id base_id;
	uint64_t base_step, base_seq, base_generation; /* for which it was written */
};
void crash_step_free(struct crash_step *c);

/* Begin a step, write its parts (IO_INLINE; a part that fails is written once more), leave the
 * commit to the caller. *ret is for crash_commit, also after an error. */
int crash_begin(struct store *s, uint64_t step, uint64_t seq, struct store_txn **ret_txn,
		struct crash_step *ret, struct ckpt_err *err);
int crash_commit(struct store_txn *x, const struct crash_step *c, uint64_t rewind,
		 struct ckpt_err *err);
/* The same with a const part: written if `from` is NULL or its file cannot be linked, else linked
 * to that of `from`, which is a committed step. */
int crash_save_base(struct store *s, uint64_t step, uint64_t seq, uint64_t rewind,
		    const struct crash_step *from, struct crash_step *ret, struct ckpt_err *err);
/* Both; its parent is the newest committed step up to rewind. Free *ret whatever the result. */
int crash_save(struct store *s, uint64_t step, uint64_t seq, uint64_t rewind,
	       struct crash_step *ret, struct ckpt_err *err);

/* The entry of a step that was set aside; "" where there is none. Until the next call. */
const char *crash_aside(const struct store *s, uint64_t step, uint64_t seq);

/* Does the directory hold exactly what was written, and does the format open it? */
bool crash_step_same(const struct store *s, const char *dir, const struct crash_step *want,
		     char why[CRASH_WHY]);
/* The parts alone: MANIFEST may be missing, or another one. */
bool crash_parts_same(const struct store *s, const char *dir, const struct crash_step *want,
		      char why[CRASH_WHY]);
/* Of a listing of a directory: counts its entries into *(uint32_t *)arg. */
int entry_count(void *arg, const char *name, unsigned char d_type);
#endif
