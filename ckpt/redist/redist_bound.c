/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_bound.c - see redist_own.h: what a step costs at least by our own model, whatever the
 * state before it. Called by redist_search.c.
 * Invariant: no step that the search takes is cheaper than its bound.
 *
 * Of shares that are not strided, the group of coordinate 0 has the most elements: no fewer than
 * the average of all groups, and as many as its lists allow. What it costs is a bound.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/redist/redist_own.h"
#include <math.h>

/* The fastest ring of a mesh dimension: of its first group, or of all. */
static struct links_cost ring_fastest(const struct redist_bound *b, uint32_t mesh_dim)
{
	const struct mesh *m = b->p->mesh;
	struct links_cost fast = { INFINITY, 0 };
	uint32_t coord[CKPT_DIMS_MAX];

	for (uint32_t place = 0; place < (b->strided ? m->nrank : 1); place++) {
		struct links_cost c;

		mesh_place_coord(m, place, coord);
		if (coord[mesh_dim])
			continue;
		c = redist_ring_link(b->l, m, mesh_dim, place, NULL);
		fast.latency_us = MIN(fast.latency_us, c.latency_us);
		fast.bytes_per_us = MAX(fast.bytes_per_us, c.bytes_per_us);
	}
	return fast;
}

int redist_bound_of(const struct redist_problem *p, const struct links *l, struct redist_bound *ret)
{
	*ret = (struct redist_bound){
		.p = p, .l = l, .strided = redist_has_strided(p->src) || redist_has_strided(p->dst)
	};
	int rc = shape_numel(p->ndim, p->shape, &ret->numel);

	for (uint32_t d = 0; d < p->ndim; d++)
		for (uint32_t i = 0; i < d; i++)
			ret->like[d] += p->shape[i] == p->shape[d];
	for (uint32_t d = 0; d < p->mesh->ndim && !rc; d++)
		ret->ring[d] = ring_fastest(ret, d);
	return rc;
}

static uint64_t ranks_of(const struct mesh *m, uint32_t dims)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < m->ndim; d++)
		n *= dims >> d & 1 ? m->dim[d] : 1;
	return n;
}

/* A list of n indices, cut over a mesh dimension: the part of it that member 0 has; what it costs
 * member 0 to exchange with all others what they have of it: the messages, and each byte that all
 * of the list would have. */
struct shares {
	double part, latency_us, byte_us;
};

static struct shares shares_of(const struct redist_bound *b, uint32_t mesh_dim, uint64_t n)
{
	const struct mesh *m = b->p->mesh;
	uint64_t chunk = div_up(n, m->dim[mesh_dim]);
	struct shares ret = { .part = (double)chunk / (double)n };
	size_t stride = 1;

	for (uint32_t d = m->ndim; d-- > mesh_dim + 1;)
		stride *= m->dim[d];
	for (uint64_t i = 1, at = chunk; at < n; i++, at += chunk) {
		const struct links_cost *c =
			&b->l->tier[links_between(b->l, m->rank[0], m->rank[i * stride])];

		ret.latency_us += c->latency_us;
		ret.byte_us += (double)MIN(chunk, n - at) / (double)n / c->bytes_per_us;
	}
	return ret;
}

/* The lists that a side may have: for each tensor dimension, already cut by some of the mesh
 * dimensions `cut`. */
struct lists {
	uint32_t n;
	struct {
		uint32_t dim, cut;
		struct shares of;
	} list[REDIST_BOUND_LISTS];
};

static void lists_of(const struct redist_bound *b, uint32_t mesh_dim, uint32_t cut,
		     const struct redist_side *side, struct lists *ret)
{
	ret->n = 0;
	for (uint32_t d = 0; d < b->p->ndim; d++) {
		if (side->dim_known ? d != side->dim : b->like[d] > 1)
			continue;
		for (uint32_t x = 0; x <= cut; x++)
			if ((x & cut) == x && (!side->cut_known || x == side->cut) &&
			    (!x || !MUTANT(REDIST_BOUND_UNCUT))) {
				ret->list[ret->n].dim = d;
				ret->list[ret->n].cut = x;
				ret->list[ret->n++].of =
					shares_of(b, mesh_dim,
						  div_up(b->p->shape[d], ranks_of(b->p->mesh, x)));
			}
	}
}

/* A mesh dimension cuts another tensor dimension than before. Member 0 sends to each other member
 * what it has and that one takes, and receives what it takes itself. No mesh dimension cuts
 * both. */
static double transpose_us(const struct redist_bound *b, uint32_t mesh_dim, uint32_t cut,
			   double bytes, const struct redist_side *from,
			   const struct redist_side *to)
{
	struct lists gives, takes;
	double least = INFINITY;

	lists_of(b, mesh_dim, cut, from, &gives);
	lists_of(b, mesh_dim, cut, to, &takes);
	for (uint32_t i = 0; i < gives.n; i++)
		for (uint32_t k = 0; k < takes.n; k++) {
			const struct shares *g = &gives.list[i].of, *t = &takes.list[k].of;
			double out = t->latency_us + bytes * g->part * t->byte_us;
			double in = g->latency_us + bytes * t->part * g->byte_us;

			if (gives.list[i].dim == takes.list[k].dim ||
			    (gives.list[i].cut & takes.list[k].cut))
				continue;
			out = MAX(out, in);
			least = MIN(least, out);
		}
	return least;
}

double redist_bound_us(const struct redist_bound *b, enum redist_op op, uint32_t mesh_dim,
		       uint32_t before, uint32_t after, const struct redist_side *from,
		       const struct redist_side *to)
{
	const struct mesh *m = b->p->mesh;
	uint32_t g = m->dim[mesh_dim], cut = before & ~(1u << mesh_dim);
	uint64_t group = div_up(b->numel, ranks_of(m, cut));
	double write, us = 0, times = op == REDIST_ALL_REDUCE ? 2 : 1;

	if (g == 1 || !b->numel)
		return 0;
	write = links_us(b->l, LINKS_MEMORY,
			 (double)div_up(b->numel, ranks_of(m, after)) * b->p->elem_bytes);
	if (op == REDIST_ALL_TO_ALL && !b->strided)
		us = transpose_us(b, mesh_dim, cut, (double)group * b->p->elem_bytes, from, to);
	else if (op != REDIST_LOCAL && op != REDIST_ALL_TO_ALL)
		us = times * ((g - 1) * b->ring[mesh_dim].latency_us +
			      (double)(group - (MUTANT(REDIST_BOUND_OWN) ? 0 : group / g)) *
				      b->p->elem_bytes / b->ring[mesh_dim].bytes_per_us);
	return MAX(us, write);
}
