/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_stream.c - keeps the disk busy with reads while workers check and scatter what has arrived.
 * Called by move_read and move_verify. Invariant: a buffer belongs to one of: nobody, the I/O
 * queue, the workers' queue or one worker, the queue of what is done. The calling thread alone
 * moves it out of the first, second and last.
 */
#include "ckpt/move/block_stream.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include <sched.h>
#include <sys/mman.h>

#define WORKERS_MAX 4
#define INLINE_BLOCKS 2 /* so few are done before threads would have started */
#define HUGE_PAGE (2u << 20)

struct slot {
	struct io_req req;
	uint8_t *buf;
	uint64_t block, skip; /* skip: bytes read before the block's first */
};

struct streaming {
	const struct stream *s;
	struct slot slot[MOVE_DEPTH + 2 * WORKERS_MAX];
	struct slot *idle[MOVE_DEPTH + 2 * WORKERS_MAX];
	uint32_t nslot, nidle;
	uint8_t *mem;
	size_t mem_bytes;
	bool *finished; /* [n] */
	uint64_t next_submit, next_done;
	struct queue asked, done;
	pthread_t worker[WORKERS_MAX];
	uint32_t nworker;
	struct io_queue *io;
	int code; /* what ended it early */
};

static void slot_work(struct streaming *r, struct slot *x)
{
	const struct stream_block *b = &r->s->block[x->block];

	r->s->work(r->s->ctx, x->block, b->got < 0 ? NULL : x->buf + x->skip);
}

static void *worker_main(void *arg)
{
	struct streaming *r = arg;
	struct slot *x;

	while ((x = queue_pop(&r->asked))) {
		slot_work(r, x);
		queue_push(&r->done, x);
	}
	return NULL;
}

static uint32_t workers_wanted(uint64_t blocks)
{
	cpu_set_t cpus;
	int n;

	if (blocks <= INLINE_BLOCKS)
		return 0;
	n = sched_getaffinity(0, sizeof cpus, &cpus) < 0 ? 1 : CPU_COUNT(&cpus);
	return MIN((uint32_t)n, (uint32_t)WORKERS_MAX);
}

static int workers_start(struct streaming *r)
{
	uint32_t want = workers_wanted(r->s->n);
	int e = queue_init(&r->asked, ARRAY_LEN(r->slot));

	if (e == 0)
		e = queue_init(&r->done, ARRAY_LEN(r->slot));
	if (e < 0)
		return e;
	/* Fewer threads than wanted only make it slower; without any the caller does the work. */
	while (r->nworker < want &&
	       thread_start(&r->worker[r->nworker], "ckpt-move", false, worker_main, r) == 0)
		r->nworker++;
	return 0;
}

static void workers_stop(struct streaming *r)
{
	if (r->asked.item)
		queue_close(&r->asked);
	for (uint32_t i = 0; i < r->nworker; i++)
		pthread_join(r->worker[i], NULL);
	queue_destroy(&r->asked);
	queue_destroy(&r->done);
}

