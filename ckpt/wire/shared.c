// SPDX-License-Identifier: Apache-2.0
// shared.c - every atomic access to the pages of shared.h. Called by the client's snapshot and
// guard, and by the daemon.
// Invariant: a slot is in at most one undecided ticket; one compare-and-swap decides between
// copied and torn; a published word changes by compare-and-swap only.
#include "ckpt/wire/shared.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>

/* For tests/unit/test_wire_shared.c, which includes this file: where its scheduler may turn to
 * another thread. */
#ifdef SHARED_POINTS
static void (*shared_point)(void);
#define POINT() ((void)(shared_point && (shared_point(), 0)))
#else
#define POINT() ((void)0)
#endif

/* The gate: step 36 | seq 15 | slot 3 | flags 2 | free 4 | round 4. seq 0: no ticket yet. */
#define ROUND_MASK 15u
#define STEP_MASK ((UINT64_C(1) << 36) - 1)
#define SEQ_BITS 15
#define SEQ_MASK ((1u << SEQ_BITS) - 1)

static struct ticket gate_ticket(uint64_t g)
{
	uint32_t slot = (uint32_t)(g >> 10 & 7);

	return (struct ticket){
		.step = g >> 28,
		.seq = (uint16_t)(g >> 13 & SEQ_MASK),
		.slot = (uint8_t)(slot == 7 ? SHARED_SKIP : slot),
		.flags = (uint8_t)(g >> 8 & 3),
		.round = (uint8_t)(g & ROUND_MASK),
	};
}

static uint64_t gate_word(struct ticket t, uint32_t free_mask)
{
	return t.step << 28 | (uint64_t)t.seq << 13 | (uint64_t)(t.slot & 7u) << 10 |
	       (uint64_t)t.flags << 8 | (uint64_t)free_mask << 4 | t.round;
}

int shared_seq_cmp(uint16_t a, uint16_t b)
{
	return (int32_t)((uint32_t)(a - b) << (32 - SEQ_BITS)) >> (32 - SEQ_BITS);
}

/* By their steps, whatever lies between them; of one step by their numbers. */
static bool ticket_newer(struct ticket a, struct ticket b)
{
	int64_t steps = (int64_t)((a.step - b.step) << 28);

	return steps ? steps > 0 : shared_seq_cmp(a.seq, b.seq) > 0 || MUTANT(OVER_BY_STEP);
}

/* A step of which 36 bits are known, less than 2^35 from another one. */
static uint64_t step_near(uint64_t near, uint64_t bits)
{
	return near + (uint64_t)((int64_t)((bits - near) << 28) >> 28);
}

/* The whole step of the newest ticket, or before the first one what the first rank asked for.
 * False: the gate has moved on. `ticketed` is never beyond the newest ticket, and a rank that
 * replaces a ticket brings it up to that one first: so it is at most one ticket behind, which is
 * less than 2^35 steps. */
static bool gate_step(struct shared_job *job, uint64_t g, uint64_t asked, uint64_t *ret)
{
	uint64_t known = 0;

	if (atomic_compare_exchange_strong_explicit(&job->ticketed, &known, asked + 1,
						    memory_order_acq_rel, memory_order_acquire))
		known = asked + 1;
	POINT();
	if (load_acquire(&job->gate) >> 8 != g >> 8)
		return false;
	*ret = gate_ticket(g).seq ? step_near(known - 1, gate_ticket(g).step) : known - 1;
	return true;
}

static void gate_step_keep(struct shared_job *job, uint64_t step)
{
	uint64_t known = load_relaxed(&job->ticketed);

	while (known < step + 1 && !MUTANT(STEPS_WRAP))
		if (atomic_compare_exchange_weak_explicit(&job->ticketed, &known, step + 1,
							  memory_order_acq_rel,
							  memory_order_relaxed))
			return;
}

static uint32_t gate_free(uint64_t g)
{
	return (uint32_t)(g >> 4 & 15);
}

/* Before the gate moves on from ticket g, g goes to past; a racer that is late must not overwrite a
 * newer one. */
static void past_keep(struct shared_job *job, uint64_t g)
{
	struct ticket t = gate_ticket(g);
	_Atomic uint64_t *at = &job->past[t.seq % SHARED_PAST];
	uint64_t old = load_acquire(at);

	if (t.seq == 0 || MUTANT(PAST_FORGOTTEN))
		return;
	while (old == 0 || shared_seq_cmp(t.seq, gate_ticket(old).seq) > 0)
		if (atomic_compare_exchange_weak_explicit(at, &old, g, memory_order_acq_rel,
							  memory_order_acquire))
			return;
}

/* Of the tickets of a step that are remembered the newest. */
static bool past_find(const struct shared_job *job, struct ticket newest, uint64_t step,
		      struct ticket *ret)
{
	bool found = false;

