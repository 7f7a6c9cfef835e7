/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_window.c - a checkpoint read window by window, the next one while the caller has the last.
 * Called by the verbs that stream: convert, cat, diff. Invariant: a buffer belongs to the reader
 * while it is not full and to the caller while it is; memory is two windows and the read buffers,
 * however large the checkpoint.
 */
#include "ckpt/base/thread.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/move/block_stream.h"
#include "ckpt/move/made.h"
#include "ckpt/move/move.h"
#include "ckpt/move/pace.h"

#define BUFFERS 2u
#define LIMIT_MIN (16u << 20)
/* Larger windows only make the first read and the last write longer, which nothing overlaps; and all
 * of it is memory that the kernel clears first, which costs more than the sums where a host takes
 * back what its guests have free. */
#define WINDOW_MAX (32u << 20)
#define READ_MAX (32u << 20)

/* A window on its way from the reader to the caller. */
struct passing {
	struct window w;
	uint8_t *buf;
	bool full;
};

struct passage {
	struct move_files f; /* with buffer_bytes */
	struct windows *ws;  /* the reader's */
	uint8_t *mem;
	size_t mem_bytes, buf_bytes;
	struct pace pace; /* the caller's */
	bool given_up;	  /* by the caller's tick */

	pthread_mutex_t lock; /* protects all below, but of a passing only `full` */
	pthread_cond_t changed;
	struct passing slot[BUFFERS];
	uint64_t done; /* bytes that the caller has not heard of */
	bool stop, ended;
	int code;
	struct ckpt_err err; /* the reader's */
};

static uint64_t read_bytes(uint64_t mem_limit)
{
	return MIN(mem_limit / 4, (uint64_t)READ_MAX);
}

uint64_t move_window_bytes(uint64_t mem_limit)
{
	uint64_t bytes = (mem_limit - read_bytes(mem_limit)) / BUFFERS;

	if (mem_limit < LIMIT_MIN)
		return 0;
	return MIN(bytes / PAGES_HUGE * PAGES_HUGE, (uint64_t)WINDOW_MAX);
}

uint64_t move_decoder_bytes(const struct checkpoint *c)
{
	uint64_t bytes;

	made_fit(c, 0, &bytes);
	return bytes;
}

static int window_read(struct stream_room *room, const struct move_files *f, const struct window *w,
		       void *buf, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	const struct plan_opts opts = { .memory_blobs = true };
	struct plan p;
	int e = plan_make(&f->ckpt->table, &w->table, &opts, &p, NULL, err);

	if (e < 0)
		return e;
	e = move_read_in(room, &p, f, &buf, tick, arg, err);
	plan_free(&p);
	return e;
}

int move_window(const struct move_files *f, const struct window *w, void *buf, move_tick_fn *tick,
		void *arg, struct ckpt_err *err)
{
	return window_read(NULL, f, w, buf, tick, arg, err);
}

/* --- the reader --- */

static int read_tick(void *arg, uint64_t done)
{
	struct passage *p = arg;
	bool stop;

	pthread_mutex_lock(&p->lock);
	p->done += done;
	stop = p->stop;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
	return stop;
}

/* false: it is over. */
static bool await_empty(struct passage *p, struct passing *x)
{
	bool go;

	pthread_mutex_lock(&p->lock);
	while (x->full && !p->stop)
		pthread_cond_wait(&p->changed, &p->lock);
	go = !p->stop;
	pthread_mutex_unlock(&p->lock);
	return go;
}

