/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_ranges.c - what the bytes of a part are (struct format_range): header, data, sections,
 * trailer, and what lies between them. The reader calls it when the part has been checked.
 * Invariant: the ranges ascend and leave no byte out; neighbours differ, so full chunks one behind
 * the other are one.
 */
#include "formats/native/native_impl.h"

struct ranges {
	struct format_range *range; /* NULL: they are counted */
	uint64_t n, end;
	struct format_range last; /* of those that were put */
};

static void range_put(struct ranges *x, uint64_t end, uint8_t kind, uint8_t sum)
{
	struct format_range r = { .off = x->end, .len = end - x->end, .kind = kind, .sum = sum };

	if (!r.len)
		return;
	x->end = end;
	if (x->n && x->last.kind == kind && x->last.sum == sum) {
		x->last.len += r.len;
	} else {
		x->last = r;
		x->n++;
	}
	if (x->range)
		x->range[x->n - 1] = x->last;
}

static void ranges_put(struct ranges *x, const struct container_map *m, const struct chunk *chunk,
		       uint64_t nchunk)
{
	range_put(x, CONTAINER_BLOCK, RANGE_META, SUM_OPEN);
	for (uint64_t i = 0; i < nchunk; i++) {
		if (!chunk[i].stored_len)
			continue;
		range_put(x, chunk[i].off, RANGE_ZERO, SUM_NONE);
		range_put(x, chunk[i].off + chunk[i].stored_len, RANGE_DATA, SUM_CHUNKS);
	}
	range_put(x, m->data_end, RANGE_ZERO, SUM_NONE);
	/* What lies between sections was read with them. */
	for (uint32_t i = 0; i < m->nsect; i++) {
		range_put(x, MAX(m->sect[i].off, x->end), RANGE_ZERO, SUM_OPEN);
		range_put(x, x->end + m->sect[i].len, RANGE_META, SUM_OPEN);
	}
	range_put(x, m->file_bytes - CONTAINER_BLOCK, RANGE_ZERO, SUM_OPEN);
	range_put(x, m->file_bytes, RANGE_META, SUM_OPEN);
}

int native_ranges_make(const struct container_map *m, const struct chunk *chunk, uint64_t nchunk,
		       struct arena *a, struct format_file *f)
{
	struct ranges count = { .range = NULL }, x = { .range = NULL };

	ranges_put(&count, m, chunk, nchunk);
	x.range = arena_array(a, count.n, sizeof *x.range);
	if (!x.range)
		return -ENOMEM;
	ranges_put(&x, m, chunk, nchunk);
	f->range = x.range;
	f->nrange = x.n;
	return 0;
}
