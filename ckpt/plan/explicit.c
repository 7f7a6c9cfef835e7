/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit.c - finds the changes of a load. Called by the verbs that load, and by the daemon.
 * Invariant: a tensor that is not on every rank what it was there is in the list. Where the source
 * does not say what was, it is in the list, too.
 */
#include "ckpt/plan/explicit.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/plan/explicit_copies.h"
#include <stdio.h>

#define LABEL_BYTES 160 /* of a tensor in a message; longer names are cut */
#define AHEAD 8		/* tensors that are asked of memory before they are needed */
#define BIT(kind) EXPLICIT_BIT(kind)

/* --- the kinds --- */

static const struct explicit_words all_words[EXPLICIT_KINDS] = {
	[EXPLICIT_RESHARD] = { "reshard", "ranks hold other elements than they did",
			       "a --layout rule that matches the tensor",
			       "that their rank did not hold" },
	[EXPLICIT_CAST] = { "cast", "it has another dtype", "--dtype, or a cast rule of --view",
			    "are cast" },
	[EXPLICIT_REDUCE] = { "reduce", "a pending reduction is carried out",
			      "a --layout rule that matches the tensor", "of operands are read" },
	[EXPLICIT_REPLICATE] = { "replicate", "more ranks hold the same elements",
				 "--replicate with that mesh dimension, or a --layout rule that "
				 "matches the tensor and that can apply to it",
				 "that ranks hold in addition" },
	[EXPLICIT_DROP] = { "drop", "the result does not have it",
			    "--only, a drop rule of --view, --drop-unsupported, --keep-going",
			    "are left out" },
	[EXPLICIT_CUT] = { "cut", "it has no placements and is cut by default",
			   "a --layout rule that matches the tensor",
			   "that their rank did not hold" },
};

const struct explicit_words *explicit_words(enum explicit_kind kind)
{
	return &all_words[kind];
}

static bool kind_find(const char *word, size_t len, uint32_t *ret)
{
	for (*ret = 0; *ret < EXPLICIT_KINDS; ++*ret)
		if (strlen(all_words[*ret].name) == len && !memcmp(all_words[*ret].name, word, len))
			return true;
	return false;
}

int explicit_parse(const char *words, const char *option, uint32_t *ret, struct ckpt_err *err)
{
	char wrong[400] = "", known[200] = "";
	uint32_t kind;

	for (const char *p = words; p;) {
		size_t n = strcspn(p, ",");

		if (kind_find(p, n, &kind))
			*ret |= UINT32_C(1) << kind;
		else
			human_add(wrong, sizeof wrong, ", ", "\"%.*s\"", (int)MIN(n, (size_t)60),
				  p);
		p = p[n] ? p + n + 1 : NULL;
	}
	for (uint32_t k = 0; k < EXPLICIT_KINDS; k++)
		human_add(known, sizeof known, ", ", "%s", all_words[k].name);
	return *wrong ? ckpt_error(err, -EINVAL, "%s %.100s: there is no %s; the kinds are %s",
				   option, words, wrong, known)
		      : 0;
}

/* --- sums that may be too large --- */

static void add_product(uint64_t *sum, uint64_t n, uint64_t by)
{
	if (ckpt_mul(n, by, &n) || ckpt_add(*sum, n, sum))
		*sum = UINT64_MAX;
}

static uint64_t product(uint64_t n, uint64_t by)
{
	uint64_t sum = 0;

	add_product(&sum, n, by);
	return sum;
}

/* --- who holds what --- */

enum whence {
	FROM_LAYOUT, /* all that each rank holds */
	FROM_PIECES, /* what each rank wrote of it; others may hold it, too */
	FROM_PLACES, /* what lies somewhere; no rank held it */
};

struct holding {
	enum whence whence;
	uint32_t operands; /* of a pending reduction; 1 */
	uint32_t n, cap;
	struct held *at; /* by rank; of one rank none overlap */
};

struct finding {
	const struct explicit_opts *opts;
	struct explicit_found *found;
	struct arena arena;  /* what finds groups */
	struct keymap index; /* of groups */
	struct arena one;    /* of the group that is looked at */
	struct holding old, new;
	uint32_t *member, *first; /* tensors of dst by group */
	uint32_t *src;		  /* of each tensor of dst */
	struct ckpt_err *err;
};

