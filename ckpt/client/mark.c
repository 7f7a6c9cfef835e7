// SPDX-License-Identifier: Apache-2.0
// mark.c - the two calls of the training loop, ckpt_snapshot and ckpt_guard, and what watches
// them: ckpt_wait, ckpt_stats.
// Invariant: neither call takes a lock, allocates, or makes more than one system call, unless the
// copy is late, the mark is FINAL, memory is the process's own, places run out (canary.h), a change
// was found, or this rank refuses the step.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/abi.h"
#include "ckpt/client/handle.h"
#include "ckpt/wire/turns.h"
#include <inttypes.h>
#include <stdio.h>

#define GUARD_MIN_NS (2 * NS_PER_MS)
#define LOOK_NS (10 * NS_PER_MS) /* how often a wait looks whether the daemon still lives */

static void counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	add_relaxed(counter, n);
}

static void stall_add(ckpt *c, uint64_t since, bool marked)
{
	struct link *l = load_acquire(&c->link);
	uint64_t ns = now_ns() - since, bucket = ns ? 63 - (uint64_t)__builtin_clzll(ns) : 0;

	counter_add(&c->stall_ns_sum, ns);
	counter_add(&c->stall_log2_ns[MIN(bucket, (uint64_t)ARRAY_LEN(c->stall_log2_ns) - 1)], 1);
	if (ns > load_relaxed(&c->stall_ns_max))
		store_relaxed(&c->stall_ns_max, ns);
	if (!c->measured_since)
		c->measured_since = since;
	c->stall_ns_last = marked ? ns : c->stall_ns_last + ns;
	if (!l)
		return;
	/* for ckptctl status */
	store_relaxed(&l->rank->stall_since_ns, c->measured_since);
	store_relaxed(&l->rank->stall_last_ns, c->stall_ns_last);
	store_relaxed(&l->rank->stall_max_ns, load_relaxed(&c->stall_ns_max));
	store_relaxed(&l->rank->stall_sum_ns, load_relaxed(&c->stall_ns_sum));
}

static struct link *link_up(const ckpt *c, uint64_t now)
{
	struct link *l = load_acquire(&c->link);

	return l && load_acquire(&c->state) == LINK_UP && !beat_lost(l, now) ? l : NULL;
}

/* --- every: no guarded step is to miss its averages --- */
/* A guard, or a mark, waits as long as ckpt_opts.guard FINISH does. If that was in vain it waits no
 * more for this daemon until a guard finds its copy whole and a slot for the next mark: what hangs is
 * to cost the trainer one such wait, not one for each step. */
static bool every_waits(const ckpt *c)
{
	return c->every.on && (!c->every.late || c->every.late != load_acquire(&c->link));
}

/* Is there a slot to come, for a call that waits for one? */
static bool slots_come(const ckpt *c, const struct link *l)
{
	return !load_relaxed(&l->job->draining) &&
	       load_relaxed(&l->job->ready_epoch) == load_relaxed(&c->epoch);
}

static bool every_hopes(const ckpt *c, const struct link *l)
{
	return every_waits(c) && slots_come(c, l);
}

static uint32_t guard_policy(const ckpt *c)
{
	return every_waits(c) ? CKPT_FINISH : c->guard;
}

/* The call has ended, which began then. */
static void every_count(ckpt *c, uint64_t since)
{
	struct link *l = load_acquire(&c->link);
	bool waited = c->every.waited;

	c->every.waited = false;
	if (!c->every.on || !waited)
		return;
	counter_add(&c->every.waits, 1);
	counter_add(&c->every.wait_ns, now_ns() - since);
	if (!l)
		return;
	store_relaxed(&l->rank->every_waits, load_relaxed(&c->every.waits));
	store_relaxed(&l->rank->every_wait_ns, load_relaxed(&c->every.wait_ns));
}

/* --- snapshot --- */
static int mark_check(const ckpt *c, struct link *l, uint64_t step, const struct ckpt_mark *m)
{
	uint32_t flags = m ? m->flags : 0;
	struct shared_snap *newest = l ? shared_snap_newest(l->rank) : NULL;
	struct shared_outcome o;
	uint64_t mark;

	if (step >= CKPT_LATEST - 1 ||
	    (flags & CKPT_STAGE_ONLY && flags & (CKPT_PERSIST | CKPT_FINAL)) ||
	    (m && (m->groups || m->nnote > SHARED_NOTES)))
		return -EINVAL;
	if (step >= c->last_step)
		return 0;
	/* The same step once more, where the first attempt came to nothing, here or on another
	 * rank. */
	if (step + 1 != c->last_step || (c->restored && step == c->restored_step))
		return -EINVAL;
	if (!newest || newest->rec.step != step || shared_snap_state(newest, &mark) == SNAP_TORN ||
	    shared_snap_changed(l->rank, mark))
		return 0;
	return shared_outcome_get(l->job, step, &o) && o.ticket_seq == newest->rec.ticket_seq &&
			       (o.state == OUTCOME_TORN || o.state == OUTCOME_FAILED)
		       ? 0
		       : -EINVAL;
}

static uint32_t ticket_flags(const struct ckpt_mark *m, uint32_t trigger, bool due)
{
	uint32_t flags = m ? m->flags : 0;

	if (flags & CKPT_FINAL)
		return TICKET_PERSIST | TICKET_FINAL;
	if (trigger)
		return TICKET_PERSIST;
	if (flags & CKPT_STAGE_ONLY)
		return 0;
	return flags & CKPT_PERSIST || due ? TICKET_PERSIST : 0;
}

/* What why_jump says. */
static void jump_note(ckpt *c, int rc, uint64_t step)
{
	if (rc == -ERANGE)
		store_relaxed(&c->jumped_to, step + 1);
	else if (load_relaxed(&c->jumped_to))
		store_relaxed(&c->jumped_to, 0);
}

int why_jump(const ckpt *c, struct ckpt_err *err)
{
	uint64_t to = load_relaxed(&c->jumped_to);

	return to ? ckpt_error(err, -EINVAL,
			       "step %" PRIu64
			       " is 2^35 or more above the step that was marked before "
			       "it: use smaller increments, or start a new launch",
			       to - 1)
		  : 0;
}

