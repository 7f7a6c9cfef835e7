// SPDX-License-Identifier: Apache-2.0
// snap.c - tickets that got a slot, from the first rank's mark to the release of the slot.
// Called by launch and loop.
// Invariants: a snap is staged only when every rank of its launch has copied all of it under one
// epoch, and written only when every rank has guarded it (or ckptd drains); an older staged snap
// is released only after a newer one is staged; a slot is given to the gate only when no task
// and no copier of a rank can use it.
#include "daemon/state.h"
#include "ckpt/base/mutant.h"
#include "daemon/average.h"
#include "daemon/passes.h"
#include "daemon/waiting.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static struct snap *snap_new(struct launch *l, struct ticket t)
{
	struct snap *s = calloc(1, sizeof *s);
	struct snap_rank *rank = calloc(l->world, sizeof *rank);

	if (!s || !rank) {
		free(s);
		free(rank);
		return NULL;
	}
	*s = (struct snap){ .launch = l,
			    .job = l->job,
			    .ticket_seq = t.seq,
			    .slot = t.slot,
			    .flags = t.flags,
			    .epoch = l->epoch,
			    .const_rev = l->const_rev,
			    .base = l->base,
			    .back = l->back,
			    .drift_turn = drift_turn(l, t.slot),
			    .world = l->world,
			    .rank = rank,
			    .born_ns = now_ns(),
			    .mark_ns = now_ns(),
			    .next = l->job->snaps };
	if (l->whole && l->whole->epoch == l->epoch)
		s->whole = whole_ref(l->whole);
	passes_interrupt(l->job);
	l->refs++;
	l->job->snaps = s;
	return s;
}

struct snap *snap_in_slot(const struct launch *l, uint32_t slot)
{
	for (struct snap *s = l->job->snaps; s; s = s->next)
		if (s->launch == l && s->slot == slot && s->epoch == l->epoch)
			return s;
	return NULL;
}

static void snap_unlink(struct snap *s)
{
	struct snap **at = &s->job->snaps;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (s->drain)
		control_over(s, -ECANCELED, "the step was discarded");
	rescue_lost(s, -ECANCELED, "the step was discarded");
	drift_look(s, true);
	for (uint32_t r = 0; r < s->world; r++) {
		decl_slot_unref(s->rank[r].decl);
		slotmem_unref(s->rank[r].mem);
		slot_sums_unref(s->rank[r].sums);
		turned_unref(s->rank[r].turned);
	}
	if (s->job->before == s)
		s->job->before = NULL;
	free(s->rank);
	average_result_unref(s->average);
	whole_unref(s->whole);
	launch_unref(s->launch);
	free(s);
}

/* --- reports --- */
static struct wire_report_step *past_of(struct wire_report_step *ring, uint32_t *n, uint64_t step,
					uint64_t generation)
{
	struct wire_report_step *p;

	for (uint32_t i = 1; i <= MIN(*n, (uint32_t)PAST_MAX); i++) {
		p = &ring[(*n - i) % PAST_MAX];
		if (p->step == step && p->generation == generation)
			return p;
	}
	p = &ring[(*n)++ % PAST_MAX];
	*p = (struct wire_report_step){ .step = step,
					.generation = generation,
					.mark_ns = now_ns() };
	return p;
}

void job_log(const struct job *j, int level, const char *of, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	log_line(&j->d->opts.log, level, "%s: job %s%s", of, j->name, text);
}

void job_log_lines(const struct job *j, int level, const char *of, const char *before,
		   const char *text)
{
	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
		job_log(j, level, of, "%s%.*s", before, (int)strcspn(p, "\n"), p);
}

void job_error(struct job *j, uint64_t step, const char *text)
{
	j->tally.error_wall_ns = wall_ns();
	j->tally.error_step = step;
	snprintf(j->tally.error, sizeof j->tally.error, "%s", text);
}

void job_failing(struct job *j, int code, const char *text)
{
	struct failing *f = &j->failing;
	bool other = code != f->code;

	if (j->launch && (other || code) && !MUTANT(FAILING_UNSAID))
		shared_text_set(&j->launch->page->failing, code, code ? text : "", other);
	if (code == 0) {
		*f = (struct failing){ 0 };
		return;
	}
	f->code = code;
	f->wall_ns = f->wall_ns ? f->wall_ns : wall_ns();
	snprintf(f->text, sizeof f->text, "%s", text);
}

/* Its launch was superseded while it was written: no error, for the newer one restores it from
 * memory, or goes on from another one. */
static bool is_overtaken(const struct snap *s, int code)
{
	return code == -ESTALE && s->launch != s->job->launch && !MUTANT(OVERTAKEN_CRIED);
}

static void tally_add(struct snap *s, enum outcome_state outcome, int code, const char *text)
{
	struct tally *t = &s->job->tally;

	switch (outcome) {
	case OUTCOME_NONE:
		break;
	case OUTCOME_COPYING:
		t->taken++;
		break;
	case OUTCOME_STAGED:
		t->staged++;
		break;
	case OUTCOME_PERSISTED:
		t->persisted++;
		break;
	case OUTCOME_COMMITTED:
		t->committed++;
		t->last_committed = s->step + 1;
		t->last_committed_wall_ns = wall_ns();
		t->last_commit_ns = s->phase_ns[2];
		break;
	case OUTCOME_TORN:
		t->torn++;
		break;
	case OUTCOME_FAILED:
		if (is_overtaken(s, code))
			break;
		t->failed++;
		job_error(s->job, s->step + 1, text);
		break;
	case OUTCOME_THINNED:
		t->thinned++;
		break;
	}
	if (s->launch == s->job->launch)
		t->newest = MAX(t->newest, s->step + 1);
}

