/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_redist_own.c - prices of redistributions by our own model: against formulas by hand,
 * against an oracle that counts element by element, and on random pairs: no plan is cheaper than
 * the one that wins.
 */
#include "ckpt/redist/redist_own.h"
#include "tests/unit/test_layout_cases.h"
#include "tests/unit/test_redist_case.h"
#include <math.h>

/* With AddressSanitizer a tenth of the random cases. */
#if defined(__SANITIZE_ADDRESS__)
#define FEWER(n) ((n) / 10)
#else
#define FEWER(n) (n)
#endif

/* 1 us and 1000 bytes a us within a host of four ranks; 10 us and 100 bytes a us to others. */
static const struct links plain = {
	.per_host = 4,
	.tier = { { 0, 1e6 }, { 1, 1000 }, { 10, 100 }, { 100, 10 }, { 0, 1 } },
};

static struct redist_step only_step(struct redist_case *c, enum redist_planner planner,
				    const struct links *l)
{
	struct redist_model m = redist_links(l);
	struct ckpt_err err = { 0 };
	struct redist_steps s;

	assert_ok_err(redist_plan(&c->problem, planner, &m, &c->a, &s, &err), &err);
	assert_int_equal(s.n, 1);
	assert_true(s.us == s.step->us && s.peak_bytes == s.step->peak_bytes);
	return *s.step;
}

struct expected {
	const char *src, *dst;
	enum redist_op op;
	double us, bytes;
	uint64_t peak;
};

static void expect(uint32_t mesh_ndim, const uint32_t *dim, uint32_t ndim, const uint64_t *shape,
		   const struct expected *x)
{
	struct redist_case c;

	redist_case_make(&c, mesh_ndim, dim, ndim, shape, x->src, x->dst);

	struct redist_step s =
		only_step(&c, x->op == REDIST_EXCHANGE ? REDIST_DIRECT : REDIST_GRAPH, &plain);

	if (s.op != x->op || fabs(s.us - x->us) > 1e-9 * x->us || s.bytes != x->bytes ||
	    s.peak_bytes != x->peak)
		fail_msg("%s -> %s: %s, %.9g us, %.0f bytes, peak %" PRIu64, x->src, x->dst,
			 redist_op_name(s.op), s.us, s.bytes, s.peak_bytes);
	redist_case_free(&c);
}

/* --- by hand --- */

/* 1001 elements of 4 bytes on 4 ranks of a host: shares of 251, 251, 251, 248. */
TEST(collectives_cost_what_their_formulas_say)
{
	static const struct expected of[] = {
		{ "S(0)", "R", REDIST_ALL_GATHER, 3 + (1001 - 248) * 4 / 1000., (1001 - 248) * 4,
		  (251 + 1001) * 4 },
		{ "P(sum)", "S(0)", REDIST_REDUCE_SCATTER, 3 + (1001 - 248) * 4 / 1000.,
		  (1001 - 248) * 4, (1001 + 251 + 251) * 4 },
		{ "P(sum)", "R", REDIST_ALL_REDUCE, 6 + 2 * (1001 - 250) * 4 / 1000.,
		  2 * (1001 - 250) * 4, (1001 + 1001 + 251) * 4 },
		{ "R", "S(0)", REDIST_LOCAL, 251 * 4 / 1e6, 0, (1001 + 251) * 4 },
		/* PyTorch prices this one at 0. */
		{ "_S(0, 3)", "R", REDIST_ALL_GATHER, 3 + (1001 - 245) * 4 / 1000.,
		  (1001 - 245) * 4, (252 + 1001) * 4 },
		/* Each sends its share to three others. */
		{ "S(0)", "R", REDIST_EXCHANGE, 3 + 3 * 251 * 4 / 1000., 3 * 251 * 4,
		  (251 + 1001) * 4 },
		/* All operands of each share, but one's own. */
		{ "P(sum)", "S(0)", REDIST_EXCHANGE, 3 + 753 * 4 / 1000., 753 * 4,
		  (1001 + 251 + 251) * 4 },
	};
	const uint32_t dim[] = { 4 };
	const uint64_t shape[] = { 1001 };

	for (uint32_t i = 0; i < ARRAY_LEN(of); i++)
		expect(1, dim, 1, shape, &of[i]);
}

