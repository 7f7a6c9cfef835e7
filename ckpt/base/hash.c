/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.c - makes the fingerprint's constants, and walks a tensor
 * block by block.
 * Invariant: the chosen instruction set changes speed only, never a bit.
 */
#include "ckpt/base/hash.h"
#include "ckpt/base/hash_body.h"
#include "ckpt/base/isa.h"
#include "ckpt/base/util.h"
#include <pthread.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define BLOCK 4096 /* elements that share one M */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "element bit patterns are read as they lie in memory");

static uint32_t k_word[BLOCK];	   /* K[i] */
static uint32_t k_pair[2 * BLOCK]; /* K[i], L[i]: the two halves of an 8-byte element */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t splitmix64(uint64_t seed, uint64_t n)
{
	uint64_t z = seed + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void constants_make(void)
{
	for (uint32_t i = 0; i < BLOCK; i++) {
		uint64_t z = splitmix64(FINGERPRINT_SEED_K, i);

		k_word[i] = k_pair[2 * i] = (uint32_t)(z >> 32) | 1;
		k_pair[2 * i + 1] = (uint32_t)z | 1;
	}
}

static const struct hash_isa *hash_isa(void)
{
	static const struct hash_isa *const isas[ISAS] = { [ISA_SCALAR] = &hash_isa_scalar,
#ifdef __x86_64__
							   [ISA_AVX2] = &hash_isa_avx2,
							   [ISA_AVX512] = &hash_isa_avx512
#endif
	};

	return isas[isa_now()];
}

/* --- XXH3-128 ---
 * Inputs that are longer than SHORT, by Yann Collet's specification (xxHash, doc/xxhash_spec.md);
 * shorter ones by xxhash.h.
 */

#define SHORT 240u
#define PRIME64_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME64_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define LAST_AT (sizeof hash_secret - HASH_STRIPE - 7)
#define LOW_AT 11
#define HIGH_AT (sizeof hash_secret - HASH_STRIPE - 11)

static const uint64_t acc_begin[8] = { UINT64_C(0xc2b2ae3d),
				       PRIME64_1,
				       PRIME64_2,
				       UINT64_C(0x165667b19e3779f9),
				       UINT64_C(0x85ebca77c2b2ae63),
				       UINT64_C(0x85ebca77),
				       UINT64_C(0x27d4eb2f165667c5),
				       HASH_PRIME32_1 };

const uint8_t hash_secret[192] = {
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad,
	0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3,
	0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc,
	0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
	0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65,
	0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
	0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9,
	0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
	0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb,
	0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0,
	0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d,
	0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
	0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t word_read(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof w);
	return w;
}

/* A stripe that no scramble follows. */
static void stripe_add(uint64_t acc[8], const uint8_t *p, const uint8_t *secret)
{
	for (uint32_t k = 0; k < 8; k++) {
		uint64_t d = word_read(p + 8 * k), x = d ^ word_read(secret + 8 * k);

		acc[k] += (x & 0xffffffff) * (x >> 32);
		acc[k ^ 1] += d;
	}
}

static uint64_t acc_merge(const uint64_t acc[8], const uint8_t *secret, uint64_t h)
{
	for (uint32_t k = 0; k < 8; k += 2) {
		unsigned __int128 x = (unsigned __int128)(acc[k] ^ word_read(secret + 8 * k)) *
				      (acc[k + 1] ^ word_read(secret + 8 * k + 8));

		h += (uint64_t)x ^ (uint64_t)(x >> 64);
	}
	h = (h ^ (h >> 37)) * UINT64_C(0x165667919e3779f9);
	return h ^ (h >> 32);
}

static struct hash128 hash_canonical(uint64_t low, uint64_t high)
{
	struct hash128 h;

	low = __builtin_bswap64(low);
	high = __builtin_bswap64(high);
	memcpy(h.b, &high, 8);
	memcpy(h.b + 8, &low, 8);
	return h;
}

void hash128_begin(struct hash128_state *s)
{
	memcpy(s->acc, acc_begin, sizeof s->acc);
	s->bytes = 0;
	s->held = 0;
}

static uint8_t *block_held(struct hash128_state *s)
{
	return s->block + HASH_STRIPE;
}

/*
 * Only a block that something follows is taken, and its last stripe is kept: the end needs the last
 * stripe of all. more: something follows these bytes.
 */
static void bytes_add(struct hash128_state *s, const uint8_t *p, size_t bytes, bool more,
		      uintptr_t ahead, uint32_t lines)
{
	const struct hash_isa *isa = hash_isa();
	size_t n;

	s->bytes += bytes;
	if (s->held) {
		n = MIN(bytes, HASH_BLOCK - s->held);
		memcpy(block_held(s) + s->held, p, n);
		s->held += (uint32_t)n;
		p += n;
		bytes -= n;
		if (s->held < HASH_BLOCK || (!bytes && !more))
			return;
		isa->blocks(s->acc, block_held(s), 1, ahead, lines);
		memcpy(s->block, block_held(s) + HASH_BLOCK - HASH_STRIPE, HASH_STRIPE);
		s->held = 0;
		ahead += (uintptr_t)lines * HASH_STRIPE;
	}
	n = bytes ? (bytes - 1 + more) / HASH_BLOCK : 0;
	if (n) {
		isa->blocks(s->acc, p, n, ahead, lines);
		p += n * HASH_BLOCK;
		bytes -= n * HASH_BLOCK;
		memcpy(s->block, p - HASH_STRIPE, HASH_STRIPE);
	}
	if (bytes)
		memcpy(block_held(s), p, bytes);
	s->held = (uint32_t)bytes;
}

#define STEP 4096u	 /* bytes: the second sum finds them in the nearest cache */
#define AHEAD (4 * STEP) /* the processor itself prefetches within a page only */

void hash128_add(struct hash128_state *s, const void *p, size_t bytes)
{
	bytes_add(s, p, bytes, false, (uintptr_t)p + AHEAD, HASH_BLOCK / HASH_STRIPE);
}

struct hash128 hash128_end(const struct hash128_state *s)
{
	const uint8_t *p = s->block + HASH_STRIPE;
	uint64_t acc[8];
	uint32_t n = 0;

	if (s->bytes <= SHORT) {
		XXH128_hash_t h = XXH3_128bits(p, s->bytes);

		return hash_canonical(h.low64, h.high64);
	}
	memcpy(acc, s->acc, sizeof acc);
	for (; (n + 1) * HASH_STRIPE < s->held; n++)
		stripe_add(acc, p + n * HASH_STRIPE, hash_secret + 8 * n);
	stripe_add(acc, p + s->held - HASH_STRIPE, hash_secret + LAST_AT);
	return hash_canonical(acc_merge(acc, hash_secret + LOW_AT, s->bytes * PRIME64_1),
			      acc_merge(acc, hash_secret + HIGH_AT, ~(s->bytes * PRIME64_2)));
}

struct hash128 hash128(const void *p, size_t bytes)
{
	struct hash128_state s;

	hash128_begin(&s);
	bytes_add(&s, p, bytes, false, (uintptr_t)p + AHEAD, HASH_BLOCK / HASH_STRIPE);
	return hash128_end(&s);
}

/* --- fingerprint --- */

static uint64_t block_sum(const struct hash_isa *s, const uint8_t *p, uint32_t elem_bytes,
			  uint32_t at, uint32_t n, uintptr_t ahead)
{
	if (elem_bytes == 8)
		return s->sum(4, p, k_pair + 2 * at, 2 * n, ahead);
	return s->sum(elem_bytes, p, k_word + at, n, ahead);
}

/* ahead: memory is asked for half as many bytes from there on. */
static uint64_t sum_elements(const uint8_t *p, uint64_t n, uint32_t elem_bytes, uint64_t first,
			     uintptr_t ahead)
{
	const struct hash_isa *s = hash_isa();
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
		       block_sum(s, p, elem_bytes, i, m, ahead);
		p += (size_t)m * elem_bytes;
		ahead += (size_t)m * elem_bytes / 2;
		first += m;
		n -= m;
	}
	return sum;
}

