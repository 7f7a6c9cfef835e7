/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_made.c - places that are made of bytes of files: read, read window by window and
 * verified; decoded once where they are asked for in their order; damage is found.
 */
#include "ckpt/coding/crc.h"
#include "ckpt/move/move.h"
#include "tests/lib/draw.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include <malloc.h>
#include <zlib.h>
#include <zstd.h>

#define ELEMS 1500000u
#define BYTES (4 * (uint64_t)ELEMS) /* of each place */
#define MADE 5u

static struct ckpt_err err;
static struct held {
	struct checkpoint c;
	struct format_file file;
	struct format_made made[MADE];
	struct io_ops ops;
	uint8_t *plain, *swapped, *bytes;
	uint64_t len, bad_at;
	_Atomic uint64_t read; /* bytes, of all threads */
} x;

static int held_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	(void)ctx, (void)dirfd, (void)name, (void)flags, (void)mode;
	return 5;
}

static int held_close(void *ctx, int fd)
{
	(void)ctx, (void)fd;
	return 0;
}

static int held_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	(void)ctx, (void)fd;
	*ret_bytes = x.len;
	return 0;
}

static int64_t held_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	(void)ctx, (void)fd;
	if (off >= x.len)
		return 0;
	len = MIN(len, x.len - off);
	memcpy(buf, x.bytes + off, len);
	if (x.bad_at >= off && x.bad_at < off + len)
		((uint8_t *)buf)[x.bad_at - off] ^= 1;
	x.read += len;
	return (int64_t)len;
}

/* Bytes at the file's end, as place nfile + i sees them. */
static void item_add(uint32_t i, enum made_how how, const void *coded, uint64_t len)
{
	x.made[i] =
		(struct format_made)ROW(.how = (uint8_t)how, .elem = 4, .off = x.len, .len = len,
					.has_crc = true, .crc = crc_add(0, x.plain, BYTES));
	if (coded)
		memcpy(x.bytes + x.len, coded, len);
	x.len += len;
}

static uint64_t deflate_to(const uint8_t *from, uint8_t *to)
{
	z_stream z = { .next_in = (uint8_t *)from, .avail_in = (uInt)BYTES };

	assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_out = to;
	z.avail_out = (uInt)(2 * BYTES);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}

static void tensor_add(uint32_t i)
{
	uint64_t zero = 0, n = ELEMS;
	char name[8];
	struct table_tensor t =
		ROW(.component = "m", .name = name, .of = "", .dtype = CKPT_F32,
		    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 1, .shape = &n);
	struct table_place place = { .name = name, .bytes = BYTES };
	struct table_piece p = { .place = 1 + i,
				 .fp = fingerprint(x.plain, ELEMS, 4, 0),
				 .fp_known = true };
	struct arena a = { 0 };

	snprintf(name, sizeof name, "t%u", i);
	assert_int_equal(table_add_place(&x.c.table, &place, NULL, NULL), 0);
	assert_int_equal(indexset_box(1, &zero, &n, &a, &p.set), 0);
	assert_int_equal(table_add_tensor(&x.c.table, &t, &p.tensor, NULL), 0);
	assert_ok_err(table_add_piece(&x.c.table, &p, &err), &err);
	arena_free(&a);
}

static void held_begin(void)
{
	uint64_t seed = draw_seed("held");
	uint8_t *coded = malloc(2 * BYTES);
	struct table_place place = { .name = "file" };

	x = (struct held){ .bad_at = UINT64_MAX };
	x.ops = (struct io_ops)ROW(.open = held_open, .close = held_close, .size = held_size,
				   .pread = held_pread);
	x.plain = malloc(BYTES);
	x.swapped = malloc(BYTES);
	x.bytes = malloc(8 * BYTES);
	assert_true(coded && x.plain && x.swapped && x.bytes);
	for (uint64_t i = 0; i < BYTES; i++)
		x.plain[i] = (uint8_t)(i % 3 ? i >> 9 : draw(&seed) % 7);
	for (uint64_t i = 0; i < BYTES; i++)
		x.swapped[i / 4 * 4 + 3 - i % 4] = x.plain[i];
	x.len = 12345;
	item_add(0, MADE_SWAPPED, x.swapped, BYTES);
	item_add(1, MADE_DEFLATE, coded, deflate_to(x.plain, coded));
	item_add(2, MADE_ZSTD, coded, ZSTD_compress(coded, 2 * BYTES, x.plain, BYTES, 1));
	/* A place that is swapped from the one before it, in which the bytes are deflated. */
	item_add(3, MADE_DEFLATE, coded, deflate_to(x.swapped, coded));
	x.made[3].crc = crc_add(0, x.swapped, BYTES);
	item_add(4, MADE_SWAPPED, NULL, 0);
	x.made[4].from = 4;
	x.made[4].off = 0;
	x.made[4].len = BYTES;
	free(coded);
	place.bytes = x.len;
	assert_int_equal(table_add_place(&x.c.table, &place, NULL, NULL), 0);
	for (uint32_t i = 0; i < MADE; i++)
		tensor_add(i);
	x.c.table.piece[3].fp = fingerprint(x.swapped, ELEMS, 4, 0);
	assert_ok_err(table_seal(&x.c.table, &err), &err);
	x.file = (struct format_file)ROW(.name = "file", .raw_bytes = x.len, .file_bytes = x.len);
	x.c.nfile = 1;
	x.c.file = &x.file;
	x.c.nmade = MADE;
	x.c.made = x.made;
}

