/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_rows.c - the rows of one operation, for the mover. Invariant: every element
 * that the operation moves is in exactly one row. Inner dimensions that both pieces hold whole and
 * dense are one stretch of bytes, so a row is as long as it can be.
 */
#include "ckpt/base/util.h"
#include "ckpt/plan/plan.h"

static bool is_whole(const struct plan_cursor *c, uint32_t d)
{
	return c->op->whole >> d & 1;
}

static bool dim_next(struct plan_cursor *c, uint32_t d)
{
	const struct indices *x = &c->src->set.dim[d], *y = &c->dst->set.dim[d], *only;
	struct stretch *s = &c->dim[d].cur;

	if (!c->op->only)
		return indices_next(x, y, &c->dim[d].at, s);
	only = &c->op->only->dim[d];
	if (!indices_next(only, only, &c->dim[d].at, s))
		return false;
	s->x_pos = indices_below(x, s->index);
	s->y_pos = indices_below(y, s->index);
	return true;
}

/* Back to the first stretch. An operation has elements, so there is one. */
static void dim_first(struct plan_cursor *c, uint32_t d)
{
	c->dim[d].in = 0;
	if (c->one >> d & 1)
		return;
	c->dim[d].at = (struct indices_cursor){ 0 };
	(void)dim_next(c, d);
}

static void dim_init(struct plan_cursor *c, uint32_t d)
{
	struct indices_cursor first;
	struct stretch s;

	if (is_whole(c, d)) {
		/* Not by indices: the same positions in both, whatever gaps the indices have. */
		c->dim[d].cur = (struct stretch){ .len = c->src->set.dim[d].total };
		c->one |= 1u << d;
		c->dim[d].in = 0;
		return;
	}
	dim_first(c, d);
	first = c->dim[d].at;
	s = c->dim[d].cur;
	if (!dim_next(c, d))
		c->one |= 1u << d;
	c->dim[d].at = first;
	c->dim[d].cur = s;
}

/* Offsets of everything inside dimension d, from the positions of the dimensions before. */
static void place_from(struct plan_cursor *c, uint32_t d)
{
	for (struct plan_dim *x = &c->dim[d], *end = &c->dim[c->nouter]; x < end; x++) {
		x[1].src_at = x->src_at + (x->cur.x_pos + x->in) * x->src_stride;
		x[1].dst_at = x->dst_at + (x->cur.y_pos + x->in) * x->dst_stride;
	}
}

/* The next index of dimension n - 1, carrying outwards; all dimensions from n on start again. */
static void outer_next(struct plan_cursor *c, uint32_t n)
{
	for (uint32_t d = n; d-- > 0;) {
		bool more = ++c->dim[d].in < c->dim[d].cur.len;

		if (!more && !(c->one >> d & 1) && dim_next(c, d)) {
			c->dim[d].in = 0;
			more = true;
		}
		if (more) {
			for (uint32_t i = d + 1; i < c->nouter + c->has_row; i++)
				dim_first(c, i);
			place_from(c, d);
			return;
		}
	}
	c->done = true;
}

static void strides_fill(struct plan_cursor *c)
{
	const struct table_piece *src = c->src, *dst = c->dst;
	uint64_t src_step = c->src_elem, dst_step = c->dst_elem;

	for (uint32_t d = src->set.ndim; d-- > 0;) {
		c->dim[d].src_stride =
			src->stride ? (uint64_t)src->stride[d] * c->src_elem : src_step;
		c->dim[d].dst_stride =
			dst->stride ? (uint64_t)dst->stride[d] * c->dst_elem : dst_step;
		src_step *= src->set.dim[d].total;
		dst_step *= dst->set.dim[d].total;
	}
}

/* Do the indices of dimension d follow upon each other in both places, as all inside them do? */
static bool is_dense(const struct plan_cursor *c, uint32_t d)
{
	return c->dim[d].src_stride == c->unit * c->src_elem &&
	       c->dim[d].dst_stride == c->unit * c->dst_elem;
}

