/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_avx2.c - the update with 256-bit instructions (AVX2, FMA, F16C). kernel.c calls it only
 * where the processor has them. Its bits are those of kernel_body.h.
 */
#ifdef __x86_64__
#include "ema/kernel_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

#define LANES 8u

typedef __m256 floats;
typedef __m256i words;

static inline floats floats_zero(void)
{
	return _mm256_setzero_ps();
}

static inline floats floats_all(float x)
{
	return _mm256_set1_ps(x);
}

/* What one instruction does. */
#define floats_add _mm256_add_ps
#define floats_sub _mm256_sub_ps
#define floats_fma _mm256_fmadd_ps
#define floats_fmsub _mm256_fmsub_ps
#define words_zero _mm256_setzero_si256
#define words_max _mm256_max_epu32

static inline floats floats_load(const uint8_t *p)
{
	return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void floats_store(bool aligned, uint8_t *to, floats x)
{
	if (aligned)
		_mm256_stream_si256((__m256i *)to, _mm256_castps_si256(x));
	else
		_mm256_storeu_si256((__m256i *)to, _mm256_castps_si256(x));
}

/* The elements of a source that lie at p. */
static inline floats floats_widen(uint32_t dtype, const uint8_t *p)
{
	__m128i h;

	if (dtype == CKPT_F32)
		return floats_load(p);
	h = _mm_loadu_si128((const __m128i *)p);
	if (dtype == CKPT_BF16)
		return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
	return _mm256_cvtph_ps(h);
}

/* Every NaN becomes the same. */
static inline floats floats_result(floats x)
{
	return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)EMA_QUIET)),
				_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline double floats_sum(floats x)
{
	__m256d four = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
				     _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
	__m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));

	return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

static inline words words_abs(floats x)
{
	return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static inline uint32_t words_greatest(words x)
{
	__m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

	m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
	m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(m);
}

#include "ema/kernel_lanes_body.h"

const struct ema_isa ema_isa_avx2 = { update };
#endif
