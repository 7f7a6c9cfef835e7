/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_posix.c - the table of system calls that programs use. Every name is resolved beneath its
 * directory descriptor: the kernel does it (openat2), or, where openat2 is missing or forbidden, a
 * walk that opens one component at a time without following links. Names that are absolute or have
 * a ".." are refused before either (-EXDEV); a symbolic link anywhere on the way is -ELOOP.
 */
#include "ckpt/io/io.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

#define RACES_MAX \
	16 /* openat2 says EAGAIN when a rename elsewhere disturbs it; fallocate EINTR on a signal */

static int name_check(const char *name)
{
	size_t len = strlen(name);

	if (len == 0)
		return -ENOENT;
	if (len >= PATH_MAX)
		return -ENAMETOOLONG;
	if (MUTANT(NAMES_CLIMB))
		return 0;
	if (name[0] == '/')
		return -EXDEV;
	for (const char *p = name; p; p = strchr(p, '/')) {
		p += *p == '/';
		if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0'))
			return -EXDEV;
	}
	return 0;
}

/*
 * One component. A link where a directory is wanted is ENOTDIR for openat and ELOOP for openat2:
 * say ELOOP.
 */
static int component_open(int dirfd, const char *name, int flags, uint32_t mode)
{
	struct stat st;
	int fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);

	if (fd >= 0)
		return fd;
	if (errno == ENOTDIR && fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return S_ISLNK(st.st_mode) ? -ELOOP : -ENOTDIR;
	return -errno;
}

static int walk_open(int dirfd, const char *name, int flags, uint32_t mode)
{
	char path[PATH_MAX];
	char *part = path, *slash;
	cleanup_close int at = -1;

	memcpy(path, name, strlen(name) + 1);
	while ((slash = strchr(part, '/'))) {
		int next;

		*slash = '\0';
		if (slash > part) {
			next = component_open(at < 0 ? dirfd : at, part, O_PATH | O_DIRECTORY, 0);
			if (next < 0)
				return next;
			util_close(&at);
			at = next;
		}
		part = slash + 1;
	}
	return component_open(at < 0 ? dirfd : at, *part ? part : ".", flags, mode);
}

static int beneath_open(int dirfd, const char *name, int flags, uint32_t mode)
{
	struct open_how how = { .flags = (uint32_t)((flags & ~O_NOFOLLOW) | O_CLOEXEC),
				.mode = flags & O_CREAT ? mode : 0,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
					   RESOLVE_NO_MAGICLINKS };
	int rc = name_check(name);

	if (MUTANT(LINKS_FOLLOWED))
		how.resolve = 0;
	for (uint32_t i = 0; rc == 0 && i < RACES_MAX; i++) {
		long fd = syscall(SYS_openat2, dirfd, name, &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN)
			rc = -errno;
	}
	/* EPERM may be a seccomp profile's or the file's own: the walk finds out. */
	if (rc == 0 || rc == -ENOSYS || rc == -EPERM)
		return walk_open(dirfd, name, flags, mode);
	return rc;
}

/*
 * Where a name is to be made or removed: its directory (*ret_fd is dirfd itself, or *owned) and
 * last component.
 */
static int parent_open(int dirfd, const char *name, int *owned, int *ret_fd, const char **ret_last)
{
	const char *slash = strrchr(name, '/');
	char path[PATH_MAX];
	int rc = name_check(name);

	*ret_fd = dirfd;
	*ret_last = slash ? slash + 1 : name;
	if (rc || !slash)
		return rc;
	memcpy(path, name, (size_t)(slash - name));
	path[slash - name] = '\0';
	rc = beneath_open(dirfd, path, O_PATH | O_DIRECTORY, 0);
	if (rc < 0)
		return rc;
	*owned = *ret_fd = rc;
	return 0;
}

static int sys_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	(void)ctx;
	return beneath_open(dirfd, name, flags, mode);
}

static int sys_close(void *ctx, int fd)
{
	(void)ctx;
	return close(fd) ? -errno : 0;
}

static int64_t sys_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	ssize_t n;

	(void)ctx;
	if (off > INT64_MAX)
		return -EINVAL;
	n = pread(fd, buf, (size_t)MIN(len, (uint64_t)SSIZE_MAX), (off_t)off);
	return n < 0 ? -errno : n;
}

static int64_t sys_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	ssize_t n;

	(void)ctx;
	if (off > INT64_MAX)
		return -EINVAL;
	n = pwrite(fd, buf, (size_t)MIN(len, (uint64_t)SSIZE_MAX), (off_t)off);
	return n < 0 ? -errno : n;
}

static int sys_fallocate(void *ctx, int fd, uint64_t len)
{
	int rc = 0;

	(void)ctx;
	if (len > INT64_MAX)
		return -EFBIG;
	for (uint32_t i = 0; len > 0 && i < RACES_MAX; i++) {
		rc = fallocate(fd, 0, 0, (off_t)len) ? -errno : 0;
		if (rc != -EINTR)
			break;
	}
	return rc == -ENOSYS ? -EOPNOTSUPP : rc;
}

