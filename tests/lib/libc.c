/* SPDX-License-Identifier: Apache-2.0 */
/* libc.c - see libc.h. */
#include "tests/lib/libc.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

struct no_memory no_memory = { .left = -1 };
struct no_random no_random = { .same = -1 };
struct libc_instead libc_instead;

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

bool no_memory_now(void)
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

ssize_t getrandom(void *buf, size_t n, unsigned flags)
{
	if (no_random.fails_at && --no_random.fails_at == 0) {
		no_random.failed++;
		errno = ENOSYS;
		return -1;
	}
	if (no_random.same < 0 && libc_instead.getrandom)
		return libc_instead.getrandom(buf, n, flags);
	if (no_random.same < 0)
		return syscall(SYS_getrandom, buf, n, flags);
	memset(buf, no_random.same, n);
	return (ssize_t)n;
}

int libc_no_nap(const struct timespec *want, struct timespec *left)
{
	(void)want;
	(void)left;
	return 0;
}

int libc_fixed_time(clockid_t id, struct timespec *ret)
{
	if (id != CLOCK_REALTIME)
		return (int)syscall(SYS_clock_gettime, id, ret);
	*ret = (struct timespec){ .tv_sec = 1800000000 };
	return 0;
}

int nanosleep(const struct timespec *want, struct timespec *left)
{
	if (libc_instead.nanosleep)
		return libc_instead.nanosleep(want, left);
	return (int)syscall(SYS_nanosleep, want, left);
}

int clock_gettime(clockid_t id, struct timespec *ret)
{
	if (libc_instead.clock_gettime)
		return libc_instead.clock_gettime(id, ret);
	return (int)syscall(SYS_clock_gettime, id, ret);
}

int posix_fadvise(int fd, off_t at, off_t bytes, int advice)
{
	if (libc_instead.posix_fadvise)
		return libc_instead.posix_fadvise(fd, at, bytes, advice);
	return syscall(SYS_fadvise64, fd, at, bytes, advice) < 0 ? errno : 0;
}

uid_t geteuid(void)
{
	return libc_instead.geteuid ? libc_instead.geteuid() : (uid_t)syscall(SYS_geteuid);
}

int getpwuid_r(uid_t uid, struct passwd *ret, char *buf, size_t bytes, struct passwd **found)
{
	static int (*real)(uid_t, struct passwd *, char *, size_t, struct passwd **);

	if (libc_instead.getpwuid_r)
		return libc_instead.getpwuid_r(uid, ret, buf, bytes, found);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "getpwuid_r");
	return real(uid, ret, buf, bytes, found);
}
