/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declared.h - are pieces what their ranks own by the declaration of their tensor? Then they need
 * not be compared with each other: what ranks own does not meet. To find out whether
 * pieces are disjoint, where bounds do not show it because the pieces are interleaved.
 */
#ifndef CKPT_TABLE_DECLARED_H
#define CKPT_TABLE_DECLARED_H
#include "ckpt/table/operand.h"

#define DECLARED_PAIRS 16   /* a piece: with no more of them the declaration is not used */
#define DECLARED_STEPS 1024 /* of a piece, at most */

/*
 * n pieces of one tensor, sorted by rank, of one operand where it has several. true: no two of them
 * share an element. false: nothing is known. ranks: of the table that has the declaration.
 */
bool pieces_as_declared(const struct table *t, uint32_t tensor, const struct table_piece *piece,
			uint32_t n, struct rank_map *ranks);
#endif
