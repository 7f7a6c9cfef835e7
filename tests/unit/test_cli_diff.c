/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_diff.c - ckptctl diff: what is a difference and what is none, and how far values are
 * apart. The truth is the sample model's, and small tensors made up here. */
#include "tests/lib/cli_rig.h"
#include "ckpt/engine/element.h"
#include <math.h>

static const char *sample_path(const char *job, uint64_t step)
{
	return step_path(path_of("%s/%s", work, job), step);
}

/* A step of a job of its own, of one or two made-up tensors. */
static const char *made_step(const struct made *m, uint32_t n)
{
	static uint32_t jobs;

	return make_made(path_of("%s/made", top), path_of("made-%u", jobs++), 1, m, n);
}

/* Number of differences of a kind in the list; *ret is the last. */
static uint32_t differing(const json_t *j, const char *kind, const json_t **ret)
{
	const json_t *all = member(j, "differences", JSON_ARRAY);
	uint32_t n = 0;

	for (size_t i = 0; i < json_array_size(all); i++) {
		const json_t *x = json_array_get(all, i);

		if (strcmp(string(x, "kind"), kind))
			continue;
		n++;
		if (ret)
			*ret = x;
	}
	return n;
}

static bool flag(const json_t *j, const char *key)
{
	const json_t *v = json_object_get(j, key);

	assert_true(json_is_boolean(v));
	return json_is_true(v);
}

static uint64_t count_of(const json_t *j, const char *kind)
{
	return number(member(j, "counts", JSON_OBJECT), kind);
}

TEST(the_same_is_equal_and_says_what_was_compared)
{
	json_t *j;

	SHOWN_IS(0, "diff", sample_path("alpha", 10), sample_path("alpha", 10));
	RUN_IS(0, "diff", sample_path("alpha", 10), sample_path("alpha", 10), "--json");
	j = json_out("ckptd.diff/1");
	assert_true(flag(j, "equal"));
	assert_int_equal(number(j, "in_both_count"), 23);
	assert_int_equal(count(j, "differences"), 0);
	assert_string_equal(string(member(j, "a", JSON_OBJECT), "mesh"), "fsdp=4");
	json_decref(j);
}

TEST(another_mesh_is_no_difference_unless_layouts)
{
	const char *a = sample_path("alpha", 10), *b = sample_path("gamma", 10);
	json_t *j;

	SHOWN_IS(0, "diff", a, b);
	SHOWN_IS(6, "diff", a, b, "--layouts");
	RUN_IS(0, "diff", a, b, "--json");
	j = json_out("ckptd.diff/1");
	assert_true(flag(j, "equal") && flag(j, "mesh_differs") && !flag(j, "parts_differ"));
	assert_true(count_of(j, "layout") > 0);
	assert_int_equal(differing(j, "layout", NULL), 0);
	json_decref(j);
	RUN_IS(6, "diff", a, b, "--json", "--layouts");
	j = json_out("ckptd.diff/1");
	assert_int_equal(differing(j, "layout", NULL), count_of(j, "layout"));
	json_decref(j);
}

TEST(the_blob_of_a_rank_that_one_of_them_lacks_is_a_difference)
{
	const char *a = sample_path("alpha", 10), *b = sample_path("delta", 10);
	const json_t *x;
	json_t *j;

	SHOWN_IS(6, "diff", a, b);
	RUN_IS(6, "diff", b, a, "--json");
	j = json_out("ckptd.diff/1");
	assert_true(flag(j, "parts_differ"));
	assert_int_equal(differing(j, "only_in_b", &x), 2);
	assert_json_has(x, "{'rank':3, 'a':null}");
	json_decref(j);
	RUN_IS(0, "diff", a, b, "--tensors", "model/*");
	RUN_IS(6, "diff", a, b, "--tensors", "model/*", "--layouts");
}

TEST(another_step_differs_in_what_changed_and_in_nothing_else)
{
	json_t *j;

	RUN_IS(6, "diff", sample_path("alpha", 10), sample_path("alpha", 20), "--json");
	j = json_out("ckptd.diff/1");
	/* All but the CONST and the empty one. */
	assert_int_equal(differing(j, "contents", NULL), 21);
	assert_int_equal(count_of(j, "contents"), 21);
	assert_int_equal(count(j, "differences"), 21);
	assert_false(flag(j, "mesh_differs"));
	json_decref(j);
	RUN_IS(0, "diff", sample_path("alpha", 10), sample_path("alpha", 20), "--tensors=*rope*");
	SHOWN_IS(10, "diff", sample_path("alpha", 10), sample_path("alpha", 20), "--tensors=no");
}

