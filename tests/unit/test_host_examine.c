/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_examine.c - what is found on this machine, and on one that is made of files. */
#include "ckpt/host/host_facts.h"
#include "tests/lib/listener.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static char top[SCRATCH_MAX];

static int top_make(void **state)
{
	(void)state;
	scratch_make(top);
	return 0;
}

static int top_remove(void **state)
{
	(void)state;
	return scratch_remove(top);
}

/* The next call but three overwrites it. */
__attribute__((format(printf, 1, 2))) static const char *path_of(const char *fmt, ...)
{
	static char path[4][PATH_MAX];
	static uint32_t at;
	va_list ap;

	at = (at + 1) % 4;
	va_start(ap, fmt);
	vsnprintf(path[at], sizeof path[at], fmt, ap);
	va_end(ap);
	return path[at];
}

static uint32_t entries(const char *dir)
{
	DIR *d = opendir(dir);
	uint32_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

TEST(looking_leaves_nothing_in_the_directory)
{
	const char *dir = path_of("%s/store", top);
	struct host_facts f;
	struct host_ask ask = { .ops = &io_ops_posix, .path = dir, .socket = "/nonexistent/s" };

	assert_int_equal(mkdir(dir, 0700), 0);
	host_examine(&ask, &f);
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
	struct host_facts f;
	struct host_ask ask = { .ops = &io_ops_posix, .path = dir };

	host_examine(&ask, &f);
	assert_true(f.missing);
	assert_int_equal(f.dir_rc, 0);
	assert_string_equal(f.parent, top);
	assert_int_equal(access(dir, F_OK), -1);
	ask.path = dir = path_of("%s/later/and/later", top);
	host_examine(&ask, &f);
	assert_int_equal(f.dir_rc, -ENOENT);
	ask.path = dir = path_of("%s/file", top);
	assert_int_equal(mknod(dir, S_IFREG | 0600, 0), 0);
	host_examine(&ask, &f);
	assert_int_equal(f.dir_rc, -ENOTDIR);
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
static bool shared_true(void *ctx, int fd)
{
	(void)ctx;
	(void)fd;
	return true;
}
static uint32_t nlocked;

static int bytes_locked(void *ctx, int fd, uint64_t off, uint64_t len, enum io_lock how)
{
	nlocked++;
	return io_ops_posix.lock_bytes(ctx, fd, off, len, how);
}
/* As NFS: who cannot read a file has no shared lock of it. */
static int lock_for_readers(void *ctx, int fd, bool exclusive)
{
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY && !exclusive)
		return -EOPNOTSUPP;
	return io_ops_posix.lock(ctx, fd, exclusive);
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
	struct host_facts f;
	struct host_ask ask = { .ops = &bad, .path = dir };

	assert_int_equal(mkdir(dir, 0700), 0);
	bad = io_ops_posix;
	bad.sync = bad_sync;
	host_examine(&ask, &f);
	assert_int_equal(f.sync_rc, -EIO);
	assert_int_equal(entries(dir), 0);
	bad = io_ops_posix;
	bad.rename = bad_rename;
	host_examine(&ask, &f);
	assert_int_equal(f.rename_rc, 1);
	assert_int_equal(entries(dir), 0);
	bad = io_ops_posix;
	bad.fallocate = bad_fallocate;
	bad.lock = bad_lock;
	host_examine(&ask, &f);
	assert_int_equal(f.fallocate_rc, -EOPNOTSUPP);
	assert_int_equal(f.lock_rc, -EOPNOTSUPP);
	assert_int_equal(entries(dir), 0);
	bad = io_ops_posix;
	bad.open = bad_open;
	host_examine(&ask, &f);
	assert_int_equal(f.dir_rc, -EROFS);
}

TEST(locks_are_asked_for_as_removals_ask)
{
	struct host_facts f;
	struct host_ask ask = { .ops = &bad, .path = top };

	bad = io_ops_posix;
	bad.lock = lock_for_readers;
	bad.lock_bytes = bytes_locked;
	nlocked = 0;
	host_examine(&ask, &f);
	assert_int_equal(f.lock_rc, 0);
	assert_false(f.shared);
	assert_int_equal(nlocked, 0);
	bad.shared = shared_true;
	host_examine(&ask, &f);
	assert_int_equal(f.lock_rc, 0);
	assert_true(f.shared);
	assert_false(f.local_locks);
	assert_int_equal(nlocked, 1);
	bad.lock_bytes = NULL;
	host_examine(&ask, &f);
	assert_int_equal(f.lock_rc, 0);
	assert_true(f.local_locks);
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

static void made_up(const char *root, struct host_facts *f)
{
	struct host_ask ask = { .ops = &io_ops_posix, .path = top, .root = root };

	host_examine(&ask, f);
}

TEST(limits_of_memory_are_read_from_cgroups_of_both_versions)
{
	const char *root = path_of("%s/v2", top);
	struct host_facts f;

	assert_int_equal(mkdir(root, 0700), 0);
	made_up(root, &f);
	assert_int_equal(f.cgroup, 0);
	assert_true(f.cgroup_limit == HOST_NONE);
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
	struct host_facts f;

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
	struct host_facts f;
	struct stat st;

	snprintf(root, sizeof root, "%s/mounted", top);
	assert_int_equal(mkdir(root, 0700), 0);
	assert_int_equal(stat(top, &st), 0);
	made_up(root, &f);
	assert_string_equal(f.write_cache, "");
	assert_false(f.nobarrier || f.soft || f.local_locks);
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u/queue/write_cache", major(st.st_dev),
		 minor(st.st_dev));
	file_put(root, path, "write back\n");
	snprintf(
		line, sizeof line,
		"1 2 999999:1 / / rw - ext4 /dev/x rw,nobarrier\n"
		"3 2 %u:%u / /ckpt rw,nobarrier - ext4 /dev/soft rw,softreval,data=ordered,local_lock=none\n",
		major(st.st_dev), minor(st.st_dev));
	file_put(root, "/proc/self/mountinfo", line);
	made_up(root, &f);
	assert_string_equal(f.write_cache, "write back");
	assert_true(*f.disk);
	assert_false(f.nobarrier || f.soft || f.local_locks);
	snprintf(line, sizeof line,
		 "- \n 1 2 x\n3 2 %u:%u / /c rw - nfs h:/x rw,soft,barrier=0,local_lock=all\n",
		 major(st.st_dev), minor(st.st_dev));
	file_put(root, "/proc/self/mountinfo", line);
	made_up(root, &f);
	assert_true(f.nobarrier && f.soft && f.local_locks);
}

TEST(sessions_that_end_are_known_by_their_files)
{
	const char *root = path_of("%s/login", top);
	struct host_facts f;

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

TEST(who_dies_with_whom_is_known_from_the_ranks_that_are_attached)
{
	char root[PATH_MAX], own[64];
	struct listener l;
	struct host_facts f;
	struct host_ask ask = { .ops = &io_ops_posix, .path = top, .root = root };

	ask.socket = path_of("%s/beside", top);
	listener_start(&l, ask.socket);
	snprintf(root, sizeof root, "%s/ranks", top);
	host_examine(&ask, &f);
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
	host_examine(&ask, &f);
	assert_true(f.daemon_oom_known && f.daemon_oom == -7 && f.rank_oom == 100);
	assert_true(f.nrank == 2 && f.nrank_beside == 1);
	assert_string_equal(f.daemon_group, "/slurm/job7");
	/* Of version 1 the one that has memory. */
	file_put(root, own, "5:cpu:/x\n4:memory:/m\n0::/\n");
	file_put(root, "/proc/4242/cgroup", "5:cpu:/x\n4:memory:/other\n0::/\n");
	file_put(root, "/proc/4243/cgroup", "5:cpu:/y\n4:cpuset,memory:/m\n0::/\n");
	host_examine(&ask, &f);
	assert_int_equal(f.nrank_beside, 1);
	/* The root of all limits nobody; the root of a container is a group like any other. */
	file_put(root, own, "0::/\n");
	file_put(root, "/proc/4242/cgroup", "0::/\n");
	file_put(root, "/proc/4243/cgroup", "0::/\n");
	host_examine(&ask, &f);
	assert_int_equal(f.nrank_beside, 0);
	file_put(root, "/sys/fs/cgroup/memory.max", "1073741824\n");
	host_examine(&ask, &f);
	assert_int_equal(f.nrank_beside, 2);
	listener_stop(&l);
	(void)close(l.fd);
}

UNIT(.group_setup = top_make, .group_teardown = top_remove);
