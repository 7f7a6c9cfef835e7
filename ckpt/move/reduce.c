/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.c - one value from the operands of a pending reduction. Called where partials are loaded,
 * and by ckptctl layout.
 * Invariant: operands are taken one after the other, so what comes out depends on their order
 * alone; integers wrap around as the hardware does; a NaN stays one.
 */
#include "ckpt/move/reduce.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"

#define BLOCK 256 /* elements of 16 bits that are widened at a time: they stay in the L1 cache */

/* Elements lie at any alignment, and in memory that had other types. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef uint8_t LOOSE loose_u8;
typedef int8_t LOOSE loose_i8;
typedef uint16_t LOOSE loose_u16;
typedef int16_t LOOSE loose_i16;
typedef uint32_t LOOSE loose_u32;
typedef int32_t LOOSE loose_i32;
typedef uint64_t LOOSE loose_u64;
typedef int64_t LOOSE loose_i64;
typedef float LOOSE loose_f32;
typedef double LOOSE loose_f64;

enum kind { KIND_NONE, KIND_INTEGER, KIND_REAL, KIND_COMPLEX };

static enum kind kind_of(uint32_t dtype)
{
	switch (dtype) {
	case CKPT_U8:
	case CKPT_I8:
	case CKPT_U16:
	case CKPT_I16:
	case CKPT_U32:
	case CKPT_I32:
	case CKPT_U64:
	case CKPT_I64:
		return KIND_INTEGER;
	case CKPT_F16:
	case CKPT_BF16:
	case CKPT_F32:
	case CKPT_F64:
		return KIND_REAL;
	case CKPT_C64:
	case CKPT_C128:
		return KIND_COMPLEX;
	default:
		return KIND_NONE;
	}
}

int reduction_check(const struct reduction *r, struct ckpt_err *err)
{
	static const char *const name[] = { "sum", "average", "minimum", "maximum", "product" };
	enum kind kind = kind_of(r->dtype);
	bool averages = r->op == CKPT_AVG || r->divisor > 1;

	assert(r->divisor);
	if (r->op > CKPT_PRODUCT)
		return ckpt_error(err, -EOPNOTSUPP,
				  "reduction %u is none that this version knows (enum ckpt_reduce)",
				  r->op);
	if (kind == KIND_NONE)
		return ckpt_error(err, -EOPNOTSUPP,
				  "a %s of %s elements has no meaning here; reduce the tensor "
				  "before it is saved",
				  name[r->op], dtype_name(r->dtype));
	if (kind == KIND_INTEGER && averages)
		return ckpt_error(err, -EOPNOTSUPP,
				  "an average of %s elements is no integer; sum them, or average "
				  "floating-point numbers",
				  dtype_name(r->dtype));
	if (kind == KIND_COMPLEX && (r->op == CKPT_MIN || r->op == CKPT_MAX))
		return ckpt_error(err, -EOPNOTSUPP,
				  "there is no %s of complex numbers (%s): they have no order",
				  name[r->op], dtype_name(r->dtype));
	return 0;
}

static bool is_narrow(uint32_t dtype)
{
	return dtype == CKPT_F16 || dtype == CKPT_BF16;
}

uint32_t reduction_acc_bytes(const struct reduction *r)
{
	return is_narrow(r->dtype) ? 4 : dtype_bytes(r->dtype);
}

/* --- 16 bits and 32 --- */

static float f32_of_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

static uint32_t bits_of_f32(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return u;
}

/* The product puts the exponent right, subnormals included. */
static float f32_of_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;

	if ((h & 0x7c00) == 0x7c00)
		return f32_of_bits(sign | 0x7f800000 | rest);
	return f32_of_bits(sign | bits_of_f32(f32_of_bits(rest) * 0x1p112f));
}

/* A sum with a power of two whose last place is that of the result makes the hardware round. The
 * first product overflows exactly where the result does. */
