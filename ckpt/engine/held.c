/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held.c - see held.h. Called by ckptctl stats.
 * Invariant: every sum is over all tensors that were chosen.
 */
#include "ckpt/engine/held.h"
#include "ckpt/base/util.h"
#include "ckpt/table/operand.h"

#define SHARES_MAX (1u << 22) /* shares that are computed: some seconds */

/* Tensors of one layout and shape: their shares are computed once. */
struct kind {
	uint32_t tensor;     /* one of them */
	uint64_t elem_bytes; /* of all of them together */
};

static int shape_compare(const struct table_tensor *x, const struct table_tensor *y)
{
	if (x->ndim != y->ndim)
		return x->ndim < y->ndim ? -1 : 1;
	for (uint32_t d = 0; d < x->ndim; d++)
		if (x->shape[d] != y->shape[d])
			return x->shape[d] < y->shape[d] ? -1 : 1;
	return 0;
}

static int kind_compare(const void *a, const void *b, void *arg)
{
	const struct table *t = arg;
	const struct table_tensor *x = &t->tensor[*(const uint32_t *)a],
				  *y = &t->tensor[*(const uint32_t *)b];

	if (x->layout != y->layout)
		return x->layout < y->layout ? -1 : 1;
	return shape_compare(x, y);
}

static int kinds_make(const struct chosen *s, struct kind **ret, uint32_t *ret_n)
{
	struct table *t = (struct table *)&s->k->table;
	cleanup_free uint32_t *id = calloc((size_t)s->n + 1, sizeof *id);
	struct kind *kind = calloc((size_t)s->n + 1, sizeof *kind);
	uint32_t n = 0, m = 0;

	*ret = kind;
	if (!id || !kind)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->n; i++)
		if (t->tensor[s->id[i]].layout != TABLE_NONE)
			id[m++] = s->id[i];
	qsort_r(id, m, sizeof *id, kind_compare, t);
	for (uint32_t i = 0; i < m; i++) {
		if (!i || kind_compare(&id[i - 1], &id[i], t))
			kind[n++] = (struct kind){ .tensor = id[i] };
		kind[n - 1].elem_bytes += t->tensor[id[i]].elem_bytes;
	}
	*ret_n = n;
	return 0;
}

/* What each rank of the mesh holds of all tensors of one kind. */
static int kind_held(const struct chosen *s, const struct kind *kind, struct ranks *r)
{
	const struct table *t = &s->k->table;
	const struct table_tensor *x = &t->tensor[kind->tensor];
	const struct layout *l = &t->layout[x->layout];
	const struct mesh *mesh = &t->mesh[l->mesh];
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	uint64_t held = 0;

	for (uint32_t i = 0; i < mesh->nrank; i++) {
		struct arena a = { 0 };
		struct indexset set;
		int rc = layout_share(mesh, l, x->ndim, x->shape, coord, &a, &set);

		arena_free(&a);
		if (rc)
			return rc;
		held += set.numel * kind->elem_bytes;
		if (mesh->rank[i] < s->k->world)
			r->rank[mesh->rank[i]].holds += set.numel * kind->elem_bytes;
		for (uint32_t d = mesh->ndim; d-- > 0 && ++coord[d] == mesh->dim[d];)
			coord[d] = 0;
	}
	r->held += held;
	/* Operands of a pending reduction are no copies of each other. */
	r->replicated += held - MIN(held, x->numel * kind->elem_bytes * operands_of(t, x));
	return 0;
}

static int ranks_held(const struct chosen *s, struct ranks *r)
{
	const struct table *t = &s->k->table;
	cleanup_free struct kind *kind = NULL;
	uint32_t n = 0;
	uint64_t shares = 0;
	int rc = kinds_make(s, &kind, &n);

	for (uint32_t i = 0; i < n && !rc; i++)
		shares += t->mesh[t->layout[t->tensor[kind[i].tensor].layout].mesh].nrank;
	r->held_known = shares <= SHARES_MAX && s->k->has & HAS_LAYOUTS;
	for (uint32_t i = 0; i < n && !rc && r->held_known; i++)
		rc = kind_held(s, &kind[i], r);
	return rc;
}

int ranks_make(struct chosen *s, struct ranks *r)
{
	const struct table *t = &s->k->table;

	*r = (struct ranks){ .rank = arena_array(&s->arena, (size_t)s->k->world + 1,
						 sizeof *r->rank) };
	if (!r->rank)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->n; i++) {
		const struct table_tensor *x = &t->tensor[s->id[i]];

		for (uint32_t k = t->first[s->id[i]]; k < t->first[s->id[i] + 1]; k++) {
			const struct table_piece *p = &t->piece[k];
			uint64_t bytes = p->set.numel * x->elem_bytes;
			struct rank_sum *to = p->rank < s->k->world ? &r->rank[p->rank] : NULL;

			if (x->layout == TABLE_NONE)
				r->held += bytes;
			if (!to)
				continue;
			to->pieces++;
			to->wrote += p->flags & PIECE_DERIVED ? 0 : bytes;
			to->holds += x->layout == TABLE_NONE ? bytes : 0;
		}
	}
	return ranks_held(s, r);
}

static int content_compare(const void *a, const void *b)
{
	const struct table_tensor *x = *(const struct table_tensor *const *)a,
				  *y = *(const struct table_tensor *const *)b;

	if (x->fp != y->fp)
		return x->fp < y->fp ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	return shape_compare(x, y);
}

static int content_order(const void *a, const void *b)
{
	const struct table_tensor *const *x = a, *const *y = b;
	int d = content_compare(a, b);

	return d ? d : (*x > *y) - (*x < *y);
}

static int twin_compare(const void *a, const void *b)
{
	const struct twin *x = a, *y = b;

	if (x->extra != y->extra)
		return x->extra < y->extra ? 1 : -1;
	return (x->first > y->first) - (x->first < y->first);
}

int twins_make(struct chosen *s, struct twins *w)
{
	*w = (struct twins){ .x = arena_array(&s->arena, (size_t)s->n + 1, sizeof *w->x) };
	w->group = arena_array(&s->arena, (size_t)s->n + 1, sizeof *w->group);
	if (!w->x || !w->group)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->n; i++) {
		const struct table_tensor *x = &s->k->table.tensor[s->id[i]];

		w->unknown += !x->fp_known && x->numel && x->cls != CKPT_SINK;
	}
	for (uint32_t i = 0; i < s->n; i++) {
		const struct table_tensor *x = &s->k->table.tensor[s->id[i]];

		if (!x->fp_known || !x->numel || x->cls == CKPT_SINK)
			continue;
		/* Zeros add nothing to a fingerprint, and only they: 0 is a tensor of zeros. */
		if (!x->fp) {
			w->zero_tensors++;
			w->zero_bytes += table_tensor_bytes(x);
			continue;
		}
		w->x[w->n++] = x;
	}
	qsort(w->x, w->n, sizeof *w->x, content_order);
	for (uint32_t i = 0, n; i < w->n; i += n) {
		for (n = 1; i + n < w->n && !content_compare(&w->x[i], &w->x[i + n]);)
			n++;
		if (n == 1)
			continue;
		w->group[w->ngroup++] =
			(struct twin){ i, n, (n - 1) * table_tensor_bytes(w->x[i]) };
		w->equal_bytes += (n - 1) * table_tensor_bytes(w->x[i]);
	}
	qsort(w->group, w->ngroup, sizeof *w->group, twin_compare);
	return 0;
}
