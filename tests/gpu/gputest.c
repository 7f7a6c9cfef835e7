// SPDX-License-Identifier: Apache-2.0
// gputest.c - correctness on a real device, through libckpt: `make test-gpu`, build/gpu/run.sh
// test. Prints TAP. It needs no cmocka and nothing of tests/unit, so that it runs where only a
// driver is. Exit: 0, 1 a case failed, 2 there is no device.
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_job.h"
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define SEED 23u
#define COLS 1000u /* not a power of two: no address is aligned by chance */
#define ROWS 999u
#define PITCH 1040
#define WAIT_NS (60 * NS_PER_S)
#define ROUNDS 100u

static unsigned cases, failures;
static const char *dir;
static char why[1024];

/* false, and why. */
__attribute__((format(printf, 1, 2))) static bool no(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return false;
}

static void result(const char *sentence, bool good)
{
	printf("%sok %u - %s\n", good ? "" : "not ", ++cases, sentence);
	if (!good) {
		printf("#   %s\n", why);
		failures++;
	}
	fflush(stdout);
}

/* --- a state: contiguous, at an odd address, strided, volatile --- */
struct state {
	ckpt *c;
	cuda_stream s; /* that changes it */
	cuda_ptr whole, odd, strided, counter;
	uint32_t id;
};
#define WORDS ((uint64_t)ROWS * COLS / 2)
#define STRIDED_WORDS ((uint64_t)ROWS * PITCH / 2)

static void state_fill(const struct state *x, uint64_t step)
{
	gpu_fill(x->whole, WORDS, SEED, step, x->s);
	gpu_fill(x->odd, WORDS, SEED + 1, step, x->s);
	gpu_fill(x->strided, STRIDED_WORDS, SEED + 2, step, x->s);
	gpu_fill(x->counter, COLS / 2, SEED + 3, step, x->s);
}

static bool strided_is(const struct state *x, uint64_t step)
{
	uint64_t bytes = STRIDED_WORDS * 8, bad = 0;
	cleanup_free uint64_t *got = malloc(bytes);
	const uint32_t *half = (const uint32_t *)(const void *)got;

	if (!got)
		abort();
	GPU(gpu.cu->copy_out(got, x->strided, bytes, x->s));
	GPU(gpu.cu->stream_sync(x->s));
	for (uint64_t row = 0; row < ROWS; row++)
		for (uint64_t col = 0; col < COLS; col++) {
			uint64_t at = row * PITCH + col, word = gpu_word(SEED + 2, at / 2, step);

			bad += half[at] != (uint32_t)(at % 2 ? word >> 32 : word);
		}
	return bad == 0 ||
	       no("%" PRIu64 " elements of the strided tensor are not of step %" PRIu64, bad, step);
}

static bool state_is(const struct state *x, uint64_t step)
{
	const struct {
		const char *name;
		cuda_ptr at;
		uint64_t words;
	} part[] = { { "contiguous", x->whole, WORDS },
		     { "odd", x->odd, WORDS },
		     { NULL, 0, 0 },
		     { "volatile", x->counter, COLS / 2 } };

	for (uint32_t i = 0; i < ARRAY_LEN(part); i++) {
		uint64_t bad = part[i].name
				       ? gpu_check(part[i].at, part[i].words, SEED + i, step, x->s)
				       : 0;

		if (bad)
			return no("%" PRIu64 " words of the %s tensor are not of step %" PRIu64,
				  bad, part[i].name, step);
	}
	return strided_is(x, step);
}

static void state_make(struct state *x, const char *job, cuda_stream s)
{
	static cuda_ptr memory[4]; /* the same for all cases */

	for (int i = 0; i < 4 && !memory[i]; i++)
		memory[i] = gpu_alloc(STRIDED_WORDS * 8 + 64);
	*x = (struct state){ .s = s,
			     .whole = memory[0],
			     .odd = memory[1] + 24,
			     .strided = memory[2],
			     .counter = memory[3] };
	x->c = job_attach(dir, job, UINT64_MAX, CKPT_FINISH);
	x->id = job_add(
		x->c, &(struct job_at){ "model", "whole", 0, CKPT_PARAM, x->whole, ROWS, COLS, 0 });
	job_add(x->c, &(struct job_at){ "model", "odd", 0, CKPT_PARAM, x->odd, ROWS, COLS, 0 });
	job_add(x->c, &(struct job_at){ "model", "strided", 0, CKPT_PARAM, x->strided, ROWS, COLS,
					PITCH });
	job_add(x->c, &(struct job_at){ "model", "counter", CKPT_VOLATILE, CKPT_COUNTER, x->counter,
					1, COLS, 0 });
	job_seal(x->c);
}

