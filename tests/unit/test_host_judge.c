/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host_judge.c - what follows from facts about a machine: of machines that this test does not
 * run on, because verdicts are a pure function of facts, and facts can be made up.
 */
#include "ckpt/host/host_facts.h"
#include "tests/lib/row.h"
#include "tests/lib/says.h"
#include "tests/lib/unit.h"

#define TIB (GIB << 10)

static struct host_finding findings[64];
static uint32_t nfinding;

static void collect(void *arg, const struct host_finding *f)
{
	(void)arg;
	assert_true(nfinding < ARRAY_LEN(findings));
	findings[nfinding++] = *f;
}

static const struct host_finding *judged(const struct host_facts *f, const char *check)
{
	nfinding = 0;
	host_judge(f, collect, NULL);
	for (uint32_t i = 0; i < nfinding; i++)
		if (!strcmp(findings[i].check, check))
			return &findings[i];
	return NULL;
}

/* A machine that has everything, and a job of 149 GiB. */
static struct host_facts healthy(void)
{
	struct host_facts f =
		ROW(.path = "/ckpt", .job_bytes = 149 * GIB, .uid = 1000,
		    .probe = { .direct = true, .align = 4096, .fs_type = "xfs" },
		    .fs_magic = 0x58465342, .sync_ns = 2 * NS_PER_MS, .disk = "nvme0n1",
		    .write_cache = "write back", .shmem_huge = "advise", .free_bytes = 18 * TIB,
		    .total_bytes = 40 * TIB, .free_files = HOST_NONE, .uring = true,
		    .uring_why = "io_uring", .memlock = HOST_NONE, .nofile = 65536,
		    .fsize = HOST_NONE, .as = HOST_NONE, .mem_total = 2 * TIB, .mem_available = TIB,
		    .shm_bytes = TIB, .cgroup_limit = HOST_NONE, .kernel = "6.8.0",
		    .kernel_major = 6, .kernel_minor = 8, .socket = "/tmp/ckptd-1000/socket",
		    .systemd = true, .now_ns = UINT64_C(1800000000) * NS_PER_S);

	return f;
}

TEST(a_healthy_machine_has_nothing_but_good_findings)
{
	struct host_facts f = healthy();

	assert_non_null(judged(&f, "space"));
	assert_true(nfinding > 15);
	for (uint32_t i = 0; i < nfinding; i++)
		if (findings[i].level != HOST_OK)
			fail_msg("%s: %s", findings[i].check, findings[i].found);
}

/* Each case changes one thing; the check that it belongs to, and no other, turns. */
#define CASE(check_, level_, word_, ...)                                                         \
	do {                                                                                     \
		struct host_facts f = healthy();                                                 \
		const struct host_finding *x;                                                    \
		__VA_ARGS__;                                                                     \
		x = judged(&f, check_);                                                          \
		if (!x)                                                                          \
			fail_msg("line %d: no finding about %s", __LINE__, check_);              \
		if (x->level != (level_))                                                        \
			fail_msg("line %d: %s is %d: %s", __LINE__, check_, x->level, x->found); \
		assert_says(x->found, word_);                                                    \
		if ((level_) != HOST_OK && !*x->next)                                            \
			fail_msg("line %d: nothing to do about %s", __LINE__, x->found);         \
		for (uint32_t i_ = 0; i_ < nfinding; i_++)                                       \
			if (findings[i_].level != HOST_OK && &findings[i_] != x)                 \
				fail_msg("line %d: also %s: %s", __LINE__, findings[i_].check,   \
					 findings[i_].found);                                    \
	} while (0)

