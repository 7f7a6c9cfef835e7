/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_here.c - a directory is looked up by its name: once it was moved, removed or replaced,
 * whoever had it open claims nothing in it, commits nothing, sets nothing aside and removes
 * nothing, at whatever moment of its work that happened; and when it is back it is the old store.
 */
#include "ckpt/store/prune.h"
#include "tests/crash/job.h"
#include "formats/native/native.h"

enum way {
	JOB_MOVED,
	JOB_MADE_ANEW,
	JOB_REMOVED,
	JOB_LINKED, /* to where it was moved */
	JOB_A_FILE,
	ROOT_MOVED,
	ROOT_MADE_ANEW,
	ROOT_A_FILE,
	WAYS,
};

static int root; /* a directory in the place, and the store */
static struct io_faults f;

/* Of the run: at which of its points the directory goes, and how. */
static struct {
	enum way way;
	uint64_t at, seen; /* counted from 1; at 0: never */
	bool over;	   /* the commit's rename was made, or a removal's check */
} plan;

static void take_away(enum way way)
{
	int fd;

	if (way < ROOT_MOVED && way != JOB_REMOVED)
		assert_int_equal(renameat(root, CRASH_JOB, root, "kept"), 0);
	if (way >= ROOT_MOVED)
		assert_int_equal(renameat(place.fd, "root", place.fd, "kept"), 0);
	switch (way) {
	case JOB_MADE_ANEW:
		put_dir(root, CRASH_JOB);
		break;
	case JOB_REMOVED:
		assert_int_equal(io_tree_remove(root, CRASH_JOB), 0);
		break;
	case JOB_LINKED:
		assert_int_equal(symlinkat("kept", root, CRASH_JOB), 0);
		break;
	case ROOT_MADE_ANEW:
		put_dir(place.fd, "root");
		break;
	case JOB_A_FILE:
	case ROOT_A_FILE:
		fd = openat(way == JOB_A_FILE ? root : place.fd,
			    way == JOB_A_FILE ? CRASH_JOB : "root",
			    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		(void)close(fd);
		break;
	case JOB_MOVED:
	case ROOT_MOVED:
	case WAYS:
		break;
	}
}

static void bring_back(enum way way)
{
	int at = way >= ROOT_MOVED ? place.fd : root;
	const char *name = way >= ROOT_MOVED ? "root" : CRASH_JOB;

	(void)unlinkat(at, name, 0);
	(void)unlinkat(at, name, AT_REMOVEDIR);
	assert_int_equal(renameat(at, "kept", at, name), 0);
}

static void at_point(void *arg, const char *name)
{
	(void)arg;
	plan.over |= name == POINT_COMMIT_RENAMED || !strcmp(name, POINT_COMMIT_RENAMED) ||
		     !strcmp(name, POINT_REMOVE_CHECKED);
	if (!plan.over && ++plan.seen == plan.at)
		take_away(plan.way);
}

/* Steps 10, 20 and 30. */
static int setup(void **state)
{
	(void)job_place(state);
	memset(&plan, 0, sizeof plan);
	put_dir(place.fd, "root");
	root = dir_open(place.fd, "root");
	io_faults_init(&f, &io_ops_posix);
	f.on_point = at_point;
	if (store_open(&f.ops, &format_native, root, CRASH_JOB, true, &s, &err))
		return -1;
	(void)claimed(s, 0, false);
	for (uint64_t step = 10; step <= 30; step += 10)
		save(step, step == 10 ? UINT64_MAX : step - 10);
	return 0;
}

static int teardown(void **state)
{
	(void)close(root);
	return job_remove(state);
}

static void begin_plan(enum way way, uint64_t at)
{
	plan.way = way;
	plan.at = at;
	plan.seen = 0;
	plan.over = false;
}

/* Steps and claims of the directory that is open: as they were. */
static void assert_untouched(enum way way, uint64_t at)
{
	struct store_step *st = NULL;
	struct store_claimed top;
	uint32_t n = 0;
	char why[CRASH_WHY], dir[STORE_DIR_MAX];

	if (way == JOB_REMOVED)
		return;
	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	if (n != 3)
		fail_msg("way %d, point %" PRIu64 ": %" PRIu32 " steps are left", way, at, n);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(st[i].state, STORE_COMMITTED);
	free(st);
	for (uint32_t i = 0; i < 3; i++) {
		store_name_step(10 * (i + 1), dir);
		if (!crash_step_same(s, dir, &saved[i], why))
			fail_msg("way %d, point %" PRIu64 ": %s", way, at, why);
	}
	assert_int_equal(store_claim_highest(s, &top, &err), 0);
	assert_true(top.generation == 1 && top.takeover == 0);
}

static uint32_t entries;
static int entry(void *arg, const char *name, unsigned char type)
{
	(void)arg;
	(void)name;
	(void)type;
	entries++;
	return 0;
}

/* What took its place is not written to either. */
static void assert_new_one_empty(enum way way)
{
	int at = way == ROOT_MADE_ANEW ? place.fd : root, fd;

	if (way != JOB_MADE_ANEW && way != ROOT_MADE_ANEW)
		return;
	fd = dir_open(at, way == ROOT_MADE_ANEW ? "root" : CRASH_JOB);
	assert_true(fd >= 0);
	entries = 0;
	assert_int_equal(io_ops_posix.list(NULL, fd, entry, NULL), 0);
	assert_int_equal(entries, 0);
	(void)close(fd);
}

static void assert_said(int rc)
{
	assert_int_equal(rc, -EIO);
	assert_non_null(
		strstr(err.msg, "the directory of job " CRASH_JOB " was moved or replaced"));
}

TEST(nothing_is_claimed_or_begun_in_a_directory_that_its_name_does_not_lead_to)
{
	struct prune_result got;
	const struct retain_policy last = { .keep_last = 1 };
	const struct prune_opts o = { .policy = &last };
	struct store_txn *x;
	uint64_t generation;

	for (enum way way = 0; way < WAYS; way++) {
		assert_int_equal(store_here(s, &err), 0);
		take_away(way);
		assert_said(store_here(s, &err));
		assert_said(store_claim(s, 0, false, &generation, &err));
		assert_said(store_begin(s, 40, &x, &err));
		assert_said(store_prune(s, &o, &got, &err));
		assert_untouched(way, 0);
		assert_new_one_empty(way);
		if (way == JOB_REMOVED) { /* it cannot come back; the next has a store of its own */
			AFRESH();
			continue;
		}
		bring_back(way);
		assert_int_equal(store_here(s, &err), 0);
		assert_untouched(way, 0);
	}
	save(40, 30);
}

/* Its rename is the last moment. The step goes back, so that one is set aside. */
static int go_back(enum way way, uint64_t at)
{
	struct store_txn *x;
	struct crash_step now = { 0 };
	int rc;

	begin_plan(way, at);
	rc = crash_begin(s, 25, 9, &x, &now, &err);
	if (rc == 0)
		rc = crash_commit(x, &now, 20, &err);
	crash_step_free(&now);
	return rc;
}

TEST(a_commit_and_what_it_sets_aside_stop_at_whatever_moment_the_directory_goes)
{
	uint64_t points;
	uint32_t looked = 0;

	assert_int_equal(go_back(JOB_MOVED, 0), 0);
	points = plan.seen;
	assert_true(points > 10);
	for (enum way way = 0; way < WAYS; way++)
		for (uint64_t at = 1; at <= points; at++) {
			AFRESH();
			assert_true(go_back(way, at) < 0);
			if (way != JOB_REMOVED) /* which may be met as a file that is not there */
				assert_said(err.code);
			begin_plan(way, 0);
			assert_untouched(way, at);
			assert_new_one_empty(way);
			looked++;
		}
	print_message("%" PRIu32 " moments\n", looked);
}

static int verify(void *arg, const struct store_step *st, int fd, struct ckpt_err *e)
{
	(void)arg;
	(void)st;
	(void)fd;
	(void)e;
	return 0;
}

TEST(a_removal_stops_at_whatever_moment_the_directory_goes)
{
	struct prune_result got;
	const struct retain_policy last = { .keep_last = 1 };
	const struct prune_opts o = { .policy = &last, .verify = verify };
	uint64_t points;

	begin_plan(JOB_MOVED, 0);
	assert_int_equal(store_prune(s, &o, &got, &err), 0);
	assert_int_equal(got.removed, 2);
	points = plan.seen;
	assert_true(points > 1);
	for (enum way way = 0; way < WAYS; way++)
		for (uint64_t at = 1; at <= points; at++) {
			AFRESH();
			begin_plan(way, at);
			(void)store_prune(s, &o, &got, &err);
			if (way != JOB_REMOVED)
				assert_int_equal(got.removed, 0);
			begin_plan(way, 0);
			assert_untouched(way, at);
		}
}

TEST(where_a_root_s_path_is_not_seen_the_job_s_name_still_is)
{
	static struct io_ops blind; /* of the store, until it is closed */

	store_close(s);
	blind = f.ops;
	blind.path = NULL;
	assert_int_equal(store_open(&blind, &format_native, root, CRASH_JOB, false, &s, &err), 0);
	assert_null(s->root);
	take_away(ROOT_MOVED);
	assert_int_equal(store_here(s, &err), 0);
	take_away(JOB_MOVED);
	assert_said(store_here(s, &err));
}

UNIT(.setup = setup, .teardown = teardown);
