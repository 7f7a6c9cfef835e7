/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_rigs.c - see crash_rigs.h. Every run has a store of its own.
 */
#include "tests/crash/crash_rigs.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include "tests/crash/crash_step.c"

static uint64_t crash_seed = 1, crash_nrun;

void crash_seed_set(uint64_t seed)
{
	crash_seed = seed;
}

uint64_t crash_runs(void)
{
	return crash_nrun;
}

/* Returns 1. */
__attribute__((format(printf, 2, 3))) static int rig_fail(char why[CRASH_WHY], const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(why, CRASH_WHY, fmt, ap);
	va_end(ap);
	return 1;
}

#define FAIL(...) rig_fail(why, __VA_ARGS__)

/* --- what a run knows --- */

/* What the job has done so far, and what it was doing. */
struct story {
	struct crash_step step[4];
	bool acked[4];
	uint32_t n;
	uint64_t rewind;     /* of the step being written */
	uint64_t generation; /* the highest acknowledged */
};

static void story_free(struct story *y)
{
	for (uint32_t i = 0; i < y->n; i++)
		crash_step_free(&y->step[i]);
}

/* Which line holds when the first n steps are committed: step i is listed unless a later one that
 * went back behind it was. Rewinds of the stories here: only the last step may go back. */
static bool is_behind(const struct story *y, uint32_t i)
{
	return i + 1 < y->n && y->rewind != UINT64_MAX && y->step[i].step > y->rewind;
}

/* --- judging --- */

static const struct store_step *scan_find(const struct store_step *st, uint32_t n,
					  enum store_state state, uint64_t step, uint64_t seq)
{
	for (uint32_t i = 0; i < n; i++)
		if (st[i].state == state && st[i].step == step && st[i].seq == seq)
			return &st[i];
	return NULL;
}

struct judgement {
	bool listed[4], aside[4];
};

/* Every entry is one of the story's steps, in the right order; *ret says which are where. */
static int story_look(const struct store *s, const struct story *y, struct judgement *ret,
		      char why[CRASH_WHY])
{
	cleanup_free struct store_step *st = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n, known = 0, others = 0;
	uint64_t newest = UINT64_MAX;
	char inner[CRASH_WHY] = "";

	*ret = (struct judgement){ 0 };
	if (store_scan(s, true, &st, &n, &err))
		return FAIL("scan: %.300s", err.msg);
	for (uint32_t i = 0; i < y->n; i++) {
		const struct crash_step *c = &y->step[i];
		const struct store_step *at = scan_find(st, n, STORE_COMMITTED, c->step, c->seq);
		const struct store_step *old = scan_find(st, n, STORE_SET_ASIDE, c->step, c->seq);

		ret->listed[i] = at;
		ret->aside[i] = old;
		known += (uint32_t)(at != NULL) + (uint32_t)(old != NULL);
		if (at && old)
			return FAIL("step %" PRIu64 " is listed and set aside", c->step);
		if (at && !crash_step_same(s, at->dir, c, inner))
			return FAIL("%s: %.400s", at->dir, inner);
		if (old && !crash_step_same(s, old->dir, c, inner))
			return FAIL("%s: %.400s", old->dir, inner);
	}
	for (uint32_t i = 0; i < n; i++) {
		others += st[i].state == STORE_COLLECTING;
		if (st[i].state == STORE_DAMAGED)
			return FAIL("%s is damaged: %.300s", st[i].dir, st[i].why);
		if (st[i].state != STORE_COMMITTED)
			continue;
		if (st[i].seq >= newest)
			return FAIL("%s stands behind an older step", st[i].dir);
		newest = st[i].seq;
	}
	if (known + others != n)
		return FAIL("the scan has %" PRIu32 " entries, %" PRIu32 " are known", n,
			    known + others);
	return 0;
}

/*
 * The rule of store.h. torn: a crash or a fault that lasts may have come between setting aside and
 * committing.
 */
