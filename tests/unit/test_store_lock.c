/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_lock.c - locks of steps and of their line: what is locked is what the name leads to,
 * what cannot be locked or looked at is said, who waits does so for as long as is told and no
 * longer, and what is not given is closed.
 */
#include "tests/crash/job.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

#define STEP "step-000000000010"

static uint32_t files;

/* Naps take no time here: what they wait for comes at one of them, or never does. */
static struct {
	uint64_t n, free_at; /* how many; at which the lock is given back */
	int lock;
} naps;

static int nap(const struct timespec *for_, struct timespec *left)
{
	(void)left;
	assert_true(for_->tv_sec == 0 && for_->tv_nsec > 0);
	if (++naps.n == naps.free_at)
		(void)close(naps.lock);
	return 0;
}

static int setup(void **state)
{
	static struct store at;

	libc_instead.nanosleep = nap;
	memset(&naps, 0, sizeof naps);
	(void)job_place(state);
	at = (struct store){ .ops = &ops,
			     .format = &format_native,
			     .root_fd = -1,
			     .job_fd = place.fd,
			     .job = CRASH_JOB };
	s = &at;
	put_dir(place.fd, STEP);
	files = open_files();
	return 0;
}

static int teardown(void **state)
{
	s = NULL;
	if (open_files() != files)
		return -1;
	return job_remove(state);
}

/* --- a step --- */

static uint32_t swaps; /* how often another one still takes the name when it is locked */

static int lock_what_is_swapped(void *ctx, int fd, bool exclusive)
{
	char away[40];

	(void)ctx;
	if (swaps) {
		(void)snprintf(away, sizeof away, "was-%u", swaps--);
		assert_int_equal(renameat(place.fd, STEP, place.fd, away), 0);
		put_dir(place.fd, STEP);
	}
	return io_ops_posix.lock(NULL, fd, exclusive);
}

TEST(who_holds_a_step_holds_what_its_name_leads_to)
{
	struct stat held, named;
	int fd;

	ops.lock = lock_what_is_swapped;
	for (uint32_t i = 0; i < 2 * STORE_TRIES_MAX; i++) {
		int r;

		swaps = i;
		r = store_hold(s, STEP, i % 2, &fd);
		if (i >= STORE_TRIES_MAX) {
			assert_int_equal(r, -ESTALE);
			assert_int_equal(fd, -1);
		} else {
			assert_int_equal(r, 0);
			assert_int_equal(fstat(fd, &held), 0);
			assert_int_equal(fstatat(place.fd, STEP, &named, 0), 0);
			assert_true(held.st_ino == named.st_ino);
			(void)close(fd);
		}
		assert_int_equal(open_files(), files);
		for (uint32_t k = 1; k <= i; k++) {
			char away[40];

			(void)snprintf(away, sizeof away, "was-%u", k);
			(void)unlinkat(place.fd, away, AT_REMOVEDIR);
		}
	}
}

TEST(what_another_holds_is_not_waited_for)
{
	int fd, other;

	assert_int_equal(store_hold(s, STEP, false, &fd), 0);
	assert_int_equal(store_hold(s, STEP, false, &other), 0);
	(void)close(other);
	assert_int_equal(store_hold(s, STEP, true, &other), -EAGAIN);
	assert_int_equal(other, -1);
	(void)close(fd);
	assert_int_equal(naps.n, 0);
	assert_int_equal(store_hold(s, "step-000000000011", false, &fd), -ENOENT);
	assert_int_equal(fd, -1);
}

static int stat_error, stat_calls, stat_fails_at;
static struct io_stat stat_add; /* to what the second of two looks gives */

static int stat_made_up(void *ctx, int fd, struct io_stat *ret)
{
	(void)ctx;
	assert_int_equal(io_ops_posix.stat(NULL, fd, ret), 0);
	if (++stat_calls == stat_fails_at)
		return stat_error;
	if (stat_calls == 2) {
		ret->dev += stat_add.dev;
		ret->ino += stat_add.ino;
	}
	return 0;
}

TEST(two_directories_are_the_same_only_if_device_and_number_are)
{
	ops.stat = stat_made_up;
	stat_calls = 0;
	assert_int_equal(store_hold_check(s, STEP, place.fd), -ESTALE);
	for (uint32_t i = 0; i < 4; i++) {
		stat_add = (struct io_stat){ .dev = i & 1, .ino = i >> 1 };
		stat_calls = 0;
		assert_int_equal(store_same_check(&ops, place.fd, place.fd), i ? -ESTALE : 0);
	}
	stat_add = (struct io_stat){ 0 };
	assert_int_equal(store_hold_check(s, "none", place.fd), -ENOENT);
}

