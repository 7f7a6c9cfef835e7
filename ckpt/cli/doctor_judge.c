/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_judge.c - the half of doctor.h that knows what is good and what to do. Called by ckptctl
 * doctor, and by tests with facts of machines that they do not run on.
 * Invariant: no system call; every warning and failure comes with something to do.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/doctor.h"
#include <stdarg.h>
#include <stdio.h>

#define SYNC_SLOW_NS (100 * NS_PER_MS) /* a commit takes a handful of them */
#define SYNC_FAST_NS UINT64_C(20000)   /* no known device makes a new file durable in less */
#define SKEW_NS ((int64_t)(2 * NS_PER_S))
#define CLOCK_MIN_S UINT64_C(1704067200) /* 2024: this program is younger */
#define FILES_MIN 1024u			 /* open ones: about ten a rank */
#define FILES_FREE_MIN 1000u		 /* in the file system: some for each rank and step */
#define SHM_MIN GIB			 /* below, others that use it complain */
#define STEPS_MANY 100u			 /* that fit: nobody needs to think of pruning today */
#define COPIES 2u			 /* of the state in memory; of the steps on disk */

struct judge {
	void (*each)(void *arg, const struct doctor_finding *f);
	void *arg;
	const struct doctor_facts *f;
};

__attribute__((format(printf, 5, 6))) static void say(struct judge *j, const char *check,
						      enum doctor_level level, const char *next,
						      const char *fmt, ...)
{
	struct doctor_finding x = { .check = check, .level = level };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(x.found, sizeof x.found, fmt, ap);
	va_end(ap);
	snprintf(x.next, sizeof x.next, "%s", next ? next : "");
	j->each(j->arg, &x);
}

/* Text in a buffer of its own, for the next of a finding. */
__attribute__((format(printf, 3, 4))) static const char *text(char *buf, size_t bytes,
							      const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf, bytes, fmt, ap);
	va_end(ap);
	return buf;
}

static const char *size(uint64_t bytes)
{
	static _Thread_local char buf[4][HUMAN_BYTES];
	static _Thread_local uint32_t at;

	return bytes == DOCTOR_NONE ? "unlimited" : human_bytes(bytes, buf[at++ % 4]);
}

static uint64_t copies(uint64_t bytes)
{
	uint64_t x;

	return ckpt_mul(bytes, COPIES, &x) ? DOCTOR_NONE : x;
}

/* --- the directory --- */

static bool directory(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	char next[600];

	if (f->dir_rc) {
		const char *what =
			f->dir_rc == -EACCES || f->dir_rc == -EPERM
				? "is not writable for this user"
			: f->dir_rc == -EROFS	? "is mounted read-only"
			: f->dir_rc == -ENOTDIR ? "is not a directory"
			: f->dir_rc == -ENOENT	? "does not exist, and its parent directory does "
						  "not exist either"
			: f->dir_rc == -ENOSPC || f->dir_rc == -EDQUOT ? "has no free space"
								       : NULL;

		text(next, sizeof next, "make it for user %u (mkdir -p, chown), or name another",
		     f->uid);
		if (what)
			say(j, "directory", DOCTOR_FAIL, next, "%.300s %s", f->path, what);
		else
			say(j, "directory", DOCTOR_FAIL,
			    "repair the file system, or name another directory", "%.200s: %.350s",
			    f->path, f->dir_err.msg[0] ? f->dir_err.msg : strerror(-f->dir_rc));
		return false;
	}
	if (f->missing)
		say(j, "directory", DOCTOR_WARN,
		    "check the spelling; a trainer that attaches creates it",
		    "%.250s does not exist; its parent %.250s is writable", f->path, f->parent);
	else
		say(j, "directory", DOCTOR_OK, NULL, "%.500s, writable", f->path);
	return true;
}

