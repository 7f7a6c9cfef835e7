/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_view_model.h - for the tests of views: random tables whose pieces lie anyhow in real memory,
 * and a model of the same tensors as plain arrays, in which views are carried out element by
 * element, by coordinates. The model knows nothing of pieces, runs, strides or patterns.
 */
#ifndef CKPT_TEST_VIEW_MODEL_H
#define CKPT_TEST_VIEW_MODEL_H
#pragma GCC diagnostic ignored "-Wunused-function"
#include "tests/unit/test_layout_naive.h"
#include "ckpt/base/error.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/hash.h"
#include "ckpt/table/view.h"
#include "tests/lib/row.h"

#define DIMS 5
#define CELLS 4096
#define MODELS 160
#define PLACES 4
#define PLACE_BYTES 16384
#define TEXT_BYTES 16384

struct model {
	bool gone;
	char name[64]; /* component/name */
	uint32_t dtype, ndim;
	uint64_t shape[DIMS + 3];
	uint64_t *v; /* row-major */
};

struct world {
	struct table t;
	uint8_t mem[PLACES][PLACE_BYTES];
	uint64_t end[PLACES];
	struct model m[MODELS];
	uint32_t n;
	uint32_t next; /* of names */
	char text[TEXT_BYTES],
		back[TEXT_BYTES]; /* rules; and those that undo them, first to last */
};

static inline uint64_t numel_of(uint32_t ndim, const uint64_t *shape)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < ndim; d++)
		n *= shape[d];
	return n;
}

static inline void coord_of(const struct model *m, uint64_t g, uint64_t *c)
{
	for (uint32_t d = m->ndim; d-- > 0; g /= m->shape[d])
		c[d] = g % m->shape[d];
}

static inline uint64_t *cell(const struct model *m, const uint64_t *c)
{
	uint64_t g = 0;

	for (uint32_t d = 0; d < m->ndim; d++) {
		assert_true(c[d] < m->shape[d]);
		g = g * m->shape[d] + c[d];
	}
	return &m->v[g];
}

static inline struct model *model_new(struct world *w, uint32_t dtype, uint32_t ndim,
				      const uint64_t *shape)
{
	struct model *m = &w->m[w->n++];

	assert_true(w->n <= MODELS && ndim <= DIMS + 3);
	*m = (struct model){ .dtype = dtype, .ndim = ndim };
	memcpy(m->shape, shape, ndim * sizeof *shape);
	m->v = calloc(numel_of(ndim, shape) + 1, sizeof *m->v);
	assert_non_null(m->v);
	snprintf(m->name, sizeof m->name, "%s/l.%u.w", naive_below(2) ? "model" : "optim.m1",
		 w->next++);
	return m;
}

/* --- tables --- */

static inline uint64_t mask_of(uint32_t dtype)
{
	uint32_t bytes = dtype_bytes(dtype);

	return bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1;
}

static inline uint64_t index_at(const struct indices *x, uint64_t pos)
{
	for (uint32_t i = 0; i < x->n; i++) {
		const struct run *r = &x->run[i];

		if (pos < r->len * r->count)
			return r->start + pos / r->len * r->stride + pos % r->len;
		pos -= r->len * r->count;
	}
	fail();
	return 0;
}

/* Every element of the piece: its row-major index in the tensor, and its byte in the place. */
struct walk {
	const struct table *t;
	const struct table_piece *p;
	uint64_t i, g, off;
};

static inline bool walk_next(struct walk *w)
{
	const struct table_tensor *x = &w->t->tensor[w->p->tensor];
	uint64_t rest = w->i, step = 1, weight = 1;

	if (w->i++ == w->p->set.numel)
		return false;
	w->g = 0;
	w->off = w->p->off;
	for (uint32_t d = x->ndim; d-- > 0;) {
		uint64_t total = w->p->set.dim[d].total, pos = rest % total;

		w->g += index_at(&w->p->set.dim[d], pos) * weight;
		w->off += pos * (w->p->stride ? (uint64_t)w->p->stride[d] : step) * x->elem_bytes;
		step *= total;
		weight *= x->shape[d];
		rest /= total;
	}
	return true;
}

static inline uint64_t load(const struct world *w, const struct walk *at, uint32_t bytes)
{
	uint64_t v = 0;

	assert_true(at->off + bytes <= PLACE_BYTES);
	memcpy(&v, w->mem[at->p->place] + at->off, bytes);
	return v;
}

/* A piece somewhere behind what is in a place already: row-major, or with its dimensions in another
 * order and room between them. */
