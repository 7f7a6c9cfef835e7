/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare.c - see compare.h. Called by ckptctl diff.
 * Invariant: a pair that is no item has equal fingerprints that both know, or was read and is equal
 * bit by bit.
 */
#include "ckpt/engine/compare.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/table/operand.h"
#include "ckpt/table/shown.h"

static void item_add(struct compared *c, enum compare_kind kind, uint32_t a, uint32_t b)
{
	c->item[c->nitem++] =
		(struct compare_item){ .kind = kind, .a = a, .b = b, .pair = TABLE_NONE };
	c->count[kind]++;
}

static bool same_shape(const struct table_tensor *x, const struct table_tensor *y)
{
	uint64_t a[CKPT_DIMS_MAX], b[CKPT_DIMS_MAX];

	return x->ndim == y->ndim &&
	       !memcmp(shown_shape(x, a), shown_shape(y, b), x->ndim * sizeof *a);
}

static bool same_layout(const struct table *s, const struct table_tensor *x, const struct table *t,
			const struct table_tensor *y)
{
	if (x->layout == TABLE_NONE || y->layout == TABLE_NONE)
		return x->layout == y->layout;
	return table_layout_equal(s, x->layout, t, y->layout);
}

/* Has y's layout the PARTIALs of x's, by the names of the mesh dimensions? */
static bool has_partials(const struct table *s, const struct table_tensor *x, const struct table *t,
			 const struct table_tensor *y)
{
	const struct layout *l = &s->layout[x->layout], *m = &t->layout[y->layout];
	const struct mesh *p = &s->mesh[l->mesh], *q = &t->mesh[m->mesh];

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *a = &l->place[i];
		uint32_t k = 0;

		if (a->how != CKPT_PARTIAL)
			continue;
		while (k < m->nplace &&
		       (m->place[k].how != CKPT_PARTIAL || m->place[k].reduce != a->reduce ||
			p->dim[a->mesh_dim] != q->dim[m->place[k].mesh_dim] ||
			strcmp(p->name[a->mesh_dim], q->name[m->place[k].mesh_dim]) != 0))
			k++;
		if (k == m->nplace)
			return false;
	}
	return true;
}

/* Fingerprints of operands say nothing of others, nor of what comes of them. */
static bool same_operands(const struct table *s, const struct table_tensor *x,
			  const struct table *t, const struct table_tensor *y)
{
	bool a = operand_dims(s, x) != 0, b = operand_dims(t, y) != 0;

	if (!a || !b)
		return a == b;
	return has_partials(s, x, t, y) && has_partials(t, y, s, x);
}

/* At most three differences of a pair. */
static void compare_pair(struct compared *c, const struct table *s, uint32_t a,
			 const struct table *t, uint32_t b)
{
	const struct table_tensor *x = &s->tensor[a], *y = &t->tensor[b];

	c->nboth++;
	c->both_bytes += table_tensor_bytes(x);
	if (!same_shape(x, y))
		item_add(c, COMPARE_SHAPE, a, b);
	else if (x->dtype != y->dtype)
		item_add(c, COMPARE_DTYPE, a, b);
	else if (!same_operands(s, x, t, y))
		item_add(c, COMPARE_OPERANDS, a, b);
	else if (x->cls == CKPT_SINK && y->cls == CKPT_SINK)
		; /* neither has elements that are kept */
	else if ((!x->fp_known || !y->fp_known) && !MUTANT(UNKNOWN_EQUAL))
		item_add(c, COMPARE_UNKNOWN, a, b);
	else if (x->fp != y->fp)
		item_add(c, COMPARE_CONTENTS, a, b);
	if (!same_layout(s, x, t, y))
		item_add(c, COMPARE_LAYOUT, a, b);
	if (x->role != y->role || x->cls != y->cls || strcmp(x->of, y->of))
		item_add(c, COMPARE_ROLE, a, b);
}

