/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_answer_batch.c - questions about layouts, and their answers: the vectors of
 * tests/vectors/layout/x.jsonl (their form: tests/cli/test_layout_batch.sh), lines of any bytes and
 * of any length, and redistributions of pending reductions.
 */
#include "ckpt/answer/answer_batch.h"
#include "ckpt/base/error.h"
#include "tests/lib/says.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>

static const char *const vectors[] = { "literal", "strided", "order",  "fsdp",		"ranks",
				       "modes",	  "large",   "errors", "strided_order", "partial" };

static char *answers; /* of the last call; answers_free frees them */

static int answers_free(void **state)
{
	(void)state;
	free(TAKE(answers));
	return 0;
}

static bool never(void)
{
	return false;
}

/* From the second time on. */
static uint32_t asked;
static bool at_second(void)
{
	return ++asked >= 2;
}

/* The answers to what fd has, which is closed. */
static const char *answers_of(int fd, bool counts)
{
	struct ckpt_err err = { 0 };
	size_t len = 0;
	FILE *out;

	(void)answers_free(NULL);
	out = open_memstream(&answers, &len);
	assert_true(fd >= 0 && out);
	assert_ok_err(answer_batch(fd, out, counts, never, &err), &err);
	fclose(out);
	close(fd);
	return answers;
}

/* Some text in a file without a name. */
static int fd_of(const char *text, size_t len)
{
	int fd = memfd_create("questions", MFD_CLOEXEC);

	assert_int_equal(write(fd, text, len), len);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

static const char *batch(const char *text, size_t len, bool counts)
{
	return answers_of(fd_of(text, len), counts);
}

/* The one answer to a question. */
static const char *ask(const char *question)
{
	return batch(question, strlen(question), false);
}

static bool has_empty(const json_t *runs)
{
	for (size_t i = 0; i < json_array_size(runs); i++)
		if (!json_array_size(json_array_get(runs, i)))
			return true;
	return false;
}

static bool same_ranks(const json_t *want, const json_t *answer)
{
	bool same = json_is_array(answer) && json_array_size(want) == json_array_size(answer);

	for (size_t i = 0; same && i < json_array_size(want); i++) {
		const json_t *x = json_array_get(want, i), *y = json_array_get(answer, i),
			     *xr = json_object_get(x, "runs"), *yr = json_object_get(y, "runs");

		same = json_equal(json_object_get(x, "coord"), json_object_get(y, "coord")) &&
		       json_array_size(xr) == json_array_size(yr) &&
		       (json_equal(xr, yr) || (has_empty(xr) && has_empty(yr)));
	}
	return same;
}

static bool same(const json_t *question, const json_t *answer)
{
	const json_t *expect = json_object_get(question, "expect"),
		     *result = json_object_get(question, "result");

	if (json_is_true(json_object_get(expect ? expect : question, "error")))
		return json_is_string(json_object_get(answer, "error"));
	if (expect)
		return same_ranks(expect, answer);
	if (result)
		return json_equal(result, json_object_get(answer, "result")) &&
		       json_equal(json_object_get(question, "result_shapes"),
				  json_object_get(answer, "result_shapes"));
	return json_object_size(answer) == 1 &&
	       json_equal(json_object_get(question, "decoded"), json_object_get(answer, "decoded"));
}

TEST(every_vector_is_answered_as_pytorch_answered_it)
{
	static char line[1 << 20];

	for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
		char path[256];
		const char *at;
		FILE *f;
		uint32_t n = 0;

		snprintf(path, sizeof path, "tests/vectors/layout/%s.jsonl", vectors[i]);
		f = fopen(path, "r");
		assert_non_null(f);
		/* What is no field of a question is ignored, so the answers need not be cut off. */
		at = answers_of(open(path, O_RDONLY), false);
		for (; fgets(line, sizeof line, f); n++) {
			json_t *q = json_loads(line, 0, NULL),
			       *a = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);

			assert_non_null(q);
			if (!a || !same(q, a))
				fail_msg("%s\nis answered\n%.2000s", line, at);
			json_decref(q);
			json_decref(a);
			at = strchr(at, '\n') + 1;
		}
		assert_true(n >= 50 && !*at);
		fclose(f);
	}
}

