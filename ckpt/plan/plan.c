/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - matches the tensors of two tables and plans the movement between them. Called by
 * restore, snapshot and every verb that moves data. Invariant: a plan that was made gives every
 * element of every planned destination piece exactly once.
 */
#include "ckpt/plan/plan.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/plan/plan_match.h"
#include "ckpt/plan/plan_reduce.h"

#define LABEL_BYTES 160 /* of a tensor in a message; longer names are cut */
#define SHAPE_BYTES 400 /* 16 dimensions of 20 digits */

struct making {
	const struct table *src, *dst;
	const struct plan_opts *opts;
	struct plan *plan;
	struct match match;
	struct op_list ops;
	struct reducing *reducing;
	struct ckpt_errlist *list;
};

static bool is_wanted(const struct making *k, const struct table_tensor *x)
{
	if (x->flags & TENSOR_BLOB && !k->opts->memory_blobs)
		return false;
	return (!k->opts->only || !strcmp(k->opts->only, x->component)) &&
	       (!k->opts->sinks || x->cls == CKPT_SINK);
}

static bool same_kind(const struct making *k, const struct table_tensor *x,
		      const struct table_tensor *y)
{
	bool same = x->dtype == y->dtype;

	return (same || (k->opts->casts && plan_casts(y->dtype, x->dtype))) &&
	       table_shape_same(x, y);
}

static int plan_pieces(struct making *k, uint32_t dst_tensor)
{
	uint64_t missing, first[CKPT_DIMS_MAX];
	char label[LABEL_BYTES], at[SHAPE_BYTES];

	for (uint32_t i = k->dst->first[dst_tensor]; i < k->dst->first[dst_tensor + 1]; i++) {
		int e = match_piece(&k->match, k->dst, i, &k->ops, &k->plan->arena, &missing,
				    first);

		if (e < 0)
			return e;
		if (!missing)
			continue;
		ckpt_errlist_add(
			k->list,
			"%s: %llu of the %llu elements of %s are in no piece of the checkpoint, the first is %s",
			table_tensor_print(&k->dst->tensor[dst_tensor], label, sizeof label),
			(unsigned long long)missing, (unsigned long long)k->dst->piece[i].set.numel,
			k->dst->place[k->dst->piece[i].place].name,
			human_shape(k->dst->piece[i].set.ndim, first, at, sizeof at));
	}
	return 0;
}

static int plan_tensor(struct making *k, uint32_t dst_tensor, struct ckpt_err *err)
{
	const struct table_tensor *x = &k->dst->tensor[dst_tensor], *y;
	uint32_t src_tensor = table_find(k->src, x->component, x->name, x->rank);
	char label[LABEL_BYTES], want[SHAPE_BYTES], have[SHAPE_BYTES];
	int e;

	if (src_tensor == TABLE_NONE) {
		if (k->opts->differs)
			k->opts->differs(k->opts->differs_arg, dst_tensor, NULL);
		if (k->opts->lenient)
			k->plan->nmissing++;
		else
			ckpt_errlist_add(k->list, "%s: not in the checkpoint",
					 table_tensor_print(x, label, sizeof label));
		return 0;
	}
	y = &k->src->tensor[src_tensor];
	if (!same_kind(k, x, y)) {
		ckpt_errlist_add(k->list, "%s: declared %s %s, the checkpoint has %s %s",
				 table_tensor_print(x, label, sizeof label), dtype_name(x->dtype),
				 human_shape(x->ndim, x->shape, want, sizeof want),
				 dtype_name(y->dtype),
				 human_shape(y->ndim, y->shape, have, sizeof have));
		return 0;
	}
	k->plan->ntensor++;
	if (k->dst->first[dst_tensor] == k->dst->first[dst_tensor + 1])
		return 0;
	e = reducing_tensor(k->reducing, src_tensor, dst_tensor, &k->ops, k->list);
	if (e > 0)
		return 0;
	if (e == 0)
		e = match_begin(&k->match, k->src, src_tensor);
	if (e == 0)
		e = plan_pieces(k, dst_tensor);
	if (e < 0)
		table_tensor_print(x, label, sizeof label);
	if (e == -E2BIG)
		return ckpt_error(
			err, e,
			"%s: its pieces are too interleaved to plan; convert the checkpoint to plain shards first",
			label);
	return e < 0 ? ckpt_error(err, e, "out of memory while planning %s", label) : 0;
}