static int hold(struct holding *h, uint32_t rank, const struct indexset *set)
{
	if (!set->numel)
		return 0;
	if (!ARRAY_GROW(h->at, h->n, h->cap))
		return -ENOMEM;
	h->at[h->n++] = (struct held){ rank, *set };
	return 0;
}

static int held_compare(const void *va, const void *vb)
{
	const struct held *a = va, *b = vb;

	return COMPARE(a->rank, b->rank);
}

static uint32_t operands_of(const struct mesh *m, const struct layout *l)
{
	uint32_t n = 1;

	for (uint32_t i = 0; i < l->nplace; i++)
		n *= l->place[i].how == CKPT_PARTIAL ? m->dim[l->place[i].mesh_dim] : 1;
	return n;
}

static int hold_shares(struct holding *h, const struct mesh *m, const struct layout *l,
		       const struct table_tensor *x, struct arena *a)
{
	uint32_t coord[CKPT_DIMS_MAX];
	struct indexset set;
	int rc = 0;

	h->whence = FROM_LAYOUT;
	h->operands = operands_of(m, l);
	for (uint32_t i = 0; i < m->nrank && !rc; i++) {
		mesh_place_coord(m, i, coord);
		rc = layout_share(m, l, x->ndim, x->shape, coord, a, &set);
		if (!rc)
			rc = hold(h, m->rank[i], &set);
	}
	return rc;
}

static int hold_pieces(struct holding *h, const struct table *t, uint32_t tensor)
{
	int rc = 0;

	h->whence = FROM_PIECES;
	h->operands = 1;
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1] && !rc; i++) {
		rc = hold(h, t->piece[i].rank, &t->piece[i].set);
		if (t->piece[i].rank == TABLE_NONE)
			h->whence = FROM_PLACES;
	}
	return rc;
}

static bool has_layout(const struct table *t, const struct table_tensor *x)
{
	return x->layout != TABLE_NONE && t->layout[x->layout].mode != CKPT_BOXES;
}

/* target: what has no layout is complete on every rank. */
static int holding_make(struct finding *k, struct holding *h, const struct table *t,
			uint32_t tensor, bool target)
{
	static const struct layout whole;
	const struct table_tensor *x = &t->tensor[tensor];
	char label[LABEL_BYTES];
	int rc;

	h->n = 0;
	if (has_layout(t, x)) {
		const struct layout *l = &t->layout[x->layout];

		rc = hold_shares(h, &t->mesh[l->mesh], l, x, &k->one);
	} else {
		rc = target ? hold_shares(h, &t->mesh[0], &whole, x, &k->one)
			    : hold_pieces(h, t, tensor);
	}
	if (rc)
		return ckpt_error(k->err, rc,
				  rc == -ENOMEM ? "%s: out of memory for what its ranks hold"
						: "%s: what its ranks hold cannot be counted",
				  table_tensor_print(x, label, sizeof label));
	if (h->n)
		qsort(h->at, h->n, sizeof *h->at, held_compare);
	return 0;
}

/* --- two holdings compared --- */

static uint64_t common_numel(const struct indexset *x, const struct indexset *y)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < x->ndim && n; d++)
		n *= indices_common(&x->dim[d], &y->dim[d]).n;
	return n;
}

/* One rank's: entries [at, end) of a holding. */
struct mine {
	uint32_t at, end;
	uint64_t numel;
};

static struct mine mine_take(const struct holding *h, uint32_t from, uint32_t rank)
{
	struct mine m = { .at = from, .end = from };

	while (m.end < h->n && h->at[m.end].rank == rank)
		add_product(&m.numel, h->at[m.end++].set.numel, 1);
	return m;
}

static uint64_t mine_common(const struct holding *old, const struct mine *a,
			    const struct holding *new, const struct mine *b)
{
	uint64_t n = 0;

	for (uint32_t i = a->at; i < a->end; i++)
		for (uint32_t j = b->at; j < b->end; j++)
			add_product(&n, common_numel(&old->at[i].set, &new->at[j].set), 1);
	return n;
}

