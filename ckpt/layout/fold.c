/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fold.c - two dimensions as one and one as two, row-major: what a shape is changed by. Called by
 * whoever shows a piece in another shape. Invariant: every index of the one side is an index of the
 * other, once, and what is consecutive stays so.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include "ckpt/layout/run_builder.h"

/* --- two as one --- */

/* Runs that may touch the one before them. last: not in b yet; its count is 0 before the first. */
struct joiner {
	struct run_builder *b;
	struct run last;
};

static int joiner_flush(struct joiner *j, uint64_t count)
{
	struct run r = j->last;

	r.count = count;
	return count ? run_builder_add(j->b, r) : 0;
}

static int joiner_add(struct joiner *j, struct run r)
{
	int e;

	if (!j->last.count || run_end(&j->last) < r.start) {
		e = joiner_flush(j, j->last.count);
		j->last = r;
		return e;
	}
	e = joiner_flush(j, j->last.count - 1);
	j->last = run_one(run_end(&j->last) - j->last.len, j->last.len + r.len);
	if (e || r.count == 1)
		return e;
	e = joiner_flush(j, 1);
	j->last = r;
	j->last.start += r.stride;
	j->last.count--;
	return e;
}

/* For every index of outer all of inner. */
static int merge_each(const struct indices *outer, const struct indices *inner, uint64_t extent,
		      struct run_builder *b)
{
	struct indices_cursor at = { 0 };
	struct joiner j = { .b = b };
	struct stretch s;
	int e = 0;

	while (!e && indices_next(outer, outer, &at, &s))
		for (uint64_t i = 0; i < s.len && !e; i++)
			for (uint32_t k = 0; k < inner->n && !e; k++) {
				struct run r = inner->run[k];

				r.start += (s.index + i) * extent;
				e = joiner_add(&j, r);
			}
	return e ? e : joiner_flush(&j, j.last.count);
}

/* inner is one stretch. */
static int merge_stretch(const struct indices *outer, const struct run *inner, uint64_t extent,
			 struct run_builder *b)
{
	int e = 0;

	for (uint32_t i = 0; i < outer->n && !e; i++) {
		struct run r = outer->run[i];

		if (inner->len == extent) {
			e = run_builder_add(b, (struct run){ r.start * extent, r.len * extent,
							     r.stride * extent, r.count });
			continue;
		}
		if (r.len == 1) {
			e = run_builder_add(b,
					    (struct run){ r.start * extent + inner->start,
							  inner->len, r.stride * extent, r.count });
			continue;
		}
		for (uint64_t k = 0; k < r.count && !e; k++)
			e = run_builder_add(
				b, (struct run){ (r.start + k * r.stride) * extent + inner->start,
						 inner->len, extent, r.len });
	}
	return e;
}

int indices_merge(const struct indices *outer, const struct indices *inner, uint64_t extent,
		  struct arena *a, struct indices *ret)
{
	cleanup_run_builder struct run_builder b;
	int e;

	run_builder_init(&b);
	if (inner->n == 1 && inner->run[0].count == 1)
		e = merge_stretch(outer, &inner->run[0], extent, &b);
	else
		e = merge_each(outer, inner, extent, &b);
	return e ? e : run_builder_finish(&b, a, ret);
}

/* --- one as two --- */

struct folding {
	uint64_t row;
	uint32_t n, cap, max;
	struct indices_rows *part;
	struct arena *a;
};

/*
 * Indices in cells of `width`, of each of which `n` from `skip` on are in the list. A row is a
 * whole number of cells.
 */
struct cells {
	uint64_t width, n, skip;
};

static int fold_list(struct folding *f, struct run r, struct indices *ret)
{
	if (r.stride == r.len || r.count == 1)
		r = run_one(r.start, r.len * r.count);
	*ret = (struct indices){ 1, run_total(&r), arena_dup(f->a, &r, sizeof r) };
	return ret->run ? 0 : -ENOMEM;
}

