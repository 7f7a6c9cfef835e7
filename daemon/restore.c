// SPDX-License-Identifier: Apache-2.0
// restore.c - all ranks of a launch restore the same step: rounds and the choice of the step.
// Called by session and launch; the choice runs in the work pool.
// Invariants: the first caller's choice is pinned for the round, also the choice "nothing";
// everything is checked before the first byte is written; a failure is every rank's failure. A
// round is one ckpt_restore of every rank; ranks count them alike. If the choice of CKPT_LATEST is
// found damaged, the round takes the next older step, while all ranks wait; the answer names each
// step that was skipped.
#include "daemon/holder.h"
#include "daemon/restore.h"
#include "ckpt/base/mutant.h"
#include "ckpt/spread/spread.h"
#include <inttypes.h>
#include <stdio.h>

#define CHOICES_MAX 8 /* that may be removed under the choosing hand */

void retreat_free(struct retreat *r)
{
	free(r->step);
	free(r->begun);
	free(r->lack);
	*r = (struct retreat){ 0 };
}

static struct retreat retreat_take(struct retreat *r)
{
	struct retreat taken = *r;

	*r = (struct retreat){ 0 };
	return taken;
}

static bool want_peeks(const struct wire_restore *want)
{
	return want->flags & CKPT_PEEK;
}

/* Does it change what the launch has, or where it is? */
static bool want_changes(const struct wire_restore *want)
{
	return !(want->flags & CKPT_DRY_RUN) && (!want_peeks(want) || MUTANT(PEEK_GOES_BACK));
}

static void peek_let_go(struct launch *l)
{
	store_step_leave(TAKE_FD(l->peek_fd));
}

void restore_free(struct restore *x)
{
	fill_end(x); /* before what it points into */
	for (uint32_t i = 0; i < x->nsrc; i++) {
		slot_sums_unref(x->sums[i]);
		decl_slot_unref(x->src[i].decl);
		slotmem_unref(x->src[i].mem);
		turned_unref(x->src[i].turned);
	}
	for (uint32_t i = 0; i < x->ndst; i++)
		decl_unref(x->dst[i]);
	free(x->src);
	free(x->sums);
	free(x->dst);
	free(x->asked);
	if (x->blob_fd >= 0)
		(void)close(x->blob_fd);
	store_step_leave(x->pin_fd);
	retreat_free(&x->retreat);
	listed_free(&x->listed);
	free(x->bad);
	average_held_free(x->held);
	average_base_unref(x->base);
	launch_unref(x->l);
	free(x);
}

/* --- answers --- */
static void answer_one(struct member *m, const struct restore *x)
{
	struct session *s = m->session;
	bool out = m->landing && m->landing->out;

	m->asked = false;
	landing_free(TAKE(m->landing));
	if (!s)
		return;
	if (out) { /* its library is at work: the answer to its LAND has the error */
		m->owed = malloc(sizeof *m->owed);
		if (m->owed)
			*m->owed = x->err;
		if (m->owed)
			m->owed->code = x->rc;
	} else if (x->rc < 0) {
		session_refuse(s, x->rc, x->err.msg);
	} else {
		struct wire_restored got = x->got;

		session_reply(s, &got, WIRE_RESTORED, &x->blob_fd, 1);
	}
}

static uint32_t lowest_round(const struct launch *l)
{
	uint32_t lowest = UINT32_MAX;

	for (uint32_t r = 0; r < l->world; r++)
		lowest = MIN(lowest, l->member[r].round);
	return lowest;
}

static void answer_all(struct launch *l, const struct restore *x, bool round_over)
{
	for (uint32_t r = 0; r < l->world; r++) {
		struct member *m = &l->member[r];

		if (!m->asked || m->round != x->round)
			continue;
		answer_one(m, x);
		m->round += round_over;
	}
	if (lowest_round(l) > x->round) /* its place is for a later one */
		l->pin[x->round % ROUNDS_MAX].set = false;
}

static void refuse_asked(struct launch *l, uint32_t round, int code, const char *text)
{
	struct restore x = { .round = round, .rc = code, .blob_fd = -1 };

	snprintf(x.err.msg, sizeof x.err.msg, "%s", text);
	answer_all(l, &x, false);
	peek_let_go(l);
	retreat_free(&l->retreat);
}

/* --- choosing --- */
static const struct bad *bad_at(const struct bad *bad, uint32_t n, uint64_t step, uint32_t where)
{
	for (uint32_t i = 0; i < n; i++)
		if (bad[i].step == step && bad[i].where == where)
			return &bad[i];
	return NULL;
}

bool job_bad(const struct job *j, uint64_t step, uint32_t where)
{
	return bad_at(j->bad, j->nbad, step, where) != NULL;
}