static void held_end(void)
{
	table_free(&x.c.table);
	free(x.plain);
	free(x.swapped);
	free(x.bytes);
}

static const uint8_t *held_tensor(uint32_t i)
{
	return i == 3 ? x.swapped : x.plain;
}

/* All tensors, one behind the other in one place. */
static void memory_make(struct table *t)
{
	struct table_place place = { .name = "memory", .bytes = MADE * BYTES };

	*t = (struct table){ 0 };
	assert_int_equal(table_add_place(t, &place, NULL, NULL), 0);
	for (uint32_t i = 0; i < MADE; i++) {
		struct table_piece p = x.c.table.piece[i];

		p.off = i * BYTES;
		p.place = 0;
		assert_int_equal(table_add_tensor(t, &x.c.table.tensor[i], NULL, NULL), 0);
		assert_ok_err(table_add_piece(t, &p, &err), &err);
	}
	assert_ok_err(table_seal(t, &err), &err);
}

static int held_read(uint8_t *to)
{
	void *base = to;
	struct move_files f;
	struct table dst;
	struct plan p;
	int e;

	memory_make(&dst);
	assert_ok_err(plan_make(&x.c.table, &dst, NULL, &p, NULL, &err), &err);
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	e = move_read(&p, &f, &base, NULL, NULL, &err);
	move_close(&f);
	plan_free(&p);
	table_free(&dst);
	return e;
}

TEST(made_places_are_read_like_others)
{
	uint8_t *to = calloc(MADE, BYTES);

	held_begin();
	assert_ok_err(held_read(to), &err);
	for (uint32_t i = 0; i < MADE; i++)
		assert_true(!memcmp(to + i * BYTES, held_tensor(i), BYTES));
	/* GIVEN: nothing is read for it. */
	x.made[1] = (struct format_made)ROW(.how = MADE_GIVEN, .given = x.plain);
	memset(to, 0, MADE * BYTES);
	assert_ok_err(held_read(to), &err);
	for (uint32_t i = 0; i < MADE; i++)
		assert_true(!memcmp(to + i * BYTES, held_tensor(i), BYTES));
	free(to);
	held_end();
}

static int on_window(void *arg, const struct window *w, const uint8_t *buf)
{
	uint8_t *to = arg;

	for (uint32_t i = 0; i < w->ncut; i++)
		memcpy(to + w->cut[i].dst_off, buf + w->cut[i].buf_off, w->cut[i].len);
	return 0;
}

/* Windows of some MiB over 6 MiB each; the item that two places use is decoded for each of them. */
TEST(each_place_is_decoded_once_where_windows_go_front_to_back)
{
	uint8_t *to = calloc(MADE, BYTES);
	struct move_files f;
	struct table dst;

	held_begin();
	memory_make(&dst);
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	x.read = 0;
	assert_true(move_window_bytes(16 * MIB) < 2 * BYTES);
	assert_ok_err(move_windows(&f, &dst, 16 * MIB + move_decoder_bytes(&x.c), 0, on_window, to,
				   NULL, NULL, &err),
		      &err);
	for (uint32_t i = 0; i < MADE; i++)
		assert_true(!memcmp(to + i * BYTES, held_tensor(i), BYTES));
	assert_true(x.read < x.len + x.made[3].len + MADE * 2 * 4096);
	move_close(&f);
	table_free(&dst);
	free(to);
	held_end();
}

