// SPDX-License-Identifier: Apache-2.0
// commands.c - connections that ask and give orders: STATUS, TRIGGER, DRAIN, FORGET of wire/wire.h.
// Called by session and loop; snap calls it when a step is over.
// Invariant: no request waits, uses a file system, or costs more than one visit to every rank. If a
// client repeats its request faster than reports are made, it gets the same report again.
#include "daemon/average.h"
#include "daemon/passes.h"
#include "daemon/state.h"
#include <inttypes.h>
#include <stdio.h>

#define CONTROLS_MAX 64u	    /* connections */
#define SILENCE_NS (120 * NS_PER_S) /* after which one is closed */
#define REPORT_NS (20 * NS_PER_MS)  /* that a report may be old */

bool daemon_attended(const struct daemon *d)
{
	for (const struct session *s = d->sessions; s; s = s->next)
		if (!s->control)
			return true;
	return false;
}

/* --- the report --- */
struct report {
	struct wire_report_head *head;
	struct wire_report_job *job;
	struct wire_report_rank *rank;
	struct wire_report_step *step;
	struct wire_report_average *average;
};

static uint32_t job_steps(const struct job *j)
{
	uint32_t n = MIN(j->npast, (uint32_t)PAST_MAX) + MIN(j->nskipped, (uint32_t)PAST_MAX);

	for (const struct snap *s = j->snaps; s; s = s->next)
		n++;
	return n;
}

/* The newest step in memory that has averages; NULL. */
static const struct snap *newest_averaged(const struct job *j)
{
	const struct snap *best = NULL;

	for (const struct snap *s = j->snaps; s; s = s->next)
		if (s->averaged && s->average && (!best || s->step > best->step))
			best = s;
	return best;
}

/* What the newest declarations of the job average, or, where its ranks have left, those of a step
 * in memory; NULL: nothing. */
static const struct averages *job_averages(const struct job *j)
{
	const struct decl *d = j->launch && j->launch->world ? j->launch->member[0].decl : NULL;
	const struct snap *s = d ? NULL : newest_averaged(j);

	d = s ? s->rank[0].decl : d;
	return d ? d->averages : NULL;
}

static uint32_t job_rows(const struct job *j)
{
	const struct averages *a = job_averages(j);

	return a ? a->nrow : 0;
}

/* What is beside a job is no job yet: the first of these that is one. */
static const struct job *shown(const struct job *j)
{
	while (j && j->beside)
		j = j->next;
	return j;
}

/* How many of each fit; cut: not all do. */
static struct wire_report_head report_size(const struct daemon *d)
{
	struct wire_report_head h = { .magic = WIRE_MAGIC };

	for (const struct job *j = shown(d->jobs); j; j = shown(j->next)) {
		uint32_t ranks = j->launch ? j->launch->world : 0, steps = job_steps(j);
		uint32_t rows = job_rows(j);

		if (h.njob == WIRE_REPORT_JOBS_MAX || ranks > WIRE_REPORT_RANKS_MAX - h.nrank ||
		    steps > WIRE_REPORT_STEPS_MAX - h.nstep ||
		    rows > WIRE_REPORT_AVERAGES_MAX - h.naverage) {
			h.cut = 1;
			break;
		}
		h.njob++;
		h.nrank += ranks;
		h.nstep += steps;
		h.naverage += rows;
	}
	return h;
}

