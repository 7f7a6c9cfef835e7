/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_main.c - ckptbench: the measurements of `make bench` that need a job. Called by run.sh,
 * which starts ckptd, runs fio in between, and makes the table.
 *
 *	stall SOCKET STORE BYTES SNAPSHOTS LOAD MEMORY PID what the training thread waits, and the daemon's copy;
 *	                                      LOAD: free, busy, idle (bench_stall.h); MEMORY: alloc or private
 *	loop SOCKET STORE BYTES HOW ROUNDS    a loop with a snapshot at each step; HOW: staged, persisted
 *	drift SOCKET STORE BYTES HOW SNAPSHOTS PID two ranks that hold the same state; HOW: replicated, sharded
 *	averages SOCKET STORE BYTES ROUNDS PID a loop with a snapshot at each step, with averages and without
 *	scale SOCKET STORE TENSORS RANKS ROUNDS PID [AVERAGES] many small tensors (bench_scale.h)
 *	life SOCKET STORE BYTES RANKS RESTARTS REST_MS PID a job that is killed (bench_life.h)
 *	save SOCKET STORE BYTES WORLD [TENSORS [FROZEN [AVERAGES]]] one durable save for each line on stdin
 *	restore SOCKET STORE BYTES WORLD STEP PID one restore from disk; what it cost the daemon PID
 *	steps SOCKET STORE COUNT              so many steps of a small job
 *	hash BYTES                            the sums that a save makes
 *	ema ELEMENTS ROUNDS                   the update of averages, beside its bound (bench_ema.h)
 *	canary HOW BYTES ROUNDS               looking for a change, HOW: shared or own memory (bench_canary.h)
 *	write HOW DIR BYTES TENSORS           one part file by the rooms alone (bench_write.h)
 *	many DIR TENSORS RANKS STEPS BYTES    a store with so much in it, without a daemon (tests/lib/many.h)
 *	plan WHAT [MODEL]                     what planning costs at scale (bench_plan.h)
 *	timed COMMAND...                      run it; its wall time, its processor time, and the most memory that it had, on stderr
 *
 * Prints lines "NAME NUMBER"; times are nanoseconds. Everything is pre-touched; nothing is timed
 * with the page faults of a first touch in it.
 */
#include "bench_canary.h"
#include "bench_ema.h"
#include "bench_job.h"
#include "bench_life.h"
#include "bench_plan.h"
#include "bench_proc.h"
#include "bench_scale.h"
#include "bench_stall.h"
#include "bench_write.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/util.h"
#include "tests/lib/many.h"

#include <inttypes.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <stdio.h>
#include <sys/mman.h>

#define WAIT_NS (600 * NS_PER_S)
#define RANKS_MAX 16u
#define STEPS_EDGE 50u /* first, and last, of many steps */
#define REST_S 2       /* as run.sh's rest */
#define HASH_ROUNDS 5
#define HASH_BLOCK (1u << 20) /* bytes of a chunk */
#define HASH_SPAN (64u << 10) /* bytes that all sums see before any sees the next */

void say(const char *name, uint64_t n)
{
	printf("%s %" PRIu64 "\n", name, n);
	fflush(stdout);
}

static uint64_t number(const char *s)
{
	char *end;
	uint64_t n = strtoull(s, &end, 10);

	if (end == s || *end)
		die("'%s' is no number", s);
	return n;
}

static void *touched(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no memory for %" PRIu64 " bytes", bytes);
	madvise(p, bytes, MADV_HUGEPAGE); /* the best that a copy can have */
	memset(p, 1, bytes);
	return p;
}

/* ---- save and restore: one thread a rank ---- */

struct team {
	const struct job_opts *opts;
	pthread_barrier_t barrier;
	struct job_rank rank[RANKS_MAX];
	uint64_t step, begin, end[RANKS_MAX];
	uint64_t cpu, cpu_end; /* of the daemon, ns */
	pid_t daemon;
	bool go;
};

struct member {
	struct team *team;
	uint32_t rank;
};

static void run_team(struct team *t, void *(*body)(void *))
{
	struct member m[RANKS_MAX];
	pthread_t thread[RANKS_MAX];
	uint32_t n = t->opts->world;

	if (!n || n > RANKS_MAX)
		die("1 to %u ranks", RANKS_MAX);
	pthread_barrier_init(&t->barrier, NULL, n);
	for (uint32_t i = 0; i < n; i++) {
		m[i] = (struct member){ t, i };
		if (pthread_create(&thread[i], NULL, body, &m[i]))
			die("cannot start a thread");
	}
	for (uint32_t i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
	pthread_barrier_destroy(&t->barrier);
}

static void tell_save(const struct team *t)
{
	const struct job_rank *r = &t->rank[0];
	struct ckpt_stats s = { .size = sizeof s };
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < t->opts->world; i++)
		bytes += t->rank[i].bytes;
	ckpt_stats(r->c, &s);
	say("bytes", bytes);
	say("staged", s.staged_ns);
	say("persisted", s.persisted_ns);
	say("committed", s.committed_ns);
	say("saved", t->step);
}

