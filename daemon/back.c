// SPDX-License-Identifier: Apache-2.0
// back.c - a launch that has taken snapshots goes back to an older step. Called by restore, when
// all ranks wait in ckpt_restore: so no rank marks, and every copy has ended or was given up.
// Invariant: from then on no newer step of the launch is staged, written or reported; the numbers
// above that step are used again.
#include "daemon/state.h"
#include "ckpt/base/mutant.h"
#include <inttypes.h>
#include <stdio.h>

/* Between the numbers of what is being written and those of the new line: it finds its own
 * meanwhile. */
#define SEQ_GAP (UINT64_C(1) << 20)

bool back_marked(const struct launch *l)
{
	for (uint32_t r = 0; r < l->world; r++)
		if (l->member[r].page && atomic_load(&l->member[r].page->marks))
			return true;
	return false;
}

bool back_ready(struct launch *l)
{
	uint32_t all = 0;

	for (uint32_t r = 0; r < l->world; r++)
		all += l->member[r].asked;
	l->awaits = false;
	if (all < l->world)
		return MUTANT(GATE_RESET_EARLY);
	launch_ring(l);
	for (const struct snap *s = l->job->snaps; s; s = s->next)
		l->awaits |= s->launch == l && s->phase == PHASE_COLLECTING && s->tasks;
	return !l->awaits;
}

/* What is being written may be committed; the new line's first commit sets it aside. */
static void leave_behind(struct snap *s)
{
	const char *why = "the job has gone back to an older step";

	if (s->drain)
		control_over(s, -ECANCELED, why);
	atomic_store(&s->left, true);
	s->dropped = true;
	if (s->phase != PHASE_WRITING) {
		s->phase = PHASE_STAGED;
		snap_release(s);
	}
}

static void snaps_leave(struct launch *l, uint64_t step)
{
	for (struct snap *s = l->job->snaps, *next; s; s = next) {
		next = s->next;
		if (s->launch != l)
			continue;
		if (s->phase == PHASE_COLLECTING) {
			snap_fail(s, OUTCOME_TORN, -ENOENT,
				  "the job has gone back to an older step");
			if (!s->tasks)
				snap_release(s);
		} else if (s->step > step) {
			leave_behind(s);
		}
	}
}

void back_go(struct launch *l, uint64_t step, uint64_t seq, bool staged)
{
	const struct snap *w = l->job->writing;
	uint64_t on_disk = MAX(l->base, atomic_load(&l->line));

	l->refs++;
	/* What the disk has of its line ends where it did, then. */
	l->base = staged ? MIN(step + 1, on_disk) : step + 1;
	atomic_store(&l->line, MIN(atomic_load(&l->line), step + 1));
	l->back = MAX(seq, atomic_load(&l->seq));
	if (w && w->launch == l)
		l->back += SEQ_GAP;
	atomic_store(&l->seq, l->back);
	gate_close(l);
	snaps_leave(l, step);
	shared_outcomes_forget(l->page, step);
	shared_gate_back(l->page, step);
	for (uint32_t i = 0; i < l->nslot; i++)
		if (!snap_in_slot(l, i))
			slot_give(l, i);
	if (l == l->job->launch)
		l->job->tally.newest = MIN(l->job->tally.newest, step + 1);
	launch_unref(l);
}
