/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx2.c - the hash kernels with 256-bit integer instructions. Compiled with -mavx2; hash.c
 * calls it only where the processor has that. A 32x32 multiplication takes the even words, so
 * every vector is used twice: as it is, and with its odd words moved down: by a shuffle or a shift,
 * which different parts of the processor do at once.
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

static inline __m256i scramble(__m256i a, const uint8_t *secret)
{
	const __m256i prime = _mm256_set1_epi32((int)HASH_PRIME32_1);

	a = _mm256_xor_si256(a, _mm256_srli_epi64(a, 47));
	a = _mm256_xor_si256(a, load(secret));
	return _mm256_add_epi64(
		_mm256_mul_epu32(a, prime),
		_mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), prime), 32));
}

/* One half of a stripe. */
static inline void stripe_add(__m256i *a, __m256i *words, const uint8_t *p, const uint8_t *secret)
{
	__m256i d = load(p), x = _mm256_xor_si256(d, load(secret));

	*a = _mm256_add_epi64(*a, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
	*words = _mm256_add_epi64(*words, d);
}

static void blocks(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead, uint32_t lines)
{
	__m256i a[2] = { load(acc), load(acc + 4) };

	for (; n; n--, p += HASH_BLOCK) {
		__m256i words[2] = { 0 };

		for (uint32_t i = 0; i < lines; i++, ahead += HASH_STRIPE)
			hash_ask(ahead);
#pragma GCC unroll 16
		for (uint32_t i = 0; i < 16; i++) {
			stripe_add(&a[0], &words[0], p + HASH_STRIPE * i, hash_secret + 8 * i);
			stripe_add(&a[1], &words[1], p + HASH_STRIPE * i + 32,
				   hash_secret + 8 * i + 32);
		}
		for (uint32_t h = 0; h < 2; h++)
			a[h] = scramble(
				_mm256_add_epi64(a[h], _mm256_shuffle_epi32(words[h], 0x4e)),
				hash_secret + HASH_SCRAMBLE_AT + 32 * h);
	}
	_mm256_storeu_si256((__m256i *)acc, a[0]);
	_mm256_storeu_si256((__m256i *)(acc + 4), a[1]);
}

/* acc[0] += even words' products, acc[1] += odd words' products */
static inline void mul_add(__m256i acc[2], __m256i v, const uint32_t *k)
{
	__m256i kv = load(k), odd = (__m256i)_mm256_movehdup_ps((__m256)v);

	acc[0] = _mm256_add_epi64(acc[0], _mm256_mul_epu32(v, kv));
	acc[1] = _mm256_add_epi64(acc[1], _mm256_mul_epu32(odd, _mm256_srli_epi64(kv, 32)));
}

static inline uint64_t total(const __m256i acc[4])
{
	__m256i s = _mm256_add_epi64(_mm256_add_epi64(acc[0], acc[1]),
				     _mm256_add_epi64(acc[2], acc[3]));
	__m128i t = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));

	return (uint64_t)_mm_cvtsi128_si64(t) + (uint64_t)_mm_extract_epi64(t, 1);
}

static inline __m256i load1(const uint8_t *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline __m256i load2(const uint8_t *p)
{
	return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

static uint64_t sum1(const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	__m256i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= HASH_ASK; i += HASH_ASK, ahead += HASH_STRIPE) {
		hash_ask(ahead);
		for (uint32_t j = 0; j < HASH_ASK; j += 16) {
			mul_add(acc, load1(p + i + j), k + i + j);
			mul_add(acc + 2, load1(p + i + j + 8), k + i + j + 8);
		}
	}
	return total(acc) + hash_tail1(p + i, k + i, n - i);
}

static uint64_t sum2(const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	__m256i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= HASH_ASK / 2; i += HASH_ASK / 2, ahead += HASH_STRIPE) {
		const uint8_t *q = p + (size_t)2 * i;

		hash_ask(ahead);
		for (uint32_t j = 0; j < HASH_ASK / 2; j += 16) {
			mul_add(acc, load2(q + 2 * j), k + i + j);
			mul_add(acc + 2, load2(q + 2 * j + 16), k + i + j + 8);
		}
	}
	return total(acc) + hash_tail2(p + (size_t)2 * i, k + i, n - i);
}

static uint64_t sum4(const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	__m256i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= HASH_ASK / 4; i += HASH_ASK / 4, ahead += HASH_STRIPE) {
		const uint8_t *q = p + (size_t)4 * i;

		hash_ask(ahead);
		mul_add(acc, load(q), k + i);
		mul_add(acc + 2, load(q + 32), k + i + 8);
		mul_add(acc, load(q + 64), k + i + 16);
		mul_add(acc + 2, load(q + 96), k + i + 24);
	}
	return total(acc) + hash_tail4(p + (size_t)4 * i, k + i, n - i);
}

#define HASH_ISA avx2
#include "ckpt/base/hash_body.h" /* again: the table entry */
#endif
