/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_map.c - see chunk_map.h. Called by move when a raw space is written, and by a reader that
 * compares. Invariant: the map follows from the table alone.
 */
#include "formats/chunk_map.h"
#include "ckpt/base/util.h"
#include <stdlib.h>

#define CHUNK_BYTES ((uint64_t)1 << CHUNK_LOG2)

struct extent {
	uint64_t off, end;
	uint32_t elem, piece;
};

static int by_off(const void *va, const void *vb)
{
	const struct extent *a = va, *b = vb;

	return (a->off > b->off) - (a->off < b->off);
}

static void extents_sort(struct extent *x, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (x[i].off < x[i - 1].off) {
			qsort(x, n, sizeof *x, by_off);
			return;
		}
}

/*
 * The pieces in the order of the raw space; they must not overlap. By chunk first: inside one they
 * mostly come in order, for they come by tensor, and a raw space has them so. next: zeros, one per
 * chunk and one more.
 */
static int extents_make(const struct table *t, uint64_t nchunk, uint32_t *next, struct extent *x,
			struct ckpt_err *err)
{
	char label[160], other[160];

	for (uint32_t i = 0; i < t->npiece; i++)
		next[(t->piece[i].off >> CHUNK_LOG2) + 1]++;
	for (uint64_t c = 0; c < nchunk; c++)
		next[c + 1] += next[c];
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];

		x[next[p->off >> CHUNK_LOG2]++] =
			(struct extent){ .off = p->off,
					 .end = p->off + p->len,
					 .elem = t->tensor[p->tensor].elem_bytes,
					 .piece = i };
	}
	/* Each has run to where the next one began. */
	for (uint64_t c = 0; c < nchunk; c++)
		extents_sort(x + (c ? next[c - 1] : 0), next[c] - (c ? next[c - 1] : 0));
	for (uint32_t i = 1; i < t->npiece; i++)
		if (x[i].off < x[i - 1].end)
			return ckpt_error(
				err, -EPROTO, "%s and %s overlap at byte %llu of the raw space",
				table_tensor_print(&t->tensor[t->piece[x[i - 1].piece].tensor],
						   label, sizeof label),
				table_tensor_print(&t->tensor[t->piece[x[i].piece].tensor], other,
						   sizeof other),
				(unsigned long long)x[i].off);
	return 0;
}

static int extents_cut(const struct table *t, const struct extent *x, struct chunk *chunk,
		       uint8_t *elem, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < t->npiece; i++) {
		for (uint64_t c = x[i].off >> CHUNK_LOG2; c << CHUNK_LOG2 < x[i].end; c++) {
			if (elem[c] && elem[c] != x[i].elem)
				return ckpt_error(err, -EPROTO,
						  "chunk %llu has elements of %u and of %u bytes",
						  (unsigned long long)c, elem[c], x[i].elem);
			elem[c] = (uint8_t)x[i].elem;
			if (t->piece[x[i].piece].flags & PIECE_DERIVED)
				continue;
			chunk[c].elem_bytes = elem[c];
			chunk[c].raw_len = (uint32_t)MIN(x[i].end - (c << CHUNK_LOG2), CHUNK_BYTES);
		}
	}
	return 0;
}

int chunk_map_make(const struct table *t, uint64_t data_off, struct chunk **ret_chunk,
		   uint64_t *ret_nchunk, uint64_t *ret_data_end, struct ckpt_err *err)
{
	uint64_t n = div_up(t->place[0].bytes, CHUNK_BYTES), at = data_off;
	cleanup_free struct extent *x = calloc((size_t)t->npiece + 1, sizeof *x);
	cleanup_free struct chunk *chunk = NULL;
	cleanup_free uint32_t *next = NULL;
	cleanup_free uint8_t *elem = NULL;
	int r;

	assert(t->sealed && t->nplace == 1);
	if (n > CHUNK_RAW_MAX >> CHUNK_LOG2)
		return ckpt_error(
			err, -EPROTO, "a raw space of %llu bytes; at most %llu are possible",
			(unsigned long long)t->place[0].bytes, (unsigned long long)CHUNK_RAW_MAX);
	chunk = calloc(n + 1, sizeof *chunk);
	elem = calloc(n + 1, sizeof *elem);
	next = calloc(n + 2, sizeof *next);
	if (!x || !chunk || !elem || !next)
		return ckpt_error(err, -ENOMEM, "out of memory for the chunks of a part");
	r = extents_make(t, n, next, x, err);
	if (!r)
		r = extents_cut(t, x, chunk, elem, err);
	if (r < 0)
		return r;
	for (uint64_t i = 0; i < n; i++) {
		chunk[i].source = chunk[i].base = UINT32_MAX;
		if (!chunk[i].raw_len)
			continue;
		chunk[i].codec = CODEC_RAW;
		chunk[i].stored_len = chunk[i].raw_len;
		chunk[i].off = at;
		at += align_up(chunk[i].raw_len, CHUNK_ALIGN);
	}
	*ret_chunk = TAKE(chunk);
	*ret_nchunk = n;
	*ret_data_end = at;
	return 0;
}
