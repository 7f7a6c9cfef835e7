/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_processes.c - ranks and daemon as processes that are killed and stopped: what dies with a
 * trainer and what does not, and that a trainer is never held up by a daemon that is gone, stopped
 * or new. The parent waits for conditions with deadlines. CKPT_TEST_LOG=1 shows the daemons' logs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/lib/rank.c"

#include "tests/lib/host.c"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define RANKS 4

/* What the processes tell each other. */
static struct control {
	_Atomic uint32_t stall;                 /* 1: writes of the daemon stand still */
	_Atomic uint32_t stalled;               /* one does */
	_Atomic uint32_t at[RANKS];             /* how far a rank has come, by its own counting */
	_Atomic uint32_t go;                    /* how far it may go */
	_Atomic uint64_t worst_ns, detached, n, last;
	pthread_barrier_t barrier;              /* of the ranks: the collective operations of a step */
} *C;

static struct host H;
static struct plan_of_job P;
static pid_t daemon_pid, rank_pid[RANKS];

static bool soon(uint64_t until)
{
	const struct timespec moment = { .tv_nsec = 1000000 };

	nanosleep(&moment, NULL); /* a poll, not a wait for something to have happened */
	return now_ns() < until;
}

#define AWAIT(x) do { uint64_t until_ = now_ns() + 30 * SEC; while (!(x)) MUST(soon(until_) && #x); } while (0)

static int64_t stalling_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	while (atomic_load(&C->stall)) {
		atomic_store(&C->stalled, 1);
		(void)soon(UINT64_MAX);
	}
	return io_ops_posix.pwrite(ctx, fd, buf, len, off);
}

static struct daemon *in_child;

static void on_term(int sig)
{
	(void)sig;
	daemon_stop(in_child);
}

static void daemon_process(void)
{
	struct daemon_opts o = { .socket = H.socket, .engine = IO_THREADS, .copy_threads = 1 };
	struct io_ops ops = io_ops_posix;
	struct ckpt_err err;
	sigset_t term;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL); /* the parent sees it listen before daemon_open returns */
	ops.pwrite = stalling_pwrite;
	o.ops = &ops;
	if (getenv("CKPT_TEST_LOG"))
		o.log = (struct log){ log_to_stderr, NULL, LOG_DEBUG };
	MUST_OK(daemon_open(&o, &in_child, &err), &err);
	signal(SIGTERM, on_term);
	sigprocmask(SIG_UNBLOCK, &term, NULL);
	MUST_BE(daemon_run(in_child), 0);
	daemon_close(in_child);
	_exit(0);
}

static bool listens(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	cleanup_close int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof a.sun_path, "%s", H.socket);
	return connect(sock, (struct sockaddr *)&a, sizeof a) == 0;
}

static void daemon_begin(void)
{
	fflush(NULL);
	daemon_pid = fork();
	MUST(daemon_pid >= 0);
	if (daemon_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		daemon_process();
	}
	AWAIT(listens());
}

static int reap(pid_t *pid)
{
	pid_t p = TAKE(*pid);
	int status = 0;

	MUST(p > 0 && waitpid(p, &status, 0) == p);
	return status;
}

static void daemon_sigkill(void)
{
	kill(daemon_pid, SIGKILL);
	(void)reap(&daemon_pid);
}

static void ranks_begin(void (*script)(struct rank *k))
{
	uint32_t n = rank_world(P.mesh);
	pthread_barrierattr_t shared;

	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&C->barrier, &shared, n);
	for (uint32_t r = 0; r < n; r++) {
		atomic_store(&C->at[r], 0);
		fflush(NULL);
		rank_pid[r] = fork();
		MUST(rank_pid[r] >= 0);
		if (rank_pid[r] == 0) {
			struct rank k = { .plan = &P, .rank = r, .barrier = &C->barrier };

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			script(&k);
			_exit(0);
		}
	}
}