static void put_rank(struct wire_report_rank *to, uint32_t job, const struct member *m,
		     uint64_t now)
{
	const struct shared_rank *p = m->page;
	uint64_t marks = p ? load_acquire(&p->marks) : 0, since;
	struct shared_record rec;
	enum snap_state state;
	uint64_t seq;

	*to = (struct wire_report_rank){ .job = job,
					 .rank = m->rank,
					 .state = m->session ? WIRE_ATTACHED
						  : m->lost  ? WIRE_DIED
						  : m->left  ? WIRE_DETACHED
							     : WIRE_ABSENT,
					 .pid = m->session ? (uint32_t)m->session->pid : 0,
					 .marks = marks };
	if (!p)
		return;
	if (marks && shared_snap_read(&p->snap[marks % SHARED_SNAPS], &seq, &state, &rec) == 0)
		to->newest = rec.step + 1;
	to->copy_bytes = load_relaxed(&p->copy_bytes) + load_relaxed(&p->own_bytes);
	to->copy_ns = load_relaxed(&p->copy_ns) + load_relaxed(&p->own_ns);
	to->stall_sum_ns = load_relaxed(&p->stall_sum_ns);
	to->stall_max_ns = load_relaxed(&p->stall_max_ns);
	to->stall_last_ns = load_relaxed(&p->stall_last_ns);
	since = load_relaxed(&p->stall_since_ns);
	to->measured_ns = since ? elapsed_ns(since, now) : 0;
	to->every_waits = load_relaxed(&p->every_waits);
	to->every_wait_ns = load_relaxed(&p->every_wait_ns);
}

/* A rank's slot that holds the step; NULL: none any more. */
static const struct slotmem *slot_of(const struct job *j, const struct snap *s, uint32_t r)
{
	const struct launch *l = j->launch;

	if (s->rank[r].mem)
		return s->rank[r].mem;
	return s->launch == l && s->slot < l->nslot ? l->member[r].slot[s->slot] : NULL;
}

static uint64_t snap_bytes(const struct job *j, const struct snap *s)
{
	uint64_t bytes = 0;

	for (uint32_t r = 0; r < s->world; r++)
		bytes += slot_of(j, s, r) ? slot_of(j, s, r)->bytes : 0;
	return bytes;
}

static void put_memory(const struct job *j, struct wire_report_job *to)
{
	const struct launch *l = j->launch;

	for (uint32_t r = 0; l && r < l->world; r++) {
		to->mapped += l->member[r].seg_bytes;
		for (uint32_t i = 0; i < l->nslot; i++)
			to->held += l->member[r].slot[i] ? l->member[r].slot[i]->bytes : 0;
	}
	for (const struct snap *s = j->snaps; s; s = s->next)
		for (uint32_t r = 0; r < s->world; r++) {
			const struct slotmem *now = s->launch == l && s->slot < l->nslot
							    ? l->member[r].slot[s->slot]
							    : NULL;
			const struct slotmem *mem = s->rank[r].mem ? s->rank[r].mem : now;

			to->used += mem ? mem->bytes : 0;
			to->held += mem && mem != now ? mem->bytes : 0;
		}
	if (l) { /* averages to go on from, which lie in no slot */
		to->used += average_base_held(l);
		to->held += average_base_held(l);
	}
	to->used = MIN(to->used, to->held);
}

/* Of the slots that there are, the bytes that are the averages'. Of a launch whose ranks have left,
 * of the slots that hold a step. */
static void put_average_memory(const struct job *j, struct wire_report_job *to)
{
	const struct launch *l = j->launch;

	for (uint32_t r = 0; l && r < l->world; r++) {
		const struct decl *d = l->member[r].decl;

		for (uint32_t i = 0; i < l->nslot && d; i++)
			to->average_bytes += l->member[r].slot[i] ? averages_slot_bytes(d) : 0;
	}
	for (const struct snap *s = j->snaps; s; s = s->next)
		for (uint32_t r = 0; r < s->world; r++) {
			bool counted = s->launch == l && l->member[r].decl;

			if (!counted && s->rank[r].decl && slot_of(j, s, r))
				to->average_bytes += averages_slot_bytes(s->rank[r].decl);
		}
	to->averaged = j->average.averaged;
	to->average_given_up = j->average.given_up;
	to->average_left_out = j->average.left_out;
	_Static_assert(sizeof to->average_gated == sizeof j->average.gated, "enum wire_gate");
	memcpy(to->average_gated, j->average.gated, sizeof to->average_gated);
}

static uint32_t mib_of(uint64_t bytes)
{
	return (uint32_t)MIN(bytes / MIB, (uint64_t)UINT32_MAX - 1);
}

/* What fails, and the device that hangs: below what is being written, else below the newest
 * claim. */