struct told {
	uint32_t n;
	char kind[16], tensor[32], text[200];
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *t = arg;

	t->n++;
	snprintf(t->kind, sizeof t->kind, "%s", f->kind);
	snprintf(t->tensor, sizeof t->tensor, "%s", f->tensor);
	snprintf(t->text, sizeof t->text, "%s", f->text);
}

TEST(what_is_wrong_in_a_made_place_is_found_and_named)
{
	static const struct move_subset all;
	uint8_t *to = calloc(MADE, BYTES);
	struct move_verified v;
	struct move_files f;
	struct told t;

	held_begin();
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	t.n = 0;
	assert_ok_err(move_verify_some(&f, &all, NULL, NULL, on_fault, &t, &v, &err), &err);
	assert_int_equal(t.n, 0);
	assert_int_equal(v.pieces, MADE);
	assert_int_equal(v.unsummed, 12345); /* what is no item's */
	for (uint32_t i = 0; i < 3; i++) {
		static const char *const of[] = { "m/t0", "m/t1", "m/t2" };

		t.n = 0;
		x.bad_at = x.made[i].off + x.made[i].len / 2;
		assert_int_equal(move_verify_some(&f, &all, NULL, NULL, on_fault, &t, &v, &err),
				 -EBADMSG);
		assert_int_equal(t.n, 1);
		assert_string_equal(t.kind, "checksum");
		assert_string_equal(t.tensor, of[i]);
		assert_non_null(strstr(t.text, " in file"));
		assert_int_equal(held_read(to), -EBADMSG);
	}
	x.bad_at = UINT64_MAX;
	/* Another size than announced; made of more than there is. */
	x.made[2].len--;
	assert_int_equal(held_read(to), -EBADMSG);
	x.made[2].len = x.len;
	assert_int_equal(held_read(to), -EPROTO);
	move_close(&f);
	free(to);
	held_end();
}

/* The last byte of a stream shows whether its sum is right: nothing of that is seen by those that
 * read its beginning, until they ask. */
TEST(a_stream_that_was_read_in_part_is_decoded_to_its_end_by_those_that_must_know)
{
	const uint64_t zero = 0, n = 10;
	struct table_place place = { .name = "memory", .bytes = 40 };
	bool tensor[MADE] = { false };
	uint32_t got[10];
	void *base = got;
	struct table dst = { 0 };
	struct table_piece p = { .off = 0 };
	struct move_files f;
	struct plan plan;

	held_begin();
	assert_int_equal(table_add_place(&dst, &place, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&dst, &x.c.table.tensor[1], NULL, NULL), 0);
	assert_int_equal(indexset_box(1, &zero, &n, &dst.arena, &p.set), 0);
	assert_ok_err(table_add_piece(&dst, &p, &err), &err);
	assert_ok_err(table_seal(&dst, &err), &err);
	x.made[1].crc ^= 1;
	assert_ok_err(plan_make(&x.c.table, &dst, NULL, &plan, NULL, &err), &err);
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	assert_ok_err(move_read(&plan, &f, &base, NULL, NULL, &err), &err);
	assert_memory_equal(got, x.plain, sizeof got);
	x.read = 0;
	assert_int_equal(move_sums_finish(&f, tensor, NULL, NULL, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "t1 in file"));
	/* What was decoded to its end is not decoded again. */
	assert_true(x.read < x.made[1].len + 2 * 4096);
	x.made[1].crc ^= 1;
	tensor[2] = true; /* nothing was read of it */
	assert_ok_err(move_sums_finish(&f, tensor, NULL, NULL, &err), &err);
	assert_true(x.read > 2 * x.made[1].len + x.made[2].len);
	x.read = 0;
	assert_ok_err(move_sums_finish(&f, tensor, NULL, NULL, &err), &err);
	assert_int_equal(x.read, 0);
	move_close(&f);
	plan_free(&plan);
	table_free(&dst);
	held_end();
}

