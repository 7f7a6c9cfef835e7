/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit_copies.c - see explicit_copies.h. Called by explicit.c.
 * Invariant: all sets begin and end between cells, so the elements of a cell have equally many
 * copies.
 */
#include "ckpt/plan/explicit_copies.h"
#include "ckpt/base/unique.h"

/* Where sets begin or end along a dimension: cell i is [at[i], at[i + 1]). */
struct cuts {
	uint64_t *at;
	uint32_t n, cap;
};

struct counting {
	uint32_t ndim;
	struct cuts dim[CKPT_DIMS_MAX];
	int64_t *cell; /* row-major: copies, new ones less old ones, times the operands of both */
	uint64_t ncell, steps;
};

static int cut_add(struct cuts *c, uint64_t at)
{
	if (c->n == COPIES_CELLS_MAX)
		return -E2BIG;
	if (!ARRAY_GROW(c->at, c->n, c->cap))
		return -ENOMEM;
	c->at[c->n++] = at;
	return 0;
}

static int by_place(const void *x, const void *y)
{
	return COMPARE(*(const uint64_t *)x, *(const uint64_t *)y);
}

static void cuts_unite(struct cuts *c)
{
	c->n = sort_unique(c->at, c->n, sizeof *c->at, by_place);
}

static int list_cut(struct cuts *c, const struct indices *x)
{
	int e = 0;

	for (uint32_t r = 0; r < x->n; r++)
		for (uint64_t k = 0; k < x->run[r].count && !e; k++) {
			uint64_t at = x->run[r].start + k * x->run[r].stride;

			e = cut_add(c, at);
			if (!e)
				e = cut_add(c, at + x->run[r].len);
		}
	return e;
}

static int sets_cut(struct counting *k, const struct copies *side)
{
	int e = 0;

	for (uint32_t i = 0; i < side->n && !side->each; i++)
		for (uint32_t d = 0; d < k->ndim && !e; d++) {
			/* Sets of many ranks begin at few places. */
			if (k->dim[d].n > COPIES_CELLS_MAX / 2)
				cuts_unite(&k->dim[d]);
			e = list_cut(&k->dim[d], &side->at[i].set.dim[d]);
		}
	return e;
}

static int cells_make(struct counting *k, const uint64_t *shape, int64_t begin)
{
	k->ncell = 1;
	for (uint32_t d = 0; d < k->ndim; d++) {
		struct cuts *c = &k->dim[d];
		int e = cut_add(c, 0);

		if (!e)
			e = cut_add(c, shape[d]);
		if (e)
			return e;
		cuts_unite(c);
		k->ncell *= c->n - 1;
		if (k->ncell > COPIES_CELLS_MAX)
			return -E2BIG;
	}
	k->cell = calloc(k->ncell + 1, sizeof *k->cell);
	for (uint64_t i = 0; i < k->ncell && k->cell; i++)
		k->cell[i] = begin;
	return k->cell ? 0 : -ENOMEM;
}

/* Along dimension d and those behind it, from the cell `at`. At most CKPT_DIMS_MAX deep. */
static int set_count(struct counting *k, const struct indexset *x, uint32_t d, uint64_t at,
		     int64_t by)
{
	int e = 0;

	if (d == k->ndim) {
		k->cell[at] += by;
		return ++k->steps > COPIES_STEPS_MAX ? -E2BIG : 0;
	}
	at *= k->dim[d].n - 1;
	for (uint32_t r = 0; r < x->dim[d].n; r++) {
		const struct run *run = &x->dim[d].run[r];
		const struct cuts *c = &k->dim[d];

		for (uint64_t i = 0; i < run->count && !e; i++) {
			uint64_t from = run->start + i * run->stride, to = from + run->len;
			uint32_t first = SEARCH(j, 0u, c->n, c->at[j] < from);

			for (uint32_t j = first; c->at[j] < to && !e; j++)
				e = set_count(k, x, d + 1, at + j, by);
		}
	}
	return e;
}

static int sets_count(struct counting *k, const struct copies *side, int64_t by)
{
	int e = 0;

	for (uint32_t i = 0; i < side->n && !side->each && !e; i++)
		e = set_count(k, &side->at[i].set, 0, 0, by);
	return e;
}

static uint64_t cell_numel(const struct counting *k, uint64_t cell)
{
	uint64_t n = 1;

	for (uint32_t d = k->ndim; d-- > 0; cell /= k->dim[d].n - 1) {
		const uint64_t *at = &k->dim[d].at[cell % (k->dim[d].n - 1)];

		n *= at[1] - at[0];
	}
	return n;
}

static uint64_t added_sum(const struct counting *k, uint64_t units)
{
	uint64_t sum = 0, n;

	for (uint64_t i = 0; i < k->ncell; i++)
		if (k->cell[i] > 0 &&
		    (ckpt_mul(cell_numel(k, i), div_up((uint64_t)k->cell[i], units), &n) ||
		     ckpt_add(sum, n, &sum)))
			return UINT64_MAX;
	return sum;
}

int copies_added(uint32_t ndim, const uint64_t *shape, const struct copies *old,
		 const struct copies *new, uint64_t *ret)
{
	struct counting k = { .ndim = ndim };
	int e = sets_cut(&k, old);

	if (!e)
		e = sets_cut(&k, new);
	if (!e)
		e = cells_make(&k, shape,
			       (int64_t)(new->each * old->operands) -
				       (int64_t)(old->each * new->operands));
	if (!e)
		e = sets_count(&k, old, -(int64_t) new->operands);
	if (!e)
		e = sets_count(&k, new, old->operands);
	if (!e)
		*ret = added_sum(&k, (uint64_t)old->operands * new->operands);
	for (uint32_t d = 0; d < ndim; d++)
		free(k.dim[d].at);
	free(k.cell);
	return e;
}
