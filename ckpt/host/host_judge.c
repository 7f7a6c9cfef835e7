/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_judge.c - the half of host_facts.h that decides what is good and what to do. Called by
 * ckptctl doctor, and by tests with facts of machines that they do not run on.
 * Invariant: no system call; every warning and failure comes with something to do.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/host/host_facts.h"
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
	void (*each)(void *arg, const struct host_finding *f);
	void *arg;
	const struct host_facts *f;
};

__attribute__((format(printf, 5, 6))) static void finding_add(struct judge *j, const char *check,
							      enum host_level level,
							      const char *next, const char *fmt,
							      ...)
{
	struct host_finding x = { .check = check, .level = level };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(x.found, sizeof x.found, fmt, ap);
	va_end(ap);
	snprintf(x.next, sizeof x.next, "%s", next ? next : "");
	j->each(j->arg, &x);
}

/* Text in a buffer of its own, for the next of a finding. */
__attribute__((format(printf, 3, 4))) static const char *text_print(char *buf, size_t bytes,
								    const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf, bytes, fmt, ap);
	va_end(ap);
	return buf;
}

static const char *size_text(uint64_t bytes)
{
	static _Thread_local char buf[4][HUMAN_BYTES];
	static _Thread_local uint32_t at;

	return bytes == HOST_NONE ? "unlimited" : human_bytes(bytes, buf[at++ % 4]);
}

static uint64_t copies_bytes(uint64_t bytes)
{
	uint64_t x;

	return ckpt_mul(bytes, COPIES, &x) ? HOST_NONE : x;
}

/* --- the directory --- */

static bool judge_directory(struct judge *j)
{
	const struct host_facts *f = j->f;
	char next[600];

	if (f->dir_rc) {
		const char *what =
			f->dir_rc == -EACCES || f->dir_rc == -EPERM
				? "is not writable for this user"
			: f->dir_rc == -EROFS	? "is mounted read-only"
			: f->dir_rc == -ENOTDIR ? "is not a directory"
			: f->dir_rc == -ENOENT	? "does not exist, and its parent directory does "
						  "not exist either"
			: f->dir_rc == -EOPNOTSUPP ? "takes no files: it is not on a disk"
			: f->dir_rc == -ENOSPC || f->dir_rc == -EDQUOT ? "has no free space"
								       : NULL;

		text_print(next, sizeof next,
			   "make it for user %u (mkdir -p, chown), or name another", f->uid);
		if (what)
			finding_add(j, "directory", HOST_FAIL,
				    f->dir_rc == -EOPNOTSUPP ? "name another directory" : next,
				    "%.300s %s", f->path, what);
		else
			finding_add(j, "directory", HOST_FAIL,
				    "repair the file system, or name another directory",
				    "%.200s: %.350s", f->path,
				    f->dir_err.msg[0] ? f->dir_err.msg : strerror(-f->dir_rc));
		return false;
	}
	if (f->missing)
		finding_add(j, "directory", HOST_WARN,
			    "check the spelling; a trainer that attaches creates it",
			    "%.250s does not exist; its parent %.250s is writable", f->path,
			    f->parent);
	else
		finding_add(j, "directory", HOST_OK, NULL, "%.500s, writable", f->path);
	return true;
}