/* why: its lines become one. False: there is no memory to remember it. */
static bool bad_add(struct bad **list, uint32_t *n, struct bad b, const char *why)
{
	struct bad *p = reallocarray(*list, *n + 1, sizeof *p);

	if (!p)
		return false;
	snprintf(b.why, sizeof b.why, "%.*s", (int)sizeof b.why - 1, why);
	for (char *c = b.why; *c; c++)
		*c = *c == '\n' ? ' ' : *c;
	*list = p;
	p[(*n)++] = b;
	return true;
}

static struct bad bad_pinned(const struct restore *x)
{
	return (struct bad){ .step = x->pin.step,
			     .generation = x->mem_generation,
			     .where = x->pin.where };
}

static bool job_bad_add(struct job *j, const struct restore *x)
{
	return job_bad(j, x->pin.step, x->pin.where) ||
	       bad_add(&j->bad, &j->nbad, bad_pinned(x), x->err.msg);
}

static bool is_good(const struct restore *x, const struct store_step *s)
{
	return s->state == STORE_COMMITTED && !bad_at(x->bad, x->nbad, s->step, 2);
}

static bool lacks_on_disk(const struct restore *x, const struct store_step *s)
{
	const struct bad *b = bad_at(x->bad, x->nbad, s->step, 2);

	return b && b->lacks;
}

/* What this version cannot read: nothing is known of it. */
static bool is_of_another_version(const struct store_step *s)
{
	return s->state == STORE_NEWER || s->state == STORE_OLDER;
}

/* latest, but for what this launch has found to be bad. */
static const struct store_step *disk_latest(const struct restore *x, const struct store_step *step,
					    uint32_t n)
{
	const struct store_step *at = step, *end = step + n;

	while ((at = store_latest(at, (uint32_t)(end - at), 0)) && !is_of_another_version(at) &&
	       !is_good(x, at))
		at++;
	return at;
}

/* Launches come one after the other; steps count within them. */
static bool is_newer(uint64_t generation, uint64_t step, uint64_t than_generation,
		     uint64_t than_step)
{
	return generation != than_generation ? generation > than_generation : step > than_step;
}

/* Than what is in memory. What its launch has left behind when it went back is older, whatever its
 * number. */
static bool is_newer_on_disk(const struct restore *x, const struct store_step *s,
			     uint64_t generation)
{
	if (generation == x->mem_generation && s->seq && s->seq <= x->mem_back)
		return false;
	return is_newer(generation, s->step, x->mem_generation, x->mem_step);
}

/* A line of what the choice passes over. */
static void passed_add(struct pin *pin, uint64_t step, const char *place, const char *what,
		       const char *why)
{
	size_t used = strlen(pin->passed);

	if (used + 32 < sizeof pin->passed)
		snprintf(pin->passed + used, sizeof pin->passed - used,
			 "%sstep %" PRIu64 "%s: %s%s", used ? "\n" : "", step, place, what, why);
}

/* Everything newer than the choice, newest first: [n] is on disk, best of it was chosen, or what is
 * in memory, or nothing. */
static void passed_list(struct restore *x, const struct store_step *step, uint32_t n,
			const struct store_step *best, bool memory)
{
	for (uint32_t i = 0; i < x->nbad; i++) {
		const struct bad *b = &x->bad[i];
		bool older =
			memory ? !is_newer(b->generation, b->step, x->mem_generation, x->mem_step)
			       : best && !is_newer(b->generation, b->step, best->generation,
						   best->step);

		if (b->where != 1 || older || b->lacks)
			continue;
		x->pin.npassed++;
		passed_add(&x->pin, b->step, " in memory", "", b->why);
	}
	for (uint32_t i = 0; i < n && &step[i] != best; i++) {
		const struct store_step *s = &step[i];
		const struct bad *b = bad_at(x->bad, x->nbad, s->step, 2);
		/* what cannot be read, or is another one's, does not say its launch */
		uint64_t generation = s->state == STORE_DAMAGED || s->state == STORE_MISPLACED
					      ? x->mem_generation
					      : s->generation;

		if (is_good(x, s) || (b && b->lacks) ||
		    (memory && !is_newer_on_disk(x, s, generation)))
			continue;
		x->pin.npassed += !bad_at(x->bad, x->nbad, s->step, 1);
		passed_add(&x->pin, s->step, "",
			   b				   ? ""
			   : s->state == STORE_QUARANTINED ? "quarantined: "
			   : s->state == STORE_MISPLACED   ? "misplaced: "
							   : "",
			   b ? b->why : s->why);
	}
}