	for (uint32_t i = 0; i < SHARED_PAST; i++) {
		struct ticket t = gate_ticket(load_acquire(&job->past[i]));

		if (t.seq == 0 || t.step != (step & STEP_MASK) ||
		    shared_seq_cmp(newest.seq, t.seq) > SHARED_PAST ||
		    (found && shared_seq_cmp(t.seq, ret->seq) < 0))
			continue;
		*ret = t;
		found = true;
	}
	return found;
}

/* Is t what this rank has spent? Then the host has decided nothing since. */
static bool is_spent(const struct ticket *spent, struct ticket t)
{
	return spent && ((spent->step == t.step && spent->seq == t.seq &&
			  (spent->round == t.round || MUTANT(SKIPS_ALIKE))) ||
			 MUTANT(RETRY_ALONE));
}

int shared_ticket(struct shared_job *job, uint64_t step, const struct ticket *spent, uint32_t want,
		  bool may_wait, struct ticket *ret)
{
	uint64_t g = load_acquire(&job->gate), at;
	const bool refuse = want & TICKET_REFUSE;

	for (;;) {
		struct ticket newest = gate_ticket(g);
		uint32_t free_mask = gate_free(g);
		struct ticket t = { .step = step & STEP_MASK,
				    .seq = (newest.seq + 1) & SEQ_MASK,
				    .slot = SHARED_SKIP };

		if (!gate_step(job, g, step, &at)) {
			g = load_acquire(&job->gate);
			continue;
		}
		if (step > at ? step - at >= SHARED_JUMP_MAX
			      : !newest.seq && at - step >= SHARED_JUMP_MAX)
			return -ERANGE;
		if (newest.seq && step < at)
			return at - step < SHARED_JUMP_MAX && past_find(job, newest, step, ret) &&
					       (!spent || shared_seq_cmp(ret->seq, spent->seq) > 0)
				       ? 0
				       : -ESTALE;
		if (newest.seq && step == at && !is_spent(spent, newest) &&
		    !MUTANT(TICKET_PER_RANK)) {
			*ret = newest;
			return 0;
		}
		if (t.seq == 0)
			t.seq = 1;
		if (refuse) {
			t.flags = TICKET_REFUSED;
		} else if (free_mask && !(MUTANT(SKIP_STAYS) && spent)) {
			t.slot = (uint8_t)__builtin_ctz(free_mask);
			t.flags = (uint8_t)want;
			free_mask &= free_mask - 1;
		} else if (may_wait) {
			return -EAGAIN;
		}
		if (newest.seq && step == at && newest.slot == SHARED_SKIP &&
		    t.slot == SHARED_SKIP) {
			t.seq = newest.seq;
			t.round = (newest.round + 1) & ROUND_MASK;
		}
		if (t.seq != newest.seq)
			past_keep(job, g);
		if (newest.seq)
			gate_step_keep(job, at);
		POINT();
		if (MUTANT(GATE_BLIND)) {
			atomic_store(&job->gate, gate_word(t, free_mask));
			*ret = t;
			return 0;
		}
		if (atomic_compare_exchange_weak_explicit(&job->gate, &g, gate_word(t, free_mask),
							  memory_order_acq_rel,
							  memory_order_acquire)) {
			*ret = t;
			return 0;
		}
	}
}

bool shared_gate_full(const struct shared_job *job, uint64_t step)
{
	uint64_t g = load_acquire(&job->gate);
	struct ticket newest = gate_ticket(g);
	struct ticket mine = { .step = step & STEP_MASK, .seq = newest.seq };

	return !gate_free(g) && !(newest.seq && ticket_newer(newest, mine));
}

void shared_gate_over(struct shared_job *job, uint32_t slot)
{
	struct ticket newest = gate_ticket(load_acquire(&job->gate));

	if (newest.seq)
		atomic_store_explicit(&job->over[slot % SHARED_GATE_SLOTS], gate_word(newest, 0),
				      memory_order_seq_cst);
	POINT();
}

bool shared_ticket_over(const struct shared_job *job, struct ticket t)
{
	uint64_t over =
		atomic_load_explicit(&job->over[t.slot % SHARED_GATE_SLOTS], memory_order_seq_cst);

	return over && !ticket_newer(t, gate_ticket(over)) && !MUTANT(OVER_UNCHECKED);
}

/* --- LAST: a change is tried again until no other one came between --- */
#define LINE_SHIFT 55
#define LINE_MASK (UINT64_C(0xff) << LINE_SHIFT)
#define LAST_N(word) ((word) & ((UINT64_C(1) << LINE_SHIFT) - 1))

