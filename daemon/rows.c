// SPDX-License-Identifier: Apache-2.0
// rows.c - a copy plan as rows (wire/wire.h), from which the library reads what is copied to where.
// Called when a declaration is taken. Invariant: a row names bytes that the plan copies, and no
// byte is in two rows.
#include "daemon/state.h"
#include <inttypes.h>
#include <sys/mman.h>

/* What is left of the limit for the chance that more are chosen than were meant. */
#define ROWS_SPARE 16384u

struct rows {
	const struct turns *turns;
	struct wire_row *row; /* NULL: they are only counted */
	uint32_t n, max;
	uint64_t seen, own;  /* own: of the process's own memory; seen: of the others */
	uint64_t keep_below; /* of a random number, where not all fit; UINT64_MAX: all are kept */
	uint32_t most;	    /* the tensor with an operation that has the most rows of own memory, */
	uint64_t most_rows; /* so many */
};

struct box_dim {
	uint64_t n, src, dst; /* src, dst: bytes from one to the next */
};

struct box { /* of one operation */
	const struct plan *p;
	const struct plan_op *op;
	const struct table_piece *src, *dst;
	struct wire_row row; /* tensor, flags, and where the box begins */
	uint64_t src_stride[CKPT_DIMS_MAX], dst_stride[CKPT_DIMS_MAX], len[CKPT_DIMS_MAX];
	uint32_t ndim, elem;
};