/* A record in another byte order: its sum is of its bytes as they lie in the file. */
TEST(the_sum_of_a_range_is_compared_while_a_place_is_made_of_it)
{
	struct format_range range[] = { { .len = 12345, .kind = RANGE_META },
					{ .len = BYTES, .kind = RANGE_DATA, .sum = SUM_CRC32 },
					{ .kind = RANGE_DATA } };
	uint8_t *to = calloc(MADE, BYTES);

	held_begin();
	range[1].off = 12345;
	range[1].crc = crc_add(0, x.swapped, BYTES);
	range[2].off = 12345 + BYTES;
	range[2].len = x.len - range[2].off;
	x.file.range = range;
	x.file.nrange = ARRAY_LEN(range);
	x.made[0].has_crc = false;
	assert_ok_err(held_read(to), &err);
	x.bad_at = x.made[0].off + BYTES - 1;
	assert_int_equal(held_read(to), -EBADMSG);
	assert_non_null(strstr(err.msg, "CRC-32"));
	free(to);
	held_end();
}

/* --- memory --- */

#define COLUMNS 48u /* places, each a part of every row */
#define ROWS 1024u
#define WIDTH 256u /* elements of a row in a place */

static uint64_t zstd_to(const void *from, uint64_t len, uint8_t *to, uint64_t room)
{
	ZSTD_CCtx *z = ZSTD_createCCtx();
	ZSTD_inBuffer in = { from, len, 0 };
	ZSTD_outBuffer out = { to, room, 0 };

	/* Its frame does not say how many bytes it has: so a decoder gets all of its window. */
	assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, 23)));
	assert_false(ZSTD_isError(ZSTD_compressStream2(z, &out, &in, ZSTD_e_continue)));
	assert_int_equal(ZSTD_compressStream2(z, &out, &in, ZSTD_e_end), 0);
	ZSTD_freeCCtx(z);
	return out.pos;
}

static uint32_t value_at(uint64_t row, uint64_t column)
{
	return (uint32_t)(row * 7 + column);
}

/* A tensor of ROWS rows, whose columns lie in many places: each window takes some of all of
 * them. */
