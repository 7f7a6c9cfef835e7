/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_keep.c - what the daemon leaves on the disk: the policy after commits, a disk that is
 * full or will be, damage that is remembered. The library and the daemon in one process.
 * CKPT_TEST_LOG=1 shows the daemon's log.
 */
#include "tests/lib/rank.h"

#include "tests/lib/host.h"
#include "tests/lib/asker.h"
#include "tests/lib/io_faults.h"
#include "ckpt/store/prune.h"
#include "tests/lib/unit.h"
#include <stdatomic.h>

#define PATIENCE_NS (30 * SEC)
#define LOOK_US 1000
#define ROOMY (UINT64_C(1) << 40)

static struct host H;

/* --- what the daemon said --- */
static struct {
	pthread_mutex_t lock; /* protects the rest */
	size_t used;
	char text[1 << 20];
} said = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void listen_to(void *ctx, int level, const char *line)
{
	size_t n = strlen(line);

	(void)ctx;
	pthread_mutex_lock(&said.lock);
	if (said.used + n + 2 < sizeof said.text) {
		memcpy(said.text + said.used, line, n);
		said.used += n;
		said.text[said.used++] = '\n';
		said.text[said.used] = 0;
	}
	pthread_mutex_unlock(&said.lock);
	if (getenv("CKPT_TEST_LOG"))
		log_to_stderr(NULL, level, line);
}

static void forget_said(void)
{
	pthread_mutex_lock(&said.lock);
	said.used = 0;
	said.text[0] = 0;
	pthread_mutex_unlock(&said.lock);
}

static uint32_t times_said(const char *what)
{
	uint32_t n = 0;

	pthread_mutex_lock(&said.lock);
	for (const char *p = said.text; (p = strstr(p, what)); p++)
		n++;
	pthread_mutex_unlock(&said.lock);
	return n;
}

/* True as soon as the condition holds, false if it does not in time. */
#define soon(cond)                                              \
	({                                                      \
		uint64_t until_ = now_ns() + PATIENCE_NS;       \
		bool holds_;                                    \
		while (!(holds_ = (cond)) && now_ns() < until_) \
			usleep(LOOK_US);                        \
		holds_;                                         \
	})

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

static const struct io_ops *table(void)
{
	return keeps() ? &disk.of_keep.ops : &disk.of_others.ops;
}

#define CALL(f, ...) table()->f(table()->ctx, __VA_ARGS__)
static int d_open(void *c, int dirfd, const char *name, int flags, uint32_t mode)
{
	bool part = flags & O_CREAT && strstr(name, ".part");
	uint32_t max = atomic_load(&disk.parts_max);
	int fd;

	(void)c;
	if (part && max && atomic_load(&disk.parts) >= max)
		return -EMFILE;
	if (strncmp(name, "step-", 5) == 0 && !strchr(name, '/') && atomic_load(&disk.gone_from) &&
	    atomic_fetch_add(&disk.dirs, 1) + 1 >= atomic_load(&disk.gone_from))
		return -ENOENT;
	fd = CALL(open, dirfd, name, flags, mode);
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
	(void)c;
	if (is_part(fd)) {
		atomic_store(&disk.is_part[fd], false);
		atomic_fetch_sub(&disk.parts, 1);
	}
	return CALL(close, fd);
}

static int64_t d_pread(void *c, int fd, void *buf, uint64_t len, uint64_t off)
{
	(void)c;
	return CALL(pread, fd, buf, len, off);
}

static int64_t d_pwrite(void *c, int fd, const void *buf, uint64_t len, uint64_t off)
{
	uint32_t parts = atomic_load(&disk.parts);

	(void)c;
	atomic_fetch_add(&disk.writes, 1);
	if (is_part(fd) && parts > atomic_load(&disk.parts_written))
		atomic_store(&disk.parts_written, parts);
	return CALL(pwrite, fd, buf, len, off);
}

static int d_fallocate(void *c, int fd, uint64_t len)
{
	(void)c;
	return CALL(fallocate, fd, len);
}

