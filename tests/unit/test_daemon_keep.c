/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_keep.c - what the daemon leaves on the disk: the policy after commits, a disk that is
 * full or will be, damage that is remembered. The library and the daemon in one process.
 * CKPT_TEST_LOG=1 shows the daemon's log.
 */
#include "tests/lib/host.h"
#include "ckpt/store/prune.h"
#include "daemon/state.h"
#include <sys/stat.h>
#include "tests/lib/unit.h"
#include "formats/native/native.h"
#include <stdatomic.h>

#define ROOMY (UINT64_C(1) << 40)

/* --- calls of the daemon: of its keeping thread, which may fail and be held; of all --- */
static struct {
	struct io_ops ops;
	struct io_faults of_keep, of_others;
	_Atomic uint64_t free_bytes, per_removal; /* what space() says, and what it gains */
	_Atomic uint64_t writes;
	_Atomic bool hold, held; /* the next listing by the keeping thread waits */
	/* parts: open now, at most (0: any number), the most while one was written */
	_Atomic uint32_t parts, parts_max, parts_written;
	_Atomic bool is_part[4096];
	/* step directories: opened so far, and from which time on there is none (0: never) */
	_Atomic uint32_t dirs, gone_from;
} disk;

static bool keeps(void)
{
	char name[16] = "";

	(void)pthread_getname_np(pthread_self(), name, sizeof name);
	return strcmp(name, "ckptd-keep") == 0;
}

static bool keeps_not(void)
{
	return !keeps();
}

static int d_open(void *c, int dirfd, const char *name, int flags, uint32_t mode)
{
	bool part = flags & O_CREAT && strstr(name, ".part");
	uint32_t max = atomic_load(&disk.parts_max);
	int fd;

	if (part && max && atomic_load(&disk.parts) >= max)
		return -EMFILE;
	if (strncmp(name, "step-", 5) == 0 && !strchr(name, '/') && atomic_load(&disk.gone_from) &&
	    atomic_fetch_add(&disk.dirs, 1) + 1 >= atomic_load(&disk.gone_from))
		return -ENOENT;
	fd = disk.of_others.ops.open(c, dirfd, name, flags, mode);
	if (part && fd >= 0 && fd < (int)ARRAY_LEN(disk.is_part)) {
		atomic_store(&disk.is_part[fd], true);
		atomic_fetch_add(&disk.parts, 1);
	}
	return fd;
}

static bool is_part(int fd)
{
	return fd >= 0 && fd < (int)ARRAY_LEN(disk.is_part) && atomic_load(&disk.is_part[fd]);
}

static int d_close(void *c, int fd)
{
	if (is_part(fd)) {
		atomic_store(&disk.is_part[fd], false);
		atomic_fetch_sub(&disk.parts, 1);
	}
	return disk.of_others.ops.close(c, fd);
}

static int64_t d_pwrite(void *c, int fd, const void *buf, uint64_t len, uint64_t off)
{
	uint32_t parts = atomic_load(&disk.parts);

	atomic_fetch_add(&disk.writes, 1);
	if (is_part(fd) && parts > atomic_load(&disk.parts_written))
		atomic_store(&disk.parts_written, parts);
	return disk.of_others.ops.pwrite(c, fd, buf, len, off);
}

static int d_unlink(void *c, int dirfd, const char *name, bool is_dir)
{
	int rc = disk.of_others.ops.unlink(c, dirfd, name, is_dir);

	if (rc == 0 && is_dir)
		atomic_fetch_add(&disk.free_bytes, atomic_load(&disk.per_removal));
	return rc;
}

static int d_list(void *c, int dirfd, int (*each)(void *arg, const char *name, unsigned char type),
		  void *arg)
{
	if (keeps() && atomic_load(&disk.hold)) {
		atomic_store(&disk.held, true);
		while (atomic_load(&disk.hold))
			usleep(1000);
	}
	return disk.of_others.ops.list(c, dirfd, each, arg);
}

static int d_space(void *c, int fd, struct io_space *ret)
{
	int rc = disk.of_others.ops.space(c, fd, ret);

	ret->free_bytes = atomic_load(&disk.free_bytes);
	ret->total_bytes = 2 * ROOMY;
	return rc;
}