/* Is it what some rank held? near: where that may be. */
static bool is_share(const struct holding *old, const struct indexset *set, uint32_t near)
{
	for (uint32_t i = 0; i < old->n; i++)
		if (indexset_equal(&old->at[(near + i) % old->n].set, set))
			return true;
	return false;
}

struct compared {
	uint64_t old, new, moved; /* elements: of all ranks; new ones that their rank lacked */
	bool changed, partial;	  /* partial: a rank of the new ones does not hold all */
};

static void rank_compare(const struct finding *k, struct mine a, struct mine b,
			 struct compared *ret)
{
	uint64_t both = mine_common(&k->old, &a, &k->new, &b);
	bool newcomer = a.at == a.end;

	add_product(&ret->old, a.numel, 1);
	add_product(&ret->new, b.numel, 1);
	add_product(&ret->moved, b.numel - both, 1);
	if (k->old.whence == FROM_LAYOUT && !newcomer)
		ret->changed |= a.numel != both || b.numel != both;
	if (k->old.whence == FROM_LAYOUT && newcomer && !ret->changed)
		ret->changed = b.end - b.at > 1 || !is_share(&k->old, &k->new.at[b.at].set, b.at);
	if (k->old.whence == FROM_PIECES)
		ret->changed |= both < a.numel;
}

static struct compared holdings_compare(const struct finding *k, uint64_t numel)
{
	struct compared ret = { 0 };
	uint32_t i = 0, j = 0;

	while (i < k->old.n || j < k->new.n) {
		uint32_t rank = MIN(i < k->old.n ? k->old.at[i].rank : UINT32_MAX,
				    j < k->new.n ? k->new.at[j].rank : UINT32_MAX);
		struct mine a = mine_take(&k->old, i, rank), b = mine_take(&k->new, j, rank);

		rank_compare(k, a, b, &ret);
		i = a.end;
		j = b.end;
		ret.partial |= b.numel && b.numel < numel;
	}
	if (k->old.whence == FROM_PLACES)
		ret.changed = ret.partial || k->old.n > 1;
	return ret;
}

/* --- what is found of a group --- */

/* Bit per mesh dimension, larger than 1, over which all hold the same. */
static uint32_t copied_over(const struct mesh *m, const struct layout *l)
{
	uint32_t bits = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		bits |= (m->dim[d] > 1 ? UINT32_C(1) : 0) << d;
	for (uint32_t i = 0; l && i < l->nplace; i++)
		if (l->place[i].how != CKPT_REPLICATE)
			bits &= ~(UINT32_C(1) << l->place[i].mesh_dim);
	return bits;
}

/* Had it as many copies over a dimension of that name? */
static bool was_copied(const struct table *src, const struct table_tensor *y, const char *name,
		       uint32_t size)
{
	const struct layout *l = has_layout(src, y) ? &src->layout[y->layout] : NULL;
	const struct mesh *m = l ? &src->mesh[l->mesh] : NULL;

	for (uint32_t d = 0; m && d < m->ndim; d++)
		if (!strcmp(m->name[d], name))
			return copied_over(m, l) >> d & 1 && m->dim[d] >= size;
	return false;
}

/* Are all its new copies over dimensions that opts->replicate names? */
static bool copies_asked(const struct finding *k, const struct explicit_group *g)
{
	const struct table *dst = k->found->dst;
	const struct table_tensor *x = &dst->tensor[g->dst];
	const struct layout *l = has_layout(dst, x) ? &dst->layout[x->layout] : NULL;
	const struct mesh *m = dst->nmesh ? &dst->mesh[l ? l->mesh : 0] : NULL;
	uint32_t bits = m ? copied_over(m, l) & ~k->opts->replicate : 0;

	if (!k->opts->replicate)
		return false;
	for (uint32_t d = 0; m && d < m->ndim; d++)
		if (bits >> d & 1 && !was_copied(k->found->src, &k->found->src->tensor[g->src],
						 m->name[d], m->dim[d]))
			return false;
	return true;
}

static void kind_found(struct explicit_group *g, enum explicit_kind kind, uint64_t price)
{
	g->found |= UINT32_C(1) << kind;
	g->price[kind] = price;
}

