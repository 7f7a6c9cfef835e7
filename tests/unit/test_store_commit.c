/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_commit.c - parts, commits, lines of steps and going back on them. Crashes:
 * test_store_crash.c. */
#include <sys/stat.h>
#include "tests/crash/job.h"
#include "tests/lib/libc.h"

/* What is begun, and the part that was made last. */
static struct store_txn *txn;
static char part[40];
static int part_fd;
static bool direct; /* wanted before, and given */

static int begin(void)
{
	txn = (struct store_txn *)&txn; /* no longer, when it fails */
	return store_begin(s, 10, &txn, &err);
}

static int part_create(uint32_t writer, uint64_t bytes)
{
	part[0] = 0;
	part_fd = -2;
	return store_part_create(txn, writer, bytes, &direct, part, &part_fd, &err);
}

/* The names of what is set aside say when that was. */
static int setup(void **state)
{
	libc_instead.clock_gettime = libc_fixed_time;
	direct = false;
	return job_make(state);
}

/* Is the i-th saved step there under this name, to the byte? */
static void assert_is(const char *dir, uint32_t i)
{
	char why[CRASH_WHY];

	if (!crash_step_same(s, dir, &saved[i], why))
		fail_msg("%s: %s", dir, why);
}

static void save_two(void)
{
	save(10, UINT64_MAX);
	save(20, 10);
}

/* The job directory holds n steps, set aside or not, and nothing that is begun or trash. */
static void assert_entries(uint32_t n)
{
	struct store_name *name;
	uint32_t have;

	assert_int_equal(
		store_list(&io_ops_posix, s->job_fd, STORE_TMP | STORE_TRASH, &name, &have), 0);
	free(name);
	assert_int_equal(have, 0);
	assert_int_equal(store_list(&io_ops_posix, s->job_fd, STORE_STEP | STORE_OLD, &name, &have),
			 0);
	free(name);
	assert_int_equal(have, n);
}

