/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_examine.c - the half of host_facts.h that collects the facts. Called by ckptctl doctor.
 * Invariant: whatever fails, scratch files are removed and the next fact is collected.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/host/host_facts.h"
#include "ckpt/io/leftover.h"
#include "ckpt/wire/wire.h"
#include "ckpt/store/store.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#define SYNCS 5		       /* a median of so many */
#define SYNCS_LONG_NS NS_PER_S /* slow disks are asked less often */
#define BLOCK 4096
#define CGROUP_DEPTH_MAX 64
#define CONNECT_S 2

/* --- files of the kernel and of the system --- */

/* The first line of ROOT/path without its end; false: there is none. */
__attribute__((format(printf, 4, 5))) static bool line_of(const char *root, char *line, int bytes,
							  const char *fmt, ...)
{
	char path[PATH_MAX], rest[PATH_MAX];
	va_list ap;
	FILE *f;
	bool got;

	va_start(ap, fmt);
	vsnprintf(rest, sizeof rest, fmt, ap);
	va_end(ap);
	if (snprintf(path, sizeof path, "%s%s", root, rest) >= (int)sizeof path)
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	got = fgets(line, bytes, f) != NULL;
	if (got)
		line[strcspn(line, "\n")] = 0;
	fclose(f);
	return got;
}

/* --- the directory --- */

static void scratch_name(char *name, size_t bytes, char which)
{
	snprintf(name, bytes, ".ckptd-doctor-%d-%" PRIx64 "-%c", (int)getpid(), wall_ns(), which);
}

/* Create, write, sync, close. The file stays. */
static int scratch_make(const struct io_ops *ops, int dir, const char *name, uint64_t *ret_ns,
			int64_t *ret_skew)
{
	static const uint8_t block[BLOCK];
	int fd = ops->open(ops->ctx, dir, name, O_WRONLY | O_CREAT | O_EXCL, 0600), rc, closed;
	struct stat st;
	uint64_t begin = now_ns();

	if (fd < 0)
		return fd;
	rc = io_pwrite_all(ops, fd, block, sizeof block, 0);
	if (!fstat(fd, &st))
		*ret_skew = (int64_t)((uint64_t)st.st_mtim.tv_sec * NS_PER_S +
				      (uint64_t)st.st_mtim.tv_nsec) -
			    (int64_t)wall_ns();
	if (!rc)
		rc = ops->sync(ops->ctx, fd);
	closed = ops->close(ops->ctx, fd);
	*ret_ns = elapsed_ns(begin, now_ns());
	return rc ? rc : closed;
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void examine_sync(const struct io_ops *ops, int dir, struct host_facts *f)
{
	uint64_t took[SYNCS], sum = 0;
	uint32_t n = 0;
	char name[80];

	while (n < SYNCS && sum < SYNCS_LONG_NS && !f->sync_rc) {
		scratch_name(name, sizeof name, 's');
		f->sync_rc = scratch_make(ops, dir, name, &took[n], &f->skew_ns);
		(void)ops->unlink(ops->ctx, dir, name, false);
		sum += took[n++];
	}
	qsort(took, n, sizeof *took, compare_u64);
	f->sync_ns = took[n / 2];
}

/* A step is committed by a rename that must never replace: is that so here? */
static void examine_rename(const struct io_ops *ops, int dir, struct host_facts *f)
{
	char name[3][80];
	uint64_t ns;
	int64_t skew;

	for (uint32_t i = 0; i < 3; i++)
		scratch_name(name[i], sizeof name[i], (char)('a' + i));
	f->rename_rc = scratch_make(ops, dir, name[0], &ns, &skew);
	if (!f->rename_rc)
		f->rename_rc = scratch_make(ops, dir, name[1], &ns, &skew);
	if (!f->rename_rc) {
		f->rename_rc = ops->rename(ops->ctx, dir, name[0], name[1]);
		f->rename_rc = f->rename_rc == -EEXIST ? 0 : f->rename_rc ? f->rename_rc : 1;
	}
	if (!f->rename_rc)
		f->rename_rc = ops->rename(ops->ctx, dir, name[0], name[2]);
	for (uint32_t i = 0; i < 3; i++)
		(void)ops->unlink(ops->ctx, dir, name[i], false);
}

/* As readers and removals ask: the lock of a directory, and where other hosts may use it, of the
 * bytes of a file that is open for both. What another process has is there. */
static int lock_try(const struct io_ops *ops, int dir, int file, struct host_facts *f)
{
	int fd = ops->open(ops->ctx, dir, ".", O_RDONLY | O_DIRECTORY, 0), rc;

	if (fd < 0)
		return fd;
	rc = ops->lock(ops->ctx, fd, false);
	(void)ops->close(ops->ctx, fd);
	if (rc && rc != -EAGAIN)
		return rc;
	rc = f->shared ? io_lock_bytes(ops, file, 0, 1, IO_LOCK_EXCLUSIVE) : 0;
	f->local_locks |= rc == -EOPNOTSUPP;
	return rc == -EOPNOTSUPP ? 0 : rc;
}

/* What a step's files need besides: room that is reserved, and locks that readers take. */
static void examine_files(const struct io_ops *ops, int dir, struct host_facts *f)
{
	char name[80];
	int fd;

	scratch_name(name, sizeof name, 'r');
	f->fallocate_rc = fd = ops->open(ops->ctx, dir, name, O_RDWR | O_CREAT | O_EXCL, 0600);
	f->shared = io_shared(ops, dir);
	if (fd >= 0) {
		f->fallocate_rc = ops->fallocate(ops->ctx, fd, BLOCK);
		f->lock_rc = lock_try(ops, dir, fd, f);
		(void)ops->close(ops->ctx, fd);
	}
	(void)ops->unlink(ops->ctx, dir, name, false);
}

struct newest {
	const struct format *format;
	struct host_facts *f;
};

static int newest_of_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct newest *x = arg;
	struct store s = {
		.ops = &io_ops_posix, .format = x->format, .root_fd = -1, .job_fd = job_fd
	};
	cleanup_free struct store_step *step = NULL;
	uint32_t n = 0;

	(void)abs_path;
	snprintf(s.job, sizeof s.job, "%s", job);
	if (!store_scan(&s, false, &step, &n, NULL) && n)
		x->f->job_bytes = MAX(x->f->job_bytes, step[0].bytes);
	return 0;
}

