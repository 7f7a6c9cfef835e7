/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_ring.c - the io_uring engine: one ring per queue, plain reads and writes straight from the
 * caller's memory. No SQPOLL (a core for nothing) and no IOPOLL (needs polled devices); no fsync in
 * the ring, for it would not cover writes that are still in flight. Invariant: every transfer of
 * the engine is either a prepared entry of the submission queue or the kernel's, so the queue's
 * depth bounds both rings and neither overflows.
 */
#include "ckpt/io/io_engine.h"
#include <stdatomic.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include "ckpt/base/util.h"

#define BUFFERED_INLINE_MAX \
	4 /* beyond, a buffered copy goes to a worker: inline they would be serial */
#define ENTER_RETRIES_MAX \
	1000 /* of 1 ms: the kernel has no memory for requests and none is under way */

struct ring {
	struct io_uring ring;
	uint32_t retries;
	int dead; /* the ring takes no requests any more, and why */
};

/* Newest first; -EINVAL means that this kernel does not know one of the flags. */
static const struct {
	uint32_t flags;
	const char *name;
} rungs[] = {
	{ IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN |
		  IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CLAMP,
	  "deferred task work" },
	{ IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CLAMP,
	  "cooperative task work: kernel before 6.1" },
	{ IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CLAMP, "plain: kernel before 5.19" },
	{ IORING_SETUP_CLAMP, "plain: kernel before 5.18" },
	{ 0, "plain: kernel before 5.6" },
};

static void sqe_prepare(struct io_queue *q, struct io_xfer *x)
{
	struct ring *e = q->state;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
	struct io_span s = io_xfer_next(x);

	assert(sqe);
	if (x->req->write)
		io_uring_prep_write(sqe, x->req->fd, s.buf, (unsigned)s.len, s.off);
	else
		io_uring_prep_read(sqe, x->req->fd, s.buf, (unsigned)s.len, s.off);
	if (q->in_flight > BUFFERED_INLINE_MAX && !x->direct)
		io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	io_uring_sqe_set_data(sqe, x);
}

/*
 * What is in the kernel's hands stays there until it says otherwise, and without io_uring_enter it
 * never will. An error other than these (a wrong thread, a filter installed after the ring) leaves
 * no way to give the memory back, so it stops the program.
 */
