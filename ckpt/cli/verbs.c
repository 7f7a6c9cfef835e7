/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.c - the table of verbs, and which verb a word means. A new verb is a file verb_NAME.c, its
 * declaration in cli.h, and a place here. Called by cli_run and the help. */
#include "ckpt/base/error.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include <string.h>

#define NEAR_MAX 2 /* edits between what was typed and the verb that is suggested */

const struct cli_verb *const cli_verbs[] = {
	/* what there is */
	&verb_ls, &verb_show, &verb_stats, &verb_cat, &verb_diff, &verb_verify, &verb_ema,
	/* to another mesh, or out of here */
	&verb_plan, &verb_convert, &verb_export, &verb_layout,
	/* what stays */
	&verb_keep, &verb_hold, &verb_release, &verb_tag, &verb_prune, &verb_rm, &verb_rewind,
	&verb_repair, &verb_adopt,
	/* the daemon and its machine */
	&verb_status, &verb_wait, &verb_trigger, &verb_drain, &verb_forget, &verb_doctor,
	/* the command itself */
	&verb_help, &verb_man, &verb_completion, &verb_version, NULL
};

const struct cli_verb *cli_verb_find(const char *word)
{
	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		if (!strcmp((*v)->name, word))
			return *v;
		for (const char *const *s = (*v)->synonyms; s && *s; s++)
			if (!strcmp(*s, word))
				return *v;
	}
	return NULL;
}

/* The verb that is meant, if word is not too far from it. */
static void verb_nearer(const char *word, const char *name, const struct cli_verb *verb,
			uint32_t *best, const struct cli_verb **near)
{
	uint32_t d = human_distance(word, name, NEAR_MAX);

	if (d < *best && d < strlen(name)) {
		*best = d;
		*near = verb;
	}
}

int cli_verb_unknown(const char *word, struct ckpt_err *err)
{
	const struct cli_verb *near = NULL;
	uint32_t best = NEAR_MAX + 1;

	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		verb_nearer(word, (*v)->name, *v, &best, &near);
		for (const char *const *s = (*v)->synonyms; s && *s; s++)
			verb_nearer(word, *s, *v, &best, &near);
	}
	if (near)
		return ckpt_error(err, -EINVAL, "there is no verb \"%.80s\"; did you mean %s?",
				  word, near->name);
	return ckpt_error(err, -EINVAL, "there is no verb \"%.80s\"", word);
}
