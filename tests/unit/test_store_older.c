/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_older.c - steps that an older version wrote are listed, refused by each name with the
 * version that reads them, set aside by who begins anew, and removed by their name alone.
 */
#include "ckpt/store/lineage.h"
#include "ckpt/store/prune.h"
#include "ckpt/store/repair.h"
#include "ckpt/store/rewind.h"
#include "tests/crash/job.h"
#include "tests/lib/libc.h"
#include "tests/lib/older.h"
#include "formats/native/native.h"

static int setup(void **state)
{
	libc_instead.clock_gettime = libc_fixed_time;
	(void)job_place(state);
	if (!older_store(place.path))
		return -1;
	s = opened(&ops);
	(void)claimed(s, 0, false);
	return 0;
}

static int verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *why)
{
	return 0;
}

static void assert_listed(const char *want)
{
	char text[200];

	listed(s, true, text);
	assert_string_equal(text, want);
}

TEST(what_an_older_version_wrote_stands_where_its_number_puts_it)
{
	cleanup_free struct store_step *st = NULL;
	char dir[STORE_DIR_MAX];
	uint32_t n;

	assert_listed("o30-0 o20-0 o10-0");
	assert_int_equal(store_scan_parts(s, true, NULL, &st, &n, &err), 0);
	for (uint32_t i = 0; i < n; i++) {
		assert_string_equal(st[i].why, "format 0.0 of ckptd 0.1; this program reads 0.2");
		assert_true(st[i].older && st[i].code == -EPROTONOSUPPORT && st[i].bytes > 100000);
		assert_true(store_step_older(&st[i]) && !store_step_newer(&st[i]));
		assert_true(store_step_lost(&st[i]) && !store_step_unread(&st[i]));
	}
	store_older_newest(s, dir);
	assert_string_equal(dir, "step-000000000030");
	save(40, 30);
	store_older_newest(s, dir);
	assert_string_equal(dir, "");
	assert_listed("40-1 o30-0 o20-0 o10-0");
}

static void assert_refused(const char *name)
{
	struct store_ref ref;

	assert_int_equal(store_resolve(&ops, &format_native, place.path, name, &ref, &err),
			 -EPROTONOSUPPORT);
	if (!strstr(err.msg, "has format 0.0 of ckptd 0.1; this program reads 0.2"))
		fail_msg("%s: %s", name, err.msg);
}

TEST(each_name_says_which_version_reads_it)
{
	static const char *const name[] = { "latest",	"latest~1",    "30",	 "step:10",
					    "tag:best", "demo@latest", "demo@20" };
	struct store_ref ref;

	for (uint32_t i = 0; i < ARRAY_LEN(name); i++)
		assert_refused(name[i]);
	assert_int_equal(store_resolve_any(&ops, &format_native, place.path, "latest", &ref, &err),
			 -EPROTONOSUPPORT);
	assert_int_equal(
		store_resolve_any(&ops, &format_native, place.path, "tag:best", &ref, &err), 0);
	assert_string_equal(ref.dir, "step-000000000020");
	(void)close(ref.step_fd);
	assert_int_equal(store_resolve_any(&ops, &format_native, place.path, "step:10", &ref, &err),
			 0);
	(void)close(ref.step_fd);
	save(40, 30); /* what this version wrote above them is the latest */
	assert_int_equal(store_resolve(&ops, &format_native, place.path, "latest", &ref, &err), 0);
	assert_string_equal(ref.dir, "step-000000000040");
	assert_string_equal(ref.note, "");
	(void)close(ref.step_fd);
	assert_refused("latest~1");
}