static bool last_swap(_Atomic uint64_t *last, uint64_t *was, uint64_t to)
{
	POINT();
	if (MUTANT(LAST_STORED)) {
		store_release(last, to);
		return true;
	}
	return atomic_compare_exchange_weak_explicit(last, was, to, memory_order_acq_rel,
						     memory_order_acquire);
}

bool shared_last_ask(_Atomic uint64_t *last, uint64_t step)
{
	uint64_t was = load_acquire(last);

	while (!(was & SHARED_LAST) && LAST_N(was) < step + 1)
		if (last_swap(last, &was, (was & LINE_MASK) | (step + 1)))
			return false;
	return was & SHARED_LAST && step + 1 >= LAST_N(was);
}

void shared_last_bring(_Atomic uint64_t *last, uint64_t known)
{
	uint64_t was = load_acquire(last), n;

	do {
		n = MAX(LAST_N(known),
			LAST_N(was) + (known & SHARED_LAST && !MUTANT(LAST_TOO_SOON)));
		if (was & SHARED_LAST || (!(known & SHARED_LAST) && n == LAST_N(was)))
			return;
	} while (!last_swap(last, &was, (known & SHARED_LAST) | (was & LINE_MASK) | n));
}

void shared_last_stop(_Atomic uint64_t *last)
{
	shared_last_bring(last, SHARED_LAST);
}

uint32_t shared_last_line(const _Atomic uint64_t *last)
{
	return (uint32_t)((load_acquire(last) & LINE_MASK) >> LINE_SHIFT);
}

void shared_last_anew(_Atomic uint64_t *last, uint32_t line)
{
	uint64_t was = load_acquire(last), next = (uint64_t)(line + 1) << LINE_SHIFT & LINE_MASK;

	while (((was & LINE_MASK) >> LINE_SHIFT == line || MUTANT(LAST_LINE_IGNORED)) &&
	       !last_swap(last, &was, (was & SHARED_LAST) | next))
		;
}

void shared_gate_give(struct shared_job *job, uint32_t slot)
{
	atomic_fetch_or_explicit(&job->gate, UINT64_C(1) << (slot + 4), memory_order_acq_rel);
}

void shared_gate_take(struct shared_job *job, uint32_t slot)
{
	atomic_fetch_and_explicit(&job->gate, ~(UINT64_C(1) << (slot + 4)), memory_order_acq_rel);
}

void shared_gate_back(struct shared_job *job, uint64_t step)
{
	struct ticket t = gate_ticket(load_acquire(&job->gate));

	if (t.seq) {
		t.step = step & STEP_MASK;
		t.slot = SHARED_SKIP;
		t.flags = 0;
		store_release(&job->ticketed, step + 1);
	}
	for (uint32_t i = 0; i < SHARED_PAST; i++)
		store_release(&job->past[i], 0);
	for (uint32_t i = 0; i < SHARED_GATE_SLOTS; i++)
		store_release(&job->over[i], 0);
	store_release(&job->gate, gate_word(t, 0));
}

uint32_t shared_gate_look(const struct shared_job *job, uint16_t *seen, struct ticket *ret_ticket,
			  uint32_t *ret_free)
{
	uint64_t g = load_acquire(&job->gate);
	struct ticket newest = gate_ticket(g), t[SHARED_PAST + 1];
	uint32_t n = 0;

	*ret_free = gate_free(g);
	if (newest.seq == *seen)
		return 0;
	t[n++] = newest;
	for (uint32_t back = 1; back <= SHARED_PAST; back++) {
		uint16_t seq = (uint16_t)((newest.seq - back) & SEQ_MASK);
		uint64_t p = load_acquire(&job->past[seq % SHARED_PAST]);

		if (seq == *seen && seq)
			break;
		if (p && gate_ticket(p).seq == seq)
			t[n++] = gate_ticket(p);
	}
	*seen = newest.seq;
	for (uint32_t i = 0; i < n; i++)
		ret_ticket[i] = t[n - 1 - i];
	return n;
}

/*
 * Records and outcomes are read while they may be written anew: in words, after and before a look
 * at a word that the writer changes first. Release stores and acquire loads keep that order: a
 * reader that has one word of the new text also sees the changed word.
 */
static void words_store(void *to, const void *from, size_t bytes)
{
	const uint8_t *f = from;
	uint64_t *t = to, w;

	for (size_t i = 0; i < bytes / sizeof w; i++) {
		memcpy(&w, f + i * sizeof w, sizeof w);
		__atomic_store_n(&t[i], w, __ATOMIC_RELEASE);
	}
}

static void words_load(void *to, const void *from, size_t bytes)
{
	const uint64_t *f = from;
	uint8_t *t = to;

	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
		uint64_t w = __atomic_load_n(&f[i], __ATOMIC_ACQUIRE);

		memcpy(t + i * sizeof w, &w, sizeof w);
	}
}

