/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_order.c - the order in which mesh dimensions cut a tensor dimension, and torch's split
 * factors that say the same. Called for what torch prints, for CKPT_TORCH_ORDER, and where a layout
 * goes to another mesh.
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

/* The numbers of placements that cut one tensor dimension, the first applied first. */
struct order {
	uint32_t n;
	uint8_t place[CKPT_DIMS_MAX];
};

/* Placement i goes behind as many of those that are there as make up its factor. *ret_inside: a bit
 * for each of these. False: none do. */
static bool order_insert(const struct mesh *m, const struct ckpt_placement *place, uint32_t i,
			 struct order *o, uint32_t *ret_inside)
{
	uint64_t product = 1, factor = MAX(place[i].split_factor, 1u);
	uint32_t at = 0;

	*ret_inside = 0;
	for (; at < o->n && product < factor; at++) {
		*ret_inside |= 1u << o->place[at];
		product *= m->dim[place[o->place[at]].mesh_dim];
	}
	if (product != factor)
		return false;
	memmove(&o->place[at + 1], &o->place[at], o->n - at);
	o->place[at] = (uint8_t)i;
	o->n++;
	return true;
}

void layout_inside(const struct mesh *m, const struct layout *l, uint32_t *ret_inside)
{
	struct order order[CKPT_DIMS_MAX] = { 0 }; /* of each tensor dimension */
	uint32_t undecided = 0;			   /* bit per tensor dimension: no order */

	for (uint32_t i = l->nplace; i-- > 0;) {
		uint32_t d = l->place[i].tensor_dim;

		ret_inside[i] = 0;
		if (l->place[i].how == CKPT_SHARD &&
		    !order_insert(m, l->place, i, &order[d], &ret_inside[i]))
			undecided |= 1u << d;
	}
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how != CKPT_SHARD || undecided >> l->place[i].tensor_dim & 1)
			ret_inside[i] = 0;
}

int layout_order_of(const struct mesh *m, const struct ckpt_placement *place,
		    struct ckpt_placement *ret_place, struct ckpt_err *err)
{
	struct order order[CKPT_DIMS_MAX] = { 0 }; /* of each tensor dimension */
	uint32_t n = 0, inside;

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
		    !order_insert(m, place, i, &order[p->tensor_dim], &inside))
			return ckpt_error(
				err, -EINVAL,
				"placement %u (mesh dimension \"%s\"): its split factor %u is not the "
				"product of the sizes of mesh dimensions behind it that cut tensor "
				"dimension %u: it says no order; read it literally",
				i, m->name[i], MAX(p->split_factor, 1u), p->tensor_dim);
	}
	for (uint32_t d = 0; d < CKPT_DIMS_MAX; d++)
		for (uint32_t i = 0; i < order[d].n; i++) {
			ret_place[n] = place[order[d].place[i]];
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
