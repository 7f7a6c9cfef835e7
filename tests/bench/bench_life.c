/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_life.c - see bench_life.h. Called by bench_main.c. Invariant: this process starts no thread
 * before it has forked; times are of the clock that all processes share.
 */
#include "bench_life.h"
#include "bench_proc.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 16u
#define LOOK_MS 2 /* between two looks at the memory */
#define COPIES 5u
#define WAIT_NS (120 * NS_PER_S)

/* What a life tells the process that started it. */
struct news {
	uint64_t stepped_ns, restored; /* the first: by the clock; the second: how long */
	bool staged;
};

struct life {
	struct job_opts opts;
	uint64_t step; /* that it takes */
	int out;
	pthread_barrier_t barrier;
	uint64_t begin, end[RANKS_MAX];
};

struct life_rank {
	struct life *l;
	uint32_t rank;
};

static void tell(const struct life *l, const struct news *n)
{
	if (write(l->out, n, sizeof *n) != sizeof *n)
		_exit(1);
}

static void go_on(struct life *l, uint32_t rank, struct job_rank *r)
{
	struct ckpt_want want = { .size = sizeof want,
				  .flags = CKPT_FROM_MEMORY,
				  .step = CKPT_LATEST };
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err e = { 0 };

	if (pthread_barrier_wait(&l->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		l->begin = now_ns();
	pthread_barrier_wait(&l->barrier);
	if (ckpt_restore(r->c, &want, &got, &e) < 0)
		die("%s", e.msg);
	l->end[rank] = now_ns();
	if (got.step != l->step - 1 || got.where == 2)
		die("restored step %" PRIu64 " from place %u", got.step, got.where);
}

static void *live(void *arg)
{
	const struct life_rank *m = arg;
	struct life *l = m->l;
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	struct news news = { 0 };
	struct job_rank r;
	int rc;

	job_open(&l->opts, m->rank, &r);
	job_seal(&r);
	if (l->opts.resume)
		go_on(l, m->rank, &r);
	else
		job_update(&r, 1); /* as every life after it restores it */
	pthread_barrier_wait(&l->barrier);
	if (l->opts.resume && m->rank == 0) {
		for (uint32_t i = 0; i < l->opts.world; i++)
			news.restored = MAX(news.restored, l->end[i] - l->begin);
	}
	rc = ckpt_snapshot(r.c, l->step, &mark);
	if (rc != 0)
		die("step %" PRIu64 " was not taken: %d", l->step, rc);
	pthread_barrier_wait(&l->barrier);
	news.stepped_ns = now_ns();
	if (m->rank == 0)
		tell(l, &news);
	if (ckpt_wait(r.c, l->step, CKPT_STAGED, WAIT_NS, NULL) < 0 || ckpt_guard(r.c, NULL) != 0)
		die("step %" PRIu64 " was not staged", l->step);
	if (l->opts.resume)
		job_check_update(&r, 1);
	news.staged = true;
	pthread_barrier_wait(&l->barrier);
	if (m->rank == 0)
		tell(l, &news);
	for (;;)
		pause();
}

static pid_t life_begin(const struct job_opts *o, uint64_t step, int *ret_news)
{
	static struct life l;
	static struct life_rank m[RANKS_MAX];
	pthread_t thread;
	int fd[2];
	pid_t pid;

	if (pipe(fd) < 0)
		die("no pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		die("no process: %s", strerror(errno));
	if (pid) {
		close(fd[1]);
		*ret_news = fd[0];
		return pid;
	}
	l.opts = *o;
	l.opts.resume = step > 1;
	l.step = step;
	l.out = fd[1];
	pthread_barrier_init(&l.barrier, NULL, o->world);
	for (uint32_t i = 0; i < o->world; i++) {
		m[i] = (struct life_rank){ &l, i };
		if (pthread_create(&thread, NULL, live, &m[i]))
			die("cannot start a thread");
	}
	for (;;)
		pause();
}

/* Waits for the next news, and meanwhile looks how much memory there is. */
static struct news wait_for(int fd, pid_t job, pid_t daemon, uint64_t *most)
{
	const pid_t both[2] = { job, daemon };
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct news n;

	while (poll(&p, 1, LOOK_MS) == 0)
		*most = MAX(*most, proc_memory(both, 2));
	if (read(fd, &n, sizeof n) != sizeof n)
		die("the job has ended");
	*most = MAX(*most, proc_memory(both, 2));
	return n;
}

static uint64_t copy_best(uint64_t bytes)
{
	uint8_t *from = pages_new(bytes), *to = pages_new(bytes);
	uint64_t best = UINT64_MAX;

	if (!from || !to)
		die("no memory for %" PRIu64 " bytes", 2 * bytes);
	memset(from, 1, bytes);
	memset(to, 1, bytes);
	for (uint32_t i = 0; i < COPIES; i++) {
		uint64_t t = now_ns();

		if (i % 2)
			copy_stream(to, from, bytes);
		else
			memcpy(to, from, bytes);
		__asm__ volatile("" : : "r"(to) : "memory");
		best = MIN(best, now_ns() - t);
	}
	pages_free(from, bytes);
	pages_free(to, bytes);
	return best;
}

void bench_life(const struct job_opts *o, uint32_t restarts, uint64_t rest_ns, pid_t daemon)
{
	uint64_t begin, memory = 0, memory_restart = 0;
	const struct timespec rest = { (time_t)(rest_ns / NS_PER_S), (long)(rest_ns % NS_PER_S) };
	struct news n;
	pid_t pid;
	int fd;

	if (!o->world || o->world > RANKS_MAX)
		die("1 to %u ranks", RANKS_MAX);
	say("bytes", o->bytes);
	say("copy_best", copy_best(o->bytes));
	begin = now_ns();
	for (uint64_t step = 1; step <= restarts + 1; step++) {
		pid = life_begin(o, step, &fd);
		n = wait_for(fd, pid, daemon, step > 1 ? &memory_restart : &memory);
		say(step > 1 ? "restart" : "fresh", n.stepped_ns - begin);
		if (step > 1)
			say("restored", n.restored);
		while (!n.staged)
			n = wait_for(fd, pid, daemon, &memory);
		nanosleep(&rest, NULL);
		begin = now_ns();
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		close(fd);
	}
	say("memory", memory);
	say("memory_restart", memory_restart);
}