/* What is on disk: once for the whole retreat, unless it has changed. */
static int steps_on_disk(struct restore *x, struct store_step **ret, uint32_t *ret_n)
{
	int rc = 0;

	if (!x->retreat.step)
		rc = store_scan(x->store, false, &x->retreat.step, &x->retreat.nstep, &x->err);
	*ret = x->retreat.step;
	*ret_n = rc == 0 ? x->retreat.nstep : 0;
	return rc;
}

/* Steps that cannot be read now, on a disk that fails or is not all there, are no reason to start
 * at step 0 over them. */
static int none_can_be(struct restore *x)
{
	bool written = x->retreat.tried && want_changes(&x->want);

	return ckpt_error(
		&x->err, x->retreat.tried ? -EBADMSG : -EUCLEAN,
		"job %s has steps, and none of them can be restored now%s; check them with "
		"ckptctl ls and ckptctl verify --data --all, then resume again%s%s",
		x->store->job, written ? " (memory is undefined)" : "",
		x->pin.passed[0] ? ":\n" : "", x->pin.passed);
}

/* The job's directory, as people call it. */
static const char *job_path(const struct store *s, char *buf, size_t bytes)
{
	char link[64], root[400];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/self/fd/%d", s->root_fd);
	n = readlink(link, root, sizeof root);
	if (n <= 0 || (size_t)n == sizeof root)
		n = 0;
	snprintf(buf, bytes, "%.*s%s%s", (int)n, root, n ? "/" : "", s->job);
	return buf;
}

static int step_choose(struct restore *x)
{
	bool latest = x->want.step == CKPT_LATEST, memory;
	struct store_step *step = NULL;
	const struct store_step *best = NULL;
	char where[512];
	bool unknown;
	uint32_t n = 0;
	int rc = 0;

	x->pin = (struct pin){
		.set = true, .none = true, .want_step = x->want.step, .want_flags = x->want.flags
	};
	if (!(x->want.flags & CKPT_FROM_MEMORY) || x->seq_unknown)
		rc = steps_on_disk(x, &step, &n);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < n; i++)
		x->pin.seq = MAX(x->pin.seq, step[i].seq);
	if (x->want.flags & CKPT_FROM_MEMORY)
		n = 0;
	if (latest)
		best = disk_latest(x, step, n);
	for (uint32_t i = 0; i < n && !best && !latest; i++)
		if (step[i].step == x->want.step && !lacks_on_disk(x, &step[i]))
			best = &step[i];
	unknown = best && is_of_another_version(best); /* its launch */
	memory =
		x->mem_known && (!best || (unknown ? x->mem_step >= best->step
						   : !is_newer_on_disk(x, best, best->generation)));
	if (latest)
		passed_list(x, step, n, best, memory);
	if (latest && x->want.flags & CKPT_EXACT && x->pin.npassed)
		return ckpt_error(
			&x->err, -EUCLEAN,
			"job %s: CKPT_EXACT asks for the newest step and no older one, and "
			"it cannot be restored:\n%s",
			x->store->job, x->pin.passed);
	if (memory) {
		x->pin.none = false;
		x->pin.step = x->mem_step;
		x->pin.where = 1;
		for (uint32_t i = 0; i < n && x->pin_fd < 0; i++) /* held where it is there, too */
			if (step[i].state == STORE_COMMITTED && step[i].step == x->mem_step)
				(void)store_step_open(x->store, step[i].dir, &x->pin_fd, &x->err);
	} else if (best && (rc = store_step_refuse(best, job_path(x->store, where, sizeof where),
						   &x->err)) == 0) {
		x->pin.none = false;
		x->pin.step = best->step;
		x->pin.where = 2;
		snprintf(x->pin.dir, sizeof x->pin.dir, "%s", best->dir);
		memcpy(x->pin.id, best->id, sizeof x->pin.id);
		rc = store_step_open(x->store, best->dir, &x->pin_fd, &x->err);
	} else if (!best && latest && (x->pin.npassed || x->retreat.tried)) {
		rc = none_can_be(x);
	}
	return rc;
}

/* What was chosen may be removed or set aside before it is held: then another one is. */
static void choose_run(struct task *t)
{
	struct restore *x = (struct restore *)t;
	uint32_t tries = 0;

	do {
		if (tries)
			free(TAKE(x->retreat.step));
		x->rc = step_choose(x);
	} while ((x->rc == -ENOENT || x->rc == -ESTALE || x->rc == -EAGAIN) &&
		 ++tries < CHOICES_MAX);
	fill_gone(x);
}

/* Of the launch's own directory: what was staged for another one is another store's. */
static struct snap *memory_candidate(const struct launch *l, const struct wire_restore *want)
{
	const struct job *j = l->job;
	struct snap *best = NULL;

