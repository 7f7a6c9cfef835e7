/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_scenes.c - what a store's house is kept with, to be cut short: sweeping after a dead
 * launch, labels, pruning, repair, a commit that is undone. Each scene is played
 *
 *	with the process dead at every named point of the protocol (ckpt/store/points.h), each time that it is
 *	reached; a name that no scene reaches is a fault;
 *	with the power lost at any moment (crash_power.c).
 *
 * Invariant: before a scene lets something go it says so in its promise (may_go), and only when the
 * call has returned 0 does it promise what the call was for.
 */
#include "ckpt/store/store_policy.h"
#include "tests/crash/crash_impl.h"
#include "formats/native/native.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#define SCENE_HOLD "eval"
#define SCENE_TAG "best"

/* --- what is held against a state of kept steps --- */

static int verified_yes(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *err)
{
	(void)arg;
	(void)st;
	(void)step_fd;
	(void)err;
	return 0;
}

static bool has_label(const struct store_label *m, uint32_t n, const struct store_step *st,
		      enum store_label_kind kind)
{
	for (uint32_t i = 0; i < n; i++)
		if (m[i].kind == kind && store_label_is(&m[i], st))
			return true;
	return false;
}

static int kept_step(const struct store *s, const struct story *y, uint32_t i,
		     const struct store_step *st, const struct store_label *m, uint32_t nm,
		     char why[CRASH_WHY])
{
	static const enum store_label_kind kind[] = { LABEL_HOLD, LABEL_TAG, LABEL_BAD };
	static const char *const word[] = { "hold", "tag", "bad" };
	char inner[CRASH_WHY] = "";

	if (y->repaired[i]) {
		if (!crash_parts_same(s, st->dir, &y->step[i], inner))
			return FAIL("%s: %.400s", st->dir, inner);
	} else if (!crash_step_same(s, st->dir, &y->step[i], inner)) {
		return FAIL("%s: %.400s", st->dir, inner);
	}
	for (uint32_t k = 0; k < ARRAY_LEN(kind); k++) {
		bool there = has_label(m, nm, st, kind[k]);

		if (y->labelled[i][k] == SAID_YES && !there)
			return FAIL("step %" PRIu64 " has lost its label %s", st->step, word[k]);
		if (y->labelled[i][k] == SAID_NO && there)
			return FAIL("step %" PRIu64 " has the label %s, which is not its", st->step,
				    word[k]);
	}
	if (st->state != STORE_DAMAGED &&
	    (st->state == STORE_QUARANTINED) != has_label(m, nm, st, LABEL_BAD))
		return FAIL("step %" PRIu64 ": its state and its labels differ", st->step);
	return 0;
}

/* *ret: which are there, and how. */
static int kept_look(const struct store *s, const struct story *y, uint32_t ret[STORY_MAX],
		     char why[CRASH_WHY])
{
	cleanup_free struct store_step *st = NULL;
	cleanup_free struct store_label *label = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n, nm, known = 0, others = 0;
	int r = store_scan(s, true, &st, &n, &err);

	memset(ret, 0, STORY_MAX * sizeof *ret);
	if (!r)
		r = store_labels(s, &label, &nm, &err);
	if (r)
		return FAIL("a look: %.400s", err.msg);
	for (uint32_t i = 0; i < n; i++) {
		others += st[i].state == STORE_COLLECTING;
		if (st[i].state == STORE_SET_ASIDE)
			return FAIL("%s was set aside", st[i].dir);
	}
	for (uint32_t i = 0; i < y->n; i++) {
		for (uint32_t k = 0; k < n; k++) {
			if (st[k].step != y->step[i].step || st[k].state == STORE_COLLECTING)
				continue;
			if (st[k].state == STORE_DAMAGED && y->repaired[i] != SAID_MAYBE)
				return FAIL("%s is damaged: %.300s", st[k].dir, st[k].why);
			known++;
			ret[i] = 1 + st[k].state;
			r = kept_step(s, y, i, &st[k], label, nm, why);
			if (r)
				return r;
		}
		if (!ret[i] && y->acked[i] && y->gone[i] == SAID_NO)
			return FAIL("step %" PRIu64 " is gone, and nobody removed it",
				    y->step[i].step);
		if (ret[i] && y->gone[i] == SAID_YES)
			return FAIL("step %" PRIu64 " was removed and is there", y->step[i].step);
	}
	if (known + others != n)
		return FAIL("the scan has %" PRIu32 " entries, %" PRIu32 " are known", n,
			    known + others);
	return 0;
}

