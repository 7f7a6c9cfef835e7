/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_bound.c - see schedule_bound.h. Called by plan_schedule.c.
 * Invariant: no rank's streams are longer than its bound (HOLDERS_ONE).
 */
#include "ckpt/plan/schedule_bound.h"
#include "ckpt/base/unique.h"
#include "ckpt/plan/sender.h"

typedef unsigned __int128 wide;

/* --- ranks --- */

static int by_rank(const void *x, const void *y)
{
	return COMPARE(*(const uint32_t *)x, *(const uint32_t *)y);
}

struct gathering {
	uint32_t *rank;
	uint32_t n, cap;
};

static int rank_gather(struct gathering *g, uint32_t rank)
{
	if (!ARRAY_GROW(g->rank, g->n, g->cap))
		return -ENOMEM;
	g->rank[g->n++] = rank;
	return 0;
}

static void ranks_unite(struct gathering *g)
{
	g->n = sort_unique(g->rank, g->n, sizeof *g->rank, by_rank);
}

static int meshes_gather(struct gathering *g, const struct table *t)
{
	int e = 0;

	for (uint32_t m = 0; m < t->nmesh && !e; m++) {
		for (uint32_t i = 0; i < t->mesh[m].nrank && !e; i++)
			e = rank_gather(g, t->mesh[m].rank[i]);
		ranks_unite(g);
	}
	return e;
}

int ranks_find(const struct table *src, const struct table *dst, struct arena *a, struct ranks *ret)
{
	struct gathering g = { 0 };
	int e = meshes_gather(&g, src);

	if (!e)
		e = meshes_gather(&g, dst);
	if (!e && dst->nmesh == 0) /* who keeps what has no layout */
		e = rank_gather(&g, 0);
	for (uint32_t i = 0; i < src->npiece && !e; i++)
		if (src->tensor[src->piece[i].tensor].layout == TABLE_NONE &&
		    src->piece[i].rank != TABLE_NONE)
			e = rank_gather(&g, src->piece[i].rank);
	ranks_unite(&g);
	*ret = (struct ranks){ .n = g.n, .rank = arena_dup(a, g.rank, g.n * sizeof *g.rank) };
	ret->dense = g.n > 0 && g.rank[g.n - 1] == g.n - 1;
	free(g.rank);
	return e || ret->rank ? e : -ENOMEM;
}

uint32_t ranks_index(const struct ranks *r, uint32_t rank)
{
	uint32_t at;

	if (r->dense)
		return rank < r->n ? rank : TABLE_NONE;
	at = SEARCH(i, 0u, r->n, r->rank[i] < rank);
	return at < r->n && r->rank[at] == rank ? at : TABLE_NONE;
}

/* --- one kind --- */

/* The coordinate with the largest share. */
static void coord_of_most(const struct layout *l, uint32_t *ret_coord)
{
	memset(ret_coord, 0, CKPT_DIMS_MAX * sizeof *ret_coord);
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_ONLY)
			ret_coord[l->place[i].mesh_dim] = l->place[i].split_factor;
}

/* Sizes of the largest share, per tensor dimension. */
static int most_share(const struct table *t, const struct table_tensor *x, uint64_t *ret_size)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &t->layout[x->layout];
	uint32_t coord[CKPT_DIMS_MAX];
	struct arena a = { 0 };
	struct indexset set;
	int e = 0;

	if (l) {
		coord_of_most(l, coord);
		e = layout_share(&t->mesh[l->mesh], l, x->ndim, x->shape, coord, &a, &set);
	}
	for (uint32_t d = 0; d < x->ndim && !e; d++)
		ret_size[d] = l ? set.dim[d].total : x->shape[d];
	arena_free(&a);
	return e;
}

/* Saturates. */
static wide wide_mul(wide x, wide y)
{
	wide most = (wide)1 << 120;

	return y && x > most / y ? most : x * y;
}

static wide elements(uint32_t ndim, const uint64_t *size)
{
	wide n = 1;

	for (uint32_t d = 0; d < ndim; d++)
		n = wide_mul(n, size[d]);
	return n;
}

static int bytes_of(wide elements, const struct table_tensor *x, uint64_t count, uint64_t *ret)
{
	wide n = wide_mul(wide_mul(elements, x->elem_bytes), count);

	*ret = (uint64_t)n;
	return n > UINT64_MAX ? -EOVERFLOW : 0;
}

