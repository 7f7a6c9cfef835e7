/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_limits.c - bad and extreme layouts: refused with a reason, or answered in little time
 * and memory. Time is bounded by counted work, so memory and records are what is looked at.
 */
#include "tests/unit/test_layout_naive.h"
#include "tests/lib/row.h"

static void must_parse(const char *spec, const char *text, struct arena *a, struct mesh *m,
		       struct layout *l)
{
	struct ckpt_err err = { 0 };

	if (mesh_parse(spec, a, m, &err) < 0 || layout_parse(text, m, a, l, &err) < 0)
		fail_msg("%s", err.msg);
}

TEST(a_mesh_of_a_million_ranks_is_the_largest)
{
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	struct layout l;
	struct ckpt_err err = { 0 };
	const uint64_t shape[] = { UINT64_C(1) << 40, 3 };
	uint64_t total = 0;
	uint32_t *rank;

	must_parse("pp=16,fsdp=8192,tp=8", "Shard(0)@tp, Shard(0)@fsdp, Only(3)@pp", &a, &m, &l);
	assert_int_equal(m.nrank, LAYOUT_RANKS_MAX);
	assert_int_equal(mesh_check(&m, NULL), 0);
	for (uint32_t tp = 0; tp < 8; tp++) {
		struct indexset x;
		const uint32_t coord[] = { 3, 8191, tp };

		assert_int_equal(layout_share(&m, &l, 2, shape, coord, &a, &x), 0);
		total += x.numel;
	}
	assert_int_equal(total, 8 * ((UINT64_C(1) << 40) / 65536 * 3));
	assert_int_equal(mesh_parse("a=1024,b=1024,c=2", &a, &m, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "more than 1048576 places"));
	assert_int_equal(mesh_parse("a=1048577", &a, &m, &err), -EINVAL);
	/* sizes whose product is 0 modulo 2^64 */
	assert_int_equal(mesh_parse("a=65536,b=65536,c=65536,d=65536", &a, &m, &err), -EINVAL);
	/* a repeated rank is found wherever it stands */
	assert_int_equal(mesh_parse("a=1048576", &a, &m, &err), 0);
	rank = (uint32_t *)m.rank;
	rank[1] = 1048575;
	assert_int_equal(mesh_check(&m, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "rank 1048575 sits at two"));
}

TEST(a_literal_split_factor_of_a_million_on_64_ranks_is_a_few_records)
{
	static const char *const text[] = {
		"StridedShard(0, 1000000)@a, Shard(0)@b",
		"StridedShard(0, 1000000)@a, StridedShard(0, 3)@b",
		"Shard(0)@b, StridedShard(0, 1000000)@a",
		"unflatten_pad: StridedShard(0, 1000000)@a, Shard(0)@b",
	};
	const uint64_t shape[] = { UINT64_C(1000000007) };

	for (uint32_t i = 0; i < ARRAY_LEN(text); i++) {
		cleanup_arena struct arena a = { 0 };
		struct mesh m;
		struct layout l;
		uint64_t total = 0;
		uint32_t records = 0;

		must_parse("a=8,b=8", text[i], &a, &m, &l);
		for (uint32_t r = 0; r < m.nrank; r++) {
			const uint32_t coord[] = { r / 8, r % 8 };
			struct indexset x;

			assert_int_equal(layout_share(&m, &l, 1, shape, coord, &a, &x), 0);
			assert_int_equal(indices_check(&x.dim[0], shape[0], NULL), 0);
			records = MAX(records, x.dim[0].n);
			total += x.numel;
		}
		assert_int_equal(total, shape[0]);
		assert_in_range(records, 1, 16);
		assert_true(a.total_bytes < 1 << 20);
	}
}

/* Strides that fit nowhere: found by trying many, kept because they take longest. */
TEST(a_list_of_too_many_progressions_is_refused_in_bounded_memory)
{
	static const struct {
		uint64_t n;
		uint32_t coord[5], dim[5], factor[5], ndim;
	} x[] = {
		{ 656809196381772, { 0, 3, 3 }, { 8, 6, 6 }, { 29149, 60681346, 85787135 }, 3 },
		ROW(307322918460433, { 1, 5, 2, 1, 5 }, { 6, 6, 4, 2, 7 },
		    { 148677459, 564506, 3329144, 103257, 7060 }, 5),
		ROW(8289841692171, { 5, 1, 2, 3 }, { 6, 5, 8, 4 },
		    { 7424915, 165345, 91900, 16126 }, 4),
		ROW(35571474423275738, { 2, 6, 5, 0 }, { 4, 9, 8, 2 },
		    { 1064, 28392957, 18, 12629421 }, 4),
	};
	static const char *const name[] = { "a", "b", "c", "d", "e" };
	static const uint32_t rank[8 * 9 * 8 * 4 * 7];

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct ckpt_placement p[5] = { 0 };
		struct mesh m = { x[i].ndim, name, x[i].dim, ARRAY_LEN(rank), rank };
		struct layout l = { .nplace = x[i].ndim, .place = p };
		cleanup_arena struct arena a = { 0 };
		struct indexset set;

		for (uint32_t d = 0; d < x[i].ndim; d++)
			p[d] = (struct ckpt_placement)ROW(.how = CKPT_SHARD,
							  .mesh_dim = (uint16_t)d,
							  .split_factor = x[i].factor[d]);
		assert_int_equal(layout_share(&m, &l, 1, &x[i].n, x[i].coord, &a, &set), -E2BIG);
		assert_true(a.total_bytes < 8 << 20);
	}
}

