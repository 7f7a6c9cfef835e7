/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_kinds.h - random meshes and layouts of every kind and mode, for the tests of the
 * planner that works by arithmetic. Small enough to ask every coordinate.
 */
#ifndef CKPT_TEST_PLAN_KINDS_H
#define CKPT_TEST_PLAN_KINDS_H
#include "tests/unit/test_layout_naive.h"
#include "ckpt/plan/holders.h"
#include "ckpt/table/table.h"

#define RANKS_MAX 256

struct random_kind {
	uint64_t shape[4];
	uint32_t dim[4], rank[RANKS_MAX];
	struct ckpt_placement place[4];
	struct mesh mesh;
	struct layout layout;
	struct holders_kind kind;
};

static inline void shuffle(uint32_t *v, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = naive_below(i), x = v[j];

		v[j] = v[i - 1];
		v[i - 1] = x;
	}
}

static inline void random_mesh(struct random_kind *c)
{
	static const char *const name[] = { "pp", "dp", "fsdp", "tp" };

	c->mesh = (struct mesh){ naive_below(5), name, c->dim, 1, c->rank };
	for (uint32_t d = 0; d < c->mesh.ndim; d++) {
		c->dim[d] = 1 + naive_below(naive_below(4) ? 3 : 4);
		c->mesh.nrank *= c->dim[d];
	}
	uint32_t at = naive_below(3);

	for (uint32_t i = 0; i < c->mesh.nrank; i++, at += 1 + naive_below(2))
		c->rank[i] = at;
	if (naive_below(2))
		shuffle(c->rank, c->mesh.nrank);
}

static inline void random_place(struct random_kind *c, uint32_t mesh_dim, uint32_t ndim)
{
	struct ckpt_placement p = { .mesh_dim = (uint16_t)mesh_dim };
	uint32_t t = naive_below(20);

	if (t < 13 && ndim > 0) {
		p.how = CKPT_SHARD;
		p.tensor_dim = (uint16_t)naive_below(ndim);
		if (c->layout.mode != CKPT_FLAT && naive_below(2))
			p.split_factor = naive_below(6);
	} else if (t < 15) {
		p.how = CKPT_ONLY;
		p.split_factor = naive_below(c->dim[mesh_dim]);
	} else if (t == 15) {
		p.how = CKPT_PARTIAL;
		p.flags = CKPT_KEEP_PARTIAL;
	} else if (t < 18) {
		return; /* replicates, unsaid */
	}
	c->place[c->layout.nplace++] = p;
}

/* On the mesh of c, into a table of declarations. partials: it may have pending reductions. */
static inline uint32_t random_layout(struct table *t, struct random_kind *c, uint32_t ndim,
				     bool partials)
{
	uint32_t order[4] = { 0, 1, 2, 3 }, id;
	struct ckpt_err err = { 0 };

	c->layout = (struct layout){ .mode = naive_below(3), .place = c->place };
	shuffle(order, c->mesh.ndim);
	for (uint32_t i = 0; i < c->mesh.ndim; i++) {
		random_place(c, order[i], ndim);
		if (!partials && c->layout.nplace &&
		    c->place[c->layout.nplace - 1].how == CKPT_PARTIAL)
			c->layout.nplace--;
	}
	if (table_add_layout(t, &c->layout, &id, &err))
		fail_msg("%s", err.msg);
	return id;
}

static inline void coord_of(const struct mesh *m, uint32_t place, uint32_t *ret)
{
	for (uint32_t d = m->ndim; d-- > 0; place /= m->dim[d])
		ret[d] = place % m->dim[d];
}
#endif
