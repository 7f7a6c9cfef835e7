/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_layout.c - ckptctl layout: what is drawn, counted and listed, and what is refused. */
#include "tests/lib/cli_rig.h"

/* --- batches --- */

TEST(counts_are_those_of_the_runs_that_are_listed)
{
	const char *path = "tests/vectors/layout/strided.jsonl", *listed, *counted;
	char *copy;

	RUN_IS(0, "layout", "--batch", path);
	listed = copy = TAKE(got.out);
	RUN_IS(0, "layout", "--batch", "--summary", path);
	for (counted = got.out; *listed; listed = strchr(listed, '\n') + 1) {
		json_t *x = json_loads(listed, JSON_DISABLE_EOF_CHECK, NULL),
		       *y = json_loads(counted, JSON_DISABLE_EOF_CHECK, NULL);

		assert_int_equal(json_array_size(x), json_array_size(y));
		for (size_t i = 0; i < json_array_size(x); i++) {
			const json_t *runs = json_object_get(json_array_get(x, i), "runs"),
				     *n = json_array_get(y, i);
			uint64_t elements = 1;

			for (size_t d = 0; d < json_array_size(runs); d++) {
				const json_t *list = json_array_get(runs, d);
				uint64_t total = 0;

				for (size_t k = 0; k < json_array_size(list); k++)
					total += (uint64_t)(json_integer_value(json_array_get(
								    json_array_get(list, k), 1)) -
							    json_integer_value(json_array_get(
								    json_array_get(list, k), 0)));
				elements *= total;
				assert_int_equal(json_array_size(list),
						 json_integer_value(item(n, "run_counts", d)));
			}
			assert_int_equal(number(n, "elements"), elements);
			assert_null(json_object_get(n, "runs"));
		}
		json_decref(x);
		json_decref(y);
		counted = strchr(counted, '\n') + 1;
	}
	assert_string_equal(counted, "");
	free(copy);
}

/* Each line of the file; in the golden file, why. */
TEST(questions_that_must_be_refused_say_why)
{
	const char *path = path_of("%s/refused.jsonl", top);
	uint32_t n = 0;

	copy_file("tests/cli/layout_refused.jsonl", path);
	SHOWN_IS(0, "layout", "--batch", path);
	for (const char *p = got.out; *p; p = strchr(p, '\n') + 1, n++)
		assert_true(!strncmp(p, "{\"error\":\"", 10));
	assert_int_equal(n, 71);
}

/* --- one question, for people --- */

TEST(a_matrix_is_drawn_with_its_blocks)
{
	RUN_IS(0, "layout", "--shape", "7,5", "--mesh", "dp=3,tp=2", "--placements", "S(0), S(-1)");
	assert_string_equal(got.out,
			    "  shape   [7, 5]\n"
			    "  mesh    dp=3,tp=2\n"
			    "  layout  Shard(0)@dp, Shard(1)@tp\n"
			    "\n"
			    "  down: dimension 0, across: dimension 1\n"
			    "   0              3         5\n"
			    " 0 +--------------+---------+\n"
			    "   |              |         |\n"
			    "   |      r0      |   r1    |\n"
			    "   |              |         |\n"
			    " 3 +--------------+---------+\n"
			    "   |              |         |\n"
			    "   |      r2      |   r3    |\n"
			    "   |              |         |\n"
			    " 6 +--------------+---------+\n"
			    "   |      r4      |   r5    |\n"
			    " 7 +--------------+---------+\n"
			    "every element is held once, in 6 blocks of 2 to 9 elements\n");
	assert_string_equal(got.err, "");
}

TEST(a_question_brings_its_own_ranks_and_its_operands_are_named)
{
	SHOWN_IS(0, "layout",
		 "{\"shape\":[16],\"mesh\":[2,2],\"placements\":"
		 "[\"_S(0, 2)\",\"P(sum)\"],\"ranks\":[7,3,5,1]}");
}

TEST(scalars_and_meshes_of_one_are_drawn)
{
	SHOWN_IS(0, "layout", "--shape", "[]", "--mesh", "dp=2", "--placements", "R");
	SHOWN_IS(0, "layout", "{\"shape\":[3],\"mesh\":[],\"placements\":[]}");
	SHOWN_IS(0, "layout", "--shape", "0,4", "--mesh", "dp=2", "--placements", "S(0)");
}

