/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_xfer.h - one request on its way: what to ask the kernel for next, and what its answer means.
 * Used by every engine and by the whole-buffer helpers, so that short transfers have one meaning in
 * the house.
 *
 * Rules: EINTR and EAGAIN are asked again, a bounded number of times in a row. A short transfer is
 * continued; on an O_DIRECT file from the last offset that is as aligned as the request itself (the
 * part block is moved twice). A read that brings nothing has met the end of the file. A write that
 * brings nothing twice in a row is -ENOSPC, as the kernel says no more than that.
 */
#ifndef CKPT_IO_IO_XFER_H
#define CKPT_IO_IO_XFER_H
#include "ckpt/io/io.h"

#define IO_XFER_RETRIES_MAX 64 /* in a row: a kernel short of memory recovers, a livelock ends */
#define IO_XFER_BYTES_MAX \
	(UINT64_C(1) << 30) /* of one system call; the kernel's limit is 2 GiB - 4 KiB */

struct io_xfer {
	struct io_req *req;
	uint32_t stalls;  /* writes in a row that brought nothing */
	uint32_t retries; /* EINTR and EAGAIN in a row */
};

struct io_span {
	void *buf;
	uint64_t len, off;
};

/* false: finished already, for there is nothing to move or the offsets are no offsets (-EINVAL). */
bool io_xfer_begin(struct io_xfer *x, struct io_req *r);
struct io_span io_xfer_next(const struct io_xfer *x);
/* got: what the system call returned for io_xfer_next. true: finished, req->res is set. */
bool io_xfer_took(struct io_xfer *x, int64_t got);
/* The whole request through the table, in the caller's thread. */
void io_xfer_run(struct io_xfer *x, const struct io_ops *ops);

bool io_fd_direct(int fd);
#endif
