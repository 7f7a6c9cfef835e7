/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_redist_state.c - redist_state_parse: any text is a state that checks and prints back to
 * itself, or an error with a sentence. The first byte chooses how many dimensions the mesh and the
 * tensor have.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/redist/redistribute.h"

#define SIZE 3u /* of each mesh dimension */

static void mesh_of(uint32_t ndim, struct mesh *ret)
{
	static const char *const name[] = { "a", "b", "c", "d" };
	static const uint32_t dim[] = { SIZE, SIZE, SIZE, SIZE };
	static uint32_t rank[SIZE * SIZE * SIZE * SIZE];

	*ret = (struct mesh){ .ndim = ndim, .name = name, .dim = dim, .nrank = 1, .rank = rank };
	for (uint32_t i = 0; i < ndim; i++)
		ret->nrank *= SIZE;
	for (uint32_t i = 0; i < ret->nrank; i++)
		rank[i] = i;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char text[512], first[REDIST_STATE_BYTES], second[REDIST_STATE_BYTES];
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct layout l, again;
	struct mesh m;
	uint32_t ndim;

	if (!bytes || bytes > sizeof text)
		return -1;
	mesh_of(data[0] % 5, &m);
	ndim = data[0] / 5 % 5;
	memcpy(text, data + 1, bytes - 1);
	text[bytes - 1] = '\0';
	if (redist_state_parse(text, &m, ndim, &a, &l, &err) < 0) {
		assert(err.code == -EINVAL && err.msg[0] != '\0');
	} else {
		assert(layout_check(&m, &l, ndim, &err) == 0 && l.nplace == m.ndim);
		redist_state_print(&m, &l, first, sizeof first);
		assert(redist_state_parse(first, &m, ndim, &a, &again, &err) == 0);
		assert(!strcmp(first, redist_state_print(&m, &again, second, sizeof second)));
	}
	arena_free(&a);
	return 0;
}
