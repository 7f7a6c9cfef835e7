/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_manual.c - -h, man pages and completion say the same, because they come from the same
 * tables; and a page is text, whatever the tables hold.
 */
#include "ckpt/cli/complete.h"
#include "ckpt/cli/manual.h"
#include "tests/lib/cli_rig.h"

/* The page, the help and the candidates for "VERB --". */
struct said {
	char *page, *help, *candidates;
};

static char *page_of(const struct cli_verb *verb)
{
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	manual_page(f, verb);
	fclose(f);
	return text;
}

/* The page as man(1) would say it: without escapes and fonts. */
static char *plain(char *page)
{
	char *to = page;

	for (const char *p = page; *p; p++) {
		if (*p != '\\') {
			*to++ = *p;
			continue;
		}
		p++;
		if (*p == 'f')
			p++;
		else if (*p == '-')
			*to++ = '-';
		else if (*p == 'e')
			*to++ = '\\';
		else if (*p == '(') {
			*to++ = !strncmp(p, "(aq", 3)	? '\''
				: !strncmp(p, "(ti", 3) ? '~'
				: !strncmp(p, "(ha", 3) ? '^'
							: '`';
			p += 2;
		}
	}
	*to = 0;
	return page;
}

static struct said say(const struct cli_verb *verb)
{
	struct said s = { .page = plain(page_of(verb)) };

	if (verb)
		RUN(verb->name, "-h");
	else
		RUN("-h");
	s.help = strdup(got.out);
	if (verb)
		RUN("completion", "complete", "--", verb->name, "--");
	else
		RUN("completion", "complete", "--", "");
	s.candidates = strdup(got.out);
	return s;
}

static void said_free(struct said *s)
{
	free(s->page);
	free(s->help);
	free(s->candidates);
}

/* Text without its line breaks and indentation, so that words can be looked for in what was
 * wrapped. */
static char *unwrapped(const char *text)
{
	char *flat = malloc(strlen(text) + 1), *to = flat;

	for (; *text; text++)
		if (*text != '\n' && *text != ' ')
			*to++ = *text;
		else if (to > flat && to[-1] != ' ')
			*to++ = ' ';
	*to = 0;
	return flat;
}

/* Each paragraph of words is in text. */
static void assert_tells(const char *text, const char *words)
{
	char *flat = unwrapped(text), *all = strdup(words), *save, *want;

	for (char *p = strtok_r(all, "\n", &save); p; p = strtok_r(NULL, "\n", &save)) {
		want = unwrapped(p);
		assert_says(flat, want);
		free(want);
	}
	free(flat);
	free(all);
}

/* An option of one name may take something else with another verb. */
static bool takes_name(const struct cli_verb *verb, const char *name)
{
	for (uint32_t i = 0; i < cli_option_count; i++)
		if (!strcmp(cli_options[i].name, name) && cli_verb_takes(verb, &cli_options[i]))
			return true;
	return false;
}

TEST(every_option_of_every_verb_is_in_its_page_its_help_and_its_completion)
{
	uint32_t n = 0;

	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		struct said s = say(*v);

		assert_tells(s.page, (*v)->help);
		assert_tells(s.page, (*v)->about);
		assert_tells(s.help, (*v)->help);
		assert_tells(s.help, (*v)->about);
		for (const struct cli_example *e = (*v)->example; e->command; e++) {
			assert_tells(s.page, e->command);
			assert_tells(s.page, e->what);
			assert_tells(s.help, e->command);
		}
		for (uint32_t i = 0; i < cli_option_count; i++) {
			const struct cli_option *o = &cli_options[i];
			const char *help = o->global ? o->help : NULL;
			char dashes[64], line[80];

			for (const struct cli_verb_option *w = (*v)->option; w && w->id != OPT_NONE;
			     w++)
				if (w->id == o->id)
					help = w->help;
			snprintf(dashes, sizeof dashes, "--%s%s%s", o->name,
				 !o->arg     ? ""
				 : o->letter ? " "
					     : "=",
				 o->arg ? o->arg : "");
			snprintf(line, sizeof line, "--%s\t", o->name);
			if (!help) {
				if (!takes_name(*v, o->name))
					assert_silent(s.candidates, line);
				continue;
			}
			n++;
			assert_says(s.page, dashes);
			assert_tells(s.page, help);
			assert_says(s.help, dashes);
			assert_tells(s.help, help);
			assert_says(s.candidates, line);
			assert_says(s.candidates, help);
		}
		said_free(&s);
	}
	assert_true(n > 30);
}

TEST(every_verb_is_in_the_page_the_help_and_the_completion_of_the_command)
{
	struct said s = say(NULL);
	char word[80];

	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		snprintf(word, sizeof word, "ckptctl-%s (1)", (*v)->name);
		assert_says(s.page, word);
		snprintf(word, sizeof word, "\n  %s ", (*v)->name);
		assert_says(s.help, word);
		snprintf(word, sizeof word, "%s\t%s\n", (*v)->name, (*v)->help);
		assert_says(s.candidates, word);
	}
	for (const struct manual_exit *e = manual_exits; e->words; e++) {
		assert_says(s.page, e->words);
		assert_says(s.help, e->words);
	}
	for (const struct manual_variable *v = manual_variables; v->name; v++)
		assert_says(s.page, v->name);
	said_free(&s);
}

TEST(the_arguments_that_an_option_can_have_are_told)
{
	char buf[256];

	assert_string_equal(
		manual_option_help(manual_option(OPT_STATE), "how far", buf, sizeof buf),
		"how far: staged, persisted or committed");
	assert_string_equal(manual_option_help(manual_option(OPT_COLOR), "auto, always, never", buf,
					       sizeof buf),
			    "auto, always, never");
	assert_string_equal(manual_option_help(manual_option(OPT_JSON), "JSON", buf, sizeof buf),
			    "JSON");
}

