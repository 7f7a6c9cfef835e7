/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_adopt.c - what ranks bring along to the next daemon is a step only when each of them
 * brings it.
 */
#include "tests/lib/procs.h"

TEST(what_one_rank_alone_brings_along_is_no_step)
{
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	/* The first rank's copy of step 2 is whole; the second rank has not come so far. */
	guard_all(R, 2);
	fill(R, 2, 2);
	assert_int_equal(snap(&R[0], 2, CKPT_PERSIST), 0);
	assert_int_equal(guard(&R[0]), 0);
	kill_9(D);
	D = daemon_start();
	assert_soon(reattached(R, 2, 1));
	train(R, 2, 3, CKPT_PERSIST, CKPT_COMMITTED);
	assert_false(remembers(&R[0], 2));
	assert_disk("1 3");
	assert_whole(3, &finishing, 2);
	all_leave(R, 2, D);
	assert_disk("1 3");
}

/* Each rank's own loop: it does not go on without this step. 0: this rank is through. */
static int again(struct proc *r, int *rc, uint64_t step)
{
	if (*rc == CKPT_SKIPPED || *rc == CKPT_DETACHED)
		*rc = snap(r, step, CKPT_PERSIST);
	return *rc;
}

/* The first rank marks it while there is no daemon, and then while the next daemon still waits for
 * the second rank, which begins when the first one has been refused 100 times. */
TEST(a_step_that_is_marked_until_it_is_taken_is_taken_after_a_restart)
{
	int rc[2] = { CKPT_DETACHED, CKPT_DETACHED };
	uint32_t skipped = 0;
	uint64_t step = 2;

	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	stop(R[1].pid);
	kill_9(D);
	assert_soon(guard(&R[0]) >= 0 && snap(&R[0], step++, 0) == CKPT_DETACHED);
	guard_all(R, 1);
	fill(R, 1, 1000);
	for (uint32_t n = 0; n < 20; n++)
		assert_int_equal(again(&R[0], &rc[0], 1000), CKPT_DETACHED);
	D = daemon_start();
	assert_soon(reattached(R, 1, 1));
	for (; skipped < 100; skipped += rc[0] == CKPT_SKIPPED)
		if (again(&R[0], &rc[0], 1000) == 0)
			fail_msg("taken by one rank alone");
	go_on(R[1].pid);
	assert_soon(reattached(R, 2, 1));
	fill(&R[1], 1, 1000);
	assert_soon(again(&R[0], &rc[0], 1000) + again(&R[1], &rc[1], 1000) == 0);
	good(&R[0], wait_all(R, 2, 1000, CKPT_COMMITTED));
	guard_all(R, 2);
	assert_whole(1000, &finishing, 2);
	all_leave(R, 2, D);
	assert_disk("1 1000");
}

/* Both ranks restore the newest step, at once. Which one it was. */
static uint64_t restore_newest(void)
{
	for (uint32_t i = 0; i < 2; i++)
		bid(&R[i], (struct order){ .verb = RESTORE, .step = CKPT_LATEST });
	for (uint32_t i = 0; i < 2; i++)
		good(&R[i], hear(&R[i]));
	assert_int_equal(R[0].last.got.step, R[1].last.got.step);
	return R[0].last.got.step;
}

/* "Nothing to restore" would mean that the trainer starts at step 0. on_disk: or it would go back
 * to an older step. */
static void restore_early(bool on_disk)
{
	const uint64_t soon = NS_PER_S / 4;
	int rc, tries = 0;

	procs_start(R, 2, finishing);
	if (on_disk)
		train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train_staged(R, 2, 2, 2);
	fill(R, 2, 77);
	stop(R[1].pid);
	kill_9(D);
	D = daemon_start();
	assert_soon(reattached(R, 1, 1));
	do /* a daemon that is busy has not answered by then */
		rc = tell(&R[0],
			  (struct order){ .verb = RESTORE, .step = CKPT_LATEST, .ns = soon });
	while (rc == -ETIMEDOUT && !strstr(R[0].last.text, "rank 1") && ++tries < 100);
	assert_int_equal(rc, -ETIMEDOUT);
	assert_non_null(strstr(R[0].last.text, "rank 1"));
	go_on(R[1].pid);
	assert_soon(reattached(R, 2, 1));
	assert_int_equal(restore_newest(), 2);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(holds_all(&R[i], 2));
	all_leave(R, 2, D);
}

TEST(a_restore_does_not_say_that_there_is_nothing_while_ranks_bring_a_step_along)
{
	restore_early(false);
}

TEST(a_restore_takes_no_older_step_while_ranks_bring_a_newer_one_along)
{
	restore_early(true);
}

UNIT(.setup = procs_setup, .teardown = procs_teardown);
