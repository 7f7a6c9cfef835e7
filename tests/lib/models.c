/* SPDX-License-Identifier: Apache-2.0 */
/*
 * models.c - see models.h. Called by ckptbench and by tests.
 * Invariant: shapes and names are those of the published checkpoints; the meshes are ours.
 */
#include "tests/lib/row.h"
#include "tests/lib/models.h"
#include "ckpt/base/util.h"
#include <stdio.h>

#define STAGES 16u
#define EXPERTS 256u

/* How a tensor is cut beside its stage: by tensor parallelism first, then by FSDP. */
enum cut { CUT_ROWS, CUT_COLUMN_PARALLEL, CUT_ROW_PARALLEL, CUTS };

struct build {
	struct table *t;
	struct ckpt_err *err;
	struct mesh mesh[2];
	uint32_t layers, ep;
	uint32_t layout[CUTS][STAGES];	    /* + 1; 0: not made yet */
	uint32_t expert_layout[STAGES][64]; /* the same */
	int rc;
};

static uint16_t mesh_dim(const struct mesh *m, const char *name)
{
	for (uint16_t d = 0; d < m->ndim; d++)
		if (!strcmp(m->name[d], name))
			return d;
	return UINT16_MAX;
}

static void place(const struct mesh *m, struct layout *l, struct ckpt_placement *p,
		  const char *name, enum ckpt_how how, uint32_t what)
{
	struct ckpt_placement x = { .how = (uint8_t)how, .mesh_dim = mesh_dim(m, name) };

	if (x.mesh_dim == UINT16_MAX)
		return;
	if (how == CKPT_SHARD)
		x.tensor_dim = (uint16_t)what;
	else
		x.split_factor = what;
	p[l->nplace++] = x;
}

static uint32_t layout_add(struct build *b, const struct layout *l)
{
	uint32_t id = 0;

	if (!b->rc)
		b->rc = table_add_layout(b->t, l, &id, b->err);
	return id + 1;
}

static uint32_t stage_of(const struct build *b, uint32_t layer)
{
	return layer * STAGES / b->layers;
}

static uint32_t dense_layout(struct build *b, uint32_t stage, enum cut cut)
{
	struct ckpt_placement p[3];
	struct layout l = { .mesh = 0, .place = p };

	if (b->layout[cut][stage])
		return b->layout[cut][stage] - 1;
	place(&b->mesh[0], &l, p, "pp", CKPT_ONLY, stage);
	if (cut != CUT_ROWS)
		place(&b->mesh[0], &l, p, "tp", CKPT_SHARD, cut == CUT_ROW_PARALLEL);
	place(&b->mesh[0], &l, p, "fsdp", CKPT_SHARD, 0);
	b->layout[cut][stage] = layout_add(b, &l);
	return b->layout[cut][stage] - 1;
}

static uint32_t expert_layout(struct build *b, uint32_t stage, uint32_t ep)
{
	struct ckpt_placement p[3];
	struct layout l = { .mesh = 1, .place = p };

	if (b->expert_layout[stage][ep])
		return b->expert_layout[stage][ep] - 1;
	place(&b->mesh[1], &l, p, "pp", CKPT_ONLY, stage);
	place(&b->mesh[1], &l, p, "ep", CKPT_ONLY, ep);
	place(&b->mesh[1], &l, p, "efsdp", CKPT_SHARD, 0);
	b->expert_layout[stage][ep] = layout_add(b, &l);
	return b->expert_layout[stage][ep] - 1;
}

/* A weight, its master weight and its moments. cols 0: a vector. */
static void tensors_add(struct build *b, const char *name, uint64_t rows, uint64_t cols,
			uint32_t layout)
{
	static const struct {
		const char *suffix;
		uint32_t role;
	} kind[] = { { "", CKPT_PARAM },
		     { ".master", CKPT_MASTER },
		     { ".exp_avg", CKPT_MOMENT1 },
		     { ".exp_avg_sq", CKPT_MOMENT2 } };
	uint64_t shape[] = { rows, cols };
	char full[160];

	for (uint32_t k = 0; k < ARRAY_LEN(kind) && !b->rc; k++) {
		struct table_tensor x =
			ROW(.component = k ? "optim" : "model", .name = full, .of = k ? name : "",
			    .dtype = k ? CKPT_F32 : CKPT_BF16, .role = kind[k].role,
			    .cls = CKPT_STABLE, .layout = layout, .rank = TABLE_NONE,
			    .ndim = cols ? 2 : 1, .shape = shape);

		snprintf(full, sizeof full, "%s%s", name, kind[k].suffix);
		b->rc = table_add_tensor(b->t, &x, NULL, b->err);
	}
}

struct shape {
	const char *name;
	uint64_t rows, cols;
	enum cut cut;
};

static void layer_add(struct build *b, uint32_t layer, const struct shape *s, uint32_t n)
{
	char name[96];

	for (uint32_t i = 0; i < n; i++) {
		snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, s[i].name);
		tensors_add(b, name, s[i].rows, s[i].cols,
			    dense_layout(b, stage_of(b, layer), s[i].cut));
	}
}

