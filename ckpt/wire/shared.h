/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.h - the words that client and daemon share, and the state machine on them. This header is
 * its specification; shared.c holds every atomic access to it.
 *
 * GATE (job page): one 64-bit word, changed by compare-and-swap only, holds the newest ticket and
 * the free slots, so that the decision "step k goes into slot s, or is skipped" is made once per
 * host, by whichever rank comes first, and obeyed by all others. Older tickets are kept in past[8];
 * a rank that comes later than that, or with a step below the newest ticket's, skips. Tickets'
 * steps never shrink. A mark that finds no free slot is skipped, or waits if it is FINAL: a step
 * that is staged stays until a newer one is staged, whatever a mark wants.
 *
 * AGAIN: a step that was skipped or torn may be marked again, any number of times, and each rank
 * may begin to do so at another time. Therefore attempts are not counted: a decision is known by
 * its step, its number and, if it is a skip, its round. A rank says which one of this step it has
 * *spent*: the newest that it was given, if that was a skip, or if it has published a record for
 * it. If the newest decision is another one of this step, the rank obeys it: so ranks that mark
 * together skip together. If it is the spent one, the rank decides anew. A skip after a skip is the
 * same ticket in its next round; so a rank that asks in a loop uses up no numbers and pushes
 * nothing out of past[]. All else is a new ticket: with a slot after a skip, with a slot or a skip
 * after a ticket that had a slot. If the newest ticket is of a later step, then the newest of this
 * step in past[] is obeyed, unless it is not newer than the spent one. Rounds count modulo 16: a
 * rank that takes the newest for the spent one decides anew, which does no harm.
 *
 * SNAP (rank page): what this rank has in its newest snapshots. One word, `seq << 8 | need << 4 |
 * state`, is all that decides; the sequence number makes a late compare-and-swap on a reused record
 * fail.
 *
 *      FREE -> COPYING -> COPIED
 *         \---------\----> TORN
 *
 * Two copiers fill a slot. The daemon copies what lies in shared memory: memory of ckpt_alloc, and
 * what ckpt_snapshot itself has put there by value (VOLATILE, blobs). The library copies the rest,
 * from the process's own memory straight into the slot, or lets a device do so. The bits of need
 * name the copiers that have not ended: DAEMON, CLIENT. ORDERED besides CLIENT: all copies are
 * queued on devices, in order.
 *
 *   # | change                      | by which side, when
 *   1 | any but COPYING -> FREE(n)  | client: it takes the record for mark n
 *   2 | FREE -> COPYING(need)       | client: record, canary and by-value bytes are written; `copying`
 *     |                             | of the slot is n if need has CLIENT; then `marks`, then the bell
 *   3 | FREE -> TORN                | client: a slot was taken, but its own copier has too many still, or
 *     |                             | a blob is too long, or the ticket is over (below)
 *   4 | COPYING clears DAEMON       | daemon's copier: its last byte is copied
 *   5 | COPYING clears CLIENT, and  | client's copier: its last byte is copied; of devices: all words
 *     | ORDERED                     | of `done` that the record names have reached its `target`
 *   6 | COPYING sets ORDERED        | client: every copy, and the event that its guard waits for, is queued
 *   7 | COPYING -> TORN             | client: the guard is out of budget, the next mark comes, or the daemon
 *     |                             | ended and need has DAEMON. After a guard that returned by (c) only
 *     |                             | if a later one names a stream that cannot wait
 *   8 | COPYING -> TORN             | client's copier: the memory is not there (EFAULT), the device failed,
 *     |                             | or its memory was changed while it was copied (client/canary.h)
 *   9 | COPYING -> TORN             | daemon: another rank tore or left; this one died with CLIENT in need,
 *     |                             | or with DAEMON after its guard or without guards (UPDATING below)
 *  10 | COPYING clears CLIENT, and  | daemon: this client is dead, ORDERED is set and `done` has reached
 *     | ORDERED                     | `target`, as in 5: the devices have done all of it
 *
 * 4, 5 and 10: the side that would clear the last bit of need compares the canary (below) instead,
 * and swaps for COPIED, or, if a word differs, for TORN. No other bit is left then, so no other
 * side can. After 4, 5 and 6 the guard is woken, whatever is left: it may wait for DAEMON to go as
 * much as for COPIED. After 5 and 8 the client rings the bell, for the daemon has no task that
 * would end.
 *
 * Why it holds. From 2 on the word sees only read-modify-writes. A copier's swap releases its
 * writes to the slot and its reads of the source; the next one acquires them and goes on with the
 * release sequence. So a thread that reads COPIED sees every byte of the slot and comes after every
 * read of the source. COPIED and TORN exclude each other, because each is a swap from COPYING of
 * one seq. The trainer may change its state when its guard has seen (a) COPIED, or (b) TORN, its
 * own or another's, or (c) need is CLIENT|ORDERED, and its stream waits for the event: the device
 * reads the source before it does what is queued behind. Policy NEVER does not use (c). `done` has
 * one aligned word for each device, on a page of their own: a device writes its word behind its
 * copies, with a fence, so a thread that reads a value at or beyond `target` (acquire) sees what
 * that device wrote. A guard that returned by (c) has said so by guarded_mark, before which it
 * tears whatever is unfinished: so a snapshot that is COPYING though guarded_mark is its number is
 * left alone, by a second guard whose streams wait too, and by the next marks, whose own copies the
 * devices do behind it. It may be COPYING still when its record's turn comes again: that mark is
 * skipped.
 *
 * COPYING (rank page): for each slot the word `copying` is the snapshot for which the client's
 * copier, all its threads and the devices together, may still write to it, or 0. It is stored
 * before 2, and set to 0 (release) when the last write has ended: inside 5, before the swap, so
 * that a trainer which sees COPIED does not find its own copier busy; else when the copier has
 * stopped, and then the bell is rung. Only its own snapshot's, and no other slot's: the trainer may
 * have marked others by then. After a guard has torn a snapshot a thread may go on for at most one
 * piece of work (1 MiB), for it looks at the word before each; a device does all that was queued,
 * and until then `copying` stays.
 *
 * A slot goes back to the gate only when no rank's `copying` of it is set, or the *process* of that
 * rank is dead, which its pidfd says: a socket may end while a copier still runs.
 *
 * OVER (job page). A rank may be late: it has its ticket, and before it stores `copying` the daemon
 * gives the step up, because another rank tore it, and finds no copier in the slot. Therefore the
 * daemon first stores over[slot], the newest ticket so far, then looks at every `copying`, then
 * gives the slot; and the rank first stores `copying`, then looks at over[slot]: a ticket that is
 * not newer is over, and 3 follows. All four are sequentially consistent, so one of the two sees
 * the other. No ticket that is newer than the gate's newest can have a slot that is not free.
 * Newer is the ticket of the later step, or of one step the one of the later number. Steps are
 * compared modulo 2^36 and numbers modulo 2^15. So of one step the look is wrong only for a rank
 * that stands still between its ticket and its look while the other ranks make 2^14 tickets of
 * this step, at least every second of which has a slot. Each of these is torn for want of that
 * rank's record, so even then nothing that is staged lies in the slot.
 *
 * LINKS. A client that attaches again brings its slots along (ADOPT) to a page whose `copying` are
 * 0: it sends none before its own copier has ended, and no BYE either. A launch that takes over
 * slots of an earlier one does so only from processes that are dead or have said BYE.
 *
 * UPDATING (rank page): 1 from a guard's return to the next snapshot. If a client dies while
 * COPYING(DAEMON) and updating is 0, the memory cannot change any more and the daemon finishes
 * the copy; else it is TORN. 10 needs no look at it: the device has read before it updated.
 *
 * GUARDS: what is staged must not have changed while it was copied, and only a trainer that guards
 * gives that. A snapshot is *guarded* when this rank has guarded since, waits for it (ckpt_wait),
 * or marked it FINAL. It is *closed* when it is guarded, or when this rank has guarded at least
 * once and between every two of its snapshots so far. Closed is enough to be staged, so that slots
 * go round quickly; to be committed it must be guarded, or its rank dead or detached. A snapshot
 * that is followed by another without a guard between is dropped, whatever it has become, and
 * counted. That a rank guards at all is seen when it does so for the first time, be it before its
 * first snapshot: a trainer whose loop begins with a guard has its first step staged like any
 * other, without a guard after it.
 *
 * CANARY, CHANGED: a trainer that changes its state between ckpt_snapshot and ckpt_guard is found,
 * with a probability. At the mark the client notes some words of its memory in the record, before
 * it is published. The side that makes COPIED, the daemon's copier or the client's, compares them
 * with the slot first; where one differs it writes `why` and swaps for TORN instead. After COPIED,
 * and before it lets the trainer go, the guard reads the same words from memory again and compares
 * other places of memory with the slot (canary.h); where one differs the snapshot is *changed*:
 * shared_snap_guarded says -1, so it is dropped, staged or not.
 *
 * Why no change that a guard has found is missed. The guard stores changed[n], by release, before
 * guarded_mark, by release; a thread that reads guarded_mark >= n, by acquire, then reads
 * changed[n] as the guard left it. A step is committed when all its ranks are guarded (or left, or
 * died: then there is no guard to find anything), so nothing that was found after the copy is
 * committed. An entry of changed[] stands for SHARED_CHANGED more snapshots; every one of them
 * takes a slot, slots are given by the daemon alone, and it looks at changed[] of all that it holds
 * whenever it looks at the marks, which is before it gives slots: so it looks before more than
 * WIRE_SLOTS_MAX new ones can have been marked.
 *
 * REPLICAS: the daemon compares replicas, in turns (daemon/drift.h), and the library brings it those
 * bytes of them that it cannot read itself. All ranks take the same turn of a step: 1 + turn is in
 * the job page, at the slot of the step; 0: no turn. The daemon stores it before it gives the slot,
 * and changes it only before it gives the slot again, so the order of OVER holds for it: a rank
 * reads it between its store of `copying` and its look at over[slot], and if the slot was given
 * anew by then, the ticket is over. If the library has copied all WIRE_ROW_REPLICA rows of the
 * turn, it stores `n << 8 | 1 + turn` in replicas[n % SHARED_SNAPS] of its page, before its bit is
 * cleared by 5; so the daemon that reads COPIED reads it, and all these bytes in the slot. By 10
 * they are not known to be there. If a source of them is not there any more, the word is not
 * stored, and the snapshot goes on.
 *
 * LAST: after which step does the whole launch stop? One word of the job page decides:
 * `LAST << 63 | line << 55 | n`. Without LAST, n is 1 + the highest step for which ckpt_last has
 * returned "not the last" to any rank, or 0 before any step; with LAST, n is 1 + the last step. The
 * word is changed by compare-and-swap only, and all changes but C keep line:
 *
 *   # | change                      | by which side, when
 *   A | n -> step + 1, if greater   | client: ckpt_last of a step; it then says "not the last"
 *   B | n -> LAST, n + 1            | client: ckpt_stop
 *   C | line, n -> line + 1, 0;     | client: its ckpt_restore succeeded, and line is what it was
 *     | LAST stays                  | when the rank sent its request
 *
 * ckpt_last says "last" if LAST is set and the step is not below the last one, and it says "not the
 * last" if LAST is set and the step is below it. So A and B are ordered by the word: if ckpt_last
 * returns "last" to one rank, it returns "not the last" to no other rank for the same step.
 *
 * C: no rank has the answer of a restore before all ranks have sent their requests, and none does A
 * in between. So all of them have noted the same line, and the first one that has the answer does
 * C, before its next A; for the others line is another one already. Therefore all ranks begin anew
 * after the same step. A stop that was asked for stays: the first step after the restore is the
 * last one then.
 *
 * The word belongs to the ranks, and the daemon does not use it. It need not move to the page of
 * the next daemon, because pages stay mapped: the ranks of a launch use, for ever, the oldest page
 * on which all of them have met (`joined`, which the daemon stores whenever an epoch is ready and
 * never takes back). It is the same page for every rank, because no rank can be
 * replaced within a launch. Before there is one, a rank uses the oldest page that it has, or its
 * own word if it has none. By A and B the rank carries that word to the first page on which all
 * have met.
 */
