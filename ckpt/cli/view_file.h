/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_file.h - --view FILE (the notation is in ckpt/table/view.h): the subject's tensors under
 * other names and in other shapes, for the verbs that take it. What it casts: casts.h.
 */
#ifndef CKPT_CLI_VIEW_FILE_H
#define CKPT_CLI_VIEW_FILE_H
#include "ckpt/cli/cli.h"
#include "ckpt/cli/subject.h"
#include "ckpt/table/view.h"

struct view_file {
	struct arena arena;
	struct checkpoint seen;	      /* the subject's checkpoint with the view's table */
	struct checkpoint *whole;     /* NULL: there is no view */
	const struct view_cast *cast; /* [ntensor] of the view's table; NULL: there is no view */
	struct hash128 sum;	      /* of the file's text */
};

/*
 * Where there is --view: from here on s->ckpt is the checkpoint as it is seen through it. Returns
 * an exit code, after the error was printed (2: the file must be mended). Call view_file_end before
 * subject_close in any case; ret may be zeroed.
 */
int view_file_begin(struct cli *c, struct subject *s, struct view_file *ret);
void view_file_end(struct subject *s, struct view_file *v);

/* What stands for OPT_VIEW in a verb's own options. */
#define VIEW_OPTION                                                                               \
	{                                                                                         \
		OPT_VIEW, "a file of rules, one a line: rename, copy, drop, transpose, reshape, " \
			  "cast, split, concat, stack and unstack tensors first"                  \
	}
#endif
