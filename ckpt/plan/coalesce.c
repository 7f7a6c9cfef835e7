/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coalesce.c - see coalesce.h. Called with the plans of one host.
 * Invariant: after reads_unite the reads are disjoint, and every byte that was asked for is in one.
 */
#include "ckpt/plan/coalesce.h"
#include "ckpt/base/util.h"

void reads_free(struct reads *r)
{
	free(r->read);
	*r = (struct reads){ .n = 0 };
}

/* Into x, which begins before it, if they are one read. */
static bool read_join(struct read *x, uint32_t place, uint64_t off, uint64_t len)
{
	if (x->place != place || off < x->off || off > x->off + x->len + READ_GAP)
		return false;
	x->len = MAX(x->len, off + len - x->off);
	return true;
}

int reads_add(struct reads *r, uint32_t place, uint64_t off, uint64_t len)
{
	assert(off <= INT64_MAX && len <= INT64_MAX);
	/* Rows mostly ascend: where one read will do, they take no memory of their own. */
	if (!len || (r->n && read_join(&r->read[r->n - 1], place, off, len)))
		return 0;
	if (!ARRAY_GROW(r->read, r->n, r->cap))
		return -ENOMEM;
	r->read[r->n++] = (struct read){ .place = place, .off = off, .len = len };
	return 0;
}

static int by_offset(const void *va, const void *vb)
{
	const struct read *a = va, *b = vb;
	int r = COMPARE(a->place, b->place);

	return r ? r : COMPARE(a->off, b->off);
}

void reads_unite(struct reads *r)
{
	uint64_t n = 0;

	if (r->n > 1)
		qsort(r->read, r->n, sizeof *r->read, by_offset);
	for (uint64_t i = 0; i < r->n; i++) {
		const struct read x = r->read[i];

		if (!n || !read_join(&r->read[n - 1], x.place, x.off, x.len))
			r->read[n++] = x;
	}
	r->n = n;
	r->requests = r->bytes = 0;
	for (uint64_t i = 0; i < n; i++) {
		r->requests += div_up(r->read[i].len, READ_MAX);
		r->bytes += r->read[i].len;
	}
}
