/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_pieces.h - the pieces of a place in the order of their bytes, and fingerprints of parts of
 * them. For ckpt/move only: the writer and the verifier meet the bytes of a place chunk by chunk.
 * A piece's bytes are those that table_piece_bytes says: a DERIVED one is met where its F32
 * elements lie.
 */
#ifndef CKPT_MOVE_PLACE_PIECES_H
#define CKPT_MOVE_PLACE_PIECES_H
#include "ckpt/base/hash.h"
#include "ckpt/table/table.h"

struct place_pieces {
	const struct table *t;
	uint32_t *piece; /* [npiece] sorted by (place, where their bytes begin) */
	uint64_t *
		hi_max; /* [npiece] the highest end of this and all pieces before it in its place */
	uint32_t *first; /* [nplace + 1] */
};
int place_pieces_make(const struct table *t, struct place_pieces *ret); /* -ENOMEM */
void place_pieces_free(struct place_pieces *p);

/* The first entry of p->piece that may reach above byte lo of the place. Those that touch [lo,
 * hi) are from here on to first[place + 1] or to where off >= hi. */
uint32_t place_pieces_from(const struct place_pieces *p, uint32_t place, uint64_t lo);

/* "component/name" of the first piece that touches [lo, hi) of the place; "" when none does.
 * Returns buf. */
char *place_pieces_label(const struct table *t, uint32_t place, uint64_t lo, uint64_t hi, char *buf,
			 size_t bytes);

/* The same of one that has them in order: O(log pieces) where they do not overlap. */
char *place_pieces_name(const struct place_pieces *p, uint32_t place, uint64_t lo, uint64_t hi,
			char *buf, size_t bytes);

/* Sum over the piece's elements number [from, to), which lie row-major at p. */
uint64_t piece_fingerprint(const struct table *t, const struct table_piece *piece, uint64_t from,
			   uint64_t to, const void *p);

/* The same of a piece that is the rounding of the F32 elements at p. */
uint64_t piece_fingerprint_rounded(const struct table *t, const struct table_piece *piece,
				   uint64_t from, uint64_t to, const uint8_t *p);
/*
 * The part of the piece's fingerprint that lies in raw bytes [lo, hi) of its place; window: the
 * bytes at lo. Elements must not straddle the bounds: piece_splits says whether all chunk bounds
 * are so.
 */
uint64_t piece_fingerprint_window(const struct table *t, const struct table_piece *piece,
				  const void *window, uint64_t lo, uint64_t hi);

/*
 * hash128_add of raw bytes [lo, hi) of place 0, which lie at window, and to each piece's fp (fp:
 * NULL, or [npiece], which takes them instead) the sum of its elements among them. Each byte is
 * handed to both sums while it is in the nearest cache. Derived pieces have no bytes of their own
 * and get nothing.
 */
void place_pieces_sums(const struct place_pieces *p, struct table *t, const uint8_t *window,
		       uint64_t lo, uint64_t hi, struct hash128_state *hash, uint64_t *fp);

bool piece_splits(const struct table *t, const struct table_piece *piece);
#endif
