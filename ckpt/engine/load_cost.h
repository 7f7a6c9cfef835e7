/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_cost.h - what it costs to load a checkpoint onto a mesh: the bytes that each rank needs, and
 * the files and chunks that it must read for them. Computed from the plans that a restore would
 * carry out; no data is read.
 *
 * A chunk is read in full, because it is checked in full. Of a file without chunks, a rank reads only
 * the bytes that it needs, and the host reads the whole file. Of a place that is made of bytes of a
 * file, a rank reads all these bytes.
 */
#ifndef CKPT_ENGINE_LOAD_COST_H
#define CKPT_ENGINE_LOAD_COST_H
#include "ckpt/plan/flow.h"
#include "formats/format.h"

struct load_rank {
	uint64_t bytes;	     /* it holds: its shares and the blobs that it carries */
	uint64_t read_bytes; /* of the distinct chunks with something of them, as stored */
	uint64_t chunks;
	uint32_t files, tensors;
};

struct load_cost {
	uint32_t world;
	struct load_rank *rank; /* [world] */
	/* All ranks as one reader that reads each chunk once: bytes counts each element once. */
	struct load_rank host;
	/* How that reader would read: neighbouring chunks at once, small gaps with them
	 * (coalesce.h). */
	uint64_t requests, request_bytes;
	uint64_t held_bytes, read_bytes; /* of all ranks, added up */
	/* How many bytes each rank takes from each writer; a file without a writer counts as that
	 * of the rank with its number. */
	struct flow flow;
};

/* Called from time to time; != 0 ends it with -ECANCELED. */
typedef int load_tick_fn(void *arg, uint32_t ranks_done);

/* target: of target_make. tick may be NULL. -EMEDIUMTYPE: the checkpoint lacks what the target
 * needs (err lists all of it); errors of target_ranks and plan_make; -ENOMEM. */
int load_cost(const struct checkpoint *k, const struct table *target, struct load_cost *ret,
	      load_tick_fn *tick, void *arg, struct ckpt_err *err);
void load_cost_free(struct load_cost *c);
#endif
