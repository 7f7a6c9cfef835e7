/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_ask.h - what verbs that ask the daemon (wire/control.h) have in common: where it is, how
 * long they wait, and what they print if it fails.
 */
#ifndef CKPT_CLI_DAEMON_ASK_H
#define CKPT_CLI_DAEMON_ASK_H
#include "ckpt/cli/cli.h"
#include "ckpt/wire/control.h"

#define CONTROL_SOCKET_HELP "the daemon's socket (default: $CKPTD_SOCKET, or this user's)"

/* control_open at -S, $CKPTD_SOCKET, or the user's own daemon; jobs are those below -C, if it is
 * given. */
int daemon_ask_open(struct control *k, struct cli *c, uint64_t until, struct ckpt_err *err);
/* Prints a failure of daemon_ask_open or control_call, and how to start a daemon. Returns the exit
 * code. */
int daemon_ask_fail(struct cli *c, const struct control *k, int rc, const struct ckpt_err *err);
/* The argument of --timeout as a moment of CLOCK_MONOTONIC; 0: not given. -EINVAL. */
int daemon_ask_until(struct cli *c, uint64_t *ret_until, struct ckpt_err *err);
/* Sleeps, unless the process is asked to stop. */
void daemon_ask_pause(uint64_t ns);
#endif
