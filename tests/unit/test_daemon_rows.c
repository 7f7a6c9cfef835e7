/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_rows.c - the rows of a copy (daemon/rows.c): carried out they are the copy, byte for
 * byte and each byte once; they are few where memory is regular; of too many a random part is kept.
 */
#include "daemon/state.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

static uint64_t seed;

/* A tensor, whole or in two pieces of these index lists in its first dimension, with these
 * strides. */
static void table_of(struct table *t, uint32_t ndim, const uint64_t *shape, const int64_t *stride,
		     const struct run *part, uint32_t nrun)
{
	const uint64_t start[CKPT_DIMS_MAX] = { 0 };
	const struct table_tensor x =
		ROW(.component = "m", .name = "x", .of = "", .dtype = CKPT_U16, .elem_bytes = 2,
		    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = ndim, .shape = shape);
	uint64_t off = 0;
	struct ckpt_err e = { 0 };

	*t = (struct table){ 0 };
	assert_int_equal(table_add_tensor(t, &x, NULL, &e), 0);
	assert_ok(table_add_place(
		t, &(struct table_place){ .name = "memory", .bytes = UINT64_C(1) << 30 }, NULL,
		&e));
	for (uint32_t i = 0; i < (nrun ? nrun : 1); i++) {
		struct table_piece p = { .off = off, .stride = stride };
		struct indices dim[CKPT_DIMS_MAX];

		assert_int_equal(indexset_box(ndim, start, shape, &t->arena, &p.set), 0);
		if (nrun) {
			memcpy(dim, p.set.dim, ndim * sizeof *dim);
			dim[0] = (struct indices){ 1, part[i].len * part[i].count, &part[i] };
			p.set.numel = p.set.numel / shape[0] * dim[0].total;
			p.set.dim = dim;
		}
		assert_int_equal(table_add_piece(t, &p, &e), 0);
		off += p.set.numel * 2 * 8; /* strides may spread it */
	}
	assert_int_equal(table_seal(t, &e), 0);
}

/* Rows, and the copy, from the same memory: the same image, and each byte of it once. */
static uint32_t rows_of(const struct table *from, const struct table *to, uint64_t bytes)
{
	uint8_t *src = malloc(bytes), *want = calloc(1, bytes), *is = calloc(1, bytes),
		*times = calloc(1, bytes);
	const uint64_t segment[1] = { bytes };
	struct ckpt_err e = { 0 };
	struct wire_row *row;
	struct plan p;
	uint32_t n;
	uint64_t moved = 0;

	for (uint64_t i = 0; i < bytes; i++)
		src[i] = (uint8_t)draw(&seed);
	assert_int_equal(plan_make(from, to, NULL, &p, NULL, &e), 0);
	assert_int_equal(move_copy(&p, (const void *[]){ src }, (void *[]){ want }, NULL, NULL), 0);
	assert_int_equal(rows_make(&p, TABLE_NONE, NULL, &row, &n, &e), 0);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(wire_row_check(&row[i], segment, 1, bytes), 0);
		for (uint64_t line = 0; line < row[i].rows; line++)
			for (uint64_t b = 0; b < row[i].width; b++) {
				uint64_t at = row[i].dst + line * row[i].dst_pitch + b;

				is[at] =
					src[WIRE_ROW_OFF(row[i].src) + line * row[i].src_pitch + b];
				assert_int_equal(times[at]++, 0);
				assert_int_equal(is[at], want[at]);
				moved++;
			}
	}
	if (n < WIRE_ROWS_MAX / 2)
		assert_true(moved == p.bytes && memcmp(is, want, bytes) == 0);
	else
		assert_true(moved < p.bytes && moved > p.bytes / 3);
	plan_free(&p);
	free(row);
	free(src);
	free(want);
	free(is);
	free(times);
	return n;
}

TEST(rows_carried_out_are_the_copy)
{
	static const struct {
		uint32_t ndim, nrow;
		uint64_t shape[4];
		int64_t stride[4];
	} x[] = {
		{ 1, 1, { 1000 }, { 1 } },
		{ 2, 1, { 30, 40 }, { 40, 1 } },
		{ 2, 1, { 30, 40 }, { 50, 1 } },  /* with a gap behind each line */
		{ 2, 30, { 30, 40 }, { 1, 30 } }, /* transposed: 40 lines each */
		{ 4, 8 * 9, { 8, 64, 3, 3 }, { 576, 1, 192, 64 } }, /* channels last */
		{ 4, 12, { 4, 3, 5, 7 }, { 300, 84, 14, 2 } },
		{ 3, 1, { 1, 6, 8 }, { 999, 8, 1 } },
		{ 3, 5, { 7, 5, 3 }, { 80, 9, 1 } },
		{ 2, 1, { 1, 1 }, { 1, 1 } },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct table from, to;

		table_of(&from, x[i].ndim, x[i].shape, x[i].stride, NULL, 0);
		table_of(&to, x[i].ndim, x[i].shape, NULL, NULL, 0);
		assert_int_equal(rows_of(&from, &to, 65536), x[i].nrow);
		table_free(&from);
		table_free(&to);
	}
}

TEST(rows_of_scattered_indices_too)
{
	static const uint64_t shape[] = { 60, 5 };
	static const struct run part[] = { { 0, 2, 6, 10 }, { 2, 4, 6, 10 } };
	struct table from, to;

	table_of(&from, 2, shape, NULL, part, 2);
	table_of(&to, 2, shape, NULL, NULL, 0);
	assert_int_equal(rows_of(&from, &to, 65536), 20);
	table_free(&from);
	table_free(&to);
}

TEST(of_too_many_rows_a_random_part_is_kept)
{
	static const uint64_t shape[] = { 2400000 };
	static const struct run part[] = { { 0, 1, 2, 1200000 }, { 1, 1, 2, 1200000 } };
	struct table from, to;
	uint32_t n;

	table_of(&from, 1, shape, NULL, part, 2);
	table_of(&to, 1, shape, NULL, NULL, 0);
	n = rows_of(&from, &to, 64 * MIB);
	assert_true(n <= WIRE_ROWS_MAX && n > WIRE_ROWS_MAX * 9 / 10);
	table_free(&from);
	table_free(&to);
}

static int setup(void **state)
{
	(void)state;
	seed = draw_seed("daemon_rows");
	return 0;
}
UNIT(.setup = setup);
