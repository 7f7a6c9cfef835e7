/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.h - the three sums: XXH3-128 (identity of chunks, blocks and containers), CRC-32C (scrub of
 * stored bytes), fingerprint (identity of a tensor's contents, whatever the layout that holds it).
 * Any thread, any alignment.
 *
 * hash128: XXH3-128 with seed 0, canonical (big-endian) 16 bytes, as xxhsum -H2 prints. Its main
 * loop is compiled once per instruction set and chosen at run time.
 *
 * fingerprint of elements with row-major GLOBAL indices g and bit patterns v (the element's
 * little-endian bytes read as an unsigned integer):
 *	sum over elements of M(g >> 12) * T(g & 4095, v)   mod 2^64
 *	T(i, v) = K[i] * v                                     for elements of 1, 2, 4 bytes
 *	T(i, v) = K[i] * (v & 0xffffffff) + L[i] * (v >> 32)   for elements of 8 bytes
 * An element of 16 bytes counts as two of 8 bytes with the indices 2g (its first eight bytes) and
 * 2g + 1, both mod 2^64.
 *
 * The constants come from SplitMix64 (Steele, Lea, Flood 2014), whose output number n, counted from
 * 0, from seed s is, mod 2^64,
 *	z = s + (n + 1) * 0x9e3779b97f4a7c15
 *	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
 *	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
 *	splitmix64(s, n) = z ^ (z >> 31)
 * With FINGERPRINT_SEED_K and FINGERPRINT_SEED_M below:
 *	K[i] = (splitmix64(SEED_K, i) >> 32) | 1           odd; K[0] = 0xc385f819
 *	L[i] = (splitmix64(SEED_K, i) & 0xffffffff) | 1    odd; L[0] = 0xe0cfc6af
 *	M(b) = splitmix64(SEED_M, b) | 1                   odd; M(0) = 0xb606ac275bf8297d
 * It is additive: the sum over pieces, parts and hosts is the tensor's. Zeros add nothing, so a
 * tensor of zeros has fingerprint 0. It is made to tell accidents apart, not adversaries: it is no
 * proof against somebody who chooses the contents.
 */
#ifndef CKPT_BASE_HASH_H
#define CKPT_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FINGERPRINT_SEED_K UINT64_C(0x636b707466702d4b) /* "ckptfp-K" */
#define FINGERPRINT_SEED_M UINT64_C(0x636b707466702d4d) /* "ckptfp-M" */

struct hash128 {
	uint8_t b[16];
};

struct hash128 hash128(const void *p, size_t bytes);
/* Its first eight bytes as a number, for tables in memory. */
static inline uint64_t hash_word(struct hash128 h)
{
	uint64_t word;

	memcpy(&word, h.b, sizeof word);
	return word;
}

/* hash128 of bytes that are given piece by piece; memory is asked for the bytes to come. */
struct hash128_state {
	_Alignas(64) uint64_t acc[8];
	_Alignas(
		64) uint8_t block[64 + 1024]; /* 64 bytes before `held`, which are not in acc yet */
	uint64_t bytes;
	uint32_t held;
};
void hash128_begin(struct hash128_state *s);
void hash128_add(struct hash128_state *s, const void *p, size_t bytes);
struct hash128 hash128_end(const struct hash128_state *s);

/*
 * Sum over n elements of elem_bytes (1, 2, 4, 8, 16) each, contiguous at p, whose global indices
 * are first, first+1, ... Any alignment.
 */
uint64_t fingerprint(const void *p, uint64_t n, uint32_t elem_bytes, uint64_t first);

/* hash128_add of these elements' bytes and their fingerprint: memory is read once, and asked for
 * the bytes to come all the while. */
uint64_t hash128_add_elements(struct hash128_state *s, const void *p, uint64_t n,
			      uint32_t elem_bytes, uint64_t first);
#endif
