/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_pieces.c - pieces by offset and fingerprints by range, for what writes and what verifies.
 * Invariant: the fingerprints of any cuts of a piece on element bounds add up to the piece's.
 */
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/move.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/util.h"
#include "ckpt/move/round.h"

#define ROUND_BLOCK 4096u /* elements that are rounded at a time: they stay in the L1 cache */

static int by_place(const void *va, const void *vb, void *table)
{
	uint32_t i = *(const uint32_t *)va, j = *(const uint32_t *)vb;
	const struct table_piece *a = &((const struct table *)table)->piece[i],
				 *b = &((const struct table *)table)->piece[j];

	uint64_t x = table_piece_bytes(table, a).off, y = table_piece_bytes(table, b).off;

	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	if (x != y)
		return x < y ? -1 : 1;
	if (a->flags != b->flags) /* a master before what is derived of it */
		return a->flags < b->flags ? -1 : 1;
	return (i > j) - (i < j);
}

int place_pieces_make(const struct table *t, struct place_pieces *ret)
{
	struct place_pieces p = { .t = t };
	uint32_t at = 0;

	*ret = p;
	p.piece = calloc((size_t)t->npiece + 1, sizeof *p.piece);
	p.hi_max = calloc((size_t)t->npiece + 1, sizeof *p.hi_max);
	p.first = calloc((size_t)t->nplace + 1, sizeof *p.first);
	if (!p.piece || !p.hi_max || !p.first) {
		place_pieces_free(&p);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < t->npiece; i++)
		p.piece[i] = i;
	qsort_r(p.piece, t->npiece, sizeof *p.piece, by_place, (void *)t);
	for (uint32_t place = 0; place < t->nplace; place++) {
		uint64_t hi = 0;

		p.first[place] = at;
		for (; at < t->npiece && t->piece[p.piece[at]].place == place; at++) {
			struct piece_bytes x = table_piece_bytes(t, &t->piece[p.piece[at]]);

			hi = MAX(hi, x.off + x.len);
			p.hi_max[at] = hi;
		}
	}
	p.first[t->nplace] = at;
	*ret = p;
	return 0;
}

void place_pieces_free(struct place_pieces *p)
{
	free(TAKE(p->piece));
	free(TAKE(p->hi_max));
	free(TAKE(p->first));
}

uint32_t place_pieces_from(const struct place_pieces *p, uint32_t place, uint64_t lo)
{
	uint32_t from = p->first[place], to = p->first[place + 1];

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (p->hi_max[mid] <= lo)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

char *place_pieces_label(const struct table *t, uint32_t place, uint64_t lo, uint64_t hi, char *buf,
			 size_t bytes)
{
	const struct table_piece *low = NULL;
	uint64_t low_off = 0;

	*buf = 0;
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		struct piece_bytes x = table_piece_bytes(t, p);

		if (p->place != place || x.off >= hi || x.off + x.len <= lo ||
		    (low && x.off >= low_off) || p->flags & PIECE_DERIVED)
			continue;
		low = p;
		low_off = x.off;
	}
	return low ? table_tensor_print(&t->tensor[low->tensor], buf, bytes) : buf;
}

char *place_pieces_name(const struct place_pieces *p, uint32_t place, uint64_t lo, uint64_t hi,
			char *buf, size_t bytes)
{
	uint32_t i = place_pieces_from(p, place, lo);
	const struct table_piece *x;

	*buf = 0;
	if (i == p->first[place + 1])
		return buf;
	x = &p->t->piece[p->piece[i]]; /* this one reaches above lo, or it would not be the first */
	return table_piece_bytes(p->t, x).off < hi
		       ? table_tensor_print(&p->t->tensor[x->tensor], buf, bytes)
		       : buf;
}

/* --- fingerprints --- */

/* A place in a list. It goes to a position once, and forward from there: a list of very many
 * progressions must not be searched again for each row. */
struct list_at {
	const struct indices *x;
	const struct run *r;
	uint64_t in; /* positions of the run before it */
};

static void list_seek(struct list_at *l, const struct indices *x, uint64_t position)
{
	l->x = x;
	for (l->r = x->run; position >= l->r->len * l->r->count; l->r++)
		position -= l->r->len * l->r->count;
	l->in = position;
}

static uint64_t list_index(const struct list_at *l)
{
	return l->r->start + l->in / l->r->len * l->r->stride + l->in % l->r->len;
}

/* How many indices from here on are consecutive. */
static uint64_t list_stretch(const struct list_at *l)
{
	return l->r->len - l->in % l->r->len;
}

/* By no more than the stretch. True: it is at its begin again. */
static bool list_forward(struct list_at *l, uint64_t n)
{
	l->in += n;
	if (l->in < l->r->len * l->r->count)
		return false;
	l->in = 0;
	if (++l->r < l->x->run + l->x->n)
		return false;
	l->r = l->x->run;
	return true;
}

/* A piece as rows that are consecutive in the tensor: dimensions behind `row` are whole. */
struct rows {
	const struct table_tensor *x;
	const struct indexset *set;
	uint32_t row;	/* the dimension of the rows, when there is one */
	bool whole;	/* no dimension is cut: the piece is the tensor */
	uint64_t inner; /* elements of one index of it */
	uint64_t step
		[CKPT_DIMS_MAX]; /* elements of the tensor from one index of a dimension to the next */
	struct list_at at[CKPT_DIMS_MAX]; /* dimensions 0 to row: of the row that is at hand */
};

static void rows_make(const struct table_tensor *x, const struct indexset *set, struct rows *r)
{
	uint64_t step = 1;
	uint32_t n = set->ndim;

	r->x = x;
	r->set = set;
	r->inner = 1;
	for (uint32_t d = n; d-- > 0; step *= x->shape[d])
		r->step[d] = step;
	for (; n > 0 && set->dim[n - 1].total == x->shape[n - 1]; n--)
		r->inner *= x->shape[n - 1];
	r->whole = n == 0;
	r->row = n ? n - 1 : 0;
}

