/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_holder.c - who has a job: the table of holder.h, line by line; what a launch beside
 * the holder may do; what its first mark does; and two daemons over one store. Holders are ranks of
 * this process, or of children that hang, end or become zombies; who comes is a HELLO by hand or
 * another rank.
 */
#include "ckpt/client/handle.h"
#include "ckpt/store/claimer.h"
#include "ckpt/store/store_policy.h"
#include "daemon/holder.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <signal.h>
#include <sys/wait.h>

static int store = -1;
static uint32_t jobs;

static int setup(void **state)
{
	(void)host_setup(state);
	MUST(mkdir(H.store, 0700) == 0);
	store = open(H.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	host_start(&H, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)close(store);
	return host_teardown(state);
}

static const char *new_job(void)
{
	static char name[32];

	snprintf(name, sizeof name, "job-%u", jobs++);
	return name;
}

/* --- who comes, by hand --- */
struct comer {
	struct asker a;
	struct wire_welcome w;
	int code; /* 0: welcome */
};

static void come(struct comer *k, const char *socket, const struct wire_hello *h, const char *job)
{
	struct wire_hello m = *h;
	uint32_t type;

	snprintf(m.job, sizeof m.job, "%s", job);
	m.world = m.world ? m.world : 1;
	*k = (struct comer){ .a.sock = ask_connect(socket), .a.seq = 1, .a.asked = WIRE_HELLO };
	MUST(wire_send(k->a.sock, &m, WIRE_HELLO, sizeof m, 1, &store, 1) == 0);
	type = ask_answer(&k->a, &k->w, sizeof k->w, NULL);
	MUST(type == WIRE_WELCOME || type == WIRE_REFUSE);
	k->code = type == WIRE_WELCOME ? 0 : k->a.refused.code;
}

/* 0, with its number: it has the job. */
static int mark(struct comer *k, uint64_t *ret_generation)
{
	struct wire_plain m = { 0 };
	struct wire_claimed w = { 0 };
	uint32_t type;

	*ret_generation = 0;
	k->a.asked = WIRE_CLAIM;
	if (wire_send(k->a.sock, &m, WIRE_CLAIM, sizeof m, ++k->a.seq, NULL, 0) < 0)
		return -EPIPE;
	type = ask_answer(&k->a, &w, sizeof w, NULL);
	*ret_generation = w.generation;
	return type == WIRE_CLAIMED ? 0 : type == WIRE_REFUSE ? k->a.refused.code : -EPIPE;
}

static void leave(struct comer *k)
{
	struct wire_plain bye = { 0 };

	if (k->a.sock >= 0 && !k->code) {
		k->a.asked = WIRE_BYE;
		if (wire_send(k->a.sock, &bye, WIRE_BYE, sizeof bye, ++k->a.seq, NULL, 0) == 0)
			(void)ask_answer(&k->a, &bye, sizeof bye, NULL);
	}
	(void)close(k->a.sock);
}

/* --- holders --- */
enum holder { NONE, LEFT, ATTACHED, MARKED, HANGS, ZOMBIE };

/* The process of a rank that has marked. */
static pid_t child_marks(const char *job, const struct wire_hello *h)
{
	int tube[2];
	char c;
	pid_t pid;

	assert_int_equal(pipe2(tube, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		struct comer k;
		uint64_t generation;

		come(&k, H.socket, h, job);
		MUST(k.code == 0 && mark(&k, &generation) == 0);
		MUST(write(tube[1], "x", 1) == 1);
		for (;;)
			pause();
	}
	(void)close(tube[1]);
	assert_int_equal(read(tube[0], &c, 1), 1);
	(void)close(tube[0]);
	return pid;
}

static const struct wire_hello first = {
	.nslot = 2, .launch = 1000, .run = 50, .restart = 3, .token = 77
};

static pid_t holder_make(enum holder what, const char *job, struct comer *ret)
{
	uint64_t generation;
	pid_t pid = 0;

	*ret = (struct comer){ .a.sock = -1 };
	switch (what) {
	case NONE:
		break;
	case LEFT:
	case ATTACHED:
	case MARKED:
		come(ret, H.socket, &first, job);
		assert_int_equal(ret->code, 0);
		assert_int_equal(ret->w.generation, 1);
		if (what == MARKED)
			assert_int_equal(mark(ret, &generation), 0);
		if (what == LEFT)
			leave(ret);
		break;
	case HANGS:
		pid = child_marks(job, &first);
		assert_int_equal(kill(pid, SIGSTOP), 0);
		break;
	case ZOMBIE: {
		siginfo_t end;

		pid = child_marks(job, &first);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitid(P_PID, (id_t)pid, &end, WEXITED | WNOWAIT), 0);
		break;
	}
	}
	return pid;
}

/* claims: at once; beside: welcome, and its first mark has the result `mark`; else the code of
 * HELLO. */
enum { CLAIMS = 1, BESIDE = 2 };
static const struct {
	enum holder holder;
	struct wire_hello h;
	int attach, mark;
	const char *what;
} table[] = {
	{ NONE, { .launch = 1 }, CLAIMS, 0, "the first launch" },
	{ LEFT, { .launch = 1 }, CLAIMS, 0, "after one that has detached" },
	{ ZOMBIE, { .launch = 1 }, CLAIMS, 0, "after one that was killed, and is a zombie" },
	{ ATTACHED, { .launch = 1 }, BESIDE, 0, "beside one that has not marked" },
	{ ATTACHED,
	  { .launch = 1, .flags = WIRE_TAKEOVER },
	  BESIDE,
	  0,
	  "the same that may take over" },
	{ ATTACHED, { .launch = 1, .world = 3 }, BESIDE, -ETIME, "one of another size" },
	{ MARKED, { .launch = 1 }, -EBUSY, 0, "beside one that lives and marks" },
	{ HANGS, { .launch = 1 }, -EBUSY, 0, "beside one that hangs" },
	{ MARKED, { .launch = 1, .flags = WIRE_TAKEOVER }, BESIDE, 0, "taking over" },
	{ HANGS, { .launch = 1, .flags = WIRE_TAKEOVER }, BESIDE, 0, "taking over what hangs" },
	{ MARKED, { .launch = 1, .run = 50, .restart = 4 }, CLAIMS, 0, "the launcher's restart" },
	{ HANGS, { .launch = 1, .run = 50, .restart = 4 }, CLAIMS, 0, "a restart of what hangs" },
	{ MARKED, { .launch = 1, .run = 50, .restart = 3 }, -EBUSY, 0, "as often restarted" },
	{ MARKED, { .launch = 1, .run = 50, .restart = 2 }, -ESTALE, 0, "a launch before that" },
	{ MARKED, { .launch = 1, .run = 51, .restart = 4 }, -EBUSY, 0, "another launcher" },
	{ MARKED, { .launch = 1, .restart = 4 }, -EBUSY, 0, "no launcher that is known" },
	{ MARKED, { .launch = 1, .generation = 2 }, CLAIMS, 0, "a higher number" },
	{ MARKED, { .launch = 1, .generation = 1 }, -EBUSY, 0, "the same number and rank" },
};

TEST(the_table_of_holders_holds)
{
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		const char *job = new_job();
		struct wire_hello h = table[i].h;
		uint64_t generation;
		struct comer a, b;
		pid_t pid = holder_make(table[i].holder, job, &a);
		int attach;

		h.nslot = 2;
		come(&b, H.socket, &h, job);
		attach = b.code ? b.code : b.w.generation ? CLAIMS : BESIDE;
		if (attach != table[i].attach)
			fail_msg("%s: %d, %s", table[i].what, attach, b.a.refused.text);
		if (attach == -EBUSY && table[i].holder >= MARKED && !h.generation) {
			char who[32];

			snprintf(who, sizeof who, "process %d (rank 0 of 1)",
				 (int)(pid ? pid : getpid()));
			assert_non_null(strstr(b.a.refused.text, who));
			assert_non_null(strstr(b.a.refused.text, "takeover"));
		}
		if (attach == BESIDE && table[i].mark != -ETIME) {
			assert_int_equal(mark(&b, &generation), table[i].mark);
			assert_int_equal(generation, 2);
			if (!pid) /* the one before is sent away */
				assert_int_equal(mark(&a, &generation), -EPIPE);
		}
		leave(&b);
		if (a.a.sock >= 0)
			(void)close(a.a.sock);
		if (pid) {
			(void)kill(pid, SIGKILL);
			(void)waitpid(pid, NULL, 0);
		}
	}
}

