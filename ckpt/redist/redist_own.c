/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_own.c - see redist_own.h: holdings, collectives within groups. Called by the planners
 * through redist_links.
 * Invariant: every price is finite; peak_bytes is what some rank holds during the step.
 */
#include "ckpt/redist/redist_own.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include <math.h>

/* --- what ranks hold --- */

/* The placements that cut one tensor dimension, as those of a tensor with that dimension alone. */
static uint32_t cutters_of(const struct redist_problem *p, const struct layout *l,
			   uint32_t tensor_dim, struct redist_axis *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_SHARD && l->place[i].tensor_dim == tensor_dim &&
		    p->mesh->dim[l->place[i].mesh_dim] > 1)
			ret[n++] = (struct redist_axis){ .mesh_dim = l->place[i].mesh_dim,
							 .factor = l->place[i].split_factor };
	return n;
}

static int cut_lists(const struct redist_problem *p, struct redist_cut *cut, struct arena *a)
{
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout only = { .mode = CKPT_CHUNK, .nplace = cut->naxis, .place = place };
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	struct indexset set;
	int rc = 0;

	cut->n = 1;
	for (uint32_t i = cut->naxis; i-- > 0;) {
		place[i] = (struct ckpt_placement){ .how = CKPT_SHARD,
						    .mesh_dim = (uint16_t)cut->axis[i].mesh_dim,
						    .split_factor = cut->axis[i].factor };
		cut->axis[i].stride = cut->n;
		cut->n *= p->mesh->dim[cut->axis[i].mesh_dim];
	}
	cut->list = arena_array(a, cut->n, sizeof *cut->list);
	if (!cut->list)
		return -ENOMEM;
	for (uint32_t k = 0; k < cut->n && !rc; k++) {
		for (uint32_t i = 0; i < cut->naxis; i++)
			coord[cut->axis[i].mesh_dim] =
				k / cut->axis[i].stride % p->mesh->dim[cut->axis[i].mesh_dim];
		rc = layout_share(p->mesh, &only, 1, &p->shape[cut->tensor_dim], coord, a, &set);
		if (!rc)
			cut->list[k] = set.dim[0];
	}
	return rc;
}

bool redist_cut_is(const struct redist_cut *x, uint32_t tensor_dim, const struct redist_axis *axis,
		   uint32_t naxis)
{
	if (x->tensor_dim != tensor_dim || x->naxis != naxis)
		return false;
	for (uint32_t i = 0; i < naxis; i++)
		if (x->axis[i].mesh_dim != axis[i].mesh_dim || x->axis[i].factor != axis[i].factor)
			return false;
	return true;
}

static int cut_find(const struct redist_problem *p, const struct layout *l, uint32_t tensor_dim,
		    struct redist_memo *memo, const struct redist_cut **ret)
{
	struct redist_axis axis[CKPT_DIMS_MAX];
	uint32_t naxis = cutters_of(p, l, tensor_dim, axis), at = 0, i;
	uint64_t hash = tensor_dim;
	struct redist_cut *x;
	int rc;

	for (i = 0; i < naxis; i++)
		hash = hash * 31 + axis[i].mesh_dim * 1021 + axis[i].factor;
	hash *= UINT64_C(0x9e3779b97f4a7c15);
	hash ^= hash >> 32;
	while ((i = keymap_next(&memo->map, hash, &at)) != KEYMAP_NONE)
		if (redist_cut_is(memo->cut[i], tensor_dim, axis, naxis)) {
			*ret = memo->cut[i];
			return 0;
		}
	x = arena_alloc(&memo->arena, sizeof *x);
	if (!x || keymap_reserve(&memo->map, &memo->arena, 1) < 0 ||
	    !ARRAY_GROW(memo->cut, memo->map.n, memo->cap))
		return -ENOMEM;
	x->tensor_dim = tensor_dim;
	x->naxis = naxis;
	memcpy(x->axis, axis, naxis * sizeof *axis);
	rc = cut_lists(p, x, &memo->arena);
	if (rc)
		return rc;
	memo->cut[memo->map.n] = x;
	keymap_put(&memo->map, hash, memo->map.n);
	*ret = x;
	return 0;
}

void redist_memo_free(struct redist_memo *m)
{
	arena_free(&m->arena);
	free(m->cut);
	*m = (struct redist_memo){ 0 };
}

int redist_holding_of(const struct redist_problem *p, const struct layout *l,
		      struct redist_memo *memo, struct redist_holding *ret)
{
	int rc = 0;

