// SPDX-License-Identifier: Apache-2.0
// passes.c - see passes.h. Called by snap, persist and restore.
// Invariants: the slots that a walk reads, its predecessor's among them, are pinned from
// passing_new to passing_end; sums are published whole or not at all.
#include "daemon/passes.h"
#include "ckpt/base/mutant.h"
#include <inttypes.h>
#include <sched.h>

#define THREADS_MAX 8u /* some 60 GB/s of sums */
#define MIB_LOG2 NATIVE_CHUNK_LOG2

struct passing_part {
	struct table table;
	struct walk *walk;
	struct walk_pass pass[PASSES_MAX];
	struct rider {
		const struct pass *pass;
		struct pass_at at;
	} rider[PASSES_MAX];
};

struct passing {
	struct task task; /* of a walk that writes nothing */
	struct snap *snap;
	struct snap *before; /* pinned; NULL: no pass wants it, or there is none */
	bool behind;	     /* a pass wants the step before */
	bool written, rescue, idle;
	atomic_bool stop; /* an idle walk is to end */
	const struct pass *pass[PASSES_MAX];
	uint32_t npass, world;
	struct passing_part *part; /* [2 * world] */
	struct slot_sums **known;  /* [world] references: what was known when this began */
	struct slot_sums **sums;   /* [world] what this has made */
	atomic_uint next;
	atomic_int failed;
	struct ckpt_err err;
	struct worker *worker;
};

/* --- sums of a step in memory --- */
struct slot_sums *slot_sums_ref(struct slot_sums *x)
{
	if (x)
		atomic_fetch_add(&x->refs, 1u);
	return x;
}

void slot_sums_unref(struct slot_sums *x)
{
	if (!x || atomic_fetch_sub(&x->refs, 1u) > 1)
		return;
	free(x->fp[0]);
	free(x->fp[1]);
	free(x->mib);
	free(x);
}

struct slot_sums *passes_sums(const struct snap *s, uint32_t r)
{
	return slot_sums_ref(s->rank[r].sums);
}

bool slot_sums_match(const struct slot_sums *x, uint64_t i, const void *p)
{
	struct hash128 h;

	if (!x || i >= x->n || !x->mib[i].len)
		return true;
	h = hash128(p, x->mib[i].len);
	return memcmp(h.b, x->mib[i].sum.b, sizeof h.b) == 0;
}

static uint32_t kind_of(const struct passing *x, uint32_t i)
{
	return i < x->world ? PART_MAIN : PART_CONST;
}

static uint32_t rank_of(const struct passing *x, uint32_t i)
{
	return i < x->world ? i : i - x->world;
}

/* Entry of slot_sums.mib at which the part begins. */
static uint64_t part_at(const struct passing *x, uint32_t i)
{
	const struct snap_rank *r = &x->snap->rank[rank_of(x, i)];
	const uint8_t *raw = decl_part_raw(r->decl, kind_of(x, i), r->mem->base);

	return (uint64_t)(raw - (const uint8_t *)r->mem->base) >> MIB_LOG2;
}

static int sums_add(struct passing *x, uint32_t i, struct slot_sums *to)
{
	const struct passing_part *p = &x->part[i];
	uint64_t n, at = part_at(x, i);
	const struct chunk *c = walk_chunks(p->walk, &n, NULL);
	uint64_t *fp = malloc(MAX(p->table.npiece, 1u) * sizeof *fp);

	if (!fp)
		return -ENOMEM;
	for (uint64_t k = 0; k < n && at + k < to->n; k++)
		to->mib[at + k] = (struct slot_sum){ .sum = c[k].raw_hash, .len = c[k].raw_len };
	for (uint32_t k = 0; k < p->table.npiece; k++)
		fp[k] = p->table.piece[k].fp;
	to->fp[kind_of(x, i) != PART_MAIN] = fp;
	return 0;
}

void passing_sum(struct passing *x)
{
	for (uint32_t r = 0; r < x->world && !x->rescue; r++) {
		const struct snap_rank *from = &x->snap->rank[r];
		struct walk *main = x->part[r].walk, *other = x->part[x->world + r].walk;
		struct slot_sums *to;

		if (x->sums[r] || x->known[r] || !main || !walk_ended(main))
			continue;
		to = calloc(1, sizeof *to);
		if (!to)
			continue;
		to->refs = 1;
		to->n = div_up(from->mem->bytes, UINT64_C(1) << MIB_LOG2);
		to->mib = calloc(MAX(to->n, 1u), sizeof *to->mib);
		if (!to->mib || sums_add(x, r, to) < 0 ||
		    (other && walk_ended(other) && sums_add(x, x->world + r, to) < 0)) {
			slot_sums_unref(to);
			continue;
		}
		x->sums[r] = to;
	}
}