#ifndef CKPT_WIRE_SHARED_H
#define CKPT_WIRE_SHARED_H
#include "ckpt/ckpt.h"
#include "ckpt/base/atomic.h"
#include <stdbool.h>

#define SHARED_MAGIC 0x67617063u
#define SHARED_SNAPS 4
#define SHARED_PAST 8
#define SHARED_GATE_SLOTS 4 /* as WIRE_SLOTS_MAX */
#define SHARED_OUTCOMES 64
#define SHARED_NOTES 16
#define SHARED_SKIPS 8 /* as WIRE_SKIPS */
#define SHARED_DEVICES 32
#define SHARED_CHANGED 64
#define SHARED_WHOLE 256u /* as WIRE_WHOLE_MAX */
#define SHARED_CANARY_MAX 512
/* a daemon without a beat for so long counts as ended */
#define SHARED_BEAT_DEAD_NS UINT64_C(5000000000)
#define SHARED_SKIP 0xf /* ticket.slot */
/* From one ticket to the next steps grow by less than this: a ticket knows 36 bits of its step. */
#define SHARED_JUMP_MAX (UINT64_C(1) << 35)

/*
 * START (job page): may this launch take snapshots at all? A first commit sets aside what it does
 * not continue, so it must be known that this is meant. UNASKED: there are steps, on disk or
 * staged, and no rank has asked for them; the daemon says so at the claim, and takes it back when a
 * restore has succeeded or has found nothing. FRESH: a rank has called ckpt_fresh; this is never
 * taken back.
 */
