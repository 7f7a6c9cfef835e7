/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_draw_steps.c - redistributions drawn: exact drawings of a few, and of random ones that every
 * box and every arrow is what an element-by-element look finds. The steps are those of the
 * planners.
 */
#include "ckpt/draw/steps_impl.h"
#include "ckpt/draw/svg.h"
#include "tests/lib/draw.h"
#include "tests/unit/test_redist_case.h"

struct rig {
	struct redist_case c;
	struct redist_steps steps;
	struct steps_draw *d;
};

static void rig_draw(struct rig *r)
{
	struct ckpt_err err = { 0 };

	assert_ok_err(steps_draw_make(&r->c.problem, &r->steps, &r->d, &err), &err);
}

/* PyTorch's planner, which needs no links. */
static void rig_make(struct rig *r, uint32_t mesh_ndim, const uint32_t *dim, uint32_t ndim,
		     const uint64_t *shape, const char *src, const char *dst)
{
	struct redist_model m = redist_torch(8);
	struct ckpt_err err = { 0 };

	redist_case_make(&r->c, mesh_ndim, dim, ndim, shape, src, dst);
	assert_ok_err(redist_plan(&r->c.problem, REDIST_GRAPH, &m, &r->c.a, &r->steps, &err), &err);
	rig_draw(r);
}

static void rig_free(struct rig *r)
{
	steps_draw_free(r->d);
	redist_case_free(&r->c);
}

static char *text_of(const struct steps_draw *d, const struct screen *s)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	assert_ok(steps_print(d, f, s));
	fclose(f);
	return text;
}

static char *svg_of(const struct steps_draw *d)
{
	static const char *const line[] = { "a line", NULL };
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	assert_ok(steps_svg(d, "a title", line, f));
	fclose(f);
	return text;
}

static const struct screen narrow = { .width = 60 };

TEST(each_state_has_a_box_for_each_rank_and_arrows_to_the_next)
{
	const uint32_t dim[] = { 2 };
	const uint64_t shape[] = { 5, 2 };
	cleanup_free char *text = NULL;
	struct rig r;

	rig_make(&r, 1, dim, 2, shape, "S(0)", "R");
	text = text_of(r.d, &narrow);
	assert_string_equal(text, "  in a box the rank's elements: # all there, + some, . none;\n"
				  "    down: dimension 0, across: dimension 1\n"
				  "  S(0): a rank holds 16 B to 24 B\n"
				  "  +--------+--------+\n"
				  "  |   r0   |   r1   |\n"
				  "  |########|........|\n"
				  "  |########|........|\n"
				  "  |########|........|\n"
				  "  |........|########|\n"
				  "  |........|########|\n"
				  "  | 0:3,:  | 3:5,:  |\n"
				  "  |  24 B  |  16 B  |\n"
				  "  +--------+--------+\n"
				  "  v all_gather over m0, 7.20 us: a rank sends at most 40 B\n"
				  "    r0 -> r1 24 B, r1 -> r0 16 B\n"
				  "  R: each rank holds 40 B\n"
				  "  +--------+--------+\n"
				  "  |   r0   |   r1   |\n"
				  "  |########|########|\n"
				  "  |########|########|\n"
				  "  |########|########|\n"
				  "  |########|########|\n"
				  "  |########|########|\n"
				  "  |  :,:   |  :,:   |\n"
				  "  |  40 B  |  40 B  |\n"
				  "  +--------+--------+\n");
	rig_free(&r);
}

TEST(colours_and_lines_only_come_in_addition)
{
	const struct screen colour = { .width = 60, .colour = true };
	const uint32_t dim[] = { 2, 3 };
	const uint64_t shape[] = { 7, 4 };
	cleanup_free char *plain = NULL;
	cleanup_free char *seen = NULL;
	struct rig r;
	char *to;

	rig_make(&r, 2, dim, 2, shape, "S(0)S(1)", "RS(1)");
	plain = text_of(r.d, &narrow);
	seen = text_of(r.d, &colour);
	assert_non_null(strstr(seen, "\033[30;48;5;"));
	assert_non_null(strstr(seen, "coordinate of m0, m1"));
	to = seen;
	for (const char *p = seen; *p; p++) {
		if (*p == '\033')
			p = strchr(p, 'm');
		else
			*to++ = *p;
	}
	*to = 0;
	/* Behind the legend, which names the colours. */
	assert_string_equal(strstr(seen, "S(0)S(1):"), strstr(plain, "S(0)S(1):"));
	rig_free(&r);
}

