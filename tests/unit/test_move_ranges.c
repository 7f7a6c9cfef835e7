/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_ranges.c - files without chunks, verified by their ranges: what is read, which sums are
 * compared, how far a CRC-32 reaches over the blocks that are read, what counts as summed.
 */
#include "ckpt/coding/crc.h"
#include "ckpt/move/move.h"
#include "tests/lib/draw.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define BYTES ((uint64_t)37 * MIB + 12345)
#define RANGES_MAX 64u

/* A file whose bytes follow from their places. */
struct plain {
	struct checkpoint c;
	struct format_file file;
	struct format_range range[RANGES_MAX];
	struct io_ops ops;
	uint64_t bad_at;       /* a byte that is changed; UINT64_MAX: none */
	uint64_t error_at;     /* reads of this byte fail with -EIO; UINT64_MAX: none */
	_Atomic uint64_t read; /* bytes so far, of all threads */
	uint8_t *byte;	       /* [BYTES] */
};
static struct plain x;
static struct ckpt_err err;

static int plain_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	(void)ctx, (void)dirfd, (void)name, (void)flags, (void)mode;
	return 5;
}

static int plain_close(void *ctx, int fd)
{
	(void)ctx, (void)fd;
	return 0;
}

static int plain_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	(void)ctx, (void)fd;
	*ret_bytes = BYTES;
	return 0;
}

static int64_t plain_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct plain *p = ctx;
	uint8_t *to = buf;

	(void)fd;
	if (off >= BYTES)
		return 0;
	len = MIN(len, BYTES - off);
	if (p->error_at >= off && p->error_at < off + len)
		return -EIO;
	memcpy(to, p->byte + off, len);
	if (p->bad_at >= off && p->bad_at < off + len)
		to[p->bad_at - off] ^= 1;
	p->read += len;
	return (int64_t)len;
}

static void plain_begin(void)
{
	struct table_place place = { .name = "plain", .bytes = BYTES };
	uint64_t seed = draw_seed("plain");

	x = (struct plain){ .bad_at = UINT64_MAX, .error_at = UINT64_MAX };
	x.ops = (struct io_ops)ROW(.ctx = &x, .open = plain_open, .close = plain_close,
				   .size = plain_size, .pread = plain_pread);
	x.byte = malloc(BYTES);
	assert_non_null(x.byte);
	for (uint64_t i = 0; i < BYTES; i++)
		x.byte[i] = (uint8_t)(i * 31 + i / 251 + seed);
	x.file = (struct format_file)ROW(.name = "plain", .raw_bytes = BYTES, .file_bytes = BYTES,
					 .range = x.range);
	x.c.nfile = 1;
	x.c.file = &x.file;
	assert_int_equal(table_add_place(&x.c.table, &place, NULL, NULL), 0);
}

static void plain_end(void)
{
	table_free(&x.c.table);
	free(x.byte);
}

/* The next range, of len bytes; 0: all that is left. */
static struct format_range *range_add(uint64_t len, uint8_t kind, uint8_t sum)
{
	struct format_range *last = x.file.nrange ? &x.range[x.file.nrange - 1] : NULL;
	struct format_range *r = &x.range[x.file.nrange++];

	*r = (struct format_range){ .off = last ? last->off + last->len : 0,
				    .kind = kind,
				    .sum = sum };
	r->len = len ? len : BYTES - r->off;
	if (kind == RANGE_ZERO)
		memset(x.byte + r->off, 0, r->len);
	return r;
}

static void ranges_sum(void)
{
	for (uint64_t i = 0; i < x.file.nrange; i++)
		if (x.range[i].sum == SUM_CRC32)
			x.range[i].crc = crc_add(0, x.byte + x.range[i].off, x.range[i].len);
}

struct told {
	uint32_t n;
	char kind[16], tensor[64], text[160];
	uint64_t off, len;
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *t = arg;

	t->n++;
	snprintf(t->kind, sizeof t->kind, "%s", f->kind);
	snprintf(t->tensor, sizeof t->tensor, "%s", f->tensor);
	snprintf(t->text, sizeof t->text, "%s", f->text);
	t->off = f->offset;
	t->len = f->length;
}

