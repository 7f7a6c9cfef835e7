/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_transport.h - the four calls of ckpt/spread/transport.h over NCCL: addresses are those of a
 * GPU, a round is one group of ncclSend and ncclRecv on a stream of our own; copies between tensors
 * and staging memory go on another one, beside it (spread_how.ahead). The communicator is
 * the caller's, or made here, without blocking: every wait has a deadline.
 *
 * It is for the time before training: two communicators of one device must not be used at the same
 * time.
 */
#ifndef CKPT_NCCL_NCCL_TRANSPORT_H
#define CKPT_NCCL_NCCL_TRANSPORT_H
#include "ckpt/spread/spread.h"
#include <stdbool.h>

struct nccl_opts {
	uint32_t rank, world;
	uint32_t device; /* number of the CUDA device */
	/* The caller's communicator (ncclComm_t), of these ranks under these numbers; NULL: one is
	 * made. It is used if all ranks have one; if the exchange fails it is aborted, because NCCL
	 * stops in no other way. */
	void *comm;
	/* The minimum over all ranks, 0 or an error; nccl_open calls it equally often on all
	 * ranks. */
	int (*agree)(void *ctx, uint64_t mine, uint64_t *ret_min);
	void *agree_ctx;
	uint64_t init_ns; /* how long a communicator may take to come up */
};

/*
 * The same result on all ranks, as far as `agree` works: 0, or an error whose sentence says what is
 * missing here or that it is missing elsewhere: -ENOENT, -ENODEV, -ENOTSUP: no library, no device,
 * too old; -ETIMEDOUT: it has not come up; -EOPNOTSUPP: another rank cannot; -ECONNRESET: `agree`
 * has failed.
 */
int nccl_open(const struct nccl_opts *o, struct spread_transport **ret, struct ckpt_err *err);

/* Staging memory on the device, which close frees. Set `out`, `in`, `carry`, `sends` and `arg` of
 * m, so that spread_run works with memory of the device and of the host. -ENOMEM. */
int nccl_staging(struct spread_transport *t, uint64_t out_bytes, uint64_t in_bytes,
		 struct spread_memory *m, struct ckpt_err *err);
/* Waits until all that was queued has ended: 0; -ETIMEDOUT, -EIO. To be called after spread_run,
 * even if that failed, before the memory is used. */
int nccl_settle(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err);
#endif
