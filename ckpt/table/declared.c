/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declared.c - see declared.h. Called by cover.c and by the planner.
 * Invariant: a declaration is a hint: every piece is held against it, index by index.
 */
#include "ckpt/table/declared.h"

/* A strided cut of what a strided one left goes piece by piece: not for many ranks. */
static bool is_cheap(const struct layout *l)
{
	uint64_t steps = 0;
	uint32_t strided = 0; /* bit per tensor dimension */

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (p->how != CKPT_SHARD || p->split_factor <= 1)
			continue;
		if (strided >> p->tensor_dim & 1)
			steps += p->split_factor;
		strided |= 1u << p->tensor_dim;
	}
	return steps <= DECLARED_STEPS;
}

static bool is_owned(const struct table *t, const struct table_tensor *x,
		     const struct table_piece *p, struct rank_map *ranks)
{
	const struct layout *l = &t->layout[x->layout];
	const struct mesh *m = &t->mesh[l->mesh];
	const struct table_tensor *as = table_owned_as(t, x);
	uint32_t coord[CKPT_DIMS_MAX];
	struct arena a = { 0 };
	struct indexset owned;
	bool same = rank_map_coord(ranks, l->mesh, p->rank, coord) > 0 &&
		    layout_owned(m, l, x->ndim, x->shape, coord, as->elem_bytes, as->component,
				 as->name, &a, &owned) == 0 &&
		    indexset_equal(&owned, &p->set);

	arena_free(&a);
	return same;
}

bool pieces_as_declared(const struct table *t, uint32_t tensor, const struct table_piece *piece,
			uint32_t n, struct rank_map *ranks)
{
	const struct table_tensor *x = &t->tensor[tensor];

	if (x->layout == TABLE_NONE || !is_cheap(&t->layout[x->layout]))
		return false;
	for (uint32_t i = 1; i < n; i++)
		if (piece[i].rank <= piece[i - 1].rank)
			return false;
	if (!ranks->mesh && rank_map_open(t, ranks) < 0)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!is_owned(t, x, &piece[i], ranks))
			return false;
	return true;
}
