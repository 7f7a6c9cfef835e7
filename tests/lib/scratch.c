/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c - see scratch.h. */
#include "tests/lib/scratch.h"
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void scratch_make(char ret[SCRATCH_MAX])
{
	const char *tmp = getenv("TMPDIR"), *name = "ckpt-XXXXXX";

	if (!tmp || strlen(tmp) + 1 + strlen(name) >= SCRATCH_MAX)
		tmp = "/tmp";
	(void)snprintf(ret, SCRATCH_MAX, "%s/%s", tmp, name);
	if (!mkdtemp(ret)) {
		fprintf(stderr, "%s: %s\n", ret, strerror(errno));
		abort();
	}
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st, (void)type, (void)f;
	return remove(path);
}

int scratch_remove(const char *dir)
{
	int rc = nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);

	return rc < 0 && errno == ENOENT ? 0 : rc;
}

uint32_t open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint32_t n = 0;

	if (!d)
		abort();
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
