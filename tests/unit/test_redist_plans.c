/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_redist_plans.c - planners of redistributions on random pairs of layouts, in PyTorch's
 * model: steps that ranks can take, with the elements that they have; no sequence that is cheaper.
 * A pair that breaks a property is shrunk.
 */
#include "ckpt/base/error.h"
#include "tests/lib/draw.h"
#include "tests/unit/test_redist_case.h"
#include <math.h>

#define MESH_DIMS 4
#define DIMS 3
#define NUMEL 512 /* of the largest shape */
#define PAIRS 6000
#define NAIVE_PAIRS 1500
#define NAIVE_DEPTH 4

#if defined(__SANITIZE_ADDRESS__)
#define FEWER(n) ((n) / 10)
#else
#define FEWER(n) (n)
#endif

struct pair {
	uint32_t mesh_ndim, dim[MESH_DIMS], ndim, hosts;
	uint64_t shape[DIMS];
	struct ckpt_placement src[MESH_DIMS], dst[MESH_DIMS]; /* in order of application */
};
typedef bool property(const struct pair *p, char why[512]);
#define BROKEN(...) (snprintf(why, 512, __VA_ARGS__), false)

struct planned {
	struct arena a;
	struct mesh mesh;
	struct layout src, dst;
	struct redist_problem problem;
	struct redist_model torch;
	struct redist_steps steps;
	int rc;
	struct ckpt_err err;
};

static void pair_plan(const struct pair *p, enum redist_planner planner, struct planned *ret)
{
	*ret = (struct planned){ .mesh = redist_mesh(p->mesh_ndim, p->dim),
				 .src = { .nplace = p->mesh_ndim, .place = p->src },
				 .dst = { .nplace = p->mesh_ndim, .place = p->dst },
				 .torch = redist_torch(p->hosts) };
	ret->problem = (struct redist_problem){ .mesh = &ret->mesh,
						.ndim = p->ndim,
						.elem_bytes = 4,
						.shape = p->shape,
						.src = &ret->src,
						.dst = &ret->dst };
	ret->rc = redist_plan(&ret->problem, planner, &ret->torch, &ret->a, &ret->steps, &ret->err);
}

/* --- which elements, one by one --- */

struct held {
	bool has[NUMEL];
};

static uint64_t numel_of(const struct pair *p)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < p->ndim; d++)
		n *= p->shape[d];
	return n;
}

static bool indices_has(const struct indices *x, uint64_t i)
{
	return indices_below(x, i + 1) > indices_below(x, i);
}

/* What each coordinate holds in a state. */
static void hold(const struct pair *p, const struct mesh *m, const struct layout *l,
		 struct held *ret)
{
	cleanup_arena struct arena a = { 0 };
	uint32_t coord[MESH_DIMS];
	struct indexset set;

	for (uint32_t r = 0; r < m->nrank; r++) {
		mesh_place_coord(m, r, coord);
		assert_ok(layout_share(m, l, p->ndim, p->shape, coord, &a, &set));
		for (uint64_t e = 0; e < numel_of(p); e++) {
			uint64_t rest = e;

			ret[r].has[e] = true;
			for (uint32_t d = p->ndim; d-- > 0; rest /= p->shape[d])
				if (!indices_has(&set.dim[d], rest % p->shape[d]))
					ret[r].has[e] = false;
		}
	}
}

/* Has rank r, or one that differs from it in mesh dimension `along` only, the element? */
static bool along_has(const struct mesh *m, const struct held *h, uint32_t r, uint32_t along,
		      uint64_t e)
{
	uint32_t mine[MESH_DIMS], other[MESH_DIMS];

	mesh_place_coord(m, r, mine);
	for (uint32_t o = 0; o < m->nrank; o++) {
		bool same = true;

		mesh_place_coord(m, o, other);
		for (uint32_t i = 0; i < m->ndim; i++)
			same = same && (i == along || mine[i] == other[i]);
		if (same && h[o].has[e])
			return true;
	}
	return false;
}