static void past_note(struct snap *s, enum outcome_state outcome, int code, const char *text)
{
	static const uint32_t state[] = {
		[OUTCOME_NONE] = WIRE_MARKED,	      [OUTCOME_COPYING] = WIRE_MARKED,
		[OUTCOME_STAGED] = WIRE_STAGED,	      [OUTCOME_PERSISTED] = WIRE_PERSISTED,
		[OUTCOME_COMMITTED] = WIRE_COMMITTED, [OUTCOME_TORN] = WIRE_TORN,
		[OUTCOME_FAILED] = WIRE_FAILED,	      [OUTCOME_THINNED] = WIRE_THINNED,
	};
	struct wire_report_step *p =
		past_of(s->job->past, &s->job->npast, s->step, s->launch->generation);

	p->state = state[outcome];
	p->trigger = MAX(p->trigger, s->trigger);
	p->mark_ns = s->mark_ns;
	p->staged_ns = s->phase_ns[0];
	p->persisted_ns = s->phase_ns[1];
	p->committed_ns = s->phase_ns[2];
	p->code = code;
	snprintf(p->text, sizeof p->text, "%s", text ? text : "");
	tally_add(s, outcome, code, text);
}

void snap_tell(struct snap *s, enum outcome_state outcome, int code, const char *text)
{
	past_note(s, outcome, code, text);
	if (outcome == OUTCOME_STAGED)
		code = s->phase != PHASE_STAGED;
	shared_outcome_set(s->launch->page, s->step, s->ticket_seq, outcome, code, s->phase_ns,
			   text);
}

/* --- an operator's order to write the next step --- */
void job_trigger(struct job *j, uint32_t ticket_flags)
{
	j->trigger = j->trigger_last = ticket_flags;
	atomic_store(&j->launch->page->trigger, ticket_flags);
}

static void trigger_take(struct snap *s)
{
	struct job *j = s->job;

	if (!j->trigger || s->launch != j->launch)
		return;
	s->flags |= TICKET_PERSIST;
	s->trigger = j->triggers;
	j->trigger = 0;
	atomic_store(&s->launch->page->trigger, 0);
}

/* The step that was to fulfil it came to nothing: the next one is. */
static void trigger_again(const struct snap *s)
{
	struct job *j = s->job;

	if (s->trigger && s->trigger == j->triggers && !j->trigger && s->launch == j->launch &&
	    s->launch->state != LAUNCH_ENDED)
		job_trigger(j, j->trigger_last);
}

bool launch_gate_open(const struct launch *l)
{
	return l->state == LAUNCH_READY && !l->nlost && !l->job->d->drain_until &&
	       l == l->job->launch && !l->unclaimed;
}

/* The end of a rank is seen twice: its socket closes, and later its process is dead. */
static bool slot_written(const struct launch *l, uint32_t slot)
{
	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *m = &l->member[r];

		if (m->page && shared_copying_has(m->page, slot) && !member_dead(m))
			return true;
	}
	return false;
}

void slot_give(struct launch *l, uint32_t slot)
{
	if (l->lent >> slot & 1 || !launch_gate_open(l) ||
	    (MUTANT(SLOT_NOT_GIVEN) && l->ticket_seen))
		return;
	shared_gate_over(l->page, slot); /* a rank that is late sees this, or is seen */
	if (slot_written(l, slot))
		return; /* ring_tickets comes again */
	average_seals_open(l, slot);
	drift_give(l, slot);
	shared_gate_give(l->page, slot);
	shared_event(l->page);
}

static void tell_staged(struct snap *s);

/* What a rescue reads stays until that ends: job_settle comes again. */
static void release(struct snap *s, bool tell)
{
	struct launch *l = s->launch;

	if ((s->tasks || s->pins) && s->phase != PHASE_COLLECTING) {
		s->phase = PHASE_STAGED;
		s->dropped = true;
		return;
	}
	assert(s->tasks == 0 && s->phase != PHASE_WRITING);
	if (s->epoch == l->epoch)
		slot_give(l, s->slot);
	if (tell)
		tell_staged(s); /* the next mark finds a slot */
	snap_unlink(s);
}

void snap_release(struct snap *s)
{
	release(s, false);
}

void snap_fail(struct snap *s, enum outcome_state outcome, int code, const char *text)
{
	if (s->dropped)
		return;
	s->dropped = true;
	if (s->drain)
		control_over(s, code, text);
	rescue_lost(s, code, text);
	if (outcome == OUTCOME_TORN)
		trigger_again(s);
	if (s->step_known) {
		snap_tell(s, outcome, code, text);
		snap_log(s,
			 outcome == OUTCOME_FAILED ? LOG_ERROR
			 : s->changed		   ? LOG_WARNING
						   : LOG_INFO,
			 "snap", " %s: %s", outcome == OUTCOME_FAILED ? "failed" : "torn", text);
	}
	/* the other ranks need not wait for copies of no use */
	for (uint32_t r = 0; r < s->world; r++)
		if (s->rank[r].copy == COPY_QUEUED)
			shared_snap_drop(
				s->launch->member[r].page,
				&s->launch->member[r].page->snap[s->rank[r].mark % SHARED_SNAPS],
				s->rank[r].mark);
}

/* --- copying --- */
struct copy {
	struct task task;
	struct snap *snap; /* not freed while its tasks run */
	uint32_t r;
	struct decl *decl;
	struct slotmem *mem;
	struct shared_rank *page;
	struct shared_snap *rec;
	uint64_t mark, ns;
	uint64_t changed_at; /* of the slot: not as it was at the mark; UINT64_MAX */
	uint32_t turn;
	bool brought; /* the copy is complete: what it has brought of replicas is summed */
	struct drift_sums *drift;
	int rc; /* 0: all that the daemon has to copy is copied */
};

static int copy_tick(void *arg, uint64_t done)
{
	struct copy *c = arg;

	(void)done;
	return !shared_snap_going(c->rec, c->mark);
}

static int copy_stop(void *arg)
{
	return copy_tick(arg, 0);
}

