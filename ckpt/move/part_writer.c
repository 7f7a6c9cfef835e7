/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_writer.c - see part_writer.h. Called by move_write_part and by the converter. Invariant: the
 * sums in the file describe the bytes that were handed to the disk; everything that no chunk stores
 * is zero; every length and offset is a multiple of 4 KiB, so that O_DIRECT takes all of it.
 */
#include "ckpt/move/part_writer.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/round.h"

#define CHUNK_BYTES ((uint64_t)1 << NATIVE_CHUNK_LOG2)
struct flight {
	struct io_req req;
	uint32_t rank;	 /* whose part it is */
	uint8_t *buffer; /* free again when the write is done; NULL: the caller's memory */
};

struct part_io {
	const struct io_ops *ops;
	const struct move_tap *tap;
	uint32_t ntap;
	struct io_queue *queue;
	struct flight flight[PART_DEPTH];
	struct flight *idle[PART_DEPTH];
	uint32_t nidle;
	uint64_t in_flight; /* bytes */
	uint8_t *mem;
	uint64_t mem_bytes;
	uint8_t **buffer; /* [nbuffer] those that nobody has */
	uint32_t nbuffer;
	struct pace pace;
	struct ckpt_err fail; /* the first error; its code is 0 while there is none */
};

/* A piece that is perhaps the rounding of another one. */
struct derivative {
	uint32_t master, piece; /* of t */
	uint64_t unequal, fp;
};

struct part_writer {
	struct part_io *io;
	int fd;
	struct table *t;
	const struct native_info *info;
	uint32_t rank;
	struct place_pieces pieces;
	struct chunk *chunk; /* [nchunk] */
	uint64_t nchunk, data_end;
	uint64_t next;	    /* the chunk that is expected: no hole, or nchunk */
	uint8_t *buffer;    /* of chunk `next` where it has begun; NULL */
	uint32_t fill;	    /* bytes in it */
	const uint8_t *raw; /* part_write_raw's; else NULL */
	/* The tensors that are derived are compared before the walk comes to chunk derived_at. */
	uint64_t derived_at;
	struct derivative *derivative; /* [nderivative] sorted by master */
	uint32_t nderivative;
	struct part_derived derived;
	struct {
		const uint8_t *p;
		uint64_t off, len;
	} run; /* whole chunks of the caller's memory that are next to be written */
};

/* --- writes under way --- */

static int failed(const struct part_io *io, struct ckpt_err *err)
{
	if (err)
		*err = io->fail;
	return io->fail.code;
}

static int write_failed(struct part_io *io, int code, uint32_t rank, uint64_t len, uint64_t off)
{
	if (io->fail.code)
		return io->fail.code;
	return ckpt_error_errno(&io->fail, -code,
				"cannot write %llu bytes at offset %llu of the part of rank %u",
				(unsigned long long)len, (unsigned long long)off, rank);
}

static void reap(struct part_io *io)
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

