/* SPDX-License-Identifier: Apache-2.0 */
/* text_file.h - a file of rules that an option names, as text: --layout, --view, --links. */
#ifndef CKPT_CLI_TEXT_FILE_H
#define CKPT_CLI_TEXT_FILE_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"

/* what: "layout file"; form: what a line of it is, "one \"GLOB PLACEMENTS\" a line". The text is
 * the arena's. A FIFO is waited for. -EINVAL: the file does not exist, is no text, or is larger
 * than 4 MiB; -ECANCELED: stopped by a signal; -ETIMEDOUT: no byte came for text_file_silent_ns;
 * -ENOMEM; what reading reports. */
int text_file_read(const char *path, const char *what, const char *form, struct arena *a,
		   char **ret, struct ckpt_err *err);
extern uint64_t text_file_silent_ns; /* ten seconds; a test has less patience */
#endif