static int d_truncate(void *c, int fd, uint64_t len)
{
	(void)c;
	return CALL(truncate, fd, len);
}

static int d_sync(void *c, int fd)
{
	(void)c;
	return CALL(sync, fd);
}

static int d_mkdir(void *c, int dirfd, const char *name, uint32_t mode)
{
	(void)c;
	return CALL(mkdir, dirfd, name, mode);
}

static int d_rename(void *c, int dirfd, const char *from, const char *to)
{
	(void)c;
	return CALL(rename, dirfd, from, to);
}

static int d_link(void *c, int dirfd, const char *from, const char *to)
{
	(void)c;
	return CALL(link, dirfd, from, to);
}

static int d_unlink(void *c, int dirfd, const char *name, bool is_dir)
{
	int rc = CALL(unlink, dirfd, name, is_dir);

	(void)c;
	if (rc == 0 && is_dir)
		atomic_fetch_add(&disk.free_bytes, atomic_load(&disk.per_removal));
	return rc;
}

static int d_size(void *c, int fd, uint64_t *ret)
{
	(void)c;
	return CALL(size, fd, ret);
}

static int d_list(void *c, int dirfd, int (*each)(void *arg, const char *name, unsigned char type),
		  void *arg)
{
	(void)c;
	if (keeps() && atomic_load(&disk.hold)) {
		atomic_store(&disk.held, true);
		while (atomic_load(&disk.hold))
			usleep(LOOK_US);
	}
	return CALL(list, dirfd, each, arg);
}

static int d_space(void *c, int fd, struct io_space *ret)
{
	int rc = CALL(space, fd, ret);

	(void)c;
	ret->free_bytes = atomic_load(&disk.free_bytes);
	ret->total_bytes = 2 * ROOMY;
	return rc;
}

static int d_lock(void *c, int fd, bool exclusive)
{
	(void)c;
	return CALL(lock, fd, exclusive);
}

static int setup(void **state)
{
	(void)state;
	host_make(&H);
	forget_said();
	io_faults_init(&disk.of_keep, &io_ops_posix);
	io_faults_init(&disk.of_others, &io_ops_posix);
	disk.ops = io_ops_posix;
	disk.ops.open = d_open;
	disk.ops.close = d_close;
	disk.ops.pread = d_pread;
	disk.ops.pwrite = d_pwrite;
	disk.ops.fallocate = d_fallocate;
	disk.ops.truncate = d_truncate;
	disk.ops.sync = d_sync;
	disk.ops.mkdir = d_mkdir;
	disk.ops.rename = d_rename;
	disk.ops.link = d_link;
	disk.ops.unlink = d_unlink;
	disk.ops.size = d_size;
	disk.ops.list = d_list;
	disk.ops.space = d_space;
	disk.ops.lock = d_lock;
	atomic_store(&disk.free_bytes, ROOMY);
	atomic_store(&disk.per_removal, 0);
	atomic_store(&disk.writes, 0);
	atomic_store(&disk.parts_max, 0);
	atomic_store(&disk.gone_from, 0);
	atomic_store(&disk.parts_written, 0);
	atomic_store(&disk.hold, false);
	atomic_store(&disk.held, false);
	return 0;
}

/* The same in memory, where there is some, for what saves hundreds of steps. */
static int setup_quick(void **state)
{
	const char *tmp = getenv("TMPDIR");

	if (!tmp && access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 1);
	setup(state);
	if (!tmp)
		unsetenv("TMPDIR");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	atomic_store(&disk.hold, false);
	if (H.d)
		host_stop(&H);
	host_free(&H);
	return 0;
}

/* A daemon whose policy is the last n steps, and multiples of every; 0, 0: none. */
static void start(uint32_t last, uint64_t every)
{
	struct daemon_opts o = { .socket = H.socket,
				 .engine = IO_THREADS,
				 .ops = &disk.ops,
				 .copy_threads = 1,
				 .policy = { .keep_last = last, .keep_every = every },
				 .log = { listen_to, NULL, LOG_DEBUG } };
	struct ckpt_err err;

	MUST_OK(daemon_open(&o, &H.d, &err), &err);
	MUST(pthread_create(&H.thread, NULL, host_run, &H) == 0);
}

