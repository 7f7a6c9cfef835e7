/* SPDX-License-Identifier: Apache-2.0 */
/*
 * each_arena.h - ckpt/base/arena.h as a test has it: each allocation is a malloc of its own. So
 * libc.h makes each one fail, not only those that find no room in a block; and
 * AddressSanitizer sees what reaches beyond one. Include it into one file of a test program; it
 * takes the place of arena.c.
 */
#ifndef TESTS_EACH_ARENA_H
#define TESTS_EACH_ARENA_H
#include "ckpt/base/arena.h"
#include <stdlib.h>
#include <string.h>

struct arena_block {
	struct arena_block *next;
	_Alignas(16) uint8_t data[];
};

void *arena_alloc(struct arena *a, size_t bytes)
{
	struct arena_block *b = bytes > SIZE_MAX / 4 ? NULL : calloc(1, sizeof *b + bytes);

	if (!b)
		return NULL;
	b->next = a->block;
	a->block = b;
	a->total_bytes += bytes;
	return b->data;
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
		free(b);
	}
	*a = (struct arena){ 0 };
}
#endif
