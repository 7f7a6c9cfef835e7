/* SPDX-License-Identifier: Apache-2.0 */
/*
 * question_steps.c - reads a question for the steps of a redistribution. Called by question.c.
 * Invariant: one that was accepted has passed layout_check on both sides, and redist_check.
 */
#include "ckpt/answer/question_read.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"

/* How many bytes an element has, by PyTorch's names. Of float4 it is a byte of two. */
static const struct {
	const char *name;
	uint32_t bytes;
} torch_dtype[] = {
	{ "bool", 1 },
	{ "uint8", 1 },
	{ "int8", 1 },
	{ "float8_e4m3fn", 1 },
	{ "float8_e4m3fnuz", 1 },
	{ "float8_e5m2", 1 },
	{ "float8_e5m2fnuz", 1 },
	{ "float8_e8m0fnu", 1 },
	{ "float4_e2m1fn_x2", 1 },
	{ "uint16", 2 },
	{ "int16", 2 },
	{ "float16", 2 },
	{ "bfloat16", 2 },
	{ "uint32", 4 },
	{ "int32", 4 },
	{ "float32", 4 },
	{ "complex32", 4 },
	{ "uint64", 8 },
	{ "int64", 8 },
	{ "float64", 8 },
	{ "complex64", 8 },
	{ "complex128", 16 },
};

/* What is wrong with one field, to the list. Returns whether the field is good. */
static bool field_good(struct ckpt_errlist *wrong, int rc, const struct ckpt_err *err)
{
	if (rc)
		ckpt_errlist_add(wrong, "%s", rc == -ENOMEM ? "out of memory" : err->msg);
	return !rc;
}

static uint32_t read_elem_bytes(const struct question *q, struct ckpt_errlist *wrong)
{
	const char *word = json_string_value(question_field(q->json, "dtype"));
	uint32_t bytes = word ? dtype_bytes(dtype_of_name(word)) : 0;

	for (size_t i = 0; word && !bytes && i < ARRAY_LEN(torch_dtype); i++)
		if (!strcmp(word, torch_dtype[i].name))
			bytes = torch_dtype[i].bytes;
	if (!bytes)
		ckpt_errlist_add(wrong, "\"dtype\" must be one of PyTorch's, as in \"bfloat16\", "
					"or of safetensors, as in \"BF16\"");
	return bytes;
}

static uint32_t read_devices(const struct question *q, struct ckpt_errlist *wrong)
{
	const json_t *v = question_field(q->json, "devices_per_host");
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < 1 || n > UINT32_MAX)
		ckpt_errlist_add(wrong, "\"devices_per_host\" must be 1 to %u", UINT32_MAX);
	return (uint32_t)n;
}

/* UINT32_MAX: the question leaves it to PyTorch. */
static uint32_t read_planner(const struct question *q, struct ckpt_errlist *wrong)
{
	const json_t *v = question_field(q->json, "planner");
	const char *word = json_string_value(v);

	if (!v)
		return UINT32_MAX;
	if (word && !strcmp(word, "greedy"))
		return REDIST_GREEDY;
	if (!word || strcmp(word, "graph") != 0)
		ckpt_errlist_add(wrong, "\"planner\" must be \"greedy\" or \"graph\"");
	return REDIST_GRAPH;
}

/* Each placement of a side. */
static bool read_places(struct question *q, const char *key, struct question_side *s,
			struct ckpt_errlist *wrong)
{
	const json_t *v = question_field(q->json, key);
	uint64_t before = wrong->n;

	if (json_array_size(v) != q->mesh.ndim || !json_is_array(v)) {
		ckpt_errlist_add(wrong,
				 "\"%s\" must be an array of %u placements, one for each "
				 "dimension of the mesh",
				 key, q->mesh.ndim);
		return false;
	}
	for (uint32_t m = 0; m < q->mesh.ndim; m++) {
		const json_t *x = json_array_get(v, m);
		struct ckpt_err err = { 0 };
		int rc = json_is_string(x)
				 ? question_placement(json_string_value(x), json_string_length(x),
						      q, q->ndim, m, s, &err)
				 : ckpt_error(&err, -EINVAL, "not a string");

		if (rc)
			ckpt_errlist_add(wrong, "\"%s\"[%u]: %s", key, m, err.msg);
	}
	return wrong->n == before;
}