static struct plan_of_job plan(void)
{
	return (struct plan_of_job){ .socket = H.socket,
				     .store = H.store,
				     .job = "job",
				     .mesh = "fsdp=1",
				     .guard = CKPT_FINISH };
}

static void save(struct rank *k, uint64_t step)
{
	struct ckpt_err err = { 0 };

	MUST(soon(rank_took(rank_step(k, step, CKPT_PERSIST))));
	MUST_OK(ckpt_wait(k->c, step, CKPT_COMMITTED, PATIENCE_NS, &err), &err);
	MUST_BE(ckpt_guard(k->c, NULL), 0);
}

static void save_some(struct rank *k, uint64_t from, uint64_t last)
{
	for (uint64_t step = from; step <= last; step++)
		save(k, step);
}

/* A new launch that goes on from the newest step: one that did not would set all others aside. */
static void go_on(struct rank *k, const struct plan_of_job *p)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	rank_open(k, p, 0);
	MUST_OK(rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
}

/* "12 11 10 5": whole, newest first. */
static bool disk_is(const char *want)
{
	uint64_t step[32];
	uint32_t n = MIN(host_committed(&H, "job", step, 32), 32u);
	char text[256] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < n; i++)
		len += (size_t)snprintf(text + len, sizeof text - len, "%s%" PRIu64, i ? " " : "",
					step[i]);
	return strcmp(text, want) == 0;
}

/* What is committed, without reading it: it may be removed meanwhile. */
static bool names_are(const char *want)
{
	struct store_step *step;
	uint32_t n = host_scan(&H, "job", &step);
	char text[256] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < n; i++)
		if (step[i].state == STORE_COMMITTED)
			len += (size_t)snprintf(text + len, sizeof text - len, "%s%" PRIu64,
						len ? " " : "", step[i].step);
	free(step);
	return strcmp(text, want) == 0;
}

#define assert_disk(want)                                                         \
	do {                                                                      \
		if (!soon(names_are(want)))                                       \
			fail_msg("the disk never was '%s'\n%s", want, said.text); \
		assert_true(disk_is(want));                                       \
	} while (0)

/* Of a job by hand, as other programs open it. */
static struct store by_hand(void)
{
	struct store s = { .ops = &io_ops_posix, .job_fd = host_job_fd(&H, "job"), .job = "job" };

	MUST(s.job_fd >= 0);
	return s;
}

static void say_of(uint64_t step, enum store_mark_kind kind, const char *name)
{
	struct store s = by_hand();
	struct store_step *all;
	uint32_t n = host_scan(&H, "job", &all), i = 0;
	struct ckpt_err err = { 0 };

	while (i < n && all[i].step != step)
		i++;
	MUST(i < n);
	MUST_OK(store_mark_set(&s, &all[i], kind, name, 0, "a test says so", &err), &err);
	free(all);
	(void)close(s.job_fd);
}

static void unsay(uint64_t step, enum store_mark_kind kind)
{
	struct store s = by_hand();
	struct store_step *all;
	uint32_t n = host_scan(&H, "job", &all), i = 0, gone = 0;
	struct ckpt_err err = { 0 };

	while (i < n && all[i].step != step)
		i++;
	MUST(i < n);
	MUST_OK(store_mark_clear(&s, &all[i], kind, NULL, &gone, &err), &err);
	MUST_BE(gone, 1);
	free(all);
	(void)close(s.job_fd);
}

/* --- the policy --- */
TEST(after_commits_the_policy_keeps_what_it_says_and_tells_why)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	start(2, 5);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 12);
	assert_disk("12 11 10 5");
	assert_true(soon(times_said("step 9 removed: ") == 1));
	assert_int_equal(times_said("step 10 removed: "), 0);
	assert_true(times_said("read back and verified") >= 1);
	rank_close(&k, 0);
}

TEST(without_a_policy_nothing_is_removed)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 6);
	rank_close(&k, 0);
	host_stop(&H);
	assert_true(disk_is("6 5 4 3 2 1"));
	assert_int_equal(times_said("keep: "), 0);
}