	ret->p = p;
	ret->layout = l;
	ret->nlisted = 0;
	ret->uncut = 1;
	for (uint32_t d = 0; d < p->ndim; d++) {
		rc = cut_find(p, l, d, memo, &ret->cut[d]);
		if (rc)
			break;
		if (ret->cut[d]->n > 1)
			ret->listed[ret->nlisted++] = d;
		else
			ret->uncut *= ret->cut[d]->list->total;
	}
	return rc;
}

const struct indices *redist_held(const struct redist_holding *h, uint32_t tensor_dim,
				  const uint32_t *coord)
{
	const struct redist_cut *x = h->cut[tensor_dim];
	uint32_t at = 0;

	for (uint32_t i = 0; i < x->naxis; i++)
		at += x->axis[i].stride * coord[x->axis[i].mesh_dim];
	return &x->list[at];
}

uint64_t redist_held_numel(const struct redist_holding *h, const uint32_t *coord)
{
	uint64_t numel = h->uncut;

	for (uint32_t i = 0; i < h->nlisted; i++)
		numel *= redist_held(h, h->listed[i], coord)->total;
	return numel;
}

/* --- prices --- */

void redist_price_most(struct redist_price *x, const struct redist_price *y)
{
	if (y->us > x->us) {
		x->us = y->us;
		x->tier = y->tier;
	}
	x->sent_bytes = MAX(x->sent_bytes, y->sent_bytes);
	x->staging_bytes = MAX(x->staging_bytes, y->staging_bytes);
}

void redist_price_add(struct redist_price *x, const double us[LINKS_TIERS])
{
	double most = 0;

	for (uint32_t t = 0; t < LINKS_TIERS; t++) {
		x->us += us[t];
		if (us[t] > most)
			x->tier = t;
		most = MAX(most, us[t]);
	}
}

/* --- a group --- */

struct member {
	uint32_t rank;
	uint64_t before, after; /* elements */
	/* ALL_TO_ALL, of the dimension that is cut no longer, and of the one that is cut now */
	uint64_t gives, takes;
};

struct step {
	const struct redist_problem *p;
	const struct links *l;
	struct redist_step *of;
	struct redist_holding before, after;
	uint32_t g, stride;	/* members of a group; places from one to the next */
	struct member *member;	/* [g], of the group at hand */
	uint64_t others;	/* ALL_TO_ALL: elements of each gives * takes */
	uint32_t *by_rank;	/* [g] */
	bool strided;		/* a state has a strided shard */
	struct links_cost link; /* of a ring: the slowest one, and its tier */
	enum links_tier tier;
	struct redist_price most;
	uint64_t peak, after_most; /* elements of a rank: during the step without staging; then */
};

struct links_cost redist_ring_link(const struct links *l, const struct mesh *m, uint32_t mesh_dim,
				   uint32_t place, enum links_tier *ret_tier)
{
	struct links_cost slow = { 0, INFINITY };
	const uint32_t *rank = &m->rank[place];
	uint32_t g = m->dim[mesh_dim];
	size_t stride = 1;

	for (uint32_t d = m->ndim; d-- > mesh_dim + 1;)
		stride *= m->dim[d];
	for (uint32_t i = 0; i < g; i++) {
		enum links_tier t = links_between(l, rank[i * stride], rank[(i + 1) % g * stride]);
		const struct links_cost *c = &l->tier[t];

		if (ret_tier && c->bytes_per_us < slow.bytes_per_us)
			*ret_tier = t;
		slow.latency_us = MAX(slow.latency_us, c->latency_us);
		slow.bytes_per_us = MIN(slow.bytes_per_us, c->bytes_per_us);
	}
	return slow;
}

/* `times` around the ring with shares of so many elements in all, the smallest of which has
 * `least`. */
static struct redist_price ring_price(const struct step *s, uint32_t times, uint64_t all,
				      uint64_t least)
{
	double sent = (double)times * (double)(all - least) * s->p->elem_bytes;
	double latency = MUTANT(RING_WITHOUT_LATENCY) ? 0 : s->link.latency_us;

	if (!all)
		return (struct redist_price){ 0 };
	return (struct redist_price){ .us = times * (s->g - 1) * latency +
					    sent / s->link.bytes_per_us,
				      .sent_bytes = sent,
				      .tier = s->tier };
}

static struct redist_price gather_price(const struct step *s)
{
	uint64_t all = 0, least = UINT64_MAX;

