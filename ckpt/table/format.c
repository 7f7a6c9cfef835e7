/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - what all formats' checkpoints have in common. Called by whoever holds one.
 * Invariant: everything that a checkpoint points to lives in its table's arena, so that freeing it
 * knows no format.
 */
#include "ckpt/table/format.h"
#include <stdlib.h>

void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	table_free(&c->table);
	free(c);
}
