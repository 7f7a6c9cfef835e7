/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_ops.c - the kernel's table and the whole-buffer helpers: names stay beneath, nothing is
 * replaced, short transfers are continued.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include "tests/lib/deny_syscall.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"

#define OPS (&io_ops_posix)

struct room {
	char path[256];
	int dirfd;
};

static int room_open(void **state)
{
	struct room *m = calloc(1, sizeof(*m));
	const char *tmp = getenv("TMPDIR");

	(void)snprintf(m->path, sizeof(m->path), "%s/ckpt-io-ops-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(m->path))
		return -1;
	m->dirfd = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*state = m;
	return m->dirfd < 0;
}

static int room_close(void **state)
{
	cleanup_free struct room *m = *state;
	int rc = io_tree_remove(AT_FDCWD, m->path);

	(void)close(m->dirfd);
	return rc;
}

/* The number of the line that does not hold, so that it runs in a child too. */
#define HOLDS(x)                                                              \
	do {                                                                  \
		if (!(x)) {                                                   \
			(void)fprintf(stderr, "line %d: %s\n", __LINE__, #x); \
			return 1;                                             \
		}                                                             \
	} while (0)

static int file_make(int dirfd, const char *name, const char *text)
{
	int fd = OPS->open(NULL, dirfd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	if (fd < 0)
		return fd;
	if (io_pwrite_all(OPS, fd, text, strlen(text), 0))
		return -EIO;
	return OPS->close(NULL, fd);
}

static bool file_is(int dirfd, const char *name, const char *text)
{
	char got[64] = { 0 };
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof(got) - 1);

	if (fd >= 0)
		(void)close(fd);
	return n >= 0 && strcmp(got, text) == 0;
}

static int opened(int dirfd, const char *name, int flags)
{
	int fd = OPS->open(NULL, dirfd, name, flags, 0600);

	return fd < 0 ? fd : OPS->close(NULL, fd);
}

static int paths_check(void *arg)
{
	int at = *(int *)arg;

	HOLDS(OPS->mkdir(NULL, at, "a", 0700) == 0);
	HOLDS(OPS->mkdir(NULL, at, "a/b", 0700) == 0);
	HOLDS(file_make(at, "a/b/f", "deep") == 0);
	HOLDS(file_is(at, "a/b/f", "deep"));
	HOLDS(symlinkat("a", at, "dirlink") == 0 && symlinkat("f", at, "a/b/link") == 0);
	HOLDS(opened(at, "a/b/f", O_RDONLY) == 0);
	HOLDS(opened(at, "a//b/f", O_RDONLY) == 0);
	HOLDS(opened(at, ".", O_RDONLY | O_DIRECTORY) == 0);
	HOLDS(opened(at, "a/", O_RDONLY | O_DIRECTORY) == 0);
	HOLDS(opened(at, "a/b/link", O_RDONLY) == -ELOOP);
	HOLDS(opened(at, "a/b/link", O_WRONLY | O_CREAT) == -ELOOP);
	HOLDS(opened(at, "dirlink/b/f", O_RDONLY) == -ELOOP);
	HOLDS(opened(at, "dirlink/new", O_WRONLY | O_CREAT) == -ELOOP);
	HOLDS(opened(at, "..", O_RDONLY) == -EXDEV);
	HOLDS(opened(at, "a/../a/b/f", O_RDONLY) == -EXDEV);
	HOLDS(opened(at, "../x", O_WRONLY | O_CREAT) == -EXDEV);
	HOLDS(opened(at, "/etc/passwd", O_RDONLY) == -EXDEV);
	HOLDS(opened(at, "", O_RDONLY) == -ENOENT);
	HOLDS(opened(at, "a/b/none", O_RDONLY) == -ENOENT);
	HOLDS(opened(at, "a/b/f/x", O_RDONLY) == -ENOTDIR);
	HOLDS(opened(at, "a/b/f", O_WRONLY | O_CREAT | O_EXCL) == -EEXIST);
	HOLDS(OPS->mkdir(NULL, at, "../x", 0700) == -EXDEV);
	HOLDS(OPS->mkdir(NULL, at, "dirlink/x", 0700) == -ELOOP);
	HOLDS(OPS->rename(NULL, at, "a/b/f", "../f") == -EXDEV);
	HOLDS(OPS->rename(NULL, at, "dirlink/b", "c") == -ELOOP);
	HOLDS(OPS->link(NULL, at, "a/b/f", at, "dirlink/f") == -ELOOP);
	HOLDS(OPS->link(NULL, at, "/etc/passwd", at, "f") == -EXDEV);
	HOLDS(OPS->unlink(NULL, at, "dirlink/b/f", false) == -ELOOP);
	HOLDS(OPS->unlink(NULL, at, "a/../a/b/f", false) == -EXDEV);
	HOLDS(OPS->link(NULL, at, "a/b/f", at, "a/g") == 0 && file_is(at, "a/g", "deep"));
	HOLDS(OPS->link(NULL, at, "a/b/f", at, "a/g") == -EEXIST);
	HOLDS(OPS->unlink(NULL, at, "a/b", true) == -ENOTEMPTY);
	HOLDS(OPS->unlink(NULL, at, "a/b/f", false) == 0);
	HOLDS(opened(at, "a/b/f", O_RDONLY) == -ENOENT);
	return 0;
}

static int rename_check(void *arg)
{
	int at = *(int *)arg;

	HOLDS(file_make(at, "one", "1") == 0 && file_make(at, "two", "2") == 0);
	HOLDS(OPS->mkdir(NULL, at, "d1", 0700) == 0 && OPS->mkdir(NULL, at, "d2", 0700) == 0);
	HOLDS(file_make(at, "d1/in", "d1") == 0);
	HOLDS(OPS->rename(NULL, at, "one", "two") == -EEXIST);
	HOLDS(file_is(at, "one", "1") && file_is(at, "two", "2"));
	HOLDS(OPS->rename(NULL, at, "d1", "d2") ==
	      -EEXIST); /* an empty one is not replaced either */
	HOLDS(OPS->rename(NULL, at, "d1", "two") == -EEXIST);
	HOLDS(OPS->rename(NULL, at, "none", "x") == -ENOENT);
	HOLDS(OPS->rename(NULL, at, "one", "three") == 0);
	HOLDS(file_is(at, "three", "1") && opened(at, "one", O_RDONLY) == -ENOENT);
	HOLDS(OPS->rename(NULL, at, "d1", "d3") == 0);
	HOLDS(file_is(at, "d3/in", "d1") && opened(at, "d1", O_RDONLY) == -ENOENT);
	return 0;
}

static void denied(unsigned nr, int eno, int (*body)(void *arg), void *arg)
{
	int rc = deny_run(nr, eno, body, arg);

	if (rc == DENY_NOT_POSSIBLE) {
		print_message("skipped: this kernel takes no seccomp filter\n");
		skip();
	}
	assert_int_equal(rc, 0);
}

TEST(a_name_never_leaves_its_directory_and_no_link_is_followed)
{
	assert_int_equal(paths_check(&((struct room *)*state)->dirfd), 0);
}

TEST(without_openat2_names_are_as_safe)
{
	denied(SYS_openat2, ENOSYS, paths_check, &((struct room *)*state)->dirfd);
}

TEST(with_openat2_forbidden_names_are_as_safe)
{
	denied(SYS_openat2, EPERM, paths_check, &((struct room *)*state)->dirfd);
}

TEST(a_rename_never_replaces)
{
	assert_int_equal(rename_check(&((struct room *)*state)->dirfd), 0);
}

TEST(without_renameat2_flags_a_rename_never_replaces)
{
	denied(SYS_renameat2, EINVAL, rename_check, &((struct room *)*state)->dirfd);
}

TEST(without_renameat2_a_rename_never_replaces)
{
	denied(SYS_renameat2, ENOSYS, rename_check, &((struct room *)*state)->dirfd);
}

TEST(a_new_descriptor_is_close_on_exec)
{
	struct room *m = *state;
	int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(OPS->close(NULL, fd), 0);
	assert_int_equal(OPS->close(NULL, fd), -EBADF);
}

TEST(size_is_of_regular_files_only)
{
	struct room *m = *state;
	uint64_t bytes = 0;
	int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT, 0600), pipes[2];

	assert_int_equal(OPS->truncate(NULL, fd, 12345), 0);
	assert_int_equal(OPS->size(NULL, fd, &bytes), 0);
	assert_int_equal(bytes, 12345);
	assert_int_equal(OPS->fallocate(NULL, fd, 0), 0);
	if (OPS->fallocate(NULL, fd, 20000) == -EOPNOTSUPP)
		assert_int_equal(OPS->truncate(NULL, fd, 20000), 0);
	assert_int_equal(OPS->size(NULL, fd, &bytes), 0);
	assert_int_equal(bytes, 20000);
	assert_int_equal(OPS->truncate(NULL, fd, UINT64_MAX), -EFBIG);
	assert_int_equal(OPS->fallocate(NULL, fd, UINT64_MAX), -EFBIG);
	assert_int_equal(OPS->pread(NULL, fd, &bytes, 1, UINT64_MAX), -EINVAL);
	assert_int_equal(OPS->pwrite(NULL, fd, &bytes, 1, UINT64_MAX), -EINVAL);
	assert_int_equal(OPS->sync(NULL, fd), 0);
	assert_int_equal(OPS->sync(NULL, m->dirfd), 0);
	assert_int_equal(OPS->size(NULL, m->dirfd, &bytes), -EISDIR);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(OPS->size(NULL, pipes[0], &bytes), -EINVAL);
	(void)close(pipes[0]);
	(void)close(pipes[1]);
	(void)close(fd);
}

static int stat_check(void *arg)
{
	int at = *(const int *)arg;
	cleanup_close int fd = OPS->open(NULL, at, "stat", O_RDWR | O_CREAT | O_EXCL, 0600);
	struct io_stat a;
	struct stat st;

	HOLDS(fd >= 0 && io_pwrite_all(OPS, fd, "hello", 5, 0) == 0);
	HOLDS(OPS->link(NULL, at, "stat", at, "stat2") == 0);
	HOLDS(fstat(fd, &st) == 0 && io_stat(OPS, fd, &a) == 0);
	HOLDS(a.dev == st.st_dev && a.ino == st.st_ino && a.uid == st.st_uid);
	HOLDS(a.bytes == 5 && a.nlink == 2);
	HOLDS(a.changed_ns ==
	      (uint64_t)st.st_ctim.tv_sec * NS_PER_S + (uint64_t)st.st_ctim.tv_nsec);
	HOLDS(a.modified_ns ==
	      (uint64_t)st.st_mtim.tv_sec * NS_PER_S + (uint64_t)st.st_mtim.tv_nsec);
	return 0;
}

TEST(a_stat_says_which_file_it_is_how_long_and_how_many_names_it_has)
{
	assert_int_equal(stat_check(&((struct room *)*state)->dirfd), 0);
}

TEST(without_statx_a_stat_says_the_same)
{
	denied(SYS_statx, ENOSYS, stat_check, &((struct room *)*state)->dirfd);
}

struct tally {
	uint32_t n, dirs, links, stop_at;
};

static int tally_each(void *arg, const char *name, unsigned char d_type)
{
	struct tally *t = arg;

	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return -EPROTO;
	t->n++;
	t->dirs += d_type == DT_DIR;
	t->links += d_type == DT_LNK;
	return t->n == t->stop_at ? 77 : 0;
}

TEST(list_gives_every_name_once_and_stops_when_told)
{
	struct room *m = *state;
	struct tally t = { .n = 0 }, again = { .n = 0 }, stop = { .stop_at = 3 };
	char name[16];
	cleanup_close int fd = -1;

	for (int i = 0; i < 40; i++) {
		(void)snprintf(name, sizeof(name), "f%d", i);
		assert_int_equal(file_make(m->dirfd, name, ""), 0);
	}
	assert_int_equal(OPS->mkdir(NULL, m->dirfd, "d", 0700), 0);
	assert_int_equal(symlinkat("d", m->dirfd, "l"), 0);
	assert_int_equal(OPS->list(NULL, m->dirfd, tally_each, &t), 0);
	assert_int_equal(t.n, 42);
	assert_int_equal(t.dirs, 1);
	assert_int_equal(t.links, 1);
	assert_int_equal(OPS->list(NULL, m->dirfd, tally_each, &again), 0);
	assert_int_equal(again.n, 42);
	assert_int_equal(OPS->list(NULL, m->dirfd, tally_each, &stop), 77);
	assert_int_equal(stop.n, 3);
	fd = openat(m->dirfd, "f0", O_RDONLY | O_CLOEXEC);
	assert_int_equal(OPS->list(NULL, fd, tally_each, &t), -ENOTDIR);
}

/* A table whose transfers are short, interrupted, or bring nothing. */
struct stutter {
	uint64_t most;	     /* bytes per call */
	uint32_t interrupts; /* before each transfer */
	uint32_t left;
	int eno;
	uint64_t calls;
};

static bool stutter_fails(struct stutter *s)
{
	s->calls++;
	if (s->left == 0) {
		s->left = s->interrupts;
		return false;
	}
	s->left--;
	return true;
}

static int64_t stutter_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct stutter *s = ctx;

	return stutter_fails(s) ? -s->eno : OPS->pread(NULL, fd, buf, MIN(len, s->most), off);
}

