/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_hash.c - the two sums and the bulk copy. The hash128 vectors come from python-xxhash
 * 4.1.0 (library 0.8.4), the fingerprint's from a separate program in Python.
 */
#include "ckpt/base/isa.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/hash.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

static const char *const isas[] = { "scalar", "avx2", "avx512" };
static uint64_t seed = 20240607;

static uint64_t rnd(void)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return seed >> 33;
}

/* Exactly as long as asked, so that a sanitizer sees a byte too much being read. */
static uint8_t *pattern(size_t n)
{
	uint8_t *p = malloc(n ? n : 1);

	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i * 131 + (i >> 8) * 17 + 7);
	return p;
}

static uint8_t *noise(size_t n)
{
	uint8_t *p = malloc(n ? n : 1);

	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)rnd();
	return p;
}

TEST(hash128_equals_xxh3_128_on_known_vectors)
{
	static const struct {
		size_t n;
		const char *hex;
	} v[] = ROW({ 0, "99aa06d3014798d86001c324468d497f" },
		    { 1, "495b62073ef70ca44c5cca45d0f4811f" },
		    { 3, "390cdc5b4a895dd76e3e2670e61106ac" },
		    { 4, "aa6e2f274640a3f43d668af6f2a44d77" },
		    { 8, "6a86a3bda6af4e3d61ddbe7f31a6100d" },
		    { 9, "664c7ca18afd62558c7b67fd458a936b" },
		    { 16, "7f9a218b0425449ae2ce54a7c19c730d" },
		    { 17, "66fc23f6439dbd778d96ef110fcdebb4" },
		    { 64, "e0faf20e0e0fe0ddba7e015a54f14be1" },
		    { 128, "aec730751478556cff361dec1385710a" },
		    { 129, "98cd36ccbb5579264545b3a09738e31a" },
		    { 240, "5293e17bf553903d3f2c53e72293711f" },
		    { 241, "b53840fe3fedf161956cae592c67279e" },
		    { 256, "d0d2829a226d0edbb15e550733c5dfac" },
		    { 512, "1a7e53736720a2e631cc4c8456761b50" },
		    { 1024, "f3fc143cd81d51baa1e16f2edf2cbed6" },
		    { 1025, "90bcb44432d2e5020a6d2c17259fe4bb" },
		    { 4080, "316130d05fee1a41a492be9fcab7c85d" },
		    { 4096, "e5817aaf266e34c648aa0572119e973a" },
		    { 65537, "31d2175b9b02af8516210440cfed656e" },
		    { 1048576, "e0a39e5834cb096ef55a2447d999a0f8" });

	for (size_t s = 0; s < ARRAY_LEN(isas); s++) {
		if (isa_force(isas[s]) < 0)
			continue;
		for (size_t i = 0; i < ARRAY_LEN(v); i++) {
			cleanup_free uint8_t *p = pattern(v[i].n);
			struct hash128 h = hash128(p, v[i].n);
			char hex[33];

			for (int k = 0; k < 16; k++)
				snprintf(hex + 2 * k, 3, "%02x", h.b[k]);
			assert_string_equal(hex, v[i].hex);
		}
	}
	isa_force(NULL);
}

