/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds_draw.h - the rounds of a schedule (ckpt/plan/plan_schedule.h) for people: a line for each
 * link, which is what one rank sends or receives over one tier, and on it each round, as dark as
 * the part of the round's time for which the link is busy. If there are too many rounds, several
 * share a column; if there are too many ranks, neighbours share a line, which shows the busiest of
 * them. Used by ckptctl plan.
 */
#ifndef CKPT_DRAW_ROUNDS_DRAW_H
#define CKPT_DRAW_ROUNDS_DRAW_H
#include "ckpt/draw/screen.h"
#include "ckpt/plan/plan_schedule.h"
#include <stdio.h>

#define ROUNDS_WORLD_MAX 1024u	       /* ranks: a part is made of each */
#define ROUNDS_MESSAGES_MAX (1u << 24) /* that are looked at: less than a second */
#define ROUNDS_COLUMNS 64u	       /* rounds, or blocks of them, of a drawing */

struct rounds;

/* total: schedule_total's, which this asks again rank by rank; it and s may be closed afterwards.
 * -E2BIG: more than the limits above, err says which; results of schedule_part. */
int rounds_make(struct schedule *s, const struct links *links, const struct schedule_total *total,
		struct rounds **ret, struct ckpt_err *err);
void rounds_free(struct rounds *r); /* NULL is fine */

void rounds_print(const struct rounds *r, FILE *f, const struct screen *s);
/* Part of a picture that is as wide as ROUNDS_SVG_WIDTH, and so high: from y on. */
#define ROUNDS_SVG_WIDTH 720.0
double rounds_svg_height(const struct rounds *r);
void rounds_svg(const struct rounds *r, FILE *f, double y);
#endif
