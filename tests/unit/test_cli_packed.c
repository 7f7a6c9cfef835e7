/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_packed.c - what ckptctl says of elements that are two values (F4) or of no other
 * program's type (C32, FNUZ), and of blobs whose bytes mean something.
 */
#include "tests/lib/cli_rig.h"
#include "tests/lib/strict_safetensors.h"
#include "tests/lib/row.h"
#include "ckpt/table/shown.h"
#include <math.h>

static const char *made, *other; /* step 1 of two jobs, which differ in two halves of bytes */

/* [2, 3, 8] values, 24 bytes: value number i of row (a, b) is (i + 3 b + 5 a) % 16. */
static uint8_t q_bytes[24], q_other[24], big_bytes[3000];

static const char notes[] = "line one\n\033[31mred\a\0zero \xff\xc3 bad utf-8\n"
			    "\xe2\x80\xae turned \xc3\xa9\tend";

static const char *number_text(uint32_t v)
{
	static const char *const text[] = { "0",  "0.5",  "1",	"1.5",	"2",  "3",  "4",  "6",
					    "-0", "-0.5", "-1", "-1.5", "-2", "-3", "-4", "-6" };

	return text[v];
}

TEST(shapes_of_f4_are_doubled_wherever_they_are_shown)
{
	const json_t *list, *map, *x;
	json_t *j = json_run("ckptd.show/1", "show", made, "model/q", "--json");

	x = json_array_get(member(j, "tensors", JSON_ARRAY), 0);
	assert_json_has(x, "{'dtype':'F4', 'shape':[2,3,8], 'bytes':24, 'media':null}");
	x = json_array_get(member(x, "pieces", JSON_ARRAY), 0);
	assert_json_has(x, "{'bytes':24, 'index':[[[0,2]],[[0,3]],[[0,8]]]}");
	j = json_run("ckptd.show/1", "show", made, "--json");
	list = member(j, "groups", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(list); i++) {
		x = json_array_get(list, i);
		if (!strcmp(string(x, "dtype"), "F4"))
			assert_json_has(x, "{'elements':6060, 'bytes':3030, 'tensor_count':4}");
	}
	j = json_run("ckptd.show/1", "show", made, "--map", "model/q", "--json");
	map = member(j, "map", JSON_OBJECT);
	assert_json_has(map, "{'shape':[2,3,8], 'bytes':24}");
	x = json_array_get(member(map, "shares", JSON_ARRAY), 0);
	assert_json_has(x, "{'elements':48, 'index':[[[0,2]],[[0,3]],[[0,8]]]}");
	j = json_run("ckptd.stats/1", "stats", made, "--json");
	list = member(j, "dtypes", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(list); i++) {
		x = json_array_get(list, i);
		if (!strcmp(string(x, "dtype"), "F4"))
			assert_json_has(x, "{'elements':6060, 'bytes':3030}");
	}
	SHOWN_IS(0, "show", made, "model/q");
	SHOWN_IS(0, "show", made, "--map", "model/q");
	SHOWN_IS(0, "stats", made);
}