static void ranks_end(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		if (rank_pid[r])
			MUST_BE(reap(&rank_pid[r]), 0);
}

static void ranks_sigkill(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		if (rank_pid[r])
			kill(rank_pid[r], SIGKILL);
	for (uint32_t r = 0; r < RANKS; r++)
		if (rank_pid[r])
			(void)reap(&rank_pid[r]);
}

static void reached(struct rank *k, uint32_t at)
{
	atomic_store(&C->at[k->rank], at);
	AWAIT(atomic_load(&C->go) >= at);
}

static void await_all(uint32_t at)
{
	for (uint32_t r = 0; r < rank_world(P.mesh); r++)
		AWAIT(atomic_load(&C->at[r]) >= at);
}

static int setup(void **state)
{
	(void)state;
	C = mmap(NULL, sizeof *C, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	host_make(&H);
	P = (struct plan_of_job){ .socket = H.socket, .store = H.store, .job = "job", .mesh = "fsdp=2", .shared_only = true };
	daemon_begin();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	ranks_sigkill();
	if (daemon_pid) {
		kill(daemon_pid, SIGCONT);
		kill(daemon_pid, SIGTERM);
		MUST_BE(reap(&daemon_pid), 0);
	}
	host_free(&H);
	munmap(C, sizeof *C);
	return 0;
}

static void must_step(struct rank *k, uint64_t step, uint32_t flags, int state)
{
	struct ckpt_err err = { 0 };

	MUST_BE(rank_step(k, step, flags), 0);
	if (state)
		MUST_OK(ckpt_wait(k->c, step, state, 30 * SEC, &err), &err);
}

static void resume_script(struct rank *k, uint64_t step, uint32_t flags)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	rank_open(k, &P, k->rank);
	rank_clear(k);
	atomic_store(&C->go, 1); /* a launch before this one, if it lives, is fenced by now */
	MUST_OK(rank_restore(k, CKPT_LATEST, flags, &got, &err), &err);
	MUST_BE(got.step, step);
	MUST(rank_check(k, step) && rank_check_blobs(k, step, got.world_saved));
	must_step(k, 1000, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(k, 0);
}

/* --- trainers die --- */
/* 1: one step is committed. 2: the next one is marked, while the daemon stands still, and nobody guards. */
static void marked_script(struct rank *k)
{
	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	reached(k, 1);
	must_step(k, 2, CKPT_STAGE_ONLY, 0);
	reached(k, 2);
}

static void resume_two(struct rank *k)
{
	resume_script(k, 2, CKPT_FROM_MEMORY);
}

static void resume_one(struct rank *k)
{
	resume_script(k, 1, 0);
}

static void what_dead_trainers_had_marked_is_copied_and_written(void **state)
{
	(void)state;
	ranks_begin(marked_script);
	await_all(1);
	kill(daemon_pid, SIGSTOP);
	atomic_store(&C->go, 1);
	await_all(2);
	ranks_sigkill();
	kill(daemon_pid, SIGCONT);
	AWAIT(host_has(&H, "job", 2));
	host_committed(&H, "job", NULL, 0);
	P.mesh = "fsdp=3";
	ranks_begin(resume_two);
	ranks_end();
}

/* As above, but in the middle of the next update when they die. */
static void updating_script(struct rank *k)
{
	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_STAGE_ONLY, CKPT_STAGED);
	reached(k, 1);
	must_step(k, 2, CKPT_PERSIST, 0);
	if (k->rank == 1) {
		MUST_BE(ckpt_guard(k->c, NULL), CKPT_TORN);
		rank_clear(k);
	}
	reached(k, 2);
}

static void what_one_of_them_was_changing_is_not(void **state)
{
	(void)state;
	P.guard = CKPT_NEVER;
	ranks_begin(updating_script);
	await_all(1);
	kill(daemon_pid, SIGSTOP);
	atomic_store(&C->go, 1);
	await_all(2);
	ranks_sigkill();
	kill(daemon_pid, SIGCONT);
	AWAIT(host_has(&H, "job", 1)); /* the newest that was whole, though it was to be staged only */
	assert_false(host_has(&H, "job", 2));
	host_committed(&H, "job", NULL, 0);
	ranks_begin(resume_one);
	ranks_end();
	assert_false(host_has(&H, "job", 2));
}

