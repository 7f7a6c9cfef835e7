/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_adopt.c - what ranks bring along to the next daemon is a step only when each of them brings
 * it.
 */
#include "tests/lib/procs.h"

TEST(what_one_rank_alone_brings_along_is_no_step)
{
	const struct proc_opts o = { .guard = CKPT_FINISH };
	struct proc r[2];

	procs_start(r, 2, o);
	train(r, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	/* The first rank's copy of step 2 is whole; the second rank has not come so far. */
	guard_all(r, 2);
	fill(r, 2, 2);
	assert_int_equal(snap(&r[0], 2, CKPT_PERSIST), 0);
	assert_int_equal(guard(&r[0]), 0);
	kill_9(D);
	D = daemon_start();
	assert_soon(reattached(r, 2, 1));
	train(r, 2, 3, CKPT_PERSIST, CKPT_COMMITTED);
	assert_false(remembers(&r[0], 2));
	assert_disk("1 3");
	assert_whole(3, &o, 2);
	all_leave(r, 2, D);
	assert_disk("1 3");
}

UNIT(.setup = procs_setup, .teardown = procs_teardown);
