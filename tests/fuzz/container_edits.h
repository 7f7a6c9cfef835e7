/* SPDX-License-Identifier: Apache-2.0 */
/*
 * container_edits.h - a fuzzer whose input is one container. Its first byte: bit 0: arbitrary
 * bytes, else changes (edits.h) to a good one; bit 1: with all checksums put right.
 */
#ifndef TESTS_CONTAINER_EDITS_H
#define TESTS_CONTAINER_EDITS_H
#include "tests/lib/memdir.h"
#include "tests/fuzz/edits.h"

static struct memdir dir; /* one file, called MANIFEST so that memdir_sign looks for no other */
static uint8_t *kept;
static struct edits edits;

/* All that a container says of itself, and its sections. */
static inline void container_regions(uint8_t *b, uint64_t len)
{
	const struct ck_tail *tail = (const struct ck_tail *)(b + len - CONTAINER_BLOCK);

	for (uint32_t i = 0; i < le32_get(tail->nsect); i++)
		edits_region(&edits, b + le64_get(tail->sect[i].off), le64_get(tail->sect[i].len));
	edits_region(&edits, b, offsetof(struct ck_head, zero) + 8);
	edits_region(&edits, b + len - CONTAINER_BLOCK,
		     offsetof(struct ck_tail, sect) +
			     (le32_get(tail->nsect) + 1) * sizeof *tail->sect);
}

/* The good one; frees bytes. */
static inline void container_start(void *bytes, uint64_t len)
{
	struct memdir_file *f = memdir_add(&dir, NATIVE_MANIFEST, bytes, len);

	free(bytes);
	kept = malloc(len);
	assert(kept);
	memcpy(kept, f->bytes, len);
	container_regions(f->bytes, len);
}

/* take gets the container in memory of exactly its size. */
static inline void container_one(const uint8_t *data, size_t size,
				 void (*take)(void *arg, const void *bytes, uint64_t len),
				 void *arg)
{
	struct memdir_file *f = &dir.file[0];
	uint8_t *exact;

	if (data[0] & 1) {
		take(arg, data + 1, size - 1);
		return;
	}
	edits_apply(&edits, data + 1, size - 1);
	if (data[0] & 2)
		memdir_sign(&dir, f);
	exact = malloc(f->len);
	assert(exact);
	memcpy(exact, f->bytes, f->len);
	take(arg, exact, f->len);
	free(exact);
	edits_undo(&edits);
	memcpy(f->bytes, kept, f->len);
}
#endif
