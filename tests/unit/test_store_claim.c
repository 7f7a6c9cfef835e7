/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_claim.c - job names, opening, claims, takeovers, and what a claim sweeps away. */
#include "tests/crash/job.h"
#include "tests/lib/row.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

/* A job that nobody has claimed. */
static int setup(void **state)
{
	(void)job_place(state);
	s = opened(&ops);
	return 0;
}

TEST_WITH(a_bad_job_name_is_refused_with_the_reason, NULL, NULL)
{
	static const char *const bad[] = { "",	  ".",	 "..",	     ".hidden", "a/b",
					   "a b", "a\n", "\xc3\xa4", "a:b",	"../x" };
	char name[CKPT_JOB_MAX + 2];

	memset(name, 'j', sizeof name);
	name[CKPT_JOB_MAX + 1] = 0;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		err.msg[0] = 0;
		assert_int_equal(store_job_check(bad[i], &err), -EINVAL);
		assert_true(err.msg[0]);
	}
	assert_int_equal(store_job_check(name, &err), -EINVAL);
	name[CKPT_JOB_MAX] = 0;
	assert_int_equal(store_job_check(name, &err), 0);
	assert_int_equal(store_job_check("Run_1.7-b", &err), 0);
}

TEST(directories_and_claims_belong_to_their_user_alone)
{
	struct stat st;

	(void)claimed(s, 0, false);
	assert_int_equal(fstat(s->job_fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_equal(fstatat(s->job_fd, ".ckptd", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_equal(fstatat(s->job_fd, ".ckptd/gen-00000001", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
}

TEST_WITH(a_job_that_is_missing_or_a_link_is_not_opened, job_place, job_remove)
{
	struct store *none;

	assert_int_equal(store_open(&ops, &format_native, place.fd, "demo", false, &none, &err),
			 -ENOENT);
	assert_null(none);
	put_dir(place.fd, "real");
	assert_int_equal(symlinkat("real", place.fd, "demo"), 0);
	assert_int_equal(store_open(&ops, &format_native, place.fd, "demo", false, &none, &err),
			 -ELOOP);
	assert_int_equal(store_open(&ops, &format_native, place.fd, "demo", true, &none, &err),
			 -ELOOP);
}

TEST(each_launch_gets_the_next_number)
{
	cleanup_store struct store *a = opened(&io_ops_posix), *b = opened(&io_ops_posix);

	assert_int_equal(claimed(a, 0, false), 1);
	assert_int_equal(claimed(b, 0, false), 2);
	assert_int_equal(claimed(a, 0, true), 3);
	assert_int_equal(claimed(b, 1700000000, false), 1700000000);
	assert_int_equal(claimed(a, 0, false), 1700000001);
}

TEST(an_older_launch_is_stale_and_an_equal_one_busy)
{
	cleanup_store struct store *a = opened(&io_ops_posix), *b = opened(&io_ops_posix);
	uint64_t generation;

	assert_int_equal(claimed(a, 7, false), 7);
	assert_int_equal(store_claim(b, 6, true, &generation, &err), -ESTALE);
	assert_int_equal(store_claim(b, 7, false, &generation, &err), -EBUSY);
	assert_int_equal(claimed(a, 7, false), 7);
	assert_int_equal(store_claim(b, UINT64_MAX, false, &generation, &err), -EINVAL);
}

TEST(a_daemon_whose_launch_was_taken_over_commits_nothing)
{
	cleanup_store struct store *a = opened(&io_ops_posix), *b = opened(&io_ops_posix);
	cleanup_step struct crash_step one = { 0 }, two = { 0 };
	struct store_txn *x;

	(void)claimed(a, 7, false);
	assert_int_equal(claimed(b, 7, true), 7);
	assert_int_equal(store_begin(a, 10, &x, &err), -ESTALE);
	assert_non_null(strstr(err.msg, "taken"));
	assert_int_equal(crash_save(b, 10, 1, UINT64_MAX, &one, &err), 0);
	assert_int_equal(claimed(a, 7, true), 7); /* and back again */
	assert_int_equal(crash_save(b, 20, 2, 10, &two, &err), -ESTALE);
	assert_int_equal(crash_save(a, 20, 2, 10, &two, &err), 0);
}

TEST(without_a_claim_nothing_is_begun)
{
	struct store_txn *x;

	assert_int_equal(store_begin(s, 10, &x, &err), -EINVAL);
	assert_null(x);
}

TEST(a_claim_that_was_deleted_is_lost)
{
	struct store_txn *x;

	(void)claimed(s, 0, false);
	unlinked(".ckptd/gen-00000001");
	assert_int_equal(store_begin(s, 10, &x, &err), -ESTALE);
	unlinked(".ckptd/job-" CRASH_JOB);
	assert_int_equal(unlinkat(s->job_fd, ".ckptd", AT_REMOVEDIR), 0);
	assert_int_equal(store_begin(s, 10, &x, &err), -ESTALE);
	assert_non_null(strstr(err.msg, "is gone from .ckptd"));
}

TEST(where_the_numbers_of_launches_end_there_is_no_next_one)
{
	cleanup_store struct store *a = opened(&io_ops_posix), *b = opened(&io_ops_posix);
	uint64_t generation;

	assert_int_equal(claimed(a, UINT64_MAX - 1, false), UINT64_MAX - 1);
	assert_int_equal(store_claim(b, 0, false, &generation, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "launch numbers end"));
	assert_int_equal(claimed(a, UINT64_MAX - 1, true), UINT64_MAX - 1); /* is its own still */
}

TEST(where_the_numbers_of_takeovers_end_nobody_takes_over)
{
	cleanup_store struct store *a = opened(&io_ops_posix);
	uint64_t generation;

	put_file(a->job_fd, ".ckptd/gen-00000007.4294967295");
	assert_int_equal(store_claim(a, 7, true, &generation, &err), -EBUSY);
	assert_non_null(strstr(err.msg, "launch 7 is claimed by another daemon"));
	assert_false(exists(".ckptd/gen-00000007"));
	assert_int_equal(claimed(a, 0, false), 8);
}

TEST(a_claim_trashes_what_others_were_collecting_but_not_its_own)
{
	cleanup_store struct store *a = opened(&io_ops_posix), *b = opened(&io_ops_posix);
	cleanup_step struct crash_step dead = { 0 }, live = { 0 };
	struct store_txn *x, *y;

	(void)claimed(a, 0, false);
	assert_int_equal(crash_begin(a, 10, 1, &x, &dead, &err), 0);
	(void)claimed(b, 0, false);
	assert_false(exists(x->dir));
	assert_int_equal(crash_commit(x, &dead, UINT64_MAX, &err), -ESTALE);
	assert_int_equal(crash_begin(b, 20, 1, &y, &live, &err), 0);
	(void)claimed(b, 0, false);
	assert_true(exists(y->dir));
	assert_int_equal(crash_commit(y, &live, UINT64_MAX, &err), 0);
	assert_true(exists("step-000000000020"));
}

TEST(a_claim_of_ones_own_again_spares_all_that_is_begun)
{
	struct crash_step c[2] = { 0 };
	struct store_txn *x[2];

	(void)claimed(s, 0, false);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(crash_begin(s, 10 * (i + 1), i + 1, &x[i], &c[i], &err), 0);
	(void)claimed(s, 0, false);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(crash_commit(x[i], &c[i], i ? 10 : UINT64_MAX, &err), 0);
		crash_step_free(&c[i]);
	}
}

TEST(what_vanishes_while_a_claim_sweeps_is_no_error)
{
	struct io_faults f;
	cleanup_store struct store *a = opened(&io_ops_posix), *b = NULL;
	cleanup_txn struct store_txn *x = NULL;

	io_faults_init(&f, &io_ops_posix);
	b = opened(&f.ops);
	(void)claimed(a, 0, false);
	x = begun(a, 10, 1);
	io_faults_fail(&f, IO_ON_RENAME, 1, -ENOENT, false);
	assert_int_equal(claimed(b, 0, false), 2);
	assert_true(io_faults_hit(&f));
}

#define PART "w0000-0000000b-000.part"

TEST(what_the_store_did_not_name_stays)
{
	static const char *const dirs[] = {
		".tmp-foo",
		".tmp-10-g1-00000000",
		".tmp-000000000010-g00000001-0000000",
		".tmp-000000000010-g00000001-0000000A",
		".tmp-000000000010-g00000009-0000000a", /* a newer launch's */
		".trash-xyz",
		".trash-0000001",
		"step-12",
		".old-1-s2"
	};

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		put_dir(s->job_fd, dirs[i]);
	put_file(s->job_fd, ".tmp-000000000010-g00000001-0000000b");
	put_file(s->job_fd, "notes.txt");
	assert_int_equal(symlinkat("step-12", s->job_fd, ".trash-0000000c"), 0);
	(void)claimed(s, 0, false);
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		assert_true(exists(dirs[i]));
	assert_true(exists(".tmp-000000000010-g00000001-0000000b"));
	assert_true(exists("notes.txt"));
	assert_true(exists(".trash-0000000c"));
}

TEST(trash_and_dead_collecting_directories_go_with_the_next_claim)
{
	static const char *const dirs[] = { ".trash-0000000a",
					    ".tmp-000000000010-g00000001-0000000b",
					    ".tmp-000000000010-g00000000-0000000c" };
	char path[STORE_DIR_MAX + sizeof PART];

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		put_dir(s->job_fd, dirs[i]);
		(void)snprintf(path, sizeof path, "%s/" PART, dirs[i]);
		put_file(s->job_fd, path);
	}
	(void)claimed(s, 0, false);
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		assert_false(exists(dirs[i]));
}

TEST(what_is_in_trash_and_not_the_store_s_stays)
{
	static const char *const dirs[] = { ".trash-0000000a",
					    ".tmp-000000000010-g00000001-0000000b" };
	static const char *const foreign[] = { ".nfs0001", "MANIFEST.bak", "weights.part" };
	cleanup_free struct store_name *trash = NULL;
	char path[STORE_DIR_MAX + sizeof PART];
	uint32_t n;

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		put_dir(s->job_fd, dirs[i]);
		(void)snprintf(path, sizeof path, "%s/" PART, dirs[i]);
		put_file(s->job_fd, path);
		for (size_t k = 0; k < ARRAY_LEN(foreign); k++) {
			(void)snprintf(path, sizeof path, "%s/%s", dirs[i], foreign[k]);
			put_file(s->job_fd, path);
		}
	}
	for (uint32_t i = 0; i < 2; i++)
		(void)claimed(s, 0, false);
	assert_int_equal(store_list(&io_ops_posix, s->job_fd, STORE_TRASH | STORE_TMP, &trash, &n),
			 0);
	assert_int_equal(n, 2);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(trash[i].kind, STORE_TRASH);
		(void)snprintf(path, sizeof path, "%s/" PART, trash[i].dir);
		assert_false(exists(path));
		for (size_t k = 0; k < ARRAY_LEN(foreign); k++) {
			(void)snprintf(path, sizeof path, "%s/%s", trash[i].dir, foreign[k]);
			assert_true(exists(path));
		}
	}
}

TEST(where_there_are_no_locks_a_claim_sweeps_all_the_same)
{
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	io_faults_fail(&f, IO_ON_LOCK, 1, -EOPNOTSUPP, true);
	put_dir(s->job_fd, ".trash-0000000a");
	put_file(s->job_fd, ".trash-0000000a/" PART);
	(void)claimed(s, 0, false);
	assert_true(io_faults_hit(&f));
	assert_false(exists(".trash-0000000a"));
}

/* POSIX lets rmdir say either. */
static int unlink_exist(void *ctx, int dirfd, const char *name, bool is_dir)
{
	int r = io_ops_posix.unlink(ctx, dirfd, name, is_dir);

	return r == -ENOTEMPTY ? -EEXIST : r;
}

static uint32_t born_left;

static int unlink_reborn(void *ctx, int dirfd, const char *name, bool is_dir)
{
	int r = unlink_exist(ctx, dirfd, name, is_dir);

	if (!is_dir && born_left > 0) {
		born_left--;
		put_file(dirfd, PART);
	}
	return r;
}

TEST(a_directory_that_is_not_empty_may_be_called_either_way)
{
	ops.unlink = unlink_reborn;
	put_dir(s->job_fd, ".trash-0000000a");
	put_file(s->job_fd, ".trash-0000000a/" PART);
	born_left = 1;
	(void)claimed(s, 0, false);
	assert_false(exists(".trash-0000000a"));
}

/* --- fresh names --- */

TEST(without_random_bytes_nothing_is_named_and_nothing_is_lost)
{
	cleanup_step struct crash_step one = { 0 }, two = { 0 };
	uint64_t generation, nth = 1, failed = 1;
	struct store *a = opened(&io_ops_posix), *b = NULL;
	struct store_txn *x;

	(void)claimed(a, 0, false);
	assert_int_equal(crash_save(a, 10, 1, UINT64_MAX, &one, &err), 0);
	assert_int_equal(crash_begin(a, 20, 2, &x, &two, &err), 0);
	for (; failed; nth++) {
		int r;

		err.msg[0] = 0;
		no_random_at(nth);
		r = store_open(&io_ops_posix, &format_native, place.fd, CRASH_JOB, true, &b, &err);
		if (!r)
			r = store_claim(b, 0, false, &generation, &err);
		failed = no_random_end();
		if (failed && (r != -ENOSYS || !err.msg[0]))
			fail_msg("call %" PRIu64 ": %d, %s", nth, r, err.msg);
		store_close(TAKE(b));
	}
	assert_int_equal(nth - 2, 2); /* its own number, and the name of what it sweeps away */
	assert_int_equal(crash_commit(x, &two, 10, &err), -ESTALE);
	assert_true(exists("step-000000000010"));
	no_random_at(1);
	(void)claimed(a, 0, false);
	assert_int_equal(no_random_end(), 0);
	no_random_at(1);
	assert_int_equal(store_begin(a, 20, &x, &err), -ENOSYS);
	assert_int_equal(no_random_end(), 1);
	assert_null(x);
	assert_non_null(strstr(err.msg, "no random bytes"));
	store_close(a);
}

TEST(a_name_that_is_always_taken_ends_after_some_tries)
{
	cleanup_store struct store *a = opened(&io_ops_posix), *b = opened(&io_ops_posix);
	struct store_txn *x, *y;
	uint64_t generation;

	(void)claimed(a, 0, false);
	no_random.same = 0;
	x = begun(a, 10, 1);
	assert_int_equal(store_begin(a, 10, &y, &err), -EEXIST);
	assert_null(y);
	assert_non_null(strstr(err.msg, "cannot make its collecting directory"));
	/* The name that its trash would have is that of what is not the store's. */
	put_file(a->job_fd, ".trash-00000000");
	assert_int_equal(store_claim(b, 0, false, &generation, &err), -EEXIST);
	assert_non_null(strstr(err.msg, "out of the way"));
	(void)no_random_end();
	assert_true(exists(".trash-00000000"));
	(void)claimed(b, generation, false); /* again */
	assert_false(exists(x->dir));
	assert_int_equal(crash_commit(x, &saved[0], UINT64_MAX, &err), -ESTALE);
}

/* --- sentences --- */

TEST(a_sentence_says_why_and_what_to_do_next)
{
	static const struct {
		int r, code;
		const char *advice;
	} want[] = ROW({ -ENOSPC, -ENOSPC, "free space there" },
		       { -EDQUOT, -ENOSPC, "free space there" }, { -EIO, -EIO, "see dmesg" },
		       { -EACCES, -EACCES, "belong to another user?" },
		       { -EPERM, -EPERM, "belong to another user?" },
		       { -EROFS, -EROFS, "mount it writable" }, { -EMFILE, -EMFILE, "ulimit -n" },
		       { -ENFILE, -ENFILE, "ulimit -n" }, { -ELOOP, -ELOOP, "are not followed" },
		       { -ETXTBSY, -ETXTBSY, "cannot x: Text file busy" },
		       { -4000, -4000, "cannot x: unknown error" });

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		assert_int_equal(store_fail(&err, want[i].r, "cannot %s", "x"), want[i].code);
		if (!strstr(err.msg, want[i].advice) || strncmp(err.msg, "cannot x: ", 10) != 0)
			fail_msg("%s", err.msg);
	}
}

TEST(a_store_that_is_not_opened_leaves_nothing_to_close)
{
	cleanup_store struct store *none = (struct store *)(uintptr_t)1;

	assert_int_equal(store_open(&ops, &format_native, place.fd, "../demo", true, &none, &err),
			 -EINVAL);
	assert_null(none);
}

/* The hand of a dead process: whenever something is unlinked, something else appears. */
static uint32_t ghost_left;
static int ghost_dir = -1;

static int ghost_unlink(void *ctx, int dirfd, const char *name, bool is_dir)
{
	char born[32];
	int r = io_ops_posix.unlink(ctx, dirfd, name, is_dir);

	if (!is_dir && ghost_left > 0) {
		ghost_left--;
		(void)snprintf(born, sizeof born, "w%04" PRIu32 "-0000000a-000.part", ghost_left);
		put_file(ghost_dir, born);
	}
	return r;
}

TEST(trash_in_which_files_still_appear_is_left_to_a_later_claim)
{
	ops.unlink = ghost_unlink;
	for (uint32_t ghosts = 0; ghosts < 40; ghosts = ghosts ? 10 * ghosts : 3) {
		put_dir(s->job_fd, ".trash-0000000a");
		ghost_dir = dir_open(s->job_fd, ".trash-0000000a");
		put_file(ghost_dir, PART);
		ghost_left = ghosts;
		for (uint32_t i = 0; i < 5; i++)
			(void)claimed(s, 0, false);
		assert_int_equal(ghost_left, 0);
		assert_false(exists(".trash-0000000a"));
		(void)close(ghost_dir);
	}
	ghost_left = UINT32_MAX; /* for ever: the claim ends all the same */
	put_dir(s->job_fd, ".trash-0000000a");
	ghost_dir = dir_open(s->job_fd, ".trash-0000000a");
	put_file(ghost_dir, PART);
	(void)claimed(s, 0, false);
	assert_true(exists(".trash-0000000a"));
	(void)close(ghost_dir);
}

TEST(a_full_disk_does_not_keep_a_launch_from_claiming)
{
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	io_faults_fail(&f, IO_ON_WRITE | IO_ON_FALLOCATE, 1, -ENOSPC, true);
	assert_int_equal(claimed(s, 0, false), 1);
	io_faults_fail(&f, IO_ON_WRITE, 1, -EDQUOT, true);
	assert_int_equal(claimed(s, 0, false), 2);
	assert_true(io_faults_hit(&f));
}

#define RACERS 4
#define RACE_CLAIMS 25

static void *claim_race(void *arg)
{
	uint64_t *generation = arg;
	struct ckpt_err e;
	struct store *mine;

	if (store_open(&io_ops_posix, &format_native, place.fd, CRASH_JOB, true, &mine, &e))
		return NULL;
	for (uint32_t i = 0; i < RACE_CLAIMS;)
		i += store_claim(mine, 0, false, &generation[i], &e) == 0;
	store_close(mine);
	return arg;
}

TEST(claims_at_the_same_time_are_all_different)
{
	uint64_t generation[RACERS][RACE_CLAIMS];
	pthread_t thread[RACERS];
	void *done;

	for (uint32_t i = 0; i < RACERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, claim_race, generation[i]), 0);
	for (uint32_t i = 0; i < RACERS; i++) {
		assert_int_equal(pthread_join(thread[i], &done), 0);
		assert_non_null(done);
	}
	for (uint32_t i = 0; i < RACERS * RACE_CLAIMS; i++)
		for (uint32_t k = 0; k < i; k++)
			assert_int_not_equal(generation[i / RACE_CLAIMS][i % RACE_CLAIMS],
					     generation[k / RACE_CLAIMS][k % RACE_CLAIMS]);
}

UNIT(.setup = setup, .teardown = job_remove);
