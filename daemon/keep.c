// SPDX-License-Identifier: Apache-2.0
// keep.c - which steps stay on disk. It removes steps by the policy, after a commit and before a
// step that does not fit; it labels damaged steps; it reports the state of the store. Called by
// launch, persist, restore and loop.
// Invariant: the owner waits for nothing here; if something fails here, the log has it and no step
// is lost.
#include "daemon/state.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/engine/verify.h"
#include <inttypes.h>
#include <stdio.h>

#define VERIFY_BYTES (64 * MIB) /* of buffers: the trainer needs the memory more */
/* From one step that is read back to the next: both. */
#define VERIFY_NS (600 * NS_PER_S)
#define VERIFY_STEPS 10
#define LOOK_NS (10 * NS_PER_S) /* from one look at the free space to the next */

/* The time of day, but never further on than this process has lived since it first asked: a clock
 * that jumps ahead makes nothing old. */
static uint64_t steady_wall_ns(void)
{
	static _Atomic uint64_t offset; /* of the first look: time of day less CLOCK_MONOTONIC */
	uint64_t wall = wall_ns(), now = now_ns(), none = 0;

	(void)atomic_compare_exchange_strong(&offset, &none, wall - now);
	return MIN(wall, now + atomic_load(&offset));
}

const char *keep_human(uint64_t bytes, char *buf)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double x = (double)bytes;
	uint32_t i = 0;

	for (; x >= 1024 && i + 1 < ARRAY_LEN(unit); i++)
		x /= 1024;
	snprintf(buf, 32, i && x < 10 ? "%.1f %s" : "%.0f %s", x, unit[i]);
	return buf;
}

/* --- what it is like --- */
void keep_describe(struct daemon *d, const struct store *s)
{
	const struct io_ops *ops = d->opts.ops;
	const struct log *log = &d->opts.log;
	struct io_queue *q = NULL;
	struct io_space space;
	struct io_probe probe;
	struct ckpt_err err = { 0 };
	char engine[256], how[96], free_text[64] = "", buf[32];

	if (io_queue_open(ops, d->opts.engine, MOVE_DEPTH, &q, &err) < 0)
		snprintf(engine, sizeof engine, "%.250s", err.msg);
	else
		snprintf(engine, sizeof engine, "%.250s", io_queue_why(q));
	io_queue_close(q);
	if (io_probe(ops, s->job_fd, &probe, &err) < 0) {
		log_line(log, LOG_WARNING, "store: job %s: %s; %s", s->job, engine, err.msg);
		return;
	}
	if (probe.direct)
		snprintf(how, sizeof how, "O_DIRECT in multiples of %u", probe.align);
	else
		snprintf(how, sizeof how, "through the page cache (O_DIRECT is refused)");
	if (ops->space(ops->ctx, s->job_fd, &space) == 0 && space.total_bytes)
		snprintf(free_text, sizeof free_text, ", %s free",
			 keep_human(space.free_bytes, buf));
	log_line(log, LOG_NOTICE, "store: job %s: %s; %s; %s%s%s", s->job, engine, how,
		 probe.fs_type, probe.reserves ? "" : ", no fallocate: a full disk is met late",
		 free_text);
	if (probe.volatile_fs)
		log_line(log, LOG_WARNING,
			 "store: job %s is written to memory (%s): nothing survives power loss",
			 s->job, probe.fs_type);
}

/* --- what is damaged --- */
void keep_quarantine(const struct store *s, const char *dir, const char *why, char *said,
		     size_t said_bytes)
{
	struct store_step *step = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	int rc = store_here(s, &err);

	if (rc == 0)
		rc = store_scan(s, false, &step, &n, &err);

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		if (strcmp(step[i].dir, dir) != 0 || step[i].state != STORE_COMMITTED ||
		    MUTANT(DAMAGE_FORGOTTEN))
			continue;
		rc = store_label_set(s, &step[i], LABEL_BAD, NULL, 0, why, &err);
		if (rc == 0)
			snprintf(
				said, said_bytes,
				"; it is quarantined: latest passes it over until ckptctl repair step:%" PRIu64
				" finds it whole",
				step[i].step);
	}
	if (rc < 0)
		snprintf(said, said_bytes, "; and it could not be labelled as damaged: %.150s",
			 err.msg);
	free(step);
}

/* --- which policy --- */
/* The job's own, or, if it has none, that of the options: then the state is NONE all the same. */
static void policy_find(const struct daemon *d, const struct store *s, struct store_policy *ret)
{
	store_policy_read(s, ret);
	if (ret->state == STORE_POLICY_NONE)
		ret->rules = d->opts.policy;
}