/* While ver is odd the words behind it are being changed. */
static void words_change(_Atomic uint32_t *ver, void *to, const void *from, size_t bytes)
{
	atomic_fetch_add_explicit(ver, 1, memory_order_acq_rel);
	words_store(to, from, bytes);
	atomic_fetch_add_explicit(ver, 1, memory_order_release);
}

#define RECORD_HEAD offsetof(struct shared_record, note)
_Static_assert(RECORD_HEAD % 8 == 0 && sizeof(struct shared_note) % 8 == 0, "records are words");
#define OUTCOME_HEAD offsetof(struct shared_outcome, step)
_Static_assert(offsetof(struct shared_outcome, state) == 16 &&
		       offsetof(struct shared_outcome, ticket_seq) == 18 &&
		       offsetof(struct shared_outcome, code) == 20,
	       "state, ticket and code are one word");
_Static_assert(OUTCOME_HEAD == 8 && sizeof(struct shared_outcome) % 8 == 0, "outcomes are words");

/* The word: seq << 8 | need << 4 | state. */
static uint64_t word_of(uint64_t seq, uint32_t need, enum snap_state state)
{
	return seq << 8 | (uint64_t)(need & 15) << 4 | (uint64_t)state;
}

static enum snap_state word_state(uint64_t w)
{
	return (enum snap_state)(w & 15);
}

static uint32_t word_need(uint64_t w)
{
	return (uint32_t)(w >> 4 & 15);
}

uint64_t shared_snap_seq(const struct shared_rank *r)
{
	return load_relaxed(&r->marks) + 1;
}

struct shared_snap *shared_snap_next(struct shared_rank *r)
{
	uint64_t n = shared_snap_seq(r);
	struct shared_snap *s = &r->snap[n % SHARED_SNAPS];

	if (word_state(load_acquire(&s->word)) == SNAP_COPYING)
		return NULL;
	/* A copier of four snapshots ago, if any, loses its swap from here on. */
	store_release(&s->word, word_of(n, 0, SNAP_FREE));
	store_release(&s->why, 0);
	return s;
}

void shared_snap_write(struct shared_snap *s, const struct shared_record *rec)
{
	words_store(&s->rec, rec, RECORD_HEAD);
	for (uint32_t i = 0; i < rec->nnote && i < SHARED_NOTES; i++)
		words_store(&s->rec.note[i], &rec->note[i], sizeof rec->note[i]);
}

int shared_snap_read(const struct shared_snap *s, uint64_t *ret_seq, enum snap_state *ret_state,
		     struct shared_record *ret)
{
	uint64_t w = load_acquire(&s->word), now;

	POINT();
	words_load(ret, &s->rec, RECORD_HEAD);
	if (ret->nnote > SHARED_NOTES)
		ret->nnote = SHARED_NOTES;
	for (uint32_t i = 0; i < ret->nnote; i++)
		words_load(&ret->note[i], &s->rec.note[i], sizeof ret->note[i]);
	POINT();
	now = load_relaxed(&s->word);
	*ret_seq = w >> 8;
	*ret_state = word_state(w);
	if (MUTANT(READ_UNCHECKED))
		return 0;
	return now >> 8 != w >> 8 || *ret_state == SNAP_FREE ? -EAGAIN : 0;
}

void shared_canary_write(struct shared_snap *s, const struct shared_canary_word *at, uint32_t n)
{
	const struct {
		uint32_t n, zero;
	} head = { n, 0 };

	words_store(&s->canary, &head, sizeof head);
	words_store(s->canary.at, at, n * sizeof *at);
}

int shared_canary_read(const struct shared_snap *s, uint64_t seq, struct shared_canary *ret)
{
	if (load_acquire(&s->word) >> 8 != seq)
		return -EAGAIN;
	words_load(ret, &s->canary, offsetof(struct shared_canary, at));
	ret->n = MIN(ret->n, (uint32_t)SHARED_CANARY_MAX);
	words_load(ret->at, s->canary.at, ret->n * sizeof ret->at[0]);
	return load_relaxed(&s->word) >> 8 != seq ? -EAGAIN : 0;
}

uint64_t shared_canary_compare(const struct shared_canary *x, const void *slot, uint64_t bytes)
{
	for (uint32_t i = 0; i < x->n && !MUTANT(CANARY_IGNORED); i++) {
		uint64_t off = SHARED_CANARY_OFF(x->at[i].off), is = 0;
		uint32_t len = SHARED_CANARY_LEN(x->at[i].off);

		if (len > sizeof is || off > bytes || len > bytes - off)
			continue; /* a client that writes nonsense harms only itself */
		memcpy(&is, (const uint8_t *)slot + off, len);
		if (is != x->at[i].word)
			return off;
	}
	return UINT64_MAX;
}

#define WHY_OFF ((UINT64_C(1) << 48) - 1)