static void copy_run(struct task *t)
{
	struct copy *c = (struct copy *)t;
	uint64_t start = now_ns();
	void *to = c->mem->base;

	if (c->brought) {
		c->drift = drift_sum_brought(c->decl, c->turn, to, TAKE(c->drift));
		return;
	}
	c->rc = copy_tick(c, 0) ? -ECANCELED
				: move_copy(&c->decl->copy, c->decl->base, &to, copy_tick, c);
	if (c->rc == 0 && c->turn != DRIFT_NO_TURN)
		c->drift = drift_sum(c->decl, c->turn, copy_stop, c);
	if (c->rc == 0)
		switch (shared_copy_end(c->page, c->rec, c->mark, NEED_DAEMON, to,
					c->decl->raw_bytes, &c->changed_at)) {
		case COPY_END_WAITS:
		case COPY_END_COPIED:
			break;
		case COPY_END_TORN:
			c->rc = -ECANCELED;
			break;
		case COPY_END_CHANGED:
			c->rc = -ESTALE;
			break;
		}
	else if (c->rc != -ECANCELED)
		shared_snap_drop(c->page, c->rec, c->mark);
	c->ns = now_ns() - start;
}

static void launch_check(struct launch *l);

/* Found by the copier, or by the guard. Once for a snap: of the first rank. */
static void snap_changed(struct snap *s, uint32_t r, const struct decl *d, bool known, uint64_t at)
{
	char name[1100] = "its state";

	s->changed = s->unfit = true;
	if (known && d)
		decl_name_at(d, at, name, sizeof name);
	snprintf(s->why, sizeof s->why,
		 "rank %u changed %s after ckpt_snapshot and before ckpt_guard", r, name);
}

static void copy_torn(struct snap *s, uint32_t r, bool changed, uint64_t at)
{
	struct snap_rank *k = &s->rank[r];
	char text[1280], name[1100];

	k->copy = COPY_TORN;
	if (!changed) /* the other copier may know why */
		changed = shared_why_get(&s->launch->member[r].page->snap[k->mark % SHARED_SNAPS],
					 k->mark, &at);
	if (changed && at & SHARED_WHY_GONE && k->decl) {
		snprintf(
			text, sizeof text,
			"rank %u: tensor %s: its memory is no longer mapped: call ckpt_guard before "
			"it is freed",
			r, decl_name_at(k->decl, at & ~SHARED_WHY_GONE, name, sizeof name));
		s->changed = true;
		snap_fail(s, OUTCOME_TORN, -ENOENT, text);
		return;
	}
	if (changed) {
		if (!s->dropped)
			snap_changed(s, r, k->decl, true, at);
		snap_fail(s, OUTCOME_TORN, -ENOENT, s->why);
		return;
	}
	snprintf(text, sizeof text,
		 k->not_copied
			 ? "rank %u had no state of it, or could not copy it: its log says why"
			 : "rank %u's guard ended the copy",
		 r);
	snap_fail(s, OUTCOME_TORN, -ENOENT,
		  s->launch->member[r].lost ? "a rank died during its copy" : text);
}

static void copy_look(struct snap *s, uint32_t r);

static void copy_done(struct task *t)
{
	struct copy *c = (struct copy *)t;
	struct snap *s = c->snap;
	struct job *j = s->job;

	s->tasks--;
	s->rank[c->r].task = false;
	if (c->rc == 0) {
		s->rank[c->r].drift = TAKE(c->drift);
		if (!c->brought)
			atomic_fetch_add(&c->page->copy_bytes, c->decl->copy.bytes);
		atomic_fetch_add(&c->page->copy_ns, c->ns);
		copy_look(s, c->r);
	} else if (MUTANT(TORN_STAGED)) {
		s->rank[c->r].copy = COPY_DONE;
	} else {
		copy_torn(s, c->r, c->changed_at != UINT64_MAX, c->changed_at);
	}
	drift_sums_free(c->drift);
	decl_unref(c->decl);
	slotmem_unref(c->mem);
	free(c);
	launch_check(s->launch);
	job_settle(j);
	if (j->launch && j->launch->awaits)
		restore_try(j->launch);
}

static void copy_start(struct snap *s, uint32_t rank, struct shared_snap *rec, bool brought)
{
	struct snap_rank *r = &s->rank[rank];
	struct copy *c = calloc(1, sizeof *c);

	if (!c && brought) { /* without sums it is not compared */
		drift_sums_free(TAKE(r->drift));
		return;
	}
	if (!c) {
		shared_snap_drop(s->launch->member[rank].page, rec, r->mark);
		r->copy = COPY_TORN;
		snap_fail(s, OUTCOME_TORN, -ENOENT, "ckptd has no memory for a copy");
		return;
	}
	*c = (struct copy){ .snap = s,
			    .r = rank,
			    .decl = decl_ref(r->decl),
			    .mem = slotmem_ref(r->mem),
			    .page = s->launch->member[rank].page,
			    .rec = rec,
			    .mark = r->mark,
			    .turn = s->drift_turn,
			    .brought = brought,
			    .drift = brought ? TAKE(r->drift) : NULL,
			    .changed_at = UINT64_MAX };
	r->task = true;
	s->tasks++;
	daemon_task(&s->job->d->copy, &c->task, copy_run, copy_done);
}

/* Rank r's copy is complete. True: a task sums what it has brought of replicas. Of a rank that has
 * declared its memory anew meanwhile nothing is compared. */
static bool sums_start(struct snap *s, uint32_t r, struct shared_snap *rec)
{
	struct snap_rank *k = &s->rank[r];
	const struct member *m = &s->launch->member[r];
	enum drift_rest rest = DRIFT_LOST;

	if (k->summed || s->dropped || s->drift_turn == DRIFT_NO_TURN)
		return false;
	k->summed = true;
	if (m->decl == k->decl)
		rest = drift_rest(k->decl, k->drift, m->page, k->mark, s->drift_turn);
	if (rest == DRIFT_TO_SUM)
		copy_start(s, r, rec, true);
	else if (rest == DRIFT_LOST)
		drift_sums_free(TAKE(k->drift));
	return k->task;
}

