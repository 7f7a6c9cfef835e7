/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - what all formats' checkpoints have in common. Called by whoever holds one.
 * Invariant: everything that a checkpoint points to lives in its table's arena, so that freeing it
 * knows no format.
 */
#include "formats/format.h"
#include <stdlib.h>

void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	table_free(&c->table);
	free(c);
}

void sheet_free(struct sheet *s)
{
	if (!s)
		return;
	if (s->format->sheet_end)
		s->format->sheet_end(s);
	table_free(&s->table);
	free(s);
}
