/* SPDX-License-Identifier: Apache-2.0 */
/* test_layout_mesh.c - what meshes and layouts may say, and the text form of a mesh. */
#include "tests/unit/test_layout_naive.h"
#include "tests/lib/row.h"

static void expect_refused(int got, int code, const struct ckpt_err *err, const char *text)
{
	assert_int_equal(got, code);
	assert_int_equal(err->code, code);
	if (!strstr(err->msg, text))
		fail_msg("\"%s\" should say \"%s\"", err->msg, text);
}

TEST(the_text_form_of_a_mesh_is_read_and_printed)
{
	static const char *const good[] = { "fsdp=4", "dp=2,fsdp=2", "a=1,b=1,c=1", "A-b_c.9=16",
					    "x=1048576" };
	char buf[64];

	for (uint32_t i = 0; i < ARRAY_LEN(good); i++) {
		cleanup_arena struct arena a = { 0 };
		struct ckpt_err err = { 0 };
		struct mesh m;

		assert_int_equal(mesh_parse(good[i], &a, &m, &err), 0);
		assert_int_equal(mesh_check(&m, &err), 0);
		assert_string_equal(mesh_print(&m, buf, sizeof buf), good[i]);
		assert_int_equal(m.rank[m.nrank - 1], m.nrank - 1);
	}
}

TEST(a_wrong_mesh_text_is_refused_with_its_place_and_the_remedy)
{
	static const struct {
		const char *spec, *says;
	} bad[] = {
		{ "", "character 1: expected the name" },
		{ "=4", "character 1: expected the name" },
		{ "fsdp", "character 5: expected '=' and the size" },
		{ "fsdp:4", "character 5: expected '=' and the size" },
		{ "fsdp=", "character 6: expected a size" },
		{ "fsdp=x", "character 6: expected a size" },
		{ "fsdp=-1", "character 6: expected a size" },
		{ "fsdp=0", "character 6: a size must be at least 1" },
		{ "fsdp=4,", "character 8: expected the name" },
		{ "fsdp=4x", "character 7: expected a comma or the end after" },
		{ "dp=2, fsdp=2", "character 6: expected the name" },
		{ "dp=2,,fsdp=2", "character 6: expected the name" },
		{ "dp=2,dp=2", "character 6: this name appears twice" },
		{ "x=1048577", "character 3: with this size" },
		{ "x=99999999999999999999999999", "character 3: with this size" },
		{ "x=1024,y=1025", "character 10: with this size" },
		{ "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1,k=1,l=1,m=1,n=1,o=1,p=1,q=1",
		  "character 65: there are more than 16" },
		{ "a12345678901234567890123456789012345678901234567890123456789012345=1",
		  "character 1: this name is longer" },
	};
	cleanup_arena struct arena a = { 0 };
	struct mesh m;

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct ckpt_err err = { 0 };
		int e = mesh_parse(bad[i].spec, &a, &m, &err);

		expect_refused(e, -EINVAL, &err, bad[i].says);
		assert_non_null(strstr(err.msg, "dp=2,fsdp=4")); /* an example to copy */
	}
	assert_int_equal(mesh_parse("x", &a, &m, NULL), -EINVAL);
}

TEST(a_mesh_is_cut_where_the_buffer_ends)
{
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	char buf[32];

	assert_int_equal(mesh_parse("dp=2,fsdp=16", &a, &m, NULL), 0);
	for (size_t n = 1; n < sizeof buf; n++) {
		memset(buf, 'x', sizeof buf);
		mesh_print(&m, buf, n);
		assert_int_equal(strlen(buf), MIN(n - 1, strlen("dp=2,fsdp=16")));
		if (n > 3 && n <= strlen("dp=2,fsdp=16")) {
			assert_memory_equal(buf, "dp=2,fsdp=16", n - 3);
			assert_string_equal(buf + n - 3, "..");
		} else {
			assert_memory_equal(buf, "dp=2,fsdp=16", strlen(buf));
		}
		assert_true(buf[n] == 'x');
	}
}