static int64_t stutter_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct stutter *s = ctx;

	return stutter_fails(s) ? -s->eno : OPS->pwrite(NULL, fd, buf, MIN(len, s->most), off);
}

static struct io_ops stutter_ops(struct stutter *s)
{
	struct io_ops ops = io_ops_posix;

	ops.ctx = s;
	ops.pread = stutter_pread;
	ops.pwrite = stutter_pwrite;
	return ops;
}

TEST(short_and_interrupted_transfers_are_continued)
{
	struct room *m = *state;
	struct stutter s = { .most = 7, .interrupts = 3, .left = 3, .eno = EINTR };
	struct io_ops ops = stutter_ops(&s);
	uint8_t wrote[1000], got[1000] = { 0 };
	cleanup_close int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT, 0600);

	for (size_t i = 0; i < sizeof(wrote); i++)
		wrote[i] = (uint8_t)(i * 31 + 7);
	assert_int_equal(io_pwrite_all(&ops, fd, wrote, sizeof(wrote), 55), 0);
	s.eno = EAGAIN;
	assert_int_equal(io_pread_all(&ops, fd, got, sizeof(got), 55), 0);
	assert_memory_equal(wrote, got, sizeof(got));
	assert_int_equal(io_pread_all(&ops, fd, got, sizeof(got), 56), -ENODATA);
	assert_int_equal(io_pread_all(&ops, fd, got, 0, 1 << 20), 0);
	assert_int_equal(io_pread_all(&ops, fd, got, 1, 1 << 20), -ENODATA);
	s.calls = 0; /* no offset reaches the kernel that the house has not checked */
	assert_int_equal(io_pread_all(&ops, fd, got, 8, INT64_MAX - 6), -EINVAL);
	assert_int_equal(io_pread_all(&ops, fd, got, 8, UINT64_MAX), -EINVAL);
	assert_int_equal(s.calls, 0);
}

