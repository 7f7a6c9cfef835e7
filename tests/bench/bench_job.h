/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_job.h - the job that is measured: W ranks in the threads of one process, each of which
 * declares its share of a model of about so many bytes, cut on dimension 0 over a mesh fsdp=W.
 *
 * Twelve layers, each a weight of ROWS x 1024 and a replicated bias of 1024, as BF16 parameter and
 * as FP32 master and two moments: 96 tensors. Or `tensors` FP32 ones on one rank, whose sizes are
 * those of a log-normal distribution with a median of 64 KiB, scaled in its width so that all of
 * them have about so many bytes. All lie in ckpt_alloc memory, unless `private` says otherwise.
 * Every 8 bytes have a value that is a pure function of (tensor, global position, step) and look
 * random, so that no disk or file system can compress them, and what was restored on another mesh
 * can be checked; one word in 512, so one in each page, depends on the step.
 *
 * A failure here ends the process with a sentence: there is nothing to measure any more.
 */
#ifndef BENCH_JOB_H
#define BENCH_JOB_H
#include "ckpt/ckpt.h"

#include <stdbool.h>

#define JOB_LAYERS 12u
#define JOB_LARGE (JOB_LAYERS * 8u) /* tensors, unless it is told how many */
#define JOB_TENSORS_MAX 20000u

struct job_tensor {
	uint64_t *word;	       /* local memory, NULL: the share is empty */
	uint64_t first, words; /* global position of the first word; how many */
	uint64_t seed;
	bool frozen; /* its words stay those of step 0 */
	bool finite; /* each of its FP32 elements is a number */
};

struct job_rank {
	ckpt *c;
	void *mem;
	uint64_t bytes; /* of mem */
	bool private;
	uint32_t ntensor;
	struct job_tensor *tensor; /* [ntensor] */
};

struct job_opts {
	const char *socket, *store, *name;
	uint64_t bytes; /* of the whole job, about */
	uint32_t world;
	uint32_t tensors;  /* 0: the twelve layers */
	uint32_t frozen;   /* of `tensors`, percent of the bytes that are const */
	bool private;	   /* in memory of its own, not from ckpt_alloc */
	bool replicated;   /* every rank holds all twelve layers */
	uint32_t averages; /* of the weights that ckptd keeps */
	bool finite;	   /* weights are numbers: with a NaN among them no step is averaged */
	bool resume; /* what is in memory and on disk is gone on from: no ckpt_fresh, nothing is touched */
};

/* Attach, allocate, declare; memory is touched but holds no state yet. Then, on each: job_seal. */
void job_open(const struct job_opts *o, uint32_t rank, struct job_rank *ret);
void job_seal(struct job_rank *r); /* returns when snapshots can be taken */
void job_fill(struct job_rank *r, uint64_t step);
void job_update(struct job_rank *r, uint64_t step); /* only the words that depend on the step */
void job_check(const struct job_rank *r, uint64_t step);
void job_check_update(const struct job_rank *r, uint64_t step); /* the words of job_update alone */
void job_close(struct job_rank *r);
void job_averages(ckpt *c, uint32_t n); /* before the seal */

__attribute__((format(printf, 1, 2))) _Noreturn void die(const char *fmt, ...);
void say(const char *name, uint64_t n); /* a line on stdout; bench_main.c */
#endif
