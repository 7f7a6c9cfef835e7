/* SPDX-License-Identifier: Apache-2.0 */
/*
 * casts.c - see casts.h. Called by verb_convert.c and verb_export.c. Invariant: what is written has
 * the dtype that the command asks for, or the tensor is no float, or nothing is written.
 */
#include "ckpt/cli/casts.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"

static void tensor_cast(struct table_tensor *x, uint32_t dtype)
{
	x->dtype = dtype;
	x->elem_bytes = dtype_bytes(dtype);
	x->fp = 0;
	x->fp_known = false;
}

int casts_apply(struct cli *c, const struct view_file *v, struct table *target, bool *ret_any)
{
	uint32_t all = c->value[OPT_DTYPE] ? dtype_of_name(c->value[OPT_DTYPE]) : 0;
	struct ckpt_errlist list = { .code = -EMEDIUMTYPE };
	struct ckpt_err err = { 0 };
	char label[TABLE_KEY_BYTES + 32];
	int rc;

	*ret_any = all != 0;
	for (uint32_t i = 0; i < target->ntensor; i++) {
		struct table_tensor *x = &target->tensor[i];
		uint32_t own = v->cast ? v->cast[i].dtype : 0, to = own ? own : all;

		if (!to || to == x->dtype || x->flags & TENSOR_BLOB || x->cls == CKPT_SINK)
			continue;
		*ret_any = true;
		if (dtype_kind(x->dtype) == DTYPE_FLOAT)
			tensor_cast(x, to);
		else if (dtype_kind(x->dtype) == DTYPE_SMALL_FLOAT)
			ckpt_errlist_add(&list, "%s: %s",
					 table_tensor_print(x, label, sizeof label),
					 dtype_name(x->dtype));
	}
	rc = ckpt_errlist_end(&list, &err, "--dtype cannot cast elements of these dtypes");
	ckpt_errlist_free(&list);
	return rc ? cli_fail(c, rc, &err,
			     "run this without --dtype, or keep them with rules of --view, as in "
			     "\"cast NAME F8_E4M3\"")
		  : CLI_OK;
}

void casts_tell_overflow(struct cli *c, uint64_t n)
{
	char text[HUMAN_BYTES];

	if (n)
		cli_hint(c, "%s element%s too large for the new dtype and became infinite.",
			 human_count(n, text), n == 1 ? " is" : "s are");
}
