/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h - the one walk over the raw space of a part: each byte is brought into the cache once, and
 * the sums, the fingerprints, the check of what is derived and then every pass see it there. Who
 * writes the part (chunk_stream.c) comes behind the walk, chunk by chunk; a part that is not
 * written is walked all the same. Averages are a pass, too.
 *
 * A pass sees, in the thread that walks, all bytes of the part's chunks in ascending order, each
 * once, in spans that never cross the end of a chunk, zeros between pieces included. (What is
 * derived and equal is in no chunk.) What it sees does not change any more, but nothing says yet
 * that all of it will be seen, nor that a file will hold it: so what a pass makes must be made out
 * of place and only be taken when the walk has ended well. A part whose disk failed is written anew
 * from what is known; no pass sees a byte again.
 *
 * Threads: a walk belongs to one thread at a time. Its helpers live only inside walk_raw.
 */
#ifndef CKPT_MOVE_WALK_H
#define CKPT_MOVE_WALK_H
#include "ckpt/move/move.h"

#define WALK_SPAN_BYTES \
	(64u << 10) /* at most: stays in the nearest caches from one pass to the next */

struct walk_span {
	const struct table *t; /* the part's: its pieces lie in its raw space */
	uint32_t rank;	       /* whose part it is */
	uint32_t len;
	uint64_t off; /* of the first byte, in the raw space; a multiple of WALK_SPAN_BYTES */
	const uint8_t *p;
	bool last; /* of its chunk */
};

struct walk_pass {
	/* < 0 ends the walk for good with that -errno; it should leave a sentence where its owner
	 * looks. */
	int (*span)(void *ctx, const struct walk_span *s);
	void *ctx;
};

struct walk_opts {
	const struct walk_pass *pass; /* [npass], asked in this order; they outlive the walk */
	uint32_t npass;
	uint64_t data_off; /* where the first chunk lies in the file (formats/chunk_map.h) */
	/* Threads beside the caller's that make sums in walk_raw. They help where nothing has to be
	 * seen in order: without passes and without derived tensors. */
	uint32_t nhelper;
	/* What an earlier walk has made: entries of the chunk map that are done, of which only the
	 * sums count; the pieces of t have the fingerprints that they had. No pass sees those
	 * chunks. */
	const struct chunk *sum; /* [nsum] */
	uint64_t nsum;
	bool resumed; /* sum is that of an earlier walk, though it may have made none */
};

/*
 * t: of a part, one place; it must outlive the walk, which sets the fingerprints of its pieces, and
 * PIECE_DERIVED where all of a derived tensor is the rounding of its master. A piece that comes
 * with PIECE_TRUSTED is not compared, and its own bytes are not read: it becomes derived in any
 * case. -EINVAL: a piece is not row-major, or has elements across a chunk's bound. -EBADMSG: nsum
 * is too high.
 */
struct walk;
int walk_open(const struct walk_opts *opts, struct table *t, uint32_t rank, struct walk **ret,
	      struct ckpt_err *err);
void walk_close(struct walk *w); /* NULL is fine */

/* Chunk i, which lies at p: nothing is done where the walk has passed it already; else it must be
 * the next one (-EINVAL). What is derived is not compared. After an error every call returns it. */
int walk_chunk(struct walk *w, uint64_t i, const uint8_t *p, struct ckpt_err *err);

/*
 * All chunks of a part that lies whole at raw, which is page-aligned and does not change. The walk
 * calls `passed` (which may be NULL) for each chunk that it has passed, in ascending order, in the
 * calling thread. If `passed` returns anything but 0, this call ends and returns it; the walk has
 * not failed. Another call begins again with chunk 0: it calls `passed` for every chunk, and passes
 * those that were not passed yet. On the way it compares what is derived with its master. Once it
 * has passed all masters, the chunks behind them are those of what is left.
 */
typedef int walk_passed_fn(void *arg, uint64_t i, const uint8_t *p);
int walk_raw(struct walk *w, const void *raw, walk_passed_fn *passed, void *arg,
	     struct ckpt_err *err);

bool walk_failed(const struct walk *w); /* a pass did: there is no use in another try */
bool walk_ended(const struct walk *w);	/* all chunks were passed */
/* The chunk map, as far as it is known now: walk_raw may make another one on the way. */
const struct chunk *walk_chunks(const struct walk *w, uint64_t *ret_n, uint64_t *ret_data_end);
/* After walk_raw. */
const struct part_derived *walk_derived(const struct walk *w);
/* Chunks before this one lie in the file where they lie, whatever a walk finds to be derived. */
uint64_t walk_fixed(const struct table *t);
/* Does it have tensors that are to be compared with what they derive from? */
bool walk_derives(const struct table *t);
#endif
