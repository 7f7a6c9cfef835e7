// SPDX-License-Identifier: Apache-2.0
// device_cuda.c - the memory of a GPU as a device: see device.h. Called by the client.
//
// One stream of our own, non-blocking, carries all copies of a device. It waits for the event that
// begin has recorded on the trainer's stream, and the trainer's stream waits, in guard, for the
// event that end has recorded behind the last copy. A wait means the event as it is recorded when
// the wait is queued. So one pair is enough for any number of snapshots on their way: a mark
// records the first one again when the guard before it has returned, so its copies, if they are
// not given up, have waited already; and they record the second one behind that guard. The GPU
// itself writes `done`, and how far it has come, behind the copies, so the driver is asked only
// whether it has failed.
//
// Where something is missing, the next best road:
//   no cuStreamWriteValue32     `done` is never written (not DEVICE_ORDERED), one copy is in
//                               flight, and events say whether it has ended
//   pages cannot be registered  copies go by way of a pinned buffer, and from there to the slot by
//                               the copier (not direct)
//   nothing can be pinned       the driver copies to and from plain memory, by buffers of its own
//
// What waits in the trainer's thread (a restore, a fingerprint) has a stream and buffers of its
// own.
//
// Invariants: no call of this file changes the current context of the trainer's thread for longer
// than the call, or waits on the GPU's side for the host; a call that asks the driver for memory
// breaks no capture. Only driver functions are called, so no error of ours is found by the
// trainer's cudaGetLastError.
#include "ckpt/device/cuda_driver.h"
#include "ckpt/device/device.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#define LEGACY_STREAM 1			  /* CU_STREAM_LEGACY; NULL is the same */
#define REGISTER_STEP ((uint64_t)4 << 30) /* of one call: other CUDA calls go between */
#define BOUNCE DEVICE_CHUNK
#define PITCH_MAX ((uint64_t)INT32_MAX)
#define POLL_NS (NS_PER_MS / 50)
#define LOOK_NS (50 * NS_PER_MS)
#define HANGS_NS (60 * NS_PER_S) /* what has not ended by then never will */
#define EVENT_FLAGS CUDA_EVENT_DISABLE_TIMING
#define HANDS 2
#define CAME 16u     /* the word of the page of `reached` that come writes */
#define ASIDE_MIN 4u /* rows: fewer are fewer calls than those of two events */

/* The arguments of a copy of many rows in one call. */
struct many {
	cuda_ptr *to, *from;
	size_t *bytes;
	uint32_t cap;
};

struct cuda {
	struct device_handle device;
	const struct cuda_calls *cu;
	cuda_device number;
	cuda_ctx ctx;
	bool retained;	     /* ctx is the primary one, and this handle holds it */
	bool writes;	     /* there is a cuStreamWriteValue32 that works */
	_Atomic bool failed; /* it copies nothing more */
	cuda_event stable, finished;

	/* the copier's */
	cuda_stream stream;
	_Atomic uint32_t *reached; /* pinned; the GPU writes it: calls of copy, and ends */
	cuda_ptr reached_at;
	uint32_t sent;
	cuda_event chunked; /* without writes: the newest copy */
	uint8_t *bounce;
	struct many out;
	bool lost; /* its context has failed: it writes nothing more */
	uint64_t looked_ns;

	/* the trainer's */
	cuda_stream aside;
	cuda_event between;
	uint8_t *hand[HANDS];
	cuda_event handed[HANDS];
	struct many within;
};

/* What device_target.own points to. */
struct cuda_target {
	uint64_t registered; /* bytes, from base */
};

static struct cuda *cuda_of(struct device_handle *d)
{
	return (struct cuda *)(void *)d;
}

static int cuda_error(struct cuda *x, cuda_rc rc, const char *what, struct ckpt_err *err)
{
	char name[32];

	return ckpt_error(err, rc == CUDA_OUT_OF_MEMORY ? -ENOMEM : -EIO, "CUDA device %d: %s: %s",
			  x->number, what, cuda_error_name(x->cu, rc, name));
}

static int failed(struct cuda *x)
{
	atomic_store(&x->failed, true);
	return -EIO;
}

static void pause_short(void)
{
	struct timespec t = { 0, (long)POLL_NS };

	nanosleep(&t, NULL);
}

/* --- the context --- */
/* The trainer's thread has its own context, which is put back. */
struct entered {
	cuda_ctx was;
	bool changed, relaxed;
	unsigned mode;
};

static int context_enter(struct cuda *x, struct entered *e)
{
	*e = (struct entered){ 0 };
	if (x->cu->ctx_current(&e->was))
		return -EIO;
	if (e->was == x->ctx)
		return 0;
	e->changed = true;
	return x->cu->ctx_set(x->ctx) ? -EIO : 0;
}

