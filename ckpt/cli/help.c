/* SPDX-License-Identifier: Apache-2.0 */
/*
 * help.c - what -h prints, made from the table of verbs and the table of options. Called by
 * cli_run.
 * Invariant: at most 80 columns, whatever the terminal; examples come before options.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/manual.h"

#define WIDTH 80
#define LEFT 22	   /* columns of the left half of a two-column list */
#define EXAMPLE 44 /* columns of an example with its blanks */
#define BELOW 6	   /* blanks in front of what a longer one is for, on the next line */

static void help_head(struct cli *c, const char *text)
{
	fprintf(c->out, "\n%s%s%s\n", screen_style(&c->out_screen, STYLE_STRONG), text,
		screen_plain(&c->out_screen, STYLE_STRONG));
}

/* "  left      right, wrapped"; right goes to a line of its own where left is too long. */
static void help_pair(struct cli *c, const char *left, const char *right, uint32_t left_columns)
{
	uint32_t n = 2 + screen_columns(left);

	fprintf(c->out, "  %s", left);
	if (n + 2 > left_columns) {
		fputc('\n', c->out);
		n = 0;
	}
	fprintf(c->out, "%*s", (int)(left_columns - n), "");
	screen_wrap(c->out, right, WIDTH, left_columns, left_columns);
}

static void option_line(struct cli *c, const struct cli_option *o, const char *help)
{
	char left[64], words[512];

	if (o->letter)
		snprintf(left, sizeof left, "-%c, --%s%s%s", o->letter, o->name, o->arg ? " " : "",
			 o->arg ? o->arg : "");
	else
		snprintf(left, sizeof left, "    --%s%s%s", o->name, o->arg ? "=" : "",
			 o->arg ? o->arg : "");
	help_pair(c, left, manual_option_help(o, help, words, sizeof words), LEFT + 2);
}

/* What a verb is for, and other words for it: "... (check, validate)". Returns buf. */
static const char *verb_words(const struct cli_verb *v, char *buf, size_t bytes)
{
	snprintf(buf, bytes, "%s", v->help);
	for (const char *const *s = v->synonyms; s && *s; s++)
		human_add(buf, bytes, s == v->synonyms ? " (" : ", ", "%s%s", *s, s[1] ? "" : ")");
	return buf;
}

static void global_options(struct cli *c)
{
	for (uint32_t i = 0; i < cli_option_count; i++)
		if (cli_options[i].global)
			option_line(c, &cli_options[i], cli_options[i].help);
}

static void help_examples(struct cli *c, const struct cli_example *e)
{
	for (; e->command; e++) {
		if (2 + screen_columns(e->command) + 2 <= EXAMPLE) {
			help_pair(c, e->command, e->what, EXAMPLE);
			continue;
		}
		fprintf(c->out, "  %s\n%*s", e->command, BELOW, "");
		screen_wrap(c->out, e->what, WIDTH, BELOW, BELOW);
	}
}

void cli_help_first(struct cli *c)
{
	static const struct cli_example steps[] = {
		{ "ckptctl ls runs/", "list the checkpoints, newest first" },
		{ "ckptctl show latest -C runs/", "show what is in the newest one" },
		{ "ckptctl verify --data latest -C runs/", "read every byte of it and check it" },
		{ NULL, NULL },
	};

	fputs("ckptctl manages the checkpoints of sharded training jobs. If your job writes\n"
	      "to the store runs/, begin with:\n\n",
	      c->out);
	help_examples(c, steps);
	fputs("\nA checkpoint is called latest, latest~1 (the one before it), 12000 (a step),\n"
	      "JOB@latest, or by the path of its directory; a directory called 12000 is\n"
	      "./12000. If you set CKPTD_STORE=runs/, you can omit -C runs/.\n\n"
	      "  ckptctl help        every verb, every option\n"
	      "  ckptctl help VERB   one verb, with examples\n",
	      c->out);
}

/* Two columns, read downwards. */
static void exit_columns(struct cli *c)
{
	uint32_t n = 0, half;

	while (manual_exits[n].words)
		n++;
	half = (n + 1) / 2;
	for (uint32_t i = 0; i < half; i++) {
		const struct manual_exit *l = &manual_exits[i], *r = &manual_exits[half + i];

		if (half + i < n)
			fprintf(c->out, " %3d %-26s %4d %s\n", l->code, l->words, r->code,
				r->words);
		else
			fprintf(c->out, " %3d %s\n", l->code, l->words);
	}
}

void cli_help(struct cli *c)
{
	char words[160];

	fputs("ckptctl VERB [OPTION...] [ARGUMENT...]\n", c->out);
	help_head(c, "VERBS");
	for (const struct cli_verb *const *v = cli_verbs; *v; v++)
		help_pair(c, (*v)->name, verb_words(*v, words, sizeof words), 14);
	help_head(c, "OPTIONS");
	global_options(c);
	help_head(c, "EXIT STATUS");
	exit_columns(c);
	help_head(c, "ENVIRONMENT");
	for (const struct manual_variable *v = manual_variables; v->name; v++)
		help_pair(c, v->name, v->words, LEFT + 2);
	fputs("\nckptctl VERB -h describes one verb, with examples; ckptctl man VERB prints all.\n",
	      c->out);
}

void cli_help_verb(struct cli *c, const struct cli_verb *verb)
{
	fprintf(c->out, "%sckptctl %s%s - %s\n\n", screen_style(&c->out_screen, STYLE_STRONG),
		verb->name, screen_plain(&c->out_screen, STYLE_STRONG), verb->help);
	for (const char *const *s = verb->synopsis; *s; s++) {
		uint32_t columns =
			(uint32_t)fprintf(c->out, "  ckptctl %s%s", verb->name, **s ? " " : "");

		screen_wrap(c->out, *s, WIDTH, columns, columns);
	}
	help_head(c, "EXAMPLES");
	help_examples(c, verb->example);
	help_head(c, "WHAT IT DOES");
	fputs("  ", c->out);
	screen_wrap(c->out, verb->about, WIDTH, 2, 2);
	if (verb->synonyms) {
		fputs("  Other words for it: ", c->out);
		for (const char *const *s = verb->synonyms; *s; s++)
			fprintf(c->out, "%s%s", *s, s[1] ? ", " : ".\n");
	}
	help_head(c, "OPTIONS");
	for (const struct cli_verb_option *v = verb->option; v && v->id != OPT_NONE; v++)
		if (manual_lists(v))
			option_line(c, manual_option(v->id), v->help);
	global_options(c);
	help_head(c, "EXIT STATUS");
	fputs("  ", c->out);
	screen_wrap(c->out, verb->exits, WIDTH, 2, 2);
}
