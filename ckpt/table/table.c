/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - building, finding, printing and merging tables. Called by formats, clients, the daemon
 * and every verb. Invariant: whatever is in a table has been checked when it was added: ids exist,
 * sets lie inside their shapes, spans inside their places. So code that reads a table needs no
 * checks of its own.
 */
#include "ckpt/table/table.h"
#include "ckpt/table/names.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/table/operand.h"
#include <stdio.h>

enum { CAP_MESH, CAP_LAYOUT, CAP_TENSOR, CAP_PIECE, CAP_PLACE, CAP_AVERAGE };

/* --- growth --- */

/* Room for `more` elements. Old arrays stay in the arena: at most as much again. */
static int array_grow(struct table *t, int which, void **array, uint32_t n, uint64_t more,
		      uint32_t max, size_t elem)
{
	uint32_t cap = t->cap_[which];
	void *p;

	if (more <= cap - n)
		return 0;
	if (more > max - n)
		return -E2BIG;
	cap = cap ? MIN(2 * cap, max) : 16;
	cap = MAX(cap, n + (uint32_t)more);
	p = arena_array(&t->arena, cap, elem);
	if (!p)
		return -ENOMEM;
	if (n)
		memcpy(p, *array, n * elem);
	*array = p;
	t->cap_[which] = cap;
	return 0;
}

#define GROW_BY(t, which, array, n, more, max)                                                 \
	({                                                                                     \
		void *array_ = (t)->array;                                                     \
		int r_ = array_grow(t, which, &array_, (t)->n, more, max, sizeof *(t)->array); \
		(t)->array = array_;                                                           \
		r_;                                                                            \
	})
#define GROW(t, which, array, n, max) GROW_BY(t, which, array, n, 1, max)

static int no_room(struct ckpt_err *err, int code, const char *what, uint64_t max)
{
	if (code == -E2BIG)
		return ckpt_error(err, code, "more than %llu %s in one table",
				  (unsigned long long)max, what);
	return ckpt_error(err, code, "out of memory for %s of a table", what);
}

static void must_be_open(const struct table *t)
{
	assert(!t->sealed);
}

static void must_own(const struct table *t)
{
	must_be_open(t);
	assert(!t->borrows);
}

/* --- keys --- */

static uint64_t tensor_key(const char *component, const char *name, uint32_t rank)
{
	return key_hash(key_hash(rank, component, strlen(component)), name, strlen(name));
}

bool table_key_equal(const struct table_tensor *x, const struct table_tensor *y)
{
	return x->rank == y->rank && !strcmp(x->name, y->name) &&
	       !strcmp(x->component, y->component);
}

static uint32_t tensor_find(const struct table *t, uint64_t hash, const char *component,
			    const char *name, uint32_t rank)
{
	for (uint32_t at = 0, i; (i = keymap_next(&t->index, hash, &at)) != KEYMAP_NONE;) {
		const struct table_tensor *y = &t->tensor[i];

		if (y->rank == rank && !strcmp(y->name, name) && !strcmp(y->component, component))
			return i;
	}
	return TABLE_NONE;
}

uint32_t table_find(const struct table *t, const char *component, const char *name, uint32_t rank)
{
	return t->index.n ? tensor_find(t, tensor_key(component, name, rank), component, name, rank)
			  : TABLE_NONE;
}

void table_find_soon(const struct table *t, const char *component, const char *name, uint32_t rank)
{
	keymap_soon(&t->index, tensor_key(component, name, rank));
}

int table_reserve(struct table *t, uint64_t ntensor, uint64_t npiece)
{
	int r = 0;

	must_be_open(t);
	if (ntensor)
		r = GROW_BY(t, CAP_TENSOR, tensor, ntensor, ntensor, TABLE_TENSORS_MAX);
	if (!r && ntensor)
		r = keymap_reserve(&t->index, &t->arena, ntensor);
	if (!r && npiece)
		r = GROW_BY(t, CAP_PIECE, piece, npiece, npiece, TABLE_PIECES_MAX);
	return r == -E2BIG ? 0 : r; /* adding the last of them fails */
}

/* --- meshes and layouts --- */

static bool mesh_equal(const struct mesh *x, const struct mesh *y)
{
	if (x->ndim != y->ndim || x->nrank != y->nrank)
		return false;
	for (uint32_t i = 0; i < x->ndim; i++)
		if (x->dim[i] != y->dim[i] || strcmp(x->name[i], y->name[i]) != 0)
			return false;
	return !memcmp(x->rank, y->rank, x->nrank * sizeof *x->rank);
}

static bool placements_equal(const struct layout *x, const struct layout *y)
{
	if (x->mode != y->mode || x->nplace != y->nplace)
		return false;
	for (uint32_t i = 0; i < x->nplace; i++) {
		const struct ckpt_placement *p = &x->place[i], *q = &y->place[i];

		if (p->how != q->how || p->reduce != q->reduce || p->mesh_dim != q->mesh_dim ||
		    p->tensor_dim != q->tensor_dim || p->flags != q->flags ||
		    p->split_factor != q->split_factor)
			return false;
	}
	return true;
}

static int mesh_copy(struct arena *a, const struct mesh *m, struct mesh *ret)
{
	const char **name = arena_array(a, m->ndim, sizeof *name);

	if (!name)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->ndim; i++) {
		name[i] = arena_str(a, m->name[i]);
		if (!name[i])
			return -ENOMEM;
	}
	*ret = (struct mesh){
		.ndim = m->ndim,
		.name = name,
		.dim = arena_dup(a, m->dim, m->ndim * sizeof *m->dim),
		.nrank = m->nrank,
		.rank = arena_dup(a, m->rank, m->nrank * sizeof *m->rank),
	};
	return ret->dim && ret->rank ? 0 : -ENOMEM;
}

int table_add_mesh(struct table *t, const struct mesh *m, uint32_t *ret_id, struct ckpt_err *err)
{
	int r = mesh_check(m, err);

	must_own(t);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < m->ndim; i++)
		if (strlen(m->name[i]) > CKPT_NAME_MAX)
			return ckpt_error(err, -ENAMETOOLONG,
					  "the name of mesh dimension %u is longer than %d bytes",
					  i, CKPT_NAME_MAX);
	for (uint32_t i = 0; i < t->nmesh; i++) {
		if (!mesh_equal(&t->mesh[i], m))
			continue;
		if (ret_id)
			*ret_id = i;
		return 0;
	}
	r = GROW(t, CAP_MESH, mesh, nmesh, TABLE_MESHES_MAX);
	if (!r)
		r = mesh_copy(&t->arena, m, &t->mesh[t->nmesh]);
	if (r < 0)
		return no_room(err, r, "meshes", TABLE_MESHES_MAX);
	if (ret_id)
		*ret_id = t->nmesh;
	t->nmesh++;
	return 0;
}

int table_add_layout(struct table *t, const struct layout *l, uint32_t *ret_id,
		     struct ckpt_err *err)
{
	struct layout *to;
	int r;

