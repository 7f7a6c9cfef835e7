/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_control.c - control connections to a daemon in this process: what STATUS tells, what
 * TRIGGER, DRAIN and FORGET do, and that nobody who asks can hurt who trains. CKPT_TEST_LOG=1 shows
 * the daemon's log.
 */
#include "tests/lib/host.h"
#include "ckpt/wire/shared.h"
#include "tests/lib/unit.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void refused(const struct asker *k, uint32_t type, int code)
{
	assert_int_equal(type, WIRE_REFUSE);
	assert_int_equal(k->refused.code, code);
}

/* --- status --- */
static void status_script(struct rank *k)
{
	for (uint64_t step = 1; step <= 5; step++) {
		stage(k, step, 0);
		if (step == 3)
			must_wait(k, 3, CKPT_COMMITTED);
		rank_meet(k);
	}
	if (k->rank == 0) {
		struct asker *a = k->arg;
		const struct wire_report_job *j;

		ask_until((j = ask_job(a, "demo")) && j->committed == 1);
		MUST_BE(a->r.head->njob, 1);
		MUST_BE(a->r.head->nrank, 2);
		MUST_BE(a->r.head->sessions, 2);
		MUST_BE(a->r.head->pid, getpid());
		MUST(!strncmp(a->r.head->version, "ckptd ", 6) && !a->r.head->draining);
		MUST(!strcmp(j->store, H.store));
		MUST(j->launch == WIRE_READY && j->generation == 1 && j->world == 2 &&
		     j->attached == 2 && j->lost == 0 && j->nslot == 2);
		MUST(j->taken == 5 && j->staged == 5 && j->persisted == 1 && !j->skipped &&
		     !j->torn && !j->failed && !j->error[0]);
		MUST(j->last_committed == 4 && j->last_committed_wall_ns && j->last_commit_ns);
		MUST_BE(j->newest, 6);
		MUST(j->held > 0 && j->used > 0 && j->used < j->held && j->mapped > 0);
		for (uint32_t i = 0; i < 2; i++) {
			const struct wire_report_rank *x = &a->r.rank[i];

			MUST(x->rank == i && x->state == WIRE_ATTACHED &&
			     x->pid == (uint32_t)getpid());
			MUST(x->newest == 6 && x->marks == 5 && x->copy_bytes > 0);
			MUST(x->stall_sum_ns >= x->stall_max_ns && x->stall_max_ns > 0 &&
			     x->measured_ns >= x->stall_sum_ns && x->stall_last_ns > 0);
		}
		MUST_BE(a->r.head->nstep, 5);
		MUST(a->r.step[0].step == 5 && a->r.step[4].step == 1);
		MUST(ask_step(a, 5)->state == WIRE_STAGED && ask_step(a, 5)->flags == WIRE_HELD);
		MUST(ask_step(a, 4)->state == WIRE_STAGED && ask_step(a, 4)->flags == 0);
		MUST(ask_step(a, 3)->state == WIRE_COMMITTED && ask_step(a, 3)->committed_ns > 0);
	}
}

TEST(status_tells_jobs_ranks_steps_and_counters)
{
	const struct wire_report_job *j;

	host_start(&H, NULL);
	ask_open(&A, H.socket);
	assert_int_equal(ask_status(&A)->head->njob, 0);
	launch_of(plan("demo", "fsdp=2", .persist_every = 3), status_script, &A);
	/* both are gone: what was staged is written, and its memory kept */
	ask_until((j = ask_job(&A, "demo")) && j->launch == WIRE_ENDED && j->committed == 2);
	assert_true(j->attached == 0 && j->used > 0 && j->mapped == 0);
	assert_int_equal(A.r.rank[0].state, WIRE_DETACHED);
}

TEST(a_write_under_way_is_seen_and_a_skip_too)
{
	const struct wire_report_step *s;

	host_start_gated();
	open_one(&K, "slow", "fsdp=1");
	ask_open(&A, H.socket);
	gate_set(&G, true);
	stage(&K, 1, 0);
	gate_await(&G);
	stage(&K, 2, 0);
	assert_int_equal(rank_step(&K, 3, 0), CKPT_SKIPPED);
	ask_until(ask_job(&A, "slow")->skipped == 1 && ask_step(&A, 3)); /* also by the daemon */
	s = ask_step(&A, 1);
	assert_true(s && s->state == WIRE_WRITING && s->flags == (WIRE_HELD | WIRE_TO_WRITE));
	assert_true(s->total > 0 && s->written < s->total && s->writing_ns > 0);
	s = ask_step(&A, 2);
	assert_true(s && s->state == WIRE_QUEUED && s->flags == (WIRE_HELD | WIRE_TO_WRITE));
	s = ask_step(&A, 3);
	assert_true(s && s->state == WIRE_SKIPPED && s->flags == 0);
	gate_set(&G, false);
	must_wait(&K, 2, CKPT_COMMITTED);
}