/* --- parts --- */
struct table *passing_table(struct passing *x, uint32_t i)
{
	return &x->part[i].table;
}

struct walk *passing_walk(struct passing *x, uint32_t i)
{
	return x->part[i].walk;
}

bool passing_failed(const struct passing *x)
{
	for (uint32_t i = 0; i < 2 * x->world; i++)
		if (x->part[i].walk && walk_failed(x->part[i].walk))
			return true;
	return false;
}

/* walk_pass.span */
static int rider_span(void *ctx, const struct walk_span *s)
{
	const struct rider *r = ctx;

	return r->pass->span(r->pass->ctx, &r->at, s);
}

static void riders_set(struct passing *x, uint32_t i)
{
	struct passing_part *p = &x->part[i];
	uint32_t r = rank_of(x, i);
	const struct snap_rank *from = &x->snap->rank[r];

	for (uint32_t k = 0; k < x->npass; k++) {
		struct pass_at at = { .step = x->snap->step,
				      .rank = r,
				      .raw = decl_part_raw(from->decl, PART_MAIN,
							   from->mem->base) };

		if (x->before && r < x->before->world && x->before->rank[r].decl == from->decl) {
			at.before =
				decl_part_raw(from->decl, PART_MAIN, x->before->rank[r].mem->base);
			at.before_step = x->before->step;
		}
		p->rider[k] = (struct rider){ x->pass[k], at };
		p->pass[k] = (struct walk_pass){ rider_span, &p->rider[k] };
	}
}

/* What an earlier walk over this slot has made, as walk_open takes it; NULL: nothing, or it does
 * not do. */
static struct chunk *part_known(struct passing *x, uint32_t i, uint64_t *ret_n)
{
	struct passing_part *p = &x->part[i];
	const struct slot_sums *from = x->known[rank_of(x, i)];
	const uint64_t *fp = from ? from->fp[kind_of(x, i) != PART_MAIN] : NULL;
	uint64_t n = div_up(p->table.place[0].bytes, UINT64_C(1) << MIB_LOG2), at;
	struct chunk *c;

	if (!fp || walk_derives(&p->table) || (i < x->world && x->npass))
		return NULL;
	at = part_at(x, i);
	c = calloc(MAX(n, 1u), sizeof *c);
	for (uint64_t k = 0; c && k < n; k++)
		c[k].raw_hash = from->mib[at + k].sum;
	for (uint32_t k = 0; c && k < p->table.npiece; k++)
		p->table.piece[k].fp = fp[k];
	*ret_n = n;
	return c;
}

int passing_open(struct passing *x, uint32_t i, uint32_t nhelper, struct ckpt_err *err)
{
	struct passing_part *p = &x->part[i];
	const struct snap_rank *from = &x->snap->rank[rank_of(x, i)];
	struct walk_opts o = { .nhelper = nhelper };
	cleanup_free struct chunk *known = NULL;
	int e;

	if (p->walk)
		return 0;
	if (!p->table.nplace) {
		e = decl_part_now(from->decl, kind_of(x, i), from->mem->base, &p->table, err);
		if (e < 0)
			return e;
	}
	if (i < x->world) {
		riders_set(x, i);
		o.pass = p->pass;
		o.npass = x->npass;
	}
	known = part_known(x, i, &o.nsum);
	if (known) {
		o.sum = known;
		o.resumed = true;
	}
	return walk_open(&o, &p->table, rank_of(x, i), &p->walk, err);
}

uint32_t passing_threads(uint32_t world, uint32_t *ret_helpers)
{
	cpu_set_t cpus;
	int n = sched_getaffinity(0, sizeof cpus, &cpus) < 0 ? 1 : CPU_COUNT(&cpus);
	uint32_t all = n < 8 ? 1 : MIN((uint32_t)n / 4, THREADS_MAX);
	uint32_t walks = MIN(all, world);

	*ret_helpers = walks ? all / walks - 1 : 0;
	return walks;
}

static int part_walk(struct passing *x, uint32_t i, uint32_t nhelper, walk_passed_fn *passed,
		     void *arg, struct ckpt_err *err)
{
	const struct snap_rank *from = &x->snap->rank[rank_of(x, i)];
	int e;

	if (!decl_part(from->decl, kind_of(x, i)))
		return 0;
	e = passing_open(x, i, nhelper, err);
	if (e == 0 && !walk_ended(x->part[i].walk))
		e = walk_raw(x->part[i].walk,
			     decl_part_raw(from->decl, kind_of(x, i), from->mem->base), passed, arg,
			     err);
	return e;
}

struct finish {
	move_tick_fn *tick;
	void *arg;
};

/* walk_passed_fn */
static int finish_tick(void *arg, uint64_t i, const uint8_t *p)
{
	const struct finish *f = arg;

	(void)i;
	(void)p;
	return f->tick(f->arg, 0) ? -ECANCELED : 0;
}

