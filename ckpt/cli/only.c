/* SPDX-License-Identifier: Apache-2.0 */
/* only.c - see only.h. Called by verb_export.c. Invariant: after only_end the subject has the
 * checkpoint that it was opened with. */
#include "ckpt/cli/only.h"
#include "ckpt/base/util.h"

static uint32_t names_given(const struct cli *c, const char *name[static CLI_GIVEN_MAX])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->ngiven; i++)
		if (c->given[i].id == OPT_ONLY)
			name[n++] = c->given[i].value;
	return n;
}

static int only_fail(struct cli *c, int rc, const struct ckpt_err *err)
{
	return cli_fail(c, rc, err,
			rc == -EMEDIUMTYPE ? "ckptctl ema lists what the averages are" : NULL);
}

int only_take(struct cli *c, const struct checkpoint *k, bool *ret)
{
	const char *name[CLI_GIVEN_MAX];
	struct ckpt_err err = { 0 };
	int rc = selection_take(k, name, names_given(c, name), ret, &err);

	return rc ? only_fail(c, rc, &err) : CLI_OK;
}

int only_begin(struct cli *c, struct subject *s, bool as_model, struct only *ret)
{
	const char *name[CLI_GIVEN_MAX];
	struct ckpt_err err = { 0 };
	int rc;

	*ret = (struct only){ 0 };
	if (!c->value[OPT_ONLY])
		return CLI_OK;
	rc = selection_make(s->ckpt, name, names_given(c, name), as_model, &ret->selection, &err);
	if (rc)
		return only_fail(c, rc, &err);
	ret->whole = s->ckpt;
	s->ckpt = &ret->selection.seen;
	return CLI_OK;
}

void only_end(struct subject *s, struct only *x)
{
	if (x->whole)
		s->ckpt = TAKE(x->whole);
	selection_free(&x->selection);
}
