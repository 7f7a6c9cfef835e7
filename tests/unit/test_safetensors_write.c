/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_safetensors_write.c - headers of safetensors files against bytes written down here, against
 * files that the reference library (safetensors 0.8.0) wrote, and against a strict reader.
 * tests/vectors/safetensors holds such files.
 */
#include "ckpt/base/dtype.h"
#include "formats/safetensors/safetensors.h"
#include "tests/lib/row.h"
#include "tests/lib/strict_safetensors.h"
#include "tests/lib/unit.h"

static struct arena arena;
static struct safetensors_head head;
static struct ckpt_err err;

static int setup(void **state)
{
	(void)state;
	memset(&head, 0, sizeof head);
	memset(&err, 0, sizeof err);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	arena_free(&arena);
	return 0;
}

static void assert_head(const char *text)
{
	size_t n = strlen(text);

	assert_int_equal(head.len, 8 + n);
	assert_int_equal(le64_get(*(const le64 *)head.bytes), n);
	if (memcmp((const char *)head.bytes + 8, text, n))
		fail_msg("%.*s\nis not\n%s", (int)n, (const char *)head.bytes + 8, text);
}

static void assert_refused(int rc, const char *part)
{
	assert_int_equal(rc, -EMEDIUMTYPE);
	if (!strstr(err.msg, part))
		fail_msg("\"%s\" is not in: %s", part, err.msg);
}

TEST(a_header_is_these_bytes)
{
	const uint64_t a[] = { 2, 3 }, b[] = { 5 }, none[] = { 0, 7 };
	const struct safetensors_meta meta[] = { { "format", "pt" }, { "step", "12" } };
	struct safetensors_tensor x[] = {
		{ .name = "z", .dtype = CKPT_U8, .ndim = 1, .shape = b },
		{ .name = "b", .dtype = CKPT_F32, .ndim = 2, .shape = a },
		{ .name = "a", .dtype = CKPT_F32, .ndim = 2, .shape = none },
		{ .name = "n", .dtype = CKPT_I64 },
	};

	assert_int_equal(safetensors_make(x, 4, meta, 2, 8, &arena, &head, NULL, &err), 0);
	assert_head("{\"__metadata__\":{\"format\":\"pt\",\"step\":\"12\"},"
		    "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
		    "\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
		    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
		    "\"z\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[32,37]}}   ");
	assert_int_equal(x[0].off, head.len + 32);
	assert_int_equal(x[1].off, head.len + 8);
	assert_int_equal(x[1].bytes, 24);
	assert_int_equal(x[2].bytes, 0);
	assert_int_equal(x[3].off, head.len);
	assert_int_equal(head.file_bytes, head.len + 37);
}

TEST(no_tensors_and_no_metadata_is_a_file_too)
{
	assert_int_equal(safetensors_make(NULL, 0, NULL, 0, 8, &arena, &head, NULL, &err), 0);
	assert_head("{}      ");
	assert_int_equal(head.file_bytes, 16);
}

TEST(names_are_escaped_as_the_reference_does)
{
	struct safetensors_tensor x[] = {
		{ .name = "q\"\\/\b\f\n\r\t\x01\x1f\x7f\xce\xb2", .dtype = CKPT_U8 },
	};

	assert_int_equal(safetensors_make(x, 1, NULL, 0, 8, &arena, &head, NULL, &err), 0);
	assert_head("{\"q\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xce\xb2\":"
		    "{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}      ");
}

TEST(data_begin_on_multiples_of_eight_and_elements_on_their_size)
{
	char name[40];

	for (uint32_t n = 1; n < 20; n++) {
		struct safetensors_tensor x[CKPT_F4] = { 0 };
		char names[CKPT_F4][8];
		const uint64_t shape[] = { 3 };
		uint32_t k = 0;

		memset(name, 'x', n);
		name[n] = 0;
		for (uint32_t d = 1; d <= CKPT_F4; d++) {
			if (!safetensors_dtype(d))
				continue;
			snprintf(names[k], sizeof names[k], "t%u", d);
			x[k] = (struct safetensors_tensor){
				k ? names[k] : name, d, 1, shape, 0, 0
			};
			k++;
		}
		assert_int_equal(safetensors_make(x, k, NULL, 0, 8, &arena, &head, NULL, &err), 0);
		assert_int_equal(head.len % 8, 0);
		for (uint32_t i = 0; i < k; i++)
			assert_int_equal(x[i].off % MIN(dtype_bytes(x[i].dtype), 8u), 0);
	}
}

