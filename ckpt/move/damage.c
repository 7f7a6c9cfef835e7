/* SPDX-License-Identifier: Apache-2.0 */
/*
 * damage.c - see damage.h. Called by verb_export.c.
 * Invariant: a tensor that is not called damaged has every element, and none of them in bytes that
 * a fault was found in.
 */
#include "ckpt/move/damage.h"
#include "ckpt/base/util.h"
#include "ckpt/move/chunk_check.h"
#include "ckpt/table/operand.h"
#include <stdio.h>

#define ROOM (1u << 31) /* above TABLE_PLACES_MAX */

struct damage_range {
	/* As it was found. kind NULL: settled, and of these only text counts */
	const char *kind, *file, *tensor, *text;
	uint64_t offset, length; /* of the file */
	/* settled: raw bytes of a place; with ROOM: of the room that derived pieces keep there */
	uint32_t place;
	uint64_t lo, hi;
};

static struct damage_range *range_add(struct damage *d)
{
	if (!ARRAY_GROW(d->range, d->n, d->cap)) {
		d->failed = true;
		return NULL;
	}
	d->range[d->n] = (struct damage_range){ 0 };
	return &d->range[d->n++];
}

/* Neighbours often say the same: it is kept once. */
static const char *text_keep(struct damage *d, const char *text, const char *last)
{
	text = text ? text : "";
	if (last && !strcmp(last, text))
		return last;
	text = arena_str(&d->arena, text);
	d->failed |= !text;
	return text;
}

void damage_fault(void *arg, const struct format_fault *f)
{
	struct damage *d = arg;
	const struct damage_range last = d->n ? d->range[d->n - 1] : (struct damage_range){ 0 };
	struct damage_range *r;

	if (format_fault_is_odd(f))
		return; /* no tensor lies there */
	r = range_add(d);
	if (!r)
		return;
	r->kind = text_keep(d, f->kind, last.kind);
	r->file = text_keep(d, f->file, last.file);
	r->tensor = text_keep(d, f->tensor, last.tensor);
	r->text = text_keep(d, f->text, last.text);
	r->offset = f->offset;
	r->length = !strcmp(f->kind, "truncated") ? UINT64_MAX - f->offset : f->length;
}

/* "w0003.part, byte 8192: the hash of its bytes is wrong" */
static const char *range_say(struct damage *d, const struct damage_range *r)
{
	char line[512];
	const char *s;

	if (r->offset)
		snprintf(line, sizeof line, "%.100s, byte %llu: %.300s", r->file,
			 (unsigned long long)r->offset, r->text);
	else
		snprintf(line, sizeof line, "%.100s: %.300s", r->file, r->text);
	s = arena_str(&d->arena, line);
	d->failed |= !s;
	return s;
}

static void settled_add(struct damage *d, uint32_t place, uint64_t lo, uint64_t hi,
			const char *text)
{
	struct damage_range *r = range_add(d);

	if (r)
		*r = (struct damage_range){ .place = place, .lo = lo, .hi = hi, .text = text };
}

/* Faults come in the order of the files, and of their bytes: the next is looked for where the last
 * one was found. */
struct at {
	uint32_t file;
	uint64_t chunk, offset;
};

/* The chunks of the file that have some of the bytes. */
static void settle_bytes(struct damage *d, const struct checkpoint *k, struct at *at,
			 const struct damage_range *r)
{
	const struct format_file *f = &k->file[at->file];
	const char *text = range_say(d, r);
	uint64_t end = r->offset + r->length, n = file_nchunk(f);

	if (r->offset < at->offset || !r->length)
		at->chunk = 0;
	at->offset = r->offset;
	for (uint64_t i = at->chunk; i < n; i++) {
		const struct chunk c = file_chunk(f, i);
		uint64_t lo = i << file_chunk_log2(f);

		if (!c.raw_len || (r->length && c.off + c.stored_len <= r->offset))
			continue;
		if (r->length && c.off >= end)
			break;
		settled_add(d, at->file, lo, lo + c.raw_len, text);
		at->chunk = i;
	}
}

/* All of a tensor that a fault names, and no place in it. Of what
 * is derived nothing is said against its bytes, for they are its master's as well. */
