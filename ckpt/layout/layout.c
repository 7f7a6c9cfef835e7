/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - from a declared layout to the indices that a coordinate holds. Called by the client
 * and the daemon for declarations, and by planners for checkpoints. Per tensor dimension a
 * placement cuts what the ones before it left; dimensions do not know of each other.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

static int check_shard(const struct mesh *m, const struct ckpt_placement *p, uint32_t i,
		       uint32_t ndim, struct ckpt_err *err)
{
	if (p->tensor_dim < ndim)
		return 0;
	if (ndim == 0)
		return ckpt_error(err, -EINVAL,
				  "placement %u (mesh dimension \"%s\"): a tensor without "
				  "dimensions cannot be cut; replicate it, or use CKPT_ONLY",
				  i, m->name[p->mesh_dim]);
	return ckpt_error(err, -EINVAL,
			  "placement %u (mesh dimension \"%s\"): it cuts tensor dimension %u, but "
			  "the tensor has dimensions 0 to %u",
			  i, m->name[p->mesh_dim], p->tensor_dim, ndim - 1);
}

static int check_only(const struct mesh *m, const struct ckpt_placement *p, uint32_t i,
		      struct ckpt_err *err)
{
	if (p->split_factor < m->dim[p->mesh_dim])
		return 0;
	return ckpt_error(
		err, -EINVAL,
		"placement %u (mesh dimension \"%s\"): CKPT_ONLY names coordinate %u, but "
		"the coordinates go from 0 to %u",
		i, m->name[p->mesh_dim], p->split_factor, m->dim[p->mesh_dim] - 1);
}

static int check_partial(const struct mesh *m, const struct ckpt_placement *p, uint32_t i,
			 struct ckpt_err *err)
{
	if (p->reduce > CKPT_PRODUCT)
		return ckpt_error(
			err, -EINVAL,
			"placement %u (mesh dimension \"%s\"): %u is not a reduction (enum "
			"ckpt_reduce)",
			i, m->name[p->mesh_dim], p->reduce);
	if (p->flags & ~CKPT_KEEP_PARTIAL)
		return ckpt_error(err, -EINVAL,
				  "placement %u (mesh dimension \"%s\"): its flags must be 0 or "
				  "CKPT_KEEP_PARTIAL",
				  i, m->name[p->mesh_dim]);
	return 0;
}

static int check_placement(const struct mesh *m, const struct ckpt_placement *p, uint32_t i,
			   uint32_t ndim, struct ckpt_err *err)
{
	if (p->how > CKPT_PARTIAL)
		return ckpt_error(err, -EINVAL,
				  "placement %u: %u is not a kind of placement (enum ckpt_how)", i,
				  p->how);
	if (p->mesh_dim >= m->ndim)
		return ckpt_error(err, -EINVAL,
				  "placement %u: it names mesh dimension %u, but the mesh has %u "
				  "(counted from 0)",
				  i, p->mesh_dim, m->ndim);
	if ((p->flags != 0 || p->reduce != 0) && p->how != CKPT_PARTIAL)
		return ckpt_error(err, -EINVAL,
				  "placement %u (mesh dimension \"%s\"): flags and reduce, without "
				  "CKPT_PARTIAL, must be 0",
				  i, m->name[p->mesh_dim]);
	switch ((enum ckpt_how)p->how) {
	case CKPT_REPLICATE:
		return 0;
	case CKPT_SHARD:
		return check_shard(m, p, i, ndim, err);
	case CKPT_ONLY:
		return check_only(m, p, i, err);
	case CKPT_PARTIAL:
		return check_partial(m, p, i, err);
	}
	return 0;
}

/* Operands of one element can be reduced in any order of the mesh dimensions by one operation only;
 * a sum of averages is an average of sums. */
static bool reduce_together(uint32_t x, uint32_t y)
{
	return x == y || (x <= CKPT_AVG && y <= CKPT_AVG);
}

static int check_reductions(const struct mesh *m, const struct layout *l, struct ckpt_err *err)
{
	const struct ckpt_placement *first = NULL;

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (p->how != CKPT_PARTIAL)
			continue;
		if (first && !reduce_together(first->reduce, p->reduce))
			return ckpt_error(
				err, -EINVAL,
				"placement %u (mesh dimension \"%s\"): a pending %s, but one by "
				"%s over \"%s\" comes before it; a tensor has one kind (or sum "
				"and avg): reduce one of them first",
				i, m->name[p->mesh_dim], reduce_name(p->reduce),
				reduce_name(first->reduce), m->name[first->mesh_dim]);
		first = first ? first : p;
	}
	return 0;
}

static int check_mode(const struct mesh *m, const struct layout *l, struct ckpt_err *err)
{
	if (l->mode > CKPT_UNFLATTEN_PAD && l->mode != CKPT_BOXES)
		return ckpt_error(
			err, -EOPNOTSUPP,
			"layout mode %u is none that this version knows here (enum ckpt_mode)",
			l->mode);
	for (uint32_t i = 0; l->mode == CKPT_FLAT && i < l->nplace; i++)
		if (l->place[i].how == CKPT_SHARD && l->place[i].split_factor > 1)
			return ckpt_error(
				err, -EINVAL,
				"placement %u (mesh dimension \"%s\"): split factor %u, but in "
				"mode CKPT_FLAT nothing is strided; give the mesh dimensions in "
				"the order in which they count",
				i, m->name[l->place[i].mesh_dim], l->place[i].split_factor);
	return 0;
}

