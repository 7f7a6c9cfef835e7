/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_moments.c - removal of steps beside others who hold, read, move and commit in the very
 * moment in which it has judged and not yet removed; a repair that dies. What happens meanwhile is
 * done at a named point of the protocol (store/points.h), by another who has the job open.
 */
#include <sched.h>
#include <stdatomic.h>
#include "ckpt/store/repair.h"
#include "tests/crash/job.h"
#include "formats/native/native.h"

static const char *const step10 = "step-000000000010", *const step20 = "step-000000000020",
			 *const step30 = "step-000000000030";

static struct io_faults f;
static struct store *other; /* beside s, which is under f */
static struct io_record *record;

/* What is done once, at which point. */
static const char *at_point;
static void (*meanwhile)(void);
static uint32_t naside; /* steps that were set aside */

static void on_point(void *arg, const char *name)
{
	void (*what)(void) = meanwhile;

	(void)arg;
	naside += strcmp(name, POINT_ASIDE_RENAMED) == 0;
	if (!what || strcmp(name, at_point) != 0)
		return;
	meanwhile = NULL;
	what();
}

static void (*before_lock)(void);

static int m_lock(void *ctx, int fd, bool exclusive)
{
	void (*what)(void) = before_lock;

	before_lock = NULL;
	if (what)
		what();
	return io_ops_posix.lock(ctx, fd, exclusive);
}

static struct store_step found(const char *dir)
{
	struct store_step st;

	if (store_step_look(other, dir, &st))
		fail_msg("%s is not there", dir);
	return st;
}

static enum store_state state_of(uint64_t step)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n, i = 0;

	assert_int_equal(store_scan(other, false, &st, &n, &err), 0);
	while (i < n && st[i].step != step)
		i++;
	assert_true(i < n);
	return st[i].state;
}

/* Steps 10, 20 and 30; the newest is verified. */
static int setup(void **state)
{
	struct store_step newest;

	meanwhile = before_lock = NULL;
	record = NULL;
	(void)job_make_three(state);
	io_faults_init(&f, &io_ops_posix);
	f.on_point = on_point;
	s->ops = &f.ops;
	other = opened(&io_ops_posix);
	newest = found(step30);
	assert_int_equal(store_label_set(other, &newest, LABEL_VERIFIED, NULL, 0, NULL, &err), 0);
	return 0;
}

static int teardown(void **state)
{
	store_close(other);
	io_record_free(record);
	return job_remove(state);
}

/* All but the newest are to go. */
static struct prune_result pruned(struct store *by)
{
	const struct retain_policy last = { .keep_last = 1 };
	const struct prune_opts o = { .policy = &last, .now_ns = wall_ns() };
	struct prune_result ret;

	if (store_prune(by, &o, &ret, &err))
		fail_msg("%s", err.msg);
	return ret;
}

TEST(without_anybody_else_all_but_the_newest_go)
{
	struct prune_result ret = pruned(s);

	assert_true(ret.removed == 2 && ret.kept == 1 && ret.busy == 0 && ret.failed == 0);
	assert_true(!exists(step10) && !exists(step20) && exists(step30));
}

static void hold10(void)
{
	struct store_step st = found(step10);

	assert_int_equal(store_label_set(other, &st, LABEL_HOLD, "eval", 0, NULL, &err), 0);
}

TEST(a_step_that_somebody_held_meanwhile_stays)
{
	struct prune_result ret;

	at_point = POINT_PRUNE_VERIFIED;
	meanwhile = hold10;
	ret = pruned(s);
	assert_true(ret.removed == 1);
	assert_true(exists(step10) && !exists(step20));
}

/* Whole, of the same job and number, and another one. */
static void another10(void)
{
	struct store *elsewhere;
	uint64_t generation;
	int root;

	put_dir(place.fd, "elsewhere");
	root = dir_open(place.fd, "elsewhere");
	if (store_open(&io_ops_posix, &format_native, root, CRASH_JOB, true, &elsewhere, &err) ||
	    store_claim(elsewhere, 0, false, &generation, &err) ||
	    crash_save(elsewhere, 10, 1, UINT64_MAX, &saved[nsaved++], &err))
		fail_msg("%s", err.msg);
	move(step10, "away");
	assert_int_equal(renameat(elsewhere->job_fd, step10, other->job_fd, step10), 0);
	store_close(elsewhere);
	(void)close(root);
}

