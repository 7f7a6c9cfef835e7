/* SPDX-License-Identifier: Apache-2.0 */
/* view_file.c - see view_file.h. Called by verb_convert.c and verb_export.c. Invariant: the checkpoint itself and its
 * files' sums stay as they were; only the table that is planned from is another. */
#include "ckpt/cli/view_file.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/text_file.h"

#define ALIAS "ckpt.alias:" /* docs/FORMAT.md */

/* A second name stays with its tensor's first one: rules rename tensors, and no attributes. */
static void say_lost_names(struct cli *c, const struct checkpoint *k, const struct table *seen)
{
	const size_t head = sizeof ALIAS - 1;

	for (uint32_t i = 0; i < k->nattr; i++) {
		const struct checkpoint_attr *x = &k->attr[i];

		if (strncmp(x->key, ALIAS, head) != 0 ||
		    table_find_key(&k->table, x->value) == TABLE_NONE ||
		    table_find_key(seen, x->value) != TABLE_NONE ||
		    table_find_key(seen, x->key + head) != TABLE_NONE)
			continue;
		cli_hint(
			c,
			"%s was one more name of %s, which the view does not have: it is left out. A "
			"rule \"copy %s -> NEW\" in front of the others keeps it.",
			x->key + head, x->value, x->value);
	}
}

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
	say_lost_names(c, ret->whole, &ret->seen.table);
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