	must_own(t);
	if (l->mesh >= t->nmesh)
		return ckpt_error(err, -EINVAL,
				  "a layout names mesh %u, but only %u meshes are declared",
				  l->mesh, t->nmesh);
	/* Tensor dimensions are checked with each tensor that uses it, all else here. */
	r = layout_check(&t->mesh[l->mesh], l, CKPT_DIMS_MAX, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < t->nlayout; i++) {
		if (t->layout[i].mesh != l->mesh || !placements_equal(&t->layout[i], l))
			continue;
		if (ret_id)
			*ret_id = i;
		return 0;
	}
	r = GROW(t, CAP_LAYOUT, layout, nlayout, TABLE_LAYOUTS_MAX);
	if (r < 0)
		return no_room(err, r, "layouts", TABLE_LAYOUTS_MAX);
	to = &t->layout[t->nlayout];
	*to = *l;
	to->place = arena_dup(&t->arena, l->place, l->nplace * sizeof *l->place);
	if (!to->place)
		return no_room(err, -ENOMEM, "layouts", TABLE_LAYOUTS_MAX);
	if (ret_id)
		*ret_id = t->nlayout;
	t->nlayout++;
	return 0;
}

bool table_layout_equal(const struct table *x, uint32_t x_layout, const struct table *y,
			uint32_t y_layout)
{
	const struct layout *p, *q;

	if (x_layout == TABLE_NONE || y_layout == TABLE_NONE)
		return x_layout == y_layout;
	p = &x->layout[x_layout];
	q = &y->layout[y_layout];
	return placements_equal(p, q) && mesh_equal(&x->mesh[p->mesh], &y->mesh[q->mesh]);
}

/* --- printing --- */

/* Names come from outside and go to terminals: control characters are shown, not sent. */
static void text_add_name(struct text *t, const char *s)
{
	while (*s) {
		size_t n = 0;

		while ((uint8_t)s[n] >= 0x20 && s[n] != 0x7f)
			n++;
		text_add(t, "%.*s", (int)n, s);
		s += n;
		if (*s)
			text_add(t, "\\x%02x", (uint8_t)*s++);
	}
}

char *table_tensor_print(const struct table_tensor *x, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	text_add_name(&t, x->component);
	if (*x->component)
		text_add(&t, "/");
	text_add_name(&t, x->name);
	if (x->rank != TABLE_NONE)
		text_add(&t, " of rank %u", x->rank);
	return buf;
}

char *table_key(const struct table_tensor *x, char buf[TABLE_KEY_BYTES])
{
	snprintf(buf, TABLE_KEY_BYTES, "%s/%s", x->component, x->name);
	return buf;
}

uint32_t table_find_key(const struct table *t, const char *key)
{
	const char *slash = strchr(key, '/');
	char component[CKPT_NAME_MAX + 1];

	if (!slash || slash - key > CKPT_NAME_MAX)
		return TABLE_NONE;
	memcpy(component, key, (size_t)(slash - key));
	component[slash - key] = 0;
	return table_find(t, component, slash + 1, TABLE_NONE);
}

static bool is_narrow(const struct table_tensor *x)
{
	return x->dtype == CKPT_BF16 || x->dtype == CKPT_F16;
}

uint32_t table_master(const struct table *t, const struct table_tensor *x)
{
	uint32_t m = x->cls == CKPT_DERIVED && is_narrow(x) ? table_find_key(t, x->of) : TABLE_NONE;
	const struct table_tensor *y = &t->tensor[m == TABLE_NONE ? 0 : m];

	if (m == TABLE_NONE || y->dtype != CKPT_F32 || y->cls == CKPT_DERIVED ||
	    y->cls == CKPT_SINK || !table_shape_same(x, y) || operand_dims(t, x) ||
	    operand_dims(t, y))
		return TABLE_NONE;
	return m;
}

const struct table_tensor *table_owned_as(const struct table *t, const struct table_tensor *x)
{
	uint32_t m = x->made ? table_find_key(t, x->of) : TABLE_NONE;

	if (m != TABLE_NONE)
		x = &t->tensor[m];
	m = table_master(t, x);
	return m == TABLE_NONE ? x : &t->tensor[m];
}

/* A piece of 16-bit elements takes twice its bytes where they are F32. */
struct piece_bytes table_piece_bytes(const struct table *t, const struct table_piece *p)
{
	if (p->flags & PIECE_DERIVED)
		return (struct piece_bytes){ .off = p->from, .len = 2 * p->len, .elem = 4 };
	return (struct piece_bytes){ .off = p->off,
				     .len = p->len,
				     .elem = t->tensor[p->tensor].elem_bytes };
}

char *table_layout_print(const struct table *t, uint32_t layout, char *buf, size_t bytes)
{
	const struct layout *l = layout == TABLE_NONE ? NULL : &t->layout[layout];
	struct text none = text_in(buf, bytes);

	if (l)
		return placements_print(&t->mesh[l->mesh], l, buf, bytes);
	text_add(&none, "-");
	return buf;
}

/* --- tensors --- */

#define LABEL_BYTES 160 /* of a tensor in a message; longer names are cut */

/* Made only where there is something to say. */
#define LABEL(x) table_tensor_print(x, (char[LABEL_BYTES]){ 0 }, LABEL_BYTES)

