// SPDX-License-Identifier: Apache-2.0
// fake_queue.c - operations: what they wait for, in which order the threads of queues carry them
// out, and how fast. See fake_impl.h. Invariant: an operation is carried out once, behind all that
// it waits for; what tests hold, in the order that they ask for.
#include "tests/fakecuda/fake_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define SLICE ((size_t)64 << 10)
#define DELAY_US 300

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* Of the lock. */
static uint64_t delay_draw(void)
{
	if (!fake.seed)
		return 0;
	fake.seed ^= fake.seed << 13;
	fake.seed ^= fake.seed >> 7;
	fake.seed ^= fake.seed << 17;
	return fake.seed % 4 ? 0 : fake.seed / 4 % (DELAY_US * 1000);
}

void op_unref(struct op *o)
{
	if (!o || --o->refs)
		return;
	free(o->work.param);
	free(o->dep);
	free(o);
}

/* A race with the program is what this is here to show, so ThreadSanitizer does not look. */
__attribute__((no_sanitize("thread"), no_sanitize("address"))) static void
bytes_copy(uint8_t *to, const uint8_t *from, size_t n)
{
	volatile uint8_t *t = to;
	const volatile uint8_t *f = from;

	if (((uintptr_t)to | (uintptr_t)from) % 8 == 0)
		for (; n >= 8; n -= 8, t += 8, f += 8)
			*(volatile uint64_t *)(volatile void *)t =
				*(const volatile uint64_t *)(const volatile void *)f;
	while (n--)
		*t++ = *f++;
}

static bool op_ready(const struct op *o)
{
	for (unsigned i = 0; i < o->ndep; i++)
		if (!o->dep[i]->done)
			return false;
	return true;
}

/* What was held goes on in the order of its turns: the head of a queue has one, if it is ready. */
enum turn { TURN_OTHERS, TURN_NOW, TURN_LATER, TURN_NONE };

static enum turn queue_turn(const struct queue *q)
{
	const struct op *o = q->head;

	if (!o || !op_ready(o))
		return TURN_NONE;
	if (!o->held)
		return TURN_OTHERS;
	return (o->work.kind == OP_COPY) == fake.kernels_first ? TURN_LATER : TURN_NOW;
}

/* Of the lock; q's head is ready. A context that has failed waits for nothing. */
static bool turn_has_come(const struct queue *q)
{
	if (!q->head->held || q->head->work.ctx->sticky)
		return true;
	if (fake.hold)
		return false;
	for (int i = 0; i < fake.ndevice; i++)
		for (const struct CUstream_st *s = fake.ctx[i].stream; s; s = s->next)
			if (queue_turn(s->queue) < queue_turn(q))
				return false;
	return true;
}

/* (lock) */
static void pause_here(const struct CUctx_st *ctx)
{
	while (fake.moved >= fake.pause_at && !ctx->sticky) {
		fake.paused = true;
		pthread_cond_wait(&fake.change, &fake.lock);
	}
}

static void copy_run(const struct copy *c, struct CUctx_st *ctx)
{
	uint64_t start = clock_ns(), sent = 0;

	for (size_t y = 0; y < c->height; y++)
		for (size_t x = 0; x < c->width; x += SLICE) {
			size_t n = c->width - x < SLICE ? c->width - x : SLICE;
			double gbps;
			uint64_t until, now;
			bool dead;

			bytes_copy(c->to + y * c->to_pitch + x, c->from + y * c->from_pitch + x, n);
			if (c->orphan)
				orphan_copied(c->to + y * c->to_pitch + x, n, c->orphan, ctx);
			sent += n;
			pthread_mutex_lock(&fake.lock);
			fake.moved += c->within ? 0 : n;
			if (!c->within)
				pause_here(ctx);
			gbps = fake.gbps;
			dead = ctx->sticky;
			pthread_mutex_unlock(&fake.lock);
			if (dead)
				return;
			if (gbps <= 0)
				continue;
			until = start + (uint64_t)((double)sent / gbps);
			now = clock_ns();
			if (until > now)
				sleep_ns(until - now);
		}
}

static void work_run(const struct work *w)
{
	switch (w->kind) {
	case OP_NONE:
	case OP_WRITE: /* with its end: who sees the word sees that nothing is queued before it */
		break;
	case OP_COPY:
		copy_run(&w->copy, w->ctx);
		break;
	case OP_HOST:
		w->host(w->arg);
		break;
	case OP_KERNEL:
		kernel_run(w);
	}
}

static void *queue_run(void *arg)
{
	struct queue *q = arg;
	struct op *o;
	uint64_t delay;
	bool run;

	pthread_mutex_lock(&fake.lock);
	for (;;) {
		while (!(o = q->head) && !q->closing)
			pthread_cond_wait(&fake.change, &fake.lock);
		if (!o)
			break;
		while (!op_ready(o) || !turn_has_come(q))
			pthread_cond_wait(&fake.change, &fake.lock);
		delay = delay_draw();
		pthread_mutex_unlock(&fake.lock);
		if (delay)
			sleep_ns(delay);
		pthread_mutex_lock(&fake.lock);
		/* What is queued in a context that has failed is dropped. */
		run = o->work.kind != OP_NONE && !o->work.ctx->sticky;
		if (run)
			o->work.ctx->copies += o->work.kind == OP_COPY;
		pthread_mutex_unlock(&fake.lock);
		if (run)
			work_run(&o->work);
		pthread_mutex_lock(&fake.lock);
		if (run)
			o->work.ctx->copies -= o->work.kind == OP_COPY;
		if (run && o->work.kind == OP_WRITE)
			atomic_store_explicit(o->work.at, o->work.value, memory_order_release);
		o->done = true;
		q->head = o->next;
		if (!q->head)
			q->tail = &q->head;
		fake.queued--;
		for (unsigned i = 0; i < o->ndep; i++)
			op_unref(o->dep[i]);
		o->ndep = 0;
		op_unref(o);
		pthread_cond_broadcast(&fake.change);
	}
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

bool queue_start(struct queue *q)
{
	q->tail = &q->head;
	return pthread_create(&q->thread, NULL, queue_run, q) == 0;
}

void op_wait(const struct op *o)
{
	while (!o->done)
		pthread_cond_wait(&fake.change, &fake.lock);
}

static void dep_add(struct op *o, struct op *on)
{
	if (!on || on->done)
		return;
	o->dep = realloc(o->dep, (o->ndep + 1) * sizeof(struct op *));
	if (!o->dep)
		abort();
	on->refs++;
	o->dep[o->ndep++] = on;
}

struct op *op_add(struct CUstream_st *s, const struct work *w, struct op *after)
{
	struct op *o = calloc(1, sizeof *o);
	struct queue *q = s->queue;

	if (!o)
		abort();
	o->work = *w;
	o->held = fake.hold && (w->kind == OP_HOST || w->kind == OP_KERNEL ||
				(w->kind == OP_COPY && !w->copy.within));
	o->refs = 2; /* the queue's, and the stream's `last` */
	dep_add(o, s->last);
	dep_add(o, after);
	if (s->legacy)
		for (struct CUstream_st *x = s->ctx->stream; x; x = x->next)
			if (x->blocking)
				dep_add(o, x->last);
	if (s->blocking)
		dep_add(o, s->ctx->stream->last);
	op_unref(s->last);
	s->last = o;
	*q->tail = o;
	q->tail = &o->next;
	fake.queued++;
	pthread_cond_broadcast(&fake.change);
	return o;
}