static void one_dies_script(struct rank *k)
{
	struct ckpt_err err = { 0 };
	int rc;

	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	reached(k, 1);
	if (k->rank == 1)
		kill(getpid(), SIGKILL); /* before its mark */
	rc = rank_step(k, 2, CKPT_PERSIST);
	MUST(rc == 0 || rc == CKPT_SKIPPED); /* the daemon may know already */
	MUST_BE(ckpt_wait(k->c, 2, CKPT_STAGED, 30 * SEC, &err), -ENOENT);
	MUST(rc != 0 || strstr(err.msg, "rank"));
	AWAIT((rc = rank_step(k, 3, 0)) == CKPT_SKIPPED); /* nothing can be whole any more; nothing waits either */
	rank_close(k, 0);
}

static void a_step_that_one_rank_did_not_live_to_mark_is_dropped(void **state)
{
	int status;

	(void)state;
	ranks_begin(one_dies_script);
	await_all(1);
	atomic_store(&C->go, 1);
	status = reap(&rank_pid[1]);
	assert_true(WIFSIGNALED(status));
	ranks_end();
	assert_true(host_has(&H, "job", 1));
	assert_false(host_has(&H, "job", 2));
	P.mesh = "fsdp=1";
	ranks_begin(resume_one);
	ranks_end();
}

/* --- the daemon dies --- */
/* Train on, whatever becomes of the daemon, until told to end. */
static void endless_script(struct rank *k)
{
	struct ckpt_stats st = { .size = sizeof st };
	uint64_t worst = 0;

	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	atomic_store(&C->at[k->rank], 1);
	for (uint64_t step = 2; step != atomic_load(&C->last); step++) {
		uint64_t before = now_ns(), between;
		int rc = ckpt_guard(k->c, NULL);

		between = now_ns() - before;
		MUST(rc == 0 || rc == CKPT_TORN);
		rank_fill(k, step);
		before = now_ns();
		rc = ckpt_snapshot(k->c, step, NULL);
		between += now_ns() - before;
		MUST(rc == 0 || rc == CKPT_SKIPPED || rc == CKPT_DETACHED || rc == -EINVAL);
		worst = MAX(worst, between);
		if (rc == CKPT_DETACHED)
			atomic_fetch_add(&C->detached, 1);
		atomic_fetch_add(&C->n, 1);
		if (k->rank == 0 && atomic_load(&C->go))
			atomic_store(&C->last, step + 1);
		rank_meet(k);
	}
	must_step(k, UINT64_C(1) << 30, CKPT_FINAL, CKPT_COMMITTED);
	MUST(ckpt_stats(k->c, &st) == 0);
	MUST_BE(st.reattached, 3);
	for (uint64_t seen = atomic_load(&C->worst_ns); seen < worst && !atomic_compare_exchange_weak(&C->worst_ns, &seen, worst);)
		;
	rank_close(k, 0);
}

static void resume_end(struct rank *k)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	rank_open(k, &P, k->rank);
	rank_clear(k);
	MUST_OK(rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	MUST_BE(got.step, UINT64_C(1) << 30);
	MUST(rank_check(k, UINT64_C(1) << 30));
	rank_close(k, 0);
}