enum shared_start { START_CLEAR, START_UNASKED, START_FRESH };

enum snap_state { SNAP_FREE, SNAP_COPYING, SNAP_COPIED, SNAP_TORN };
enum snap_need { NEED_DAEMON = 1, NEED_CLIENT = 2, NEED_ORDERED = 4 };
enum { TICKET_PERSIST = 1, TICKET_FINAL = 2 }; /* ticket.flags */
/* record.flags, besides the ticket's: no average is made of this step (CKPT_NO_EMA of this rank) */
enum { RECORD_NO_AVERAGE = 4 };
/* The same: this rank could copy nothing of the step, so its record is TORN from the beginning. */
enum { RECORD_NOT_COPIED = 16 };
/* The same: this rank's mark itself says whether the step is to be written (CKPT_PERSIST,
 * CKPT_STAGE_ONLY), so no other step is written in its place, nor it in another one's. */
enum { RECORD_BY_HAND = 32 };
/* shared_ticket's want: this rank cannot copy the step, so it takes no slot. The first rank that
 * asks thereby makes the step SHARED_SKIP for all, and that ticket's flags are TICKET_REFUSED. If
 * the step has a slot already, its ticket is returned, and a record that is TORN reports
 * it to the daemon. */
enum { TICKET_REFUSE = 4, TICKET_REFUSED = 1 };

