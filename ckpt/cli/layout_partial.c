/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_partial.c - redistributions of pending reductions, carried out on values. Called for the
 * "locals" of ckptctl layout --batch.
 * Invariant: the work is proportional to the values that the question and the answer have; operands
 * are taken in the order of their coordinates.
 */
#include "ckpt/cli/layout_partial.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/element.h"
#include "ckpt/draw/layout_shares.h"
#include "ckpt/move/reduce.h"
#include <jansson.h>
#include <math.h>

#define WHOLE_MAX 9007199254740992.0 /* up to here whole doubles are printed as integers */

struct work {
	const struct question *q;
	struct ckpt_err *err;
	struct layout from, to;
	struct shares src, dst;
	uint32_t kept, reduced,
		placed; /* mesh dimensions: P that stays, P that goes, S to P(sum) */
	struct reduction r;
	uint32_t bytes;	  /* of an element */
	uint8_t *full;	  /* [combinations of kept dimensions][numel] */
	uint32_t *holder; /* [numel] place of a rank that had the element in src */
	uint64_t *at;	  /* where the elements of one share lie in the tensor */
	uint8_t *local;	  /* the values of one share */
};

static void work_free(struct work *w)
{
	free(w->full);
	free(w->holder);
	free(w->at);
	free(w->local);
}

/* --- what happens in each mesh dimension --- */

static int refuse_change(const struct work *w, uint32_t m)
{
	struct question one = { .mesh = { .ndim = 1 } };
	struct question_side side = { .place = { w->q->src.place[m] },
				      .strided = w->q->src.strided >> m & 1 };
	char src[64], dst[64];

	question_side_print(&one, &side, src, sizeof src);
	side.place[0] = w->q->dst.place[m];
	question_side_print(&one, &side, dst, sizeof dst);
	return ckpt_error(w->err, -EINVAL,
			  "mesh dimension %u: %s cannot become %s; only S(DIM) can become P(sum), "
			  "and a partial stay what it is",
			  m, src, dst);
}

static int find_changes(struct work *w)
{
	const struct question *q = w->q;

	w->r = (struct reduction){ .op = CKPT_SUM, .dtype = q->dtype, .divisor = 1 };
	for (uint32_t m = 0; m < q->mesh.ndim; m++) {
		const struct ckpt_placement *s = &q->src.place[m], *d = &q->dst.place[m];

		if (d->how != CKPT_PARTIAL) {
			if (s->how != CKPT_PARTIAL)
				continue;
			w->reduced |= 1u << m;
			if (s->reduce == CKPT_AVG)
				w->r.divisor *= q->mesh.dim[m];
			if (s->reduce != CKPT_SUM)
				w->r.op = s->reduce;
		} else if (s->how == CKPT_PARTIAL && s->reduce == d->reduce) {
			w->kept |= 1u << m;
		} else if (s->how == CKPT_SHARD && !(q->src.strided >> m & 1) &&
			   d->reduce == CKPT_SUM) {
			w->placed |= 1u << m;
		} else {
			return refuse_change(w, m);
		}
	}
	return w->reduced ? reduction_check(&w->r, w->err) : 0;
}

/* The next coordinate in the mesh dimensions of the mask; false: they are all 0 again. */
static bool next_coord(const struct mesh *m, uint32_t mask, uint32_t *coord)
{
	for (uint32_t d = m->ndim; d-- > 0;) {
		if (!(mask >> d & 1))
			continue;
		if (++coord[d] < m->dim[d])
			return true;
		coord[d] = 0;
	}
	return false;
}

static uint32_t number_of(const struct mesh *m, uint32_t mask, const uint32_t *coord)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		if (mask >> d & 1)
			n = n * m->dim[d] + coord[d];
	return n;
}

/* --- values --- */

static bool encode(uint32_t dtype, const json_t *x, uint8_t *p)
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

/* Where the elements of a share lie, row-major. n of them, at least one. */
static void find_elements(const struct work *w, const struct shares_list *const *dim)
{
	uint64_t n = 1;

	w->at[0] = 0;
	for (uint32_t d = 0; d < w->q->ndim; d++) {
		const struct indices *x = &dim[d]->x;

		/* From behind: what is written is never read again. */
		for (uint64_t i = n; i-- > 0;) {
			uint64_t base = w->at[i] * w->q->shape[d], *to = w->at + i * x->total;

			for (const struct run *r = x->run; r < x->run + x->n; r++)
				for (uint64_t j = 0; j < r->count; j++)
					for (uint64_t k = 0; k < r->len; k++)
						*to++ = base + r->start + j * r->stride + k;
		}
		n *= x->total;
	}
}

