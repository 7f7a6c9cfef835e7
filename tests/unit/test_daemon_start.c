/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_start.c - how a launch begins: what a restore goes back over and says of it, what
 * keeps a launch from starting over beside steps that nobody asked for, which ranks are waited for;
 * and what a trainer learns when nothing can be written. CKPT_TEST_LOG=1 shows the logs.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <stdatomic.h>

#define JOB "start"

static struct said library_said = SAID_NOTHING;

static int setup(void **state)
{
	(void)host_setup(state);
	said_forget(&library_said);
	library_said.level = daemon_said.level = LOG_WARNING;
	host_start(&H, NULL);
	return 0;
}

#define job(mesh) plan(JOB, mesh, .log = said_line, .log_ctx = &library_said)

/* What a launch gets that has not asked. */
static void must_refuse(struct rank *k)
{
	MUST_BE(rank_step(k, 100, CKPT_PERSIST), -EUCLEAN);
	MUST_BE(rank_why(k), -EUCLEAN);
	MUST(strstr(k->err.msg, "ckpt_fresh"));
}

/* --- going back --- */
static void goes_back_script(struct rank *k)
{
	const char *second;

	rank_clear(k);
	must_restore(k, CKPT_LATEST, 0);
	MUST_BE(k->got.step, 2);
	MUST_BE(k->got.npassed, 2);
	MUST(strncmp(k->got.passed, "step 4: ", 8) == 0 && (second = strchr(k->got.passed, '\n')) &&
	     strncmp(second, "\nstep 3: ", 9) == 0 && !strchr(second + 1, '\n'));
	MUST(rank_check(k, 2) && rank_check_blobs(k, 2, k->got.world_saved));
	rank_meet(k);
	save(k, 5);
}

TEST(one_restore_goes_back_over_all_damaged_steps_on_all_ranks)
{
	struct plan_of_job p = job("fsdp=3");

	saves(&p, 1, 4);
	host_restart(&H);
	host_damage(&H, JOB, 4);
	host_damage(&H, JOB, 3);
	p.mesh = "fsdp=2";
	launch(&p, goes_back_script, NULL);
	assert_int_equal(said_times(&library_said, "step 2 is restored; passed over: step 4: "), 1);
	assert_int_equal(said_times(&library_said, "step 2 is restored; passed over: step 3: "), 1);
	assert_soon(said_times(&daemon_said, "passes it over until ckptctl repair step:4 ") == 1);
	assert_soon(said_times(&daemon_said, "passes it over until ckptctl repair step:3 ") == 1);
	assert_int_equal(host_count(&H, JOB, STORE_SET_ASIDE), 2);
	assert_true(host_has(&H, JOB, 5) && host_has(&H, JOB, 2) && host_has(&H, JOB, 1));
}

TEST(who_asks_for_exactly_this_gets_no_older_one)
{
	struct plan_of_job p = job("fsdp=1");

	saves(&p, 1, 3);
	host_restart(&H);
	host_damage(&H, JOB, 3);
	rank_open(&K, &p, 0);
	assert_int_equal(rank_restore(&K, 3, 0), -EBADMSG);
	must_refuse(&K);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_EXACT), -EUCLEAN);
	assert_non_null(strstr(K.err.msg, "step 3: "));
	must_refuse(&K);
	must_restore(&K, CKPT_LATEST, 0);
	assert_true(K.got.step == 2 && K.got.npassed == 1);
	rank_close(&K, 0);
	host_restart(&H);
	host_damage(&H, JOB, 2);
	rank_open(&K, &p, 0);
	/* step 3 is known to be damaged, so EXACT does not even look at step 2 */
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_EXACT), -EUCLEAN);
	assert_int_equal(host_count(&H, JOB, STORE_QUARANTINED), 1);
}

TEST(where_all_are_damaged_every_one_is_named)
{
	struct plan_of_job p = job("fsdp=1");

	saves(&p, 1, 3);
	host_restart(&H);
	for (uint64_t step = 1; step <= 3; step++)
		host_damage(&H, JOB, step);
	rank_open(&K, &p, 0);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), again ? -EUCLEAN : -EBADMSG);
		assert_true(strstr(K.err.msg, "step 3: ") && strstr(K.err.msg, "step 2: ") &&
			    strstr(K.err.msg, "step 1: "));
		assert_int_equal(strstr(K.err.msg, "memory is undefined") != NULL, !again);
		must_refuse(&K);
	}
	assert_int_equal(host_count(&H, JOB, STORE_QUARANTINED), 3);
}

