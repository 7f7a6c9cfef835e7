/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sender.c - see sender.h. Called by reshard.c for both sides of an exchange.
 * Invariant: the answer depends on the two declarations alone, so sender and receiver agree.
 */
#include "ckpt/plan/sender.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

/* Eight bytes at a time: all names of a model are asked for. */
static uint64_t text_mix(uint64_t h, const char *text)
{
	size_t len = strlen(text);

	for (size_t at = 0; at <= len; at += 8) {
		le64 word = { { 0 } };

		memcpy(&word, text + at, MIN(len - at, sizeof word));
		h = (h ^ le64_get(word)) * UINT64_C(0xff51afd7ed558ccd);
		h ^= h >> 32;
	}
	return h;
}

uint32_t sender_bucket(const char *component, const char *name)
{
	return (uint32_t)(text_mix(text_mix(0, component), name) % SENDER_BUCKETS);
}

bool sender_ascending(const struct mesh *m)
{
	for (uint32_t i = 1; i < m->nrank; i++)
		if (m->rank[i] < m->rank[i - 1])
			return false;
	return true;
}

/* Bit per mesh dimension that a placement names; `but`: placements that do not count. */
static uint32_t dims_named(const struct layout *l, enum ckpt_how but)
{
	uint32_t named = 0;

	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how != CKPT_REPLICATE && l->place[i].how != but)
			named |= 1u << l->place[i].mesh_dim;
	return named;
}

struct sender_replicas sender_replicas_of(const struct mesh *m, bool ascending,
					  const struct layout *l, uint32_t place)
{
	struct sender_replicas r = { .mesh = m, .ascending = ascending, .n = 1, .base = place };
	uint32_t named = dims_named(l, CKPT_REPLICATE), stride = m->nrank;

	for (uint32_t d = 0; d < m->ndim; d++) {
		stride /= m->dim[d];
		if (named >> d & 1 || m->dim[d] == 1)
			continue;
		r.axis[r.naxis].size = m->dim[d];
		r.axis[r.naxis++].stride = stride;
		r.n *= m->dim[d];
		r.base -= (uint64_t)(place / stride % m->dim[d]) * stride;
	}
	return r;
}

uint32_t sender_rank(const struct sender_replicas *r, uint32_t number)
{
	uint64_t at = r->base;

	for (uint32_t i = r->naxis; i-- > 1; number /= r->axis[i].size)
		at += (uint64_t)(number % r->axis[i].size) * r->axis[i].stride;
	return r->mesh->rank[at + (uint64_t)number * r->axis[0].stride];
}

/* Replicas whose ranks are in [from, to): how many. *ret_first: how many replicas have ranks below;
 * in a mesh that is not ascending, without meaning. */
static uint32_t between(const struct sender_replicas *r, uint64_t from, uint64_t to,
			uint32_t *ret_first)
{
	uint32_t n = 0, lo;

	if (r->ascending) {
		lo = SEARCH(i, 0u, r->n, sender_rank(r, i) < from);
		*ret_first = lo;
		return SEARCH(i, lo, (uint32_t)MIN(lo + (to - from), (uint64_t)r->n),
			      sender_rank(r, i) < to) -
		       lo;
	}
	for (uint32_t i = 0; i < r->n; i++)
		n += sender_rank(r, i) >= from && sender_rank(r, i) < to;
	return n;
}

/* The number of the one at this place among them. */
static uint32_t number_at(const struct sender_replicas *r, uint64_t from, uint64_t to,
			  uint32_t first, uint32_t place)
{
	uint32_t i = 0;

	if (r->ascending)
		return first + place;
	while (sender_rank(r, i) < from || sender_rank(r, i) >= to || place-- > 0)
		i++;
	return i;
}

void sender_ask_begin(struct sender_asks *a)
{
	a->x = 0;
	a->n = 1;
}

void sender_ask_along(struct sender_asks *a, const struct sender_along *d)
{
	a->x = d->before * a->n + d->part * a->x;
	a->n *= d->all;
}

uint32_t sender_pick(const struct sender_replicas *r, const struct sender_asks *a)
{
	uint64_t host = a->per_host ? a->rank / a->per_host * (uint64_t)a->per_host : 0;
	uint64_t local = a->rank - host, end = host + a->per_host;
	unsigned __int128 n = (unsigned __int128)a->n * a->ncopy;
	unsigned __int128 x = (unsigned __int128)a->n * a->copy + a->x;
	uint32_t number, first, m;

	if (r->n == 1)
		return 0;
	m = a->per_host ? between(r, host, end, &first) : 0;
	if ((m > 0 || !a->per_host) && !MUTANT(SENDER_NOT_ITSELF) &&
	    between(r, a->rank, (uint64_t)a->rank + 1, &number) > 0)
		return number_at(r, a->rank, (uint64_t)a->rank + 1, number, 0);
	if (m > 0)
		return number_at(r, host, end, first,
				 (uint32_t)((local * m / a->per_host + a->bucket) % m));
	number = (uint32_t)((x + a->bucket * n / SENDER_BUCKETS) * r->n / n % r->n);
	return MUTANT(SENDER_ALWAYS_FIRST) ? 0 : number;
}

uint64_t sender_copy(const struct mesh *m, const struct layout *l, uint32_t place, uint64_t *ret_n)
{
	uint32_t named = dims_named(l, CKPT_PARTIAL), stride = m->nrank;
	uint64_t at = 0;

	*ret_n = 1;
	for (uint32_t d = 0; d < m->ndim; d++) {
		stride /= m->dim[d];
		if (named >> d & 1)
			continue;
		at = at * m->dim[d] + place / stride % m->dim[d];
		*ret_n *= m->dim[d];
	}
	return at;
}
