/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_safetensors_read.c - what the reader of safetensors makes of one file, of directories with
 * and without an index, and of shards; and what it refuses. What the reference library (safetensors
 * 0.8.0) wrote is read beside a strict reader that was written without it.
 */
#include "ckpt/base/dtype.h"
#include "formats/safetensors/safetensors_format.h"
#include "tests/lib/bytedir.h"
#include "tests/lib/strict_safetensors.h"
#include "tests/lib/unit.h"

#define HUGE_HEADER 100000001u /* bytes: one more than the format allows */

static struct bytedir dir;
static struct checkpoint *k;
static struct ckpt_err err;
static char faults[2000];

static int setup(void **state)
{
	err = (struct ckpt_err){ 0 };
	faults[0] = 0;
	return 0;
}

static int teardown(void **state)
{
	checkpoint_free(k);
	k = NULL;
	assert_int_equal(dir.nopen, 0);
	bytedir_clear(&dir);
	return 0;
}
UNIT(.setup = setup, .teardown = teardown);

static void on_fault(void *arg, const struct format_fault *f)
{
	size_t n = strlen(faults);

	snprintf(faults + n, sizeof faults - n, "%s %s\n", f->kind, f->file);
}

static int opened(const char *entry)
{
	struct source_dir d = bytedir_source(&dir, entry);

	checkpoint_free(k);
	k = NULL;
	err = (struct ckpt_err){ 0 };
	return format_safetensors.open(&(struct format_open){ .dir = &d, .fault = on_fault }, &k,
				       &err);
}

static int probed(const char *entry)
{
	struct source_dir d = bytedir_source(&dir, entry);
	char looked[FORMAT_LOOKED] = "";
	int rc = format_safetensors.probe(&d, looked);

	assert_true(looked[0]);
	return rc;
}

static void refused(int code, const char *why)
{
	int rc = opened(NULL);

	if (rc != code || err.code != code)
		fail_msg("%d (%s) is not %d (%s)", rc, err.msg, code, why);
	assert_null(k);
	if (!strstr(err.msg, why))
		fail_msg("\"%s\" is not in: %s", why, err.msg);
	assert_true(faults[0]);
}

static const struct table_tensor *tensor(const char *component, const char *name)
{
	uint32_t id = table_find(&k->table, component, name, TABLE_NONE);

	if (id == TABLE_NONE)
		fail_msg("there is no tensor %s/%s", component, name);
	return &k->table.tensor[id];
}

static void shape_is(const struct table_tensor *x, uint32_t ndim, uint64_t a, uint64_t b)
{
	assert_int_equal(x->ndim, ndim);
	if (ndim > 0)
		assert_int_equal(x->shape[0], a);
	if (ndim > 1)
		assert_int_equal(x->shape[1], b);
}

/* Every byte of each file is in one range. */
static void ranges_tile(void)
{
	for (uint32_t i = 0; i < k->nfile; i++) {
		const struct format_file *f = &k->file[i];
		uint64_t at = 0;

		for (uint64_t j = 0; j < f->nrange; at += f->range[j++].len)
			assert_int_equal(f->range[j].off, at);
		assert_int_equal(at, f->file_bytes);
		assert_int_equal(k->table.place[i].bytes, f->file_bytes);
	}
}

/* --- one file --- */

static void like_the_strict_one(const char *path)
{
	struct strict_file f;
	char why[200];

	if (!strict_load(path, &f, why))
		fail_msg("%s: %s", path, why);
	bytedir_clear(&dir);
	bytedir_add(&dir, "x.safetensors", f.bytes, f.len);
	assert_ok_err(opened("x.safetensors"), &err);
	assert_int_equal(k->table.ntensor, f.ntensor);
	for (uint32_t i = 0; i < f.ntensor; i++) {
		const struct strict_tensor *x = &f.tensor[i];
		const struct table_tensor *y = tensor("", x->name);
		uint32_t id = (uint32_t)(y - k->table.tensor), at = k->table.first[id];
		const struct table_piece *p = &k->table.piece[at];

		assert_string_equal(dtype_name(y->dtype), x->dtype);
		assert_int_equal(y->ndim, x->ndim);
		for (uint32_t d = 0; d < x->ndim; d++)
			assert_int_equal(y->shape[d] *
						 (d + 1 == x->ndim ? dtype_values(y->dtype) : 1),
					 x->shape[d]);
		assert_int_equal(k->table.first[id + 1] - at, x->end > x->begin);
		if (x->end == x->begin)
			continue;
		assert_int_equal(p->off, f.data + x->begin);
		assert_int_equal(p->len, x->end - x->begin);
		assert_int_equal(p->set.numel, y->numel);
		assert_false(p->fp_known || y->fp_known);
	}
	ranges_tile();
	assert_int_equal(k->has, 0);
	strict_free(&f);
}

TEST(files_of_the_reference_library_have_their_tensors_where_they_are)
{
	like_the_strict_one("tests/vectors/safetensors/dtypes.safetensors");
	like_the_strict_one("tests/vectors/safetensors/empty.safetensors");
	like_the_strict_one("tests/vectors/safetensors/model_tied.safetensors");
	like_the_strict_one("tests/vectors/safetensors/names.safetensors");
	like_the_strict_one("tests/vectors/safetensors/numpy.safetensors");
}