/* --- what was skipped --- */
static struct said library_said = SAID_NOTHING;

static uint64_t skipped(const struct rank *k)
{
	return rank_stats(k).skipped;
}

static bool skipped_alike(struct asker *a, const struct rank *k, uint64_t full, uint64_t unready,
			  uint64_t detached)
{
	const struct wire_report_job *j = ask_job(a, "skips");

	return j && j->skipped == full + unready + detached && skipped(k) == j->skipped &&
	       j->skipped_by[WIRE_SKIP_FULL] == full &&
	       j->skipped_by[WIRE_SKIP_UNREADY] == unready &&
	       j->skipped_by[WIRE_SKIP_DETACHED] == detached;
}

TEST(status_says_what_the_libraries_skipped_and_both_logs_warn)
{
	uint64_t step = 2, detached = 0, marked;

	host_start_gated();
	open_one(&K, "skips", "fsdp=1", .log = said_line, .log_ctx = &library_said);
	ask_open(&A, H.socket);
	gate_set(&G, true);
	stage(&K, 1, 0);
	gate_await(&G);
	stage(&K, 2, 0);
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(rank_step(&K, ++step, 0), CKPT_SKIPPED);
	assert_int_equal(said_times(&library_said, "more than half"), 0);
	for (uint32_t i = 16; i < 40; i++)
		assert_int_equal(rank_step(&K, ++step, 0), CKPT_SKIPPED);
	ask_until(skipped_alike(&A, &K, 40, 0, 0));
	ask_until(said_times(&library_said, "every slot holds a step") == 1);
	ask_until(said_times(&daemon_said, "every slot holds a step") == 1);

	assert_int_equal(ckpt_tensor_drop(K.c, K.t[rank_tensor_find(&K, "tiny")].id), 0);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(rank_step(&K, ++step, 0), CKPT_SKIPPED);
	ask_until(skipped_alike(&A, &K, 40, 5, 0));
	gate_set(&G, false);
	must_wait(&K, 2, CKPT_COMMITTED);
	must_seal(&K);
	for (uint32_t i = 0; i < 32; i++) {
		step++;
		step_to(&K, step, 0, CKPT_COMMITTED);
	}
	ask_until(said_times(&library_said, "taken again") == 1);
	ask_until(said_times(&daemon_said, "taken again") == 1);
	assert_int_equal(said_times(&library_said, "more than half"), 1);
	assert_soon(said_times(&daemon_said, "more than half") == 1);
	ask_close(&A);

	/* Without a daemon they are counted too, and the next one hears of all. */
	marked = skipped(&K);
	host_kill(&H);
	while (rank_step(&K, ++step, 0) != CKPT_DETACHED)
		sched_yield();
	detached = 1;
	for (; detached < 20; detached++)
		assert_int_equal(rank_step(&K, ++step, 0), CKPT_DETACHED);
	assert_true(skipped(&K) >= marked + 20);
	host_start(&H, NULL);
	ask_open(&A, H.socket);
	must_reattach(&K, 1);
	ask_until(ask_job(&A, "skips") && ask_job(&A, "skips")->skipped == skipped(&K));
	assert_true(ask_job(&A, "skips")->skipped_by[WIRE_SKIP_DETACHED] >= 20);
}

TEST(who_asks_all_the_time_gets_the_same_report)
{
	struct asker a, b;
	uint32_t same = 0;

	host_start(&H, NULL);
	ask_open(&a, H.socket);
	ask_open(&b, H.socket);
	for (uint32_t i = 0; i < 50; i++) {
		(void)ask_status(&a);
		(void)ask_status(&b);
		same += a.inode == b.inode;
	}
	assert_true(same > 10);
	ask_close(&a);
	ask_close(&b);
}

