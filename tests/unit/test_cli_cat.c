/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_cat.c - ckptctl cat, and what it is made of: slices, elements, .npy headers, statistics,
 * previews. The truth is the sample model's, element by element. */
#include "tests/lib/cli_rig.h"
#include "ckpt/engine/element.h"
#include "ckpt/engine/npy.h"
#include "ckpt/engine/preview.h"
#include "ckpt/engine/slice.h"
#include "ckpt/engine/tally.h"
#include "tests/lib/row.h"
#include "tests/unit/test_engine_naive.h"
#include <math.h>
#include <signal.h>

#define NAME(x) path_of("%s/%s", (x)->component, (x)->name)

static const char *made; /* a store with the job "made", step 1 */

/* The elements of a slice, one by one. */
static uint8_t *truth(const struct table_tensor *x, const struct slice *s, uint64_t step)
{
	uint8_t *p = malloc(s->numel * x->elem_bytes + 1);

	assert_non_null(p);
	for (uint64_t i = 0; i < s->numel; i++) {
		uint64_t rest = i, at[CKPT_DIMS_MAX], g = 0;

		for (uint32_t d = x->ndim; d-- > 0; rest /= s->count[d])
			at[d] = s->start[d] + rest % s->count[d];
		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + at[d];
		sample_truth(SEED, x, g, step, p + i * x->elem_bytes);
	}
	return p;
}

static const char *checkpoint(int i)
{
	return i ? path_of("%s/beta/step-000000000025", work)
		 : path_of("%s/alpha/step-000000000010", work);
}

static void assert_truth(const struct table_tensor *x, const char *text, uint64_t step,
			 const void *p, uint64_t len)
{
	struct slice s;
	uint8_t *want;

	assert_int_equal(slice_parse(text, x->ndim, x->shape, &s, NULL), 0);
	assert_int_equal(len, s.numel * x->elem_bytes);
	want = truth(x, &s, step);
	if (memcmp(p, want, len))
		fail_msg("%s %s is not what it was", NAME(x), text ? text : "");
	free(want);
}

TEST(every_tensor_leaves_as_its_true_bytes_whatever_the_mesh)
{
	struct sample s;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	for (int c = 0; c < 2; c++)
		for (uint32_t i = 0; i < s.decl.ntensor; i++) {
			const struct table_tensor *x = &s.decl.tensor[i];

			if (x->rank == TABLE_NONE)
				RUN("cat", checkpoint(c), NAME(x));
			else
				RUN("cat", checkpoint(c), NAME(x), "--rank", "2");
			if (got.code)
				fail_msg("%s: %s", NAME(x), got.err);
			assert_truth(x, NULL, c ? 25 : 10, got.out, got.out_len);
		}
	sample_free(&s);
}

static void random_slice(const struct table_tensor *x, char *buf, size_t bytes)
{
	size_t len = 0;

	buf[0] = 0;
	for (uint32_t d = 0; d < x->ndim && (!d || rnd(4)); d++) {
		long long n = (long long)x->shape[d], a = (long long)rnd(x->shape[d]),
			  b = (long long)rnd(x->shape[d] + 3);

		a = n && rnd(2) ? a - n : a;
		b = rnd(2) ? b - n : b;
		len += (size_t)snprintf(buf + len, bytes - len, "%s", d ? "," : "");
		switch (n ? rnd(6) : 5) {
		case 0:
			len += (size_t)snprintf(buf + len, bytes - len, "%lld", a);
			break;
		case 1:
			len += (size_t)snprintf(buf + len, bytes - len, ":%lld", b);
			break;
		case 2:
			len += (size_t)snprintf(buf + len, bytes - len, " %lld: ", a);
			break;
		case 5:
			len += (size_t)snprintf(buf + len, bytes - len, ":");
			break;
		default:
			len += (size_t)snprintf(buf + len, bytes - len, "%lld:%lld", a, b);
		}
	}
}

TEST(a_slice_is_what_stands_there)
{
	struct sample s;
	char text[256];

	random_state = 20240611;
	print_message("seed %llu\n", (unsigned long long)random_state);
	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	for (int n = 0; n < 60; n++) {
		const struct table_tensor *x = &s.decl.tensor[rnd(s.decl.ntensor)];
		int c = (int)rnd(2);

		if (!x->ndim || x->rank != TABLE_NONE)
			continue;
		random_slice(x, text, sizeof text);
		RUN("cat", checkpoint(c), NAME(x), path_of("--slice=%s", text));
		if (got.code)
			fail_msg("%s %s: %s", NAME(x), text, got.err);
		assert_truth(x, text, c ? 25 : 10, got.out, got.out_len);
	}
	sample_free(&s);
}

TEST(a_slice_that_does_not_fit_is_refused_before_a_byte_is_written)
{
	SHOWN_IS(2, "cat", checkpoint(0), "model/embed.weight", "--slice", "0:4,9999");
	assert_int_equal(got.out_len, 0);
}