static void judge_file_system(struct judge *j)
{
	static const char net[] =
		"errors may appear late, at fsync; a step is durable when the server has made it "
		"durable: run verify --data after a restart of the server";
	static const struct {
		uint32_t magic;
		enum host_level level;
		const char *name, *found, *next;
	} known[] = {
		{ 0x6969, HOST_WARN, "nfs", "over the network", net },
		{ 0xff534d42, HOST_WARN, "cifs", "over the network", net },
		{ 0xfe534d42, HOST_WARN, "smb", "over the network", net },
		{ 0x01021997, HOST_WARN, "9p", "over the network, or of a virtual machine's host",
		  net },
		{ 0x65735546, HOST_WARN, "fuse", "served by a program",
		  "that program decides what fsync does: see its manual" },
		{ 0x4d44, HOST_WARN, "vfat", "no owners, no locks of its own, a weak rename",
		  "name a directory on ext4 or xfs" },
		{ 0x2011bab0, HOST_WARN, "exfat", "no owners, no journal",
		  "name a directory on ext4 or xfs" },
		{ 0x9123683e, HOST_OK, "btrfs",
		  "copy on write: a write into reserved space may still fail",
		  "keep some free; chattr +C on the empty directory makes direct I/O direct" },
		{ 0x2fc12fc1, HOST_OK, "zfs",
		  "copy on write: a write into reserved space may still fail", "keep some free" },
		{ 0x0bd00bd0, HOST_OK, "lustre", "parallel, over the network",
		  "stripe the directory before the first step: lfs setstripe -c -1 -S 8M DIR" },
		{ 0x47504653, HOST_OK, "gpfs", "parallel, over the network", NULL },
		{ 0x00c36400, HOST_OK, "ceph", "parallel, over the network", NULL },
		{ 0x19830326, HOST_OK, "beegfs", "parallel, over the network", NULL },
	};
	const struct host_facts *f = j->f;

	if (f->probe.volatile_fs) {
		finding_add(
			j, "file system", HOST_WARN,
			"steps survive any process, but not a reboot: name a directory on a disk",
			"%s: memory", f->probe.fs_type);
		return;
	}
	if (!strcmp(f->probe.fs_type, "overlay")) {
		finding_add(
			j, "file system", HOST_WARN,
			"mount a volume there: a container's own layer is deleted with the container",
			"overlay: a container's own layer");
		return;
	}
	if (f->soft) {
		finding_add(j, "file system", HOST_WARN,
			    "mount it hard: if it is mounted soft, a slow server makes steps fail",
			    "%s: over the network, mounted soft", f->probe.fs_type);
		return;
	}
	for (uint32_t i = 0; i < ARRAY_LEN(known); i++)
		if (known[i].magic == f->fs_magic) {
			finding_add(j, "file system", known[i].level, known[i].next, "%s: %s",
				    known[i].name, known[i].found);
			return;
		}
	if (!strcmp(f->probe.fs_type, "other"))
		finding_add(j, "file system", HOST_OK, NULL, "of type %x, which is not known here",
			    f->fs_magic);
	else
		finding_add(j, "file system", HOST_OK, NULL, "%s", f->probe.fs_type);
}

/* What fsync has to get through below the file system. */
static void judge_disk(struct judge *j)
{
	const struct host_facts *f = j->f;
	bool back = !strcmp(f->write_cache, "write back");

	if (f->nobarrier && (back || !*f->write_cache))
		finding_add(
			j, "disk", back ? HOST_FAIL : HOST_WARN,
			"mount -o remount,barrier=1; otherwise a power loss can lose the newest "
			"committed steps",
			"%s%s, mounted with nobarrier: fsync does not flush it", f->disk,
			back ? " has a volatile write cache" : "");
	else if (back)
		finding_add(
			j, "disk", HOST_OK, NULL,
			"%s has a volatile write cache, which fsync flushes; doctor cannot detect a "
			"disk that ignores flushes",
			f->disk);
	else if (*f->write_cache)
		finding_add(
			j, "disk", HOST_OK, NULL,
			"%s reports that its cache survives a power loss (%s); doctor cannot check "
			"the host of a virtual disk",
			f->disk, f->write_cache);
}

