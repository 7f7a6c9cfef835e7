// SPDX-License-Identifier: Apache-2.0
// device_cuda.c - the memory of a GPU as a device: see device.h. Called by the client's copier.
//
// One stream of our own, non-blocking, carries all copies of a device. It waits for the event that
// device_begin has recorded on the trainer's stream, and the trainer's stream waits, in
// device_guard, for the event that device_end has recorded behind the last copy. Each snapshot uses
// the other one of two pairs of events, so that no event is recorded again while somebody waits
// for it. The GPU itself writes `done` behind the copies, so nobody polls the driver.
//
// Copies go straight to the slot, whose pages are registered. Bytes in flight are bounded, because
// a small copy of the trainer's own waits behind them: the GPU writes a word of ours behind each
// CHUNK, and the copier waits while more than DEPTH chunks are queued.
//
// Where something is missing, the next best road:
//   no cuStreamWriteValue32     the copier waits for the last copy (an event), and device_end stores
//                               `done` (not DEVICE_ORDERED)
//   pages cannot be registered  copies go by way of two pinned buffers, and from there to the slot
//                               by the copier (not DEVICE_ORDERED)
//
// Invariants: no call of this file makes a context, changes the current context of the trainer's
// thread for longer than the call, or waits on the GPU's side for the host. Only driver functions
// are called, so no error of ours is found by the trainer's cudaGetLastError.
#include "ckpt/device/cuda_driver.h"
#include "ckpt/device/device.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define CHUNK ((uint64_t)16 << 20)
#define DEPTH 3u
#define REGISTER_STEP ((uint64_t)4 << 30) /* of one call: other CUDA calls go between */
#define BOUNCE ((uint64_t)16 << 20)
#define PITCH_MAX ((uint64_t)INT32_MAX)
#define MANY 64u
#define POLL_NS (NS_PER_MS / 50)
#define EVENT_FLAGS CUDA_EVENT_DISABLE_TIMING

enum { TURNS = 2 };

struct cuda {
	struct device_handle device;
	const struct cuda_calls *cu;
	cuda_device number;
	cuda_ctx ctx;
	cuda_stream stream;
	cuda_event stable[TURNS], finished[TURNS];
	bool capture_set; /* the copier's thread: its mode of capture is set */
	bool behind;	  /* the copier's: the copies queued now wait for stable[turn] */
	bool writes;	  /* there is a cuStreamWriteValue32 that works */
	_Atomic uint32_t turn;
	_Atomic bool failed, hurry;
	/* Of the bytes in flight, in chunks. */
	_Atomic uint32_t *reached; /* pinned; the GPU writes it */
	cuda_ptr reached_at;
	uint32_t sent;
	uint64_t unsent; /* bytes since the newest chunk was counted */
	uint8_t *bounce[TURNS];
	cuda_event bounce_done[TURNS];
};

