/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_steps.c - ckptctl plan --steps: what is drawn, compared and explained, and what is
 * refused. */
#include "ckpt/cli/text_file.h"
#include "tests/lib/cli_rig.h"
#include <sys/time.h>

#define SCHEMA "ckptd.redistribution/1"

TEST(the_cheapest_steps_are_drawn_rank_by_rank)
{
	SHOWN_IS(0, "plan", "--steps", "S(0)[1]S(0)[0] -> RS(1)", "--mesh", "2,2", "--shape",
		 "17,5");
	SHOWN_IS(0, "plan", "--steps", "S(0) -> R", "--mesh", "dp=4", "--shape", "5", "--ascii");
}

TEST(what_pytorch_draws_wrongly_is_drawn_as_it_is)
{
	/* Uneven and strided: two runs of a rank, and one rank with nothing. */
	SHOWN_IS(0, "plan", "--steps", "_S(0, 2)R -> RS(0)", "--mesh", "2,3", "--shape", "7",
		 "--dtype", "f8_e4m3");
}

TEST(many_ranks_are_drawn_as_the_tensor_with_its_cuts)
{
	SHOWN_IS(0, "plan", "--steps", "S(0)S(1)R -> RS(1)S(0)", "--mesh", "dp=4,tp=4,ep=4",
		 "--shape", "4096,11008,3");
}

TEST(the_others_that_lost_are_explained)
{
	SHOWN_IS(0, "plan", "--steps", "P(sum)S(0) -> S(0)S(1)", "--mesh", "8,4", "--shape",
		 "4096,4096", "--dtype", "F32", "--explain", "--mem-limit", "1G");
}

TEST(all_that_is_wrong_is_said_at_once)
{
	SHOWN_IS(2, "plan", "--steps", "S(0)R", "--mesh", "2,2", "--shape", "4");
	SHOWN_IS(2, "plan", "--steps", "S(0) -> R");
	SHOWN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "2,x=2", "--shape", "4;4", "--dtype",
		 "bf17", "--mem-limit", "much", "--links", "nowhere");
	SHOWN_IS(2, "plan", "--steps", "S(2)Q -> S(0)[0]S(0)[0]", "--mesh", "2,2", "--shape",
		 "4,4");
	SHOWN_IS(2, "plan", "--steps", "RP(max) -> P(sum)P(sum)", "--mesh", "2,2", "--shape",
		 "4,4");
	SHOWN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "4", "--links",
		 "nowhere");
	SHOWN_IS(2, "plan", "--steps", "R_S(0, 9) -> P(sum)R", "--mesh", "2,2", "--shape", "4",
		 "--links", "nowhere", "--dtype", "bf17");
	SHOWN_IS(2, "plan", "--steps", "R_S(0, 9) -> P(sum)R", "--mesh", "2,2", "--shape", "4");
	SHOWN_IS(2, "plan", "latest", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "4",
		 "--layout", "x=R", "--replicate", "m0");
	SHOWN_IS(2, "plan", "--mesh", "2", "--shape", "4", "--dtype", "F32", "--links", "h100");
	SHOWN_IS(13, "plan", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "1024",
		 "--mem-limit", "16");
}

TEST(a_state_beyond_the_limit_is_none_even_if_nothing_is_to_be_done)
{
	const json_t *j;

	RUN_IS(13, "plan", "--steps", "S(0) -> S(0)", "--mesh", "2", "--shape", "1024",
	       "--mem-limit", "1023");
	assert_says(got.err, "no plan fits into the 1023 B");
	assert_says(got.err, "--mem-limit 1024 is enough");
	j = json_run(SCHEMA, "plan", "--json", "--steps", "S(0) -> S(0)", "--mesh", "2", "--shape",
		     "1024", "--mem-limit", "1K");
	j = json_array_get(member(j, "plans", JSON_ARRAY), 0);
	assert_int_equal(json_integer_value(json_object_get(j, "peak_bytes")), 1024);
}

static void on_alarm(int sig)
{
	(void)sig;
	cli_stop_signal = SIGINT;
	cli_stops = 1;
}

