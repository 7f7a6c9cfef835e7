/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_faults.h - a table of system calls for tests: it makes chosen calls fail, lets the process
 * "die" at a chosen call, and records a run so that every state that a power loss may leave on the
 * disk can be made and checked. The model of a power loss: tests/crash/README.md.
 *
 * An io_uring queue does not call the table: io_queue_open refuses IO_URING and IO_AUTO takes
 * threads when the table is one of these. Use IO_INLINE (deterministic) or IO_THREADS. A table may
 * be called from several threads. Include io_faults.c into the test.
 *
 * The fault loop:
 *	for (uint64_t n = 1;; n++) {
 *		io_faults_fail(&f, IO_ON_SYNC, n, -EIO, false);
 *		run(&f.ops);
 *		if (!io_faults_hit(&f))
 *			break;          (the run had fewer than n such calls: every one of them has failed once)
 *		check();
 *	}
 */
#ifndef CKPT_TESTS_LIB_IO_FAULTS_H
#define CKPT_TESTS_LIB_IO_FAULTS_H
#include <pthread.h>
#include "ckpt/io/io.h"
#include "tests/lib/memfs.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

/* Classes of calls, to be or-ed. */
enum {
	IO_ON_OPEN = 1 << 0,   /* every open, with or without O_CREAT */
	IO_ON_CREATE = 1 << 1, /* those with O_CREAT or O_TRUNC */
	IO_ON_WRITE = 1 << 2,
	IO_ON_SYNC = 1 << 3, /* of files and directories */
	IO_ON_RENAME = 1 << 4,
	IO_ON_MKDIR = 1 << 5,
	IO_ON_LINK = 1 << 6,
	IO_ON_UNLINK = 1 << 7,
	IO_ON_TRUNCATE = 1 << 8,
	IO_ON_FALLOCATE = 1 << 9,
	IO_ON_CLOSE = 1 << 10, /* the descriptor is closed all the same */
	IO_ON_LIST = 1 << 11,
	IO_ON_READ = 1 << 12,
	IO_ON_SIZE = 1 << 13,
	IO_ON_MUTATING = IO_ON_CREATE | IO_ON_WRITE | IO_ON_SYNC | IO_ON_RENAME | IO_ON_MKDIR |
			 IO_ON_LINK | IO_ON_UNLINK | IO_ON_TRUNCATE | IO_ON_FALLOCATE,
	IO_ON_SPACE = 1 << 14,
	IO_ON_LOCK = 1 << 15,
	IO_ON_ANY = (1 << 16) - 1,
};

enum io_fault_mode { IO_FAULT_NONE, IO_FAULT_FAIL, IO_FAULT_SHORT, IO_FAULT_KILL };

/* What a matrix goes through, call by call. */
struct io_fault_kind {
	const char *name;
	uint32_t on;
	int err; /* 0: short transfers */
	bool sticky;
	bool harmless; /* whoever meets it goes on as if nothing had been */
};
extern const struct io_fault_kind io_fault_kinds[];
extern const uint32_t io_fault_kinds_n;

struct io_record;

struct io_faults {
	struct io_ops ops; /* give &f.ops to the code under test */
	const struct io_ops *under;
	bool (*about)(
		void); /* NULL, or: may calls of the thread that calls fail, and do they count? */
	struct io_record *record; /* NULL, or where mutating calls are logged; the test's */
	/* NULL, or told of the named steps of protocols (store/points.h) in the thread that takes
	 * them */
	void (*on_point)(void *arg, const char *name);
	void *on_point_arg;
	void (*on_call)(void *arg,
			uint32_t classes); /* NULL, or told before each call of its classes */
	void *on_call_arg;
	pthread_mutex_t lock; /* protects all below */
	enum io_fault_mode mode;
	uint32_t on;
	uint64_t nth; /* from 1 */
	int err;
	bool sticky;
	uint64_t calls; /* of the classes, since the plan was set */
	uint64_t injected;
};