static void parent_of(const char *path, char *buf)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n && path[n - 1] != '/')
		n--;
	while (n > 1 && path[n - 1] == '/')
		n--;
	if (n)
		snprintf(buf, PATH_MAX, "%.*s", (int)n, path);
	else
		strcpy(buf, ".");
}

/* A word of a list with commas. */
static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; (p = strstr(p, word)); p += n)
		if ((p == list || p[-1] == ',' || p[-1] == ' ') && strchr(", \n", p[n]))
			return true;
	return false;
}

/* id parent MAJOR:MINOR root mount-point options ... - type source super-options; the last that
 * names the device of this directory is as good as any, for these options are the device's. */
static void examine_mount(const char *root, dev_t dev, struct host_facts *f)
{
	char path[PATH_MAX], line[4 * PATH_MAX];
	FILE *file;

	snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) {
		unsigned major_n, minor_n;
		const char *end = strstr(line, " - ");

		if (!end || sscanf(line, "%*u %*u %u:%u", &major_n, &minor_n) != 2 ||
		    makedev(major_n, minor_n) != dev)
			continue;
		f->nobarrier = has_word(end, "nobarrier") || has_word(end, "barrier=0");
		f->soft = has_word(end, "soft");
		f->local_locks = has_word(end, "nolock") || has_word(end, "local_lock=all") ||
				 has_word(end, "local_lock=posix") || has_word(end, "localflock") ||
				 has_word(end, "noflock") || has_word(end, "nobrl");
	}
	if (file)
		fclose(file);
}

