/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_order.c - the order in which mesh dimensions cut a tensor dimension, and torch's split
 * factors that say the same. Called by those who read what torch prints, and who write it; and by
 * the library, for CKPT_TORCH_ORDER.
 *
 * The rule (torch 2.15): the split factor of a mesh dimension is the product of the sizes of the
 * mesh dimensions that cut the same tensor dimension earlier and stand further right in the mesh.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

static int check_place(const struct mesh *m, const struct ckpt_placement *p, uint32_t at,
		       struct ckpt_err *err)
{
	if (p->mesh_dim >= m->ndim || p->how > CKPT_PARTIAL)
		return ckpt_error(
			err, -EINVAL,
			"placement %u: mesh dimension %u, kind %u: not a placement on this "
			"mesh of %u dimensions",
			at, p->mesh_dim, p->how, m->ndim);
	if (p->how == CKPT_SHARD && p->tensor_dim >= CKPT_DIMS_MAX)
		return ckpt_error(
			err, -EINVAL,
			"placement %u (mesh dimension \"%s\"): it cuts tensor dimension %u; "
			"tensors have at most %d",
			at, m->name[p->mesh_dim], p->tensor_dim, CKPT_DIMS_MAX);
	return 0;
}

/* Mesh dimensions that cut one tensor dimension, the first applied first. */
struct order {
	uint32_t n;
	uint8_t mesh_dim[CKPT_DIMS_MAX];
};

static void order_insert(struct order *o, uint32_t at, uint32_t mesh_dim)
{
	memmove(&o->mesh_dim[at + 1], &o->mesh_dim[at], o->n - at);
	o->mesh_dim[at] = (uint8_t)mesh_dim;
	o->n++;
}

/* Behind as many of those further right as make up its factor. */
static bool order_place(const struct mesh *m, struct order *o, uint32_t mesh_dim, uint32_t factor)
{
	uint64_t product = 1;

	for (uint32_t i = 0; i <= o->n; i++) {
		if (product == MAX(factor, 1u)) {
			order_insert(o, i, mesh_dim);
			return true;
		}
		if (product > factor || i == o->n)
			break;
		product *= m->dim[o->mesh_dim[i]];
	}
	return false;
}

int layout_order_of(const struct mesh *m, const struct ckpt_placement *place,
		    struct ckpt_placement *ret_place, struct ckpt_err *err)
{
	struct order order[CKPT_DIMS_MAX] = { 0 }; /* of each tensor dimension */
	uint32_t n = 0;

	for (uint32_t i = m->ndim; i-- > 0;) {
		const struct ckpt_placement *p = &place[i];
		int e = check_place(m, p, i, err);

		if (e < 0)
			return e;
		if (p->mesh_dim != i)
			return ckpt_error(
				err, -EINVAL,
				"placement %u: it is of mesh dimension \"%s\"; to be read as "
				"an order they must stand in the order of the mesh",
				i, m->name[p->mesh_dim]);
		if (p->how == CKPT_SHARD &&
		    !order_place(m, &order[p->tensor_dim], i, p->split_factor))
			return ckpt_error(
				err, -EINVAL,
				"placement %u (mesh dimension \"%s\"): its split factor %u is not the "
				"product of the sizes of mesh dimensions behind it that cut tensor "
				"dimension %u: it says no order; read it literally",
				i, m->name[i], MAX(p->split_factor, 1u), p->tensor_dim);
	}
	for (uint32_t d = 0; d < CKPT_DIMS_MAX; d++)
		for (uint32_t i = 0; i < order[d].n; i++) {
			ret_place[n] = place[order[d].mesh_dim[i]];
			ret_place[n++].split_factor = 0;
		}
	for (uint32_t i = 0; i < m->ndim; i++)
		if (place[i].how != CKPT_SHARD)
			ret_place[n++] = place[i];
	return 0;
}

int layout_torch_order(const struct mesh *m, const struct ckpt_placement *place, uint32_t n,
		       struct ckpt_placement *ret_place, uint32_t *ret_n, struct ckpt_err *err)
{
	struct ckpt_placement all[CKPT_DIMS_MAX] = { 0 }, order[CKPT_DIMS_MAX];
	int e;

	for (uint32_t i = 0; i < m->ndim; i++)
		all[i].mesh_dim = (uint16_t)i;
	for (uint32_t i = 0; i < n; i++) {
		e = check_place(m, &place[i], i, err);
		if (e < 0)
			return e;
		if (i && place[i].mesh_dim <= place[i - 1].mesh_dim)
			return ckpt_error(
				err, -EINVAL,
				"placement %u (mesh dimension \"%s\"): it stands behind \"%s\"; "
				"torch's placements stand in the order of the mesh, one for each "
				"of its dimensions",
				i, m->name[place[i].mesh_dim], m->name[place[i - 1].mesh_dim]);
		all[place[i].mesh_dim] = place[i];
	}
	e = layout_order_of(m, all, order, err);
	if (e < 0)
		return e;
	*ret_n = 0;
	for (uint32_t i = 0; i < m->ndim; i++)
		if (order[i].how != CKPT_REPLICATE)
			ret_place[(*ret_n)++] = order[i];
	return 0;
}

int layout_strided_of(const struct mesh *m, const struct ckpt_placement *place,
		      struct ckpt_placement *ret_place, struct ckpt_err *err)
{
	uint32_t seen = 0; /* bit per mesh dimension */

	for (uint32_t i = 0; i < m->ndim; i++) {
		const struct ckpt_placement *p = &place[i];
		int e = check_place(m, p, i, err);
		uint64_t factor = 1;

		if (e < 0)
			return e;
		if (seen >> p->mesh_dim & 1)
			return ckpt_error(
				err, -EINVAL,
				"placement %u: mesh dimension \"%s\" is in an earlier one "
				"already",
				i, m->name[p->mesh_dim]);
		seen |= 1u << p->mesh_dim;
		ret_place[p->mesh_dim] = *p;
		if (p->how != CKPT_SHARD)
			continue;
		if (p->split_factor > 1)
			return ckpt_error(
				err, -EINVAL,
				"placement %u (mesh dimension \"%s\"): it is strided by %u "
				"already; only plain ones have an order to write",
				i, m->name[p->mesh_dim], p->split_factor);
		for (uint32_t j = 0; j < i; j++)
			if (place[j].how == CKPT_SHARD && place[j].tensor_dim == p->tensor_dim &&
			    place[j].mesh_dim > p->mesh_dim &&
			    (ckpt_mul(factor, m->dim[place[j].mesh_dim], &factor) < 0 ||
			     factor > UINT32_MAX))
				return ckpt_error(err, -EOVERFLOW,
						  "placement %u (mesh dimension \"%s\"): its split "
						  "factor would be above 2^32-1",
						  i, m->name[p->mesh_dim]);
		ret_place[p->mesh_dim].split_factor = factor > 1 ? (uint32_t)factor : 0;
	}
	return 0;
}
