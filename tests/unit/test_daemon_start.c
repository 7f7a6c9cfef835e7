/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_start.c - how a launch begins: what a restore goes back over and says of it, what keeps a
 * launch from starting over beside steps that nobody asked for, which ranks are waited for; and what a
 * trainer learns when nothing can be written. CKPT_TEST_LOG=1 shows the logs.
 */
#include "tests/lib/rank.h"

#include "tests/lib/host.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"
#include <stdatomic.h>

#define PATIENCE (20 * SEC)
#define JOB "start"

static struct host H;

#define soon(cond)                                     \
	({                                             \
		uint64_t until_ = now_ns() + PATIENCE; \
		while (!(cond) && now_ns() < until_)   \
			usleep(2000);                  \
		(cond);                                \
	})

/* --- what daemon and libraries log --- */
enum who { DAEMON, LIBRARY };
static struct said {
	pthread_mutex_t lock; /* protects the rest */
	size_t used;
	char text[1 << 20];
} said[2] = { { .lock = PTHREAD_MUTEX_INITIALIZER }, { .lock = PTHREAD_MUTEX_INITIALIZER } };

static void listen_to(struct said *s, int level, const char *line)
{
	if (getenv("CKPT_TEST_LOG"))
		log_to_stderr(NULL, level, line);
	if (level > LOG_WARNING)
		return;
	pthread_mutex_lock(&s->lock);
	if (s->used + strlen(line) + 2 < sizeof s->text)
		s->used += (size_t)sprintf(s->text + s->used, "%s\n", line);
	pthread_mutex_unlock(&s->lock);
}

static void daemon_says(void *ctx, int level, const char *line)
{
	(void)ctx;
	listen_to(&said[DAEMON], level, line);
}

static void library_says(void *ctx, int level, const char *line)
{
	(void)ctx;
	listen_to(&said[LIBRARY], level, line);
}

/* How often warnings and errors have said it. */
static uint32_t times(enum who who, const char *what)
{
	uint32_t n = 0;

	pthread_mutex_lock(&said[who].lock);
	for (const char *p = said[who].text; (p = strstr(p, what)); p++)
		n++;
	pthread_mutex_unlock(&said[who].lock);
	return n;
}

