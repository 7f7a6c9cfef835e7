/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full_check.h - is every byte of a step what was committed? For verbs that act on the answer: what
 * is deleted, released or built anew depends on it.
 */
#ifndef CKPT_CLI_FULL_CHECK_H
#define CKPT_CLI_FULL_CHECK_H
#include "ckpt/cli/subject.h"

struct full_checked {
	uint64_t bytes;	 /* that were read */
	uint64_t nfault; /* that were found; the first one is told in err */
};

/*
 * Read all metadata and all data of the step directory behind step_fd, which stays the caller's, and
 * compare them with every checksum there is; with progress, as verify --data has it. 0; -EBADMSG: it
 * is damaged, err names the first fault; -EIO: nothing was found to be wrong, but something could not
 * be read, so that nobody knows; -ECANCELED; others. ret may be NULL.
 */
int full_check(struct cli *c, int step_fd, const char *path, struct full_checked *ret,
	       struct ckpt_err *err);
#endif
