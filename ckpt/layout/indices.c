/* SPDX-License-Identifier: Apache-2.0 */
/*
 * indices.c - sorted lists of indices as progressions: ranges, slices, cuts, comparison, checking.
 * Called by layout.c, ownership.c and all code that has index sets. What comes out keeps the
 * invariants of struct indices; what comes from outside passes indices_check first.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include "ckpt/layout/run_builder.h"

int indices_range(uint64_t start, uint64_t stop, struct arena *a, struct indices *ret)
{
	*ret = (struct indices){ 0 };
	if (stop <= start)
		return 0;
	struct run r = run_one(start, stop - start);

	ret->run = arena_dup(a, &r, sizeof r);
	if (!ret->run)
		return -ENOMEM;
	ret->n = 1;
	ret->total = r.len;
	return 0;
}

/* A place in a list by position. It only moves forward, so that a walk costs the records once. */
struct walk {
	const struct indices *x;
	uint32_t i;    /* record */
	uint64_t base; /* positions before it */
};

/* Go to the record that has this position, which is below the total. */
static const struct run *walk_to(struct walk *w, uint64_t position)
{
	while (position - w->base >= run_total(&w->x->run[w->i]))
		w->base += run_total(&w->x->run[w->i++]);
	return &w->x->run[w->i];
}

static int walk_slice(struct walk *w, uint64_t from, uint64_t to, struct run_builder *b)
{
	while (from < to) {
		const struct run *r = walk_to(w, from);
		uint64_t stop = MIN(to - w->base, run_total(r));
		int e = run_builder_slice(b, r, from - w->base, stop);

		if (e < 0)
			return e;
		from = w->base + stop;
	}
	return 0;
}

int indices_slice(const struct indices *x, uint64_t from, uint64_t to, struct arena *a,
		  struct indices *ret)
{
	cleanup_run_builder struct run_builder b;
	struct walk w = { .x = x };
	int e;

	run_builder_init(&b);
	if (from == 0 && to >= x->total) {
		*ret = *x;
		return 0;
	}
	e = walk_slice(&w, from, MIN(to, x->total), &b);
	return e < 0 ? e : run_builder_finish(&b, a, ret);
}

/*
 * The positions first + j*piece + [0, len) for j < n. Inside one record all those that form one
 * progression of indices are taken at once: they lie in one repetition, or a piece is a whole
 * number of repetitions and each lies inside one.
 */
static int cut_pieces(struct walk *w, uint64_t first, uint64_t len, uint64_t piece, uint64_t n,
		      struct run_builder *b)
{
	int e = 0;

	for (uint64_t j = 0, m; j < n && e == 0; j += m) {
		uint64_t from = first + j * piece;
		const struct run *r = walk_to(w, from);
		uint64_t off = from - w->base, at = off % r->len;
		uint64_t start = r->start + off / r->len * r->stride + at;

		m = 1;
		if (at + len > r->len) {
			e = walk_slice(w, from, from + len, b);
		} else if (piece % r->len == 0) {
			m = MIN(n - j, (run_total(r) - off - len) / piece + 1);
			e = run_builder_add(
				b, (struct run){ start, len, piece / r->len * r->stride, m });
		} else {
			m = MIN(n - j, (r->len - at - len) / piece + 1);
			e = run_builder_add(b, (struct run){ start, len, piece, m });
		}
	}
	return e;
}

/*
 * Of rows of equal length, the last one shorter, the same columns; of the last one its columns
 * [last_from, last_to).
 */
struct rows {
	uint64_t len, n, rest; /* columns; whole rows; columns of the last one */
	uint64_t from, to, last_from, last_to;
};

static int cut_rows(const struct indices *x, const struct rows *o, struct arena *a,
		    struct indices *ret)
{
	cleanup_run_builder struct run_builder b;
	struct walk w = { .x = x };
	int e = 0;

	run_builder_init(&b);
	if (o->to - o->from == o->len) /* then the last row is whole too */
		return indices_slice(x, 0, x->total, a, ret);
	if (o->to > o->from)
		e = cut_pieces(&w, o->from, o->to - o->from, o->len, o->n, &b);
	if (e == 0)
		e = walk_slice(&w, o->n * o->len + o->last_from, o->n * o->len + o->last_to, &b);
	return e < 0 ? e : run_builder_finish(&b, a, ret);
}

static struct rows rows_of(const struct indices *x, uint32_t k, uint32_t r, uint32_t split_factor)
{
	assert(r < k && x->total <= INT64_MAX);
	struct rows o = { .len = div_up(x->total, MAX(split_factor, 1u)) };
	uint64_t chunk = div_up(o.len, k);

	o.n = x->total / o.len;
	o.rest = x->total % o.len;
	o.from = MIN(r * chunk, o.len);
	o.to = MIN((r + 1) * chunk, o.len);
	return o;
}

int indices_cut(const struct indices *x, uint32_t k, uint32_t r, uint32_t split_factor,
		struct arena *a, struct indices *ret)
{
	*ret = (struct indices){ 0 };
	if (x->total == 0)
		return 0;
	struct rows o = rows_of(x, k, r, split_factor);
	uint64_t chunk = div_up(o.rest, k);