static void llama_add(struct build *b)
{
	static const struct shape layer[] = {
		{ "self_attn.q_proj", 16384, 16384, CUT_COLUMN_PARALLEL },
		{ "self_attn.k_proj", 1024, 16384, CUT_COLUMN_PARALLEL },
		{ "self_attn.v_proj", 1024, 16384, CUT_COLUMN_PARALLEL },
		{ "self_attn.o_proj", 16384, 16384, CUT_ROW_PARALLEL },
		{ "mlp.gate_proj", 53248, 16384, CUT_COLUMN_PARALLEL },
		{ "mlp.up_proj", 53248, 16384, CUT_COLUMN_PARALLEL },
		{ "mlp.down_proj", 16384, 53248, CUT_ROW_PARALLEL },
		{ "input_layernorm", 16384, 0, CUT_ROWS },
		{ "post_attention_layernorm", 16384, 0, CUT_ROWS },
	};

	b->layers = 126;
	tensors_add(b, "model.embed_tokens.weight", 128256, 16384,
		    dense_layout(b, 0, CUT_COLUMN_PARALLEL));
	for (uint32_t i = 0; i < b->layers; i++)
		layer_add(b, i, layer, ARRAY_LEN(layer));
	tensors_add(b, "model.norm.weight", 16384, 0, dense_layout(b, STAGES - 1, CUT_ROWS));
	tensors_add(b, "lm_head.weight", 128256, 16384,
		    dense_layout(b, STAGES - 1, CUT_COLUMN_PARALLEL));
}

static void experts_add(struct build *b, uint32_t layer)
{
	static const struct shape w[] = { { "gate_proj", 2048, 7168, CUT_ROWS },
					  { "up_proj", 2048, 7168, CUT_ROWS },
					  { "down_proj", 7168, 2048, CUT_ROWS } };
	char name[96];

	for (uint32_t e = 0; e < EXPERTS; e++)
		for (uint32_t i = 0; i < ARRAY_LEN(w); i++) {
			snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight",
				 layer, e, w[i].name);
			tensors_add(b, name, w[i].rows, w[i].cols,
				    expert_layout(b, stage_of(b, layer), e * b->ep / EXPERTS));
		}
}

static void moe_add(struct build *b)
{
	static const struct shape layer[] =
		ROW({ "self_attn.q_a_proj", 1536, 7168, CUT_ROWS },
		    { "self_attn.q_a_layernorm", 1536, 0, CUT_ROWS },
		    { "self_attn.q_b_proj", 24576, 1536, CUT_ROWS },
		    { "self_attn.kv_a_proj_with_mqa", 576, 7168, CUT_ROWS },
		    { "self_attn.kv_a_layernorm", 512, 0, CUT_ROWS },
		    { "self_attn.kv_b_proj", 32768, 512, CUT_ROWS },
		    { "self_attn.o_proj", 7168, 16384, CUT_ROWS },
		    { "input_layernorm", 7168, 0, CUT_ROWS },
		    { "post_attention_layernorm", 7168, 0, CUT_ROWS },
		    { "mlp.gate", 256, 7168, CUT_ROWS },
		    { "mlp.gate.e_score_correction_bias", 256, 0, CUT_ROWS });

	b->layers = 60;
	b->ep = b->mesh[1].dim[mesh_dim(&b->mesh[1], "ep")];
	tensors_add(b, "model.embed_tokens.weight", 129280, 7168, dense_layout(b, 0, CUT_ROWS));
	for (uint32_t i = 0; i < b->layers; i++) {
		layer_add(b, i, layer, ARRAY_LEN(layer));
		experts_add(b, i);
	}
	tensors_add(b, "model.norm.weight", 7168, 0, dense_layout(b, STAGES - 1, CUT_ROWS));
	tensors_add(b, "lm_head.weight", 129280, 7168, dense_layout(b, STAGES - 1, CUT_ROWS));
}

enum model model_find(const char *name)
{
	static const char *const known[MODELS] = { "llama405b", "llama64", "moe" };
	uint32_t i = 0;

	while (i < MODELS && strcmp(known[i], name) != 0)
		i++;
	return (enum model)i;
}

int model_make(enum model which, bool loaded, struct table *ret, struct ckpt_err *err)
{
	static const char *const spec[MODELS][2][2] = {
		{ { "pp=16,fsdp=128,tp=8", NULL }, { "fsdp=512,tp=16", NULL } },
		{ { "fsdp=16,tp=4", NULL }, { "fsdp=8,tp=8", NULL } },
		{ { "pp=16,fsdp=128", "pp=16,ep=64,efsdp=2" }, { "fsdp=1024", "ep=32,efsdp=32" } },
	};
	cleanup_free struct build *b = calloc(1, sizeof *b);
	struct arena a = { 0 };

	*ret = (struct table){ 0 };
	if (!b)
		return ckpt_error(err, -ENOMEM, "out of memory for a model");
	b->t = ret;
	b->err = err;
	for (uint32_t i = 0; i < 2 && spec[which][loaded][i] && !b->rc; i++) {
		b->rc = mesh_parse(spec[which][loaded][i], &a, &b->mesh[i], err);
		if (!b->rc)
			b->rc = table_add_mesh(ret, &b->mesh[i], NULL, err);
	}
	if (!b->rc && table_reserve(ret, which == MODEL_MOE ? 186972 : 4548, 0))
		b->rc = ckpt_error(err, -ENOMEM, "out of memory for a model");
	if (!b->rc && which == MODEL_MOE)
		moe_add(b);
	else if (!b->rc)
		llama_add(b);
	if (!b->rc)
		b->rc = table_seal(ret, err);
	arena_free(&a);
	if (b->rc)
		table_free(ret);
	return b->rc;
}

uint32_t model_world(const struct table *t)
{
	return t->mesh[0].nrank;
}