TEST(a_step_that_cannot_be_looked_at_is_not_held_and_its_lock_is_let_go)
{
	int fd;

	stat_error = -EIO;
	for (stat_fails_at = 1; stat_fails_at <= 2; stat_fails_at++) {
		ops.stat = stat_made_up;
		stat_calls = 0;
		assert_int_equal(store_hold(s, STEP, true, &fd), -EIO);
		assert_int_equal(fd, -1);
		ops.stat = io_ops_posix.stat;
		assert_int_equal(store_hold(s, STEP, true, &fd), 0);
		(void)close(fd);
	}
	stat_fails_at = 0;
}

TEST(where_directories_cannot_be_told_apart_they_are_taken_for_the_same)
{
	int fd;

	ops.stat = NULL;
	assert_int_equal(store_hold(s, STEP, true, &fd), 0);
	assert_int_equal(store_hold_check(s, STEP, place.fd), 0);
	(void)close(fd);
}

static int lock_error;

static int lock_refused(void *ctx, int fd, bool exclusive)
{
	(void)ctx;
	(void)fd;
	(void)exclusive;
	return lock_error;
}

/* Who reads goes on without a lock, who removes does not. */
TEST(where_there_are_no_locks_steps_are_read_and_not_removed)
{
	int fd;

	ops.lock = lock_refused;
	lock_error = -EOPNOTSUPP;
	assert_int_equal(store_hold(s, STEP, false, &fd), 0);
	(void)close(fd);
	assert_int_equal(store_hold(s, STEP, true, &fd), -EOPNOTSUPP);
	assert_int_equal(fd, -1);
}

/* --- the line --- */

TEST(the_line_without_locks_is_no_error_for_who_sets_aside_and_one_for_who_removes)
{
	int fd = 0;

	ops.lock = lock_refused;
	lock_error = -EOPNOTSUPP;
	assert_int_equal(store_line_lock(s, true, true, &fd), 0);
	assert_int_equal(fd, -1);
	assert_int_equal(store_line_lock(s, false, false, &fd), -EOPNOTSUPP);
	assert_int_equal(fd, -1);
	assert_int_equal(store_claim_wait(s, &err), 0);
	lock_error = -ENOLCK;
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(store_line_lock(s, i, true, &fd), -ENOLCK);
		assert_int_equal(fd, -1);
	}
	assert_int_equal(naps.n, 0);
}

TEST(who_removes_does_not_wait_for_the_line)
{
	int line, fd;

	assert_int_equal(store_line_lock(s, true, true, &line), 0);
	assert_int_equal(store_line_lock(s, false, false, &fd), -EAGAIN);
	assert_int_equal(fd, -1);
	assert_int_equal(naps.n, 0);
	(void)close(line);
}

TEST(who_has_claimed_waits_until_the_line_is_given_back)
{
	assert_int_equal(store_line_lock(s, true, true, &naps.lock), 0);
	naps.free_at = 100;
	assert_int_equal(store_claim_wait(s, &err), 0);
	assert_int_equal(naps.n, 100);
	assert_int_equal(store_claim_wait(s, &err), 0);
	assert_int_equal(naps.n, 100);
}

TEST(who_has_claimed_is_told_when_the_line_is_never_given_back)
{
	int line;

	assert_int_equal(store_line_lock(s, true, true, &line), 0);
	assert_int_equal(store_claim_wait(s, &err), -EBUSY);
	assert_int_equal(err.code, -EBUSY);
	assert_non_null(strstr(err.msg, "job " CRASH_JOB));
	assert_non_null(strstr(err.msg, "does not end"));
	assert_in_range(naps.n, 1000, 10000);
	(void)close(line);
}

TEST(who_has_claimed_is_told_when_the_line_cannot_be_locked)
{
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	io_faults_fail(&f, IO_ON_LOCK, 1, -EIO, false);
	assert_int_equal(store_claim_wait(s, &err), -EIO);
	assert_non_null(strstr(err.msg, "job " CRASH_JOB ": cannot lock its directory"));
	memset(&err, 0, sizeof err);
	io_faults_fail(&f, IO_ON_OPEN, 1, -EMFILE, false);
	assert_int_equal(store_claim_wait(s, &err), -EMFILE);
	assert_non_null(strstr(err.msg, "ulimit"));
}

UNIT(.setup = setup, .teardown = teardown);
