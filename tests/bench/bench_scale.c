/* SPDX-License-Identifier: Apache-2.0 */
/* bench_scale.c - see bench_scale.h. Called by bench_main.c. Invariant: what a rank times is done
 * by no other rank at the same time: declaring is timed in processor time, snapshots one rank after
 * the other. */
#include "bench_scale.h"
#include "bench_job.h"
#include "bench_proc.h"
#include "ckpt/base/util.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define ELEMENTS 64u /* of a tensor, on each rank */
#define RANKS_MAX 64u
#define WAIT_NS (600 * NS_PER_S)

struct scale {
	const char *socket, *store;
	uint32_t tensors, ranks, rounds, averages;
	pid_t daemon;
	pthread_barrier_t barrier;
	pthread_mutex_t turn;
	uint64_t anon, owner, cpu, sealing, sealed[RANKS_MAX];
};

struct scale_rank {
	struct scale *s;
	uint32_t rank;
};

static uint64_t thread_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void declare(ckpt *c, const struct scale *s, uint32_t mesh, float *mem)
{
	struct ckpt_placement shard = { .how = CKPT_SHARD };
	uint64_t shape = (uint64_t)ELEMENTS * s->ranks;
	struct ckpt_err e = { 0 };

	for (uint32_t i = 0; i < s->tensors; i++) {
		struct ckpt_local local = { .ptr = mem + (uint64_t)ELEMENTS * i };
		char name[64];
		uint32_t id;

		snprintf(name, sizeof name, "layers.%u.mlp.experts.%u.weight", i / 128, i % 128);
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

static uint64_t owner_ns(const struct scale *s)
{
	return proc_threads(s->daemon, "ckptd").cpu_ns;
}

static void seal(struct scale *s, uint32_t rank, ckpt *c)
{
	struct ckpt_err e = { 0 };
	uint64_t end = 0;

	if (pthread_barrier_wait(&s->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
		s->owner = owner_ns(s);
		s->cpu = proc_cpu_ns(s->daemon);
		s->sealing = now_ns();
	}
	pthread_barrier_wait(&s->barrier);
	if (ckpt_seal(c, WAIT_NS, &e) != 0)
		die("seal: %s", e.msg);
	s->sealed[rank] = now_ns();
	if (pthread_barrier_wait(&s->barrier) != PTHREAD_BARRIER_SERIAL_THREAD)
		return;
	for (uint32_t i = 0; i < s->ranks; i++)
		end = MAX(end, s->sealed[i]);
	say("seal", end - s->sealing);
	say("seal_cpu", proc_cpu_ns(s->daemon) - s->cpu);
	say("seal_owner", owner_ns(s) - s->owner);
}

static void save(struct scale *s, uint32_t rank, ckpt *c, uint64_t step)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };
	struct ckpt_stats is = { .size = sizeof is };
	struct ckpt_err e = { 0 };
	uint64_t t;
	int rc;

	if (pthread_barrier_wait(&s->barrier) == PTHREAD_BARRIER_SERIAL_THREAD && step == 2)
		s->cpu = proc_cpu_ns(s->daemon);
	pthread_barrier_wait(&s->barrier);
	pthread_mutex_lock(&s->turn);
	t = now_ns();
	rc = ckpt_snapshot(c, step, &mark);
	t = now_ns() - t;
	pthread_mutex_unlock(&s->turn);
	if (rc != 0)
		die("step %" PRIu64 " was not taken: %d", step, rc);
	if (ckpt_wait(c, step, CKPT_COMMITTED, WAIT_NS, &e) < 0)
		die("step %" PRIu64 ": %s", step, e.msg);
	if (ckpt_guard(c, NULL) != 0 || ckpt_stats(c, &is) < 0)
		die("step %" PRIu64 " is torn", step);
	if (step == 1) /* the first one touches everything */
		return;
	pthread_mutex_lock(&s->turn);
	say("snapshot", t);
	if (rank == 0) {
		say("parts", is.persisted_ns - is.staged_ns);
		say("commit", is.committed_ns - is.persisted_ns);
	}
	pthread_mutex_unlock(&s->turn);
}

static void *scale_run(void *arg)
{
	static const char *const name[] = { "fsdp" };
	const struct scale_rank *m = arg;
	struct scale *s = m->s;
	struct ckpt_opts o = { .size = sizeof o,
			       .flags = CKPT_REQUIRE,
			       .job = "scale",
			       .store = s->store,
			       .socket = s->socket,
			       .rank = m->rank,
			       .world = s->ranks };
	uint64_t bytes = (uint64_t)s->tensors * ELEMENTS * sizeof(float), t;
	struct ckpt_err e = { 0 };
	uint32_t mesh;
	void *mem;
	ckpt *c;

	if (ckpt_attach(&o, &c, &e) < 0 || ckpt_fresh(c) < 0 ||
	    ckpt_mesh(c, 1, name, &s->ranks, NULL, &mesh, &e) < 0 ||
	    ckpt_alloc(c, bytes, &mem, &e) < 0)
		die("%s", e.msg);
	memset(mem, 0x5a, bytes);
	if (pthread_barrier_wait(&s->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		s->anon = proc_anon(s->daemon);
	t = thread_cpu_ns();
	declare(c, s, mesh, mem);
	t = thread_cpu_ns() - t;
	pthread_mutex_lock(&s->turn);
	say("declare", t);
	pthread_mutex_unlock(&s->turn);
	job_averages(c, s->averages);
	seal(s, m->rank, c);
	for (uint64_t step = 1; step <= s->rounds + 1; step++)
		save(s, m->rank, c, step);
	if (pthread_barrier_wait(&s->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
		uint64_t anon = proc_anon(s->daemon);

		say("step_cpu", (proc_cpu_ns(s->daemon) - s->cpu) / s->rounds);
		say("heap", (anon > s->anon ? anon - s->anon : 0) / s->tensors / s->ranks);
	}
	pthread_barrier_wait(&s->barrier);
	ckpt_detach(c, 0);
	return NULL;
}

void bench_scale(const char *socket, const char *store, uint32_t tensors, uint32_t ranks,
		 uint32_t rounds, pid_t daemon, uint32_t averages)
{
	struct scale s = { .socket = socket,
			   .store = store,
			   .tensors = tensors,
			   .ranks = ranks,
			   .rounds = rounds,
			   .averages = averages,
			   .daemon = daemon };
	struct scale_rank m[RANKS_MAX];
	pthread_t thread[RANKS_MAX];

	if (!ranks || ranks > RANKS_MAX || !tensors)
		die("1 to %u ranks", RANKS_MAX);
	pthread_barrier_init(&s.barrier, NULL, ranks);
	pthread_mutex_init(&s.turn, NULL);
	for (uint32_t i = 0; i < ranks; i++) {
		m[i] = (struct scale_rank){ &s, i };
		if (pthread_create(&thread[i], NULL, scale_run, &m[i]))
			die("cannot start a thread");
	}
	for (uint32_t i = 0; i < ranks; i++)
		pthread_join(thread[i], NULL);
	pthread_mutex_destroy(&s.turn);
	pthread_barrier_destroy(&s.barrier);
}