static void policy_log(const struct job *j, const struct store_policy *p)
{
	char rules[RETAIN_TEXT_MAX];

	retain_print(&p->rules, rules, sizeof rules);
	if (p->state == STORE_POLICY_UNREAD)
		job_log(j, LOG_WARNING, "keep",
			": its policy cannot be read, so every step is kept: %s", p->why);
	else if (p->state == STORE_POLICY_SET)
		job_log(j, LOG_NOTICE, "keep", ": its policy %s%s, set by %s",
			retain_is_policy(&p->rules) ? "keeps " : "keeps every step", rules, p->by);
	else if (j->policy.state == STORE_POLICY_SET)
		job_log(j, LOG_NOTICE, "keep",
			": it has no policy any more; the options of this ckptd keep %s",
			retain_is_policy(&p->rules) ? rules : "every step");
}

/* What a task has read. True: it is another one than the one before. */
static bool policy_note(struct job *j, const struct place *from, const struct store_policy *p)
{
	bool other = !j->policy_known || j->policy.state != p->state ||
		     j->policy.number != p->number || strcmp(j->policy.why, p->why) != 0;
	bool changed = other && j->policy_known;

	if (from != j->place)
		return false;
	if (other)
		policy_log(j, p);
	j->policy = *p;
	j->policy_known = true;
	j->policy_ns = now_ns();
	return changed;
}

void keep_forget(struct job *j)
{
	j->policy_known = false;
	j->policy = (struct store_policy){ 0 };
}

void keep_put(const struct job *j, struct wire_report_job *to)
{
	static const uint32_t from[] = { [STORE_POLICY_NONE] = WIRE_POLICY_NONE,
					 [STORE_POLICY_SET] = WIRE_POLICY_JOB,
					 [STORE_POLICY_UNREAD] = WIRE_POLICY_UNREAD };
	const struct store_policy *p = &j->policy;

	if (!j->policy_known)
		return;
	to->policy_from = from[p->state];
	if (p->state == STORE_POLICY_NONE && retain_is_policy(&p->rules))
		to->policy_from = WIRE_POLICY_OPTIONS;
	to->policy_wall_ns = p->set_ns;
	if (retain_is_policy(&p->rules))
		retain_print(&p->rules, to->policy, sizeof to->policy);
	snprintf(to->policy_by, sizeof to->policy_by, "%s",
		 p->state == STORE_POLICY_UNREAD ? p->why : p->by);
}

struct setting {
	struct task task;
	struct session *s;   /* busy; NULL: nobody waits */
	struct job *job;     /* keeping: not freed */
	struct place *place; /* reference */
	struct retain_policy rules;
	struct store_policy now;
	int rc;
	struct ckpt_err err;
};

static void setting_run(struct task *t)
{
	struct setting *x = (struct setting *)t;

	x->rc = store_policy_set(x->place->store, &x->rules, "attach", &x->now, &x->err);
}

static void setting_done(struct task *t)
{
	struct setting *x = (struct setting *)t;
	struct session *s = x->s;

	x->job->keeping--;
	if (x->rc == 0)
		(void)policy_note(x->job, x->place, &x->now);
	else
		job_error(x->job, 0, x->err.msg);
	if (s && x->rc == 0)
		session_ok(s);
	else if (s)
		session_refuse(s, x->rc, x->err.msg);
	place_unref(x->place);
	free(x);
	if (s)
		session_unbusy(s);
}

static int setting_start(struct session *s, struct launch *l, const struct retain_policy *rules)
{
	struct setting *x = calloc(1, sizeof *x);

	if (!x)
		return -ENOMEM;
	*x = (struct setting){
		.s = s, .job = l->job, .place = place_ref(l->place), .rules = *rules
	};
	x->job->keeping++;
	if (s)
		session_busy(s);
	device_task(x->place->device, LANE_ASK, &x->task, setting_run, setting_done);
	return 0;
}

void keep_set(struct session *s, const struct wire_keep *m)
{
	struct retain_policy rules = { 0 };
	struct launch *l = s->launch;
	struct ckpt_err err = { 0 };

	if (retain_lines(&rules, m->rules, &err) < 0) {
		session_refuse(s, err.code == -EOPNOTSUPP ? -EPROTO : err.code, err.msg);
	} else if (l->unclaimed && !MUTANT(POLICY_FROM_BESIDE)) {
		l->keep = rules;
		session_ok(s);
	} else if (setting_start(s, l, &rules) < 0) {
		session_refuse(s, -ENOMEM, "ckptd has no memory for a policy");
	}
}

