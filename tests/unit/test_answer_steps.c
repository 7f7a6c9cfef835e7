/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_answer_steps.c - questions for the steps of a redistribution: what PyTorch 2.15.0 answered
 * (tests/vectors/layout/redistribute_*.jsonl), and what is refused.
 */
#include "ckpt/answer/answer.h"
#include "tests/lib/says.h"
#include "tests/lib/unit.h"
#include <jansson.h>
#include <math.h>

static char *answer_text_of; /* of the last question */

static int answer_free(void **state)
{
	(void)state;
	free(TAKE(answer_text_of));
	return 0;
}

static const char *ask_line(const char *line)
{
	static struct answer a;
	size_t len = 0;

	(void)answer_free(NULL);
	a = (struct answer){ .out = open_memstream(&answer_text_of, &len) };
	assert_non_null(a.out);
	answer_line(&a, line, strlen(line));
	answer_flush(&a);
	fclose(a.out);
	return answer_text_of;
}

/* planner NULL: the one that PyTorch takes. */
static json_t *ask_planner(json_t *question, const char *planner)
{
	json_t *answer;
	char *line;

	if (planner)
		json_object_set_new(question, "planner", json_string(planner));
	else
		json_object_del(question, "planner");
	line = json_dumps(question, 0);
	answer = json_loads(ask_line(line), JSON_DISABLE_EOF_CHECK, NULL);
	free(line);
	assert_non_null(answer);
	return answer;
}

static bool near(const json_t *want, const json_t *got, double relative)
{
	double w = json_number_value(want), g = json_number_value(got);

	return json_is_number(want) && json_is_number(got) && fabs(w - g) <= relative * fabs(w);
}

static bool same_steps(const json_t *want, const json_t *got)
{
	static const char *const key[] = { "op", "mesh_dim", "from", "to" };
	bool same = json_is_array(got) && json_array_size(want) == json_array_size(got);

	for (size_t i = 0; same && i < json_array_size(want); i++) {
		const json_t *w = json_array_get(want, i), *g = json_array_get(got, i);

		for (size_t k = 0; same && k < ARRAY_LEN(key); k++)
			same = json_equal(json_object_get(w, key[k]), json_object_get(g, key[k]));
		same = same && near(json_object_get(w, "us"), json_object_get(g, "us"), 1e-9) &&
		       near(json_object_get(w, "bytes"), json_object_get(g, "bytes"), 1e-9);
	}
	return same;
}

static void expect_planner(json_t *question, const char *planner, const char *key)
{
	const json_t *want = json_object_get(question, key);
	json_t *got = ask_planner(question, planner);

	if (!near(json_object_get(want, "us"), json_object_get(got, "us"), 1e-9) ||
	    !json_equal(json_object_get(want, "trace"), json_object_get(got, "trace")) ||
	    !same_steps(json_object_get(want, "steps"), json_object_get(got, "steps")))
		fail_msg("%s\n%s is answered\n%s", json_dumps(question, 0), key, answer_text_of);
	json_decref(got);
}

static void expect_file(const char *path, uint32_t lines)
{
	static char line[1 << 16];
	FILE *f = fopen(path, "r");
	uint32_t n = 0;

	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	for (; fgets(line, sizeof line, f); n++) {
		json_t *q = json_loads(line, 0, NULL);
		const char *uses = json_string_value(json_object_get(q, "torch_uses"));

		assert_non_null(uses);
		if (json_object_get(q, uses))
			expect_planner(q, NULL, uses);
		if (json_object_get(q, "greedy"))
			expect_planner(q, "greedy", "greedy");
		expect_planner(q, "graph", "graph");
		json_decref(q);
	}
	assert_int_equal(n, lines);
	fclose(f);
}

TEST(every_redistribution_is_answered_as_pytorch_answered_it)
{
	expect_file("tests/vectors/layout/redistribute_cost.jsonl", 200);
}

TEST(so_are_strided_ones_empty_ones_and_those_that_make_sums)
{
	expect_file("tests/vectors/layout/redistribute_more.jsonl", 150);
}

static double own_us(const char *question, double *ret_torch_us)
{
	json_t *got = json_loads(ask_line(question), JSON_DISABLE_EOF_CHECK, NULL);
	const json_t *own = json_object_get(got, "own");
	double us = json_number_value(json_object_get(own, "us"));

	*ret_torch_us = json_number_value(json_object_get(got, "us"));
	assert_true(json_is_string(json_object_get(own, "trace")));
	assert_true(json_array_size(json_object_get(own, "steps")) > 0);
	json_decref(got);
	return us;
}

TEST(our_own_model_prices_what_pytorch_prices_wrongly)
{
	double torch;

	/* Strided shards are not gathered for nothing. */
	assert_true(own_us("{\"shape\":[4096],\"mesh\":[4],\"dtype\":\"float32\","
			   "\"devices_per_host\":8,\"src\":[\"_S(0, 2)\"],\"dst\":[\"R\"]}",
			   &torch) > 0);
	assert_true(torch == 0);
	/* Nothing is sent over a mesh dimension of size 1. */
	assert_true(own_us("{\"shape\":[4096],\"mesh\":[1],\"dtype\":\"float32\","
			   "\"devices_per_host\":8,\"src\":[\"S(0)\"],\"dst\":[\"R\"]}",
			   &torch) == 0);
	assert_true(torch > 6);
}

