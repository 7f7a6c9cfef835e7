/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_rules.c - rules of the store that only matter in one moment, or when two things go
 * wrong: each is a planted mistake (ckpt/base/mutants.h) that no run over all calls had found. A
 * system call of the table is replaced, and does in that moment what another process or a bad disk
 * would.
 */
#include <semaphore.h>
#include "tests/crash/job.h"
#include "formats/native/native.h"

/* What happens before the first call that fits; NULL: nothing (any more). */
static struct {
	void (*before_claim)(void);    /* a claim's file is created */
	void (*before_manifest)(void); /* a committed MANIFEST is opened */
	void (*after_manifest)(void);
	void (*before_unlink)(void);
	void (*before_commit)(void); /* a collecting directory is renamed to step-N */
	bool part_sync_fails, part_close_fails, parts_stay;
	int part_fd;
} moment;

static void now(void (**what)(void))
{
	void (*f)(void) = *what;

	*what = NULL;
	if (f)
		f();
}

static bool is_part(const char *name)
{
	size_t n = strlen(name);

	return n > 5 && strcmp(name + n - 5, ".part") == 0;
}

static int m_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	bool manifest = !strncmp(name, "step-", 5) && strstr(name, "/MANIFEST");
	int fd;

	if (flags & O_CREAT && !strncmp(name, STORE_CLAIMS "/gen-", 11))
		now(&moment.before_claim);
	if (manifest)
		now(&moment.before_manifest);
	fd = io_ops_posix.open(ctx, dirfd, name, flags, mode);
	if (manifest)
		now(&moment.after_manifest);
	if (flags & O_CREAT && is_part(name))
		moment.part_fd = fd;
	return fd;
}

static int m_sync(void *ctx, int fd)
{
	if (fd == moment.part_fd && TAKE(moment.part_sync_fails))
		return -EIO;
	return io_ops_posix.sync(ctx, fd);
}

static int m_close(void *ctx, int fd)
{
	bool fails = fd == moment.part_fd && TAKE(moment.part_close_fails);
	int r = io_ops_posix.close(ctx, fd);

	return fails ? -EIO : r;
}

static int m_unlink(void *ctx, int dirfd, const char *name, bool is_dir)
{
	if (is_part(name) && moment.parts_stay)
		return -EIO;
	if (!is_dir)
		now(&moment.before_unlink);
	return io_ops_posix.unlink(ctx, dirfd, name, is_dir);
}

static int m_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	if (!strncmp(to, "step-", 5))
		now(&moment.before_commit);
	return io_ops_posix.rename(ctx, dirfd, from, to);
}

static int setup(void **state)
{
	memset(&moment, 0, sizeof moment);
	moment.part_fd = -1;
	(void)job_place(state);
	ops.open = m_open;
	ops.sync = m_sync;
	ops.close = m_close;
	ops.unlink = m_unlink;
	ops.rename = m_rename;
	s = opened(&ops);
	return 0;
}

/* The only step there is: its state; STORE_COLLECTING when there is none but those. */
static enum store_state look(const struct store *by)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	assert_int_equal(store_scan(by, false, &st, &n, &err), 0);
	assert_true(n <= 1);
	return n ? st->state : STORE_COLLECTING;
}

/* --- claims --- */

static struct store *rival;
static uint64_t rival_has, rival_wants;

static void rival_claims(void)
{
	rival_has = claimed(rival, rival_wants, false);
}

TEST(two_that_claim_in_one_moment_have_different_launches)
{
	uint64_t mine;

	rival = opened(&io_ops_posix);
	rival_wants = 0;
	moment.before_claim = rival_claims;
	mine = claimed(s, 0, false);
	assert_int_equal(rival_has, 1);
	assert_int_equal(mine, 2);
	assert_int_equal(store_claim_check(rival, &err), -ESTALE);
	store_close(rival);
}

TEST(a_claim_that_is_overtaken_while_it_is_made_does_not_stand)
{

	rival = opened(&io_ops_posix);
	rival_wants = 7;
	moment.before_claim = rival_claims;
	assert_int_equal(claimed(s, 0, false), 8);
	store_close(rival);
}