/* --- from locals to the tensor --- */

static int read_local(const struct work *w, uint32_t place, uint64_t n)
{
	const json_t *list = json_array_get(w->q->locals, place);

	if (!json_is_array(list) || json_array_size(list) != n)
		return ckpt_error(
			w->err, -EINVAL,
			"\"locals\"[%u] must be an array of the %llu numbers that \"src\" "
			"gives this rank",
			place, (unsigned long long)n);
	for (uint64_t i = 0; i < n; i++)
		if (!encode(w->q->dtype, json_array_get(list, i), w->local + i * w->bytes))
			return ckpt_error(w->err, -EINVAL,
					  "\"locals\"[%u][%llu] is not a value of type %s", place,
					  (unsigned long long)i, dtype_name(w->q->dtype));
	return 0;
}

/* One rank's part of an operand. first: of the operand, whose elements nobody has put there yet. */
static int put_local(struct work *w, uint32_t place, const uint32_t *coord, uint8_t *operand,
		     uint8_t *there)
{
	const struct shares_list *dim[CKPT_DIMS_MAX];
	uint64_t n = shares_at(&w->src, coord, dim);
	int rc = read_local(w, place, n);

	if (rc || !n)
		return rc;
	find_elements(w, dim);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t e = w->at[i];
		const uint8_t *x = w->local + i * w->bytes;

		if (there[e] && memcmp(operand + e * w->bytes, x, w->bytes) != 0)
			return ckpt_error(w->err, -EINVAL,
					  "\"locals\"[%u][%llu] differs from what a replica of it "
					  "has: reduce it, or make them equal",
					  place, (unsigned long long)i);
		there[e] = 1;
		memcpy(operand + e * w->bytes, x, w->bytes);
		w->holder[e] = place;
	}
	return 0;
}

/* All that ranks with these coordinates in the partial dimensions hold together. */
static int read_operand(struct work *w, uint32_t *coord, uint8_t *operand, uint8_t *there)
{
	const struct mesh *m = &w->q->mesh;
	uint32_t all = (1u << m->ndim) - 1, others = all & ~(w->kept | w->reduced);
	int rc;

	memset(there, 0, w->src.numel);
	do
		rc = put_local(w, number_of(m, all, coord), coord, operand, there);
	while (!rc && next_coord(m, others, coord));
	return rc;
}

static int read_operands(struct work *w, uint8_t *operand, uint8_t *there, uint8_t *acc)
{
	const struct mesh *m = &w->q->mesh;
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	uint64_t numel = w->src.numel;
	uint8_t *full = w->full;
	int rc = 0;

	do {
		bool first = true;

		do {
			rc = read_operand(w, coord, operand, there);
			if (!rc && first)
				reduction_begin(&w->r, acc, operand, numel);
			else if (!rc)
				reduction_add(&w->r, acc, operand, numel);
			first = false;
		} while (!rc && next_coord(m, w->reduced, coord));
		if (!rc)
			reduction_end(&w->r, acc, full, numel);
		full += numel * w->bytes;
	} while (!rc && next_coord(m, w->kept, coord));
	return rc;
}

static int make_tensor(struct work *w, uint64_t most)
{
	cleanup_free uint8_t *operand = NULL;
	cleanup_free uint8_t *there = NULL;
	cleanup_free uint8_t *acc = NULL;
	uint64_t numel = w->src.numel, kept = 1;

	for (uint32_t m = 0; m < w->q->mesh.ndim; m++)
		if (w->kept >> m & 1)
			kept *= w->q->mesh.dim[m];
	if (numel > ANSWER_ELEMENTS_MAX || kept * numel > ANSWER_ELEMENTS_MAX)
		return ckpt_error(w->err, -E2BIG,
				  "the tensor is too large to be computed; at most %u elements",
				  ANSWER_ELEMENTS_MAX);
	w->full = malloc(kept * numel * w->bytes + 1);
	w->holder = malloc(numel * sizeof *w->holder + 1);
	w->at = malloc(most * sizeof *w->at + sizeof *w->at);
	w->local = malloc(most * w->bytes + 1);
	operand = malloc(numel * w->bytes + 1);
	there = malloc(numel + 1);
	acc = malloc(numel * reduction_acc_bytes(&w->r) + 1);
	if (!w->full || !w->holder || !w->at || !w->local || !operand || !there || !acc)
		return ckpt_error(w->err, -ENOMEM, "out of memory");
	return read_operands(w, operand, there, acc);
}

