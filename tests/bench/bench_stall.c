/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stall.c - see bench_stall.h. Called by bench_main.c.
 * Invariant: what is timed in turn with the copies runs on memory that was touched before.
 */
#include "bench_stall.h"
#include "bench_proc.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define COPY_EVERY 4u	  /* snapshots between two rounds of copies */
#define COPY_ROUNDS 30u	  /* of them at most: they take as long as the snapshots */
#define INTERVAL_COPIES 6 /* of pause between two snapshots; at least 3 are asked for */
#define WARM_UP 4u	  /* snapshots that do not count: the daemon has seen all memory then */
#define LOOP_STEPS 8u
#define WAIT_NS (600 * NS_PER_S)
#define CORES_MAX 256
#define AVERAGES 3

static uint64_t thread_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Both ways to copy, one after the other, the first one changing from round to round. Returns the
 * better one's processor time, which others on this machine change least. */
static uint64_t copies(void *dst, const struct job_rank *r, uint32_t round)
{
	uint64_t best = UINT64_MAX;

	for (uint32_t i = 0; i < 2; i++) {
		bool stream = (i + round) % 2;
		uint64_t t = now_ns(), cpu = thread_cpu_ns();

		if (stream)
			copy_stream(dst, r->mem, r->bytes);
		else
			memcpy(dst, r->mem, r->bytes);
		__asm__ volatile("" : : "r"(dst) : "memory");
		cpu = thread_cpu_ns() - cpu;
		say(stream ? "copy_stream" : "copy_memcpy", now_ns() - t);
		say(stream ? "cpu_stream" : "cpu_memcpy", cpu);
		best = MIN(best, cpu);
	}
	return best;
}

static void *copy_room(const struct job_rank *r)
{
	void *p = pages_new(r->bytes);

	if (!p)
		die("no memory for %" PRIu64 " bytes", r->bytes);
	memset(p, 1, r->bytes);
	return p;
}

/* ---- work ---- */

/* It stays inside the first-level cache. */
static void work(uint64_t rounds)
{
	volatile double x = 1;

	for (uint64_t i = 0; i < rounds; i++)
		x = x * 1.0000001;
}

/* The training thread holds its core for so long. */
static void compute(uint64_t ns)
{
	for (uint64_t until = now_ns() + ns; now_ns() < until;)
		work(1000);
}

/* How much of it is done in so long, by a thread that is alone. */
static uint64_t work_for(uint64_t ns)
{
	uint64_t t = now_ns(), n = 0;

	for (; now_ns() < t + NS_PER_S / 5; n++)
		work(100000);
	t = now_ns() - t;
	return (uint64_t)((double)n * 100000 * (double)ns / (double)t);
}

static atomic_bool burn_end;

static void *burn(void *arg)
{
	(void)arg;
	while (!atomic_load_explicit(&burn_end, memory_order_relaxed))
		work(100000);
	return NULL;
}

static uint32_t cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

/* ---- stall ---- */

struct stall {
	struct job_rank r;
	uint64_t pause;
	bool idle; /* in the pause */
	pid_t daemon;
};

static void stall_step(struct stall *x, uint64_t step, bool counts)
{
	struct proc_threads before = proc_threads(x->daemon, "ckptd-copy"), after;
	struct job_rank *r = &x->r;
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	struct ckpt_stats s = { .size = sizeof s };
	uint64_t t = now_ns(), in;
	int taken = ckpt_snapshot(r->c, step, &mark), copied;

	in = now_ns() - t;
	if (x->idle)
		usleep((useconds_t)(x->pause / 1000));
	else
		compute(x->pause);
	t = now_ns();
	copied = ckpt_guard(r->c, NULL);
	in += now_ns() - t;
	if (taken < 0 || copied < 0)
		die("step %" PRIu64 ": %s", step, strerror(-MIN(taken, copied)));
	if (!counts)
		return;
	say("stall_all", in);
	if (taken || copied) {
		say(taken ? "skipped_step" : "torn_step", step);
		return;
	}
	say("stall", in);
	if (ckpt_wait(r->c, step, CKPT_STAGED, WAIT_NS, NULL) < 0 || ckpt_stats(r->c, &s) < 0)
		return;
	after = proc_threads(x->daemon, "ckptd-copy");
	say("time_to_staged", s.staged_ns);
	say("copy_cpu", after.cpu_ns - before.cpu_ns);
	say("copy_wait", after.wait_ns - before.wait_ns);
}

