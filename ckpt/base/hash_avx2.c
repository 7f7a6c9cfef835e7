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

typedef __m256i vec;

static inline vec vec_load4(const void *p)
{
	return _mm256_loadu_si256((const vec *)p);
}

static inline vec vec_scramble(vec a, const uint8_t *secret)
{
	const vec prime = _mm256_set1_epi32((int)HASH_PRIME32_1);

	a = _mm256_xor_si256(a, _mm256_srli_epi64(a, 47));
	a = _mm256_xor_si256(a, vec_load4(secret));
	return _mm256_add_epi64(
		_mm256_mul_epu32(a, prime),
		_mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), prime), 32));
}

/* One half of a stripe. */
static inline void stripe_add(vec *a, vec *words, const uint8_t *p, const uint8_t *secret)
{
	vec d = vec_load4(p), x = _mm256_xor_si256(d, vec_load4(secret));

	*a = _mm256_add_epi64(*a, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
	*words = _mm256_add_epi64(*words, d);
}

static void blocks(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead, uint32_t lines)
{
	vec a[2] = { vec_load4(acc), vec_load4(acc + 4) };

	for (; n; n--, p += HASH_BLOCK) {
		vec words[2] = { 0 };

		for (uint32_t i = 0; i < lines; i++, ahead += HASH_STRIPE)
			hash_ask(ahead);
#pragma GCC unroll 16
		for (uint32_t i = 0; i < 16; i++) {
			stripe_add(&a[0], &words[0], p + HASH_STRIPE * i, hash_secret + 8 * i);
			stripe_add(&a[1], &words[1], p + HASH_STRIPE * i + 32,
				   hash_secret + 8 * i + 32);
		}
		for (uint32_t h = 0; h < 2; h++)
			a[h] = vec_scramble(
				_mm256_add_epi64(a[h], _mm256_shuffle_epi32(words[h], 0x4e)),
				hash_secret + HASH_SCRAMBLE_AT + 32 * h);
	}
	_mm256_storeu_si256((vec *)acc, a[0]);
	_mm256_storeu_si256((vec *)(acc + 4), a[1]);
}

static inline void mul_add(vec acc[2], vec v, const uint32_t *k)
{
	vec kv = vec_load4(k), odd = (vec)_mm256_movehdup_ps((__m256)v);

	acc[0] = _mm256_add_epi64(acc[0], _mm256_mul_epu32(v, kv));
	acc[1] = _mm256_add_epi64(acc[1], _mm256_mul_epu32(odd, _mm256_srli_epi64(kv, 32)));
}

static inline uint64_t vec_total(const vec acc[4])
{
	vec s = _mm256_add_epi64(_mm256_add_epi64(acc[0], acc[1]),
				 _mm256_add_epi64(acc[2], acc[3]));
	__m128i t = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));

	return (uint64_t)_mm_cvtsi128_si64(t) + (uint64_t)_mm_extract_epi64(t, 1);
}

static inline vec vec_load1(const uint8_t *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline vec vec_load2(const uint8_t *p)
{
	return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

#define HASH_LANES 8
#define HASH_ISA hash_isa_avx2
#include "ckpt/base/hash_body.h" /* again: the sums, and the row */
#endif
