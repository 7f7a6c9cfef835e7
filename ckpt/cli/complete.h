/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complete.h - what can stand at the end of a command line of ckptctl. Verbs, options and their
 * choices come from the tables; steps, jobs and tensors from the store that the line means.
 *
 * The shells' scripts (ckptctl completion bash) know nothing of all this: on each press of the key
 * they run
 *	ckptctl completion complete -- WORD...
 * with the words behind "ckptctl" up to the cursor, the last of which (perhaps empty) is the one to
 * be completed, and get a line for each candidate:
 *	the whole word TAB what it is
 *	:dir   besides, names of directories: the shell knows them
 *	:file  besides, names of files
 * Nothing is ever said about errors: where nothing can be offered, nothing is.
 */
#ifndef CKPT_CLI_COMPLETE_H
#define CKPT_CLI_COMPLETE_H
#include "ckpt/cli/cli.h"

#define COMPLETE_MAX 2000u /* candidates: a longer list is not read */

/* where: the default store, unless the words name one with -C. */
void complete_words(FILE *f, const struct io_ops *ops, const char *where, uint32_t nword,
		    char *const *word);

/* The shells there are scripts for: "bash|zsh|fish". */
extern const char complete_shells[];
/* NULL: no such shell. */
const char *complete_script(const char *shell);
#endif
