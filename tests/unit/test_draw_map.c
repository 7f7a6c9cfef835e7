/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_draw_map.c - maps: exact drawings of layouts, and that every cell of random ones says what
 * an element-by-element look says. The input is made of meshes and placements; there is no
 * checkpoint here.
 */
#include "ckpt/draw/map_impl.h"
#include "ckpt/draw/svg.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <sys/stat.h>

#define SEED 20261121
#define DIMS 3

/* --- maps of declared layouts --- */

struct cut {
	uint16_t mesh_dim, dim;
	uint32_t split;
};

struct rig {
	struct arena arena;
	struct mesh mesh;
	struct map_in *in;
	uint32_t nin;
	uint32_t ndim;
	uint64_t shape[DIMS];
	struct map *m;
};

/* shape ends with UINT64_MAX, cuts with a mesh_dim of 99. */
static void rig_make(struct rig *r, const char *mesh, const uint64_t *shape, const struct cut *cut)
{
	struct ckpt_placement place[8] = { 0 };
	struct layout l = { .place = place };
	struct indexset *set;
	struct ckpt_err err;

	*r = (struct rig){ 0 };
	assert_int_equal(mesh_parse(mesh, &r->arena, &r->mesh, &err), 0);
	for (; shape[r->ndim] != UINT64_MAX; r->ndim++)
		r->shape[r->ndim] = shape[r->ndim];
	for (; cut[l.nplace].mesh_dim != 99; l.nplace++)
		place[l.nplace] = (struct ckpt_placement){ .how = CKPT_SHARD,
							   .mesh_dim = cut[l.nplace].mesh_dim,
							   .tensor_dim = cut[l.nplace].dim,
							   .split_factor = cut[l.nplace].split };
	assert_int_equal(layout_check(&r->mesh, &l, r->ndim, &err), 0);
	r->nin = r->mesh.nrank;
	r->in = arena_array(&r->arena, r->nin, sizeof *r->in);
	set = arena_array(&r->arena, r->nin, sizeof *set);
	for (uint32_t i = 0; i < r->nin; i++) {
		uint32_t coord[8];

		assert_true(mesh_coord(&r->mesh, r->mesh.rank[i], coord));
		assert_int_equal(
			layout_share(&r->mesh, &l, r->ndim, r->shape, coord, &r->arena, &set[i]),
			0);
		r->in[i] = (struct map_in){ r->mesh.rank[i], &set[i] };
	}
	assert_int_equal(map_make(r->ndim, r->shape, r->in, r->nin, &r->m), 0);
}

static void rig_free(struct rig *r)
{
	map_free(r->m);
	arena_free(&r->arena);
}

static char *print(const struct map *m, const struct screen *s)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	assert_int_equal(map_print(m, f, s), 0);
	fclose(f);
	return text;
}

static const struct screen narrow = { .width = 60 };
static const struct screen boxes = { .width = 60, .unicode = true };

static void expect_on(const struct screen *s, const struct rig *r, const char *want)
{
	cleanup_free char *text = print(r->m, s);

	assert_string_equal(text, want);
}

#define SHAPE(...) ((const uint64_t[]){ __VA_ARGS__, UINT64_MAX })
#define SCALAR ((const uint64_t[]){ UINT64_MAX })
#define CUTS(...) ((const struct cut[]){ __VA_ARGS__, { 99, 0, 0 } })
#define WHOLE ((const struct cut[]){ { 99, 0, 0 } })

static void expect(const char *mesh, const uint64_t *shape, const struct cut *cut,
		   const char *want_sentence, const char *want)
{
	struct rig r;
	char line[300];

	rig_make(&r, mesh, shape, cut);
	assert_string_equal(map_sentence(r.m, 32, line, sizeof line), want_sentence);
	expect_on(&narrow, &r, want);
	rig_free(&r);
}

