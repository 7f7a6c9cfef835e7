/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coalesce.h - from the bytes that one or many plans need to few, large reads: what a host reads
 * when all its ranks load, each needed byte once. For estimates of what a load costs.
 *
 * The rule, which the mover's reads follow too: a request costs 200 us, and a byte what it takes at
 * 2.5 GB/s, as on a flash disk behind a file system with few threads that read. So a gap between
 * two wanted stretches is read through if its bytes cost no more than one more request.
 */
#ifndef CKPT_PLAN_COALESCE_H
#define CKPT_PLAN_COALESCE_H
#include <stdint.h>

#define READ_GAP UINT64_C(500000)    /* bytes that are read through */
#define READ_MAX ((uint64_t)8 << 20) /* bytes of one request */

struct read {
	uint32_t place;
	uint64_t off, len;
};

/* Zero-initialised it is empty. */
struct reads {
	struct read *read; /* [n]: after reads_unite disjoint, and sorted by (place, off) */
	uint64_t n, cap;
	uint64_t requests, bytes; /* after reads_unite: of all reads */
};

/* Bytes [off, off + len) of a place are needed; in any order, also twice. -ENOMEM. */
int reads_add(struct reads *r, uint32_t place, uint64_t off, uint64_t len);
/* Unites what overlaps and what only a gap divides that is read through. */
void reads_unite(struct reads *r);
void reads_free(struct reads *r);
#endif