/* Runs that repeat, too: no index of an element is shown twice, and none is lost. */
TEST(an_index_set_of_f4_is_shown_as_the_values_of_its_bytes)
{
	const struct run comb[2] = { { .start = 1, .len = 2, .stride = 5, .count = 3 },
				     { .start = 20, .len = 1, .stride = 1, .count = 1 } },
			 rows = { .start = 4, .len = 3, .stride = 3, .count = 1 };
	const struct indices dim[2] = { { 1, 3, &rows }, { 2, 7, comb } };
	const struct indexset set = { .ndim = 2, .numel = 21, .dim = dim }, *now;
	struct table_tensor x = { .dtype = CKPT_F4, .ndim = 2 };
	bool want[64] = { 0 }, have[64] = { 0 };
	struct arena a = { 0 };

	now = shown_set(&x, &set, &a);
	assert_non_null(now);
	assert_int_equal(now->numel, 42);
	assert_int_equal(now->dim[1].total, 14);
	assert_memory_equal(now->dim[0].run, &rows, sizeof rows);
	assert_int_equal(indices_check(&now->dim[1], 64, NULL), 0);
	for (int i = 0; i < 2; i++)
		for (uint64_t k = 0; k < comb[i].count; k++)
			for (uint64_t j = 0; j < comb[i].len; j++) {
				uint64_t at = comb[i].start + k * comb[i].stride + j;

				want[2 * at] = want[2 * at + 1] = true;
			}
	for (uint32_t i = 0; i < now->dim[1].n; i++) {
		const struct run *r = &now->dim[1].run[i];

		for (uint64_t k = 0; k < r->count; k++)
			for (uint64_t j = 0; j < r->len; j++)
				have[r->start + k * r->stride + j] = true;
	}
	assert_memory_equal(have, want, sizeof have);
	x.dtype = CKPT_U8;
	assert_ptr_equal(shown_set(&x, &set, &a), &set);
	arena_free(&a);
}

TEST(cat_of_f4_gives_its_bytes_and_counts_its_values)
{
	const json_t *x;
	double sum = 0;
	json_t *j;

	RUN_IS(0, "cat", made, "model/q");
	assert_int_equal(got.out_len, 24);
	assert_memory_equal(got.out, q_bytes, 24);
	RUN_IS(0, "cat", made, "model/q", "--slice", "1,0:2,2:-2");
	assert_int_equal(got.out_len, 4);
	assert_memory_equal(got.out, q_bytes + 13, 2);
	assert_memory_equal(got.out + 2, q_bytes + 17, 2);
	RUN_IS(0, "cat", made, "model/q", "--npy", "--slice", "0,:,:2");
	assert_int_equal(got.out_len, 128 + 3);
	assert_non_null(strstr(got.out + 10, "{'descr': '|u1', 'fortran_order': False, "
					     "'shape': (3, 1), }"));
	j = json_run("ckptd.cat/1", "cat", made, "model/q", "--slice", "1,0:2,2:-2", "--json");
	assert_json_has(j, "{'shape':[2,3,8], 'slice':'[1, 0:2, 2:6]', 'result_shape':[2,4],"
			   " 'elements':8, 'bytes':4, 'media':null}");
	RUN_IS(2, "cat", made, "model/q", "--slice", ":,:,1:3");
	RUN_IS(2, "cat", made, "model/q", "--slice", "0,0,0", "--stats");
	for (uint32_t i = 0; i < 48; i++)
		sum += strtod(number_text(q_bytes[i / 2] >> 4 * (i % 2) & 15), NULL);
	RUN_IS(0, "cat", made, "model/q", "--stats", "--json");
	j = json_out("ckptd.cat/1");
	x = member(j, "stats", JSON_OBJECT);
	assert_json_has(x, "{'finite_count':48, 'nan_count':0, 'min':-6.0, 'max':6.0}");
	assert_true(fabs(real(x, "mean") - sum / 48) < 1e-12);
	json_decref(j);
}

TEST(a_person_sees_values_of_f4_in_their_order)
{
	SHOWN_IS(0, "cat", made, "model/q");
	for (uint32_t i = 0, at = 0; i < 48; i++) {
		uint32_t v = q_bytes[i / 2] >> 4 * (i % 2) & 15;
		const char *p = strstr(got.out, "[[[") + at, *want = number_text(v);

		p += strspn(p, "[ ,\r\n]");
		if (strncmp(p, want, strlen(want)) || strspn(p + strlen(want), "0123456789."))
			fail_msg("value %u is %.8s, not %s", i, p, want);
		at = (uint32_t)(p + strlen(want) - strstr(got.out, "[[["));
	}
	SHOWN_IS(0, "cat", made, "model/big");
	SHOWN_IS(0, "cat", made, "model/q", "--slice", "1,:,2:6");
	SHOWN_IS(2, "cat", made, "model/q", "--slice", "1,:,1:6");
	SHOWN_IS(2, "cat", made, "model/q", "--slice", "1,2,3");
	SHOWN_IS(0, "cat", made, "model/q", "-o", path_of("%s/q.npy", top));
	SHOWN_IS(0, "cat", made, "model/half", "-o", path_of("%s/half.npy", top));
	SHOWN_IS(0, "cat", made, "model/half");
	SHOWN_IS(0, "cat", made, "model/fnuz");
	unlink(path_of("%s/q.npy", top));
	unlink(path_of("%s/half.npy", top));
}

