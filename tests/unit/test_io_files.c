/* SPDX-License-Identifier: Apache-2.0 */
/* test_io_files.c - a thousand files, few descriptors: each is opened when it is needed, and what
 * it was. */
#include "ckpt/io/io_files.h"
#include "ckpt/io/io_source.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"
#include <sys/resource.h>

#define FILES 600u

static char path[256], text[FILES][16];
static const char *name[FILES + 1];
static int at;

/* Descriptors of regular files, counted where they are opened and closed. */
static struct counting {
	uint32_t now, most, opens, limit, refused;
} counted;

static int open_counted(void *ctx, int dirfd, const char *file, int flags, uint32_t mode)
{
	int fd;

	if (counted.limit && counted.now >= counted.limit) {
		counted.refused++;
		return -EMFILE;
	}
	fd = io_ops_posix.open(ctx, dirfd, file, flags, mode);
	counted.now += fd >= 0;
	counted.opens += fd >= 0;
	counted.most = MAX(counted.most, counted.now);
	return fd;
}

static int close_counted(void *ctx, int fd)
{
	counted.now--;
	return io_ops_posix.close(ctx, fd);
}

static struct io_ops ops;

static int files_put(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	(void)snprintf(path, sizeof path, "%s/ckpt-files-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(path))
		return -1;
	at = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (uint32_t i = 0; i < FILES; i++) {
		int fd;

		(void)snprintf(text[i], sizeof text[i], "file %04u", i);
		name[i] = text[i];
		fd = openat(at, name[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || write(fd, text[i], 9) != 9 || close(fd))
			return -1;
	}
	ops = io_ops_posix;
	ops.open = open_counted;
	ops.close = close_counted;
	counted = (struct counting){ 0 };
	return 0;
}

static int files_remove(void **state)
{
	(void)state;
	(void)close(at);
	return io_tree_remove(AT_FDCWD, path);
}

static void read_all(struct io_files *f, uint32_t from, uint32_t by)
{
	for (uint32_t k = 0; k < FILES; k++) {
		uint32_t i = (from + k * by) % FILES;
		int fd = io_files_take(f, i);
		char got[10] = { 0 };

		assert_true(fd >= 0);
		assert_int_equal(pread(fd, got, 9, 0), 9);
		assert_string_equal(got, text[i]);
		io_files_give(f, i);
	}
}

TEST(many_files_are_read_with_few_descriptors)
{
	struct io_files *f;

	assert_int_equal(io_files_make(&ops, at, name, FILES, 0, false, &f), 0);
	assert_int_equal(counted.opens, 0);
	read_all(f, 0, 1);
	read_all(f, 7, 131);
	assert_true(counted.now <= IO_FILES_MAX);
	assert_true(counted.most <= IO_FILES_MAX + 1);
	assert_true(counted.now > 10);
	io_files_free(f);
	assert_int_equal(counted.now, 0);
	io_files_free(NULL);
}

TEST(a_process_that_may_have_few_descriptors_has_fewer_open)
{
	struct rlimit was, few;
	struct io_files *f;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	few = was;
	few.rlim_cur = 64;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(io_files_make(&ops, at, name, FILES, 0, false, &f), 0);
	read_all(f, 0, 1);
	assert_int_equal(counted.now, 16);
	io_files_free(f);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
}

TEST(where_the_kernel_gives_no_more_those_that_nobody_has_are_closed)
{
	struct io_files *f;
	int first;

	counted.limit = 9;
	assert_int_equal(io_files_make(&ops, at, name, FILES, 0, false, &f), 0);
	first = io_files_take(f, 3);
	assert_true(first >= 0);
	read_all(f, 0, 1);
	assert_true(counted.refused > 0 && counted.refused < 20);
	assert_int_equal(io_files_take(f, 3), first); /* it stayed */
	io_files_give(f, 3);
	io_files_give(f, 3);
	for (uint32_t i = 0; i < 4; i++)
		assert_true(io_files_take(f, i) >= 0);
	assert_int_equal(io_files_take(f, 5), -EAGAIN);
	io_files_give(f, 2);
	assert_true(io_files_take(f, 5) >= 0);
	for (uint32_t i = 0; i < 4; i++)
		io_files_give(f, i == 2 ? 5 : i);
	io_files_free(f);
	assert_int_equal(counted.now, 0);
	/* Others have them all. */
	counted.limit = 1;
	counted.now = 1;
	assert_int_equal(io_files_make(&ops, at, name, FILES, 0, false, &f), 0);
	assert_int_equal(io_files_take(f, 0), -EMFILE);
	io_files_free(f);
}

TEST(what_is_no_regular_file_is_refused_and_nothing_waits)
{
	struct io_files *f;

	for (uint32_t direct = 0; direct < 2; direct++) {
		const char *is[] = { "none", "fifo", "link", "dir", "../x", NULL, "file" };

		if (!direct)
			assert_int_equal(mkfifoat(at, "fifo", 0600) | mkdirat(at, "dir", 0700) |
						 symlinkat("file 0001", at, "link") |
						 linkat(at, "file 0000", at, "file", 0),
					 0);
		assert_int_equal(io_files_make(&ops, at, is, 7, 0, direct, &f), 0);
		assert_int_equal(io_files_take(f, 0), -ENOENT);
		assert_int_equal(io_files_take(f, 1), -EINVAL);
		assert_int_equal(io_files_take(f, 2), -ELOOP);
		assert_int_equal(io_files_take(f, 3), -EISDIR);
		assert_int_equal(io_files_take(f, 4), -EINVAL);
		assert_int_equal(io_files_take(f, 5), -ENOENT);
		assert_true(io_files_take(f, 6) >= 0);
		io_files_give(f, 6);
		io_files_free(f);
		assert_int_equal(io_files_make(&io_ops_posix, at, is, 7, SOURCE_LINKS, direct, &f),
				 0);
		assert_int_equal(io_files_take(f, 1), -EINVAL);
		assert_true(io_files_take(f, 2) >= 0);
		io_files_give(f, 2);
		io_files_free(f);
	}
	assert_int_equal(counted.now, 0);
}

TEST(a_file_that_was_replaced_while_it_was_closed_is_not_the_same)
{
	struct io_files *f;

	assert_int_equal(io_files_make(&ops, at, name, FILES, 0, false, &f), 0);
	read_all(f, 0, 1); /* file 0 is closed by now */
	assert_int_equal(renameat(at, name[1], at, name[0]), 0);
	assert_int_equal(io_files_take(f, 0), -ESTALE);
	assert_int_equal(io_files_take(f, 1), -ENOENT);
	io_files_free(f);
	assert_int_equal(counted.now, 0);
}

UNIT(.setup = files_put, .teardown = files_remove);
