/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_indices.c - index lists: random ones against explicit arrays, and huge ones, which
 * must cost their records and not their indices.
 */
#include "tests/unit/test_layout_naive.h"

#define CASES 30000
#define TERA UINT64_C(1000000000000)

/* --- random lists --- */

static void add_progressions(struct naive *x, uint32_t extent)
{
	uint32_t at = naive_below(20);

	while (at < extent) {
		uint32_t len = 1 + naive_below(naive_below(4) ? 4 : 40);
		uint32_t stride = len + 1 + naive_below(naive_below(3) ? 8 : 120);
		uint32_t count = 1 + naive_below(naive_below(3) ? 5 : 200);

		for (uint32_t i = 0; i < count && at + len <= extent; i++, at += stride)
			for (uint32_t j = 0; j < len; j++)
				x->v[x->n++] = at + j;
		at += naive_below(50);
		if (naive_below(3) == 0)
			break;
	}
}

static void random_naive(struct naive *x)
{
	uint32_t extent = 1 + naive_below(naive_below(3) ? 300 : NAIVE_MAX), start;

	x->n = 0;
	switch (naive_below(5)) {
	case 0:
		start = naive_below(extent);
		naive_range(x, extent - start);
		for (uint32_t i = 0; i < x->n; i++)
			x->v[i] += start;
		break;
	case 1:
		for (uint32_t i = 0; i < extent; i++)
			if (naive_below(3) == 0)
				x->v[x->n++] = i;
		break;
	case 2:
		break;
	default:
		add_progressions(x, extent);
	}
}

/* The same list as records, grouped into progressions by chance. */
static void group(const struct naive *x, struct arena *a, struct indices *ret)
{
	struct run *run = arena_array(a, x->n + 1, sizeof *run);
	uint32_t n = 0, never = naive_below(4);

	assert_non_null(run);
	for (uint32_t i = 0, j; i < x->n; i = j) {
		for (j = i + 1; j < x->n && x->v[j] == x->v[j - 1] + 1; j++)
			;
		struct run *last = n ? &run[n - 1] : NULL;
		uint64_t len = j - i, apart = last ? x->v[i] - last->start : 0;

		if (last && last->count > 1)
			apart -= (last->count - 1) * last->stride;
		if (last && last->len == len && (last->count == 1 || last->stride == apart) &&
		    naive_below(20) >= never * never) {
			last->stride = apart;
			last->count++;
		} else {
			run[n++] = (struct run){ x->v[i], len, len, 1 };
		}
	}
	*ret = (struct indices){ .n = n, .total = x->n, .run = run };
	naive_assert(ret, x);
}

/* --- explicit answers --- */

static void naive_intersect(const struct naive *x, const struct naive *y, struct naive *out)
{
	out->n = 0;
	for (uint32_t i = 0, j = 0; i < x->n && j < y->n;) {
		if (x->v[i] == y->v[j])
			out->v[out->n++] = x->v[i];
		uint32_t step = x->v[i] <= y->v[j];

		j += x->v[i] >= y->v[j];
		i += step;
	}
}

/* The stretches are the intersection, with right positions, and none could be longer. */
static void expect_stretches(const struct indices *x, const struct naive *nx,
			     const struct indices *y, const struct naive *ny, uint64_t at,
			     const struct naive *want)
{
	struct indices_cursor c = { .at = at };
	struct stretch s;
	uint32_t k = 0;
	uint64_t end = UINT64_MAX;

	while (k < want->n && want->v[k] < at)
		k++;
	while (indices_next(x, y, &c, &s)) {
		assert_true(s.len > 0 && s.index != end);
		assert_true(s.x_pos + s.len <= nx->n && s.y_pos + s.len <= ny->n);
		for (uint64_t i = 0; i < s.len; i++, k++) {
			assert_true(k < want->n);
			assert_int_equal(want->v[k], s.index + i);
			assert_int_equal(nx->v[s.x_pos + i], s.index + i);
			assert_int_equal(ny->v[s.y_pos + i], s.index + i);
		}
		end = s.index + s.len;
	}
	assert_int_equal(k, want->n);
	assert_false(indices_next(x, y, &c, &s));
}

TEST(slices_are_the_elements_between_two_numbers)
{
	static struct naive x, want;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices l, got;

		random_naive(&x);
		group(&x, &a, &l);
		uint32_t from = naive_below(x.n + 2), to = naive_below(x.n + 5);

		want.n = 0;
		for (uint32_t i = from; i < to && i < x.n; i++)
			want.v[want.n++] = x.v[i];
		assert_int_equal(indices_slice(&l, from, to, &a, &got), 0);
		naive_assert(&got, &want);
	}
}