TEST(headers_that_the_writer_never_writes_are_read)
{
	static const char *const good[] = {
		/* any order of tensors, members that nobody knows, escapes, blanks around */
		" \n{\"b\":{\"data_offsets\":[4,8],\"x\":{\"y\":[1.5,null]},\"shape\":[1],\"dtype\":\"F32\"},"
		"\"\\u0061\":{\"dt\\u0079pe\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}} \t\n",
		/* metadata last, or null */
		"{\"a\":{\"dtype\":\"I64\",\"shape\":[1,1],\"data_offsets\":[0,8]},\"__metadata__\":{\"k\":\"v\"}}",
		"{\"__metadata__\":null,\"a\":{\"dtype\":\"I64\",\"shape\":[1,1],\"data_offsets\":[0,8]}}",
		/* empty ones between others, in any order of the header */
		"{\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
		"\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
	};

	for (uint32_t i = 0; i < ARRAY_LEN(good); i++) {
		bytedir_clear(&dir);
		bytedir_safetensors(&dir, "m.safetensors", good[i], 8);
		assert_ok_err(opened(NULL), &err);
		ranges_tile();
		tensor("", "a");
	}
	assert_string_equal(k->file[0].name, "m.safetensors");
}

TEST(the_shape_of_f4_counts_values_of_half_a_byte)
{
	bytedir_safetensors(&dir, "m.safetensors",
			    "{\"a\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[0,4]},"
			    "\"c\":{\"dtype\":\"C32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
			    8);
	assert_ok_err(opened(NULL), &err);
	shape_is(tensor("", "a"), 2, 2, 2);
	assert_int_equal(tensor("", "c")->dtype, CKPT_C32);
}

#define ONE(members) "{\"a\":{" members "}}"
#define F32(shape, at) "\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" at
#define TWO(x, y) "{\"a\":{" x "},\"b\":{" y "}}"
#define BLOB(said, dtype, shape)                                                     \
	"{\"__metadata__\":{\"ckpt.blob:a\":\"" said "\"},\"a\":{\"dtype\":\"" dtype \
	"\",\"shape\":" shape ",\"data_offsets\":[0,8]}}"

