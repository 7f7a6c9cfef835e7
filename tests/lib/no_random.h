/* SPDX-License-Identifier: Apache-2.0 */
/*
 * no_random.h - getrandom as a test decides: it fails, or every call gives the same bytes, so that fresh
 * names turn out taken. Include it into one file of a test program; it takes the place of the C library's
 * name. One thread.
 */
#ifndef TESTS_NO_RANDOM_H
#define TESTS_NO_RANDOM_H
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static struct {
	uint64_t fails_at; /* calls until the one that fails; 0: none does */
	uint64_t failed;
	int same; /* the byte that all are; -1: random ones */
} no_random = { .same = -1 };

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

ssize_t getrandom(void *buf, size_t n, unsigned flags)
{
	if (no_random.fails_at && --no_random.fails_at == 0) {
		no_random.failed++;
		errno = ENOSYS;
		return -1;
	}
	if (no_random.same < 0)
		return syscall(SYS_getrandom, buf, n, flags);
	memset(buf, no_random.same, n);
	return (ssize_t)n;
}
#endif