TEST(cuts_of_lists_are_torch_chunks_of_their_elements)
{
	static struct naive x, want;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices l, got;

		random_naive(&x);
		group(&x, &a, &l);
		for (uint32_t depth = naive_below(3); depth < 3; depth++) {
			uint32_t k = 1 + naive_below(7), r = naive_below(k);
			uint32_t f = naive_below(2) ? naive_below(9) : naive_below(x.n + 3);

			want = x;
			naive_cut(&want, k, r, f);
			assert_int_equal(indices_cut(&l, k, r, f, &a, &got), 0);
			naive_assert(&got, &want);
			x = want;
			l = got;
		}
	}
}

TEST(chunks_of_a_cut_are_disjoint_and_together_the_list)
{
	static struct naive x;
	static uint8_t seen[NAIVE_MAX];

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES / 3; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices l, got;
		uint32_t k = 1 + naive_below(6), f = naive_below(20);

		random_naive(&x);
		group(&x, &a, &l);
		memset(seen, 0, sizeof seen);
		for (uint32_t r = 0; r < k; r++) {
			assert_int_equal(indices_cut(&l, k, r, f, &a, &got), 0);
			for (uint32_t i = 0; i < got.n; i++)
				for (uint64_t j = 0; j < got.run[i].count * got.run[i].len; j++)
					seen[got.run[i].start +
					     j / got.run[i].len * got.run[i].stride +
					     j % got.run[i].len]++;
		}
		for (uint32_t i = 0, at = 0; i < NAIVE_MAX; i++) {
			assert_int_equal(seen[i], at < x.n && x.v[at] == i);
			at += seen[i];
		}
	}
}

TEST(intersections_and_stretches_are_the_common_indices)
{
	static struct naive x, y, want;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices lx, ly, got;

		random_naive(&x);
		random_naive(&y);
		group(&x, &a, &lx);
		group(&y, &a, &ly);
		naive_intersect(&x, &y, &want);
		assert_int_equal(indices_intersect(&lx, &ly, &a, &got), 0);
		naive_assert(&got, &want);
		expect_stretches(&lx, &x, &ly, &y, 0, &want);
		expect_stretches(&lx, &x, &ly, &y, naive_below(NAIVE_MAX), &want);
	}
}

/* Two progressions whose strides have nothing in common meet rarely: where the search is hard. */
TEST(sparse_progressions_meet_where_they_should)
{
	static struct naive x, y, want;
	struct naive *const both[2] = { &x, &y };

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		struct run run[2];
		struct indices l[2], got;
		cleanup_arena struct arena a = { 0 };

		for (uint32_t s = 0; s < 2; s++) {
			uint32_t len = 1 + naive_below(naive_below(2) ? 2 : 12);
			uint32_t stride = len + 1 + naive_below(naive_below(2) ? 30 : 300);
			uint32_t start = naive_below(300);

			run[s] = (struct run){ start, len, stride, 1 };
			both[s]->n = 0;
			while (both[s]->n + len <= 800 && start + stride * run[s].count < 40000)
				run[s].count++, both[s]->n += len;
			run[s].count = MAX(run[s].count, UINT64_C(2));
			both[s]->n = 0;
			for (uint64_t i = 0; i < run[s].count * len; i++)
				both[s]->v[both[s]->n++] =
					(uint32_t)(start + i / len * stride + i % len);
			l[s] = (struct indices){ 1, both[s]->n, &run[s] };
		}
		naive_intersect(&x, &y, &want);
		expect_stretches(&l[0], &x, &l[1], &y, 0, &want);
		assert_int_equal(indices_intersect(&l[0], &l[1], &a, &got), 0);
		naive_assert(&got, &want);
	}
}

TEST(lists_are_equal_when_their_indices_are_however_they_are_grouped)
{
	static struct naive x, y;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices lx, ly;

		random_naive(&x);
		y = x;
		group(&x, &a, &lx);
		group(&y, &a, &ly);
		assert_true(indices_equal(&lx, &ly));
		if (y.n > 0) {
			uint32_t i = naive_below(y.n);

			if (naive_below(2) && (i + 1 == y.n || y.v[i + 1] > y.v[i] + 1))
				y.v[i]++;
			else
				memmove(&y.v[i], &y.v[i + 1], (--y.n - i) * sizeof *y.v);
			group(&y, &a, &ly);
			assert_false(indices_equal(&lx, &ly));
			assert_false(indices_equal(&ly, &lx));
		}
	}
}