static int story_judge(const struct story *y, const struct judgement *j, bool torn,
		       char why[CRASH_WHY])
{
	uint32_t last = y->n - 1;
	bool behind_seen = false, aside_seen = false;

	for (uint32_t i = 0; i < y->n; i++) {
		uint64_t step = y->step[i].step;

		if (y->acked[i] && !j->listed[i] && !j->aside[i])
			return FAIL("step %" PRIu64 " was acknowledged and is gone", step);
		if (i == last) {
			if (j->aside[i])
				return FAIL("step %" PRIu64 " was set aside by itself", step);
			if (y->acked[i] && !j->listed[i])
				return FAIL("step %" PRIu64 " was acknowledged and is not listed",
					    step);
			continue;
		}
		if (!is_behind(y, i) && j->aside[i])
			return FAIL("step %" PRIu64 " was set aside and belongs to the line", step);
		if (!is_behind(y, i))
			continue;
		behind_seen |= j->listed[i];
		if (j->aside[i])
			aside_seen = true;
		if (aside_seen && j->listed[i])
			return FAIL("step %" PRIu64 " is listed, an older one was set aside", step);
	}
	if (j->listed[last] && behind_seen)
		return FAIL("the new step is listed beside those it went back behind");
	if (!j->listed[last] && aside_seen && !torn)
		return FAIL("steps are set aside, and nothing was committed");
	return 0;
}

static int leftover(void *arg, const char *name, unsigned char d_type)
{
	(void)d_type;
	if (strncmp(name, ".tmp-", 5) != 0 && strncmp(name, ".trash-", 7) != 0)
		return 0;
	(void)snprintf(arg, CRASH_WHY, "%s is left over", name);
	return 1;
}

/* A restart: a reader, then a new launch, then the same again. */
static int story_restart(int root_fd, const struct story *y, bool torn, char why[CRASH_WHY])
{
	struct judgement first, j;
	struct ckpt_err err = { 0 };
	uint64_t generation, highest = y->generation;
	struct store *s;
	int r = 0;

	if (store_open(&io_ops_posix, root_fd, CRASH_JOB, false, &s, &err)) {
		for (uint32_t i = 0; i < y->n; i++)
			if (y->acked[i] || y->generation)
				return FAIL("the job is gone: %.300s", err.msg);
		return 0;
	}
	r = story_look(s, y, &first, why);
	if (!r)
		r = story_judge(y, &first, torn, why);
	store_close(s);
	for (uint32_t i = 0; !r && i < 2; i++) {
		if (store_open(&io_ops_posix, root_fd, CRASH_JOB, true, &s, &err))
			return FAIL("open: %.300s", err.msg);
		if (store_claim(s, 0, false, &generation, &err))
			r = FAIL("claim: %.300s", err.msg);
		else if (generation <= highest)
			r = FAIL("launch %" PRIu64 " was claimed twice", generation);
		else
			r = story_look(s, y, &j, why);
		if (!r && memcmp(&j, &first, sizeof j) != 0)
			r = FAIL("a claim has changed what is listed");
		if (!r)
			r = s->ops->list(s->ops->ctx, s->job_fd, leftover, why);
		highest = generation;
		store_close(s);
	}
	return r;
}

/* --- running --- */

/* The steps that are there before anything goes wrong: 10, or 10, 20, 30. */
static int story_base(int root_fd, struct story *y, uint32_t n, char why[CRASH_WHY])
{
	struct ckpt_err err = { 0 };
	struct store *s;
	int r;

	*y = (struct story){ .n = n, .rewind = UINT64_MAX };
	r = store_open(&io_ops_posix, root_fd, CRASH_JOB, true, &s, &err);
	if (!r)
		r = store_claim(s, 0, false, &y->generation, &err);
	for (uint32_t i = 0; !r && i < n; i++) {
		uint64_t before = i ? 10 * (uint64_t)i : 0;

		r = crash_save(s, 10 * (uint64_t)(i + 1), i + 1, before, &y->step[i], &err);
		y->acked[i] = !r;
	}
	store_close(s);
	return r ? FAIL("the base: %.400s", err.msg) : 0;
}

/* A launch that writes one step: 20 after 10, or 15 after 10 where 20 and 30 exist. */
static int story_save(const struct io_ops *ops, int root_fd, struct story *y, bool back,
		      struct ckpt_err *err)
{
	uint64_t generation = 0;
	struct store *s;
	int r = store_open(ops, root_fd, CRASH_JOB, true, &s, err);

	if (r)
		return r;
	r = store_claim(s, 0, false, &generation, err);
	if (!r) {
		y->rewind = 10;
		y->generation = generation;
		r = crash_save(s, back ? 15 : 20, y->n + 1, y->rewind, &y->step[y->n], err);
		y->acked[y->n] = !r;
		y->n++;
	}
	store_close(s);
	return r;
}

