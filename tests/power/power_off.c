// SPDX-License-Identifier: Apache-2.0
/*
 * power_off.c - power_off DIR: the file system under DIR loses its power: from now on nothing reaches
 * the disk, its log least of all (FS_IOC_SHUTDOWN). Called by power.sh.
 *
 * Invariant: it does so only to a disk that a test made: DIR is the root of a mounted loop device and
 * holds the file this-disk-may-lose-its-power.
 */
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

int main(int argc, char **argv)
{
	uint32_t how = LOG_IS_LOST;
	int fd;

	if (argc != 2) {
		fprintf(stderr, "usage: power_off DIR\n");
		return 2;
	}
	fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !disk_is_a_tests(fd)) {
		fprintf(stderr, "power_off: %s is not the root of a test's disk\n", argv[1]);
		return 2;
	}
	if (ioctl(fd, POWER_OFF, &how) < 0) {
		fprintf(stderr, "power_off: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	return 0;
}