/* Besides, nothing that is called breaks a capture that any thread has begun. */
static int context_enter_relaxed(struct cuda *x, struct entered *e)
{
	int rc = context_enter(x, e);

	e->mode = CUDA_CAPTURE_RELAXED;
	if (rc < 0 || x->cu->capture_mode(&e->mode))
		return -EIO;
	e->relaxed = true;
	return 0;
}

static void context_leave(struct cuda *x, const struct entered *e)
{
	unsigned mode = e->mode;

	if (e->relaxed)
		(void)x->cu->capture_mode(&mode);
	if (e->changed)
		(void)x->cu->ctx_set(e->was);
}

/* The copier's thread goes from device to device, and keeps its mode. */
static int copier_enter(struct cuda *x)
{
	static _Thread_local bool relaxed;
	unsigned mode = CUDA_CAPTURE_RELAXED;

	if (x->cu->ctx_set(x->ctx))
		return -EIO;
	if (relaxed)
		return 0;
	if (x->cu->capture_mode(&mode))
		return -EIO;
	relaxed = true;
	return 0;
}

/* --- ends --- */
/* An event that is recorded has come. */
static int event_wait(struct cuda *x, cuda_event e)
{
	uint64_t until = now_ns() + HANGS_NS;
	cuda_rc rc;

	while ((rc = x->cu->event_query(e)) == CUDA_NOT_READY && now_ns() < until)
		pause_short();
	return rc ? -EIO : 0;
}

/* Has the context failed meanwhile? Any call on an event says so. */
static bool look_lost(struct cuda *x)
{
	uint64_t now = now_ns();
	cuda_rc rc;

	if (now - x->looked_ns < LOOK_NS)
		return x->lost;
	x->looked_ns = now;
	rc = copier_enter(x) < 0 ? CUDA_INVALID_CONTEXT : x->cu->event_query(x->finished);
	if (rc != CUDA_OK && rc != CUDA_NOT_READY) {
		(void)failed(x);
		x->lost = true;
	}
	return x->lost;
}

static uint32_t cuda_flight(struct device_handle *d)
{
	struct cuda *x = cuda_of(d);
	uint32_t n;

	if (!x->writes)
		return x->sent && copier_enter(x) == 0 &&
				       x->cu->event_query(x->chunked) == CUDA_NOT_READY
			       ? UINT32_MAX
			       : 0;
	n = x->sent - atomic_load_explicit(x->reached, memory_order_acquire);
	return n && look_lost(x) ? 0 : n;
}

static int sent_note(struct cuda *x)
{
	if (x->writes ? x->cu->stream_write(x->stream, x->reached_at, x->sent + 1, 0)
		      : x->cu->event_record(x->chunked, x->stream))
		return -EIO;
	x->sent++;
	return 0;
}

static int end_queue(struct cuda *x, _Atomic uint32_t *done, uint32_t target)
{
	cuda_ptr at;

	if (atomic_load(&x->failed)) { /* what was queued before is waited for */
		if (copier_enter(x) == 0)
			(void)sent_note(x);
		return -EIO;
	}
	if (copier_enter(x) < 0 || x->cu->event_record(x->finished, x->stream))
		return failed(x);
	if (done && x->writes &&
	    (x->cu->host_device_ptr(&at, done, 0) || x->cu->stream_write(x->stream, at, target, 0)))
		return failed(x);
	return sent_note(x) < 0 ? failed(x) : 0;
}

static int cuda_end(struct device_handle *d, _Atomic uint32_t *done, uint32_t target,
		    uint32_t *ret_end)
{
	struct cuda *x = cuda_of(d);
	int rc = end_queue(x, done, target);

	*ret_end = x->sent;
	return rc;
}

/* Without words of its own the device says only that it works, be it for a later end. */
static int cuda_poll(struct device_handle *d, uint32_t end)
{
	struct cuda *x = cuda_of(d);
	uint32_t left = cuda_flight(d);

	if (left && (!x->writes || left > x->sent - end))
		return -EAGAIN;
	x->looked_ns = 0;
	return look_lost(x) || atomic_load(&x->failed) ? -EIO : 0;
}

/* --- rows --- */
static int pointer_look(const struct cuda_calls *cu, uint64_t at, unsigned *ret_type,
			unsigned *ret_managed, int *ret_device)
{
	unsigned attr[] = { CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_MANAGED, CUDA_POINTER_DEVICE };
	void *ret[] = { ret_type, ret_managed, ret_device };

	*ret_type = *ret_managed = 0;
	*ret_device = -1;
	return cu->pointer_attrs(ARRAY_LEN(attr), attr, ret, at) ? -EIO : 0;
}

