// SPDX-License-Identifier: Apache-2.0
// exp_pull.c - E5: a second process copies the state of the loop out of the device, each step.
// ckptd has no such process: these rows say what one would cost, and none of them has a limit. Then
// the owners of such memory are killed (exp_pull_kill.c).
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_link.h"
#include "tests/gpu/gpu_pull.h"
#include "tests/gpu/gpu_train.h"
#include "tests/gpu/gpubench.h"
#include <stdio.h>

#define CHECKS 3u
#define GUARD_NS (2 * NS_PER_MS) /* as ckpt_guard waits at most, where steps are short */

int again_pull(void)
{
	pull_run(pull_page_find());
	return 0;
}

/* --- the trainer --- */
struct pulled {
	struct pull_page *page;
	cuda_ptr page_at; /* as the device sees it */
	int fd;
	pthread_t thread; /* waits for the second process */
	_Atomic bool ended;
	int rc, status;
	char out[1024];		  /* of it */
	uint32_t number, settled; /* the newest snapshot; the newest that a guard has decided */
	uint64_t torn;
	struct stat_side guard, mark;
};

static void *second_run(void *arg)
{
	struct pulled *x = arg;
	char fd[16];

	snprintf(fd, sizeof fd, "%d", x->fd);
	x->rc = again_run("pull", PULL_ENV, fd, bench.small ? 100 : 300, x->out, sizeof x->out,
			  &x->status);
	atomic_store(&x->ended, true);
	return NULL;
}

static void hook_guard(void *ctx, struct train *t)
{
	struct pulled *x = ctx;

	(void)t;
	if (x->settled == x->number)
		return;
	x->settled = x->number;
	x->torn += !pull_guard(x->page, x->number, GUARD_NS);
}

static void hook_mark(void *ctx, struct train *t)
{
	struct pulled *x = ctx;

	pull_mark(x->page, x->page_at, ++x->number, t->stream);
}

static void hook_block(void *ctx, struct train *t, bool begins)
{
	struct pulled *x = ctx;

	if (begins) {
		stat_block(&x->guard);
		stat_block(&x->mark);
	} else {
		hook_guard(ctx, t); /* nothing is copied in the steps without */
	}
}

static void hook_each(void *ctx, const struct train *t, double ns)
{
	struct pulled *x = ctx;

	(void)ns;
	stat_add(&x->guard, t->guard_ns);
	stat_add(&x->mark, t->mark_ns);
}

/* Its memory to the second process, which is there when this returns true; else `why`. */
static bool second_start(struct pulled *x, const struct train *t, char why[300])
{
	const cuda_ptr at[PULL_TENSORS] = { t->p, t->m, t->v };
	uint64_t until = now_ns() + (bench.small ? 20 : 60) * NS_PER_S;

	x->fd = pull_page_make(&x->page);
	if (!pull_give(x->page, at, t->n * 4, &x->page_at, why))
		return false;
	if (pthread_create(&x->thread, NULL, second_run, x))
		gpu_die("no thread");
	while (!atomic_load(&x->page->ready) && !atomic_load(&x->ended) && now_ns() < until)
		pull_nap();
	if (atomic_load(&x->page->ready))
		snprintf(why, 300, "%s", x->page->why);
	else if (atomic_load(&x->ended))
		snprintf(why, 300, "the second process ended with status %d: %.200s", x->status,
			 x->out);
	else
		snprintf(why, 300, "the second process has not opened the memory in time");
	return !why[0];
}

/* States that are known, changed as soon as they are copied. false: one was not copied in time. */
static bool copies_check(struct pulled *x, struct train *t)
{
	const cuda_ptr at[PULL_TENSORS] = { t->p, t->m, t->v };
	bool all = true;

	atomic_store(&x->page->check, true);
	for (uint32_t k = 0; k < CHECKS && all; k++) {
		gpu_work(t->in, t->words, t->out, t->rounds, t->stream);
		for (uint32_t i = 0; i < PULL_TENSORS; i++)
			gpu_fill(at[i], t->n / 2, PULL_SEED + i, x->number + 1, t->stream);
		pull_mark(x->page, x->page_at, ++x->number, t->stream);
		all = pull_guard(x->page, x->number, 60 * NS_PER_S);
	}
	atomic_store(&x->page->check, false);
	for (uint32_t i = 0; i < PULL_TENSORS; i++)
		gpu_random(at[i], t->n, PULL_SEED + i, i == 2, t->stream);
	GPU(gpu.cu->stream_sync(t->stream));
	return all;
}

/* --- rows --- */
static void slowdown_put(const char *name, const struct train_pair *pair, double q)
{
	struct stat_value v = stat_slowdown(&pair->a, &pair->b, q);

	row_put(&(struct row){ .name = name,
			       .what = "how much longer steps are that a second process copies; "
				       "numerator, denominator: ns with it and without",
			       .unit = "ratio",
			       .value = v.value,
			       .low = v.low,
			       .high = v.high,
			       .numerator = v.of_b,
			       .denominator = v.of_a,
			       .n = v.n,
			       .time = true });
}

