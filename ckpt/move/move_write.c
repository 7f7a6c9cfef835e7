/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_write.c - memory to a new part file. Called by whoever persists a staged slot. Invariant:
 * the sums in the file describe the bytes that were handed to the disk, as raw memory does not
 * change meanwhile.
 */
#include "ckpt/base/util.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/part_writer.h"
#include "ckpt/move/place_pieces.h"

#define CHUNK_BYTES ((uint64_t)1 << NATIVE_CHUNK_LOG2)
#define BUFFERS 16u /* header, trailer, and chunks that are not full */

static int part_walk(const struct move_write *x, struct part_io *io, struct walk *walk, int fd,
		     const void *raw, struct table *t, const struct native_info *info,
		     uint32_t rank, struct native_part *ret_part, struct ckpt_err *err)
{
	struct part_writer *w;
	int e = part_writer_open_walk(io, fd, walk, t, info, rank, &w, err);

	if (e < 0)
		return e;
	e = part_write_raw(w, raw, err);
	if (e == 0)
		e = part_writer_finish(w, ret_part, err);
	if (e == 0 && x->ret_derived)
		*x->ret_derived = *walk_derived(walk);
	if (e < 0)
		(void)part_io_drain(io, NULL);
	part_writer_close(w);
	return e;
}

static int io_take(const struct move_write *x, struct part_io **ret, struct ckpt_err *err)
{
	const struct part_io_opts opts = {
		.ops = x->ops,
		.engine = x->engine,
		.nbuffer = BUFFERS,
		.tick = x->tick,
		.arg = x->arg,
	};

	*ret = x->io ? TAKE(*x->io) : NULL;
	if (!*ret)
		return part_io_open(&opts, ret, err);
	part_io_again(*ret, x->tick, x->arg);
	return 0;
}

int move_write_part(const struct move_write *x, int fd, const void *raw, struct table *t,
		    const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		    struct ckpt_err *err)
{
	const struct walk_opts opts = { .pass = x->pass, .npass = x->npass, .nhelper = x->nhelper };
	struct walk *walk = x->walk;
	struct part_io *io;
	int e = 0;

	assert(t->sealed && t->nplace == 1 && (uintptr_t)raw % NATIVE_ALIGN == 0);
	e = io_take(x, &io, err);
	if (e == 0 && !walk)
		e = walk_open(&opts, t, rank, &walk, err);
	if (e == 0)
		e = part_walk(x, io, walk, fd, raw, t, info, rank, ret_part, err);
	if (e == 0 && x->io)
		*x->io = TAKE(io);
	part_io_close(io);
	if (x->walk)
		return e;
	walk_close(walk);
	for (uint32_t i = 0; i < t->npiece && e < 0; i++)
		t->piece[i].flags = 0; /* move_part_bytes_max stays an upper bound */
	return e;
}

/* A walk for whom nothing is left to be made of any chunk. */
static int walk_of_places(struct table *t, uint32_t rank, struct walk **ret, struct ckpt_err *err)
{
	struct walk_opts o = { .nsum = div_up(t->place[0].bytes, CHUNK_BYTES), .resumed = true };
	cleanup_free struct chunk *none = calloc(o.nsum + 1, sizeof *none);

	if (!none)
		return ckpt_error(err, -ENOMEM, "out of memory for a part");
	o.sum = none;
	return walk_open(&o, t, rank, ret, err);
}

int move_write_data(const struct move_write *x, int fd, const void *raw, struct table *t,
		    const struct native_info *info, uint32_t rank, struct ckpt_err *err)
{
	struct part_writer *w = NULL;
	struct walk *walk = NULL;
	struct part_io *io;
	int e = io_take(x, &io, err);

	if (e == 0)
		e = walk_of_places(t, rank, &walk, err);
	if (e == 0)
		e = part_writer_open_walk(io, fd, walk, t, info, rank, &w, err);
	if (e == 0)
		e = part_write_chunks(w, raw, 0, walk_fixed(t), err);
	if (e == 0)
		e = part_io_drain(io, err);
	if (e == 0 && x->io)
		*x->io = TAKE(io);
	else if (io)
		(void)part_io_drain(io, NULL);
	part_writer_close(w);
	walk_close(walk);
	part_io_close(io);
	return e;
}

int move_write_rest(const struct move_write *x, int fd, const void *raw, struct table *t,
		    const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		    struct ckpt_err *err)
{
	struct part_io *io;
	int e = io_take(x, &io, err);

	if (e == 0)
		e = part_write_rest(io, fd, x->walk, t, info, rank, raw, walk_fixed(t), ret_part,
				    err);
	if (e == 0 && x->io)
		*x->io = TAKE(io);
	part_io_close(io);
	return e;
}

/* --- before --- */

static uint64_t table_strings(const struct table *t)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->ntensor; i++)
		n += strlen(t->tensor[i].component) + strlen(t->tensor[i].name) +
		     strlen(t->tensor[i].of) + 3;
	for (uint32_t i = 0; i < t->nmesh; i++)
		for (uint32_t d = 0; d < t->mesh[i].ndim; d++)
			n += strlen(t->mesh[i].name[d]) + 1;
	return n;
}

static uint64_t piece_records(const struct table_piece *p)
{
	uint64_t words = 1;

	for (uint32_t d = 0; d < p->set.ndim; d++)
		words += 1 + 4 * (uint64_t)p->set.dim[d].n + (p->stride != NULL);
	return sizeof(struct ck_piece) + 8 * words;
}

/* What the chunks of a part take; where that cannot be found out, what whole ones would. */
static uint64_t chunk_bytes(const struct table *t)
{
	uint64_t nchunk = div_up(t->place[0].bytes, CHUNK_BYTES), end = nchunk * CHUNK_BYTES;
	struct chunk *chunk = NULL;

	(void)native_part_chunks(t, &chunk, &nchunk, &end, NULL);
	free(chunk);
	return end + nchunk * sizeof(struct ck_chunk);
}

uint64_t move_part_bytes_max(const struct table *t, uint32_t nsource)
{
	/* Header, trailer, and each section's way to the next 4 KiB. */
	uint64_t bytes = (uint64_t)NATIVE_ALIGN * (2 + TABLE_SECTIONS_MAX + 2);

	bytes += chunk_bytes(t) + table_strings(t);
	bytes += t->naverage * sizeof(struct ck_average);
	bytes += nsource * (sizeof(struct ck_part) + NATIVE_NAME_MAX + 1);
	for (uint32_t i = 0; i < t->naverage; i++)
		bytes += strlen(t->average[i].name) + strlen(t->average[i].schedule) + 2;
	for (uint32_t i = 0; i < t->nmesh; i++)
		bytes += sizeof(struct ck_mesh) +
			 4 * (2 * (uint64_t)t->mesh[i].ndim + t->mesh[i].nrank);
	for (uint32_t i = 0; i < t->nlayout; i++)
		bytes += sizeof(struct ck_layout) +
			 sizeof(struct ck_placement) * t->layout[i].nplace;
	for (uint32_t i = 0; i < t->ntensor; i++)
		bytes += sizeof(struct ck_tensor) + 8 * (uint64_t)t->tensor[i].ndim;
	for (uint32_t i = 0; i < t->npiece; i++)
		bytes += piece_records(&t->piece[i]);
	return bytes;
}

uint64_t move_fingerprint(const struct table *t, const struct table_piece *piece, const void *p)
{
	return piece_fingerprint(t, piece, 0, piece->set.numel, p);
}