/* What ckpt_why says. */
static void mark_refuse(ckpt *c, uint64_t step)
{
	pthread_mutex_lock(&c->why_lock);
	snprintf(c->refuse_why, sizeof c->refuse_why,
		 "step %" PRIu64 ": rank %u has no state of it, so no rank saves it", step,
		 c->rank);
	pthread_mutex_unlock(&c->why_lock);
}

/* The same, and once the log. */
static void blob_refuse(ckpt *c, uint64_t step, const struct blob *b)
{
	pthread_mutex_lock(&c->why_lock);
	snprintf(c->refuse_why, sizeof c->refuse_why,
		 "step %" PRIu64 ": blob %.200s is %" PRIu64
		 " bytes long, and has space for %" PRIu64
		 ": make it shorter, or call ckpt_blob_resize, and then ckpt_seal%s",
		 step, b->name, b->now, b->cap, b->per_rank ? "" : " on all ranks");
	pthread_mutex_unlock(&c->why_lock);
	if (!atomic_exchange(&c->blob_long, true)) {
		atomic_store(&c->blob_say, true);
		helper_wake(c);
	}
}

/* A final step is worth waiting for a slot; so is one of which an operator said so. refuse: this
 * rank cannot copy it: TICKET_REFUSE. */
static int ticket_get(ckpt *c, struct link *l, uint64_t step, const struct ckpt_mark *m,
		      bool refuse, struct ticket *ret)
{
	uint32_t trigger = load_relaxed(&l->job->trigger),
		 want = refuse ? TICKET_REFUSE : ticket_flags(m, trigger, due_now(c, l)),
		 waits = refuse ? 0 : (want | trigger) & TICKET_FINAL;
	const uint64_t asked = m ? m->wait_ns : 0, longest = asked   ? asked
							     : waits ? FINISH_MAX_NS
								     : c->every.max_ns;
	const struct ticket *spent =
		l == c->spent_link && step + 1 == c->spent_step ? &c->spent : NULL;
	const uint64_t now = now_ns(), until = now + MIN(longest, UINT64_MAX - now);

	for (;;) {
		uint32_t seen = atomic_load(&l->job->event);
		bool may_wait = (waits || (every_hopes(c, l) && !refuse)) && now_ns() < until;
		int rc = shared_ticket(l->job, step, spent, want, may_wait, ret);

		if (rc != -EAGAIN) {
			if (c->every.waited && !asked && now_ns() >= until)
				c->every.late = l;
			return rc;
		}
		c->every.waited = true;
		shared_futex_wait(&l->job->event, seen, LOOK_NS);
		if (link_up(c, now_ns()) != l)
			return -ECONNRESET;
	}
}

/* It was a skip, or a record follows: the next mark of this step asks for another one. */
static void ticket_spend(ckpt *c, struct link *l, uint64_t step, const struct ticket *t)
{
	c->spent = *t;
	c->spent_link = l;
	c->spent_step = step + 1;
}

/* -EAGAIN: its own copier has not ended, and this mark's record is what it works for. The ticket is
 * not spent: the other ranks may have marked by it, so another mark of this step joins them. */
static int slot_take(ckpt *c, struct link *l, const struct ticket *t, struct shared_snap **ret)
{
	*ret = shared_snap_next(l->rank);
	if (!*ret)
		return -EAGAIN;
	atomic_store(&c->held[t->slot].step, UINT64_MAX); /* from here on the slot may change */
	return 0;
}

/* Derived tensors on devices: which turn is copied of them, and of how many of whole[] all. */
static void turn_choose(const ckpt *c, const struct ticket *t, struct shared_record *r)
{
	const struct shared_rank *page = c->snap_link->rank;

	r->turn = TURN_WHOLE;
	r->nwhole = 0;
	if (!r->devices || t->flags & TICKET_FINAL ||
	    !turns_allowed(page, r->epoch, r->rev, &r->nwhole))
		return;
	r->turn = 1 + turns_next(page, c->turns);
}

/* It is copied now: the next snapshots take other ones. */
static void turn_note(ckpt *c, uint32_t turn)
{
	if (turn == TURN_WHOLE)
		return;
	c->turns[1] = c->turns[0];
	c->turns[0] = turn;
}

static void record_write(const ckpt *c, struct shared_snap *s, uint64_t step, uint64_t now,
			 const struct ticket *t, const struct ckpt_mark *m, uint32_t flags)
{
	struct shared_record r;

	r.step = step;
	r.mark_ns = now;
	r.epoch = load_relaxed(&c->epoch);
	r.rev = load_relaxed(&c->rev);
	r.slot = t->slot;
	r.flags =
		(uint16_t)(t->flags | flags |
			   (m && m->flags & CKPT_NO_EMA ? RECORD_NO_AVERAGE : 0) |
			   (m && m->flags & (CKPT_PERSIST | CKPT_STAGE_ONLY) ? RECORD_BY_HAND : 0));
	r.target = (uint32_t)shared_snap_seq(c->snap_link->rank);
	r.devices = load_relaxed(&c->which);
	turn_choose(c, t, &r);
	r.ticket_seq = t->seq;
	r.unguarded = load_relaxed(&c->snap_link->rank->unguarded);
	r.marked = c->due.marked;
	r.nnote = (uint16_t)(m ? m->nnote : 0);
	for (uint32_t i = 0; i < r.nnote; i++) {
		const char *key = m->note[i].key ? m->note[i].key : "";

		memset(r.note[i].key, 0, sizeof r.note[i].key);
		memcpy(r.note[i].key, key, strnlen(key, sizeof r.note[i].key - 1));
		r.note[i].value = m->note[i].value;
	}
	shared_snap_write(s, &r);
}

