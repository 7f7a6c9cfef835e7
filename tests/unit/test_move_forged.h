/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_forged.h - checkpoints as formats other than ours might have them, made by hand: one
 * file of small chunks, or of none, that lie anywhere in it, in memory that costs nothing; pieces
 * that overlap or are cut oddly. Raw byte g is forged_byte(g); where no chunk is, the file has
 * zeros.
 */
#ifndef CKPT_TEST_MOVE_FORGED_H
#define CKPT_TEST_MOVE_FORGED_H
#include <fcntl.h>
#include "ckpt/move/block_stream.h"
#include "ckpt/move/move.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define FORGED_CHUNKS_MAX 256
#define FORGED_LOG2 12
#define FORGED_BYTES (1u << FORGED_LOG2)

struct forged {
	struct checkpoint c;
	struct format_file file;
	struct chunk chunk[FORGED_CHUNKS_MAX];
	uint64_t data_off, data_end; /* what chunks may occupy; the rest of it is zero */
	struct format_range range[3];
	struct io_ops ops;
	uint64_t bytes;	 /* of the file: reads end there */
	uint64_t bad_at; /* a byte that is changed; UINT64_MAX: none */
	int error;	 /* what each read says; 0 */
	int direct_error,
		plain_error;	/* what opening says with O_DIRECT, and for good without; 0 */
	uint64_t reads, nopens; /* so far */
	uint8_t raw[FORGED_CHUNKS_MAX * FORGED_BYTES];
};

static inline uint8_t forged_byte(uint64_t g)
{
	return (uint8_t)(g * 31 + g / 251 + 7);
}

static inline int forged_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	struct forged *x = ctx;

	(void)dirfd;
	(void)mode;
	assert_string_equal(name, "forged");
	if (flags & O_DIRECT && x->direct_error)
		return x->direct_error;
	if (!(flags & (O_DIRECT | O_NONBLOCK)) && x->plain_error)
		return x->plain_error;
	x->nopens++;
	return 5;
}

static inline int forged_close(void *ctx, int fd)
{
	struct forged *x = ctx;

	assert_int_equal(fd, 5);
	assert_true(x->nopens > 0);
	x->nopens--;
	return 0;
}

static inline int forged_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	(void)fd;
	*ret_bytes = ((struct forged *)ctx)->bytes;
	return 0;
}

static inline int64_t forged_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct forged *x = ctx;
	uint8_t *to = buf;

	(void)fd;
	x->reads++;
	if (x->error)
		return x->error;
	if (off >= x->bytes)
		return 0;
	len = MIN(len, x->bytes - off);
	memset(to, 0, len);
	if (!x->file.chunk)
		memcpy(to, x->raw + off, len);
	for (uint64_t i = 0; x->file.chunk && i < x->file.nchunk; i++) {
		const struct chunk *c = &x->chunk[i];
		uint64_t lo = MAX(c->off, off), hi = MIN(c->off + c->stored_len, off + len);

		if (lo < hi)
			memcpy(to + (lo - off), x->raw + i * FORGED_BYTES + (lo - c->off), hi - lo);
	}
	if (x->bad_at >= off && x->bad_at < off + len)
		to[x->bad_at - off] ^= 1;
	return (int64_t)len;
}

/* A tensor "m/NAME" of n elements, which lie from byte off of the raw space on. */
static inline void forged_hold(struct forged *x, const char *name, uint32_t dtype,
			       uint32_t elem_bytes, uint64_t n, uint64_t off)
{
	uint64_t zero = 0;
	struct table_tensor y =
		ROW(.component = "m", .name = name, .of = "", .dtype = dtype, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = 1, .shape = &n);
	struct table_piece p = { .off = off,
				 .fp = fingerprint(x->raw + off, n, elem_bytes, 0),
				 .fp_known = true };
	struct arena a = { 0 };
	struct ckpt_err err;

	assert_int_equal(indexset_box(1, &zero, &n, &a, &p.set), 0);
	assert_ok_err(table_add_tensor(&x->c.table, &y, &p.tensor, &err), &err);
	assert_ok_err(table_add_piece(&x->c.table, &p, &err), &err);
	arena_free(&a);
}

/* n chunks of 4 KiB at off[] of the file, 0 being a hole; off NULL: a plain file of as many bytes.
 * Hold what there is, then seal the table. */