static void host_put(const char *name, const struct stat_side *s)
{
	row_put(&(struct row){ .name = name,
			       .what = "median on the training thread; numerator: p99, "
				       "denominator: the longest",
			       .unit = "us",
			       .value = stat_side_quantile(s, .5) / 1e3,
			       .numerator = stat_side_quantile(s, .99) / 1e3,
			       .denominator = stat_side_quantile(s, 1) / 1e3,
			       .time = true });
}

static void rows_of(struct pulled *x, const struct train_pair *pair, uint32_t marks, double ceiling)
{
	double ns = (double)atomic_load(&x->page->copy_ns);

	slowdown_put("pull_slowdown_median", pair, .5);
	slowdown_put("pull_slowdown_p99", pair, .99);
	host_put("pull_guard_host", &x->guard);
	host_put("pull_mark_host", &x->mark);
	row_put(&(struct row){ .name = "pull_torn",
			       .what = "copies that the guard gave up, of those that were marked",
			       .unit = "ratio",
			       .value = (double)x->torn / marks,
			       .numerator = (double)x->torn,
			       .denominator = marks,
			       .time = true });
	if (ns > 0)
		row_put(&(struct row){
			.name = "pull_bandwidth",
			.what = "copies of the second process, beside pinned copies of this one",
			.unit = "ratio",
			.value = (double)atomic_load(&x->page->copied) / ns / ceiling,
			.numerator = (double)atomic_load(&x->page->copied) / ns,
			.denominator = ceiling,
			.time = true });
}

/* Contexts of several processes take turns on the device, unless MPS shares it between them. */
static void mps_put(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[4096];

	snprintf(path, sizeof path, "%s/control", dir ? dir : "/tmp/nvidia-mps");
	row_put(&(struct row){
		.name = "pull_mps",
		.what = "1: in this run MPS shared the device between the processes; "
			"0: start nvidia-cuda-mps-control -d, and run E5 again",
		.value = access(path, F_OK) == 0 });
}

static void second_measure(struct pulled *x, struct train *t, double ceiling, uint64_t hbm)
{
	static const struct train_hooks kinds = { hook_guard, hook_mark, hook_block, NULL };
	struct train_hooks hooks = kinds;
	struct train_pair pair;
	uint32_t first;

	row_put(&(struct row){ .name = "pull_context",
			       .what = "device memory that the second process takes",
			       .unit = "MiB",
			       .value = ((double)hbm - (double)gpu_free_bytes()) / (double)MIB,
			       .time = true });
	row_put(&(struct row){ .name = "pull_open",
			       .what = "cuIpcOpenMemHandle of the whole state",
			       .unit = "ms",
			       .value = (double)atomic_load(&x->page->open_ns) / 1e6,
			       .time = true });
	if (!copies_check(x, t)) {
		row_skip("pull", "the second process has not copied in 60 seconds: %.300s", x->out);
		return;
	}
	row_put(&(struct row){ .name = "pull_wrong",
			       .what = "words of its copies that are not of their step",
			       .value = (double)atomic_load(&x->page->wrong),
			       .numerator = (double)atomic_load(&x->page->wrong),
			       .denominator = (double)(CHECKS * PULL_TENSORS * (t->n / 2)) });
	first = x->settled = x->number;
	atomic_store(&x->page->copied, 0);
	atomic_store(&x->page->copy_ns, 0);
	hooks.ctx = x;
	train_compare(t, &hooks, bench.seconds, hook_each, &pair);
	if (atomic_load(&x->ended))
		row_skip("pull", "the second process ended with status %d: %.300s", x->status,
			 x->out);
	else
		rows_of(x, &pair, x->number - first, ceiling);
}

void e5_pull(void)
{
	static struct pulled x = { .fd = -1 };
	char why[300] = "";
	double ceiling;
	struct train t;
	uint64_t hbm;

	if (!gpu.ipc_get || !gpu.ipc_open || !gpu.ipc_close || !gpu.cu->stream_write) {
		row_skip("pull", "the driver has no CUDA IPC (cuIpcOpenMemHandle), or no "
				 "cuStreamWriteValue32");
		return;
	}
	mps_put();
	train_make(&t, bench.state_bytes, gpu_stream());
	ceiling = link_ceiling(t.stream, t.p, t.n * 4);
	train_window(&t, 1.35 * (double)bench.state_bytes / ceiling);
	hbm = gpu_free_bytes();
	if (!second_start(&x, &t, why)) { /* what still runs ends with this process */
		row_skip("pull", "%s", why);
		return;
	}
	second_measure(&x, &t, ceiling, hbm);
	atomic_store(&x.page->stop, true);
	(void)pthread_join(x.thread, NULL);
	e5_kills();
}
