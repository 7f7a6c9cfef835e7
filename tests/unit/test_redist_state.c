/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_redist_state.c - the text of states, and the traces that PyTorch 2.15.0 prints of
 * them (its test_redistribute.py has these).
 */
#include "tests/unit/test_redist_case.h"

TEST(a_state_is_printed_as_it_was_written)
{
	static const char *const text[] = {
		"S(0)[0]S(0)[1]R",	     "S(0)[1]S(0)[0]R", "RS(1)S(0)",
		"_S(0, 3)S(1)P(sum)",	     "P(avg)P(sum)R",	"P(max)RP(max)",
		"S(1)[2]_S(1, 2)[0]S(1)[1]", "_S(0, 1)RR",	"S(0)[2]S(0)[0]S(0)[1]",
	};
	uint32_t dim[] = { 2, 3, 2 };

	for (size_t i = 0; i < ARRAY_LEN(text); i++) {
		cleanup_arena struct arena a = { 0 };
		struct mesh m = redist_mesh(3, dim);
		char buf[REDIST_STATE_BYTES];
		struct ckpt_err err;
		struct layout l;

		assert_ok_err(redist_state_parse(text[i], &m, 2, &a, &l, &err), &err);
		assert_int_equal(l.nplace, 3);
		assert_string_equal(redist_state_print(&m, &l, buf, sizeof buf), text[i]);
	}
}

TEST(a_state_is_read_in_other_spellings_too)
{
	static const struct {
		const char *text, *want;
	} of[] = {
		{ "Shard(0), Replicate() ,Partial()", "S(0)RP(sum)" },
		{ "S(0)S(0)R", "S(0)[0]S(0)[1]R" },
		{ " S(-1)[0] R R ", "S(1)RR" },
		{ "_StridedShard(0, sf=2)R Shard(dim=0)", "_S(0, 2)[0]RS(0)[1]" },
		{ "ReplicateRR", "RRR" },
	};
	uint32_t dim[] = { 2, 3, 2 };

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		cleanup_arena struct arena a = { 0 };
		struct mesh m = redist_mesh(3, dim);
		char buf[REDIST_STATE_BYTES];
		struct ckpt_err err;
		struct layout l;

		assert_ok_err(redist_state_parse(of[i].text, &m, 2, &a, &l, &err), &err);
		assert_string_equal(redist_state_print(&m, &l, buf, sizeof buf), of[i].want);
	}
}

/* All that is wrong is in the message. */
TEST(what_is_no_state_is_refused_with_the_character)
{
	static const struct {
		const char *text, *what[3];
	} of[] = {
		{ "S(0)X", { "character 5", "expected what a redistribution can have: S(DIM)" } },
		{ "S(0)R", { "character 6", "2 placements for the 3 dimensions" } },
		{ "RRRR", { "character 4", "the mesh has fewer dimensions" } },
		{ "S(2)_S(0, 0)R", { "character 3: there is no dimension 2", "character 11" } },
		{ "S(0)[0]S(0)[0]R", { "character 12", "0 to 1, each once" } },
		{ "S(0)[1]S(0)[2]R", { "character 12", "0 to 1, each once" } },
		{ "S(0)[99999999999999999999]S(0)[0]R", { "character 5", "each once" } },
		{ "S(0)[0]S(0)R", { "mesh dimension 1", "needs one too" } },
		{ "S(0)[1]RR", { "character 5", "0 to 0" } },
		{ "R[0]RR", { "character 2", "only what shards" } },
		{ "S(0)[", { "character 6", "expected a place" } },
		{ "S(0)[0RR", { "character 7", "expected ']'" } },
		{ "Only(1)RR", { "character 1", "what a redistribution can have" } },
		{ "P(sum)P(max)R", { "a tensor has one kind" } },
		{ "", { "character 1", "0 placements" } },
	};
	uint32_t dim[] = { 2, 3, 2 };

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		cleanup_arena struct arena a = { 0 };
		struct mesh m = redist_mesh(3, dim);
		struct ckpt_err err = { 0 };
		struct layout l;

		assert_int_equal(redist_state_parse(of[i].text, &m, 2, &a, &l, &err), -EINVAL);
		for (size_t k = 0; k < 3 && of[i].what[k]; k++)
			if (!strstr(err.msg, of[i].what[k]))
				fail_msg("\"%s\": %s\nlacks: %s", of[i].text, err.msg,
					 of[i].what[k]);
	}
}

static void expect_trace(enum redist_planner planner, const char *want)
{
	uint32_t dim[] = { 2, 2, 2 };
	const uint64_t shape[] = { 8, 8 };
	struct redist_case c;
	char from[REDIST_STATE_BYTES], trace[REDIST_TRACE_BYTES];
	const char *to = strrchr(want, '>') + 1;
	struct redist_steps steps;
	struct ckpt_err err = { 0 };

	snprintf(from, sizeof from, "%.*s", (int)(strstr(want, "->") - want), want);
	redist_case_make(&c, 3, dim, 2, shape, from, to);
	struct redist_model torch = redist_torch(8);
	assert_ok_err(redist_plan(&c.problem, planner, &torch, &c.a, &steps, &err), &err);
	assert_string_equal(redist_trace(&c.mesh, &steps, trace), want);
	redist_case_free(&c);
}

TEST(the_greedy_pass_takes_pytorchs_way)
{
	expect_trace(REDIST_GREEDY, "S(0)[0]S(0)[1]S(0)[2]->S(0)[0]S(0)[1]R->S(0)RR->RRR->RS(0)R->"
				    "RS(0)[0]S(0)[1]");
	expect_trace(REDIST_GREEDY, "S(0)[0]S(0)[1]R->S(0)S(1)R->RS(1)R->RS(1)S(0)");
}

TEST(the_search_takes_pytorchs_way)
{
	expect_trace(REDIST_GRAPH, "S(0)[0]S(0)[1]R->S(0)RR->S(0)S(1)R->RS(1)R->RS(1)S(0)");
}
