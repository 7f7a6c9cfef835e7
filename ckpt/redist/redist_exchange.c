/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_exchange.c - see redist_own.h: what ranks send each other when each takes what it needs
 * from whom has it. Called by redist_own.c.
 * Invariant: of each element that a rank needs and of each operand of it, one rank sends it, or
 * the rank itself has it.
 */
#include "ckpt/redist/redist_own.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/holders.h"

/* Mesh dimensions, and the places that their coordinates make. */
struct axes {
	uint32_t n, count; /* of all coordinates */
	uint32_t dim[CKPT_DIMS_MAX], size[CKPT_DIMS_MAX];
};

struct exchange {
	const struct redist_problem *p;
	const struct links *l;
	const struct redist_holding *after;
	struct ckpt_placement from_place[CKPT_DIMS_MAX];
	struct layout from; /* before, without the reductions that stay */
	struct axes
		differ; /* mesh dimensions whose coordinates have shares of their own afterwards */
	struct axes same;		/* the others */
	struct axes replicas;		/* of `from` */
	double (*sent_us)[LINKS_TIERS]; /* [nrank] by place */
	double *sent_bytes;
	uint64_t messages;
	struct redist_price most;
};

static void axis_add(struct axes *x, uint32_t dim, uint32_t size)
{
	x->dim[x->n] = dim;
	x->size[x->n++] = size;
	x->count *= size;
}

/* The coordinates of number k. */
static void axes_coord(const struct axes *x, uint32_t k, uint32_t *ret_coord)
{
	for (uint32_t i = x->n; i-- > 0; k /= x->size[i])
		ret_coord[x->dim[i]] = k % x->size[i];
}

static uint32_t axes_number(const struct axes *x, const uint32_t *coord)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < x->n; i++)
		k = k * x->size[i] + coord[x->dim[i]];
	return k;
}

static uint32_t place_at(const struct mesh *m, const uint32_t *coord)
{
	uint32_t place = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		place = place * m->dim[d] + coord[d];
	return place;
}

static const struct ckpt_placement *reduction_at(const struct layout *l, uint32_t mesh_dim)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_PARTIAL && l->place[i].mesh_dim == mesh_dim)
			return &l->place[i];
	return NULL;
}

/* A reduction that stays is as good as a replica: a rank takes the operand of its own
 * coordinate. */
static int reductions_stay(struct exchange *x, const struct layout *before, struct ckpt_err *err)
{
	const struct layout *after = x->after->layout;

	x->from = (struct layout){ .mode = CKPT_CHUNK, .place = x->from_place };
	for (uint32_t i = 0; i < before->nplace; i++) {
		const struct ckpt_placement *p = &before->place[i];

		if (p->how == CKPT_PARTIAL && reduction_at(after, p->mesh_dim))
			continue;
		x->from_place[x->from.nplace++] = *p;
	}
	for (uint32_t i = 0; i < after->nplace; i++) {
		const struct ckpt_placement *to = &after->place[i], *was;

		if (to->how != CKPT_PARTIAL)
			continue;
		was = reduction_at(before, to->mesh_dim);
		if (!was || was->reduce != to->reduce)
			return ckpt_error(err, -EINVAL,
					  "an exchange begins no reduction, and changes none: mesh "
					  "dimension %u",
					  to->mesh_dim);
	}
	return 0;
}

static void axes_find(struct exchange *x)
{
	const struct mesh *m = x->p->mesh;
	const struct layout *after = x->after->layout;
	uint32_t from = 0, to = 0; /* bit for each mesh dimension that these name */

	for (uint32_t i = 0; i < x->from.nplace; i++)
		if (x->from.place[i].how != CKPT_REPLICATE)
			from |= 1u << x->from.place[i].mesh_dim;
	for (uint32_t i = 0; i < after->nplace; i++)
		if (after->place[i].how == CKPT_SHARD || after->place[i].how == CKPT_ONLY)
			to |= 1u << after->place[i].mesh_dim;
	x->differ.count = x->same.count = x->replicas.count = 1;
	for (uint32_t d = 0; d < m->ndim; d++) {
		axis_add(to >> d & 1 ? &x->differ : &x->same, d, m->dim[d]);
		if (!(from >> d & 1))
			axis_add(&x->replicas, d, m->dim[d]);
	}
}