TEST(the_slowest_link_of_a_group_decides)
{
	/* Ranks 0 .. 7: m0 leads from host to host, m1 stays within one. */
	static const struct expected of[] = {
		{ "S(0)R", "RR", REDIST_ALL_GATHER, 10 + 400 / 100., 400, (100 + 200) * 4 },
		{ "RS(0)", "RR", REDIST_ALL_GATHER, 3 + 600 / 1000., 600, (50 + 200) * 4 },
		/* 50 x 1 to each of three neighbours. */
		{ "RS(0)", "RS(1)", REDIST_ALL_TO_ALL, 3 + 3 * 50 * 4 / 1000. / 4, 3 * 50 * 4 / 4.,
		  (50 + 50) * 4 },
	};
	const uint32_t dim[] = { 2, 4 };
	const uint64_t shape[] = { 200, 1 }, square[] = { 50, 4 };

	expect(2, dim, 2, shape, &of[0]);
	expect(2, dim, 2, shape, &of[1]);
	/* Shares of 13, 13, 13 and 11 rows, of one column each afterwards. */
	struct expected t = of[2];

	t.us = 3 + 3 * 13 * 4 / 1000.;
	t.bytes = 3 * 13 * 4;
	t.peak = (13 * 4 + 50) * 4;
	expect(2, dim, 2, square, &t);
}

/* The first coordinate of m0 has more elements, in shares of 3 and 3; the second one has shares of
 * 5 and 0, for it is cut in five pieces of one element. */
TEST(of_strided_shares_the_largest_may_be_anywhere)
{
	static const struct expected of = { "S(0)[0]_S(0, 5)[1]", "S(0)R", REDIST_ALL_GATHER,
					    1 + 20 / 1000.,	  20,	   (5 + 5) * 4 };
	const uint32_t dim[] = { 2, 2 };
	const uint64_t shape[] = { 11 };

	expect(2, dim, 1, shape, &of);
}

TEST(empty_ranks_and_dimensions_of_size_1_cost_nothing)
{
	struct redist_model m = redist_links(&plain);
	const uint32_t dim[] = { 1, 4 };
	const uint64_t shape[] = { 2 }, none[] = { 0 };
	struct ckpt_err err = { 0 };
	struct redist_steps s;
	struct redist_case c;

	redist_case_make(&c, 2, dim, 1, shape, "P(sum)R", "S(0)R");
	assert_ok_err(redist_plan(&c.problem, REDIST_GRAPH, &m, &c.a, &s, &err), &err);
	assert_int_equal(s.n, 1);
	assert_true(s.us == 0 && s.step->bytes == 0);
	assert_int_equal(s.peak_bytes, 8);
	redist_case_free(&c);
	/* Two of four ranks have an element; the others receive both. */
	redist_case_make(&c, 2, dim, 1, shape, "RS(0)", "RR");
	assert_true(fabs(only_step(&c, REDIST_DIRECT, &plain).us - (3 + 3 * 4 / 1000.)) < 1e-9);
	redist_case_free(&c);
	redist_case_make(&c, 2, dim, 1, none, "RS(0)", "RR");
	assert_true(only_step(&c, REDIST_DIRECT, &plain).us == 0);
	assert_true(only_step(&c, REDIST_GRAPH, &plain).us == 0);
	redist_case_free(&c);
}

