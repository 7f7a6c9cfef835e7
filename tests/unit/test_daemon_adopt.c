/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_adopt.c - what ranks bring along to the next daemon is a step only when each of them brings
 * it.
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

UNIT(.setup = procs_setup, .teardown = procs_teardown);
