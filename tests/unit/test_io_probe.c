/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_probe.c - what a store's file system can do is found out by doing it, and nothing is left
 * behind.
 */
#include <fcntl.h>
#include <sys/statfs.h>
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"

static int dir_make(const char *in, char path[256])
{
	(void)snprintf(path, 256, "%s/ckpt-io-probe-XXXXXX", in);
	return mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

static int count_each(void *arg, const char *name, unsigned char d_type)
{
	(void)name;
	(void)d_type;
	++*(uint32_t *)arg;
	return 0;
}

static void dir_done(int fd, const char *path)
{
	uint32_t left = 0;

	assert_int_equal(io_ops_posix.list(NULL, fd, count_each, &left), 0);
	assert_int_equal(left, 0);
	(void)close(fd);
	assert_int_equal(io_tree_remove(AT_FDCWD, path), 0);
}

static int tmp_make(char path[256])
{
	const char *tmp = getenv("TMPDIR");
	int fd = dir_make(tmp ? tmp : "/tmp", path);

	assert_true(fd >= 0);
	return fd;
}

TEST(the_temporary_directory_is_probed_and_left_clean)
{
	char path[256];
	int fd = tmp_make(path);
	struct io_probe p;
	struct ckpt_err err;
	struct statfs fs;

	assert_int_equal(io_probe(&io_ops_posix, fd, &p, &err), 0);
	print_message("%s: %s direct=%d align=%u volatile=%d\n", path, p.fs_type, p.direct, p.align,
		      p.volatile_fs);
	assert_true(p.align >= 4096 && (p.align & (p.align - 1)) == 0);
	assert_int_equal(fstatfs(fd, &fs), 0);
	if (fs.f_type == 0xef53) { /* the file system of most machines, where direct I/O works */
		assert_string_equal(p.fs_type, "ext4");
		assert_true(p.direct);
		assert_false(p.volatile_fs);
	}
	dir_done(fd, path);
}

TEST(a_file_system_in_memory_is_called_volatile)
{
	char path[256];
	int fd = dir_make("/dev/shm", path);
	struct io_probe p;
	struct statfs fs;

	if (fd < 0 || fstatfs(fd, &fs) || fs.f_type != 0x01021994) {
		print_message("skipped: /dev/shm is no tmpfs that can be written\n");
		skip();
	}
	assert_int_equal(io_probe(&io_ops_posix, fd, &p, NULL), 0);
	assert_string_equal(p.fs_type, "tmpfs");
	assert_true(p.volatile_fs);
	dir_done(fd, path);
}

/*
 * File systems that refuse O_DIRECT at open (having made the file or not), or only when it is used.
 */
enum refusal { AT_OPEN, AT_OPEN_FILE_MADE, AT_WRITE };
struct refuser {
	enum refusal how;
	uint32_t refused;
};

static int refuser_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	struct refuser *r = ctx;

	if ((flags & O_DIRECT) && r->how != AT_WRITE) {
		r->refused++;
		if (r->how == AT_OPEN_FILE_MADE)
			(void)close(io_ops_posix.open(NULL, dirfd, name, flags & ~O_DIRECT, mode));
		return -EINVAL;
	}
	return io_ops_posix.open(NULL, dirfd, name, flags, mode);
}

static int64_t refuser_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct refuser *r = ctx;

	if (r->how == AT_WRITE && (fcntl(fd, F_GETFL) & O_DIRECT)) {
		r->refused++;
		return -EINVAL;
	}
	return io_ops_posix.pwrite(NULL, fd, buf, len, off);
}

TEST(where_o_direct_is_refused_the_store_is_buffered)
{
	for (enum refusal how = AT_OPEN; how <= AT_WRITE; how++) {
		struct refuser r = { .how = how };
		struct io_ops ops = io_ops_posix;
		struct io_probe p;
		char path[256];
		int fd = tmp_make(path);

		ops.ctx = &r;
		ops.open = refuser_open;
		ops.pwrite = refuser_pwrite;
		assert_int_equal(io_probe(&ops, fd, &p, NULL), 0);
		assert_true(r.refused > 0 || how == AT_WRITE);
		assert_false(p.direct);
		assert_int_equal(p.align, 4096);
		dir_done(fd, path);
	}
}

static int reserving; /* what fallocate says */

static int reserving_fallocate(void *ctx, int fd, uint64_t len)
{
	(void)ctx;
	(void)fd;
	(void)len;
	return reserving;
}

TEST(whether_room_can_be_reserved_is_told)
{
	struct io_ops ops = io_ops_posix;
	struct io_probe p;
	char path[256];
	int fd = tmp_make(path);

	ops.fallocate = reserving_fallocate;
	for (int i = 0; i < 4; i++) {
		struct refuser r = { .how = AT_OPEN };

		reserving = i % 2 ? -EOPNOTSUPP : 0;
		ops.open = i < 2 ? io_ops_posix.open : refuser_open;
		ops.ctx = &r;
		assert_int_equal(io_probe(&ops, fd, &p, NULL), 0);
		assert_int_equal(p.reserves, i % 2 == 0);
	}
	dir_done(fd, path);
}

/* Reads come back wrong: a file system that must not be trusted with a checkpoint. */
static int64_t wrong_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	int64_t n = io_ops_posix.pread(NULL, fd, buf, len, off);

	(void)ctx;
	if (n > 0)
		((uint8_t *)buf)[n - 1] ^= 1;
	return n;
}

TEST(a_file_system_that_reads_back_other_bytes_is_an_error)
{
	struct io_ops ops = io_ops_posix;
	struct ckpt_err err;
	struct io_probe p;
	char path[256];
	int fd = tmp_make(path);

	ops.pread = wrong_pread;
	assert_int_equal(io_probe(&ops, fd, &p, &err), -EIO);
	dir_done(fd, path);
}

TEST(every_failing_call_is_reported_and_leaves_no_file)
{
	const int errnos[] = { -EIO, -ENOSPC, -EACCES };
	struct io_faults f;
	struct ckpt_err err;
	struct io_probe p;
	char path[256];
	int fd = tmp_make(path);

	io_faults_init(&f, &io_ops_posix);
	for (size_t e = 0; e < ARRAY_LEN(errnos); e++) {
		for (uint64_t n = 1;; n++) {
			int rc;

			io_faults_fail(&f, IO_ON_ANY & ~IO_ON_UNLINK, n, errnos[e], false);
			rc = io_probe(&f.ops, fd, &p, &err);
			if (!io_faults_hit(&f)) {
				assert_int_equal(rc, 0);
				assert_true(n > 3);
				break;
			}
			assert_int_equal(rc, errnos[e]);
			assert_int_equal(err.code, errnos[e]);
			assert_non_null(strstr(err.msg, "check that the store is writable"));
		}
	}
	dir_done(fd, path);
}
