/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_parts.h - what every rank of a target owns, as one table: the tensors once, whatever
 * the number of ranks, and a piece where a rank has something. A part's own table, which tells all
 * tensors again, is made where the part is written, and goes afterwards; its fingerprints stay.
 */
#ifndef CKPT_CLI_CONVERSION_PARTS_H
#define CKPT_CLI_CONVERSION_PARTS_H
#include "ckpt/table/table.h"

#define PARTS_TENSOR_BYTES 512u /* of memory for a tensor in a part's own table, about */

struct parts {
	const struct table *target;
	uint32_t world;
	struct table all; /* sealed; place i is part i, which is rank i's */
	uint64_t *room;	  /* [world] bytes that the file may take */
	uint64_t bytes;	  /* of all pieces */
};

/* target: of target_make; must outlive it. -EINVAL: more ranks than a checkpoint has; -ECANCELED:
 * cli_stopped; -ENOMEM, -E2BIG. conversion_parts_free in any case. */
int parts_make(const struct table *target, struct parts *ret, struct ckpt_err *err);
/* Part i's own table (native_part_table), with the fingerprints that all has. */
int conversion_part_table(const struct parts *p, uint32_t i, struct table *ret,
			  struct ckpt_err *err);
/* The reverse: all takes the fingerprints of part i's table. */
void parts_keep(struct parts *p, uint32_t i, const struct table *t);
void conversion_parts_free(struct parts *p);
#endif
