/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_map.h - where the chunks of a raw space lie in a file that stores every chunk raw. A pure
 * function of the raw space's table: move writes by it, and a reader compares with it.
 */
#ifndef CKPT_CHUNK_MAP_H
#define CKPT_CHUNK_MAP_H
#include "formats/format.h"

#define CHUNK_LOG2 20			  /* a chunk is 1 MiB of the raw space */
#define CHUNK_ALIGN 4096u		  /* chunks begin on a multiple of it */
#define CHUNK_RAW_MAX ((uint64_t)1 << 40) /* of a raw space: a dead file is written again whole */

/*
 * t: sealed, one place, the raw space. One entry per raw MiB, the sums zero. raw_len reaches from
 * the chunk's start to the end of the last piece with bytes in it (a DERIVED one has none); raw
 * bytes between pieces belong to the chunk and mean nothing; a chunk without such pieces is a hole.
 * Chunk after chunk from byte data_off of the file on, each on a multiple of CHUNK_ALIGN, as
 * data_off is; holes left out.
 * *ret_data_end: the end of the last one, a multiple of CHUNK_ALIGN. *ret_chunk is malloc'ed.
 * -EPROTO: pieces overlap, or differ in element size within a chunk.
 */
int chunk_map_make(const struct table *t, uint64_t data_off, struct chunk **ret_chunk,
		   uint64_t *ret_nchunk, uint64_t *ret_data_end, struct ckpt_err *err);
#endif
