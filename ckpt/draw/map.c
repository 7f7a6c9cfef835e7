/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - see map.h: from sets of ranks to shares, axes and spans, and from those to the cells of a
 * picture. Called by show --map.
 * Invariant: a border of a drawing is where some share begins or ends; nothing is drawn that was
 * not looked at, and what is left out is a span that says so.
 */
#include "ckpt/base/strmap.h"
#include "ckpt/base/text.h"
#include "ckpt/base/unique.h"
#include "ckpt/layout/human.h"
#include "ckpt/draw/map_impl.h"
#include <stdio.h>

#define ENDS_SHOWN UINT64_C(64) /* runs at each end of a list that has too many */
#define COPIES_CELLS_MAX (1u << 22)
#define PATTERN_RUNS 3

/* How many ranks from rank[0] on are equally far apart. */
static uint32_t ranks_progression(uint32_t n, const uint32_t *rank)
{
	uint32_t len = MIN(n, 2u);

	while (len < n && rank[len] - rank[len - 1] == rank[1] - rank[0])
		len++;
	return len;
}

char *map_ranks(uint32_t n, const uint32_t *rank, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	for (uint32_t i = 0, len; i < n; i += len) {
		const uint32_t *r = rank + i;

		len = ranks_progression(n - i, r);
		text_add(&t, "%sr%u", i ? "," : "", r[0]);
		if (len < 3)
			len = 1;
		else if (r[1] - r[0] == 1)
			text_add(&t, "-r%u", r[len - 1]);
		else
			text_add(&t, ",r%u%sr%u", r[1], len > 3 ? ".." : ",", r[len - 1]);
		if (t.len == t.bytes)
			break;
	}
	return buf;
}

char *map_label(uint32_t n, const uint32_t *rank, uint32_t max, char *buf, size_t bytes,
		bool *ret_short)
{
	char full[64];

	*ret_short = false;
	if (!n)
		snprintf(buf, bytes, "-");
	else if (strlen(map_ranks(n, rank, full, sizeof full)) <= max)
		snprintf(buf, bytes, "%s", full);
	else {
		*ret_short = true;
		snprintf(buf, bytes, "r%u+%u", rank[0], n - 1);
	}
	return buf;
}

char *map_pattern(const struct indices *x, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);
	char a[HUMAN_BYTES], b[HUMAN_BYTES], c[HUMAN_BYTES];

	for (uint32_t i = 0; i < x->n; i++) {
		const struct run *r = &x->run[i];

		if (i == PATTERN_RUNS) {
			text_add(&t, "; %s runs in all", human_count(indices_runs(x), a));
			break;
		}
		text_add(&t, "%s", i ? "; " : "");
		if (r->count == 1)
			text_add(&t, "%llu:%llu", (unsigned long long)r->start,
				 (unsigned long long)(r->start + r->len));
		else
			text_add(&t, "%s of every %s from %llu on, %s times",
				 human_count(r->len, a), human_count(r->stride, b),
				 (unsigned long long)r->start, human_count(r->count, c));
	}
	return buf;
}

/* --- equal lists, equal sets --- */

/* Equal sets may have different records: only what the set itself says. */
static uint64_t list_key(uint64_t before, const struct indices *x)
{
	uint64_t key[] = { x->total, indices_lo(x), indices_hi(x) };

	return key_hash(before, key, sizeof key);
}

static bool span_meets(const struct indices *x, const struct map_span *s)
{
	return indices_below(x, s->stop) > indices_below(x, s->start);
}

/* --- making --- */

static int in_compare(const void *a, const void *b)
{
	const struct map_in *x = *(const struct map_in *const *)a,
			    *y = *(const struct map_in *const *)b;

	return COMPARE(x->rank, y->rank);
}

static int rank_compare(const void *a, const void *b)
{
	return COMPARE(*(const uint32_t *)a, *(const uint32_t *)b);
}

static uint32_t ranks_unique(uint32_t *rank, uint32_t n)
{
	return sort_unique(rank, n, sizeof *rank, rank_compare);
}

