/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_naive.h - the layout rules on explicit arrays of indices, and random numbers, for the
 * tests of layout/. It shares nothing with the code under test: no runs, no progressions.
 */
#ifndef CKPT_TEST_LAYOUT_NAIVE_H
#define CKPT_TEST_LAYOUT_NAIVE_H
#include "ckpt/layout/layout.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"

#define NAIVE_MAX 4096

struct naive {
	uint32_t n;
	uint32_t v[NAIVE_MAX];
};

static uint64_t naive_state;

static inline void naive_seed(const char *test)
{
	naive_state = draw_seed(test);
}

static inline uint32_t naive_below(uint32_t n) /* 0 .. n-1 */
{
	return (uint32_t)draw_below(&naive_state, n);
}

static inline void naive_range(struct naive *x, uint32_t n)
{
	for (x->n = 0; x->n < n; x->n++)
		x->v[x->n] = x->n;
}

/* Append the r-th of k torch chunks of the elements [from, to) of x. */
static inline void naive_chunk(const struct naive *x, uint32_t from, uint32_t to, uint32_t k,
			       uint32_t r, struct naive *out)
{
	uint32_t c = (to - from + k - 1) / k;

	for (uint32_t i = from; i < to; i++)
		if (i - from >= r * c && i - from < (r + 1) * c)
			out->v[out->n++] = x->v[i];
}

static inline void naive_cut(struct naive *x, uint32_t k, uint32_t r, uint32_t split_factor)
{
	static struct naive out;
	uint32_t f = split_factor ? split_factor : 1, c = (x->n + f - 1) / f;

	out.n = 0;
	for (uint32_t i = 0; i < x->n; i += c)
		naive_chunk(x, i, i + c < x->n ? i + c : x->n, k, r, &out);
	x->n = out.n;
	memcpy(x->v, out.v, out.n * sizeof *out.v);
}

/* Rows of ceil(n / split_factor) elements; the r-th of k chunks of their columns stays. */
static inline void naive_cut_columns(struct naive *x, uint32_t k, uint32_t r, uint32_t split_factor)
{
	uint32_t f = split_factor ? split_factor : 1, w = (x->n + f - 1) / f, n = 0;

	for (uint32_t i = 0; i < x->n; i++)
		if (i % w / ((w + k - 1) / k) == r)
			x->v[n++] = x->v[i];
	x->n = n;
}

/* The list has exactly these indices and keeps its invariants. */
static inline void naive_assert(const struct indices *x, const struct naive *want)
{
	struct ckpt_err err = { 0 };
	uint32_t at = 0;

	if (indices_check(x, INT64_MAX, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(x->total, want->n);
	for (uint32_t k = 0; k < x->n; k++)
		for (uint64_t i = 0; i < x->run[k].count; i++)
			for (uint64_t j = 0; j < x->run[k].len; j++)
				assert_int_equal(x->run[k].start + i * x->run[k].stride + j,
						 want->v[at++]);
}
#endif