static uint32_t open_files(void)
{
	uint32_t n = 0;
	DIR *d = opendir("/proc/self/fd");

	while (d && readdir(d))
		n++;
	if (d)
		(void)closedir(d);
	return n;
}

/* --- R2: the n-th call fails --- */

struct fault_kind {
	const char *name;
	uint32_t on;
	int err; /* 0: a short write */
	bool sticky;
};
static const struct fault_kind fault_kinds[] = {
	{ "EIO once", IO_ON_ANY, -EIO, false },
	{ "EIO for ever", IO_ON_MUTATING, -EIO, true },
	{ "fsync EIO once", IO_ON_SYNC, -EIO, false },
	{ "fsync EIO for ever", IO_ON_SYNC, -EIO, true },
	{ "rename EIO for ever", IO_ON_RENAME, -EIO, true },
	{ "ENOSPC once", IO_ON_MUTATING & ~(uint32_t)IO_ON_UNLINK, -ENOSPC, false },
	{ "ENOSPC for ever",
	  IO_ON_CREATE | IO_ON_WRITE | IO_ON_MKDIR | IO_ON_FALLOCATE | IO_ON_SYNC, -ENOSPC, true },
	{ "short write", IO_ON_WRITE, 0, false },
};

static int fault_run(const struct fault_kind *k, uint64_t nth, bool back, bool *ret_hit,
		     char why[CRASH_WHY])
{
	struct ckpt_err err = { 0 };
	struct io_faults f;
	struct place p;
	struct story y;
	uint32_t files;
	bool unknown;
	int r, saved;

	place_make(&p);
	crash_nrun++;
	files = open_files();
	io_faults_init(&f, &io_ops_posix);
	r = story_base(p.fd, &y, back ? 3 : 1, why);
	if (!r) {
		if (k->err)
			io_faults_fail(&f, k->on, nth, k->err, k->sticky);
		else
			io_faults_short(&f, nth);
		saved = story_save(&f.ops, p.fd, &y, back, &err);
		*ret_hit = io_faults_hit(&f);
		unknown = saved == -EIO && strstr(err.msg, "may or may not be visible");
		if (saved && !err.msg[0])
			r = FAIL("an error without a sentence");
		else if (saved && k->err == -ENOSPC && saved != -ENOSPC && !unknown)
			r = FAIL("a full disk is reported as %s", err.msg);
		else if (saved && !k->err)
			r = FAIL("a short write is an error: %.300s", err.msg);
		else if (files != open_files())
			r = FAIL("descriptors leak");
	}
	if (!r)
		r = story_restart(p.fd, &y, k->sticky, why);
	if (!r && saved && !unknown && y.n == (back ? 4u : 2u)) {
		struct store s = { .ops = &io_ops_posix, .root_fd = -1 };
		struct judgement j;

		s.job_fd = openat(p.fd, CRASH_JOB, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = story_look(&s, &y, &j, why);
		if (!r && j.listed[y.n - 1])
			r = FAIL("a step that failed (%.200s) is listed", err.msg);
		(void)close(s.job_fd);
	}
	story_free(&y);
	place_remove(&p);
	return r;
}

static int rig_faults(char why[CRASH_WHY])
{
	for (uint32_t back = 0; back < 2; back++) {
		for (uint32_t k = 0; k < ARRAY_LEN(fault_kinds); k++) {
			bool hit = true;

			for (uint64_t nth = 1; hit; nth++) {
				char inner[CRASH_WHY];

				if (fault_run(&fault_kinds[k], nth, back, &hit, inner))
					return FAIL("%s at call %" PRIu64 "%s: %.450s",
						    fault_kinds[k].name, nth,
						    back ? ", going back" : "", inner);
			}
		}
	}
	return 0;
}

/* --- the process dies at the n-th mutating call --- */

static int kill_run(uint64_t nth, bool back, bool *ret_hit, char why[CRASH_WHY])
{
	struct ckpt_err err = { 0 };
	struct crash_step more = { 0 };
	struct store *s = NULL;
	struct io_faults f;
	struct place p;
	struct story y;
	uint64_t generation;
	int r;

	place_make(&p);
	crash_nrun++;
	io_faults_init(&f, &io_ops_posix);
	r = story_base(p.fd, &y, back ? 3 : 1, why);
	if (!r) {
		io_faults_kill(&f, nth);
		(void)story_save(&f.ops, p.fd, &y, back, &err);
		*ret_hit = io_faults_hit(&f);
		r = story_restart(p.fd, &y, true, why);
	}
	if (!r &&
	    (store_open(&io_ops_posix, p.fd, CRASH_JOB, true, &s, &err) ||
	     store_claim(s, 0, false, &generation, &err) || crash_save(s, 40, 9, 30, &more, &err)))
		r = FAIL("the job cannot go on: %.400s", err.msg);
	store_close(s);
	crash_step_free(&more);
	story_free(&y);
	place_remove(&p);
	return r;
}

static int rig_kills(char why[CRASH_WHY])
{
	for (uint32_t back = 0; back < 2; back++) {
		bool hit = true;

		for (uint64_t nth = 1; hit; nth++) {
			char inner[CRASH_WHY];

			if (kill_run(nth, back, &hit, inner))
				return FAIL("dead at mutating call %" PRIu64 "%s: %.450s", nth,
					    back ? ", going back" : "", inner);
		}
	}
	return 0;
}

/* --- R1: power loss --- */

struct power {
	struct story y;
	uint32_t nbase; /* of its steps are there from the start */
	char *why;
};

/* Promise m (from 1) is the claim, and the first m - 1 steps after the base. */
static int power_check(void *arg, int dirfd, const struct io_crash *at)
{
	struct power *w = arg;
	struct story y = w->y;

	crash_nrun++;
	if (!at->mark)
		y.generation = w->nbase ? 1 : 0;
	for (uint32_t i = w->nbase; i < y.n; i++)
		y.acked[i] = w->y.acked[i] && i - w->nbase + 1 < at->mark;
	return story_restart(dirfd, &y, true, w->why);
}

/* A launch that writes these steps after what is there; it ends at the first that fails. */
static void power_live(struct io_faults *f, int root_fd, const uint64_t (*step)[2], uint32_t n,
		       struct power *w)
{
	struct ckpt_err err = { 0 };
	struct store *s;

	if (store_open(&f->ops, root_fd, CRASH_JOB, true, &s, &err))
		return;
	if (store_claim(s, 0, false, &w->y.generation, &err) == 0) {
		io_record_mark(f->record, 1);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t at = w->y.n++;

			w->y.rewind = step[i][1];
			w->y.acked[at] = !crash_save(s, step[i][0], at + 1, step[i][1],
						     &w->y.step[at], &err);
			if (!w->y.acked[at])
				break;
			io_record_mark(f->record, i + 2);
		}
	}
	store_close(s);
}

