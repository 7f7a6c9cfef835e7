/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_again.c - ckpt_restore after snapshots: the launch goes back to an older step and
 * counts on from there, with the same numbers; what it has left behind comes back neither from
 * memory nor from disk.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <poll.h>
#include <stdatomic.h>

/* This step, of all ranks, with values that tell the lines apart: those of step * 10 + turn. */
static void must_train(struct rank *k, uint64_t step, uint64_t turn, uint32_t flags, int state)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = flags };
	int rc = CKPT_SKIPPED;

	for (int i = 0; i < 15 && rc > 0; i++) { /* one step is marked so often at most */
		if (i)
			(void)poll(NULL, 0, 20 << MIN(i, 6));
		(void)ckpt_guard(k->c, NULL);
		rank_fill(k, step * 10 + turn);
		rc = ckpt_snapshot(k->c, step, &mark);
	}
	MUST_BE(rc, 0);
	if (state)
		must_wait(k, step, state);
}

static void must_go_back(struct rank *k, uint64_t want, uint32_t flags, uint64_t step,
			 uint64_t turn, uint32_t where)
{
	(void)ckpt_guard(k->c, NULL);
	rank_clear(k);
	must_restore(k, want, flags);
	MUST_BE(k->got.step, step);
	MUST_BE(k->got.where, where);
	MUST(rank_check(k, step * 10 + turn));
	if (k->barrier)
		rank_meet(k);
}

