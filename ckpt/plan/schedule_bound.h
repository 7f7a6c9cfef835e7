/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_bound.h - how much a rank sends and receives at most, for plan_schedule.c: from the
 * kinds of tensors, without looking at pairs of ranks.
 *
 * Received: the largest share of each tensor, which is that of the coordinate 0. Sent: the largest
 * share of the source, S bytes, once for each copy of an element that the destination has. Where R
 * replicas share the work (sender.h), each gets an R-th of that and one part, and what ranks of its
 * host ask for: at most per_host parts. A part is what two shares have in common at most. A tensor
 * that has the same layout on both sides, or is complete on ranks among which all of the
 * destination are, is not exchanged at all.
 */
#ifndef CKPT_PLAN_SCHEDULE_BOUND_H
#define CKPT_PLAN_SCHEDULE_BOUND_H
#include "ckpt/plan/plan_schedule.h"

/* All ranks that have or are to have something, ascending. */
struct ranks {
	uint32_t n;
	const uint32_t *rank;
	bool dense; /* rank[i] == i */
};
int ranks_find(const struct table *src, const struct table *dst, struct arena *a,
	       struct ranks *ret);
uint32_t ranks_index(const struct ranks *r, uint32_t rank); /* TABLE_NONE: it is not there */
const struct ranks *schedule_ranks(const struct schedule *s);

struct rank_bounds {
	const struct table *src, *dst;
	const struct ranks *ranks;
	uint64_t *sent;	    /* [layouts of src] by each rank at which the layout has shares */
	uint64_t *received; /* [layouts of dst + 1]; the last: of tensors without one */
	uint64_t *pieces;   /* [ranks] sent, of tensors without a layout */
};
/* Tensors that are alike. */
struct bound_kind {
	uint32_t src_tensor, dst_tensor;
	uint64_t count;
	enum holders_who who;
	uint32_t per_host;
};
int rank_bounds_open(const struct table *src, const struct table *dst, const struct ranks *ranks,
		     struct rank_bounds *ret); /* -ENOMEM */
void rank_bounds_close(struct rank_bounds *b);
int rank_bounds_add(struct rank_bounds *b,
		    const struct bound_kind *k); /* -ENOMEM, -E2BIG, -EOVERFLOW */
/* Of the rank with the most, in one direction. -ENOMEM, -EOVERFLOW. */
int rank_bounds_most(const struct rank_bounds *b, uint64_t *ret);

/* For schedule_total: what no transport carries is added to the list. */
#define SCHEDULE_UNREACHED "there is no transport between ranks that exchange something"
int schedule_part_list(struct schedule *s, uint32_t rank, struct schedule_part *ret,
		       struct ckpt_errlist *list, struct ckpt_err *err);
#endif
