// SPDX-License-Identifier: Apache-2.0
// exp_ckpt.c - E4, E6, E9, E12, E13: the loop with snapshots, reads beside them, deaths, reading
// back, averages.
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_job.h"
#include "tests/gpu/gpu_link.h"
#include "tests/gpu/gpu_train.h"
#include "tests/gpu/gpubench.h"
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>

#define COLS 1024u
#define LAYERS 12u
#define SEED 17u
#define STALLED_NS 50e3 /* more than that is a stall: calls of the driver alone take some of it */
#define TAKEN_MIN .95
#define WAIT_NS (120 * NS_PER_S)

/* --- the loop with snapshots --- */
struct snapping {
	ckpt *c;
	uint32_t every, flags;
	uint64_t step, taken, skipped, torn, steps, calm;
	struct stat_side guard, mark;
	double stalled_ns; /* the sum */
};

static void snapping_guard(void *ctx, struct train *t)
{
	struct snapping *s = ctx;
	struct ckpt_mark mark = { .size = sizeof mark, .stream = t->stream };

	s->torn += ckpt_guard(s->c, &mark) == CKPT_TORN;
}

static void snapping_mark(void *ctx, struct train *t)
{
	struct snapping *s = ctx;
	struct ckpt_mark mark = { .size = sizeof mark, .flags = s->flags, .stream = t->stream };
	struct ckpt_err err = { 0 };
	int rc;

	if (++s->step % s->every)
		return;
	rc = ckpt_snapshot(s->c, s->step, &mark);
	if (rc < 0) {
		(void)ckpt_why(s->c, &err);
		gpu_die("ckpt_snapshot: %d: %s", rc, err.msg);
	}
	s->taken += rc == 0;
	s->skipped += rc != 0;
}

static void snapping_block(void *ctx, struct train *t, bool begins)
{
	struct snapping *s = ctx;

	if (!begins) { /* nothing of it is left for the steps without snapshots */
		snapping_guard(ctx, t);
		return;
	}
	stat_block(&s->guard);
	stat_block(&s->mark);
}

static void snapping_each(void *ctx, const struct train *t, double ns)
{
	struct snapping *s = ctx;
	double stalled = MAX(t->stalled_ns, 0.);

	(void)ns;
	stat_add(&s->guard, t->guard_ns);
	stat_add(&s->mark, t->mark_ns);
	stalled = MAX(stalled, t->guard_ns);
	s->steps++;
	s->calm += stalled <= STALLED_NS;
	s->stalled_ns += stalled <= STALLED_NS ? 0 : stalled;
}

static void state_declare(ckpt *c, const struct train *t)
{
	const struct {
		const char *component, *suffix;
		uint32_t role;
		cuda_ptr at;
	} kind[3] = { { "model", "", CKPT_PARAM, t->p },
		      { "optim", ".exp_avg", CKPT_MOMENT1, t->m },
		      { "optim", ".exp_avg_sq", CKPT_MOMENT2, t->v } };
	uint64_t rows = t->n / COLS, of_layer = rows / LAYERS;
	char name[64];

	for (uint32_t k = 0; k < ARRAY_LEN(kind); k++)
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint64_t first = l * of_layer;

			snprintf(name, sizeof name, "layers.%u.weight%s", l, kind[k].suffix);
			job_add(c, &(struct job_at){
					   .component = kind[k].component,
					   .name = name,
					   .role = kind[k].role,
					   .at = kind[k].at + first * COLS * 4,
					   .rows = l + 1 < LAYERS ? of_layer : rows - first,
					   .cols = COLS,
				   });
		}
}

struct variant {
	const char *name;
	uint32_t every;
	uint64_t copy_rate;
	uint32_t averages;
	bool confined; /* ckptd has half of the processors, and gives way */
};

static void slowdown_put(const struct variant *v, const char *what, const struct train_pair *pair,
			 double q, double limit, const struct snapping *s)
{
	struct stat_value x = stat_slowdown(&pair->a, &pair->b, q);
	uint64_t marks = s->taken + s->skipped;
	char name[64], why[128];
	bool few = (double)(s->taken - s->torn) < TAKEN_MIN * (double)marks;

	snprintf(name, sizeof name, "%s_slowdown_%s", v->name, q > .9 ? "p99" : "median");
	snprintf(why, sizeof why,
		 "of %" PRIu64 " snapshots %" PRIu64 " were skipped and %" PRIu64
		 " torn: this host does not keep up with the loop",
		 marks, s->skipped, s->torn);
	row_put(&(struct row){ .name = name,
			       .what = what,
			       .unit = "ratio",
			       ROW_STAT(x),
			       .bound = ROW_AT_MOST,
			       .limit = limit,
			       .time = true,
			       .why = few ? why : NULL });
}

