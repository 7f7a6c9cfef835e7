/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_frozen.c - disks that answer nothing: the jobs of others attach, commit, restore and
 * are asked about as if nothing was, and status says which disk it is. Every call for a frozen disk
 * waits in the table of system calls until the test thaws it; which disk a descriptor is on is read
 * from its path.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <dirent.h>
#include <stdatomic.h>

#define DISKS 3

static char disk_dir[DISKS][128];
static struct {
	struct io_ops ops;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed;
	bool frozen[DISKS];
	uint32_t waiting[DISKS];
} F = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* DISKS: none of them */
static uint32_t disk_of(int fd)
{
	char path[256] = "";
	uint32_t i = 0;

	(void)io_ops_posix.path(NULL, fd, path, sizeof path);
	while (i < DISKS && strncmp(path, disk_dir[i], strlen(disk_dir[i])) != 0)
		i++;
	return i;
}

static void cross(int fd)
{
	uint32_t i = disk_of(fd);

	if (i == DISKS)
		return;
	pthread_mutex_lock(&F.lock);
	F.waiting[i]++;
	pthread_cond_broadcast(&F.changed);
	while (F.frozen[i])
		pthread_cond_wait(&F.changed, &F.lock);
	F.waiting[i]--;
	pthread_mutex_unlock(&F.lock);
}

static void freeze(uint32_t i, bool frozen)
{
	pthread_mutex_lock(&F.lock);
	F.frozen[i] = frozen;
	pthread_cond_broadcast(&F.changed);
	pthread_mutex_unlock(&F.lock);
}

/* Until so many calls wait for the disk. */
static void await(uint32_t i, uint32_t n)
{
	pthread_mutex_lock(&F.lock);
	while (F.waiting[i] < n)
		pthread_cond_wait(&F.changed, &F.lock);
	pthread_mutex_unlock(&F.lock);
}

#define CROSSES(type, name, fd, call, ...)         \
	static type f_##name(void *c, __VA_ARGS__) \
	{                                          \
		cross(fd);                         \
		return io_ops_posix.name call;     \
	}
CROSSES(int, open, dirfd, (c, dirfd, name, flags, mode), int dirfd, const char *name, int flags,
	uint32_t mode)
CROSSES(int64_t, pread, fd, (c, fd, buf, len, off), int fd, void *buf, uint64_t len, uint64_t off)
CROSSES(int64_t, pwrite, fd, (c, fd, buf, len, off), int fd, const void *buf, uint64_t len,
	uint64_t off)
CROSSES(int, mkdir, dirfd, (c, dirfd, name, mode), int dirfd, const char *name, uint32_t mode)
CROSSES(int, rename, dirfd, (c, dirfd, from, to), int dirfd, const char *from, const char *to)
CROSSES(int, list, dirfd, (c, dirfd, each, arg), int dirfd,
	int (*each)(void *, const char *, unsigned char), void *arg)
CROSSES(int, space, fd, (c, fd, ret), int fd, struct io_space *ret)

/* Nothing outlives the power here. */
static int f_sync(void *c, int fd)
{
	cross(fd);
	return host_ops.sync(c, fd);
}

/* The kernel's word, which waits for no disk: each of them has a number of its own, and so has each
 * job's directory whose name is a number. */
static int f_stat(void *c, int fd, struct io_stat *ret)
{
	int rc = io_ops_posix.stat(c, fd, ret);
	char path[256] = "/";

	(void)io_ops_posix.path(NULL, fd, path, sizeof path);
	ret->dev += 1000 * (1 + disk_of(fd)) + strtoull(strrchr(path, '/') + 1, NULL, 10);
	return rc;
}

static int f_find(void *c, const char *path, struct io_stat *ret)
{
	int rc = io_ops_posix.find(c, path, ret);

	for (uint32_t i = 0; i < DISKS; i++)
		if (!strncmp(path, disk_dir[i], strlen(disk_dir[i])))
			ret->dev += 1000 * (1 + i);
	return rc;
}