/* Go to a row, by its number. */
static void rows_seek(struct rows *r, uint64_t row)
{
	for (uint32_t d = r->row + 1; d-- > 0; row /= r->set->dim[d].total)
		list_seek(&r->at[d], &r->set->dim[d], row % r->set->dim[d].total);
}

/* Where it begins in the tensor. */
static uint64_t rows_begin(const struct rows *r)
{
	uint64_t g = 0;

	for (uint32_t d = 0; d < r->row; d++)
		g += list_index(&r->at[d]) * r->step[d];
	return g + list_index(&r->at[r->row]) * r->inner;
}

/* Within the stretch of rows, or to the one behind it. */
static void rows_forward(struct rows *r, uint64_t n)
{
	bool over = list_forward(&r->at[r->row], n);

	for (uint32_t d = r->row; over && d-- > 0;)
		over = list_forward(&r->at[d], 1);
}

/* One whose rows are so short is summed row by row after it was hashed in one go. */
#define ROW_BYTES_MIN 1024u

/* hash: NULL, or what takes the bytes at p, too. */
static uint64_t piece_sums(const struct table *t, const struct table_piece *piece, uint64_t from,
			   uint64_t to, const void *p, struct hash128_state *hash)
{
	const struct table_tensor *x = &t->tensor[piece->tensor];
	const uint8_t *at = p;
	uint64_t sum = 0, in;
	struct rows r;

	if (from >= to)
		return 0;
	rows_make(x, &piece->set, &r);
	if (r.whole)
		return hash ? hash128_add_elements(hash, at, to - from, x->elem_bytes, from)
			    : fingerprint(at, to - from, x->elem_bytes, from);
	rows_seek(&r, from / r.inner);
	in = from % r.inner;
	if (hash && list_stretch(&r.at[r.row]) * r.inner * x->elem_bytes < ROW_BYTES_MIN)
		hash128_add(TAKE(hash), at, (to - from) * x->elem_bytes);
	while (from < to) {
		uint64_t rows = list_stretch(&r.at[r.row]), n = MIN(rows * r.inner - in, to - from);
		uint64_t first = rows_begin(&r) + in;

		sum += hash ? hash128_add_elements(hash, at, n, x->elem_bytes, first)
			    : fingerprint(at, n, x->elem_bytes, first);
		at += n * x->elem_bytes;
		from += n;
		in = 0;
		rows_forward(&r, rows);
	}
	return sum;
}

uint64_t piece_fingerprint(const struct table *t, const struct table_piece *piece, uint64_t from,
			   uint64_t to, const void *p)
{
	return piece_sums(t, piece, from, to, p, NULL);
}

bool piece_splits(const struct table *t, const struct table_piece *piece)
{
	struct piece_bytes b = table_piece_bytes(t, piece);

	return !piece->stride && b.off % b.elem == 0;
}

uint64_t piece_fingerprint_rounded(const struct table *t, const struct table_piece *piece,
				   uint64_t from, uint64_t to, const uint8_t *p)
{
	uint32_t dtype = t->tensor[piece->tensor].dtype;
	uint16_t narrow[ROUND_BLOCK];
	uint64_t sum = 0;

	for (uint64_t n; from < to; from += n, p += n * ROUND_FROM_BYTES) {
		n = MIN(to - from, (uint64_t)ROUND_BLOCK);
		round_f32(dtype, p, narrow, n);
		sum += piece_fingerprint(t, piece, from, from + n, narrow);
	}
	return sum;
}

uint64_t piece_fingerprint_window(const struct table *t, const struct table_piece *piece,
				  const void *window, uint64_t lo, uint64_t hi)
{
	struct piece_bytes b = table_piece_bytes(t, piece);
	uint64_t from = MAX(lo, b.off), to = MIN(hi, b.off + b.len);
	const uint8_t *p = (const uint8_t *)window + (from - lo);

	if (from >= to)
		return 0;
	from = (from - b.off) / b.elem;
	to = (to - b.off) / b.elem;
	return piece->flags & PIECE_DERIVED ? piece_fingerprint_rounded(t, piece, from, to, p)
					    : piece_fingerprint(t, piece, from, to, p);
}

void place_pieces_sums(const struct place_pieces *p, struct table *t, const uint8_t *window,
		       uint64_t lo, uint64_t hi, struct hash128_state *hash, uint64_t *fp)
{
	uint64_t at = lo; /* hash has what is before it */

	for (uint32_t k = place_pieces_from(p, 0, lo); k < p->first[1]; k++) {
		struct table_piece *x = &t->piece[p->piece[k]];
		struct piece_bytes b;
		uint64_t from, to;

		if (x->flags & PIECE_DERIVED)
			continue;
		b = table_piece_bytes(t, x);
		from = MAX(lo, b.off);
		to = MIN(hi, b.off + b.len);
		if (b.off >= hi)
			break;
		if (from >= to)
			continue;
		assert(at <= from); /* no byte of a part belongs to two pieces */
		if (at < from)
			hash128_add(hash, window + (at - lo), from - at);
		*(fp ? &fp[p->piece[k]] : &x->fp) +=
			piece_sums(t, x, (from - b.off) / b.elem, (to - b.off) / b.elem,
				   window + (from - lo), hash);
		at = to;
	}
	hash128_add(hash, window + (at - lo), hi - at);
}

uint64_t move_fingerprint(const struct table *t, const struct table_piece *piece, const void *p)
{
	return piece_fingerprint(t, piece, 0, piece->set.numel, p);
}
