/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_cases.h - random tensors on random meshes under random layouts, and the smallest case
 * that still breaks a property. For tests of properties in any room: a property is a function that
 * says false and why; cases_hold runs it on random cases and shows a broken one after shrinking, in
 * the notation of mesh_parse and layout_parse.
 *
 * A case is plain data: copy it by assignment. What side_mesh and side_layout return points into
 * it.
 */
#ifndef CKPT_TEST_LAYOUT_CASES_H
#define CKPT_TEST_LAYOUT_CASES_H
#include "tests/unit/test_layout_naive.h"

#define CASE_DIMS 4
#define CASE_MESH_DIMS 5
#define CASE_RANKS 128
#define CASE_NUMEL 4096
#define CASE_WHY 256
#define SHRINK_TRIES 20000

/* One mesh and how it cuts the tensor. */
struct side {
	uint32_t mesh_ndim, dim[CASE_MESH_DIMS], rank[CASE_RANKS]; /* ranks: distinct, all set */
	uint32_t mode, nplace;
	struct ckpt_placement place[CASE_MESH_DIMS];
};

struct layout_case {
	uint32_t ndim, elem_bytes, nside;
	uint64_t shape[CASE_DIMS];
	struct side side[2];
	uint64_t from, to; /* of a flattened interval */
};

typedef bool (*property)(const struct layout_case *c, char *why);

static const char *const case_mesh_name[CASE_MESH_DIMS] = { "a", "b", "c", "d", "e" };

static inline struct mesh side_mesh(const struct side *s)
{
	struct mesh m = { s->mesh_ndim, case_mesh_name, s->dim, 1, s->rank };

	for (uint32_t d = 0; d < m.ndim; d++)
		m.nrank *= m.dim[d];
	return m;
}

static inline struct layout side_layout(const struct side *s)
{
	return (struct layout){ .mode = s->mode, .nplace = s->nplace, .place = s->place };
}

static inline void place_coord(const struct mesh *m, uint32_t place, uint32_t *coord)
{
	for (uint32_t d = m->ndim; d-- > 0; place /= m->dim[d])
		coord[d] = place % m->dim[d];
}

static inline uint64_t case_numel(const struct layout_case *c)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < c->ndim; d++)
		n *= c->shape[d];
	return n;
}

/* How many coordinates hold an element. */
static inline uint32_t side_holders(const struct side *s)
{
	uint32_t n = side_mesh(s).nrank;

	for (uint32_t i = 0; i < s->nplace; i++)
		if (s->place[i].how == CKPT_SHARD || s->place[i].how == CKPT_ONLY)
			n /= s->dim[s->place[i].mesh_dim];
	return n;
}

/* --- sets as explicit indices --- */

static inline void naive_of(const struct indices *x, struct naive *ret)
{
	ret->n = 0;
	for (uint32_t k = 0; k < x->n; k++)
		for (uint64_t i = 0; i < x->run[k].count; i++)
			for (uint64_t j = 0; j < x->run[k].len && ret->n < NAIVE_MAX; j++)
				ret->v[ret->n++] =
					(uint32_t)(x->run[k].start + i * x->run[k].stride + j);
}

/* Row-major global indices of a set's elements, in its local order. */
static inline uint32_t elements_of(const struct indexset *x, const uint64_t *shape, uint32_t *ret)
{
	static struct naive dim[CASE_DIMS];
	uint32_t n = 0, at[CASE_DIMS] = { 0 }, d;

	if (x->numel == 0)
		return 0;
	for (d = 0; d < x->ndim; d++)
		naive_of(&x->dim[d], &dim[d]);
	for (;;) {
		uint64_t g = 0;

		for (d = 0; d < x->ndim; d++)
			g = g * shape[d] + dim[d].v[at[d]];
		ret[n++] = (uint32_t)g;
		for (d = x->ndim; d > 0 && ++at[d - 1] == dim[d - 1].n; d--)
			at[d - 1] = 0;
		if (d == 0)
			return n;
	}
}

static inline bool side_share(const struct layout_case *c, const struct side *s, uint32_t place,
			      struct arena *a, struct indexset *ret)
{
	struct mesh m = side_mesh(s);
	struct layout l = side_layout(s);
	uint32_t coord[CASE_MESH_DIMS];

	place_coord(&m, place, coord);
	return layout_share(&m, &l, c->ndim, c->shape, coord, a, ret) == 0;
}

