/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_scalar.c - the hash kernels in the baseline instruction set. The other instruction sets are
 * tested against this one.
 */
#include "ckpt/base/hash_body.h"

static uint64_t word_read(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof w);
	return w;
}

static void blocks_add(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead, uint32_t lines)
{
	for (; n; n--, p += HASH_BLOCK) {
		for (uint32_t i = 0; i < lines; i++, ahead += HASH_STRIPE)
			hash_ask(ahead);
		for (uint32_t i = 0; i < 16; i++)
			for (uint32_t k = 0; k < 8; k++) {
				uint64_t d = word_read(p + HASH_STRIPE * i + 8 * k);
				uint64_t x = d ^ word_read(hash_secret + 8 * i + 8 * k);

				acc[k] += (x & 0xffffffff) * (x >> 32);
				acc[k ^ 1] += d;
			}
		for (uint32_t k = 0; k < 8; k++) {
			acc[k] ^= acc[k] >> 47;
			acc[k] ^= word_read(hash_secret + HASH_SCRAMBLE_AT + 8 * k);
			acc[k] *= HASH_PRIME32_1;
		}
	}
}

static inline __attribute__((always_inline)) uint64_t
sum_of(uint32_t bytes, const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	(void)ahead;
	return hash_tail(bytes, p, k, n);
}

#define HASH_ISA scalar
#include "ckpt/base/hash_body.h" /* again: the table entry */