TEST(what_is_held_tagged_or_being_read_stays)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };
	struct store s;
	struct ckpt_err err;
	int reader = -1;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 4);
	rank_close(&k, 0);
	host_stop(&H);
	say_of(1, MARK_HOLD, "me");
	say_of(2, MARK_TAG, "good");
	s = by_hand();
	MUST_OK(store_step_open(&s, "step-000000000003", &reader, &err), &err);
	start(1, 0);
	go_on(&k, &p);
	save(&k, 5);
	assert_disk("5 3 2 1");
	assert_true(soon(times_said("keep: job job: 1 steps removed") == 1));
	(void)close(reader);
	(void)close(s.job_fd);
	unsay(1, MARK_HOLD);
	unsay(2, MARK_TAG);
	save(&k, 6);
	assert_disk("6");
	rank_close(&k, 0);
}

TEST(commits_do_not_wait_for_a_pruning_and_one_at_the_end_is_enough)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	start(1, 0);
	rank_open(&k, &p, 0);
	save(&k, 1);
	assert_true(soon(times_said("keep: job job: ") == 1));
	atomic_store(&disk.hold, true);
	save_some(&k, 2, 6);
	assert_true(soon(atomic_load(&disk.held)));
	assert_true(disk_is("6 5 4 3 2 1"));
	atomic_store(&disk.hold, false);
	assert_disk("6");
	assert_true(soon(times_said("keep: job job: ") == 3));
	rank_close(&k, 0);
}

TEST(a_daemon_that_stops_removes_nothing_more)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	start(1, 0);
	rank_open(&k, &p, 0);
	atomic_store(&disk.hold, true);
	save_some(&k, 1, 3);
	assert_true(soon(atomic_load(&disk.held)));
	daemon_stop(H.d);
	assert_true(soon(times_said("ckptd: stopping") == 1));
	atomic_store(&disk.hold, false);
	host_end(&H);
	rank_close(&k, 0);
	assert_true(disk_is("3 2 1"));
}

/* Commits a step while the nth call (0: none) of the pruning behind it fails. How many calls it made. */
static uint64_t save_and_fail(struct rank *k, uint64_t step, uint64_t nth, int err, bool sticky)
{
	uint64_t calls;

	forget_said();
	io_faults_count(&disk.of_keep, IO_ON_ANY & ~IO_ON_SPACE);
	if (nth)
		io_faults_fail(&disk.of_keep, IO_ON_ANY & ~IO_ON_SPACE, nth, err, sticky);
	save(k, step);
	assert_true(soon(times_said("keep: job job: ") == 1));
	assert_true(nth == 0 || io_faults_hit(&disk.of_keep));
	calls = io_faults_calls(&disk.of_keep);
	io_faults_count(&disk.of_keep, IO_ON_ANY);
	assert_true(host_has(&H, "job", step)); /* and is not quarantined */
	host_committed(&H, "job", NULL, 0);
	return calls;
}

TEST_WITH(whatever_fails_while_it_prunes_hurts_no_step_and_no_trainer, setup_quick, teardown)
{
	static const int err[] = { -EIO, -ENOSPC, -EROFS, -ENOMEM };
	struct plan_of_job p = plan();
	struct rank k = { 0 };
	uint64_t step = 3, calls;
	char newest[32];

	start(1, 0);
	rank_open(&k, &p, 0);
	save(&k, 1);
	assert_true(soon(times_said("keep: job job: ") == 1));
	calls = save_and_fail(&k, 2, 0, 0, false);
	/* what stays goes with a later one, so there are never fewer calls than this */
	for (uint64_t n = 1; n <= calls; n++)
		save_and_fail(&k, step++, n, err[n % ARRAY_LEN(err)], n % 3 == 0);
	print_message("each of %" PRIu64 " calls of a pruning failed once\n", calls);
	assert_true(calls > 20);
	save(&k, step);
	snprintf(newest, sizeof newest, "%" PRIu64, step);
	assert_disk(newest);
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 0);
	rank_close(&k, 0);
}

