/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_stream.c - see chunk_stream.h. Called by the daemon's part_file and by the converter.
 * Invariant: the sums in the chunk map describe the bytes that were handed to the disk; everything
 * that no chunk stores is zero; every length and offset is a multiple of CHUNK_ALIGN, so that
 * O_DIRECT takes all of it.
 */
#include "ckpt/move/chunk_stream.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/move/pace.h"

#define CHUNK_BYTES ((uint64_t)1 << CHUNK_LOG2)
struct flight {
	struct io_req req;
	uint32_t rank;	 /* whose part it is */
	uint8_t *buffer; /* free again when the write is done; NULL: the caller's memory */
};

struct chunk_queue {
	const struct io_ops *ops;
	const struct walk_pass *pass;
	uint32_t npass;
	struct io_queue *queue;
	struct flight flight[CHUNK_QUEUE_DEPTH];
	struct flight *idle[CHUNK_QUEUE_DEPTH];
	uint32_t nidle;
	uint64_t in_flight; /* bytes */
	uint8_t *mem;
	uint64_t mem_bytes;
	uint8_t **buffer; /* [nbuffer] those that nobody has */
	uint32_t nbuffer;
	struct pace pace;
	struct ckpt_err fail; /* the first error; its code is 0 while there is none */
};

struct chunk_stream {
	struct chunk_queue *io;
	int fd;
	struct table *t;
	uint32_t rank;
	struct walk *walk;
	bool own;	   /* the walk is this writer's */
	uint64_t next;	   /* the chunk that is expected: no hole, or the end */
	uint64_t from, to; /* chunk_stream_write_chunks: what it writes */
	uint8_t *buffer;   /* of chunk `next` where it has begun; NULL */
	uint32_t fill;	   /* bytes in it */
	struct {
		const uint8_t *p;
		uint64_t off, len;
	} run; /* whole chunks of the caller's memory that are next to be written */
};

/* --- writes under way --- */

static int queue_failed(const struct chunk_queue *io, struct ckpt_err *err)
{
	if (err)
		*err = io->fail;
	return io->fail.code;
}

static int write_failed(struct chunk_queue *io, int code, uint32_t rank, uint64_t len, uint64_t off)
{
	if (io->fail.code)
		return io->fail.code;
	return ckpt_error_errno(&io->fail, -code,
				"cannot write %llu bytes at offset %llu of the part of rank %u",
				(unsigned long long)len, (unsigned long long)off, rank);
}

static void queue_reap(struct chunk_queue *io)
{
	struct io_req *r = io_reap(io->queue);
	struct flight *f = r->user;

	io->in_flight -= r->len;
	if (f->buffer)
		io->buffer[io->nbuffer++] = TAKE(f->buffer);
	io->idle[io->nidle++] = f;
	if (r->res < 0 && !MUTANT(WRITE_ERROR_IGNORED))
		write_failed(io, (int)r->res, f->rank, r->len, r->off);
	else if (!io->fail.code && pace_add(&io->pace, r->len) < 0)
		ckpt_error(&io->fail, -ECANCELED, "writing a part was given up by its caller");
}

/* buffer: p is one; else p stays as it is until chunk_queue_drain. */
static int write_submit(struct chunk_stream *w, const uint8_t *p, bool buffer, uint64_t len,
			uint64_t off)
{
	struct chunk_queue *io = w->io;
	struct flight *f;
	int e;

	while (!io->nidle || (io->in_flight && io->in_flight + len > CHUNK_QUEUE_BYTES))
		queue_reap(io);
	io->in_flight += len;
	f = io->idle[--io->nidle];
	f->rank = w->rank;
	f->buffer = buffer ? (uint8_t *)p : NULL;
	if (buffer && MUTANT(BUFFER_GIVEN_EARLY))
		io->buffer[io->nbuffer++] = TAKE(f->buffer);
	f->req = (struct io_req){
		.fd = w->fd, .write = true, .buf = (void *)p, .len = len, .off = off, .user = f
	};
	e = io_submit(io->queue, &f->req);
	assert(e == 0); /* there are as many requests as the queue is deep */
	return io->fail.code;
}

static uint8_t *buffer_take(struct chunk_queue *io)
{
	while (!io->nbuffer) {
		assert(io_in_flight(io->queue)); /* there are more buffers than writers */
		queue_reap(io);
	}
	return io->buffer[--io->nbuffer];
}

int chunk_queue_drain(struct chunk_queue *io, struct ckpt_err *err)
{
	while (io_in_flight(io->queue))
		queue_reap(io);
	if (!io->fail.code && pace_end(&io->pace) < 0)
		ckpt_error(&io->fail, -ECANCELED, "writing a part was given up by its caller");
	return io->fail.code ? queue_failed(io, err) : 0;
}