	if (want->flags & CKPT_FROM_DISK)
		return NULL;
	for (struct snap *s = j->snaps; s; s = s->next)
		if (place_same(s->launch->place, l->place) && s->phase != PHASE_COLLECTING &&
		    !s->dropped && !job_bad(j, s->step, 1) &&
		    !bad_at(l->retreat.lack, l->retreat.nlack, s->step, 1) &&
		    (want->step == CKPT_LATEST || want->step == s->step) &&
		    (!best || s->staged_at > best->staged_at))
			best = s;
	return best;
}

/* An error that comes after a try says what the try has left. */
static void say_tried(struct restore *x)
{
	char why[sizeof x->err.msg];

	if (x->rc == 0 || !x->retreat.tried)
		return;
	snprintf(why, sizeof why, "%s", x->err.msg);
	(void)ckpt_error(&x->err, x->rc, "%.3000s\n%s were passed over:\n%s", why,
			 !want_changes(&x->want)
				 ? "newer steps"
				 : "memory is undefined, because newer steps were tried, which",
			 x->pin.passed);
}

static void choose_done(struct task *t)
{
	struct restore *x = (struct restore *)t;
	struct launch *l = x->l;
	bool again = x->retreat.tried > 0 || x->retreat.nlack > 0;

	l->restoring = false;
	if (x->pin.npassed && !again) {
		char first[256];

		job_log_lines(l->job, LOG_WARNING, "restore", ": passed over: ", x->pin.passed);
		snprintf(first, sizeof first, "passed over: %.*s",
			 (int)MIN(strcspn(x->pin.passed, "\n"), (size_t)200), x->pin.passed);
		job_error(l->job, 0, first);
	}
	if (x->rc != -EBADMSG) /* which says it already */
		say_tried(x);
	if (again && x->rc == 0)
		l->retreat = retreat_take(&x->retreat);
	if (x->rc < 0)
		answer_all(l, x, again);
	else
		l->pin[x->round % ROUNDS_MAX] = x->pin;
	if (x->rc == 0 && x->pin_fd >= 0 && want_peeks(&x->want)) {
		peek_let_go(l);
		l->peek_fd = TAKE_FD(x->pin_fd);
	} else if (x->rc == 0 && x->pin_fd >= 0) {
		launch_let_go(l);
		l->step_fd = TAKE_FD(x->pin_fd);
	}
	if (x->rc == 0)
		restore_try(l);
	restore_free(x);
}

/* mem: the step in memory that may be chosen; NULL: none. */
static struct restore *restore_new(struct launch *l, const struct wire_restore *want,
				   uint32_t round, const struct snap *mem)
{
	struct restore *x = calloc(1, sizeof *x);
	struct job *j = l->job;

	if (!x || !(x->bad = calloc(j->nbad + l->retreat.nlack + 1, sizeof *x->bad))) {
		free(x);
		return NULL;
	}
	if (j->nbad)
		memcpy(x->bad, j->bad, j->nbad * sizeof *x->bad);
	if (l->retreat.nlack)
		memcpy(x->bad + j->nbad, l->retreat.lack, l->retreat.nlack * sizeof *x->bad);
	x->l = l;
	x->d = j->d;
	x->want = *want;
	x->round = round;
	x->store = l->place->store;
	x->nbad = j->nbad + l->retreat.nlack;
	x->pin_fd = x->blob_fd = x->f.step_fd = -1;
	x->retreat = retreat_take(&l->retreat);
	/* what an earlier daemon has committed of this launch */
	x->seq_unknown = l->again && !atomic_load(&l->seq);
	if (mem) {
		x->mem_known = true;
		x->mem_step = mem->step;
		x->mem_generation = mem->launch->generation;
		x->mem_back = mem->back;
	}
	l->refs++;
	return x;
}

/* What may be the one that is wanted. */
static bool job_writes(const struct job *j, uint64_t step)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		if ((s->phase == PHASE_QUEUED || s->phase == PHASE_WRITING) && !s->dropped &&
		    (step == CKPT_LATEST || step == s->step))
			return true;
	return false;
}

static void choose_start(struct launch *l, const struct wire_restore *want, uint32_t round)
{
	struct snap *mem = memory_candidate(l, want);
	const struct job *beside = l->job->beside;
	struct restore *x;

	if (holder_takes(l))
		return;

	/* What is being written counts as written: a restore from disk that came a moment too early
	 * would go back further than need be. */
	if (!mem && !(want->flags & CKPT_FROM_MEMORY) &&
	    (!want_peeks(want) || MUTANT(PEEK_WAITS)) &&
	    (job_writes(l->job, want->step) ||
	     (beside && !launch_lives_and_marks(beside->launch) && job_writes(beside, want->step))))
		return;
	x = restore_new(l, want, round, mem);
	if (!x) {
		refuse_asked(l, round, -ENOMEM, "no memory in the daemon");
		return;
	}
	l->restoring = true;
	device_task(l->place->device, LANE_ASK, &x->task, choose_run, choose_done);
}