static bool step_can_be_taken(const struct pair *p, const struct mesh *m,
			      const struct redist_step *s, const struct held *before,
			      const struct held *after)
{
	for (uint32_t r = 0; r < m->nrank; r++)
		for (uint64_t e = 0; e < numel_of(p); e++) {
			bool zero = s->to.how == CKPT_PARTIAL; /* around a shard */

			if (!after[r].has[e] || zero)
				continue;
			if (s->op == REDIST_LOCAL ? !before[r].has[e]
						  : !along_has(m, before, r, s->mesh_dim, e))
				return false;
		}
	return true;
}

static bool same_held(const struct held *x, const struct held *y, uint32_t ranks, uint64_t numel)
{
	for (uint32_t r = 0; r < ranks; r++)
		if (memcmp(x[r].has, y[r].has, numel))
			return false;
	return true;
}

static uint32_t partials(const struct layout *l, uint32_t mesh_dim)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].mesh_dim == mesh_dim && l->place[i].how == CKPT_PARTIAL)
			return 1u + l->place[i].reduce;
	return 0;
}

static bool walk(const struct pair *p, const struct planned *q, char *why)
{
	static struct held now[256], next[256], dst[256];
	const struct redist_steps *s = &q->steps;

	assert_true(q->mesh.nrank <= ARRAY_LEN(now));
	hold(p, &q->mesh, &q->src, now);
	hold(p, &q->mesh, &q->dst, dst);
	for (uint32_t i = 0; i < s->n; i++) {
		const struct redist_step *step = &s->step[i];

		hold(p, &q->mesh, &step->after, next);
		if (!step_can_be_taken(p, &q->mesh, step, now, next))
			return BROKEN("step %u needs elements that are elsewhere", i);
		memcpy(now, next, sizeof now);
		for (uint32_t m = 0; m < p->mesh_ndim; m++)
			if (m != step->mesh_dim &&
			    partials(&step->before, m) != partials(&step->after, m))
				return BROKEN("step %u changes mesh dimension %u", i, m);
	}
	for (uint32_t m = 0; m < p->mesh_ndim && s->n; m++)
		if (partials(&s->step[s->n - 1].after, m) != partials(&q->dst, m))
			return BROKEN("mesh dimension %u is reduced otherwise", m);
	return same_held(now, dst, q->mesh.nrank, numel_of(p)) || BROKEN("it ends elsewhere");
}

static bool has_default_order(const struct pair *p)
{
	struct planned q = { 0 };
	bool ret;

	pair_plan(p, REDIST_GRAPH, &q);
	ret = redist_torch_takes(&q.problem) == REDIST_GREEDY;
	arena_free(&q.a);
	return ret;
}

static bool steps_end_in_dst(const struct pair *p, char *why)
{
	static const enum redist_planner planner[] = { REDIST_GRAPH, REDIST_GREEDY };
	bool good = true;

	for (size_t i = 0; i < ARRAY_LEN(planner) && good; i++) {
		struct planned q;

		if (planner[i] == REDIST_GREEDY && !has_default_order(p))
			break;
		pair_plan(p, planner[i], &q);
		good = q.rc ? BROKEN("%s: %.300s", i ? "greedy" : "graph", q.err.msg)
			    : walk(p, &q, why);
		arena_free(&q.a);
	}
	return good;
}

static bool graph_is_not_dearer_than_greedy(const struct pair *p, char *why)
{
	struct planned graph, greedy;
	bool good = true;

	if (!has_default_order(p))
		return true;
	for (uint32_t i = 0; i < p->mesh_ndim; i++)
		if (p->dim[i] == 1) /* the greedy pass takes a step that the search does not have */
			return true;
	pair_plan(p, REDIST_GRAPH, &graph);
	pair_plan(p, REDIST_GREEDY, &greedy);
	if (graph.rc || greedy.rc || graph.steps.us > greedy.steps.us)
		good = BROKEN("graph %d %.17g us, greedy %d %.17g us", graph.rc, graph.steps.us,
			      greedy.rc, greedy.steps.us);
	arena_free(&graph.a);
	arena_free(&greedy.a);
	return good;
}

/* --- a naive search: all sequences up to a depth --- */

