/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - starts the house's threads and carries pointers between them.
 * Invariant: no thread of ours ever takes a signal of the process that hosts it.
 */
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include <sched.h>
#include <signal.h>

struct start {
	void *(*run)(void *);
	void *arg;
	bool batch;
	char name[16];
};

static void *thread_main(void *arg)
{
	struct start s = *(struct start *)arg;

	free(arg);
	(void)pthread_setname_np(pthread_self(), s.name);
	/* A sandbox may refuse this. The thread then runs all the same, only less politely. */
	if (s.batch)
		(void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 });
	return s.run(s.arg);
}

int thread_start(pthread_t *ret_thread, const char *name, bool batch, void *(*run)(void *),
		 void *arg)
{
	cleanup_free struct start *s = malloc(sizeof *s);
	sigset_t all, old;
	int r;

	if (!s)
		return -ENOMEM;
	*s = (struct start){ .run = run, .arg = arg, .batch = batch };
	assert(strlen(name) < sizeof s->name);
	strcpy(s->name, name);
	sigfillset(&all);
	r = pthread_sigmask(SIG_SETMASK, &all, &old);
	if (r)
		return -r;
	r = pthread_create(ret_thread, NULL, thread_main, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return -r;
	(void)TAKE(s);
	return 0;
}

int queue_init(struct queue *q, uint32_t cap)
{
	assert(cap > 0);
	*q = (struct queue){ .cap = cap };
	q->item = calloc(cap, sizeof *q->item);
	if (!q->item)
		return -ENOMEM;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->filled, NULL);
	pthread_cond_init(&q->drained, NULL);
	return 0;
}

void queue_destroy(struct queue *q)
{
	if (!q->item)
		return;
	pthread_cond_destroy(&q->drained);
	pthread_cond_destroy(&q->filled);
	pthread_mutex_destroy(&q->lock);
	free(TAKE(q->item));
}

static bool queue_put(struct queue *q, void *item) /* with the lock held */
{
	if (q->closed || q->n == q->cap)
		return false;
	q->item[((uint64_t)q->head + q->n) % q->cap] = item;
	q->n++;
	pthread_cond_signal(&q->filled);
	return true;
}

static void *queue_take(struct queue *q) /* with the lock held */
{
	void *item;

	if (!q->n)
		return NULL;
	item = q->item[q->head];
	q->head = (uint32_t)(((uint64_t)q->head + 1) % q->cap);
	q->n--;
	pthread_cond_signal(&q->drained);
	return item;
}

bool queue_push(struct queue *q, void *item)
{
	bool done;

	assert(item);
	pthread_mutex_lock(&q->lock);
	while (!q->closed && q->n == q->cap)
		pthread_cond_wait(&q->drained, &q->lock);
	done = queue_put(q, item);
	pthread_mutex_unlock(&q->lock);
	return done;
}

bool queue_try_push(struct queue *q, void *item)
{
	bool done;

	assert(item);
	pthread_mutex_lock(&q->lock);
	done = queue_put(q, item);
	pthread_mutex_unlock(&q->lock);
	return done;
}

void *queue_pop(struct queue *q)
{
	void *item;

	pthread_mutex_lock(&q->lock);
	while (!q->closed && !q->n)
		pthread_cond_wait(&q->filled, &q->lock);
	item = queue_take(q);
	pthread_mutex_unlock(&q->lock);
	return item;
}

void *queue_try_pop(struct queue *q)
{
	void *item;

	pthread_mutex_lock(&q->lock);
	item = queue_take(q);
	pthread_mutex_unlock(&q->lock);
	return item;
}

void queue_close(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->closed = true;
	pthread_cond_broadcast(&q->filled);
	pthread_cond_broadcast(&q->drained);
	pthread_mutex_unlock(&q->lock);
}