/* --- slices --- */

/* --- elements --- */

/* --- F4 --- */

/* --- .npy --- */

TEST(a_npy_file_is_the_header_of_numpy_and_the_bytes)
{
	const char *file = path_of("%s/a.npy", top);
	struct sample s;
	struct stat st;
	char *text;
	FILE *f;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	RUN("cat", checkpoint(0), "model/stats.sum", "--npy");
	assert_int_equal(got.code, 0);
	assert_true(got.out_len > 128);
	assert_memory_equal(got.out, "\x93NUMPY\x01\x00\x76\x00", 10);
	assert_memory_equal(got.out + 10,
			    "{'descr': '<f8', 'fortran_order': False, 'shape': (9, 3), }  ", 60);
	assert_int_equal(got.out[127], '\n');
	assert_truth(&s.decl.tensor[table_find(&s.decl, "model", "stats.sum", TABLE_NONE)], NULL,
		     10, got.out + 128, got.out_len - 128);
	/* The same by a file's name; BF16 is written as <u2. */
	SHOWN_IS(0, "cat", checkpoint(0), "model/norm.weight", "--slice=2:7", "-o", file);
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_size, 128 + 5 * 2);
	f = fopen(file, "r");
	text = malloc(256);
	assert_int_equal(fread(text, 1, 256, f), 138);
	fclose(f);
	assert_memory_equal(text + 10, "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }",
			    57);
	assert_truth(&s.decl.tensor[table_find(&s.decl, "model", "norm.weight", TABLE_NONE)], "2:7",
		     10, text + 128, 10);
	free(text);
	unlink(file);
	sample_free(&s);
}

/* --- files --- */

TEST(a_file_that_exists_is_left_alone)
{
	const char *dir = path_of("%s/there", top), *file = path_of("%s/x", dir);
	char buf[8] = "";
	int fd;

	assert_int_equal(mkdir(dir, 0700), 0);
	fd = open(file, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "mine", 4), 4);
	close(fd);
	assert_int_equal(symlink("nowhere", path_of("%s/link", dir)), 0);
	SHOWN_IS(11, "cat", checkpoint(0), "model/embed.weight", "-o", file);
	RUN_IS(11, "cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/link", dir));
	RUN_IS(2, "cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/no/x", dir));
	RUN_IS(11, "cat", checkpoint(0), "model/embed.weight", "-o", dir);
	RUN_IS(2, "cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/", dir));
	fd = open(file, O_RDONLY);
	assert_int_equal(read(fd, buf, sizeof buf), 4);
	assert_string_equal(buf, "mine");
	close(fd);
	assert_int_equal(entries(dir), 2);
	remove_tree(dir);
}

/* Flip bytes in the first half of the first part of a copy of a step. */
static const char *damaged_copy(const char *name)
{
	const char *to = path_of("%s/%s", top, name);
	struct stat st;

	copy_step(checkpoint(0), to);
	assert_int_equal(stat(part(to, 0), &st), 0);
	for (off_t at = 4096; at < st.st_size / 2; at += 65536)
		flip(part(to, 0), at);
	return to;
}

TEST(damaged_data_makes_no_file_and_exit_4)
{
	const char *dir = path_of("%s/out", top), *bad = damaged_copy("damaged");
	int before;

	assert_int_equal(mkdir(dir, 0700), 0);
	before = (int)entries(dir);
	SHOWN_IS(4, "cat", bad, "model/embed.weight", "-o", path_of("%s/x.npy", dir));
	assert_int_equal(entries(dir), before);
	/* A file that exists is seen before anything is read. */
	RUN_IS(11, "cat", bad, "model/embed.weight", "-o", bad);
	RUN_IS(4, "cat", bad, "model/embed.weight", "--stats", "--json");
	assert_json_error(4);
	cli_stops = 1;
	SHOWN("cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/x", dir));
	cli_stops = 0;
	assert_int_equal(got.code, 130);
	assert_int_equal(entries(dir), before);
	remove_tree(dir);
	remove_tree(bad);
}

/* --- which tensor --- */

TEST(a_blob_of_each_rank_wants_a_rank)
{
	SHOWN_IS(2, "cat", checkpoint(0), "blob/rng");
	SHOWN_IS(10, "cat", checkpoint(0), "rng", "--rank", "9");
	RUN_IS(2, "cat", checkpoint(0), "rng", "--rank", "x");
	SHOWN_IS(2, "cat", checkpoint(0), "model/embed.weight", "--rank", "0");
	RUN_IS(0, "cat", checkpoint(0), "rng", "--rank", "3", "--json");
	json_t *j = json_out("ckptd.cat/1");

	assert_json_has(j, "{'rank':3, 'bytes':121}");
	json_decref(j);
}

