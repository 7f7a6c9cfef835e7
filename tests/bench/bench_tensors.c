/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_tensors.c - a job of many tiny tensors on some ranks: what the daemon computes per commit, and what
 * memory it has for them. Called by bench_main.c.
 * Invariant: the tensors are so small that their number is all that costs.
 */
#include "bench_tensors.h"
#include "bench_job.h"
#include "ckpt/base/util.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ELEMENTS 16u /* of a tensor on each rank */
#define WAIT (300 * NS_PER_S)

struct all {
	const char *socket, *store;
	uint32_t tensors, world, steps;
	pid_t daemon;
	pthread_barrier_t barrier;
	uint64_t cpu, anon;
};

struct one {
	struct all *a;
	uint32_t rank;
	pthread_t thread;
};

static uint64_t daemon_cpu(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		die("there is no daemon %d", (int)pid);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Memory of its own, without what it shares with the ranks. */
static uint64_t daemon_anon(pid_t pid)
{
	char path[64], line[128];
	uint64_t kib = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
			break;
	if (f)
		(void)fclose(f);
	return kib * 1024;
}

static void say(const char *name, uint64_t n)
{
	printf("%s %" PRIu64 "\n", name, n);
	(void)fflush(stdout);
}

/* Everybody waits for everybody; true for one of them. */
static bool met(struct all *a)
{
	return pthread_barrier_wait(&a->barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
}

static void declare(ckpt *c, const struct all *a, float *mem)
{
	static const struct ckpt_placement shard = { .how = CKPT_SHARD, .split_factor = 1 };
	uint64_t shape = (uint64_t)ELEMENTS * a->world;
	struct ckpt_err e = { 0 };
	uint32_t mesh, id;

	if (ckpt_mesh(c, 1, (const char *const[]){ "fsdp" }, &a->world, NULL, &mesh, &e) < 0)
		die("%s", e.msg);
	for (uint32_t i = 0; i < a->tensors; i++) {
		struct ckpt_local local = { .ptr = mem + (size_t)i * ELEMENTS };
		char name[64];

		snprintf(name, sizeof name, "layers.%u.experts.%u.weight", i / 64, i % 64);
		struct ckpt_tensor t = {
			.size = sizeof t,
			.role = CKPT_PARAM,
			.dtype = CKPT_F32,
			.component = "model",
			.name = name,
			.ndim = 1,
			.mesh = mesh,
			.nplace = 1,
			.nlocal = 1,
			.shape = &shape,
			.place = &shard,
			.local = &local,
		};
		if (ckpt_tensor_add(c, &t, &id, &e) < 0)
			die("%s", e.msg);
	}
}

static void steps(struct one *k, ckpt *c)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };
	struct all *a = k->a;
	struct ckpt_err e = { 0 };

	for (uint32_t i = 1; i <= a->steps + 1; i++) {
		uint64_t began = now_ns();
		int rc;

		(void)met(a);
		if (i == 2 && met(a)) /* the first one is not counted */
			a->cpu = daemon_cpu(a->daemon);
		if (i == 2)
			(void)met(a);
		while ((rc = ckpt_snapshot(c, i, &mark)) == CKPT_SKIPPED)
			usleep(1000);
		if (rc < 0 || ckpt_wait(c, i, CKPT_COMMITTED, WAIT, &e) < 0)
			die("step %u of rank %u was not committed: %s", i, k->rank, e.msg);
		(void)ckpt_guard(c, NULL);
		if (i > 1 && k->rank == 0)
			say("commit", now_ns() - began);
	}
	if (met(a))
		say("cpu", (daemon_cpu(a->daemon) - a->cpu) / a->steps);
}

static void *run(void *arg)
{
	struct one *k = arg;
	struct all *a = k->a;
	struct ckpt_err e = { 0 };
	struct ckpt_opts opts = {
		.size = sizeof opts,
		.flags = CKPT_REQUIRE,
		.job = "tensors",
		.store = a->store,
		.socket = a->socket,
		.rank = k->rank,
		.world = a->world,
		.guard = CKPT_NEVER,
	};
	void *mem;
	ckpt *c;

	if (ckpt_attach(&opts, &c, &e) < 0 || ckpt_fresh(c) < 0 ||
	    ckpt_alloc(c, (uint64_t)a->tensors * ELEMENTS * sizeof(float), &mem, &e) < 0)
		die("%s", e.msg);
	if (met(a))
		a->anon = daemon_anon(a->daemon);
	declare(c, a, mem);
	if (met(a)) {
		a->cpu = daemon_cpu(a->daemon);
		say("seal_begin", now_ns());
	}
	(void)met(a);
	if (ckpt_seal(c, WAIT, &e))
		die("seal: %s", e.msg);
	if (met(a)) {
		say("seal_end", now_ns());
		say("seal_cpu", daemon_cpu(a->daemon) - a->cpu);
		usleep(200000);
		say("sealed_heap", daemon_anon(a->daemon) - a->anon);
	}
	steps(k, c);
	if (met(a))
		say("heap", daemon_anon(a->daemon) - a->anon);
	(void)met(a);
	(void)ckpt_detach(c, 0);
	return NULL;
}

void bench_tensors(const char *socket, const char *store, uint32_t tensors, uint32_t world,
		   uint32_t steps_, pid_t daemon)
{
	struct all a = { .socket = socket,
			 .store = store,
			 .tensors = tensors,
			 .world = world,
			 .steps = steps_,
			 .daemon = daemon };
	struct one *k = calloc(world, sizeof *k);

	if (!k || pthread_barrier_init(&a.barrier, NULL, world))
		die("no memory");
	for (uint32_t r = 0; r < world; r++) {
		k[r] = (struct one){ .a = &a, .rank = r };
		if (pthread_create(&k[r].thread, NULL, run, &k[r]))
			die("no thread");
	}
	for (uint32_t r = 0; r < world; r++)
		(void)pthread_join(k[r].thread, NULL);
	free(k);
}
