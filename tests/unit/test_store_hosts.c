/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_hosts.c - a store that processes of several hosts use: the lock of a directory is each
 * host's own, that of a file's bytes is everybody's, and where that is not so either, what a reader
 * leaves counts. Two hosts are two tables of calls here; tests/nfs has real ones.
 */
#include "ckpt/store/prune.h"
#include "tests/crash/job.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

#define OTHERS "/reading-000000000020-0000beef.3-elsewhere.17"

static int lock_of_one_host(void *ctx, int fd, bool exclusive)
{
	(void)ctx;
	(void)fd;
	(void)exclusive;
	return 0;
}

static bool shared_true(void *ctx, int fd)
{
	(void)ctx;
	(void)fd;
	return true;
}

static int no_lock_of_bytes(void *ctx, int fd, uint64_t off, uint64_t len, enum io_lock how)
{
	(void)ctx;
	(void)fd;
	(void)off;
	(void)len;
	(void)how;
	return 0; /* and nobody else sees it: NFS with nolock */
}

static int64_t skew_ns; /* the server's clock against this host's */

static int stat_skewed(void *ctx, int fd, struct io_stat *ret)
{
	int r = io_ops_posix.stat(ctx, fd, ret);

	ret->modified_ns += (uint64_t)skew_ns;
	return r;
}

static int stat_at_skewed(void *ctx, int dirfd, const char *name, struct io_stat *ret)
{
	int r = io_ops_posix.stat_at(ctx, dirfd, name, ret);

	ret->modified_ns += (uint64_t)skew_ns;
	return r;
}

/* --- calls --- */

static struct {
	uint32_t opens, unlinks, lists;
} calls;

static int open_counted(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	calls.opens++;
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

static int unlink_counted(void *ctx, int dirfd, const char *name, bool is_dir)
{
	calls.unlinks++;
	return io_ops_posix.unlink(ctx, dirfd, name, is_dir);
}

static int list_counted(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	calls.lists++;
	return io_ops_posix.list(ctx, dirfd, each, arg);
}

/* --- the job: 10 to 50, as another host has it, whose locks of directories are not seen --- */

static struct io_ops far;
static struct store there;
static uint64_t naps, free_at;
static int line_held;

static int nap(const struct timespec *for_, struct timespec *left)
{
	(void)for_;
	(void)left;
	if (++naps == free_at)
		store_unlock(&far, line_held);
	return 0;
}

static int setup(void **state)
{
	libc_instead.nanosleep = nap;
	naps = free_at = 0;
	skew_ns = 0;
	(void)job_make_three(state);
	save(40, 30);
	save(50, 40);
	far = io_ops_posix;
	far.lock = lock_of_one_host;
	far.shared = shared_true;
	far.stat = stat_skewed;
	far.stat_at = stat_at_skewed;
	there = job_by(&far);
	return 0;
}

static struct prune_result pruned;
static char rows[4000];

static int verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *e)
{
	(void)arg;
	(void)st;
	(void)step_fd;
	(void)e;
	return 0;
}

static void row(void *arg, const struct store_step *st, const struct retain_row *r)
{
	size_t used = strlen(rows);

	(void)arg;
	(void)snprintf(rows + used, sizeof rows - used, "%" PRIu64 " %s\n", st->step, r->reason);
}

static const struct retain_policy last1 = { .keep_last = 1 };

/* By a host whose calls these are. */
static void prune_on(struct store *at, bool set_aside)
{
	struct prune_opts o = { .policy = &last1,
				.set_aside = set_aside,
				.now_ns = wall_ns(),
				.verify = verify,
				.row = row };

	rows[0] = 0;
	assert_int_equal(store_prune(at, &o, &pruned, &err), 0);
}

static void assert_listed(const char *want)
{
	char text[200];

	listed(s, false, text);
	assert_string_equal(text, want);
}

/* How many names in .ckptd begin so. */
static const char *begins;

static int begins_add(void *arg, const char *name, unsigned char d_type)
{
	(void)d_type;
	*(uint32_t *)arg += strncmp(name, begins, strlen(begins)) == 0;
	return 0;
}

static uint32_t names_of(const char *prefix)
{
	int fd = dir_open(s->job_fd, STORE_CLAIMS);
	uint32_t n = 0;

	begins = prefix;
	assert_int_equal(io_ops_posix.list(NULL, fd, begins_add, &n), 0);
	(void)close(fd);
	return n;
}