static void judge_reserving_and_locks(struct judge *j)
{
	const struct host_facts *f = j->f;

	if (f->fallocate_rc == -EOPNOTSUPP)
		finding_add(j, "fallocate", HOST_WARN,
			    "keep space for two steps; ext4, xfs or NFS 4.2 can reserve it",
			    "not here: a full disk is detected only in the middle of a step");
	else if (f->fallocate_rc)
		finding_add(j, "fallocate", HOST_FAIL, "check dmesg, df and quota",
			    "space for one block could not be reserved: %s",
			    strerror(-f->fallocate_rc));
	else
		finding_add(j, "fallocate", HOST_OK, NULL,
			    "a step's space is reserved before its first byte");
	if (f->lock_rc == -EOPNOTSUPP)
		finding_add(
			j, "locks", HOST_WARN,
			"mount it with locks (Lustre: -o flock); or remove old steps by hand while "
			"no program reads them",
			"none here: ckptd cannot see whether a step is being read, so it never prunes");
	else if (f->lock_rc)
		finding_add(j, "locks", HOST_FAIL, "mount it with locks, or without (nolock)",
			    "a lock could not be taken: %s", strerror(-f->lock_rc));
	else if (f->local_locks)
		finding_add(
			j, "locks", HOST_WARN,
			"mount it so that locks reach other hosts (NFS without nolock, Lustre with "
			"-o flock)",
			"this host's alone, as it is mounted here: a step that another host reads is "
			"kept by what its reader leaves, which counts for ten minutes");
	else if (f->shared)
		finding_add(
			j, "locks", HOST_OK, NULL,
			"work: a step that is being read is not removed, on another host either if "
			"the server passes locks on, which one host cannot check; what a reader "
			"leaves counts besides, for ten minutes");
	else
		finding_add(j, "locks", HOST_OK, NULL,
			    "work: a step that is being read is not removed");
}

static void judge_writing(struct judge *j)
{
	const struct host_facts *f = j->f;
	double ms = (double)f->sync_ns / (double)NS_PER_MS;

	if (f->probe.direct)
		finding_add(j, "direct I/O", HOST_OK, NULL, "works, aligned to %u bytes",
			    f->probe.align);
	else
		finding_add(
			j, "direct I/O", HOST_WARN,
			"nothing, if the speed is enough; ext4 or xfs on a local disk can do it",
			"refused: writes pass the page cache, which costs a copy and memory");

	if (f->sync_rc)
		finding_add(j, "sync", HOST_FAIL, "check dmesg; do not use this file system",
			    "a file could not be made durable: %s", strerror(-f->sync_rc));
	else if (f->sync_ns < SYNC_FAST_NS && !f->probe.volatile_fs)
		finding_add(
			j, "sync", HOST_WARN,
			"make sure that the disk, or the host of this machine, does not ignore flushes "
			"(cache mode unsafe, nobarrier)",
			"a file was durable after %.3f ms: too fast for a real flush", ms);
	else if (f->sync_ns > SYNC_SLOW_NS)
		finding_add(
			j, "sync", HOST_WARN,
			"a commit needs several of these: find out what else writes to the disk, or "
			"name a faster directory",
			"it takes %.0f ms to make a small file durable", ms);
	else
		finding_add(j, "sync", HOST_OK, NULL, "a small file is %s in %.3g ms",
			    f->probe.volatile_fs ? "synced" : "durable", ms);
	judge_disk(j);
	judge_reserving_and_locks(j);

	if (f->rename_rc > 0)
		finding_add(j, "rename", HOST_FAIL, "name a directory on another file system",
			    "a rename replaces an existing directory despite RENAME_NOREPLACE: two "
			    "launches could overwrite each other's steps");
	else if (f->rename_rc)
		finding_add(
			j, "rename", HOST_FAIL,
			"name a directory on another file system: steps are committed by a rename",
			"a file cannot be renamed: %s", strerror(-f->rename_rc));
	else
		finding_add(j, "rename", HOST_OK, NULL,
			    "never replaces an existing file or directory");
}