/* --- filling --- */
/* To the next older step, while all ranks wait. */
static bool goes_back(struct launch *l, struct restore *x, bool remembered)
{
	if (x->want.step != CKPT_LATEST || x->want.flags & CKPT_EXACT || x->overwritten ||
	    !(x->gone ? ++x->retreat.removed < CHOICES_MAX : remembered))
		return false;
	x->retreat.tried++;
	x->retreat.mend = false;
	if (x->gone)
		free(TAKE(x->retreat.step));
	l->retreat = retreat_take(&x->retreat);
	l->pin[x->round % ROUNDS_MAX].set = false;
	for (uint32_t r = 0; r < l->world; r++)
		l->member[r].asked_ns = now_ns();
	return true;
}

/* The same step again, while all ranks wait: with what is damaged of its const tensors from another
 * one. */
static bool goes_mending(struct launch *l, struct restore *x)
{
	if (!mends_next(x) || x->gone || x->overwritten || MUTANT(MEND_NEVER))
		return false;
	job_log(l->job, LOG_WARNING, "restore",
		" step %" PRIu64 ": %s; its const tensors are sought in other steps", x->pin.step,
		x->err.msg);
	l->retreat = retreat_take(&x->retreat);
	l->retreat.mend = true;
	for (uint32_t r = 0; r < l->world; r++)
		l->member[r].asked_ns = now_ns();
	return true;
}

/* What was mended, and stays damaged on the disk. */
static void mended_say(struct restore *x)
{
	char text[600];

	if (!x->f.mended.ndonor)
		return;
	snprintf(
		text, sizeof text,
		"a file of its const tensors is damaged: %s, where each byte was read and has step "
		"%" PRIu64 "'s fingerprints; ckptctl verify --data step:%" PRIu64
		" lists the damage, and the next step writes them anew",
		x->f.mended.said, x->pin.step, x->pin.step);
	job_log(x->l->job, LOG_WARNING, "restore", " step %" PRIu64 ": %s", x->pin.step, text);
	job_error(x->l->job, x->pin.step + 1, text);
}

/* A step without what is asked for: the next older one is tried, and no report names it. */
static bool goes_past(struct launch *l, struct restore *x)
{
	struct bad lacks = bad_pinned(x);

	lacks.lacks = true;
	if (!bad_add(&x->retreat.lack, &x->retreat.nlack, lacks, ""))
		return false;
	x->retreat.mend = false;
	l->retreat = retreat_take(&x->retreat);
	l->pin[x->round % ROUNDS_MAX].set = false;
	return true;
}

static struct snap *snap_of_step(const struct launch *l, uint64_t step)
{
	for (struct snap *s = l->job->snaps; s; s = s->next)
		if (place_same(s->launch->place, l->place) && s->phase != PHASE_COLLECTING &&
		    !s->dropped && s->step == step)
			return s;
	return NULL;
}

/* What the launch's next step finds. */
static int averages_go_on(struct restore *x)
{
	int rc = average_base_restored(x->l, TAKE(x->base), x->pin.step, x->got.marked);

	snprintf(x->got.averages, sizeof x->got.averages, "%.*s", (int)sizeof x->got.averages - 1,
		 x->averages);
	return rc < 0 ? ckpt_error(&x->err, rc, "no memory for the averages of the job") : 0;
}

