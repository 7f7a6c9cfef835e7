/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast.c - see cast.h. 16-bit floats go by F32, through the kernels of reduce.c. Invariant: a value
 * is rounded once; from F64 to 16 bits the step to F32 leaves an odd last bit where it is inexact
 * (Boldo, Melquiond), so that the second step rounds as the first would have.
 */
#include "ckpt/move/cast.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/move/reduce.h"
#include <math.h>

#define BLOCK 256

static bool is_narrow(uint32_t dtype)
{
	return dtype == CKPT_F16 || dtype == CKPT_BF16;
}

bool cast_known(uint32_t from, uint32_t to)
{
	return dtype_kind(from) == DTYPE_FLOAT && dtype_kind(to) == DTYPE_FLOAT;
}

static double load_f64(const uint8_t *x)
{
	double d;

	memcpy(&d, x, sizeof d);
	return d;
}

/* To odd: toward zero, and where that is not exact the last bit is set. */
static float f32_odd(double d)
{
	float f = (float)d;
	uint32_t u;

	if (d != d || (double)f == d)
		return f;
	memcpy(&u, &f, sizeof u);
	/* Rounded away from zero, infinity included: one step back. */
	if ((d < 0 ? -(double)f : (double)f) > (d < 0 ? -d : d))
		u--;
	u |= 1;
	memcpy(&f, &u, sizeof f);
	return f;
}

static void to_f32(uint32_t from, const uint8_t *x, bool odd, float *ret, uint64_t n)
{
	const struct reduction widen = { .op = CKPT_SUM, .dtype = from, .divisor = 1 };

	if (from != CKPT_F64) {
		reduction_begin(&widen, ret, x, n);
		return;
	}
	for (uint64_t i = 0; i < n; i++)
		ret[i] = odd ? f32_odd(load_f64(x + 8 * i)) : (float)load_f64(x + 8 * i);
}

static void of_f32(uint32_t to, const float *x, uint8_t *ret, uint64_t n)
{
	const struct reduction narrow = { .op = CKPT_SUM, .dtype = to, .divisor = 1 };

	if (to != CKPT_F64) {
		reduction_end(&narrow, x, ret, n);
		return;
	}
	for (uint64_t i = 0; i < n; i++)
		memcpy(ret + 8 * i, &(double){ (double)x[i] }, 8);
}

void cast(uint32_t from, const void *x, uint32_t to, void *ret, uint64_t n)
{
	uint32_t step = dtype_bytes(from), ret_step = dtype_bytes(to);
	float wide[BLOCK];

	if (from == to) {
		memcpy(ret, x, n * step);
		return;
	}
	for (uint64_t at = 0; at < n; at += BLOCK) {
		uint64_t m = MIN(n - at, (uint64_t)BLOCK);

		to_f32(from, (const uint8_t *)x + at * step, is_narrow(to), wide, m);
		of_f32(to, wide, (uint8_t *)ret + at * ret_step, m);
	}
}

static bool is_infinite(uint32_t dtype, const uint8_t *x)
{
	uint16_t u16;
	uint32_t u32;

	switch (dtype) {
	case CKPT_F16:
	case CKPT_BF16:
		memcpy(&u16, x, sizeof u16);
		return (u16 & 0x7fff) == (dtype == CKPT_F16 ? 0x7c00 : 0x7f80);
	case CKPT_F32:
		memcpy(&u32, x, sizeof u32);
		return (u32 & 0x7fffffff) == 0x7f800000;
	default:
		return isinf(load_f64(x)) != 0;
	}
}

uint64_t cast_overflows(uint32_t from, const void *x, uint32_t to, const void *ret, uint64_t n)
{
	uint32_t step = dtype_bytes(from), ret_step = dtype_bytes(to);
	uint64_t over = 0;

	for (uint64_t i = 0; i < n && !MUTANT(CAST_OVERFLOW_UNCOUNTED); i++)
		if (is_infinite(to, (const uint8_t *)ret + i * ret_step))
			over += !is_infinite(from, (const uint8_t *)x + i * step);
	return over;
}