/* --- trigger --- */
TEST(a_trigger_makes_the_next_step_one_that_is_written)
{
	struct wire_triggered t = { 0 };

	host_start(&H, NULL);
	open_one(&K, "rare", "fsdp=1", .persist_every = 1000);
	ask_open(&A, H.socket);
	stage(&K, 1, 0);
	assert_int_equal(ask_trigger(&A, "rare", 0, &t), WIRE_TRIGGERED);
	assert_true(t.number == 1 && t.after == 2);
	assert_true(ask_job(&A, "rare")->trigger_waits);
	stage(&K, 2, 0);
	must_wait(&K, 2, CKPT_COMMITTED);
	stage(&K, 3, 0);
	ask_until(!ask_job(&A, "rare")->trigger_waits);
	assert_true(ask_step(&A, 2)->state == WIRE_COMMITTED && ask_step(&A, 2)->trigger == 1);
	assert_true(ask_step(&A, 3)->state == WIRE_STAGED && ask_step(&A, 3)->trigger == 0);
	assert_true(host_has(&H, "rare", 2) && !host_has(&H, "rare", 1) &&
		    !host_has(&H, "rare", 3));
	/* an explicit word of the trainer does not stand against an order */
	assert_int_equal(ask_trigger(&A, "rare", 0, &t), WIRE_TRIGGERED);
	must_step(&K, 4, CKPT_STAGE_ONLY);
	must_guard(&K);
	must_wait(&K, 4, CKPT_COMMITTED);
}

TEST(a_final_trigger_waits_for_a_slot)
{
	struct wire_triggered t;
	pthread_t thread;

	host_start_gated();
	open_one(&K, "full", "fsdp=1");
	ask_open(&A, H.socket);
	gate_set(&G, true);
	stage(&K, 1, 0);
	gate_await(&G);
	stage(&K, 2, 0);
	assert_int_equal(ask_trigger(&A, "full", 0, &t), WIRE_TRIGGERED);
	assert_int_equal(rank_step(&K, 3, 0), CKPT_SKIPPED); /* the order goes to the next */
	assert_int_equal(ask_trigger(&A, "full", WIRE_FINAL, &t), WIRE_TRIGGERED);
	assert_int_equal(t.number, 2);
	assert_int_equal(t.after, 4);
	thread = gate_open_soon(&G);
	must_step(&K, 4, 0);
	pthread_join(thread, NULL);
	must_guard(&K);
	must_wait(&K, 4, CKPT_COMMITTED);
}

TEST(a_torn_step_passes_its_order_on)
{
	struct wire_triggered t;

	host_start_gated_at("step 2 staged");
	open_one(&K, "torn", "fsdp=1", .persist_every = 1000, .slots = 3);
	ask_open(&A, H.socket);
	stage(&K, 1, 0);
	assert_int_equal(ask_trigger(&A, "torn", 0, &t), WIRE_TRIGGERED);
	gate_set(&G, true);
	assert_int_equal(ckpt_snapshot(K.c, 2, NULL), 0);
	gate_await(&G); /* step 2 has the order; the next mark comes before it is torn */
	assert_int_equal(ckpt_snapshot(K.c, 3, NULL), 0); /* without a guard: 2 is not trusted */
	gate_set(&G, false);
	ask_until(ask_job(&A, "torn")->trigger_waits);
	assert_int_equal(ask_step(&A, 2)->state, WIRE_TORN);
	must_guard(&K);
	ask_until(rank_step(&K, 4 + (uint64_t)ask_job(&A, "torn")->newest, 0) == 0);
	must_wait(&K, ask_job(&A, "torn")->newest - 1, CKPT_STAGED);
	must_guard(&K);
	ask_until(ask_job(&A, "torn")->committed == 1);
	assert_true(ask_step(&A, ask_job(&A, "torn")->last_committed - 1)->trigger == 1);
}

TEST(nobody_to_trigger_is_said)
{
	struct wire_trigger nobody = { .job = 1 };
	struct wire_triggered t;

	host_start(&H, NULL);
	ask_open(&A, H.socket);
	(void)ask_refused(&A, &nobody, WIRE_TRIGGER, sizeof nobody, -ENOENT);
	open_one(&K, "gone", "fsdp=1", .persist_every = 1000);
	stage(&K, 1, 0);
	assert_int_equal(ask_trigger(&A, "gone", 0, &t), WIRE_TRIGGERED);
	rank_close(&K, 0);
	ask_until(ask_job(&A, "gone")->attached == 0);
	assert_false(ask_job(&A, "gone")->trigger_waits);
	refused(&A, ask_trigger(&A, "gone", 0, &t), -ENOENT);
	assert_non_null(strstr(A.refused.text, "gone"));
}

