/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redistribute.h - from one layout of a tensor to another one on the same mesh: by which
 * collectives, in which order, at which price.
 *
 * A *state* is what PyTorch calls (placements, shard order): for each mesh dimension a placement,
 * and for each tensor dimension the order in which mesh dimensions cut it. It is a struct layout
 * with CKPT_CHUNK: placements in order of application, strided factors literal. A split factor of 0
 * is Shard, one of 1 or more _StridedShard, as PyTorch tells them apart. A *step* changes the
 * placement of one mesh dimension by one collective. Of what cuts a tensor dimension, only the
 * last cut can be undone, and a new cut is the last. Three ways of looking for the cheapest
 * sequence of steps:
 *
 *	REDIST_GREEDY	PyTorch's: one pass over the mesh dimensions from the last to the first that
 *			gathers what is in the way, one back that does the rest. No search.
 *	REDIST_GRAPH	Dijkstra's algorithm over the states. Equal prices: the state found first.
 *	REDIST_DIRECT	one step: each rank sends to each what it needs, point to point; operands of
 *			reductions that end are sent, too. Only our model prices it.
 *
 * and two models of what a step costs: PyTorch's own (redist_torch: shares by division, torch
 * 2.15.0, ../facts: dtensor_layout 3), and ours (redist_links: the bytes that ranks really send,
 * counted by intersecting what they hold, over the links between them: redist_own.h).
 */
#ifndef CKPT_REDIST_REDISTRIBUTE_H
#define CKPT_REDIST_REDISTRIBUTE_H
#include "ckpt/layout/layout.h"
#include "ckpt/plan/links.h"

enum redist_op {
	REDIST_LOCAL, /* nothing is sent: a cut of a replica, zeros around a shard */
	REDIST_ALL_GATHER,
	REDIST_ALL_REDUCE,
	REDIST_REDUCE_SCATTER,
	REDIST_ALL_TO_ALL,
	REDIST_EXCHANGE, /* REDIST_DIRECT's */
};
const char *redist_op_name(enum redist_op op); /* "all_gather", as in PyTorch's vectors */

enum redist_planner { REDIST_GREEDY, REDIST_GRAPH, REDIST_DIRECT };

#define REDIST_STATES_MAX (1u << 20) /* that a search visits, some 100 MiB; more is -E2BIG */
#define REDIST_COUNTED_MAX \
	(1u << 26)		  /* shares and messages that its prices count, half a minute;
				       * more is -E2BIG */
#define REDIST_PLACEMENT_BYTES 24 /* the longest text of a placement, and its 0 */
#define REDIST_STATE_BYTES 448	  /* of a state */

/* Of one tensor. mesh_check, layout_check have passed. src and dst may leave out mesh dimensions,
 * which then replicate. */
struct redist_problem {
	const struct mesh *mesh;
	uint32_t ndim, elem_bytes;
	const uint64_t *shape;
	const struct layout *src, *dst;
	/* Bytes that a rank may hold: what needs more is neither state nor step. 0: no limit. */
	uint64_t mem_limit;
	/* A search asks before each price; true: it ends with -ECANCELED. NULL: it is not ended. */
	bool (*stopped)(void);
};

struct redist_step {
	enum redist_op op;
	uint32_t mesh_dim; /* that changes; REDIST_EXCHANGE: all, and this is 0 */
	struct ckpt_placement from, to;
	/* Whole states: a placement for each mesh dimension; those that cut come first, by tensor
	 * dimension. A Shard that becomes P(sum) may stand beside a reduction of another kind,
	 * which is done first. */
	struct layout before, after;
	double bytes; /* as the model counts them: redist_torch: B; redist_links: the
				      * most that one rank sends */
	double us;
	enum links_tier tier; /* redist_links: on which the slowest rank spends the most time */
	uint64_t peak_bytes; /* that the rank with the most holds during the step; 0: not counted */
};

