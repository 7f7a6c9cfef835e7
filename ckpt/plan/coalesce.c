/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coalesce.c - stretches of bytes sorted, united and dealt. Called with the plans of one host.
 * Invariant: after reads_make the reads are disjoint, and every byte that was asked for is in one.
 */
#include "ckpt/plan/coalesce.h"
#include "ckpt/base/util.h"

const struct read_cost read_cost_default = { .request_ns = 200000,
					     .bytes_per_s = UINT64_C(2500000000),
					     .read_max = 8 * MIB };

uint64_t read_cost_gap(const struct read_cost *c)
{
	unsigned __int128 gap = (unsigned __int128)c->request_ns * c->bytes_per_s / NS_PER_S;

	return gap > INT64_MAX ? INT64_MAX : (uint64_t)gap;
}

void reads_begin(struct reads *r, const struct read_cost *cost, uint32_t chunk_log2)
{
	const struct read_cost *d = &read_cost_default;

	*r = (struct reads){ .cost = cost ? *cost : *d, .chunk_log2 = chunk_log2 };
	if (!r->cost.request_ns)
		r->cost.request_ns = d->request_ns;
	if (!r->cost.bytes_per_s)
		r->cost.bytes_per_s = d->bytes_per_s;
	if (!r->cost.read_max)
		r->cost.read_max = d->read_max;
	r->gap = read_cost_gap(&r->cost);
}

void reads_free(struct reads *r)
{
	free(r->read);
	free(r->add);
	*r = (struct reads){ .nread = 0 };
}

static int read_append(struct reads *r, const struct read *x)
{
	if (r->nadd == r->cap) {
		uint64_t cap = r->cap ? 2 * r->cap : 256;
		struct read *p = reallocarray(r->add, cap, sizeof *p);

		if (!p)
			return -ENOMEM;
		r->add = p;
		r->cap = cap;
	}
	r->add[r->nadd++] = *x;
	return 0;
}

int reads_add(struct reads *r, uint32_t place, uint64_t off, uint64_t len)
{
	struct read *last = r->nadd ? &r->add[r->nadd - 1] : NULL;

	assert(off <= INT64_MAX && len <= INT64_MAX);
	if (!len)
		return 0;
	r->wanted_bytes += len;
	/* Rows mostly ascend: where one read will do, they take no room of their own. */
	if (last && last->place == place && off >= last->off &&
	    off <= last->off + last->len + r->gap) {
		last->len = MAX(last->len, off + len - last->off);
		return 0;
	}
	return read_append(r, &(struct read){ .place = place, .off = off, .len = len });
}

/* To whole chunks. */
static void round_out(struct reads *r, const uint64_t *place_bytes)
{
	uint64_t chunk = UINT64_C(1) << r->chunk_log2;

	for (uint64_t i = 0; i < r->nadd && r->chunk_log2; i++) {
		struct read *x = &r->add[i];
		uint64_t used = x->off + x->len, end = align_up(used, chunk);

		if (place_bytes && place_bytes[x->place] < end)
			end = MAX(used, place_bytes[x->place]);
		x->off = x->off / chunk * chunk;
		x->len = end - x->off;
	}
}

static int by_offset(const void *va, const void *vb)
{
	const struct read *a = va, *b = vb;

	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	return (a->off > b->off) - (a->off < b->off);
}

/* What lies so near that one read is cheaper than two. */
static void reads_join(struct reads *r)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < r->nadd; i++) {
		struct read *x = &r->add[i], *last = n ? &r->add[n - 1] : NULL;
		uint64_t end = last ? last->off + last->len : 0;

		if (!last || last->place != x->place || (x->off > end && x->off - end > r->gap)) {
			r->add[n++] = *x;
			continue;
		}
		last->len = MAX(end, x->off + x->len) - last->off;
	}
	r->nadd = n;
}

/* In pieces of at most read_max, as the file's chunks cut. */
static int read_divide(struct reads *r)
{
	uint64_t max = MAX(r->cost.read_max >> r->chunk_log2, UINT64_C(1)) << r->chunk_log2, n = 0;

	for (uint64_t i = 0; i < r->nadd; i++)
		n += div_up(r->add[i].len, max);
	r->read = calloc(n + 1, sizeof *r->read);
	if (!r->read)
		return -ENOMEM;
	for (uint64_t i = 0; i < r->nadd; i++) {
		const struct read *x = &r->add[i];

		for (uint64_t at = 0; at < x->len; at += max) {
			uint64_t len = MIN(max, x->len - at);

			r->read[r->nread++] = (struct read){ x->place, x->off + at, len };
			r->bytes += len;
		}
	}
	return 0;
}

/* When a read's turn is: after which fraction of its place's bytes, and of equals by place. */
struct dealt {
	uint64_t when;
	uint32_t place;
	struct read read;
};

static int by_turn(const void *va, const void *vb)
{
	const struct dealt *a = va, *b = vb;

	if (a->when != b->when)
		return a->when < b->when ? -1 : 1;
	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	return (a->read.off > b->read.off) - (a->read.off < b->read.off);
}

static int reads_deal(struct reads *r, uint32_t turn)
{
	cleanup_free struct dealt *d = calloc(r->nread + 1, sizeof *d);
	uint32_t nplace = 0;

	if (!d)
		return -ENOMEM;
	for (uint64_t i = 0, end; i < r->nread; i = end) {
		uint64_t total = 0, before = 0;

		for (end = i; end < r->nread && r->read[end].place == r->read[i].place; end++)
			total += r->read[end].len;
		for (uint64_t k = i; k < end; k++) {
			d[k] = (struct dealt){ .place = nplace, .read = r->read[k] };
			d[k].when = (uint64_t)(((unsigned __int128)before << 32) / total);
			before += r->read[k].len;
		}
		nplace++;
	}
	for (uint64_t k = 0; k < r->nread; k++)
		d[k].place = (d[k].place + nplace - turn % nplace) % nplace;
	if (r->nread > 1)
		qsort(d, r->nread, sizeof *d, by_turn);
	for (uint64_t k = 0; k < r->nread; k++)
		r->read[k] = d[k].read;
	return 0;
}

int reads_make(struct reads *r, const uint64_t *place_bytes, uint32_t turn)
{
	int e;

	round_out(r, place_bytes);
	if (r->nadd > 1)
		qsort(r->add, r->nadd, sizeof *r->add, by_offset);
	reads_join(r);
	e = read_divide(r);
	return e ? e : reads_deal(r, turn);
}