struct shared_note {
	char key[48];
	double value;
};
struct shared_record { /* what a rank says of a snapshot */
	uint64_t step, mark_ns;
	uint32_t epoch, rev; /* of the declaration whose rows are copied */
	uint16_t slot, flags, ticket_seq, nnote;
	/* ORDERED: the devices n whose bits 1 << n are set copy; each is done when
	 * (int32_t)(done[n] - target) >= 0 */
	uint32_t target, devices;
	uint32_t turn, nwhole; /* of derived tensors: see turns.h */
	uint64_t unguarded;    /* that this rank had counted when it marked this one */
	/* steps that this rank has marked so far, this one among them, each once, whatever became
	 * of them; after a restore it counts on from the number of the restored step */
	uint64_t marked;
	struct shared_note note[SHARED_NOTES];
};
/* A stretch of 1 to 8 bytes as it was at the mark. off: in the slot, and its length in the top
 * byte. */
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
	_Atomic uint64_t word; /* seq << 8 | enum snap_need << 4 | enum snap_state */
	/* 0, or the place in the slot at which the state was found to be changed: (seq & 0xffff) <<
	 * 48 | 1 + offset. For messages: what counts is TORN, and changed[] */
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
	/* 1 + the newest step that it marked and asked no ticket for, because it must seal again:
	 * the other ranks, which may have one, need not wait for its record. 0: it has asked since. It
	 * says nothing of steps that are marked after its next DECLARE */
	_Atomic uint64_t passed_step;
	/* [n % SHARED_CHANGED] is n: snapshot n was found to be changed before its guard */
	_Atomic uint64_t changed[SHARED_CHANGED];
	/* 1 + step: the same of a snapshot that was marked in the page of an earlier daemon */
	_Atomic uint64_t changed_step;
	/* epoch << 8 | slots that its copier is prepared for: one that comes within an epoch is
	 * given to the gate when all ranks are */
	_Atomic uint64_t prepared;
	_Atomic uint64_t copying[SHARED_GATE_SLOTS]; /* see COPYING above */
	_Atomic uint64_t copy_bytes, copy_ns;	     /* daemon */
	_Atomic uint64_t own_bytes, own_ns;	     /* the client's copier */
	/* how long ckpt_snapshot and ckpt_guard kept the trainer: in all, at most, since the newest
	 * mark; and since when that is measured (CLOCK_MONOTONIC) */
	_Atomic uint64_t stall_sum_ns, stall_max_ns, stall_last_ns, stall_since_ns;
	_Atomic uint64_t every_waits, every_wait_ns; /* as ckpt_stats.average_waits */
	/* by enum wire_skip: snapshots that were skipped since the handle was attached, also by way
	 * of an earlier daemon */
	_Atomic uint64_t skipped[SHARED_SKIPS];
	/* 1 + the commonest reason: of the newest 32 snapshots more than half were skipped, and not
	 * yet three quarters taken since; 0: not so */
	_Atomic uint32_t skipping;
	/* How many agreements of ckpt_restore (ckpt_opts.agree) this rank has begun, twice, and 1
	 * more while it is in one after its own call has failed. So if this is odd, and of one
	 * agreement more than that of a rank that still waits in ckpt_restore, each of the two waits
	 * for the other. Of a process that took the place of another nothing is known from this: it
	 * has begun fewer, and waits up to its deadline. */
	_Atomic uint32_t agreements;
	/* daemon: derived tensors of devices; see turns.h */
	_Atomic uint64_t turns, turn_order;
	_Atomic uint32_t whole[SHARED_WHOLE];
	/* [n % SHARED_SNAPS] is n: the turn of snapshot n was compared and is equal */
	_Atomic uint64_t compared[SHARED_SNAPS];
	_Atomic uint64_t replicas[SHARED_SNAPS]; /* see REPLICAS above */
	struct shared_snap snap[SHARED_SNAPS];
	/* the devices; alone on their page, which is registered */
	_Alignas(4096) _Atomic uint32_t done[SHARED_DEVICES];
};

