/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink_plain.c - files that are their own bytes, which come in any order. Called by convert.c.
 * What lies side by side in memory and in a file is one write. Its whole blocks go past the page
 * cache, from where they lie or, where they do not lie on the file's pages, through a buffer; what
 * is left at both ends goes through the page cache, by a second descriptor. Invariant: a block of a
 * file is written by one descriptor alone, until a run after an interruption writes the same bytes
 * again.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/coding/crc.h"
#include "ckpt/engine/sink.h"
#include "ckpt/move/place_pieces.h"

#define BLOCK 4096u
#define BUFFER_BYTES (1u << 20)
#define DEPTH SINK_PLAIN_BUFFERS /* writes in flight */

struct plain_file {
	int fd;	  /* past the page cache, where that is possible */
	int edge; /* through it; -1: fd does so already */
};

struct plain_flight {
	struct io_req req;
	uint8_t *buffer; /* NULL: the bytes lie elsewhere */
	uint32_t file;
};

/* Bytes that follow upon each other, and are not written yet. */
struct plain_run {
	uint32_t file;
	const uint8_t *p;
	uint64_t len, off;
};

struct plain {
	struct sink sink;
	struct sink_env env;
	struct io_queue *queue;
	uint8_t *mem;
	uint8_t *buffer[SINK_PLAIN_BUFFERS];
	uint32_t nbuffer, nidle;
	struct plain_flight flight[DEPTH], *idle[DEPTH];
	struct plain_run run;
	struct ckpt_err fail; /* the first one; every call returns it */
	uint32_t first, n;
	struct plain_file *file; /* [n] */
};

static struct plain_file *file_of(const struct plain *s, uint32_t file)
{
	return &s->file[file - s->first];
}

static int sink_failed(const struct plain *s, struct ckpt_err *err)
{
	if (s->fail.code && err)
		*err = s->fail;
	return s->fail.code;
}

static int write_failed(struct plain *s, uint32_t file, int64_t rc, uint64_t len, uint64_t off)
{
	if (s->fail.code)
		return s->fail.code;
	return ckpt_error_errno(&s->fail, (int)-rc,
				"%s/%s: %llu bytes at byte %llu cannot be written",
				publish_path(s->env.to), s->env.sheet->file[file].name,
				(unsigned long long)len, (unsigned long long)off);
}

/* --- writes under way --- */

static void flight_reap(struct plain *s)
{
	struct io_req *r = io_reap(s->queue);
	struct plain_flight *f = r->user;

	if (r->res != (int64_t)r->len && !MUTANT(PLAIN_ERROR_IGNORED))
		write_failed(s, f->file, r->res < 0 ? r->res : -EIO, r->len, r->off);
	if (f->buffer)
		s->buffer[s->nbuffer++] = TAKE(f->buffer);
	s->idle[s->nidle++] = f;
}

static void flight_submit(struct plain *s, uint32_t file, const uint8_t *p, uint64_t len,
			  uint64_t off, uint8_t *buffer)
{
	struct plain_flight *f;
	int rc;

	while (!s->nidle)
		flight_reap(s);
	f = s->idle[--s->nidle];
	f->file = file;
	f->buffer = buffer;
	f->req = (struct io_req){ .fd = file_of(s, file)->fd,
				  .write = true,
				  .buf = (void *)(uintptr_t)p,
				  .len = len,
				  .off = off,
				  .user = f };
	rc = io_submit(s->queue, &f->req);
	if (buffer && MUTANT(PLAIN_BUFFER_EARLY))
		s->buffer[s->nbuffer++] = TAKE(f->buffer);
	assert(rc == 0); /* there are as many requests as the queue is deep */
}

static uint8_t *buffer_take(struct plain *s)
{
	while (!s->nbuffer)
		flight_reap(s);
	return s->buffer[--s->nbuffer];
}

static void edge_write(struct plain *s, uint32_t file, const uint8_t *p, uint64_t len, uint64_t off)
{
	const struct plain_file *f = file_of(s, file);
	int rc =
		len ? io_pwrite_all(s->env.e->ops, f->edge >= 0 ? f->edge : f->fd, p, len, off) : 0;

	if (rc < 0)
		write_failed(s, file, rc, len, off);
}