/* --- room --- */
TEST(what_does_not_fit_is_known_before_the_first_byte)
{
	const struct wire_report_job *j;
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;
	struct asker a;
	uint64_t writes;

	p.rows = 20000; /* some 10 MiB */
	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 3);
	atomic_store(&disk.free_bytes, 4 << 20);
	writes = atomic_load(&disk.writes);
	io_faults_count(&disk.of_others, IO_ON_MUTATING);
	MUST_BE(rank_step(&k, 4, CKPT_PERSIST), 0);
	assert_int_equal(ckpt_wait(k.c, 4, CKPT_COMMITTED, PATIENCE_NS, &err), -ENOSPC);
	assert_int_equal(atomic_load(&disk.writes), writes);
	assert_int_equal(io_faults_calls(&disk.of_others), 0);
	assert_non_null(strstr(err.msg, "step 4 needs "));
	assert_non_null(strstr(err.msg, "4.0 MiB are free"));
	assert_non_null(strstr(err.msg, "ckptctl prune -n --keep-last 2 would free "));
	assert_true(disk_is("3 2 1"));
	ask_open(&a, H.socket);
	ask_until((j = ask_job(&a, "job")) && j->free_mib == 5);
	assert_true(j->next_mib >= 8 && j->failed == 1 && j->committed == 3);
	assert_non_null(strstr(j->error, "step 4 needs "));
	ask_close(&a);
	MUST_BE(ckpt_guard(k.c, NULL), 0);
	rank_close(&k, 0);
	rank_open(&k, &p, 0);
	rank_clear(&k);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_FROM_MEMORY, &got, &err), &err);
	assert_int_equal(got.step, 4);
	assert_true(rank_check(&k, 4));
	atomic_store(&disk.free_bytes, ROOMY);
	save(&k, 5);
	assert_true(disk_is("5 3 2 1"));
	rank_close(&k, 0);
}

TEST(room_is_made_by_the_policy)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 5);
	rank_close(&k, 0);
	host_stop(&H);
	/* a removal makes room for half a step */
	atomic_store(&disk.free_bytes, 0);
	atomic_store(&disk.per_removal, ROOMY / 2);
	start(3, 0);
	go_on(&k, &p);
	save(&k, 6);
	assert_true(times_said("step 1 removed: ") == 1);
	assert_disk("6 5 4");
	rank_close(&k, 0);
	host_stop(&H);

	/* a quota, which space() does not tell */
	atomic_store(&disk.free_bytes, ROOMY);
	start(1, 0);
	go_on(&k, &p);
	io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, 1, -EDQUOT, false);
	save(&k, 7);
	assert_true(io_faults_hit(&disk.of_others));
	assert_disk("7");
	rank_close(&k, 0);
}

/* 1 to 5, back to 3, and 6: 4 and 5 are set aside. */
static void go_back(struct plan_of_job *p)
{
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, p, 0);
	save_some(&k, 1, 5);
	rank_close(&k, 0);
	rank_open(&k, p, 0);
	MUST_OK(rank_restore(&k, 3, CKPT_FROM_DISK, &got, &err), &err);
	save(&k, 6);
	rank_close(&k, 0);
	host_stop(&H);
	assert_int_equal(host_count(&H, "job", STORE_SET_ASIDE), 2);
}

TEST(what_was_set_aside_stays_and_goes_first_where_there_is_no_room)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	p.rows = 20000; /* some 10 MiB */
	go_back(&p);
	start(1, 0);
	forget_said();
	go_on(&k, &p);
	save(&k, 7);
	assert_disk("7");
	assert_true(soon(times_said("keep: job job: 4 steps removed") == 1));
	assert_int_equal(host_count(&H, "job", STORE_SET_ASIDE), 2);
	/* one removal makes room for a step */
	forget_said();
	atomic_store(&disk.free_bytes, 4 << 20);
	atomic_store(&disk.per_removal, ROOMY);
	save(&k, 8);
	assert_int_equal(times_said("step 4 (set aside) removed: set aside, to make room"), 1);
	assert_disk("8");
	assert_int_equal(host_count(&H, "job", STORE_SET_ASIDE), 1);
	rank_close(&k, 0);
}

