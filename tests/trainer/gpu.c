/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - see gpu.h. The driver's functions are declared here, as cuda.h has them: a trainer is a
 * user, and sees nothing of ckptd but ckpt.h.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 256	   /* of a block */
#define FORWARD_BLOCKS 16u /* at most: each thread of a forward pass reads many elements */
#define NON_BLOCKING 1u	   /* CU_STREAM_NON_BLOCKING */
#define PORTABLE 1u	   /* CU_MEMHOSTREGISTER_PORTABLE */
#define LEGACY 1u	   /* CU_GET_PROC_ADDRESS_LEGACY_STREAM */

enum { NO_DEVICE = 100, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101 };
enum { SIDE_HOST = 1, SIDE_DEVICE = 2 }; /* CUmemorytype */

struct copy2d { /* CUDA_MEMCPY2D */
	size_t src_x, src_y;
	unsigned src_type;
	const void *src_host;
	unsigned long long src_device;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	unsigned dst_type;
	void *dst_host;
	unsigned long long dst_device;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height;
};

/* X(member, symbol, the version that is asked for, arguments) */
#define CALLS(X)                                                                             \
	X(init, cuInit, 2000, (unsigned flags))                                              \
	X(error_name, cuGetErrorName, 6000, (unsigned rc, const char **ret))                 \
	X(device_get, cuDeviceGet, 2000, (int *ret, int number))                             \
	X(device_name, cuDeviceGetName, 2000, (char *ret, int bytes, int device))            \
	X(primary, cuDevicePrimaryCtxRetain, 7000, (void **ret, int device))                 \
	X(ctx_set, cuCtxSetCurrent, 4000, (void *ctx))                                       \
	X(stream_new, cuStreamCreateWithPriority, 5050,                                      \
	  (void **ret, unsigned flags, int priority))                                        \
	X(stream_sync, cuStreamSynchronize, 2000, (void *stream))                            \
	X(mem_alloc, cuMemAlloc, 3020, (unsigned long long *ret, size_t bytes))              \
	X(pin, cuMemHostRegister, 6050, (void *p, size_t bytes, unsigned flags))             \
	X(copy_in, cuMemcpyHtoDAsync, 3020,                                                  \
	  (unsigned long long to, const void *from, size_t bytes, void *stream))             \
	X(copy_out, cuMemcpyDtoHAsync, 3020,                                                 \
	  (void *to, unsigned long long from, size_t bytes, void *stream))                   \
	X(copy_2d, cuMemcpy2DAsync, 3020, (const struct copy2d *copy, void *stream))         \
	X(module_load, cuModuleLoadData, 2000, (void **ret, const void *image))              \
	X(function, cuModuleGetFunction, 2000, (void **ret, void *module, const char *name)) \
	X(launch, cuLaunchKernel, 4000,                                                      \
	  (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,  \
	   unsigned bz, unsigned shared, void *stream, void **param, void **extra))

struct gpu {
	struct {
#define MEMBER(member, symbol, version, args) unsigned(*member) args;
		CALLS(MEMBER)
#undef MEMBER
	} cu;
	char name[64];
	uint32_t number;
	void *ctx, *stream, *update, *forward;
	uint64_t sink; /* of forward passes */
	char why[512];
};

extern const char kernels[];
__asm__(".pushsection .rodata\n"
	"kernels:\n"
	".incbin \"tests/trainer/kernels.ptx\"\n"
	".byte 0\n"
	".popsection\n");

/* 0, or an error with its sentence. */
static int done(struct gpu *g, unsigned rc, const char *what)
{
	const char *name = NULL;

	if (!rc)
		return 0;
	if (g->cu.error_name(rc, &name) || !name)
		name = "an error without a name";
	snprintf(g->why, sizeof g->why, "CUDA device %u: %s: %s (%u)", g->number, what, name, rc);
	return rc == OUT_OF_MEMORY			 ? -ENOMEM
	       : rc == NO_DEVICE || rc == INVALID_DEVICE ? -ENOENT
							 : -EIO;
}

static int symbols(struct gpu *g, const char *path)
{
	typedef unsigned get_proc(const char *symbol, void **ret, int version, uint64_t flags,
				  unsigned *status);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL), *at = NULL;
	get_proc *get = NULL;

	if (!lib) {
		snprintf(
			g->why, sizeof g->why,
			"there is no CUDA driver: %s; train without --device, or with --device fake",
			dlerror());
		return -ENOENT;
	}
	at = dlsym(lib, "cuGetProcAddress_v2");
	memcpy(&get, &at, sizeof get);
	if (!get) {
		snprintf(g->why, sizeof g->why, "%s is older than CUDA 12: install a newer driver",
			 path);
		return -ENOENT;
	}
