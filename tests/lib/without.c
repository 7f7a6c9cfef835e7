/* SPDX-License-Identifier: Apache-2.0 */
/*
 * without.c - `without FEATURE[,FEATURE...] -- COMMAND...` runs a command on a machine that lacks
 * something: system calls fail for it and all that it starts, as in a container, on another file
 * system or on an older kernel. Used by tests/e2e/test_without.sh, which reruns other tests so.
 * `without --list` prints the features, a line each. Exit status: the command's; 125 where no
 * filter can be installed, 127 where the command cannot be started, 2 for a bad command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include "tests/lib/deny_syscall.h"

#define ARRAY_LEN(x) (sizeof(x) / sizeof *(x))

static const struct denial {
	const char *feature, *like;
	long nr;
	int eno;
	unsigned arg, mask; /* deny_install_if */
} denials[] = {
	{ "io_uring", "Docker's default profile", SYS_io_uring_setup, EPERM, 0, 0 },
	{ "io_uring-enosys", "gVisor, kernels before 5.1", SYS_io_uring_setup, ENOSYS, 0, 0 },
	{ "io_uring-register", "a ring that cannot be asked", SYS_io_uring_register, EINVAL, 0, 0 },
	{ "odirect", "file systems without direct I/O", SYS_openat, EINVAL, 2, O_DIRECT },
	/* the flags are in memory, where a filter does not look: the walk is used */
	{ "odirect", NULL, SYS_openat2, ENOSYS, 0, 0 },
#ifdef SYS_open
	{ "odirect", NULL, SYS_open, EINVAL, 1, O_DIRECT },
#endif
	{ "openat2", "kernels before 5.6", SYS_openat2, ENOSYS, 0, 0 },
	{ "openat2-eperm", "old sandboxes", SYS_openat2, EPERM, 0, 0 },
	{ "fallocate", "NFS before 4.2", SYS_fallocate, EOPNOTSUPP, 0, 0 },
	{ "fallocate-enosys", "sandboxes", SYS_fallocate, ENOSYS, 0, 0 },
	{ "noreplace", "NFS, old FUSE", SYS_renameat2, EINVAL, 4, RENAME_NOREPLACE },
	{ "renameat2", "kernels before 3.15", SYS_renameat2, ENOSYS, 0, 0 },
	{ "statx", "kernels before 4.11", SYS_statx, ENOSYS, 0, 0 },
	{ "flock", "Lustre without -o flock", SYS_flock, ENOSYS, 0, 0 },
	{ "sync_file_range", "sandboxes", SYS_sync_file_range, ENOSYS, 0, 0 },
	{ "fadvise", "sandboxes", SYS_fadvise64, ENOSYS, 0, 0 },
	{ "pidfd", "kernels before 5.3", SYS_pidfd_open, ENOSYS, 0, 0 },
	{ "close_range", "kernels before 5.9", SYS_close_range, ENOSYS, 0, 0 },
	{ "memfd", "nothing that ckptd runs on: an error", SYS_memfd_create, ENOSYS, 0, 0 },
};

static int usage(void)
{
	(void)fprintf(stderr, "usage: without FEATURE[,FEATURE...] -- COMMAND [ARG...]\n"
			      "       without --list\n");
	return 2;
}

static void list(void)
{
	for (size_t i = 0; i < ARRAY_LEN(denials); i++)
		if (denials[i].like)
			(void)printf("%s\t%s\n", denials[i].feature, denials[i].like);
}

/* 0; 2: no such feature; 125: no filters here. */
static int take_away(const char *feature)
{
	int found = 0;

	for (size_t i = 0; i < ARRAY_LEN(denials); i++) {
		const struct denial *d = &denials[i];

		if (strcmp(d->feature, feature) != 0)
			continue;
		found = 1;
		if (deny_install_if((unsigned)d->nr, (unsigned)d->eno, d->arg, d->mask)) {
			(void)fprintf(stderr, "without: no filter can be installed: %s\n",
				      strerror(errno));
			return 125;
		}
	}
	if (!found)
		(void)fprintf(stderr, "without: no feature is called %s; see without --list\n",
			      feature);
	return found ? 0 : 2;
}

int main(int argc, char **argv)
{
	char *save, *feature;

	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		list();
		return 0;
	}
	if (argc < 4 || strcmp(argv[2], "--") != 0)
		return usage();
	for (feature = strtok_r(argv[1], ",", &save); feature;
	     feature = strtok_r(NULL, ",", &save)) {
		int rc = take_away(feature);

		if (rc)
			return rc;
	}
	(void)execvp(argv[3], argv + 3);
	(void)fprintf(stderr, "without: %s: %s\n", argv[3], strerror(errno));
	return 127;
}