TEST(of_two_that_attach_beside_each_other_the_first_that_marks_has_the_job)
{
	const char *job = new_job();
	const struct wire_hello other = { .nslot = 2, .launch = 2 };
	uint64_t generation;
	struct comer a, b;

	come(&a, H.socket, &first, job);
	come(&b, H.socket, &other, job);
	assert_int_equal(b.w.generation, 0);
	assert_int_equal(mark(&a, &generation), 0);
	assert_int_equal(generation, 1);
	/* and it has marked, so it is not ended by accident */
	assert_int_equal(mark(&b, &generation), -ESTALE);
	assert_non_null(strstr(b.a.refused.text, "is in use: process "));
	assert_int_equal(mark(&a, &generation), 0);
	leave(&a);
	/* Once that has ended, it is free. */
	assert_int_equal(mark(&b, &generation), 0);
	assert_int_equal(generation, 2);
	leave(&b);
}

TEST(a_job_whose_launcher_restarts_it_is_not_kept_from_it_by_who_came_between)
{
	const char *job = new_job();
	const struct wire_hello reads = { .nslot = 2, .launch = 2 };
	struct wire_hello restart = first;
	struct comer a, b, c;
	pid_t pid = holder_make(ZOMBIE, job, &a);

	come(&b, H.socket, &reads, job);
	assert_int_equal(b.w.generation, 2);
	restart.launch = 3;
	restart.restart++;
	come(&c, H.socket, &restart, job);
	assert_int_equal(c.code, 0);
	assert_int_equal(c.w.generation, 3);
	leave(&c);
	(void)close(b.a.sock);
	(void)waitpid(pid, NULL, 0);
}

