/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.c - chooses the instruction set once, makes the fingerprint's constants, and walks a tensor
 * block by block.
 * Invariant: the chosen instruction set changes speed only, never a bit.
 */
#include "ckpt/base/hash.h"
#include "ckpt/base/hash_body.h"
#include "ckpt/base/util.h"
#include <pthread.h>
#include <stdatomic.h>

#define BLOCK 4096 /* elements that share one M */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "element bit patterns are read as they lie in memory");

static uint32_t k_word[BLOCK];	   /* K[i] */
static uint32_t k_pair[2 * BLOCK]; /* K[i], L[i]: the two halves of an 8-byte element */
static const struct hash_isa *_Atomic chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t splitmix64(uint64_t seed, uint64_t n)
{
	uint64_t z = seed + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

#ifdef __x86_64__
static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}
#endif

/* The instruction set of that name, or with NULL the best; NULL when this machine lacks it. */
static const struct hash_isa *isa_find(const char *name)
{
#ifdef __x86_64__
	if (has_avx512() && (!name || !strcmp(name, hash_isa_avx512.name)))
		return &hash_isa_avx512;
	if (has_avx2() && (!name || !strcmp(name, hash_isa_avx2.name)))
		return &hash_isa_avx2;
#endif
	return !name || !strcmp(name, hash_isa_scalar.name) ? &hash_isa_scalar : NULL;
}

static void constants_make(void)
{
	for (uint32_t i = 0; i < BLOCK; i++) {
		uint64_t z = splitmix64(FINGERPRINT_SEED_K, i);

		k_word[i] = k_pair[2 * i] = (uint32_t)(z >> 32) | 1;
		k_pair[2 * i + 1] = (uint32_t)z | 1;
	}
}

/* Two threads that come first at once choose the same. */
const struct hash_isa *hash_isa(void)
{
	const struct hash_isa *i = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (__builtin_expect(!i, 0)) {
		i = isa_find(NULL);
		atomic_store_explicit(&chosen, i, memory_order_relaxed);
	}
	return i;
}

int hash_force_isa(const char *name)
{
	const struct hash_isa *i = isa_find(name);

	if (!i)
		return -EOPNOTSUPP;
	atomic_store_explicit(&chosen, i, memory_order_relaxed);
	return 0;
}

struct hash128 hash128(const void *p, size_t bytes)
{
	return hash_isa()->hash128(p, bytes);
}

#define STEP 4096 /* bytes between two requests */
#define AHEAD (2 * STEP)

void hash128_begin(struct hash128_state *s)
{
	hash_isa()->begin(s->of);
}

/* The processor prefetches within a page only, so this asks for the bytes of the next ones. */
static void ask_for(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		__builtin_prefetch((const void *)((uintptr_t)p + i), 0, 2);
}

void hash128_add(struct hash128_state *s, const void *p, size_t bytes)
{
	const struct hash_isa *isa = hash_isa();

	for (size_t at = 0, n; at < bytes; at += n) {
		const uint8_t *q = (const uint8_t *)p + at;

		n = MIN(bytes - at, (size_t)STEP);
		ask_for(q + AHEAD, STEP);
		isa->add(s->of, q, n);
	}
}

struct hash128 hash128_end(const struct hash128_state *s)
{
	return hash_isa()->end(s->of);
}

static uint64_t block_sum(const struct hash_isa *s, const uint8_t *p, uint32_t elem_bytes,
			  uint32_t at, uint32_t n)
{
	switch (elem_bytes) {
	case 1:
		return s->sum1(p, k_word + at, n);
	case 2:
		return s->sum2(p, k_word + at, n);
	case 4:
		return s->sum4(p, k_word + at, n);
	default:
		return s->sum4(p, k_pair + 2 * at, 2 * n);
	}
}

uint64_t fingerprint(const void *p, uint64_t n, uint32_t elem_bytes, uint64_t first)
{
	const struct hash_isa *s = hash_isa();
	const uint8_t *at = p;
	uint64_t sum = 0;

	assert(elem_bytes == 1 || elem_bytes == 2 || elem_bytes == 4 || elem_bytes == 8 ||
	       elem_bytes == 16);
	pthread_once(&once, constants_make);
	if (elem_bytes == 16) {
		elem_bytes = 8;
		n *= 2;
		first *= 2;
	}
	while (n) {
		uint32_t i = (uint32_t)(first % BLOCK);
		uint32_t m = (uint32_t)MIN(n, (uint64_t)(BLOCK - i));

		sum += (splitmix64(FINGERPRINT_SEED_M, first / BLOCK) | 1) *
		       block_sum(s, at, elem_bytes, i, m);
		at += (size_t)m * elem_bytes;
		first += m;
		n -= m;
	}
	return sum;
}