/* A FIFO without a writer is waited for: for longer than one poll. */
TEST(a_signal_ends_the_wait_for_a_cost_file)
{
	const struct itimerval soon = { .it_value.tv_usec = 300 * 1000 };
	const struct sigaction act = { .sa_handler = on_alarm };
	const char *fifo = path_of("%s/costs", top);
	struct sigaction was;

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(sigaction(SIGALRM, &act, &was), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	RUN_IS(130, "plan", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "4", "--links", fifo);
	cli_stops = cli_stop_signal = 0;
	assert_int_equal(sigaction(SIGALRM, &was, NULL), 0);
	assert_says(got.err, "interrupted while reading the cost file");
}

TEST(a_fifo_without_a_writer_is_not_waited_for_without_end)
{
	const char *fifo = path_of("%s/silent", top);

	assert_int_equal(mkfifo(fifo, 0600), 0);
	text_file_silent_ns = 50 * NS_PER_MS;
	RUN_IS(15, "plan", "--steps", "S(0) -> R", "--mesh", "dp=4", "--shape", "5", "--links",
	       fifo);
	assert_says(got.err, "gave nothing for too long");
	text_file_silent_ns = 10 * NS_PER_S;
}

TEST(an_option_that_counts_once_is_given_once)
{
	RUN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "dp=4", "--mesh", "dp=2", "--shape",
	       "5");
	assert_says(got.err, "--mesh is given twice, as dp=4 and as dp=2");
	RUN_IS(2, "ls", "-C", top, "--store", "/tmp");
	RUN_IS(2, "-C", top, "ls", "-C", "/tmp");
	RUN_IS(0, "plan", "--steps", "S(0) -> R", "--mesh", "dp=4", "--shape", "5", "-q", "-q");
}

TEST(a_long_search_ends_when_it_is_asked_to)
{
	cli_stops = 1;
	cli_stop_signal = SIGINT;
	RUN_IS(130, "plan", "--mesh", "2,2,2,2,2,2,2,2", "--shape", "64,64,64,64,64,64,64,64",
	       "--steps", "S(0)S(1)S(2)S(3)S(4)S(5)S(6)S(7) -> S(7)S(6)S(5)S(4)S(3)S(2)S(1)S(0)");
	cli_stops = cli_stop_signal = 0;
	assert_says(got.err, "stopped after 1 states");
	assert_silent(got.out, "cheapest");
}

TEST(a_tensor_that_is_too_large_is_a_wrong_question)
{
	RUN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "9223372036854775807");
	assert_says(got.err, "more than 2^62 bytes");
}

/* What was not compared may be cheaper. (The search would look at too many states.) */
TEST(what_is_too_large_to_be_counted_is_not_called_dearer)
{
	const json_t *j, *plans;

	RUN_IS(0, "plan", "--mesh", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2", "--shape", "64,3", "--steps",
	       "S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0)S(0) -> "
	       "S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)S(1)");
	assert_says(got.out, "; not compared: graph\n");
	assert_says(got.out, "too large to be counted");
	j = json_run(SCHEMA, "plan", "--json", "--steps", "_S(0, 2) -> R", "--mesh", "2", "--shape",
		     "8");
	plans = member(j, "plans", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(plans); i++)
		assert_true(json_is_false(json_object_get(json_array_get(plans, i), "too_large")));
}

TEST(a_dtype_has_our_name_or_pytorchs)
{
	static const char *const name[] = { "F32", "f32", "float32" };

	for (size_t i = 0; i < ARRAY_LEN(name); i++)
		assert_string_equal(
			string(json_run(SCHEMA, "plan", "--json", "--steps", "S(0) -> R", "--mesh",
					"2", "--shape", "4", "--dtype", name[i]),
			       "dtype"),
			"F32");
	RUN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "4", "--dtype",
	       "float33");
}

TEST(a_mesh_of_sizes_has_no_comma_too_many)
{
	RUN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "2,", "--shape", "4");
	assert_says(got.err, "expected a size");
	RUN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", ",2", "--shape", "4");
	RUN_IS(0, "plan", "--steps", "S(0)R -> RR", "--mesh", " 2 , 3 ", "--shape", "4");
}

TEST(a_price_that_is_higher_by_rounding_is_not_so_many_times_the_cheapest)
{
	RUN_IS(0, "plan", "--steps", "P(avg)P(sum) -> RS(0)", "--mesh", "2,2", "--shape", "12");
	assert_null(strstr(got.out, "1 times"));
}

/* "us" of the plan with this name; -1: it has no answer. */
static double plan_us(const json_t *j, const char *name)
{
	const json_t *plans = member(j, "plans", JSON_ARRAY);

	for (size_t i = 0; i < json_array_size(plans); i++) {
		const json_t *x = json_array_get(plans, i), *us = json_object_get(x, "us");

		if (!strcmp(json_string_value(json_object_get(x, "planner")), name))
			return json_is_null(us) ? -1 : json_number_value(us);
	}
	fail_msg("no plan %s", name);
	return -1;
}