/* --- files of the reference library --- */

/* What the library wrote, through the strict reader and our writer, is what the library wrote. */
TEST(the_same_tensors_give_the_header_that_the_library_wrote)
{
	static const char *const names[] = { "names", "empty", "model_tied", "numpy" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct safetensors_tensor x[64];
		struct safetensors_meta meta[8];
		struct strict_file f;
		char path[128], why[200];

		snprintf(path, sizeof path, "tests/vectors/safetensors/%s.safetensors", names[i]);
		if (!strict_load(path, &f, why))
			fail_msg("%s: %s", path, why);
		assert_true(f.ntensor <= ARRAY_LEN(x) && f.nmeta <= ARRAY_LEN(meta));
		/* Turned round, so that the order is the writer's work. */
		for (uint32_t k = 0; k < f.ntensor; k++) {
			const struct strict_tensor *y = &f.tensor[f.ntensor - 1 - k];

			x[k] = (struct safetensors_tensor){ y->name, dtype_of_name(y->dtype),
							    y->ndim, y->shape,
							    0,	     0 };
			assert_int_not_equal(x[k].dtype, CKPT_F4);
		}
		for (uint32_t k = 0; k < f.nmeta; k++)
			meta[k] = (struct safetensors_meta){ f.meta[k].key, f.meta[k].value };
		assert_int_equal(
			safetensors_make(x, f.ntensor, meta, f.nmeta, 8, &arena, &head, NULL, &err),
			0);
		assert_int_equal(head.len, f.data);
		assert_int_equal(head.file_bytes, f.len);
		assert_memory_equal(head.bytes, f.bytes, f.data);
		for (uint32_t k = 0; k < f.ntensor; k++)
			assert_int_equal(x[k].off, f.data + f.tensor[f.ntensor - 1 - k].begin);
		strict_free(&f);
	}
}

TEST(dtypes_come_in_the_order_of_the_library)
{
	struct safetensors_tensor x[64];
	struct strict_file f, g;
	char why[200];
	uint8_t *file;
	uint64_t packed[CKPT_DIMS_MAX];
	uint32_t n = 0, seen = 0;

	if (!strict_load("tests/vectors/safetensors/dtypes.safetensors", &f, why))
		fail_msg("%s", why);
	for (uint32_t i = f.ntensor; i-- > 0;) {
		const struct strict_tensor *y = &f.tensor[i];
		uint32_t dtype = dtype_of_name(y->dtype);

		seen |= 1u << dtype;
		if (dtype)
			x[n++] = (struct safetensors_tensor){ y->name,	dtype, y->ndim,
							      y->shape, 0,     0 };
		/* The file counts values of 4 bits, we the bytes of two. */
		if (dtype != CKPT_F4)
			continue;
		memcpy(packed, y->shape, y->ndim * sizeof *packed);
		packed[y->ndim - 1] /= 2;
		x[n - 1].shape = packed;
	}
	for (uint32_t d = CKPT_BOOL; d <= CKPT_F4; d++)
		assert_int_equal(seen >> d & 1, d != CKPT_C128 && d != CKPT_C32);
	assert_int_equal(safetensors_make(x, n, NULL, 0, 8, &arena, &head, NULL, &err), 0);
	file = calloc(1, head.file_bytes);
	memcpy(file, head.bytes, head.len);
	if (!strict_parse(file, head.file_bytes, &g, why))
		fail_msg("%s", why);
	assert_int_equal(g.ntensor, n);
	for (uint32_t i = 0, k = 0; i < f.ntensor; i++)
		if (dtype_of_name(f.tensor[i].dtype)) {
			const struct strict_tensor *a = &f.tensor[i], *b = &g.tensor[k++];

			assert_string_equal(a->name, b->name);
			assert_string_equal(a->dtype, b->dtype);
			assert_int_equal(a->ndim, b->ndim);
			assert_memory_equal(a->shape, b->shape, a->ndim * sizeof *a->shape);
			assert_int_equal(a->end - a->begin, b->end - b->begin);
		}
	free(file);
	strict_free(&g);
	strict_free(&f);
}