/* --- against an element-by-element look --- */

static bool holds(const struct indexset *set, const uint64_t *index)
{
	for (uint32_t k = 0; k < set->ndim; k++)
		if (indices_below(&set->dim[k], index[k] + 1) ==
		    indices_below(&set->dim[k], index[k]))
			return false;
	return set->numel > 0;
}

static bool next_index(uint32_t ndim, const uint64_t *shape, uint64_t *index)
{
	for (uint32_t k = ndim; k-- > 0;) {
		if (++index[k] < shape[k])
			return true;
		index[k] = 0;
	}
	return false;
}

/* Elements that one rank of a group gets from another, looked at one by one. */
static uint64_t naive_elements(const struct rig *r, const struct steps_state *s, enum redist_op op,
			       uint32_t from, uint32_t to)
{
	const struct redist_problem *p = &r->c.problem;
	uint64_t index[CKPT_DIMS_MAX] = { 0 }, n = 0, numel;

	assert_ok(shape_numel(p->ndim, p->shape, &numel));
	if (!numel)
		return 0;
	do {
		bool sends = holds(&s[0].set[from], index) && holds(&s[1].set[to], index);

		n += sends && (op == REDIST_REDUCE_SCATTER || !holds(&s[0].set[to], index));
	} while (next_index(p->ndim, p->shape, index));
	return n;
}

static uint64_t arrow_bytes(const struct steps_move *m, uint32_t from, uint32_t to)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < m->narrow; i++)
		if (m->arrow[i].from == from && m->arrow[i].to == to)
			bytes += m->arrow[i].bytes;
	return bytes;
}

static bool same_group(const struct mesh *m, uint32_t mesh_dim, uint32_t a, uint32_t b)
{
	uint32_t x[CKPT_DIMS_MAX], y[CKPT_DIMS_MAX];

	mesh_place_coord(m, a, x);
	mesh_place_coord(m, b, y);
	for (uint32_t k = 0; k < m->ndim; k++)
		if (k != mesh_dim && x[k] != y[k])
			return false;
	return a != b;
}

/* All that a reduction sends: each rank all but its own part, twice. */
static void check_reduced(const struct rig *r, const struct steps_move *m,
			  const struct steps_state *s)
{
	uint64_t sum = 0, want = 0;

	for (uint32_t i = 0; i < m->narrow; i++)
		sum += m->arrow[i].bytes;
	for (uint32_t i = 0; i < r->c.mesh.nrank; i++)
		want += s->set[i].numel * 4;
	assert_int_equal(sum * m->size, 2 * want * (m->size - 1));
}

static void check_arrows(const struct rig *r, uint32_t step)
{
	const struct steps_move *m = &r->d->move[step];
	const struct steps_state *s = &r->d->state[step];
	uint32_t n = r->c.mesh.nrank;

	if (m->step->op == REDIST_ALL_REDUCE) {
		check_reduced(r, m, s);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < n; k++) {
			uint64_t want = 0;

			if (same_group(&r->c.mesh, m->step->mesh_dim, i, k) &&
			    m->step->op != REDIST_LOCAL)
				want = 4 * naive_elements(r, s, m->step->op, i, k);
			assert_int_equal(arrow_bytes(m, i, k), want);
		}
}

/* Every element of the drawn plane, at index 0 of the other dimensions. */
static void check_boxes(const struct rig *r, const struct steps_state *s)
{
	const struct redist_problem *p = &r->c.problem;
	uint64_t down = r->d->down < 0 ? 1 : p->shape[r->d->down];
	uint64_t across = r->d->across < 0 ? 1 : p->shape[r->d->across];
	uint32_t coord[CKPT_DIMS_MAX];
	cleanup_arena struct arena a = { 0 };

	for (uint32_t i = 0; i < r->c.mesh.nrank; i++) {
		struct indexset set;

		mesh_place_coord(&r->c.mesh, i, coord);
		assert_ok(layout_share(&r->c.mesh, s->layout, p->ndim, p->shape, coord, &a, &set));
		assert_true(indexset_equal(&set, &s->set[i]));
		for (uint64_t y = 0; y < down; y++)
			for (uint64_t x = 0; x < across; x++) {
				const struct steps_area one = { y, y + 1, x, x + 1 };
				uint64_t index[CKPT_DIMS_MAX] = { 0 };
				bool there = set.numel > 0;

				for (uint32_t k = 0; k < p->ndim && there; k++)
					index[k] = indices_lo(&set.dim[k]);
				if (r->d->down >= 0)
					index[r->d->down] = y;
				if (r->d->across >= 0)
					index[r->d->across] = x;
				there = there && holds(&set, index);
				assert_true(steps_share(r->d, &s->set[i], &one) == there);
			}
	}
}