/* What device_target.own points to. */
struct cuda_target {
	uint64_t registered; /* bytes, from base */
	bool whole;	     /* all of it is */
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

/* --- the context --- */
/* Any thread: the trainer's has its own, which is put back. */
struct entered {
	cuda_ctx was;
	bool changed;
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

static void context_leave(struct cuda *x, const struct entered *e)
{
	if (e->changed)
		(void)x->cu->ctx_set(e->was);
}

/* The copier's thread keeps it. */
static int copier_enter(struct cuda *x)
{
	unsigned relaxed = CUDA_CAPTURE_RELAXED;

	if (x->cu->ctx_set(x->ctx))
		return -EIO;
	/* Nothing that we call breaks a capture that another thread has begun. */
	return x->cu->capture_mode(&relaxed) ? -EIO : 0;
}

/* --- bytes in flight --- */
static void pause_short(void)
{
	struct timespec t = { 0, (long)POLL_NS };

	nanosleep(&t, NULL);
}

static bool flight_full(const struct cuda *x)
{
	return x->sent - atomic_load_explicit(x->reached, memory_order_acquire) >= DEPTH;
}

/* So many bytes are queued more. Waits while too many are, unless a guard waits for the end. */
static int flight_count(struct cuda *x, uint64_t bytes)
{
	x->unsent += bytes;
	if (x->unsent < CHUNK || !x->writes)
		return 0;
	x->unsent = 0;
	if (x->cu->stream_write(x->stream, x->reached_at, ++x->sent, 0))
		return -EIO;
	while (flight_full(x) && !atomic_load_explicit(&x->hurry, memory_order_relaxed))
		pause_short();
	return 0;
}

/* The stream has come so far, by an event that is recorded on it. */
static int event_wait(struct cuda *x, cuda_event e)
{
	cuda_rc rc;

	while ((rc = x->cu->event_query(e)) == CUDA_NOT_READY)
		pause_short();
	return rc ? -EIO : 0;
}

/* --- rows --- */
/* Is it memory of a device, whole? A copy was refused: -EFAULT if the source is to blame. */
static int row_blame(struct cuda *x, const struct device_row *r)
{
	unsigned type = 0, attr[] = { CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_RANGE_START,
				      CUDA_POINTER_RANGE_BYTES };
	cuda_ptr start = 0;
	size_t bytes = 0;
	void *ret[] = { &type, &start, &bytes };
	uint64_t span = (r->rows - 1) * r->src_pitch + r->width;

	if (x->cu->pointer_attrs(ARRAY_LEN(attr), attr, ret, r->src))
		return -EIO;
	return type != CUDA_MEMORY_DEVICE || r->src - start > bytes ||
			       span > bytes - (r->src - start)
		       ? -EFAULT
		       : -EIO;
}

static cuda_rc row_queue(struct cuda *x, uint8_t *dst, uint64_t dst_pitch,
			 const struct device_row *r)
{
	cuda_rc rc = CUDA_OK;

	if (r->rows == 1 || (r->src_pitch == r->width && dst_pitch == r->width))
		return x->cu->copy_out(dst, r->src, r->width * r->rows, x->stream);
	if (r->src_pitch >= r->width && dst_pitch >= r->width && r->src_pitch <= PITCH_MAX &&
	    dst_pitch <= PITCH_MAX)
		return x->cu->copy_2d(&(struct cuda_copy2d){ .src_type = CUDA_MEMORY_DEVICE,
							     .src_device = r->src,
							     .src_pitch = r->src_pitch,
							     .dst_type = CUDA_MEMORY_HOST,
							     .dst_host = dst,
							     .dst_pitch = dst_pitch,
							     .width = r->width,
							     .height = r->rows },
				      x->stream);
	for (uint64_t i = 0; i < r->rows && rc == CUDA_OK; i++)
		rc = x->cu->copy_out(dst + i * dst_pitch, r->src + i * r->src_pitch, r->width,
				     x->stream);
	return rc;
}

/* The rows from here on that are one line each: one call for all of them, where the driver has it. */
static uint32_t singles_queue(struct cuda *x, const struct device_row *row, uint32_t n,
			      uint64_t *ret_bytes, cuda_rc *ret_rc)
{
	cuda_ptr to[MANY], from[MANY];
	size_t bytes[MANY], first = 0, bad = 0;
	struct cuda_copy_attr attr = { .order = CUDA_SRC_ORDER_STREAM };
	uint32_t k;

	*ret_bytes = 0;
	for (k = 0; k < n && k < MANY && row[k].rows == 1; k++) {
		to[k] = (uintptr_t)row[k].dst;
		from[k] = row[k].src;
		bytes[k] = row[k].width;
		*ret_bytes += row[k].width;
	}
	if (k < 2 || !(x->cu->copy_many || x->cu->copy_many_12))
		return 0;
	*ret_rc = x->cu->copy_many
			  ? x->cu->copy_many(to, from, bytes, k, &attr, &first, 1, x->stream)
			  : x->cu->copy_many_12(to, from, bytes, k, &attr, &first, 1, &bad,
						x->stream);
	return k;
}

/* By way of a pinned buffer, one piece behind the other: the copier's road where the slot is not
 * registered. */
static int row_bounce(struct cuda *x, const struct device_row *r)
{
	struct device_row piece = *r;
	uint64_t lines = MAX(BOUNCE / r->width, (uint64_t)1);

	for (uint64_t line = 0; line < r->rows; line += lines)
		for (uint64_t in = 0; in < r->width; in += BOUNCE) {
			uint64_t n = MIN(lines, r->rows - line);

			piece.src = r->src + line * r->src_pitch + in;
			piece.width = MIN(r->width - in, BOUNCE);
			piece.rows = n;
			if (row_queue(x, x->bounce[0], piece.width, &piece))
				return row_blame(x, r);
			if (x->cu->event_record(x->bounce_done[0], x->stream) ||
			    event_wait(x, x->bounce_done[0]) < 0)
				return -EIO;
			for (uint64_t i = 0; i < n; i++)
				memcpy(r->dst + (line + i) * r->dst_pitch + in,
				       x->bounce[0] + i * piece.width, piece.width);
		}
	return 0;
}

static int cuda_begin_copies(struct cuda *x)
{
	uint32_t turn = atomic_load(&x->turn);

	if (copier_enter(x) < 0)
		return -EIO;
	if (!MUTANT(CUDA_STABLE_UNAWAITED) && x->cu->stream_wait(x->stream, x->stable[turn], 0))
		return -EIO;
	x->behind = true;
	return 0;
}

static int cuda_copy(struct device_handle *d, const struct device_target *to,
		     const struct device_row *row, uint32_t n, uint32_t *ret_bad)
{
	struct cuda *x = cuda_of(d);
	const struct cuda_target *t = to->own;
	int rc = 0;

	if (atomic_load(&x->failed))
		return -EIO;
	if (!x->behind)
		rc = cuda_begin_copies(x);
	for (uint32_t i = 0, k; i < n && rc == 0; i += k) {
		uint64_t bytes = row[i].width * row[i].rows;
		cuda_rc queued = CUDA_OK;

		*ret_bad = i;
		k = t->whole ? singles_queue(x, row + i, n - i, &bytes, &queued) : 0;
		if (!k) {
			k = 1;
			bytes = row[i].width * row[i].rows;
			if (!t->whole) {
				rc = row_bounce(x, &row[i]);
				continue;
			}
			queued = row_queue(x, row[i].dst, row[i].dst_pitch, &row[i]);
		}
		for (uint32_t j = 0; queued && j < k && rc == 0; j++) {
			*ret_bad = i + j;
			rc = row_blame(x, &row[i + j]) == -EFAULT ? -EFAULT : 0;
		}
		if (queued && rc == 0)
			rc = -EIO;
		if (rc == 0)
			rc = flight_count(x, bytes);
	}
	if (rc == -EIO)
		atomic_store(&x->failed, true);
	return rc;
}

/* --- the ends of a snapshot --- */
/* -EBUSY: the stream is being captured into a graph: nothing runs now, so nothing is marked. */
static int stream_check(struct cuda *x, cuda_stream stream)
{
	unsigned capturing;

	if (x->cu->stream_capturing(stream, &capturing))
		return -EIO;
	return capturing ? -EBUSY : 0;
}

static int cuda_begin(struct device_handle *d, void *stream)
{
	struct cuda *x = cuda_of(d);
	uint32_t turn = 1 - atomic_load(&x->turn);
	struct entered e;
	int rc = atomic_load(&x->failed) ? -EIO : context_enter(x, &e);

	if (rc < 0)
		return rc;
	rc = stream_check(x, stream);
	if (rc == 0 && x->cu->event_record(x->stable[turn], stream))
		rc = -EIO;
	context_leave(x, &e);
	if (rc == 0) {
		x->behind = false;
		atomic_store(&x->hurry, false);
		atomic_store(&x->turn, turn);
	}
	return rc;
}

static int cuda_end(struct device_handle *d, _Atomic uint32_t *done, uint32_t target)
{
	struct cuda *x = cuda_of(d);
	cuda_event finished = x->finished[atomic_load(&x->turn)];
	cuda_ptr at;
	int rc = 0;

	if (atomic_load(&x->failed))
		return -EIO;
	if (!x->behind) /* there was no row */
		rc = cuda_begin_copies(x);
	if (rc == 0 && x->cu->event_record(finished, x->stream))
		rc = -EIO;
	if (rc == 0 && x->device.caps & DEVICE_ORDERED) {
		if (x->cu->host_device_ptr(&at, done, 0) ||
		    x->cu->stream_write(x->stream, at, target, 0))
			rc = -EIO;
	} else if (rc == 0) {
		rc = event_wait(x, finished);
		if (rc == 0)
			atomic_store_explicit(done, target, memory_order_release);
	}
	if (rc < 0)
		atomic_store(&x->failed, true);
	return rc;
}

static int cuda_guard(struct device_handle *d, void *stream)
{
	struct cuda *x = cuda_of(d);
	struct entered e;
	int rc = context_enter(x, &e);

	if (rc < 0)
		return rc;
	rc = stream_check(x, stream);
	if (rc == 0 && !MUTANT(CUDA_GUARD_UNAWAITED) &&
	    x->cu->stream_wait(stream, x->finished[atomic_load(&x->turn)], 0))
		rc = -EIO;
	context_leave(x, &e);
	return rc;
}

static void cuda_hurry(struct device_handle *d)
{
	atomic_store(&cuda_of(d)->hurry, true);
}

/* --- targets --- */
static void target_unregister(struct cuda *x, struct device_target *t)
{
	struct cuda_target *own = t->own;

	for (uint64_t at = 0; at < own->registered; at += REGISTER_STEP)
		(void)x->cu->host_unregister(t->base + at);
	own->registered = 0;
	own->whole = false;
}

static int bounce_make(struct cuda *x, struct ckpt_err *err)
{
	cuda_rc rc = CUDA_OK;
	void *p;

	for (int i = 0; i < TURNS && rc == CUDA_OK && !x->bounce[i]; i++) {
		rc = x->cu->host_alloc(&p, BOUNCE, CUDA_REGISTER_PORTABLE);
		if (rc == CUDA_OK) {
			x->bounce[i] = p;
			rc = x->cu->event_new(&x->bounce_done[i], EVENT_FLAGS);
		}
	}
	return rc ? cuda_error(x, rc, "no pinned memory to copy by way of", err) : 0;
}

static int cuda_add_target(struct device_handle *d, struct device_target *t, struct ckpt_err *err)
{
	struct cuda *x = cuda_of(d);
	struct cuda_target *own = calloc(1, sizeof *own);
	cuda_rc registered = CUDA_OK;
	int rc = 0;

	if (!own)
		return ckpt_error(err, -ENOMEM, "no memory for a slot of a CUDA device");
	t->own = own;
	if (copier_enter(x) < 0) {
		rc = ckpt_error(err, -EIO, "CUDA device %d: its context cannot be used", x->number);
		goto out;
	}
	while (own->registered < t->bytes && registered == CUDA_OK) {
		uint64_t n = MIN(t->bytes - own->registered, REGISTER_STEP);

		registered = x->cu->host_register(t->base + own->registered, n,
						  CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP);
		if (registered == CUDA_OK)
			own->registered += n;
	}
	own->whole = registered == CUDA_OK;
	if (!own->whole) {
		target_unregister(x, t);
		x->device.caps &= ~(uint32_t)DEVICE_ORDERED;
		rc = bounce_make(x, err);
	}
out:
	if (rc < 0)
		free(TAKE(t->own));
	return rc;
}

static void cuda_forget(struct device_handle *d, struct device_target *t)
{
	struct cuda *x = cuda_of(d);

	if (copier_enter(x) == 0 && t->own)
		target_unregister(x, t);
	free(TAKE(t->own));
}

/* --- opening --- */
static void cuda_free(struct cuda *x)
{
	const struct cuda_calls *cu = x->cu;

	if (x->stream && !atomic_load(&x->failed))
		(void)cu->stream_sync(x->stream);
	for (int i = 0; i < TURNS; i++) {
		if (x->stable[i])
			(void)cu->event_free(x->stable[i]);
		if (x->finished[i])
			(void)cu->event_free(x->finished[i]);
		if (x->bounce_done[i])
			(void)cu->event_free(x->bounce_done[i]);
		if (x->bounce[i])
			(void)cu->host_free(x->bounce[i]);
	}
	if (x->reached)
		(void)cu->host_free((void *)x->reached);
	if (x->stream)
		(void)cu->stream_free(x->stream);
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
	void *page;
	cuda_rc rc = cu->stream_new(&x->stream, CUDA_STREAM_NON_BLOCKING, 0);

	for (int i = 0; i < TURNS && rc == CUDA_OK; i++) {
		rc = cu->event_new(&x->stable[i], EVENT_FLAGS);
		if (rc == CUDA_OK)
			rc = cu->event_new(&x->finished[i], EVENT_FLAGS);
	}
	if (rc == CUDA_OK)
		rc = cu->host_alloc(&page, 4096, CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP);
	if (rc)
		return rc;
	x->reached = page;
	atomic_init(x->reached, 0);
	rc = cu->host_device_ptr(&x->reached_at, page, 0);
	if (rc == CUDA_OK)
		x->writes = writes_try(x);
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
	made = cu->device_get(&x->number, (int)number);
	if (made) {
		rc = cuda_error(x, made, "there is no such device", err);
		free(x);
		return rc == -EIO ? -ENODEV : rc;
	}
	/* The context that frameworks use; it is there already where a tensor is. */
	made = cu->primary_retain(&x->ctx, x->number);
	if (made) {
		rc = cuda_error(x, made, "its context cannot be used", err);
		free(x);
		return rc;
	}
	made = context_enter(x, &e) < 0 ? CUDA_INVALID_CONTEXT : cuda_make(x);
	rc = made ? cuda_error(x, made, "it cannot be opened", err) : 0;
	x->device.caps = x->writes ? DEVICE_ORDERED : 0;
	if (rc < 0)
		cuda_free(x);
	context_leave(x, &e);
	if (rc < 0) {
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

	if (context_enter(x, &e) == 0)
		cuda_free(x);
	context_leave(x, &e);
	(void)x->cu->primary_release(x->number);
	free(x);
}

const struct device_ops device_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.target = cuda_add_target,
	.forget = cuda_forget,
	.begin = cuda_begin,
	.copy = cuda_copy,
	.end = cuda_end,
	.guard = cuda_guard,
	.hurry = cuda_hurry,
};
