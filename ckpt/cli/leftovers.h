/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftovers.h - what convert and export have left in a directory when they were interrupted or
 * killed (ckpt/io/leftover.h), as people and programs see it. Called by ls and prune.
 */
#ifndef CKPT_CLI_LEFTOVERS_H
#define CKPT_CLI_LEFTOVERS_H
#include "ckpt/cli/cli.h"
#include "ckpt/io/leftover.h"

struct leftovers {
	struct cli *c;
	const char *where;  /* the directory, as the user names it */
	int fd;		    /* of it; < 0: it cannot be opened, and nothing is known */
	struct leftover *x; /* [n] */
	char **words; /* [n] of what is unfinished: what the conversion was; NULL: not known */
	uint32_t n, cap;
	bool failed; /* no memory, or the directory cannot be listed */
};
void leftovers_open(struct cli *c, const char *where, struct leftovers *ret);
void leftovers_close(struct leftovers *l);
/* The list "unfinished" of the document, and a line for each. verdict: what becomes of those
 * that no process writes, "removed"; NULL: nothing, and the line says what to do. */
void leftovers_print(const struct leftovers *l, const char *verdict);
/* Those that no process writes. */
uint32_t leftovers_removable(const struct leftovers *l, uint64_t *ret_bytes);
/* Removes these. *ret_bytes: freed. 0, or the first error, which err describes. */
int leftovers_remove(struct leftovers *l, uint32_t *ret_n, uint64_t *ret_bytes,
		     struct ckpt_err *err);
#endif