/* The ranks of the answer as JSON text, to be freed by free. */
static char *ranks_of(const char *placements, const char *mode)
{
	json_t *j;
	char *text;

	if (mode)
		RUN("layout", "--json", "--shape", "13, 4", "--mesh", "dp=3,tp=2", "--placements",
		    placements, "--mode", mode);
	else
		RUN("layout", "--json", "--shape", "[13,4]", "--mesh", "dp=3,tp=2", "--placements",
		    placements);
	assert_string_equal(got.err, "");
	j = json_out("ckptd.layout/1");
	text = json_dumps(member(j, "ranks", JSON_ARRAY), 0);
	json_decref(j);
	return text;
}

TEST(a_layout_is_the_same_in_all_the_ways_to_say_it)
{
	static const char *const same_ways[][4] = {
		{ "Shard(0)@tp, Shard(0)@dp", NULL, "_S(0, 2),S(0)", "order" },
		{ "Shard(0)@dp, Shard(0)@tp", NULL, "[S(0), S(-2)]", NULL },
		{ "StridedShard(0, 2)@dp", NULL, "_S(0,2), R", "literal" },
		{ "flat: Shard(0)@dp, Shard(0)@tp", NULL, "S(0),S(0)", "flat" },
		{ "(Shard(dim=0), Shard(dim=1))", NULL, "[S(0), S(1)]", NULL },
		{ "(_StridedShard(dim=0, split_factor=2), Shard(dim=0))", "order", "_S(0, 2),S(0)",
		  "order" },
		{ "[Shard(-1), Replicate()]", NULL, "Shard(1)@dp", NULL },
		{ "Replicate(), Replicate()", NULL, "Replicate()", NULL },
		{ "Shard(0)@dp, Shard(0)@tp", "flat", "S(0),S(0)", "flat" },
		{ "unflatten_pad: StridedShard(0, 3)@tp", NULL, "R,_S(0, 3)", "unflatten_pad" },
		{ "Replicate", NULL, "R,R", NULL }
	};

	for (size_t i = 0; i < ARRAY_LEN(same_ways); i++) {
		char *x = ranks_of(same_ways[i][0], same_ways[i][1]);
		char *y = ranks_of(same_ways[i][2], same_ways[i][3]);

		assert_string_equal(x, y);
		free(x);
		free(y);
	}
}

TEST(json_has_every_rank_with_its_index_set)
{
	json_t *j;
	const json_t *rank;

	RUN("layout", "--json", "--shape", "13,4", "--mesh", "dp=3,tp=2", "--placements",
	    "Shard(0)@tp, Shard(0)@dp");
	j = json_out("ckptd.layout/1");
	assert_json_has(
		j,
		"{'mesh':'dp=3,tp=2', 'layout':'Shard(0)@tp, Shard(0)@dp', 'elements':52, 'rank_count':6, 'held_elements':52, 'elements_min':4, 'elements_max':12, 'copies_min':1}");
	assert_int_equal(count(j, "ranks"), 6);
	rank = item(j, "ranks", 5);
	assert_json_has(rank, "{'rank':5, 'elements':8}");
	assert_int_equal(json_integer_value(item(rank, "coord", 0)), 2);
	json_decref(j);
	/* Counted, the runs are not listed, and nothing else is missing. */
	RUN("layout", "--json", "--summary", "--shape", "13,4", "--mesh", "dp=3,tp=2",
	    "--placements", "Shard(0)@tp, Shard(0)@dp");
	j = json_out("ckptd.layout/1");
	rank = item(j, "ranks", 5);
	assert_json_has(rank, "{'elements':8, 'index':null}");
	json_decref(j);
}

TEST(a_summary_counts_what_could_not_be_listed)
{
	SHOWN_IS(0, "layout", "--summary", "--shape", "64000000,10", "--mesh", "fsdp=64",
		 "--placements", "_S(0, 1000000)");
	SHOWN_IS(0, "layout", "--summary", "--shape", "3", "--mesh", "dp=2,fsdp=4", "--placements",
		 "R,S(0)");
}

