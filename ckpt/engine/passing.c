/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passing.c - see passing.h. Invariant: of two pieces in a file with chunks, the tensor of the
 * first comes first in the order.
 */
#include "ckpt/engine/passing.h"
#include "ckpt/base/util.h"

#define PAGE 4096u

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for the windows of a conversion");
}

/* --- the order of tensors --- */

/* In each place, the tensor that lies behind a piece's: TABLE_NONE behind the last. */
struct followers {
	uint32_t *next;	  /* [npiece] */
	uint32_t *before; /* [ntensor] pieces of others that lie before its own, not yet placed */
	bool ascending;	  /* the tensors' numbers do already */
};

static int offset_compare(const void *va, const void *vb, void *arg)
{
	const struct table_piece *piece = arg;
	const struct table_piece *a = &piece[*(const uint32_t *)va],
				 *b = &piece[*(const uint32_t *)vb];

	return (a->off > b->off) - (a->off < b->off);
}

static void followers_find(const struct sheet *s, const struct passage_map *m, uint32_t *sorted,
			   struct followers *f)
{
	const struct table *t = &s->table;

	memcpy(sorted, m->piece, t->npiece * sizeof *sorted);
	memset(f->next, 0xff, t->npiece * sizeof *f->next);
	f->ascending = true;
	for (uint32_t file = 0; file < s->nfile; file++) {
		uint32_t lo = m->first[file], n = m->first[file + 1] - lo;

		qsort_r(sorted + lo, n, sizeof *sorted, offset_compare, t->piece);
		for (uint32_t i = lo; i + 1 < lo + n; i++) {
			uint32_t a = t->piece[sorted[i]].tensor, b = t->piece[sorted[i + 1]].tensor;

			f->ascending &= a <= b;
			if (a == b)
				continue;
			f->next[sorted[i]] = b;
			f->before[b]++;
		}
	}
}

/* Tensors before which none is left, one after the other; where they follow each other in a circle
 * (files without chunks may), the lowest number goes first. */
static void order_follow(const struct table *t, struct followers *f, bool *placed, uint32_t *order)
{
	uint32_t n = 0, low = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		if (!f->before[i]) {
			placed[i] = true;
			order[n++] = i;
		}
	for (uint32_t at = 0; at < t->ntensor; at++) {
		if (at == n) {
			while (placed[low])
				low++;
			placed[low] = true;
			order[n++] = low;
		}
		for (uint32_t k = t->first[order[at]]; k < t->first[order[at] + 1]; k++) {
			uint32_t b = f->next[k];

			if (b == TABLE_NONE || --f->before[b] || placed[b])
				continue;
			placed[b] = true;
			order[n++] = b;
		}
	}
}

static int order_make(const struct sheet *s, struct passage_map *m)
{
	const struct table *t = &s->table;
	cleanup_free uint32_t *sorted = calloc((size_t)t->npiece + 1, sizeof *sorted);
	cleanup_free bool *placed = calloc((size_t)t->ntensor + 1, sizeof *placed);
	struct followers f = { .next = calloc((size_t)t->npiece + 1, sizeof *f.next),
			       .before = calloc((size_t)t->ntensor + 1, sizeof *f.before) };
	bool made = sorted && placed && f.next && f.before;

	if (made)
		followers_find(s, m, sorted, &f);
	if (made && !f.ascending)
		order_follow(t, &f, placed, m->order);
	for (uint32_t i = 0; i < t->ntensor && made && f.ascending; i++)
		m->order[i] = i;
	free(f.next);
	free(f.before);
	return made ? 0 : -ENOMEM;
}

/* --- pieces and sources --- */

static void places_find(const struct sheet *s, struct passage_map *m)
{
	const struct table *t = &s->table;

	for (uint32_t k = 0; k < t->npiece; k++)
		m->first[t->piece[k].place + 1]++;
	for (uint32_t i = 0; i < s->nfile; i++)
		m->first[i + 1] += m->first[i];
	for (uint32_t k = 0; k < t->npiece; k++)
		m->piece[m->first[t->piece[k].place]++] = k;
	for (uint32_t i = s->nfile; i > 0; i--)
		m->first[i] = m->first[i - 1];
	m->first[0] = 0;
}

