/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard.c - a rank's operations, from declarations. Called to open a part of a
 * checkpoint, and to estimate what a move would cost. Invariant: for every tensor with
 * a layout the parts that are handed out of each operand are the rank's share, each element once
 * (OWNERS and ONE).
 */
#include "ckpt/plan/reshard.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/plan/sender.h"
#include "ckpt/table/operand.h"

#define SLOTS 4096u /* remembered answers; a power of two */
#define UNMATCHED (TABLE_NONE - 1)
#define LABEL_BYTES 160
#define SHAPE_BYTES 400 /* 16 dimensions of 20 digits */

/* --- layouts that are alike --- */

static uint64_t hash_mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * UINT64_C(0xff51afd7ed558ccd);
	return h ^ h >> 32;
}

static uint64_t layout_mix(const struct layout *l)
{
	uint64_t h = hash_mix(l->mesh, l->mode);

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		h = hash_mix(h, (uint64_t)p->how << 16 | p->mesh_dim);
		if (p->how == CKPT_SHARD)
			h = hash_mix(h, (uint64_t)p->tensor_dim << 32 | p->split_factor);
	}
	return h;
}

/* alike[i]: the first layout that differs from layout i by the coordinates of ONLYs at most. */
static int layouts_group(const struct table *t, struct arena *a, uint32_t **ret_alike)
{
	uint32_t *alike = arena_array(a, (size_t)t->nlayout + 1, sizeof *alike);
	struct keymap seen = { 0 };

	if (!alike || keymap_reserve(&seen, a, t->nlayout) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->nlayout; i++) {
		const struct layout *l = &t->layout[i];
		uint64_t hash = layout_mix(l);
		uint32_t at = 0, k;

		do
			k = keymap_next(&seen, hash, &at);
		while (k != KEYMAP_NONE &&
		       (t->layout[k].mesh != l->mesh || !holders_layout_alike(&t->layout[k], l)));
		if (k == KEYMAP_NONE)
			keymap_put(&seen, hash, k = i);
		alike[i] = k;
	}
	*ret_alike = alike;
	return 0;
}

/* --- answers that are remembered --- */

/* src, dst: alike layouts. rank: of dst whose share is asked for, or if it sends, of src;
 * TABLE_NONE: all of the tensor. */
struct question {
	uint32_t src, dst, rank, ndim, elem_bytes;
	bool sends;
	const uint64_t *shape;
};

/* What its answer is made of. coord: of the rank; NULL: no share is asked for, but all holders. */
struct facts {
	const struct mesh *src_mesh, *dst_mesh;
	const struct layout *src, *dst;
	const uint32_t *coord;
	enum holders_who who;
};

struct answer {
	struct question q;
	struct indexset share; /* of dst; if the rank sends, of a dst without a layout */
	struct holders h;      /* in src of that share; if the rank sends, in dst of `owned` */
	struct indexset owned; /* if the rank sends: by it, if by `replica` it owns anything */
	struct layout_replica replica;
	/* HOLDERS_ONE: [h.nshare], of the part that the rank needs of the share, or if it sends,
	 * that the holder does; NULL: nobody to choose. */
	struct sender_along *along[CKPT_DIMS_MAX];
};

struct memo {
	struct arena arena;
	const struct answer *slot[SLOTS];
	uint32_t n;
	uint64_t nfound; /* answers that were computed */
};

static bool question_equal(const struct question *x, const struct question *y)
{
	return x->src == y->src && x->dst == y->dst && x->rank == y->rank && x->ndim == y->ndim &&
	       x->elem_bytes == y->elem_bytes && x->sends == y->sends &&
	       !memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape);
}

/* Where it is, or where it goes. */
static const struct answer **memo_slot(struct memo *m, const struct question *q)
{
	uint64_t h =
		hash_mix((uint64_t)q->src << 32 | q->dst, (uint64_t)q->rank << 32 | q->elem_bytes) +
		q->sends;
	uint32_t s;

	for (uint32_t d = 0; d < q->ndim; d++)
		h = hash_mix(h, q->shape[d]);
	for (s = (uint32_t)h & (SLOTS - 1); m->slot[s]; s = (s + 1) & (SLOTS - 1))
		if (question_equal(&m->slot[s]->q, q))
			break;
	return &m->slot[s];
}

static void memo_clear(struct memo *m)
{
	arena_free(&m->arena);
	memset(m->slot, 0, sizeof m->slot);
	m->n = 0;
}

static const struct layout whole;

/* Of each part that ranks need of what this one has: where it lies among all of them. */
static int answer_sent_along(struct answer *x, struct arena *a)
{
	for (uint32_t d = 0; d < x->q.ndim; d++) {
		uint64_t before = 0;

		x->along[d] = arena_array(a, (size_t)x->h.nshare[d] + 1, sizeof *x->along[d]);
		if (!x->along[d])
			return -ENOMEM;
		for (uint32_t i = 0; i < x->h.nshare[d]; i++) {
			uint64_t part = x->h.share[d][i].part.total;

			x->along[d][i] =
				(struct sender_along){ before, part, x->owned.dim[d].total };
			before += part;
		}
	}
	return 0;
}