/* A look, two launches, another prune: nothing changes any more, and nothing is left over. */
static int kept_check(const struct io_ops *ops, int root_fd, const struct story *y, char *why)
{
	const struct prune_opts o = { .verify = verified_yes, .now_ns = NS_PER_S };
	struct prune_result result;
	uint32_t first[STORY_MAX], now[STORY_MAX];
	struct ckpt_err err = { 0 };
	uint64_t generation;
	struct store *s;
	int r;

	if (store_open(ops, &format_native, root_fd, CRASH_JOB, false, &s, &err))
		return FAIL("the job is gone: %.300s", err.msg);
	r = kept_look(s, y, first, why);
	store_close(s);
	for (uint32_t i = 0; !r && i < 2; i++) {
		if (store_open(ops, &format_native, root_fd, CRASH_JOB, true, &s, &err))
			return FAIL("open: %.300s", err.msg);
		if (store_claim(s, 0, false, &generation, &err) ||
		    store_prune(s, &o, &result, &err))
			r = FAIL("a launch: %.300s", err.msg);
		else if (generation <= y->generation)
			r = FAIL("launch %" PRIu64 " was claimed twice", generation);
		if (!r)
			r = kept_look(s, y, now, why);
		if (!r && memcmp(now, first, sizeof now) != 0)
			r = FAIL("a launch has changed what is there");
		if (!r)
			r = ops->list(ops->ctx, s->job_fd, crash_leftover, why);
		store_close(s);
	}
	return r;
}

/* And what could not be read can be repaired, again or still. */
static int repaired_check(const struct io_ops *ops, int root_fd, const struct story *y, char *why)
{
	const struct repair_opts o = { .verify = verified_yes };
	struct repair_result result;
	uint32_t state[STORY_MAX];
	struct ckpt_err err = { 0 };
	struct story all = *y;
	struct store *s;
	int r = kept_check(ops, root_fd, y, why);

	if (r)
		return r;
	if (store_open(ops, &format_native, root_fd, CRASH_JOB, true, &s, &err))
		return FAIL("open: %.300s", err.msg);
	if (store_repair(s, &o, &result, &err))
		r = FAIL("repair: %.300s", err.msg);
	all.repaired[y->n - 1] = SAID_YES;
	all.labelled[y->n - 1][2] = SAID_NO;
	if (!r)
		r = kept_look(s, &all, state, why);
	store_close(s);
	return r;
}

/* Of 10, 20, 30 and 15 those that are listed: the line of 15, what is left of it, the line of 30 so
 * far. */
static int rewound_look(const struct store *s, const struct story *y, uint32_t *ret,
			char why[CRASH_WHY])
{
	struct judgement j;

	if (story_look(s, y, &j, why))
		return 1;
	*ret = 0;
	for (uint32_t i = 0; i < y->n; i++) {
		if (!j.listed[i] && !j.aside[i])
			return FAIL("step %" PRIu64 " is lost", y->step[i].step);
		*ret |= (uint32_t)j.listed[i] << i;
	}
	return *ret == 0x9 || *ret == 0x1 || *ret == 0x3 || *ret == 0x7
		       ? 0
		       : FAIL("no beginning of a line is listed: %" PRIx32, *ret);
}

/* The entry of step 30, wherever it is. */
static int rewind_again(struct store *s, const struct story *y, struct rewind_result *ret,
			struct ckpt_err *err)
{
	cleanup_free struct store_step *st = NULL;
	const struct store_step *at;
	uint32_t n;
	int r = store_scan(s, true, &st, &n, err);

	if (r)
		return r;
	at = scan_find(st, n, STORE_COMMITTED, 30, y->step[2].seq);
	if (!at)
		at = scan_find(st, n, STORE_SET_ASIDE, 30, y->step[2].seq);
	return at ? store_rewind(s, &(struct rewind_opts){ .dir = at->dir }, ret, err) : -ENOENT;
}

/* What was promised; then the same command again ends what was begun, and once more moves
 * nothing. */