static struct plan_of_job P;
static int setup(void **state)
{
	(void)host_setup(state);
	memset(&disk, 0, sizeof disk);
	io_faults_init(&disk.of_keep, &host_ops);
	disk.of_keep.about = keeps;
	io_faults_init(&disk.of_others, &disk.of_keep.ops);
	disk.of_others.about = keeps_not;
	disk.ops = disk.of_others.ops;
	disk.ops.open = d_open;
	disk.ops.close = d_close;
	disk.ops.pwrite = d_pwrite;
	disk.ops.unlink = d_unlink;
	disk.ops.list = d_list;
	disk.ops.space = d_space;
	disk.ops.stat = io_ops_posix.stat;
	disk.ops.path = io_ops_posix.path;
	disk.ops.find = io_ops_posix.find;
	disk.ops.stat_at = io_ops_posix.stat_at;
	atomic_store(&disk.free_bytes, ROOMY);
	P = plan("job", "fsdp=1");
	return 0;
}

static int teardown(void **state)
{
	atomic_store(&disk.hold, false);
	return host_teardown(state);
}

/* A daemon whose policy is the last n steps, and multiples of every; 0, 0: none. */
static void start(uint32_t last, uint64_t every)
{
	H.opts.policy = (struct retain_policy){ .keep_last = last, .keep_every = every };
	H.opts.copy_threads = 1;
	if (!H.opts.verify_steps) /* each step is read back, unless a test says otherwise */
		H.opts.verify_ns = H.opts.verify_steps = 1;
	host_start(&H, &disk.ops);
}

static void commit(struct rank *k, uint64_t step)
{
	must_soon(rank_took(rank_step(k, step, CKPT_PERSIST)));
	must_wait(k, step, CKPT_COMMITTED);
	must_guard(k);
}

static void commit_some(struct rank *k, uint64_t from, uint64_t last)
{
	for (uint64_t step = from; step <= last; step++)
		commit(k, step);
}

/* By a daemon without a policy, which has left. */
static void committed(uint64_t last)
{
	start(0, 0);
	saves(&P, 1, last);
	host_stop(&H);
}

/* A new launch that goes on from the newest step: one that did not would set all others aside. */
static void go_on(struct rank *k)
{
	rank_open(k, &P, 0);
	must_restore(k, CKPT_LATEST, CKPT_FROM_DISK);
}

/* As host_steps, and all that is committed is whole. */
static bool disk_is(const char *want)
{
	host_committed(&H, "job", NULL, 0);
	return strcmp(host_steps(&H, "job"), want) == 0;
}

#define assert_disk(want)                                                                       \
	do {                                                                                    \
		if (!soon(strcmp(host_steps(&H, "job"), want) == 0))                            \
			fail_msg("the disk is '%s', not '%s'\n%s", host_steps(&H, "job"), want, \
				 daemon_said.text);                                             \
		assert_true(disk_is(want));                                                     \
	} while (0)

/* Of a job by hand, as other programs open it. */
static struct store by_hand(void)
{
	struct store s = { .ops = &io_ops_posix,
			   .format = &format_native,
			   .job_fd = host_job_fd(&H, "job"),
			   .job = "job" };

	MUST(s.job_fd >= 0);
	return s;
}

static void mark(uint64_t step, enum store_label_kind kind, const char *name, bool set)
{
	struct store s = by_hand();
	struct store_step *all;
	uint32_t n = host_scan(&H, "job", &all), i = 0, gone = 0;
	struct ckpt_err err = { 0 };

	while (i < n && all[i].step != step)
		i++;
	MUST(i < n);
	if (set)
		MUST_OK(store_label_set(&s, &all[i], kind, name, 0, "a test says so", &err), &err);
	else
		MUST_OK(store_label_clear(&s, &all[i], kind, NULL, &gone, &err), &err);
	MUST_BE(gone, !set);
	free(all);
	(void)close(s.job_fd);
}

/* --- the policy --- */
TEST(after_commits_the_policy_keeps_what_it_says_and_tells_why)
{
	start(2, 5);
	rank_open(&K, &P, 0);
	commit_some(&K, 1, 12);
	assert_disk("5 10 11 12");
	assert_soon(said_times(&daemon_said, "step 9 removed: ") == 1);
	assert_int_equal(said_times(&daemon_said, "step 10 removed: "), 0);
	assert_soon(said_times(&daemon_said, "read back and verified") >= 1);
}