/* What has become of a rank's copy: its own copier ends without a task. A daemon that ends starts
 * none. */
static void copy_look(struct snap *s, uint32_t r)
{
	struct snap_rank *k = &s->rank[r];
	struct shared_rank *page = s->launch->member[r].page;
	struct shared_snap *rec = &page->snap[k->mark % SHARED_SNAPS];
	enum snap_state state;
	uint64_t seq;

	if (k->copy != COPY_QUEUED || k->task || atomic_load(&s->job->d->stops) >= 1000)
		return;
	state = shared_snap_state(rec, &seq);
	if (seq == k->mark && state == SNAP_COPYING) {
		if (s->dropped || !(shared_snap_need(rec, k->mark) & NEED_DAEMON))
			return;
		/* where a client sets the bit later, the memory may not be ours any more */
		if (s->launch->member[r].decl == k->decl)
			copy_start(s, r, rec, false);
		else
			shared_snap_drop(page, rec, k->mark);
	} else if (MUTANT(TORN_STAGED) || (seq == k->mark && state == SNAP_COPIED)) {
		if (!sums_start(s, r, rec) && (s->dropped || !turned_compare(s, r)))
			k->copy = COPY_DONE;
	} else { /* or its record is another one's already */
		copy_torn(s, r, false, 0);
	}
}

void snap_compared(struct snap *s, uint32_t r, const char *why)
{
	struct job *j = s->job;

	s->tasks--;
	s->rank[r].task = false;
	s->rank[r].copy = *why ? COPY_TORN : COPY_DONE;
	if (*why && !s->dropped) {
		s->changed =
			true; /* a warning: the trainer has changed it otherwise than it says */
		job_error(j, s->step + 1, why);
		snap_fail(s, OUTCOME_TORN, -ENOENT, why);
	}
	launch_check(s->launch);
	job_settle(j);
	if (j->launch && j->launch->awaits)
		restore_try(j->launch);
}

/* A record of this rank belongs to the snap. */
static void copy_take(struct snap *s, struct member *m, struct shared_snap *rec, uint64_t mark,
		      const struct shared_record *is)
{
	struct snap_rank *r = &s->rank[m->rank];

	r->mark = mark;
	if (!m->decl || m->decl->epoch != is->epoch || is->epoch != s->epoch || !m->touched ||
	    (m->decl->rev != is->rev && !MUTANT(ROWS_OF_OLD_REV))) {
		shared_snap_drop(m->page, rec, mark);
		r->copy = COPY_TORN;
		snap_fail(s, OUTCOME_TORN, -ENOENT,
			  "a rank's declarations changed while the step was marked");
		return;
	}
	r->copy = COPY_QUEUED;
	r->not_copied = is->flags & RECORD_NOT_COPIED;
	r->decl = decl_slot_ref(m->decl);
	r->mem = slotmem_ref(m->slot[s->slot]);
	if (turned_take(s, m->rank, is) < 0) {
		shared_snap_drop(m->page, rec, mark);
		r->copy = COPY_TORN;
		snap_fail(s, OUTCOME_TORN, -ENOENT, "ckptd has no memory for a copy");
		return;
	}
	copy_look(s, m->rank);
}

/* --- reading the pages --- */
static struct snap *snap_of_ticket(const struct launch *l, uint16_t seq)
{
	for (struct snap *s = l->job->snaps; s; s = s->next)
		if (s->launch == l && s->ticket_seq == seq)
			return s;
	return NULL;
}

static void ticket_skipped(struct launch *l, struct ticket t)
{
	struct job *j = l->job;
	struct wire_report_step *p = past_of(j->skipped, &j->nskipped, t.step, l->generation);

	p->state = WIRE_SKIPPED;
	if (l == j->launch)
		j->tally.newest = MAX(j->tally.newest, t.step + 1);
}

static void ring_tickets(struct launch *l)
{
	struct ticket t[SHARED_PAST + 1];
	struct snap *s;
	uint32_t free_mask, n = shared_gate_look(l->page, &l->ticket_seen, t, &free_mask);

	for (uint32_t i = 0; i < n; i++) {
		if (t[i].slot == SHARED_SKIP)
			ticket_skipped(l, t[i]);
		if (t[i].slot >= l->nslot || snap_in_slot(l, t[i].slot))
			continue; /* a skip; or nonsense that a client wrote into the page */
		s = snap_new(l, t[i]);
		if (s)
			trigger_take(s);
		if (MUTANT(RELEASED_BEFORE_STAGED))
			for (struct snap *next, *k = l->job->snaps; k; k = next) {
				next = k->next;
				if (k->phase == PHASE_STAGED)
					snap_release(k);
			}
	}
	/* What a void ticket took; what a copier of a rank still wrote to. */
	for (uint32_t i = 0; i < l->nslot; i++)
		if (!(free_mask >> i & 1) && !snap_in_slot(l, i))
			slot_give(l, i);
}

static void snap_learn(struct snap *s, const struct shared_record *rec, uint32_t r)
{
	if (!s->step_known) {
		s->step = rec->step;
		s->step_known = true;
		s->mark_ns = rec->mark_ns;
		snap_tell(s, OUTCOME_COPYING, 0, NULL);
	}
	s->mark_ns = MIN(s->mark_ns, rec->mark_ns);
	s->no_average |= rec->flags & RECORD_NO_AVERAGE;
	s->by_hand |= rec->flags & RECORD_BY_HAND;
	if (r != 0)
		return;
	s->marked = rec->marked;
	s->nnote = rec->nnote;
	for (uint32_t i = 0; i < s->nnote; i++) {
		snprintf(s->note_key[i], sizeof s->note_key[i], "%.47s", rec->note[i].key);
		s->note[i] = (struct ckpt_note){ s->note_key[i], rec->note[i].value };
	}
}

/* A rank has a record of the step, and the daemon came too late to see its ticket, or had no memory
 * for it: ckptd will not write the step, and says so to ckpt_wait. */