TEST(an_endless_interruption_ends)
{
	struct room *m = *state;
	struct stutter s = {
		.most = 7, .interrupts = UINT32_MAX, .left = UINT32_MAX, .eno = EINTR
	};
	struct io_ops ops = stutter_ops(&s);
	cleanup_close int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT, 0600);

	assert_int_equal(io_pwrite_all(&ops, fd, "abc", 3, 0), -EINTR);
	assert_true(s.calls < 1000);
}

TEST(a_write_that_brings_nothing_twice_is_no_space)
{
	struct room *m = *state;
	struct stutter s = { .most = 0 };
	struct io_ops ops = stutter_ops(&s);
	cleanup_close int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT, 0600);

	assert_int_equal(io_pwrite_all(&ops, fd, "abc", 3, 0), -ENOSPC);
	assert_int_equal(s.calls, 2);
	assert_int_equal(io_pwrite_all(&ops, fd, "abc", 0, 0), 0);
	assert_int_equal(s.calls, 2);
}

/*
 * Direct transfers cut at 512 bytes: continued from the request's own alignment, so the part block
 * moves twice.
 */
TEST(a_short_direct_transfer_continues_at_an_aligned_offset)
{
	struct room *m = *state;
	struct stutter s = { .most = 4096 * 3 + 512 };
	struct io_ops ops = stutter_ops(&s);
	const size_t len = 64 * KIB;
	cleanup_free uint8_t *wrote = aligned_alloc(4096, len);
	cleanup_free uint8_t *got = aligned_alloc(4096, len);
	cleanup_close int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT | O_DIRECT, 0600);

	if (fd == -EINVAL) {
		print_message("skipped: no O_DIRECT here\n");
		skip();
	}
	for (size_t i = 0; i < len; i++)
		wrote[i] = (uint8_t)(i * 13 + i / 512);
	assert_int_equal(io_pwrite_all(&ops, fd, wrote, len, 8192), 0);
	assert_int_equal(io_pread_all(&ops, fd, got, len, 8192), 0);
	assert_memory_equal(wrote, got, len);
	assert_int_equal(OPS->truncate(NULL, fd, 8192 + 5000), 0);
	assert_int_equal(io_pread_all(&ops, fd, got, len, 8192), -ENODATA);
	s.most = 512; /* less than the alignment: no way on, and that is not the end of the file */
	assert_int_equal(io_pread_all(&ops, fd, got, 8192, 0), -EIO);
}

