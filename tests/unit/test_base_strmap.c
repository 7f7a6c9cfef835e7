/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_strmap.c - a name has one number; names that were chosen to collide do not. */
#include "ckpt/base/strmap.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NAMES 100000

static const char *name_print(uint32_t i, char buf[64])
{
	snprintf(buf, 64, "model.layers.%u.mlp.experts.%u.weight", i / 64, i % 64);
	return buf;
}

TEST(a_hundred_thousand_names_are_numbered_as_they_come_and_found)
{
	cleanup_arena struct arena a = { 0 };
	struct strmap m = { 0 };
	char buf[64];
	uint32_t got;

	for (uint32_t i = 0; i < NAMES; i++) {
		const char *s = arena_str(&a, name_print(i, buf));

		assert_int_equal(strmap_find(&m, s, strlen(s)), KEYMAP_NONE);
		assert_int_equal(strmap_add(&m, &a, s, strlen(s), &got), 1);
		assert_int_equal(got, i);
	}
	for (uint32_t i = 0; i < NAMES; i++) {
		name_print(i, buf);
		assert_int_equal(strmap_find(&m, buf, strlen(buf)), i);
		assert_int_equal(strmap_add(&m, &a, buf, strlen(buf), &got), 0);
		assert_int_equal(got, i);
		assert_int_equal(m.key[i].len, strlen(buf));
		assert_memory_equal(m.key[i].bytes, buf, strlen(buf));
	}
	assert_int_equal(m.map.n, NAMES);
	assert_int_equal(strmap_find(&m, "model.layers.0", 14), KEYMAP_NONE);
}

TEST(keys_are_bytes_and_may_be_empty_or_hold_zeros)
{
	static const struct {
		const char *p;
		size_t len;
	} key[] = {
		{ "", 0 }, { "\0", 1 }, { "\0\0", 2 }, { "a", 1 }, { "a\0b", 3 }, { "a\0c", 3 }
	};
	cleanup_arena struct arena a = { 0 };
	struct strmap m = { 0 };
	uint32_t got;

	assert_int_equal(strmap_find(&m, "", 0), KEYMAP_NONE);
	for (uint32_t i = 0; i < ARRAY_LEN(key); i++) {
		assert_int_equal(strmap_add(&m, &a, key[i].p, key[i].len, &got), 1);
		assert_int_equal(got, i);
	}
	for (uint32_t i = 0; i < ARRAY_LEN(key); i++)
		assert_int_equal(strmap_find(&m, key[i].p, key[i].len), i);
	assert_int_equal(strmap_find(&m, "a\0d", 3), KEYMAP_NONE);
}

/* Any order, any hashes, also equal ones: against a list. */
TEST(numbers_of_one_hash_come_in_the_order_in_which_they_were_put)
{
	enum { N = 4000 };
	static uint64_t hash[N];
	uint64_t random = draw_seed("base_strmap");
	cleanup_arena struct arena a = { 0 };
	struct keymap m = { 0 };

	for (uint32_t i = 0; i < N; i++) {
		/* Of few values, the last ones of a table: rows of slots go over its end. */
		hash[i] = draw_below(&random, 4) ? UINT32_MAX - draw_below(&random, 300)
						 : draw(&random);
		assert_int_equal(keymap_reserve(&m, &a, 1 + draw_below(&random, 3)), 0);
		keymap_put(&m, hash[i], i);
		if (i % 97)
			continue;
		for (uint32_t k = 0; k <= i; k++) {
			uint32_t at = 0;

			for (uint32_t j = 0; j <= i; j++)
				if ((uint32_t)hash[j] == (uint32_t)hash[k])
					assert_int_equal(keymap_next(&m, hash[k], &at), j);
			assert_int_equal(keymap_next(&m, hash[k], &at), KEYMAP_NONE);
		}
	}
}

TEST(the_parts_of_a_key_do_not_run_together)
{
	assert_true(key_hash(key_hash(0, "ab", 2), "c", 1) !=
		    key_hash(key_hash(0, "a", 1), "bc", 2));
	assert_true(key_hash(key_hash(0, "", 0), "ab", 2) != key_hash(key_hash(0, "ab", 2), "", 0));
	assert_int_equal(key_hash(7, "ab", 2), key_hash(7, "ab", 2));
}

/* Names that all fall into 1 of 2048 slots by the hash that everybody can compute. */
TEST(names_that_were_chosen_to_collide_spread)
{
	enum { N = 500, SLOTS = 2048 };
	static bool hit[SLOTS];
	char buf[64];
	uint32_t distinct = 0;

	for (uint32_t n = 0, i = 0; n < N; i++) {
		uint32_t slot;

		name_print(i, buf);
		if (XXH3_64bits_withSeed(buf, strlen(buf), 1) % SLOTS)
			continue;
		n++;
		slot = (uint32_t)key_hash(0, buf, strlen(buf)) % SLOTS;
		distinct += !hit[slot];
		hit[slot] = true;
	}
	assert_in_range(distinct, N / 2, N);
}

TEST(too_many_keys_are_refused_before_memory_is_asked_for)
{
	cleanup_arena struct arena a = { 0 };
	struct keymap m = { 0 };

	assert_int_equal(keymap_reserve(&m, &a, (uint64_t)KEYMAP_MAX + 1), -E2BIG);
	assert_int_equal(keymap_reserve(&m, &a, UINT64_MAX), -E2BIG);
	assert_null(m.slot);
	assert_int_equal(a.total_bytes, 0);
}
