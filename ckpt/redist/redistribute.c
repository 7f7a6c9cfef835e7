/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redistribute.c - what can be redistributed, and by which planner: redist_torch.c (greedy),
 * redist_search.c (graph), redist_direct.c.
 * Invariant: the steps of an answer lead from src to dst.
 */
#include "ckpt/redist/redistribute.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/redist/redist_own.h"
#include "ckpt/redist/redist_state.h"

/* --- what can be reached --- */

static void check_placements(const struct redist_problem *p, const char *side,
			     const struct layout *l, struct ckpt_errlist *wrong)
{
	if (l->mode != CKPT_CHUNK)
		ckpt_errlist_add(wrong,
				 "%s: a redistribution cuts one placement after the other; no "
				 "other mode has collectives",
				 side);
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *at = &l->place[i];

		if (at->how == CKPT_ONLY)
			ckpt_errlist_add(wrong,
					 "%s, mesh dimension %u: no collective makes Only(%u)",
					 side, at->mesh_dim, at->split_factor);
		if (redist_is_shard(at) &&
		    at->split_factor > MAX(p->shape[at->tensor_dim], UINT64_C(1)))
			ckpt_errlist_add(wrong,
					 "%s, mesh dimension %u: a split factor of %u is beyond "
					 "the size of tensor dimension %u, which is %llu",
					 side, at->mesh_dim, at->split_factor, at->tensor_dim,
					 (unsigned long long)p->shape[at->tensor_dim]);
	}
}

/* A pending reduction stays, is done, or is made by zeros around a Shard. */
static void check_reached(const struct redist_problem *p, struct ckpt_errlist *wrong)
{
	char from[REDIST_PLACEMENT_BYTES], to[REDIST_PLACEMENT_BYTES];
	struct redist_state src, dst;

	redist_state_of(p->mesh, p->src, &src);
	redist_state_of(p->mesh, p->dst, &dst);
	for (uint32_t i = 0; i < p->mesh->ndim; i++) {
		const struct ckpt_placement *s = redist_state_at(p->mesh, &src, i);
		const struct ckpt_placement *d = redist_state_at(p->mesh, &dst, i);

		if (d->how != CKPT_PARTIAL || (s->how == CKPT_PARTIAL && s->reduce == d->reduce) ||
		    (redist_is_shard(s) && !redist_is_strided(s) && d->reduce == CKPT_SUM))
			continue;
		ckpt_errlist_add(wrong,
				 "mesh dimension %u: %s cannot become %s; only Shard becomes a "
				 "pending reduction, and only P(sum)",
				 i, redist_placement_print(s, from, sizeof from),
				 redist_placement_print(d, to, sizeof to));
	}
}

int redist_check(const struct redist_problem *p, struct ckpt_err *err)
{
	struct ckpt_errlist wrong = { .code = -EINVAL };
	int rc;

	check_placements(p, "the source state", p->src, &wrong);
	check_placements(p, "the target state", p->dst, &wrong);
	check_reached(p, &wrong);
	rc = ckpt_errlist_end(&wrong, err, "this redistribution cannot be done");
	ckpt_errlist_free(&wrong);
	return rc;
}

/* --- plans --- */

int redist_plan_by(const struct redist_problem *p, enum redist_planner planner,
		   const struct redist_model *m, struct arena *a, struct redist_steps *ret,
		   struct ckpt_err *err)
{
	struct ckpt_placement *place = arena_array(a, p->mesh->ndim + 1, sizeof *place);
	struct redist_state src;
	int rc = 0;

	*ret = (struct redist_steps){ .planner = planner };
	if (!place)
		return ckpt_error(err, -ENOMEM, "out of memory for the steps of a redistribution");
	redist_state_of(p->mesh, p->src, &src);
	memcpy(place, src.place, p->mesh->ndim * sizeof *place);
	ret->src = (struct layout){ .nplace = p->mesh->ndim, .place = place };
	switch (planner) {
	case REDIST_GREEDY:
		rc = redist_greedy(p, m, a, ret, err);
		break;
	case REDIST_GRAPH:
		rc = redist_search(p, m, a, ret, err);
		break;
	case REDIST_DIRECT:
		rc = redist_direct(p, m, a, ret, err);
		break;
	}
	/* Without a step, no price has looked at what ranks hold. */
	if (!rc && !ret->n && m->links)
		rc = redist_state_bytes(m, p, &ret->src, &ret->peak_bytes, err);
	return rc;
}

int redist_plan(const struct redist_problem *p, enum redist_planner planner,
		const struct redist_model *m, struct arena *a, struct redist_steps *ret,
		struct ckpt_err *err)
{
	struct redist_memo memo = { 0 };
	struct redist_model with = *m;
	int rc = redist_check(p, err);

	with.memo = &memo;
	if (!rc)
		rc = redist_plan_by(p, planner, &with, a, ret, err);
	redist_memo_free(&memo);
	return rc;
}
