/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manual.c - man pages, made from the tables of verbs and options. Called by ckptctl man, and
 * through it by make.
 * Invariant: what stands in a table reaches the page as text, never as a request: every string
 * passes roff_text or roff_words.
 */
#include "ckpt/cli/manual.h"
#include "ckpt/base/util.h"

#define PAGE_DATE "2026-11-21" /* of the words; the release that changes them sets it */
#define SOURCE_COLUMNS 78      /* of the source: a new line begins behind this column */

const struct manual_exit manual_exits[] = {
	{ CLI_OK, "done" },
	{ CLI_FAILED, "failed otherwise" },
	{ CLI_USAGE, "wrong command line" },
	{ CLI_WARNINGS, "done, with warnings" },
	{ CLI_CORRUPT, "damaged" },
	{ CLI_UNCOMMITTED, "not committed" },
	{ CLI_DIFFERS, "differs" },
	{ CLI_MISFIT, "does not fit" },
	{ CLI_NEWER, "written by another version" },
	{ CLI_MISSING, "no such store or checkpoint" },
	{ CLI_LOCKED, "in use by another" },
	{ CLI_PERMISSION, "not permitted" },
	{ CLI_NO_SPACE, "no space or memory" },
	{ CLI_NO_DAEMON, "no daemon" },
	{ CLI_TIMEOUT, "timed out" },
	{ CLI_TEMPORARY, "temporary failure: try again" },
	{ CLI_INTERRUPTED, "interrupted (Ctrl-C)" },
	{ CLI_TERMINATED, "terminated (SIGTERM)" },
	{ 0, NULL },
};

const struct manual_variable manual_variables[] = {
	{ "CKPTD_STORE", "the store or job directory, if -C is not given", OPT_NONE },
	{ "CKPTD_SOCKET", "the daemon's socket, if -S is not given", OPT_SOCKET },
	{ "NO_COLOR", "if set and not empty: no colour", OPT_NONE },
	{ "TERM", "dumb: no colour", OPT_NONE },
	{ "COLUMNS", "the width to use instead of the terminal's", OPT_NONE },
	{ "LC_ALL, LC_CTYPE, LANG",
	  "the first that is set counts: if it names UTF-8, output to a terminal may have "
	  "characters beyond ASCII",
	  OPT_NONE },
	{ NULL, NULL, OPT_NONE },
};

const struct cli_option *manual_option(enum cli_option_id id)
{
	for (uint32_t i = 0; i < cli_option_count; i++)
		if (cli_options[i].id == id)
			return &cli_options[i];
	return NULL;
}

const char *manual_option_help(const struct cli_option *o, const char *help, char *buf,
			       size_t bytes)
{
	const char *p = cli_option_words(o);
	size_t at;

	if (!p || (strstr(help, strrchr(p, '|') ? strrchr(p, '|') + 1 : p)))
		return help;
	at = (size_t)snprintf(buf, bytes, "%s: ", help);
	while (p && at < bytes) {
		size_t n = strcspn(p, "|");
		bool last = !p[n], last_but_one = !last && !strchr(p + n + 1, '|');

		at += (size_t)snprintf(buf + at, bytes - at, "%.*s%s", (int)n, p,
				       last	      ? ""
				       : last_but_one ? " or "
						      : ", ");
		p = last ? NULL : p + n + 1;
	}
	return buf;
}

/* --- the language of pages --- */

/* One character of text, so that it is printed as it is: in groff a bare ' - ^ ` ~ are others. */
static int roff_char(FILE *f, char c)
{
	static const struct {
		char c;
		const char *name;
	} special[] = { { '\\', "\\e" },  { '-', "\\-" },   { '\'', "\\(aq" },
			{ '`', "\\(ga" }, { '^', "\\(ha" }, { '~', "\\(ti" } };

	for (uint32_t i = 0; i < ARRAY_LEN(special); i++)
		if (special[i].c == c)
			return fputs(special[i].name, f);
	return fputc(c, f);
}

static void roff_text(FILE *f, const char *text, size_t n)
{
	if (n && (*text == '.' || *text == '\''))
		fputs("\\&", f);
	for (size_t i = 0; i < n; i++)
		roff_char(f, text[i]);
}

