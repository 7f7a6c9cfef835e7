/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_doctor.c - what the doctor finds, and what it makes of machines that this test does not
 * run on: verdicts are a pure function of facts, and facts can be made up.
 */
#include "ckpt/wire/wire.h"
#include "ckpt/cli/doctor.h"
#include "ckpt/base/error.h"
#include "tests/lib/cli_rig.h"
#include "tests/lib/row.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#define TIB (GIB << 10)

/* --- verdicts --- */

static struct doctor_finding findings[64];
static uint32_t nfinding;

static void collect(void *arg, const struct doctor_finding *f)
{
	(void)arg;
	assert_true(nfinding < ARRAY_LEN(findings));
	findings[nfinding++] = *f;
}

static const struct doctor_finding *judged(const struct doctor_facts *f, const char *check)
{
	nfinding = 0;
	doctor_judge(f, collect, NULL);
	for (uint32_t i = 0; i < nfinding; i++)
		if (!strcmp(findings[i].check, check))
			return &findings[i];
	return NULL;
}

/* A machine that has everything, and a job of 149 GiB. */
static struct doctor_facts healthy(void)
{
	struct doctor_facts f =
		ROW(.path = "/ckpt", .job_bytes = 149 * GIB, .uid = 1000,
		    .probe = { .direct = true, .align = 4096, .fs_type = "xfs" },
		    .fs_magic = 0x58465342, .sync_ns = 2 * NS_PER_MS, .disk = "nvme0n1",
		    .write_cache = "write back", .shmem_huge = "advise", .free_bytes = 18 * TIB,
		    .total_bytes = 40 * TIB, .free_files = DOCTOR_NONE, .uring = true,
		    .uring_why = "io_uring", .memlock = DOCTOR_NONE, .nofile = 65536,
		    .fsize = DOCTOR_NONE, .as = DOCTOR_NONE, .mem_total = 2 * TIB,
		    .mem_available = TIB, .shm_bytes = TIB, .cgroup_limit = DOCTOR_NONE,
		    .kernel = "6.8.0", .kernel_major = 6, .kernel_minor = 8,
		    .socket = "/tmp/ckptd-1000/socket", .systemd = true,
		    .now_ns = UINT64_C(1800000000) * NS_PER_S);

	return f;
}

TEST(a_healthy_machine_has_nothing_but_good_findings)
{
	struct doctor_facts f = healthy();

	assert_non_null(judged(&f, "space"));
	assert_true(nfinding > 15);
	for (uint32_t i = 0; i < nfinding; i++)
		if (findings[i].level != DOCTOR_OK)
			fail_msg("%s: %s", findings[i].check, findings[i].found);
}

/* Each case changes one thing; the check that it belongs to, and no other, turns. */
#define CASE(check_, level_, word_, ...)                                                         \
	do {                                                                                     \
		struct doctor_facts f = healthy();                                               \
		const struct doctor_finding *x;                                                  \
		__VA_ARGS__;                                                                     \
		x = judged(&f, check_);                                                          \
		if (!x)                                                                          \
			fail_msg("line %d: no finding about %s", __LINE__, check_);              \
		if (x->level != (level_))                                                        \
			fail_msg("line %d: %s is %d: %s", __LINE__, check_, x->level, x->found); \
		assert_says(x->found, word_);                                                    \
		if ((level_) != DOCTOR_OK && !*x->next)                                          \
			fail_msg("line %d: nothing to do about %s", __LINE__, x->found);         \
		for (uint32_t i_ = 0; i_ < nfinding; i_++)                                       \
			if (findings[i_].level != DOCTOR_OK && &findings[i_] != x)               \
				fail_msg("line %d: also %s: %s", __LINE__, findings[i_].check,   \
					 findings[i_].found);                                    \
	} while (0)

