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

int move_write_part(const struct move_write *x, int fd, const void *raw, struct table *t,
		    const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		    struct ckpt_err *err)
{
	const struct part_io_opts opts = {
		.ops = x->ops,
		.engine = x->engine,
		.nbuffer = BUFFERS,
		.tap = x->tap,
		.ntap = x->ntap,
		.tick = x->tick,
		.arg = x->arg,
	};
	struct part_writer *w = NULL;
	struct part_io *io;
	int e;

	assert(t->sealed && t->nplace == 1 && (uintptr_t)raw % NATIVE_ALIGN == 0);
	e = part_io_open(&opts, &io, err);
	if (e < 0)
		return e;
	e = part_writer_open(io, fd, t, info, rank, NULL, &w, err);
	if (e == 0)
		e = part_write_raw(w, raw, err);
	if (e == 0)
		e = part_writer_finish(w, ret_part, err);
	if (e == 0 && x->ret_derived)
		*x->ret_derived = *part_writer_derived(w);
	if (e == 0 && x->ret_chunk)
		*x->ret_chunk = part_writer_chunks(w);
	part_writer_close(w);
	part_io_close(io);
	for (uint32_t i = 0; i < t->npiece && e < 0; i++)
		t->piece[i].flags = 0; /* move_part_bytes_max stays an upper bound */
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
