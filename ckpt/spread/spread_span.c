// SPDX-License-Identifier: Apache-2.0
// spread_span.c - which bytes of a stream go in which round, and what is missing behind one of
// them. Called by walks, and by the daemon. Invariant: the spans of all rounds are the stream, each
// byte once, and no element lies in two of them.
#include "ckpt/spread/spread_impl.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

#define ELEM_MAX 16u /* dtype_bytes */

/* The element that has this byte begins there. */
static uint64_t at_element(const struct table *t, const struct stream *x, uint64_t at)
{
	const struct part *p;
	uint64_t elem;

	if (at >= x->bytes)
		return x->bytes;
	p = &x->part[SEARCH(i, 0u, x->n, x->part[i].off <= at) - 1];
	elem = t->tensor[p->tensor].elem_bytes;
	return MUTANT(SPREAD_ELEMENT_SPLIT) ? at : p->off + (at - p->off) / elem * elem;
}

/* Where round `round` begins if all streams go at one pace. */
static uint64_t paced(uint64_t bytes, uint64_t chunk_bytes, uint64_t round)
{
	return round > bytes / chunk_bytes ? bytes : round * chunk_bytes;
}

struct span spread_span(const struct spread_how *how, const struct table *t, const struct stream *x,
			uint32_t from, uint32_t to, uint64_t round)
{
	struct span s;

	if (how->rounds) {
		schedule_span(how->rounds, from, to, x->bytes, round, &s.from, &s.to);
	} else {
		s.from = paced(x->bytes, how->chunk_bytes, round);
		s.to = MIN(s.from + how->chunk_bytes, x->bytes);
	}
	s.from = at_element(t, x, s.from);
	s.to = at_element(t, x, s.to);
	return s;
}

/* No span of it is longer: rounds begin at an element, up to so much earlier than they should. */
static uint64_t span_most(const struct spread_how *how, const struct stream *x)
{
	uint64_t n = how->rounds ? schedule_messages(how->rounds, x->bytes) : 0;
	uint64_t most =
		how->rounds ? (n ? div_up(x->bytes, n) + SCHEDULE_ALIGN : 0) : how->chunk_bytes;

	return MIN(most + ELEM_MAX, x->bytes);
}

uint64_t spread_slot(const struct spread_how *how, const struct stream *x)
{
	return align_up(span_most(how, x), 4096);
}

void spread_staging(const struct spread *s, const struct spread_how *how, uint64_t *ret_out,
		    uint64_t *ret_in)
{
	*ret_out = *ret_in = 4096; /* never 0: not every allocator has a stretch of no bytes */
	for (uint32_t i = 0; i < s->out.n; i++)
		*ret_out += spread_slot(how, &s->out.stream[i]);
	for (uint32_t i = 0; i < s->in.n; i++)
		*ret_in += spread_slot(how, &s->in.stream[i]);
	*ret_out <<= how->ahead;
	*ret_in <<= how->ahead;
}

/* --- what has not arrived --- */

uint64_t spread_rounds(const struct spread *s)
{
	return s->rounds;
}

/* The elements of a product from number `from` on, in row-major order, are one product for each
 * dimension: with the indices of that element in the dimensions before it, and all of those
 * behind. */
static int tail_product(const struct indexset *set, const uint64_t *pos, uint32_t d,
			struct arena *a, struct indexset *ret)
{
	struct indices *dim = arena_array(a, MAX(set->ndim, 1u), sizeof *dim);
	int rc = 0;

	if (!dim)
		return -ENOMEM;
	*ret = (struct indexset){ .ndim = set->ndim, .numel = 1, .dim = dim };
	for (uint32_t i = 0; i < set->ndim && rc == 0; i++) {
		uint64_t from = pos[i] + (i == d && d + 1 < set->ndim);

		if (i > d)
			dim[i] = set->dim[i];
		else
			rc = indices_slice(&set->dim[i], from, i == d ? UINT64_MAX : from + 1, a,
					   &dim[i]);
		ret->numel *= dim[i].total;
	}
	return rc;
}

static int tail_each(const struct part *p, const struct table_tensor *x, uint64_t from,
		     spread_part_fn *fn, void *arg)
{
	uint64_t pos[CKPT_DIMS_MAX] = { 0 };
	struct arena a = { 0 };
	int rc = 0;

	if (from == 0)
		return fn(arg, x, &p->set);
	for (uint32_t d = p->set.ndim; d-- > 0; from /= p->set.dim[d].total)
		pos[d] = from % p->set.dim[d].total;
	for (uint32_t d = p->set.ndim; d-- > 0 && rc == 0;) {
		struct indexset set;

		rc = tail_product(&p->set, pos, d, &a, &set);
		if (rc == 0 && set.numel)
			rc = fn(arg, x, &set);
	}
	arena_free(&a);
	return rc;
}

int spread_missing(struct spread *s, uint64_t chunk_bytes, uint64_t rounds, spread_part_fn *fn,
		   void *arg, struct ckpt_err *err)
{
	const struct spread_how how = { .chunk_bytes = chunk_bytes };
	int rc = 0;

	assert(chunk_bytes >= SPREAD_CHUNK_MIN);
	for (uint32_t i = 0; i < s->in.n && rc == 0; i++) {
		const struct stream *x = &s->in.stream[i];
		uint64_t from = spread_span(&how, s->dst, x, x->peer, s->rank, rounds).from;

		for (uint32_t k = 0; k < x->n && rc == 0; k++) {
			const struct part *p = &x->part[k];
			const struct table_tensor *y = &s->dst->tensor[p->tensor];
			uint64_t bytes = p->set.numel * y->elem_bytes;

			if (p->off + bytes > from)
				rc = tail_each(p, y,
					       from > p->off ? (from - p->off) / y->elem_bytes : 0,
					       fn, arg);
		}
	}
	return rc == -ENOMEM ? ckpt_error(err, rc, "no memory for what has not arrived") : rc;
}