static int buffers_make(struct chunk_queue *io, uint32_t n)
{
	io->buffer = calloc((size_t)n + 1, sizeof *io->buffer);
	io->mem_bytes = (uint64_t)n * CHUNK_BUFFER;
	io->mem = pages_new(io->mem_bytes);
	if (!io->mem || !io->buffer)
		return -ENOMEM;
	for (; io->nbuffer < n; io->nbuffer++)
		io->buffer[io->nbuffer] = io->mem + (uint64_t)io->nbuffer * CHUNK_BUFFER;
	return 0;
}

int chunk_queue_open(const struct chunk_queue_opts *o, struct chunk_queue **ret,
		     struct ckpt_err *err)
{
	struct chunk_queue *io = calloc(1, sizeof *io);
	int e;

	*ret = NULL;
	if (!io || buffers_make(io, o->nbuffer) < 0) {
		chunk_queue_close(io);
		return ckpt_error(err, -ENOMEM, "out of memory for %u write buffers of %u MiB",
				  o->nbuffer, CHUNK_BUFFER >> 20);
	}
	io->ops = o->ops;
	io->pass = o->pass;
	io->npass = o->npass;
	io->pace = (struct pace){ .tick = o->tick, .arg = o->arg };
	for (; io->nidle < CHUNK_QUEUE_DEPTH; io->nidle++)
		io->idle[io->nidle] = &io->flight[io->nidle];
	e = io_queue_open(o->ops, o->engine, CHUNK_QUEUE_DEPTH, &io->queue, err);
	if (e < 0) {
		chunk_queue_close(io);
		return e;
	}
	*ret = io;
	return 0;
}

void chunk_queue_again(struct chunk_queue *io, move_tick_fn *tick, void *arg)
{
	assert(!io_in_flight(io->queue) && !io->fail.code);
	io->pace = (struct pace){ .tick = tick, .arg = arg };
}

bool chunk_queue_has_threads(const struct chunk_queue *io)
{
	return io_queue_engine(io->queue) == IO_THREADS;
}

void chunk_queue_close(struct chunk_queue *io)
{
	if (!io)
		return;
	io_queue_close(io->queue);
	pages_free(io->mem, io->mem_bytes);
	free(io->buffer);
	free(io);
}

/* --- data --- */

/* The chunk map, as the walk has it by now. */
static const struct chunk *chunk_at(const struct chunk_stream *w, uint64_t i)
{
	return &walk_chunks(w->walk, NULL, NULL)[i];
}

static uint64_t chunk_count(const struct chunk_stream *w)
{
	uint64_t n;

	(void)walk_chunks(w->walk, &n, NULL);
	return n;
}

static void next_chunk(struct chunk_stream *w, uint64_t from)
{
	uint64_t n;
	const struct chunk *c = walk_chunks(w->walk, &n, NULL);

	for (w->next = from; w->next < n && !c[w->next].raw_len;)
		w->next++;
}

static int run_submit(struct chunk_stream *w)
{
	uint64_t len = TAKE(w->run.len);

	return len ? write_submit(w, w->run.p, false, len, w->run.off) : w->io->fail.code;
}

/* The last page that b's first bytes reach is whole. Returns the bytes of all of them. */
static uint64_t page_end(uint8_t *b, uint64_t bytes)
{
	uint64_t whole = align_up(bytes, CHUNK_ALIGN);

	if (!MUTANT(PADDING_NOT_CLEARED))
		memset(b + bytes, 0, whole - bytes);
	return whole;
}

/* The next chunk, which the walk has passed and which begins on a page at p: its pages as they are,
 * together with those before them, and a copy of what is left. */
static int chunk_direct(struct chunk_stream *w, const uint8_t *p)
{
	const struct chunk *c = chunk_at(w, w->next);
	uint64_t rest = c->raw_len % CHUNK_ALIGN, len = c->raw_len - rest, off = c->off;
	bool follows = w->run.p + w->run.len == p && w->run.off + w->run.len == off;
	int e = w->io->fail.code;
	uint8_t *b;

	if (!e && w->run.len && (!follows || w->run.len + len > MOVE_BLOCK))
		e = run_submit(w);
	if (!w->run.len) {
		w->run.p = p;
		w->run.off = off;
	}
	w->run.len += len;
	next_chunk(w, w->next + 1);
	if (!rest || e)
		return e;
	b = buffer_take(w->io);
	memcpy(b, p + len, rest);
	return write_submit(w, b, true, page_end(b, rest), off + len);
}

/* The next chunk, which lies in a buffer and which the walk has passed. */
static int chunk_submit(struct chunk_stream *w, uint8_t *b)
{
	const struct chunk *c = chunk_at(w, w->next);
	uint64_t off = c->off, len = page_end(b, c->raw_len);

	next_chunk(w, w->next + 1);
	return write_submit(w, b, true, len, off);
}