static void file_system(struct judge *j)
{
	static const char net[] =
		"errors may appear late, at fsync; a step is durable when the server has made it "
		"durable: run verify --data after a restart of the server";
	static const struct {
		uint32_t magic;
		enum doctor_level level;
		const char *name, *found, *next;
	} known[] = {
		{ 0x6969, DOCTOR_WARN, "nfs", "over the network", net },
		{ 0xff534d42, DOCTOR_WARN, "cifs", "over the network", net },
		{ 0xfe534d42, DOCTOR_WARN, "smb", "over the network", net },
		{ 0x01021997, DOCTOR_WARN, "9p", "over the network, or of a virtual machine's host",
		  net },
		{ 0x65735546, DOCTOR_WARN, "fuse", "served by a program",
		  "that program decides what fsync does: see its manual" },
		{ 0x4d44, DOCTOR_WARN, "vfat", "no owners, no locks of its own, a weak rename",
		  "name a directory on ext4 or xfs" },
		{ 0x2011bab0, DOCTOR_WARN, "exfat", "no owners, no journal",
		  "name a directory on ext4 or xfs" },
		{ 0x9123683e, DOCTOR_OK, "btrfs",
		  "copy on write: a write into reserved space may still fail",
		  "keep some free; chattr +C on the empty directory makes direct I/O direct" },
		{ 0x2fc12fc1, DOCTOR_OK, "zfs",
		  "copy on write: a write into reserved space may still fail", "keep some free" },
		{ 0x0bd00bd0, DOCTOR_OK, "lustre", "parallel, over the network",
		  "stripe the directory before the first step: lfs setstripe -c -1 -S 8M DIR" },
		{ 0x47504653, DOCTOR_OK, "gpfs", "parallel, over the network", NULL },
		{ 0x00c36400, DOCTOR_OK, "ceph", "parallel, over the network", NULL },
		{ 0x19830326, DOCTOR_OK, "beegfs", "parallel, over the network", NULL },
	};
	const struct doctor_facts *f = j->f;

	if (f->probe.volatile_fs) {
		say(j, "file system", DOCTOR_WARN,
		    "steps survive any process, but not a reboot: name a directory on a disk",
		    "%s: memory", f->probe.fs_type);
		return;
	}
	if (!strcmp(f->probe.fs_type, "overlay")) {
		say(j, "file system", DOCTOR_WARN,
		    "mount a volume there: a container's own layer is deleted with the container",
		    "overlay: a container's own layer");
		return;
	}
	if (f->soft) {
		say(j, "file system", DOCTOR_WARN,
		    "mount it hard: if it is mounted soft, a slow server makes steps fail",
		    "%s: over the network, mounted soft", f->probe.fs_type);
		return;
	}
	for (uint32_t i = 0; i < ARRAY_LEN(known); i++)
		if (known[i].magic == f->fs_magic) {
			say(j, "file system", known[i].level, known[i].next, "%s: %s",
			    known[i].name, known[i].found);
			return;
		}
	if (!strcmp(f->probe.fs_type, "other"))
		say(j, "file system", DOCTOR_OK, NULL, "of type %x, which is not known here",
		    f->fs_magic);
	else
		say(j, "file system", DOCTOR_OK, NULL, "%s", f->probe.fs_type);
}

/* What fsync has to get through below the file system. */
static void disk(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	bool back = !strcmp(f->write_cache, "write back");

	if (f->nobarrier && (back || !*f->write_cache))
		say(j, "disk", back ? DOCTOR_FAIL : DOCTOR_WARN,
		    "mount -o remount,barrier=1; otherwise a power loss can lose the newest "
		    "committed steps",
		    "%s%s, mounted with nobarrier: fsync does not flush it", f->disk,
		    back ? " has a volatile write cache" : "");
	else if (back)
		say(j, "disk", DOCTOR_OK, NULL,
		    "%s has a volatile write cache, which fsync flushes; doctor cannot detect a "
		    "disk that ignores flushes",
		    f->disk);
	else if (*f->write_cache)
		say(j, "disk", DOCTOR_OK, NULL,
		    "%s reports that its cache survives a power loss (%s); doctor cannot check "
		    "the host of a virtual disk",
		    f->disk, f->write_cache);
}