static int tensor_check(const struct table *t, const struct table_tensor *x, struct ckpt_err *err)
{
	int r;

	if (strlen(x->component) > CKPT_NAME_MAX || strlen(x->name) > CKPT_NAME_MAX ||
	    strlen(x->of) >= TABLE_KEY_BYTES)
		return ckpt_error(
			err, -ENAMETOOLONG,
			"%s: a component or name is longer than %d bytes, or 'of' than %d",
			LABEL(x), CKPT_NAME_MAX, TABLE_KEY_BYTES - 1);
	if (strchr(x->component, '/'))
		return ckpt_error(err, -EINVAL, "%s: a component has no '/'", LABEL(x));
	if (!dtype_bytes(x->dtype))
		return ckpt_error(err, -EINVAL, "%s: unknown dtype %u", LABEL(x), x->dtype);
	if (dtype_values(x->dtype) > 1 && !x->ndim)
		return ckpt_error(err, -EINVAL,
				  "%s: a tensor of %s without dimensions is not possible: an "
				  "element is %u values of the last dimension",
				  LABEL(x), dtype_name(x->dtype), dtype_values(x->dtype));
	if (x->role > CKPT_COUNTER)
		return ckpt_error(err, -EINVAL, "%s: unknown role %u", LABEL(x), x->role);
	if (x->cls > CKPT_SINK)
		return ckpt_error(err, -EINVAL, "%s: unknown class %u", LABEL(x), x->cls);
	if (x->flags & ~(uint32_t)TENSOR_BLOB)
		return ckpt_error(err, -EINVAL, "%s: unknown tensor flags 0x%x", LABEL(x),
				  x->flags);
	if (x->media > CKPT_MEDIA_NPY)
		return ckpt_error(err, -EINVAL, "%s: unknown content type %u", LABEL(x), x->media);
	if (x->media && !(x->flags & TENSOR_BLOB))
		return ckpt_error(
			err, -EINVAL,
			"%s: its content is said to be %s: only a blob has a content type",
			LABEL(x), media_name(x->media));
	if (x->ndim > CKPT_DIMS_MAX)
		return ckpt_error(err, -EINVAL, "%s: %u dimensions, at most %d are possible",
				  LABEL(x), x->ndim, CKPT_DIMS_MAX);
	if (x->flags & TENSOR_BLOB &&
	    (x->dtype != CKPT_U8 || x->ndim != 1 || x->layout != TABLE_NONE))
		return ckpt_error(err, -EINVAL,
				  "%s: a blob must be one-dimensional U8 without a layout",
				  LABEL(x));
	if (x->made > t->naverage || (x->made && x->flags & TENSOR_BLOB))
		return ckpt_error(err, -EINVAL,
				  "%s: average %u of %u does not exist, or it is a blob", LABEL(x),
				  x->made - 1, t->naverage);
	if (!x->fp_known && x->fp)
		return ckpt_error(err, -EINVAL, "%s: a fingerprint that is not known", LABEL(x));
	if (x->rank != TABLE_NONE && !(x->flags & TENSOR_BLOB))
		return ckpt_error(err, -EINVAL, "%s: only a blob can belong to one rank", LABEL(x));
	if (x->layout == TABLE_NONE)
		return 0;
	if (x->layout >= t->nlayout)
		return ckpt_error(err, -EINVAL, "%s: layout %u of %u does not exist", LABEL(x),
				  x->layout, t->nlayout);
	r = layout_check(&t->mesh[t->layout[x->layout].mesh], &t->layout[x->layout], x->ndim, err);
	return r < 0 ? ckpt_error_prefix(err, r, "%s", LABEL(x)) : 0;
}

bool table_averages_equal(const struct table_average *x, const struct table_average *y)
{
	return !strcmp(x->schedule, y->schedule) &&
	       !memcmp(&x->product, &y->product, sizeof x->product) && x->updates == y->updates &&
	       x->last_step == y->last_step && x->since == y->since &&
	       !memcmp(x->history, y->history, sizeof x->history) &&
	       !((x->flags ^ y->flags) & ~(uint32_t)AVERAGE_MIXED);
}

static bool ends_in(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

int table_add_average(struct table *t, const struct table_average *x, uint32_t *ret_id,
		      struct ckpt_err *err)
{
	struct table_average *to;
	int r;

	must_own(t);
	if (!x->name || !*x->name || strchr(x->name, '/') || strlen(x->name) > CKPT_NAME_MAX ||
	    ends_in(x->name, ".carry") || !x->schedule ||
	    strlen(x->schedule) > TABLE_SCHEDULE_MAX ||
	    x->flags & ~(uint32_t)(AVERAGE_KAHAN | AVERAGE_MIXED | AVERAGE_SEEDED))
		return ckpt_error(
			err, -EINVAL,
			"an average without a name, with one that ends in .carry or has a '/', with "
			"a schedule of more than %u bytes, or with unknown flags",
			TABLE_SCHEDULE_MAX);
	for (uint32_t i = 0; i < t->naverage; i++) {
		to = &t->average[i];
		if (to->rule != x->rule || strcmp(to->name, x->name) != 0)
			continue;
		if (!table_averages_equal(to, x))
			to->flags |= AVERAGE_MIXED;
		to->flags |= x->flags & AVERAGE_MIXED;
		if (ret_id)
			*ret_id = i;
		return 0;
	}
	r = GROW(t, CAP_AVERAGE, average, naverage, TABLE_AVERAGES_MAX);
	if (r < 0)
		return no_room(err, r, "averages", TABLE_AVERAGES_MAX);
	to = &t->average[t->naverage];
	*to = *x;
	to->name = arena_str(&t->arena, x->name);
	to->schedule = arena_str(&t->arena, x->schedule);
	if (!to->name || !to->schedule)
		return no_room(err, -ENOMEM, "averages", TABLE_AVERAGES_MAX);
	if (ret_id)
		*ret_id = t->naverage;
	t->naverage++;
	return 0;
}

int table_shape_count(struct table_tensor *x)
{
	uint64_t values = dtype_values(x->dtype), bytes;

	if (shape_numel(x->ndim, x->shape, &x->numel) < 0 ||
	    ckpt_mul(x->numel, MAX(x->elem_bytes, values), &bytes) < 0 || bytes > INT64_MAX ||
	    (x->ndim && x->shape[x->ndim - 1] > INT64_MAX / values))
		return -EOVERFLOW;
	return 0;
}

int table_put_tensor(struct table *t, const struct table_tensor *x, uint32_t *ret_id,
		     struct ckpt_err *err)
{
	struct table_tensor y = *x;
	uint64_t hash;
	int r;

	must_own(t);
	r = tensor_check(t, &y, err);
	if (r < 0)
		return r;
	y.elem_bytes = dtype_bytes(y.dtype);
	if (table_shape_count(&y) < 0)
		return ckpt_error(err, -EOVERFLOW, "%s: the shape has more than 2^63 - 1 bytes",
				  LABEL(&y));
	r = GROW(t, CAP_TENSOR, tensor, ntensor, TABLE_TENSORS_MAX);
	if (!r)
		r = keymap_reserve(&t->index, &t->arena, 1);
	if (r < 0)
		return no_room(err, r, "tensors", TABLE_TENSORS_MAX);
	hash = tensor_key(y.component, y.name, y.rank);
	if (tensor_find(t, hash, y.component, y.name, y.rank) != TABLE_NONE)
		return ckpt_error(err, -EALREADY, "%s is declared twice", LABEL(&y));
	y.shape = arena_dup(&t->arena, y.shape, y.ndim * sizeof *y.shape);
	if (!y.shape)
		return no_room(err, -ENOMEM, "tensors", TABLE_TENSORS_MAX);
	t->tensor[t->ntensor] = y;
	keymap_put(&t->index, hash, t->ntensor);
	if (ret_id)
		*ret_id = t->ntensor;
	t->ntensor++;
	return 0;
}

int table_add_tensor(struct table *t, const struct table_tensor *x, uint32_t *ret_id,
		     struct ckpt_err *err)
{
	struct table_tensor y = *x;

	if (!y.component)
		y.component = "";
	if (!y.of)
		y.of = "";
	if (table_find(t, y.component, y.name, y.rank) == TABLE_NONE &&
	    !tensor_check(t, &y, NULL)) {
		y.component = arena_str(&t->arena, y.component);
		y.name = arena_str(&t->arena, y.name);
		y.of = arena_str(&t->arena, y.of);
	}
	if (!y.component || !y.name || !y.of)
		return no_room(err, -ENOMEM, "tensors", TABLE_TENSORS_MAX);
	return table_put_tensor(t, &y, ret_id, err);
}

/* --- places and pieces --- */

int table_add_place(struct table *t, const struct table_place *p, uint32_t *ret_id,
		    struct ckpt_err *err)
{
	struct table_place *to;
	int r;

	must_be_open(t);
	r = GROW(t, CAP_PLACE, place, nplace, TABLE_PLACES_MAX);
	if (r < 0)
		return no_room(err, r, "places", TABLE_PLACES_MAX);
	to = &t->place[t->nplace];
	*to = *p;
	to->name = arena_str(&t->arena, p->name ? p->name : "");
	if (!to->name)
		return no_room(err, -ENOMEM, "places", TABLE_PLACES_MAX);
	if (ret_id)
		*ret_id = t->nplace;
	t->nplace++;
	return 0;
}

void table_check_derived(const struct table *t, struct ckpt_errlist *ret_list)
{
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i], *y;
		uint32_t of = x->cls == CKPT_DERIVED ? table_find_key(t, x->of) : TABLE_NONE;

		if (x->cls != CKPT_DERIVED)
			continue;
		y = of == TABLE_NONE ? NULL : &t->tensor[of];
		if (!is_narrow(x))
			ckpt_errlist_add(ret_list,
					 "%s: it is derived, so it must be BF16 or F16, not %s",
					 LABEL(x), dtype_name(x->dtype));
		else if (!y)
			ckpt_errlist_add(
				ret_list,
				"%s: it is derived of \"%s\", which is not declared; .of is "
				"COMPONENT/NAME of the FP32 master",
				LABEL(x), x->of);
		else if (y->dtype != CKPT_F32 || y->cls == CKPT_DERIVED || y->cls == CKPT_SINK)
			ckpt_errlist_add(
				ret_list,
				"%s: it is derived of %s, which must be F32 and saved as it "
				"is, but is %s of class %s",
				LABEL(x), x->of, dtype_name(y->dtype), class_name(y->cls));
		else if (operand_dims(t, x) || operand_dims(t, y))
			ckpt_errlist_add(ret_list,
					 "%s: it is derived of %s; neither of them may be partial",
					 LABEL(x), x->of);
		else if (table_master(t, x) == TABLE_NONE)
			ckpt_errlist_add(ret_list,
					 "%s: it is derived of %s, which has another shape",
					 LABEL(x), x->of);
		else if (x->layout != y->layout)
			ckpt_errlist_add(ret_list,
					 "%s: it is derived of %s, which has another layout",
					 LABEL(x), x->of);
	}
}