static void judge_space(struct judge *j)
{
	const struct host_facts *f = j->f;
	uint64_t job = f->job_bytes, need = copies_bytes(job);
	char next[200];

	if (!job)
		finding_add(j, "space", HOST_OK, "--job-size=BYTES checks whether that is enough",
			    "%s free of %s", size_text(f->free_bytes), size_text(f->total_bytes));
	else if (f->free_bytes < job)
		finding_add(
			j, "space", HOST_FAIL,
			text_print(
				next, sizeof next,
				"free %s, or name a larger one: a step is kept until the next one is "
				"complete",
				size_text(need - f->free_bytes)),
			"%s free: no space for one step of %s", size_text(f->free_bytes),
			size_text(job));
	else if (f->free_bytes < need)
		finding_add(
			j, "space", HOST_WARN,
			text_print(next, sizeof next,
				   "free %s more: a step is kept until the next one is complete",
				   size_text(need - f->free_bytes)),
			"%s free: space for one step of %s only", size_text(f->free_bytes),
			size_text(job));
	else
		finding_add(
			j, "space", HOST_OK,
			f->free_bytes / job < STEPS_MANY
				? "steps stay until they are pruned: ckptctl keep JOB --last 3, or ckptctl "
				  "prune"
				: NULL,
			"%s free of %s: space for %llu steps of %s", size_text(f->free_bytes),
			size_text(f->total_bytes), (unsigned long long)(f->free_bytes / job),
			size_text(job));
	if (f->free_files < FILES_FREE_MIN)
		finding_add(j, "inodes", HOST_WARN,
			    "remove small files, or make the file system with more inodes",
			    "only %llu files can be made", (unsigned long long)f->free_files);
}

static void judge_leftovers(struct judge *j)
{
	const struct host_facts *f = j->f;
	char next[400], more[32] = "";

	if (!f->nleft)
		return;
	if (f->nleft > 1)
		snprintf(more, sizeof more, " and %u more", f->nleft - 1);
	finding_add(
		j, "leftovers", HOST_OK,
		text_print(next, sizeof next,
			   "%sckptctl prune --unfinished removes %s; ckptctl ls lists %s",
			   f->nleft_unfinished ? "the same ckptctl convert continues it, or " : "",
			   f->nleft == 1 ? "it" : "them", f->nleft == 1 ? "it" : "them"),
		"%s in %.200s%s, which ckptctl left when it was interrupted or killed",
		size_text(f->left_bytes), f->left, more);
}

/* --- the kernel --- */

static void judge_kernel(struct judge *j)
{
	const struct host_facts *f = j->f;

	if (f->memfd_rc || f->cred_rc)
		finding_add(
			j, "kernel", HOST_FAIL,
			"allow it in the sandbox (seccomp profile), or use a kernel of 5.3 or later",
			"%s: %s does not work: %s", f->kernel,
			f->memfd_rc ? "memfd_create with seals" : "SO_PEERCRED",
			strerror(f->memfd_rc ? -f->memfd_rc : -f->cred_rc));
	else if (f->pidfd_rc)
		finding_add(j, "kernel", HOST_WARN,
			    "use a kernel of 5.3 or later, or allow it in the sandbox",
			    "%s: no pidfd_open (%s): if a child process keeps the socket of a dead "
			    "trainer open, ckptd detects the death late",
			    f->kernel, strerror(-f->pidfd_rc));
	else
		finding_add(j, "kernel", HOST_OK, NULL, "%s: memfd, SO_PEERCRED and pidfd work",
			    f->kernel);

	if (f->uring)
		finding_add(j, "io_uring", HOST_OK, NULL, "%s", f->uring_why);
	else
		finding_add(
			j, "io_uring", HOST_WARN,
			"nothing, if the speed is enough: threads do the work. Otherwise: a seccomp "
			"profile that allows io_uring_setup, sysctl kernel.io_uring_disabled=0, or a "
			"kernel of 5.11 or later",
			"%s", f->uring_why);

	if (f->memlock < 8 * MIB && f->kernel_major &&
	    (f->kernel_major < 5 || (f->kernel_major == 5 && f->kernel_minor < 12)))
		finding_add(j, "memlock", HOST_WARN,
			    "ulimit -l unlimited, or LimitMEMLOCK=infinity",
			    "%s may be locked: on this kernel io_uring's queues count against it",
			    size_text(f->memlock));
	else
		finding_add(j, "memlock", HOST_OK, NULL, "%s: ckptd locks no memory",
			    size_text(f->memlock));

	if (f->nofile < FILES_MIN)
		finding_add(j, "open files", f->nofile < FILES_MIN / 4 ? HOST_FAIL : HOST_WARN,
			    "ulimit -Hn 65536, or LimitNOFILE=65536",
			    "at most %llu: a rank costs about ten", (unsigned long long)f->nofile);
	else if (f->nofile == HOST_NONE)
		finding_add(j, "open files", HOST_OK, NULL, "unlimited");
	else
		finding_add(j, "open files", HOST_OK, NULL, "at most %llu, about ten a rank",
			    (unsigned long long)f->nofile);

	if (f->fsize != HOST_NONE)
		finding_add(j, "file size",
			    f->job_bytes && f->fsize < f->job_bytes / 64 ? HOST_FAIL : HOST_WARN,
			    "ulimit -f unlimited, or LimitFSIZE=infinity",
			    "no file may be larger than %s", size_text(f->fsize));
}