TEST(each_thing_that_is_missing_turns_its_check_and_no_other)
{
	CASE("directory", DOCTOR_FAIL, "not writable", f.dir_rc = -EACCES);
	CASE("directory", DOCTOR_FAIL, "read-only", f.dir_rc = -EROFS);
	CASE("directory", DOCTOR_FAIL, "does not exist", f.dir_rc = -ENOENT);
	CASE("directory", DOCTOR_FAIL, "not a directory", f.dir_rc = -ENOTDIR);
	CASE("directory", DOCTOR_FAIL, "no way", f.dir_rc = -EIO; strcpy(f.dir_err.msg, "no way"));
	CASE("directory", DOCTOR_WARN, "does not exist", f.missing = true; strcpy(f.parent, "/"));
	CASE("file system", DOCTOR_WARN, "tmpfs", f.probe.volatile_fs = true;
	     strcpy(f.probe.fs_type, "tmpfs"));
	CASE("file system", DOCTOR_WARN, "overlay", strcpy(f.probe.fs_type, "overlay"));
	CASE("file system", DOCTOR_WARN, "nfs", f.fs_magic = 0x6969);
	CASE("file system", DOCTOR_WARN, "fuse", f.fs_magic = 0x65735546);
	CASE("file system", DOCTOR_OK, "lustre", f.fs_magic = 0x0bd00bd0);
	CASE("file system", DOCTOR_OK, "not known", f.fs_magic = 0x12345;
	     strcpy(f.probe.fs_type, "other"));
	CASE("direct I/O", DOCTOR_WARN, "refused", f.probe.direct = false);
	CASE("sync", DOCTOR_FAIL, "Input/output", f.sync_rc = -EIO);
	CASE("sync", DOCTOR_WARN, "250 ms", f.sync_ns = 250 * NS_PER_MS);
	CASE("sync", DOCTOR_WARN, "too fast", f.sync_ns = 3000);
	CASE("rename", DOCTOR_FAIL, "replaces", f.rename_rc = 1);
	CASE("rename", DOCTOR_FAIL, "cannot be renamed", f.rename_rc = -EIO);
	CASE("file system", DOCTOR_WARN, "soft", f.soft = true; strcpy(f.probe.fs_type, "nfs");
	     f.fs_magic = 0x6969);
	CASE("file system", DOCTOR_OK, "on write", f.fs_magic = 0x9123683e;
	     strcpy(f.probe.fs_type, "btrfs"));
	CASE("file system", DOCTOR_WARN, "vfat", f.fs_magic = 0x4d44);
	CASE("disk", DOCTOR_FAIL, "does not flush", f.nobarrier = true);
	CASE("disk", DOCTOR_WARN, "does not flush", f.nobarrier = true; *f.write_cache = 0);
	CASE("disk", DOCTOR_OK, "survives", f.nobarrier = true;
	     strcpy(f.write_cache, "write through"));
	CASE("disk", DOCTOR_OK, "cannot detect", f.sync_ns = 3 * NS_PER_MS);
	CASE("fallocate", DOCTOR_WARN, "in the middle", f.fallocate_rc = -EOPNOTSUPP);
	CASE("fallocate", DOCTOR_FAIL, "No space", f.fallocate_rc = -ENOSPC);
	CASE("locks", DOCTOR_WARN, "never prunes", f.lock_rc = -EOPNOTSUPP);
	CASE("locks", DOCTOR_FAIL, "Input/output", f.lock_rc = -EIO);
	CASE("out of memory", DOCTOR_WARN, "along", f.cgroup_oom_group = true);
	CASE("out of memory", DOCTOR_WARN, "200", f.oom_adj = 200);
	CASE("out of memory", DOCTOR_OK, "-500", f.oom_adj = -500);
	CASE("out of memory", DOCTOR_WARN, "oom_score_adj of ckptd (process 77) is 0",
	     f.daemon_oom_known = true;
	     f.daemon_pid = 77);
	CASE("out of memory", DOCTOR_WARN, "is 200", f.daemon_oom_known = true; f.daemon_oom = 200;
	     f.nrank = 4);
	CASE("out of memory", DOCTOR_OK, "before ckptd", f.daemon_oom_known = true;
	     f.daemon_oom = -500);
	CASE("out of memory", DOCTOR_OK, "before ckptd", f.daemon_oom_known = true; f.nrank = 4;
	     f.rank_oom = 500);
	CASE("cgroup", DOCTOR_OK, "none of 4", f.nrank = 4);
	CASE("cgroup", DOCTOR_WARN, "of 3 of 4 attached ranks, /job", f.nrank = 4;
	     f.nrank_beside = 3; strcpy(f.daemon_group, "/job"));
	CASE("daemon", DOCTOR_FAIL, "version of ckptd: it speaks 3", f.daemon_rc = -EPROTO;
	     strcpy(f.daemon_said, "it speaks 3"));
	CASE("address space", DOCTOR_FAIL, "298 GiB", f.as = 200 * GIB);
	CASE("address space", DOCTOR_OK, "298 GiB", f.as = TIB);
	CASE("overcommit", DOCTOR_FAIL, "overcommit_memory=2", f.commit_strict = true;
	     f.commit_limit = 200 * GIB);
	CASE("overcommit", DOCTOR_WARN, "298 GiB", f.commit_strict = true; f.commit_limit = TIB;
	     f.commit_used = TIB - GIB);
	CASE("overcommit", DOCTOR_OK, "298 GiB", f.commit_strict = true; f.commit_limit = TIB);
	CASE("huge pages", DOCTOR_OK, "never", strcpy(f.shmem_huge, "never"));
	CASE("space", DOCTOR_FAIL, "no space", f.free_bytes = 148 * GIB);
	CASE("space", DOCTOR_WARN, "one step", f.free_bytes = 297 * GIB);
	CASE("space", DOCTOR_OK, "2 steps", f.free_bytes = 298 * GIB);
	CASE("inodes", DOCTOR_WARN, "only 12", f.free_files = 12);
	CASE("kernel", DOCTOR_FAIL, "memfd", f.memfd_rc = -ENOSYS);
	CASE("kernel", DOCTOR_FAIL, "SO_PEERCRED", f.cred_rc = -EOPNOTSUPP);
	CASE("kernel", DOCTOR_WARN, "pidfd", f.pidfd_rc = -ENOSYS);
	CASE("io_uring", DOCTOR_WARN, "sandbox", f.uring = false; strcpy(f.uring_why, "a sandbox"));
	CASE("memlock", DOCTOR_WARN, "64.0 KiB", f.memlock = 64 * KIB; f.kernel_major = 5;
	     f.kernel_minor = 4);
	CASE("memlock", DOCTOR_OK, "64.0 KiB", f.memlock = 64 * KIB);
	CASE("open files", DOCTOR_WARN, "512", f.nofile = 512);
	CASE("open files", DOCTOR_FAIL, "64", f.nofile = 64);
	CASE("file size", DOCTOR_FAIL, "1.00 GiB", f.fsize = GIB);
	CASE("file size", DOCTOR_WARN, "1.00 TiB", f.fsize = TIB);
	CASE("memory", DOCTOR_FAIL, "298 GiB", f.mem_total = 256 * GIB);
	CASE("memory", DOCTOR_WARN, "298 GiB", f.mem_available = 256 * GIB);
	CASE("memory limit", DOCTOR_FAIL, "cgroup v1", f.cgroup = 1; f.cgroup_limit = 200 * GIB);
	CASE("memory limit", DOCTOR_WARN, "cgroup v2", f.cgroup = 2; f.cgroup_limit = 400 * GIB;
	     f.cgroup_used = 390 * GIB);
	CASE("memory limit", DOCTOR_OK, "cgroup v2", f.cgroup = 2; f.cgroup_limit = 400 * GIB);
	CASE("swap", DOCTOR_WARN, "in use", f.swap_total = 8 * GIB; f.swap_free = GIB);
	CASE("swap", DOCTOR_OK, "in use", f.swap_total = f.swap_free = 8 * GIB);
	CASE("huge pages", DOCTOR_WARN, "1.00 TiB", f.huge_bytes = TIB);
	CASE("/dev/shm", DOCTOR_OK, "64.0 MiB", f.shm_bytes = 64 * MIB);
	CASE("daemon", DOCTOR_WARN, "none listens", f.daemon_rc = -ENOENT);
	CASE("daemon", DOCTOR_WARN, "none listens", f.daemon_rc = -ECONNREFUSED);
	CASE("daemon", DOCTOR_FAIL, "does not answer", f.daemon_rc = -EAGAIN);
	CASE("daemon", DOCTOR_FAIL, "another program", f.daemon_rc = -EPROTO);
	CASE("daemon", DOCTOR_FAIL, "another user", f.daemon_rc = -EACCES);
	CASE("daemon", DOCTOR_FAIL, "does not answer", f.daemon_rc = -EAGAIN);
	CASE("daemon", DOCTOR_FAIL, "too long", f.daemon_rc = -ENAMETOOLONG);
	CASE("session", DOCTOR_WARN, "KillUserProcesses", f.kills_user_processes = true);
	CASE("session", DOCTOR_WARN, "last logout",
	     strcpy(f.socket, "/run/user/1000/ckptd/socket"));
	CASE("session", DOCTOR_OK, "lingers", f.kills_user_processes = f.lingers = true);
	CASE("clock", DOCTOR_FAIL, "1970", f.now_ns = 5 * NS_PER_S);
	CASE("clock", DOCTOR_WARN, "12.0 s", f.skew_ns = -12 * (int64_t)NS_PER_S);
	CASE("torchrun", DOCTOR_WARN, "30 s", f.torchrun = true);
	CASE("torchrun", DOCTOR_OK, "is set", f.torchrun = f.torchrun_patient = true);
	CASE("slurm", DOCTOR_WARN, "KillWait", f.slurm = true);
	CASE("slurm", DOCTOR_WARN, "10 min", f.slurm = true;
	     f.slurm_end_s = f.now_ns / NS_PER_S + 600);
}