static int power_walk(struct io_faults *f, const struct io_crash_opts *o, struct power *w)
{
	int r;

	w->why[0] = 0;
	r = w->y.n ? io_crash_states(f->record, o, power_check, w, NULL) : 0;
	if (r && !w->why[0])
		(void)snprintf(w->why, CRASH_WHY, "a state could not be made: %s", strerror(-r));
	return r != 0;
}

/* A whole life: 10, 20, back to 10 and 15. */
static int rig_power(char why[CRASH_WHY])
{
	static const uint64_t step[][2] = { { 10, UINT64_MAX }, { 20, 10 }, { 15, 10 } };
	struct io_crash_opts o = { .seed = crash_seed, .nrandom = 24, .ntear = 3 };
	struct power w = { .why = why, .y.rewind = UINT64_MAX };
	struct io_faults f;
	struct place p;
	int r;

	place_make(&p);
	crash_nrun++;
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(p.fd);
	power_live(&f, p.fd, step, ARRAY_LEN(step), &w);
	r = w.y.n == 3 && w.y.acked[2] ? power_walk(&f, &o, &w) : FAIL("it cannot be written");
	io_record_free(f.record);
	story_free(&w.y);
	place_remove(&p);
	return r;
}

/* Back from 20 to 10, then 15; the n-th sync fails. */
static int power_failed_run(uint64_t nth, bool *ret_hit, char why[CRASH_WHY])
{
	static const uint64_t step[][2] = { { 15, 10 } };
	struct io_crash_opts o = { .seed = crash_seed, .ntear = 1 };
	struct power w = { .nbase = 2, .why = why };
	struct io_faults f;
	struct place p;
	int r;

	place_make(&p);
	crash_nrun++;
	io_faults_init(&f, &io_ops_posix);
	r = story_base(p.fd, &w.y, w.nbase, why);
	if (!r) {
		f.record = io_record_new(p.fd);
		io_faults_fail(&f, IO_ON_SYNC, nth, -EIO, false);
		power_live(&f, p.fd, step, ARRAY_LEN(step), &w);
		*ret_hit = io_faults_hit(&f);
		r = power_walk(&f, &o, &w);
		io_record_free(f.record);
	}
	story_free(&w.y);
	place_remove(&p);
	return r;
}