/* No fault planned; calls of IO_ON_ANY are counted. */
void io_faults_init(struct io_faults *f, const struct io_ops *under);

/* Plans; each starts counting anew. The nth call (from 1) of the classes in `on` returns err;
 * sticky: and all after it. */
void io_faults_fail(struct io_faults *f, uint32_t on, uint64_t nth, int err, bool sticky);
/* The nth write moves about half of its bytes (of one byte: none); the nth read of several bytes
 * gives about half of them. */
void io_faults_short(struct io_faults *f, uint64_t nth);
void io_faults_short_read(struct io_faults *f, uint64_t nth);
void io_faults_plan(struct io_faults *f, const struct io_fault_kind *kind, uint64_t nth);
/* From here on, or from the nth mutating call on, every call is -EIO and changes nothing. */
void io_faults_kill_now(struct io_faults *f);
void io_faults_kill(struct io_faults *f, uint64_t nth);
void io_faults_count(struct io_faults *f, uint32_t on); /* no fault, only count */
bool io_faults_hit(struct io_faults *f);		/* has the plan done anything? */
uint64_t io_faults_calls(struct io_faults *f);

/* Recording. What lies under rootfd now is taken as durable. Only what happens beneath it is
 * recorded; a rename between directories is not modelled and aborts. Set f.record after
 * io_faults_init; keep files small (every written byte is copied). */
struct io_record *io_record_new(int rootfd);
void io_record_free(struct io_record *r);
void io_record_promise(
	struct io_record *r,
	uint64_t promise); /* now the code under test has promised `promise` (from 1) to somebody */
uint64_t io_record_events(const struct io_record *r);

struct io_crash {
	uint64_t number;	  /* of this state, from 0 */
	uint64_t promise;	  /* the last one promised before the crash; 0: none */
	const struct io_ops *ops; /* dirfd is one of its descriptors */
	const char *path;	  /* of the directory on the disk; NULL in memory */
};

/* States that were looked at, counted over walks and over the processes that were forked since. */
struct io_crash_set;
struct io_crash_set *io_crash_set_new(uint64_t states); /* room for as many */
void io_crash_set_free(struct io_crash_set *c);
uint64_t io_crash_set_states(const struct io_crash_set *c);

struct io_crash_opts {
	const char *
		dir; /* an existing directory in which each state is made in turn, and removed; NULL: a temporary one, in memory if possible */
	uint64_t seed;	  /* of the random states; printed */
	uint32_t nrandom; /* random states per crash point */
	uint32_t
		ntear; /* cuts of the last write per crash point, evenly spaced at 512 B boundaries; 0: every boundary */
	uint32_t every; /* of the states one in so many are looked at; 0: all */
	/* states are made in a struct memfs, once per tree and promise: at->ops, in one thread */
	bool memory;
	bool quiet;
	/* NULL, or where states in memory are counted that differ in their tree, promise or
	 * scenario */
	struct io_crash_set *distinct;
	uint64_t scenario;
};
/* Calls each for every state; it may change what it finds. A result other than 0 ends the walk, is
 * returned, and the state's text is printed; so a check should return, not jump. Negative also when
 * a state cannot be made. *ret_states (may be NULL): how many were checked. */
int io_crash_states(const struct io_record *r, const struct io_crash_opts *o,
		    int (*each)(void *arg, int dirfd, const struct io_crash *at), void *arg,
		    uint64_t *ret_states);

/* rm -rf dirfd/name (links are removed, not followed); 0 also when there is none. */
int io_tree_remove(int dirfd, const char *name);

/* A set of hashes, and random numbers: for what looks at states by itself. */
struct crash_set {
	uint64_t *slot, n, room; /* room: a power of two */
};
bool crash_set_add(struct crash_set *c, uint64_t h); /* false: it was there */
uint64_t crash_random(uint64_t *state);
#endif