static int chunk_walk(struct chunk_stream *w, const uint8_t *p)
{
	struct ckpt_err err = { 0 };
	int e = walk_chunk(w->walk, w->next, p, &err);

	if (e < 0 && !w->io->fail.code)
		w->io->fail = err;
	return w->io->fail.code;
}

static int chunk_buffered(struct chunk_stream *w, uint64_t in, const uint8_t *p, uint64_t len)
{
	const struct chunk *c = chunk_at(w, w->next);

	if (!w->buffer)
		w->buffer = buffer_take(w->io);
	memset(w->buffer + w->fill, 0, in - w->fill);
	memcpy(w->buffer + in, p, len);
	w->fill = (uint32_t)(in + len);
	if (w->fill < c->raw_len)
		return w->io->fail.code;
	w->fill = 0;
	(void)chunk_walk(w, w->buffer);
	return chunk_submit(w, TAKE(w->buffer));
}

/* Can it be written from where it lies? */
static bool is_direct(const uint8_t *p, uint64_t len)
{
	return len >= CHUNK_ALIGN && (uintptr_t)p % CHUNK_ALIGN == 0;
}

int chunk_stream_write(struct chunk_stream *w, uint64_t off, const void *p, uint64_t len,
		       struct ckpt_err *err)
{
	uint64_t nchunk = chunk_count(w);
	const uint8_t *from = p;
	int e = w->io->fail.code;

	while (len && !e) {
		uint64_t in = off % CHUNK_BYTES, n;
		const struct chunk *c = chunk_at(w, w->next);

		if (w->next >= nchunk || off >> CHUNK_LOG2 != w->next || in < w->fill ||
		    in >= c->raw_len) {
			(void)run_submit(w); /* what did follow */
			return ckpt_error(
				err, -EINVAL,
				"%s: %llu bytes at byte %llu of the raw space are not what "
				"follows",
				w->t->place[0].name, (unsigned long long)len,
				(unsigned long long)off);
		}
		n = MIN(len, c->raw_len - in);
		if (n == c->raw_len && is_direct(from, n)) {
			e = chunk_walk(w, from);
			e = e ? e : chunk_direct(w, from);
		} else {
			e = chunk_buffered(w, in, from, n);
		}
		off += n;
		from += n;
		len -= n;
	}
	if (!e)
		e = run_submit(w);
	return e ? queue_failed(w->io, err) : 0;
}

/* walk_passed_fn */
static int on_passed(void *arg, uint64_t i, const uint8_t *p)
{
	struct chunk_stream *w = arg;
	uint64_t len = chunk_at(w, i)->raw_len;
	uint8_t *b;

	if (i < w->from || i >= w->to)
		return i >= w->to;
	w->next = i;
	if (is_direct(p, len))
		return chunk_direct(w, p);
	b = buffer_take(w->io);
	memcpy(b, p, len);
	return chunk_submit(w, b);
}

int chunk_stream_write_chunks(struct chunk_stream *w, const void *raw, uint64_t from, uint64_t to,
			      struct ckpt_err *err)
{
	struct ckpt_err why = { 0 };
	int e;

	w->from = from;
	w->to = to;
	next_chunk(w, from);
	e = walk_raw(w->walk, raw, on_passed, w, &why);
	e = e > 0 ? 0 : e; /* the chunk behind the last one ended it */
	if (e && !w->io->fail.code)
		w->io->fail = why;
	if (!e)
		e = run_submit(w);
	/* What came last may have become a hole. */
	next_chunk(w, w->next);
	return e ? queue_failed(w->io, err) : 0;
}

int chunk_stream_write_raw(struct chunk_stream *w, const void *raw, struct ckpt_err *err)
{
	return chunk_stream_write_chunks(w, raw, 0, UINT64_MAX, err);
}

/* --- beside the chunks --- */

int chunk_queue_put(struct chunk_queue *io, int fd, uint32_t rank, const void *p, uint64_t len,
		    uint64_t off, struct ckpt_err *err)
{
	uint8_t *b = buffer_take(io);
	int e = io->fail.code;

	assert(len % CHUNK_ALIGN == 0 && off % CHUNK_ALIGN == 0);
	for (uint64_t at = 0, n; at < len && !e; at += n) {
		n = MIN(len - at, CHUNK_BUFFER);
		memcpy(b, (const uint8_t *)p + at, n);
		e = io_pwrite_all(io->ops, fd, b, n, off + at);
		if (e < 0)
			e = write_failed(io, e, rank, n, off + at);
	}
	io->buffer[io->nbuffer++] = b;
	return e ? queue_failed(io, err) : 0;
}

