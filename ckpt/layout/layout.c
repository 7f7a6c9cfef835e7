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

static int check_placement(const struct mesh *m, const struct ckpt_placement *p, uint32_t i,
			   uint32_t ndim, struct ckpt_err *err)
{
	if (p->how > CKPT_PARTIAL)
		return ckpt_error(err, -EINVAL,
				  "placement %u: %u is no kind of placement (enum ckpt_how)", i,
				  p->how);
	if (p->mesh_dim >= m->ndim)
		return ckpt_error(err, -EINVAL,
				  "placement %u: it names mesh dimension %u, but the mesh has %u "
				  "(counted from 0)",
				  i, p->mesh_dim, m->ndim);
	if (p->flags != 0 || (p->reduce != 0 && p->how != CKPT_PARTIAL))
		return ckpt_error(err, -EINVAL,
				  "placement %u (mesh dimension \"%s\"): flags, and reduce without "
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
		break;
	}
	return ckpt_error(err, -EOPNOTSUPP,
			  "placement %u (mesh dimension \"%s\"): a pending reduction cannot be "
			  "saved; reduce the tensor before the snapshot",
			  i, m->name[p->mesh_dim]);
}

int layout_check(const struct mesh *m, const struct layout *l, uint32_t ndim, struct ckpt_err *err)
{
	uint32_t seen = 0; /* bit per mesh dimension */

	if (l->mode != 0)
		return ckpt_error(err, -EOPNOTSUPP,
				  "layout mode %u: this version knows mode 0 only (chunk by chunk)",
				  l->mode);
	if (ndim > CKPT_DIMS_MAX)
		return ckpt_error(err, -EINVAL,
				  "the tensor has %u dimensions, at most %d are allowed", ndim,
				  CKPT_DIMS_MAX);
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
	if (is_elsewhere(l, coord))
		return 0;
	for (uint32_t d = 0; d < ndim && e == 0; d++)
		e = indices_range(0, shape[d], a, &dim[d]);
	for (uint32_t i = 0; i < l->nplace && e == 0; i++) {
		const struct ckpt_placement *p = &l->place[i];
		struct indices *x = &dim[p->tensor_dim], cut;

		if (p->how != CKPT_SHARD)
			continue;
		e = indices_cut(x, m->dim[p->mesh_dim], coord[p->mesh_dim], p->split_factor, a,
				&cut);
		if (e == 0)
			*x = cut;
	}
	if (e < 0)
		return e;
	if (numel > 0) { /* else an extent of 0 may stand beside others whose product overflows */
		ret_set->numel = 1;
		for (uint32_t d = 0; d < ndim; d++)
			ret_set->numel *= dim[d].total;
	}
	return 0;
}
