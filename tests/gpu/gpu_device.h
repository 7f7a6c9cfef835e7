/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_device.h - one device for gpubench and gputest: its context, its memory, and the kernels of
 * kernels.cu, which lie in the program as PTX text. The calls are those of the product's table
 * (ckpt/device/cuda_driver.h); what the product does not call is found here in the same way. On the
 * driver without a GPU (tests/fakecuda) the kernels are functions in C of the same names.
 *
 * Errors: GPU(call) ends the process by gpu_die, with the call and the driver's name of the error.
 * There is nothing to measure or to compare any more.
 */
#ifndef TESTS_GPU_DEVICE_H
#define TESTS_GPU_DEVICE_H
#include "ckpt/device/cuda_driver.h"
#include <stdbool.h>
#include <stdint.h>

/* X(member, symbol, version, arguments): calls that the product does not make. NULL: not there. */
#define GPU_CALLS(X)                                                                              \
	X(module_load, cuModuleLoadData, 2000, (void **ret, const void *image))                   \
	X(module_function, cuModuleGetFunction, 2000, (void **ret, void *module, const char *))   \
	X(launch, cuLaunchKernel, 4000,                                                           \
	  (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
	   unsigned shared, cuda_stream s, void **param, void **extra))                           \
	X(launch_host, cuLaunchHostFunc, 10000, (cuda_stream s, void (*fn)(void *), void *arg))   \
	X(ctx_sync, cuCtxSynchronize, 2000, (void))                                               \
	X(event_elapsed, cuEventElapsedTime, 2000, (float *ret_ms, cuda_event a, cuda_event b))   \
	X(event_sync, cuEventSynchronize, 2000, (cuda_event e))                                   \
	X(wait_value, cuStreamWaitValue32, 11070,                                                 \
	  (cuda_stream s, cuda_ptr at, uint32_t value, unsigned flags))                           \
	X(alloc_managed, cuMemAllocManaged, 6000, (cuda_ptr * ret, size_t bytes, unsigned flags)) \
	X(ipc_get, cuIpcGetMemHandle, 4010, (struct gpu_ipc * ret, cuda_ptr p))                   \
	X(ipc_open, cuIpcOpenMemHandle, 11000,                                                    \
	  (cuda_ptr * ret, struct gpu_ipc handle, unsigned flags))                                \
	X(ipc_close, cuIpcCloseMemHandle, 4010, (cuda_ptr p))                                     \
	X(capture_begin, cuStreamBeginCapture, 10010, (cuda_stream s, unsigned mode))             \
	X(capture_end, cuStreamEndCapture, 10000, (cuda_stream s, void **ret_graph))

struct gpu_ipc { /* CUipcMemHandle */
	char bytes[64];
};

enum gpu_kernel { GPU_FILL, GPU_CHECK, GPU_RANDOM, GPU_ADAM, GPU_WORK, GPU_KERNELS };

struct gpu {
	const struct cuda_calls *cu;
#define GPU_MEMBER(member, symbol, version, args) cuda_rc(*member) args;
	GPU_CALLS(GPU_MEMBER)
#undef GPU_MEMBER
	cuda_device number;
	cuda_ctx ctx;
	bool fake;
	int version; /* of the driver: 13000 */
	char name[128];
	unsigned processors;
	void *kernel[GPU_KERNELS];
	cuda_ptr bad; /* where gpu_check counts */
};

extern struct gpu gpu; /* the process's one, after gpu_open */

/* Opens device `number`, makes its primary context this thread's, and loads the kernels. 0, or
 * negative with the sentence: there is no driver, or no such device, or it is too old. */
int gpu_open(int number, struct ckpt_err *err);
void gpu_enter(void); /* another thread: the context is this one's, too */

__attribute__((format(printf, 1, 2))) _Noreturn void gpu_die(const char *fmt, ...);
extern void (*gpu_dying)(const char *sentence); /* called by gpu_die first, if it is set */
void gpu_check_rc(cuda_rc rc, const char *call, const char *file, int line);
#define GPU(call) gpu_check_rc((call), #call, __FILE__, __LINE__)

cuda_ptr gpu_alloc(uint64_t bytes);
uint64_t gpu_free_bytes(void); /* of the device, as the driver reports it */
cuda_stream gpu_stream(void);  /* a new one, non-blocking */
cuda_event gpu_event(bool timed);
void gpu_wait(cuda_event e); /* until it has come; this thread sleeps in between, or polls */
double gpu_elapsed_ns(cuda_event a, cuda_event b); /* < 0: the driver has no such call */

void gpu_fill(cuda_ptr at, uint64_t words, uint64_t seed, uint64_t step, cuda_stream s);
/* Words of 8 bytes that are not those of gpu_fill; waits for the stream. */
uint64_t gpu_check(cuda_ptr at, uint64_t words, uint64_t seed, uint64_t step, cuda_stream s);
void gpu_random(cuda_ptr at, uint64_t floats, uint64_t seed, bool square, cuda_stream s);
void gpu_adam(cuda_ptr p, cuda_ptr m, cuda_ptr v, uint64_t n, uint64_t seed, uint64_t step,
	      cuda_stream s);
void gpu_work(cuda_ptr in, uint64_t words, cuda_ptr out, uint32_t rounds, cuda_stream s);

uint64_t gpu_word(uint64_t seed, uint64_t i, uint64_t step); /* what gpu_fill writes there */
#endif