TEST(a_state_beyond_the_memory_limit_is_no_state)
{
	struct redist_model m = redist_links(&plain);
	const uint32_t dim[] = { 4 };
	const uint64_t shape[] = { 8, 8 };
	struct ckpt_err err = { 0 };
	struct redist_steps s;
	struct redist_case c;

	/* By the gathered tensor of 256 bytes, or without it. */
	redist_case_make(&c, 1, dim, 2, shape, "S(0)", "S(1)");
	c.problem.mem_limit = 200;
	assert_ok_err(redist_plan(&c.problem, REDIST_GRAPH, &m, &c.a, &s, &err), &err);
	assert_int_equal(s.peak_bytes, 128);
	c.problem.mem_limit = 127;
	assert_int_equal(redist_cheapest(&c.problem, &m, &c.a, &s, NULL, &err), -ENOSPC);
	redist_case_free(&c);
	redist_case_make(&c, 1, dim, 2, shape, "S(0)", "R");
	c.problem.mem_limit = 319;
	assert_int_equal(redist_plan(&c.problem, REDIST_DIRECT, &m, &c.a, &s, &err), -ENOSPC);
	assert_non_null(strstr(err.msg, "320 B"));
	c.problem.mem_limit = 320;
	assert_ok_err(redist_plan(&c.problem, REDIST_DIRECT, &m, &c.a, &s, &err), &err);
	redist_case_free(&c);
}

TEST(a_tensor_too_large_for_a_price_is_an_error)
{
	struct redist_model m = redist_links(&plain);
	const uint32_t dim[] = { 2 };
	const uint64_t shape[] = { UINT64_C(1) << 62 };
	struct ckpt_err err = { 0 };
	struct redist_steps s;
	struct redist_case c;

	redist_case_make(&c, 1, dim, 1, shape, "S(0)", "R");
	c.problem.elem_bytes = 1;
	assert_int_equal(redist_cheapest(&c.problem, &m, &c.a, &s, NULL, &err), -EOVERFLOW);
	assert_non_null(strstr(err.msg, "2^62 bytes"));
	redist_case_free(&c);
}

/* One step in place of two, and no rank holds all of it in between. */
TEST(the_direct_exchange_wins_where_it_is_cheaper)
{
	struct redist_model m = redist_links(&plain);
	const uint32_t dim[] = { 2, 2 };
	const uint64_t shape[] = { 1 << 10, 1 << 10 };
	static char why[REDIST_EXPLAIN_BYTES];
	struct redist_steps s, all[3];
	struct ckpt_err err = { 0 };
	struct redist_case c;

	redist_case_make(&c, 2, dim, 2, shape, "S(0)[0]S(0)[1]", "S(0)[1]S(0)[0]");
	assert_ok_err(redist_cheapest(&c.problem, &m, &c.a, &s, all, &err), &err);
	assert_int_equal(s.planner, REDIST_DIRECT);
	assert_int_equal(s.n, 1);
	assert_true(s.us < all[REDIST_GRAPH].us);
	redist_explain(&c.problem, &m, all, why, sizeof why);
	assert_non_null(strstr(why, "graph: S(0)[0]S(0)[1]->"));
	assert_non_null(strstr(why, "times the cheapest"));
	assert_non_null(strstr(why, "; the cheapest; exchange takes"));
	assert_non_null(strstr(why, "on the link \"host\""));
	redist_case_free(&c);
	/* If prices are equal, the sequence wins, in whatever order the figures were added up. */
	redist_case_make(&c, 2, dim, 2, shape, "S(0)R", "S(1)R");
	assert_ok_err(redist_cheapest(&c.problem, &m, &c.a, &s, all, &err), &err);
	assert_int_equal(s.planner, REDIST_GRAPH);
	redist_explain(&c.problem, &m, all, why, sizeof why);
	assert_non_null(strstr(why, "the same as graph"));
	assert_non_null(strstr(why, "as cheap as graph, which comes first"));
	redist_case_free(&c);
	/* What an exchange cannot do is an error. */
	redist_case_make(&c, 2, dim, 2, shape, "S(0)R", "P(sum)R");
	assert_ok_err(redist_cheapest(&c.problem, &m, &c.a, &s, all, &err), &err);
	assert_int_equal(all[REDIST_DIRECT].n, REDIST_NO_ANSWER);
	redist_explain(&c.problem, &m, all, why, sizeof why);
	assert_non_null(strstr(why, "direct: no answer: an exchange begins no reduction"));
	redist_case_free(&c);
}

