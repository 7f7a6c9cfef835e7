/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lineage.c - see lineage.h. Invariant: one pass over the steps, and no call but the scan's.
 */
#include "ckpt/store/lineage.h"
#include "ckpt/base/hash.h"
#include <fcntl.h>
#include <inttypes.h>
#include "ckpt/store/store_impl.h"

static bool is_of_line(const struct store_step *st)
{
	return st->state == STORE_COMMITTED || st->state == STORE_QUARANTINED;
}

static void parent_set(struct lineage *line, const struct store_step *parent)
{
	line->parent_step = parent->step;
	memcpy(line->parent_id, parent->id, sizeof line->parent_id);
}

/* The newest committed step up to `to`. */
static void parent_find(const struct store_step *step, uint32_t n, uint64_t to,
			struct lineage *line)
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
		if (step[i].seq <= ask->left_seq &&
		    (ask->continues == UINT64_MAX || step[i].step > ask->continues) &&
		    !MUTANT(LEFT_CONTINUED))
			continue;
		ret->there_already |= step[i].step == ask->step;
		if (ret->rewind == UINT64_MAX || step[i].step > ret->rewind)
			ret->rewind = step[i].step;
	}
	/* Without a line all others are set aside: not those that may be this launch's own, which
	 * has some only where it was taken over. */
	if (ret->rewind == UINT64_MAX && unread && ask->again)
		return ckpt_error(
			err, -EIO,
			"job %s, step %" PRIu64 ": %" PRIu32
			" of the job's steps on disk cannot be "
			"read now, so ckptd does not know which step this one continues; ckptctl ls "
			"--all shows why",
			ask->job, ask->step, unread);
	if (ret->rewind != UINT64_MAX)
		parent_find(step, n, ret->rewind, ret);
	return seq_above(ask, step, n, ask->seq_min, &ret->seq, err);
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
	parent_find(step, n, UINT64_MAX, ret);
	return seq_above(ask, step, n, 0, &ret->seq, err);
}

static int mend_find(const struct lineage_ask *ask, const struct store_step *step, uint32_t n,
		     struct lineage *line, struct ckpt_err *err)
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
	*ret = (struct lineage){ .parent_step = UINT64_MAX, .rewind = UINT64_MAX };
	switch (ask->how) {
	case LINEAGE_NEXT:
		return next_find(ask, step, n, ret, err);
	case LINEAGE_ADD:
		return add_find(ask, step, n, ret, err);
	case LINEAGE_MEND:
		return mend_find(ask, step, n, ret, err);
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

/* --- without a scan --- */
void lineage_forget(struct lineage_known *k)
{
	free(k->name);
	*k = (struct lineage_known){ 0 };
}

static int by_value(const void *va, const void *vb)
{
	const uint64_t *a = va, *b = vb;

	return (*a > *b) - (*a < *b);
}

static uint64_t name_sum(const char *dir)
{
	struct hash128 h = hash128(dir, strlen(dir));
	uint64_t sum;

	memcpy(&sum, &h, sizeof sum);
	return sum;
}

static bool entry_is_known(const struct lineage_known *k, const char *dir)
{
	uint64_t sum = name_sum(dir);

	return bsearch(&sum, k->name, k->nname, sizeof sum, by_value) || MUTANT(LINE_TRUSTED);
}

/* Of a step's MANIFEST. False: it is not there, or files cannot be told from each other here. */
static bool manifest_look(const struct store *s, const char *dir, struct io_stat *ret)
{
	int fd = s->ops->open(s->ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0), r;

	if (fd < 0)
		return false;
	r = io_stat_at(s->ops, fd, store_root(s), ret);
	(void)s->ops->close(s->ops->ctx, fd);
	return r == 0 && ret->ino;
}

static bool is_bad(const struct store *s, uint64_t step)
{
	cleanup_free struct store_label *label = NULL;
	bool bad;
	uint32_t n;

	bad = store_labels_of(s, 1u << LABEL_BAD, &label, &n, NULL) < 0;
	for (uint32_t i = 0; i < n && !bad; i++)
		bad = label[i].step == step;
	return bad;
}

static bool still_holds(const struct store *s, const struct lineage_ask *ask,
			const struct lineage_known *k, const struct store_name *entry, uint32_t n)
{
	struct io_stat now;
	char dir[STORE_DIR_MAX];

	if (!k->set || ask->how != LINEAGE_NEXT || ask->generation != k->generation ||
	    ask->step <= k->step || ask->continues != k->step || ask->seq_min > k->seq ||
	    k->seq >= UINT64_MAX - 1)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!entry_is_known(k, entry[i].dir) ||
		    (entry[i].kind == STORE_STEP && entry[i].step > k->step))
			return false;
	store_name_step(k->step, dir);
	return manifest_look(s, dir, &now) && now.dev == k->manifest.dev &&
	       now.ino == k->manifest.ino && now.bytes == k->manifest.bytes &&
	       now.modified_ns == k->manifest.modified_ns && !is_bad(s, k->step);
}

/* One more than there are: the step that is committed next. */
static void names_take(struct lineage_known *k, const struct store_name *entry, uint32_t n)
{
	lineage_forget(k);
	k->name = malloc(((size_t)n + 1) * sizeof *k->name);
	for (uint32_t i = 0; k->name && i < n; i++)
		k->name[k->nname++] = name_sum(entry[i].dir);
}

int lineage_next(const struct store *s, const struct lineage_ask *ask, struct lineage_known *k,
		 struct lineage *ret, bool *ret_scanned, struct ckpt_err *err)
{
	cleanup_free struct store_name *entry = NULL;
	uint32_t n = 0;
	int r = store_list(s->ops, s->job_fd, STORE_STEP | STORE_OLD, &entry, &n);
	bool holds = r == 0 && still_holds(s, ask, k, entry, n);

	if (ret_scanned)
		*ret_scanned = !holds;
	if (holds) {
		*ret = (struct lineage){ .rewind = k->step };
		ret->seq = k->seq + 1;
		ret->parent_step = k->step;
		memcpy(ret->parent_id, k->id, sizeof k->id);
	} else {
		/* Listed before it is read: what comes in between is not known. */
		r = lineage_scan(s, ask, ret, err);
	}
	if (r == 0)
		names_take(k, entry, n);
	else
		lineage_forget(k);
	return r;
}

void lineage_committed(const struct store *s, const struct lineage_ask *ask,
		       const struct lineage *at, const uint8_t id[16], struct lineage_known *k)
{
	char dir[STORE_DIR_MAX];

	store_name_step(ask->step, dir);
	if (!k->name || !manifest_look(s, dir, &k->manifest)) {
		lineage_forget(k);
		return;
	}
	k->name[k->nname++] = name_sum(dir);
	qsort(k->name, k->nname, sizeof *k->name, by_value);
	k->set = true;
	k->generation = ask->generation;
	k->step = ask->step;
	k->seq = at->seq;
	memcpy(k->id, id, sizeof k->id);
}