static void microseconds_put(const struct variant *v, const char *what, const struct stat_side *s)
{
	char name[64];

	snprintf(name, sizeof name, "%s_%s_host", v->name, what);
	row_put(&(struct row){
		.name = name,
		.what = "median on the training thread; numerator: p99, denominator: "
			"the longest",
		.unit = "us",
		.value = stat_side_quantile(s, .5) / 1e3,
		.numerator = stat_side_quantile(s, .99) / 1e3,
		.denominator = stat_side_quantile(s, 1) / 1e3,
		.time = true });
}

static void ratio_put(const struct variant *v, const char *name, const char *what, double value,
		      double of, enum row_bound bound, double limit)
{
	char full[64];

	snprintf(full, sizeof full, "%s_%s", v->name, name);
	row_put(&(struct row){ .name = full,
			       .what = what,
			       .unit = "ratio",
			       .value = of > 0 ? value / of : 0,
			       .numerator = value,
			       .denominator = of > 0 ? of : 1,
			       .bound = bound,
			       .limit = limit,
			       .time = true,
			       .why = of > 0 ? NULL : "there is nothing to compare with" });
}

static void variant_run(const struct variant *v, struct train *t, double ceiling, double seconds)
{
	struct train_hooks hooks = { snapping_guard, snapping_mark, snapping_block, NULL };
	struct snapping s = { .every = v->every, .flags = CKPT_STAGE_ONLY };
	struct ckpt_stats was = { .size = sizeof was }, is = { .size = sizeof is };
	double ideal = (double)(t->n * 12) / ceiling;
	struct train_pair pair;
	char name[64];

	s.c = job_attach(bench.dir, v->name, v->copy_rate, CKPT_BOUNDED);
	hooks.ctx = &s;
	state_declare(s.c, t);
	for (uint32_t i = 0; i < v->averages; i++) {
		struct ckpt_err err;

		snprintf(name, sizeof name, "a%u", i);
		if (ckpt_average(s.c, name, "constant decay=.999", &err) < 0)
			gpu_die("ckpt_average: %s", err.msg);
	}
	job_seal(s.c);
	ckpt_stats(s.c, &was);
	train_compare(t, &hooks, seconds, snapping_each, &pair);
	ckpt_stats(s.c, &is);
	slowdown_put(
		v,
		"how much longer steps with a snapshot are; numerator, denominator: ns with it "
		"and without",
		&pair, .5, .003, &s);
	slowdown_put(v, "the same at p99", &pair, .99, .01, &s);
	ratio_put(v, "taken", "snapshots that were taken, of those that were marked",
		  (double)s.taken, (double)(s.taken + s.skipped), ROW_INFO, 0);
	ratio_put(v, "torn", "copies that a guard gave up, of those that were taken",
		  (double)s.torn, (double)s.taken, ROW_INFO, 0);
	ratio_put(v, "calm", "steps whose guard took at most 50 us of host and stream",
		  (double)s.calm, (double)s.steps, ROW_AT_LEAST, .99);
	ratio_put(v, "stall",
		  "time in guards that took longer, beside what the copies take at best",
		  s.stalled_ns, ideal * (double)s.taken, ROW_AT_MOST, .005);
	microseconds_put(v, "guard", &s.guard);
	microseconds_put(v, "mark", &s.mark);
	if (is.copy_ns > was.copy_ns)
		ratio_put(v, "bandwidth",
			  "copies out of the device, beside pinned copies of this run",
			  (double)(is.copy_bytes - was.copy_bytes) /
				  (double)(is.copy_ns - was.copy_ns),
			  ceiling, v->copy_rate == UINT64_MAX ? ROW_AT_LEAST : ROW_INFO, .95);
	snprintf(name, sizeof name, "%s_staged", v->name);
	if (is.staged > was.staged)
		row_put(&(struct row){ .name = name,
				       .what = "snapshots that were staged",
				       .value = (double)(is.staged - was.staged),
				       .bound = ROW_AT_LEAST,
				       .limit = 1 });
	else
		row_fail(name, "no snapshot was staged: %" PRIu64 " taken, %" PRIu64 " torn",
			 s.taken, s.torn);
	ckpt_detach(s.c, 0);
}