/* --- drain --- */
TEST(a_drain_is_answered_when_all_is_on_disk_and_holds_nobody)
{
	struct wire_drain m = { 0 };
	struct wire_drained d = { 0 };
	struct asker a, b;
	struct pollfd poll_a;

	host_start_gated();
	open_one(&K, "drain", "fsdp=1", .persist_every = 1000);
	ask_open(&a, H.socket);
	ask_open(&b, H.socket);
	assert_int_equal(ask_drain(&a, NULL, NULL, 0, &d), WIRE_DRAINED);
	assert_true(d.written == 0 && d.failed == 0); /* nothing was staged */
	gate_set(&G, true);
	stage(&K, 1, 0);
	ask_send(&a, &m, WIRE_DRAIN, sizeof m);
	gate_await(&G);
	/* meanwhile others are served, the trainer goes on, and a second drain waits for the
	 * same */
	stage(&K, 2, 0);
	assert_int_equal(ask_job(&b, "drain")->staged, 2);
	ask_send(&b, &m, WIRE_DRAIN, sizeof m);
	poll_a = (struct pollfd){ .fd = a.sock, .events = POLLIN };
	assert_int_equal(poll(&poll_a, 1, 0), 0);
	gate_set(&G, false);
	assert_int_equal(ask_answer(&a, &d, sizeof d, NULL), WIRE_DRAINED);
	assert_true(d.written == 1 && d.failed == 0);
	assert_true(host_has(&H, "drain", 1));
	assert_int_equal(ask_answer(&b, &d, sizeof d, NULL), WIRE_DRAINED);
	assert_true(d.written == 2 && d.failed == 0);
	assert_true(host_has(&H, "drain", 2));
	rank_close(&K, 0);
	ask_close(&a);
	ask_close(&b);
}

TEST(one_who_waits_for_a_drain_may_leave_or_ask_too_much)
{
	struct wire_drain m = { 0 };
	struct wire_plain s = { 0 };
	struct asker a, b;

	host_start_gated();
	open_one(&K, "leave", "fsdp=1", .persist_every = 1000);
	gate_set(&G, true);
	stage(&K, 1, 0);
	ask_open(&a, H.socket);
	ask_send(&a, &m, WIRE_DRAIN, sizeof m);
	gate_await(&G);
	refused(&a, ask(&a, &s, WIRE_STATUS, sizeof s, NULL, 0), -EPROTO);
	ask_close(&a);
	ask_open(&b, H.socket);
	assert_int_equal(ask_job(&b, "leave")->attached, 1);
	gate_set(&G, false);
	ask_until(ask_job(&b, "leave")->committed == 1);
	rank_close(&K, 0);
	ask_close(&b);
}

static _Atomic int full;

static int64_t full_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	return atomic_load(&full) ? -ENOSPC : io_ops_posix.pwrite(ctx, fd, buf, len, off);
}

TEST(what_could_not_be_drained_is_said_kept_and_given_up_only_by_force)
{
	const struct wire_report_job *j;
	static struct io_ops ops;
	struct wire_drained d = { 0 };
	struct wire_forgotten f = { 0 };

	ops = host_ops;
	ops.pwrite = full_pwrite;
	atomic_store(&full, 1);
	host_start(&H, &ops);
	open_one(&K, "full", "fsdp=1", .persist_every = 1000);
	ask_open(&A, H.socket);
	stage(&K, 7, 0);
	assert_int_equal(ask_drain(&A, NULL, NULL, 0, &d), WIRE_DRAINED);
	assert_true(d.written == 0 && d.failed == 1 && d.code == -ENOSPC);
	assert_non_null(strstr(d.text, "job full step 7"));
	j = ask_job(&A, "full");
	assert_true(j->failed == 1 && j->error_step == 8 && j->error_wall_ns && j->error[0]);
	assert_true(ask_step(&A, 7)->state == WIRE_FAILED && ask_step(&A, 7)->flags == WIRE_HELD);
	refused(&A, ask_forget(&A, j->id, WIRE_ALL, &f), -EBUSY); /* a rank is attached */
	rank_close(&K, 0);
	ask_until((j = ask_job(&A, "full")) && j->attached == 0 && j->failed == 2 &&
		  ask_step(&A, 7)->state == WIRE_FAILED);
	refused(&A, ask_forget(&A, j->id, 0, &f), -EBUSY);
	assert_non_null(strstr(A.refused.text, "step 7"));
	assert_true(ask_job(&A, "full")->used > 0);
	assert_int_equal(ask_forget(&A, ask_id(&A, "full"), WIRE_ALL, &f), WIRE_FORGOTTEN);
	assert_true(f.bytes > 0 && f.steps == 1 && f.lost == 1);
	ask_until(!ask_job(&A, "full")); /* a look at its store may be under way */
	atomic_store(&full, 0);
}

