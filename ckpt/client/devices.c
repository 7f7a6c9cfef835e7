// SPDX-License-Identifier: Apache-2.0
// devices.c - see devices.h. Called by client.c, declare.c, mark.c and restoring.c.
// Invariant: what a mark has begun has an event on every device that is open, so that the copier
// may follow all of them.
#include "ckpt/client/devices.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include <inttypes.h>

#define SCRATCH_ALIGN 64u

/* --- which there are --- */
static int device_open(ckpt *c, uint32_t number, struct ckpt_err *err)
{
	struct devices *x = &c->devices;
	struct device_handle *d = NULL;
	int rc;

	if (number >= SHARED_DEVICES)
		return ckpt_error(err, -E2BIG, "CUDA device %u: this version knows devices 0 to %d",
				  number, SHARED_DEVICES - 1);
	if (x->at[number])
		return 0;
	rc = device_cuda.open(number, &d, err);
	if (rc < 0)
		return rc;
	atomic_store(&x->at[number], d);
	atomic_fetch_or(&x->open, 1u << number);
	if (!(d->caps & DEVICE_ORDERED))
		log_line(&c->log, LOG_WARNING,
			 "client: rank %u of job %s: CUDA device %u cannot write to host memory by "
			 "itself: copies are slower, and ckpt_guard waits for them",
			 c->rank, c->job, number);
	return 0;
}

void devices_open(ckpt *c, uint32_t asked)
{
	struct devices *x = &c->devices;

	x->asked = asked;
	if (asked && device_open(c, asked - 1, &x->why) < 0)
		log_line(&c->log, LOG_WARNING,
			 "client: rank %u of job %s: no CUDA device is used, only tensors in host "
			 "memory can be saved: %s",
			 c->rank, c->job, x->why.msg);
}

struct device_handle *devices_handle(const ckpt *c, uint32_t number)
{
	return atomic_load_explicit(&c->devices.at[number], memory_order_acquire);
}

static uint32_t open_now(const ckpt *c)
{
	return load_acquire(&c->devices.open);
}

static struct device_handle *device_any(const ckpt *c)
{
	uint32_t open = open_now(c);

	return open ? devices_handle(c, (uint32_t)__builtin_ctz(open)) : NULL;
}

void devices_close(ckpt *c)
{
	struct devices *x = &c->devices;

	for (uint32_t i = 0; i < SHARED_DEVICES; i++) {
		struct device_handle *d = atomic_exchange(&x->at[i], NULL);
		struct scratch *s = &x->scratch[i];

		if (d && s->at)
			d->ops->free(d, s->at);
		if (d && s->retired)
			d->ops->free(d, s->retired);
		free(s->row);
		free(s->back);
		if (d)
			d->ops->close(d);
	}
	atomic_store(&x->open, 0);
}

int devices_find(ckpt *c, const void *ptr, uint64_t bytes, uint32_t *ret, struct ckpt_err *err)
{
	uint32_t number;
	int rc = device_cuda_find(device_any(c), (uintptr_t)ptr, bytes, &number, err);

	*ret = 0;
	if (rc <= 0)
		return rc;
	if (!c->devices.asked)
		return ckpt_error(err, -EINVAL,
				  "%p is memory of CUDA device %u, and this handle is for host "
				  "memory: set ckpt_opts.device to %u",
				  ptr, number, number + 1);
	if (c->devices.why.code < 0)
		return ckpt_error(err, c->devices.why.code, "%p is memory of CUDA device %u: %s",
				  ptr, number, c->devices.why.msg);
	rc = device_open(c, number, err);
	*ret = number + 1;
	return rc;
}

/* --- streams --- */
static int streams_take(const ckpt *c, const struct ckpt_mark *m, void *ret[SHARED_DEVICES])
{
	uint32_t open = open_now(c), named = 0;

	memset(ret, 0, SHARED_DEVICES * sizeof *ret);
	if (m && m->stream) {
		if (!c->devices.asked || !(open & 1u << (c->devices.asked - 1)))
			return -EINVAL;
		named = 1u << (c->devices.asked - 1);
		ret[c->devices.asked - 1] = m->stream;
	}
	for (uint32_t i = 0; m && i < m->nstream; i++) {
		uint32_t n = m->more[i].device - 1;

		if (n >= SHARED_DEVICES || !(open & 1u << n) || named & 1u << n || m->more[i].pad)
			return -EINVAL;
		named |= 1u << n;
		ret[n] = m->more[i].stream;
	}
	return 0;
}

/* The first device of these from n on; SHARED_DEVICES: there is none. */
static uint32_t device_from(uint32_t which, uint32_t n)
{
	uint32_t left = n < SHARED_DEVICES ? which & ~0u << n : 0;

	return left ? (uint32_t)__builtin_ctz(left) : SHARED_DEVICES;
}

