/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.c - CRC-32C by ISA-L. In a file of its own, so that what never calls it (libckpt.so) does
 * not need libisal. ISA-L takes an int as length and leaves both inversions to the caller.
 */
#include "ckpt/base/hash.h"
#include "ckpt/base/util.h"
#include <isa-l/crc.h>

#define STRIDE_MAX ((size_t)GIB)

uint32_t crc32c(uint32_t crc, const void *p, size_t bytes)
{
	const uint8_t *at = p;

	crc = ~crc;
	while (bytes) {
		size_t n = MIN(bytes, STRIDE_MAX);

		/* The library reads only, but its prototype lacks the const. */
		crc = crc32_iscsi((unsigned char *)(uintptr_t)at, (int)n, crc);
		at += n;
		bytes -= n;
	}
	return ~crc;
}
