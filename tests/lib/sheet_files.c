/* SPDX-License-Identifier: Apache-2.0 */
/* sheet_files.c - see sheet_files.h. */
#include "tests/lib/sheet_files.h"
#include "ckpt/base/util.h"
#include "tests/lib/unit.h"

struct making {
	const struct sheet *s;
	uint8_t **raw; /* [nfile] the places' bytes */
	struct sheet_done *done;
	struct chunk **chunk;
	uint32_t *crc;
	uint8_t *bytes; /* of the file that is made */
	uint64_t len;
	uint8_t *used; /* [len] of a file that is not chunked: how often */
};

uint32_t sheet_crc32(const uint8_t *p, uint64_t len)
{
	uint32_t x = UINT32_MAX;

	for (uint64_t i = 0; i < len; i++) {
		x ^= p[i];
		for (int k = 0; k < 8; k++)
			x = x >> 1 ^ (x & 1 ? 0xedb88320 : 0);
	}
	return ~x;
}

static void grow(struct making *m, uint64_t len)
{
	if (len <= m->len)
		return;
	m->bytes = realloc(m->bytes, len);
	m->used = realloc(m->used, len);
	assert_true(m->bytes && m->used);
	memset(m->bytes + m->len, 0, len - m->len);
	memset(m->used + m->len, 0, len - m->len);
	m->len = len;
}

static void file_put(struct making *m, uint64_t off, const void *p, uint64_t len)
{
	grow(m, off + len);
	if (len)
		memcpy(m->bytes + off, p, len);
	for (uint64_t i = 0; i < len; i++)
		m->used[off + i]++;
}

/* All pieces of the place, and their fingerprints. */
static void pieces_make(struct making *m, uint32_t file, sheet_piece_fn *fn, void *arg)
{
	const struct table *t = &m->s->table;

	m->raw[file] = calloc(1, t->place[file].bytes + 1);
	assert_non_null(m->raw[file]);
	for (uint32_t i = 0; i < t->npiece; i++) {
		struct table_piece *p = &t->piece[i];

		if (p->place != file)
			continue;
		assert_null(p->stride);
		p->fp_known = fn(arg, t, p, m->raw[file] + p->off);
		p->fp = p->fp_known ? memdir_fingerprint(t, p, m->raw[file] + p->off) : 0;
		if (!m->s->file[file].chunk_log2)
			file_put(m, p->off, m->raw[file] + p->off, p->len);
	}
}

/* Raw, one behind the other, each on a multiple of 4096. */
static void chunks_make(struct making *m, uint32_t file)
{
	const struct sheet_file *f = &m->s->file[file];
	const struct table *t = &m->s->table;
	uint64_t size = UINT64_C(1) << f->chunk_log2, at = f->data_off;
	uint64_t n = div_up(t->place[file].bytes, size);
	struct chunk *chunk = calloc(n + 1, sizeof *chunk);

	assert_non_null(chunk);
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];

		for (uint64_t c = p->off / size; p->place == file && c * size < p->off + p->len;
		     c++) {
			uint64_t end = MIN(p->off + p->len - c * size, size);

			chunk[c].raw_len = (uint32_t)MAX(chunk[c].raw_len, end);
			chunk[c].elem_bytes = (uint8_t)t->tensor[p->tensor].elem_bytes;
		}
	}
	for (uint64_t c = 0; c < n; c++) {
		struct chunk *x = &chunk[c];

		x->source = x->base = UINT32_MAX;
		if (!x->raw_len)
			continue;
		x->off = at;
		x->stored_len = x->raw_len;
		x->raw_hash = hash128(m->raw[file] + c * size, x->raw_len);
		file_put(m, at, m->raw[file] + c * size, x->raw_len);
		at = align_up(at + x->raw_len, 4096);
	}
	m->chunk[file] = chunk;
	m->done[file].chunk = chunk;
	m->done[file].nchunk = n;
	m->done[file].data_end = at;
	grow(m, at);
}