/* buffer: p is one; else p stays as it is until part_io_drain. */
static int submit(struct part_writer *w, const uint8_t *p, bool buffer, uint64_t len, uint64_t off)
{
	struct part_io *io = w->io;
	struct flight *f;
	int e;

	while (!io->nidle || (io->in_flight && io->in_flight + len > PART_IN_FLIGHT))
		reap(io);
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

static uint8_t *buffer_take(struct part_io *io)
{
	while (!io->nbuffer) {
		assert(io_in_flight(io->queue)); /* there are more buffers than writers */
		reap(io);
	}
	return io->buffer[--io->nbuffer];
}

int part_io_drain(struct part_io *io, struct ckpt_err *err)
{
	while (io_in_flight(io->queue))
		reap(io);
	if (!io->fail.code && pace_end(&io->pace) < 0)
		ckpt_error(&io->fail, -ECANCELED, "writing a part was given up by its caller");
	return io->fail.code ? failed(io, err) : 0;
}

static int buffers_make(struct part_io *io, uint32_t n)
{
	io->buffer = calloc((size_t)n + 1, sizeof *io->buffer);
	io->mem_bytes = (uint64_t)n * PART_BUFFER;
	io->mem = pages_new(io->mem_bytes);
	if (!io->mem || !io->buffer)
		return -ENOMEM;
	for (; io->nbuffer < n; io->nbuffer++)
		io->buffer[io->nbuffer] = io->mem + (uint64_t)io->nbuffer * PART_BUFFER;
	return 0;
}

int part_io_open(const struct part_io_opts *o, struct part_io **ret, struct ckpt_err *err)
{
	struct part_io *io = calloc(1, sizeof *io);
	int e;

	*ret = NULL;
	if (!io || buffers_make(io, o->nbuffer) < 0) {
		part_io_close(io);
		return ckpt_error(err, -ENOMEM, "out of memory for %u write buffers of %u MiB",
				  o->nbuffer, PART_BUFFER >> 20);
	}
	io->ops = o->ops;
	io->tap = o->tap;
	io->ntap = o->ntap;
	io->pace = (struct pace){ .tick = o->tick, .arg = o->arg };
	for (; io->nidle < PART_DEPTH; io->nidle++)
		io->idle[io->nidle] = &io->flight[io->nidle];
	e = io_queue_open(o->ops, o->engine, PART_DEPTH, &io->queue, err);
	if (e < 0) {
		part_io_close(io);
		return e;
	}
	*ret = io;
	return 0;
}

void part_io_close(struct part_io *io)
{
	if (!io)
		return;
	io_queue_close(io->queue);
	pages_free(io->mem, io->mem_bytes);
	free(io->buffer);
	free(io);
}

/* --- what is derived --- */

static int by_master(const void *va, const void *vb)
{
	const struct derivative *a = va, *b = vb;

	if (a->master != b->master)
		return a->master < b->master ? -1 : 1;
	return (a->piece > b->piece) - (a->piece < b->piece);
}

/*
 * The pieces that may be derived: those behind all of whose masters' bytes the first of their own
 * chunks begins. In a table of native_part_table all of them.
 */
static int derivatives_find(struct part_writer *w)
{
	const struct table *t = w->t;
	cleanup_free uint32_t *twin = calloc((size_t)t->npiece + 1, sizeof *twin);

	w->derivative = calloc((size_t)t->npiece + 1, sizeof *w->derivative);
	if (!w->derivative || !twin || native_twins(t, twin) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->npiece; i++)
		if (twin[i] != TABLE_NONE)
			w->derived_at = MIN(w->derived_at, t->piece[i].off >> NATIVE_CHUNK_LOG2);
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *m = twin[i] == TABLE_NONE ? NULL : &t->piece[twin[i]];

		if (m && m->off + m->len <= w->derived_at << NATIVE_CHUNK_LOG2)
			w->derivative[w->nderivative++] =
				(struct derivative){ .master = twin[i], .piece = i };
	}
	qsort(w->derivative, w->nderivative, sizeof *w->derivative, by_master);
	return 0;
}