static void put_trouble(const struct job *j, struct wire_report_job *to)
{
	const struct device *v = j->writing ? j->writing->launch->place->device : j->device;

	to->failing_wall_ns = j->failing.wall_ns;
	snprintf(to->failing, sizeof to->failing, "%s", j->failing.text);
	if (j->launch)
		drift_text(j->launch, to->drift, sizeof to->drift);
	if (!v)
		return;
	to->stuck_ns = device_stuck_ns(v, now_ns());
	snprintf(to->device, sizeof to->device, "%s", v->name);
}

static void put_job(const struct job *j, struct wire_report_job *to)
{
	static const uint32_t state[] = { [LAUNCH_FORMING] = WIRE_FORMING,
					  [LAUNCH_READY] = WIRE_READY,
					  [LAUNCH_ENDED] = WIRE_ENDED };
	const struct tally *t = &j->tally;
	const struct launch *l = j->launch;

	*to = (struct wire_report_job){
		.id = j->id,
		.taken = t->taken,
		.torn = t->torn,
		.staged = t->staged,
		.persisted = t->persisted,
		.committed = t->committed,
		.failed = t->failed,
		.thinned = t->thinned,
		.last_committed = t->last_committed,
		.last_committed_wall_ns = t->last_committed_wall_ns,
		.last_commit_ns = t->last_commit_ns,
		.newest = t->newest,
		.triggers = j->triggers,
		.trigger_waits = j->trigger != 0,
		.error_wall_ns = t->error_wall_ns,
		.error_step = t->error_step,
	};
	snprintf(to->name, sizeof to->name, "%s", j->name);
	snprintf(to->error, sizeof to->error, "%s", t->error);
	if (!j->place ||
	    io_path(j->d->opts.ops, j->place->store->root_fd, to->store, sizeof to->store) < 0)
		to->store[0] = 0;
	put_trouble(j, to);
	to->launch = j->claiming ? WIRE_FORMING : WIRE_NO_LAUNCH;
	if (l) {
		to->generation = l->generation;
		to->launch = state[l->state];
		to->world = l->world;
		to->nslot = l->nslot;
		to->lost = l->ndied;
		to->lost_wall_ns = l->died_wall_ns;
		to->attached = launch_attached(l);
	}
	to->free_mib = j->space.known ? 1 + mib_of(j->space.free_bytes) : 0;
	to->next_mib = mib_of(align_up(j->space.need_bytes, MIB));
	memcpy(to->skipped_by, t->skipped_by, sizeof to->skipped_by);
	launch_skips(l, to->skipped_by);
	for (uint32_t i = 0; i < WIRE_SKIPS; i++)
		to->skipped += to->skipped_by[i];
	put_memory(j, to);
	put_average_memory(j, to);
	keep_put(j, to);
}

static const struct snap *snap_of(const struct job *j, uint64_t step, uint64_t generation)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		if (s->step_known && s->step == step && s->launch->generation == generation)
			return s;
	return NULL;
}

static const struct wire_report_step *past_find(const struct job *j, const struct snap *s)
{
	for (uint32_t i = 0; i < MIN(j->npast, (uint32_t)PAST_MAX); i++)
		if (j->past[i].step == s->step && j->past[i].generation == s->launch->generation)
			return &j->past[i];
	return NULL;
}

static void put_snap(const struct job *j, const struct snap *s, uint64_t now,
		     struct wire_report_step *to)
{
	const struct wire_report_step *p = past_find(j, s),
				      own = { .step = s->step,
					      .generation = s->launch->generation,
					      .mark_ns = s->mark_ns,
					      .state =
						      s->committed ? WIRE_COMMITTED : WIRE_STAGED };

