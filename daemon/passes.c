// SPDX-License-Identifier: Apache-2.0
// passes.c - see passes.h. Called by snap, persist and restore.
// Invariants: the slots that a walk reads, its predecessor's among them, are pinned from
// passing_new to passing_end; sums are published all at once or not at all.
#include "daemon/passes.h"
#include "ckpt/base/mutant.h"
#include "daemon/average.h"
#include <inttypes.h>
#include <sched.h>

#define THREADS_MAX 8u /* some 60 GB/s of sums */
#define MIB_LOG2 CHUNK_LOG2

struct passing_part {
	struct table table;
	struct walk *walk;
	struct walk_pass pass; /* of a main part: the averages */
	struct rider {
		struct averaging *averaging;
		uint32_t rank;
	} rider;
};

struct passing {
	struct task task; /* of a walk that writes nothing */
	struct snap *snap;
	struct snap *before; /* pinned; NULL: no averages are made, or there is none */
	bool rescue, idle;
	bool over;	  /* passing_over has been called */
	atomic_bool stop; /* the walk is to end: it is idle, or late */
	uint32_t world, npart;
	uint32_t nwalk; /* parts that a task of its own walks */
	void (*ahead)(void *, int, const struct ckpt_err *); /* of passing_ahead; NULL */
	void *ahead_arg;
	struct averaging *averaging; /* NULL: this walk makes no averages */
	bool settled;		     /* averaging_settle has succeeded */
	/* reference: of the step; NULL: it has no averages, or they are being made */
	struct average_result *average;
	struct passing_part *part; /* [npart] */
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
	for (uint32_t k = 0; k < ARRAY_LEN(x->fp); k++)
		free(x->fp[k]);
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

/* Entry of slot_sums.mib at which the part begins. */
static uint64_t part_at(const struct passing *x, uint32_t i)
{
	const struct snap_rank *r = &x->snap->rank[part_rank(i, x->world)];
	const uint8_t *raw = decl_part_raw(r->decl, part_kind(i, x->world), r->mem->base);

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
	to->npiece[part_kind(i, x->world)] = p->table.npiece;
	to->fp[part_kind(i, x->world)] = fp;
	return 0;
}

static bool part_ended(const struct passing *x, uint32_t i)
{
	return x->part[i].walk && walk_ended(x->part[i].walk);
}

/* Of a part that was not walked now: what was known of it before. */
static int sums_keep(const struct passing *x, uint32_t i, const struct slot_sums *from,
		     struct slot_sums *to)
{
	uint32_t kind = part_kind(i, x->world);
	const struct table *t = decl_part(x->snap->rank[part_rank(i, x->world)].decl, kind);
	uint64_t at = part_at(x, i), n;

	if (!from || !from->fp[kind] || !t)
		return 0;
	to->fp[kind] = malloc(MAX(t->npiece, 1u) * sizeof *to->fp[kind]);
	if (!to->fp[kind])
		return -ENOMEM;
	/* A blob that is shorter than its capacity may have no piece. */
	memcpy(to->fp[kind], from->fp[kind], from->npiece[kind] * sizeof *to->fp[kind]);
	to->npiece[kind] = from->npiece[kind];
	n = div_up(t->place[0].bytes, UINT64_C(1) << MIB_LOG2);
	for (uint64_t k = at; k < MIN(at + n, to->n); k++)
		to->mib[k] = from->mib[k];
	return 0;
}

/* Is there more to be known of rank r's slot than was? */
static bool sums_grow(const struct passing *x, uint32_t r)
{
	for (uint32_t i = r; i < x->npart; i += x->world)
		if (part_ended(x, i) && !(x->known[r] && x->known[r]->fp[part_kind(i, x->world)]))
			return part_ended(x, r) || x->known[r];
	return false;
}

static struct slot_sums *sums_make(struct passing *x, uint32_t r)
{
	struct slot_sums *to = calloc(1, sizeof *to);
	int rc = to ? 0 : -ENOMEM;

