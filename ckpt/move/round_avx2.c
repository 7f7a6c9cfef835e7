/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round_avx2.c - rounding with 256-bit instructions (AVX2, F16C). round.c calls it only where the
 * processor has them.
 */
#ifdef __x86_64__
#include "ckpt/move/round_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

#define LANES 8
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

static inline __m256i f32_load(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

/* All bits of a lane that has a NaN: without its sign it is positive, so a signed comparison
 * does. */
static inline __m256i f32_nans(__m256i v)
{
	return _mm256_cmpgt_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)),
				  _mm256_set1_epi32(0x7f800000));
}

static inline __m256i bf16_numbers(__m256i v)
{
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));

	v = _mm256_add_epi32(v, _mm256_set1_epi32(0x7fff));
	return _mm256_srli_epi32(_mm256_add_epi32(v, odd), 16);
}

static uint64_t bf16_round(const uint8_t *x, uint8_t *ret, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= LANES; i += LANES) {
		__m256i v = f32_load(x + 4 * i);
		__m256i nan = _mm256_or_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(0x40));

		v = _mm256_blendv_epi8(bf16_numbers(v), nan, f32_nans(v));
		_mm_storeu_si128((__m128i *)(ret + 2 * i),
				 _mm_packus_epi32(_mm256_castsi256_si128(v),
						  _mm256_extracti128_si256(v, 1)));
	}
	return i;
}

static uint64_t f16_round(const uint8_t *x, uint8_t *ret, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= LANES; i += LANES)
		_mm_storeu_si128(
			(__m128i *)(ret + 2 * i),
			_mm256_cvtps_ph(_mm256_loadu_ps((const float *)(x + 4 * i)), NEAREST));
	return i;
}

/* Zero in every lane where all is as it should be. */
static inline __m256i bf16_wrong(const uint8_t *x, const uint8_t *y)
{
	__m256i v = f32_load(x);
	__m256i have = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)y));

	return _mm256_or_si256(f32_nans(v), _mm256_xor_si256(bf16_numbers(v), have));
}

/* Of two vectors at once, whose results fill one. */
static inline __m256i f16_wrong(const uint8_t *x, const uint8_t *y)
{
	__m256i low = f32_load(x), high = f32_load(x + 4 * LANES);
	__m256i made = _mm256_set_m128i(_mm256_cvtps_ph(_mm256_castsi256_ps(high), NEAREST),
					_mm256_cvtps_ph(_mm256_castsi256_ps(low), NEAREST));

	return _mm256_or_si256(_mm256_or_si256(f32_nans(low), f32_nans(high)),
			       _mm256_xor_si256(made, f32_load(y)));
}

static uint64_t bf16_equal(const uint8_t *x, const uint8_t *y, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= 2 * LANES; i += 2 * LANES) {
		__m256i wrong =
			_mm256_or_si256(bf16_wrong(x + 4 * i, y + 2 * i),
					bf16_wrong(x + 4 * (i + LANES), y + 2 * (i + LANES)));

		if (!_mm256_testz_si256(wrong, wrong))
			break;
	}
	return i;
}

static uint64_t f16_equal(const uint8_t *x, const uint8_t *y, uint64_t n)
{
	uint64_t i = 0;

	for (; n - i >= 2 * LANES; i += 2 * LANES) {
		__m256i wrong = f16_wrong(x + 4 * i, y + 2 * i);

		if (!_mm256_testz_si256(wrong, wrong))
			break;
	}
	return i;
}

const struct round_isa round_isa_avx2 = { bf16_round, f16_round, bf16_equal, f16_equal };
#endif
