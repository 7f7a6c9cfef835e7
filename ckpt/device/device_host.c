// SPDX-License-Identifier: Apache-2.0
// device_host.c - the process's own memory as a device: see device.h. Called by the client's
// copier. Invariant: the source is read by the kernel alone. An address without memory is an errno,
// never SIGSEGV.
//
// What is fastest (measured, README of tests/bench): one call for each MiB. Smaller pieces pay for
// the call, larger ones gain nothing; the kernel looks up each page of the source and copies it
// with cached stores, which is half of what streaming stores reach. That is the physical limit of
// one thread.
#include "ckpt/device/device.h"
#include "ckpt/base/util.h"
#include <sys/uio.h>

/* Lines that are shorter than a page and lie within one page of each other are read with what lies
 * between them, into a buffer that stays in the cache: a line of its own costs about as much as 1
 * KiB of copying. */
#define GAP_MAX 1024u
#define SPAN_MAX ((uint64_t)64 << 10)
#define VECS 64
/* So many small rows, one behind the other in memory, are read like such lines. */
#define NEAR_MIN 4u
#define NEAR_WIDTH 512u

struct host {
	struct device_handle device;
	bool by_fd; /* process_vm_readv is refused */
};

static int read_vec(const struct iovec *to, uint32_t nto, const struct iovec *from, uint32_t n,
		    uint64_t bytes)
{
	ssize_t got = process_vm_readv(getpid(), to, nto, from, n, 0);

	return got < 0 ? -errno : (uint64_t)got == bytes ? 0 : -EFAULT;
}

static int read_own(void *to, const struct iovec *from, uint32_t n, uint64_t bytes)
{
	return read_vec(&(struct iovec){ to, bytes }, 1, from, n, bytes);
}

/* The memory of a driver (VM_IO, VM_PFNMAP: what CUDA pins, vvar) is refused by process_vm_readv
 * with the errno of an address without memory, though the address can be used: so each row
 * that fails is tried by write_fd. */
static int write_fd(const struct device_target *t, const uint8_t *dst, const struct iovec *from,
		    uint32_t n)
{
	off_t at = (off_t)(dst - t->base);

	for (uint32_t i = 0; i < n; i++)
		for (uint64_t in = 0; in < from[i].iov_len;) {
			ssize_t put = pwrite(t->fd, (const uint8_t *)from[i].iov_base + in,
					     from[i].iov_len - in, at);

			if (put < 0 && errno == EINTR)
				continue;
			if (put <= 0)
				return put < 0 ? -errno : -EFAULT;
			in += (uint64_t)put;
			at += put;
		}
	return 0;
}

/* Contiguous at dst. */
static int host_read(const struct host *h, const struct device_target *t, uint8_t *dst,
		     const struct iovec *from, uint32_t n, uint64_t bytes)
{
	return h->by_fd ? write_fd(t, dst, from, n) : read_own(dst, from, n, bytes);
}

static int copy_lines(const struct host *h, const struct device_target *t,
		      const struct device_row *r)
{
	struct iovec from[VECS], to[VECS];
	bool packed = r->dst_pitch == r->width, apart = !packed && !h->by_fd;
	int rc = 0;

	for (uint64_t line = 0; line < r->rows && rc == 0;) {
		uint32_t n = packed || apart ? (uint32_t)MIN(r->rows - line, (uint64_t)VECS) : 1;
		uint8_t *dst = r->dst + line * r->dst_pitch;

		for (uint32_t i = 0; i < n; i++) {
			from[i] = (struct iovec){
				(void *)(uintptr_t)(r->src + (line + i) * r->src_pitch), r->width
			};
			to[i] = (struct iovec){ dst + i * r->dst_pitch, r->width };
		}
		rc = apart ? read_vec(to, n, from, n, n * r->width)
			   : host_read(h, t, dst, from, n, n * r->width);
		line += n;
	}
	return rc;
}

static void rows_gather(uint8_t *dst, uint64_t dst_pitch, const uint8_t *src, uint64_t src_pitch,
			uint64_t width, uint64_t rows)
{
	for (uint64_t i = 0; i < rows; i++, dst += dst_pitch, src += src_pitch)
		switch (width) {
		case 1:
			*dst = *src;
			break;
		case 2:
			memcpy(dst, src, 2);
			break;
		case 4:
			memcpy(dst, src, 4);
			break;
		case 8:
			memcpy(dst, src, 8);
			break;
		default:
			memcpy(dst, src, width);
		}
}

/* By way of a buffer: the span from the first line to the last, several times. */
static int copy_spans(const struct device_row *r)
{
	uint8_t bounce[SPAN_MAX];
	uint64_t at_once = 1 + (SPAN_MAX - r->width) / r->src_pitch;
	int rc = 0;

	for (uint64_t line = 0; line < r->rows && rc == 0;) {
		uint64_t n = MIN(r->rows - line, at_once), span = (n - 1) * r->src_pitch + r->width;
		struct iovec from = { (void *)(uintptr_t)(r->src + line * r->src_pitch), span };

		rc = read_own(bounce, &from, 1, span);
		if (rc == 0)
			rows_gather(r->dst + line * r->dst_pitch, r->dst_pitch, bounce,
				    r->src_pitch, r->width, n);
		line += n;
	}
	return rc;
}