int layout_check(const struct mesh *m, const struct layout *l, uint32_t ndim, struct ckpt_err *err)
{
	uint32_t seen = 0; /* bit per mesh dimension */

	if (ndim > CKPT_DIMS_MAX)
		return ckpt_error(err, -EINVAL,
				  "the tensor has %u dimensions, at most %d are allowed", ndim,
				  CKPT_DIMS_MAX);
	if (l->mode == CKPT_BOXES && l->nplace)
		return ckpt_error(err, -EINVAL,
				  "mode CKPT_BOXES with %u placements: the boxes say what a rank "
				  "holds, so nplace must be 0",
				  l->nplace);
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];
		int e = check_placement(m, p, i, ndim, err);

		if (e < 0)
			return e;
		if (seen >> p->mesh_dim & 1)
			return ckpt_error(err, -EINVAL,
					  "placement %u: mesh dimension \"%s\" is in an earlier "
					  "placement already; it can do one thing to a tensor",
					  i, m->name[p->mesh_dim]);
		seen |= 1u << p->mesh_dim;
	}
	int e = check_mode(m, l, err);

	return e < 0 ? e : check_reductions(m, l, err);
}

bool layout_is_partial(const struct layout *l)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_PARTIAL)
			return true;
	return false;
}

int layout_check_saved(const struct mesh *m, const struct layout *l, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (p->how == CKPT_PARTIAL && !(p->flags & CKPT_KEEP_PARTIAL))
			return ckpt_error(
				err, -EOPNOTSUPP,
				"placement %u (mesh dimension \"%s\"): a pending reduction (%s) "
				"is not saved; reduce the tensor before the snapshot, or set "
				"CKPT_KEEP_PARTIAL to store what every rank holds and reduce it "
				"when it is loaded",
				i, m->name[p->mesh_dim], reduce_name(p->reduce));
	}
	return 0;
}

static bool is_elsewhere(const struct layout *l, const uint32_t *coord)
{
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (p->how == CKPT_ONLY && coord[p->mesh_dim] != p->split_factor)
			return true;
	}
	return false;
}

/* One cut by all SHARDs of a tensor dimension, whose coordinates are the digits of a number. */
static int cut_flat(const struct mesh *m, const struct layout *l, uint32_t d, const uint32_t *coord,
		    struct arena *a, struct indices *x)
{
	uint32_t k = 1, r = 0;
	struct indices cut;

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		if (p->how != CKPT_SHARD || p->tensor_dim != d)
			continue;
		k *= m->dim[p->mesh_dim];
		r = r * m->dim[p->mesh_dim] + coord[p->mesh_dim];
	}
	if (k == 1)
		return 0;
	int e = indices_cut(x, k, r, 1, a, &cut);

	if (e == 0)
		*x = cut;
	return e;
}

static int cut_one(const struct mesh *m, const struct layout *l, const struct ckpt_placement *p,
		   const uint32_t *coord, struct arena *a, struct indices *x)
{
	struct indices cut;
	int e = (l->mode == CKPT_UNFLATTEN_PAD ? indices_cut_columns : indices_cut)(
		x, m->dim[p->mesh_dim], coord[p->mesh_dim], p->split_factor, a, &cut);

	if (e == 0)
		*x = cut;
	return e;
}

int layout_share(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape,
		 const uint32_t *coord, struct arena *a, struct indexset *ret_set)
{
	uint64_t numel = 0;
	int e = shape_numel(ndim, shape, &numel);
	struct indices *dim = arena_array(a, MAX(ndim, 1u), sizeof *dim);

	if (e == 0 && !dim)
		e = -ENOMEM;
	if (e < 0)
		return e;
	*ret_set = (struct indexset){ .ndim = ndim, .dim = dim };
	if (l->mode == CKPT_BOXES)
		return -EINVAL;
	if (is_elsewhere(l, coord))
		return 0;
	for (uint32_t d = 0; d < ndim && e == 0; d++)
		e = indices_range(0, shape[d], a, &dim[d]);
	for (uint32_t d = 0; d < ndim && e == 0 && l->mode == CKPT_FLAT; d++)
		e = cut_flat(m, l, d, coord, a, &dim[d]);
	for (uint32_t i = 0; i < l->nplace && e == 0 && l->mode != CKPT_FLAT; i++)
		if (l->place[i].how == CKPT_SHARD)
			e = cut_one(m, l, &l->place[i], coord, a, &dim[l->place[i].tensor_dim]);
	if (e < 0)
		return e;
	if (numel > 0) { /* else an extent of 0 may stand beside others whose product overflows */
		ret_set->numel = 1;
		for (uint32_t d = 0; d < ndim; d++)
			ret_set->numel *= dim[d].total;
	}
	return 0;
}