	if (to) {
		to->refs = 1;
		to->n = div_up(x->snap->rank[r].mem->bytes, UINT64_C(1) << MIB_LOG2);
		to->mib = calloc(MAX(to->n, 1u), sizeof *to->mib);
		rc = to->mib ? 0 : -ENOMEM;
	}
	for (uint32_t i = r; i < x->npart && rc == 0; i += x->world)
		rc = part_ended(x, i) ? sums_add(x, i, to) : sums_keep(x, i, x->known[r], to);
	if (rc == 0)
		return to;
	slot_sums_unref(to);
	return NULL;
}

void passing_sum(struct passing *x)
{
	for (uint32_t r = 0; r < x->world && !x->rescue; r++)
		if (!x->sums[r] && sums_grow(x, r))
			x->sums[r] = sums_make(x, r);
}

/* --- parts --- */
bool passing_has(const struct passing *x, uint32_t i)
{
	uint32_t kind = part_kind(i, x->world);

	return decl_part(x->snap->rank[part_rank(i, x->world)].decl, kind) &&
	       (kind != PART_AVERAGE || x->average || x->averaging);
}

bool passing_averages(const struct passing *x)
{
	return x->averaging != NULL;
}

const struct average_result *passing_average(const struct passing *x)
{
	return x->average;
}

struct table *passing_table(struct passing *x, uint32_t i)
{
	return &x->part[i].table;
}

struct walk *passing_walk(struct passing *x, uint32_t i)
{
	return x->part[i].walk;
}

/* walk_pass.span */
static int average_span(void *ctx, const struct walk_span *s)
{
	const struct rider *r = ctx;

	return averaging_span(r->averaging, r->rank, s);
}

/* What an earlier walk over this slot has made, as walk_open takes it; NULL: nothing, or it does
 * not do. */
static struct chunk *part_known(struct passing *x, uint32_t i, uint64_t *ret_n)
{
	struct passing_part *p = &x->part[i];
	const struct slot_sums *from = x->known[part_rank(i, x->world)];
	const uint64_t *fp = from ? from->fp[part_kind(i, x->world)] : NULL;
	uint64_t n = div_up(p->table.place[0].bytes, UINT64_C(1) << MIB_LOG2), at;
	struct chunk *c;

	if (!fp || walk_derives(&p->table) || (i < x->world && x->averaging))
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
	const struct snap_rank *from = &x->snap->rank[part_rank(i, x->world)];
	struct walk_opts o = { .nhelper = nhelper, .data_off = NATIVE_DATA_OFF };
	cleanup_free struct chunk *known = NULL;
	int e;

	if (p->walk)
		return 0;
	if (!p->table.nplace) {
		e = part_kind(i, x->world) == PART_AVERAGE
			    ? average_part_now(x->average, from->decl, from->mem->base, &p->table,
					       err)
			    : decl_part_now(from->decl, part_kind(i, x->world), from->mem->base,
					    &p->table, err);
		if (e < 0)
			return e;
		if (part_kind(i, x->world) == PART_MAIN)
			turned_mark(from->turned, from->decl, &p->table);
	}
	if (i < x->world && x->averaging) {
		p->rider = (struct rider){ x->averaging, part_rank(i, x->world) };
		p->pass = (struct walk_pass){ average_span, &p->rider };
		o.pass = &p->pass;
		o.npass = 1;
	}
	known = part_known(x, i, &o.nsum);
	if (known) {
		o.sum = known;
		o.resumed = true;
	}
	return walk_open(&o, &p->table, part_rank(i, x->world), &p->walk, err);
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
	const struct snap_rank *from = &x->snap->rank[part_rank(i, x->world)];
	int e;