	for (uint32_t i = 0; i < s->g; i++) {
		all += s->member[i].before;
		least = MIN(least, s->member[i].before);
	}
	return ring_price(s, 1, all, least);
}

static struct redist_price scatter_price(const struct step *s)
{
	uint64_t all = 0, least = UINT64_MAX, most = 0;
	struct redist_price x;

	for (uint32_t i = 0; i < s->g; i++) {
		all += s->member[i].after;
		least = MIN(least, s->member[i].after);
		most = MAX(most, s->member[i].after);
	}
	x = ring_price(s, 1, all, least);
	x.staging_bytes = most * s->p->elem_bytes;
	return x;
}

static struct redist_price reduce_price(const struct step *s)
{
	uint64_t all = s->member[0].before;
	struct redist_price x = ring_price(s, 2, all, all / s->g);

	x.staging_bytes = div_up(all, s->g) * s->p->elem_bytes;
	return x;
}

/* --- all to all --- */

/* Messages to the other members, by tier: their number, and the sum of the factors of their
 * sizes. */
struct messages {
	uint64_t n[LINKS_TIERS], size[LINKS_TIERS];
};

static int rank_compare(const void *va, const void *vb, void *arg)
{
	const struct member *m = arg;
	const uint32_t *a = va, *b = vb;

	return COMPARE(m[*a].rank, m[*b].rank);
}

static uint64_t size_of(const struct member *m, bool takes)
{
	return takes ? m->takes : m->gives;
}

/* Members [from, to) by rank: their number and sizes, without empty ones. */
static void range_add(const struct step *s, bool takes, uint32_t from, uint32_t to, uint64_t *ret_n,
		      uint64_t *ret_size)
{
	*ret_n = *ret_size = 0;
	for (; from < to; from++) {
		uint64_t size = size_of(&s->member[s->by_rank[from]], takes);

		*ret_n += size > 0;
		*ret_size += size;
	}
}

/* In the order of ranks: the place behind the last member that shares a host (or switch) with the
 * one at `from`. */
static uint32_t range_end(const struct step *s, uint32_t from, enum links_tier tier)
{
	uint32_t to = from + 1, rank = s->member[s->by_rank[from]].rank;

	while (to < s->g && links_between(s->l, rank, s->member[s->by_rank[to]].rank) <= tier)
		to++;
	return to;
}

/* What a member spends on messages to all others, or from them: `size` times the size of each. */
static void member_price(struct step *s, uint64_t size, bool sends, const struct messages *m)
{
	double each = (double)size * (double)s->others * s->p->elem_bytes;
	double us[LINKS_TIERS] = { 0 };
	struct redist_price x = { 0 };

	if (!size || !s->others)
		return;
	for (uint32_t t = LINKS_HOST; t <= LINKS_NETWORK; t++) {
		us[t] = (double)m->n[t] * s->l->tier[t].latency_us +
			each * (double)m->size[t] / s->l->tier[t].bytes_per_us;
		x.sent_bytes += sends ? each * (double)m->size[t] : 0;
	}
	redist_price_add(&x, us);
	redist_price_most(&s->most, &x);
}

/* takes: members send `gives` times what the others take; else they receive. Sorted by rank, those
 * of a host stand together, and those of a switch. O(g). */
static void one_way_price(struct step *s, bool takes)
{
	uint64_t all_n, all, switch_n, of_switch, host_n, of_host;

	range_add(s, takes, 0, s->g, &all_n, &all);
	for (uint32_t x = 0, xend; x < s->g; x = xend) {
		xend = range_end(s, x, LINKS_SWITCH);
		range_add(s, takes, x, xend, &switch_n, &of_switch);
		for (uint32_t h = x, hend; h < xend; h = hend) {
			hend = range_end(s, h, LINKS_HOST);
			range_add(s, takes, h, hend, &host_n, &of_host);
			for (uint32_t i = h; i < hend; i++) {
				const struct member *m = &s->member[s->by_rank[i]];
				uint64_t own = size_of(m, takes);
				struct messages to = { 0 };

				to.n[LINKS_HOST] = host_n - (own > 0);
				to.size[LINKS_HOST] = of_host - own;
				to.n[LINKS_SWITCH] = switch_n - host_n;
				to.size[LINKS_SWITCH] = of_switch - of_host;
				to.n[LINKS_NETWORK] = all_n - switch_n;
				to.size[LINKS_NETWORK] = all - of_switch;
				member_price(s, size_of(m, !takes), takes, &to);
			}
		}
	}
}

