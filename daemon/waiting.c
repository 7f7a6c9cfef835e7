// SPDX-License-Identifier: Apache-2.0
// waiting.c - see waiting.h. Called by snap.
// Invariant: a step gives its turn away only to a newer one of its launch that is then QUEUED, so
// of the steps that wait one is always left.
#include "daemon/waiting.h"
#include "ckpt/base/mutant.h"
#include "daemon/passes.h"
#include <inttypes.h>

static bool keeps_turn(const struct snap *s)
{
	return s->flags & TICKET_FINAL || s->by_hand || s->trigger || s->drain || s->rescue ||
	       s->tasks || passes_owe(s) || s->launch->state == LAUNCH_ENDED;
}

static bool is_copied(const struct launch *l)
{
	for (const struct snap *s = l->job->snaps; s; s = s->next)
		if (s->launch == l && s->phase == PHASE_COLLECTING)
			return true;
	return false;
}

/* It waits already, or it can, and the slot of the one before is needed. */
static bool may_inherit(const struct snap *s)
{
	if (s->dropped || atomic_load(&s->left))
		return false;
	if (s->phase == PHASE_QUEUED)
		return true;
	return s->phase == PHASE_STAGED && !s->by_hand && !s->write_ns &&
	       s == newest_staged(s->job, s->launch->place) && !slot_is_free(s->launch) &&
	       !is_copied(s->launch);
}

static struct snap *heir_of(const struct snap *w)
{
	struct snap *heir = NULL;

	for (struct snap *s = w->job->snaps; s; s = s->next)
		if (s->launch == w->launch && s->staged_at > w->staged_at && may_inherit(s) &&
		    (!heir || s->staged_at > heir->staged_at))
			heir = s;
	return heir;
}

static void turn_give(struct snap *s, struct snap *heir)
{
	if (heir->phase == PHASE_STAGED && heir->told)
		shared_outcome_to_write(heir->launch->page, heir->step);
	heir->phase = PHASE_QUEUED;
	s->phase = PHASE_STAGED;
	snap_thinned(s, heir);
}

bool waiting_thin(struct job *j)
{
	bool any = false;

	if (!j->writing || j->d->drain_until || MUTANT(NEVER_THINNED))
		return false;
	for (struct snap *s = j->snaps; s; s = s->next) {
		struct snap *heir;

		if (s->phase != PHASE_QUEUED || s->dropped ||
		    (keeps_turn(s) && !MUTANT(ORDERED_THINNED)))
			continue;
		heir = heir_of(s);
		if (!heir)
			continue;
		turn_give(s, heir);
		any = true;
	}
	return any;
}
