/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strmap.h - finds the number of a name: the one hash table of the tree. A strmap numbers byte
 * strings; a keymap is what it is made of, for keys that lie in an array of the caller's or have
 * several parts.
 *
 * Memory is the arena's that each call names, always the same one; a table that grows leaves its
 * old slots there; together they are at most as large as the new ones. No key can be removed. Zero-initialised a
 * map is empty. One thread at a time; any number of threads, while none of them adds.
 *
 * A lookup takes constant time whatever names a file or a peer chooses: hashes depend on a number
 * that each process draws (strmap.c), so they mean nothing to another process and are written
 * nowhere.
 */
#ifndef CKPT_BASE_STRMAP_H
#define CKPT_BASE_STRMAP_H
#include "ckpt/base/arena.h"
#include <stdint.h>

#define KEYMAP_NONE UINT32_MAX
#define KEYMAP_MAX ((uint32_t)1 << 30) /* keys; the slots, twice as many, are numbered in 32 bits */

/* Plain bytes without a pointer: a copy of the slots is as good as they are. */
struct keymap_slot {
	uint32_t hash;
	uint32_t taken; /* number + 1; 0: free */
};

struct keymap {
	struct keymap_slot *slot; /* [mask + 1], NULL: none; at most half of them are taken */
	uint32_t mask, n;
};

/* Of a key: key_hash(0, ...). Of a key with more parts: each part's call is given what the one
 * before returned. Parts do not run together: "ab", "c" is another key than "a", "bc". */
uint64_t key_hash(uint64_t before, const void *key, size_t bytes);
/* Room for `more` keys besides those that are there. 0, -ENOMEM, -E2BIG. */
int keymap_reserve(struct keymap *m, struct arena *a, uint64_t more);
/* The caller has reserved the room. Equal keys may be put in several times. number < KEYMAP_MAX. */
void keymap_put(struct keymap *m, uint64_t hash, uint32_t number);

/*
 * The numbers that were put with this hash, in the order in which they came, then KEYMAP_NONE. The
 * caller compares the keys:
 *	for (uint32_t at = 0, i; (i = keymap_next(m, hash, &at)) != KEYMAP_NONE;)
 *		if (is_equal(key of i))
 */
static inline uint32_t keymap_next(const struct keymap *m, uint64_t hash, uint32_t *at)
{
	while (m->slot) {
		const struct keymap_slot *s = &m->slot[((uint32_t)hash + (*at)++) & m->mask];

		if (!s->taken)
			break;
		if (s->hash == (uint32_t)hash)
			return s->taken - 1;
	}
	return KEYMAP_NONE;
}

/* Asks memory for the slot, for a lookup that comes soon. */
static inline void keymap_soon(const struct keymap *m, uint64_t hash)
{
	if (m->slot)
		__builtin_prefetch(&m->slot[(uint32_t)hash & m->mask], 1);
}

/* Keys are numbered 0, 1, ... as they come. They stay the caller's, who keeps them as they are or
 * sets key[].bytes to an equal copy. */
struct strmap {
	struct keymap map;
	struct strmap_key {
		const void *bytes;
		size_t len;
	} * key; /* [map.n] */
	uint32_t cap;
};

/* KEYMAP_NONE: it is not there. */
uint32_t strmap_find(const struct strmap *m, const void *key, size_t len);
/* 1: it is new and has the next number; 0: it was there; -ENOMEM, -E2BIG. */
int strmap_add(struct strmap *m, struct arena *a, const void *key, size_t len,
	       uint32_t *ret_number);
#endif
