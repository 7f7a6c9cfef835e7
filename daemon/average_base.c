// SPDX-License-Identifier: Apache-2.0
// average_base.c - the averages that a launch continues from if no slot in memory has them: those
// of a restored step, of slots of an older epoch, of the newest committed step, or a seed. Called
// by restore, launch and the passes. The reading (average_reading.h) runs in workers; all else
// belongs to the owner.
// Invariant: while a launch has a base, no newer step of it is averaged: average_base_drop.
#include "ckpt/base/mutant.h"
#include "daemon/average_reading.h"
#include "daemon/passes.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define AGAIN_NS (NS_PER_S) /* from one try that failed to the next */

/* --- of a launch (owner) --- */
struct averages_from {
	struct average_base *base; /* reference; NULL: none, or there never was one */
	bool loading;
	bool over;	   /* nothing on disk is looked for any more */
	bool seeded;	   /* seeds were read, or no row needs one */
	uint64_t restored; /* that step was; UINT64_MAX: none */
	uint64_t marked;   /* of it, as snap.marked */
	uint32_t turn;	   /* of what is loaded: what an earlier one brings is of no use */
	uint64_t again_ns; /* a try has failed: when to try again; 0: at once */
	bool said;	   /* that it has failed */
	bool useless;	   /* what is in memory has nothing for the declarations of useless_epoch */
	uint32_t useless_epoch;
	struct average_seed *seeds;
	bool checking; /* a task looks at the seeds of the declarations: checked is their epoch then */
	uint32_t checked;
};

static struct averages_from *from_of(struct launch *l)
{
	if (!l->from && (l->from = calloc(1, sizeof *l->from)))
		l->from->restored = UINT64_MAX;
	return l->from;
}

void average_base_forget(struct launch *l)
{
	if (!l->from)
		return;
	average_base_unref(l->from->base);
	average_seeds_free(l->from->seeds);
	free(TAKE(l->from));
}

static void from_set(struct averages_from *f, struct average_base *b)
{
	average_base_unref(f->base);
	f->base = b;
	f->over = true;
	f->turn++;
	f->loading = false;
}

void average_base_drop(struct launch *l)
{
	struct averages_from *f = from_of(l);

	if (!f)
		return;
	if (!MUTANT(BASE_STALE))
		from_set(f, NULL);
	f->over = f->seeded = true;
}

int average_base_restored(struct launch *l, struct average_base *b, uint64_t step, uint64_t marked)
{
	struct averages_from *f = from_of(l);

	if (!f) {
		average_base_unref(b);
		return -ENOMEM;
	}
	if (MUTANT(BASE_OF_OTHER_STEP)) {
		average_base_unref(b);
		return 0;
	}
	from_set(f, b);
	f->seeded = false;
	f->restored = step;
	f->marked = marked;
	passes_follow(l->job, NULL);
	return 0;
}

uint64_t average_base_held(const struct launch *l)
{
	return l->from ? average_base_bytes(l->from->base) : 0;
}

/* --- loading: only the walk of the next step waits for it --- */
struct load {
	struct task task;
	struct launch *l; /* reference */
	uint32_t turn, world;
	struct decl **dst;	   /* [world] decl_slot_ref */
	struct average_held *held; /* from memory; NULL: from disk, or seeds */
	/* From disk: the launch's line, and a step of it below this one. The store is the place's,
	 * which lives as long as the launch does */
	struct store *store;
	uint64_t generation, line_base, line_back, below;
	struct average_seed *seeds; /* these are read; NULL: none */
	bool check;		    /* could they be? */
	uint64_t step;		    /* where what is seeded goes on; of the step that was read */
	uint64_t marked;	    /* of that step */
	struct device *device;	    /* of the seeds: a reference; NULL: none could be opened */
	struct average_base *base;
	char said[4096];
	char unusable[512]; /* of a seed: why; "": none is */
	int rc;		    /* -ENOENT: there is no such step */
	struct ckpt_err err;
};

static void load_free(struct load *x)
{
	for (uint32_t r = 0; x->dst && r < x->world; r++)
		decl_slot_unref(x->dst[r]);
	free(x->dst);
	average_seeds_free(x->seeds);
	device_unref(x->device);
	average_held_free(x->held);
	average_base_unref(x->base);
	free(x);
}