#define FIND(member, symbol, version, args)                                                       \
	at = NULL;                                                                                \
	if (get(#symbol, &at, version, LEGACY, NULL) || !at) {                                    \
		snprintf(g->why, sizeof g->why, "%s has no %s: a CUDA 12 driver is needed", path, \
			 #symbol);                                                                \
		return -ENOENT;                                                                   \
	}                                                                                         \
	memcpy(&g->cu.member, &at, sizeof at);
	CALLS(FIND)
#undef FIND
	return 0;
}

int gpu_open(const char *fake, uint32_t number, bool legacy, struct gpu **ret_gpu)
{
	struct gpu *g = *ret_gpu = calloc(1, sizeof *g);
	void *module;
	int device, r;

	if (!g)
		return -ENOMEM;
	g->number = number;
	r = symbols(g, fake ? fake : "libcuda.so.1");
	if (r == 0)
		r = done(g, g->cu.init(0), "cuInit");
	if (r == 0)
		r = done(g, g->cu.device_get(&device, (int)number), "cuDeviceGet");
	if (r == 0)
		r = done(g, g->cu.device_name(g->name, sizeof g->name, device), "cuDeviceGetName");
	if (r == 0)
		r = done(g, g->cu.primary(&g->ctx, device), "cuDevicePrimaryCtxRetain");
	if (r == 0)
		r = done(g, g->cu.ctx_set(g->ctx), "cuCtxSetCurrent");
	if (r == 0 && !legacy)
		r = done(g, g->cu.stream_new(&g->stream, NON_BLOCKING, 0),
			 "cuStreamCreateWithPriority");
	if (r == 0)
		r = done(g, g->cu.module_load(&module, kernels), "cuModuleLoadData of kernels.ptx");
	if (r == 0)
		r = done(g, g->cu.function(&g->update, module, "trainer_update"), "trainer_update");
	if (r == 0)
		r = done(g, g->cu.function(&g->forward, module, "trainer_forward"),
			 "trainer_forward");
	if (r == 0)
		r = gpu_alloc(g, FORWARD_BLOCKS * THREADS * sizeof(uint32_t), 0, &g->sink);
	return r;
}

const char *gpu_why(const struct gpu *g)
{
	return g ? g->why : "no memory";
}

const char *gpu_name(const struct gpu *g)
{
	return g->name;
}

void *gpu_stream(const struct gpu *g)
{
	return g->stream;
}

/* Every call begins here: the thread may have been with another device. */
static int here(struct gpu *g)
{
	return done(g, g->cu.ctx_set(g->ctx), "cuCtxSetCurrent");
}

int gpu_alloc(struct gpu *g, uint64_t bytes, uint64_t skew, uint64_t *ret_at)
{
	unsigned long long at = 0;
	int r = here(g);

	if (r == 0)
		r = done(g, g->cu.mem_alloc(&at, bytes + skew + 1), "cuMemAlloc");
	*ret_at = at + skew;
	return r;
}

int gpu_pin(struct gpu *g, void *p, uint64_t bytes)
{
	int r = here(g);

	return r ? r : done(g, g->cu.pin(p, bytes, PORTABLE), "cuMemHostRegister");
}

/* Rows without gaps are one line. */
static int rows_copy(struct gpu *g, const struct copy2d *c, bool in)
{
	int r = here(g);
	unsigned rc;

	if (r || !c->height)
		return r;
	if (c->src_pitch != c->dst_pitch)
		rc = g->cu.copy_2d(c, g->stream);
	else if (in)
		rc = g->cu.copy_in(c->dst_device, c->src_host, c->height * c->width, g->stream);
	else
		rc = g->cu.copy_out(c->dst_host, c->src_device, c->height * c->width, g->stream);
	return done(g, rc, in ? "a copy to the device" : "a copy from the device");
}

int gpu_put(struct gpu *g, uint64_t to, uint64_t to_pitch, const void *from, uint64_t row_bytes,
	    uint64_t rows)
{
	struct copy2d c = { .src_type = SIDE_HOST,
			    .src_host = from,
			    .src_pitch = row_bytes,
			    .dst_type = SIDE_DEVICE,
			    .dst_device = to,
			    .dst_pitch = to_pitch,
			    .width = row_bytes,
			    .height = rows };

	return rows_copy(g, &c, true);
}

int gpu_get(struct gpu *g, void *to, uint64_t from, uint64_t from_pitch, uint64_t row_bytes,
	    uint64_t rows)
{
	struct copy2d c = { .src_type = SIDE_DEVICE,
			    .src_device = from,
			    .src_pitch = from_pitch,
			    .dst_type = SIDE_HOST,
			    .dst_host = to,
			    .dst_pitch = row_bytes,
			    .width = row_bytes,
			    .height = rows };

	return rows_copy(g, &c, false);
}

int gpu_sync(struct gpu *g)
{
	int r = here(g);

	return r ? r : done(g, g->cu.stream_sync(g->stream), "cuStreamSynchronize");
}

static int launch(struct gpu *g, void *kernel, uint64_t blocks, void **param, const char *name)
{
	int r = here(g);

	return r ? r
		 : done(g,
			g->cu.launch(kernel, (unsigned)blocks, 1, 1, THREADS, 1, 1, 0, g->stream,
				     param, NULL),
			name);
}

static uint64_t blocks_for(uint64_t threads)
{
	return (threads + THREADS - 1) / THREADS;
}

int gpu_forward(struct gpu *g, const struct gpu_part *p, uint64_t wait_ns)
{
	uint64_t master = p->master, n = p->rows * p->cols, count = p->count, ncount = p->ncount;
	uint64_t blocks = blocks_for(n > ncount ? n : ncount);
	void *param[] = { &master, &n, &count, &ncount, &g->sink, &wait_ns };

	if (!blocks)
		blocks = 1;
	return launch(g, g->forward, blocks < FORWARD_BLOCKS ? blocks : FORWARD_BLOCKS, param,
		      "trainer_forward");
}

int gpu_update(struct gpu *g, const struct gpu_part *p, const struct model_adam *a)
{
	uint64_t n = p->rows * p->cols;
	struct gpu_part x = *p;
	struct model_adam f = *a;
	void *param[] = { &x.master,  &x.moment1, &x.moment2, &x.grad,	&x.param, &n,
			  &x.cols,    &x.pitch,	  &f.keep1,   &f.gain1, &f.keep2, &f.gain2,
			  &f.unbias1, &f.unbias2, &f.eps,     &f.rate,	&f.decay };

	return n ? launch(g, g->update, blocks_for(n), param, "trainer_update") : 0;
}