/* 2,048 ranks: an exchange of four million messages, and a search. */
TEST(meshes_of_thousands_of_ranks_are_priced)
{
	struct redist_model m = redist_links(links_preset(LINKS_DEFAULT));
	const uint32_t dim[] = { 256, 8 };
	const uint64_t shape[] = { 16384, 16384 };
	struct redist_steps s, all[3];
	struct ckpt_err err = { 0 };
	struct redist_case c;

	redist_case_make(&c, 2, dim, 2, shape, "S(0)[0]S(0)[1]", "RS(1)");
	assert_ok_err(redist_cheapest(&c.problem, &m, &c.a, &s, all, &err), &err);
	for (uint32_t i = 0; i < 3; i++)
		assert_true(all[i].n != REDIST_NO_ANSWER && isfinite(all[i].us));
	redist_case_free(&c);
}

/* --- the oracle --- */

struct oracle {
	const struct redist_problem *p;
	const struct links *l;
	const struct redist_step *s;
	uint32_t n, numel; /* places; elements */
	uint32_t coord[CASE_RANKS][CASE_MESH_DIMS];
	uint8_t before[CASE_RANKS][CASE_NUMEL], after[CASE_RANKS][CASE_NUMEL];
	uint32_t nbefore[CASE_RANKS], nafter[CASE_RANKS];
	uint32_t message[CASE_RANKS][CASE_RANKS]; /* elements from, to */
	double us, bytes, staging;
};

static uint32_t oracle_share(const struct redist_problem *p, const struct layout *l,
			     const uint32_t *coord, uint8_t *ret)
{
	static struct naive dim[CASE_DIMS];
	uint32_t n = 1, numel = 1;

	for (uint32_t d = 0; d < p->ndim; d++) {
		naive_range(&dim[d], (uint32_t)p->shape[d]);
		for (uint32_t i = 0; i < l->nplace; i++)
			if (l->place[i].how == CKPT_SHARD && l->place[i].tensor_dim == d)
				naive_cut(&dim[d], p->mesh->dim[l->place[i].mesh_dim],
					  coord[l->place[i].mesh_dim], l->place[i].split_factor);
		n *= dim[d].n;
		numel *= (uint32_t)p->shape[d];
	}
	memset(ret, 0, numel);
	for (uint32_t k = 0; k < n; k++) {
		uint32_t at = 0, rest = k, step = 1;

		for (uint32_t d = p->ndim; d-- > 0; step *= (uint32_t)p->shape[d]) {
			at += dim[d].v[rest % dim[d].n] * step;
			rest /= dim[d].n;
		}
		ret[at] = 1;
	}
	return n;
}

static const struct ckpt_placement *at_dim(const struct layout *l, uint32_t mesh_dim)
{
	static const struct ckpt_placement replicate;

	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].mesh_dim == mesh_dim)
			return &l->place[i];
	return &replicate;
}

/* May q send to r? Where the state before replicates, or a reduction stays, they share a
 * coordinate. */
static bool oracle_sends(const struct oracle *o, uint32_t q, uint32_t r, bool group)
{
	for (uint32_t d = 0; d < o->p->mesh->ndim; d++) {
		uint32_t how = at_dim(&o->s->before, d)->how;
		bool stays = how == CKPT_REPLICATE ||
			     (how == CKPT_PARTIAL && at_dim(&o->s->after, d)->how == CKPT_PARTIAL);

		if ((stays || (group && d != o->s->mesh_dim)) && o->coord[q][d] != o->coord[r][d])
			return false;
	}
	return true;
}