bool client_unclean(const ckpt *c, const struct link *l)
{
	uint32_t start = l ? load_acquire(&l->job->start) : START_CLEAR;

	/* whatever the job has, also after ckpt_fresh */
	if (load_relaxed(&c->undefined))
		return true;
	if (start != START_UNASKED && !load_relaxed(&c->unrestored))
		return false;
	return start != START_FRESH && !load_relaxed(&c->fresh) && !MUTANT(START_UNCHECKED);
}

/* The log has it once; its line is the helper's to write. */
static int unclean_refuse(ckpt *c)
{
	if (!atomic_exchange(&c->unclean_said, true)) {
		atomic_store(&c->unclean_say, true);
		helper_wake(c);
	}
	return -EUCLEAN;
}

/* Why a mark got no ticket, or no slot. */
static enum wire_skip skip_reason(const ckpt *c, const struct link *l, int rc,
				  const struct ticket *t)
{
	if (rc < 0)
		return rc == -ECONNRESET ? WIRE_SKIP_DETACHED : WIRE_SKIP_LATE;
	if (t->flags & TICKET_REFUSED)
		return WIRE_SKIP_BLOB;
	if (load_relaxed(&l->job->draining))
		return WIRE_SKIP_DRAINING;
	return load_relaxed(&l->job->ready_epoch) == load_relaxed(&c->epoch) ? WIRE_SKIP_FULL
									     : WIRE_SKIP_UNREADY;
}

static uint32_t failing_changes(const struct link *l)
{
	return load_acquire(&l->job->failing.changes);
}

/* The step was taken. Had it become known by then that what should be written cannot be? */
static int failing_changed(struct link *l, uint32_t changes)
{
	if (changes == l->failing_seen)
		return 0;
	l->failing_seen = changes;
	return load_acquire(&l->job->failing.code) ? CKPT_FAILING : 0;
}

static bool bell_ring(const struct link *l)
{
	const uint64_t one = 1;

	return write(l->bell, &one, sizeof one) >= 0 || errno == EAGAIN;
}

/* The launch attached beside another one, and this rank is about to mark: it asks for the job. */
static int claim_first(ckpt *c, enum wire_skip *ret_why)
{
	struct wire_plain m = { 0 };
	struct wire_claimed w;
	struct ckpt_err why = { 0 };
	int rc;

	*ret_why = WIRE_SKIP_DETACHED;
	if (!rpc_take(c, client_until(RPC_NS)))
		return CKPT_DETACHED;
	rc = rpc_call(c, &m, WIRE_CLAIM, -1, &w, NULL, RPC_NS, &why);
	if (rc == 0)
		c->generation = w.generation;
	rpc_give(c);
	pthread_mutex_lock(&c->why_lock);
	c->claim_why = why;
	pthread_mutex_unlock(&c->why_lock);
	if (rc == 0 || rc == -ESTALE)
		return rc;
	log_line(&c->log, LOG_WARNING, "client: rank %u of job %s: its first step is not taken: %s",
		 c->rank, c->job, why.msg);
	return CKPT_DETACHED;
}

/* ret_why: for CKPT_SKIPPED and CKPT_DETACHED. */
static int snapshot_take(ckpt *c, uint64_t step, const struct ckpt_mark *m, uint64_t now,
			 enum wire_skip *ret_why)
{
	struct link *l = link_up(c, now);
	struct shared_snap *s;
	struct ticket t;
	const struct blob *too_long;
	bool refuses = m && m->flags & CKPT_REFUSE;
	bool busy, low, refuse, none, over = false;
	uint32_t n, changes, need, replicas = 0;
	uint64_t seq;
	int rc = mark_check(c, l, step, m), device;

