/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sheet_files.h - the files of a sheet (formats/format.h) made in memory, as plainly as possible:
 * what the engine does with windows, queues and a journal is done here piece by piece. For tests of
 * formats. Include memdir.c.
 */
#ifndef TESTS_SHEET_FILES_H
#define TESTS_SHEET_FILES_H
#include "formats/format.h"
#include "tests/lib/memdir.h"

/* The bytes of a piece of s->table, row-major. false: its fingerprint shall stay unknown. */
typedef bool sheet_piece_fn(void *arg, const struct table *t, const struct table_piece *p,
			    uint8_t *ret);

/*
 * Sets the pieces' fingerprints, and adds every file to d. Checks what holds of all sheets: runs
 * ascend, the files that are not chunked are tiled by runs and pieces, nothing is longer than what
 * the sheet says, and a run that is asked for twice is the same. ret_seal: of the last file; NULL.
 * 0, or what a run says.
 */
int sheet_files_write(const struct sheet *s, sheet_piece_fn *fn, void *arg, struct memdir *d,
		      struct hash128 *ret_seal, struct ckpt_err *err);
/* CRC-32 of zip and gzip, bit by bit. */
uint32_t sheet_crc32(const uint8_t *p, uint64_t len);
#endif
