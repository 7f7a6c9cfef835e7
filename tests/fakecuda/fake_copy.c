// SPDX-License-Identifier: Apache-2.0
// fake_copy.c - copies, as they are asked for; fake_queue.c carries them out. See fake_impl.h.
// Invariant: a copy with host memory that is not registered is waited for, and counted as a
// violation.
#include "tests/fakecuda/fake_impl.h"

struct side { /* of a copy */
	uintptr_t at;
	bool device; /* an address of the device's is wanted */
};

static size_t side_span(const struct copy *c, size_t pitch)
{
	return c->width && c->height ? (c->height - 1) * pitch + c->width : 0;
}

/* Where the driver may touch it. *sync: it is host memory that is not registered. *on_device: it
 * is memory of a device, in whatever way it was named. */
static uint8_t *side_address(const struct side *s, size_t span, bool *sync, bool *on_device)
{
	struct range *r = range_find(s->at, span);

	*on_device = r && r->kind != RANGE_HOST;
	if (r)
		return r->alias + (s->at - (uintptr_t)r->base);
	if (s->device)
		return NULL;
	*sync = true;
	return (uint8_t *)s->at;
}

/* The lock is held. */
static cuda_rc copy_add(cuda_stream s, struct side to, struct side from, struct copy *c)
{
	struct CUstream_st *x = stream_of(s);
	bool sync = false, to_device, from_device;
	struct work w = { .kind = OP_COPY };
	struct range *r;
	cuda_rc rc;

	if (!x)
		return CUDA_INVALID_HANDLE;
	if (!c->width || !c->height)
		return CUDA_OK;
	c->to = side_address(&to, side_span(c, c->to_pitch), &sync, &to_device);
	c->from = side_address(&from, side_span(c, c->from_pitch), &sync, &from_device);
	if (!c->to || !c->from)
		return CUDA_INVALID_VALUE;
	w.copy = *c;
	r = from.device && fake.orphans ? range_find(from.at, 1) : NULL;
	w.copy.orphan = r && r->imported ? r : NULL;
	w.copy.within = to_device && from_device;
	fake.copied += c->width * c->height;
	if (sync) {
		fake.violations++;
		rc = capture_unsafe();
		if (rc)
			return rc;
	}
	rc = stream_do(x, &w);
	if (rc == CUDA_OK && sync && !x->capture) {
		struct op *last = x->last;

		last->refs++;
		op_wait(last);
		op_unref(last);
	}
	return rc;
}

static struct copy copy_line(size_t bytes)
{
	return (struct copy){ .width = bytes, .height = 1 };
}

cuda_rc fake_copy_out(void *to, cuda_ptr from, size_t bytes, cuda_stream s)
{
	struct copy c = copy_line(bytes);

	CALL("cuMemcpyDtoHAsync");
	CONTEXT();
	return call_end(copy_add(s, (struct side){ (uintptr_t)to, false },
				 (struct side){ (uintptr_t)from, true }, &c));
}

cuda_rc fake_copy_in(cuda_ptr to, const void *from, size_t bytes, cuda_stream s)
{
	struct copy c = copy_line(bytes);

	CALL("cuMemcpyHtoDAsync");
	CONTEXT();
	return call_end(copy_add(s, (struct side){ (uintptr_t)to, true },
				 (struct side){ (uintptr_t)from, false }, &c));
}

cuda_rc fake_copy_on(cuda_ptr to, cuda_ptr from, size_t bytes, cuda_stream s)
{
	struct copy c = copy_line(bytes);

	CALL("cuMemcpyDtoDAsync");
	CONTEXT();
	return call_end(copy_add(s, (struct side){ (uintptr_t)to, true },
				 (struct side){ (uintptr_t)from, true }, &c));
}

cuda_rc fake_copy_2d(const struct cuda_copy2d *d, cuda_stream s)
{
	struct copy c = { .width = d->width,
			  .height = d->height,
			  .to_pitch = d->dst_pitch,
			  .from_pitch = d->src_pitch };
	struct side to = { d->dst_type == CUDA_MEMORY_HOST ? (uintptr_t)d->dst_host
							   : (uintptr_t)d->dst_device,
			   d->dst_type != CUDA_MEMORY_HOST },
		    from = { d->src_type == CUDA_MEMORY_HOST ? (uintptr_t)d->src_host
							     : (uintptr_t)d->src_device,
			     d->src_type != CUDA_MEMORY_HOST };

	CALL("cuMemcpy2DAsync");
	CONTEXT();
	FAIL_IF(d->src_array || d->dst_array ||
			(d->height > 1 && (d->src_pitch < d->width || d->dst_pitch < d->width)),
		CUDA_INVALID_VALUE);
	to.at += d->dst_y * d->dst_pitch + d->dst_x;
	from.at += d->src_y * d->src_pitch + d->src_x;
	return call_end(copy_add(s, to, from, &c));
}

static cuda_rc copies_add(cuda_ptr *to, cuda_ptr *from, size_t *bytes, size_t n,
			  struct cuda_copy_attr *attr, size_t *attr_first, size_t nattr,
			  size_t *ret_bad, cuda_stream s)
{
	FAIL_IF(!s || (uintptr_t)s == 1, CUDA_INVALID_VALUE); /* not on the legacy stream */
	FAIL_IF(!n || !nattr || attr_first[0] || attr->order != CUDA_SRC_ORDER_STREAM,
		CUDA_INVALID_VALUE);
	FAIL_IF(stream_of(s) && stream_of(s)->capture, CUDA_CAPTURE_UNSUPPORTED);
	for (size_t i = 0; i < n; i++) {
		struct copy c = copy_line(bytes[i]);
		cuda_rc rc = bytes[i] ? copy_add(s, (struct side){ (uintptr_t)to[i], true },
						 (struct side){ (uintptr_t)from[i], true }, &c)
				      : CUDA_INVALID_VALUE;

		if (rc && ret_bad)
			*ret_bad = i;
		FAIL_IF(rc, rc);
	}
	return call_end(CUDA_OK);
}

cuda_rc fake_copy_many_12(cuda_ptr *to, cuda_ptr *from, size_t *bytes, size_t n,
			  struct cuda_copy_attr *attr, size_t *attr_first, size_t nattr,
			  size_t *ret_bad, cuda_stream s)
{
	CALL("cuMemcpyBatchAsync");
	CONTEXT();
	return copies_add(to, from, bytes, n, attr, attr_first, nattr, ret_bad, s);
}

cuda_rc fake_copy_many(cuda_ptr *to, cuda_ptr *from, size_t *bytes, size_t n,
		       struct cuda_copy_attr *attr, size_t *attr_first, size_t nattr, cuda_stream s)
{
	CALL("cuMemcpyBatchAsync");
	CONTEXT();
	return copies_add(to, from, bytes, n, attr, attr_first, nattr, NULL, s);
}
