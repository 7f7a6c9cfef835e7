// SPDX-License-Identifier: Apache-2.0
// exp_loop.c - E3, E6, E7, E8: the loop beside itself, small copies beside large ones, what a call
// costs, and one connection to the device. None of them needs ckptd.
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_link.h"
#include "tests/gpu/gpu_train.h"
#include "tests/gpu/gpubench.h"
#include <math.h>
#include <stdatomic.h>

#define SEED 13u
#define NOISE_MAX .002
#define THREAD_NS_MAX 5000.
#define CALLS 2000u
#define MANY 64u
#define HANG_SECONDS 60u

/* --- E3 --- */
static void interval_put(const char *name, const char *what, struct stat_value v, double limit)
{
	double low = fabs(v.low), high = fabs(v.high);
	bool around_zero = v.low <= 0 && v.high >= 0;

	row_put(&(struct row){ .name = name,
			       .what = what,
			       .unit = "ratio",
			       .value = fabs(v.value),
			       .low = around_zero ? 0 : MIN(low, high),
			       .high = MAX(low, high),
			       .numerator = v.of_b,
			       .denominator = v.of_a,
			       .bound = ROW_AT_MOST,
			       .limit = limit,
			       .n = v.n,
			       .time = true });
}

static void step_put(const char *name, const struct stat_side *s, double q)
{
	row_put(&(struct row){ .name = name,
			       .unit = "ms",
			       .value = stat_side_quantile(s, q) / 1e6,
			       .time = true });
}

void e3_noise(void)
{
	static const struct train_hooks none = { 0 };
	cuda_stream s = gpu_stream();
	struct train_pair pair;
	struct train t;
	double gbps;

	train_make(&t, bench.state_bytes, s);
	gbps = link_ceiling(s, t.p, t.n * 4);
	train_window(&t, 1.35 * (double)bench.state_bytes / gbps);
	train_compare(&t, &none, bench.seconds, NULL, &pair);
	interval_put("noise_median",
		     "how much longer steps without ckptd are than others without it; "
		     "numerator, denominator: ns",
		     stat_slowdown(&pair.a, &pair.b, .5), NOISE_MAX);
	interval_put("noise_p99", "the same at p99", stat_slowdown(&pair.a, &pair.b, .99), .01);
	step_put("step_p50", &pair.a, .5);
	step_put("step_p99", &pair.a, .99);
	step_put("step_max", &pair.a, 1);
}

/* --- E6 --- */
void item_reads(cuda_ptr from, uint32_t n, struct stat_side *side)
{
	cuda_stream s = gpu_stream();
	cuda_event e = gpu_event(false);
	void *to;

	GPU(gpu.cu->host_alloc(&to, 4096, CUDA_REGISTER_PORTABLE));
	stat_block(side);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t begin = now_ns();

		GPU(gpu.cu->copy_out(to, from, 4, s));
		GPU(gpu.cu->event_record(e, s));
		gpu_wait(e);
		stat_add(side, (double)(now_ns() - begin));
	}
	GPU(gpu.cu->host_free(to));
	GPU(gpu.cu->event_free(e));
	GPU(gpu.cu->stream_free(s));
}

void item_put(const char *name, const char *what, enum row_bound bound,
	      const struct stat_side *alone, const struct stat_side *beside)
{
	double p99 = stat_side_quantile(beside, .99), was = stat_side_quantile(alone, .99);

	row_put(&(struct row){ .name = name,
			       .what = what,
			       .unit = "ms",
			       .value = (p99 - was) / 1e6,
			       .numerator = p99 / 1e6,
			       .denominator = was / 1e6,
			       .bound = bound,
			       .limit = 1,
			       .n = (uint64_t)beside->nblock * beside->n[0],
			       .time = true });
}