/* --- forget --- */
TEST(what_is_on_disk_is_forgotten_at_once)
{
	struct plan_of_job p = plan("old", "fsdp=1");
	struct wire_forgotten f = { 0 };
	uint64_t id;

	host_start(&H, NULL);
	ask_open(&A, H.socket);
	refused(&A, ask_forget(&A, 1, 0, &f), -ENOENT);
	rank_open(&K, &p, 0);
	stage(&K, 1, 0);
	must_wait(&K, 1, CKPT_COMMITTED);
	id = ask_id(&A, "old");
	refused(&A, ask_forget(&A, id, WIRE_ALL, &f), -EBUSY);
	rank_close(&K, 0);
	ask_until(ask_job(&A, "old")->attached == 0);
	assert_int_equal(ask_forget(&A, id, 0, &f), WIRE_FORGOTTEN);
	assert_true(f.bytes > 0 && f.steps == 1 && f.lost == 0);
	ask_until(!ask_job(&A, "old")); /* a look at its store may be under way */
	/* the job comes back, from disk */
	rank_open(&K, &p, 0);
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, 0);
	assert_true(K.got.step == 1 && K.got.where == 2 && rank_check(&K, 1));
	ask_until(ask_job(&A, "old")); /* a report is good for a moment */
	assert_true(ask_id(&A, "old") != id);
}

/* --- those who mean no good --- */
TEST(requests_out_of_place_are_refused_or_end_the_connection)
{
	struct wire_plain s = { 0 };
	struct wire_plain c = { 0 };
	struct wire_steps steps = { 0 };
	struct asker a = { 0 };
	int fd;

	host_start(&H, NULL);
	a.sock = ask_connect(H.socket);
	refused(&a, ask(&a, &s, WIRE_STATUS, sizeof s, NULL, 0), -EPROTO);
	assert_int_equal(ask(&a, &c, WIRE_CONTROL, sizeof c, NULL, 0), WIRE_OK);
	assert_int_equal(ask(&a, &c, WIRE_CONTROL, sizeof c, NULL, 0), WIRE_REFUSE);
	assert_int_equal(ask(&a, &steps, WIRE_STEPS, sizeof steps, NULL, 0), WIRE_REFUSE);
	assert_int_equal(ask_status(&a)->head->njob, 0);
	fd = dup(0);
	assert_int_equal(wire_send(a.sock, &s, WIRE_STATUS, sizeof s, ++a.seq, &fd, 1), 0);
	assert_int_equal(ask_answer(&a, NULL, 0, NULL), 0);
	(void)close(fd);
	ask_close(&a);
	a.sock = ask_connect(H.socket);
	assert_int_equal(wire_send(a.sock, &c, WIRE_CONTROL, sizeof c - 4, ++a.seq, NULL, 0), 0);
	assert_int_equal(ask_answer(&a, NULL, 0, NULL), 0);
	ask_close(&a);
}