/* A copy was refused: -EFAULT if it is not memory of a device, from its first byte to its last. */
static int row_blame(struct cuda *x, const struct device_row *r)
{
	uint64_t end = r->src + (r->rows - 1) * r->src_pitch + r->width;
	unsigned type, managed;
	int device;

	for (int last = 0; last < 2; last++) {
		if (pointer_look(x->cu, last ? end - 1 : r->src, &type, &managed, &device) < 0)
			return -EIO;
		if (type != CUDA_MEMORY_DEVICE)
			return -EFAULT;
	}
	return -EIO;
}

enum way {
	OUT,
	IN,
	WITHIN
}; /* of the device; r->src is the device's side, or where it comes from */

static cuda_rc line_queue(struct cuda *x, enum way way, cuda_stream s, uint8_t *dst, uint64_t src,
			  uint64_t bytes)
{
	return way == OUT  ? x->cu->copy_out(dst, src, bytes, s)
	       : way == IN ? x->cu->copy_in(src, dst, bytes, s)
			   : x->cu->copy_on((uintptr_t)dst, src, bytes, s);
}

static cuda_rc row_queue(struct cuda *x, enum way way, cuda_stream s, uint8_t *dst,
			 uint64_t dst_pitch, const struct device_row *r)
{
	struct cuda_copy2d copy = { .width = r->width, .height = r->rows };
	cuda_rc rc = CUDA_OK;

	if (r->rows == 1 || (r->src_pitch == r->width && dst_pitch == r->width))
		return line_queue(x, way, s, dst, r->src, r->width * r->rows);
	if (r->src_pitch < r->width || dst_pitch < r->width || r->src_pitch > PITCH_MAX ||
	    dst_pitch > PITCH_MAX) {
		for (uint64_t i = 0; i < r->rows && rc == CUDA_OK; i++)
			rc = line_queue(x, way, s, dst + i * dst_pitch, r->src + i * r->src_pitch,
					r->width);
		return rc;
	}
	copy.src_type = way == IN ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE;
	copy.dst_type = way == OUT ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE;
	copy.src_host = way == IN ? dst : NULL;
	copy.dst_host = way == OUT ? dst : NULL;
	copy.src_device = way == IN ? 0 : r->src;
	copy.dst_device = way == IN ? r->src : way == WITHIN ? (uintptr_t)dst : 0;
	copy.src_pitch = way == IN ? dst_pitch : r->src_pitch;
	copy.dst_pitch = way == IN ? r->src_pitch : dst_pitch;
	return x->cu->copy_2d(&copy, s);
}

static void many_free(struct many *m)
{
	free(m->to);
	free(m->from);
	free(m->bytes);
	*m = (struct many){ 0 };
}

static bool many_reserve(struct many *m, uint32_t n)
{
	if (n <= m->cap)
		return true;
	many_free(m);
	m->to = calloc(n, sizeof *m->to);
	m->from = calloc(n, sizeof *m->from);
	m->bytes = calloc(n, sizeof *m->bytes);
	if (m->to && m->from && m->bytes)
		m->cap = n;
	return m->cap;
}

static bool is_legacy(cuda_stream s)
{
	return !s || (uintptr_t)s == LEGACY_STREAM;
}

/* The rows from here on that are one line each: one call for all of them, where the driver has it;
 * it does not take them on the legacy stream.
 * Returns their number; 0: row by row. */
static uint32_t many_queue(struct cuda *x, struct many *m, cuda_stream s,
			   const struct device_row *row, uint32_t n, cuda_rc *ret_rc)
{
	struct cuda_copy_attr attr = { .order = CUDA_SRC_ORDER_STREAM };
	size_t first = 0, bad = 0;
	uint32_t k = 0;

	while (k < n && row[k].rows == 1)
		k++;
	if (k < 2 || is_legacy(s) || !(x->cu->copy_many || x->cu->copy_many_12) ||
	    !many_reserve(m, k))
		return 0;
	for (uint32_t i = 0; i < k; i++) {
		m->to[i] = (uintptr_t)row[i].dst;
		m->from[i] = row[i].src;
		m->bytes[i] = row[i].width;
	}
	*ret_rc = x->cu->copy_many
			  ? x->cu->copy_many(m->to, m->from, m->bytes, k, &attr, &first, 1, s)
			  : x->cu->copy_many_12(m->to, m->from, m->bytes, k, &attr, &first, 1, &bad,
						s);
	return k;
}