/* --- the claim of a first mark --- */
static void rival_saves(void)
{
	assert_int_equal(try_save(rival, 20, 2, 10), 0);
}

/* It restored a step, and another one was committed behind that: before it looks, or between its
 * look and its claim. The other launch keeps the job. */
TEST(a_first_mark_takes_nothing_if_a_step_was_committed_since_it_restored)
{
	for (int meanwhile = 0; meanwhile < 2; meanwhile++) {
		uint64_t generation = 0;

		AFRESH();
		rival = opened(&io_ops_posix);
		(void)claimed(rival, 0, false);
		assert_int_equal(try_save(rival, 10, 1, UINT64_MAX), 0);
		if (meanwhile)
			moment.before_claim = rival_saves;
		else
			rival_saves();
		assert_int_equal(store_claim_first(s, 1, &generation, &err), -ESTALE);
		assert_non_null(strstr(err.msg, "launch 1 has committed step 20"));
		assert_int_equal(generation, 0);
		assert_int_equal(store_claim_check(rival, &err), 0);
		assert_int_equal(try_save(rival, 30, 3, 20), 0);
		/* It has restored that one. */
		assert_int_equal(store_claim_first(s, 3, &generation, &err), 0);
		assert_int_equal(generation, 2);
		assert_int_equal(store_claim_check(rival, &err), -ESTALE);
		store_close(rival);
	}
}

static void rival_claims_always(void)
{
	rival_claims();
	moment.before_claim = rival_claims_always;
}

TEST(a_claim_that_is_overtaken_at_every_try_gives_up_and_says_so)
{
	uint64_t generation;

	rival = opened(&io_ops_posix);
	rival_wants = 0;
	moment.before_claim = rival_claims_always;
	assert_int_equal(store_claim(s, 0, false, &generation, &err), -EBUSY);
	assert_non_null(strstr(err.msg, "several daemons are claiming"));
	assert_int_equal(rival_has, STORE_TRIES_MAX);
	moment.before_claim = NULL;
	store_close(rival);
}

/* --- a launch that ends in the middle of its commit --- */

static struct {
	sem_t about, go;
	struct store *s;
	pthread_t thread;
	int result;
	struct ckpt_err err;
} owner;

static void owner_waits(void)
{
	(void)sem_post(&owner.about);
	(void)sem_wait(&owner.go);
}

static void *owner_saves(void *arg)
{
	(void)arg;
	owner.result = crash_save(owner.s, 10, 1, UINT64_MAX, &saved[nsaved++], &owner.err);
	return NULL;
}

static void owner_ends(void)
{
	(void)sem_post(&owner.go);
	assert_int_equal(pthread_join(owner.thread, NULL), 0);
}

/* The owner has looked at the claims and is about to rename; the next launch has begun to sweep. */
TEST(what_a_sweep_has_begun_to_remove_is_never_committed)
{
	owner.s = s;
	rival = opened(&ops);
	assert_int_equal(claimed(owner.s, 0, false), 1);
	assert_int_equal(sem_init(&owner.about, 0, 0), 0);
	assert_int_equal(sem_init(&owner.go, 0, 0), 0);
	moment.before_commit = owner_waits;
	assert_int_equal(pthread_create(&owner.thread, NULL, owner_saves, NULL), 0);
	(void)sem_wait(&owner.about);
	moment.before_unlink = owner_ends;
	assert_int_equal(claimed(rival, 0, false), 2);
	assert_int_equal(owner.result, -ESTALE);
	assert_int_equal(look(rival), STORE_COLLECTING);
	store_close(rival);
	(void)sem_destroy(&owner.about);
	(void)sem_destroy(&owner.go);
}

/* --- looking --- */

static void step_away(void)
{
	assert_int_equal(renameat(rival->job_fd, "step-000000000010", rival->job_fd, "away"), 0);
}

static void step_back(void)
{
	assert_int_equal(renameat(rival->job_fd, "away", rival->job_fd, "step-000000000010"), 0);
}