static inline void add_piece(struct world *w, uint32_t tensor, uint32_t rank,
			     const struct indexset *set)
{
	const struct table_tensor *x = &w->t.tensor[tensor];
	uint32_t place = naive_below(PLACES), order[DIMS + 3], n = set->ndim;
	struct table_piece p = { .tensor = tensor, .rank = rank, .place = place, .set = *set };
	int64_t stride[DIMS + 3], step = 1;
	struct ckpt_err err;

	if (!set->numel)
		return;
	/* Five tensors of 5 x 5 x 5 on four ranks, with their gaps, fit like this. */
	for (uint32_t i = 0; i < PLACES && w->end[place] > PLACE_BYTES / 4; i++)
		if (w->end[i] < w->end[place])
			p.place = place = i;
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = naive_below(i), o = order[j];

		order[j] = order[i - 1];
		order[i - 1] = o;
	}
	for (uint32_t i = 0; i < n; i++) {
		stride[order[i]] = step + naive_below(2);
		step = stride[order[i]] * (int64_t)set->dim[order[i]].total;
	}
	if (naive_below(2))
		p.stride = stride;
	else
		step = (int64_t)set->numel;
	p.off = w->end[place] + naive_below(3) * x->elem_bytes;
	w->end[place] = p.off + (uint64_t)step * x->elem_bytes;
	assert_true(w->end[place] <= PLACE_BYTES);
	assert_ok_err(table_add_piece(&w->t, &p, &err), &err);
}

/* Some order of mesh dimensions cuts some tensor dimensions. */
static inline void random_layout(struct world *w, uint32_t ndim, uint32_t *ret)
{
	struct ckpt_placement place[3] = { 0 };
	const struct mesh *m = &w->t.mesh[0];
	struct layout l = { .place = place };

	for (uint32_t d = 0; d < m->ndim; d++) {
		if (!ndim || naive_below(3) == 0)
			continue;
		place[l.nplace++] =
			(struct ckpt_placement)ROW(.how = CKPT_SHARD, .mesh_dim = (uint16_t)d,
						   .tensor_dim = (uint16_t)naive_below(ndim),
						   .split_factor = naive_below(3));
	}
	assert_int_equal(table_add_layout(&w->t, &l, ret, NULL), 0);
}

static inline void add_tensor(struct world *w, struct model *m)
{
	static const char *const of[] = { "", "l.1.w" };
	struct table_tensor x =
		ROW(.of = of[naive_below(2)], .dtype = m->dtype, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = m->ndim, .shape = m->shape,
		    .role = m->dtype == CKPT_F32 ? CKPT_PARAM : CKPT_MOMENT1);
	char component[64];
	struct arena a = { 0 };
	struct indexset set;
	uint32_t id, coord[DIMS];

	snprintf(component, sizeof component, "%s", m->name);
	*strchr(component, '/') = 0;
	x.component = component;
	x.name = strchr(m->name, '/') + 1;
	random_layout(w, m->ndim, &x.layout);
	for (uint64_t g = 0; g < numel_of(m->ndim, m->shape); g++) {
		uint64_t v = m->v[g];

		x.fp += fingerprint(&v, 1, dtype_bytes(m->dtype), g);
	}
	x.fp_known = true;
	assert_int_equal(table_add_tensor(&w->t, &x, &id, NULL), 0);
	for (uint32_t r = 0; r < w->t.mesh[0].nrank; r++) {
		assert_true(mesh_coord(&w->t.mesh[0], r, coord));
		assert_ok(layout_share(&w->t.mesh[0], &w->t.layout[x.layout], x.ndim, x.shape,
				       coord, &a, &set));
		add_piece(w, id, r, &set);
	}
	arena_free(&a);
}

static inline void world_free(struct world *w)
{
	for (uint32_t i = 0; i < w->n; i++)
		free(w->m[i].v);
	table_free(&w->t);
	free(w);
}