static void reserving_and_locks(struct judge *j)
{
	const struct doctor_facts *f = j->f;

	if (f->fallocate_rc == -EOPNOTSUPP)
		say(j, "fallocate", DOCTOR_WARN,
		    "keep space for two steps; ext4, xfs or NFS 4.2 can reserve it",
		    "not here: a full disk is detected only in the middle of a step");
	else if (f->fallocate_rc)
		say(j, "fallocate", DOCTOR_FAIL, "check dmesg, df and quota",
		    "space for one block could not be reserved: %s", strerror(-f->fallocate_rc));
	else
		say(j, "fallocate", DOCTOR_OK, NULL,
		    "a step's space is reserved before its first byte");
	if (f->lock_rc == -EOPNOTSUPP)
		say(j, "locks", DOCTOR_WARN,
		    "mount it with locks (Lustre: -o flock); or remove old steps by hand while "
		    "no program reads them",
		    "none here: ckptd cannot see whether a step is being read, so it never prunes");
	else if (f->lock_rc)
		say(j, "locks", DOCTOR_FAIL, "mount it with locks, or without (nolock)",
		    "a lock could not be taken: %s", strerror(-f->lock_rc));
	else
		say(j, "locks", DOCTOR_OK, NULL, "work: a step that is being read is not removed");
}

static void writing(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	double ms = (double)f->sync_ns / (double)NS_PER_MS;

	if (f->probe.direct)
		say(j, "direct I/O", DOCTOR_OK, NULL, "works, aligned to %u bytes", f->probe.align);
	else
		say(j, "direct I/O", DOCTOR_WARN,
		    "nothing, if the speed is enough; ext4 or xfs on a local disk can do it",
		    "refused: writes pass the page cache, which costs a copy and memory");

	if (f->sync_rc)
		say(j, "sync", DOCTOR_FAIL, "check dmesg; do not use this file system",
		    "a file could not be made durable: %s", strerror(-f->sync_rc));
	else if (f->sync_ns < SYNC_FAST_NS && !f->probe.volatile_fs)
		say(j, "sync", DOCTOR_WARN,
		    "make sure that the disk, or the host of this machine, does not ignore flushes "
		    "(cache mode unsafe, nobarrier)",
		    "a file was durable after %.3f ms: too fast for a real flush", ms);
	else if (f->sync_ns > SYNC_SLOW_NS)
		say(j, "sync", DOCTOR_WARN,
		    "a commit needs several of these: find out what else writes to the disk, or "
		    "name a faster directory",
		    "it takes %.0f ms to make a small file durable", ms);
	else
		say(j, "sync", DOCTOR_OK, NULL, "a small file is %s in %.3g ms",
		    f->probe.volatile_fs ? "synced" : "durable", ms);
	disk(j);
	reserving_and_locks(j);

	if (f->rename_rc > 0)
		say(j, "rename", DOCTOR_FAIL, "name a directory on another file system",
		    "a rename replaces an existing directory despite RENAME_NOREPLACE: two "
		    "launches could overwrite each other's steps");
	else if (f->rename_rc)
		say(j, "rename", DOCTOR_FAIL,
		    "name a directory on another file system: steps are committed by a rename",
		    "a file cannot be renamed: %s", strerror(-f->rename_rc));
	else
		say(j, "rename", DOCTOR_OK, NULL, "never replaces an existing file or directory");
}