TEST(a_matrix_cut_in_both_dimensions_is_drawn_as_its_blocks)
{
	expect("fsdp=2,tp=2", SHAPE(1024, 512), CUTS({ 0, 0, 0 }, { 1, 1, 0 }),
	       "every element is held once, in 4 blocks of 512 KiB",
	       "      0            256        512\n"
	       "    0 +------------+------------+\n"
	       "      |            |            |\n"
	       "      |     r0     |     r1     |\n"
	       "      |            |            |\n"
	       "  512 +------------+------------+\n"
	       "      |            |            |\n"
	       "      |     r2     |     r3     |\n"
	       "      |            |            |\n"
	       " 1024 +------------+------------+\n");
}

TEST(unicode_boxes_are_the_same_drawing)
{
	struct rig r;

	rig_make(&r, "fsdp=2,tp=2", SHAPE(8, 4), CUTS({ 0, 0, 0 }, { 1, 1, 0 }));
	expect_on(&boxes, &r,
		  "   0            2            4\n"
		  " 0 ┌────────────┬────────────┐\n"
		  "   │            │            │\n"
		  "   │     r0     │     r1     │\n"
		  "   │            │            │\n"
		  " 4 ├────────────┼────────────┤\n"
		  "   │            │            │\n"
		  "   │     r2     │     r3     │\n"
		  "   │            │            │\n"
		  " 8 └────────────┴────────────┘\n");
	rig_free(&r);
}

TEST(colours_only_come_in_addition)
{
	struct screen s = narrow;
	struct rig r;
	cleanup_free char *plain = NULL;
	cleanup_free char *colour = NULL;
	char *to;

	rig_make(&r, "fsdp=2,tp=2", SHAPE(8, 4), CUTS({ 0, 0, 0 }, { 1, 1, 0 }));
	plain = print(r.m, &s);
	s.colour = true;
	colour = print(r.m, &s);
	assert_non_null(strstr(colour, "\033[30;48;5;"));
	to = colour;
	for (const char *p = colour; *p; p++) {
		if (*p == '\033')
			p = strchr(p, 'm');
		else
			*to++ = *p;
	}
	*to = 0;
	assert_string_equal(colour, plain);
	rig_free(&r);
}

TEST(uneven_and_empty_shares_are_seen)
{
	expect("fsdp=4", SHAPE(5), CUTS({ 0, 0, 0 }),
	       "every element is held once, in 3 blocks of 4 B to 8 B",
	       " 0                     2                     4          5\n"
	       " +---------------------+---------------------+----------+\n"
	       " |         r0          |         r1          |    r2    |\n"
	       " +---------------------+---------------------+----------+\n"
	       "  r3: empty\n");
	expect("fsdp=8", SHAPE(3), CUTS({ 0, 0, 0 }),
	       "every element is held once, in 3 blocks of 4 B",
	       " 0                  1                  2                  3\n"
	       " +------------------+------------------+------------------+\n"
	       " |        r0        |        r1        |        r2        |\n"
	       " +------------------+------------------+------------------+\n"
	       "  r3-r7: empty\n");
}

TEST(replicas_share_a_block)
{
	expect("dp=2,fsdp=2", SHAPE(100), CUTS({ 1, 0, 0 }),
	       "every element is held by 2 ranks, in 2 blocks of 200 B",
	       " 0                           50                        100\n"
	       " +---------------------------+---------------------------+\n"
	       " |           r0,r2           |           r1,r3           |\n"
	       " +---------------------------+---------------------------+\n");
	expect("dp=7,fsdp=2", SHAPE(100), CUTS({ 1, 0, 0 }),
	       "every element is held by 7 ranks, in 2 blocks of 200 B",
	       " 0                           50                        100\n"
	       " +---------------------------+---------------------------+\n"
	       " |        r0,r2..r12         |        r1,r3..r13         |\n"
	       " +---------------------------+---------------------------+\n");
}

TEST(long_lists_of_ranks_are_abbreviated_and_told_below)
{
	/* r0,r1 and r4,r5 and so on: no progression */
	expect("a=4,b=2,c=2", SHAPE(4), CUTS({ 1, 0, 0 }),
	       "every element is held by 8 ranks, in 2 blocks of 8 B",
	       " 0                           2                           4\n"
	       " +---------------------------+---------------------------+\n"
	       " |           r0+7            |           r2+7            |\n"
	       " +---------------------------+---------------------------+\n"
	       "  r0+7: r0,r1,r4,r5,r8,r9,r12,r13 (8 ranks)\n"
	       "  r2+7: r2,r3,r6,r7,r10,r11,r14,r15 (8 ranks)\n");
	(void)state;
}

