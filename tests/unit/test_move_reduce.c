/* SPDX-License-Identifier: Apache-2.0 */
/* test_move_reduce.c - pending reductions: every dtype and operation, rounding, NaN, wrapping. */
#include <math.h>
#include "ckpt/base/dtype.h"
#include "ckpt/move/reduce.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define SEED 20261121
#define N 700 /* more than two blocks of the 16-bit kernels, and no multiple of one */

static uint64_t rng_state;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* out = the reduction of `count` operands of n elements each, one behind the other in x. */
static void reduce(const struct reduction *r, const void *x, uint32_t count, uint64_t n, void *out)
{
	uint64_t bytes = n * dtype_bytes(r->dtype);
	uint8_t *acc = malloc(n * reduction_acc_bytes(r) + 1);
	struct ckpt_err err = { 0 };

	assert_non_null(acc);
	assert_int_equal(reduction_check(r, &err), 0);
	reduction_begin(r, acc, x, n);
	for (uint32_t i = 1; i < count; i++)
		reduction_add(r, acc, (const uint8_t *)x + i * bytes, n);
	/* In place must be the same as elsewhere. */
	reduction_end(r, acc, out, n);
	reduction_end(r, acc, acc, n);
	assert_memory_equal(acc, out, bytes);
	free(acc);
}

TEST(what_has_no_meaning_is_refused_with_a_sentence)
{
	static const struct reduction bad[] =
		ROW({ CKPT_AVG, CKPT_I32, 1 }, { CKPT_SUM, CKPT_U8, 2 }, { CKPT_AVG, CKPT_I64, 4 },
		    { CKPT_SUM, CKPT_BOOL, 1 }, { CKPT_MAX, CKPT_BOOL, 1 },
		    { CKPT_SUM, CKPT_F8_E4M3, 1 }, { CKPT_MIN, CKPT_F8_E5M2, 1 },
		    { CKPT_PRODUCT, CKPT_F8_E8M0, 1 }, { CKPT_MIN, CKPT_C64, 1 },
		    { CKPT_MAX, CKPT_C128, 1 }, { CKPT_SUM, 0, 1 }, { CKPT_SUM, 99, 1 },
		    { CKPT_SUM, CKPT_C32, 1 }, { CKPT_SUM, CKPT_F8_E4M3FNUZ, 1 },
		    { CKPT_PRODUCT, CKPT_F8_E5M2FNUZ, 1 }, { CKPT_SUM, CKPT_F4, 1 },
		    { CKPT_PRODUCT + 1, CKPT_F32, 1 });

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct ckpt_err err = { 0 };

		assert_int_equal(reduction_check(&bad[i], &err), -EOPNOTSUPP);
		assert_true(strlen(err.msg) > 20);
		assert_int_equal(reduction_check(&bad[i], NULL), -EOPNOTSUPP);
	}
}

static uint64_t integer_get(uint32_t dtype, const uint8_t *p)
{
	uint32_t b = dtype_bytes(dtype);
	bool sign = dtype == CKPT_I8 || dtype == CKPT_I16 || dtype == CKPT_I32 || dtype == CKPT_I64;
	uint64_t u = 0;

	memcpy(&u, p, b);
	if (sign && b < 8 && u >> (8 * b - 1))
		u |= UINT64_MAX << 8 * b;
	return u;
}

static uint64_t integer_combine(uint32_t op, uint32_t dtype, uint64_t a, uint64_t b)
{
	bool sign = dtype == CKPT_I8 || dtype == CKPT_I16 || dtype == CKPT_I32 || dtype == CKPT_I64;
	bool less = sign ? (int64_t)a < (int64_t)b : a < b;

	switch (op) {
	case CKPT_MIN:
		return less ? a : b;
	case CKPT_MAX:
		return less ? b : a;
	case CKPT_PRODUCT:
		return a * b;
	default:
		return a + b;
	}
}

TEST(integers_wrap_around_and_know_their_sign)
{
	static const uint32_t dtype[] = { CKPT_U8,  CKPT_I8,  CKPT_U16, CKPT_I16,
					  CKPT_U32, CKPT_I32, CKPT_U64, CKPT_I64 };
	static const uint32_t op[] = { CKPT_SUM, CKPT_MIN, CKPT_MAX, CKPT_PRODUCT };
	static uint64_t x[3 * N], out[N];

	rng_state = SEED;
	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		x[i] = rng();
	for (size_t d = 0; d < ARRAY_LEN(dtype); d++)
		for (size_t o = 0; o < ARRAY_LEN(op); o++) {
			struct reduction r = { op[o], dtype[d], 1 };
			uint32_t b = dtype_bytes(dtype[d]);
			const uint8_t *p = (const uint8_t *)x;

			reduce(&r, x, 3, N, out);
			for (uint64_t i = 0; i < N; i++) {
				uint64_t want = integer_get(dtype[d], p + i * b);

				for (uint32_t k = 1; k < 3; k++)
					want = integer_combine(
						op[o], dtype[d], want,
						integer_get(dtype[d], p + (k * N + i) * b));
				assert_memory_equal((uint8_t *)out + i * b, &want, b);
			}
		}
}