/* False: an element does not have exactly one sender for each operand. */
static bool oracle_messages(struct oracle *o, bool group)
{
	uint32_t operands = 1, most = 0;

	for (uint32_t d = 0; d < o->p->mesh->ndim; d++)
		if (at_dim(&o->s->before, d)->how == CKPT_PARTIAL &&
		    at_dim(&o->s->after, d)->how != CKPT_PARTIAL)
			operands *= o->p->mesh->dim[d];
	memset(o->message, 0, sizeof o->message);
	for (uint32_t r = 0; r < o->n; r++) {
		static uint32_t from[CASE_NUMEL];

		memset(from, 0, o->numel * sizeof *from);
		for (uint32_t q = 0; q < o->n; q++)
			for (uint32_t e = 0; oracle_sends(o, q, r, group) && e < o->numel; e++)
				if (o->before[q][e] && o->after[r][e]) {
					o->message[q][r]++;
					from[e]++;
				}
		for (uint32_t e = 0; e < o->numel; e++)
			if (from[e] != (o->after[r][e] ? operands : 0))
				return false;
	}
	for (uint32_t r = 0; r < o->n; r++) {
		double send = 0, receive = 0, bytes = 0;

		for (uint32_t q = 0; q < o->n; q++) {
			enum links_tier t =
				links_between(o->l, o->p->mesh->rank[q], o->p->mesh->rank[r]);
			double out = (double)o->message[r][q] * o->p->elem_bytes,
			       in = (double)o->message[q][r] * o->p->elem_bytes;

			if (q == r)
				continue;
			send += out > 0 ? links_us(o->l, t, out) : 0;
			receive += in > 0 ? links_us(o->l, t, in) : 0;
			bytes += out;
			most = MAX(most, o->message[q][r]);
		}
		o->us = MAX(o->us, send);
		o->us = MAX(o->us, receive);
		o->bytes = MAX(o->bytes, bytes);
	}
	if (operands > 1)
		o->staging = (double)most * o->p->elem_bytes;
	return true;
}

/* A ring over the members of a group that begins at place `first`. */
static void oracle_ring(struct oracle *o, uint32_t first, uint32_t stride, uint32_t g)
{
	uint32_t all = 0, least = UINT32_MAX, most = 0, times = 1;
	double latency = 0, rate = INFINITY, bytes;

	for (uint32_t i = 0; i < g; i++) {
		uint32_t place = first + i * stride, next = first + (i + 1) % g * stride, n;
		const struct links_cost *c = &o->l->tier[links_between(
			o->l, o->p->mesh->rank[place], o->p->mesh->rank[next])];

		n = o->s->op == REDIST_ALL_GATHER ? o->nbefore[place] : o->nafter[place];
		if (o->s->op == REDIST_ALL_REDUCE) {
			n = o->nbefore[place] / g + (i < o->nbefore[place] % g);
			times = 2;
		}
		all += n;
		least = MIN(least, n);
		most = MAX(most, n);
		latency = MAX(latency, c->latency_us);
		rate = MIN(rate, c->bytes_per_us);
	}
	if (!all)
		return;
	bytes = (double)times * (all - least) * o->p->elem_bytes;
	o->us = MAX(o->us, times * (g - 1) * latency + bytes / rate);
	o->bytes = MAX(o->bytes, bytes);
	if (o->s->op != REDIST_ALL_GATHER)
		o->staging = MAX(o->staging, (double)most * o->p->elem_bytes);
}

static void oracle_fill(struct oracle *o)
{
	const struct mesh *m = o->p->mesh;

	o->n = m->nrank;
	o->numel = 1;
	for (uint32_t d = 0; d < o->p->ndim; d++)
		o->numel *= (uint32_t)o->p->shape[d];
	for (uint32_t i = 0; i < o->n; i++) {
		place_coord(m, i, o->coord[i]);
		o->nbefore[i] = oracle_share(o->p, &o->s->before, o->coord[i], o->before[i]);
		o->nafter[i] = oracle_share(o->p, &o->s->after, o->coord[i], o->after[i]);
	}
	o->us = o->bytes = o->staging = 0;
}