/* As a reader of another host left it, so long ago. */
static void left_by_another(const char *name, int64_t seconds)
{
	struct timespec t[2];

	put_file(s->job_fd, name);
	(void)clock_gettime(CLOCK_REALTIME, &t[1]);
	t[1].tv_sec -= seconds;
	t[0] = t[1];
	assert_int_equal(utimensat(s->job_fd, name, t, 0), 0);
}

/* --- locks --- */

TEST(a_step_that_another_host_reads_is_not_removed)
{
	int fd;

	assert_int_equal(store_step_open(&there, "step-000000000020", &fd, &err), 0);
	prune_on(&there, false);
	assert_int_equal(pruned.busy, 1);
	assert_int_equal(pruned.removed, 3);
	assert_non_null(strstr(rows, "20 it is being read"));
	assert_listed("50 20");
	store_step_close(fd);
	prune_on(&there, false);
	assert_listed("50");
	assert_int_equal(names_of("reading-"), 0);
	assert_int_equal(names_of("lock-now-"), 0);
	assert_int_equal(names_of(STORE_LOCK_FILE), 1);
}

TEST(a_step_that_another_host_relies_on_is_not_removed_and_may_be_read)
{
	char left[STORE_DIR_MAX];
	int fd, other;

	assert_int_equal(store_hold_keep(&there, "step-000000000050", &fd), 0);
	assert_int_equal(
		store_remove(&there, "step-000000000050", false, wall_ns(), NULL, left, &err),
		-EAGAIN);
	assert_int_equal(store_step_open(&there, "step-000000000050", &other, &err), 0);
	store_step_close(other);
	store_step_close(fd);
	assert_int_equal(
		store_remove(&there, "step-000000000050", false, wall_ns(), NULL, left, &err), 0);
}

/* Both have the number 50: the one that the removal relies on, and the one that goes. */
TEST(a_step_that_was_set_aside_goes_while_the_newest_has_its_number)
{
	move("step-000000000050", ".old-000000000050-s5-t1");
	save(50, 40);
	prune_on(&there, true);
	assert_int_equal(pruned.busy, 0);
	assert_listed("50");
}

TEST(who_reads_a_step_that_is_set_aside_meanwhile_keeps_it)
{
	int fd;

	assert_int_equal(store_step_open(&there, "step-000000000050", &fd, &err), 0);
	move("step-000000000050", ".old-000000000050-s5-t1");
	save(50, 40);
	prune_on(&there, true);
	assert_int_equal(pruned.busy, 1);
	assert_listed("50 a50");
	store_step_close(fd);
	prune_on(&there, true);
	assert_listed("50");
}

/* A store on the server's own disk, which clients lock by its file. */
TEST(a_host_with_the_disk_itself_sees_the_locks_of_the_others)
{
	struct store here;
	int fd;

	assert_int_equal(store_step_open(&there, "step-000000000020", &fd, &err), 0);
	far.shared = NULL;
	here = job_by(&far);
	prune_on(&here, false);
	assert_int_equal(pruned.busy, 1);
	assert_listed("50 20");
	store_step_close(fd);
}

TEST(a_store_of_one_host_has_no_file_for_the_others)
{
	struct store here;
	int fd;

	far.shared = NULL;
	here = job_by(&far);
	assert_int_equal(store_step_open(&here, "step-000000000020", &fd, &err), 0);
	assert_int_equal(names_of("reading-"), 0);
	store_step_close(fd);
	prune_on(&here, false);
	assert_int_equal(names_of("lock-"), 0);
}

TEST(where_a_file_has_no_locks_what_readers_leave_is_respected)
{
	far.lock_bytes = NULL;
	left_by_another(STORE_CLAIMS OTHERS, 0);
	prune_on(&there, false);
	assert_int_equal(pruned.removed, 3);
	assert_int_equal(pruned.busy, 1);
	assert_listed("50 20");
}