/* What the rank of src owns, and who of dst holds some of that. */
static int answer_sent(struct answer *x, const struct facts *f, struct arena *a)
{
	const struct question *q = &x->q;
	struct holders_kind kind = { f->dst_mesh, f->dst, q->ndim, q->elem_bytes, q->shape };
	int e;

	if (f->src)
		e = layout_owned_unnamed(f->src_mesh, f->src, q->ndim, q->shape, f->coord,
					 q->elem_bytes, a, &x->owned, &x->replica);
	else
		e = layout_share(NULL, &whole, q->ndim, q->shape, f->coord, a, &x->owned);
	if (!e && f->src && f->who != HOLDERS_OWNERS)
		e = layout_share(f->src_mesh, f->src, q->ndim, q->shape, f->coord, a, &x->owned);
	if (e)
		return e;
	if (!f->dst)
		return layout_share(NULL, &whole, q->ndim, q->shape, f->coord, a, &x->share);
	e = holders_find(&kind, &x->owned, a, &x->h);
	return !e && f->who == HOLDERS_ONE && x->owned.numel ? answer_sent_along(x, a) : e;
}

/* For each share of src that the rank needs some of: where among the parts that ranks need. */
static int answer_along(struct answer *x, const struct facts *f, struct arena *a)
{
	struct holders_kind to = { f->dst_mesh, f->dst, x->q.ndim, x->q.elem_bytes, x->q.shape };
	int e = 0;

	for (uint32_t d = 0; d < x->q.ndim; d++) {
		x->along[d] = arena_array(a, (size_t)x->h.nshare[d] + 1, sizeof *x->along[d]);
		if (!x->along[d])
			return -ENOMEM;
		for (uint32_t i = 0; i < x->h.nshare[d] && e == 0; i++) {
			struct sender_along *p = &x->along[d][i];

			p->all = x->h.share[d][i].set.total;
			e = holders_along(&to, d, &x->h.share[d][i].set, f->coord, &p->before,
					  &p->part);
		}
	}
	return e;
}

static int answer_find(struct answer *x, const struct facts *f, struct arena *a)
{
	struct holders_kind kind = { f->src_mesh, f->src, x->q.ndim, x->q.elem_bytes, x->q.shape };
	int e = 0;

	if (x->q.sends)
		return answer_sent(x, f, a);
	if (f->coord)
		e = layout_share(f->dst_mesh, f->dst, x->q.ndim, x->q.shape, f->coord, a,
				 &x->share);
	if (!e && f->src)
		e = holders_find(&kind, f->coord ? &x->share : NULL, a, &x->h);
	if (!e && f->src && f->dst_mesh && f->who == HOLDERS_ONE && x->h.nreplica > 1 &&
	    x->h.noperand > 0)
		e = answer_along(x, f, a);
	return e;
}

/* What *ret points to lives until the next call. */
static int memo_find(struct memo *m, const struct question *q, const struct facts *f,
		     const struct answer **ret)
{
	const struct answer **slot = memo_slot(m, q);
	struct answer *x;
	int e;

	*ret = *slot;
	if (*slot)
		return 0;
	if (m->n >= SLOTS / 2 || m->arena.total_bytes > RESHARD_MEMORY_MAX) {
		memo_clear(m);
		slot = memo_slot(m, q);
	}
	x = arena_alloc(&m->arena, sizeof *x);
	if (!x)
		return -ENOMEM;
	x->q = *q;
	e = answer_find(x, f, &m->arena);
	if (e)
		return e;
	*slot = *ret = x;
	m->n++;
	m->nfound++;
	return 0;
}

/* --- a pair of tables --- */

/* Tensors by layout, those without one last. */
struct by_layout {
	uint32_t *order;
	uint32_t *first; /* [layouts + 2]: of each layout in `order` */
};

struct reshard {
	const struct table *src, *dst;
	struct reshard_opts opts;
	struct arena arena;
	uint32_t *src_of;		 /* [dst tensors]; UNMATCHED; TABLE_NONE: nothing to do */
	uint32_t *src_alike, *dst_alike; /* [layouts] */
	struct by_layout to;		 /* dst tensors, once a rank has asked for all of its own */
	struct by_layout from;		 /* src tensors, once a rank has sent all that it does */
	struct rank_map ranks;		 /* of dst */
	struct rank_map senders;	 /* of src, once a rank has sent something */
	bool *ascending;		 /* HOLDERS_ONE: [meshes of src] */
	struct memo memo;
};

/* A target has the tensors of its source under the same numbers: most of them need no search. */
static uint32_t find_in_src(const struct reshard *r, uint32_t i)
{
	const struct table_tensor *x = &r->dst->tensor[i];

	if (i < r->src->ntensor && table_key_equal(x, &r->src->tensor[i]))
		return i;
	return table_find(r->src, x->component, x->name, x->rank);
}

