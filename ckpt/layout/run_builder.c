/* SPDX-License-Identifier: Apache-2.0 */
/* run_builder.c - see run_builder.h. Called by indices.c and intersect.c. */
#include "ckpt/layout/run_builder.h"
#include "ckpt/base/util.h"

uint64_t run_below(const struct run *r, uint64_t index)
{
	if (index <= r->start)
		return 0;
	uint64_t i = (index - r->start) / r->stride;

	if (i >= r->count)
		return run_total(r);
	return i * r->len + MIN((index - r->start) % r->stride, r->len);
}

bool run_join(struct run *to, const struct run *r)
{
	uint64_t distance = r->start - to->start - (to->count - 1) * to->stride;

	if (to->len != r->len || (to->count > 1 && to->stride != distance) ||
	    (r->count > 1 && r->stride != distance))
		return false;
	to->stride = distance;
	to->count += r->count;
	return true;
}

void run_builder_init(struct run_builder *b)
{
	*b = (struct run_builder){ .run = b->first, .cap = ARRAY_LEN(b->first) };
}

void run_builder_free(struct run_builder *b)
{
	if (b->run != b->first)
		free(b->run);
}

static int builder_grow(struct run_builder *b)
{
	if (b->cap >= LAYOUT_RUNS_MAX)
		return -E2BIG;
	uint32_t cap = MIN(b->cap * 4, (uint32_t)LAYOUT_RUNS_MAX);
	struct run *run = malloc(cap * sizeof *run);

	if (!run)
		return -ENOMEM;
	memcpy(run, b->run, b->n * sizeof *run);
	run_builder_free(b);
	b->run = run;
	b->cap = cap;
	return 0;
}

int run_builder_add(struct run_builder *b, struct run r)
{
	assert(r.len > 0 && r.count > 0 && (r.count == 1 || r.stride > r.len));
	assert(b->n == 0 || run_end(&b->run[b->n - 1]) < r.start);
	if (b->steps++ == LAYOUT_STEPS_MAX)
		return -E2BIG;
	b->total += run_total(&r);
	if (r.count == 1)
		r.stride = r.len;
	if (b->n > 0 && run_join(&b->run[b->n - 1], &r))
		return 0;
	if (b->n == b->cap) {
		int e = builder_grow(b);

		if (e < 0)
			return e;
	}
	b->run[b->n++] = r;
	return 0;
}

int run_builder_slice(struct run_builder *b, const struct run *r, uint64_t from, uint64_t to)
{
	if (from >= to)
		return 0;
	uint64_t i = from / r->len, at = from % r->len, last = to / r->len, rest = to % r->len;
	int e = 0;

	if (i == last)
		return run_builder_add(b, run_one(r->start + i * r->stride + at, to - from));
	if (at > 0) {
		e = run_builder_add(b, run_one(r->start + i * r->stride + at, r->len - at));
		i++;
	}
	if (e == 0 && i < last)
		e = run_builder_add(
			b, (struct run){ r->start + i * r->stride, r->len, r->stride, last - i });
	if (e == 0 && rest > 0)
		e = run_builder_add(b, run_one(r->start + last * r->stride, rest));
	return e;
}

int run_builder_finish(struct run_builder *b, struct arena *a, struct indices *ret)
{
	*ret = (struct indices){ .n = b->n, .total = b->total };
	if (b->n == 0)
		return 0;
	ret->run = arena_dup(a, b->run, b->n * sizeof *b->run);
	return ret->run ? 0 : -ENOMEM;
}
