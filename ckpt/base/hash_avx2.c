/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx2.c - the hash kernels with 256-bit integer instructions. Compiled with -mavx2; hash.c
 * calls it only where the processor has that.
 */
#ifdef __x86_64__
#include "ckpt/base/hash_body.h"
#include <immintrin.h>

#define LANES 8u

typedef uint64_t words __attribute__((vector_size(32)));

/* Of the even 32-bit words. */
static inline words words_mul(words a, words b)
{
	return (words)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

/* The odd 32-bit words, moved to the even places. */
static inline words words_odd(words a)
{
	return (words)_mm256_movehdup_ps((__m256)a);
}

/* Neighbours of 64 bits. */
static inline words words_exchange(words a)
{
	return (words)_mm256_shuffle_epi32((__m256i)a, 0x4e);
}

static inline uint64_t words_total(words a)
{
	__m128i t = _mm_add_epi64(_mm256_castsi256_si128((__m256i)a),
				  _mm256_extracti128_si256((__m256i)a, 1));

	return (uint64_t)_mm_cvtsi128_si64(t) + (uint64_t)_mm_extract_epi64(t, 1);
}

/* LANES elements of so many bytes. */
static inline words words_widen(uint32_t bytes, const uint8_t *p)
{
	if (bytes == 1)
		return (words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
	if (bytes == 2)
		return (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
	return (words)_mm256_loadu_si256((const __m256i *)p);
}

#include "ckpt/base/hash_lanes_body.h"

#define HASH_ISA avx2
#include "ckpt/base/hash_body.h" /* again: the table entry */
#endif
