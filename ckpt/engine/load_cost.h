/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_cost.h - what it costs to load a checkpoint onto a mesh: the bytes that each rank wants, and
 * the files and chunks that it must read for them. Computed from the plans that a restore would
 * carry out; no data is read.
 *
 * A chunk is read whole, for it is checked whole. Files without chunks are read to
 * the byte by a rank, and whole by the host. Of a place that is made of bytes of a file a rank
 * reads all these bytes.
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
	/* What each rank takes of what whom wrote; a file without a writer counts as its
	 * number's. */
	struct flow flow;
};

/* Asked now and then; != 0 ends it with -ECANCELED. */
typedef int load_tick_fn(void *arg, uint32_t ranks_done);

/* target: of target_make. tick may be NULL. -EMEDIUMTYPE: the checkpoint lacks what the target
 * wants (all of it in err); what target_ranks and plan_make say; -ENOMEM. */
int load_cost(const struct checkpoint *k, const struct table *target, struct load_cost *ret,
	      load_tick_fn *tick, void *arg, struct ckpt_err *err);
void load_cost_free(struct load_cost *c);
#endif