TEST(many_connections_and_one_that_never_reads_hurt_no_trainer)
{
	struct wire_plain c = { 0 };
	struct wire_plain s = { 0 };
	struct asker a[64], more = { 0 };
	uint32_t n = 0;

	host_start(&H, NULL);
	open_one(&K, "calm", "fsdp=1");
	for (uint32_t i = 0; i < 64; i++)
		ask_open(&a[i], H.socket);
	more.sock = ask_connect(H.socket);
	refused(&more, ask(&more, &c, WIRE_CONTROL, sizeof c, NULL, 0), -EAGAIN);
	assert_int_equal(ask_answer(&more, NULL, 0, NULL), 0);
	ask_close(&more);
	/* asks and asks: its answers fill the socket, and then it is sent away */
	while (n < 100000 && wire_send(a[0].sock, &s, WIRE_STATUS, sizeof s, ++n, NULL, 0) == 0)
		;
	assert_true(n < 100000);
	for (uint64_t step = 1; step <= 3; step++) {
		stage(&K, step, 0);
		must_wait(&K, step, CKPT_COMMITTED);
	}
	ask_close(&a[0]);
	ask_until((more.sock = ask_connect(H.socket)) >= 0 &&
		  (ask(&more, &c, WIRE_CONTROL, sizeof c, NULL, 0) == WIRE_OK ||
		   (close(more.sock), 0)));
	ask_close(&more);
	for (uint32_t i = 1; i < 64; i++)
		ask_close(&a[i]);
}

/* In another process: connections that say nothing, and new ones for those that are sent away. */
static pid_t silent_crowd(const char *path, uint32_t n)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	pid_t pid = fork();
	int *sock;

	if (pid)
		return pid;
	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	sock = calloc(n, sizeof *sock);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t i = 0;; i++) {
		struct pollfd p = { .fd = sock[i % n], .events = POLLIN };

		if (p.fd && poll(&p, 1, 1) <= 0)
			continue;
		if (p.fd)
			(void)close(p.fd);
		sock[i % n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		(void)!connect(sock[i % n], (struct sockaddr *)&a, sizeof a);
	}
}

TEST(a_silent_crowd_takes_no_descriptors_from_those_who_save)
{
	const struct rlimit few = { .rlim_cur = 160, .rlim_max = 0 };
	struct rlimit before, now = few;
	struct asker a;
	pid_t crowd;

	MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
	now.rlim_max = before.rlim_max;
	MUST(setrlimit(RLIMIT_NOFILE, &now) == 0);
	host_start(&H, NULL);
	MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
	crowd = silent_crowd(H.socket, 150);
	MUST(crowd > 0);
	MUST(setrlimit(RLIMIT_NOFILE, &now) == 0);
	ask_open_in_a_crowd(&a, H.socket);
	open_one(&K, "calm", "fsdp=1");
	for (uint64_t step = 1; step <= 20; step++) {
		stage(&K, step, 0);
		must_wait(&K, step, CKPT_COMMITTED);
	}
	assert_int_equal(ask_job(&a, "calm")->failed, 0);
	rank_close(&K, 0);
	ask_close(&a);
	(void)kill(crowd, SIGKILL);
	(void)waitpid(crowd, NULL, 0);
	MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST(a_socket_is_made_in_nobody_elses_place)
{
	struct daemon_opts o = { .socket = H.socket };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ckpt_err err = { 0 };
	struct daemon *d;
	char byte;
	int fd;

	fd = open(H.socket, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, "x", 1), 1);
	(void)close(fd);
	assert_int_equal(daemon_open(&o, &d, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "is not a socket"));
	fd = open(H.socket, O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, &byte, 1), 1);
	(void)close(fd);
	(void)unlink(H.socket);

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(a.sun_path, sizeof a.sun_path, "%s", H.socket);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 5), 0);
	assert_int_equal(daemon_open(&o, &d, &err), -EADDRINUSE);
	assert_non_null(strstr(err.msg, "another program"));
	assert_int_equal(access(H.socket, F_OK), 0);
	(void)close(fd); /* what a killed one leaves behind is no obstacle */
	MUST_OK(daemon_open(&o, &d, &err), &err);
	daemon_close(d);
}

/* Does a ckptd answer there? Of none that listens a connection is refused. */
static bool answers(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct wire_plain c = { 0 };
	struct asker a = { .sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) };
	bool yes;

	snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
	yes = connect(a.sock, (struct sockaddr *)&to, sizeof to) == 0 &&
	      ask(&a, &c, WIRE_CONTROL, sizeof c, NULL, 0) == WIRE_OK;
	(void)close(a.sock);
	return yes;
}