static int plain_verify(enum io_engine engine, const struct move_subset *s, struct told *t,
			struct move_verified *v)
{
	static const struct move_subset all;
	struct move_verified size;
	struct move_files f;
	int e;

	assert_ok_err(move_open(&x.ops, 0, &x.c, false, engine, &f, &err), &err);
	*t = (struct told){ .n = 0 };
	e = move_verify_some(&f, s ? s : &all, NULL, NULL, on_fault, t, v, &err);
	move_close(&f);
	move_subset_size(&x.c, s ? s : &all, &size);
	if (x.error_at == UINT64_MAX)
		assert_int_equal(v->bytes, size.bytes);
	assert_int_equal(v->all_bytes, size.all_bytes);
	assert_int_equal(v->summed + v->unsummed, v->bytes);
	return e;
}

TEST(a_file_without_ranges_is_read_and_has_no_sum)
{
	struct move_verified v;
	struct told t;

	plain_begin();
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	assert_ok_err(plain_verify(IO_INLINE, NULL, &t, &v), &err);
	assert_int_equal(v.bytes, BYTES);
	assert_int_equal(v.summed, 0);
	assert_int_equal(v.unsummed, BYTES);
	assert_true(x.read >= BYTES);
	x.error_at = 20 * MIB + 5;
	assert_int_equal(plain_verify(IO_INLINE, NULL, &t, &v), -EIO);
	assert_int_equal(t.n, 1);
	assert_string_equal(t.kind, "unreadable");
	plain_end();
}

/* Header; data with sums of 3 bytes to 20 MiB, with and without padding; data without; a tail. */
static uint64_t zip_like(void)
{
	static const uint64_t len[] = { 3, 4000, MIB, 20 * MIB - 77, 9 * MIB, 1 };
	uint64_t with = 0;

	range_add(1000, RANGE_META, SUM_OPEN);
	for (size_t i = 0; i < ARRAY_LEN(len); i++) {
		range_add(len[i], RANGE_DATA, SUM_CRC32);
		with += len[i];
		range_add(i % 2 ? 61 : 70000, i % 3 ? RANGE_META : RANGE_SLACK, SUM_NONE);
		if (i % 2) {
			range_add(50, RANGE_ZERO, SUM_NONE);
			with += 50;
		}
	}
	range_add(MIB, RANGE_DATA, SUM_NONE);
	range_add(100, RANGE_ZERO, SUM_OPEN);
	range_add(0, RANGE_META, SUM_OPEN);
	ranges_sum();
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	return with;
}

TEST(sums_are_compared_however_far_they_reach_and_counted)
{
	static const enum io_engine engine[] = { IO_INLINE, IO_THREADS };
	struct move_verified v;
	struct told t;
	uint64_t with;

	plain_begin();
	with = zip_like();
	for (size_t i = 0; i < ARRAY_LEN(engine); i++) {
		assert_ok_err(plain_verify(engine[i], NULL, &t, &v), &err);
		assert_int_equal(t.n, 0);
		assert_int_equal(v.summed, with);
		assert_int_equal(v.unsummed, MIB);
		assert_int_equal(v.all_bytes, with + MIB);
	}
	plain_end();
}

/* Wherever it is, what is said of it follows from its range. */
TEST(a_byte_that_changed_is_found_where_a_sum_or_a_rule_covers_it)
{
	uint64_t seed = draw_seed(__func__);
	struct move_verified v;
	struct told t;

	plain_begin();
	zip_like();
	for (uint64_t i = 0; i < x.file.nrange; i++) {
		const struct format_range *r = &x.range[i];
		int e;

		x.bad_at = r->off + draw(&seed) % r->len;
		e = plain_verify(IO_INLINE, NULL, &t, &v);
		if (r->sum == SUM_CRC32) {
			assert_int_equal(e, -EBADMSG);
			assert_int_equal(t.n, 1);
			assert_string_equal(t.kind, "checksum");
			assert_non_null(strstr(t.text, "CRC-32"));
			assert_int_equal(t.off, r->off);
			assert_int_equal(t.len, r->len);
		} else if (r->kind == RANGE_ZERO && r->sum == SUM_NONE) {
			assert_int_equal(e, 0);
			assert_int_equal(t.n, 1);
			assert_string_equal(t.kind, "padding");
			assert_int_equal(t.off, x.bad_at);
		} else {
			assert_int_equal(e, 0);
			assert_int_equal(t.n, 0);
		}
	}
	plain_end();
}

