/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_driver.h - the functions of the CUDA driver that this process calls. libcuda.so.1 is opened
 * at run time (cuda_driver.c), so that one binary serves hosts with and without a GPU. Each
 * function is taken in the version that is named here. cuda_types.c compares these declarations
 * with the toolkit's headers where they are installed.
 *
 * Names and values are those of cuda.h (CUDA 13.0); see the CUDA Driver API reference there.
 */
#ifndef CKPT_DEVICE_CUDA_DRIVER_H
#define CKPT_DEVICE_CUDA_DRIVER_H
#include "ckpt/base/error.h"
#include <stddef.h>
#include <stdint.h>

typedef unsigned cuda_rc;	     /* CUresult */
typedef unsigned long long cuda_ptr; /* CUdeviceptr */
typedef int cuda_device;	     /* CUdevice */
typedef struct CUctx_st *cuda_ctx;
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;

enum {
	CUDA_OK = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NOT_INITIALIZED = 3,
	CUDA_DEINITIALIZED = 4,
	CUDA_STUB_LIBRARY = 34,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_INVALID_CONTEXT = 201,
	CUDA_INVALID_HANDLE = 400,
	CUDA_NOT_FOUND = 500,
	CUDA_NOT_READY = 600,
	CUDA_ILLEGAL_ADDRESS = 700,
	CUDA_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_NOT_SUPPORTED = 801,
	CUDA_CAPTURE_UNSUPPORTED = 900,
	CUDA_CAPTURE_INVALIDATED = 901,
	CUDA_CAPTURE_IMPLICIT = 906,
};
enum { /* CUdevice_attribute */
       CUDA_ATTR_MULTIPROCESSORS = 16,
       CUDA_ATTR_INTEGRATED = 18,
       CUDA_ATTR_CAN_MAP_HOST = 19,
       CUDA_ATTR_COMPUTE_MODE = 20,
       CUDA_ATTR_ASYNC_ENGINES = 40,
       CUDA_ATTR_UNIFIED_ADDRESSING = 41,
       CUDA_ATTR_HOST_REGISTER = 99,
       CUDA_ATTR_HOST_NUMA = 134,
};
enum { /* CUpointer_attribute */
       CUDA_POINTER_CONTEXT = 1,
       CUDA_POINTER_MEMORY_TYPE = 2,
       CUDA_POINTER_MANAGED = 8,
       CUDA_POINTER_DEVICE = 9,
       CUDA_POINTER_RANGE_START = 11,
       CUDA_POINTER_RANGE_BYTES = 12,
};
enum { CUDA_MEMORY_HOST = 1, CUDA_MEMORY_DEVICE = 2, CUDA_MEMORY_UNIFIED = 4 }; /* CUmemorytype */
enum { CUDA_STREAM_NON_BLOCKING = 1 };
enum { CUDA_EVENT_DISABLE_TIMING = 2 };
enum { CUDA_EVENT_EXTERNAL = 1 }; /* of a record, and of a wait, while a graph is captured */
enum { CUDA_REGISTER_PORTABLE = 1, CUDA_REGISTER_DEVICEMAP = 2 };
enum { CUDA_CAPTURE_GLOBAL, CUDA_CAPTURE_THREAD_LOCAL, CUDA_CAPTURE_RELAXED };
enum { CUDA_CAPTURE_NONE, CUDA_CAPTURE_ACTIVE, CUDA_CAPTURE_INVALID };
enum { CUDA_SRC_ORDER_STREAM = 1 };

struct cuda_copy2d { /* CUDA_MEMCPY2D */
	size_t src_x, src_y;
	unsigned src_type;
	const void *src_host;
	cuda_ptr src_device;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	unsigned dst_type;
	void *dst_host;
	cuda_ptr dst_device;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height; /* bytes, lines */
};
struct cuda_copy_attr { /* CUmemcpyAttributes */
	unsigned order;
	struct {
		unsigned type;
		int id;
	} src_hint, dst_hint;
	unsigned flags;
};
struct cuda_uuid { /* CUuuid */
	char bytes[16];
};
/* cuda_types.c puts the toolkit's types here. */
#define CUDA_COPY2D struct cuda_copy2d
#define CUDA_COPY_ATTR struct cuda_copy_attr
#define CUDA_UUID struct cuda_uuid

