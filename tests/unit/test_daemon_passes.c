/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_passes.c - steps in memory have sums, also if they are never written
 * (daemon/passes.h). The walks that make averages: test_daemon_average.c.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"

/* A mark, and the guard after it. */
static int step_guarded(uint64_t step, uint32_t flags)
{
	int rc = rank_step(&K, step, flags);

	if (!rank_took(rc))
		return rc;
	assert_int_equal(ckpt_guard(K.c, NULL), 0);
	return 0;
}

TEST(a_step_that_is_never_written_has_sums_when_the_daemon_is_idle)
{
	said_forget(&daemon_said);
	host_start(&H, NULL);
	open_one(&K, "sums", "fsdp=1", .guard = CKPT_FINISH, .rows = 3000);
	assert_int_equal(step_guarded(1, CKPT_STAGE_ONLY), 0);
	assert_int_equal(step_guarded(2, CKPT_STAGE_ONLY), 0);
	said_await(&daemon_said, "job sums step 2 has sums in memory");
	assert_soon(said_times(&daemon_said, "has sums in memory") == 1);
	/* Written later, with the same sums: every byte of it is verified. */
	rank_close(&K, 0);
	assert_soon(host_has(&H, "sums", 2));
	assert_string_equal(host_steps(&H, "sums"), "2");
}

UNIT(.setup = host_setup, .teardown = host_teardown);