TEST(what_the_format_does_not_allow_is_refused)
{
	static const struct {
		const char *header;
		int code;
		const char *why;
	} bad[] = {
		{ "[]", -EPROTO, "it must be an object" },
		{ "", -EPROTO, "the text ends" },
		{ "{}x", -EPROTO, "something behind the value" },
		{ "{}", -EPROTO, "8 bytes behind the last tensor belong to none" },
		{ ONE(F32("[2]", "[0,8]")) "{}", -EPROTO, "something behind" },
		{ ONE(F32("[2.0]", "[0,8]")), -EPROTO, "whole numbers" },
		{ ONE(F32("[2e0]", "[0,8]")), -EPROTO, "whole numbers" },
		{ ONE(F32("[-2]", "[0,8]")), -EPROTO, "whole numbers" },
		{ ONE(F32("[\"2\"]", "[0,8]")), -EPROTO, "whole numbers" },
		{ ONE(F32("2", "[0,8]")), -EPROTO, "shape must be an array" },
		{ ONE(F32("[2]", "[0.0,8]")), -EPROTO, "the first of data_offsets" },
		{ ONE(F32("[2]", "[0,8.0]")), -EPROTO, "the second of data_offsets" },
		{ ONE(F32("[2]", "[-0,8]")), -EPROTO, "the first of data_offsets" },
		{ ONE(F32("[2]", "[0]")), -EPROTO, "the second of data_offsets" },
		{ ONE(F32("[2]", "[0,8,8]")), -EPROTO, "of two numbers" },
		{ ONE(F32("[2]", "[8,0]")), -EPROTO, "data_offsets 8 and 0" },
		{ ONE(F32("[3]", "[0,8]")), -EPROTO, "data_offsets 0 and 8 are not around the 12" },
		{ ONE(F32("[1]", "[0,8]")), -EPROTO, "are not around the 4" },
		{ ONE(F32("[4611686018427387904,4]", "[0,8]")), -EPROTO, "more bytes than can be" },
		{ ONE(F32("[2305843009213693952]", "[0,8]")), -EPROTO, "more bytes than can be" },
		{ ONE(F32("[1]", "[4,8]")), -EPROTO, "byte 0 of the data belongs to no tensor" },
		{ ONE(F32("[1]", "[0,4]")), -EPROTO, "4 bytes behind the last tensor" },
		{ ONE(F32("[4]", "[0,16]")), -EBADMSG, "end at byte 16" },
		{ TWO(F32("[1]", "[0,4]"), F32("[1]", "[0,4]")), -EPROTO, "more than one tensor" },
		{ TWO(F32("[2]", "[0,8]"), F32("[1]", "[4,8]")), -EPROTO, "some overlap" },
		{ TWO(F32("[2]", "[0,8]"), F32("[0]", "[4,4]")), -EPROTO, "more than one tensor" },
		{ TWO("\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]",
		      "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]"),
		  -EPROTO, "byte 3 of the data belongs to no tensor" },
		{ ONE("\"shape\":[2],\"data_offsets\":[0,8]"), -EPROTO, "dtype is missing" },
		{ ONE("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), -EPROTO, "shape is missing" },
		{ ONE("\"dtype\":\"F32\",\"shape\":[2]"), -EPROTO, "data_offsets is missing" },
		{ ONE(F32("[2]", "[0,8]") ",\"shape\":[2]"), -EPROTO, "shape is there twice" },
		{ ONE(F32("[2]", "[0,8]") ",\"\\u0064type\":\"F32\""), -EPROTO, "is there twice" },
		{ "{\"a\":[\"F32\",[2],[0,8]]}", -EPROTO, "a must be an object" },
		{ "{\"a\":null}", -EPROTO, "a must be an object" },
		{ "{\"a\":{" F32("[1]", "[0,4]") "},\"\\u0061\":{" F32("[1]", "[4,8]") "}}",
		  -EPROTO, "tensor a is there twice" },
		{ "{\"__metadata__\":{},\"__metadata__\":{}}", -EPROTO, "is there twice" },
		{ "{\"__metadata__\":[]}", -EPROTO, "must be an object" },
		{ "{\"__metadata__\":{\"a\":1}}", -EPROTO, "must be a string" },
		{ "{\"__metadata__\":{\"a\":\"1\",\"\\u0061\":\"1\"}}", -EPROTO, "twice" },
		{ ONE("\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]"),
		  -EPROTONOSUPPORT, "dtype F6_E2M3 has elements of 6 bits" },
		{ ONE("\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[0,8]"), -EPROTONOSUPPORT,
		  "dtype F128 is not known" },
		{ ONE("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), -EPROTONOSUPPORT,
		  "dtype f32 is not known" },
		{ ONE("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]"), -EPROTO,
		  "end inside of a byte" },
		{ ONE("\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,1]"), -EPROTO,
		  "end inside of a byte" },
		{ ONE("\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]"), -EPROTONOSUPPORT,
		  "its last dimension is odd" },
		{ ONE("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8],\"data_offsets\":[0,8]"),
		  -EPROTONOSUPPORT, "more than 16 dimensions" },
		{ "{\"a\\u0000b\":{" F32("[2]", "[0,8]") "}}", -EPROTONOSUPPORT, "zero byte" },
		{ "{\"__metadata__\":{\"a\\u0000b\":\"x\"}}", -EPROTONOSUPPORT, "zero byte" },
		{ "{\"__metadata__\":{\"a\":\"x\\u0000y\"}}", -EPROTONOSUPPORT, "zero byte" },
		{ ONE(F32("[1099511627776,1099511627776,0]", "[0,0]")), -EPROTO, "than can be" },
		{ ONE(F32("[9223372036854775808,0]", "[0,0]")), -EPROTONOSUPPORT, "2^63" },
		{ BLOB("json,", "U8", "[8]"), -EPROTO, "said to be a blob of type json," },
		{ BLOB("bson", "U8", "[8]"), -EPROTO, "said to be a blob of type bson" },
		{ BLOB("json, rank", "U8", "[8]"), -EPROTO, "said to be a blob of type" },
		{ BLOB("json, rank ", "U8", "[8]"), -EPROTO, "said to be a blob of type" },
		{ BLOB("json, rank -1", "U8", "[8]"), -EPROTO, "said to be a blob of type" },
		{ BLOB("json, rank 1x", "U8", "[8]"), -EPROTO, "said to be a blob of type" },
		{ BLOB("json, rank 4294967297", "U8", "[8]"), -EPROTO, "said to be a blob of" },
		{ BLOB("json", "I8", "[8]"), -EPROTO, "it is no U8 of one dimension" },
		{ BLOB("json", "U8", "[4,2]"), -EPROTO, "it is no U8 of one dimension" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		bytedir_clear(&dir);
		faults[0] = 0;
		bytedir_safetensors(&dir, "m.safetensors", bad[i].header, 8);
		refused(bad[i].code, bad[i].why);
	}
}

TEST(a_length_that_the_file_does_not_have_is_refused)
{
	struct bytedir_file *f = bytedir_safetensors(&dir, "m.safetensors", "{}", 0);
	le64 len = le64_of(3);

	memcpy(f->bytes, &len, 8);
	refused(-EBADMSG, "its header has 3 bytes, the file 10");
	len = le64_of(UINT64_MAX);
	memcpy(f->bytes, &len, 8);
	refused(-EPROTO, "the format allows 100000000");
	f->len = 7;
	refused(-EBADMSG, "m.safetensors has 7 bytes");
	f->len = 0;
	refused(-EBADMSG, "m.safetensors has 0 bytes");
}

TEST(a_header_above_the_limit_is_refused_also_where_the_file_has_it)
{
	struct bytedir_file *f;
	le64 len = le64_of(HUGE_HEADER);
	uint8_t *big = calloc(1, 8 + HUGE_HEADER);

	memset(big, ' ', 8 + HUGE_HEADER);
	memcpy(big, &len, 8);
	memcpy(big + 8, "{}", 2);
	f = bytedir_add(&dir, "m.safetensors", "", 0);
	free(f->bytes);
	f->bytes = big;
	f->len = 8 + HUGE_HEADER;
	refused(-EPROTO, "the format allows 100000000");
}

TEST(a_name_is_as_long_as_ckptd_has_them)
{
	char header[4000], name[CKPT_NAME_MAX + 2];

	memset(name, 'n', sizeof name);
	name[CKPT_NAME_MAX] = 0;
	snprintf(header, sizeof header, "{\"%s\":{" F32("[2]", "[0,8]") "}}", name);
	bytedir_safetensors(&dir, "m.safetensors", header, 8);
	assert_ok_err(opened(NULL), &err);
	tensor("", name);
	name[CKPT_NAME_MAX] = 'n';
	name[CKPT_NAME_MAX + 1] = 0;
	snprintf(header, sizeof header, "{\"%s\":{" F32("[2]", "[0,8]") "}}", name);
	bytedir_clear(&dir);
	bytedir_safetensors(&dir, "m.safetensors", header, 8);
	refused(-EPROTONOSUPPORT, "longer than 1024 bytes");
}

/* --- directories --- */

#define A ONE(F32("[2]", "[0,8]"))
#define B "{\"b\":{" F32("[2]", "[0,8]") "}}"

static void index_is(const char *map)
{
	char text[1000];

	snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":16},\"weight_map\":{%s}}", map);
	bytedir_add(&dir, "model.safetensors.index.json", text, strlen(text));
}

TEST(a_directory_without_an_index_is_all_its_files)
{
	bytedir_safetensors(&dir, "y.safetensors", B, 8);
	bytedir_safetensors(&dir, "x.safetensors", A, 8);
	bytedir_add(&dir, "config.json", "{}", 2);
	bytedir_safetensors(&dir, "sharded/x.safetensors", A, 8);
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->nfile, 2);
	assert_string_equal(k->file[0].name, "x.safetensors");
	assert_int_equal(k->table.ntensor, 2);
	assert_int_equal(k->nforeign, 2);
	assert_string_equal(k->foreign[0], "config.json");
	assert_string_equal(k->foreign[1], "sharded");
	assert_int_equal(k->stored_bytes, dir.file[0].len + dir.file[1].len);
	ranges_tile();
}

TEST(a_tensor_in_two_files_that_say_nothing_of_shards_is_refused)
{
	bytedir_safetensors(&dir, "x.safetensors", A, 8);
	bytedir_safetensors(&dir, "y.safetensors", A, 8);
	refused(-EPROTO, "tensor a is in x.safetensors too");
	assert_ok_err(opened("y.safetensors"), &err);
}

TEST(an_index_says_which_files_and_which_tensors)
{
	bytedir_safetensors(&dir, "s/y.safetensors", B, 8);
	bytedir_safetensors(&dir, "x.safetensors", A, 8);
	bytedir_safetensors(&dir, "other.safetensors", A, 8);
	index_is("\"b\":\"s/y.safetensors\",\"a\":\"x.safetensors\"");
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->nfile, 3);
	assert_string_equal(k->file[2].name, "model.safetensors.index.json");
	assert_int_equal(k->nforeign, 1);
	assert_string_equal(k->foreign[0], "other.safetensors");
	ranges_tile();
	assert_ok_err(opened("model.safetensors.index.json"), &err);
	assert_int_equal(k->table.ntensor, 2);
}

TEST(an_index_and_its_files_must_agree)
{
	static const struct {
		const char *map;
		int code;
		const char *why;
	} bad[] = {
		{ "\"a\":\"x.safetensors\"", 0, NULL },
		{ "\"a\":\"y.safetensors\",\"b\":\"y.safetensors\"", -EPROTO,
		  "index says that tensor a is in y.safetensors, which does not have it" },
		{ "\"a\":\"y.safetensors\",\"b\":\"x.safetensors\"", -EPROTO,
		  "is in y.safetensors, but the index says that it is in x.safetensors" },
		{ "\"b\":\"y.safetensors\",\"a\":\"x.safetensors\",\"c\":\"x.safetensors\"",
		  -EPROTO, "tensor c is in x.safetensors, which does not have it" },
		{ "\"c\":\"x.safetensors\"", -EPROTO,
		  "tensor a is in x.safetensors, but not in the" },
		{ "\"a\":\"z.safetensors\"", -EUCLEAN, "z.safetensors is missing" },
		{ "\"a\":\"../x.safetensors\"", -EPROTO, "leads out of it" },
		{ "\"a\":\"/x.safetensors\"", -EPROTO, "leads out of it" },
		{ "\"a\":\"\"", -EPROTO, "leads out of it" },
		{ "\"a\":1", -EPROTO, "must be a string" },
		{ "\"a\":\"x.safetensors\",\"\\u0061\":\"x.safetensors\"", -EPROTO, "twice" },
		{ "\"a\":\"x.safetensors\"},\"weight_map\":{", -EPROTO,
		  "weight_map is there twice" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		bytedir_clear(&dir);
		faults[0] = 0;
		bytedir_safetensors(&dir, "x.safetensors", A, 8);
		bytedir_safetensors(&dir, "y.safetensors", B, 8);
		index_is(bad[i].map);
		if (bad[i].code)
			refused(bad[i].code, bad[i].why);
		else
			assert_ok_err(opened(NULL), &err);
	}
	bytedir_clear(&dir);
	bytedir_add(&dir, "model.safetensors.index.json", "{}", 2);
	refused(-EPROTO, "it has no weight_map");
}

TEST(of_several_indexes_the_one_of_the_model_counts)
{
	bytedir_safetensors(&dir, "x.safetensors", A, 8);
	bytedir_add(&dir, "a.safetensors.index.json", "{\"weight_map\":{}}", 17);
	bytedir_add(&dir, "b.safetensors.index.json", "{\"weight_map\":{}}", 17);
	refused(-EPROTO, "2 indexes are there");
	index_is("\"a\":\"x.safetensors\"");
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->table.ntensor, 1);
}

TEST(an_empty_directory_is_no_checkpoint)
{
	refused(-EUCLEAN, "no *.safetensors is there");
}

TEST(what_reading_said_is_the_result)
{
	bytedir_safetensors(&dir, "x.safetensors", A, 8)->error = -EACCES;
	refused(-EACCES, "x.safetensors cannot be read");
	assert_string_equal(faults, "unreadable x.safetensors\n");
}

/* --- shards --- */

#define SHARD(info, name, shape, end)                                                        \
	"{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{" info "}\",\"format\":\"pt\"},\"" name \
	"\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0," end "]}}"
#define AT(name, offsets) "\\\"" name "\\\":{\\\"saved_offsets\\\":" offsets "}"

TEST(shards_are_boxes_of_one_tensor)
{
	bytedir_safetensors(&dir, "shard-00001-model-00001-of-00001.safetensors",
			    SHARD(AT("w", "[0,0]"), "w", "[2,3]", "24"), 24);
	bytedir_safetensors(&dir, "shard-00002-model-00001-of-00001.safetensors",
			    SHARD(AT("w", "[2,0]"), "w", "[1,3]", "12"), 12);
	bytedir_safetensors(&dir, "shard-00003-model-00001-of-00001.safetensors",
			    SHARD(AT("w", "[3,0]"), "w", "[0,3]", "0"), 0);
	assert_ok_err(opened(NULL), &err);
	shape_is(tensor("", "w"), 2, 3, 3);
	assert_int_equal(tensor("", "w")->numel, 9);
	assert_int_equal(k->table.npiece, 2);
	assert_int_equal(k->world, 3);
	assert_int_equal(k->table.piece[1].rank, 1);
	assert_int_equal(k->table.piece[1].set.dim[0].run[0].start, 2);
	ranges_tile();
	/* Named alone, a file is what it has. */
	assert_ok_err(opened("shard-00002-model-00001-of-00001.safetensors"), &err);
	shape_is(tensor("", "w"), 2, 1, 3);
}

TEST(a_copy_of_a_box_is_read_once)
{
	bytedir_safetensors(&dir, "shard-00001-x.safetensors",
			    SHARD(AT("w", "[0]"), "w", "[2]", "8"), 8);
	bytedir_safetensors(&dir, "shard-00002-x.safetensors",
			    SHARD(AT("w", "[0]"), "w", "[2]", "8"), 8);
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->table.npiece, 1);
	assert_int_equal(k->table.piece[0].place, 0);
	ranges_tile();
}