	o.last_from = MIN(r * chunk, o.rest);
	o.last_to = MIN((r + 1) * chunk, o.rest);
	return cut_rows(x, &o, a, ret);
}

int indices_cut_columns(const struct indices *x, uint32_t k, uint32_t r, uint32_t split_factor,
			struct arena *a, struct indices *ret)
{
	*ret = (struct indices){ 0 };
	if (x->total == 0)
		return 0;
	struct rows o = rows_of(x, k, r, split_factor);

	o.last_from = MIN(o.from, o.rest);
	o.last_to = MIN(o.to, o.rest);
	return cut_rows(x, &o, a, ret);
}

bool indices_equal(const struct indices *x, const struct indices *y)
{
	uint32_t i = 0, j = 0;
	uint64_t x_i = 0, y_i = 0; /* repetitions done */

	if (x->total != y->total)
		return false;
	while (i < x->n && j < y->n) { /* runs are maximal: equal sets have equal runs */
		const struct run *p = &x->run[i], *q = &y->run[j];
		uint64_t left = p->count - x_i, right = q->count - y_i, same;

		if (p->len != q->len || p->start + x_i * p->stride != q->start + y_i * q->stride)
			return false;
		same = p->stride == q->stride ? MIN(left, right) : 1;
		if ((x_i += same) == p->count)
			i++, x_i = 0;
		if ((y_i += same) == q->count)
			j++, y_i = 0;
	}
	return i == x->n && j == y->n;
}

/* Stretches of x end where x has gaps, so those of the rest do not touch. */
int indices_minus(const struct indices *x, const struct indices *y, struct arena *a,
		  struct indices *ret)
{
	cleanup_run_builder struct run_builder b;
	struct indices_cursor xc = { 0 }, yc = { 0 };
	struct stretch s, t = { 0 };
	bool more = indices_next(y, y, &yc, &t);
	int e = 0;

	run_builder_init(&b);
	while (e == 0 && indices_next(x, x, &xc, &s)) {
		uint64_t at = s.index, end = s.index + s.len;

		for (; e == 0 && more && t.index < end; more = indices_next(y, y, &yc, &t)) {
			if (t.index > at)
				e = run_builder_add(&b, run_one(at, t.index - at));
			at = t.index + t.len;
		}
		if (e == 0 && at < end)
			e = run_builder_add(&b, run_one(at, end - at));
	}
	return e < 0 ? e : run_builder_finish(&b, a, ret);
}

int indices_move(const struct indices *x, uint64_t by, struct arena *a, struct indices *ret)
{
	struct run *run = by ? arena_dup(a, x->run, x->n * sizeof *run) : NULL;

	*ret = *x;
	if (!by)
		return 0;
	if (!run)
		return -ENOMEM;
	for (uint32_t i = 0; i < x->n; i++)
		run[i].start += by;
	ret->run = run;
	return 0;
}

/* *from: the lowest index that the record may have, and then the lowest of the next one. */
static int check_run(const struct run *r, uint32_t i, uint64_t extent, uint64_t *from,
		     struct ckpt_err *err)
{
	uint64_t last, end;

	if (r->len == 0 || r->count == 0)
		return ckpt_error(err, -EINVAL, "index list, record %u: it is empty", i);
	if (r->count == 1 ? r->stride != r->len : r->stride <= r->len)
		return ckpt_error(err, -EINVAL,
				  "index list, record %u: stride %llu does not go with length %llu "
				  "and count %llu",
				  i, (unsigned long long)r->stride, (unsigned long long)r->len,
				  (unsigned long long)r->count);
	if (r->start < *from)
		return ckpt_error(err, -EINVAL,
				  "index list, record %u: it starts at %llu, in or next to the "
				  "record before it",
				  i, (unsigned long long)r->start);
	if (ckpt_mul(r->count - 1, r->stride, &last) < 0 || ckpt_add(r->start, last, &last) < 0 ||
	    ckpt_add(last, r->len, &end) < 0 || end > extent)
		return ckpt_error(err, -EINVAL,
				  "index list, record %u: it ends above the extent %llu", i,
				  (unsigned long long)extent);
	*from = end + 1;
	return 0;
}

int indices_check(const struct indices *x, uint64_t extent, struct ckpt_err *err)
{
	uint64_t total = 0, from = 0;

	if (extent > INT64_MAX)
		return ckpt_error(err, -EINVAL, "index list: the extent %llu is above 2^63-1",
				  (unsigned long long)extent);
	if (x->n > LAYOUT_RUNS_MAX)
		return ckpt_error(err, -EINVAL, "index list: %u records, at most %u are allowed",
				  x->n, LAYOUT_RUNS_MAX);
	for (uint32_t i = 0; i < x->n; i++) {
		int e = check_run(&x->run[i], i, extent, &from, err);

		if (e < 0)
			return e;
		total += run_total(&x->run[i]); /* at most the extent, as records are disjoint */
	}
	if (total != x->total)
		return ckpt_error(err, -EINVAL,
				  "index list: it says that it has %llu indices, its records have "
				  "%llu",
				  (unsigned long long)x->total, (unsigned long long)total);
	return 0;
}