static void check_drawings(const struct rig *r)
{
	struct screen s = { .width = 40 + r->c.mesh.nrank * 7 % 90, .unicode = true };
	cleanup_free char *text = text_of(r->d, &s);
	cleanup_free char *svg = svg_of(r->d);
	uint32_t columns;
	char *line;

	assert_null(strstr(svg, "nan"));
	assert_null(strstr(svg, "inf"));
	assert_int_equal(strncmp(svg, SVG_MARK, strlen(SVG_MARK)), 0);
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		columns = screen_columns(line);
		if (columns > s.width)
			fail_msg("%u columns of %u: %s", columns, s.width, line);
	}
}

static void state_random(uint64_t *rng, uint32_t mesh_ndim, uint32_t ndim, bool partial, char *ret)
{
	*ret = 0;
	for (uint32_t i = 0; i < mesh_ndim; i++) {
		uint64_t what = draw_below(rng, 5);

		if (what < 2 && ndim)
			sprintf(ret + strlen(ret), "S(%u)", (uint32_t)draw_below(rng, ndim));
		else if (what == 2 && ndim)
			sprintf(ret + strlen(ret), "_S(%u, 2)", (uint32_t)draw_below(rng, ndim));
		else if (what == 3 && partial)
			strcat(ret, "P(sum)");
		else
			strcat(ret, "R");
	}
}

TEST(boxes_and_arrows_of_random_redistributions_are_true)
{
	uint64_t rng = draw_seed("steps");
	uint32_t moved = 0;

	for (uint64_t n = unit_scaled(600); n > 0; n--) {
		uint32_t dim[4], mesh_ndim = 1 + (uint32_t)draw_below(&rng, 4);
		uint32_t ndim = (uint32_t)draw_below(&rng, 4);
		uint64_t shape[4];
		char src[128], dst[128];
		struct redist_model model = redist_torch(2);
		enum redist_planner planner = draw_below(&rng, 2) ? REDIST_GRAPH : REDIST_GREEDY;
		struct ckpt_err err = { 0 };
		struct rig r = { 0 };
		int rc;

		for (uint32_t i = 0; i < mesh_ndim; i++)
			dim[i] = 1 + (uint32_t)draw_below(&rng, mesh_ndim > 2 ? 2 : 5);
		for (uint32_t i = 0; i < ndim; i++)
			shape[i] = draw_below(&rng, 30) ? 2 + draw_below(&rng, 6) : 0;
		state_random(&rng, mesh_ndim, ndim, true, src);
		state_random(&rng, mesh_ndim, ndim, false, dst);
		redist_case_make(&r.c, mesh_ndim, dim, ndim, shape, src, dst);
		rc = redist_plan(&r.c.problem, planner, &model, &r.c.a, &r.steps, &err);
		if (!rc) {
			rig_draw(&r);
			for (uint32_t i = 0; i < r.d->nstate; i++) {
				check_boxes(&r, &r.d->state[i]);
				if (i + 1 < r.d->nstate)
					check_arrows(&r, i);
			}
			check_drawings(&r);
			moved += r.steps.n > 0;
		}
		rig_free(&r);
	}
	assert_true(moved > unit_scaled(600) / 4);
}

/* --- exchanges --- */

/* From src to dst in one step. */
static void rig_exchange(struct rig *r, uint32_t mesh_ndim, const uint32_t *dim, uint32_t ndim,
			 const uint64_t *shape, const char *src, const char *dst)
{
	redist_case_make(&r->c, mesh_ndim, dim, ndim, shape, src, dst);
	r->steps = (struct redist_steps){ .src = r->c.src, .planner = REDIST_DIRECT };
	r->steps.step = arena_array(&r->c.a, 1, sizeof *r->steps.step);
	r->steps.step[r->steps.n++] = (struct redist_step){ .op = REDIST_EXCHANGE,
							    .before = r->c.src,
							    .after = r->c.dst };
	rig_draw(r);
}

