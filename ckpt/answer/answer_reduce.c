/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_reduce.c - redistributions of pending reductions, carried out on values. Called for the
 * "locals" of ckptctl layout --batch.
 * Invariant: the values go the way that those of a checkpoint go: two tables, a plan, and the
 * mover.
 */
#include "ckpt/answer/answer_reduce.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/layout_shares.h"
#include "ckpt/engine/element.h"
#include "ckpt/move/move.h"
#include "ckpt/move/reduce.h"
#include "ckpt/plan/plan_reduce.h"
#include "ckpt/table/operand.h"
#include <jansson.h>
#include <math.h>

#define WHOLE_MAX 9007199254740992.0 /* up to here whole doubles are printed as integers */

/* What all ranks hold before, or after: place i of the table is the memory of the rank at place i
 * of the mesh. */
struct side {
	struct table t;
	struct indexset *share; /* [nrank] */
	void **base;		/* [nrank] */
	uint8_t *values;	/* of all ranks, one behind the other */
	uint64_t held, most;	/* elements: of all ranks; of one */
};

struct work {
	const struct question *q;
	struct ckpt_err *err;
	struct arena *arena;
	uint32_t bytes; /* of an element */
	struct mesh mesh;
	struct side src, dst;
};

static void side_free(struct side *s)
{
	table_free(&s->t);
	free(s->base);
	free(s->values);
}

static int no_memory(const struct work *w)
{
	return ckpt_error(w->err, -ENOMEM, "out of memory");
}

/* --- what happens in each mesh dimension --- */

/* As plan_reduce.h has it, said of one mesh dimension at a time. A factor of 1 is a strided shard
 * too. */
static int changes_check(const struct work *w)
{
	const struct question *q = w->q;

	for (uint32_t m = 0; m < q->mesh.ndim; m++) {
		struct question one = { .mesh = { .ndim = 1 } };
		struct question_side side = { .place = { q->src.place[m] },
					      .strided = q->src.strided >> m & 1 };
		char src[64], dst[64];

		if (q->dst.place[m].how != CKPT_PARTIAL ||
		    (!side.strided && !plan_why_not_partial(&q->src.place[m], &q->dst.place[m])))
			continue;
		question_side_print(&one, &side, src, sizeof src);
		side.place[0] = q->dst.place[m];
		question_side_print(&one, &side, dst, sizeof dst);
		return ckpt_error(w->err, -EINVAL,
				  "mesh dimension %u: %s cannot become %s; only S(DIM) can become "
				  "P(sum), and a partial stay what it is",
				  m, src, dst);
	}
	return 0;
}

/* --- tables --- */

static int mesh_make(struct work *w)
{
	uint32_t *rank = arena_array(w->arena, w->q->mesh.nrank, sizeof *rank);

	if (!rank)
		return no_memory(w);
	for (uint32_t i = 0; i < w->q->mesh.nrank; i++)
		rank[i] = i;
	w->mesh = w->q->mesh;
	w->mesh.rank = rank;
	return 0;
}

/* The share of each rank, within the bounds of layout_shares.h. */
static int shares_find(struct work *w, const struct layout *l, struct side *s)
{
	const struct question *q = w->q;
	struct indices *dim;
	struct shares all;
	struct shares_totals n;
	int rc = shares_make(&w->mesh, l, q->ndim, q->shape, w->arena, &all, w->err);

	if (rc)
		return rc;
	shares_count(&all, &n);
	s->held = n.held;
	s->most = n.most;
	s->share = arena_array(w->arena, w->mesh.nrank, sizeof *s->share);
	dim = arena_array(w->arena, (size_t)w->mesh.nrank * MAX(q->ndim, 1u), sizeof *dim);
	if (!s->share || !dim)
		return no_memory(w);
	for (uint32_t i = 0; i < w->mesh.nrank; i++, dim += q->ndim) {
		const struct shares_list *list[CKPT_DIMS_MAX];
		uint32_t coord[CKPT_DIMS_MAX];

		question_rank(q, i, coord);
		s->share[i] = (struct indexset){ q->ndim, shares_at(&all, coord, list), dim };
		for (uint32_t d = 0; d < q->ndim; d++)
			dim[d] = list[d]->x;
	}
	return 0;
}