/* Does `longer` have the cuts of `cut` and, behind them, one over this mesh dimension? Then each
 * list of `longer` is a part of a list of `cut`, so it is also what the two have in common. */
static bool is_cut_once_more(const struct redist_cut *cut, const struct redist_cut *longer,
			     uint32_t mesh_dim)
{
	return longer->naxis > 0 && longer->axis[longer->naxis - 1].mesh_dim == mesh_dim &&
	       redist_cut_is(cut, longer->tensor_dim, longer->axis, longer->naxis - 1);
}

/* A step from the last cut of one tensor dimension to the last cut of another one. */
static bool is_transpose(const struct step *s)
{
	const struct redist_step *of = s->of;
	uint32_t from = of->from.tensor_dim, to = of->to.tensor_dim;

	if (of->op != REDIST_ALL_TO_ALL || of->from.how != CKPT_SHARD || of->to.how != CKPT_SHARD ||
	    from == to)
		return false;
	for (uint32_t d = 0; d < s->p->ndim; d++)
		if (d != from && d != to && s->before.cut[d] != s->after.cut[d])
			return false;
	return is_cut_once_more(s->after.cut[from], s->before.cut[from], of->mesh_dim) &&
	       is_cut_once_more(s->before.cut[to], s->after.cut[to], of->mesh_dim);
}

/* What member i has for member j is a product of what i has of `from`, what j needs of `to`, and
 * what all have of the other dimensions. */
static void group_factors(struct step *s, const uint32_t *base)
{
	uint32_t coord[CKPT_DIMS_MAX], from = s->of->from.tensor_dim, to = s->of->to.tensor_dim;

	memcpy(coord, base, s->p->mesh->ndim * sizeof *coord);
	s->others = 1;
	for (uint32_t d = 0; d < s->p->ndim; d++)
		if (d != from && d != to)
			s->others *= redist_held(&s->before, d, base)->total;
	for (uint32_t i = 0; i < s->g; i++) {
		coord[s->of->mesh_dim] = i;
		s->member[i].gives = redist_held(&s->before, from, coord)->total;
		s->member[i].takes = redist_held(&s->after, to, coord)->total;
		s->by_rank[i] = i;
	}
	qsort_r(s->by_rank, s->g, sizeof *s->by_rank, rank_compare, s->member);
}

/* --- all groups --- */

static void group_take(struct step *s, const uint32_t *base, uint32_t place)
{
	uint32_t coord[CKPT_DIMS_MAX];

	memcpy(coord, base, s->p->mesh->ndim * sizeof *coord);
	for (uint32_t i = 0; i < s->g; i++) {
		struct member *m = &s->member[i];

		coord[s->of->mesh_dim] = i;
		m->rank = s->p->mesh->rank[place + i * s->stride];
		m->before = redist_held_numel(&s->before, coord);
		m->after = redist_held_numel(&s->after, coord);
	}
}

static void group_price(struct step *s, const uint32_t *base, uint32_t place)
{
	struct redist_price x = { 0 };

	group_take(s, base, place);
	if (s->of->op == REDIST_ALL_TO_ALL) {
		group_factors(s, base);
		one_way_price(s, true);
		one_way_price(s, false);
		return;
	}
	s->link = redist_ring_link(s->l, s->p->mesh, s->of->mesh_dim, place, &s->tier);
	if (s->of->op == REDIST_ALL_GATHER)
		x = gather_price(s);
	else if (s->of->op == REDIST_ALL_REDUCE)
		x = reduce_price(s);
	else
		x = scatter_price(s);
	redist_price_most(&s->most, &x);
}

static uint32_t place_at(const struct mesh *m, const uint32_t *coord)
{
	uint32_t place = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		place = place * m->dim[d] + coord[d];
	return place;
}

/* The next coordinate over these mesh dimensions, a bit for each. */
static bool coord_next(const struct mesh *m, uint32_t dims, uint32_t *coord)
{
	for (uint32_t d = m->ndim; d-- > 0;) {
		if (!(dims >> d & 1))
			continue;
		if (++coord[d] < m->dim[d])
			return true;
		coord[d] = 0;
	}
	return false;
}

