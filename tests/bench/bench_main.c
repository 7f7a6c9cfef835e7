/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_main.c - ckptbench: the measurements of `make bench` that need a job. Called by run.sh,
 * which starts ckptd, runs fio in between, and makes the table.
 *
 *	stall SOCKET STORE BYTES SNAPSHOTS    what the training thread waits, and the daemon's copy
 *	save SOCKET STORE BYTES WORLD [TENSORS [FROZEN]] one durable save for each line on stdin
 *	restore SOCKET STORE BYTES WORLD STEP PID one restore from disk; what it cost the daemon PID
 *	steps SOCKET STORE COUNT              so many steps of a small job
 *	tensors SOCKET STORE TENSORS WORLD STEPS PID    commits of tiny tensors; what they cost the daemon PID
 *	hash BYTES                            the sums that a save makes
 *	canary HOW BYTES ROUNDS               looking for a change, HOW: shared or own memory (bench_canary.h)
 *	write HOW DIR BYTES TENSORS           one part file by the rooms alone (bench_write.h)
 *	many DIR TENSORS RANKS STEPS BYTES    a store with so much in it, without a daemon (tests/lib/many.h)
 *	plan WHAT [MODEL]                     what planning costs at scale (bench_plan.h)
 *	timed COMMAND...                      run it; its wall time, and the most memory that it had, on stderr
 *
 * Prints lines "NAME NUMBER"; times are nanoseconds. Everything is pre-touched; nothing is timed
 * with the page faults of a first touch in it.
 */
#include "bench_canary.h"
#include "bench_job.h"
#include "bench_plan.h"
#include "bench_tensors.h"
#include "bench_write.h"
#include "ckpt/base/copy.h"
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

#define COPY_EVERY 4u	  /* snapshots between two rounds of copies */
#define INTERVAL_COPIES 6 /* of compute between two snapshots; at least 3 are asked for */
#define WARM_UP 4u	  /* snapshots that do not count: the daemon has seen all memory then */
#define INTERVAL_MIN_NS (200 * NS_PER_MS)
#define WAIT_NS (600 * NS_PER_S)
#define RANKS_MAX 16u
#define REST_S 2 /* as run.sh's rest */
#define HASH_ROUNDS 5
#define HASH_BLOCK (1u << 20) /* bytes of a chunk */
#define HASH_SPAN (64u << 10) /* bytes that all sums see before any sees the next */

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void say(const char *name, uint64_t n)
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

/* ---- stall ---- */

/* Both ways to copy, one after the other, the first one changing from round to round. */
static uint64_t copies(void *dst, const struct job_rank *r, uint32_t round)
{
	uint64_t best = UINT64_MAX;

	for (uint32_t i = 0; i < 2; i++) {
		bool stream = (i + round) % 2;
		uint64_t t = clock_ns();

		if (stream)
			copy_stream(dst, r->mem, r->bytes);
		else
			memcpy(dst, r->mem, r->bytes);
		__asm__ volatile("" : : "r"(dst) : "memory");
		t = clock_ns() - t;
		say(stream ? "copy_stream" : "copy_memcpy", t);
		best = MIN(best, t);
	}
	return best;
}

/* The training thread computes: it holds its core and stays inside the first-level cache. */
static void compute(uint64_t ns)
{
	uint64_t until = clock_ns() + ns;
	volatile double x = 1;

	while (clock_ns() < until)
		for (int i = 0; i < 1000; i++)
			x = x * 1.0000001;
}

static void stall_step(struct job_rank *r, uint64_t step, uint64_t interval, bool counts)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	struct ckpt_stats s = { .size = sizeof s };
	uint64_t t = clock_ns(), in;
	int taken = ckpt_snapshot(r->c, step, &mark), copied;

	in = clock_ns() - t;
	compute(interval);
	t = clock_ns();
	copied = ckpt_guard(r->c, NULL);
	in += clock_ns() - t;
	if (taken < 0 || copied < 0)
		die("step %" PRIu64 ": %s", step, strerror(-MIN(taken, copied)));
	if (!counts)
		return;
	if (taken || copied) {
		say(taken ? "skipped_step" : "torn_step", step);
		return;
	}
	say("stall", in);
	if (ckpt_wait(r->c, step, CKPT_STAGED, WAIT_NS, NULL) == 0 && ckpt_stats(r->c, &s) == 0)
		say("time_to_staged", s.staged_ns);
}