/* --- from the tensor to results --- */

/* In the mesh dimensions that become P(sum), an element stays with those who had it. */
static bool is_zero(const struct work *w, uint64_t element, const uint32_t *coord)
{
	uint32_t had[CKPT_DIMS_MAX];

	if (!w->placed)
		return false;
	question_rank(w->q, w->holder[element], had);
	for (uint32_t m = 0; m < w->q->mesh.ndim; m++)
		if (w->placed >> m & 1 && had[m] != coord[m])
			return true;
	return false;
}

static void put_result(struct answer *a, const struct work *w, const uint32_t *coord)
{
	const struct shares_list *dim[CKPT_DIMS_MAX];
	uint64_t n = shares_at(&w->dst, coord, dim);
	const uint8_t *full =
		w->full + number_of(&w->q->mesh, w->kept, coord) * w->src.numel * w->bytes;

	answer_text(a, "[");
	if (n)
		find_elements(w, dim);
	for (uint64_t i = 0; i < n; i++) {
		if (i)
			answer_text(a, ",");
		if (is_zero(w, w->at[i], coord))
			answer_text(a, "0");
		else
			put_value(a, w->q->dtype, full + w->at[i] * w->bytes);
	}
	answer_text(a, "]");
}

static void put_results(struct answer *a, const struct work *w)
{
	const struct mesh *m = &w->q->mesh;
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	const struct shares_list *dim[CKPT_DIMS_MAX];
	uint64_t shape[CKPT_DIMS_MAX];

	answer_text(a, "{\"result\":[");
	for (uint32_t i = 0; i < m->nrank; i++) {
		question_rank(w->q, i, coord);
		if (i)
			answer_text(a, ",");
		put_result(a, w, coord);
	}
	answer_text(a, "],\"result_shapes\":[");
	for (uint32_t i = 0; i < m->nrank; i++) {
		question_rank(w->q, i, coord);
		shares_at(&w->dst, coord, dim);
		for (uint32_t d = 0; d < w->q->ndim; d++)
			shape[d] = dim[d]->x.total;
		if (i)
			answer_text(a, ",");
		answer_numbers(a, w->q->ndim, shape);
	}
	answer_text(a, "]}\n");
}

static int work_do(struct work *w, struct arena *arena)
{
	const struct question *q = w->q;
	struct shares_totals src, dst;
	int rc = find_changes(w);

	if (!rc)
		rc = shares_make(&q->mesh, &w->from, q->ndim, q->shape, arena, &w->src, w->err);
	if (!rc)
		rc = shares_make(&q->mesh, &w->to, q->ndim, q->shape, arena, &w->dst, w->err);
	if (rc)
		return rc;
	shares_count(&w->src, &src);
	shares_count(&w->dst, &dst);
	if (dst.held > ANSWER_ELEMENTS_MAX || src.most > ANSWER_ELEMENTS_MAX)
		return ckpt_error(
			w->err, -E2BIG,
			"the ranks would have more than %u values; ask of a smaller tensor",
			ANSWER_ELEMENTS_MAX);
	return make_tensor(w, MAX(src.most, dst.most));
}

int partial_answer(struct answer *a, const struct question *q, struct arena *arena,
		   struct ckpt_err *err)
{
	struct work w = { .q = q,
			  .err = err,
			  .from = { .nplace = q->mesh.ndim, .place = q->src.place },
			  .to = { .nplace = q->mesh.ndim, .place = q->dst.place },
			  .bytes = dtype_bytes(q->dtype) };
	int rc = work_do(&w, arena);

	if (!rc)
		put_results(a, &w);
	work_free(&w);
	return rc;
}
