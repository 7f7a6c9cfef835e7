// SPDX-License-Identifier: Apache-2.0
// due.c - persist_every: which marks are to be written. Called by ckpt_snapshot.
// Invariant: a mark that was to be written counts when its step is staged, not before; what was
// skipped, torn or lost is made up for by the very next mark, what could not be written after 1, 2,
// 4 ... marks, so that a full disk is not written at each step; and of what was thinned the heir is
// watched in its place (daemon/waiting.h).
//
// Ranks need not agree: the rank that marks a step first takes the ticket, its flags hold for all,
// and every rank notes here what the ticket says. So the ranks' counts differ by the marks that an
// outcome takes to be seen, and never drift apart.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"

/* All that became of steps, so that outcomes are searched only when there is a new one. */
static uint64_t outcomes_count(const struct link *l)
{
	uint64_t n = 0;

	for (uint32_t i = OUTCOME_STAGED; i <= OUTCOME_THINNED; i++)
		n += load_relaxed(&l->job->count[i]);
	return n;
}

/* This rank's own guard, or its next mark, may have torn it: the daemon may not have reported it
 * yet. */
static bool torn_here(const struct link *l, uint64_t step)
{
	const struct shared_snap *s = shared_snap_newest(l->rank);

	return s && s->rec.step == step && shared_snap_state(s, NULL) == SNAP_TORN;
}

/* The same of one whose guard has found that it was changed: staged or not. */
static bool changed_here(const struct link *l, uint64_t step)
{
	const struct shared_snap *s = shared_snap_newest(l->rank);
	uint64_t mark;

	if (!s || s->rec.step != step)
		return false;
	(void)shared_snap_state(s, &mark);
	return shared_snap_changed(l->rank, mark);
}

/* The fate of a step. It is lost where a later daemon has taken over all that it will, and not
 * it. */
static enum outcome_state step_fate(const ckpt *c, const struct link *l, const struct due_step *x)
{
	uint16_t seq = 0;
	enum outcome_state is = shared_outcome_state(l->job, x->step - 1, &seq);
	bool settled = load_acquire(&l->job->ready_epoch) == load_relaxed(&c->epoch);

	if (l == x->link && seq != x->ticket_seq && !x->heir)
		return OUTCOME_NONE; /* of an earlier attempt at the same step */
	return is == OUTCOME_NONE && l != x->link && settled ? OUTCOME_TORN : is;
}

static void mark_owe(struct due *d, uint32_t distance)
{
	d->distance = distance;
	d->again = d->marks + distance - 1; /* the present mark is the first after it */
}

static void settle_asked(ckpt *c, struct link *l)
{
	struct due *d = &c->due;

	switch (step_fate(c, l, &d->asked)) {
	case OUTCOME_NONE:
	case OUTCOME_COPYING:
		break;
	case OUTCOME_STAGED:
	case OUTCOME_PERSISTED:
	case OUTCOME_COMMITTED:
	case OUTCOME_FAILED:
	case OUTCOME_THINNED:
		d->paid = d->asked.marks;
		d->again = 0;
		d->staged = d->asked;
		if (d->staged.link != l)
			d->staged.ticket_seq = 0;
		d->staged.link = l;
		d->asked.step = 0;
		break;
	case OUTCOME_TORN:
		d->asked.step = 0;
		break;
	}
}

/* The step that is watched was staged, and another one is written in its place: that one is watched
 * from now on. */
static enum outcome_state heir_fate(ckpt *c, struct link *l)
{
	struct due_step *x = &c->due.staged;
	enum outcome_state is = step_fate(c, l, x);
	struct shared_outcome o;

	for (uint32_t n = 0; is == OUTCOME_THINNED && n < SHARED_OUTCOMES && !MUTANT(DEBT_LOST);
	     n++) {
		if (!shared_outcome_get(l->job, x->step - 1, &o) || o.state != OUTCOME_THINNED)
			return OUTCOME_NONE; /* it is being changed */
		*x = (struct due_step){ o.heir + 1, x->marks, l, 0, true };
		is = step_fate(c, l, x);
	}
	return is;
}

static void settle_staged(ckpt *c, struct link *l)
{
	struct due *d = &c->due;
	uint32_t longer = MAX(2 * d->distance, 1u);

	switch (heir_fate(c, l)) {
	case OUTCOME_NONE:
	case OUTCOME_COPYING:
		return;
	case OUTCOME_THINNED:
		break;
	case OUTCOME_STAGED:
	case OUTCOME_PERSISTED:
		if (d->staged.link != l && d->staged.heir) {
			mark_owe(d, 1); /* that it was one has ended with its daemon */
			break;
		}
		if (d->staged.link != l) /* a later daemon has taken it over */
			d->staged.ticket_seq = 0;
		d->staged.link = l;
		return;
	case OUTCOME_COMMITTED:
		d->distance = 0;
		break;
	case OUTCOME_TORN: /* found to be changed, or not guarded */
		mark_owe(d, 1);
		break;
	case OUTCOME_FAILED:
		mark_owe(d, MIN(longer, c->persist_every));
		break;
	}
	d->staged.step = 0;
}

void due_mark(ckpt *c, uint64_t step)
{
	if (step + 1 != c->due.newest) { /* else the same once more */
		c->due.marks++;
		c->due.marked++;
	}
	c->due.newest = step + 1;
}

bool due_now(ckpt *c, struct link *l)
{
	struct due *d = &c->due;
	uint64_t seen = outcomes_count(l);

	if (d->asked.step && d->asked.link == l &&
	    (torn_here(l, d->asked.step - 1) || changed_here(l, d->asked.step - 1)))
		d->asked.step = 0;
	if (seen != d->seen || (d->asked.step && d->asked.link != l) ||
	    (d->staged.step && d->staged.link != l)) {
		if (d->asked.step)
			settle_asked(c, l);
		if (d->staged.step)
			settle_staged(c, l);
	}
	d->seen = seen;
	if (d->staged.step && d->staged.link == l && changed_here(l, d->staged.step - 1)) {
		d->staged.step = 0;
		mark_owe(d, 1);
	}
	if (d->asked.step) /* that one pays it, or will be found to be torn */
		return d->marks - d->asked.marks >= c->persist_every;
	return (d->again && d->marks >= d->again) || d->marks - d->paid >= c->persist_every;
}

void due_asked(ckpt *c, struct link *l, uint64_t step, uint16_t ticket_seq)
{
	struct due *d = &c->due;

	d->asked = (struct due_step){ step + 1, d->marks, l, ticket_seq, false };
}

void due_back(ckpt *c, uint64_t marked)
{
	struct due *d = &c->due;

	d->marked = marked;
	d->newest = d->asked.step = d->staged.step = 0;
	store_relaxed(&d->stage_only, 0);
}