/* UNMATCHED: a mismatch, which is in the list. */
static uint32_t tensor_match(const struct reshard *r, uint32_t i, struct ckpt_errlist *list)
{
	const struct table_tensor *x = &r->dst->tensor[i], *y;
	char label[LABEL_BYTES], want[SHAPE_BYTES], have[SHAPE_BYTES];
	uint32_t found;

	if ((x->flags & TENSOR_BLOB && !r->opts.blobs) ||
	    (r->opts.only && strcmp(r->opts.only, x->component) != 0) ||
	    (r->opts.sinks && x->cls != CKPT_SINK))
		return TABLE_NONE;
	found = find_in_src(r, i);
	y = found == TABLE_NONE ? NULL : &r->src->tensor[found];
	if (y && y->cls == CKPT_SINK && x->cls == CKPT_SINK)
		return TABLE_NONE;
	if (!y || y->cls == CKPT_SINK) {
		if (r->opts.lenient)
			return TABLE_NONE;
		ckpt_errlist_add(list, "%s: not in the checkpoint",
				 table_tensor_print(x, label, sizeof label));
		return UNMATCHED;
	}
	if (table_shape_same(x, y))
		return found;
	ckpt_errlist_add(list, "%s: declared %s, the checkpoint has %s",
			 table_tensor_print(x, label, sizeof label),
			 human_shape(x->ndim, x->shape, want, sizeof want),
			 human_shape(y->ndim, y->shape, have, sizeof have));
	return UNMATCHED;
}

/* Names are compared when they are needed: a rank needs few of many. */
static uint32_t src_of(struct reshard *r, uint32_t i, struct ckpt_errlist *list)
{
	if (r->src_of[i] == UNMATCHED)
		r->src_of[i] = tensor_match(r, i, list);
	return r->src_of[i];
}

static int tensors_group(const struct table *t, struct arena *a, struct by_layout *ret)
{
	uint32_t n = t->ntensor, nlayout = t->nlayout;
	cleanup_free uint32_t *bucket = calloc((size_t)n + 1, sizeof *bucket);

	ret->order = arena_array(a, (size_t)n + 1, sizeof *ret->order);
	ret->first = arena_array(a, (size_t)nlayout + 3, sizeof *ret->first);
	if (!bucket || !ret->order || !ret->first)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		bucket[i] = MIN(t->tensor[i].layout, nlayout);
		ret->first[bucket[i] + 2]++;
	}
	for (uint32_t l = 0; l <= nlayout; l++)
		ret->first[l + 1] += ret->first[l];
	/* first[l + 1] runs from where l begins to where it ends. */
	for (uint32_t i = 0; i < n; i++)
		ret->order[ret->first[bucket[i] + 1]++] = i;
	return 0;
}

static int unmatched(struct reshard *r)
{
	r->src_of = arena_array(&r->arena, (size_t)r->dst->ntensor + 1, sizeof *r->src_of);
	if (!r->src_of)
		return -ENOMEM;
	for (uint32_t i = 0; i < r->dst->ntensor; i++)
		r->src_of[i] = UNMATCHED;
	return 0;
}

static int senders_prepare(struct reshard *r)
{
	if (r->opts.who != HOLDERS_ONE)
		return 0;
	r->ascending = arena_array(&r->arena, (size_t)r->src->nmesh + 1, sizeof *r->ascending);
	for (uint32_t i = 0; r->ascending && i < r->src->nmesh; i++)
		r->ascending[i] = sender_ascending(&r->src->mesh[i]);
	return r->ascending ? 0 : -ENOMEM;
}

uint32_t reshard_source(struct reshard *r, uint32_t dst_tensor, struct ckpt_errlist *list)
{
	uint32_t found = src_of(r, dst_tensor, list);

	return found == UNMATCHED ? TABLE_NONE : found;
}

int reshard_open(const struct table *src, const struct table *dst, const struct reshard_opts *opts,
		 struct reshard **ret, struct ckpt_err *err)
{
	struct reshard *r = calloc(1, sizeof *r);
	int e = -ENOMEM;

	assert(src->sealed && dst->sealed);
	*ret = NULL;
	if (r) {
		r->src = src;
		r->dst = dst;
		r->opts = opts ? *opts : (struct reshard_opts){ 0 };
		e = layouts_group(src, &r->arena, &r->src_alike);
		if (!e)
			e = layouts_group(dst, &r->arena, &r->dst_alike);
		if (!e)
			e = unmatched(r);
		if (!e)
			e = senders_prepare(r);
		if (!e)
			e = rank_map_open(dst, &r->ranks);
	}
	if (e) {
		reshard_close(r);
		return ckpt_error(err, e, "out of memory for a plan of %u tensors", dst->ntensor);
	}
	*ret = r;
	return 0;
}

void reshard_close(struct reshard *r)
{
	if (!r)
		return;
	rank_map_close(&r->ranks);
	rank_map_close(&r->senders);
	arena_free(&r->memo.arena);
	arena_free(&r->arena);
	free(r);
}

uint64_t reshard_answers(const struct reshard *r)
{
	return r->memo.nfound;
}

/* --- one rank --- */

struct stream {
	struct reshard *r;
	uint32_t rank;
	const uint32_t *some; /* these tensors of dst alone; NULL: all */
	uint32_t nsome;
	reshard_fn *fn;
	void *arg;
	struct ckpt_errlist list;
	struct ckpt_err *err;
};