/* All messages to one place. */
static int receiver_take(struct exchange *x, const struct holders *h, const uint32_t *coord,
			 struct ckpt_err *err)
{
	const struct mesh *m = x->p->mesh;
	uint32_t place = place_at(m, coord);
	uint32_t turn = MUTANT(EXCHANGE_ONE_REPLICA) ? 0 : axes_number(&x->replicas, coord);
	struct holders_cursor c;
	struct holder from;
	double us[LINKS_TIERS] = { 0 };
	struct redist_price all = { 0 };

	holders_begin(h, &x->from, NULL, "", HOLDERS_ONE, turn, &c);
	while (holders_next(&c, &from)) {
		uint64_t bytes = from.part.numel * x->p->elem_bytes;
		enum links_tier t = links_between(x->l, from.rank, m->rank[place]);
		double cost = links_us(x->l, t, (double)bytes);

		if (from.place == place)
			continue;
		if (++x->messages > REDIST_MESSAGES_MAX)
			return ckpt_error(err, -E2BIG,
					  "an exchange of more than %u messages is not counted",
					  REDIST_MESSAGES_MAX);
		us[t] += cost;
		x->sent_us[from.place][t] += cost;
		x->sent_bytes[from.place] += (double)bytes;
		if (h->noperand > 1)
			all.staging_bytes = MAX(all.staging_bytes, bytes);
	}
	redist_price_add(&all, us);
	redist_price_most(&x->most, &all);
	return 0;
}

/* The places that hold the same afterwards, of which `coord` is one. */
static int share_take(struct exchange *x, uint32_t *coord, struct ckpt_err *err)
{
	struct indices dim[CKPT_DIMS_MAX];
	struct indexset want = { x->p->ndim, redist_held_numel(x->after, coord), dim };
	struct holders_kind kind = { x->p->mesh, &x->from, x->p->ndim, x->p->elem_bytes,
				     x->p->shape };
	struct arena a = { 0 };
	struct holders h;
	int rc;

	if (!want.numel)
		return 0;
	for (uint32_t d = 0; d < x->p->ndim; d++)
		dim[d] = *redist_held(x->after, d, coord);
	rc = holders_find(&kind, &want, &a, &h);
	if (rc)
		ckpt_error(err, rc,
			   rc == -ENOMEM ? "out of memory for the senders of a share"
					 : "shares are too interleaved to find their senders");
	for (uint32_t k = 0; k < x->same.count && !rc; k++) {
		axes_coord(&x->same, k, coord);
		rc = receiver_take(x, &h, coord, err);
	}
	arena_free(&a);
	return rc;
}

int redist_exchange(const struct redist_problem *p, const struct links *l,
		    const struct redist_holding *before, const struct redist_holding *after,
		    struct arena *a, struct redist_price *ret, struct ckpt_err *err)
{
	struct exchange x = { .p = p, .l = l, .after = after };
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	int rc = reductions_stay(&x, before->layout, err);

	if (rc)
		return rc;
	axes_find(&x);
	x.sent_us = arena_array(a, p->mesh->nrank, sizeof *x.sent_us);
	x.sent_bytes = arena_array(a, p->mesh->nrank, sizeof *x.sent_bytes);
	if (!x.sent_us || !x.sent_bytes)
		return ckpt_error(err, -ENOMEM, "out of memory for the price of an exchange");
	for (uint32_t k = 0; k < x.differ.count && !rc; k++) {
		axes_coord(&x.differ, k, coord);
		rc = share_take(&x, coord, err);
	}
	for (uint32_t i = 0; i < p->mesh->nrank; i++) {
		struct redist_price sent = { .sent_bytes = x.sent_bytes[i] };

		redist_price_add(&sent, x.sent_us[i]);
		redist_price_most(&x.most, &sent);
	}
	*ret = x.most;
	ret->messages = x.messages;
	return rc;
}