TEST(all_differences_come_at_once)
{
	static const uint8_t z[256];
	static const uint8_t one[4] = { 1 };
	const struct made left[] = { { "m", "gone", CKPT_U8, 1, { 3 }, z, 0 },
				     { "m", "longer", CKPT_F32, 2, { 2, 3 }, z, 0 },
				     { "m", "wider", CKPT_BF16, 1, { 5 }, z, 0 },
				     { "m", "other", CKPT_U8, 1, { 4 }, z, 0 },
				     { "m", "role", CKPT_U8, 1, { 4 }, z, CKPT_PARAM },
				     { "m", "deeper", CKPT_U8, 1, { 1 }, z, 0 },
				     { "m", "same", CKPT_U8, 1, { 4 }, one, 0 } };
	const struct made right[] = { { "m", "same", CKPT_U8, 1, { 4 }, one, 0 },
				      { "m", "longer", CKPT_F32, 2, { 2, 4 }, z, 0 },
				      { "m", "wider", CKPT_F32, 1, { 5 }, z, 0 },
				      { "m", "other", CKPT_U8, 1, { 4 }, one, 0 },
				      { "m", "role", CKPT_U8, 1, { 4 }, z, CKPT_BUFFER },
				      { "m", "deeper", CKPT_I16, 0, { 0 }, z, 0 },
				      { "m", "new", CKPT_U8, 1, { 3 }, z, 0 } };
	const char *a = made_step(left, ARRAY_LEN(left)), *b = made_step(right, ARRAY_LEN(right));
	const json_t *x;
	json_t *j;

	SHOWN_IS(6, "diff", a, b);
	RUN_IS(6, "diff", a, b, "--json", "--layouts");
	j = json_out("ckptd.diff/1");
	assert_int_equal(differing(j, "only_in_a", &x), 1);
	assert_string_equal(string(x, "name"), "gone");
	assert_int_equal(differing(j, "only_in_b", NULL), 1);
	assert_int_equal(differing(j, "shape", NULL), 2);
	assert_int_equal(differing(j, "dtype", &x), 1);
	assert_string_equal(string(member(x, "b", JSON_OBJECT), "dtype"), "F32");
	assert_int_equal(differing(j, "contents", &x), 1);
	assert_json_has(x, "{'name':'other', 'values':null}");
	assert_int_equal(differing(j, "role", &x), 1);
	assert_string_equal(string(member(x, "a", JSON_OBJECT), "role"), "param");
	json_decref(j);
}

TEST(thousands_are_counted_and_a_few_are_shown)
{
	static const uint8_t zero[1], one[1] = { 1 };
	struct made *m = calloc(3000, sizeof *m);
	const char *a, *b;
	uint32_t lines = 0;
	json_t *j;

	for (uint32_t i = 0; i < 3000; i++) {
		char *name = malloc(24);

		snprintf(name, 24, "layer.%04u", i);
		m[i] = (struct made){ "m", name, CKPT_U8, 1, { 1 }, zero, 0 };
	}
	a = made_step(m, 3000);
	for (uint32_t i = 0; i < 3000; i++)
		m[i].bytes = one;
	b = made_step(m, 3000);
	SHOWN_IS(6, "diff", a, b);
	for (const char *p = got.out; (p = strstr(p, "m/layer.")); p++)
		lines++;
	assert_int_equal(lines, 20);
	RUN_IS(6, "diff", a, b, "--json", "--values");
	j = json_out("ckptd.diff/1");
	assert_int_equal(differing(j, "contents", NULL), 3000);
	json_decref(j);
	for (uint32_t i = 0; i < 3000; i++)
		free((char *)m[i].name);
	free(m);
}

/* --- values --- */

static const json_t *values_of(const json_t *j, const char *name)
{
	const json_t *all = member(j, "differences", JSON_ARRAY);

	for (size_t i = 0; i < json_array_size(all); i++) {
		const json_t *x = json_array_get(all, i);

		if (!strcmp(string(x, "name"), name))
			return member(x, "values", JSON_OBJECT);
	}
	fail_msg("%s is not differing", name);
	return NULL;
}