static void fill_over(struct restore *x)
{
	struct launch *l = x->l;
	struct job *j = l->job;
	bool remembered = false;

	l->restoring = false;
	if (x->listed.set) {
		listed_free(&l->tried);
		x->listed.step = x->pin.step;
		x->listed.where = x->pin.where;
		l->tried = x->listed;
		x->listed.set = false;
	}
	l->const_rev += want_changes(&x->want) && !MUTANT(CONST_OVER_RESTORE);
	if (x->rc == 0 && x->base_taken)
		x->rc = averages_go_on(x);
	if (x->rc == 0) {
		if (want_changes(&x->want)) {
			const struct snap *s =
				x->pin.where == 1 ? snap_of_step(l, x->pin.step) : NULL;

			back_go(l, x->pin.step, x->pin.seq, s && s->launch == l && !s->committed);
			x->got.base = l->base;
			x->got.back = l->back;
			launch_start(l, START_CLEAR);
		}
		job_log(j, LOG_NOTICE, "restore",
			" generation %" PRIu64 "%s from %s, step %" PRIu64, l->generation,
			want_peeks(&x->want) ? " looks at averages" : "",
			x->pin.where == 1 ? "memory" : "disk", x->pin.step);
		mended_say(x);
		if (x->want.flags & WIRE_DIVIDED)
			job_log(j, LOG_INFO, "restore",
				" step %" PRIu64 ": ranks send each other what they hold together; "
				"each has got its part: %" PRIu64 " MiB in all",
				x->pin.step, x->landing_bytes / MIB);
		if (x->want.flags & WIRE_MISSING)
			job_log(j, LOG_INFO, "restore",
				" step %" PRIu64 ": each rank has got what an exchange did not "
				"bring: %" PRIu64 " KiB in all",
				x->pin.step, x->landing_bytes / KIB);
		job_log_lines(j, LOG_NOTICE, "restore", ": ", x->averages);
	} else if (x->lacks && !MUTANT(PEEK_STOPS) && goes_past(l, x)) {
		peek_let_go(l);
		restore_try(l);
		restore_free(x);
		return;
	} else if (is_damage(x->rc) && goes_mending(l, x)) {
		restore_try(l);
		restore_free(x);
		return;
	} else {
		job_log(j, LOG_ERROR, "restore", " step %" PRIu64 ": %s%s", x->pin.step, x->err.msg,
			x->labelled);
	}
	peek_let_go(l);
	if (is_damage(x->rc)) {
		x->rc = -EBADMSG;
		job_error(j, x->pin.step + 1, x->err.msg);
		if (!want_peeks(&x->want))
			launch_let_go(l); /* a repair needs the step unlocked */
		remembered = !x->gone && !x->overwritten && job_bad_add(j, x);
		if (goes_back(l, x, remembered)) {
			restore_try(l);
			restore_free(x);
			return;
		}
	}
	say_tried(x);
	answer_all(l, x, true);
	restore_free(x);
}

void restore_landed(struct restore *x)
{
	if (!landing_go(x))
		return;
	x->l->filling = NULL;
	fill_over(x);
}

static void fill_done(struct task *t)
{
	struct restore *x = (struct restore *)t;

	if (x->rc < 0 || !x->nlanding) {
		fill_over(x);
		return;
	}
	x->l->filling = x;
	restore_landed(x);
}

static bool averaged_declared(const struct launch *l)
{
	return l->member[0].decl && l->member[0].decl->averages;
}

static void fill_start(struct launch *l, uint32_t round)
{
	struct pin *pin = &l->pin[round % ROUNDS_MAX];
	struct snap *s = pin->where == 1 ? snap_of_step(l, pin->step) : NULL;
	struct restore *x;

	if (pin->where == 1 && !s) {
		/* Its memory was given up since it was chosen: another round chooses anew, for
		 * all. */
		pin->set = false;
		restore_try(l);
		return;
	}
	if (s && !want_peeks(&l->member[0].want) && averaged_declared(l) && average_base_waits(s))
		return; /* restore_tick comes again */
	x = restore_new(l, &l->member[0].want, round, NULL);
	if (x) {
		x->src = calloc(s ? s->world : 1, sizeof *x->src);
		x->sums = calloc(s ? s->world : 1, sizeof(struct slot_sums *));
		x->dst = calloc(l->world, sizeof *x->dst);
		x->asked = calloc(l->world, sizeof *x->asked);
		x->landing = calloc(l->world, sizeof(struct landing_source *));
	}
	if (!x || !x->src || !x->sums || !x->dst || !x->asked || !x->landing ||
	    (s && !want_peeks(&x->want) && averaged_declared(l) &&
	     average_held_newest(s, &x->held) < 0)) {
		if (x)
			restore_free(x);
		refuse_asked(l, round, -ENOMEM, "no memory in the daemon");
		return;
	}
	x->pin = *pin;
	x->mem_generation = s ? s->launch->generation : 0;
	x->averaged = s && s->averaged;
	x->got.marked = s ? s->marked : 0;
	for (uint32_t r = 0; s && r < s->world; r++) {
		x->sums[r] = passes_sums(s, r);
		x->src[x->nsrc++] = (struct snap_rank){ .decl = decl_slot_ref(s->rank[r].decl),
							.mem = slotmem_ref(s->rank[r].mem),
							.turned = turned_ref(s->rank[r].turned) };
	}
	for (uint32_t r = 0; r < l->world; r++) {
		x->asked[r] = l->member[r].want;
		x->dst[x->ndst++] = decl_ref(l->member[r].decl);
	}
	l->restoring = true;
	l->const_rev += want_changes(&x->want) && !MUTANT(CONST_OVER_RESTORE);
	if (want_changes(&x->want))
		turns_restart(l);
	if (x->pin.where == 1)
		daemon_task(&x->d->work, &x->task, fill_run, fill_done);
	else
		device_task(l->place->device, LANE_ASK, &x->task, fill_run, fill_done);
}

