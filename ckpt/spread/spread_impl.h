/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spread_impl.h - what a rank sends and receives: spread.c computes it, spread_span.c and
 * spread_walk.c walk over it. For ckpt/spread only.
 */
#ifndef CKPT_SPREAD_SPREAD_IMPL_H
#define CKPT_SPREAD_SPREAD_IMPL_H
#include "ckpt/spread/spread.h"

struct part {
	uint32_t tensor; /* of the rank's own table */
	uint64_t off;	 /* bytes of the stream that come before it */
	struct indexset set;
};

struct stream {
	uint32_t peer;
	uint64_t bytes;
	uint32_t n, cap;
	struct part *part; /* one after the other, row-major */
};

struct streams {
	uint32_t n, cap;
	struct stream *stream; /* by peer */
};

struct spread {
	const struct table *src, *dst;
	uint32_t rank;
	bool pieces;	 /* reshard_opts' */
	uint64_t rounds; /* that have arrived */
	struct arena arena;
	struct streams out, in; /* out: also to itself; in: from others */
};

/* Bytes [from, to) of a stream: whole elements. */
struct span {
	uint64_t from, to;
};
/* What a stream carries in a round. t: the tensors of its parts; from, to: the ranks at its ends.
 * Both ends get the same, because they have the same parts. */
struct span spread_span(const struct spread_how *how, const struct table *t, const struct stream *x,
			uint32_t from, uint32_t to, uint64_t round);
/* Its staging memory: room for each of its spans; twice so much if the walk goes ahead. */
uint64_t spread_slot(const struct spread_how *how, const struct stream *x);
#endif