TEST(a_tensor_that_is_not_cut_is_one_box)
{
	expect("dp=2", SCALAR, WHOLE, "every element is held by 2 ranks, in 1 block of 4 B",
	       " +--------------------------------------------------------+\n"
	       " |                         r0,r1                          |\n"
	       " +--------------------------------------------------------+\n");
	expect("dp=1", SHAPE(2, 3), WHOLE, "every element is held once, in 1 block of 24 B",
	       "   0            3\n"
	       " 0 +------------+\n"
	       "   |            |\n"
	       "   |     r0     |\n"
	       "   |            |\n"
	       " 2 +------------+\n");
	expect("dp=2", SHAPE(0, 8), CUTS({ 0, 0, 0 }), "it has no elements", "");
}

TEST(strided_shares_are_drawn_by_their_true_runs)
{
	expect("fsdp=2", SHAPE(8), CUTS({ 0, 0, 2 }),
	       "every element is held once, in 2 blocks of 16 B",
	       " 0             2             4             6             8\n"
	       " +-------------+-------------+-------------+-------------+\n"
	       " |     r0      |     r1      |     r0      |     r1      |\n"
	       " +-------------+-------------+-------------+-------------+\n");
}

TEST(runs_that_do_not_fit_become_a_pattern)
{
	expect("fsdp=2", SHAPE(4000), CUTS({ 0, 0, 1000 }),
	       "every element is held once, in 2 blocks of 7.81 KiB",
	       " 0  2  4  6  8  10 12 14 16 18 20 22 24 26 28 30     4000\n"
	       " +--+--+--+--+--+--+--+--+--+--+--+--+--+--+--+---+--+--+\n"
	       " |r0|r1|r0|r1|r0|r1|r0|r1|r0|r1|r0|r1|r0|r1|r0|.. |r0|r1|\n"
	       " +--+--+--+--+--+--+--+--+--+--+--+--+--+--+--+---+--+--+\n"
	       "  across 30:3996: 1,983 of 2,000 stretches are not drawn\n"
	       "  r0: 2 of every 4 from 0 on, 1,000 times\n"
	       "  r1: 2 of every 4 from 2 on, 1,000 times\n");
}

TEST(millions_of_runs_are_not_looked_at_one_by_one)
{
	struct rig r;
	cleanup_free char *text = NULL;

	alarm(60); /* milliseconds; one by one, hours */
	rig_make(&r, "fsdp=4", SHAPE(UINT64_C(40000000000)), CUTS({ 0, 0, 1000000000 }));
	text = print(r.m, &narrow);
	assert_non_null(strstr(text, "more cuts than can be drawn"));
	assert_non_null(strstr(text, "r3: 10 of every 40 from 30 on, 1,000,000,000 times"));
	alarm(0);
	assert_false(map_facts(r.m)->copies_known);
	rig_free(&r);
}

TEST(rows_beyond_ten_stand_close_and_beyond_twenty_are_counted)
{
	expect("fsdp=64,tp=2", SHAPE(6400, 16), CUTS({ 0, 0, 0 }, { 1, 1, 0 }),
	       "every element is held once, in 128 blocks of 3.12 KiB",
	       "           0              8             16\n"
	       "           +--------------+--------------+\n"
	       "    0:100  |      r0      |      r1      |\n"
	       "  100:200  |      r2      |      r3      |\n"
	       "  200:300  |      r4      |      r5      |\n"
	       "  300:400  |      r6      |      r7      |\n"
	       "  400:500  |      r8      |      r9      |\n"
	       "  500:600  |     r10      |     r11      |\n"
	       "  600:700  |     r12      |     r13      |\n"
	       "  700:800  |     r14      |     r15      |\n"
	       "  800:900  |     r16      |     r17      |\n"
	       "  900:1000 |     r18      |     r19      |\n"
	       " 1000:1100 |     r20      |     r21      |\n"
	       " 1100:1200 |     r22      |     r23      |\n"
	       " 1200:1300 |     r24      |     r25      |\n"
	       " 1300:1400 |     r26      |     r27      |\n"
	       " 1400:1500 |     r28      |     r29      |\n"
	       " 1500:1600 |     r30      |     r31      |\n"
	       " 1600:1700 |     r32      |     r33      |\n"
	       " 1700:6200 |      ..      |      ..      |\n"
	       " 6200:6300 |     r124     |     r125     |\n"
	       " 6300:6400 |     r126     |     r127     |\n"
	       "           +--------------+--------------+\n"
	       "  down 1700:6200: 45 of 64 stretches are not drawn\n");
}

