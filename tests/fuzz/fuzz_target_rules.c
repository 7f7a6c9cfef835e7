/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_target_rules.c - a mesh and layout rules as a person types them (the first line, then "GLOB
 * PLACEMENTS" a line): they are refused with a sentence, or every element of every tensor is on as
 * many ranks as the placements say, and the placements can be printed and read again.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/table/target.h"
#include "tests/lib/row.h"
#include <stdio.h>

#define BYTES_MAX 1024
#define RULES_MAX 32u
#define WORLD_MAX 512u /* larger meshes are only made */

static const uint64_t shapes[][3] = { { 0 },	 { 7 },	      { 64 },  { 3, 5 },
				      { 12, 4 }, { 2, 3, 4 }, { 0, 3 } };
static const uint32_t ndims[] = { 0, 1, 1, 2, 2, 3, 2 };

static void add(struct table *t, const char *name, uint32_t i, uint32_t layout)
{
	struct table_tensor x = ROW(.component = i % 2 ? "model" : "optim", .name = name, .of = "",
				    .dtype = CKPT_BF16, .layout = layout, .rank = TABLE_NONE,
				    .ndim = ndims[i], .shape = shapes[i]);

	assert(!table_add_tensor(t, &x, NULL, NULL));
}

static void make_source(struct table *t)
{
	const struct ckpt_placement place[] = {
		{ .how = CKPT_SHARD, .mesh_dim = 0, .tensor_dim = 0, .split_factor = 2 },
		{ .how = CKPT_SHARD, .mesh_dim = 1, .tensor_dim = 0 },
		{ .how = CKPT_ONLY, .mesh_dim = 2, .split_factor = 1 },
	};
	const struct layout two = { .nplace = 2, .place = place },
			    stage = { .nplace = 1, .place = &place[2] };
	uint64_t blob = 9;
	struct arena a = { 0 };
	struct mesh m;
	uint32_t cut, only;

	assert(!mesh_parse("dp=3,tp=2,pp=2", &a, &m, NULL));
	assert(!table_add_mesh(t, &m, NULL, NULL));
	assert(!table_add_layout(t, &two, &cut, NULL) && !table_add_layout(t, &stage, &only, NULL));
	for (uint32_t i = 0; i < ARRAY_LEN(ndims); i++) {
		char name[] = { 'w', (char)('0' + i), 0 };

		add(t, name, i, !ndims[i] ? only : i == 2 ? TABLE_NONE : cut);
	}
	for (uint32_t r = 0; r < 3; r++) {
		struct table_tensor x =
			ROW(.name = "rng", .dtype = CKPT_U8, .flags = TENSOR_BLOB,
			    .layout = TABLE_NONE, .rank = r, .ndim = 1, .shape = &blob);

		assert(!table_add_tensor(t, &x, NULL, NULL));
	}
	assert(!table_seal(t, NULL));
	arena_free(&a);
}

static void note(void *arg, uint32_t tensor, const char *text)
{
	assert(tensor < ((struct table *)arg)->ntensor && *text);
}

/* Ranks that hold an element: the mesh without the dimensions that tell ranks apart. */
static uint64_t holders(const struct table *g, const struct table_tensor *x)
{
	uint64_t n = g->mesh[0].nrank;

	if (x->rank != TABLE_NONE)
		return 1;
	for (uint32_t i = 0; i < g->layout[x->layout].nplace; i++) {
		const struct ckpt_placement *p = &g->layout[x->layout].place[i];

		assert(p->how == CKPT_SHARD || p->how == CKPT_ONLY);
		n /= g->mesh[0].dim[p->mesh_dim];
	}
	return n;
}

static void check_ranks(const struct table *g)
{
	uint64_t held[ARRAY_LEN(ndims) + 3] = { 0 };
	struct table t;

	assert(g->ntensor == ARRAY_LEN(held));
	if (target_world(g) > WORLD_MAX)
		return;
	assert(!target_ranks(g, 0, target_world(g), &t, NULL));
	for (uint32_t i = 0; i < t.npiece; i++)
		held[t.piece[i].tensor] += t.piece[i].set.numel;
	for (uint32_t i = 0; i < g->ntensor; i++)
		assert(held[i] == g->tensor[i].numel * holders(g, &g->tensor[i]));
	table_free(&t);
}

static void check_text(const struct table *g)
{
	struct arena a = { 0 };

	for (uint32_t i = 0; i < g->nlayout; i++) {
		char text[8192];
		struct layout l;

		table_layout_print(g, i, text, sizeof text);
		assert(!layout_parse(text, &g->mesh[0], &a, &l, NULL));
		for (uint32_t j = 0; j < g->layout[i].nplace; j++) {
			const struct ckpt_placement *p = &g->layout[i].place[j], *q = &l.place[j];

			assert(p->how == q->how && p->mesh_dim == q->mesh_dim);
			assert(p->how != CKPT_SHARD || p->tensor_dim == q->tensor_dim);
			assert(MAX(p->split_factor, 1u) == MAX(q->split_factor, 1u));
		}
	}
	arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char text[BYTES_MAX + 1];
	struct target_rule rule[RULES_MAX];
	struct table src = { 0 }, g;
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	char *save = NULL, *mesh;
	int rc;

	if (bytes > BYTES_MAX)
		return -1;
	memcpy(text, data, bytes);
	text[bytes] = 0;
	mesh = strtok_r(text, "\n", &save);
	for (char *line; n < RULES_MAX && (line = strtok_r(NULL, "\n", &save)); n++) {
		char *blank = strchr(line, ' ');

		if (blank)
			*blank++ = 0;
		rule[n] = (struct target_rule){ line, blank ? blank : "", "rules:1" };
	}
	make_source(&src);
	rc = target_make(&src, mesh ? mesh : "", rule, n, &g, note, &src, &err);
	if (rc) {
		assert(rc == -EINVAL && err.code == rc && err.msg[0]);
	} else {
		check_ranks(&g);
		check_text(&g);
		table_free(&g);
	}
	table_free(&src);
	return 0;
}
