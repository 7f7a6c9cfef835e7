// SPDX-License-Identifier: Apache-2.0
// landing.c - see landing.h. Called by ckpt_restore. Invariant: the kernel writes host memory
// (preadv from the window), and a device its own, so that memory which is not there is an error and
// no signal; and no byte outside of what was declared is written, whatever the daemon says.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/landing.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define BATCH 512u /* pieces of memory of one preadv, rows of one call of a device */

int landings_begin(const ckpt *c, struct landings *ret, struct ckpt_err *err)
{
	uint32_t n = 0;

	*ret = (struct landings){ .fd = { -1, -1 }, .c = c };
	for (uint32_t i = 0; i < c->ntensor; i++)
		n += c->tensor[i].dropped ? 0 : c->tensor[i].nlocal;
	ret->span = calloc((size_t)n + 1, sizeof *ret->span);
	if (!ret->span)
		return ckpt_error(err, -ENOMEM, "no memory to restore");
	n = 0;
	for (uint32_t i = 0; i < c->ntensor; i++) {
		const struct declared *t = &c->tensor[i];

		for (uint32_t k = 0; !t->dropped && k < t->nlocal; k++)
			if (t->local[k].bytes)
				ret->span[n++] = span_copied(c, &t->local[k]);
	}
	ret->nspan = sources_merge(ret->span, n);
	return 0;
}

void landings_end(struct landings *k)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (k->device)
			k->device->ops->forget(k->device, &k->window[i]);
		if (k->window[i].base)
			munmap(k->window[i].base, k->window[i].bytes);
		if (k->fd[i] >= 0)
			(void)close(k->fd[i]);
	}
	free(k->span);
	*k = (struct landings){ .fd = { -1, -1 } };
}

/* Of `rows` times `width` bytes from `at` on: the end; -EPROTO where that is no number. */
static int lines_end(uint64_t at, const struct wire_row *r, uint64_t pitch, uint64_t *ret)
{
	uint64_t last;

	return ckpt_mul(r->rows - 1, pitch, &last) || ckpt_add(at, last, &last) ||
			       ckpt_add(last, r->width, ret)
		       ? -EPROTO
		       : 0;
}

int landing_row_check(const struct wire_row *r, const struct source_span *span, uint32_t nspan,
		      uint64_t bytes)
{
	uint64_t src_end, dst_end;

	/* no byte of a window is landed twice: so a row takes no longer than the window */
	if (!r->rows || !r->width || r->turn || r->flags != WIRE_ROW_CLIENT ||
	    (r->rows > 1 && r->src_pitch < r->width) ||
	    lines_end(r->src, r, r->src_pitch, &src_end) < 0 || src_end > bytes ||
	    lines_end(r->dst, r, r->dst_pitch, &dst_end) < 0)
		return -EPROTO;
	if (MUTANT(LANDING_ANYWHERE))
		return 0;
	return sources_in(span, nspan, r->dst, dst_end) ? 0 : -EPROTO;
}

/* --- carrying --- */
struct carry {
	int fd;
	struct iovec to[BATCH];
	uint32_t n;
	uint64_t at, end; /* of the window: all in `to` come from [at, end) */

	/* rows of one device */
	struct landings *all;
	uint32_t window, device, nrow;
	struct device_row row[BATCH];
};

/* The windows as memory: registered with the first device that needs them. */
static int windows_map(struct landings *k, struct device_handle *d)
{
	struct stat st;
	void *base;
	int rc = 0;

	for (uint32_t i = 0; i < 2 && rc == 0 && !k->window[i].base; i++) {
		if (fstat(k->fd[i], &st) < 0 || st.st_size <= 0)
			return -EPROTO;
		rc = wire_map(k->fd[i], (uint64_t)st.st_size, 0, &base, NULL);
		if (rc == 0)
			k->window[i] = (struct device_target){ .base = base,
							       .bytes = (uint64_t)st.st_size,
							       .fd = k->fd[i] };
	}
	for (uint32_t i = 0; i < 2 && rc == 0 && !k->device; i++)
		rc = d->ops->target(d, &k->window[i], NULL);
	if (rc == 0)
		k->device = d;
	return rc;
}

