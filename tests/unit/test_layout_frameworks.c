/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_frameworks.c - each framework's layouts in the notation of layout_parse, and which
 * elements each rank then holds. The examples of docs/LAYOUTS.md are read from there.
 */
#include "tests/unit/test_layout_naive.h"
#include "tests/lib/interval.h"
#include "tests/lib/row.h"

#define RANKS_MAX 16

/* "0-3,5-7 x 0-4": the maximal stretches of each dimension; "-": none. */
static void set_print(const struct indexset *x, char *buf, size_t bytes)
{
	size_t n = 0;

	*buf = 0;
	for (uint32_t d = 0; d < x->ndim; d++) {
		n += (size_t)snprintf(buf + n, bytes - n, "%s%s", d ? " x " : "",
				      x->dim[d].n ? "" : "-");
		for (uint32_t k = 0; k < x->dim[d].n; k++)
			for (uint64_t i = 0; i < x->dim[d].run[k].count; i++) {
				const struct run *r = &x->dim[d].run[k];
				uint64_t at = r->start + i * r->stride;

				n += (size_t)snprintf(buf + n, bytes - n, "%s%" PRIu64 "-%" PRIu64,
						      k || i ? "," : "", at, at + r->len);
			}
	}
	if (x->ndim == 0)
		snprintf(buf, bytes, "%s", x->numel ? "it" : "-");
}

struct example {
	const char *mesh, *layout;
	uint32_t ndim;
	uint64_t shape[4];
	const char *share[RANKS_MAX]; /* of ranks 0, 1, ...; NULL: not in the mesh */
	const uint32_t *rank;	      /* NULL: 0, 1, 2, ... */
};

/* Every rank holds what is said, and owned parts make up the tensor. */
static void expect_example(const struct example *x)
{
	cleanup_arena struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh m;
	struct layout l;
	uint64_t owned = 0, whole;

	if (mesh_parse(x->mesh, &a, &m, &err) < 0 || layout_parse(x->layout, &m, &a, &l, &err) < 0)
		fail_msg("%s", err.msg);
	m.rank = x->rank ? x->rank : m.rank;
	if (mesh_check(&m, &err) < 0 || layout_check(&m, &l, x->ndim, &err) < 0)
		fail_msg("%s: %s", x->layout, err.msg);
	for (uint32_t r = 0; r < RANKS_MAX; r++) {
		struct indexset set, mine;
		uint32_t coord[CKPT_DIMS_MAX];
		char got[256];

		if (!x->share[r]) {
			assert_false(mesh_coord(&m, r, coord));
			continue;
		}
		assert_true(mesh_coord(&m, r, coord));
		assert_int_equal(layout_share(&m, &l, x->ndim, x->shape, coord, &a, &set), 0);
		set_print(&set, got, sizeof got);
		if (strcmp(got, x->share[r]) != 0)
			fail_msg("%s, rank %u: it holds %s, not %s", x->layout, r, got,
				 x->share[r]);
		assert_int_equal(
			layout_owned(&m, &l, x->ndim, x->shape, coord, 4, "model", "w", &a, &mine),
			0);
		owned += mine.numel;
	}
	assert_int_equal(shape_numel(x->ndim, x->shape, &whole), 0);
	if (!layout_is_partial(&l))
		assert_int_equal(owned, whole);
}

static void expect_examples(const struct example *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		expect_example(&x[i]);
}

TEST(fsdp2_and_hsdp_cut_rows_as_torch_chunk_does)
{
	static const struct example x[] = {
		ROW("fsdp=4", "Shard(0)@fsdp", 2, { 10, 4 },
		    { "0-3 x 0-4", "3-6 x 0-4", "6-9 x 0-4", "9-10 x 0-4" }, NULL),
		ROW("fsdp=4", "Shard(0)@fsdp", 2, { 2, 4 },
		    { "0-1 x 0-4", "1-2 x 0-4", "- x 0-4", "- x 0-4" }, NULL),
		ROW("dp=2,fsdp=2", "Replicate@dp, Shard(0)@fsdp", 1, { 5 },
		    { "0-3", "3-5", "0-3", "3-5" }, NULL),
		{ "fsdp=2", "Replicate", 0, { 0 }, { "it", "it" }, NULL },
	};

	expect_examples(x, ARRAY_LEN(x));
}

