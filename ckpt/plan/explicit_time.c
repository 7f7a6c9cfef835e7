/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit_time.c - see explicit_time.h. Called by explicit_option.c.
 * Invariant: a time is that of a schedule of all that the group moves, or there is none.
 */
#include "ckpt/plan/explicit_time.h"
#include <errno.h>

struct asking {
	const struct explicit_found *found;
	uint32_t group;
	bool one;
};

static bool is_wanted(void *arg, uint32_t tensor)
{
	const struct asking *q = arg;

	return q->one ? tensor == q->found->group[q->group].dst
		      : q->found->of_dst[tensor] == q->group;
}

static bool is_known(const struct explicit_found *f, const struct explicit_group *g)
{
	return !g->stray && schedule_takes(f->src, &f->src->tensor[g->src], true) &&
	       schedule_takes(f->dst, &f->dst->tensor[g->dst], false);
}

/* What is cast is cast where it arrives: the target with the dtypes of the source. */
static int uncast(const struct asking *q, struct table *ret, struct ckpt_err *err)
{
	const struct explicit_group *g = &q->found->group[q->group];
	const struct table_tensor *y = &q->found->src->tensor[g->src];

	if (table_twin(q->found->dst, ret))
		return ckpt_error(err, -ENOMEM, "out of memory for %u tensors",
				  q->found->dst->ntensor);
	for (uint32_t i = 0; i < ret->ntensor; i++)
		if (q->found->of_dst[i] == q->group) {
			ret->tensor[i].dtype = y->dtype;
			ret->tensor[i].elem_bytes = y->elem_bytes;
		}
	return 0;
}

int explicit_time(const struct explicit_found *f, uint32_t group, bool one,
		  const struct links *links, schedule_tick_fn *tick, void *arg, double *ret_us,
		  struct ckpt_err *err)
{
	const struct explicit_group *g = &f->group[group];
	bool casts = g->found & EXPLICIT_BIT(CAST);
	struct asking q = { f, group, one };
	const struct schedule_opts opts = {
		.who = HOLDERS_ONE, .links = links, .wanted = is_wanted, .wanted_arg = &q
	};
	struct schedule_total total = { 0 };
	struct schedule *s = NULL;
	struct table target = { 0 };
	int rc = 0;

	*ret_us = g->moved ? EXPLICIT_NO_TIME : 0;
	if (!g->moved || !is_known(f, g))
		return 0;
	if (casts)
		rc = uncast(&q, &target, err);
	if (!rc)
		rc = schedule_open(f->src, casts ? &target : f->dst, &opts, &s, err);
	if (!rc)
		rc = schedule_total(s, links, tick, arg, &total, err);
	if (!rc && !schedule_left_out(s))
		*ret_us = total.us;
	schedule_total_free(&total);
	schedule_close(s);
	table_free(&target);
	return rc;
}