/* --- memory --- */

static void judge_memory_against(struct judge *j, const char *check, uint64_t all,
				 uint64_t available, const char *of, const char *next)
{
	uint64_t job = j->f->job_bytes, need = copies_bytes(job);

	if (!job)
		finding_add(j, check, HOST_OK, "--job-size=BYTES checks whether that is enough",
			    "%s available of %s%s", size_text(available), size_text(all), of);
	else if (need > all)
		finding_add(j, check, HOST_FAIL, next, "%s%s: two copies of a job of %s need %s",
			    size_text(all), of, size_text(job), size_text(need));
	else if (need > available)
		finding_add(
			j, check, HOST_WARN,
			"stop what uses it, if that is not the job itself; trainers need theirs "
			"besides",
			"%s available of %s%s: two copies of a job of %s need %s",
			size_text(available), size_text(all), of, size_text(job), size_text(need));
	else
		finding_add(j, check, HOST_OK, NULL,
			    "%s available of %s%s, two copies of the job need %s",
			    size_text(available), size_text(all), of, size_text(need));
}

static void judge_memory(struct judge *j)
{
	const struct host_facts *f = j->f;
	uint64_t swapped = f->swap_total - MIN(f->swap_free, f->swap_total);
	bool deny = !strcmp(f->shmem_huge, "deny"), never = !strcmp(f->shmem_huge, "never");
	bool collapse = f->kernel_major > 6 || (f->kernel_major == 6 && f->kernel_minor >= 1);
	char of[48], next[320];

	judge_memory_against(
		j, "memory", f->mem_total, f->mem_available, "",
		"use more hosts, each with a part of the ranks; or snapshot a smaller state");
	if (f->cgroup) {
		snprintf(of, sizeof of, " (cgroup v%u)", f->cgroup);
		judge_memory_against(
			j, "memory limit", f->cgroup_limit,
			f->cgroup_limit - MIN(f->cgroup_used, f->cgroup_limit), of,
			"raise the limit of the container, or of the job: --memory, --mem, "
			"MemoryMax=");
	} else {
		finding_add(j, "memory limit", HOST_OK, NULL, "none by a cgroup");
	}
	if (f->cgroup_oom_group)
		finding_add(
			j, "out of memory", HOST_WARN,
			"run ckptd in a cgroup of its own, or set memory.oom.group=0: what is only "
			"staged is lost with it",
			"memory.oom.group: who is over the limit takes ckptd along");
	else if (f->daemon_oom_known && f->daemon_oom >= 0 &&
		 (!f->nrank || f->rank_oom <= f->daemon_oom))
		finding_add(
			j, "out of memory", HOST_WARN,
			text_print(
				next, sizeof next,
				"run it as a service with OOMScoreAdjust=-500, or, as root, choom -n -500 -p %u; "
				"or start the trainers with choom -n 500: what is only staged is lost with ckptd",
				f->daemon_pid),
			"oom_score_adj of ckptd (process %u) is %d: it is killed as soon as any other",
			f->daemon_pid, f->daemon_oom);
	else if (f->daemon_oom_known)
		finding_add(j, "out of memory", HOST_OK, NULL,
			    "others are killed before ckptd (oom_score_adj %d)", f->daemon_oom);
	else if (f->oom_adj > 0)
		finding_add(
			j, "out of memory", HOST_WARN,
			"as a service: OOMScoreAdjust=-500; what is only staged is lost with ckptd",
			"oom_score_adj is %d here: ckptd would be among the first to be killed",
			f->oom_adj);
	else
		finding_add(
			j, "out of memory", HOST_OK, NULL,
			"ckptd is killed as any other (oom_score_adj %d): what is committed stays",
			f->oom_adj);
	if (f->as != HOST_NONE)
		judge_memory_against(j, "address space", f->as, f->as, " (RLIMIT_AS)",
				     "ulimit -Hv unlimited, or LimitAS=infinity");
	if (f->commit_strict)
		judge_memory_against(
			j, "overcommit", f->commit_limit,
			f->commit_limit - MIN(f->commit_used, f->commit_limit),
			" (vm.overcommit_memory=2)",
			"sysctl vm.overcommit_memory=0, or a larger vm.overcommit_ratio");
	if (swapped > f->swap_total / 4 && swapped > GIB)
		finding_add(
			j, "swap", HOST_WARN,
			"find out what uses it (ckptd's own copies are not locked): swapoff -a",
			"%s of %s in use: copies may be swapped out, and snapshots wait for the disk",
			size_text(swapped), size_text(f->swap_total));
	else
		finding_add(j, "swap", HOST_OK, NULL, f->swap_total ? "%s of %s in use" : "none",
			    size_text(swapped), size_text(f->swap_total));
	if (f->huge_bytes > f->mem_total / 10)
		finding_add(j, "huge pages", HOST_WARN,
			    "sysctl vm.nr_hugepages=0, unless something else needs them",
			    "%s are reserved: ckptd cannot use them", size_text(f->huge_bytes));
	else
		finding_add(
			j, "huge pages", HOST_OK,
			deny || (never && !collapse)
				? "echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled: "
				  "copies "
				  "on huge pages cost less CPU to make and to write"
				: NULL,
			"%s reserved, none needed; transparent ones for copies: %s%s",
			size_text(f->huge_bytes), *f->shmem_huge ? f->shmem_huge : "not known",
			never && collapse ? ", but this kernel makes them where ckptd asks" : "");
	finding_add(
		j, "/dev/shm", HOST_OK,
		f->shm_bytes < SHM_MIN
			? "ckptd does not use it; if NCCL or data loaders need more: docker --shm-size"
			: NULL,
		"%s, not used: copies are in memfds", size_text(f->shm_bytes));
}