/* A side in order of application: as its order says, or as it stands. */
static bool read_layout(struct question *q, const char *key, const char *order_key,
			struct question_side *s, struct arena *a, struct layout *ret,
			struct ckpt_errlist *wrong)
{
	const json_t *order = question_field(q->json, order_key);
	struct ckpt_placement *place = arena_array(a, CKPT_DIMS_MAX, sizeof *place);
	struct ckpt_err err = { 0 };
	int rc = 0;

	*ret = (struct layout){ .nplace = q->mesh.ndim, .place = place };
	if (!place)
		return field_good(wrong, -ENOMEM, &err);
	if (!read_places(q, key, s, wrong))
		return false;
	memcpy(place, s->place, q->mesh.ndim * sizeof *place);
	if (order)
		rc = question_order(q, order, order_key, s, place, &err);
	if (!field_good(wrong, rc, &err))
		return false;
	rc = layout_check(&q->mesh, ret, q->ndim, &err);
	return field_good(wrong, rc ? ckpt_error_prefix(&err, rc, "\"%s\"", key) : 0, &err);
}

/* The ranks of the mesh: those of the question, or 0, 1, .. */
static bool read_mesh_ranks(struct question *q, struct arena *a, struct ckpt_errlist *wrong)
{
	uint32_t *rank = arena_array(a, q->mesh.nrank, sizeof *rank);
	struct ckpt_err err = { 0 };
	int rc = rank ? question_ranks(q, a, &err) : -ENOMEM;

	for (uint32_t i = 0; i < q->mesh.nrank && !rc; i++) {
		if (q->rank && q->rank[i] > UINT32_MAX)
			rc = ckpt_error(&err, -EINVAL, "\"ranks\"[%u]: at most %u can be", i,
					UINT32_MAX);
		else
			rank[i] = q->rank ? (uint32_t)q->rank[i] : i;
	}
	q->mesh.rank = rank;
	return field_good(wrong, rc, &err);
}

static void read_problem(struct question *q, struct arena *a, struct ckpt_errlist *wrong)
{
	bool from = read_layout(q, "src", "src_order", &q->src, a, &q->from, wrong);
	bool to = read_layout(q, "dst", "dst_order", &q->dst, a, &q->to, wrong);
	struct ckpt_err err = { 0 };

	q->problem.mesh = &q->mesh;
	q->problem.ndim = q->ndim;
	q->problem.shape = q->shape;
	q->problem.src = &q->from;
	q->problem.dst = &q->to;
	if (read_mesh_ranks(q, a, wrong) && from && to)
		(void)field_good(wrong, redist_check(&q->problem, &err), &err);
}

int question_steps(struct question *q, struct arena *a, struct ckpt_err *err)
{
	struct ckpt_errlist wrong = { .code = -EINVAL };
	struct ckpt_err why = { 0 };
	bool mesh = field_good(&wrong, question_mesh(q, &why), &why);
	bool shape = field_good(&wrong, question_shape(q, &why), &why);
	uint32_t planner = read_planner(q, &wrong);
	int rc;

	q->problem.elem_bytes = read_elem_bytes(q, &wrong);
	q->devices_per_host = read_devices(q, &wrong);
	if (mesh && shape)
		read_problem(q, a, &wrong);
	rc = ckpt_errlist_end(&wrong, err, "this cannot be redistributed");
	ckpt_errlist_free(&wrong);
	if (!rc)
		q->planner = planner == UINT32_MAX ? redist_torch_takes(&q->problem)
						   : (enum redist_planner)planner;
	return rc;
}
