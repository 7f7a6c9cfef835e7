/* SPDX-License-Identifier: Apache-2.0 */
/*
 * models.h - declarations of large models as tables without pieces, for measurements and tests of
 * the planner: real lists of tensors with real shapes, BF16 weights and AdamW's FP32 master and
 * moments ("model" and "optim"), on two meshes each.
 *
 * llama405b: Llama 3.1 405B (405,853,388,800 parameters; 1,137 tensors, 4,548 with the
 * optimizer's).
 *	saved	pp=16,fsdp=128,tp=8: 16,384 ranks
 *	loaded	fsdp=512,tp=16: 8,192 ranks
 * llama64: the same tensors, scaled down to 64 ranks, for what cannot do more in bearable time
 *	saved	fsdp=16,tp=4
 *	loaded	fsdp=8,tp=8
 * moe: experts as tensors of their own: 60 layers of 256 experts, hidden size 7168, multi-head
 * latent
 *	attention as in DeepSeek-V3; 186,972 tensors. Experts have a mesh of their own.
 *	saved	pp=16,fsdp=128 and pp=16,ep=64,efsdp=2: 2,048 ranks
 *	loaded	fsdp=1024 and ep=32,efsdp=32: 1,024 ranks
 */
#ifndef TESTS_MODELS_H
#define TESTS_MODELS_H
#include "ckpt/table/table.h"

enum model { MODEL_LLAMA405B, MODEL_LLAMA64, MODEL_MOE, MODELS };

enum model model_find(const char *name); /* MODELS: none is called so */

/* Sealed. -ENOMEM. */
int model_make(enum model which, bool loaded, struct table *ret, struct ckpt_err *err);
uint32_t model_world(const struct table *t); /* its ranks */
#endif
