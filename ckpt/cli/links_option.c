/* SPDX-License-Identifier: Apache-2.0 */
/* links_option.c - see links_option.h. Called by plan. Invariant: an error prints all that is wrong
 * with the file. */
#include "ckpt/cli/links_option.h"
#include "ckpt/base/arena.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/text_file.h"

#define FORM "\"TIER LATENCY BANDWIDTH\" in each line"

static int links_file(const char *path, struct arena *a, struct links *ret, struct ckpt_err *err)
{
	char *text;
	int rc = text_file_read(path, "cost file", FORM, a, &text, err);

	return rc ? rc : links_parse(path, text, strlen(text), ret, err);
}

int links_option_take(struct cli *c, struct links *ret, const char **ret_name, struct ckpt_err *err)
{
	const char *word = c->value[OPT_LINKS] ? c->value[OPT_LINKS] : LINKS_DEFAULT;
	const struct links *preset = links_preset(word);
	struct arena a = { 0 };
	int rc = 0;

	*ret_name = word;
	if (preset)
		*ret = *preset;
	else
		rc = links_file(word, &a, ret, err);
	arena_free(&a);
	return rc;
}

char *links_option_next(char *buf, size_t bytes)
{
	char presets[100];

	snprintf(buf, bytes, "a cost file, or a preset: %s",
		 links_presets_print(presets, sizeof presets));
	return buf;
}

int links_option(struct cli *c, struct links *ret, const char **ret_name)
{
	struct ckpt_err err = { 0 };
	char next[128];
	int rc = links_option_take(c, ret, ret_name, &err);

	if (rc == -ECANCELED)
		return cli_fail(c, rc, &err, NULL);
	return rc ? cli_fail(c, rc, &err, "%s", links_option_next(next, sizeof next)) : CLI_OK;
}