/* Ranks whose launcher has started each of them by a process of its own: by their token they are one
 * launch, with the job and beside its holder. Who has the place of a rank already is another one. */
TEST(ranks_of_one_token_are_one_launch_whatever_their_parents)
{
	for (uint32_t beside = 0; beside < 2; beside++) {
		const char *job = new_job();
		struct wire_hello h = { .nslot = 2, .world = 2, .launch = 1, .token = 5 };
		struct comer holder = { .a.sock = -1 }, rank[2], second, other;
		uint64_t generation;

		if (beside) {
			(void)holder_make(MARKED, job, &holder);
			h.flags = WIRE_TAKEOVER;
		}
		for (uint32_t r = 0; r < 2; r++) {
			h.rank = r;
			h.launch = 1 + r;
			come(&rank[r], H.socket, &h, job);
			assert_int_equal(rank[r].code, 0);
			assert_int_equal(rank[r].w.generation, beside ? 0 : 1);
		}
		h.launch = 3;
		come(&second, H.socket, &h, job);
		assert_int_equal(second.code, 0);
		assert_int_equal(second.w.generation, 0);
		h.token = 6;
		h.flags = 0;
		for (uint32_t r = 0; r < 2; r++) {
			assert_int_equal(mark(&rank[r], &generation), 0);
			assert_int_equal(generation, beside ? 2 : 1);
		}
		come(&other, H.socket, &h, job);
		assert_int_equal(other.code, -EBUSY);
		leave(&other);
		leave(&second);
		leave(&rank[0]);
		leave(&rank[1]);
		if (holder.a.sock >= 0)
			(void)close(holder.a.sock);
	}
}

/* --- ranks that train, and ranks that look --- */
static void *rank_restores(void *arg)
{
	struct rank *k = arg;

	must_restore(k, CKPT_LATEST, 0);
	MUST(rank_check(k, k->got.step));
	return NULL;
}

/* An evaluation: on another mesh, too. It restores what is committed, and goes. */
TEST(who_attaches_and_restores_and_never_marks_leaves_the_trainer_alone)
{
	static const char *const meshes[] = { "fsdp=1", "fsdp=2" };

	daemon_said.level = LOG_ERROR;

	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		const char *job = new_job();
		uint32_t n = (uint32_t)i + 1;
		struct plan_of_job p =
			plan(job, meshes[i], .launch = 9, .flags = CKPT_REQUIRE | CKPT_TAKEOVER);
		struct rank e[2] = { 0 };
		pthread_t thread[2];
		struct ckpt_stats s;

		open_one(&K, job, "fsdp=1", .launch = 8, .fresh = true);
		save(&K, 1);
		ranks_open(e, n, &p);
		save(&K, 2);
		for (uint32_t r = 0; r < n; r++)
			MUST(pthread_create(&thread[r], NULL, rank_restores, &e[r]) == 0);
		for (uint32_t r = 0; r < n; r++) {
			(void)pthread_join(thread[r], NULL);
			assert_int_equal(e[r].got.step, 2);
			assert_int_equal(e[r].got.where, 2);
		}
		save(&K, 3);
		ranks_close(e, n);
		save(&K, 4);
		s = rank_stats(&K);
		assert_int_equal(s.committed, 4);
		assert_int_equal(s.failed + s.torn + s.skipped, 0);
		rank_close(&K, 0);
	}
	assert_string_equal(daemon_said.text, ""); /* no error */
}