TEST(a_name_of_two_tensors_lists_them)
{
	SHOWN_IS(2, "cat", made, "w");
	RUN_IS(0, "cat", made, "optim/w");
	SHOWN_IS(10, "cat", checkpoint(0), "model/embed.weigth");
	SHOWN_IS(2, "cat", checkpoint(0));
	RUN_IS(10, "cat", path_of("%s/none", top), "w");
	RUN_IS(2, "cat", made, "model/w", "--npy", "--stats");
	RUN_IS(2, "cat", made, "model/w", "--npy", "--json");
	assert_json_error(2);
}

/* --- statistics --- */

static void check_stats(const json_t *j, const struct naive *t)
{
	const json_t *s = member(j, "stats", JSON_OBJECT);

	assert_int_equal(number(j, "elements"), t->count);
	assert_int_equal(number(s, "finite_count"), t->finite);
	assert_int_equal(number(s, "zero_count"), t->zeros);
	assert_int_equal(number(s, "nan_count"), t->nan);
	assert_int_equal(number(s, "inf_count"), t->inf);
	assert_int_equal(number(s, "neg_inf_count"), t->neg_inf);
	if (!t->finite) {
		assert_json_has(s, "{'min':null, 'mean':null}");
		return;
	}
	assert_true(real(s, "min") == t->min);
	assert_true(real(s, "max") == t->max);
	if (isfinite((double)t->mean) && fabsl(t->mean) > 1e-6L * fmaxl(fabs(t->min), fabs(t->max)))
		assert_true(near_to(real(s, "mean"), t->mean));
	if (isfinite((double)t->std))
		assert_true(near_to(real(s, "std"), t->std));
}

TEST(statistics_are_what_one_by_one_gives)
{
	struct sample s;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	for (uint32_t i = 0; i < s.decl.ntensor; i++) {
		const struct table_tensor *x = &s.decl.tensor[i];
		struct slice all;
		struct naive want;
		uint8_t *p;
		json_t *j;

		if (x->rank != TABLE_NONE)
			continue;
		assert_int_equal(slice_parse(NULL, x->ndim, x->shape, &all, NULL), 0);
		p = truth(x, &all, 10);
		want = naive_of(x->dtype, p, all.numel);
		free(p);
		j = json_run("ckptd.cat/1", "cat", checkpoint(0), NAME(x), "--stats", "--json");
		check_stats(j, &want);
	}
	sample_free(&s);
}

TEST(what_is_no_number_is_counted_and_left_out)
{
	const json_t *s;
	json_t *j = json_run("ckptd.cat/1", "cat", made, "model/odd", "--stats", "--json");

	s = member(j, "stats", JSON_OBJECT);
	assert_json_has(
		s,
		"{'nan_count':2, 'inf_count':1, 'neg_inf_count':1, 'zero_count':2, 'finite_count':4, 'min':-3.0, 'max':5.0, 'mean':0.5}");
	SHOWN_IS(0, "cat", made, "model/odd", "--stats");
	/* Integers keep all their digits, and doubles at the end of their range their mean. */
	SHOWN_IS(0, "cat", made, "model/whole", "--stats");
	j = json_run("ckptd.cat/1", "cat", made, "model/big", "--stats", "--json");
	s = member(j, "stats", JSON_OBJECT);
	assert_true(fabs(real(s, "mean") / 1.5e308 - 1) < 1e-12);
	assert_true(fabs(real(s, "std") / 0.1e308 - 1) < 1e-12);
}

TEST(nothing_and_a_single_value_pass_through_everything)
{
	json_t *j;
	uint64_t v;

	RUN_IS(0, "cat", checkpoint(0), "model/nothing");
	assert_int_equal(got.out_len, 0);
	RUN_IS(0, "cat", checkpoint(0), "model/nothing", "--npy");
	assert_int_equal(got.out_len, 128);
	j = json_run("ckptd.cat/1", "cat", checkpoint(0), "model/nothing", "--stats", "--json");
	assert_int_equal(number(member(j, "stats", JSON_OBJECT), "finite_count"), 0);
	assert_true(json_is_null(json_object_get(member(j, "stats", JSON_OBJECT), "min_text")));
	RUN_IS(0, "cat", checkpoint(0), "optim/step");
	assert_int_equal(got.out_len, 8);
	memcpy(&v, got.out, 8);
	SHOWN_IS(0, "cat", checkpoint(0), "optim/step", "--stats");
	SHOWN_IS(2, "cat", checkpoint(0), "optim/step", "--slice", ":");
}

/* --- terminals, pipes, programs --- */

TEST(a_terminal_gets_a_few_values_and_never_bytes)
{
	SHOWN_IS(0, "cat", made, "model/w");
	SHOWN_IS(0, "cat", made, "model/wide");
	SHOWN_IS(0, "cat", made, "model/wide", "--slice", "3,:2");
	SHOWN_IS(0, "cat", made, "model/one");
	SHOWN_IS(2, "cat", made, "model/w", "--npy");
	assert_null(strstr(got.out, "NUMPY"));
}

