/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lineage.c - see lineage.h. Invariant: one pass over the steps, and no call but the scan's.
 */
#include "ckpt/store/lineage.h"
#include <inttypes.h>
#include "ckpt/store/store_impl.h"

static bool is_of_line(const struct store_step *st)
{
	return st->state == STORE_COMMITTED || st->state == STORE_QUARANTINED;
}

static void parent_set(struct native_lineage *line, const struct store_step *parent)
{
	line->parent_step = parent->step;
	memcpy(line->parent_id, parent->id, sizeof line->parent_id);
}

/* The newest committed step up to `to`. */
static void parent_find(const struct store_step *step, uint32_t n, uint64_t to,
			struct native_lineage *line)
{
	for (uint32_t i = 0; i < n; i++)
		if (step[i].state == STORE_COMMITTED && step[i].step <= to &&
		    (line->parent_step == UINT64_MAX || step[i].step > line->parent_step))
			parent_set(line, &step[i]);
}

/* Above all that can be read, and above what those have that cannot. */
static int seq_above(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		     uint64_t highest, uint64_t *ret_seq, struct ckpt_err *err)
{
	uint64_t lost = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!MUTANT(SEQ_NOT_RAISED))
			highest = MAX(highest, step[i].seq);
		lost += store_step_lost(&step[i]);
	}
	if (ckpt_add(highest, lost + 1, ret_seq) || *ret_seq == UINT64_MAX)
		return ckpt_error(err, -ERANGE,
				  "job %s, step %" PRIu64 ": the numbers of the line have run out",
				  ask->job, ask->step);
	return 0;
}

static int next_find(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		     struct lineage *ret, struct ckpt_err *err)
{
	uint32_t unread = 0;

	ret->rewind = ask->continues;
	for (uint32_t i = 0; i < n; i++) {
		unread += store_step_unread(&step[i]) && store_step_lost(&step[i]);
		if (step[i].state != STORE_COMMITTED || step[i].generation != ask->generation)
			continue;
		if (step[i].seq <= ask->left_seq && step[i].step > ask->continues &&
		    !MUTANT(LEFT_CONTINUED))
			continue;
		ret->there_already |= step[i].step == ask->step;
		if (ret->rewind == UINT64_MAX || step[i].step > ret->rewind)
			ret->rewind = step[i].step;
	}
	/* Without a line all others are set aside: not those that may be this launch's own, which has
	 * some only where it was taken over. */
	if (ret->rewind == UINT64_MAX && unread && ask->again)
		return ckpt_error(
			err, -EIO,
			"job %s, step %" PRIu64 ": %" PRIu32
			" of the job's steps on disk cannot be "
			"read now, so ckptd does not know which step this one continues; ckptctl ls "
			"--all shows why",
			ask->job, ask->step, unread);
	if (ret->rewind != UINT64_MAX)
		parent_find(step, n, ret->rewind, &ret->line);
	return seq_above(ask, step, n, ask->seq_min, &ret->line.seq, err);
}

static int add_find(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		    struct lineage *ret, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < n; i++) {
		if (step[i].state == STORE_COLLECTING || step[i].state == STORE_SET_ASIDE)
			continue;
		if (step[i].step >= ask->step)
			return ckpt_error(err, -EEXIST,
					  "job %s: step %" PRIu64
					  " exists already, and step %" PRIu64
					  " is not newer: choose another directory",
					  ask->job, step[i].step, ask->step);
		if (ret->rewind == UINT64_MAX || step[i].step > ret->rewind)
			ret->rewind = step[i].step;
	}
	parent_find(step, n, UINT64_MAX, &ret->line);
	return seq_above(ask, step, n, 0, &ret->line.seq, err);
}

static int mend_find(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		     struct native_lineage *line, struct ckpt_err *err)
{
	const struct store_step *below = NULL;
	uint64_t above = UINT64_MAX, highest = 0, room = 0;

	for (uint32_t i = 0; i < n; i++) {
		highest = MAX(highest, step[i].seq);
		if (!is_of_line(&step[i]))
			continue;
		if (step[i].step > ask->step)
			above = MIN(above, step[i].seq);
		else if (!below) /* newest first; no other directory has this one's number */
			below = &step[i];
	}
	for (uint32_t i = 0; i < n; i++)
		room += store_step_lost(&step[i]) && step[i].step < ask->step &&
			(!below || step[i].step > below->step);
	if (above == UINT64_MAX) {
		if (ckpt_add(highest, room + 1, &line->seq) || line->seq == UINT64_MAX)
			return ckpt_error(err, -ERANGE, "the numbers of the line have run out");
	} else if (above <= (below ? below->seq : 0) + 1) {
		return ckpt_error(err, -ERANGE,
				  "its neighbours in the line leave no place between them");
	} else {
		line->seq = above - 1;
	}
	if (below)
		parent_set(line, below);
	return 0;
}

int lineage_find(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		 struct lineage *ret, struct ckpt_err *err)
{
	*ret = (struct lineage){ .line.parent_step = UINT64_MAX, .rewind = UINT64_MAX };
	switch (ask->how) {
	case LINEAGE_NEXT:
		return next_find(ask, step, n, ret, err);
	case LINEAGE_ADD:
		return add_find(ask, step, n, ret, err);
	case LINEAGE_MEND:
		return mend_find(ask, step, n, &ret->line, err);
	}
	return -EINVAL;
}

int lineage_scan(const struct store *s, const struct lineage_ask *ask, struct lineage *ret,
		 struct ckpt_err *err)
{
	cleanup_free struct store_step *step = NULL;
	uint32_t n;
	int r = store_scan(s, true, &step, &n, err);

	return r ? r : lineage_find(ask, step, n, ret, err);
}

void lineage_copy(const struct checkpoint *src, struct native_lineage *ret)
{
	*ret = (struct native_lineage){ .seq = src->seq, .parent_step = src->parent_step };
	if (src->parent_id[0])
		store_id_of(src->parent_id, ret->parent_id);
}
