/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - how far a conversion is: a container (ckpt/base/container.h). All that it describes was
 * synced before it was written. Only the program that wrote it reads it, on the same machine; a
 * newer version that cannot read it begins anew. It contains files, chunks, sums and fingerprints,
 * and nothing of a format.
 *
 *	WHO    strings that identify the conversion: source, from, to, mesh, tool, options
 *	STATE  one record cj_state
 *	FILES  cj_file, in the order of the sheet's files
 *	CHUNKS cj_chunk: for each open file, one for each complete entry of its chunk map
 *	SUMS   cj_sum, in the order of the sheet's sums
 *	PRINTS le64: the fingerprint so far of each piece of a file that is open or done, in the
 *	       order of the sheet's table
 */
#ifndef CKPT_ENGINE_JOURNAL_H
#define CKPT_ENGINE_JOURNAL_H
#include "ckpt/base/util.h"
#include "formats/format.h"

#define JOURNAL_BYTES_MAX GIB

struct cj_state {
	le64 seq, mem_limit;
	le64 windows;	   /* of this batch that are done */
	le64 bytes;	   /* of tensors that are done, of all batches */
	le32 first, batch; /* first file of the batch; files that are written at once */
	le32 nfile, finished;
};
struct cj_file {
	le32 state, fill;
	le64 nchunk, bytes, data_end;
	uint8_t fill_hash[16], seal[16];
};
struct cj_chunk {
	uint8_t hash[16];
};
struct cj_sum {
	le32 crc, zero;
	le64 at;
};

enum journal_file_state { JOURNAL_NONE, JOURNAL_OPEN, JOURNAL_DONE };

struct journal_file {
	uint32_t state;
	/* OPEN, with chunks */
	uint32_t fill;		  /* bytes of the next chunk that the file has already */
	struct hash128 fill_hash; /* of these */
	uint64_t nchunk;
	const struct chunk *chunk; /* [nchunk] only raw_hash is used */
	/* DONE */
	uint64_t bytes, data_end;
	struct hash128 seal;
};
/* The first `at` bytes of a sheet_sum have this CRC-32. */
struct journal_sum {
	uint32_t crc;
	uint64_t at;
};

struct journal {
	uint8_t uuid[16]; /* a hash of source, target, options and tool */
	uint64_t seq;
	uint64_t mem_limit; /* windows are cut for it */
	uint64_t windows, bytes;
	uint32_t first, batch, nfile;
	bool finished; /* all files are complete and synced: only the rename is left */
	const char *source, *from, *to, *mesh, *tool, *options;
	struct journal_file *file; /* [nfile] */
	struct journal_sum *sum;   /* [nsum] */
	uint64_t nsum;
	const le64 *print; /* [nprint], read only */
	uint64_t nprint;
	struct arena arena; /* of one that was read */
};

/* t: of the sheet: place i is file i, and its pieces have the fingerprints. *ret_bytes: malloc'ed. */
int journal_encode(const struct journal *j, const struct table *t, void **ret_bytes,
		   uint64_t *ret_len, struct ckpt_err *err);
/* -EBADMSG: torn, damaged, or no journal. *ret points into bytes. */
int journal_decode(const void *bytes, uint64_t len, struct journal *ret, struct ckpt_err *err);
/* Copies its fingerprints to the pieces. -EBADMSG: there are more or fewer of them than pieces. */
int journal_prints(const struct journal *j, struct table *t, struct ckpt_err *err);
void journal_free(struct journal *j);
#endif