static void training_goes_on_while_daemons_die_and_come(void **state)
{
	(void)state;
	P.mesh = "fsdp=3";
	ranks_begin(endless_script);
	await_all(1);
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t before = atomic_load(&C->n);

		AWAIT(atomic_load(&C->n) > before + 20); /* in the midst of it */
		daemon_sigkill();
		before = atomic_load(&C->detached);
		AWAIT(atomic_load(&C->detached) > before + 10);
		host_committed(&H, "job", NULL, 0); /* what is there is whole */
		(void)unlink(H.socket);
		daemon_begin();
		before = atomic_load(&C->n);
		/* Attached again by all of them: marks are taken, and something new is committed. */
		uint64_t newest[1] = { 0 }, now[1] = { 0 };

		host_committed(&H, "job", newest, 1);
		AWAIT(host_committed(&H, "job", now, 1) && now[0] > newest[0]);
	}
	atomic_store(&C->go, 1);
	ranks_end();
	print_message("%llu steps, the longest guard and snapshot took %.1f ms\n", (unsigned long long)atomic_load(&C->n),
		      (double)atomic_load(&C->worst_ns) / 1e6);
	assert_true(atomic_load(&C->worst_ns) < 2 * SEC);
	ranks_begin(resume_end);
	ranks_end();
	assert_int_equal(host_count(&H, "job", STORE_COLLECTING), 0);
}