	if (rc < 0)
		return rc;
	device = devices_check(c, m);
	if (device == -EINVAL)
		return -EINVAL;
	if (load_acquire(&c->state) == LINK_FENCED)
		return -ESTALE;
	if (client_unclean(c, l))
		return unclean_refuse(c);
	*ret_why = WIRE_SKIP_DETACHED;
	due_mark(c, step);
	if (!l)
		return CKPT_DETACHED;
	if (load_relaxed(&l->job->fenced))
		return -ESTALE;
	if (c->last_mark_ns)
		c->mean_interval_ns = c->mean_interval_ns
					      ? c->mean_interval_ns - c->mean_interval_ns / 8 +
							(now - c->last_mark_ns) / 8
					      : now - c->last_mark_ns;
	c->last_mark_ns = now;
	if (shared_stable(l->rank))
		counter_add(&c->unguarded, 1);
	if (c->dirty || c->moved || !c->sealed_once || !declared_now(c)) {
		store_release(&l->rank->passed_step, step + 1);
		bell_ring(l);
		*ret_why = WIRE_SKIP_UNREADY;
		return CKPT_SKIPPED;
	}
	store_release(&l->rank->passed_step, 0);
	if (load_acquire(&l->job->unclaimed) &&
	    load_relaxed(&l->job->ready_epoch) == load_relaxed(&c->epoch)) {
		rc = claim_first(c, ret_why);
		if (rc != 0)
			return rc;
	}
	too_long = blobs_look(c);
	if (refuses)
		mark_refuse(c, step);
	else if (too_long)
		blob_refuse(c, step, too_long);
	else
		store_relaxed(&c->blob_long, false);
	refuses = refuses || too_long;
	store_relaxed(&c->refuses, refuses);
	refuse = refuses || device < 0;
	rc = ticket_get(c, l, step, m, refuse, &t);
	if (rc != -ECONNRESET)
		jump_note(c, rc, step);
	if (rc == -ERANGE)
		return -EINVAL;
	/* SHARED_SKIP, or nonsense in the page */
	if (rc < 0 || t.slot >= load_relaxed(&c->nslot)) {
		if (rc == 0)
			ticket_spend(c, l, step, &t);
		*ret_why = rc == 0 && refuses  ? WIRE_SKIP_BLOB
			   : rc == 0 && refuse ? WIRE_SKIP_DEVICE
					       : skip_reason(c, l, rc, &t);
		return rc == -ECONNRESET ? CKPT_DETACHED : CKPT_SKIPPED;
	}
	if (t.flags & TICKET_PERSIST)
		due_asked(c, l, step, t.seq);
	if (m && m->flags & CKPT_STAGE_ONLY)
		store_relaxed(&c->due.stage_only, step + 1);
	c->last_step = step + 1;
	c->redeclare = true; /* what was sealed is ready: another ckpt_seal is another epoch */
	need = load_relaxed(&c->need);
	/* Of a snapshot that no guard followed; or that one has let go, which is waited for. */
	if (need & NEED_CLIENT && t.flags & TICKET_FINAL)
		copier_quiesce(c);
	if (slot_take(c, l, &t, &s) < 0) {
		*ret_why = WIRE_SKIP_COPYING;
		return CKPT_SKIPPED;
	}
	ticket_spend(c, l, step, &t);
	c->snapped = true;
	c->snap_link = l;
	changes = failing_changes(l); /* by steps before this one */
	seq = shared_snap_seq(l->rank);
	busy = need & NEED_CLIENT && copier_full(c);
	if (need & NEED_CLIENT && !busy && !refuse) {
		shared_copying_set(l->rank, seq, t.slot);
		replicas = shared_replicas_turn(l->job, t.slot);
		over = shared_ticket_over(l->job, t);
		if (!over)
			device = devices_begin(c);
		refuse = device < 0;
		if (over || refuse)
			shared_copying_clear(l->rank, seq);
	}
	none = busy || refuse || over;
	record_write(c, s, step, now, &t, m, none ? RECORD_NOT_COPIED : 0);
	store_relaxed(&c->canary.changed_step, 0);
	n = canary_mark(&c->canary, load_relaxed(&c->epoch), t.slot, &low);
	shared_canary_write(s, c->canary.note, n);
	if (!none) {
		shadow_copy(c, false);
		blobs_by_value(c);
	}
	if (none) {
		shared_snap_publish(l->rank, s, SNAP_TORN, 0);
		(void)shared_snap_state(s, &c->torn_reported); /* it is skipped: no guard tore it */
		canary_off(&c->canary);
		*ret_why = refuses  ? WIRE_SKIP_BLOB
			   : refuse ? WIRE_SKIP_DEVICE
			   : over   ? WIRE_SKIP_LATE
				    : WIRE_SKIP_COPYING;
		rc = CKPT_SKIPPED;
	} else {
		turn_note(c, s->rec.turn);
		shared_snap_publish(l->rank, s, SNAP_COPYING, need);
		if (need & NEED_CLIENT)
			copier_ask(c, l, s, seq, t.slot, replicas);
	}
	if (low && !atomic_exchange(&c->canary.wanted, 1))
		helper_wake(c);
	if (!bell_ring(l)) {
		*ret_why = WIRE_SKIP_DETACHED;
		return CKPT_DETACHED;
	}
	return rc == 0 ? failing_changed(l, changes) : rc;
}

static int mark_take(struct ckpt_mark *ret, const struct ckpt_mark *mark)
{
	int rc = abi_take(ABI_MARK, ret, mark, NULL);

	if (rc == 0)
		rc = abi_flags("ckpt_mark.flags", ret->flags,
			       CKPT_PERSIST | CKPT_STAGE_ONLY | CKPT_NO_EMA | CKPT_FINAL |
				       CKPT_REFUSE,
			       NULL);
	return rc == 0 && ((ret->nnote && !ret->note) || (ret->nstream && !ret->more)) ? -EINVAL
										       : rc;
}

int ckpt_snapshot(ckpt *c, uint64_t step, const struct ckpt_mark *mark)
{
	struct ckpt_mark mine;
	enum wire_skip why = WIRE_SKIP_DETACHED;
	uint64_t now;
	int rc = client_alive(c);

	if (rc == 0 && mark)
		rc = mark_take(&mine, mark);
	if (rc < 0)
		return rc;
	now = now_ns();
	rc = snapshot_take(c, step, mark ? &mine : NULL, now, &why);
	store_relaxed(&c->marked, rc);
	store_relaxed(&c->skipped_why, rc == CKPT_SKIPPED ? 1 + (uint32_t)why : 0);
	if (rc >= 0) {
		bool skipped = rc == CKPT_SKIPPED || rc == CKPT_DETACHED;

		counter_add(&c->taken, !skipped);
		skips_count(c, load_acquire(&c->link), skipped ? (int)why : -1);
	}
	stall_add(c, now, true);
	every_count(c, now);
	return rc;
}

/* --- guard --- */
static uint64_t guard_budget(const ckpt *c)
{
	if (every_waits(c))
		return c->every.max_ns;
	if (c->guard == CKPT_NEVER)
		return 0;
	if (c->guard == CKPT_FINISH)
		return FINISH_MAX_NS;
	return c->guard_ns ? c->guard_ns : MAX(GUARD_MIN_NS, c->mean_interval_ns / 200);
}

/* May the copy be unfinished when the guard returns, because devices do it before whatever is
 * queued behind it? */
static bool copy_let_go(const ckpt *c, const struct shared_snap *s)
{
	return guard_policy(c) != CKPT_NEVER && shared_snap_ordered(s);
}

/* What a guard waits for: the end, or (let_go) that devices go on by themselves. */
static bool copy_unfinished(const ckpt *c, const struct shared_snap *s, bool let_go)
{
	return shared_snap_state(s, NULL) == SNAP_COPYING && !(let_go && copy_let_go(c, s));
}

/* What the daemon has still to copy is not copied any more. */
static bool copy_orphaned(const ckpt *c, const struct link *l, const struct shared_snap *s,
			  uint64_t now)
{
	uint64_t seq;

	(void)shared_snap_state(s, &seq);
	return link_up(c, now) != l && shared_snap_need(s, seq) & NEED_DAEMON;
}

static void guard_wait(struct link *l, ckpt *c, const struct shared_snap *s, bool let_go,
		       uint64_t until)
{
	uint64_t now;

	while (copy_unfinished(c, s, let_go) && (now = now_ns()) < until) {
		uint32_t seen;

		atomic_store_explicit(&l->rank->waiting, 1, memory_order_seq_cst);
		seen = atomic_load_explicit(&l->rank->wake, memory_order_seq_cst);
		if (!copy_unfinished(c, s, let_go) || copy_orphaned(c, l, s, now))
			break;
		c->every.waited = true;
		shared_futex_wait(&l->rank->wake, seen, MIN(until - now, LOOK_NS));
	}
	store_relaxed(&l->rank->waiting, 0);
}