/* --- processes --- */

static void judge_daemon(struct judge *j)
{
	const struct host_facts *f = j->f;

	switch (-f->daemon_rc) {
	case 0:
		finding_add(j, "daemon", HOST_OK, NULL, "listens on %s", f->socket);
		break;
	case ENOENT:
	case ENOTDIR:
	case ECONNREFUSED:
		finding_add(j, "daemon", HOST_WARN,
			    "ckptd --background; or let the trainer start it (CKPT_AUTOSTART)",
			    "none listens on %s", f->socket);
		break;
	case EACCES:
	case EPERM:
		finding_add(j, "daemon", HOST_FAIL,
			    "give a socket of your own: ckptd --socket PATH, ckptctl -S PATH",
			    "%s belongs to another user",
			    *f->socket ? f->socket : "the default socket's directory");
		break;
	case EAGAIN:
		finding_add(j, "daemon", HOST_FAIL,
			    "is it stopped (SIGSTOP, a debugger)? kill -CONT, or start another",
			    "the one on %s does not answer", f->socket);
		break;
	case EPROTO:
	case EPROTOTYPE:
		finding_add(
			j, "daemon", HOST_FAIL,
			"give another socket: ckptctl -S PATH; or use one version of everything",
			"what listens on %s is another program, or another version of ckptd%s%s",
			f->socket, *f->daemon_said ? ": " : "", f->daemon_said);
		break;
	default:
		finding_add(j, "daemon", HOST_FAIL, "give another socket: ckptctl -S PATH",
			    "%s: %s", f->socket, strerror(-f->daemon_rc));
	}
	if (f->nrank_beside)
		finding_add(
			j, "cgroup", HOST_WARN,
			"start ckptd outside of the job: systemd-run --user -p OOMScoreAdjust=-500 ckptd, or a "
			"container of its own that shares the socket's directory",
			"ckptd (process %u) is in the cgroup of %u of %u attached ranks, %s: what ends or "
			"limits the job ends ckptd too, and what is only staged is lost",
			f->daemon_pid, f->nrank_beside, f->nrank, f->daemon_group);
	else if (f->nrank)
		finding_add(j, "cgroup", HOST_OK, NULL,
			    "none of %u attached ranks shares one with ckptd", f->nrank);
	if (!f->uid || !f->systemd)
		return;
	if (f->lingers)
		finding_add(j, "session", HOST_OK, NULL, "lingers: ckptd outlives the login");
	else if (f->kills_user_processes)
		finding_add(
			j, "session", HOST_WARN,
			"loginctl enable-linger, and run ckptd as a service (systemd-run --user)",
			"KillUserProcesses=yes: at the logout ckptd is killed, and what is only "
			"staged is lost");
	else if (!strncmp(f->socket, "/run/user/", 10))
		finding_add(
			j, "session", HOST_WARN, "loginctl enable-linger, or a socket elsewhere",
			"%s is removed at the last logout: ckptd keeps running, but no program can "
			"reach it",
			f->socket);
	else
		finding_add(j, "session", HOST_OK, NULL, "ckptd outlives the login");
}

