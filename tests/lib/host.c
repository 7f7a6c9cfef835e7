/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - see host.h. Included by tests. */
#include "tests/lib/host.h"
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

void host_make(struct host *h)
{
	const char *tmp = getenv("TMPDIR");

	*h = (struct host){ 0 };
	snprintf(h->dir, sizeof h->dir, "%.60s/ckpt-host-XXXXXX", tmp ? tmp : "/tmp");
	MUST(mkdtemp(h->dir));
	snprintf(h->socket, sizeof h->socket, "%.90s/socket", h->dir);
	snprintf(h->store, sizeof h->store, "%.90s/store", h->dir);
}

void host_free(struct host *h)
{
	MUST(!h->d);
	MUST(io_tree_remove(AT_FDCWD, h->dir) == 0);
}

void *host_run(void *arg)
{
	struct host *h = arg;

	MUST(daemon_run(h->d) == 0);
	return NULL;
}

void host_start(struct host *h, enum io_engine engine, const struct io_ops *ops)
{
	struct daemon_opts o = {
		.socket = h->socket, .engine = engine, .ops = ops, .copy_threads = 2, .log = h->log
	};
	struct ckpt_err err;

	o.log = h->log;
	if (getenv("CKPT_TEST_LOG"))
		o.log = (struct log){ log_to_stderr, NULL, LOG_DEBUG };
	MUST_OK(daemon_open(&o, &h->d, &err), &err);
	MUST(pthread_create(&h->thread, NULL, host_run, h) == 0);
}

void host_end(struct host *h)
{
	pthread_join(h->thread, NULL);
	daemon_close(TAKE(h->d));
}

void host_stop(struct host *h)
{
	daemon_stop(h->d);
	host_end(h);
}

void host_kill(struct host *h)
{
	daemon_kill(h->d);
	host_end(h);
}

/* --- stores --- */
int host_job_fd(const struct host *h, const char *job)
{
	char path[256];

	snprintf(path, sizeof path, "%s/%s", h->store, job);
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

uint32_t host_scan(const struct host *h, const char *job, struct store_step **ret)
{
	struct store s = { .ops = &io_ops_posix, .job_fd = host_job_fd(h, job) };
	struct ckpt_err err;
	uint32_t n = 0;

	*ret = NULL;
	if (s.job_fd < 0)
		return 0;
	snprintf(s.job, sizeof s.job, "%s", job);
	MUST_OK(store_scan(&s, true, ret, &n, &err), &err);
	(void)close(s.job_fd);
	return n;
}

static void fault_print(void *arg, const struct format_fault *f)
{
	(void)arg;
	fprintf(stderr, "# %s in %s at %llu: %s\n", f->kind, f->file, (unsigned long long)f->offset,
		f->text);
}

static int step_fd(const struct host *h, const char *job, const char *dir)
{
	int fd = host_job_fd(h, job), step = openat(fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)close(fd);
	MUST(step >= 0);
	return step;
}

static struct checkpoint *open_dir(int fd)
{
	struct checkpoint *c = NULL;
	struct source_dir dir;
	struct ckpt_err err = { 0 };

	MUST(store_source_dir(&io_ops_posix, fd, &dir) == 0);
	MUST_OK(format_native.open(&dir, &c, fault_print, NULL, &err), &err);
	store_source_dir_close(&dir);
	return c;
}

void host_verify(const struct host *h, const char *job, const char *dir)
{
	cleanup_close int fd = step_fd(h, job, dir);
	struct checkpoint *c = open_dir(fd);
	struct move_files files;
	struct ckpt_err err = { 0 };
	uint64_t bytes;

	MUST_OK(move_open(&io_ops_posix, fd, c, false, IO_INLINE, &files, &err), &err);
	MUST_OK(move_verify(&files, NULL, NULL, fault_print, NULL, &bytes, &err), &err);
	move_close(&files);
	checkpoint_free(c);
}

uint32_t host_committed(const struct host *h, const char *job, uint64_t *ret, uint32_t n)
{
	struct store_step *step;
	uint32_t all = host_scan(h, job, &step), k = 0;

	for (uint32_t i = 0; i < all; i++) {
		if (step[i].state != STORE_COMMITTED)
			continue;
		host_verify(h, job, step[i].dir);
		if (k < n)
			ret[k] = step[i].step;
		k++;
	}
	free(step);
	return k;
}

uint32_t host_count(const struct host *h, const char *job, enum store_state state)
{
	struct store_step *step;
	uint32_t all = host_scan(h, job, &step), k = 0;

	for (uint32_t i = 0; i < all; i++)
		k += step[i].state == state;
	free(step);
	return k;
}

static bool step_dir(const struct host *h, const char *job, uint64_t which, char *ret)
{
	struct store_step *step;
	uint32_t all = host_scan(h, job, &step);
	bool found = false;

	for (uint32_t i = 0; i < all && !found; i++)
		if (step[i].state == STORE_COMMITTED && step[i].step == which) {
			found = true;
			memcpy(ret, step[i].dir, STORE_DIR_MAX);
		}
	free(step);
	return found;
}

bool host_has(const struct host *h, const char *job, uint64_t step)
{
	char dir[STORE_DIR_MAX];

	return step_dir(h, job, step, dir);
}

struct checkpoint *host_open(const struct host *h, const char *job, uint64_t step)
{
	char dir[STORE_DIR_MAX];
	cleanup_close int fd = -1;

	MUST(step_dir(h, job, step, dir));
	fd = step_fd(h, job, dir);
	return open_dir(fd);
}

void host_damage(const struct host *h, const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(h, job, step);
	char dir[STORE_DIR_MAX];
	cleanup_close int fd = -1, part = -1;
	uint8_t b = 0;

	MUST(step_dir(h, job, step, dir));
	fd = step_fd(h, job, dir);
	part = openat(fd, c->file[0].name, O_RDWR | O_CLOEXEC);
	MUST(part >= 0 && pread(part, &b, 1, 4096 + 10) == 1);
	b ^= 1;
	MUST(pwrite(part, &b, 1, 4096 + 10) == 1);
	checkpoint_free(c);
}

/* --- the gate --- */
static int64_t gate_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct gate *g = ctx;

	pthread_mutex_lock(&g->lock);
	g->waiting++;
	pthread_cond_broadcast(&g->changed);
	while (g->closed)
		pthread_cond_wait(&g->changed, &g->lock);
	g->waiting--;
	pthread_mutex_unlock(&g->lock);
	return io_ops_posix.pwrite(io_ops_posix.ctx, fd, buf, len, off);
}

void gate_make(struct gate *g)
{
	*g = (struct gate){ .ops = io_ops_posix,
			    .lock = PTHREAD_MUTEX_INITIALIZER,
			    .changed = PTHREAD_COND_INITIALIZER };
	MUST(!io_ops_posix.ctx); /* or the other calls would get a context that is not theirs */
	g->ops.ctx = g;
	g->ops.pwrite = gate_pwrite;
}

void gate_set(struct gate *g, bool closed)
{
	pthread_mutex_lock(&g->lock);
	g->closed = closed;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

void gate_await(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	while (!g->waiting)
		pthread_cond_wait(&g->changed, &g->lock);
	pthread_mutex_unlock(&g->lock);
}