/* Has a guard let the newest snapshot go on, by (c)? It is COPYING. */
static bool guard_again(const struct link *l)
{
	return load_relaxed(&l->rank->guarded_mark) == load_relaxed(&l->rank->marks);
}

/* Devices go on by themselves, and the trainer's streams wait for them, by (c), if that is not for
 * longer than the guard may. */
static bool guard_order(ckpt *c, const struct link *l, const struct shared_snap *s,
			const struct ckpt_mark *m, uint64_t until)
{
	uint64_t now = now_ns(), stall = queued_stall_ns(&c->copier.queued, copier_news(c), now);

	if (!copy_let_go(c, s))
		return false;
	if (shared_snap_done(l->rank, &s->rec))
		return true;
	if (guard_policy(c) == CKPT_BOUNDED && !guard_again(l) && stall > until - MIN(until, now))
		return false;
	return MUTANT(STREAM_NOT_HELD) || devices_guard(c, m, s->rec.devices) == 0;
}

/* From the mark to this guard, which it is the first of: how long devices have for the copy. */
static void window_note(ckpt *c, const struct shared_snap *s, const struct ckpt_mark *m,
			uint64_t now)
{
	if (!load_relaxed(&c->which) || c->windowed_mark_ns == c->last_mark_ns)
		return;
	c->windowed_mark_ns = c->last_mark_ns;
	if (MUTANT(WINDOW_OF_HOST) || shared_snap_state(s, NULL) != SNAP_COPYING ||
	    !copier_guarded(c, m, s->rec.devices))
		queued_window(&c->copier.queued, now - c->last_mark_ns);
}

/* True: the snapshot goes on after the guard. */
static bool guard_copy(ckpt *c, struct link *l, struct shared_snap *s, const struct ckpt_mark *m,
		       uint64_t until)
{
	uint64_t now = now_ns(), stall = queued_stall_ns(&c->copier.queued, copier_news(c), now);

	if (!s)
		return false;
	window_note(c, s, m, now);
	if (!copy_unfinished(c, s, false))
		return false;
	/* It names no other streams, and those of the snapshot may have ended by now. */
	if (guard_again(l) && !(m && (m->stream || m->nstream)))
		return true;
	/* What will be given up is not queued: a device would have to copy all of it. */
	if (guard_policy(c) == CKPT_BOUNDED && !guard_again(l) && stall != UINT64_MAX &&
	    stall > until - MIN(until, now))
		return false;
	if (guard_policy(c) != CKPT_NEVER)
		queued_hurry(&c->copier.queued, copier_news(c));
	guard_wait(l, c, s, true, until);
	if (guard_order(c, l, s, m, until))
		return true;
	guard_wait(l, c, s, false, until);
	if (guard_again(l)) /* a stream that it names cannot wait: shared_tear would leave it */
		shared_snap_drop(l->rank, s, load_relaxed(&l->rank->marks));
	return false;
}

/* (why_lock) Once: then it is news. */
static bool torn_count(ckpt *c, struct link *l, uint64_t mark)
{
	uint64_t *counted = &l->torn[mark % SHARED_SNAPS];

	if (*counted == mark)
		return false;
	*counted = mark;
	counter_add(&c->torn, 1);
	return true;
}

static bool torn_found(ckpt *c, struct link *l, uint64_t mark)
{
	bool news;

	pthread_mutex_lock(&c->why_lock);
	news = torn_count(c, l, mark);
	pthread_mutex_unlock(&c->why_lock);
	return news;
}

void torn_behind(ckpt *c, struct link *l, const struct shared_snap *s, uint64_t mark)
{
	struct shared_record r;
	enum snap_state state;
	bool news = false;
	uint64_t now, at;

	pthread_mutex_lock(&c->why_lock);
	if (l->let_go[mark % SHARED_SNAPS] == mark && shared_snap_read(s, &now, &state, &r) == 0 &&
	    state == SNAP_TORN && now == mark)
		news = torn_count(c, l, mark);
	pthread_mutex_unlock(&c->why_lock);
	if (news && shared_why_get(s, mark, &at))
		canary_found(c, r.step, at);
}

/* From here on nobody but torn_behind sees whether the snapshot is torn. False: it is already. */
static bool guard_lets_go(ckpt *c, struct link *l, const struct shared_snap *s)
{
	uint64_t mark;
	bool goes_on;

	pthread_mutex_lock(&c->why_lock);
	goes_on = shared_snap_state(s, &mark) != SNAP_TORN;
	if (goes_on)
		l->let_go[mark % SHARED_SNAPS] = mark;
	pthread_mutex_unlock(&c->why_lock);
	return goes_on;
}

/* Was the state of the newest snapshot changed, though its copy went on? Of one that was given up,
 * or that is committed already, nothing depends on it. */
static bool guard_compare(ckpt *c)
{
	struct link *l = c->snap_link;
	struct shared_snap *s = l ? shared_snap_newest(l->rank) : NULL;
	uint64_t mark, at;

	if (!s || shared_snap_state(s, &mark) != SNAP_COPIED ||
	    load_relaxed(&l->job->newest[CKPT_COMMITTED]) == s->rec.step + 1)
		canary_off(&c->canary);
	at = canary_guard(&c->canary);
	if (at == CANARY_SAME)
		return false;
	shared_why_set(s, mark, at);
	canary_found(c, s->rec.step, at);
	return true;
}

/* The guard has written to its page by then. A daemon that takes over later learns of the change
 * from the handle, or from its own page. */
static void guard_changed(ckpt *c)
{
	const struct shared_snap *s = shared_snap_newest(c->snap_link->rank);
	const uint64_t one = 1;
	struct link *now;

	atomic_store(&c->canary.changed_step, s->rec.step + 1);
	now = atomic_load(&c->link);
	if (now != c->snap_link)
		atomic_store(&now->rank->changed_step, s->rec.step + 1);
	if (write(now->bell, &one, sizeof one) < 0)
		return; /* full: it is awake */
}

