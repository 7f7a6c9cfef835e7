/* SPDX-License-Identifier: Apache-2.0 */
/*
 * element.c - bit patterns to numbers. Called by cat and diff, for every element that they read.
 * Invariant: each bit pattern of each dtype is some double or NaN; nothing here can fail.
 */
#include "ckpt/engine/element.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/ckpt.h"
#include <math.h>
#include <stdio.h>

/* Of a float: bits behind the point, and digits that tell any two of them apart. */
static const struct {
	int mantissa, digits;
} floats[] = {
	[CKPT_F8_E4M3] = { 3, 3 },     [CKPT_F8_E5M2] = { 2, 2 }, [CKPT_F8_E8M0] = { 0, 2 },
	[CKPT_F16] = { 10, 5 },	       [CKPT_BF16] = { 7, 4 },	  [CKPT_F32] = { 23, 9 },
	[CKPT_F64] = { 52, 17 },       [CKPT_C64] = { 23, 9 },	  [CKPT_C128] = { 52, 17 },
	[CKPT_C32] = { 10, 5 },	       [CKPT_F4] = { 1, 2 },	  [CKPT_F8_E4M3FNUZ] = { 3, 3 },
	[CKPT_F8_E5M2FNUZ] = { 2, 3 },
};

void element_unpack(const uint8_t *p, uint64_t n, uint8_t *ret)
{
	for (uint64_t i = 0; i < n; i++) {
		ret[2 * i] = p[i] & 15;
		ret[2 * i + 1] = p[i] >> 4;
	}
}

uint32_t element_parts(uint32_t dtype)
{
	return dtype == CKPT_C32 || dtype == CKPT_C64 || dtype == CKPT_C128 ? 2 : 1;
}

bool element_is_signed(uint32_t dtype)
{
	return dtype == CKPT_I8 || dtype == CKPT_I16 || dtype == CKPT_I32 || dtype == CKPT_I64;
}

bool element_is_integer(uint32_t dtype)
{
	return element_is_signed(dtype) || dtype == CKPT_U8 || dtype == CKPT_U16 ||
	       dtype == CKPT_U32 || dtype == CKPT_U64;
}

static uint16_t bits16(const uint8_t *p)
{
	return le16_get(*(const le16 *)p);
}

static uint32_t bits32(const uint8_t *p)
{
	return le32_get(*(const le32 *)p);
}

static uint64_t bits64(const uint8_t *p)
{
	return le64_get(*(const le64 *)p);
}

uint64_t element_integer(uint32_t dtype, const uint8_t *p)
{
	switch (dtype) {
	case CKPT_I8:
		return (uint64_t)(int64_t)(int8_t)*p;
	case CKPT_U16:
		return bits16(p);
	case CKPT_I16:
		return (uint64_t)(int64_t)(int16_t)bits16(p);
	case CKPT_U32:
		return bits32(p);
	case CKPT_I32:
		return (uint64_t)(int64_t)(int32_t)bits32(p);
	case CKPT_U64:
	case CKPT_I64:
		return bits64(p);
	default:
		return *p;
	}
}

static double real_f32(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof f);
	return (double)f;
}