TEST(of_many_dimensions_those_that_are_cut_are_drawn)
{
	struct rig r;
	char line[200];

	rig_make(&r, "fsdp=2,tp=2", SHAPE(8, 5, 4), CUTS({ 0, 0, 0 }, { 1, 2, 0 }));
	assert_string_equal(map_axes(r.m, line, sizeof line),
			    "down: dimension 0, across: dimension 2; whole: 1");
	expect_on(&narrow, &r,
		  "   0            2            4\n"
		  " 0 +------------+------------+\n"
		  "   |            |            |\n"
		  "   |     r0     |     r1     |\n"
		  "   |            |            |\n"
		  " 4 +------------+------------+\n"
		  "   |            |            |\n"
		  "   |     r2     |     r3     |\n"
		  "   |            |            |\n"
		  " 8 +------------+------------+\n");
	rig_free(&r);
	rig_make(&r, "a=2,b=2,c=2", SHAPE(8, 5, 4), CUTS({ 0, 0, 0 }, { 1, 1, 0 }, { 2, 2, 0 }));
	assert_string_equal(map_axes(r.m, line, sizeof line),
			    "down: dimension 0, across: dimension 1; at index 0 of: 2");
	assert_string_equal(map_sentence(r.m, 8, line, sizeof line),
			    "on average every element is held once, in 8 blocks of 16 B to 24 B");
	rig_free(&r);
}

/* --- sets that no layout makes --- */

static void box(struct arena *a, uint64_t r0, uint64_t r1, uint64_t c0, uint64_t c1,
		struct indexset *ret)
{
	assert_int_equal(
		indexset_box(2, (uint64_t[]){ r0, c0 }, (uint64_t[]){ r1 - r0, c1 - c0 }, a, ret),
		0);
}

TEST(borders_are_where_holders_change_and_gaps_and_overlaps_are_told)
{
	static const uint64_t shape[] = { 4, 9 };
	struct arena a = { 0 };
	struct indexset set[4];
	struct map_in in[4];
	struct map *m;
	char line[200];
	cleanup_free char *text = NULL;

	box(&a, 0, 2, 0, 9, &set[0]);
	box(&a, 2, 4, 0, 3, &set[1]);
	box(&a, 2, 4, 3, 6, &set[2]);
	box(&a, 0, 2, 6, 9, &set[3]);
	for (uint32_t i = 0; i < 4; i++)
		in[3 - i] = (struct map_in){ i, &set[i] };
	assert_int_equal(map_make(2, shape, in, 4, &m), 0);
	text = print(m, &narrow);
	assert_string_equal(text, "   0               3               6               9\n"
				  " 0 +-------------------------------+---------------+\n"
				  "   |                               |               |\n"
				  "   |              r0               |     r0,r3     |\n"
				  "   |                               |               |\n"
				  " 2 +---------------+---------------+---------------+\n"
				  "   |               |               |               |\n"
				  "   |      r1       |      r2       |       -       |\n"
				  "   |               |               |               |\n"
				  " 4 +---------------+---------------+---------------+\n"
				  "  -: held by no rank\n");
	assert_string_equal(
		map_sentence(m, 8, line, sizeof line),
		"some elements are held by no rank, others by up to 2 ranks, in 4 blocks of 6 B "
		"to 18 B");
	map_free(m);
	arena_free(&a);
}