void shared_why_set(struct shared_snap *s, uint64_t seq, uint64_t off)
{
	store_release(&s->why, seq << 48 | ((off + 1) & WHY_OFF));
}

bool shared_why_get(const struct shared_snap *s, uint64_t seq, uint64_t *ret_off)
{
	uint64_t why = load_acquire(&s->why);

	*ret_off = (why & WHY_OFF) - 1;
	return why & WHY_OFF && why >> 48 == (seq & 0xffff);
}

void shared_snap_publish(struct shared_rank *r, struct shared_snap *s, enum snap_state state,
			 uint32_t need)
{
	uint64_t n = shared_snap_seq(r);

	store_release(&s->word, word_of(n, need, state));
	store_release(&r->marks, n);
}

struct shared_snap *shared_snap_newest(struct shared_rank *r)
{
	uint64_t n = load_acquire(&r->marks);

	return n ? &r->snap[n % SHARED_SNAPS] : NULL;
}

enum snap_state shared_snap_state(const struct shared_snap *s, uint64_t *ret_seq)
{
	uint64_t w = load_acquire(&s->word);

	if (ret_seq)
		*ret_seq = w >> 8;
	return word_state(w);
}

uint32_t shared_snap_need(const struct shared_snap *s, uint64_t seq)
{
	uint64_t w = load_acquire(&s->word);

	return word_state(w) == SNAP_COPYING && w >> 8 == seq ? word_need(w) : 0;
}

bool shared_snap_going(const struct shared_snap *s, uint64_t seq)
{
	uint64_t w = load_acquire(&s->word);

	return word_state(w) == SNAP_COPYING && w >> 8 == seq;
}

bool shared_snap_ordered(const struct shared_snap *s)
{
	uint64_t w = load_acquire(&s->word);

	if (MUTANT(GUARD_IGNORES_DAEMON))
		return word_state(w) == SNAP_COPYING && word_need(w) & NEED_ORDERED;
	return word_state(w) == SNAP_COPYING && word_need(w) == (NEED_CLIENT | NEED_ORDERED);
}

bool shared_snap_done(const struct shared_rank *r, const struct shared_record *rec)
{
	for (uint32_t left = rec->devices; left; left &= left - 1)
		if ((int32_t)(load_acquire(&r->done[__builtin_ctz(left)]) - rec->target) < 0)
			return false;
	return rec->devices;
}

/* From the word that was seen, or, where that is outdated, not: then *w is what it is now. */
static bool word_swap(struct shared_snap *s, uint64_t *w, uint32_t need, enum snap_state state)
{
	uint64_t to = word_of(*w >> 8, need, state);

	POINT();
	if (MUTANT(COPIED_BLIND) && state == SNAP_COPIED) {
		atomic_store(&s->word, to);
		return true;
	}
	return atomic_compare_exchange_strong_explicit(&s->word, w, to, memory_order_acq_rel,
						       memory_order_acquire);
}

static void word_changed(struct shared_rank *r)
{
	if (MUTANT(WAKE_FORGOTTEN))
		return;
	atomic_fetch_add_explicit(&r->wake, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&r->waiting, memory_order_seq_cst))
		shared_futex_wake(&r->wake);
}

/* UINT64_MAX: the slot has what the state was at the mark, as far as it was noted. */
static uint64_t copy_compare(const struct shared_snap *s, uint64_t seq, const void *slot,
			     uint64_t bytes)
{
	struct shared_canary x;

	return shared_canary_read(s, seq, &x) == 0 ? shared_canary_compare(&x, slot, bytes)
						   : UINT64_MAX;
}

enum copy_end shared_copy_end(struct shared_rank *r, struct shared_snap *s, uint64_t seq,
			      uint32_t need, const void *slot, uint64_t bytes,
			      uint64_t *ret_changed_at)
{
	uint64_t w = load_acquire(&s->word), at = UINT64_MAX;
	const uint32_t mine = need & NEED_CLIENT ? need | NEED_ORDERED : need;
	bool looked = false;
	uint32_t left;

	*ret_changed_at = UINT64_MAX;
	for (;;) {
		if (MUTANT(MOVE_ANY_SEQ))
			seq = w >> 8;
		if (word_state(w) != SNAP_COPYING || w >> 8 != seq) {
			if (at !=
			    UINT64_MAX) /* it was given up before: there is nothing to report */
				store_release(&s->why, 0);
			return COPY_END_TORN;
		}
		left = MUTANT(COPIED_WITH_ONE) ? 0 : word_need(w) & ~mine;
		if (!left && !looked) {
			looked = true;
			at = copy_compare(s, seq, slot, bytes);
			if (at != UINT64_MAX && shared_snap_going(s, seq))
				shared_why_set(s, seq, at);
		}
		if (need & NEED_CLIENT)
			shared_copying_clear(r, seq);
		if (word_swap(s, &w, left,
			      left		 ? SNAP_COPYING
			      : at == UINT64_MAX ? SNAP_COPIED
						 : SNAP_TORN))
			break;
	}
	word_changed(r);
	*ret_changed_at = left ? UINT64_MAX : at;
	return left ? COPY_END_WAITS : at == UINT64_MAX ? COPY_END_COPIED : COPY_END_CHANGED;
}

