/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_mesh_spec.c - mesh_parse: any text is a mesh that checks and prints back to itself, or an
 * error with a sentence.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/layout/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char spec[512], text[2048];
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh m, again;

	if (bytes >= sizeof spec)
		return -1;
	memcpy(spec, data, bytes);
	spec[bytes] = '\0';
	if (mesh_parse(spec, &a, &m, &err) < 0) {
		assert(err.code == -EINVAL && err.msg[0] != '\0');
	} else {
		assert(mesh_check(&m, &err) == 0);
		mesh_print(&m, text, sizeof text);
		assert(mesh_parse(text, &a, &again, &err) == 0);
		assert(again.ndim == m.ndim && again.nrank == m.nrank);
		for (uint32_t d = 0; d < m.ndim; d++)
			assert(again.dim[d] == m.dim[d] && strcmp(again.name[d], m.name[d]) == 0);
	}
	arena_free(&a);
	return 0;
}
