// SPDX-License-Identifier: Apache-2.0
// fake_stream.c - contexts, streams, events, and what a capture forbids. See fake_impl.h.
// Invariant: what a stream is given is queued, or noted in the graph that is captured, or refused.
#include "tests/fakecuda/fake_impl.h"
#include <stdlib.h>

cuda_rc context_rc(struct CUctx_st *c)
{
	while (c->sticky && c->copies)
		pthread_cond_wait(&fake.change, &fake.lock);
	return c->sticky;
}

cuda_rc capture_unsafe(void)
{
	cuda_rc rc = CUDA_OK;

	for (struct capture *c = fake.capture; c; c = c->next) {
		bool mine = pthread_equal(c->by, pthread_self());

		if (capture_mode == CUDA_CAPTURE_RELAXED || c->mode == CUDA_CAPTURE_RELAXED)
			continue;
		if (mine ||
		    (capture_mode == CUDA_CAPTURE_GLOBAL && c->mode == CUDA_CAPTURE_GLOBAL)) {
			c->invalid = true;
			rc = CUDA_CAPTURE_UNSUPPORTED;
		}
	}
	return rc;
}

struct CUstream_st *stream_of(cuda_stream s)
{
	if (!s || (uintptr_t)s == 1)
		return current ? current->stream : NULL;
	return s->magic == STREAM_MAGIC ? s : NULL;
}

cuda_rc stream_do(struct CUstream_st *s, const struct work *given)
{
	struct work mine = *given, *w = &mine;
	struct capture *c = s->capture;

	w->ctx = s->ctx;
	if (c) {
		if (c->invalid)
			return CUDA_CAPTURE_INVALIDATED;
		c->node = realloc(c->node, (c->nnode + 1) * sizeof *c->node);
		if (!c->node)
			abort();
		c->node[c->nnode++] = (struct node){ .work = *w };
		return CUDA_OK;
	}
	if (s->legacy)
		for (struct CUstream_st *x = s->ctx->stream; x; x = x->next)
			if (x->blocking && x->capture && x->capture->mode != CUDA_CAPTURE_RELAXED) {
				x->capture->invalid = true;
				return CUDA_CAPTURE_IMPLICIT;
			}
	op_add(s, w, NULL);
	return CUDA_OK;
}

void context_wait(struct CUctx_st *c)
{
	for (struct CUstream_st *s = c->stream; s; s = s->next)
		if (s->last && !s->last->done) {
			struct op *last = s->last;

			last->refs++;
			op_wait(last);
			op_unref(last);
			s = c->stream; /* the lock was given up meanwhile */
		}
}

static struct CUstream_st *stream_make(struct CUctx_st *ctx, bool blocking, bool legacy)
{
	struct CUstream_st *s = calloc(1, sizeof *s);

	if (!s)
		abort();
	s->magic = STREAM_MAGIC;
	s->ctx = ctx;
	s->blocking = blocking;
	s->legacy = legacy;
	s->queue = fake.one_queue ? &fake.shared : &s->own;
	if (!fake.one_queue && !queue_start(&s->own)) {
		free(s);
		return NULL;
	}
	return s;
}

cuda_rc fake_primary_retain(cuda_ctx *ret, cuda_device d)
{
	CALL("cuDevicePrimaryCtxRetain");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	if (!fake.ctx[d].stream)
		fake.ctx[d].stream = stream_make(&fake.ctx[d], false, true);
	FAIL_IF(!fake.ctx[d].stream, CUDA_OUT_OF_MEMORY);
	fake.ctx[d].refs++;
	*ret = &fake.ctx[d];
	return call_end(CUDA_OK);
}

cuda_rc fake_primary_release(cuda_device d)
{
	CALL("cuDevicePrimaryCtxRelease");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	FAIL_IF(!fake.ctx[d].refs, CUDA_INVALID_CONTEXT);
	fake.ctx[d].refs--; /* the context stays: other tests of the process may have it */
	return call_end(CUDA_OK);
}

cuda_rc fake_ctx_current(cuda_ctx *ret)
{
	CALL("cuCtxGetCurrent");
	*ret = current;
	return call_end(CUDA_OK);
}

cuda_rc fake_ctx_set(cuda_ctx c)
{
	CALL("cuCtxSetCurrent");
	current = c;
	return call_end(CUDA_OK);
}

