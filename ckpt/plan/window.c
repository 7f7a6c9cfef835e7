/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - cuts a table into windows. Called by the mover.
 * Invariant: all windows together hold every byte of every piece once; the bytes of a piece come in
 * ascending order; and where the cuts lie follows from the table and the limit alone.
 */
#include "ckpt/plan/window.h"
#include "ckpt/base/util.h"

/* The description of a window stays small beside its buffer, also where tensors are tiny. */
#define CUTS_MAX 16384u
/* Cuts of this size and more lie in the buffer as they lie on the pages of their place, so that
 * whole pages can go to a file without a copy. */
#define PAGE_CUT (64u << 10)
#define PAGE 4096u

/* A piece that has elements where the walk is. */
struct active {
	uint32_t piece;
	const struct indices *list; /* of the dimension that is walked; NULL: 0-d */
	uint64_t unit;		    /* bytes of one index of it */
	uint64_t base;		    /* bytes of the piece before the walk's outer indices */
};

struct windows {
	const struct table *dst;
	uint64_t bytes_max, number;
	uint32_t tensor;
	/* at[0 .. depth-1] are fixed; dimension `depth` is done up to at[depth]. */
	uint32_t depth;
	uint64_t at[CKPT_DIMS_MAX + 1];
	struct active *active; /* [most pieces of a tensor] */
	uint32_t nactive;
};

/* A window on its way. Without `cut` it is only counted. */
struct filling {
	struct windows *w;
	uint64_t end; /* of what lies in the buffer */
	uint32_t ncut, cap;
	bool make;
	struct window_cut *cut;
	struct window *ret;
	uint32_t tensor, id; /* the last tensor that was added, and its number in the window */
	struct ckpt_err *err;
};

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for the windows of a table");
}

/* --- where the walk is --- */

/* How far dimension `depth` of the tensor goes; a 0-d tensor is walked as one index. */
static uint64_t walk_extent(const struct windows *w)
{
	const struct table_tensor *x = &w->dst->tensor[w->tensor];

	return x->ndim ? x->shape[w->depth] : 1;
}

static void actives_find(struct windows *w)
{
	const struct table *t = w->dst;
	const struct table_tensor *x = &t->tensor[w->tensor];

	w->nactive = 0;
	for (uint32_t i = t->first[w->tensor]; i < t->first[w->tensor + 1]; i++) {
		const struct indexset *set = &t->piece[i].set;
		struct active a = { .piece = i, .unit = x->elem_bytes };
		uint64_t unit = x->elem_bytes;
		bool inside = true;

		for (uint32_t d = x->ndim; d-- > 0; unit *= set->dim[d].total) {
			uint64_t below;

			if (d > w->depth)
				continue;
			if (d == w->depth) {
				a.list = &set->dim[d];
				a.unit = unit;
				continue;
			}
			below = indices_below(&set->dim[d], w->at[d]);
			inside &= indices_below(&set->dim[d], w->at[d] + 1) > below;
			a.base += below * unit;
		}
		if (inside)
			w->active[w->nactive++] = a;
	}
}

static uint64_t bytes_below(const struct active *a, uint64_t index)
{
	return a->list ? indices_below(a->list, index) * a->unit : index * a->unit;
}

/* The most space that the indices [at, to) can take, and how many pieces have some of them. */
static uint64_t space_for(const struct windows *w, uint64_t to, uint32_t *ret_ncut)
{
	uint64_t sum = 0;

	*ret_ncut = 0;
	for (uint32_t i = 0; i < w->nactive; i++) {
		const struct active *a = &w->active[i];
		uint64_t n = bytes_below(a, to) - bytes_below(a, w->at[w->depth]);

		*ret_ncut += n != 0;
		if (ckpt_add(sum, n + (n >= PAGE_CUT ? PAGE : 0), &sum) < 0)
			return UINT64_MAX;
	}
	return sum;
}

/* The end of as many indices as there is space for. */
static uint64_t walk_fit(const struct windows *w, uint64_t space)
{
	uint64_t all = walk_extent(w);
	uint32_t n;

	if (space_for(w, all, &n) <= space)
		return all;
	return SEARCH(to, w->at[w->depth] + 1, all, space_for(w, to, &n) <= space) - 1;
}