static int no_fallocate_body(void *arg)
{
	int at = *(int *)arg, fd = OPS->open(NULL, at, "f", O_RDWR | O_CREAT | O_TRUNC, 0600);
	uint64_t bytes;

	HOLDS(fd >= 0);
	HOLDS(OPS->fallocate(NULL, fd, 8192) == -EOPNOTSUPP);
	HOLDS(OPS->size(NULL, fd, &bytes) == 0 && bytes == 0);
	HOLDS(io_pwrite_all(OPS, fd, "abc", 3, 8000) == 0);
	HOLDS(OPS->close(NULL, fd) == 0);
	return 0;
}

TEST(without_fallocate_that_is_said_in_one_way)
{
	denied(SYS_fallocate, EOPNOTSUPP, no_fallocate_body, &((struct room *)*state)->dirfd);
	denied(SYS_fallocate, ENOSYS, no_fallocate_body, &((struct room *)*state)->dirfd);
}

static int full_disk_body(void *arg)
{
	int at = *(int *)arg, fd = OPS->open(NULL, at, "f", O_RDWR | O_CREAT, 0600);

	HOLDS(fd >= 0);
	HOLDS(OPS->fallocate(NULL, fd, 8192) == -ENOSPC);
	HOLDS(OPS->close(NULL, fd) == 0);
	return 0;
}