static int rewound_check(const struct io_ops *ops, int root_fd, const struct story *y, char *why)
{
	struct rewind_result result;
	struct ckpt_err err = { 0 };
	uint64_t generation;
	struct store *s;
	uint32_t line;
	int r;

	if (store_open(ops, &format_native, root_fd, CRASH_JOB, true, &s, &err))
		return FAIL("the job is gone: %.300s", err.msg);
	r = rewound_look(s, y, &line, why);
	if (!r && y->gone[3] != SAID_MAYBE && line != (y->gone[3] == SAID_YES ? 0x7u : 0x9u))
		r = FAIL("%" PRIx32 " is listed, and that was not said", line);
	for (uint32_t i = 0; !r && i < 2; i++) {
		if (store_claim(s, 0, false, &generation, &err) ||
		    rewind_again(s, y, &result, &err))
			r = FAIL("again: %.300s", err.msg);
		if (!r && i && result.naside + result.nback)
			r = FAIL("the third time %" PRIu32 " steps moved",
				 result.naside + result.nback);
		if (!r)
			r = rewound_look(s, y, &line, why);
		if (!r && line != 0x7)
			r = FAIL("%" PRIx32 " is listed at the end", line);
	}
	if (!r)
		r = ops->list(ops->ctx, s->job_fd, crash_leftover, why);
	store_close(s);
	return r;
}

static int saved_check(const struct io_ops *ops, int root_fd, const struct story *y, char *why)
{
	return story_restart(ops, root_fd, y, true, why);
}

/* --- scenes --- */

static int base_three(int root_fd, struct power *w)
{
	return story_base(root_fd, &w->y, 3, w->why);
}

static int base_one(int root_fd, struct power *w)
{
	return story_base(root_fd, &w->y, 1, w->why);
}

static int base_none(int root_fd, struct power *w)
{
	return story_base(root_fd, &w->y, 0, w->why);
}

/* A launch has died while it wrote, and another one while it swept up after the first. */
static int base_dead(int root_fd, struct power *w)
{
	struct ckpt_err err = { 0 };
	struct crash_step half = { 0 };
	struct store_txn *x = NULL;
	uint64_t generation;
	struct io_faults f;
	struct store *s;
	int r = story_base(root_fd, &w->y, 1, w->why);

	io_faults_init(&f, &io_ops_posix);
	if (r || store_open(&f.ops, &format_native, root_fd, CRASH_JOB, true, &s, &err))
		return 1;
	r = store_claim(s, 0, false, &generation, &err);
	w->y.generation = generation;
	if (!r)
		r = crash_begin(s, 20, 2, &x, &half, &err);
	io_faults_kill_now(&f);
	if (!r)
		store_abort(x);
	store_close(s);
	crash_step_free(&half);
	return r;
}

static void live_save(struct io_faults *f, int root_fd, struct power *w)
{
	static const struct power_life l = { 1, 1, { { 20, 10 } }, 0, 0 };

	power_live(f, root_fd, &l, w);
}

static void live_first(struct io_faults *f, int root_fd, struct power *w)
{
	static const struct power_life l = { 0, 1, { { 10, UINT64_MAX } }, 0, 0 };

	power_live(f, root_fd, &l, w);
}

static void live_back(struct io_faults *f, int root_fd, struct power *w)
{
	static const struct power_life l = { 3, 1, { { 15, 10 } }, 0, 0 };

	power_live(f, root_fd, &l, w);
}

/* The rename that commits fails, after MANIFEST's and those that set two steps aside. */
static void live_undone(struct io_faults *f, int root_fd, struct power *w)
{
	io_faults_fail(f, IO_ON_RENAME, 4, -EIO, false);
	live_back(f, root_fd, w);
}

static const struct store_step *step_of(const struct store_step *st, uint32_t n, uint64_t step)
{
	for (uint32_t i = 0; i < n; i++)
		if (st[i].step == step)
			return &st[i];
	return NULL;
}

