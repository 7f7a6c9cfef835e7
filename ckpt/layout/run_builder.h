/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_builder.h - collects ascending runs into the records of a struct indices. For layout/ only.
 *
 * Equal runs at equal distances become a progression. Runs never touch: what is cut from a list
 * whose runs do not touch, or common to two such lists, has a gap wherever one of them has one. The
 * builder is where LAYOUT_RUNS_MAX and LAYOUT_STEPS_MAX hold.
 */
#ifndef CKPT_LAYOUT_RUN_BUILDER_H
#define CKPT_LAYOUT_RUN_BUILDER_H
#include "ckpt/layout/layout.h"

struct run_builder {
	struct run *run; /* first[], or malloc'ed */
	uint32_t n, cap;
	uint32_t steps;
	uint64_t total;
	struct run first[8];
};
#define cleanup_run_builder __attribute__((cleanup(run_builder_free)))

static inline struct run run_one(uint64_t start, uint64_t len)
{
	return (struct run){ start, len, len, 1 };
}

static inline uint64_t run_end(const struct run *r) /* one above the last index */
{
	return r->start + (r->count - 1) * r->stride + r->len;
}

static inline uint64_t run_total(const struct run *r)
{
	return r->len * r->count;
}

/* How many elements of r are below the index. */
uint64_t run_below(const struct run *r, uint64_t index);

/* Make r, which begins after *to ends, part of the progression *to. False: they are not one. */
bool run_join(struct run *to, const struct run *r);

void run_builder_init(struct run_builder *b);
void run_builder_free(struct run_builder *b);

/* Append a run or progression that begins above the end of what was added. -E2BIG, -ENOMEM */
int run_builder_add(struct run_builder *b, struct run r);

/* Append the elements number [from, to) of r; to <= run_total(r). */
int run_builder_slice(struct run_builder *b, const struct run *r, uint64_t from, uint64_t to);

/* Copy the list to the arena. -ENOMEM */
int run_builder_finish(struct run_builder *b, struct arena *a, struct indices *ret);
#endif
