/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_state.h - states of a redistribution (redistribute.h) and the step from one to the next.
 * For the planners.
 *
 * The canonical form of a state has one placement for each mesh dimension: first those that cut, by
 * tensor dimension and in the order in which they cut it; behind them the others, in the order of
 * the mesh. Two states are equal if their canonical forms are.
 */
#ifndef CKPT_REDIST_REDIST_STATE_H
#define CKPT_REDIST_REDIST_STATE_H
#include "ckpt/redist/redistribute.h"

struct redist_state {
	struct ckpt_placement place[CKPT_DIMS_MAX]; /* [mesh.ndim], canonical */
};

void redist_state_of(const struct mesh *m, const struct layout *l, struct redist_state *ret);
bool redist_state_equal(const struct mesh *m, const struct redist_state *x,
			const struct redist_state *y);
/* The placement of a mesh dimension. */
const struct ckpt_placement *redist_state_at(const struct mesh *m, const struct redist_state *s,
					     uint32_t mesh_dim);
/* The placement `to` takes the place of that of its mesh dimension; if it cuts, it is the last
 * cut. */
void redist_state_change(const struct mesh *m, struct redist_state *s,
			 const struct ckpt_placement *to);

static inline bool redist_is_shard(const struct ckpt_placement *p)
{
	return p->how == CKPT_SHARD;
}
static inline bool redist_is_strided(const struct ckpt_placement *p)
{
	return p->how == CKPT_SHARD && p->split_factor;
}
enum redist_op redist_op_of(const struct ckpt_placement *from, const struct ckpt_placement *to);

/* A step at the end of `to`, from state *s, which becomes the state behind it, priced by the model.
 * The errors of redist_model.price, -ENOMEM. */
int redist_steps_add(struct redist_steps *to, const struct redist_problem *p,
		     const struct redist_model *m, struct redist_state *s,
		     const struct ckpt_placement *change, struct arena *a, struct ckpt_err *err);

/* REDIST_GREEDY, REDIST_GRAPH, REDIST_DIRECT, or the one that is named: redist_check has passed. */
int redist_greedy(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		  struct redist_steps *ret, struct ckpt_err *err);
int redist_search(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		  struct redist_steps *ret, struct ckpt_err *err);
int redist_direct(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		  struct redist_steps *ret, struct ckpt_err *err);
int redist_plan_by(const struct redist_problem *p, enum redist_planner planner,
		   const struct redist_model *m, struct arena *a, struct redist_steps *ret,
		   struct ckpt_err *err);
#endif
