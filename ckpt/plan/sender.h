/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sender.h - which of the replicas of a share sends it to a rank that needs some of it (HOLDERS_ONE
 * of reshard.h). Sender and receiver find the same answer without asking each other.
 *
 * A rank that holds the share itself takes it from itself. Else, if replicas are on its host, they
 * share the work by the rank's place on the host: of m of them, in the order of their numbers, it
 * is number ((rank mod h) * m / h + b) mod m, h ranks to a host. Else all R share it by bytes. The
 * parts that ranks need are laid out on a line, one behind the other; it is cut into R stretches of
 * equal length, and a part is sent by the replica whose number is that of the stretch in which the
 * part begins: number ((x + b * n / 8) * R / n) mod R, where it begins at x of n. So no replica
 * sends more than its stretch and one part, and what is near in number stays near.
 *
 *	x, n	in elements. First come all parts of the destination's first copy of the share, then
 *		those of the next one; in each of them, parts lie row-major by their numbers along
 *		each tensor dimension. Copies are the coordinates on mesh dimensions that neither
 *		SHARD nor ONLY names.
 *	b	of [0, 8), by the tensor's name: it shifts where stretches end, so that rounding does
 *		not fall on the same replica for all tensors. h mod 8, where h is 0 and then, for
 *		each 8 bytes of the component with its final 0 and of the name with its own, lowest
 *		first and filled up with 0: h = (h xor them) * 0xff51afd7ed558ccd mod 2^64, and h =
 *		h xor (h >> 32)
 *
 * Replicas are numbered row-major over the mesh dimensions that no placement but REPLICATE names.
 */
#ifndef CKPT_PLAN_SENDER_H
#define CKPT_PLAN_SENDER_H
#include "ckpt/layout/layout.h"

#define SENDER_BUCKETS 8u
uint32_t sender_bucket(const char *component, const char *name);

/* The replicas of one share. */
struct sender_replicas {
	const struct mesh *mesh;
	bool ascending; /* the mesh's ranks are in ascending order: found by bisection */
	uint32_t n, naxis;
	struct {
		uint32_t size, stride;
	} axis[CKPT_DIMS_MAX];
	uint64_t base; /* place of replica 0 */
};
bool sender_ascending(const struct mesh *m);
/* place: of any of them. */
struct sender_replicas sender_replicas_of(const struct mesh *m, bool ascending,
					  const struct layout *l, uint32_t place);
uint32_t sender_rank(const struct sender_replicas *r, uint32_t number);

/* Along one tensor dimension, of the indices of the share: how many belong to parts before this
 * one, how many to this one, and how many there are. */
struct sender_along {
	uint64_t before, part, all;
};

/* A rank that needs some of the share: begin, then along for each tensor dimension, the last one
 * first, then pick. */
struct sender_asks {
	uint32_t rank, per_host; /* per_host 0: hosts do not count */
	uint32_t bucket;
	uint64_t copy, ncopy; /* sender_copy */
	uint64_t x, n;	      /* in one copy */
};
void sender_ask_begin(struct sender_asks *a);
void sender_ask_along(struct sender_asks *a, const struct sender_along *d);
uint32_t sender_pick(const struct sender_replicas *r, const struct sender_asks *a); /* its number */

/* The number of the copy at this place; *ret_n: how many there are. */
uint64_t sender_copy(const struct mesh *m, const struct layout *l, uint32_t place, uint64_t *ret_n);
#endif