/* Of each mesh dimension what it does, and when: what cuts later has a larger number. */
struct naive_state {
	struct ckpt_placement at[MESH_DIMS];
	uint32_t when[MESH_DIMS];
};

static void naive_of(const struct pair *p, const struct ckpt_placement *place,
		     struct naive_state *ret)
{
	for (uint32_t i = 0; i < p->mesh_ndim; i++) {
		ret->at[place[i].mesh_dim] = place[i];
		ret->when[place[i].mesh_dim] = i;
	}
}

static bool naive_cuts(const struct ckpt_placement *x, uint32_t d)
{
	return x->how == CKPT_SHARD && x->tensor_dim == d;
}

static bool naive_is_last(const struct pair *p, const struct naive_state *s, uint32_t m)
{
	for (uint32_t i = 0; i < p->mesh_ndim; i++)
		if (naive_cuts(&s->at[i], s->at[m].tensor_dim) && s->when[i] > s->when[m])
			return false;
	return true;
}

static bool naive_equal(const struct pair *p, const struct naive_state *x,
			const struct naive_state *y)
{
	for (uint32_t i = 0; i < p->mesh_ndim; i++) {
		if (x->at[i].how != y->at[i].how || x->at[i].reduce != y->at[i].reduce ||
		    x->at[i].tensor_dim != y->at[i].tensor_dim ||
		    x->at[i].split_factor != y->at[i].split_factor)
			return false;
		for (uint32_t k = 0; k < i; k++)
			if (x->at[i].how == CKPT_SHARD &&
			    naive_cuts(&x->at[k], x->at[i].tensor_dim) &&
			    (x->when[i] > x->when[k]) != (y->when[i] > y->when[k]))
				return false;
	}
	return true;
}

/* The formula of tests/vectors/layout, of redistribute_cost.jsonl. */
static double naive_price(const struct pair *p, const struct naive_state *s, uint32_t m,
			  const struct ckpt_placement *to)
{
	const struct ckpt_placement *from = &s->at[m];
	double b = 4.0 * (double)numel_of(p), n = p->dim[m], devices = 1, us, hops = n - 1;

	if (from->how == CKPT_REPLICATE || to->how == CKPT_PARTIAL || from->split_factor)
		return 0;
	for (uint32_t i = 0; i < p->mesh_ndim; i++) {
		b /= s->at[i].how == CKPT_SHARD ? p->dim[i] : 1;
		devices *= i >= m ? p->dim[i] : 1;
	}
	if (from->how == CKPT_SHARD && to->how == CKPT_REPLICATE)
		b *= n;
	if (from->how == CKPT_PARTIAL && to->how == CKPT_REPLICATE)
		hops *= 2;
	us = 6.6 + hops * (devices > p->hosts ? 2.7 : .6) +
	     1e6 * b / 0x1p30 * hops / n / (devices > p->hosts ? 87.7 * .22 : 87.7);
	return from->how == CKPT_SHARD && to->how == CKPT_SHARD ? us + 1 : us;
}

struct naive {
	const struct pair *p;
	struct naive_state dst;
	double best;
};

static void naive_search(struct naive *n, const struct naive_state *s, double us, uint32_t depth);

static void naive_try(struct naive *n, const struct naive_state *s, uint32_t m,
		      struct ckpt_placement to, double us, uint32_t depth)
{
	struct naive_state next = *s;

	to.mesh_dim = (uint16_t)m;
	next.at[m] = to;
	next.when[m] = 0;
	for (uint32_t i = 0; i < n->p->mesh_ndim; i++)
		if (i != m)
			next.when[m] = MAX(next.when[m], s->when[i] + 1);
	naive_search(n, &next, us + naive_price(n->p, s, m, &to), depth + 1);
}