/* NULL: there is none, and each copy tries again. */
static uint8_t *buffer_get(struct cuda *x, uint8_t **buffer)
{
	void *p;

	if (!*buffer && x->cu->host_alloc(&p, BOUNCE, CUDA_REGISTER_PORTABLE) == CUDA_OK)
		*buffer = p;
	return *buffer;
}

/* A row as pieces that fit into a buffer: of line `line`, from byte `in` on, n lines at once. */
struct piece {
	uint64_t line, in;
	struct device_row part; /* its dst: where it lies on the host */
};

static bool piece_next(const struct device_row *r, struct piece *p)
{
	uint64_t lines = MAX(BOUNCE / r->width, (uint64_t)1);

	if (p->line >= r->rows)
		return false;
	p->part = (struct device_row){ .src = r->src + p->line * r->src_pitch + p->in,
				       .dst = r->dst + p->line * r->dst_pitch + p->in,
				       .width = MIN(r->width - p->in, BOUNCE),
				       .rows = MIN(lines, r->rows - p->line),
				       .src_pitch = r->src_pitch,
				       .dst_pitch = r->dst_pitch };
	p->in += p->part.width;
	if (p->in == r->width) {
		p->in = 0;
		p->line += p->part.rows;
	}
	return true;
}

/* Between a buffer, where lines lie behind each other, and where they belong. */
static void lines_copy(const struct device_row *p, uint8_t *buffer, bool to_buffer)
{
	for (uint64_t i = 0; i < p->rows; i++) {
		uint8_t *here = p->dst + i * p->dst_pitch, *there = buffer + i * p->width;

		memcpy(to_buffer ? there : here, to_buffer ? here : there, p->width);
	}
}

/* The copier's road where the slot is not registered. */
static int row_bounce(struct cuda *x, const struct device_row *r)
{
	uint8_t *buffer = buffer_get(x, &x->bounce);
	struct piece p = { 0 };

	while (piece_next(r, &p)) {
		if (row_queue(x, OUT, x->stream, buffer ? buffer : p.part.dst,
			      buffer ? p.part.width : p.part.dst_pitch, &p.part))
			return row_blame(x, r);
		if (x->cu->event_record(x->chunked, x->stream) || event_wait(x, x->chunked) < 0)
			return -EIO;
		if (buffer)
			lines_copy(&p.part, buffer, false);
	}
	return 0;
}

/* Which of the rows of a call that was refused is to blame. */
static int rows_blame(struct cuda *x, const struct device_row *row, uint32_t n, uint32_t *ret_which)
{
	for (uint32_t i = 0; i < n; i++) {
		*ret_which = i;
		if (row_blame(x, &row[i]) == -EFAULT)
			return -EFAULT;
	}
	return -EIO;
}

static int cuda_copy(struct device_handle *d, const struct device_target *to,
		     const struct device_row *row, uint32_t n, uint32_t *ret_bad)
{
	struct cuda *x = cuda_of(d);
	int rc = atomic_load(&x->failed) || copier_enter(x) < 0 ? -EIO : 0;

	for (uint32_t i = 0, k; i < n && rc == 0; i += k) {
		cuda_rc queued = CUDA_OK;
		uint32_t which = 0;

		k = to->direct ? many_queue(x, &x->out, x->stream, row + i, n - i, &queued) : 0;
		if (k == 0 && to->direct)
			queued =
				row_queue(x, OUT, x->stream, row[i].dst, row[i].dst_pitch, &row[i]);
		else if (k == 0)
			rc = row_bounce(x, &row[i]);
		k = MAX(k, 1u);
		if (queued)
			rc = rows_blame(x, row + i, k, &which);
		*ret_bad = i + which;
	}
	if (rc == 0 && to->direct)
		rc = sent_note(x);
	return rc == -EIO ? failed(x) : rc;
}

/* --- the order with the trainer's streams --- */
static int stream_check(struct cuda *x, cuda_stream stream)
{
	cuda_ctx ctx = x->ctx;
	unsigned capturing;

	if (stream && x->cu->stream_ctx(stream, &ctx))
		return -EIO;
	if (ctx != x->ctx)
		return -EINVAL;
	if (x->cu->stream_capturing(stream, &capturing))
		return -EIO;
	return capturing ? -EBUSY : 0;
}

static int cuda_check(struct device_handle *d, void *stream)
{
	struct cuda *x = cuda_of(d);
	struct entered e;
	int rc = atomic_load(&x->failed) ? -EIO : context_enter(x, &e);

	if (rc < 0)
		return rc;
	rc = stream_check(x, stream);
	context_leave(x, &e);
	return rc;
}