/* The bytes that a piece spans: its elements, or the strided box around them. */
static int piece_span(const struct table_tensor *x, const struct table_piece *p, uint64_t *ret_len)
{
	uint64_t last = 0, step;

	if (!p->stride)
		return ckpt_mul(p->set.numel, x->elem_bytes, ret_len);
	for (uint32_t i = 0; i < x->ndim; i++) {
		if (p->stride[i] < 0)
			return -EINVAL;
		if (ckpt_mul(p->set.dim[i].total - 1, (uint64_t)p->stride[i], &step) < 0 ||
		    ckpt_add(last, step, &last) < 0)
			return -EOVERFLOW;
	}
	if (ckpt_add(last, 1, &last) < 0)
		return -EOVERFLOW;
	return ckpt_mul(last, x->elem_bytes, ret_len);
}

/* All but the inner shape of the index lists. Fills len. */
static int piece_check(const struct table *t, struct table_piece *p, struct ckpt_err *err)
{
	const struct table_tensor *x;
	const struct table_place *at;
	uint64_t end;
	int r;

	if (p->tensor >= t->ntensor || p->place >= t->nplace)
		return ckpt_error(err, -EINVAL, "a piece names tensor %u of %u and place %u of %u",
				  p->tensor, t->ntensor, p->place, t->nplace);
	x = &t->tensor[p->tensor];
	at = &t->place[p->place];
	if (p->flags & ~(uint32_t)(PIECE_DERIVED | PIECE_TRUSTED) || p->flags == PIECE_TRUSTED)
		return ckpt_error(err, -EINVAL, "%s: unknown piece flags 0x%x", LABEL(x), p->flags);
	if (p->flags && !is_narrow(x))
		return ckpt_error(err, -EINVAL, "%s: a derived piece of a tensor of %s", LABEL(x),
				  dtype_name(x->dtype));
	if (!p->fp_known && p->fp)
		return ckpt_error(err, -EINVAL, "%s: a piece's fingerprint that is not known",
				  LABEL(x));
	if (p->set.ndim != x->ndim)
		return ckpt_error(err, -EINVAL,
				  "%s: a piece with %u dimensions of a tensor with %u", LABEL(x),
				  p->set.ndim, x->ndim);
	for (uint32_t i = 0; i < x->ndim; i++) {
		if (indices_hi(&p->set.dim[i]) > x->shape[i])
			return ckpt_error(
				err, -EINVAL,
				"%s: a piece reaches beyond the %llu indices of dimension %u",
				LABEL(x), (unsigned long long)x->shape[i], i);
	}
	r = piece_span(x, p, &p->len);
	if (r == -EINVAL)
		return ckpt_error(
			err, r,
			"%s: a piece has a negative stride; copy the tensor to plain memory first",
			LABEL(x));
	if (r < 0 || ckpt_add(p->off, p->len, &end) < 0 ||
	    (end > at->bytes && !MUTANT(PIECE_BOUNDS_IGNORED)))
		return ckpt_error(err, -EINVAL,
				  "%s: a piece at byte %llu reaches beyond the %llu bytes of %s",
				  LABEL(x), (unsigned long long)p->off,
				  (unsigned long long)at->bytes, at->name);
	/* Of a file that is being read it is not known yet where that is. */
	if (p->flags && p->from && (p->len > at->bytes / 2 || p->from > at->bytes - 2 * p->len))
		return ckpt_error(
			err, -EINVAL,
			"%s: what a piece is derived of, at byte %llu, reaches beyond the %llu "
			"bytes of %s",
			LABEL(x), (unsigned long long)p->from, (unsigned long long)at->bytes,
			at->name);
	return 0;
}

int table_put_piece(struct table *t, const struct table_piece *p, struct ckpt_err *err)
{
	struct table_piece y = *p;
	int r;

	must_be_open(t);
	r = piece_check(t, &y, err);
	if (r < 0)
		return r;
	r = GROW(t, CAP_PIECE, piece, npiece, TABLE_PIECES_MAX);
	if (r < 0)
		return no_room(err, r, "pieces", TABLE_PIECES_MAX);
	t->piece[t->npiece++] = y;
	return 0;
}

