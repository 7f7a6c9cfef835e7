/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc.h - the CRC-32 of zip and gzip. Pure: any thread.
 */
#ifndef CKPT_CODING_CRC_H
#define CKPT_CODING_CRC_H
#include <stdint.h>

/* Of all bytes so far; crc: of those before these, 0 at first. */
uint32_t crc_add(uint32_t crc, const void *p, uint64_t len);
/* Of two strings one behind the other, the second of len bytes. */
uint32_t crc_join(uint32_t first, uint32_t second, uint64_t len);
#endif
