/* SPDX-License-Identifier: Apache-2.0 */
/* verb_convert.h - what convert and export have in common. */
#ifndef CKPT_CLI_VERB_CONVERT_H
#define CKPT_CLI_VERB_CONVERT_H
#include "ckpt/cli/cli.h"

/* The verb convert, with the options of c, also those that only export offers. Returns the exit code. */
int convert_run(struct cli *c);
#endif
