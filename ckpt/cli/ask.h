/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - a question to the person at the terminal, before something is removed. */
#ifndef CKPT_CLI_ASK_H
#define CKPT_CLI_ASK_H
#include "ckpt/cli/cli.h"

/* Is there anybody? No where stdin or stderr is no terminal, and not with --json. */
bool ask_can(const struct cli *c);
/* "... [y/N] ": is the answer a line that begins with y? */
bool ask(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