static struct ckpt_mark mark_on(cuda_stream s)
{
	return (struct ckpt_mark){ .size = sizeof(struct ckpt_mark),
				   .flags = CKPT_FINAL,
				   .stream = s };
}

static bool save(const struct state *x, uint64_t step, cuda_stream marked)
{
	struct ckpt_mark mark = mark_on(marked);
	struct ckpt_err err = { 0 };
	int rc = ckpt_snapshot(x->c, step, &mark);

	if (rc) {
		(void)ckpt_why(x->c, &err);
		return no("ckpt_snapshot returned %d: %s", rc, err.msg);
	}
	if (ckpt_wait(x->c, step, CKPT_COMMITTED, WAIT_NS, &err) < 0)
		return no("ckpt_wait: %s", err.msg);
	return ckpt_guard(x->c, &mark) == 0 || no("the guard found the copy torn");
}

static bool restore(const struct state *x, uint64_t step, uint32_t flags)
{
	struct ckpt_want want = { .size = sizeof want, .flags = flags, .step = step };
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_err err;

	state_fill(x, 999);
	GPU(gpu.cu->stream_sync(x->s));
	if (ckpt_restore(x->c, &want, &got, &err) < 0)
		return no("ckpt_restore: %s", err.msg);
	return got.step == step || no("step %" PRIu64 " was restored", got.step);
}

/* --- cases --- */
static bool round_trip(const char *job, cuda_stream s)
{
	struct state x;
	uint64_t before, after;
	bool good;

	state_make(&x, job, s);
	state_fill(&x, 1);
	GPU(gpu.cu->stream_sync(s));
	good = ckpt_fingerprint(x.c, x.id, &before) == 0 || no("ckpt_fingerprint failed");
	good = good && save(&x, 1, s);
	good = good && restore(&x, 1, CKPT_FROM_MEMORY) && state_is(&x, 1);
	good = good && restore(&x, 1, CKPT_FROM_DISK) && state_is(&x, 1);
	good = good && ckpt_fingerprint(x.c, x.id, &after) == 0;
	if (good && before != after)
		good = no("its fingerprint was %" PRIx64 " and is %" PRIx64, before, after);
	ckpt_detach(x.c, 0);
	if (!good)
		return false;
	state_make(&x, job, s); /* another life of the job */
	good = restore(&x, 1, 0) && state_is(&x, 1);
	ckpt_detach(x.c, 0);
	return good;
}

/* Kernels change the state behind each guard, as fast as the device can; what was taken is one
 * step's. */
static bool never_torn(cuda_stream s)
{
	struct state x;
	struct ckpt_mark mark = mark_on(s);
	struct ckpt_err err;
	uint64_t last = 0;
	bool good = true;

	mark.flags = 0;
	state_make(&x, "torn", s);
	for (uint64_t step = 1; step <= ROUNDS && good; step++) {
		(void)ckpt_guard(x.c, &mark);
		state_fill(&x, step);
		mark.flags = step % 10 ? CKPT_STAGE_ONLY : CKPT_FINAL;
		if (ckpt_snapshot(x.c, step, &mark) < 0)
			good = no("ckpt_snapshot of step %" PRIu64 " failed", step);
		if (step % 10)
			continue;
		/* The copy and the next change meet. */
		(void)ckpt_guard(x.c, &mark);
		state_fill(&x, step + 500);
		if (ckpt_wait(x.c, step, CKPT_COMMITTED, WAIT_NS, &err) < 0) {
			if (err.code != -ENOENT) /* it was torn: given up, not accepted */
				good = no("step %" PRIu64 ": %s", step, err.msg);
			continue;
		}
		last = step;
		good = good && restore(&x, step, CKPT_FROM_DISK) && state_is(&x, step);
	}
	ckpt_detach(x.c, 0);
	return good && (last || no("no step was committed"));
}

/* The negative control: a mark on a stream that the state does not depend on. */
static bool wrong_stream_shows(cuda_stream s, cuda_ptr in, cuda_ptr out)
{
	cuda_stream other = gpu_stream();
	struct state x;
	bool good;

	state_make(&x, "wrong", s);
	state_fill(&x, 1);
	GPU(gpu.cu->stream_sync(s));
	gpu_work(in, 1024, out, gpu.fake ? 300000 : 1000000, s); /* some tenths of a second */
	state_fill(&x, 2);
	good = save(&x, 2, other) && restore(&x, 2, CKPT_FROM_DISK);
	if (good && state_is(&x, 2))
		good = no("the copies came behind a stream that was not marked: this test shows "
			  "nothing");
	ckpt_detach(x.c, 0);
	return good;
}

