/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - the job that a unit test of the store has open: in a directory of its own, claimed, with
 * the steps that it has saved. What goes wrong here fails the test.
 */
#ifndef CKPT_TESTS_CRASH_JOB_H
#define CKPT_TESTS_CRASH_JOB_H
#include <fcntl.h>
#include <sys/stat.h>
#include "ckpt/store/store_impl.h"
#include "tests/crash/crash_step.h"
#include "tests/lib/unit.h"

#define JOB_STEPS_MAX 32

extern struct place place; /* the store */
extern struct store *s;	   /* the job in it, by &ops */
extern struct io_ops ops;  /* the kernel's, but for what a test has put there */
extern struct ckpt_err err;
extern struct crash_step saved[JOB_STEPS_MAX]; /* what was saved or tried to, in that order */
extern uint32_t nsaved;

/* Setups: the place; the job in it, claimed; with the steps 10, 20 and 30. And their teardown. */
int job_place(void **state);
int job_make(void **state);
int job_make_three(void **state);
int job_remove(void **state);
/* The same from the beginning, in the middle of a case. */
#define AFRESH()                                                 \
	do {                                                     \
		assert_int_equal(unit_file_.teardown(state), 0); \
		assert_int_equal(unit_file_.setup(state), 0);    \
	} while (0)

/* The same job once more, as another process has it; and by other calls than those of s. */
struct store *opened(const struct io_ops *by);
uint64_t claimed(struct store *by, uint64_t want, bool again);
void another_claims(void);
void store_drop(struct store **by);
void txn_drop(struct store_txn **x);
#define cleanup_store __attribute__((cleanup(store_drop)))
#define cleanup_txn __attribute__((cleanup(txn_drop)))
struct store job_by(const struct io_ops *by);

/* rewind: crash_step.h. save: the next place of the line. begun: commit with crash_commit(x,
 * &saved[], rewind). */
int try_save(struct store *by, uint64_t step, uint64_t seq, uint64_t rewind);
void save(uint64_t step, uint64_t rewind);
struct store_txn *begun(struct store *by, uint64_t step, uint64_t seq);

/* Entries: of the job where no directory is given. */
bool exists(const char *name);
void unlinked(const char *name); /* a file */
void move(const char *from, const char *to);
void put_file(int dirfd, const char *name);
void put_dir(int dirfd, const char *name);
int dir_open(int dirfd, const char *name);
uint32_t entries_of(int dirfd, const char *name);

/* By the kernel's calls, whatever ops are. */
void label(uint64_t step, enum store_label_kind kind, const char *name);
/* "50 40 a30 d20": committed, collecting (c), set aside, damaged, quarantined (q), misplaced (m),
 * of a newer version (n) or an older one (o), the newest first; seq: "50-5". What is committed has
 * the bytes that were saved; seq: but for MANIFEST, which may have been made again. */
void listed(const struct store *by, bool seq, char text[200]);
#endif