TEST(what_could_be_better_is_told_though_all_is_well)
{
	struct doctor_facts f = healthy();

	assert_string_equal(judged(&f, "space")->next, ""); /* room for 123 steps */
	assert_string_equal(judged(&f, "huge pages")->next, "");
	f.free_bytes = 5 * f.job_bytes;
	assert_says(judged(&f, "space")->next, "--keep-last");
	strcpy(f.shmem_huge, "never");
	f.kernel_major = 6; /* asks for them by MADV_COLLAPSE, which minds no sysctl but deny */
	f.kernel_minor = 1;
	assert_string_equal(judged(&f, "huge pages")->next, "");
	f.kernel_minor = 0;
	assert_says(judged(&f, "huge pages")->next, "shmem_enabled");
	f.kernel_minor = 18;
	strcpy(f.shmem_huge, "deny");
	assert_says(judged(&f, "huge pages")->next, "shmem_enabled");
	*f.write_cache = 0;
	assert_null(judged(&f, "disk")); /* a network, memory: nothing is known, nothing is said */
	assert_null(judged(&f, "overcommit"));
}

TEST(without_a_job_size_nothing_is_held_against_it)
{
	struct doctor_facts f = healthy();

	f.job_bytes = 0;
	f.free_bytes = f.mem_available = MIB;
	assert_int_equal(judged(&f, "space")->level, DOCTOR_OK);
	assert_says(judged(&f, "space")->next, "--job-size");
	assert_int_equal(judged(&f, "memory")->level, DOCTOR_OK);
	f.job_bytes = UINT64_MAX; /* twice that is no number */
	assert_int_equal(judged(&f, "space")->level, DOCTOR_FAIL);
	assert_int_equal(judged(&f, "memory")->level, DOCTOR_FAIL);
}

