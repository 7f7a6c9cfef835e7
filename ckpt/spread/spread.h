/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spread.h - a rank's part of an exchange between ranks, and the walk over it: what it sends to
 * whom and what it receives from whom (reshard.h), cut into rounds of bounded bytes, carried by a
 * transport (transport.h).
 *
 * From one rank to another goes a stream: the parts of the tensors, row-major, by component and
 * name, one behind the other. A schedule (plan_schedule.h) gives how much of it goes in which
 * round; without one, round k carries bytes [k * chunk_bytes, (k + 1) * chunk_bytes) of every
 * stream. A round begins at the element that has its first byte, so that no element goes in two
 * rounds. Both ends compute the stream from their declarations, so nothing about it is sent; that
 * needs declarations that agree, and the same struct spread_how on all ranks.
 *
 * If ranks load one checkpoint together, src and dst are the same table: the owners of reshard.h
 * have read their elements from disk, and send each to the other ranks that hold it.
 */
#ifndef CKPT_SPREAD_SPREAD_H
#define CKPT_SPREAD_SPREAD_H
#include "ckpt/plan/reshard.h"
#include "ckpt/plan/plan_schedule.h"
#include "ckpt/spread/transport.h"

/* Do ranks that load one checkpoint together divide this tensor among them? x: of t, which the rank
 * declared. The daemon, which reads for each rank only its own part, and the ranks, which send that
 * on, both call this. */
bool spread_divides(const struct table *t, const struct table_tensor *x);

/* Of a rank's declaration the tensors that are divided, sealed; places keep their numbers. -ENOMEM,
 * -E2BIG. */
int spread_divided(const struct table *all, struct table *ret, struct ckpt_err *err);

struct spread;

/* src, dst: sealed declarations that know all tensors of which the rank sends or receives anything;
 * they must outlive the result. Tensors without a layout, and those with a pending reduction, are
 * left out; with opts->pieces, those that a schedule leaves out (schedule_takes). -EMEDIUMTYPE:
 * tensors whose dtypes differ, all of them; -ENOMEM, -E2BIG, and what reshard_rank returns. */
int spread_open(const struct table *src, const struct table *dst, const struct reshard_opts *opts,
		uint32_t rank, struct spread **ret, struct ckpt_err *err);
void spread_close(struct spread *s); /* NULL is fine */

/* What this rank's part amounts to. */
struct spread_cost {
	uint32_t out_peers, in_peers; /* without the rank itself */
	uint64_t out_bytes, in_bytes, self_bytes;
};
struct spread_cost spread_cost(const struct spread *s);

/* `rows` lines of `width` bytes, between the rank's memory and staging memory. */
struct spread_lines {
	uint64_t to, from, width, rows, to_pitch, from_pitch;
};

/* The memory of a rank, and of the transport. */
struct spread_memory {
	/* Sealed, with pieces: where the rank's elements lie; base: [nplace] addresses of
	 * places. */
	const struct table *from, *to;
	const uint64_t *from_base, *to_base;
	/* Staging (spread_staging). At a 4096-byte boundary. */
	uint64_t out, in;
	/* The transport can use the bases as addresses, too: what is sent from one stretch of
	 * memory, or received into one, goes without staging. Then the elements of a round that
	 * fails are undefined in `to`. */
	bool direct;
	/* Carries lines of a round out before its first send or recv, and in behind its round_end:
	 * 0 or an error. NULL: memcpy. */
	int (*carry)(void *arg, const struct spread_lines *lines, struct ckpt_err *err);
	/* NULL, or: may the transport send so many bytes from there, without staging? */
	bool (*sends)(void *arg, uint64_t from, uint64_t bytes);
	void *arg;
};
struct spread_how {	      /* the same on all ranks, but for round_ns */
	uint64_t chunk_bytes; /* without a schedule; >= SPREAD_CHUNK_MIN */
	/* How long a round may take; those in which a rank has nothing to do count, too. */
	uint64_t round_ns;
	const struct schedule_rounds *rounds; /* NULL: by chunk_bytes */
	/*
	 * `carry` returns before the bytes have moved: while the transport moves a round, the round
	 * before is carried in and the next one out, so there is staging memory for two. Of a round
	 * the calls are send and recv; carry, of the rounds beside it; round_end. Each rank's own
	 * choice. Not with spread_memory.direct.
	 */
	bool ahead;
};
/* Bytes of staging memory: what the rank sends in a round, and what it receives, and a page for
 * each peer. */
void spread_staging(const struct spread *s, const struct spread_how *how, uint64_t *ret_out,
		    uint64_t *ret_in);
#define SPREAD_CHUNK_MIN 65536u
#define SPREAD_CHUNK_MAX (UINT64_C(64) << 20) /* of ranks that load together */

/*
 * Carries out all of it. What stays with the rank is copied, too, unless m->from is m->to. 0; the
 * transport's error, after which it has been aborted: the elements of rounds before it have
 * arrived, those behind it have not. -ENOMEM.
 */
int spread_run(struct spread *s, struct spread_transport *t, const struct spread_memory *m,
	       const struct spread_how *how, struct ckpt_err *err);

/* Of what the rank receives in the last spread_run, the rounds that have arrived. */
uint64_t spread_rounds(const struct spread *s);
/*
 * What others send to the rank in all rounds behind the first `rounds`, part by part: each element
 * once. Ranks compute it from the same declarations, and so does the daemon, which reads for a rank
 * what a failed exchange has not brought. x: the tensor, of the exchange's own table. 0; what fn
 * returned, if it is not 0; -ENOMEM, -E2BIG.
 */
typedef int spread_part_fn(void *arg, const struct table_tensor *x, const struct indexset *part);
int spread_missing(struct spread *s, uint64_t chunk_bytes, uint64_t rounds, spread_part_fn *fn,
		   void *arg, struct ckpt_err *err);
#endif
