/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.c - see names.h. Called by table_pack.
 * Invariant: what was given out stays where it is and as it is.
 */
#include "ckpt/table/names.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/util.h"
#include <pthread.h>
#include <stdatomic.h>

struct item { /* of bytes, which lie behind it */
	uint64_t bytes;
	uint64_t hash;
};

struct seen { /* a hash set of pointers; at most half of it is taken */
	const void **at;
	uint32_t n, mask;
};

struct names {
	_Atomic uint32_t refs;
	pthread_mutex_t lock; /* protects the rest */
	struct arena arena;
	struct seen str, item;
	char *room; /* for strings, which need no bounds */
	size_t room_left;
};

#define ROOM ((size_t)64 * KIB)

struct names *names_new(void)
{
	struct names *n = calloc(1, sizeof *n);

	if (!n)
		return NULL;
	n->refs = 1;
	pthread_mutex_init(&n->lock, NULL);
	return n;
}

struct names *names_ref(struct names *n)
{
	atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
	return n;
}

static void seen_free(struct seen *s)
{
	free(s->at);
	*s = (struct seen){ 0 };
}

void names_unref(struct names *n)
{
	if (!n || atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1)
		return;
	seen_free(&n->str);
	seen_free(&n->item);
	arena_free(&n->arena);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

void names_lock(struct names *n)
{
	pthread_mutex_lock(&n->lock);
}

void names_unlock(struct names *n)
{
	pthread_mutex_unlock(&n->lock);
}

void names_settle(struct names *n)
{
	names_lock(n);
	seen_free(&n->str);
	seen_free(&n->item);
	names_unlock(n);
}

static uint64_t hash_of(const void *p, size_t bytes)
{
	struct hash128 h = hash128(p, bytes);
	uint64_t x;

	memcpy(&x, h.b, sizeof x);
	return x;
}

static uint64_t hash_str(const void *s)
{
	return hash_of(s, strlen(s));
}

static uint64_t hash_item(const void *p)
{
	return ((const struct item *)p)->hash;
}

/* Room for one more. */
static int seen_grow(struct seen *s, uint64_t (*hash)(const void *p))
{
	uint32_t size = s->at ? 2 * (s->mask + 1) : 256;
	const void **at;

	if (s->at && s->n < (s->mask + 1) / 2)
		return 0;
	at = calloc(size, sizeof *at);
	if (!at)
		return -ENOMEM;
	for (uint32_t i = 0; s->at && i <= s->mask; i++) {
		uint64_t k;

		if (!s->at[i])
			continue;
		for (k = hash(s->at[i]); at[k & (size - 1)]; k++)
			;
		at[k & (size - 1)] = s->at[i];
	}
	free(s->at);
	s->at = at;
	s->mask = size - 1;
	return 0;
}

static char *str_new(struct names *n, const char *s, size_t bytes)
{
	char *p;

	if (bytes > n->room_left) {
		n->room = arena_alloc(&n->arena, MAX(ROOM, bytes));
		n->room_left = n->room ? MAX(ROOM, bytes) : 0;
	}
	if (!n->room_left)
		return NULL;
	p = memcpy(n->room, s, bytes);
	n->room += bytes;
	n->room_left -= bytes;
	return p;
}

const char *names_str(struct names *n, const char *s)
{
	uint64_t k = hash_str(s);

	if (seen_grow(&n->str, hash_str) < 0)
		return NULL;
	for (; n->str.at[k & n->str.mask]; k++)
		if (!strcmp(n->str.at[k & n->str.mask], s))
			return n->str.at[k & n->str.mask];
	n->str.at[k & n->str.mask] = str_new(n, s, strlen(s) + 1);
	n->str.n += n->str.at[k & n->str.mask] != NULL;
	return n->str.at[k & n->str.mask];
}

const void *names_bytes(struct names *n, const void *p, size_t bytes)
{
	uint64_t hash = hash_of(bytes ? p : "", bytes), k = hash;
	struct item *x;

	if (seen_grow(&n->item, hash_item) < 0)
		return NULL;
	for (; n->item.at[k & n->item.mask]; k++) {
		const struct item *y = n->item.at[k & n->item.mask];

		if (y->hash == hash && y->bytes == bytes && (!bytes || !memcmp(y + 1, p, bytes)))
			return y + 1;
	}
	x = arena_alloc(&n->arena, sizeof *x + bytes);
	if (!x)
		return NULL;
	*x = (struct item){ bytes, hash };
	if (bytes)
		memcpy(x + 1, p, bytes);
	n->item.at[k & n->item.mask] = x;
	n->item.n++;
	return x + 1;
}