TEST(diff_counts_values_of_f4_and_names_the_first_by_its_indices)
{
	const json_t *list, *x;
	json_t *j;

	SHOWN_IS(6, "diff", made, other, "--values");
	RUN_IS(6, "diff", made, other, "--values", "--json");
	j = json_out("ckptd.diff/1");
	list = member(j, "differences", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(list); i++) {
		x = json_array_get(list, i);
		if (!strcmp(string(x, "name"), "q")) {
			assert_string_equal(string(x, "kind"), "contents");
			assert_json_has(member(x, "values", JSON_OBJECT),
					"{'elements':48, 'bits_differ_count':2,"
					" 'first_index':[0,1,3]}");
			assert_json_has(member(x, "a", JSON_OBJECT), "{'shape':[2,3,8]}");
		} else if (!strcmp(string(x, "name"), "turned")) {
			/* F4 [4] against U8 [4] in people's numbers: only the dtype differs. */
			assert_string_equal(string(x, "kind"), "dtype");
			assert_true(json_is_null(json_object_get(x, "values")));
		} else if (!strcmp(string(x, "name"), "grown")) {
			/* The same bytes as U8 are half as many values. */
			assert_string_equal(string(x, "kind"), "shape");
		} else {
			fail_msg("%s differs", string(x, "name"));
		}
	}
	assert_int_equal(json_array_size(list), 3);
	json_decref(j);
}

TEST(all_that_safetensors_lacks_is_listed_and_left_out_where_that_is_asked_for)
{
	static const char *const lacks[] = { "model/half", "model/wide" };
	const char *dst = path_of("%s/left.safetensors", top), *src;
	static char wide[32] = "thirty-two bytes are two C128's";
	const struct made all[] = { ROW("model", "q", CKPT_F32, 1, { 6 }, q_bytes, 0),
				    ROW("model", "half", CKPT_C32, 1, { 2 }, q_bytes, 0),
				    ROW("model", "wide", CKPT_C128, 1, { 2 }, wide, 0),
				    ROW("blob", "config", CKPT_U8, 1, { 24 }, q_bytes,
					MADE_BLOB(CKPT_MEDIA_JSON)) };

	src = make_made(path_of("%s/lacks", top), "lacks", 1, all, ARRAY_LEN(all));
	for (int dry = 0; dry < 2; dry++) {
		RUN_IS(CLI_MISFIT, "convert", src, dst, dry ? "-n" : "--check");
		for (size_t i = 0; i < ARRAY_LEN(lacks); i++)
			assert_says(got.err, lacks[i]);
		assert_says(got.err, "--drop-unsupported leaves them out");
		assert_false(exists(dst));
		assert_false(exists(path_of("%s/.left.safetensors.ckptctl-new", top)));
	}
	RUN_IS(CLI_WARNINGS, "convert", src, dst, "--drop-unsupported");
	for (size_t i = 0; i < ARRAY_LEN(lacks); i++)
		assert_says(got.err, lacks[i]);
	RUN_IS(0, "show", "--json", "--tensors", "*", dst);
	assert_says(got.out, "model.q");
	for (size_t i = 0; i < ARRAY_LEN(lacks); i++)
		assert_null(strstr(got.out, lacks[i] + 6));
	RUN_IS(CLI_WARNINGS, "verify", "--data", dst); /* safetensors has no sums */
}

