/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_complete.c - what is offered at the end of a command line. That the shells' scripts do
 * something good with it is tests/cli/test_completion.sh's.
 */
#include "ckpt/cli/complete.h"
#include "tests/lib/cli_rig.h"

/* The candidates for the words, as lines. Nothing may ever be said on stderr. */
__attribute__((sentinel)) static const char *offered(const char *word, ...)
{
	char *argv[24] = { (char *)"ckptctl", (char *)"completion", (char *)"complete",
			   (char *)"--" };
	int argc = 4;
	va_list ap;

	va_start(ap, word);
	for (; word; word = va_arg(ap, const char *))
		argv[argc++] = (char *)word;
	va_end(ap);
	run_argv(argc, argv);
	assert_int_equal(got.code, 0);
	assert_string_equal(got.err, "");
	return got.out;
}
#define OFFERED(...) offered(__VA_ARGS__, NULL)

/* Only the words, without what they are. */
static const char *words(const char *lines)
{
	static char buf[65536];
	char *to = buf;
	bool what = false;

	for (; *lines && to < buf + sizeof buf - 1; lines++) {
		what = *lines != '\n' && (what || *lines == '\t');
		if (!what)
			*to++ = *lines == '\n' ? ' ' : *lines;
	}
	*to = 0;
	return buf;
}

static const char *alpha(void)
{
	return path_of("%s/alpha", work);
}

TEST(verbs_are_offered_first_and_after_global_options)
{
	assert_string_equal(words(OFFERED("sho")), "show ");
	assert_string_equal(words(OFFERED("ver")), "verify version ");
	assert_string_equal(words(OFFERED("--json", "-C", work, "sho")), "show ");
	assert_string_equal(words(OFFERED("man", "ver")), "verify version ");
	assert_string_equal(words(OFFERED("completion", "")), "bash zsh fish ");
	assert_string_equal(words(OFFERED("nonsense", "")), "");
	assert_string_equal(words(OFFERED("nonsense")), "");
}

TEST(options_are_those_of_the_verb_and_hidden_words_are_none)
{
	assert_string_equal(words(OFFERED("verify", "--al")), "--all ");
	assert_string_equal(words(OFFERED("version", "--al")), "");
	assert_says(OFFERED("ls", "-"), "\n-C\t");
	assert_silent(OFFERED("ls", "--"), "\n-C\t");
	assert_says(got.out, "--store\t");
	assert_silent(OFFERED("completion", ""), "complete ");
	assert_string_equal(words(OFFERED("ls", "--", "-")), ":dir ");
}

TEST(arguments_that_an_option_can_have_are_offered_in_both_spellings)
{
	assert_string_equal(words(OFFERED("ls", "--color", "a")), "auto always ");
	assert_string_equal(words(OFFERED("ls", "--color=al")), "--color=always ");
	assert_string_equal(words(OFFERED("--color", "never", "sho")), "show ");
	assert_string_equal(words(OFFERED("-C", "")), ":dir ");
	assert_string_equal(words(OFFERED("ls", "--store=")), ":dir ");
}

TEST(steps_are_those_of_the_store_on_the_line_newest_first)
{
	assert_string_equal(words(OFFERED("verify", "-C", alpha(), "")),
			    "latest step:30 step:20 step:10 :dir ");
	assert_says(got.out, ", the latest\n");
	assert_string_equal(words(OFFERED("verify", "-C", alpha(), "step:2")), "step:20 :dir ");
	assert_string_equal(words(OFFERED("-C", alpha(), "verify", "st")),
			    "step:30 step:20 step:10 :dir ");
	assert_string_equal(words(OFFERED(path_of("--store=%s", alpha()), "verify", "la")),
			    "latest :dir ");
	setenv("CKPTD_STORE", alpha(), 1);
	assert_string_equal(words(OFFERED("verify", "la")), "latest :dir ");
	unsetenv("CKPTD_STORE");
	assert_string_equal(words(OFFERED("-C", path_of("\"%s\"", alpha()), "verify", "la")),
			    "latest :dir ");
}

TEST(of_several_jobs_the_steps_are_offered_behind_their_job)
{
	assert_string_equal(words(OFFERED("verify", "-C", work, "")),
			    "alpha@latest alpha@30 alpha@20 alpha@10 beta@latest beta@25 :dir ");
	assert_string_equal(words(OFFERED("wait", "-C", work, "beta@2")), "beta@25 ");
	/* and of one job, if it is named all the same */
	assert_string_equal(words(OFFERED("verify", "-C", alpha(), "alpha@l")),
			    "alpha@latest :dir ");
	assert_string_equal(words(OFFERED("verify", "-C", alpha(), "3")), "30 :dir ");
	assert_string_equal(words(OFFERED("wait", "-C", alpha(), "")), "latest 30 20 10 ");
}