TEST(values_are_what_one_by_one_gives)
{
	struct sample s;
	json_t *j;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	/* Two meshes, two steps: the first in four rows, the second replicated and in two. */
	RUN_IS(6, "diff", sample_path("alpha", 10), sample_path("beta", 25), "--values", "--json");
	j = json_out("ckptd.diff/1");
	for (uint32_t i = 0; i < s.decl.ntensor; i++) {
		const struct table_tensor *x = &s.decl.tensor[i];
		uint64_t bits = 0, nan_a = 0, first = UINT64_MAX, at = 0;
		double max = 0;
		const json_t *v;

		if (x->rank != TABLE_NONE || !x->numel || x->cls == CKPT_CONST)
			continue;
		v = values_of(j, x->name);
		for (uint64_t g = 0; g < x->numel; g++) {
			uint8_t p[16], q[16];
			double a[2] = { 0 }, b[2] = { 0 }, delta;

			sample_truth(SEED, x, g, 10, p);
			sample_truth(SEED, x, g, 25, q);
			element_reals(x->dtype, p, 1, a);
			element_reals(x->dtype, q, 1, b);
			bits += memcmp(p, q, x->elem_bytes) != 0;
			if (memcmp(p, q, x->elem_bytes) && first == UINT64_MAX)
				first = g;
			nan_a += isnan(a[0]) || isnan(a[1]);
			delta = hypot(a[0] - b[0], a[1] - b[1]);
			if (isfinite(a[0]) && isfinite(a[1]) && isfinite(b[0]) && isfinite(b[1]))
				max = fmax(max, delta);
		}
		assert_int_equal(number(v, "elements"), x->numel);
		assert_int_equal(number(v, "bits_differ_count"), bits);
		assert_int_equal(number(v, "nan_count_a"), nan_a);
		for (uint32_t d = 0; d < x->ndim; d++)
			at = at * x->shape[d] +
			     (uint64_t)json_integer_value(item(v, "first_index", d));
		assert_int_equal(at, first);
		if (x->dtype == CKPT_I64)
			assert_true(real(v, "max_abs_delta") > 0);
		else if (isfinite(max))
			assert_true(real(v, "max_abs_delta") == max);
	}
	json_decref(j);
	sample_free(&s);
}

TEST(zeros_of_two_signs_differ_in_bits_and_not_in_value)
{
	static const float plus[] = { 1, 0, 2, NAN }, minus[] = { 1, -0.0f, 2, NAN },
			   more[] = { NAN, INFINITY, 2.5f, 7 };
	static const uint32_t nans[2][2] = { { 0x7fc00000, 0x7fc00000 },
					     { 0x7fc00000, 0xffc00001 } };
	static const int64_t big[] = { INT64_MAX, 5 }, near[] = { INT64_MAX - 1, 5 };
	const struct made l[] = { { "m", "z", CKPT_F32, 2, { 2, 2 }, plus, 0 },
				  { "m", "n", CKPT_F32, 1, { 4 }, plus, 0 },
				  { "m", "i", CKPT_I64, 1, { 2 }, big, 0 },
				  { "m", "p", CKPT_F32, 1, { 2 }, nans[0], 0 } };
	const struct made r[] = { { "m", "z", CKPT_F32, 2, { 2, 2 }, minus, 0 },
				  { "m", "n", CKPT_F32, 1, { 4 }, more, 0 },
				  { "m", "i", CKPT_I64, 1, { 2 }, near, 0 },
				  { "m", "p", CKPT_F32, 1, { 2 }, nans[1], 0 } };
	const char *a = made_step(l, ARRAY_LEN(l)), *b = made_step(r, ARRAY_LEN(r));
	const json_t *v;
	json_t *j;

	RUN_IS(6, "diff", a, b, "--values", "--json");
	j = json_out("ckptd.diff/1");
	v = values_of(j, "z");
	assert_json_has(v, "{'bits_differ_count':1, 'values_differ_count':0}");
	assert_int_equal(json_integer_value(item(v, "first_index", 1)), 1);
	v = values_of(j, "n");
	assert_json_has(
		v,
		"{'bits_differ_count':4, 'nonfinite_differ_count':3, 'nan_count_a':1, 'nan_count_b':1, 'max_abs_delta':0.5}");
	v = values_of(j, "p");
	assert_json_has(v, "{'bits_differ_count':1, 'values_differ_count':0, 'nan_count_b':2}");
	/* One apart, where a double cannot tell. */
	v = values_of(j, "i");
	assert_json_has(v, "{'values_differ_count':1, 'max_abs_delta':1.0}");
	json_decref(j);
	SHOWN_IS(6, "diff", a, b, "--values");
}

