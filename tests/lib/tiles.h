/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiles.h - is every byte of a file in exactly one of its ranges (formats/format.h), in as few as
 * can be, and is every chunk in one that says so? Written without the product's check.
 */
#ifndef TESTS_LIB_TILES_H
#define TESTS_LIB_TILES_H
#include "formats/format.h"
#include <stdio.h>

/* NULL, or what is wrong. The file is neither lost nor unread. */
static inline const char *tiles_wrong(const struct format_file *f)
{
	static char text[200];
	uint64_t end = 0, k = 0, data = 0;

	for (uint64_t i = 0; i < f->nrange; i++) {
		const struct format_range *x = &f->range[i];

		snprintf(text, sizeof text, "%.60s: range %llu of kind %u, at %llu, behind %llu",
			 f->name, (unsigned long long)i, x->kind, (unsigned long long)x->off,
			 (unsigned long long)end);
		if (x->off != end || !x->len || x->len > f->file_bytes - end)
			return text;
		if (i && x->kind == x[-1].kind && x->sum == x[-1].sum && x->sum != SUM_CRC32)
			return text;
		end += x->len;
		data += x->sum == SUM_CHUNKS ? x->len : 0;
	}
	snprintf(text, sizeof text, "%.60s: %llu bytes in ranges of %llu", f->name,
		 (unsigned long long)end, (unsigned long long)f->file_bytes);
	if (end != f->file_bytes)
		return text;
	for (uint64_t i = 0; i < f->nchunk && f->chunk; i++) {
		const struct chunk *c = &f->chunk[i];

		snprintf(text, sizeof text, "%.60s: chunk %llu", f->name, (unsigned long long)i);
		if (!c->stored_len)
			continue;
		while (f->range[k].off + f->range[k].len <= c->off)
			k++;
		if (f->range[k].off > c->off || f->range[k].kind != RANGE_DATA ||
		    f->range[k].sum != SUM_CHUNKS ||
		    c->off + c->stored_len > f->range[k].off + f->range[k].len)
			return text;
		data -= c->stored_len;
	}
	snprintf(text, sizeof text, "%.60s: its chunks and their ranges differ in length by %llu",
		 f->name, (unsigned long long)data);
	return data && f->chunk ? text : NULL;
}

/* Of all that were read. */
static inline const char *tiles_all_wrong(const struct checkpoint *c)
{
	const char *wrong = NULL;

	for (uint32_t i = 0; i < c->nfile && !wrong; i++)
		if (!c->file[i].lost && !c->file[i].unread)
			wrong = tiles_wrong(&c->file[i]);
	return wrong;
}
#endif