static void space(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	uint64_t job = f->job_bytes, need = copies(job);
	char next[200];

	if (!job)
		say(j, "space", DOCTOR_OK, "--job-size=BYTES checks whether that is enough",
		    "%s free of %s", size(f->free_bytes), size(f->total_bytes));
	else if (f->free_bytes < job)
		say(j, "space", DOCTOR_FAIL,
		    text(next, sizeof next,
			 "free %s, or name a larger one: a step is kept until the next one is "
			 "complete",
			 size(need - f->free_bytes)),
		    "%s free: no space for one step of %s", size(f->free_bytes), size(job));
	else if (f->free_bytes < need)
		say(j, "space", DOCTOR_WARN,
		    text(next, sizeof next,
			 "free %s more: a step is kept until the next one is complete",
			 size(need - f->free_bytes)),
		    "%s free: space for one step of %s only", size(f->free_bytes), size(job));
	else
		say(j, "space", DOCTOR_OK,
		    f->free_bytes / job < STEPS_MANY
			    ? "steps stay until they are pruned: ckptd --keep-last 3, or ckptctl "
			      "prune"
			    : NULL,
		    "%s free of %s: space for %llu steps of %s", size(f->free_bytes),
		    size(f->total_bytes), (unsigned long long)(f->free_bytes / job), size(job));
	if (f->free_files < FILES_FREE_MIN)
		say(j, "inodes", DOCTOR_WARN,
		    "remove small files, or make the file system with more inodes",
		    "only %llu files can be made", (unsigned long long)f->free_files);
}

/* --- the kernel --- */

static void kernel(struct judge *j)
{
	const struct doctor_facts *f = j->f;

	if (f->memfd_rc || f->cred_rc)
		say(j, "kernel", DOCTOR_FAIL,
		    "allow it in the sandbox (seccomp profile), or use a kernel of 5.3 or later",
		    "%s: %s does not work: %s", f->kernel,
		    f->memfd_rc ? "memfd_create with seals" : "SO_PEERCRED",
		    strerror(f->memfd_rc ? -f->memfd_rc : -f->cred_rc));
	else if (f->pidfd_rc)
		say(j, "kernel", DOCTOR_WARN,
		    "use a kernel of 5.3 or later, or allow it in the sandbox",
		    "%s: no pidfd_open (%s): if a child process keeps the socket of a dead "
		    "trainer open, ckptd detects the death late",
		    f->kernel, strerror(-f->pidfd_rc));
	else
		say(j, "kernel", DOCTOR_OK, NULL, "%s: memfd, SO_PEERCRED and pidfd work",
		    f->kernel);

	if (f->uring)
		say(j, "io_uring", DOCTOR_OK, NULL, "%s", f->uring_why);
	else
		say(j, "io_uring", DOCTOR_WARN,
		    "nothing, if the speed is enough: threads do the work. Otherwise: a seccomp "
		    "profile that allows io_uring_setup, sysctl kernel.io_uring_disabled=0, or a "
		    "kernel of 5.11 or later",
		    "%s", f->uring_why);

	if (f->memlock < 8 * MIB && f->kernel_major &&
	    (f->kernel_major < 5 || (f->kernel_major == 5 && f->kernel_minor < 12)))
		say(j, "memlock", DOCTOR_WARN, "ulimit -l unlimited, or LimitMEMLOCK=infinity",
		    "%s may be locked: on this kernel io_uring's queues count against it",
		    size(f->memlock));
	else
		say(j, "memlock", DOCTOR_OK, NULL, "%s: ckptd locks no memory", size(f->memlock));

	if (f->nofile < FILES_MIN)
		say(j, "open files", f->nofile < FILES_MIN / 4 ? DOCTOR_FAIL : DOCTOR_WARN,
		    "ulimit -Hn 65536, or LimitNOFILE=65536",
		    "at most %llu: a rank costs about ten", (unsigned long long)f->nofile);
	else if (f->nofile == DOCTOR_NONE)
		say(j, "open files", DOCTOR_OK, NULL, "unlimited");
	else
		say(j, "open files", DOCTOR_OK, NULL, "at most %llu, about ten a rank",
		    (unsigned long long)f->nofile);

	if (f->fsize != DOCTOR_NONE)
		say(j, "file size",
		    f->job_bytes && f->fsize < f->job_bytes / 64 ? DOCTOR_FAIL : DOCTOR_WARN,
		    "ulimit -f unlimited, or LimitFSIZE=infinity", "no file may be larger than %s",
		    size(f->fsize));
}