/* Bytes of an element where it is read: of one that is derived, those of what it is the rounding
 * of. */
static uint32_t stored_elem(const struct table *t, uint32_t tensor)
{
	uint32_t i = t->first[tensor];

	return i < t->first[tensor + 1] ? table_piece_bytes(t, &t->piece[i]).elem
					: t->tensor[tensor].elem_bytes;
}

/* Is the reduction still pending, operand by operand? */
static bool same_layout(const struct finding *k, const struct explicit_group *g)
{
	const struct explicit_found *f = k->found;

	return has_layout(f->src, &f->src->tensor[g->src]) &&
	       table_layout_equal(f->src, f->src->tensor[g->src].layout, f->dst,
				  f->dst->tensor[g->dst].layout);
}

static bool is_partial(const struct table *t, const struct table_tensor *x)
{
	return x->layout != TABLE_NONE && layout_is_partial(&t->layout[x->layout]);
}

/* What a layout says has equally many copies of each element. */
static struct copies copies_of(const struct holding *h, uint64_t held, uint64_t numel)
{
	bool even = h->whence == FROM_LAYOUT && numel && held % numel == 0;

	return (struct copies){ even ? held / numel : 0, h->operands, h->n, h->at };
}

/* How many elements ranks hold in addition. Where there are too many ranges to compare, all that
 * its rank did not hold. -ENOMEM. */
static int added_copies(const struct finding *k, const struct table_tensor *x,
			const struct compared *c, uint64_t *ret)
{
	struct copies old = copies_of(&k->old, c->old, x->numel);
	struct copies new = copies_of(&k->new, c->new, x->numel);
	int rc;

	*ret = 0;
	if (!x->numel || (c->moved == 0 && k->old.operands == k->new.operands))
		return 0;
	rc = copies_added(x->ndim, x->shape, &old, &new, ret);
	if (rc == -E2BIG)
		*ret = c->moved;
	return rc == -E2BIG ? 0 : rc;
}

static int placing_judge(const struct finding *k, struct explicit_group *g,
			 const struct compared *c)
{
	const struct explicit_found *f = k->found;
	const struct table_tensor *y = &f->src->tensor[g->src], *x = &f->dst->tensor[g->dst];
	bool reduces = is_partial(f->src, y) && !same_layout(k, g) && !MUTANT(EXPLICIT_NO_REDUCE);
	/* Operands may be at other ranks although all hold the same elements. */
	bool moves = c->changed || (is_partial(f->dst, x) && !same_layout(k, g));
	uint32_t elem = y->elem_bytes;
	char label[LABEL_BYTES];
	uint64_t added;
	int rc;

	g->moved = product(c->moved, elem);
	g->read = product(c->new, stored_elem(f->src, g->src));
	if (reduces) {
		kind_found(g, EXPLICIT_REDUCE, product(g->bytes, k->old.operands));
		g->read = product(g->read, k->old.operands);
		/* Of each element all operands but the rank's own. */
		g->moved = product(product(c->new, elem), k->old.operands) -
			   product(c->new - c->moved, elem);
	}
	if (moves)
		kind_found(g,
			   k->opts->target && k->old.whence != FROM_LAYOUT && c->partial
				   ? EXPLICIT_CUT
				   : EXPLICIT_RESHARD,
			   g->moved);
	rc = added_copies(k, x, c, &added);
	if (rc)
		return ckpt_error(k->err, rc, "%s: out of memory for the copies of its elements",
				  table_tensor_print(x, label, sizeof label));
	if (added > 0) {
		kind_found(g, EXPLICIT_REPLICATE, product(added, elem));
		if (copies_asked(k, g))
			g->asked |= BIT(REPLICATE);
	}
	return 0;
}

/* A blob of a rank: which rank has it now? */
static void blob_judge(const struct finding *k, struct explicit_group *g)
{
	const struct table_tensor *x = &k->found->dst->tensor[g->dst];
	const struct mesh *m = k->found->dst->mesh;

	g->held = g->read = g->bytes;
	if (!k->opts->target || x->rank == TABLE_NONE || x->rank < m->nrank)
		return;
	g->moved = g->bytes;
	kind_found(g, EXPLICIT_RESHARD, g->bytes);
}