struct redist_steps {
	uint32_t n;
	struct redist_step *step; /* [n], of the arena */
	double us;		  /* added up */
	/* redist_links: the largest of all steps; without a step what a rank holds at most */
	uint64_t peak_bytes;
	enum redist_planner planner;
	struct layout src; /* the state before all steps */
	bool too_large; /* n is REDIST_NO_ANSWER, for there is too much to count: what it costs is
			    * unknown */
};

/* What a step costs. Fills bytes, us and peak_bytes of a step whose other fields are set. 0;
 * -ENOMEM, -E2BIG, -EOVERFLOW; -ENOSPC: more than mem_limit. */
struct redist_model {
	int (*price)(const struct redist_model *m, const struct redist_problem *p,
		     struct redist_step *step, struct ckpt_err *err);
	/* The price depends on nothing but op, mesh_dim, which mesh dimensions shard before the
	 * step, and whether `from` is strided: a search then asks once for each of these */
	bool by_shards;
	/* The search may leave out what is dearer by a bound of the prices. It finds the same */
	bool bounded;
	uint32_t devices_per_host; /* redist_torch */
	const struct links *links; /* redist_links */
	/* redist_links: what prices of one problem share (redist_own.h), or NULL. redist_plan and
	 * redist_cheapest bring one */
	struct redist_memo *memo;
};
struct redist_model redist_torch(uint32_t devices_per_host);
struct redist_model redist_links(const struct links *l);

/* Which of GREEDY and GRAPH PyTorch takes by itself: GRAPH if an order is not the default one, or a
 * placement is strided. */
enum redist_planner redist_torch_takes(const struct redist_problem *p);

/* Can dst be reached from src? -EINVAL with all that is in the way: Replicate to Partial, one
 * reduction to another, a split factor beyond the size of its dimension, placements that no
 * collective makes. */
int redist_check(const struct redist_problem *p, struct ckpt_err *err);
/*
 * The steps of one planner under one model. The result's memory is the arena's. -EINVAL: as
 * redist_check, or the planner cannot express it; -ENOSPC: nothing fits into mem_limit; -ECANCELED;
 * -ENOMEM, -E2BIG, -EOVERFLOW.
 */
int redist_plan(const struct redist_problem *p, enum redist_planner planner,
		const struct redist_model *m, struct arena *a, struct redist_steps *ret,
		struct ckpt_err *err);
/* The cheapest of the three under m; ties: GRAPH before GREEDY before DIRECT. ret_all (may be
 * NULL): [3] by planner, n == REDIST_NO_ANSWER where that one has none. */
#define REDIST_NO_ANSWER UINT32_MAX
int redist_cheapest(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		    struct redist_steps *ret, struct redist_steps ret_all[3], struct ckpt_err *err);
/*
 * Why the one that redist_cheapest has taken won, and the others lost: a line for each planner,
 * with its steps, its price, by how much that is more, and the step and the link that take most of
 * it. all: redist_cheapest's. Returns buf; what does not fit is cut.
 */
#define REDIST_EXPLAIN_BYTES 16384
char *redist_explain(const struct redist_problem *p, const struct redist_model *m,
		     const struct redist_steps all[3], char *buf, size_t bytes);
const char *redist_planner_name(enum redist_planner planner); /* "greedy", "graph", "direct" */

/* "S(0)", "_S(0, 2)", "R", "P(sum)": one placement in PyTorch's spelling. Returns buf. */
char *redist_placement_print(const struct ckpt_placement *p, char *buf, size_t bytes);
/* "S(0)[0]S(0)[1]R": a state in PyTorch's spelling of traces; "[i]": the place in the shard order,
 * where several mesh dimensions cut one tensor dimension. Returns buf. */
char *redist_state_print(const struct mesh *m, const struct layout *l, char *buf, size_t bytes);
/*
 * And back, in any spelling of placement_read, also with blanks and commas between the placements.
 * Without any "[i]" of a tensor dimension the mesh dimensions cut it in their own order. -EINVAL
 * with the character (from 1), of all that does not fit mesh and tensor.
 */
int redist_state_parse(const char *text, const struct mesh *m, uint32_t ndim, struct arena *a,
		       struct layout *ret, struct ckpt_err *err);
#endif