TEST(for_room_no_step_of_the_line_goes_before_those_that_were_set_aside)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	p.rows = 20000; /* some 10 MiB */
	go_back(&p);
	start(0, 7); /* keeps none of them but the newest */
	forget_said();
	atomic_store(&disk.free_bytes, 4 << 20);
	atomic_store(&disk.per_removal, ROOMY);
	go_on(&k, &p);
	save(&k, 7);
	assert_int_equal(times_said("step 4 (set aside) removed: set aside, to make room"), 1);
	assert_disk("7");
	assert_int_equal(host_count(&H, "job", STORE_SET_ASIDE), 1);
	rank_close(&k, 0);
}

TEST(without_a_policy_nothing_makes_room_and_the_sentence_names_what_could)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	go_back(&p);
	start(0, 0);
	forget_said();
	go_on(&k, &p);
	atomic_store(&disk.free_bytes, 0);
	MUST_BE(rank_step(&k, 7, CKPT_PERSIST), 0);
	assert_int_equal(ckpt_wait(k.c, 7, CKPT_COMMITTED, PATIENCE_NS, &err), -ENOSPC);
	assert_non_null(strstr(err.msg, " are set aside, ckptctl prune --set-aside removes them"));
	MUST_BE(ckpt_guard(k.c, NULL), 0);
	/* a quota, which space() does not tell */
	atomic_store(&disk.free_bytes, ROOMY);
	io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, 1, -EDQUOT, false);
	MUST_BE(rank_step(&k, 8, CKPT_PERSIST), CKPT_FAILING);
	assert_int_equal(ckpt_wait(k.c, 8, CKPT_COMMITTED, PATIENCE_NS, &err), -ENOSPC);
	assert_non_null(strstr(err.msg, " are set aside, ckptctl prune --set-aside removes them"));
	MUST_BE(ckpt_guard(k.c, NULL), 0);
	assert_true(disk_is("6 3 2 1"));
	assert_int_equal(host_count(&H, "job", STORE_SET_ASIDE), 2);
	assert_int_equal(times_said(" removed: "), 0);
	rank_close(&k, 0);
}

/* Some file systems give the space of removed files back in the background. */
TEST(what_was_removed_and_is_not_free_yet_fails_no_step)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	p.rows = 20000; /* some 10 MiB */
	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 4);
	rank_close(&k, 0);
	host_stop(&H);
	atomic_store(&disk.free_bytes, 0);
	start(1, 0);
	go_on(&k, &p);
	save(&k, 5);
	assert_disk("5");
	rank_close(&k, 0);
}

/* Both ranks of a launch mark a step: what became of it. */
static int save_two(struct rank *k, uint64_t step)
{
	struct ckpt_err err = { 0 };
	int rc;

	for (uint32_t r = 0; r < 2; r++)
		MUST(soon(rank_took(rank_step(&k[r], step, CKPT_PERSIST))));
	for (uint32_t r = 0; r < 2; r++)
		MUST_BE(ckpt_guard(k[r].c, NULL), 0);
	rc = ckpt_wait(k[0].c, step, CKPT_COMMITTED, PATIENCE_NS, &err);
	MUST(rc == 0 || rc == -ENOSPC);
	return rc;
}

TEST(what_the_reservation_refuses_is_not_begun)
{
	struct plan_of_job p = plan();
	struct rank k[2] = { { 0 } };
	uint64_t writes, step = 1;

	p.mesh = "fsdp=2";
	start(0, 0);
	ranks_open(k, 2, &p);
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
	assert_true(disk_is("4 1"));
	for (uint32_t r = 0; r < 2; r++)
		rank_close(&k[r], 0);
}