TEST(hints_for_launchers_come_only_where_their_variables_are_set)
{
	struct doctor_facts f = healthy();

	assert_null(judged(&f, "torchrun"));
	assert_null(judged(&f, "slurm"));
	f.uid = 0;
	assert_null(judged(&f, "session"));
}

/* --- facts --- */

TEST(looking_leaves_nothing_in_the_directory)
{
	const char *dir = path_of("%s/store", top);
	struct doctor_facts f;
	struct doctor_ask ask = { .ops = &io_ops_posix, .path = dir, .socket = "/nonexistent/s" };

	assert_int_equal(mkdir(dir, 0700), 0);
	doctor_look(&ask, &f);
	assert_int_equal(entries(dir), 0);
	assert_int_equal(f.dir_rc, 0);
	assert_int_equal(f.sync_rc, 0);
	assert_int_equal(f.rename_rc, 0);
	assert_true(f.fallocate_rc == 0 || f.fallocate_rc == -EOPNOTSUPP);
	assert_true(f.lock_rc == 0 || f.lock_rc == -EOPNOTSUPP);
	assert_int_equal(f.memfd_rc, 0);
	assert_int_equal(f.daemon_rc, -ENOENT);
	assert_true(f.sync_ns > 0 && f.free_bytes > 0 && f.mem_total > 0 && f.mem_available > 0);
	assert_int_equal(f.job_bytes, 0);
	assert_false(f.missing);
}