static int link_guard(ckpt *c, struct link *l, const struct ckpt_mark *m, uint64_t until)
{
	struct shared_snap *s = shared_snap_newest(l->rank);
	uint64_t mark, at;
	bool changed;
	int rc = 0;

	/* (c): its device reads the state before it does what is queued from here on */
	if (!guard_copy(c, l, s, m, until) || !guard_lets_go(c, l, s))
		shared_tear(l->rank);
	c->devices.marked = false;
	if (c->snap_link && c->snap_link != l)
		/* its daemon may live, and we attached to another */
		shared_tear(c->snap_link->rank);
	if (s && shared_snap_state(s, &mark) == SNAP_TORN && mark != c->torn_reported) {
		c->torn_reported = mark;
		rc = CKPT_TORN;
		/* by a copier: the daemon's, or the library's, if torn_behind has not said so */
		if (torn_found(c, l, mark) && shared_why_get(s, mark, &at))
			canary_found(c, s->rec.step, at);
	}
	changed = guard_compare(c);
	if (changed) {
		(void)torn_found(c, c->snap_link, load_relaxed(&c->snap_link->rank->marks));
		rc = CKPT_TORN;
	}
	shared_update(l->rank, changed && l == c->snap_link);
	if (changed)
		guard_changed(c);
	return rc;
}

/* Until the next mark has a slot: so the averages of the steps before are made, for a slot that
 * waits for them is not given up. The daemon may make those of this step, too, for it is guarded by
 * now. */
static void every_await(ckpt *c, struct link *l, uint64_t until)
{
	const struct shared_snap *s = shared_snap_newest(l->rank);
	uint64_t step = c->due.newest - 1, now = now_ns();
	bool in_vain;

	if (!c->every.on || !c->due.newest || !s || s->rec.flags & TICKET_FINAL || c->every.last ||
	    MUTANT(EVERY_NOT_AWAITED))
		return;
	while (every_hopes(c, l) && now < until && shared_gate_full(l->job, step) &&
	       link_up(c, now) == l) {
		uint32_t seen = atomic_load(&l->job->event);

		if (!shared_gate_full(l->job, step))
			break;
		c->every.waited = true;
		shared_futex_wait(&l->job->event, seen, MIN(until - now, LOOK_NS));
		now = now_ns();
	}
	in_vain = shared_gate_full(l->job, step) ||
		  (shared_snap_state(s, NULL) == SNAP_TORN && now >= until);
	if (slots_come(c, l))
		c->every.late = in_vain ? l : NULL;
}

int ckpt_guard(ckpt *c, const struct ckpt_mark *mark)
{
	struct ckpt_mark mine;
	struct link *l;
	uint64_t start, until;
	int rc = client_alive(c), bad;

	if (rc < 0)
		return rc;
	bad = mark ? mark_take(&mine, mark) : 0; /* returned; the guard is done all the same */
	l = load_acquire(&c->link);
	if (!l)
		return bad;
	start = now_ns();
	until = start + guard_budget(c);
	rc = link_guard(c, l, bad || !mark ? NULL : &mine, until);
	every_await(c, l, until);
	stall_add(c, start, false);
	every_count(c, start);
	return bad ? bad : rc;
}

void mark_end(ckpt *c)
{
	struct link *l = load_acquire(&c->link);

	if (!l || !c->snapped)
		return;
	(void)link_guard(c, l, NULL, 0);
	copier_quiesce(c);
	canary_off(&c->canary);
}

/* --- watching --- */
/* Is it of an earlier attempt at the step, which this rank has marked once more since? Or was it
 * staged before a guard found that it is not to be used? */
static bool outcome_outdated(const struct link *l, const struct shared_outcome *o)
{
	uint64_t newest = 0;
	bool is = false;

	for (uint32_t i = 0; i < SHARED_SNAPS; i++) {
		struct shared_record r;
		enum snap_state state;
		uint64_t mark;

		if (shared_snap_read(&l->rank->snap[i], &mark, &state, &r) < 0 ||
		    r.step != o->step || mark < newest)
			continue;
		newest = mark;
		is = (o->ticket_seq && r.ticket_seq != o->ticket_seq) ||
		     (o->state < OUTCOME_COMMITTED && shared_snap_changed(l->rank, mark));
	}
	return is;
}

/* What is known of a step: on the present pages, or on those of a daemon that has ended (there only
 * what is final). */
static bool outcome_find(const ckpt *c, uint64_t step, struct shared_outcome *ret)
{
	struct link *now = load_acquire(&c->link);

	for (struct link *l = now; l; l = l->older)
		if (shared_outcome_get(l->job, step, ret) &&
		    (l == now ? !outcome_outdated(l, ret) : ret->state == OUTCOME_COMMITTED))
			return true;
	return false;
}

/* May this step still come to something? Only what this rank has marked, or what a daemon is about
 * to take over. */
static bool step_hopeful(const ckpt *c, uint64_t step)
{
	struct link *l = load_acquire(&c->link);
	bool settling = atomic_load(&c->state) == LINK_DOWN ||
			(l && atomic_load(&l->job->ready_epoch) != atomic_load(&c->epoch));

	if (atomic_load(&c->state) == LINK_FENCED)
		return false;
	for (uint32_t i = 0; l && i < SHARED_SNAPS; i++) {
		struct shared_record r;
		enum snap_state state;
		uint64_t mark;

		if (shared_snap_read(&l->rank->snap[i], &mark, &state, &r) == 0 && r.step == step &&
		    !link_left(l, mark, step) && (state == SNAP_COPYING || state == SNAP_COPIED))
			return true;
	}
	return settling && l && (l->older || atomic_load(&c->state) == LINK_DOWN);
}