void keep_claimed(struct launch *l)
{
	if (retain_is_policy(&l->keep) && setting_start(NULL, l, &l->keep) < 0)
		job_error(l->job, 0, "ckptd has no memory for the policy of the launch");
	l->keep = (struct retain_policy){ 0 };
}

/* --- removing --- */
struct pruning {
	struct daemon *d;
	const char *job;
	uint32_t stops_max; /* it goes on until the daemon had more orders to stop than this */
	/* NULL, or ends when a step is written there */
	const struct device *device;
	bool yields, verified; /* yields: it has; verified: a step was read back */
};

static int verify_tick(void *arg, uint64_t done)
{
	struct pruning *x = arg;

	(void)done;
	worker_sign(worker_me());
	x->yields = x->device && load_relaxed(&x->device->writes) > 0 && !MUTANT(VERIFY_STAYS);
	return x->yields || load_relaxed(&x->d->stops) > x->stops_max;
}

/* Every byte, and from the device where the file system lets us: what is only in the page cache is
 * not what the next machine reads. */
static int verify_step(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *err)
{
	struct pruning *x = arg;
	struct engine e = daemon_engine(x->d);
	const struct engine_check check = { .fd = step_fd,
					    .path = st->dir,
					    .format = &format_native,
					    .buffer_bytes = VERIFY_BYTES };
	struct engine_checked got;
	uint64_t began = now_ns();
	int rc;

	e.io = x->d->opts.engine;
	e.tick = verify_tick;
	e.arg = x;
	rc = engine_check(&e, &check, &got, err);
	x->verified |= rc != -ECANCELED;
	if (rc == 0)
		log_line(&x->d->opts.log, LOG_INFO,
			 "keep: job %s step %" PRIu64 " read back and verified: %" PRIu64
			 " MiB in %.1f s",
			 x->job, st->step, got.bytes / MIB, (double)(now_ns() - began) / 1e9);
	if (rc < 0 && rc != -ECANCELED)
		atomic_fetch_add(&x->d->damages, 1);
	return rc;
}

static void row_log(void *arg, const struct store_step *st, const struct retain_row *row)
{
	const struct pruning *x = arg;

	if (row->remove)
		log_line(&x->d->opts.log, LOG_NOTICE, "keep: job %s step %" PRIu64 "%s removed: %s",
			 x->job, st->step, st->state == STORE_SET_ASIDE ? " (set aside)" : "",
			 row->reason);
	else
		log_line(&x->d->opts.log, LOG_DEBUG, "keep: job %s step %" PRIu64 " kept: %s",
			 x->job, st->step, row->reason);
}

/* lean: reads a step back only if none is verified. */
static int policy_apply(struct pruning *x, struct store *s, const struct retain_policy *policy,
			uint64_t free_bytes, bool lean, struct prune_result *ret,
			struct ckpt_err *err)
{
	const struct prune_opts o = { .policy = policy,
				      .now_ns = steady_wall_ns(),
				      .free_bytes = free_bytes,
				      .set_aside = free_bytes != 0 && !MUTANT(ROOM_FROM_THE_LINE),
				      .lean = lean,
				      .verify = verify_step,
				      .row = row_log,
				      .arg = x };

	return store_prune(s, &o, ret, err);
}

struct prune {
	struct task task;
	struct job *job;     /* keeping: not freed */
	struct place *place; /* reference */
	struct store_policy policy;
	struct pruning by;
	bool due;	     /* a step is to be read back */
	uint64_t unverified; /* of the job when this began */
	struct prune_result got;
	int rc;
	struct ckpt_err err;
};

static void prune_run(struct task *t)
{
	struct prune *x = (struct prune *)t;

	if (atomic_load(&x->job->d->stops))
		x->rc = ckpt_error(&x->err, -ECANCELED, "ckptd stops");
	else
		policy_find(x->job->d, x->place->store, &x->policy);
	if (x->rc || !retain_is_policy(&x->policy.rules))
		return;
	x->by.device = x->due ? x->place->device : NULL;
	x->rc = policy_apply(&x->by, x->place->store, &x->policy.rules, 0, !x->due, &x->got,
			     &x->err);
	if (x->rc == -ECANCELED && x->by.yields) { /* later; what may go without it goes now */
		x->by.device = NULL;
		x->rc = policy_apply(&x->by, x->place->store, &x->policy.rules, 0, true, &x->got,
				     &x->err);
	}
}