static double real_f64(uint64_t bits)
{
	double x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

/* A small float of IEEE's kind: sign, exponent, mantissa, subnormals; the highest exponent is
 * infinity and NaN where ieee, else a number like the others. */
static double real_small(uint32_t bits, uint32_t nexponent, uint32_t nmantissa, int bias, bool ieee)
{
	uint32_t e = bits >> nmantissa & ((1u << nexponent) - 1),
		 m = bits & ((1u << nmantissa) - 1);
	double x;

	if (ieee && e == (1u << nexponent) - 1)
		x = m ? NAN : INFINITY;
	else if (e)
		x = ldexp((double)(m + (1u << nmantissa)), (int)e - bias - (int)nmantissa);
	else
		x = ldexp((double)m, 1 - bias - (int)nmantissa);
	return bits >> (nexponent + nmantissa) & 1 ? -x : x;
}

static double real_byte(uint32_t dtype, uint8_t b)
{
	switch (dtype) {
	case CKPT_F8_E4M3:
		return (b & 0x7f) == 0x7f ? NAN : real_small(b, 4, 3, 7, false);
	case CKPT_F8_E5M2:
		return real_small(b, 5, 2, 15, true);
	case CKPT_F8_E4M3FNUZ:
		return b == 0x80 ? NAN : real_small(b, 4, 3, 8, false);
	case CKPT_F8_E5M2FNUZ:
		return b == 0x80 ? NAN : real_small(b, 5, 2, 16, false);
	case CKPT_F4:
		return real_small(b, 2, 1, 1, false);
	case CKPT_F8_E8M0:
		return b == 0xff ? NAN : ldexp(1, (int)b - 127);
	case CKPT_I8:
		return (double)(int8_t)b;
	case CKPT_BOOL:
		return b != 0;
	default:
		return b;
	}
}

/* F16 to F32's bits: a multiplication by a power of two puts the exponent right, subnormals
 * included. */
static double real_f16(uint32_t h)
{
	uint32_t sign = (h & 0x8000) << 16;
	double x;

	if ((h & 0x7c00) == 0x7c00)
		return real_f32(sign | 0x7f800000 | (h & 0x3ff) << 13);
	x = real_f32((h & 0x7fff) << 13) * 0x1p112;
	return sign ? -x : x;
}

void element_reals(uint32_t dtype, const uint8_t *p, uint64_t n, double *ret)
{
	double of[256];

	switch (dtype) {
	case CKPT_C32:
		n *= 2;
		__attribute__((fallthrough));
	case CKPT_F16:
		for (uint64_t i = 0; i < n; i++)
			ret[i] = real_f16(bits16(p + 2 * i));
		return;
	case CKPT_BF16:
		for (uint64_t i = 0; i < n; i++)
			ret[i] = real_f32((uint32_t)bits16(p + 2 * i) << 16);
		return;
	case CKPT_C64:
		n *= 2;
		__attribute__((fallthrough));
	case CKPT_F32:
		for (uint64_t i = 0; i < n; i++)
			ret[i] = real_f32(bits32(p + 4 * i));
		return;
	case CKPT_C128:
		n *= 2;
		__attribute__((fallthrough));
	case CKPT_F64:
		for (uint64_t i = 0; i < n; i++)
			ret[i] = real_f64(bits64(p + 8 * i));
		return;
	case CKPT_U16:
	case CKPT_U32:
	case CKPT_U64:
		for (uint64_t i = 0; i < n; i++)
			ret[i] = (double)element_integer(dtype, p + i * dtype_bytes(dtype));
		return;
	case CKPT_I16:
	case CKPT_I32:
	case CKPT_I64:
		for (uint64_t i = 0; i < n; i++)
			ret[i] =
				(double)(int64_t)element_integer(dtype, p + i * dtype_bytes(dtype));
		return;
	default:
		for (uint32_t b = 0; b < 256; b++)
			of[b] = real_byte(dtype, (uint8_t)b);
		for (uint64_t i = 0; i < n; i++)
			ret[i] = of[p[i]];
		return;
	}
}

char *element_real_print(uint32_t dtype, double x, int digits, char *buf)
{
	int most = dtype < ARRAY_LEN(floats) && floats[dtype].digits ? floats[dtype].digits : 17;
	int mantissa = most == 17 ? 52 : floats[dtype].mantissa, e = 0;
	double part, half;

	if (isnan(x))
		return strcpy(buf, "nan");
	if (isinf(x))
		return strcpy(buf, x < 0 ? "-inf" : "inf");
	/* Below a power of two values stand twice as close as above it. */
	part = frexp(x, &e);
	half = ldexp(fabs(part) == 0.5 ? 0.25 : 0.5, e - 1 - mantissa);
	if (digits <= 0 || digits > most)
		digits = most;
	for (int n = 1; n <= digits; n++) {
		double off;

		snprintf(buf, ELEMENT_BYTES, "%.*g", n, x);
		off = fabs(strtod(buf, NULL) - x);
		if (mantissa == 52 ? off == 0 : off < half)
			break;
	}
	return buf;
}

char *element_print(uint32_t dtype, const uint8_t *p, int digits, char *buf)
{
	double x[2];

	if (element_is_integer(dtype)) {
		uint64_t n = element_integer(dtype, p);

		snprintf(buf, ELEMENT_BYTES, element_is_signed(dtype) ? "%lld" : "%llu",
			 (unsigned long long)n);
		return buf;
	}
	if (dtype == CKPT_BOOL)
		return strcpy(buf, *p ? "True" : "False");
	element_reals(dtype, p, 1, x);
	element_real_print(dtype, x[0], digits, buf);
	if (element_parts(dtype) == 2) {
		char word[ELEMENT_BYTES];

		element_real_print(dtype, x[1], digits, word);
		if (*word != '-')
			strcat(buf, "+");
		snprintf(buf + strlen(buf), ELEMENT_BYTES - strlen(buf), "%.30sj", word);
	}
	return buf;
}