TEST(a_preview_of_any_shape_is_small)
{
	struct preview p;
	uint64_t shape[CKPT_DIMS_MAX];
	struct arena a = { 0 };
	struct indices x;

	random_state = 3;
	for (int i = 0; i < 300; i++) {
		uint32_t ndim = (uint32_t)rnd(CKPT_DIMS_MAX + 1);
		uint64_t all = 1;

		for (uint32_t d = 0; d < ndim; d++) {
			shape[d] = rnd(3) ? rnd(12) : rnd(1u << 30);
			all = all > 1u << 20 ? all : all * shape[d];
		}
		uint32_t grain = ndim && shape[ndim - 1] % 2 == 0 ? 2 : 1;

		preview_choose(ndim, shape, grain, &p);
		if (ndim) {
			assert_int_equal(p.head[ndim - 1] % grain, 0);
			assert_int_equal(p.tail[ndim - 1] % grain, 0);
		}
		assert_true(p.numel <= PREVIEW_MAX);
		assert_true(all > PREVIEW_ALL || all == 0 || p.numel == all);
		for (uint32_t d = 0; d < ndim; d++) {
			assert_true(p.head[d] + p.tail[d] <= shape[d]);
			assert_int_equal(preview_indices(&p, d, 5, &a, &x), 0);
			assert_int_equal(x.total, p.head[d] + p.tail[d]);
			assert_int_equal(indices_check(&x, shape[d] + 5, NULL), 0);
		}
	}
	arena_free(&a);
}

TEST(a_reader_that_goes_away_ends_it_without_a_word)
{
	char *argv[] = { (char *)"ckptctl", (char *)"cat", (char *)checkpoint(0),
			 (char *)"model/embed.weight" };
	char *err_text;
	size_t err_len;
	FILE *out, *err = open_memstream(&err_text, &err_len);
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	close(fd[0]);
	signal(SIGPIPE, SIG_IGN);
	out = fdopen(fd[1], "w");
	assert_int_equal(cli_run(4, argv, out, err), 128 + SIGPIPE);
	signal(SIGPIPE, SIG_DFL);
	fclose(out);
	fclose(err);
	assert_string_equal(err_text, "");
	free(err_text);
}

TEST(a_program_gets_metadata_and_no_values)
{
	json_t *j = json_run("ckptd.cat/1", "cat", made, "model/w", "--slice", "1,:", "--json");

	assert_json_has(j, "{'component':'model', 'name':'w', 'dtype':'F32', 'slice':'[1, :]'}");
	assert_int_equal(count(j, "shape"), 2);
	assert_int_equal(count(j, "result_shape"), 1);
	assert_json_has(j, "{'elements':3, 'bytes':12, 'job':'made', 'stats':null}");
	j = json_run("ckptd.cat/1", "cat", made, "model/w", "-o", path_of("%s/j.npy", top),
		     "--json");
	assert_string_equal(string(j, "destination"), path_of("%s/j.npy", top));
	assert_int_equal(number(j, "file_bytes"), 128 + 24);
	assert_string_equal(string(j, "npy_descr"), "<f4");
	unlink(path_of("%s/j.npy", top));
}

static int make_more(void **state)
{
	static const float odd[] = { NAN, 0, -0.0f, INFINITY, -INFINITY, 5, -3, NAN };
	static const int64_t whole[] = { -INT64_MAX, 3, INT64_MAX - 1 };
	static const double big[] = { 1.6e308, 1.4e308, 1.6e308, 1.4e308 };
	static const float w[] = { 0, 1, 2, 3, 4, 5 };
	static const uint8_t one = 7;
	static int16_t wide[1000];
	const struct made all[] = { { "model", "odd", CKPT_F32, 1, { 8 }, odd, 0 },
				    { "model", "whole", CKPT_I64, 1, { 3 }, whole, 0 },
				    { "model", "big", CKPT_F64, 1, { 4 }, big, 0 },
				    { "model", "w", CKPT_F32, 2, { 2, 3 }, w, 0 },
				    { "optim", "w", CKPT_F32, 2, { 2, 3 }, w, 0 },
				    { "model", "wide", CKPT_I16, 2, { 25, 40 }, wide, 0 },
				    { "model", "one", CKPT_U8, 0, { 0 }, &one, 0 } };

	if (make_all(state))
		return -1;
	for (int16_t i = 0; i < 1000; i++)
		wide[i] = i;
	made = strdup(make_made(path_of("%s/made", top), "made", 1, all, ARRAY_LEN(all)));
	return 0;
}

UNIT(.group_setup = make_more, .group_teardown = drop_all);