static void ticket_lost(struct launch *l, const struct shared_record *rec)
{
	const char *why = "ckptd was late: it has not seen the step's ticket";
	struct wire_report_step *p;
	uint16_t seq = 0;

	if (shared_outcome_state(l->page, rec->step, &seq) != OUTCOME_NONE &&
	    seq == rec->ticket_seq)
		return; /* it was torn, and released */
	p = past_of(l->job->past, &l->job->npast, rec->step, l->generation);
	p->state = WIRE_TORN;
	p->code = -ENOENT;
	snprintf(p->text, sizeof p->text, "%s", why);
	l->job->tally.torn++;
	shared_outcome_set(l->page, rec->step, rec->ticket_seq, OUTCOME_TORN, -ENOENT, NULL, why);
	job_log(l->job, LOG_INFO, "snap", " step %" PRIu64 " torn: %s", rec->step, why);
}

/* One record of one rank. False: look again at the next ring. */
static bool ring_mark(struct launch *l, struct member *m, uint64_t mark)
{
	struct shared_snap *at = &m->page->snap[mark % SHARED_SNAPS];
	struct shared_record rec;
	enum snap_state state;
	uint64_t seq;
	struct snap *s;

	if (shared_snap_read(at, &seq, &state, &rec) < 0 || seq != mark)
		return true; /* overwritten by newer ones: its ticket expires */
	s = snap_of_ticket(l, rec.ticket_seq);
	if (!s && shared_seq_cmp(rec.ticket_seq, l->ticket_seen) > 0)
		return false; /* taken after the gate was read */
	if (!s && !MUTANT(TICKET_LOST_UNSAID))
		ticket_lost(l, &rec);
	if (!s || s->dropped || s->phase != PHASE_COLLECTING ||
	    s->rank[m->rank].copy != COPY_NONE || (s->step_known && s->step != rec.step)) {
		shared_snap_drop(m->page, at, mark);
		return true;
	}
	snap_learn(s, &rec, m->rank);
	s->rank[m->rank].unguarded = rec.unguarded;
	copy_take(s, m, at, mark, &rec);
	return true;
}

static void snap_staged(struct snap *s);

static int rank_guarded(const struct snap *s, uint32_t r, bool *ret_closed)
{
	const struct snap_rank *k = &s->rank[r];
	const struct shared_record rec = { .step = s->step,
					   .flags = (uint16_t)s->flags,
					   .unguarded = k->unguarded };
	const struct shared_rank *page = s->launch->member[r].page;

	*ret_closed = k->mark == 0 || shared_snap_closed(page, k->mark, &rec);
	if (k->mark == 0) /* taken over: its guard knows nothing of this page's marks */
		return load_acquire(&page->changed_step) == s->step + 1 ? -1 : 1;
	return shared_snap_guarded(page, k->mark, &rec);
}

/* Why rank r's copy is not to be used. */
static void snap_unfit(struct snap *s, uint32_t r)
{
	const struct snap_rank *k = &s->rank[r];
	const struct shared_rank *page = s->launch->member[r].page;
	uint64_t at = 0;
	bool known;

	if (s->unfit)
		return;
	s->unfit = true;
	known = k->mark && shared_why_get(&page->snap[k->mark % SHARED_SNAPS], k->mark, &at);
	if (k->mark == 0 || shared_snap_changed(page, k->mark))
		snap_changed(s, r, k->decl, known, at);
	else
		snprintf(s->why, sizeof s->why,
			 "rank %u marked its next step without ckpt_guard after this one: the copy "
			 "may be torn",
			 r);
}

int snap_guarded(struct snap *s)
{
	int all = 1;

	if (MUTANT(UNGUARDED_COMMITTED))
		return 1;
	if (s->unfit || atomic_load(&s->left))
		return -1;
	for (uint32_t r = 0; r < s->world; r++) {
		const struct member *m = &s->launch->member[r];
		bool closed;
		int guarded = rank_guarded(s, r, &closed);

		/* A rank that has left does not guard any more, and a daemon that stops does not
		 * wait for guards. */
		if (guarded == 0 && !m->lost && !m->left && !s->job->d->drain_until)
			all = 0;
		if (guarded < 0) {
			snap_unfit(s, r);
			return -1;
		}
	}
	return all;
}

static void snap_give_up(struct snap *s)
{
	snap_fail(s, OUTCOME_TORN, -ENOENT, s->why);
}

/* Until it is staged: a later step may be compared while this one waits for another rank. */
static void turns_check(struct snap *s)
{
	char text[256];

	for (uint32_t r = 0; r < s->world && !s->dropped; r++)
		if (turned_outdated(s, r, text, sizeof text) && !MUTANT(TURN_OUTDATED_STAGED)) {
			s->changed = true;
			job_error(s->job, s->step + 1, text);
			snap_fail(s, OUTCOME_TORN, -ENOENT, text);
		}
}

/* Is it complete? What is not to be used is dropped. */
static bool snap_complete(struct snap *s)
{
	bool whole = true;

	for (uint32_t r = 0; r < s->world && !s->dropped; r++) {
		const struct member *m = &s->launch->member[r];
		bool closed = false;
		char text[160];

		if (s->rank[r].mark && rank_guarded(s, r, &closed) < 0) {
			snap_unfit(s, r);
			snap_give_up(s);
		} else if (s->rank[r].copy != COPY_DONE) {
			whole = whole && MUTANT(STAGED_BEFORE_ALL) && r > 0;
		} else if (!closed && !MUTANT(STAGED_UNTRUSTED)) {
			whole = false;
			if (m->lost || m->left) {
				snprintf(text, sizeof text,
					 "rank %u ended or detached, and had not called ckpt_guard",
					 r);
				snap_fail(s, OUTCOME_TORN, -ENOENT, text);
			}
		}
	}
	if (whole)
		turns_check(s);
	return whole && !s->dropped;
}