TEST(fingerprint_equals_its_specification_on_known_vectors)
{
	static const struct {
		uint32_t elem_bytes;
		uint64_t n, first, fp;
	} v[] = ROW({ 1, 1, UINT64_C(0), UINT64_C(0x9e8043491a930473) },
		    { 1, 5, UINT64_C(4094), UINT64_C(0x805bbda3bc50d9b7) },
		    { 1, 1000, UINT64_C(0), UINT64_C(0x10d89e9c55606a88) },
		    { 1, 10000, UINT64_C(12345), UINT64_C(0x265451c76de2ace4) },
		    { 1, 4096, UINT64_C(4096), UINT64_C(0x05750225ef6a7b9c) },
		    { 1, 3000, UINT64_C(1099511627853), UINT64_C(0x39ab4eaf6b6af462) },
		    { 2, 1, UINT64_C(0), UINT64_C(0xc841090bdaa19673) },
		    { 2, 5, UINT64_C(4094), UINT64_C(0x26d252d608f7c4a3) },
		    { 2, 1000, UINT64_C(0), UINT64_C(0x99230888caa3eea4) },
		    { 2, 10000, UINT64_C(12345), UINT64_C(0x05bcd28c23cfe99a) },
		    { 2, 4096, UINT64_C(4096), UINT64_C(0xb3f4fbff6fc70cb0) },
		    { 2, 3000, UINT64_C(1099511627853), UINT64_C(0xe45970ed38ba4ccc) },
		    { 4, 1, UINT64_C(0), UINT64_C(0x25100ac18e529673) },
		    { 4, 5, UINT64_C(4094), UINT64_C(0x30c6f01150e13a7b) },
		    { 4, 1000, UINT64_C(0), UINT64_C(0x6ed2fc416a046f4e) },
		    { 4, 10000, UINT64_C(12345), UINT64_C(0x144427876189495e) },
		    { 4, 4096, UINT64_C(4096), UINT64_C(0xe640935446975166) },
		    { 4, 3000, UINT64_C(1099511627853), UINT64_C(0x3f0c98bcf8b9baea) },
		    { 8, 1, UINT64_C(0), UINT64_C(0x68164ac13ef7befc) },
		    { 8, 5, UINT64_C(4094), UINT64_C(0xeb10dacce80f2bf2) },
		    { 8, 1000, UINT64_C(0), UINT64_C(0x761e71cb0a937ca8) },
		    { 8, 10000, UINT64_C(12345), UINT64_C(0x728743fe49502a32) },
		    { 8, 4096, UINT64_C(4096), UINT64_C(0xd67b167242ac5dfe) },
		    { 8, 3000, UINT64_C(1099511627853), UINT64_C(0x69a8eb7399d936f6) },
		    { 16, 1, UINT64_C(0), UINT64_C(0xab9019db085708b4) },
		    { 16, 5, UINT64_C(4094), UINT64_C(0x51a666b0dbc627b6) },
		    { 16, 1000, UINT64_C(0), UINT64_C(0xb5c82f62d55e076e) },
		    { 16, 10000, UINT64_C(12345), UINT64_C(0xcf7f62c276e77a74) },
		    { 16, 4096, UINT64_C(4096), UINT64_C(0xba69377c3016d3b8) },
		    { 16, 3000, UINT64_C(1099511627853), UINT64_C(0xb33415ca6950d6b0) });

	for (size_t s = 0; s < ARRAY_LEN(isas); s++) {
		if (isa_force(isas[s]) < 0)
			continue;
		for (size_t i = 0; i < ARRAY_LEN(v); i++) {
			cleanup_free uint8_t *p = pattern(v[i].n * v[i].elem_bytes);
			uint64_t fp = fingerprint(p, v[i].n, v[i].elem_bytes, v[i].first);

			if (fp != v[i].fp)
				fail_msg("%s, vector %zu: %016llx", isas[s], i,
					 (unsigned long long)fp);
		}
	}
	isa_force(NULL);
}

TEST(all_instruction_sets_give_the_same_bits)
{
	print_message("seed %llu\n", (unsigned long long)seed);
	assert_int_equal(isa_force("scalar"), 0);
	for (int round = 0; round < 1500; round++) {
		uint32_t w = 1u << rnd() % 5;
		uint64_t n = rnd() % (round % 8 ? 300 : 20000),
			 first = rnd() % 3 ? rnd() : rnd() << 32 | rnd();
		size_t skew = rnd() % 65;
		cleanup_free uint8_t *p = noise(skew + n * w);
		uint64_t fp[ARRAY_LEN(isas)];
		struct hash128 h[ARRAY_LEN(isas)];

		if (round % 5 == 0)
			memset(p, 0xff, skew + n * w); /* the largest products */
		for (size_t s = 0; s < ARRAY_LEN(isas); s++) {
			if (isa_force(isas[s]) < 0)
				isa_force("scalar");
			fp[s] = fingerprint(p + skew, n, w, first);
			h[s] = hash128(p + skew, n * w);
			if (fp[s] != fp[0] || memcmp(&h[s], &h[0], sizeof h[0]))
				fail_msg(
					"%s differs: round %d, %u bytes, n %llu, at %llu, skew %zu",
					isas[s], round, w, (unsigned long long)n,
					(unsigned long long)first, skew);
		}
	}
	isa_force(NULL);
}

