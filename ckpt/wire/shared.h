/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.h - the words that client and daemon share, and the state machine on them. This header is
 * its specification; shared.c holds every atomic access to it.
 *
 * GATE (job page): one 64-bit word, changed by compare-and-swap only, holds the newest ticket and
 * the free slots, so that the decision "step k goes into slot s, or is skipped" is made once per
 * host, by whichever rank comes first, and obeyed by all others. Older tickets are kept in past[8];
 * a rank that comes later than that, or with a step below the newest ticket's, skips. Tickets'
 * steps only grow. A mark that finds no free slot is skipped, or waits if it is FINAL: a step that is
 * staged stays until a newer one is staged, whatever a mark wants.
 *
 * SNAP (rank page): what this rank has in its newest snapshots; the state word carries a sequence
 * number, so a late compare-and-swap on a reused record fails.
 *
 *      FREE -> FILLING -> COPYING -> COPIED
 *                  \---------\-----> TORN
 *
 * FILLING: the library copies private memory to shared memory. COPYING: the daemon copies shared
 * memory to the slot.
 *
 * The copier alone makes COPIED, the client (guard, next snapshot, daemon gone) or the daemon
 * (client dead, another rank's copy torn) makes TORN; both by compare-and-swap from COPYING, so
 * exactly one of them decides. The trainer may change its state only after it has seen COPIED or
 * has itself written TORN: acquire on that load, release on the copier's swap, order the copier's
 * reads before the trainer's writes.
 *
 * UPDATING (rank page): 1 from a guard's return to the next snapshot. If a client dies while
 * COPYING and updating is 0, nobody can change the memory any more and the daemon finishes the
 * copy; else it is TORN.
 *
 * GUARDS: what is staged must not have changed while it was copied, and only a trainer that guards
 * gives that. A snapshot is *guarded* when this rank has guarded since, waits for it (ckpt_wait),
 * or marked it FINAL. It is *closed* when it is guarded, or when this rank has guarded at least
 * once and between every two of its snapshots so far. Closed is enough to be staged, so that slots
 * go round quickly; to be committed it must be guarded, or its rank dead or detached. A snapshot
 * that is followed by another without a guard between is dropped, whatever it has become, and
 * counted. That a rank guards at all is seen when it does so for the first time, be it before its first
 * snapshot: a trainer whose loop begins with a guard has its first step staged like any other, without
 * a guard after it.
 *
 * CANARY, CHANGED: a trainer that changes its state between ckpt_snapshot and ckpt_guard is found, with
 * a probability. At the mark the client notes some words of its memory in the record, before it is
 * published. The copier compares them with the slot before it swaps COPYING for COPIED; where one
 * differs it writes `why` and swaps for TORN instead. After COPIED, and before it lets the trainer go,
 * the guard reads the same words from memory again and compares other places of memory with the slot
 * (canary.h); where one differs the snapshot is *changed*: shared_snap_guarded says -1, so it is dropped,
 * staged or not.
 *
 * Why no change that a guard has found is missed. The guard stores changed[n], by release, before
 * guarded_mark, by release; whoever reads guarded_mark >= n, by acquire, then reads changed[n] as the
 * guard left it. A step is committed when all its ranks are guarded (or left, or died: then there is no
 * guard to find anything), so nothing that was found after the copy is committed. An entry of changed[]
 * stands for SHARED_CHANGED more snapshots; every one of them takes a slot, slots are given by the daemon
 * alone, and it looks at changed[] of all that it holds whenever it looks at the marks, which is before
 * it gives slots: so it looks before more than WIRE_SLOTS_MAX new ones can have been marked.
 */
#ifndef CKPT_WIRE_SHARED_H
#define CKPT_WIRE_SHARED_H
#include "ckpt/ckpt.h"
#include <stdatomic.h>
#include <stdbool.h>

#define SHARED_MAGIC 0x67617063u
#define SHARED_SNAPS 4
#define SHARED_PAST 8
#define SHARED_OUTCOMES 64
#define SHARED_NOTES 16
#define SHARED_SKIPS 8 /* as WIRE_SKIPS */
#define SHARED_CHANGED 64
#define SHARED_CANARY_MAX 512
/* a daemon silent for so long counts as gone */
#define SHARED_BEAT_DEAD_NS UINT64_C(5000000000)
#define SHARED_SKIP 0xf /* ticket.slot */
/* From one ticket to the next steps grow by less than this: a ticket knows 36 bits of its step. */
#define SHARED_JUMP_MAX (UINT64_C(1) << 35)

/*
 * START (job page): may this launch take snapshots at all? A first commit sets aside what it does not
 * continue, so it must be known that this is meant. UNASKED: there are steps, on disk or staged, and no
 * rank has asked for them; the daemon says so at the claim, and takes it back when a restore has
 * succeeded or has found nothing. FRESH: a rank has called ckpt_fresh; this is never taken back.
 */
enum shared_start { START_CLEAR, START_UNASKED, START_FRESH };

enum snap_state { SNAP_FREE, SNAP_FILLING, SNAP_COPYING, SNAP_COPIED, SNAP_TORN };
enum { TICKET_PERSIST = 1, TICKET_FINAL = 2 }; /* ticket.flags */
/* record.flags, besides the ticket's: no average is made of this step (CKPT_NO_EMA of this rank) */
enum { RECORD_NO_AVERAGE = 4 };
/* The same: this rank could copy nothing of the step, so its record is TORN from the beginning. */
enum { RECORD_NOT_COPIED = 16 };
/* shared_ticket's want: this rank cannot copy the step, so it takes no slot. The first rank that asks
 * thereby makes the step SHARED_SKIP for all, and that ticket's flags are TICKET_REFUSED. If the step has
 * a slot already, its ticket is returned, and a record that is TORN tells the daemon. */
enum { TICKET_REFUSE = 4, TICKET_REFUSED = 1 };

struct shared_note {
	char key[48];
	double value;
};
struct shared_record { /* what a rank says of a snapshot */
	uint64_t step, mark_ns;
	uint32_t epoch, slot, flags; /* flags: of the ticket */
	uint16_t ticket_seq, nnote;
	uint64_t unguarded; /* that this rank had counted when it marked this one */
	struct shared_note note[SHARED_NOTES];
};
/* A stretch of 1 to 8 bytes as it was at the mark. off: in the slot, and its length in the top byte. */
struct shared_canary_word {
	uint64_t off, word;
};
#define SHARED_CANARY_LEN(off) ((uint32_t)((off) >> 56))
#define SHARED_CANARY_OFF(off) ((off) & ((UINT64_C(1) << 56) - 1))
struct shared_canary {
	uint32_t n, zero;
	struct shared_canary_word at[SHARED_CANARY_MAX];
};
struct shared_snap {
	_Atomic uint64_t word; /* seq << 8 | enum snap_state */
	/* 0, or the place in the slot at which the state was found to be changed: (seq & 0xffff) << 48 |
	 * 1 + offset. For messages: what counts is TORN, and changed[] */
	_Atomic uint64_t why;
	struct shared_record rec;    /* by shared_snap_write and shared_snap_read only */
	struct shared_canary canary; /* by shared_canary_write and shared_canary_read only */
};

struct shared_rank { /* written by the client unless said otherwise */
	uint32_t magic, rank;
	_Atomic uint32_t updating;
	_Atomic uint32_t wake;	  /* futex: the copier adds 1 when a copy ends */
	_Atomic uint32_t waiting; /* a guard waits on wake */
	/* snapshots so far; record of the n-th (1, 2, ...) is snap[n % SHARED_SNAPS] */
	_Atomic uint64_t marks;
	/* guards so far that followed a snapshot; 1 after one before the first snapshot */
	_Atomic uint64_t guards;
	_Atomic uint64_t guarded_mark;	 /* marks at the newest guard */
	_Atomic uint64_t unguarded;	 /* snapshots that no guard followed before the next one */
	_Atomic uint64_t unguarded_mark; /* the newest such */
	_Atomic uint64_t waited_step;	 /* 1 + step of the newest ckpt_wait */
	/* [n % SHARED_CHANGED] is n: snapshot n was found to be changed before its guard */
	_Atomic uint64_t changed[SHARED_CHANGED];
	/* 1 + step: the same of a snapshot that was marked in the page of an earlier daemon */
	_Atomic uint64_t changed_step;
	_Atomic uint64_t copy_bytes, copy_ns; /* daemon */
	/* how long ckpt_snapshot and ckpt_guard kept the trainer: in all, at most, since the newest
	 * mark; and since when that is measured (CLOCK_MONOTONIC) */
	_Atomic uint64_t stall_sum_ns, stall_max_ns, stall_last_ns, stall_since_ns;
	/* by enum wire_skip: snapshots that were skipped since the handle was attached, also by way
	 * of an earlier daemon */
	_Atomic uint64_t skipped[SHARED_SKIPS];
	/* 1 + the commonest reason: of the newest 32 snapshots more than half were skipped, and not
	 * yet three quarters taken since; 0: not so */
	_Atomic uint32_t skipping, zero;
	struct shared_snap snap[SHARED_SNAPS];
};

enum outcome_state {
	OUTCOME_NONE,
	OUTCOME_COPYING,
	OUTCOME_STAGED,
	OUTCOME_PERSISTED,
	OUTCOME_COMMITTED,
	OUTCOME_TORN,
	OUTCOME_FAILED
};
struct shared_outcome { /* daemon; read under ver: even and unchanged */
	_Atomic uint32_t ver;
	uint32_t pad;
	uint64_t step;
	uint16_t state;
	/* of its ticket, so that a step that is marked once more is not taken for what became of it
	 * before; 0: taken over from an earlier daemon */
	uint16_t ticket_seq;
	/* FAILED, TORN: negative errno. STAGED: 1 it is to be written, 0 nobody will write it */
	int32_t code;
	uint64_t staged_ns, persisted_ns, committed_ns; /* since the first mark */
	char text[512];					/* FAILED, TORN: why */
};

#define SHARED_TEXT 512
/* A sentence, written by the daemon alone; read by shared_text_get. */
struct shared_text {
	_Atomic uint32_t ver; /* odd while it is being written */
	/* grows when the sentence is to be said anew: it is of another kind than before */
	_Atomic uint32_t changes;
	_Atomic int32_t code; /* negative errno; 0: there is nothing to say */
	uint32_t pad;
	char text[SHARED_TEXT];
};

struct shared_job {
	uint32_t magic, world, nslot;
	/* daemon: ticket flags that the next mark is to have, whatever persist_every says. PERSIST:
	 * an operator wants it written. FINAL besides: and that it waits for a slot, no more: only
	 * the trainer itself can say that a mark is its last. */
	_Atomic uint32_t trigger;
	uint64_t generation;
	_Atomic uint64_t beat_ns;  /* daemon: CLOCK_MONOTONIC, twice a second */
	_Atomic uint32_t fenced;   /* daemon: 1: a newer launch took over */
	_Atomic uint32_t draining; /* daemon: 1: stopping, tickets skip */
	_Atomic uint32_t start;	   /* daemon: enum shared_start */
	/* daemon: the slots of this epoch are in memory and may be used; 0 none */
	_Atomic uint32_t ready_epoch;
	/* daemon: the ranks' declarations do not fit together; why is in trouble */
	_Atomic uint32_t refused;
	/* futex: daemon adds 1 whenever something below or above changes */
	_Atomic uint32_t event;
	_Atomic uint64_t gate; /* both */
	/* clients: 1 + the step, whole, of the newest ticket or of the one before it; before the first
	 * one of whichever rank asked for it first; 0: none has */
	_Atomic uint64_t ticketed;
	_Atomic uint64_t past[SHARED_PAST]; /* clients */
	_Atomic uint64_t newest[5];	    /* [enum ckpt_state]: 1 + newest step there; daemon */
	_Atomic uint64_t count[8];	    /* [enum outcome_state]; daemon */
	_Atomic uint32_t next_outcome;
	struct shared_outcome outcome[SHARED_OUTCOMES];
	char trouble[4096]; /* written before refused */
	/* daemon: why what should have been written could not be; which ranks the others wait for in
	 * ckpt_seal or ckpt_restore (changes: they have waited for some seconds) */
	struct shared_text failing, waits;
};

struct ticket {
	uint64_t tag;
	uint16_t seq;
	uint8_t slot, flags;
};
/* Of its step the 36 bits that a ticket knows. */
uint64_t shared_ticket_step(struct ticket t);
/* Tickets are numbered modulo 2^11: < 0, 0, > 0 as a is older than, is, is newer than b. */
int shared_seq_cmp(uint16_t a, uint16_t b);

/* --- clients --- */
/* The host's decision for a step: taken now or found. 0 with *ret (slot may be SHARED_SKIP);
 * -ESTALE when the step is older than what is remembered; -ERANGE when it is 2^35 or more beyond the
 * newest one. want: ticket flags, or TICKET_REFUSE. may_wait: instead of writing SKIP return -EAGAIN. attempt: how
 * often this rank has marked this very step before; a step that was skipped or torn is marked again
 * by all ranks alike, and that is another ticket. */
int shared_ticket(struct shared_job *job, uint64_t step, uint32_t attempt, uint32_t want,
		  bool may_wait, struct ticket *ret);
/* The next snap record, no longer anybody else's; to be written, then published with a state:
 * FILLING, COPYING, or TORN. */
struct shared_snap *shared_snap_next(struct shared_rank *r);
void shared_snap_write(struct shared_snap *s, const struct shared_record *rec);
void shared_snap_publish(struct shared_rank *r, struct shared_snap *s, enum snap_state state);
/* The newest record, NULL when there is none. */
struct shared_snap *shared_snap_newest(struct shared_rank *r);
enum snap_state shared_snap_state(const struct shared_snap *s, uint64_t *ret_seq);
/* What a published record says, whole: 0 and its sequence number and state as they were then.
 * -EAGAIN: it is not published, or was written anew meanwhile. Any thread of either side. */
int shared_snap_read(const struct shared_snap *s, uint64_t *ret_seq, enum snap_state *ret_state,
		     struct shared_record *ret);
/* CAS (seq, from) -> to. True when this call made the change. */
bool shared_snap_move(struct shared_snap *s, uint64_t seq, enum snap_state from,
		      enum snap_state to);
/* Tear the newest snapshot if its copy is not finished. True when it is torn by this call. */
bool shared_tear(struct shared_rank *r);
/* What a snapshot does first: tear an unfinished older one, count it if no guard followed it, say
 * that the state is stable. True: the older one is now counted as unguarded. */
bool shared_stable(struct shared_rank *r);
/* What a guard does last: say that the state may change, and whether it had been changed before. */
void shared_update(struct shared_rank *r, bool changed);
/* The words of the record of shared_snap_next, before it is published. */
void shared_canary_write(struct shared_snap *s, const struct shared_canary_word *at, uint32_t n);

/* --- daemon --- */
/* A slot's free bit is set by the daemon alone and cleared by whoever takes the slot; the daemon
 * sets it again only after it has dealt with the ticket that took it. */
void shared_gate_give(struct shared_job *job, uint32_t slot);
void shared_gate_take(struct shared_job *job, uint32_t slot);
/*
 * All ranks have been given step `step` again, none of them is in ckpt_snapshot, and none will be before it is
 * answered: tickets go on from there, the older ones are forgotten, and these slots are free. The sequence
 * number stays, so no record is taken for another one.
 */
void shared_gate_back(struct shared_job *job, uint64_t step, uint32_t free_mask);
/* One look at the gate: the tickets since *seen (0: all that are remembered), oldest first, at most
 * SHARED_PAST + 1, and the free slots as they were at the newest. *seen becomes the newest. A ticket
 * that was forgotten before anybody looked is void: no copier ever hears of it, its ranks'
 * snapshots are torn, and the slot it took is neither free nor in anybody's hand: it is to be given
 * again. */
uint32_t shared_gate_look(const struct shared_job *job, uint16_t *seen, struct ticket *ret_ticket,
			  uint32_t *ret_free);
/* See GUARDS above. mark: the number of the snapshot, 1, 2, ... guarded: 1 yes, 0 not yet, -1 never
 * will be: to be dropped. */
int shared_snap_guarded(const struct shared_rank *r, uint64_t mark,
			const struct shared_record *rec);
bool shared_snap_closed(const struct shared_rank *r, uint64_t mark,
			const struct shared_record *rec);
bool shared_snap_changed(const struct shared_rank *r, uint64_t mark);
/* Copier: COPYING -> COPIED and wake the guard. False: it was torn. */
bool shared_snap_copied(struct shared_rank *r, struct shared_snap *s, uint64_t seq);
/* The words of snapshot seq, whole: 0. -EAGAIN: its record was taken for another one. */
int shared_canary_read(const struct shared_snap *s, uint64_t seq, struct shared_canary *ret);
/* The offset of the first word that these bytes hold otherwise; UINT64_MAX: there is none. */
uint64_t shared_canary_compare(const struct shared_canary *x, const void *slot, uint64_t bytes);
/* The daemon gives a copy up, too: COPYING -> TORN and wake the guard. */
void shared_snap_drop(struct shared_rank *r, struct shared_snap *s, uint64_t seq);
void shared_outcome_set(struct shared_job *job, uint64_t step, uint16_t ticket_seq,
			enum outcome_state state, int code, const uint64_t phase_ns[3],
			const char *text);
/* Of steps above this one nothing is known any more: their numbers come again. */
void shared_outcomes_forget(struct shared_job *job, uint64_t step);
/* A step that is told to be staged is to be written after all. */
void shared_outcome_to_write(struct shared_job *job, uint64_t step);
void shared_event(struct shared_job *job); /* add 1 to event and wake all */
/* code 0: there is no sentence any more. again: it is to be said anew. */
void shared_text_set(struct shared_text *t, int code, const char *text, bool again);

/* --- both --- */
/* At which offset of the slot snapshot seq was found to be changed, before its state says so. */
void shared_why_set(struct shared_snap *s, uint64_t seq, uint64_t off);
bool shared_why_get(const struct shared_snap *s, uint64_t seq, uint64_t *ret_off);
/* The newest outcome of a step; false: none known. */
bool shared_outcome_get(const struct shared_job *job, uint64_t step, struct shared_outcome *ret);
/* Its state alone, for the snapshot path; OUTCOME_NONE: none known. */
enum outcome_state shared_outcome_state(const struct shared_job *job, uint64_t step,
					uint16_t *ret_ticket_seq);
/* The code, and the sentence; 0 and "": there is none. */
int shared_text_get(const struct shared_text *t, char ret[SHARED_TEXT]);
/* Futexes on shared words. Wait returns 0 when woken or changed, -ETIMEDOUT, -EINTR. */
int shared_futex_wait(const _Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void shared_futex_wake(const _Atomic uint32_t *word);
#endif
