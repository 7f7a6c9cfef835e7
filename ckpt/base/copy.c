/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - the bulk copies of the mover and of the library's own copier.
 * Invariant: the same bytes as memcpy, and the copy is ordered before every later store.
 */
#include "ckpt/base/copy.h"
#include "ckpt/base/util.h"
#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"

#define LINE 64

__attribute__((target("avx2"))) static void copy_avx2(uint8_t *d, const uint8_t *s, size_t n)
{
	size_t head = (size_t)(-(uintptr_t)d % LINE);

	memcpy(d, s, head);
	d += head;
	s += head;
	n -= head;
	for (; n >= 4 * LINE; d += 4 * LINE, s += 4 * LINE, n -= 4 * LINE) {
		__m256i v[8];

		for (int i = 0; i < 8; i++)
			v[i] = _mm256_loadu_si256((const __m256i *)(s + 32 * i));
		for (int i = 0; i < 8; i++)
			_mm256_stream_si256((__m256i *)(d + 32 * i), v[i]);
	}
	_mm_sfence();
	memcpy(d, s, n);
}
#endif

void *copy_stream(void *dst, const void *src, size_t n)
{
#ifdef __x86_64__
	if (n >= COPY_STREAM_MIN && __builtin_cpu_supports("avx2")) {
		copy_avx2(dst, src, n);
		return dst;
	}
#endif
	return memcpy(dst, src, n);
}