/* Rank r sits at (dp, tp) = (r / 2, r % 2). Torch prints [_StridedShard(0, 2), Shard(0)]. */
TEST(fsdp2_over_tp_cuts_the_rows_that_tp_left_also_where_tp_does_not_divide)
{
	static const struct example held = ROW("dp=3,tp=2", "Shard(0)@tp, Shard(0)@dp", 1, { 7 },
					       { "0-2", "4-5", "2-4", "5-6", "-", "6-7" }, NULL);
	/* what torch records of the same tensor: rank 5, which has row 6, is said to be empty */
	static const struct example recorded = {
		"dp=3,tp=2", "StridedShard(0, 2)@dp, Shard(0)@tp",	 1,
		{ 7 },	     { "0-2", "4-5", "2-4", "5-6", "6-7", "-" }, NULL
	};

	expect_example(&held);
	expect_example(&recorded);
}

/* The placements that torch prints are read as the order that they say. */
TEST(the_split_factors_of_fsdp2_are_read_as_an_order)
{
	static const struct {
		const char *mesh, *torch, *order;
	} x[] = {
		{ "dp=3,tp=2", "StridedShard(0, 2)@dp, Shard(0)@tp", "Shard(0)@tp, Shard(0)@dp" },
		{ "dp=2,fsdp=3,tp=2", "Replicate@dp, StridedShard(0, 2)@fsdp, Shard(0)@tp",
		  "Shard(0)@tp, Shard(0)@fsdp, Replicate@dp" },
		{ "efsdp=2,ep=4", "StridedShard(0, 4)@efsdp, Shard(0)@ep",
		  "Shard(0)@ep, Shard(0)@efsdp" },
		{ "fsdp=2,ep=2,tp=2", "StridedShard(0, 4)@fsdp, Shard(0)@ep, Shard(0)@tp",
		  "Shard(0)@ep, Shard(0)@tp, Shard(0)@fsdp" },
		{ "dp=2,tp=2", "Shard(1)@dp, Shard(0)@tp", "Shard(0)@tp, Shard(1)@dp" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct ckpt_placement order[CKPT_DIMS_MAX];
		cleanup_arena struct arena a = { 0 };
		struct mesh m;
		struct layout torch, want;
		struct ckpt_err err = { 0 };

		assert_int_equal(mesh_parse(x[i].mesh, &a, &m, NULL), 0);
		assert_int_equal(layout_parse(x[i].torch, &m, &a, &torch, NULL), 0);
		assert_int_equal(layout_parse(x[i].order, &m, &a, &want, NULL), 0);
		if (layout_order_of(&m, torch.place, order, &err) < 0)
			fail_msg("%s", err.msg);
		for (uint32_t k = 0; k < m.ndim; k++)
			assert_memory_equal(&order[k], &want.place[k], sizeof order[k]);
	}
}

TEST(strided_shards_read_literally_are_several_pieces)
{
	static const struct example x[] = {
		{ "tp=2", "StridedShard(0, 2)@tp", 1, { 8 }, { "0-2,4-6", "2-4,6-8" }, NULL },
		/* a fused QKV of three matrices of four rows */
		ROW("tp=2", "StridedShard(0, 3)@tp", 2, { 12, 2 },
		    { "0-2,4-6,8-10 x 0-2", "2-4,6-8,10-12 x 0-2" }, NULL),
		/* the two readings of an uneven one */
		{ "tp=2", "StridedShard(0, 2)@tp", 1, { 5 }, { "0-2,3-4", "2-3,4-5" }, NULL },
		ROW("tp=2", "unflatten_pad: StridedShard(0, 2)@tp", 1, { 5 }, { "0-2,3-5", "2-3" },
		    NULL),
	};

	expect_examples(x, ARRAY_LEN(x));
}

/* torchtitan: eight ranks are (fsdp=4, tp=2) for the dense weights and (efsdp=2, ep=4) for
 * these. */
TEST(experts_have_a_mesh_of_their_own)
{
	static const struct example x[] = {
		ROW("fsdp=4,tp=2", "Shard(0)@tp, Shard(0)@fsdp", 1, { 16 },
		    { "0-2", "8-10", "2-4", "10-12", "4-6", "12-14", "6-8", "14-16" }, NULL),
		ROW("efsdp=2,ep=4", "Shard(0)@ep, Shard(0)@efsdp", 3, { 8, 512, 256 },
		    { "0-1 x 0-512 x 0-256", "2-3 x 0-512 x 0-256", "4-5 x 0-512 x 0-256",
		      "6-7 x 0-512 x 0-256", "1-2 x 0-512 x 0-256", "3-4 x 0-512 x 0-256",
		      "5-6 x 0-512 x 0-256", "7-8 x 0-512 x 0-256" },
		    NULL),
		/* fewer experts than ranks: their rows are cut too */
		ROW("efsdp=2,ep=4", "Shard(1)@efsdp, Shard(0)@ep", 3, { 4, 512, 256 },
		    { "0-1 x 0-256 x 0-256", "1-2 x 0-256 x 0-256", "2-3 x 0-256 x 0-256",
		      "3-4 x 0-256 x 0-256", "0-1 x 256-512 x 0-256", "1-2 x 256-512 x 0-256",
		      "2-3 x 256-512 x 0-256", "3-4 x 256-512 x 0-256" },
		    NULL),
	};

	expect_examples(x, ARRAY_LEN(x));
}

TEST(a_pipeline_stage_holds_its_tensors_only)
{
	static const struct example x[] = {
		ROW("pp=2,fsdp=2", "Only(1)@pp, Shard(0)@fsdp", 2, { 3, 2 },
		    { "- x -", "- x -", "0-2 x 0-2", "2-3 x 0-2" }, NULL),
		/* embeddings that the first stage alone has, replicated over tp */
		{ "pp=2,tp=2", "Only(0)@pp", 0, { 0 }, { "it", "it", "-", "-" }, NULL },
	};

	expect_examples(x, ARRAY_LEN(x));
}

/* Of an uneven dimension the flat cut differs from nested ones; order counts in both. */
TEST(jax_axes_of_one_dimension_make_one_cut)
{
	static const struct example x[] = {
		ROW("x=2,y=3", "flat: Shard(0)@x, Shard(0)@y", 1, { 4 },
		    { "0-1", "1-2", "2-3", "3-4", "-", "-" }, NULL),
		ROW("x=2,y=3", "flat: Shard(0)@y, Shard(0)@x", 1, { 4 },
		    { "0-1", "2-3", "-", "1-2", "3-4", "-" }, NULL),
		ROW("x=2,y=3", "Shard(0)@x, Shard(0)@y", 1, { 4 },
		    { "0-1", "1-2", "-", "2-3", "3-4", "-" }, NULL),
		ROW("x=2,y=2,z=2", "flat: Shard(1)@x, Shard(1)@z, Shard(0)@y", 2, { 4, 8 },
		    { "0-2 x 0-2", "0-2 x 2-4", "2-4 x 0-2", "2-4 x 2-4", "0-2 x 4-6", "0-2 x 6-8",
		      "2-4 x 4-6", "2-4 x 6-8" },
		    NULL),
	};

	expect_examples(x, ARRAY_LEN(x));
}

/* Two hosts of two ranks. */
TEST(torchrec_tables_are_cut_in_each_of_its_ways)
{
	static const uint32_t second_host[] = { 2, 3 }, reversed[] = { 3, 2, 1, 0 };
	static const struct example x[] = {
		/* table-wise: the whole table on rank 2 */
		ROW("rank=4", "Only(2)@rank", 2, { 5, 4 },
		    { "- x -", "- x -", "0-5 x 0-4", "- x -" }, NULL),
		/* row-wise */
		ROW("rank=4", "Shard(0)@rank", 2, { 5, 4 },
		    { "0-2 x 0-4", "2-4 x 0-4", "4-5 x 0-4", "- x 0-4" }, NULL),
		/* column-wise, the shards on ranks 3, 2, 1, 0 */
		ROW("rank=4", "Shard(1)@rank", 2, { 5, 4 },
		    { "0-5 x 3-4", "0-5 x 2-3", "0-5 x 1-2", "0-5 x 0-1" }, reversed),
		/* column-wise, four shards on two ranks in turn: two pieces each */
		ROW("rank=2", "StridedShard(1, 2)@rank", 2, { 5, 8 },
		    { "0-5 x 0-2,4-6", "0-5 x 2-4,6-8" }, NULL),
		/* table-row-wise: the rows over the ranks of the second host */
		ROW("host=2,local=2", "Only(1)@host, Shard(0)@local", 2, { 5, 4 },
		    { "- x -", "- x -", "0-3 x 0-4", "3-5 x 0-4" }, NULL),
		/* the same as a mesh of these ranks alone */
		ROW("local=2", "Shard(0)@local", 2, { 5, 4 },
		    { NULL, NULL, "0-3 x 0-4", "3-5 x 0-4" }, second_host),
		/* grid: columns over the hosts, rows over the ranks of each */
		ROW("host=2,local=2", "Shard(1)@host, Shard(0)@local", 2, { 5, 4 },
		    { "0-3 x 0-2", "3-5 x 0-2", "0-3 x 2-4", "3-5 x 2-4" }, NULL),
		/* data-parallel */
		{ "rank=2", "Replicate", 2, { 5, 4 }, { "0-5 x 0-4", "0-5 x 0-4" }, NULL },
	};

	expect_examples(x, ARRAY_LEN(x));
}

TEST(ranks_hold_what_their_place_in_the_mesh_says_whatever_their_number)
{
	static const uint32_t swapped[] = { 1, 0 }, some[] = { 5, 3, 9, 0 };
	static const struct example x[] = {
		{ "tp=2", "Shard(0)@tp", 1, { 4 }, { "2-4", "0-2" }, swapped },
		ROW("dp=2,tp=2", "Shard(0)@tp", 1, { 4 },
		    { "2-4", NULL, NULL, "2-4", NULL, "0-2", NULL, NULL, NULL, "0-2" }, some),
	};

	expect_examples(x, ARRAY_LEN(x));
}

TEST(every_holder_of_a_pending_reduction_has_its_operand)
{
	static const struct example x[] = {
		ROW("dp=2,tp=2", "Partial(sum, keep)@tp, Shard(0)@dp", 1, { 4 },
		    { "0-2", "0-2", "2-4", "2-4" }, NULL),
	};
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	struct layout l;

	expect_examples(x, ARRAY_LEN(x));
	assert_int_equal(mesh_parse(x[0].mesh, &a, &m, NULL), 0);
	assert_int_equal(layout_parse(x[0].layout, &m, &a, &l, NULL), 0);
	for (uint32_t r = 0; r < 4; r++) {
		uint32_t coord[2];
		struct indexset set;

		assert_true(mesh_coord(&m, r, coord));
		assert_int_equal(layout_owned(&m, &l, 1, x[0].shape, coord, 4, "g", "w", &a, &set),
				 0);
		assert_int_equal(set.numel, 2);
	}
}

/* --- flattened intervals --- */

static void expect_interval(const struct indexset *x, uint64_t from, uint64_t to,
			    const char *const *want)
{
	const struct indexset *set;
	cleanup_arena struct arena a = { 0 };
	uint32_t n;
	char got[128];

	assert_int_equal(indexset_interval(x, from, to, &a, &set, &n), 0);
	for (uint32_t i = 0; i < n; i++) {
		set_print(&set[i], got, sizeof got);
		assert_non_null(want[i]);
		assert_string_equal(got, want[i]);
	}
	assert_null(want[n]);
}

/* ZeRO: w [4, 5] and b [3] flattened into one buffer of 23, cut in chunks of 8 for three ranks. */
TEST(zero_intervals_are_a_few_boxes_of_each_tensor)
{
	static const char *const w[3][6] = {
		{ "0-1 x 0-5", "1-2 x 0-3" },
		{ "1-2 x 3-5", "2-3 x 0-5", "3-4 x 0-1" },
		{ "3-4 x 1-5" },
	};
	static const char *const b[3][2] = { { NULL }, { NULL }, { "0-3" } };
	static const uint64_t origin[2] = { 0 }, shape_w[] = { 4, 5 }, shape_b[] = { 3 };
	cleanup_arena struct arena a = { 0 };
	struct indexset x, y;

	assert_int_equal(indexset_box(2, origin, shape_w, &a, &x), 0);
	assert_int_equal(indexset_box(1, origin, shape_b, &a, &y), 0);
	for (uint64_t r = 0; r < 3; r++) {
		uint64_t from = r * 8, to = (r + 1) * 8;

		expect_interval(&x, from, to, w[r]);
		expect_interval(&y, from < 20 ? 0 : from - 20, to < 20 ? 0 : to - 20, b[r]);
	}
}

/* Megatron's distributed optimizer, Paddle's flattened_range: what tp left, flattened and cut. */
TEST(an_interval_of_a_flattened_shard_is_in_global_indices)
{
	static const char *const want[2][6] = {
		{ "0-1 x 2-4 x 0-2", "1-2 x 2-3 x 0-2", NULL },
		{ "1-2 x 3-4 x 0-2", "2-3 x 2-4 x 0-2", NULL },
	};
	/* of a strided one: its rows are elsewhere, the way of counting is the same */
	static const char *const strided[] = { "0-1 x 1-2", "1-2 x 0-2", "4-5 x 0-1", NULL };
	const uint64_t shape[] = { 3, 4, 2 }, rows[] = { 8, 2 };
	const uint32_t one = 1, zero = 0;
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	struct layout l;
	struct indexset x;

	assert_int_equal(mesh_parse("tp=2", &a, &m, NULL), 0);
	assert_int_equal(layout_parse("Shard(1)@tp", &m, &a, &l, NULL), 0);
	assert_int_equal(layout_share(&m, &l, 3, shape, &one, &a, &x), 0);
	expect_interval(&x, 0, 6, want[0]);
	expect_interval(&x, 6, 12, want[1]);
	expect_interval(&x, 6, UINT64_MAX, want[1]);
	expect_interval(&x, 12, 13, (const char *const[]){ NULL });
	assert_int_equal(layout_parse("StridedShard(0, 2)@tp", &m, &a, &l, NULL), 0);
	assert_int_equal(layout_share(&m, &l, 2, rows, &zero, &a, &x), 0);
	expect_interval(&x, 1, 5, strided);
}

/* The most there can be: two ends in every dimension, and what lies between. */
TEST(an_interval_has_at_most_two_boxes_a_dimension_less_one)
{
	static const uint64_t origin[4] = { 0 }, shape[] = { 3, 3, 3, 3 };
	static const char *const want[] = { "0-1 x 0-1 x 0-1 x 1-3", "0-1 x 0-1 x 1-3 x 0-3",
					    "0-1 x 1-3 x 0-3 x 0-3", "1-2 x 0-3 x 0-3 x 0-3",
					    "2-3 x 0-2 x 0-3 x 0-3", "2-3 x 2-3 x 0-2 x 0-3",
					    "2-3 x 2-3 x 2-3 x 0-2", NULL };
	cleanup_arena struct arena a = { 0 };
	struct indexset x;

	assert_int_equal(indexset_box(4, origin, shape, &a, &x), 0);
	expect_interval(&x, 1, 80, want);
	expect_interval(&x, 0, 81, (const char *const[]){ "0-3 x 0-3 x 0-3 x 0-3", NULL });
	assert_int_equal(indexset_box(0, NULL, NULL, &a, &x), 0);
	expect_interval(&x, 0, 1, (const char *const[]){ "it", NULL });
	expect_interval(&x, 1, 2, (const char *const[]){ NULL });
}

/* --- docs/LAYOUTS.md --- */

#define CELL_MAX 256

/* The cells of a row of a table, without blanks and backticks at their ends; their number. */
static uint32_t row_cells(const char *line, char cell[][CELL_MAX], uint32_t max)
{
	uint32_t n = 0;

	line += strspn(line, " ");
	while (*line == '|' && n < max) {
		const char *from = line + 1 + strspn(line + 1, " `"), *to = strchr(line + 1, '|');

		if (!to)
			break;
		line = to;
		while (to > from && strchr(" `", to[-1]))
			to--;
		assert_true(to - from < CELL_MAX);
		snprintf(cell[n++], CELL_MAX, "%.*s", (int)(to - from), from);
	}
	return n;
}

static void page_row(char *mesh, char *shape, char *layout, char *held)
{
	struct example x = { .mesh = mesh, .layout = layout };
	uint32_t r = 0;

	if (strcmp(shape, "scalar") != 0)
		for (char *at = shape; x.ndim < 4; x.ndim++, at += 2) {
			x.shape[x.ndim] = strtoull(at, &at, 10);
			if (strncmp(at, " x ", 3) != 0) {
				x.ndim++;
				break;
			}
		}
	for (char *save = NULL, *s = strtok_r(held, ";", &save); s;
	     s = strtok_r(NULL, ";", &save)) {
		assert_true(r < RANKS_MAX);
		x.share[r++] = s + strspn(s, " ");
	}
	expect_example(&x);
}

TEST(the_examples_of_the_page_are_true)
{
	char here[] = __FILE__, path[512], line[2048], cell[6][CELL_MAX];
	uint32_t rows = 0;
	FILE *f;

	*strrchr(here, '/') = '\0';
	snprintf(path, sizeof path, "%s/../../docs/LAYOUTS.md", here);
	f = fopen(path, "re");
	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	while (fgets(line, sizeof line, f)) {
		uint32_t n = row_cells(line, cell, ARRAY_LEN(cell));

		if (n < 4 || n > 5 || !strchr(cell[n - 4], '='))
			continue;
		page_row(cell[n - 4], cell[n - 3], cell[n - 2], cell[n - 1]);
		rows++;
	}
	fclose(f);
	printf("%u examples\n", rows);
	assert_int_equal(rows, 27);
}