static bool is_dropped(const struct finding *k, const struct explicit_group *g)
{
	const struct explicit_found *f = k->found;

	return g->dst == TABLE_NONE ||
	       (k->opts->target && f->dst->tensor[g->dst].cls == CKPT_SINK &&
		f->src->tensor[g->src].cls != CKPT_SINK);
}

static int group_judge(struct finding *k, struct explicit_group *g)
{
	const struct explicit_found *f = k->found;
	const struct table_tensor *y = &f->src->tensor[g->src];
	const struct table_tensor *x = g->dst == TABLE_NONE ? y : &f->dst->tensor[g->dst];
	struct compared c;
	int rc;

	arena_free(&k->one);
	k->old.n = k->new.n = 0;
	g->bytes = table_tensor_bytes(y);
	if (is_dropped(k, g)) {
		kind_found(g, EXPLICIT_DROP, g->bytes);
		return 0;
	}
	if (x->flags & TENSOR_BLOB) {
		blob_judge(k, g);
		return 0;
	}
	if (y->dtype != x->dtype)
		kind_found(g, EXPLICIT_CAST, g->bytes);
	rc = holding_make(k, &k->old, f->src, g->src, false);
	if (!rc)
		rc = holding_make(k, &k->new, f->dst, g->dst, k->opts->target);
	if (rc)
		return rc;
	c = holdings_compare(k, x->numel);
	g->held = product(c.new, x->elem_bytes);
	return placing_judge(k, g, &c);
}

/* --- pieces that are not where their layout says --- */

static const struct held *held_of(const struct holding *h, uint32_t rank)
{
	uint32_t at = SEARCH(i, 0u, h->n, h->at[i].rank < rank);

	return at < h->n && h->at[at].rank == rank ? &h->at[at] : NULL;
}

static bool is_stray(const struct finding *k, uint32_t src)
{
	const struct table *t = k->found->src;

	for (uint32_t i = t->first[src]; i < t->first[src + 1]; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct held *h = held_of(&k->old, p->rank);

		if (p->rank != TABLE_NONE && (!h || common_numel(&p->set, &h->set) != p->set.numel))
			return !MUTANT(EXPLICIT_TRUSTS_LAYOUT);
	}
	return false;
}

/* --- groups --- */

static uint64_t pieces_hash(const struct table *t, uint32_t tensor, uint64_t hash)
{
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++) {
		const struct table_piece *p = &t->piece[i];
		const uint64_t key[] = { p->rank, p->set.numel,
					 p->set.ndim ? indices_lo(&p->set.dim[0]) : 0 };

		hash = key_hash(hash, key, sizeof key);
	}
	return hash;
}

static bool pieces_alike(const struct table *t, uint32_t a, uint32_t b)
{
	uint32_t n = t->first[a + 1] - t->first[a];

	if (n != t->first[b + 1] - t->first[b])
		return false;
	for (uint32_t i = 0; i < n; i++) {
		const struct table_piece *p = &t->piece[t->first[a] + i],
					 *q = &t->piece[t->first[b] + i];

		if (p->rank != q->rank || !indexset_equal(&p->set, &q->set))
			return false;
	}
	return true;
}

/* Does another rank carry it? */
static bool is_carried(const struct finding *k, const struct table_tensor *x)
{
	return k->opts->target && x->rank != TABLE_NONE && x->rank >= k->found->dst->mesh->nrank;
}

static uint32_t asked_of(const struct finding *k, uint32_t dst)
{
	uint32_t of = dst != TABLE_NONE && k->opts->asked ? k->opts->asked[dst] : 0;

	return of | k->opts->asked_all;
}

static uint64_t group_hash(const struct finding *k, uint32_t src, uint32_t dst)
{
	const struct explicit_found *f = k->found;
	const struct table_tensor *y = &f->src->tensor[src];
	const struct table_tensor *x = dst == TABLE_NONE ? y : &f->dst->tensor[dst];
	const uint32_t key[] = { y->layout,	   dst == TABLE_NONE ? TABLE_NONE : x->layout,
				 y->dtype,	   x->dtype,
				 x->cls,	   x->flags,
				 y->ndim,	   asked_of(k, dst),
				 dst == TABLE_NONE };
	uint64_t hash = key_hash(0, key, sizeof key);

	hash = key_hash(hash, y->shape, y->ndim * sizeof *y->shape);
	if (!has_layout(f->src, y) && !(y->flags & TENSOR_BLOB))
		hash = pieces_hash(f->src, src, hash);
	return hash;
}