static inline void forged_begin(struct forged *x, uint32_t n, const uint64_t *off)
{
	struct table_place place = { .name = "forged", .bytes = (uint64_t)n * FORGED_BYTES };

	assert_true(n <= FORGED_CHUNKS_MAX);
	*x = (struct forged){ .bad_at = UINT64_MAX };
	x->ops = (struct io_ops)ROW(.ctx = x, .open = forged_open, .close = forged_close,
				    .size = forged_size, .pread = forged_pread);
	for (uint64_t g = 0; g < place.bytes; g++)
		x->raw[g] = forged_byte(g);
	x->file = (struct format_file)ROW(.name = "forged", .raw_bytes = place.bytes,
					  .chunk_log2 = FORGED_LOG2, .nchunk = off ? n : 0,
					  .chunk = off ? x->chunk : NULL);
	x->data_off = x->data_end = FORGED_BYTES;
	x->bytes = place.bytes;
	for (uint32_t i = 0; off && i < n; i++) {
		if (!off[i])
			continue;
		x->chunk[i] = (struct chunk)ROW(.off = off[i], .stored_len = FORGED_BYTES,
						.raw_len = FORGED_BYTES, .source = TABLE_NONE,
						.base = TABLE_NONE,
						.raw_hash = hash128(x->raw + i * FORGED_BYTES,
								    FORGED_BYTES));
		x->data_end = MAX(x->data_end, off[i] + FORGED_BYTES);
	}
	if (off)
		x->bytes = x->data_end + FORGED_BYTES;
	x->file.file_bytes = x->bytes;
	x->c.nfile = 1;
	x->c.file = &x->file;
	assert_int_equal(table_add_place(&x->c.table, &place, NULL, NULL), 0);
}

static inline void forged_free(struct forged *x)
{
	assert_int_equal(x->nopens, 0);
	table_free(&x->c.table);
}

/* Read all tensors, one behind the other, to `to`; the result. */
static inline int forged_read(struct forged *x, enum io_engine engine, uint8_t *to,
			      struct ckpt_err *err)
{
	struct table_place place = { .name = "memory", .bytes = sizeof x->raw * 2 };
	struct table dst = { 0 };
	struct move_files f;
	struct plan p;
	void *base = to;
	uint64_t at = 0;
	int r = table_add_place(&dst, &place, NULL, err);

	for (uint32_t i = 0; r == 0 && i < x->c.table.ntensor; i++) {
		struct table_piece y = x->c.table.piece[x->c.table.first[i]];

		y.off = at;
		y.place = 0;
		r = table_add_tensor(&dst, &x->c.table.tensor[i], NULL, err);
		if (r == 0)
			r = table_add_piece(&dst, &y, err);
		at += y.len;
	}
	if (r == 0)
		r = table_seal(&dst, err);
	if (r == 0)
		r = plan_make(&x->c.table, &dst, NULL, &p, NULL, err);
	if (r == 0) {
		r = move_open(&x->ops, 0, &x->c, false, engine, &f, err);
		if (r == 0) {
			r = move_read(&p, &f, &base, NULL, NULL, err);
			move_close(&f);
		}
		plan_free(&p);
	}
	table_free(&dst);
	return r;
}

static inline int forged_verify(struct forged *x, const struct move_subset *s,
				format_fault_fn *fault, void *arg, struct move_verified *ret,
				struct ckpt_err *err)
{
	static const struct move_subset all;
	struct move_verified got;
	struct move_files f;
	int r;

	if (x->file.chunk) {
		x->range[0] = (struct format_range)ROW(.len = x->data_off, .kind = RANGE_META,
						       .sum = SUM_OPEN);
		x->range[1] = (struct format_range)ROW(.off = x->data_off,
						       .len = x->data_end - x->data_off,
						       .kind = RANGE_DATA, .sum = SUM_CHUNKS);
		x->range[2] = (struct format_range)ROW(.off = x->data_end,
						       .len = x->file.file_bytes - x->data_end,
						       .kind = RANGE_META, .sum = SUM_OPEN);
		x->file.range = x->range;
		x->file.nrange = 3;
	}
	r = move_open(&x->ops, 0, &x->c, false, IO_INLINE, &f, err);

	if (r == 0) {
		r = move_verify_some(&f, s ? s : &all, NULL, NULL, fault, arg, ret ? ret : &got,
				     err);
		move_close(&f);
	}
	return r;
}
#endif