static int setup(void **state)
{
	(void)state;
	host_make(&H);
	H.log = (struct log){ daemon_says, NULL, LOG_DEBUG };
	for (int i = 0; i < 2; i++) {
		said[i].used = 0;
		said[i].text[0] = 0;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (H.d)
		host_stop(&H);
	host_free(&H);
	return 0;
}

static struct plan_of_job plan(const char *mesh)
{
	return (struct plan_of_job){ .socket = H.socket,
				     .store = H.store,
				     .job = JOB,
				     .mesh = mesh,
				     .guard = CKPT_FINISH,
				     .log = library_says };
}

/* --- steps --- */
static void start(void)
{
	host_start(&H, IO_THREADS, NULL);
}

/* Memory forgets; the disk does not. */
static void start_again(void)
{
	host_stop(&H);
	start();
}

static void save(struct rank *k, uint64_t step)
{
	struct ckpt_err err = { 0 };

	MUST_BE(rank_step(k, step, CKPT_PERSIST), 0);
	MUST_OK(ckpt_wait(k->c, step, CKPT_COMMITTED, PATIENCE, &err), &err);
	MUST_BE(ckpt_guard(k->c, NULL), 0);
}

static void save_all(struct rank *k)
{
	rank_open(k, k->plan, k->rank);
	for (uint64_t step = 1; step <= 4; step++)
		save(k, step);
	rank_meet(k);
	rank_close(k, 0);
}

/* One launch of one rank that commits these steps. */
static void saved(const struct plan_of_job *p, uint64_t first, uint64_t last)
{
	struct rank k = { 0 };

	rank_open(&k, p, 0);
	for (uint64_t step = first; step <= last; step++)
		save(&k, step);
	rank_close(&k, 0);
}

/* What a launch gets that has not asked. */
static void must_refuse(struct rank *k)
{
	struct ckpt_err err = { 0 };

	MUST_BE(rank_step(k, 100, CKPT_PERSIST), -EUCLEAN);
	MUST_BE(ckpt_why(k->c, &err), -EUCLEAN);
	MUST(strstr(err.msg, "ckpt_fresh"));
}

/* --- going back --- */
static void goes_back_script(struct rank *k)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got = { .size = sizeof got };
	const char *second;

	rank_open(k, k->plan, k->rank);
	rank_clear(k);
	MUST_OK(rank_restore(k, CKPT_LATEST, 0, &got, &err), &err);
	MUST_BE(got.step, 2);
	MUST_BE(got.npassed, 2);
	MUST(strncmp(got.passed, "step 4: ", 8) == 0 && (second = strchr(got.passed, '\n')) &&
	     strncmp(second, "\nstep 3: ", 9) == 0 && !strchr(second + 1, '\n'));
	MUST(rank_check(k, 2) && rank_check_blobs(k, 2, got.world_saved));
	rank_meet(k);
	save(k, 5);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(one_restore_goes_back_over_all_damaged_steps_on_all_ranks)
{
	struct plan_of_job p = plan("fsdp=3");

	start();
	team(&p, save_all, NULL);
	start_again();
	host_damage(&H, JOB, 4);
	host_damage(&H, JOB, 3);
	p.mesh = "fsdp=2";
	team(&p, goes_back_script, NULL);
	assert_int_equal(times(LIBRARY, "step 2 is restored; passed over: step 4: "), 1);
	assert_int_equal(times(LIBRARY, "step 2 is restored; passed over: step 3: "), 1);
	assert_int_equal(times(DAEMON, "restore: job " JOB " step 4: "), 1);
	assert_int_equal(times(DAEMON, "restore: job " JOB " step 3: "), 1);
	assert_int_equal(host_count(&H, JOB, STORE_SET_ASIDE), 2);
	assert_true(host_has(&H, JOB, 5) && host_has(&H, JOB, 2) && host_has(&H, JOB, 1));
}

TEST(who_asks_for_exactly_this_gets_no_older_one)
{
	struct plan_of_job p = plan("fsdp=1");
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	start();
	saved(&p, 1, 3);
	start_again();
	host_damage(&H, JOB, 3);
	rank_open(&k, &p, 0);
	assert_int_equal(rank_restore(&k, 3, 0, &got, &err), -EBADMSG);
	must_refuse(&k);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_EXACT, &got, &err), -EUCLEAN);
	assert_non_null(strstr(err.msg, "step 3: "));
	must_refuse(&k);
	MUST_OK(rank_restore(&k, CKPT_LATEST, 0, &got, &err), &err);
	assert_true(got.step == 2 && got.npassed == 1);
	rank_close(&k, 0);
	start_again();
	host_damage(&H, JOB, 2);
	rank_open(&k, &p, 0);
	/* step 3 is known to be damaged, so EXACT does not even look at step 2 */
	assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_EXACT, &got, &err), -EUCLEAN);
	assert_int_equal(host_count(&H, JOB, STORE_QUARANTINED), 1);
	rank_close(&k, 0);
}

TEST(where_all_are_damaged_every_one_is_named)
{
	struct plan_of_job p = plan("fsdp=1");
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	start();
	saved(&p, 1, 3);
	start_again();
	for (uint64_t step = 1; step <= 3; step++)
		host_damage(&H, JOB, step);
	rank_open(&k, &p, 0);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(rank_restore(&k, CKPT_LATEST, 0, &got, &err),
				 again ? -EUCLEAN : -EBADMSG);
		assert_true(strstr(err.msg, "step 3: ") && strstr(err.msg, "step 2: ") &&
			    strstr(err.msg, "step 1: "));
		assert_int_equal(strstr(err.msg, "memory is undefined") != NULL, !again);
		must_refuse(&k);
	}
	assert_int_equal(host_count(&H, JOB, STORE_QUARANTINED), 3);
	rank_close(&k, 0);
}

/* An older launch's step, left in the memory of its daemon, is not newer than what another daemon's
 * launch has committed since. */
