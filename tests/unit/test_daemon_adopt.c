/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_adopt.c - what ranks bring along to the next daemon is a step only when each of them brings
 * it.
 */
#include "tests/unit/test_daemon_rig.h"

TEST(what_one_rank_alone_brings_along_is_no_step)
{
	const struct rank_opts o = { .guard = CKPT_FINISH };
	pid_t d = daemon_start();
	struct rank r[2];

	ranks_start(r, 2, o);
	train(r, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	/* The first rank's copy of step 2 is whole; the second rank has not come so far. */
	guard_all(r, 2);
	fill(r, 2, 2);
	assert_int_equal(snap(&r[0], 2, CKPT_PERSIST), 0);
	assert_int_equal(guard(&r[0]), 0);
	kill_9(d);
	d = daemon_start();
	assert_soon(stats(&r[0])->reattached == 1 && stats(&r[1])->reattached == 1);
	train(r, 2, 3, CKPT_PERSIST, CKPT_COMMITTED);
	assert_false(in_memory(&r[0], 2));
	assert_string_equal(on_disk(), "1 3");
	assert_whole(3, &o, 2);
	rank_leave(&r[0]);
	rank_leave(&r[1]);
	daemon_leave(d);
	assert_string_equal(on_disk(), "1 3");
}

UNIT(.setup = rig_setup, .teardown = rig_teardown);