/* Of the rows `outer` the cells [from, from + n). first, step: positions. */
static int fold_add(struct folding *f, struct run outer, const struct cells *c, uint64_t from,
		    uint64_t n, uint64_t first, uint64_t step)
{
	struct indices_rows *x;
	int e;

	if (f->n == f->max)
		return -E2BIG;
	if (f->n == f->cap) {
		uint32_t cap = MIN(f->cap ? 4 * f->cap : 4, f->max);

		x = reallocarray(f->part, cap, sizeof *x);
		if (!x)
			return -ENOMEM;
		f->part = x;
		f->cap = cap;
	}
	x = &f->part[f->n++];
	*x = (struct indices_rows){ .first = first, .step = step };
	e = fold_list(f, outer, &x->outer);
	if (!e)
		e = fold_list(f, (struct run){ from * c->width + c->skip, c->n, c->width, n },
			      &x->inner);
	return e;
}

/* Whole rows: `rows` of each run, the runs `stride` rows apart. */
static int fold_middle(struct folding *f, struct run rows, const struct cells *c, uint64_t first,
		       uint64_t run_step)
{
	uint64_t cells = f->row / c->width, step = cells * c->n;
	int e = 0;

	if (rows.count == 1 || run_step == rows.len * step)
		return fold_add(f, rows, c, 0, cells, first, step);
	/* Between the runs positions are left out: by rows, or by runs, whatever are fewer. */
	for (uint64_t i = 0; rows.len <= rows.count && i < rows.len && !e; i++)
		e = fold_add(f, (struct run){ rows.start + i, 1, rows.stride, rows.count }, c, 0,
			     cells, first + i * step, run_step);
	for (uint64_t k = 0; rows.len > rows.count && k < rows.count && !e; k++)
		e = fold_add(f, run_one(rows.start + k * rows.stride, rows.len), c, 0, cells,
			     first + k * run_step, step);
	return e;
}

/* Runs of cells that all begin in the same column. first: the position of the first. */
static int fold_runs(struct folding *f, const struct run *r, const struct cells *c, uint64_t first)
{
	uint64_t row = f->row / c->width, column = r->start % row;
	uint64_t head = column ? MIN(row - column, r->len) : 0, middle = (r->len - head) / row;
	uint64_t tail = r->len - head - middle * row, step = r->len * c->n;
	struct run at = { r->start / row, 1, r->stride / row, r->count };
	int e = 0;

	if (head) {
		e = fold_add(f, at, c, column, head, first, step);
		at.start++;
	}
	if (!e && middle) {
		at.len = middle;
		e = fold_middle(f, at, c, first + head * c->n, step);
		at.start += middle;
		at.len = 1;
	}
	if (!e && tail)
		e = fold_add(f, at, c, 0, tail, first + (head + middle * row) * c->n, step);
	return e;
}

static int fold_record(struct folding *f, const struct run *r, uint64_t first)
{
	const struct cells one = { 1, 1, 0 };
	int e = 0;

	if (r->count == 1 || r->stride % f->row == 0)
		return fold_runs(f, r, &one, first);
	if (f->row % r->stride == 0 && r->start % r->stride + r->len <= r->stride) {
		struct run cells = run_one(r->start / r->stride, r->count);

		return fold_runs(f, &cells,
				 &(struct cells){ r->stride, r->len, r->start % r->stride }, first);
	}
	for (uint64_t k = 0; k < r->count && !e; k++) {
		struct run single = run_one(r->start + k * r->stride, r->len);

		e = fold_runs(f, &single, &one, first + k * r->len);
	}
	return e;
}

int indices_fold(const struct indices *x, uint64_t row, uint32_t max, struct arena *a,
		 const struct indices_rows **ret, uint32_t *ret_n)
{
	struct folding f = { .row = row, .max = max, .a = a };
	uint64_t first = 0;
	int e = 0;

	for (uint32_t i = 0; i < x->n && !e; i++) {
		e = fold_record(&f, &x->run[i], first);
		first += run_total(&x->run[i]);
	}
	if (!e) {
		*ret = arena_dup(a, f.part, f.n * sizeof *f.part);
		*ret_n = f.n;
		e = *ret || !f.n ? 0 : -ENOMEM;
	}
	free(f.part);
	return e;
}