static int copy_row(const struct host *h, const struct device_target *t, const struct device_row *r)
{
	struct iovec from = { (void *)(uintptr_t)r->src, r->width };

	if (r->rows == 1)
		return host_read(h, t, r->dst, &from, 1, r->width);
	/* No page lies whole in a gap of less than a page: what is between two lines is there if
	 * they are. */
	if (!h->by_fd && r->width < SPAN_MAX && r->src_pitch >= r->width &&
	    r->src_pitch - r->width <= GAP_MAX)
		return copy_spans(r);
	return copy_lines(h, t, r);
}

/* The rows from here on that are one line each, at most VECS: a tensor each, mostly. */
static uint32_t singles_count(const struct device_row *row, uint32_t n)
{
	uint32_t k = 0;

	while (k < n && k < VECS && row[k].rows == 1)
		k++;
	return k;
}

/* In one call. *ret_bad: which one was not there. */
static int copy_singles(const struct device_row *row, uint32_t n, uint32_t *ret_bad)
{
	struct iovec to[VECS], from[VECS];
	uint64_t bytes = 0;
	ssize_t got;

	for (uint32_t i = 0; i < n; i++) {
		to[i] = (struct iovec){ row[i].dst, row[i].width };
		from[i] = (struct iovec){ (void *)(uintptr_t)row[i].src, row[i].width };
		bytes += row[i].width;
	}
	got = process_vm_readv(getpid(), to, n, from, n, 0);
	if (got < 0 && errno != EFAULT)
		return -errno;
	got = MAX(got, 0);
	if ((uint64_t)got == bytes)
		return 0;
	for (*ret_bad = 0; (uint64_t)got >= row[*ret_bad].width; ++*ret_bad)
		got -= (ssize_t)row[*ret_bad].width;
	return -EFAULT;
}

/* The rows from here on, one line each, that lie behind each other with gaps as copy_row has them:
 * what malloc gives for small tensors. */
static uint32_t neighbours_count(const struct device_row *row, uint32_t n)
{
	uint32_t k = 0;

	while (k < n && row[k].width <= NEAR_WIDTH &&
	       row[k].src + row[k].width - row[0].src <= SPAN_MAX &&
	       (k == 0 || (row[k].src >= row[k - 1].src + row[k - 1].width &&
			   row[k].src - (row[k - 1].src + row[k - 1].width) <= GAP_MAX)))
		k++;
	return k;
}

/* By way of a buffer, in one piece. An error says nothing of which row it was. */
static int copy_neighbours(const struct device_row *row, uint32_t n)
{
	uint8_t bounce[SPAN_MAX];
	uint64_t from = row[0].src, span = row[n - 1].src + row[n - 1].width - from;
	struct iovec all = { (void *)(uintptr_t)from, span };
	int rc = read_own(bounce, &all, 1, span);

	for (uint32_t i = 0; i < n && rc == 0; i++)
		memcpy(row[i].dst, bounce + (row[i].src - from), row[i].width);
	return rc;
}

static int host_copy(struct device_handle *d, const struct device_target *to,
		     const struct device_row *row, uint32_t n, uint32_t *ret_bad)
{
	const struct host *h = (const struct host *)d, by_fd = { .by_fd = true };
	uint32_t bad;
	int rc = 0;

	for (uint32_t i = 0, k; i < n && rc == 0; i += k) {
		uint32_t near;

		k = h->by_fd ? 0 : singles_count(row + i, n - i);
		near = neighbours_count(row + i, k);
		if (near >= NEAR_MIN && copy_neighbours(row + i, near) == 0) {
			k = near;
			continue;
		}
		bad = 0;
		rc = k > 1 ? copy_singles(row + i, k, &bad) : copy_row(h, to, &row[i]);
		k = MAX(k, 1u);
		if (rc == -EFAULT && !h->by_fd) {
			rc = copy_lines(&by_fd, to, &row[i + bad]);
			k = bad + 1;
		}
		*ret_bad = i + bad;
	}
	return rc;
}

static int host_open(uint32_t number, struct device_handle **ret, struct ckpt_err *err)
{
	struct host *h = number ? NULL : calloc(1, sizeof *h);
	uint64_t from_here = 1, to_here = 0;
	struct iovec from = { &from_here, sizeof from_here };

	if (!h)
		return number ? ckpt_error(err, -EINVAL, "host memory has no device %u", number)
			      : ckpt_error(err, -ENOMEM, "no memory to copy with");
	h->device.ops = &device_host;
	h->by_fd = read_own(&to_here, &from, 1, sizeof to_here) < 0;
	*ret = &h->device;
	return 0;
}

static void host_close(struct device_handle *d)
{
	free(d);
}

const struct device_ops device_host = {
	.name = "host",
	.open = host_open,
	.close = host_close,
	.copy = host_copy,
};