TEST(no_plan_is_cheaper_than_the_one_that_is_taken)
{
	static const char *const asked[][3] = {
		{ "S(0)[1]S(0)[0]R -> RS(1)S(0)", "2,2,2", "17,5" },
		{ "S(0)R -> RS(1)", "4,2", "4096,4096" },
		{ "P(sum)P(sum) -> RR", "2,8", "1000000" },
		{ "_S(0, 2)S(0) -> S(0)S(0)", "2,2", "9,4" },
		{ "R -> R", "2", "[]" },
		{ "S(1) -> S(0)", "3", "0,8" },
	};

	for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
		const json_t *j = json_run(SCHEMA, "plan", "--json", "--steps", asked[i][0],
					   "--mesh", asked[i][1], "--shape", asked[i][2]);
		static const char *const name[] = { "graph", "greedy", "direct", "pytorch" };
		double us = json_number_value(json_object_get(j, "us"));
		const char *best = json_string_value(json_object_get(j, "planner"));

		assert_true(plan_us(j, best) == us);
		for (size_t k = 0; k < ARRAY_LEN(name); k++)
			assert_true(plan_us(j, name[k]) < 0 || plan_us(j, name[k]) >= us);
	}
}

/* By PyTorch's own model what its vectors say; tests/vectors/layout has 200 more. */
TEST(pytorchs_own_price_is_pytorchs)
{
	const json_t *j = json_run(SCHEMA, "plan", "--json", "--steps", "S(0) -> R", "--mesh", "3",
				   "--shape", "30", "--dtype", "bf16", "--links", "h100");
	const json_t *torch = member(j, "pytorch", JSON_OBJECT);
	double us = json_number_value(json_object_get(torch, "us"));

	assert_true(us > 7.80042477 && us < 7.80042478);
}

TEST(the_picture_is_written_and_nothing_of_others_replaced)
{
	const char *svg = path_of("%s/steps.svg", top), *other = path_of("%s/precious", top);
	cleanup_free char *text = NULL;
	size_t bytes;

	copy_file("LICENSE", other);
	RUN_IS(0, "plan", "--steps", "S(0)R -> RS(1)", "--mesh", "2,2", "--shape", "17,5", "--svg",
	       svg);
	assert_says(got.out, "the picture is in ");
	text = file_bytes(svg, &bytes);
	assert_says(text, "<title>S(0)R -&gt; RS(1)</title>");
	assert_says(text, "r3");
	RUN_IS(11, "plan", "--steps", "S(0)R -> RS(1)", "--mesh", "2,2", "--shape", "17,5", "--svg",
	       other);
	RUN_IS(2, "plan", "--steps", "S(0) -> R", "--mesh", "8192", "--shape", "8192", "--svg",
	       svg);
	assert_says(got.err, "too many to draw");
	assert_says(got.err, "leave out --svg");
	RUN_IS(0, "plan", "--steps", "S(0) -> R", "--mesh", "8192", "--shape", "8192");
	assert_says(got.out, "too many to draw");
}

/* --- docs/LAYOUTS.md --- */

#define WORDS 16

/* Words of a command, in which quotes are taken away. */
static void words_split(char *text, char *word[WORDS])
{
	uint32_t n = 0;

	while (*(text += strspn(text, " "))) {
		char end = *text == '\'' ? '\'' : ' ';

		assert_true(n < WORDS - 1);
		text += end == '\'';
		word[n++] = text;
		text += strcspn(text, end == ' ' ? " \n" : "'");
		if (*text)
			*text++ = '\0';
	}
	word[n] = NULL;
}

TEST(the_page_shows_what_is_printed)
{
	size_t bytes;
	cleanup_free char *page = file_bytes("docs/LAYOUTS.md", &bytes);
	char *at = strstr(page, "$ ckptctl plan --steps"), *word[WORDS], *shown, *end;
	uint32_t n = 0;

	for (; at; at = strstr(end + 1, "$ ckptctl plan --steps"), n++) {
		shown = strchr(at, '\n');
		*shown++ = '\0';
		end = strstr(shown, "```");
		*end = '\0';
		words_split(at + 2, word);
		assert_string_equal(word[0], "ckptctl");
		RUN_IS(0, word[1], word[2], word[3], word[4], word[5], word[6], word[7], word[8],
		       word[9]);
		assert_string_equal(got.out, shown);
	}
	assert_true(n > 0);
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
