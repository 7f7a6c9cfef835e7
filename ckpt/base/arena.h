/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory that is freed all at once. Blocks grow geometrically; nothing moves.
 * Zero-initialise the struct to use it. */
#ifndef CKPT_BASE_ARENA_H
#define CKPT_BASE_ARENA_H
#include <stddef.h>
#include <stdint.h>

struct arena_block;
struct arena {
	struct arena_block *block; /* newest first */
	size_t used, size;	   /* of the newest block */
	size_t total_bytes;	   /* of all blocks, for limits */
};

/* 16-byte aligned, zeroed; NULL when out of memory */
void *arena_alloc(struct arena *a, size_t bytes);
/* the same with a checked product */
void *arena_array(struct arena *a, size_t n, size_t elem);
void *arena_dup(struct arena *a, const void *p, size_t bytes);
char *arena_str(struct arena *a, const char *s);
void arena_free(struct arena *a); /* usable again afterwards */
#endif
