/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_probe.c - what a store's file system can do, found out by doing it: a scratch file is opened
 * with O_DIRECT, one block is written and read back. Some file systems accept the flag and refuse
 * the transfer. The scratch file has no name while it is used, so that a crash leaves none.
 */
#include "ckpt/io/io.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"

/* What the format's blocks, and so all transfers, are aligned to: a device that wants more refuses
 * them and is used buffered. */
#define ALIGN 4096u

enum fs_trait { FS_DISK = 0, FS_VOLATILE = 1, FS_SHARED = 2 };

/* Any other may be shared between hosts (FUSE, 9p, SMB, Ceph, GPFS, ...). */
static const struct {
	uint32_t magic;
	const char *name;
	enum fs_trait trait;
} fs_types[] = {
	{ 0xef53, "ext4", FS_DISK },	      { 0x58465342, "xfs", FS_DISK },
	{ 0x9123683e, "btrfs", FS_DISK },     { 0x01021994, "tmpfs", FS_VOLATILE },
	{ 0x858458f6, "ramfs", FS_VOLATILE }, { 0x794c7630, "overlay", FS_DISK },
	{ 0x2fc12fc1, "zfs", FS_DISK },	      { 0xf2f52010, "f2fs", FS_DISK },
	{ 0xca451a4e, "bcachefs", FS_DISK },  { 0x4d44, "fat", FS_DISK },
	{ 0x2011bab0, "exfat", FS_DISK },     { 0x7366746e, "ntfs3", FS_DISK },
	{ 0x6969, "nfs", FS_SHARED },	      { 0x0bd00bd0, "lustre", FS_SHARED },
};

bool io_fs_shared(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(fs_types); i++)
		if ((uint32_t)fs.f_type == fs_types[i].magic)
			return fs_types[i].trait == FS_SHARED;
	return true;
}

static int fs_type_find(int dirfd, struct io_probe *ret)
{
	struct statfs fs;
	const char *name = "other";

	if (fstatfs(dirfd, &fs))
		return -errno;
	for (size_t i = 0; i < ARRAY_LEN(fs_types); i++) {
		if ((uint32_t)fs.f_type != fs_types[i].magic)
			continue;
		name = fs_types[i].name;
		ret->volatile_fs = fs_types[i].trait == FS_VOLATILE;
	}
	(void)snprintf(ret->fs_type, sizeof(ret->fs_type), "%s", name);
	return 0;
}

static bool flag_refused(int rc) /* the flag, not the file */
{
	return rc == -EINVAL || rc == -EOPNOTSUPP;
}

/* Some kernels create the file before they refuse O_DIRECT, so the name goes in either case. */
static int scratch_open(const struct io_ops *ops, int dirfd, int flags)
{
	char name[64];
	int fd, rc;

	(void)snprintf(name, sizeof(name), ".ckpt-probe-%d-%llx", (int)getpid(),
		       (unsigned long long)wall_ns());
	fd = ops->open(ops->ctx, dirfd, name, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
	if (fd == -EEXIST)
		return fd;
	rc = ops->unlink(ops->ctx, dirfd, name, false);
	if (fd >= 0 && rc) {
		(void)ops->close(ops->ctx, fd);
		return rc;
	}
	return fd;
}

/* false: the file system says that it does no direct I/O on this file, or none of such blocks. */
static bool blocks_fit(int fd)
{
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) || !(st.stx_mask & STATX_DIOALIGN))
		return true;
	if (st.stx_dio_offset_align == 0 || st.stx_dio_mem_align == 0)
		return false;
	return ALIGN % st.stx_dio_offset_align == 0 && ALIGN % st.stx_dio_mem_align == 0;
}

static int block_try(const struct io_ops *ops, int fd, uint32_t align)
{
	cleanup_free uint8_t *wrote = aligned_alloc(align, align);
	cleanup_free uint8_t *got = aligned_alloc(align, align);
	int rc;

	if (!wrote || !got)
		return -ENOMEM;
	for (uint32_t i = 0; i < align; i++)
		wrote[i] = (uint8_t)(i * 37 + 11);
	memset(got, 0, align);
	rc = io_pwrite_all(ops, fd, wrote, align, 0);
	if (rc == 0)
		rc = io_pread_all(ops, fd, got, align, 0);
	if (rc == 0 && memcmp(wrote, got, align) != 0)
		rc = -EIO;
	return rc;
}

static int room_try(const struct io_ops *ops, int fd, struct io_probe *ret)
{
	int rc = ops->fallocate(ops->ctx, fd, ALIGN);

	ret->reserves = rc == 0;
	return rc == -EOPNOTSUPP ? 0 : rc;
}

static int direct_try(const struct io_ops *ops, int dirfd, struct io_probe *ret)
{
	int fd = scratch_open(ops, dirfd, O_DIRECT), rc = 0, closed;

	if (fd < 0)
		return fd;
	ret->direct = blocks_fit(fd);
	if (ret->direct)
		rc = room_try(ops, fd, ret);
	if (rc == 0 && ret->direct)
		rc = block_try(ops, fd, ret->align);
	if (!io_fd_direct(fd)) /* taken at open, refused by the transfer */
		ret->direct = false;
	closed = ops->close(ops->ctx, fd);
	return rc ? rc : closed;
}

static int buffered_try(const struct io_ops *ops, int dirfd, struct io_probe *ret)
{
	int fd = scratch_open(ops, dirfd, 0), rc, closed;

	ret->direct = false;
	if (fd < 0)
		return fd;
	rc = room_try(ops, fd, ret);
	if (rc == 0)
		rc = block_try(ops, fd, ret->align);
	closed = ops->close(ops->ctx, fd);
	return rc ? rc : closed;
}

int io_probe(const struct io_ops *ops, int dirfd, struct io_probe *ret, struct ckpt_err *err)
{
	int rc;

	*ret = (struct io_probe){ .align = ALIGN };
	rc = fs_type_find(dirfd, ret);
	if (rc)
		return ckpt_error_errno(err, -rc, "probe of the store's file system: fstatfs");
	rc = direct_try(ops, dirfd, ret);
	if (flag_refused(rc) || (rc == 0 && !ret->direct))
		rc = buffered_try(ops, dirfd, ret);
	if (rc)
		return ckpt_error_errno(
			err, -rc,
			"probe of the store's file system (%s): a scratch file of %u bytes could "
			"not be written and read back; check that the store is "
			"writable and has space",
			ret->fs_type, ret->align);
	return 0;
}