static uint16_t f16_of_f32(float f)
{
	uint32_t u = bits_of_f32(f), twice = u + u, sign = u >> 16 & 0x8000;
	uint32_t exponent = MAX(twice & 0xff000000, 0x71000000u);
	float sum = f32_of_bits(u & 0x7fffffff) * 0x1p112f * 0x1p-110f;

	if (twice > 0xff000000)
		return (uint16_t)(sign | 0x7e00);
	u = bits_of_f32(f32_of_bits((exponent >> 1) + 0x07800000) + sum);
	return (uint16_t)(sign | ((u >> 13 & 0x7c00) + (u & 0x0fff)));
}

static uint16_t bf16_of_f32(float f)
{
	uint32_t u = bits_of_f32(f);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void f32_widen(uint32_t dtype, const loose_u16 *x, loose_f32 *ret, uint64_t n)
{
	if (dtype == CKPT_F16)
		for (uint64_t i = 0; i < n; i++)
			ret[i] = f32_of_f16(x[i]);
	else
		for (uint64_t i = 0; i < n; i++)
			ret[i] = f32_of_bits((uint32_t)x[i] << 16);
}

static void f32_narrow(uint32_t dtype, const loose_f32 *x, loose_u16 *ret, uint64_t n)
{
	if (dtype == CKPT_F16)
		for (uint64_t i = 0; i < n; i++)
			ret[i] = f16_of_f32(x[i]);
	else
		for (uint64_t i = 0; i < n; i++)
			ret[i] = bf16_of_f32(x[i]);
}

/* --- one operand more --- */

#define EACH(expression)                         \
	do {                                     \
		for (uint64_t i = 0; i < n; i++) \
			acc[i] = (expression);   \
	} while (0)

/* U: the unsigned type in which sums and products of T wrap around. */
#define COMBINE_INTEGERS(T, U)                                                               \
	static void combine_##T(uint32_t op, loose_##T *acc, const loose_##T *x, uint64_t n) \
	{                                                                                    \
		if (op == CKPT_MIN)                                                          \
			EACH((loose_##T)(x[i] < acc[i] ? x[i] : acc[i]));                    \
		else if (op == CKPT_MAX)                                                     \
			EACH((loose_##T)(x[i] > acc[i] ? x[i] : acc[i]));                    \
		else if (op == CKPT_PRODUCT)                                                 \
			EACH((loose_##T)((U)acc[i] * (U)x[i]));                              \
		else                                                                         \
			EACH((loose_##T)((U)acc[i] + (U)x[i]));                              \
	}
COMBINE_INTEGERS(u8, uint32_t)
COMBINE_INTEGERS(i8, uint32_t)
COMBINE_INTEGERS(u16, uint32_t)
COMBINE_INTEGERS(i16, uint32_t)
COMBINE_INTEGERS(u32, uint32_t)
COMBINE_INTEGERS(i32, uint32_t)
COMBINE_INTEGERS(u64, uint64_t)
COMBINE_INTEGERS(i64, uint64_t)

/* No comparison with a NaN holds: one that acc has stays, one of x is taken. */
#define COMBINE_REALS(T)                                                                     \
	static void combine_##T(uint32_t op, loose_##T *acc, const loose_##T *x, uint64_t n) \
	{                                                                                    \
		if (op == CKPT_MIN)                                                          \
			EACH(x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i]);                 \
		else if (op == CKPT_MAX)                                                     \
			EACH(x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i]);                 \
		else if (op == CKPT_PRODUCT)                                                 \
			EACH(acc[i] * x[i]);                                                 \
		else                                                                         \
			EACH(acc[i] + x[i]);                                                 \
	}                                                                                    \
	static void multiply_complex_##T(loose_##T *acc, const loose_##T *x, uint64_t n)     \
	{                                                                                    \
		for (uint64_t i = 0; i < 2 * n; i += 2) {                                    \
			loose_##T re = acc[i] * x[i] - acc[i + 1] * x[i + 1];                \
                                                                                             \
			acc[i + 1] = acc[i] * x[i + 1] + acc[i + 1] * x[i];                  \
			acc[i] = re;                                                         \
		}                                                                            \
	}                                                                                    \
	static void divide_##T(loose_##T *acc, uint64_t n, uint32_t divisor)                 \
	{                                                                                    \
		EACH(acc[i] / (loose_##T)divisor);                                           \
	}
COMBINE_REALS(f32)
COMBINE_REALS(f64)

static void combine_narrow(const struct reduction *r, loose_f32 *acc, const loose_u16 *x,
			   uint64_t n)
{
	float wide[BLOCK];

	for (uint64_t at = 0; at < n; at += BLOCK) {
		uint64_t m = MIN(n - at, (uint64_t)BLOCK);

		f32_widen(r->dtype, x + at, wide, m);
		combine_f32(r->op, acc + at, wide, m);
	}
}

void reduction_begin(const struct reduction *r, void *acc, const void *x, uint64_t n)
{
	if (is_narrow(r->dtype))
		f32_widen(r->dtype, x, acc, n);
	else
		memcpy(acc, x, n * dtype_bytes(r->dtype));
}

void reduction_add(const struct reduction *r, void *acc, const void *x, uint64_t n)
{
	bool product = r->op == CKPT_PRODUCT;

	switch (r->dtype) {
	case CKPT_U8:
		combine_u8(r->op, acc, x, n);
		return;
	case CKPT_I8:
		combine_i8(r->op, acc, x, n);
		return;
	case CKPT_U16:
		combine_u16(r->op, acc, x, n);
		return;
	case CKPT_I16:
		combine_i16(r->op, acc, x, n);
		return;
	case CKPT_U32:
		combine_u32(r->op, acc, x, n);
		return;
	case CKPT_I32:
		combine_i32(r->op, acc, x, n);
		return;
	case CKPT_U64:
		combine_u64(r->op, acc, x, n);
		return;
	case CKPT_I64:
		combine_i64(r->op, acc, x, n);
		return;
	case CKPT_F16:
	case CKPT_BF16:
		combine_narrow(r, acc, x, n);
		return;
	case CKPT_F32:
		combine_f32(r->op, acc, x, n);
		return;
	case CKPT_F64:
		combine_f64(r->op, acc, x, n);
		return;
	case CKPT_C64:
		product ? multiply_complex_f32(acc, x, n) : combine_f32(CKPT_SUM, acc, x, 2 * n);
		return;
	case CKPT_C128:
		product ? multiply_complex_f64(acc, x, n) : combine_f64(CKPT_SUM, acc, x, 2 * n);
		return;
	default:
		assert(false); /* reduction_check refuses the others */
	}
}

/* Block by block, so that out may be acc: what is written is behind what is still read. */
void reduction_end(const struct reduction *r, const void *acc, void *out, uint64_t n)
{
	float wide[BLOCK];
	const loose_f32 *from = acc;
	loose_u16 *to = out;

	if (!is_narrow(r->dtype)) {
		uint64_t parts = kind_of(r->dtype) == KIND_COMPLEX ? 2 * n : n;

		memmove(out, acc, n * dtype_bytes(r->dtype));
		if (r->divisor > 1 && (r->dtype == CKPT_F32 || r->dtype == CKPT_C64))
			divide_f32(out, parts, r->divisor);
		else if (r->divisor > 1)
			divide_f64(out, parts, r->divisor);
		return;
	}
	for (uint64_t at = 0; at < n; at += BLOCK) {
		uint64_t m = MIN(n - at, (uint64_t)BLOCK);

		memcpy(wide, from + at, m * sizeof *wide);
		if (r->divisor > 1)
			divide_f32(wide, m, r->divisor);
		f32_narrow(r->dtype, wide, to + at, m);
	}
}