	*to = p ? *p : own;
	to->trigger = MAX(to->trigger, s->trigger);
	if (s->dropped)
		return;
	to->flags = WIRE_HELD | (s->no_average ? WIRE_NO_AVERAGE : 0);
	to->total = load_relaxed(&s->total);
	to->written = MIN(load_relaxed(&s->written), to->total);
	to->total = to->total ? to->total : snap_bytes(j, s);
	switch (s->phase) {
	case PHASE_COLLECTING:
		to->state = WIRE_MARKED;
		to->flags |= s->flags & TICKET_PERSIST ? WIRE_TO_WRITE : 0;
		break;
	case PHASE_STAGED:
		to->flags |= s->flags && !s->committed && to->state < WIRE_TORN ? WIRE_TO_WRITE : 0;
		break;
	case PHASE_QUEUED:
		to->state = WIRE_QUEUED;
		to->flags |= WIRE_TO_WRITE;
		break;
	case PHASE_WRITING:
		to->state = s->durable ? WIRE_PERSISTED : WIRE_WRITING;
		to->writing_ns = elapsed_ns(s->write_ns, now);
		to->flags |= WIRE_TO_WRITE;
		break;
	}
}

static int by_mark(const void *a, const void *b)
{
	const struct wire_report_step *x = a, *y = b;

	return COMPARE(y->mark_ns, x->mark_ns);
}

/* Returns how many. */
static uint32_t put_steps(const struct job *j, uint32_t job, uint64_t now,
			  struct wire_report_step *to)
{
	uint32_t n = 0;

	for (const struct snap *s = j->snaps; s; s = s->next)
		if (s->step_known)
			put_snap(j, s, now, &to[n++]);
	for (uint32_t i = 0; i < MIN(j->npast, (uint32_t)PAST_MAX); i++)
		if (!snap_of(j, j->past[i].step, j->past[i].generation))
			to[n++] = j->past[i];
	for (uint32_t i = 0; i < MIN(j->nskipped, (uint32_t)PAST_MAX); i++)
		to[n++] = j->skipped[i];
	for (uint32_t i = 0; i < n; i++)
		to[i].job = job;
	qsort(to, n, sizeof *to, by_mark);
	return n;
}

/* --- averages --- */
_Static_assert((int)WIRE_AVERAGE_KAHAN == (int)AVERAGE_KAHAN &&
		       (int)WIRE_AVERAGE_MIXED == (int)AVERAGE_MIXED &&
		       (int)WIRE_AVERAGE_SEEDED == (int)AVERAGE_SEEDED,
	       "the report says them by the same numbers");

static void put_average(const struct average_row *row, const struct average_result *x, uint32_t i,
			uint32_t job, struct wire_report_average *to)
{
	*to = (struct wire_report_average){ .job = job,
					    .rule = row->rule,
					    .flags = row->kahan ? WIRE_AVERAGE_KAHAN : 0,
					    .worst = -1 };
	snprintf(to->name, sizeof to->name, "%s", row->name);
	snprintf(to->schedule, sizeof to->schedule, "%s", row->canonical);
	if (!x)
		return;
	const struct ema_state *s = &x->row[i];
	const struct average_row_health *h = &x->health[i];

	to->flags |= x->flags[i] | WIRE_AVERAGE_MADE;
	to->flags |= x->left_out[i] & AVERAGE_AT_LEAST ? WIRE_AVERAGE_AT_LEAST : 0;
	to->left_out = x->left_out[i] & ~AVERAGE_AT_LEAST;
	to->gate = x->row_gate[i];
	to->step = x->step + 1;
	to->updates = s->updates;
	to->last_step = s->last_step == EMA_NO_STEP ? 0 : s->last_step + 1;
	to->since = s->last_step == EMA_NO_STEP ? 0 : s->since + 1;
	to->product = s->product;
	to->lag = h->lag;
	to->nan = h->sum.nan;
	to->inf = h->sum.inf;
	to->nan_sources = h->nan_sources;
	to->inf_sources = h->inf_sources;
	to->far = h->far;
	to->convex_broken = h->convex_broken;
	to->worst = h->worst;
	snprintf(to->worst_name, sizeof to->worst_name, "%s", h->worst_name);
	snprintf(to->convex_name, sizeof to->convex_name, "%s", h->convex_name);
}