TEST(positions_bounds_and_runs_are_those_of_the_list)
{
	static struct naive x;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		uint32_t below = 0, runs = 0, index = naive_below(NAIVE_MAX + 50);
		struct indices l;

		random_naive(&x);
		group(&x, &a, &l);
		for (uint32_t i = 0; i < x.n; i++) {
			below += x.v[i] < index;
			runs += !i || x.v[i] != x.v[i - 1] + 1;
		}
		assert_int_equal(indices_below(&l, index), below);
		assert_int_equal(indices_runs(&l), runs);
		assert_int_equal(indices_lo(&l), x.n ? x.v[0] : 0);
		assert_int_equal(indices_hi(&l), x.n ? x.v[x.n - 1] + 1 : 0);
		if (x.n) {
			uint32_t at = naive_below(x.n);

			assert_int_equal(indices_at(&l, at), x.v[at]);
			assert_int_equal(indices_below(&l, x.v[at]), at);
		}
	}
}

TEST(what_two_lists_have_in_common_is_counted_and_taken_away)
{
	static struct naive x, y, both, rest;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices lx, ly, part, got;
		struct indices_common c;
		uint64_t first;

		random_naive(&x);
		y = x;
		if (naive_below(4)) /* else as groups of the same */
			random_naive(&y);
		group(&x, &a, &lx);
		group(&y, &a, &ly);
		naive_intersect(&x, &y, &both);
		c = indices_common(&lx, &ly);
		assert_int_equal(c.n, both.n);
		assert_int_equal(c.first, both.n ? both.v[0] : 0);
		assert_int_equal(c.last, both.n ? both.v[both.n - 1] : 0);
		assert_int_equal(indices_meet(&lx, &ly, &first), both.n > 0);
		if (both.n)
			assert_int_equal(first, both.v[0]);
		rest.n = 0;
		for (uint32_t i = 0, j = 0; i < x.n; i++) {
			if (j < both.n && both.v[j] == x.v[i])
				j++;
			else
				rest.v[rest.n++] = x.v[i];
		}
		group(&both, &a, &part);
		assert_int_equal(indices_minus(&lx, &part, &a, &got), 0);
		naive_assert(&got, &rest);
	}
}

TEST(a_list_that_is_moved_keeps_its_runs)
{
	static struct naive x;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices l, got;
		uint64_t by;

		random_naive(&x);
		group(&x, &a, &l);
		by = x.n && naive_below(2) ? -(uint64_t)naive_below(x.v[0] + 1) : naive_below(99);
		for (uint32_t i = 0; i < x.n; i++)
			x.v[i] += (uint32_t)by;
		assert_int_equal(indices_move(&l, by, &a, &got), 0);
		naive_assert(&got, &x);
		assert_int_equal(got.n, l.n);
	}
}

TEST(sets_meet_when_they_do_so_in_every_dimension)
{
	static struct naive x[3], y[3], both;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES / 3; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indices dx[3], dy[3];
		struct indexset sx = { 3, 1, dx }, sy = { 3, 1, dy }, got;
		bool meet = true;

		for (uint32_t d = 0; d < 3; d++) {
			do {
				random_naive(&x[d]);
				random_naive(&y[d]);
			} while (!x[d].n || !y[d].n);
			group(&x[d], &a, &dx[d]);
			group(&y[d], &a, &dy[d]);
			naive_intersect(&x[d], &y[d], &both);
			meet &= both.n > 0;
			sx.numel *= dx[d].total;
			sy.numel *= dy[d].total;
		}
		assert_int_equal(indexset_meet(&sx, &sy), meet);
		assert_int_equal(indexset_intersect(&sx, &sy, &a, &got), 0);
		assert_int_equal(got.numel > 0, meet);
	}
}

/* --- huge lists --- */

static void cut_of_range(uint64_t n, uint32_t k, uint32_t r, uint32_t f, struct arena *a,
			 struct indices *ret)
{
	struct indices whole;

	assert_int_equal(indices_range(0, n, a, &whole), 0);
	assert_int_equal(indices_cut(&whole, k, r, f, a, ret), 0);
	assert_int_equal(indices_check(ret, n, NULL), 0);
}