/* To the next index that is not done; to the next tensor behind the last. */
static void walk_to(struct windows *w, uint64_t to)
{
	w->at[w->depth] = to;
	while (w->at[w->depth] >= walk_extent(w)) {
		if (!w->depth) {
			w->tensor++;
			w->at[0] = 0;
			return;
		}
		w->depth--;
		w->at[w->depth]++;
	}
}

/* --- a window --- */

static int cut_set(const struct windows *w, const struct active *a, uint64_t to, struct arena *mem,
		   struct indexset *ret)
{
	const struct indexset *set = &w->dst->piece[a->piece].set;
	struct indices *dim = arena_array(mem, MAX(set->ndim, 1u), sizeof *dim);
	int e = 0;

	if (!dim)
		return -ENOMEM;
	*ret = (struct indexset){ .ndim = set->ndim, .numel = 1, .dim = dim };
	for (uint32_t d = 0; d < set->ndim && !e; d++) {
		if (d < w->depth)
			e = indices_range(w->at[d], w->at[d] + 1, mem, &dim[d]);
		else if (d > w->depth)
			dim[d] = set->dim[d];
		else
			e = indices_slice(&set->dim[d], indices_below(&set->dim[d], w->at[d]),
					  indices_below(&set->dim[d], to), mem, &dim[d]);
		ret->numel *= dim[d].total;
	}
	return e;
}

static int tensor_add(struct filling *f)
{
	struct table_tensor x = f->w->dst->tensor[f->w->tensor];

	if (f->id != TABLE_NONE && f->tensor == f->w->tensor)
		return 0;
	f->tensor = f->w->tensor;
	x.layout = TABLE_NONE;
	x.made = 0; /* a plan does not depend on it */
	return table_add_tensor(&f->ret->table, &x, &f->id, f->err);
}

static int cut_add(struct filling *f, const struct active *a, uint64_t to,
		   const struct window_cut *cut)
{
	struct table_piece p = { .tensor = f->id,
				 .rank = f->w->dst->piece[a->piece].rank,
				 .off = cut->buf_off };
	struct window_cut *c;
	int e;

	if (!ARRAY_GROW(f->cut, f->ncut, f->cap))
		return no_memory(f->err);
	c = &f->cut[f->ncut];
	*c = *cut;
	e = cut_set(f->w, a, to, &f->ret->table.arena, &c->set);
	if (e < 0)
		return ckpt_error(f->err, e,
				  "out of memory for a window, or it falls into too "
				  "many runs");
	p.set = c->set;
	return table_put_piece(&f->ret->table, &p, f->err);
}

/* Take the indices up to `to` into the window. */
static int indices_take(struct filling *f, uint64_t to)
{
	struct windows *w = f->w;
	uint32_t elem = w->dst->tensor[w->tensor].elem_bytes;
	int e = 0;

	for (uint32_t i = 0; i < w->nactive && !e; i++) {
		const struct active *a = &w->active[i];
		const struct table_piece *p = &w->dst->piece[a->piece];
		uint64_t lo = bytes_below(a, w->at[w->depth]), len = bytes_below(a, to) - lo;
		struct window_cut cut = { .place = p->place,
					  .piece = a->piece,
					  .dst_off = p->off + a->base + lo,
					  .len = len };

		if (!len)
			continue;
		f->end = align_up(f->end, elem);
		if (len >= PAGE_CUT)
			f->end += (cut.dst_off - f->end) % PAGE;
		cut.buf_off = f->end;
		f->end += len;
		if (f->make)
			e = tensor_add(f);
		if (f->make && !e)
			e = cut_add(f, a, to, &cut);
		f->ncut++;
	}
	walk_to(w, to);
	return e;
}

/*
 * One step of the walk: 1 something was taken, or the walk went one dimension deeper; 0 the window
 * is full. Deeper where not one index fits and the window is not yet half full, so that every
 * window but the last is.
 */