static void loop_run(const struct variant *v, size_t n)
{
	pid_t daemon = job_daemon(bench.programs, bench.dir);
	struct train t;
	double ceiling;

	train_make(&t, bench.state_bytes, gpu_stream());
	ceiling = link_ceiling(t.stream, t.p, t.n * 4);
	row_put(&(struct row){ .name = "ceiling",
			       .what = "copies into cuMemHostAlloc memory in this run",
			       .unit = "GB/s",
			       .value = ceiling });
	train_window(&t, 1.35 * (double)bench.state_bytes / ceiling);
	for (size_t i = 0; i < n; i++) {
		if (v[i].confined)
			job_daemon_confine(daemon);
		variant_run(&v[i], &t, ceiling, bench.seconds);
	}
}

void e4_snapshots(void)
{
	static const struct variant v[] = { { "paced", 1, 0, 0, false },
					    { "unpaced", 1, UINT64_MAX, 0, false },
					    { "every4", 4, 0, 0, false } };

	loop_run(v, ARRAY_LEN(v));
}

void e13_averages(void)
{
	static const struct variant v[] = { { "averages", 1, 0, 1, false },
					    { "confined", 1, 0, 1, true } };

	loop_run(v, ARRAY_LEN(v));
}

/* --- E7 --- */
/* What a mark costs that copies many small tensors by value, which one batched copy does. */
void e7_volatile(void)
{
	uint32_t n = bench.small ? 100 : 1000, marks = bench.small ? 10 : 200;
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	cuda_stream s = gpu_stream();
	cuda_ptr at = gpu_alloc(n * 4096);
	struct stat_side side = { 0 };
	struct ckpt_err err;
	char name[32];
	ckpt *c;

	job_daemon(bench.programs, bench.dir);
	c = job_attach(bench.dir, "volatile", UINT64_MAX, CKPT_FINISH);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(name, sizeof name, "amax.%u", i);
		job_add(c, &(struct job_at){ .component = "model",
					     .name = name,
					     .cls = CKPT_VOLATILE,
					     .role = CKPT_BUFFER,
					     .at = at + i * 4096,
					     .rows = 1,
					     .cols = 256 });
	}
	job_seal(c);
	mark.stream = s;
	stat_block(&side);
	for (uint64_t step = 1; step <= marks; step++) {
		uint64_t begin;
		int rc;

		gpu_fill(at, n * 512, SEED, step, s);
		GPU(gpu.cu->stream_sync(s));
		begin = now_ns();
		rc = ckpt_snapshot(c, step, &mark);
		if (rc == 0)
			stat_add(&side, (double)(now_ns() - begin));
		(void)ckpt_wait(c, step, CKPT_STAGED, WAIT_NS, &err);
		(void)ckpt_guard(c, &mark);
	}
	ckpt_detach(c, 0);
	if (!side.n[0]) {
		row_fail("volatile", "none of %u snapshots was taken", marks);
		return;
	}
	row_put(&(struct row){ .name = "volatile",
			       .what = "ckpt_snapshot with 1,000 tensors that are copied by value, "
				       "median; numerator: p99",
			       .unit = "us",
			       .value = stat_side_quantile(&side, .5) / 1e3,
			       .numerator = stat_side_quantile(&side, .99) / 1e3,
			       .denominator = stat_side_quantile(&side, .5) / 1e3,
			       .bound = ROW_AT_MOST,
			       .limit = 20,
			       .n = side.n[0],
			       .time = true });
}

/* --- E12 --- */
struct stored {
	cuda_ptr at;
	uint64_t words;
	ckpt *c;
	cuda_stream s;
};

static void stored_make(struct stored *d, const char *job, uint64_t bytes)
{
	d->s = gpu_stream();
	d->words = align_up(bytes, COLS * 4) / 8;
	d->at = gpu_alloc(d->words * 8);
	d->c = job_attach(bench.dir, job, UINT64_MAX, CKPT_FINISH);
	job_add(d->c, &(struct job_at){ .component = "model",
					.name = "w",
					.role = CKPT_PARAM,
					.at = d->at,
					.rows = d->words * 2 / COLS,
					.cols = COLS });
	job_seal(d->c);
}