static void set_policy(const char *lines)
{
	struct retain_policy rules = { 0 };
	struct store s = by_hand();
	struct ckpt_err err = { 0 };

	MUST_OK(retain_lines(&rules, lines, &err), &err);
	MUST_OK(store_policy_set(&s, &rules, "a test", NULL, &err), &err);
	(void)close(s.job_fd);
}

TEST(the_policy_of_the_job_is_obeyed_and_not_the_options)
{
	start(1, 0);
	rank_open(&K, &P, 0);
	commit_some(&K, 1, 3);
	assert_disk("3");
	set_policy("keep-last=2\nkeep-every=5\n");
	commit_some(&K, 4, 8);
	assert_disk("5 7 8");
	set_policy("");
	commit_some(&K, 9, 11);
	assert_disk("5 7 8 9 10 11");
	assert_soon(said_times(&daemon_said, "its policy keeps every step") == 1);
	set_policy("keep-last=1\n"); /* before the next commit, too */
	assert_disk("11");
}

TEST(a_trainer_sets_the_policy_of_its_job_once)
{
	struct plan_of_job p = P;
	struct store s;
	struct store_policy now;

	p.keep_last = 2;
	p.keep_every = 5;
	p.keep_best = "loss,acc:max:2";
	start(0, 0);
	rank_open(&K, &p, 0);
	commit_some(&K, 1, 7);
	assert_disk("5 6 7");
	s = by_hand();
	store_policy_read(&s, &now);
	assert_int_equal(now.state, STORE_POLICY_SET);
	assert_int_equal(now.number, 1);
	assert_string_equal(now.rules.best[1].key, "acc");
	assert_non_null(strstr(now.by, "attach"));
	set_policy("keep-last=3\n"); /* by an operator, who is newer */
	host_restart(&H);
	must_reattach(&K, 1);
	store_policy_read(&s, &now);
	assert_int_equal(now.number, 2);
	(void)close(s.job_fd);
}

TEST(a_policy_that_is_none_fails_attach)
{
	struct plan_of_job p = P;

	start(0, 0);
	p.keep_best = "loss:mean";
	assert_int_equal(rank_attach(&K, &p, 0), -EINVAL);
	assert_non_null(strstr(K.err.msg, "keep-best"));
	rank_free(&K);
}

TEST(a_policy_that_cannot_be_read_keeps_every_step)
{
	struct store s;
	int fd;

	start(1, 0);
	rank_open(&K, &P, 0);
	commit_some(&K, 1, 2);
	assert_disk("2");
	s = by_hand();
	fd = openat(s.job_fd, ".ckptd/keep-000000000007", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, "keep-last=1\nkeep-odd=1\nend=\n", 29), 29);
	(void)close(fd);
	commit_some(&K, 3, 5);
	assert_soon(said_times(&daemon_said, "its policy cannot be read, so every step is kept") ==
		    1);
	assert_disk("2 3 4 5");
	assert_int_equal(mkfifoat(s.job_fd, ".ckptd/keep-000000000008", 0600), 0);
	commit_some(&K, 6, 7);
	assert_soon(said_times(&daemon_said, "its policy cannot be read, so every step is kept") ==
		    2);
	assert_disk("2 3 4 5 6 7");
	(void)close(s.job_fd);
}

TEST(steps_are_read_back_when_time_has_passed_and_the_newest_verified_one_stays)
{
	H.opts.verify_ns = 1;
	H.opts.verify_steps = 5;
	start(2, 0);
	rank_open(&K, &P, 0);
	for (uint64_t step = 1; step <= 12; step++) { /* none is written while one is read back */
		commit(&K, step);
		assert_soon(said_times(&daemon_said, "keep: job job: ") >= step);
		if (step == 3) /* the first one that has to go: nothing is verified yet */
			assert_int_equal(said_times(&daemon_said, "read back and verified"), 1);
		if (step == 4)
			assert_true(disk_is("3 4") || disk_is("2 3 4"));
	}
	assert_soon(said_times(&daemon_said, "read back and verified") >= 2);
	assert_in_range(said_times(&daemon_said, "read back and verified"), 2, 3);
}