void bench_stall(const struct job_opts *o, uint32_t snapshots, const char *load, pid_t daemon)
{
	const pid_t both[2] = { getpid(), daemon };
	struct ckpt_stats was = { .size = sizeof was }, is = was;
	bool busy = !strcmp(load, "busy");
	uint32_t every = MAX(COPY_EVERY, snapshots / COPY_ROUNDS), nburn = busy ? cores() - 1 : 0;
	struct stall x = { .idle = !strcmp(load, "idle"), .daemon = daemon };
	pthread_t burner[CORES_MAX];
	void *dst;

	job_open(o, 0, &x.r);
	job_seal(&x.r);
	job_fill(&x.r, 0);
	dst = copy_room(&x.r);
	for (uint32_t i = 0; i < 3 + (busy ? COPY_ROUNDS : 0); i++)
		x.pause = MAX(x.pause, copies(dst, &x.r, i));
	x.pause *= INTERVAL_COPIES;
	say("interval", x.pause);
	say("bytes", x.r.bytes);
	nburn = MIN(nburn, (uint32_t)CORES_MAX);
	for (uint32_t i = 0; i < nburn; i++)
		if (pthread_create(&burner[i], NULL, burn, NULL))
			die("cannot start a thread");
	for (uint64_t step = 1; step <= WARM_UP + snapshots; step++) {
		if (step == WARM_UP + 1)
			ckpt_stats(x.r.c, &was);
		stall_step(&x, step, step > WARM_UP);
		job_update(&x.r, step);
		if (!busy && step % every == 0)
			copies(dst, &x.r, (uint32_t)(step / every));
	}
	ckpt_stats(x.r.c, &is);
	say("asked", snapshots);
	say("staged", is.staged - was.staged);
	atomic_store(&burn_end, true);
	for (uint32_t i = 0; i < nburn; i++)
		pthread_join(burner[i], NULL);
	pages_free(dst, x.r.bytes);
	say("memory", proc_memory(both, 2));
	say("slots", 3 * x.r.bytes);
	job_close(&x.r);
}

/* ---- loop ---- */

struct loop {
	struct job_rank r;
	uint64_t step, work;
	struct ckpt_mark mark;
};

static void loop_block(struct loop *l, bool snapshots)
{
	uint64_t t = now_ns();

	for (uint32_t i = 0; i < LOOP_STEPS; i++) {
		work(l->work);
		if (snapshots && ckpt_guard(l->r.c, NULL) < 0)
			die("step %" PRIu64 ": the guard failed", l->step);
		job_update(&l->r, ++l->step);
		if (snapshots && ckpt_snapshot(l->r.c, l->step, &l->mark) < 0)
			die("step %" PRIu64 " was not taken", l->step);
	}
	say(snapshots ? "with" : "plain", (now_ns() - t) / LOOP_STEPS);
}

/* Nothing of the last block goes on in the next one. */
static void loop_rest(struct loop *l, int state)
{
	struct ckpt_err e = { 0 };
	int rc = ckpt_wait(l->r.c, l->step, state, WAIT_NS, &e);

	if (rc < 0 && rc != -ENOENT) /* it was skipped or torn */
		die("step %" PRIu64 ": %s", l->step, e.msg);
	(void)ckpt_guard(l->r.c, NULL);
}

void bench_loop(const struct job_opts *o, const char *how, uint32_t rounds)
{
	bool persisted = !strcmp(how, "persisted");
	int state = persisted ? CKPT_COMMITTED : CKPT_STAGED;
	struct ckpt_stats was = { .size = sizeof was }, is = was;
	struct loop l = { .mark = { .size = sizeof l.mark,
				    .flags = persisted ? CKPT_PERSIST : CKPT_STAGE_ONLY } };
	uint64_t ns = 0;
	void *dst;

	job_open(o, 0, &l.r);
	job_seal(&l.r);
	job_fill(&l.r, 0);
	dst = copy_room(&l.r);
	for (uint32_t i = 0; i < 3; i++)
		ns = MAX(ns, INTERVAL_COPIES * copies(dst, &l.r, i));
	pages_free(dst, l.r.bytes);
	for (uint32_t i = 0; i < WARM_UP; i++) {
		uint64_t t = now_ns();

		if (ckpt_snapshot(l.r.c, ++l.step, &l.mark) != 0)
			die("step %" PRIu64 " was not taken", l.step);
		loop_rest(&l, state);
		ns = persisted ? MAX(ns, (now_ns() - t) * 3 / 2) : ns;
	}
	l.work = work_for(ns);
	ckpt_stats(l.r.c, &was);
	for (uint32_t i = 0; i < 2 * rounds; i++) {
		bool snapshots = (i + i / 2) % 2;

		loop_block(&l, snapshots);
		if (snapshots)
			loop_rest(&l, state);
	}
	ckpt_stats(l.r.c, &is);
	say("asked", (uint64_t)LOOP_STEPS * rounds);
	say("reached", persisted ? is.committed - was.committed : is.staged - was.staged);
	job_close(&l.r);
}

/* ---- averages ---- */

