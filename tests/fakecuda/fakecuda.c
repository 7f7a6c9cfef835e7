// SPDX-License-Identifier: Apache-2.0
// fakecuda.c - see fakecuda.h. Built as libcuda.so.1; nothing else links it.
// One lock guards all that is here. Operations run without it, on the thread of their queue.
#include "tests/fakecuda/fakecuda.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICES_MAX 8
#define SLICE ((size_t)64 << 10)
#define REGISTER_MAX ((size_t)512 << 30) /* a call of so much fails on r580 and later */
#define DELAY_US 300

enum {
	CAPTURE_UNMATCHED = 903,
	CAPTURE_ISOLATION = 905,
	CAPTURED_EVENT = 907,
	LAUNCH_FAILED = 719,
};

/* --- what there is --- */
enum op_kind { OP_NONE, OP_COPY, OP_WRITE, OP_HOST, OP_KERNEL };

struct work {
	enum op_kind kind;
	struct copy {
		uint8_t *to;
		const uint8_t *from;
		size_t width, height, to_pitch, from_pitch;
	} copy;
	_Atomic uint32_t *at;
	uint32_t value;
	void (*host)(void *);
	void *arg;
	const struct kernel *kernel;
	void **param; /* [n], then the values; freed with the operation */
	unsigned blocks, threads;
};

struct op {
	unsigned refs; /* the queue, events, those that wait for it */
	bool done;
	struct work work;
	struct op **dep; /* [ndep] */
	unsigned ndep;
	struct op *next;
};

struct queue {
	struct op *head, **tail;
	pthread_t thread;
	bool closing;
};

struct capture {
	unsigned mode, refs;
	bool invalid;
	pthread_t by;
	struct capture *next; /* active ones */
	struct node {
		struct work work;
		struct CUevent_st *record, *wait; /* external */
	} * node;
	unsigned nnode;
};

struct CUctx_st {
	int device;
	cuda_rc sticky;
	struct CUstream_st *stream; /* all of them, the legacy one first */
	unsigned refs;
};

struct CUstream_st {
	uint32_t magic;
	struct CUctx_st *ctx;
	struct CUstream_st *next;
	bool blocking, legacy;
	struct queue *queue, own;
	struct op *last;
	struct capture *capture;
};
#define STREAM_MAGIC 0x57524541u

struct CUevent_st {
	uint32_t magic;
	struct CUctx_st *ctx;
	struct op *mark;
	struct capture *capture; /* recorded in one that is active */
};
#define EVENT_MAGIC 0x544e5645u

struct range { /* device memory, managed memory, registered host memory */
	enum { RANGE_DEVICE, RANGE_MANAGED, RANGE_HOST } kind;
	int device;
	uint8_t *base, *alias;
	size_t bytes;
	bool ours; /* mapped by cuMemHostAlloc */
	struct range *next;
};

struct kernel {
	const char *name;
	fakecuda_kernel_fn *fn;
	unsigned n;
	size_t bytes[16];
	struct kernel *next;
};

struct fault {
	char symbol[40];
	unsigned nth;
	cuda_rc rc;
	struct fault *next;
};

struct count {
	const char *symbol;
	uint64_t n;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool ready, one_queue, hang;
	int ndevice, version;
	double gbps;
	uint64_t seed, queued, violations, registered, calls;
	size_t register_limit;
	char without[256];
	struct CUctx_st ctx[DEVICES_MAX];
	struct queue shared;
	struct range *range;
	struct capture *capture;
	struct kernel *kernel;
	struct fault *fault;
	struct count count[128];
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER,
	   .change = PTHREAD_COND_INITIALIZER,
	   .ndevice = 1,
	   .version = 13000 };

static _Thread_local struct CUctx_st *current;
static _Thread_local unsigned capture_mode = CUDA_CAPTURE_GLOBAL;
static _Thread_local uint64_t calls_here;

/* --- time --- */
static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* Of the lock. */
static uint64_t delay_draw(void)
{
	if (!fake.seed)
		return 0;
	fake.seed ^= fake.seed << 13;
	fake.seed ^= fake.seed >> 7;
	fake.seed ^= fake.seed << 17;
	return fake.seed % 4 ? 0 : fake.seed / 4 % (DELAY_US * 1000);
}

/* --- operations --- */
static void op_unref(struct op *o)
{
	if (!o || --o->refs)
		return;
	free(o->work.param);
	free(o->dep);
	free(o);
}

/* A race with the program is what this is here to show, so ThreadSanitizer does not look. */
__attribute__((no_sanitize("thread"), no_sanitize("address"))) static void
bytes_copy(uint8_t *to, const uint8_t *from, size_t n)
{
	volatile uint8_t *t = to;
	const volatile uint8_t *f = from;

	if (((uintptr_t)to | (uintptr_t)from) % 8 == 0)
		for (; n >= 8; n -= 8, t += 8, f += 8)
			*(volatile uint64_t *)(volatile void *)t =
				*(const volatile uint64_t *)(const volatile void *)f;
	while (n--)
		*t++ = *f++;
}

