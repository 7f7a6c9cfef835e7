/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - see host.h. */
#include "tests/lib/host.h"
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"
#include "formats/native/native.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

struct host H;
struct rank K;
struct asker A;
struct said daemon_said = SAID_NOTHING;

static int no_sync(void *ctx, int fd)
{
	(void)ctx, (void)fd;
	return 0;
}

struct io_ops host_ops;

void host_make(struct host *h)
{
	struct rlimit files;

	/* Else most of a test's time goes into clearing the daemon's large pages. */
	(void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur =
			files.rlim_max; /* the ranks' and the daemon's are all in this process */
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	*h = (struct host){ .opts = { .engine = IO_THREADS,
				      .copy_threads = 2,
				      .log = { said_line, &daemon_said, LOG_DEBUG } } };
	host_ops = io_ops_posix;
	host_ops.sync = no_sync;
	scratch_make(h->dir);
	snprintf(h->socket, sizeof h->socket, "%.90s/socket", h->dir);
	snprintf(h->store, sizeof h->store, "%.90s/store", h->dir);
}

int host_setup(void **state)
{
	(void)state;
	said_forget(&daemon_said);
	daemon_said.level = 0;
	K = (struct rank){ 0 };
	A = (struct asker){ .sock = -1 };
	host_make(&H);
	return 0;
}

int host_setup_started(void **state)
{
	(void)host_setup(state);
	host_start(&H, NULL);
	return 0;
}

int host_teardown(void **state)
{
	(void)state;
	if (K.c)
		rank_close(&K, 0);
	if (A.sock >= 0)
		ask_close(&A);
	if (H.d)
		host_stop(&H);
	host_free(&H);
	return 0;
}

struct plan_of_job plan_of_host(struct plan_of_job p)
{
	p.socket = p.socket ? p.socket : H.socket;
	p.store = p.store ? p.store : H.store;
	p.guard = p.guard ? p.guard : CKPT_FINISH;
	return p;
}

void host_free(struct host *h)
{
	MUST(!h->d);
	MUST(scratch_remove(h->dir) == 0);
}

void *host_run(void *arg)
{
	struct host *h = arg;

	MUST(daemon_run(h->d) == 0);
	return NULL;
}

void host_start(struct host *h, const struct io_ops *ops)
{
	struct daemon_opts o = h->opts;
	struct ckpt_err err;

	o.socket = h->socket;
	o.ops = ops ? ops : o.engine == IO_THREADS ? &host_ops : NULL;
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

void host_restart(struct host *h)
{
	host_stop(h);
	host_start(h, NULL);
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
	struct store s = { .ops = &io_ops_posix,
			   .format = &format_native,
			   .job_fd = host_job_fd(h, job) };
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

	MUST(source_make(&io_ops_posix, fd, NULL, 0, &dir) == 0);
	MUST_OK(format_native.open(&(struct format_open){ .dir = &dir, .fault = fault_print }, &c,
				   &err),
		&err);
	source_end(&dir);
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

static int by_step(const void *a, const void *b)
{
	const struct store_step *x = a, *y = b;

	return (x->step > y->step) - (x->step < y->step);
}

const char *host_steps(const struct host *h, const char *job)
{
	static const char mark[][2] = { [STORE_SET_ASIDE] = "~",
					[STORE_DAMAGED] = "!",
					[STORE_QUARANTINED] = "q",
					[STORE_MISPLACED] = "?" };
	static char text[256];
	struct store_step *step;
	uint32_t n = host_scan(h, job, &step), len = 0;

	text[0] = 0;
	qsort(step, n, sizeof *step, by_step);
	for (uint32_t i = 0; i < n && len < sizeof text - 32; i++)
		if (step[i].state != STORE_COLLECTING)
			len += (uint32_t)snprintf(
				text + len, sizeof text - len, "%s%s%" PRIu64, len ? " " : "",
				step[i].state < ARRAY_LEN(mark) ? mark[step[i].state] : "",
				step[i].step);
	free(step);
	return text;
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

int host_step_fd(const struct host *h, const char *job, uint64_t step)
{
	char dir[STORE_DIR_MAX];

	MUST(step_dir(h, job, step, dir));
	return step_fd(h, job, dir);
}

struct checkpoint *host_open(const struct host *h, const char *job, uint64_t step)
{
	cleanup_close int fd = host_step_fd(h, job, step);

	return open_dir(fd);
}

void host_damage(const struct host *h, const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(h, job, step);
	cleanup_close int fd = host_step_fd(h, job, step), part = -1;
	uint8_t b = 0;

	part = openat(fd, c->file[0].name, O_RDWR | O_CLOEXEC);
	MUST(part >= 0 && pread(part, &b, 1, 4096 + 10) == 1);
	b ^= 1;
	MUST(pwrite(part, &b, 1, 4096 + 10) == 1);
	checkpoint_free(c);
}

/* --- the gate --- */
void gate_pass(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	g->waiting++;
	pthread_cond_broadcast(&g->changed);
	while (g->closed)
		pthread_cond_wait(&g->changed, &g->lock);
	g->waiting--;
	pthread_mutex_unlock(&g->lock);
}

static int64_t gate_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	gate_pass(ctx);
	return io_ops_posix.pwrite(io_ops_posix.ctx, fd, buf, len, off);
}

void gate_make(struct gate *g)
{
	*g = (struct gate){ .ops = host_ops,
			    .lock = PTHREAD_MUTEX_INITIALIZER,
			    .changed = PTHREAD_COND_INITIALIZER };
	MUST(!io_ops_posix.ctx); /* or the other calls would get a context that is not theirs */
	g->ops.ctx = g;
	g->ops.pwrite = gate_pwrite;
}

struct gate G;

void host_start_gated(void)
{
	gate_make(&G);
	host_start(&H, &G.ops);
}

static void gate_line(void *text, int level, const char *line)
{
	said_line(&daemon_said, level, line);
	if (strstr(line, text))
		gate_pass(&G);
}

void host_start_gated_at(const char *text)
{
	gate_make(&G);
	H.opts.log.sink = gate_line;
	H.opts.log.ctx = (void *)(uintptr_t)text;
	host_start(&H, NULL);
}

void gate_set(struct gate *g, bool closed)
{
	pthread_mutex_lock(&g->lock);
	g->closed = closed;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

static void *open_soon(void *gate)
{
	(void)usleep(30000);
	gate_set(gate, false);
	return NULL;
}

pthread_t gate_open_soon(struct gate *g)
{
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, open_soon, g) == 0);
	return thread;
}

void gate_await(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	while (!g->waiting)
		pthread_cond_wait(&g->changed, &g->lock);
	pthread_mutex_unlock(&g->lock);
}