/* How often the destination has each element. */
static uint64_t copies_of(const struct table *t, const struct table_tensor *x)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &t->layout[x->layout];
	uint64_t n;

	if (!l)
		return t->nmesh ? t->mesh[0].nrank : 1;
	(void)sender_copy(&t->mesh[l->mesh], l, 0, &n);
	return n;
}

/* Elements that a rank sends of one tensor, at most. */
static wide sent_most(const struct rank_bounds *b, const struct bound_kind *k,
		      const uint64_t *share, const uint64_t *needed)
{
	const struct table_tensor *x = &b->src->tensor[k->src_tensor];
	const struct layout *from = &b->src->layout[x->layout];
	uint32_t r = sender_replicas_of(&b->src->mesh[from->mesh], true, from, 0).n;
	uint64_t copies = copies_of(b->dst, &b->dst->tensor[k->dst_tensor]);
	wide all = wide_mul(copies, elements(x->ndim, share)), part = 1, most;

	if (r == 1)
		return all;
	if (k->who == HOLDERS_OWNERS)
		return all / r + 1;
	for (uint32_t d = 0; d < x->ndim; d++)
		part = wide_mul(part, MIN(share[d], needed[d]));
	most = all / r + 1 + part + wide_mul(k->per_host, part);
	return MIN(most, all);
}

/* Of a tensor without a layout. */
static int pieces_add(struct rank_bounds *b, const struct bound_kind *k)
{
	const struct table_tensor *x = &b->src->tensor[k->src_tensor];
	wide copies = copies_of(b->dst, &b->dst->tensor[k->dst_tensor]);
	int e = 0;

	for (uint32_t i = b->src->first[k->src_tensor]; i < b->src->first[k->src_tensor + 1] && !e;
	     i++) {
		uint32_t at = ranks_index(b->ranks, b->src->piece[i].rank);
		uint64_t bytes;

		e = bytes_of(wide_mul(copies, b->src->piece[i].set.numel), x, k->count, &bytes);
		if (!e)
			e = ckpt_add(b->pieces[at], bytes, &b->pieces[at]);
	}
	return e;
}

/* All ranks of the one mesh are in the other. */
static bool ranks_within(const struct mesh *inner, const struct mesh *outer)
{
	uint32_t coord[CKPT_DIMS_MAX];

	for (uint32_t i = 0; i < inner->nrank; i++)
		if ((i >= outer->nrank || inner->rank[i] != outer->rank[i]) &&
		    !mesh_coord(outer, inner->rank[i], coord))
			return false;
	return true;
}

/* Does every rank hold all that it needs? Of some such tensors, too, the answer is no. */
static bool all_stays(const struct rank_bounds *b, uint32_t src_layout, uint32_t dst_layout)
{
	const struct layout *l;

	if (src_layout == TABLE_NONE || dst_layout == TABLE_NONE)
		return false;
	if (table_layout_equal(b->src, src_layout, b->dst, dst_layout))
		return true;
	l = &b->src->layout[src_layout];
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how != CKPT_REPLICATE &&
		    b->src->mesh[l->mesh].dim[l->place[i].mesh_dim] > 1)
			return false;
	return ranks_within(&b->dst->mesh[b->dst->layout[dst_layout].mesh], &b->src->mesh[l->mesh]);
}

int rank_bounds_add(struct rank_bounds *b, const struct bound_kind *k)
{
	const struct table_tensor *x = &b->src->tensor[k->src_tensor];
	const struct table_tensor *y = &b->dst->tensor[k->dst_tensor];
	uint64_t share[CKPT_DIMS_MAX], needed[CKPT_DIMS_MAX], bytes;
	uint64_t *received = &b->received[MIN(y->layout, b->dst->nlayout)];
	int e;

	if (k->who == HOLDERS_ONE && all_stays(b, x->layout, y->layout))
		return 0;
	e = most_share(b->dst, y, needed);
	if (!e)
		e = bytes_of(elements(y->ndim, needed), y, k->count, &bytes);
	if (!e)
		e = ckpt_add(*received, bytes, received);
	if (e || x->layout == TABLE_NONE)
		return e ? e : pieces_add(b, k);
	e = most_share(b->src, x, share);
	if (!e)
		e = bytes_of(sent_most(b, k, share, needed), x, k->count, &bytes);
	return e ? e : ckpt_add(b->sent[x->layout], bytes, &b->sent[x->layout]);
}

