/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_deaths.c - what becomes of steps when ranks and daemons are killed, stopped, or
 * followed by others. The invariant of every test: what is committed is whole and of its step, and
 * nobody waits for who is gone.
 */
#include "tests/lib/procs.h"

TEST(a_copy_is_finished_when_its_rank_is_killed_before_it_may_change)
{
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	stop(D);
	assert_int_equal(mark_all(R, 2, 2, CKPT_PERSIST), 0);
	proc_kill(&R[1]);
	go_on(D);
	good(&R[0], wait_for(&R[0], 2, CKPT_COMMITTED));
	assert_int_equal(guard(&R[0]), 0);
	assert_disk("1 2");
	assert_whole(2, &finishing, 2);
	/* Its launch cannot go on without it. */
	assert_int_equal(mark_all(R, 1, 3, CKPT_PERSIST), CKPT_SKIPPED);
}

TEST(a_step_of_a_killed_job_is_staged_and_salvaged_to_disk)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .words = 1u << 20 };

	procs_start(R, 2, o);
	train(R, 2, 1, CKPT_STAGE_ONLY, CKPT_STAGED);
	stop(D);
	assert_int_equal(mark_all(R, 2, 2, CKPT_STAGE_ONLY), 0);
	procs_kill(R, 2);
	go_on(D);
	/* Step 1 too, if the copies took longer than the news of the deaths. */
	assert_soon(disk_is("2") || disk_is("1 2"));
	assert_whole(2, &o, 2);
}

TEST(a_copy_is_torn_when_its_rank_is_killed_after_it_might_have_changed)
{
	const struct proc_opts o = { .guard = CKPT_NEVER };
	struct proc next;

	procs_start(R, 2, o);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	stop(D);
	assert_int_equal(mark_all(R, 2, 2, CKPT_PERSIST), 0);
	assert_int_equal(guard(&R[1]), CKPT_TORN);
	assert_true(R[1].last.ns < AT_ONCE_NS);
	fill(&R[1], 1, 3);
	procs_kill(R, 2);
	go_on(D);
	procs_start(&next, 1, (struct proc_opts){ .own_parent = true, .words = 8192 });
	good(&next, restore(&next, CKPT_LATEST, 0));
	assert_int_equal(next.last.got.step, 1);
	assert_true(holds_all(&next, 1));
	proc_kill(&next);
	daemon_leave(D);
	assert_disk("1");
}

TEST(a_step_that_a_rank_did_not_live_to_mark_is_dropped)
{
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	fill(R, 2, 2);
	assert_int_equal(snap(&R[0], 2, CKPT_PERSIST), 0);
	proc_kill(&R[1]);
	assert_int_equal(wait_for(&R[0], 2, CKPT_COMMITTED), -ENOENT);
	assert_non_null(strstr(R[0].last.text, "torn"));
	assert_true(guard(&R[0]) >= 0);
	assert_true(R[0].last.ns < AT_ONCE_NS);
	proc_kill(&R[0]);
	daemon_leave(D);
	assert_disk("1");
}

TEST(the_newest_staged_step_is_committed_when_all_ranks_die)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .persist_every = 1000 };

	procs_start(R, 3, o);
	train_staged(R, 3, 1, 5);
	assert_disk("");
	procs_kill(R, 3);
	assert_soon(disk_is("5"));
	assert_whole(5, &o, 3);
}

TEST(training_goes_on_without_the_daemon_and_the_next_one_takes_over)
{
	uint64_t step = 4;

	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	/* Staged, and not written: no guard was seen after it. */
	assert_int_equal(mark_all(R, 2, 2, CKPT_PERSIST), 0);
	assert_soon(stats(&R[0])->staged == 2);
	stop(D);
	guard_all(R, 2);
	assert_int_equal(mark_all(R, 2, 3, CKPT_PERSIST), 0);
	kill_9(D);
	assert_disk("1");
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(guard(&R[i]), CKPT_TORN);
		assert_true(R[i].last.ns < AT_ONCE_NS);
	}
	assert_soon(mark_all(R, 2, step++, CKPT_PERSIST) == CKPT_DETACHED);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(guard(&R[i]), 0);
		assert_true(R[i].last.ns < AT_ONCE_NS);
	}
	D = daemon_start();
	assert_soon(reattached(R, 2, 1));
	good(&R[0], wait_for(&R[0], 2, CKPT_COMMITTED));
	assert_whole(2, &finishing, 2);
	step = train_on(R, 2, step);
	assert_whole(step, &finishing, 2);
}

