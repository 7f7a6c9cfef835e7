/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_write.c - memory to a new part file. Called by whoever persists a staged slot. Invariant:
 * the sums in the file describe the bytes that were handed to the disk, as raw memory does not
 * change meanwhile; everything that no chunk stores is zero; every length and offset is a multiple
 * of 4 KiB, so that O_DIRECT takes all of it.
 */
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/place_pieces.h"

#define CHUNK_BYTES ((uint64_t)1 << NATIVE_CHUNK_LOG2)
/* Of a chunk: what stays in the nearest cache from the first sum to the next. */
#define SUM_BYTES (64u << 10)

struct writing {
	const struct io_ops *ops;
	int fd;
	const uint8_t *raw;
	struct table *t;
	struct place_pieces pieces;
	struct chunk *chunk; /* [nchunk] */
	uint64_t nchunk, data_end;
	struct io_queue *io;
	struct io_req req[MOVE_DEPTH];
	struct io_req *idle[MOVE_DEPTH];
	uint32_t nidle;
	struct pace pace;
	uint8_t *bounce; /* MOVE_BLOCK, aligned: what does not lie in raw as it goes to the file */
	struct ckpt_err *err;
};

static int write_failed(const struct writing *w, int code, uint64_t len, uint64_t off)
{
	return ckpt_error_errno(w->err, -code, "cannot write %llu bytes at offset %llu of a part",
				(unsigned long long)len, (unsigned long long)off);
}

static int reap(struct writing *w)
{
	struct io_req *r = io_reap(w->io);

	w->idle[w->nidle++] = r;
	return r->res < 0 ? write_failed(w, (int)r->res, r->len, r->off)
			  : pace_add(&w->pace, r->len);
}

/* Bytes that stay as they are until `drain`. */
static int submit(struct writing *w, const void *p, uint64_t len, uint64_t off)
{
	struct io_req *r;
	int e = 0;

	if (!w->nidle)
		e = reap(w);
	if (e < 0)
		return e;
	r = w->idle[--w->nidle];
	*r = (struct io_req){
		.fd = w->fd, .write = true, .buf = (void *)p, .len = len, .off = off
	};
	e = io_submit(w->io, r);
	assert(e == 0); /* there are as many requests as the queue is deep */
	return 0;
}

static int drain(struct writing *w, int e)
{
	while (io_in_flight(w->io)) {
		int r = reap(w);

		e = e < 0 ? e : r;
	}
	return e;
}

/* --- sums --- */

/* The fingerprints of the pieces in raw bytes [lo, hi). next: the first piece that may be there. */
static void sum_pieces(struct writing *w, uint32_t next, uint64_t lo, uint64_t hi)
{
	for (; next < w->t->npiece; next++) {
		struct table_piece *x = &w->t->piece[w->pieces.piece[next]];

		if (x->off >= hi)
			break;
		x->fp += piece_fingerprint_window(w->t, x, w->raw + lo, lo, hi);
	}
}

static void chunk_sum(struct writing *w, uint64_t i)
{
	struct chunk *c = &w->chunk[i];
	uint64_t lo = i << NATIVE_CHUNK_LOG2, end = lo + c->raw_len;
	uint32_t next = place_pieces_from(&w->pieces, 0, lo);

	c->raw_hash = hash128(w->raw + lo, c->raw_len);
	c->stored_crc = 0;
	for (uint64_t at = lo; at < end; at += SUM_BYTES) {
		uint64_t to = MIN(at + SUM_BYTES, end);

		c->stored_crc = crc32c(c->stored_crc, w->raw + at, to - at);
		sum_pieces(w, next, at, to);
	}
}

/* --- data --- */