static int pieces_add(struct work *w, struct side *s, uint32_t tensor)
{
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		struct table_place place = { .name = "",
					     .rank = i,
					     .bytes = s->share[i].numel * w->bytes };
		struct table_piece p = { .tensor = tensor, .rank = i, .set = s->share[i] };
		int rc = table_add_place(&s->t, &place, &p.place, w->err);

		if (!rc)
			rc = table_add_piece(&s->t, &p, w->err);
		if (rc)
			return rc;
	}
	return 0;
}

static int side_table(struct work *w, const struct question_side *of, struct side *s)
{
	struct layout l = { .nplace = w->mesh.ndim, .place = of->place };
	struct table_tensor x = { .component = "",
				  .name = "locals",
				  .of = "",
				  .dtype = w->q->dtype,
				  .rank = TABLE_NONE,
				  .ndim = w->q->ndim,
				  .shape = w->q->shape };
	uint32_t tensor;
	int rc = table_add_mesh(&s->t, &w->mesh, &l.mesh, w->err);

	if (!rc)
		rc = table_add_layout(&s->t, &l, &x.layout, w->err);
	if (!rc)
		rc = table_add_tensor(&s->t, &x, &tensor, w->err);
	if (!rc)
		rc = pieces_add(w, s, tensor);
	return rc ? rc : table_seal(&s->t, w->err);
}

static int side_memory(const struct work *w, struct side *s)
{
	uint64_t at = 0;

	s->values = malloc(s->held * w->bytes + 1);
	s->base = calloc(w->mesh.nrank, sizeof *s->base);
	if (!s->values || !s->base)
		return no_memory(w);
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		s->base[i] = s->values + at;
		at += s->share[i].numel * w->bytes;
	}
	return 0;
}

/* --- values --- */

static bool value_read(uint32_t dtype, const json_t *x, uint8_t *p)
{
	const struct reduction round = { CKPT_SUM, dtype, 1 };
	json_int_t n = json_integer_value(x);
	double d = json_number_value(x);
	float f = (float)d;

	if (element_is_integer(dtype)) {
		if (!json_is_integer(x) || (n < 0 && !element_is_signed(dtype)))
			return false;
		memcpy(p, &n, dtype_bytes(dtype)); /* little-endian, as all of this program is */
		return element_integer(dtype, p) == (uint64_t)n;
	}
	if (!json_is_number(x))
		return false;
	if (dtype == CKPT_F64)
		memcpy(p, &d, sizeof d);
	else
		reduction_end(&round, &f, p, 1);
	return true;
}

static void put_value(struct answer *a, uint32_t dtype, const uint8_t *p)
{
	char text[ELEMENT_BYTES];
	double x;

	if (element_is_integer(dtype)) {
		answer_text(a, element_print(dtype, p, 0, text));
		return;
	}
	element_reals(dtype, p, 1, &x);
	if (!isfinite(x)) {
		answer_text(a, "null");
	} else if (fabs(x) < WHOLE_MAX && x == floor(x)) {
		if (x < 0)
			answer_text(a, "-");
		answer_number(a, (uint64_t)fabs(x));
	} else {
		answer_text(a, element_real_print(dtype, x, 0, text));
	}
}

/* --- from locals to results --- */

/* Each local tensor has as many numbers as its rank holds. So the answer allocates at most what the
 * question is long. */
static int locals_check(const struct work *w)
{
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		const json_t *list = json_array_get(w->q->locals, i);

		if (!json_is_array(list) || json_array_size(list) != w->src.share[i].numel)
			return ckpt_error(
				w->err, -EINVAL,
				"\"locals\"[%u] must be an array of the %llu numbers that "
				"\"src\" gives this rank",
				i, (unsigned long long)w->src.share[i].numel);
	}
	return 0;
}

static int locals_read(const struct work *w)
{
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		const json_t *list = json_array_get(w->q->locals, i);
		uint8_t *to = w->src.base[i];

		for (uint64_t k = 0; k < w->src.share[i].numel; k++)
			if (!value_read(w->q->dtype, json_array_get(list, k), to + k * w->bytes))
				return ckpt_error(w->err, -EINVAL,
						  "\"locals\"[%u][%llu] is not a value of type %s",
						  i, (unsigned long long)k,
						  dtype_name(w->q->dtype));
	}
	return 0;
}

/* Mesh dimensions in which ranks hold different things: shards, or operands. */
static uint32_t distinct_dims(const struct work *w)
{
	uint32_t dims = 0;

	for (uint32_t m = 0; m < w->mesh.ndim; m++)
		if (w->q->src.place[m].how != CKPT_REPLICATE)
			dims |= UINT32_C(1) << m;
	return dims;
}