/* Is the tensor like those of the group? */
static bool group_takes(const struct finding *k, const struct explicit_group *g, uint32_t src,
			uint32_t dst)
{
	const struct explicit_found *f = k->found;
	const struct table_tensor *y = &f->src->tensor[src], *gy = &f->src->tensor[g->src];
	const struct table_tensor *x, *gx;

	if (y->layout != gy->layout || y->dtype != gy->dtype || y->flags != gy->flags ||
	    stored_elem(f->src, src) != stored_elem(f->src, g->src) || !table_shape_same(y, gy) ||
	    (dst == TABLE_NONE) != (g->dst == TABLE_NONE))
		return false;
	if (!has_layout(f->src, y) && !(y->flags & TENSOR_BLOB) &&
	    !pieces_alike(f->src, src, g->src))
		return false;
	if (dst == TABLE_NONE)
		return true;
	x = &f->dst->tensor[dst];
	gx = &f->dst->tensor[g->dst];
	if (x->layout != gx->layout || x->dtype != gx->dtype ||
	    (x->cls == CKPT_SINK) != (gx->cls == CKPT_SINK) ||
	    is_carried(k, x) != is_carried(k, gx) || asked_of(k, dst) != asked_of(k, g->dst))
		return false;
	return k->opts->target || has_layout(f->dst, x) || x->flags & TENSOR_BLOB ||
	       pieces_alike(f->dst, dst, g->dst);
}

static int group_add(struct finding *k, const struct explicit_group *g, uint32_t *ret)
{
	struct explicit_found *f = k->found;

	if (!ARRAY_GROW(f->group, f->ngroup, f->cap))
		return ckpt_error(k->err, -ENOMEM, "out of memory for kinds of tensors");
	*ret = f->ngroup;
	f->group[f->ngroup++] = *g;
	return 0;
}

static int group_find(struct finding *k, uint32_t src, uint32_t dst, uint32_t *ret)
{
	struct explicit_found *f = k->found;
	uint64_t hash = group_hash(k, src, dst);
	int rc;

	for (uint32_t at = 0, i; (i = keymap_next(&k->index, hash, &at)) != KEYMAP_NONE;)
		if (group_takes(k, &f->group[i], src, dst)) {
			f->group[i].ntensor++;
			*ret = i;
			return 0;
		}
	if (keymap_reserve(&k->index, &k->arena, 1))
		return ckpt_error(k->err, -ENOMEM, "out of memory for kinds of tensors");
	rc = group_add(k,
		       &(struct explicit_group){
			       .src = src, .dst = dst, .ntensor = 1, .asked = asked_of(k, dst) },
		       ret);
	if (!rc)
		keymap_put(&k->index, hash, *ret);
	return rc;
}

static bool is_wanted(const struct finding *k, const struct table_tensor *x)
{
	return !k->opts->wanted || k->opts->wanted(k->opts->arg, x);
}

static void find_soon(const struct explicit_found *f, uint32_t dst)
{
	const struct table_tensor *x = dst < f->dst->ntensor ? &f->dst->tensor[dst] : NULL;

	if (x)
		table_find_soon(f->src, x->component, x->name, x->rank);
}