TEST(a_directory_that_is_not_there_is_looked_at_through_its_parent)
{
	const char *dir = path_of("%s/later/", top);
	struct doctor_facts f;
	struct doctor_ask ask = { .ops = &io_ops_posix, .path = dir };

	doctor_look(&ask, &f);
	assert_true(f.missing);
	assert_int_equal(f.dir_rc, 0);
	assert_string_equal(f.parent, top);
	assert_int_equal(access(dir, F_OK), -1);
	ask.path = dir = path_of("%s/later/and/later", top);
	doctor_look(&ask, &f);
	assert_int_equal(f.dir_rc, -ENOENT);
	ask.path = dir = path_of("%s/file", top);
	assert_int_equal(mknod(dir, S_IFREG | 0600, 0), 0);
	doctor_look(&ask, &f);
	assert_int_equal(f.dir_rc, -ENOTDIR);
}

TEST(the_newest_step_tells_the_size_of_the_job)
{
	struct doctor_facts f;
	struct doctor_ask ask = { .ops = &io_ops_posix, .path = work };

	doctor_look(&ask, &f);
	assert_true(f.job_guessed);
	assert_true(f.job_bytes > MIB);
	ask.job_bytes = 5;
	doctor_look(&ask, &f);
	assert_false(f.job_guessed);
	assert_int_equal(f.job_bytes, 5);
}

/* Operations of a file system that does not keep the rules. */
static struct io_ops bad;
static int bad_sync(void *ctx, int fd)
{
	(void)ctx;
	(void)fd;
	return -EIO;
}
static int bad_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	(void)ctx;
	return renameat(dirfd, from, dirfd, to) ? -errno : 0;
}
static int bad_fallocate(void *ctx, int fd, uint64_t len)
{
	(void)ctx;
	(void)fd;
	(void)len;
	return -EOPNOTSUPP;
}
static int bad_lock(void *ctx, int fd, bool exclusive)
{
	(void)ctx;
	(void)fd;
	(void)exclusive;
	return -EOPNOTSUPP;
}
static int bad_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	(void)ctx;
	(void)dirfd;
	(void)name;
	(void)flags;
	(void)mode;
	return -EROFS;
}

TEST(a_file_system_that_breaks_the_rules_is_found_and_left_clean)
{
	const char *dir = path_of("%s/broken", top);
	struct doctor_facts f;
	struct doctor_ask ask = { .ops = &bad, .path = dir };

	assert_int_equal(mkdir(dir, 0700), 0);
	bad = io_ops_posix;
	bad.sync = bad_sync;
	doctor_look(&ask, &f);
	assert_int_equal(f.sync_rc, -EIO);
	assert_int_equal(entries(dir), 0);
	bad = io_ops_posix;
	bad.rename = bad_rename;
	doctor_look(&ask, &f);
	assert_int_equal(f.rename_rc, 1);
	assert_int_equal(entries(dir), 0);
	bad = io_ops_posix;
	bad.fallocate = bad_fallocate;
	bad.lock = bad_lock;
	doctor_look(&ask, &f);
	assert_int_equal(f.fallocate_rc, -EOPNOTSUPP);
	assert_int_equal(f.lock_rc, -EOPNOTSUPP);
	assert_int_equal(entries(dir), 0);
	bad = io_ops_posix;
	bad.open = bad_open;
	doctor_look(&ask, &f);
	assert_int_equal(f.dir_rc, -EROFS);
}