TEST(a_step_that_is_written_has_the_device_for_itself)
{
	committed(4);
	mark(2, LABEL_VERIFIED, NULL, true);
	start(1, 0);
	go_on(&K);
	atomic_store(&disk.hold, true);
	commit(&K, 5);
	assert_soon(atomic_load(&disk.held));
	atomic_store(&H.d->devices->writes, 1); /* as if the next one had begun */
	atomic_store(&disk.hold, false);
	assert_disk("2 5"); /* by the step that is verified */
	assert_int_equal(said_times(&daemon_said, "read back and verified"), 0);
	atomic_store(&H.d->devices->writes, 0);
	assert_disk("5");
	assert_soon(said_times(&daemon_said, "read back and verified") == 1);
}

TEST(without_a_policy_nothing_is_removed)
{
	committed(6);
	assert_true(disk_is("1 2 3 4 5 6"));
	assert_int_equal(said_times(&daemon_said, "keep: "), 0);
}

TEST(what_is_held_tagged_or_being_read_stays)
{
	struct store s;
	int reader = -1;

	committed(4);
	mark(1, LABEL_HOLD, "me", true);
	mark(2, LABEL_TAG, "good", true);
	s = by_hand();
	MUST_OK(store_step_open(&s, "step-000000000003", &reader, &K.err), &K.err);
	start(1, 0);
	go_on(&K);
	commit(&K, 5);
	assert_disk("1 2 3 5");
	assert_soon(said_times(&daemon_said, "keep: job job: 1 steps removed") == 1);
	(void)close(reader);
	(void)close(s.job_fd);
	mark(1, LABEL_HOLD, NULL, false);
	mark(2, LABEL_TAG, NULL, false);
	commit(&K, 6);
	assert_disk("6");
}

TEST(commits_do_not_wait_for_a_pruning_and_one_at_the_end_is_enough)
{
	start(1, 0);
	rank_open(&K, &P, 0);
	commit(&K, 1);
	assert_soon(said_times(&daemon_said, "keep: job job: ") == 1);
	atomic_store(&disk.hold, true);
	commit_some(&K, 2, 6);
	assert_soon(atomic_load(&disk.held));
	assert_true(disk_is("1 2 3 4 5 6"));
	atomic_store(&disk.hold, false);
	assert_disk("6");
	assert_soon(said_times(&daemon_said, "keep: job job: ") == 3);
}

TEST(a_daemon_that_stops_removes_nothing_more)
{
	start(1, 0);
	rank_open(&K, &P, 0);
	atomic_store(&disk.hold, true);
	commit_some(&K, 1, 3);
	assert_soon(atomic_load(&disk.held));
	daemon_stop(H.d);
	assert_soon(said_times(&daemon_said, "ckptd: stopping") == 1);
	atomic_store(&disk.hold, false);
	host_end(&H);
	rank_close(&K, 0);
	assert_true(disk_is("1 2 3"));
}

/* Commits a step while the nth call (0: none) of the pruning behind it fails. How many calls it
 * made. */
static uint64_t save_and_fail(struct rank *k, uint64_t step, uint64_t nth, int err, bool sticky)
{
	uint64_t calls;

	said_forget(&daemon_said);
	io_faults_count(&disk.of_keep, IO_ON_ANY & ~IO_ON_SPACE);
	if (nth)
		io_faults_fail(&disk.of_keep, IO_ON_ANY & ~IO_ON_SPACE, nth, err, sticky);
	commit(k, step);
	assert_soon(said_times(&daemon_said, "keep: job job: ") == 1);
	assert_true(nth == 0 || io_faults_hit(&disk.of_keep));
	calls = io_faults_calls(&disk.of_keep);
	io_faults_count(&disk.of_keep, IO_ON_ANY);
	assert_true(host_has(&H, "job", step)); /* and is not quarantined */
	host_committed(&H, "job", NULL, 0);
	return calls;
}

TEST(whatever_fails_while_it_prunes_hurts_no_step_and_no_trainer)
{
	static const int err[] = { -EIO, -ENOSPC, -EROFS, -ENOMEM };
	uint64_t step = 3, calls;
	char newest[32];

	start(1, 0);
	rank_open(&K, &P, 0);
	commit(&K, 1);
	assert_soon(said_times(&daemon_said, "keep: job job: ") == 1);
	calls = save_and_fail(&K, 2, 0, 0, false);
	/* what stays goes with a later one, so there are never fewer calls than this */
	for (uint64_t n = 1; n <= calls; n += (calls / unit_scaled(calls)) | 1)
		save_and_fail(&K, step++, n, err[n % ARRAY_LEN(err)], n % 3 == 0);
	print_message("of %" PRIu64 " calls of a pruning %" PRIu64 " failed once\n", calls,
		      step - 3);
	assert_true(calls > 20);
	commit(&K, step);
	snprintf(newest, sizeof newest, "%" PRIu64, step);
	assert_disk(newest);
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 0);
}

