/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_spread.c - a staged step to memory by several threads: the same as by one, whatever the
 * shapes; a MiB whose sum is wrong goes nowhere, and each is asked for once.
 */
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include <stdatomic.h>

#define BYTES (40u << 20)
#define TENSORS 38u

static uint8_t *src[2], *dst[2];
static struct table from, to;
static struct plan p;
static struct ckpt_err err;
static atomic_uint asked[2][BYTES >> 20];
static uint32_t wrong_place, wrong_mib;

/* The same tensors on both sides: in rows over two places here, in columns over two places
 * there. */
static void table_of(struct table *t, bool columns)
{
	uint64_t at[2] = { 0 };

	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(table_add_place(t,
						 &(struct table_place){ .name = i ? "b" : "a",
									.rank = i,
									.bytes = BYTES },
						 NULL, &err),
				 0);
	for (uint32_t i = 0; i < TENSORS; i++) {
		const uint64_t shape[] = { 2 * (1 + i * i % 97 * 8), 2 * (64 + i % 7 * 100) };
		char name[8];
		struct table_tensor x = { .component = "m",
					  .of = "",
					  .dtype = CKPT_U32,
					  .elem_bytes = 4,
					  .layout = TABLE_NONE,
					  .rank = TABLE_NONE,
					  .ndim = 2,
					  .shape = shape };
		uint32_t id;

		snprintf(name, sizeof name, "t%u", i);
		x.name = name;
		assert_ok_err(table_add_tensor(t, &x, &id, &err), &err);
		for (uint32_t half = 0; half < 2; half++) {
			const uint64_t start[] = { columns ? 0 : half * shape[0] / 2,
						   columns ? half * shape[1] / 2 : 0 },
				       n[] = { columns ? shape[0] : shape[0] / 2,
					       columns ? shape[1] / 2 : shape[1] };
			struct table_piece piece = {
				.tensor = id, .rank = half, .place = half, .off = at[half]
			};
			struct arena a = { 0 };

			if (indexset_box(2, start, n, &a, &piece.set) < 0)
				fail_msg("box");
			assert_ok_err(table_add_piece(t, &piece, &err), &err);
			arena_free(&a);
			at[half] = align_up(at[half] + n[0] * n[1] * 4, 64);
			assert_true(at[half] <= BYTES);
		}
	}
	assert_int_equal(table_seal(t, &err), 0);
}

static int setup(void **state)
{
	uint64_t rng = 7;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		src[i] = malloc(BYTES);
		dst[i] = calloc(1, BYTES);
		for (uint64_t b = 0; b < BYTES; b += 8) {
			uint64_t w = draw(&rng);

			memcpy(src[i] + b, &w, 8);
		}
		for (uint32_t m = 0; m < BYTES >> 20; m++)
			atomic_store(&asked[i][m], 0);
	}
	table_of(&from, false);
	table_of(&to, true);
	assert_int_equal(plan_make(&from, &to, NULL, &p, NULL, &err), 0);
	wrong_place = UINT32_MAX;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	plan_free(&p);
	table_free(&from);
	table_free(&to);
	for (uint32_t i = 0; i < 2; i++) {
		free(src[i]);
		free(dst[i]);
	}
	return 0;
}

static bool is_right(void *arg, uint32_t place, uint64_t i, const void *at)
{
	(void)arg;
	assert_ptr_equal(at, src[place] + (i << 20));
	atomic_fetch_add(&asked[place][i], 1);
	return place != wrong_place || i != wrong_mib;
}

static int spread(uint32_t nthread, bool sums)
{
	struct move_spread x = { .nthread = nthread, .right = sums ? is_right : NULL };

	return move_spread(&p, (const void *const *)src, (void *const *)dst, &x, &err);
}

TEST(many_threads_copy_as_one)
{
	uint8_t *want[2] = { calloc(1, BYTES), calloc(1, BYTES) };

	assert_true(p.bytes > 16 << 20);
	assert_int_equal(move_copy(&p, (const void *const *)src, (void *const *)want, NULL, NULL),
			 0);
	for (uint32_t n = 0; n < 6; n++) {
		for (uint32_t i = 0; i < 2; i++)
			memset(dst[i], 0, BYTES);
		assert_int_equal(spread(n, n & 1), 0);
		for (uint32_t i = 0; i < 2; i++)
			assert_memory_equal(dst[i], want[i], BYTES);
	}
	free(want[0]);
	free(want[1]);
}

TEST(each_mib_is_asked_for_once_and_only_where_something_is_wanted)
{
	uint64_t end[2] = { 0 };

	assert_int_equal(spread(4, true), 0);
	for (uint32_t i = 0; i < from.npiece; i++)
		end[from.piece[i].place] =
			MAX(end[from.piece[i].place], from.piece[i].off + from.piece[i].len);
	for (uint32_t i = 0; i < 2; i++)
		for (uint64_t m = 0; m < BYTES >> 20; m++)
			assert_int_equal(atomic_load(&asked[i][m]), m << 20 < end[i]);
}

TEST(a_mib_whose_sum_is_wrong_goes_nowhere)
{
	uint8_t was[64];

	wrong_place = 1;
	wrong_mib = 3;
	assert_int_equal(spread(3, true), -EBADMSG);
	assert_non_null(strstr(err.msg, "b: memory has changed"));
	assert_non_null(strstr(err.msg, "m/t"));
	/* what is wanted of it alone: the destinations of a piece that lies in it whole */
	for (uint32_t i = 0; i < p.nop; i++) {
		const struct plan_op *op = &p.op[i];
		struct plan_cursor c;
		struct plan_row r;

		if (op->src_place != 1 || op->src_lo < 3u << 20 || op->src_hi > 4u << 20)
			continue;
		plan_rows(&p, op, &c);
		while (plan_row_next(&c, &r)) {
			memset(was, 0, sizeof was);
			assert_memory_equal(dst[op->dst_place] + r.dst_off, was,
					    MIN(r.len, sizeof was));
		}
	}
	wrong_place = UINT32_MAX;
	assert_int_equal(spread(3, true), 0);
}

UNIT(.setup = setup, .teardown = teardown);