int devices_check(ckpt *c, const struct ckpt_mark *m)
{
	uint32_t open = open_now(c);
	int rc;

	if (!open && (!m || (!m->stream && !m->nstream)))
		return 0;
	rc = streams_take(c, m, c->devices.given);
	for (uint32_t n = device_from(open, 0); n < SHARED_DEVICES; n = device_from(open, n + 1)) {
		struct device_handle *d = devices_handle(c, n);

		if (rc == 0)
			rc = d->ops->check(d, c->devices.given[n]);
	}
	return rc;
}

int devices_begin(ckpt *c)
{
	int rc = 0;

	for (uint32_t n = device_from(open_now(c), 0); n < SHARED_DEVICES;
	     n = device_from(open_now(c), n + 1)) {
		struct device_handle *d = devices_handle(c, n);
		const struct scratch *s = &c->devices.scratch[n];
		void *stream = c->devices.given[n];

		c->devices.stream[n] = stream; /* not before: a guard may still be to come */
		if (rc == 0 && s->nrow && !MUTANT(VOLATILE_NOT_MOVED))
			rc = d->ops->move(d, stream, s->row, s->nrow);
		if (rc == 0)
			rc = d->ops->begin(d, stream);
	}
	c->devices.marked = rc == 0;
	return rc;
}

int devices_guard(ckpt *c, const struct ckpt_mark *m, uint32_t which)
{
	uint32_t open = open_now(c);
	void *given[SHARED_DEVICES], **stream = c->devices.stream;
	int rc = 0;

	if (m && (m->stream || m->nstream)) {
		rc = streams_take(c, m, given);
		stream = given;
	}
	for (uint32_t n = device_from(open, 0); n < SHARED_DEVICES; n = device_from(open, n + 1))
		for (uint32_t k = device_from(which & open, 0); k < SHARED_DEVICES;
		     k = device_from(which & open, k + 1)) {
			struct device_handle *d = devices_handle(c, n);

			if (rc == 0)
				rc = d->ops->guard(d, stream[n], devices_handle(c, k));
		}
	return rc;
}

int devices_come(ckpt *c, const struct ckpt_mark *m, uint32_t which, uint32_t number)
{
	uint32_t first = device_from(which & open_now(c), 0);
	void *given[SHARED_DEVICES], **stream = c->devices.stream;
	struct device_handle *d;

	if (first == SHARED_DEVICES)
		return -ENODEV;
	if (m && (m->stream || m->nstream)) {
		int rc = streams_take(c, m, given);

		if (rc < 0)
			return rc;
		stream = given;
	}
	d = devices_handle(c, first);
	return d->ops->come(d, stream[first], number);
}

static const struct ckpt_stream *want_stream(const struct ckpt_want *w, uint32_t number)
{
	for (uint32_t i = 0; i < w->nstream; i++)
		if (w->more[i].device == number + 1)
			return &w->more[i];
	return NULL;
}

static const char *settle_why(int rc)
{
	return rc == -EBUSY ? "a stream is being captured into a graph: end the capture first, or "
			      "name the streams in ckpt_want.more"
	       : rc == -EINVAL ? "the stream that ckpt_want.more names for it is of another context"
			       : "it has failed: an earlier kernel or copy did; end this process";
}

int devices_settle(ckpt *c, const struct ckpt_want *w, struct ckpt_err *err)
{
	const struct ckpt_mark named = { .nstream = w->nstream, .more = w->more };
	void *given[SHARED_DEVICES];

	if (streams_take(c, &named, given) < 0)
		return ckpt_error(err, -EINVAL,
				  "ckpt_want.more names a CUDA device twice, or one that has no "
				  "tensor and is not ckpt_opts.device");
	for (uint32_t n = device_from(open_now(c), 0); n < SHARED_DEVICES;
	     n = device_from(open_now(c), n + 1)) {
		struct device_handle *d = devices_handle(c, n);
		int rc = want_stream(w, n) ? d->ops->settle_stream(d, given[n]) : d->ops->settle(d);

		if (rc < 0)
			return ckpt_error(err, rc, "CUDA device %u: %s", n, settle_why(rc));
	}
	return 0;
}

int devices_settle_state(const ckpt *c, uint32_t number)
{
	struct device_handle *d = devices_handle(c, number);
	int rc = 0;

	if (!c->devices.marked)
		return d->ops->settle(d);
	for (uint32_t n = device_from(open_now(c), 0); n < SHARED_DEVICES && rc == 0;
	     n = device_from(open_now(c), n + 1)) {
		d = devices_handle(c, n);
		rc = d->ops->settle_stream(d, c->devices.stream[n]);
	}
	return rc;
}

