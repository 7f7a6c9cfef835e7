/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holders.c - the cuts of a layout, backwards. Invariant: a coordinate is enumerated if and only if
 * its share (or, of owners, its part) meets the set that was asked for; every step of the descent
 * from a whole dimension to a share leaves something of the set, so no branch is taken in vain.
 */
#include "ckpt/plan/holders.h"
#include "ckpt/base/util.h"

/* Stretches that are tried one by one before the parts of a strided cut are tried instead. */
#define STRETCHES_MAX 256u
/* What a record costs that is kept: so an answer takes a gigabyte at most. */
#define RECORD_STEPS UINT64_C(8)

/* --- kinds --- */

bool holders_layout_alike(const struct layout *x, const struct layout *y)
{
	if (x->mode != y->mode || x->nplace != y->nplace)
		return false;
	for (uint32_t i = 0; i < x->nplace; i++) {
		const struct ckpt_placement *p = &x->place[i], *q = &y->place[i];

		if (p->how != q->how || p->mesh_dim != q->mesh_dim)
			return false;
		if (p->how == CKPT_SHARD &&
		    (p->tensor_dim != q->tensor_dim || p->split_factor != q->split_factor))
			return false;
	}
	return true;
}

/* --- one cut --- */

/* Positions [0, total) in parts, of which the first `longer` have width + 1 and the others
 * width. */
struct split {
	uint64_t total, width, longer;
};

static uint64_t split_of(const struct split *s, uint64_t position)
{
	uint64_t edge = s->longer * (s->width + 1);

	if (position < edge)
		return position / (s->width + 1);
	return s->longer + (position - edge) / s->width;
}

static uint64_t split_begin(const struct split *s, uint64_t part)
{
	uint64_t longer = MIN(part, s->longer);

	return MIN(part * s->width + longer, s->total);
}

/* The parts of x that meet `want` (NULL: all), ascending. */
struct hits {
	const struct indices *x, *want;
	struct split split;
	struct indices_cursor at;
	uint64_t next, end;
};

static bool hits_next(struct hits *h, uint32_t *ret_part)
{
	struct stretch s;

	if (h->next == h->end) {
		uint64_t from = split_begin(&h->split, h->end);

		if (from >= h->split.total)
			return false;
		if (!h->want) {
			h->next = h->end;
			h->end = split_of(&h->split, h->split.total - 1) + 1;
		} else {
			h->at.at = MAX(h->at.at, indices_at(h->x, from));
			if (!indices_next(h->x, h->want, &h->at, &s))
				return false;
			h->next = split_of(&h->split, s.x_pos);
			h->end = split_of(&h->split, s.x_pos + s.len - 1) + 1;
		}
	}
	*ret_part = (uint32_t)h->next++;
	return true;
}

/* The cuts of one tensor dimension, first applied first. */
struct level {
	uint32_t k, factor;
	bool columns; /* CKPT_UNFLATTEN_PAD */
	uint32_t naxis;
	const struct holders_axis *axis; /* of which its coordinates are the digits */
};

static uint64_t place_of(const struct holders_axis *axis, uint32_t n, uint32_t number)
{
	uint64_t at = 0;

	for (; n-- > 0; number /= axis[n].size)
		at += (uint64_t)(number % axis[n].size) * axis[n].stride;
	return at;
}

static int level_cut(const struct level *l, const struct indices *x, uint32_t r, struct arena *a,
		     struct indices *ret)
{
	return (l->columns ? indices_cut_columns : indices_cut)(x, l->k, r, l->factor, a, ret);
}

/* --- strided cuts: rows of equal length, the last one shorter, each of them cut in k --- */

struct strided {
	const struct level *level;
	uint64_t row, nrow, rest;   /* columns; whole rows; columns of the last one */
	uint64_t chunk, last_chunk; /* of a whole row, and of the last one */
	uint64_t *bits;		    /* [k] coordinates that are hit */
	uint32_t nhit, nany;	    /* any: of all coordinates that get something */
};

