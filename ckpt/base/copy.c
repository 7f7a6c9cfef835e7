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

/* Without the fence behind it. */
__attribute__((target("avx2"))) static void line_avx2(uint8_t *d, const uint8_t *s, size_t n)
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
	memcpy(d, s, n);
}
#endif

void *copy_stream(void *dst, const void *src, size_t n)
{
#ifdef __x86_64__
	if (n >= COPY_STREAM_MIN && __builtin_cpu_supports("avx2")) {
		line_avx2(dst, src, n);
		_mm_sfence();
		return dst;
	}
#endif
	return memcpy(dst, src, n);
}

void copy_lines(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
		size_t lines)
{
	uint8_t *d = dst;
	const uint8_t *s = src;

#ifdef __x86_64__
	if (width >= COPY_LINE_MIN && width * lines >= COPY_LINES_MIN &&
	    __builtin_cpu_supports("avx2")) {
		for (; lines > 0; lines--, d += dst_pitch, s += src_pitch)
			line_avx2(d, s, width);
		_mm_sfence();
		return;
	}
#endif
	for (; lines > 0; lines--, d += dst_pitch, s += src_pitch)
		memcpy(d, s, width);
}