static void latency_of(cuda_ptr from, uint64_t span, uint64_t size, uint32_t depth)
{
	struct stat_side alone = { 0 }, beside = { 0 };
	bool standard = size == LINK_CHUNK && depth == LINK_DEPTH;
	uint32_t n = bench.small ? 20 : 400;
	struct link_copier *c;
	char name[64];

	item_reads(from, n, &alone);
	c = link_copier_start(from, span, size, depth);
	item_reads(from, n, &beside);
	link_copier_stop(c);
	snprintf(name, sizeof name, "item_%lluK_x%u", (unsigned long long)(size >> 10), depth);
	item_put(name, "what copies of this size and depth add to the p99 of a read of 4 bytes",
		 standard ? ROW_AT_MOST : ROW_INFO, &alone, &beside);
}

void e6_latency(void)
{
	uint64_t span = bench.small ? LINK_CHUNK : GIB;
	cuda_ptr from = gpu_alloc(span);
	cuda_stream s = gpu_stream();

	gpu_fill(from, span / 8, SEED, 0, s);
	GPU(gpu.cu->stream_sync(s));
	for (uint64_t size = 4 * MIB; size <= MIN(span, 256 * MIB); size *= 4)
		for (uint32_t depth = 1; depth <= 4; depth++)
			latency_of(from, span, size, depth);
	GPU(gpu.cu->mem_free(from));
	e6_snapshots();
}

/* --- E7 --- */
struct call_rig {
	cuda_stream s, other;
	cuda_event e, done;
	cuda_ptr device, out;
	void *host; /* pinned */
	cuda_ptr host_at;
	struct train train;
};

static void call_record(struct call_rig *r)
{
	GPU(gpu.cu->event_record(r->e, r->s));
}

static void call_wait(struct call_rig *r)
{
	GPU(gpu.cu->stream_wait(r->s, r->done, 0));
}

static void call_query(struct call_rig *r)
{
	(void)gpu.cu->event_query(r->e);
}

static void call_write(struct call_rig *r)
{
	GPU(gpu.cu->stream_write(r->s, r->host_at, 1, 0));
}

static void call_copy(struct call_rig *r)
{
	GPU(gpu.cu->copy_out(r->host, r->device, 4096, r->s));
}

static void call_many(struct call_rig *r)
{
	cuda_ptr to[MANY], from[MANY];
	size_t bytes[MANY], first = 0, bad;
	struct cuda_copy_attr attr = { .order = CUDA_SRC_ORDER_STREAM };

	for (uint32_t i = 0; i < MANY; i++) {
		to[i] = (uintptr_t)r->host + i * 512;
		from[i] = r->device + i * 1024;
		bytes[i] = 512;
	}
	if (gpu.cu->copy_many)
		GPU(gpu.cu->copy_many(to, from, bytes, MANY, &attr, &first, 1, r->s));
	else
		GPU(gpu.cu->copy_many_12(to, from, bytes, MANY, &attr, &first, 1, &bad, r->s));
}

static void call_launch(struct call_rig *r)
{
	gpu_work(r->train.in, r->train.words, r->train.out, 1, r->s);
}

static void nothing(void *unused)
{
	(void)unused;
}

static void call_host(struct call_rig *r)
{
	GPU(gpu.launch_host(r->s, nothing, NULL));
}

static void call_context(struct call_rig *r)
{
	(void)r;
	GPU(gpu.cu->ctx_set(gpu.ctx));
}

static void call_event(struct call_rig *r)
{
	cuda_event e = gpu_event(false);

	(void)r;
	GPU(gpu.cu->event_free(e));
}

static void call_capturing(struct call_rig *r)
{
	unsigned is;

	GPU(gpu.cu->stream_capturing(r->s, &is));
}

