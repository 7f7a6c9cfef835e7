/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manual.h - what there is to say about verbs and options, said three times: by -h (help.c), by the
 * man pages (manual.c) and to the shells (complete.c). All three read the tables of verbs.c and
 * options.c and those here, so that none of them can lack what another one has.
 */
#ifndef CKPT_CLI_MANUAL_H
#define CKPT_CLI_MANUAL_H
#include "ckpt/cli/cli.h"

/* An option of a verb without a word of help is not for users: no page lists it. */
static inline bool manual_lists(const struct cli_verb_option *v)
{
	return v->help && *v->help;
}
const struct cli_option *manual_option(enum cli_option_id id);
/* The help of an option with the arguments that it can have, where the words do not name them
 * already: "...: staged, persisted or committed". Returns buf or help. */
const char *manual_option_help(const struct cli_option *o, const char *help, char *buf,
			       size_t bytes);

/* Exit codes in words; ends with NULL words. */
struct manual_exit {
	int code;
	const char *words;
};
extern const struct manual_exit manual_exits[];

/* Environment variables; ends with a NULL name. id: only where a verb takes this option; OPT_NONE:
 * always. */
struct manual_variable {
	const char *name, *words;
	enum cli_option_id id;
};
extern const struct manual_variable manual_variables[];

/* A page for man(1), in the man(7) language: of ckptctl itself (NULL) or of a verb. */
void manual_page(FILE *f, const struct cli_verb *verb);
#endif
