/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_entry.h - the calls from libckpt.so to libckpt-nccl.so. The first one is all that a trainer
 * needs; it opens the second one, which lies beside it, at a ckpt_restore over NCCL (CKPT_NCCL).
 * Both come from one build: another `bytes` or `version` is refused.
 *
 * Ranks that load one checkpoint divide what several of them hold (ckpt/spread/spread.h): the
 * daemon reads for each rank its own part (WIRE_DIVIDED), and then each sends it on to the others.
 * All ranks call `open`, `run` and `close` in the same order, and each call has the same result on
 * all of them.
 */
#ifndef CKPT_WIRE_NCCL_ENTRY_H
#define CKPT_WIRE_NCCL_ENTRY_H
#include "ckpt/ckpt.h"
#include <stdint.h>

#define NCCL_LIBRARY "libckpt-nccl.so"
#define NCCL_ENTRY "ckpt_nccl_entry"

struct nccl_job {
	uint32_t rank, world;
	uint32_t device; /* number of the CUDA device */
	void *comm;	 /* the caller's ncclComm_t; NULL: one is made */
	int (*agree)(void *ctx, uint64_t mine, uint64_t *ret_min);
	void *agree_ctx;
	uint64_t init_ns, round_ns; /* how long a communicator and a round may take */
	uint64_t staging_bytes;	    /* of the device, while it runs; about */
};

/* What this rank has loaded its part of. */
struct nccl_state {
	const void *declaration; /* the container that the daemon has got */
	uint64_t bytes;
	const uint64_t
		*base; /* [nbase] addresses of its places; a place behind them has addresses */
	uint32_t nbase;
	const char *only; /* this component; NULL: all */
};

/* What an exchange has brought to this rank, also if it failed. */
struct nccl_done {
	uint64_t bytes;	      /* from other ranks, if it was successful */
	uint64_t chunk_bytes; /* of a window */
	uint64_t rounds;      /* that have arrived */
};

struct nccl_entry {
	uint32_t bytes; /* of this structure, and of the three above, together */
	const char *version;
	/* 0; negative: no rank uses NCCL, and *err says what is missing here, or elsewhere. */
	int (*open)(const struct nccl_job *j, void **ret, struct ckpt_err *err);
	/* 0: every rank has all that it declares. Negative: this rank lacks what the rounds behind
	 * ret->rounds carry (spread_missing), and the communicator has been aborted, also if it is
	 * the caller's. */
	int (*run)(void *handle, const struct nccl_state *s, struct nccl_done *ret,
		   struct ckpt_err *err);
	void (*close)(void *handle);
};
#define NCCL_ENTRY_BYTES                                                  \
	((uint32_t)(sizeof(struct nccl_entry) + sizeof(struct nccl_job) + \
		    sizeof(struct nccl_state) + sizeof(struct nccl_done)))
#endif