/* All that mesh dimension m can become. */
static void naive_each(struct naive *n, const struct naive_state *s, uint32_t m, double us,
		       uint32_t depth)
{
	struct ckpt_placement none = { 0 };
	const struct ckpt_placement *from = &s->at[m], *want = &n->dst.at[m];
	bool strided = from->how == CKPT_SHARD && from->split_factor;

	if (from->how == CKPT_SHARD && !naive_is_last(n->p, s, m))
		return;
	if (from->how != CKPT_REPLICATE)
		naive_try(n, s, m, none, us, depth);
	for (uint32_t d = 0; d < n->p->ndim && !strided; d++)
		if (!naive_cuts(from, d))
			naive_try(n, s, m,
				  (struct ckpt_placement){ .how = CKPT_SHARD,
							   .tensor_dim = (uint16_t)d },
				  us, depth);
	if (from->how == CKPT_REPLICATE && want->how == CKPT_SHARD && want->split_factor)
		naive_try(n, s, m, *want, us, depth);
	if (from->how == CKPT_SHARD && !strided && want->how == CKPT_PARTIAL)
		naive_try(n, s, m, *want, us, depth);
}

static void naive_search(struct naive *n, const struct naive_state *s, double us, uint32_t depth)
{
	if (us >= n->best)
		return;
	if (naive_equal(n->p, s, &n->dst)) {
		n->best = us;
		return;
	}
	for (uint32_t m = 0; m < n->p->mesh_ndim && depth < NAIVE_DEPTH; m++)
		naive_each(n, s, m, us, depth);
}

static bool nothing_is_cheaper(const struct pair *p, char *why)
{
	struct naive n = { .p = p, .best = (double)INFINITY };
	struct naive_state src;
	struct planned q;
	bool good;

	naive_of(p, p->src, &src);
	naive_of(p, p->dst, &n.dst);
	naive_search(&n, &src, 0, 0);
	pair_plan(p, REDIST_GRAPH, &q);
	good = !q.rc && q.steps.us <= n.best * (1 + 1e-12) &&
	       (q.steps.n > NAIVE_DEPTH || q.steps.us >= n.best * (1 - 1e-12));
	if (!good)
		good = BROKEN("graph %d: %.17g us in %u steps; %.17g us in up to %d", q.rc,
			      q.steps.us, q.steps.n, n.best, NAIVE_DEPTH);
	arena_free(&q.a);
	return good;
}

/* --- random pairs --- */

static struct ckpt_placement draw_placement(uint64_t *rng, const struct pair *p, int reduce,
					    bool strided)
{
	struct ckpt_placement x = { 0 };
	uint64_t n = draw_below(rng, 10);

	if (n < 3 || (!p->ndim && reduce < 0))
		return x;
	if (!p->ndim || (n < 5 && reduce >= 0)) {
		x.how = CKPT_PARTIAL;
		x.reduce = (uint8_t)reduce;
		return x;
	}
	x.how = CKPT_SHARD;
	x.tensor_dim = (uint16_t)draw_below(rng, p->ndim);
	if (strided && n > 7)
		x.split_factor = 1 + (uint32_t)draw_below(rng, MAX(p->shape[x.tensor_dim], 1u));
	return x;
}

/* src[i], dst[i] are of mesh dimension i so far. */
static void draw_orders(uint64_t *rng, struct pair *p, bool shuffle)
{
	for (uint32_t i = 0; i < p->mesh_ndim; i++)
		p->src[i].mesh_dim = p->dst[i].mesh_dim = (uint16_t)i;
	for (uint32_t i = p->mesh_ndim; shuffle && i > 1; i--) {
		struct ckpt_placement *side = draw_below(rng, 2) ? p->src : p->dst;
		uint64_t k = draw_below(rng, i);
		struct ckpt_placement x = side[k];

		side[k] = side[i - 1];
		side[i - 1] = x;
	}
}