static inline bool side_owned(const struct layout_case *c, const struct side *s, uint32_t place,
			      struct arena *a, struct indexset *ret)
{
	struct mesh m = side_mesh(s);
	struct layout l = side_layout(s);
	uint32_t coord[CASE_MESH_DIMS];

	place_coord(&m, place, coord);
	return layout_owned(&m, &l, c->ndim, c->shape, coord, c->elem_bytes, "model", "w", a,
			    ret) == 0;
}

/* --- random cases --- */

static inline void shuffle(uint32_t *v, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = naive_below(i), x = v[j];

		v[j] = v[i - 1];
		v[i - 1] = x;
	}
}

static inline struct ckpt_placement random_placement(const struct side *s, uint32_t m,
						     uint32_t ndim)
{
	struct ckpt_placement p = { .mesh_dim = (uint16_t)m };
	uint32_t t = naive_below(20);

	if (t < 12 && ndim > 0) {
		p.how = CKPT_SHARD;
		p.tensor_dim = (uint16_t)naive_below(naive_below(2) ? ndim : 1);
		if (s->mode != CKPT_FLAT && naive_below(2))
			p.split_factor = naive_below(8);
	} else if (t < 14) {
		p.how = CKPT_ONLY;
		p.split_factor = naive_below(s->dim[m]);
	} else if (t < 15) {
		p.how = CKPT_PARTIAL;
		p.reduce = (uint8_t)naive_below(2);
		p.flags = (uint16_t)naive_below(2);
	}
	return p;
}

static inline void random_side(struct side *s, uint32_t ndim)
{
	uint32_t order[CASE_MESH_DIMS] = { 0, 1, 2, 3, 4 }, ranks = 1;

	*s = (struct side){ .mesh_ndim = 1 + naive_below(4), .mode = naive_below(6) };
	if (naive_below(10) == 0)
		s->mesh_ndim = naive_below(2) ? 0 : CASE_MESH_DIMS;
	s->mode = s->mode > CKPT_UNFLATTEN_PAD ? CKPT_CHUNK : s->mode;
	for (uint32_t d = 0; d < s->mesh_ndim; d++) {
		s->dim[d] = 1 + naive_below(naive_below(6) ? 3 : 7);
		if (ranks * s->dim[d] > 48)
			s->dim[d] = 1;
		ranks *= s->dim[d];
	}
	for (uint32_t i = 0, at = naive_below(3); i < CASE_RANKS; i++, at += 1 + naive_below(2))
		s->rank[i] = at;
	if (naive_below(2))
		shuffle(s->rank, CASE_RANKS);
	shuffle(order, s->mesh_ndim);
	for (uint32_t i = 0; i < s->mesh_ndim; i++)
		if (naive_below(8)) /* else not named at all */
			s->place[s->nplace++] = random_placement(s, order[i], ndim);
}

static inline void random_case(struct layout_case *c, uint32_t nside)
{
	static const uint64_t size[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 29 };

	uint64_t numel = 1;

	*c = (struct layout_case){ .ndim = 1 + naive_below(CASE_DIMS), .nside = nside };
	if (naive_below(16) == 0)
		c->ndim = 0;
	for (uint32_t d = 0; d < c->ndim; d++) {
		c->shape[d] = size[naive_below(12) ? 1 + naive_below(13) : 0];
		if (numel * c->shape[d] > 1000)
			c->shape[d] = 1;
		numel *= c->shape[d];
	}
	/* with large elements the ownership rule cuts shares */
	c->elem_bytes = naive_below(2) ? 4 : 1u << naive_below(24);
	for (uint32_t i = 0; i < nside; i++)
		random_side(&c->side[i], c->ndim);
	c->from = naive_below((uint32_t)numel + 2);
	c->to = naive_below((uint32_t)numel + 2);
}

static inline bool case_valid(const struct layout_case *c)
{
	for (uint32_t i = 0; i < c->nside; i++) {
		struct mesh m = side_mesh(&c->side[i]);
		struct layout l = side_layout(&c->side[i]);

		if (m.nrank > CASE_RANKS || mesh_check(&m, NULL) < 0 ||
		    layout_check(&m, &l, c->ndim, NULL) < 0)
			return false;
	}
	return case_numel(c) <= CASE_NUMEL;
}

/* --- text --- */