TEST(what_took_the_place_of_a_step_meanwhile_stays)
{
	at_point = POINT_PRUNE_VERIFIED;
	meanwhile = another10;
	assert_int_equal(pruned(s).removed, 1);
	assert_true(exists(step10) && !exists(step20));
}

static void take30(void)
{
	move(step30, "away");
}

TEST(when_the_newest_step_has_gone_meanwhile_nothing_is_removed)
{
	at_point = POINT_PRUNE_VERIFIED;
	meanwhile = take30;
	assert_int_equal(pruned(s).removed, 0);
	assert_true(exists(step10) && exists(step20));
}

static void quarantine30(void)
{
	struct store_step st = found(step30);

	assert_int_equal(store_label_set(other, &st, LABEL_BAD, NULL, 0, "a chunk is wrong", &err),
			 0);
}

/* By a restore, for instance, after it was verified and before the older ones are gone. */
TEST(when_the_newest_step_is_found_damaged_meanwhile_nothing_is_removed)
{
	at_point = POINT_PRUNE_VERIFIED;
	meanwhile = quarantine30;
	assert_int_equal(pruned(s).removed, 0);
	assert_true(exists(step10) && exists(step20));
}

static uint32_t removed_meanwhile;

static void prune_beside(void)
{
	removed_meanwhile = pruned(other).removed;
}

/* 30 is set aside and 25 is not committed: if it fails, 30 must be there to come back. */
TEST(nothing_is_removed_while_a_job_goes_back)
{
	struct store_step twenty = found(step20);

	assert_int_equal(store_label_set(other, &twenty, LABEL_VERIFIED, NULL, 0, NULL, &err), 0);
	at_point = POINT_ASIDE_SYNCED;
	meanwhile = prune_beside;
	removed_meanwhile = UINT32_MAX;
	assert_int_equal(crash_save(s, 25, 4, 20, &saved[nsaved++], &err), 0);
	assert_int_equal(removed_meanwhile, 0);
	assert_true(exists(step10) && exists(step20) && exists("step-000000000025"));
}

static void claim_beside(void)
{
	uint64_t generation;

	naside = 0;
	if (store_claim(other, 0, false, &generation, &err))
		fail_msg("%s", err.msg);
}

TEST(who_is_fenced_while_he_sets_steps_aside_sets_no_other_one_aside)
{
	at_point = POINT_ASIDE_SYNCED;
	meanwhile = claim_beside;
	assert_int_equal(crash_save(s, 15, 4, 10, &saved[nsaved++], &err), -ESTALE);
	assert_int_equal(naside, 0);
	assert_true(exists(step10) && exists(step20) && exists(step30));
}

/* The next launch: it claims the job, waits, and looks what is there. */
static struct {
	pthread_t thread;
	struct store *s;
	struct io_ops ops;
	atomic_bool blocked, ended;
	uint32_t n;
} next;

static int n_lock(void *ctx, int fd, bool exclusive)
{
	int r = io_ops_posix.lock(ctx, fd, exclusive);

	if (r == -EAGAIN)
		atomic_store(&next.blocked, true);
	return r;
}

static void *next_run(void *arg)
{
	cleanup_free struct store_step *st = NULL;
	struct ckpt_err e;
	uint64_t generation;

	(void)arg;
	if (store_claim(next.s, 0, false, &generation, &e) || store_claim_wait(next.s, &e) ||
	    store_scan(next.s, false, &st, &next.n, &e))
		print_message("%s\n", e.msg);
	atomic_store(&next.ended, true);
	return NULL;
}