TEST(sizes_that_overflow_are_refused_and_empty_ones_are_not)
{
	static const struct {
		uint32_t ndim;
		uint64_t shape[3];
		int code;
	} x[] = {
		{ 1, { UINT64_C(1) << 63 }, -EOVERFLOW },
		{ 1, { UINT64_MAX }, -EOVERFLOW }, /* -1, where numbers have signs */
		{ 2, { UINT64_C(1) << 32, UINT64_C(1) << 31 }, -EOVERFLOW },
		{ 2, { UINT64_C(1) << 32, UINT64_C(1) << 32 }, -EOVERFLOW },
		{ 3, { UINT64_C(1) << 62, UINT64_C(1) << 62, 0 }, 0 },
		{ 2, { 0, UINT64_C(1) << 63 }, -EOVERFLOW },
		{ 1, { INT64_MAX }, 0 },
		{ 2, { INT64_MAX, 1 }, 0 },
	};
	static const char *const text[] = { "StridedShard(0, 4294967295)@a",
					    "unflatten_pad: StridedShard(0, 4294967295)@a",
					    "flat: Shard(0)@a" };

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++)
		for (uint32_t k = 0; k < ARRAY_LEN(text); k++) {
			cleanup_arena struct arena a = { 0 };
			struct mesh m;
			struct layout l;
			uint64_t total = 0, numel = 0;
			int e = 0;

			must_parse("a=7", text[k], &a, &m, &l);
			for (uint32_t r = 0; r < 7 && e == 0; r++) {
				struct indexset set;

				e = layout_share(&m, &l, x[i].ndim, x[i].shape, &r, &a, &set);
				total += e ? 0 : set.numel;
			}
			assert_int_equal(e, x[i].code);
			if (e == 0) {
				assert_int_equal(shape_numel(x[i].ndim, x[i].shape, &numel), 0);
				assert_int_equal(total, numel);
			}
		}
}

/* The three of torch's own tests, and more. */
TEST(split_factors_that_say_no_order_are_refused_and_literally_still_a_layout)
{
	static const struct {
		const char *mesh, *text;
	} x[] = {
		{ "a=4,b=8", "StridedShard(0, 2)@a, StridedShard(1, 2)@b" },
		{ "a=4,b=8", "StridedShard(0, 2)@a, Shard(1)@b" },
		{ "a=4,b=8", "StridedShard(1, 16)@a, Shard(1)@b" },
		{ "a=4,b=8", "Shard(0)@a, StridedShard(0, 4)@b" }, /* none stands behind b */
		{ "a=4,b=8", "StridedShard(0, 4294967295)@a, Shard(0)@b" },
		{ "a=2,b=3,c=5", "StridedShard(0, 5)@a, Shard(0)@b, Shard(0)@c" },
		{ "a=2", "StridedShard(0, 2)@a" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct ckpt_placement order[CKPT_DIMS_MAX];
		struct ckpt_err err = { 0 };
		cleanup_arena struct arena a = { 0 };
		struct mesh m;
		struct layout l;

		must_parse(x[i].mesh, x[i].text, &a, &m, &l);
		assert_int_equal(layout_check(&m, &l, 2, NULL), 0);
		assert_int_equal(layout_order_of(&m, l.place, order, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "it says no order"));
	}
}

TEST(placements_that_are_no_order_are_refused_by_the_conversions)
{
	static const char *const name[] = { "a", "b" };
	static const uint32_t dim[] = { 2, 3 }, rank[6] = { 0 };
	static const struct mesh m = { 2, name, dim, 6, rank };
	static const struct ckpt_placement x[][2] = {
		{ { .how = CKPT_SHARD, .mesh_dim = 2 }, { .mesh_dim = 1 } },
		{ { .how = 7 }, { .mesh_dim = 1 } },
		{ { .how = CKPT_SHARD, .tensor_dim = 16 }, { .mesh_dim = 1 } },
		{ { .how = CKPT_SHARD, .tensor_dim = UINT16_MAX }, { .mesh_dim = 1 } },
		{ { .how = CKPT_SHARD, .mesh_dim = 1 }, { .how = CKPT_SHARD, .mesh_dim = 1 } },
	};
	static const struct ckpt_placement swapped[2] = { { .how = CKPT_SHARD, .mesh_dim = 1 },
							  { .how = CKPT_SHARD } };
	struct ckpt_placement out[3];
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		err.msg[0] = 0;
		assert_int_equal(layout_order_of(&m, x[i], out, &err), -EINVAL);
		assert_true(strlen(err.msg) > 20);
	}
	assert_int_equal(layout_order_of(&m, swapped, out, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "in the order of the mesh"));
}