static void *reader_main(void *arg)
{
	struct passage *p = arg;
	struct stream_room *room = NULL;
	struct ckpt_err err = { 0 };
	int e = stream_room_open(&p->f, &room, &err);

	for (uint32_t i = 0; e == 0; i = (i + 1) % BUFFERS) {
		struct passing *x = &p->slot[i];

		if (!await_empty(p, x))
			break;
		e = windows_next(p->ws, &x->w, &err);
		if (e <= 0)
			break;
		e = window_read(room, &p->f, &x->w, x->buf, read_tick, p, &err);
		if (e < 0) {
			window_free(&x->w);
			break;
		}
		pthread_mutex_lock(&p->lock);
		x->full = true;
		pthread_cond_signal(&p->changed);
		pthread_mutex_unlock(&p->lock);
	}
	stream_room_close(room);
	pthread_mutex_lock(&p->lock);
	p->ended = true;
	p->code = e;
	p->err = err;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* --- the caller --- */

/* The next window, or what ended them: 1, 0, or negative. Meanwhile the owner is asked. */
static int await_full(struct passage *p, struct passing *x)
{
	int e = 0;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		uint64_t done = TAKE(p->done);

		if (done) {
			pthread_mutex_unlock(&p->lock);
			e = pace_add(&p->pace, done);
			pthread_mutex_lock(&p->lock);
			p->given_up = e < 0;
			if (e < 0)
				break;
			continue;
		}
		if (x->full || p->ended) {
			e = x->full ? 1 : p->code;
			break;
		}
		pthread_cond_wait(&p->changed, &p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return e;
}

static void give_back(struct passage *p, struct passing *x)
{
	window_free(&x->w);
	pthread_mutex_lock(&p->lock);
	x->full = false;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

static int pass_all(struct passage *p, move_window_fn *fn, void *fn_arg)
{
	int e;

	for (uint32_t i = 0;; i = (i + 1) % BUFFERS) {
		struct passing *x = &p->slot[i];

		e = await_full(p, x);
		if (e <= 0)
			return e;
		e = fn(fn_arg, &x->w, x->buf);
		if (e)
			return e;
		give_back(p, x);
	}
}

/* Without a second thread, one after the other. */
static int pass_alone(struct passage *p, move_window_fn *fn, void *fn_arg, struct ckpt_err *err)
{
	struct passing *x = &p->slot[0];
	struct stream_room *room;
	int e = stream_room_open(&p->f, &room, err);

	if (e < 0)
		return e;
	while ((e = windows_next(p->ws, &x->w, err)) > 0) {
		e = window_read(room, &p->f, &x->w, x->buf, p->pace.tick, p->pace.arg, err);
		if (!e)
			e = fn(fn_arg, &x->w, x->buf);
		window_free(&x->w);
		if (e)
			break;
	}
	stream_room_close(room);
	return e;
}

static int pass_ahead(struct passage *p, move_window_fn *fn, void *fn_arg, struct ckpt_err *err)
{
	pthread_t reader;
	bool reader_failed;
	int e;

	if (thread_start(&reader, "ckpt-ahead", false, reader_main, p) < 0)
		return pass_alone(p, fn, fn_arg, err);
	e = pass_all(p, fn, fn_arg);
	pthread_mutex_lock(&p->lock);
	reader_failed = p->ended && p->code < 0 && e == p->code;
	p->stop = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
	pthread_join(reader, NULL);
	for (uint32_t i = 0; i < BUFFERS; i++)
		window_free(&p->slot[i].w);
	if (reader_failed && err)
		*err = p->err;
	if (e == 0) {
		e = pace_end(&p->pace);
		p->given_up = e < 0;
	}
	return p->given_up ? ckpt_error(err, e, "reading was given up by its caller") : e;
}

static int buffers_make(struct passage *p, struct ckpt_err *err)
{
	p->mem_bytes = BUFFERS * p->buf_bytes;
	p->mem = pages_new(p->mem_bytes);
	if (!p->mem)
		return ckpt_error(err, -ENOMEM, "out of memory for %u windows of %llu MiB", BUFFERS,
				  (unsigned long long)(p->buf_bytes / MIB));
	for (uint32_t i = 0; i < BUFFERS; i++)
		p->slot[i].buf = p->mem + i * p->buf_bytes;
	return 0;
}

int move_windows(const struct move_files *f, const struct table *dst, uint64_t mem_limit,
		 uint64_t skip, move_window_fn *fn, void *fn_arg, move_tick_fn *tick,
		 void *tick_arg, struct ckpt_err *err)
{
	uint64_t decoders, left;
	struct passage p = { .f = *f,
			     .pace = { .tick = tick, .arg = tick_arg },
			     .lock = PTHREAD_MUTEX_INITIALIZER,
			     .changed = PTHREAD_COND_INITIALIZER };
	int e;

	p.f.decoder_max = made_fit(f->ckpt, mem_limit, &decoders);
	left = mem_limit - MIN(mem_limit, decoders);
	p.buf_bytes = move_window_bytes(left);
	if (!p.buf_bytes)
		return ckpt_error(
			err, -EINVAL,
			"a memory limit of %llu bytes is too small to read a checkpoint "
			"in windows; the minimum is %llu MiB",
			(unsigned long long)mem_limit,
			(unsigned long long)div_up(LIMIT_MIN + move_decoder_bytes(f->ckpt), MIB));
	p.f.buffer_bytes = read_bytes(left);
	if (f->buffer_bytes)
		p.f.buffer_bytes = MIN(p.f.buffer_bytes, f->buffer_bytes);
	e = windows_open(dst, p.buf_bytes, &p.ws, err);
	if (e < 0)
		return e;
	e = windows_skip(p.ws, skip, err);
	if (!e)
		e = buffers_make(&p, err);
	if (!e) {
		e = pass_ahead(&p, fn, fn_arg, err);
		pages_free(p.mem, p.mem_bytes);
	}
	windows_close(p.ws);
	pthread_cond_destroy(&p.changed);
	pthread_mutex_destroy(&p.lock);
	return e;
}