/* Of a partition, the queue is its disk's. */
static void examine_disk(const char *root, dev_t dev, struct host_facts *f)
{
	static const char *const at[] = { "", "/.." };
	char path[PATH_MAX], link[PATH_MAX];
	ssize_t n;

	for (uint32_t i = 0; i < ARRAY_LEN(at) && !*f->write_cache; i++)
		if (!line_of(root, f->write_cache, sizeof f->write_cache,
			     "/sys/dev/block/%u:%u%s/queue/write_cache", major(dev), minor(dev),
			     at[i]))
			*f->write_cache = 0;
	snprintf(f->disk, sizeof f->disk, "%u:%u", major(dev), minor(dev));
	snprintf(path, sizeof path, "%s/sys/dev/block/%s", root, f->disk);
	n = readlink(path, link, sizeof link - 1);
	if (n <= 0)
		return;
	link[n] = 0;
	snprintf(f->disk, sizeof f->disk, "%.31s",
		 strrchr(link, '/') ? strrchr(link, '/') + 1 : link);
}

/* leftover_fn */
static int leftover_count(void *arg, const struct leftover *x)
{
	struct host_facts *f = arg;

	if (x->is == LEFTOVER_WRITTEN || x->is == LEFTOVER_UNKNOWN)
		return 0;
	f->nleft++;
	f->nleft_unfinished += x->is == LEFTOVER_UNFINISHED;
	f->left_bytes += x->bytes;
	memcpy(f->left, x->at, sizeof f->left);
	return 0;
}

static void examine_directory(const struct host_ask *ask, struct host_facts *f)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	cleanup_close int dir = open(ask->path, flags);
	const char *root = ask->root ? ask->root : "";
	struct statvfs vfs;
	struct statfs fs;
	struct stat st;

	if (dir < 0 && errno == ENOENT) {
		f->missing = true;
		parent_of(ask->path, f->parent);
		dir = open(f->parent, flags);
	}
	if (dir < 0) {
		f->dir_rc = -errno;
		return;
	}
	if (!fstatfs(dir, &fs))
		f->fs_magic = (uint32_t)fs.f_type;
	if (!fstatvfs(dir, &vfs)) {
		f->free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
		f->total_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize;
		f->free_files = vfs.f_files ? vfs.f_favail : HOST_NONE;
	}
	if (!fstat(dir, &st)) {
		examine_mount(root, st.st_dev, f);
		examine_disk(root, st.st_dev, f);
	}
	f->dir_rc = io_probe(ask->ops, dir, &f->probe, &f->dir_err);
	if (f->dir_rc ==
	    -ENOENT) /* the directory is open: what is not there is a way to make files */
		f->dir_rc = -EOPNOTSUPP;
	if (f->dir_rc)
		return;
	examine_files(ask->ops, dir, f);
	examine_sync(ask->ops, dir, f);
	examine_rename(ask->ops, dir, f);
	(void)leftovers_find(ask->ops, dir, wall_ns(), leftover_count, f);
	if (!f->job_bytes && !f->missing && ask->format) {
		struct newest x = { ask->format, f };

		store_jobs(ask->ops, ask->path, newest_of_job, &x, NULL);
		f->job_guessed = f->job_bytes != 0;
	}
}

/* --- memory and sessions --- */

static void examine_memory(const char *root, struct host_facts *f)
{
	char path[PATH_MAX], line[256], name[64];
	uint64_t kib, huge_n = 0, huge_kib = 0;
	struct statvfs shm;
	FILE *file;

	snprintf(path, sizeof path, "%s/proc/meminfo", root);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) {
		const struct {
			const char *name;
			uint64_t *ret, unit;
		} want[] = {
			{ "MemTotal", &f->mem_total, KIB },
			{ "MemAvailable", &f->mem_available, KIB },
			{ "SwapTotal", &f->swap_total, KIB },
			{ "SwapFree", &f->swap_free, KIB },
			{ "HugePages_Total", &huge_n, 1 },
			{ "Hugepagesize", &huge_kib, 1 },
			{ "CommitLimit", &f->commit_limit, KIB },
			{ "Committed_AS", &f->commit_used, KIB },
		};

		if (sscanf(line, "%63[^:]: %" SCNu64, name, &kib) != 2)
			continue;
		for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
			if (!strcmp(name, want[i].name) && ckpt_mul(kib, want[i].unit, want[i].ret))
				*want[i].ret = HOST_NONE;
	}
	if (file)
		fclose(file);
	if (ckpt_mul(huge_n, huge_kib, &huge_n) || ckpt_mul(huge_n, KIB, &f->huge_bytes))
		f->huge_bytes = HOST_NONE;
	f->commit_strict =
		line_of(root, line, sizeof line, "/proc/sys/vm/overcommit_memory") && *line == '2';
	if (line_of(root, line, sizeof line, "/sys/kernel/mm/transparent_hugepage/shmem_enabled") &&
	    strchr(line, '['))
		(void)sscanf(strchr(line, '['), "[%15[a-z_]]", f->shmem_huge);
	if (line_of(root, line, sizeof line, "/proc/self/oom_score_adj"))
		f->oom_adj = (int)strtol(line, NULL, 10);
	if (!statvfs("/dev/shm", &shm))
		f->shm_bytes = (uint64_t)shm.f_blocks * shm.f_frsize;
}