static int none_there(const struct job *j, const struct wire_restore *want, struct ckpt_err *err)
{
	if (want_peeks(want))
		return ckpt_error(err, -ENOENT,
				  "job %s has no step%s%s%s with all tensors that are declared as "
				  "CKPT_SINK; ckpt_unmatched lists what the last one lacks",
				  j->name, want->only[0] ? " that has component " : "", want->only,
				  want->only[0] ? "," : "");
	return ckpt_error(
		err, -ENOENT,
		want->step == CKPT_LATEST
			? "job %s has nothing to restore%s: start at step 0, or check with ckptctl ls"
			: "job %s does not have this step%s: see ckptctl ls",
		j->name,
		want->flags & CKPT_FROM_MEMORY ? " in memory"
		: want->flags & CKPT_FROM_DISK ? " on disk"
					       : "");
}

/* --- looking: what would be restored now? (list.c) --- */
struct restore *restore_look(struct launch *l, const struct wire_restore *want,
			     const struct snap **ret_mem)
{
	const struct snap *mem = memory_candidate(l, want);
	struct retreat theirs = retreat_take(&l->retreat); /* of the round that runs */
	struct restore *x = restore_new(l, want, 0, mem);

	l->retreat = theirs;
	*ret_mem = mem;
	return x;
}

int restore_look_choose(struct restore *x, const struct pin **ret, int *ret_fd,
			struct ckpt_err *err)
{
	store_step_leave(TAKE_FD(x->pin_fd));
	choose_run(&x->task);
	*ret = &x->pin;
	*ret_fd = x->pin_fd;
	if (x->rc < 0)
		*err = x->err;
	return x->rc == 0 && x->pin.none ? none_there(x->l->job, &x->want, err) : x->rc;
}

bool restore_look_pass(struct restore *x, const struct ckpt_err *why)
{
	return x->want.step == CKPT_LATEST && x->pin.where == 2 && is_damage(why->code) &&
	       bad_add(&x->bad, &x->nbad, (struct bad){ .step = x->pin.step, .where = 2 },
		       why->msg);
}

/* --- the round --- */
static bool all_asked(const struct launch *l, uint32_t round)
{
	uint32_t all = 0;

	for (uint32_t r = 0; r < l->world; r++)
		all += (l->member[r].asked || MUTANT(GATE_RESET_EARLY)) &&
		       l->member[r].round == round && l->member[r].decl;
	return all == l->world;
}

/* Do all ranks ask, and for the same step? If they ask for different ones, all are refused. */
static bool ranks_agree(struct launch *l, uint32_t round)
{
	const struct wire_restore *a = &l->member[0].want;
	bool agree = true;

	if (!all_asked(l, round))
		return false;
	for (uint32_t r = 1; r < l->world; r++) {
		const struct wire_restore *b = &l->member[r].want;

		agree &= a->step == b->step && a->flags == b->flags && !strcmp(a->only, b->only);
	}
	if (!agree)
		refuse_asked(l, round, -EINVAL,
			     "the ranks ask for different steps or with different flags");
	return agree;
}

/* A rank that had this answer may train already. */
static void answer_none(struct launch *l, const struct wire_restore *want, uint32_t round)
{
	struct restore x = { .round = round, .blob_fd = -1 };

	x.rc = none_there(l->job, want, &x.err);
	if (want->step == CKPT_LATEST && !(want->flags & (CKPT_FROM_MEMORY | CKPT_FROM_DISK)) &&
	    want_changes(want))
		launch_start(l, START_CLEAR);
	retreat_free(&l->retreat);
	answer_all(l, &x, true);
}

/* Until then it is not known which step is the newest, or that there is none. */
static bool waits_for_ranks(const struct launch *l, const struct wire_restore *want)
{
	return launch_brings(l) && !(want->flags & CKPT_FROM_DISK) && !MUTANT(RESTORE_BEFORE_ADOPT);
}

