/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_own.h - what a step of a redistribution costs by our own model (redist_links): from what
 * each rank holds before and after it (layout_share), counted by intersecting index sets, over the
 * links between the ranks (links.h). For redist_own.c, redist_exchange.c and redist_bound.c.
 *
 * A mesh dimension has groups: the g ranks along it, for each coordinate of the other dimensions.
 * All groups work at the same time; a step lasts as long as the slowest of them, and at least as
 * long as it takes to write the largest share of a rank to its memory (tier MEMORY). In a group, B
 * bytes are what all members hold together of the tensor, x(i) those of member i, L and W the
 * latency and the bandwidth of the slowest link between neighbours; member g-1 and member 0 are
 * neighbours, too.
 *
 *	LOCAL		nothing is sent: the writing alone
 *	ALL_GATHER	ring: (g-1) L + (B - min x) / W, x: shares before. The link behind member i
 *			carries all shares but that of member i+1.
 *	REDUCE_SCATTER	ring: the same with the shares after: each travels, being added to, over all
 *			links but the one behind its owner.
 *	ALL_REDUCE	ring: REDUCE_SCATTER of x(i) = B / g elements, rounded up or down, then
 *			ALL_GATHER of them: twice the above.
 *	ALL_TO_ALL,	direct: each member sends to each other what that one needs of it, one
 *	EXCHANGE	message after another, and receives as many at the same time. A message of
 *			b bytes takes L + b / W of the link between the two. The slowest member
 *			counts. EXCHANGE: the group is the mesh.
 *
 * Source of the formulas, with real shares instead of n/p: Thakur, Rabenseifner, Gropp,
 * Optimization of Collective Communication Operations in MPICH, 2005 (ring allgather, pairwise
 * exchange); Patarasuk, Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations,
 * 2009 (ring).
 *
 * A mesh dimension of size 1 and an empty tensor cost nothing. In a group that holds nothing,
 * nothing is sent.
 *
 * In an exchange a rank takes what it holds from itself. Of several replicas, the one sends that
 * has the receiver's coordinates on the mesh dimensions that replicate, so that replicas share the
 * work. Of a pending reduction that ends, each rank sends its operand to all who need the result,
 * and they add; a reduction that stays (the same before and after) stays on its ranks.
 *
 * Memory: a rank holds its share before and after; where operands are received, it also holds the
 * largest message of the step.
 *
 * Cost of a price: of a collective O(members of a group) where all groups of the mesh dimension are
 * alike and no shard is strided, else O(ranks), .5 us for each at most; of an exchange O(messages),
 * .2 us for each.
 */
#ifndef CKPT_REDIST_REDIST_OWN_H
#define CKPT_REDIST_REDIST_OWN_H
#include "ckpt/base/strmap.h"
#include "ckpt/redist/redistribute.h"

#define REDIST_MESSAGES_MAX (1u << 24) /* of one exchange: three seconds or so; more is -E2BIG */

/* How a state cuts one tensor dimension: the lists of all coordinates that cut it. */
struct redist_axis {
	uint32_t mesh_dim, factor;
	uint32_t stride; /* what one coordinate adds to the number of the list */
};
struct redist_cut {
	uint32_t tensor_dim, n, naxis;
	struct redist_axis axis[CKPT_DIMS_MAX]; /* in order of application */
	struct indices *list;			/* [n] */
};

/* The lists of many states, which differ by few cuts each. Zero-initialised it is empty. One
 * problem, one thread. */
#define REDIST_MEMO_MAX ((size_t)16 << 20) /* bytes; a larger memo is emptied */
struct redist_memo {
	struct arena arena;
	struct keymap map;
	struct redist_cut **cut; /* [map.n] */
	uint32_t cap;
	/* A bit for each mesh dimension: the members of all its groups share hosts and switches in
	 * the same way. */
	uint32_t alike_known, alike;
	uint64_t
		counted; /* shares and messages that prices have looked at, .5 us for each at most */
};
void redist_memo_free(struct redist_memo *m);

