/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_stream.c - keeps the disk busy with reads while workers check and scatter what has arrived.
 * Called by move_read and move_verify. Invariant: a buffer belongs to one of: nobody, the I/O
 * queue, the workers' queue or one worker, the queue of what is done. The calling thread alone
 * moves it out of the first, second and last. Between two streams all of them belong to nobody. The
 * buffers of a room that was closed are kept for the next one, for the kernel clears fresh memory
 * before it gives it, which costs as much as reading it. They are not MADV_FREE meanwhile: a kernel
 * before 5.18 takes such a page back even while a direct read writes to it, and zeros are read.
 */
#include "ckpt/move/block_stream.h"
#include "ckpt/base/atomic.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include <sched.h>
#include <stdatomic.h>

#define WORKERS_MAX 4
#define INLINE_BLOCKS 2 /* so few are done before threads would have started */
#define SLOTS_MAX (MOVE_DEPTH + 2 * WORKERS_MAX)
#define SLOTS_MIN 2u /* one is read while the other is worked on */
/* Where nobody limits them: 16 buffers of 2 MiB, with their margins. That is enough to keep the
 * disk busy, and fits into the processors' caches. */
#define BUFFERS_BYTES (33 * MIB)

struct slot {
	struct io_req req;
	uint8_t *buf;
	uint64_t block, skip; /* skip: bytes read before the block's first */
};

struct stream_room {
	const struct stream *s; /* the one that runs */
	struct slot slot[SLOTS_MAX];
	struct slot *idle[SLOTS_MAX];
	uint32_t nslot, nidle;
	uint8_t *mem;
	size_t mem_bytes;
	bool *finished; /* [s->n] */
	uint64_t next_submit, next_done;
	struct queue asked, done;
	pthread_t worker[WORKERS_MAX];
	uint32_t nworker;
	struct io_queue *io;
	const struct move_files *files;
	struct made_reader *made; /* NULL: none were wanted yet */
	int code;		  /* what ended it early */
	struct ckpt_err *err; /* the caller's; written with code where a file cannot be opened */
};

static void slot_work(struct stream_room *r, struct slot *x)
{
	const struct stream_block *b = &r->s->block[x->block];

	r->s->work(r->s->ctx, x->block, b->got < 0 ? NULL : x->buf + x->skip);
}

static void *worker_main(void *arg)
{
	struct stream_room *r = arg;
	struct slot *x;

	while ((x = queue_pop(&r->asked))) {
		slot_work(r, x);
		queue_push(&r->done, x);
	}
	return NULL;
}

static uint32_t processor_count(void)
{
	cpu_set_t cpus;
	int n = sched_getaffinity(0, sizeof cpus, &cpus) < 0 ? 1 : CPU_COUNT(&cpus);

	return MIN((uint32_t)n, (uint32_t)WORKERS_MAX);
}

/* Fewer threads than wanted only make it slower; without any the caller does the work. */
static void workers_start(struct stream_room *r)
{
	uint32_t want = r->s->n <= INLINE_BLOCKS ? 0 : processor_count();

	while (r->nworker < want &&
	       thread_start(&r->worker[r->nworker], "ckpt-move", false, worker_main, r) == 0)
		r->nworker++;
}

/* --- buffers from one room to the next --- */
struct kept {
	uint8_t *mem;
	size_t bytes;
};
static _Atomic(struct kept *) kept; /* of this process, at most these; NULL: somebody has them */
_Atomic uint64_t stream_mapped_bytes;

static void buffers_keep(uint8_t *mem, size_t bytes)
{
	struct kept *k = mem && bytes <= BUFFERS_BYTES + PAGES_HUGE ? malloc(sizeof *k) : NULL,
		    *none = NULL;

	if (k) {
		*k = (struct kept){ mem, bytes };
		if (!MUTANT(BUFFERS_FRESH) && atomic_compare_exchange_strong(&kept, &none, k))
			return;
		free(k);
	}
	pages_free(mem, bytes);
}

static uint8_t *buffers_get(size_t bytes, size_t *ret_bytes)
{
	struct kept *k = atomic_exchange(&kept, NULL);
	uint8_t *mem = NULL;

	*ret_bytes = bytes;
	if (k && k->bytes >= bytes) {
		mem = k->mem;
		*ret_bytes = k->bytes;
	} else if (k) {
		pages_free(k->mem, k->bytes);
	}
	free(k);
	if (mem)
		return mem;
	mem = pages_new(bytes);
	add_relaxed(&stream_mapped_bytes, mem ? bytes : 0);
	return mem;
}

static uint64_t buffers_limit(const struct move_files *f)
{
	return f->buffer_bytes ? f->buffer_bytes : BUFFERS_BYTES;
}

static uint64_t read_align(const struct move_files *f)
{
	return MAX(f->align, 4096u);
}

uint64_t stream_block_bytes(const struct move_files *f)
{
	uint64_t slot = buffers_limit(f) / (MOVE_DEPTH + 2 * processor_count()), block = MOVE_BLOCK;

	while (block > MIB && block + read_align(f) > slot)
		block -= MIB;
	return block;
}

/* Buffers for the largest block, all in one mapping on huge pages. */
static int slots_make(struct stream_room *r)
{
	uint64_t align = read_align(r->s->files), most = 0, limit = buffers_limit(r->s->files),
		 n = MOVE_DEPTH + MAX(2 * r->nworker, 1u);

	for (uint64_t i = 0; i < r->s->n; i++)
		most = MAX(most, r->s->block[i].len);
	if (most > STREAM_BLOCK_MAX)
		return -EFBIG;
	most = align_up(most, align) + align; /* widened at both ends */
	while (n > SLOTS_MIN && n * most > limit)
		n--;
	r->nslot = (uint32_t)MIN(n, r->s->n);
	if (r->mem && r->mem_bytes < most * r->nslot)
		pages_free(TAKE(r->mem), r->mem_bytes);
	if (!r->mem)
		r->mem = buffers_get(most * r->nslot, &r->mem_bytes);
	if (!r->mem)
		return -ENOMEM;
	r->nidle = 0;
	for (uint32_t i = 0; i < r->nslot; i++) {
		r->slot[i].buf = r->mem + i * most;
		r->idle[r->nidle++] = &r->slot[i];
	}
	return 0;
}

