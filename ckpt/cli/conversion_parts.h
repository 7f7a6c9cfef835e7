/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_parts.h - what every rank of a target owns, as one table: the tensors once, whatever
 * the number of ranks, and a piece where a rank has something. A part's own table, which tells all
 * tensors again, is made where the part is written, and goes afterwards; its fingerprints stay.
 *
 * A rank has a main part, and one of averages if it owns something of one. Those of averages come
 * first: a main part names the others of its rank by what they hold.
 */
#ifndef CKPT_CLI_CONVERSION_PARTS_H
#define CKPT_CLI_CONVERSION_PARTS_H
#include "ckpt/table/table.h"

#define PARTS_TENSOR_BYTES 512u /* of memory for a tensor in a part's own table, about */

struct part_of {
	uint32_t rank, kind; /* enum part_kind: main or average */
	uint32_t source;     /* of a main part: that of the rank's averages; TABLE_NONE */
	uint64_t room;	     /* bytes that the file may take */
};

struct parts {
	const struct table *target;
	uint32_t world, npart;
	struct part_of *of; /* [npart] */
	uint32_t *made;	    /* [nmade] the target's MADE tensors, in the order of the raw spaces */
	uint32_t nmade;
	struct table plain; /* the target without them; empty where nmade is 0 */
	struct table all;   /* sealed; place i is part i */
	uint64_t bytes;	    /* of all pieces */
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