/* One of the labels of a step, set or cleared; the promise before and after. false: it failed. */
static bool scene_label(struct io_faults *f, struct store *s, struct power *w, uint32_t i,
			uint32_t kind, bool set)
{
	static const char *const name[] = { SCENE_HOLD, SCENE_TAG, NULL };
	static const enum store_label_kind kinds[] = { LABEL_HOLD, LABEL_TAG, LABEL_BAD };
	cleanup_free struct store_step *st = NULL;
	const struct store_step *at;
	struct ckpt_err err = { 0 };
	uint32_t n, cleared = 0;
	int r = store_scan(s, false, &st, &n, &err);

	if (r || !(at = step_of(st, n, w->y.step[i].step)))
		return false;
	w->y.labelled[i][kind] = SAID_MAYBE;
	for (uint32_t k = 0; set && kind == 1 && k < w->y.n; k++)
		if (w->y.labelled[k][1] == SAID_YES)
			w->y.labelled[k][1] = SAID_MAYBE; /* the tag moves */
	power_promise(f, w);
	r = set ? store_label_set(s, at, kinds[kind], name[kind], 0, "a scene", &err)
		: store_label_clear(s, at, kinds[kind], name[kind], &cleared, &err);
	if (!r && !set && !cleared)
		r = -ENOENT; /* none was found to clear, and that was said */
	if (r)
		return false;
	for (uint32_t k = 0; set && kind == 1 && k < w->y.n; k++)
		w->y.labelled[k][1] = SAID_NO;
	w->y.labelled[i][kind] = set ? SAID_YES : SAID_NO;
	if (set && kind == 2 && at->state == STORE_DAMAGED)
		w->y.labelled[i][kind] =
			SAID_MAYBE; /* of what could not be read: no longer when it can */
	power_promise(f, w);
	return true;
}

/* The policy keeps the newest one; what is named goes. */
static bool scene_prune(struct io_faults *f, struct store *s, struct power *w, uint32_t goes,
			bool bad)
{
	const struct retain_policy last = { .keep_last = 1 };
	const struct prune_opts o = {
		.policy = &last, .bad = bad, .verify = verified_yes, .now_ns = wall_ns()
	};
	struct prune_result result;
	struct ckpt_err err = { 0 };

	w->y.gone[goes] = SAID_MAYBE;
	power_promise(f, w);
	if (store_prune(s, &o, &result, &err) || result.failed || result.removed != 1)
		return false;
	w->y.gone[goes] = SAID_YES;
	power_promise(f, w);
	return true;
}

/* Of steps it changes nothing; what becomes of the policy itself: tests/unit/test_store_policy.c. */
static bool scene_policy(const struct store *s)
{
	const struct retain_policy last = { .keep_last = 1 };

	return store_policy_set(s, &last, "a scene", NULL, NULL) == 0;
}

static void live_kept(struct io_faults *f, int root_fd, struct power *w)
{
	struct ckpt_err err = { 0 };
	struct store *s;

	if (store_open(&f->ops, &format_native, root_fd, CRASH_JOB, false, &s, &err))
		return;
	w->done = scene_label(f, s, w, 0, 0, true) &&			  /* hold 10 */
		  scene_label(f, s, w, 1, 1, true) &&			  /* tag 20 */
		  scene_policy(s) && scene_label(f, s, w, 0, 0, false) && /* release 10 */
		  scene_prune(f, s, w, 0, false) &&   /* 10 goes, 20 is tagged */
		  scene_label(f, s, w, 1, 2, true) && /* 20 is bad */
		  scene_label(f, s, w, 2, 1, true) && /* the tag moves to 30 */
		  scene_prune(f, s, w, 1, true);      /* 20 goes */
	store_close(s);
}

/* The job went back to 10 and wrote 15: 20 and 30 are set aside. */
static int base_back(int root_fd, struct power *w)
{
	struct ckpt_err err = { 0 };
	int r = story_base(root_fd, &w->y, 3, w->why);

	return r ? r : story_save(&io_ops_posix, root_fd, &w->y, true, &err);
}

static void live_rewound(struct io_faults *f, int root_fd, struct power *w)
{
	struct rewind_result result;
	struct ckpt_err err = { 0 };
	uint64_t generation;
	struct store *s;

	if (store_open(&f->ops, &format_native, root_fd, CRASH_JOB, false, &s, &err))
		return;
	if (store_claim(s, 0, false, &generation, &err) == 0) {
		w->y.gone[3] = SAID_MAYBE;
		power_promise(f, w);
		if (rewind_again(s, &w->y, &result, &err) == 0) {
			w->y.gone[3] = SAID_YES;
			power_promise(f, w);
			w->done = true;
		}
	}
	store_close(s);
}