/* false: of the descriptors that may be open, all are taken until a read comes back. */
static bool block_submit(struct stream_room *r)
{
	uint64_t align = read_align(r->s->files);
	struct stream_block *b = &r->s->block[r->next_submit];
	uint64_t from = b->off / align * align;
	int fd = move_take(r->s->files, b->file, r->err), e;
	struct slot *x;

	if (fd == -EAGAIN && io_in_flight(r->io))
		return false;
	if (fd == -EAGAIN)
		fd = ckpt_error_errno(r->err, EMFILE, "cannot open %s of the checkpoint",
				      r->s->files->ckpt->file[b->file].name);
	if (fd < 0) {
		r->code = fd;
		return false;
	}
	x = r->idle[--r->nidle];
	x->block = r->next_submit++;
	x->skip = b->off - from;
	x->req = (struct io_req){
		.fd = fd,
		.buf = x->buf,
		.off = from,
		.len = align_up(b->off + b->len, align) - from,
		.user = x,
	};
	e = io_submit(r->io, &x->req);
	assert(e == 0); /* never more than its depth are under way */
	return true;
}

static void read_arrived(struct stream_room *r, struct slot *x)
{
	struct stream_block *b = &r->s->block[x->block];

	io_files_give(r->s->files->files, b->file);
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
static void block_finished(struct stream_room *r, struct slot *x)
{
	r->finished[x->block] = true;
	r->idle[r->nidle++] = x;
	while (r->code == 0 && r->next_done < r->s->n && r->finished[r->next_done])
		r->code = r->s->done(r->s->ctx, r->next_done++);
}

static void submit_all(struct stream_room *r)
{
	while (r->code == 0 && r->nidle && r->next_submit < r->s->n &&
	       io_in_flight(r->io) < MOVE_DEPTH && block_submit(r))
		;
}

static int stream_loop(struct stream_room *r)
{
	struct io_req *q;
	struct slot *x;

	for (;;) {
		submit_all(r);
		q = io_reap(r->io);
		if (q)
			read_arrived(r, q->user);
		else if (r->nidle == r->nslot)
			return r->code;
		/* While reads are under way the workers are not waited for. */
		x = q ? queue_try_pop(&r->done) : queue_pop(&r->done);
		for (; x; x = queue_try_pop(&r->done))
			block_finished(r, x);
	}
}

struct stream_block *stream_block_add(struct stream *s)
{
	if (!ARRAY_GROW(s->block, s->n, s->cap))
		return NULL;
	s->block[s->n] = (struct stream_block){ 0 };
	return &s->block[s->n++];
}

int stream_room_open(const struct move_files *f, struct stream_room **ret, struct ckpt_err *err)
{
	struct stream_room *r = calloc(1, sizeof *r);
	int e = r ? queue_init(&r->asked, SLOTS_MAX) : -ENOMEM;

	*ret = r;
	if (r)
		r->files = f;
	if (e == 0)
		e = queue_init(&r->done, SLOTS_MAX);
	e = e < 0 ? ckpt_error(err, e, "out of memory for a queue of reads")
		  : io_queue_open(f->ops, f->engine, MOVE_DEPTH, &r->io, err);
	if (e < 0) {
		stream_room_close(r);
		*ret = NULL;
	}
	return e;
}

void stream_room_close(struct stream_room *r)
{
	if (!r)
		return;
	io_queue_close(r->io);
	if (r->asked.item)
		queue_close(&r->asked);
	for (uint32_t i = 0; i < r->nworker; i++)
		pthread_join(r->worker[i], NULL);
	queue_destroy(&r->asked);
	queue_destroy(&r->done);
	buffers_keep(r->mem, r->mem_bytes);
	made_close(r->made);
	free(r);
}

struct made_reader *stream_room_made(struct stream_room *r)
{
	if (!r->made)
		(void)made_open(r->files, &r->made, NULL);
	return r->made;
}

static int room_run(struct stream_room *r, const struct stream *s, struct ckpt_err *err)
{
	int e;

	r->s = s;
	r->next_submit = r->next_done = 0;
	r->code = 0;
	r->err = err;
	r->finished = calloc(s->n, sizeof *r->finished);
	if (!r->finished)
		return ckpt_error(err, -ENOMEM, "out of memory for the state of %llu reads",
				  (unsigned long long)s->n);
	workers_start(r);
	e = slots_make(r);
	if (e == -EFBIG)
		ckpt_error(
			err, e,
			"the checkpoint has chunks of more than %u MiB, which this version does not read",
			STREAM_BLOCK_MAX >> 20);
	else if (e < 0)
		ckpt_error(err, e, "out of memory for %u read buffers of %llu MiB", MOVE_DEPTH,
			   (unsigned long long)(stream_block_bytes(s->files) >> 20));
	if (e == 0)
		e = stream_loop(r);
	free(TAKE(r->finished));
	return e;
}

int stream_run(const struct stream *s, struct stream_room *room, struct ckpt_err *err)
{
	struct stream_room *own = NULL;
	int e = 0;

	if (!s->n)
		return 0;
	if (!room)
		e = stream_room_open(s->files, &own, err);
	if (e == 0)
		e = room_run(room ? room : own, s, err);
	stream_room_close(own);
	return e;
}
