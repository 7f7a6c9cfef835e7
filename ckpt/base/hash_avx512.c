/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_avx512.c - the hash kernels with 512-bit integer instructions (F, VL, BW, DQ). hash.c calls
 * it only where the processor has them. A 32x32 multiplication takes the even words, so
 * every vector is used twice: as it is, and with its odd words moved down: by a shuffle or a shift,
 * which different parts of the processor do at once.
 */
#ifdef __x86_64__
#include "ckpt/base/hash_body.h"
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"

static inline __m512i load(const void *p)
{
	return _mm512_loadu_si512(p);
}

static inline __m512i scramble(__m512i a)
{
	const __m512i prime = _mm512_set1_epi32((int)HASH_PRIME32_1);

	a = _mm512_xor_si512(a, _mm512_srli_epi64(a, 47));
	a = _mm512_xor_si512(a, load(hash_secret + HASH_SCRAMBLE_AT));
	return _mm512_add_epi64(
		_mm512_mul_epu32(a, prime),
		_mm512_slli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(a, 32), prime), 32));
}

static void blocks(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead, uint32_t lines)
{
	__m512i a = load(acc);

	for (; n; n--, p += HASH_BLOCK) {
		__m512i words = { 0 };

		for (uint32_t i = 0; i < lines; i++, ahead += HASH_STRIPE)
			hash_ask(ahead);
#pragma GCC unroll 16
		for (uint32_t i = 0; i < 16; i++) {
			__m512i d = load(p + HASH_STRIPE * i);
			__m512i x = _mm512_xor_si512(d, load(hash_secret + 8 * i));

			a = _mm512_add_epi64(a, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
			words = _mm512_add_epi64(words, d);
		}
		a = scramble(_mm512_add_epi64(a, _mm512_shuffle_epi32(words, 0x4e)));
	}
	_mm512_storeu_si512(acc, a);
}

/* acc[0] += even words' products, acc[1] += odd words' products */
static inline void mul_add(__m512i acc[2], __m512i v, const uint32_t *k)
{
	__m512i kv = load(k), odd = (__m512i)_mm512_movehdup_ps((__m512)v);

	acc[0] = _mm512_add_epi64(acc[0], _mm512_mul_epu32(v, kv));
	acc[1] = _mm512_add_epi64(acc[1], _mm512_mul_epu32(odd, _mm512_srli_epi64(kv, 32)));
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

static inline __m512i load1(const uint8_t *p)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

static inline __m512i load2(const uint8_t *p)
{
	return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

static uint64_t sum1(const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	__m512i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= HASH_ASK; i += HASH_ASK, ahead += HASH_STRIPE) {
		hash_ask(ahead);
		for (uint32_t j = 0; j < HASH_ASK; j += 32) {
			mul_add(acc, load1(p + i + j), k + i + j);
			mul_add(acc + 2, load1(p + i + j + 16), k + i + j + 16);
		}
	}
	return total(acc) + hash_tail1(p + i, k + i, n - i);
}

static uint64_t sum2(const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	__m512i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= HASH_ASK / 2; i += HASH_ASK / 2, ahead += HASH_STRIPE) {
		const uint8_t *q = p + (size_t)2 * i;

		hash_ask(ahead);
		mul_add(acc, load2(q), k + i);
		mul_add(acc + 2, load2(q + 32), k + i + 16);
		mul_add(acc, load2(q + 64), k + i + 32);
		mul_add(acc + 2, load2(q + 96), k + i + 48);
	}
	return total(acc) + hash_tail2(p + (size_t)2 * i, k + i, n - i);
}

static uint64_t sum4(const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	__m512i acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= HASH_ASK / 4; i += HASH_ASK / 4, ahead += HASH_STRIPE) {
		const uint8_t *q = p + (size_t)4 * i;

		hash_ask(ahead);
		mul_add(acc, load(q), k + i);
		mul_add(acc + 2, load(q + 64), k + i + 16);
	}
	return total(acc) + hash_tail4(p + (size_t)4 * i, k + i, n - i);
}

#define HASH_ISA avx512
#include "ckpt/base/hash_body.h" /* again: the table entry */
#endif
