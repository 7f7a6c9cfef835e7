/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_file.c - see part_file.h. Called by persist. Invariant: sections and trailer are written
 * after the last chunk's write has ended well, and describe the bytes that were handed to the disk.
 */
#include "daemon/part_file.h"
#include "ckpt/base/util.h"

#define CHUNK_BYTES ((uint64_t)1 << CHUNK_LOG2)
#define BUFFERS 16u /* header, trailer, and chunks that are not full */

/* A part on its way to its file. */
struct filing {
	const struct part_file_opts *x;
	int fd;
	struct table *t;
	const struct native_info *info;
	uint32_t rank;
	struct chunk_queue *queue;
	struct chunk_stream *stream;
	struct ckpt_err *err;
};

static int filing_begin(struct filing *f, struct walk *walk)
{
	const struct part_file_opts *x = f->x;
	const struct chunk_queue_opts opts = {
		.ops = x->ops,
		.engine = x->engine,
		.nbuffer = BUFFERS,
		.tick = x->tick,
		.arg = x->arg,
	};
	int e = 0;

	f->queue = x->queue ? TAKE(*x->queue) : NULL;
	if (!f->queue)
		e = chunk_queue_open(&opts, &f->queue, f->err);
	else
		chunk_queue_again(f->queue, x->tick, x->arg);
	return e ? e
		 : chunk_stream_open_walk(f->queue, f->fd, walk, f->t, f->rank, &f->stream, f->err);
}

static int filing_end(struct filing *f, int e)
{
	if (e && f->queue)
		(void)chunk_queue_drain(f->queue, NULL);
	chunk_stream_close(f->stream);
	if (!e && f->x->queue)
		*f->x->queue = TAKE(f->queue);
	chunk_queue_close(f->queue);
	return e;
}

static int head_write(struct filing *f)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);

	if (!head)
		return ckpt_error(f->err, -ENOMEM, "out of memory for a part");
	native_part_head(f->info, f->rank, head);
	return chunk_queue_put(f->queue, f->fd, f->rank, head, sizeof *head, 0, f->err);
}

/* Behind the chunks. */
static int tail_write(struct filing *f, struct native_part *ret)
{
	struct chunk_written w;
	cleanup_free void *tail = NULL;
	uint64_t len;
	int e = chunk_stream_end(f->stream, &w, f->err);

	if (!e)
		e = native_part_tail(f->info, f->rank, f->t, w.chunk, w.nchunk, w.data_end, &tail,
				     &len, &ret->root, f->err);
	if (!e)
		e = chunk_queue_put(f->queue, f->fd, f->rank, tail, len, w.data_end, f->err);
	if (e)
		return e;
	ret->rank = f->rank;
	ret->kind = f->info->role ? f->info->role->kind : PART_MAIN;
	ret->group = f->info->role ? f->info->role->group : 0;
	ret->step = f->info->step;
	ret->generation = f->info->generation;
	native_part_uuid(f->info, f->rank, ret->uuid);
	ret->file_bytes = w.data_end + len;
	ret->raw_bytes = f->t->place[0].bytes;
	ret->table = f->t;
	return 0;
}

int part_file_write(const struct part_file_opts *x, int fd, const void *raw, struct table *t,
		    const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		    struct ckpt_err *err)
{
	const struct walk_opts opts = { .pass = x->pass,
					.npass = x->npass,
					.nhelper = x->nhelper,
					.data_off = NATIVE_DATA_OFF };
	struct filing f = { .x = x, .fd = fd, .t = t, .info = info, .rank = rank, .err = err };
	struct walk *walk = x->walk;
	int e = walk ? 0 : walk_open(&opts, t, rank, &walk, err);

	assert(t->sealed && t->nplace == 1 && (uintptr_t)raw % CHUNK_ALIGN == 0);
	if (!e)
		e = filing_begin(&f, walk);
	if (!e)
		e = head_write(&f);
	if (!e)
		e = chunk_stream_write_raw(f.stream, raw, err);
	if (!e)
		e = tail_write(&f, ret_part);
	if (!e && x->ret_derived)
		*x->ret_derived = *walk_derived(walk);
	e = filing_end(&f, e);
	if (x->walk)
		return e;
	walk_close(walk);
	for (uint32_t i = 0; i < t->npiece && e < 0; i++)
		t->piece[i].flags = 0; /* native_part_bytes_max stays an upper bound */
	return e;
}

/* A walk for which nothing is left to be made of any chunk. */
static int walk_of_places(struct table *t, uint32_t rank, struct walk **ret, struct ckpt_err *err)
{
	struct walk_opts o = { .nsum = div_up(t->place[0].bytes, CHUNK_BYTES),
			       .resumed = true,
			       .data_off = NATIVE_DATA_OFF };
	cleanup_free struct chunk *none = calloc(o.nsum + 1, sizeof *none);

	*ret = NULL;
	if (!none)
		return ckpt_error(err, -ENOMEM, "out of memory for a part");
	o.sum = none;
	return walk_open(&o, t, rank, ret, err);
}

int part_file_data(const struct part_file_opts *x, int fd, const void *raw, struct table *t,
		   const struct native_info *info, uint32_t rank, struct ckpt_err *err)
{
	struct filing f = { .x = x, .fd = fd, .t = t, .info = info, .rank = rank, .err = err };
	struct walk *walk;
	int e = walk_of_places(t, rank, &walk, err);

	if (!e)
		e = filing_begin(&f, walk);
	if (!e)
		e = head_write(&f);
	if (!e)
		e = chunk_stream_write_chunks(f.stream, raw, 0, walk_fixed(t), err);
	if (!e)
		e = chunk_queue_drain(f.queue, err);
	e = filing_end(&f, e);
	walk_close(walk);
	return e;
}

int part_file_rest(const struct part_file_opts *x, int fd, const void *raw, struct table *t,
		   const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		   struct ckpt_err *err)
{
	struct filing f = { .x = x, .fd = fd, .t = t, .info = info, .rank = rank, .err = err };
	int e = filing_begin(&f, x->walk);

	assert(walk_ended(x->walk));
	if (!e)
		e = chunk_stream_write_chunks(f.stream, raw, walk_fixed(t), UINT64_MAX, err);
	if (!e)
		e = tail_write(&f, ret_part);
	return filing_end(&f, e);
}
