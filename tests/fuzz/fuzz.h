/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h - what every fuzzer has. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include "ckpt/base/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input with a zero behind it, in memory of exactly that size; to be freed. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
	char *s = malloc(size + 1);

	assert(s);
	if (size)
		memcpy(s, data, size);
	s[size] = 0;
	return s;
}
#endif
