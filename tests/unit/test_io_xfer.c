/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_xfer.c - what an answer of the kernel means for a request, without an engine: every
 * answer can be given here, also those that a ring brings and no table can force.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include "ckpt/io/io_xfer.h"
#include "tests/lib/unit.h"

#define BLOCK 4096u

static uint8_t *mem; /* 16 blocks */

/* A file that has a size and no name. -1 with O_DIRECT where that is refused. */
static int nameless(int flags)
{
	char path[256];
	const char *tmp = getenv("TMPDIR");
	int fd;

	(void)snprintf(path, sizeof path, "%s/ckpt-io-xfer-%d", tmp ? tmp : "/tmp", (int)getpid());
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
	if (unlink(path) && errno != ENOENT)
		fail();
	if (fd >= 0)
		assert_int_equal(ftruncate(fd, 16 * BLOCK), 0);
	return fd;
}

static int direct_or_skip(void)
{
	int fd = nameless(O_DIRECT);

	if (fd < 0) {
		print_message("skipped: no O_DIRECT here\n");
		skip();
	}
	return fd;
}

static struct io_req request(int fd, bool write, uint32_t blocks)
{
	return (struct io_req){
		.fd = fd, .write = write, .buf = mem, .len = blocks * BLOCK, .off = BLOCK
	};
}

static void asks(struct io_xfer *x, uint64_t from, uint64_t len)
{
	struct io_span s = io_xfer_next(x);

	assert_ptr_equal(s.buf, (uint8_t *)x->req->buf + from);
	assert_int_equal(s.off, x->req->off + from);
	assert_int_equal(s.len, len);
}

TEST(a_refusal_of_o_direct_is_asked_again_without_it_and_once)
{
	const int eno[] = { EINVAL, EOPNOTSUPP };

	for (uint32_t i = 0; i < 4; i++) {
		int fd = direct_or_skip();
		struct io_req r = request(fd, i / 2, 8);
		struct io_xfer x;

		assert_true(io_xfer_begin(&x, &r));
		asks(&x, 0, 8 * BLOCK);
		assert_false(io_xfer_took(&x, -eno[i % 2]));
		assert_false(io_fd_direct(fd));
		asks(&x, 0, 8 * BLOCK);
		assert_true(io_xfer_took(&x, -eno[i % 2]));
		assert_int_equal(r.res, -eno[i % 2]);
		(void)close(fd);
	}
}

/* Blocks of the file that the page cache has. */
static uint32_t cached(int fd)
{
	void *map = mmap(NULL, 16 * BLOCK, PROT_READ, MAP_SHARED, fd, 0);
	unsigned char in[16];
	uint32_t n = 0;

	assert_true(map != MAP_FAILED);
	assert_int_equal(mincore(map, 16 * BLOCK, in), 0);
	for (uint32_t i = 0; i < 16; i++)
		n += in[i] & 1;
	assert_int_equal(munmap(map, 16 * BLOCK), 0);
	return n;
}

/* What is there after an fsync that failed is not what the disk has. */
TEST(a_reader_that_is_refused_o_direct_does_not_get_what_the_page_cache_had)
{
	int fd = direct_or_skip(), through;
	struct io_req r = request(fd, false, 8);
	struct io_xfer x;
	struct statfs fs;
	char path[64];

	assert_int_equal(fstatfs(fd, &fs), 0);
	if (fs.f_type == 0x01021994 || fs.f_type == 0x858458f6 ||
	    posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL)) {
		print_message("skipped: the page cache forgets nothing here\n");
		skip();
	}
	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	through = open(path, O_RDWR | O_CLOEXEC);
	assert_true(through >= 0);
	assert_int_equal(pwrite(through, mem, 16 * BLOCK, 0), 16 * BLOCK);
	assert_int_equal(io_ops_posix.sync(NULL, through), 0);
	assert_int_equal(cached(fd), 16);
	assert_true(io_xfer_begin(&x, &r));
	asks(&x, 0, 8 * BLOCK);
	assert_false(io_xfer_took(&x, -EINVAL));
	assert_false(io_fd_direct(fd));
	assert_int_equal(cached(fd), 0);
	(void)close(through);
	(void)close(fd);
}

TEST(other_errors_and_mistakes_leave_o_direct_alone)
{
	const int eno[] = { EIO, ENOSPC, EDQUOT, ENOMEM, EBADF, EFAULT, EFBIG };
	int fd = direct_or_skip();
	struct io_xfer x;
	struct io_req r;

	for (uint32_t i = 0; i < ARRAY_LEN(eno); i++) {
		r = request(fd, true, 8);
		assert_true(io_xfer_begin(&x, &r));
		asks(&x, 0, 8 * BLOCK);
		assert_true(io_xfer_took(&x, -eno[i]));
		assert_int_equal(r.res, -eno[i]);
	}
	for (uint32_t i = 0; i < 3; i++) { /* buffer, length, offset */
		r = request(fd, true, 8);
		r.buf = mem + (i == 0);
		r.len -= i == 1;
		r.off += i == 2 ? 512 : 0;
		assert_true(io_xfer_begin(&x, &r));
		asks(&x, 0, r.len);
		assert_true(io_xfer_took(&x, -EINVAL));
		assert_int_equal(r.res, -EINVAL);
	}
	assert_true(io_fd_direct(fd));
	(void)close(fd);
}

