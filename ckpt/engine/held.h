/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held.h - where the bytes of tensors are: what each rank wrote and held in memory, and which
 * contents are there more than once. From tables alone; nothing is read. Linear in tensors and
 * pieces, but for sorting.
 */
#ifndef CKPT_ENGINE_HELD_H
#define CKPT_ENGINE_HELD_H
#include "formats/format.h"

/* Some tensors of a checkpoint. */
struct chosen {
	const struct checkpoint *k;
	const uint32_t *id; /* [n] */
	uint32_t n;
	struct arena arena; /* of what is made here; the caller frees it */
};

struct rank_sum {
	uint64_t wrote, holds, pieces; /* bytes stored; bytes in memory, copies included */
};
struct ranks {
	struct rank_sum *rank; /* [world] */
	bool held_known;
	uint64_t held,
		replicated; /* of all ranks; of that, copies of what another rank holds too */
};
/* 0, -ENOMEM; held_known is false where there are no layouts, or too many shapes on too many
 * ranks. */
int ranks_make(struct chosen *s, struct ranks *r);

/* Tensors of one shape and dtype whose fingerprints are equal. Nothing is known of the `unknown`
 * ones. */
struct twins {
	const struct table_tensor **x; /* [n] of equal contents, side by side */
	uint32_t n;
	uint32_t unknown; /* tensors of which no fingerprint is known */
	uint64_t zero_tensors, zero_bytes, equal_bytes;
	uint32_t ngroup;
	struct twin {
		uint32_t first, n;
		uint64_t extra; /* bytes that are there once more, or more often */
	} * group;		/* most bytes first */
};
int twins_make(struct chosen *s, struct twins *w); /* 0 or -ENOMEM */
#endif