/* The number of the share with this set; n: there is none, and now it is n. */
static uint32_t set_number(struct keymap *sets, const struct map_share *share, uint32_t n,
			   const struct indexset *set)
{
	uint64_t hash = 0;

	for (uint32_t i = 0; i < set->ndim; i++)
		hash = list_key(hash, &set->dim[i]);
	for (uint32_t at = 0, i; (i = keymap_next(sets, hash, &at)) != KEYMAP_NONE;)
		if (indexset_equal(share[i].set, set))
			return i;
	keymap_put(sets, hash, n);
	return n;
}

/* Shares and their ranks. in: sorted by rank. */
static int make_shares(struct map *m, const struct map_in *const *in, uint32_t nin)
{
	struct map_facts *f = &m->facts;
	struct map_share *share = arena_array(&m->arena, (size_t)nin + 1, sizeof *share);
	uint32_t *empty = arena_array(&m->arena, (size_t)nin + 1, sizeof *empty);
	uint32_t *rank = arena_array(&m->arena, (size_t)nin + 1, sizeof *rank);
	cleanup_free uint32_t *id = calloc((size_t)nin + 1, sizeof *id);
	struct keymap sets = { 0 };
	uint32_t at = 0;

	if (!share || !empty || !rank || !id || keymap_reserve(&sets, &m->arena, nin))
		return -ENOMEM;
	for (uint32_t i = 0; i < nin; i++) {
		if (!in[i]->set->numel) {
			empty[f->nempty++] = in[i]->rank;
			continue;
		}
		id[i] = set_number(&sets, share, f->nshare, in[i]->set);
		if (id[i] == f->nshare)
			share[f->nshare++].set = in[i]->set;
		share[id[i]].nrank++;
	}
	for (uint32_t i = 0; i < f->nshare; i++) {
		share[i].rank = rank + at;
		at += share[i].nrank;
		share[i].nrank = 0;
	}
	for (uint32_t i = 0; i < nin; i++)
		if (in[i]->set->numel) {
			struct map_share *s = &share[id[i]];

			((uint32_t *)s->rank)[s->nrank++] = in[i]->rank;
		}
	for (uint32_t i = 0; i < f->nshare; i++)
		share[i].nrank = ranks_unique((uint32_t *)share[i].rank, share[i].nrank);
	f->nempty = ranks_unique(empty, f->nempty);
	f->share = share;
	f->empty = empty;
	return 0;
}

static const struct indices *list_at(const struct map *m, uint32_t share, int32_t dim)
{
	return &m->facts.share[share].set->dim[dim];
}

/* The distinct lists of a dimension: number of each share's in ret_id[nshare], the lists
 * themselves in ret_list[nshare]. */
static int lists_distinct(const struct map *m, int32_t dim, const struct indices **ret_list,
			  uint32_t *ret_id, uint32_t *ret_n)
{
	struct keymap lists = { 0 };
	struct arena a = { 0 };
	uint32_t n = 0;

	if (keymap_reserve(&lists, &a, m->facts.nshare))
		return -ENOMEM;
	for (uint32_t i = 0; i < m->facts.nshare; i++) {
		const struct indices *x = list_at(m, i, dim);
		uint64_t hash = list_key(0, x);
		uint32_t at = 0;

		do
			ret_id[i] = keymap_next(&lists, hash, &at);
		while (ret_id[i] != KEYMAP_NONE && !indices_equal(ret_list[ret_id[i]], x));
		if (ret_id[i] == KEYMAP_NONE) {
			keymap_put(&lists, hash, n);
			ret_list[n] = x;
			ret_id[i] = n++;
		}
	}
	arena_free(&a);
	*ret_n = n;
	return 0;
}

static bool is_cut(const struct map *m, uint32_t dim)
{
	for (uint32_t i = 0; i < m->facts.nshare; i++)
		if (list_at(m, i, (int32_t)dim)->total != m->shape[dim])
			return true;
	return false;
}

