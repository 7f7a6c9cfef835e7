/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coalesce.h - from what one or many plans need to few, large, sequential reads. All ranks of a
 * host add what they need; what comes out names every needed byte (of files with chunks: every
 * needed chunk) once, so that it is read once per host. For the mover of a restore, and for those
 * who say what it costs.
 *
 * The rule: a request costs request_ns, a byte costs 1/bytes_per_s. So a gap between two wanted
 * stretches is read through where its bytes cost no more than one more request would.
 *
 * Order: reads of one file ascend; those of all files are dealt so that every file has given the
 * same fraction of its bytes at any time. `turn` says with which file a host begins, so that hosts
 * do not stand in line at the same one.
 */
#ifndef CKPT_PLAN_COALESCE_H
#define CKPT_PLAN_COALESCE_H
#include "ckpt/plan/plan.h"

struct read_cost {
	uint64_t request_ns, bytes_per_s; /* 0: read_cost_default's */
	uint64_t read_max;		  /* bytes of one read; 0: the same */
};
/* A flash disk behind a file system, asked by few threads: 200 us, 2.5 GB/s (so gaps up to 500 kB
 * are read through), reads of 8 MiB. The mover's gaps follow the same rule. */
extern const struct read_cost read_cost_default;
uint64_t read_cost_gap(const struct read_cost *c); /* bytes that are read through */

struct read {
	uint32_t place;
	uint64_t off, len;
};

struct reads {
	struct read_cost cost;
	uint32_t chunk_log2; /* of all places; 0: none, bytes are read as they are */
	uint64_t nread;
	struct read *read;	      /* after reads_make, in the order in which to read */
	uint64_t wanted_bytes, bytes; /* asked for, as often as it was; read */
	/* private */
	struct read *add;
	uint64_t nadd, cap, gap;
};

/* cost NULL: the default. */
void reads_begin(struct reads *r, const struct read_cost *cost, uint32_t chunk_log2);
/* Bytes [off, off + len) of a place are needed; in any order, also twice. -ENOMEM. */
int reads_add(struct reads *r, uint32_t place, uint64_t off, uint64_t len);
/* place_bytes: of each place, where the last chunk ends; NULL: whole chunks. -ENOMEM. */
int reads_make(struct reads *r, const uint64_t *place_bytes, uint32_t turn);
void reads_free(struct reads *r);
#endif
