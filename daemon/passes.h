/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passes.h - what is made of a staged step in one walk over its slots (ckpt/move/walk.h), and which
 * steps are walked. snap asks when a walk is due; persist walks the step that it writes; restore
 * uses the sums of a step in memory.
 *
 * Invariants: a step is walked after it is GUARDED, so its bytes do not change during the walk. (A
 * daemon that drains does not wait for guards. If a guard finds a change meanwhile, what the walk
 * made is dropped.) At most one walk of a job makes averages at a time, the oldest step first. The
 * averages of a step are made once, however often its files are written.
 *
 * The walk that makes averages (average.h) does not wait for the writer of the step, but goes ahead
 * of it: the next step needs them, and a directory may hang. After passing_over the next step may be
 * walked. The averages of a step that is not written give way to a step that is, unless an average
 * says `every`: then the older step is walked first, and it is not released before.
 *
 * Which steps are walked:
 *	one that is written		sums, the check of derived tensors, averages. The writer
 *					follows the walk, or runs beside a walk that makes averages
 *	one that lacks its averages	averages, and sums of its main and const parts
 *	the newest in memory		sums, after its daemon has had no other work for
 *					PASSES_IDLE_NS. Any other work ends that walk
 */
#ifndef DAEMON_PASSES_H
#define DAEMON_PASSES_H
#include "ckpt/base/hash.h"
#include "ckpt/move/walk.h"
#include "daemon/state.h"

#ifndef PASSES_IDLE_NS
#define PASSES_IDLE_NS (2 * NS_PER_S)
#endif

/* --- sums of a step in memory --- */

/*
 * The sums that a walk has made of a slot which stays in memory: entry i is of bytes [i MiB, + len)
 * of the slot (struct slotmem's base; main part and const part alike). len 0: that MiB
 * was not summed. What lies behind len in that MiB is no piece's, or is derived of what has sums.
 * Never changed once another thread can read it.
 */
struct slot_sum {
	struct hash128 sum;
	uint32_t len;
};
struct slot_sums {
	_Atomic uint32_t refs;
	uint64_t n;
	struct slot_sum *mib; /* [n] */
	/* Of all parts, by kind: the fingerprints of its table's pieces, and how many; NULL: it was
	 * not walked to its end. For a walk that writes the same slot later. */
	uint64_t *fp[PART_KINDS];
	uint32_t npiece[PART_KINDS];
};
struct slot_sums *slot_sums_ref(struct slot_sums *x); /* NULL is fine */
void slot_sums_unref(struct slot_sums *x);	      /* NULL is fine */
/* Of rank r's slot of a step that is staged; NULL: no walk has made any yet. A reference, for a
 * task that has one of the slot, too. Owner. */
struct slot_sums *passes_sums(const struct snap *s, uint32_t r);
/* Is MiB number i of the slot, which lies at p, what its sum says? True where there is no sum. Any
 * thread. */
bool slot_sums_match(const struct slot_sums *x, uint64_t i, const void *p);

/* --- a walk over the slots of a step --- */
struct passing;
/* Owner. NULL: no memory. rescue: beside the step's own walks, and seen by no pass. */
struct passing *passing_new(struct snap *s, bool rescue);
/* Part i of [0, PART_KINDS * world), as part_kind and part_rank count them. Its table, and the walk
 * over it, are made once: a second attempt to write the part goes on with them. That of averages
 * can be opened once these are made. Any thread, one a part. */
int passing_open(struct passing *x, uint32_t i, uint32_t nhelper, struct ckpt_err *err);
/* Is there such a part, or will there be when the walk has ended? */
bool passing_has(const struct passing *x, uint32_t i);
/* Does this walk make the step's averages? Until passing_over. */
bool passing_averages(const struct passing *x);
/* The result of the step's; NULL: it has none, or they are being made. */
const struct average_result *passing_average(const struct passing *x);
struct table *passing_table(struct passing *x, uint32_t i);
struct walk *passing_walk(struct passing *x, uint32_t i); /* NULL: not opened */
/* Owner. The main parts are walked and averages completed by a task of their own, beside the
 * writer of the step. done: the owner again; err: where rc is not 0. Until then no other thread
 * uses the main parts' tables and walks. */
void passing_ahead(struct passing *x, void (*done)(void *arg, int rc, const struct ckpt_err *err),
		   void *arg);
/* The sums, for passing_end. Worker, after the last walk; the tables may go afterwards. */
void passing_sum(struct passing *x);
/* Owner, once the main parts were walked: what passes made is kept or dropped; they are called;
 * pins move. rc: of the passes. Returns that, or -ECANCELED where the step came to nothing
 * meanwhile. */
int passing_over(struct passing *x, int rc);
/* Owner. passing_over, where that was not called yet; the sums are the step's. Frees x. */
void passing_end(struct passing *x, int rc);
/* Threads that may compute for a walk of so many parts. */
uint32_t passing_threads(uint32_t world, uint32_t *ret_helpers);

/* --- which steps (owner) --- */
/* A pass wants it and has not seen it: it is not released. */
bool passes_wait(const struct snap *s);
/* Averages alone want it, and cannot have it now: it may be released where slots are needed. */
bool passes_may_give_up(const struct snap *s);
/* Averages lack it, and can still take it in: a newer one is not written in its place. */
bool passes_owe(const struct snap *s);
/* What its averages go on from is there, or it wants none. */
bool passes_ready(const struct snap *s);
/* An older step of its launch is to be rescued, or an average of it says `every`, so its averages
 * are to be made first, and can be. */
bool passes_older_wait(const struct snap *s);
/* A walk that writes nothing is begun, if one is due. */
void passes_next(struct job *j);
/* The predecessor of what will not come is not held. */
void passes_let_go(struct job *j);
/* The step before the next one is this one, whatever it was; NULL: none in memory is. */
void passes_follow(struct job *j, struct snap *s);
/* Something is to be done: an idle walk ends. */
void passes_interrupt(struct job *j);
/* A step is to be written: so does a walk that makes the averages of one that is not. */
void passes_make_way(struct job *j);
#endif
