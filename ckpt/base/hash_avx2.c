/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx2.c - the hash kernels with 256-bit integer instructions. Compiled with -mavx2; hash.c
 * calls it only where the processor has that. A 32x32 multiplication takes the even words, so every
 * vector is used twice: as it is, and shifted down by a word.
 */
#ifdef __x86_64__
#include "ckpt/base/hash_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

static inline __m256i load(const void *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

/* acc[0] += even words' products, acc[1] += odd words' products */
static inline void mul_add(__m256i acc[2], __m256i v, const uint32_t *k)
{
	__m256i kv = load(k);

	acc[0] = _mm256_add_epi64(acc[0], _mm256_mul_epu32(v, kv));
	acc[1] = _mm256_add_epi64(
		acc[1], _mm256_mul_epu32(_mm256_srli_epi64(v, 32), _mm256_srli_epi64(kv, 32)));
}

static inline uint64_t total(const __m256i acc[4])
{
	__m256i s = _mm256_add_epi64(_mm256_add_epi64(acc[0], acc[1]),
				     _mm256_add_epi64(acc[2], acc[3]));
	__m128i t = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));

	return (uint64_t)_mm_cvtsi128_si64(t) + (uint64_t)_mm_extract_epi64(t, 1);
}

static uint64_t sum1(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	__m256i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= 16; i += 16) {
		__m128i v = _mm_loadu_si128((const __m128i *)(p + i));

		mul_add(acc, _mm256_cvtepu8_epi32(v), k + i);
		mul_add(acc + 2, _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)), k + i + 8);
	}
	return total(acc) + hash_tail1(p + i, k + i, n - i);
}

static uint64_t sum2(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	__m256i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= 16; i += 16) {
		const uint8_t *q = p + (size_t)2 * i;

		mul_add(acc, _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)q)), k + i);
		mul_add(acc + 2, _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(q + 16))),
			k + i + 8);
	}
	return total(acc) + hash_tail2(p + (size_t)2 * i, k + i, n - i);
}

static uint64_t sum4(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	__m256i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= 16; i += 16) {
		const uint8_t *q = p + (size_t)4 * i;

		mul_add(acc, load(q), k + i);
		mul_add(acc + 2, load(q + 32), k + i + 8);
	}
	return total(acc) + hash_tail4(p + (size_t)4 * i, k + i, n - i);
}

#define HASH_ISA avx2
#include "ckpt/base/hash_body.h" /* again: the table entry */
#endif