TEST(boxes_that_overlap_or_leave_gaps_are_refused)
{
	static const struct {
		const char *second;
		int code;
		const char *why;
	} bad[] = {
		{ SHARD(AT("w", "[1]"), "w", "[2]", "8"), -EPROTO, "is in two pieces" },
		{ SHARD(AT("w", "[3]"), "w", "[2]", "8"), -EPROTO, "do not make whole tensors" },
		{ SHARD(AT("w", "[2,0]"), "w", "[2]", "8"), -EPROTO,
		  "1 dimensions, and 2 offsets" },
		{ SHARD(AT("w", "[2,0]"), "w", "[2,1]", "8"), -EPROTO, "F32 with 2 dimensions" },
		{ SHARD(AT("w", "[18446744073709551615]"), "w", "[2]", "8"), -EPROTO, "counted" },
		{ SHARD(AT("w", "[2.0]"), "w", "[2]", "8"), -EPROTO, "whole numbers" },
		{ SHARD("\\\"w\\\":{}", "w", "[2]", "8"), -EPROTO, "no saved_offsets" },
		{ SHARD("x", "w", "[2]", "8"), -EPROTO, "DCP_SHARDING_INFO of y.safetensors" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		bytedir_clear(&dir);
		faults[0] = 0;
		bytedir_safetensors(&dir, "x.safetensors", SHARD(AT("w", "[0]"), "w", "[2]", "8"),
				    8);
		bytedir_safetensors(&dir, "y.safetensors", bad[i].second, 8);
		refused(bad[i].code, bad[i].why);
	}
}

/* --- what is too much --- */

static char *many(const char *before, const char *each, uint32_t n, const char *after)
{
	char *text = malloc(strlen(before) + (strlen(each) + 12) * (size_t)n + strlen(after) + 1);
	char *at = stpcpy(text, before);

	for (uint32_t i = 0; i < n; i++) {
		at += sprintf(at, "%s\"%x", i ? "," : "", i);
		at = stpcpy(at, each);
	}
	strcpy(at, after);
	return text;
}

TEST(more_than_ckptd_opens_is_refused_by_what_it_is)
{
	static const struct {
		const char *file, *before, *each, *after, *why;
		uint32_t n;
	} much[] = {
		{ "m.safetensors", "{",
		  "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", "}",
		  "m.safetensors has more than 1048576 tensors", 1048577 },
		{ "m.safetensors", "{\"__metadata__\":{", "\":\"\"", "}}",
		  "more than 65000 strings of metadata", 65001 },
		{ "model.safetensors.index.json", "{\"weight_map\":{", "\":\"a\"", "}}",
		  "model.safetensors.index.json: more than 1048576 tensors", 1048577 },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(much); i++) {
		char *text;

#ifdef __SANITIZE_ADDRESS__ /* minutes; make test runs this file without it, too */
		if (much[i].n > 100000)
			continue;
#endif
		text = many(much[i].before, much[i].each, much[i].n, much[i].after);
		bytedir_clear(&dir);
		faults[0] = 0;
		if (strstr(much[i].file, ".json"))
			bytedir_add(&dir, much[i].file, text, strlen(text));
		else
			bytedir_safetensors(&dir, much[i].file, text, 0);
		refused(-EPROTONOSUPPORT, much[i].why);
		free(text);
	}
}

/* --- exports --- */

#define RANK(rank, at)                                                                                \
	"{\"__metadata__\":{\"format\":\"pt\",\"ckptd\":\"0.2.0\",\"job\":\"demo\",\"step\":\"120\"," \
	"\"mesh\":\"fsdp=2\",\"rank\":\"" rank "\",\"keys\":\"component/name\","                      \
	"\"DCP_SHARDING_INFO\":\"{" AT("model/w/x", at) "}\",\"note\":\"n\"},\"model/w/x\":{" F32(    \
		"[2]", "[0,8]") "}}"

TEST(an_export_by_rank_says_its_step_and_components)
{
	bytedir_safetensors(&dir, "rank-00000.safetensors", RANK("0", "[0]"), 8);
	bytedir_safetensors(&dir, "rank-00001.safetensors", RANK("1", "[2]"), 8);
	assert_ok_err(opened(NULL), &err);
	shape_is(tensor("model", "w/x"), 1, 4, 0);
	assert_int_equal(k->has, HAS_STEP);
	assert_int_equal(k->step, 120);
	assert_string_equal(k->job, "demo");
	assert_int_equal(k->world, 2);
	assert_int_equal(k->nattr, 1);
	assert_string_equal(k->attr[0].key, "note");
	assert_ok_err(opened("rank-00001.safetensors"), &err);
	shape_is(tensor("model", "w/x"), 1, 2, 0);
}

TEST(a_step_of_no_job_is_none)
{
	static const char *const said[] = { "\"step\":\"7\"",
					    "\"job\":\"a\"",
					    "\"job\":\"../a\",\"step\":\"7\"",
					    "\"job\":\"..\",\"step\":\"7\"",
					    "\"job\":\"a\\u001b[31m\",\"step\":\"7\"",
					    "\"job\":\"\",\"step\":\"7\"",
					    "\"job\":\"a\",\"step\":\"-7\"" };
	char header[200], longest[CKPT_JOB_MAX + 2] = "";

	for (uint32_t i = 0; i <= ARRAY_LEN(said); i++) {
		memset(longest, 'j', CKPT_JOB_MAX + 1);
		snprintf(header, sizeof header, "{\"__metadata__\":{\"ckptd\":\"0.2.0\",%s%s%s}}",
			 i < ARRAY_LEN(said) ? said[i] : "\"step\":\"7\",\"job\":\"",
			 i < ARRAY_LEN(said) ? "" : longest, i < ARRAY_LEN(said) ? "" : "\"");
		bytedir_clear(&dir);
		bytedir_safetensors(&dir, "m.safetensors", header, 0);
		assert_ok_err(opened(NULL), &err);
		assert_int_equal(k->has, 0);
		assert_string_equal(k->job, "");
		assert_int_equal(k->nattr, i < 2 ? 1 : 2);
	}
}

TEST(an_export_by_rank_without_one_of_its_ranks_is_incomplete)
{
	bytedir_safetensors(&dir, "rank-00000.safetensors", RANK("0", "[0]"), 8);
	refused(-EUCLEAN, "1 of the 2 ranks of mesh fsdp=2 are there");
}

/* --- of which checkpoint --- */

/* A rank's file of two; what else it says of its origin. */
static void rank_add(uint32_t rank, const char *mark, uint32_t at)
{
	char header[1000], name[64];

	snprintf(header, sizeof header,
		 "{\"__metadata__\":{%s\"rank\":\"%u\",\"DCP_SHARDING_INFO\":\"{" AT(
			 "model/w", "[%u]") "}\"},\"model/w\":{" F32("[2]", "[0,8]") "}}",
		 mark, rank, at);
	snprintf(name, sizeof name, "rank-%05u.safetensors", rank);
	bytedir_safetensors(&dir, name, header, 8);
}

#define MARK(id, job, step, mesh, more)                                                      \
	"\"ckptd\":\"0.2.0\",\"checkpoint\":\"" id "\",\"job\":\"" job "\",\"step\":\"" step \
	"\",\"mesh\":\"" mesh "\",\"keys\":\"component/name\"," more

TEST(files_of_two_checkpoints_are_never_joined_and_each_says_which)
{
	static const struct {
		const char *second, *says;
		uint32_t at;
	} other[] = {
		{ MARK("bb", "demo", "20", "fsdp=2", ""), "checkpoint bb, job demo, step 20", 2 },
		{ MARK("aa", "dem", "20", "fsdp=2", ""), "job dem, step 20", 2 },
		{ MARK("aa", "demo", "32", "fsdp=2", ""), "step 32", 2 },
		/* its boxes overlap or leave a gap, too: that is not what is wrong */
		{ MARK("aa", "demo", "20", "fsdp=4", ""), "step 20, mesh fsdp=4", 1 },
		{ MARK("aa", "demo", "20", "fsdp=4", ""), "step 20, mesh fsdp=4", 3 },
		{ MARK("aa", "demo", "20", "fsdp=2", "\"only\":\"ema.fast\","), "--only ema.fast",
		  2 },
		{ MARK("aa", "demo", "20", "fsdp=2", "\"dtype\":\"BF16\","), "--dtype BF16", 2 },
		{ MARK("aa", "demo", "20", "fsdp=2", "\"view\":\"01\","), "--view", 2 },
		/* an older ckptctl, memory, or no ckptctl at all: half of the files say less */
		{ "\"ckptd\":\"0.1.0\",\"job\":\"demo\",\"step\":\"20\",\"mesh\":\"fsdp=2\","
		  "\"keys\":\"component/name\",",
		  ": job demo, step 20, mesh fsdp=2", 2 },
		{ "\"ckptd\":\"0.1.0\",", "no step and no id", 2 },
		{ "\"step\":\"20\",", "ckptctl did not write it", 2 },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(other); i++) {
		bytedir_clear(&dir);
		faults[0] = 0;
		rank_add(0, MARK("aa", "demo", "20", "fsdp=2", ""), 0);
		rank_add(1, other[i].second, other[i].at);
		refused(-EPROTO, "never joined");
		assert_non_null(strstr(err.msg,
				       "\nrank-00000.safetensors: checkpoint aa, job demo, "
				       "step 20, mesh fsdp=2\nrank-00001.safetensors: "));
		assert_non_null(strstr(err.msg, other[i].says));
		assert_non_null(strstr(faults, "mismatch rank-00000.safetensors\n"
					       "mismatch rank-00001.safetensors\n"));
		/* Alone each is what it has. */
		assert_ok_err(opened("rank-00000.safetensors"), &err);
		assert_ok_err(opened("rank-00001.safetensors"), &err);
	}
}

TEST(files_of_one_checkpoint_may_be_of_different_programs)
{
	rank_add(0, MARK("aa", "demo", "20", "fsdp=2", ""), 0);
	rank_add(1,
		 "\"checkpoint\":\"aa\",\"job\":\"demo\",\"step\":\"20\",\"mesh\":\"fsdp=2\","
		 "\"keys\":\"component/name\",\"ckptd\":\"0.9.9\",\"note\":\"x\",",
		 2);
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->step, 20);
	/* Those of a version that wrote no id. */
	bytedir_clear(&dir);
	bytedir_safetensors(&dir, "rank-00000.safetensors", RANK("0", "[0]"), 8);
	bytedir_safetensors(&dir, "rank-00001.safetensors", RANK("1", "[2]"), 8);
	assert_ok_err(opened(NULL), &err);
}

