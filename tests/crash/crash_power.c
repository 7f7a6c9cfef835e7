/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_power.c - lives of a store that are recorded, and every disk that a power loss may leave of
 * them (tests/crash/README.md). crash_rigs.c judges.
 * Invariant: what is held against a state is what had been promised when the power went, kept by
 * number.
 */
#include "tests/crash/crash_impl.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include "tests/lib/libc.h"
#include "formats/native/native.h"

static _Atomic uint64_t names; /* of the fresh ones, the next */

static ssize_t names_random(void *buf, size_t len, unsigned flags)
{
	uint64_t next = atomic_load(&names);

	(void)flags;
	for (size_t i = 0; i < len; i++) {
		next = next * UINT64_C(6364136223846793005) + 1442695040888963407;
		((uint8_t *)buf)[i] = (uint8_t)(next >> 56);
	}
	atomic_store(&names, next | 1);
	return (ssize_t)len;
}

void crash_names_fixed(bool fixed)
{
	atomic_store(&names, 1);
	libc_instead.getrandom = fixed ? names_random : NULL;
	libc_instead.clock_gettime = fixed ? libc_fixed_time : NULL; /* marks say it */
}

struct crash_walks crash_walks = { .nrandom = 1 };

void power_promise(struct io_faults *f, struct power *w)
{
	if (w->npromise == PROMISES_MAX)
		abort();
	w->promise[w->npromise++] = w->y;
	if (w->npromise > 1 && f->record)
		io_record_promise(f->record, w->npromise - 1);
}

static int power_check(void *arg, int dirfd, const struct io_crash *at)
{
	struct power *w = arg;
	struct story y = w->y;

	crash_nrun++;
	memcpy(y.acked, w->promise[at->promise].acked, sizeof y.acked);
	y.generation = w->promise[at->promise].generation;
	return story_restart(at->ops, dirfd, &y, true, w->why);
}

void power_live(struct io_faults *f, int root_fd, const struct power_life *l, struct power *w)
{
	struct ckpt_err err = { 0 };
	uint32_t tries = 2;
	struct store *s;
	int r;

	if (store_open(&f->ops, &format_native, root_fd, CRASH_JOB, true, &s, &err))
		return;
	r = store_claim(s, 0, false, &w->y.generation, &err);
	if (!r)
		power_promise(f, w);
	for (uint32_t i = 0; !r && i < l->n;) {
		uint32_t at = w->y.n++;

		w->y.rewind = l->step[i][1];
		r = crash_save(s, l->step[i][0], at + 1, l->step[i][1], &w->y.step[at], &err);
		w->y.acked[at] = !r;
		if (!r) {
			i++;
			power_promise(f, w);
		} else if (--tries) {
			w->y.failed[at] = true;
			r = 0;
		}
	}
	store_close(s);
}

int power_walk_with(struct io_faults *f, struct io_crash_opts o,
		    int (*each)(void *arg, int dirfd, const struct io_crash *at), void *arg,
		    char why[CRASH_WHY])
{
	int r;

	o.seed = crash_seed;
	o.nrandom *= crash_walks.nrandom;
	o.every = crash_walks.every;
	o.memory = true;
	o.quiet = crash_walks.quiet;
	o.distinct = crash_walks.distinct;
	why[0] = 0;
	r = io_crash_states(f->record, &o, each, arg, NULL);
	if (r && !why[0])
		(void)snprintf(why, CRASH_WHY, "a state could not be made: %s", strerror(-r));
	return r != 0;
}

static int power_walk(struct io_faults *f, struct io_crash_opts o, struct power *w)
{
	return w->y.n ? power_walk_with(f, o, power_check, w, w->why) : 0;
}

/* fail: 0, or the number of the sync that fails. */
static int power_run(const struct power_life *l, uint64_t fail, bool *ret_hit, char why[CRASH_WHY])
{
	struct power w = { .why = why };
	struct io_faults f;
	struct place p;
	int r;

	place_make(&p);
	crash_nrun++;
	crash_names_fixed(true);
	io_faults_init(&f, &io_ops_posix);
	r = story_base(p.fd, &w.y, l->nbase, why);
	if (!r) {
		f.record = io_record_new(p.fd);
		power_promise(&f, &w);
		if (fail)
			io_faults_fail(&f, IO_ON_SYNC, fail, -EIO, false);
		power_live(&f, p.fd, l, &w);
		*ret_hit = io_faults_hit(&f);
		r = !*ret_hit && (!w.y.n || !w.y.acked[w.y.n - 1])
			    ? FAIL("it cannot be written")
			    : power_walk(&f,
					 (struct io_crash_opts){ .nrandom = l->nrandom,
								 .ntear = l->ntear },
					 &w);
		io_record_free(f.record);
	}
	crash_names_fixed(false);
	story_free(&w.y);
	place_remove(&p);
	return r;
}