/* --- memory --- */

static void memory_against(struct judge *j, const char *check, uint64_t all, uint64_t available,
			   const char *of, const char *next)
{
	uint64_t job = j->f->job_bytes, need = copies(job);

	if (!job)
		say(j, check, DOCTOR_OK, "--job-size=BYTES checks whether that is enough",
		    "%s available of %s%s", size(available), size(all), of);
	else if (need > all)
		say(j, check, DOCTOR_FAIL, next, "%s%s: two copies of a job of %s need %s",
		    size(all), of, size(job), size(need));
	else if (need > available)
		say(j, check, DOCTOR_WARN,
		    "stop what uses it, if that is not the job itself; trainers need theirs "
		    "besides",
		    "%s available of %s%s: two copies of a job of %s need %s", size(available),
		    size(all), of, size(job), size(need));
	else
		say(j, check, DOCTOR_OK, NULL,
		    "%s available of %s%s, two copies of the job need %s", size(available),
		    size(all), of, size(need));
}

static void memory(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	uint64_t swapped = f->swap_total - MIN(f->swap_free, f->swap_total);
	bool deny = !strcmp(f->shmem_huge, "deny"), never = !strcmp(f->shmem_huge, "never");
	bool collapse = f->kernel_major > 6 || (f->kernel_major == 6 && f->kernel_minor >= 1);
	char of[48], next[320];

	memory_against(
		j, "memory", f->mem_total, f->mem_available, "",
		"use more hosts, each with a part of the ranks; or snapshot a smaller state");
	if (f->cgroup) {
		snprintf(of, sizeof of, " (cgroup v%u)", f->cgroup);
		memory_against(j, "memory limit", f->cgroup_limit,
			       f->cgroup_limit - MIN(f->cgroup_used, f->cgroup_limit), of,
			       "raise the limit of the container, or of the job: --memory, --mem, "
			       "MemoryMax=");
	} else {
		say(j, "memory limit", DOCTOR_OK, NULL, "none by a cgroup");
	}
	if (f->cgroup_oom_group)
		say(j, "out of memory", DOCTOR_WARN,
		    "run ckptd in a cgroup of its own, or set memory.oom.group=0: what is only "
		    "staged is lost with it",
		    "memory.oom.group: who is over the limit takes ckptd along");
	else if (f->daemon_oom_known && f->daemon_oom >= 0 &&
		 (!f->nrank || f->rank_oom <= f->daemon_oom))
		say(j, "out of memory", DOCTOR_WARN,
		    text(next, sizeof next,
			 "run it as a service with OOMScoreAdjust=-500, or, as root, choom -n -500 -p %u; "
			 "or start the trainers with choom -n 500: what is only staged is lost with ckptd",
			 f->daemon_pid),
		    "oom_score_adj of ckptd (process %u) is %d: it is killed as soon as any other",
		    f->daemon_pid, f->daemon_oom);
	else if (f->daemon_oom_known)
		say(j, "out of memory", DOCTOR_OK, NULL,
		    "others are killed before ckptd (oom_score_adj %d)", f->daemon_oom);
	else if (f->oom_adj > 0)
		say(j, "out of memory", DOCTOR_WARN,
		    "as a service: OOMScoreAdjust=-500; what is only staged is lost with ckptd",
		    "oom_score_adj is %d here: ckptd would be among the first to be killed",
		    f->oom_adj);
	else
		say(j, "out of memory", DOCTOR_OK, NULL,
		    "ckptd is killed as any other (oom_score_adj %d): what is committed stays",
		    f->oom_adj);
	if (f->as != DOCTOR_NONE)
		memory_against(j, "address space", f->as, f->as, " (RLIMIT_AS)",
			       "ulimit -Hv unlimited, or LimitAS=infinity");
	if (f->commit_strict)
		memory_against(j, "overcommit", f->commit_limit,
			       f->commit_limit - MIN(f->commit_used, f->commit_limit),
			       " (vm.overcommit_memory=2)",
			       "sysctl vm.overcommit_memory=0, or a larger vm.overcommit_ratio");
	if (swapped > f->swap_total / 4 && swapped > GIB)
		say(j, "swap", DOCTOR_WARN,
		    "find out what uses it (ckptd's own copies are not locked): swapoff -a",
		    "%s of %s in use: copies may be swapped out, and snapshots wait for the disk",
		    size(swapped), size(f->swap_total));
	else
		say(j, "swap", DOCTOR_OK, NULL, f->swap_total ? "%s of %s in use" : "none",
		    size(swapped), size(f->swap_total));
	if (f->huge_bytes > f->mem_total / 10)
		say(j, "huge pages", DOCTOR_WARN,
		    "sysctl vm.nr_hugepages=0, unless something else needs them",
		    "%s are reserved: ckptd cannot use them", size(f->huge_bytes));
	else
		say(j, "huge pages", DOCTOR_OK,
		    deny || (never && !collapse)
			    ? "echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled: "
			      "copies "
			      "on huge pages cost less CPU to make and to write"
			    : NULL,
		    "%s reserved, none needed; transparent ones for copies: %s%s",
		    size(f->huge_bytes), *f->shmem_huge ? f->shmem_huge : "not known",
		    never && collapse ? ", but this kernel makes them where ckptd asks" : "");
	say(j, "/dev/shm", DOCTOR_OK,
	    f->shm_bytes < SHM_MIN
		    ? "ckptd does not use it; if NCCL or data loaders need more: docker --shm-size"
		    : NULL,
	    "%s, not used: copies are in memfds", size(f->shm_bytes));
}