/* The sum asks for one half of a step to come, and this for the other. */
uint64_t fingerprint(const void *p, uint64_t n, uint32_t elem_bytes, uint64_t first)
{
	const uint64_t step = STEP / elem_bytes;
	const uint8_t *q = p;
	uint64_t sum = 0;

	for (uint64_t m; n; n -= m, first += m, q += m * elem_bytes) {
		uintptr_t ahead = (uintptr_t)q + AHEAD;

		m = MIN(n, step);
		for (uint32_t i = 0; i < STEP / 2 && n > m; i += HASH_STRIPE)
			hash_ask(ahead + i);
		sum += sum_elements(q, m, elem_bytes, first, ahead + STEP / 2);
	}
	return sum;
}

/*
 * Each half of a step asks for one half of a step to come, so that memory is never idle: what one
 * core can read is less than what it can sum.
 */
uint64_t hash128_add_elements(struct hash128_state *s, const void *p, uint64_t n,
			      uint32_t elem_bytes, uint64_t first)
{
	const uint64_t step = STEP / elem_bytes;
	const uint8_t *q = p;
	uint64_t sum = 0;

	for (uint64_t m; n; n -= m, first += m, q += m * elem_bytes) {
		uintptr_t ahead = (uintptr_t)q + AHEAD;

		m = MIN(n, step);
		bytes_add(s, q, m * elem_bytes, n > m, ahead, HASH_BLOCK / HASH_STRIPE / 2);
		sum += sum_elements(q, m, elem_bytes, first, ahead + STEP / 2);
	}
	return sum;
}