static int cuda_begin(struct device_handle *d, void *stream)
{
	struct cuda *x = cuda_of(d);
	struct entered e;
	int rc = atomic_load(&x->failed) ? -EIO : context_enter(x, &e);

	if (rc < 0)
		return rc;
	if (x->cu->event_record(x->stable, stream))
		rc = -EIO;
	context_leave(x, &e);
	return rc;
}

static int cuda_follow(struct device_handle *d, const struct device_handle *begun)
{
	struct cuda *x = cuda_of(d);
	const struct cuda *of = (const struct cuda *)(const void *)begun;

	if (atomic_load(&x->failed))
		return -EIO;
	if (copier_enter(x) < 0 ||
	    (!MUTANT(CUDA_STABLE_UNAWAITED) && x->cu->stream_wait(x->stream, of->stable, 0)))
		return failed(x);
	return 0;
}

static int cuda_guard(struct device_handle *d, void *stream, const struct device_handle *ended)
{
	struct cuda *x = cuda_of(d);
	const struct cuda *of = (const struct cuda *)(const void *)ended;
	struct entered e;
	int rc = context_enter(x, &e);

	if (rc < 0)
		return rc;
	rc = stream_check(x, stream);
	if (rc == 0 && !MUTANT(CUDA_GUARD_UNAWAITED) && x->cu->stream_wait(stream, of->finished, 0))
		rc = -EIO;
	context_leave(x, &e);
	return rc;
}

static int cuda_come(struct device_handle *d, void *stream, uint32_t number)
{
	struct cuda *x = cuda_of(d);
	struct entered e;
	int rc = !x->writes ? -EOPNOTSUPP : atomic_load(&x->failed) ? -EIO : context_enter(x, &e);

	if (rc < 0)
		return rc;
	rc = stream_check(x, stream);
	if (rc == 0 &&
	    x->cu->stream_write(stream, x->reached_at + CAME * sizeof *x->reached, number, 0))
		rc = -EIO;
	context_leave(x, &e);
	return rc;
}

static uint32_t cuda_came(const struct device_handle *d)
{
	const struct cuda *x = (const struct cuda *)(const void *)d;

	return atomic_load_explicit(&x->reached[CAME], memory_order_acquire);
}

static uint32_t cuda_sent(const struct device_handle *d)
{
	return ((const struct cuda *)(const void *)d)->sent;
}

/* --- targets --- */
static void target_unregister(struct cuda *x, struct device_target *t)
{
	struct cuda_target *own = t->own;

	for (uint64_t at = 0; at < own->registered; at += REGISTER_STEP)
		(void)x->cu->host_unregister(t->base + at);
	own->registered = 0;
	t->direct = false;
}

static int cuda_add_target(struct device_handle *d, struct device_target *t, struct ckpt_err *err)
{
	struct cuda *x = cuda_of(d);
	struct cuda_target *own;
	cuda_rc rc = CUDA_OK;
	struct entered e;

	if (t->own)
		return 0; /* portable: of every context */
	t->direct = false;
	own = calloc(1, sizeof *own);
	if (!own)
		return ckpt_error(err, -ENOMEM, "no memory for a slot of a CUDA device");
	if (context_enter_relaxed(x, &e) < 0) {
		context_leave(x, &e);
		free(own);
		return ckpt_error(err, -EIO, "CUDA device %d: its context cannot be used",
				  x->number);
	}
	while (own->registered < t->bytes && rc == CUDA_OK) {
		uint64_t n = MIN(t->bytes - own->registered, REGISTER_STEP);

		rc = x->cu->host_register(t->base + own->registered, n,
					  CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP);
		if (rc == CUDA_OK)
			own->registered += n;
	}
	t->own = own;
	t->direct = rc == CUDA_OK;
	if (!t->direct)
		target_unregister(x, t);
	context_leave(x, &e);
	return 0;
}

static void cuda_forget(struct device_handle *d, struct device_target *t)
{
	struct cuda *x = cuda_of(d);
	struct entered e;

	if (!t->own)
		return;
	if (context_enter_relaxed(x, &e) == 0)
		target_unregister(x, t);
	context_leave(x, &e);
	free(TAKE(t->own));
}

/* --- what the trainer's thread waits for, and scratch --- */
static int settled(cuda_rc rc)
{
	return rc == CUDA_OK						       ? 0
	       : rc >= CUDA_CAPTURE_UNSUPPORTED && rc <= CUDA_CAPTURE_IMPLICIT ? -EBUSY
									       : -EIO;
}

