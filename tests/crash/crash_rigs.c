/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_rigs.c - see crash_rigs.h. Every run has a store of its own.
 */
#include "tests/crash/crash_impl.h"
#include "formats/native/native.h"
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

uint64_t crash_seed = 1, crash_nrun;

void crash_seed_set(uint64_t seed)
{
	crash_seed = seed;
}

uint64_t crash_runs(void)
{
	return crash_nrun;
}

int rig_fail(char why[CRASH_WHY], const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(why, CRASH_WHY, fmt, ap);
	va_end(ap);
	return 1;
}

void story_free(struct story *y)
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

const struct store_step *scan_find(const struct store_step *st, uint32_t n, enum store_state state,
				   uint64_t step, uint64_t seq)
{
	for (uint32_t i = 0; i < n; i++)
		if (st[i].state == state && st[i].step == step && st[i].seq == seq)
			return &st[i];
	return NULL;
}

int story_look(const struct store *s, const struct story *y, struct judgement *ret,
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

	if (!y->n)
		return 0;
	for (uint32_t i = 0; i < y->n; i++) {
		uint64_t step = y->step[i].step;

		if (y->failed[i])
			continue;
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

int crash_leftover(void *arg, const char *name, unsigned char d_type)
{
	(void)d_type;
	if (strncmp(name, ".tmp-", 5) != 0 && strncmp(name, ".trash-", 7) != 0)
		return 0;
	(void)snprintf(arg, CRASH_WHY, "%s is left over", name);
	return 1;
}

int story_restart(const struct io_ops *ops, int root_fd, const struct story *y, bool torn,
		  char why[CRASH_WHY])
{
	struct judgement first, j;
	struct ckpt_err err = { 0 };
	uint64_t generation, highest = y->generation;
	struct store *s;
	int r = 0;

	if (store_open(ops, &format_native, root_fd, CRASH_JOB, false, &s, &err)) {
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
		if (store_open(ops, &format_native, root_fd, CRASH_JOB, true, &s, &err))
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
			r = s->ops->list(s->ops->ctx, s->job_fd, crash_leftover, why);
		highest = generation;
		store_close(s);
	}
	return r;
}

/* --- running --- */

int story_base(int root_fd, struct story *y, uint32_t n, char why[CRASH_WHY])
{
	struct ckpt_err err = { 0 };
	struct store *s;
	int r;

	*y = (struct story){ .n = n, .rewind = UINT64_MAX };
	r = store_open(&io_ops_posix, &format_native, root_fd, CRASH_JOB, true, &s, &err);
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

int story_save(const struct io_ops *ops, int root_fd, struct story *y, bool back,
	       struct ckpt_err *err)
{
	uint64_t generation = 0;
	struct store *s;
	int r = store_open(ops, &format_native, root_fd, CRASH_JOB, true, &s, err);

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
		r = story_restart(&io_ops_posix, p.fd, &y, k->sticky, why);
	if (!r && saved && !unknown && y.n == (back ? 4u : 2u)) {
		struct store s = { .ops = &io_ops_posix, .format = &format_native, .root_fd = -1 };
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
	uint64_t by = MAX(crash_walks.every_run, 1u);

	for (uint32_t back = 0; back < 2; back++) {
		for (uint32_t k = 0; k < ARRAY_LEN(fault_kinds); k++) {
			bool hit = true;

			for (uint64_t nth = 1 + k % by; hit; nth += by) {
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
		r = story_restart(&io_ops_posix, p.fd, &y, true, why);
	}
	if (!r &&
	    (store_open(&io_ops_posix, &format_native, p.fd, CRASH_JOB, true, &s, &err) ||
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
	uint64_t by = MAX(crash_walks.every_run, 1u);

	for (uint32_t back = 0; back < 2; back++) {
		bool hit = true;

		for (uint64_t nth = 1 + back % by; hit; nth += by) {
			char inner[CRASH_WHY];

			if (kill_run(nth, back, &hit, inner))
				return FAIL("dead at mutating call %" PRIu64 "%s: %.450s", nth,
					    back ? ", going back" : "", inner);
		}
	}
	return 0;
}

/* --- two launches --- */

/* Before its at-th call of these, another one acts. */
#define HOOKED                                                                               \
	(IO_ON_OPEN | IO_ON_WRITE | IO_ON_SYNC | IO_ON_MKDIR | IO_ON_RENAME | IO_ON_UNLINK | \
	 IO_ON_LIST)

struct hook {
	struct io_faults f;
	uint64_t calls, at;
	void (*act)(void *arg);
	void *arg;
};

static void hook_tick(void *arg, uint32_t classes)
{
	struct hook *h = arg;

	if ((classes & HOOKED) && ++h->calls == h->at)
		h->act(h->arg);
}

static void hook_init(struct hook *h, uint64_t at, void (*act)(void *arg), void *arg)
{
	*h = (struct hook){ .at = at, .act = act, .arg = arg };
	io_faults_init(&h->f, &io_ops_posix);
	h->f.on_call = hook_tick;
	h->f.on_call_arg = h;
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
	if (store_open(&io_ops_posix, &format_native, b->root_fd, CRASH_JOB, true, &b->s,
		       &b->err) ||
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

/* The first writes step 20 after 10, or goes back and writes 15; the second acts before its
 * call. */
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
	if (!r && (store_open(&h.f.ops, &format_native, p.fd, CRASH_JOB, true, &s, &err) ||
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
	uint64_t by = MAX(crash_walks.every_run, 1u);

	for (uint32_t i = 0; i < 2 * RIVALS; i++) {
		bool acted = true;

		for (uint64_t at = 1 + i % by; acted; at += by) {
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
	if (!r && (store_open(&io_ops_posix, &format_native, p.fd, CRASH_JOB, true, &a.s, &err) ||
		   store_claim(a.s, 0, false, &generation, &err) ||
		   store_open(&io_ops_posix, &format_native, p.fd, CRASH_JOB, true, &b, &err)))
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
	for (uint32_t round = 0; round < 60 / MAX(crash_walks.every_run, 1u); round++) {
		char inner[CRASH_WHY];

		if (race_run(round, inner))
			return FAIL("round %" PRIu32 ": %.500s", round, inner);
	}
	return 0;
}

const struct crash_rig crash_rigs[] = {
	{ "a launch is fenced at any call", false, false, rig_fence },
	{ "the process dies at any call", false, false, rig_kills },
	{ "any call fails", false, false, rig_faults },
	{ "power is lost at any moment", false, true, rig_power },
	{ "a sync fails, then power is lost", false, true, rig_power_sync_failed },
	{ "a death, a look, then power loss", false, true, rig_power_seen },
	{ "the process dies at every named point", false, false, rig_points },
	{ "power is lost while a house is kept", false, true, rig_power_scenes },
	{ "two launches race", true, false, rig_race },
};
const uint32_t crash_rigs_n = ARRAY_LEN(crash_rigs);