/* Which dimensions are drawn, and where. */
static int choose_axes(struct map *m)
{
	struct map_facts *f = &m->facts;
	const struct indices **list = calloc((size_t)f->nshare + 1, sizeof *list);
	uint32_t *id = calloc((size_t)f->nshare + 1, sizeof *id);
	uint32_t best[2] = { 0, 0 }, n;
	int32_t dim[2] = { -1, -1 };
	int rc = list && id ? 0 : -ENOMEM;

	for (uint32_t d = 0; d < m->ndim && !rc; d++) {
		if (!is_cut(m, d))
			continue;
		f->cut[f->ncut++] = d;
		rc = lists_distinct(m, (int32_t)d, list, id, &n);
		if (n > best[0]) {
			best[1] = best[0];
			dim[1] = dim[0];
			best[0] = n;
			dim[0] = (int32_t)d;
		} else if (n > best[1]) {
			best[1] = n;
			dim[1] = (int32_t)d;
		}
	}
	free(list);
	free(id);
	f->down = MIN(dim[0], dim[1]);
	f->across = MAX(dim[0], dim[1]);
	if (f->down < 0 && m->ndim == 2) {
		f->down = 0;
		f->across = 1;
	} else if (f->across < 0 && m->ndim) {
		f->across = (int32_t)m->ndim - 1;
	}
	for (uint32_t i = 0; i < f->ncut; i++)
		if ((int32_t)f->cut[i] != f->down && (int32_t)f->cut[i] != f->across)
			f->at_zero[f->nzero++] = f->cut[i];
	return rc;
}

/* --- spans --- */

struct cuts {
	uint64_t *at;
	uint32_t n;
	uint64_t below, above; /* only cuts up to the one and from the other on are all known */
};

static int u64_compare(const void *a, const void *b)
{
	return COMPARE(*(const uint64_t *)a, *(const uint64_t *)b);
}

static void cut_add(struct cuts *c, const struct run *r, uint64_t i)
{
	c->at[c->n++] = r->start + i * r->stride;
	c->at[c->n++] = r->start + i * r->stride + r->len;
}

/* The ends of the first and of the last `most` runs of a list. */
static void cuts_of(struct cuts *c, const struct indices *x, uint64_t most)
{
	uint64_t total = indices_runs(x), at = 0;
	bool all = total <= 2 * most;

	for (uint32_t i = 0; i < x->n; at += x->run[i].count, i++) {
		const struct run *r = &x->run[i];

		for (uint64_t k = 0; k < r->count; k++) {
			uint64_t j = at + k;

			if (all || j < most || j >= total - most) {
				cut_add(c, r, k);
				continue;
			}
			if (j == most)
				c->below = MIN(c->below, r->start + k * r->stride);
			/* On to the last run that is left out: of this progression, or of all. */
			k = MIN(r->count - 1, total - most - 1 - at);
			if (at + k == total - most - 1)
				c->above = MAX(c->above, r->start + k * r->stride + r->len);
		}
	}
}

static int axis_cuts(const struct map_axis *a, struct cuts *c)
{
	uint64_t runs = 0, most, room;

	for (uint32_t i = 0; i < a->nlist; i++)
		runs += indices_runs(a->list[i]);
	most = MAP_CUTS_MAX;
	if (runs > MAP_CUTS_MAX)
		most = MIN(ENDS_SHOWN, MAP_CUTS_MAX / a->nlist + 1);
	room = MIN(runs, 2 * most * a->nlist);
	*c = (struct cuts){ .below = UINT64_MAX, .above = 0 };
	c->at = calloc(2 * room + 4, sizeof *c->at);
	if (!c->at)
		return -ENOMEM;
	c->at[c->n++] = 0;
	c->at[c->n++] = a->extent;
	for (uint32_t i = 0; i < a->nlist; i++)
		cuts_of(c, a->list[i], most);
	if (c->below != UINT64_MAX) {
		c->at[c->n++] = c->below;
		c->at[c->n++] = c->above;
	}
	qsort(c->at, c->n, sizeof *c->at, u64_compare);
	return 0;
}

static int axis_spans(struct map *m, struct map_axis *a)
{
	struct cuts c;
	uint64_t last = 0;
	int rc = axis_cuts(a, &c);

	if (rc)
		return rc;
	a->whole = c.below == UINT64_MAX;
	a->span = arena_array(&m->arena, c.n, sizeof *a->span);
	for (uint32_t i = 0; i < c.n && a->span; i++) {
		if (c.at[i] == last || (c.at[i] > c.below && c.at[i] < c.above))
			continue;
		a->span[a->nspan++] =
			(struct map_span){ last, c.at[i],
					   last >= c.below && last < c.above ? UINT64_MAX : 0 };
		last = c.at[i];
	}
	free(c.at);
	return a->span ? 0 : -ENOMEM;
}

