/* SPDX-License-Identifier: Apache-2.0 */
/*
 * labels.h - what verbs that set or show labels have in common: from a name to the step in its
 * store, and what they print. For hold, release, tag, verify, show, ls, rm, repair, rewind and
 * adopt.
 */
#ifndef CKPT_CLI_LABELS_H
#define CKPT_CLI_LABELS_H
#include "ckpt/cli/cli.h"
#include "ckpt/store/home.h"
#include "ckpt/store/label.h"
#include "ckpt/store/label_words.h"

/* store_resolve and store_home_find of a name on the command line. Prints what fails, and the note
 * of a "latest" that passed over other steps. Returns an exit code; after CLI_OK the caller closes
 * ref's step_fd, and ret. */
int labels_get(struct cli *c, const char *name, struct store_ref *ref, struct store_home *ret);

/* Prints that a label could not be changed. Returns the exit code. */
int labels_tell(struct cli *c, int rc, const struct ckpt_err *err);

/* The next command where store_home_owner refuses. */
#define LABELS_NEXT_OWNER "run ckptctl as that user: sudo -u USER ckptctl ..."

/* For programs: the members holds, tags, verified, bad and adopted of the open object. */
void labels_put(struct output *o, const struct store_step *st, const struct store_label *label,
		uint32_t n, uint64_t now_ns);
#endif
