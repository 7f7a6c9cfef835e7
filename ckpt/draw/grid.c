/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid.c - aligned columns: collect, measure, shrink, print. Called by the text output and the
 * help.
 * Invariant: every row has exactly ncol cells; a cell that was never set is empty.
 */
#include "ckpt/draw/grid.h"
#include "ckpt/base/arena.h"
#include "ckpt/base/util.h"

#define GAP 2

/* Columns that a shortened cell keeps. */
static const uint32_t fit_min[] = { [FIT_LAST] = 12, [FIT_THEN] = 12, [FIT_FIRST] = 11 };

struct grid_item {
	const char *text;
	uint32_t columns;
	enum cell_style style;
};

struct grid {
	const struct column *cols;
	uint32_t ncol;
	uint64_t nrow, cap;
	struct grid_item *item; /* [cap][ncol] */
	struct arena arena;	/* the texts */
};

struct grid *grid_new(const struct column *cols, uint32_t ncol)
{
	struct grid *g = calloc(1, sizeof *g);

	if (g) {
		g->cols = cols;
		g->ncol = ncol;
	}
	return g;
}

void grid_free(struct grid *g)
{
	if (!g)
		return;
	arena_free(&g->arena);
	free(g->item);
	free(g);
}

uint64_t grid_rows(const struct grid *g)
{
	return g->nrow;
}

int grid_row(struct grid *g)
{
	if (g->nrow == g->cap) {
		uint64_t cap = g->cap ? 2 * g->cap : 16;
		struct grid_item *p = reallocarray(g->item, cap, g->ncol * sizeof *p);

		if (!p)
			return -ENOMEM;
		g->item = p;
		g->cap = cap;
	}
	for (uint32_t i = 0; i < g->ncol; i++)
		g->item[g->nrow * g->ncol + i] = (struct grid_item){ .text = "" };
	g->nrow++;
	return 0;
}

int grid_cell(struct grid *g, uint32_t col, const char *text, enum cell_style style)
{
	const char *copy = arena_str(&g->arena, text);

	if (!copy)
		return -ENOMEM;
	g->item[(g->nrow - 1) * g->ncol + col] =
		(struct grid_item){ copy, screen_columns(copy), style };
	return 0;
}

static struct grid_item *item_at(const struct grid *g, uint64_t row, uint32_t col)
{
	return &g->item[row * g->ncol + col];
}

/* Width of a column; 0: it is left out. */
static uint32_t column_width(const struct grid *g, uint32_t col, bool heads)
{
	uint32_t w = 0;

	if (!g->cols[col].head)
		return 0;
	for (uint64_t r = 0; r < g->nrow; r++)
		w = MAX(w, item_at(g, r, col)->columns);
	return w && heads ? MAX(w, screen_columns(g->cols[col].head)) : w;
}

static uint32_t width_sum(const struct grid *g, const uint32_t *width, uint32_t indent)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < g->ncol; i++)
		sum += width[i] ? width[i] + (sum ? GAP : 0) : 0;
	return sum + indent;
}

/* Leave out what may be, from the right; then take from the widest cells that may be shortened,
 * by their rank. Until everything fits, or nothing more can be done. */
static void columns_shrink(const struct grid *g, uint32_t *width, uint32_t indent, uint32_t limit)
{
	for (uint32_t i = g->ncol; i-- > 0 && width_sum(g, width, indent) > limit;)
		if (g->cols[i].fit == FIT_DROP)
			width[i] = 0;
	for (uint8_t fit = FIT_FIRST; fit > FIT_WHOLE; fit--) {
		while (width_sum(g, width, indent) > limit) {
			uint32_t widest = GRID_COLUMNS_MAX;

			for (uint32_t i = 0; i < g->ncol; i++)
				if (g->cols[i].fit == fit && width[i] > fit_min[fit] &&
				    (widest == GRID_COLUMNS_MAX || width[i] > width[widest]))
					widest = i;
			if (widest == GRID_COLUMNS_MAX)
				break;
			width[widest]--;
		}
	}
}

