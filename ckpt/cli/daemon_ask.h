/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_ask.h - what verbs that ask the daemon (wire/control.h) have in common: where it is, how
 * long they wait, and what they print if it fails.
 */
#ifndef CKPT_CLI_DAEMON_ASK_H
#define CKPT_CLI_DAEMON_ASK_H
#include <limits.h>
#include "ckpt/cli/cli.h"
#include "ckpt/wire/control.h"

#define CONTROL_SOCKET_HELP "the daemon's socket (default: $CKPTD_SOCKET, or this user's)"

/*
 * How every verb that asks the daemon chooses the job, the first of these that is there:
 *	its argument or --job		NAME, NAME@, or a path STORE/NAME
 *	-C PATH, $CKPTD_STORE		the jobs of that store, or the job of that directory; they
 *					also say which store a NAME is in (but a job's directory in
 *					$CKPTD_STORE does not)
 *	the current directory		likewise, if it is a store or a job's directory
 * If ckptd does not have what was chosen, that is -ENOENT (exit 10), never another job. If several
 * jobs are left, or nothing was chosen and ckptd has several, it is -ENOTUNIQ (exit 2).
 */
#define DAEMON_JOB_HELP "the job, as NAME or STORE/NAME; needed if there are several"
/* The job that the argument (NULL: none) or --job names; *ret NULL: neither does. -EINVAL: both
 * do. */
int daemon_ask_name(struct cli *c, const char *arg, char buf[PATH_MAX], const char **ret,
		    struct ckpt_err *err);
/* control_open at -S, $CKPTD_SOCKET, or the user's own daemon, for jobs that are chosen so. */
int daemon_ask_open(struct control *k, struct cli *c, uint64_t until, struct ckpt_err *err);
/* Prints a failure of daemon_ask_open or control_call, and how to start a daemon. Returns the exit
 * code. */
int daemon_ask_fail(struct cli *c, const struct control *k, int rc, const struct ckpt_err *err);
/* The report's job that writes to this directory, an absolute path; UINT32_MAX: none. */
uint32_t daemon_ask_serves(const struct control *k, const char *job_path);
/* The argument of --timeout as a moment of CLOCK_MONOTONIC; 0: not given. -EINVAL. */
int daemon_ask_until(struct cli *c, uint64_t *ret_until, struct ckpt_err *err);
/* Sleeps, unless the process is asked to stop. */
void daemon_ask_pause(uint64_t ns);
#endif
