// SPDX-License-Identifier: Apache-2.0
/*
 * nosync.c - preloaded into a daemon, it makes a liar of it: what NOSYNC names (files, dirs or all)
 * is never synced, and that is called a success. What power.sh must notice.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool lie(int fd)
{
	const char *what = getenv("NOSYNC");
	struct stat st;

	if (!what || fstat(fd, &st) < 0)
		return false;
	return strcmp(what, "all") == 0 ||
	       strcmp(what, S_ISDIR(st.st_mode) ? "dirs" : "files") == 0;
}

__attribute__((visibility("default"))) int fsync(int fd)
{
	int (*real)(int);

	*(void **)&real = dlsym(RTLD_NEXT, "fsync");
	return lie(fd) ? 0 : real(fd);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
	int (*real)(int);

	*(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
	return lie(fd) ? 0 : real(fd);
}