/* The same, and opts->differs is called with the lines that it added to the list. */
static int plan_told(struct making *k, uint32_t dst_tensor, struct ckpt_err *err)
{
	struct ckpt_errlist one = { .code = k->list->code }, *all = k->list;
	const struct table_tensor *x = &k->dst->tensor[dst_tensor];
	int e;

	if (!k->opts->differs)
		return plan_tensor(k, dst_tensor, err);
	k->list = &one;
	e = plan_tensor(k, dst_tensor, err);
	k->list = all;
	if (one.n && table_find(k->src, x->component, x->name, x->rank) != TABLE_NONE)
		k->opts->differs(k->opts->differs_arg, dst_tensor, one.text ? one.text : "");
	ckpt_errlist_join(all, &one);
	ckpt_errlist_free(&one);
	return e;
}

static int op_compare(const void *va, const void *vb)
{
	const struct plan_op *a = va, *b = vb;
	int r = COMPARE(a->src_place, b->src_place);

	if (!r)
		r = COMPARE(a->src_lo, b->src_lo);
	if (!r)
		r = COMPARE(a->dst_piece, b->dst_piece);
	return r ? r : COMPARE(a->src_piece, b->src_piece);
}

int op_list_end(const struct op_list *l, struct arena *a, struct plan_op **ret_op,
		uint64_t *ret_nop, uint64_t *ret_bytes)
{
	*ret_op = arena_dup(a, l->op, l->n * sizeof **ret_op);
	if (!*ret_op)
		return -ENOMEM;
	*ret_nop = l->n;
	if (l->n > 1)
		qsort(*ret_op, l->n, sizeof **ret_op, op_compare);
	for (uint64_t i = 0; i < l->n; i++)
		*ret_bytes += l->op[i].bytes;
	return 0;
}

static int plan_all(struct making *k, struct ckpt_err *err)
{
	struct plan *p = k->plan;
	int rc = reducing_open(p, &k->reducing);

	if (rc < 0)
		return ckpt_error(err, rc, "out of memory for a plan");
	for (uint32_t i = 0; i < k->dst->ntensor; i++) {
		int e = is_wanted(k, &k->dst->tensor[i]) ? plan_told(k, i, err) : 0;

		if (e < 0)
			return e;
	}
	rc = reducing_end(k->reducing, k->list, err);
	if (rc < 0)
		return rc;
	if (k->list->n)
		return ckpt_errlist_end(k->list, err,
					"the checkpoint does not fit what is declared");
	rc = op_list_end(&k->ops, &p->arena, &p->op, &p->nop, &p->bytes);
	return rc < 0 ? ckpt_error(err, rc, "out of memory for a plan of %llu operations",
				   (unsigned long long)k->ops.n)
		      : 0;
}

int plan_make(const struct table *src, const struct table *dst, const struct plan_opts *opts,
	      struct plan *ret_plan, struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	const struct plan_opts defaults = { 0 };
	struct ckpt_errlist own = { 0 };
	struct making k = {
		.src = src,
		.dst = dst,
		.opts = opts ? opts : &defaults,
		.plan = ret_plan,
		.list = ret_list ? ret_list : &own,
	};
	int e;

	assert(src->sealed && dst->sealed);
	*ret_plan = (struct plan){ .src = src, .dst = dst };
	k.list->code = -EMEDIUMTYPE;
	e = plan_all(&k, err);
	if (e < 0)
		plan_free(ret_plan);
	match_free(&k.match);
	reducing_close(k.reducing);
	free(k.ops.op);
	ckpt_errlist_free(&own);
	return e;
}

void plan_free(struct plan *p)
{
	struct plan_reduced *r = TAKE(p->reduced);

	for (uint32_t k = 0; r && r->operand && k < r->most; k++)
		table_free(&r->operand[k]);
	if (r)
		table_free(&r->want);
	arena_free(&p->arena);
	p->op = NULL;
	p->nop = 0;
}
