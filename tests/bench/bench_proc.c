/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_proc.c - see bench_proc.h. Called by the other files here. Invariant: a piece of shared
 * memory is known by its inode, and counted once.
 */
#include "bench_proc.h"
#include "bench_job.h"
#include "ckpt/base/util.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SEGMENTS_MAX 4096u

struct segments {
	uint64_t inode[SEGMENTS_MAX], bytes;
	uint32_t n;
};

uint64_t proc_cpu_ns(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		die("the processor time of %d cannot be read", (int)pid);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static bool line_read(const char *path, char *line, int bytes)
{
	FILE *f = fopen(path, "r");
	bool got = f && fgets(line, bytes, f);

	if (f)
		fclose(f);
	return got;
}

struct proc_threads proc_threads(pid_t pid, const char *name)
{
	struct proc_threads sum = { 0 };
	const struct dirent *d;
	char path[320], line[128];
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	dir = opendir(path);
	while (dir && (d = readdir(dir))) {
		uint64_t cpu, wait;

		snprintf(path, sizeof path, "/proc/%d/task/%s/comm", (int)pid, d->d_name);
		if (d->d_name[0] == '.' || !line_read(path, line, sizeof line))
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, d->d_name);
		if (strcmp(line, name) || !line_read(path, line, sizeof line))
			continue;
		if (sscanf(line, "%" SCNu64 " %" SCNu64, &cpu, &wait) != 2)
			die("%s is not understood", path);
		sum.cpu_ns += cpu;
		sum.wait_ns += wait;
	}
	if (!dir)
		die("the threads of %d cannot be listed", (int)pid);
	closedir(dir);
	return sum;
}

uint64_t proc_anon(pid_t pid)
{
	char path[64], line[128];
	uint64_t kib = UINT64_MAX;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	while (f && kib == UINT64_MAX && fgets(line, sizeof line, f))
		if (sscanf(line, "RssAnon: %" SCNu64, &kib) != 1)
			kib = UINT64_MAX;
	if (f)
		fclose(f);
	return kib == UINT64_MAX ? 0 : kib << 10; /* it may have ended meanwhile */
}

static void segment_add(struct segments *s, const char *path)
{
	char to[64] = { 0 };
	struct stat st;

	if (readlink(path, to, sizeof to - 1) < 0 || strncmp(to, "/memfd:", 7) || stat(path, &st))
		return;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->inode[i] == st.st_ino)
			return;
	if (s->n == SEGMENTS_MAX)
		die("more than %u pieces of shared memory", SEGMENTS_MAX);
	s->inode[s->n++] = st.st_ino;
	s->bytes += (uint64_t)st.st_blocks * 512;
}

/* False: it may not be read. */
static bool segments_add(struct segments *s, pid_t pid, const char *what)
{
	const struct dirent *d;
	char path[320];
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
	dir = opendir(path);
	if (!dir)
		return errno != EACCES && errno != EPERM;
	while ((d = readdir(dir))) {
		snprintf(path, sizeof path, "/proc/%d/%s/%s", (int)pid, what, d->d_name);
		segment_add(s, path);
	}
	closedir(dir);
	return true;
}

uint64_t proc_memory(const pid_t *pid, uint32_t n)
{
	static struct segments s;
	uint64_t anon = 0;

	s.n = 0;
	s.bytes = 0;
	for (uint32_t i = 0; i < n; i++) {
		anon += proc_anon(pid[i]);
		if (!segments_add(&s, pid[i], "fd") || !segments_add(&s, pid[i], "map_files"))
			return 0;
	}
	return anon + s.bytes;
}