/* Is every rank's copy whole and trusted? Then it is staged, or waits behind an older step: one
 * that was staged behind a newer one would not be written, and what is found in it may be in the
 * newer one, too (turns_check). May free s, and no other snap. True: what is newer has to wait. */
static bool snap_check(struct snap *s, bool behind)
{
	bool marked = true;

	if (snap_complete(s)) {
		if (!behind)
			snap_staged(s);
		return behind;
	}
	/* A rank that has marked a newer step does not mark this one any more. */
	for (uint32_t r = 0; r < s->world; r++)
		marked = marked && s->rank[r].copy != COPY_NONE;
	behind = behind || s->tasks || (marked && !s->dropped);
	if (s->dropped && s->tasks == 0)
		snap_release(s);
	return behind;
}

static struct snap *collecting(const struct launch *l, uint32_t nth)
{
	for (struct snap *s = l->job->snaps; s; s = s->next)
		if (s->launch == l && s->phase == PHASE_COLLECTING && nth-- == 0)
			return s;
	return NULL;
}

/* From the oldest step to the newest: the list has the newest first. Copies begin in this order,
 * and several may have ended, in any, when the owner looks. */
static void launch_check(struct launch *l)
{
	bool behind = false;
	uint32_t n = 0;

	l->refs++; /* the last snap that is released may hold the last reference */
	while (collecting(l, n))
		n++;
	while (n-- > 0)
		behind = snap_check(collecting(l, n), behind);
	launch_unref(l);
}

/* It marked the step, or a later one, without a ticket, and has not sealed since. */
static bool rank_passes(const struct snap *s, uint32_t r)
{
	const struct member *m = &s->launch->member[r];
	uint64_t passed = m->page ? load_acquire(&m->page->passed_step) : 0;

	return s->step_known && passed != m->passed && passed > s->step &&
	       !MUTANT(TICKET_LOST_UNSAID);
}

void launch_ring(struct launch *l)
{
	uint64_t now = now_ns();

	if (atomic_load(&l->job->d->stops) >= 1000)
		return;
	l->refs++; /* the last snap that is released may hold the last reference */
	ring_tickets(l);
	for (struct snap *s = l->job->snaps, *next; s;
	     s = next) { /* before the same step once more */
		next = s->next;
		/* of one that is being written it is remembered */
		if (s->launch == l && s->phase != PHASE_COLLECTING && !s->committed &&
		    snap_guarded(s) < 0 && s->phase != PHASE_WRITING) {
			snap_give_up(s);
			snap_release(s);
		} else if (s->launch == l && s->phase != PHASE_COLLECTING) {
			drift_look(s, false);
		}
	}
	for (uint32_t r = 0; r < l->world; r++) {
		struct member *m = &l->member[r];
		uint64_t marks = m->page ? load_acquire(&m->page->marks) : 0;

		if (marks > SHARED_SNAPS && m->marks_seen < marks - SHARED_SNAPS)
			m->marks_seen = marks - SHARED_SNAPS;
		while (m->marks_seen < marks && ring_mark(l, m, m->marks_seen + 1))
			m->marks_seen++;
	}
	for (struct snap *s = l->job->snaps, *next; s; s = next) {
		next = s->next;
		if (s->launch != l || s->phase != PHASE_COLLECTING)
			continue;
		for (uint32_t r = 0; r < s->world && !s->dropped; r++) {
			char text[96];

			copy_look(s, r);
			if (s->rank[r].copy != COPY_NONE)
				continue;
			snprintf(text, sizeof text, "rank %u did not mark this step", r);
			if (rank_passes(s, r))
				snap_fail(s, OUTCOME_TORN, -ENOENT,
					  "a rank has skipped it: it must call ckpt_seal again");
			if (shared_seq_cmp(l->ticket_seen, s->ticket_seq) >= 2 ||
			    elapsed_ns(s->born_ns, now) > EXPIRE_NS || l->member[r].lost ||
			    l->member[r].left)
				snap_fail(s, OUTCOME_TORN, -ENOENT, text);
		}
	}
	launch_check(l);
	launch_unref(l);
}

/* --- staged --- */
static void snap_staged(struct snap *s)
{
	struct launch *l = s->launch;

	s->phase = PHASE_STAGED;
	s->staged_at = now_ns();
	s->phase_ns[0] = s->staged_at - s->mark_ns;
	if (s->flags & (TICKET_PERSIST | TICKET_FINAL) || !launch_attached(l) ||
	    s->job->d->drain_until)
		s->phase = PHASE_QUEUED;
	if (s->flags & TICKET_PERSIST && s->rank[0].mark) {
		l->persist_ns = l->due_ns ? s->mark_ns - MIN(l->due_ns, s->mark_ns) : 0;
		l->due_ns = s->mark_ns;
	}
	snap_log(s, LOG_INFO, "snap", " staged after %.1f ms", (double)s->phase_ns[0] / 1e6);
}

void snap_adopt(struct launch *l, uint32_t slot, uint64_t step, uint32_t flags, uint64_t mark_ns)
{
	struct snap *s =
		snap_new(l, (struct ticket){ .slot = (uint8_t)slot,
					     .flags = flags & (TICKET_PERSIST | TICKET_FINAL) });

	if (!s)
		return;
	s->step = step;
	s->step_known = true;
	s->mark_ns = mark_ns;
	s->marked = l->member[0].adopt[slot].marked;
	s->no_average = flags & RECORD_NO_AVERAGE;
	s->by_hand = flags & RECORD_BY_HAND;
	s->const_rev = CONST_REV_NONE;
	for (uint32_t r = 0; r < l->world; r++) {
		const struct adopt *a = &l->member[r].adopt[slot];

		s->rank[r] = (struct snap_rank){ .copy = COPY_DONE,
						 .decl = decl_slot_ref(l->member[r].decl),
						 .mem = slotmem_ref(l->member[r].slot[slot]) };
		if (turned_make(a->turn, a->whole, a->nwhole, &s->rank[r].turned) < 0) {
			snap_unlink(s);
			return;
		}
	}
	average_adopt(s);
	job_log(l->job, LOG_NOTICE, "snap", " step %" PRIu64 " taken over from an earlier daemon%s",
		step, s->averaged ? ", with its averages" : "");
	snap_staged(s);
	if (s->averaged) /* the steps come in their order */
		passes_follow(s->job, s);
}

