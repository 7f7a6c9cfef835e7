/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tap.h - what rides on the one pass over a state on its way to the disk: each byte is brought into
 * the cache once, and the sums, then every tap, see it there before it is written. The fingerprints
 * and scrub sums of a part are such a tap themselves (part_writer.c); averages are one, too.
 *
 * A tap sees, in the thread that writes the part, all bytes of its chunks (what is derived and not
 * written is in none) in ascending order, in spans that never cross the end of a chunk, zeros between pieces included. What it sees does not
 * change any more and is what the file will hold, but nothing says yet that the file will be whole:
 * a part whose disk failed is written anew and seen anew from its beginning, so what a tap makes must
 * be made out of place and only be taken when the step is committed.
 */
#ifndef CKPT_MOVE_TAP_H
#define CKPT_MOVE_TAP_H
#include "ckpt/table/table.h"

#define TAP_SPAN_BYTES \
	(64u << 10) /* at most: stays in the nearest caches from one tap to the next */

struct tap_span {
	const struct table *t; /* the part's: its pieces lie in its raw space */
	uint32_t rank;	       /* whose part it is */
	uint32_t len;
	uint64_t off; /* of the first byte, in the raw space; a multiple of TAP_SPAN_BYTES */
	const uint8_t *p;
	bool last; /* of its chunk */
};

struct move_tap {
	/* < 0 ends the part with that -errno; it should leave a sentence where its owner looks. */
	int (*span)(void *ctx, const struct tap_span *s);
	void *ctx;
};
#endif