static int cuda_settle(struct device_handle *d)
{
	struct cuda *x = cuda_of(d);
	struct entered e;
	cuda_rc rc;

	if (atomic_load(&x->failed) || context_enter(x, &e) < 0)
		return -EIO;
	rc = x->cu->ctx_sync();
	context_leave(x, &e);
	return settled(rc);
}

static int cuda_settle_stream(struct device_handle *d, void *stream)
{
	struct cuda *x = cuda_of(d);
	struct entered e = { 0 };
	int rc = atomic_load(&x->failed) ? -EIO : context_enter_relaxed(x, &e);

	if (rc == 0)
		rc = stream_check(x, stream);
	if (rc == 0)
		rc = settled(x->cu->event_record(x->between, stream));
	while (rc == 0 && !MUTANT(SETTLE_UNAWAITED)) {
		cuda_rc is = x->cu->event_query(x->between);

		rc = is == CUDA_NOT_READY ? 0 : settled(is);
		if (is != CUDA_NOT_READY)
			break;
		pause_short();
	}
	context_leave(x, &e);
	return rc;
}

static int aside_wait(struct cuda *x)
{
	return x->cu->event_record(x->handed[0], x->aside) ? -EIO : event_wait(x, x->handed[0]);
}

static int aside_enter(struct cuda *x, struct entered *e)
{
	return atomic_load(&x->failed) ? -EIO : context_enter_relaxed(x, e);
}

/* One buffer is filled while the other one goes in. */
static int row_hand(struct cuda *x, const struct device_row *r, uint32_t *turn)
{
	struct piece p = { 0 };

	while (piece_next(r, &p)) {
		uint32_t i = (*turn)++ % HANDS;
		uint8_t *hand = buffer_get(x, &x->hand[i]);

		if (event_wait(x, x->handed[i]) < 0)
			return -EIO;
		if (hand)
			lines_copy(&p.part, hand, true);
		if (row_queue(x, IN, x->aside, hand ? hand : p.part.dst,
			      hand ? p.part.width : p.part.dst_pitch, &p.part))
			return row_blame(x, r);
		if (x->cu->event_record(x->handed[i], x->aside))
			return -EIO;
	}
	return 0;
}

static int cuda_land(struct device_handle *d, const struct device_target *from,
		     const struct device_row *row, uint32_t n, uint32_t *ret_bad)
{
	struct cuda *x = cuda_of(d);
	struct entered e = { 0 };
	int entered = aside_enter(x, &e), rc = entered;
	uint32_t turn = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		*ret_bad = i;
		if (!from || !from->direct)
			rc = row_hand(x, &row[i], &turn);
		else if (row_queue(x, IN, x->aside, row[i].dst, row[i].dst_pitch, &row[i]))
			rc = row_blame(x, &row[i]);
	}
	/* Also after a failure: the caller takes the window away, and copies may still read it. */
	if (entered == 0 && !(rc < 0 && MUTANT(LANDING_LEFT_QUEUED)) && aside_wait(x) < 0)
		rc = -EIO;
	context_leave(x, &e);
	return rc;
}

static int cuda_fetch(struct device_handle *d, uint64_t src, uint64_t bytes, void *to)
{
	struct cuda *x = cuda_of(d);
	struct entered e = { 0 };
	int rc = aside_enter(x, &e);
	uint8_t *hand = rc == 0 ? buffer_get(x, &x->hand[0]) : NULL;

	for (uint64_t at = 0; at < bytes && rc == 0; at += BOUNCE) {
		const struct device_row r = { .src = src + at,
					      .width = MIN(bytes - at, BOUNCE),
					      .rows = 1 };

		if (row_queue(x, OUT, x->aside, hand ? hand : (uint8_t *)to + at, r.width, &r))
			rc = row_blame(x, &r);
		else if (aside_wait(x) < 0)
			rc = -EIO;
		else if (hand)
			memcpy((uint8_t *)to + at, hand, r.width);
	}
	context_leave(x, &e);
	return rc;
}

static int rows_move(struct cuda *x, cuda_stream s, const struct device_row *row, uint32_t n)
{
	cuda_rc rc = CUDA_OK;

	for (uint32_t i = 0, k; i < n && rc == CUDA_OK; i += k) {
		k = many_queue(x, &x->within, s, row + i, n - i, &rc);
		if (!k) {
			k = 1;
			rc = row_queue(x, WITHIN, s, row[i].dst, row[i].dst_pitch, &row[i]);
		}
	}
	return rc == CUDA_OK ? 0 : -EIO;
}