/* Buffers for the largest block, all in one mapping on huge pages. */
static int slots_make(struct streaming *r)
{
	uint64_t align = MAX(r->s->files->align, 4096u), most = 0,
		 n = MOVE_DEPTH + MAX(2 * r->nworker, 1u);

	for (uint64_t i = 0; i < r->s->n; i++)
		most = MAX(most, r->s->block[i].len);
	if (most > STREAM_BLOCK_MAX)
		return -EFBIG;
	most = align_up(most, align) + align; /* widened at both ends */
	r->nslot = (uint32_t)MIN(n, r->s->n);
	r->mem_bytes = align_up(most * r->nslot, HUGE_PAGE);
	r->mem = mmap(NULL, r->mem_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (r->mem == MAP_FAILED) {
		r->mem = NULL;
		return -ENOMEM;
	}
	(void)madvise(r->mem, r->mem_bytes, MADV_HUGEPAGE);
	for (uint32_t i = 0; i < r->nslot; i++) {
		r->slot[i].buf = r->mem + i * most;
		r->idle[r->nidle++] = &r->slot[i];
	}
	return 0;
}

static void submit(struct streaming *r)
{
	uint64_t align = MAX(r->s->files->align, 4096u);
	struct slot *x = r->idle[--r->nidle];
	struct stream_block *b = &r->s->block[r->next_submit];
	uint64_t from = b->off / align * align;
	int e;

	x->block = r->next_submit++;
	x->skip = b->off - from;
	x->req = (struct io_req){
		.fd = r->s->files->fd[b->file],
		.buf = x->buf,
		.off = from,
		.len = align_up(b->off + b->len, align) - from,
		.user = x,
	};
	e = io_submit(r->io, &x->req);
	assert(e == 0); /* never more than its depth are under way */
}

static void arrived(struct streaming *r, struct slot *x)
{
	struct stream_block *b = &r->s->block[x->block];

	b->got = x->req.res;
	if (b->got >= 0) {
		b->got = MAX(b->got - (int64_t)x->skip, 0);
		b->got = MIN(b->got, (int64_t)b->len);
	}
	if (r->nworker) {
		queue_push(&r->asked, x);
		return;
	}
	slot_work(r, x);
	queue_push(&r->done, x);
}

/* Its buffer is free again; tell the owner of all blocks that are done in a row. */
static void finished(struct streaming *r, struct slot *x)
{
	r->finished[x->block] = true;
	r->idle[r->nidle++] = x;
	while (r->code == 0 && r->next_done < r->s->n && r->finished[r->next_done])
		r->code = r->s->done(r->s->ctx, r->next_done++);
}

static void submit_all(struct streaming *r)
{
	while (r->code == 0 && r->nidle && r->next_submit < r->s->n &&
	       io_in_flight(r->io) < MOVE_DEPTH)
		submit(r);
}

static int stream_loop(struct streaming *r)
{
	struct io_req *q;
	struct slot *x;

	for (;;) {
		submit_all(r);
		q = io_reap(r->io);
		if (q)
			arrived(r, q->user);
		else if (r->nidle == r->nslot)
			return r->code;
		/* While reads are under way the workers are not waited for. */
		x = q ? queue_try_pop(&r->done) : queue_pop(&r->done);
		for (; x; x = queue_try_pop(&r->done))
			finished(r, x);
	}
}

struct stream_block *stream_block_add(struct stream *s)
{
	struct stream_block *b = s->block;

	if (s->n == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 64;
		b = reallocarray(b, s->cap, sizeof *b);
		if (!b)
			return NULL;
		s->block = b;
	}
	b = &s->block[s->n++];
	*b = (struct stream_block){ 0 };
	return b;
}

int stream_run(const struct stream *s, struct ckpt_err *err)
{
	struct streaming r = { .s = s };
	int e;

	if (!s->n)
		return 0;
	r.finished = calloc(s->n, sizeof *r.finished);
	e = r.finished ? io_queue_open(s->files->ops, s->files->engine, MOVE_DEPTH, &r.io, err)
		       : ckpt_error(err, -ENOMEM, "out of memory for the state of %llu reads",
				    (unsigned long long)s->n);
	if (e == 0) {
		e = workers_start(&r);
		if (e == 0)
			e = slots_make(&r);
		if (e == -EFBIG)
			ckpt_error(
				err, e,
				"the checkpoint has chunks of more than %u MiB, which this version does not read",
				STREAM_BLOCK_MAX >> 20);
		else if (e < 0)
			ckpt_error(err, e, "out of memory for %u read buffers of %u MiB",
				   MOVE_DEPTH, MOVE_BLOCK >> 20);
	}
	if (e == 0)
		e = stream_loop(&r);
	io_queue_close(r.io);
	workers_stop(&r);
	if (r.mem)
		munmap(r.mem, r.mem_bytes);
	free(r.finished);
	return e;
}
