/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_engine.h - what a queue and its engine agree on. The queue (io_queue.c) counts requests, keeps
 * their transfers and hands finished ones out; an engine (ring, pool, or none: inline) moves one
 * transfer to its end. All calls come from the thread that opened the queue.
 */
#ifndef CKPT_IO_IO_ENGINE_H
#define CKPT_IO_IO_ENGINE_H
#include <pthread.h>
#include "ckpt/io/io_window.h"
#include "ckpt/io/io_xfer.h"

#define IO_DEPTH_MAX 4096 /* of a queue: 32 GiB in flight at 8 MiB is beyond any device */
#define IO_WHY_BYTES 256

struct io_engine_ops {
	/* Take x over. true: it is finished already. */
	bool (*start)(struct io_queue *q, struct io_xfer *x);
	/* A finished transfer, waiting for it. Called only while the engine has one. */
	struct io_xfer *(*wait)(struct io_queue *q);
	/* Nothing is in flight any more. */
	void (*close)(struct io_queue *q);
};

struct io_queue {
	const struct io_ops *ops;
	const struct io_engine_ops *engine;
	void *state; /* the engine's */
	enum io_engine kind;
	uint32_t depth, in_flight;
	pthread_t owner;
	struct io_xfer *xfer;	/* depth of them; req is NULL when idle */
	struct io_xfer **idle;	/* a stack of nidle */
	struct io_xfer **ready; /* finished inside io_submit: a ring of nready from ready_head */
	uint32_t nidle, nready, ready_head;
	struct io_windows windows; /* of files that are written buffered */
	char why[IO_WHY_BYTES];
};

/*
 * Each fills q->engine, q->state, q->kind and appends its line to q->why; or a negative errno, with
 * why not in q->why.
 */
int io_ring_open(struct io_queue *q);
int io_pool_open(struct io_queue *q);
void io_why(struct io_queue *q, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