struct snap *newest_staged(const struct job *j, const struct place *p)
{
	struct snap *best = NULL;

	p = p || !j->launch ? p : j->launch->place;
	for (struct snap *s = j->snaps; s; s = s->next)
		if (place_same(s->launch->place, p) && s->phase != PHASE_COLLECTING &&
		    !s->dropped && (!best || s->staged_at > best->staged_at))
			best = s;
	return best;
}

void gate_close(struct launch *l)
{
	for (uint32_t i = 0; i < l->nslot; i++)
		shared_gate_take(l->page, i);
}

/* The oldest one that is guarded. One that is not does not hold up others: it is another launch's,
 * or it is dropped at the next launch_ring. */
static void write_next(struct job *j)
{
	struct snap *due = NULL;

	j->awaits_guard = false;
	for (struct snap *s = j->snaps; s; s = s->next) {
		int guarded = s->phase == PHASE_QUEUED ? snap_guarded(s) : -1;

		j->awaits_guard |= guarded == 0;
		if ((guarded > 0 || (guarded == 0 && MUTANT(AVERAGE_UNGUARDED))) &&
		    passes_ready(s) && (!due || s->staged_at < due->staged_at))
			due = s;
	}
	if (due && j->writing)
		passes_interrupt(j);
	else if (due)
		passes_make_way(j);
	if (!due || j->writing || j->passing || passes_older_wait(due))
		return;
	due->phase = PHASE_WRITING;
	j->writing = due;
	persist_start(due);
}

static void tell_staged(struct snap *s)
{
	if (s->phase == PHASE_COLLECTING || s->told || s->dropped || atomic_load(&s->left))
		return;
	s->told = true;
	snap_tell(s, OUTCOME_STAGED, 0, NULL);
}

void snap_thinned(struct snap *s, const struct snap *heir)
{
	bool due = s->flags & TICKET_PERSIST; /* else it was an heir itself, and is as before */
	char text[160];

	snprintf(text, sizeof text,
		 "the disk was busy with an older step until step %" PRIu64
		 " was staged, which is written in its place",
		 heir->step);
	tell_staged(s);
	if (due)
		past_note(s, OUTCOME_THINNED, 0, text);
	shared_outcome_thinned(s->launch->page, s->step, s->ticket_seq, heir->step, due,
			       s->phase_ns[0], text);
	snap_log(s, due ? LOG_INFO : LOG_DEBUG, "snap", " thinned: %s", text);
}

bool slot_is_free(const struct launch *l)
{
	for (uint32_t i = 0; i < l->nslot; i++)
		if (!snap_in_slot(l, i))
			return true;
	return false;
}

/* The next mark needs its slot, and its averages cannot be made now. */
static bool gives_up(const struct snap *s)
{
	return passes_may_give_up(s) && s != newest_staged(s->job, s->launch->place) &&
	       !slot_is_free(s->launch);
}

/* Need a staged step be held no longer? Each place has its newest one: what was staged for another
 * directory does not replace it. */
static bool is_superseded(const struct snap *s, uint64_t now)
{
	const struct job *j = s->job;
	bool kept = s->committed || s->rescued;

	if (s->rescue || s->tasks || s->pins || (passes_wait(s) && !gives_up(s)))
		return false;
	if (s->dropped || s != newest_staged(j, s->launch->place))
		return true;
	if (s->pass_failed && !kept && !slot_is_free(s->launch))
		return true; /* and the step before it is pinned: nothing would ever be marked again */
	return kept && s->launch->state == LAUNCH_ENDED &&
	       elapsed_ns(s->committed_at, now) > KEEP_COMMITTED_NS;
}

/* It is released without the averages that it should have had. */
static void average_gone(struct snap *s)
{
	/* one that was taken over may have been released before */
	if (s->dropped || s->pass_failed || !s->rank[0].mark || !average_wanted(s))
		return;
	s->average_late = true;
	s->job->average.given_up++;
	snap_log(s, LOG_DEBUG, "passes", " has given up its averages: a newer step is staged");
}

/* Several may have been staged since the last look. */
static void release_superseded(struct job *j)
{
	uint64_t now = now_ns();

	for (struct snap *s = j->snaps, *next; s; s = next) {
		next = s->next;
		if (s->phase != PHASE_STAGED || !is_superseded(s, now))
			continue;
		average_gone(s);
		release(s, true);
	}
}

void job_settle(struct job *j)
{
	if (atomic_load(&j->d->stops) >= 1000)
		return;
	passes_let_go(j);
	release_superseded(j);
	if (j->launch && j->launch->lent)
		launch_lent(j->launch);
	rescue_next(j);
	write_next(j);
	if (waiting_thin(j))
		release_superseded(j);
	passes_next(j);
	for (struct snap *s = j->snaps; s; s = s->next) /* now that the next mark finds a slot */
		tell_staged(s);
}

static void committed_log(const struct snap *s)
{
	uint64_t linked = atomic_load(&s->linked);
	char wrote[32], also[32], tail[48] = "";

	if (linked)
		snprintf(tail, sizeof tail, ", linked %s", keep_human(linked, also));
	snap_log(s, LOG_NOTICE, "snap",
		 " committed (staged %.1f ms, persisted %.1f ms, committed %.1f ms): wrote %s%s",
		 (double)s->phase_ns[0] / 1e6, (double)s->phase_ns[1] / 1e6,
		 (double)s->phase_ns[2] / 1e6, keep_human(atomic_load(&s->written), wrote), tail);
}