static int axis_make(struct map *m, int32_t dim, struct map_axis *a, uint32_t **ret_place)
{
	uint32_t n = m->facts.nshare;

	*a = (struct map_axis){ .dim = dim, .extent = 1, .whole = true, .nspan = 1 };
	*ret_place = arena_array(&m->arena, (size_t)n + 1, sizeof **ret_place);
	a->list = arena_array(&m->arena, (size_t)n + 1, sizeof *a->list);
	a->span = arena_array(&m->arena, 1, sizeof *a->span);
	if (!*ret_place || !a->list || !a->span)
		return -ENOMEM;
	a->span[0].stop = 1;
	if (dim < 0)
		return 0;
	a->extent = m->shape[dim];
	a->nspan = 0;
	if (lists_distinct(m, dim, a->list, *ret_place, &a->nlist))
		return -ENOMEM;
	return axis_spans(m, a);
}

static void choose_drawn(struct map *m)
{
	static const struct map_span zero = { 0, 1, 0 };

	for (uint32_t i = 0; i < m->facts.nshare; i++) {
		m->drawn[i] = true;
		for (uint32_t k = 0; k < m->facts.nzero; k++)
			m->drawn[i] &=
				span_meets(list_at(m, i, (int32_t)m->facts.at_zero[k]), &zero);
	}
}

/* --- how often an element is held --- */

static void count_copies(struct map *m)
{
	struct map_facts *f = &m->facts;
	uint64_t cells = (uint64_t)m->down.nspan * m->across.nspan;
	struct map_view v;

	f->share_min = f->nshare ? UINT64_MAX : 0;
	for (uint32_t i = 0; i < f->nshare; i++) {
		f->held += f->share[i].set->numel * f->share[i].nrank;
		f->share_min = MIN(f->share_min, f->share[i].set->numel);
		f->share_max = MAX(f->share_max, f->share[i].set->numel);
	}
	if (!m->down.whole || !m->across.whole || f->nzero || cells > COPIES_CELLS_MAX || !f->numel)
		return;
	if (map_view_make(m, m->down.nspan, m->across.nspan, MAP_GAP, &v))
		return;
	f->copies_known = true;
	f->copies_min = UINT64_MAX;
	for (uint32_t c = 0; c < cells; c++) {
		uint64_t n = 0;

		for (uint32_t i = v.first[c]; i < v.first[c + 1]; i++)
			n += f->share[v.share[i]].nrank;
		f->copies_min = MIN(f->copies_min, n);
		f->copies_max = MAX(f->copies_max, n);
	}
	map_view_free(&v);
}

static int map_fill_facts(struct map *m, const struct map_in *in, uint32_t nin)
{
	const struct map_in **sorted = calloc((size_t)nin + 1, sizeof *sorted);
	int rc = -ENOMEM;

	if (sorted) {
		for (uint32_t i = 0; i < nin; i++)
			sorted[i] = &in[i];
		qsort(sorted, nin, sizeof *sorted, in_compare);
		rc = make_shares(m, sorted, nin);
	}
	free(sorted);
	if (!rc)
		rc = choose_axes(m);
	if (!rc)
		rc = axis_make(m, m->facts.down, &m->down, &m->down_list);
	if (!rc)
		rc = axis_make(m, m->facts.across, &m->across, &m->across_list);
	m->drawn = arena_array(&m->arena, (size_t)m->facts.nshare + 1, sizeof *m->drawn);
	if (rc || !m->drawn)
		return rc ? rc : -ENOMEM;
	choose_drawn(m);
	count_copies(m);
	return 0;
}

int map_make(uint32_t ndim, const uint64_t *shape, const struct map_in *in, uint32_t nin,
	     struct map **ret)
{
	struct map *m;
	int rc;

