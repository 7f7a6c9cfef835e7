/* SPDX-License-Identifier: Apache-2.0 */
/*
 * no_memory.h - malloc and its kin as a test decides: the n-th call from now on fails, once or from
 * there on. Include it into one file of a test program; it takes the place of the C library's names.
 * Under AddressSanitizer the calls go on to its own, so that what an error path leaks or uses after
 * it was freed is seen. Calls of all threads are counted.
 */
#ifndef TESTS_NO_MEMORY_H
#define TESTS_NO_MEMORY_H
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define REAL(name) __interceptor_##name
#elif defined(__SANITIZE_THREAD__)
#define REAL(name) __interceptor_##name
#else
#define REAL(name) __libc_##name
#endif
void *REAL(malloc)(size_t n);
void *REAL(calloc)(size_t n, size_t m);
void *REAL(realloc)(void *p, size_t n);
void *REAL(memalign)(size_t a, size_t n);

static struct {
	_Atomic int64_t left; /* calls until the first that fails; < 0: none does */
	_Atomic bool sticky;  /* and all after it */
	_Atomic uint64_t failed;
} no_memory = { .left = -1 };

static bool no_memory_now(void)
{
	int64_t left = atomic_load_explicit(&no_memory.left, memory_order_relaxed);

	if (left < 0)
		return false;
	left = atomic_fetch_sub(&no_memory.left, 1);
	if (left > 0)
		return false;
	if (left == 0 || atomic_load(&no_memory.sticky)) {
		if (atomic_load(&no_memory.sticky))
			atomic_store(&no_memory.left, 0);
		atomic_fetch_add(&no_memory.failed, 1);
		errno = ENOMEM;
		return true;
	}
	return false;
}

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

void *malloc(size_t n)
{
	return no_memory_now() ? NULL : REAL(malloc)(n);
}

void *calloc(size_t n, size_t m)
{
	return no_memory_now() ? NULL : REAL(calloc)(n, m);
}

void *realloc(void *p, size_t n)
{
	return no_memory_now() ? NULL : REAL(realloc)(p, n);
}

void *reallocarray(void *p, size_t n, size_t m)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, m, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(p, bytes);
}

void *aligned_alloc(size_t a, size_t n)
{
	return no_memory_now() ? NULL : REAL(memalign)(a, n);
}

int posix_memalign(void **ret, size_t a, size_t n)
{
	void *p = no_memory_now() ? NULL : REAL(memalign)(a, n);

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}
#endif