enum outcome_state {
	OUTCOME_NONE,
	OUTCOME_COPYING,
	OUTCOME_STAGED,
	OUTCOME_PERSISTED,
	OUTCOME_COMMITTED,
	OUTCOME_TORN,
	OUTCOME_FAILED,
	OUTCOME_THINNED /* staged; a newer one is written in its place: its heir */
};
struct shared_outcome { /* daemon; read under ver: even and unchanged */
	_Atomic uint32_t ver;
	uint32_t pad;
	uint64_t step;
	uint16_t state;
	/* of its ticket, so that a step that is marked once more is not taken for what became of it
	 * before; 0: taken over from an earlier daemon */
	uint16_t ticket_seq;
	/* FAILED, TORN: negative errno. STAGED: 1 it is to be written, 0 it will not be written */
	int32_t code;
	uint64_t staged_ns, persisted_ns, committed_ns; /* since the first mark */
	uint64_t heir;					/* THINNED: that step */
	char text[512];					/* FAILED, TORN, THINNED: why */
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

/* as many as may be found between two looks: the library looks once a second */
#define SHARED_DRIFTS 32

struct shared_job {
	uint32_t magic, world;
	/* daemon: how many slots have memory. It is written before ready_epoch and may be less
	 * than the SEALED of that epoch says, if the host has no memory for the last one, or it is
	 * not needed yet: then no copier of the rank touches that slot. It may grow to that number
	 * later in the epoch (`prepared` of the ranks). */
	_Atomic uint32_t nslot;
	/* daemon: ticket flags that the next mark is to have, whatever persist_every says. PERSIST:
	 * an operator wants it written. FINAL besides: and that it waits for a slot, no more: only
	 * the trainer itself can say that a mark is its last. */
	_Atomic uint32_t trigger;
	_Atomic uint64_t generation; /* daemon; 0: unclaimed */
	_Atomic uint64_t beat_ns;    /* daemon: CLOCK_MONOTONIC, twice a second */
	_Atomic uint32_t fenced;     /* daemon: 1: a newer launch took over */
	_Atomic uint32_t draining;   /* daemon: 1: stopping, tickets skip */
	_Atomic uint32_t start;	     /* daemon: enum shared_start */
	/* daemon: the slots of this epoch are in memory and may be used; 0 none */
	_Atomic uint32_t ready_epoch;
	/* daemon: the ranks' declarations do not fit together; why is in trouble */
	_Atomic uint32_t refused;
	/* futex: daemon adds 1 whenever something below or above changes */
	_Atomic uint32_t event;
	_Atomic uint64_t gate; /* both */
	/* clients: 1 + the step, whole, of the newest ticket or of the one before it; before the
	 * first one of whichever rank asked for it first; 0: none has */
	_Atomic uint64_t ticketed;
	_Atomic uint64_t past[SHARED_PAST]; /* clients */
	/* daemon, by slot: the ticket up to which tickets may not use it any more, as in the gate;
	 * see OVER above */
	_Atomic uint64_t over[SHARED_GATE_SLOTS];
	_Atomic uint64_t newest[5]; /* [enum ckpt_state]: 1 + newest step there; daemon */
	_Atomic uint64_t count[8];  /* [enum outcome_state]; daemon */
	_Atomic uint32_t next_outcome;
	struct shared_outcome outcome[SHARED_OUTCOMES];
	char trouble[4096]; /* written before refused */
	/* daemon: why what should have been written could not be; which ranks the others wait for
	 * in ckpt_seal or ckpt_restore (changes: they have waited for some seconds) */
	struct shared_text failing, waits;
	/* daemon: which tensors' replicas have drifted apart: a sentence for each, number n in
	 * drift[n % SHARED_DRIFTS]; drifts: how many there have been, stored after the sentence */
	struct shared_text drift[SHARED_DRIFTS];
	_Atomic uint32_t drifts;
	/* daemon: how many fillings of a restore have begun to write into the ranks' memory; added
	 * to before the first byte of each */
	_Atomic uint32_t fills;
	/* daemon: the newest epoch in which all ranks have been ready at the same time; 0: there
	 * was none yet. See LAST above. A rank that still waits for it in ckpt_seal when another
	 * rank has begun the next one waits no longer. */
	_Atomic uint32_t joined;
	_Atomic uint64_t last; /* clients: see LAST above */
	/* daemon: by slot, 1 + turn of replicas; see REPLICAS above */
	_Atomic uint32_t replicas[SHARED_GATE_SLOTS];
	/* daemon: of the newest step that has averages: the average that has left out the largest
	 * share, as ckpt_stats says it. taken is stored first, and read last */
	_Atomic uint64_t average_taken, average_left_out;
	/* daemon: 1: the launch has attached beside one that may live, and has no claim of the job.
	 * A rank that would mark asks for it first (CLAIM), and marks when it is answered */
	_Atomic uint32_t unclaimed;
};

struct ticket {
	uint64_t step; /* of it the 36 bits that a ticket knows */
	uint16_t seq;
	uint8_t slot, flags;
	uint8_t round; /* of a skip; see AGAIN above */
};
/* Tickets are numbered modulo 2^15: < 0, 0, > 0 as a is older than, is, is newer than b. */
int shared_seq_cmp(uint16_t a, uint16_t b);

/* --- clients --- */
/* The host's decision for a step: taken now or found. 0 with *ret (slot may be SHARED_SKIP);
 * -ESTALE when the step is older than what is remembered, or nothing newer than *spent is known of
 * it; -ERANGE when it is 2^35 or more beyond the newest one. spent: see AGAIN above; NULL: none of
 * this step. want: ticket flags, or TICKET_REFUSE. may_wait: instead of writing SKIP for want of a
 * slot return -EAGAIN. */
int shared_ticket(struct shared_job *job, uint64_t step, const struct ticket *spent, uint32_t want,
		  bool may_wait, struct ticket *ret);
/* Would a mark of the step behind this one find no slot now? Not if a rank has a ticket of a later
 * step than this one already: that decides for all of them. */
bool shared_gate_full(const struct shared_job *job, uint64_t step);
/* The next snap record, no longer anybody else's; to be written, then published: COPYING with a
 * need, or TORN with none. NULL: its last snapshot, which a guard has let go by (c), is still being
 * copied. */
struct shared_snap *shared_snap_next(struct shared_rank *r);
void shared_snap_write(struct shared_snap *s, const struct shared_record *rec);
void shared_snap_publish(struct shared_rank *r, struct shared_snap *s, enum snap_state state,
			 uint32_t need);
/* The number that the record of shared_snap_next will have. */
uint64_t shared_snap_seq(const struct shared_rank *r);
/* The newest record, NULL when there is none. */
struct shared_snap *shared_snap_newest(struct shared_rank *r);
enum snap_state shared_snap_state(const struct shared_snap *s, uint64_t *ret_seq);
/* What a published record says, whole: 0 and its sequence number and state as they were then.
 * -EAGAIN: it is not published, or was written anew meanwhile. Any thread of either side. */
int shared_snap_read(const struct shared_snap *s, uint64_t *ret_seq, enum snap_state *ret_state,
		     struct shared_record *ret);
/* Have the devices of this record done all of it? */
bool shared_snap_done(const struct shared_rank *r, const struct shared_record *rec);
/* May the trainer go on though the copy has not ended, by (c)? */
bool shared_snap_ordered(const struct shared_snap *s);
/* 7: tear the newest snapshot if its copy is not finished and no guard has let it go by (c). True
 * when it is torn by this call. */
bool shared_tear(struct shared_rank *r);
/* 7: the daemon has ended; what it still had to copy is torn. */
void shared_tear_lost(struct shared_rank *r);
/* 6. False: it is not COPYING any more. */
bool shared_snap_order(struct shared_rank *r, struct shared_snap *s, uint64_t seq);
/* `copying`. After it was set, and before anything is written to the slot: is the ticket over? */
void shared_copying_set(struct shared_rank *r, uint64_t seq, uint32_t slot);
/* Of whatever slot it has, unless that is a later snapshot's by now: the end may be late. */
void shared_copying_clear(struct shared_rank *r, uint64_t seq);
bool shared_ticket_over(const struct shared_job *job, struct ticket t);
/* 1 + the turn of replicas of the step in this slot; 0: it has none. Between the two above. */
static inline uint32_t shared_replicas_turn(const struct shared_job *job, uint32_t slot)
{
	return load_acquire(&job->replicas[slot % SHARED_GATE_SLOTS]);
}
/* All of that turn is in the slot of snapshot seq. */
static inline void shared_replicas_brought(struct shared_rank *r, uint64_t seq, uint32_t turn)
{
	store_release(&r->replicas[seq % SHARED_SNAPS], seq << 8 | turn);
}
/* What a snapshot does first: tear an unfinished older one, count it if no guard followed it, say
 * that the state is stable. True: the older one is now counted as unguarded. */
bool shared_stable(struct shared_rank *r);
/* What a guard does last: say that the state may change, and whether it had been changed before. */
void shared_update(struct shared_rank *r, bool changed);
/* LAST, on a word of a page or of the handle: lock-free, for signal handlers too. A: is this step
 * the last one, or beyond it? */
#define SHARED_LAST (UINT64_C(1) << 63)
#define SHARED_LAST_STEP_MAX ((UINT64_C(1) << 55) - 3)
bool shared_last_ask(_Atomic uint64_t *last, uint64_t step);
void shared_last_stop(_Atomic uint64_t *last); /* B; the first one counts */
/* What another word says, brought into this one: A, and B if a last step is known there. */
void shared_last_bring(_Atomic uint64_t *last, uint64_t known);
/* C, and what is to be noted for it. */
uint32_t shared_last_line(const _Atomic uint64_t *last);
void shared_last_anew(_Atomic uint64_t *last, uint32_t line);
/* The words of the record of shared_snap_next, before it is published. */
void shared_canary_write(struct shared_snap *s, const struct shared_canary_word *at, uint32_t n);

/* --- daemon --- */
/* A slot's free bit is set by the daemon alone and cleared by the rank that takes the slot; the
 * daemon sets it again only after it has dealt with the ticket that took it, has called
 * shared_gate_over, and has then found no copier in it. */
void shared_gate_over(struct shared_job *job, uint32_t slot);
bool shared_copying_has(const struct shared_rank *r, uint32_t slot);
void shared_gate_give(struct shared_job *job, uint32_t slot);
/* 1 + the turn of its next step, before the slot is given. */
static inline void shared_replicas_set(struct shared_job *job, uint32_t slot, uint32_t turn)
{
	store_release(&job->replicas[slot % SHARED_GATE_SLOTS], turn);
}
/* As shared_replicas_turn: what the library has brought of this snapshot; 0: not all of a turn. */
static inline uint32_t shared_replicas_of(const struct shared_rank *r, uint64_t seq)
{
	uint64_t word = load_acquire(&r->replicas[seq % SHARED_SNAPS]);

	return word >> 8 == seq ? (uint32_t)(word & 0xff) : 0;
}
void shared_gate_take(struct shared_job *job, uint32_t slot);
/*
 * All ranks have been given step `step` again, none of them is in ckpt_snapshot, and none will be
 * before it is answered: tickets go on from there, and the older ones are forgotten. No slot is
 * free. The sequence number stays, so no record is taken for another one.
 */
void shared_gate_back(struct shared_job *job, uint64_t step);
/* One look at the gate: the tickets since *seen (0: all that are remembered), oldest first, at most
 * SHARED_PAST + 1, and the free slots as they were at the newest. *seen becomes the newest. A
 * ticket that was overwritten before the daemon read it is void: no copier works for it, its ranks'
 * snapshots are torn, and the slot that it took is neither free nor a snap's: it is to be given
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
/* 10, or 9: the client is dead. finish: the memory that the daemon still copies cannot change.
 * slot, bytes: as shared_copy_end. */
void shared_snap_orphan(struct shared_rank *r, struct shared_snap *s, uint64_t seq, bool finish,
			const void *slot, uint64_t bytes);
void shared_outcome_set(struct shared_job *job, uint64_t step, uint16_t ticket_seq,
			enum outcome_state state, int code, const uint64_t phase_ns[3],
			const char *text);
/* It gives its turn to a step that was staged after it. count: it was to be written for its own
 * sake, so count[THINNED] grows. */
void shared_outcome_thinned(struct shared_job *job, uint64_t step, uint16_t ticket_seq,
			    uint64_t heir, bool count, uint64_t staged_ns, const char *text);
/* Of steps above this one nothing is known any more: their numbers come again. */
void shared_outcomes_forget(struct shared_job *job, uint64_t step);
/* A step that was reported as staged is to be written after all. */
void shared_outcome_to_write(struct shared_job *job, uint64_t step);
void shared_event(struct shared_job *job); /* add 1 to event and wake all */
/* code 0: there is no sentence any more. again: the libraries are to log it once more. */
void shared_text_set(struct shared_text *t, int code, const char *text, bool again);

/* --- both --- */
/* Is it still COPYING, and of this seq? Copiers ask before each piece of work. */
bool shared_snap_going(const struct shared_snap *s, uint64_t seq);
/* The copiers that have not ended (enum snap_need); 0 unless it is COPYING, of this seq. */
uint32_t shared_snap_need(const struct shared_snap *s, uint64_t seq);
/* A copier has copied its last byte, and has ended all writes: 4, 5, 10. need: its bit, CLIENT also
 * for ORDERED. slot: all of it, `bytes` long, for the canary. The guard is woken. */
enum copy_end {
	COPY_END_WAITS, /* the other copier still copies */
	COPY_END_COPIED,
	COPY_END_TORN,	  /* it was torn before */
	COPY_END_CHANGED, /* it is torn now, and `why` says so: state was changed since the mark */
};
/* ret_changed_at: offset in the slot, of CHANGED; else UINT64_MAX. */
enum copy_end shared_copy_end(struct shared_rank *r, struct shared_snap *s, uint64_t seq,
			      uint32_t need, const void *slot, uint64_t bytes,
			      uint64_t *ret_changed_at);
/* 8, 9: COPYING of this seq -> TORN and wake the guard. */
void shared_snap_drop(struct shared_rank *r, struct shared_snap *s, uint64_t seq);
/* The words of snapshot seq, whole: 0. -EAGAIN: its record was taken for another one. */
int shared_canary_read(const struct shared_snap *s, uint64_t seq, struct shared_canary *ret);
/* The offset of the first word that these bytes hold otherwise; UINT64_MAX: there is none. */
uint64_t shared_canary_compare(const struct shared_canary *x, const void *slot, uint64_t bytes);
/* At which offset of the slot snapshot seq was found to be changed, before its state says so. */
void shared_why_set(struct shared_snap *s, uint64_t seq, uint64_t off);
/* Besides an offset: what belongs there could not be copied, for its memory is not there any
 * more. */
#define SHARED_WHY_GONE (UINT64_C(1) << 46)
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