static int sources_find(const struct sheet *s, const struct table *src, const struct table *target,
			struct passage_map *m, struct ckpt_err *err)
{
	char name[TABLE_KEY_BYTES + 32];

	for (uint32_t i = 0; i < s->table.ntensor; i++) {
		const struct table_tensor *y = &target->tensor[s->origin[i]], *x;

		m->from[i] = table_find(src, y->component, y->name, y->rank);
		x = m->from[i] == TABLE_NONE ? NULL : &src->tensor[m->from[i]];
		if (!x || !table_shape_same(x, &s->table.tensor[i]))
			return ckpt_error(err, -EINVAL,
					  "%s is not what the source has under this name",
					  table_tensor_print(y, name, sizeof name));
	}
	return 0;
}

int passage_map_make(const struct sheet *s, const struct table *src, const struct table *target,
		     struct passage_map *ret, struct ckpt_err *err)
{
	const struct table *t = &s->table;

	*ret = (struct passage_map){
		.piece = calloc((size_t)t->npiece + 1, sizeof *ret->piece),
		.first = calloc((size_t)s->nfile + 2, sizeof *ret->first),
		.order = calloc((size_t)t->ntensor + 1, sizeof *ret->order),
		.from = calloc((size_t)t->ntensor + 1, sizeof *ret->from),
	};
	if (!ret->piece || !ret->first || !ret->order || !ret->from)
		return no_memory(err);
	places_find(s, ret);
	return order_make(s, ret) ? no_memory(err) : sources_find(s, src, target, ret, err);
}

void passage_map_free(struct passage_map *m)
{
	free(m->piece);
	free(m->first);
	free(m->order);
	free(m->from);
	*m = (struct passage_map){ 0 };
}

bool passing_casts(const struct sheet *s, const struct passage_map *m, const struct table *src,
		   uint32_t tensor)
{
	return s->table.tensor[tensor].dtype != src->tensor[m->from[tensor]].dtype;
}

/* --- a batch --- */

/* Where the pieces of a file lie while they pass: on the same bytes of a page, in the same
 * order. */
static void offsets_make(const struct sheet *s, const struct passage_map *m,
			 const struct table *src, uint32_t file, uint32_t *sorted, uint64_t *off,
			 uint64_t *ret_end)
{
	const struct table *t = &s->table;
	uint32_t lo = m->first[file], n = m->first[file + 1] - lo;
	uint64_t end = 0;

	memcpy(sorted, m->piece + lo, n * sizeof *sorted);
	qsort_r(sorted, n, sizeof *sorted, offset_compare, t->piece);
	for (uint32_t i = 0; i < n; i++) {
		const struct table_piece *p = &t->piece[sorted[i]];
		uint64_t at = end / PAGE * PAGE + p->off % PAGE;

		off[sorted[i]] = at < end ? at + PAGE : at;
		end = off[sorted[i]] + p->set.numel * src->tensor[m->from[p->tensor]].elem_bytes;
	}
	*ret_end = end;
}

static bool file_casts(const struct sheet *s, const struct passage_map *m, const struct table *src,
		       uint32_t file)
{
	for (uint32_t i = m->first[file]; i < m->first[file + 1]; i++)
		if (passing_casts(s, m, src, s->table.piece[m->piece[i]].tensor))
			return true;
	return false;
}

static int places_add(const struct sheet *s, const struct passage_map *m, const struct table *src,
		      uint32_t first, uint32_t n, uint64_t *off, struct table *ret,
		      struct ckpt_err *err)
{
	cleanup_free uint32_t *sorted = calloc((size_t)s->table.npiece + 1, sizeof *sorted);
	int rc = sorted ? 0 : no_memory(err);

	for (uint32_t f = first; f < first + n && !rc; f++) {
		struct table_place place = s->table.place[f];

		if (file_casts(s, m, src, f))
			offsets_make(s, m, src, f, sorted, off, &place.bytes);
		else
			for (uint32_t i = m->first[f]; i < m->first[f + 1]; i++)
				off[m->piece[i]] = s->table.piece[m->piece[i]].off;
		rc = table_add_place(ret, &place, NULL, err);
	}
	return rc;
}