/* Ranks that hold the same must say the same. */
static int replicas_check(const struct work *w)
{
	uint32_t dims = distinct_dims(w);
	cleanup_free uint32_t *first = calloc(w->mesh.nrank, sizeof *first); /* place + 1 */

	if (!first)
		return no_memory(w);
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		const uint8_t *x = w->src.base[i], *y;
		uint32_t coord[CKPT_DIMS_MAX], *of;

		question_rank(w->q, i, coord);
		of = &first[operand_number(&w->mesh, dims, coord)];
		if (!*of)
			*of = i + 1;
		y = w->src.base[*of - 1];
		for (uint64_t k = 0; k < w->src.share[i].numel; k++)
			if (memcmp(x + k * w->bytes, y + k * w->bytes, w->bytes) != 0)
				return ckpt_error(
					w->err, -EINVAL,
					"\"locals\"[%u][%llu] differs from what a replica "
					"of it has: reduce it, or make them equal",
					i, (unsigned long long)k);
	}
	return 0;
}

static int values_move(struct work *w)
{
	struct plan plan = { 0 };
	int rc = plan_make(&w->src.t, &w->dst.t, NULL, &plan, NULL, w->err);

	if (rc)
		return rc;
	rc = move_check(&plan, w->err);
	if (!rc) {
		rc = move_copy(&plan, (const void *const *)w->src.base, w->dst.base, NULL, NULL);
		if (rc)
			ckpt_error(w->err, rc, "the values cannot be moved: %s", strerror(-rc));
	}
	plan_free(&plan);
	return rc;
}

static void put_results(struct answer *a, const struct work *w)
{
	answer_text(a, "{\"result\":[");
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		const uint8_t *p = w->dst.base[i];

		answer_text(a, i ? ",[" : "[");
		for (uint64_t k = 0; k < w->dst.share[i].numel; k++) {
			if (k)
				answer_text(a, ",");
			put_value(a, w->q->dtype, p + k * w->bytes);
		}
		answer_text(a, "]");
	}
	answer_text(a, "],\"result_shapes\":[");
	for (uint32_t i = 0; i < w->mesh.nrank; i++) {
		uint64_t shape[CKPT_DIMS_MAX];

		for (uint32_t d = 0; d < w->q->ndim; d++)
			shape[d] = w->dst.share[i].dim[d].total;
		if (i)
			answer_text(a, ",");
		answer_numbers(a, w->q->ndim, shape);
	}
	answer_text(a, "]}\n");
}

static int sides_make(struct work *w)
{
	const struct question *q = w->q;
	struct layout from = { .nplace = q->mesh.ndim, .place = q->src.place };
	struct layout to = { .nplace = q->mesh.ndim, .place = q->dst.place };
	int rc = mesh_make(w);

	if (!rc)
		rc = shares_find(w, &from, &w->src);
	if (!rc)
		rc = shares_find(w, &to, &w->dst);
	if (!rc && (w->dst.held > ANSWER_ELEMENTS_MAX || w->src.most > ANSWER_ELEMENTS_MAX))
		rc = ckpt_error(w->err, -E2BIG,
				"the ranks would have more than %u values; ask of a smaller tensor",
				ANSWER_ELEMENTS_MAX);
	if (!rc)
		rc = locals_check(w);
	if (!rc)
		rc = side_memory(w, &w->src);
	if (!rc)
		rc = side_memory(w, &w->dst);
	return rc;
}

static int work_do(struct work *w)
{
	int rc = changes_check(w);

	if (!rc)
		rc = sides_make(w);
	if (!rc)
		rc = locals_read(w);
	if (!rc)
		rc = replicas_check(w);
	if (!rc)
		rc = side_table(w, &w->q->src, &w->src);
	if (!rc)
		rc = side_table(w, &w->q->dst, &w->dst);
	return rc ? rc : values_move(w);
}

int answer_reduction(struct answer *a, const struct question *q, struct arena *arena,
		     struct ckpt_err *err)
{
	struct work w = { .q = q, .err = err, .arena = arena, .bytes = dtype_bytes(q->dtype) };
	int rc = work_do(&w);

	if (!rc)
		put_results(a, &w);
	side_free(&w.src);
	side_free(&w.dst);
	return rc;
}