static bool oracle_agrees(struct oracle *o, char *why)
{
	const struct redist_step *s = o->s;
	uint32_t stride = 1, g = o->p->mesh->ndim ? o->p->mesh->dim[s->mesh_dim] : 1, most = 0;
	uint64_t peak = 0;

	oracle_fill(o);
	for (uint32_t d = o->p->mesh->ndim; d-- > s->mesh_dim + 1;)
		stride *= o->p->mesh->dim[d];
	if (s->op == REDIST_EXCHANGE || s->op == REDIST_ALL_TO_ALL) {
		if (!oracle_messages(o, s->op == REDIST_ALL_TO_ALL))
			return BROKEN("%s: an element without a sender", redist_op_name(s->op));
	} else if (s->op != REDIST_LOCAL) {
		for (uint32_t i = 0; i < o->n; i++)
			if (!o->coord[i][s->mesh_dim])
				oracle_ring(o, i, stride, g);
	}
	for (uint32_t i = 0; i < o->n; i++) {
		peak = MAX(peak, (uint64_t)(o->nbefore[i] + o->nafter[i]) * o->p->elem_bytes);
		most = MAX(most, o->nafter[i]);
	}
	peak += (uint64_t)o->staging;
	o->us = MAX(o->us, links_us(o->l, LINKS_MEMORY, (double)most * o->p->elem_bytes));
	if (s->op != REDIST_EXCHANGE && g == 1) {
		o->us = o->bytes = 0;
		peak = (uint64_t)most * o->p->elem_bytes;
	}
	if (!o->numel) {
		o->us = o->bytes = 0;
		peak = 0;
	}
	if (fabs(o->us - s->us) > 1e-9 * o->us || o->bytes != s->bytes || peak != s->peak_bytes)
		return BROKEN("%s over %u: %.9g us, %.0f bytes, peak %" PRIu64
			      "; the oracle: %.9g, %.0f, %" PRIu64,
			      redist_op_name(s->op), s->mesh_dim, s->us, s->bytes, s->peak_bytes,
			      o->us, o->bytes, peak);
	return true;
}

/* --- random pairs --- */

/* Two states on the mesh of side 0. */
struct pair {
	struct mesh mesh;
	struct ckpt_placement place[2][CASE_MESH_DIMS];
	struct layout layout[2];
	struct redist_problem p;
};

static void pair_of(const struct layout_case *c, struct pair *ret)
{
	*ret = (struct pair){ .mesh = side_mesh(&c->side[0]) };
	/* If there would be many states, the last mesh dimensions are left out, except in one case
	 * of 32. */
	while (ret->mesh.ndim > (c->to % 32 ? 5 - MAX(c->ndim, 1u) : 4))
		ret->mesh.nrank /= c->side[0].dim[--ret->mesh.ndim];
	for (uint32_t k = 0; k < 2; k++) {
		struct layout *l = &ret->layout[k];

		l->place = ret->place[k];
		for (uint32_t i = 0; i < c->side[k].nplace; i++) {
			struct ckpt_placement p = c->side[k].place[i];

			if (p.mesh_dim >= ret->mesh.ndim || p.how == CKPT_ONLY)
				continue;
			p.flags = 0;
			if (p.how == CKPT_SHARD && p.split_factor > c->shape[p.tensor_dim])
				p.split_factor = 0;
			/* What can be reached. */
			if (k && p.how == CKPT_PARTIAL)
				p = *at_dim(&ret->layout[0], p.mesh_dim);
			if (k && p.how != c->side[k].place[i].how)
				continue;
			ret->place[k][l->nplace++] = p;
		}
	}
	ret->p = (struct redist_problem){ .mesh = &ret->mesh,
					  .ndim = c->ndim,
					  .elem_bytes = 1u << c->elem_bytes % 5,
					  .shape = c->shape,
					  .src = &ret->layout[0],
					  .dst = &ret->layout[1] };
}

/* Hosts of 1 to 4 ranks, behind switches of two. */
static struct links links_of(const struct layout_case *c)
{
	struct links l = plain;

	l.per_host = 1 + (uint32_t)(c->from % 4);
	l.per_switch = 2 * (uint32_t)(c->to % 2);
	return l;
}

/* Steps of one planner under another model than the one that it took. */
static bool priced_by(const struct redist_model *m, const struct redist_problem *p,
		      const struct redist_steps *s, double *ret_us)
{
	*ret_us = 0;
	for (uint32_t i = 0; i < s->n; i++) {
		struct redist_step step = s->step[i];

		if (m->price(m, p, &step, NULL))
			return false;
		*ret_us += step.us;
	}
	return true;
}