static int stream_fail(const struct stream *s, const struct table_tensor *x, int e)
{
	char label[LABEL_BYTES];

	return ckpt_error(s->err, e,
			  e == -ENOMEM ? "%s: out of memory for rank %u's part of the plan"
				       : "%s: rank %u's share is too interleaved to plan",
			  table_tensor_print(x, label, sizeof label), s->rank);
}

static int hand_out(struct stream *s, struct reshard_op *op)
{
	op->bytes = op->part.numel * s->r->src->tensor[op->src_tensor].elem_bytes;
	return s->fn(s->arg, op);
}

/* Of a tensor without a layout: a blob is its rank's, or rank 0's; all else is not known. */
static uint32_t blob_keeper(const struct table *t, const struct table_tensor *x)
{
	uint32_t world = t->nmesh ? t->mesh[0].nrank : 0;

	if (!(x->flags & TENSOR_BLOB))
		return TABLE_NONE;
	if (x->rank == TABLE_NONE)
		return 0;
	return world && x->rank >= world ? x->rank % world : x->rank;
}

static bool in_pieces(const struct reshard *r, const struct table_tensor *x)
{
	return r->opts.pieces && x->layout == TABLE_NONE && !(x->flags & TENSOR_BLOB);
}

/* The number of the place among the mesh's, row-major. */
static uint32_t place_of(const struct mesh *m, const uint32_t *coord)
{
	uint32_t at = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		at = at * m->dim[d] + coord[d];
	return at;
}

/* The rank among those of dst that keep a tensor without a layout, each of them a copy. */
static int asks_loose(struct reshard *r, struct sender_asks *asks)
{
	uint32_t coord[CKPT_DIMS_MAX];
	int inside = r->dst->nmesh ? rank_map_coord(&r->ranks, 0, asks->rank, coord) : 0;

	asks->ncopy = r->dst->nmesh ? r->dst->mesh[0].nrank : 1;
	asks->copy = inside > 0 ? place_of(&r->dst->mesh[0], coord) : 0;
	return MIN(inside, 0);
}

/* Which replica of the share that h is a holder of sends to this rank. */
static int sender_choose(const struct stream *s, const struct answer *x, const struct facts *f,
			 const struct holders_cursor *c, const struct holder *h, uint32_t bucket,
			 uint32_t *ret_rank)
{
	struct sender_replicas replicas =
		sender_replicas_of(f->src_mesh, s->r->ascending[f->src->mesh], f->src, h->place);
	struct sender_asks asks = { .rank = s->rank,
				    .per_host = s->r->opts.per_host,
				    .bucket = bucket };
	int e = 0;

	sender_ask_begin(&asks);
	if (f->dst_mesh)
		asks.copy = sender_copy(f->dst_mesh, f->dst, place_of(f->dst_mesh, f->coord),
					&asks.ncopy);
	else
		e = asks_loose(s->r, &asks);
	for (uint32_t d = x->q.ndim; f->dst_mesh && d-- > 0;)
		sender_ask_along(&asks, &x->along[d][c->i[d]]);
	*ret_rank = sender_rank(&replicas, sender_pick(&replicas, &asks));
	return e;
}

/* Without a layout: from the pieces of the ranks. */
static int pieces_stream(struct stream *s, struct reshard_op *op)
{
	const struct table *src = s->r->src;
	int e = 0;

	for (uint32_t i = src->first[op->src_tensor]; i < src->first[op->src_tensor + 1] && !e;
	     i++) {
		struct arena a = { 0 };

		op->owned = src->piece[i].set;
		op->src_rank = src->piece[i].rank;
		e = indexset_intersect(&op->owned, &op->share, &a, &op->part);
		if (e)
			e = stream_fail(s, &src->tensor[op->src_tensor], e);
		else if (op->part.numel)
			e = hand_out(s, op);
		arena_free(&a);
	}
	return e;
}

/* coord: of the rank in the mesh of dst; anything where the tensor has no layout. */
static int tensor_stream(struct stream *s, uint32_t dst_tensor, const struct mesh *mesh,
			 const struct layout *layout, const uint32_t *coord)
{
	struct reshard *r = s->r;
	struct reshard_op op = { .dst_tensor = dst_tensor, .dst_rank = s->rank };
	const struct table_tensor *x, *as;
	const struct layout *from;

	op.src_tensor = src_of(r, dst_tensor, &s->list);
	if (op.src_tensor >= UNMATCHED)
		return 0;
	x = &r->src->tensor[op.src_tensor];
	as = table_owned_as(r->src, x);
	from = x->layout == TABLE_NONE ? NULL : &r->src->layout[x->layout];

	uint32_t to = r->dst->tensor[dst_tensor].layout;
	struct question q = { .src = from ? r->src_alike[x->layout] : TABLE_NONE,
			      .dst = to == TABLE_NONE ? to : r->dst_alike[to],
			      .rank = to == TABLE_NONE ? 0 : s->rank,
			      .ndim = x->ndim,
			      .elem_bytes = as->elem_bytes,
			      .shape = x->shape };
	struct facts f = {
		from ? &r->src->mesh[from->mesh] : NULL, mesh, from, layout, coord, r->opts.who
	};
	const struct answer *answer;
	struct holders_cursor cursor;
	struct holder h;
	uint32_t bucket = 0;
	int e = memo_find(&r->memo, &q, &f, &answer);

	if (e)
		return stream_fail(s, x, e);
	op.share = answer->share;
	if (!from && in_pieces(r, x))
		return pieces_stream(s, &op);
	if (!from) {
		op.owned = op.part = op.share;
		op.src_rank = blob_keeper(r->src, x);
		return op.share.numel ? hand_out(s, &op) : 0;
	}
	if (r->opts.who == HOLDERS_ONE && answer->h.nreplica > 1)
		bucket = sender_bucket(as->component, as->name);
	holders_begin(&answer->h, from, as->component, as->name, r->opts.who, 0, &cursor);
	while (!e && holders_next(&cursor, &h)) {
		op.src_rank = h.rank;
		if (r->opts.who == HOLDERS_ONE && answer->h.nreplica > 1)
			e = sender_choose(s, answer, &f, &cursor, &h, bucket, &op.src_rank);
		if (e)
			return stream_fail(s, x, e);
		op.operand = h.operand;
		op.owned = h.set;
		op.part = h.part;
		e = hand_out(s, &op);
	}
	return e;
}