/* --- processes --- */

static void daemon_there(struct judge *j)
{
	const struct doctor_facts *f = j->f;

	switch (-f->daemon_rc) {
	case 0:
		say(j, "daemon", DOCTOR_OK, NULL, "listens on %s", f->socket);
		break;
	case ENOENT:
	case ENOTDIR:
	case ECONNREFUSED:
		say(j, "daemon", DOCTOR_WARN,
		    "ckptd --background; or let the trainer start it (CKPT_AUTOSTART)",
		    "none listens on %s", f->socket);
		break;
	case EACCES:
	case EPERM:
		say(j, "daemon", DOCTOR_FAIL,
		    "give a socket of your own: ckptd --socket PATH, ckptctl -S PATH",
		    "%s belongs to another user",
		    *f->socket ? f->socket : "the default socket's directory");
		break;
	case EAGAIN:
		say(j, "daemon", DOCTOR_FAIL,
		    "is it stopped (SIGSTOP, a debugger)? kill -CONT, or start another",
		    "the one on %s does not answer", f->socket);
		break;
	case EPROTO:
	case EPROTOTYPE:
		say(j, "daemon", DOCTOR_FAIL,
		    "give another socket: ckptctl -S PATH; or use one version of everything",
		    "what listens on %s is another program, or another version of ckptd%s%s",
		    f->socket, *f->daemon_said ? ": " : "", f->daemon_said);
		break;
	default:
		say(j, "daemon", DOCTOR_FAIL, "give another socket: ckptctl -S PATH", "%s: %s",
		    f->socket, strerror(-f->daemon_rc));
	}
	if (f->nrank_beside)
		say(j, "cgroup", DOCTOR_WARN,
		    "start ckptd outside of the job: systemd-run --user -p OOMScoreAdjust=-500 ckptd, or a "
		    "container of its own that shares the socket's directory",
		    "ckptd (process %u) is in the cgroup of %u of %u attached ranks, %s: what ends or "
		    "limits the job ends ckptd too, and what is only staged is lost",
		    f->daemon_pid, f->nrank_beside, f->nrank, f->daemon_group);
	else if (f->nrank)
		say(j, "cgroup", DOCTOR_OK, NULL, "none of %u attached ranks shares one with ckptd",
		    f->nrank);
	if (!f->uid || !f->systemd)
		return;
	if (f->lingers)
		say(j, "session", DOCTOR_OK, NULL, "lingers: ckptd outlives the login");
	else if (f->kills_user_processes)
		say(j, "session", DOCTOR_WARN,
		    "loginctl enable-linger, and run ckptd as a service (systemd-run --user)",
		    "KillUserProcesses=yes: at the logout ckptd is killed, and what is only "
		    "staged is lost");
	else if (!strncmp(f->socket, "/run/user/", 10))
		say(j, "session", DOCTOR_WARN, "loginctl enable-linger, or a socket elsewhere",
		    "%s is removed at the last logout: ckptd keeps running, but no program can "
		    "reach it",
		    f->socket);
	else
		say(j, "session", DOCTOR_OK, NULL, "ckptd outlives the login");
}

