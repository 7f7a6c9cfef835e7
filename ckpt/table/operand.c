/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operand.c - see operand.h. Called where pieces of pending reductions are checked and planned.
 * Invariant: the number of an operand follows from the tensor's declaration and a rank alone.
 */
#include "ckpt/table/operand.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"

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
	struct text t = text_in(buf, bytes);

	for (uint32_t d = 0; d < m->ndim; d++) {
		if (!(dims >> d & 1))
			continue;
		left /= m->dim[d];
		text_add(&t, "%s%s=%u", t.len ? ", " : "", m->name[d], number / left % m->dim[d]);
	}
	return buf;
}

struct numbered {
	uint32_t operand, piece;
};

static int by_operand(const void *va, const void *vb)
{
	const struct numbered *a = va, *b = vb;
	int r = COMPARE(a->operand, b->operand);

	return r ? r : COMPARE(a->piece, b->piece);
}

int operand_pieces_make(struct rank_map *map, const struct table_tensor *x,
			const struct table_piece *piece, uint32_t n, struct operand_pieces *ret)
{
	uint32_t dims = operand_dims(map->t, x), mesh = map->t->layout[x->layout].mesh;
	cleanup_free struct numbered *of = calloc((size_t)n + 1, sizeof *of);
	uint32_t coord[CKPT_DIMS_MAX];

	ret->piece = calloc((size_t)n + 1, sizeof *ret->piece);
	ret->operand = calloc((size_t)n + 1, sizeof *ret->operand);
	if (!of || !ret->piece || !ret->operand)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		int r = rank_map_coord(map, mesh, piece[i].rank, coord);

		ret->lost = i;
		if (r <= 0)
			return r ? r : -EINVAL;
		of[i].piece = i;
		of[i].operand = operand_number(&map->t->mesh[mesh], dims, coord);
	}
	qsort(of, n, sizeof *of, by_operand);
	for (uint32_t i = 0; i < n; i++) {
		ret->piece[i] = piece[of[i].piece];
		ret->operand[i] = of[i].operand;
	}
	return 0;
}

void operand_pieces_free(struct operand_pieces *p)
{
	free(TAKE(p->piece));
	free(TAKE(p->operand));
}

/* --- ranks to coordinates --- */

static int rank_compare(const void *va, const void *vb)
{
	const struct rank_at *a = va, *b = vb;

	return COMPARE(a->rank, b->rank);
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

	if (!map->mesh[mesh])
		map->mesh[mesh] = mesh_sort(m);
	if (!map->mesh[mesh])
		return -ENOMEM;
	at = bsearch(&key, map->mesh[mesh], m->nrank, sizeof *at, rank_compare);
	if (!at)
		return 0;
	mesh_place_coord(m, at->index, ret_coord);
	return 1;
}