TEST(a_full_disk_is_no_missing_fallocate)
{
	denied(SYS_fallocate, ENOSPC, full_disk_body, &((struct room *)*state)->dirfd);
}

TEST(space_is_that_of_the_file_system_and_free_for_this_user)
{
	struct room *m = *state;
	struct io_space s = { 0 }, of_file = { 0 };
	struct statvfs v;
	int fd = OPS->open(NULL, m->dirfd, "f", O_RDWR | O_CREAT, 0600);

	assert_int_equal(OPS->space(NULL, m->dirfd, &s), 0);
	assert_int_equal(OPS->space(NULL, fd, &of_file), 0);
	assert_int_equal(fstatvfs(m->dirfd, &v), 0);
	assert_int_equal(s.total_bytes, (uint64_t)v.f_blocks * v.f_frsize);
	assert_int_equal(of_file.total_bytes, s.total_bytes);
	assert_true(s.free_bytes <= s.total_bytes);
	/* others write here, too: to a tenth of the disk */
	assert_true(s.free_bytes <= (uint64_t)v.f_bavail * v.f_frsize + s.total_bytes / 10);
	assert_true(s.free_bytes + s.total_bytes / 10 >= (uint64_t)v.f_bavail * v.f_frsize);
	assert_int_equal(OPS->close(NULL, fd), 0);
	assert_int_equal(OPS->space(NULL, -1, &s), -EBADF);
}

