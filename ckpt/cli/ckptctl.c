/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptctl.c - ckptctl: what only a process may do - signals and limits. Everything else is in
 * cli_run, which tests call too.
 */
#include "ckpt/cli/cli.h"
#include <sys/resource.h>
#include <unistd.h>

/* The first asks whatever takes long to leave its work so that it can be continued; the second does
 * not wait for that. */
static void on_stop(int sig)
{
	cli_stop_signal = sig;
	if (++cli_stops > 1)
		_exit(sig == SIGTERM ? CLI_TERMINATED : CLI_INTERRUPTED);
}

static void on_ask(int sig)
{
	(void)sig;
	cli_asked = 1;
}

int main(int argc, char **argv)
{
	struct sigaction stop = { .sa_handler = on_stop, .sa_flags = SA_RESTART };
	struct sigaction ask = { .sa_handler = on_ask, .sa_flags = SA_RESTART };
	struct rlimit files;

	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGUSR1, &ask, NULL);
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of the write, not a death */
	/* A checkpoint has a file per rank, and all are open at once. */
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	return cli_run(argc, argv, stdout, stderr);
}