TEST(a_later_launch_is_newer_whatever_its_steps)
{
	struct plan_of_job p = plan("fsdp=1");
	struct host other = H;
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	start();
	rank_open(&k, &p, 0);
	save(&k, 1);
	MUST_BE(rank_step(&k, 9, CKPT_STAGE_ONLY), 0);
	MUST_OK(ckpt_wait(k.c, 9, CKPT_STAGED, PATIENCE, &err), &err);
	save(&k, 10);
	rank_close(&k, 0);
	snprintf(other.socket, sizeof other.socket, "%.90s/other", H.dir);
	host_start(&other, IO_THREADS, NULL);
	p.socket = other.socket;
	rank_open(&k, &p, 0);
	MUST_OK(rank_restore(&k, 1, CKPT_FROM_DISK, &got, &err), &err);
	save(&k, 5);
	rank_close(&k, 0);
	host_stop(&other);
	p.socket = H.socket;
	rank_open(&k, &p, 0);
	rank_clear(&k);
	MUST_OK(rank_restore(&k, CKPT_LATEST, 0, &got, &err), &err);
	assert_true(got.step == 5 && got.where == 2 && rank_check(&k, 5));
	rank_close(&k, 0);
}

/* --- tensors that a step lacks --- */
TEST(what_a_damaged_step_was_written_into_does_not_stay_as_it_was)
{
	struct plan_of_job small = plan("fsdp=1"), large = plan("fsdp=1");
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	uint64_t untouched = 77;
	int extra;

	large.extra = true;
	start();
	saved(&small, 1, 1);
	rank_open(&k, &large, 0);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_LENIENT, &got, &err), &err);
	assert_true(got.step == 1 && got.nmissing == 1 && got.nunused == 0);
	save(&k, 2);
	rank_close(&k, 0);
	rank_open(&k, &small, 0);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_DRY_RUN, &got, &err), &err);
	assert_true(got.step == 2 && got.nmissing == 0 && got.nunused == 1);
	rank_close(&k, 0);
	start_again();
	host_damage(&H, JOB, 2);
	rank_open(&k, &large, 0);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_LENIENT, &got, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "model/extra"));
	assert_non_null(strstr(err.msg, "step 2: "));
	must_refuse(&k);
	/* asked again it is told what it gets: only step 2 is damaged, not step 1 */
	rank_fill(&k, untouched);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_LENIENT, &got, &err), &err);
	assert_true(got.step == 1 && got.nmissing == 1 && got.npassed == 1);
	extra = rank_tensor_find(&k, "extra");
	assert_true(rank_each(&k.t[extra], rank_check_one, &untouched));
	rank_close(&k, 0);
}

/* --- starting over --- */
TEST(no_step_is_marked_beside_steps_that_nobody_asked_for)
{
	struct plan_of_job p = plan("fsdp=1"), other = plan("fsdp=1");
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	start();
	saved(&p, 1, 2); /* an empty store asks nobody */
	start_again();
	rank_open(&k, &p, 0);
	must_refuse(&k);
	assert_non_null(strstr((ckpt_why(k.c, &err), err.msg), "no rank has called ckpt_restore"));
	assert_true(soon(times(LIBRARY, "no rank has called ckpt_restore") == 1));
	must_refuse(&k);
	/* what decides nothing */
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_DRY_RUN, &got, &err), &err);
	must_refuse(&k);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_FROM_MEMORY, &got, &err), -ENOENT);
	must_refuse(&k);
	assert_int_equal(rank_restore(&k, 7, 0, &got, &err), -ENOENT);
	must_refuse(&k);
	assert_int_equal(times(LIBRARY, "no rank has called ckpt_restore"), 1); /* once */
	MUST_OK(rank_restore(&k, CKPT_LATEST, 0, &got, &err), &err);
	save(&k, 3);
	assert_int_equal(ckpt_why(k.c, &err), 0);
	rank_close(&k, 0);
	/* a step that is only staged counts, and so does a restore that did not fit */
	other.rows = 65;
	rank_open(&k, &other, 0);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, 0, &got, &err), -EMEDIUMTYPE);
	must_refuse(&k);
	assert_non_null(strstr((ckpt_why(k.c, &err), err.msg), "does not fit"));
	rank_close(&k, 0);
	p.job = "staged";
	rank_open(&k, &p, 0);
	MUST_BE(rank_step(&k, 1, CKPT_STAGE_ONLY), 0);
	MUST_OK(ckpt_wait(k.c, 1, CKPT_STAGED, PATIENCE, &err), &err);
	p.fresh = false;
	p.generation = 9;
	rank_close(&k, 0);
	rank_open(&k, &p, 0);
	must_refuse(&k);
	rank_close(&k, 0);
	for (uint64_t step = 1; step <= 3; step++)
		assert_true(host_has(&H, JOB, step));
	assert_int_equal(host_count(&H, JOB, STORE_SET_ASIDE), 0);
}