static int sys_truncate(void *ctx, int fd, uint64_t len)
{
	(void)ctx;
	if (len > INT64_MAX)
		return -EFBIG;
	return ftruncate(fd, (off_t)len) ? -errno : 0;
}

static int sys_sync(void *ctx, int fd)
{
	(void)ctx;
	struct stat st;

	/* XFS that was shut down (its log could not be written) answers fsync of a directory with
	 * 0, though what was renamed in it is lost; it does not answer fstat. Seen with Linux
	 * 6.18. */
	return fsync(fd) || fstat(fd, &st) ? -errno : 0;
}

static int sys_mkdir(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	cleanup_close int owned = -1;
	const char *last;
	int at, rc = parent_open(dirfd, name, &owned, &at, &last);

	(void)ctx;
	if (rc)
		return rc;
	return mkdirat(at, last, mode) ? -errno : 0;
}

/*
 * Without RENAME_NOREPLACE. A file: link refuses to replace, then the old name goes. A directory: a
 * look, then a plain rename; what may have appeared in between is refused by rename itself unless
 * it is an empty directory, and a step directory is never empty.
 */
static int rename_by_hand(int from_at, const char *from, int to_at, const char *to)
{
	struct stat st;

	if (fstatat(from_at, from, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!S_ISDIR(st.st_mode)) {
		if (linkat(from_at, from, to_at, to, 0))
			return -errno;
		return unlinkat(from_at, from, 0) ? -errno : 0;
	}
	if (fstatat(to_at, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return -EEXIST;
	if (renameat(from_at, from, to_at, to))
		return errno == ENOTEMPTY || errno == ENOTDIR ? -EEXIST : -errno;
	return 0;
}

static int sys_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	cleanup_close int from_owned = -1, to_owned = -1;
	const char *from_last, *to_last;
	int from_at, to_at, rc;

	(void)ctx;
	rc = parent_open(dirfd, from, &from_owned, &from_at, &from_last);
	if (rc == 0)
		rc = parent_open(dirfd, to, &to_owned, &to_at, &to_last);
	if (rc)
		return rc;
	if (renameat2(from_at, from_last, to_at, to_last,
		      MUTANT(RENAME_REPLACES) ? 0 : RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	return rename_by_hand(from_at, from_last, to_at, to_last);
}

static int sys_link(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	cleanup_close int from_owned = -1, to_owned = -1;
	const char *from_last, *to_last;
	int from_at, to_at, rc;

	(void)ctx;
	rc = parent_open(from_dirfd, from, &from_owned, &from_at, &from_last);
	if (rc == 0)
		rc = parent_open(to_dirfd, to, &to_owned, &to_at, &to_last);
	if (rc)
		return rc;
	return linkat(from_at, from_last, to_at, to_last, 0) ? -errno : 0;
}

static int sys_unlink(void *ctx, int dirfd, const char *name, bool is_dir)
{
	cleanup_close int owned = -1;
	const char *last;
	int at, rc = parent_open(dirfd, name, &owned, &at, &last);

	(void)ctx;
	if (rc)
		return rc;
	return unlinkat(at, last, is_dir ? AT_REMOVEDIR : 0) ? -errno : 0;
}

static int sys_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	struct stat st;

	(void)ctx;
	if (fstat(fd, &st))
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	*ret_bytes = (uint64_t)st.st_size;
	return 0;
}

static unsigned char entry_type(int dirfd, const struct dirent *d)
{
	struct stat st;

	if (d->d_type != DT_UNKNOWN || fstatat(dirfd, d->d_name, &st, AT_SYMLINK_NOFOLLOW))
		return d->d_type;
	return (unsigned char)IFTODT(st.st_mode);
}

/* On a descriptor of its own, so that the caller's keeps its position and may be O_PATH. */
static int sys_list(void *ctx, int dirfd,
		    int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	cleanup_close int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *d;
	DIR *dir;
	int rc = 0;

	(void)ctx;
	if (fd < 0)
		return -errno;
	dir = fdopendir(fd);
	if (!dir)
		return -errno;
	fd = -1;
	while (rc == 0) {
		errno = 0;
		d = readdir(dir);
		if (!d) {
			rc = -errno;
			break;
		}
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			rc = each(arg, d->d_name, entry_type(dirfd, d));
	}
	(void)closedir(dir);
	return rc;
}

static int sys_space(void *ctx, int fd, struct io_space *ret)
{
	struct statvfs s;

	(void)ctx;
	if (fstatvfs(fd, &s))
		return -errno;
	if (ckpt_mul(s.f_bavail, s.f_frsize, &ret->free_bytes))
		ret->free_bytes = UINT64_MAX;
	if (ckpt_mul(s.f_blocks, s.f_frsize, &ret->total_bytes))
		ret->total_bytes = UINT64_MAX;
	return 0;
}

static int sys_lock(void *ctx, int fd, bool exclusive)
{
	int rc = -EINTR;

	(void)ctx;
	for (uint32_t i = 0; rc == -EINTR && i < RACES_MAX; i++)
		rc = flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) ? -errno : 0;
	if (rc == -ENOSYS || rc == -ENOLCK || rc == -EINVAL || rc == -EBADF)
		return fcntl(fd, F_GETFD) < 0 ? -EBADF : -EOPNOTSUPP;
	return rc;
}

/* Of the open file, not of the process: two descriptors of one process exclude each other. */
static int sys_lock_bytes(void *ctx, int fd, uint64_t off, uint64_t len, enum io_lock how)
{
	struct flock l = { .l_type = how == IO_LOCK_SHARED ? F_RDLCK : F_WRLCK,
			   .l_whence = SEEK_SET,
			   .l_start = (off_t)off,
			   .l_len = (off_t)len };
	int rc = -EINTR;

	(void)ctx;
	for (uint32_t i = 0; rc == -EINTR && i < RACES_MAX; i++)
		rc = fcntl(fd, how == IO_LOCK_ASK ? F_OFD_GETLK : F_OFD_SETLK, &l) ? -errno : 0;
	if (rc == -EACCES || (rc == 0 && how == IO_LOCK_ASK && l.l_type != F_UNLCK))
		return -EAGAIN;
	return rc == -ENOSYS || rc == -ENOLCK || rc == -EINVAL ? -EOPNOTSUPP : rc;
}

static bool sys_shared(void *ctx, int fd)
{
	(void)ctx;
	return io_fs_shared(fd);
}

/* 0 for a time that is none: a damaged inode says anything. */
static uint64_t stat_ns(int64_t seconds, uint64_t ns)
{
	if (seconds <= 0 || (uint64_t)seconds >= UINT64_MAX / NS_PER_S)
		return 0;
	return (uint64_t)seconds * NS_PER_S + MIN(ns, NS_PER_S - 1);
}

static void stat_fill(const struct stat *st, struct io_stat *ret)
{
	*ret = (struct io_stat){ .dev = st->st_dev,
				 .ino = st->st_ino,
				 .uid = st->st_uid,
				 .mode = st->st_mode & 0777u,
				 .changed_ns =
					 stat_ns(st->st_ctim.tv_sec, (uint64_t)st->st_ctim.tv_nsec),
				 .modified_ns =
					 stat_ns(st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec),
				 .bytes = st->st_size > 0 ? (uint64_t)st->st_size : 0,
				 .nlink = (uint32_t)MIN(st->st_nlink, (nlink_t)UINT32_MAX) };
}

/* Where statx is missing or forbidden: a file server may be asked then, and waited for. */
static int stat_plain(int fd, struct io_stat *ret)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	stat_fill(&st, ret);
	return 0;
}

static int sys_stat_at(void *ctx, int dirfd, const char *name, struct io_stat *ret)
{
	struct stat st;

	(void)ctx;
	if (!*name || strchr(name, '/'))
		return -EINVAL;
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : S_ISLNK(st.st_mode) ? -ELOOP : -EINVAL;
	stat_fill(&st, ret);
	return 0;
}

static int sys_stat(void *ctx, int fd, struct io_stat *ret)
{
	struct statx st;

	(void)ctx;
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &st))
		return stat_plain(fd, ret);
	*ret = (struct io_stat){ .dev = makedev(st.stx_dev_major, st.stx_dev_minor),
				 .ino = st.stx_ino,
				 .uid = st.stx_uid,
				 .mode = st.stx_mode & 0777u,
				 .changed_ns = stat_ns(st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec),
				 .modified_ns = stat_ns(st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec),
				 .bytes = st.stx_size,
				 .nlink = st.stx_nlink };
	return 0;
}