int chunk_stream_end(struct chunk_stream *w, struct chunk_written *ret, struct ckpt_err *err)
{
	int e;

	if (w->next < chunk_count(w))
		return ckpt_error(err, -EINVAL, "%s: its bytes from chunk %llu on were never given",
				  w->t->place[0].name, (unsigned long long)w->next);
	e = MUTANT(DRAIN_FORGOTTEN) ? 0 : chunk_queue_drain(w->io, err);
	if (e < 0)
		return e;
	ret->chunk = walk_chunks(w->walk, &ret->nchunk, &ret->data_end);
	return 0;
}

/* --- to be continued --- */

int chunk_stream_save(struct chunk_stream *w, struct chunk_state *ret, struct ckpt_err *err)
{
	int e = chunk_queue_drain(w->io, err);
	uint64_t stored = align_up(w->fill, CHUNK_ALIGN);

	if (e < 0)
		return e;
	*ret = (struct chunk_state){ .nchunk = w->next, .fill = w->fill, .sum = chunk_at(w, 0) };
	if (!w->fill)
		return 0;
	ret->hash = hash128(w->buffer, w->fill);
	memset(w->buffer + w->fill, 0, stored - w->fill);
	e = io_pwrite_all(w->io->ops, w->fd, w->buffer, stored, chunk_at(w, w->next)->off);
	if (e < 0)
		write_failed(w->io, e, w->rank, stored, chunk_at(w, w->next)->off);
	return e < 0 ? queue_failed(w->io, err) : 0;
}

/* Of the chunk in which it ended. */
static int state_take(struct chunk_stream *w, const struct chunk_state *s, struct ckpt_err *err)
{
	const struct chunk *c = chunk_at(w, s->nchunk);
	struct hash128 h;
	int e;

	if (s->nchunk < chunk_count(w) ? s->fill >= MAX(c->raw_len, 1u) : s->fill)
		return ckpt_error(err, -EBADMSG, "%s: what was saved of it is of another part",
				  w->t->place[0].name);
	w->next = s->nchunk;
	w->fill = s->fill;
	if (!s->fill)
		return 0;
	w->buffer = buffer_take(w->io);
	e = io_pread_all(w->io->ops, w->fd, w->buffer, align_up(s->fill, CHUNK_ALIGN), c->off);
	h = hash128(w->buffer, s->fill);
	if (e < 0 || (memcmp(h.b, s->hash.b, sizeof h.b) != 0 && !MUTANT(JOURNAL_BYTES_TRUSTED)))
		return ckpt_error(err, e < 0 && e != -ENODATA ? e : -EBADMSG,
				  "%s: what was written of its chunk %llu is not there any more",
				  w->t->place[0].name, (unsigned long long)w->next);
	return 0;
}

static int stream_open(struct chunk_queue *io, int fd, struct walk *walk, bool own, struct table *t,
		       uint32_t rank, const struct chunk_state *from, struct chunk_stream **ret,
		       struct ckpt_err *err)
{
	struct chunk_stream *w = calloc(1, sizeof *w);
	int e;

	if (!w) {
		if (own)
			walk_close(walk);
		return ckpt_error(err, -ENOMEM, "out of memory for a part");
	}
	w->io = io;
	w->fd = fd;
	w->t = t;
	w->rank = rank;
	w->walk = walk;
	w->own = own;
	next_chunk(w, 0);
	e = io->fail.code ? queue_failed(io, err) : from ? state_take(w, from, err) : 0;
	if (e < 0) {
		chunk_stream_close(w);
		return e;
	}
	*ret = w;
	return 0;
}

int chunk_stream_open(struct chunk_queue *io, int fd, struct table *t, uint64_t data_off,
		      uint32_t rank, const struct chunk_state *from, struct chunk_stream **ret,
		      struct ckpt_err *err)
{
	struct walk_opts o = { .pass = io->pass, .npass = io->npass, .data_off = data_off };
	struct walk *walk;
	int e;

	*ret = NULL;
	if (from) {
		o.sum = from->sum;
		o.nsum = from->nchunk;
		o.resumed = true;
	}
	e = walk_open(&o, t, rank, &walk, err);
	return e < 0 ? e : stream_open(io, fd, walk, true, t, rank, from, ret, err);
}

int chunk_stream_open_walk(struct chunk_queue *io, int fd, struct walk *walk, struct table *t,
			   uint32_t rank, struct chunk_stream **ret, struct ckpt_err *err)
{
	*ret = NULL;
	return stream_open(io, fd, walk, false, t, rank, NULL, ret, err);
}

void chunk_stream_close(struct chunk_stream *w)
{
	if (!w)
		return;
	if (w->buffer)
		w->io->buffer[w->io->nbuffer++] = w->buffer;
	if (w->own)
		walk_close(w->walk);
	free(w);
}