static const struct cli_verb odd = {
	.name = "odd",
	.help = ".so is no request",
	.synopsis = (const char *const[]){ "'A \\B", NULL },
	.about = ".ex \\fB 'quoted' a-b ~^` and more\n'br begins another paragraph",
	.example = (const struct cli_example[]){ { ".de x", "\\n(.H" }, { NULL, NULL } },
	.exits = "0; 4 one, or two; both; 10 none.",
};

TEST(what_a_table_holds_is_text_in_a_page_and_never_a_request)
{
	static const char *const requests[] = { ".TH", ".SH", ".SS", ".PP",
						".TP", ".BR", ".br", ".\\\"" };
	char *page = page_of(&odd), *text;

	for (const char *line = page; *line; line = strchr(line, '\n') + 1) {
		bool known = false;

		if (*line != '.' && *line != '\'')
			continue;
		for (uint32_t i = 0; i < ARRAY_LEN(requests); i++)
			known |= !strncmp(line, requests[i], strlen(requests[i]));
		if (!known)
			fail_msg("a request: %.30s", line);
	}
	text = plain(page);
	assert_says(text, ".so is no request");
	assert_says(text, ".ex \\fB 'quoted' a-b ~^` and more\n.PP\n'br begins");
	assert_says(text, "\\n(.H");
	assert_says(text, "\n.TP\n0\ndone\n.TP\n4\none, or two; both\n.TP\n10\nnone\n");
	free(page);
}

TEST(man_prints_a_page_and_wraps_it_into_json)
{
	char *page = page_of(&verb_ls);
	json_t *j;

	RUN_IS(0, "man", "ls");
	assert_string_equal(got.out, page);
	RUN_IS(0, "man", "ls", "--json");
	j = json_out("ckptd.man/1");
	assert_string_equal(string(j, "page"), page);
	assert_json_has(j, "{'verb':'ls', 'section':1}");
	json_decref(j);
	RUN("man", "--json");
	assert_json(0, "ckptd.man/1", "{'verb':null}");
	RUN_IS(2, "man", "nonsense");
	assert_says(got.err, "nonsense");
	RUN_IS(2, "man", "nonsense", "--json");
	assert_json_error(2);
	RUN_IS(2, "man", "ls", "show");
	free(page);
}

/* The first candidate for the end of a verb's line. */
static const char *words_offered(const char *verb, const char *word)
{
	RUN("completion", "complete", "--", verb, word);
	got.out[strcspn(got.out, "\t\n")] = 0;
	return got.out;
}

TEST(another_word_leads_to_its_verb)
{
	uint32_t n = 0;

	for (const struct cli_verb *const *v = cli_verbs; *v; v++)
		for (const char *const *s = (*v)->synonyms; s && *s; s++, n++) {
			struct said x = say(*v);

			for (const struct cli_verb *const *w = cli_verbs; *w; w++)
				assert_string_not_equal((*w)->name, *s); /* a verb comes first */
			assert_ptr_equal(cli_verb_find(*s), *v);
			assert_says(x.page, "Other words for it: ");
			assert_says(x.page, *s);
			assert_says(x.help, *s);
			RUN("help");
			assert_says(got.out, *s);
			RUN_IS(0, *s, "-h");
			assert_string_equal(got.out, x.help);
			said_free(&x);
		}
	assert_true(n >= 5);
	RUN_IS(0, "list", "-C", work);
	assert_says(got.out, "alpha");
	assert_string_equal(got.err, "");
	RUN_IS(0, "check", "-C", work, "alpha@30");
	RUN_IS(10, "check", "-C", work, "alpha@31");
	RUN_IS(2, "list", "--no-such");
	assert_says(got.err, "next: ckptctl ls -h");
	SHOWN_IS(0, "list", work);
	SHOWN_IS(0, "ls", work);
	/* and what is near one of them is suggested as the verb */
	RUN_IS(2, "chekc");
	assert_says(got.err, "there is no verb \"chekc\"; did you mean verify?");
	assert_string_equal(words_offered("check", "--data-"), "--data-subset");
}

TEST(help_is_what_h_says)
{
	char *all, *one;
	json_t *j;

	RUN("-h");
	all = strdup(got.out);
	RUN("verify", "-h");
	one = strdup(got.out);
	RUN_IS(0, "help");
	assert_string_equal(got.out, all);
	RUN_IS(0, "help", "verify");
	assert_string_equal(got.out, one);
	RUN_IS(0, "help", "check");
	assert_string_equal(got.out, one);
	RUN_IS(0, "help", "check", "--json", "--color=always");
	j = json_out("ckptd.help/1");
	assert_string_equal(string(j, "verb"), "verify");
	assert_string_equal(string(j, "text"), one);
	json_decref(j);
	RUN_IS(0, "help", "--json");
	j = json_out("ckptd.help/1");
	member(j, "verb", JSON_NULL);
	assert_string_equal(string(j, "text"), all);
	json_decref(j);
	RUN_IS(2, "help", "lsit");
	assert_says(got.err, "did you mean ls?");
	RUN_IS(2, "help", "lsit", "--json");
	assert_json_error(2);
	RUN_IS(2, "help", "ls", "show");
	free(all);
	free(one);
}

TEST(on_a_terminal_without_man_the_help_comes_instead)
{
	char *path = strdup(getenv("PATH"));

	setenv("PATH", top, 1);
	SHOWN_IS(0, "man", "verify");
	setenv("PATH", path, 1);
	free(path);
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
