/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_apart.c - how far two arrays are apart, whatever stretches they come in. */
#include "ckpt/ckpt.h"
#include "ckpt/engine/apart.h"
#include "tests/lib/unit.h"

/* apart_add in any stretches, with sets that are no boxes, against one by one. */
TEST(the_first_difference_is_the_lowest_index_in_any_order)
{
	const uint64_t shape[] = { 40, 50 };
	const struct run odd = { .start = 1, .len = 1, .stride = 2, .count = 25 },
			 even = { .start = 0, .len = 1, .stride = 2, .count = 25 },
			 rows = { .start = 0, .len = 40, .stride = 40, .count = 1 };
	const struct indices dims[2][2] = { { { 1, 40, &rows }, { 1, 25, &odd } },
					    { { 1, 40, &rows }, { 1, 25, &even } } };
	uint8_t a[1000] = { 0 }, b[2][1000] = { 0 };
	struct apart x;

	b[0][25 * 30 + 3] = 1; /* [30, 7] */
	b[0][25 * 30 + 2] = 1; /* [30, 5] */
	b[1][25 * 30 + 2] = 9; /* [30, 4] */
	apart_begin(&x, CKPT_U8, CKPT_U8, 2, shape);
	for (int i = 0; i < 2; i++)
		apart_add(&x, &(struct indexset){ .ndim = 2, .numel = 1000, .dim = dims[i] }, a,
			  b[i]);
	assert_int_equal(x.count, 2000);
	assert_int_equal(x.bits, 3);
	assert_int_equal(x.values, 3);
	assert_true(x.max_delta == 9);
	assert_int_equal(x.first[0], 30);
	assert_int_equal(x.first[1], 4);
}

/* Bytes of F4 are two elements each, and the second half of a byte is the later one. */
TEST(halves_of_a_byte_are_compared_one_by_one)
{
	const uint64_t shape[] = { 3, 700 };
	const struct run rows = { .start = 0, .len = 3, .stride = 3, .count = 1 },
			 half = { .start = 350, .len = 350, .stride = 350, .count = 1 };
	const struct indices dim[2] = { { 1, 3, &rows }, { 1, 350, &half } };
	const struct indexset set = { .ndim = 2, .numel = 1050, .dim = dim };
	uint8_t a[1050] = { 0 }, b[1050] = { 0 };
	struct apart x;

	a[351] = 0x08; /* 0 and -0: bits alone */
	a[352] = 0x30;
	b[352] = 0x71; /* 0.5 and 4.5 more */
	apart_begin(&x, CKPT_F4, CKPT_F4, 2, shape);
	apart_add(&x, &set, a, b);
	assert_int_equal(x.count, 2100);
	assert_int_equal(x.bits, 3);
	assert_int_equal(x.values, 2);
	assert_true(x.max_delta == 4.5);
	assert_int_equal(x.first[0], 1);
	assert_int_equal(x.first[1], 702);
	assert_int_equal(x.first_at, 1400 + 702);
	a[351] = 0x80;
	apart_begin(&x, CKPT_F4, CKPT_F4, 2, shape);
	apart_add(&x, &set, a, b);
	assert_int_equal(x.first[1], 703);
}

UNIT();