/* --- by value --- */
void devices_scratch_begin(ckpt *c)
{
	for (uint32_t i = 0; i < SHARED_DEVICES; i++) {
		c->devices.scratch[i].nrow = 0;
		c->devices.scratch[i].used = 0;
	}
}

static int row_add(struct scratch *s, const struct device_row *r)
{
	if (s->nrow == s->cap) {
		uint32_t cap = s->cap ? s->cap * 2 : 64;
		struct device_row *row = realloc(s->row, cap * sizeof *row), *back;

		if (row)
			s->row = row;
		back = row ? realloc(s->back, cap * sizeof *back) : NULL;
		if (back)
			s->back = back;
		if (!back)
			return -ENOMEM;
		s->cap = cap;
	}
	s->row[s->nrow++] = *r;
	return 0;
}

/* A part as rows: what is contiguous, the lines of the dimension around it, and a row for each
 * index of the others. Places in the scratch are offsets until row_place. */
static int part_rows(struct scratch *s, const struct part_of *p, uint32_t elem, uint64_t to)
{
	uint64_t at[CKPT_DIMS_MAX] = { 0 }, width = elem, rows = 1, pitch = 0;
	uint32_t d = p->ndim;
	int rc = 0;

	while (d && (p->extent[d - 1] == 1 || (uint64_t)p->stride[d - 1] * elem == width)) {
		width *= p->extent[d - 1];
		d--;
	}
	if (d) {
		d--;
		rows = p->extent[d];
		pitch = (uint64_t)p->stride[d] * elem;
	}
	for (;;) {
		uint64_t from = (uintptr_t)p->ptr;
		uint32_t k;

		for (k = 0; k < d; k++)
			from += at[k] * (uint64_t)p->stride[k] * elem;
		rc = row_add(s, &(struct device_row){ .src = from,
						      .dst = (uint8_t *)(uintptr_t)to,
						      .width = width,
						      .rows = rows,
						      .src_pitch = pitch,
						      .dst_pitch = width });
		to += width * rows;
		for (k = d; rc == 0 && k-- > 0;) {
			if (++at[k] < p->extent[k])
				break;
			at[k] = 0;
		}
		if (rc < 0 || k == UINT32_MAX || !d)
			return rc;
	}
}

int devices_scratch_add(ckpt *c, struct part_of *p, uint32_t elem, struct ckpt_err *err)
{
	struct scratch *s = &c->devices.scratch[p->device - 1];

	p->off = s->used;
	s->used = align_up(s->used + p->bytes, SCRATCH_ALIGN);
	return part_rows(s, p, elem, p->off) < 0
		       ? ckpt_error(err, -ENOMEM, "no memory for a tensor")
		       : 0;
}

/* A copy that is under way may still read the one before. */
static int scratch_grow(struct device_handle *d, struct scratch *s, struct ckpt_err *err)
{
	uint64_t at, bytes = MAX(s->used, s->bytes + s->bytes / 2);
	int rc;

	if (s->used <= s->bytes)
		return 0;
	rc = d->ops->alloc(d, bytes, &at, err);
	if (rc < 0)
		return rc;
	if (s->retired)
		d->ops->free(d, s->retired);
	s->retired = s->at;
	s->at = at;
	s->bytes = bytes;
	return 0;
}

/* A row and the same way back: from the scratch to the tensor. */
static void row_place(const struct scratch *s, struct device_row *r, struct device_row *back)
{
	r->dst = (uint8_t *)(uintptr_t)(s->at + (uintptr_t)r->dst);
	*back = (struct device_row){ .src = (uintptr_t)r->dst,
				     .dst = (uint8_t *)(uintptr_t)r->src,
				     .width = r->width,
				     .rows = r->rows,
				     .src_pitch = r->dst_pitch,
				     .dst_pitch = r->src_pitch };
}

int devices_scratch_end(ckpt *c, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t n = device_from(open_now(c), 0); n < SHARED_DEVICES;
	     n = device_from(open_now(c), n + 1)) {
		struct scratch *s = &c->devices.scratch[n];

		if (rc == 0)
			rc = scratch_grow(devices_handle(c, n), s, err);
		for (uint32_t i = 0; rc == 0 && i < s->nrow; i++)
			row_place(s, &s->row[i], &s->back[i]);
	}
	return rc;
}

int devices_by_value(ckpt *c, bool out)
{
	int rc = 0;

	for (uint32_t n = device_from(open_now(c), 0); n < SHARED_DEVICES;
	     n = device_from(open_now(c), n + 1)) {
		struct device_handle *d = devices_handle(c, n);
		const struct scratch *s = &c->devices.scratch[n];

		if (rc == 0 && s->nrow)
			rc = d->ops->move_now(d, out ? s->back : s->row, s->nrow);
	}
	return rc;
}
