/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_queue.c - the queue that the mover and the store's writers use, whatever engine is behind it,
 * and the choice of the engine. Invariant: in_flight == depth - nidle, and every transfer that is
 * not idle has a request.
 */
#include "ckpt/io/io_engine.h"
#include <stdarg.h>
#include <stdio.h>
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#endif

void io_why(struct io_queue *q, const char *fmt, ...)
{
	size_t used = strlen(q->why);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(q->why + used, sizeof(q->why) - used, fmt, ap);
	va_end(ap);
}

static bool inline_start(struct io_queue *q, struct io_xfer *x)
{
	io_xfer_run(x, q->ops);
	return true;
}

static struct io_xfer *inline_wait(struct io_queue *q)
{
	assert(q->kind != IO_INLINE); /* its transfers end in io_submit */
	return NULL;
}

static void inline_close(struct io_queue *q)
{
	(void)q;
}

static const struct io_engine_ops inline_ops = {
	.start = inline_start,
	.wait = inline_wait,
	.close = inline_close,
};

static int inline_open(struct io_queue *q)
{
	q->engine = &inline_ops;
	q->kind = IO_INLINE;
	io_why(q, "inline");
	return 0;
}

/*
 * A ring does not call the table, so a table that is not the kernel's (a test's) must not be
 * bypassed.
 */
static bool kernels_table(const struct io_queue *q)
{
	return q->ops->pread == io_ops_posix.pread && q->ops->pwrite == io_ops_posix.pwrite;
}

static int ring_open(struct io_queue *q)
{
	if (!kernels_table(q)) {
		io_why(q, "io_uring would bypass the replaced table of system calls");
		return -EINVAL;
	}
	return io_ring_open(q);
}

static int auto_open(struct io_queue *q)
{
	char ring_why[IO_WHY_BYTES];
	int rc = ring_open(q);

	if (rc == 0)
		return 0;
	memcpy(ring_why, q->why, sizeof(ring_why));
	q->why[0] = '\0';
	rc = io_pool_open(q);
	io_why(q, "; %s", ring_why);
	return rc;
}

static int engine_open(struct io_queue *q, enum io_engine engine)
{
	switch (engine) {
	case IO_AUTO:
		return auto_open(q);
	case IO_URING:
		return ring_open(q);
	case IO_THREADS:
		return io_pool_open(q);
	case IO_INLINE:
		return inline_open(q);
	}
	io_why(q, "%d is no engine", (int)engine);
	return -EINVAL;
}

static void queue_free(struct io_queue *q)
{
	if (!q)
		return;
	free(q->xfer);
	free(q->idle);
	free(q->ready);
	free(q);
}

static struct io_queue *queue_new(const struct io_ops *ops, uint32_t depth)
{
	struct io_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->ops = ops;
	q->depth = q->nidle = depth;
	q->owner = pthread_self();
	q->xfer = calloc(depth, sizeof(*q->xfer));
	q->idle = calloc(depth, sizeof(*q->idle));
	q->ready = calloc(depth, sizeof(*q->ready));
	if (!q->xfer || !q->idle || !q->ready) {
		queue_free(q);
		return NULL;
	}
	for (uint32_t i = 0; i < depth; i++)
		q->idle[i] = &q->xfer[i];
	io_windows_init(&q->windows);
	return q;
}

int io_queue_open(const struct io_ops *ops, enum io_engine engine, uint32_t depth,
		  struct io_queue **ret, struct ckpt_err *err)
{
	struct io_queue *q;
	int rc;

	*ret = NULL;
	if (depth == 0 || depth > IO_DEPTH_MAX)
		return ckpt_error(err, -EINVAL, "I/O queue: a depth of %u is not in 1..%u; use 8",
				  depth, (unsigned)IO_DEPTH_MAX);
	q = queue_new(ops, depth);
	if (!q)
		return ckpt_error(err, -ENOMEM, "I/O queue: no memory for %u requests", depth);
	rc = engine_open(q, engine);
	if (rc) {
		(void)ckpt_error(err, rc, "I/O queue: %s; try the automatic choice of engine",
				 q->why);
		queue_free(q);
		return rc;
	}
	*ret = q;
	return 0;
}

enum io_engine io_queue_engine(const struct io_queue *q)
{
	return q->kind;
}

const char *io_queue_why(const struct io_queue *q)
{
	return q->why;
}

uint32_t io_in_flight(const struct io_queue *q)
{
	return q->in_flight;
}

/*
 * The sanitizers do not see what the kernel does for a ring, so the whole buffer is looked at
 * before.
 */
static void buffer_check(const struct io_req *r)
{
#ifdef WITH_ASAN
	assert(r->len == 0 || !__asan_region_is_poisoned(r->buf, (size_t)r->len));
#else
	(void)r;
#endif
}

int io_submit(struct io_queue *q, struct io_req *r)
{
	struct io_xfer *x;

	assert(pthread_equal(q->owner, pthread_self()));
	if (q->nidle == 0)
		return -EAGAIN;
	buffer_check(r);
	x = q->idle[--q->nidle];
	q->in_flight++;
	if (!io_xfer_begin(x, r) || q->engine->start(q, x))
		q->ready[(q->ready_head + q->nready++) % q->depth] = x;
	return 0;
}

/* A buffered write is over: let the disk have it. A test's table is told nothing of that. */
static void write_flush(struct io_queue *q, const struct io_xfer *x)
{
	struct io_req *r = x->req;
	int rc;

	if (!r->write || r->res <= 0 || x->direct || !kernels_table(q))
		return;
	rc = io_windows_wrote(&q->windows, r->fd, r->off, r->len);
	if (rc < 0)
		r->res = rc;
}

struct io_req *io_reap(struct io_queue *q)
{
	struct io_xfer *x;

	assert(pthread_equal(q->owner, pthread_self()));
	if (q->in_flight == 0)
		return NULL;
	if (q->nready > 0) {
		x = q->ready[q->ready_head];
		q->ready_head = (q->ready_head + 1) % q->depth;
		q->nready--;
	} else {
		x = q->engine->wait(q);
	}
	q->in_flight--;
	q->idle[q->nidle++] = x;
	write_flush(q, x);
	return TAKE(x->req);
}

void io_queue_close(struct io_queue *q)
{
	if (!q)
		return;
	q->windows.off = true; /* nobody is left to be told what waiting for them says */
	while (io_reap(q))
		;
	q->engine->close(q);
	queue_free(q);
}