static inline size_t side_print(const struct side *s, char *buf, size_t bytes)
{
	static const char *const mode[] = { "", "flat: ", "unflatten_pad: " };
	static const char *const op[] = { "sum", "avg", "min", "max", "product" };
	struct mesh m = side_mesh(s);
	char spec[64];
	size_t n = (size_t)snprintf(buf, bytes, "mesh \"%s\" \"%s",
				    mesh_print(&m, spec, sizeof spec), mode[s->mode]);

	for (uint32_t i = 0; i < s->nplace && n < bytes; i++) {
		const struct ckpt_placement *p = &s->place[i];
		const char *at = case_mesh_name[p->mesh_dim], *comma = i ? ", " : "";
		int k = 0;

		switch ((enum ckpt_how)p->how) {
		case CKPT_REPLICATE:
			k = snprintf(buf + n, bytes - n, "%sReplicate@%s", comma, at);
			break;
		case CKPT_SHARD:
			k = p->split_factor > 1
				    ? snprintf(buf + n, bytes - n, "%sStridedShard(%u, %u)@%s",
					       comma, p->tensor_dim, p->split_factor, at)
				    : snprintf(buf + n, bytes - n, "%sShard(%u)@%s", comma,
					       p->tensor_dim, at);
			break;
		case CKPT_ONLY:
			k = snprintf(buf + n, bytes - n, "%sOnly(%u)@%s", comma, p->split_factor,
				     at);
			break;
		case CKPT_PARTIAL:
			k = snprintf(buf + n, bytes - n, "%sPartial(%s%s)@%s", comma, op[p->reduce],
				     p->flags ? ", keep" : "", at);
			break;
		}
		n += (size_t)k;
	}
	if (n < bytes)
		n += (size_t)snprintf(buf + n, bytes - n, "%s\"", s->nplace ? "" : "Replicate");
	return n;
}

static inline char *case_print(const struct layout_case *c, char *buf, size_t bytes)
{
	size_t n = (size_t)snprintf(buf, bytes, "shape [");

	for (uint32_t d = 0; d < c->ndim && n < bytes; d++)
		n += (size_t)snprintf(buf + n, bytes - n, "%s%" PRIu64, d ? ", " : "", c->shape[d]);
	if (n < bytes)
		n += (size_t)snprintf(buf + n, bytes - n, "] of %u bytes", c->elem_bytes);
	for (uint32_t i = 0; i < c->nside && n + 2 < bytes; i++) {
		n += (size_t)snprintf(buf + n, bytes - n, "; ");
		n += side_print(&c->side[i], buf + n, bytes - n);
	}
	if (n < bytes)
		snprintf(buf + n, bytes - n, "; interval [%" PRIu64 ", %" PRIu64 ")", c->from,
			 c->to);
	return buf;
}

/* --- shrinking --- */

static inline void drop_place(struct side *s, uint32_t i)
{
	s->nplace--;
	memmove(&s->place[i], &s->place[i + 1], (s->nplace - i) * sizeof *s->place);
}

static inline void drop_mesh_dim(struct side *s, uint32_t m)
{
	for (uint32_t i = 0; i < s->nplace;) {
		if (s->place[i].mesh_dim == m) {
			drop_place(s, i);
			continue;
		}
		s->place[i].mesh_dim =
			(uint16_t)(s->place[i].mesh_dim - (s->place[i].mesh_dim > m));
		i++;
	}
	s->mesh_ndim--;
	memmove(&s->dim[m], &s->dim[m + 1], (s->mesh_ndim - m) * sizeof *s->dim);
}

static inline void drop_tensor_dim(struct layout_case *c, uint32_t d)
{
	for (uint32_t k = 0; k < c->nside; k++)
		for (uint32_t i = 0; i < c->side[k].nplace;) {
			struct ckpt_placement *p = &c->side[k].place[i];

			if (p->how == CKPT_SHARD && p->tensor_dim == d) {
				drop_place(&c->side[k], i);
				continue;
			}
			if (p->how == CKPT_SHARD && p->tensor_dim > d)
				p->tensor_dim--;
			i++;
		}
	c->ndim--;
	memmove(&c->shape[d], &c->shape[d + 1], (c->ndim - d) * sizeof *c->shape);
}

/* A smaller number: number `how` of the WAYS to make it so; false when this is none. */
#define WAYS 10
static inline bool smaller(uint64_t x, uint64_t least, uint32_t how, uint64_t *ret)
{
	uint64_t to = how < WAYS - 2	? least + how
		      : how == WAYS - 2 ? least + (x - least) / 2
					: x - 1;

	if (x <= least || to >= x)
		return false;
	*ret = to;
	return true;
}