/* Do the members of two groups share hosts and switches in the same way? */
static bool group_is_like(const struct step *s, uint32_t place, uint32_t other)
{
	uint32_t per_host = s->l->per_host, per_switch = s->l->per_switch ? s->l->per_switch : 1;
	const uint32_t *x = &s->p->mesh->rank[place], *y = &s->p->mesh->rank[other];

	for (size_t i = 0, at = 0; i < s->g; i++, at += s->stride) {
		uint32_t a = x[at] / per_host, b = y[at] / per_host;

		if (a - x[0] / per_host != b - y[0] / per_host ||
		    a / per_switch - x[0] / per_host / per_switch !=
			    b / per_switch - y[0] / per_host / per_switch)
			return false;
	}
	return true;
}

static bool groups_alike(const struct step *s, struct redist_memo *memo)
{
	uint32_t coord[CKPT_DIMS_MAX] = { 0 }, bit = 1u << s->of->mesh_dim;
	bool alike = true;

	if (memo->alike_known & bit)
		return memo->alike & bit;
	while (alike && coord_next(s->p->mesh, ~bit, coord))
		alike = group_is_like(s, 0, place_at(s->p->mesh, coord));
	memo->alike_known |= bit;
	memo->alike |= alike ? bit : 0;
	return alike;
}

static uint32_t cutters(const struct redist_cut *x)
{
	uint32_t dims = 0;

	for (uint32_t i = 0; i < x->naxis; i++)
		dims |= 1u << x->axis[i].mesh_dim;
	return dims;
}

/*
 * The mesh dimensions over whose coordinates groups have to be priced. Where all are alike as to
 * links, and no shard is strided, the rank of coordinate 0 holds the most of each tensor dimension:
 * by torch.chunk it has the longest list, of n indices, and what a ring sends of it grows with n:
 * all but the last chunk, min(n, (g-1) ceil(n/g)). Of a transpose that holds for all dimensions but
 * the two that change.
 */
static uint32_t dims_priced(const struct step *s, struct redist_memo *memo)
{
	if (s->strided || !groups_alike(s, memo))
		return UINT32_MAX;
	return s->of->op != REDIST_ALL_TO_ALL ? 0
					      : cutters(s->before.cut[s->of->from.tensor_dim]) |
							cutters(s->after.cut[s->of->to.tensor_dim]);
}

static void groups_price(struct step *s, struct redist_memo *memo)
{
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	uint32_t dims = dims_priced(s, memo) & ~(1u << s->of->mesh_dim);

	do {
		group_price(s, coord, place_at(s->p->mesh, coord));
		memo->counted += s->g;
	} while (coord_next(s->p->mesh, dims, coord));
}

/* --- the price --- */

bool redist_has_strided(const struct layout *l)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_SHARD && l->place[i].split_factor > 1)
			return true;
	return false;
}

/* What ranks hold before and after. Without strided shards the rank of coordinate 0 has the longest
 * list of each tensor dimension. */
static void held_most(struct step *s)
{
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };

	s->strided = redist_has_strided(&s->of->before) || redist_has_strided(&s->of->after);
	for (uint32_t place = 0; place < (s->strided ? s->p->mesh->nrank : 1); place++) {
		uint64_t after, before;

		mesh_place_coord(s->p->mesh, place, coord);
		after = redist_held_numel(&s->after, coord);
		before = redist_held_numel(&s->before, coord);
		s->after_most = MAX(s->after_most, after);
		s->peak = MAX(s->peak, before + after);
	}
}

static int step_hold(struct step *s, struct redist_memo *memo)
{
	const struct mesh *m = s->p->mesh;
	int rc = redist_holding_of(s->p, &s->of->before, memo, &s->before);

	if (!rc)
		rc = redist_holding_of(s->p, &s->of->after, memo, &s->after);
	s->g = m->ndim ? m->dim[s->of->mesh_dim] : 1;
	s->stride = 1;
	for (uint32_t d = m->ndim; d-- > s->of->mesh_dim + 1;)
		s->stride *= m->dim[d];
	return rc;
}

static int groups_or_mesh_price(struct step *s, struct redist_memo *memo, struct ckpt_err *err)
{
	bool mesh = s->of->op == REDIST_EXCHANGE ||
		    (s->of->op == REDIST_ALL_TO_ALL && !is_transpose(s));
	struct arena a = { 0 };
	int rc = 0;

	s->member = arena_array(&a, s->g, sizeof *s->member);
	s->by_rank = arena_array(&a, s->g, sizeof *s->by_rank);
	if (!s->member || !s->by_rank)
		rc = ckpt_error(err, -ENOMEM, "out of memory for the price of a step");
	else if (mesh)
		rc = redist_exchange(s->p, s->l, &s->before, &s->after, &a, &s->most, err);
	else
		groups_price(s, memo);
	memo->counted += mesh ? s->p->mesh->nrank + (uint64_t)s->most.messages : 0;
	arena_free(&a);
	return rc;
}

