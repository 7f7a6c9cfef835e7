/* SPDX-License-Identifier: Apache-2.0 */
/* text_file.h - a file of rules that an option names, as text: --layout, --view. */
#ifndef CKPT_CLI_TEXT_FILE_H
#define CKPT_CLI_TEXT_FILE_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"

/* what: "layout file"; form: what a line of it is, "one \"GLOB PLACEMENTS\" a line". The text is
 * the arena's. -EINVAL: there is none, it is no text, or larger than 4 MiB; what reading said;
 * -ENOMEM. */
int text_file_read(const char *path, const char *what, const char *form, struct arena *a,
		   char **ret, struct ckpt_err *err);
#endif
