/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - a question on the terminal, before something is changed. */
#ifndef CKPT_CLI_ASK_H
#define CKPT_CLI_ASK_H
#include "ckpt/cli/cli.h"

/* Can it be asked? Not if stdin or stderr is no terminal, and not with --json. */
bool ask_can(const struct cli *c);
/* "... [y/N] ". 0: the answer is a line that begins with y. 1: it is another, and "nothing DONE"
 * was printed. -ECANCELED: interrupted; err says that nothing was DONE. done: "changed". */
int ask(struct cli *c, const char *done, struct ckpt_err *err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#endif