static void shard_add(const char *name, const char *tensor, const char *mark)
{
	char header[1000];

	snprintf(header, sizeof header, "{\"__metadata__\":{%s},\"%s\":{" F32("[2]", "[0,8]") "}}",
		 mark, tensor);
	bytedir_safetensors(&dir, name, header, 8);
}

#define SHARD_OF(id, more) \
	"\"ckptd\":\"0.2.0\",\"checkpoint\":\"" id "\",\"job\":\"d\",\"step\":\"2\"" more

TEST(shards_of_two_checkpoints_are_never_joined_with_an_index_or_without)
{
	static const struct {
		const char *second;
		bool alone, indexed; /* are they refused? */
	} other[] = {
		{ SHARD_OF("aa", ""), false, false },
		{ SHARD_OF("bb", ""), true, true },
		{ "\"format\":\"pt\"", true, true },
		/* Two exports of one step in one directory; of one run they would say the same. */
		{ SHARD_OF("aa", ",\"only\":\"optim\""), false, true },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(other); i++)
		for (uint32_t index = 0; index < 2; index++) {
			bytedir_clear(&dir);
			shard_add("x.safetensors", "a", SHARD_OF("aa", ""));
			shard_add("y.safetensors", "b", other[i].second);
			if (index)
				index_is("\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"");
			if (index ? other[i].indexed : other[i].alone)
				refused(-EPROTO, "never joined");
			else
				assert_ok_err(opened(NULL), &err);
		}
}

TEST(of_many_files_the_one_that_is_another_checkpoints_is_named)
{
	bytedir_clear(&dir);
	for (uint32_t i = 0; i < 40; i++)
		rank_add(i,
			 i == 37 ? MARK("bb", "demo", "32", "fsdp=40", "")
				 : MARK("aa", "demo", "20", "fsdp=40", ""),
			 2 * i);
	refused(-EPROTO, "rank-00001.safetensors, ");
	assert_non_null(strstr(err.msg, "more: checkpoint aa"));
	assert_non_null(strstr(err.msg, "\nrank-00037.safetensors: checkpoint bb"));
	assert_null(strstr(faults, "malformed"));
}

TEST(blobs_say_what_they_are_and_whose)
{
	static const char header[] =
		"{\"__metadata__\":{\"ckpt.blob:a\":\"json\",\"ckpt.blob:b\":\"raw, rank 0\","
		"\"ckpt.blob:b/rank-00002\":\"pickle, rank 2\",\"ckpt.blob:gone\":\"text\",\"x\":\"y\"},"
		"\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[3,6]},"
		"\"b/rank-00002\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}";
	static const char index[] =
		"{\"weight_map\":{\"a\":\"m.safetensors\",\"b\":\"m.safetensors\","
		"\"b/rank-00002\":\"m.safetensors\"}}";
	const struct table_tensor *x;

	bytedir_safetensors(&dir, "m.safetensors", header, 8);
	assert_ok_err(opened("m.safetensors"), &err);
	assert_int_equal(k->table.ntensor, 3);
	assert_int_equal(tensor("", "a")->media, CKPT_MEDIA_JSON);
	assert_int_equal(tensor("", "a")->flags, TENSOR_BLOB);
	x = &k->table.tensor[table_find(&k->table, "", "b", 2)];
	assert_int_equal(x->media, CKPT_MEDIA_PICKLE);
	assert_int_equal(x->numel, 2);
	assert_int_not_equal(table_find(&k->table, "", "b", 0), TABLE_NONE);
	assert_int_equal(k->nattr, 1);
	/* An index has the names of the files. */
	bytedir_add(&dir, "model.safetensors.index.json", index, sizeof index - 1);
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->table.ntensor, 3);
}

