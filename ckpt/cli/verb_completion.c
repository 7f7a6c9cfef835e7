/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_completion.c - ckptctl completion: the script that teaches a shell to complete ckptctl's
 * command lines; and, as "completion complete -- WORD...", what such a script asks (complete.h).
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/complete.h"
#include <signal.h>
#include <unistd.h>

#define COMPLETE_S 2

/* A shell waits: rather nothing than long, whatever hangs; and a shell that sees a signal says
 * so. */
static void on_alarm(int sig)
{
	(void)sig;
	_exit(CLI_OK);
}

static int completion_run(struct cli *c)
{
	const char *shell = c->narg ? c->arg[0] : NULL,
		   *script = shell ? complete_script(shell) : NULL;
	struct ckpt_err err;

	if (shell && !strcmp(shell, "complete")) {
		struct sigaction late = { .sa_handler = on_alarm }, before;

		sigaction(SIGALRM, &late, &before);
		alarm(COMPLETE_S);
		complete_words(c->out, c->ops, c->where, c->narg - 1, c->arg + 1);
		alarm(0);
		sigaction(SIGALRM, &before, NULL);
		return CLI_OK;
	}
	if (!script || c->narg > 1) {
		if (!shell)
			ckpt_error(&err, -EINVAL, "name a shell: bash, zsh or fish");
		else if (!script)
			ckpt_error(
				&err, -EINVAL,
				"there is no completion for \"%.80s\": only for bash, zsh and fish",
				shell);
		else
			ckpt_error(&err, -EINVAL, "ckptctl completion takes one shell");
		return cli_fail(c, -EINVAL, &err, "ckptctl completion -h");
	}
	if (!c->json) {
		fputs(script, c->out);
		return CLI_OK;
	}
	output_begin(c->o, "ckptd.completion/1");
	output_key(c->o, "shell", cell_text(shell));
	output_key(c->o, "script", cell_text(script));
	output_end(c->o);
	return CLI_OK;
}

const struct cli_verb verb_completion = {
	.name = "completion",
	.help = "a script for your shell that completes command lines",
	.synopsis = (const char *const[]){ "bash|zsh|fish", NULL },
	.about = "Prints a script that makes a shell complete verbs, options and their arguments, "
		 "and the steps, jobs and tensors of the store on the command line. make install "
		 "puts the scripts into the directories that shells read.",
	.example =
		(const struct cli_example[]){
			{ "source <(ckptctl completion bash)", "now, in this bash" },
			{ "source <(ckptctl completion zsh)", "in .zshrc, after compinit" },
			{ "ckptctl completion fish | source", "in config.fish" },
			{ NULL, NULL },
		},
	.exits = "0; 2 there is no script for that shell.",
	.args = (const enum cli_arg[]){ ARG_SHELL, ARG_NONE },
	.narg_max = UINT32_MAX,
	.run = completion_run,
};