TEST(the_steps_of_a_job_at_a_path_are_offered_behind_the_path)
{
	const char *path = path_of("%s@2", alpha());

	assert_string_equal(words(OFFERED("verify", path)), path_of("%s@20 :dir ", alpha()));
	assert_string_equal(words(OFFERED("verify", path_of("%s/none@", top))), ":dir ");
}

TEST(what_is_offered_names_what_it_says)
{
	const char *const where[] = { work, alpha() };
	char *line, *save, *all;

	for (uint32_t i = 0; i < ARRAY_LEN(where); i++) {
		all = strdup(words(OFFERED("verify", "-C", where[i], "")));
		for (line = strtok_r(all, " ", &save); line; line = strtok_r(NULL, " ", &save))
			if (*line != ':')
				RUN_IS(0, "verify", "-C", where[i], line);
		free(all);
	}
}

TEST(tensors_are_those_of_the_checkpoint_on_the_line)
{
	const char *step = path_of("%s/beta/step-000000000025", work);
	char *all, first[256];

	all = strdup(words(OFFERED("show", step, "")));
	snprintf(first, sizeof first, "%.*s", (int)strcspn(all, " "), all);
	assert_non_null(strchr(first, '/'));
	RUN_IS(0, "show", step, first);
	/* by the name alone too */
	assert_says(OFFERED("show", step, strchr(first, '/') + 1), strchr(first, '/') + 1);
	assert_string_equal(words(OFFERED("show", "-C", alpha(), "latest", "")), all);
	assert_string_equal(words(OFFERED("show", "-C", alpha(), "--tensors", "")), all);
	OFFERED("show", "-C", alpha(), path_of("--tensors=%.3s", first));
	assert_says(got.out, path_of("--tensors=%s\t", first));
	/* Words that stand there once are offered once: a blob of each rank is one name. */
	for (char *w = strtok(all, " "); w; w = strtok(NULL, " ")) {
		OFFERED("show", step, w);
		assert_int_equal(!strncmp(got.out, w, strlen(w)), 1);
		assert_null(strstr(got.out + 1, path_of("\n%s\t", w)));
	}
	free(all);
	assert_string_equal(words(OFFERED("show", step, "x", "")), "");
}

TEST(jobs_are_those_of_the_store_where_no_daemon_runs)
{
	assert_string_equal(words(OFFERED("forget", "-S", "/nonexistent/s", "-C", work, "")),
			    "alpha beta ");
	assert_string_equal(words(OFFERED("-C", work, "forget", "-S", "/nonexistent/s", "b")),
			    "beta ");
	assert_string_equal(
		words(OFFERED("trigger", "-S", "/nonexistent/s", "-C", work, "--job=a")),
		"--job=alpha ");
}

TEST(every_error_is_silence)
{
	const char *none = path_of("%s/none", top);

	assert_string_equal(words(OFFERED("show", "-C", none, "")), ":dir ");
	assert_string_equal(words(OFFERED("show", "-C", none, "latest", "")), "");
	assert_string_equal(words(OFFERED("show", "-C", alpha(), "step:11", "")), "");
	assert_string_equal(words(OFFERED("show", "-C", alpha(), "/dev/null", "")), "");
	RUN_IS(0, "completion", "complete");
	assert_string_equal(got.out, "");
	RUN_IS(0, "completion", "complete", "--");
	assert_string_equal(got.out, "");
}

TEST(no_more_is_offered_than_a_person_reads)
{
	char *many = strdup(path_of("%s/many", top));
	uint32_t lines = 0;

	assert_int_equal(mkdir(many, 0700), 0);
	for (uint32_t i = 0; i < COMPLETE_MAX + 100; i++)
		assert_int_equal(mkdir(path_of("%s/step-%012u", many, i), 0700), 0);
	OFFERED("verify", "-C", many, "");
	for (const char *p = got.out; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, COMPLETE_MAX + 1); /* and :dir */
	free(many);
}

TEST(the_scripts_are_printed_and_wrapped_into_json)
{
	static const char *const shells[] = { "bash", "zsh", "fish" };
	json_t *j;

	for (uint32_t i = 0; i < ARRAY_LEN(shells); i++) {
		RUN_IS(0, "completion", shells[i]);
		assert_string_equal(got.out, complete_script(shells[i]));
		assert_says(got.out, "completion complete --");
		RUN_IS(0, "completion", shells[i], "--json");
		j = json_out("ckptd.completion/1");
		assert_string_equal(string(j, "script"), complete_script(shells[i]));
		assert_string_equal(string(j, "shell"), shells[i]);
		json_decref(j);
	}
	RUN_IS(2, "completion");
	RUN_IS(2, "completion", "csh");
	assert_says(got.err, "csh");
	RUN_IS(2, "completion", "bash", "zsh");
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
