/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_size.c - how large a file of the format can become, for whoever makes room for it before it
 * is written. Called by the daemon, and for sheets. Invariant: no file is longer than what is said
 * here.
 */
#include "formats/native/native_impl.h"

static uint64_t strings_bytes(const struct table *t)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->ntensor; i++)
		n += strlen(t->tensor[i].component) + strlen(t->tensor[i].name) +
		     strlen(t->tensor[i].of) + 3;
	for (uint32_t i = 0; i < t->nmesh; i++)
		for (uint32_t d = 0; d < t->mesh[i].ndim; d++)
			n += strlen(t->mesh[i].name[d]) + 1;
	for (uint32_t i = 0; i < t->naverage; i++)
		n += strlen(t->average[i].name) + strlen(t->average[i].schedule) + 2;
	return n;
}

uint64_t native_declared_bytes_max(const struct table *t)
{
	/* Header, trailer, and each section's way to the next 4 KiB. */
	uint64_t bytes = (uint64_t)CONTAINER_BLOCK * (2 + TABLE_SECTIONS_MAX + 4);

	bytes += strings_bytes(t) + t->naverage * sizeof(struct ck_average);
	for (uint32_t i = 0; i < t->nmesh; i++)
		bytes += sizeof(struct ck_mesh) +
			 4 * (2 * (uint64_t)t->mesh[i].ndim + t->mesh[i].nrank);
	for (uint32_t i = 0; i < t->nlayout; i++)
		bytes += sizeof(struct ck_layout) +
			 sizeof(struct ck_placement) * t->layout[i].nplace;
	for (uint32_t i = 0; i < t->ntensor; i++)
		bytes += sizeof(struct ck_tensor) + 8 * (uint64_t)t->tensor[i].ndim;
	return bytes;
}

static uint64_t piece_bytes(const struct table_piece *p)
{
	uint64_t words = 1;

	for (uint32_t d = 0; d < p->set.ndim; d++)
		words += 1 + 4 * (uint64_t)p->set.dim[d].n + (p->stride != NULL);
	return sizeof(struct ck_piece) + 8 * words;
}

/* What the chunks of a part take; where that cannot be found out, what full ones would. */
static uint64_t chunks_bytes(const struct table *t)
{
	uint64_t nchunk = div_up(t->place[0].bytes, UINT64_C(1) << CHUNK_LOG2);
	uint64_t end = nchunk << CHUNK_LOG2;
	struct chunk *chunk = NULL;

	(void)chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &nchunk, &end, NULL);
	free(chunk);
	return end + nchunk * sizeof(struct ck_chunk);
}

uint64_t native_part_bytes_max(const struct table *t, uint32_t nsource)
{
	uint64_t bytes = native_declared_bytes_max(t) + chunks_bytes(t);

	bytes += nsource * (sizeof(struct ck_part) + NATIVE_NAME_MAX + 1);
	for (uint32_t i = 0; i < t->npiece; i++)
		bytes += piece_bytes(&t->piece[i]);
	return bytes;
}