static void bit_set(struct strided *s, uint64_t r)
{
	uint64_t bit = UINT64_C(1) << r % 64;

	s->nhit += !(s->bits[r / 64] & bit);
	s->bits[r / 64] |= bit;
}

/* Columns [from, to) of a row. */
static void row_mark(struct strided *s, uint64_t row, uint64_t from, uint64_t to)
{
	uint64_t chunk = row < s->nrow ? s->chunk : s->last_chunk;

	for (uint64_t r = from / chunk; r <= (to - 1) / chunk; r++)
		bit_set(s, r);
}

static void positions_mark(struct strided *s, uint64_t from, uint64_t to)
{
	uint64_t first = from / s->row, last = (to - 1) / s->row;

	if (first == last) {
		row_mark(s, first, from % s->row, to - first * s->row);
		return;
	}
	row_mark(s, first, from % s->row, s->row);
	if (last - first > 1) /* whole rows in between are all alike */
		row_mark(s, first + 1, 0, s->row);
	row_mark(s, last, 0, to - last * s->row);
}

static struct strided strided_of(const struct level *l, uint64_t total)
{
	struct strided s = { .level = l, .row = div_up(total, l->factor) };

	s.nrow = total / s.row;
	s.rest = total % s.row;
	s.chunk = div_up(s.row, l->k);
	s.last_chunk = l->columns || !s.rest ? s.chunk : div_up(s.rest, l->k);
	s.nany = (uint32_t)div_up(s.row, s.chunk);
	if (s.rest)
		s.nany = MAX(s.nany, (uint32_t)div_up(s.rest, s.last_chunk));
	return s;
}

/* --- from a whole dimension to its shares --- */

struct descent {
	const struct indices *want; /* NULL: all */
	uint32_t nlevel;
	struct level level[CKPT_DIMS_MAX];
	struct arena *a;
	struct holders_share *share; /* malloc'ed */
	uint32_t n, cap;
	uint64_t *steps; /* of the answer so far */
};

static int steps_spend(struct descent *d, uint64_t steps)
{
	*d->steps += MIN(steps, HOLDERS_STEPS_MAX);
	return *d->steps > HOLDERS_STEPS_MAX ? -E2BIG : 0;
}

/* What a cut, and what it has in common with the set, may cost at most. */
static int spend_cut(struct descent *d, const struct level *l, const struct indices *x)
{
	uint64_t runs = indices_runs(x);

	return steps_spend(d, x->n + (runs > 1 ? MIN(runs, (uint64_t)l->factor) : 1));
}

static int spend_meeting(struct descent *d, const struct indices *x)
{
	uint64_t x_runs = indices_runs(x), want_runs = indices_runs(d->want);

	return steps_spend(d, x->n + d->want->n + MIN(x_runs, want_runs));
}

/* Too many stretches to look at: cut it for every coordinate that is still open. */
static int strided_try(struct descent *d, struct strided *s, const struct indices *x)
{
	int e = 0;

	for (uint32_t r = 0; r < s->nany && e == 0; r++) {
		struct arena a = { 0 };
		struct indices cut;
		uint64_t first;

		if (s->bits[r / 64] >> r % 64 & 1)
			continue;
		e = spend_cut(d, s->level, x);
		if (e == 0)
			e = level_cut(s->level, x, r, &a, &cut);
		if (e == 0)
			e = spend_meeting(d, &cut);
		if (e == 0 && indices_meet(&cut, d->want, &first))
			bit_set(s, r);
		arena_free(&a);
	}
	return e;
}

static int strided_hits(struct descent *d, struct strided *s, const struct indices *x)
{
	struct indices_cursor at = { 0 };
	struct stretch st;
	uint32_t n = 0;

	if (!d->want) {
		positions_mark(s, 0, x->total);
		return 0;
	}
	while (s->nhit < s->nany && indices_next(x, d->want, &at, &st)) {
		positions_mark(s, st.x_pos, st.x_pos + st.len);
		if (n++ == STRETCHES_MAX)
			return strided_try(d, s, x);
		if (steps_spend(d, s->nany) < 0)
			return -E2BIG;
	}
	return 0;
}

