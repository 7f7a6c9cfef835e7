// SPDX-License-Identifier: Apache-2.0
// gpu_device.c - see gpu_device.h. Called by gpubench and gputest.
// Invariant: the functions in C have the names, the arguments and the results of kernels.cu.
#include "tests/gpu/gpu_device.h"
#include "ckpt/base/util.h"
#include "tests/fakecuda/fakecuda.h"
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define THREADS 256u
#define BLOCKS_OF_PROCESSOR 8u
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)
#define LEGACY_STREAM 1
#define FAKE_ROUND_NS 1000 /* what a round of gpu_work takes on the driver without a GPU */

struct gpu gpu;
void (*gpu_dying)(const char *sentence);

/* kernels.ptx, and a terminating zero */
extern const char gpu_ptx[];
__asm__(".section .rodata\n"
	".global gpu_ptx\n"
	"gpu_ptx:\n"
	".incbin \"tests/gpu/kernels.ptx\"\n"
	".byte 0\n"
	".previous\n");

void gpu_die(const char *fmt, ...)
{
	char sentence[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof sentence, fmt, ap);
	va_end(ap);
	if (gpu_dying)
		gpu_dying(sentence);
	fprintf(stderr, "%s\n", sentence);
	_exit(1);
}

void gpu_check_rc(cuda_rc rc, const char *call, const char *file, int line)
{
	char name[32];

	if (rc)
		gpu_die("%s:%d: %s: %s", file, line, call, cuda_error_name(gpu.cu, rc, name));
}

/* --- the kernels, on the driver without a GPU --- */
static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

uint64_t gpu_word(uint64_t seed, uint64_t i, uint64_t step)
{
	return mix(seed + (i + 1) * GOLDEN + (step << 40));
}

static uint64_t u64_of(const void *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof x);
	return x;
}

static void *alias_of(const void *p)
{
	static const struct fakecuda *fake;

	if (!fake)
		fake = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fakecuda");
	return fake->alias(u64_of(p));
}

static float float_of(uint64_t r)
{
	return (float)(int)(r >> 41) / 4194304.0f;
}

static void fake_fill(void *const *a, unsigned blocks, unsigned threads)
{
	uint64_t *word = alias_of(a[0]), n = u64_of(a[1]);

	(void)blocks;
	(void)threads;
	for (uint64_t i = 0; i < n; i++)
		word[i] = gpu_word(u64_of(a[2]), i, u64_of(a[3]));
}

static void fake_check(void *const *a, unsigned blocks, unsigned threads)
{
	const uint64_t *word = alias_of(a[0]);
	uint64_t n = u64_of(a[1]), *bad = alias_of(a[4]);

	(void)blocks;
	(void)threads;
	for (uint64_t i = 0; i < n; i++)
		*bad += word[i] != gpu_word(u64_of(a[2]), i, u64_of(a[3]));
}

static void fake_random(void *const *a, unsigned blocks, unsigned threads)
{
	float *x = alias_of(a[0]);
	uint64_t n = u64_of(a[1]);
	uint32_t square;

	(void)blocks;
	(void)threads;
	memcpy(&square, a[3], sizeof square);
	for (uint64_t i = 0; i < n; i++)
		x[i] = float_of(mix(u64_of(a[2]) + (i + 1) * GOLDEN)) - (square ? 0.0f : 1.0f);
}

static void fake_adam(void *const *a, unsigned blocks, unsigned threads)
{
	float *p = alias_of(a[0]), *m = alias_of(a[1]), *v = alias_of(a[2]);
	uint64_t n = u64_of(a[3]);

	(void)blocks;
	(void)threads;
	for (uint64_t i = 0; i < n; i++) {
		float g = float_of(gpu_word(u64_of(a[4]), i, u64_of(a[5]))) - 1.0f;

		m[i] = m[i] * 0.9f + g * 0.1f;
		v[i] = v[i] * 0.999f + g * g * 0.001f;
		p[i] -= 0.001f * m[i] / (sqrtf(v[i]) + 1e-8f);
	}
}