/* A paragraph or several: lines of the source are filled; '\n' begins another paragraph. */
static void roff_words(FILE *f, const char *text)
{
	size_t column = 0;

	while (*text) {
		size_t blanks = strspn(text, " "), n;

		text += blanks;
		if (*text == '\n') {
			text += strspn(text, "\n ");
			if (*text)
				fputs("\n.PP\n", f);
			column = 0;
			continue;
		}
		n = strcspn(text, " \n");
		if (column && column + 1 + n > SOURCE_COLUMNS - 8) {
			fputc('\n', f);
			column = 0;
		}
		if (column)
			column += (size_t)(fputc(' ', f) == ' ');
		roff_text(f, text, n);
		column += n;
		text += n;
	}
	fputc('\n', f);
}

static void page_section(FILE *f, const char *name)
{
	fprintf(f, ".SH %s\n", name);
}

/* Text with a font around it. */
static void text_styled(FILE *f, char font, const char *text, size_t n)
{
	fprintf(f, "\\f%c", font);
	roff_text(f, text, n);
	fputs("\\fR", f);
}

/* What follows a verb's name: options bold, what CAPITALS stand for in italics. */
static void verb_synopsis(FILE *f, const char *s)
{
	static const char part[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

	while (*s) {
		size_t n = 0;

		if (*s == '-') {
			n = strspn(s, "-abcdefghijklmnopqrstuvwxyz");
			if (n < 2 && s[1] >= 'A' && s[1] <= 'Z')
				n = 2;
			text_styled(f, 'B', s, n);
		} else if (*s >= 'A' && *s <= 'Z') {
			n = strspn(s, part);
			text_styled(f, 'I', s, n);
		} else {
			n = 1;
			roff_text(f, s, n);
		}
		s += n;
	}
	fputc('\n', f);
}

static void option_item(FILE *f, const struct cli_option *o, const char *help)
{
	char dashes[64], words[512];

	fputs(".TP\n", f);
	if (o->letter) {
		snprintf(dashes, sizeof dashes, "-%c", o->letter);
		text_styled(f, 'B', dashes, strlen(dashes));
		fputs(", ", f);
	}
	snprintf(dashes, sizeof dashes, "--%s", o->name);
	text_styled(f, 'B', dashes, strlen(dashes));
	if (o->arg) {
		fputc(o->letter ? ' ' : '=', f);
		text_styled(f, 'I', o->arg, strlen(o->arg));
	}
	fputc('\n', f);
	roff_words(f, manual_option_help(o, help, words, sizeof words));
}

static void options_of_all(FILE *f)
{
	for (uint32_t i = 0; i < cli_option_count; i++)
		if (cli_options[i].global)
			option_item(f, &cli_options[i], cli_options[i].help);
}

static void page_item(FILE *f, char font, const char *name)
{
	fputs(".TP\n", f);
	text_styled(f, font, name, strlen(name));
	fputc('\n', f);
}

/* The end of one of "0 all good; 4 damaged; look again; 10 none": before a ';' that a number
 * follows. */
static const char *exit_end(const char *s)
{
	const char *end = s;

	while ((end = strchr(end, ';')) && !(end[1] == ' ' && end[2] >= '0' && end[2] <= '9'))
		end++;
	return end ? end : s + strlen(s);
}

static void exits_in_words(FILE *f, const char *s)
{
	char line[1024], code[16];

	while (*s) {
		const char *end = exit_end(s);
		size_t digits = strspn(s, "0123456789"), n;

		snprintf(code, sizeof code, "%.*s", (int)digits, s);
		page_item(f, 'B', code);
		s += digits;
		s += strspn(s, " ");
		snprintf(line, sizeof line, "%.*s", (int)(end - s), s);
		for (n = strlen(line); n && (line[n - 1] == '.' || line[n - 1] == ' '); n--)
			line[n - 1] = 0;
		roff_words(f, n ? line : "done");
		s = *end ? end + 2 : end;
	}
}

static void page_variables(FILE *f, const struct cli_verb *verb)
{
	page_section(f, "ENVIRONMENT");
	for (const struct manual_variable *v = manual_variables; v->name; v++) {
		bool listed = v->id == OPT_NONE || !verb;

		for (const struct cli_verb_option *o = verb ? verb->option : NULL;
		     o && o->id != OPT_NONE; o++)
			listed |= o->id == v->id;
		if (!listed)
			continue;
		page_item(f, 'B', v->name);
		roff_words(f, v->words);
	}
}

static void verb_examples(FILE *f, const struct cli_example *e)
{
	page_section(f, "EXAMPLES");
	for (; e->command; e++) {
		page_item(f, 'B', e->command);
		roff_words(f, e->what);
	}
}

static void page_title(FILE *f, const char *name)
{
	fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
	      ".\\\" Made by ckptctl man from its tables of verbs and options.\n.TH ",
	      f);
	for (; *name; name++) {
		if (*name >= 'a' && *name <= 'z')
			fputc(*name - 'a' + 'A', f);
		else
			roff_char(f, *name);
	}
	fprintf(f, " 1 %s \"ckptd %s\" \"ckptd manual\"\n", PAGE_DATE, CLI_VERSION);
}