static uint64_t bits_mix(uint64_t z)
{
	z = (z + 1) * UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static void row_put(struct rows *x, const struct wire_row *r)
{
	uint64_t number;

	if (!x->row) {
		*(r->flags & WIRE_ROW_CLIENT ? &x->own : &x->seen) += 1;
		return;
	}
	if (r->flags & WIRE_ROW_CLIENT) {
		if (x->n < x->max)
			x->row[x->n++] = *r;
		return;
	}
	number = x->seen++;
	if (x->n < x->max && (x->keep_below == UINT64_MAX || bits_mix(number) < x->keep_below))
		x->row[x->n++] = *r;
}

/* Neighbours that go on where the ones inside of them end are one dimension. Returns how many are
 * left; *ret_width: what is contiguous on both sides. */
static uint32_t box_fold(const struct box *b, struct box_dim *ret, uint64_t *ret_width)
{
	uint32_t n = 0;

	*ret_width = b->elem;
	for (uint32_t d = b->ndim; d-- > 0;) {
		const struct box_dim x = { b->len[d], b->src_stride[d], b->dst_stride[d] };

		if (x.n == 1)
			continue;
		if (n == 0 && x.src == *ret_width && x.dst == *ret_width)
			*ret_width *= x.n;
		else if (n && ret[n - 1].src * ret[n - 1].n == x.src &&
			 ret[n - 1].dst * ret[n - 1].n == x.dst)
			ret[n - 1].n *= x.n;
		else
			ret[n++] = x;
	}
	return n;
}

/* One stretch in each dimension: the longest dimension becomes the lines of a row, each index of
 * the others a row. */
static void box_put(struct rows *x, const struct box *b)
{
	struct box_dim dim[CKPT_DIMS_MAX], lines = { .n = 1 };
	uint64_t at[CKPT_DIMS_MAX] = { 0 }, number = 1;
	struct wire_row r = b->row;
	uint32_t n = box_fold(b, dim, &r.width), longest = 0, d;

	for (d = 1; d < n; d++)
		if (dim[d].n > dim[longest].n)
			longest = d;
	if (n) {
		lines = dim[longest];
		dim[longest] = dim[--n];
	}
	for (d = 0; d < n; d++)
		number *= dim[d].n;
	if (!x->row) {
		*(r.flags & WIRE_ROW_CLIENT ? &x->own : &x->seen) += number;
		return;
	}
	r.rows = lines.n;
	r.src_pitch = lines.src;
	r.dst_pitch = lines.dst;
	do {
		row_put(x, &r);
		for (d = 0; d < n; d++) {
			r.src += dim[d].src;
			r.dst += dim[d].dst;
			if (++at[d] < dim[d].n)
				break;
			r.src -= dim[d].src * dim[d].n;
			r.dst -= dim[d].dst * dim[d].n;
			at[d] = 0;
		}
	} while (d < n);
}

/* Every combination of one stretch in each dimension. At most CKPT_DIMS_MAX deep. */
static void box_walk(struct rows *x, struct box *b, uint32_t d)
{
	const struct indices *from, *to;
	struct indices_cursor at = { 0 };
	struct stretch s;
	bool whole;

	if (d == b->ndim) {
		box_put(x, b);
		return;
	}
	from = &b->src->set.dim[d];
	to = &b->dst->set.dim[d];
	whole = b->op->whole >> d & 1;
	s = (struct stretch){ .len = from->total };
	while (whole || indices_next(from, to, &at, &s)) {
		uint64_t src = b->row.src, dst = b->row.dst;

		b->len[d] = s.len;
		b->row.src += s.x_pos * b->src_stride[d];
		b->row.dst += s.y_pos * b->dst_stride[d];
		box_walk(x, b, d + 1);
		b->row.src = src;
		b->row.dst = dst;
		if (whole)
			break;
	}
}

/* Just some of what the two pieces share: as the plan enumerates it. */
static void some_put(struct rows *x, const struct box *b)
{
	struct wire_row r = b->row;
	struct plan_cursor c;
	struct plan_row p;

	plan_rows(b->p, b->op, &c);
	while (plan_row_next(&c, &p)) {
		r.src = (b->row.flags & WIRE_ROW_CLIENT ? 0 : (uint64_t)b->op->src_place << 48) |
			p.src_off;
		r.dst = p.dst_off;
		r.width = p.elem ? p.elem : p.len;
		r.rows = p.elem ? p.n : 1;
		r.src_pitch = p.elem ? p.src_stride : 0;
		r.dst_pitch = p.elem ? p.dst_stride : 0;
		row_put(x, &r);
	}
}

static void strides_make(const struct table_piece *p, uint32_t elem, uint64_t *ret)
{
	uint64_t step = elem;

	for (uint32_t d = p->set.ndim; d-- > 0; step *= p->set.dim[d].total)
		ret[d] = p->stride ? (uint64_t)p->stride[d] * elem : step;
}

static void op_put(struct rows *x, const struct plan *p, const struct plan_op *op, uint32_t own)
{
	const struct table_piece *src = &p->src->piece[op->src_piece],
				 *dst = &p->dst->piece[op->dst_piece];
	const struct table_tensor *t = &p->src->tensor[src->tensor];
	struct box b = { .p = p,
			 .op = op,
			 .src = src,
			 .dst = dst,
			 .ndim = src->set.ndim,
			 .elem = t->elem_bytes };

	b.row.tensor = src->tensor;
	b.row.flags = (op->src_place == own ? WIRE_ROW_CLIENT : 0u) |
		      (t->cls == CKPT_CONST ? WIRE_ROW_CONST : 0u) |
		      (t->cls == CKPT_DERIVED ? WIRE_ROW_DERIVED : 0u) |
		      (turns_has(x->turns, src->tensor) ? WIRE_ROW_TURNS : 0u) |
		      (t->cls == CKPT_VOLATILE || t->flags & TENSOR_BLOB ? WIRE_ROW_VALUE : 0u);
	b.row.src = (op->src_place == own ? 0 : (uint64_t)op->src_place << 48) | src->off;
	b.row.dst = dst->off;
	strides_make(src, b.elem, b.src_stride);
	strides_make(dst, b.elem, b.dst_stride);
	if (op->only)
		some_put(x, &b);
	else
		box_walk(x, &b, 0);
}

static void plan_put(struct rows *x, const struct plan *p, uint32_t own)
{
	x->seen = 0;
	for (uint64_t i = 0; i < p->nop; i++) {
		uint64_t before = x->own;

		op_put(x, p, &p->op[i], own);
		if (x->own - before <= x->most_rows)
			continue;
		x->most_rows = x->own - before;
		x->most = p->src->piece[p->op[i].src_piece].tensor;
	}
}

static int too_many(const struct rows *x, const struct plan *p, struct ckpt_err *err)
{
	char name[TABLE_KEY_BYTES + 32];

	return ckpt_error(
		err, -E2BIG,
		"%s lies in memory of many short strides (%" PRIu64
		" stretches; all tensors of this rank have %" PRIu64
		", and %u are the maximum): use memory from ckpt_alloc for it, or a layout "
		"in which neighbours of the tensor are neighbours in memory",
		table_tensor_print(&p->src->tensor[x->most], name, sizeof name), x->most_rows,
		x->own, ROWS_OWN_MAX);
}

int rows_make(const struct plan *p, uint32_t own, const struct turns *turns, struct wire_row **ret,
	      uint32_t *ret_n, struct ckpt_err *err)
{
	struct rows x = { .turns = turns, .keep_below = UINT64_MAX };

	plan_put(&x, p, own);
	*ret = NULL;
	*ret_n = 0;
	if (x.own > ROWS_OWN_MAX)
		return too_many(&x, p, err);
	if (x.seen + x.own == 0)
		return 0;
	if (x.seen > WIRE_ROWS_MAX)
		x.keep_below =
			(uint64_t)((double)(WIRE_ROWS_MAX - ROWS_SPARE) / (double)x.seen * 0x1p64);
	x.max = (uint32_t)(MIN(x.seen, (uint64_t)WIRE_ROWS_MAX) + x.own);
	x.row = calloc(x.max, sizeof *x.row);
	if (!x.row)
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	plan_put(&x, p, own);
	*ret = x.row;
	*ret_n = x.n;
	return 0;
}