/* It takes its time, and leaves the processors to others: there are few where this runs. */
static void fake_work(void *const *a, unsigned blocks, unsigned threads)
{
	uint32_t rounds;
	struct timespec t;

	(void)blocks;
	(void)threads;
	memcpy(&rounds, a[3], sizeof rounds);
	t = (struct timespec){ rounds / (NS_PER_S / FAKE_ROUND_NS),
			       rounds % (NS_PER_S / FAKE_ROUND_NS) * FAKE_ROUND_NS };
	nanosleep(&t, NULL);
}

static const struct {
	const char *name;
	fakecuda_kernel_fn *fn;
	unsigned n;
	size_t bytes[8];
} kernels[GPU_KERNELS] = {
	[GPU_FILL] = { "gpu_fill", fake_fill, 4, { 8, 8, 8, 8 } },
	[GPU_CHECK] = { "gpu_check", fake_check, 5, { 8, 8, 8, 8, 8 } },
	[GPU_RANDOM] = { "gpu_random", fake_random, 4, { 8, 8, 8, 4 } },
	[GPU_ADAM] = { "gpu_adam", fake_adam, 6, { 8, 8, 8, 8, 8, 8 } },
	[GPU_WORK] = { "gpu_work", fake_work, 4, { 8, 8, 8, 4 } },
};

/* --- opening --- */
typedef cuda_rc find_fn(const char *symbol, void **ret, int version, uint64_t flags,
			unsigned *ret_status);