/* --- lines --- */
static void twice_script(struct rank *k)
{
	for (uint64_t step = 1; step <= 3; step++)
		must_train(k, step, 0, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
	must_train(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	must_go_back(k, CKPT_LATEST, 0, 4, 0, 1); /* the newest staged */
	must_train(k, 5, 1, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
	must_go_back(k, 2, 0, 2, 0, 2); /* by its number, on disk */
	for (uint64_t step = 3; step <= 4; step++)
		must_train(k, step, 2, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
	if (k->rank == 0)
		MUST(!strcmp(host_steps(&H, k->plan->job), "1 2 3 ~3 4 ~5"));
	rank_meet(k);
	must_go_back(k, CKPT_LATEST, CKPT_FROM_DISK, 4, 2, 2);
	must_train(k, 5, 3, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_launch_goes_back_again_and_again_and_counts_on)
{
	host_start(&H, NULL);
	launch_of(plan("again1", "fsdp=1"), twice_script, NULL);
	launch_of(plan("again3", "fsdp=3"), twice_script, NULL);
	host_restart(&H);
	open_one(&K, "again1", "fsdp=1");
	must_restore(&K, CKPT_LATEST, 0);
	assert_int_equal(K.got.step, 5);
	assert_true(rank_check(&K, 53));
	rank_close(&K, 0);
}

/* What is left behind is not chosen before the new line has a commit, if it has a staged step. */
static void staged_script(struct rank *k)
{
	for (uint64_t step = 1; step <= 9; step++)
		must_train(k, step, 0, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
	must_go_back(k, 5, 0, 5, 0, 2);
	must_train(k, 6, 1, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	must_go_back(k, CKPT_LATEST, 0, 6, 1, 1);
	must_train(k, 7, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_guard(k);
}

TEST(a_staged_step_of_the_new_line_is_newer_than_what_was_left_behind)
{
	host_start(&H, NULL);
	launch_of(plan("newer", "fsdp=3"), staged_script, NULL);
	/* All have left: it was written, and the steps behind it are set aside. */
	assert_soon(!strcmp(host_steps(&H, "newer"), "1 2 3 4 5 ~6 7 ~7 ~8 ~9"));
}

/* The daemon may still read what ckpt_snapshot took by value. */
TEST(a_restore_that_only_checks_leaves_alone_what_is_copied)
{
	const struct part_of *p;
	uint8_t *taken, was;

	host_start(&H, NULL);
	open_one(&K, "checks", "fsdp=1");
	must_train(&K, 1, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_train(&K, 2, 0, CKPT_STAGE_ONLY, 0);
	p = K.c->by_value[0].part;
	taken = (uint8_t *)K.c->seg[p->seg].base + p->off;
	was = *taken;
	*(uint8_t *)p->ptr = (uint8_t)~was; /* VOLATILE: at any time */
	must_restore(&K, 1, CKPT_DRY_RUN);
	assert_int_equal(*taken, was);
	assert_int_equal(*(uint8_t *)p->ptr, (uint8_t)~was);
	must_wait(&K, 2, CKPT_STAGED);
	must_guard(&K);
	rank_close(&K, 0);
}

/* --- amid a write --- */
static void writing_script(struct rank *k)
{
	must_train(k, 1, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_train(k, 2, 0, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
	if (k->rank == 0)
		gate_set(&G, true);
	rank_meet(k);
	must_train(k, 3, 0, CKPT_PERSIST, CKPT_STAGED);
	must_guard(k);
	rank_meet(k);
	if (k->rank == 0)
		gate_await(&G);
	rank_meet(k);
	must_go_back(k, 1, 0, 1, 0, 2); /* while step 3 is written */
	MUST_BE(ckpt_wait(k->c, 3, CKPT_STAGED, PATIENCE, &k->err), -ENOENT);
	must_train(k, 2, 1, CKPT_PERSIST, CKPT_STAGED);
	must_guard(k);
	rank_meet(k);
	if (k->rank == 0)
		gate_set(&G, false);
	must_wait(k, 2, CKPT_COMMITTED);
	must_train(k, 3, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_step_that_is_being_written_is_left_behind)
{
	H.opts.engine = IO_AUTO;
	host_start_gated();
	launch_of(plan("writing", "fsdp=3"), writing_script, NULL);
	host_restart(&H);
	open_one(&K, "writing", "fsdp=1");
	must_restore(&K, CKPT_LATEST, 0);
	assert_int_equal(K.got.step, 3);
	assert_true(rank_check(&K, 31));
	rank_close(&K, 0);
}

/* --- the collective --- */
struct wait_for {
	_Atomic uint32_t marked, restored;
};

/* Rank 1 marks and trains on while the others wait in ckpt_restore: nothing of it is touched. */
static void late_script(struct rank *k)
{
	struct wait_for *w = k->arg;

	must_train(k, 1, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_guard(k);
	rank_meet(k);
	if (k->rank == 1) {
		rank_fill(k, 77);
		(void)poll(NULL, 0, 300);
		MUST(rank_check(k, 77));
		MUST_BE(atomic_load(&w->restored), 0);
	}
	must_restore(k, 1, 0);
	atomic_fetch_add(&w->restored, 1);
	MUST(rank_check(k, 10));
	rank_meet(k);
	must_train(k, 2, 0, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_launch_goes_back_when_every_rank_waits_and_not_before)
{
	struct wait_for w = { 0 };

	host_start(&H, NULL);
	launch_of(plan("late", "fsdp=2", .shared_only = true), late_script, &w);
}

static void dry_script(struct rank *k)
{
	struct ckpt_want want = { .size = sizeof want, .step = 1, .flags = CKPT_DRY_RUN };

	must_train(k, 1, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_train(k, 2, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	MUST_OF(k, rank_want(k, &want));
	MUST_BE(k->got.step, 1);
	MUST(rank_check(k, 20));
	MUST_BE(ckpt_snapshot(k->c, 2, NULL), -EINVAL); /* steps go on from 2 */
	must_train(k, 3, 0, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_dry_run_after_snapshots_changes_nothing)
{
	host_start(&H, NULL);
	launch_of(plan("dry", "fsdp=3"), dry_script, NULL);
	assert_string_equal(host_steps(&H, "dry"), "1 3");
}

/* After a restore that failed memory may be anything, also of a launch that has taken snapshots. */
TEST(a_failed_restore_stops_snapshots_until_one_succeeds)
{
	host_start(&H, NULL);
	open_one(&K, "fails", "fsdp=1");
	must_train(&K, 1, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_train(&K, 2, 0, CKPT_PERSIST, CKPT_COMMITTED);
	assert_int_equal(rank_restore(&K, 17, 0),
			 -ENOENT); /* not asked for the newest: as before */
	must_train(&K, 3, 0, CKPT_PERSIST, CKPT_COMMITTED);
	host_damage(&H, "fails", 1);
	assert_int_equal(rank_restore(&K, 1, 0), -EBADMSG);
	assert_int_equal(ckpt_snapshot(K.c, 4, NULL), -EUCLEAN);
	must_restore(&K, 2, 0);
	assert_true(rank_check(&K, 20));
	must_train(&K, 3, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

/* --- persist_every, CONST, and many times --- */
TEST(a_hundred_restores_of_one_launch)
{
	host_start(&H, NULL);
	open_one(&K, "hundred", "fsdp=1", .persist_every = 7);
	for (uint64_t i = 0; i < 100; i++) {
		must_train(&K, 1 + i % 3, i % 10, 0, CKPT_STAGED);
		must_go_back(&K, CKPT_LATEST, CKPT_FROM_MEMORY, 1 + i % 3, i % 10, 1);
		if (i % 3 == 2) {
			must_train(&K, 4, 0, CKPT_PERSIST, CKPT_COMMITTED);
			must_go_back(&K, 4, 0, 4, 0, 1);
			break;
		}
	}
	for (uint64_t i = 0; i < 100; i++) {
		must_train(&K, 5 + i, 1, 0, CKPT_STAGED);
		must_go_back(&K, CKPT_LATEST, 0, 5 + i, 1, 1);
	}
}

/* --- deaths --- */
/* The next daemon is told from where the line goes on: what the first one has left behind is not
 * continued. */
TEST(a_daemon_that_takes_over_goes_on_from_the_restored_step)
{
	host_start(&H, NULL);
	open_one(&K, "takes", "fsdp=1");
	for (uint64_t step = 1; step <= 6; step++)
		must_train(&K, step, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_go_back(&K, 3, 0, 3, 0, 2);
	host_kill(&H);
	host_start(&H, NULL);
	must_reattach(&K, 1);
	must_train(&K, 4, 1, CKPT_PERSIST, CKPT_COMMITTED);
	assert_string_equal(host_steps(&H, "takes"), "1 2 3 4 ~4 ~5 ~6");
	must_go_back(&K, CKPT_LATEST, CKPT_FROM_DISK, 4, 1, 2);
}

static void dies_script(struct rank *k)
{
	must_train(k, 1, 0, CKPT_PERSIST, CKPT_COMMITTED);
	must_guard(k);
	rank_meet(k);
	if (k->rank == 2) { /* the others wait in ckpt_restore */
		(void)poll(NULL, 0, 200);
		MUST_BE(ckpt_detach(TAKE(k->c), 0), 0);
	} else {
		MUST_BE(rank_restore(k, CKPT_LATEST, 0), -ECONNRESET);
		MUST_BE(ckpt_snapshot(k->c, 2, NULL), -EUCLEAN);
	}
}

TEST(a_rank_that_leaves_meanwhile_ends_the_restore_of_all)
{
	host_start(&H, NULL);
	launch_of(plan("dies", "fsdp=3"), dies_script, NULL);
}

static void nothing_script(struct rank *k)
{
	struct ckpt_mark mark = { .size = sizeof mark };

	if (k->rank == 1)
		rank_meet(k); /* the other one trains already */
	MUST_BE(rank_restore(k, CKPT_LATEST, 0), -ENOENT);
	if (k->rank == 0) {
		(void)ckpt_guard(k->c, NULL);
		MUST(rank_took(ckpt_snapshot(k->c, 1, &mark)));
		rank_meet(k);
	}
	rank_meet(k);
}

TEST(who_learns_late_that_there_is_nothing_does_not_wait_for_those_who_train)
{
	uint64_t began = now_ns();

	host_start(&H, NULL);
	launch_of(plan("nothing", "fsdp=2"), nothing_script, NULL);
	assert_true(now_ns() - began < PATIENCE);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
