/* SPDX-License-Identifier: Apache-2.0 */
/* links_option.h - --links FILE|PRESET, for the verbs that price what ranks send each other. */
#ifndef CKPT_CLI_LINKS_OPTION_H
#define CKPT_CLI_LINKS_OPTION_H
#include "ckpt/cli/cli.h"
#include "ckpt/plan/links.h"

#define LINKS_HELP                                                                                \
	"what messages cost: a file (ckptctl doctor --links writes one), or a preset, h100 (the " \
	"default), torch or cpu"
/* Where there is no default. */
#define LINKS_FORM "a file (ckptctl doctor --links writes one), or a preset: h100, torch or cpu"

/*
 * What --links says, or the default preset. *ret_name: what to call it, the preset's name or the
 * path; it is the command line's, or static. A preset goes before a file of its name. Returns an
 * exit code, after the error was printed: CLI_USAGE where the file does not exist or is wrong.
 */
int links_option(struct cli *c, struct links *ret, const char **ret_name);
/* The same, for a verb that lists all that is wrong with its options: 0; -EINVAL where the file
 * does not exist or is wrong; -ECANCELED; -ENOMEM; what reading reports. */
int links_option_take(struct cli *c, struct links *ret, const char **ret_name,
		      struct ckpt_err *err);
/* "a cost file, or a preset: h100, torch, cpu": what to do after such an error. Returns buf. */
char *links_option_next(char *buf, size_t bytes);
#endif
