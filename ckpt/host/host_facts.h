/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_facts.h - can ckptd work well on this machine, with this directory as its store and a job of
 * this size? There are two halves: host_examine collects facts from the machine and judges nothing;
 * host_judge is a pure function of these facts, so that every verdict can be tested on any machine.
 * Called by ckptctl doctor, from one thread. Nothing here prints.
 *
 * The facts are about what ckptd uses (memfd, SO_PEERCRED, pidfd, O_DIRECT, io_uring, rename
 * without replacing, locks), about what its promises rest on (a file system that keeps what was
 * synced, a disk whose cache is flushed), and about what a job needs of the machine (space for the
 * newest step and for the one that is being written, memory for two copies of its state, a daemon
 * that outlives the login).
 */
#ifndef CKPT_HOST_FACTS_H
#define CKPT_HOST_FACTS_H
#include "ckpt/layout/human.h"
#include "ckpt/io/io.h"
#include <limits.h>

#define HOST_NONE UINT64_MAX /* no limit; not known */

struct format;

struct host_ask {
	const struct io_ops *ops;
	const struct format *format; /* what stores are made of; NULL: no step is opened */
	const char *path;
	uint64_t job_bytes; /* 0: not known; then it is the size of the newest step in path */
	const char *socket; /* NULL: the user's default */
	/* NULL, or the directory that has /proc, /sys, /etc, /run and /var/lib of a made-up
	 * machine: files only */
	const char *root;
};

/* rc: 0 or a negative errno. */
struct host_facts {
	char path[PATH_MAX], parent[PATH_MAX]; /* parent: examined where path does not exist */
	uint64_t job_bytes;
	bool job_guessed;
	uint32_t uid;

	int dir_rc;
	bool missing; /* path does not exist; its parent was examined */
	struct ckpt_err dir_err;
	struct io_probe probe;
	uint32_t fs_magic;	/* statfs's f_type */
	int rename_rc, sync_rc; /* rename_rc 1: it replaced what was there */
	uint64_t sync_ns;	/* median, of a new file of one block */
	int fallocate_rc;
	int lock_rc;			/* as a reader and a removal lock (store/store_lock.c) */
	char disk[32], write_cache[24]; /* "vda", "write back"; "": not known */
	bool nobarrier, soft;		/* how it is mounted */
	bool shared;			/* other hosts may use it */
	bool local_locks;		/* and is mounted so that they do not see its locks */
	uint64_t free_bytes, total_bytes, free_files;
	/* what convert and export left there (io/leftover.h) and no process writes; how much of it
	 * can be continued; the name of one */
	uint32_t nleft, nleft_unfinished;
	uint64_t left_bytes;
	char left[NAME_MAX + 1];
	int64_t skew_ns; /* the file system's clock, less ours */

	bool uring;
	char uring_why[256];
	uint64_t memlock, nofile, fsize, as; /* hard limits */

	uint64_t mem_total, mem_available, swap_total, swap_free, huge_bytes, shm_bytes;
	uint32_t cgroup; /* 1, 2: the version of what limits memory; 0: nothing does */
	uint64_t cgroup_limit, cgroup_used;
	bool cgroup_oom_group; /* one process over its limit ends all others of the group */
	bool commit_strict;    /* vm.overcommit_memory = 2 */
	uint64_t commit_limit, commit_used;
	char shmem_huge[16]; /* "never", "advise", ...; "": not known */
	int oom_adj;	     /* oom_score_adj, which a daemon started here inherits */

	char kernel[64];
	uint32_t kernel_major, kernel_minor;
	int memfd_rc, cred_rc, pidfd_rc;

	char socket[128];
	int daemon_rc;
	char daemon_said[400]; /* why not, in its own words; "": nothing */
	/* of the daemon that listens: its process, oom_score_adj and cgroup ("": not known, or the
	 * root of all), its jobs' ranks that are attached, how many of these are in that cgroup,
	 * and the lowest oom_score_adj of all of them */
	uint32_t daemon_pid, nrank, nrank_beside;
	int daemon_oom, rank_oom;
	bool daemon_oom_known;
	char daemon_group[256];
	bool systemd, kills_user_processes;
	bool lingers;
	uint64_t now_ns;

	bool torchrun, torchrun_patient; /* TORCH_ELASTIC_SHUTDOWN_TIMEOUT is set */
	bool slurm;
	uint64_t slurm_end_s; /* SLURM_JOB_END_TIME; 0: not set */
};

enum host_level { HOST_OK, HOST_WARN, HOST_FAIL };

struct host_finding {
	const char *check; /* a stable word: "space" */
	enum host_level level;
	char found[640];
	char next[640]; /* "": nothing */
};

/* Writes some small scratch files into the directory and removes them. It never fails: that
 * something cannot be found out is a fact too. */
void host_examine(const struct host_ask *ask, struct host_facts *ret);
/* Calls each for every finding, in the order in which people read them. */
void host_judge(const struct host_facts *f, void (*each)(void *arg, const struct host_finding *f),
		void *arg);
#endif
