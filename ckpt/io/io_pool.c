/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_pool.c - the engine without io_uring: threads that carry one transfer each through the table,
 * at equal speed for blocks of megabytes. Also what the sanitizers and fault tests see through. A
 * transfer belongs to the owner, then through `asked` to one thread, then through `done` to the
 * owner again. A thread is started when more transfers are in flight than there are threads.
 */
#include "ckpt/io/io_engine.h"
#include <stdio.h>
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"

#define POOL_THREADS_MAX 8 /* saturates a device at 8 MiB blocks; more only cost memory */

struct pool {
	const struct io_ops *ops;
	struct queue asked, done;
	pthread_t thread[POOL_THREADS_MAX];
	uint32_t nthread, nthread_max; /* of the owner */
};

static void *pool_run(void *arg)
{
	struct pool *p = arg;
	struct io_xfer *x;

	while ((x = queue_pop(&p->asked))) {
		io_xfer_run(x, p->ops);
		(void)queue_push(&p->done, x);
	}
	return NULL;
}

static int pool_grow(struct pool *p)
{
	char name[16];
	int rc;

	(void)snprintf(name, sizeof(name), "ckpt-io-%u", p->nthread);
	rc = thread_start(&p->thread[p->nthread], name, true, pool_run, p);
	if (rc == 0)
		p->nthread++;
	return rc;
}

static bool pool_start(struct io_queue *q, struct io_xfer *x)
{
	struct pool *p = q->state;
	bool pushed = queue_push(&p->asked, x);

	assert(pushed);
	/* One that cannot be started now is missed, and nothing else is. */
	if (q->in_flight > p->nthread && p->nthread < p->nthread_max && pool_grow(p))
		p->nthread_max = p->nthread;
	return false;
}

static struct io_xfer *pool_wait(struct io_queue *q)
{
	struct pool *p = q->state;

	return queue_pop(&p->done);
}

static void pool_close(struct io_queue *q)
{
	struct pool *p = q->state;

	queue_close(&p->asked);
	for (uint32_t i = 0; i < p->nthread; i++)
		(void)pthread_join(p->thread[i], NULL);
	queue_destroy(&p->asked);
	queue_destroy(&p->done);
	free(TAKE(q->state));
}

static const struct io_engine_ops pool_ops = {
	.start = pool_start,
	.wait = pool_wait,
	.close = pool_close,
};

static int queues_init(struct pool *p, uint32_t depth)
{
	int rc = queue_init(&p->asked, depth);

	if (rc)
		return rc;
	rc = queue_init(&p->done, depth);
	if (rc)
		queue_destroy(&p->asked);
	return rc;
}

int io_pool_open(struct io_queue *q)
{
	struct pool *p = calloc(1, sizeof(*p));
	int rc = p ? queues_init(p, q->depth) : -ENOMEM;

	if (rc) {
		io_why(q, "threads: %s", strerror(-rc));
		free(p);
		return rc;
	}
	p->ops = q->ops;
	q->state = p;
	p->nthread_max = MIN(q->depth, (uint32_t)POOL_THREADS_MAX);
	rc = pool_grow(p);
	if (rc) {
		io_why(q, "threads: none could be started: %s", strerror(-rc));
		pool_close(q);
		return rc;
	}
	q->engine = &pool_ops;
	q->kind = IO_THREADS;
	io_why(q, "threads (%u)", p->nthread_max);
	return 0;
}