static int setup(void **state)
{
	(void)state;
	host_make(&H);
	F.ops = host_ops;
	F.ops.open = f_open;
	F.ops.pread = f_pread;
	F.ops.pwrite = f_pwrite;
	F.ops.sync = f_sync;
	F.ops.mkdir = f_mkdir;
	F.ops.rename = f_rename;
	F.ops.list = f_list;
	F.ops.space = f_space;
	F.ops.stat = f_stat;
	F.ops.find = f_find;
	for (uint32_t i = 0; i < DISKS; i++) {
		snprintf(disk_dir[i], sizeof disk_dir[i], "%s/disk%u", H.dir, i);
		MUST(mkdir(disk_dir[i], 0700) == 0);
	}
	host_start(&H, &F.ops);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < DISKS; i++)
		freeze(i, false);
	host_stop(&H);
	host_free(&H);
	return 0;
}

#define ON(job_, disk) plan(job_, "fsdp=1", .store = disk_dir[disk], .shared_only = true)

static void written_to(struct rank *k, uint64_t step, int state)
{
	stage(k, step, CKPT_PERSIST);
	must_wait(k, step, state);
}

#define ON_A 5 /* jobs: more than one device has threads of any kind */
static struct plan_of_job p[DISKS][ON_A];
static struct rank k[DISKS][ON_A];
static char job_name[DISKS][ON_A][16];

static void open_job(uint32_t disk, uint32_t i)
{
	snprintf(job_name[disk][i], sizeof job_name[disk][i], "d%u-%u", disk, i);
	p[disk][i] = ON(job_name[disk][i], disk);
	k[disk][i] = (struct rank){ 0 };
	rank_open(&k[disk][i], &p[disk][i], 0);
}

static void *opens(void *arg)
{
	struct rank *r = arg;

	rank_open(r, r->plan, 0);
	return NULL;
}

TEST(two_frozen_disks_stop_no_third_job_s_commits_attaches_restores_or_status)
{
	const struct wire_report_job *j;
	struct wire_drain drain = { 0 };
	struct wire_drained drained = { 0 };
	struct plan_of_job late = ON("late", 0), third = ON("third", 2);
	struct rank waits = { .plan = &late }, r = { 0 };
	struct ckpt_step steps[4];
	pthread_t thread;
	struct asker a;

	for (uint32_t disk = 0; disk < 2; disk++)
		for (uint32_t i = 0; i < ON_A; i++)
			open_job(disk, i);
	rank_open(&r, &third, 0);
	written_to(&r, 1, CKPT_COMMITTED);
	ask_open(&a, H.socket);
	freeze(0, true);
	freeze(1, true);
	for (uint32_t disk = 0; disk < 2; disk++) {
		for (uint32_t i = 0; i < ON_A; i++)
			written_to(&k[disk][i], 1, CKPT_STAGED);
		await(disk, 2); /* both of its threads that write */
	}
	MUST(pthread_create(&thread, NULL, opens, &waits) == 0);
	await(0, 3);
	/* the third */
	for (uint64_t step = 2; step <= 4; step++)
		written_to(&r, step, CKPT_COMMITTED);
	assert_int_equal(ckpt_steps(r.c, steps, 4), 4);
	drain.job = ask_job(&a, "third")->id;
	assert_int_equal(ask(&a, &drain, WIRE_DRAIN, sizeof drain, &drained, sizeof drained),
			 WIRE_DRAINED);
	rank_close(&r, 0);
	r = (struct rank){ 0 };
	rank_open(&r, &third, 0);
	must_restore(&r, CKPT_LATEST, CKPT_FROM_DISK);
	assert_true(r.got.step == 4 && r.got.where == 2 && rank_check(&r, 4));
	written_to(&r, 5, CKPT_COMMITTED);
	/* status names the disks that hang, and no other */
	ask_until((j = ask_job(&a, "d0-0"))->stuck_ns && (j = ask_job(&a, "d1-4"))->stuck_ns);
	assert_true(j->device[0] && strchr(j->device, '('));
	assert_true(ask_job(&a, "late")->stuck_ns > 0);
	j = ask_job(&a, "third");
	assert_true(j->stuck_ns == 0 && j->committed >= 4);
	/* and when they answer, all that was staged is written */
	freeze(0, false);
	freeze(1, false);
	for (uint32_t disk = 0; disk < 2; disk++)
		for (uint32_t i = 0; i < ON_A; i++) {
			must_wait(&k[disk][i], 1, CKPT_COMMITTED);
			rank_close(&k[disk][i], 0);
		}
	pthread_join(thread, NULL);
	ask_until(!ask_job(&a, "d0-0")->stuck_ns && !ask_job(&a, "d1-0")->stuck_ns);
	rank_close(&waits, 0);
	rank_close(&r, 0);
	ask_close(&a);
}

