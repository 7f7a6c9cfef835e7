/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_xfer.c - see io_xfer.h. Invariant: req->done_ is the number of leading bytes that are known to
 * have been moved.
 */
#include "ckpt/io/io_xfer.h"
#include <fcntl.h>
#include <sys/stat.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

/* No file system transfers less than its own alignment, so none needs more. */
#define ROUND_MAX IO_DIRECT_ALIGN

bool io_fd_direct(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & O_DIRECT);
}

void io_forget(int fd)
{
	if (!MUTANT(CACHE_BELIEVED))
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static int direct_off(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_DIRECT) < 0 ? -errno : 0;
}

static bool request_finish(struct io_xfer *x, int64_t res)
{
	x->req->res = res;
	return true;
}

bool io_xfer_begin(struct io_xfer *x, struct io_req *r)
{
	*x = (struct io_xfer){ .req = r, .direct = io_fd_direct(r->fd) };
	r->done_ = 0;
	r->res = 0;
	if (r->len > INT64_MAX || r->off > INT64_MAX - r->len)
		r->res = -EINVAL;
	return r->res == 0 && r->len > 0;
}

/* The largest power of two that divides all that the request was aligned to. */
static uint64_t request_align(const struct io_req *r)
{
	uint64_t all = (uint64_t)(uintptr_t)r->buf | r->off | r->len | ROUND_MAX;

	return all & -all;
}

struct io_span io_xfer_next(struct io_xfer *x)
{
	const struct io_req *r = x->req;
	uint64_t at = r->done_;

	if (at > 0 && x->direct)
		at &= ~(request_align(r) - 1);
	x->asked = (struct io_span){ .buf = (uint8_t *)r->buf + at,
				     .len = MIN(r->len - at, IO_XFER_BYTES_MAX),
				     .off = r->off + at };
	return x->asked;
}

/* Was that no to O_DIRECT itself? Then the next one goes through the page cache. */
static bool direct_refused(struct io_xfer *x, int64_t got)
{
	if ((got != -EINVAL && got != -EOPNOTSUPP) || !x->direct ||
	    request_align(x->req) < IO_DIRECT_ALIGN)
		return false;
	if (!x->req->write) /* before anybody reads through it */
		io_forget(x->req->fd);
	if (direct_off(x->req->fd) < 0)
		return false;
	x->direct = false;
	return true;
}

/*
 * A direct read cannot ask again from an odd offset, so the file's size says whether it has met the
 * end.
 */
static bool at_end(const struct io_req *r)
{
	struct stat st;

	return fstat(r->fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       r->off + r->done_ >= (uint64_t)st.st_size;
}

static bool took_nothing(struct io_xfer *x, int64_t got)
{
	struct io_req *r = x->req;

	if (!r->write)
		return request_finish(x, got == 0 ? (int64_t)r->done_ : -EIO);
	return ++x->stalls >= 2 ? request_finish(x, -ENOSPC) : false;
}

bool io_xfer_took(struct io_xfer *x, int64_t got)
{
	struct io_req *r = x->req;
	uint64_t before = r->done_;

	if (got == -EINTR || got == -EAGAIN)
		return ++x->retries > IO_XFER_RETRIES_MAX ? request_finish(x, got) : false;
	if (direct_refused(x, got))
		return false;
	if (got < 0)
		return request_finish(x, got);
	assert((uint64_t)got <= x->asked.len);
	x->retries = 0;
	r->done_ = MAX(before, x->asked.off - r->off + (uint64_t)got);
	if (r->done_ == r->len || (r->write && MUTANT(SHORT_WRITE_IGNORED)))
		return request_finish(x, (int64_t)r->len);
	if (!r->write && (uint64_t)got < x->asked.len && x->direct && at_end(r))
		return request_finish(x, (int64_t)r->done_);
	if (r->done_ == before)
		return took_nothing(x, got);
	x->stalls = 0;
	return false;
}

void io_xfer_run(struct io_xfer *x, const struct io_ops *ops)
{
	const struct io_req *r = x->req;
	struct io_span s;
	int64_t got;

	do {
		s = io_xfer_next(x);
		if (r->write)
			got = ops->pwrite(ops->ctx, r->fd, s.buf, s.len, s.off);
		else
			got = ops->pread(ops->ctx, r->fd, s.buf, s.len, s.off);
	} while (!io_xfer_took(x, got));
}

static int64_t request_run(const struct io_ops *ops, struct io_req *r)
{
	struct io_xfer x;

	if (io_xfer_begin(&x, r))
		io_xfer_run(&x, ops);
	return r->res;
}

int io_stat_at(const struct io_ops *ops, int dirfd, const char *name, struct io_stat *ret)
{
	uint64_t bytes;
	int r, fd;

	if (ops->stat_at)
		return ops->stat_at(ops->ctx, dirfd, name, ret);
	fd = ops->open(ops->ctx, dirfd, name, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return fd;
	r = ops->size(ops->ctx, fd, &bytes);
	if (r == 0 && io_stat(ops, fd, ret) != 0)
		*ret = (struct io_stat){ 0 };
	if (r == 0)
		ret->bytes = bytes;
	(void)ops->close(ops->ctx, fd);
	return r;
}

int io_pread_all(const struct io_ops *ops, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct io_req r = { .fd = fd, .buf = buf, .len = len, .off = off };
	int64_t res = request_run(ops, &r);

	if (res < 0)
		return (int)res;
	return (uint64_t)res < len ? -ENODATA : 0;
}

int io_pwrite_all(const struct io_ops *ops, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct io_req r = {
		.fd = fd, .write = true, .buf = (void *)(uintptr_t)buf, .len = len, .off = off
	};
	int64_t res = request_run(ops, &r);

	return res < 0 ? (int)res : 0;
}