static int tensors_group(struct finding *k)
{
	struct explicit_found *f = k->found;
	int rc = 0;

	k->src = calloc((size_t)f->dst->ntensor + 1, sizeof *k->src);
	if (!k->src)
		return ckpt_error(k->err, -ENOMEM, "out of memory for kinds of tensors");
	for (uint32_t i = 0; i < f->dst->ntensor && !rc; i++) {
		const struct table_tensor *x = &f->dst->tensor[i];
		uint32_t src = table_find(f->src, x->component, x->name, x->rank);

		find_soon(f, i + AHEAD);
		k->src[i] = src;
		f->of_dst[i] = TABLE_NONE;
		/* What does not fit at all is no change: plan_make refuses it. */
		if (src != TABLE_NONE && is_wanted(k, x) &&
		    table_shape_same(x, &f->src->tensor[src]))
			rc = group_find(k, src, i, &f->of_dst[i]);
	}
	for (uint32_t i = 0; i < f->src->ntensor && !rc; i++) {
		const struct table_tensor *y = &f->src->tensor[i];

		f->of_src[i] = TABLE_NONE;
		if (k->opts->drops && is_wanted(k, y) &&
		    table_find(f->dst, y->component, y->name, y->rank) == TABLE_NONE)
			rc = group_find(k, i, TABLE_NONE, &f->of_src[i]);
	}
	return rc;
}

/* Those whose pieces are not where the group's layout says become a group of their own. */
static int strays_part(struct finding *k, uint32_t group)
{
	struct explicit_found *f = k->found;
	struct explicit_group stray = f->group[group];
	uint32_t apart = TABLE_NONE;
	int rc = 0;

	if (stray.dst == TABLE_NONE || !has_layout(f->src, &f->src->tensor[stray.src]) ||
	    stray.found & BIT(DROP) || f->src->tensor[stray.src].flags & TENSOR_BLOB)
		return 0;
	stray.stray = true;
	stray.ntensor = 0;
	kind_found(&stray, EXPLICIT_RESHARD, stray.bytes);
	for (uint32_t i = k->first[group]; i < k->first[group + 1] && !rc; i++) {
		uint32_t dst = k->member[i];
		uint32_t src = k->src[dst];

		if (!is_stray(k, src))
			continue;
		if (apart == TABLE_NONE) {
			stray.src = src;
			stray.dst = dst;
			rc = group_add(k, &stray, &apart);
			if (rc)
				break;
		}
		f->of_dst[dst] = apart;
		f->group[apart].ntensor++;
		f->group[group].ntensor--;
	}
	return rc;
}

/* k->member: the tensors of dst by group. */
static int members_sort(struct finding *k)
{
	struct explicit_found *f = k->found;

	k->member = calloc((size_t)f->dst->ntensor + 1, sizeof *k->member);
	k->first = calloc((size_t)f->ngroup + 2, sizeof *k->first);
	if (!k->member || !k->first)
		return ckpt_error(k->err, -ENOMEM, "out of memory for kinds of tensors");
	for (uint32_t i = 0; i < f->dst->ntensor; i++)
		if (f->of_dst[i] != TABLE_NONE)
			k->first[f->of_dst[i] + 2]++;
	for (uint32_t i = 0; i < f->ngroup; i++)
		k->first[i + 2] += k->first[i + 1];
	for (uint32_t i = 0; i < f->dst->ntensor; i++)
		if (f->of_dst[i] != TABLE_NONE)
			k->member[k->first[f->of_dst[i] + 1]++] = i;
	return 0;
}

static int groups_judge(struct finding *k)
{
	struct explicit_found *f = k->found;
	uint32_t n = f->ngroup; /* strays come behind them */
	int rc = members_sort(k);

	for (uint32_t i = 0; i < n && !rc; i++) {
		rc = group_judge(k, &f->group[i]);
		if (!rc)
			rc = strays_part(k, i);
	}
	for (uint32_t i = 0; i < f->ngroup; i++)
		f->group[i].asked &= f->group[i].found;
	return rc;
}

int explicit_find(const struct table *src, const struct table *dst,
		  const struct explicit_opts *opts, struct explicit_found *ret,
		  struct ckpt_err *err)
{
	static const struct explicit_opts defaults;
	struct finding k = { .opts = opts ? opts : &defaults, .found = ret, .err = err };
	int rc = 0;

	assert(src->sealed && dst->sealed);
	*ret = (struct explicit_found){ .src = src, .dst = dst };
	ret->of_dst = calloc((size_t)dst->ntensor + 1, sizeof *ret->of_dst);
	ret->of_src = calloc((size_t)src->ntensor + 1, sizeof *ret->of_src);
	if (!ret->of_dst || !ret->of_src)
		rc = ckpt_error(err, -ENOMEM, "out of memory for kinds of tensors");
	if (!rc)
		rc = tensors_group(&k);
	if (!rc)
		rc = groups_judge(&k);
	free(k.src);
	free(k.member);
	free(k.first);
	free(k.old.at);
	free(k.new.at);
	arena_free(&k.one);
	arena_free(&k.arena);
	return rc;
}