static inline struct world *world_make(void)
{
	static const uint32_t dtypes[] = { CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F32, CKPT_I64 };
	static const char *const meshes[] = { "fsdp=1", "fsdp=2", "fsdp=3", "dp=2,tp=2" };
	struct world *w = calloc(1, sizeof *w);
	uint32_t n = 2 + naive_below(4);
	uint64_t shape[DIMS] = { 0 };
	struct arena a = { 0 };
	struct mesh mesh;

	assert_non_null(w);
	assert_int_equal(mesh_parse(meshes[naive_below(4)], &a, &mesh, NULL), 0);
	assert_int_equal(table_add_mesh(&w->t, &mesh, NULL, NULL), 0);
	arena_free(&a);
	for (uint32_t i = 0; i < PLACES; i++)
		assert_ok(table_add_place(&w->t, &(struct table_place){ "memory", i, PLACE_BYTES },
					  NULL, NULL));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t ndim = i && naive_below(2) ? w->m[i - 1].ndim : naive_below(4);
		uint32_t dtype = i && naive_below(2) ? w->m[i - 1].dtype
						     : dtypes[naive_below(ARRAY_LEN(dtypes))];
		struct model *m;

		/* Some have one another's shape but for one dimension: they can be joined. */
		if (!i || ndim != w->m[i - 1].ndim)
			for (uint32_t d = 0; d < ndim; d++)
				shape[d] = naive_below(20) ? 1 + naive_below(5) : 0;
		else if (ndim)
			shape[naive_below(ndim)] = 1 + naive_below(5);
		m = model_new(w, dtype, ndim, shape);
		for (uint64_t g = 0; g < numel_of(ndim, shape); g++)
			m->v[g] = (UINT64_C(0x9e3779b97f4a7c15) * (1000 * i + g + 1)) &
				  mask_of(dtype);
		add_tensor(w, m);
	}
	assert_int_equal(table_seal(&w->t, NULL), 0);
	for (uint32_t i = 0; i < PLACES; i++)
		memset(w->mem[i], 0xee, PLACE_BYTES);
	for (uint32_t i = 0; i < w->t.npiece; i++) {
		struct walk at = { .t = &w->t, .p = &w->t.piece[i] };

		while (walk_next(&at))
			memcpy(w->mem[at.p->place] + at.off, &w->m[at.p->tensor].v[at.g],
			       w->t.tensor[at.p->tensor].elem_bytes);
	}
	return w;
}

/* --- views, element by element --- */

__attribute__((format(printf, 2, 3))) static inline void say(char *text, const char *fmt, ...)
{
	size_t n = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + n, TEXT_BYTES - n, fmt, ap);
	va_end(ap);
	assert_true(strlen(text) < TEXT_BYTES - 1);
}

/* In front of what is there. */
__attribute__((format(printf, 2, 3))) static inline void say_first(char *text, const char *fmt, ...)
{
	static char rest[TEXT_BYTES];
	va_list ap;

	memcpy(rest, text, sizeof rest);
	va_start(ap, fmt);
	vsnprintf(text, TEXT_BYTES, fmt, ap);
	va_end(ap);
	say(text, "%s", rest);
}

static inline void apply_rename(struct world *w, struct model *m)
{
	char was[64];

	snprintf(was, sizeof was, "%s", m->name);
	snprintf(m->name, sizeof m->name, "%s/l.%u.w", naive_below(2) ? "model" : "other",
		 w->next++);
	say(w->text, "rename %s -> %s\n", was, m->name);
	say_first(w->back, "rename %s -> %s\n", m->name, was);
}

/* One tensor more; undone by a drop. */
static inline void apply_copy(struct world *w, struct model *m)
{
	struct model *y = model_new(w, m->dtype, m->ndim, m->shape);

	memcpy(y->v, m->v, numel_of(m->ndim, m->shape) * sizeof *y->v);
	say(w->text, "copy %s -> %s\n", m->name, y->name);
	say_first(w->back, "drop %s\n", y->name);
}

static inline void apply_transpose(struct world *w, struct model *m)
{
	uint64_t dims[DIMS + 3], c[DIMS + 3] = { 0 }, e[DIMS + 3], shape[DIMS + 3];
	uint32_t back[DIMS + 3];
	struct model *y;
	char list[64] = "", undo[64] = "";

	for (uint32_t d = 0; d < m->ndim; d++)
		dims[d] = d;
	for (uint32_t i = m->ndim; i > 1; i--) {
		uint32_t j = naive_below(i);
		uint64_t o = dims[j];

		dims[j] = dims[i - 1];
		dims[i - 1] = o;
	}
	for (uint32_t d = 0; d < m->ndim; d++) {
		shape[d] = m->shape[dims[d]];
		back[dims[d]] = d;
	}
	y = model_new(w, m->dtype, m->ndim, shape);
	for (uint64_t g = 0; g < numel_of(m->ndim, m->shape); g++) {
		coord_of(m, g, c);
		for (uint32_t d = 0; d < m->ndim; d++)
			e[d] = c[dims[d]];
		*cell(y, e) = m->v[g];
	}
	for (uint32_t d = 0; d < m->ndim; d++) {
		snprintf(list + strlen(list), 8, "%s%u", d ? "," : "", (uint32_t)dims[d]);
		snprintf(undo + strlen(undo), 8, "%s%u", d ? "," : "", back[d]);
	}
	m->gone = true;
	say_first(w->back, "transpose %s dims %s -> %s\n", y->name, undo, m->name);
	if (naive_below(2)) {
		say(w->text, "transpose %s dims %s -> %s # as it was meant\n", m->name, list,
		    y->name);
	} else {
		say(w->text, "transpose %s dims %s\n rename %s -> %s\n", m->name, list, m->name,
		    y->name);
	}
}

