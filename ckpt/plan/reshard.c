/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard.c - a rank's operations, from declarations. Called to open a part of a
 * checkpoint, and to estimate what a move would cost. Invariant: for every tensor with
 * a layout the parts that are handed out of each operand are the rank's share, each element once
 * (OWNERS and ONE).
 */
#include "ckpt/plan/reshard.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
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

/* dst: alike layout and rank, of the share that is asked for. TABLE_NONE: all of the tensor. */
struct question {
	uint32_t src, dst, rank, ndim, elem_bytes;
	const uint64_t *shape;
};

/* What its answer is made of. coord NULL: no share is asked for, but all holders. */
struct facts {
	const struct mesh *src_mesh, *dst_mesh;
	const struct layout *src, *dst;
	const uint32_t *coord;
};

struct answer {
	struct question q;
	struct indexset share;
	struct holders h;
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
	       x->elem_bytes == y->elem_bytes &&
	       !memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape);
}

/* Where it is, or where it goes. */
static const struct answer **memo_slot(struct memo *m, const struct question *q)
{
	uint64_t h =
		hash_mix((uint64_t)q->src << 32 | q->dst, (uint64_t)q->rank << 32 | q->elem_bytes);
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

static int answer_find(struct answer *x, const struct facts *f, struct arena *a)
{
	struct holders_kind kind = { f->src_mesh, f->src, x->q.ndim, x->q.elem_bytes, x->q.shape };
	int e = 0;

	if (f->coord)
		e = layout_share(f->dst_mesh, f->dst, x->q.ndim, x->q.shape, f->coord, a,
				 &x->share);
	if (!e && f->src)
		e = holders_find(&kind, f->coord ? &x->share : NULL, a, &x->h);
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

struct reshard {
	const struct table *src, *dst;
	struct reshard_opts opts;
	struct arena arena;
	uint32_t *src_of;		 /* [dst tensors]; UNMATCHED; TABLE_NONE: nothing to do */
	uint32_t *src_alike, *dst_alike; /* [layouts] */
	uint32_t *order;		 /* dst tensors by layout, those without one last */
	uint32_t *first;		 /* [dst layouts + 2]: of each layout in `order` */
	struct rank_map ranks;		 /* of dst */
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

static int tensors_group(struct reshard *r)
{
	uint32_t n = r->dst->ntensor, nlayout = r->dst->nlayout;
	uint32_t *bucket = arena_array(&r->arena, (size_t)n + 1, sizeof *bucket);

	r->src_of = arena_array(&r->arena, (size_t)n + 1, sizeof *r->src_of);
	r->order = arena_array(&r->arena, (size_t)n + 1, sizeof *r->order);
	r->first = arena_array(&r->arena, (size_t)nlayout + 3, sizeof *r->first);
	if (!bucket || !r->src_of || !r->order || !r->first)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		bucket[i] = MIN(r->dst->tensor[i].layout, nlayout);
		r->src_of[i] = UNMATCHED;
		r->first[bucket[i] + 2]++;
	}
	for (uint32_t l = 0; l <= nlayout; l++)
		r->first[l + 1] += r->first[l];
	/* first[l + 1] runs from where l begins to where it ends. */
	for (uint32_t i = 0; i < n; i++)
		r->order[r->first[bucket[i] + 1]++] = i;
	return 0;
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
			e = tensors_group(r);
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

/* coord: of the rank in the mesh of dst; anything where the tensor has no layout. */
static int tensor_stream(struct stream *s, uint32_t dst_tensor, const struct mesh *mesh,
			 const struct layout *layout, const uint32_t *coord)
{
	struct reshard *r = s->r;
	struct reshard_op op = { .dst_tensor = dst_tensor };
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
	struct facts f = { from ? &r->src->mesh[from->mesh] : NULL, mesh, from, layout, coord };
	const struct answer *answer;
	struct holders_cursor cursor;
	struct holder h;
	int e = memo_find(&r->memo, &q, &f, &answer);

	if (e)
		return stream_fail(s, x, e);
	op.share = answer->share;
	if (!from) {
		op.owned = op.part = op.share;
		op.src_rank = blob_keeper(r->src, x);
		return op.share.numel ? hand_out(s, &op) : 0;
	}
	holders_begin(&answer->h, from, as->component, as->name, r->opts.who, s->rank, &cursor);
	while (!e && holders_next(&cursor, &h)) {
		op.src_rank = h.rank;
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

/* A tensor without a layout is whole on all ranks, and a rank's blob on the rank of its number. */
static bool is_kept(const struct reshard *r, uint32_t tensor, uint32_t rank)
{
	uint32_t of = r->dst->tensor[tensor].rank;
	uint32_t world = r->dst->nmesh ? r->dst->mesh[0].nrank : 0;

	return of == TABLE_NONE || (world ? of % world : of) == rank;
}

static int loose_stream(struct stream *s)
{
	static const struct layout whole;
	struct reshard *r = s->r;
	const uint32_t nowhere = 0;
	int e = 0;

	for (uint32_t i = r->first[r->dst->nlayout]; i < r->first[r->dst->nlayout + 1] && !e; i++)
		if (is_kept(r, r->order[i], s->rank))
			e = tensor_stream(s, r->order[i], NULL, &whole, &nowhere);
	return e;
}

static int layouts_stream(struct stream *s)
{
	struct reshard *r = s->r;
	uint32_t coord[CKPT_DIMS_MAX], mesh = TABLE_NONE;
	int e = 0, inside = 0;

	for (uint32_t l = 0; l < r->dst->nlayout && !e; l++) {
		const struct layout *layout = &r->dst->layout[l];

		if (r->first[l] == r->first[l + 1])
			continue;
		if (layout->mesh != mesh)
			inside = rank_map_coord(&r->ranks, layout->mesh, s->rank, coord);
		mesh = layout->mesh;
		if (inside < 0)
			return ckpt_error(s->err, inside, "out of memory for the ranks of a mesh");
		if (!inside || !lives_at(layout, coord))
			continue;
		for (uint32_t i = r->first[l]; i < r->first[l + 1] && !e; i++)
			e = tensor_stream(s, r->order[i], &r->dst->mesh[mesh], layout, coord);
	}
	return e ? e : loose_stream(s);
}

int reshard_rank(struct reshard *r, uint32_t rank, reshard_fn *fn, void *arg, struct ckpt_err *err)
{
	struct stream s = { .r = r,
			    .rank = rank,
			    .fn = fn,
			    .arg = arg,
			    .list = { .code = -EMEDIUMTYPE },
			    .err = err };
	int e = layouts_stream(&s);

	if (!e)
		e = ckpt_errlist_end(&s.list, err, "the checkpoint does not fit what is declared");
	ckpt_errlist_free(&s.list);
	return e;
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
	struct question q = { alike[x->layout], TABLE_NONE,	TABLE_NONE,
			      x->ndim,		as->elem_bytes, x->shape };
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