static bool is_zero(const uint8_t *p, uint64_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* The chunk's last page where what follows it in memory is not zero, as what follows it in the
 * file is. */
static int tail_write(struct writing *w, const struct chunk *c, uint64_t raw, uint64_t len)
{
	int e;

	memcpy(w->bounce, w->raw + raw, len);
	memset(w->bounce + len, 0, NATIVE_ALIGN - len);
	e = io_pwrite_all(w->ops, w->fd, w->bounce, NATIVE_ALIGN, c->off + c->stored_len - len);
	return e < 0 ? write_failed(w, e, NATIVE_ALIGN, c->off + c->stored_len - len)
		     : pace_add(&w->pace, NATIVE_ALIGN);
}

/* How many chunks from i on lie in the file as they lie in memory, up to MOVE_BLOCK bytes. */
static uint64_t block_chunks(const struct writing *w, uint64_t i)
{
	uint64_t n = 1;

	while (n < MOVE_BLOCK / CHUNK_BYTES && i + n < w->nchunk && w->chunk[i + n].raw_len &&
	       w->chunk[i + n].off == w->chunk[i].off + n * CHUNK_BYTES)
		n++;
	return n;
}

static int block_write(struct writing *w, uint64_t i, uint64_t n)
{
	const struct chunk *first = &w->chunk[i], *last = &w->chunk[i + n - 1];
	uint64_t raw = i << NATIVE_CHUNK_LOG2, len = last->off + last->stored_len - first->off;
	uint64_t whole = align_up(len, NATIVE_ALIGN), cut = len % NATIVE_ALIGN;
	int e = 0;

	for (uint64_t k = 0; k < n; k++)
		chunk_sum(w, i + k);
	if (!is_zero(w->raw + raw + len, whole - len)) {
		e = tail_write(w, last, raw + len - cut, cut);
		whole -= NATIVE_ALIGN;
	}
	return e < 0 || !whole ? e : submit(w, w->raw + raw, whole, first->off);
}

/* Inside a block only whole chunks go without a look at what follows them. */
static int data_write(struct writing *w)
{
	int e = 0;

	for (uint64_t i = 0, n; i < w->nchunk && e == 0; i += n) {
		n = 1;
		if (!w->chunk[i].raw_len)
			continue;
		n = block_chunks(w, i);
		e = block_write(w, i, n);
	}
	return drain(w, e);
}

/* --- what surrounds it --- */

static int bounced_write(struct writing *w, const void *p, uint64_t len, uint64_t off)
{
	for (uint64_t at = 0, n; at < len; at += n) {
		int e;

		n = MIN(len - at, MOVE_BLOCK);
		memcpy(w->bounce, (const uint8_t *)p + at, n);
		e = io_pwrite_all(w->ops, w->fd, w->bounce, n, off + at);
		if (e < 0)
			return write_failed(w, e, n, off + at);
	}
	return 0;
}

static int part_write(struct writing *w, const struct native_info *info, uint32_t rank,
		      struct native_part *ret)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	cleanup_free void *tail = NULL;
	uint64_t tail_len;
	int e;

	if (!head)
		return ckpt_error(w->err, -ENOMEM, "out of memory for the header of a part");
	native_part_head(info, rank, head);
	e = bounced_write(w, head, sizeof *head, 0);
	if (e == 0)
		e = data_write(w);
	if (e == 0)
		e = pace_end(&w->pace);
	if (e == -ECANCELED)
		return ckpt_error(w->err, e, "writing a part was given up by its caller");
	if (e == 0)
		e = native_part_tail(info, rank, w->t, w->chunk, w->nchunk, w->data_end, &tail,
				     &tail_len, &ret->root, w->err);
	if (e == 0)
		e = bounced_write(w, tail, tail_len, w->data_end);
	if (e < 0)
		return e;
	ret->rank = rank;
	ret->file_bytes = w->data_end + tail_len;
	ret->raw_bytes = w->t->place[0].bytes;
	ret->table = w->t;
	return 0;
}

