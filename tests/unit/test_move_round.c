/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_round.c - F32 rounded to 16 bits, by every instruction set of this machine, against a
 * slow oracle that knows nothing but the definition: of all 16-bit numbers the nearest one, of two
 * that are equally near the even one.
 */
#include <math.h>
#include "ckpt/base/isa.h"
#include "ckpt/ckpt.h"
#include "ckpt/move/round.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define SEED 20261122

static uint64_t rng_state = SEED;
static const uint32_t types[] = { CKPT_BF16, CKPT_F16 };
static const char *const isas[] = { "scalar", "avx2", "avx512" };

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint32_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return u;
}

/* --- the oracle --- */

/* The value of 15 bits without a sign. What would follow the largest number is where infinity
 * is. */
static double value_of(uint32_t dtype, uint32_t h)
{
	int fraction_bits = dtype == CKPT_F16 ? 10 : 7, bias = dtype == CKPT_F16 ? 15 : 127;
	int exponent = (int)(h >> fraction_bits), fraction = (int)h & ((1 << fraction_bits) - 1);

	if (!exponent)
		return ldexp(fraction, 1 - bias - fraction_bits);
	return ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static uint16_t nearest(uint32_t dtype, uint32_t v)
{
	uint32_t infinity = dtype == CKPT_F16 ? 0x7c00 : 0x7f80, low = 0, high = infinity;
	uint16_t sign = (uint16_t)(v >> 16 & 0x8000);
	double x, down, up;
	float f;

	if ((v & 0x7fffffff) > 0x7f800000)
		return dtype == CKPT_F16 ? (uint16_t)(sign | 0x7e00 | (v >> 13 & 0x3ff))
					 : (uint16_t)(v >> 16 | 0x40);
	v &= 0x7fffffff;
	memcpy(&f, &v, sizeof f);
	x = (double)f;
	if (x >= value_of(dtype, infinity))
		return (uint16_t)(sign | infinity);
	while (high - low > 1) { /* value(low) <= x < value(high) */
		uint32_t mid = (low + high) / 2;

		if (value_of(dtype, mid) <= x)
			low = mid;
		else
			high = mid;
	}
	down = x - value_of(dtype, low);
	up = value_of(dtype, high) - x;
	return (uint16_t)(sign | (down < up || (down == up && !(low & 1)) ? low : high));
}

/* --- every instruction set --- */

#define BLOCK 1000

/* All at once, at an odd address, and one by one. */
static void check(uint32_t dtype, const uint32_t *v, uint32_t n)
{
	static uint8_t x[4 * BLOCK + 1], y[2 * BLOCK + 1];

	memcpy(x + 1, v, 4 * (size_t)n);
	for (uint32_t k = 0; k < 3; k++) {
		if (isa_force(isas[k]) < 0)
			continue;
		memset(y, 0xa5, sizeof y);
		round_f32(dtype, x + 1, y + 1, n);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t first = 77;
			bool nan = (v[i] & 0x7fffffff) > 0x7f800000;
			uint16_t h, want = nearest(dtype, v[i]);

			memcpy(&h, y + 1 + 2 * i, 2);
			if (h != want)
				print_message("%s: %08x becomes %04x, not %04x (type %u)\n",
					      isas[k], v[i], h, want, dtype);
			assert_int_equal(h, want);
			assert_true(round_unequal(dtype, &v[i], &h, 1, &first) == nan);
			assert_true(first == (nan ? 0 : 77));
		}
	}
	assert_int_equal(isa_force(NULL), 0);
}

TEST(all_numbers_of_16_bits_and_what_lies_around_them_are_rounded_to_the_nearest_even)
{
	uint32_t v[BLOCK], n = 0;

	for (uint32_t t = 0; t < 2; t++)
		for (uint32_t h = 0; h < 65536; h++) {
			double low = value_of(types[t], h & 0x7fff);
			double high = value_of(types[t], (h & 0x7fff) + 1);
			/* Itself, and half the way to the next: a tie wherever F32 has that
			 * number. */
			uint32_t at[2] = { bits_of((float)low),
					   bits_of((float)((low + high) / 2)) };

			for (uint32_t i = 0; i < 2; i++)
				for (uint32_t d = 0; d < 3; d++)
					v[n++] = (at[i] + d - 1) ^ (h & 0x8000) << 16;
			if (n + 6 > BLOCK) {
				check(types[t], v, n);
				n = 0;
			}
		}
}

TEST(any_bits_are_rounded_to_the_nearest_even)
{
	uint32_t v[BLOCK];

	for (uint32_t round = 0; round < 200; round++) {
		for (uint32_t i = 0; i < BLOCK; i++) {
			v[i] = (uint32_t)rng();
			/* Exponents at which F16 ends on either side, NaN and infinity among
			 * them. */
			if (round % 4 == 1)
				v[i] = (v[i] & 0x807fffff) | (100 + (uint32_t)(rng() % 48)) << 23;
			if (round % 4 == 2)
				v[i] |= 0x7f800000;
			if (round % 4 == 3)
				v[i] &= 0x80ffffff;
		}
		check(types[round / 4 % 2], v, BLOCK);
	}
}

/* --- comparing --- */

TEST(every_unequal_element_is_counted_and_the_first_is_named)
{
	uint32_t v[777];
	uint16_t y[777];

	for (uint32_t round = 0; round < 3000; round++) {
		uint32_t dtype = types[round % 2], n = (uint32_t)(rng() % 777) + 1, bad = 0;
		uint64_t want = UINT64_MAX, first = UINT64_MAX;

		for (uint32_t i = 0; i < n; i++) {
			v[i] = (uint32_t)rng();
			if ((v[i] & 0x7f800000) == 0x7f800000)
				v[i] &= 0xff800000; /* infinity rather than NaN */
		}
		round_f32(dtype, v, y, n);
		for (uint32_t k = 0; k < round % 5; k++) {
			uint32_t i = (uint32_t)(rng() % n);

			if (k % 2)
				v[i] = 0x7fc00000; /* a NaN, and its own rounding */
			round_f32(dtype, &v[i], &y[i], 1);
			y[i] ^= (uint16_t)(k % 2 ? 0 : 1 << rng() % 16);
		}
		for (uint32_t i = 0; i < n; i++) {
			bool nan = (v[i] & 0x7fffffff) > 0x7f800000;

			if (!nan && y[i] == nearest(dtype, v[i]))
				continue;
			want = MIN(want, (uint64_t)i);
			bad++;
		}
		for (uint32_t k = 0; k < 3; k++) {
			if (isa_force(isas[k]) < 0)
				continue;
			first = UINT64_MAX;
			assert_int_equal(round_unequal(dtype, v, y, n, &first), bad);
			assert_true(first == want);
		}
	}
	assert_int_equal(isa_force(NULL), 0);
}

TEST(the_two_zeros_are_not_equal)
{
	static const uint32_t v[2] = { 0, 0x80000000 };
	static const uint16_t y[2] = { 0x8000, 0 };
	uint64_t first;

	for (uint32_t t = 0; t < 2; t++)
		assert_int_equal(round_unequal(types[t], v, y, 2, &first), 2);
}

TEST(an_instruction_set_that_is_unknown_is_refused)
{
	assert_int_equal(isa_force("sse9"), -EOPNOTSUPP);
	assert_true(round_known(CKPT_BF16) && round_known(CKPT_F16) && !round_known(CKPT_F32));
}