TEST(every_line_has_one_answer_whatever_it_is)
{
	static const char lines[] = "\n"
				    "no JSON at \xff all \"\\\n"
				    "{\"mesh\":[2],\"strided\":[\"S(0)\"]}\n"
				    "[1]\n"
				    "{\"a\":\0}\n"
				    "{\"mesh\":[2],\"mesh\":[3],\"strided\":[\"S(0)\"]}\n"
				    "{\"mesh\":[2],\"strided\":[\"_S(0, 2)\"]}"; /* and no end */
	static const char want[] = "eedeeen";
	const char *at = batch(lines, sizeof lines - 1, false);

	for (size_t i = 0; want[i]; i++) {
		json_t *a = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);

		assert_non_null(a);
		assert_int_equal(json_object_size(a), 1);
		if (want[i] == 'e')
			assert_true(json_string_length(json_object_get(a, "error")) > 5);
		else
			assert_int_equal(json_typeof(json_object_get(a, "decoded")),
					 want[i] == 'd' ? JSON_ARRAY : JSON_NULL);
		json_decref(a);
		at = strchr(at, '\n') + 1;
	}
	assert_string_equal(at, "");
	assert_string_equal(batch("", 0, false), "");
}

TEST(a_line_that_is_too_long_is_refused_and_the_next_is_answered)
{
	static const char next[] = "\n{\"mesh\":[2],\"strided\":[\"S(0)\"]}\n";
	size_t len = BATCH_LINE_MAX + ((size_t)5 << 20);
	char *text = malloc(len + sizeof next);

	assert_non_null(text);
	memset(text, ' ', len);
	memcpy(text + len, next, sizeof next);
	assert_says(batch(text, len + sizeof next - 1, false), "longer than 16777216 bytes");
	assert_non_null(strstr(answers, "\"}\n{\"decoded\":[[0,[0]]]}\n"));
	/* It may also be the last one. */
	assert_says(batch(text, len, false), "longer than 16777216 bytes");
	assert_string_equal(strchr(answers, '\n'), "\n");
	/* One that is shorter than that is read, however many buffers it takes. */
	memcpy(text + 9 * MIB, next, sizeof next);
	assert_string_equal(
		batch(text, 9 * MIB + sizeof next - 1, false),
		"{\"error\":\"not JSON, at byte 9437184: '[' or '{' expected near end of "
		"file\"}\n"
		"{\"decoded\":[[0,[0]]]}\n");
	free(text);
}

TEST(a_factor_that_cuts_all_there_is_may_be_any_number)
{
	assert_string_equal(ask("{\"shape\":[3],\"mesh\":[2],\"placements\":[\"_S(0, "
				"99999999999999999999)\"]}"),
			    "[{\"coord\":[0],\"runs\":[[[0,3]]]},{\"coord\":[1],\"runs\":[[]]}]\n");
	assert_string_equal(ask("{\"mesh\":[2],\"strided\":[\"_S(0, 5000000000)\"]}"),
			    "{\"decoded\":null}\n");
}

TEST(fields_that_are_null_are_not_there_and_the_kind_goes_by_its_order)
{
	assert_string_equal(ask("{\"strided\":null,\"order\":null,\"ranks\":null,\"mode\":null,"
				"\"shape\":[1],\"mesh\":[1],\"placements\":[\"S(0)\"],\"x\":1}"),
			    "[{\"coord\":[0],\"runs\":[[[0,1]]]}]\n");
	/* locals without src: the placements are asked for. */
	assert_string_equal(ask("{\"locals\":[],\"dst\":[],\"shape\":[1],\"mesh\":[1],"
				"\"placements\":[\"R\"]}"),
			    "[{\"coord\":[0],\"runs\":[[[0,1]]]}]\n");
	assert_string_equal(ask("{\"shape\":[1],\"mesh\":[1],\"placements\":[\"R\"],"
				"\"strided\":[\"R\"]}"),
			    "{\"decoded\":[]}\n");
}