static void *save_rank(void *arg)
{
	const struct member *m = arg;
	struct team *t = m->team;
	struct job_rank *r = &t->rank[m->rank];
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };
	struct ckpt_err e = { 0 };
	char line[16];

	job_open(t->opts, m->rank, r);
	job_seal(r);
	job_fill(r, 0);
	for (;;) {
		if (pthread_barrier_wait(&t->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
			if (!t->step)
				say("ready", 0);
			t->go = fgets(line, sizeof line, stdin) != NULL;
			t->step++;
		}
		pthread_barrier_wait(&t->barrier);
		if (!t->go)
			break;
		job_update(r, t->step);
		if (ckpt_snapshot(r->c, t->step, &mark) != 0)
			die("step %" PRIu64 " was not taken", t->step);
		if (ckpt_wait(r->c, t->step, CKPT_COMMITTED, WAIT_NS, &e) < 0)
			die("%s", e.msg);
		if (ckpt_guard(r->c, NULL) != 0)
			die("step %" PRIu64 " is torn", t->step);
		if (pthread_barrier_wait(&t->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
			tell_save(t);
	}
	job_close(r);
	return NULL;
}

static void *restore_rank(void *arg)
{
	const struct member *m = arg;
	struct team *t = m->team;
	struct job_rank *r = &t->rank[m->rank];
	struct ckpt_want want = { .size = sizeof want, .flags = CKPT_FROM_DISK, .step = t->step };
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err e = { 0 };

	job_open(t->opts, m->rank, r);
	job_seal(r);
	sleep(REST_S);
	if (pthread_barrier_wait(&t->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
		t->cpu = proc_cpu_ns(t->daemon);
		t->begin = now_ns();
	}
	pthread_barrier_wait(&t->barrier);
	if (ckpt_restore(r->c, &want, &got, &e) < 0)
		die("%s", e.msg);
	t->end[m->rank] = now_ns();
	if (pthread_barrier_wait(&t->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		t->cpu_end = proc_cpu_ns(t->daemon);
	if (got.step != t->step || got.where != 2)
		die("restored step %" PRIu64 " from place %u", got.step, got.where);
	job_check(r, t->step);
	job_close(r);
	return NULL;
}

static void restore(const struct job_opts *o, uint64_t step, pid_t daemon)
{
	struct team t = { .opts = o, .step = step, .daemon = daemon };
	uint64_t bytes = 0, end = 0;

	run_team(&t, restore_rank);
	for (uint32_t i = 0; i < o->world; i++) {
		bytes += t.rank[i].bytes;
		end = MAX(end, t.end[i]);
	}
	say("bytes", bytes);
	say("restored", end - t.begin);
	say("cpu", t.cpu_end - t.cpu);
}

/* ---- the rest ---- */

static void steps(const char *socket, const char *store, uint64_t n)
{
	struct job_opts o = {
		.socket = socket, .store = store, .name = "steps", .bytes = 1, .world = 1
	};
	struct ckpt_stats is = { .size = sizeof is };
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };
	struct ckpt_err e = { 0 };
	struct job_rank r;

	job_open(&o, 0, &r);
	job_seal(&r);
	job_fill(&r, 0);
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t t = now_ns();

		if (ckpt_snapshot(r.c, i, &mark) != 0 ||
		    ckpt_wait(r.c, i, CKPT_COMMITTED, WAIT_NS, &e) < 0)
			die("small step %" PRIu64 " was not committed: %s", i, e.msg);
		say("small_commit", now_ns() - t);
		if (ckpt_stats(r.c, &is) == 0)
			say(i <= STEPS_EDGE	 ? "commit_first"
			    : i > n - STEPS_EDGE ? "commit_last"
						 : "commit_between",
			    is.committed_ns - is.persisted_ns);
		ckpt_guard(r.c, NULL);
	}
	job_close(&r);
}

/* What a save computes of each MiB: identity, fingerprint. */
static void hash(uint64_t bytes)
{
	uint8_t *p = touched(bytes);
	uint64_t sum = 0;

	for (uint64_t i = 0; i < bytes / 8; i++)
		((uint64_t *)(void *)p)[i] = i * UINT64_C(0x9e3779b97f4a7c15);
	for (int round = 0; round < HASH_ROUNDS; round++) {
		uint64_t t = now_ns();

		for (uint64_t at = 0; at + HASH_BLOCK <= bytes; at += HASH_BLOCK) {
			struct hash128_state hash;

			hash128_begin(&hash);
			for (uint64_t i = at; i < at + HASH_BLOCK; i += HASH_SPAN)
				sum += hash128_add_elements(&hash, p + i, HASH_SPAN / 4, 4, i / 4);
			sum += hash128_end(&hash).b[0];
		}
		__asm__ volatile("" : : "r"(sum) : "memory");
		say("hashed", now_ns() - t);
	}
}

static uint64_t timeval_ns(struct timeval t)
{
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_usec * 1000;
}

static int timed(char **argv)
{
	uint64_t begin = now_ns();
	struct rusage use;
	int status;
	pid_t pid;

	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ))
		die("%s cannot be run", argv[0]);
	if (wait4(pid, &status, 0, &use) != pid)
		die("%s is lost", argv[0]);
	fprintf(stderr, "wall %" PRIu64 "\ncpu %" PRIu64 "\nrss %" PRIu64 "\n", now_ns() - begin,
		timeval_ns(use.ru_utime) + timeval_ns(use.ru_stime), (uint64_t)use.ru_maxrss << 10);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---- verbs ---- */

static struct job_opts job_of(char **a, const char *name)
{
	return (struct job_opts){
		.socket = a[0], .store = a[1], .name = name, .bytes = number(a[2]), .world = 1
	};
}

static uint32_t small(const char *s)
{
	return (uint32_t)number(s);
}

static void verb_stall(char **a, int n)
{
	struct job_opts o = job_of(a, "stall");

	(void)n;
	o.private = !strcmp(a[5], "private");
	bench_stall(&o, small(a[3]), a[4], (pid_t)number(a[6]));
}

static void verb_loop(char **a, int n)
{
	struct job_opts o = job_of(a, "loop");

	(void)n;
	bench_loop(&o, a[3], small(a[4]));
}

static void verb_drift(char **a, int n)
{
	struct job_opts o = job_of(a, "drift");

	(void)n;
	o.world = 2;
	o.replicated = !strcmp(a[3], "replicated");
	bench_drift(&o, small(a[4]), (pid_t)number(a[5]));
}

static void verb_averages(char **a, int n)
{
	struct job_opts o = job_of(a, "averages");

	(void)n;
	bench_averages(&o, small(a[3]), (pid_t)number(a[4]));
}

static void verb_life(char **a, int n)
{
	struct job_opts o = job_of(a, "life");

	(void)n;
	o.world = small(a[3]);
	bench_life(&o, small(a[4]), number(a[5]) * NS_PER_MS, (pid_t)number(a[6]));
}

static void verb_scale(char **a, int n)
{
	bench_scale(a[0], a[1], small(a[2]), small(a[3]), small(a[4]), (pid_t)number(a[5]),
		    n > 6 ? small(a[6]) : 0);
}

static void verb_save(char **a, int n)
{
	struct job_opts o = job_of(a, "save");
	struct team t = { .opts = &o };

	o.world = small(a[3]);
	o.tensors = n > 4 ? small(a[4]) : 0;
	o.frozen = n > 5 ? small(a[5]) : 0;
	o.finite = n > 6;
	o.averages = n > 6 ? small(a[6]) : 0;
	run_team(&t, save_rank);
}

static void verb_export(char **a, int n)
{
	struct job_opts o = job_of(a, "save");

	(void)n;
	o.world = small(a[3]);
	restore(&o, number(a[4]), (pid_t)number(a[5]));
}

static void verb_steps(char **a, int n)
{
	(void)n;
	steps(a[0], a[1], number(a[2]));
}

static void verb_hash(char **a, int n)
{
	(void)n;
	hash(number(a[0]));
}

static void verb_ema(char **a, int n)
{
	(void)n;
	bench_ema(number(a[0]), small(a[1]));
}

static void verb_canary(char **a, int n)
{
	(void)n;
	bench_canary(number(a[1]), small(a[2]), !strcmp(a[0], "own"));
}

static void verb_write(char **a, int n)
{
	(void)n;
	bench_write(a[0], a[1], number(a[2]), small(a[3]));
}

static void verb_many(char **a, int n)
{
	struct ckpt_err err;

	(void)n;
	if (many_write(a[0], small(a[1]), small(a[2]), small(a[3]), number(a[4]), &err))
		die("%s", err.msg);
}

static const struct verb {
	const char *name;
	int min, max; /* arguments */
	void (*run)(char **arg, int n);
} verbs[] = {
	{ "stall", 7, 7, verb_stall },	  { "loop", 5, 5, verb_loop },
	{ "drift", 6, 6, verb_drift },	  { "scale", 6, 7, verb_scale },
	{ "life", 7, 7, verb_life },	  { "save", 4, 7, verb_save },
	{ "restore", 6, 6, verb_export }, { "steps", 3, 3, verb_steps },
	{ "hash", 1, 1, verb_hash },	  { "canary", 3, 3, verb_canary },
	{ "write", 4, 4, verb_write },	  { "many", 5, 5, verb_many },
	{ "ema", 2, 2, verb_ema },	  { "averages", 5, 5, verb_averages },
};

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		if (!strcmp(verb, verbs[i].name) && argc - 2 >= verbs[i].min &&
		    argc - 2 <= verbs[i].max) {
			verbs[i].run(argv + 2, argc - 2);
			return 0;
		}
	if (!strcmp(verb, "timed") && argc > 2)
		return timed(argv + 2);
	if (!strcmp(verb, "plan") && argc > 2 && argc < 5 && bench_plan(argv[2], argv[3]))
		return 0;
	fputs("usage: see the top of tests/bench/bench_main.c; make bench runs it\n", stderr);
	return 2;
}