static const struct {
	const char *name;
	void (*call)(struct call_rig *);
	bool training; /* the training thread makes it for a snapshot or for a guard that waits */
} calls[] = {
	{ "cuEventRecord", call_record, true },
	{ "cuStreamWaitEvent", call_wait, true },
	{ "cuStreamIsCapturing", call_capturing, true },
	{ "cuEventQuery", call_query, false },
	{ "cuStreamWriteValue32", call_write, false },
	{ "cuMemcpyDtoHAsync_4K", call_copy, false },
	{ "cuMemcpyBatchAsync_64", call_many, false },
	{ "cuLaunchKernel", call_launch, false },
	{ "cuLaunchHostFunc", call_host, false },
	{ "cuCtxSetCurrent", call_context, false },
	{ "cuEventCreate_and_Destroy", call_event, false },
};

static double call_time(struct call_rig *r, size_t k, const char *beside)
{
	uint32_t n = bench.small ? 100 : CALLS;
	struct stat_side side = { 0 };
	double p50;
	char name[64];

	stat_block(&side);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t begin = now_ns();

		calls[k].call(r);
		stat_add(&side, (double)(now_ns() - begin));
		if (i % 64 == 63)
			GPU(gpu.cu->stream_sync(r->s));
	}
	GPU(gpu.cu->stream_sync(r->s));
	p50 = stat_side_quantile(&side, .5);
	snprintf(name, sizeof name, "%s%s", calls[k].name, beside);
	row_put(&(struct row){ .name = name,
			       .what = "median; numerator: median, denominator: p99",
			       .unit = "us",
			       .value = p50 / 1e3,
			       .numerator = p50 / 1e3,
			       .denominator = stat_side_quantile(&side, .99) / 1e3,
			       .n = n,
			       .time = true });
	return p50;
}

static void calls_time(struct call_rig *r, const char *beside)
{
	double training = 0;
	char name[64];

	for (size_t k = 0; k < ARRAY_LEN(calls); k++) {
		double ns;

		if ((calls[k].call == call_write && !gpu.cu->stream_write) ||
		    (calls[k].call == call_many && !gpu.cu->copy_many && !gpu.cu->copy_many_12)) {
			row_skip(calls[k].name, "the driver has no such call");
			continue;
		}
		ns = call_time(r, k, beside);
		training += calls[k].training ? ns : 0;
	}
	snprintf(name, sizeof name, "training_thread%s", beside);
	row_put(&(struct row){
		.name = name,
		.what = "what a snapshot and a guard that waits call on the training "
			"thread, added up",
		.unit = "us",
		.value = training / 1e3,
		.bound = ROW_AT_MOST,
		.limit = THREAD_NS_MAX / 1e3,
		.time = true });
}

void e7_calls(void)
{
	struct call_rig r = { .s = gpu_stream(), .e = gpu_event(false), .done = gpu_event(false) };
	struct link_copier *c;
	uint64_t span = bench.small ? LINK_CHUNK : GIB;

	r.device = gpu_alloc(span);
	GPU(gpu.cu->host_alloc(&r.host, 64 * KIB,
			       CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP));
	GPU(gpu.cu->host_device_ptr(&r.host_at, r.host, 0));
	train_make(&r.train, 12 * MIB, r.s);
	gpu_fill(r.device, span / 8, SEED, 0, r.s);
	GPU(gpu.cu->event_record(r.done, r.s));
	GPU(gpu.cu->stream_sync(r.s));
	calls_time(&r, "");
	c = link_copier_start(r.device, span, LINK_CHUNK, LINK_DEPTH);
	calls_time(&r, "_copying");
	link_copier_stop(c);
	e7_volatile();
}

/* --- E8 --- */
/*
 * Steps whose copies are queued on another stream, with all streams of the device on one hardware
 * queue. event: the trainer's stream waits for an event behind the copies, which are queued before.
 * memop: it waits for a word in memory that a write behind the copies sets, and the copies are
 * queued later: what a queue that blocks its head never finishes.
 */