static void file_put(const char *root, const char *path, const char *text)
{
	char full[PATH_MAX];
	FILE *f;

	snprintf(full, sizeof full, "%s%s", root, path);
	for (char *p = full + strlen(top) + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = 0;
		mkdir(full, 0700);
	}
	f = fopen(full, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void made_up(const char *root, struct doctor_facts *f)
{
	struct doctor_ask ask = { .ops = &io_ops_posix, .path = work, .root = root };

	doctor_look(&ask, f);
}

TEST(limits_of_memory_are_read_from_cgroups_of_both_versions)
{
	const char *root = path_of("%s/v2", top);
	struct doctor_facts f;

	assert_int_equal(mkdir(root, 0700), 0);
	made_up(root, &f);
	assert_int_equal(f.cgroup, 0);
	assert_true(f.cgroup_limit == DOCTOR_NONE);
	assert_int_equal(f.mem_total, 0);
	/* the tightest of a group and those that it lies in */
	file_put(root, "/proc/self/cgroup", "0::/job/step\n");
	file_put(root, "/sys/fs/cgroup/job/step/memory.max", "max\n");
	file_put(root, "/sys/fs/cgroup/job/memory.max", "1073741824\n");
	file_put(root, "/sys/fs/cgroup/job/memory.current", "1048576\n");
	file_put(root, "/sys/fs/cgroup/memory.max", "4294967296\n");
	file_put(root, "/proc/meminfo",
		 "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 1024 kB\n"
		 "SwapFree: 512 kB\nHugePages_Total: 3\nHugepagesize: 2048 kB\n");
	made_up(root, &f);
	assert_int_equal(f.cgroup, 2);
	assert_int_equal(f.cgroup_limit, GIB);
	assert_int_equal(f.cgroup_used, MIB);
	assert_int_equal(f.mem_total, 8 * GIB);
	assert_int_equal(f.mem_available, 4 * GIB);
	assert_int_equal(f.swap_total, MIB);
	assert_int_equal(f.swap_free, MIB / 2);
	assert_int_equal(f.huge_bytes, 6 * MIB);
	/* v1, in a container, whose path is not visible */
	root = path_of("%s/v1", top);
	file_put(root, "/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n");
	file_put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
	file_put(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
	made_up(root, &f);
	assert_int_equal(f.cgroup, 1);
	assert_int_equal(f.cgroup_limit, 2 * GIB);
	assert_int_equal(f.cgroup_used, 5);
	/* and its way to say "none" */
	file_put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	made_up(root, &f);
	assert_int_equal(f.cgroup, 0);
	/* nonsense is no limit */
	file_put(root, "/proc/self/cgroup", "\n:\n::\n0::../../..\n99999999999999\n");
	made_up(root, &f);
	assert_int_equal(f.cgroup, 0);
}

TEST(how_memory_is_given_out_is_read)
{
	const char *root = path_of("%s/given", top);
	struct doctor_facts f;

	assert_int_equal(mkdir(root, 0700), 0);
	made_up(root, &f);
	assert_false(f.commit_strict || f.cgroup_oom_group || f.oom_adj || *f.shmem_huge);
	file_put(root, "/proc/self/cgroup", "0::/pod\n");
	file_put(root, "/sys/fs/cgroup/pod/memory.oom.group", "1\n");
	file_put(root, "/proc/self/oom_score_adj", "-17\n");
	file_put(root, "/proc/sys/vm/overcommit_memory", "2\n");
	file_put(root, "/proc/meminfo", "CommitLimit: 2048 kB\nCommitted_AS: 1024 kB\n");
	file_put(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
		 "always within_size [advise] never deny force\n");
	made_up(root, &f);
	assert_true(f.commit_strict && f.cgroup_oom_group);
	assert_int_equal(f.oom_adj, -17);
	assert_int_equal(f.commit_limit, 2 * MIB);
	assert_int_equal(f.commit_used, MIB);
	assert_string_equal(f.shmem_huge, "advise");
	file_put(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", "[\n");
	file_put(root, "/proc/sys/vm/overcommit_memory", "1\n");
	made_up(root, &f);
	assert_false(f.commit_strict);
	assert_string_equal(f.shmem_huge, "");
}

TEST(the_disk_and_its_mount_are_found_by_the_device)
{
	char root[PATH_MAX], path[PATH_MAX], line[256];
	struct doctor_facts f;
	struct stat st;

	snprintf(root, sizeof root, "%s/mounted", top);
	assert_int_equal(mkdir(root, 0700), 0);
	assert_int_equal(stat(work, &st), 0);
	made_up(root, &f);
	assert_string_equal(f.write_cache, "");
	assert_false(f.nobarrier || f.soft);
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u/queue/write_cache", major(st.st_dev),
		 minor(st.st_dev));
	file_put(root, path, "write back\n");
	snprintf(line, sizeof line,
		 "1 2 999999:1 / / rw - ext4 /dev/x rw,nobarrier\n"
		 "3 2 %u:%u / /ckpt rw,nobarrier - ext4 /dev/soft rw,softreval,data=ordered\n",
		 major(st.st_dev), minor(st.st_dev));
	file_put(root, "/proc/self/mountinfo", line);
	made_up(root, &f);
	assert_string_equal(f.write_cache, "write back");
	assert_true(*f.disk);
	assert_false(f.nobarrier || f.soft);
	snprintf(line, sizeof line, "- \n 1 2 x\n3 2 %u:%u / /c rw - nfs h:/x rw,soft,barrier=0\n",
		 major(st.st_dev), minor(st.st_dev));
	file_put(root, "/proc/self/mountinfo", line);
	made_up(root, &f);
	assert_true(f.nobarrier && f.soft);
}

TEST(sessions_that_end_are_known_by_their_files)
{
	const char *root = path_of("%s/login", top);
	struct doctor_facts f;

	file_put(root, "/run/systemd/system/x", "");
	file_put(root, "/etc/systemd/logind.conf",
		 "[Login]\n#KillUserProcesses=no\nKillUserProcesses=yes\n");
	setenv("USER", "somebody", 1);
	made_up(root, &f);
	assert_true(f.systemd && f.kills_user_processes && !f.lingers);
	file_put(root, "/var/lib/systemd/linger/somebody", "");
	file_put(root, "/etc/systemd/logind.conf", "[Login]\n#KillUserProcesses=yes\n");
	made_up(root, &f);
	assert_true(f.systemd && !f.kills_user_processes && f.lingers);
}

/* --- the verb --- */

/* Somebody who listens, and answers as a daemon does until it is over. */
struct listener {
	int fd;
	_Atomic bool over;
	pthread_t thread;
};

/* Two ranks that are attached and one that is not, of processes 4242, 4243 and 4244. */
static void report_say(int sock)
{
	static struct {
		struct wire_report_head head;
		struct wire_report_job job;
		struct wire_report_rank rank[3];
	} r;
	struct wire_status_is is = { .bytes = sizeof r };
	int fd;

	r.head = (struct wire_report_head){ .magic = WIRE_MAGIC, .njob = 1, .nrank = 3 };
	r.job = (struct wire_report_job){ .id = 1, .world = 3, .attached = 2 };
	for (uint32_t i = 0; i < 3; i++)
		r.rank[i] = (struct wire_report_rank){ .rank = i,
						       .pid = 4242 + i,
						       .state = i < 2 ? WIRE_ATTACHED : WIRE_DIED };
	assert_int_equal(wire_memfd_of("report", &r, sizeof r, &fd, NULL), 0);
	(void)wire_send(sock, &is, WIRE_STATUS_IS, sizeof is, 2, &fd, 1);
	(void)close(fd);
}

static void *listen_run(void *arg)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	struct listener *l = arg;
	int fd[WIRE_FDS_MAX], nfd;

	while (!l->over) {
		struct pollfd p = { .fd = l->fd, .events = POLLIN };
		struct wire_ok ok = { 0 };
		int sock;

		if (poll(&p, 1, 20) <= 0)
			continue;
		sock = accept(l->fd, NULL, NULL);
		if (wire_recv(sock, in, sizeof in, fd, &nfd) > 0)
			(void)wire_send(sock, &ok, WIRE_OK, sizeof ok, 1, NULL, 0);
		if (wire_recv(sock, in, sizeof in, fd, &nfd) > 0)
			report_say(sock);
		(void)close(sock);
	}
	return NULL;
}

TEST(who_dies_with_whom_is_known_from_the_ranks_that_are_attached)
{
	char root[PATH_MAX], own[64];
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct listener l = { .fd = socket(AF_UNIX, SOCK_SEQPACKET, 0) };
	struct doctor_facts f;
	struct doctor_ask ask = { .ops = &io_ops_posix, .path = work, .root = root };

	snprintf(a.sun_path, sizeof a.sun_path, "%s/beside", top);
	ask.socket = a.sun_path;
	assert_int_equal(bind(l.fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(l.fd, 5), 0);
	assert_int_equal(pthread_create(&l.thread, NULL, listen_run, &l), 0);
	snprintf(root, sizeof root, "%s/ranks", top);
	doctor_look(&ask, &f);
	assert_int_equal(f.daemon_rc, 0);
	assert_true(f.daemon_pid == (uint32_t)getpid() && f.nrank == 2 && !f.nrank_beside);
	assert_false(f.daemon_oom_known);

	snprintf(own, sizeof own, "/proc/%d/oom_score_adj", (int)getpid());
	file_put(root, own, "-7\n");
	file_put(root, "/proc/4242/oom_score_adj", "500\n");
	file_put(root, "/proc/4243/oom_score_adj", "100\n");
	snprintf(own, sizeof own, "/proc/%d/cgroup", (int)getpid());
	file_put(root, own, "0::/slurm/job7\n");
	file_put(root, "/proc/4242/cgroup", "0::/slurm/job7\n");
	file_put(root, "/proc/4243/cgroup", "0::/slurm/job7/rank1\n");
	file_put(root, "/proc/4244/cgroup", "0::/slurm/job7\n"); /* dead */
	doctor_look(&ask, &f);
	assert_true(f.daemon_oom_known && f.daemon_oom == -7 && f.rank_oom == 100);
	assert_true(f.nrank == 2 && f.nrank_beside == 1);
	assert_string_equal(f.daemon_group, "/slurm/job7");
	/* Of version 1 the one that has memory. */
	file_put(root, own, "5:cpu:/x\n4:memory:/m\n0::/\n");
	file_put(root, "/proc/4242/cgroup", "5:cpu:/x\n4:memory:/other\n0::/\n");
	file_put(root, "/proc/4243/cgroup", "5:cpu:/y\n4:cpuset,memory:/m\n0::/\n");
	doctor_look(&ask, &f);
	assert_int_equal(f.nrank_beside, 1);
	/* The root of all limits nobody; the root of a container is a group like any other. */
	file_put(root, own, "0::/\n");
	file_put(root, "/proc/4242/cgroup", "0::/\n");
	file_put(root, "/proc/4243/cgroup", "0::/\n");
	doctor_look(&ask, &f);
	assert_int_equal(f.nrank_beside, 0);
	file_put(root, "/sys/fs/cgroup/memory.max", "1073741824\n");
	doctor_look(&ask, &f);
	assert_int_equal(f.nrank_beside, 2);
	l.over = true;
	pthread_join(l.thread, NULL);
	(void)close(l.fd);
}

TEST(the_verb_says_the_same_in_text_and_json_and_its_exit_code)
{
	char dir[PATH_MAX], *s;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct listener l = { .fd = socket(AF_UNIX, SOCK_SEQPACKET, 0) };
	int code;
	uint64_t warnings = 0, failures = 0;
	json_t *j, *x;
	size_t i;

	snprintf(a.sun_path, sizeof a.sun_path, "%s/sock", top);
	assert_int_equal(bind(l.fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(l.fd, 5), 0);
	assert_int_equal(pthread_create(&l.thread, NULL, listen_run, &l), 0);
	snprintf(dir, sizeof dir, "%s/verb", top);
	assert_int_equal(mkdir(dir, 0700), 0);
	code = RUN("doctor", dir, "--json", "-S", a.sun_path, "--job-size=1K");
	j = json_out("ckptd.doctor/1");
	assert_string_equal(string(j, "path"), dir);
	assert_int_equal(number(j, "job_bytes"), 1024);
	s = strdup(got.out);
	json_array_foreach(json_object_get(j, "checks"), i, x)
	{
		const char *result = string(x, "result");

		warnings += !strcmp(result, "warn");
		failures += !strcmp(result, "fail");
		assert_true(strlen(string(x, "found")) > 0);
		if (strcmp(result, "ok"))
			assert_true(strlen(string(x, "next")) > 0);
		if (!strcmp(string(x, "check"), "daemon"))
			assert_string_equal(result, "ok");
	}
	assert_true(i > 14);
	assert_int_equal(number(j, "warning_count"), warnings);
	assert_int_equal(number(j, "failure_count"), failures);
	assert_int_equal(code, failures ? 1 : warnings ? 3 : 0);
	json_decref(j);
	free(s);
	RUN_IS(code, "doctor", dir, "-S", a.sun_path, "--job-size=1K");
	assert_says(got.out, "ok    directory");
	assert_says(got.out, "ok    daemon");
	assert_int_equal(entries(dir), 0);
	/* a daemon that is stopped is a failure, one that is not there a warning; a job that
	 * nothing could hold, a failure */
	l.over = true;
	pthread_join(l.thread, NULL);
	RUN_IS(1, "doctor", dir, "-S", a.sun_path);
	assert_says(got.out, "FAIL  daemon");
	assert_says(got.out, "does not answer");
	close(l.fd);
	assert_int_equal(RUN("doctor", dir, "-S", a.sun_path), failures ? 1 : 3);
	assert_says(got.out, "warn  daemon");
	RUN_IS(1, "doctor", dir, "--job-size=1E");
	assert_says(got.out, "FAIL  space");
	assert_says(got.out, "FAIL  memory");
	RUN_IS(1, "doctor", path_of("%s/no/such/place", top));
	assert_says(got.out, "FAIL  directory");
	RUN_IS(2, "doctor", dir, "--job-size=many");
	RUN_IS(2, "doctor", dir, dir);
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
