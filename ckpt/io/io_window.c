/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_window.c - see io_window.h. Called by the thread that owns the queue. Invariant: what
 * sync_file_range says about a file reaches the writer of that file, or was "not here".
 */
#include "ckpt/io/io_window.h"
#include <fcntl.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

void io_windows_init(struct io_windows *w)
{
	*w = (struct io_windows){ .off = false };
	for (uint32_t i = 0; i < IO_WINDOW_FILES; i++)
		w->file[i].fd = -1;
}

/* Not an error of the file: no such call in this kernel, sandbox or for this kind of file. Of a
 * call that only starts: where that works, so does the one that waits. */
static bool not_here(int eno)
{
	return eno == ENOSYS || eno == EINVAL || eno == EOPNOTSUPP || eno == ESPIPE || eno == EPERM;
}

static int range_sync(struct io_windows *w, int fd, uint64_t lo, uint64_t hi, unsigned how)
{
	if (sync_file_range(fd, (off64_t)lo, (off64_t)(hi - lo), how) == 0 ||
	    MUTANT(WINDOW_ERROR_IGNORED))
		return 0;
	/* A file system (FUSE, NFS) may give a write error any name, and it is told once. */
	if ((how & SYNC_FILE_RANGE_WAIT_AFTER) || !not_here(errno))
		return -errno;
	w->off = true;
	return 0;
}

static int window_full(struct io_windows *w, struct io_window *x)
{
	int rc = range_sync(w, x->fd, x->now.lo, x->now.hi, SYNC_FILE_RANGE_WRITE);

	if (rc == 0 && !w->off && x->before.hi > x->before.lo) {
		rc = range_sync(w, x->fd, x->before.lo, x->before.hi,
				SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
					SYNC_FILE_RANGE_WAIT_AFTER);
		(void)posix_fadvise(x->fd, (off_t)x->before.lo,
				    (off_t)(x->before.hi - x->before.lo), POSIX_FADV_DONTNEED);
	}
	x->before = x->now;
	x->bytes = x->now.lo = x->now.hi = 0;
	return rc;
}

int io_windows_wrote(struct io_windows *w, int fd, uint64_t off, uint64_t len)
{
	struct io_window *x = &w->file[(unsigned)fd % IO_WINDOW_FILES];

	if (w->off || len == 0)
		return 0;
	if (x->fd != fd)
		*x = (struct io_window){ .fd = fd };
	x->now.lo = x->now.hi == 0 ? off : MIN(x->now.lo, off);
	x->now.hi = MAX(x->now.hi, off + len);
	x->bytes += len;
	return x->bytes < IO_WINDOW_BYTES ? 0 : window_full(w, x);
}