TEST(each_thing_that_is_missing_turns_its_check_and_no_other)
{
	CASE("directory", HOST_FAIL, "not writable", f.dir_rc = -EACCES);
	CASE("directory", HOST_FAIL, "read-only", f.dir_rc = -EROFS);
	CASE("directory", HOST_FAIL, "does not exist", f.dir_rc = -ENOENT);
	CASE("directory", HOST_FAIL, "not a directory", f.dir_rc = -ENOTDIR);
	CASE("directory", HOST_FAIL, "no way", f.dir_rc = -EIO; strcpy(f.dir_err.msg, "no way"));
	CASE("directory", HOST_WARN, "does not exist", f.missing = true; strcpy(f.parent, "/"));
	CASE("file system", HOST_WARN, "tmpfs", f.probe.volatile_fs = true;
	     strcpy(f.probe.fs_type, "tmpfs"));
	CASE("file system", HOST_WARN, "overlay", strcpy(f.probe.fs_type, "overlay"));
	CASE("file system", HOST_WARN, "nfs", f.fs_magic = 0x6969);
	CASE("file system", HOST_WARN, "fuse", f.fs_magic = 0x65735546);
	CASE("file system", HOST_OK, "lustre", f.fs_magic = 0x0bd00bd0);
	CASE("file system", HOST_OK, "not known", f.fs_magic = 0x12345;
	     strcpy(f.probe.fs_type, "other"));
	CASE("direct I/O", HOST_WARN, "refused", f.probe.direct = false);
	CASE("sync", HOST_FAIL, "Input/output", f.sync_rc = -EIO);
	CASE("sync", HOST_WARN, "250 ms", f.sync_ns = 250 * NS_PER_MS);
	CASE("sync", HOST_WARN, "too fast", f.sync_ns = 3000);
	CASE("rename", HOST_FAIL, "replaces", f.rename_rc = 1);
	CASE("rename", HOST_FAIL, "cannot be renamed", f.rename_rc = -EIO);
	CASE("file system", HOST_WARN, "soft", f.soft = true; strcpy(f.probe.fs_type, "nfs");
	     f.fs_magic = 0x6969);
	CASE("file system", HOST_OK, "on write", f.fs_magic = 0x9123683e;
	     strcpy(f.probe.fs_type, "btrfs"));
	CASE("file system", HOST_WARN, "vfat", f.fs_magic = 0x4d44);
	CASE("disk", HOST_FAIL, "does not flush", f.nobarrier = true);
	CASE("disk", HOST_WARN, "does not flush", f.nobarrier = true; *f.write_cache = 0);
	CASE("disk", HOST_OK, "survives", f.nobarrier = true;
	     strcpy(f.write_cache, "write through"));
	CASE("disk", HOST_OK, "cannot detect", f.sync_ns = 3 * NS_PER_MS);
	CASE("fallocate", HOST_WARN, "in the middle", f.fallocate_rc = -EOPNOTSUPP);
	CASE("fallocate", HOST_FAIL, "No space", f.fallocate_rc = -ENOSPC);
	CASE("locks", HOST_WARN, "never prunes", f.lock_rc = -EOPNOTSUPP);
	CASE("locks", HOST_FAIL, "Input/output", f.lock_rc = -EIO);
	CASE("locks", HOST_OK, "cannot check", f.shared = true);
	CASE("locks", HOST_WARN, "as it is mounted", f.shared = f.local_locks = true);
	CASE("out of memory", HOST_WARN, "along", f.cgroup_oom_group = true);
	CASE("out of memory", HOST_WARN, "200", f.oom_adj = 200);
	CASE("out of memory", HOST_OK, "-500", f.oom_adj = -500);
	CASE("out of memory", HOST_WARN, "oom_score_adj of ckptd (process 77) is 0",
	     f.daemon_oom_known = true;
	     f.daemon_pid = 77);
	CASE("out of memory", HOST_WARN, "is 200", f.daemon_oom_known = true; f.daemon_oom = 200;
	     f.nrank = 4);
	CASE("out of memory", HOST_OK, "before ckptd", f.daemon_oom_known = true;
	     f.daemon_oom = -500);
	CASE("out of memory", HOST_OK, "before ckptd", f.daemon_oom_known = true; f.nrank = 4;
	     f.rank_oom = 500);
	CASE("cgroup", HOST_OK, "none of 4", f.nrank = 4);
	CASE("cgroup", HOST_WARN, "of 3 of 4 attached ranks, /job", f.nrank = 4; f.nrank_beside = 3;
	     strcpy(f.daemon_group, "/job"));
	CASE("daemon", HOST_FAIL, "version of ckptd: it speaks 3", f.daemon_rc = -EPROTO;
	     strcpy(f.daemon_said, "it speaks 3"));
	CASE("address space", HOST_FAIL, "298 GiB", f.as = 200 * GIB);
	CASE("address space", HOST_OK, "298 GiB", f.as = TIB);
	CASE("overcommit", HOST_FAIL, "overcommit_memory=2", f.commit_strict = true;
	     f.commit_limit = 200 * GIB);
	CASE("overcommit", HOST_WARN, "298 GiB", f.commit_strict = true; f.commit_limit = TIB;
	     f.commit_used = TIB - GIB);
	CASE("overcommit", HOST_OK, "298 GiB", f.commit_strict = true; f.commit_limit = TIB);
	CASE("huge pages", HOST_OK, "never", strcpy(f.shmem_huge, "never"));
	CASE("space", HOST_FAIL, "no space", f.free_bytes = 148 * GIB);
	CASE("space", HOST_WARN, "one step", f.free_bytes = 297 * GIB);
	CASE("space", HOST_OK, "2 steps", f.free_bytes = 298 * GIB);
	CASE("inodes", HOST_WARN, "only 12", f.free_files = 12);
	CASE("kernel", HOST_FAIL, "memfd", f.memfd_rc = -ENOSYS);
	CASE("kernel", HOST_FAIL, "SO_PEERCRED", f.cred_rc = -EOPNOTSUPP);
	CASE("kernel", HOST_WARN, "pidfd", f.pidfd_rc = -ENOSYS);
	CASE("io_uring", HOST_WARN, "sandbox", f.uring = false; strcpy(f.uring_why, "a sandbox"));
	CASE("memlock", HOST_WARN, "64.0 KiB", f.memlock = 64 * KIB; f.kernel_major = 5;
	     f.kernel_minor = 4);
	CASE("memlock", HOST_OK, "64.0 KiB", f.memlock = 64 * KIB);
	CASE("open files", HOST_WARN, "512", f.nofile = 512);
	CASE("open files", HOST_FAIL, "64", f.nofile = 64);
	CASE("file size", HOST_FAIL, "1.00 GiB", f.fsize = GIB);
	CASE("file size", HOST_WARN, "1.00 TiB", f.fsize = TIB);
	CASE("memory", HOST_FAIL, "298 GiB", f.mem_total = 256 * GIB);
	CASE("memory", HOST_WARN, "298 GiB", f.mem_available = 256 * GIB);
	CASE("memory limit", HOST_FAIL, "cgroup v1", f.cgroup = 1; f.cgroup_limit = 200 * GIB);
	CASE("memory limit", HOST_WARN, "cgroup v2", f.cgroup = 2; f.cgroup_limit = 400 * GIB;
	     f.cgroup_used = 390 * GIB);
	CASE("memory limit", HOST_OK, "cgroup v2", f.cgroup = 2; f.cgroup_limit = 400 * GIB);
	CASE("swap", HOST_WARN, "in use", f.swap_total = 8 * GIB; f.swap_free = GIB);
	CASE("swap", HOST_OK, "in use", f.swap_total = f.swap_free = 8 * GIB);
	CASE("huge pages", HOST_WARN, "1.00 TiB", f.huge_bytes = TIB);
	CASE("/dev/shm", HOST_OK, "64.0 MiB", f.shm_bytes = 64 * MIB);
	CASE("daemon", HOST_WARN, "none listens", f.daemon_rc = -ENOENT);
	CASE("daemon", HOST_WARN, "none listens", f.daemon_rc = -ECONNREFUSED);
	CASE("daemon", HOST_FAIL, "does not answer", f.daemon_rc = -EAGAIN);
	CASE("daemon", HOST_FAIL, "another program", f.daemon_rc = -EPROTO);
	CASE("daemon", HOST_FAIL, "another user", f.daemon_rc = -EACCES);
	CASE("daemon", HOST_FAIL, "does not answer", f.daemon_rc = -EAGAIN);
	CASE("daemon", HOST_FAIL, "too long", f.daemon_rc = -ENAMETOOLONG);
	CASE("session", HOST_WARN, "KillUserProcesses", f.kills_user_processes = true);
	CASE("session", HOST_WARN, "last logout", strcpy(f.socket, "/run/user/1000/ckptd/socket"));
	CASE("session", HOST_OK, "lingers", f.kills_user_processes = f.lingers = true);
	CASE("clock", HOST_FAIL, "1970", f.now_ns = 5 * NS_PER_S);
	CASE("clock", HOST_WARN, "12.0 s", f.skew_ns = -12 * (int64_t)NS_PER_S);
	CASE("torchrun", HOST_WARN, "30 s", f.torchrun = true);
	CASE("torchrun", HOST_OK, "is set", f.torchrun = f.torchrun_patient = true);
	CASE("slurm", HOST_WARN, "KillWait", f.slurm = true);
	CASE("slurm", HOST_WARN, "10 min", f.slurm = true;
	     f.slurm_end_s = f.now_ns / NS_PER_S + 600);
}

