/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_window.c - windows hold every byte of a table once, in order, whatever the tensors, the
 * index sets and the limit; compared with a walk over single elements.
 */
#include "ckpt/plan/window.h"
#include "tests/lib/row.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"

/* All of them, passed by. */
static uint64_t count_windows(const struct table *dst, uint64_t bytes_max)
{
	struct windows *w;
	uint64_t n = 0;

	assert_int_equal(windows_open(dst, bytes_max, &w, NULL), 0);
	for (struct window x; windows_next(w, &x, NULL) > 0; n++)
		window_free(&x);
	windows_close(w);
	return n;
}

static uint64_t rng;

static const struct {
	uint32_t dtype;
} kinds[] = { { CKPT_U8 }, { CKPT_BF16 }, { CKPT_F32 }, { CKPT_F64 }, { CKPT_C128 } };

static uint32_t tensor(struct table *t, uint32_t number, uint32_t dtype, uint32_t ndim,
		       const uint64_t *shape)
{
	struct table_tensor x = ROW(.component = "c", .of = "", .dtype = dtype, .rank = TABLE_NONE,
				    .layout = TABLE_NONE, .ndim = ndim, .shape = shape);
	struct ckpt_err err;
	char name[32];
	uint32_t id;

	snprintf(name, sizeof name, "t%u", number);
	x.name = name;
	if (table_add_tensor(t, &x, &id, &err) < 0)
		fail_msg("%s", err.msg);
	return id;
}

static void places(struct table *t, uint32_t n)
{
	struct table_place p = { .name = "place", .bytes = UINT64_C(1) << 50 };

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(table_add_place(t, &p, NULL, NULL), 0);
}

static void piece(struct table *t, uint32_t id, uint32_t place, uint64_t *end,
		  const struct indexset *set)
{
	struct table_piece p = { .tensor = id, .rank = place, .place = place, .set = *set };
	struct ckpt_err err;

	p.off = align_up(*end, 64);
	*end = p.off + set->numel * t->tensor[id].elem_bytes;
	if (table_add_piece(t, &p, &err) < 0)
		fail_msg("%s", err.msg);
}

/* A table of `n` random tensors in random shares of some places, some of them held twice. */
static void random_table(struct table *t, uint32_t n, uint32_t nplace)
{
	uint64_t end[8] = { 0 };
	cleanup_arena struct arena a = { 0 };

	places(t, nplace);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t ndim = (uint32_t)draw_below(&rng, 5),
			 cut = ndim ? (uint32_t)draw_below(&rng, ndim) : 0;
		uint64_t shape[4], start[4] = { 0 };
		uint32_t factor = (uint32_t)draw_below(&rng, 4), id;
		bool twice = draw_below(&rng, 3) == 0;

		for (uint32_t d = 0; d < ndim; d++)
			shape[d] = draw_below(&rng, 12) + (draw_below(&rng, 8) != 0);
		id = tensor(t, i, kinds[draw_below(&rng, ARRAY_LEN(kinds))].dtype, ndim, shape);
		for (uint32_t p = 0; p < nplace; p++) {
			struct indexset all, set;
			struct indices dim[4];

			assert_int_equal(indexset_box(ndim, start, shape, &a, &all), 0);
			set = all;
			if (ndim && !twice) {
				memcpy(dim, all.dim, ndim * sizeof *dim);
				assert_int_equal(indices_cut(&all.dim[cut], nplace, p, factor, &a,
							     &dim[cut]),
						 0);
				set.dim = dim;
				set.numel = 1;
				for (uint32_t d = 0; d < ndim; d++)
					set.numel *= dim[d].total;
			} else if (!twice && p) {
				continue;
			}
			piece(t, id, p, &end[p], &set);
		}
	}
	assert_int_equal(table_seal(t, NULL), 0);
}

/* The coordinates of the n-th element of a set. */
static void nth(const struct indexset *s, uint64_t n, uint64_t *ret)
{
	for (uint32_t d = s->ndim; d-- > 0; n /= s->dim[d].total)
		ret[d] = indices_at(&s->dim[d], n % s->dim[d].total);
}

static void cut_check(const struct table *t, const struct window *w, const struct window_cut *c,
		      uint64_t *done)
{
	const struct table_piece *p = &t->piece[c->piece];
	uint64_t elem = t->tensor[p->tensor].elem_bytes, first;
	bool found = false;

	assert_int_equal(c->place, p->place);
	assert_true(c->len > 0);
	assert_int_equal(c->len, c->set.numel * elem);
	assert_int_equal(c->dst_off, p->off + done[c->piece]);
	assert_true(c->buf_off + c->len <= w->bytes);
	assert_int_equal(c->buf_off % elem, 0);
	if (c->len >= 65536)
		assert_int_equal(c->buf_off % 4096, c->dst_off % 4096);
	first = done[c->piece] / elem;
	done[c->piece] += c->len;
	assert_true(done[c->piece] <= p->len);
	for (uint64_t i = 0; i<c->set.numel; i += c->set.numel> 5000 ? 977 : 1) {
		uint64_t x[4] = { 0 }, y[4] = { 0 };

		nth(&p->set, first + i, x);
		nth(&c->set, i, y);
		assert_memory_equal(x, y, sizeof x);
	}
	for (uint32_t i = 0; i < w->table.npiece && !found; i++)
		found = w->table.piece[i].off == c->buf_off && w->table.piece[i].len == c->len &&
			indexset_equal(&w->table.piece[i].set, &c->set);
	assert_true(found);
}

