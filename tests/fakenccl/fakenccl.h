/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakenccl.h - NCCL without GPUs: libnccl.so.2 over UNIX sockets between processes of a host, on
 * streams of the fake driver (tests/fakecuda), for tests.
 *
 * What is as in NCCL: communicators that come up beside the caller, and say ncclInProgress until
 * then; groups; sends and receives between two ranks match by their order; each runs on the stream
 * that the call names, behind the work that was queued there earlier. If a rank's peer has died,
 * the rank's operations wait until its communicator is aborted, and ncclCommGetAsyncError returns
 * the error. What is stricter: lengths that do not match,
 * sends without a receive at the end of a communicator, calls while one is in progress are errors.
 *
 * Environment: FAKENCCL_VERSION (22809), FAKENCCL_WITHOUT_ID=1 (ncclGetUniqueId fails),
 * FAKENCCL_INIT=never (communicators do not come up),
 * FAKENCCL_DIE=RANK:ROUND, FAKENCCL_STOP=RANK:ROUND (that process is killed, or stopped, when its
 * group of that number runs, from 0), FAKENCCL_SILENT=1 (the death of a peer is reported by no
 * call), FAKENCCL_FAIL=SYMBOL:NTH:RC (the NTH call, from 1, returns RC).
 */
#ifndef TESTS_FAKENCCL_H
#define TESTS_FAKENCCL_H
#include <stdint.h>

struct fakenccl {		  /* dlsym(lib, "fakenccl") points to one */
	uint64_t (*groups)(void); /* that have run to their end, in this process */
	uint64_t (*comms)(void);  /* that are there */
};
#endif