	*ret = NULL;
	if (ndim > MAP_DIMS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < nin; i++)
		if (in[i].set->ndim != ndim)
			return -EINVAL;
	m = calloc(1, sizeof *m);
	if (!m)
		return -ENOMEM;
	m->ndim = ndim;
	m->shape = ndim ? arena_dup(&m->arena, shape, ndim * sizeof *shape) : NULL;
	rc = ndim && !m->shape ? -ENOMEM : shape_numel(ndim, shape, &m->facts.numel);
	if (!rc)
		rc = map_fill_facts(m, in, nin);
	if (rc)
		map_free(m);
	else
		*ret = m;
	return rc;
}

void map_free(struct map *m)
{
	if (!m)
		return;
	arena_free(&m->arena);
	free(m);
}

const struct map_facts *map_facts(const struct map *m)
{
	return &m->facts;
}

/* --- what a picture shows --- */

bool map_is_gap(const struct map_span *s, enum map_fit fit)
{
	return s->many == UINT64_MAX || (s->many && fit == MAP_GAP);
}

static uint64_t many_of(const struct map_span *s, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum = s[i].many == UINT64_MAX || sum == UINT64_MAX ? UINT64_MAX : sum + 1;
	return sum;
}

/* The first ones, a gap, the last ones. */
static uint32_t pick_gap(const struct map_axis *a, uint32_t max, struct map_span *ret)
{
	uint32_t tail = max > 8 ? 2 : 1, head = max - 1 - tail, gap = a->nspan - head - tail;

	/* A gap that stands there already must not stay beside the new one. */
	memcpy(ret, a->span, head * sizeof *ret);
	ret[head] = (struct map_span){ a->span[head].start, a->span[head + gap - 1].stop,
				       many_of(a->span + head, gap) };
	memcpy(ret + head + 1, a->span + head + gap, tail * sizeof *ret);
	return max;
}

static uint32_t pick_join(const struct map_axis *a, uint32_t max, struct map_span *ret)
{
	uint32_t per = (a->nspan + max - 1) / max, n = 0;

	for (uint32_t i = 0; i < a->nspan; i += per, n++) {
		uint32_t k = MIN(per, a->nspan - i);

		ret[n] = (struct map_span){ a->span[i].start, a->span[i + k - 1].stop,
					    k > 1 ? many_of(a->span + i, k) : a->span[i].many };
	}
	return n;
}

static int spans_pick(const struct map_axis *a, uint32_t max, enum map_fit fit, struct arena *arena,
		      struct map_span **ret, uint32_t *ret_n)
{
	*ret = arena_array(arena, (size_t)MIN(max, a->nspan) + 1, sizeof **ret);
	if (!*ret)
		return -ENOMEM;
	if (a->nspan <= max) {
		memcpy(*ret, a->span, a->nspan * sizeof **ret);
		*ret_n = a->nspan;
	} else {
		*ret_n = (fit == MAP_GAP ? pick_gap : pick_join)(a, max, *ret);
	}
	return 0;
}

/* The span that index lies in. */
static uint32_t span_at(const struct map_span *span, uint32_t n, uint64_t index)
{
	return SEARCH(i, 0u, n - 1, span[i].stop <= index);
}

/* The same run by run, for lists with fewer runs than there are spans. */
static uint32_t spans_by_run(const struct indices *x, const struct map_span *span, uint32_t n,
			     enum map_fit fit, uint32_t *ret)
{
	struct indices_cursor at = { 0 };
	struct stretch s;
	uint32_t k = 0;

	while (indices_next(x, x, &at, &s))
		for (uint32_t i = span_at(span, n, s.index);
		     i < n && span[i].start < s.index + s.len; i++)
			if (!map_is_gap(&span[i], fit) && (!k || ret[k - 1] < i))
				ret[k++] = i;
	return k;
}

/* Which spans have something of a share: their numbers in ret. */
static uint32_t spans_of(const struct map *m, uint32_t share, int32_t dim,
			 const struct map_span *span, uint32_t n, enum map_fit fit, uint32_t *ret)
{
	const struct indices *x;
	uint32_t k = 0;

	if (dim < 0) {
		ret[0] = 0;
		return 1;
	}
	x = list_at(m, share, dim);
	if (indices_runs(x) < n)
		return spans_by_run(x, span, n, fit, ret);
	for (uint32_t i = 0; i < n; i++)
		if (!map_is_gap(&span[i], fit) && span_meets(x, &span[i]))
			ret[k++] = i;
	return k;
}