TEST(a_range_that_was_not_read_to_the_end_has_no_sum)
{
	struct move_verified v, sum = { 0 };
	const struct format_range *r;
	struct told t;

	plain_begin();
	zip_like();
	for (r = x.range; r->len != 20 * MIB - 77;)
		r++;
	x.error_at = r->off + 10 * MIB;
	assert_int_equal(plain_verify(IO_INLINE, NULL, &t, &v), -EIO);
	assert_int_equal(t.n, 1);
	assert_true(v.unsummed > MIB && v.unsummed < 20 * MIB);
	x.error_at = UINT64_MAX;
	/* Each byte is in one of n parts; what lies in several of them is never compared. */
	x.bad_at = r->off;
	for (uint32_t k = 1; k <= 3; k++) {
		const struct move_subset third = { .how = SUBSET_NTH, .k = k, .n = 3 };

		assert_int_equal(plain_verify(IO_INLINE, &third, &t, &v), 0);
		sum.bytes += v.bytes;
		sum.summed += v.summed;
	}
	assert_int_equal(sum.bytes, v.all_bytes);
	assert_true(sum.summed < 3 * MIB);
	plain_end();
}

/* --- while tensors are read --- */

/* Bytes [off, + len) of the file as a tensor. */
static uint32_t tensor_add(const char *name, uint64_t off, uint64_t len)
{
	uint64_t zero = 0;
	struct table_tensor t =
		ROW(.component = "", .name = name, .of = "", .dtype = CKPT_U8, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = 1, .shape = &len);
	struct table_piece p = { .off = off };

	assert_int_equal(indexset_box(1, &zero, &len, &x.c.table.arena, &p.set), 0);
	assert_int_equal(table_add_tensor(&x.c.table, &t, &p.tensor, NULL), 0);
	assert_ok_err(table_add_piece(&x.c.table, &p, &err), &err);
	return p.tensor;
}

/* Reads elements [from, to) of a tensor. */
static int tensor_read(const struct move_files *f, uint32_t tensor, uint64_t from, uint64_t to)
{
	struct table_place place = { .name = "memory", .bytes = to - from };
	uint64_t n = to - from;
	struct table dst = { 0 };
	struct table_piece p = { .off = 0 };
	void *base = malloc(n);
	struct plan plan;
	int e;

	assert_int_equal(table_add_place(&dst, &place, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&dst, &x.c.table.tensor[tensor], NULL, NULL), 0);
	assert_int_equal(indexset_box(1, &from, &n, &dst.arena, &p.set), 0);
	assert_ok_err(table_add_piece(&dst, &p, &err), &err);
	assert_ok_err(table_seal(&dst, &err), &err);
	assert_ok_err(plan_make(&x.c.table, &dst, NULL, &plan, NULL, &err), &err);
	e = move_read(&plan, f, &base, NULL, NULL, &err);
	plan_free(&plan);
	table_free(&dst);
	free(base);
	return e;
}

/* Three ranges with sums, which lie side by side: the tensor a has half of the first one, b all of
 * the second, c all of the third. */
static void records_begin(struct move_files *f, enum io_engine engine)
{
	plain_begin();
	range_add(7 * MIB + 3, RANGE_DATA, SUM_CRC32);
	range_add(9 * MIB, RANGE_DATA, SUM_CRC32);
	range_add(0, RANGE_DATA, SUM_CRC32);
	ranges_sum();
	tensor_add("a", 0, 3 * MIB);
	tensor_add("b", x.range[1].off, x.range[1].len);
	tensor_add("c", x.range[2].off, x.range[2].len);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, engine, f, &err), &err);
}

