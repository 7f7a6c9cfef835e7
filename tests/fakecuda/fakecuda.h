/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakecuda.h - a CUDA driver without a GPU: libcuda.so.1 over host memory, for tests. Device memory
 * is memory that the host cannot touch (PROT_NONE where the program sees it, and an alias that only
 * the driver knows). Streams are queues of threads, so copies really run beside the program and
 * really tear what is written meanwhile.
 *
 * What is as in CUDA: order within a stream; events, which a wait takes as they were last recorded;
 * the legacy stream (NULL), which waits for every blocking stream and makes them wait;
 * non-blocking streams; contexts of threads; registered host memory, addressed alike on both sides;
 * capture of streams into graphs with its three modes; kernels of PTX text (ptx.h); errors that
 * stay once a kernel has failed; memory that another process opens by a handle (CUDA IPC), and
 * keeps when its owner dies.
 * What is stricter: a copy to host memory that is not registered is carried out as the driver does
 * it, while the caller waits, and counted as a violation.
 *
 * Environment, read by cuInit: FAKECUDA_DEVICES (1), FAKECUDA_GBPS (of each copy; without limit),
 * FAKECUDA_CONNECTIONS=1 (all streams share one queue, as CUDA_DEVICE_MAX_CONNECTIONS=1 may make
 * them), FAKECUDA_SEED (delays between the operations of a queue are drawn), FAKECUDA_VERSION
 * (13000), FAKECUDA_WITHOUT=cuStreamWriteValue32,... (symbols that it does not have),
 * FAKECUDA_STUB=1 (every call returns 34, as those of the toolkit's stub do),
 * FAKECUDA_ORPHANS (what becomes of memory that is open by CUDA IPC when its owner is dead: unset,
 * it stays; reused: copies out of it bring other bytes; lost: they fail, and so does the context),
 * FAKECUDA_FAIL=SYMBOL:NTH:RC[,...] (the NTH call, from 1, returns RC; NTH 0: each; RC hang: it does
 * not return). The functions below do the same from a test; they are found by dlsym.
 */
#ifndef TESTS_FAKECUDA_H
#define TESTS_FAKECUDA_H
#include "ckpt/device/cuda_driver.h"
#include <stdbool.h>

#define FAKECUDA_HANG UINT32_MAX

/* What runs on the device: params are copies of the launch's, ptr what alias() says. */
typedef void fakecuda_kernel_fn(void *const *param, unsigned blocks, unsigned threads);

/* dlsym(lib, "fakecuda") points to one. tests/python/fakecuda.py has its members in this order. */
struct fakecuda {
	void (*bandwidth)(double gbps); /* 0: without limit */
	void (*seed)(uint64_t seed);	/* 0: no delays */
	/* Copies between host and device, kernels and host functions that are queued from now on do
	 * not start before release(), which has those that do not wait for each other run in this
	 * order: so what tears with one order of the threads tears at each run, on each machine. */
	void (*hold)(void);
	void (*release)(bool kernels_first); /* false: copies first */
	/* nth: from the next call on, 1 is that one, 0 all; rc FAKECUDA_HANG: it returns after
	 * unhang() */
	void (*fault)(const char *symbol, unsigned nth, cuda_rc rc);
	void (*unhang)(void);
	void (*fault_none)(void);
	/* The context is dead from now on: every call returns rc, as after a kernel that failed. */
	void (*sticky)(int device, cuda_rc rc);
	/* Host memory that may be registered, in all; 0: without limit. */
	void (*register_limit)(size_t bytes);
	uint64_t (*calls)(const char *symbol); /* so far, by all threads; NULL: of all symbols */
	uint64_t (*calls_here)(void);	       /* by this thread */
	uint64_t (*violations)(void);
	uint64_t (*registered)(void); /* bytes now */
	uint64_t (*queued)(void);     /* operations that have not ended */
	uint64_t (*copied)(void);     /* bytes of all copies so far, as they were asked for */
	/* Where the host may touch device memory, and wait for nothing; NULL: it is none. */
	void *(*alias)(cuda_ptr p);
	/* A kernel that cuModuleGetFunction finds by this name, in whatever module; those of PTX
	 * text need none (ptx.h). bytes: [n] of the parameters. */
	void (*kernel)(const char *name, fakecuda_kernel_fn *fn, unsigned n, const size_t *bytes);
	/* After so many bytes more, copies between host and device stand still, each where it is,
	 * until pause(0). One of them does now. */
	void (*pause)(uint64_t bytes);
	bool (*paused)(void);
};
#endif
