/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operand.h - which operand of a pending reduction (CKPT_PARTIAL) a piece holds. Operands of a
 * tensor are counted row-major over the coordinates of the mesh dimensions that its layout names
 * PARTIAL, in the order of the mesh; a piece holds that of its rank. So a piece without a rank, or
 * of one that the mesh does not have, holds none.
 */
#ifndef CKPT_TABLE_OPERAND_H
#define CKPT_TABLE_OPERAND_H
#include "ckpt/table/table.h"

/* Bit per mesh dimension with a PARTIAL; 0 for a tensor that has none, or no layout. */
uint32_t operand_dims(const struct table *t, const struct table_tensor *x);
/* How many operands the tensor has; 1 for one that has no pending reduction. So many times its
 * numel are the elements of all its pieces together. */
uint32_t operands_of(const struct table *t, const struct table_tensor *x);
/* dims: bits of dimensions of the mesh; below it a coordinate is [m->ndim]. */
uint32_t operand_count(const struct mesh *m, uint32_t dims);
uint32_t operand_number(const struct mesh *m, uint32_t dims, const uint32_t *coord);
/* "dp=1, tp=0"; returns buf. */
char *operand_print(const struct mesh *m, uint32_t dims, uint32_t number, char *buf, size_t bytes);

/* Coordinates for many ranks of a table's meshes: each mesh is looked through once, when it is
 * first asked for. For one thread; the table outlives it. */
struct rank_map {
	const struct table *t;
	struct rank_at **mesh; /* [nmesh] */
};
int rank_map_open(const struct table *t, struct rank_map *ret); /* -ENOMEM */
void rank_map_close(struct rank_map *m);			/* a zeroed one is fine */
/* 1; 0 the mesh does not have the rank; -ENOMEM. */
int rank_map_coord(struct rank_map *m, uint32_t mesh, uint32_t rank, uint32_t *ret_coord);

/* Pieces of a tensor that has a pending reduction, sorted by the operand that each holds; those of
 * one operand in the order in which they were given. */
struct operand_pieces {
	struct table_piece *piece;
	uint32_t *operand; /* of each piece */
	uint32_t lost;	   /* on -EINVAL: this one holds no operand */
};
/* -ENOMEM, -EINVAL. *ret: zeroed, and to be freed in each case. */
int operand_pieces_make(struct rank_map *m, const struct table_tensor *x,
			const struct table_piece *piece, uint32_t n, struct operand_pieces *ret);
void operand_pieces_free(struct operand_pieces *p);
#endif