static void clock_(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	int64_t skew = f->skew_ns < 0 ? -f->skew_ns : f->skew_ns;

	if (f->now_ns / NS_PER_S < CLOCK_MIN_S)
		say(j, "clock", DOCTOR_FAIL, "set it: timedatectl set-ntp true",
		    "it is %llu s after 1970: steps would be dated wrongly",
		    (unsigned long long)(f->now_ns / NS_PER_S));
	else if (!f->dir_rc && skew > SKEW_NS)
		say(j, "clock", DOCTOR_WARN,
		    "synchronize both by NTP: otherwise the ages of steps are wrong",
		    "the file server's clock differs from this machine's by %.1f s",
		    (double)skew / (double)NS_PER_S);
	else
		say(j, "clock", DOCTOR_OK, NULL, "plausible");
}

static void launchers(struct judge *j)
{
	const struct doctor_facts *f = j->f;
	uint64_t now_s = f->now_ns / NS_PER_S;

	if (f->torchrun && !f->torchrun_patient)
		say(j, "torchrun", DOCTOR_WARN,
		    "ckptd still writes what is staged; to leave time for a final snapshot: "
		    "torchrun --shutdown-timeout 120",
		    "kills workers 30 s after SIGTERM");
	else if (f->torchrun)
		say(j, "torchrun", DOCTOR_OK, NULL, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is set");
	if (!f->slurm)
		return;
	if (f->slurm_end_s > now_s)
		say(j, "slurm", DOCTOR_WARN,
		    "start ckptd outside of the job's steps, or let the batch script end with "
		    "ckptctl drain; "
		    "#SBATCH --signal=B:USR1@180 warns it",
		    "the job ends in %llu min, and a ckptd that it started ends with it",
		    (unsigned long long)((f->slurm_end_s - now_s) / 60));
	else
		say(j, "slurm", DOCTOR_WARN,
		    "start ckptd outside of the job's steps, or let the batch script end with "
		    "ckptctl drain; "
		    "#SBATCH --signal=B:USR1@180 warns it",
		    "a ckptd that the job started ends with it, KillWait (30 s) after SIGTERM");
}

void doctor_judge(const struct doctor_facts *f,
		  void (*each)(void *arg, const struct doctor_finding *f), void *arg)
{
	struct judge j = { .each = each, .arg = arg, .f = f };

	if (directory(&j)) {
		file_system(&j);
		writing(&j);
		space(&j);
	}
	kernel(&j);
	memory(&j);
	daemon_there(&j);
	clock_(&j);
	launchers(&j);
}
