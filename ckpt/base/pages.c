/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - see pages.h. Called by the client and the daemon for what they share, and by move for
 * its buffers. Invariant: nothing but address space is spent until memory is touched.
 */
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Address space of whole pages on a bound of huge ones. */
static uint8_t *room_make(uint64_t whole)
{
	uint8_t *room = mmap(NULL, whole + PAGES_HUGE, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
		*base;

	if (room == MAP_FAILED)
		return NULL;
	base = (uint8_t *)align_up((uintptr_t)room, PAGES_HUGE);
	if (base > room)
		(void)munmap(room, (size_t)(base - room));
	(void)munmap(base + whole, (size_t)(room + PAGES_HUGE - base));
	return base;
}

static int map_at_bound(int fd, uint64_t bytes, int prot, int flags, void **ret)
{
	uint64_t whole = align_up(bytes, (uint64_t)4096);
	uint8_t *base = room_make(whole);

	if (!base)
		return -errno;
	if (mmap(base, bytes, prot, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int rc = -errno;

		(void)munmap(base, whole);
		return rc;
	}
	(void)madvise(base, bytes, MADV_HUGEPAGE);
	*ret = base;
	return 0;
}

int pages_map(int fd, uint64_t bytes, int prot, void **ret)
{
	if (bytes == 0 || bytes > INT64_MAX - 2 * PAGES_HUGE)
		return -EINVAL;
	if (bytes >= PAGES_HUGE)
		return map_at_bound(fd, bytes, prot, MAP_SHARED, ret);
	*ret = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	return *ret == MAP_FAILED ? -errno : 0;
}

void *pages_new(uint64_t bytes)
{
	void *p;

	if (bytes == 0 || bytes > INT64_MAX - 2 * PAGES_HUGE)
		return NULL;
	return map_at_bound(-1, align_up(bytes, PAGES_HUGE), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, &p)
		       ? NULL
		       : p;
}

void pages_free(void *p, uint64_t bytes)
{
	if (p)
		(void)munmap(p, align_up(bytes, PAGES_HUGE));
}

/*
 * One small page in each place of a huge one, and the kernel (6.1) makes huge ones of them, also of
 * shared memory where shmem_enabled says never. Not by touching: where there is no memory for the
 * page (vm.overcommit_memory=2), that is death by SIGBUS.
 */
static void pages_collapse(uint8_t *p, uint64_t bytes)
{
	uint8_t *from = (uint8_t *)align_up((uintptr_t)p, PAGES_HUGE);
	uint64_t skip = (uint64_t)(from - p);
	uint64_t whole = bytes > skip ? (bytes - skip) / PAGES_HUGE * PAGES_HUGE : 0;

	for (uint64_t at = 0; at < whole; at += PAGES_HUGE)
		if (madvise(from + at, 4096, MADV_POPULATE_WRITE))
			return;
	if (whole)
		(void)madvise(from, whole, MADV_COLLAPSE);
}

int pages_populate(void *p, uint64_t bytes)
{
	int rc;

	pages_collapse(p, bytes);
	rc = madvise(p, bytes, MADV_POPULATE_WRITE) ? -errno : 0;
	return rc == -ENOMEM ? rc : 0;
}

uint64_t pages_available(void)
{
	char line[128];
	uint64_t kib = UINT64_MAX / 1024;
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib == UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
}

int pages_commit(int fd, void *p, uint64_t bytes)
{
	const uint64_t step = 64 * MIB, spare = 64 * MIB;
	uint64_t there = pages_available();

	if (bytes > there || spare > there - bytes)
		return -ENOMEM;
	for (uint64_t at = 0; at < bytes; at += step) {
		uint64_t n = MIN(step, bytes - at);

		/* First by touching, for that gives huge pages; what a kernel before 5.14 does not
		 * touch is allocated all the same, where a sandbox lets it be. */
		if (pages_populate((uint8_t *)p + at, n) < 0)
			return -ENOMEM;
		if (fallocate(fd, 0, (off_t)at, (off_t)n) < 0 && errno != ENOSYS &&
		    errno != EOPNOTSUPP && errno != EPERM)
			return errno == ENOSPC ? -ENOMEM : -errno;
	}
	return 0;
}