int compare_find(const struct table *a, const struct table *b, const bool *in_a, const bool *in_b,
		 struct compared *ret)
{
	*ret = (struct compared){ .item = calloc((size_t)3 * a->ntensor + b->ntensor + 1,
						 sizeof *ret->item) };
	if (!ret->item)
		return -ENOMEM;
	for (uint32_t i = 0; i < a->ntensor; i++) {
		const struct table_tensor *x = &a->tensor[i];
		uint32_t j = table_find(b, x->component, x->name, x->rank);

		if (in_a && !in_a[i])
			continue;
		if (j == TABLE_NONE)
			item_add(ret, COMPARE_ONLY_A, i, TABLE_NONE);
		else
			compare_pair(ret, a, i, b, j);
	}
	for (uint32_t j = 0; j < b->ntensor; j++) {
		const struct table_tensor *y = &b->tensor[j];

		if ((!in_b || in_b[j]) &&
		    table_find(a, y->component, y->name, y->rank) == TABLE_NONE)
			item_add(ret, COMPARE_ONLY_B, TABLE_NONE, j);
	}
	return 0;
}

/*
 * Two of which an element of one holds more values than one of the other (dtype_values) lie in
 * bytes that windows cut differently: that they differ in dtype is all that is said. What operands
 * reduce to shows how far apart results are, but not that the operands are equal. Elements of a
 * SINK are nowhere.
 */
static bool is_read(const struct table *s, const struct table *t, const struct compare_item *x,
		    bool values)
{
	const struct table_tensor *a, *b;

	if (x->a == TABLE_NONE || x->b == TABLE_NONE)
		return false;
	a = &s->tensor[x->a];
	b = &t->tensor[x->b];
	if (x->kind == COMPARE_UNKNOWN)
		return a->cls != CKPT_SINK && b->cls != CKPT_SINK &&
		       (values || !operand_dims(s, a));
	return values && dtype_values(a->dtype) == dtype_values(b->dtype) &&
	       (x->kind == COMPARE_CONTENTS || x->kind == COMPARE_DTYPE ||
		x->kind == COMPARE_OPERANDS);
}

uint64_t compare_choose(const struct table *a, const struct table *b, bool values,
			struct compared *c)
{
	c->pair = calloc((size_t)c->nitem + 1, sizeof *c->pair);
	if (!c->pair)
		return UINT64_MAX;
	for (uint32_t i = 0; i < c->nitem; i++) {
		struct compare_item *x = &c->item[i];

		if (!is_read(a, b, x, values))
			continue;
		x->pair = c->npair;
		c->pair[c->npair++] = (struct pair){ .a = x->a, .b = x->b, .bits = !values };
	}
	return pairs_bytes(a, b, c->pair, c->npair);
}

/* What reading said of those that were not known. */
static void judge(const struct table *a, bool values, struct compared *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->nitem; i++) {
		struct compare_item x = c->item[i];

		if (x.kind == COMPARE_UNKNOWN && x.pair != TABLE_NONE &&
		    !operand_dims(a, &a->tensor[x.a])) {
			c->nread++;
			c->count[COMPARE_UNKNOWN]--;
			if (!c->pair[x.pair].apart.bits)
				continue;
			x.kind = COMPARE_CONTENTS;
			c->count[COMPARE_CONTENTS]++;
		}
		if (!values)
			x.pair = TABLE_NONE;
		c->item[n++] = x;
	}
	c->nitem = n;
}

int compare_read(const struct engine *e, const struct opened *a, const struct opened *b,
		 bool values, struct compared *c, struct ckpt_err *err)
{
	int rc = pairs_compare(e, a, b, c->pair, c->npair, err);

	if (!rc)
		judge(&a->ckpt->table, values, c);
	return rc;
}

void compared_free(struct compared *c)
{
	free(c->item);
	free(c->pair);
	*c = (struct compared){ 0 };
}
