/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_library.h - the functions of NCCL that this process calls. libnccl.so.2 is opened at run
 * time; if the process has loaded one already (PyTorch's), it is that one. nccl_types.c compares
 * these declarations with nccl.h where it is installed.
 *
 * Names and values are those of nccl.h (2.28.9); see the NCCL API reference there. The structure of
 * a configuration is that of 2.14: every later version takes it.
 */
#ifndef CKPT_NCCL_NCCL_LIBRARY_H
#define CKPT_NCCL_NCCL_LIBRARY_H
#include "ckpt/base/error.h"
#include <stddef.h>
#include <stdint.h>

typedef int nccl_rc; /* ncclResult_t */
typedef struct ncclComm *nccl_comm;
typedef struct CUstream_st *nccl_stream; /* cudaStream_t, CUstream */

enum { NCCL_OK = 0, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_UINT8 = 1 };
enum { NCCL_VERSION_MIN = 21403 }; /* 2.14.3: communicators that do not block */

#define NCCL_ID_BYTES 128
struct nccl_id {
	char bytes[NCCL_ID_BYTES];
};
#define NCCL_MAGIC 0xcafebeefu
struct nccl_config { /* ncclConfig_t of 2.14 */
	size_t size;
	unsigned magic, version;
	int blocking;
};

/* nccl_types.c puts the types of nccl.h here. */
#define NCCL_RC nccl_rc
#define NCCL_ID struct nccl_id
#define NCCL_CONFIG struct nccl_config
#define NCCL_TYPE int

/* X(member, symbol, result, arguments). All are needed. */
#define NCCL_CALLS(X)                                                                         \
	X(version, ncclGetVersion, NCCL_RC, (int *ret))                                       \
	X(unique_id, ncclGetUniqueId, NCCL_RC, (NCCL_ID * ret))                               \
	X(init, ncclCommInitRankConfig, NCCL_RC,                                              \
	  (nccl_comm * ret, int world, NCCL_ID id, int rank, NCCL_CONFIG *config))            \
	X(async_error, ncclCommGetAsyncError, NCCL_RC, (nccl_comm c, NCCL_RC * ret))          \
	X(group_start, ncclGroupStart, NCCL_RC, (void))                                       \
	X(group_end, ncclGroupEnd, NCCL_RC, (void))                                           \
	X(send, ncclSend, NCCL_RC,                                                            \
	  (const void *from, size_t n, NCCL_TYPE type, int peer, nccl_comm c, nccl_stream s)) \
	X(recv, ncclRecv, NCCL_RC,                                                            \
	  (void *to, size_t n, NCCL_TYPE type, int peer, nccl_comm c, nccl_stream s))         \
	X(finalize, ncclCommFinalize, NCCL_RC, (nccl_comm c))                                 \
	X(destroy, ncclCommDestroy, NCCL_RC, (nccl_comm c))                                   \
	X(abort, ncclCommAbort, NCCL_RC, (nccl_comm c))                                       \
	X(error_string, ncclGetErrorString, const char *, (NCCL_RC rc))                       \
	X(last_error, ncclGetLastError, const char *, (nccl_comm c))                          \
	X(comm_count, ncclCommCount, NCCL_RC, (const nccl_comm c, int *ret))                  \
	X(comm_rank, ncclCommUserRank, NCCL_RC, (const nccl_comm c, int *ret))                \
	X(comm_device, ncclCommCuDevice, NCCL_RC, (const nccl_comm c, int *ret))

struct nccl_calls {
#define NCCL_MEMBER(member, symbol, result, args) result(*member) args;
	NCCL_CALLS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* The functions, found once in a process. NULL: there are none, and the sentence says why: *ret_rc
 * -ENOENT no libnccl.so.2, -ENOTSUP too old. Any thread. */
const struct nccl_calls *nccl_library(int *ret_rc, struct ckpt_err *err);
#endif
