/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_body.h - what hash_scalar.c, hash_avx2.c and hash_avx512.c have in common: each defines
 * HASH_ISA (its name), blocks_add and sum_of, and includes this again to become one entry of the
 * dispatch table in hash.c. Invariant: every function here is static, so that the linker cannot
 * give code of one instruction set to another.
 *
 * blocks_add(acc, p, n, ahead, lines): XXH3's main loop over n blocks of HASH_BLOCK bytes at p: 16
 * stripes of 64 bytes each, then the scramble. XXH3 adds the words of a stripe with neighbours
 * exchanged; here they are added as they come, and the sum of a block is exchanged.
 *
 * sum_of(bytes, p, k, n, ahead): the sum over n elements of that many bytes (1, 2 or 4) at p of
 * k[i] * element, mod 2^64. n is at most 8192. Elements of 8 bytes are pairs of 4.
 *
 * Both ask memory for the cache lines from `ahead` on while they compute: `lines` for each block
 * (at most 16), and one for each HASH_ASK bytes of a sum. Any address may be asked for.
 */
#ifndef CKPT_BASE_HASH_BODY_H
#define CKPT_BASE_HASH_BODY_H
#include "ckpt/base/hash.h"
#include <string.h>

#define HASH_STRIPE 64u
#define HASH_BLOCK 1024u
#define HASH_ASK 128u
#define HASH_PRIME32_1 0x9e3779b1u

typedef void hash_blocks_fn(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead,
			    uint32_t lines);
typedef uint64_t hash_sum_fn(uint32_t bytes, const uint8_t *p, const uint32_t *k, uint32_t n,
			     uintptr_t ahead);

struct hash_isa {
	hash_blocks_fn *blocks;
	hash_sum_fn *sum;
};

extern const struct hash_isa hash_isa_scalar, hash_isa_avx2, hash_isa_avx512;
extern const uint8_t hash_secret[192]; /* XXH3's default one */
#define HASH_SCRAMBLE_AT (sizeof hash_secret - HASH_STRIPE)

/* Into the second-level cache. */
static inline void hash_ask(uintptr_t at)
{
	__builtin_prefetch((const void *)at, 0, 2);
}

/* The last few elements, and the whole where there are no wider instructions. bytes is a constant
 * in every caller. */
static inline __attribute__((always_inline)) uint64_t hash_tail(uint32_t bytes, const uint8_t *p,
								const uint32_t *k, uint32_t n)
{
	uint64_t sum = 0;

#pragma GCC unroll 4
	for (uint32_t i = 0; i < n; i++) {
		uint32_t v = 0; /* little-endian: see hash.c */

		memcpy(&v, p + (size_t)bytes * i, bytes);
		sum += (uint64_t)k[i] * v;
	}
	return sum;
}
#endif

#ifdef HASH_ISA
static uint64_t sum_by_bytes(uint32_t bytes, const uint8_t *p, const uint32_t *k, uint32_t n,
			     uintptr_t ahead)
{
	if (bytes == 1)
		return sum_of(1, p, k, n, ahead);
	return bytes == 2 ? sum_of(2, p, k, n, ahead) : sum_of(4, p, k, n, ahead);
}

#define HASH_PASTE_(a, b) a##b
#define HASH_PASTE(a, b) HASH_PASTE_(a, b)
const struct hash_isa HASH_PASTE(hash_isa_, HASH_ISA) = { blocks_add, sum_by_bytes };
#endif
