/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coalesce.h - from the bytes that one or many plans need to few, large reads: what a host reads
 * when all its ranks load, each needed byte once. For estimates of what a load costs.
 *
 * The mover's reads follow the same rule. One request costs 200 us, and bytes come at 2.5 GB/s, as
 * on a flash disk behind a file system with few threads that read. Two stretches with a gap between
 * them are one request if the bytes of the gap cost no more than a second request.
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