static int rows_land(struct carry *x)
{
	struct device_handle *d = x->nrow ? devices_handle(x->all->c, x->device - 1) : NULL;
	const struct device_target *from = &x->all->window[x->window];
	uint32_t bad, n = TAKE(x->nrow);
	int rc;

	if (!n)
		return 0;
	rc = windows_map(x->all, d);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		struct device_row *r = &x->row[i];

		if ((uintptr_t)r->dst + (r->rows - 1) * r->dst_pitch + r->width > from->bytes)
			return -EPROTO;
		r->dst = from->base + (uintptr_t)r->dst;
	}
	return rc == 0 ? d->ops->land(d, from, x->row, n, &bad) : rc;
}

/* To memory of a device. Its place in the window is an offset until the window is mapped. */
static int carry_out(struct carry *x, const struct wire_row *r, uint32_t device)
{
	int rc = x->nrow == BATCH || x->device != device ? rows_land(x) : 0;

	x->device = device;
	x->row[x->nrow++] = (struct device_row){ .src = r->dst,
						 .dst = (uint8_t *)(uintptr_t)r->src,
						 .width = r->width,
						 .rows = r->rows,
						 .src_pitch = r->dst_pitch,
						 .dst_pitch = r->src_pitch };
	return rc;
}

static int carry_flush(struct carry *x)
{
	struct iovec *v = x->to;

	while (x->n) {
		ssize_t got = preadv(x->fd, v, (int)x->n, (off_t)x->at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EPROTO;
		x->at += (uint64_t)got;
		while (x->n && (size_t)got >= v->iov_len) {
			got -= (ssize_t)v->iov_len;
			v++;
			x->n--;
		}
		if (x->n && got) {
			v->iov_base = (uint8_t *)v->iov_base + got;
			v->iov_len -= (size_t)got;
		}
	}
	return 0;
}

static int carry_line(struct carry *x, uint64_t src, uint64_t dst, uint64_t width)
{
	int rc = 0;

	if (x->n && (x->n == BATCH || src != x->end))
		rc = carry_flush(x);
	if (rc < 0)
		return rc;
	if (!x->n)
		x->at = src;
	x->to[x->n++] = (struct iovec){ (void *)(uintptr_t)dst, width };
	x->end = src + width;
	return 0;
}

static int carry_row(struct carry *x, struct wire_row r)
{
	int rc = 0;

	if (r.rows > 1 && r.src_pitch == r.width && r.dst_pitch == r.width) {
		r.width *= r.rows;
		r.rows = 1;
	}
	for (uint64_t i = 0; i < r.rows && rc == 0; i++)
		rc = carry_line(x, r.src + i * r.src_pitch, r.dst + i * r.dst_pitch, r.width);
	return rc;
}

/* The rows as they were when this began: the window is not ours alone. */
static int rows_read(int fd, uint32_t n, struct wire_row **ret)
{
	size_t bytes = n * sizeof **ret, done = 0;
	uint8_t *p = malloc(bytes + 1);

	*ret = (struct wire_row *)p;
	while (p && done < bytes) {
		ssize_t got = pread(fd, p + done, bytes - done, (off_t)done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EPROTO;
		done += (size_t)got;
	}
	return p ? 0 : -ENOMEM;
}

static int carry_all(struct landings *k, const struct wire_landed *m)
{
	cleanup_free struct wire_row *row = NULL;
	struct carry *x = calloc(1, sizeof *x);
	int rc = x ? rows_read(k->fd[m->window], m->nrow, &row) : -ENOMEM;

	if (rc == 0)
		*x = (struct carry){ .fd = k->fd[m->window], .all = k, .window = m->window };
	for (uint32_t i = 0; i < m->nrow && rc == 0; i++) {
		const struct source_span *to;

		rc = landing_row_check(&row[i], k->span, k->nspan, m->bytes);
		if (rc < 0)
			break;
		to = sources_in(k->span, k->nspan, row[i].dst, row[i].dst + 1);
		rc = to && to->device ? carry_out(x, &row[i], to->device) : carry_row(x, row[i]);
	}
	if (rc == 0)
		rc = carry_flush(x);
	if (rc == 0)
		rc = rows_land(x);
	free(x);
	return rc;
}

int landing_take(struct landings *k, const struct wire_landed *m, int fd[WIRE_FDS_MAX])
{
	if (fd[0] >= 0 && fd[1] >= 0 && k->fd[0] < 0) {
		k->fd[0] = TAKE_FD(fd[0]);
		k->fd[1] = TAKE_FD(fd[1]);
	}
	wire_close_fds(fd, WIRE_FDS_MAX);
	if (m->window > 1 || k->fd[m->window] < 0 || m->bytes > INT64_MAX ||
	    m->nrow > m->bytes / sizeof(struct wire_row))
		return -EPROTO;
	return carry_all(k, m);
}