/* --- a daemon with a policy that is restarted --- */
static _Atomic uint32_t refused;

static void count_refused(void *ctx, int level, const char *line)
{
	(void)ctx;
	(void)level;
	atomic_fetch_add(&refused, strstr(line, "no daemon listens") != NULL);
}

static bool is_there(const char *path)
{
	return access(path, F_OK) == 0;
}

TEST(a_daemon_that_somebody_started_is_waited_for_and_not_replaced_at_once)
{
	cleanup_free char *before = strdup(getenv("PATH") ? getenv("PATH") : "");
	char program[128], started[128];
	struct plan_of_job p = P;
	FILE *f;

	(void)snprintf(program, sizeof program, "%s/ckptd", H.dir);
	(void)snprintf(started, sizeof started, "%s/started", H.dir);
	f = fopen(program, "we");
	assert_non_null(f);
	fprintf(f, "#!/bin/sh\n: >%s\necho ckptd: no good >&2\nexit 1\n", started);
	assert_int_equal(fclose(f) | chmod(program, 0700), 0);
	p.flags = CKPT_AUTOSTART | CKPT_REQUIRE;
	p.log = count_refused;
	for (uint32_t i = 0; i < 2; i++) {
		atomic_store(&refused, 0);
		p.restart_wait_ns = i ? 1 : UINT64_MAX;
		start(1, 0);
		rank_open(&K, &p, 0);
		assert_int_equal(setenv("PATH", H.dir, 1), 0);
		host_stop(&H);
		if (i == 0) {
			assert_soon(atomic_load(&refused) > 0);
			assert_false(is_there(started));
			host_start(&H, NULL);
			must_reattach(&K, 1);
			assert_false(is_there(started));
			rank_close(&K, 0);
			host_stop(&H);
		} else {
			assert_soon(is_there(started));
			rank_close(&K, 0);
		}
		assert_int_equal(setenv("PATH", before, 1), 0);
	}
}

/* --- room --- */
TEST(what_does_not_fit_is_known_before_the_first_byte)
{
	const struct wire_report_job *j;
	struct asker a;
	uint64_t writes;

	P.rows = 6000; /* some 3 MiB */
	start(0, 0);
	rank_open(&K, &P, 0);
	commit_some(&K, 1, 3);
	atomic_store(&disk.free_bytes, 2 << 20);
	writes = atomic_load(&disk.writes);
	io_faults_count(&disk.of_others, IO_ON_MUTATING);
	must_step(&K, 4, CKPT_PERSIST);
	assert_int_equal(rank_wait(&K, 4, CKPT_COMMITTED), -ENOSPC);
	assert_int_equal(atomic_load(&disk.writes), writes);
	assert_int_equal(io_faults_calls(&disk.of_others), 0);
	assert_non_null(strstr(K.err.msg, "step 4 needs "));
	assert_non_null(strstr(K.err.msg, "2.0 MiB are free"));
	assert_non_null(strstr(K.err.msg, "ckptctl prune -n --keep-last 2 would free "));
	assert_true(disk_is("1 2 3"));
	ask_open(&a, H.socket);
	ask_until((j = ask_job(&a, "job")) && j->free_mib == 3);
	assert_true(j->next_mib >= 2 && j->failed == 1 && j->committed == 3);
	assert_non_null(strstr(j->error, "step 4 needs "));
	ask_close(&a);
	must_guard(&K);
	rank_close(&K, 0);
	rank_open(&K, &P, 0);
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_MEMORY);
	assert_int_equal(K.got.step, 4);
	assert_true(rank_check(&K, 4));
	atomic_store(&disk.free_bytes, ROOMY);
	commit(&K, 5);
	assert_true(disk_is("1 2 3 5"));
}