TEST(a_strided_cut_of_a_range_is_at_most_three_records)
{
	static const uint64_t size[] = { 7, 1000000, TERA, TERA + 12345, INT64_MAX };
	static const uint32_t factor[] = { 1, 2, 3, 1000000, 999983, UINT32_MAX };

	for (uint32_t s = 0; s < ARRAY_LEN(size); s++)
		for (uint32_t f = 0; f < ARRAY_LEN(factor); f++)
			for (uint32_t k = 1; k < 6; k++) {
				cleanup_arena struct arena a = { 0 };
				uint64_t total = 0;

				for (uint32_t r = 0; r < k; r++) {
					struct indices x;

					cut_of_range(size[s], k, r, factor[f], &a, &x);
					assert_true(x.n <= 3);
					total += x.total;
				}
				assert_int_equal(total, size[s]);
			}
}

TEST(progressions_without_end_are_cut_sliced_and_intersected_at_once)
{
	cleanup_arena struct arena a = { 0 };
	struct run even = { 0, 1, 2, TERA }, odd = { 1, 1, 2, TERA };
	struct run third = { 0, 1, 3, TERA }, wide = { 0, 3, 4, TERA };
	struct indices e = { 1, TERA, &even }, o = { 1, TERA, &odd }, t = { 1, TERA, &third };
	struct indices w = { 1, 3 * TERA, &wide }, x, y;
	struct indices_cursor c = { 0 };
	struct stretch s;

	assert_int_equal(indices_intersect(&e, &o, &a, &x), 0);
	assert_int_equal(x.n, 0);
	assert_false(indices_next(&e, &o, &c, &s));
	assert_int_equal(indices_intersect(&e, &t, &a, &x), 0); /* every sixth */
	assert_int_equal(x.n, 1);
	assert_int_equal(x.run[0].stride, 6);
	assert_int_equal(x.total, (2 * TERA + 5) / 6);
	assert_int_equal(indices_intersect(&e, &w, &a, &x), 0); /* two of four are one in two */
	assert_int_equal(x.n, 1);
	assert_int_equal(x.total, TERA);
	assert_true(indices_equal(&x, &e));
	assert_int_equal(indices_cut(&e, 4, 3, 1, &a, &x), 0);
	assert_int_equal(x.n, 1);
	assert_int_equal(x.run[0].start, TERA * 3 / 2);
	assert_int_equal(indices_cut(&e, 2, 0, 1000000, &a, &x), -E2BIG); /* runs of runs */
	assert_int_equal(indices_cut(&e, 2, 1, 2000000000, &a, &y), -E2BIG);
	assert_int_equal(indices_range(TERA, TERA + 7, &a, &x), 0);
	assert_int_equal(indices_intersect(&x, &e, &a, &y), 0);
	assert_int_equal(y.total, 4);
	assert_int_equal(indices_slice(&w, 1, 3 * TERA - 1, &a, &x), 0);
	assert_int_equal(x.n, 3);
	assert_int_equal(x.total, 3 * TERA - 2);
}

/* Strides without a common factor: far apart meetings are computed, not walked to. */
TEST(one_far_meeting_is_found_at_once)
{
	const uint64_t p = 4294967291, q = 4294967279; /* primes */
	struct run a = { 0, 1, p, q + 1 }, b = { 1, 1, q, p + 1 };
	struct indices x = { 1, q + 1, &a }, y = { 1, p + 1, &b }, got;
	struct indices_cursor c = { 0 };
	struct stretch s;
	cleanup_arena struct arena arena = { 0 };

	assert_true(indices_next(&x, &y, &c, &s));
	assert_int_equal(s.len, 1);
	assert_int_equal(s.index % p, 0);
	assert_int_equal(s.index % q, 1);
	assert_true(s.index < p * q);
	assert_int_equal(s.x_pos, s.index / p);
	assert_int_equal(s.y_pos, s.index / q);
	assert_false(indices_next(&x, &y, &c, &s));
	assert_int_equal(indices_intersect(&x, &y, &arena, &got), 0);
	assert_int_equal(got.total, 1);
}

TEST(a_list_of_too_many_records_is_refused)
{
	cleanup_arena struct arena a = { 0 };
	struct run x_run = { 0, 3, 7, 1000000 }, y_run = { 0, 5, 11, 1000000 };
	struct indices x = { 1, 3000000, &x_run }, y = { 1, 5000000, &y_run }, got;
	struct run far = { 0, 1, 1000003, 1u << 30 }, off = { 0, 500000, 1000004, 1u << 30 };
	struct indices f = { 1, 1u << 30, &far }, g = { 1, 500000ull << 30, &off };

	assert_int_equal(indices_intersect(&x, &y, &a, &got), -E2BIG);
	assert_int_equal(indices_intersect(&f, &g, &a, &got), -E2BIG); /* merges, but walks */
}