TEST(what_could_be_better_is_told_though_all_is_well)
{
	struct host_facts f = healthy();

	assert_string_equal(judged(&f, "space")->next, ""); /* room for 123 steps */
	assert_string_equal(judged(&f, "huge pages")->next, "");
	f.free_bytes = 5 * f.job_bytes;
	assert_says(judged(&f, "space")->next, "ckptctl keep");
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

TEST(what_ckptctl_left_is_said_with_its_size_and_is_no_warning)
{
	struct host_facts f = healthy();
	const struct host_finding *x;

	assert_null(judged(&f, "leftovers"));
	f.nleft = 1;
	f.left_bytes = 3 << 20;
	strcpy(f.left, ".dst.ckptctl-new");
	x = judged(&f, "leftovers");
	assert_non_null(x);
	assert_int_equal(x->level, HOST_OK);
	assert_non_null(strstr(x->found, "3.00 MiB in .dst.ckptctl-new, which"));
	assert_non_null(strstr(x->next, "prune --unfinished removes it"));
	assert_null(strstr(x->next, "convert"));
	f.nleft = 3;
	f.nleft_unfinished = 1;
	x = judged(&f, "leftovers");
	assert_non_null(strstr(x->found, "and 2 more"));
	assert_non_null(strstr(x->next, "the same ckptctl convert continues"));
}

TEST(without_a_job_size_nothing_is_held_against_it)
{
	struct host_facts f = healthy();

	f.job_bytes = 0;
	f.free_bytes = f.mem_available = MIB;
	assert_int_equal(judged(&f, "space")->level, HOST_OK);
	assert_says(judged(&f, "space")->next, "--job-size");
	assert_int_equal(judged(&f, "memory")->level, HOST_OK);
	f.job_bytes = UINT64_MAX; /* twice that is no number */
	assert_int_equal(judged(&f, "space")->level, HOST_FAIL);
	assert_int_equal(judged(&f, "memory")->level, HOST_FAIL);
}

TEST(hints_for_launchers_come_only_where_their_variables_are_set)
{
	struct host_facts f = healthy();

	assert_null(judged(&f, "torchrun"));
	assert_null(judged(&f, "slurm"));
	f.uid = 0;
	assert_null(judged(&f, "session"));
}