TEST(a_step_that_moved_in_the_moment_of_a_look_is_looked_at_again)
{

	rival = s;
	(void)claimed(s, 0, false);
	save(10, UINT64_MAX);
	moment.before_manifest = step_away;
	moment.after_manifest = step_back;
	assert_int_equal(look(s), STORE_COMMITTED);
}

/* --- two things that go wrong --- */

TEST(a_dead_part_that_stays_forbids_the_commit)
{

	(void)claimed(s, 0, false);
	moment.part_sync_fails = moment.parts_stay = true;
	assert_int_equal(try_save(s, 10, 1, UINT64_MAX), -EIO);
	moment.parts_stay = false;
	assert_int_equal(look(s), STORE_COLLECTING);
}

TEST(a_part_whose_close_fails_is_given_up)
{
	struct store_txn *x;
	bool direct = false;
	char name[40];
	int fd;

	(void)claimed(s, 0, false);
	assert_int_equal(store_begin(s, 10, &x, &err), 0);
	assert_int_equal(store_part_create(x, 0, 4096, &direct, name, &fd, &err), 0);
	moment.part_close_fails = true;
	assert_int_equal(store_part_finish(x, name, fd, 0, NULL, &err), -EIO);
	assert_int_not_equal(faccessat(x->fd, name, F_OK, AT_SYMLINK_NOFOLLOW), 0);
	store_abort(x);
}

/* --- the first launch of a job --- */

static int first_is_there(void *arg, int dirfd, const struct io_crash *at)
{
	struct store *again;
	bool same;

	if (at->promise == 0)
		return 0;
	if (store_open(at->ops, &format_native, dirfd, CRASH_JOB, false, &again, &err)) {
		print_message("%s\n", err.msg);
		return 1;
	}
	same = crash_step_same(again, "step-000000000010", &saved[0], arg);
	if (!same)
		print_message("%s\n", (const char *)arg);
	store_close(again);
	return !same;
}

TEST_WITH(the_first_step_of_a_new_job_survives_a_power_loss_with_its_directories, job_place,
	  job_remove)
{
	const struct io_crash_opts o = {
		.seed = 1, .nrandom = 4, .ntear = 1, .memory = true, .quiet = true
	};
	char why[CRASH_WHY];
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(place.fd);
	s = opened(&f.ops);
	(void)claimed(s, 0, false);
	save(10, UINT64_MAX);
	io_record_promise(f.record, 1);
	store_close(TAKE(s));
	assert_int_equal(io_crash_states(f.record, &o, first_is_there, why, NULL), 0);
	io_record_free(f.record);
}

/* --- labels --- */

#define UNTIL UINT64_C(4102444800000000000) /* 2100 */

static int hold_is_there(void *arg, int dirfd, const struct io_crash *at)
{
	cleanup_free struct store_label *said = NULL;
	struct store *again;
	uint32_t n = 0;
	int r;

	(void)arg;
	if (at->promise == 0)
		return 0;
	r = store_open(at->ops, &format_native, dirfd, CRASH_JOB, false, &again, &err);
	if (!r) {
		r = store_labels(again, &said, &n, &err);
		store_close(again);
	}
	return r || n != 1 || said->unread || said->until_ns != UNTIL ||
	       strcmp(said->why, "it is the best") != 0;
}

TEST(a_hold_that_was_acknowledged_survives_a_power_loss_with_what_it_says)
{
	const struct io_crash_opts o = {
		.seed = 1, .nrandom = 4, .ntear = 4, .memory = true, .quiet = true
	};
	cleanup_free struct store_step *st = NULL;
	struct io_faults f;
	uint32_t n;

	(void)claimed(s, 0, false);
	save(10, UINT64_MAX);
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(place.fd);
	s->ops = &f.ops;
	assert_int_equal(store_scan(s, false, &st, &n, &err), 0);
	assert_int_equal(store_label_set(s, st, LABEL_HOLD, "eval", UNTIL, "it is the best", &err),
			 0);
	io_record_promise(f.record, 1);
	s->ops = &ops;
	assert_int_equal(io_crash_states(f.record, &o, hold_is_there, NULL, NULL), 0);
	io_record_free(f.record);
}

UNIT(.setup = setup, .teardown = job_remove);
