/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_format_ranges.c - format_ranges_check: each byte of a file is in one range, or it is said
 * which is not. Compared with a count of every byte.
 */
#include "tests/lib/draw.h"
#include "tests/lib/row.h"
#include "tests/lib/tiles.h"
#include "tests/lib/unit.h"

static struct ckpt_err err;

#define R(...) ((struct format_range)ROW(__VA_ARGS__))

static int check(uint64_t bytes, struct format_range *range, uint64_t n, struct format_file *ret)
{
	*ret = (struct format_file)ROW(.name = "model.bin", .file_bytes = bytes);
	err = (struct ckpt_err){ 0 };
	return format_ranges_check(ret, range, n, &err);
}

static void assert_refused(uint64_t bytes, struct format_range *range, uint64_t n, const char *text)
{
	struct format_file f;

	assert_int_equal(check(bytes, range, n, &f), -EPROTO);
	assert_string_equal(err.msg, text);
	assert_null(f.range);
	assert_int_equal(f.nrange, 0);
}

TEST(ranges_in_any_order_are_sorted_and_neighbours_that_are_alike_are_one)
{
	struct format_range x[] = {
		R(.off = 30, .len = 10, .kind = RANGE_DATA),
		R(.off = 10, .len = 0, .kind = RANGE_SLACK),
		R(.off = 0, .len = 10, .kind = RANGE_META, .sum = SUM_OPEN),
		R(.off = 10, .len = 20, .kind = RANGE_DATA),
		R(.off = 40, .len = 2, .kind = RANGE_DATA, .sum = SUM_CRC32, .crc = 1),
		R(.off = 42, .len = 2, .kind = RANGE_DATA, .sum = SUM_CRC32, .crc = 2),
		R(.off = 44, .len = 6, .kind = RANGE_ZERO),
	};
	struct format_file f;

	assert_ok_err(check(50, x, ARRAY_LEN(x), &f), &err);
	assert_int_equal(f.nrange, 5);
	assert_null(tiles_wrong(&f));
	assert_int_equal(f.range[1].off, 10);
	assert_int_equal(f.range[1].len, 30);
	assert_int_equal(f.range[2].crc, 1);
	assert_int_equal(f.range[3].crc, 2);
	assert_int_equal(f.range[4].kind, RANGE_ZERO);
}

TEST(a_file_without_bytes_has_no_ranges)
{
	struct format_file f;

	assert_ok_err(check(0, NULL, 0, &f), &err);
	assert_int_equal(f.nrange, 0);
	assert_refused(1, NULL, 0, "model.bin: bytes 0 to 1 belong to nothing that is in it");
}

TEST(the_first_byte_in_none_or_in_two_is_named)
{
	struct format_range gap[] = { R(.off = 12, .len = 8), R(.off = 0, .len = 8) };
	struct format_range twice[] = { R(.off = 7, .len = 8), R(.off = 0, .len = 8) };
	struct format_range head[] = { R(.off = 1, .len = 8) };
	struct format_range tail[] = { R(.off = 0, .len = 8) };
	struct format_range beyond[] = { R(.off = 0, .len = 8),
					 R(.off = 8, .len = UINT64_MAX - 2) };

	assert_refused(20, gap, 2, "model.bin: bytes 8 to 12 belong to nothing that is in it");
	assert_refused(15, twice, 2, "model.bin: two things overlap at byte 7");
	assert_refused(9, head, 1, "model.bin: bytes 0 to 1 belong to nothing that is in it");
	assert_refused(9, tail, 1, "model.bin: bytes 8 to 9 belong to nothing that is in it");
	assert_refused(9, beyond, 2,
		       "model.bin: 18446744073709551613 bytes from byte 8 on are in it, but it "
		       "ends at byte 9");
}

/* Tiles of a small file in any order, some of them moved or resized. */
TEST(what_is_accepted_covers_every_byte_once)
{
	uint64_t seed = draw_seed("ranges");
	uint32_t accepted = 0, refused = 0;

	for (int round = 0; round < 20000; round++) {
		uint64_t bytes = draw_below(&seed, 40), n = 0, at = 0;
		struct format_range x[64];
		uint8_t count[64] = { 0 };
		struct format_file f;
		bool good = true;
		int r;

		while (at < bytes || (n < 8 && draw_below(&seed, 4) == 0)) {
			uint64_t len = MIN(draw_below(&seed, 9), bytes - at);

			x[n++] = R(.off = at, .len = len, .kind = (uint8_t)draw_below(&seed, 4),
				   .sum = (uint8_t)draw_below(&seed, 4), .crc = 7);
			at += len;
			if (n == ARRAY_LEN(x))
				break;
		}
		if (n && draw_below(&seed, 2))
			x[draw_below(&seed, n)].off += draw_below(&seed, 2) ? 1 : UINT64_MAX;
		if (n && draw_below(&seed, 3) == 0)
			x[draw_below(&seed, n)].len = draw_below(&seed, 9);
		for (uint64_t i = n; i > 1; i--) {
			uint64_t k = draw_below(&seed, i);
			struct format_range y = x[k];

			x[k] = x[i - 1];
			x[i - 1] = y;
		}
		for (uint64_t i = 0; i < n; i++)
			for (uint64_t b = 0; b < x[i].len; b++) {
				if (x[i].off + b >= bytes)
					good = false;
				else
					count[x[i].off + b]++;
			}
		for (uint64_t b = 0; b < bytes; b++)
			good &= count[b] == 1;
		r = check(bytes, x, n, &f);
		assert_int_equal(r, good ? 0 : -EPROTO);
		if (good)
			assert_null(tiles_wrong(&f));
		accepted += good;
		refused += !good;
	}
	assert_true(accepted > 1000 && refused > 1000);
}