TEST(sums_and_averages_of_reals_go_in_the_order_given)
{
	const float f[] = { 1e8f, 1, -1e8f };
	const double d[] = { 1e16, 1, -1e16 };
	float fout;
	double dout;

	reduce(&(struct reduction){ CKPT_SUM, CKPT_F32, 1 }, f, 3, 1, &fout);
	assert_true(fout == 0);
	reduce(&(struct reduction){ CKPT_SUM, CKPT_F64, 1 }, d, 3, 1, &dout);
	assert_true(dout == 0);
	reduce(&(struct reduction){ CKPT_SUM, CKPT_F32, 3 }, (const float[]){ 1, 2, 7 }, 3, 1,
	       &fout);
	assert_true(fout == 10.0f / 3);
	reduce(&(struct reduction){ CKPT_AVG, CKPT_F64, 4 }, (const double[]){ 1, 2, 7, 1 }, 4, 1,
	       &dout);
	assert_true(dout == 2.75);
	reduce(&(struct reduction){ CKPT_PRODUCT, CKPT_F32, 1 }, (const float[]){ 3, -2, 0.5f }, 3,
	       1, &fout);
	assert_true(fout == -3);
}

TEST(complex_numbers_are_added_multiplied_and_averaged)
{
	const float f[] = { 1, 2, 3, -4 };
	const double d[] = { 1, 2, 3, -4, 0, 1, 0, 1 };
	float fout[2];
	double dout[4];

	reduce(&(struct reduction){ CKPT_SUM, CKPT_C64, 2 }, f, 2, 1, fout);
	assert_true(fout[0] == 2 && fout[1] == -1);
	reduce(&(struct reduction){ CKPT_PRODUCT, CKPT_C64, 1 }, f, 2, 1, fout);
	assert_true(fout[0] == 11 && fout[1] == 2);
	/* two elements of two operands: (1+2i)i, (3-4i)i */
	reduce(&(struct reduction){ CKPT_PRODUCT, CKPT_C128, 1 }, d, 2, 2, dout);
	assert_true(dout[0] == -2 && dout[1] == 1 && dout[2] == 4 && dout[3] == 3);
	reduce(&(struct reduction){ CKPT_AVG, CKPT_C128, 2 }, d, 2, 2, dout);
	assert_true(dout[0] == 0.5 && dout[1] == 1.5 && dout[2] == 1.5 && dout[3] == -1.5);
}

TEST(a_nan_among_the_operands_stays_one)
{
	static const uint32_t op[] = { CKPT_SUM, CKPT_MIN, CKPT_MAX, CKPT_PRODUCT };

	for (size_t o = 0; o < ARRAY_LEN(op); o++)
		for (uint32_t at = 0; at < 3; at++) {
			double d[3] = { 3, -1, 2 }, dout;
			float f[3] = { 3, -1, 2 }, fout;
			uint16_t b[3] = { 0x4040, 0xbf80, 0x4000 }, bout;
			uint16_t h[3] = { 0x4200, 0xbc00, 0x4000 }, hout;

			d[at] = f[at] = NAN;
			b[at] = 0x7f81;
			h[at] = 0x7c01;
			reduce(&(struct reduction){ op[o], CKPT_F64, 1 }, d, 3, 1, &dout);
			reduce(&(struct reduction){ op[o], CKPT_F32, 1 }, f, 3, 1, &fout);
			reduce(&(struct reduction){ op[o], CKPT_BF16, 1 }, b, 3, 1, &bout);
			reduce(&(struct reduction){ op[o], CKPT_F16, 1 }, h, 3, 1, &hout);
			assert_true(isnan(dout) && isnan(fout));
			assert_true((bout & 0x7fff) > 0x7f80);
			assert_true((hout & 0x7fff) > 0x7c00);
		}
}

/* --- 16 bits: against the definition, by looking for the nearest value --- */

static double f16_value(uint16_t h)
{
	int e = h >> 10 & 31;
	double m = h & 0x3ff, v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

	if (e == 31)
		v = m > 0 ? (double)NAN : (double)INFINITY;
	return h & 0x8000 ? -v : v;
}

static double bf16_value(uint16_t h)
{
	float f;
	uint32_t u = (uint32_t)h << 16;

	memcpy(&f, &u, sizeof f);
	return f;
}

