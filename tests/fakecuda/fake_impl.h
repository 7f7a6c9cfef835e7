/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_impl.h - what the files of the driver without a GPU (fakecuda.h) share: its state, and what
 * they ask of each other. No other program includes it.
 *
 *	fakecuda.c	calls are counted and fail by order; devices; how symbols are found
 *	fake_control.c	what tests ask for (struct fakecuda)
 *	fake_queue.c	operations, and in which order queues carry them out
 *	fake_stream.c	contexts, streams, events
 *	fake_graph.c	captures and graphs
 *	fake_memory.c	memory of devices, and host memory that is registered
 *	fake_ipc.c	memory that another process opens
 *	fake_copy.c	copies
 *	fake_kernel.c	modules, kernels and host functions; the kernels' text: ptx.h
 *
 * Invariant: one lock, fake.lock, guards all that is here. Functions below are called under it,
 * unless they say otherwise; operations run without it, on the thread of their queue.
 */
#ifndef TESTS_FAKECUDA_FAKE_IMPL_H
#define TESTS_FAKECUDA_FAKE_IMPL_H
#include "tests/fakecuda/fakecuda.h"
#include "tests/fakecuda/ptx.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICES_MAX 8

enum {
	CAPTURE_UNMATCHED = 903,
	CAPTURE_ISOLATION = 905,
	CAPTURED_EVENT = 907,
	INVALID_PTX = 218,
	MISALIGNED_ADDRESS = 716,
	LAUNCH_FAILED = 719,
};

enum op_kind { OP_NONE, OP_COPY, OP_WRITE, OP_HOST, OP_KERNEL };

struct work {
	enum op_kind kind;
	struct copy {
		uint8_t *to;
		const uint8_t *from;
		size_t width, height, to_pitch, from_pitch;
		bool within;		    /* of devices */
		const struct range *orphan; /* from it; it may be one. NULL: it does not matter */
	} copy;
	_Atomic uint32_t *at;
	uint32_t value;
	void (*host)(void *);
	void *arg;
	const struct kernel *kernel;
	struct CUctx_st *ctx; /* a kernel that fails leaves its error there */
	void **param;	      /* [n], then the values; freed with the operation */
	unsigned blocks, threads;
};

struct op {
	unsigned refs;	 /* the queue, events, those that wait for it */
	bool done, held; /* held: queued under hold() */
	struct work work;
	struct op **dep; /* [ndep] */
	unsigned ndep;
	struct op *next;
};

struct queue {
	struct op *head, **tail;
	pthread_t thread;
	bool closing;
};

struct capture {
	unsigned mode, refs;
	bool invalid;
	pthread_t by;
	struct capture *next; /* active ones */
	struct node {
		struct work work;
		struct CUevent_st *record, *wait; /* external */
	} * node;
	unsigned nnode;
};

struct CUctx_st {
	int device;
	cuda_rc sticky;
	unsigned copies;	    /* that are being carried out now */
	struct CUstream_st *stream; /* all of them, the legacy one first */
	unsigned refs;
};

struct CUstream_st {
	uint32_t magic;
	struct CUctx_st *ctx;
	struct CUstream_st *next;
	bool blocking, legacy;
	struct queue *queue, own;
	struct op *last;
	struct capture *capture;
};
#define STREAM_MAGIC 0x57524541u

struct CUevent_st {
	uint32_t magic;
	struct CUctx_st *ctx;
	struct op *mark;
	struct capture *capture; /* recorded in one that is active */
};
#define EVENT_MAGIC 0x544e5645u

struct range { /* device memory, managed memory, registered host memory */
	enum range_kind { RANGE_DEVICE, RANGE_MANAGED, RANGE_HOST } kind;
	int device;
	uint8_t *base, *alias;
	size_t bytes;
	bool ours;	   /* mapped by cuMemHostAlloc */
	int fd;		   /* of device memory; its owner has a lock on it once it is exported */
	int owner;	   /* memory of another process: a pidfd of that */
	ino_t ino;	   /* of that */
	unsigned imported; /* memory of another process: how often it is open */
	struct range *next;
};

struct kernel {
	const char *name;
	fakecuda_kernel_fn *fn;
	const struct ptx_kernel *ptx; /* where fn is NULL */
	unsigned n;
	size_t bytes[PTX_PARAMS_MAX];
	struct kernel *next;
};

struct fault {
	char symbol[40];
	unsigned nth;
	cuda_rc rc;
	struct fault *next;
};

struct count {
	const char *symbol;
	uint64_t n;
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool ready, one_queue, hang, hold, kernels_first, paused;
	enum { ORPHANS_KEPT, ORPHANS_REUSED, ORPHANS_LOST } orphans;
	int ndevice, version;
	double gbps;
	uint64_t seed, queued, copied, violations, registered, calls;
	uint64_t moved, pause_at; /* bytes that copies between host and device have brought */
	size_t register_limit;
	char without[256];
	struct CUctx_st ctx[DEVICES_MAX];
	struct queue shared;
	struct range *range;
	struct capture *capture;
	struct kernel *kernel;
	struct fault *fault;
	struct count count[128];
};
extern struct fake fake;
extern _Thread_local struct CUctx_st *current;
extern _Thread_local unsigned capture_mode;
extern _Thread_local uint64_t calls_here;