void restore_try(struct launch *l)
{
	struct member *first = NULL;
	struct pin *pin;
	uint32_t round;

	if (l->filling) {
		restore_landed(l->filling);
		return;
	}
	if (l->restoring || atomic_load(&l->job->d->stops) >= 1000)
		return;
	for (uint32_t r = 0; r < l->world; r++)
		if (l->member[r].asked && (!first || l->member[r].round < first->round))
			first = &l->member[r];
	if (!first)
		return;
	round = first->round;
	if (l->nlost) {
		refuse_asked(l, round, -ECONNRESET,
			     "a rank of this launch has ended: start all ranks again");
		return;
	}
	pin = &l->pin[round % ROUNDS_MAX];
	if (pin->set &&
	    (pin->want_step != first->want.step || pin->want_flags != first->want.flags))
		/* the first choice came to nothing, and now something else is asked for */
		pin->set = false;
	if (pin->set && pin->none) {
		answer_none(l, &first->want, round);
		return;
	}
	/* What CKPT_PEEK chooses depends on all declarations, and no rank may mark meanwhile. */
	if (want_peeks(&first->want) && !ranks_agree(l, round))
		return;
	if (want_changes(&first->want) && back_marked(l) && !back_ready(l))
		return;
	if (!pin->set) {
		if (!waits_for_ranks(l, &first->want))
			choose_start(l, &first->want, round);
		return;
	}
	if (ranks_agree(l, round))
		fill_start(l, round);
}

static bool rank_missing(const struct launch *l)
{
	for (uint32_t r = 0; r < l->world; r++)
		if (!l->member[r].asked)
			return true;
	return false;
}

/* A rank whose call of this restore has failed, and which waits for this one in the agreement of
 * the ranks: it does not call again before. NULL: there is none. */
static const struct member *rank_failed(const struct launch *l, const struct member *m)
{
	uint32_t mine = m->page ? atomic_load(&m->page->agreements) >> 1 : 0;

	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *k = &l->member[r];
		uint32_t its = !k->asked && k->page ? atomic_load(&k->page->agreements) : 0;

		if (its & 1 && its >> 1 == mine + 1)
			return k;
	}
	return NULL;
}

/* Those that wait for a rank whose call has failed get an answer. */
static void refuse_deserted(struct launch *l)
{
	const struct member *m = NULL, *failed = NULL;
	char text[160];

	for (uint32_t r = 0; r < l->world && !failed; r++) {
		m = &l->member[r];
		failed = m->asked ? rank_failed(l, m) : NULL;
	}
	if (!failed)
		return;
	snprintf(text, sizeof text,
		 "ckpt_restore has failed on rank %u, which waits for the others in "
		 "ckpt_opts.agree: call ckpt_restore again on all ranks",
		 failed->rank);
	refuse_asked(l, m->round, -ECONNRESET, text);
}

void restore_tick(struct launch *l, uint64_t now)
{
	char text[512];
	int n = 0;

	if (l->filling)
		landing_late(l->filling, now);
	if (!l->restoring)
		refuse_deserted(l);
	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *m = &l->member[r];
		uint64_t wait = m->want.deadline_ns ? m->want.deadline_ns : RESTORE_NS;

		if (!m->asked || l->restoring || elapsed_ns(m->asked_ns, now) <= wait)
			continue;
		n = snprintf(text, sizeof text, "waited %.1f s for %s", (double)wait / 1e9,
			     rank_missing(l) ? "other ranks to call ckpt_restore; missing:"
			     : waits_for_ranks(l, &m->want)
				     ? "the steps that ranks bring along from an earlier daemon"
				     : "the step that is being written; call ckpt_restore again");
		for (uint32_t k = 0; k < l->world && (size_t)n < sizeof text - 32; k++)
			if (!l->member[k].asked)
				n += snprintf(text + n, sizeof text - (size_t)n, " rank %u%s", k,
					      l->member[k].decl ? "" : " (never sealed)");
		refuse_asked(l, m->round, -ETIMEDOUT, text);
		return;
	}
	restore_try(l);
}

static bool missing_fits(const struct wire_restore *m)
{
	const uint32_t never =
		WIRE_DIVIDED | CKPT_LENIENT | CKPT_DRY_RUN | CKPT_PEEK; /* no exchange */

	return !(m->flags & never) && m->step != CKPT_LATEST &&
	       m->chunk_bytes >= SPREAD_CHUNK_MIN && m->chunk_bytes <= SPREAD_CHUNK_MAX;
}

void restore_ask(struct session *s, const struct wire_restore *m)
{
	struct member *me = s->member;

	if (!me->decl || me->asked) {
		session_refuse(s, -EPROTO,
			       me->asked ? "another restore is running" : "call ckpt_seal first");
		return;
	}
	if (me->round - lowest_round(s->launch) >= ROUNDS_MAX) {
		session_refuse(s, -E2BIG,
			       "this rank has called ckpt_restore 64 times more often than another "
			       "one, which is the maximum: call it on all ranks");
		return;
	}
	if (m->flags & WIRE_MISSING && !missing_fits(m)) {
		session_refuse(s, -EPROTO, "what an exchange has not brought makes no sense");
		return;
	}
	free(TAKE(me->owed)); /* it does not ask for it any more */
	me->asked = true;
	me->want = *m;
	me->asked_ns = now_ns();
	restore_try(s->launch);
}