static void verb_reference(FILE *f, const char *name, char chapter, bool last)
{
	fputs(".BR ", f);
	roff_text(f, name, strlen(name));
	fprintf(f, " (%c)%s\n", chapter, last ? "" : ",");
}

static void page_of_verb(FILE *f, const struct cli_verb *verb)
{
	char name[64];

	snprintf(name, sizeof name, "ckptctl-%s", verb->name);
	page_title(f, name);
	page_section(f, "NAME");
	roff_text(f, name, strlen(name));
	fputs("\n\\-\n", f);
	roff_words(f, verb->help);
	page_section(f, "SYNOPSIS");
	for (const char *const *s = verb->synopsis; *s; s++) {
		if (s != verb->synopsis)
			fputs(".br\n", f);
		fputs("\\fBckptctl ", f);
		roff_text(f, verb->name, strlen(verb->name));
		fputs("\\fR", f);
		fputs(**s ? " " : "", f);
		verb_synopsis(f, *s);
	}
	page_section(f, "DESCRIPTION");
	roff_words(f, verb->about);
	if (verb->synonyms) {
		fputs(".PP\nOther words for it: ", f);
		for (const char *const *s = verb->synonyms; *s; s++) {
			text_styled(f, 'B', *s, strlen(*s));
			fputs(s[1] ? ", " : ".\n", f);
		}
	}
	page_section(f, "OPTIONS");
	for (const struct cli_verb_option *v = verb->option; v && v->id != OPT_NONE; v++)
		if (manual_lists(v))
			option_item(f, manual_option(v->id), v->help);
	fputs(".SS Options of every verb\n", f);
	options_of_all(f);
	verb_examples(f, verb->example);
	page_section(f, "EXIT STATUS");
	exits_in_words(f, verb->exits);
	page_variables(f, verb);
	page_section(f, "SEE ALSO");
	verb_reference(f, "ckptctl", '1', false);
	verb_reference(f, "ckpt", '3', false);
	verb_reference(f, "ckptd", '8', true);
}

static void page_of_program(FILE *f)
{
	char name[64];

	page_title(f, "ckptctl");
	page_section(f, "NAME");
	fputs("ckptctl \\- manage the checkpoints of sharded training jobs\n", f);
	page_section(f, "SYNOPSIS");
	fputs("\\fBckptctl\\fR ", f);
	verb_synopsis(f, "[VERB] [OPTION...] [ARGUMENT...]");
	page_section(f, "DESCRIPTION");
	roff_words(
		f,
		"Lists, inspects, checks, compares, converts and restores the checkpoints that "
		"ckptd wrote, and shows what the daemon is doing. Verbs that read checkpoints "
		"need no daemon.\n"
		"A checkpoint is called latest, latest~1 (the one before it), 12000 or step:12000, "
		"tag:NAME, or by the path of its directory. A number is a step: a directory "
		"called 12000 is ./12000. A store holds jobs, a job holds steps. If a store has "
		"several jobs, name one: JOB@latest, JOB@12000, or, for a job at another path, "
		"runs/JOB@latest.\n"
		"Without a verb, ckptctl prints the state of the daemon if one runs, and "
		"otherwise what to do first. Data goes to standard output; errors, hints and "
		"progress go to standard error. An error says what, where, why, and the next "
		"command.");
	page_section(f, "VERBS");
	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		page_item(f, 'B', (*v)->name);
		roff_words(f, (*v)->help);
	}
	page_section(f, "OPTIONS");
	options_of_all(f);
	page_section(f, "EXIT STATUS");
	for (const struct manual_exit *e = manual_exits; e->words; e++) {
		snprintf(name, sizeof name, "%d", e->code);
		page_item(f, 'B', name);
		roff_words(f, e->words);
	}
	page_variables(f, NULL);
	page_section(f, "SEE ALSO");
	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		snprintf(name, sizeof name, "ckptctl-%s", (*v)->name);
		verb_reference(f, name, '1', false);
	}
	verb_reference(f, "ckpt", '3', false);
	verb_reference(f, "ckptd", '8', true);
}

void manual_page(FILE *f, const struct cli_verb *verb)
{
	if (verb)
		page_of_verb(f, verb);
	else
		page_of_program(f);
}
