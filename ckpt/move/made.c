/* SPDX-License-Identifier: Apache-2.0 */
/*
 * made.c - see made.h. Called by move_read and move_verify. Invariant: the last cell of a place is
 * handed out only when its decoder has found the end of its stream, and its sum right.
 */
#include "ckpt/move/made.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/coding/decoder.h"
#include "ckpt/move/range_sums.h"

/* Of which decoders get their share where nobody limits buffers. */
#define MADE_MEMORY (256 * MIB)

/* Bytes of a place, front to back. */
struct feed {
	const struct move_files *f;
	struct io_queue *queue;
	uint32_t place;
	uint64_t at, end; /* to come; of a decoded place `end` is its last byte */
	uint8_t *buf;	  /* MADE_CELL bytes, page-aligned */
	uint64_t lo, hi;  /* of a decoded place: what lies in buf */
	struct feed *from;
	struct decoder *d;
	struct decoding x;
	uint64_t used; /* when; by the clock of its reader */
};

struct made_reader {
	const struct move_files *f;
	struct io_queue
		*queue;	    /* one read at a time; it knows what to do where O_DIRECT is refused */
	struct feed **feed; /* [nmade] */
	uint32_t nopen, open_max;
	uint64_t clock;
};

static const struct format_made *made_of(const struct checkpoint *c, uint32_t place)
{
	return place < c->nfile ? NULL : &c->made[place - c->nfile];
}

static void feed_close(struct feed *s)
{
	if (!s)
		return;
	feed_close(s->from);
	decoder_close(s->d);
	pages_free(s->buf, MADE_CELL);
	free(s);
}

static int feed_open(const struct made_reader *r, uint32_t place, uint64_t off, uint64_t len,
		     uint32_t depth, struct feed **ret, struct ckpt_err *err);

static int feed_decode(const struct made_reader *r, struct feed *s, const struct format_made *m,
		       uint32_t depth, struct ckpt_err *err)
{
	static const enum decode_how how[] = { [MADE_SWAPPED] = DECODE_SWAPPED,
					       [MADE_DEFLATE] = DECODE_DEFLATE,
					       [MADE_ZSTD] = DECODE_ZSTD };
	struct decoder_opts o = { .bytes = s->f->ckpt->table.place[s->place].bytes,
				  .elem = m->elem,
				  .has_crc = m->has_crc,
				  .crc = m->crc };
	int e;

	if (m->how > MADE_ZSTD || m->from >= s->place || depth == MADE_DEPTH_MAX ||
	    (m->how == MADE_SWAPPED && (!m->elem || m->elem > DECODE_ELEM_MAX)))
		return ckpt_error(err, -EPROTO, "it is made in a way that makes no sense");
	o.how = how[m->how];
	e = feed_open(r, m->from, m->off, m->len, depth + 1, &s->from, err);
	return e ? e : decoder_open(&o, &s->d, err);
}

/* Bytes [off, + len) of a place. */
static int feed_open(const struct made_reader *r, uint32_t place, uint64_t off, uint64_t len,
		     uint32_t depth, struct feed **ret, struct ckpt_err *err)
{
	const struct move_files *f = r->f;
	const struct table *t = &f->ckpt->table;
	const struct format_made *m = made_of(f->ckpt, place);
	struct feed *s = calloc(1, sizeof *s);
	int e = 0;

	*ret = s;
	if (!s || !(s->buf = pages_new(MADE_CELL)))
		return ckpt_error(err, -ENOMEM, "out of memory for a decoder");
	*s = (struct feed){ .f = f,
			    .queue = r->queue,
			    .place = place,
			    .buf = s->buf,
			    .at = off,
			    .end = off + len };
	if (off > t->place[place].bytes || len > t->place[place].bytes - off)
		/* A file with chunks has raw bytes, which are not those of the file. */
		return ckpt_error(err, -EPROTO, "it is made of bytes that are not there");
	if (!m)
		e = !move_has(f, place) || f->ckpt->file[place].chunk
			    ? ckpt_error(err, -EPROTO, "it is made of a file that is not open")
			    : 0;
	else if (m->how != MADE_GIVEN)
		e = feed_decode(r, s, m, depth, err);
	return e;
}

/* All reads are aligned, for files that were opened so, and end with a MiB of the file, of which
 * sums of ranges are made. */