cuda_rc fake_ctx_device(cuda_device *ret)
{
	CALL("cuCtxGetDevice");
	FAIL_IF(!current, CUDA_INVALID_CONTEXT);
	*ret = current->device;
	return call_end(CUDA_OK);
}

cuda_rc fake_capture_mode(unsigned *mode)
{
	unsigned was = capture_mode;

	CALL("cuThreadExchangeStreamCaptureMode");
	FAIL_IF(*mode > CUDA_CAPTURE_RELAXED, CUDA_INVALID_VALUE);
	capture_mode = *mode;
	*mode = was;
	return call_end(CUDA_OK);
}

cuda_rc fake_stream_new(cuda_stream *ret, unsigned flags, int priority)
{
	struct CUstream_st *s;

	(void)priority; /* has no effect on copies */
	CALL("cuStreamCreateWithPriority");
	CONTEXT();
	FAIL_IF(flags > CUDA_STREAM_NON_BLOCKING, CUDA_INVALID_VALUE);
	s = stream_make(current, !(flags & CUDA_STREAM_NON_BLOCKING), false);
	FAIL_IF(!s, CUDA_OUT_OF_MEMORY);
	s->next = current->stream->next;
	current->stream->next = s;
	*ret = s;
	return call_end(CUDA_OK);
}

cuda_rc fake_stream_free(cuda_stream s)
{
	struct CUstream_st **at;

	CALL("cuStreamDestroy");
	FAIL_IF(!s || s->magic != STREAM_MAGIC || s->legacy, CUDA_INVALID_HANDLE);
	for (at = &s->ctx->stream; *at != s; at = &(*at)->next)
		;
	*at = s->next;
	s->magic = 0;
	if (s->last)
		op_wait(s->last); /* CUDA returns at once; nothing here depends on that */
	op_unref(s->last);
	if (!fake.one_queue) {
		s->own.closing = true;
		pthread_cond_broadcast(&fake.change);
		pthread_mutex_unlock(&fake.lock);
		pthread_join(s->own.thread, NULL);
		pthread_mutex_lock(&fake.lock);
	}
	free(s);
	return call_end(CUDA_OK);
}

cuda_rc fake_stream_sync(cuda_stream s)
{
	struct CUstream_st *x;
	struct op *last;

	CALL("cuStreamSynchronize");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x, CUDA_INVALID_HANDLE);
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(x->capture, CUDA_CAPTURE_UNSUPPORTED);
	last = x->legacy ? op_add(x, &(struct work){ 0 }, NULL) : x->last;
	if (last) {
		last->refs++;
		op_wait(last);
		op_unref(last);
	}
	return call_end(x->ctx->sticky);
}

cuda_rc fake_stream_capturing(cuda_stream s, unsigned *ret)
{
	struct CUstream_st *x;

	CALL("cuStreamIsCapturing");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x, CUDA_INVALID_HANDLE);
	*ret = !x->capture	     ? CUDA_CAPTURE_NONE
	       : x->capture->invalid ? CUDA_CAPTURE_INVALID
				     : CUDA_CAPTURE_ACTIVE;
	return call_end(CUDA_OK);
}

cuda_rc fake_stream_ctx(cuda_stream s, cuda_ctx *ret)
{
	struct CUstream_st *x;

	CALL("cuStreamGetCtx");
	x = stream_of(s);
	FAIL_IF(!x, s ? CUDA_INVALID_HANDLE : CUDA_INVALID_CONTEXT);
	*ret = x->ctx;
	return call_end(CUDA_OK);
}

cuda_rc fake_event_new(cuda_event *ret, unsigned flags)
{
	struct CUevent_st *e;

	(void)flags;
	CALL("cuEventCreate");
	CONTEXT();
	e = calloc(1, sizeof *e);
	FAIL_IF(!e, CUDA_OUT_OF_MEMORY);
	e->magic = EVENT_MAGIC;
	e->ctx = current;
	*ret = e;
	return call_end(CUDA_OK);
}

cuda_rc fake_event_free(cuda_event e)
{
	CALL("cuEventDestroy");
	FAIL_IF(!e || e->magic != EVENT_MAGIC, CUDA_INVALID_HANDLE);
	op_unref(e->mark);
	e->magic = 0;
	free(e);
	return call_end(CUDA_OK);
}

static void node_add(struct capture *c, struct CUevent_st *record, struct CUevent_st *wait)
{
	c->node = realloc(c->node, (c->nnode + 1) * sizeof *c->node);
	if (!c->node)
		abort();
	c->node[c->nnode++] = (struct node){ .record = record, .wait = wait };
}

