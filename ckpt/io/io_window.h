/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_window.h - what is written through the page cache goes to the disk while more is written, and
 * leaves the cache again: else gigabytes of dirty pages pile up, push out what the trainer reads,
 * and fsync waits for all of them at once. Used by the queue (io_queue.c), for writes that are not
 * direct. fsync alone makes durable; this never replaces it.
 *
 * Of each file, what has been written since the last time is a window. Full, its writeback is
 * started; the window before it is waited for and dropped from the cache. So at most two windows
 * and what is in flight are dirty.
 *
 * The rule: waiting for a range reports its write errors, and reports them once: a later fsync of
 * the same descriptor would succeed. So only a write request of that descriptor waits for a range,
 * and the error is the result of that request.
 */
#ifndef CKPT_IO_IO_WINDOW_H
#define CKPT_IO_IO_WINDOW_H
#include "ckpt/io/io.h"

#define IO_WINDOW_BYTES (UINT64_C(16) << 20) /* some 10 ms of a fast disk: it never runs dry */
#define IO_WINDOW_FILES 64 /* that a queue remembers: parts that are written in turns */

struct io_window {
	int fd; /* -1: of no file yet. Closed and used again, it is another file's: harmless */
	uint64_t bytes; /* since the last window was full */
	struct {
		uint64_t lo, hi; /* lo == hi: none */
	} now, before;
};

struct io_windows {
	bool off; /* the kernel has no sync_file_range */
	struct io_window file[IO_WINDOW_FILES];
};

void io_windows_init(struct io_windows *w);
/* [off, off + len) of fd was written. 0, or a negative errno: bytes of this file, not only these,
 * did not reach the disk. */
int io_windows_wrote(struct io_windows *w, int fd, uint64_t off, uint64_t len);
#endif
