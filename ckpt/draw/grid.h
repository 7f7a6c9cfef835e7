/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid.h - aligned columns. Collects rows, then prints them two blanks apart, numbers on the right,
 * in the width of the screen: flexible columns are left out, or shortened in the middle, widest
 * first; the words of a last column may go on below. Columns without a head, and columns in which
 * every cell is empty, are left out.
 */
#ifndef CKPT_DRAW_GRID_H
#define CKPT_DRAW_GRID_H
#include "ckpt/draw/screen.h"

#define GRID_COLUMNS_MAX 24

/* What happens to a column where the terminal is narrow. */
enum column_fit {
	FIT_WHOLE, /* nothing */
	FIT_LAST,  /* shortened as a last resort */
	FIT_THEN,  /* shortened before those */
	FIT_FIRST, /* shortened before all others */
	FIT_DROP,  /* left out */
	FIT_WRAP,  /* of the last column: broken between words */
};

struct column {
	const char *key;  /* JSON member; NULL: text only */
	const char *head; /* heading or label; NULL: JSON only */
	bool right;	  /* numbers stand on the right */
	uint8_t fit;	  /* enum column_fit */
};

struct grid;

struct grid *grid_new(const struct column *cols,
		      uint32_t ncol); /* cols must outlive it; NULL: out of memory */
int grid_row(struct grid *g);	      /* 0 or -ENOMEM */
int grid_cell(struct grid *g, uint32_t col, const char *text, enum cell_style style);
uint64_t grid_rows(const struct grid *g);
void grid_print(struct grid *g, FILE *f, const struct screen *s, uint32_t indent, bool heads);
void grid_free(struct grid *g);
#endif
