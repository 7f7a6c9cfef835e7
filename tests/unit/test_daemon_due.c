/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_due.c - which steps are written under persist_every: one that was torn, skipped or
 * could not be written is made up for; and what a rank hears that waits for one of which nobody
 * will write.
 */
#include "tests/lib/procs.h"

TEST(a_torn_step_that_was_to_be_written_costs_one_step)
{
	const struct proc_opts o = { .guard = CKPT_NEVER, .persist_every = 500, .words = 64 };

	procs_start(R, 2, o);
	train_staged(R, 2, 1, 499);
	stop(D); /* so that the copy cannot end */
	assert_int_equal(mark_all(R, 2, 500, 0), 0);
	assert_int_equal(guard(&R[0]), CKPT_TORN);
	assert_int_equal(guard(&R[1]), CKPT_TORN);
	go_on(D);
	train(R, 2, 501, 0, CKPT_COMMITTED);
	train_staged(R, 2, 502, 1000);
	train(R, 2, 1001, 0, CKPT_COMMITTED);
	assert_disk("501 1001");
	all_leave(R, 2, D);
}

TEST(one_that_another_rank_tore_costs_one_step_too)
{
	const struct proc_opts o = { .guard = CKPT_NEVER, .persist_every = 50, .words = 64 };

	procs_start(R, 2, o);
	train_staged(R, 2, 1, 49);
	stop(D);
	assert_int_equal(mark_all(R, 2, 50, 0), 0);
	assert_int_equal(guard(&R[1]), CKPT_TORN);
	go_on(D);
	assert_int_equal(wait_for(&R[0], 50, CKPT_STAGED), -ENOENT); /* the daemon has seen it */
	(void)guard(&R[0]);
	train(R, 2, 51, 0, CKPT_COMMITTED);
	assert_disk("51");
	all_leave(R, 2, D);
}

TEST(one_that_was_skipped_costs_one_step)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 10, .words = 64 };
	struct proc r;

	procs_start(&r, 1, o);
	train_staged(&r, 1, 1, 8);
	stop(D); /* no slot comes back */
	assert_int_equal(mark_all(&r, 1, 9, 0), 0);
	assert_int_equal(mark_all(&r, 1, 10, 0), CKPT_SKIPPED);
	go_on(D);
	train(&r, 1, 11, 0, CKPT_COMMITTED);
	train_staged(&r, 1, 12, 20);
	train(&r, 1, 21, 0, CKPT_COMMITTED);
	assert_disk("11 21");
	all_leave(&r, 1, D);
}

/* What is marked by hand is not made up for: its caller was told. It is not counted twice
 * either. */
TEST(a_step_that_was_marked_by_hand_pays_when_it_is_staged)
{
	const struct proc_opts o = { .guard = CKPT_NEVER, .persist_every = 10, .words = 64 };
	struct proc r;

	procs_start(&r, 1, o);
	train_staged(&r, 1, 1, 3);
	train(&r, 1, 4, CKPT_PERSIST, CKPT_COMMITTED);
	train_staged(&r, 1, 5, 6);
	stop(D);
	assert_int_equal(mark_all(&r, 1, 7, CKPT_PERSIST), 0);
	assert_int_equal(guard(&r), CKPT_TORN);
	go_on(D);
	train_staged(&r, 1, 8, 13);
	train(&r, 1, 14, 0, CKPT_COMMITTED);
	assert_disk("4 14");
	all_leave(&r, 1, D);
}

TEST(what_could_not_be_written_is_tried_again_after_1_2_4_marks)
{
	static const uint64_t tried[] = { 8, 9, 11, 15, 23, 31, 39 };
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 8, .words = 64 };
	struct proc r;
	uint32_t n = 0;

	procs_start(&r, 1, o);
	atomic_store(&faults->no_space, 1);
	for (uint64_t step = 1; step <= 40; step++) {
		int rc;

		if (step == 31)
			atomic_store(&faults->no_space, 0);
		assert_soon((rc = mark_all(&r, 1, step, 0)) == 0 || rc == CKPT_FAILING);
		rc = wait_for(&r, step, CKPT_COMMITTED);
		if (rc == -ENOENT) {
			assert_non_null(strstr(r.last.text, "persist_every is 8"));
		} else {
			assert_true(n < ARRAY_LEN(tried));
			assert_int_equal(step, tried[n++]);
			assert_int_equal(rc, step < 31 ? -ENOSPC : 0);
		}
		assert_int_equal(guard(&r), 0);
	}
	assert_int_equal(n, ARRAY_LEN(tried));
	assert_disk("31 39");
	all_leave(&r, 1, D);
}

/* Staged to be written, and lost with its daemon: neither written nor brought along. */
TEST(what_a_daemon_took_with_it_is_owed)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 10, .words = 64 };
	bool at_once;

	procs_start(R, 2, o);
	train_staged(R, 2, 1, 9);
	/* rank 1 has not come so far, so no next daemon stages it */
	assert_int_equal(mark_all(R, 1, 10, 0), 0);
	kill_9(D);
	(void)guard(&R[0]);
	D = daemon_start();
	assert_soon(reattached(R, 2, 1));
	/* The mark that gets the first slot may have been wanted a moment before it was known that
	 * nobody stages step 10: then the next step pays. */
	assert_soon(mark_all(R, 2, 11, 0) == 0);
	at_once = wait_all(R, 2, 11, CKPT_COMMITTED) == 0;
	guard_all(R, 2);
	if (!at_once)
		train(R, 2, 12, 0, CKPT_COMMITTED);
	assert_disk(at_once ? "11" : "12");
	all_leave(R, 2, D);
}