static int writing_begin(struct writing *w, enum io_engine engine)
{
	int e = native_part_chunks(w->t, &w->chunk, &w->nchunk, &w->data_end, w->err);

	if (e < 0)
		return e;
	for (uint32_t i = 0; i < w->t->npiece; i++) {
		if (!piece_splits(w->t, &w->t->piece[i]))
			return ckpt_error(
				w->err, -EINVAL,
				"piece %u of %s is not row-major on a bound of its elements", i,
				w->t->place[0].name);
		w->t->piece[i].fp = 0;
	}
	w->bounce = aligned_alloc(NATIVE_ALIGN, MOVE_BLOCK);
	if (!w->bounce || place_pieces_make(w->t, &w->pieces) < 0)
		return ckpt_error(w->err, -ENOMEM, "out of memory for the sums of a part");
	for (; w->nidle < MOVE_DEPTH; w->nidle++)
		w->idle[w->nidle] = &w->req[w->nidle];
	return io_queue_open(w->ops, engine, MOVE_DEPTH, &w->io, w->err);
}

int move_write_part(const struct io_ops *ops, enum io_engine engine, int fd, bool direct,
		    const void *raw, struct table *t, const struct native_info *info, uint32_t rank,
		    move_tick_fn *tick, void *arg, struct native_part *ret_part,
		    struct ckpt_err *err)
{
	struct writing w = {
		.ops = ops,
		.fd = fd,
		.raw = raw,
		.t = t,
		.pace = { .tick = tick, .arg = arg },
		.err = err,
	};
	int e;

	(void)direct; /* all is aligned, whether it need be or not */
	assert(t->sealed && t->nplace == 1 && (uintptr_t)raw % NATIVE_ALIGN == 0);
	e = writing_begin(&w, engine);
	if (e == 0)
		e = part_write(&w, info, rank, ret_part);
	io_queue_close(w.io);
	place_pieces_free(&w.pieces);
	free(w.bounce);
	free(w.chunk);
	return e;
}

/* --- before --- */

static uint64_t table_strings(const struct table *t)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->ntensor; i++)
		n += strlen(t->tensor[i].component) + strlen(t->tensor[i].name) +
		     strlen(t->tensor[i].of) + 3;
	for (uint32_t i = 0; i < t->nmesh; i++)
		for (uint32_t d = 0; d < t->mesh[i].ndim; d++)
			n += strlen(t->mesh[i].name[d]) + 1;
	return n;
}

static uint64_t piece_records(const struct table_piece *p)
{
	uint64_t words = 1;

	for (uint32_t d = 0; d < p->set.ndim; d++)
		words += 1 + 4 * (uint64_t)p->set.dim[d].n + (p->stride != NULL);
	return sizeof(struct ck_piece) + 8 * words;
}

uint64_t move_part_bytes_max(const struct table *t)
{
	/* Header, trailer, and each section's way to the next 4 KiB. */
	uint64_t bytes = (uint64_t)NATIVE_ALIGN * (2 + CODEC_SECTIONS_MAX + 1),
		 chunks = div_up(t->place[0].bytes, CHUNK_BYTES);

	bytes += chunks * (CHUNK_BYTES + sizeof(struct ck_chunk)) + table_strings(t);
	for (uint32_t i = 0; i < t->nmesh; i++)
		bytes += sizeof(struct ck_mesh) +
			 4 * (2 * (uint64_t)t->mesh[i].ndim + t->mesh[i].nrank);
	for (uint32_t i = 0; i < t->nlayout; i++)
		bytes += sizeof(struct ck_layout) +
			 sizeof(struct ck_placement) * t->layout[i].nplace;
	for (uint32_t i = 0; i < t->ntensor; i++)
		bytes += sizeof(struct ck_tensor) + 8 * (uint64_t)t->tensor[i].ndim;
	for (uint32_t i = 0; i < t->npiece; i++)
		bytes += piece_records(&t->piece[i]);
	return bytes;
}

uint64_t move_fingerprint(const struct table *t, const struct table_piece *piece, const void *p)
{
	return piece_fingerprint(t, piece, 0, piece->set.numel, p);
}