/* --- what the format refuses --- */

TEST(everything_that_does_not_fit_is_listed_at_once)
{
	const uint64_t big[] = { UINT64_C(1) << 62, 4 };
	const struct safetensors_meta meta[] = { { "k", "v" }, { "k", "w" }, { "bad", "\xff" } };
	struct safetensors_tensor x[] = ROW(
		{ .name = "model/c", .dtype = CKPT_C128 }, { .name = "good", .dtype = CKPT_F32 },
		{ .name = "model/unknown", .dtype = 99 }, { .name = "zero", .dtype = 0 },
		{ .name = "latin\xe9", .dtype = CKPT_F32 },
		{ .name = "__metadata__", .dtype = CKPT_F32 },
		{ .name = "twice", .dtype = CKPT_F32 }, { .name = "twice", .dtype = CKPT_I32 },
		{ .name = "twice", .dtype = CKPT_I32 },
		{ .name = "huge", .dtype = CKPT_F32, .ndim = 2, .shape = big },
		{ .name = "model/half", .dtype = CKPT_C32 }, { .name = "alone", .dtype = CKPT_F4 });
	struct ckpt_errlist list = { .code = -EMEDIUMTYPE };

	assert_refused(safetensors_make(x, ARRAY_LEN(x), meta, 3, 8, &arena, &head, &list, &err),
		       "tensor model/c: the format has no dtype C128");
	assert_int_equal(list.n, 11);
	assert_non_null(strstr(list.text, "tensor model/half: the format has no dtype C32"));
	assert_non_null(strstr(list.text, "tensor alone: F4 without a dimension"));
	assert_non_null(strstr(list.text, "tensor model/unknown: the format has no dtype"));
	assert_non_null(strstr(list.text, "tensor zero: the format has no dtype"));
	assert_non_null(strstr(list.text, "tensor latin?: its name is no UTF-8"));
	assert_non_null(strstr(list.text, "tensor __metadata__: the format uses this name"));
	assert_non_null(strstr(list.text, "tensor twice: two or more"));
	assert_non_null(strstr(list.text, "tensor huge: its size"));
	assert_non_null(strstr(list.text, "metadata k: the key is there twice"));
	assert_non_null(strstr(list.text, "metadata bad: this is no UTF-8"));
	assert_null(head.bytes);
	ckpt_errlist_free(&list);
}

TEST(only_utf8_is_a_name)
{
	static const char *const bad[] = { "\x80",
					   "\xc0\x80",
					   "\xc1\xbf",
					   "\xc3",
					   "\xe0\x9f\xbf",
					   "\xed\xa0\x80",
					   "\xe2\x82",
					   "\xf0\x8f\xbf\xbf",
					   "\xf4\x90\x80\x80",
					   "\xf5\x80\x80\x80",
					   "\xff",
					   "a\xe2\x28\xa1" };
	static const char *const good[] = { "",
					    "\xc2\x80",
					    "\xe0\xa0\x80",
					    "\xed\x9f\xbf",
					    "\xee\x80\x80",
					    "\xf0\x90\x80\x80",
					    "\xf4\x8f\xbf\xbf",
					    "\x7f" };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct safetensors_tensor x = { .name = bad[i], .dtype = CKPT_U8 };

		assert_refused(safetensors_make(&x, 1, NULL, 0, 8, &arena, &head, NULL, &err),
			       "no UTF-8");
	}
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct safetensors_tensor x = { .name = good[i], .dtype = CKPT_U8 };

		assert_int_equal(safetensors_make(&x, 1, NULL, 0, 8, &arena, &head, NULL, &err), 0);
	}
}