/* An older launch's step, left in the memory of its daemon, is not newer than what another daemon's
 * launch has committed since. */
TEST(a_later_launch_is_newer_whatever_its_steps)
{
	struct plan_of_job p = job("fsdp=1");
	struct host other = H;

	rank_open(&K, &p, 0);
	save(&K, 1);
	step_to(&K, 9, CKPT_STAGE_ONLY, CKPT_STAGED);
	save(&K, 10);
	rank_close(&K, 0);
	snprintf(other.socket, sizeof other.socket, "%.90s/other", H.dir);
	host_start(&other, NULL);
	p.socket = other.socket;
	rank_open(&K, &p, 0);
	must_restore(&K, 1, CKPT_FROM_DISK);
	save(&K, 5);
	rank_close(&K, 0);
	host_stop(&other);
	p.socket = H.socket;
	rank_open(&K, &p, 0);
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, 0);
	assert_true(K.got.step == 5 && K.got.where == 2 && rank_check(&K, 5));
}

/* --- tensors that a step lacks --- */
TEST(what_a_damaged_step_was_written_into_does_not_stay_as_it_was)
{
	struct plan_of_job small = job("fsdp=1"), large = job("fsdp=1");
	uint64_t untouched = 77;
	int extra;

	large.extra = true;
	saves(&small, 1, 1);
	rank_open(&K, &large, 0);
	must_restore(&K, CKPT_LATEST, CKPT_LENIENT);
	assert_true(K.got.step == 1 && K.got.nmissing == 1 && K.got.nunused == 0);
	save(&K, 2);
	rank_close(&K, 0);
	rank_open(&K, &small, 0);
	must_restore(&K, CKPT_LATEST, CKPT_DRY_RUN);
	assert_true(K.got.step == 2 && K.got.nmissing == 0 && K.got.nunused == 1);
	rank_close(&K, 0);
	host_restart(&H);
	host_damage(&H, JOB, 2);
	rank_open(&K, &large, 0);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_LENIENT), -EBADMSG);
	assert_non_null(strstr(K.err.msg, "model/extra"));
	assert_non_null(strstr(K.err.msg, "step 2: "));
	must_refuse(&K);
	/* asked again it is told what it gets: only step 2 is damaged, not step 1 */
	rank_fill(&K, untouched);
	must_restore(&K, CKPT_LATEST, CKPT_LENIENT);
	assert_true(K.got.step == 1 && K.got.nmissing == 1 && K.got.npassed == 1);
	extra = rank_tensor_find(&K, "extra");
	assert_true(rank_each(&K.t[extra], rank_check_one, &untouched));
}

/* --- starting over --- */
TEST(no_step_is_marked_beside_steps_that_nobody_asked_for)
{
	struct plan_of_job p = job("fsdp=1"), other = job("fsdp=1");

	saves(&p, 1, 2); /* an empty store asks nobody */
	host_restart(&H);
	rank_open(&K, &p, 0);
	must_refuse(&K);
	assert_non_null(strstr((rank_why(&K), K.err.msg), "no rank has called ckpt_restore"));
	must_soon(said_times(&library_said, "no rank has called ckpt_restore") == 1);
	must_refuse(&K);
	/* what decides nothing */
	must_restore(&K, CKPT_LATEST, CKPT_DRY_RUN);
	must_refuse(&K);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_FROM_MEMORY), -ENOENT);
	must_refuse(&K);
	assert_int_equal(rank_restore(&K, 7, 0), -ENOENT);
	must_refuse(&K);
	assert_int_equal(said_times(&library_said, "no rank has called ckpt_restore"),
			 1); /* once */
	must_restore(&K, CKPT_LATEST, 0);
	save(&K, 3);
	assert_int_equal(rank_why(&K), 0);
	rank_close(&K, 0);
	/* a step that is only staged counts, and so does a restore that did not fit */
	other.rows = 65;
	rank_open(&K, &other, 0);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), -EMEDIUMTYPE);
	must_refuse(&K);
	assert_non_null(strstr((rank_why(&K), K.err.msg), "does not fit"));
	rank_close(&K, 0);
	p.job = "staged";
	rank_open(&K, &p, 0);
	step_to(&K, 1, CKPT_STAGE_ONLY, CKPT_STAGED);
	p.fresh = false;
	p.generation = 9;
	rank_close(&K, 0);
	rank_open(&K, &p, 0);
	must_refuse(&K);
	rank_close(&K, 0);
	for (uint64_t step = 1; step <= 3; step++)
		assert_true(host_has(&H, JOB, step));
	assert_int_equal(host_count(&H, JOB, STORE_SET_ASIDE), 0);
}