static int load_from(struct load *x, const struct average_origin *s, average_move_fn *move,
		     void *arg)
{
	struct average_reading *r = NULL;
	int rc = average_reading_plan(x->dst, x->world, s, &r, &x->err);

	if (rc == 0)
		rc = average_reading_move(r, &x->l->job->d->reaper, move, arg, &x->err);
	if (rc == 0) {
		x->base = average_reading_base(r);
		average_reading_say(r, x->said, sizeof x->said);
	}
	average_reading_free(r);
	return rc;
}

/* Is it of the launch's line: one that it committed and did not leave behind, or the one that
 * it restored? */
static bool is_of_line(const struct load *x, const struct store_step *s)
{
	bool left = s->seq && s->seq <= x->line_back && s->step + 1 > x->line_base;

	return s->state == STORE_COMMITTED &&
	       ((s->generation == x->generation && !left) || s->step + 1 == x->line_base);
}

/* format_choose_fn: the parts with averages of what the ranks hold now. */
static int load_choose(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	const struct load *x = arg;

	return average_parts_choose(x->dst, x->world, k, needed, err);
}

static int load_step(struct load *x, int fd, bool some, const struct store_step *step)
{
	const struct daemon_opts *o = &x->l->job->d->opts;
	const struct engine e = daemon_engine(x->l->job->d);
	const struct engine_subject chosen = { .fd = fd,
					       .path = step->dir,
					       .force = &format_native,
					       .id = step->id,
					       .how.choose = some ? load_choose : NULL,
					       .how.choose_arg = x };
	struct opened disk;
	struct move_files files;
	int rc = engine_open(&e, &chosen, &disk, &x->err);

	if (rc == 0)
		rc = move_open(o->ops, fd, disk.ckpt, true, o->engine, &files, &x->err);
	if (rc == 0) {
		struct average_origin s = average_origin_of(disk.ckpt);

		s.some = some;
		rc = load_from(x, &s, average_files_move, &files);
		x->step = s.step;
		x->marked = s.marked;
		move_close(&files);
	}
	engine_close(&disk);
	return rc;
}

static int load_from_disk(struct load *x, const struct store_step *step)
{
	int fd, rc = store_step_open(x->store, step->dir, &fd, &x->err);

	if (rc < 0)
		return rc;
	rc = load_step(x, fd, true, step);
	if (rc == -EMEDIUMTYPE) /* layouts are a hint */
		rc = load_step(x, fd, false, step);
	store_step_close(fd);
	return rc;
}

/* Is the step itself wrong, or removed, so that an older one is to be tried? */
static bool is_passed_over(int rc)
{
	return rc == -EBADMSG || rc == -EPROTO || rc == -EUCLEAN || rc == -ENODATA ||
	       rc == -ENOENT || rc == -ESTALE;
}

static int load_newest(struct load *x)
{
	struct store_step *step = NULL;
	uint32_t n = 0;
	int rc = store_scan(x->store, false, &step, &n, &x->err);
	bool none = rc == 0;

	for (uint32_t i = 0; i < n && none; i++) {
		if (!is_of_line(x, &step[i]) || step[i].step >= x->below)
			continue;
		rc = load_from_disk(x, &step[i]);
		none = is_passed_over(rc);
		if (none)
			job_log(x->l->job, LOG_WARNING, "average",
				": step %" PRIu64
				" is passed over, whose averages the job would go on with: %s",
				step[i].step, x->err.msg);
	}
	free(step);
	return none ? -ENOENT : rc;
}

__attribute__((format(printf, 2, 3))) static void load_say(struct load *x, const char *fmt, ...)
{
	size_t n = strlen(x->said);
	va_list ap;

	va_start(ap, fmt);
	if (n + 2 < sizeof x->said) {
		if (n)
			x->said[n++] = '\n';
		(void)vsnprintf(x->said + n, sizeof x->said - n, fmt, ap);
	}
	va_end(ap);
}