int table_add_piece(struct table *t, const struct table_piece *p, struct ckpt_err *err)
{
	struct table_piece y = *p;
	const struct table_tensor *x;
	uint64_t numel = 1;

	must_be_open(t);
	if (y.tensor >= t->ntensor)
		return ckpt_error(err, -EINVAL, "a piece names tensor %u of %u", y.tensor,
				  t->ntensor);
	x = &t->tensor[y.tensor];
	if (y.set.ndim != x->ndim)
		return ckpt_error(err, -EINVAL,
				  "%s: a piece with %u dimensions of a tensor with %u", LABEL(x),
				  y.set.ndim, x->ndim);
	if (!y.set.numel)
		return 0;
	for (uint32_t i = 0; i < y.set.ndim; i++) {
		int r = indices_check(&y.set.dim[i], x->shape[i], err);

		if (r < 0)
			return ckpt_error_prefix(err, r, "%s, dimension %u", LABEL(x), i);
		if (ckpt_mul(numel, y.set.dim[i].total, &numel) < 0)
			return ckpt_error(err, -EOVERFLOW, "%s: a piece has too many elements",
					  LABEL(x));
	}
	if (numel != y.set.numel)
		return ckpt_error(err, -EINVAL,
				  "%s: a piece claims %llu elements, its set has %llu", LABEL(x),
				  (unsigned long long)y.set.numel, (unsigned long long)numel);
	if (indexset_copy(&p->set, &t->arena, &y.set) < 0)
		return no_room(err, -ENOMEM, "pieces", TABLE_PIECES_MAX);
	if (p->stride) {
		y.stride = arena_dup(&t->arena, p->stride, y.set.ndim * sizeof *p->stride);
		if (!y.stride)
			return no_room(err, -ENOMEM, "pieces", TABLE_PIECES_MAX);
	}
	return table_put_piece(t, &y, err);
}

/* --- sealing --- */

int table_piece_order(const struct table_piece *a, const struct table_piece *b)
{
	int r = COMPARE(a->tensor, b->tensor);

	if (!r)
		r = COMPARE(a->rank, b->rank);
	if (!r)
		r = COMPARE(a->place, b->place);
	return r ? r : COMPARE(a->off, b->off);
}

static int piece_compare(const void *va, const void *vb)
{
	const struct table_piece *a = va, *b = vb;
	int r = table_piece_order(a, b);

	return r ? r : COMPARE(a->len, b->len);
}

static bool pieces_sorted(const struct table_piece *p, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (piece_compare(&p[i - 1], &p[i]) > 0)
			return false;
	return true;
}

/*
 * To their tensors first, by t->first, and then each tensor's among themselves: they come in lists
 * that are sorted, a part's behind another's, so that mostly the first step is all there is to do.
 */
static int pieces_sort(struct table *t)
{
	const struct table_piece *from = t->piece;
	struct table_piece *to;

	if (pieces_sorted(from, t->npiece))
		return 0;
	to = arena_array(&t->arena, t->npiece, sizeof *to);
	if (!to)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->npiece; i++)
		to[t->first[from[i].tensor]++] = from[i];
	t->piece = to;
	/* Each has run to where the next one began. */
	memmove(t->first + 1, t->first, t->ntensor * sizeof *t->first);
	t->first[0] = 0;
	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint32_t n = t->first[i + 1] - t->first[i];

		if (!pieces_sorted(to + t->first[i], n))
			qsort(to + t->first[i], n, sizeof *to, piece_compare);
	}
	return 0;
}

int table_seal(struct table *t, struct ckpt_err *err)
{
	must_be_open(t);
	t->first = arena_array(&t->arena, (size_t)t->ntensor + 1, sizeof *t->first);
	if (!t->first)
		return no_room(err, -ENOMEM, "tensors", TABLE_TENSORS_MAX);
	for (uint32_t i = 0; i < t->npiece; i++)
		t->first[t->piece[i].tensor + 1]++;
	for (uint32_t i = 0; i < t->ntensor; i++)
		t->first[i + 1] += t->first[i];
	if (t->npiece && pieces_sort(t) < 0)
		return no_room(err, -ENOMEM, "pieces", TABLE_PIECES_MAX);
	t->sealed = true;
	return 0;
}

struct table table_borrow(const struct table *x)
{
	struct table t = *x;

	assert(x->sealed);
	t.arena = (struct arena){ 0 };
	t.npiece = t.nplace = t.cap_[CAP_PIECE] = t.cap_[CAP_PLACE] = 0;
	t.piece = NULL;
	t.place = NULL;
	t.first = NULL;
	t.sealed = false;
	t.borrows = true;
	return t;
}

int table_twin(const struct table *x, struct table *ret)
{
	struct table t = *x;

	assert(x->sealed);
	t.arena = (struct arena){ 0 };
	t.borrows = true;
	t.tensor = arena_dup(&t.arena, x->tensor, x->ntensor * sizeof *x->tensor);
	t.piece = arena_dup(&t.arena, x->piece, x->npiece * sizeof *x->piece);
	t.place = arena_dup(&t.arena, x->place, x->nplace * sizeof *x->place);
	t.first = arena_dup(&t.arena, x->first, ((size_t)x->ntensor + 1) * sizeof *x->first);
	t.average = arena_dup(&t.arena, x->average, x->naverage * sizeof *x->average);
	if (!t.tensor || !t.piece || !t.place || !t.first || !t.average) {
		arena_free(&t.arena);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

void table_reopen(struct table *t)
{
	assert(t->sealed && !t->npiece);
	t->sealed = false;
}

void table_reopen_without(struct table *t, const bool *tensor)
{
	uint32_t n = 0;

	assert(t->sealed && !t->borrows);
	for (uint32_t i = 0; i < t->npiece; i++)
		if (!tensor[t->piece[i].tensor])
			t->piece[n++] = t->piece[i];
	t->npiece = n;
	t->sealed = false;
}

void table_free(struct table *t)
{
	arena_free(&t->arena);
	*t = (struct table){ 0 };
}

/* --- boxes --- */

bool table_is_boxes(const struct table *t, const struct table_tensor *x)
{
	if (x->layout == TABLE_NONE)
		return !(x->flags & TENSOR_BLOB);
	return t->layout[x->layout].mode == CKPT_BOXES;
}

/* From 1 where it goes and 0 where it stays to new numbers. */
static void numbers_close(uint32_t *to, uint32_t n)
{
	uint32_t stay = 0;

	for (uint32_t i = 0; i < n; i++)
		to[i] = to[i] ? TABLE_NONE : stay++;
}

void table_boxes_numbers(const struct table *t, uint32_t *ret_mesh, uint32_t *ret_layout)
{
	for (uint32_t i = 0; i < t->nlayout; i++)
		ret_layout[i] = t->layout[i].mode == CKPT_BOXES;
	for (uint32_t i = 0; i < t->nmesh; i++)
		ret_mesh[i] = 0;
	for (uint32_t i = 0; i < t->nlayout; i++)
		if (ret_layout[i])
			ret_mesh[t->layout[i].mesh] = 1;
	for (uint32_t i = 0; i < t->nlayout; i++)
		if (!ret_layout[i])
			ret_mesh[t->layout[i].mesh] = 0;
	numbers_close(ret_mesh, t->nmesh);
	numbers_close(ret_layout, t->nlayout);
}

int table_boxes_forget(struct table *t)
{
	cleanup_free uint32_t *mesh = calloc((size_t)t->nmesh + 1, sizeof *mesh);
	cleanup_free uint32_t *layout = calloc((size_t)t->nlayout + 1, sizeof *layout);
	uint32_t nmesh = 0, nlayout = 0;

	assert(t->sealed && !t->borrows);
	if (!mesh || !layout)
		return -ENOMEM;
	table_boxes_numbers(t, mesh, layout);
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].layout != TABLE_NONE)
			t->tensor[i].layout = layout[t->tensor[i].layout];
	for (uint32_t i = 0; i < t->nlayout; i++)
		if (layout[i] != TABLE_NONE) {
			t->layout[nlayout] = t->layout[i];
			t->layout[nlayout++].mesh = mesh[t->layout[i].mesh];
		}
	for (uint32_t i = 0; i < t->nmesh; i++)
		if (mesh[i] != TABLE_NONE)
			t->mesh[nmesh++] = t->mesh[i];
	t->nlayout = nlayout;
	t->nmesh = nmesh;
	return 0;
}

