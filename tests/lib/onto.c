/* SPDX-License-Identifier: Apache-2.0 */
/*
 * onto.c - see onto.h. Called by ckptbench and by tests.
 * Invariant: tensors of one layer are alike on all layers, but for the stage of a pipeline.
 */
#include "tests/lib/onto.h"
#include "ckpt/base/util.h"
#include "tests/lib/row.h"
#include <stdio.h>

const struct onto_case onto_case[ONTO_CASES] = {
	{ "fsdp64_tp8",
	  "fsdp=64",
	  "tp=8",
	  20,
	  6,
	  { { "q", { 8192, 8192 }, "Shard(0)@fsdp", "Shard(0)@tp" },
	    { "k", { 1024, 8192 }, "Shard(0)@fsdp", "Shard(0)@tp" },
	    { "o", { 8192, 8192 }, "Shard(0)@fsdp", "Shard(1)@tp" },
	    { "gate", { 28672, 8192 }, "Shard(0)@fsdp", "Shard(0)@tp" },
	    { "down", { 8192, 28672 }, "Shard(0)@fsdp", "Shard(1)@tp" },
	    { "norm", { 8192 }, "Shard(0)@fsdp", "Replicate@tp" } } },
	{ "ep2048_ep256",
	  "ep=2048",
	  "ep=256",
	  4,
	  3,
	  { { "experts.up", { 2048, 2048, 7168 }, "Shard(0)@ep", "Shard(0)@ep" },
	    { "experts.down", { 2048, 7168, 2048 }, "Shard(0)@ep", "Shard(0)@ep" },
	    { "attention", { 24576, 7168 }, "Shard(0)@ep", "Shard(0)@ep" } } },
	{ "hsdp_fsdp",
	  "dp=4,fsdp=16",
	  "fsdp=64",
	  80,
	  3,
	  { { "q", { 8192, 8192 }, "Shard(0)@fsdp", "Shard(0)@fsdp" },
	    { "gate", { 28672, 8192 }, "Shard(0)@fsdp", "Shard(0)@fsdp" },
	    { "norm", { 8192 }, "Shard(0)@fsdp", "Shard(0)@fsdp" } } },
	{ "pp_mesh",
	  "pp=4,fsdp=8",
	  "fsdp=32",
	  80,
	  3,
	  { { "q", { 8192, 8192 }, "Only(%u)@pp, Shard(0)@fsdp", "Shard(0)@fsdp" },
	    { "gate", { 28672, 8192 }, "Only(%u)@pp, Shard(0)@fsdp", "Shard(0)@fsdp" },
	    { "norm", { 8192 }, "Only(%u)@pp, Shard(0)@fsdp", "Shard(0)@fsdp" } } },
};

/* %u in the text becomes the stage. */
static int layout_add(struct table *t, const char *text, uint32_t stage, struct arena *a,
		      uint32_t *ret, struct ckpt_err *err)
{
	char with_stage[128];
	const char *at = strstr(text, "%u");
	struct layout l;
	int e;

	snprintf(with_stage, sizeof with_stage, "%s", text);
	if (at)
		snprintf(with_stage + (at - text), sizeof with_stage - (size_t)(at - text), "%u%s",
			 stage, at + 2);
	e = layout_parse(with_stage, &t->mesh[0], a, &l, err);
	return e ? e : table_add_layout(t, &l, ret, err);
}

static int tensor_add(struct table *t, const struct onto_case *c, uint32_t number, bool to,
		      struct arena *a, struct ckpt_err *err)
{
	const struct onto_cut *k = &c->cut[number % c->n];
	uint32_t layer = number / c->n;
	char name[64];
	struct table_tensor x =
		ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_BF16,
		    .cls = CKPT_STABLE, .rank = TABLE_NONE, .shape = k->shape);
	int e;

	while (x.ndim < ARRAY_LEN(k->shape) && k->shape[x.ndim])
		x.ndim++;
	snprintf(name, sizeof name, "layers.%u.%s", layer, k->name);
	e = layout_add(t, to ? k->to : k->from, layer * 4 / c->layers, a, &x.layout, err);
	return e ? e : table_add_tensor(t, &x, NULL, err);
}

int onto_make(const struct onto_case *c, bool to, struct table *ret, struct ckpt_err *err)
{
	struct arena a = { 0 };
	struct mesh m;
	int e = mesh_parse(to ? c->to : c->from, &a, &m, err);

	*ret = (struct table){ 0 };
	if (!e)
		e = table_add_mesh(ret, &m, NULL, err);
	for (uint32_t i = 0; i < c->n * c->layers && !e; i++)
		e = tensor_add(ret, c, i, to, &a, err);
	if (!e)
		e = table_seal(ret, err);
	arena_free(&a);
	if (e)
		table_free(ret);
	return e;
}