TEST(the_picture_replaces_nothing_but_a_picture)
{
	const char *svg = path_of("%s/w.svg", top), *other = path_of("%s/precious", top);
	char buf[600] = "", *head = buf;
	FILE *f;

	for (uint32_t i = 0; i < 2; i++)
		SHOWN_IS(0, "layout", "--shape", "7,5", "--mesh", "dp=3,tp=2", "--placements",
			 "S(0),S(1)", "--svg", svg);
	f = fopen(svg, "r");
	assert_non_null(f);
	assert_true(fread(buf, 1, sizeof buf - 1, f) > 100);
	fclose(f);
	assert_says(head, "<svg");
	assert_says(head, "[7, 5] over dp=3,tp=2");
	f = fopen(other, "w");
	fputs("data", f);
	fclose(f);
	SHOWN_IS(11, "layout", "--shape", "7,5", "--mesh", "dp=3,tp=2", "--placements", "S(0),S(1)",
		 "--svg", other);
}

TEST(wrong_words_are_refused_with_what_to_write)
{
	static const char *const words[][5] = {
		/* shape, mesh, placements, mode, why */
		{ "7,x", "dp=2", "S(0)", "literal", "character 3: expected a size" },
		{ "7;5", "dp=2", "S(0)", "literal", "character 2: expected a comma or the end" },
		{ "[7]5", "dp=2", "S(0)", "literal",
		  "character 4: unexpected characters after the shape" },
		{ "-7", "dp=2", "S(0)", "literal", "character 1: expected a size" },
		{ "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "dp=2", "S(0)", "literal", "at most 16" },
		{ "[7", "dp=2", "S(0)", "literal", "its bracket is not closed" },
		{ "[", "dp=2", "R", "literal", "its bracket is not closed" },
		{ "9223372036854775808", "dp=2", "S(0)", "literal", "more than 9223" },
		{ "99999999999999999999999", "dp=2", "S(0)", "literal", "more than 9223" },
		{ "4294967296,4294967296", "dp=2", "S(0)", "literal", "more than 9223" },
		{ "7", "dp", "S(0)", "literal", "mesh" },
		{ "7", "dp=2", "S(0),R", "literal", "2 placements for the 1 dimensions" },
		{ "7", "dp=2", "S(1)", "literal", "no dimension 1" },
		{ "7", "dp=2", "Shard[0]", "literal", "is not a placement" },
		{ "7", "dp=2", "(S(0)", "literal", "the bracket is not closed" },
		{ "7", "dp=2", "[S(0)]]", "literal", "character 7: this is too much" },
		{ "7", "dp=2", "S(0))", "literal", "is not a placement" },
		{ "7", "dp=2", "Shard(0)@tp", "literal", "no dimension \"tp\"" },
		{ "7", "dp=2", "Shard(0)@dp", "order", "stand in the order in which they cut" },
		{ "7", "dp=2", "_S(0, 3)", "order", "" },
		{ "7", "dp=2", "_S(0, 3)", "flat", "takes no _S" },
		{ "7", "dp=2", "S(0)", "nested", "--mode=nested" }
	};

	SHOWN_IS(2, "layout");
	SHOWN_IS(2, "layout", "--shape", "7");
	SHOWN_IS(2, "layout", "{\"mesh\":[2],\"strided\":[\"R\"]}");
	SHOWN_IS(2, "layout", "nonsense");
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		SHOWN_IS(2, "layout", "--shape", words[i][0], "--mesh", words[i][1], "--placements",
			 words[i][2], "--mode", words[i][3]);
		assert_string_equal(got.out, "");
	}
	RUN_IS(2, "layout", "{}", "--mesh", "dp=2");
	RUN_IS(2, "layout", "--batch", "--svg", "x");
	RUN_IS(2, "layout", "--batch", "--shape", "7");
	RUN_IS(2, "layout", "{}", "--summary", "--svg", "x");
	RUN_IS(10, "layout", "--batch", path_of("%s/none", top));
	SHOWN_IS(1, "layout", "--batch", top);
}

TEST(what_cannot_be_drawn_can_be_counted)
{
	SHOWN_IS(1, "layout", "--shape", "1000000", "--mesh", "dp=1048576", "--placements", "S(0)");
	SHOWN_IS(0, "layout", "--shape", "1000000", "--mesh", "dp=1048576", "--placements", "S(0)",
		 "--summary");
	SHOWN_IS(2, "layout",
		 "{\"shape\":[2],\"mesh\":[1],\"placements\":[\"R\"],"
		 "\"ranks\":[4294967296]}");
	SHOWN_IS(0, "layout", "--shape", "9223372036854775807", "--mesh", "dp=2", "--placements",
		 "S(0)", "--summary");
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
