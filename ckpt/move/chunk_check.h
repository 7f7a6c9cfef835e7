/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_check.h - the chunks of any file, and whether their bytes are what was written. For
 * ckpt/move only.
 *
 * A file without a chunk map is seen as chunks of 1 MiB that carry no sums and lie where they are.
 */
#ifndef CKPT_MOVE_CHUNK_CHECK_H
#define CKPT_MOVE_CHUNK_CHECK_H
#include "formats/format.h"

#define CHUNK_PLAIN_LOG2 20

uint32_t file_chunk_log2(const struct format_file *f);
uint64_t file_nchunk(const struct format_file *f);
struct chunk file_chunk(const struct format_file *f, uint64_t i);

/* NULL, or in a few words what is wrong with these stored_len bytes. */
const char *chunk_fault(const struct format_file *f, const struct chunk *c, const void *stored);
/* Can this version decode it? -EPROTO a chunk map that contradicts itself, -EPROTONOSUPPORT an
 * unknown codec. */
int chunk_known(const struct format_file *f, uint64_t i, struct ckpt_err *err);
#endif
