/* SPDX-License-Identifier: Apache-2.0 */
/* view_file.c - see view_file.h. Called by verb_convert.c and verb_export.c. Invariant: the checkpoint itself and its
 * files' sums stay as they were; only the table that is planned from is another. */
#include "ckpt/cli/view_file.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/text_file.h"

int view_file_begin(struct cli *c, struct subject *s, struct view_file *ret)
{
	const char *path = c->value[OPT_VIEW];
	struct table seen = { 0 };
	struct ckpt_err err = { 0 };
	struct view view;
	char *text;
	int rc;

	*ret = (struct view_file){ 0 };
	if (!path)
		return CLI_OK;
	rc = text_file_read(path, "view file", "one rule a line, as \"rename NAME -> NEW\"",
			    &ret->arena, &text, &err);
	if (!rc)
		rc = view_parse(text, path, &ret->arena, &view, &err);
	if (!rc)
		rc = view_make(&s->ckpt->table, &view, &seen, &ret->cast, &err);
	if (rc)
		return cli_fail(c, rc == -EALREADY || rc == -E2BIG ? -EINVAL : rc, &err, NULL);
	ret->sum = hash128(text, strlen(text));
	ret->seen = *s->ckpt;
	ret->seen.table = seen;
	ret->seen.foreign_name = NULL; /* its tensors are called as the view says */
	ret->whole = s->ckpt;
	s->ckpt = &ret->seen;
	return CLI_OK;
}

void view_file_end(struct subject *s, struct view_file *v)
{
	if (v->whole) {
		s->ckpt = TAKE(v->whole);
		table_free(&v->seen.table);
	}
	arena_free(&v->arena);
}
