/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks.h - the processes of a job: one parent, N ranks that are its direct children, and what the
 * ranks say to each other through one anonymous shared mapping.
 *
 * Promises: no rank outlives the parent (PR_SET_PDEATHSIG, SIGKILL). When one rank fails or dies,
 * the parent kills the others, so a barrier never waits for the dead. The parent's exit status is
 * that of the first failing rank: its code, or 128 + the signal that killed it. SIGTERM and SIGINT
 * to the parent end the ranks too.
 *
 * All functions that take a rank are collective unless they say otherwise: every rank calls them,
 * in one order.
 */
#ifndef TRAINER_RANKS_H
#define TRAINER_RANKS_H
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RANKS_MAX 64

/* A rank that asks for help with an error that it cannot go on from ends with one of these; they
 * are the exit codes of ckptctl and ckptd. */
enum {
	EXIT_USAGE = 2,
	EXIT_DAMAGED = 4,    /* checkpoint bytes are wrong */
	EXIT_INCOMPLETE = 5, /* not committed */
	EXIT_MISFIT = 7,     /* the checkpoint is of another model */
	EXIT_ABSENT = 10,    /* nothing there */
	EXIT_HELD = 11,	     /* another daemon or a newer launch has it */
	EXIT_PERMISSION = 12,
	EXIT_SPACE = 13,
	EXIT_NO_DAEMON = 14,
	EXIT_TIMED_OUT = 15,
};

/* The head of the shared mapping; the rest is the caller's. */
struct ranks_page {
	pthread_barrier_t barrier;
	atomic_int first_failed;  /* 0, or 1 + the exit code of the rank that failed first */
	int64_t value[RANKS_MAX]; /* of ranks_share, between its barriers */
};

struct ranks {
	struct ranks_page *page;
	void *shared; /* the caller's shared bytes, zeroed, 64-byte aligned */
	uint32_t world;
	uint32_t me; /* valid in a rank */
};

/* The exit code for a negative errno of ckpt.h or the system: the one place that maps them. */
int exit_code_of(int r);

/* Maps the shared memory. 0 or a negative errno, message printed. */
int ranks_create(uint32_t world, size_t shared_bytes, struct ranks *ret_ranks);

/* In the parent: start the ranks, wait for all, return the exit status of the job. `body` runs in
 * each rank and returns its exit code. */
int ranks_run(struct ranks *r, int (*body)(struct ranks *r, void *arg), void *arg);

void ranks_barrier(struct ranks *r);

/* Everybody's value, by rank. The array is valid until the next collective call. */
const int64_t *ranks_share(struct ranks *r, int64_t mine);

/* Minimum over all ranks, as ckpt_opts.agree wants it; ctx is the struct ranks. */
int ranks_agree(void *ctx, uint64_t mine, uint64_t *ret_min);

/* Not collective, does not return: print the message and end the job with this code, unless another
 * rank does so already. The message is printed once, by the first. */
_Noreturn void ranks_fail(struct ranks *r, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Not collective, does not return: another rank is about to fail; wait for the parent's kill. */
_Noreturn void ranks_yield(void);
#endif
