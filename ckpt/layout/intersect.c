/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intersect.c - what two index lists have in common: as stretches (indices_next, for copying
 * bytes) and as a list (indices_intersect, for planning).
 *
 * Two progressions may miss each other for ever (the even and the odd numbers). Nothing here walks
 * along such a pair: the next meeting is computed as Euclid would.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include "ckpt/layout/run_builder.h"

#define NEVER UINT64_MAX
#define MISSES_MAX 4	 /* plain jumps in a row before computing the next meeting */
#define PATTERN_MAX 1024 /* stretches of one common period, at most, to find its shape */

typedef unsigned __int128 u128;

/*
 * The least t with low <= a*t mod m <= high, for 0 <= low <= high < m; NEVER if there is none.
 * Where the first lap over m holds no multiple of a in the window, the lap y that does is the same
 * question about m*y mod a. m at least halves every second level, so it is at most 128 deep.
 */
static uint64_t first_multiple(uint64_t a, uint64_t m, uint64_t low, uint64_t high)
{
	if (low == 0)
		return 0;
	a %= m;
	if (a == 0)
		return NEVER;
	if (a > m - a)
		return first_multiple(m - a, m, m - high, m - low);
	uint64_t t = div_up(low, a), lap;

	if ((u128)t * a <= high)
		return t;
	lap = first_multiple(m, a, a - high % a, a - low % a);
	if (lap == NEVER)
		return NEVER;
	return (uint64_t)(((u128)m * lap + low + a - 1) / a);
}

/*
 * The first repetition of x from number i on that has an index in common with the lattice of y
 * (y repeated without end both ways); NEVER if none has.
 */
static uint64_t next_meeting(const struct run *x, uint64_t i, const struct run *y)
{
	uint64_t m = y->stride, window = x->len + y->len - 2; /* differences that meet, less one */
	uint64_t last = x->start + i * x->stride + x->len - 1;
	uint64_t b = (last % m + m - y->start % m) % m; /* it meets if this is 0..window */

	if (b <= window)
		return i;
	uint64_t t = first_multiple(x->stride, m, m - b, m - b + window);

	return t == NEVER || t > NEVER - 1 - i ? NEVER : i + t;
}

/* One side of a cursor: its current run is repetition *i of x->run[*rec]. */
struct side {
	const struct indices *x;
	uint32_t *rec;
	uint64_t *i, *base;
};

static const struct run *side_run(const struct side *s)
{
	return &s->x->run[*s->rec];
}

static void side_leave_record(struct side *s)
{
	*s->base += run_total(side_run(s));
	++*s->rec;
	*s->i = 0;
}

/* To the first repetition that ends above the index, or to the next record when none does. */
static void side_seek(struct side *s, uint64_t index)
{
	const struct run *r = side_run(s);

	if (index >= run_end(r)) {
		side_leave_record(s);
		return;
	}
	uint64_t i = index < r->start ? 0 : (index - r->start) / r->stride;

	if (index >= r->start + i * r->stride + r->len)
		i++;
	*s->i = MAX(*s->i, i);
}

/*
 * The current run of x lies before that of y. Go on to the next one that meets the present record
 * of y; if there is none, leave the record that ends first.
 */
static void side_meet(struct side *x, struct side *y)
{
	const struct run *r = side_run(x), *o = side_run(y);

	side_seek(x, o->start + *y->i * o->stride);
	if (*x->rec == x->x->n || side_run(x) != r)
		return;
	uint64_t i = next_meeting(r, *x->i, o);

	if (i < r->count && r->start + i * r->stride < run_end(o))
		*x->i = i;
	else if (run_end(r) <= run_end(o))
		side_leave_record(x);
	else
		side_leave_record(y);
}

bool indices_next(const struct indices *x, const struct indices *y, struct indices_cursor *c,
		  struct stretch *ret)
{
	struct side sx = { x, &c->x_run, &c->x_i, &c->x_base };
	struct side sy = { y, &c->y_run, &c->y_i, &c->y_base };

	for (uint32_t misses = 0; c->x_run < x->n && c->y_run < y->n; misses++) {
		const struct run *p = side_run(&sx), *q = side_run(&sy);
		uint64_t xs = p->start + c->x_i * p->stride, xe = xs + p->len;
		uint64_t ys = q->start + c->y_i * q->stride, ye = ys + q->len;
		uint64_t from = MAX(xs, ys), to = MIN(xe, ye);

		from = MAX(from, c->at);
		if (from < to) {
			*ret = (struct stretch){ .index = from,
						 .x_pos = c->x_base + c->x_i * p->len + (from - xs),
						 .y_pos = c->y_base + c->y_i * q->len + (from - ys),
						 .len = to - from };
			c->at = to;
			return true;
		}
		if (xe <= c->at || ye <= c->at || misses < MISSES_MAX) {
			if (xe <= from)
				side_seek(&sx, from);
			else
				side_seek(&sy, from);
		} else if (xe <= ys) {
			side_meet(&sx, &sy);
		} else {
			side_meet(&sy, &sx);
		}
	}
	return false;
}

bool indices_meet(const struct indices *x, const struct indices *y, uint64_t *ret_first)
{
	struct indices_cursor at = { 0 };
	struct stretch s;

	if (indices_apart(x, y) || !indices_next(x, y, &at, &s))
		return false;
	*ret_first = s.index;
	return true;
}