static int file_next(struct feed *s, const uint8_t **ret, uint64_t *ret_n, struct ckpt_err *err)
{
	uint64_t from = s->at / 4096 * 4096, skip = s->at - from, n = 0,
		 want = MIN(MADE_CELL - from % MADE_CELL, align_up(s->end, 4096) - from);
	const struct format_range *wrong = NULL;

	while (n < want) {
		struct io_req q = { .buf = s->buf + n, .len = want - n, .off = from + n };
		int64_t r;

		q.fd = move_take(s->f, s->place, err);
		if (q.fd < 0)
			return q.fd == -EAGAIN
				       ? ckpt_error_errno(err, EMFILE,
							  "cannot open %s of the checkpoint",
							  s->f->ckpt->file[s->place].name)
				       : q.fd;
		r = io_submit(s->queue, &q);
		assert(!r);
		r = io_reap(s->queue)->res;
		io_files_give(s->f->files, s->place);
		if (r < 0)
			return ckpt_error_errno(
				err, (int)-r, "%s: cannot read %llu bytes at offset %llu",
				s->f->ckpt->file[s->place].name, (unsigned long long)(want - n),
				(unsigned long long)(from + n));
		n += (uint64_t)r;
		if (!r || r % 4096)
			break;
	}
	if (n <= skip)
		return ckpt_error(err, -EBADMSG, "%s is cut short: it ends at byte %llu",
				  s->f->ckpt->file[s->place].name, (unsigned long long)(from + n));
	range_sums_add(s->f->sums, s->place, from, n, s->buf, range_wrong_keep, &wrong);
	if (wrong)
		return range_damaged(&s->f->ckpt->table, &s->f->ckpt->file[s->place], s->place,
				     wrong, wrong->off, RANGE_CRC_WRONG, err);
	*ret = s->buf + skip;
	*ret_n = MIN(n - skip, s->end - s->at);
	s->at += *ret_n;
	return 0;
}

static int feed_next(struct feed *s, const uint8_t **ret, uint64_t *ret_n, struct ckpt_err *err);

/* The next cell of a decoded place, into buf. */
static int cell_next(struct feed *s, struct ckpt_err *err)
{
	uint64_t bytes = s->f->ckpt->table.place[s->place].bytes;
	int e = 0;

	s->lo = s->hi;
	s->hi = MIN(s->lo + MADE_CELL, bytes);
	s->x.out = s->buf;
	s->x.out_len = s->hi - s->lo;
	while (!e && (s->x.out_len || s->hi == bytes)) {
		uint64_t had = s->x.out_len;

		if (!s->x.in_len && s->from->at < s->from->end)
			e = feed_next(s->from, &s->x.in, &s->x.in_len, err);
		if (!e)
			e = decoder_take(s->d, &s->x, err);
		if (!e && !s->x.in_len && s->from->at == s->from->end && had == s->x.out_len) {
			e = decoder_end(s->d, err);
			if (!e)
				range_sums_ended(s->f->sums, s->place);
			return e;
		}
	}
	return e;
}

static int feed_next(struct feed *s, const uint8_t **ret, uint64_t *ret_n, struct ckpt_err *err)
{
	const struct format_made *m = made_of(s->f->ckpt, s->place);
	int e = 0;

	if (!m)
		return file_next(s, ret, ret_n, err);
	if (m->how == MADE_GIVEN) {
		*ret = (const uint8_t *)m->given + s->at;
		*ret_n = s->end - s->at;
	} else {
		while (s->hi <= s->at && !e)
			e = cell_next(s, err);
		*ret = s->buf + (s->at - s->lo);
		*ret_n = MIN(s->hi, s->end) - s->at;
	}
	s->at += *ret_n;
	return e;
}

/* --- of all made places --- */

int made_open(const struct move_files *f, struct made_reader **ret, struct ckpt_err *err)
{
	struct made_reader *m = calloc(1, sizeof *m);
	uint64_t bytes;
	int e;

	*ret = m;
	if (m)
		m->feed = calloc((size_t)f->ckpt->nmade + 1, sizeof(struct feed *));
	if (!m || !m->feed) {
		free(TAKE(*ret));
		return ckpt_error(err, -ENOMEM, "out of memory for decoders");
	}
	m->f = f;
	m->open_max = f->decoder_max
			      ? f->decoder_max
			      : made_fit(f->ckpt, f->buffer_bytes ? f->buffer_bytes : MADE_MEMORY,
					 &bytes);
	e = io_queue_open(f->ops, IO_INLINE, 1, &m->queue, err);
	if (e)
		made_close(TAKE(*ret));
	return e;
}