TEST(another_dtype_is_compared_by_value)
{
	static uint16_t half[3000];
	static float full[3000];
	static double twice[3000];
	const struct made l[] = { { "m", "w", CKPT_BF16, 2, { 30, 100 }, half, 0 },
				  { "m", "x", CKPT_F32, 2, { 30, 100 }, full, 0 },
				  { "m", "scalar", CKPT_F32, 0, { 0 }, &full[7], 0 },
				  { "m", "empty", CKPT_F32, 2, { 0, 4 }, full, 0 } };
	const struct made r[] = { { "m", "w", CKPT_F32, 2, { 30, 100 }, full, 0 },
				  { "m", "x", CKPT_F64, 2, { 30, 100 }, twice, 0 },
				  { "m", "scalar", CKPT_F64, 0, { 0 }, &twice[8], 0 },
				  { "m", "empty", CKPT_F16, 2, { 0, 4 }, full, 0 } };
	const char *a, *b;
	const json_t *v;
	json_t *j;

	for (uint32_t i = 0; i < 3000; i++) {
		half[i] = (uint16_t)(0x3f80 + i % 128);
		full[i] = 1 + (float)(i % 128) / 128;
		twice[i] = (double)full[i] + (i == 2345 ? 0.25 : 0);
	}
	a = made_step(l, ARRAY_LEN(l));
	b = made_step(r, ARRAY_LEN(r));
	RUN_IS(6, "diff", a, b, "--values", "--json");
	j = json_out("ckptd.diff/1");
	assert_int_equal(count_of(j, "dtype"), 4);
	v = values_of(j, "w");
	assert_json_has(v,
			"{'values_differ_count':0, 'bits_differ_count':null, 'first_index':null}");
	v = values_of(j, "x");
	assert_json_has(v, "{'values_differ_count':1, 'max_abs_delta':0.25}");
	assert_int_equal(json_integer_value(item(v, "first_index", 0)), 23);
	assert_int_equal(json_integer_value(item(v, "first_index", 1)), 45);
	v = values_of(j, "scalar");
	assert_json_has(v, "{'elements':1, 'values_differ_count':1}");
	assert_int_equal(number(values_of(j, "empty"), "elements"), 0);
	json_decref(j);
}

/* --- what goes wrong --- */

TEST(both_failures_are_told)
{
	SHOWN_IS(10, "diff", path_of("%s/no", top), path_of("%s/nope", top));
	RUN_IS(2, "diff", sample_path("alpha", 10));
	RUN_IS(6, "diff", "latest~1", "latest", "-C", path_of("%s/alpha", work));
	RUN_IS(2, "diff", "latest~1", "latest", "--json", "-C", work);
}

TEST(damaged_data_is_found_by_values_only_and_names_its_checkpoint)
{
	const char *bad = path_of("%s/bad", top);
	struct stat st;

	copy_step(sample_path("alpha", 20), bad);
	assert_int_equal(stat(part(bad, 0), &st), 0);
	for (off_t at = 4096; at < st.st_size / 2; at += 65536)
		flip(part(bad, 0), at);
	RUN_IS(0, "diff", sample_path("alpha", 20), bad);
	RUN_IS(6, "diff", sample_path("alpha", 10), bad);
	SHOWN_IS(4, "diff", sample_path("alpha", 10), bad, "--values");
	cli_stops = 1;
	RUN("diff", sample_path("alpha", 10), sample_path("alpha", 20), "--values");
	cli_stops = 0;
	assert_int_equal(got.code, 130);
	remove_tree(bad);
}

static int make_more(void **state)
{
	static const struct how more[] = {
		{ "gamma", "dp=2,fsdp=2", 10, 1, UINT64_MAX, UINT64_MAX, false },
		{ "delta", "fsdp=2", 10, 1, UINT64_MAX, UINT64_MAX, false }
	};

	if (make_all(state))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		make_step(work, &more[i]);
	return 0;
}

UNIT(.group_setup = make_more, .group_teardown = drop_all);