TEST(who_begins_anew_sets_them_aside)
{
	const struct lineage_ask ask = { .how = LINEAGE_NEXT,
					 .job = CRASH_JOB,
					 .step = 5,
					 .generation = 2,
					 .continues = UINT64_MAX };
	struct rewind_opts o = { .dir = ".old-000000000020-s0-t1800000000" };
	struct rewind_result result;
	struct lineage at;

	assert_int_equal(lineage_scan(s, &ask, &at, &err), 0);
	assert_true(at.seq == 4 && at.parent_step == UINT64_MAX);
	assert_int_equal(try_save(s, 5, at.seq, at.rewind), 0);
	assert_listed("5-4 a30-0 a20-0 a10-0");
	assert_true(exists(".old-000000000010-s0-t1800000000"));
	assert_int_equal(try_save(s, 7, 5, 5), 0);
	assert_listed("7-5 5-4 a30-0 a20-0 a10-0");
	assert_int_equal(store_rewind(s, &o, &result, &err), -EPROTONOSUPPORT);
	assert_non_null(strstr(err.msg, "ckptd 0.1"));
	/* A step of this version that comes back is stopped by none of them. */
	assert_int_equal(try_save(s, 6, 6, UINT64_MAX), 0);
	o.dir = ".old-000000000007-s5-t1800000000";
	assert_int_equal(store_rewind(s, &o, &result, &err), 0);
	assert_listed("a6-6 7-5 5-4 a30-0 a20-0 a10-0");
}

static int row_check(const struct store_step *st, const struct retain_row *row)
{
	return store_step_older(st) && (row->remove || !strstr(row->reason, "format 0.0"));
}

static void row(void *arg, const struct store_step *st, const struct retain_row *row)
{
	*(int *)arg += row_check(st, row);
}

TEST(no_policy_removes_them)
{
	static const struct retain_policy p = { .keep_last = 1, .set_aside_for_ns = 1 };
	int wrong = 0;
	const struct prune_opts o = { .policy = &p,
				      .bad = true,
				      .set_aside = true,
				      .verify = verify,
				      .now_ns = UINT64_MAX,
				      .row = row,
				      .arg = &wrong };
	const struct repair_opts r = { .verify = verify };
	struct repair_result repaired;
	struct prune_result pruned;

	save(40, 30);
	save(50, 40);
	assert_int_equal(store_prune(s, &o, &pruned, &err), 0);
	assert_listed("50-2 o30-0 o20-0 o10-0");
	assert_int_equal(store_repair(s, &r, &repaired, &err), 0);
	assert_true(repaired.left == 3 && !repaired.rebuilt);
	save(5, UINT64_MAX);
	assert_int_equal(store_prune(s, &o, &pruned, &err), 0);
	assert_listed("5-3 a30-0 a20-0 a10-0");
	assert_int_equal(wrong, 0);
}

static int removed(const char *dir)
{
	char left[STORE_DIR_MAX];

	return store_remove(s, dir, false, wall_ns(), NULL, left, &err);
}

TEST(one_goes_by_its_name_and_the_last_one_does_not)
{
	assert_int_equal(removed("step-000000000010"), -EBUSY);
	assert_non_null(strstr(err.msg, "held by paper"));
	assert_int_equal(removed("step-000000000030"), 0);
	assert_listed("o20-0 o10-0");
	assert_int_equal(removed("step-000000000020"), -EBUSY);
	assert_non_null(strstr(err.msg, "tagged best"));
	unlinked(".ckptd/tag-000000000020-c8815dc3cc22c168-best");
	unlinked(".ckptd/hold-000000000010-113995b732d18acc-paper");
	assert_int_equal(removed("step-000000000020"), 0);
	assert_int_equal(removed("step-000000000010"), -EBUSY);
	assert_non_null(strstr(err.msg, "the last complete step"));
	save(40, 30);
	assert_int_equal(removed("step-000000000010"), 0);
	assert_listed("40-1");
}

TEST(one_that_was_set_aside_goes_by_its_name)
{
	save(5, UINT64_MAX);
	assert_int_equal(removed(".old-000000000030-s0-t1800000000"), 0);
	assert_listed("5-1 a20-0 a10-0");
}

UNIT(.setup = setup, .teardown = job_remove);
