/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the directory protocol: what makes a set of files a checkpoint, and which one is the latest.
 *
 *	ROOT/JOB/step-%012u/MANIFEST, w....part        committed: visible if and only if complete
 *	        /.tmp-%012u-g%08u-%08x/                collecting: step, generation, nonce
 *	        /.old-%012u-s%u/                       set aside: the job went back to an older step and committed again
 *	        /.trash-%08x/                          being deleted
 *	        /.ckptd/gen-%08u                       claim of a launch, O_EXCL; holds the claiming daemon's nonce
 *
 * Steps: claim -> trash older collecting directories -> scan -> begin -> parts (write, sync, close) -> commit. A daemon whose generation is not the highest
 * claimed one cannot commit (-ESTALE). Trashing is a rename, and so is committing: only one of them can win. Nothing committed is ever deleted here.
 */
#ifndef CKPT_STORE_STORE_H
#define CKPT_STORE_STORE_H
#include "ckpt/base/source.h"
#include "ckpt/io/io.h"
#include "ckpt/table/format.h"
#include "formats/native/native.h"

struct store {
	const struct io_ops *ops;
	int root_fd, job_fd;            /* job_fd -1: the job's directory does not exist yet */
	char job[CKPT_JOB_MAX + 1];
	uint32_t nonce;                 /* random: this opener's */
	uint64_t generation;            /* claimed; 0: none (readers) */
};

/* A job name: [A-Za-z0-9._-]{1,64}, no leading dot. -EINVAL says what is wrong. */
int store_job_check(const char *job, struct ckpt_err *err);
/* root_fd is duplicated. create: make and sync ROOT/JOB and .ckptd; 0700/0600 modes. Without create a missing job is -ENOENT. */
int store_open(const struct io_ops *ops, int root_fd, const char *job, bool create, struct store **ret, struct ckpt_err *err);
void store_close(struct store *s);

/* Claim a launch. want 0: the highest + 1. want equal to the highest: taken over when again (the same launch returns after a daemon's death). want below the
 * highest: -ESTALE. Then collecting directories are trashed, except those begun through this struct, and trash is removed. */
int store_claim(struct store *s, uint64_t want, bool again, uint64_t *ret_generation, struct ckpt_err *err);

struct store_step {
	uint64_t step, seq, generation, wall_ns, bytes, parent_step;
	uint32_t world;
	uint8_t id[16];
	char dir[48];                   /* entry name in the job directory */
	char mesh[128];                 /* "fsdp=4"; several meshes: the one that most tensors use */
	const char *format;
	enum { STORE_COMMITTED, STORE_COLLECTING, STORE_SET_ASIDE, STORE_DAMAGED } state; /* DAMAGED: step-N whose MANIFEST cannot be read */
	char why[200];                  /* DAMAGED */
};
/* All step directories, newest first (seq, then step); collecting and set aside too when all. *ret is malloc'ed. Foreign entries are ignored. */
int store_scan(const struct store *s, bool all, struct store_step **ret, uint32_t *ret_n, struct ckpt_err *err);
int store_step_open(const struct store *s, const char *dir, int *ret_fd, struct ckpt_err *err);

/* --- writing --- */
struct store_txn;
int store_begin(struct store *s, uint64_t step, struct store_txn **ret, struct ckpt_err *err);
/* A fresh part file: name is made; O_EXCL, and O_DIRECT when *direct (cleared where refused); fallocated to bytes_max. -ENOSPC early. */
int store_part_create(struct store_txn *x, uint32_t writer, uint64_t bytes_max, bool *direct, char ret_name[40], int *ret_fd, struct ckpt_err *err);
/* Truncate to the true length, sync, close. An error kills the file: it is unlinked, create another one from memory. fd is closed always. */
int store_part_finish(struct store_txn *x, const char *name, int fd, uint64_t bytes, struct ckpt_err *err);
/* Write and sync MANIFEST, sync the directory, check the claim (-ESTALE), set aside the steps above base_step that base does not descend to (see below),
 * rename to step-N, sync the parent. Only after 0 is the step committed. On any error the collecting directory is gone and older steps are untouched.
 * rewind: the newest step of the line that this one continues (UINT64_MAX: it continues none: every other step is set aside); steps above it are set aside. */
int store_commit(struct store_txn *x, const void *manifest, uint64_t bytes, uint64_t rewind, struct ckpt_err *err);
void store_abort(struct store_txn *x);

/* --- sources for the formats' readers --- */
int store_source_dir(const struct io_ops *ops, int dirfd, struct source_dir *ret);
void store_source_dir_close(struct source_dir *d);

/* --- names that people type --- */
struct store_ref {
	int step_fd;                    /* the step directory */
	char path[4096];                /* absolute */
};
/* "latest", "latest~N", "step:N" below where (a store with one job or a job directory), or a path to a step directory. -ENOENT (exit 10), -EUCLEAN uncommitted (5),
 * -ENOTUNIQ several jobs, all listed. */
int store_resolve(const struct io_ops *ops, const char *where, const char *name, struct store_ref *ret, struct ckpt_err *err);
/* Jobs of a path: the path itself when it is a job directory, else its subdirectories that are jobs. each(job, open directory's fd). */
int store_jobs(const struct io_ops *ops, const char *path, int (*each)(void *arg, const char *job, int job_fd, const char *abs_path), void *arg, struct ckpt_err *err);
#endif
