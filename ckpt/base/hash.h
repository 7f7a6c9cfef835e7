/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.h - the three sums. Speeds and the choice: XXH3-128 (identity of chunks, blocks and containers), CRC-32C (scrub of stored bytes),
 * fingerprint (identity of a tensor's contents, whatever the layout that holds it).
 *
 * hash128: XXH3-128 with seed 0, canonical (big-endian) 16 bytes, as xxhsum -H2 prints. The header-only implementation is compiled once per
 * instruction set and chosen at run time, because the distribution's shared library has SSE2 code behind its plain symbols.
 * crc32c: Castagnoli, initial and final inversion, as iSCSI; zlib-style chaining: crc32c(crc32c(0, a), b) == crc32c(0, ab).
 *
 * fingerprint of elements with row-major GLOBAL indices g and bit patterns v (source: docs/FORMAT.md):
 *	sum over elements of M(g >> 12) * (K[g & 4095] * v)   mod 2^64
 * where K[i] is 4096 odd 32-bit constants and M(b) an odd 64-bit mix of b; 8-byte elements use a second table for their upper half; 16-byte elements count
 * as two 8-byte ones with indices 2g, 2g+1. Additive, so the sum over pieces, parts and hosts is the tensor's.
 */
#ifndef CKPT_BASE_HASH_H
#define CKPT_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>

struct hash128 { uint8_t b[16]; };

struct hash128 hash128(const void *p, size_t bytes);
uint32_t crc32c(uint32_t crc, const void *p, size_t bytes);

/* Sum over n elements of elem_bytes (1, 2, 4, 8, 16) each, contiguous at p, whose global indices are first, first+1, ... Any alignment. */
uint64_t fingerprint(const void *p, uint64_t n, uint32_t elem_bytes, uint64_t first);

/* For tests: force an instruction set ("scalar", "avx2", "avx512"; NULL: the best). Returns 0 or -EOPNOTSUPP. All give the same bits. */
int hash_force_isa(const char *isa);
#endif