static void settle_tensor(struct damage *d, const struct checkpoint *k,
			  const struct damage_range *r)
{
	const struct table *t = &k->table;
	const char *text = range_say(d, r);
	char name[2 * CKPT_NAME_MAX + 64];

	for (uint32_t i = 0; i < t->ntensor; i++) {
		if (strcmp(table_tensor_print(&t->tensor[i], name, sizeof name), r->tensor) != 0)
			continue;
		for (uint32_t p = t->first[i]; p < t->first[i + 1]; p++) {
			const struct table_piece *x = &t->piece[p];

			settled_add(d, x->place | (x->flags & PIECE_DERIVED ? ROOM : 0), x->off,
				    x->off + x->len, text);
		}
	}
}

static void range_settle(struct damage *d, const struct checkpoint *k, struct at *at,
			 const struct damage_range *r)
{
	if (at->file == k->nfile || strcmp(k->file[at->file].name, r->file) != 0) {
		*at = (struct at){ 0 };
		while (at->file < k->nfile && strcmp(k->file[at->file].name, r->file) != 0)
			at->file++;
	}
	if (at->file < k->nfile && k->file[at->file].lost)
		d->lost = d->lost ? d->lost : range_say(d, r);
	else if (at->file < k->nfile && (r->length || !*r->tensor))
		settle_bytes(d, k, at, r);
	else if (*r->tensor)
		settle_tensor(d, k, r);
	/* else a stranger in the directory, which holds nothing of any tensor */
}

static int by_place(const void *va, const void *vb)
{
	const struct damage_range *a = va, *b = vb;

	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	return (a->lo > b->lo) - (a->lo < b->lo);
}

int damage_settle(struct damage *d, const struct checkpoint *k, struct ckpt_err *err)
{
	uint32_t nfound = d->n, n = 0;
	struct at at = { 0 };

	for (uint32_t i = 0; i < nfound && !d->failed; i++) {
		const struct damage_range r = d->range[i];

		if (r.kind)
			range_settle(d, k, &at, &r);
	}
	if (d->failed)
		return ckpt_error(err, -ENOMEM, "out of memory for the list of damages");
	for (uint32_t i = 0; i < d->n; i++)
		if (!d->range[i].kind)
			d->range[n++] = d->range[i];
	if (n)
		qsort(d->range, n, sizeof *d->range, by_place);
	d->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct damage_range *last = d->n ? &d->range[d->n - 1] : NULL;

		if (last && last->place == d->range[i].place && d->range[i].lo <= last->hi)
			last->hi = MAX(last->hi, d->range[i].hi);
		else
			d->range[d->n++] = d->range[i];
	}
	return 0;
}

/* The range that has some of [lo, hi) of a place; NULL: none. */
static const struct damage_range *range_of(const struct damage *d, uint32_t place, uint64_t lo,
					   uint64_t hi)
{
	uint32_t low = 0, high = d->n;

	while (low < high) { /* the first that ends behind lo */
		uint32_t mid = low + (high - low) / 2;
		const struct damage_range *r = &d->range[mid];

		if (r->place < place || (r->place == place && r->hi <= lo))
			low = mid + 1;
		else
			high = mid;
	}
	return low < d->n && d->range[low].place == place && d->range[low].lo < hi ? &d->range[low]
										   : NULL;
}

bool damage_of(const struct damage *d, const struct table *t, uint32_t tensor, char *buf,
	       size_t bytes)
{
	const struct table_tensor *x = &t->tensor[tensor];
	const struct damage_range *r = NULL;
	uint64_t have = 0, want = x->numel * operands_of(t, x);

	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1] && !r; i++) {
		const struct table_piece *p = &t->piece[i];
		struct piece_bytes b = table_piece_bytes(t, p);

		r = range_of(d, p->place, b.off, b.off + b.len);
		if (!r && p->flags & PIECE_DERIVED)
			r = range_of(d, p->place | ROOM, p->off, p->off + p->len);
		have += p->set.numel;
	}
	if (r) {
		snprintf(buf, bytes, "%s", r->text);
		return true;
	}
	if (x->cls == CKPT_SINK)
		return false;
	if (have != want)
		snprintf(buf, bytes, "%llu of its %llu elements are missing; %s",
			 (unsigned long long)(want - MIN(have, want)), (unsigned long long)want,
			 d->lost ? d->lost : "no file has them");
	return have != want;
}

void damage_free(struct damage *d)
{
	free(d->range);
	arena_free(&d->arena);
	*d = (struct damage){ 0 };
}