static void fresh_script(struct rank *k)
{
	must_refuse(k);
	rank_meet(k);
	if (k->rank == 1)
		MUST_BE(ckpt_fresh(k->c), 0);
	rank_meet(k);
	save(k, 5);
}

TEST(one_rank_that_means_to_start_over_speaks_for_all)
{
	struct plan_of_job p = job("fsdp=2");

	saves(&p, 1, 4);
	host_restart(&H);
	launch(&p, fresh_script, NULL);
	assert_true(host_has(&H, JOB, 5));
	assert_int_equal(host_count(&H, JOB, STORE_SET_ASIDE), 4);
}

/* What one daemon knew the next one must. */
TEST(a_launch_whose_daemon_dies_is_not_asked_again)
{
	struct plan_of_job p = job("fsdp=1");

	saves(&p, 1, 1);
	for (int how = 0; how < 3; how++) {
		rank_open(&K, &p, 0);
		if (how == 0)
			MUST_BE(ckpt_fresh(K.c), 0);
		if (how == 1)
			must_restore(&K, CKPT_LATEST, 0);
		host_kill(&H);
		host_start(&H, NULL);
		must_reattach(&K, 1);
		must_seal(&K);
		if (how == 2)
			must_refuse(&K); /* it never asked */
		else
			save(&K, 20 + 20 * (uint64_t)how);
		host_kill(&H);
		host_start(&H, NULL);
		must_reattach(&K, 2);
		must_seal(&K);
		if (how == 2)
			must_refuse(&K);
		else
			save(&K, 30 + 20 * (uint64_t)how);
		rank_close(&K, 0);
	}
}

TEST(who_was_detached_at_first_is_asked_when_a_daemon_comes)
{
	struct plan_of_job p = job("fsdp=1");

	saves(&p, 1, 2);
	p.flags = CKPT_USE_ENV; /* not REQUIRE */
	for (int how = 0; how < 3; how++) {
		host_stop(&H);
		must_attach(&K, &p, 0);
		must_declare(&K);
		assert_int_equal(rank_seal(&K, 0), CKPT_SKIPPED);
		assert_non_null(strstr(K.err.msg, "no daemon"));
		assert_int_equal(rank_step(&K, 3, 0), CKPT_DETACHED);
		assert_int_equal(rank_why(&K), -ECONNREFUSED);
		if (how == 1)
			assert_int_equal(ckpt_fresh(K.c), 0);
		if (how == 2) {
			assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), -ECONNRESET);
			assert_int_equal(rank_step(&K, 3, 0), -EUCLEAN);
		}
		host_start(&H, NULL);
		must_seal(&K);
		if (how == 1) {
			save(&K, 3);
		} else {
			must_refuse(&K);
			must_restore(&K, CKPT_LATEST, 0);
			save(&K, K.got.step + 1);
		}
		rank_close(&K, 0);
	}
}

/* --- ranks that are waited for --- */
#define TO_ATTACH "ranks 0, 1 wait in ckpt_seal for rank 2 to attach"
#define TO_ASK "ranks 0, 1 wait in ckpt_restore for rank 2 to call ckpt_restore"