/* Another thread's transfer of the same file was refused: this one was asked from an aligned offset
 * below what it had, and must not count the bytes in between twice. */
TEST(what_others_do_to_the_descriptor_does_not_change_the_count)
{
	int fd = direct_or_skip();
	struct io_req r = request(fd, true, 8);
	struct io_xfer x;

	assert_true(io_xfer_begin(&x, &r));
	asks(&x, 0, 8 * BLOCK);
	assert_false(io_xfer_took(&x, 2 * BLOCK + 512));
	asks(&x, 2 * BLOCK, 6 * BLOCK);
	assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT), 0);
	assert_false(io_xfer_took(&x, BLOCK));
	asks(&x, 3 * BLOCK, 5 * BLOCK);
	assert_false(io_xfer_took(&x, -EINVAL)); /* it had begun as direct: once more */
	asks(&x, 3 * BLOCK, 5 * BLOCK);
	assert_false(io_xfer_took(&x, 100));
	asks(&x, 3 * BLOCK + 100, 5 * BLOCK - 100); /* buffered now: to the byte */
	assert_true(io_xfer_took(&x, 5 * BLOCK - 100));
	assert_int_equal(r.res, 8 * BLOCK);
	(void)close(fd);
}

TEST(interruptions_are_counted_in_a_row_and_end)
{
	int fd = nameless(0);
	struct io_req r = request(fd, true, 8);
	struct io_xfer x;

	assert_true(fd >= 0);
	assert_true(io_xfer_begin(&x, &r));
	for (uint32_t block = 0; block < 7; block++) {
		for (uint32_t i = 0; i < IO_XFER_RETRIES_MAX; i++) {
			asks(&x, block * BLOCK, (8 - block) * BLOCK);
			assert_false(io_xfer_took(&x, i % 2 ? -EAGAIN : -EINTR));
		}
		asks(&x, block * BLOCK, (8 - block) * BLOCK);
		assert_false(io_xfer_took(&x, BLOCK));
	}
	for (uint32_t i = 0; i < IO_XFER_RETRIES_MAX; i++) {
		asks(&x, 7 * BLOCK, BLOCK);
		assert_false(io_xfer_took(&x, -EAGAIN));
	}
	asks(&x, 7 * BLOCK, BLOCK);
	assert_true(io_xfer_took(&x, -EAGAIN));
	assert_int_equal(r.res, -EAGAIN);
	(void)close(fd);
}

TEST(nothing_written_is_asked_once_more_then_no_space)
{
	int fd = nameless(0);
	struct io_req r = request(fd, true, 2);
	struct io_xfer x;

	assert_true(io_xfer_begin(&x, &r));
	asks(&x, 0, 2 * BLOCK);
	assert_false(io_xfer_took(&x, 0));
	asks(&x, 0, 2 * BLOCK);
	assert_false(io_xfer_took(&x, BLOCK)); /* that was a hiccup, and is forgotten */
	asks(&x, BLOCK, BLOCK);
	assert_false(io_xfer_took(&x, 0));
	asks(&x, BLOCK, BLOCK);
	assert_true(io_xfer_took(&x, 0));
	assert_int_equal(r.res, -ENOSPC);
	(void)close(fd);
}

TEST(a_request_of_many_gigabytes_is_asked_in_parts)
{
	int fd = nameless(0);
	struct io_req r = { .fd = fd, .write = true, .buf = mem, .len = 3 * GIB + 5 };
	struct io_xfer x;

	assert_true(io_xfer_begin(&x, &r));
	for (uint64_t i = 0; i < 3; i++) {
		asks(&x, i * GIB, GIB);
		assert_false(io_xfer_took(&x, GIB));
	}
	asks(&x, 3 * GIB, 5);
	assert_true(io_xfer_took(&x, 5));
	assert_int_equal(r.res, 3 * GIB + 5);
	r.len = UINT64_MAX;
	assert_false(io_xfer_begin(&x, &r));
	assert_int_equal(r.res, -EINVAL);
	(void)close(fd);
}

static int mem_make(void **state)
{
	(void)state;
	mem = aligned_alloc(BLOCK, 16 * BLOCK);
	return mem == NULL;
}

static int mem_free(void **state)
{
	(void)state;
	free(mem);
	return 0;
}

UNIT(.group_setup = mem_make, .group_teardown = mem_free);