static int rig_power_sync_failed(char why[CRASH_WHY])
{
	bool hit = true;

	for (uint64_t nth = 1; hit; nth++) {
		char inner[CRASH_WHY];

		if (power_failed_run(nth, &hit, inner))
			return FAIL("sync %" PRIu64 " failed: %.500s", nth, inner);
	}
	return 0;
}

/*
 * One process dies at its nth mutating call from the end, another one that had the store open already
 * claims and looks; then the power goes. What the second has seen must stay.
 */
static int power_seen_run(uint64_t back, char why[CRASH_WHY])
{
	struct io_crash_opts o = { .seed = crash_seed, .nrandom = 1, .ntear = 1 };
	struct power w = { .nbase = 1, .why = why };
	struct store *a = NULL, *b = NULL;
	struct ckpt_err err = { 0 };
	struct judgement seen;
	uint64_t generation, calls = 0;
	struct io_faults f, death; /* what the dead one called never reaches the recorder */
	struct place p;
	int r;

	place_make(&p);
	crash_nrun++;
	io_faults_init(&f, &io_ops_posix);
	io_faults_init(&death, &f.ops);
	r = story_base(p.fd, &w.y, w.nbase, why);
	if (!r && (store_open(&io_ops_posix, p.fd, CRASH_JOB, true, &a, &err) ||
		   store_claim(a, 0, false, &w.y.generation, &err)))
		r = FAIL("%.500s", err.msg);
	for (uint32_t pass = 0; !r && pass < 2; pass++) { /* the first only counts */
		uint32_t at = w.y.n++;

		f.record = pass ? io_record_new(p.fd) : NULL;
		a->ops = &death.ops;
		if (pass && store_open(&f.ops, p.fd, CRASH_JOB, true, &b, &err))
			r = FAIL("%.500s", err.msg);
		io_faults_count(&death, IO_ON_MUTATING);
		if (pass)
			io_faults_kill(&death, calls - back);
		w.y.rewind = 10 * (uint64_t)at;
		w.y.acked[at] = !crash_save(a, 10 * (uint64_t)at + 10, at + 1, w.y.rewind,
					    &w.y.step[at], &err);
		calls = io_faults_calls(&death);
	}
	w.nbase = 2;
	if (!r && store_claim(b, 0, false, &generation, &err))
		r = FAIL("%.500s", err.msg);
	if (!r)
		r = story_look(b, &w.y, &seen, why);
	if (!r) {
		w.y.acked[2] = seen.listed[2];
		w.y.generation = generation;
		io_record_mark(f.record, 2); /* told to whoever asked the second one */
		r = power_walk(&f, &o, &w);
	}
	io_record_free(f.record);
	store_close(a);
	store_close(b);
	story_free(&w.y);
	place_remove(&p);
	return r;
}

static int rig_power_seen(char why[CRASH_WHY])
{
	for (uint64_t back = 0; back < 3; back++) {
		char inner[CRASH_WHY];

		if (power_seen_run(back, inner))
			return FAIL("dead %" PRIu64 " calls before the end: %.500s", back, inner);
	}
	return 0;
}

/* --- two launches --- */

/* Before its at-th call, another one acts. */
struct hook {
	struct io_ops ops;
	uint64_t calls, at;
	void (*act)(void *arg);
	void *arg;
};

static void hook_tick(void *ctx)
{
	struct hook *h = ctx;

	if (++h->calls == h->at)
		h->act(h->arg);
}

static int hook_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	hook_tick(ctx);
	return io_ops_posix.open(NULL, dirfd, name, flags, mode);
}

static int64_t hook_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	hook_tick(ctx);
	return io_ops_posix.pwrite(NULL, fd, buf, len, off);
}

static int hook_sync(void *ctx, int fd)
{
	hook_tick(ctx);
	return io_ops_posix.sync(NULL, fd);
}

static int hook_mkdir(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	hook_tick(ctx);
	return io_ops_posix.mkdir(NULL, dirfd, name, mode);
}

