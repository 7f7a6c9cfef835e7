/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_blobs.c - the memory with blobs that the daemon's answer to RESTORE brings, as the library
 * reads it: every name and length in it is the daemon's, or whoever's sits on its socket. What is
 * given to the trainer lies inside, whatever stands there.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/client/handle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint32_t alive = 1;
	static const char *const name[] = { "rng", "", "cursor" };
	uint8_t buf[64];
	ckpt *c;

	if (size < 2)
		return 0;
	c = calloc(1, sizeof *c);
	assert(c);
	c->alive = &alive;
	c->blobs_bytes = size - 1;
	c->blobs = malloc(c->blobs_bytes);
	assert(c->blobs);
	memcpy(c->blobs, data + 1, c->blobs_bytes);
	for (size_t i = 0; i < ARRAY_LEN(name); i++) {
		uint64_t len = 0;
		int r = ckpt_blob_read(c, name[i], data[0] & 7, buf, data[0] & 63, &len);

		assert(r == 0 || r == -ENOENT || r == -EPROTO);
		assert(r < 0 || len <= c->blobs_bytes);
	}
	free(c->blobs);
	free(c);
	return 0;
}