void made_close(struct made_reader *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->f->ckpt->nmade; i++)
		feed_close(m->feed[i]);
	io_queue_close(m->queue);
	free(m->feed);
	free(m);
}

/* Of a place that is being decoded: buffers and decoders, down to its file. */
static uint64_t feed_bytes(const struct checkpoint *c, uint32_t place)
{
	const struct format_made *m = made_of(c, place);
	uint64_t bytes = MADE_CELL;

	for (uint32_t depth = 0; m && m->how != MADE_GIVEN && depth < MADE_DEPTH_MAX; depth++) {
		/* All but zstd's keep much less than a cell. */
		bytes += MADE_CELL + (m->how == MADE_ZSTD ? DECODER_BYTES : MADE_CELL / 8);
		m = made_of(c, m->from);
	}
	return bytes;
}

uint32_t made_fit(const struct checkpoint *c, uint64_t mem_limit, uint64_t *ret_bytes)
{
	uint64_t most = 0, n = 0, fit;

	for (uint32_t i = 0; i < c->nmade; i++) {
		if (c->made[i].how == MADE_GIVEN)
			continue;
		most = MAX(most, feed_bytes(c, c->nfile + i));
		n++;
	}
	fit = n ? mem_limit / 8 / most : 0;
	fit = MAX(fit, UINT64_C(1));
	n = MIN(n, (uint64_t)MADE_OPEN_MAX);
	n = MIN(n, fit);
	*ret_bytes = n * most;
	return (uint32_t)n;
}

static void place_close(struct made_reader *m, uint32_t i)
{
	feed_close(TAKE(m->feed[i]));
	m->nopen--;
}

static void oldest_close(struct made_reader *m)
{
	uint32_t old = TABLE_NONE;

	for (uint32_t i = 0; i < m->f->ckpt->nmade; i++)
		if (m->feed[i] && (old == TABLE_NONE || m->feed[i]->used < m->feed[old]->used))
			old = i;
	place_close(m, old);
}

static int feed_at(struct made_reader *m, uint32_t i, uint64_t from, struct ckpt_err *err)
{
	uint32_t place = m->f->ckpt->nfile + i;
	int e = 0;

	if (m->feed[i] && (m->feed[i]->lo > from || MUTANT(MADE_ALWAYS_ANEW)))
		place_close(m, i);
	if (!m->feed[i]) {
		if (m->nopen == m->open_max)
			oldest_close(m);
		e = feed_open(m, place, 0, m->f->ckpt->table.place[place].bytes, 0, &m->feed[i],
			      err);
		if (!m->feed[i])
			return e;
		m->nopen++;
	}
	m->feed[i]->used = ++m->clock;
	return e;
}

/* A feed that failed is not asked again. */
static int made_failed(struct made_reader *m, uint32_t i, int e, struct ckpt_err *err)
{
	uint32_t place = m->f->ckpt->nfile + i, root = checkpoint_file_of(m->f->ckpt, place);

	place_close(m, i);
	return ckpt_error_prefix(err, e, "%s in %s", m->f->ckpt->table.place[place].name,
				 root == TABLE_NONE ? "memory" : m->f->ckpt->file[root].name);
}

int made_run(struct made_reader *m, uint32_t place, uint64_t from, uint64_t to, made_fn *fn,
	     void *arg, struct ckpt_err *err)
{
	uint32_t i = place - m->f->ckpt->nfile;
	const struct format_made *x = &m->f->ckpt->made[i];
	struct feed *s;
	int e;

	if (x->how == MADE_GIVEN)
		return fn(arg, from, to, (const uint8_t *)x->given + from);
	if (from >= to)
		return 0;
	e = feed_at(m, i, from, err);
	s = m->feed[i];
	if (!s)
		return e;
	while (!e && s->hi <= from)
		e = cell_next(s, err);
	while (!e) {
		int r = fn(arg, s->lo, s->hi, s->buf);

		if (r || s->hi >= to) {
			if (to == m->f->ckpt->table.place[place].bytes)
				place_close(m, i);
			return r;
		}
		e = cell_next(s, err);
	}
	return made_failed(m, i, e, err);
}