/* Has the rank something of tensors with this layout? */
static bool lives_at(const struct layout *l, const uint32_t *coord)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_ONLY &&
		    l->place[i].split_factor != coord[l->place[i].mesh_dim])
			return false;
	return true;
}

/* A tensor without a layout is whole on all ranks of the first mesh, and a rank's blob on the rank
 * of its number. 1, 0, -ENOMEM. */
static int is_kept(struct reshard *r, uint32_t tensor, uint32_t rank)
{
	uint32_t of = r->dst->tensor[tensor].rank, coord[CKPT_DIMS_MAX];
	uint32_t world = r->dst->nmesh ? r->dst->mesh[0].nrank : 0;

	if (of == TABLE_NONE)
		return world ? rank_map_coord(&r->ranks, 0, rank, coord) : 1;
	return (world ? of % world : of) == rank;
}

static int loose_stream(struct stream *s)
{
	struct reshard *r = s->r;
	const uint32_t nowhere = 0;
	int e = 0;

	for (uint32_t i = r->to.first[r->dst->nlayout]; i < r->to.first[r->dst->nlayout + 1] && !e;
	     i++) {
		uint32_t x = r->to.order[i];
		int kept = is_kept(r, x, s->rank);

		if (kept < 0)
			e = stream_fail(s, &r->dst->tensor[x], kept);
		else if (kept)
			e = tensor_stream(s, x, NULL, &whole, &nowhere);
	}
	return e;
}

static int layouts_stream(struct stream *s)
{
	struct reshard *r = s->r;
	uint32_t coord[CKPT_DIMS_MAX], mesh = TABLE_NONE;
	int e = 0, inside = 0;

	for (uint32_t l = 0; l < r->dst->nlayout && !e; l++) {
		const struct layout *layout = &r->dst->layout[l];

		if (r->to.first[l] == r->to.first[l + 1])
			continue;
		if (layout->mesh != mesh)
			inside = rank_map_coord(&r->ranks, layout->mesh, s->rank, coord);
		mesh = layout->mesh;
		if (inside < 0)
			return ckpt_error(s->err, inside, "out of memory for the ranks of a mesh");
		if (!inside || !lives_at(layout, coord))
			continue;
		for (uint32_t i = r->to.first[l]; i < r->to.first[l + 1] && !e; i++)
			e = tensor_stream(s, r->to.order[i], &r->dst->mesh[mesh], layout, coord);
	}
	return e ? e : loose_stream(s);
}

/* Of these tensors alone. */
static int some_stream(struct stream *s)
{
	struct reshard *r = s->r;
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	int e = 0;

	for (uint32_t i = 0; i < s->nsome && !e; i++) {
		uint32_t x = s->some[i], l = r->dst->tensor[x].layout;
		const struct layout *layout = l == TABLE_NONE ? &whole : &r->dst->layout[l];
		int inside = l == TABLE_NONE
				     ? is_kept(r, x, s->rank)
				     : rank_map_coord(&r->ranks, layout->mesh, s->rank, coord);

		if (inside < 0)
			e = stream_fail(s, &r->dst->tensor[x], inside);
		else if (inside && lives_at(layout, coord))
			e = tensor_stream(s, x,
					  l == TABLE_NONE ? NULL : &r->dst->mesh[layout->mesh],
					  layout, coord);
	}
	return e;
}

static int stream_end(struct stream *s, int e)
{
	if (!e)
		e = ckpt_errlist_end(&s->list, s->err,
				     "the checkpoint does not fit what is declared");
	ckpt_errlist_free(&s->list);
	return e;
}

int reshard_rank(struct reshard *r, uint32_t rank, reshard_fn *fn, void *arg, struct ckpt_err *err)
{
	struct stream s = { r, rank, NULL, 0, fn, arg, { .code = -EMEDIUMTYPE }, err };
	int e = r->to.first ? 0 : tensors_group(r->dst, &r->arena, &r->to);

	if (e)
		ckpt_error(err, e, "out of memory for what rank %u needs", rank);
	return stream_end(&s, e ? e : layouts_stream(&s));
}

