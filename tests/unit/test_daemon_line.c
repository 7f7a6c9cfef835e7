/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_line.c - the line of steps that a launch commits: each is newer than those before it,
 * and none is set aside because it could not be read for a moment.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <poll.h>
#include <stdatomic.h>

static struct io_ops ops;
static atomic_bool unreadable; /* the MANIFEST of every step */

static int l_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if (atomic_load(&unreadable) && !(flags & O_CREAT) && strstr(name, "/MANIFEST"))
		return -EIO;
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

/* Until it is attached again, where a daemon has come anew. */
static void must_stage(struct rank *k, uint64_t step)
{
	int rc = 1;

	for (int i = 0; i < 600 && rc > 0; i++) {
		rc = rank_step(k, step, CKPT_PERSIST);
		rc = rc == CKPT_FAILING ? 0 : rc; /* the step before could not be written */
		if (rc > 0) {
			(void)ckpt_guard(k->c, NULL);
			(void)poll(NULL, 0, 50);
		}
	}
	MUST_BE(rc, 0);
	MUST_BE(rank_wait(k, step, CKPT_STAGED), 0);
	(void)ckpt_guard(k->c, NULL);
}

static void must_commit(struct rank *k, uint64_t step)
{
	must_stage(k, step);
	must_wait(k, step, CKPT_COMMITTED);
}

static void must_fail(struct rank *k, uint64_t step)
{
	must_stage(k, step);
	MUST_BE(rank_wait(k, step, CKPT_COMMITTED), -EIO);
	assert_non_null(strstr(k->err.msg, "cannot be read now"));
}

static uint64_t seq_of(uint64_t step)
{
	struct checkpoint *c = host_open(&H, "line", step);
	uint64_t seq = c->seq;

	checkpoint_free(c);
	return seq;
}

TEST(what_cannot_be_read_for_a_moment_stays_in_its_line_and_older_than_what_follows)
{
	struct plan_of_job p = plan("line", "fsdp=1", .rows = 1000, .shared_only = true);
	uint64_t last, step[8];
	uint32_t aside;

	host_start(&H, &ops);
	rank_open(&K, &p, 0);
	must_commit(&K, 10);
	atomic_store(&unreadable, true);
	must_commit(&K, 20);
	atomic_store(&unreadable, false);
	must_commit(&K, 30);
	assert_int_equal(host_count(&H, "line", STORE_SET_ASIDE), 0);
	for (uint64_t i = 10; i <= 30; i += 10)
		assert_true(host_has(&H, "line", i));
	assert_true(seq_of(20) > seq_of(10));
	assert_true(seq_of(30) > seq_of(20));
	last = seq_of(30);
	rank_close(&K, 0);
	rank_open(&K, &p, 0); /* the next launch */
	must_restore(&K, CKPT_LATEST, 0);
	assert_int_equal(K.got.step, 30);
	atomic_store(&unreadable, true);
	must_commit(&K, 40);
	atomic_store(&unreadable, false);
	assert_int_equal(host_count(&H, "line", STORE_SET_ASIDE), 0);
	assert_true(seq_of(40) > last);
	assert_int_equal(host_committed(&H, "line", step, 8), 4);
	assert_int_equal(step[0], 40);
	rank_close(&K, 0);
	last = seq_of(40);
	p.fresh = true;
	rank_open(&K, &p, 0); /* one that restores nothing: all others are set aside */
	p.fresh = false;
	aside = 4;
	must_commit(&K, 50);
	assert_true(seq_of(50) > last);
	/* a daemon that comes in the middle of it and can read nothing */
	last = seq_of(50);
	host_kill(&H);
	atomic_store(&unreadable, true);
	host_start(&H, &ops);
	must_fail(&K, 60);
	assert_int_equal(host_count(&H, "line", STORE_SET_ASIDE), aside);
	atomic_store(&unreadable, false);
	must_commit(&K, 70);
	assert_int_equal(host_count(&H, "line", STORE_SET_ASIDE), aside);
	assert_true(seq_of(70) > last);
	last = seq_of(70);
	rank_close(&K, 0);
	rank_open(&K, &p, 0); /* one that knows its line */
	must_restore(&K, CKPT_LATEST, 0);
	host_kill(&H);
	atomic_store(&unreadable, true);
	host_start(&H, &ops);
	must_commit(&K, 80);
	atomic_store(&unreadable, false);
	assert_true(seq_of(80) > last);
}

/* It has none of its own there, so there is nothing to wait for. */
TEST(a_launch_that_begins_anew_commits_beside_what_cannot_be_read)
{
	struct plan_of_job p = plan("line", "fsdp=1", .rows = 1000, .shared_only = true);

	host_start(&H, &ops);
	rank_open(&K, &p, 0);
	must_commit(&K, 10);
	rank_close(&K, 0);
	atomic_store(&unreadable, true);
	p.fresh = true;
	rank_open(&K, &p, 0);
	must_commit(&K, 20);
	must_commit(&K, 30);
	atomic_store(&unreadable, false);
	assert_int_equal(host_count(&H, "line", STORE_SET_ASIDE), 1);
	assert_true(host_has(&H, "line", 20) && host_has(&H, "line", 30));
}

static int setup(void **state)
{
	(void)host_setup(state);
	ops = host_ops;
	ops.open = l_open;
	atomic_store(&unreadable, false);
	return 0;
}
UNIT(.setup = setup, .teardown = host_teardown);
