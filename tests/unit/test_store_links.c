/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_links.c - files that several steps share count once: in a set, in a scan, when steps
 * are removed, and in what dead launches left. */
#include "ckpt/store/file_links.h"
#include "ckpt/store/prune.h"
#include "ckpt/store/repair.h"
#include "tests/crash/job.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

static struct file_links links;

static int setup(void **state)
{
	links = (struct file_links){ 0 };
	return job_make(state);
}

static int teardown(void **state)
{
	file_links_free(&links);
	return job_remove(state);
}

static void add(uint64_t dev, uint64_t ino, uint32_t nlink, uint64_t bytes)
{
	const struct io_stat st = { .dev = dev, .ino = ino, .nlink = nlink, .bytes = bytes };

	assert_int_equal(file_links_add(&links, &st), 0);
}

TEST(a_file_is_in_the_set_once_and_one_with_one_name_is_not)
{
	add(1, 1, 1, 5);
	add(1, 0, 2, 5);
	assert_int_equal(links.nuse, 0);
	add(1, 7, 3, 100);
	add(2, 7, 2, 10);
	add(1, 7, 3, 100);
	assert_true(links.nfile == 2 && links.nuse == 3);
	assert_int_equal(file_links_shared(&links, 0, 2), 100);
	assert_int_equal(file_links_kept(&links, 0, 2), 110);
	assert_int_equal(file_links_kept_once(&links), 110);
	assert_int_equal(file_links_repeated(&links, 0, 2), 0);
	assert_int_equal(file_links_repeated(&links, 2, 1), 100);
	add(2, 7, 1, 10); /* its other name was seen, and has gone */
	assert_int_equal(file_links_kept_once(&links), 100);
	file_links_cut(&links, 0);
	assert_true(links.nuse == 0 && file_links_kept_once(&links) == 0);
}

TEST(ten_thousand_files_are_found_again)
{
	for (uint32_t k = 0; k < 2; k++)
		for (uint64_t i = 1; i <= 10000; i++)
			add(i & 3, i << 12, 2, 1);
	assert_int_equal(links.nfile, 10000);
	assert_int_equal(file_links_shared(&links, 0, 20000), 20000);
	assert_int_equal(file_links_repeated(&links, 0, 20000), 10000);
	assert_int_equal(file_links_kept_once(&links), 0);
}

/* --- steps: 10, 20 and 30 have one base, 40 has one of its own --- */

static void base_save(uint64_t step, uint64_t rewind, const struct crash_step *from)
{
	assert_int_equal(crash_save_base(s, step, nsaved + 1, rewind, from, &saved[nsaved], &err),
			 0);
	nsaved++;
}

static void four(void)
{
	base_save(10, UINT64_MAX, NULL);
	base_save(20, 10, &saved[0]);
	base_save(30, 20, &saved[1]);
	base_save(40, 30, NULL);
}

static int verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *why)
{
	return 0;
}

static struct prune_result prune(uint32_t last, bool dry, struct file_links *by)
{
	const struct retain_policy p = { .keep_last = last };
	const struct prune_opts o = {
		.policy = &p, .dry = dry, .verify = verify, .now_ns = wall_ns(), .links = by
	};
	struct prune_result ret;

	if (store_prune(s, &o, &ret, &err))
		fail_msg("%s", err.msg);
	return ret;
}

/* Of the step's own files: without the base, which steps share. */
static uint64_t bytes_of(uint32_t i)
{
	uint64_t bytes = 0;

	for (uint32_t k = 0; k < CRASH_WORLD + 1; k++)
		bytes += saved[i].file[k].len;
	return bytes;
}

TEST(removing_frees_what_has_no_other_name)
{
	uint64_t base, step;

	four();
	base = saved[0].base.len;
	step = bytes_of(0);
	for (uint32_t dry = 2; dry-- > 0;) {
		struct prune_result r = prune(3, dry, NULL);

		assert_int_equal(r.removed, 1);
		assert_int_equal(r.shared, base);
		assert_int_equal(r.freed, step);
	}
	for (uint32_t dry = 2; dry-- > 0;) {
		struct prune_result r = prune(1, dry, NULL); /* 20 and 30: the last names */

		assert_int_equal(r.removed, 2);
		assert_int_equal(r.shared, 0);
		assert_int_equal(r.freed, 2 * step + base);
	}
}