TEST(safetensors_get_the_doubled_shape_and_no_c32)
{
	const char *out = path_of("%s/out", top), *plain;
	struct strict_file f;
	char why[200];
	bool seen = false;
	const struct made all[] = { ROW("model", "q", CKPT_F4, 3, { 2, 3, 4 }, q_bytes, 0),
				    ROW("model", "f", CKPT_F8_E4M3FNUZ, 1, { 24 }, q_bytes, 0) };

	SHOWN_IS(CLI_MISFIT, "export", made, out, "--mesh", "fsdp=1");
	assert_false(exists(out));
	plain = make_made(path_of("%s/plain", top), "plain", 1, all, ARRAY_LEN(all));
	RUN_IS(0, "export", plain, out, "--mesh", "fsdp=1");
	if (!strict_load(path_of("%s/rank-00000.safetensors", out), &f, why))
		fail_msg("%s", why);
	assert_int_equal(f.ntensor, 2);
	for (uint32_t i = 0; i < f.ntensor; i++) {
		const struct strict_tensor *x = &f.tensor[i];

		assert_memory_equal(f.bytes + f.data + x->begin, q_bytes, 24);
		if (strcmp(x->name, "model/q"))
			continue;
		seen = true;
		assert_string_equal(x->dtype, "F4");
		assert_int_equal(x->ndim, 3);
		assert_true(x->shape[0] == 2 && x->shape[1] == 3 && x->shape[2] == 8);
	}
	assert_true(seen);
	strict_free(&f);
	remove_tree(out);
}

TEST(a_blob_says_what_it_is_and_text_is_text_on_a_terminal)
{
	const json_t *list;
	json_t *j = json_run("ckptd.show/1", "show", made, "blob/config", "--json");

	list = member(j, "tensors", JSON_ARRAY);
	assert_json_has(json_array_get(list, 0), "{'media':'json', 'dtype':'U8'}");
	j = json_run("ckptd.cat/1", "cat", made, "blob/notes", "--json");
	assert_json_has(j, "{'media':'text'}");
	SHOWN_IS(0, "show", made, "blob/config");
	SHOWN_IS(0, "show", made, "blob/raw");
	SHOWN_IS(0, "cat", made, "blob/config");
	SHOWN_IS(0, "cat", made, "blob/notes");
	/* Nothing that a terminal obeys comes through, however it is cut. */
	assert_null(memchr(got.out, '\033', got.out_len));
	assert_null(memchr(got.out, '\a', got.out_len));
	SHOWN_IS(0, "cat", made, "blob/notes", "--slice", "0:9");
	SHOWN_IS(0, "cat", made, "blob/raw");
	SHOWN_IS(0, "cat", made, "blob/pickle");
	/* A pipe gets the bytes. */
	RUN_IS(0, "cat", made, "blob/notes");
	assert_non_null(memchr(got.out, '\033', got.out_len));
	assert_int_equal(got.out_len, sizeof notes - 1);
	assert_memory_equal(got.out, notes, sizeof notes - 1);
}

/* Of a long text the first 64 KiB, and how many bytes are missing; no character is cut, neither
 * there nor where a long line is. */
TEST(a_long_text_ends_with_how_much_is_left)
{
	enum { LINE = 3002, LINES = 24 };
	struct made all[2] = {
		ROW("blob", "long", CKPT_U8, 1, { LINE * LINES }, NULL, MADE_BLOB(CKPT_MEDIA_TEXT)),
		ROW("blob", "zeros", CKPT_U8, 1, { LINE * LINES }, NULL,
		    MADE_BLOB(CKPT_MEDIA_TEXT)),
	};
	char *bytes = malloc((size_t)LINE * LINES), *zeros = calloc(LINE, LINES);
	uint64_t seen = 0, lines = 0;
	const char *path, *p;

	for (int i = 0; i < LINE * LINES; i++)
		bytes[i] = i % LINE == LINE - 1 ? '\n'
			   : i % LINE == 0	? 'x'
			   : i % LINE % 2	? "\xc3"[0]
						: "\xa9"[0];
	all[0].bytes = bytes;
	all[1].bytes = zeros;
	path = make_made(path_of("%s/long", top), "long", 1, all, 2);
	setenv("LC_ALL", "C.UTF-8", 1);
	TERMINAL("cat", path, "blob/long");
	assert_int_equal(got.code, 0);
	assert_null(strchr(got.out, '?'));
	for (p = strstr(got.out, "\n\n") + 2; *p != '\033'; p++, seen++)
		lines += *p == '\n';
	/* The last line has an end that was not cut from the blob. */
	assert_int_equal(lines, 65536 / LINE + 1);
	assert_int_equal(seen - 1 + strtoull(strstr(p, "and ") + 4, NULL, 10), LINE * LINES);
	assert_true(seen > 65530);
	TERMINAL("cat", path, "blob/zeros", "--slice=0:2000");
	assert_non_null(strstr(got.out, "\n\n????????"));
	unsetenv("LC_ALL");
	free(bytes);
	free(zeros);
}