static void copy_run(const struct copy *c)
{
	uint64_t start = clock_ns(), sent = 0;

	for (size_t y = 0; y < c->height; y++)
		for (size_t x = 0; x < c->width; x += SLICE) {
			size_t n = c->width - x < SLICE ? c->width - x : SLICE;
			double gbps;
			uint64_t until;

			bytes_copy(c->to + y * c->to_pitch + x, c->from + y * c->from_pitch + x, n);
			sent += n;
			pthread_mutex_lock(&fake.lock);
			gbps = fake.gbps;
			pthread_mutex_unlock(&fake.lock);
			if (gbps <= 0)
				continue;
			until = start + (uint64_t)((double)sent / gbps);
			if (until > clock_ns())
				sleep_ns(until - clock_ns());
		}
}

static void work_run(const struct work *w)
{
	switch (w->kind) {
	case OP_NONE:
		break;
	case OP_COPY:
		copy_run(&w->copy);
		break;
	case OP_WRITE:
		atomic_store_explicit(w->at, w->value, memory_order_release);
		break;
	case OP_HOST:
		w->host(w->arg);
		break;
	case OP_KERNEL:
		w->kernel->fn(w->param, w->blocks, w->threads);
	}
}

static bool op_ready(const struct op *o)
{
	for (unsigned i = 0; i < o->ndep; i++)
		if (!o->dep[i]->done)
			return false;
	return true;
}