/* There is no order to write it. The last rank that leaves, or a daemon that stops, gives one. */
static int never_written(const ckpt *c, uint64_t step, struct ckpt_err *err)
{
	if (c->persist_every == 1 || atomic_load(&c->due.stage_only) == step + 1)
		return ckpt_error(err, -ENOENT,
				  "step %" PRIu64
				  " is staged and will not be written: it was marked "
				  "with CKPT_STAGE_ONLY",
				  step);
	return ckpt_error(err, -ENOENT,
			  "step %" PRIu64
			  " is staged and will not be written: persist_every is %u, "
			  "and it was not marked with CKPT_PERSIST",
			  step, c->persist_every);
}

/* Why this rank itself knows it to be torn, before the daemon does; 0: it does not. */
static int torn_here(ckpt *c, struct link *l, uint64_t step, struct ckpt_err *err)
{
	char why[CANARY_WHY] = "ckpt_guard ended the copy, because it was late";

	for (uint32_t i = 0; i < SHARED_SNAPS; i++) {
		struct shared_snap *s = &l->rank->snap[i];
		struct shared_record r;
		enum snap_state state;
		uint64_t mark, at;

		if (shared_snap_read(s, &mark, &state, &r) < 0 || r.step != step ||
		    state != SNAP_TORN || r.flags & RECORD_NOT_COPIED || link_left(l, mark, step))
			continue;
		if (shared_why_get(s, mark, &at))
			(void)canary_why(c, at, why, sizeof why);
		return ckpt_error(err, -ENOENT, "step %" PRIu64 " is torn: %s", step, why);
	}
	return 0;
}

static int step_reached(ckpt *c, uint64_t step, int state, struct ckpt_err *err)
{
	/* before the outcome is looked for, or it could come in between */
	bool hope = step_hopeful(c, step);
	struct shared_outcome o;

	if (!outcome_find(c, step, &o)) {
		struct link *l;

		if (hope)
			return 1;
		l = atomic_load(&c->link);
		if (!l)
			return ckpt_error(err, -ECONNRESET,
					  "step %" PRIu64 ": no daemon is attached", step);
		if (torn_here(c, l, step, err) < 0)
			return -ENOENT;
		return ckpt_error(err, -ENOENT,
				  "step %" PRIu64 " was skipped, torn, or never marked", step);
	}
	switch (o.state) {
	case OUTCOME_TORN:
		return ckpt_error(err, -ENOENT, "step %" PRIu64 " is torn: %s", step, o.text);
	case OUTCOME_FAILED:
		if (state == CKPT_STAGED)
			return 0;
		return ckpt_error(err, o.code < 0 ? o.code : -EIO,
				  "step %" PRIu64 " could not be written: %s", step, o.text);
	case OUTCOME_THINNED:
		if (state == CKPT_STAGED)
			return 0;
		return ckpt_error(err, -ENOENT, "step %" PRIu64 " will not be written: %s", step,
				  o.text);
	case OUTCOME_COMMITTED:
		return 0;
	case OUTCOME_PERSISTED:
		return state <= CKPT_PERSISTED ? 0 : 1;
	case OUTCOME_STAGED:
		if (state <= CKPT_STAGED)
			return 0;
		return o.code ? 1 : never_written(c, step, err);
	default:
		return 1;
	}
}

int ckpt_wait(ckpt *c, uint64_t step, int state, uint64_t wait_ns, struct ckpt_err *err)
{
	uint64_t start = now_ns(), until = start + wait_ns < start ? UINT64_MAX : start + wait_ns,
		 now = start;
	int rc = client_check(c, err);

	if (rc < 0)
		return rc;
	if (state < CKPT_STAGED || state > CKPT_COMMITTED)
		return ckpt_error(err, -EINVAL,
				  "wait for CKPT_STAGED, CKPT_PERSISTED or CKPT_COMMITTED");
	for (;;) {
		struct link *l = atomic_load(&c->link);
		uint32_t changed = atomic_load(&c->changed),
			 seen = l ? atomic_load(&l->job->event) : 0;

		if (l)
			atomic_store(&l->rank->waited_step, step + 1);
		rc = step_reached(c, step, state, err);
		if (rc <= 0)
			return rc;
		if (now >= until)
			return ckpt_error(err, -ETIMEDOUT,
					  "step %" PRIu64 " is not %s after %.1f s", step,
					  state == CKPT_STAGED	    ? "staged"
					  : state == CKPT_PERSISTED ? "persisted"
								    : "committed",
					  (double)wait_ns / 1e9);
		if (l)
			shared_futex_wait(&l->job->event, seen, MIN(until - now, 10 * LOOK_NS));
		else
			shared_futex_wait(&c->changed, changed, MIN(until - now, 10 * LOOK_NS));
		now = now_ns();
	}
}

/* --- why --- */
static int why_unclean(ckpt *c, struct ckpt_err *err)
{
	char why[SHARED_TEXT];

	if (!atomic_load(&c->unrestored))
		return ckpt_error(
			err, -EUCLEAN,
			"job %s has steps, and no rank has called ckpt_restore: ckpt_snapshot takes "
			"nothing, because the first commit would set them aside; call ckpt_restore "
			"before the first ckpt_snapshot, or ckpt_fresh to start over",
			c->job);
	pthread_mutex_lock(&c->why_lock);
	memcpy(why, c->unrestored_why, sizeof why);
	pthread_mutex_unlock(&c->why_lock);
	return ckpt_error(
		err, -EUCLEAN,
		"ckpt_restore failed, and ckpt_snapshot takes nothing until it succeeds; call "
		"ckpt_fresh to start over; it failed with: %s",
		why);
}

static int why_torn(ckpt *c, struct link *l, struct ckpt_err *err)
{
	struct shared_snap *s = l ? shared_snap_newest(l->rank) : NULL;
	struct shared_record r;
	struct shared_outcome o;
	enum snap_state state;
	uint64_t mark;
	bool known;

	if (!s || shared_snap_read(s, &mark, &state, &r) < 0)
		return 0;
	known = shared_outcome_get(l->job, r.step, &o) && o.state == OUTCOME_TORN;
	if (!known && state != SNAP_TORN)
		return 0;
	if (!known)
		return torn_here(c, l, r.step, err);
	return ckpt_error(err, -ENOENT, "step %" PRIu64 " is torn: %.*s", r.step,
			  (int)sizeof o.text - 1, o.text);
}