/* 10 has a base, 20 links it, 10 goes, 30 links it from 20. */
static void live_linked(struct io_faults *f, int root_fd, struct power *w)
{
	struct ckpt_err err = { 0 };
	struct store *s;

	if (store_open(&f->ops, &format_native, root_fd, CRASH_JOB, false, &s, &err))
		return;
	w->done = store_claim(s, 0, false, &w->y.generation, &err) == 0;
	if (w->done)
		power_promise(f, w);
	for (uint32_t i = 0; w->done && i < 3; i++) {
		w->y.n++;
		w->done = !crash_save_base(s, 10 * (i + 1), i + 1, i ? 10 * i : UINT64_MAX,
					   i ? &w->y.step[i - 1] : NULL, &w->y.step[i], &err);
		w->y.acked[i] = w->done;
		if (w->done)
			power_promise(f, w);
		if (w->done && i == 1)
			w->done = scene_prune(f, s, w, 0, false);
	}
	store_close(s);
}

/* 30 is held, and its MANIFEST is gone, or has a wrong byte. */
static int base_broken(int root_fd, struct power *w, bool gone)
{
	const char *path = CRASH_JOB "/step-000000000030/MANIFEST";
	cleanup_free struct store_step *st = NULL;
	struct ckpt_err err = { 0 };
	struct store *s = NULL;
	uint32_t n;
	uint8_t b = 0;
	int fd, r = story_base(root_fd, &w->y, 3, w->why);

	if (!r && (store_open(&io_ops_posix, &format_native, root_fd, CRASH_JOB, false, &s, &err) ||
		   store_scan(s, false, &st, &n, &err) ||
		   store_label_set(s, &st[0], LABEL_HOLD, SCENE_HOLD, 0, NULL, &err)))
		r = 1;
	store_close(s);
	w->y.labelled[2][0] = SAID_YES;
	w->y.repaired[2] = SAID_MAYBE;
	w->y.labelled[2][2] = SAID_MAYBE; /* repair holds it back until it is checked */
	if (r || gone)
		return r ? r : unlinkat(root_fd, path, 0);
	fd = openat(root_fd, path, O_RDWR | O_CLOEXEC);
	r = fd < 0 || pread(fd, &b, 1, 100) != 1;
	b ^= 1;
	r = r || pwrite(fd, &b, 1, 100) != 1;
	if (fd >= 0)
		(void)close(fd);
	return r;
}

static int base_torn_manifest(int root_fd, struct power *w)
{
	return base_broken(root_fd, w, false);
}

static int base_no_manifest(int root_fd, struct power *w)
{
	return base_broken(root_fd, w, true);
}

static void live_repaired(struct io_faults *f, int root_fd, struct power *w)
{
	const struct repair_opts o = { .verify = verified_yes };
	struct repair_result result;
	struct ckpt_err err = { 0 };
	struct store *s;

	if (store_open(&f->ops, &format_native, root_fd, CRASH_JOB, false, &s, &err))
		return;
	if (store_repair(s, &o, &result, &err) == 0 && result.rebuilt == 1) {
		w->y.repaired[2] = SAID_YES;
		w->y.labelled[2][2] = SAID_NO;
		power_promise(f, w);
		w->done = true;
	}
	store_close(s);
}

const struct scene scenes[] = {
	{ "a first step", base_none, live_first, saved_check, 0, true, false },
	{ "a step", base_one, live_save, saved_check, 0, true, false },
	{ "going back", base_three, live_back, saved_check, 0, true, false },
	{ "going back, undone", base_three, live_undone, saved_check, 8, true, true },
	{ "rewinding", base_back, live_rewound, rewound_check, 8, false, false },
	{ "sweeping", base_dead, live_save, saved_check, 8, true, false },
	{ "labels and pruning", base_three, live_kept, kept_check, 16, false, false },
	{ "a linked part", base_none, live_linked, kept_check, 16, true, false },
	{ "repair", base_torn_manifest, live_repaired, repaired_check, 16, false, false },
	{ "repair without MANIFEST", base_no_manifest, live_repaired, repaired_check, 4, false,
	  false },
};
const uint32_t scenes_n = ARRAY_LEN(scenes);

/* --- dead at every point --- */

static const char *const point_names[] = {
#define POINT_NAME(id, name, text) name,
	STORE_POINTS(POINT_NAME)
#undef POINT_NAME
};

struct reaper {
	struct io_faults *f;
	uint64_t at, seen; /* the at-th point kills */
	char name[48];
	bool *reached; /* of point_names; NULL */
	bool strange;
};