/* Those that cannot be used do not keep the others from it. */
static int load_seeds(struct load *x)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	const struct daemon *d = x->l->job->d;
	int rc = 0;

	if (!x->base) {
		x->base = average_base_new(x->dst, x->world);
		if (!x->base)
			return ckpt_error(&x->err, -ENOMEM, "no memory for averages");
		x->base->marked = x->marked;
	}
	if (!x->check)
		rc = average_base_memory(x->base, &x->l->job->d->reaper, &x->err);
	for (const struct average_seed *s = x->seeds; s && rc == 0; s = s->next) {
		rc = average_seed_read(d, s, x->base, x->step, !x->check, &x->err);
		if (rc == -ENOMEM)
			continue;
		if (rc < 0 && x->check) {
			ckpt_errlist_add(&list, "%s", x->err.msg);
		} else if (rc < 0) {
			load_say(x, "average %s begins anew: %s",
				 x->dst[0]->averages->name[s->spec], x->err.msg);
			snprintf(x->unusable, sizeof x->unusable, "%.500s", x->err.msg);
		} else if (!x->check) {
			load_say(x, "average %s begins at step %" PRIu64 " with %s",
				 x->dst[0]->averages->name[s->spec], x->step, s->path);
		}
		rc = 0;
	}
	if (rc == 0)
		rc = ckpt_errlist_end(&list, &x->err,
				      "averages cannot be made as they are declared");
	ckpt_errlist_free(&list);
	return rc;
}

static void load_run(struct task *t)
{
	struct load *x = (struct load *)t;
	struct average_origin s;

	if (x->seeds) {
		x->rc = load_seeds(x);
	} else if (!x->held) {
		x->rc = load_newest(x);
	} else {
		x->rc = average_held_open(x->held, &s, &x->err);
		if (x->rc == 0)
			x->rc = load_from(x, &s, average_held_move, x->held);
	}
}

/* Where there is nothing of the launch's averages: did an earlier daemon make some, or did the
 * launch restore a step? A launch whose daemon died before its first average begins like any
 * other. */
static bool may_have_averages(const struct launch *l)
{
	return l->averaged || l->base || MUTANT(SEED_LOST);
}

/* What is damaged in memory stays so; any other failure may pass. */
static void load_failed(struct averages_from *f, const struct load *x)
{
	const struct job *j = x->l->job;

	if (x->rc == -ENOENT && !x->held && !may_have_averages(x->l)) {
		from_set(f, NULL); /* nothing is lost: it begins as it would have */
		return;
	}
	if (!x->seeds && (x->rc == -ENOENT || is_passed_over(x->rc))) {
		from_set(f, NULL);
		f->seeded = true; /* it is no beginning */
		job_log(j, LOG_WARNING, "average",
			": the averages of this launch are lost, and begin anew: %s",
			x->held ? x->err.msg
				: "no slot in memory has them whole, and no committed step of the "
				  "launch either");
		return;
	}
	f->loading = false;
	f->again_ns = now_ns() + AGAIN_NS;
	if (!f->said)
		job_log(j, LOG_ERROR, "average",
			": the averages to go on with cannot be read now, and it is "
			"tried again; until then no step is averaged: %s",
			x->err.msg);
	f->said = true;
}

static void load_done(struct task *t)
{
	struct load *x = (struct load *)t;
	struct launch *l = x->l;
	struct job *j = l->job;
	struct averages_from *f = l->from;

	if (f && f->turn == x->turn) {
		if (x->rc == 0) {
			from_set(f, TAKE(x->base));
			/* What the restored step lacks has a seed until something is averaged. */
			f->seeded = x->seeds || (!x->held && l->averaged);
			if (!x->seeds) {
				f->restored = x->held ? x->held->step : x->step;
				f->marked = x->held ? x->held->marked : x->marked;
			}
			if (x->unusable[0])
				job_error(j, 0, x->unusable);
			f->said = false;
			f->again_ns = 0;
			job_log_lines(j, LOG_NOTICE, "average", ": ", x->said);
		} else {
			load_failed(f, x);
		}
		if (x->held && !f->base && !f->again_ns) { /* or it would be read for ever */
			f->useless = true;
			f->useless_epoch = x->dst[0]->epoch;
		}
	}
	load_free(x);
	job_settle(j);
	launch_unref(l);
}

static struct load *load_new(struct launch *l)
{
	struct load *x = calloc(1, sizeof *x);

	if (!x || !(x->dst = calloc(l->world, sizeof(struct decl *)))) {
		free(x);
		return NULL;
	}
	x->l = l;
	x->store = l->place->store;
	x->generation = l->generation;
	x->line_base = l->base;
	x->line_back = l->back;
	return x;
}

/* For the declarations of that step. */
static struct load *load_for(struct launch *l, const struct snap *s)
{
	struct load *x = load_new(l);