TEST(a_mesh_that_breaks_a_rule_is_refused)
{
	static const char *const name[] = { "dp", "tp" }, *const twice[] = { "dp", "dp" };
	static const char *const odd[] = { "dp", "t p" }, *const none[] = { "dp", "" };
	static const char *const missing[] = { "dp", NULL };
	const uint32_t dim[] = { 2, 3 }, zero[] = { 2, 0 }, huge[] = { 65536, 65536 };
	const uint32_t rank[] = { 5, 3, 9, 0, 4, 1 }, same[] = { 5, 3, 9, 0, 3, 1 };
	const uint32_t ones[17] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
	const struct {
		struct mesh m;
		const char *says;
	} bad[] = {
		{ { 2, twice, dim, 6, rank }, "both named \"dp\"" },
		{ { 2, odd, dim, 6, rank }, "dimension 1: its name" },
		{ { 2, none, dim, 6, rank }, "dimension 1: its name" },
		{ { 2, missing, dim, 6, rank }, "dimension 1: its name" },
		{ { 2, NULL, dim, 6, rank }, "dimension 0: its name" },
		{ { 2, name, zero, 0, rank }, "size is 0" },
		{ { 2, name, huge, 0, rank }, "at most 1048576" },
		{ { 2, name, dim, 5, rank }, "6 places, but 5 ranks" },
		{ { 2, name, dim, 6, same }, "rank 3 sits at two" },
		{ { 17, name, ones, 1, rank }, "17 dimensions" },
		{ { 0, NULL, NULL, 2, rank }, "1 places, but 2 ranks" },
	};
	struct ckpt_err err;
	uint32_t coord[2];
	struct mesh ok = { 2, name, dim, 6, rank }, point = { .nrank = 1, .rank = rank };

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		err = (struct ckpt_err){ 0 };
		int e = mesh_check(&bad[i].m, &err);

		expect_refused(e, -EINVAL, &err, bad[i].says);
	}
	assert_int_equal(mesh_check(&ok, &err), 0);
	assert_true(mesh_coord(&ok, 4, coord));
	assert_true(coord[0] == 1 && coord[1] == 1);
	assert_false(mesh_coord(&ok, 2, coord));
	assert_int_equal(mesh_check(&point, &err), 0);
	assert_true(mesh_coord(&point, 5, coord));
	assert_false(mesh_coord(&point, 0, coord));
}

