/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - answers to questions about layouts (question.h): one line of JSON each. What rooms
 * below compute is written here; nothing is computed here. Called by ckptctl layout --batch, from
 * one thread.
 *
 *	placements	[{"coord":[0,0],"runs":[[[0,2]],[[0,5]]]},..]: one object a rank, in
 *			ascending rank: its coordinate, and for each tensor dimension the runs
 *			[start,stop) that it holds, sorted and merged. counts: in place of "runs"
 *			{"elements": how many, "run_counts": [of each dimension],
 *			"progression_counts": [the same]}
 *	strided		{"decoded":[[0,[1,0]]]}: the order as questions have it; null: the factors
 *			give no order
 *	locals		{"result":[[..],..],"result_shapes":[[..],..]}: of each rank in ascending rank
 *	steps		of a redistribution: answer_steps.h
 *	refused		{"error":"why"}; several mistakes are a line each
 */
#ifndef CKPT_ANSWER_H
#define CKPT_ANSWER_H
#include "ckpt/answer/question.h"
#include <stdio.h>

#define ANSWER_RUNS_MAX (1u << 24)     /* an answer with more is refused; with counts it is given */
#define ANSWER_ELEMENTS_MAX (1u << 24) /* of all results of a redistribution */

/* Lines on their way to out: a big buffer, so that a small answer is no system call. */
struct answer {
	FILE *out;
	bool counts;
	uint64_t errors; /* answers that were refusals */
	size_t used;
	char buf[1 << 16];
};

void answer_line(struct answer *a, const char *line, size_t len);
/* A refusal without a question. */
void answer_refuse(struct answer *a, const char *why);
void answer_flush(struct answer *a);

/* What answers are made of. */
void answer_text(struct answer *a, const char *text);
void answer_number(struct answer *a, uint64_t n);
void answer_numbers(struct answer *a, uint32_t n, const uint64_t *x); /* [1,2,3] */
#endif
