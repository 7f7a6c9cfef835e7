/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strmap.c - see strmap.h. Open addressing, linear probing.
 * Invariant: at most half of the slots are taken, so that every search ends at a free one.
 */
#include "ckpt/base/strmap.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <stdatomic.h>
#include <sys/auxv.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SLOTS_MIN 64

/* The kernel gives each process 16 random bytes. libc keeps its canaries in them: what is used here
 * is their hash. Threads that meet here store the same number. */
static uint64_t process_seed(void)
{
	static _Atomic uint64_t seed;
	uint64_t s = atomic_load_explicit(&seed, memory_order_relaxed);
	const void *random;

	if (s)
		return s;
	random = (const void *)getauxval(AT_RANDOM);
	s = (random && !MUTANT(KEYS_UNSEEDED) ? XXH3_64bits(random, 16) : 0) | 1;
	atomic_store_explicit(&seed, s, memory_order_relaxed);
	return s;
}

uint64_t key_hash(uint64_t before, const void *key, size_t bytes)
{
	return XXH3_64bits_withSeed(key, bytes, before ^ process_seed());
}

static void slot_take(struct keymap *m, struct keymap_slot with)
{
	uint32_t i = with.hash & m->mask;

	while (m->slot[i].taken)
		i = (i + 1) & m->mask;
	m->slot[i] = with;
}

/* Equal hashes stay in their order: the walk begins behind a free slot, so no row of taken ones is
 * cut. */
static void slots_move(struct keymap *to, const struct keymap *from)
{
	uint32_t first = 0;

	while (from->slot[first].taken)
		first++;
	for (uint32_t i = 0; i <= from->mask; i++) {
		struct keymap_slot s = from->slot[(first + i) & from->mask];

		if (s.taken)
			slot_take(to, s);
	}
}

int keymap_reserve(struct keymap *m, struct arena *a, uint64_t more)
{
	uint64_t slots = m->slot ? (uint64_t)m->mask + 1 : SLOTS_MIN, had = m->slot ? slots : 0;
	struct keymap x = { .n = m->n };

	if (more > KEYMAP_MAX - m->n)
		return -E2BIG;
	while (slots / 2 < m->n + more)
		slots *= 2;
	if (slots == had || m->n + more == 0)
		return 0;
	x.slot = arena_array(a, slots, sizeof *x.slot);
	if (!x.slot)
		return -ENOMEM;
	x.mask = (uint32_t)(slots - 1);
	if (had)
		slots_move(&x, m);
	*m = x;
	return 0;
}

void keymap_put(struct keymap *m, uint64_t hash, uint32_t number)
{
	assert(m->slot && m->n <= m->mask / 2 && number < KEYMAP_MAX);
	slot_take(m, (struct keymap_slot){ (uint32_t)hash, number + 1 });
	m->n++;
}

static uint32_t key_find(const struct strmap *m, uint64_t hash, const void *key, size_t len)
{
	for (uint32_t at = 0, i; (i = keymap_next(&m->map, hash, &at)) != KEYMAP_NONE;)
		if (m->key[i].len == len && (!len || !memcmp(m->key[i].bytes, key, len)))
			return i;
	return KEYMAP_NONE;
}

uint32_t strmap_find(const struct strmap *m, const void *key, size_t len)
{
	return m->map.n ? key_find(m, key_hash(0, key, len), key, len) : KEYMAP_NONE;
}

static int keys_grow(struct strmap *m, struct arena *a)
{
	uint32_t cap = m->cap ? 2 * m->cap : SLOTS_MIN / 2;
	struct strmap_key *key;

	if (m->map.n < m->cap)
		return 0;
	key = arena_array(a, cap, sizeof *key);
	if (!key)
		return -ENOMEM;
	if (m->cap)
		memcpy(key, m->key, m->cap * sizeof *key);
	m->key = key;
	m->cap = cap;
	return 0;
}

int strmap_add(struct strmap *m, struct arena *a, const void *key, size_t len, uint32_t *ret_number)
{
	uint64_t hash = key_hash(0, key, len);
	int r;

	*ret_number = key_find(m, hash, key, len);
	if (*ret_number != KEYMAP_NONE)
		return 0;
	r = keymap_reserve(&m->map, a, 1);
	if (!r)
		r = keys_grow(m, a);
	if (r)
		return r;
	*ret_number = m->map.n;
	m->key[*ret_number] = (struct strmap_key){ key, len };
	keymap_put(&m->map, hash, *ret_number);
	return 1;
}