/* Other bits of need, COPYING still. */
static bool word_need_change(struct shared_rank *r, struct shared_snap *s, uint64_t seq,
			     uint32_t clear, uint32_t set)
{
	uint64_t w = load_acquire(&s->word);

	do {
		if (word_state(w) != SNAP_COPYING || w >> 8 != seq)
			return false;
	} while (!word_swap(s, &w, (word_need(w) & ~clear) | set, SNAP_COPYING));
	word_changed(r);
	return true;
}

bool shared_snap_order(struct shared_rank *r, struct shared_snap *s, uint64_t seq)
{
	return word_need_change(r, s, seq, 0, NEED_ORDERED);
}

/* COPYING of this seq -> TORN. */
static bool word_tear(struct shared_snap *s, uint64_t seq)
{
	uint64_t w = load_acquire(&s->word);

	do {
		if (word_state(w) != SNAP_COPYING || w >> 8 != seq)
			return false;
		if (MUTANT(TEAR_BLIND)) {
			POINT();
			atomic_store(&s->word, word_of(seq, 0, SNAP_TORN));
			return true;
		}
	} while (!word_swap(s, &w, 0, SNAP_TORN));
	return true;
}

void shared_snap_drop(struct shared_rank *r, struct shared_snap *s, uint64_t seq)
{
	if (word_tear(s, seq))
		word_changed(r);
}

void shared_snap_orphan(struct shared_rank *r, struct shared_snap *s, uint64_t seq, bool finish,
			const void *slot, uint64_t bytes)
{
	uint32_t need = shared_snap_need(s, seq);
	struct shared_record rec;
	enum snap_state state;
	uint64_t is, at;

	if (need & NEED_DAEMON && !finish) {
		shared_snap_drop(r, s, seq);
	} else if (need & NEED_CLIENT) {
		if (need & NEED_ORDERED && shared_snap_read(s, &is, &state, &rec) == 0 &&
		    is == seq && shared_snap_done(r, &rec))
			shared_copy_end(r, s, seq, NEED_CLIENT, slot, bytes, &at);
		else
			shared_snap_drop(r, s, seq);
	}
}

bool shared_tear(struct shared_rank *r)
{
	struct shared_snap *s = shared_snap_newest(r);
	uint64_t n = load_relaxed(&r->marks);

	if (!s || MUTANT(TEAR_NEVER))
		return false;
	/* A guard has returned, though it is not COPIED: the device's reads come first. */
	if (load_acquire(&r->guarded_mark) == n && !MUTANT(TEAR_AFTER_ORDERED))
		return false;
	return word_tear(s, n);
}

void shared_tear_lost(struct shared_rank *r)
{
	struct shared_snap *s = shared_snap_newest(r);
	uint64_t n = load_relaxed(&r->marks);

	if (s && shared_snap_need(s, n) & NEED_DAEMON)
		shared_snap_drop(r, s, n);
}

void shared_copying_set(struct shared_rank *r, uint64_t seq, uint32_t slot)
{
	atomic_store_explicit(&r->copying[slot % SHARED_GATE_SLOTS], seq, memory_order_seq_cst);
	POINT();
}

void shared_copying_clear(struct shared_rank *r, uint64_t seq)
{
	for (uint32_t i = 0; i < SHARED_GATE_SLOTS; i++) {
		uint64_t w = load_relaxed(&r->copying[i]);

		if (w == seq || (w && MUTANT(COPYING_OF_ALL_SLOTS)))
			(void)atomic_compare_exchange_strong_explicit(
				&r->copying[i], &w, 0, memory_order_release, memory_order_relaxed);
	}
}

bool shared_copying_has(const struct shared_rank *r, uint32_t slot)
{
	return atomic_load_explicit(&r->copying[slot % SHARED_GATE_SLOTS], memory_order_seq_cst) &&
	       !MUTANT(SLOT_BEFORE_COPYING);
}

bool shared_stable(struct shared_rank *r)
{
	uint64_t marks = load_relaxed(&r->marks);
	bool unguarded = marks && load_relaxed(&r->guarded_mark) != marks &&
			 load_relaxed(&r->unguarded_mark) != marks;

	shared_tear(r);
	if (unguarded && !MUTANT(UNGUARDED_TRUSTED)) {
		store_release(&r->unguarded_mark, marks);
		atomic_fetch_add_explicit(&r->unguarded, 1, memory_order_release);
	}
	if (!MUTANT(UPDATING_NOT_CLEARED))
		store_release(&r->updating, 0);
	return unguarded;
}