void event_mark(struct CUevent_st *e, struct CUstream_st *s)
{
	op_unref(e->mark);
	e->mark = op_add(s, &(struct work){ 0 }, NULL);
	e->mark->refs++;
}

cuda_rc fake_event_record_flags(cuda_event e, cuda_stream s, unsigned flags)
{
	struct CUstream_st *x;

	CALL("cuEventRecordWithFlags");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || !e || e->magic != EVENT_MAGIC || e->ctx != x->ctx, CUDA_INVALID_HANDLE);
	if (x->capture) {
		FAIL_IF(x->capture->invalid, CUDA_CAPTURE_INVALIDATED);
		if (flags & CUDA_EVENT_EXTERNAL)
			node_add(x->capture, e, NULL);
		else
			e->capture = x->capture;
		return call_end(CUDA_OK);
	}
	e->capture = NULL;
	event_mark(e, x);
	return call_end(CUDA_OK);
}

cuda_rc fake_event_record(cuda_event e, cuda_stream s)
{
	pthread_mutex_lock(&fake.lock);
	{
		cuda_rc first = call_begin("cuEventRecord");

		FAIL_IF(first, first);
	}
	pthread_mutex_unlock(&fake.lock);
	calls_here--; /* one call of the program's */
	return fake_event_record_flags(e, s, 0);
}

cuda_rc fake_event_query(cuda_event e)
{
	CALL("cuEventQuery");
	FAIL_IF(!e || e->magic != EVENT_MAGIC, CUDA_INVALID_HANDLE);
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(e->capture, CAPTURED_EVENT);
	FAIL_IF(context_rc(e->ctx), e->ctx->sticky);
	return call_end(!e->mark || e->mark->done ? CUDA_OK : CUDA_NOT_READY);
}

cuda_rc fake_stream_wait(cuda_stream s, cuda_event e, unsigned flags)
{
	struct CUstream_st *x;

	CALL("cuStreamWaitEvent");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || !e || e->magic != EVENT_MAGIC, CUDA_INVALID_HANDLE);
	if (e->capture && !(flags & CUDA_EVENT_EXTERNAL)) {
		FAIL_IF(x->capture && x->capture != e->capture, CAPTURE_ISOLATION);
		if (!x->capture) {
			FAIL_IF(x->legacy, CUDA_CAPTURE_IMPLICIT);
			x->capture = e->capture; /* it joins the capture */
			x->capture->refs++;
		}
		return call_end(CUDA_OK);
	}
	if (x->capture) {
		FAIL_IF(x->capture->invalid, CUDA_CAPTURE_INVALIDATED);
		if (!(flags & CUDA_EVENT_EXTERNAL)) {
			x->capture->invalid = true;
			return call_end(CAPTURE_ISOLATION);
		}
		node_add(x->capture, NULL, e);
		return call_end(CUDA_OK);
	}
	op_add(x, &(struct work){ 0 }, e->mark);
	return call_end(CUDA_OK);
}

cuda_rc fake_stream_write(cuda_stream s, cuda_ptr at, uint32_t value, unsigned flags)
{
	struct CUstream_st *x;
	struct range *r;

	CALL("cuStreamWriteValue32");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x, CUDA_INVALID_HANDLE);
	r = range_find((uintptr_t)at, 4);
	FAIL_IF(flags || at % 4 || !r || r->kind == RANGE_MANAGED, CUDA_INVALID_VALUE);
	return call_end(stream_do(
		x,
		&(struct work){ .kind = OP_WRITE,
				.at = (_Atomic uint32_t *)(void *)(r->alias + ((uintptr_t)at -
									       (uintptr_t)r->base)),
				.value = value }));
}

/* Who waits for a context waits for its streams: in whatever mode one is captured, that is no
 * valid call, and ends the capture. */
static cuda_rc context_captured(const struct CUctx_st *ctx)
{
	cuda_rc rc = CUDA_OK;

	for (struct CUstream_st *s = ctx->stream; s; s = s->next)
		if (s->capture) {
			s->capture->invalid = true;
			rc = CUDA_CAPTURE_UNSUPPORTED;
		}
	return rc;
}

cuda_rc fake_ctx_sync(void)
{
	CALL("cuCtxSynchronize");
	CONTEXT();
	rc_ = context_captured(current);
	FAIL_IF(rc_, rc_);
	context_wait(current);
	return call_end(current->sticky);
}
