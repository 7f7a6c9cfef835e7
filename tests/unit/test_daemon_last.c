/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_last.c - ckpt_stop and ckpt_last: the ranks of a launch stop after the same step, and
 * no daemon that is stopped, killed or replaced makes them disagree.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <signal.h>

static struct rank R[3];

static void open_all(uint32_t n, const char *job)
{
	struct plan_of_job p = plan(job, n == 3 ? "fsdp=3" : "fsdp=2", .fresh = true);

	host_start(&H, NULL);
	ranks_open(R, n, &p);
}

static void daemon_replaced(uint32_t n, uint64_t times)
{
	host_kill(&H);
	host_start(&H, NULL);
	for (uint32_t r = 0; r < n; r++)
		must_reattach(&R[r], times);
}

TEST(the_last_step_is_the_one_after_the_highest_that_goes_on)
{
	open_all(3, "highest");
	assert_int_equal(ckpt_last(R[0].c, 4), 0);
	assert_int_equal(ckpt_last(R[1].c, 6), 0);
	assert_int_equal(ckpt_stop(R[2].c), 0);
	assert_int_equal(ckpt_last(R[2].c, 6), 0);
	assert_int_equal(ckpt_stop(R[1].c), 0); /* later ones change nothing */
	for (uint32_t r = 0; r < 3; r++) {
		assert_int_equal(ckpt_last(R[r].c, 5), 0);
		assert_int_equal(ckpt_last(R[r].c, 7), 1);
		assert_int_equal(ckpt_last(R[r].c, 8), 1);
	}
	ranks_close(R, 3);
}

TEST(the_first_step_is_the_last_if_nobody_has_begun_one)
{
	open_all(2, "first");
	assert_int_equal(ckpt_stop(R[1].c), 0);
	assert_int_equal(ckpt_last(R[0].c, 1001), 1);
	assert_int_equal(ckpt_last(R[1].c, 1001), 1);
	ranks_close(R, 2);
}

TEST(ranks_agree_while_they_change_daemons)
{
	open_all(2, "change");
	assert_int_equal(ckpt_last(R[0].c, 9), 0);
	assert_int_equal(ckpt_last(R[1].c, 8), 0);
	daemon_replaced(2, 1);
	assert_int_equal(ckpt_stop(R[1].c), 0); /* which knows of 8 alone */
	assert_int_equal(ckpt_last(R[1].c, 9), 0);
	assert_int_equal(ckpt_last(R[0].c, 10), 1);
	assert_int_equal(ckpt_last(R[1].c, 10), 1);
	daemon_replaced(2, 2); /* and the stop stays */
	assert_int_equal(ckpt_last(R[0].c, 9), 0);
	assert_int_equal(ckpt_last(R[1].c, 10), 1);
	ranks_close(R, 2);
}

TEST(ranks_agree_while_there_is_no_daemon)
{
	open_all(2, "none");
	assert_int_equal(ckpt_last(R[0].c, 3), 0);
	host_kill(&H);
	assert_int_equal(ckpt_last(R[0].c, 4), 0);
	assert_int_equal(ckpt_stop(R[1].c), 0);
	assert_int_equal(ckpt_last(R[1].c, 4), 0);
	assert_int_equal(ckpt_last(R[0].c, 5), 1);
	assert_int_equal(ckpt_last(R[1].c, 5), 1);
	host_start(&H, NULL);
	ranks_close(R, 2);
}

/* Attached, and never ready under the first daemon: each rank carries its word to the next. */
TEST(what_was_said_before_all_ranks_have_met_counts_afterwards)
{
	struct plan_of_job p = plan("before", "fsdp=2", .fresh = true);

	host_start(&H, NULL);
	must_attach(&R[0], &p, 0);
	must_attach(&R[1], &p, 1);
	assert_int_equal(ckpt_last(R[0].c, 20), 0);
	assert_int_equal(ckpt_stop(R[1].c), 0);
	daemon_replaced(2, 1);
	must_declare(&R[0]);
	must_declare(&R[1]);
	for (uint32_t i = 0; i < 2; i++)
		(void)rank_seal(&R[i], 0);
	must_seal(&R[0]);
	must_seal(&R[1]);
	assert_int_equal(ckpt_last(R[1].c, 20), 0);
	assert_int_equal(ckpt_last(R[0].c, 21), 1);
	assert_int_equal(ckpt_last(R[1].c, 21), 1);
	ranks_close(R, 2);
}

static void back_script(struct rank *k)
{
	for (uint64_t step = 1; step <= 4; step++) {
		MUST_BE(ckpt_last(k->c, step), 0);
		(void)ckpt_guard(k->c, NULL);
		rank_fill(k, step);
		step_to(k, step, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
	(void)ckpt_guard(k->c, NULL);
	must_restore(k, 4, CKPT_DRY_RUN);
	must_restore(k, 2, 0);
	if (k->rank == 0)
		MUST_BE(ckpt_last(k->c, 3), 0);
	rank_meet(k);
	if (k->rank == 1)
		MUST_BE(ckpt_stop(k->c), 0);
	rank_meet(k);
	MUST_BE(ckpt_last(k->c, 3), 0);
	MUST_BE(ckpt_last(k->c, 4), 1);
	rank_meet(k);
	must_restore(k, 2, 0); /* the stop stays, and begins anew too */
	MUST_BE(ckpt_last(k->c, 3), 1);
	rank_meet(k);
}

TEST(a_launch_that_goes_back_begins_anew_and_still_stops)
{
	host_start(&H, NULL);
	launch_of(plan("back", "fsdp=2", .fresh = true), back_script, NULL);
}

/* --- from a signal handler --- */
static ckpt *stopped;

static void on_signal(int sig)
{
	(void)sig;
	(void)ckpt_stop(stopped);
}

TEST(a_signal_handler_stops_all_ranks)
{
	uint64_t last = 0;

	open_all(2, "signal");
	stopped = R[1].c;
	assert_true(signal(SIGUSR2, on_signal) != SIG_ERR);
	for (uint64_t step = 1; !last; step++) {
		if (step == 5)
			raise(SIGUSR2);
		last = ckpt_last(R[0].c, step) ? step : 0;
		assert_int_equal(ckpt_last(R[1].c, step) == 1, last != 0);
	}
	assert_int_equal(last, 5);
	ranks_close(R, 2);
	assert_true(signal(SIGUSR2, SIG_DFL) != SIG_ERR);
}

TEST(without_a_daemon_a_rank_decides_for_itself)
{
	struct ckpt_opts o = { .size = sizeof o,
			       .job = "alone",
			       .store = H.store,
			       .socket = H.socket,
			       .world = 2,
			       .wait_ns = SEC / 10 };
	ckpt *c;

	assert_int_equal(ckpt_attach(&o, &c, NULL), 0);
	assert_int_equal(ckpt_last(c, 3), 0);
	assert_int_equal(ckpt_stop(c), 0);
	assert_int_equal(ckpt_last(c, 3), 0);
	assert_int_equal(ckpt_last(c, 4), 1);
	assert_int_equal(ckpt_last(c, UINT64_MAX), -EINVAL);
	assert_int_equal(ckpt_last(c, UINT64_C(1) << 55), -EINVAL);
	assert_int_equal(ckpt_last(NULL, 1), -EINVAL);
	assert_int_equal(ckpt_stop(NULL), -EINVAL);
	ckpt_detach(c, 0);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
