/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps_draw.h - a redistribution (ckpt/redist/redistribute.h) drawn: the states from top to
 * bottom, in each a box for each rank with the elements that the rank holds, and between two states
 * the collective, its price, and what goes from rank to rank. As text and as a picture. Used by
 * ckptctl plan --steps.
 *
 * A box is the tensor in small, with the rank's elements in it: the index sets of layout_share, so
 * that uneven and strided shares look as they are. The picture has two dimensions of the tensor at
 * most, the first two that some state cuts; the indices below a box are those of all dimensions.
 * The colour of a box stands for the rank's coordinate in the mesh. If there are more than
 * STEPS_SVG_BOXES ranks, one box of the picture stands for all that hold the same. If there are
 * more than STEPS_TEXT_BOXES, the text draws the tensor once for each state, with its cuts and the
 * ranks in them (map.h).
 *
 * An arrow stands for the bytes that one rank needs of another. all_gather, all_to_all: the
 * elements that the sender held and the receiver holds after the step. reduce_scatter: operands of
 * these. all_reduce (a reduce_scatter and an all_gather): a part of each. exchange: the same, from
 * one replica (redistribute.h). The links by which a collective brings them are not drawn. If there
 * are many groups of ranks, some are drawn, and their number is printed.
 */
#ifndef CKPT_DRAW_STEPS_DRAW_H
#define CKPT_DRAW_STEPS_DRAW_H
#include "ckpt/draw/screen.h"
#include "ckpt/redist/redistribute.h"
#include <stdio.h>

#define STEPS_TEXT_BOXES 8u		      /* ranks that have a box each, in the text */
#define STEPS_SVG_BOXES 16u		      /* and in the picture */
#define STEPS_RANKS_MAX 4096u		      /* ranks of a drawing */
#define STEPS_BYTES_MAX (UINT64_C(256) << 20) /* memory that the sets of all states take */
#define STEPS_ARROWS_MAX 4096u		      /* pairs of ranks that are looked at in one step */
#define STEPS_RUNS_MAX (UINT64_C(1) << 24) /* runs that are looked at for the arrows of one step */

struct steps_draw;

/* All arguments must outlive the result. -E2BIG: more than the limits above, err says which;
 * -ENOMEM. */
int steps_draw_make(const struct redist_problem *p, const struct redist_steps *s,
		    struct steps_draw **ret, struct ckpt_err *err);
void steps_draw_free(struct steps_draw *d); /* NULL is fine */

/* -ENOMEM; -E2BIG: a state of many ranks has more blocks than a map takes. */
int steps_print(const struct steps_draw *d, FILE *f, const struct screen *s);
/* title and lines (NULL ends) stand above it. -ENOMEM. */
int steps_svg(const struct steps_draw *d, const char *title, const char *const *line, FILE *f);
#endif