int passing_finish(struct passing *x, int rc, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	struct finish f = { tick, arg };
	int e = 0;

	if (!x->npass || rc == -ECANCELED || passing_failed(x))
		return x->npass ? rc : 0;
	for (uint32_t r = 0; r < x->world && e == 0; r++)
		e = part_walk(x, r, 0, finish_tick, &f, err);
	return e;
}

/* --- a walk from its beginning to its end --- */
static bool is_late(const struct snap *s)
{
	return s->staged_at < s->job->passed_at;
}

static bool pass_wanted(const struct pass *k, const struct snap *s, bool written, bool *behind)
{
	enum pass_wants how =
		s->passed || is_late(s) ? PASS_NOT : k->wants(k->ctx, s->step, written);

	*behind |= how == PASS_BEHIND;
	return how != PASS_NOT;
}

bool passes_wait(const struct snap *s)
{
	const struct daemon_opts *o = &s->job->d->opts;
	bool behind = false;

	if (s->phase == PHASE_COLLECTING || s->dropped || s->passed || s->pass_failed)
		return false;
	for (uint32_t k = 0; k < MIN(o->npass, PASSES_MAX); k++)
		if (pass_wanted(&o->pass[k], s, s->phase == PHASE_QUEUED, &behind))
			return true;
	return false;
}

static void passing_free(struct passing *x)
{
	for (uint32_t i = 0; x->part && i < 2 * x->world; i++) {
		walk_close(x->part[i].walk);
		table_free(&x->part[i].table);
	}
	for (uint32_t r = 0; x->sums && r < x->world; r++)
		slot_sums_unref(x->sums[r]);
	for (uint32_t r = 0; x->known && r < x->world; r++)
		slot_sums_unref(x->known[r]);
	free(x->part);
	free(x->known);
	free(x->sums);
	free(x);
}

struct passing *passing_new(struct snap *s, bool written, bool rescue)
{
	const struct daemon_opts *o = &s->job->d->opts;
	struct passing *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->snap = s;
	x->written = written;
	x->rescue = rescue;
	x->world = s->world;
	x->part = calloc(2 * (size_t)s->world, sizeof *x->part);
	x->known = calloc(s->world, sizeof *x->known);
	x->sums = calloc(s->world, sizeof *x->sums);
	if (!x->part || !x->known || !x->sums) {
		passing_free(x);
		return NULL;
	}
	/* A rescue's walk goes beside another one, which may publish the step's sums meanwhile. */
	for (uint32_t r = 0; r < s->world; r++)
		x->known[r] = passes_sums(s, r);
	for (uint32_t k = 0; k < MIN(o->npass, PASSES_MAX) && !rescue; k++)
		if (pass_wanted(&o->pass[k], s, written, &x->behind))
			x->pass[x->npass++] = &o->pass[k];
	if (x->behind && s->job->before && s->job->before != s)
		x->before = s->job->before;
	if (x->before)
		x->before->pins++;
	return x;
}

static void pin_move(struct snap **at, struct snap *to)
{
	struct snap *was = *at;

	if (to && !MUTANT(PREDECESSOR_UNPINNED))
		to->pins++;
	*at = to;
	if (was && !MUTANT(PREDECESSOR_UNPINNED))
		was->pins--;
}

void passing_end(struct passing *x, int rc)
{
	struct snap *s = x->snap;
	struct job *j = s->job;

	for (uint32_t r = 0; r < x->world; r++)
		if (!s->rank[r].sums)
			s->rank[r].sums = TAKE(x->sums[r]);
	if (x->before)
		x->before->pins--;
	if (x->npass) {
		/* who drains does not wait for guards, and one may have come since */
		if (rc == 0 && snap_guarded(s) < 0)
			rc = -ECANCELED;
		s->passed = rc == 0;
		s->pass_failed = rc < 0 && rc != -ECANCELED;
		for (uint32_t k = 0; k < x->npass; k++)
			if (x->pass[k]->end)
				x->pass[k]->end(x->pass[k]->ctx, s->step, rc);
		if (rc == 0)
			j->passed_at = s->staged_at;
		if (rc == 0 && x->behind)
			pin_move(&j->before, s);
	}
	passing_free(x);
}

/* --- a walk that writes nothing --- */
/* walk_passed_fn */
static int alone_tick(void *arg, uint64_t i, const uint8_t *p)
{
	struct passing *x = arg;

	(void)i;
	(void)p;
	worker_sign(x->worker);
	return atomic_load_explicit(&x->stop, memory_order_relaxed) ||
			       atomic_load_explicit(&x->snap->job->d->stops, memory_order_relaxed) >
				       1 ||
			       atomic_load_explicit(&x->failed, memory_order_relaxed)
		       ? -ECANCELED
		       : 0;
}