TEST(a_committed_step_is_there_and_belongs_to_its_user_alone)
{
	struct stat st;
	char path[STORE_DIR_MAX * 2];

	assert_int_equal(try_save(s, 10, 1, UINT64_MAX), 0);
	assert_is("step-000000000010", 0);
	assert_int_equal(fstatat(s->job_fd, "step-000000000010", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	for (size_t i = 0; i < ARRAY_LEN(saved[0].file); i++) {
		(void)snprintf(path, sizeof path, "step-000000000010/%s", saved[0].file[i].name);
		assert_int_equal(fstatat(s->job_fd, path, &st, 0), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
	}
	assert_entries(1);
}

TEST(step_zero_and_the_largest_step_are_steps_like_any_other)
{
	assert_int_equal(try_save(s, 0, 1, UINT64_MAX), 0);
	assert_int_equal(try_save(s, UINT64_MAX - 1, 2, 0), 0);
	assert_is("step-000000000000", 0);
	assert_is("step-18446744073709551614", 1);
	assert_int_equal(try_save(s, UINT64_MAX, 3, 10), -EINVAL);
}

TEST(going_back_sets_aside_and_loses_no_step)
{
	save_two();
	assert_int_equal(try_save(s, 30, 3, 20), 0);
	assert_int_equal(try_save(s, 20, 4, 10), 0); /* the same number again */
	assert_is("step-000000000010", 0);
	assert_is(".old-000000000020-s2-t1800000000", 1);
	assert_is(".old-000000000030-s3-t1800000000", 2);
	assert_is("step-000000000020", 3);
	assert_int_equal(try_save(s, 15, 5, 10), 0);
	assert_is(".old-000000000020-s4-t1800000000", 3);
	assert_is("step-000000000015", 4);
	assert_entries(5);
}

TEST(a_name_that_is_taken_aside_is_not_taken_again)
{
	struct store_name *name;
	uint32_t n;

	save_two();
	assert_int_equal(try_save(s, 15, 3, 10), 0);
	assert_int_equal(try_save(s, 20, 2, 15),
			 0); /* as after a crash in the middle of going back */
	assert_int_equal(try_save(s, 16, 5, 15), 0);
	assert_is(".old-000000000020-s2-t1800000000", 1);
	assert_int_equal(store_list(&io_ops_posix, s->job_fd, STORE_OLD, &name, &n), 0);
	assert_int_equal(n, 2);
	assert_is(name[strlen(name[0].dir) < strlen(name[1].dir)].dir, 3);
	free(name);
	assert_entries(5);
}

/* 16 after 15, where 20 has to be set aside, while random bytes are as given (libc.h). */
static int save16(int same, uint64_t fails_at)
{
	struct store_txn *x;
	int r;

	x = begun(s, 16, 5);
	no_random.same = same;
	no_random_at(fails_at);
	r = crash_commit(x, &saved[nsaved - 1], 15, &err);
	(void)no_random_end();
	return r;
}

static void assert_line_is_as_it_was(void)
{
	assert_non_null(strstr(err.msg, "cannot set step-000000000020 aside"));
	assert_is("step-000000000010", 0);
	assert_is("step-000000000015", 2);
	assert_is("step-000000000020", 3);
	assert_is(".old-000000000020-s2-t1800000000", 1);
}

TEST(a_step_for_which_no_name_is_free_is_not_set_aside)
{
	static const char taken[] = ".old-000000000020-s2-t1800000000-00000000";

	save_two();
	assert_int_equal(try_save(s, 15, 3, 10), 0);
	assert_int_equal(try_save(s, 20, 2, 15), 0);
	put_dir(s->job_fd, taken);
	assert_int_equal(save16(0, 0), -EEXIST); /* that name is tried again and again */
	assert_line_is_as_it_was();
	assert_int_equal(unlinkat(s->job_fd, taken, AT_REMOVEDIR), 0);
	assert_int_equal(save16(-1, 1), -ENOSYS);
	assert_line_is_as_it_was();
	assert_entries(4);
	assert_int_equal(save16(-1, 0), 0);
	assert_true(exists("step-000000000016"));
	assert_entries(5);
}

TEST(a_run_that_continues_nothing_sets_every_step_aside)
{
	save_two();
	assert_int_equal(try_save(s, 5, 3, UINT64_MAX), 0);
	assert_is(".old-000000000010-s1-t1800000000", 0);
	assert_is(".old-000000000020-s2-t1800000000", 1);
	assert_is("step-000000000005", 2);
	assert_int_equal(try_save(s, 5, 4, UINT64_MAX), 0);
	assert_is(".old-000000000005-s3-t1800000000", 2);
	assert_is("step-000000000005", 3);
}

TEST(a_step_of_the_line_is_never_replaced)
{
	save_two();
	assert_int_equal(try_save(s, 20, 3, 20), -EEXIST);
	assert_int_equal(try_save(s, 10, 3, 20), -EEXIST);
	assert_int_equal(try_save(s, 15, 3, 20), -EINVAL);
	assert_is("step-000000000010", 0);
	assert_is("step-000000000020", 1);
	assert_entries(2);
}

TEST(what_is_in_the_way_of_a_commit_stays_and_so_do_the_steps)
{
	save_two();
	put_file(s->job_fd, "step-000000000015");
	assert_int_equal(try_save(s, 15, 3, 10), -EEXIST);
	assert_is("step-000000000020", 1); /* it was set aside, and came back */
	assert_true(exists("step-000000000015"));
	assert_entries(2);
}

TEST(a_damaged_step_is_set_aside_like_any_other)
{
	save_two();
	unlinked("step-000000000020/MANIFEST");
	assert_int_equal(try_save(s, 20, 3, 10), 0);
	assert_true(exists(".old-000000000020-s0-t1800000000"));
	assert_is("step-000000000020", 2);
}

TEST(a_part_that_is_still_open_forbids_the_commit)
{
	txn = begun(s, 10, 1);
	assert_int_equal(part_create(9, 0), 0);
	assert_int_equal(crash_commit(txn, &saved[0], UINT64_MAX, &err), -EINVAL);
	(void)close(part_fd);
	assert_entries(0);
}

TEST(a_dropped_part_leaves_nothing)
{
	txn = begun(s, 10, 1);
	assert_int_equal(part_create(9, 8192), 0);
	store_part_drop(txn, part, part_fd);
	assert_int_equal(crash_commit(txn, &saved[0], UINT64_MAX, &err), 0);
	assert_is("step-000000000010", 0);
}

TEST(what_somebody_else_has_taken_away_is_no_hindrance_to_dropping_it)
{
	txn = begun(s, 10, 1);
	assert_int_equal(part_create(9, 0), 0);
	assert_int_equal(unlinkat(txn->fd, part, 0), 0);
	store_part_drop(txn, part, part_fd);
	assert_int_equal(crash_commit(txn, &saved[0], UINT64_MAX, &err), 0);
	assert_is("step-000000000010", 0);
}

/* Another launch sweeps the collecting directory away as soon as it is made. */
static int mkdir_then_rival(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	int r = io_ops_posix.mkdir(ctx, dirfd, name, mode);

	another_claims();
	return r;
}

TEST(who_is_fenced_is_told_so_at_his_next_call)
{
	assert_int_equal(begin(), 0);
	another_claims();
	assert_int_equal(part_create(0, 0), -ESTALE);
	assert_non_null(strstr(err.msg, "launch 2 has claimed the store"));
	assert_int_equal(part_fd, -1);
	assert_int_equal(store_commit(txn, "", 0, UINT64_MAX, &err), -ESTALE);
	AFRESH();
	ops.mkdir = mkdir_then_rival;
	assert_int_equal(begin(), -ESTALE);
	assert_non_null(strstr(err.msg, "launch 2 has claimed the store"));
	assert_null(txn);
	ops = io_ops_posix;
	assert_entries(0);
}

/* Not another launch: a person, perhaps. */
static int mkdir_then_gone(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	int r = io_ops_posix.mkdir(ctx, dirfd, name, mode);

	assert_int_equal(unlinkat(dirfd, name, AT_REMOVEDIR), 0);
	return r;
}

TEST(a_directory_that_vanishes_is_told_as_what_it_is)
{
	ops.mkdir = mkdir_then_gone;
	assert_int_equal(begin(), -ENOENT);
	assert_non_null(strstr(err.msg, "cannot open .tmp-"));
	assert_null(txn);
}

TEST(without_memory_a_step_is_not_begun)
{
	uint64_t nth = 0, failed = 1;

	for (; failed; nth++) {
		int r;

		no_memory_from(nth, false);
		r = begin();
		failed = no_memory_end();
		assert_int_equal(r, failed ? -ENOMEM : 0);
		assert_int_equal(txn == NULL, failed);
		if (failed)
			assert_entries(0);
	}
	assert_true(nth > 1);
	store_abort(txn);
}

TEST(an_aborted_step_leaves_nothing)
{
	txn = begun(s, 10, 1);
	assert_true(exists(txn->dir));
	store_abort(txn);
	store_abort(NULL);
	assert_entries(0);
}

TEST(part_names_are_never_the_same_twice)
{
	char name[40], first[40];
	struct store_txn *x[2];
	int fd;

	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(store_begin(s, 10, &x[i], &err), 0);
		assert_int_equal(store_part_create(x[i], 3, 0, &direct, name, &fd, &err), 0);
		assert_memory_equal(name, "w0003-", 6);
		if (i == 0)
			memcpy(first, name, sizeof first);
		else
			assert_string_not_equal(name, first);
		(void)close(fd);
	}
	assert_string_not_equal(x[0]->dir, x[1]->dir);
	store_abort(x[0]);
	store_abort(x[1]);
}

static int direct_refused(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	int fd = io_ops_posix.open(ctx, dirfd, name, flags & ~O_DIRECT, mode);

	if (fd < 0 || !(flags & O_DIRECT))
		return fd;
	(void)close(fd); /* as Linux does: the file is made and the open refused */
	return -EINVAL;
}

TEST(where_o_direct_is_refused_the_part_is_buffered)
{
	direct = true;
	ops.open = direct_refused;
	txn = begun(s, 10, 1);
	assert_int_equal(part_create(3, 0), 0);
	assert_false(direct);
	store_part_drop(txn, part, part_fd);
	assert_int_equal(crash_commit(txn, &saved[0], UINT64_MAX, &err), 0);
	ops = io_ops_posix;
	assert_is("step-000000000010", 0);
}

static int direct_granted(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	return io_ops_posix.open(ctx, dirfd, name, flags & ~O_DIRECT, mode);
}

TEST(where_o_direct_is_granted_the_first_name_is_the_part_s)
{
	direct = true;
	ops.open = direct_granted;
	assert_int_equal(begin(), 0);
	assert_int_equal(part_create(3, 0), 0);
	assert_true(direct);
	assert_non_null(strstr(part, "-000.part"));
	store_part_drop(txn, part, part_fd);
	store_abort(txn);
}

static int open_invalid(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	return flags & O_CREAT ? -EINVAL : io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

TEST(a_part_that_is_refused_also_without_o_direct_is_not_tried_for_ever)
{
	direct = true;
	ops.open = open_invalid;
	assert_int_equal(begin(), 0);
	assert_int_equal(part_create(3, 0), -EINVAL);
	assert_non_null(strstr(part, "-001.part"));
	assert_int_equal(part_fd, -1);
	assert_false(direct);
	assert_int_equal(part_create(3, 0), -EINVAL);
	assert_non_null(strstr(part, "-002.part"));
	store_abort(txn);
}

TEST(a_full_disk_is_noticed_before_the_first_byte)
{
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	txn = begun(s, 10, 1);
	io_faults_fail(&f, IO_ON_FALLOCATE, 1, -ENOSPC, false);
	assert_int_equal(part_create(3, 1 << 20), -ENOSPC);
	assert_non_null(strstr(err.msg, "free space"));
	assert_int_equal(part_fd, -1);
	io_faults_fail(&f, IO_ON_FALLOCATE, 1, -EDQUOT, false); /* a quota is a full disk, too */
	assert_int_equal(part_create(3, 1 << 20), -ENOSPC);
	io_faults_fail(&f, IO_ON_FALLOCATE, 1, -EOPNOTSUPP, false);
	assert_int_equal(part_create(3, 1 << 20), 0);
	store_part_drop(txn, part, part_fd);
	assert_int_equal(crash_commit(txn, &saved[0], UINT64_MAX, &err), 0);
	s->ops = &ops;
	assert_is("step-000000000010", 0);
}

TEST(a_part_whose_sync_failed_is_gone_and_another_takes_its_place)
{
	struct io_faults f;
	char dead[40], name[40], path[STORE_DIR_MAX * 2];

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	assert_int_equal(begin(), 0);
	for (uint32_t class = IO_ON_TRUNCATE | IO_ON_SYNC | IO_ON_CLOSE; class;) {
		uint32_t one = class & -class;

		class &= ~one;
		assert_int_equal(store_part_create(txn, 3, 0, &direct, dead, &part_fd, &err), 0);
		io_faults_fail(&f, one, 1, -EIO, false);
		assert_int_equal(store_part_finish(txn, dead, part_fd, 100, NULL, &err), -EIO);
		(void)snprintf(path, sizeof path, "%s/%s", txn->dir, dead);
		assert_false(exists(path));
		assert_int_equal(fcntl(part_fd, F_GETFD), -1);
	}
	assert_int_equal(store_part_create(txn, 3, 0, &direct, name, &part_fd, &err), 0);
	assert_string_not_equal(name, dead);
	assert_int_equal(store_part_finish(txn, name, part_fd, 100, NULL, &err), 0);
	store_abort(txn);
}

TEST(when_the_last_sync_fails_the_outcome_is_said_to_be_unknown)
{
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	txn = begun(s, 10, 1);
	io_faults_fail(&f, IO_ON_SYNC, 3, -ENOSPC, false); /* MANIFEST, its directory, the job's */
	assert_int_equal(crash_commit(txn, &saved[0], UINT64_MAX, &err), -EIO);
	assert_non_null(strstr(err.msg, "may or may not be visible"));
	s->ops = &ops;
	assert_is("step-000000000010", 0); /* not touched */
}

/* --- parts of other steps --- */

/* Step 10 with a base; step 20 is begun. Returns step 10's directory. */
static int base_made(void)
{
	assert_int_equal(crash_save_base(s, 10, 1, UINT64_MAX, NULL, &saved[nsaved++], &err), 0);
	txn = begun(s, 20, 2);
	return dir_open(s->job_fd, "step-000000000010");
}

static int base_linked(int dir, const struct store_part_id *id)
{
	return store_part_link(txn, 7, dir, saved[0].base.name, id, part, &err);
}

TEST(a_linked_part_is_the_file_of_the_other_step_and_stays_when_that_goes)
{
	cleanup_close int dir = base_made();
	struct stat a, b;

	assert_int_equal(base_linked(dir, &saved[0].base_id), 0);
	assert_int_equal(memcmp(part, "w0007-", 6), 0);
	assert_int_equal(fstatat(dir, saved[0].base.name, &a, 0), 0);
	assert_int_equal(fstatat(txn->fd, part, &b, 0), 0);
	assert_true(a.st_ino == b.st_ino && b.st_nlink == 2);
	assert_int_equal(crash_commit(txn, &saved[1], 10, &err), 0);
	assert_int_equal(unlinkat(dir, saved[0].base.name, 0), 0);
	saved[1].base = saved[0].base;
	memcpy(saved[1].base.name, part, sizeof part);
	assert_is("step-000000000020", 1);
	saved[1].base.bytes = NULL;
}

TEST(what_refuses_a_link_is_one_code_and_leaves_nothing)
{
	static const int refused[] = { -EXDEV,	-EPERM,	 -EMLINK,     -EEXIST,
				       -ENOENT, -ENOSYS, -EOPNOTSUPP, -ENOTSUP };
	static const int broken[] = { -EIO, -ENOSPC, -EDQUOT, -EACCES, -EROFS };
	struct store_part_id unknown = { 0 };
	struct io_faults f;
	cleanup_close int dir = base_made();

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	for (uint32_t i = 0; i < ARRAY_LEN(refused); i++) {
		io_faults_fail(&f, IO_ON_LINK, 1, refused[i], false);
		assert_int_equal(base_linked(dir, &saved[0].base_id), -EXDEV);
		assert_non_null(strstr(err.msg, "write it again"));
	}
	for (uint32_t i = 0; i < ARRAY_LEN(broken); i++) {
		io_faults_fail(&f, IO_ON_LINK, 1, broken[i], false);
		assert_int_equal(base_linked(dir, &saved[0].base_id),
				 broken[i] == -EDQUOT ? -ENOSPC : broken[i]);
	}
	io_faults_fail(&f, IO_ON_OPEN, 1, -EMFILE, false);
	assert_int_equal(base_linked(dir, &saved[0].base_id), -EMFILE);
	io_faults_count(&f, IO_ON_ANY);
	assert_int_equal(base_linked(dir, &unknown), -EXDEV);
	assert_int_equal(io_faults_calls(&f), 0);
	f.ops.link = NULL;
	assert_int_equal(base_linked(dir, &saved[0].base_id), -EXDEV);
	s->ops = &ops;
	assert_int_equal(entries_of(s->job_fd, txn->dir), CRASH_WORLD);
	assert_int_equal(crash_commit(txn, &saved[1], 10, &err), 0);
	assert_is("step-000000000020", 1);
}

TEST(a_file_that_is_not_the_remembered_one_is_not_linked)
{
	cleanup_close int dir = base_made();

	for (uint32_t i = 0; i < 4; i++) {
		struct store_part_id id = saved[0].base_id;

		*(uint64_t *[]){ &id.dev, &id.ino, &id.bytes, &id.modified_ns }[i] += 1;
		assert_int_equal(base_linked(dir, &id), -EXDEV);
		assert_non_null(strstr(err.msg, "is not the file"));
	}
	assert_int_equal(entries_of(s->job_fd, txn->dir), CRASH_WORLD);
	store_abort(txn);
}

TEST(a_dead_link_that_cannot_be_removed_spoils_its_directory)
{
	struct store_part_id id;
	struct io_faults f;
	cleanup_close int dir = base_made();

	id = saved[0].base_id;
	id.ino++;
	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	io_faults_fail(&f, IO_ON_UNLINK, 1, -EIO, false);
	assert_int_equal(base_linked(dir, &id), -EXDEV);
	assert_int_equal(crash_commit(txn, &saved[1], 10, &err), -EIO);
	s->ops = &ops;
	assert_entries(1);
}

TEST(who_is_fenced_links_nothing)
{
	cleanup_close int dir = base_made();

	another_claims();
	assert_int_equal(base_linked(dir, &saved[0].base_id), -ESTALE);
	store_abort(txn);
	assert_entries(1);
}

/* A file server does it, its answer is lost, and the call is made again. */
static int rename_twice(void *ctx, int dirfd, const char *from, const char *to)
{
	int r = io_ops_posix.rename(ctx, dirfd, from, to);

	return strncmp(to, "step-", 5) == 0 ? io_ops_posix.rename(ctx, dirfd, from, to) : r;
}

TEST(a_rename_that_was_done_and_denied_is_not_undone)
{
	save_two();
	ops.rename = rename_twice;
	assert_int_equal(try_save(s, 15, 3, 10), -EIO);
	assert_non_null(strstr(err.msg, "may or may not be visible"));
	ops = io_ops_posix;
	assert_is("step-000000000015", 2);
	assert_is(".old-000000000020-s2-t1800000000", 1);
	assert_entries(3);
}

UNIT(.setup = setup, .teardown = job_remove);