void snap_written(struct snap *s, int rc, const char *text)
{
	struct job *j = s->job;

	j->writing = NULL;
	j->d->busy_ns = now_ns();
	if (!atomic_load(&s->left))
		tell_staged(s);
	s->phase = PHASE_STAGED;
	if (atomic_load(&s->left)) {
		snap_log(s, LOG_NOTICE, "snap", " is left behind%s",
			 rc == 0 ? ": it was committed, and the next commit sets it aside" : "");
		snap_release(s);
	} else if (rc < 0 && snap_guarded(s) < 0) {
		snap_give_up(s);
		snap_release(s);
	} else if (rc == 0) {
		s->committed = true;
		s->committed_at = now_ns();
		launch_wrote(s->launch, s->committed_at - s->write_ns);
		s->launch->place->away = false;
		if (s->launch == j->launch)
			job_failing(j, 0, NULL);
		control_over(s, 0, NULL);
		snap_tell(s, OUTCOME_COMMITTED, 0, NULL);
		committed_log(s);
	} else {
		/* -ECANCELED: the daemon leaves, and the next one writes it. This comes before the
		 * report to ranks that wait for the step. */
		if (rc != -ECANCELED && s->launch == j->launch)
			job_failing(j, rc, text);
		snap_tell(s, OUTCOME_FAILED, rc, text);
		if (is_overtaken(s, rc))
			snap_log(s, LOG_INFO, "snap",
				 " is not written: a newer launch has the job");
		else
			snap_log(s, LOG_ERROR, "snap", " could not be written: %s", text);
		control_over(s, rc, text);
	}
	job_settle(j);
	for (struct job *k = j->d->jobs; k; k = k->next)
		if ((k == j || k->beside == j) && k->launch)
			restore_try(k->launch);
}

/* --- a member has left --- */
static void copy_orphan(struct snap *s, struct member *m, bool dead, bool finish)
{
	const struct snap_rank *k = &s->rank[m->rank];
	struct shared_snap *rec;

	if (k->copy != COPY_QUEUED)
		return;
	rec = &m->page->snap[k->mark % SHARED_SNAPS];
	if (dead)
		shared_snap_orphan(m->page, rec, k->mark, finish, k->mem->base, k->decl->raw_bytes);
	else
		shared_snap_drop(m->page, rec, k->mark);
	copy_look(s, m->rank);
}

void snap_member_gone(struct launch *l, struct member *m, bool dead)
{
	/* Host memory of a dead process that was not in its update cannot change any more: the
	 * daemon's copy of it may be finished. */
	bool finish = dead && m->page && atomic_load(&m->page->updating) == 0 &&
		      atomic_load(&m->page->guards) > 0 && atomic_load(&m->page->unguarded) == 0;

	for (struct snap *s = l->job->snaps, *next; s; s = next) {
		next = s->next;
		if (s->launch == l && s->phase == PHASE_COLLECTING) {
			if (s->rank[m->rank].copy == COPY_NONE)
				snap_fail(s, OUTCOME_TORN, -ENOENT,
					  "a rank ended or detached before it marked this step");
			copy_orphan(s, m, dead, finish);
		}
	}
	launch_check(l);
}

/* What is staged and newest is to be written, whatever its marks said: of this launch or place, or
 * of every place. */
static void queue_newest(struct job *j, const struct launch *of, const struct place *in)
{
	for (struct snap *s = j->snaps; s; s = s->next)
		if ((!of || s->launch == of) && (!in || place_same(s->launch->place, in)) &&
		    s->phase == PHASE_STAGED && !s->committed &&
		    s == newest_staged(j, s->launch->place)) {
			s->phase = PHASE_QUEUED;
			if (s->told)
				shared_outcome_to_write(s->launch->page, s->step);
		}
}

void snap_salvage(struct launch *l)
{
	queue_newest(l->job, l, NULL);
}

void job_write_again(struct job *j, struct place *p)
{
	queue_newest(j, NULL, p);
	job_settle(j);
}

void job_flush(struct job *j, uint64_t drain)
{
	if (j->launch)
		launch_ring(j->launch);
	queue_newest(j, NULL, NULL);
	for (struct snap *s = j->snaps; s; s = s->next) {
		if (s->phase == PHASE_COLLECTING && !s->dropped)
			s->flags |= TICKET_PERSIST;
		if (!s->drain && !s->dropped && s->phase != PHASE_STAGED)
			s->drain = drain;
	}
	job_settle(j);
}

/* Whose steps a rescue takes, for lines of two directories are not mixed: those of an older launch
 * whose own directory they could not be written to, else the newest launch's. */
static const struct place *rescue_place(const struct job *j)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		if (!place_same(s->launch->place, j->launch->place) && !s->committed &&
		    !s->rescued && s == newest_staged(j, s->launch->place))
			return s->launch->place;
	return j->launch->place;
}

uint32_t job_rescue(struct job *j, bool copy, bool take)
{
	const struct place *p;
	struct snap *newest;
	uint32_t n = 0;

	if (!j->launch)
		return 0;
	launch_ring(j->launch);
	p = copy ? j->launch->place : rescue_place(j);
	newest = newest_staged(j, p);
	if (copy && newest) {
		newest->rescue |= take;
		return 1;
	}
	for (struct snap *s = j->snaps; s; s = s->next) {
		/* the newest also if it is on disk: its directory may have been removed since */
		if (!place_same(s->launch->place, p) || s->dropped ||
		    (s->phase == PHASE_STAGED && s != newest))
			continue;
		s->rescue |= take;
		n++;
	}
	return n;
}

void job_drain(struct job *j)
{
	if (j->launch) {
		atomic_store(&j->launch->page->draining, 1);
		gate_close(j->launch);
		shared_event(j->launch->page);
		launch_ring(j->launch);
	}
	passes_interrupt(j);
	queue_newest(j, NULL, NULL);
	job_settle(j);
}

void job_tick(struct job *j, uint64_t now)
{
	if (j->launch)
		launch_tick(j->launch, now);
	place_tick(j, now);
	spares_tick(j, now);
	job_settle(j);
}