static void columns_begin(void)
{
	const uint64_t shape[] = { ROWS, COLUMNS * WIDTH }, bytes = 4 * ROWS * WIDTH;
	struct table_tensor t =
		ROW(.component = "m", .name = "t", .of = "", .dtype = CKPT_F32,
		    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	uint32_t *plain = malloc(bytes);
	struct arena *a = &x.c.table.arena;

	x = (struct held){ .bad_at = UINT64_MAX };
	x.ops = (struct io_ops)ROW(.open = held_open, .close = held_close, .size = held_size,
				   .pread = held_pread);
	x.bytes = malloc(COLUMNS * bytes);
	x.c.made = arena_array(a, COLUMNS, sizeof *x.c.made);
	assert_true(plain && x.bytes && x.c.made);
	x.c.nmade = COLUMNS;
	x.c.nfile = 1;
	x.c.file = &x.file;
	assert_int_equal(
		table_add_place(&x.c.table,
				&(struct table_place)ROW(.name = "file", .bytes = COLUMNS * bytes),
				NULL, NULL),
		0);
	assert_int_equal(table_add_tensor(&x.c.table, &t, NULL, NULL), 0);
	for (uint32_t i = 0; i < COLUMNS; i++) {
		const uint64_t lo[] = { 0, i * WIDTH }, n[] = { ROWS, WIDTH };
		const struct table_place place = { .name = "column", .bytes = bytes };
		struct table_piece p = { .place = 1 + i };
		uint64_t len;

		for (uint64_t k = 0; k < ROWS * WIDTH; k++)
			plain[k] = value_at(k / WIDTH, i * WIDTH + k % WIDTH);
		len = zstd_to(plain, bytes, x.bytes + x.len, bytes);
		x.c.made[i] = (struct format_made)ROW(.how = MADE_ZSTD, .off = x.len, .len = len);
		x.len += len;
		assert_int_equal(table_add_place(&x.c.table, &place, NULL, NULL), 0);
		assert_int_equal(indexset_box(2, lo, n, a, &p.set), 0);
		assert_ok_err(table_add_piece(&x.c.table, &p, &err), &err);
	}
	assert_ok_err(table_seal(&x.c.table, &err), &err);
	x.file = (struct format_file)ROW(.name = "file", .raw_bytes = x.len, .file_bytes = x.len);
	free(plain);
}

struct columns {
	uint64_t at, most; /* elements that were right; bytes that were allocated */
};

static int on_rows(void *arg, const struct window *w, const uint8_t *buf)
{
	struct columns *c = arg;
	struct mallinfo2 now = mallinfo2();

	for (uint32_t i = 0; i < w->ncut; i++)
		for (uint64_t k = 0; k < w->cut[i].len / 4; k++, c->at++)
			assert_int_equal(
				((const uint32_t *)(buf + w->cut[i].buf_off))[k],
				value_at(c->at / (COLUMNS * WIDTH), c->at % (COLUMNS * WIDTH)));
	c->most = MAX(c->most, (uint64_t)(now.uordblks + now.hblkhd));
	return 0;
}

TEST(decoders_are_part_of_the_memory_limit)
{
	const uint64_t limit = 64 * MIB, shape[] = { ROWS, COLUMNS * WIDTH }, zero[2] = { 0 };
	struct table_place place = { .name = "memory", .bytes = 4 * ROWS * COLUMNS * WIDTH };
	struct columns c = { 0 };
	struct table dst = { 0 };
	struct table_piece p = { .place = 0 };
	struct move_files f;
	struct arena a = { 0 };
	uint64_t before;

	columns_begin();
	assert_int_equal(table_add_place(&dst, &place, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&dst, &x.c.table.tensor[0], NULL, NULL), 0);
	assert_int_equal(indexset_box(2, zero, shape, &a, &p.set), 0);
	assert_ok_err(table_add_piece(&dst, &p, &err), &err);
	assert_ok_err(table_seal(&dst, &err), &err);
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	before = mallinfo2().uordblks + mallinfo2().hblkhd;
	assert_ok_err(move_windows(&f, &dst, limit, 0, on_rows, &c, NULL, NULL, &err), &err);
	assert_int_equal(c.at, ROWS * COLUMNS * WIDTH);
	assert_true(c.most - before < 2 * move_decoder_bytes(&x.c));
	/* What a decoder takes is missing for windows. */
	assert_true(move_decoder_bytes(&x.c) > 9 * MIB);
	assert_int_equal(move_windows(&f, &dst, 20 * MIB, 0, on_rows, &c, NULL, NULL, &err),
			 -EINVAL);
	assert_non_null(strstr(err.msg, "the minimum is 27 MiB"));
	move_close(&f);
	table_free(&dst);
	table_free(&x.c.table);
	arena_free(&a);
	free(x.bytes);
}

/* mallinfo2 has no numbers of a sanitizer's allocator. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEASURED false
#else
#define MEASURED true
#endif

static int most_allocated(void *arg, uint64_t done)
{
	struct mallinfo2 now = mallinfo2();

	(void)done;
	*(uint64_t *)arg = MAX(*(uint64_t *)arg, (uint64_t)(now.uordblks + now.hblkhd));
	return 0;
}

/* Half of each place: its decoder stays open for those that go on. */
TEST(decoders_that_stay_open_are_few_also_where_nobody_sets_a_limit)
{
	const uint64_t n[] = { ROWS / 2, COLUMNS * WIDTH }, zero[2] = { 0 };
	struct table_place place = { .name = "memory", .bytes = 2 * ROWS * COLUMNS * WIDTH };
	uint64_t before, most = 0;
	struct table dst = { 0 };
	struct table_piece p = { .place = 0 };
	struct move_files f;
	struct plan plan;
	void *base = malloc(place.bytes);

	columns_begin();
	assert_int_equal(table_add_place(&dst, &place, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&dst, &x.c.table.tensor[0], NULL, NULL), 0);
	assert_int_equal(indexset_box(2, zero, n, &dst.arena, &p.set), 0);
	assert_ok_err(table_add_piece(&dst, &p, &err), &err);
	assert_ok_err(table_seal(&dst, &err), &err);
	assert_ok_err(plan_make(&x.c.table, &dst, NULL, &plan, NULL, &err), &err);
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	before = mallinfo2().uordblks + mallinfo2().hblkhd;
	assert_ok_err(move_read(&plan, &f, &base, most_allocated, &most, &err), &err);
	if (MEASURED)
		assert_true(most > before && most - before < 40 * MIB);
	for (uint64_t k = 0; k < place.bytes / 4; k++)
		assert_int_equal(((uint32_t *)base)[k],
				 value_at(k / (COLUMNS * WIDTH), k % (COLUMNS * WIDTH)));
	move_close(&f);
	plan_free(&plan);
	table_free(&dst);
	table_free(&x.c.table);
	free(x.bytes);
	free(base);
}

UNIT();