static int sys_path(void *ctx, int fd, char *ret, uint64_t bytes)
{
	char link[64];
	ssize_t n;

	(void)ctx;
	(void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, ret, (size_t)bytes);
	if (n < 0)
		return -errno;
	if ((uint64_t)n >= bytes) /* what fills the buffer may be cut */
		return -ENAMETOOLONG;
	ret[n] = '\0';
	return 0;
}

static int sys_find(void *ctx, const char *path, struct io_stat *ret)
{
	cleanup_close int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : sys_stat(ctx, fd, ret);
}

static int sys_open_path(void *ctx, int dirfd, const char *path, int flags)
{
	int fd = openat(dirfd, path, flags | O_CLOEXEC);

	(void)ctx;
	return fd < 0 ? -errno : fd;
}

const struct io_ops io_ops_posix = {
	.open = sys_open,
	.close = sys_close,
	.pread = sys_pread,
	.pwrite = sys_pwrite,
	.fallocate = sys_fallocate,
	.truncate = sys_truncate,
	.sync = sys_sync,
	.mkdir = sys_mkdir,
	.rename = sys_rename,
	.link = sys_link,
	.unlink = sys_unlink,
	.size = sys_size,
	.list = sys_list,
	.space = sys_space,
	.lock = sys_lock,
	.lock_bytes = sys_lock_bytes,
	.shared = sys_shared,
	.stat = sys_stat,
	.path = sys_path,
	.find = sys_find,
	.open_path = sys_open_path,
	.stat_at = sys_stat_at,
};