static int hook_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	hook_tick(ctx);
	return io_ops_posix.rename(NULL, dirfd, from, to);
}

static int hook_unlink(void *ctx, int dirfd, const char *name, bool is_dir)
{
	hook_tick(ctx);
	return io_ops_posix.unlink(NULL, dirfd, name, is_dir);
}

static int hook_list(void *ctx, int dirfd, int (*each)(void *, const char *, unsigned char),
		     void *arg)
{
	hook_tick(ctx);
	return io_ops_posix.list(NULL, dirfd, each, arg);
}

static void hook_init(struct hook *h, uint64_t at, void (*act)(void *arg), void *arg)
{
	*h = (struct hook){ .ops = io_ops_posix, .at = at, .act = act, .arg = arg };
	h->ops.ctx = h;
	h->ops.open = hook_open;
	h->ops.pwrite = hook_pwrite;
	h->ops.sync = hook_sync;
	h->ops.mkdir = hook_mkdir;
	h->ops.rename = hook_rename;
	h->ops.unlink = hook_unlink;
	h->ops.list = hook_list;
}

enum rival_kind { RIVAL_NEW, RIVAL_AGAIN, RIVALS };

/* The second launch, or the second daemon of the same launch. */
struct rival {
	enum rival_kind kind;
	uint64_t first_generation, step;
	int root_fd;
	struct store *s;
	struct store_txn *x;
	struct crash_step mine;
	bool acted, saw;
	struct ckpt_err err;
};

/* It claims, looks, and begins the same step if it has not seen it, else the one after. */
static void rival_act(void *arg)
{
	cleanup_free struct store_step *st = NULL;
	struct rival *b = arg;
	uint64_t generation;
	uint32_t n;

	b->acted = true;
	if (store_open(&io_ops_posix, b->root_fd, CRASH_JOB, true, &b->s, &b->err) ||
	    store_claim(b->s, b->kind == RIVAL_NEW ? 0 : b->first_generation, true, &generation,
			&b->err) ||
	    store_scan(b->s, false, &st, &n, &b->err))
		return;
	for (uint32_t i = 0; i < n; i++)
		b->saw |= st[i].step == b->step;
	if (crash_begin(b->s, b->saw ? b->step + 30 : b->step, 9, &b->x, &b->mine, &b->err))
		b->x = NULL;
}

static int rival_end(struct rival *b, char why[CRASH_WHY])
{
	char inner[CRASH_WHY], dir[48];
	int r = 0;

	if (!b->x)
		return FAIL("the second could not begin: %.400s", b->err.msg);
	r = crash_commit(b->x, &b->mine, b->saw ? b->step : 10, &b->err);
	if (r)
		return FAIL("the second could not commit: %.400s", b->err.msg);
	(void)snprintf(dir, sizeof dir, "step-%012" PRIu64, b->mine.step);
	return crash_step_same(b->s, dir, &b->mine, inner) ? 0 : FAIL("%s: %.400s", dir, inner);
}

/* The first writes step 20 after 10, or goes back and writes 15; the second acts before its call. */
static int fence_run(enum rival_kind kind, bool back, uint64_t at, bool *ret_acted,
		     char why[CRASH_WHY])
{
	struct rival b = { .kind = kind, .step = back ? 15 : 20 };
	struct ckpt_err err = { 0 };
	struct store *s = NULL;
	struct judgement j;
	struct place p;
	struct story y;
	struct hook h;
	int r, saved = 0;

	place_make(&p);
	crash_nrun++;
	r = story_base(p.fd, &y, back ? 3 : 1, why);
	hook_init(&h, UINT64_MAX, rival_act, &b);
	if (!r && (store_open(&h.ops, p.fd, CRASH_JOB, true, &s, &err) ||
		   store_claim(s, 0, false, &y.generation, &err)))
		r = FAIL("the first could not claim: %.400s", err.msg);
	if (!r) {
		y.rewind = 10;
		b.root_fd = p.fd;
		b.first_generation = y.generation;
		h.calls = 0;
		h.at = at;
		saved = crash_save(s, b.step, y.n + 1, 10, &y.step[y.n], &err);
		y.acked[y.n] = !saved;
		y.n++;
		r = story_look(s, &y, &j, why);
	}
	if (!r && b.acted && !saved != b.saw)
		r = FAIL("the first %s, the second %s it", saved ? err.msg : "committed",
			 b.saw ? "saw" : "did not see");
	if (!r && saved && saved != -ESTALE)
		r = FAIL("the first was not told that it is over: %.400s", err.msg);
	if (!r)
		r = story_judge(&y, &j, false, why);
	if (!r && b.acted)
		r = rival_end(&b, why);
	else if (b.x)
		store_abort(b.x);
	*ret_acted = b.acted;
	store_close(s);
	store_close(b.s);
	crash_step_free(&b.mine);
	story_free(&y);
	place_remove(&p);
	return r;
}