static void changed_store(struct shared_rank *r, uint64_t mark)
{
	store_release(&r->changed[mark % SHARED_CHANGED], mark);
}

void shared_update(struct shared_rank *r, bool changed)
{
	uint64_t marks = load_relaxed(&r->marks);

	if (marks && load_relaxed(&r->guarded_mark) != marks) {
		if (changed && !MUTANT(CHANGED_LATE))
			changed_store(r, marks);
		store_release(&r->guarded_mark, marks);
		atomic_fetch_add_explicit(&r->guards, 1, memory_order_release);
		POINT();
		if (changed && MUTANT(CHANGED_LATE))
			changed_store(r, marks);
	} else if (!marks) {
		store_release(&r->guards, 1);
	}
	/* Sequentially consistent, so that no later store of the trainer passes it: a daemon that
	 * finds this client dead and updating still 0 may take the memory as it is. */
	if (!MUTANT(UPDATING_NOT_SET))
		atomic_store_explicit(&r->updating, 1, memory_order_seq_cst);
	atomic_thread_fence(memory_order_seq_cst);
}

bool shared_snap_changed(const struct shared_rank *r, uint64_t mark)
{
	return load_acquire(&r->changed[mark % SHARED_CHANGED]) == mark;
}

int shared_snap_guarded(const struct shared_rank *r, uint64_t mark, const struct shared_record *rec)
{
	/* In this order: a guard after a snapshot that lacked one comes after that was counted. */
	uint64_t guarded = load_acquire(&r->guarded_mark);
	uint64_t waited = load_acquire(&r->waited_step);

	POINT();
	if (load_acquire(&r->unguarded) != rec->unguarded || shared_snap_changed(r, mark))
		return -1;
	return rec->flags & TICKET_FINAL || guarded >= mark || waited == rec->step + 1;
}

bool shared_snap_closed(const struct shared_rank *r, uint64_t mark, const struct shared_record *rec)
{
	int guarded = shared_snap_guarded(r, mark, rec);

	if (guarded)
		return guarded > 0;
	return load_acquire(&r->guards) > 0 && rec->unguarded == 0;
}

void shared_event(struct shared_job *job)
{
	atomic_fetch_add_explicit(&job->event, 1, memory_order_seq_cst);
	shared_futex_wake(&job->event);
}

static struct shared_outcome *outcome_of(struct shared_job *job, uint64_t step)
{
	uint32_t next = load_relaxed(&job->next_outcome);

	for (uint32_t i = 1; i <= MIN(next, (uint32_t)SHARED_OUTCOMES); i++) {
		struct shared_outcome *o = &job->outcome[(next - i) % SHARED_OUTCOMES];

		if (o->step == step && o->state != OUTCOME_NONE)
			return o;
	}
	return NULL;
}

static void outcome_put(struct shared_job *job, const struct shared_outcome *to)
{
	struct shared_outcome *o = outcome_of(job, to->step);
	uint32_t next = load_relaxed(&job->next_outcome);
	bool fresh = !o;

	if (!o)
		o = &job->outcome[next % SHARED_OUTCOMES];
	words_change(&o->ver, &o->step, (const uint8_t *)to + OUTCOME_HEAD,
		     sizeof *to - OUTCOME_HEAD);
	if (fresh)
		store_release(&job->next_outcome, next + 1);
}

void shared_outcome_set(struct shared_job *job, uint64_t step, uint16_t ticket_seq,
			enum outcome_state state, int code, const uint64_t phase_ns[3],
			const char *text)
{
	struct shared_outcome to = {
		.step = step, .state = (uint16_t)state, .ticket_seq = ticket_seq, .code = code
	};

	to.staged_ns = phase_ns ? phase_ns[0] : 0;
	to.persisted_ns = phase_ns ? phase_ns[1] : 0;
	to.committed_ns = phase_ns ? phase_ns[2] : 0;
	snprintf(to.text, sizeof to.text, "%s", text ? text : "");
	outcome_put(job, &to);
	add_relaxed(&job->count[state], 1);
	for (int s = CKPT_STAGED; s <= CKPT_COMMITTED; s++)
		if (state <= OUTCOME_COMMITTED && (int)state - OUTCOME_STAGED >= s - CKPT_STAGED &&
		    load_relaxed(&job->newest[s]) < step + 1)
			store_release(&job->newest[s], step + 1);
	shared_event(job);
}