/* A step of many ranks does not take the last descriptor from who attaches or restores meanwhile. */
TEST(short_of_descriptors_half_of_them_stay_free)
{
	enum { N = 24, FEW = 20 };
	static struct rank k[N];
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };

	p.mesh = "fsdp=24";
	start(0, 0);
	ranks_open(k, N, &p);
	atomic_store(&disk.parts_max, FEW);
	for (uint32_t r = 0; r < N; r++)
		MUST(soon(rank_step(&k[r], 1, CKPT_PERSIST) == 0));
	for (uint32_t r = 0; r < N; r++)
		MUST_BE(ckpt_guard(k[r].c, NULL), 0);
	MUST_OK(ckpt_wait(k[0].c, 1, CKPT_COMMITTED, PATIENCE_NS, &err), &err);
	assert_true(disk_is("1"));
	assert_in_range(atomic_load(&disk.parts_written), 1, FEW - 1);
	for (uint32_t r = 0; r < N; r++)
		rank_close(&k[r], 0);
}

TEST(where_a_job_goes_back_to_is_not_removed_before_it_commits)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 5);
	rank_close(&k, 0);
	host_stop(&H);
	start(1, 0);
	rank_open(&k, &p, 0);
	MUST_OK(rank_restore(&k, 2, CKPT_FROM_DISK, &got, &err), &err);
	atomic_store(&disk.free_bytes, 0);
	MUST_BE(rank_step(&k, 3, CKPT_PERSIST), 0);
	assert_int_equal(ckpt_wait(k.c, 3, CKPT_COMMITTED, PATIENCE_NS, &err), -ENOSPC);
	assert_disk("5 2");
	atomic_store(&disk.free_bytes, ROOMY);
	MUST_BE(ckpt_guard(k.c, NULL), 0);
	save(&k, 4);
	assert_disk("4");
	rank_close(&k, 0);
}

/* --- damage --- */
TEST(damage_is_remembered_by_the_next_daemon)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 2);
	rank_close(&k, 0);
	host_stop(&H);
	host_damage(&H, "job", 2);
	start(0, 0);
	rank_open(&k, &p, 0);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	assert_true(soon(times_said("it is quarantined") == 1));
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 1);
	assert_int_equal(got.step, 1);
	rank_close(&k, 0);
	host_stop(&H);
	start(0, 0);
	rank_open(&k, &p, 0);
	rank_clear(&k);
	forget_said();
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	assert_int_equal(got.step, 1);
	assert_true(rank_check(&k, 1));
	assert_int_equal(times_said("passed over: step 2: quarantined: "), 1);
	assert_true(got.npassed == 1 && strncmp(got.passed, "step 2: quarantined: ", 21) == 0);
	rank_close(&k, 0);
}

/* "Call again and an older one is agreed on" would be said for ever. */
TEST(where_nothing_can_be_restored_asking_again_is_no_use)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, &p, 0);
	save(&k, 1);
	rank_close(&k, 0);
	host_stop(&H);
	host_damage(&H, "job", 1);
	start(0, 0);
	rank_open(&k, &p, 0);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), -EBADMSG);
	for (int i = 0; i < 2; i++)
		assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err),
				 -EUCLEAN);
	rank_close(&k, 0);
}

/* Set aside or removed between the choice and the reading, by another launch: who is told -ENOENT starts
 * at step 0, and its first commit sets all others aside. */
TEST(what_goes_under_the_hand_that_restores_is_not_said_to_be_nothing)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 2);
	rank_close(&k, 0);
	host_stop(&H);
	start(0, 0);
	rank_open(&k, &p, 0);
	for (uint32_t from = 1; from <= 3; from++) {
		atomic_store(&disk.dirs, 0);
		atomic_store(&disk.gone_from, from);
		assert_int_equal(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err),
				 -EBADMSG);
	}
	atomic_store(&disk.gone_from, 0);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	assert_int_equal(got.step, 2);
	rank_close(&k, 0);
}

TEST(what_is_damaged_on_disk_is_good_in_memory)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 2);
	rank_close(&k, 0);
	host_damage(&H, "job", 2);
	rank_open(&k, &p, 0);
	assert_int_equal(rank_restore(&k, 2, CKPT_FROM_DISK, &got, &err), -EBADMSG);
	rank_clear(&k);
	MUST_OK(rank_restore(&k, CKPT_LATEST, 0, &got, &err), &err);
	assert_true(got.step == 2 && got.where == 1);
	assert_true(rank_check(&k, 2));
	rank_close(&k, 0);
}