static void connection_steps(struct train *t, bool memop)
{
	uint64_t span = t->n * 4, chunk = MAX(span / 8, UINT64_C(4));
	cuda_stream copies = gpu_stream();
	cuda_event stable = gpu_event(false), finished = gpu_event(false);
	_Atomic uint32_t *word;
	struct link_host h;
	cuda_ptr at;
	char why[256];
	void *p;

	GPU(gpu.cu->host_alloc(&p, 4096, CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP));
	word = p;
	atomic_init(word, 0);
	GPU(gpu.cu->host_device_ptr(&at, p, 0));
	if (!link_host_make(&h, LINK_HOST_ALLOC, span, 0, why))
		gpu_die("%s", why);
	for (uint32_t i = 1; i <= bench.steps; i++) {
		GPU(gpu.cu->event_record(stable, t->stream));
		for (uint32_t k = 0; k < t->kernels; k++)
			gpu_work(t->in, t->words, t->out, t->rounds, t->stream);
		if (memop)
			GPU(gpu.wait_value(t->stream, at, i, 0));
		GPU(gpu.cu->stream_wait(copies, stable, 0));
		for (uint64_t b = 0; b + chunk <= span; b += chunk)
			GPU(gpu.cu->copy_out((char *)h.p + b, t->p + b, chunk, copies));
		GPU(gpu.cu->event_record(finished, copies));
		if (memop)
			GPU(gpu.cu->stream_write(copies, at, i, 0));
		else
			GPU(gpu.cu->stream_wait(t->stream, finished, 0));
		gpu_adam(t->p, t->m, t->v, t->n, SEED, i, t->stream);
	}
	GPU(gpu.cu->stream_sync(t->stream));
	GPU(gpu.cu->stream_sync(copies));
}

int again_connections(void)
{
	bool memop = getenv("GPUBENCH_MEMOP") != NULL;
	struct train t;
	uint64_t begin;

	train_make(&t, MIN(bench.state_bytes, 768 * MIB), gpu_stream());
	train_window(&t, bench.small ? 2e6 : 20e6);
	begin = now_ns();
	connection_steps(&t, memop);
	printf("%.6g\n", (double)(now_ns() - begin) / bench.steps);
	return 0;
}

static double connections_run(const char *value, bool memop, char *out, size_t bytes)
{
	const char *name = gpu.fake ? "FAKECUDA_CONNECTIONS" : "CUDA_DEVICE_MAX_CONNECTIONS";
	unsigned seconds = bench.small ? 10 : HANG_SECONDS;
	int status;

	if (memop)
		setenv("GPUBENCH_MEMOP", "1", 1);
	else
		unsetenv("GPUBENCH_MEMOP");
	if (again_run("connections", name, value, seconds, out, bytes, &status) < 0)
		gpu_die("gpubench cannot be run again");
	return status == 0 ? atof(out) : status < 0 ? -1 : -2;
}

void e8_connections(void)
{
	char out[1024], name[64];

	for (int memop = 0; memop < 2; memop++)
		for (int one = 0; one < 2; one++) {
			double ns;

			snprintf(name, sizeof name, "%s_%s", memop ? "memop" : "event",
				 one ? "one_connection" : "connections");
			if (memop && !gpu.wait_value) {
				row_skip(name, "the driver has no cuStreamWaitValue32");
				continue;
			}
			ns = connections_run(one ? "1" : "8", memop, out, sizeof out);
			if (ns >= 0)
				row_put(&(struct row){ .name = name,
						       .what = "time of a step; it did not hang",
						       .unit = "ms",
						       .value = ns / 1e6,
						       .n = bench.steps });
			else if (memop) /* what ckptd does not do, and why */
				row_put(&(struct row){ .name = name,
						       .what = ns < -1 ? "it failed" : "it hung",
						       .unit = "",
						       .value = -1 });
			else if (ns < -1)
				row_fail(name, "it failed: %.*s", (int)strcspn(out, "\n"), out);
			else
				row_fail(name, "it hung");
		}
}
