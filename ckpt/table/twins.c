/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twins.c - which pieces are the rounding of which (table_twins, table.h). Called where a raw space
 * is walked, where averages begin, and by a reader, which compares.
 */
#include "ckpt/base/util.h"
#include "ckpt/table/table.h"
#include <stdlib.h>

/* A piece by its first element: pieces of one tensor have none in common. */
static int by_first_element(const void *va, const void *vb, void *table)
{
	const struct table *t = table;
	const struct table_piece *a = &t->piece[*(const uint32_t *)va],
				 *b = &t->piece[*(const uint32_t *)vb];

	return indexset_order(&a->set, &b->set);
}

/* The item whose piece begins where piece k does; TABLE_NONE. */
static uint32_t begins_alike(const struct table *t, const uint32_t *item, uint32_t n, uint32_t k)
{
	uint32_t i = SEARCH(m, 0u, n, by_first_element(&item[m], &k, (void *)t) < 0);

	return i < n && !by_first_element(&item[i], &k, (void *)t) ? item[i] : TABLE_NONE;
}

/* twin of the pieces of tensor x; the master's pieces are at item[0 .. n). */
static void twins_match(const struct table *t, uint32_t x, const uint32_t *item, uint32_t n,
			uint32_t *twin)
{
	for (uint32_t k = t->first[x]; k < t->first[x + 1]; k++) {
		uint32_t hit = t->piece[k].stride ? TABLE_NONE : begins_alike(t, item, n, k);
		const struct table_piece *p = hit == TABLE_NONE ? NULL : &t->piece[hit];

		if (p && p->place == t->piece[k].place && !p->stride && p->off % 4 == 0 &&
		    !(p->flags & PIECE_DERIVED) && indexset_equal(&p->set, &t->piece[k].set))
			twin[k] = hit;
	}
}

int table_twins(const struct table *t, uint32_t *ret_twin)
{
	cleanup_free uint32_t *item = NULL;

	for (uint32_t i = 0; i < t->npiece; i++)
		ret_twin[i] = TABLE_NONE;
	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint32_t m = table_master(t, &t->tensor[i]), n;

		if (m == TABLE_NONE || t->first[i] == t->first[i + 1])
			continue;
		if (!item)
			item = calloc((size_t)t->npiece + 1, sizeof *item);
		if (!item)
			return -ENOMEM;
		n = t->first[m + 1] - t->first[m];
		for (uint32_t k = 0; k < n; k++)
			item[k] = t->first[m] + k;
		qsort_r(item, n, sizeof *item, by_first_element, (void *)t);
		twins_match(t, i, item, n, ret_twin);
	}
	return 0;
}