static int share_add(struct descent *d, const struct indices *x, uint64_t at)
{
	struct holders_share s = { .set = *x, .part = *x, .at = at };
	int e = d->want ? spend_meeting(d, x) : 0;

	if (e == 0 && d->want)
		e = indices_intersect(x, d->want, d->a, &s.part);
	if (e < 0)
		return e;
	if (!ARRAY_GROW(d->share, d->n, d->cap))
		return -ENOMEM;
	d->share[d->n++] = s;
	return 0;
}

static int level_descend(struct descent *d, uint32_t level, const struct indices *x, uint64_t at);

static int descend_to(struct descent *d, uint32_t level, const struct indices *x, uint64_t at,
		      uint32_t r)
{
	const struct level *l = &d->level[level];
	struct indices cut;
	int e = spend_cut(d, l, x);

	if (e == 0)
		e = level_cut(l, x, r, d->a, &cut);
	if (e == 0)
		e = steps_spend(d, cut.n * RECORD_STEPS);
	return e < 0 ? e : level_descend(d, level + 1, &cut, at + place_of(l->axis, l->naxis, r));
}

static int descend_strided(struct descent *d, uint32_t level, const struct indices *x, uint64_t at)
{
	const struct level *l = &d->level[level];
	struct strided s = strided_of(l, x->total);
	cleanup_free uint64_t *bits = calloc(l->k / 64 + 1, sizeof *bits);
	int e;

	if (!bits)
		return -ENOMEM;
	s.bits = bits;
	e = steps_spend(d, l->k + x->n);
	if (e == 0)
		e = strided_hits(d, &s, x);
	for (uint32_t r = 0; r < s.nany && e == 0; r++)
		if (bits[r / 64] >> r % 64 & 1)
			e = descend_to(d, level, x, at, r);
	return e;
}

/* x is not empty and meets what is wanted. As deep as there are levels, at most CKPT_DIMS_MAX. */
static int level_descend(struct descent *d, uint32_t level, const struct indices *x, uint64_t at)
{
	const struct level *l = &d->level[level];
	struct hits h = { .x = x, .want = d->want };
	uint32_t r;
	int e = 0;

	if (level == d->nlevel)
		return share_add(d, x, at);
	if (l->factor > 1)
		return descend_strided(d, level, x, at);
	h.split = (struct split){ .total = x->total, .width = div_up(x->total, l->k) };
	while (e == 0 && hits_next(&h, &r)) {
		e = steps_spend(d, x->n);
		if (e == 0)
			e = descend_to(d, level, x, at, r);
	}
	return e;
}

static void strides_of(const struct mesh *m, uint32_t *ret_stride)
{
	uint32_t step = 1;

	for (uint32_t d = m->ndim; d-- > 0; step *= m->dim[d])
		ret_stride[d] = step;
}

/* axis: room for those of the levels, [CKPT_DIMS_MAX]. */
static void levels_of(const struct holders_kind *k, uint32_t tensor_dim, struct descent *d,
		      struct holders_axis *axis)
{
	uint32_t stride[CKPT_DIMS_MAX], n = 0;

	strides_of(k->mesh, stride);
	for (uint32_t i = 0; i < k->layout->nplace; i++) {
		const struct ckpt_placement *p = &k->layout->place[i];
		uint32_t size = k->mesh->dim[p->mesh_dim];
		struct level *flat = &d->level[0];

		if (p->how != CKPT_SHARD || p->tensor_dim != tensor_dim || size == 1)
			continue;
		axis[n] = (struct holders_axis){ size, stride[p->mesh_dim] };
		if (k->layout->mode == CKPT_FLAT && n > 0) {
			flat->k *= size;
			flat->naxis++;
		} else {
			d->level[d->nlevel++] = (struct level){
				.k = size,
				.factor = MAX(p->split_factor, 1u),
				.columns = k->layout->mode == CKPT_UNFLATTEN_PAD,
				.naxis = 1,
				.axis = &axis[n],
			};
		}
		n++;
	}
}