static int step_price(struct step *s, struct redist_memo *memo, struct ckpt_err *err)
{
	int rc = step_hold(s, memo);

	if (rc)
		return ckpt_error(err, rc,
				  rc == -ENOMEM
					  ? "out of memory for the price of a step"
					  : "the shares of a state are too interleaved to count");
	held_most(s);
	memo->counted += s->strided ? s->p->mesh->nrank : 1;
	if (s->of->op == REDIST_LOCAL || (s->of->op != REDIST_EXCHANGE && s->g == 1))
		return 0;
	return groups_or_mesh_price(s, memo, err);
}

static int bytes_check(const struct redist_problem *p, uint64_t *ret_numel, struct ckpt_err *err)
{
	uint64_t bytes;
	int rc = shape_numel(p->ndim, p->shape, ret_numel);

	/* A rank holds its share before, its share after and one message. None of these is larger
	 * than the tensor. */
	if (!rc)
		rc = ckpt_mul(*ret_numel, (uint64_t)p->elem_bytes * 4, &bytes);
	return rc ? ckpt_error(err, -EOVERFLOW, "a tensor of more than 2^62 bytes has no price")
		  : 0;
}

static int limit_check(const struct redist_problem *p, uint64_t bytes, struct ckpt_err *err)
{
	return p->mem_limit && bytes > p->mem_limit
		       ? ckpt_error(err, -ENOSPC, "a rank would hold %s, more than the limit of %s",
				    BYTES_TEXT(bytes), BYTES_TEXT(p->mem_limit))
		       : 0;
}

/* Of a tensor with elements: what the ranks hold, and what the step costs them. */
static int step_measure(const struct redist_model *m, const struct redist_problem *p,
			struct redist_step *step, struct step *ret, struct ckpt_err *err)
{
	struct redist_memo own = { 0 };
	int rc;

	ret->p = p;
	ret->l = m->links;
	ret->of = step;
	ret->most = (struct redist_price){ 0 };
	ret->peak = ret->after_most = 0;
	if (m->memo && m->memo->arena.total_bytes > REDIST_MEMO_MAX) {
		uint64_t counted = m->memo->counted;

		redist_memo_free(m->memo);
		m->memo->counted = counted;
	}
	rc = step_price(ret, m->memo ? m->memo : &own, err);
	redist_memo_free(&own);
	return rc;
}

static int links_price(const struct redist_model *m, const struct redist_problem *p,
		       struct redist_step *step, struct ckpt_err *err)
{
	struct step s;
	struct redist_price write = { .tier = LINKS_MEMORY };
	uint64_t numel;
	int rc = bytes_check(p, &numel, err);

	step->us = step->bytes = 0;
	step->peak_bytes = 0;
	step->tier = LINKS_MEMORY;
	if (!rc && numel)
		rc = step_measure(m, p, step, &s, err);
	if (rc || !numel)
		return rc;
	step->peak_bytes = s.peak * p->elem_bytes + s.most.staging_bytes;
	if (step->op != REDIST_EXCHANGE && s.g == 1) {
		step->peak_bytes = s.after_most * p->elem_bytes;
	} else {
		write.us = links_us(m->links, LINKS_MEMORY, (double)s.after_most * p->elem_bytes);
		redist_price_most(&s.most, &write);
		step->us = s.most.us;
		step->tier = s.most.tier;
		step->bytes = s.most.sent_bytes;
	}
	return limit_check(p, step->peak_bytes, err);
}

int redist_state_bytes(const struct redist_model *m, const struct redist_problem *p,
		       const struct layout *l, uint64_t *ret, struct ckpt_err *err)
{
	struct redist_step stays = { .op = REDIST_LOCAL, .before = *l, .after = *l };
	struct step s;
	uint64_t numel;
	int rc = bytes_check(p, &numel, err);

	*ret = 0;
	if (!rc && numel)
		rc = step_measure(m, p, &stays, &s, err);
	if (rc || !numel)
		return rc;
	*ret = s.after_most * p->elem_bytes;
	return limit_check(p, *ret, err);
}

struct redist_model redist_links(const struct links *l)
{
	return (struct redist_model){ .price = links_price, .bounded = true, .links = l };
}