TEST(room_is_made_by_the_policy)
{
	committed(5);
	/* a removal makes room for half a step */
	atomic_store(&disk.free_bytes, 0);
	atomic_store(&disk.per_removal, ROOMY / 2);
	start(3, 0);
	go_on(&K);
	commit(&K, 6);
	assert_soon(said_times(&daemon_said, "step 1 removed: ") == 1);
	assert_disk("4 5 6");
	rank_close(&K, 0);
	host_stop(&H);

	/* a quota, which space() does not tell */
	atomic_store(&disk.free_bytes, ROOMY);
	start(1, 0);
	go_on(&K);
	io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, 1, -EDQUOT, false);
	commit(&K, 7);
	assert_true(io_faults_hit(&disk.of_others));
	assert_disk("7");
}

/* 1 to 5, back to 3, and 6: 4 and 5 are set aside. */
static void go_back(void)
{
	start(0, 0);
	saves(&P, 1, 5);
	rank_open(&K, &P, 0);
	must_restore(&K, 3, CKPT_FROM_DISK);
	commit(&K, 6);
	rank_close(&K, 0);
	host_stop(&H);
	assert_int_equal(host_count(&H, "job", STORE_SET_ASIDE), 2);
}

TEST(what_was_set_aside_stays_and_goes_first_where_there_is_no_room)
{
	P.rows = 6000; /* some 3 MiB */
	go_back();
	start(1, 0);
	said_forget(&daemon_said);
	go_on(&K);
	commit(&K, 7);
	assert_disk("~4 ~5 7");
	assert_soon(said_times(&daemon_said, "keep: job job: 4 steps removed") == 1);
	/* one removal makes room for a step */
	said_forget(&daemon_said);
	atomic_store(&disk.free_bytes, 2 << 20);
	atomic_store(&disk.per_removal, ROOMY);
	commit(&K, 8);
	assert_int_equal(
		said_times(&daemon_said, "step 4 (set aside) removed: set aside, to make room"), 1);
	assert_disk("~5 8");
}

TEST(for_room_no_step_of_the_line_goes_before_those_that_were_set_aside)
{
	P.rows = 6000; /* some 3 MiB */
	go_back();
	start(0, 7); /* keeps none of them but the newest */
	said_forget(&daemon_said);
	/* What never changes frees nothing: the other steps share it. */
	atomic_store(&disk.free_bytes, 3 << 20);
	atomic_store(&disk.per_removal, ROOMY);
	go_on(&K);
	commit(&K, 7);
	assert_int_equal(
		said_times(&daemon_said, "step 4 (set aside) removed: set aside, to make room"), 1);
	assert_disk("~5 7");
}

TEST(without_a_policy_nothing_makes_room_and_the_sentence_names_what_could)
{
	go_back();
	start(0, 0);
	said_forget(&daemon_said);
	go_on(&K);
	atomic_store(&disk.free_bytes, 0);
	must_step(&K, 7, CKPT_PERSIST);
	assert_int_equal(rank_wait(&K, 7, CKPT_COMMITTED), -ENOSPC);
	assert_non_null(
		strstr(K.err.msg, " are set aside, ckptctl prune --set-aside removes them"));
	must_guard(&K);
	/* a quota, which space() does not tell */
	atomic_store(&disk.free_bytes, ROOMY);
	io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, 1, -EDQUOT, false);
	MUST_BE(rank_step(&K, 8, CKPT_PERSIST), CKPT_FAILING);
	assert_int_equal(rank_wait(&K, 8, CKPT_COMMITTED), -ENOSPC);
	assert_non_null(
		strstr(K.err.msg, " are set aside, ckptctl prune --set-aside removes them"));
	must_guard(&K);
	assert_true(disk_is("1 2 3 ~4 ~5 6"));
	assert_int_equal(said_times(&daemon_said, " removed: "), 0);
}

/* Some file systems give the space of removed files back in the background. */
TEST(what_was_removed_and_is_not_free_yet_fails_no_step)
{
	P.rows = 6000; /* some 3 MiB */
	committed(4);
	atomic_store(&disk.free_bytes, 0);
	start(1, 0);
	go_on(&K);
	commit(&K, 5);
	assert_disk("5");
}

/* Both ranks of a launch mark a step: what became of it. */
static int save_two(struct rank *k, uint64_t step)
{
	int rc;

	for (uint32_t r = 0; r < 2; r++)
		must_soon(rank_took(rank_step(&k[r], step, CKPT_PERSIST)));
	ranks_guard(k, 2);
	rc = rank_wait(&k[0], step, CKPT_COMMITTED);
	MUST(rc == 0 || rc == -ENOSPC);
	return rc;
}

