/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_torch.c - what PyTorch 2.15.0 does by itself: which planner it takes, its greedy pass, and
 * what it believes that a step costs (_redistribute.py and _collective_utils.py there). Called by
 * redistribute.c.
 * Invariant: prices are computed in PyTorch's order of operations, so that equal ones are equal
 * here, too.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/redist/redist_state.h"

/* --- the price of a step --- */

#define TORCH_BASE_US 6.6
#define TORCH_HOST_US 0.6 /* of a hop */
#define TORCH_HOST_GB 87.7
#define TORCH_NETWORK_US 2.7
#define TORCH_NETWORK_FACTOR 0.22
#define TORCH_ALL_TO_ALL_US 1.0 /* besides an all-gather's price */
#define TORCH_GB 1073741824.0

/* A mesh dimension is within a host if all ranks from it to the last dimension are. */
static bool within_host(const struct mesh *m, uint32_t mesh_dim, uint32_t devices_per_host)
{
	uint64_t devices = 1;

	for (uint32_t i = mesh_dim; i < m->ndim; i++)
		devices *= m->dim[i];
	return devices <= devices_per_host;
}

static double ring_us(const struct redist_model *m, const struct redist_problem *p,
		      const struct redist_step *s)
{
	bool host = within_host(p->mesh, s->mesh_dim, m->devices_per_host);
	double n = p->mesh->dim[s->mesh_dim], gb = s->bytes / TORCH_GB;
	double hops = s->op == REDIST_ALL_REDUCE ? 2 * (n - 1) : n - 1;
	double us = TORCH_BASE_US + hops * (host ? TORCH_HOST_US : TORCH_NETWORK_US);
	double rate = host ? TORCH_HOST_GB : TORCH_HOST_GB * TORCH_NETWORK_FACTOR;

	us += gb * hops / n / rate * 1e6;
	return s->op == REDIST_ALL_TO_ALL ? us + TORCH_ALL_TO_ALL_US : us;
}

static int torch_price(const struct redist_model *m, const struct redist_problem *p,
		       struct redist_step *s, struct ckpt_err *err)
{
	double shards = 1, bytes;
	uint64_t numel = 0;
	int rc = shape_numel(p->ndim, p->shape, &numel);

	if (rc)
		return ckpt_error(err, rc, "the shape has too many elements");
	if (s->op == REDIST_EXCHANGE)
		return ckpt_error(err, -EINVAL,
				  "PyTorch has no exchange from point to point, so it has no price "
				  "in PyTorch's model");
	for (uint32_t i = 0; i < s->before.nplace; i++)
		if (redist_is_shard(&s->before.place[i]))
			shards *= p->mesh->dim[s->before.place[i].mesh_dim];
	bytes = (double)numel * p->elem_bytes / shards;
	s->bytes = s->us = 0;
	s->peak_bytes = 0;
	if (s->op == REDIST_LOCAL)
		return 0;
	s->bytes = s->op == REDIST_ALL_GATHER ? bytes * p->mesh->dim[s->mesh_dim] : bytes;
	/* is_shard() is False for _StridedShard: PyTorch gathers it, and prices nothing. */
	if (!redist_is_strided(&s->from))
		s->us = ring_us(m, p, s);
	return 0;
}

struct redist_model redist_torch(uint32_t devices_per_host)
{
	return (struct redist_model){ .price = torch_price,
				      .by_shards = true,
				      .bounded = true,
				      .devices_per_host = devices_per_host };
}

/* --- which planner --- */

/* Does an order differ from that of the mesh, or is a placement strided? */
static bool needs_graph(const struct layout *l)
{
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (redist_is_strided(p))
			return true;
		for (uint32_t j = 0; j < i && redist_is_shard(p); j++)
			if (redist_is_shard(&l->place[j]) &&
			    l->place[j].tensor_dim == p->tensor_dim &&
			    l->place[j].mesh_dim > p->mesh_dim)
				return true;
	}
	return false;
}

enum redist_planner redist_torch_takes(const struct redist_problem *p)
{
	return needs_graph(p->src) || needs_graph(p->dst) ? REDIST_GRAPH : REDIST_GREEDY;
}

/* --- the greedy pass --- */

struct greedy {
	const struct redist_problem *p;
	const struct redist_model *model;
	struct arena *a;
	struct redist_steps *steps;
	struct redist_state state, target;
};

static bool placement_equal(const struct ckpt_placement *x, const struct ckpt_placement *y)
{
	return !memcmp(x, y, sizeof *x);
}

static int greedy_take(struct greedy *g, const struct ckpt_placement *to, struct ckpt_err *err)
{
	if (placement_equal(redist_state_at(g->p->mesh, &g->state, to->mesh_dim), to))
		return 0;
	return redist_steps_add(g->steps, g->p, g->model, &g->state, to, g->a, err);
}

/* The mesh dimensions before this one that cut a tensor dimension: a bit for each. */
static uint32_t cut_before(const struct redist_state *s, const struct mesh *m, uint32_t mesh_dim,
			   uint32_t tensor_dim)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; i < m->ndim; i++) {
		const struct ckpt_placement *p = &s->place[i];

		if (redist_is_shard(p) && p->tensor_dim == tensor_dim && p->mesh_dim < mesh_dim)
			bits |= 1u << p->mesh_dim;
	}
	return bits;
}

static uint64_t count_shards(const struct mesh *m, const struct redist_state *s)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < m->ndim; i++)
		if (redist_is_shard(&s->place[i]))
			n *= m->dim[s->place[i].mesh_dim];
	return n;
}

/* From the last mesh dimension to the first: what will be cut where other cuts than the target's
 * come before is gathered first. */
static int greedy_back(struct greedy *g, struct ckpt_err *err)
{
	const struct mesh *m = g->p->mesh;
	int rc = 0;

	for (uint32_t i = m->ndim; i-- > 0 && !rc;) {
		struct ckpt_placement to = *redist_state_at(m, &g->target, i);

		if (redist_is_shard(&to) && !MUTANT(REDIST_NESTED) &&
		    cut_before(&g->state, m, i, to.tensor_dim) !=
			    cut_before(&g->target, m, i, to.tensor_dim))
			to = (struct ckpt_placement){ .mesh_dim = (uint16_t)i };
		rc = greedy_take(g, &to, err);
	}
	return rc;
}

int redist_greedy(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		  struct redist_steps *ret, struct ckpt_err *err)
{
	struct greedy g = { .p = p, .model = m, .a = a, .steps = ret };
	int rc = 0;

	if (redist_torch_takes(p) != REDIST_GREEDY)
		return ckpt_error(err, -EINVAL,
				  "PyTorch's greedy pass takes no strided placement, and no order "
				  "but that of the mesh; the graph planner does");
	redist_state_of(p->mesh, p->src, &g.state);
	redist_state_of(p->mesh, p->dst, &g.target);
	ret->step = arena_array(a, 2 * p->mesh->ndim + 1, sizeof *ret->step);
	if (!ret->step)
		return ckpt_error(err, -ENOMEM, "out of memory for the steps of a redistribution");
	if (p->mesh->ndim > 1 && count_shards(p->mesh, &g.state) > 1)
		rc = greedy_back(&g, err);
	for (uint32_t i = 0; i < p->mesh->ndim && !rc; i++)
		rc = greedy_take(&g, redist_state_at(p->mesh, &g.target, i), err);
	return rc;
}