static void judge_clock(struct judge *j)
{
	const struct host_facts *f = j->f;
	int64_t skew = f->skew_ns < 0 ? -f->skew_ns : f->skew_ns;

	if (f->now_ns / NS_PER_S < CLOCK_MIN_S)
		finding_add(j, "clock", HOST_FAIL, "set it: timedatectl set-ntp true",
			    "it is %llu s after 1970: steps would be dated wrongly",
			    (unsigned long long)(f->now_ns / NS_PER_S));
	else if (!f->dir_rc && skew > SKEW_NS)
		finding_add(j, "clock", HOST_WARN,
			    "synchronize both by NTP: otherwise the ages of steps are wrong",
			    "the file server's clock differs from this machine's by %.1f s",
			    (double)skew / (double)NS_PER_S);
	else
		finding_add(j, "clock", HOST_OK, NULL, "plausible");
}

static void judge_launchers(struct judge *j)
{
	const struct host_facts *f = j->f;
	uint64_t now_s = f->now_ns / NS_PER_S;

	if (f->torchrun && !f->torchrun_patient)
		finding_add(
			j, "torchrun", HOST_WARN,
			"ckptd still writes what is staged; to leave time for a final snapshot: "
			"torchrun --shutdown-timeout 120",
			"kills workers 30 s after SIGTERM");
	else if (f->torchrun)
		finding_add(j, "torchrun", HOST_OK, NULL, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is set");
	if (!f->slurm)
		return;
	if (f->slurm_end_s > now_s)
		finding_add(
			j, "slurm", HOST_WARN,
			"start ckptd outside of the job's steps, or let the batch script end with "
			"ckptctl drain; "
			"#SBATCH --signal=B:USR1@180 warns it",
			"the job ends in %llu min, and a ckptd that it started ends with it",
			(unsigned long long)((f->slurm_end_s - now_s) / 60));
	else
		finding_add(
			j, "slurm", HOST_WARN,
			"start ckptd outside of the job's steps, or let the batch script end with "
			"ckptctl drain; "
			"#SBATCH --signal=B:USR1@180 warns it",
			"a ckptd that the job started ends with it, KillWait (30 s) after SIGTERM");
}

void host_judge(const struct host_facts *f, void (*each)(void *arg, const struct host_finding *f),
		void *arg)
{
	struct judge j = { .each = each, .arg = arg, .f = f };

	if (judge_directory(&j)) {
		judge_file_system(&j);
		judge_writing(&j);
		judge_space(&j);
		judge_leftovers(&j);
	}
	judge_kernel(&j);
	judge_memory(&j);
	judge_daemon(&j);
	judge_clock(&j);
	judge_launchers(&j);
}