static int open_for_readers(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if ((flags & O_ACCMODE) != O_RDONLY)
		return -EROFS;
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

TEST(who_may_only_read_the_store_locks_what_is_there)
{
	struct io_ops reads;
	struct store reader;
	int fd;

	prune_on(&there, false); /* makes the file */
	save(60, 50);
	reads = far;
	reads.open = open_for_readers;
	reader = job_by(&reads);
	assert_int_equal(store_step_open(&reader, "step-000000000050", &fd, &err), 0);
	assert_int_equal(names_of("reading-"), 0);
	prune_on(&there, false);
	assert_int_equal(pruned.busy, 1);
	store_step_close(fd);
	prune_on(&there, false);
	assert_listed("60");
}

/* Whatever lies under its name: steps are read, and none is removed on its word. */
TEST(a_lock_file_that_is_none_of_ours_is_not_followed)
{
	int fd, i;

	for (i = 0; i < 3; i++) {
		static const char name[] = STORE_CLAIMS "/" STORE_LOCK_FILE;

		assert_int_equal(i == 0	  ? symlinkat("/dev/null", s->job_fd, name)
				 : i == 1 ? mkdirat(s->job_fd, name, 0700)
					  : mkfifoat(s->job_fd, name, 0600),
				 0);
		assert_int_equal(store_step_open(&there, "step-000000000020", &fd, &err), 0);
		store_step_close(fd);
		prune_on(&there, false);
		assert_int_equal(pruned.removed, 0);
		assert_listed("50 40 30 20 10");
		assert_int_equal(unlinkat(s->job_fd, name, i == 1 ? AT_REMOVEDIR : 0), 0);
	}
}

/* --- the line --- */

TEST(who_has_claimed_waits_for_another_host)
{
	assert_int_equal(store_line_lock(&there, true, true, &line_held), 0);
	free_at = 100;
	assert_int_equal(store_claim_wait(&there, &err), 0);
	assert_int_equal(naps, 100);
	assert_int_equal(store_line_lock(&there, true, true, &line_held), 0);
	free_at = 0;
	assert_int_equal(store_claim_wait(&there, &err), -EBUSY);
	store_unlock(&far, line_held);
}

TEST(trash_that_a_removal_of_another_host_may_bring_back_is_not_emptied)
{
	int line;

	move("step-000000000010", ".trash-00000001");
	assert_int_equal(store_line_lock(&there, false, false, &line), 0);
	assert_int_equal(store_trash_sweep(&there, true), 0);
	assert_true(exists(".trash-00000001"));
	store_unlock(&far, line);
	assert_int_equal(store_trash_sweep(&there, true), 0);
	assert_false(exists(".trash-00000001"));
}

/* --- what a reader leaves --- */

TEST(a_reader_whose_lock_is_not_seen_counts_for_ten_minutes_by_the_servers_clock)
{
	static const int64_t ahead[] = { 0, 86400, -86400 };

	far.lock_bytes = no_lock_of_bytes;
	for (uint32_t i = 0; i < ARRAY_LEN(ahead); i++) {
		if (i)
			AFRESH();
		far.lock_bytes = no_lock_of_bytes;
		skew_ns = ahead[i] * (int64_t)NS_PER_S;
		left_by_another(STORE_CLAIMS OTHERS, 590);
		put_file(s->job_fd, STORE_CLAIMS "/" STORE_LOCK_FILE);
		prune_on(&there, false);
		assert_int_equal(pruned.busy, 1);
		assert_non_null(strstr(rows, "20 it is being read on elsewhere, process 17"));
		assert_listed("50 20");
		left_by_another(STORE_CLAIMS OTHERS, 610);
		prune_on(&there, false);
		assert_int_equal(pruned.busy, 0);
		assert_listed("50");
		assert_int_equal(names_of("reading-"), 0);
	}
}

/* Of steps that stay too, and of removals that were killed. */
TEST(what_the_dead_left_is_removed)
{
	left_by_another(STORE_CLAIMS "/reading-000000000050-00000001.0-gone.1", 700);
	left_by_another(STORE_CLAIMS "/lock-now-00000001", 700);
	left_by_another(STORE_CLAIMS "/reading-000000000050-00000002.0-here.1", 60);
	prune_on(&there, false);
	assert_listed("50");
	assert_int_equal(names_of("reading-"), 1);
	assert_int_equal(names_of("lock-now-"), 0);
}

TEST(a_removal_that_asks_for_the_time_disturbs_no_other)
{
	left_by_another(STORE_CLAIMS "/reading-000000000050-00000001.0-gone.1", 700);
	left_by_another(STORE_CLAIMS "/lock-now-00000001", 60);
	prune_on(&there, false);
	assert_listed("50");
	assert_int_equal(names_of("reading-"), 0);
	assert_int_equal(names_of("lock-now-"), 1);
}

TEST(readers_that_died_in_any_number_hinder_removals_no_longer_than_one)
{
	char name[STORE_DIR_MAX];

	for (uint32_t i = 0; i < 5000; i++) {
		(void)snprintf(name, sizeof name, STORE_CLAIMS "/reading-%012u-%08x.0-gone.1", 50,
			       i + 1);
		left_by_another(name, 700);
	}
	prune_on(&there, false);
	assert_listed("50");
	assert_int_equal(names_of("reading-"), 0);
}

static void point_come(void *ctx, const char *name)
{
	(void)ctx;
	if (strcmp(name, POINT_REMOVE_CHECKED) == 0 && !names_of("reading-000000000020"))
		left_by_another(STORE_CLAIMS OTHERS, 0);
}

TEST(a_reader_who_comes_between_look_and_rename_gets_his_step_back)
{
	char left[STORE_DIR_MAX];

	far.lock_bytes = no_lock_of_bytes;
	far.point = point_come;
	assert_int_equal(
		store_remove(&there, "step-000000000020", false, wall_ns(), NULL, left, &err),
		-EAGAIN);
	assert_listed("50 40 30 20 10");
}

TEST(a_beat_is_a_new_name_and_costs_two_calls_however_many_steps_there_are)
{
	char name[STORE_DIR_MAX];
	int fd;

	far.open = open_counted;
	far.unlink = unlink_counted;
	far.list = list_counted;
	assert_int_equal(store_step_open(&there, "step-000000000020", &fd, &err), 0);
	for (uint32_t i = 0; i < 3; i++) {
		begins = NULL;
		(void)snprintf(name, sizeof name, "reading-000000000020-");
		assert_int_equal(names_of(name), 1);
		memset(&calls, 0, sizeof calls);
		store_readings_beat();
		assert_int_equal(calls.opens, 1);
		assert_int_equal(calls.unlinks, 1);
		assert_int_equal(calls.lists, 0);
		for (uint32_t k = 0; k < 100; k++) {
			(void)snprintf(name, sizeof name, STORE_CLAIMS "/verified-x-%u-%u", i, k);
			put_file(s->job_fd, name);
		}
	}
	store_step_close(fd);
	assert_int_equal(names_of("reading-"), 0);
	memset(&calls, 0, sizeof calls);
	store_readings_beat();
	assert_int_equal(calls.opens, 0);
}

static pthread_mutex_t server = PTHREAD_MUTEX_INITIALIZER;

static int unlink_of_a_server(void *ctx, int dirfd, const char *name, bool is_dir)
{
	(void)pthread_mutex_lock(&server);
	(void)pthread_mutex_unlock(&server);
	return io_ops_posix.unlink(ctx, dirfd, name, is_dir);
}

TEST(who_leaves_a_step_does_not_wait_for_the_server)
{
	int fd;

	far.unlink = unlink_of_a_server;
	assert_int_equal(store_step_open(&there, "step-000000000020", &fd, &err), 0);
	(void)pthread_mutex_lock(&server);
	store_step_leave(fd); /* returns */
	store_leave_wait(0);
	assert_int_equal(names_of("reading-"), 1);
	(void)pthread_mutex_unlock(&server);
	store_leave_wait(UINT64_MAX);
	assert_int_equal(names_of("reading-"), 0);
	prune_on(&there, false);
	assert_int_equal(pruned.busy, 0);
}

TEST(what_belongs_to_readers_is_no_label_no_claim_and_no_step)
{
	cleanup_free struct store_label *label = NULL;
	struct store_claimed claim;
	uint32_t n;
	int fd;

	assert_int_equal(store_step_open(&there, "step-000000000020", &fd, &err), 0);
	assert_int_equal(store_labels(&there, &label, &n, &err), 0);
	assert_int_equal(n, 0);
	assert_int_equal(store_claim_highest(&there, &claim, &err), 0);
	assert_int_equal(claim.generation, s->generation);
	assert_listed("50 40 30 20 10");
	store_step_close(fd);
}

UNIT(.setup = setup, .teardown = job_remove);