/* What the ranks of a mesh hold in one state. */
struct redist_holding {
	const struct redist_problem *p;
	const struct layout *layout;
	uint64_t uncut;				 /* product of the dimensions that have one list */
	uint32_t nlisted, listed[CKPT_DIMS_MAX]; /* the others */
	const struct redist_cut *cut[CKPT_DIMS_MAX]; /* [p->ndim] */
};

/* The layout must live as long as the result, whose lists are the memo's. -ENOMEM, -E2BIG. */
int redist_holding_of(const struct redist_problem *p, const struct layout *l,
		      struct redist_memo *memo, struct redist_holding *ret);
/* Are these the cuts? */
bool redist_cut_is(const struct redist_cut *x, uint32_t tensor_dim, const struct redist_axis *axis,
		   uint32_t naxis);
const struct indices *redist_held(const struct redist_holding *h, uint32_t tensor_dim,
				  const uint32_t *coord);
/* Elements. */
uint64_t redist_held_numel(const struct redist_holding *h, const uint32_t *coord);

/* Bytes of the rank that holds the most in a state, by redist_links. -ENOSPC: more than mem_limit;
 * -EOVERFLOW, -ENOMEM, -E2BIG. */
int redist_state_bytes(const struct redist_model *m, const struct redist_problem *p,
		       const struct layout *l, uint64_t *ret, struct ckpt_err *err);

/* What a step costs besides the time to write its results. */
struct redist_price {
	double us, sent_bytes;	/* of the slowest rank; of the rank that sends the most */
	uint64_t staging_bytes; /* of the rank with the most */
	enum links_tier tier;	/* on which the slowest rank spends the most time */
	uint64_t messages;	/* of an exchange, all together */
};
/* The larger of both, figure by figure; *x gets it. */
void redist_price_most(struct redist_price *x, const struct redist_price *y);
/* What a rank spends on each tier is added up. */
void redist_price_add(struct redist_price *x, const double us[LINKS_TIERS]);

/* The slowest link between neighbours in the group of a mesh dimension that begins at a place: what
 * it costs, and its tier (may be NULL). */
struct links_cost redist_ring_link(const struct links *l, const struct mesh *m, uint32_t mesh_dim,
				   uint32_t place, enum links_tier *ret_tier);

/* Is a shard strided by a factor of more than 1? */
bool redist_has_strided(const struct layout *l);

/* What steps cost at least, over meshes of few dimensions. 7: the tables of a search take 10 MiB,
 * and it takes .1 s where without them it took 10 s and gave up. */
#define REDIST_BOUND_MESH_DIMS 7
#define REDIST_BOUND_LISTS (CKPT_DIMS_MAX << (REDIST_BOUND_MESH_DIMS - 1))
struct redist_bound {
	const struct redist_problem *p;
	const struct links *l;
	bool strided; /* src or dst */
	uint64_t numel;
	struct links_cost ring[CKPT_DIMS_MAX];
	uint32_t like[CKPT_DIMS_MAX]; /* by tensor dimension: those before it of the same size */
};
/* What is known of the tensor dimension that a mesh dimension cuts. */
struct redist_side {
	bool dim_known, cut_known;
	uint32_t dim;
	uint32_t cut; /* bit for each mesh dimension that cuts it before */
};
/* -EOVERFLOW. */
int redist_bound_of(const struct redist_problem *p, const struct links *l,
		    struct redist_bound *ret);
/* Of a step over a mesh dimension; INFINITY if there is none. before, after: a bit for each mesh
 * dimension that shards then. */
double redist_bound_us(const struct redist_bound *b, enum redist_op op, uint32_t mesh_dim,
		       uint32_t before, uint32_t after, const struct redist_side *from,
		       const struct redist_side *to);

/* REDIST_EXCHANGE between two states. -ENOMEM; -E2BIG: too many messages to count, or shares too
 * interleaved; -EINVAL: it would begin a reduction. */
int redist_exchange(const struct redist_problem *p, const struct links *l,
		    const struct redist_holding *before, const struct redist_holding *after,
		    struct arena *a, struct redist_price *ret, struct ckpt_err *err);
#endif