TEST(a_layout_that_breaks_a_rule_is_refused)
{
	static const char *const name[] = { "dp", "tp" };
	const uint32_t dim[] = { 2, 3 }, rank[] = { 0, 1, 2, 3, 4, 5 };
	const struct mesh m = { 2, name, dim, 6, rank };
	const struct {
		struct ckpt_placement place[2];
		uint32_t nplace, mode, ndim;
		int code;
		const char *says;
	} bad[] = {
		{ { { .how = 4 } }, 1, 0, 2, -EINVAL, "4 is not a kind" },
		{ { { .how = 255 } }, 1, 0, 2, -EINVAL, "255 is not a kind" },
		ROW({ { .how = CKPT_PARTIAL, .reduce = 5 } }, 1, 0, 2, -EINVAL,
		    "5 is not a reduction"),
		{ { { .how = CKPT_PARTIAL, .flags = 2 } }, 1, 0, 2, -EINVAL, "CKPT_KEEP_PARTIAL" },
		ROW({ { .how = CKPT_PARTIAL, .reduce = CKPT_SUM },
		      { .how = CKPT_PARTIAL, .mesh_dim = 1, .reduce = CKPT_MAX } },
		    2, 0, 2, -EINVAL,
		    "placement 1 (mesh dimension \"tp\"): a pending max, but one by sum over \"dp\""),
		ROW({ { .how = CKPT_PARTIAL, .reduce = CKPT_AVG },
		      { .how = CKPT_PARTIAL, .mesh_dim = 1, .reduce = CKPT_MIN } },
		    2, 0, 2, -EINVAL, "a pending min"),
		{ { { 0 } }, 0, 3, 2, -EOPNOTSUPP, "mode 3" },
		{ { { 0 } }, 0, 5, 2, -EOPNOTSUPP, "mode 5" },
		{ { { .how = 4 } }, 1, CKPT_BOXES, 2, -EINVAL, "nplace must be 0" },
		ROW({ { .how = CKPT_SHARD, .split_factor = 2 } }, 1, CKPT_FLAT, 2, -EINVAL,
		    "nothing is strided"),
		{ { { .how = CKPT_SHARD, .mesh_dim = 2 } }, 1, 0, 2, -EINVAL, "mesh dimension 2" },
		ROW({ { .how = CKPT_SHARD, .tensor_dim = 2 } }, 1, 0, 2, -EINVAL,
		    "dimensions 0 to 1"),
		{ { { .how = CKPT_SHARD } }, 1, 0, 0, -EINVAL, "without dimensions" },
		{ { { .how = CKPT_SHARD, .flags = 1 } }, 1, 0, 2, -EINVAL, "must be 0" },
		{ { { .how = CKPT_SHARD, .reduce = 1 } }, 1, 0, 2, -EINVAL, "must be 0" },
		ROW({ { .how = CKPT_ONLY, .mesh_dim = 1, .split_factor = 3 } }, 1, 0, 2, -EINVAL,
		    "coordinate 3"),
		ROW({ { .how = CKPT_SHARD, .mesh_dim = 1 }, { .how = CKPT_SHARD, .mesh_dim = 1 } },
		    2, 0, 2, -EINVAL, "placement 1: mesh dimension \"tp\" is in an earlier"),
		ROW({ { .how = CKPT_REPLICATE }, { .how = CKPT_ONLY } }, 2, 0, 2, -EINVAL,
		    "placement 1: mesh dimension \"dp\" is in an earlier"),
		{ { { 0 } }, 0, 0, 17, -EINVAL, "17 dimensions" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct layout l = { 0, bad[i].mode, bad[i].nplace, bad[i].place };
		struct ckpt_err err = { 0 };
		int e = layout_check(&m, &l, bad[i].ndim, &err);

		expect_refused(e, bad[i].code, &err, bad[i].says);
	}
	const struct ckpt_placement good[] = {
		{ .how = CKPT_ONLY, .mesh_dim = 1, .split_factor = 2 },
		{ .how = CKPT_SHARD, .mesh_dim = 0, .tensor_dim = 1, .split_factor = UINT32_MAX },
	};
	struct layout l = { .nplace = 2, .place = good };

	assert_int_equal(layout_check(&m, &l, 2, NULL), 0);
	l.mode = CKPT_UNFLATTEN_PAD;
	assert_int_equal(layout_check(&m, &l, 2, NULL), 0);
	l.mode = CKPT_BOXES; /* of which nobody can ask for the share */
	l.nplace = 0;
	assert_int_equal(layout_check(&m, &l, 2, NULL), 0);

	struct arena a = { 0 };
	struct indexset share;

	assert_int_equal(layout_share(&m, &l, 1, (const uint64_t[]){ 8 },
				      (const uint32_t[]){ 0, 0 }, &a, &share),
			 -EINVAL);
	arena_free(&a);
}

TEST(a_pending_reduction_is_a_layout_but_is_saved_with_consent_only)
{
	static const char *const name[] = { "dp", "tp" };
	const uint32_t dim[] = { 2, 3 }, rank[] = { 0, 1, 2, 3, 4, 5 };
	const struct mesh m = { 2, name, dim, 6, rank };
	struct ckpt_placement p[2] = {
		{ .how = CKPT_PARTIAL, .reduce = CKPT_AVG, .flags = CKPT_KEEP_PARTIAL },
		{ .how = CKPT_PARTIAL, .mesh_dim = 1 },
	};
	struct layout l = { .nplace = 2, .place = p };
	struct ckpt_err err = { 0 };

	assert_int_equal(layout_check(&m, &l, 0, NULL), 0);
	assert_true(layout_is_partial(&l));
	expect_refused(layout_check_saved(&m, &l, &err), -EOPNOTSUPP, &err,
		       "placement 1 (mesh dimension \"tp\"): a pending reduction (sum)");
	assert_non_null(strstr(err.msg, "CKPT_KEEP_PARTIAL"));
	p[1].flags = CKPT_KEEP_PARTIAL;
	assert_int_equal(layout_check_saved(&m, &l, NULL), 0);
	l.nplace = 0;
	assert_false(layout_is_partial(&l));
	assert_int_equal(layout_check_saved(&m, &l, NULL), 0);
}

/* Whatever stands in the text, the answer is a mesh that checks or a sentence. */
TEST(random_mesh_texts_are_meshes_or_errors)
{
	static const char part[] = "ab=12,0=,._-A9 \x80";
	uint32_t good = 0;

	naive_seed(__func__);
	for (uint32_t n = 0; n < 100000; n++) {
		char spec[24], back[64];
		uint32_t len = naive_below(sizeof spec);
		cleanup_arena struct arena a = { 0 };
		struct ckpt_err err = { 0 };
		struct mesh m;

		for (uint32_t i = 0; i < len; i++)
			spec[i] = part[naive_below(naive_below(4) ? 7 : sizeof part - 1)];
		spec[len] = '\0';
		if (mesh_parse(spec, &a, &m, &err) == 0) {
			assert_int_equal(mesh_check(&m, &err), 0);
			struct mesh again;

			mesh_print(&m, back, sizeof back);
			assert_int_equal(mesh_parse(back, &a, &again, &err), 0);
			assert_int_equal(again.nrank, m.nrank);
			good++;
		} else {
			assert_non_null(strstr(err.msg, "character "));
		}
	}
	printf("%u of 100000 were meshes\n", good);
	assert_true(good > 100);
}
