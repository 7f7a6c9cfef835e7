/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declared.h - do pieces contain what their ranks own by the declaration of their tensor? Then no
 * two of them share an element, and they need not be compared with each other. The check of a table
 * asks this where the pieces are interleaved, so that their bounds do not show it.
 */
#ifndef CKPT_TABLE_DECLARED_H
#define CKPT_TABLE_DECLARED_H
#include "ckpt/table/operand.h"

#define DECLARED_PAIRS 16   /* pairs per piece that are compared before this is asked */
#define DECLARED_STEPS 1024 /* of a piece, at most */

/*
 * n pieces of one tensor, sorted by rank, of one operand where it has several. true: no two of them
 * share an element. false: nothing is known. ranks: of the table that has the declaration.
 */
bool pieces_as_declared(const struct table *t, uint32_t tensor, const struct table_piece *piece,
			uint32_t n, struct rank_map *ranks);
#endif