TEST(bytes_that_come_in_pieces_have_the_hash_of_all_and_their_elements_the_fingerprint)
{
	print_message("seed %llu\n", (unsigned long long)seed);
	for (int round = 0; round < 600; round++) {
		uint32_t w = 1u << rnd() % 5;
		uint64_t n = rnd() % (round % 4 ? 400 : 30000), first = rnd(), sum = 0;
		size_t at = 0, bytes = (size_t)n * w;
		cleanup_free uint8_t *p = noise(bytes), *piece = NULL;
		struct hash128_state s;
		struct hash128 whole = hash128(p, bytes), h;

		if (isa_force(isas[round % 3]) < 0)
			isa_force("scalar");
		hash128_begin(&s);
		while (at < bytes) {
			/* Often a block, or a byte beside one. */
			uint64_t m = rnd() % 2 ? rnd() % (6000 / w) : (1024 * (1 + rnd() % 5)) / w;

			m = MIN(m, (bytes - at) / w);
			piece = malloc(m * w + 1); /* as it was when it was given */
			memcpy(piece, p + at, m * w);
			if (rnd() % 4) {
				sum += hash128_add_elements(&s, piece, m, w, first + at / w);
			} else {
				hash128_add(&s, piece, m * w);
				sum += fingerprint(piece, m, w, first + at / w);
			}
			memset(piece, 0, m * w);
			free(TAKE(piece));
			at += m * w;
		}
		h = hash128_end(&s);
		if (memcmp(&h, &whole, sizeof h))
			fail_msg("round %d, %s: the hash of %zu bytes", round, isas[round % 3],
				 bytes);
		assert_true(sum == fingerprint(p, n, w, first));
		isa_force(NULL);
	}
}

TEST(the_fingerprint_of_the_pieces_adds_up_to_that_of_the_whole)
{
	print_message("seed %llu\n", (unsigned long long)seed);
	for (int round = 0; round < 300; round++) {
		uint32_t w = 1u << rnd() % 5;
		uint64_t n = 1 + rnd() % 20000, first = rnd(), sum = 0, at = 0;
		cleanup_free uint8_t *p = noise(n * w);

		while (at < n) {
			uint64_t m = MIN(1 + rnd() % (rnd() % 2 ? 50 : 9000), n - at);

			sum += fingerprint(p + at * w, m, w, first + at);
			at += m;
		}
		assert_true(sum == fingerprint(p, n, w, first));
	}
}

TEST(the_fingerprint_sees_bits_places_and_blocks)
{
	enum { N = 9000 };
	cleanup_free uint8_t *p = noise((size_t)N * 16), *q = noise((size_t)N * 16);

	for (uint32_t w = 1; w <= 16; w *= 2) {
		uint64_t fp = fingerprint(p, N, w, 0);

		assert_true(fp != fingerprint(p, N, w, 1));
		assert_true(fp != fingerprint(p, N, w, 4096));
		for (int round = 0; round < 500; round++) {
			size_t bit = rnd() % (8 * (size_t)N * w), i = rnd() % N, k = rnd() % N;

			p[bit / 8] ^= (uint8_t)(1 << bit % 8);
			assert_true(fp != fingerprint(p, N, w, 0));
			p[bit / 8] ^= (uint8_t)(1 << bit % 8);
			if (!memcmp(p + i * w, p + k * w, w))
				continue;
			memcpy(q, p, (size_t)N * w); /* two elements change places */
			memcpy(q + i * w, p + k * w, w);
			memcpy(q + k * w, p + i * w, w);
			assert_true(fp != fingerprint(q, N, w, 0));
		}
	}
	assert_true(fingerprint(p, 0, 4, 7) == 0);
}

