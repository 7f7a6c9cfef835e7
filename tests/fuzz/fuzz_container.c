/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_container.c - arbitrary bytes as a container: as they are, and once more with every checksum
 * put right, because a random mutation would otherwise never get past the first one. Whatever is
 * accepted must be readable to its last byte. Links base; run with -max_len=24576 at least.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/base/container.h"

static void reseal(uint8_t *block)
{
	struct hash128 h = hash128(block, CONTAINER_BLOCK - 16);

	memcpy(block + CONTAINER_BLOCK - 16, h.b, sizeof h.b);
}

static void sections_reseal(uint8_t *b, uint64_t len)
{
	struct ck_tail *t = (struct ck_tail *)(b + len - CONTAINER_BLOCK);

	for (uint32_t i = 0; i < CONTAINER_SECT_MAX; i++) {
		struct ck_sect *s = &t->sect[i];
		uint64_t off = le64_get(s->off), n = le64_get(s->len);

		if (le32_get(s->kind) && off <= len && n <= len - off) {
			struct hash128 h = hash128(b + off, n);

			memcpy(s->hash, h.b, sizeof h.b);
		}
	}
}

/* Give the blocks the constants that a mutation is unlikely to find, and right checksums. */
static void repair(uint8_t *b, uint64_t len)
{
	struct ck_head *h = (struct ck_head *)b;
	struct ck_tail *t = (struct ck_tail *)(b + len - CONTAINER_BLOCK);

	memcpy(h->magic, CONTAINER_HEAD_MAGIC, sizeof h->magic);
	memcpy(t->magic, CONTAINER_TAIL_MAGIC, sizeof t->magic);
	h->major = le16_of(CONTAINER_MAJOR);
	h->minor = le16_of(CONTAINER_MINOR);
	h->incompat = le64_of(CONTAINER_V02);
	memcpy(t->uuid, h->uuid, sizeof t->uuid);
	t->file_bytes = le64_of(len);
	sections_reseal(b, len);
	reseal(b);
	reseal((uint8_t *)t);
}

static uint64_t read_all(const uint8_t *b, uint64_t len)
{
	static struct container_view v;
	struct ckpt_err err;
	uint64_t sum = 0;

	if (container_decode(b, len, 0, &v, &err) < 0) {
		assert(err.code == -EBADMSG || err.code == -EPROTO || err.code == -EPROTONOSUPPORT);
		assert(err.msg[0] && strlen(err.msg) < sizeof err.msg);
		return 0;
	}
	assert(v.map.file_bytes == len && v.map.nsect <= CONTAINER_SECT_MAX);
	for (uint32_t i = 0; i < v.map.nsect; i++) {
		struct container_bytes s = container_view_get(&v, v.map.sect[i].kind);

		assert(s.p && !container_sect_check(&v.map.sect[i], s.p, NULL));
		assert(!s.rec_bytes || s.count * s.rec_bytes == s.len);
		for (uint64_t k = 0; k < s.len; k++)
			sum += ((const uint8_t *)s.p)[k];
	}
	return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy;

	(void)read_all(data, size);
	if (size < 2 * CONTAINER_BLOCK)
		return 0;
	copy = malloc(size);
	assert(copy);
	memcpy(copy, data, size);
	repair(copy, size);
	(void)read_all(copy, size);
	free(copy);
	return 0;
}
