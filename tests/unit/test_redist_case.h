/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_redist_case.h - redistributions for tests, from the text of their states; the trace of their
 * steps.
 */
#ifndef TESTS_UNIT_TEST_PLAN_REDIST_H
#define TESTS_UNIT_TEST_PLAN_REDIST_H
#include "ckpt/base/text.h"
#include "ckpt/redist/redistribute.h"
#include "tests/lib/unit.h"

#define REDIST_TRACE_BYTES 8192

/* m0, m1, ..; its ranks are 0, 1, .. up to 4095. */
static inline struct mesh redist_mesh(uint32_t ndim, const uint32_t *dim)
{
	static const char *const name[] = { "m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7" };
	static uint32_t rank[4096];
	struct mesh m = { .ndim = ndim, .name = name, .dim = dim, .nrank = 1, .rank = rank };

	assert_true(ndim <= ARRAY_LEN(name));
	for (uint32_t i = 0; i < ndim; i++)
		m.nrank *= dim[i];
	assert_true(m.nrank <= ARRAY_LEN(rank));
	for (uint32_t i = 0; i < m.nrank; i++)
		rank[i] = i;
	return m;
}

struct redist_case {
	struct arena a;
	struct mesh mesh;
	struct layout src, dst;
	struct redist_problem problem;
};

/* float32; shape, dim stay the caller's; the case stays where it is. */
static inline void redist_case_make(struct redist_case *c, uint32_t mesh_ndim, const uint32_t *dim,
				    uint32_t ndim, const uint64_t *shape, const char *src,
				    const char *dst)
{
	struct ckpt_err err = { 0 };

	*c = (struct redist_case){ .mesh = redist_mesh(mesh_ndim, dim) };
	c->problem = (struct redist_problem){ .mesh = &c->mesh,
					      .ndim = ndim,
					      .elem_bytes = 4,
					      .shape = shape,
					      .src = &c->src,
					      .dst = &c->dst };
	assert_ok_err(redist_state_parse(src, &c->mesh, ndim, &c->a, &c->src, &err), &err);
	assert_ok_err(redist_state_parse(dst, &c->mesh, ndim, &c->a, &c->dst, &err), &err);
}

static inline void redist_case_free(struct redist_case *c)
{
	arena_free(&c->a);
}

/* "S(0)R->RR->RS(0)". Returns buf. */
static inline char *redist_trace(const struct mesh *m, const struct redist_steps *s,
				 char buf[REDIST_TRACE_BYTES])
{
	struct text t = text_in(buf, REDIST_TRACE_BYTES);
	char state[REDIST_STATE_BYTES];

	text_add(&t, "%s", redist_state_print(m, &s->src, state, sizeof state));
	for (uint32_t i = 0; i < s->n; i++)
		text_add(&t, "->%s", redist_state_print(m, &s->step[i].after, state, sizeof state));
	return buf;
}
#endif