TEST(only_known_instruction_sets_can_be_forced)
{
	assert_int_equal(isa_force("mmx"), -EOPNOTSUPP);
	assert_int_equal(isa_force(""), -EOPNOTSUPP);
	assert_int_equal(isa_force("scalar"), 0);
	assert_int_equal(isa_force(NULL), 0);
	for (size_t s = 0; s < ARRAY_LEN(isas); s++)
		print_message("%s: %s\n", isas[s],
			      isa_force(isas[s]) ? "this machine lacks it" : "tested");
	isa_force(NULL);
}

TEST(copy_stream_copies_every_byte_and_no_other)
{
	static const size_t around[] = { 0,
					 1,
					 63,
					 COPY_STREAM_MIN - 1,
					 COPY_STREAM_MIN,
					 COPY_STREAM_MIN + 1,
					 COPY_STREAM_MIN + 255,
					 3 * COPY_STREAM_MIN };
	const size_t margin = 256, cap = 4 * COPY_STREAM_MIN;
	cleanup_free uint8_t *src = noise(cap + margin), *dst = malloc(cap + 2 * margin);

	print_message("seed %llu\n", (unsigned long long)seed);
	assert_non_null(dst);
	for (size_t round = 0; round < 80; round++) {
		size_t n = around[round % ARRAY_LEN(around)] + (round < 24 ? 0 : rnd() % 300);
		size_t s = rnd() % 130, d = 1 + rnd() % 130;

		memset(dst, 0xa5, cap + 2 * margin);
		assert_ptr_equal(copy_stream(dst + d, src + s, n), dst + d);
		assert_int_equal(memcmp(dst + d, src + s, n), 0);
		for (size_t i = 0; i < d; i++)
			assert_int_equal(dst[i], 0xa5);
		for (size_t i = d + n; i < d + n + 100; i++)
			assert_int_equal(dst[i], 0xa5);
	}
}

/* Between the lines nothing is written. */
TEST(copy_lines_copies_every_line_and_nothing_between)
{
	static const struct {
		size_t width, lines;
	} of[] = { { 0, 3 },
		   { 5, 0 },
		   { 7, 9 },
		   { COPY_LINE_MIN - 1, 40 },
		   { COPY_LINE_MIN, COPY_LINES_MIN / COPY_LINE_MIN },
		   { COPY_LINE_MIN + 77, 40 },
		   { COPY_LINES_MIN, 1 },
		   { COPY_LINES_MIN + 3, 2 } };
	const size_t cap = 4 * COPY_LINES_MIN;
	cleanup_free uint8_t *src = noise(cap), *dst = malloc(cap);

	assert_non_null(dst);
	for (size_t round = 0; round < 80; round++) {
		size_t width = of[round % ARRAY_LEN(of)].width;
		size_t lines = of[round % ARRAY_LEN(of)].lines, s = rnd() % 130, d = rnd() % 130;
		size_t from = width + rnd() % 200, to = width + rnd() % 200;

		memset(dst, 0xa5, cap);
		copy_lines(dst + d, to, src + s, from, width, lines);
		for (size_t i = 0; i < lines; i++)
			assert_int_equal(memcmp(dst + d + i * to, src + s + i * from, width), 0);
		for (size_t i = 0; i < cap; i++) {
			bool in = i >= d && to > 0 && (i - d) / to < lines && (i - d) % to < width;

			if (!in && dst[i] != 0xa5)
				fail_msg("round %zu: byte %zu is written", round, i);
		}
	}
}