static int make_more(void **state)
{
	static const char json[] = "{\n  \"lr\": 0.001,\r\n\t\"name\": \"caf\xc3\xa9\"\n}";
	static const uint16_t half[] = { 0x3c00, 0xc000, 0x3800, 0x0000, 0x7e00, 0x7c00 };
	static const uint8_t fnuz[] = { 0x00, 0x80, 0x7f, 0xff, 0x40, 0x01 };
	static const uint8_t pickle[] = { 0x80, 0x04, '.', 0 };
	static const uint8_t turned[] = { 0, 1, 2, 3 };
	const struct made a[] = {
		ROW("model", "q", CKPT_F4, 3, { 2, 3, 4 }, q_bytes, 0),
		ROW("model", "big", CKPT_F4, 2, { 30, 100 }, big_bytes, 0),
		ROW("model", "half", CKPT_C32, 1, { 3 }, half, 0),
		ROW("model", "fnuz", CKPT_F8_E4M3FNUZ, 1, { 6 }, fnuz, 0),
		ROW("model", "fnuz.small", CKPT_F8_E5M2FNUZ, 1, { 6 }, fnuz, 0),
		ROW("model", "turned", CKPT_F4, 1, { 2 }, turned, 0),
		ROW("model", "grown", CKPT_F4, 1, { 4 }, turned, 0),
		ROW("blob", "config", CKPT_U8, 1, { sizeof json - 1 }, json,
		    MADE_BLOB(CKPT_MEDIA_JSON)),
		ROW("blob", "notes", CKPT_U8, 1, { sizeof notes - 1 }, notes,
		    MADE_BLOB(CKPT_MEDIA_TEXT)),
		ROW("blob", "raw", CKPT_U8, 1, { sizeof pickle }, pickle, MADE_BLOB(CKPT_RAW)),
		ROW("blob", "pickle", CKPT_U8, 1, { sizeof pickle }, pickle,
		    MADE_BLOB(CKPT_MEDIA_PICKLE)),
	};
	struct made b[ARRAY_LEN(a)];

	if (make_top(state))
		return -1;
	for (uint32_t i = 0; i < 48; i++) {
		uint32_t v = (i % 8 + 3 * (i / 8 % 3) + 5 * (i / 24)) % 16;

		q_bytes[i / 2] |= (uint8_t)(v << 4 * (i % 2));
	}
	for (uint32_t i = 0; i < sizeof big_bytes; i++)
		big_bytes[i] = (uint8_t)(i * 7);
	memcpy(q_other, q_bytes, sizeof q_other);
	q_other[5] ^= 0x10; /* value [0, 1, 3] */
	q_other[20] ^= 0x0f;
	memcpy(b, a, sizeof a);
	b[0].bytes = q_other;
	b[5].dtype = CKPT_U8;
	b[5].shape[0] = 4;
	b[6].dtype = CKPT_U8;
	made = strdup(make_made(path_of("%s/made", top), "made", 1, a, ARRAY_LEN(a)));
	other = strdup(make_made(path_of("%s/made", top), "other", 1, b, ARRAY_LEN(b)));
	return 0;
}

UNIT(.group_setup = make_more, .group_teardown = drop_all);
