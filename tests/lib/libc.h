/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc.h - some functions of the C library as a test decides. A program that is linked with libc.c
 * (the Makefile names them) calls these instead; where a test asks for nothing, they do what the C
 * library's do. Under a sanitizer, malloc and its kin go on to the sanitizer's own, so that what an
 * error path leaks or uses after it was freed is seen.
 */
#ifndef TESTS_LIB_LIBC_H
#define TESTS_LIB_LIBC_H
#include <pwd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* --- malloc and its kin fail; the calls of all threads are counted --- */
extern struct no_memory {
	_Atomic int64_t left; /* calls until the first that fails; < 0: none does */
	_Atomic bool sticky;  /* and all after it */
	_Atomic uint64_t failed;
} no_memory;

/* Does the call fail that is made now? Counts it, sets errno. */
bool no_memory_now(void);
/* The n-th call, 0 being the next, fails. */
static inline void no_memory_from(uint64_t n, bool sticky)
{
	atomic_store(&no_memory.failed, 0);
	atomic_store(&no_memory.sticky, sticky);
	atomic_store(&no_memory.left, (int64_t)n);
}

/* All is well again: how many failed. */
static inline uint64_t no_memory_end(void)
{
	atomic_store(&no_memory.left, -1);
	return atomic_load(&no_memory.failed);
}

/* --- getrandom fails, or every call gives the same bytes, so that fresh names turn out taken. One
 * thread --- */
extern struct no_random {
	uint64_t fails_at; /* calls until the one that fails; 0: none does */
	uint64_t failed;
	int same; /* the byte that all are; -1: random ones */
} no_random;

/* The n-th call from now on, from 1, fails. */
static inline void no_random_at(uint64_t n)
{
	no_random.fails_at = n;
	no_random.failed = 0;
}

/* All is well again: how many failed. */
static inline uint64_t no_random_end(void)
{
	no_random.fails_at = 0;
	no_random.same = -1;
	return no_random.failed;
}

/* --- what a test puts in the place of others, in its setup. NULL: the C library's --- */
extern struct libc_instead {
	int (*nanosleep)(const struct timespec *want, struct timespec *left);
	int (*clock_gettime)(clockid_t id, struct timespec *ret);
	ssize_t (*getrandom)(void *buf, size_t n, unsigned flags);
	int (*posix_fadvise)(int fd, off_t at, off_t bytes, int advice);
	uid_t (*geteuid)(void);
	int (*getpwuid_r)(uid_t uid, struct passwd *ret, char *buf, size_t bytes,
			  struct passwd **found);
} libc_instead;

/* For who waits for the other one, which is the same thread: it waits in vain, but not for long. */
int libc_no_nap(const struct timespec *want, struct timespec *left);
/* The time of day is 1800000000 s; other clocks run. */
int libc_fixed_time(clockid_t id, struct timespec *ret);
#endif