/* The 16 bits nearest to a positive x, the even ones of two: they ascend as their values do. */
static uint16_t nearest(double (*value)(uint16_t), uint16_t inf, double x)
{
	uint16_t low = 0, high = inf, mid;
	double half, top = value((uint16_t)(inf - 1));

	while (high - low > 1) {
		mid = (uint16_t)((low + high) / 2);
		if (value(mid) <= x)
			low = mid;
		else
			high = mid;
	}
	/* Infinity stands where the next value would have been. */
	half = value(low) + (high == inf ? (top - value((uint16_t)(inf - 2))) / 2
					 : (value(high) - value(low)) / 2);
	if (x == half)
		return low & 1 ? high : low;
	return x < half ? low : high;
}

static void rounding(uint32_t dtype, double (*value)(uint16_t), uint16_t inf)
{
	struct reduction r = { CKPT_SUM, dtype, 1 };
	float x[N];
	uint16_t out[N];

	for (uint32_t round = 0; round < 60; round++) {
		for (uint32_t i = 0; i < N; i++) {
			uint16_t h = (uint16_t)(rng() % inf);
			double v = value(h), next = h + 1 < inf ? value((uint16_t)(h + 1)) : 2 * v;

			/* a value, the middle between two, a little beside it, anything */
			x[i] = (float)(i % 4 == 0 ? v : i % 4 == 1 ? (v + next) / 2 : v);
			if (i % 4 == 2)
				x[i] = nextafterf((float)((v + next) / 2),
						  rng() & 1 ? 0 : INFINITY);
			if (i % 4 == 3)
				x[i] = (float)ldexp((double)(rng() >> 40), (int)(rng() % 60) - 50);
			if (i & 4)
				x[i] = -x[i];
		}
		reduction_end(&r, x, out, N);
		for (uint32_t i = 0; i < N; i++) {
			uint16_t want = nearest(value, inf, fabs((double)x[i]));

			if (signbit(x[i]))
				want |= 0x8000;
			if (out[i] != want)
				fail_msg("%s of %a is %04x, not %04x", dtype_name(dtype),
					 (double)x[i], out[i], want);
		}
	}
}

TEST(sixteen_bits_are_rounded_to_nearest_even)
{
	rng_state = SEED;
	rounding(CKPT_F16, f16_value, 0x7c00);
	rounding(CKPT_BF16, bf16_value, 0x7f80);
}

TEST(every_value_of_sixteen_bits_comes_back_as_it_was)
{
	static const uint32_t dtype[] = { CKPT_F16, CKPT_BF16 };
	static uint16_t x[65536], out[65536];

	for (uint32_t i = 0; i < 65536; i++)
		x[i] = (uint16_t)i;
	for (size_t d = 0; d < ARRAY_LEN(dtype); d++) {
		uint16_t inf = dtype[d] == CKPT_F16 ? 0x7c00 : 0x7f80;

		reduce(&(struct reduction){ CKPT_MAX, dtype[d], 1 }, x, 1, 65536, out);
		for (uint32_t i = 0; i < 65536; i++)
			if ((i & 0x7fff) <= inf)
				assert_int_equal(out[i], x[i]);
			else
				assert_true((out[i] & 0x7fff) > inf);
	}
}

TEST(sums_of_sixteen_bits_are_rounded_once)
{
	/* 256 + 1 + 1 in BF16: each addition by itself would leave 256. 2048 + 1 + 1 in F16. */
	const uint16_t b[] = { 0x4380, 0x3f80, 0x3f80 }, h[] = { 0x6800, 0x3c00, 0x3c00 };
	uint16_t out;

	reduce(&(struct reduction){ CKPT_SUM, CKPT_BF16, 1 }, b, 3, 1, &out);
	assert_int_equal(out, 0x4381);
	reduce(&(struct reduction){ CKPT_SUM, CKPT_F16, 1 }, h, 3, 1, &out);
	assert_int_equal(out, 0x6801);
	/* 65504 + 65504, averaged: what lies between is no F16. */
	reduce(&(struct reduction){ CKPT_AVG, CKPT_F16, 2 }, (const uint16_t[]){ 0x7bff, 0x7bff },
	       2, 1, &out);
	assert_int_equal(out, 0x7bff);
}

TEST(elements_may_lie_at_any_alignment)
{
	static const uint32_t dtype[] = { CKPT_BF16, CKPT_I32, CKPT_F32, CKPT_F64, CKPT_C128 };
	uint8_t x[33], acc[33], out[33];

	for (size_t d = 0; d < ARRAY_LEN(dtype); d++) {
		struct reduction r = { CKPT_SUM, dtype[d], 1 };

		memset(x, 0, sizeof x);
		reduction_begin(&r, acc + 1, x + 1, 2);
		reduction_add(&r, acc + 1, x + 1, 2);
		reduction_end(&r, acc + 1, out + 1, 2);
		assert_memory_equal(out + 1, x + 1, 2 * dtype_bytes(dtype[d]));
	}
}
