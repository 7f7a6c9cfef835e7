/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_arena.c - memory that is freed all at once. */
#include "ckpt/base/arena.h"
#include "tests/lib/unit.h"

static uint64_t seed = 20240607;

static uint64_t rnd(void)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return seed >> 33;
}

/* Leave old bytes in the heap, so that zeroed memory is no accident. */
static void heap_soil(void)
{
	void *p[64];

	for (size_t i = 0; i < ARRAY_LEN(p); i++) {
		p[i] = malloc(65536);
		assert_non_null(p[i]);
		memset(p[i], 0xa5, 65536);
		__asm__ volatile("" : : "r"(p[i]) : "memory"); /* keep the stores */
	}
	for (size_t i = 0; i < ARRAY_LEN(p); i++)
		free(p[i]);
}

TEST(pieces_are_aligned_zeroed_and_keep_apart)
{
	enum { N = 3000 };
	cleanup_arena struct arena a = { 0 };
	static uint8_t *p[N];
	static size_t len[N];

	print_message("seed %llu\n", (unsigned long long)seed);
	heap_soil();
	for (int i = 0; i < N; i++) {
		len[i] = i % 500 == 499 ? 5 * MIB + rnd() % 10000 : rnd() % 700;
		p[i] = arena_alloc(&a, len[i]);
		assert_non_null(p[i]);
		assert_int_equal((uintptr_t)p[i] % 16, 0);
		for (size_t k = 0; k < len[i]; k++)
			if (p[i][k])
				fail_msg("piece %d, byte %zu is not zero", i, k);
		memset(p[i], i | 1, len[i]);
	}
	for (int i = 0; i < N; i++)
		for (size_t k = 0; k < len[i]; k++)
			if (p[i][k] != (uint8_t)(i | 1))
				fail_msg("piece %d, byte %zu was overwritten", i, k);
}

TEST(a_big_piece_leaves_the_rest_of_the_newest_block_in_use)
{
	cleanup_arena struct arena a = { 0 };
	uint8_t *x = arena_alloc(&a, 16), *y;

	assert_non_null(arena_alloc(&a, 20 * MIB));
	y = arena_alloc(&a, 16);
	assert_ptr_equal(y, x + 16);
}

TEST(sizes_that_overflow_are_refused)
{
	cleanup_arena struct arena a = { 0 };

	for (int i = 0; i < 2; i++) {
		assert_null(arena_array(&a, SIZE_MAX / 4 + 1, 4));
		assert_null(arena_alloc(&a, SIZE_MAX));
		assert_null(arena_alloc(&a, SIZE_MAX - 15));
		assert_null(arena_alloc(&a, SIZE_MAX - 47));
		assert_non_null(arena_alloc(&a, 1)); /* the second time with a block in place */
	}
}

TEST(total_bytes_counts_every_block_and_free_starts_over)
{
	cleanup_arena struct arena a = { 0 };
	char *s;

	for (int i = 0; i < 100; i++)
		arena_alloc(&a, 100000);
	assert_true(a.total_bytes >= 10000000 && a.total_bytes < 30000000);
	arena_free(&a);
	assert_int_equal(a.total_bytes, 0);
	assert_null(a.block);
	s = arena_str(&a, "again");
	assert_string_equal(s, "again");
	assert_memory_equal(arena_dup(&a, "ab\0c", 4), "ab\0c", 4);
	assert_non_null(arena_dup(&a, NULL, 0));
	assert_ptr_not_equal(arena_alloc(&a, 0), arena_alloc(&a, 0));
}
