/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - memory that is freed all at once, for tables, plans and everything that lives as long
 * as a job or a call.
 * Invariant: memory of a block is handed out once and was zero when the block came, so that nothing
 * needs clearing.
 */
#include "ckpt/base/arena.h"
#include "ckpt/base/util.h"
#include <sys/mman.h>

#define ARENA_ALIGN 16
#define BLOCK_MIN ((size_t)4 * KIB)
#define BLOCK_MAX ((size_t)8 * MIB) /* doubling stops here; larger requests get their own */
#define MAP_MIN ((size_t)4 * MIB)   /* from here on on huge pages: a fault less for each 4 KiB */

struct arena_block {
	struct arena_block *next;
	size_t mapped; /* bytes of its own mapping; 0: from malloc */
	_Alignas(ARENA_ALIGN) uint8_t data[];
};

static struct arena_block *block_new(struct arena *a, size_t size)
{
	size_t bytes = sizeof(struct arena_block) + size;
	struct arena_block *b;

	if (size < MAP_MIN) {
		b = calloc(1, bytes);
	} else {
		b = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (b == MAP_FAILED)
			return NULL;
		(void)madvise(b, bytes, MADV_HUGEPAGE);
		b->mapped = bytes;
	}
	if (b)
		a->total_bytes += bytes;
	return b;
}

/* Start a newest block that has room for at least `bytes`. */
static int arena_grow(struct arena *a, size_t bytes)
{
	size_t size = a->size ? MIN(2 * a->size, BLOCK_MAX) : BLOCK_MIN;
	struct arena_block *b;

	while (size < bytes)
		size *= 2;
	b = block_new(a, size);
	if (!b)
		return -ENOMEM;
	b->next = a->block;
	a->block = b;
	a->used = 0;
	a->size = size;
	return 0;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
	size_t n = bytes ? bytes : 1;
	struct arena_block *b;
	void *p;

	if (bytes > SIZE_MAX / 4) /* from here on nothing overflows */
		return NULL;
	n = align_up(n, ARENA_ALIGN);
	if (n > a->size - a->used) {
		/* A big one goes behind the newest block, whose rest is thus still used. */
		if (n >= BLOCK_MAX / 2 && a->block) {
			b = block_new(a, n);
			if (!b)
				return NULL;
			b->next = a->block->next;
			a->block->next = b;
			return b->data;
		}
		if (arena_grow(a, n) < 0)
			return NULL;
	}
	p = a->block->data + a->used;
	a->used += n;
	return p;
}

void *arena_array(struct arena *a, size_t n, size_t elem)
{
	size_t bytes;

	return __builtin_mul_overflow(n, elem, &bytes) ? NULL : arena_alloc(a, bytes);
}

void *arena_dup(struct arena *a, const void *p, size_t bytes)
{
	void *d = arena_alloc(a, bytes);

	if (d && bytes)
		memcpy(d, p, bytes);
	return d;
}

char *arena_str(struct arena *a, const char *s)
{
	return arena_dup(a, s, strlen(s) + 1);
}

void arena_free(struct arena *a)
{
	for (struct arena_block *b = a->block, *next; b; b = next) {
		next = b->next;
		if (b->mapped)
			(void)munmap(b, b->mapped);
		else
			free(b);
	}
	*a = (struct arena){ 0 };
}