/* The tightest limit between a group and the root of its hierarchy. Inside a container the path
 * that the kernel tells may not be there: then its mount is the group itself. */
static void examine_group(const char *root, uint32_t version, char *group, struct host_facts *f)
{
	static const char *const at[] = { "", "/sys/fs/cgroup/memory", "/sys/fs/cgroup" };
	static const char *const limit[] = { "", "memory.limit_in_bytes", "memory.max" };
	static const char *const used[] = { "", "memory.usage_in_bytes", "memory.current" };
	char line[64];

	for (uint32_t depth = 0; depth < CGROUP_DEPTH_MAX; depth++) {
		char *slash = strrchr(group, '/');
		uint64_t max;

		if (line_of(root, line, sizeof line, "%s%s/%s", at[version], group,
			    limit[version]) &&
		    *line >= '0' && *line <= '9') {
			max = strtoull(line, NULL, 10);
			/* v1 writes "no limit" as the largest multiple of a page */
			if (max < (UINT64_C(1) << 62) && max < f->cgroup_limit) {
				f->cgroup = version;
				f->cgroup_limit = max;
				f->cgroup_used = 0;
				if (line_of(root, line, sizeof line, "%s%s/%s", at[version], group,
					    used[version]))
					f->cgroup_used = strtoull(line, NULL, 10);
			}
		}
		if (version == 2 &&
		    line_of(root, line, sizeof line, "%s%s/memory.oom.group", at[version], group) &&
		    *line == '1')
			f->cgroup_oom_group = true;
		if (!slash)
			return;
		*slash = 0;
	}
}

static void examine_groups(const char *root, struct host_facts *f)
{
	char path[PATH_MAX], line[PATH_MAX];
	FILE *file;

	f->cgroup_limit = HOST_NONE;
	snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) { /* number:controllers:group */
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!group)
			continue;
		*group++ = 0;
		group[strcspn(group, "\n")] = 0;
		if (!strcmp(group, "/"))
			*group = 0;
		if (!controllers[1])
			examine_group(root, 2, group, f);
		else if (!strncmp(controllers + 1, "memory", 6))
			examine_group(root, 1, group, f);
	}
	if (file)
		fclose(file);
}

/* Does logind end what a user started when the user leaves? */
static void examine_session(const char *root, struct host_facts *f)
{
	char path[PATH_MAX], line[256];
	const char *user = getenv("USER");
	FILE *file;

	snprintf(path, sizeof path, "%s/run/systemd/system", root);
	f->systemd = access(path, F_OK) == 0;
	if (user && !strchr(user, '/')) {
		snprintf(path, sizeof path, "%s/var/lib/systemd/linger/%s", root, user);
		f->lingers = access(path, F_OK) == 0;
	}
	snprintf(path, sizeof path, "%s/etc/systemd/logind.conf", root);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, "KillUserProcesses=", 18))
			f->kills_user_processes = strchr("yY1tT", line[18]) != NULL && line[18];
	if (file)
		fclose(file);
}

/* --- the kernel --- */

static uint64_t hard_limit(__rlimit_resource_t what)
{
	struct rlimit r;

	return getrlimit(what, &r) || r.rlim_max == RLIM_INFINITY ? HOST_NONE : r.rlim_max;
}

