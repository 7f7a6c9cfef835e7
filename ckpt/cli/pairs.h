/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.h - tensors of two checkpoints, read side by side in bounded memory, each byte once and
 * checked against its checksum, whatever meshes, files and element types they have.
 */
#ifndef CKPT_CLI_PAIRS_H
#define CKPT_CLI_PAIRS_H
#include "ckpt/engine/apart.h"
#include "ckpt/cli/subject.h"
#include "ckpt/move/move.h"

struct pair {
	uint32_t a, b; /* tensors of the two tables: of one key and one shape */
	struct apart compare;
};

uint64_t pairs_bytes(const struct table *a, const struct table *b, const struct pair *pair,
		     uint32_t n); /* that are read */
/* Fills each pair's compare. What move_read returns; err says which of the two it was. */
int pairs_compare(const struct subject *a, const struct subject *b, struct pair *pair, uint32_t n,
		  move_tick_fn *tick, void *arg, struct ckpt_err *err);
#endif