TEST(a_first_mark_behind_a_newer_commit_takes_nothing_and_one_after_another_restore_is_taken)
{
	const char *job = new_job();
	struct rank e = { 0 };

	open_one(&K, job, "fsdp=1", .launch = 8, .fresh = true);
	save(&K, 1);
	open_one(&e, job, "fsdp=1", .launch = 9, .flags = CKPT_REQUIRE | CKPT_TAKEOVER);
	must_restore(&e, CKPT_LATEST, 0);
	save(&K, 2);
	assert_int_equal(rank_step(&e, 2, 0), -ESTALE);
	assert_int_equal(rank_why(&e), -ESTALE);
	assert_non_null(strstr(e.err.msg, "has committed step 2 since this launch restored"));
	assert_non_null(strstr(e.err.msg, "restore again"));
	save(&K, 3);
	/* It is meant: from this restore on the other one commits nothing. */
	must_restore(&e, CKPT_LATEST, 0);
	assert_int_equal(e.got.step, 3);
	assert_soon(rank_step(&K, 4, 0) == -ESTALE);
	save(&e, 4);
	rank_close(&K, 0);
	K.c = NULL;
	rank_close(&e, 0);
	assert_true(host_has(&H, job, 4));
}

static enum store_policy_state policy_of(const char *job, uint64_t *ret_last)
{
	struct store s = { .ops = &io_ops_posix,
			   .format = &format_native,
			   .job_fd = host_job_fd(&H, job) };
	struct store_policy now;

	store_policy_read(&s, &now);
	(void)close(s.job_fd);
	*ret_last = now.rules.keep_last;
	return now.state;
}

TEST(the_policy_of_a_launch_beside_the_holder_is_set_when_it_has_the_job)
{
	const char *job = new_job();
	struct rank e = { 0 };
	uint64_t last;

	open_one(&K, job, "fsdp=1", .launch = 8, .fresh = true, .keep_last = 5);
	save(&K, 1);
	open_one(&e, job, "fsdp=1", .launch = 9, .flags = CKPT_REQUIRE | CKPT_TAKEOVER,
		 .keep_last = 1);
	must_restore(&e, CKPT_LATEST, 0);
	save(&K, 2);
	save(&K, 3);
	assert_int_equal(policy_of(job, &last), STORE_POLICY_SET);
	assert_int_equal(last, 5);
	assert_int_equal(rank_step(&e, 3, 0), -ESTALE); /* nor by a mark that takes nothing */
	must_restore(&e, CKPT_LATEST, 0);
	save(&e, 4);
	assert_soon(policy_of(job, &last) == STORE_POLICY_SET && last == 1);
	rank_close(&K, 0);
	K.c = NULL;
	rank_close(&e, 0);
}

TEST(who_takes_over_marks_into_slots_that_it_had_no_memory_for_before)
{
	const char *job = new_job();
	struct rank e = { 0 };

	open_one(&K, job, "fsdp=1", .launch = 8, .fresh = true);
	save(&K, 1);
	open_one(&e, job, "fsdp=1", .launch = 9, .flags = CKPT_REQUIRE | CKPT_TAKEOVER);
	must_restore(&e, CKPT_LATEST, 0);
	save(&e, 2);
	assert_soon(rank_step(&K, 2, 0) == -ESTALE);
	assert_int_equal(rank_why(&K), -ESTALE);
	assert_non_null(strstr(K.err.msg, "has taken over"));
	save(&e, 3);
	rank_close(&K, 0);
	K.c = NULL;
	rank_close(&e, 0);
	assert_int_equal(host_committed(&H, job, (uint64_t[4]){ 0 }, 4), 3);
}

/* One of its ranks has asked for the claim; of the other one the next ckptd must not think that it is
 * another launch, also if it comes first. */