static void examine_kernel(struct host_facts *f)
{
	struct utsname u;
	struct ucred who;
	socklen_t len = sizeof who;
	int pair[2], fd;

	if (!uname(&u)) {
		snprintf(f->kernel, sizeof f->kernel, "%.63s", u.release);
		(void)sscanf(u.release, "%" SCNu32 ".%" SCNu32, &f->kernel_major, &f->kernel_minor);
	}
	f->memfd_rc = wire_memfd("ckptd-doctor", BLOCK, &fd, NULL);
	if (!f->memfd_rc)
		(void)close(fd);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		f->cred_rc = -errno;
	} else {
		if (getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &who, &len) ||
		    who.uid != geteuid())
			f->cred_rc = -EOPNOTSUPP;
		(void)close(pair[0]);
		(void)close(pair[1]);
	}
	fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	f->pidfd_rc = fd < 0 ? -errno : 0;
	if (fd >= 0)
		(void)close(fd);
	f->memlock = hard_limit(RLIMIT_MEMLOCK);
	f->nofile = hard_limit(RLIMIT_NOFILE);
	f->fsize = hard_limit(RLIMIT_FSIZE);
	f->as = hard_limit(RLIMIT_AS);
}

static void examine_engine(const struct io_ops *ops, struct host_facts *f)
{
	struct ckpt_err err = { 0 };
	struct io_queue *q;

	if (io_queue_open(ops, IO_AUTO, 8, &q, &err)) {
		snprintf(f->uring_why, sizeof f->uring_why, "%.250s", err.msg);
		return;
	}
	f->uring = io_queue_engine(q) == IO_URING;
	snprintf(f->uring_why, sizeof f->uring_why, "%s", io_queue_why(q));
	io_queue_close(q);
}

/* --- the daemon --- */

/* One request, one answer of that type. */
static int daemon_ask(int s, void *ask, uint32_t type, uint32_t bytes, uint32_t seq, uint32_t want,
		      void *ret, uint32_t ret_bytes, int *ret_fd, struct host_facts *f)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	struct pollfd p = { .fd = s, .events = POLLIN };
	struct ckpt_err said;
	int fd[WIRE_FDS_MAX], nfd = 0, n = wire_send(s, ask, type, bytes, seq, NULL, 0);

	if (n < 0)
		return n;
	if (poll(&p, 1, CONNECT_S * 1000) <= 0)
		return -EAGAIN;
	n = wire_recv(s, in, sizeof in, fd, &nfd);
	if (n > 0 && head->type == WIRE_REFUSE) {
		n = wire_refusal(in, (uint32_t)n, &said);
		snprintf(f->daemon_said, sizeof f->daemon_said, "%.390s", said.msg);
		return n;
	}
	if (n <= 0 || wire_answer_check(type, in, (uint32_t)n, nfd) < 0 || head->type != want ||
	    (uint32_t)n != ret_bytes) {
		wire_close_fds(fd, nfd);
		return -EPROTO;
	}
	memcpy(ret, in, ret_bytes);
	if (ret_fd)
		*ret_fd = TAKE_FD(fd[0]);
	wire_close_fds(fd, nfd);
	return 0;
}

/* Does whoever listens there answer as a ckptd of this user? One that is stopped connects, too. */
static int daemon_answers(int s, struct host_facts *f)
{
	struct wire_plain hello = { 0 };
	struct wire_ok ok;
	struct ucred who;
	socklen_t len = sizeof who;
	int rc;

	if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
		return -errno;
	if (who.uid != geteuid() && geteuid() != 0)
		return -EACCES;
	f->daemon_pid = (uint32_t)who.pid;
	rc = daemon_ask(s, &hello, WIRE_CONTROL, sizeof hello, 1, WIRE_OK, &ok, sizeof ok, NULL, f);
	/* a refusal is an answer, too, if it is of one who understands */
	return rc < 0 && *f->daemon_said && rc != -EPROTO ? 0 : rc;
}

/* The control group that limits memory: of version 2, or the one of version 1 that has this
 * controller. "": it is the root, which limits nothing, or it is not known. A container shows its
 * own group as "/"; if that group has a limit, it is not the root. */