TEST(what_is_staged_for_a_frozen_disk_is_rescued_to_another)
{
	struct wire_drained d = { 0 };
	struct wire_drain plain = { 0 };
	struct host there = H;
	struct asker a, before;

	open_job(0, 0);
	ask_open(&a, H.socket);
	ask_open(&before, H.socket);
	freeze(0, true);
	written_to(&k[0][0], 1, CKPT_STAGED); /* being written, and never is */
	await(0, 1);
	/* a drain that waits for that disk keeps no rescue from its answer, nor counts in it */
	ask_send(&before, &plain, WIRE_DRAIN, sizeof plain);
	(void)ask_status(&a);
	assert_int_equal(ask_drain(&a, "d0-0", disk_dir[1], WIRE_TO, &d), WIRE_DRAINED);
	assert_true(d.written == 1 && d.failed == 0);
	snprintf(there.store, sizeof there.store, "%.107s", disk_dir[1]);
	assert_true(host_has(&there, "d0-0", 1));
	freeze(0, false);
	must_wait(&k[0][0], 1, CKPT_COMMITTED);
	assert_int_equal(ask_answer(&before, &d, sizeof d, NULL), WIRE_DRAINED);
	assert_true(d.written == 1 && d.failed == 0);
	rank_close(&k[0][0], 0);
	ask_close(&before);
	ask_close(&a);
}

static uint32_t threads(void)
{
	DIR *d = opendir("/proc/self/task");
	uint32_t n = 0;

	MUST(d);
	while (readdir(d))
		n++;
	(void)closedir(d);
	return n;
}

#define MANY 36 /* more than get threads of their own */

TEST(devices_beyond_the_limit_share_one_and_idle_ones_have_no_threads)
{
	static struct plan_of_job plans[MANY];
	static struct rank ranks[MANY];
	static char name[MANY][8];
	struct wire_forgotten f;
	struct asker a;
	uint32_t before;

	ask_open(&a, H.socket);
	before = threads();
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name[i], sizeof name[i], "%u", 1 + i);
		plans[i] = ON(name[i], 0);
		ranks[i] = (struct rank){ 0 };
		rank_open(&ranks[i], &plans[i], 0);
		written_to(&ranks[i], 1, CKPT_COMMITTED);
	}
	/* at most 7 a device, of 32, the shared one and that of the root; one of each rank */
	assert_in_range(threads(), before + MANY, before + MANY + 34 * 7);
	for (uint32_t i = 0; i < MANY; i++) {
		struct wire_forget m = { 0 };

		written_to(&ranks[i], 2, CKPT_COMMITTED);
		rank_close(&ranks[i], 0);
		ask_until(ask_job(&a, name[i])->attached == 0);
		m.job = ask_job(&a, name[i])->id;
		ask_until(ask(&a, &m, WIRE_FORGET, sizeof m, &f, sizeof f) == WIRE_FORGOTTEN);
		ask_until(!ask_job(&a, name[i]));
	}
	assert_int_equal(threads(), before);
	ask_close(&a);
}

UNIT(.setup = setup, .teardown = teardown);