static int view_fill(const struct map *m, enum map_fit fit, struct map_view *v)
{
	cleanup_free uint32_t *row = calloc((size_t)v->nrow + 1, sizeof *row);
	cleanup_free uint32_t *col = calloc((size_t)v->ncol + 1, sizeof *col);
	cleanup_free uint32_t *next = NULL;
	uint32_t cells = v->nrow * v->ncol, nr, nc;
	uint64_t hits = 0;

	v->first = arena_array(&v->arena, (size_t)cells + 1, sizeof *v->first);
	if (!row || !col || !v->first)
		return -ENOMEM;
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < m->facts.nshare; i++) {
			if (!m->drawn[i])
				continue;
			nr = spans_of(m, i, m->facts.down, v->row, v->nrow, fit, row);
			nc = nr ? spans_of(m, i, m->facts.across, v->col, v->ncol, fit, col) : 0;
			hits += (uint64_t)nr * nc;
			if (hits > MAP_HITS_MAX)
				return -E2BIG;
			for (uint32_t k = 0; k < nr * nc; k++) {
				uint32_t cell = row[k / nc] * v->ncol + col[k % nc];

				if (pass)
					v->share[next[cell]++] = i;
				else
					v->first[cell + 1]++;
			}
		}
		if (pass)
			break;
		for (uint32_t c = 0; c < cells; c++)
			v->first[c + 1] += v->first[c];
		v->share = arena_array(&v->arena, hits + 1, sizeof *v->share);
		next = calloc((size_t)cells + 1, sizeof *next);
		if (!v->share || !next)
			return -ENOMEM;
		memcpy(next, v->first, cells * sizeof *next);
		hits = 0;
	}
	return 0;
}

int map_view_make(const struct map *m, uint32_t row_max, uint32_t col_max, enum map_fit fit,
		  struct map_view *ret)
{
	int rc;

	*ret = (struct map_view){ 0 };
	rc = spans_pick(&m->down, row_max, fit, &ret->arena, &ret->row, &ret->nrow);
	if (!rc)
		rc = spans_pick(&m->across, col_max, fit, &ret->arena, &ret->col, &ret->ncol);
	if (!rc)
		rc = view_fill(m, fit, ret);
	if (rc)
		map_view_free(ret);
	return rc;
}

void map_view_free(struct map_view *v)
{
	arena_free(&v->arena);
	*v = (struct map_view){ 0 };
}

bool map_cell_equal(const struct map_view *v, uint32_t x, uint32_t y)
{
	uint32_t n = v->first[x + 1] - v->first[x];

	return n == v->first[y + 1] - v->first[y] &&
	       !memcmp(v->share + v->first[x], v->share + v->first[y], n * sizeof *v->share);
}

int map_cell_ranks(const struct map *m, struct map_view *v, uint32_t cell, uint32_t *ret_n,
		   const uint32_t **ret_rank)
{
	uint32_t from = v->first[cell], to = v->first[cell + 1], n = 0;
	uint32_t *rank;

	for (uint32_t i = from; i < to; i++)
		n += m->facts.share[v->share[i]].nrank;
	*ret_n = n;
	*ret_rank = n ? m->facts.share[v->share[from]].rank : NULL;
	if (to - from < 2)
		return 0;
	rank = arena_array(&v->arena, n, sizeof *rank);
	if (!rank)
		return -ENOMEM;
	n = 0;
	for (uint32_t i = from; i < to; i++) {
		const struct map_share *s = &m->facts.share[v->share[i]];

		memcpy(rank + n, s->rank, s->nrank * sizeof *rank);
		n += s->nrank;
	}
	*ret_n = ranks_unique(rank, n);
	*ret_rank = rank;
	return 0;
}

/* Neighbours differ: along a row by one, along a column by three. */
uint32_t map_colour(const struct map *m, uint32_t share, uint32_t ncolour)
{
	return (m->across_list[share] + 3 * m->down_list[share]) % ncolour;
}