static int why_stale(ckpt *c, const struct link *l, struct ckpt_err *err)
{
	struct ckpt_err why;

	pthread_mutex_lock(&c->why_lock);
	why = c->claim_why;
	pthread_mutex_unlock(&c->why_lock);
	if (why.code == -ESTALE && l && load_acquire(&l->job->unclaimed))
		return ckpt_error(err, -ESTALE, "%s", why.msg);
	return ckpt_error(err, -ESTALE, "a newer launch of job %s has taken over: stop this one",
			  c->job);
}

/* Of the newest snapshot alone. */
static int why_marked(ckpt *c, struct link *l, struct ckpt_err *err)
{
	char text[SHARED_TEXT];
	uint32_t why;
	bool known;

	switch (atomic_load(&c->marked)) {
	case CKPT_SKIPPED:
		why = atomic_load(&c->skipped_why) - 1;
		known = why == WIRE_SKIP_UNREADY && l && shared_text_get(&l->job->waits, text);
		if (why == WIRE_SKIP_BLOB && atomic_load(&c->refuses)) {
			pthread_mutex_lock(&c->why_lock);
			memcpy(text, c->refuse_why, sizeof text);
			pthread_mutex_unlock(&c->why_lock);
			known = true;
		}
		return ckpt_error(err, -ENOENT, "job %s: the step was skipped: %s", c->job,
				  known ? text : wire_skip_text(why));
	case CKPT_DETACHED:
		return ckpt_error(
			err, -ECONNREFUSED,
			"job %s: no daemon is attached (%s): nothing is copied until one is attached",
			c->job, c->socket);
	case -ESTALE:
		return why_stale(c, l, err);
	case -EINVAL:
		if (why_jump(c, err) < 0)
			return -EINVAL;
		return ckpt_error(
			err, -EINVAL,
			"job %s: ckpt_snapshot refused its arguments: steps must grow, and flags must be "
			"known",
			c->job);
	case 0:
	case CKPT_FAILING:
		return why_torn(c, l, err);
	default:
		return 0;
	}
}

int ckpt_why(ckpt *c, struct ckpt_err *err)
{
	struct ckpt_err mark = { 0 };
	char text[SHARED_TEXT];
	struct link *l;
	int rc = client_check(c, err), fails;

	if (rc < 0)
		return rc;
	l = atomic_load(&c->link);
	if (client_unclean(c, link_up(c, now_ns())))
		return why_unclean(c, err);
	rc = why_marked(c, l, &mark);
	fails = l ? shared_text_get(&l->job->failing, text) : 0;
	if (rc && fails)
		return ckpt_error(err, rc, "%s\n%s", mark.msg, text);
	if (rc || fails)
		return ckpt_error(err, rc ? rc : fails, "%s", rc ? mark.msg : text);
	if (err)
		*err = (struct ckpt_err){ 0 };
	return 0;
}

int ckpt_stats(ckpt *c, struct ckpt_stats *ret)
{
	struct ckpt_stats s = { 0 };
	struct shared_outcome o;
	struct link *l;
	int rc = client_alive(c);

	if (rc == 0 && !ret)
		rc = -EINVAL;
	if (rc == 0)
		rc = abi_size(ABI_STATS, ret, NULL);
	if (rc < 0)
		return rc;
	l = atomic_load(&c->link);
	s.taken = atomic_load(&c->taken);
	for (size_t i = 0; i < ARRAY_LEN(c->skipped); i++)
		s.skipped += atomic_load(&c->skipped[i]);
	s.torn = atomic_load(&c->torn);
	s.stall_ns_sum = atomic_load(&c->stall_ns_sum);
	s.stall_ns_max = atomic_load(&c->stall_ns_max);
	s.unguarded = atomic_load(&c->unguarded);
	s.reattached = atomic_load(&c->reattached);
	for (size_t i = 0; i < ARRAY_LEN(s.stall_log2_ns); i++)
		s.stall_log2_ns[i] = atomic_load(&c->stall_log2_ns[i]);
	for (struct link *k = l; k; k = k->older) {
		s.staged += atomic_load(&k->job->count[OUTCOME_STAGED]);
		s.persisted += atomic_load(&k->job->count[OUTCOME_PERSISTED]);
		s.committed += atomic_load(&k->job->count[OUTCOME_COMMITTED]);
		s.failed += atomic_load(&k->job->count[OUTCOME_FAILED]);
		s.thinned += atomic_load(&k->job->count[OUTCOME_THINNED]);
		s.copy_bytes += atomic_load(&k->rank->copy_bytes);
		s.copy_bytes += atomic_load(&k->rank->own_bytes);
		s.copy_ns += atomic_load(&k->rank->copy_ns);
		s.copy_ns += atomic_load(&k->rank->own_ns);
		s.last_committed_step =
			MAX(s.last_committed_step, atomic_load(&k->job->newest[CKPT_COMMITTED]));
	}
	s.average_waits = load_relaxed(&c->every.waits);
	s.average_wait_ns = load_relaxed(&c->every.wait_ns);
	for (struct link *k = l; k && !s.average_taken && !s.average_left_out; k = k->older) {
		s.average_left_out = atomic_load(&k->job->average_left_out);
		s.average_taken = atomic_load(&k->job->average_taken);
	}
	if (s.last_committed_step)
		s.last_committed_step--;
	for (int state = CKPT_STAGED; l && state <= CKPT_COMMITTED; state++) {
		uint64_t step = atomic_load(&l->job->newest[state]);

		if (!step || !shared_outcome_get(l->job, step - 1, &o))
			continue;
		if (state == CKPT_STAGED)
			s.staged_ns = o.staged_ns;
		else if (state == CKPT_PERSISTED)
			s.persisted_ns = o.persisted_ns;
		else
			s.committed_ns = o.committed_ns;
	}
	abi_give(ABI_STATS, ret, &s);
	return 0;
}
