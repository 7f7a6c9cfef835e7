/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.h - asks a movement's owner, about every MOVE_BLOCK bytes, whether to go on. For ckpt/move
 * only. Invariant: what the ticks are told adds up to the bytes that were moved.
 */
#ifndef CKPT_MOVE_PACE_H
#define CKPT_MOVE_PACE_H
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"

struct pace {
	move_tick_fn *tick;
	void *arg;
	uint64_t done; /* since the last tick; below MOVE_BLOCK between calls */
};

static inline int pace_tick(struct pace *p)
{
	uint64_t done = TAKE(p->done);

	return p->tick && p->tick(p->arg, done) ? -ECANCELED : 0;
}

static inline int pace_add(struct pace *p, uint64_t bytes)
{
	p->done += bytes;
	return p->done >= MOVE_BLOCK ? pace_tick(p) : 0;
}

static inline int pace_end(struct pace *p)
{
	return p->done ? pace_tick(p) : 0;
}
#endif
