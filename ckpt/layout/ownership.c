/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ownership.c - ownership rule v1 of layout.h: of the replicas of a share, which one writes what.
 * Called wherever parts are written or their regularity is checked. The rule is on disk in effect
 * (readers locate pieces by it), so its results never change.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

typedef unsigned __int128 u128;

static uint64_t fnv1a(uint64_t h, const void *p, size_t bytes)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ b[i]) * UINT64_C(0x00000100000001b3);
	return h;
}

uint64_t layout_owner_hash(const char *component, const char *name, uint64_t first)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	le64 f = le64_of(first);

	component = component ? component : "";
	h = fnv1a(h, component, strlen(component) + 1);
	h = fnv1a(h, name, strlen(name) + 1);
	h = fnv1a(h, f.b, sizeof f.b);
	h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
	h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return h ^ h >> 33;
}

/* The replicas of a share and which of them the coordinate is. */
static void count_replicas(const struct mesh *m, const struct layout *l, const uint32_t *coord,
			   uint32_t *ret_n, uint32_t *ret_i)
{
	uint32_t apart = 0; /* bit per mesh dimension whose coordinates hold different elements */

	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how != CKPT_REPLICATE)
			apart |= 1u << l->place[i].mesh_dim;
	*ret_n = 1;
	*ret_i = 0;
	for (uint32_t d = 0; d < m->ndim; d++) {
		if (apart >> d & 1)
			continue;
		*ret_n *= m->dim[d];
		*ret_i = *ret_i * m->dim[d] + coord[d];
	}
}

static uint64_t first_index(const struct indexset *x, const uint64_t *shape)
{
	uint64_t at = 0;

	for (uint32_t d = 0; d < x->ndim; d++)
		at = at * shape[d] + x->dim[d].run[0].start;
	return at;
}

/* The dimension along which R replicas cut a large share; ndim for none. */
static uint32_t cut_dim(const struct indexset *x, uint32_t replicas, uint32_t elem_bytes)
{
	uint32_t d = 0;

	if ((u128)x->numel * elem_bytes < replicas * MIB)
		return x->ndim;
	while (d < x->ndim && x->dim[d].total < replicas)
		d++;
	return d;
}

/* From a share to what replica r->i of r->n owns of it, if a name does not decide. dim is that of
 * the share, to be changed. */
static int replica_cut(struct layout_replica *r, uint32_t elem_bytes, struct arena *a,
		       struct indices *dim, struct indexset *share)
{
	uint32_t d, n = r->n, i = r->i;
	uint64_t w, x;
	struct indices mine;
	int e;

	r->named = false;
	if (share->numel == 0 || n == 1)
		return 0;
	d = cut_dim(share, n, elem_bytes);
	r->named = d == share->ndim;
	if (r->named)
		return 0;
	w = dim[d].total / n;
	x = dim[d].total % n;
	e = indices_slice(&dim[d], i * w + MIN(i, x), (i + 1) * w + MIN(i + 1, x), a, &mine);
	if (e < 0)
		return e;
	share->numel = share->numel / dim[d].total * mine.total;
	dim[d] = mine;
	return 0;
}

bool layout_replica_owns(const struct layout_replica *r, const struct indexset *set,
			 const uint64_t *shape, const char *component, const char *name)
{
	return !r->named ||
	       layout_owner_hash(component, name, first_index(set, shape)) % r->n == r->i;
}

/* The same with the name. */
static int replica_owns(struct layout_replica *r, const uint64_t *shape, uint32_t elem_bytes,
			const char *component, const char *name, struct arena *a,
			struct indices *dim, struct indexset *share)
{
	int e = replica_cut(r, elem_bytes, a, dim, share);

	if (e < 0)
		return e;
	if (share->numel == 0 || !layout_replica_owns(r, share, shape, component, name)) {
		share->numel = 0;
		memset(dim, 0, share->ndim * sizeof *dim);
	}
	return 0;
}

int layout_owned_unnamed(const struct mesh *m, const struct layout *l, uint32_t ndim,
			 const uint64_t *shape, const uint32_t *coord, uint32_t elem_bytes,
			 struct arena *a, struct indexset *ret_set, struct layout_replica *ret)
{
	int e = layout_share(m, l, ndim, shape, coord, a, ret_set);

	if (e < 0)
		return e;
	count_replicas(m, l, coord, &ret->n, &ret->i);
	return replica_cut(ret, elem_bytes, a,
			   (struct indices *)ret_set->dim, /* made by layout_share just now */
			   ret_set);
}

int layout_owned(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape,
		 const uint32_t *coord, uint32_t elem_bytes, const char *component,
		 const char *name, struct arena *a, struct indexset *ret_set)
{
	struct layout_replica r;
	int e = layout_share(m, l, ndim, shape, coord, a, ret_set);

	if (e < 0)
		return e;
	count_replicas(m, l, coord, &r.n, &r.i);
	return replica_owns(&r, shape, elem_bytes, component, name, a,
			    (struct indices *)ret_set->dim, /* made by layout_share just now */
			    ret_set);
}

int layout_owned_box(const struct mesh *m, const struct indexset *box, const uint64_t *shape,
		     const uint32_t *coord, uint32_t elem_bytes, const char *component,
		     const char *name, struct arena *a, struct indexset *ret_set)
{
	static const struct layout replicate;
	struct indices *dim = arena_array(a, MAX(box->ndim, 1u), sizeof *dim);
	struct layout_replica r;

	if (!dim)
		return -ENOMEM;
	for (uint32_t d = 0; d < box->ndim; d++)
		dim[d] = box->dim[d];
	*ret_set = (struct indexset){ .ndim = box->ndim, .numel = box->numel, .dim = dim };
	count_replicas(m, &replicate, coord, &r.n, &r.i);
	return replica_owns(&r, shape, elem_bytes, component, name, a, dim, ret_set);
}