static bool winner_is_cheapest(const struct layout_case *c, char *why)
{
	struct links l = links_of(c);
	struct redist_model own = redist_links(&l), torch = redist_torch(l.per_host);
	cleanup_arena struct arena a = { 0 };
	struct redist_steps best, all[3], theirs;
	struct ckpt_err err = { 0 };
	struct pair x;
	double us;

	pair_of(c, &x);
	if (redist_cheapest(&x.p, &own, &a, &best, all, &err))
		return BROKEN("no answer: %.150s", err.msg);
	if (!isfinite(best.us) || best.us < 0)
		return BROKEN("the price is %g", best.us);
	for (uint32_t i = 0; i < 3; i++)
		if (all[i].n != REDIST_NO_ANSWER && all[i].us < best.us * (1 - 1e-12))
			return BROKEN("%s is cheaper: %g, not %g", redist_planner_name(i),
				      all[i].us, best.us);
	if (all[REDIST_GRAPH].n == REDIST_NO_ANSWER)
		return BROKEN("the search has no answer");
	if (redist_plan(&x.p, redist_torch_takes(&x.p), &torch, &a, &theirs, &err))
		return BROKEN("PyTorch has no answer: %.150s", err.msg);
	if (!priced_by(&own, &x.p, &theirs, &us) || us < best.us * (1 - 1e-12))
		return BROKEN("PyTorch's choice is cheaper: %g, not %g", us, best.us);
	return true;
}

/* The search under a model, with its bound and without it, finds the same steps, or nothing. */
static bool bound_agrees(const struct redist_problem *p, struct redist_model m,
			 struct redist_steps *ret, char *why)
{
	static char trace[2][REDIST_TRACE_BYTES];
	static struct arena a;
	struct redist_steps s[2];
	int rc[2];

	arena_free(&a);
	for (uint32_t k = 0; k < 2; k++) {
		m.bounded = !k;
		rc[k] = redist_plan(p, REDIST_GRAPH, &m, &a, &s[k], NULL);
	}
	*ret = s[0];
	if (rc[0] || rc[1])
		return rc[0] == rc[1] || BROKEN("with a bound %d, without %d", rc[0], rc[1]);
	for (uint32_t k = 0; k < 2; k++)
		redist_trace(p->mesh, &s[k], trace[k]);
	if (s[0].us != s[1].us || s[0].peak_bytes != s[1].peak_bytes || strcmp(trace[0], trace[1]))
		return BROKEN("%.15g us, %.90s; without a bound %.15g us, %.90s", s[0].us, trace[0],
			      s[1].us, trace[1]);
	return true;
}

static bool bounds_change_nothing(const struct layout_case *c, char *why)
{
	struct links l = links_of(c);
	struct redist_model own = redist_links(&l), torch = redist_torch(l.per_host);
	struct redist_steps s;
	struct pair x;

	pair_of(c, &x);
	if (!bound_agrees(&x.p, torch, &s, why) || !bound_agrees(&x.p, own, &s, why))
		return false;
	x.p.mem_limit = s.peak_bytes - (s.peak_bytes > 1);
	return bound_agrees(&x.p, own, &s, why);
}

static bool prices_are_the_oracles(const struct layout_case *c, char *why)
{
	static struct oracle o;
	struct links l = links_of(c);
	struct redist_model own = redist_links(&l);
	cleanup_arena struct arena a = { 0 };
	struct redist_steps best, all[3];
	struct ckpt_err err = { 0 };
	bool good = true;
	struct pair x;

	pair_of(c, &x);
	if (redist_cheapest(&x.p, &own, &a, &best, all, &err))
		return BROKEN("no answer: %.150s", err.msg);
	o.p = &x.p;
	o.l = &l;
	for (uint32_t k = 0; k < 3; k++)
		for (uint32_t i = 0; all[k].n != REDIST_NO_ANSWER && i < all[k].n && good; i++) {
			o.s = &all[k].step[i];
			good = oracle_agrees(&o, why);
		}
	return good;
}