/* The legacy stream does not take many rows in one call: our own does, and it waits. */
static int rows_move_aside(struct cuda *x, cuda_stream s, const struct device_row *row, uint32_t n)
{
	const struct cuda_calls *cu = x->cu;
	int rc;

	if (cu->event_record(x->between, s) || cu->stream_wait(x->aside, x->between, 0))
		return -EIO;
	rc = rows_move(x, x->aside, row, n);
	if (cu->event_record(x->between, x->aside) || cu->stream_wait(s, x->between, 0))
		return -EIO;
	return rc;
}

static int cuda_move(struct device_handle *d, void *stream, const struct device_row *row,
		     uint32_t n)
{
	struct cuda *x = cuda_of(d);
	struct entered e;
	int rc = atomic_load(&x->failed) ? -EIO : context_enter(x, &e);

	if (rc < 0)
		return rc;
	rc = is_legacy(stream) && n > ASIDE_MIN ? rows_move_aside(x, stream, row, n)
						: rows_move(x, stream, row, n);
	context_leave(x, &e);
	return rc;
}

static int cuda_move_now(struct device_handle *d, const struct device_row *row, uint32_t n)
{
	struct cuda *x = cuda_of(d);
	struct entered e = { 0 };
	int rc = aside_enter(x, &e);

	if (rc == 0)
		rc = rows_move(x, x->aside, row, n);
	if (rc == 0)
		rc = aside_wait(x);
	context_leave(x, &e);
	return rc;
}

static int cuda_alloc(struct device_handle *d, uint64_t bytes, uint64_t *ret, struct ckpt_err *err)
{
	struct cuda *x = cuda_of(d);
	struct entered e = { 0 };
	cuda_ptr p = 0;
	cuda_rc rc = context_enter_relaxed(x, &e) < 0 ? CUDA_INVALID_CONTEXT
						      : x->cu->mem_alloc(&p, bytes);

	context_leave(x, &e);
	*ret = p;
	return rc ? cuda_error(x, rc, "no memory for what is copied by value", err) : 0;
}

static void cuda_release(struct device_handle *d, uint64_t at)
{
	struct cuda *x = cuda_of(d);
	struct entered e = { 0 };

	if (context_enter_relaxed(x, &e) == 0)
		(void)x->cu->mem_free(at);
	context_leave(x, &e);
}

/* --- opening --- */
static void cuda_free(struct cuda *x)
{
	const struct cuda_calls *cu = x->cu;
	const cuda_event event[] = { x->stable,	 x->finished,  x->chunked,
				     x->between, x->handed[0], x->handed[1] };

	if (x->stream && !x->lost)
		(void)cu->stream_sync(x->stream);
	for (size_t i = 0; i < ARRAY_LEN(event); i++)
		if (event[i])
			(void)cu->event_free(event[i]);
	for (int i = 0; i < HANDS; i++)
		if (x->hand[i])
			(void)cu->host_free(x->hand[i]);
	if (x->bounce)
		(void)cu->host_free(x->bounce);
	if (x->reached)
		(void)cu->host_free((void *)x->reached);
	if (x->stream)
		(void)cu->stream_free(x->stream);
	if (x->aside)
		(void)cu->stream_free(x->aside);
	many_free(&x->out);
	many_free(&x->within);
}

/* Does cuStreamWriteValue32 work on this device? */
static bool writes_try(struct cuda *x)
{
	return x->cu->stream_write &&
	       x->cu->stream_write(x->stream, x->reached_at, 0, 0) == CUDA_OK &&
	       x->cu->stream_sync(x->stream) == CUDA_OK;
}

static cuda_rc cuda_make(struct cuda *x)
{
	const struct cuda_calls *cu = x->cu;
	cuda_event *const event[] = { &x->stable,  &x->finished,  &x->chunked,
				      &x->between, &x->handed[0], &x->handed[1] };
	void *page;
	cuda_rc rc = cu->stream_new(&x->stream, CUDA_STREAM_NON_BLOCKING, 0);

	if (rc == CUDA_OK)
		rc = cu->stream_new(&x->aside, CUDA_STREAM_NON_BLOCKING, 0);
	for (size_t i = 0; i < ARRAY_LEN(event) && rc == CUDA_OK; i++)
		rc = cu->event_new(event[i], EVENT_FLAGS);
	if (rc == CUDA_OK)
		rc = cu->host_alloc(&page, 4096, CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP);
	if (rc)
		return rc;
	x->reached = page;
	atomic_init(x->reached, 0);
	atomic_init(&x->reached[CAME], 0);
	rc = cu->host_device_ptr(&x->reached_at, page, 0);
	if (rc == CUDA_OK)
		x->writes = writes_try(x);
	return rc;
}

/* The context of this thread, if it is one of the device; or the primary one, which is there
 * already where a framework has made a tensor. */
