/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_review.c - steps that were lost, memory that was overwritten and calls that never
 * came back before they were looked for: each test failed once. Called as "ckptd" with
 * --background, this program is a daemon that a rank starts.
 */
#include "tests/lib/procs.h"

/* What a stopped daemon may cost: its beat is missed after 5 s. */
#define STOPPED_NS (25 * NS_PER_S)

/* --- memory of the trainer --- */
TEST(memory_that_a_restore_is_not_asked_for_stays)
{
	const struct proc_opts o = { .guard = CKPT_FINISH, .private_memory = true };
	struct proc r;

	procs_start(&r, 1, o);
	train(&r, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	proc_leave(&r);
	for (uint32_t own = 0; own < 2; own++) {
		for (uint32_t flags = 0; flags <= CKPT_FROM_DISK; flags += CKPT_FROM_DISK) {
			procs_start(&r, 1, (struct proc_opts){ .private_memory = own });
			fill(&r, 1, 7);
			good(&r, tell(&r, (struct order){ .verb = RESTORE,
							  .step = CKPT_LATEST,
							  .flags = flags,
							  .only = "model" }));
			assert_true(holds(&r, WEIGHTS, 1));
			assert_true(holds(&r, MOMENTS, 7));
			proc_leave(&r);
		}
	}
}

TEST(memory_that_the_checkpoint_lacks_stays_when_lenient)
{
	struct proc r;

	procs_start(&r, 1, (struct proc_opts){ .guard = CKPT_FINISH, .only_weights = true });
	train(&r, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	proc_leave(&r);
	for (uint32_t own = 0; own < 2; own++) {
		procs_start(&r, 1, (struct proc_opts){ .private_memory = own });
		fill(&r, 1, 7);
		assert_int_equal(restore(&r, CKPT_LATEST, 0), -EMEDIUMTYPE);
		assert_true(holds_all(&r, 7));
		good(&r, restore(&r, CKPT_LATEST, CKPT_LENIENT));
		assert_int_equal(r.last.got.nmissing, 1);
		assert_true(holds(&r, WEIGHTS, 1));
		assert_true(holds(&r, MOMENTS, 7));
		proc_leave(&r);
	}
}

/* --- one daemon after the other --- */
TEST(slots_that_are_taken_over_keep_the_order_of_their_steps)
{
	struct proc r;

	procs_start(&r, 1, finishing);
	/* Slot 0 has step 3, slot 1 has step 2. */
	for (uint64_t step = 1; step <= 3; step++)
		train(&r, 1, step, CKPT_STAGE_ONLY, CKPT_STAGED);
	kill_9(D);
	D = daemon_start();
	assert_soon(stats(&r)->reattached == 1);
	assert_soon(remembers(&r, 3) || remembers(&r, 2));
	assert_true(remembers(&r, 3));
	proc_kill(&r);
	assert_soon(disk_is("3"));
	assert_whole(3, &finishing, 1);
}

TEST(a_daemon_that_not_all_ranks_met_takes_no_step_with_it)
{
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train(R, 2, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	stop(R[1].pid);
	kill_9(D);
	D = daemon_start();
	assert_soon(stats(&R[0])->reattached == 1);
	kill_9(D);
	go_on(R[1].pid);
	D = daemon_start();
	assert_soon(stats(&R[0])->reattached == 2 && stats(&R[1])->reattached >= 1);
	assert_soon(remembers(&R[0], 2));
	procs_kill(R, 2);
	assert_soon(disk_is("1 2"));
	assert_whole(2, &finishing, 2);
}

TEST(a_daemon_that_dies_while_the_ranks_agree_sets_no_older_step_aside)
{
	struct proc r;

	procs_start(&r, 1, finishing);
	for (uint64_t step = 1; step <= 3; step++)
		train(&r, 1, step, CKPT_PERSIST, CKPT_COMMITTED);
	proc_leave(&r);
	procs_start(&r, 1, (struct proc_opts){ .guard = CKPT_FINISH, .agree = true });
	bid(&r, (struct order){ .verb = RESTORE, .step = 2, .flags = CKPT_FROM_DISK });
	good(&r, hear(&r));
	assert_true(r.last.agreeing);
	kill_9(D);
	D = daemon_start();
	good(&r, hear(&r)); /* it has attached to the next one */
	assert_false(r.last.agreeing);
	assert_int_equal(r.last.got.step, 2);
	assert_true(holds_all(&r, 2));
	train(&r, 1, 4, CKPT_PERSIST, CKPT_COMMITTED);
	assert_disk("1 2 ~3 4");
	assert_whole(4, &finishing, 1);
	all_leave(&r, 1, D);
}

/* --- guards --- */
TEST(a_step_that_no_guard_followed_is_never_committed)
{
	const struct order later = { .verb = WAIT, .step = 1000, .state = CKPT_COMMITTED };
	struct proc r;

	procs_start(&r, 1, finishing);
	train(&r, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	/* Trusted so far, so it is staged; to wait for a later step is no guard. */
	assert_int_equal(mark_all(&r, 1, 2, CKPT_PERSIST), 0);
	assert_soon(stats(&r)->staged == 2);
	assert_true(tell(&r, later) < 0);
	fill(&r, 1, 99);
	assert_int_equal(mark_all(&r, 1, 3, CKPT_PERSIST), 0);
	assert_int_equal(stats(&r)->unguarded, 1);
	good(&r, wait_for(&r, 3, CKPT_COMMITTED));
	assert_int_equal(guard(&r), 0);
	assert_int_equal(wait_for(&r, 2, CKPT_COMMITTED), -ENOENT);
	assert_disk("1 3");
	assert_whole(3, &finishing, 1);
	all_leave(&r, 1, D);
	assert_disk("1 3");
}

/* --- restores and seals that failed once --- */
TEST(a_restore_that_came_to_nothing_does_not_choose_for_the_next)
{
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train(R, 2, 2, CKPT_PERSIST, CKPT_COMMITTED);
	proc_leave(&R[0]);
	proc_leave(&R[1]);
	procs_start(R, 2, finishing);
	assert_int_equal(tell(&R[0], (struct order){ .verb = RESTORE, .step = 1, .ns = 1 }),
			 -ETIMEDOUT);
	assert_non_null(strstr(R[0].last.text, "rank 1"));
	for (uint32_t i = 0; i < 2; i++)
		bid(&R[i], (struct order){ .verb = RESTORE, .step = i ? CKPT_LATEST : 1 });
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(hear(&R[i]), -EINVAL);
	for (uint32_t i = 0; i < 2; i++)
		bid(&R[i], (struct order){ .verb = RESTORE, .step = CKPT_LATEST });
	for (uint32_t i = 0; i < 2; i++) {
		good(&R[i], hear(&R[i]));
		assert_int_equal(R[i].last.got.step, 2);
		assert_true(holds_all(&R[i], 2));
	}
}

TEST(a_seal_that_was_refused_can_be_corrected)
{
	const struct proc_opts o = { .world = 2, .guard = CKPT_FINISH };

	proc_start(&R[0], o);
	proc_start(&R[1],
		   (struct proc_opts){
			   .rank = 1, .world = 2, .guard = CKPT_FINISH, .only_weights = true });
	for (uint32_t i = 0; i < 2; i++) {
		proc_join(&R[i]);
	}
	/* Half of a tensor is declared by nobody; and once more, with nothing corrected. */
	for (int again = 0; again < 2; again++) {
		assert_int_equal(seal(R, 2), -EINVAL);
		for (uint32_t i = 0; i < 2; i++) {
			assert_int_equal(R[i].last.rc, -EINVAL);
			assert_non_null(strstr(R[i].last.text, tensor_name[MOMENTS]));
		}
	}
	good(&R[1], tell(&R[1], (struct order){ .verb = DECLARE_REST }));
	good(&R[0], seal(R, 2));
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	assert_whole(1, &o, 2);
}

TEST(a_restore_ends_when_the_daemon_is_stopped)
{
	struct proc r;

	procs_start(&r, 1, finishing);
	train(&r, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	proc_leave(&r);
	procs_start(&r, 1, finishing);
	stop(D);
	assert_int_equal(restore(&r, CKPT_LATEST, 0), -ETIMEDOUT);
	assert_true(r.last.ns < STOPPED_NS);
	/* It reads the request when it goes on, and must not write into what is the trainer's
	 * again. */
	fill(&r, 1, 7);
	go_on(D);
	assert_soon(stats(&r)->reattached == 1);
	assert_false(within(NS_PER_S / 4, !holds(&r, WEIGHTS, 7) || !holds(&r, MOMENTS, 7)));
	assert_soon(restore(&r, CKPT_LATEST, 0) == 0);
	assert_true(holds_all(&r, 1));
}

/* --- the daemon's own life --- */
TEST(a_request_that_is_under_way_when_its_launch_ends_harms_nobody)
{
	struct proc old, new;

	for (int again = 0; again < 2; again++) {
		procs_start(&old, 1, (struct proc_opts){ .own_parent = true });
		atomic_store(&faults->held, 0);
		atomic_store(&faults->hold, 1);
		bid(&old, (struct order){ .verb = STEPS });
		assert_soon(atomic_load(&faults->held));
		procs_start(&new, 1,
			    (struct proc_opts){ .generation = 70u * (1 + (uint32_t)again),
						.fresh = true });
		atomic_store(&faults->hold, 0);
		(void)hear(&old);
		assert_soon(snap(&old, 1, 0) == -ESTALE);
		train(&new, 1, again ? 2 : 1, CKPT_PERSIST, CKPT_COMMITTED);
		proc_kill(&old);
		proc_kill(&new);
	}
}

TEST(a_daemon_leaves_in_order_with_a_step_that_it_cannot_write)
{
	procs_start(R, 2, finishing);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	atomic_store(&faults->no_space, 1);
	assert_int_equal(mark_all(R, 2, 2, CKPT_PERSIST), 0);
	guard_all(R, 2); /* nothing is written before */
	assert_int_equal(wait_for(&R[0], 2, CKPT_COMMITTED), -ENOSPC);
	daemon_leave(D);
	assert_disk("1");
	/* The ranks still have it. */
	atomic_store(&faults->no_space, 0);
	D = daemon_start();
	assert_soon(reattached(R, 2, 1));
	good(&R[0], wait_for(&R[0], 2, CKPT_COMMITTED));
	assert_whole(2, &finishing, 2);
}

/* --- a daemon that a rank starts --- */
/* The first one listens, and dies when it is spoken to. */
static void die_at_hello(const char *path, int say)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	uint8_t bytes[4096];
	int rc = 0, sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), peer;

	(void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	if (bind(sock, (struct sockaddr *)&a, sizeof a) < 0 || listen(sock, 8) < 0 ||
	    write(say, &rc, sizeof rc) < 0)
		_exit(1);
	peer = accept(sock, NULL, NULL);
	_exit(recv(peer, bytes, sizeof bytes, 0) > 0 ? 0 : 1);
}

/* As main of ckptd --background --idle-exit S --socket PATH: returns when the daemon listens. */
static int background(const char *path)
{
	char name[128];
	int say[2], rc = -EPIPE, log;

	faults_make();
	(void)snprintf(name, sizeof name, "%.100s.started", path);
	log = open(name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0 || pipe2(say, O_CLOEXEC) < 0)
		return 1;
	if (fork() == 0) {
		const pid_t pid = getpid();
		const bool first = lseek(log, 0, SEEK_END) == 0;

		if (write(log, &pid, sizeof pid) != sizeof pid)
			_exit(1);
		if (first)
			die_at_hello(path, say[1]);
		serve(path, say[1]);
	}
	(void)close(say[1]);
	return read(say[0], &rc, sizeof rc) == sizeof rc && rc == 0 ? 0 : 1;
}

TEST_WITH(a_rank_starts_another_daemon_when_the_one_it_started_dies, procs_setup_without_daemon,
	  procs_teardown)
{
	char self[4096], path[128], name[128], *was = getenv("PATH");
	pid_t started[3];
	struct proc r;
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	cleanup_free char *before = strdup(was ? was : "");
	cleanup_close int log = -1;

	assert_true(n > 0 && before);
	self[n] = 0;
	(void)snprintf(path, sizeof path, "%s/ckptd", H.dir);
	assert_int_equal(symlink(self, path), 0);
	/* They come back to us when they have lost their parents. */
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	assert_int_equal(setenv("PATH", H.dir, 1), 0);
	proc_start(&r, (struct proc_opts){ .flags = CKPT_AUTOSTART | CKPT_REQUIRE,
					   .guard = CKPT_FINISH });
	assert_int_equal(setenv("PATH", before, 1), 0);
	bid(&r, (struct order){ .verb = ATTACH });
	(void)hear(&r);
	(void)snprintf(name, sizeof name, "%s.started", H.socket);
	log = open(name, O_RDONLY | O_CLOEXEC);
	n = read(log, started, sizeof started);
	for (ssize_t i = 0; i < n / (ssize_t)sizeof *started; i++)
		child_keep(started[i]);
	good(&r, r.last.rc);
	assert_int_equal(n, 2 * sizeof *started);
	assert_int_equal(child_end(started[0]), 0);
	good(&r, tell(&r, (struct order){ .verb = DECLARE }));
	good(&r, seal(&r, 1));
	train(&r, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	proc_leave(&r);
	daemon_leave(started[1]);
	assert_disk("1");
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

static void as_ckptd(int argc, char **argv)
{
	if (argc == 6 && strcmp(argv[1], "--background") == 0)
		exit(background(argv[5]));
}
void (*unit_played)(int argc, char **argv) = as_ckptd;

UNIT(.setup = procs_setup, .teardown = procs_teardown);