/* --- comparing and merging --- */

/* Of the same average, by its name and rule. */
static bool made_alike(const struct table *x, const struct table_tensor *p, const struct table *y,
		       const struct table_tensor *q)
{
	const struct table_average *a, *b;

	if (!p->made || !q->made)
		return p->made == q->made;
	a = &x->average[p->made - 1];
	b = &y->average[q->made - 1];
	return a->rule == b->rule && !strcmp(a->name, b->name);
}

#define RANKS_SHOWN 8u

/* The ranks of a mesh; of a long one those around the first that is another one in the other
 * mesh. */
static void add_ranks(struct text *t, const struct mesh *m, const struct mesh *other)
{
	uint32_t at = 0, n = MIN(m->nrank, other->nrank), from, to;

	while (at < n && m->rank[at] == other->rank[at])
		at++;
	from = m->nrank <= RANKS_SHOWN || at < RANKS_SHOWN / 2 ? 0 : at - RANKS_SHOWN / 2;
	to = MIN(m->nrank, from + RANKS_SHOWN);
	text_add(t, ", ranks %s", from ? "..., " : "");
	for (uint32_t i = from; i < to; i++)
		text_add(t, "%s%u", i > from ? ", " : "", m->rank[i]);
	if (to < m->nrank)
		text_add(t, ", ...");
}

static const struct mesh *mesh_of(const struct table *t, const struct table_tensor *x)
{
	return x->layout == TABLE_NONE ? NULL : &t->mesh[t->layout[x->layout].mesh];
}

/* other: the mesh that it differs from; NULL: there is none. */
static void layout_and_mesh(const struct table *t, const struct table_tensor *x,
			    const struct mesh *other, char *buf, size_t bytes)
{
	struct text o = text_in(buf, bytes);
	const struct mesh *m = mesh_of(t, x);
	char layout[400], mesh[128], mesh2[128];

	if (!m) {
		text_add(&o, "boxes");
		return;
	}
	text_add(&o, "%s (mesh %s", table_layout_print(t, x->layout, layout, sizeof layout),
		 mesh_print(m, mesh, sizeof mesh));
	if (other && !mesh_equal(m, other) && !strcmp(mesh, mesh_print(other, mesh2, sizeof mesh2)))
		add_ranks(&o, m, other);
	text_add(&o, ")");
}

void table_tensor_compare(const struct table *x, uint32_t x_tensor, const char *x_who,
			  const struct table *y, uint32_t y_tensor, const char *y_who,
			  struct ckpt_errlist *ret_list)
{
	const struct table_tensor *p = &x->tensor[x_tensor], *q = &y->tensor[y_tensor];
	char label[LABEL_BYTES], a[700], b[700];

	table_tensor_print(p, label, sizeof label);
	if (p->dtype != q->dtype)
		ckpt_errlist_add(ret_list, "%s: dtype %s on %s, %s on %s", label,
				 dtype_name(p->dtype), x_who, dtype_name(q->dtype), y_who);
	if (p->ndim != q->ndim || memcmp(p->shape, q->shape, p->ndim * sizeof *p->shape) != 0)
		ckpt_errlist_add(ret_list, "%s: shape %s on %s, %s on %s", label,
				 human_shape(p->ndim, p->shape, a, sizeof a), x_who,
				 human_shape(q->ndim, q->shape, b, sizeof b), y_who);
	if (p->role != q->role)
		ckpt_errlist_add(ret_list, "%s: role %s on %s, %s on %s", label, role_name(p->role),
				 x_who, role_name(q->role), y_who);
	if (p->cls != q->cls)
		ckpt_errlist_add(ret_list, "%s: class %s on %s, %s on %s", label,
				 class_name(p->cls), x_who, class_name(q->cls), y_who);
	if (p->flags != q->flags)
		ckpt_errlist_add(ret_list, "%s: a %s on %s, a %s on %s", label,
				 p->flags & TENSOR_BLOB ? "blob" : "tensor", x_who,
				 q->flags & TENSOR_BLOB ? "blob" : "tensor", y_who);
	if (p->media != q->media)
		ckpt_errlist_add(ret_list, "%s: content %s on %s, %s on %s", label,
				 media_name(p->media), x_who, media_name(q->media), y_who);
	if (!made_alike(x, p, y, q))
		ckpt_errlist_add(ret_list, "%s: %s %s on %s, %s %s on %s", label,
				 p->made ? "made by average" : "declared",
				 p->made ? x->average[p->made - 1].name : "", x_who,
				 q->made ? "made by average" : "declared",
				 q->made ? y->average[q->made - 1].name : "", y_who);
	if (strcmp(p->of, q->of) != 0) {
		struct text o = text_in(a, sizeof a), u = text_in(b, sizeof b);

		text_add_name(&o, p->of);
		text_add_name(&u, q->of);
		ckpt_errlist_add(ret_list, "%s: of '%s' on %s, of '%s' on %s", label, a, x_who, b,
				 y_who);
	}
	if (!table_layout_equal(x, p->layout, y, q->layout)) {
		layout_and_mesh(x, p, mesh_of(y, q), a, sizeof a);
		layout_and_mesh(y, q, mesh_of(x, p), b, sizeof b);
		ckpt_errlist_add(ret_list, "%s: layout %s on %s, %s on %s", label, a, x_who, b,
				 y_who);
	}
}

/* Who speaks for a table in messages: its first place. */
static const char *place_name(const struct table *t, const char *otherwise)
{
	return t->nplace ? t->place[0].name : otherwise;
}

/* map[i]: where mesh or layout i of y is in x. */
static int merge_hints(struct table *x, const struct table *y, uint32_t *mesh, uint32_t *layout,
		       struct ckpt_err *err)
{
	for (uint32_t i = 0; i < y->nmesh; i++) {
		int r = table_add_mesh(x, &y->mesh[i], &mesh[i], err);

		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < y->nlayout; i++) {
		struct layout l = y->layout[i];
		int r;

		l.mesh = mesh[l.mesh];
		r = table_add_layout(x, &l, &layout[i], err);
		if (r < 0)
			return r;
	}
	return 0;
}

