/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_journal.h - how far a conversion is, as a file: a container (ckpt/base/container.h)
 * that says nothing which was not synced before it was written. Only the program that wrote it
 * reads it, on the same machine; a newer version that cannot starts over.
 *
 *	WHO    strings: id of the source, tool, mesh
 *	STATE  one record cj_state
 *	PARTS  cj_part, in the order of the parts (conversion_parts.h)
 *	SUMS   cj_sum: per open part one for each entry of its chunk map that is done
 *	PRINTS le64: the fingerprints, so far, of the pieces of parts that are open or done, in the
 *	       order of the table of all parts
 */
#ifndef CKPT_CLI_CONVERSION_JOURNAL_H
#define CKPT_CLI_CONVERSION_JOURNAL_H
#include "ckpt/base/util.h"
#include "ckpt/move/chunk_stream.h"
#include "formats/native/native.h"

struct cj_state {
	le64 seq, mem_limit;
	le64 windows;	  /* of this batch that are done */
	le64 bytes;	  /* of tensors that are done, of all batches */
	le32 first;	  /* part of the batch */
	le32 batch;	  /* parts that are written at once: windows depend on it */
	le32 world, zero; /* world: number of parts */
};
struct cj_part {
	le32 state, fill;
	le64 nchunk, file_bytes;
	uint8_t hash[16];
};
struct cj_sum {
	uint8_t hash[16];
};

enum journal_part_state { JOURNAL_NONE, JOURNAL_OPEN, JOURNAL_DONE };

struct journal_part {
	uint32_t state;
	struct chunk_state at; /* OPEN */
	uint64_t file_bytes;   /* DONE */
	struct hash128 root;   /* DONE */
};

struct journal {
	uint8_t uuid[16]; /* of what is made: depends on source, target and tool */
	uint64_t step, seq, mem_limit, windows, bytes;
	uint32_t first, batch, world;
	const char *source, *tool, *mesh;
	struct journal_part *part; /* [world] world: number of parts */
	const le64 *print;	   /* [nprint], read only */
	uint64_t nprint;
	struct arena arena; /* of one that was read */
};

/* all: of all parts, place i is part i; its pieces bear the fingerprints. *ret_bytes is malloc'ed. */
int journal_encode(const struct journal *j, const struct table *all, void **ret_bytes,
		   uint64_t *ret_len, struct ckpt_err *err);
/* -EBADMSG: torn, damaged, no journal. Points into bytes. */
int journal_decode(const void *bytes, uint64_t len, struct journal *ret, struct ckpt_err *err);
/* Give the pieces the fingerprints that it holds. -EBADMSG: there are not as many. */
int journal_prints(const struct journal *j, struct table *all, struct ckpt_err *err);
void journal_free(struct journal *j);
#endif
