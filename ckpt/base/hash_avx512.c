/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx512.c - the hash kernels with 512-bit integer instructions (F, VL, BW, DQ). hash.c calls
 * it only where the processor has them. A 32x32 multiplication takes the even words, so every
 * vector is used twice: as it is, and shifted down by a word.
 */
#ifdef __x86_64__
#include "ckpt/base/hash_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

/* acc[0] += even words' products, acc[1] += odd words' products */
static inline void mul_add(__m512i acc[2], __m512i v, const uint32_t *k)
{
	__m512i kv = _mm512_loadu_si512(k);

	acc[0] = _mm512_add_epi64(acc[0], _mm512_mul_epu32(v, kv));
	acc[1] = _mm512_add_epi64(
		acc[1], _mm512_mul_epu32(_mm512_srli_epi64(v, 32), _mm512_srli_epi64(kv, 32)));
}

static inline uint64_t total(const __m512i acc[4])
{
	uint64_t lane[8], sum = 0;

	_mm512_storeu_si512(lane, _mm512_add_epi64(_mm512_add_epi64(acc[0], acc[1]),
						   _mm512_add_epi64(acc[2], acc[3])));
	/* The compiler's own reduction adds signed numbers, which must not overflow. */
	for (int i = 0; i < 8; i++)
		sum += lane[i];
	return sum;
}

static uint64_t sum1(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	__m512i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= 32; i += 32) {
		mul_add(acc, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + i))),
			k + i);
		mul_add(acc + 2,
			_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + i + 16))),
			k + i + 16);
	}
	return total(acc) + hash_tail1(p + i, k + i, n - i);
}

static uint64_t sum2(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	__m512i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= 32; i += 32) {
		const uint8_t *q = p + (size_t)2 * i;

		mul_add(acc, _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)q)), k + i);
		mul_add(acc + 2,
			_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(q + 32))),
			k + i + 16);
	}
	return total(acc) + hash_tail2(p + (size_t)2 * i, k + i, n - i);
}

static uint64_t sum4(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	__m512i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= 32; i += 32) {
		const uint8_t *q = p + (size_t)4 * i;

		mul_add(acc, _mm512_loadu_si512(q), k + i);
		mul_add(acc + 2, _mm512_loadu_si512(q + 64), k + i + 16);
	}
	return total(acc) + hash_tail4(p + (size_t)4 * i, k + i, n - i);
}

#define HASH_ISA avx512
#include "ckpt/base/hash_body.h" /* again: the table entry */
#endif
