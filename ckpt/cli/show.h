/* SPDX-License-Identifier: Apache-2.0 */
/* show.h - the two larger answers of ckptctl show, in files of their own. Each is a whole document,
 * returns an exit code. Called by verb_show.c. */
#ifndef CKPT_CLI_SHOW_H
#define CKPT_CLI_SHOW_H
#include "ckpt/cli/subject.h"

int show_files(struct cli *c, const struct subject *s);
/* svg: where to put the picture; NULL: none. */
int show_map(struct cli *c, const struct subject *s, uint32_t tensor, const char *svg);
#endif