static void prune_log(const struct prune *x)
{
	const struct prune_result *got = &x->got;
	char buf[32];

	if (x->rc < 0)
		job_log(x->job, x->rc == -ECANCELED ? LOG_INFO : LOG_WARNING, "keep",
			": older steps stay until the next commit: %s", x->err.msg);
	else if (retain_is_policy(&x->policy.rules))
		job_log(x->job,
			got->failed || got->unverified ? LOG_WARNING
			: got->busy		       ? LOG_INFO
						       : LOG_DEBUG,
			"keep",
			": %u steps removed, %s freed; %u stay, %u of them being read, "
			"%u could not be removed%s",
			got->removed, keep_human(got->freed, buf), got->kept, got->busy,
			got->failed, got->unverified ? "; no newer step is verified" : "");
}

static void keep_after(struct job *j);

static void prune_done(struct task *t)
{
	struct prune *x = (struct prune *)t;
	struct job *j = x->job;

	j->keeping--;
	j->pruning = false;
	j->space.looked_ns = 0;
	if (x->by.verified || (x->due && !x->by.yields && retain_is_policy(&x->policy.rules))) {
		j->verified_ns = now_ns();
		j->unverified -= x->unverified;
	}
	if (x->got.quarantined) {
		char text[192];

		snprintf(
			text, sizeof text,
			"%u step%s damaged when read back, and quarantined: ckptctl ls --all says why",
			x->got.quarantined, x->got.quarantined == 1 ? " was" : "s were");
		job_error(j, 0, text);
		job_log(j, LOG_ERROR, "keep", ": %s", text);
	}
	if (x->got.faulty) {
		char text[512];

		snprintf(text, sizeof text, "%.400s: ckptctl verify --data lists every fault",
			 x->got.fault.msg);
		job_error(j, 0, text);
		job_log(j, LOG_ERROR, "keep", ": %s", text);
	}
	if (x->rc != -ECANCELED)
		(void)policy_note(j, x->place, &x->policy);
	prune_log(x);
	place_unref(x->place);
	free(x);
	if (j->prune_again) {
		j->prune_again = false;
		keep_after(j);
	}
}

/* Is it time to read a step back, and is the device free for it? */
static bool verify_is_due(const struct job *j, uint64_t now)
{
	const struct daemon_opts *o = &j->d->opts;
	uint64_t ns = o->verify_ns ? o->verify_ns : VERIFY_NS,
		 steps = o->verify_steps ? o->verify_steps : VERIFY_STEPS;

	return (j->unverified >= steps &&
		elapsed_ns(MAX(j->verified_ns, j->d->began_ns), now) >= ns &&
		atomic_load(&j->place->device->writes) == 0) ||
	       MUTANT(VERIFY_EACH);
}

static void prune_start(struct job *j)
{
	struct prune *x = calloc(1, sizeof *x);

	if (!x)
		return; /* the next commit asks again */
	*x = (struct prune){ .job = j,
			     .place = place_ref(j->place),
			     .due = verify_is_due(j, now_ns()),
			     .unverified = j->unverified };
	x->by = (struct pruning){ .d = j->d, .job = x->place->store->job };
	j->keeping++;
	j->pruning = true;
	device_task(x->place->device, LANE_KEEP, &x->task, prune_run, prune_done);
}

static void keep_after(struct job *j)
{
	if (atomic_load(&j->d->stops) || !j->place)
		return;
	if (j->pruning)
		j->prune_again = true; /* once at the end is enough for all that come meanwhile */
	else
		prune_start(j);
}

void keep_committed(struct job *j)
{
	j->unverified++;
	keep_after(j);
}

/* --- space --- */
/* Bytes of the steps that were set aside and that ckptctl prune could remove. */
static uint64_t set_aside_bytes(struct store *s)
{
	const struct prune_opts o = { .set_aside = true, .dry = true, .now_ns = steady_wall_ns() };
	struct prune_result got = { 0 };

	return store_prune(s, &o, &got, NULL) < 0 ? 0 : got.freed;
}

void keep_advise(struct store *s, struct ckpt_err *err)
{
	uint64_t bytes = set_aside_bytes(s);
	size_t used = strlen(err->msg);
	char h[32];

	if (bytes && used < sizeof err->msg)
		snprintf(err->msg + used, sizeof err->msg - used,
			 "; %s are set aside, ckptctl prune --set-aside removes them",
			 keep_human(bytes, h));
}