static void restore_one(struct stored *d, const char *name, uint32_t flags, double ceiling)
{
	struct ckpt_want want = { .size = sizeof want, .flags = flags, .step = 1 };
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err;
	uint64_t begin, ns, bad;
	char full[64];
	int rc;

	gpu_fill(d->at, d->words, SEED + 1, 99, d->s); /* nothing of step 1 is left */
	GPU(gpu.cu->stream_sync(d->s));
	begin = now_ns();
	rc = ckpt_restore(d->c, &want, &got, &err);
	ns = now_ns() - begin;
	if (rc < 0) {
		row_fail(name, "ckpt_restore: %s", err.msg);
		return;
	}
	bad = gpu_check(d->at, d->words, SEED, 1, d->s);
	row_put(&(struct row){ .name = name,
			       .what = "words that are not those that were saved",
			       .value = (double)bad,
			       .bound = ROW_AT_MOST,
			       .numerator = (double)bad,
			       .denominator = (double)d->words });
	snprintf(full, sizeof full, "%s_rate", name);
	row_put(&(struct row){
		.name = full,
		.what = got.where == 2
				? "GB/s from disk, beside pinned copies into the device; the disk "
				  "is not measured alone"
				: "GB/s from memory, beside pinned copies into the device",
		.unit = "ratio",
		.value = (double)(d->words * 8) / (double)ns / ceiling,
		.numerator = (double)(d->words * 8) / (double)ns,
		.denominator = ceiling,
		.bound = got.where == 2 ? ROW_INFO : ROW_AT_LEAST,
		.limit = .9,
		.time = true });
}

/* --- E6 --- */
/* Snapshots of ckptd in the place of plain copies. At most as many reads as the copy has time
 * for. */
void e6_snapshots(void)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	uint32_t marks = bench.small ? 4 : STAT_BLOCKS_MAX, n = bench.small ? 20 : 250;
	struct stat_side alone = { 0 }, beside = { 0 };
	struct stored d;

	job_daemon(bench.programs, bench.dir);
	stored_make(&d, "item", bench.state_bytes);
	mark.stream = d.s;
	item_reads(d.at, n * marks, &alone);
	for (uint64_t step = 1; step <= marks; step++) {
		struct ckpt_err err;

		gpu_fill(d.at, d.words, SEED, step, d.s);
		GPU(gpu.cu->stream_sync(d.s));
		if (ckpt_snapshot(d.c, step, &mark) == 0)
			item_reads(d.at, n, &beside);
		(void)ckpt_guard(d.c, &mark);
		(void)ckpt_wait(d.c, step, CKPT_STAGED, WAIT_NS, &err);
	}
	ckpt_detach(d.c, 0);
	if (beside.nblock)
		item_put("item_snapshot", "what a snapshot adds to the p99 of a read of 4 bytes",
			 ROW_AT_MOST, &alone, &beside);
	else
		row_fail("item_snapshot", "none of %u snapshots was taken", marks);
}

void e12_reload(void)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };
	struct stored d;
	struct link_host h;
	struct ckpt_err err;
	uint64_t span;
	double ceiling;
	char why[256];

	job_daemon(bench.programs, bench.dir);
	stored_make(&d, "reload", bench.state_bytes);
	mark.stream = d.s;
	span = MIN(d.words * 8, GIB);
	if (!link_host_make(&h, LINK_HOST_ALLOC, span, 0, why))
		gpu_die("%s", why);
	ceiling = link_copy_in(d.s, d.at, &h, span, span, MIN(LINK_CHUNK, span), LINK_DEPTH);
	link_host_free(&h);
	if (ckpt_fresh(d.c) < 0)
		gpu_die("ckpt_fresh");
	gpu_fill(d.at, d.words, SEED, 1, d.s);
	if (ckpt_snapshot(d.c, 1, &mark) != 0 || ckpt_guard(d.c, &mark) != 0 ||
	    ckpt_wait(d.c, 1, CKPT_COMMITTED, WAIT_NS, &err) < 0) {
		(void)ckpt_why(d.c, &err);
		gpu_die("the step was not committed: %s", err.msg);
	}
	restore_one(&d, "from_memory", CKPT_FROM_MEMORY, ceiling);
	restore_one(&d, "from_disk", CKPT_FROM_DISK, ceiling);
	ckpt_detach(d.c, 0);
	e12_nccl();
}

