/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_avx512.c - the update with 512-bit instructions (F, VL, BW, DQ). kernel.c calls it only
 * where the processor has them. Its bits are those of kernel_body.h.
 */
#ifdef __x86_64__
#include "ema/kernel_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

#define LANES 16u

typedef __m512 floats;
typedef __m512i words;

/* What one instruction does. */
#define floats_add _mm512_add_ps
#define floats_sub _mm512_sub_ps
#define floats_fma _mm512_fmadd_ps
#define floats_fmsub _mm512_fmsub_ps
#define words_zero _mm512_setzero_si512
#define words_max _mm512_max_epu32
#define words_greatest _mm512_reduce_max_epu32
#define floats_load _mm512_loadu_ps

static inline floats floats_zero(void)
{
	return _mm512_setzero_ps();
}

static inline floats floats_all(float x)
{
	return _mm512_set1_ps(x);
}

static inline void floats_store(bool aligned, uint8_t *to, floats x)
{
	if (aligned)
		_mm512_stream_ps((float *)(void *)to, x);
	else
		_mm512_storeu_ps(to, x);
}

/* The elements of a source that lie at p. */
static inline floats floats_widen(uint32_t dtype, const uint8_t *p)
{
	__m256i h;

	if (dtype == CKPT_F32)
		return _mm512_loadu_ps(p);
	h = _mm256_loadu_si256((const __m256i *)p);
	if (dtype == CKPT_BF16)
		return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
	return _mm512_cvtph_ps(h);
}

/* Every NaN becomes the same. */
static inline floats floats_result(floats x)
{
	return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
				  _mm512_castsi512_ps(_mm512_set1_epi32((int)EMA_QUIET)));
}

static inline double floats_sum(floats x)
{
	__m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
	__m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

	return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

static inline words words_abs(floats x)
{
	return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

#include "ema/kernel_lanes_body.h"

const struct ema_isa ema_isa_avx512 = { update };
#endif