static void *queue_run(void *arg)
{
	struct queue *q = arg;
	struct op *o;
	uint64_t delay;

	pthread_mutex_lock(&fake.lock);
	for (;;) {
		while (!(o = q->head) && !q->closing)
			pthread_cond_wait(&fake.change, &fake.lock);
		if (!o)
			break;
		while (!op_ready(o))
			pthread_cond_wait(&fake.change, &fake.lock);
		delay = delay_draw();
		pthread_mutex_unlock(&fake.lock);
		if (delay)
			sleep_ns(delay);
		work_run(&o->work);
		pthread_mutex_lock(&fake.lock);
		o->done = true;
		q->head = o->next;
		if (!q->head)
			q->tail = &q->head;
		fake.queued--;
		for (unsigned i = 0; i < o->ndep; i++)
			op_unref(o->dep[i]);
		o->ndep = 0;
		op_unref(o);
		pthread_cond_broadcast(&fake.change);
	}
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

static bool queue_start(struct queue *q)
{
	q->tail = &q->head;
	return pthread_create(&q->thread, NULL, queue_run, q) == 0;
}

static void op_wait(const struct op *o)
{
	while (!o->done)
		pthread_cond_wait(&fake.change, &fake.lock);
}

static void dep_add(struct op *o, struct op *on)
{
	if (!on || on->done)
		return;
	o->dep = realloc(o->dep, (o->ndep + 1) * sizeof(struct op *));
	if (!o->dep)
		abort();
	on->refs++;
	o->dep[o->ndep++] = on;
}

/* Queues it. The caller holds the lock. */
static struct op *op_add(struct CUstream_st *s, const struct work *w, struct op *after)
{
	struct op *o = calloc(1, sizeof *o);
	struct queue *q = s->queue;

	if (!o)
		abort();
	o->work = *w;
	o->refs = 2; /* the queue's, and the stream's `last` */
	dep_add(o, s->last);
	dep_add(o, after);
	if (s->legacy)
		for (struct CUstream_st *x = s->ctx->stream; x; x = x->next)
			if (x->blocking)
				dep_add(o, x->last);
	if (s->blocking)
		dep_add(o, s->ctx->stream->last);
	op_unref(s->last);
	s->last = o;
	*q->tail = o;
	q->tail = &o->next;
	fake.queued++;
	pthread_cond_broadcast(&fake.change);
	return o;
}

/* --- calls --- */
static struct range *range_find(uintptr_t at, size_t bytes)
{
	for (struct range *r = fake.range; r; r = r->next) {
		uintptr_t base = (uintptr_t)r->base;

		if (at >= base && at - base <= r->bytes && bytes <= r->bytes - (at - base) &&
		    (at - base < r->bytes || !bytes))
			return r;
	}
	return NULL;
}

/* Counts a call, and says whether it fails by order. The lock is held, and stays so. */
static cuda_rc call_begin(const char *symbol)
{
	struct count *c = fake.count;

	calls_here++;
	fake.calls++;
	while (c->symbol && strcmp(c->symbol, symbol) != 0)
		c++;
	c->symbol = symbol;
	c->n++;
	for (struct fault **at = &fake.fault, *f; (f = *at); at = &f->next) {
		cuda_rc rc = f->rc;

		if (strcmp(f->symbol, symbol) != 0)
			continue;
		if (f->nth > 1) {
			f->nth--;
			continue;
		}
		if (f->nth) {
			*at = f->next;
			free(f);
		}
		if (rc != FAKECUDA_HANG)
			return rc;
		fake.hang = true;
		while (fake.hang)
			pthread_cond_wait(&fake.change, &fake.lock);
		break;
	}
	return fake.ready || strcmp(symbol, "cuInit") == 0 ? CUDA_OK : CUDA_NOT_INITIALIZED;
}

static cuda_rc call_end(cuda_rc rc)
{
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

#define CALL(symbol)                    \
	cuda_rc rc_;                    \
	pthread_mutex_lock(&fake.lock); \
	rc_ = call_begin(symbol);       \
	if (rc_)                        \
	return call_end(rc_)
#define FAIL_IF(condition, rc)               \
	do {                                 \
		if (condition)               \
			return call_end(rc); \
	} while (0)
#define CONTEXT()                                \
	FAIL_IF(!current, CUDA_INVALID_CONTEXT); \
	FAIL_IF(current->sticky, current->sticky)

/* What may break a capture: not allowed where one is active that says so. */
static cuda_rc capture_unsafe(void)
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

/* NULL: none; the legacy stream of the current context stands for 0 and 1. */
static struct CUstream_st *stream_of(cuda_stream s)
{
	if (!s || (uintptr_t)s == 1)
		return current ? current->stream : NULL;
	return s->magic == STREAM_MAGIC ? s : NULL;
}

/* Queue it, or put it into the graph that is being captured. */
static cuda_rc stream_do(struct CUstream_st *s, const struct work *w)
{
	struct capture *c = s->capture;

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

static cuda_rc fake_cuInit(unsigned flags)
{
	const char *devices = getenv("FAKECUDA_DEVICES"), *gbps = getenv("FAKECUDA_GBPS"),
		   *seed = getenv("FAKECUDA_SEED"), *connections = getenv("FAKECUDA_CONNECTIONS"),
		   *version = getenv("FAKECUDA_VERSION"), *fail = getenv("FAKECUDA_FAIL");
	char symbol[40], rc[16];
	unsigned nth;
	int used;

	pthread_mutex_lock(&fake.lock);
	if (!fake.ready && fail)
		while (sscanf(fail, "%39[^:]:%u:%15[^,]%n", symbol, &nth, rc, &used) == 3) {
			struct fault *f = calloc(1, sizeof *f);

			if (!f)
				abort();
			snprintf(f->symbol, sizeof f->symbol, "%s", symbol);
			f->nth = nth;
			f->rc = strcmp(rc, "hang") == 0 ? FAKECUDA_HANG : (cuda_rc)atoi(rc);
			f->next = fake.fault;
			fake.fault = f;
			fail += used;
			fail += *fail == ',';
		}
	{
		cuda_rc first = call_begin("cuInit");

		FAIL_IF(first, first);
	}
	FAIL_IF(flags, CUDA_INVALID_VALUE);
	FAIL_IF(fake.ready, fake.ndevice ? CUDA_OK : CUDA_NO_DEVICE);
	fake.ndevice = devices ? atoi(devices) : 1;
	fake.gbps = gbps ? atof(gbps) : 0;
	fake.seed = seed ? strtoull(seed, NULL, 10) : 0;
	fake.one_queue = connections && strcmp(connections, "1") == 0;
	fake.version = version ? atoi(version) : 13000;
	if (fake.ndevice > DEVICES_MAX)
		fake.ndevice = DEVICES_MAX;
	FAIL_IF(!fake.ndevice, CUDA_NO_DEVICE);
	FAIL_IF(fake.one_queue && !queue_start(&fake.shared), CUDA_OUT_OF_MEMORY);
	for (int i = 0; i < fake.ndevice; i++)
		fake.ctx[i].device = i;
	fake.ready = true;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuDriverGetVersion(int *ret)
{
	pthread_mutex_lock(&fake.lock);
	*ret = fake.version;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuGetErrorName(cuda_rc rc, const char **ret)
{
	static const struct {
		cuda_rc rc;
		const char *name;
	} names[] = {
		{ CUDA_OK, "CUDA_SUCCESS" },
		{ CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
		{ CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
		{ CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE" },
		{ CUDA_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
		{ CUDA_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE" },
		{ CUDA_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS" },
		{ LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED" },
	};

	*ret = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].rc == rc)
			*ret = names[i].name;
	return *ret ? CUDA_OK : CUDA_INVALID_VALUE;
}

static cuda_rc fake_cuDeviceGetCount(int *ret)
{
	CALL("cuDeviceGetCount");
	*ret = fake.ndevice;
	return call_end(CUDA_OK);
}

static bool device_is(cuda_device d)
{
	return d >= 0 && d < fake.ndevice;
}

static cuda_rc fake_cuDeviceGet(cuda_device *ret, int number)
{
	CALL("cuDeviceGet");
	FAIL_IF(!device_is(number), CUDA_INVALID_DEVICE);
	*ret = number;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuDeviceGetAttribute(int *ret, unsigned attr, cuda_device d)
{
	CALL("cuDeviceGetAttribute");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	*ret = attr == CUDA_ATTR_ASYNC_ENGINES	   ? 3
	       : attr == CUDA_ATTR_HOST_NUMA	   ? -1
	       : attr == CUDA_ATTR_MULTIPROCESSORS ? 1
	       : attr == CUDA_ATTR_CAN_MAP_HOST || attr == CUDA_ATTR_UNIFIED_ADDRESSING ||
			       attr == CUDA_ATTR_HOST_REGISTER
		       ? 1
		       : 0;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuDeviceGetName(char *ret, int bytes, cuda_device d)
{
	CALL("cuDeviceGetName");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	snprintf(ret, (size_t)bytes, "fake device %d", d);
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuDeviceGetUuid(struct cuda_uuid *ret, cuda_device d)
{
	CALL("cuDeviceGetUuid");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	memset(ret->bytes, 'f', sizeof ret->bytes);
	ret->bytes[15] = (char)d;
	return call_end(CUDA_OK);
}

/* --- contexts --- */
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

static cuda_rc fake_cuDevicePrimaryCtxRetain(cuda_ctx *ret, cuda_device d)
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

static cuda_rc fake_cuDevicePrimaryCtxRelease(cuda_device d)
{
	CALL("cuDevicePrimaryCtxRelease");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	FAIL_IF(!fake.ctx[d].refs, CUDA_INVALID_CONTEXT);
	fake.ctx[d].refs--; /* the context stays: other tests of the process may have it */
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuCtxGetCurrent(cuda_ctx *ret)
{
	CALL("cuCtxGetCurrent");
	*ret = current;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuCtxSetCurrent(cuda_ctx c)
{
	CALL("cuCtxSetCurrent");
	current = c;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuCtxGetDevice(cuda_device *ret)
{
	CALL("cuCtxGetDevice");
	FAIL_IF(!current, CUDA_INVALID_CONTEXT);
	*ret = current->device;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
	unsigned was = capture_mode;

	CALL("cuThreadExchangeStreamCaptureMode");
	FAIL_IF(*mode > CUDA_CAPTURE_RELAXED, CUDA_INVALID_VALUE);
	capture_mode = *mode;
	*mode = was;
	return call_end(CUDA_OK);
}

/* --- streams and events --- */
static cuda_rc fake_cuStreamCreateWithPriority(cuda_stream *ret, unsigned flags, int priority)
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

static cuda_rc fake_cuStreamDestroy(cuda_stream s)
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

static cuda_rc fake_cuStreamSynchronize(cuda_stream s)
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

static cuda_rc fake_cuStreamIsCapturing(cuda_stream s, unsigned *ret)
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

static cuda_rc fake_cuStreamGetCtx(cuda_stream s, cuda_ctx *ret)
{
	struct CUstream_st *x;

	CALL("cuStreamGetCtx");
	x = stream_of(s);
	FAIL_IF(!x, s ? CUDA_INVALID_HANDLE : CUDA_INVALID_CONTEXT);
	*ret = x->ctx;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuEventCreate(cuda_event *ret, unsigned flags)
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

static cuda_rc fake_cuEventDestroy(cuda_event e)
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

static void event_mark(struct CUevent_st *e, struct CUstream_st *s)
{
	op_unref(e->mark);
	e->mark = op_add(s, &(struct work){ 0 }, NULL);
	e->mark->refs++;
}

static cuda_rc fake_cuEventRecordWithFlags(cuda_event e, cuda_stream s, unsigned flags)
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

static cuda_rc fake_cuEventRecord(cuda_event e, cuda_stream s)
{
	pthread_mutex_lock(&fake.lock);
	{
		cuda_rc first = call_begin("cuEventRecord");

		FAIL_IF(first, first);
	}
	pthread_mutex_unlock(&fake.lock);
	calls_here--; /* one call of the program's */
	return fake_cuEventRecordWithFlags(e, s, 0);
}

static cuda_rc fake_cuEventQuery(cuda_event e)
{
	CALL("cuEventQuery");
	FAIL_IF(!e || e->magic != EVENT_MAGIC, CUDA_INVALID_HANDLE);
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(e->capture, CAPTURED_EVENT);
	FAIL_IF(e->ctx->sticky, e->ctx->sticky);
	return call_end(!e->mark || e->mark->done ? CUDA_OK : CUDA_NOT_READY);
}

static cuda_rc fake_cuStreamWaitEvent(cuda_stream s, cuda_event e, unsigned flags)
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

static cuda_rc fake_cuStreamWriteValue32(cuda_stream s, cuda_ptr at, uint32_t value, unsigned flags)
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

/* --- memory --- */
static struct range *range_add(int kind, int device, void *base, void *alias, size_t bytes)
{
	struct range *r = calloc(1, sizeof *r);

	if (!r)
		abort();
	*r = (struct range){ .kind = kind,
			     .device = device,
			     .base = base,
			     .alias = alias,
			     .bytes = bytes,
			     .next = fake.range };
	fake.range = r;
	return r;
}

static bool range_overlaps(uintptr_t at, size_t bytes)
{
	for (struct range *r = fake.range; r; r = r->next)
		if (at < (uintptr_t)r->base + r->bytes && (uintptr_t)r->base < at + bytes)
			return true;
	return false;
}

static void range_drop(struct range *r)
{
	struct range **at = &fake.range;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	free(r);
}

static cuda_rc fake_cuMemAlloc(cuda_ptr *ret, size_t bytes)
{
	size_t mapped = (bytes + 4095) / 4096 * 4096;
	void *base, *alias;
	int fd;

	CALL("cuMemAlloc");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(!bytes, CUDA_INVALID_VALUE);
	fd = memfd_create("fakecuda", MFD_CLOEXEC);
	FAIL_IF(fd < 0, CUDA_OUT_OF_MEMORY);
	base = alias = MAP_FAILED;
	if (ftruncate(fd, (off_t)mapped) == 0) {
		base = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	close(fd);
	if (base == MAP_FAILED || alias == MAP_FAILED) {
		if (base != MAP_FAILED)
			munmap(base, mapped);
		return call_end(CUDA_OUT_OF_MEMORY);
	}
	range_add(RANGE_DEVICE, current->device, base, alias, bytes);
	*ret = (uintptr_t)base;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemAllocManaged(cuda_ptr *ret, size_t bytes, unsigned flags)
{
	void *p;

	(void)flags;
	CALL("cuMemAllocManaged");
	CONTEXT();
	FAIL_IF(!bytes, CUDA_INVALID_VALUE);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FAIL_IF(p == MAP_FAILED, CUDA_OUT_OF_MEMORY);
	range_add(RANGE_MANAGED, current->device, p, p, bytes);
	*ret = (uintptr_t)p;
	return call_end(CUDA_OK);
}

/* All streams of the context: cuMemFree waits for the device. */
static void context_wait(struct CUctx_st *c)
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

static cuda_rc fake_cuMemFree(cuda_ptr p)
{
	struct range *r;
	size_t mapped;

	CALL("cuMemFree");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || (uintptr_t)r->base != p || r->kind == RANGE_HOST, CUDA_INVALID_VALUE);
	context_wait(current);
	mapped = (r->bytes + 4095) / 4096 * 4096;
	munmap(r->base, mapped);
	if (r->alias != r->base)
		munmap(r->alias, mapped);
	range_drop(r);
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	size_t used = 0;

	CALL("cuMemGetInfo");
	CONTEXT();
	for (struct range *r = fake.range; r; r = r->next)
		used += r->kind == RANGE_DEVICE ? r->bytes : 0;
	*ret_total = (size_t)80 << 30;
	*ret_free = *ret_total - used;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
	CALL("cuMemHostRegister");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(!p || !bytes || flags & ~3u, CUDA_INVALID_VALUE);
	FAIL_IF(range_overlaps((uintptr_t)p, bytes), CUDA_HOST_MEMORY_ALREADY_REGISTERED);
	FAIL_IF(bytes >= REGISTER_MAX, CUDA_OUT_OF_MEMORY);
	FAIL_IF(fake.register_limit && fake.registered + bytes > fake.register_limit,
		CUDA_OUT_OF_MEMORY);
	range_add(RANGE_HOST, current->device, p, p, bytes);
	fake.registered += bytes;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemHostUnregister(void *p)
{
	struct range *r;

	CALL("cuMemHostUnregister");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || r->kind != RANGE_HOST || r->base != p || r->ours,
		CUDA_HOST_MEMORY_NOT_REGISTERED);
	context_wait(current);
	fake.registered -= r->bytes;
	range_drop(r);
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemHostAlloc(void **ret, size_t bytes, unsigned flags)
{
	void *p;

	CALL("cuMemHostAlloc");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(!bytes || flags & ~7u, CUDA_INVALID_VALUE);
	FAIL_IF(fake.register_limit && fake.registered + bytes > fake.register_limit,
		CUDA_OUT_OF_MEMORY);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FAIL_IF(p == MAP_FAILED, CUDA_OUT_OF_MEMORY);
	range_add(RANGE_HOST, current->device, p, p, bytes)->ours = true;
	fake.registered += bytes;
	*ret = p;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemFreeHost(void *p)
{
	struct range *r;

	CALL("cuMemFreeHost");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || r->base != p || !r->ours, CUDA_INVALID_VALUE);
	context_wait(current);
	fake.registered -= r->bytes;
	munmap(p, r->bytes);
	range_drop(r);
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuMemHostGetDevicePointer(cuda_ptr *ret, void *p, unsigned flags)
{
	struct range *r;

	CALL("cuMemHostGetDevicePointer");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(flags || !r || r->kind != RANGE_HOST, CUDA_INVALID_VALUE);
	*ret = (uintptr_t)p;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuPointerGetAttributes(unsigned n, unsigned *attr, void **ret, cuda_ptr p)
{
	struct range *r;

	CALL("cuPointerGetAttributes");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	for (unsigned i = 0; i < n; i++)
		switch (attr[i]) {
		case CUDA_POINTER_CONTEXT:
			*(cuda_ctx *)ret[i] = r ? &fake.ctx[r->device] : NULL;
			break;
		case CUDA_POINTER_MEMORY_TYPE:
			*(unsigned *)ret[i] = !r		      ? 0
					      : r->kind == RANGE_HOST ? CUDA_MEMORY_HOST
								      : CUDA_MEMORY_DEVICE;
			break;
		case CUDA_POINTER_MANAGED:
			*(unsigned *)ret[i] = r && r->kind == RANGE_MANAGED;
			break;
		case CUDA_POINTER_DEVICE:
			*(int *)ret[i] = r ? r->device : -2;
			break;
		case CUDA_POINTER_RANGE_START:
			*(cuda_ptr *)ret[i] = r ? (uintptr_t)r->base : 0;
			break;
		case CUDA_POINTER_RANGE_BYTES:
			*(size_t *)ret[i] = r ? r->bytes : 0;
			break;
		default:
			return call_end(CUDA_INVALID_VALUE);
		}
	return call_end(CUDA_OK);
}

/* --- copies --- */
struct side { /* of a copy */
	uintptr_t at;
	bool device; /* an address of the device's is wanted */
};

static size_t side_span(const struct copy *c, size_t pitch)
{
	return c->width && c->height ? (c->height - 1) * pitch + c->width : 0;
}

/* Where the driver may touch it. *sync: it is host memory that is not registered. */
static uint8_t *side_address(const struct side *s, size_t span, bool *sync)
{
	struct range *r = range_find(s->at, span);

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
	bool sync = false;
	struct work w = { .kind = OP_COPY };
	cuda_rc rc;

	if (!x)
		return CUDA_INVALID_HANDLE;
	if (!c->width || !c->height)
		return CUDA_OK;
	c->to = side_address(&to, side_span(c, c->to_pitch), &sync);
	c->from = side_address(&from, side_span(c, c->from_pitch), &sync);
	if (!c->to || !c->from)
		return CUDA_INVALID_VALUE;
	w.copy = *c;
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

static cuda_rc fake_cuMemcpyDtoHAsync(void *to, cuda_ptr from, size_t bytes, cuda_stream s)
{
	struct copy c = copy_line(bytes);

	CALL("cuMemcpyDtoHAsync");
	CONTEXT();
	return call_end(copy_add(s, (struct side){ (uintptr_t)to, false },
				 (struct side){ (uintptr_t)from, true }, &c));
}

static cuda_rc fake_cuMemcpyHtoDAsync(cuda_ptr to, const void *from, size_t bytes, cuda_stream s)
{
	struct copy c = copy_line(bytes);

	CALL("cuMemcpyHtoDAsync");
	CONTEXT();
	return call_end(copy_add(s, (struct side){ (uintptr_t)to, true },
				 (struct side){ (uintptr_t)from, false }, &c));
}

static cuda_rc fake_cuMemcpyDtoDAsync(cuda_ptr to, cuda_ptr from, size_t bytes, cuda_stream s)
{
	struct copy c = copy_line(bytes);

	CALL("cuMemcpyDtoDAsync");
	CONTEXT();
	return call_end(copy_add(s, (struct side){ (uintptr_t)to, true },
				 (struct side){ (uintptr_t)from, true }, &c));
}

static cuda_rc fake_cuMemcpy2DAsync(const struct cuda_copy2d *d, cuda_stream s)
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

static cuda_rc fake_cuMemcpyBatchAsync_12080(cuda_ptr *to, cuda_ptr *from, size_t *bytes, size_t n,
					     struct cuda_copy_attr *attr, size_t *attr_first,
					     size_t nattr, size_t *ret_bad, cuda_stream s)
{
	CALL("cuMemcpyBatchAsync");
	CONTEXT();
	return copies_add(to, from, bytes, n, attr, attr_first, nattr, ret_bad, s);
}

static cuda_rc fake_cuMemcpyBatchAsync(cuda_ptr *to, cuda_ptr *from, size_t *bytes, size_t n,
				       struct cuda_copy_attr *attr, size_t *attr_first,
				       size_t nattr, cuda_stream s)
{
	CALL("cuMemcpyBatchAsync");
	CONTEXT();
	return copies_add(to, from, bytes, n, attr, attr_first, nattr, NULL, s);
}

/* --- graphs --- */
struct CUgraph_st {
	struct node *node;
	unsigned nnode;
};

static cuda_rc fake_cuStreamBeginCapture(cuda_stream s, unsigned mode)
{
	struct CUstream_st *x;

	CALL("cuStreamBeginCapture");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || x->legacy || x->capture || mode > CUDA_CAPTURE_RELAXED,
		x && x->legacy ? CUDA_CAPTURE_UNSUPPORTED : CUDA_INVALID_VALUE);
	x->capture = calloc(1, sizeof *x->capture);
	FAIL_IF(!x->capture, CUDA_OUT_OF_MEMORY);
	*x->capture = (struct capture){
		.mode = mode, .refs = 1, .by = pthread_self(), .next = fake.capture
	};
	fake.capture = x->capture;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuStreamEndCapture(cuda_stream s, struct CUgraph_st **ret)
{
	struct CUstream_st *x;
	struct capture *c, **at;
	bool invalid;

	CALL("cuStreamEndCapture");
	CONTEXT();
	x = stream_of(s);
	*ret = NULL;
	FAIL_IF(!x || !x->capture, CUDA_INVALID_VALUE);
	c = x->capture;
	invalid = c->invalid;
	for (at = &fake.capture; *at != c; at = &(*at)->next)
		;
	*at = c->next;
	for (int i = 0; i < fake.ndevice; i++)
		for (struct CUstream_st *y = fake.ctx[i].stream; y; y = y->next)
			if (y->capture == c)
				y->capture = NULL;
	if (!invalid) {
		*ret = calloc(1, sizeof **ret);
		FAIL_IF(!*ret, CUDA_OUT_OF_MEMORY);
		**ret = (struct CUgraph_st){ c->node, c->nnode };
	} else {
		free(c->node);
	}
	free(c);
	return call_end(invalid ? CUDA_CAPTURE_INVALIDATED : CUDA_OK);
}

static cuda_rc fake_cuGraphInstantiateWithFlags(struct CUgraph_st **ret, struct CUgraph_st *g,
						unsigned long long flags)
{
	(void)flags;
	CALL("cuGraphInstantiateWithFlags");
	FAIL_IF(!g, CUDA_INVALID_VALUE);
	*ret = g; /* a graph is launched as it is; freeing the graph is freeing both */
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuGraphLaunch(struct CUgraph_st *g, cuda_stream s)
{
	struct CUstream_st *x;

	CALL("cuGraphLaunch");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || !g, CUDA_INVALID_HANDLE);
	for (unsigned i = 0; i < g->nnode; i++) {
		struct node *n = &g->node[i];
		struct work w = n->work;

		if (n->record)
			event_mark(n->record, x);
		else if (n->wait)
			op_add(x, &(struct work){ 0 }, n->wait->mark);
		else if (w.kind == OP_KERNEL) {
			size_t bytes = 0;

			for (unsigned k = 0; k < w.kernel->n; k++)
				bytes += 8 + (w.kernel->bytes[k] + 7) / 8 * 8;
			w.param = malloc(bytes + 8);
			if (!w.param)
				abort();
			memcpy(w.param, n->work.param, bytes);
			for (unsigned k = 0; k < w.kernel->n; k++)
				w.param[k] = (uint8_t *)w.param + ((uint8_t *)n->work.param[k] -
								   (uint8_t *)n->work.param);
			op_add(x, &w, NULL);
		} else
			op_add(x, &w, NULL);
	}
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuGraphExecDestroy(struct CUgraph_st *g)
{
	(void)g;
	CALL("cuGraphExecDestroy");
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuGraphDestroy(struct CUgraph_st *g)
{
	CALL("cuGraphDestroy");
	FAIL_IF(!g, CUDA_INVALID_VALUE);
	for (unsigned i = 0; i < g->nnode; i++)
		free(g->node[i].work.param);
	free(g->node);
	free(g);
	return call_end(CUDA_OK);
}

/* --- kernels --- */
static cuda_rc fake_cuModuleLoadData(void **ret, const void *image)
{
	CALL("cuModuleLoadData");
	CONTEXT();
	FAIL_IF(!image, CUDA_INVALID_VALUE);
	*ret = &fake;
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuModuleUnload(void *module)
{
	CALL("cuModuleUnload");
	FAIL_IF(module != &fake, CUDA_INVALID_HANDLE);
	return call_end(CUDA_OK);
}

static cuda_rc fake_cuModuleGetFunction(struct kernel **ret, void *module, const char *name)
{
	struct kernel *k;

	CALL("cuModuleGetFunction");
	FAIL_IF(module != &fake, CUDA_INVALID_HANDLE);
	for (k = fake.kernel; k && strcmp(k->name, name) != 0; k = k->next)
		;
	*ret = k;
	return call_end(k ? CUDA_OK : CUDA_NOT_FOUND);
}

static cuda_rc fake_cuLaunchKernel(struct kernel *k, unsigned gx, unsigned gy, unsigned gz,
				   unsigned bx, unsigned by, unsigned bz, unsigned shared,
				   cuda_stream s, void **param, void **extra)
{
	struct work w = {
		.kind = OP_KERNEL, .kernel = k, .blocks = gx * gy * gz, .threads = bx * by * bz
	};
	size_t bytes = 0;
	uint8_t *at;
	cuda_rc rc;

	(void)shared;
	CALL("cuLaunchKernel");
	CONTEXT();
	FAIL_IF(!k || extra || !w.blocks || !w.threads || w.threads > 1024 || !stream_of(s),
		CUDA_INVALID_VALUE);
	for (unsigned i = 0; i < k->n; i++)
		bytes += sizeof(void *) + (k->bytes[i] + 7) / 8 * 8;
	w.param = calloc(1, bytes + 8);
	FAIL_IF(!w.param, CUDA_OUT_OF_MEMORY);
	at = (uint8_t *)(w.param + k->n);
	for (unsigned i = 0; i < k->n; at += (k->bytes[i++] + 7) / 8 * 8) {
		memcpy(at, param[i], k->bytes[i]);
		w.param[i] = at;
	}
	rc = stream_do(stream_of(s), &w);
	if (rc)
		free(w.param);
	return call_end(rc);
}

static cuda_rc fake_cuLaunchHostFunc(cuda_stream s, void (*fn)(void *), void *arg)
{
	struct CUstream_st *x;

	CALL("cuLaunchHostFunc");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || !fn, CUDA_INVALID_VALUE);
	return call_end(stream_do(x, &(struct work){ .kind = OP_HOST, .host = fn, .arg = arg }));
}

static cuda_rc fake_cuCtxSynchronize(void)
{
	CALL("cuCtxSynchronize");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	context_wait(current);
	return call_end(current->sticky);
}

/* --- how they are found --- */
struct symbol {
	const char *name;
	int version;
	void *fn;
};

static bool symbol_missing(const char *name)
{
	const char *without = getenv("FAKECUDA_WITHOUT"),
		   *at = without ? strstr(without, name) : NULL;
	size_t n = strlen(name);

	return at && (at == without || at[-1] == ',') && (at[n] == ',' || !at[n]);
}

EXPORT cuda_rc cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
				   unsigned *ret_status);
EXPORT cuda_rc cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
				   unsigned *ret_status)
{
#define FAKE_SYMBOL(member, name, since, needed, args) { #name, since, (void *)fake_##name },
#define fake_cuMemcpyBatchAsync_here(v) \
	((v) < 13000 ? (void *)fake_cuMemcpyBatchAsync_12080 : (void *)fake_cuMemcpyBatchAsync)
	static const struct symbol symbols[] = {
		CUDA_CALLS(FAKE_SYMBOL){ "cuMemAllocManaged", 6000,
					 (void *)fake_cuMemAllocManaged },
		{ "cuStreamBeginCapture", 10010, (void *)fake_cuStreamBeginCapture },
		{ "cuStreamEndCapture", 10000, (void *)fake_cuStreamEndCapture },
		{ "cuGraphInstantiateWithFlags", 11040, (void *)fake_cuGraphInstantiateWithFlags },
		{ "cuGraphLaunch", 10000, (void *)fake_cuGraphLaunch },
		{ "cuGraphExecDestroy", 10000, (void *)fake_cuGraphExecDestroy },
		{ "cuGraphDestroy", 10000, (void *)fake_cuGraphDestroy },
		{ "cuModuleLoadData", 2000, (void *)fake_cuModuleLoadData },
		{ "cuModuleUnload", 2000, (void *)fake_cuModuleUnload },
		{ "cuModuleGetFunction", 2000, (void *)fake_cuModuleGetFunction },
		{ "cuLaunchKernel", 4000, (void *)fake_cuLaunchKernel },
		{ "cuLaunchHostFunc", 10000, (void *)fake_cuLaunchHostFunc },
		{ "cuCtxSynchronize", 2000, (void *)fake_cuCtxSynchronize },
	};
	const char *driver = getenv("FAKECUDA_VERSION");
	int have = driver ? atoi(driver) : 13000;

	*ret = NULL;
	if (getenv("FAKECUDA_STUB"))
		return CUDA_STUB_LIBRARY;
	if (ret_status)
		*ret_status = 1; /* not found */
	if (flags != 1)
		return CUDA_INVALID_VALUE; /* other than the legacy stream's */
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (strcmp(symbols[i].name, symbol) == 0 && symbols[i].version == version &&
		    version <= have && !symbol_missing(symbol)) {
			*ret = strcmp(symbol, "cuMemcpyBatchAsync") == 0
				       ? fake_cuMemcpyBatchAsync_here(version)
				       : symbols[i].fn;
			if (ret_status)
				*ret_status = 0;
		}
	return CUDA_OK;
}

EXPORT cuda_rc cuInit(unsigned flags);
EXPORT cuda_rc cuInit(unsigned flags)
{
	return getenv("FAKECUDA_STUB") ? CUDA_STUB_LIBRARY : fake_cuInit(flags);
}

/* --- what tests say --- */
#define LOCKED(statement)                         \
	do {                                      \
		pthread_mutex_lock(&fake.lock);   \
		statement;                        \
		pthread_mutex_unlock(&fake.lock); \
	} while (0)

static void test_bandwidth(double gbps)
{
	LOCKED(fake.gbps = gbps);
}

static void test_seed(uint64_t seed)
{
	LOCKED(fake.seed = seed);
}

static void test_fault(const char *symbol, unsigned nth, cuda_rc rc)
{
	struct fault *f = calloc(1, sizeof *f);

	if (!f)
		abort();
	snprintf(f->symbol, sizeof f->symbol, "%s", symbol);
	f->nth = nth;
	f->rc = rc;
	LOCKED(f->next = fake.fault; fake.fault = f);
}

static void test_fault_none(void)
{
	pthread_mutex_lock(&fake.lock);
	while (fake.fault) {
		struct fault *f = fake.fault;

		fake.fault = f->next;
		free(f);
	}
	pthread_mutex_unlock(&fake.lock);
}

static void test_unhang(void)
{
	LOCKED(fake.hang = false; pthread_cond_broadcast(&fake.change));
}

static void test_sticky(int device, cuda_rc rc)
{
	LOCKED(fake.ctx[device].sticky = rc);
}

static void test_register_limit(size_t bytes)
{
	LOCKED(fake.register_limit = bytes);
}

static uint64_t test_calls(const char *symbol)
{
	uint64_t n = 0;

	pthread_mutex_lock(&fake.lock);
	if (!symbol)
		n = fake.calls;
	for (struct count *c = fake.count; symbol && c->symbol; c++)
		if (strcmp(c->symbol, symbol) == 0)
			n = c->n;
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static uint64_t test_calls_here(void)
{
	return calls_here;
}

static uint64_t test_violations(void)
{
	uint64_t n;

	LOCKED(n = fake.violations);
	return n;
}

static uint64_t test_registered(void)
{
	uint64_t n;

	LOCKED(n = fake.registered);
	return n;
}

static uint64_t test_queued(void)
{
	uint64_t n;

	LOCKED(n = fake.queued);
	return n;
}

static void *test_alias(cuda_ptr p)
{
	struct range *r;
	void *at;

	LOCKED(r = range_find((uintptr_t)p, 1);
	       at = r ? r->alias + ((uintptr_t)p - (uintptr_t)r->base) : NULL);
	return at;
}

static void test_kernel(const char *name, fakecuda_kernel_fn *fn, unsigned n, const size_t *bytes)
{
	struct kernel *k = calloc(1, sizeof *k);

	if (!k || n > sizeof k->bytes / sizeof *k->bytes)
		abort();
	k->name = name;
	k->fn = fn;
	k->n = n;
	memcpy(k->bytes, bytes, n * sizeof *bytes);
	LOCKED(k->next = fake.kernel; fake.kernel = k);
}

EXPORT extern const struct fakecuda fakecuda;
const struct fakecuda fakecuda = {
	.bandwidth = test_bandwidth,
	.seed = test_seed,
	.fault = test_fault,
	.unhang = test_unhang,
	.fault_none = test_fault_none,
	.sticky = test_sticky,
	.register_limit = test_register_limit,
	.calls = test_calls,
	.calls_here = test_calls_here,
	.violations = test_violations,
	.registered = test_registered,
	.queued = test_queued,
	.alias = test_alias,
	.kernel = test_kernel,
};