TEST(a_staged_step_outlives_two_daemons_in_a_row)
{
	procs_start(R, 2, finishing);
	for (uint64_t step = 1; step <= 2; step++)
		train(R, 2, step, CKPT_STAGE_ONLY, CKPT_STAGED);
	for (uint64_t death = 1; death <= 2; death++) {
		kill_9(D);
		D = daemon_start();
		assert_soon(reattached(R, 2, death));
		assert_soon(remembers(&R[0], 2));
	}
	procs_kill(R, 2);
	assert_soon(disk_is("2"));
	assert_whole(2, &finishing, 2);
}

/* Ranks have the result of their restores, and tell it to each other until all have one. */
static void all_agree(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		(void)hear(&R[i]);
		assert_true(R[i].last.agreeing);
	}
}

static void was_deserted(struct proc *r)
{
	assert_int_equal(hear(r), -ECONNRESET);
	assert_non_null(strstr(r->last.text, "has failed on rank"));
}

TEST(a_rank_does_not_wait_for_those_whose_restore_has_failed)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .agree = true, .generation = 1 };
	const struct order order = { .verb = RESTORE, .step = CKPT_LATEST, .ns = 3600 * NS_PER_S };
	struct order wrong = order;

	wrong.flags = CKPT_FROM_DISK | CKPT_FROM_MEMORY;
	procs_start(R, 3, o);
	train(R, 3, 1, CKPT_PERSIST, CKPT_COMMITTED);
	atomic_store(&faults->meeting, 1);
	for (uint32_t i = 0; i < 2; i++)
		bid(&R[i], order);
	kill_9(D);
	all_agree(2); /* and wait for rank 2 */
	D = daemon_start();
	assert_soon(reattached(&R[2], 1, 1));
	bid(&R[2], order);
	(void)hear(&R[2]);
	assert_true(R[2].last.agreeing);
	atomic_store(&faults->meeting, 0);
	was_deserted(&R[2]);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(hear(&R[i]), -ECONNRESET);
	/* A call that was wrong, too. */
	atomic_store(&faults->meeting, 1);
	bid(&R[0], order);
	bid(&R[1], wrong);
	bid(&R[2], order);
	all_agree(3);
	atomic_store(&faults->meeting, 0);
	was_deserted(&R[0]);
	assert_int_equal(hear(&R[1]), -EINVAL);
	was_deserted(&R[2]);
	/* All have failed equally often: none takes the next call for the one before. */
	for (uint32_t i = 0; i < 3; i++)
		bid(&R[i], order);
	all_agree(3);
	for (uint32_t i = 0; i < 3; i++) {
		good(&R[i], hear(&R[i]));
		assert_true(holds_all(&R[i], 1));
	}
}

TEST(who_was_in_a_failed_restore_is_waited_for_when_that_is_over)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .agree = true, .generation = 7 };
	const struct order order = { .verb = RESTORE, .step = CKPT_LATEST, .ns = 3600 * NS_PER_S };
	struct pollfd said = { .events = POLLIN };

	procs_start(R, 3, o);
	train(R, 3, 1, CKPT_PERSIST, CKPT_COMMITTED);
	for (uint32_t i = 0; i < 2; i++)
		bid(&R[i], order);
	kill_9(D);
	for (uint32_t i = 0; i < 2; i++)
		(void)hear(&R[i]);
	proc_kill(&R[2]);
	D = daemon_start();
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(hear(&R[i]), -ECONNRESET);
	/* The process in its place has not been in any restore, they have been in one. */
	proc_start(&R[2], R[2].o);
	proc_join(&R[2]);
	good(&R[2], seal(&R[2], 1));
	bid(&R[2], order);
	said.fd = R[2].sock;
	assert_int_equal(poll(&said, 1, 300), 0);
	for (uint32_t i = 0; i < 2; i++)
		bid(&R[i], order);
	for (uint32_t i = 0; i < 2; i++) {
		(void)hear(&R[i]);
		good(&R[i], hear(&R[i]));
		assert_true(holds_all(&R[i], 1));
	}
	(void)hear(&R[2]);
	assert_true(R[2].last.agreeing);
	proc_kill(&R[2]);
}

TEST(a_stopped_daemon_holds_nobody_and_goes_on_when_continued)
{
	const struct proc_opts o = { .world = 2, .guard = CKPT_FINISH };
	uint64_t step;

	proc_start(&R[0], o);
	proc_start(&R[1], (struct proc_opts){ .rank = 1,
					      .world = 2,
					      .guard = CKPT_BOUNDED,
					      .guard_ns = 5 * NS_PER_MS });
	for (uint32_t i = 0; i < 2; i++) {
		proc_join(&R[i]);
	}
	good(&R[0], seal(R, 2));
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	stop(D);
	assert_int_equal(mark_all(R, 2, 2, CKPT_PERSIST), 0);
	assert_int_equal(guard(&R[1]), CKPT_TORN);
	assert_true(R[1].last.ns >= 5 * NS_PER_MS && R[1].last.ns < AT_ONCE_NS);
	assert_int_equal(guard(&R[0]), CKPT_TORN);
	assert_true(R[0].last.ns < 25 * NS_PER_S);
	assert_int_equal(mark_all(R, 2, 3, CKPT_PERSIST), CKPT_DETACHED);
	guard_all(R, 2);
	/* A request that was not answered breaks the connection of this one rank. */
	assert_int_equal(tell(&R[0], (struct order){ .verb = STEPS }), -ETIMEDOUT);
	assert_true(R[0].last.ns < AT_ONCE_NS);
	go_on(D);
	step = train_on(R, 2, 4);
	assert_whole(step, &o, 2);
	step = train_on(R, 2, step + 1);
	assert_whole(step, &o, 2);
}

