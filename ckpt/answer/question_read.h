/* SPDX-License-Identifier: Apache-2.0 */
/*
 * question_read.h - what readers of questions share (question.c): fields of the JSON object. All
 * return 0 or -EINVAL with the sentence, some also -ENOMEM.
 */
#ifndef CKPT_ANSWER_QUESTION_READ_H
#define CKPT_ANSWER_QUESTION_READ_H
#include "ckpt/answer/question.h"
#include <jansson.h>

/* NULL: it is missing, or null. */
const json_t *question_field(const json_t *o, const char *key);
/* An array of integers of at least `least`; at most max of them. */
int question_numbers(const json_t *o, const char *key, json_int_t least, uint32_t max,
		     uint64_t *ret, uint32_t *ret_n, struct ckpt_err *err);
int question_shape(struct question *q, struct ckpt_err *err);
int question_mesh(struct question *q, struct ckpt_err *err);
int question_ranks(struct question *q, struct arena *a, struct ckpt_err *err);
/* One placement, of mesh dimension mesh_dim. */
int question_placement(const char *text, size_t len, const struct question *q, uint32_t ndim,
		       uint32_t mesh_dim, struct question_side *s, struct ckpt_err *err);
/* The placements of a side in order of application, ret_place[mesh.ndim]. */
int question_order(const struct question *q, const json_t *order, const char *key,
		   const struct question_side *side, struct ckpt_placement *ret_place,
		   struct ckpt_err *err);

/* All fields of a question of kind ASK_STEPS; all that is wrong at once. */
int question_steps(struct question *q, struct arena *a, struct ckpt_err *err);
#endif