/* Each open is a locker of its own, as two processes are. */
TEST(a_lock_is_shared_or_alone_until_the_descriptor_goes)
{
	struct room *m = *state;
	const int flags[] = { O_RDONLY | O_DIRECTORY, O_RDONLY };
	const char *const name[] = { "d", "f" };

	if (OPS->lock(NULL, m->dirfd, true) == -EOPNOTSUPP) {
		print_message("skipped: no locks here\n");
		skip();
	}
	assert_int_equal(OPS->mkdir(NULL, m->dirfd, "d", 0700), 0);
	assert_int_equal(file_make(m->dirfd, "f", ""), 0);
	for (uint32_t i = 0; i < 2; i++) {
		int a = OPS->open(NULL, m->dirfd, name[i], flags[i], 0);
		int b = OPS->open(NULL, m->dirfd, name[i], flags[i], 0), copy;

		assert_int_equal(OPS->lock(NULL, a, false), 0);
		assert_int_equal(OPS->lock(NULL, b, false), 0);
		assert_int_equal(OPS->lock(NULL, b, true), -EAGAIN); /* a reads */
		assert_int_equal(OPS->lock(NULL, a, false), 0);	     /* again: changes nothing */
		copy = fcntl(a, F_DUPFD_CLOEXEC, 0);
		assert_int_equal(OPS->close(NULL, a), 0);
		assert_int_equal(OPS->lock(NULL, b, true), -EAGAIN); /* a copy is still open */
		assert_int_equal(OPS->close(NULL, copy), 0);
		assert_int_equal(OPS->lock(NULL, b, true), 0);
		a = OPS->open(NULL, m->dirfd, name[i], flags[i], 0);
		assert_int_equal(OPS->lock(NULL, a, false), -EAGAIN);
		assert_int_equal(OPS->lock(NULL, a, true), -EAGAIN);
		assert_int_equal(OPS->lock(NULL, b, false), 0); /* down again */
		assert_int_equal(OPS->lock(NULL, a, false), 0);
		assert_int_equal(OPS->close(NULL, a), 0);
		assert_int_equal(OPS->close(NULL, b), 0);
	}
	assert_int_equal(OPS->lock(NULL, -1, true), -EBADF);
}

static int no_lock_body(void *arg)
{
	HOLDS(OPS->lock(NULL, *(int *)arg, true) == -EOPNOTSUPP);
	HOLDS(OPS->lock(NULL, *(int *)arg, false) == -EOPNOTSUPP);
	return 0;
}

static int interrupted_lock_body(void *arg)
{
	HOLDS(OPS->lock(NULL, *(int *)arg, true) == -EINTR); /* an end, not a hang */
	return 0;
}

TEST(where_there_are_no_locks_that_is_said_in_one_way)
{
	struct room *m = *state;
	cleanup_close int path_only = openat(m->dirfd, ".", O_PATH | O_CLOEXEC);
	const int eno[] = { ENOSYS, ENOLCK, EINVAL, EBADF };

	for (uint32_t i = 0; i < ARRAY_LEN(eno); i++)
		denied(SYS_flock, eno[i], no_lock_body, &m->dirfd);
	denied(SYS_flock, EINTR, interrupted_lock_body, &m->dirfd);
	assert_int_equal(OPS->lock(NULL, path_only, true), -EOPNOTSUPP);
}

struct heard {
	uint32_t n;
	char last[32];
};

static void hear(void *ctx, const char *name)
{
	struct heard *h = ctx;

	h->n++;
	(void)snprintf(h->last, sizeof h->last, "%s", name);
}

TEST_WITH(a_point_is_told_to_who_listens_and_to_nobody_else, NULL, NULL)
{
	struct heard h = { .n = 0 };
	struct io_ops ops = io_ops_posix;

	assert_null(OPS->point);
	io_point(OPS, "nobody");
	ops.ctx = &h;
	ops.point = hear;
	io_point(&ops, "first");
	io_point(&ops, "second");
	assert_int_equal(h.n, 2);
	assert_string_equal(h.last, "second");
}

UNIT(.setup = room_open, .teardown = room_close);