static void fresh_script(struct rank *k)
{
	rank_open(k, k->plan, k->rank);
	must_refuse(k);
	rank_meet(k);
	if (k->rank == 1)
		MUST_BE(ckpt_fresh(k->c), 0);
	rank_meet(k);
	save(k, 5);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(one_rank_that_means_to_start_over_speaks_for_all)
{
	struct plan_of_job p = plan("fsdp=2");

	start();
	team(&p, save_all, NULL);
	start_again();
	team(&p, fresh_script, NULL);
	assert_true(host_has(&H, JOB, 5));
	assert_int_equal(host_count(&H, JOB, STORE_SET_ASIDE), 4);
}

static bool reattached(struct rank *k, uint64_t times_)
{
	struct ckpt_stats st = { .size = sizeof st };

	return ckpt_stats(k->c, &st) == 0 && st.reattached >= times_;
}

/* What one daemon knew the next one must. */
TEST(a_launch_whose_daemon_dies_is_not_asked_again)
{
	struct plan_of_job p = plan("fsdp=1");
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	start();
	saved(&p, 1, 1);
	for (int how = 0; how < 3; how++) {
		rank_open(&k, &p, 0);
		if (how == 0)
			MUST_BE(ckpt_fresh(k.c), 0);
		if (how == 1)
			MUST_OK(rank_restore(&k, CKPT_LATEST, 0, &got, &err), &err);
		host_kill(&H);
		start();
		MUST(soon(reattached(&k, 1)));
		MUST_OK(ckpt_seal(k.c, PATIENCE, &err), &err);
		if (how == 2)
			must_refuse(&k); /* it never asked */
		else
			save(&k, 20 + 20 * (uint64_t)how);
		host_kill(&H);
		start();
		MUST(soon(reattached(&k, 2)));
		MUST_OK(ckpt_seal(k.c, PATIENCE, &err), &err);
		if (how == 2)
			must_refuse(&k);
		else
			save(&k, 30 + 20 * (uint64_t)how);
		rank_close(&k, 0);
	}
}

TEST(who_was_detached_at_first_is_asked_when_a_daemon_comes)
{
	struct plan_of_job p = plan("fsdp=1");
	struct ckpt_err err = { 0 };
	struct ckpt_got got = { .size = sizeof got };
	struct rank k = { 0 };

	start();
	saved(&p, 1, 2);
	p.flags = CKPT_USE_ENV; /* not REQUIRE */
	for (int how = 0; how < 3; how++) {
		host_stop(&H);
		MUST_OK(rank_attach(&k, &p, 0, &err), &err);
		MUST_OK(rank_declare(&k, &err), &err);
		assert_int_equal(ckpt_seal(k.c, 0, &err), CKPT_SKIPPED);
		assert_non_null(strstr(err.msg, "no daemon"));
		assert_int_equal(rank_step(&k, 3, 0), CKPT_DETACHED);
		assert_int_equal(ckpt_why(k.c, &err), -ECONNREFUSED);
		if (how == 1)
			assert_int_equal(ckpt_fresh(k.c), 0);
		if (how == 2) {
			assert_int_equal(rank_restore(&k, CKPT_LATEST, 0, &got, &err), -ECONNRESET);
			assert_int_equal(rank_step(&k, 3, 0), -EUCLEAN);
		}
		start();
		MUST_OK(ckpt_seal(k.c, PATIENCE, &err), &err);
		if (how == 1) {
			save(&k, 3);
		} else {
			must_refuse(&k);
			MUST_OK(rank_restore(&k, CKPT_LATEST, 0, &got, &err), &err);
			save(&k, got.step + 1);
		}
		rank_close(&k, 0);
	}
}

/* --- ranks that are waited for --- */
#define TO_ATTACH "ranks 0, 1 wait in ckpt_seal for rank 2 to attach"
#define TO_ASK "ranks 0, 1 wait in ckpt_restore for rank 2 to call ckpt_restore"

/* Rank 2 comes when the others' logs have named it. */
static void late_script(struct rank *k)
{
	bool seals = strcmp(k->plan->job, "seals") == 0, late = k->rank == 2;
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err = { 0 };

	if (late && seals)
		MUST(soon(times(LIBRARY, "job seals: " TO_ATTACH) == 2));
	MUST_OK(rank_attach(k, k->plan, k->rank, &err), &err);
	MUST_OK(rank_declare(k, &err), &err);
	if (seals && k->rank == 0) { /* the sentence is there earlier for who does not wait */
		MUST_BE(ckpt_seal(k->c, SEC, &err), CKPT_SKIPPED);
		MUST(strstr(err.msg, "rank 2 to attach"));
		MUST_BE(rank_step(k, 1, 0), CKPT_SKIPPED);
		MUST_BE(ckpt_why(k->c, &err), -ENOENT);
		MUST(strstr(err.msg, "skipped") && strstr(err.msg, "rank 2 to attach"));
	}
	MUST_OK(ckpt_seal(k->c, 2 * PATIENCE, &err), &err);
	if (late && !seals)
		MUST(soon(times(LIBRARY, "job asks: " TO_ASK) == 2));
	MUST_BE(rank_restore(k, 1, CKPT_DRY_RUN, &got, &err), seals ? -ENOENT : 0);
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
	struct plan_of_job p[2] = { plan("fsdp=3"), plan("fsdp=3") }, one = plan("fsdp=1");
	uint64_t began;
	pthread_t t[2];

	start();
	p[0].job = "seals";
	p[1].job = one.job = "asks";
	saved(&one, 1, 1);
	began = now_ns();
	for (int i = 0; i < 2; i++)
		MUST(pthread_create(&t[i], NULL, late_job, &p[i]) == 0);
	MUST(soon(times(LIBRARY, TO_ATTACH) || times(LIBRARY, TO_ASK)));
	assert_true(now_ns() - began >= 5 * SEC);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(times(DAEMON, "job seals: " TO_ATTACH), 1);
	assert_int_equal(times(DAEMON, "job asks: " TO_ASK), 1);
}

/* --- when nothing can be written --- */
TEST(what_cannot_be_written_is_logged_by_the_library_too)
{
	struct plan_of_job p = plan("fsdp=1");
	struct ckpt_err err = { 0 };
	static struct io_faults f; /* until the daemon is closed, in teardown */
	struct rank k = { 0 };

	io_faults_init(&f, &io_ops_posix);
	host_start(&H, IO_THREADS, &f.ops);
	rank_open(&k, &p, 0);
	save(&k, 1);
	for (uint64_t step = 2; step <= 5; step++) {
		if (step == 2)
			io_faults_fail(&f, IO_ON_FALLOCATE | IO_ON_WRITE, 1, -ENOSPC, true);
		if (step == 4) /* another reason is another change */
			io_faults_fail(&f, IO_ON_MKDIR, 1, -EROFS, true);
		MUST_BE(rank_step(&k, step, CKPT_PERSIST),
			step == 3 || step == 5 ? CKPT_FAILING : 0);
		MUST(ckpt_wait(k.c, step, CKPT_COMMITTED, PATIENCE, &err) < 0);
		MUST_BE(ckpt_guard(k.c, NULL), 0);
		MUST_BE(ckpt_why(k.c, &err), step < 4 ? -ENOSPC : -EROFS);
		assert_true(soon(times(LIBRARY, "the daemon cannot write checkpoints") ==
				 1 + (step > 3)));
	}
	io_faults_count(&f, IO_ON_ANY);
	save(&k, 6);
	MUST_BE(ckpt_why(k.c, &err), 0);
	assert_true(soon(times(LIBRARY, "the daemon writes checkpoints again") == 1));
	rank_close(&k, 0);
}

UNIT(.setup = setup, .teardown = teardown);
