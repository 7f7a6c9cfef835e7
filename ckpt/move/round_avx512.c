/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round_avx512.c - rounding with 512-bit instructions (F, VL, BW, DQ). round.c calls it only where
 * the processor has them. The conversion to F16 keeps subnormal results, whatever the processor's
 * flush-to-zero mode is; an F32 that is itself subnormal becomes 0 in every mode.
 */
#ifdef __x86_64__
#include "ckpt/move/round_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

#define LANES 16
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

static inline __mmask16 f32_nans(__m512i v)
{
	return _mm512_cmpgt_epu32_mask(_mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff)),
				       _mm512_set1_epi32(0x7f800000));
}

/* 16 words of 32 bits; wrong where it is a NaN. */
static inline __m512i bf16_numbers(__m512i v)
{
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));

	v = _mm512_add_epi32(v, _mm512_set1_epi32(0x7fff));
	return _mm512_srli_epi32(_mm512_add_epi32(v, odd), 16);
}

static uint64_t bf16_round(const uint8_t *x, uint8_t *ret, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= LANES; i += LANES) {
		__m512i v = _mm512_loadu_si512(x + 4 * i);
		__m512i nan = _mm512_or_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(0x40));

		v = _mm512_mask_mov_epi32(bf16_numbers(v), f32_nans(v), nan);
		_mm256_storeu_si256((__m256i *)(ret + 2 * i), _mm512_cvtepi32_epi16(v));
	}
	return i;
}

static uint64_t f16_round(const uint8_t *x, uint8_t *ret, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= LANES; i += LANES)
		_mm256_storeu_si256((__m256i *)(ret + 2 * i),
				    _mm512_cvtps_ph(_mm512_loadu_ps(x + 4 * i), NEAREST));
	return i;
}

static inline __mmask16 bf16_wrong(const uint8_t *x, const uint8_t *y)
{
	__m512i v = _mm512_loadu_si512(x);
	__m512i have = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)y));

	return f32_nans(v) | _mm512_cmpneq_epi32_mask(bf16_numbers(v), have);
}

static inline __mmask16 f16_wrong(const uint8_t *x, const uint8_t *y)
{
	__m512 v = _mm512_loadu_ps(x);

	return f32_nans(_mm512_castps_si512(v)) |
	       _mm256_cmpneq_epi16_mask(_mm512_cvtps_ph(v, NEAREST),
					_mm256_loadu_si256((const __m256i *)y));
}

static uint64_t bf16_equal(const uint8_t *x, const uint8_t *y, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= 4 * LANES; i += 4 * LANES)
		if (bf16_wrong(x + 4 * i, y + 2 * i) |
		    bf16_wrong(x + 4 * (i + LANES), y + 2 * (i + LANES)) |
		    bf16_wrong(x + 4 * (i + 2 * LANES), y + 2 * (i + 2 * LANES)) |
		    bf16_wrong(x + 4 * (i + 3 * LANES), y + 2 * (i + 3 * LANES)))
			break;
	return i;
}

static uint64_t f16_equal(const uint8_t *x, const uint8_t *y, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= 4 * LANES; i += 4 * LANES)
		if (f16_wrong(x + 4 * i, y + 2 * i) |
		    f16_wrong(x + 4 * (i + LANES), y + 2 * (i + LANES)) |
		    f16_wrong(x + 4 * (i + 2 * LANES), y + 2 * (i + 2 * LANES)) |
		    f16_wrong(x + 4 * (i + 3 * LANES), y + 2 * (i + 3 * LANES)))
			break;
	return i;
}

const struct round_isa round_isa_avx512 = { bf16_round, f16_round, bf16_equal, f16_equal };
#endif