	if (!passing_has(x, i))
		return 0;
	e = passing_open(x, i, nhelper, err);
	if (e == 0 && !walk_ended(x->part[i].walk))
		e = walk_raw(x->part[i].walk,
			     decl_part_raw(from->decl, part_kind(i, x->world), from->mem->base),
			     passed, arg, err);
	return e;
}

static int passing_settle(struct passing *x, struct ckpt_err *err)
{
	int rc;

	if (!x->averaging || x->settled)
		return 0;
	rc = averaging_settle(x->averaging, err);
	x->settled = rc == 0;
	return rc;
}

/* --- a walk from its beginning to its end --- */
static bool is_late(const struct snap *s)
{
	return s->staged_at < s->job->passed_at;
}

/* Averages are not made any more after those of a newer step, unless the step is to be written. */
static bool average_due(const struct snap *s)
{
	return average_wanted(s) && (!is_late(s) || s->phase != PHASE_STAGED);
}

bool passes_wait(const struct snap *s)
{
	return !s->dropped && !s->pass_failed && average_due(s);
}

/* May a walk begin beside what is going on? */
static bool walk_may(const struct job *j)
{
	return !j->passing && (!j->writing || j->writing_walked);
}

bool passes_may_give_up(const struct snap *s)
{
	return s->phase == PHASE_STAGED && passes_wait(s) &&
	       (!average_every(s) || MUTANT(EVERY_GIVEN_UP)) &&
	       (!walk_may(s->job) || !passes_ready(s));
}

bool passes_owe(const struct snap *s)
{
	return average_wanted(s) && !is_late(s) && !MUTANT(THINNED_UNAVERAGED);
}

bool passes_ready(const struct snap *s)
{
	struct average_base *base = NULL;
	bool ready;

	if (!average_wanted(s) || average_follows(s, s->job->before))
		return true;
	ready = average_base_get(s->launch, &base) == AVERAGE_BASE_READY;
	average_base_unref(base);
	return ready;
}

static void passing_free(struct passing *x)
{
	for (uint32_t i = 0; x->part && i < x->npart; i++) {
		walk_close(x->part[i].walk);
		table_free(&x->part[i].table);
	}
	for (uint32_t r = 0; x->sums && r < x->world; r++)
		slot_sums_unref(x->sums[r]);
	for (uint32_t r = 0; x->known && r < x->world; r++)
		slot_sums_unref(x->known[r]);
	average_result_unref(x->average);
	free(x->part);
	free(x->known);
	free(x->sums);
	free(x);
}

/* -ENOMEM. passes_ready has said that what it goes on from is there. */
static int averaging_begin(struct passing *x)
{
	struct snap *s = x->snap, *before = s->job->before;
	struct average_base *base = NULL;

	if (!average_due(s))
		return 0;
	if (!average_follows(s, before)) {
		before = NULL;
		(void)average_base_get(s->launch, &base);
	}
	x->averaging = averaging_new(s, before, base);
	average_base_unref(base);
	return x->averaging ? 0 : -ENOMEM;
}

struct passing *passing_new(struct snap *s, bool rescue)
{
	struct passing *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->snap = s;
	x->rescue = rescue;
	x->world = s->world;
	x->npart = x->nwalk = PART_KINDS * s->world;
	x->part = calloc(x->npart, sizeof *x->part);
	x->known = calloc(s->world, sizeof *x->known);
	x->sums = calloc(s->world, sizeof *x->sums);
	if (!x->part || !x->known || !x->sums) {
		passing_free(x);
		return NULL;
	}
	/* A rescue's walk goes beside another one, which may publish the step's sums meanwhile. */
	for (uint32_t r = 0; r < s->world; r++)
		x->known[r] = passes_sums(s, r);
	x->average = average_result_ref(s->average);
	if (!rescue && averaging_begin(x) < 0) {
		passing_free(x);
		return NULL;
	}
	if (x->averaging && s->job->before && s->job->before != s)
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

/* What was made of the step is kept, or dropped. */
static int average_over(struct passing *x, int rc)
{
	if (rc == 0 && !x->settled)
		rc = -ECANCELED;
	averaging_end(TAKE(x->averaging), rc);
	if (rc == 0) {
		x->average = average_result_ref(x->snap->average);
		average_base_drop(x->snap->launch);
	}
	return rc;
}

static bool is_newest(const struct snap *s)
{
	const struct snap *before = s->job->before;

	return !before || before->launch != s->launch || before->staged_at <= s->staged_at;
}

int passing_over(struct passing *x, int rc)
{
	struct snap *s = x->snap;
	struct job *j = s->job;

	if (x->over)
		return 0;
	x->over = true;
	if (x->averaging) {
		/* a daemon that drains does not wait for guards, and one may have come since */
		if (rc == 0 && snap_guarded(s) < 0)
			rc = -ECANCELED;
		rc = average_over(x, rc);
		s->pass_failed = rc < 0 && rc != -ECANCELED;
		if (rc == 0)
			j->passed_at = MAX(j->passed_at, s->staged_at);
		if (rc == 0 && is_newest(s))
			pin_move(&j->before, s);
	}
	if (x->before)
		TAKE(x->before)->pins--;
	return rc;
}

void passing_end(struct passing *x, int rc)
{
	struct snap *s = x->snap;

	(void)passing_over(x, rc);
	for (uint32_t r = 0; r < x->world; r++)
		if (x->sums[r]) {
			slot_sums_unref(s->rank[r].sums);
			s->rank[r].sums = TAKE(x->sums[r]);
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
	return load_relaxed(&x->stop) || load_relaxed(&x->snap->job->d->stops) > 1 ||
			       load_relaxed(&x->failed)
		       ? -ECANCELED
		       : 0;
}

static void *alone_parts(void *arg)
{
	struct passing *x = arg;
	uint32_t i, helpers;

	(void)passing_threads(x->world, &helpers);
	while (!atomic_load(&x->failed) && (i = atomic_fetch_add(&x->next, 1u)) < x->nwalk) {
		struct ckpt_err err = { 0 };
		int none = 0, rc = 0;

		/* What is made in this walk is summed when it is written, or the daemon is idle. */
		if (part_kind(i, x->world) != PART_AVERAGE || x->average)
			rc = part_walk(x, i, helpers, alone_tick, x, &err);

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
		atomic_store(&x->failed, passing_settle(x, &x->err));
	if (!atomic_load(&x->failed) && !x->ahead)
		passing_sum(x);
}

static void ahead_done(struct task *t)
{
	struct passing *x = (struct passing *)t;

	x->ahead(x->ahead_arg, atomic_load(&x->failed), &x->err);
}

void passing_ahead(struct passing *x, void (*done)(void *arg, int rc, const struct ckpt_err *err),
		   void *arg)
{
	x->nwalk = x->world;
	x->ahead = done;
	x->ahead_arg = arg;
	daemon_task(&x->snap->job->d->work, &x->task, alone_run, ahead_done);
}

static bool has_sums(const struct snap *s)
{
	for (uint32_t r = 0; r < s->world; r++)
		if (!s->rank[r].sums || (s->averaged && decl_part(s->rank[r].decl, PART_AVERAGE) &&
					 !s->rank[r].sums->fp[PART_AVERAGE]))
			return false;
	return true;
}

static void alone_done(struct task *t)
{
	struct passing *x = (struct passing *)t;
	struct snap *s = x->snap;
	struct job *j = s->job;
	int rc = atomic_load(&x->failed);
	bool idle, told = rc < 0 && rc != -ECANCELED && x->averaging && !s->dropped;

	s->tasks--;
	j->passing = NULL;
	j->d->busy_ns = now_ns();
	if (told) {
		snap_tell(s, OUTCOME_FAILED, rc, x->err.msg);
		snap_log(s, LOG_ERROR, "snap", " failed: %s", x->err.msg);
	}
	idle = x->idle && rc == 0;
	passing_end(x, rc);
	if (idle && has_sums(s))
		snap_log(s, LOG_DEBUG, "passes", " has sums in memory");
	job_settle(j);
}

static void alone_start(struct snap *s, bool idle)
{
	struct passing *x = passing_new(s, false);

	if (!x)
		return; /* the next tick tries it again */
	x->idle = idle;
	s->job->passing = x;
	s->tasks++;
	daemon_task(&s->job->d->work, &x->task, alone_run, alone_done);
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

	if (!walk_may(j))
		return;
	for (struct snap *s = j->snaps; s; s = s->next) {
		/* What is to be written is walked when it is written, unless another one is now. */
		if (s->phase == PHASE_QUEUED ? !j->writing || !average_due(s)
					     : s->phase != PHASE_STAGED)
			continue;
		if (s->dropped)
			continue;
		if (!newest || s->staged_at > newest->staged_at)
			newest = s;
		if (!passes_wait(s))
			continue;
		guarded = snap_guarded(s);
		j->awaits_guard |= guarded == 0;
		if ((guarded > 0 || (MUTANT(AVERAGE_UNGUARDED) && average_wanted(s))) &&
		    passes_ready(s) && (!due || s->staged_at < due->staged_at))
			due = s;
	}
	if (due)
		alone_start(due, false);
	else if (newest && !j->writing && !has_sums(newest) && is_quiet(j) &&
		 snap_guarded(newest) > 0)
		alone_start(newest, true);
}

bool passes_older_wait(const struct snap *s)
{
	for (struct snap *k = s->job->snaps; k; k = k->next)
		if (k != s && k->phase == PHASE_STAGED && k->launch == s->launch &&
		    k->staged_at < s->staged_at && passes_wait(k) && average_due(k) &&
		    (k->rescue || (average_every(k) && !MUTANT(EVERY_OUTRUN))) && passes_ready(k) &&
		    snap_guarded(k) > 0)
			return true;
	return false;
}

/* A step of other declarations goes on from its averages (average_base_get). */
static bool continues(const struct snap *s, const struct snap *before)
{
	const struct decl *d = s->rank[0].decl;

	return s->epoch == before->epoch || (before->averaged && d && d->averages);
}

/* Will a step of its launch still be walked, or come, that goes on from it? */
static bool before_needed(const struct snap *before)
{
	for (const struct snap *s = before->job->snaps; s; s = s->next)
		if (s != before && s->launch == before->launch && continues(s, before) &&
		    !s->dropped && (s->phase == PHASE_COLLECTING || passes_wait(s)))
			return true;
	return false;
}

/* Nothing of an older launch, or of other declarations, comes before a step. */
void passes_let_go(struct job *j)
{
	const struct snap *s = j->before;
	bool past = s && (s->launch != j->launch || s->epoch != s->launch->epoch ||
			  s->launch->state == LAUNCH_ENDED);

	if (s && (s->dropped || atomic_load(&s->left) ||
		  (past && !before_needed(s) && !average_base_keeps(s))))
		pin_move(&j->before, NULL);
}

void passes_follow(struct job *j, struct snap *s)
{
	pin_move(&j->before, s);
	if (s)
		j->passed_at = MAX(j->passed_at, s->staged_at);
}

void passes_interrupt(struct job *j)
{
	j->d->busy_ns = now_ns();
	if (j->passing && j->passing->idle)
		atomic_store(&j->passing->stop, true);
}

void passes_make_way(struct job *j)
{
	struct passing *x = j->passing;

	passes_interrupt(j);
	if (x && x->averaging && x->snap->phase == PHASE_STAGED && !x->snap->rescue &&
	    !average_every(x->snap) && !atomic_exchange(&x->stop, true))
		snap_log(x->snap, LOG_DEBUG, "passes", " makes way: a step is to be written");
}
