/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_slice.c - slice_parse: any text is a slice inside the shape that prints as one which means
 * the same, or an error with a sentence. The first bytes are the shape: a number of dimensions, and
 * for each a byte.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/engine/slice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	uint32_t ndim = bytes ? data[0] % (CKPT_DIMS_MAX + 1) : 0;
	uint64_t shape[CKPT_DIMS_MAX], numel, all;
	char text[512], print[1024], inner[1024];
	struct slice s, again;
	struct ckpt_err err = { 0 };

	if (bytes < 1 + (size_t)ndim || bytes - 1 - ndim >= sizeof text)
		return -1;
	/* Some dimensions are empty, some as long as they can be. */
	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = data[1 + d] == 255 ? INT64_MAX : data[1 + d];
	if (shape_numel(ndim, shape, &all))
		return -1;
	memcpy(text, data + 1 + ndim, bytes - 1 - ndim);
	text[bytes - 1 - ndim] = '\0';
	if (slice_parse(text, ndim, shape, &s, &err)) {
		assert(err.code == -EINVAL && err.msg[0] != '\0');
		return 0;
	}
	numel = 1;
	for (uint32_t d = 0, kept = 0; d < ndim; d++) {
		assert(s.start[d] <= shape[d] && s.count[d] <= shape[d] - s.start[d]);
		assert(!s.single[d] || s.count[d] == 1);
		assert(s.single[d] || s.shape[kept++] == s.count[d]);
		assert(d + 1 < ndim || kept == s.nshape);
		numel = s.count[d] ? numel * s.count[d] : 0;
	}
	assert(s.numel == numel && s.numel <= all);
	slice_print(&s, shape, print, sizeof print);
	if (!ndim)
		return 0;
	memcpy(inner, print + 1, strlen(print) - 2);
	inner[strlen(print) - 2] = '\0';
	assert(slice_parse(inner, ndim, shape, &again, &err) == 0);
	for (uint32_t d = 0; d < ndim; d++)
		assert(s.count[d] == again.count[d] && s.single[d] == again.single[d] &&
		       s.start[d] == again.start[d]);
	return 0;
}