static uint32_t derivatives_of(const struct part_writer *w, uint32_t master)
{
	uint32_t from = 0, to = w->nderivative;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (w->derivative[mid].master < master)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

/* Elements number [from, to) of a master, which lie at p, are in the cache. */
static void derivative_compare(struct part_writer *w, struct derivative *d, uint64_t from,
			       uint64_t to, const uint8_t *p)
{
	const struct table_piece *x = &w->t->piece[d->piece];
	const uint8_t *have = w->raw + x->off + from * ROUND_TO_BYTES;
	uint64_t first = 0, n = 0;

	if (!MUTANT(DERIVED_UNCHECKED))
		n = round_unequal(w->t->tensor[x->tensor].dtype, p, have, to - from, &first);
	if (n && w->derived.tensor == TABLE_NONE) {
		w->derived.tensor = x->tensor;
		w->derived.element = from + first;
	}
	d->unequal += n;
	if (!d->unequal)
		d->fp += piece_fingerprint(w->t, x, from, to, have);
}

static void span_compare(struct part_writer *w, uint32_t master, const struct tap_span *s)
{
	const struct table_piece *m = &w->t->piece[master];
	uint64_t lo = MAX(s->off, m->off), hi = MIN(s->off + s->len, m->off + m->len);

	for (uint32_t k = derivatives_of(w, master);
	     k < w->nderivative && w->derivative[k].master == master && lo < hi; k++)
		derivative_compare(w, &w->derivative[k], (lo - m->off) / ROUND_FROM_BYTES,
				   (hi - m->off) / ROUND_FROM_BYTES, s->p + (lo - s->off));
}

/* All masters have been seen: from here on the chunks are those of what is left. */
static int derived_decide(struct part_writer *w, struct ckpt_err *err)
{
	struct chunk *chunk;
	uint64_t n;
	int e;

	for (uint32_t k = 0; k < w->nderivative; k++) {
		const struct derivative *d = &w->derivative[k];
		struct table_piece *x = &w->t->piece[d->piece];

		if (d->unequal) {
			w->derived.unequal++;
			w->derived.elements += d->unequal;
			continue;
		}
		x->flags = PIECE_DERIVED;
		x->from = w->t->piece[d->master].off;
		x->fp = d->fp;
		w->derived.pieces++;
		w->derived.bytes += x->len;
	}
	e = native_part_chunks(w->t, &chunk, &n, &w->data_end, err);
	if (e < 0)
		return e;
	for (uint64_t i = 0; i < w->derived_at; i++) {
		assert(chunk[i].off == w->chunk[i].off && chunk[i].raw_len == w->chunk[i].raw_len);
		chunk[i].raw_hash = w->chunk[i].raw_hash;
	}
	free(w->chunk);
	w->chunk = chunk;
	return 0;
}

/* --- sums --- */

/* The masters in a span, which is in the cache, with what is derived of them. */
static void span_derived(struct part_writer *w, const struct tap_span *s)
{
	uint64_t end = MIN(s->off + s->len, w->derived_at << NATIVE_CHUNK_LOG2);

	for (uint32_t k = place_pieces_from(&w->pieces, 0, s->off); k < w->t->npiece; k++) {
		uint32_t i = w->pieces.piece[k];

		if (w->t->piece[i].off >= end)
			break;
		if (!(w->t->piece[i].flags & PIECE_DERIVED))
			span_compare(w, i, s);
	}
}

/* All that is made of a chunk, in one pass. */
static int chunk_pass(struct part_writer *w, uint64_t i, const uint8_t *p)
{
	const struct part_io *io = w->io;
	struct chunk *c = &w->chunk[i];
	struct tap_span s = { .t = w->t, .rank = w->rank };
	struct hash128_state sum;
	int e = 0;

	hash128_begin(&sum);
	for (uint64_t at = 0; at < c->raw_len && e >= 0; at += s.len) {
		s.p = p + at;
		s.off = (i << NATIVE_CHUNK_LOG2) + at;
		s.len = (uint32_t)MIN(c->raw_len - at, TAP_SPAN_BYTES);
		s.last = at + s.len == c->raw_len;
		place_pieces_sums(&w->pieces, w->t, s.p, s.off, s.off + s.len, &sum);
		if (w->nderivative)
			span_derived(w, &s);
		for (uint32_t k = 0; k < io->ntap && e >= 0; k++)
			e = io->tap[k].span(io->tap[k].ctx, &s);
	}
	c->raw_hash = hash128_end(&sum);
	if (e < 0 && !w->io->fail.code)
		ckpt_error(&w->io->fail, e, "%s: what is made of its bytes on the way failed: %s",
			   w->t->place[0].name, strerror(-e));
	return w->io->fail.code;
}

/* --- data --- */

static void next_chunk(struct part_writer *w)
{
	do
		w->next++;
	while (w->next < w->nchunk && !w->chunk[w->next].raw_len);
}

static int run_submit(struct part_writer *w)
{
	uint64_t len = TAKE(w->run.len);

	return len ? submit(w, w->run.p, false, len, w->run.off) : w->io->fail.code;
}

/* The last page that b's first bytes reach is whole. Returns the bytes of all of them. */
static uint64_t page_end(uint8_t *b, uint64_t bytes)
{
	uint64_t whole = align_up(bytes, NATIVE_ALIGN);

	if (!MUTANT(PADDING_NOT_CLEARED))
		memset(b + bytes, 0, whole - bytes);
	return whole;
}

/* A chunk that begins on a page: its pages as they are, together with those behind them, and a copy of what is left. */
static int chunk_direct(struct part_writer *w, const uint8_t *p)
{
	const struct chunk *c = &w->chunk[w->next];
	uint64_t rest = c->raw_len % NATIVE_ALIGN, len = c->raw_len - rest;
	int e = chunk_pass(w, w->next, p);
	uint8_t *b;

	if (e)
		return e;
	/* One call's bytes are in a row, and all its chunks but the last are whole. */
	assert(!w->run.len || (w->run.p + w->run.len == p && w->run.off + w->run.len == c->off));
	if (w->run.len + len > MOVE_BLOCK)
		e = run_submit(w);
	if (!w->run.len) {
		w->run.p = p;
		w->run.off = c->off;
	}
	w->run.len += len;
	next_chunk(w);
	if (!rest)
		return e;
	b = buffer_take(w->io);
	memcpy(b, p + len, rest);
	return submit(w, b, true, page_end(b, rest), c->off + len);
}

static int chunk_buffered(struct part_writer *w, uint64_t in, const uint8_t *p, uint64_t len)
{
	const struct chunk *c = &w->chunk[w->next];
	uint64_t i = w->next;
	uint8_t *b;

	if (!w->buffer)
		w->buffer = buffer_take(w->io);
	memset(w->buffer + w->fill, 0, in - w->fill);
	memcpy(w->buffer + in, p, len);
	w->fill = (uint32_t)(in + len);
	if (w->fill < c->raw_len)
		return w->io->fail.code;
	w->fill = 0;
	b = TAKE(w->buffer);
	(void)chunk_pass(w, i, b);
	next_chunk(w);
	return submit(w, b, true, page_end(b, c->raw_len), c->off);
}

int part_write(struct part_writer *w, uint64_t off, const void *p, uint64_t len,
	       struct ckpt_err *err)
{
	const uint8_t *from = p;
	int e = w->io->fail.code;

	while (len && !e) {
		uint64_t in = off % CHUNK_BYTES, n;
		const struct chunk *c = &w->chunk[w->next];

		if (w->next >= w->nchunk || off >> NATIVE_CHUNK_LOG2 != w->next || in < w->fill ||
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
		if (n == c->raw_len && n >= NATIVE_ALIGN && (uintptr_t)from % NATIVE_ALIGN == 0)
			e = chunk_direct(w, from);
		else
			e = chunk_buffered(w, in, from, n);
		off += n;
		from += n;
		len -= n;
	}
	if (!e)
		e = run_submit(w);
	return e ? failed(w->io, err) : 0;
}

/* Raw bytes from chunk i on, before chunk `end`, that belong to chunks without a gap, up to MOVE_BLOCK. */
static uint64_t block_bytes(const struct chunk *c, uint64_t i, uint64_t end)
{
	uint64_t bytes = c[i].raw_len;

	while (bytes % CHUNK_BYTES == 0 && bytes < MOVE_BLOCK && ++i < end && c[i].raw_len)
		bytes += c[i].raw_len;
	return bytes;
}

static int chunks_write(struct part_writer *w, const uint8_t *raw, uint64_t end,
			struct ckpt_err *err)
{
	int e = 0;

	while (w->next < end && e == 0) {
		uint64_t at = w->next << NATIVE_CHUNK_LOG2;

		e = part_write(w, at, raw + at, block_bytes(w->chunk, w->next, end), err);
	}
	return e;
}

int part_write_raw(struct part_writer *w, const void *raw, struct ckpt_err *err)
{
	int e;

	w->raw = raw;
	w->derived_at = w->nchunk;
	if (derivatives_find(w) < 0)
		return ckpt_error(err, -ENOMEM, "out of memory for what is derived in a part");
	e = chunks_write(w, raw, w->derived_at, err);
	if (e == 0 && w->nderivative)
		e = derived_decide(w, err);
	if (e < 0)
		return e;
	/* What comes next may have become a hole. */
	if (w->next < w->nchunk && !w->chunk[w->next].raw_len)
		next_chunk(w);
	return chunks_write(w, raw, w->nchunk, err);
}

const struct part_derived *part_writer_derived(const struct part_writer *w)
{
	return &w->derived;
}

/* --- what surrounds it --- */

static int bounced_write(struct part_writer *w, const void *p, uint64_t len, uint64_t off)
{
	uint8_t *b = buffer_take(w->io);
	int e = 0;

	for (uint64_t at = 0, n; at < len && !e; at += n) {
		n = MIN(len - at, PART_BUFFER);
		memcpy(b, (const uint8_t *)p + at, n);
		e = io_pwrite_all(w->io->ops, w->fd, b, n, off + at);
		if (e < 0)
			e = write_failed(w->io, e, w->rank, n, off + at);
	}
	w->io->buffer[w->io->nbuffer++] = b;
	return e;
}

int part_writer_finish(struct part_writer *w, struct native_part *ret, struct ckpt_err *err)
{
	struct part_io *io = w->io;
	cleanup_free void *tail = NULL;
	uint64_t len;
	int e;

	if (w->next < w->nchunk)
		return ckpt_error(err, -EINVAL, "%s: its bytes from chunk %llu on were never given",
				  w->t->place[0].name, (unsigned long long)w->next);
	e = MUTANT(DRAIN_FORGOTTEN) ? 0 : part_io_drain(io, err);
	if (!e)
		e = native_part_tail(w->info, w->rank, w->t, w->chunk, w->nchunk, w->data_end,
				     &tail, &len, &ret->root, err);
	if (e < 0)
		return e;
	if (bounced_write(w, tail, len, w->data_end) < 0)
		return failed(io, err);
	ret->rank = w->rank;
	ret->kind = w->info->role ? w->info->role->kind : PART_MAIN;
	ret->group = w->info->role ? w->info->role->group : 0;
	ret->step = w->info->step;
	ret->generation = w->info->generation;
	native_part_uuid(w->info, w->rank, ret->uuid);
	ret->file_bytes = w->data_end + len;
	ret->raw_bytes = w->t->place[0].bytes;
	ret->table = w->t;
	return 0;
}

struct chunk *part_writer_chunks(struct part_writer *w)
{
	return TAKE(w->chunk);
}

/* --- to be continued --- */

int part_writer_save(struct part_writer *w, struct part_state *ret, struct ckpt_err *err)
{
	int e = part_io_drain(w->io, err);
	uint64_t stored = align_up(w->fill, NATIVE_ALIGN);

	if (e < 0)
		return e;
	*ret = (struct part_state){ .nchunk = w->next, .fill = w->fill, .sum = w->chunk };
	if (!w->fill)
		return 0;
	ret->hash = hash128(w->buffer, w->fill);
	memset(w->buffer + w->fill, 0, stored - w->fill);
	e = io_pwrite_all(w->io->ops, w->fd, w->buffer, stored, w->chunk[w->next].off);
	if (e < 0)
		write_failed(w->io, e, w->rank, stored, w->chunk[w->next].off);
	return e < 0 ? failed(w->io, err) : 0;
}

static int state_take(struct part_writer *w, const struct part_state *s, struct ckpt_err *err)
{
	struct hash128 h;
	int e;

	if (s->nchunk > w->nchunk ||
	    (s->nchunk < w->nchunk ? s->fill >= MAX(w->chunk[s->nchunk].raw_len, 1u) : s->fill))
		return ckpt_error(err, -EBADMSG, "%s: what was saved of it is of another part",
				  w->t->place[0].name);
	for (uint64_t i = 0; i < s->nchunk; i++)
		w->chunk[i].raw_hash = s->sum[i].raw_hash;
	w->next = s->nchunk;
	w->fill = s->fill;
	if (!s->fill)
		return 0;
	w->buffer = buffer_take(w->io);
	e = io_pread_all(w->io->ops, w->fd, w->buffer, align_up(s->fill, NATIVE_ALIGN),
			 w->chunk[w->next].off);
	h = hash128(w->buffer, s->fill);
	if (e < 0 || (memcmp(h.b, s->hash.b, sizeof h.b) != 0 && !MUTANT(JOURNAL_BYTES_TRUSTED)))
		return ckpt_error(err, e < 0 && e != -ENODATA ? e : -EBADMSG,
				  "%s: what was written of its chunk %llu is not there any more",
				  w->t->place[0].name, (unsigned long long)w->next);
	return 0;
}

static int writer_begin(struct part_writer *w, const struct part_state *from, struct ckpt_err *err)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	int e;

	for (uint32_t i = 0; i < w->t->npiece; i++) /* an earlier attempt may have set them */
		w->t->piece[i].flags = 0;
	e = native_part_chunks(w->t, &w->chunk, &w->nchunk, &w->data_end, err);
	if (e < 0)
		return e;
	for (uint32_t i = 0; i < w->t->npiece; i++) {
		if (!piece_splits(w->t, &w->t->piece[i]))
			return ckpt_error(
				err, -EINVAL,
				"piece %u of %s is not row-major on a bound of its elements", i,
				w->t->place[0].name);
		if (!from)
			w->t->piece[i].fp = 0;
		w->t->piece[i].fp_known = true;
	}
	if (!head || place_pieces_make(w->t, &w->pieces) < 0)
		return ckpt_error(err, -ENOMEM, "out of memory for the sums of a part");
	w->next = UINT64_MAX;
	next_chunk(w);
	if (from)
		e = state_take(w, from, err);
	native_part_head(w->info, w->rank, head);
	if (!e && bounced_write(w, head, sizeof *head, 0) < 0)
		e = failed(w->io, err);
	return e;
}

int part_writer_open(struct part_io *io, int fd, struct table *t, const struct native_info *info,
		     uint32_t rank, const struct part_state *from, struct part_writer **ret,
		     struct ckpt_err *err)
{
	struct part_writer *w = calloc(1, sizeof *w);
	int e;

	*ret = NULL;
	assert(t->sealed && t->nplace == 1);
	if (!w)
		return ckpt_error(err, -ENOMEM, "out of memory for a part");
	w->io = io;
	w->fd = fd;
	w->t = t;
	w->info = info;
	w->rank = rank;
	w->derived.tensor = TABLE_NONE;
	e = io->fail.code ? failed(io, err) : writer_begin(w, from, err);
	if (e < 0) {
		part_writer_close(w);
		return e;
	}
	*ret = w;
	return 0;
}

void part_writer_close(struct part_writer *w)
{
	if (!w)
		return;
	if (w->buffer)
		w->io->buffer[w->io->nbuffer++] = w->buffer;
	place_pieces_free(&w->pieces);
	free(w->derivative);
	free(w->chunk);
	free(w);
}