static int shares_find(const struct holders_kind *k, uint32_t tensor_dim,
		       const struct indexset *want, struct arena *a, uint64_t *steps,
		       struct holders *ret)
{
	struct descent d = { .want = want ? &want->dim[tensor_dim] : NULL, .a = a, .steps = steps };
	struct holders_axis axis[CKPT_DIMS_MAX];
	struct indices all;
	int e = indices_range(0, k->shape[tensor_dim], a, &all);

	levels_of(k, tensor_dim, &d, axis);
	if (e == 0 && all.total > 0 && (!d.want || d.want->total > 0))
		e = level_descend(&d, 0, &all, 0);
	if (e == 0 && d.n > 0) {
		ret->share[tensor_dim] = arena_dup(a, d.share, d.n * sizeof *d.share);
		if (!ret->share[tensor_dim])
			e = -ENOMEM;
	}
	ret->nshare[tensor_dim] = d.n;
	free(d.share);
	return e;
}

/* What the coordinate's cuts of a tensor dimension add to its place. */
static uint64_t coord_at(const struct holders_kind *k, uint32_t tensor_dim, const uint32_t *coord)
{
	uint32_t stride[CKPT_DIMS_MAX];
	uint64_t at = 0;

	strides_of(k->mesh, stride);
	for (uint32_t i = 0; i < k->layout->nplace; i++) {
		const struct ckpt_placement *p = &k->layout->place[i];

		if (p->how == CKPT_SHARD && p->tensor_dim == tensor_dim)
			at += (uint64_t)coord[p->mesh_dim] * stride[p->mesh_dim];
	}
	return at;
}

int holders_along(const struct holders_kind *kind, uint32_t tensor_dim, const struct indices *want,
		  const uint32_t *coord, uint64_t *ret_before, uint64_t *ret_part)
{
	struct indices dim[CKPT_DIMS_MAX];
	struct indexset set = { .ndim = kind->ndim, .numel = 1, .dim = dim };
	struct holders h = { .kind = *kind };
	struct arena a = { 0 };
	uint64_t at = coord_at(kind, tensor_dim, coord), steps = 0;
	uint32_t i = 0;
	int e;

	dim[tensor_dim] = *want;
	e = shares_find(kind, tensor_dim, &set, &a, &steps, &h);
	*ret_before = 0;
	while (e == 0 && i < h.nshare[tensor_dim] && h.share[tensor_dim][i].at != at)
		*ret_before += h.share[tensor_dim][i++].part.total;
	assert(e < 0 || i < h.nshare[tensor_dim]);
	*ret_part = e < 0 ? 0 : h.share[tensor_dim][i].part.total;
	arena_free(&a);
	return e;
}

/* --- what replicas divide --- */

static int slices_make(struct holders_share *s, uint32_t replicas, const struct indices *want,
		       struct arena *a)
{
	struct split split = { s->set.total, s->set.total / replicas, s->set.total % replicas };
	struct hits h = { .x = &s->set, .want = want, .split = split };
	struct hits count = h;
	struct holders_slice *slice;
	uint32_t r, n = 0;

	while (hits_next(&count, &r))
		n++;
	slice = arena_array(a, n, sizeof *slice);
	if (!slice)
		return -ENOMEM;
	s->slice = slice;
	s->nslice = n;
	for (; hits_next(&h, &r); slice++) {
		int e = indices_slice(&s->set, split_begin(&split, r), split_begin(&split, r + 1),
				      a, &slice->set);

		slice->replica = r;
		slice->part = slice->set;
		if (e == 0 && want)
			e = indices_intersect(&slice->set, want, a, &slice->part);
		if (e < 0)
			return e;
	}
	return 0;
}

/* How many indices the shares of each dimension have. */
struct totals {
	uint64_t least[CKPT_DIMS_MAX], most[CKPT_DIMS_MAX];
};

static void totals_find(const struct holders *h, struct totals *ret)
{
	for (uint32_t d = 0; d < h->kind.ndim; d++) {
		ret->least[d] = UINT64_MAX;
		ret->most[d] = 0;
		for (uint32_t i = 0; i < h->nshare[d]; i++) {
			uint64_t n = h->share[d][i].set.total;

			ret->least[d] = MIN(ret->least[d], n);
			ret->most[d] = MAX(ret->most[d], n);
		}
	}
}