static void average_open(struct loop *l, const struct job_opts *o)
{
	l->mark = (struct ckpt_mark){ .size = sizeof l->mark, .flags = CKPT_STAGE_ONLY };
	job_open(o, 0, &l->r);
	job_seal(&l->r);
	job_fill(&l->r, 0);
	for (uint32_t i = 0; i < WARM_UP; i++) {
		int rc;

		l->step++;
		while ((rc = ckpt_snapshot(l->r.c, l->step, &l->mark)) == CKPT_SKIPPED)
			usleep(1000); /* the averages of the step before hold the slots */
		if (rc != 0)
			die("step %" PRIu64 " was not taken", l->step);
		loop_rest(l, CKPT_STAGED);
	}
}

static void average_block(struct loop *l, const char *step, const char *stall)
{
	uint64_t begin = now_ns(), t, in;

	for (uint32_t i = 0; i < LOOP_STEPS; i++) {
		work(l->work);
		t = now_ns();
		if (ckpt_guard(l->r.c, NULL) < 0)
			die("step %" PRIu64 ": the guard failed", l->step);
		in = now_ns() - t;
		job_update(&l->r, ++l->step);
		t = now_ns();
		if (ckpt_snapshot(l->r.c, l->step, &l->mark) < 0)
			die("step %" PRIu64 " was not taken", l->step);
		say(stall, in + now_ns() - t);
	}
	say(step, (now_ns() - begin) / LOOP_STEPS);
	loop_rest(l, CKPT_STAGED);
}

void bench_averages(const struct job_opts *o, uint32_t rounds, pid_t daemon)
{
	const pid_t both[2] = { getpid(), daemon };
	struct ckpt_stats was[2] = { { .size = sizeof was[0] }, { .size = sizeof was[0] } };
	struct ckpt_stats is[2] = { was[0], was[1] };
	struct job_opts opts = *o;
	struct loop plain = { 0 }, with = { 0 };
	uint64_t ns = 0, memory;
	void *dst;

	opts.finite = true;
	opts.name = "plain";
	average_open(&plain, &opts);
	memory = proc_memory(both, 2);
	say("memory_plain", memory);
	opts.averages = AVERAGES;
	opts.name = "averaged";
	average_open(&with, &opts);
	say("memory_with", proc_memory(both, 2) - memory);
	dst = copy_room(&plain.r);
	for (uint32_t i = 0; i < 3; i++)
		ns = MAX(ns, INTERVAL_COPIES * copies(dst, &plain.r, i));
	pages_free(dst, plain.r.bytes);
	plain.work = with.work = work_for(ns);
	ckpt_stats(with.r.c, &was[0]);
	ckpt_stats(plain.r.c, &was[1]);
	for (uint32_t i = 0; i < 2 * rounds; i++)
		if ((i + i / 2) % 2)
			average_block(&with, "with", "stall_with");
		else
			average_block(&plain, "plain", "stall_plain");
	ckpt_stats(with.r.c, &is[0]);
	ckpt_stats(plain.r.c, &is[1]);
	say("reached_with", is[0].staged - was[0].staged);
	say("reached_plain", is[1].staged - was[1].staged);
	job_close(&with.r);
	job_close(&plain.r);
}

/* ---- replicas ---- */

struct drift {
	const struct job_opts *opts;
	pthread_barrier_t barrier;
	uint32_t snapshots;
	pid_t daemon;
	struct proc_threads before;
};

struct drift_rank {
	struct drift *d;
	uint32_t rank;
};

static void *drift_run(void *arg)
{
	const struct drift_rank *m = arg;
	struct drift *d = m->d;
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	struct job_rank r;

	job_open(d->opts, m->rank, &r);
	job_seal(&r);
	job_fill(&r, 0);
	for (uint64_t step = 1; step <= WARM_UP + d->snapshots; step++) {
		pthread_barrier_wait(&d->barrier);
		if (m->rank == 0)
			d->before = proc_threads(d->daemon, "ckptd-copy");
		pthread_barrier_wait(&d->barrier);
		if (ckpt_snapshot(r.c, step, &mark) != 0 ||
		    ckpt_wait(r.c, step, CKPT_STAGED, WAIT_NS, NULL) < 0)
			die("step %" PRIu64 " was not staged", step);
		if (ckpt_guard(r.c, NULL) != 0)
			die("step %" PRIu64 " is torn", step);
		pthread_barrier_wait(&d->barrier);
		if (m->rank == 0 && step > WARM_UP)
			say("copy_cpu",
			    proc_threads(d->daemon, "ckptd-copy").cpu_ns - d->before.cpu_ns);
		job_update(&r, step);
	}
	job_close(&r);
	return NULL;
}

void bench_drift(const struct job_opts *o, uint32_t snapshots, pid_t daemon)
{
	struct drift d = { .opts = o, .snapshots = snapshots, .daemon = daemon };
	struct drift_rank m[2] = { { &d, 0 }, { &d, 1 } };
	pthread_t thread[2];

	pthread_barrier_init(&d.barrier, NULL, 2);
	for (uint32_t i = 0; i < 2; i++)
		if (pthread_create(&thread[i], NULL, drift_run, &m[i]))
			die("cannot start a thread");
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	pthread_barrier_destroy(&d.barrier);
}