/* Returns how many. */
static uint32_t put_averages(const struct job *j, uint32_t job, struct wire_report_average *to)
{
	const struct averages *a = job_averages(j);
	const struct snap *s = a ? newest_averaged(j) : NULL;
	const struct average_result *x = s ? s->average : NULL;

	/* Of other declarations it says nothing about these. */
	if (x && (x->nrow != a->nrow || !s->rank[0].decl ||
		  (s->rank[0].decl->averages != a &&
		   memcmp(s->rank[0].decl->averages->declared, a->declared, sizeof a->declared))))
		x = NULL;
	for (uint32_t i = 0; a && i < a->nrow; i++)
		put_average(&a->row[i], x, i, job, &to[i]);
	return a ? a->nrow : 0;
}

static int report_make(struct daemon *d, struct ckpt_err *err)
{
	struct wire_report_head h = report_size(d);
	uint64_t now = now_ns();
	cleanup_free void *p = calloc(1, wire_report_bytes(h.njob, h.nrank, h.nstep, h.naverage));
	struct report r = { .head = p };
	const struct job *j = shown(d->jobs);
	int fd, rc;

	if (!p)
		return ckpt_error(err, -ENOMEM, "no memory for a report");
	r.job = (struct wire_report_job *)(r.head + 1);
	r.rank = (struct wire_report_rank *)(r.job + h.njob);
	r.step = (struct wire_report_step *)(r.rank + h.nrank);
	h.nstep = 0;
	h.naverage = 0;
	for (uint32_t i = 0; i < h.njob; i++, j = shown(j->next)) {
		put_job(j, &r.job[i]);
		for (uint32_t k = 0; j->launch && k < j->launch->world; k++)
			put_rank(r.rank++, i, &j->launch->member[k], now);
		h.nstep += put_steps(j, i, now, r.step + h.nstep);
	}
	/* Behind the steps, of which there may be fewer than was thought. */
	r.average = (struct wire_report_average *)(r.step + h.nstep);
	j = shown(d->jobs);
	for (uint32_t i = 0; i < h.njob; i++, j = shown(j->next))
		h.naverage += put_averages(j, i, r.average + h.naverage);
	h.now_ns = now;
	h.wall_ns = wall_ns();
	h.began_ns = d->began_ns;
	h.pid = (uint32_t)getpid();
	h.draining = d->drain_until != 0;
	for (const struct session *s = d->sessions; s; s = s->next)
		h.sessions += s->member && s->member->session == s;
	snprintf(h.version, sizeof h.version, "%s", ckptd_version);
	*r.head = h;
	d->report_bytes = wire_report_bytes(h.njob, h.nrank, h.nstep, h.naverage);
	rc = wire_memfd_of("ckptd-report", p, d->report_bytes, &fd, err);
	if (rc < 0)
		return rc;
	if (d->report_fd >= 0)
		(void)close(d->report_fd);
	d->report_fd = fd;
	d->report_ns = now;
	return 0;
}

/* What a request has changed is seen by the next one. */
static void report_forget(struct daemon *d)
{
	d->report_ns = 0;
}

static void on_status(struct session *s)
{
	struct daemon *d = s->d;
	struct wire_status_is w = { 0 };
	struct ckpt_err err = { 0 };

	if ((d->report_fd < 0 || elapsed_ns(d->report_ns, now_ns()) > REPORT_NS) &&
	    report_make(d, &err) < 0) {
		session_refuse(s, err.code, err.msg);
		return;
	}
	w.bytes = d->report_bytes;
	session_reply(s, &w, WIRE_STATUS_IS, &d->report_fd, 1);
}

/* --- orders --- */
static struct job *job_find(struct session *s, uint64_t id)
{
	for (struct job *j = s->d->jobs; j; j = j->next)
		if (j->id == id)
			return j;
	session_refuse(s, -ENOENT, "ckptd no longer has this job");
	return NULL;
}