TEST(a_share_beside_others_is_one_box_with_one_label)
{
	static const uint64_t shape[] = { 4, 6 };
	struct arena a = { 0 };
	struct indexset set[3];
	struct map_in in[3];
	struct map *m;
	cleanup_free char *text = NULL;

	box(&a, 0, 4, 0, 3, &set[0]);
	box(&a, 0, 2, 3, 6, &set[1]);
	box(&a, 2, 4, 3, 6, &set[2]);
	for (uint32_t i = 0; i < 3; i++)
		in[i] = (struct map_in){ i, &set[i] };
	assert_int_equal(map_make(2, shape, in, 3, &m), 0);
	text = print(m, &boxes);
	assert_string_equal(text, "   0            3            6\n"
				  " 0 ┌────────────┬────────────┐\n"
				  "   │            │            │\n"
				  "   │     r0     │     r1     │\n"
				  "   │            │            │\n"
				  " 2 │            ├────────────┤\n"
				  "   │            │            │\n"
				  "   │            │     r2     │\n"
				  "   │            │            │\n"
				  " 4 └────────────┴────────────┘\n");
	map_free(m);
	arena_free(&a);
}

/* --- every cell is true --- */

static uint64_t rng;
static uint64_t draw(uint64_t below)
{
	rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (rng >> 33) % below;
}

static bool has(const struct indices *x, uint64_t at)
{
	for (uint32_t i = 0; i < x->n; i++)
		for (uint64_t k = 0; k < x->run[i].count; k++)
			if (at >= x->run[i].start + k * x->run[i].stride &&
			    at < x->run[i].start + k * x->run[i].stride + x->run[i].len)
				return true;
	return false;
}

static uint32_t span_of(const struct map_span *s, uint32_t n, uint64_t at)
{
	for (uint32_t i = 0; i < n; i++)
		if (at >= s[i].start && at < s[i].stop)
			return i;
	fail_msg("index %llu is in no span", (unsigned long long)at);
	return 0;
}

static void check_cells(const struct rig *r)
{
	struct map_view v;
	uint64_t least = UINT64_MAX, most = 0;

	assert_int_equal(map_view_make(r->m, 4096, 4096, MAP_GAP, &v), 0);
	for (uint64_t i = 0; i < r->shape[0]; i++) {
		for (uint64_t j = 0; j < r->shape[1]; j++) {
			uint32_t n, k = 0;
			const uint32_t *rank;
			uint32_t cell =
				span_of(v.row, v.nrow, i) * v.ncol + span_of(v.col, v.ncol, j);

			assert_int_equal(map_cell_ranks(r->m, &v, cell, &n, &rank), 0);
			for (uint32_t q = 0; q < r->nin; q++) {
				const struct indexset *s = r->in[q].set;

				if (!s->numel || !has(&s->dim[0], i) || !has(&s->dim[1], j))
					continue;
				if (k >= n || rank[k] != r->in[q].rank)
					fail_msg("(%d, %d): rank %u is missing", (int)i, (int)j,
						 r->in[q].rank);
				k++;
			}
			assert_int_equal(k, n);
			least = MIN(least, (uint64_t)n);
			most = MAX(most, (uint64_t)n);
		}
	}
	assert_true(map_facts(r->m)->copies_known);
	assert_int_equal(map_facts(r->m)->copies_min, least);
	assert_int_equal(map_facts(r->m)->copies_max, most);
	map_view_free(&v);
}

static void check_picture(const struct map *m)
{
	static const char *const line[] = { "one", "two", NULL };
	char *text = NULL;
	size_t len, rects = 0;
	FILE *f = open_memstream(&text, &len);

	assert_int_equal(map_svg(m, "a <b> & \"c\"", line, f), 0);
	fclose(f);
	assert_null(strstr(text, "<b>"));
	assert_non_null(strstr(text, "a &lt;b&gt; &amp; &quot;c&quot;"));
	assert_string_equal(text + len - 7, "</svg>\n");
	for (const char *p = text; (p = strstr(p, "<rect")); p++)
		rects++;
	assert_in_range(rects, 1, 4300);
	assert_null(strstr(text, "nan"));
	assert_null(strstr(text, "width=\"-"));
	free(text);
}