static void enter_check(int rc)
{
	assert(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
}

static bool ring_start(struct io_queue *q, struct io_xfer *x)
{
	struct ring *e = q->state;

	if (e->dead) {
		x->req->res = e->dead;
		return true;
	}
	sqe_prepare(q, x);
	enter_check(io_uring_submit(&e->ring)); /* what it leaves behind goes with the next wait */
	return false;
}

static struct io_xfer *cqe_pop(struct ring *e, int32_t *ret_res)
{
	struct io_uring_cqe *cqe;
	struct io_xfer *x;

	if (io_uring_peek_cqe(&e->ring, &cqe) != 0)
		return NULL;
	x = io_uring_cqe_get_data(cqe);
	*ret_res = cqe->res;
	io_uring_cqe_seen(&e->ring, cqe);
	return x;
}

/* Submit what is prepared and wait for a completion; it need not have brought one. */
static void ring_enter(struct io_queue *q)
{
	const struct timespec nap = { .tv_nsec = NS_PER_MS };
	struct ring *e = q->state;
	struct io_uring_cqe *cqe;
	int rc = io_uring_submit_and_wait(&e->ring, 1);

	enter_check(rc);
	if (rc != -EAGAIN && rc != -EBUSY) {
		e->retries = 0;
		return;
	}
	if (io_uring_sq_ready(&e->ring) < q->in_flight) {
		enter_check(io_uring_wait_cqe(&e->ring, &cqe));
	} else if (++e->retries > ENTER_RETRIES_MAX) {
		e->dead = rc;
	} else {
		(void)nanosleep(&nap, NULL);
	}
}

/* The ring died while nothing was in the kernel: hand its transfers back one by one. */
static struct io_xfer *fail_one(struct io_queue *q, int rc)
{
	struct io_xfer *x = q->xfer;

	while (!x->req)
		x++;
	x->req->res = rc;
	return x;
}

static struct io_xfer *ring_wait(struct io_queue *q)
{
	struct ring *e = q->state;
	struct io_xfer *x;
	int32_t res = 0;

	while (!e->dead) {
		while ((x = cqe_pop(e, &res))) {
			if (io_xfer_took(x, res))
				return x;
			sqe_prepare(q, x);
		}
		ring_enter(q);
	}
	return fail_one(q, e->dead);
}

/* The memory of a ring that was closed may be another thread's ring next. liburing maps and unmaps
 * it by system calls of its own, which ThreadSanitizer does not see: this is what it sees
 * instead. */
static void memory_passes(void)
{
#ifdef __SANITIZE_THREAD__
	static _Atomic uint32_t passed;

	atomic_fetch_add(&passed, 1);
#endif
}

static void ring_close(struct io_queue *q)
{
	struct ring *e = q->state;

	memory_passes();
	io_uring_queue_exit(&e->ring);
	free(TAKE(q->state));
}

static const struct io_engine_ops ring_ops = {
	.start = ring_start,
	.wait = ring_wait,
	.close = ring_close,
};

static bool sysctl_forbids(void)
{
	cleanup_close int fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
	char digit = '0';

	return fd >= 0 && read(fd, &digit, 1) == 1 && digit != '0';
}

static const char *setup_reason(int eno)
{
	if (eno == ENOSYS)
		return "this kernel or sandbox has no io_uring";
	if (eno == EPERM && sysctl_forbids())
		return "sysctl kernel.io_uring_disabled forbids it";
	if (eno == EPERM)
		return "a seccomp profile forbids it, as Docker's and containerd's do";
	if (eno == ENOMEM)
		return "no memory, or the locked-memory limit (ulimit -l) of a kernel before 5.12";
	if (eno == EMFILE || eno == ENFILE)
		return "no free file descriptor (ulimit -n)";
	return strerror(eno);
}

static int features_check(struct io_queue *q, struct ring *e)
{
	struct io_uring_probe *can;
	bool ops;

	if (!(e->ring.features & IORING_FEAT_NODROP) || !(e->ring.features & IORING_FEAT_EXT_ARG)) {
		io_why(q, "io_uring of this kernel is too old (before 5.11)");
		return -EOPNOTSUPP;
	}
	can = io_uring_get_probe_ring(&e->ring);
	ops = can && io_uring_opcode_supported(can, IORING_OP_READ) &&
	      io_uring_opcode_supported(can, IORING_OP_WRITE);
	io_uring_free_probe(can);
	if (!ops) {
		io_why(q, "io_uring here has no read or write");
		return -EOPNOTSUPP;
	}
	return 0;
}

static int ring_setup(struct io_queue *q, struct ring *e, const char **ret_rung)
{
	int rc = -EINVAL;

	for (size_t i = 0; i < ARRAY_LEN(rungs) && rc == -EINVAL; i++) {
		struct io_uring_params p = { .flags = rungs[i].flags };

		rc = io_uring_queue_init_params(q->depth, &e->ring, &p);
		*ret_rung = rungs[i].name;
	}
	if (rc) {
		io_why(q, "io_uring_setup: %s: %s", strerrorname_np(-rc), setup_reason(-rc));
		return rc;
	}
	rc = features_check(q, e);
	if (rc)
		io_uring_queue_exit(&e->ring);
	return rc;
}

int io_ring_open(struct io_queue *q)
{
	struct ring *e = calloc(1, sizeof(*e));
	const char *rung;
	int rc;

	if (!e) {
		io_why(q, "io_uring: no memory");
		return -ENOMEM;
	}
	rc = ring_setup(q, e, &rung);
	memory_passes();
	if (rc) {
		free(e);
		return rc;
	}
	(void)io_uring_register_ring_fd(&e->ring); /* 5.18; saves a lookup */
	(void)io_uring_ring_dontfork(&e->ring);
	q->engine = &ring_ops;
	q->state = e;
	q->kind = IO_URING;
	io_why(q, "io_uring (%s)", rung);
	return 0;
}