static void on_trigger(struct session *s, const struct wire_trigger *m)
{
	struct job *j = job_find(s, m->job);
	struct wire_triggered w = { 0 };
	char text[192];

	if (!j)
		return;
	if (s->d->drain_until) {
		session_refuse(s, -EBUSY, "ckptd is stopping and does not accept new steps");
	} else if (!launch_attached(j->launch)) {
		snprintf(text, sizeof text,
			 "no rank of job %s is attached: no process marks a step", j->name);
		session_refuse(s, -ENOENT, text);
	} else {
		bool first;

		launch_ring(j->launch); /* what was marked before is not the next one */
		job_settle(j);
		first = !j->trigger;
		w.number = ++j->triggers;
		w.after = j->tally.newest;
		job_trigger(j, TICKET_PERSIST | (m->flags & WIRE_FINAL ? TICKET_FINAL : 0));
		if (first) /* orders in a loop do not fill the log */
			job_log(j, LOG_NOTICE, "control",
				": process %d orders that the next step is written", (int)s->pid);
		session_reply(s, &w, WIRE_TRIGGERED, NULL, 0);
	}
}

static void on_drain(struct session *s, const struct wire_drain *m, int *fd)
{
	struct daemon *d = s->d;
	struct job *only = m->job ? job_find(s, m->job) : NULL;
	struct ckpt_err err = { 0 };
	uint64_t number;

	if (m->job && !only)
		return;
	if (!s->draining)
		s->draining = calloc(1, sizeof *s->draining);
	if (!s->draining) {
		session_refuse(s, -ENOMEM, "no memory for a drain");
		return;
	}
	number = ++d->drains;
	if (m->flags & WIRE_TO &&
	    rescue_start(only, TAKE_FD(fd[0]), number, m->flags & WIRE_COPY, &err) < 0) {
		session_refuse(s, err.code, err.msg);
		return;
	}
	*s->draining =
		(struct draining){ .number = number, .seq = s->seq, .to = m->flags & WIRE_TO };
	d->ndraining++;
	for (struct job *j = d->jobs; j && !(m->flags & WIRE_TO); j = j->next)
		if (!only || j == only)
			job_flush(j, number);
	control_look(d);
}

static void draining_add(struct draining *x, const struct snap *s, int rc, const char *text)
{
	size_t len = strlen(x->text);

	if (rc == 0) {
		x->written++;
		return;
	}
	x->failed++;
	x->code = x->code ? x->code : rc;
	snprintf(x->text + len, sizeof x->text - len, "%sjob %s step %" PRIu64 ": %s",
		 len ? "\n" : "", s->job->name, s->step, text);
}

void control_over(struct snap *s, int rc, const char *text)
{
	uint64_t number = TAKE(s->drain);

	for (struct session *c = s->job->d->sessions; c && number; c = c->next)
		if (c->draining && !c->draining->to && c->draining->number >= number)
			draining_add(c->draining, s, rc, text);
}

void control_rescued(struct snap *s, uint64_t number, int rc, const char *text)
{
	for (struct session *c = s->job->d->sessions; c; c = c->next)
		if (c->draining && c->draining->number == number)
			draining_add(c->draining, s, rc, text);
}

/* Is a step under way that this DRAIN waits for? One to another directory waits for its own steps
 * alone: those of an older DRAIN may never come to their disk. */
static bool still_draining(const struct daemon *d, const struct draining *x)
{
	for (const struct job *j = d->jobs; j; j = j->next) {
		if (rescue_has(j, x->number))
			return true;
		for (const struct snap *s = j->snaps; s && !x->to; s = s->next)
			if (s->drain && s->drain <= x->number)
				return true;
	}
	return false;
}

void control_look(struct daemon *d)
{
	for (struct session *s = d->sessions; s; s = s->next) {
		struct draining *x = s->draining;
		struct wire_drained w = { 0 };

		if (!x || !x->number || still_draining(d, x))
			continue;
		w.written = x->written;
		w.failed = x->failed;
		w.code = x->code;
		memcpy(w.text, x->text, sizeof w.text);
		s->seq = x->seq;
		s->asked_ns = now_ns();
		x->number = 0;
		d->ndraining--;
		session_reply(s, &w, WIRE_DRAINED, NULL, 0);
	}
}