TEST(a_launch_that_took_over_comes_back_whole_to_the_next_ckptd)
{
	const char *job = new_job();
	struct plan_of_job p =
		plan(job, "fsdp=2", .launch = 9, .flags = CKPT_REQUIRE, .fresh = true);
	struct rank e[2] = { 0 };

	open_one(&K, job, "fsdp=1", .launch = 8, .fresh = true); /* it never marks */
	ranks_open(e, 2, &p);
	for (uint32_t r = 0; r < 2; r++)
		must_step(&e[r], 1, CKPT_PERSIST);
	for (uint32_t r = 0; r < 2; r++)
		must_guard(&e[r]);
	must_wait(&e[0], 1, CKPT_COMMITTED);
	assert_true(rpc_take(e[0].c, UINT64_MAX));
	host_restart(&H);
	must_reattach(&e[1], 1);
	rpc_give(e[0].c);
	must_reattach(&e[0], 1);
	assert_soon(atomic_load(&atomic_load(&e[0].c->link)->job->ready_epoch) != 0);
	for (uint32_t r = 0; r < 2; r++)
		must_step(&e[r], 2, CKPT_PERSIST);
	for (uint32_t r = 0; r < 2; r++)
		must_guard(&e[r]);
	must_wait(&e[0], 2, CKPT_COMMITTED);
	rank_close(&K, 0);
	K.c = NULL;
	ranks_close(e, 2);
}

/* --- what is superseded amid a commit --- */
static struct io_ops slow;

/* A commit waits at the gate. */
static int slow_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	if (strncmp(to, "step-", 5) == 0)
		gate_pass(&G);
	return io_ops_posix.rename(ctx, dirfd, from, to);
}

TEST(a_launch_that_takes_over_logs_no_error_about_the_one_that_it_supersedes)
{
	const char *job = new_job();
	struct rank e = { 0 };

	host_stop(&H);
	gate_make(&G);
	slow = host_ops;
	slow.rename = slow_rename;
	host_start(&H, &slow);
	daemon_said.level = LOG_ERROR;
	said_forget(&daemon_said);
	open_one(&K, job, "fsdp=1", .launch = 8, .fresh = true);
	save(&K, 1);
	open_one(&e, job, "fsdp=1", .launch = 9, .flags = CKPT_REQUIRE | CKPT_TAKEOVER);
	must_restore(&e, CKPT_LATEST, 0);
	gate_set(&G, true);
	must_step(&K, 2, CKPT_PERSIST);
	must_guard(&K);
	gate_await(&G);
	must_step(&e, 2, CKPT_PERSIST);
	must_guard(&e);
	gate_set(&G, false);
	must_wait(&e, 2, CKPT_COMMITTED);
	assert_string_equal(daemon_said.text, "");
	ask_open(&A, H.socket);
	assert_string_equal(ask_job(&A, job)->error, "");
	assert_int_equal(ask_job(&A, job)->failed, 0);
	rank_close(&K, 0);
	K.c = NULL;
	rank_close(&e, 0);
}

/* --- two daemons over one store --- */
static struct host B;

static void other_start(const char *as)
{
	B = H;
	B.d = NULL;
	snprintf(B.socket, sizeof B.socket, "%s/other", H.dir);
	B.opts.host = as;
	host_start(&B, NULL);
}

static void claim_touch(const char *job, const struct timespec when[2])
{
	char path[256];

	snprintf(path, sizeof path, "%s/%s/.ckptd/gen-00000001", H.store, job);
	assert_int_equal(utimensat(AT_FDCWD, path, when, 0), 0);
}

/* A clock that stands still: the claim is of this moment, however slow the machine is. */
static const struct timespec just_now[2] = { { .tv_sec = 1 << 30, .tv_nsec = UTIME_OMIT },
					     { .tv_sec = INT64_C(1) << 33 } },
			     long_ago[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = 1000 } };