static void *alone_parts(void *arg)
{
	struct passing *x = arg;
	uint32_t i, helpers;

	(void)passing_threads(x->world, &helpers);
	while (!atomic_load(&x->failed) && (i = atomic_fetch_add(&x->next, 1u)) < 2 * x->world) {
		struct ckpt_err err = { 0 };
		int none = 0, rc = part_walk(x, i, helpers, alone_tick, x, &err);

		if (rc == -ECANCELED && !err.code)
			ckpt_error(&err, rc, "the walk over the step was given up");
		if (rc < 0 && atomic_compare_exchange_strong(&x->failed, &none, rc))
			x->err = err;
	}
	return NULL;
}

static void alone_run(struct task *t)
{
	struct passing *x = (struct passing *)t;
	uint32_t helpers, want = passing_threads(x->world, &helpers), n = 0;
	pthread_t thread[THREADS_MAX];

	x->worker = worker_me();
	while (n + 1 < want && thread_start(&thread[n], "ckptd-pass", true, alone_parts, x) == 0)
		n++;
	(void)alone_parts(x);
	while (n > 0)
		(void)pthread_join(thread[--n], NULL);
	if (!atomic_load(&x->failed))
		passing_sum(x);
}

static bool has_sums(const struct snap *s)
{
	for (uint32_t r = 0; r < s->world; r++)
		if (!s->rank[r].sums)
			return false;
	return true;
}

static void alone_done(struct daemon *d, struct task *t)
{
	struct passing *x = (struct passing *)t;
	struct snap *s = x->snap;
	struct job *j = s->job;
	int rc = atomic_load(&x->failed);
	bool idle, told = rc < 0 && rc != -ECANCELED && x->npass && !s->dropped;

	s->tasks--;
	j->passing = NULL;
	d->busy_ns = now_ns();
	if (told) {
		snap_tell(s, OUTCOME_FAILED, rc, x->err.msg);
		log_line(&d->opts.log, LOG_ERROR, "snap: job %s step %" PRIu64 " failed: %s",
			 j->name, s->step, x->err.msg);
	}
	idle = x->idle && rc == 0;
	passing_end(x, rc);
	if (idle && has_sums(s))
		log_line(&d->opts.log, LOG_DEBUG,
			 "passes: job %s step %" PRIu64 " has sums in memory", j->name, s->step);
	job_settle(j);
}

static void alone_start(struct snap *s, bool idle)
{
	struct passing *x = passing_new(s, false, false);

	if (!x)
		return; /* the next tick tries it again */
	x->idle = idle;
	x->task = (struct task){ alone_run, alone_done, NULL };
	s->job->passing = x;
	s->tasks++;
	daemon_task(s->job->d, &s->job->d->work, &x->task);
}

/* Has the daemon nothing else to do, and not had for a while? */
static bool is_quiet(const struct job *j)
{
	const struct daemon *d = j->d;

	for (const struct snap *s = j->snaps; s; s = s->next)
		if (s->phase == PHASE_COLLECTING || s->phase == PHASE_QUEUED || s->rescue)
			return false;
	return d->running == 0 && !d->drain_until &&
	       elapsed_ns(d->busy_ns, now_ns()) > PASSES_IDLE_NS;
}

void passes_next(struct job *j)
{
	struct snap *due = NULL, *newest = NULL;
	int guarded;

	if (j->writing || j->passing)
		return;
	for (struct snap *s = j->snaps; s; s = s->next) {
		if (s->phase != PHASE_STAGED || s->dropped)
			continue;
		if (!newest || s->staged_at > newest->staged_at)
			newest = s;
		if (!passes_wait(s))
			continue;
		guarded = snap_guarded(s);
		j->awaits_guard |= guarded == 0;
		if ((guarded > 0 || MUTANT(PASS_UNGUARDED)) &&
		    (!due || s->staged_at < due->staged_at))
			due = s;
	}
	if (due)
		alone_start(due, false);
	else if (newest && !has_sums(newest) && is_quiet(j) && snap_guarded(newest) > 0)
		alone_start(newest, true);
}

/* Nothing of an older launch, or of other declarations, comes before a step. */
void passes_let_go(struct job *j)
{
	const struct snap *s = j->before;

	if (s && (s->dropped || s->launch != j->launch || s->epoch != s->launch->epoch ||
		  s->launch->state == LAUNCH_ENDED))
		pin_move(&j->before, NULL);
}

void passes_follow(struct job *j, struct snap *s)
{
	pin_move(&j->before, s);
	if (s)
		j->passed_at = s->staged_at;
}

void passes_interrupt(struct job *j)
{
	j->d->busy_ns = now_ns();
	if (j->passing && j->passing->idle)
		atomic_store(&j->passing->stop, true);
}
