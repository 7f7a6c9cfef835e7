/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_shares.c - the shares of all ranks, one list at a time. Called by ckptctl layout.
 * Invariant: what is kept are lists, never ranks; whatever a question asks, time and memory have
 * the bounds of the header.
 */
#include "ckpt/draw/layout_shares.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"

/* What cuts one dimension, as a layout of a tensor that has no other. */
struct part {
	struct layout layout;
	struct ckpt_placement place[CKPT_DIMS_MAX];
};

static void part_of(const struct layout *l, uint32_t dim, struct part *ret)
{
	ret->layout = (struct layout){ .mode = l->mode, .place = ret->place };
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_SHARD && l->place[i].tensor_dim == dim) {
			ret->place[ret->layout.nplace] = l->place[i];
			ret->place[ret->layout.nplace++].tensor_dim = 0;
		}
}

/*
 * At most how many pieces one list takes one by one. A strided cut of a range is one step whatever
 * its factor; of a list, which any strided cut leaves, each piece is.
 */
static uint64_t part_steps(const struct part *p, uint64_t extent)
{
	uint64_t steps = 1;
	bool list = false;

	for (uint32_t i = 0; i < p->layout.nplace; i++) {
		uint32_t f = p->place[i].split_factor;

		if (f > 1 && list)
			steps += MIN((uint64_t)f, extent);
		list |= f > 1;
	}
	return steps;
}

static int make_dim(const struct mesh *m, const struct part *p, uint64_t extent, struct arena *a,
		    struct shares_dim *d, uint64_t *records)
{
	struct shares_list *list = arena_array(a, d->n, sizeof *list);
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };

	if (!list)
		return -ENOMEM;
	d->list = list;
	for (uint32_t i = 0; i < d->n; i++) {
		struct indexset set;
		int rc = layout_share(m, &p->layout, 1, &extent, coord, a, &set);

		if (rc)
			return rc;
		list[i] = (struct shares_list){ set.dim[0], indices_runs(&set.dim[0]) };
		*records += set.dim[0].n;
		if (*records > SHARES_RECORDS_MAX)
			return -EFBIG;
		for (uint32_t j = p->layout.nplace; j-- > 0;) {
			uint32_t k = p->place[j].mesh_dim;

			if (++coord[k] < m->dim[k])
				break;
			coord[k] = 0;
		}
	}
	return 0;
}

static int too_big(int rc, uint32_t dim, struct ckpt_err *err)
{
	if (rc == -EFBIG)
		return ckpt_error(err, -E2BIG,
				  "its ranks have more than %u progressions together; ask for "
				  "smaller split factors or fewer ranks",
				  SHARES_RECORDS_MAX);
	if (rc == -E2BIG)
		return ckpt_error(
			err, rc,
			"dimension %u: a rank has more than %u progressions there, or they "
			"take more than %u steps to find",
			dim, LAYOUT_RUNS_MAX, LAYOUT_STEPS_MAX);
	return ckpt_error(err, rc, "%s", rc == -ENOMEM ? "out of memory" : strerror(-rc));
}

int shares_make(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape,
		struct arena *a, struct shares *ret, struct ckpt_err *err)
{
	uint64_t records = 0, steps = 0;
	int rc;

	*ret = (struct shares){ .mesh = m, .layout = l, .ndim = ndim };
	rc = shape_numel(ndim, shape, &ret->numel);
	if (rc)
		return ckpt_error(err, rc, "the shape has more than 2^63-1 elements");
	for (uint32_t d = 0; d < ndim; d++) {
		struct shares_dim *x = &ret->dim[d];
		struct part p;

		part_of(l, d, &p);
		x->n = 1;
		for (uint32_t j = p.layout.nplace; j-- > 0;) {
			x->step[p.place[j].mesh_dim] = x->n;
			x->n *= m->dim[p.place[j].mesh_dim];
		}
		steps += part_steps(&p, shape[d]) * x->n; /* at most 2^20 of 15 * 2^32 */
		if (steps > SHARES_STEPS_MAX)
			return ckpt_error(err, -E2BIG,
					  "split factor upon split factor on %u ranks: that takes "
					  "more than %u steps; ask for smaller ones or fewer ranks",
					  x->n, SHARES_STEPS_MAX);
		rc = make_dim(m, &p, shape[d], a, x, &records);
		if (rc)
			return too_big(rc, d, err);
	}
	return 0;
}

uint64_t shares_at(const struct shares *s, const uint32_t *coord,
		   const struct shares_list **ret_dim)
{
	static const struct shares_list empty;
	uint64_t numel = s->numel > 0;

	for (uint32_t i = 0; i < s->layout->nplace; i++) {
		const struct ckpt_placement *p = &s->layout->place[i];

		if (p->how == CKPT_ONLY && coord[p->mesh_dim] != p->split_factor) {
			for (uint32_t d = 0; d < s->ndim; d++)
				ret_dim[d] = &empty;
			return 0;
		}
	}
	for (uint32_t d = 0; d < s->ndim; d++) {
		uint32_t at = 0;

		for (uint32_t k = 0; k < s->mesh->ndim; k++)
			at += coord[k] * s->dim[d].step[k];
		ret_dim[d] = &s->dim[d].list[at];
		if (numel) /* else an extent of 0 may stand beside some that overflow */
			numel *= ret_dim[d]->x.total;
	}
	return numel;
}

static uint64_t add_up(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return ckpt_add(a, b, &sum) ? UINT64_MAX : sum;
}

void shares_count(const struct shares *s, struct shares_totals *ret)
{
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	const struct shares_list *dim[CKPT_DIMS_MAX];

	*ret = (struct shares_totals){ .least = UINT64_MAX };
	for (uint32_t i = 0; i < s->mesh->nrank; i++) {
		uint64_t n = shares_at(s, coord, dim);

		ret->held = add_up(ret->held, n);
		ret->least = MIN(ret->least, n);
		ret->most = MAX(ret->most, n);
		ret->empty += !n;
		for (uint32_t d = 0; d < s->ndim; d++) {
			ret->progressions = add_up(ret->progressions, dim[d]->x.n);
			ret->runs = add_up(ret->runs, dim[d]->runs);
		}
		for (uint32_t d = s->mesh->ndim; d-- > 0 && ++coord[d] == s->mesh->dim[d];)
			coord[d] = 0;
	}
}
