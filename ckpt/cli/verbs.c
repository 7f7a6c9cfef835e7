/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.c - the table of verbs. A new verb is a file verb_NAME.c, its declaration in cli.h, and a
 * place here. Called by cli_run and the help. */
#include "ckpt/cli/cli.h"
#include <string.h>

const struct cli_verb *const cli_verbs[] = {
	/* what there is */
	&verb_ls, &verb_show, &verb_stats, &verb_cat, &verb_diff, &verb_verify,
	/* to another mesh, or out of here */
	&verb_plan, &verb_convert, &verb_restore, &verb_layout,
	/* what stays */
	&verb_hold, &verb_release, &verb_tag, &verb_prune, &verb_rm, &verb_rewind, &verb_repair,
	/* the daemon and its machine */
	&verb_status, &verb_wait, &verb_trigger, &verb_drain, &verb_forget, &verb_doctor,
	/* the command itself */
	&verb_completion, &verb_man, &verb_version, NULL
};

const struct cli_verb *cli_verb_find(const char *name)
{
	for (const struct cli_verb *const *v = cli_verbs; *v; v++)
		if (!strcmp((*v)->name, name))
			return *v;
	return NULL;
}