static int rig_fence(char why[CRASH_WHY])
{
	for (uint32_t i = 0; i < 2 * RIVALS; i++) {
		bool acted = true;

		for (uint64_t at = 1; acted; at++) {
			char inner[CRASH_WHY];

			if (fence_run(i % RIVALS, i / RIVALS, at, &acted, inner))
				return FAIL("%s before call %" PRIu64 "%s: %.450s",
					    i % RIVALS == RIVAL_NEW ? "a new launch"
								    : "a second daemon",
					    at, i / RIVALS ? ", going back" : "", inner);
		}
	}
	return 0;
}

/* --- two launches, truly at the same time --- */

struct racer {
	struct store *s;
	atomic_uint ncommitted;
};

static void *racer_run(void *arg)
{
	struct racer *a = arg;
	struct ckpt_err err;
	uint64_t step = 10;

	for (int r = 0; !r; step += 10) {
		struct crash_step c = { 0 };

		r = crash_save(a->s, step + 10, step, step, &c, &err);
		crash_step_free(&c);
		atomic_fetch_add(&a->ncommitted, 1u);
	}
	return NULL;
}

static int race_run(uint32_t round, char why[CRASH_WHY])
{
	cleanup_free struct store_step *before = NULL, *after = NULL;
	struct racer a = { .s = NULL };
	struct store *b = NULL;
	struct ckpt_err err = { 0 };
	uint64_t generation;
	uint32_t nbefore = 0, nafter = 0;
	pthread_t thread;
	struct place p;
	struct story y;
	int r;

	place_make(&p);
	crash_nrun++;
	r = story_base(p.fd, &y, 1, why);
	if (!r && (store_open(&io_ops_posix, p.fd, CRASH_JOB, true, &a.s, &err) ||
		   store_claim(a.s, 0, false, &generation, &err) ||
		   store_open(&io_ops_posix, p.fd, CRASH_JOB, true, &b, &err)))
		r = FAIL("%.500s", err.msg);
	if (!r && pthread_create(&thread, NULL, racer_run, &a))
		abort();
	if (!r) {
		while (atomic_load(&a.ncommitted) < round % 3)
			sched_yield();
		if (store_claim(b, 0, false, &generation, &err) ||
		    store_scan(b, false, &before, &nbefore, &err))
			r = FAIL("%.500s", err.msg);
		(void)pthread_join(thread, NULL); /* it ends by being fenced */
		if (!r && store_scan(b, true, &after, &nafter, &err))
			r = FAIL("%.500s", err.msg);
	}
	if (!r && nbefore != nafter)
		r = FAIL("%" PRIu32 " steps after the claim, %" PRIu32 " later", nbefore, nafter);
	for (uint32_t i = 0; !r && i < nafter; i++)
		if (memcmp(&before[i], &after[i], sizeof *after) != 0 ||
		    after[i].state != STORE_COMMITTED)
			r = FAIL("%s came after the claim of another launch", after[i].dir);
	store_close(a.s);
	store_close(b);
	story_free(&y);
	place_remove(&p);
	return r;
}

static int rig_race(char why[CRASH_WHY])
{
	for (uint32_t round = 0; round < 60; round++) {
		char inner[CRASH_WHY];

		if (race_run(round, inner))
			return FAIL("round %" PRIu32 ": %.500s", round, inner);
	}
	return 0;
}

const struct crash_rig crash_rigs[] = {
	{ "a launch is fenced at any call", false, rig_fence },
	{ "the process dies at any call", false, rig_kills },
	{ "any call fails", false, rig_faults },
	{ "power is lost at any moment", false, rig_power },
	{ "a sync fails, then power is lost", false, rig_power_sync_failed },
	{ "a death, a look, then power loss", false, rig_power_seen },
	{ "two launches race", true, rig_race },
};
const uint32_t crash_rigs_n = ARRAY_LEN(crash_rigs);
