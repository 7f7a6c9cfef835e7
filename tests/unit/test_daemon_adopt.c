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

UNIT(.setup = procs_setup, .teardown = procs_teardown);