static struct indices_common common_range(const struct indices *x, uint64_t lo, uint64_t hi)
{
	uint64_t from = indices_below(x, lo), to = indices_below(x, hi);

	if (from == to)
		return (struct indices_common){ 0 };
	return (struct indices_common){ to - from, indices_at(x, from), indices_at(x, to - 1) };
}

struct indices_common indices_common(const struct indices *x, const struct indices *y)
{
	struct indices_common c = { 0 };
	struct indices_cursor at = { 0 };
	struct stretch s;

	if (indices_apart(x, y))
		return c;
	if (indices_is_range(y))
		return common_range(x, indices_lo(y), indices_hi(y));
	if (indices_is_range(x))
		return common_range(y, indices_lo(x), indices_hi(x));
	if (indices_equal(x, y))
		return (struct indices_common){ x->total, indices_lo(x), indices_hi(x) - 1 };
	while (indices_next(x, y, &at, &s)) {
		if (!c.n)
			c.first = s.index;
		c.last = s.index + s.len - 1;
		c.n += s.len;
	}
	return c;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b > 0) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static void run_skip(struct run *r, uint64_t n)
{
	n = MIN(n, r->count);
	r->start += n * r->stride;
	r->count -= n;
}

/*
 * Two progressions repeat what they have in common every lcm of their strides. Where one such
 * period is one record and so is its repetition, add it as often as it fits and take it off both.
 * Leaves them as they are where that cannot be.
 */
static int intersect_periods(struct run *x, struct run *y, struct run_builder *b)
{
	uint64_t g = gcd(x->stride, y->stride), x_step = y->stride / g, y_step = x->stride / g;
	uint64_t period, n = 0, times;
	struct indices xl = { 1, run_total(x), x }, yl = { 1, run_total(y), y };
	struct indices_cursor c = { 0 };
	struct stretch first = { 0 }, last = { 0 }, s;
	struct run shape = { 0 };

	if (x_step >= x->count || y_step >= y->count || ckpt_mul(x->stride, x_step, &period) < 0)
		return 0;
	while (indices_next(&xl, &yl, &c, &s) && (n == 0 || s.index - first.index < period)) {
		struct run r = run_one(s.index, s.len);

		if (n == 0)
			first = s, shape = r;
		else if (n == PATTERN_MAX || !run_join(&shape, &r))
			return 0;
		last = s;
		n++;
	}
	if (n == 0 || (n > 1 && shape.stride * n != period))
		return 0;
	times = 1 + MIN((x->count - 1 - last.x_pos / x->len) / x_step,
			(y->count - 1 - last.y_pos / y->len) / y_step);
	if (times == 1)
		return 0;
	shape.count *= times;
	shape.stride = n == 1 ? period : shape.stride;
	run_skip(x, first.x_pos / x->len + times * x_step);
	run_skip(y, first.y_pos / y->len + times * y_step);
	return run_builder_add(b, shape);
}

static int intersect_range(const struct run *x, uint64_t start, uint64_t stop,
			   struct run_builder *b)
{
	return run_builder_slice(b, x, run_below(x, start), run_below(x, stop));
}

/* Run by run of y, each of which covers a repetition of x and more. */
static int intersect_long(const struct run *x, const struct run *y, struct run_builder *b)
{
	uint64_t i = x->start < y->start ? 0 : (x->start - y->start) / y->stride;
	uint64_t end = run_end(x);
	int e = 0;

	for (; i < y->count && e == 0 && y->start + i * y->stride < end; i++)
		e = intersect_range(x, y->start + i * y->stride, y->start + i * y->stride + y->len,
				    b);
	return e;
}

static int intersect_records(struct run x, struct run y, struct run_builder *b)
{
	struct indices_cursor c = { 0 };
	struct stretch s;
	int e = 0;

	if (y.count == 1)
		return intersect_range(&x, y.start, run_end(&y), b);
	if (x.count == 1)
		return intersect_range(&y, x.start, run_end(&x), b);
	e = intersect_periods(&x, &y, b);
	if (e < 0 || x.count == 0 || y.count == 0)
		return e;
	if (y.len >= x.stride)
		return intersect_long(&x, &y, b);
	if (x.len >= y.stride)
		return intersect_long(&y, &x, b);

	struct indices xl = { 1, run_total(&x), &x }, yl = { 1, run_total(&y), &y };

	while (e == 0 && indices_next(&xl, &yl, &c, &s))
		e = run_builder_add(b, run_one(s.index, s.len));
	return e;
}

int indices_intersect(const struct indices *x, const struct indices *y, struct arena *a,
		      struct indices *ret)
{
	cleanup_run_builder struct run_builder b;
	int e = 0;

	run_builder_init(&b);
	for (uint32_t i = 0, j = 0; i < x->n && j < y->n && e == 0;) {
		uint64_t x_end = run_end(&x->run[i]), y_end = run_end(&y->run[j]);

		if (x->run[i].start < y_end && y->run[j].start < x_end)
			e = intersect_records(x->run[i], y->run[j], &b);
		i += x_end <= y_end;
		j += y_end <= x_end;
	}
	return e < 0 ? e : run_builder_finish(&b, a, ret);
}