TEST(one_that_is_named_says_what_stays)
{
	struct store_step st;
	char left[STORE_DIR_MAX];

	four();
	for (uint32_t dry = 2; dry-- > 0;) {
		assert_int_equal(
			store_remove(s, "step-000000000020", dry, wall_ns(), &st, left, &err), 0);
		assert_int_equal(st.shared, saved[0].base.len);
	}
	assert_int_equal(store_remove(s, "step-000000000040", true, wall_ns(), &st, left, &err), 0);
	assert_int_equal(st.shared, 0);
}

TEST(what_dead_launches_left_frees_what_is_theirs_alone)
{
	const struct repair_opts o = { .verify = verify };
	struct repair_result r;
	struct ckpt_err why;
	cleanup_close int dir = -1;
	char name[40];
	struct store_txn *x;

	four();
	x = begun(s, 50, 5);
	dir = dir_open(s->job_fd, "step-000000000030");
	assert_int_equal(
		store_part_link(x, 0, dir, saved[2].base.name, &saved[2].base_id, name, &why), 0);
	{
		cleanup_store struct store *next = opened(&io_ops_posix);
		const struct repair_opts dry = { .dry = true };

		assert_int_equal(
			store_repair(next, &(struct repair_opts){ .dry = true, .abandoned = true },
				     &r, &err),
			0);
		assert_int_equal(r.shared, saved[2].base.len);
		assert_int_equal(r.freed, saved[4].file[0].len + saved[4].file[1].len);
		assert_int_equal(store_repair(next, &dry, &r, &err), 0);
		assert_int_equal(r.removed, 0);
	}
	store_abort(x);
	assert_int_equal(store_repair(s, &o, &r, &err), 0);
	assert_true(r.shared == 0 && r.removed == 0);
}

/* A copy of a step whose part 0 is the same file: under another number, which today's MANIFEST
 * refuses, in another job. */
TEST(a_scan_knows_the_parts_that_steps_share)
{
	cleanup_free struct store_step *st = NULL, *other = NULL;
	char command[900];
	struct store copy = { .ops = &ops, .format = &format_native, .root_fd = -1, .job = "copy" };
	uint32_t n, m;

	save(10, UINT64_MAX);
	save(20, 10);
	(void)snprintf(command, sizeof command, "cp -al '%s/" CRASH_JOB "' '%s/copy'", place.path,
		       place.path);
	assert_int_equal(system(command), 0);
	(void)snprintf(
		command, sizeof command,
		"cd '%s/copy/step-000000000020' && for f in w0001*; do cp $f x && mv -f x $f; done",
		place.path);
	assert_int_equal(system(command), 0);
	copy.job_fd = dir_open(place.fd, "copy");
	assert_int_equal(store_scan_parts(s, true, &links, &st, &n, &err), 0);
	assert_int_equal(file_links_shared(&links, st[0].link_first, st[0].nlink),
			 0); /* not seen yet */
	assert_int_equal(store_scan_parts(&copy, true, &links, &other, &m, &err), 0);
	assert_true(n == 2 && m == 2 && st[0].step == 20 && other[0].step == 20);
	assert_true(st[0].nlink == 1 && other[0].nlink == 1 && st[1].nlink == 2);
	assert_int_equal(file_links_shared(&links, st[0].link_first, 1), saved[1].file[0].len);
	assert_int_equal(file_links_shared(&links, st[1].link_first, 2),
			 saved[0].file[0].len + saved[0].file[1].len);
	assert_int_equal(file_links_repeated(&links, st[0].link_first, 1), 0);
	assert_int_equal(file_links_repeated(&links, other[0].link_first, 1), saved[1].file[0].len);
	(void)close(copy.job_fd);
}

static uint32_t nstat;

static int stat_at_counted(void *ctx, int dirfd, const char *name, struct io_stat *ret)
{
	nstat++;
	return io_ops_posix.stat_at(ctx, dirfd, name, ret);
}

TEST(a_scan_looks_at_each_part_once)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	save(10, UINT64_MAX);
	save(20, 10);
	ops.stat_at = stat_at_counted;
	assert_int_equal(store_scan_parts(s, true, &links, &st, &n, &err), 0);
	assert_int_equal(nstat, 2 * CRASH_WORLD);
}

UNIT(.setup = setup, .teardown = teardown);
