/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_schedule.h - an exchange between the ranks of two meshes in rounds: how many bytes go from
 * whom to whom in which round. For exchanges (spread.h), and to print beforehand what they cost.
 *
 * From one rank to another goes a *stream*: the parts of all tensors that reshard.h sends there,
 * one behind the other without padding. The schedule cuts streams into rounds, whatever their bytes
 * are. Each rank computes it alone from the two declarations, which must be complete and the same
 * on all ranks.
 *
 * How the rounds come about. All ranks agree on the number K of rounds. It is so large that in each
 * round no rank sends more than round_bytes to others, or receives more from others. Where ranks
 * times kinds of tensors are at most SCHEDULE_ASKED_MAX, each rank adds up what all ranks exchange;
 * of more, it takes a bound that the kinds alone give (schedule_bound.h; with HOLDERS_OWNERS, where
 * names decide who sends what is small, it holds on average). Because messages are not cut, a round
 * may exceed that by one message of each peer.
 * A stream of B bytes goes in n = min(K, B / message_bytes rounded up) messages of equal size,
 * evenly spread over the rounds. So each round carries the same share of each rank's bytes, and no
 * link waits for another: a schedule takes as long as its busiest link (the fluid limit of
 * Birkhoff's decomposition of the traffic matrix), and no rank needs the matrix. Streams that are
 * too short for K messages begin at a round that depends on the distance of the two ranks, so that
 * the short streams of one rank are spread evenly, too, also if its peers are neighbours (the
 * multiples of the golden ratio).
 *
 *	message i of n is carried in round (i * K + phase) / n, of [0, K), and it is bytes [cut(i),
 *	cut(i + 1)) of the stream
 *	cut(i) = B * i / n, rounded down to a multiple of 64, but cut(n) = B
 *	phase = K * (((to - from) mod 2^32) * 0x9e3779b97f4a7c15 mod 2^64) / 2^64
 *
 * What it costs to compute depends on the kinds of tensors (layouts, shapes, element sizes), not on
 * tensors, and on the peers of the rank, not on pairs of ranks. One thread.
 */
#ifndef CKPT_PLAN_PLAN_SCHEDULE_H
#define CKPT_PLAN_PLAN_SCHEDULE_H
#include "ckpt/plan/links.h"
#include "ckpt/plan/reshard.h"

#define SCHEDULE_ROUND_BYTES (64 * MIB)
#define SCHEDULE_MESSAGE_BYTES (64 * KIB)
#define SCHEDULE_MESSAGES_MIN 64u /* of a round; smaller rounds have smaller messages */
#define SCHEDULE_ROUNDS_MAX (UINT64_C(1) << 20)
#define SCHEDULE_ASKED_MAX 2048u /* tens of ms at most */
#define SCHEDULE_ALIGN 64u	 /* messages begin at a multiple of so many bytes of the stream */

struct schedule_opts {
	const char *only; /* this component only; NULL: all */
	/* These tensors of dst only; NULL: all. */
	bool (*wanted)(void *arg, uint32_t tensor);
	void *wanted_arg;
	enum holders_who who;	   /* of replicas: HOLDERS_ONE, or HOLDERS_OWNERS */
	const struct links *links; /* hosts, and the tiers of streams; NULL: all share a host */
	uint64_t round_bytes;	   /* 0: SCHEDULE_ROUND_BYTES */
	/* 0: SCHEDULE_MESSAGE_BYTES, or less in small rounds; at least SCHEDULE_ALIGN. */
	uint64_t message_bytes;
	/* The nearest tier that no transport reaches: LINKS_HOST: there is none, LINKS_SWITCH: it
	 * is for ranks of one host. 0: all are reached. */
	enum links_tier unreached;
};

/* What all ranks share: how streams are cut. A value. */
struct schedule_rounds {
	uint64_t n; /* K; 0: there are no tensors */
	uint64_t message_bytes;
};
/* Bytes [*ret_from, *ret_to) of a stream go in this round; none: equal. */
void schedule_span(const struct schedule_rounds *r, uint32_t from, uint32_t to, uint64_t bytes,
		   uint64_t round, uint64_t *ret_from, uint64_t *ret_to);
/* How many messages the stream has, and the round of one of them. */
uint64_t schedule_messages(const struct schedule_rounds *r, uint64_t bytes);
uint64_t schedule_round_of(const struct schedule_rounds *r, uint32_t from, uint32_t to,
			   uint64_t bytes, uint64_t message);

struct schedule;
/*
 * src: what ranks have, sealed declarations, and pieces for tensors without a layout (as a view
 * leaves them, reshard.h); dst: what ranks are to have. Both outlive the result, and so do links.
 * opts NULL: HOLDERS_ONE, all else the defaults. Tensors with a pending reduction, blobs, averages
 * and tensors in boxes are left out (schedule_takes). -EINVAL: all that is wrong with the options;
 * -EMEDIUMTYPE: tensors that src lacks or has in another shape or dtype, all of them; -EOVERFLOW
 * with the tensor at which bytes can no longer be counted; -E2BIG: more than SCHEDULE_ROUNDS_MAX
 * rounds, with the round_bytes that would do, or a share that is too interleaved; -ENOMEM.
 */
int schedule_open(const struct table *src, const struct table *dst,
		  const struct schedule_opts *opts, struct schedule **ret, struct ckpt_err *err);
void schedule_close(struct schedule *s); /* NULL is fine */
const struct schedule_rounds *schedule_rounds(const struct schedule *s);
/* Is the tensor's data exchanged, as far as one of the two declarations says? */
bool schedule_takes(const struct table *t, const struct table_tensor *x, bool is_src);
/* Tensors of dst that have elements and are not, because src does not say which rank has what. */
uint32_t schedule_left_out(const struct schedule *s);

/* A stream, seen from one of its ends. */
struct schedule_lane {
	uint32_t peer;
	enum links_tier tier;
	uint64_t bytes;
};
/* What one rank does. Lanes by peer, never empty; what stays with the rank is self_bytes. */
struct schedule_part {
	uint32_t rank, nout, nin;
	uint64_t out_bytes, in_bytes, self_bytes;
	struct schedule_lane *out, *in;
};
/* Any rank; one that is in neither mesh has nothing to do. -ENOLINK: streams that no transport
 * carries, all of them; -E2BIG: shares too interleaved; -ENOMEM. */
int schedule_part(struct schedule *s, uint32_t rank, struct schedule_part *ret,
		  struct ckpt_err *err);
void schedule_part_free(struct schedule_part *p);

/*
 * What the schedule amounts to, under a model in which a rank has one link per tier, which sends
 * and receives at the same time. A round takes as long as its slowest link: latency, and bytes over
 * bandwidth; and the next one begins when it has ended. No order of the same streams takes less
 * than bound_us: what the busiest link needs alone.
 */
struct schedule_link {
	uint32_t rank;
	enum links_tier tier;
	bool sends;
	uint64_t bytes;
};
struct schedule_round {
	uint64_t bytes; /* that all ranks send */
	double us;
	struct schedule_link slowest;
};
struct schedule_total {
	uint32_t ranks;	 /* that send or receive anything */
	uint64_t rounds; /* those of all ranks: K */
	uint64_t streams, messages;
	uint64_t bytes[LINKS_TIERS]; /* over each tier; LINKS_MEMORY: what stays with its rank */
	uint64_t most_out, most_in;  /* of one rank, to and from others */
	double us, bound_us;
	struct schedule_link busiest;
	struct schedule_round *round; /* [rounds] */
};
/* Asked before each rank's part; != 0 ends it with that result. */
typedef int schedule_tick_fn(void *arg, uint32_t ranks_done);
/* Asks for every rank's part: for drawings and decisions, not before each exchange. links: what
 * prices it. tick: may be NULL. Results as schedule_part's, of all ranks at once. */
int schedule_total(struct schedule *s, const struct links *links, schedule_tick_fn *tick, void *arg,
		   struct schedule_total *ret, struct ckpt_err *err);
void schedule_total_free(struct schedule_total *t);
#endif