/* Like mesh texts: an answer that checks, or a sentence that says where. */
TEST(random_layout_texts_are_layouts_or_errors)
{
	static const char *const part[] =
		ROW("Shard(", "StridedShard(", "_StridedShard(", "Only(", "Partial(", "Replicate",
		    "flat:", "unflatten_pad:", "0", "1", "2", "4294967295", "-1", "sum", "max",
		    "keep", ",", ")", "@dp", "@tp", "@pp", "@none", " ", "(", "\x80", "Shard(0)@tp",
		    "Partial(avg)@dp", "Partial(sum, keep)@tp");
	struct arena base = { 0 };
	struct mesh m;
	uint32_t good = 0;

	naive_seed(__func__);
	assert_int_equal(mesh_parse("pp=2,dp=3,tp=4", &base, &m, NULL), 0);
	for (uint32_t n = 0; n < 50000; n++) {
		struct ckpt_err err = { 0 };
		cleanup_arena struct arena a = { 0 };
		struct layout l;
		char text[256] = "";
		uint32_t words = naive_below(9);

		for (uint32_t i = 0; i < words; i++)
			strcat(text, part[naive_below(ARRAY_LEN(part))]);
		if (layout_parse(text, &m, &a, &l, &err) == 0) {
			assert_int_equal(layout_check(&m, &l, CKPT_DIMS_MAX, NULL), 0);
			good++;
		} else {
			assert_int_equal(err.code, -EINVAL);
			assert_true(strstr(err.msg, "character ") || strstr(err.msg, "pending"));
		}
	}
	arena_free(&base);
	printf("%u of 50000 were layouts\n", good);
	assert_true(good > 100);
}

TEST(texts_of_modes_and_reductions_say_what_is_wrong_and_where)
{
	static const struct {
		const char *text;
		uint32_t at;
		const char *what;
	} bad[] = ROW({ "flat:", 6, "expected" }, { "flat Shard(0)@dp", 1, "Shard(DIM)" },
		      { "flat: StridedShard(0, 2)@dp", 26, "nothing is strided" },
		      { "flat: flat: Shard(0)@dp", 7, "Shard(DIM)" },
		      { "Shard(0)@dp, flat: Shard(0)@tp", 14, "Shard(DIM)" },
		      { "Partial(sum@dp", 12, "parenthesis" },
		      { "Partial(,)@dp", 9, "sum, avg, min, max or product" },
		      { "Partial(prod)@dp", 9, "sum, avg, min, max or product" },
		      { "Partial(sum,)@dp", 13, "keep" }, { "Partial(sum, kept)@dp", 14, "keep" },
		      { "Partial(summit)@dp", 12, "parenthesis" });
	cleanup_arena struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh m;
	struct layout l;
	char at[32];

	assert_int_equal(mesh_parse("dp=3,tp=2", &a, &m, NULL), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(layout_parse(bad[i].text, &m, &a, &l, &err), -EINVAL);
		snprintf(at, sizeof at, "character %u: ", bad[i].at);
		if (!strstr(err.msg, at) || !strstr(err.msg, bad[i].what))
			fail_msg("%s%s is not in: %s", at, bad[i].what, err.msg);
	}
	assert_int_equal(layout_parse("Partial(sum)@dp, Partial(max)@tp", &m, &a, &l, &err),
			 -EINVAL);
	assert_non_null(strstr(err.msg, "a pending max, but one by sum over \"dp\""));
	assert_int_equal(layout_parse("Partial(avg)@dp, Partial(sum, keep)@tp", &m, &a, &l, &err),
			 0);
	assert_int_equal(l.place[0].reduce, CKPT_AVG);
	assert_int_equal(l.place[0].flags, 0);
	assert_int_equal(l.place[1].flags, CKPT_KEEP_PARTIAL);
	assert_int_equal(layout_parse(" flat:Shard(0)@dp,Shard(0)@tp", &m, &a, &l, &err), 0);
	assert_int_equal(l.mode, CKPT_FLAT);
	assert_int_equal(layout_parse("unflatten_pad: Replicate", &m, &a, &l, &err), 0);
	assert_int_equal(l.mode, CKPT_UNFLATTEN_PAD);
	assert_int_equal(l.nplace, 0);
}