TEST(no_plan_is_cheaper_than_the_one_that_wins)
{
	cases_hold(__func__, winner_is_cheapest, 2, FEWER(20000));
}

TEST(a_bound_changes_nothing_but_the_time)
{
	cases_hold(__func__, bounds_change_nothing, 2, FEWER(2000));
}

TEST(so_it_does_on_meshes_of_seven_dimensions)
{
	static const struct {
		const char *mesh, *src, *dst;
	} pair[] = {
		{ "a=2,b=2,c=2,d=2,e=3,f=2", "S(0)S(0)RRRS(1)", "S(1)S(1)RRRS(0)" },
		{ "a=2,b=3,c=2,d=2,e=2,f=2", "P(sum)RRS(0)RS(1)", "RS(0)RRRR" },
		{ "a=2,b=2,c=2,d=2,e=2,f=3,g=2", "S(0)RRRS(1)RR", "S(1)RRRS(0)RR" },
		{ "a=2,b=2,c=2,d=2,e=2,f=2,g=2", "S(0)S(1)RRRRR", "RRRRRS(0)S(1)" },
	};
	struct redist_model own = redist_links(links_preset(LINKS_DEFAULT)),
			    torch = redist_torch(8);
	const uint64_t shape[] = { 96, 1024 };
	char why[CASE_WHY];

	for (uint32_t i = 0; i < ARRAY_LEN(pair); i++) {
		cleanup_arena struct arena a = { 0 };
		struct redist_steps s;
		struct layout src, dst;
		struct mesh m;
		struct redist_problem p = { .mesh = &m,
					    .ndim = 2,
					    .elem_bytes = 2,
					    .shape = shape,
					    .src = &src,
					    .dst = &dst };

		assert_ok(mesh_parse(pair[i].mesh, &a, &m, NULL));
		assert_ok(redist_state_parse(pair[i].src, &m, 2, &a, &src, NULL));
		assert_ok(redist_state_parse(pair[i].dst, &m, 2, &a, &dst, NULL));
		if (!bound_agrees(&p, own, &s, why) || !bound_agrees(&p, torch, &s, why))
			fail_msg("%s on %s: %s", pair[i].src, pair[i].mesh, why);
		assert_true(s.n > 1);
	}
}

/* A price that counts as much as an exchange of thousands of ranks. */
static int price_dearly(const struct redist_model *m, const struct redist_problem *p,
			struct redist_step *step, struct ckpt_err *err)
{
	(void)p;
	(void)err;
	m->memo->counted += REDIST_COUNTED_MAX / 4;
	step->us = 1;
	return 0;
}

TEST(a_search_whose_prices_take_too_long_ends_with_a_reason)
{
	const struct redist_model dear = { .price = price_dearly };
	const uint64_t shape[] = { 8, 8 };
	static const char *const dst[] = { "RR", "S(1)S(0)" };

	for (uint32_t i = 0; i < ARRAY_LEN(dst); i++) {
		cleanup_arena struct arena a = { 0 };
		struct ckpt_err err = { 0 };
		struct redist_steps s;
		struct layout from, to;
		struct mesh m;
		struct redist_problem p = { .mesh = &m,
					    .ndim = 2,
					    .elem_bytes = 2,
					    .shape = shape,
					    .src = &from,
					    .dst = &to };

		assert_ok(mesh_parse("a=2,b=2", &a, &m, NULL));
		assert_ok(redist_state_parse(i ? "S(0)S(1)" : "RP(sum)", &m, 2, &a, &from, NULL));
		assert_ok(redist_state_parse(dst[i], &m, 2, &a, &to, NULL));
		assert_int_equal(redist_plan(&p, REDIST_GRAPH, &dear, &a, &s, &err),
				 i ? -E2BIG : 0);
		assert_true(!i || strstr(err.msg, "use fewer mesh dimensions"));
	}
}

TEST(every_price_is_that_of_an_oracle_that_counts_elements)
{
	cases_hold(__func__, prices_are_the_oracles, 2, FEWER(2000));
}