int reshard_rank_some(struct reshard *r, uint32_t rank, const uint32_t *dst_tensor, uint32_t n,
		      reshard_fn *fn, void *arg, struct ckpt_err *err)
{
	struct stream s = { r, rank, dst_tensor, n, fn, arg, { .code = -EMEDIUMTYPE }, err };

	return stream_end(&s, some_stream(&s));
}

/* --- what a rank of the source sends --- */

/* A tensor of dst that the rank has something of, by its place in `to`. */
static uint64_t sent_key(const struct reshard *r, uint32_t dst_tensor)
{
	return (uint64_t)MIN(r->dst->tensor[dst_tensor].layout, r->dst->nlayout) << 32 | dst_tensor;
}

static int sent_order(const void *x, const void *y)
{
	const uint64_t *a = x, *b = y;

	return (*a > *b) - (*a < *b);
}

struct sent {
	uint64_t *key;
	uint32_t n, cap;
};

static int sent_add(const struct reshard *r, uint32_t src_tensor, struct sent *sent)
{
	const struct table_tensor *x = &r->src->tensor[src_tensor];
	uint32_t to = src_tensor;

	if (x->cls == CKPT_SINK || (r->opts.only && strcmp(r->opts.only, x->component) != 0))
		return 0;
	if (to >= r->dst->ntensor || !table_key_equal(x, &r->dst->tensor[to]))
		to = table_find(r->dst, x->component, x->name, x->rank);
	if (to == TABLE_NONE)
		return 0;
	if (!ARRAY_GROW(sent->key, sent->n, sent->cap))
		return -ENOMEM;
	sent->key[sent->n++] = sent_key(r, to);
	return 0;
}

static bool has_piece(const struct table *t, uint32_t tensor, uint32_t rank)
{
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++)
		if (t->piece[i].rank == rank)
			return true;
	return false;
}

/* All that the rank may have something of. */
static int sent_collect(struct reshard *r, uint32_t rank, struct sent *sent)
{
	const struct table *t = r->src;
	const uint32_t *first = r->from.first, *order = r->from.order;
	uint32_t coord[CKPT_DIMS_MAX], mesh = TABLE_NONE;
	int e = 0, inside = 0;

	for (uint32_t l = 0; l < t->nlayout && !e; l++) {
		if (first[l] == first[l + 1])
			continue;
		if (t->layout[l].mesh != mesh)
			inside = rank_map_coord(&r->senders, t->layout[l].mesh, rank, coord);
		mesh = t->layout[l].mesh;
		if (inside < 0)
			return inside;
		if (!inside || !lives_at(&t->layout[l], coord))
			continue;
		for (uint32_t i = first[l]; i < first[l + 1] && !e; i++)
			e = sent_add(r, order[i], sent);
	}
	for (uint32_t i = first[t->nlayout]; i < first[t->nlayout + 1] && !e; i++)
		if (in_pieces(r, &t->tensor[order[i]])
			    ? has_piece(t, order[i], rank)
			    : blob_keeper(t, &t->tensor[order[i]]) == rank)
			e = sent_add(r, order[i], sent);
	if (sent->n)
		qsort(sent->key, sent->n, sizeof *sent->key, sent_order);
	return e;
}

/* Who asks, and of which replicas this rank is one. */
struct choice {
	bool given; /* there is one */
	struct sender_replicas replicas;
	struct sender_asks asks;
};

static struct choice choice_of(const struct stream *s, const struct facts *f,
			       const struct table_tensor *as)
{
	struct choice c = { .given = f->src && s->r->opts.who == HOLDERS_ONE };

	if (!c.given)
		return c;
	sender_ask_begin(&c.asks);
	c.replicas = sender_replicas_of(f->src_mesh, s->r->ascending[f->src->mesh], f->src,
					place_of(f->src_mesh, f->coord));
	c.given = c.replicas.n > 1;
	c.asks.per_host = s->r->opts.per_host;
	c.asks.bucket = sender_bucket(as->component, as->name);
	return c;
}

static bool send_is_asked(const struct stream *s, const struct choice *c)
{
	return !c->given ||
	       sender_rank(&c->replicas, sender_pick(&c->replicas, &c->asks)) == s->rank;
}

/* To the ranks of dst that keep a tensor without a layout. */
static int send_loose(struct stream *s, struct choice *c, struct reshard_op *op)
{
	const struct table *t = s->r->dst;
	const struct mesh *m = t->nmesh ? &t->mesh[0] : NULL;
	uint32_t n = m ? m->nrank : 1;
	int e = 0;

	op->part = op->owned;
	for (uint32_t i = 0; i < n && !e; i++) {
		op->dst_rank = c->asks.rank = m ? m->rank[i] : 0;
		c->asks.copy = i;
		c->asks.ncopy = n;
		e = is_kept(s->r, op->dst_tensor, op->dst_rank);
		if (e > 0)
			e = send_is_asked(s, c) ? hand_out(s, op) : 0;
	}
	return e;
}