/* Why a job's memory cannot be given back; false: it can. */
static bool forget_refused(const struct job *j, bool all, char *text, size_t bytes)
{
	if (j->claiming || launch_attached(j->launch)) {
		snprintf(text, bytes, "ranks of job %s are attached: its memory is in use",
			 j->name);
		return true;
	}
	for (const struct snap *s = j->snaps; s; s = s->next) {
		if (s->phase == PHASE_WRITING || s->tasks) {
			snprintf(text, bytes, "step %" PRIu64 " of job %s is being %s", s->step,
				 j->name,
				 s->phase == PHASE_WRITING ? "written"
				 : j->passing		   ? "read for its sums"
							   : "copied");
			return true;
		}
		if (!s->committed && !s->rescued && !s->dropped && s->phase != PHASE_COLLECTING &&
		    !all) {
			snprintf(text, bytes,
				 "step %" PRIu64 " of job %s is in memory and not on disk%s",
				 s->step, j->name,
				 s->phase == PHASE_QUEUED ? " yet: it is about to be written" : "");
			return true;
		}
	}
	return false;
}

static void on_forget(struct session *s, const struct wire_forget *m)
{
	struct job *j = job_find(s, m->job);
	struct wire_report_job now = { 0 };
	struct wire_forgotten w = { 0 };
	char text[256];

	if (j)
		passes_interrupt(j);
	if (!j)
		return;
	if (forget_refused(j, m->flags & WIRE_ALL, text, sizeof text)) {
		session_refuse(s, -EBUSY, text);
		return;
	}
	put_memory(j, &now);
	w.bytes = now.held;
	for (struct snap *x = j->snaps, *next; x; x = next) {
		next = x->next;
		w.steps++;
		w.lost +=
			!x->committed && !x->rescued && !x->dropped && x->phase != PHASE_COLLECTING;
		snap_release(x);
	}
	job_log(j, LOG_NOTICE, "control",
		" forgotten, as process %d ordered: %" PRIu64 " MiB, %u steps, %u not on disk",
		(int)s->pid, w.bytes / MIB, w.steps, w.lost);
	j->given_back = true;
	if ((!j->launch || j->launch->refs == 1) && !j->keeping)
		job_free(j);
	session_reply(s, &w, WIRE_FORGOTTEN, NULL, 0);
}

/* --- connections --- */
static void on_control(struct session *s)
{
	if (s->state != SESSION_NEW) {
		session_refuse(s, -EPROTO, "attached already");
	} else if (s->d->ncontrol >= CONTROLS_MAX) {
		session_refuse(
			s, -EAGAIN,
			"64 commands are connected to ckptd, which is its maximum: try again");
		session_end(s);
	} else {
		s->state = SESSION_CONTROL;
		s->control = true;
		s->d->ncontrol++;
		s->closed_ns = 0;
		s->asked_ns = now_ns();
		session_ok(s);
	}
}

void control_request(struct session *s, const void *msg, int *fd)
{
	enum wire_type type = (enum wire_type)((const struct wire_head *)msg)->type;

	if (type == WIRE_CONTROL) {
		on_control(s);
		return;
	}
	if (s->state != SESSION_CONTROL) {
		session_refuse(s, -EPROTO, "not a control connection");
		return;
	}
	if (s->draining && s->draining->number) {
		session_refuse(s, -EPROTO, "the drain before has not ended yet");
		return;
	}
	s->asked_ns = now_ns();
	if (type == WIRE_STATUS) {
		on_status(s);
		return;
	}
	report_forget(s->d);
	if (type == WIRE_TRIGGER)
		on_trigger(s, msg);
	else if (type == WIRE_DRAIN)
		on_drain(s, msg, fd);
	else
		on_forget(s, msg);
}

void control_tick(struct session *s, uint64_t now)
{
	if (!(s->draining && s->draining->number) && elapsed_ns(s->asked_ns, now) > SILENCE_NS)
		session_end(s);
}

void control_gone(struct session *s)
{
	if (s->draining && s->draining->number)
		s->d->ndraining--;
	free(TAKE(s->draining));
	s->d->ncontrol -= s->control;
}