#define SIDE_CHANGES (8 * (2 * WAYS + 5))
#define CASE_CHANGES (8 * (3 * WAYS + 2))

/* Change number i of the ways to make one side of a case simpler; false: this is none. */
static inline bool shrink_side(struct side *s, uint32_t i)
{
	uint32_t k = i % 8, what = i / 8; /* k: of up to eight mesh dimensions or placements */
	uint64_t v = 0;

	if (what == 0 && k < s->mesh_ndim) {
		drop_mesh_dim(s, k);
	} else if (what == 1 && k < s->nplace) {
		drop_place(s, k);
	} else if (what == 2 && k == 0 && s->mode) {
		s->mode = CKPT_CHUNK;
	} else if (what == 3 && k + 1 < s->nplace &&
		   s->place[k].mesh_dim > s->place[k + 1].mesh_dim) {
		struct ckpt_placement p = s->place[k];

		s->place[k] = s->place[k + 1];
		s->place[k + 1] = p;
	} else if (what == 4 && k == 0) {
		bool same = true;

		for (uint32_t r = 0; r < CASE_RANKS; r++) {
			same = same && s->rank[r] == r;
			s->rank[r] = r;
		}
		return !same;
	} else if (what >= 5 && what < 5 + WAYS && k < s->mesh_ndim &&
		   smaller(s->dim[k], 1, what - 5, &v)) {
		s->dim[k] = (uint32_t)v;
	} else if (what >= 5 + WAYS && k < s->nplace &&
		   smaller(s->place[k].split_factor, 0, what - 5 - WAYS, &v)) {
		s->place[k].split_factor = (uint32_t)v;
	} else {
		return false;
	}
	return true;
}

/* The same for a whole case but its sides. */
static inline bool shrink_whole(struct layout_case *c, uint32_t i)
{
	uint32_t k = i % 8, what = i / 8, how = (what - 2) % WAYS;

	if (what == 0 && k < c->ndim) {
		drop_tensor_dim(c, k);
		return true;
	}
	if (what == 1 && k == 0 && c->elem_bytes != 1) {
		c->elem_bytes = 1;
		return true;
	}
	if (what < 2)
		return false;
	if ((what - 2) / WAYS == 0)
		return k < c->ndim && smaller(c->shape[k], 0, how, &c->shape[k]);
	if ((what - 2) / WAYS == 1)
		return k == 0 && smaller(c->from, 0, how, &c->from);
	return k == 0 && smaller(c->to, 0, how, &c->to);
}

static inline bool shrink_case(struct layout_case *c, uint32_t i)
{
	if (i < CASE_CHANGES)
		return shrink_whole(c, i);
	i -= CASE_CHANGES;
	return i / SIDE_CHANGES < c->nside &&
	       shrink_side(&c->side[i / SIDE_CHANGES], i % SIDE_CHANGES);
}

/* Make a case that breaks a property as simple as it can be while it still does. */
static inline uint32_t case_shrink(struct layout_case *c, property holds, char *why)
{
	uint32_t tries = 0, steps = 0;

	for (uint32_t i = 0; i < CASE_CHANGES + 2 * SIDE_CHANGES && tries < SHRINK_TRIES; i++) {
		struct layout_case next = *c;
		char reason[CASE_WHY] = "";

		if (!shrink_case(&next, i) || !case_valid(&next))
			continue;
		tries++;
		if (holds(&next, reason))
			continue;
		*c = next;
		memcpy(why, reason, sizeof reason);
		steps++;
		i = UINT32_MAX; /* from the first way again */
	}
	return steps;
}

/* Run a property on n random cases; fails with the smallest case found. */
static inline void cases_hold(const char *test, property holds, uint32_t nside, uint32_t n)
{
	static struct layout_case c;
	char why[CASE_WHY] = "", text[1024];

	n = (uint32_t)unit_scaled(n);
	naive_seed(test);
	for (uint32_t i = 0; i < n; i++) {
		random_case(&c, nside);
		if (!case_valid(&c))
			fail_msg("the generator made %s", case_print(&c, text, sizeof text));
		if (holds(&c, why))
			continue;
		uint32_t steps = case_shrink(&c, holds, why);

		fail_msg("case %u, after %u steps of shrinking: %s: %s", i, steps,
			 case_print(&c, text, sizeof text), why);
	}
	printf("%u random cases\n", n);
}

/* In a property: what does not hold, and false. */
#define BROKEN(...) (snprintf(why, CASE_WHY, __VA_ARGS__), false)
#endif