static int walk_step(struct filling *f)
{
	struct windows *w = f->w;
	const struct table_tensor *x = &w->dst->tensor[w->tensor];
	uint64_t at = align_up(f->end, x->elem_bytes), to, space;
	uint32_t ncut;
	int e;

	space = w->bytes_max > at ? w->bytes_max - at : 0;
	actives_find(w);
	to = walk_fit(w, space);
	(void)space_for(w, to, &ncut);
	if (f->ncut && f->ncut + ncut > CUTS_MAX)
		return 0;
	if (to > w->at[w->depth]) {
		e = indices_take(f, to);
		return e < 0 ? e : 1;
	}
	if (f->ncut && space < w->bytes_max / 2)
		return 0;
	if (w->depth + 1 < x->ndim) {
		w->at[++w->depth] = 0;
		return 1;
	}
	if (f->ncut)
		return 0;
	return ckpt_error(f->err, -E2BIG,
			  "%s/%s: one element for all its places takes more than the %llu bytes of "
			  "a window",
			  x->component, x->name, (unsigned long long)w->bytes_max);
}

static int window_fill(struct filling *f)
{
	struct windows *w = f->w;
	int e = 1;

	while (e > 0 && w->tensor < w->dst->ntensor) {
		if (w->dst->first[w->tensor] == w->dst->first[w->tensor + 1]) {
			w->tensor++;
			continue;
		}
		e = walk_step(f);
	}
	return e < 0 ? e : 0;
}

static int cut_compare(const void *va, const void *vb)
{
	const struct window_cut *a = va, *b = vb;
	int r = COMPARE(a->place, b->place);

	return r ? r : COMPARE(a->dst_off, b->dst_off);
}

static int window_make(struct filling *f)
{
	struct table *t = &f->ret->table;
	struct table_place place = { .name = "window", .rank = TABLE_NONE, .bytes = INT64_MAX };
	int e = table_add_place(t, &place, NULL, f->err);

	if (!e)
		e = window_fill(f);
	if (e < 0 || !f->ncut)
		return e;
	t->place[0].bytes = f->end;
	qsort(f->cut, f->ncut, sizeof *f->cut, cut_compare);
	f->ret->cut = arena_dup(&t->arena, f->cut, f->ncut * sizeof *f->cut);
	if (!f->ret->cut)
		return no_memory(f->err);
	f->ret->ncut = f->ncut;
	f->ret->bytes = f->end;
	return table_seal(t, f->err);
}

int windows_next(struct windows *w, struct window *ret, struct ckpt_err *err)
{
	struct filling f = { .w = w, .make = true, .ret = ret, .id = TABLE_NONE, .err = err };
	int e;

	*ret = (struct window){ .number = w->number };
	e = window_make(&f);
	free(f.cut);
	if (e < 0 || !f.ncut)
		window_free(ret);
	else
		w->number++;
	return e < 0 ? e : f.ncut > 0;
}

int windows_skip(struct windows *w, uint64_t n, struct ckpt_err *err)
{
	int e = 0;

	for (uint64_t i = 0; i < n && !e; i++) {
		struct filling f = { .w = w, .id = TABLE_NONE, .err = err };

		e = window_fill(&f);
		if (!f.ncut)
			break;
		w->number++;
	}
	return e;
}

int windows_open(const struct table *dst, uint64_t bytes_max, struct windows **ret,
		 struct ckpt_err *err)
{
	struct windows *w = calloc(1, sizeof *w);
	uint32_t most = 0;

	assert(dst->sealed);
	*ret = NULL;
	if (!w)
		return no_memory(err);
	for (uint32_t i = 0; i < dst->npiece; i++) {
		if (dst->piece[i].stride) {
			free(w);
			return ckpt_error(err, -EINVAL,
					  "%s: a piece is not row-major and cannot be cut into "
					  "windows",
					  dst->tensor[dst->piece[i].tensor].name);
		}
	}
	for (uint32_t i = 0; i < dst->ntensor; i++)
		most = MAX(most, dst->first[i + 1] - dst->first[i]);
	w->dst = dst;
	w->bytes_max = bytes_max;
	w->active = calloc((size_t)most + 1, sizeof *w->active);
	if (!w->active) {
		free(w);
		return no_memory(err);
	}
	*ret = w;
	return 0;
}

void windows_close(struct windows *w)
{
	if (w)
		free(w->active);
	free(w);
}

void window_free(struct window *w)
{
	table_free(&w->table);
	*w = (struct window){ 0 };
}
