/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.c - CRC-32C by ISA-L. In a file of its own, so that what never calls it (libckpt.so) does
 * not need libisal. ISA-L takes an int as length and leaves both inversions to the caller.
 */
#include "ckpt/base/hash.h"
#include "ckpt/base/hash_body.h"
#include "ckpt/base/util.h"
#include <isa-l/crc.h>

#define STRIDE_MAX ((size_t)GIB)

uint32_t crc32c(uint32_t crc, const void *p, size_t bytes)
{
	const uint8_t *at = p;

	crc = ~crc;
	while (bytes) {
		size_t n = MIN(bytes, STRIDE_MAX);

		/* The library reads only, but its prototype lacks the const. */
		crc = crc32_iscsi((unsigned char *)(uintptr_t)at, (int)n, crc);
		at += n;
		bytes -= n;
	}
	return ~crc;
}

/* --- both sums of a chunk --- */

#define STEP 4096 /* bytes: both sums see them in the nearest cache */
#define AHEAD (2 * STEP)

void chunk_sums_begin(struct chunk_sums *s)
{
	s->crc = 0;
	hash_isa()->begin(s->hash);
}

/* A processor does not guess beyond the end of a page: it is told, between the sums, what comes next. */
static void ask_for(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		__builtin_prefetch((const void *)((uintptr_t)p + i), 0, 2);
}

void chunk_sums_add(struct chunk_sums *s, const void *p, size_t bytes)
{
	const struct hash_isa *isa = hash_isa();

	for (size_t at = 0, n; at < bytes; at += n) {
		const uint8_t *q = (const uint8_t *)p + at;

		n = MIN(bytes - at, (size_t)STEP);
		ask_for(q + AHEAD, STEP / 2);
		s->crc = crc32c(s->crc, q, n);
		ask_for(q + AHEAD + STEP / 2, STEP / 2);
		isa->add(s->hash, q, n);
	}
}

struct hash128 chunk_sums_end(const struct chunk_sums *s, uint32_t *ret_crc)
{
	*ret_crc = s->crc;
	return hash_isa()->end(s->hash);
}
