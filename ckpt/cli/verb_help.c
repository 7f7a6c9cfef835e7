/* SPDX-License-Identifier: Apache-2.0 */
/* verb_help.c - ckptctl help: what -h prints, as a verb. Called by cli_run. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"

static void help_print(struct cli *c, const struct cli_verb *verb)
{
	if (verb)
		cli_help_verb(c, verb);
	else
		cli_help(c);
}

static int print_json(struct cli *c, const struct cli_verb *verb)
{
	cleanup_free char *text = NULL;
	struct cli to = *c;
	struct ckpt_err err;
	size_t bytes;

	to.out_screen.colour = false;
	to.out = open_memstream(&text, &bytes);
	if (to.out)
		help_print(&to, verb);
	if (!to.out || fclose(to.out))
		return cli_fail(c, ckpt_error(&err, -ENOMEM, "no memory for the text"), &err, NULL);
	output_begin(c->o, "ckptd.help/1");
	output_key(c->o, "verb", cell_if(verb, cell_text(verb->name)));
	output_key(c->o, "text", cell_text(text));
	output_end(c->o);
	return CLI_OK;
}

static int help_run(struct cli *c)
{
	const struct cli_verb *verb = c->narg ? cli_verb_find(c->arg[0]) : NULL;
	struct ckpt_err err;

	if (c->narg && !verb)
		return cli_fail(c, cli_verb_unknown(c->arg[0], &err), &err,
				"ckptctl help lists the verbs");
	if (c->json)
		return print_json(c, verb);
	help_print(c, verb);
	return CLI_OK;
}

const struct cli_verb verb_help = {
	.name = "help",
	.help = "print the help of all verbs, or of one",
	.synopsis = (const char *const[]){ "[VERB]", NULL },
	.about =
		"Without VERB it lists every verb, the options that all verbs take, and the exit "
		"codes. With VERB it prints the examples, options and exit codes of that verb. VERB may "
		"also be another word for a verb, such as check for verify.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl help", "list every verb" },
			{ "ckptctl help verify", "describe one verb, with examples" },
			{ NULL, NULL },
		},
	.exits = "0; 2 there is no such verb.",
	.args = (const enum cli_arg[]){ ARG_VERB, ARG_NONE },
	.narg_max = 1,
	.run = help_run,
};