static void group_of(const char *root, uint32_t pid, char *ret, size_t bytes)
{
	char path[PATH_MAX], line[PATH_MAX];
	FILE *file;

	*ret = 0;
	snprintf(path, sizeof path, "%s/proc/%u/cgroup", root, pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) {
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;
		bool unified;

		if (!group)
			continue;
		*group++ = 0;
		group[strcspn(group, "\n")] = 0;
		unified = !controllers[1];
		if (!unified && !has_word(controllers + 1, "memory"))
			continue;
		snprintf(path, sizeof path, "%s/sys/fs/cgroup/%s", root,
			 unified ? "memory.max" : "memory/memory.limit_in_bytes");
		if (strcmp(group, "/") != 0 || (unified && access(path, F_OK) == 0))
			snprintf(ret, bytes, "%s", group);
		if (!unified)
			break; /* of both versions at once, memory is that one's */
	}
	if (file)
		fclose(file);
}

static bool oom_of(const char *root, uint32_t pid, int *ret)
{
	char line[32];

	if (!line_of(root, line, sizeof line, "/proc/%u/oom_score_adj", pid))
		return false;
	*ret = (int)strtol(line, NULL, 10);
	return true;
}

/* Who dies with whom: the ranks that are attached, beside the daemon. */
static void examine_ranks(const char *root, int s, struct host_facts *f)
{
	struct wire_plain ask = { 0 };
	struct wire_status_is is;
	struct wire_report r;
	cleanup_close int fd = -1;
	char group[sizeof f->daemon_group];
	void *map;
	int adj;

	f->daemon_oom_known = oom_of(root, f->daemon_pid, &f->daemon_oom);
	group_of(root, f->daemon_pid, f->daemon_group, sizeof f->daemon_group);
	if (daemon_ask(s, &ask, WIRE_STATUS, sizeof ask, 2, WIRE_STATUS_IS, &is, sizeof is, &fd,
		       f) < 0 ||
	    wire_map(fd, is.bytes, 1, &map, NULL) < 0)
		return;
	if (wire_report_check(map, is.bytes, &r, NULL) == 0)
		for (uint32_t i = 0; i < r.head->nrank; i++) {
			if (r.rank[i].state != WIRE_ATTACHED || !r.rank[i].pid)
				continue;
			group_of(root, r.rank[i].pid, group, sizeof group);
			f->nrank_beside += *group && !strcmp(group, f->daemon_group);
			if (oom_of(root, r.rank[i].pid, &adj))
				f->rank_oom = f->nrank ? MIN(f->rank_oom, adj) : adj;
			f->nrank++;
		}
	munmap(map, is.bytes);
}

static void examine_daemon(const char *root, const char *socket_path, struct host_facts *f)
{
	const struct timeval patience = { .tv_sec = CONNECT_S };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	cleanup_close int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (socket_path)
		snprintf(f->socket, sizeof f->socket, "%s", socket_path);
	else
		f->daemon_rc = wire_socket_path(f->socket, 0, NULL);
	if (f->daemon_rc || s < 0)
		return;
	if (strlen(f->socket) >= sizeof a.sun_path) {
		f->daemon_rc = -ENAMETOOLONG;
		return;
	}
	strcpy(a.sun_path, f->socket);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	f->daemon_rc = connect(s, (struct sockaddr *)&a, sizeof a) ? -errno : daemon_answers(s, f);
	if (f->daemon_rc == 0)
		examine_ranks(root, s, f);
}

void host_examine(const struct host_ask *ask, struct host_facts *f)
{
	const char *root = ask->root ? ask->root : "", *end = getenv("SLURM_JOB_END_TIME");

	*f = (struct host_facts){ .job_bytes = ask->job_bytes,
				  .uid = geteuid(),
				  .free_files = HOST_NONE,
				  .now_ns = wall_ns() };
	snprintf(f->path, sizeof f->path, "%s", ask->path);
	examine_directory(ask, f);
	examine_engine(ask->ops, f);
	examine_kernel(f);
	examine_memory(root, f);
	examine_groups(root, f);
	examine_session(root, f);
	examine_daemon(root, ask->socket, f);
	f->torchrun = getenv("TORCHELASTIC_RUN_ID") != NULL;
	f->torchrun_patient = getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") != NULL;
	f->slurm = getenv("SLURM_JOB_ID") != NULL;
	f->slurm_end_s = end ? strtoull(end, NULL, 10) : 0;
}
