/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - what all formats' checkpoints have in common. Called by whoever holds one.
 * Invariant: everything that a checkpoint points to lives in its table's arena, so that freeing it
 * knows no format.
 */
#include "formats/format.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	table_free(&c->table);
	free(c);
}

uint32_t checkpoint_file_of(const struct checkpoint *c, uint32_t place)
{
	while (place >= c->nfile) {
		const struct format_made *m = &c->made[place - c->nfile];

		/* A place is made of an earlier one: so this ends, whatever a file says. */
		if (m->how == MADE_GIVEN || m->from >= place)
			return TABLE_NONE;
		place = m->from;
	}
	return place;
}

struct checkpoint *checkpoint_new(const struct format *f, uint32_t nfile)
{
	struct checkpoint *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->format = f;
	c->world = 1;
	c->parent_step = UINT64_MAX;
	c->nfile = nfile;
	c->file = arena_array(&c->table.arena, nfile, sizeof *c->file);
	if (c->file)
		return c;
	checkpoint_free(c);
	return NULL;
}

struct sheet *sheet_new(const struct format *f, uint32_t ntensor, uint32_t nfile, uint32_t nrun,
			uint32_t nsum)
{
	struct sheet *s = calloc(1, sizeof *s);
	struct arena *a = s ? &s->table.arena : NULL;

	if (!s)
		return NULL;
	s->origin = arena_array(a, ntensor, sizeof *s->origin);
	s->file = arena_array(a, nfile, sizeof *s->file);
	s->run = arena_array(a, nrun, sizeof *s->run);
	s->sum = arena_array(a, nsum, sizeof *s->sum);
	s->nfile = nfile;
	s->nrun = nrun;
	s->nsum = nsum;
	if (s->origin && s->file && s->run && s->sum) {
		s->format = f;
		return s;
	}
	table_free(&s->table);
	free(s);
	return NULL;
}

int format_tensor_add(struct table *t, const char *name, uint32_t dtype, uint32_t ndim,
		      const uint64_t *shape, uint32_t place, uint64_t off, uint64_t *ret_bytes,
		      struct ckpt_err *err)
{
	static const uint64_t zero[CKPT_DIMS_MAX];
	struct table_piece p = { .place = place, .off = off };
	struct table_tensor x = { .component = "",
				  .name = name,
				  .of = "",
				  .dtype = dtype,
				  .elem_bytes = dtype_bytes(dtype),
				  .layout = TABLE_NONE,
				  .rank = TABLE_NONE,
				  .ndim = ndim,
				  .shape = shape };
	int r;

	if (!x.elem_bytes)
		return ckpt_error(err, -EPROTONOSUPPORT,
				  "%.200s: this program does not know dtype %u", name, dtype);
	r = table_add_tensor(t, &x, &p.tensor, err);
	if (!r)
		r = indexset_box(ndim, zero, shape, &t->arena, &p.set);
	*ret_bytes = p.set.numel * x.elem_bytes;
	if (!r)
		r = table_add_piece(t, &p, err);
	return r == -ENOMEM || r == -EALREADY || !r ? r : -EPROTO;
}

int format_stopped(const struct format_want *w, struct ckpt_err *err)
{
	return w->stopped && w->stopped(w->stopped_arg) ? ckpt_error(err, -ECANCELED, "interrupted")
							: 0;
}

char *format_flat_name(const struct table_tensor *x, const char *strip,
		       char buf[2 * CKPT_NAME_MAX + 2])
{
	bool bare = !*x->component || (strip && !strcmp(strip, x->component));

	snprintf(buf, 2 * CKPT_NAME_MAX + 2, "%s%s%s", bare ? "" : x->component, bare ? "" : ".",
		 x->name);
	return buf;
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