/* 1: step 1 committed. Then step 2 is marked to be written. 2: go on. */
static void half_written_script(struct rank *k)
{
	struct ckpt_stats st = { .size = sizeof st };
	struct ckpt_err err = { 0 };

	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	reached(k, 1);
	must_step(k, 2, CKPT_PERSIST, CKPT_STAGED);
	reached(k, 2);
	AWAIT(ckpt_stats(k->c, &st) == 0 && st.reattached == 1);
	MUST_OK(ckpt_wait(k->c, 2, CKPT_COMMITTED, 30 * SEC, &err), &err);
	must_step(k, 3, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(k, 0);
}

static void a_half_written_step_is_nothing_and_the_next_daemon_writes_it(void **state)
{
	uint64_t step[4];

	(void)state;
	P.shared_only = false;
	ranks_begin(half_written_script);
	await_all(1);
	atomic_store(&C->stall, 1);
	atomic_store(&C->go, 1);
	await_all(2);
	AWAIT(atomic_load(&C->stalled));
	daemon_sigkill();
	assert_int_equal(host_committed(&H, "job", step, 4), 1);
	assert_int_equal(step[0], 1);
	assert_int_equal(host_count(&H, "job", STORE_COLLECTING), 1);
	atomic_store(&C->stall, 0);
	(void)unlink(H.socket);
	daemon_begin();
	atomic_store(&C->go, 2);
	ranks_end();
	assert_int_equal(host_committed(&H, "job", step, 4), 3);
	assert_true(step[0] == 3 && step[1] == 2);
	assert_int_equal(host_count(&H, "job", STORE_COLLECTING), 0);
}

/* --- the daemon stands still --- */
static void stopped_script(struct rank *k)
{
	uint64_t before, took;
	int rc;

	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	reached(k, 1); /* the daemon is stopped */
	must_step(k, 2, CKPT_PERSIST, 0);
	before = now_ns();
	rc = ckpt_guard(k->c, NULL);
	took = now_ns() - before;
	MUST_BE(rc, CKPT_TORN);
	if (P.guard == CKPT_FINISH)
		MUST(took > 3 * SEC && took < 15 * SEC); /* until the daemon counts as gone: 5 s from its last beat */
	else
		MUST(took < SEC);
	rank_fill(k, 3);
	before = now_ns();
	rc = ckpt_snapshot(k->c, 3, NULL);
	MUST(now_ns() - before < SEC);
	MUST(rc == (P.guard == CKPT_FINISH ? CKPT_DETACHED : 0) || rc == CKPT_SKIPPED);
	reached(k, 2); /* it goes on */
	AWAIT(rank_step(k, 4, CKPT_FINAL) == 0);
	must_step(k, 5, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(k, 0);
}

static void stopped(uint32_t guard)
{
	P.guard = guard;
	ranks_begin(stopped_script);
	await_all(1);
	kill(daemon_pid, SIGSTOP);
	atomic_store(&C->go, 1);
	await_all(2);
	kill(daemon_pid, SIGCONT);
	atomic_store(&C->go, 2);
	ranks_end();
	assert_false(host_has(&H, "job", 2));
	assert_true(host_has(&H, "job", 5));
	host_committed(&H, "job", NULL, 0);
}

static void a_stopped_daemon_costs_a_bounded_guard_its_bound(void **state)
{
	(void)state;
	stopped(CKPT_BOUNDED);
}

static void a_guard_that_would_finish_ends_when_the_daemon_counts_as_gone(void **state)
{
	(void)state;
	stopped(CKPT_FINISH);
}

/* --- launches --- */
static void first_launch(struct rank *k)
{
	rank_open(k, &P, k->rank);
	must_step(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	reached(k, 1);
	AWAIT(rank_step(k, 2, 0) == -ESTALE);
	MUST_BE(ckpt_guard(k->c, NULL), 0);
	rank_close(k, 0);
}

static void a_second_launch_takes_over_from_a_living_one(void **state)
{
	pid_t other;
	int status;

	(void)state;
	ranks_begin(first_launch);
	await_all(1);
	fflush(NULL);
	other = fork();
	if (other == 0) { /* another parent: another launch */
		memset(rank_pid, 0, sizeof rank_pid);
		ranks_begin(resume_one);
		ranks_end();
		_exit(0);
	}
	assert_int_equal(waitpid(other, &status, 0), other);
	assert_int_equal(status, 0);
	ranks_end();
	assert_true(host_has(&H, "job", 1000));
	assert_false(host_has(&H, "job", 2));
}

static void the_socket_of_another_user_is_refused(void **state)
{
	char store[128];
	int status;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	snprintf(store, sizeof store, "%s/nobodys", H.dir);
	for (int open = 0; open < 2; open++) {
		/* Where the directory keeps others out, and where it does not. */
		assert_int_equal(chmod(H.dir, open ? 0755 : 0700), 0);
		assert_int_equal(chmod(H.socket, open ? 0666 : 0600), 0);
		assert_true(open == 0 || mkdir(store, 0777) == 0);
		assert_true(open == 0 || chmod(store, 0777) == 0);
		fflush(NULL);
		pid = fork();
		if (pid == 0) {
			struct rank k = { 0 };
			struct ckpt_err err = { 0 };

			P.store = open ? store : "/tmp";
			MUST(setgid(65534) == 0 && setuid(65534) == 0);
			MUST_BE(rank_attach(&k, &P, 0, &err), -EACCES);
			MUST(strstr(err.msg, "user"));
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

static void after_sigterm_the_newest_staged_step_is_on_disk(void **state)
{
	(void)state;
	ranks_begin(marked_script);
	await_all(1);
	atomic_store(&C->go, 1);
	await_all(2);
	kill(daemon_pid, SIGTERM);
	assert_int_equal(reap(&daemon_pid), 0);
	assert_true(host_has(&H, "job", 1));
	host_committed(&H, "job", NULL, 0);
	assert_int_equal(host_count(&H, "job", STORE_COLLECTING), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
		TEST(what_dead_trainers_had_marked_is_copied_and_written),
		TEST(what_one_of_them_was_changing_is_not),
		TEST(a_step_that_one_rank_did_not_live_to_mark_is_dropped),
		TEST(training_goes_on_while_daemons_die_and_come),
		TEST(a_half_written_step_is_nothing_and_the_next_daemon_writes_it),
		TEST(a_stopped_daemon_costs_a_bounded_guard_its_bound),
		TEST(a_guard_that_would_finish_ends_when_the_daemon_counts_as_gone),
		TEST(a_second_launch_takes_over_from_a_living_one),
		TEST(the_socket_of_another_user_is_refused),
		TEST(after_sigterm_the_newest_staged_step_is_on_disk),
	};

	if (getenv("CKPT_TEST_ONLY"))
		cmocka_set_test_filter(getenv("CKPT_TEST_ONLY"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
