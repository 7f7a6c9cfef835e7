/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.h - tensors of two checkpoints, read side by side in bounded memory, each byte once and
 * checked against its checksum if it has one, whatever meshes, files and element types they have.
 */
#ifndef CKPT_ENGINE_PAIRS_H
#define CKPT_ENGINE_PAIRS_H
#include "ckpt/engine/apart.h"
#include "ckpt/engine/engine.h"

struct pair {
	uint32_t a, b; /* tensors of the two tables: of one key and one shape */
	bool bits; /* all that is asked: is apart.bits 0? Equal bytes are not counted in apart */
	struct apart apart;
};

uint64_t pairs_bytes(const struct table *a, const struct table *b, const struct pair *pair,
		     uint32_t n); /* that are read */
/* Fills each pair's apart. What move_read returns; err says which of the two it was. */
int pairs_compare(const struct engine *e, const struct opened *a, const struct opened *b,
		  struct pair *pair, uint32_t n, struct ckpt_err *err);
#endif
