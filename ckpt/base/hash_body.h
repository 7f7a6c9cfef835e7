/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_body.h - what hash_scalar.c, hash_avx2.c and hash_avx512.c have in common: each defines
 * HASH_ISA (its name), sum1, sum2 and sum4, and includes this to become one entry of the dispatch
 * table in hash.c. Invariant: every function here is static, so that the linker cannot give code of
 * one instruction set to another.
 *
 * sumW(p, k, n): the sum over n elements of W bytes at p of k[i] * element, mod 2^64. n is at most
 * 8192. Elements of 8 bytes are pairs of 4.
 */
#ifndef CKPT_BASE_HASH_BODY_H
#define CKPT_BASE_HASH_BODY_H
#include "ckpt/base/hash.h"
#include <string.h>

typedef uint64_t hash_sum_fn(const uint8_t *p, const uint32_t *k, uint32_t n);

struct hash_isa {
	const char *name;
	struct hash128 (*hash128)(const void *p, size_t bytes);
	void (*begin)(void *state); /* HASH128_STATE bytes on a cache line */
	void (*add)(void *state, const void *p, size_t bytes);
	struct hash128 (*end)(const void *state);
	hash_sum_fn *sum1, *sum2, *sum4;
};

const struct hash_isa *hash_isa(void); /* the one in use */
extern const struct hash_isa hash_isa_scalar, hash_isa_avx2, hash_isa_avx512;

/* The last few elements, and the whole where there are no wider instructions. */
static inline uint64_t hash_tail1(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += (uint64_t)k[i] * p[i];
	return sum;
}

static inline uint64_t hash_tail2(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	uint64_t sum = 0;
	uint16_t v;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&v, p + (size_t)2 * i, sizeof v);
		sum += (uint64_t)k[i] * v;
	}
	return sum;
}

static inline uint64_t hash_tail4(const uint8_t *p, const uint32_t *k, uint32_t n)
{
	uint64_t sum = 0;
	uint32_t v;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&v, p + (size_t)4 * i, sizeof v);
		sum += (uint64_t)k[i] * v;
	}
	return sum;
}
#endif

#ifdef HASH_ISA
#define XXH_INLINE_ALL
#include <xxhash.h>

#define HASH_PASTE_(a, b) a##b
#define HASH_PASTE(a, b) HASH_PASTE_(a, b)
#define HASH_STRING_(a) #a
#define HASH_STRING(a) HASH_STRING_(a)

static struct hash128 xxh3_bytes(XXH128_hash_t value)
{
	XXH128_canonical_t c;
	struct hash128 h;

	XXH128_canonicalFromHash(&c, value);
	memcpy(h.b, c.digest, sizeof h.b);
	return h;
}

static struct hash128 xxh3(const void *p, size_t bytes)
{
	return xxh3_bytes(XXH3_128bits(p, bytes));
}

_Static_assert(sizeof(XXH3_state_t) <= HASH128_STATE && _Alignof(XXH3_state_t) <= 64, "it fits");

static void xxh3_begin(void *state)
{
	XXH3_INITSTATE((XXH3_state_t *)state);
	(void)XXH3_128bits_reset(state);
}

static void xxh3_add(void *state, const void *p, size_t bytes)
{
	(void)XXH3_128bits_update(state, p, bytes);
}

static struct hash128 xxh3_end(const void *state)
{
	return xxh3_bytes(XXH3_128bits_digest(state));
}

const struct hash_isa HASH_PASTE(hash_isa_, HASH_ISA) = {
	HASH_STRING(HASH_ISA), xxh3, xxh3_begin, xxh3_add, xxh3_end, sum1, sum2, sum4
};
#endif