static int run_put(struct making *m, uint32_t run, struct ckpt_err *err)
{
	const struct sheet_run *x = &m->s->run[run];
	const struct sheet_state state = { .file = m->done, .crc = m->crc };
	struct arena a = { 0 }, b = { 0 };
	struct hash128 seal, again;
	const void *p, *q;
	uint64_t len, more;
	int r = m->s->format->fill(m->s, run, &state, &a, &p, &len, &seal, err);

	if (r) {
		arena_free(&a);
		return r;
	}
	assert_ok_err(m->s->format->fill(m->s, run, &state, &b, &q, &more, &again, err), err);
	assert_int_equal(len, more);
	assert_memory_equal(p, q, len);
	assert_memory_equal(seal.b, again.b, sizeof seal.b);
	if (x->len)
		assert_int_equal(len, x->len);
	file_put(m, x->off == SHEET_END ? m->done[x->file].data_end : x->off, p, len);
	m->done[x->file].seal = seal;
	arena_free(&a);
	arena_free(&b);
	return 0;
}

static void sums_make(struct making *m, uint32_t file)
{
	for (uint32_t i = 0; i < m->s->nsum; i++) {
		const struct sheet_sum *x = &m->s->sum[i];

		if (x->file == file)
			m->crc[i] = sheet_crc32(m->raw[file] + x->off, x->len);
	}
}

static void file_end(struct making *m, uint32_t file, struct memdir *d)
{
	const struct sheet_file *f = &m->s->file[file];

	if (f->chunk_log2)
		assert_true(m->len <= f->bytes);
	for (uint64_t i = 0; i < m->len && !f->chunk_log2; i++)
		if (m->used[i] != 1)
			fail_msg("%s: byte %llu is in %u runs and pieces", f->name,
				 (unsigned long long)i, m->used[i]);
	m->done[file].bytes = m->len;
	(void)memdir_add(d, f->name, m->bytes, m->len);
	free(TAKE(m->bytes));
	free(TAKE(m->used));
	m->len = 0;
}

static void sheet_check(const struct sheet *s)
{
	assert_true(s->table.sealed);
	assert_int_equal(s->table.nplace, s->nfile);
	for (uint32_t i = 1; i < s->nrun; i++)
		assert_true(s->run[i - 1].file < s->run[i].file ||
			    (s->run[i - 1].file == s->run[i].file &&
			     s->run[i - 1].off < s->run[i].off));
	for (uint32_t i = 0; i < s->nrun; i++)
		assert_true(s->run[i].file < s->nfile);
}

int sheet_files_write(const struct sheet *s, sheet_piece_fn *fn, void *arg, struct memdir *d,
		      struct hash128 *ret_seal, struct ckpt_err *err)
{
	struct making m = { .s = s };
	int r = 0;

	sheet_check(s);
	m.raw = calloc(s->nfile, sizeof *m.raw);
	m.done = calloc(s->nfile, sizeof *m.done);
	m.chunk = calloc(s->nfile, sizeof *m.chunk);
	m.crc = calloc((size_t)s->nsum + 1, sizeof *m.crc);
	assert_true(m.raw && m.done && m.chunk && m.crc);
	for (uint32_t i = 0, run = 0; i < s->nfile && !r; i++) {
		pieces_make(&m, i, fn, arg);
		if (s->file[i].chunk_log2)
			chunks_make(&m, i);
		sums_make(&m, i);
		for (; run < s->nrun && s->run[run].file == i && !r; run++)
			r = run_put(&m, run, err);
		if (!r)
			file_end(&m, i, d);
	}
	if (ret_seal)
		*ret_seal = m.done[s->nfile - 1].seal;
	for (uint32_t i = 0; i < s->nfile; i++) {
		free(m.raw[i]);
		free(m.chunk[i]);
	}
	free(m.raw);
	free(m.done);
	free(m.chunk);
	free(m.crc);
	free(m.bytes);
	free(m.used);
	return r;
}
