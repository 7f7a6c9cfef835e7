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

typedef __m512i vec;

static inline vec vec_load4(const void *p)
{
	return _mm512_loadu_si512(p);
}

static inline vec vec_scramble(vec a)
{
	const vec prime = _mm512_set1_epi32((int)HASH_PRIME32_1);

	a = _mm512_xor_si512(a, _mm512_srli_epi64(a, 47));
	a = _mm512_xor_si512(a, vec_load4(hash_secret + HASH_SCRAMBLE_AT));
	return _mm512_add_epi64(
		_mm512_mul_epu32(a, prime),
		_mm512_slli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(a, 32), prime), 32));
}

static void blocks(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead, uint32_t lines)
{
	vec a = vec_load4(acc);

	for (; n; n--, p += HASH_BLOCK) {
		vec words = { 0 };

		for (uint32_t i = 0; i < lines; i++, ahead += HASH_STRIPE)
			hash_ask(ahead);
#pragma GCC unroll 16
		for (uint32_t i = 0; i < 16; i++) {
			vec d = vec_load4(p + HASH_STRIPE * i);
			vec x = _mm512_xor_si512(d, vec_load4(hash_secret + 8 * i));

			a = _mm512_add_epi64(a, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
			words = _mm512_add_epi64(words, d);
		}
		a = vec_scramble(_mm512_add_epi64(a, _mm512_shuffle_epi32(words, 0x4e)));
	}
	_mm512_storeu_si512(acc, a);
}

static inline void mul_add(vec acc[2], vec v, const uint32_t *k)
{
	vec kv = vec_load4(k), odd = (vec)_mm512_movehdup_ps((__m512)v);

	acc[0] = _mm512_add_epi64(acc[0], _mm512_mul_epu32(v, kv));
	acc[1] = _mm512_add_epi64(acc[1], _mm512_mul_epu32(odd, _mm512_srli_epi64(kv, 32)));
}

static inline uint64_t vec_total(const vec acc[4])
{
	uint64_t lane[8], sum = 0;

	_mm512_storeu_si512(lane, _mm512_add_epi64(_mm512_add_epi64(acc[0], acc[1]),
						   _mm512_add_epi64(acc[2], acc[3])));
	/* The compiler's own reduction adds signed numbers, which must not overflow. */
	for (int i = 0; i < 8; i++)
		sum += lane[i];
	return sum;
}

static inline vec vec_load1(const uint8_t *p)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

static inline vec vec_load2(const uint8_t *p)
{
	return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

#define HASH_LANES 16
#define HASH_ISA hash_isa_avx512
#include "ckpt/base/hash_body.h" /* again: the sums, and the row */
#endif
