/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare.h - do two checkpoints hold the same, whatever their formats, meshes and files are?
 *
 * Names, shapes, dtypes and operands are compared by the tables. Contents are compared by
 * fingerprints if both sides have one. If one side has none, both tensors must be read and compared
 * bit by bit; until then they are UNKNOWN, which is never equal. compare_find uses the tables alone;
 * compare_read reads data. It uses the calling thread and those of move.
 */
#ifndef CKPT_ENGINE_COMPARE_H
#define CKPT_ENGINE_COMPARE_H
#include "ckpt/engine/engine.h"
#include "ckpt/engine/pairs.h"

enum compare_kind {
	COMPARE_ONLY_A,
	COMPARE_ONLY_B,
	COMPARE_SHAPE,
	COMPARE_DTYPE,
	COMPARE_OPERANDS, /* of a pending reduction: their fingerprints are not those of the result */
	COMPARE_CONTENTS,
	COMPARE_UNKNOWN, /* one has no fingerprint, and they were not read */
	COMPARE_LAYOUT,
	COMPARE_ROLE, /* or class, or what it is of */
	COMPARE_KINDS
};

struct compare_item {
	enum compare_kind kind;
	uint32_t a, b; /* tensors; TABLE_NONE: it is not there */
	uint32_t pair; /* its values; TABLE_NONE: they were not compared one by one */
};

struct compared {
	struct compare_item *item; /* [nitem] by tensor of A; then those of B alone */
	uint32_t nitem;
	uint32_t count[COMPARE_KINDS];
	uint32_t nboth;	     /* keys that both have */
	uint64_t both_bytes; /* of them, in A */
	uint32_t nread;	     /* of them: compared bit by bit, as there is no fingerprint */
	struct pair *pair;   /* [npair] */
	uint32_t npair;
};

/* in_a, in_b: [ntensor] is it asked for? NULL: all are. 0 or -ENOMEM; free it after either. */
int compare_find(const struct table *a, const struct table *b, const bool *in_a, const bool *in_b,
		 struct compared *ret);
/* Which of the items will be read: those that are UNKNOWN and can be compared bit by bit, and with
 * `values` those whose contents, dtypes or operands differ. Returns the bytes; UINT64_MAX: no
 * memory. */
uint64_t compare_choose(const struct table *a, const struct table *b, bool values,
			struct compared *c);
/* Reads both sides of each item. Items that are equal bit by bit are removed; the others become
 * CONTENTS. err says which of the two checkpoints failed; errors as of move_read, and -ECANCELED. */
int compare_read(const struct engine *e, const struct opened *a, const struct opened *b,
		 bool values, struct compared *c, struct ckpt_err *err);
void compared_free(struct compared *c);
#endif