void shared_outcome_thinned(struct shared_job *job, uint64_t step, uint16_t ticket_seq,
			    uint64_t heir, bool count, uint64_t staged_ns, const char *text)
{
	struct shared_outcome to = { .step = step,
				     .state = OUTCOME_THINNED,
				     .ticket_seq = ticket_seq,
				     .staged_ns = staged_ns,
				     .heir = heir };

	snprintf(to.text, sizeof to.text, "%s", text);
	outcome_put(job, &to);
	add_relaxed(&job->count[OUTCOME_THINNED], count);
	shared_event(job);
}

void shared_outcomes_forget(struct shared_job *job, uint64_t step)
{
	const uint64_t none = UINT64_MAX;

	for (uint32_t i = 0; i < SHARED_OUTCOMES; i++) {
		struct shared_outcome *o = &job->outcome[i];

		if (o->step <= step || o->state == OUTCOME_NONE)
			continue;
		words_change(&o->ver, &o->step, &none, sizeof none);
	}
	for (int s = CKPT_STAGED; s <= CKPT_COMMITTED; s++)
		if (load_relaxed(&job->newest[s]) > step + 1)
			store_release(&job->newest[s], step + 1);
	shared_event(job);
}

void shared_outcome_to_write(struct shared_job *job, uint64_t step)
{
	struct shared_outcome *o = outcome_of(job, step);
	const int32_t code = 1;
	uint64_t word;

	if (!o || o->state != OUTCOME_STAGED)
		return;
	memcpy(&word, &o->state, sizeof word);
	memcpy((uint8_t *)&word + sizeof word - sizeof code, &code, sizeof code);
	words_change(&o->ver, &o->state, &word, sizeof word);
}

bool shared_outcome_get(const struct shared_job *job, uint64_t step, struct shared_outcome *ret)
{
	uint32_t next = load_acquire(&job->next_outcome);

	for (uint32_t i = 1; i <= MIN(next, (uint32_t)SHARED_OUTCOMES); i++) {
		const struct shared_outcome *o = &job->outcome[(next - i) % SHARED_OUTCOMES];

		for (int tries = 0; tries < 1000; tries++) {
			uint32_t ver = load_acquire(&o->ver);

			if (ver & 1)
				continue;
			words_load(&ret->step, &o->step, sizeof *ret - OUTCOME_HEAD);
			if (load_relaxed(&o->ver) != ver)
				continue;
			if (ret->step == step && ret->state != OUTCOME_NONE)
				return true;
			break;
		}
	}
	return false;
}

enum outcome_state shared_outcome_state(const struct shared_job *job, uint64_t step,
					uint16_t *ret_ticket_seq)
{
	uint32_t next = load_acquire(&job->next_outcome);

	for (uint32_t i = 1; i <= MIN(next, (uint32_t)SHARED_OUTCOMES); i++) {
		const struct shared_outcome *o = &job->outcome[(next - i) % SHARED_OUTCOMES];
		uint32_t ver = load_acquire(&o->ver);
		uint64_t is[2];

		words_load(is, &o->step, sizeof is);
		if (is[0] != step || (uint16_t)is[1] == OUTCOME_NONE)
			continue;
		*ret_ticket_seq = (uint16_t)(is[1] >> 16);
		/* it is being changed: the next look finds what it has become */
		return ver & 1 || load_relaxed(&o->ver) != ver
			       ? OUTCOME_NONE
			       : (enum outcome_state)(uint16_t)is[1];
	}
	return OUTCOME_NONE;
}

_Static_assert(offsetof(struct shared_text, text) % 8 == 0 && SHARED_TEXT % 8 == 0,
	       "sentences are words");

void shared_text_set(struct shared_text *t, int code, const char *text, bool again)
{
	char to[SHARED_TEXT] = "";

	snprintf(to, sizeof to, "%s", text ? text : "");
	atomic_fetch_add_explicit(&t->ver, 1, memory_order_acq_rel);
	words_store(t->text, to, sizeof to);
	store_release(&t->code, code);
	atomic_fetch_add_explicit(&t->ver, 1, memory_order_release);
	if (again)
		atomic_fetch_add_explicit(&t->changes, 1, memory_order_release);
}

int shared_text_get(const struct shared_text *t, char ret[SHARED_TEXT])
{
	for (int tries = 0; tries < 1000; tries++) {
		uint32_t ver = load_acquire(&t->ver);
		int code;

		if (ver & 1)
			continue;
		words_load(ret, t->text, SHARED_TEXT);
		ret[SHARED_TEXT - 1] = 0;
		code = load_acquire(&t->code);
		if (load_relaxed(&t->ver) == ver)
			return code;
	}
	ret[0] = 0; /* its writer was killed in the middle of it */
	return 0;
}

int shared_futex_wait(const _Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };

	if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0) == 0 || errno == EAGAIN)
		return 0;
	return errno == ETIMEDOUT ? -ETIMEDOUT : -EINTR;
}

void shared_futex_wake(const _Atomic uint32_t *word)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
