/* SPDX-License-Identifier: Apache-2.0 */
/*
 * onto.h - models on one mesh that are to go onto another: what people do with checkpoints of a
 * trainer, and with its memory. Declarations alone, of BF16 weights in real shapes. For tests and
 * measurements of schedules.
 */
#ifndef TESTS_ONTO_H
#define TESTS_ONTO_H
#include "ckpt/table/table.h"

#define ONTO_CUTS_MAX 6u

/* A tensor of each layer; its layout on both meshes, as text, with %u for the layer's stage of
 * four. */
struct onto_cut {
	const char *name;
	uint64_t shape[3];
	const char *from, *to;
};
struct onto_case {
	const char *name, *from, *to; /* meshes */
	uint32_t layers, n;
	struct onto_cut cut[ONTO_CUTS_MAX];
};

/* FSDP 64 onto TP 8, EP 2,048 onto EP 256, HSDP onto FSDP, stages of a pipeline onto one mesh. */
#define ONTO_CASES 4u
extern const struct onto_case onto_case[ONTO_CASES];

/* The declarations on one of the two meshes, sealed. -ENOMEM, -EINVAL. */
int onto_make(const struct onto_case *c, bool to, struct table *ret, struct ckpt_err *err);
#endif
