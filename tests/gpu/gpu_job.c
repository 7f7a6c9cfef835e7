// SPDX-License-Identifier: Apache-2.0
// gpu_job.c - see gpu_job.h. Called by gpubench and gputest. A failure ends the process (gpu_die).
#include "tests/gpu/gpu_job.h"
#include "ckpt/base/util.h"
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define WAIT_NS (120 * NS_PER_S)

static struct { /* of the handle that was attached last */
	ckpt *c;
	uint32_t mesh;
} last;

/* Where an earlier one was killed, its socket is still there. */
static bool listens(const char *path)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	cleanup_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	return fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0;
}

pid_t job_daemon(const char *programs, const char *dir)
{
	char program[4200], path[600];
	struct timespec t = { 0, 10 * NS_PER_MS };
	pid_t pid;

	snprintf(program, sizeof program, "%s/ckptd", programs);
	snprintf(path, sizeof path, "%s/s", dir);
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(program, program, "--socket", path, "--quiet", NULL);
		_exit(127);
	}
	for (int i = 0; i < 1000 && pid > 0 && !listens(path); i++)
		nanosleep(&t, NULL);
	if (pid < 0 || !listens(path))
		gpu_die("%s does not listen on %s", program, path);
	return pid;
}

/* The upper half of the processors; where there is one, that one. */
static void half_of(const cpu_set_t *all, cpu_set_t *ret)
{
	int n = CPU_COUNT(all), seen = 0;

	CPU_ZERO(ret);
	for (size_t i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, all) && seen++ >= n / 2)
			CPU_SET(i, ret);
}

void job_daemon_confine(pid_t daemon)
{
	char path[64];
	cpu_set_t all, half;
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", (int)daemon);
	d = opendir(path);
	if (!d || sched_getaffinity(0, sizeof all, &all) < 0)
		gpu_die("the threads of ckptd cannot be confined: %s", strerror(errno));
	half_of(&all, &half);
	while ((e = readdir(d))) {
		int thread = atoi(e->d_name);

		if (thread > 0 &&
		    (sched_setaffinity(thread, sizeof half, &half) < 0 ||
		     setpriority(PRIO_PROCESS, (id_t)thread, 10) < 0) &&
		    errno != ESRCH) /* it has ended */
			gpu_die("a thread of ckptd cannot be confined: %s", strerror(errno));
	}
	closedir(d);
}

static void log_put(void *ctx, int level, const char *line)
{
	(void)ctx;
	if (level <= 4)
		fprintf(stderr, "%s\n", line);
}

ckpt *job_attach(const char *dir, const char *job, uint64_t copy_rate, uint32_t guard)
{
	return job_attach_as(dir, &(struct ckpt_opts){ .job = job,
						       .world = 1,
						       .copy_rate = copy_rate,
						       .guard = guard,
						       .log = log_put });
}

ckpt *job_attach_as(const char *dir, const struct ckpt_opts *given)
{
	char socket[600], store[600];
	struct ckpt_opts o = *given;
	static const char *const name[] = { "dp" };
	struct ckpt_err err;
	ckpt *c;

	o.size = sizeof o;
	o.flags |= CKPT_REQUIRE;
	o.store = store;
	o.socket = socket;
	o.device = 1 + (uint32_t)gpu.number;
	snprintf(socket, sizeof socket, "%s/s", dir);
	snprintf(store, sizeof store, "%s/store", dir);
	if (ckpt_attach(&o, &c, &err) < 0)
		gpu_die("ckpt_attach: %s", err.msg);
	if (ckpt_mesh(c, 1, name, &o.world, NULL, &last.mesh, &err) < 0)
		gpu_die("ckpt_mesh: %s", err.msg);
	last.c = c;
	return c;
}

uint32_t job_add(ckpt *c, const struct job_at *t)
{
	uint64_t shape[2] = { t->rows, t->cols };
	int64_t stride[2] = { t->pitch ? t->pitch : (int64_t)t->cols, 1 };
	struct ckpt_local local = { .ptr = (void *)(uintptr_t)t->at, .stride = stride };
	uint32_t id;
	struct ckpt_err err;
	struct ckpt_tensor d = {
		.size = sizeof d,
		.cls = t->cls,
		.role = t->role,
		.dtype = CKPT_F32,
		.component = t->component,
		.name = t->name,
		.ndim = 2,
		.nlocal = 1,
		.shape = shape,
		.local = &local,
	};

	assert(c == last.c);
	d.mesh = last.mesh;
	if (ckpt_tensor_add(c, &d, &id, &err) < 0)
		gpu_die("ckpt_tensor_add: %s", err.msg);
	return id;
}

void job_seal(ckpt *c)
{
	struct ckpt_err err;
	int rc = ckpt_seal(c, WAIT_NS, &err);

	if (rc)
		gpu_die("ckpt_seal: %s", rc < 0 ? err.msg : "the slots are not ready after 120 s");
}