/* --- all of them --- */

int rank_bounds_open(const struct table *src, const struct table *dst, const struct ranks *ranks,
		     struct rank_bounds *ret)
{
	*ret = (struct rank_bounds){ src,
				     dst,
				     ranks,
				     calloc((size_t)src->nlayout + 1, sizeof(uint64_t)),
				     calloc((size_t)dst->nlayout + 1, sizeof(uint64_t)),
				     calloc((size_t)ranks->n + 1, sizeof(uint64_t)) };
	return ret->sent && ret->received && ret->pieces ? 0 : -ENOMEM;
}

void rank_bounds_close(struct rank_bounds *b)
{
	free(b->sent);
	free(b->received);
	free(b->pieces);
}

/* The place of the n-th coordinate at which tensors of the layout live; false: there are fewer. */
static bool place_at(const struct mesh *m, const struct layout *l, uint32_t n, uint32_t *ret_place)
{
	uint32_t only[CKPT_DIMS_MAX], stride = 1, at = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		only[d] = UINT32_MAX;
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_ONLY)
			only[l->place[i].mesh_dim] = l->place[i].split_factor;
	for (uint32_t d = m->ndim; d-- > 0; stride *= m->dim[d]) {
		bool fixed = only[d] != UINT32_MAX;

		at += (fixed ? only[d] : n % m->dim[d]) * stride;
		n /= fixed ? 1 : m->dim[d];
	}
	*ret_place = at;
	return n == 0;
}

static bool is_everywhere(const struct layout *l)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_ONLY)
			return false;
	return true;
}

/* To each rank at which the layout has shares. */
static int layout_spread(const struct rank_bounds *b, const struct table *t, uint32_t layout,
			 uint64_t bytes, uint64_t *to)
{
	const struct layout *l = &t->layout[layout];
	const struct mesh *m = &t->mesh[l->mesh];
	uint32_t place;
	int e = 0;

	for (uint32_t i = 0; place_at(m, l, i, &place); i++) {
		uint32_t at = ranks_index(b->ranks, m->rank[place]);

		e |= ckpt_add(to[at], bytes, &to[at]);
	}
	return e;
}

/* Layouts that have shares everywhere on a mesh are added up first: there may be hundreds. */
static int layouts_spread(const struct rank_bounds *b, const struct table *t, const uint64_t *bytes,
			  uint64_t *to)
{
	int e = 0;

	for (uint32_t m = 0; m < t->nmesh; m++) {
		uint32_t any = TABLE_NONE;
		uint64_t sum = 0;

		for (uint32_t l = 0; l < t->nlayout; l++) {
			if (t->layout[l].mesh != m || !bytes[l])
				continue;
			if (!is_everywhere(&t->layout[l])) {
				e |= layout_spread(b, t, l, bytes[l], to);
				continue;
			}
			e |= ckpt_add(sum, bytes[l], &sum);
			any = l;
		}
		if (any != TABLE_NONE)
			e |= layout_spread(b, t, any, sum, to);
	}
	return e ? -EOVERFLOW : 0;
}

static int most_find(const struct rank_bounds *b, uint64_t *sent, uint64_t *received, uint64_t *ret)
{
	int e = layouts_spread(b, b->src, b->sent, sent);
	uint64_t loose = b->received[b->dst->nlayout];

	if (!e)
		e = layouts_spread(b, b->dst, b->received, received);
	for (uint32_t i = 0; i < b->ranks->n && !e; i++) {
		e = ckpt_add(received[i], loose, &received[i]);
		if (!e)
			e = ckpt_add(sent[i], b->pieces[i], &sent[i]);
		*ret = MAX(*ret, sent[i]);
		*ret = MAX(*ret, received[i]);
	}
	return e;
}

int rank_bounds_most(const struct rank_bounds *b, uint64_t *ret)
{
	cleanup_free uint64_t *sent = calloc((size_t)b->ranks->n + 1, sizeof *sent);
	cleanup_free uint64_t *received = calloc((size_t)b->ranks->n + 1, sizeof *received);

	*ret = 0;
	return sent && received ? most_find(b, sent, received, ret) : -ENOMEM;
}