TEST(of_a_tensor_that_is_too_large_for_our_model_pytorchs_price_is_answered)
{
	const char *got =
		ask_line("{\"shape\":[9223372036854775807],\"mesh\":[2],\"dtype\":\"float32\","
			 "\"devices_per_host\":8,\"src\":[\"S(0)\"],\"dst\":[\"R\"]}");

	assert_says(got, "{\"us\":");
	assert_says(got, "\"own\":null}");
}

TEST(of_a_mesh_that_is_too_large_our_own_price_is_unknown)
{
	assert_says(ask_line("{\"shape\":[4096],\"mesh\":[128,129],\"dtype\":\"int8\","
			     "\"devices_per_host\":8,\"src\":[\"R\",\"S(0)\"],"
			     "\"dst\":[\"R\",\"R\"]}"),
		    "\"own\":null}");
}

/* All mistakes of a question stand in its answer. */
TEST(what_cannot_be_redistributed_is_refused_with_all_that_is_wrong)
{
	static const struct {
		const char *question, *what[6];
	} of[] = {
		{ "{\"shape\":[8,-1],\"mesh\":[0],\"dtype\":\"f\",\"devices_per_host\":0,\"src\":["
		  "],\"dst\":[],\"planner\":\"best\"}",
		  { "\\\"mesh\\\"[0] is 0", "\\\"shape\\\"[1] is -1", "\\\"dtype\\\"",
		    "\\\"devices_per_host\\\" must be", "\\\"planner\\\" must be" } },
		{ "{\"shape\":[8],\"mesh\":[2,2],\"dtype\":\"bool\",\"devices_per_host\":8,"
		  "\"src\":[\"S(1)\",\"_S(0, 0)\"],\"dst\":[\"R\"]}",
		  { "\\\"src\\\"[0]: there is no dimension 1",
		    "\\\"src\\\"[1]: a split factor of 0", "\\\"dst\\\" must be an array of 2" } },
		{ "{\"shape\":[8],\"mesh\":[2,2,2],\"dtype\":\"F32\",\"devices_per_host\":8,"
		  "\"src\":[\"R\",\"P(sum)\",\"_S(0, 9)\"],\"dst\":[\"P(sum)\",\"P(avg)\",\"R\"]}",
		  { "mesh dimension 0: R cannot become P(sum)",
		    "mesh dimension 1: P(sum) cannot become P(avg)",
		    "the source state, mesh dimension 2: a split factor of 9 is beyond the size" } },
		{ "{\"shape\":[8],\"mesh\":[2,2],\"dtype\":\"F32\",\"devices_per_host\":8,"
		  "\"src\":[\"S(0)\",\"S(0)\"],\"src_order\":[[0,[1,1]]],\"dst\":[\"R\",\"S(0)\"],"
		  "\"dst_order\":[[0,[0]]]}",
		  { "\\\"src_order\\\": mesh dimension 1 appears twice",
		    "\\\"dst_order\\\": mesh dimension 0 does not shard" } },
		{ "{\"shape\":[8],\"mesh\":[2,2],\"dtype\":\"F32\",\"devices_per_host\":8,"
		  "\"src\":[\"P(max)\",\"P(sum)\"],\"dst\":[\"P(min)\",\"P(avg)\"]}",
		  { "\\\"src\\\": placement 1", "\\\"dst\\\": placement 1" } },
		{ "{\"shape\":[8],\"mesh\":[2],\"dtype\":\"F32\",\"devices_per_host\":8,"
		  "\"src\":[\"S(0)\"],\"dst\":[\"P(avg)\"]}",
		  { "mesh dimension 0: S(0) cannot become P(avg)" } },
		{ "{\"shape\":[8],\"mesh\":[2],\"dtype\":\"F32\",\"devices_per_host\":8,"
		  "\"src\":[\"_S(0, 2)\"],\"dst\":[\"R\"],\"planner\":\"greedy\"}",
		  { "greedy pass takes no strided placement" } },
		{ "{\"shape\":[8],\"mesh\":[2],\"dtype\":\"F32\",\"devices_per_host\":8,"
		  "\"dst\":[\"R\"],\"ranks\":[4294967296,1]}",
		  { "\\\"src\\\" must be an array of 1", "at most 4294967295 can be" } },
	};

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		const char *got = ask_line(of[i].question);

		assert_int_equal(strncmp(got, "{\"error\":", 9), 0);
		assert_string_equal(strchr(got, '\n'), "\n");
		for (size_t k = 0; k < ARRAY_LEN(of[i].what) && of[i].what[k]; k++)
			assert_says(got, of[i].what[k]);
	}
}

UNIT(.teardown = answer_free);