TEST(in_an_exchange_each_element_comes_once_and_from_one_replica)
{
	static const struct {
		const char *src, *dst;
		uint32_t operands; /* of each element that a rank gets */
	} of[] = { { "S(0)R", "RS(1)", 1 },
		   { "RS(0)", "S(0)S(0)", 1 },
		   { "S(0)[1]S(0)[0]", "S(0)S(0)", 1 },
		   { "S(1)P(sum)", "RP(sum)", 1 },
		   { "P(sum)S(0)", "S(1)R", 2 } };
	const uint32_t dim[] = { 2, 3 };
	const uint64_t shape[] = { 7, 5 };

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		const struct steps_move *m;
		struct rig r = { 0 };

		rig_exchange(&r, 2, dim, 2, shape, of[i].src, of[i].dst);
		m = &r.d->move[0];
		for (uint32_t to = 0; to < 6; to++) {
			const struct indexset *was = &r.d->state[0].set[to],
					      *is = &r.d->state[1].set[to];
			uint64_t kept = 1, sum = 0;

			for (uint32_t k = 0; k < 2; k++)
				kept *= indices_common(&was->dim[k], &is->dim[k]).n;
			for (uint32_t from = 0; from < 6; from++)
				sum += arrow_bytes(m, from, to);
			assert_int_equal(sum, 4 * (is->numel * of[i].operands - kept));
		}
		rig_free(&r);
	}
}

/* --- limits --- */

TEST(sixty_four_ranks_are_drawn_in_groups_of_equal_ones)
{
	const uint32_t dim[] = { 8, 8 };
	const uint64_t shape[] = { 64, 64 };
	cleanup_free char *text = NULL;
	cleanup_free char *svg = NULL;
	struct rig r;

	rig_make(&r, 2, dim, 2, shape, "S(0)S(1)", "RS(1)");
	text = text_of(r.d, &narrow);
	svg = svg_of(r.d);
	assert_non_null(strstr(text, "r63"));
	assert_non_null(strstr(text, "r0 <-> r8 256 B, and 446 more arrows of as many bytes"));
	assert_non_null(strstr(svg, "one of 8 groups of ranks"));
	assert_non_null(strstr(svg, ">r7,r15..r63<"));
	/* RS(1): a box stands for ranks of 8 colours, so it has none of them. */
	assert_non_null(strstr(svg, "m0, light grey several"));
	assert_non_null(strstr(svg, "<rect class=\"k9\""));
	rig_free(&r);
}

TEST(one_row_of_thousands_can_be_seen_in_the_picture)
{
	const uint32_t dim[] = { 64 };
	const uint64_t shape[] = { 3000, 4 };
	cleanup_free char *svg = NULL;
	uint32_t parts = 0;
	struct rig r;

	rig_make(&r, 1, dim, 2, shape, "_S(0, 4)", "R");
	svg = svg_of(r.d);
	for (const char *at = svg; (at = strstr(at, "<rect class=\"k")); at++) {
		double x, y, width, height;

		if (sscanf(at,
			   "<rect class=\"k%*u\" x=\"%lf\" y=\"%lf\" width=\"%lf\" "
			   "height=\"%lf\"",
			   &x, &y, &width, &height) < 4)
			continue;
		assert_true(width >= 2 && height >= 2);
		parts++;
	}
	assert_true(parts > 64);
	rig_free(&r);
}

TEST(what_is_too_much_to_draw_is_refused_or_said)
{
	const uint32_t one[] = { 4096 }, strided[] = { 2, 2 };
	const uint64_t shape[] = { 8192 }, large[] = { UINT64_C(1) << 32 };
	cleanup_free char *text = NULL;
	struct steps_draw *d;
	struct ckpt_err err;
	struct mesh more;
	struct rig r;

	rig_make(&r, 1, one, 1, shape, "S(0)", "R");
	assert_int_equal(r.d->move[0].members, 64);
	text = text_of(r.d, &narrow);
	assert_non_null(strstr(text, "64 of the 4096 ranks"));
	more = r.c.mesh;
	more.nrank = STEPS_RANKS_MAX + 1;
	r.c.problem.mesh = &more;
	assert_int_equal(steps_draw_make(&r.c.problem, &r.steps, &d, &err), -E2BIG);
	assert_non_null(strstr(err.msg, "4097 ranks are too many to draw, the maximum is 4096"));
	rig_free(&r);
	free(TAKE(text));

	rig_make(&r, 2, strided, 1, large, "R_S(0, 268435456)", "RR");
	text = text_of(r.d, &narrow);
	assert_non_null(strstr(text, "too many runs to say who sends what"));
	rig_free(&r);
}