static int by_buf(const void *va, const void *vb)
{
	const struct table_piece *a = va, *b = vb;

	return (a->off > b->off) - (a->off < b->off);
}

static void window_check(const struct table *t, const struct window *w, uint64_t limit,
			 uint64_t *done)
{
	cleanup_free struct table_piece *sorted = calloc(w->ncut, sizeof *sorted);

	assert_true(w->ncut > 0 && w->bytes <= limit && w->bytes > 0);
	assert_true(w->table.sealed);
	assert_int_equal(w->table.nplace, 1);
	assert_int_equal(w->table.place[0].bytes, w->bytes);
	assert_int_equal(w->table.npiece, w->ncut);
	for (uint32_t i = 0; i < w->ncut; i++) {
		if (i)
			assert_true(w->cut[i - 1].place < w->cut[i].place ||
				    (w->cut[i - 1].place == w->cut[i].place &&
				     w->cut[i - 1].dst_off < w->cut[i].dst_off));
		cut_check(t, w, &w->cut[i], done);
	}
	memcpy(sorted, w->table.piece, w->ncut * sizeof *sorted);
	qsort(sorted, w->ncut, sizeof *sorted, by_buf);
	for (uint32_t i = 1; i < w->ncut; i++)
		assert_true(sorted[i - 1].off + sorted[i - 1].len <= sorted[i].off);
}

static void windows_equal(const struct window *a, const struct window *b)
{
	assert_int_equal(a->number, b->number);
	assert_int_equal(a->bytes, b->bytes);
	assert_int_equal(a->ncut, b->ncut);
	for (uint32_t i = 0; i < a->ncut; i++) {
		assert_int_equal(a->cut[i].piece, b->cut[i].piece);
		assert_int_equal(a->cut[i].dst_off, b->cut[i].dst_off);
		assert_int_equal(a->cut[i].buf_off, b->cut[i].buf_off);
		assert_int_equal(a->cut[i].len, b->cut[i].len);
		assert_true(indexset_equal(&a->cut[i].set, &b->cut[i].set));
	}
}

/* All windows of t, each checked; returns how many. */
static uint64_t walk(const struct table *t, uint64_t limit)
{
	cleanup_free uint64_t *done = calloc((size_t)t->npiece + 1, sizeof *done);
	struct windows *ws, *again;
	struct ckpt_err err = { 0 };
	struct window w, x;
	uint64_t n = 0;
	int e;

	assert_int_equal(windows_open(t, limit, &ws, &err), 0);
	while ((e = windows_next(ws, &w, &err)) > 0) {
		assert_int_equal(w.number, n++);
		window_check(t, &w, limit, done);
		if (n % 16 == 1) {
			assert_int_equal(windows_open(t, limit, &again, &err), 0);
			assert_int_equal(windows_skip(again, w.number, &err), 0);
			assert_int_equal(windows_next(again, &x, &err), 1);
			windows_equal(&w, &x);
			window_free(&x);
			windows_close(again);
		}
		window_free(&w);
	}
	if (e < 0)
		fail_msg("%s", err.msg);
	windows_close(ws);
	for (uint32_t i = 0; i < t->npiece; i++)
		assert_int_equal(done[i], t->piece[i].len);
	return n;
}

TEST(test_windows_partition_every_piece)
{
	rng = draw_seed(__func__);
	for (uint32_t round = 0; round < 60; round++) {
		cleanup_table struct table t = { 0 };
		uint32_t nplace = 1 + (uint32_t)draw_below(&rng, 5);

		random_table(&t, 1 + (uint32_t)draw_below(&rng, 12), nplace);
		walk(&t, 16 * nplace);
		walk(&t, 16 * nplace + draw_below(&rng, 500));
		walk(&t, 1 + (UINT64_C(1) << 40));
		walk(&t, 4000 + draw_below(&rng, 4000));
	}
}

/* One tensor of this shape, cut along dimension `dim` for n places. */
static void one(struct table *t, uint32_t dtype, uint32_t ndim, const uint64_t *shape, uint32_t dim,
		uint32_t n, uint32_t factor)
{
	cleanup_free uint64_t *end = calloc(n, sizeof *end);
	uint64_t start[4] = { 0 };
	cleanup_arena struct arena a = { 0 };

	places(t, n);
	tensor(t, 0, dtype, ndim, shape);
	for (uint32_t p = 0; p < n; p++) {
		struct indexset all, set;
		struct indices d[4];

		assert_int_equal(indexset_box(ndim, start, shape, &a, &all), 0);
		memcpy(d, all.dim, ndim * sizeof *d);
		assert_int_equal(indices_cut(&all.dim[dim], n, p, factor, &a, &d[dim]), 0);
		set = (struct indexset){ .ndim = ndim, .numel = 1, .dim = d };
		for (uint32_t i = 0; i < ndim; i++)
			set.numel *= d[i].total;
		piece(t, 0, p, &end[p], &set);
	}
	assert_int_equal(table_seal(t, NULL), 0);
}

