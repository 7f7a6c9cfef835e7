/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_cost.h - the memory that an average would take on a mesh: for plan --average SPEC. As the
 * daemon counts it (daemon/averages.c): FP32 for each element that a rank owns of what is averaged,
 * and as much again for Kahan's carries, in each slot; without the gaps between pieces.
 */
#ifndef CKPT_ENGINE_AVERAGE_COST_H
#define CKPT_ENGINE_AVERAGE_COST_H
#include "ckpt/table/table.h"

struct average_cost {
	char *canonical; /* malloc'ed */
	uint32_t ntensor;
	uint64_t bytes, most; /* of one slot: of all ranks; of the rank that owns most */
};
/* target: target_make's. -EINVAL: the spec cannot be read or meant: all that is wrong is in err;
 * -EMEDIUMTYPE: it would average what cannot be averaged; -ECANCELED: stopped() (NULL: never),
 * asked for each tensor; -ENOMEM. */
int average_cost(const struct table *target, const char *spec, bool (*stopped)(void),
		 struct average_cost *ret, struct ckpt_err *err);
#endif
