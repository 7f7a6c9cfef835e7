/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_pages.c - large memory: on the bounds that huge pages need, shared where it says so,
 * and with its contents when it is made resident.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include "ckpt/base/pages.h"
#include "tests/lib/unit.h"

static bool resident(uint8_t *p, uint64_t bytes)
{
	unsigned char in[4096];
	uint64_t n = div_up(bytes, 4096);

	assert_true(n <= sizeof in);
	assert_int_equal(mincore(p, bytes, in), 0);
	for (uint64_t i = 0; i < n; i++)
		if (!(in[i] & 1))
			return false;
	return true;
}

TEST(what_is_populated_keeps_its_contents_and_is_in_memory)
{
	const uint64_t sizes[] = { 1, 4096, PAGES_HUGE - 1, PAGES_HUGE, 3 * PAGES_HUGE + 4096 };

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		int fd = memfd_create("pages", MFD_CLOEXEC);
		uint8_t *p, *other, want = 1;
		uint64_t n = sizes[i];
		void *map;

		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, (off_t)n), 0);
		assert_int_equal(pages_map(fd, n, PROT_READ | PROT_WRITE, &map), 0);
		p = map;
		assert_int_equal(pages_map(fd, n, PROT_READ, &map), 0);
		other = map;
		if (n >= PAGES_HUGE)
			assert_int_equal((uintptr_t)p % PAGES_HUGE, 0);
		for (uint64_t at = 0; at < n; at += 70000)
			p[at] = want++;
		assert_int_equal(pages_populate(p, n), 0);
		assert_true(resident(p, n));
		want = 1;
		for (uint64_t at = 0; at < n; at += 70000)
			assert_int_equal(p[at], want++);
		want = 1;
		for (uint64_t at = 0; at < n; at++)
			assert_int_equal(other[at], at % 70000 ? 0 : want++);
		munmap(p, n);
		munmap(other, n);
		close(fd);
	}
}

TEST(what_is_committed_is_in_memory_and_more_than_there_is_is_refused)
{
	const uint64_t n = 2 * PAGES_HUGE + 4096;
	int fd = memfd_create("pages", MFD_CLOEXEC);
	void *p;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)n), 0);
	assert_int_equal(pages_map(fd, n, PROT_READ | PROT_WRITE, &p), 0);
	assert_int_equal(pages_commit(fd, p, pages_available()), -ENOMEM);
	assert_int_equal(pages_commit(fd, p, UINT64_MAX), -ENOMEM);
	assert_false(resident(p, n));
	assert_int_equal(pages_commit(fd, p, n), 0);
	assert_true(resident(p, n));
	munmap(p, n);
	close(fd);
}

/* Memory that the kernel cannot give, here for want of a file under it: an error of who uses it,
 * later. */
TEST(what_cannot_be_had_is_no_death)
{
	int fd = memfd_create("pages", MFD_CLOEXEC);
	void *map;

	assert_int_equal(ftruncate(fd, (off_t)PAGES_HUGE), 0);
	assert_int_equal(pages_map(fd, 3 * PAGES_HUGE, PROT_READ | PROT_WRITE, &map), 0);
	assert_int_equal(pages_populate(map, 3 * PAGES_HUGE), 0);
	assert_true(resident(map, PAGES_HUGE));
	munmap(map, 3 * PAGES_HUGE);
	close(fd);
}

TEST(new_memory_is_zero_and_on_a_bound)
{
	uint8_t *p = pages_new(PAGES_HUGE + 1);

	assert_non_null(p);
	assert_int_equal((uintptr_t)p % PAGES_HUGE, 0);
	for (uint64_t i = 0; i < 2 * PAGES_HUGE; i += 4096)
		assert_int_equal(p[i], 0);
	p[2 * PAGES_HUGE - 1] = 1; /* rounded up */
	pages_free(p, PAGES_HUGE + 1);
	pages_free(NULL, 5);
}

TEST(sizes_that_cannot_be_are_refused)
{
	void *p;

	assert_null(pages_new(0));
	assert_null(pages_new(UINT64_MAX));
	assert_null(pages_new((uint64_t)1 << 60));
	assert_int_equal(pages_map(-1, 0, PROT_READ, &p), -EINVAL);
	assert_int_equal(pages_map(-1, UINT64_MAX, PROT_READ, &p), -EINVAL);
	assert_int_equal(pages_map(-1, 4 * PAGES_HUGE, PROT_READ, &p), -EBADF);
}
