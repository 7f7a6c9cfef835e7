/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid.c - aligned columns: collect, measure, shrink, print. Called by the text output and the
 * help.
 * Invariant: every row has exactly ncol cells; a cell that was never set is empty.
 */
#include "ckpt/cli/grid.h"
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
static void shrink(const struct grid *g, uint32_t *width, uint32_t indent, uint32_t limit)
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

/* Start of the character that is n characters behind s. */
static const char *skip(const char *s, uint32_t n)
{
	for (; *s; s++) {
		if (((unsigned char)*s & 0xc0) == 0x80)
			continue;
		if (!n--)
			break;
	}
	return s;
}

/* The end of a name says more than its beginning: keep more of it. */
static void print_short(FILE *f, const struct grid_item *it, uint32_t width, bool unicode)
{
	uint32_t dots = unicode ? 1 : 2;
	uint32_t head = (width - dots) * 2 / 5, tail = width - dots - head;

	fprintf(f, "%.*s%s%s", (int)(skip(it->text, head) - it->text), it->text,
		unicode ? "\u2026" : "..", skip(it->text, it->columns - tail));
}

static void print_item(FILE *f, const struct screen *s, const struct grid_item *it, uint32_t width,
		       bool right, bool last)
{
	uint32_t shown = MIN(it->columns, width);
	uint32_t pad = width - shown;

	fprintf(f, "%*s%s", right ? (int)pad : 0, "", screen_style(s, it->style));
	if (shown < it->columns)
		print_short(f, it, width, s->unicode);
	else
		fputs(it->text, f);
	fprintf(f, "%s%*s", screen_plain(s, it->style), right || last ? 0 : (int)pad, "");
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

void grid_print(struct grid *g, FILE *f, const struct screen *s, uint32_t indent, bool heads)
{
	uint32_t width[GRID_COLUMNS_MAX], last_head = 0;

	assert(g->ncol <= GRID_COLUMNS_MAX);
	for (uint32_t i = 0; i < g->ncol; i++) {
		width[i] = column_width(g, i, heads);
		last_head = width[i] ? i : last_head;
	}
	if (s->width)
		shrink(g, width, indent, s->width);
	if (heads && g->nrow) {
		const char *gap = "";

		fprintf(f, "%*s", (int)indent, "");
		for (uint32_t i = 0; i < g->ncol; i++) {
			struct grid_item it = { g->cols[i].head, 0, STYLE_DIM };

			if (!width[i])
				continue;
			it.columns = screen_columns(it.text);
			fputs(gap, f);
			print_item(f, s, &it, width[i], g->cols[i].right, i == last_head);
			gap = "  ";
		}
		fputc('\n', f);
	}
	for (uint64_t r = 0; r < g->nrow; r++) {
		uint32_t last = last_used(g, r, width);
		const char *gap = "";

		fprintf(f, "%*s", (int)indent, "");
		for (uint32_t i = 0; i <= last; i++) {
			if (!width[i])
				continue;
			fputs(gap, f);
			print_item(f, s, item_at(g, r, i), width[i], g->cols[i].right, i == last);
			gap = "  ";
		}
		fputc('\n', f);
	}
}