/* Whole blocks of the file; without O_DIRECT any bytes. */
static void blocks_write(struct plain *s, uint32_t file, const uint8_t *p, uint64_t len,
			 uint64_t off)
{
	bool bounce = file_of(s, file)->edge >= 0 && (uintptr_t)p % BLOCK;
	uint64_t most = bounce ? BUFFER_BYTES : MOVE_BLOCK;

	for (uint64_t at = 0, n; at < len && !s->fail.code; at += n) {
		uint8_t *b = NULL;

		n = MIN(len - at, most);
		if (bounce) {
			b = buffer_take(s);
			memcpy(b, p + at, n);
		}
		flight_submit(s, file, b ? b : p + at, n, off + at, b);
	}
}

static void run_write(struct plain *s)
{
	struct plain_run r = s->run;
	uint64_t head = MIN(r.len, align_up(r.off, BLOCK) - r.off), blocks;

	s->run.len = 0;
	if (!r.len || s->fail.code)
		return;
	if (file_of(s, r.file)->edge < 0) {
		blocks_write(s, r.file, r.p, r.len, r.off);
		return;
	}
	blocks = (r.len - head) / BLOCK * BLOCK;
	edge_write(s, r.file, r.p, head, r.off);
	blocks_write(s, r.file, r.p + head, blocks, r.off + head);
	edge_write(s, r.file, r.p + head + blocks, r.len - head - blocks, r.off + head + blocks);
}

/* --- opening --- */

static int file_open(struct plain *s, uint32_t file, struct ckpt_err *err)
{
	struct plain_file *f = file_of(s, file);
	bool direct = s->env.first[file + 1] > s->env.first[file];
	int rc = publish_file(s->env.to, sink_name(&s->env, file), 0, &direct, &f->fd, err);

	if (rc || !direct)
		return rc;
	direct = false;
	return publish_file(s->env.to, sink_name(&s->env, file), 0, &direct, &f->edge, err);
}

static int buffers_make(struct plain *s)
{
	s->mem = pages_new((uint64_t)SINK_PLAIN_BUFFERS * BUFFER_BYTES);
	if (!s->mem)
		return -ENOMEM;
	for (; s->nbuffer < SINK_PLAIN_BUFFERS; s->nbuffer++)
		s->buffer[s->nbuffer] = s->mem + (uint64_t)s->nbuffer * BUFFER_BYTES;
	for (; s->nidle < DEPTH; s->nidle++)
		s->idle[s->nidle] = &s->flight[s->nidle];
	return 0;
}

static int plain_open(struct sink *sink, uint32_t first, uint32_t n,
		      const struct journal_file *from, struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;
	int rc;

	(void)from; /* what was written is written again, or was synced */
	s->file = calloc((size_t)n + 1, sizeof *s->file);
	if (!s->file || buffers_make(s))
		return ckpt_error(err, -ENOMEM, "out of memory for %u files", n);
	s->first = first;
	s->n = n;
	for (uint32_t i = 0; i < n; i++)
		s->file[i] = (struct plain_file){ .fd = -1, .edge = -1 };
	rc = io_queue_open(s->env.e->ops, s->env.e->io, DEPTH, &s->queue, err);
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = file_open(s, first + i, err);
	return rc;
}

/* --- bytes --- */

/* The piece's elements among these bytes count for its fingerprint. */
static void print_add(struct plain *s, const struct sink_bytes *b)
{
	struct table *t = &s->env.sheet->table;
	struct table_piece *p = &t->piece[b->piece];
	uint32_t elem = t->tensor[p->tensor].elem_bytes;
	uint64_t from = (b->off - p->off) / elem;

	p->fp += piece_fingerprint(t, p, from, from + b->len / elem, b->p);
	p->fp_known = true;
}

/* A sum that a run needs; a piece's bytes come front to back. */
static void sum_add(struct plain *s, const struct sink_bytes *b)
{
	uint32_t k = s->env.piece_sum ? s->env.piece_sum[b->piece] : TABLE_NONE;
	struct journal_sum *sum;

	if (k == TABLE_NONE)
		return;
	sum = &s->env.sum[k];
	if (b->off - s->env.sheet->table.piece[b->piece].off != sum->at) {
		/* A journal says so. */
		if (!s->fail.code)
			ckpt_error(&s->fail, -EBADMSG,
				   "%s: a sum of %llu bytes cannot be continued at byte %llu",
				   publish_path(s->env.to), (unsigned long long)sum->at,
				   (unsigned long long)b->off);
		return;
	}
	sum->crc = crc_add(sum->crc, b->p, b->len);
	sum->at += b->len;
}