static void calls_find(void *lib)
{
	find_fn *find;
	void *fn = dlsym(lib, "cuGetProcAddress_v2");
	unsigned status;

	memcpy(&find, &fn, sizeof fn);
#define GPU_FIND(member, symbol, version, args)                                      \
	fn = NULL;                                                                   \
	if (!find || find(#symbol, &fn, version, LEGACY_STREAM, &status) != CUDA_OK) \
		fn = NULL;                                                           \
	memcpy(&gpu.member, &fn, sizeof fn);
	GPU_CALLS(GPU_FIND)
#undef GPU_FIND
}

static int kernels_load(struct ckpt_err *err)
{
	void *module;
	cuda_rc rc;
	char name[32];

	if (!gpu.module_load || !gpu.module_function || !gpu.launch || !gpu.ctx_sync)
		return ckpt_error(err, -ENOTSUP,
				  "the CUDA driver has no cuGetProcAddress of CUDA 12: these "
				  "programs need a newer one");
	/* The driver without a GPU has the kernels by name: it knows no mma. */
	rc = gpu.module_load(&module, gpu.fake ? "" : gpu_ptx);
	for (int i = 0; rc == CUDA_OK && i < GPU_KERNELS; i++)
		rc = gpu.module_function(&gpu.kernel[i], module, kernels[i].name);
	if (rc)
		return ckpt_error(err, -ENOTSUP,
				  "%s does not take the kernels (PTX 7.0 of sm_80): %s. They need "
				  "an A100 or newer",
				  gpu.name, cuda_error_name(gpu.cu, rc, name));
	gpu.bad = gpu_alloc(8);
	return 0;
}

int gpu_open(int number, struct ckpt_err *err)
{
	int rc, processors = 1;
	void *lib;
	const struct fakecuda *fake;

	gpu.cu = cuda_driver(&rc, err);
	if (!gpu.cu)
		return rc;
	if (gpu.cu->device_get(&gpu.number, number))
		return ckpt_error(err, -ENODEV, "there is no CUDA device %d here", number);
	GPU(gpu.cu->primary_retain(&gpu.ctx, gpu.number));
	gpu_enter();
	GPU(gpu.cu->version(&gpu.version));
	GPU(gpu.cu->device_name(gpu.name, sizeof gpu.name, gpu.number));
	GPU(gpu.cu->device_attr(&processors, CUDA_ATTR_MULTIPROCESSORS, gpu.number));
	gpu.processors = (unsigned)processors;
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	fake = lib ? dlsym(lib, "fakecuda") : NULL;
	gpu.fake = fake != NULL;
	for (int i = 0; fake && i < GPU_KERNELS; i++)
		fake->kernel(kernels[i].name, kernels[i].fn, kernels[i].n, kernels[i].bytes);
	calls_find(lib);
	return kernels_load(err);
}

void gpu_enter(void)
{
	GPU(gpu.cu->ctx_set(gpu.ctx));
}

/* --- memory, streams, events --- */
cuda_ptr gpu_alloc(uint64_t bytes)
{
	cuda_ptr p = 0;
	cuda_rc rc = gpu.cu->mem_alloc(&p, bytes);
	char name[32];

	if (rc)
		gpu_die("%llu bytes of memory of %s: %s (%llu are free)", (unsigned long long)bytes,
			gpu.name, cuda_error_name(gpu.cu, rc, name),
			(unsigned long long)gpu_free_bytes());
	return p;
}

uint64_t gpu_free_bytes(void)
{
	size_t free_bytes = 0, total;

	GPU(gpu.cu->mem_info(&free_bytes, &total));
	return free_bytes;
}

cuda_stream gpu_stream(void)
{
	cuda_stream s;

	GPU(gpu.cu->stream_new(&s, CUDA_STREAM_NON_BLOCKING, 0));
	return s;
}

cuda_event gpu_event(bool timed)
{
	cuda_event e;

	GPU(gpu.cu->event_new(&e, timed ? 0 : CUDA_EVENT_DISABLE_TIMING));
	return e;
}

void gpu_wait(cuda_event e)
{
	struct timespec t = { 0, gpu.fake ? 20000 : 0 };
	cuda_rc rc;

	while ((rc = gpu.cu->event_query(e)) == CUDA_NOT_READY)
		if (gpu.fake)
			nanosleep(&t, NULL);
	gpu_check_rc(rc, "cuEventQuery", __FILE__, __LINE__);
}

double gpu_elapsed_ns(cuda_event a, cuda_event b)
{
	float ms = 0;

	if (!gpu.event_elapsed)
		return -1;
	GPU(gpu.event_elapsed(&ms, a, b));
	return (double)ms * 1e6;
}

/* --- kernels --- */
static void launch(enum gpu_kernel k, void **param, cuda_stream s)
{
	GPU(gpu.launch(gpu.kernel[k], gpu.processors * BLOCKS_OF_PROCESSOR, 1, 1, THREADS, 1, 1, 0,
		       s, param, NULL));
}

void gpu_fill(cuda_ptr at, uint64_t words, uint64_t seed, uint64_t step, cuda_stream s)
{
	launch(GPU_FILL, (void *[]){ &at, &words, &seed, &step }, s);
}

uint64_t gpu_check(cuda_ptr at, uint64_t words, uint64_t seed, uint64_t step, cuda_stream s)
{
	uint64_t bad = 0;

	GPU(gpu.cu->copy_in(gpu.bad, &bad, sizeof bad, s));
	launch(GPU_CHECK, (void *[]){ &at, &words, &seed, &step, &gpu.bad }, s);
	GPU(gpu.cu->copy_out(&bad, gpu.bad, sizeof bad, s));
	GPU(gpu.cu->stream_sync(s));
	return bad;
}

void gpu_random(cuda_ptr at, uint64_t floats, uint64_t seed, bool square, cuda_stream s)
{
	uint32_t squares = square;

	launch(GPU_RANDOM, (void *[]){ &at, &floats, &seed, &squares }, s);
}

void gpu_adam(cuda_ptr p, cuda_ptr m, cuda_ptr v, uint64_t n, uint64_t seed, uint64_t step,
	      cuda_stream s)
{
	launch(GPU_ADAM, (void *[]){ &p, &m, &v, &n, &seed, &step }, s);
}

void gpu_work(cuda_ptr in, uint64_t words, cuda_ptr out, uint32_t rounds, cuda_stream s)
{
	launch(GPU_WORK, (void *[]){ &in, &words, &out, &rounds }, s);
}