static void reaper_point(void *arg, const char *name)
{
	struct reaper *p = arg;
	bool known = false;

	for (uint32_t i = 0; i < ARRAY_LEN(point_names); i++) {
		if (strcmp(point_names[i], name) != 0)
			continue;
		known = true;
		if (p->reached)
			p->reached[i] = true;
	}
	p->strange |= !known;
	if (++p->seen == p->at) {
		(void)snprintf(p->name, sizeof p->name, "%s", name);
		io_faults_kill_now(p->f);
	}
}

/* at 0: nobody dies. */
static int point_run(const struct scene *c, uint64_t at, bool *reached, uint64_t *ret_seen,
		     char why[CRASH_WHY])
{
	struct power w = { .why = why };
	struct io_faults f;
	struct reaper p = { .f = &f, .at = at, .reached = reached };
	struct place place;
	char inner[CRASH_WHY];
	int r;

	place_make(&place);
	crash_nrun++;
	why[0] = 0;
	io_faults_init(&f, &io_ops_posix);
	r = c->base(place.fd, &w);
	if (r)
		(void)FAIL("%s: its beginning cannot be made", c->name);
	if (!r) {
		power_promise(&f, &w);
		f.on_point = reaper_point;
		f.on_point_arg = &p;
		c->live(&f, place.fd, &w);
		f.on_point = NULL;
		*ret_seen = p.seen;
		memcpy(inner, why, sizeof inner);
		r = c->check(&io_ops_posix, place.fd, &w.y, inner);
		if (r)
			(void)FAIL("%s, dead at %s: %.450s", c->name, p.name, inner);
		else if (p.strange)
			r = FAIL("%s reaches a point that is not in ckpt/store/points.h", c->name);
		else if (at == 0 && !c->saves && !w.done)
			r = FAIL("%s cannot be played to its end", c->name);
	}
	story_free(&w.y);
	place_remove(&place);
	return r;
}

int rig_points(char why[CRASH_WHY])
{
	uint64_t by = MAX(crash_walks.every_run, 1u);
	bool reached[ARRAY_LEN(point_names)] = { false };

	for (uint32_t i = 0; i < ARRAY_LEN(scenes); i++) {
		uint64_t n = 0, ignored;

		if (point_run(&scenes[i], 0, reached, &n, why))
			return 1;
		for (uint64_t at = 1 + i % by; at <= n; at += by)
			if (point_run(&scenes[i], at, NULL, &ignored, why))
				return 1;
	}
	for (uint32_t i = 0; i < ARRAY_LEN(point_names); i++)
		if (!reached[i])
			return FAIL("no scene reaches the point %s", point_names[i]);
	return 0;
}

/* --- power lost in a scene --- */

struct scene_power {
	struct power w;
	const struct scene *c;
};

static int scene_check(void *arg, int dirfd, const struct io_crash *at)
{
	struct scene_power *x = arg;
	struct story y = x->w.promise[at->promise];

	crash_nrun++;
	memcpy(y.step, x->w.y.step, sizeof y.step);
	y.n = x->w.y.n;
	y.rewind = x->w.y.rewind;
	memcpy(y.failed, x->w.y.failed, sizeof y.failed);
	return x->c->check(at->ops, dirfd, &y, x->w.why);
}

static int scene_power_run(const struct scene *c, char why[CRASH_WHY])
{
	struct scene_power x = { .w.why = why, .c = c };
	struct io_faults f;
	struct place p;
	int r;

	place_make(&p);
	crash_nrun++;
	why[0] = 0;
	crash_names_fixed(true);
	io_faults_init(&f, &io_ops_posix);
	r = c->base(p.fd, &x.w);
	if (!r) {
		f.record = io_record_new(p.fd);
		power_promise(&f, &x.w);
		c->live(&f, p.fd, &x.w);
		r = power_walk_with(&f, (struct io_crash_opts){ .nrandom = c->nrandom, .ntear = 2 },
				    scene_check, &x, why);
		io_record_free(f.record);
	} else {
		(void)FAIL("%s: its beginning cannot be made", c->name);
	}
	crash_names_fixed(false);
	story_free(&x.w.y);
	place_remove(&p);
	return r;
}

int rig_power_scenes(char why[CRASH_WHY])
{
	for (uint32_t i = 0; i < ARRAY_LEN(scenes); i++) {
		char inner[CRASH_WHY];

		if (scenes[i].nrandom && scene_power_run(&scenes[i], inner))
			return FAIL("%s: %.500s", scenes[i].name, inner);
	}
	return 0;
}