static void cell_put(FILE *f, const char *s, size_t n)
{
	fwrite_unlocked(s, 1, n, f);
}

static void put_str(FILE *f, const char *s)
{
	cell_put(f, s, strlen(s));
}

static void put_blanks(FILE *f, uint32_t n)
{
	static const char blank[] = "                                ";

	for (; n >= sizeof blank; n -= (uint32_t)sizeof blank - 1)
		cell_put(f, blank, sizeof blank - 1);
	cell_put(f, blank, n);
}

/* The end of a name says more than its beginning: keep more of it. Returns the columns. */
static uint32_t put_short(FILE *f, const struct grid_item *it, uint32_t width, bool unicode)
{
	uint32_t dots = unicode ? 1 : 2, head = (width - dots) * 2 / 5, tail = width - dots - head;
	size_t n = screen_prefix(it->text, head);
	const char *end = it->text + screen_prefix(it->text, it->columns - tail);

	/* A wide character does not always fit exactly. */
	if (screen_columns(end) > tail)
		end += screen_prefix(end, 2);
	cell_put(f, it->text, n);
	put_str(f, unicode ? "\u2026" : "..");
	put_str(f, end);
	return screen_columns(it->text) - screen_columns(it->text + n) + dots + screen_columns(end);
}

/* at: the column in which it begins. */
static void put_item(FILE *f, const struct screen *s, const struct grid_item *it,
		     const struct column *col, uint32_t width, uint32_t at, bool last)
{
	uint32_t shown = MIN(it->columns, width);

	if (col->right)
		put_blanks(f, width - shown);
	put_str(f, screen_style(s, it->style));
	if (last && col->fit == FIT_WRAP && s->width && at + it->columns > s->width)
		screen_flow(f, it->text, s->width, at, at);
	else if (it->columns > width)
		shown = put_short(f, it, width, s->unicode);
	else
		put_str(f, it->text);
	put_str(f, screen_plain(s, it->style));
	if (!col->right && !last)
		put_blanks(f, width - shown);
}

/* The last column of a row that has something to say: nothing is printed behind it. */
static uint32_t last_used(const struct grid *g, uint64_t row, const uint32_t *width)
{
	uint32_t last = 0;

	for (uint32_t i = 0; i < g->ncol; i++)
		if (width[i] && item_at(g, row, i)->columns)
			last = i;
	return last;
}

static void put_row(const struct grid *g, const struct grid_item *item, FILE *f,
		    const struct screen *s, uint32_t indent, const uint32_t *width, uint32_t last)
{
	uint32_t at = indent;

	put_blanks(f, indent);
	for (uint32_t i = 0; i <= last; i++) {
		if (!width[i])
			continue;
		if (at > indent) {
			put_blanks(f, GAP);
			at += GAP;
		}
		put_item(f, s, &item[i], &g->cols[i], width[i], at, i == last);
		at += width[i];
	}
	cell_put(f, "\n", 1);
}

void grid_print(struct grid *g, FILE *f, const struct screen *s, uint32_t indent, bool heads)
{
	struct grid_item head[GRID_COLUMNS_MAX] = { 0 };
	uint32_t width[GRID_COLUMNS_MAX], last = 0;

	assert(g->ncol <= GRID_COLUMNS_MAX);
	for (uint32_t i = 0; i < g->ncol; i++) {
		width[i] = column_width(g, i, heads);
		if (width[i])
			head[i] = (struct grid_item){ g->cols[i].head,
						      screen_columns(g->cols[i].head), STYLE_DIM };
	}
	if (s->width)
		columns_shrink(g, width, indent, s->width);
	for (uint32_t i = 0; i < g->ncol; i++)
		last = width[i] ? i : last;
	if (heads && g->nrow)
		put_row(g, head, f, s, indent, width, last);
	for (uint64_t r = 0; r < g->nrow; r++)
		put_row(g, item_at(g, r, 0), f, s, indent, width, last_used(g, r, width));
}
