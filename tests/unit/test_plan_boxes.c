/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_boxes.c - rows of operations whose source is a strided box, as views cut them: from any
 * byte on the same rows come as from the beginning, without those that end before it; the first one
 * may come without its beginning.
 */
#include "tests/unit/test_layout_naive.h"
#include "ckpt/base/error.h"
#include "ckpt/plan/plan.h"
#include "tests/lib/row.h"

#define CASES 20000
#define ROWS_MAX 4096

static void random_set(uint32_t ndim, const uint64_t *shape, struct arena *a, struct indexset *ret)
{
	struct indices *dim = arena_array(a, ndim, sizeof *dim);

	*ret = (struct indexset){ .ndim = ndim, .numel = 1, .dim = dim };
	for (uint32_t d = 0; d < ndim; d++) {
		uint32_t n = (uint32_t)shape[d], k = 1 + naive_below(3);
		struct indices whole;

		assert_int_equal(indices_range(0, n, a, &whole), 0);
		do
			assert_int_equal(
				indices_cut(&whole, k, naive_below(k), naive_below(4), a, &dim[d]),
				0);
		while (!dim[d].total);
		ret->numel *= dim[d].total;
	}
}

/* A tensor with one piece: row-major, or with gaps behind the indices of each dimension. */
static void random_table(uint32_t ndim, const uint64_t *shape, bool gaps, struct table *t)
{
	struct table_tensor x =
		ROW(.component = "m", .name = "x", .of = "", .dtype = CKPT_BF16,
		    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = ndim, .shape = shape);
	struct table_piece p = { .off = 2 * naive_below(5) };
	int64_t stride[CKPT_DIMS_MAX], step = 1;
	cleanup_arena struct arena a = { 0 };

	random_set(ndim, shape, &a, &p.set);
	for (uint32_t d = ndim; d-- > 0;) {
		stride[d] = step + (naive_below(2) ? naive_below(4) : 0);
		step = stride[d] * (int64_t)p.set.dim[d].total;
	}
	if (gaps)
		p.stride = stride;
	*t = (struct table){ 0 };
	assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
	assert_int_equal(table_add_place(t, &(struct table_place){ "m", 0, 1 << 20 }, NULL, NULL),
			 0);
	assert_int_equal(table_add_piece(t, &p, NULL), 0);
	assert_int_equal(table_seal(t, NULL), 0);
}

static uint64_t row_end(const struct plan_row *r)
{
	return r->src_off + (r->elem ? (r->n - 1) * r->src_stride + r->elem : r->len);
}

static bool row_equal(const struct plan_row *x, const struct plan_row *y)
{
	return x->src_off == y->src_off && x->dst_off == y->dst_off && x->len == y->len &&
	       x->elem == y->elem && x->n == y->n && x->src_stride == y->src_stride &&
	       x->dst_stride == y->dst_stride;
}

/* What is left of a row behind its first bytes; all of it, too. */
static bool is_tail(const struct plan_row *x, const struct plan_row *of)
{
	struct plan_row y = *of;
	uint64_t cut = x->src_off - of->src_off, n = of->elem ? cut / of->src_stride : cut;

	if (x->src_off < of->src_off || n > (of->elem ? of->n - 1 : of->len - 1))
		return false;
	y.src_off += of->elem ? n * of->src_stride : cut;
	y.dst_off += of->elem ? n * of->dst_stride : cut;
	y.len -= of->elem ? n * of->elem : cut;
	y.n -= of->elem ? n : 0;
	return row_equal(x, &y);
}

static void check_from(const struct plan *p, const struct plan_op *op, const struct plan_row *all,
		       uint32_t n, uint64_t off)
{
	struct plan_cursor c;
	struct plan_row r;
	uint32_t i = 0;

	plan_rows_from(p, op, off, &c);
	while (i < n && row_end(&all[i]) <= off)
		i++;
	for (uint32_t first = i; plan_row_next(&c, &r); i++)
		if (i >= n || row_end(&r) <= off ||
		    (i == first
			     ? !is_tail(&r, &all[i]) || (r.src_off > off && !row_equal(&r, &all[i]))
			     : !row_equal(&r, &all[i])))
			fail_msg("from %" PRIu64 ": row %u is another", off, i);
	if (i != n)
		fail_msg("from %" PRIu64 ": the rows from %u on are missing", off, i);
}

TEST(from_any_byte_on_the_rows_of_a_box_are_those_that_end_behind_it)
{
	static struct plan_row all[ROWS_MAX];
	uint32_t checked = 0;

	naive_seed(__func__);
	for (uint32_t k = 0; k < CASES; k++) {
		uint64_t shape[4];
		uint32_t ndim = naive_below(4), n = 0;
		cleanup_table struct table src = { 0 }, dst = { 0 };
		struct plan_cursor c;
		struct ckpt_err err;
		struct plan p;

		for (uint32_t d = 0; d < ndim; d++)
			shape[d] = 1 + naive_below(8);
		random_table(ndim, shape, naive_below(4), &src);
		random_table(ndim, shape, naive_below(2), &dst);
		/* Only what both have. */
		if (plan_make(&src, &dst, NULL, &p, NULL, &err) == 0) {
			for (uint64_t i = 0; i < p.nop; i++) {
				const struct plan_op *op = &p.op[i];

				assert_true(plan_rows_ascend(&p, op));
				n = 0;
				for (plan_rows(&p, op, &c); plan_row_next(&c, &all[n]); n++) {
					assert_true(n < ROWS_MAX - 1);
					assert_true(!n || all[n].src_off >= row_end(&all[n - 1]));
				}
				for (uint64_t off = 0; off <= op->src_hi + 3;
				     off += 1 + naive_below(9))
					check_from(&p, op, all, n, off);
				checked++;
			}
			plan_free(&p);
		}
	}
	printf("%u operations\n", checked);
	assert_true(checked > CASES / 10);
}
