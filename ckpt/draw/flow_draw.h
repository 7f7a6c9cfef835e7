/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow_draw.h - a flow matrix (ckpt/plan/flow.h) for people: old ranks down, new ranks across. As
 * text of at most 16 x 16 cells, and as a picture of at most 64 x 64: where there are more ranks,
 * neighbours are drawn as one, which is said. Used by ckptctl plan.
 */
#ifndef CKPT_DRAW_FLOW_DRAW_H
#define CKPT_DRAW_FLOW_DRAW_H
#include "ckpt/draw/rounds_draw.h"
#include "ckpt/plan/flow.h"
#include <stdio.h>

/* Bytes where they fit the screen (80 columns, where it has no width), else shades. -ENOMEM. */
int flow_print(const struct flow *f, FILE *out, const struct screen *s);
/* A heat map with totals and a legend, and below it the rounds that bring these bytes (NULL: none).
 * line: below the title, NULL ends. -ENOMEM. */
int flow_svg(const struct flow *f, const struct rounds *rounds, const char *title,
	     const char *const *line, FILE *out);
#endif
