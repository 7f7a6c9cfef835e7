/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_changed.c - a step whose state a rank changes between ckpt_snapshot and ckpt_guard:
 * before the copier has begun, after it has passed, on one of two ranks, while the daemon dies. It
 * is never committed, whoever waits hears why, and training goes on. All of the state is changed,
 * so the 32 words find it.
 */
#include "tests/lib/procs.h"

static bool said_why(struct proc *r, const char *why)
{
	return strstr(r->last.text, why) &&
	       strstr(r->last.text, "after ckpt_snapshot and before ckpt_guard");
}

/* Changed by that rank; a copier that was stopped goes on when all is changed. */
static void changed_by(struct proc *r, uint32_t n, uint32_t who, pid_t stopped, uint64_t step,
		       uint32_t flags)
{
	char why[64];

	if (stopped)
		stop(stopped);
	assert_int_equal(mark_all(r, n, step, flags), 0);
	if (!stopped)
		assert_soon(remembers(&r[0], step));
	fill(&r[who], 1, step + 1000);
	if (stopped)
		go_on(stopped);
	for (uint32_t i = 0; i < n; i++)
		if (i != who && !stopped)
			assert_int_equal(guard(&r[i]), 0);
	assert_int_equal(guard(&r[who]), CKPT_TORN);
	for (uint32_t i = 0; i < n; i++)
		if (i != who && stopped)
			(void)guard(&r[i]);
	assert_int_equal(stats(&r[who])->torn, step / 2);
	(void)snprintf(why, sizeof why, "rank %u changed ", who);
	for (uint32_t i = 0; i < n; i++) {
		assert_soon(wait_for(&r[i], step, CKPT_STAGED) == -ENOENT);
		assert_true(said_why(&r[i], why));
		assert_int_equal(wait_for(&r[i], step, CKPT_COMMITTED), -ENOENT);
		assert_true(said_why(&r[i], why));
	}
}

static void whoever_changes_is_found(struct proc_opts o, uint32_t n)
{
	struct proc r[2];
	char disk[8];

	o.guard = CKPT_FINISH;
	procs_start(r, n, o);
	train(r, n, 1, 0, CKPT_COMMITTED);
	for (uint32_t how = 0; how < 2; how++) {
		changed_by(r, n, n - 1, how ? 0 : D, 2 + 2 * how, CKPT_PERSIST);
		train(r, n, 3 + 2 * how, 0, CKPT_COMMITTED);
		assert_whole(3 + 2 * how, &o, n);
	}
	(void)snprintf(disk, sizeof disk, "1 3 5");
	assert_disk(disk);
	all_leave(r, n, D);
	assert_disk(disk);
}

TEST(a_change_is_found_before_and_after_the_copier_passed)
{
	whoever_changes_is_found((struct proc_opts){ 0 }, 1);
}

TEST(in_private_memory_too)
{
	whoever_changes_is_found((struct proc_opts){ .private_memory = true }, 1);
}

TEST(one_rank_of_two_is_named_to_both)
{
	whoever_changes_is_found((struct proc_opts){ .check = 1 }, 2);
}

TEST(who_wants_no_comparison_gets_none)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .check = UINT32_MAX };
	struct proc r;

	procs_start(&r, 1, o);
	assert_int_equal(mark_all(&r, 1, 1, 0), 0);
	fill(&r, 1, 2);
	assert_int_equal(guard(&r), 0);
	all_leave(&r, 1, D);
}

/* It is staged, and the daemon dies before the guard has found it. */
TEST(a_changed_step_is_not_taken_over)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 1000 };
	char disk[32];
	uint64_t next;

	procs_start(R, 2, o);
	train(R, 2, 1, 0, CKPT_STAGED); /* they are known to guard */
	assert_int_equal(mark_all(R, 2, 2, 0), 0);
	assert_soon(remembers(&R[0], 2));
	kill_9(D);
	fill(&R[1], 1, 1000);
	assert_int_equal(guard(&R[1]), CKPT_TORN); /* before the next daemon is there */
	D = daemon_start();
	assert_soon(reattached(R, 2, 1));
	next = train_on(R, 2, 3);
	assert_false(remembers(&R[0], 2));

	train(R, 2, 100, 0, CKPT_STAGED);
	assert_int_equal(mark_all(R, 2, 101, 0), 0);
	assert_soon(remembers(&R[0], 101));
	kill_9(D);
	fill(&R[1], 1, 1000);
	D = daemon_start();
	assert_soon(reattached(R, 2, 2));
	assert_soon(remembers(&R[0], 101));
	assert_int_equal(guard(&R[1]), CKPT_TORN); /* after it has taken the step over */
	assert_soon(!remembers(&R[0], 101));
	assert_int_equal(guard(&R[0]), 0);
	(void)snprintf(disk, sizeof disk, "%" PRIu64, next);
	proc_leave(&R[0]); /* what is staged would be written now */
	proc_leave(&R[1]);
	daemon_leave(D);
	assert_disk(disk);
}

/* Its persist_every is paid by the next step. */
TEST(a_changed_step_is_made_up_for)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 10 };
	struct proc r;

	procs_start(&r, 1, o);
	train_staged(&r, 1, 1, 9);
	assert_int_equal(mark_all(&r, 1, 10, 0), 0);
	assert_soon(remembers(&r, 10));
	fill(&r, 1, 11);
	assert_int_equal(guard(&r), CKPT_TORN);
	train(&r, 1, 11, 0, CKPT_COMMITTED);
	all_leave(&r, 1, D);
	assert_disk("11");
}

UNIT(.setup = procs_setup, .teardown = procs_teardown);