struct merging {
	struct table *x;
	const struct table *y;
	const char *x_who, *y_who;
	bool join; /* x has all of y's tensors */
	bool any_layout;
	uint32_t *mesh, *layout, *average; /* where those of y are in x */
	uint32_t *tensor;		   /* TABLE_NONE: its pieces are left out */
	struct ckpt_errlist *list;
	struct ckpt_err *err;
};

/* A table has no layout twice: equal ones have one number. Where operands are pending the layout is
 * no hint: it says what the pieces are. */
static bool layouts_agree(const struct merging *m, const struct table_tensor *p,
			  const struct table_tensor *q)
{
	if (!m->any_layout)
		return p->layout == (q->layout == TABLE_NONE ? TABLE_NONE : m->layout[q->layout]);
	return (!operand_dims(m->x, p) && !operand_dims(m->y, q)) ||
	       table_layout_equal(m->x, p->layout, m->y, q->layout);
}

static bool tensors_agree(const struct merging *m, const struct table_tensor *p,
			  const struct table_tensor *q)
{
	return p->dtype == q->dtype && p->role == q->role && p->cls == q->cls &&
	       p->flags == q->flags && layouts_agree(m, p, q) && p->media == q->media &&
	       made_alike(m->x, p, m->y, q) && p->ndim == q->ndim &&
	       !memcmp(p->shape, q->shape, p->ndim * sizeof *p->shape) && !strcmp(p->of, q->of);
}

static int merge_tensors(struct merging *m)
{
	uint32_t next = 0; /* where it is if both have one order, as ranks of a job mostly have */

	for (uint32_t i = 0; i < m->y->ntensor; i++) {
		struct table_tensor z = m->y->tensor[i];
		uint32_t *at = &m->tensor[i];
		int r;

		*at = next;
		if (next >= m->x->ntensor || !table_key_equal(&m->x->tensor[next], &z))
			*at = table_find(m->x, z.component, z.name, z.rank);
		next = *at + 1; /* 0 behind TABLE_NONE */
		if (*at != TABLE_NONE && tensors_agree(m, &m->x->tensor[*at], &z))
			continue;
		if (*at != TABLE_NONE) {
			table_tensor_compare(m->x, *at, m->x_who, m->y, i, m->y_who, m->list);
			*at = TABLE_NONE;
			continue;
		}
		if (m->join) {
			ckpt_errlist_add(m->list, "%s: it is not in %s", LABEL(&z), m->x_who);
			continue;
		}
		if (z.layout != TABLE_NONE)
			z.layout = m->layout[z.layout];
		if (z.made)
			z.made = m->average[z.made - 1] + 1;
		r = table_add_tensor(m->x, &z, at, m->err);
		if (r < 0)
			return r;
	}
	return 0;
}

#define SETS_SEEN 256u

/* y's pieces have been checked when they came to y. Equal sets lie in y once: mostly, then, in
 * x. */
static int merge_pieces(struct merging *m, uint32_t place0)
{
	struct {
		const struct indices *from;
		struct indexset to;
	} seen[SETS_SEEN] = { 0 };
	struct table *x = m->x;
	int r = table_reserve(x, 0, m->y->npiece);

	if (r < 0)
		return no_room(m->err, r, "pieces", TABLE_PIECES_MAX);
	for (uint32_t i = 0; !r && i < m->y->npiece; i++) {
		struct table_piece p = m->y->piece[i];
		uint32_t at = (uint32_t)(((uintptr_t)p.set.dim >> 4) % SETS_SEEN);

		if (m->tensor[p.tensor] == TABLE_NONE)
			continue;
		p.tensor = m->tensor[p.tensor];
		p.place += place0;
		if (!p.set.dim || seen[at].from != p.set.dim) {
			seen[at].from = p.set.dim;
			r = indexset_copy(&p.set, &x->arena, &seen[at].to);
		}
		p.set = seen[at].to;
		if (!r && p.stride) {
			p.stride = arena_dup(&x->arena, p.stride, p.set.ndim * sizeof *p.stride);
			r = p.stride ? 0 : -ENOMEM;
		}
		r = r < 0 ? no_room(m->err, r, "pieces", TABLE_PIECES_MAX)
			  : table_put_piece(x, &p, m->err);
	}
	return r;
}

static int merge_average(struct merging *m, const struct table_average *a, uint32_t *ret_id)
{
	uint32_t had = m->x->naverage;
	int r = table_add_average(m->x, a, ret_id, m->err);

	if (!r && m->join && m->x->naverage > had)
		ckpt_errlist_add(m->list, "average %s, rule %u: it is not in %s", a->name, a->rule,
				 m->x_who);
	return r;
}

/* map: where y's tensors are in x then; without it its places and pieces come, too. */
static int tables_merge(struct merging *m, uint32_t *map, uint32_t *ret_place0)
{
	const struct table *y = m->y;
	cleanup_free uint32_t *mesh = calloc((size_t)y->nmesh + 1, sizeof *mesh);
	cleanup_free uint32_t *layout = calloc((size_t)y->nlayout + 1, sizeof *layout);
	cleanup_free uint32_t *tensor = map ? NULL : calloc((size_t)y->ntensor + 1, sizeof *tensor);
	cleanup_free uint32_t *average = calloc((size_t)y->naverage + 1, sizeof *average);
	uint32_t place0 = m->x->nplace;
	uint64_t before = m->list->n;
	int r;

	if (!mesh || !layout || (!map && !tensor) || !average)
		return ckpt_error(m->err, -ENOMEM, "out of memory while uniting two tables");
	m->mesh = mesh;
	m->layout = layout;
	m->average = average;
	m->tensor = map ? map : tensor;
	r = m->any_layout ? 0 : merge_hints(m->x, y, mesh, layout, m->err);
	for (uint32_t i = 0; !r && i < y->naverage; i++)
		r = merge_average(m, &y->average[i], &average[i]);
	if (!r)
		r = merge_tensors(m);
	for (uint32_t i = 0; !r && !map && i < y->nplace; i++)
		r = table_add_place(m->x, &y->place[i], NULL, m->err);
	if (!r && !map && (!m->join || m->list->n == before))
		r = merge_pieces(m, place0);
	if (!r && ret_place0)
		*ret_place0 = place0;
	return r;
}

static struct merging merging_of(struct table *x, const struct table *y,
				 struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	return (struct merging){ .x = x,
				 .y = y,
				 .x_who = place_name(x, "the first"),
				 .y_who = place_name(y, "the other"),
				 .list = ret_list,
				 .err = err };
}

int table_merge(struct table *x, const struct table *y, uint32_t *ret_place0,
		struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	struct merging m = merging_of(x, y, ret_list, err);

	return tables_merge(&m, NULL, ret_place0);
}