int map_list_ranks(const struct map *m, const struct map_axis *a, uint32_t list,
		   struct arena *arena, uint32_t *ret_n, const uint32_t **ret_rank)
{
	const uint32_t *of = a == &m->down ? m->down_list : m->across_list;
	uint32_t n = 0, *rank;

	for (uint32_t i = 0; i < m->facts.nshare; i++)
		n += of[i] == list ? m->facts.share[i].nrank : 0;
	rank = arena_array(arena, (size_t)n + 1, sizeof *rank);
	if (!rank)
		return -ENOMEM;
	n = 0;
	for (uint32_t i = 0; i < m->facts.nshare; i++) {
		const struct map_share *s = &m->facts.share[i];

		if (of[i] != list)
			continue;
		memcpy(rank + n, s->rank, s->nrank * sizeof *rank);
		n += s->nrank;
	}
	*ret_n = ranks_unique(rank, n);
	*ret_rank = rank;
	return 0;
}

/* --- in words --- */

static void whole_dims(const struct map *m, struct text *t)
{
	const char *before = "; whole: ";

	for (uint32_t d = 0, k = 0; d < m->ndim; d++) {
		if (k < m->facts.ncut && m->facts.cut[k] == d) {
			k++;
			continue;
		}
		if ((int32_t)d == m->facts.down || (int32_t)d == m->facts.across)
			continue;
		text_add(t, "%s%u", before, d);
		before = ", ";
	}
	before = "; at index 0 of: ";
	for (uint32_t i = 0; i < m->facts.nzero; i++, before = ", ")
		text_add(t, "%s%u", before, m->facts.at_zero[i]);
}

char *map_axes(const struct map *m, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	if (m->ndim < 2)
		return buf;
	if (m->facts.down >= 0)
		text_add(&t, "down: dimension %d, ", m->facts.down);
	text_add(&t, "across: dimension %d", m->facts.across);
	whole_dims(m, &t);
	return buf;
}

static uint64_t bytes_of(uint64_t numel, uint32_t elem_bits)
{
	unsigned __int128 n = (unsigned __int128)numel * elem_bits / 8;

	return n > UINT64_MAX ? UINT64_MAX : (uint64_t)n;
}

static void copies_say(const struct map_facts *f, struct text *t)
{
	if (!f->copies_known && f->held == f->numel)
		text_add(t, "on average every element is held once");
	else if (!f->copies_known)
		text_add(t, "on average every element is held by %.4g ranks",
			 (double)f->held / (double)f->numel);
	else if (f->copies_min == 1 && f->copies_max == 1)
		text_add(t, "every element is held once");
	else if (f->copies_min == f->copies_max)
		text_add(t, "every element is held by %llu ranks",
			 (unsigned long long)f->copies_min);
	else if (f->copies_min)
		text_add(t, "elements are held by %llu to %llu ranks",
			 (unsigned long long)f->copies_min, (unsigned long long)f->copies_max);
	else
		text_add(t, "some elements are held by no rank, others by up to %llu rank%s",
			 (unsigned long long)f->copies_max, f->copies_max == 1 ? "" : "s");
}

char *map_sentence(const struct map *m, uint32_t elem_bits, char *buf, size_t bytes)
{
	const struct map_facts *f = &m->facts;
	struct text t = text_in(buf, bytes);
	char a[HUMAN_BYTES], b[HUMAN_BYTES];

	if (!f->numel) {
		text_add(&t, "it has no elements");
		return buf;
	}
	copies_say(f, &t);
	if (!f->nshare)
		return buf;
	if (elem_bits) {
		human_bytes(bytes_of(f->share_min, elem_bits), a);
		human_bytes(bytes_of(f->share_max, elem_bits), b);
	} else {
		human_count(f->share_min, a);
		human_count(f->share_max, b);
	}
	if (f->nshare == 1)
		text_add(&t, ", in 1 block of %s", a);
	else if (!strcmp(a, b))
		text_add(&t, ", in %s blocks of %s", human_count(f->nshare, b), a);
	else
		text_add(&t, ", in %u blocks of %s to %s", f->nshare, a, b);
	if (!elem_bits)
		text_add(&t, " element%s", f->share_max == 1 ? "" : "s");
	return buf;
}