TEST(what_the_reservation_refuses_is_not_begun)
{
	struct rank k[2] = { { 0 } };
	uint64_t writes, step = 1;

	P.mesh = "fsdp=2";
	start(0, 0);
	ranks_open(k, 2, &P);
	assert_int_equal(save_two(k, step++), 0);
	for (uint64_t n = 1; n <= 2; n++) { /* the space of the first part, of the second */
		writes = atomic_load(&disk.writes);
		io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, n, -ENOSPC, true);
		assert_int_equal(save_two(k, step++), -ENOSPC);
		assert_true(io_faults_hit(&disk.of_others));
		assert_int_equal(atomic_load(&disk.writes), writes);
		assert_true(disk_is("1"));
		assert_int_equal(host_count(&H, "job", STORE_COLLECTING), 0);
	}
	io_faults_count(&disk.of_others, IO_ON_ANY);
	assert_int_equal(save_two(k, step), 0);
	assert_true(disk_is("1 4"));
	ranks_close(k, 2);
}

static void slow_sync(void *unused, uint32_t classes)
{
	(void)unused;
	if (classes & IO_ON_SYNC)
		usleep(60000);
}

/* A step of many ranks does not take the last descriptor from who attaches or restores
 * meanwhile, however long its files wait for their syncs. */
TEST(short_of_descriptors_half_of_them_stay_free)
{
	enum { N = 24, FEW = 20 };
	static struct rank k[N];

	P.mesh = "fsdp=24";
	disk.of_others.on_call = slow_sync;
	start(0, 0);
	ranks_open(k, N, &P);
	atomic_store(&disk.parts_max, FEW);
	for (uint32_t r = 0; r < N; r++)
		must_soon(rank_step(&k[r], 1, CKPT_PERSIST) == 0);
	ranks_guard(k, N);
	must_wait(&k[0], 1, CKPT_COMMITTED);
	assert_true(disk_is("1"));
	assert_in_range(atomic_load(&disk.parts_written), 1, FEW - 1);
	ranks_close(k, N);
}

TEST(where_a_job_goes_back_to_is_not_removed_before_it_commits)
{
	committed(5);
	start(1, 0);
	rank_open(&K, &P, 0);
	must_restore(&K, 2, CKPT_FROM_DISK);
	atomic_store(&disk.free_bytes, 0);
	must_step(&K, 3, CKPT_PERSIST);
	assert_int_equal(rank_wait(&K, 3, CKPT_COMMITTED), -ENOSPC);
	assert_disk("2 5");
	atomic_store(&disk.free_bytes, ROOMY);
	must_guard(&K);
	commit(&K, 4);
	assert_disk("4 ~5");
}

/* --- damage --- */
TEST(damage_is_remembered_by_the_next_daemon)
{
	committed(2);
	host_damage(&H, "job", 2);
	start(0, 0);
	rank_open(&K, &P, 0);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_soon(said_times(&daemon_said, "it is quarantined") == 1);
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 1);
	assert_int_equal(K.got.step, 1);
	rank_close(&K, 0);
	host_stop(&H);
	start(0, 0);
	rank_open(&K, &P, 0);
	rank_clear(&K);
	said_forget(&daemon_said);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_int_equal(K.got.step, 1);
	assert_true(rank_check(&K, 1));
	assert_soon(said_times(&daemon_said, "passed over: step 2: quarantined: ") == 1);
	assert_true(K.got.npassed == 1 && strncmp(K.got.passed, "step 2: quarantined: ", 21) == 0);
}

/* "Call again and an older one is agreed on" would be said for ever. */
TEST(where_nothing_can_be_restored_asking_again_is_no_use)
{
	committed(1);
	host_damage(&H, "job", 1);
	start(0, 0);
	rank_open(&K, &P, 0);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_FROM_DISK), -EBADMSG);
	for (int i = 0; i < 2; i++)
		assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_FROM_DISK), -EUCLEAN);
}

/* Set aside or removed between the choice and the reading, by another launch: who is told -ENOENT
 * starts at step 0, and its first commit sets all others aside. */