static bool refused(ckpt *c, cuda_ptr at, int code, const char *word)
{
	static const char *const name[] = { "fsdp" };
	struct ckpt_local local = { .ptr = (void *)(uintptr_t)at };
	uint64_t shape = 1024;
	uint32_t one = 1, mesh, id;
	struct ckpt_err err = { 0 };
	struct ckpt_tensor t = { .size = sizeof t,
				 .dtype = CKPT_F32,
				 .component = "model",
				 .name = "refused",
				 .ndim = 1,
				 .nlocal = 1,
				 .shape = &shape,
				 .local = &local };
	int rc;

	if (ckpt_mesh(c, 1, name, &one, NULL, &mesh, &err) < 0)
		return no("ckpt_mesh: %s", err.msg);
	t.mesh = mesh;
	rc = ckpt_tensor_add(c, &t, &id, &err);
	if (rc != code)
		return no("ckpt_tensor_add returned %d: %s", rc, err.msg);
	return strstr(err.msg, word) || no("it says: %s", err.msg);
}

static bool needs_a_device(cuda_ptr at)
{
	char socket[600], store[600];
	struct ckpt_opts o = { .size = sizeof o,
			       .flags = CKPT_REQUIRE,
			       .job = "host",
			       .store = store,
			       .socket = socket,
			       .world = 1 };
	struct ckpt_err err;
	ckpt *c;
	bool good;

	snprintf(socket, sizeof socket, "%s/s", dir);
	snprintf(store, sizeof store, "%s/store", dir);
	if (ckpt_attach(&o, &c, &err) < 0)
		return no("ckpt_attach: %s", err.msg);
	good = refused(c, at, -EINVAL, "device");
	ckpt_detach(c, 0);
	return good;
}

static bool managed_refused(void)
{
	ckpt *c = job_attach(dir, "managed", 0, CKPT_FINISH);
	cuda_ptr at;
	bool good;

	GPU(gpu.alloc_managed(&at, 4096, 1));
	good = refused(c, at, -EOPNOTSUPP, "managed");
	ckpt_detach(c, 0);
	GPU(gpu.cu->mem_free(at));
	return good;
}

static bool capture_skips(cuda_stream s)
{
	struct ckpt_mark mark = mark_on(s);
	struct state x;
	void *graph;
	int rc;

	mark.flags = 0;
	state_make(&x, "capture", s);
	state_fill(&x, 1);
	GPU(gpu.cu->stream_sync(s));
	GPU(gpu.capture_begin(s, CUDA_CAPTURE_GLOBAL));
	rc = ckpt_snapshot(x.c, 1, &mark);
	if (gpu.capture_end(s, &graph))
		return no("the capture was broken");
	if (rc != CKPT_SKIPPED)
		return no("ckpt_snapshot returned %d", rc);
	rc = save(&x, 2, s) && restore(&x, 2, 0) && state_is(&x, 1);
	ckpt_detach(x.c, 0);
	return rc;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "device", 1, NULL, 'd' },
						 { "dir", 1, NULL, 'D' },
						 { NULL, 0, NULL, 0 } };
	static char programs[4096];
	struct ckpt_err err;
	int c, number = 0;
	cuda_ptr in, out;
	cuda_stream s;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (c == 'd')
			number = atoi(optarg);
		else if (c == 'D')
			dir = optarg;
		else
			return 2;
	if (!dir || readlink("/proc/self/exe", programs, sizeof programs - 1) < 0) {
		fprintf(stderr,
			"usage: gputest --dir DIR [--device N]    DIR: empty, with a short name\n");
		return 2;
	}
	*strrchr(programs, '/') = 0;
	if (gpu_open(number, &err) < 0) {
		fprintf(stderr, "gputest: %s\n", err.msg);
		return 2;
	}
	printf("# %s, driver CUDA %d.%d\n", gpu.name, gpu.version / 1000, gpu.version % 1000 / 10);
	job_daemon(programs, dir);
	s = gpu_stream();
	in = gpu_alloc(1024 * 16);
	out = gpu_alloc(64);
	gpu_fill(in, 2048, SEED, 0, s);
	result("a state on the device comes back bit for bit, from memory, from disk, in another life",
	       round_trip("own", s));
	result("the same on the legacy stream", round_trip("legacy", NULL));
	result("no snapshot that is accepted mixes two steps", never_torn(s));
	result("a mark on the wrong stream shows in what is restored: these tests see a missing order",
	       wrong_stream_shows(s, in, out));
	result("memory of a device is refused where ckpt_opts.device is 0", needs_a_device(in));
	if (gpu.alloc_managed)
		result("managed memory is refused, and named", managed_refused());
	if (gpu.capture_begin && gpu.capture_end)
		result("a mark while its stream is captured is skipped, and breaks nothing",
		       capture_skips(s));
	printf("1..%u\n", cases);
	return failures ? 1 : 0;
}
