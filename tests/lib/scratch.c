/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c - see scratch.h. */
#include "tests/lib/scratch.h"
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char made[4][SCRATCH_MAX]; /* and not removed yet */

static pid_t owner; /* not what it forks */

static void remove_all(int sig)
{
	(void)sig; /* and then it is the end */
	for (size_t i = 0; i < sizeof made / sizeof *made && getpid() == owner; i++)
		for (int again = 0; made[i][0] && again < 3;
		     again++) { /* somebody may still write */
			char dir[SCRATCH_MAX];

			memcpy(dir, made[i], sizeof dir);
			if (scratch_remove(dir) != 0)
				memcpy(made[i], dir, sizeof dir);
		}
}

void scratch_make(char ret[SCRATCH_MAX])
{
	const char *tmp = getenv("TMPDIR"), *name = "ckpt-XXXXXX";

	if (!tmp || strlen(tmp) + 1 + strlen(name) >= SCRATCH_MAX)
		tmp = "/tmp";
	owner = getpid();
	(void)signal(SIGABRT, remove_all);
	(void)snprintf(ret, SCRATCH_MAX, "%s/%s", tmp, name);
	if (!mkdtemp(ret)) {
		fprintf(stderr, "%s: %s\n", ret, strerror(errno));
		abort();
	}
	for (size_t i = 0; i < sizeof made / sizeof *made; i++)
		if (!made[i][0]) {
			memcpy(made[i], ret, SCRATCH_MAX);
			return;
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

	for (size_t i = 0; i < sizeof made / sizeof *made; i++)
		if (strcmp(made[i], dir) == 0)
			made[i][0] = 0;
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
