/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - what all formats' checkpoints have in common. Called by whoever holds one.
 * Invariant: everything that a checkpoint points to lives in its table's arena, so that freeing it
 * knows no format.
 */
#include "formats/format.h"
#include "ckpt/base/error.h"
#include <errno.h>
#include <stdlib.h>

void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	table_free(&c->table);
	free(c);
}

static int range_by_off(const void *va, const void *vb)
{
	const struct format_range *a = va, *b = vb;

	return (a->off > b->off) - (a->off < b->off);
}

/* Without empty ones. */
static uint64_t ranges_sort(struct format_range *range, uint64_t n)
{
	uint64_t k = 0;
	bool sorted = true;

	for (uint64_t i = 0; i < n; i++) {
		if (!range[i].len)
			continue;
		range[k] = range[i];
		sorted &= !k || range[k - 1].off <= range[k].off;
		k++;
	}
	if (!sorted)
		qsort(range, k, sizeof *range, range_by_off);
	return k;
}

int format_ranges_check(struct format_file *f, struct format_range *range, uint64_t n,
			struct ckpt_err *err)
{
	uint64_t end = 0, k = 0;

	n = ranges_sort(range, n);
	for (uint64_t i = 0; i < n; i++) {
		struct format_range x = range[i], *last = k ? &range[k - 1] : NULL;

		if (x.off > end)
			return ckpt_error(err, -EPROTO,
					  "%s: bytes %llu to %llu belong to nothing that is in it",
					  f->name, (unsigned long long)end,
					  (unsigned long long)x.off);
		if (x.off < end)
			return ckpt_error(err, -EPROTO, "%s: two things overlap at byte %llu",
					  f->name, (unsigned long long)x.off);
		if (x.len > f->file_bytes - end)
			return ckpt_error(
				err, -EPROTO,
				"%s: %llu bytes from byte %llu on are in it, but it ends at "
				"byte %llu",
				f->name, (unsigned long long)x.len, (unsigned long long)x.off,
				(unsigned long long)f->file_bytes);
		end += x.len;
		if (last && last->kind == x.kind && last->sum == x.sum && x.sum != SUM_CRC32)
			last->len += x.len;
		else
			range[k++] = x;
	}
	if (end < f->file_bytes)
		return ckpt_error(err, -EPROTO,
				  "%s: bytes %llu to %llu belong to nothing that is in it", f->name,
				  (unsigned long long)end, (unsigned long long)f->file_bytes);
	f->range = range;
	f->nrange = k;
	return 0;
}

void sheet_free(struct sheet *s)
{
	if (!s)
		return;
	if (s->format->sheet_end)
		s->format->sheet_end(s);
	table_free(&s->table);
	free(s);
}