static int plain_take(struct sink *sink, const struct sink_bytes *b, struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;
	uint32_t file = s->env.sheet->table.piece[b->piece].place;
	struct plain_run *r = &s->run;

	print_add(s, b);
	sum_add(s, b);
	if (r->len && (r->file == file || MUTANT(PLAIN_RUN_ACROSS)) && r->p + r->len == b->p &&
	    r->off + r->len == b->off) {
		r->len += b->len;
		return sink_failed(s, err);
	}
	run_write(s);
	*r = (struct plain_run){ file, b->p, b->len, b->off };
	return sink_failed(s, err);
}

static int plain_drain(struct sink *sink, struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;

	run_write(s);
	while (s->queue && io_in_flight(s->queue) && !MUTANT(PLAIN_NOT_DRAINED))
		flight_reap(s);
	return sink_failed(s, err);
}

static int plain_save(struct sink *sink, struct journal *j, struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;
	const struct io_ops *ops = s->env.e->ops;
	int rc = plain_drain(sink, err);

	for (uint32_t i = 0; i < s->n && !rc; i++) {
		rc = MUTANT(JOURNAL_BEFORE_PARTS) ? 0 : ops->sync(ops->ctx, s->file[i].fd);
		if (rc)
			ckpt_error_errno(err, -rc, "%s/%s cannot be synced to the disk",
					 publish_path(s->env.to),
					 s->env.sheet->file[s->first + i].name);
		j->file[s->first + i] = (struct journal_file){ .state = JOURNAL_OPEN };
	}
	return rc;
}

/* --- the end --- */

static int plain_end(struct sink *sink, uint32_t file, struct sheet_done *ret, struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;

	*ret = (struct sheet_done){ .data_end = s->env.sheet->file[file].bytes };
	return plain_drain(sink, err);
}

static int plain_put(struct sink *sink, uint32_t file, const void *p, uint64_t len, uint64_t off,
		     struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;

	edge_write(s, file, p, len, off);
	return sink_failed(s, err);
}

static int edge_close(struct plain *s, uint32_t file, struct ckpt_err *err)
{
	const struct io_ops *ops = s->env.e->ops;
	int fd = TAKE_FD(file_of(s, file)->edge), rc = fd < 0 ? 0 : ops->close(ops->ctx, fd);

	return rc < 0 ? ckpt_error_errno(err, -rc, "%s/%s cannot be closed",
					 publish_path(s->env.to), s->env.sheet->file[file].name)
		      : 0;
}

static int plain_finish(struct sink *sink, uint32_t file, uint64_t bytes, struct ckpt_err *err)
{
	struct plain *s = (struct plain *)sink;
	int rc = edge_close(s, file, err);

	return rc ? rc
		  : publish_file_end(s->env.to, sink_name(&s->env, file),
				     TAKE_FD(file_of(s, file)->fd), bytes, err);
}

static void plain_close(struct sink *sink)
{
	struct plain *s = (struct plain *)sink;
	const struct io_ops *ops = s->env.e->ops;

	s->run.len = 0;
	(void)plain_drain(sink, NULL);
	for (uint32_t i = 0; i < s->n; i++) {
		(void)edge_close(s, s->first + i, NULL);
		if (s->file[i].fd >= 0)
			(void)ops->close(ops->ctx, s->file[i].fd);
	}
	io_queue_close(s->queue);
	pages_free(s->mem, (uint64_t)SINK_PLAIN_BUFFERS * BUFFER_BYTES);
	free(s->file);
	free(s);
}

int sink_plain(const struct sink_env *env, struct sink **ret, struct ckpt_err *err)
{
	struct plain *s = calloc(1, sizeof *s);

	if (!s)
		return ckpt_error(err, -ENOMEM, "out of memory for a conversion");
	s->env = *env;
	s->sink = (struct sink){ .open = plain_open,
				 .take = plain_take,
				 .drain = plain_drain,
				 .save = plain_save,
				 .end = plain_end,
				 .put = plain_put,
				 .finish = plain_finish,
				 .close = plain_close };
	*ret = &s->sink;
	return 0;
}