static void check_width(const struct map *m)
{
	struct screen s = { .width = 40 + (uint32_t)draw(60), .unicode = draw(2) };
	cleanup_free char *text = print(m, &s);
	uint32_t lines = 0;

	for (char *p = text, *end; *p; p = end + 1) {
		end = strchr(p, '\n');
		assert_non_null(end);
		*end = 0;
		if (screen_columns(p) > s.width)
			fail_msg("%u columns: %s", s.width, p);
		lines++;
	}
	assert_in_range(lines, 1, MAP_LINES + 40);
}

TEST(every_cell_of_random_layouts_is_true_and_every_drawing_fits)
{
	static const char *const meshes[] = { "a=4,b=2", "a=3,b=5", "a=2,b=2,c=3", "a=7",
					      "a=16,b=2" };

	rng = SEED;
	printf("seed %d\n", SEED);
	for (int i = 0; i < 300; i++) {
		const char *mesh = meshes[draw(ARRAY_LEN(meshes))];
		uint64_t shape[] = { 1 + draw(40), 1 + draw(40), UINT64_MAX };
		struct cut cut[4];
		uint32_t n = 0, dims = 1;
		struct rig r;

		for (const char *p = mesh; *p; p++)
			dims += *p == ',';
		for (uint16_t d = 0; d < dims; d++)
			if (draw(4))
				cut[n++] = (struct cut){ d, (uint16_t)draw(2),
							 draw(3) ? 0 : 1 + (uint32_t)draw(5) };
		cut[n].mesh_dim = 99;
		rig_make(&r, mesh, shape, cut);
		check_cells(&r);
		check_width(r.m);
		check_picture(r.m);
		rig_free(&r);
	}
}

TEST(a_picture_of_thousands_of_ranks_has_some_thousand_rectangles)
{
	struct rig r;

	rig_make(&r, "fsdp=2048", SHAPE(8192), CUTS({ 0, 0, 0 }));
	check_picture(r.m);
	rig_free(&r);
	rig_make(&r, "fsdp=512,tp=128", SHAPE(8192, 8192), CUTS({ 0, 0, 0 }, { 1, 1, 0 }));
	check_picture(r.m);
	check_width(r.m);
	rig_free(&r);
	rig_make(&r, "fsdp=4", SHAPE(40000), CUTS({ 0, 0, 10000 }));
	check_picture(r.m);
	check_width(r.m);
	rig_free(&r);
	rig_make(&r, "fsdp=8", SHAPE(UINT64_C(1) << 40), CUTS({ 0, 0, 1 << 20 }));
	check_picture(r.m);
	check_width(r.m);
	rig_free(&r);
}

TEST(ranks_are_listed_shortly)
{
	static const struct {
		uint32_t n, rank[8];
		const char *want;
	} list[] = { { 0, { 0 }, "" },
		     { 1, { 3 }, "r3" },
		     { 2, { 0, 4 }, "r0,r4" },
		     { 2, { 0, 1 }, "r0,r1" },
		     { 3, { 0, 1, 2 }, "r0-r2" },
		     { 3, { 0, 4, 8 }, "r0,r4,r8" },
		     { 4, { 0, 4, 8, 12 }, "r0,r4..r12" },
		     { 6, { 0, 1, 2, 8, 9, 10 }, "r0-r2,r8-r10" } };
	char buf[64];

	for (size_t i = 0; i < ARRAY_LEN(list); i++)
		assert_string_equal(map_ranks(list[i].n, list[i].rank, buf, sizeof buf),
				    list[i].want);
	assert_string_equal(map_ranks(6, list[7].rank, buf, 8), "r0-r2..");
}

TEST(sets_of_other_dimensions_are_refused)
{
	struct arena a = { 0 };
	struct indexset set;
	struct map_in in = { 0, &set };
	struct map *m;

	box(&a, 0, 1, 0, 1, &set);
	assert_int_equal(map_make(1, (uint64_t[]){ 4 }, &in, 1, &m), -EINVAL);
	assert_null(m);
	arena_free(&a);
}