/* Could a product in which dimension d has so many indices be large enough to be cut there? */
static bool may_be_cut(const struct holders *h, const struct totals *t, uint32_t dim,
		       uint64_t total)
{
	unsigned __int128 bytes = (unsigned __int128)total * h->kind.elem_bytes;

	if (total < h->nreplica)
		return false;
	for (uint32_t d = 0; d < h->kind.ndim; d++) {
		if (d < dim && t->least[d] >= h->nreplica)
			return false; /* that one is always cut before */
		if (d != dim)
			bytes *= t->most[d]; /* all of them together are a tensor's elements */
	}
	return bytes >= h->nreplica * MIB;
}

static int slices_find(struct holders *h, const struct indexset *want, struct arena *a)
{
	struct totals t;

	totals_find(h, &t);
	for (uint32_t d = 0; d < h->kind.ndim; d++) {
		const struct indices *wanted = want ? &want->dim[d] : NULL;
		/* Made by shares_find just now. */
		struct holders_share *s = (struct holders_share *)h->share[d];

		for (uint32_t i = 0; i < h->nshare[d]; i++) {
			int e = 0;

			if (may_be_cut(h, &t, d, s[i].set.total))
				e = slices_make(&s[i], h->nreplica, wanted, a);
			if (e < 0)
				return e;
		}
	}
	return 0;
}

/* Mesh dimensions that do not cut. */
static void axes_find(struct holders *h)
{
	const struct mesh *m = h->kind.mesh;
	const struct layout *l = h->kind.layout;
	uint32_t stride[CKPT_DIMS_MAX], operands = 0, apart = 0; /* bit per mesh dimension */

	strides_of(m, stride);
	for (uint32_t i = 0; i < l->nplace; i++) {
		if (l->place[i].how != CKPT_REPLICATE)
			apart |= 1u << l->place[i].mesh_dim;
		if (l->place[i].how == CKPT_PARTIAL)
			operands |= 1u << l->place[i].mesh_dim;
	}
	h->nreplica = h->noperand = 1;
	for (uint32_t d = 0; d < m->ndim; d++) {
		struct holders_axis x = { m->dim[d], stride[d] };

		if (operands >> d & 1) {
			h->operand_axis[h->noperand_axis++] = x;
			h->noperand *= x.size;
		} else if (!(apart >> d & 1)) {
			h->replica_axis[h->nreplica_axis++] = x;
			h->nreplica *= x.size;
		}
	}
}

int holders_find(const struct holders_kind *kind, const struct indexset *want, struct arena *a,
		 struct holders *ret)
{
	uint64_t numel, steps = 0;
	int e = shape_numel(kind->ndim, kind->shape, &numel);

	*ret = (struct holders){ .kind = *kind };
	axes_find(ret);
	if (e < 0)
		return e;
	if (numel == 0 || (want && want->numel == 0)) {
		ret->noperand = 0; /* no rank */
		return 0;
	}
	for (uint32_t d = 0; d < kind->ndim && e == 0; d++)
		e = shares_find(kind, d, want, a, &steps, ret);
	if (e == 0 && ret->nreplica > 1)
		e = slices_find(ret, want, a);
	return e;
}

/* --- enumerating --- */

static void cursor_share(struct holders_cursor *c, uint32_t d)
{
	const struct holders_share *s = &c->h->share[d][c->i[d]];

	c->set[d] = s->set;
	c->part[d] = s->part;
}

/* Which replicas of the shares at hand? As ownership.c does it: the first one and one above the
 * last; or the dimension that they divide. */