void explicit_free(struct explicit_found *f)
{
	free(f->group);
	free(f->of_dst);
	free(f->of_src);
	*f = (struct explicit_found){ 0 };
}

/* --- what nobody asked for --- */

uint64_t explicit_count(const struct explicit_found *f, uint32_t allow, uint32_t *ret_ntensor)
{
	uint64_t n = 0;

	*ret_ntensor = 0;
	for (uint32_t i = 0; i < f->ngroup; i++) {
		uint32_t unasked = explicit_unasked(&f->group[i], allow);

		n += (uint64_t)__builtin_popcount(unasked) * f->group[i].ntensor;
		*ret_ntensor += unasked ? f->group[i].ntensor : 0;
	}
	return n;
}

static void each_of(const struct explicit_found *f, uint32_t allow, const uint32_t *of,
		    const struct table *t, explicit_fn *fn, void *arg)
{
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct explicit_group *g = of[i] == TABLE_NONE ? NULL : &f->group[of[i]];
		uint32_t unasked = g ? explicit_unasked(g, allow) : 0;

		for (; unasked; unasked &= unasked - 1)
			fn(arg, g, (enum explicit_kind)__builtin_ctz(unasked), &t->tensor[i]);
	}
}

void explicit_each(const struct explicit_found *f, uint32_t allow, explicit_fn *fn, void *arg)
{
	each_of(f, allow, f->of_dst, f->dst, fn, arg);
	each_of(f, allow, f->of_src, f->src, fn, arg);
}

/* --- in words --- */

static void side_add(struct text *t, const struct table *x, uint32_t tensor, bool target)
{
	const struct table_tensor *y = &x->tensor[tensor];
	uint32_t n = x->first[tensor + 1] - x->first[tensor];
	char placements[700], mesh[512];

	if (y->flags & TENSOR_BLOB)
		text_add(t, y->rank == TABLE_NONE ? "blob of all ranks" : "blob of one rank");
	else if (has_layout(x, y))
		text_add(t, "%s on %s",
			 table_layout_print(x, y->layout, placements, sizeof placements),
			 mesh_print(&x->mesh[x->layout[y->layout].mesh], mesh, sizeof mesh));
	else if (target && x->nmesh)
		text_add(t, "complete on every rank of %s",
			 mesh_print(&x->mesh[0], mesh, sizeof mesh));
	else
		text_add(t, "no placements, %u piece%s", n, n == 1 ? "" : "s");
}

char *explicit_change_print(const struct explicit_found *f, const struct explicit_group *g,
			    char *buf, size_t bytes)
{
	const struct table_tensor *y = &f->src->tensor[g->src];
	struct text t = text_in(buf, bytes);

	side_add(&t, f->src, g->src, false);
	text_add(&t, " -> ");
	if (g->found & BIT(DROP))
		text_add(&t, "not in the result");
	else
		side_add(&t, f->dst, g->dst, true);
	if (g->found & BIT(CAST))
		text_add(&t, ", %s -> %s", dtype_name(y->dtype),
			 dtype_name(f->dst->tensor[g->dst].dtype));
	if (g->stray)
		text_add(&t, " (its pieces are not where this layout says)");
	return buf;
}

char *explicit_line_print(const struct explicit_found *f, const struct explicit_group *g,
			  enum explicit_kind kind, const struct table_tensor *x, char *buf,
			  size_t bytes)
{
	char label[LABEL_BYTES], change[2048];
	struct text t = text_in(buf, bytes);

	text_add(&t, "%s: %s, %s: %s", table_tensor_print(x, label, sizeof label),
		 all_words[kind].name, explicit_change_print(f, g, change, sizeof change),
		 g->price[kind] == UINT64_MAX ? "more bytes than can be counted"
					      : BYTES_TEXT(g->price[kind]));
	return buf;
}
