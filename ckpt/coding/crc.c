/* SPDX-License-Identifier: Apache-2.0 */
/* crc.c - see crc.h: zlib's. Called by decoders, and by move, which verifies what containers
 * hold. */
#include "ckpt/coding/crc.h"
#include <zlib.h>

uint32_t crc_add(uint32_t crc, const void *p, uint64_t len)
{
	return (uint32_t)crc32_z(crc, p, len);
}

uint32_t crc_join(uint32_t first, uint32_t second, uint64_t len)
{
	return (uint32_t)crc32_combine(first, second, (z_off_t)len);
}
