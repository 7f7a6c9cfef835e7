// SPDX-License-Identifier: Apache-2.0
/*
 * power_off.c - power_off DIR: the file system under DIR loses its power: from now on nothing
 * reaches the disk, its log least of all (FS_IOC_SHUTDOWN). With --sync-late a file was renamed
 * just before, and its directory is synced afterwards as the store does: exit status 1 if that
 * succeeds. Called by power.sh.
 *
 * Invariant: it does so only to a disk that a test made: DIR is the root of a mounted loop device
 * and holds the file this-disk-may-lose-its-power.
 */
#include "ckpt/io/io.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define POWER_OFF _IOR('X', 125, uint32_t) /* FS_IOC_SHUTDOWN */
#define LOG_IS_LOST 2			   /* its argument: do not flush the log */
#define DISK_MARK "this-disk-may-lose-its-power"
#define LOOP_MAJOR 7

static bool disk_is_a_tests(int fd)
{
	struct stat at, above, root;

	return fstat(fd, &at) == 0 && fstatat(fd, "..", &above, 0) == 0 && stat("/", &root) == 0 &&
	       major(at.st_dev) == LOOP_MAJOR && at.st_dev != above.st_dev &&
	       at.st_dev != root.st_dev && faccessat(fd, DISK_MARK, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A rename in a directory below fd that only the log has; the directory's descriptor. */
static int rename_late(int fd)
{
	int dir = mkdirat(fd, "late", 0700) ? -1 : openat(fd, "late", O_RDONLY | O_DIRECTORY);
	int file = openat(dir, "from", O_WRONLY | O_CREAT, 0600);

	return dir < 0 || file < 0 || fsync(file) || fsync(dir) || renameat(dir, "from", dir, "to")
		       ? -1
		       : dir;
}

int main(int argc, char **argv)
{
	bool late = argc == 3 && strcmp(argv[1], "--sync-late") == 0;
	uint32_t how = LOG_IS_LOST;
	int fd, dir = -1, rc;

	if (argc != 2 && !late) {
		fprintf(stderr, "usage: power_off [--sync-late] DIR\n");
		return 2;
	}
	argv += late;
	fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !disk_is_a_tests(fd)) {
		fprintf(stderr, "power_off: %s is not the root of a test's disk\n", argv[1]);
		return 2;
	}
	if (late && (dir = rename_late(fd)) < 0) {
		fprintf(stderr, "power_off: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	if (ioctl(fd, POWER_OFF, &how) < 0) {
		fprintf(stderr, "power_off: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	rc = late ? io_ops_posix.sync(NULL, dir) : -EIO;
	if (rc < 0)
		return 0;
	fprintf(stderr, "a directory that has lost a rename was synced: %d\n", rc);
	return 1;
}
