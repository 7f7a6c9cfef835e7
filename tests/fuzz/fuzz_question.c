/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_question.c - one line of ckptctl layout --batch: any bytes are answered with one line of
 * JSON, an error, or what the kind of the question asks for; ranks hold what is inside the shape,
 * sorted and merged, and as many elements as the placements say; steps have the price of all.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/answer/answer.h"
#include <jansson.h>

#define BYTES_MAX 2048
#define RANKS_MAX 256u /* larger meshes take long, and have nothing new */
#define RUNS_MAX 10000u
#define STEPS_RANKS_MAX 64u
#define DIMS_MAX 6 /* of mesh and tensor together, where steps are searched */

/* Indices of one dimension. */
static uint64_t check_runs(const json_t *runs, uint64_t extent)
{
	uint64_t n = 0;
	json_int_t above = -1;

	for (size_t i = 0; i < json_array_size(runs); i++) {
		const json_t *run = json_array_get(runs, i);
		json_int_t from = json_integer_value(json_array_get(run, 0)),
			   to = json_integer_value(json_array_get(run, 1));

		assert(json_array_size(run) == 2 && from > above && to > from);
		assert((uint64_t)to <= extent);
		n += (uint64_t)(to - from);
		above = to;
	}
	return n;
}

/* All ranks together hold each element as often as mesh dimensions that do not cut say. */
static void check_shares(const struct question *q, const json_t *answer)
{
	unsigned __int128 held = 0, want = q->mesh.nrank;

	assert(json_array_size(answer) == q->mesh.nrank);
	for (uint32_t i = 0; i < q->mesh.nrank; i++) {
		const json_t *rank = json_array_get(answer, i),
			     *runs = json_object_get(rank, "runs");
		unsigned __int128 n = 1;

		assert(json_array_size(json_object_get(rank, "coord")) == q->mesh.ndim);
		assert(json_array_size(runs) == q->ndim);
		for (uint32_t d = 0; d < q->ndim; d++) {
			uint64_t x = check_runs(json_array_get(runs, d), q->shape[d]);

			n = n && x ? n * x : 0;
		}
		held += n;
	}
	for (uint32_t i = 0; i < q->layout.nplace; i++)
		if (q->layout.place[i].how == CKPT_SHARD)
			want /= q->mesh.dim[q->layout.place[i].mesh_dim];
	for (uint32_t d = 0; d < q->ndim; d++)
		want = want && q->shape[d] ? want * q->shape[d] : 0;
	assert(held == want);
}

/* The trace has a state more than there are steps, and prices add up. */
static void check_steps(const struct question *q, const json_t *answer)
{
	const json_t *steps = json_object_get(answer, "steps");
	const char *at = json_string_value(json_object_get(answer, "trace"));
	double us = 0;
	size_t arrows = 0;

	for (size_t i = 0; i < json_array_size(steps); i++) {
		const json_t *step = json_array_get(steps, i);

		assert(json_is_null(json_object_get(step, "mesh_dim")) ||
		       json_integer_value(json_object_get(step, "mesh_dim")) < q->mesh.ndim);
		us += json_number_value(json_object_get(step, "us"));
	}
	assert(us >= 0 && us == json_number_value(json_object_get(answer, "us")));
	for (const char *p = at; p && (p = strstr(p, "->")); p += 2)
		arrows++;
	assert(!at || arrows == json_array_size(steps));
}

static void check_line(const struct question *q, const char *text, size_t len)
{
	json_t *answer;

	assert(len > 2 && text[len - 1] == '\n' && !memchr(text, '\n', len - 1));
	answer = json_loadb(text, len, 0, NULL);
	assert(answer);
	if (json_is_array(answer)) {
		assert(q && q->kind == ASK_SHARES);
		check_shares(q, answer);
	} else if (json_object_get(answer, "error")) {
		assert(json_string_length(json_object_get(answer, "error")));
	} else if (json_object_get(answer, "decoded")) {
		assert(q && q->kind == ASK_ORDER);
	} else if (json_object_get(answer, "steps")) {
		assert(q && q->kind == ASK_STEPS);
		check_steps(q, answer);
		check_steps(q, json_object_get(answer, "own"));
	} else {
		assert(q && q->kind == ASK_REDUCE);
		assert(json_array_size(json_object_get(answer, "result")) == q->mesh.nrank);
		assert(json_array_size(json_object_get(answer, "result_shapes")) == q->mesh.nrank);
	}
	json_decref(answer);
}

/* Not, if the answer would have many runs for its split factors alone, or a search many states. */
static bool is_small(const struct question *q)
{
	uint64_t runs = q->mesh.nrank;

	if (q->kind == ASK_STEPS)
		return q->mesh.nrank <= STEPS_RANKS_MAX && q->mesh.ndim + q->ndim <= DIMS_MAX;
	for (uint32_t i = 0; i < q->layout.nplace && runs <= RUNS_MAX; i++)
		runs *= MAX(q->layout.place[i].split_factor, 1u);
	return q->mesh.nrank <= RANKS_MAX && runs <= RUNS_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct answer a;
	struct arena arena = { 0 };
	struct ckpt_err err = { 0 };
	char *text = NULL;
	size_t len = 0;
	struct question q;
	int rc;

	if (bytes > BYTES_MAX)
		return -1;
	rc = question_parse((const char *)data, bytes, &arena, &q, &err);
	assert(!rc || (rc == -EINVAL && err.msg[0]));
	if (rc || is_small(&q)) {
		a.out = open_memstream(&text, &len);
		assert(a.out);
		a.counts = false;
		answer_line(&a, (const char *)data, bytes);
		answer_flush(&a);
		assert(!fclose(a.out));
		check_line(rc ? NULL : &q, text, len);
		free(text);
	}
	question_free(&q);
	arena_free(&arena);
	return 0;
}
