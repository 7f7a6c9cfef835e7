/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passes.h - what is made of a staged step in one walk over its slots (ckpt/move/walk.h), and which
 * steps are walked at all. Called by snap (when is a walk due?), persist (the walk of a step that
 * is written) and restore (the sums of a step in memory).
 *
 * Invariants: a step is walked once it is GUARDED, never before, so what a walk sees does not
 * change any more (a daemon that drains does not wait for guards: if one finds a change meanwhile,
 * the passes' end gets -ECANCELED); at most one walk of a job is seen by passes at a time, the
 * oldest step first, so a pass sees the steps in their order; and each pass sees a step once,
 * however often its files are written.
 *
 * Averages (average.h) are a pass of every step whose declarations have some. The walk that makes
 * them does not wait for the writer of the step, but goes ahead of it: what comes next needs them
 * as the average before its own, and a directory may hang. From passing_over on the next step may
 * be walked, too. The averages of a step that is not written give way to a step that is to be.
 *
 * Which steps are walked:
 *	that are written	sums, the check of what is derived, every pass that wants them: one walk, and
 *				the writer behind it, or beside it where it makes averages
 *	that a pass wants	that pass, and sums of its main and const parts, which cost little then
 *	the newest in memory	sums, once its daemon has had nothing else to do for PASSES_IDLE_NS: else each
 *				step would pay for it. Whatever comes meanwhile ends that walk.
 */
#ifndef DAEMON_PASSES_H
#define DAEMON_PASSES_H
#include "ckpt/base/hash.h"
#include "ckpt/move/walk.h"
#include "daemon/state.h"

#ifndef PASSES_IDLE_NS
#define PASSES_IDLE_NS (2 * NS_PER_S)
#endif
#define PASSES_MAX 4u

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

/* --- passes: daemon_opts has them --- */
enum pass_wants {
	PASS_NOT,
	PASS_ALONE,
	PASS_BEHIND, /* with the slot of the step that it has seen before */
};
struct pass_at {
	uint64_t step;
	uint32_t rank;
	const uint8_t *raw; /* of the main part, to which the span's table belongs */
	/* The same of the newest step that was walked for a PASS_BEHIND, held until this walk has
	 * ended; NULL: there is none, or its ranks had other declarations. */
	const uint8_t *before;
	uint64_t before_step;
};
/* A pass sees the main parts alone: what is const does not change. */
struct pass {
	/* Owner. The same answer as long as the step is. written: it will be, by the same walk. */
	enum pass_wants (*wants)(void *ctx, uint64_t step, bool written);
	/* walk_pass.span; several ranks at a time, each in a thread. < 0 fails the step. */
	int (*span)(void *ctx, const struct pass_at *at, const struct walk_span *s);
	/* Owner, once for each walk: rc 0, all of the step was seen; else what was made of it is
	 * dropped, and there may be another walk over the same step. */
	void (*end)(void *ctx, uint64_t step, int rc);
	void *ctx;
};

/* --- a walk over the slots of a step --- */
struct passing;
/* Owner. NULL: no memory. rescue: beside the step's own walks, and seen by no pass. */
struct passing *passing_new(struct snap *s, bool written, bool rescue);
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
/* Has a pass failed? Then the step has. */
bool passing_failed(const struct passing *x);
/* Owner. The main parts are walked and averages completed by a task of their own, beside the
 * writer of the step. done: the owner again; err: where rc is not 0. Until then no other thread
 * uses the main parts' tables and walks. */
void passing_ahead(struct passing *x, void (*done)(void *arg, int rc, const struct ckpt_err *err),
		   void *arg);
/* What passes want although the step could not be written; rc: of the writing. Worker. */
int passing_finish(struct passing *x, int rc, move_tick_fn *tick, void *arg, struct ckpt_err *err);
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
/* What its averages go on from is there, or it wants none. */
bool passes_ready(const struct snap *s);
/* An older step of its launch is to be rescued, so its averages are to be made first, and can
 * be. */
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