TEST(ranks_of_one_launch_that_come_to_two_daemons_are_told_where_the_other_is)
{
	const struct {
		uint64_t token[2];
		bool soon, told;
	} cases[] = { { { 5, 5 }, true, true },	  { { 0, 0 }, true, true },
		      { { 0, 7 }, true, true },	  { { 5, 7 }, true, false },
		      { { 5, 5 }, false, false }, { { 0, 0 }, false, false } };

	other_start("elsewhere");
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct wire_hello zero = { .nslot = 2,
					   .world = 2,
					   .launch = 1,
					   .token = cases[i].token[0] },
				  one = { .nslot = 2,
					  .world = 2,
					  .rank = 1,
					  .launch = 2,
					  .token = cases[i].token[1] };
		const char *job = new_job();
		struct comer a, b;
		char path[256];

		come(&b, B.socket, &one, job);
		assert_int_equal(b.code, 0);
		claim_touch(job, cases[i].soon ? just_now : long_ago);
		come(&a, H.socket, &zero, job);
		assert_int_equal(a.code, cases[i].told ? -EINVAL : 0);
		if (cases[i].told)
			assert_non_null(
				strstr(a.a.refused.text,
				       "rank 1 of this launch is attached to the ckptd of host "
				       "elsewhere"));
		else
			assert_int_equal(a.w.generation, 0);
		/* No number is used up. */
		snprintf(path, sizeof path, "%s/%s/.ckptd/gen-00000002", H.store, job);
		assert_int_equal(access(path, F_OK), -1);
		leave(&a);
		leave(&b);
	}
	host_stop(&B);
}

TEST(a_first_mark_decides_between_two_daemons_too)
{
	const char *job = new_job();
	struct rank e = { 0 };

	other_start("elsewhere");
	{
		struct plan_of_job p = plan(job, "fsdp=1", .launch = 8, .fresh = true);

		p.socket = B.socket;
		rank_open(&K, &p, 0);
	}
	save(&K, 1);
	open_one(&e, job, "fsdp=1", .launch = 9);
	must_restore(&e, CKPT_LATEST, 0);
	save(&K, 2);
	assert_int_equal(rank_step(&e, 2, 0), -ESTALE);
	save(&K, 3);
	must_restore(&e, CKPT_LATEST, 0);
	assert_int_equal(e.got.step, 3);
	save(&e, 4);
	/* The other daemon's next commit finds the claim. */
	(void)rank_step(&K, 4, CKPT_PERSIST);
	assert_int_equal(rank_wait(&K, 4, CKPT_COMMITTED), -ESTALE);
	rank_close(&K, 0);
	K.c = NULL;
	rank_close(&e, 0);
	host_stop(&B);
	assert_int_equal(host_committed(&H, job, (uint64_t[8]){ 0 }, 8), 4);
}

/* Claims that cannot be read, once each is asked for; the error. */
static int unread;
static struct io_ops unreadable;

static int unreadable_open(void *ctx, int dirfd, const char *path, int flags, uint32_t mode)
{
	if (unread && strstr(path, "gen-") && (flags & O_ACCMODE) == O_RDONLY)
		return unread;
	return io_ops_posix.open(ctx, dirfd, path, flags, mode);
}

TEST(a_claim_that_cannot_be_read_is_not_a_dead_ones)
{
	static const struct {
		int error, attach;
	} cases[] = { { -EIO, -EIO }, { -EACCES, 0 }, { -ENOENT, -EBUSY } };

	unreadable = host_ops;
	unreadable.open = unreadable_open;
	B = H;
	B.d = NULL;
	snprintf(B.socket, sizeof B.socket, "%s/other", H.dir);
	B.opts.host = "elsewhere";
	host_start(&B, &unreadable);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const char *job = new_job();
		struct wire_hello h = { .nslot = 2, .launch = 2 };
		struct comer a, b;

		come(&a, H.socket, &first, job);
		assert_int_equal(a.w.generation, 1);
		unread = cases[i].error;
		come(&b, B.socket, &h, job);
		unread = 0;
		assert_int_equal(b.code, cases[i].attach);
		assert_int_equal(b.w.generation, 0);
		leave(&b);
		leave(&a);
	}
	host_stop(&B);
}

/* --- whose directory it is --- */
TEST(a_directory_of_another_user_is_attached_to_only_if_that_is_said)
{
	const char *job = new_job();
	struct wire_hello h = { .nslot = 2, .launch = 1 };
	char path[256];
	struct comer a;

	if (geteuid() != 0) {
		print_message("needs root, to give a directory away\n");
		skip();
	}
	snprintf(path, sizeof path, "%s/%s", H.store, job);
	assert_int_equal(mkdir(path, 0777), 0);
	assert_int_equal(chown(path, 4321, 4321), 0);
	come(&a, H.socket, &h, job);
	assert_int_equal(a.code, -EPERM);
	assert_non_null(strstr(a.a.refused.text, "belongs to user 4321"));
	leave(&a);
	h.flags = WIRE_FOREIGN_OWNER;
	come(&a, H.socket, &h, job);
	assert_int_equal(a.code, 0);
	leave(&a);
}

UNIT(.setup = setup, .teardown = teardown);