TEST(partials_are_reduced_kept_and_made_of_shards)
{
	/* bf16: added as floats, rounded once. 256 + 1 + 1 = 258. */
	assert_string_equal(
		ask("{\"shape\":[1],\"mesh\":[3],\"dtype\":\"bfloat16\",\"src\":[\"P(sum)\"],"
		    "\"dst\":[\"R\"],\"locals\":[[256],[1],[1]]}"),
		"{\"result\":[[258],[258],[258]],\"result_shapes\":[[1],[1],[1]]}\n");
	/* Averages that are no whole numbers; what is no number in JSON is null. */
	assert_string_equal(
		ask("{\"shape\":[2],\"mesh\":[2],\"dtype\":\"F32\",\"src\":[\"P(avg)\"],"
		    "\"dst\":[\"S(0)\"],\"locals\":[[0.5,3e38],[-1.5,3e38]]}"),
		"{\"result\":[[-0.5],[null]],\"result_shapes\":[[1],[1]]}\n");
	/* A shard among zeros, beside a cut that stays; the rest of the rows is zero. */
	assert_string_equal(
		ask("{\"shape\":[4],\"mesh\":[2,2],\"dtype\":\"int64\",\"src\":[\"S(0)\",\"S(0)\"],"
		    "\"dst\":[\"S(0)\",\"P(sum)\"],\"locals\":[[1],[2],[3],[4]]}"),
		"{\"result\":[[1,0],[0,2],[3,0],[0,4]],\"result_shapes\":[[2],[2],[2],[2]]}\n");
	/* One partial is reduced, the other stays; avg beside sum. */
	assert_string_equal(
		ask("{\"shape\":[],\"mesh\":[2,2],\"dtype\":\"float64\",\"src\":[\"P(avg)\","
		    "\"P(sum)\"],\"dst\":[\"P(avg)\",\"R\"],\"locals\":[[1],[2],[3],[5]]}"),
		"{\"result\":[[3],[3],[8],[8]],\"result_shapes\":[[],[],[],[]]}\n");
	assert_string_equal(
		ask("{\"shape\":[],\"mesh\":[2,2],\"dtype\":\"float64\",\"src\":[\"P(avg)\","
		    "\"P(sum)\"],\"dst\":[\"R\",\"P(sum)\"],\"locals\":[[1],[2],[3],[5]]}"),
		"{\"result\":[[2],[3.5],[2],[3.5]],\"result_shapes\":[[],[],[],[]]}\n");
	/* Strided shards are put together, and taken apart. */
	assert_string_equal(
		ask("{\"shape\":[4],\"mesh\":[2],\"dtype\":\"uint8\",\"src\":[\"_S(0, 2)\"],"
		    "\"dst\":[\"S(0)\"],\"locals\":[[1,3],[2,255]]}"),
		"{\"result\":[[1,2],[3,255]],\"result_shapes\":[[2],[2]]}\n");
	/* Integers wrap around. */
	assert_string_equal(
		ask("{\"shape\":[1],\"mesh\":[2],\"dtype\":\"int8\",\"src\":[\"P(sum)\"],"
		    "\"dst\":[\"R\"],\"locals\":[[127],[1]]}"),
		"{\"result\":[[-128],[-128]],\"result_shapes\":[[1],[1]]}\n");
}

TEST(a_batch_that_is_stopped_ends_between_two_lines)
{
	static const char line[] = "{\"mesh\":[2],\"strided\":[\"S(0)\"]}\n";
	char lines[3 * sizeof line];
	struct ckpt_err err = { 0 };
	size_t len = 0;
	FILE *out = open_memstream(&answers, &len);
	int fd;

	snprintf(lines, sizeof lines, "%s%s%s", line, line, line);
	fd = fd_of(lines, strlen(lines));
	asked = 0;
	assert_int_equal(answer_batch(fd, out, false, at_second, &err), -ECANCELED);
	fclose(out);
	close(fd);
	assert_string_equal(answers, "{\"decoded\":[[0,[0]]]}\n");
}

/* A terminal, say, or a FIFO whose writer waits, too. */
TEST(a_batch_that_is_stopped_while_no_line_comes_ends)
{
	struct ckpt_err err = { 0 };
	size_t len = 0;
	FILE *out = open_memstream(&answers, &len);
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	asked = 0;
	assert_int_equal(answer_batch(fd[0], out, false, at_second, &err), -ECANCELED);
	fclose(out);
	close(fd[0]);
	close(fd[1]);
	assert_string_equal(answers, "");
}

UNIT(.teardown = answers_free);