/* "2,3,4"; "scalar" */
static inline void shape_text(uint32_t ndim, const uint64_t *shape, int rest, char *ret)
{
	snprintf(ret, 64, "%s", ndim ? "" : "scalar");
	for (uint32_t d = 0; d < ndim; d++)
		snprintf(ret + strlen(ret), 8, "%s%d", d ? "," : "",
			 (int)d == rest ? -1 : (int)shape[d]);
}

/* The same numbers in a row, in some other shape with as many. */
static inline void apply_reshape(struct world *w, struct model *m)
{
	uint64_t shape[DIMS + 3], left = numel_of(m->ndim, m->shape);
	uint32_t n = left == 1 ? naive_below(3) : 1 + naive_below(4);
	char is[64], was[64];
	int rest = -1;

	for (uint32_t d = 0; d < n; d++) {
		/* A divisor of what is left; the last dimension takes all of it. */
		shape[d] = d + 1 == n || !left ? left : 1 + naive_below((uint32_t)left);
		while (left && left % shape[d])
			shape[d]--;
		left = left ? left / shape[d] : 1 + naive_below(3);
	}
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = naive_below(i);
		uint64_t o = shape[j];

		shape[j] = shape[i - 1];
		shape[i - 1] = o;
	}
	if (n && naive_below(2) && numel_of(n, shape))
		rest = (int)naive_below(n);
	shape_text(n, shape, rest, is);
	shape_text(m->ndim, m->shape, -1, was);
	say(w->text, "reshape %s %s\n", m->name, is);
	say_first(w->back, "reshape %s %s\n", m->name, was);
	m->ndim = n;
	memcpy(m->shape, shape, sizeof shape);
}

/* The parts of dimension d that begin at the given places; drop: without it. */
static inline void apply_cut(struct world *w, struct model *m, uint32_t d, bool drop)
{
	uint64_t at = 0, c[DIMS + 3] = { 0 }, e[DIMS + 3], shape[DIMS + 3];
	char sizes[256] = "", names[4096] = "";
	int dim = naive_below(2) ? (int)d : (int)d - (int)m->ndim;
	uint32_t first = w->n;

	while (at < m->shape[d]) {
		uint64_t size = drop ? 1 : 1 + naive_below((uint32_t)(m->shape[d] - at));
		uint32_t n = 0;
		struct model *y;

		for (uint32_t i = 0; i < m->ndim; i++)
			if (!drop || i != d)
				shape[n++] = i == d ? size : m->shape[i];
		y = model_new(w, m->dtype, n, shape);
		for (uint64_t g = 0; g < numel_of(m->ndim, m->shape); g++) {
			coord_of(m, g, c);
			if (c[d] < at || c[d] >= at + size)
				continue;
			n = 0;
			for (uint32_t i = 0; i < m->ndim; i++)
				if (!drop || i != d)
					e[n++] = i == d ? c[i] - at : c[i];
			*cell(y, e) = m->v[g];
		}
		snprintf(sizes + strlen(sizes), 24, "%s%u", *sizes ? "," : "", (uint32_t)size);
		snprintf(names + strlen(names), 80, " %s", y->name);
		at += size;
	}
	m->gone = true;
	if (drop && naive_below(2)) {
		for (uint32_t i = first; i < w->n; i++)
			snprintf(w->m[i].name, sizeof w->m[i].name, "model/n%u.%u.x", w->next,
				 i - first);
		say(w->text, "unstack %s dim %d -> model/n%u.#.x\n", m->name, dim, w->next);
		say_first(w->back, "stack model/n%u.#.x dim %u -> %s\n", w->next++, d, m->name);
	} else if (drop) {
		say(w->text, "unstack %s dim %d ->%s\n", m->name, dim, names);
		say_first(w->back, "stack%s dim %u -> %s\n", names, d, m->name);
	} else {
		say(w->text, "split %s dim %d sizes %s ->%s\n", m->name, dim, sizes, names);
		say_first(w->back, "concat%s dim %u -> %s\n", names, d, m->name);
	}
}