static cuda_rc context_find(struct cuda *x)
{
	cuda_device of;
	cuda_rc rc = x->cu->ctx_current(&x->ctx);

	if (rc == CUDA_OK && x->ctx && x->cu->ctx_device(&of) == CUDA_OK && of == x->number)
		return CUDA_OK;
	rc = x->cu->primary_retain(&x->ctx, x->number);
	x->retained = rc == CUDA_OK;
	return rc;
}

static int cuda_open(uint32_t number, struct device_handle **ret, struct ckpt_err *err)
{
	int rc;
	const struct cuda_calls *cu = cuda_driver(&rc, err);
	struct entered e = { 0 };
	struct cuda *x;
	cuda_rc made;

	if (!cu)
		return rc;
	x = calloc(1, sizeof *x);
	if (!x)
		return ckpt_error(err, -ENOMEM, "no memory for CUDA device %u", number);
	x->cu = cu;
	x->device.ops = &device_cuda;
	x->number = (cuda_device)number;
	made = number > INT32_MAX ? CUDA_INVALID_DEVICE : cu->device_get(&x->number, (int)number);
	if (made) {
		free(x);
		return ckpt_error(err, -ENODEV,
				  "CUDA device %u: there is no such device (CUDA_VISIBLE_DEVICES?)",
				  number);
	}
	made = context_find(x);
	if (made) {
		rc = cuda_error(x, made, "its context cannot be used", err);
		free(x);
		return rc;
	}
	made = context_enter_relaxed(x, &e) < 0 ? CUDA_INVALID_CONTEXT : cuda_make(x);
	rc = made ? cuda_error(x, made, "it cannot be opened", err) : 0;
	x->device.caps = x->writes ? DEVICE_ORDERED : 0;
	if (rc < 0)
		cuda_free(x);
	context_leave(x, &e);
	if (rc < 0) {
		if (x->retained)
			(void)cu->primary_release(x->number);
		free(x);
		return rc;
	}
	*ret = &x->device;
	return 0;
}

static void cuda_close(struct device_handle *d)
{
	struct cuda *x = cuda_of(d);
	struct entered e;

	if (context_enter_relaxed(x, &e) == 0)
		cuda_free(x);
	context_leave(x, &e);
	if (x->retained)
		(void)x->cu->primary_release(x->number);
	free(x);
}

int device_cuda_find(struct device_handle *open, uint64_t at, uint64_t bytes, uint32_t *ret_number,
		     struct ckpt_err *err)
{
	struct cuda *x = open ? cuda_of(open) : NULL;
	const struct cuda_calls *cu = x ? x->cu : cuda_driver_loaded();
	const uint64_t end[] = { at, at + bytes - 1 };
	struct entered e = { 0 };
	unsigned type[2], managed[2];
	int device[2], rc = cu ? 0 : -ENOENT;

	if (rc == 0 && x)
		rc = context_enter(x, &e);
	for (int i = 0; i < 2 && rc == 0; i++)
		rc = pointer_look(cu, end[i], &type[i], &managed[i], &device[i]);
	if (x)
		context_leave(x, &e);
	if (rc < 0)
		return x ? ckpt_error(err, rc, "CUDA device %d has failed", x->number) : 0;
	if (managed[0] || managed[1])
		return ckpt_error(err, -EOPNOTSUPP,
				  "0x%" PRIx64
				  " is managed memory, which moves between host and device: use "
				  "memory of cuMemAlloc or cudaMalloc",
				  at);
	if (type[0] != CUDA_MEMORY_DEVICE && type[1] != CUDA_MEMORY_DEVICE)
		return 0;
	if (type[0] != type[1] || device[0] != device[1] || device[0] < 0)
		return ckpt_error(err, -EOPNOTSUPP,
				  "the %" PRIu64 " bytes from 0x%" PRIx64
				  " are not all memory of one CUDA device",
				  bytes, at);
	*ret_number = (uint32_t)device[0];
	return 1;
}

const struct device_ops device_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.copy = cuda_copy,
	.target = cuda_add_target,
	.forget = cuda_forget,
	.check = cuda_check,
	.begin = cuda_begin,
	.follow = cuda_follow,
	.flight = cuda_flight,
	.end = cuda_end,
	.poll = cuda_poll,
	.guard = cuda_guard,
	.come = cuda_come,
	.came = cuda_came,
	.sent = cuda_sent,
	.alloc = cuda_alloc,
	.free = cuda_release,
	.move = cuda_move,
	.settle = cuda_settle,
	.settle_stream = cuda_settle_stream,
	.land = cuda_land,
	.fetch = cuda_fetch,
	.move_now = cuda_move_now,
};