static void draw_pair(uint64_t *rng, uint32_t mesh_dims, uint32_t dims, struct pair *p)
{
	static const uint64_t size[] = { 0, 1, 2, 3, 4, 5, 7, 8 };
	int reduce = (int)draw_below(rng, 8) - 3;
	bool strided = draw_below(rng, 3) == 0;

	*p = (struct pair){ .mesh_ndim = (uint32_t)draw_below(rng, mesh_dims) + 1,
			    .ndim = (uint32_t)draw_below(rng, dims + 1),
			    .hosts = 1 + (uint32_t)draw_below(rng, 8) };
	for (uint32_t i = 0; i < p->mesh_ndim; i++)
		p->dim[i] = 1 + (uint32_t)draw_below(rng, i < 2 ? 4 : 3);
	for (uint32_t d = 0; d < p->ndim; d++)
		p->shape[d] = size[draw_below(rng, ARRAY_LEN(size))];
	for (uint32_t i = 0; i < p->mesh_ndim; i++) {
		p->src[i] = draw_placement(rng, p, reduce, strided);
		p->dst[i] = draw_placement(rng, p, -1, strided);
		if (p->src[i].how == CKPT_PARTIAL && draw_below(rng, 3) == 0)
			p->dst[i] = p->src[i];
		else if (p->src[i].how == CKPT_SHARD && !p->src[i].split_factor && reduce < 1 &&
			 draw_below(rng, 5) == 0)
			p->dst[i] = (struct ckpt_placement){ .how = CKPT_PARTIAL };
	}
	draw_orders(rng, p, draw_below(rng, 2) == 0);
}

/* --- shrinking --- */

static bool is_broken(const struct pair *p, property *holds, char why[512])
{
	struct mesh m = redist_mesh(p->mesh_ndim, p->dim);
	const struct layout src = { .nplace = p->mesh_ndim, .place = p->src },
			    dst = { .nplace = p->mesh_ndim, .place = p->dst };
	const struct redist_problem x = { .mesh = &m,
					  .ndim = p->ndim,
					  .elem_bytes = 4,
					  .shape = p->shape,
					  .src = &src,
					  .dst = &dst };

	return !layout_check(&m, &src, p->ndim, NULL) && !layout_check(&m, &dst, p->ndim, NULL) &&
	       !redist_check(&x, NULL) && !holds(p, why);
}

static void drop_mesh_dim(struct ckpt_placement *side, uint32_t n, uint32_t m)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct ckpt_placement x = side[i];

		if (x.mesh_dim == m)
			continue;
		x.mesh_dim = (uint16_t)(x.mesh_dim - (x.mesh_dim > m));
		side[k++] = x;
	}
}

/* The k-th pair that is smaller than p; false: fewer than that exist. */
static bool smaller(const struct pair *p, uint32_t k, struct pair *ret)
{
	uint32_t m = k % MESH_DIMS, what = k / MESH_DIMS;

	*ret = *p;
	if (what == 0 && m < p->mesh_ndim && p->mesh_ndim > 1) {
		drop_mesh_dim(ret->src, p->mesh_ndim, m);
		drop_mesh_dim(ret->dst, p->mesh_ndim, m);
		memmove(&ret->dim[m], &ret->dim[m + 1], (MESH_DIMS - 1 - m) * sizeof *ret->dim);
		ret->mesh_ndim--;
	} else if (what == 1 && m < p->mesh_ndim) {
		ret->dim[m] -= ret->dim[m] > 1;
	} else if (what == 2 && m < p->ndim) {
		ret->shape[m] /= 2;
	} else if (what == 3 && m < p->ndim) {
		ret->shape[m] -= ret->shape[m] > 0;
	} else if (what == 4 || what == 5) {
		struct ckpt_placement *x = what == 4 ? &ret->src[m] : &ret->dst[m];

		*x = (struct ckpt_placement){ .mesh_dim = x->mesh_dim };
	} else if (what == 6) {
		ret->src[m].split_factor /= 2;
		ret->dst[m].split_factor /= 2;
	}
	return what < 7;
}

static void report(struct pair p, property *holds, char why[512])
{
	char src[REDIST_STATE_BYTES], dst[REDIST_STATE_BYTES], text[512];
	struct pair less;
	struct mesh m;

	for (uint32_t k = 0; smaller(&p, k, &less); k++)
		if (memcmp(&p, &less, sizeof p) && is_broken(&less, holds, text)) {
			p = less;
			snprintf(why, 512, "%s", text);
			k = UINT32_MAX; /* from the beginning */
		}
	m = redist_mesh(p.mesh_ndim, p.dim);
	fail_msg("mesh %u of %u,%u,%u,%u, shape %u of %" PRIu64 ",%" PRIu64 ",%" PRIu64
		 ", %u devices a host: %s -> %s: %s",
		 p.mesh_ndim, p.dim[0], p.dim[1], p.dim[2], p.dim[3], p.ndim, p.shape[0],
		 p.shape[1], p.shape[2], p.hosts,
		 redist_state_print(&m, &(struct layout){ .nplace = p.mesh_ndim, .place = p.src },
				    src, sizeof src),
		 redist_state_print(&m, &(struct layout){ .nplace = p.mesh_ndim, .place = p.dst },
				    dst, sizeof dst),
		 why);
}

