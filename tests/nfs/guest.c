/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guest.c - what the machine of tests/nfs needs and Debian's programs do not give without more
 * packages.
 *	guest load FILE...			kernel modules, in this order
 *	guest lock FILE OFFSET BYTES		waits for nobody; then holds it until its input ends
 *	guest off				ends the machine
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fail(const char *what)
{
	(void)fprintf(stderr, "guest: %s: %s\n", what, strerror(errno));
	return 1;
}

static int load(const char *file)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
		return fail(file);
	(void)close(fd);
	return 0;
}

static int lock(const char *file, const char *offset, const char *bytes)
{
	struct flock l = { .l_type = F_WRLCK,
			   .l_whence = SEEK_SET,
			   .l_start = (off_t)strtoll(offset, NULL, 10),
			   .l_len = (off_t)strtoll(bytes, NULL, 10) };
	int fd = open(file, O_RDWR | O_CLOEXEC);
	char c;

	if (fd < 0 || fcntl(fd, F_OFD_SETLK, &l))
		return fail(file);
	(void)puts("locked");
	(void)fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
	return 0;
}

int main(int argc, char **argv)
{
	int rc = 0;

	if (argc > 2 && strcmp(argv[1], "load") == 0) {
		for (int i = 2; i < argc && !rc; i++)
			rc = load(argv[i]);
		return rc;
	}
	if (argc == 5 && strcmp(argv[1], "lock") == 0)
		return lock(argv[2], argv[3], argv[4]);
	if (argc == 2 && strcmp(argv[1], "off") == 0) {
		sync();
		return reboot(RB_POWER_OFF) ? fail("off") : 0;
	}
	(void)fputs("guest: load FILE..., lock FILE OFFSET BYTES, or off\n", stderr);
	return 2;
}