static inline bool can_join(const struct model *a, const struct model *b, uint32_t d, bool stack)
{
	if (b->gone || a->dtype != b->dtype || a->ndim != b->ndim ||
	    numel_of(b->ndim, b->shape) == 0)
		return false;
	for (uint32_t i = 0; i < a->ndim; i++)
		if (a->shape[i] != b->shape[i] && (stack || i != d))
			return false;
	return true;
}

static inline void apply_join(struct world *w, struct model *a, uint32_t d, bool stack)
{
	uint64_t c[DIMS + 3] = { 0 }, e[DIMS + 3], shape[DIMS + 3] = { 0 }, at = 0;
	uint32_t part[4], n = 1, ndim = a->ndim + stack;
	int dim = naive_below(2) ? (int)d : (int)d - (int)ndim;
	char names[4096] = "", sizes[256] = "";
	struct model *y;

	part[0] = (uint32_t)(a - w->m);
	for (uint32_t i = 0; i < w->n && n < 1 + naive_below(4); i++)
		if (i != part[0] && can_join(a, &w->m[i], d, stack))
			part[n++] = i;
	for (uint32_t i = 0; i < a->ndim; i++)
		shape[i + (stack && i >= d)] = a->shape[i];
	shape[d] = 0;
	for (uint32_t i = 0; i < n; i++)
		shape[d] += stack ? 1 : w->m[part[i]].shape[d];
	y = model_new(w, a->dtype, ndim, shape);
	for (uint32_t i = 0; i < n; i++) {
		struct model *m = &w->m[part[i]];

		for (uint64_t g = 0; g < numel_of(m->ndim, m->shape); g++) {
			coord_of(m, g, c);
			for (uint32_t j = 0; j < ndim; j++)
				e[j] = !stack	? c[j] + (j == d ? at : 0)
				       : j == d ? at
						: c[j - (j > d)];
			*cell(y, e) = m->v[g];
		}
		snprintf(sizes + strlen(sizes), 24, "%s%u", *sizes ? "," : "",
			 (uint32_t)m->shape[d < m->ndim ? d : 0]);
		snprintf(names + strlen(names), 80, " %s", m->name);
		at += stack ? 1 : m->shape[d];
		m->gone = true;
	}
	say(w->text, "%s%s dim %d -> %s\n", stack ? "stack" : "concat", names, dim, y->name);
	if (stack)
		say_first(w->back, "unstack %s dim %u ->%s\n", y->name, d, names);
	else
		say_first(w->back, "split %s dim %u sizes %s ->%s\n", y->name, d, sizes, names);
}

/* One random rule more. */
static inline void apply_random(struct world *w)
{
	struct model *m;

	do
		m = &w->m[naive_below(w->n)];
	while (m->gone);
	switch (naive_below(9)) {
	case 7:
	case 8:
		apply_reshape(w, m);
		return;
	case 0:
		if (m->ndim && m->ndim < DIMS) {
			apply_transpose(w, m);
			return;
		}
		break;
	case 1:
		if (m->ndim && w->n < 100) {
			uint32_t d = naive_below(m->ndim);

			if (m->shape[d] && m->shape[d] <= 40) {
				apply_cut(w, m, d, false);
				return;
			}
		}
		break;
	case 2:
		if (m->ndim && w->n < 100) {
			uint32_t d = naive_below(m->ndim);

			if (m->shape[d] && m->shape[d] <= 40) {
				apply_cut(w, m, d, true);
				return;
			}
		}
		break;
	case 3:
		if (m->ndim && numel_of(m->ndim, m->shape)) {
			apply_join(w, m, naive_below(m->ndim), false);
			return;
		}
		break;
	case 5:
		if (w->n < 100) {
			apply_copy(w, m);
			return;
		}
		break;
	case 4:
		if (m->ndim < DIMS && numel_of(m->ndim, m->shape)) {
			apply_join(w, m, naive_below(m->ndim + 1), true);
			return;
		}
		break;
	}
	apply_rename(w, m);
}

/* --- through views --- */

static inline void view_of(const struct table *t, const char *text, struct table *ret)
{
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct view v;

	if (view_parse(text, "test", &a, &v, &err))
		fail_msg("%s\n%s", text, err.msg);
	if (view_make(t, &v, ret, &(const struct view_cast *){ NULL }, &err))
		fail_msg("%s\n%s", text, err.msg);
	arena_free(&a);
}

static inline uint32_t tensor_of(const struct table *t, const char *full)
{
	char component[64];

	snprintf(component, sizeof component, "%s", full);
	*strchr(component, '/') = 0;
	return table_find(t, component, strchr(full, '/') + 1, TABLE_NONE);
}
#endif