/* --- calls (fakecuda.c) --- */
/* Counts a call, and says whether it fails by order. The lock is held, and stays so. */
cuda_rc call_begin(const char *symbol);
/* Gives the lock back, and returns rc. */
cuda_rc call_end(cuda_rc rc);
bool device_is(cuda_device d);

/* A call begins with CALL, which takes the lock, and ends with call_end or FAIL_IF. CONTEXT: and
 * it needs a context that has not failed. */
#define CALL(symbol)                    \
	cuda_rc rc_;                    \
	pthread_mutex_lock(&fake.lock); \
	rc_ = call_begin(symbol);       \
	if (rc_)                        \
	return call_end(rc_)
#define FAIL_IF(condition, rc)               \
	do {                                 \
		if (condition)               \
			return call_end(rc); \
	} while (0)
#define CONTEXT()                                \
	FAIL_IF(!current, CUDA_INVALID_CONTEXT); \
	FAIL_IF(context_rc(current), current->sticky)

/* --- operations (fake_queue.c) --- */
bool queue_start(struct queue *q);
/* Queues it behind what the stream has, and behind `after`. */
struct op *op_add(struct CUstream_st *s, const struct work *w, struct op *after);
/* Gives the lock up meanwhile. */
void op_wait(const struct op *o);
void op_unref(struct op *o);

/* --- contexts, streams, events (fake_stream.c) --- */
/* The error of a context is known when nothing of it is copied any more. */
cuda_rc context_rc(struct CUctx_st *c);
/* All streams of the context: cuMemFree waits for the device. */
void context_wait(struct CUctx_st *c);
/* NULL: none; the legacy stream of the current context stands for 0 and 1. */
struct CUstream_st *stream_of(cuda_stream s);
/* Queue it, or put it into the graph that is being captured. */
cuda_rc stream_do(struct CUstream_st *s, const struct work *given);
void event_mark(struct CUevent_st *e, struct CUstream_st *s);
/* What may break a capture: not allowed where one is active that says so. */
cuda_rc capture_unsafe(void);

/* --- memory (fake_memory.c) --- */
struct range *range_find(uintptr_t at, size_t bytes);
/* Memory of the device's, and it takes fd; NULL: there are no addresses left. */
struct range *range_map(int device, int fd, size_t bytes);
/* Waits for the device, and unmaps it. */
void device_drop(struct range *r);

/* --- memory of other processes (fake_ipc.c) --- */
/* From a slice that was just copied, without the lock: n bytes at `to` are other ones, and perhaps
 * the context has failed, if the owner of r is dead. */
void orphan_copied(uint8_t *to, size_t n, const struct range *r, struct CUctx_st *ctx);

/* --- kernels (fake_kernel.c) --- */
/* Without the lock. */
void kernel_run(const struct work *w);

/* --- the driver's calls --- */
struct ipc;
struct CUgraph_st;
struct CUmod_st;

/* X(member, symbol, version, arguments): what ckptd asks of no driver (that is CUDA_CALLS). */
#define FAKE_CALLS(X)                                                                             \
	X(alloc_managed, cuMemAllocManaged, 6000, (cuda_ptr * ret, size_t bytes, unsigned flags)) \
	X(ipc_get, cuIpcGetMemHandle, 4010, (struct ipc * ret, cuda_ptr p))                       \
	X(ipc_open, cuIpcOpenMemHandle, 11000, (cuda_ptr * ret, struct ipc of, unsigned flags))   \
	X(ipc_close, cuIpcCloseMemHandle, 4010, (cuda_ptr p))                                     \
	X(capture_begin, cuStreamBeginCapture, 10010, (cuda_stream s, unsigned mode))             \
	X(capture_end, cuStreamEndCapture, 10000, (cuda_stream s, struct CUgraph_st * *ret))      \
	X(graph_instantiate, cuGraphInstantiateWithFlags, 11040,                                  \
	  (struct CUgraph_st * *ret, struct CUgraph_st * g, unsigned long long flags))            \
	X(graph_launch, cuGraphLaunch, 10000, (struct CUgraph_st * g, cuda_stream s))             \
	X(graph_exec_free, cuGraphExecDestroy, 10000, (struct CUgraph_st * g))                    \
	X(graph_free, cuGraphDestroy, 10000, (struct CUgraph_st * g))                             \
	X(module_load, cuModuleLoadData, 2000, (struct CUmod_st * *ret, const char *image))       \
	X(module_unload, cuModuleUnload, 2000, (struct CUmod_st * m))                             \
	X(module_function, cuModuleGetFunction, 2000,                                             \
	  (struct kernel * *ret, struct CUmod_st * m, const char *name))                          \
	X(launch, cuLaunchKernel, 4000,                                                           \
	  (struct kernel * k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,    \
	   unsigned bz, unsigned shared, cuda_stream s, void **param, void **extra))              \
	X(launch_host, cuLaunchHostFunc, 10000, (cuda_stream s, void (*fn)(void *), void *arg))

#define FAKE_CALL(member, name, version, args) cuda_rc fake_##member args;
#define FAKE_CUDA_CALL(member, name, version, needed, args) FAKE_CALL(member, name, version, args)
CUDA_CALLS(FAKE_CUDA_CALL)
FAKE_CALLS(FAKE_CALL)
#undef FAKE_CUDA_CALL
#undef FAKE_CALL
#endif
