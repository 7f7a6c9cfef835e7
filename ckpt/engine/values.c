/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.c - see values.h. Called by verb_cat.c.
 * Invariant: bytes come in row-major order, each once.
 */
#include "ckpt/engine/values.h"
#include <assert.h>
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/element.h"
#include "ckpt/table/shown.h"

#define VALUES_MEMORY (256 * MIB) /* for windows and read buffers */
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

int values_choose(const struct table *t, uint32_t tensor, const char *text, struct values *ret,
		  struct ckpt_err *err)
{
	const struct table_tensor *x = &t->tensor[tensor];
	uint64_t doubled[CKPT_DIMS_MAX];
	const uint64_t *shape = shown_shape(x, doubled);
	char name[NAME_BYTES];
	int rc;

	*ret = (struct values){ .tensor = tensor, .x = x };
	for (uint32_t d = 0; d < x->ndim; d++)
		ret->shape[d] = shape[d];
	rc = slice_parse(text, x->ndim, ret->shape, &ret->slice, err);
	if (!rc)
		rc = slice_pack(text, &ret->slice, dtype_values(x->dtype), &ret->stored, err);
	if (!rc && ckpt_mul(ret->stored.numel, x->elem_bytes, &ret->bytes))
		rc = ckpt_error(err, -E2BIG, "%s has more bytes than can be counted",
				table_tensor_print(x, name, sizeof name));
	return rc;
}

/* The tensor alone, with one piece of these indices, row-major at 0 of one place. */
static int values_target(const struct table_tensor *from, const struct indexset *set,
			 struct table *ret, struct ckpt_err *err)
{
	struct table_place place = { .name = "the values that are read",
				     .rank = TABLE_NONE,
				     .bytes = set->numel * from->elem_bytes };
	struct table_tensor x = *from;
	struct table_piece piece = { .set = *set };
	int rc;

	x.layout = TABLE_NONE;
	x.made = 0;
	rc = table_add_place(ret, &place, &piece.place, err);
	if (!rc)
		rc = table_add_tensor(ret, &x, &piece.tensor, err);
	if (!rc)
		rc = table_add_piece(ret, &piece, err);
	return rc ? rc : table_seal(ret, err);
}

struct reading {
	values_fn *fn;
	void *arg;
	uint64_t done;
};

static int reading_window(void *arg, const struct window *w, const uint8_t *buf)
{
	struct reading *r = arg;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < w->ncut; i++) {
		const struct window_cut *cut = &w->cut[i];

		assert(cut->dst_off == r->done);
		rc = r->fn(r->arg, buf + cut->buf_off, cut->len, r->done);
		r->done += cut->len;
	}
	return rc;
}

int engine_values(const struct engine *e, const struct opened *o, const struct values *v,
		  const struct indexset *set, values_fn *fn, void *arg, struct ckpt_err *err)
{
	struct reading r = { .fn = fn, .arg = arg };
	struct move_files files;
	struct table dst = { 0 };
	int rc;

	if (!set->numel)
		return 0;
	rc = values_target(v->x, set, &dst, err);
	if (!rc)
		rc = move_open(e->ops, o->fd, o->ckpt, true, e->io, &files, err);
	if (!rc) {
		rc = move_windows(&files, &dst, e->mem_limit ? e->mem_limit : VALUES_MEMORY, 0,
				  reading_window, &r, e->tick, e->arg, err);
		move_close(&files);
	}
	table_free(&dst);
	return rc;
}

int engine_values_all(const struct engine *e, const struct opened *o, const struct values *v,
		      values_fn *fn, void *arg, struct ckpt_err *err)
{
	struct arena a = { 0 };
	struct indexset set;
	int rc = indexset_box(v->x->ndim, v->stored.start, v->stored.count, &a, &set);

	if (!rc)
		rc = engine_values(e, o, v, &set, fn, arg, err);
	arena_free(&a);
	return rc;
}

static int values_copy(void *arg, const uint8_t *p, uint64_t len, uint64_t done)
{
	memcpy((uint8_t *)arg + done, p, len);
	return 0;
}

int engine_values_take(const struct engine *e, const struct opened *o, const struct values *v,
		       const struct indexset *set, uint8_t **ret, struct ckpt_err *err)
{
	uint32_t each = dtype_values(v->x->dtype);
	uint8_t *stored = calloc(set->numel + 1, v->x->elem_bytes), *value = NULL;
	int rc = stored ? engine_values(e, o, v, set, values_copy, stored, err) : -ENOMEM;

	if (!rc && each > 1) {
		value = calloc(set->numel + 1, each);
		rc = value ? 0 : -ENOMEM;
	}
	if (rc || each == 1) {
		*ret = rc ? NULL : stored;
		free(rc ? stored : NULL);
		return rc;
	}
	element_unpack(stored, set->numel, value);
	free(stored);
	*ret = value;
	return 0;
}
