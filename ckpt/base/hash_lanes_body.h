/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_lanes_body.h - the hash kernels with vectors of LANES 32-bit words. hash_avx2.c and
 * hash_avx512.c include it behind their own words for them: the type words, and what is called
 * words_* below. A 32x32 multiplication takes the even words, so every vector is used twice: as it
 * is, and with its odd words moved down: by a shuffle or a shift, which different parts of the
 * processor do at once.
 */
#define VECTORS (HASH_STRIPE / sizeof(words)) /* of a stripe */

static inline words words_load(const void *p)
{
	words v;

	memcpy(&v, p, sizeof v);
	return v;
}

static inline words words_scramble(words a, const uint8_t *secret)
{
	const words prime = (words){ 0 } + HASH_PRIME32_1;

	a ^= a >> 47;
	a ^= words_load(secret);
	return words_mul(a, prime) + (words_mul(a >> 32, prime) << 32);
}

static void blocks_add(uint64_t acc[8], const uint8_t *p, size_t n, uintptr_t ahead, uint32_t lines)
{
	const uint8_t *secret = hash_secret;
	words a[VECTORS];

	memcpy(a, acc, sizeof a);
	for (; n; n--, p += HASH_BLOCK) {
		words sum[VECTORS] = { 0 };

		for (uint32_t i = 0; i < lines; i++, ahead += HASH_STRIPE)
			hash_ask(ahead);
#pragma GCC unroll 16
		for (uint32_t i = 0; i < 16; i++)
#pragma GCC unroll 2
			for (uint32_t h = 0; h < VECTORS; h++) {
				words d = words_load(p + HASH_STRIPE * i + sizeof d * h);
				words x = d ^ words_load(secret + 8 * i + sizeof d * h);

				a[h] += words_mul(x, x >> 32);
				sum[h] += d;
			}
#pragma GCC unroll 2
		for (uint32_t h = 0; h < VECTORS; h++)
			a[h] = words_scramble(a[h] + words_exchange(sum[h]),
					      secret + HASH_SCRAMBLE_AT + sizeof *a * h);
	}
	memcpy(acc, a, sizeof a);
}

/* acc[0] += even words' products, acc[1] += odd words' products */
static inline void products_add(words acc[2], words v, const uint32_t *k)
{
	words kv = words_load(k);

	/* In registers from here on: else the compiler reads each of them again for its odd words,
	 * which is 5 to 20 % slower in the caches. */
	__asm__("" : "+v"(kv), "+v"(v));

	acc[0] += words_mul(v, kv);
	acc[1] += words_mul(words_odd(v), kv >> 32);
}

static inline __attribute__((always_inline)) uint64_t
sum_of(uint32_t bytes, const uint8_t *p, const uint32_t *k, uint32_t n, uintptr_t ahead)
{
	const uint32_t each = HASH_ASK / bytes;
	words acc[4] = { 0 };
	uint32_t i = 0;

	for (; n - i >= each; i += each, ahead += HASH_STRIPE) {
		const uint8_t *q = p + (size_t)bytes * i;

		hash_ask(ahead);
		for (uint32_t j = 0; j < each; j += 2 * LANES) {
			products_add(acc, words_widen(bytes, q + bytes * j), k + i + j);
			products_add(acc + 2, words_widen(bytes, q + bytes * (j + LANES)),
				     k + i + j + LANES);
		}
	}
	return words_total(acc[0] + acc[1] + (acc[2] + acc[3])) +
	       hash_tail(bytes, p + (size_t)bytes * i, k + i, n - i);
}