/* Where the part that the holder needs begins. */
static void choice_ask(struct choice *c, const struct layout *to, const struct answer *x,
		       const struct holders_cursor *cursor, const struct holder *h)
{
	sender_ask_begin(&c->asks);
	c->asks.rank = h->rank;
	c->asks.copy = sender_copy(x->h.kind.mesh, to, h->place, &c->asks.ncopy);
	for (uint32_t d = x->q.ndim; d-- > 0;)
		sender_ask_along(&c->asks, &x->along[d][cursor->i[d]]);
}

/* To all that hold some of what the rank has. */
static int send_all(struct stream *s, const struct answer *x, const struct layout *to,
		    struct choice *c, struct reshard_op *op)
{
	const struct table_tensor *y = &s->r->dst->tensor[op->dst_tensor];
	struct holders_cursor cursor;
	struct holder h;
	int e = 0;

	holders_begin(&x->h, to, y->component, y->name, HOLDERS_EACH, 0, &cursor);
	while (!e && holders_next(&cursor, &h)) {
		if (c->given)
			choice_ask(c, to, x, &cursor, &h);
		if (!send_is_asked(s, c))
			continue;
		op->dst_rank = h.rank;
		op->share = h.set;
		op->part = h.part;
		e = hand_out(s, op);
	}
	return e;
}

/* Of a tensor without a layout, the rank's pieces. */
static int pieces_send(struct stream *s, struct reshard_op *op)
{
	const struct table *src = s->r->src, *dst = s->r->dst;
	const struct table_tensor *t = &src->tensor[op->src_tensor];
	uint32_t l = dst->tensor[op->dst_tensor].layout;
	const struct layout *to = l == TABLE_NONE ? NULL : &dst->layout[l];
	struct holders_kind kind = { to ? &dst->mesh[to->mesh] : NULL, to, t->ndim, t->elem_bytes,
				     t->shape };
	struct choice nobody = { .given = false };
	int e = 0;

	for (uint32_t i = src->first[op->src_tensor]; i < src->first[op->src_tensor + 1] && !e;
	     i++) {
		struct arena a = { 0 };
		struct answer x = { 0 };

		if (src->piece[i].rank != s->rank)
			continue;
		op->owned = src->piece[i].set;
		if (to)
			e = holders_find(&kind, &op->owned, &a, &x.h);
		else
			e = layout_share(NULL, &whole, t->ndim, t->shape, NULL, &a, &op->share);
		if (e)
			e = stream_fail(s, t, e);
		else
			e = to ? send_all(s, &x, to, &nobody, op) : send_loose(s, &nobody, op);
		arena_free(&a);
	}
	return e;
}

static int tensor_sends(struct stream *s, uint32_t dst_tensor)
{
	struct reshard *r = s->r;
	const struct table *src = r->src, *dst = r->dst;
	struct reshard_op op = { .dst_tensor = dst_tensor, .src_rank = s->rank };
	uint32_t coord[CKPT_DIMS_MAX] = { 0 }, to = dst->tensor[dst_tensor].layout;
	const struct table_tensor *x, *as;
	const struct answer *answer;
	struct choice choice;
	int e;

	op.src_tensor = src_of(r, dst_tensor, &s->list);
	if (op.src_tensor >= UNMATCHED)
		return 0;
	x = &src->tensor[op.src_tensor];
	as = table_owned_as(src, x);

	if (in_pieces(r, x))
		return pieces_send(s, &op);

	bool cut = x->layout != TABLE_NONE, kept = to != TABLE_NONE;
	struct facts f = { .src = cut ? &src->layout[x->layout] : NULL,
			   .dst = kept ? &dst->layout[to] : NULL,
			   .coord = coord,
			   .who = r->opts.who };
	struct question q = { .src = cut ? r->src_alike[x->layout] : TABLE_NONE,
			      .dst = kept ? r->dst_alike[to] : TABLE_NONE,
			      .rank = cut ? s->rank : 0,
			      .ndim = x->ndim,
			      .elem_bytes = as->elem_bytes,
			      .sends = true,
			      .shape = x->shape };

	if (cut) {
		f.src_mesh = &src->mesh[f.src->mesh];
		if (rank_map_coord(&r->senders, f.src->mesh, s->rank, coord) < 0)
			return stream_fail(s, x, -ENOMEM);
		op.operand = operand_number(f.src_mesh, operand_dims(src, x), coord);
	}
	if (kept)
		f.dst_mesh = &dst->mesh[f.dst->mesh];
	e = memo_find(&r->memo, &q, &f, &answer);
	if (e)
		return stream_fail(s, x, e);
	op.owned = answer->owned;
	if (op.owned.numel == 0 ||
	    (cut && r->opts.who == HOLDERS_OWNERS && !MUTANT(SENDS_UNOWNED) &&
	     !layout_replica_owns(&answer->replica, &op.owned, x->shape, as->component, as->name)))
		return 0;
	choice = choice_of(s, &f, as);
	op.share = answer->share;
	return kept ? send_all(s, answer, f.dst, &choice, &op) : send_loose(s, &choice, &op);
}

static int senders_open(struct reshard *r, bool all)
{
	int e = 0;

	if (!r->senders.t)
		e = rank_map_open(r->src, &r->senders);
	if (!e && all && !r->from.first)
		e = tensors_group(r->src, &r->arena, &r->from);
	return e;
}