TEST(who_waits_for_a_step_that_nobody_will_write_hears_so_at_once)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 1000 };
	struct proc r;

	procs_start(&r, 1, o);
	for (int state_of = CKPT_PERSISTED; state_of <= CKPT_COMMITTED; state_of++) {
		uint64_t step = (uint64_t)state_of * 2;

		assert_soon(mark_all(&r, 1, step, 0) == 0);
		assert_int_equal(wait_for(&r, step, state_of), -ENOENT);
		assert_true(r.last.ns < AT_ONCE_NS);
		assert_non_null(strstr(r.last.text, "persist_every is 1000"));
		assert_int_equal(wait_for(&r, step, CKPT_STAGED), 0);
		guard(&r);
		assert_soon(mark_all(&r, 1, step + 1, CKPT_STAGE_ONLY) == 0);
		assert_int_equal(wait_for(&r, step + 1, state_of), -ENOENT);
		assert_true(r.last.ns < AT_ONCE_NS);
		assert_non_null(strstr(r.last.text, "CKPT_STAGE_ONLY"));
		guard(&r);
	}
	/* One that was ordered meanwhile is waited for: here by who stops the daemon. */
	train(&r, 1, 8, CKPT_STAGE_ONLY, CKPT_STAGED);
	assert_int_equal(wait_for(&r, 8, CKPT_COMMITTED), -ENOENT);
	atomic_store(&faults->hold, 1); /* the commit lists the directory */
	assert_int_equal(kill(D, SIGTERM), 0);
	assert_soon(atomic_load(&faults->held));
	bid(&r, (struct order){ .verb = WAIT, .step = 8, .state = CKPT_COMMITTED, .ns = PATIENCE });
	atomic_store(&faults->hold, 0);
	assert_int_equal(hear(&r), 0);
	assert_int_equal(WEXITSTATUS(child_end(D)), 0);
	assert_disk("8");
	proc_kill(&r);
}

/* Its library copies without the daemon, which is stopped while its ticket is pushed out. */
TEST(a_step_whose_ticket_the_daemon_did_not_see_is_not_waited_for)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .words = 64, .private_memory = true };
	struct proc r;

	procs_start(&r, 1, o);
	train(&r, 1, 1, 0, CKPT_COMMITTED);
	stop(D);
	assert_int_equal(mark_all(&r, 1, 2, 0), 0);
	assert_int_equal(guard(&r), 0);
	for (uint64_t step = 3; step < 14; step++)
		assert_int_equal(mark_all(&r, 1, step, 0), CKPT_SKIPPED);
	go_on(D);
	for (int is = CKPT_STAGED; is <= CKPT_COMMITTED; is++) {
		assert_int_equal(wait_for(&r, 2, is), -ENOENT);
		assert_true(r.last.ns < AT_ONCE_NS);
	}
	assert_non_null(strstr(r.last.text, "has not seen the step's ticket"));
	train(&r, 1, 14, 0, CKPT_COMMITTED);
	assert_disk("1 14");
	all_leave(&r, 1, D);
}

TEST(a_step_that_a_rank_skipped_without_a_ticket_is_not_waited_for)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .only_weights = true };

	procs_start(R, 2, o);
	train(R, 2, 1, 0, CKPT_COMMITTED);
	assert_int_equal(tell(&R[1], (struct order){ .verb = DECLARE_REST }), 0);
	assert_int_equal(snap(&R[0], 2, 0), 0);
	assert_int_equal(guard(&R[0]), 0);
	assert_int_equal(snap(&R[1], 2, 0), CKPT_SKIPPED);
	assert_int_equal(wait_for(&R[0], 2, CKPT_COMMITTED), -ENOENT);
	assert_true(R[0].last.ns < AT_ONCE_NS);
	assert_non_null(strstr(R[0].last.text, "must call ckpt_seal again"));
	assert_int_equal(tell(&R[0], (struct order){ .verb = DECLARE_REST }), 0);
	assert_int_equal(seal(R, 2), 0);
	train(R, 2, 3, 0, CKPT_COMMITTED);
	all_leave(R, 2, D);
}

/* It goes back to a step before the one that it skipped without a ticket. */
TEST(what_a_rank_skipped_before_it_sealed_tears_no_later_mark)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .only_weights = true };

	procs_start(R, 2, o);
	train(R, 2, 1, 0, CKPT_COMMITTED);
	assert_int_equal(tell(&R[1], (struct order){ .verb = DECLARE_REST }), 0);
	assert_int_equal(snap(&R[1], 9, 0), CKPT_SKIPPED);
	assert_int_equal(tell(&R[0], (struct order){ .verb = DECLARE_REST }), 0);
	assert_int_equal(seal(R, 2), 0);
	assert_int_equal(snap(&R[0], 2, 0), 0);
	assert_int_equal(guard(&R[0]), 0);
	assert_int_equal(tell(&R[0], (struct order){ .verb = WAIT,
						     .step = 2,
						     .state = CKPT_STAGED,
						     .ns = NS_PER_S / 2 }),
			 -ETIMEDOUT); /* it waits for the other rank */
	assert_int_equal(snap(&R[1], 2, 0), 0);
	assert_int_equal(guard(&R[1]), 0);
	assert_int_equal(wait_all(R, 2, 2, CKPT_COMMITTED), 0);
	all_leave(R, 2, D);
}

UNIT(.setup = procs_setup, .teardown = procs_teardown);
