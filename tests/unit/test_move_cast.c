/* SPDX-License-Identifier: Apache-2.0 */
/* test_move_cast.c - one floating-point type as another: exact where it can be, else the
 * nearest. */
#include <math.h>
#include "ckpt/base/dtype.h"
#include "ckpt/ckpt.h"
#include "ckpt/move/cast.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define SEED 20261121

static uint64_t rng_state = SEED;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* The value of a pattern of 16 bits, by its definition. */
static double value_of(uint32_t dtype, uint16_t h)
{
	int fraction_bits = dtype == CKPT_F16 ? 10 : 7, bias = dtype == CKPT_F16 ? 15 : 127;
	int exponent = (h & 0x7fff) >> fraction_bits, fraction = h & ((1 << fraction_bits) - 1);
	double sign = h & 0x8000 ? -1 : 1;

	if (exponent == 2 * bias + 1)
		return fraction ? NAN : sign * INFINITY;
	if (!exponent)
		return sign * ldexp(fraction, 1 - bias - fraction_bits);
	return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static uint16_t narrowed(uint32_t from, const void *x, uint32_t to)
{
	uint16_t h;

	cast(from, x, to, &h, 1);
	return h;
}

TEST(all_numbers_of_16_bits_are_exact_and_come_back)
{
	static const uint32_t types[] = { CKPT_F16, CKPT_BF16 };

	for (uint32_t t = 0; t < 2; t++)
		for (uint32_t h = 0; h < 65536; h++) {
			double want = value_of(types[t], (uint16_t)h), wide;
			uint16_t x = (uint16_t)h;
			float f;

			cast(types[t], &x, CKPT_F32, &f, 1);
			cast(types[t], &x, CKPT_F64, &wide, 1);
			if (isnan(want)) {
				assert_true(isnan(f) && isnan(wide));
				assert_true(isnan(
					value_of(types[t], narrowed(CKPT_F64, &wide, types[t]))));
				continue;
			}
			assert_true((double)f == want && wide == want);
			assert_int_equal(narrowed(CKPT_F32, &f, types[t]), x);
			assert_int_equal(narrowed(CKPT_F64, &wide, types[t]), x);
		}
}

/* Is h the nearest to d, and the even one of two? By value, so that the cast is not asked. */
static bool is_nearest(uint32_t dtype, double d, uint16_t h)
{
	uint16_t top = dtype == CKPT_F16 ? 0x7bff : 0x7f7f, size = h & 0x7fff;
	double x = fabs(d), is = value_of(dtype, size), below, above;

	if (signbit(d) != (h >> 15 & 1))
		return false;
	/* What is beyond the largest counts as far as one step more. */
	if (size > top)
		is = 2 * value_of(dtype, top) - value_of(dtype, top - 1);
	if (isinf(d))
		return size == top + 1;
	if (size > top && x >= is)
		return size == top + 1;
	below = size ? value_of(dtype, size - 1) : -1;
	above = size >= top ? 2 * value_of(dtype, top) - value_of(dtype, top - 1)
			    : value_of(dtype, size + 1);
	if (size <= top && x > is)
		return x - is < above - x || (x - is == above - x && !(size & 1));
	if (x < is)
		return is - x < x - below || (is - x == x - below && !(size & 1));
	return true;
}

/* Between two neighbours, at and beside the middle: where rounding twice goes wrong. */
static double hard_number(uint32_t dtype)
{
	uint16_t h = (uint16_t)(rng() % (dtype == CKPT_F16 ? 0x7bff : 0x7f7f));
	double a = value_of(dtype, h), b = value_of(dtype, h + 1), mid = (a + b) / 2;
	uint64_t how = rng() % 4;

	if (how == 0)
		mid = nextafter(mid, INFINITY);
	else if (how == 1)
		mid = nextafter(mid, -INFINITY);
	else if (how == 2)
		mid = a + (b - a) * (double)(rng() % 1024) / 1024;
	return rng() % 2 ? mid : -mid;
}

TEST(what_does_not_fit_is_rounded_once_to_nearest_even)
{
	static const uint32_t types[] = { CKPT_F16, CKPT_BF16 };

	print_message("seed %d\n", SEED);
	for (uint32_t i = 0; i < 400000; i++) {
		uint32_t t = types[i % 2];
		double d = hard_number(t);
		float f = (float)d;

		if (!is_nearest(t, d, narrowed(CKPT_F64, &d, t)))
			fail_msg("%a becomes %04x", d, narrowed(CKPT_F64, &d, t));
		if (!is_nearest(t, (double)f, narrowed(CKPT_F32, &f, t)))
			fail_msg("%a becomes %04x", (double)f, narrowed(CKPT_F32, &f, t));
	}
}

TEST(the_ends_of_the_ranges_are_right)
{
	static const struct {
		double d;
		uint16_t f16, bf16;
	} x[] = ROW({ 0.0, 0, 0 }, { -0.0, 0x8000, 0x8000 }, { 65519.99, 0x7bff, 0x4780 },
		    { 65520.0, 0x7c00, 0x4780 }, { 1e300, 0x7c00, 0x7f80 },
		    { -1e300, 0xfc00, 0xff80 }, { 1e-300, 0, 0 }, { 0x1p-25, 0, 0x3300 },
		    { 0x1.0000000000001p-25, 1, 0x3300 }, { 0x1.feffffffffffp127, 0x7c00, 0x7f7f },
		    { 0x1.ffp127, 0x7c00, 0x7f80 }, { INFINITY, 0x7c00, 0x7f80 });

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		assert_int_equal(narrowed(CKPT_F64, &x[i].d, CKPT_F16), x[i].f16);
		assert_int_equal(narrowed(CKPT_F64, &x[i].d, CKPT_BF16), x[i].bf16);
	}
}

TEST(rows_of_any_length_and_alignment_are_cast)
{
	uint8_t from[8 * 700 + 1], to[8 * 700 + 1];

	for (uint32_t n = 0; n < 700; n += 37) {
		for (uint32_t i = 0; i < n; i++)
			memcpy(from + 1 + 8 * i, &(double){ (double)i }, 8);
		memset(to, 0x77, sizeof to);
		cast(CKPT_F64, from + 1, CKPT_F32, to + 1, n);
		for (uint32_t i = 0; i < n; i++) {
			float f;

			memcpy(&f, to + 1 + 4 * i, 4);
			assert_true(f == (float)i);
		}
		assert_int_equal(to[0], 0x77);
		assert_int_equal(to[1 + 4 * n], 0x77);
	}
	assert_true(cast_known(CKPT_F32, CKPT_BF16) && cast_known(CKPT_F16, CKPT_F64));
	for (uint32_t d = CKPT_C32; d <= CKPT_F4; d++)
		assert_false(cast_known(d, CKPT_F32) || cast_known(CKPT_F32, d));
	assert_false(cast_known(CKPT_F32, CKPT_I32) || cast_known(CKPT_F8_E4M3, CKPT_F32));
}