static void stall(const char *socket, const char *store, uint64_t bytes, uint32_t snapshots)
{
	struct job_opts o = { socket, store, "stall", bytes, 1, 0, 0 };
	struct ckpt_stats was = { .size = sizeof was }, is = was;
	uint64_t interval = 0;
	struct job_rank r;
	void *dst;

	job_open(&o, 0, &r);
	job_seal(&r);
	job_fill(&r, 0);
	dst = touched(r.bytes);
	for (uint32_t i = 0; i < 3; i++)
		interval = MAX(interval, copies(dst, &r, i));
	interval = MAX(INTERVAL_COPIES * interval, INTERVAL_MIN_NS);
	say("interval", interval);
	say("bytes", r.bytes);
	for (uint64_t step = 1; step <= WARM_UP + snapshots; step++) {
		if (step == WARM_UP + 1)
			ckpt_stats(r.c, &was);
		stall_step(&r, step, interval, step > WARM_UP);
		job_update(&r, step);
		if (step % COPY_EVERY == 0)
			copies(dst, &r, (uint32_t)(step / COPY_EVERY));
	}
	ckpt_stats(r.c, &is);
	say("asked", snapshots);
	say("staged", is.staged - was.staged);
	say("daemon_copy_bytes", is.copy_bytes - was.copy_bytes);
	say("daemon_copy", is.copy_ns - was.copy_ns);
	job_close(&r);
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

/* User and system time of a process so far, in steps of the kernel's clock. */
static uint64_t process_cpu_ns(pid_t pid)
{
	unsigned long user, sys;
	char path[64], line[512];
	const char *p;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	p = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
	if (!p ||
	    sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2)
		die("the processor time of %d cannot be read", (int)pid);
	fclose(f);
	return (user + sys) * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
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
		t->cpu = process_cpu_ns(t->daemon);
		t->begin = clock_ns();
	}
	pthread_barrier_wait(&t->barrier);
	if (ckpt_restore(r->c, &want, &got, &e) < 0)
		die("%s", e.msg);
	t->end[m->rank] = clock_ns();
	if (pthread_barrier_wait(&t->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		t->cpu_end = process_cpu_ns(t->daemon);
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
	struct job_opts o = { socket, store, "steps", 1, 1, 0, 0 };
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };
	struct ckpt_err e = { 0 };
	struct job_rank r;

	job_open(&o, 0, &r);
	job_seal(&r);
	job_fill(&r, 0);
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t t = clock_ns();

		if (ckpt_snapshot(r.c, i, &mark) != 0 ||
		    ckpt_wait(r.c, i, CKPT_COMMITTED, WAIT_NS, &e) < 0)
			die("small step %" PRIu64 " was not committed: %s", i, e.msg);
		say("small_commit", clock_ns() - t);
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
		uint64_t t = clock_ns();

		for (uint64_t at = 0; at + HASH_BLOCK <= bytes; at += HASH_BLOCK) {
			struct hash128_state hash;

			hash128_begin(&hash);
			for (uint64_t i = at; i < at + HASH_BLOCK; i += HASH_SPAN)
				sum += hash128_add_elements(&hash, p + i, HASH_SPAN / 4, 4, i / 4);
			sum += hash128_end(&hash).b[0];
		}
		__asm__ volatile("" : : "r"(sum) : "memory");
		say("hashed", clock_ns() - t);
	}
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
	fprintf(stderr, "wall %" PRIu64 "\nrss %" PRIu64 "\n", now_ns() - begin,
		(uint64_t)use.ru_maxrss << 10);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static bool verb_is(const char *verb, int argc, char **argv, int n)
{
	return argc == 2 + n && !strcmp(argv[1], verb);
}

int main(int argc, char **argv)
{
	if (verb_is("save", argc, argv, 5) || verb_is("save", argc, argv, 6)) {
		struct job_opts o = { argv[2],
				      argv[3],
				      "save",
				      number(argv[4]),
				      (uint32_t)number(argv[5]),
				      (uint32_t)number(argv[6]),
				      argc > 7 ? (uint32_t)number(argv[7]) : 0 };
		struct team t = { .opts = &o };

		run_team(&t, save_rank);
	} else if (verb_is("write", argc, argv, 4)) {
		bench_write(argv[2], argv[3], number(argv[4]), (uint32_t)number(argv[5]));
	} else if (verb_is("stall", argc, argv, 4)) {
		stall(argv[2], argv[3], number(argv[4]), (uint32_t)number(argv[5]));
	} else if (verb_is("save", argc, argv, 4)) {
		struct job_opts o = {
			argv[2], argv[3], "save", number(argv[4]), (uint32_t)number(argv[5]), 0, 0
		};
		struct team t = { .opts = &o };

		run_team(&t, save_rank);
	} else if (verb_is("restore", argc, argv, 6)) {
		struct job_opts o = {
			argv[2], argv[3], "save", number(argv[4]), (uint32_t)number(argv[5]), 0, 0
		};

		restore(&o, number(argv[6]), (pid_t)number(argv[7]));
	} else if (verb_is("steps", argc, argv, 3)) {
		steps(argv[2], argv[3], number(argv[4]));
	} else if (verb_is("tensors", argc, argv, 6)) {
		bench_tensors(argv[2], argv[3], (uint32_t)number(argv[4]),
			      (uint32_t)number(argv[5]), (uint32_t)number(argv[6]),
			      (pid_t)number(argv[7]));
	} else if (verb_is("many", argc, argv, 5)) {
		struct ckpt_err err;

		if (many_write(argv[2], (uint32_t)number(argv[3]), (uint32_t)number(argv[4]),
			       (uint32_t)number(argv[5]), number(argv[6]), &err))
			die("%s", err.msg);
	} else if (argc > 2 && argc < 5 && !strcmp(argv[1], "plan") &&
		   bench_plan(argv[2], argv[3])) {
		return 0;
	} else if (argc > 2 && !strcmp(argv[1], "timed")) {
		return timed(argv + 2);
	} else if (verb_is("canary", argc, argv, 3)) {
		bench_canary(number(argv[3]), (uint32_t)number(argv[4]), !strcmp(argv[2], "own"));
	} else if (verb_is("hash", argc, argv, 1)) {
		hash(number(argv[2]));
	} else {
		fputs("usage: see the top of tests/bench/bench_main.c; make bench runs it\n",
		      stderr);
		return 2;
	}
	return 0;
}