int table_merge_tensors(struct table *x, const struct table *y, uint32_t *ret_map,
			struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	struct merging m = merging_of(x, y, ret_list, err);

	return tables_merge(&m, ret_map, NULL);
}

int table_join(struct table *x, const struct table *y, const char *x_who, const char *y_who,
	       bool any_layout, struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	struct merging m = { .x = x,
			     .y = y,
			     .x_who = x_who,
			     .y_who = y_who,
			     .join = true,
			     .any_layout = any_layout,
			     .list = ret_list,
			     .err = err };

	return tables_merge(&m, NULL, NULL);
}

/* --- packing --- */

/* Field by field, so that equal ones are equal to the byte. */
static int tensor_pack(struct names *n, const struct table_tensor *x, struct table_tensor *ret)
{
	memset(ret, 0, sizeof *ret);
	ret->component = names_str(n, x->component);
	ret->name = names_str(n, x->name);
	ret->of = names_str(n, x->of);
	ret->dtype = x->dtype;
	ret->elem_bytes = x->elem_bytes;
	ret->role = x->role;
	ret->cls = x->cls;
	ret->flags = x->flags;
	ret->media = x->media;
	ret->layout = x->layout;
	ret->rank = x->rank;
	ret->made = x->made;
	ret->ndim = x->ndim;
	ret->shape = names_bytes(n, x->shape, x->ndim * sizeof *x->shape);
	ret->numel = x->numel;
	ret->fp = x->fp;
	ret->fp_known = x->fp_known;
	return ret->component && ret->name && ret->of && ret->shape ? 0 : -ENOMEM;
}

static int index_pack(struct names *n, struct table *t)
{
	struct arena a = { 0 };
	struct keymap *x = &t->index;
	int r;

	*x = (struct keymap){ 0 };
	r = keymap_reserve(x, &a, t->ntensor);
	for (uint32_t i = 0; !r && i < t->ntensor; i++) {
		const struct table_tensor *y = &t->tensor[i];

		keymap_put(x, tensor_key(y->component, y->name, y->rank), i);
	}
	if (!r && x->slot) {
		x->slot = (struct keymap_slot *)names_bytes(
			n, x->slot, ((size_t)x->mask + 1) * sizeof *x->slot);
		r = x->slot ? 0 : -ENOMEM;
	}
	arena_free(&a);
	return r;
}

static int tensors_pack(struct names *n, const struct table *x, struct table *t)
{
	cleanup_free struct table_tensor *list = calloc((size_t)x->ntensor + 1, sizeof *list);
	int r = list ? 0 : -ENOMEM;

	for (uint32_t i = 0; !r && i < x->ntensor; i++)
		r = tensor_pack(n, &x->tensor[i], &list[i]);
	if (r < 0)
		return r;
	t->tensor = (struct table_tensor *)names_bytes(n, list, x->ntensor * sizeof *list);
	t->first =
		(uint32_t *)names_bytes(n, x->first, ((size_t)x->ntensor + 1) * sizeof *x->first);
	return t->tensor && t->first ? index_pack(n, t) : -ENOMEM;
}

static int set_pack(struct names *n, struct indexset *s)
{
	struct indices dim[CKPT_DIMS_MAX];

	memset(dim, 0, sizeof dim);
	for (uint32_t d = 0; d < s->ndim; d++) {
		dim[d].n = s->dim[d].n;
		dim[d].total = s->dim[d].total;
		dim[d].run = names_bytes(n, s->dim[d].run, s->dim[d].n * sizeof *dim[d].run);
		if (!dim[d].run)
			return -ENOMEM;
	}
	s->dim = names_bytes(n, dim, s->ndim * sizeof *dim);
	return s->dim ? 0 : -ENOMEM;
}

static int pieces_pack(struct names *n, const struct table *x, struct table *t)
{
	t->piece = arena_dup(&t->arena, x->piece, x->npiece * sizeof *x->piece);
	for (uint32_t i = 0; t->piece && i < x->npiece; i++) {
		struct table_piece *p = &t->piece[i];

		if (set_pack(n, &p->set) < 0)
			return -ENOMEM;
		if (p->stride)
			p->stride = names_bytes(n, p->stride, p->set.ndim * sizeof *p->stride);
		if (x->piece[i].stride && !p->stride)
			return -ENOMEM;
	}
	return t->piece ? 0 : -ENOMEM;
}

static int mesh_pack(struct names *n, struct mesh *m)
{
	const char *name[CKPT_DIMS_MAX];

	for (uint32_t d = 0; d < m->ndim; d++)
		if (!(name[d] = names_str(n, m->name[d])))
			return -ENOMEM;
	m->name = names_bytes(n, name, m->ndim * sizeof *name);
	m->dim = names_bytes(n, m->dim, m->ndim * sizeof *m->dim);
	m->rank = names_bytes(n, m->rank, m->nrank * sizeof *m->rank);
	return m->name && m->dim && m->rank ? 0 : -ENOMEM;
}

static int hints_pack(struct names *n, const struct table *x, struct table *t)
{
	int r = 0;

	t->mesh = arena_dup(&t->arena, x->mesh, x->nmesh * sizeof *x->mesh);
	t->layout = arena_dup(&t->arena, x->layout, x->nlayout * sizeof *x->layout);
	t->place = arena_dup(&t->arena, x->place, x->nplace * sizeof *x->place);
	t->average = arena_dup(&t->arena, x->average, x->naverage * sizeof *x->average);
	if (!t->mesh || !t->layout || !t->place || !t->average)
		return -ENOMEM;
	for (uint32_t i = 0; !r && i < x->nmesh; i++)
		r = mesh_pack(n, &t->mesh[i]);
	for (uint32_t i = 0; !r && i < x->nlayout; i++) {
		struct layout *l = &t->layout[i];

		l->place = names_bytes(n, l->place, l->nplace * sizeof *l->place);
		r = l->place ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; !r && i < x->nplace; i++) {
		t->place[i].name = names_str(n, x->place[i].name);
		r = t->place[i].name ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; !r && i < x->naverage; i++) {
		t->average[i].name = names_str(n, x->average[i].name);
		t->average[i].schedule = names_str(n, x->average[i].schedule);
		r = t->average[i].name && t->average[i].schedule ? 0 : -ENOMEM;
	}
	return r;
}

int table_pack(const struct table *x, struct names *n, struct table *ret)
{
	struct table t = *x;
	int r;

	assert(x->sealed);
	t.arena = (struct arena){ 0 };
	t.borrows = true;
	memset(t.cap_, 0, sizeof t.cap_);
	names_lock(n);
	r = hints_pack(n, x, &t);
	if (!r)
		r = tensors_pack(n, x, &t);
	if (!r)
		r = pieces_pack(n, x, &t);
	names_unlock(n);
	if (r < 0)
		arena_free(&t.arena);
	else
		*ret = t;
	return r;
}
