/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit_time.h - what a change costs in time: the bytes that their rank did not hold
 * (explicit.h), sent by the ranks that did, in the rounds of plan_schedule.h. ckptctl asks with
 * --links, after the changes were found.
 */
#ifndef CKPT_PLAN_EXPLICIT_TIME_H
#define CKPT_PLAN_EXPLICIT_TIME_H
#include "ckpt/plan/explicit.h"
#include "ckpt/plan/plan_schedule.h"

#define EXPLICIT_NO_TIME (-1.0)

/*
 * An exchange of the tensors of a group, or of its first one alone; of nothing else. 0 us: every
 * rank holds already what it is to have. EXPLICIT_NO_TIME: who held what is not known (pieces of no
 * rank, or elsewhere than the layout says), or exchanges do not carry it (schedule_takes): blobs,
 * averages, operands of reductions. Casts and what is dropped take no time here. tick: as
 * schedule_total asks it. Results as of schedule_open and schedule_total.
 */
int explicit_time(const struct explicit_found *f, uint32_t group, bool one,
		  const struct links *links, schedule_tick_fn *tick, void *arg, double *ret_us,
		  struct ckpt_err *err);
#endif