void plan_rows(const struct plan *p, const struct plan_op *op, struct plan_cursor *c)
{
	const struct table_piece *src = &p->src->piece[op->src_piece];
	const struct piece_bytes bytes = table_piece_bytes(p->src, src);
	uint32_t n = src->set.ndim;

	c->op = op;
	c->src = src;
	c->dst = &p->dst->piece[op->dst_piece];
	c->src_off = bytes.off;
	c->src_elem = bytes.elem;
	c->dst_elem = p->src->tensor[src->tensor].elem_bytes;
	c->unit = 1;
	c->elem = 0;
	c->one = 0;
	c->has_row = c->done = false;
	strides_fill(c);
	for (; n > 0 && is_whole(c, n - 1); n--) {
		uint64_t total = src->set.dim[n - 1].total;

		/* The stride of a single index is never stepped. */
		if (total > 1 && !is_dense(c, n - 1))
			break;
		c->unit *= total;
	}
	c->nouter = n;
	if (n > 0 && is_dense(c, n - 1)) {
		c->has_row = true;
	} else if (n > 0 && c->unit == 1) {
		c->has_row = true;
		c->elem = c->dst_elem;
	}
	c->nouter -= c->has_row;
	for (uint32_t d = 0; d < n; d++)
		dim_init(c, d);
	c->dim[0].src_at = c->src_off;
	c->dim[0].dst_at = c->dst->off;
	place_from(c, 0);
}

/* Each index of a dimension lies behind all that one before it holds: row-major, or a box in what
 * is. */
static bool is_ascending(const struct table_piece *p)
{
	int64_t step = 1;

	if (!p->stride)
		return true;
	for (uint32_t d = p->set.ndim; d-- > 0;)
		if (p->stride[d] < step ||
		    __builtin_mul_overflow(p->stride[d], (int64_t)p->set.dim[d].total, &step))
			return false;
	return true;
}

bool plan_rows_ascend(const struct plan *p, const struct plan_op *op)
{
	return is_ascending(&p->src->piece[op->src_piece]);
}

/* To the first index of dimension d whose source position is at least pos. *ret_exact: it is
 * pos. */
static bool dim_seek(struct plan_cursor *c, uint32_t d, uint64_t pos, bool *ret_exact)
{
	const struct indices *x = &c->src->set.dim[d];
	struct stretch *s = &c->dim[d].cur;

	if (pos >= x->total)
		return false;
	if (c->one >> d & 1) {
		if (pos >= s->x_pos + s->len)
			return false;
		*ret_exact = pos >= s->x_pos;
		c->dim[d].in = *ret_exact ? pos - s->x_pos : 0;
		return true;
	}
	c->dim[d].at = (struct indices_cursor){ .at = indices_at(x, pos) };
	if (!dim_next(c, d))
		return false;
	*ret_exact = s->x_pos == pos;
	return true;
}

static void cursor_seek(struct plan_cursor *c, uint64_t src_off)
{
	uint64_t rest = src_off - c->src_off;
	uint32_t n = c->nouter + c->has_row;

	for (uint32_t d = 0; d < n; rest %= c->dim[d++].src_stride) {
		bool exact;

		if (!dim_seek(c, d, rest / c->dim[d].src_stride, &exact)) {
			dim_first(c, d);
			outer_next(c, d);
			place_from(c, 0);
			return;
		}
		if (!exact)
			break;
	}
	place_from(c, 0);
	c->done = n == 0 && src_off >= c->op->src_hi;
}

void plan_rows_from(const struct plan *p, const struct plan_op *op, uint64_t src_off,
		    struct plan_cursor *c)
{
	struct plan_cursor next;
	struct plan_row r;

	plan_rows(p, op, c);
	if (src_off <= op->src_lo || !is_ascending(c->src))
		return;
	cursor_seek(c, src_off);
	if (!c->src->stride)
		return;
	/* It may lie in a gap behind a row. */
	for (next = *c; plan_row_next(&next, &r); *c = next)
		if (r.src_off + plan_row_src_bytes(&r) > src_off)
			return;
	c->done = true;
}

bool plan_row_next(struct plan_cursor *c, struct plan_row *row)
{
	const struct stretch *s = &c->dim[c->nouter].cur;
	uint32_t n = c->nouter;
	uint64_t elements = c->unit;

	if (c->done)
		return false;
	*row = (struct plan_row){ .src_off = c->dim[n].src_at, .dst_off = c->dim[n].dst_at };
	if (c->has_row) {
		row->src_off += s->x_pos * c->dim[n].src_stride;
		row->dst_off += s->y_pos * c->dim[n].dst_stride;
		elements *= s->len;
	}
	row->len = elements * c->dst_elem;
	if (c->elem || c->op->round) {
		row->elem = c->dst_elem;
		row->round = c->op->round;
		row->n = elements;
		row->src_stride = c->elem ? c->dim[n].src_stride : c->src_elem;
		row->dst_stride = c->elem ? c->dim[n].dst_stride : c->dst_elem;
	}
	if (!c->has_row || (c->one >> n & 1) || !dim_next(c, n))
		outer_next(c, n);
	return true;
}