/* Does the rank have anything of the tensor that this one of dst is taken from? 1, 0, -ENOMEM. */
static int sends_some(struct reshard *r, uint32_t rank, uint32_t src_tensor)
{
	const struct table_tensor *x = &r->src->tensor[src_tensor];
	uint32_t coord[CKPT_DIMS_MAX];
	int inside;

	if (x->layout == TABLE_NONE)
		return in_pieces(r, x) || blob_keeper(r->src, x) == rank;
	inside = rank_map_coord(&r->senders, r->src->layout[x->layout].mesh, rank, coord);
	return inside > 0 ? lives_at(&r->src->layout[x->layout], coord) : inside;
}

static int some_sends(struct stream *s)
{
	int e = 0;

	for (uint32_t i = 0; i < s->nsome && !e; i++) {
		uint32_t x = src_of(s->r, s->some[i], &s->list);

		if (x >= UNMATCHED)
			continue;
		e = sends_some(s->r, s->rank, x);
		if (e < 0)
			e = stream_fail(s, &s->r->src->tensor[x], e);
		else if (e > 0)
			e = tensor_sends(s, s->some[i]);
	}
	return e;
}

static int all_sends(struct stream *s)
{
	struct sent sent = { 0 };
	int e = sent_collect(s->r, s->rank, &sent);

	if (e)
		ckpt_error(s->err, e, "out of memory for what rank %u sends", s->rank);
	for (uint32_t i = 0; i < sent.n && !e; i++)
		e = tensor_sends(s, (uint32_t)sent.key[i]);
	free(sent.key);
	return e;
}

int reshard_sends(struct reshard *r, uint32_t rank, reshard_fn *fn, void *arg, struct ckpt_err *err)
{
	return reshard_sends_some(r, rank, NULL, 0, fn, arg, err);
}

int reshard_sends_some(struct reshard *r, uint32_t rank, const uint32_t *dst_tensor, uint32_t n,
		       reshard_fn *fn, void *arg, struct ckpt_err *err)
{
	struct stream s = { r, rank, dst_tensor, n, fn, arg, { .code = -EMEDIUMTYPE }, err };
	int e = senders_open(r, !dst_tensor);

	if (e)
		ckpt_error(err, e, "out of memory for what rank %u sends", rank);
	else
		e = dst_tensor ? some_sends(&s) : all_sends(&s);
	return stream_end(&s, e);
}

/* --- which ranks --- */

struct needing {
	uint32_t world;
	bool *needed, all;
};

static int rank_need(void *arg, const struct reshard_op *op)
{
	struct needing *n = arg;

	if (op->src_rank < n->world)
		n->needed[op->src_rank] = true;
	else
		n->all = true;
	return 0;
}

int reshard_ranks(struct reshard *r, uint32_t rank, uint32_t world, bool *needed, bool *ret_all,
		  struct ckpt_err *err)
{
	struct needing n = { world, needed, false };
	int e = reshard_rank(r, rank, rank_need, &n, err);

	*ret_all = n.all;
	return e;
}

/* --- all owners --- */

static int tensor_owners(const struct table *t, uint32_t tensor, const uint32_t *alike,
			 enum holders_who who, struct memo *m, reshard_owner_fn *fn, void *arg)
{
	const struct table_tensor *x = &t->tensor[tensor], *as = table_owned_as(t, x);
	const struct layout *l = &t->layout[x->layout];
	struct question q = { .src = alike[x->layout],
			      .dst = TABLE_NONE,
			      .rank = TABLE_NONE,
			      .ndim = x->ndim,
			      .elem_bytes = as->elem_bytes,
			      .shape = x->shape };
	struct facts f = { .src_mesh = &t->mesh[l->mesh], .src = l };
	const struct answer *answer;
	struct holders_cursor cursor;
	struct holder h;
	int e = memo_find(m, &q, &f, &answer);

	if (e)
		return e;
	holders_begin(&answer->h, l, as->component, as->name, who, 0, &cursor);
	while (!e && holders_next(&cursor, &h))
		e = fn(arg, tensor, &h);
	return e;
}

int reshard_owners(const struct table *t, enum holders_who who, reshard_owner_fn *fn, void *arg,
		   struct ckpt_err *err)
{
	cleanup_free struct memo *m = calloc(1, sizeof *m);
	struct arena a = { 0 };
	uint32_t *alike, i = 0;
	char label[LABEL_BYTES];
	int e = m ? layouts_group(t, &a, &alike) : -ENOMEM;

	for (; i < t->ntensor && !e; i++)
		if (t->tensor[i].layout != TABLE_NONE && t->tensor[i].cls != CKPT_SINK)
			e = tensor_owners(t, i, alike, who, m, fn, arg);
	if (m)
		arena_free(&m->arena);
	arena_free(&a);
	if (e == -ENOMEM)
		ckpt_error(err, e, "out of memory for the owners of %u tensors", t->ntensor);
	else if (e == -E2BIG)
		ckpt_error(err, e, "%s: its shares are too interleaved to plan",
			   table_tensor_print(&t->tensor[i - 1], label, sizeof label));
	return e;
}
