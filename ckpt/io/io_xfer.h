/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_xfer.h - one request in progress: the next system call to make, and what its result means.
 * Used by every engine and by the whole-buffer helpers, so that short transfers mean the same
 * everywhere.
 *
 * Rules: EINTR and EAGAIN are repeated, a bounded number of times in a row. A short transfer is
 * continued; on an O_DIRECT file from the last offset that is as aligned as the request itself (the
 * part block is moved twice). A read that returns 0 is at the end of the file. A write that
 * returns 0 twice in a row is -ENOSPC: the kernel gives no other reason.
 *
 * Some file systems accept O_DIRECT at open and refuse the transfer (-EINVAL, -EOPNOTSUPP), or need
 * more alignment than IO_DIRECT_ALIGN. If a transfer with that alignment is refused, O_DIRECT is
 * removed from its descriptor and the transfer is repeated through the page cache, once. If it is
 * refused again, or was not aligned, that is the caller's mistake, and the caller gets the error.
 * From then on all users of the descriptor are buffered: the kernel keeps both kinds coherent, and
 * fsync means the same. Before a read, the file is dropped from the cache, so that the bytes come
 * from the disk.
 */
#ifndef CKPT_IO_IO_XFER_H
#define CKPT_IO_IO_XFER_H
#include "ckpt/io/io.h"

#define IO_XFER_RETRIES_MAX 64 /* in a row: a kernel short of memory recovers, a livelock ends */
#define IO_XFER_BYTES_MAX \
	(UINT64_C(1) << 30) /* of one system call; the kernel's limit is 2 GiB - 4 KiB */

#define IO_DIRECT_ALIGN 4096u /* the least alignment of every direct transfer */

struct io_span {
	void *buf;
	uint64_t len, off;
};

struct io_xfer {
	struct io_req *req;
	struct io_span asked; /* by the last io_xfer_next */
	bool direct;	 /* the descriptor was, when it began; others may have changed that since */
	uint32_t stalls; /* writes in a row that returned 0 */
	uint32_t retries; /* EINTR and EAGAIN in a row */
};

/* false: finished already, for there is nothing to move or the offsets are no offsets (-EINVAL). */
bool io_xfer_begin(struct io_xfer *x, struct io_req *r);
struct io_span io_xfer_next(struct io_xfer *x);
/* got: what the system call returned for io_xfer_next. true: finished, req->res is set. */
bool io_xfer_took(struct io_xfer *x, int64_t got);
/* The whole request through the table, in the caller's thread. */
void io_xfer_run(struct io_xfer *x, const struct io_ops *ops);
#endif