/* X(member, symbol, version, needed, arguments). Without one that is needed there is no device. */
#define CUDA_CALLS(X)                                                                             \
	X(init, cuInit, 2000, 1, (unsigned flags))                                                \
	X(version, cuDriverGetVersion, 2020, 1, (int *ret))                                       \
	X(error_name, cuGetErrorName, 6000, 1, (cuda_rc rc, const char **ret))                    \
	X(device_count, cuDeviceGetCount, 2000, 1, (int *ret))                                    \
	X(device_get, cuDeviceGet, 2000, 1, (cuda_device * ret, int number))                      \
	X(device_attr, cuDeviceGetAttribute, 2000, 1, (int *ret, unsigned attr, cuda_device d))   \
	X(device_name, cuDeviceGetName, 2000, 1, (char *ret, int bytes, cuda_device d))           \
	X(device_uuid, cuDeviceGetUuid, 11040, 0, (CUDA_UUID * ret, cuda_device d))               \
	X(primary_retain, cuDevicePrimaryCtxRetain, 7000, 1, (cuda_ctx * ret, cuda_device d))     \
	X(primary_release, cuDevicePrimaryCtxRelease, 11000, 1, (cuda_device d))                  \
	X(ctx_current, cuCtxGetCurrent, 4000, 1, (cuda_ctx * ret))                                \
	X(ctx_set, cuCtxSetCurrent, 4000, 1, (cuda_ctx c))                                        \
	X(ctx_device, cuCtxGetDevice, 2000, 1, (cuda_device * ret))                               \
	X(ctx_sync, cuCtxSynchronize, 2000, 1, (void))                                            \
	X(capture_mode, cuThreadExchangeStreamCaptureMode, 10010, 1, (unsigned *mode))            \
	X(stream_new, cuStreamCreateWithPriority, 5050, 1,                                        \
	  (cuda_stream * ret, unsigned flags, int priority))                                      \
	X(stream_free, cuStreamDestroy, 4000, 1, (cuda_stream s))                                 \
	X(stream_sync, cuStreamSynchronize, 2000, 1, (cuda_stream s))                             \
	X(stream_capturing, cuStreamIsCapturing, 10000, 1, (cuda_stream s, unsigned *ret))        \
	X(stream_ctx, cuStreamGetCtx, 9020, 1, (cuda_stream s, cuda_ctx * ret))                   \
	X(stream_wait, cuStreamWaitEvent, 3020, 1, (cuda_stream s, cuda_event e, unsigned flags)) \
	X(stream_write, cuStreamWriteValue32, 11070, 0,                                           \
	  (cuda_stream s, cuda_ptr at, uint32_t value, unsigned flags))                           \
	X(event_new, cuEventCreate, 2000, 1, (cuda_event * ret, unsigned flags))                  \
	X(event_free, cuEventDestroy, 4000, 1, (cuda_event e))                                    \
	X(event_record, cuEventRecord, 2000, 1, (cuda_event e, cuda_stream s))                    \
	X(event_record_flags, cuEventRecordWithFlags, 11010, 1,                                   \
	  (cuda_event e, cuda_stream s, unsigned flags))                                          \
	X(event_query, cuEventQuery, 2000, 1, (cuda_event e))                                     \
	X(host_register, cuMemHostRegister, 6050, 1, (void *p, size_t bytes, unsigned flags))     \
	X(host_unregister, cuMemHostUnregister, 4000, 1, (void *p))                               \
	X(host_alloc, cuMemHostAlloc, 2020, 1, (void **ret, size_t bytes, unsigned flags))        \
	X(host_free, cuMemFreeHost, 2000, 1, (void *p))                                           \
	X(host_device_ptr, cuMemHostGetDevicePointer, 3020, 1,                                    \
	  (cuda_ptr * ret, void *p, unsigned flags))                                              \
	X(copy_out, cuMemcpyDtoHAsync, 3020, 1,                                                   \
	  (void *to, cuda_ptr from, size_t bytes, cuda_stream s))                                 \
	X(copy_in, cuMemcpyHtoDAsync, 3020, 1,                                                    \
	  (cuda_ptr to, const void *from, size_t bytes, cuda_stream s))                           \
	X(copy_on, cuMemcpyDtoDAsync, 3020, 1,                                                    \
	  (cuda_ptr to, cuda_ptr from, size_t bytes, cuda_stream s))                              \
	X(copy_2d, cuMemcpy2DAsync, 3020, 1, (const CUDA_COPY2D *copy, cuda_stream s))            \
	X(copy_many_12, cuMemcpyBatchAsync, 12080, 0,                                             \
	  (cuda_ptr * to, cuda_ptr * from, size_t * bytes, size_t n, CUDA_COPY_ATTR * attr,       \
	   size_t * attr_first, size_t nattr, size_t * ret_bad, cuda_stream s))                   \
	X(copy_many, cuMemcpyBatchAsync, 13000, 0,                                                \
	  (cuda_ptr * to, cuda_ptr * from, size_t * bytes, size_t n, CUDA_COPY_ATTR * attr,       \
	   size_t * attr_first, size_t nattr, cuda_stream s))                                     \
	X(pointer_attrs, cuPointerGetAttributes, 7000, 1,                                         \
	  (unsigned n, unsigned *attr, void **ret, cuda_ptr p))                                   \
	X(mem_info, cuMemGetInfo, 3020, 1, (size_t * ret_free, size_t * ret_total))               \
	X(mem_alloc, cuMemAlloc, 3020, 1, (cuda_ptr * ret, size_t bytes))                         \
	X(mem_free, cuMemFree, 3020, 1, (cuda_ptr p))

struct cuda_calls {
#define CUDA_MEMBER(member, symbol, version, needed, args) cuda_rc(*member) args;
	CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* The functions, found once in a process. NULL: there are none here, and the sentence says why:
 * -ENOENT no libcuda.so.1, -ENODEV a driver without a device, -ENOTSUP too old a driver or the
 * toolkit's stub. Calls cuInit. Any thread. */
const struct cuda_calls *cuda_driver(int *ret_rc, struct ckpt_err *err);
/* What can be asked of a driver that this process has in use, without opening one, and without
 * cuInit: pointer_attrs alone, unless cuda_driver has succeeded. NULL: there is none. */
const struct cuda_calls *cuda_driver_loaded(void);
/* "CUDA_ERROR_INVALID_CONTEXT", or "CUDA error 201". */
const char *cuda_error_name(const struct cuda_calls *cu, cuda_rc rc, char buf[32]);
#endif