TEST(a_newer_launch_fences_the_older_one)
{
	struct proc old[2], new, given, late;
	uint64_t step = 3;

	/* One parent: one launch. */
	procs_start(old, 2, finishing);
	train(old, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train(old, 2, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	/* Another parent: another launch, which has to wait until this one has ended. */
	proc_start(&new, (struct proc_opts){ .own_parent = true });
	assert_int_equal(tell(&new, (struct order){ .verb = ATTACH }), -EBUSY);
	assert_non_null(strstr(new.last.text, "its newest step is 2, marked "));
	proc_kill(&new);
	/* What belongs together by its numbers takes over. */
	procs_start(&new, 1,
		    (struct proc_opts){ .generation = 60, .guard = CKPT_FINISH, .words = 8192 });
	for (uint32_t i = 0; i < 2; i++)
		assert_soon(snap(&old[i], step++, 0) == -ESTALE);
	good(&new, restore(&new, CKPT_LATEST, 0));
	assert_int_equal(new.last.got.step, 2);
	assert_int_equal(new.last.got.where, 1);
	assert_true(holds_all(&new, 2));
	train(&new, 1, 3, CKPT_PERSIST, CKPT_COMMITTED);
	/* A higher generation, whoever the parent. */
	procs_start(&given, 1,
		    (struct proc_opts){ .generation = 70, .guard = CKPT_FINISH, .words = 8192 });
	assert_soon(snap(&new, 100, 0) == -ESTALE);
	proc_start(&late, (struct proc_opts){ .generation = 69 });
	assert_int_equal(tell(&late, (struct order){ .verb = ATTACH }), -ESTALE);
	good(&given, restore(&given, 3, 0));
	train(&given, 1, 4, CKPT_PERSIST, CKPT_COMMITTED);
	/* Step 2 too: what is staged and newest is written when its launch ends. */
	assert_disk("1 2 3 4");
}

TEST(the_socket_of_another_user_is_refused)
{
	const struct proc_opts o = { .uid = NOBODY };
	struct proc r;

	if (geteuid() != 0) {
		print_message("needs root, to be somebody else\n");
		skip();
	}
	assert_int_equal(chmod(H.store, 0777), 0);
	for (int open_to_all = 0; open_to_all < 2; open_to_all++) {
		if (open_to_all)
			assert_int_equal(chmod(H.socket, 0777), 0);
		proc_start(&r, o);
		assert_int_equal(tell(&r, (struct order){ .verb = ATTACH }), -EACCES);
		assert_non_null(strstr(r.last.text, H.socket));
		proc_kill(&r);
	}
	procs_start(&r, 1, (struct proc_opts){ 0 });
}

TEST(the_daemon_turns_other_users_away)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct pollfd p = { .events = POLLIN };
	char byte;
	pid_t pid;

	if (geteuid() != 0) {
		print_message("needs root, to be somebody else\n");
		skip();
	}
	assert_int_equal(chmod(H.socket, 0777), 0);
	(void)snprintf(a.sun_path, sizeof a.sun_path, "%s", H.socket);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		p.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (setuid(NOBODY) < 0 || connect(p.fd, (struct sockaddr *)&a, sizeof a) < 0 ||
		    poll(&p, 1, 5000) != 1)
			_exit(1);
		_exit(recv(p.fd, &byte, 1, 0) == 0 ? 0 : 2); /* closed without a word */
	}
	child_keep(pid);
	assert_int_equal(child_end(pid), 0);
}

TEST(sigterm_drains_and_a_second_daemon_is_refused)
{
	pid_t second;

	assert_int_equal(daemon_try(&second), -EADDRINUSE);
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train(R, 2, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	assert_disk("1");
	daemon_leave(D);
	assert_disk("1 2");
	assert_whole(2, &finishing, 2);
	assert_soon(snap(&R[0], 3, 0) == CKPT_DETACHED);
	D = daemon_start();
	assert_int_equal(daemon_try(&second), -EADDRINUSE);
	assert_whole(train_on(R, 2, 4), &finishing, 2);
}

UNIT(.setup = procs_setup, .teardown = procs_teardown);