static const struct power_life first_commit = { 0, 1, { { 10, UINT64_MAX } }, 24, 8 };
static const struct power_life over_older = { 1, 1, { { 20, 10 } }, 24, 8 };
static const struct power_life going_back = { 3, 1, { { 15, 10 } }, 24, 8 };
static const struct power_life whole_life = {
	0, 3, { { 10, UINT64_MAX }, { 20, 10 }, { 15, 10 } }, 24, 3
};

int rig_power(char why[CRASH_WHY])
{
	static const struct power_life *const life[] = { &whole_life, &first_commit, &over_older,
							 &going_back };
	bool hit;

	for (uint32_t i = 0; i < ARRAY_LEN(life); i++)
		if (power_run(life[i], 0, &hit, why))
			return 1;
	return 0;
}

int rig_power_sync_failed(char why[CRASH_WHY])
{
	static const struct power_life life[] = {
		{ 2, 1, { { 15, 10 } }, 2, 1 },
		{ 1, 2, { { 20, 10 }, { 30, 20 } }, 2, 1 },
		{ 0, 1, { { 10, UINT64_MAX } }, 2, 1 },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(life); i++) {
		bool hit = true;

		for (uint64_t nth = 1; hit; nth += MAX(crash_walks.every_run, 1u)) {
			char inner[CRASH_WHY];

			if (power_run(&life[i], nth, &hit, inner))
				return FAIL("sync %" PRIu64 " of life %" PRIu32 " failed: %.500s",
					    nth, i, inner);
		}
	}
	return 0;
}

/*
 * One process dies at its nth mutating call from the end, another one that had the store open
 * already claims and looks; then the power goes. What the second has seen must stay.
 */
static int power_seen_run(uint64_t back, char why[CRASH_WHY])
{
	struct power w = { .why = why };
	struct store *a = NULL, *b = NULL;
	struct ckpt_err err = { 0 };
	struct judgement seen;
	uint64_t generation, calls = 0;
	struct io_faults f, death; /* what the dead one called never reaches the recorder */
	struct place p;
	int r;

	place_make(&p);
	crash_nrun++;
	crash_names_fixed(true);
	io_faults_init(&f, &io_ops_posix);
	io_faults_init(&death, &f.ops);
	r = story_base(p.fd, &w.y, 1, why);
	if (!r && (store_open(&io_ops_posix, &format_native, p.fd, CRASH_JOB, true, &a, &err) ||
		   store_claim(a, 0, false, &w.y.generation, &err)))
		r = FAIL("%.500s", err.msg);
	for (uint32_t pass = 0; !r && pass < 2; pass++) { /* the first only counts */
		uint32_t at = w.y.n++;

		f.record = pass ? io_record_new(p.fd) : NULL;
		a->ops = &death.ops;
		if (pass)
			power_promise(&f, &w);
		if (pass && store_open(&f.ops, &format_native, p.fd, CRASH_JOB, true, &b, &err))
			r = FAIL("%.500s", err.msg);
		io_faults_count(&death, IO_ON_MUTATING);
		if (pass)
			io_faults_kill(&death, calls - back);
		w.y.rewind = 10 * (uint64_t)at;
		w.y.acked[at] = !crash_save(a, 10 * (uint64_t)at + 10, at + 1, w.y.rewind,
					    &w.y.step[at], &err);
		calls = io_faults_calls(&death);
	}
	if (!r && store_claim(b, 0, false, &generation, &err))
		r = FAIL("%.500s", err.msg);
	if (!r)
		r = story_look(b, &w.y, &seen, why);
	if (!r) {
		w.y.acked[2] = seen.listed[2];
		w.y.generation = generation;
		power_promise(&f, &w); /* told to whoever asked the second one */
		r = power_walk(&f, (struct io_crash_opts){ .nrandom = 2, .ntear = 1 }, &w);
	}
	crash_names_fixed(false);
	io_record_free(f.record);
	store_close(a);
	store_close(b);
	story_free(&w.y);
	place_remove(&p);
	return r;
}

int rig_power_seen(char why[CRASH_WHY])
{
	for (uint64_t back = 0; back < 3; back++) {
		char inner[CRASH_WHY];

		if (power_seen_run(back, inner))
			return FAIL("dead %" PRIu64 " calls before the end: %.500s", back, inner);
	}
	return 0;
}