	for (; x && x->world < l->world; x->world++)
		x->dst[x->world] = decl_slot_ref(s->rank[x->world].decl);
	if (x)
		x->below = s->step;
	return x;
}

static void load_start(struct launch *l, struct load *x)
{
	struct averages_from *f = l->from;

	x->turn = ++f->turn;
	f->loading = true;
	l->refs++;
	if (x->held)
		daemon_task(&l->job->d->work, &x->task, load_run, load_done);
	else
		device_task(x->device ? x->device : l->place->device, LANE_ASK, &x->task, load_run,
			    load_done);
}

/* --- seeds of a launch --- */

/* On the device of the first one that could be opened. */
static void load_seeds_set(struct load *x, struct average_seed *seeds)
{
	x->seeds = seeds;
	for (const struct average_seed *s = seeds; s && !x->device; s = s->next)
		if (s->fd >= 0)
			x->device = device_get(x->l->job->d, s->fd);
}

/* -1: none. */
static int seed_dup(int fd)
{
	return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

void average_seeds_take(struct launch *l, const struct decl *decl, struct session *s)
{
	struct averages_from *f = decl->averages && s->seeds ? from_of(l) : NULL;

	for (struct seed *x = s->seeds; f && x; x = x->next) {
		struct average_seed *y = f->seeds;

		if (x->average >= decl->averages->nspec || !decl->averages->spec[x->average]->seed)
			continue;
		while (y && (y->spec != x->average || y->epoch != decl->epoch))
			y = y->next;
		if (!y && (y = calloc(1, sizeof *y))) {
			*y = (struct average_seed){
				.epoch = decl->epoch, .spec = x->average, .fd = -1, .next = f->seeds
			};
			f->seeds = y;
		}
		/* The ranks' are the same one, if they could open it. */
		if (!y || y->fd >= 0)
			continue;
		y->fd = seed_dup(x->fd);
		y->error = x->fd >= 0 && y->fd < 0 ? errno : x->error;
		memcpy(y->path, x->path, sizeof y->path);
	}
}

/* Those of an epoch for rows that have nothing (base NULL: none has), for a task. */
static struct average_seed *seeds_copy(const struct averages_from *f, uint32_t epoch,
				       const struct averages *a, const struct average_base *b)
{
	struct average_seed *ret = NULL;

	for (const struct average_seed *s = f->seeds; s; s = s->next) {
		struct average_seed *y;
		bool needed = false;

		for (uint32_t i = 0; i < a->nrow && s->epoch == epoch; i++)
			needed |= a->row[i].average == s->spec &&
				  (!b || b->row[i].last_step == EMA_NO_STEP);
		if (!needed || !(y = malloc(sizeof *y)))
			continue;
		*y = *s;
		y->fd = seed_dup(s->fd);
		y->error = s->fd >= 0 && y->fd < 0 ? errno : s->error;
		y->next = ret;
		ret = y;
	}
	return ret;
}

static void check_done(struct task *t)
{
	struct load *x = (struct load *)t;
	struct launch *l = x->l;

	if (l->from && l->from->checked == x->dst[0]->epoch)
		l->from->checking = false;
	launch_seeds_checked(l, x->dst[0]->epoch, x->rc, x->err.msg);
	load_free(x);
	launch_unref(l);
}

bool average_seeds_pending(const struct launch *l)
{
	return l->from && l->from->checking;
}

bool average_seeds_check(struct launch *l)
{
	struct averages_from *f = l->from;
	const struct decl *first = l->member[0].decl;
	struct load *x;

	/* If there are steps to go on from, or amid the training, a seed may never be needed. Then
	 * its directory need not be there. */
	if (!f || f->checked == first->epoch)
		return false;
	f->checked = first->epoch;
	f->checking = false;
	if (!f->seeds || !first->averages || l->again ||
	    atomic_load(&l->page->start) == START_UNASKED)
		return false;
	x = load_new(l);
	if (!x)
		return false; /* it is found when it is read */
	for (; x->world < l->world; x->world++)
		x->dst[x->world] = decl_slot_ref(l->member[x->world].decl);
	x->check = true;
	load_seeds_set(x, seeds_copy(f, first->epoch, first->averages, NULL));
	if (!x->seeds) {
		load_free(x);
		return false;
	}
	f->checking = true;
	l->refs++;
	device_task(x->device ? x->device : l->place->device, LANE_ASK, &x->task, load_run,
		    check_done);
	return true;
}

/* --- for the pass --- */

/* The launch's oldest step that is to be averaged. */
static const struct snap *step_due(const struct launch *l)
{
	const struct snap *due = NULL;

	for (const struct snap *s = l->job->snaps; s; s = s->next)
		if (s->launch == l && !s->dropped && average_wanted(s) &&
		    (!due || s->staged_at < due->staged_at))
			due = s;
	return due;
}

/* The averaged step of other declarations that the passes have pinned. */
static const struct snap *step_before(const struct launch *l, const struct snap *due)
{
	const struct snap *s = l->job->before;

	return s && s->launch == l && s->averaged && !s->dropped && s->world == due->world &&
			       s->step < due->step
		       ? s
		       : NULL;
}

/* Are its places those of the step's declarations? */
static bool base_is_for(const struct average_base *b, const struct snap *due)
{
	for (uint32_t r = 0; r < due->world && b->world == due->world; r++) {
		const struct averages *x = b->decl[r]->averages, *y = due->rank[r].decl->averages;

		if (!y || memcmp(x->declared, y->declared, sizeof x->declared) != 0)
			return false;
	}
	return b->world == due->world;
}

/* What is missing for the step; NULL with *ret_over: nothing is; else no memory. */
static struct load *load_needed(struct launch *l, const struct snap *due, bool *ret_over)
{
	const struct averages_from *f = l->from;
	const struct snap *before =
		f->useless && f->useless_epoch == due->epoch ? NULL : step_before(l, due);
	struct average_seed *seeds = NULL;
	struct load *x;

	*ret_over = false;
	/* While there is a base no step of the launch is averaged that is newer. */
	if (!(f->base && base_is_for(f->base, due)) &&
	    (before || f->base || (l->again && !f->over))) {
		x = load_for(l, due);
		if (x && (before || f->base))
			x->held = f->base ? average_held_of_base(f->base) : average_held_of(before);
		if (!x || !(before || f->base) || x->held)
			return x;
		load_free(x);
		return NULL;
	}
	if (!f->seeded)
		seeds = seeds_copy(f, due->epoch, due->rank[0].decl->averages, f->base);
	*ret_over = !seeds;
	if (!seeds)
		return NULL;
	x = load_for(l, due);
	if (!x) {
		average_seeds_free(seeds);
		return NULL;
	}
	load_seeds_set(x, seeds);
	x->base = f->base ? average_base_ref(f->base) : NULL;
	x->step = f->base ? f->base->step : f->restored != UINT64_MAX ? f->restored : due->step;
	x->marked = f->restored != UINT64_MAX ? f->marked : due->marked;
	return x;
}

enum average_base_is average_base_get(struct launch *l, struct average_base **ret)
{
	struct averages_from *f = from_of(l);
	const struct snap *due = step_due(l);
	struct load *x;
	bool over;

	*ret = NULL;
	if (!due)
		return AVERAGE_BASE_READY;
	if (!f || f->loading || (f->again_ns && now_ns() < f->again_ns))
		return AVERAGE_BASE_LOADING;
	x = load_needed(l, due, &over);
	if (x)
		load_start(l, x);
	else if (!over)
		f->again_ns = now_ns() + AGAIN_NS;
	if (!over)
		return AVERAGE_BASE_LOADING;
	*ret = f->base ? average_base_ref(f->base) : NULL;
	return AVERAGE_BASE_READY;
}

/* The first step of the new declarations goes on from it. While ranks seal, nobody knows yet
 * whether these have averages. */
bool average_base_keeps(const struct snap *s)
{
	const struct launch *l = s->launch;

	if (!s->averaged || l != l->job->launch)
		return false;
	switch (l->state) {
	case LAUNCH_FORMING:
		return !MUTANT(BASE_LET_GO);
	case LAUNCH_READY:
		return s->epoch != l->epoch && l->member[0].decl && l->member[0].decl->averages;
	case LAUNCH_ENDED:
		break;
	}
	return false;
}

bool average_base_waits(struct snap *s)
{
	return !s->averaged && s->rank[0].decl && s->rank[0].decl->averages && passes_wait(s) &&
	       snap_guarded(s) > 0;
}