TEST(damage_that_cannot_be_marked_is_said_and_an_older_step_is_given)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 2);
	rank_close(&k, 0);
	host_stop(&H);
	host_damage(&H, "job", 2);
	start(0, 0);
	rank_open(&k, &p, 0);
	io_faults_fail(&disk.of_others, IO_ON_CREATE, 1, -EROFS, true);
	MUST_OK(rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	assert_true(soon(times_said("could not be marked as damaged") == 1));
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 0);
	assert_true(got.step == 1 && got.npassed == 1);
	rank_close(&k, 0);
}

TEST(a_device_that_cannot_read_is_no_damage_for_ever)
{
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct ckpt_got got;
	uint32_t failed = 0;
	bool hit = true;

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 2);
	rank_close(&k, 0);
	host_stop(&H);
	for (uint64_t n = 1; hit; n++) {
		int rc;

		start(0, 0);
		rank_open(&k, &p, 0);
		io_faults_fail(&disk.of_others, IO_ON_READ, n, -EIO, n % 2 == 0);
		rc = rank_restore(&k, 2, CKPT_FROM_DISK, &got, &err);
		hit = io_faults_hit(&disk.of_others);
		io_faults_count(&disk.of_others, IO_ON_ANY);
		rank_close(&k, 0);
		host_stop(&H);
		assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 0);
		assert_true(hit || rc == 0);
		failed += rc != 0;
	}
	assert_true(failed > 2);
}

TEST(a_damaged_newest_step_keeps_the_older_ones)
{
	struct plan_of_job p = plan();
	struct rank k = { 0 };

	start(0, 0);
	rank_open(&k, &p, 0);
	save_some(&k, 1, 3);
	rank_close(&k, 0);
	host_stop(&H);
	start(1, 0);
	go_on(&k, &p);
	atomic_store(&disk.hold, true);
	save(&k, 4);
	assert_true(soon(atomic_load(&disk.held)));
	host_damage(&H, "job", 4);
	atomic_store(&disk.hold, false);
	assert_disk("3");
	assert_true(soon(times_said("1 step was damaged when read back") == 1));
	assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), 1);
	rank_close(&k, 0);
}

/* --- what it says --- */
TEST(a_launch_says_what_its_store_is_like_and_a_flood_of_garbage_little)
{
	const struct wire_report_job *j;
	struct plan_of_job p = plan();
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct asker a;
	uint64_t began;

	start(0, 0);
	rank_open(&k, &p, 0);
	assert_int_equal(times_said("store: job job: threads ("), 1);
	began = now_ns();
	for (uint32_t i = 0; i < 200; i++) {
		int sock = ask_connect(H.socket);

		MUST(sock >= 0 && send(sock, "garbage", 7, MSG_NOSIGNAL) == 7);
		(void)!recv(sock, &(char){ 0 }, 1, 0); /* until it is closed */
		(void)close(sock);
	}
	assert_true(times_said("speaks another protocol") <= 2 + (now_ns() - began) / (SEC / 2));
	assert_true(soon(times_said("such connections") >= 1));
	rank_close(&k, 0);
	host_stop(&H);

	io_faults_fail(&disk.of_others, IO_ON_FALLOCATE, 1, -EOPNOTSUPP, true);
	start(0, 0);
	rank_open(&k, &p, 0);
	assert_int_equal(times_said("no fallocate: a full disk is met late"), 1);
	rank_close(&k, 0);
	host_stop(&H);

	p.job = "new";
	io_faults_fail(&disk.of_others, IO_ON_MKDIR, 1, -EDQUOT, true);
	start(0, 0);
	assert_true(rank_attach(&k, &p, 0, &err) < 0);
	rank_free(&k);
	ask_open(&a, H.socket);
	ask_until((j = ask_job(&a, "new")) && j->error[0]);
	assert_int_equal(j->world, 0);
	ask_close(&a);
}

UNIT(.setup = setup, .teardown = teardown);