TEST(tied_weights_of_save_model_are_aliases)
{
	bytedir_safetensors(
		&dir, "m.safetensors",
		"{\"__metadata__\":{\"format\":\"pt\",\"head\":\"a\",\"b\":\"c\"},\"a\":{" F32(
			"[2]", "[0,8]") "}}",
		8);
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->nattr, 2);
	assert_string_equal(k->attr[0].key, "b");
	assert_string_equal(k->attr[1].key, "ckpt.alias:/head");
	assert_string_equal(k->attr[1].value, "/a");
	assert_int_equal(k->has, 0);
}

/* A value that names a tensor under a key that does not: nothing else is a tie. */
TEST(what_is_no_tie_is_an_attribute)
{
	bytedir_safetensors(
		&dir, "m.safetensors",
		"{\"__metadata__\":{\"a\":\"b\",\"b\":\"b\",\"x\":\"y\",\"y\":\"x\",\"far\":\"near\","
		"\"near\":\"a\",\"ckpt.attr:q\":\"a\",\"none\":\"\"},\"a\":{" F32(
			"[1]", "[0,4]") "},\"b\":{" F32("[1]", "[4,8]") "}}",
		8);
	assert_ok_err(opened(NULL), &err);
	assert_int_equal(k->nattr, 8);
	for (uint32_t i = 0, ties = 0; i < k->nattr; i++) {
		ties += !strncmp(k->attr[i].key, "ckpt.alias:", 11);
		if (i == k->nattr - 1)
			assert_int_equal(ties,
					 2); /* near, and what no ckptctl wrote: ckpt.attr:q */
	}
}

TEST(the_probe_reads_magic)
{
	assert_int_equal(probed(NULL), 0);
	bytedir_add(&dir, "notes.txt", "hello, this is text", 19);
	assert_int_equal(probed(NULL), 0);
	assert_int_equal(probed("notes.txt"), 0);
	bytedir_add(&dir, "x.safetensors", "hello, this is text", 19);
	assert_int_equal(probed(NULL), 25);
	assert_int_equal(probed("x.safetensors"), 25);
	bytedir_safetensors(&dir, "weights", A, 8);
	assert_int_equal(probed("weights"), 75);
	assert_int_equal(probed("absent"), -ENOENT);
	bytedir_safetensors(&dir, "y.safetensors", A, 8);
	assert_int_equal(probed(NULL), 75);
	bytedir_clear(&dir);
	index_is("");
	assert_int_equal(probed(NULL), 25);
	assert_int_equal(probed("model.safetensors.index.json"), 75);
}