TEST(what_a_cleaner_removes_of_the_socket_is_there_again)
{
	struct daemon_opts o = { .socket = H.socket };
	char lock[128], dir[96], kept[128];
	struct stat before, now;
	struct daemon *d;
	struct plan_of_job p;

	snprintf(dir, sizeof dir, "%.80s/run", H.dir);
	snprintf(H.socket, sizeof H.socket, "%.90s/s", dir);
	snprintf(lock, sizeof lock, "%.100s.lock", H.socket);
	snprintf(kept, sizeof kept, "%.90s.kept", dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	host_start(&H, NULL);
	p = plan("kept", "fsdp=1");
	rank_open(&K, &p, 0);
	for (int what = 1; what < 8; what++) { /* the socket, its lock, their directory */
		assert_int_equal(stat(lock, &before), 0);
		if (what & 1)
			assert_int_equal(unlink(H.socket), 0);
		if (what & 2)
			assert_int_equal(unlink(lock), 0);
		if (what & 4) {
			assert_int_equal(rename(dir, kept), 0);
			(void)io_tree_remove(AT_FDCWD, kept);
		}
		ask_until(stat(lock, &now) == 0 && answers(H.socket));
		/* and it is this one's: nobody else gets it */
		ask_until(daemon_open(&o, &d, &K.err) == -EADDRINUSE);
		assert_int_equal(stat(H.socket, &now), 0);
		assert_int_equal(now.st_mode & 07777, 0600);
		save(&K, (uint64_t)what);
	}
}

static uint32_t shut_out(void)
{
	return said_times(&daemon_said, "cannot be made again now: another ckptd");
}

/* A cleaner, and one that starts before the next tick of who was there. */
static void other_takes_over(struct host *other)
{
	struct daemon_opts o = { .socket = H.socket };
	struct ckpt_err err = { 0 };
	char lock[128];

	snprintf(lock, sizeof lock, "%.100s.lock", H.socket);
	*other = H;
	other->d = NULL;
	for (int i = 0; !other->d; i++) {
		rank_must(i < 100, "the second one is there first", __FILE__, __LINE__, "");
		(void)unlink(H.socket);
		(void)unlink(lock);
		(void)daemon_open(&o, &other->d, &err);
	}
	assert_int_equal(pthread_create(&other->thread, NULL, host_run, other), 0);
}

TEST(a_socket_that_is_another_ckptd_s_now_is_left_to_it)
{
	struct host other;
	struct stat its, now;

	host_start(&H, NULL);
	for (uint32_t round = 1; round <= 2; round++) {
		other_takes_over(&other);
		assert_int_equal(stat(H.socket, &its), 0);
		ask_until(shut_out() == round); /* once, however often it tries */
		assert_true(answers(H.socket));
		assert_int_equal(stat(H.socket, &now), 0);
		assert_true(now.st_ino == its.st_ino && now.st_dev == its.st_dev);
		if (round == 2)
			break;
		host_stop(&other);
		ask_until(answers(H.socket)); /* the first one is there again */
	}
	host_stop(&H); /* and leaves what is not its own */
	assert_int_equal(stat(H.socket, &now), 0);
	assert_true(now.st_ino == its.st_ino && answers(H.socket));
	assert_int_equal(shut_out(), 2);
	host_stop(&other);
}

/* The store answers when the gate opens: making a directory waits. */
static struct {
	struct io_ops ops;
	_Atomic bool open;
} slow;

static int slow_mkdir(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	while (!slow.open)
		usleep(1000);
	return io_ops_posix.mkdir(ctx, dirfd, name, mode);
}

static void *rank_begins(void *arg)
{
	struct rank *k = arg;

	rank_open(k, k->plan, 0);
	return NULL;
}

TEST(a_launch_is_forming_from_its_first_rank_on)
{
	struct plan_of_job p = plan("young", "fsdp=1");
	struct rank k = { .plan = &p };
	const struct wire_report_job *j;
	pthread_t thread;

	slow.ops = host_ops;
	slow.ops.mkdir = slow_mkdir;
	slow.open = false;
	host_start(&H, &slow.ops);
	ask_open(&A, H.socket);
	assert_int_equal(pthread_create(&thread, NULL, rank_begins, &k), 0);
	ask_until((j = ask_job(&A, "young")) != NULL);
	assert_true(j->launch == WIRE_FORMING && j->world == 0 && !j->store[0]);
	slow.open = true;
	pthread_join(thread, NULL);
	ask_until((j = ask_job(&A, "young")) && j->launch == WIRE_READY);
	rank_close(&k, 0);
}

TEST(who_only_looks_does_not_keep_an_idle_daemon)
{
	H.opts.idle_exit_ns = NS_PER_S / 5;
	host_start(&H, NULL);
	ask_open(&A, H.socket);
	host_end(&H);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
