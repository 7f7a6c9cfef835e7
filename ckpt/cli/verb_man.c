/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_man.c - ckptctl man: the manual of the command and of each verb, whether or not it was
 * installed. On a terminal man(1) shows it; elsewhere it is the page's source.
 * Invariant: it never ends with nothing shown: where man(1) cannot, -h's text comes.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/manual.h"
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

/* Let man(1) show the page. false: there is none, or it cannot read from a pipe. */
static bool page_shown(const char *page, size_t bytes)
{
	char man[] = "man", local[] = "-l", in[] = "-";
	char *argv[] = { man, local, in, NULL };
	posix_spawn_file_actions_t acts;
	void (*old)(int) = signal(SIGPIPE, SIG_IGN);
	int pipes[2], status = -1, rc;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC))
		return false;
	posix_spawn_file_actions_init(&acts);
	posix_spawn_file_actions_adddup2(&acts, pipes[0], STDIN_FILENO);
	rc = posix_spawnp(&pid, man, &acts, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&acts);
	(void)close(pipes[0]);
	/* man may end before it has read all; then its status says how it went. */
	for (size_t at = 0; !rc && at < bytes;) {
		ssize_t n = write(pipes[1], page + at, bytes - at);

		if (n < 0 && errno != EINTR)
			break;
		at += n > 0 ? (size_t)n : 0;
	}
	(void)close(pipes[1]);
	while (!rc && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	signal(SIGPIPE, old);
	/* 1 and 2 are usage and errors; 3 is the pager's business, a signal the user's. */
	return !rc &&
	       !(WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 2 ||
				       WEXITSTATUS(status) == 127));
}

static void page_put(struct cli *c, const struct cli_verb *verb, const char *page)
{

	output_begin(c->o, "ckptd.man/1");
	output_key(c->o, "verb", cell_if(verb, cell_text(verb->name)));
	output_key(c->o, "section", cell_number(1));
	output_key(c->o, "page", cell_text(page));
	output_end(c->o);
}

static int man_run(struct cli *c)
{
	const struct cli_verb *verb = c->narg ? cli_verb_find(c->arg[0]) : NULL;
	cleanup_free char *page = NULL;
	struct ckpt_err err;
	size_t bytes;
	FILE *f;

	if (c->narg && !verb)
		return cli_usage(c, "ckptctl -h lists the verbs", "there is no verb \"%.80s\"",
				 c->arg[0]);
	f = open_memstream(&page, &bytes);
	if (f)
		manual_page(f, verb);
	if (!f || fclose(f))
		return cli_fail(c, ckpt_error(&err, -ENOMEM, "no memory for the page"), &err, NULL);
	if (c->json) {
		page_put(c, verb, page);
		return CLI_OK;
	}
	if (!c->out_screen.terminal) {
		fwrite(page, 1, bytes, c->out);
		return CLI_OK;
	}
	fflush(c->out);
	if (page_shown(page, bytes))
		return CLI_OK;
	if (verb)
		cli_help_verb(c, verb);
	else
		cli_help(c);
	cli_hint(c,
		 "man(1) cannot show the page here, so this was the text of -h. To get the page: "
		 "ckptctl man%s%s >FILE",
		 verb ? " " : "", verb ? verb->name : "");
	return CLI_OK;
}

const struct cli_verb verb_man = {
	.name = "man",
	.help = "the manual page of the command, or of a verb",
	.synopsis = (const char *const[]){ "[VERB]", NULL },
	.about = "On a terminal, man shows the page with man(1); otherwise it prints the source "
		 "of the page. The pages are part of the program and need no installation. They "
		 "have the text of -h with more detail.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl man verify", "all about one verb" },
			{ "ckptctl man >ckptctl.1", "the source of the page of the command" },
			{ NULL, NULL },
		},
	.exits = "0; 2 there is no such verb.",
	.args = (const enum cli_arg[]){ ARG_VERB, ARG_NONE },
	.narg_max = 1,
	.run = man_run,
};