TEST(a_tensor_whose_range_is_read_whole_has_its_sum_compared)
{
	static const enum io_engine engine[] = { IO_INLINE, IO_THREADS };
	struct move_files f;

	for (size_t i = 0; i < ARRAY_LEN(engine); i++) {
		records_begin(&f, engine[i]);
		assert_ok_err(tensor_read(&f, 1, 0, x.range[1].len), &err);
		move_close(&f);
		assert_ok_err(move_open(&x.ops, 0, &x.c, false, engine[i], &f, &err), &err);
		/* The last byte of the range, whose MiB is also one of the next range's. */
		x.bad_at = x.range[2].off - 1;
		assert_ok_err(tensor_read(&f, 2, 0, x.range[2].len), &err);
		assert_int_equal(tensor_read(&f, 1, 0, x.range[1].len), -EBADMSG);
		assert_non_null(
			strstr(err.msg, "plain is damaged: 9437184 bytes at offset 7340035"));
		assert_non_null(strstr(err.msg, "CRC-32"));
		move_close(&f);
		plain_end();
	}
}

TEST(parts_of_a_range_may_come_in_any_order_and_more_than_once)
{
	struct move_files f;

	records_begin(&f, IO_INLINE);
	x.bad_at = x.range[1].off + 8 * MIB;
	assert_int_equal(tensor_read(&f, 1, 8 * MIB, 9 * MIB), 0);
	assert_int_equal(tensor_read(&f, 1, 2 * MIB + 5, 8 * MIB), 0);
	assert_int_equal(tensor_read(&f, 1, 5 * MIB, 6 * MIB), 0);
	assert_int_equal(tensor_read(&f, 1, 0, 3 * MIB), -EBADMSG);
	move_close(&f);
	x.bad_at = UINT64_MAX;
	assert_ok_err(move_open(&x.ops, 0, &x.c, false, IO_INLINE, &f, &err), &err);
	for (uint64_t at = 9 * MIB; at; at -= 3 * MIB / 2)
		assert_ok_err(tensor_read(&f, 1, at - 3 * MIB / 2, at), &err);
	move_close(&f);
	plain_end();
}

static int count_ticks(void *arg, uint64_t done)
{
	assert_int_equal(done, 0);
	return --*(int *)arg == 0;
}

TEST(what_was_read_in_part_is_read_to_its_end_by_those_that_must_know)
{
	static const enum io_engine engine[] = { IO_INLINE, IO_THREADS };
	bool tensor[3] = { true, false, false };
	struct move_files f;

	for (size_t i = 0; i < ARRAY_LEN(engine); i++) {
		int ticks = 1;

		records_begin(&f, engine[i]);
		assert_ok_err(tensor_read(&f, 0, 0, 3 * MIB), &err);
		x.read = 0;
		assert_ok_err(move_sums_finish(&f, tensor, NULL, NULL, &err), &err);
		assert_true(x.read >= 4 * MIB && x.read < 5 * MIB); /* and no byte twice */
		assert_ok_err(move_sums_finish(&f, tensor, NULL, NULL, &err), &err);
		assert_true(x.read < 5 * MIB);
		move_close(&f);
		/* Damage in bytes that are no tensor's, but in the range of one. */
		x.bad_at = 7 * MIB + 2;
		assert_ok_err(move_open(&x.ops, 0, &x.c, false, engine[i], &f, &err), &err);
		assert_ok_err(tensor_read(&f, 0, 0, 3 * MIB), &err);
		assert_int_equal(move_sums_finish(&f, tensor, NULL, NULL, &err), -EBADMSG);
		assert_non_null(strstr(err.msg, "which hold a: their CRC-32 is wrong"));
		move_close(&f);
		/* What is not asked for says nothing, and nothing of it is read. */
		x.read = 0;
		assert_ok_err(move_open(&x.ops, 0, &x.c, false, engine[i], &f, &err), &err);
		assert_ok_err(move_sums_finish(&f, (bool[3]){ false }, NULL, NULL, &err), &err);
		assert_int_equal(x.read, 0);
		x.error_at = 20 * MIB;
		tensor[2] = true;
		x.bad_at = UINT64_MAX;
		assert_int_equal(move_sums_finish(&f, tensor, NULL, NULL, &err), -EIO);
		x.error_at = UINT64_MAX;
		assert_int_equal(move_sums_finish(&f, tensor, count_ticks, &ticks, &err),
				 -ECANCELED);
		move_close(&f);
		tensor[2] = false;
		plain_end();
	}
}

UNIT();
