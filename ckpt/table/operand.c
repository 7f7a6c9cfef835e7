/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operand.c - see operand.h. Called where pieces of pending reductions are checked and planned.
 * Invariant: the number of an operand follows from the tensor's declaration and a rank alone.
 */
#include "ckpt/table/operand.h"
#include "ckpt/base/util.h"
#include <stdio.h>

struct rank_at {
	uint32_t rank, index; /* in mesh.rank */
};

uint32_t operand_dims(const struct table *t, const struct table_tensor *x)
{
	const struct layout *l;
	uint32_t dims = 0;

	if (x->layout == TABLE_NONE)
		return 0;
	l = &t->layout[x->layout];
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how == CKPT_PARTIAL)
			dims |= UINT32_C(1) << l->place[i].mesh_dim;
	return dims;
}

uint32_t operand_count(const struct mesh *m, uint32_t dims)
{
	uint32_t n = 1;

	for (uint32_t d = 0; d < m->ndim; d++)
		if (dims >> d & 1)
			n *= m->dim[d];
	return n;
}

uint32_t operands_of(const struct table *t, const struct table_tensor *x)
{
	uint32_t dims = operand_dims(t, x);

	return dims ? operand_count(&t->mesh[t->layout[x->layout].mesh], dims) : 1;
}

uint32_t operand_number(const struct mesh *m, uint32_t dims, const uint32_t *coord)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		if (dims >> d & 1)
			n = n * m->dim[d] + coord[d];
	return n;
}

char *operand_print(const struct mesh *m, uint32_t dims, uint32_t number, char *buf, size_t bytes)
{
	uint32_t left = operand_count(m, dims);
	const char *sep = "";
	size_t used = 0;

	assert(bytes);
	*buf = 0;
	for (uint32_t d = 0; d < m->ndim && used + 1 < bytes; d++) {
		int n;

		if (!(dims >> d & 1))
			continue;
		left /= m->dim[d];
		n = snprintf(buf + used, bytes - used, "%s%s=%u", sep, m->name[d],
			     number / left % m->dim[d]);
		used += n > 0 ? (size_t)n : 0;
		sep = ", ";
	}
	return buf;
}

/* --- ranks to coordinates --- */

static int rank_compare(const void *va, const void *vb)
{
	const struct rank_at *a = va, *b = vb;

	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

int rank_map_open(const struct table *t, struct rank_map *ret)
{
	*ret = (struct rank_map){ .t = t };
	ret->mesh = calloc((size_t)t->nmesh + 1, sizeof(struct rank_at *));
	return ret->mesh ? 0 : -ENOMEM;
}

void rank_map_close(struct rank_map *m)
{
	for (uint32_t i = 0; m->mesh && i < m->t->nmesh; i++)
		free(m->mesh[i]);
	free(TAKE(m->mesh));
}

static struct rank_at *mesh_sort(const struct mesh *m)
{
	struct rank_at *at = calloc((size_t)m->nrank + 1, sizeof *at);
	bool sorted = true;

	if (!at)
		return NULL;
	for (uint32_t i = 0; i < m->nrank; i++) {
		at[i] = (struct rank_at){ m->rank[i], i };
		sorted &= !i || m->rank[i - 1] < m->rank[i];
	}
	if (!sorted)
		qsort(at, m->nrank, sizeof *at, rank_compare);
	return at;
}

int rank_map_coord(struct rank_map *map, uint32_t mesh, uint32_t rank, uint32_t *ret_coord)
{
	const struct mesh *m = &map->t->mesh[mesh];
	const struct rank_at key = { .rank = rank }, *at;
	uint32_t index;

	if (!map->mesh[mesh])
		map->mesh[mesh] = mesh_sort(m);
	if (!map->mesh[mesh])
		return -ENOMEM;
	at = bsearch(&key, map->mesh[mesh], m->nrank, sizeof *at, rank_compare);
	if (!at)
		return 0;
	index = at->index;
	for (uint32_t d = m->ndim; d-- > 0; index /= m->dim[d])
		ret_coord[d] = index % m->dim[d];
	return 1;
}