TEST(test_pieces_larger_than_a_window_in_any_dimension)
{
	static const uint64_t shapes[][3] = ROW({ 100000, 3, 2 }, { 2, 100000, 3 },
						{ 3, 2, 100000 }, { 60, 70, 80 }, { 1, 1, 500000 });

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (uint32_t dim = 0; dim < 3; dim++)
			for (uint32_t factor = 1; factor < 6; factor += 4) {
				cleanup_table struct table t = { 0 };
				uint64_t n;

				one(&t, CKPT_F32, 3, shapes[i], dim, 3, factor);
				n = walk(&t, 150000);
				assert_in_range(n, 2, 60);
			}
}

TEST(test_large_cuts_lie_as_on_the_pages_of_their_place)
{
	const uint64_t shape[] = { 1000, 1000 };
	cleanup_table struct table t = { 0 };

	one(&t, CKPT_F64, 2, shape, 1, 3, 1);
	assert_in_range(walk(&t, 1 << 20), 8, 9);
}

TEST(test_the_index_space_costs_nothing)
{
	const uint64_t shape[] = { UINT64_C(1) << 61 };
	struct indices far;
	struct indexset set = { .ndim = 1, .numel = 1000, .dim = &far };
	cleanup_table struct table t = { 0 };
	cleanup_arena struct arena a = { 0 };
	uint64_t end = 0;

	places(&t, 1);
	tensor(&t, 0, CKPT_U8, 1, shape);
	assert_int_equal(
		indices_range((UINT64_C(1) << 60) + 5, (UINT64_C(1) << 60) + 1005, &a, &far), 0);
	piece(&t, 0, 0, &end, &set);
	assert_int_equal(table_seal(&t, NULL), 0);
	assert_int_equal(walk(&t, 100), 10);
}

TEST(test_two_hundred_thousand_tiny_tensors)
{
	const uint64_t shape[] = { 3 };
	cleanup_table struct table t = { 0 };
	cleanup_arena struct arena a = { 0 };
	struct indexset set;
	uint64_t start = 0, end[2] = { 0 }, begin = now_ns(), n;
	struct windows *ws;
	struct window w;

	assert_int_equal(indexset_box(1, &start, shape, &a, &set), 0);
	places(&t, 2);
	for (uint32_t i = 0; i < 200000; i++)
		piece(&t, tensor(&t, i, CKPT_F32, 1, shape), i % 2, &end[i % 2], &set);
	assert_int_equal(table_seal(&t, NULL), 0);
	n = count_windows(&t, 64 << 20);
	assert_in_range(n, 2, 40);
	assert_int_equal(windows_open(&t, 64 << 20, &ws, NULL), 0);
	for (uint64_t i = 0; i < n; i++) {
		assert_int_equal(windows_next(ws, &w, NULL), 1);
		assert_true(w.table.arena.total_bytes < 16 << 20);
		window_free(&w);
	}
	assert_int_equal(windows_next(ws, &w, NULL), 0);
	assert_int_equal(windows_next(ws, &w, NULL), 0);
	windows_close(ws);
	printf("200000 tensors: %llu windows, twice, in %llu ms\n", (unsigned long long)n,
	       (unsigned long long)((now_ns() - begin) / NS_PER_MS));
}

TEST(test_what_cannot_be_cut_is_refused)
{
	const uint64_t shape[] = { 4 };
	const int64_t stride[] = { 2 };
	cleanup_table struct table t = { 0 }, u = { 0 };
	struct ckpt_err err = { 0 };
	cleanup_arena struct arena a = { 0 };
	struct windows *ws;
	struct indexset set;
	struct window w;
	uint64_t start = 0;

	assert_int_equal(indexset_box(1, &start, shape, &a, &set), 0);
	places(&t, 1);
	tensor(&t, 0, CKPT_F32, 1, shape);
	assert_int_equal(
		table_add_piece(&t, &(struct table_piece){ .set = set, .stride = stride }, &err),
		0);
	assert_int_equal(table_seal(&t, NULL), 0);
	assert_int_equal(windows_open(&t, 100, &ws, &err), -EINVAL);
	one(&u, CKPT_F64, 1, shape, 0, 1, 1);
	assert_int_equal(windows_open(&u, 7, &ws, &err), 0);
	assert_int_equal(windows_next(ws, &w, &err), -E2BIG);
	windows_close(ws);
	assert_int_equal(walk(&u, 8), 4);
	windows_close(NULL);
}