/* The tensors of a sheet that are one tensor of the source, under several names. */
struct names {
	uint32_t *first; /* [src->ntensor] TABLE_NONE: it has none, or they have passed */
	uint32_t *next;	 /* [ntensor] TABLE_NONE: the last */
	uint32_t *piece; /* [npiece] room */
};

static int names_make(const struct sheet *s, const struct passage_map *m, const struct table *src,
		      struct names *ret)
{
	*ret = (struct names){ .first = calloc((size_t)src->ntensor + 1, sizeof *ret->first),
			       .next = calloc((size_t)s->table.ntensor + 1, sizeof *ret->next),
			       .piece = calloc((size_t)s->table.npiece + 1, sizeof *ret->piece) };
	if (!ret->first || !ret->next || !ret->piece)
		return -ENOMEM;
	memset(ret->first, 0xff, src->ntensor * sizeof *ret->first);
	for (uint32_t i = 0; i < s->table.ntensor; i++) {
		ret->next[i] = ret->first[m->from[i]];
		ret->first[m->from[i]] = i;
	}
	return 0;
}

static void names_free(struct names *x)
{
	free(x->first);
	free(x->next);
	free(x->piece);
}

/* As table_seal sorts the pieces of one tensor. */
static int sealed_compare(const void *va, const void *vb, void *arg)
{
	const struct table_piece *piece = arg;
	const struct table_piece *a = &piece[*(const uint32_t *)va],
				 *b = &piece[*(const uint32_t *)vb];

	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	return (a->off > b->off) - (a->off < b->off);
}

/* The pieces of one tensor of the source in the batch's files, under all its names. */
static int pieces_add(const struct sheet *s, struct names *x, uint32_t from, uint32_t id,
		      uint32_t first, uint32_t n, const uint64_t *off, struct passing *ret,
		      struct ckpt_err *err)
{
	const struct table *t = &s->table;
	uint32_t npiece = 0, tensor = x->first[from];
	bool several = x->next[tensor] != TABLE_NONE;
	int rc = 0;

	for (; tensor != TABLE_NONE; tensor = x->next[tensor])
		for (uint32_t k = t->first[tensor]; k < t->first[tensor + 1]; k++)
			x->piece[npiece++] = k;
	if (several)
		qsort_r(x->piece, npiece, sizeof *x->piece, sealed_compare, t->piece);
	for (uint32_t i = 0; i < npiece && !rc; i++) {
		struct table_piece p = t->piece[x->piece[i]];

		if (p.place < first || p.place >= first + n)
			continue;
		ret->piece[ret->table.npiece] = x->piece[i];
		p.tensor = id;
		p.place -= first;
		p.off = off[x->piece[i]];
		p.fp = 0;
		p.fp_known = false;
		rc = table_put_piece(&ret->table, &p, err);
	}
	x->first[from] = TABLE_NONE;
	return rc;
}

int passing_make(const struct sheet *s, const struct passage_map *m, const struct table *src,
		 uint32_t first, uint32_t n, struct passing *ret, struct ckpt_err *err)
{
	const struct table *t = &s->table;
	cleanup_free uint64_t *off = calloc((size_t)t->npiece + 1, sizeof *off);
	struct names names = { 0 };
	int rc;

	*ret = (struct passing){ .piece = calloc((size_t)t->npiece + 1, sizeof *ret->piece) };
	rc = off && ret->piece && !names_make(s, m, src, &names) ? 0 : no_memory(err);
	if (!rc)
		rc = places_add(s, m, src, first, n, off, &ret->table, err);
	for (uint32_t i = 0; i < t->ntensor && !rc; i++) {
		uint32_t from = m->from[m->order[i]], id;
		struct table_tensor x = src->tensor[from];

		if (names.first[from] == TABLE_NONE)
			continue;
		x.layout = TABLE_NONE;
		x.made = 0;
		rc = table_add_tensor(&ret->table, &x, &id, err);
		if (!rc)
			rc = pieces_add(s, &names, from, id, first, n, off, ret, err);
	}
	names_free(&names);
	return rc ? rc : table_seal(&ret->table, err);
}

void passing_free(struct passing *p)
{
	table_free(&p->table);
	free(TAKE(p->piece));
}