/* What the mildest --keep-last that makes space would free: for the sentence. */
static void policy_advise(struct store *s, uint64_t missing, char *buf, size_t bytes)
{
	struct prune_result got = { 0 };
	uint32_t last;
	char h[32];

	for (last = 4; last-- > 1;) {
		const struct retain_policy p = { .keep_last = last };
		const struct prune_opts o = { .policy = &p,
					      .dry = true,
					      .now_ns = steady_wall_ns() };

		got = (struct prune_result){ 0 };
		if (store_prune(s, &o, &got, NULL) < 0)
			got.freed = 0;
		if (got.freed >= missing)
			break;
	}
	if (got.freed)
		snprintf(buf, bytes, "ckptctl prune -n --keep-last %u would free %s%s",
			 MAX(last, 1u), got.freed < missing ? "only " : "",
			 keep_human(got.freed, h));
	else
		snprintf(buf, bytes, "no older step could be removed: free space there");
}

uint64_t keep_free(struct daemon *d, struct store *s, uint64_t bytes)
{
	struct prune_result got = { 0 };
	struct ckpt_err err = { 0 };
	struct pruning x = { .d = d, .job = s->job, .stops_max = 1 };
	struct store_policy policy;

	policy_find(d, s, &policy);
	if (!retain_is_policy(&policy.rules))
		return 0;
	if (policy_apply(&x, s, &policy.rules, bytes, false, &got, &err) < 0)
		log_line(&d->opts.log, LOG_WARNING, "keep: job %s: no space could be made: %s",
			 s->job, err.msg);
	return got.freed;
}

int keep_space(struct daemon *d, struct store *s, uint64_t step, uint64_t bytes,
	       struct ckpt_err *err)
{
	const struct io_ops *ops = d->opts.ops;
	struct io_space now;
	char need[32], have[32], advice[96];

	for (uint64_t missing = 0, freed = 0;;) {
		/* Some file systems do not report their space, as those of a network, and some
		 * report removed files late. There the reservation fails if a step does not fit. */
		if (ops->space(ops->ctx, s->job_fd, &now) < 0 || !now.total_bytes ||
		    now.free_bytes >= bytes || (missing && freed >= missing) ||
		    MUTANT(SPACE_GUARD_OFF))
			return 0;
		if (missing)
			break;
		missing = bytes - now.free_bytes;
		freed = keep_free(d, s, missing);
		if (!freed)
			break;
	}
	policy_advise(s, bytes - now.free_bytes, advice, sizeof advice);
	ckpt_error(err, -ENOSPC,
		   "step %" PRIu64 " needs %s, %s are free: No space left on device; %s", step,
		   keep_human(bytes, need), keep_human(now.free_bytes, have), advice);
	keep_advise(s, err);
	return -ENOSPC;
}

struct look {
	struct task task;
	struct job *job;     /* looking: not freed */
	struct place *place; /* reference */
	bool read;	     /* the policy, too */
	struct store_policy policy;
	struct io_space space;
	int rc;
};

static void look_run(struct task *t)
{
	struct look *x = (struct look *)t;
	const struct io_ops *ops = x->job->d->opts.ops;

	x->rc = ops->space(ops->ctx, x->place->store->job_fd, &x->space);
	if (x->read)
		policy_find(x->job->d, x->place->store, &x->policy);
}

static void look_done(struct task *t)
{
	struct look *x = (struct look *)t;
	bool known = x->rc == 0 && x->space.total_bytes;

	x->job->keeping--;
	x->job->space.known = known;
	x->job->space.free_bytes = known ? x->space.free_bytes : 0;
	if (x->read && policy_note(x->job, x->place, &x->policy))
		keep_after(x->job); /* it is obeyed from now on */
	place_unref(x->place);
	free(x);
}

static void look_start(struct job *j, uint64_t now)
{
	struct look *x = calloc(1, sizeof *x);

	j->space.looked_ns = now;
	if (!x)
		return;
	*x = (struct look){ .job = j,
			    .place = place_ref(j->place),
			    .read = !j->policy_known || elapsed_ns(j->policy_ns, now) > LOOK_NS };
	j->keeping++;
	device_task(x->place->device, LANE_KEEP, &x->task, look_run, look_done);
}

void keep_tick(struct job *j, uint64_t now)
{
	if (j->launch && j->launch->state == LAUNCH_ENDED && job_idle(j))
		launch_let_go(j->launch); /* nothing of it will be committed any more */
	/* The device was not free for it after the commit. */
	if (j->place && !j->pruning && !j->d->drain_until && j->unverified &&
	    retain_is_policy(&j->policy.rules) && verify_is_due(j, now))
		prune_start(j);
	if (j->place && !j->keeping && !j->d->drain_until && j->launch &&
	    j->launch->state != LAUNCH_ENDED &&
	    (!j->space.looked_ns || elapsed_ns(j->space.looked_ns, now) > LOOK_NS))
		look_start(j, now);
}