TEST(sizes_that_overflow_together_are_refused)
{
	const uint64_t big[] = { UINT64_C(1) << 62 };
	struct safetensors_tensor x[] = { { "a", CKPT_U8, 1, big, 0, 0 },
					  { "b", CKPT_U8, 1, big, 0, 0 },
					  { "c", CKPT_U8, 1, big, 0, 0 },
					  { "d", CKPT_U8, 1, big, 0, 0 } };

	assert_int_equal(safetensors_make(x, 1, NULL, 0, 8, &arena, &head, NULL, &err), 0);
	for (uint32_t n = 2; n <= 4; n++)
		assert_refused(safetensors_make(x, n, NULL, 0, 8, &arena, &head, NULL, &err),
			       "do not fit into one file");
}

TEST(a_header_above_the_limit_is_refused)
{
	const uint32_t n = 101, len = 1000000;
	struct safetensors_tensor *x = calloc(n, sizeof *x);
	char *text = malloc((size_t)len + 1);

	/* Each name is a tail of one text: all differ, and early. */
	for (uint32_t i = 0; i < len; i++)
		text[i] = (char)('a' + i * 7 % 26);
	text[len] = 0;
	for (uint32_t i = 0; i < n; i++)
		x[i] = (struct safetensors_tensor){ text + i, CKPT_U8, 0, NULL, 0, 0 };
#if !defined(__SANITIZE_ADDRESS__) /* 100 MB of it */
	assert_int_equal(safetensors_make(x, 99, NULL, 0, 8, &arena, &head, NULL, &err), 0);
#endif
	assert_refused(safetensors_make(x, n, NULL, 0, 8, &arena, &head, NULL, &err),
		       "the format takes 100000000");
	free(text);
	free(x);
}

/* The reader that the other tests trust refuses what is not right. */
TEST(the_strict_reader_refuses_every_wrong_file)
{
	static const struct {
		const char *json;
		uint64_t data;
		bool good;
	} file[] = {
#define E(rest) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" rest
		{ E("[0,8]}}"), 8, true },
		{ E("[0,8]}}   "), 8, true },
		{ " " E("[0,8]}}"), 8, false },
		{ E("[0,8]}}x"), 8, false },
		{ E("[0,8]}}"), 9, false },
		{ E("[0,8]}}"), 7, false },
		{ E("[0,4]}}"), 4, false },
		{ E("[4,12]}}"), 12, false },
		{ E("[8,0]}}"), 8, false },
		{ E("[0,8.0]}}"), 8, false },
		{ E("[0,08]}}"), 8, false },
		{ E("[0,8],\"x\":1}}"), 8, false },
		{ E("[0,8]},\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}"), 8,
		  false },
		{ E("[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}"), 8,
		  true },
		{ E("[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}"), 12,
		  false },
		{ E("[0,8]},\"b\":{\"dtype\":\"F99\",\"shape\":[0],\"data_offsets\":[8,8]}}"), 8,
		  false },
		{ "{\"__metadata__\":{\"a\":1}}", 0, false },
		{ "{\"__metadata__\":{\"a\":\"\\u00e9\"}}", 0, true },
		{ "{\"__metadata__\":{\"a\":\"\xe9\"}}", 0, false },
		{ "{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, false },
#undef E
	};

	for (size_t i = 0; i < ARRAY_LEN(file); i++) {
		uint8_t bytes[512] = { 0 };
		size_t n = strlen(file[i].json);
		struct strict_file f;
		char why[200];
		bool good;

		bytes[0] = (uint8_t)n;
		memcpy(bytes + 8, file[i].json, n);
		good = strict_parse(bytes, 8 + n + file[i].data, &f, why);
		if (good != file[i].good)
			fail_msg("%s + %d: %s", file[i].json, (int)file[i].data, why);
		strict_free(&f);
	}
}

UNIT(.setup = setup, .teardown = teardown);