/* Rank 2 comes when the others' logs have named it. */
static void late_script(struct rank *k)
{
	bool seals = strcmp(k->plan->job, "seals") == 0, late = k->rank == 2;

	if (late && seals)
		must_soon(said_times(&library_said, "job seals: " TO_ATTACH) == 2);
	must_attach(k, k->plan, k->rank);
	must_declare(k);
	if (seals && k->rank == 0) { /* the sentence is there earlier for who does not wait */
		MUST_BE(rank_seal(k, SEC), CKPT_SKIPPED);
		MUST(strstr(k->err.msg, "rank 2 to attach"));
		MUST_BE(rank_step(k, 1, 0), CKPT_SKIPPED);
		MUST_BE(rank_why(k), -ENOENT);
		MUST(strstr(k->err.msg, "skipped") && strstr(k->err.msg, "rank 2 to attach"));
	}
	must_seal(k);
	if (late && !seals)
		must_soon(said_times(&library_said, "job asks: " TO_ASK) == 2);
	MUST_BE(rank_restore(k, 1, CKPT_DRY_RUN), seals ? -ENOENT : 0);
	rank_meet(k);
	rank_close(k, 0);
}

static void *late_job(void *arg)
{
	team(arg, late_script, NULL);
	return NULL;
}

TEST(who_waits_for_a_rank_hears_which_one_after_5_s)
{
	struct plan_of_job p[2] = { job("fsdp=3"), job("fsdp=3") }, one = job("fsdp=1");
	uint64_t began;
	pthread_t t[2];

	p[0].job = "seals";
	p[1].job = one.job = "asks";
	saves(&one, 1, 1);
	began = now_ns();
	for (int i = 0; i < 2; i++)
		MUST(pthread_create(&t[i], NULL, late_job, &p[i]) == 0);
	must_soon(said_times(&library_said, TO_ATTACH) || said_times(&library_said, TO_ASK));
	assert_true(now_ns() - began >= 5 * SEC);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	assert_soon(said_times(&daemon_said, "job seals: " TO_ATTACH) == 1);
	assert_soon(said_times(&daemon_said, "job asks: " TO_ASK) == 1);
}

/* It is no reason for what comes later. */
TEST(who_was_waited_for_is_forgotten_when_all_are_ready)
{
	struct plan_of_job p = job("fsdp=2");
	struct rank late;
	char text[SHARED_TEXT];

	must_attach(&K, &p, 0);
	must_declare(&K);
	MUST_BE(rank_seal(&K, 0), CKPT_SKIPPED);
	assert_soon(shared_text_get(&atomic_load(&K.c->link)->job->waits, text) < 0);
	must_attach(&late, &p, 1);
	must_declare(&late);
	must_seal(&late);
	assert_int_equal(shared_text_get(&atomic_load(&K.c->link)->job->waits, text), 0);
	rank_close(&late, 0);
	rank_close(&K, 0);
}

/* --- when nothing can be written --- */
TEST(what_cannot_be_written_is_logged_by_the_library_too)
{
	struct plan_of_job p = job("fsdp=1");
	static struct io_faults f; /* until the daemon is closed, in teardown */

	host_stop(&H);
	io_faults_init(&f, &host_ops);
	host_start(&H, &f.ops);
	rank_open(&K, &p, 0);
	save(&K, 1);
	for (uint64_t step = 2; step <= 5; step++) {
		if (step == 2)
			io_faults_fail(&f, IO_ON_FALLOCATE | IO_ON_WRITE, 1, -ENOSPC, true);
		if (step == 4) /* another reason is another change */
			io_faults_fail(&f, IO_ON_MKDIR, 1, -EROFS, true);
		MUST_BE(rank_step(&K, step, CKPT_PERSIST),
			step == 3 || step == 5 ? CKPT_FAILING : 0);
		MUST(rank_wait(&K, step, CKPT_COMMITTED) < 0);
		must_guard(&K);
		MUST_BE(rank_why(&K), step < 4 ? -ENOSPC : -EROFS);
		assert_true(soon(said_times(&library_said, "the daemon cannot write checkpoints") ==
				 1 + (step > 3)));
	}
	io_faults_count(&f, IO_ON_ANY);
	save(&K, 6);
	MUST_BE(rank_why(&K), 0);
	must_soon(said_times(&library_said, "the daemon writes checkpoints again") == 1);
}

UNIT(.setup = setup, .teardown = host_teardown);