/* --- E9 --- */
static void *die_later(void *arg)
{
	uint32_t random = 0;
	struct timespec t;

	(void)arg;
	if (getrandom(&random, sizeof random, 0) < 0)
		random = (uint32_t)now_ns();
	random %= bench.small ? 300 : 1000; /* ms */
	t = (struct timespec){ random / 1000, random % 1000 * (long)NS_PER_MS };
	nanosleep(&t, NULL);
	kill(getpid(), SIGKILL);
	return NULL;
}

/* Goes on from the newest step, checks each word of it, and trains until it is killed. */
int again_trainer(void)
{
	struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST };
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_mark mark = { .size = sizeof mark };
	struct stored d;
	struct ckpt_err err;
	uint64_t step = 0, bad = 0, begin = now_ns();
	pthread_t thread;
	struct train work;
	int rc;

	stored_make(&d, "life", MIN(bench.state_bytes, GIB));
	rc = ckpt_restore(d.c, &want, &got, &err);
	if (rc < 0 && rc != -ENOENT)
		gpu_die("ckpt_restore: %s", err.msg);
	if (rc == 0) {
		step = got.step;
		bad = gpu_check(d.at, d.words, SEED, step, d.s);
	}
	printf("restored %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", step, bad, now_ns() - begin);
	fflush(stdout);
	if (getenv("GPUBENCH_LOOK"))
		return 0;
	train_make(&work, 12 * MIB, d.s);
	train_window(&work, 1.4e6);
	if (pthread_create(&thread, NULL, die_later, NULL))
		gpu_die("no thread");
	mark.stream = d.s;
	for (;;) {
		gpu_work(work.in, work.words, work.out, work.rounds, d.s);
		(void)ckpt_guard(d.c, &mark);
		gpu_fill(d.at, d.words, SEED, ++step, d.s);
		rc = ckpt_snapshot(d.c, step, &mark);
		if (rc < 0)
			gpu_die("ckpt_snapshot: %d", rc);
		gpu_work(work.in, work.words, work.out, work.rounds, d.s);
		GPU(gpu.cu->stream_sync(d.s));
	}
}

void e9_deaths(void)
{
	uint32_t kills = bench.small ? 3 : 50, torn = 0, lives = 0;
	uint64_t newest = 0, hbm = gpu_free_bytes();
	struct stat_side attach = { 0 };
	char out[2048];
	int status;

	job_daemon(bench.programs, bench.dir);
	stat_block(&attach);
	for (uint32_t i = 0; i <= kills; i++) {
		uint64_t step, bad, ns;

		/* The last one only looks. */
		if (again_run("trainer", i == kills ? "GPUBENCH_LOOK" : "GPUBENCH_LIFE", "1", 60,
			      out, sizeof out, &status) < 0 ||
		    sscanf(out, "restored %" SCNu64 " %" SCNu64 " %" SCNu64, &step, &bad, &ns) !=
			    3 ||
		    status != (i == kills ? 0 : 128)) {
			row_fail("lives", "life %u ended with status %d: %.500s", i, status, out);
			return;
		}
		if (step < newest) {
			row_fail("lives",
				 "life %u began at step %" PRIu64 ", one before it at %" PRIu64, i,
				 step, newest);
			return;
		}
		newest = step;
		torn += bad != 0;
		lives += step != 0;
		stat_add(&attach, (double)ns);
	}
	row_put(&(struct row){ .name = "torn_accepted",
			       .what = "lives that began with a word of another step; denominator: "
				       "lives that began with a step",
			       .value = torn,
			       .numerator = torn,
			       .denominator = MAX(lives, 1u),
			       .bound = ROW_AT_MOST,
			       .n = kills,
			       .failed = lives ? NULL : "no life began with a step" });
	row_put(&(struct row){ .name = "hbm_kept",
			       .what = "device memory that is not free again",
			       .unit = "MiB",
			       .value = ((double)hbm - (double)gpu_free_bytes()) / (double)MIB,
			       .bound = ROW_AT_MOST,
			       .limit = 2,
			       .n = kills,
			       .time = true });
	row_put(&(struct row){ .name = "attach_and_restore",
			       .what = "median until the state is back and checked",
			       .unit = "ms",
			       .value = stat_side_quantile(&attach, .5) / 1e6,
			       .n = kills,
			       .time = true });
}
