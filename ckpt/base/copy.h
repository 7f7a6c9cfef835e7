/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - memcpy for bulk data that is not read again at once: its stores pass the caches by.
 * From COPY_STREAM_MIN bytes on where the processor has AVX2; plain memcpy otherwise. Who reads the
 * copy right away (hashes a chunk that fits a cache) hashes the source instead, or uses memcpy.
 * Why: memory that is written without being read first crosses the bus once less. make bench
 * compares the snapshot's copy with the better of this and memcpy.
 */
#ifndef CKPT_BASE_COPY_H
#define CKPT_BASE_COPY_H
#include <stddef.h>

#define COPY_STREAM_MIN ((size_t)256 << 10)
#define COPY_LINES_MIN ((size_t)64 << 10)
#define COPY_LINE_MIN ((size_t)2 << 10)

/* As memcpy: any alignment, no overlap, returns dst. It is ordered before every later store. */
void *copy_stream(void *dst, const void *src, size_t n);
/* Lines of `width` bytes, each a pitch behind the one before it. They pass the caches by if they
 * are COPY_LINES_MIN together, and each is at least COPY_LINE_MIN. */
void copy_lines(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
		size_t lines);
#endif
