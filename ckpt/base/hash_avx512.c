/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx512.c - the hash kernels with 512-bit integer instructions (F, VL, BW, DQ). hash.c calls
 * it only where the processor has them.
 */
#ifdef __x86_64__
#include "ckpt/base/hash_body.h"
#include <immintrin.h>

#define LANES 16u

typedef uint64_t words __attribute__((vector_size(64)));

/* Of the even 32-bit words. */
static inline words words_mul(words a, words b)
{
	return (words)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}

/* The odd 32-bit words, moved to the even places. */
static inline words words_odd(words a)
{
	return (words)_mm512_movehdup_ps((__m512)a);
}

/* Neighbours of 64 bits. */
static inline words words_exchange(words a)
{
	return (words)_mm512_shuffle_epi32((__m512i)a, 0x4e);
}

/* The compiler's own reduction adds signed numbers, which must not overflow. */
static inline uint64_t words_total(words a)
{
	uint64_t lane[8], sum = 0;

	memcpy(lane, &a, sizeof lane);
	for (uint32_t i = 0; i < 8; i++)
		sum += lane[i];
	return sum;
}

/* LANES elements of so many bytes. */
static inline words words_widen(uint32_t bytes, const uint8_t *p)
{
	if (bytes == 1)
		return (words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
	if (bytes == 2)
		return (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
	return (words)_mm512_loadu_si512((const __m512i *)p);
}

#include "ckpt/base/hash_lanes_body.h"

#define HASH_ISA avx512
#include "ckpt/base/hash_body.h" /* again: the table entry */
#endif