TEST(outside_lists_that_break_a_rule_are_refused)
{
	static const struct {
		struct run run[2];
		uint32_t n;
		uint64_t total;
	} bad[] = {
		{ { { 0, 0, 0, 1 } }, 1, 0 },
		{ { { 0, 1, 1, 0 } }, 1, 0 },
		{ { { 0, 4, 5, 1 } }, 1, 4 },
		{ { { 0, 4, 4, 2 } }, 1, 8 },
		{ { { 0, 4, 3, 2 } }, 1, 8 },
		{ { { 5, 2, 2, 1 }, { 0, 2, 2, 1 } }, 2, 4 },
		{ { { 0, 2, 2, 1 }, { 2, 2, 2, 1 } }, 2, 4 },
		{ { { 0, 1, 10, 3 }, { 15, 1, 1, 1 } }, 2, 4 },
		{ { { 0, 101, 101, 1 } }, 1, 101 },
		{ { { 99, 2, 2, 1 } }, 1, 2 },
		{ { { UINT64_MAX, 1, 1, 1 } }, 1, 1 },
		{ { { 1, 1, UINT64_MAX / 2 + 1, 3 } }, 1, 3 },
		{ { { 0, 1, UINT64_MAX, 2 } }, 1, 2 },
		{ { { 0, 2, 2, 1 } }, 1, 3 },
		{ { { 0, 2, 2, 1 } }, 0, 2 },
	};
	struct ckpt_err err;
	struct run one = { 0, 1, 1, 1 };
	struct indices many = { LAYOUT_RUNS_MAX + 1, 1, &one }, none = { 0 };

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct indices x = { bad[i].n, bad[i].total, bad[i].run };

		err = (struct ckpt_err){ 0 };
		assert_int_equal(indices_check(&x, 100, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "index list"));
	}
	assert_int_equal(indices_check(&many, 100, &err), -EINVAL);
	assert_int_equal(indices_check(&none, UINT64_MAX, &err), -EINVAL);
	assert_int_equal(indices_check(&none, 0, &err), 0);
}

TEST(boxes_and_shapes_above_the_limit_are_refused)
{
	cleanup_arena struct arena a = { 0 };
	struct indexset s, t, both;
	uint64_t n;

	assert_int_equal(shape_numel(2, (uint64_t[]){ 1ull << 32, 1ull << 31 }, &n), -EOVERFLOW);
	assert_int_equal(shape_numel(2, (uint64_t[]){ 1ull << 32, 1ull << 32 }, &n), -EOVERFLOW);
	assert_int_equal(shape_numel(2, (uint64_t[]){ 0, 1ull << 63 }, &n), -EOVERFLOW);
	assert_int_equal(shape_numel(3, (uint64_t[]){ 1ull << 62, 1ull << 62, 0 }, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(shape_numel(0, NULL, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(shape_numel(1, (uint64_t[]){ INT64_MAX }, &n), 0);
	assert_int_equal(n, INT64_MAX);
	assert_int_equal(indexset_box(1, (uint64_t[]){ INT64_MAX }, (uint64_t[]){ 1 }, &a, &s),
			 -EOVERFLOW);
	assert_int_equal(indexset_box(1, (uint64_t[]){ UINT64_MAX }, (uint64_t[]){ 2 }, &a, &s),
			 -EOVERFLOW);
	assert_int_equal(indexset_box(2, (uint64_t[]){ 1, 2 }, (uint64_t[]){ 3, 4 }, &a, &s), 0);
	assert_int_equal(s.numel, 12);
	assert_int_equal(indexset_box(2, (uint64_t[]){ 3, 4 }, (uint64_t[]){ 9, 9 }, &a, &t), 0);
	assert_int_equal(indexset_intersect(&s, &t, &a, &both), 0);
	assert_int_equal(both.numel, 2);
	assert_false(indexset_equal(&s, &t));
	assert_int_equal(indexset_copy(&both, &a, &t), 0);
	assert_true(indexset_equal(&both, &t));
	assert_int_equal(indexset_box(2, (uint64_t[]){ 4, 0 }, (uint64_t[]){ 9, 9 }, &a, &t), 0);
	assert_int_equal(indexset_intersect(&s, &t, &a, &both), 0);
	assert_int_equal(both.numel, 0);
	assert_int_equal(indexset_box(2, (uint64_t[]){ 0, 0 }, (uint64_t[]){ 5, 0 }, &a, &t), 0);
	assert_true(indexset_equal(&both, &t)); /* empty is empty */
}