static void cursor_replicas(struct holders_cursor *c)
{
	const struct holders *h = c->h;
	uint32_t n = h->nreplica, ndim = h->kind.ndim;
	uint64_t numel = 1, first = 0;

	c->cut = ndim;
	c->replica = 0;
	c->replica_end = n;
	if (n == 1 || c->who == HOLDERS_EACH)
		return;
	if (c->who == HOLDERS_ONE) {
		c->replica = c->turn % n;
		c->replica_end = c->replica + 1;
		return;
	}
	for (uint32_t d = 0; d < ndim; d++)
		numel *= c->set[d].total;
	if ((unsigned __int128)numel * h->kind.elem_bytes >= n * MIB)
		for (c->cut = 0; c->cut < ndim && c->set[c->cut].total < n;)
			c->cut++;
	if (c->cut < ndim) {
		c->slice = 0;
		return;
	}
	for (uint32_t d = 0; d < ndim; d++)
		first = first * h->kind.shape[d] + indices_lo(&c->set[d]);
	c->replica = (uint32_t)(layout_owner_hash(c->component, c->name, first) % n);
	c->replica_end = c->replica + 1;
}

static void cursor_shares(struct holders_cursor *c)
{
	c->at = c->base;
	for (uint32_t d = 0; d < c->h->kind.ndim; d++)
		c->at += c->h->share[d][c->i[d]].at;
	cursor_replicas(c);
}

void holders_begin(const struct holders *h, const struct layout *layout, const char *component,
		   const char *name, enum holders_who who, uint32_t turn, struct holders_cursor *c)
{
	uint32_t stride[CKPT_DIMS_MAX];

	c->h = h;
	c->component = component;
	c->name = name;
	c->who = who;
	c->turn = turn;
	c->operand = 0;
	c->base = 0;
	c->given = false;
	c->more = h->noperand > 0;
	strides_of(h->kind.mesh, stride);
	for (uint32_t i = 0; i < layout->nplace; i++)
		if (layout->place[i].how == CKPT_ONLY)
			c->base += (uint64_t)layout->place[i].split_factor *
				   stride[layout->place[i].mesh_dim];
	for (uint32_t d = 0; d < h->kind.ndim; d++)
		c->more = c->more && h->nshare[d] > 0;
	if (!c->more)
		return;
	for (uint32_t d = 0; d < h->kind.ndim; d++) {
		c->i[d] = 0;
		cursor_share(c, d);
	}
	cursor_shares(c);
}

/* To the next product of shares. */
static void cursor_step(struct holders_cursor *c)
{
	if (c->cut < c->h->kind.ndim)
		cursor_share(c, c->cut);
	for (uint32_t d = c->h->kind.ndim; d-- > 0;) {
		bool more = ++c->i[d] < c->h->nshare[d];

		if (!more)
			c->i[d] = 0;
		cursor_share(c, d);
		if (more) {
			cursor_shares(c);
			return;
		}
	}
	c->more = false;
}

static void cursor_next(struct holders_cursor *c)
{
	if (++c->operand < c->h->noperand)
		return;
	c->operand = 0;
	if (c->cut < c->h->kind.ndim) {
		if (++c->slice < c->h->share[c->cut][c->i[c->cut]].nslice)
			return;
	} else if (++c->replica < c->replica_end) {
		return;
	}
	cursor_step(c);
}

bool holders_next(struct holders_cursor *c, struct holder *ret)
{
	const struct holders *h = c->h;
	uint32_t ndim = h->kind.ndim;
	uint64_t set = 1, part = 1;

	if (c->more && c->given)
		cursor_next(c);
	if (!c->more)
		return false;
	c->given = true;
	if (c->cut < ndim) {
		const struct holders_slice *x = &h->share[c->cut][c->i[c->cut]].slice[c->slice];

		c->replica = x->replica;
		c->set[c->cut] = x->set;
		c->part[c->cut] = x->part;
	}
	for (uint32_t d = 0; d < ndim; d++) {
		set *= c->set[d].total;
		part *= c->part[d].total;
	}
	ret->operand = c->operand;
	ret->place = (uint32_t)(c->at + place_of(h->operand_axis, h->noperand_axis, c->operand) +
				place_of(h->replica_axis, h->nreplica_axis, c->replica));
	ret->rank = h->kind.mesh->rank[ret->place];
	ret->set = (struct indexset){ ndim, set, c->set };
	ret->part = (struct indexset){ ndim, part, c->part };
	return true;
}
