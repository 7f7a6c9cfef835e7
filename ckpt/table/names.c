/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.c - see names.h. Called by table_pack.
 * Invariant: what was given out stays where it is and as it is.
 */
#include "ckpt/table/names.h"
#include "ckpt/base/strmap.h"
#include "ckpt/base/util.h"
#include <pthread.h>
#include <stdatomic.h>

struct names {
	_Atomic uint32_t refs;
	pthread_mutex_t lock; /* protects the rest */
	struct arena arena;   /* what is given out */
	struct arena seen;    /* the maps' */
	struct strmap str, item;
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

static void seen_free(struct names *n)
{
	arena_free(&n->seen);
	n->str = n->item = (struct strmap){ 0 };
}

void names_unref(struct names *n)
{
	if (!n || atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1)
		return;
	seen_free(n);
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
	seen_free(n);
	names_unlock(n);
}

static const void *bytes_new(struct names *n, const void *p, size_t bytes)
{
	return arena_dup(&n->arena, p, bytes);
}

static const void *str_new(struct names *n, const void *s, size_t bytes)
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

/* The equal one that was given out before; else what `copy` makes of it. */
static const void *seen_get(struct names *n, struct strmap *m, const void *p, size_t bytes,
			    const void *(*copy)(struct names *n, const void *p, size_t bytes))
{
	uint32_t i = strmap_find(m, p, bytes);
	const void *q;

	if (i != KEYMAP_NONE)
		return m->key[i].bytes;
	q = copy(n, p, bytes);
	return q && strmap_add(m, &n->seen, q, bytes, &i) > 0 ? q : NULL;
}

const char *names_str(struct names *n, const char *s)
{
	return seen_get(n, &n->str, s, strlen(s) + 1, str_new);
}

const void *names_bytes(struct names *n, const void *p, size_t bytes)
{
	return seen_get(n, &n->item, p, bytes, bytes_new);
}