static void holds_for(property *holds, uint64_t pairs, uint32_t mesh_dims, uint32_t dims)
{
	uint64_t rng = draw_seed("redistribute");
	char why[512];

	for (uint64_t i = unit_scaled(FEWER(pairs)); i > 0; i--) {
		struct pair p;

		draw_pair(&rng, mesh_dims, dims, &p);
		if (is_broken(&p, holds, why))
			report(p, holds, why);
	}
}

TEST(ranks_can_take_each_step_and_have_the_targets_elements_in_the_end)
{
	holds_for(steps_end_in_dst, PAIRS, 3, DIMS);
}

TEST(the_search_is_never_dearer_than_the_greedy_pass)
{
	holds_for(graph_is_not_dearer_than_greedy, PAIRS, MESH_DIMS, DIMS);
}

TEST(no_sequence_is_cheaper_than_what_the_search_finds)
{
	holds_for(nothing_is_cheaper, NAIVE_PAIRS, 3, 2);
}

/* A sum that stands for a shard waits until the other kind of reduction is done. */
TEST(a_shard_may_become_a_sum_before_another_reduction_is_done)
{
	const uint32_t dim[] = { 2, 8 };
	const uint64_t shape[] = { 4 };
	char trace[REDIST_TRACE_BYTES];
	struct redist_model torch = redist_torch(8);
	struct redist_steps steps;
	struct redist_case c;
	struct ckpt_err err = { 0 };

	redist_case_make(&c, 2, dim, 1, shape, "S(0)P(max)", "P(sum)S(0)");
	assert_ok_err(redist_plan(&c.problem, REDIST_GRAPH, &torch, &c.a, &steps, &err), &err);
	assert_string_equal(redist_trace(&c.mesh, &steps, trace),
			    "S(0)P(max)->P(sum)P(max)->P(sum)S(0)");
	redist_case_free(&c);
}

/* 13 mesh dimensions: more states than a search may visit. */
TEST(a_search_that_becomes_too_large_ends_with_a_sentence)
{
	static const char *const name[] = { "a", "b", "c", "d", "e", "f", "g",
					    "h", "i", "j", "k", "l", "m" };
	uint32_t dim[13], rank[1 << 13];
	const uint64_t shape[] = { 64, 64, 64, 64, 64, 64, 64, 64 };
	struct mesh m = { .ndim = 13, .name = name, .dim = dim, .nrank = 1 << 13, .rank = rank };
	struct redist_model torch = redist_torch(8);
	struct layout src, dst;
	cleanup_arena struct arena a = { 0 };
	struct redist_problem p = {
		.mesh = &m, .ndim = 8, .elem_bytes = 1, .shape = shape, .src = &src, .dst = &dst
	};
	struct redist_steps steps;
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < 13; i++)
		dim[i] = 2;
	for (uint32_t i = 0; i < 1 << 13; i++)
		rank[i] = i;
	assert_ok(
		redist_state_parse("S(0)S(1)S(2)S(3)S(4)S(5)S(6)S(7)RRRRR", &m, 8, &a, &src, &err));
	assert_ok(
		redist_state_parse("S(7)S(6)S(5)S(4)S(3)S(2)S(1)S(0)RRRRR", &m, 8, &a, &dst, &err));
	assert_int_equal(redist_plan(&p, REDIST_GRAPH, &torch, &a, &steps, &err), -E2BIG);
	assert_non_null(strstr(err.msg, "greedy planner"));
	assert_ok_err(redist_plan(&p, REDIST_GREEDY, &torch, &a, &steps, &err), &err);
}