static void next_begins(void)
{
	assert_int_equal(pthread_create(&next.thread, NULL, next_run, NULL), 0);
	while (!atomic_load(&next.blocked) && !atomic_load(&next.ended))
		(void)sched_yield();
}

/* Else it would see, and start from, a line whose newest steps are away for a moment. */
TEST(a_launch_that_claims_while_another_sets_aside_finds_all_steps)
{
	memset(&next, 0, sizeof next);
	next.ops = io_ops_posix;
	next.ops.lock = n_lock;
	next.s = opened(&next.ops);
	at_point = POINT_ASIDE_SYNCED;
	meanwhile = next_begins;
	assert_int_equal(crash_save(s, 15, 4, 10, &saved[nsaved++], &err), -ESTALE);
	assert_int_equal(pthread_join(next.thread, NULL), 0);
	assert_int_equal(next.n, 3);
	store_close(next.s);
}

static void trash10(void)
{
	move(step10, ".trash-00c0ffee");
}

TEST(who_opens_a_step_in_the_moment_of_its_removal_is_told_that_it_has_gone)
{
	int fd;

	ops.lock = m_lock;
	s->ops = &ops;
	before_lock = trash10;
	assert_int_equal(store_step_open(s, step10, &fd, &err), -ENOENT);
	assert_int_equal(fd, -1);
	s->ops = &f.ops;
}

static int whole_or_gone(void *arg, int dirfd, const struct io_crash *at)
{
	cleanup_free struct store_step *st = NULL;
	char *why = arg;
	struct store *x;
	uint32_t n, bad = 0, newest = 0;

	if (store_open(at->ops, &format_native, dirfd, CRASH_JOB, false, &x, &err) ||
	    store_scan(x, true, &st, &n, &err)) {
		print_message("%s\n", err.msg);
		return 1;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t k = st[i].step / 10 - 1;

		newest += st[i].step == 30;
		if (st[i].state == STORE_COMMITTED && k < 3 &&
		    crash_step_same(x, st[i].dir, &saved[k], why))
			continue;
		print_message("%s: %s\n", st[i].dir, st[i].why[0] ? st[i].why : why);
		bad++;
	}
	store_close(x);
	return bad || newest != 1;
}

TEST(after_a_power_loss_in_a_removal_a_step_is_whole_or_gone)
{
	const struct io_crash_opts o = {
		.seed = 1, .nrandom = 6, .ntear = 1, .memory = true, .quiet = true
	};
	char why[CRASH_WHY] = "";

	record = io_record_new(place.fd);
	f.record = record;
	assert_int_equal(pruned(s).removed, 2);
	f.record = NULL;
	assert_int_equal(io_crash_states(record, &o, whole_or_gone, why, NULL), 0);
}

static int all_right(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *e)
{
	(void)arg;
	(void)st;
	(void)step_fd;
	(void)e;
	return 0;
}

static void die(void)
{
	io_faults_kill_now(&f);
}

/* Its data may be anything: nobody has read them. */
TEST(a_step_whose_repair_died_before_it_was_checked_is_no_checkpoint)
{
	const struct repair_opts o = { .verify = all_right };
	const char *const point[] = { POINT_REPAIR_RENAMED, POINT_REPAIR_DURABLE };

	for (uint32_t i = 0; i < ARRAY_LEN(point); i++) {
		struct repair_result ret;
		char path[100];

		(void)snprintf(path, sizeof path, "%s/MANIFEST", step30);
		assert_int_equal(unlinkat(other->job_fd, path, 0), 0);
		assert_int_equal(found(step30).state, STORE_DAMAGED);
		at_point = point[i];
		meanwhile = die;
		(void)store_repair(s, &o, &ret, &err);
		assert_int_equal(ret.rebuilt, 0);
		assert_int_equal(state_of(30), STORE_QUARANTINED);
		io_faults_count(&f, IO_ON_ANY);
	}
	assert_int_equal(store_repair(other, &o, &(struct repair_result){ 0 }, &err), 0);
	assert_int_equal(state_of(30), STORE_COMMITTED);
}

UNIT(.setup = setup, .teardown = teardown);