TEST(what_goes_under_the_hand_that_restores_is_not_said_to_be_nothing)
{
	committed(2);
	start(0, 0);
	rank_open(&K, &P, 0);
	for (uint32_t from = 1; from <= 3; from++) {
		atomic_store(&disk.dirs, 0);
		atomic_store(&disk.gone_from, from);
		assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_FROM_DISK), -EBADMSG);
	}
	atomic_store(&disk.gone_from, 0);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_int_equal(K.got.step, 2);
}

TEST(what_is_damaged_on_disk_is_good_in_memory)
{
	start(0, 0);
	rank_open(&K, &P, 0);
	commit_some(&K, 1, 2);
	rank_close(&K, 0);
	host_damage(&H, "job", 2);
	rank_open(&K, &P, 0);
	assert_int_equal(rank_restore(&K, 2, CKPT_FROM_DISK), -EBADMSG);
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, 0);
	assert_true(K.got.step == 2 && K.got.where == 1);
	assert_true(rank_check(&K, 2));
}

TEST(damage_that_cannot_be_labelled_is_said_and_an_older_step_is_given)
{
	committed(2);
	host_damage(&H, "job", 2);
	start(0, 0);
	rank_open(&K, &P, 0);
	io_faults_fail(&disk.of_others, IO_ON_CREATE, 1, -EROFS, true);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_soon(said_times(&daemon_said, "could not be labelled as damaged") == 1);
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 0);
	assert_true(K.got.step == 1 && K.got.npassed == 1);
}

TEST(a_device_that_cannot_read_is_no_damage_for_ever)
{
	uint32_t failed = 0;
	bool hit = true;

	committed(2);
	for (uint64_t n = 1; hit; n++) {
		int rc;

		start(0, 0);
		rank_open(&K, &P, 0);
		io_faults_fail(&disk.of_others, IO_ON_READ, n, -EIO, n % 2 == 0);
		rc = rank_restore(&K, 2, CKPT_FROM_DISK);
		hit = io_faults_hit(&disk.of_others);
		io_faults_count(&disk.of_others, IO_ON_ANY);
		rank_close(&K, 0);
		host_stop(&H);
		assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 0);
		assert_true(hit || rc == 0);
		failed += rc != 0;
	}
	assert_true(failed > 2);
}

TEST(a_damaged_newest_step_keeps_the_older_ones)
{
	committed(3);
	start(1, 0);
	go_on(&K);
	atomic_store(&disk.hold, true);
	commit(&K, 4);
	assert_soon(atomic_load(&disk.held));
	host_damage(&H, "job", 4);
	atomic_store(&disk.hold, false);
	assert_disk("3 q4");
	assert_soon(said_times(&daemon_said, "1 step was damaged when read back") == 1);
}

/* --- what it says --- */
TEST(a_launch_says_what_its_store_is_like_and_a_flood_of_garbage_little)
{
	const struct wire_report_job *j;
	uint64_t began;

	start(0, 0);
	rank_open(&K, &P, 0);
	assert_soon(said_times(&daemon_said, "store: job job: threads (") == 1);
	began = now_ns();
	for (uint32_t i = 0; i < 200; i++) {
		int sock = ask_connect(H.socket);

		MUST(sock >= 0 && send(sock, "garbage", 7, MSG_NOSIGNAL) == 7);
		(void)!recv(sock, &(char){ 0 }, 1, 0); /* until it is closed */
		(void)close(sock);
	}
	assert_true(said_times(&daemon_said, "speaks another protocol") <=
		    2 + (now_ns() - began) / (SEC / 2));
	assert_soon(said_times(&daemon_said, "such connections") >= 1);
	rank_close(&K, 0);
	host_stop(&H);

	io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, 1, -EOPNOTSUPP, true);
	start(0, 0);
	rank_open(&K, &P, 0);
	assert_soon(said_times(&daemon_said, "no fallocate: a full disk is met late") == 1);
	rank_close(&K, 0);
	host_stop(&H);

	P.job = "new";
	io_faults_fail(&disk.of_others, IO_ON_MKDIR, 1, -EDQUOT, true);
	start(0, 0);
	assert_true(rank_attach(&K, &P, 0) < 0);
	rank_free(&K);
	ask_open(&A, H.socket);
	ask_until((j = ask_job(&A, "new")) && j->error[0]);
	assert_int_equal(j->world, 0);
}

UNIT(.setup = setup, .teardown = teardown);
