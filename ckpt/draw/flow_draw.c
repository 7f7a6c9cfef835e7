/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow_draw.c - a flow matrix as text and as a picture. Called by verb_plan.c.
 * Invariant: what is drawn is all of the matrix: ranks that are not drawn apart are drawn together.
 */
#include "ckpt/draw/flow_draw.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/draw/svg.h"

#define TEXT_SIDE 16u
#define WIDTH 80u    /* where the screen has none */
#define CELL_BYTES 5 /* columns: "999M" and a blank */
#define CELL_SHADE 4

#define SVG_SIDE 64u
#define MARGIN 24.0
#define PLOT 640.0
#define CELL_LEAST 12.0
#define CELL_MOST 64.0
#define TOTAL 120.0	 /* length of the longest bar of a total */
#define LABEL_WIDTH 34.0 /* of a cell that has room for its bytes */
#define LABEL_HEIGHT 12.0
#define WIDTH_LEAST 640.0
#define LEGEND_STEPS 10u
#define LINE_BYTES 512
#define TEXT_CHARS 110u
#define TITLE_CHAR 9.3

/* "512B", "1.2K", "17M", "128G": four columns at most. */
static char *bytes_print(uint64_t bytes, char buf[static HUMAN_BYTES])
{
	static const char unit[] = "BKMGTPE";
	double x = (double)bytes;
	uint32_t u = 0;

	for (; x >= 999.5 && unit[u + 1]; u++)
		x /= 1024;
	snprintf(buf, HUMAN_BYTES, "%.*f%c", u && x < 9.95 ? 1 : 0, x, unit[u]);
	return buf;
}

static double share_of(uint64_t bytes, uint64_t most)
{
	return most ? (double)bytes / (double)most : 0;
}

/* "rank 7", "ranks 64-127". */
static char *ranks_print(uint32_t block, uint32_t size, uint32_t n, char buf[static HUMAN_BYTES])
{
	uint32_t first = block * size, last = MIN(first + size, n) - 1;

	if (first == last)
		snprintf(buf, HUMAN_BYTES, "rank %u", first);
	else
		snprintf(buf, HUMAN_BYTES, "ranks %u-%u", first, last);
	return buf;
}

/* "A row is 64 old ranks, a column 32 new ones, named by the first."; "" where each is one. */
static char *blocks_print(const struct flow *f, char buf[static LINE_BYTES])
{
	char row[HUMAN_BYTES], col[HUMAN_BYTES];

	*buf = 0;
	if (f->from_block > 1 || f->to_block > 1)
		snprintf(buf, LINE_BYTES,
			 "a row is %s old rank%s and a column %s new rank%s, named by the first",
			 human_count(f->from_block, row), f->from_block > 1 ? "s" : "",
			 human_count(f->to_block, col), f->to_block > 1 ? "s" : "");
	return buf;
}

/* --- text --- */

struct text {
	const struct flow *f;
	FILE *out;
	const struct screen *s;
	uint64_t most;
	int left; /* columns of the rows' names */
	bool shades;
};

static void print_zero(const struct text *t, int width)
{
	fprintf(t->out, "%*s%s%s%s", width - 1, "", screen_style(t->s, STYLE_DIM),
		screen_shade(t->s, 0), screen_plain(t->s, STYLE_DIM));
}

static void print_cell(const struct text *t, uint64_t bytes)
{
	char buf[HUMAN_BYTES];
	const char *mark;

	if (!bytes) {
		print_zero(t, t->shades ? CELL_SHADE : CELL_BYTES);
	} else if (t->shades) {
		mark = screen_shade(t->s, share_of(bytes, t->most));
		fprintf(t->out, "  %s%s", mark, mark);
	} else {
		fprintf(t->out, "%*s", CELL_BYTES, bytes_print(bytes, buf));
	}
}

/* Names of columns; where they are too long for one line, every other one on a line of its own. */
static void print_heads(const struct text *t)
{
	const struct flow *f = t->f;
	uint32_t width = t->shades ? CELL_SHADE : CELL_BYTES;
	uint32_t lines = human_digits((f->ncol - 1) * f->to_block) < width ? 1 : 2;

	for (uint32_t line = 0; line < lines; line++) {
		fprintf(t->out, "%s%*s", screen_style(t->s, STYLE_STRONG), t->left, "");
		for (uint32_t j = line; j < f->ncol; j += lines)
			fprintf(t->out, "%*u", (int)(width * (j || lines == 1 ? lines : 1)),
				j * f->to_block);
		if (line + 1 == lines)
			fprintf(t->out, "%*s", (int)(width * ((f->ncol - 1 - line) % lines)) + 8,
				"total");
		fprintf(t->out, "%s\n", screen_plain(t->s, STYLE_STRONG));
	}
}

static void print_row(const struct text *t, uint32_t row)
{
	char buf[HUMAN_BYTES];

	fprintf(t->out, "%s%*u%s", screen_style(t->s, STYLE_STRONG), t->left,
		row * t->f->from_block, screen_plain(t->s, STYLE_STRONG));
	for (uint32_t j = 0; j < t->f->ncol; j++)
		print_cell(t, flow_at(t->f, row, j));
	fprintf(t->out, "%8s\n", bytes_print(flow_row(t->f, row), buf));
}

static void print_totals(const struct text *t)
{
	char buf[HUMAN_BYTES];

	fprintf(t->out, "%s%*s%s", screen_style(t->s, STYLE_STRONG), t->left, "total",
		screen_plain(t->s, STYLE_STRONG));
	for (uint32_t j = 0; j < t->f->ncol; j++)
		fprintf(t->out, "%*s", CELL_BYTES, bytes_print(flow_col(t->f, j), buf));
	fprintf(t->out, "%8s\n", bytes_print(flow_all(t->f), buf));
}

static void print_legend(const struct text *t)
{
	char buf[HUMAN_BYTES];

	fprintf(t->out, "%*s", t->left, "");
	for (uint32_t i = 0; i < SCREEN_SHADES; i++) {
		const char *mark = screen_shade(t->s, (i + 0.5) / SCREEN_SHADES);

		fprintf(t->out, " %s%s to %-5s", mark, mark,
			bytes_print(t->most / SCREEN_SHADES * (i + 1), buf));
	}
	fprintf(t->out, " all %s\n", bytes_print(flow_all(t->f), buf));
}

int flow_print(const struct flow *f, FILE *out, const struct screen *s)
{
	struct flow g;
	struct text t = { .f = &g, .out = out, .s = s };
	char line[LINE_BYTES];
	uint32_t width = s->width ? s->width : WIDTH;
	int rc = flow_group(f, TEXT_SIDE, TEXT_SIDE, &g);

	if (rc)
		return rc;
	t.most = flow_most(&g);
	t.left = (int)MAX(human_digits((g.nrow - 1) * g.from_block), 5u);
	t.shades = (uint32_t)t.left + g.ncol * CELL_BYTES + 8 > width;
	fputs("  ", out);
	screen_wrap(out, "bytes that each new rank (column) needs from each old rank (row)", width,
		    2, 2);
	if (*blocks_print(&g, line)) {
		fputs("  ", out);
		screen_wrap(out, line, width, 2, 2);
	}
	print_heads(&t);
	for (uint32_t i = 0; i < g.nrow; i++)
		print_row(&t, i);
	if (t.shades)
		print_legend(&t);
	else
		print_totals(&t);
	flow_free(&g);
	return 0;
}

/* --- picture --- */

struct picture {
	const struct flow *f;
	const struct rounds *rounds; /* NULL: none */
	FILE *out;
	uint64_t most;
	double x, y, cell; /* of the matrix; a cell's side */
};

static void draw_cell(const struct picture *p, uint32_t i, uint32_t j)
{
	const struct flow *f = p->f;
	uint64_t bytes = flow_at(f, i, j);
	double share = share_of(bytes, p->most), x = p->x + p->cell * j, y = p->y + p->cell * i;
	char tip[4 * HUMAN_BYTES], from[HUMAN_BYTES], to[HUMAN_BYTES], b[HUMAN_BYTES];

	snprintf(tip, sizeof tip, "old %s to new %s: %s",
		 ranks_print(i, f->from_block, f->nfrom, from),
		 ranks_print(j, f->to_block, f->nto, to), human_bytes(bytes, b));
	svg_shade(p->out, x, y, p->cell, p->cell, share, tip);
	if (bytes && p->cell >= LABEL_WIDTH)
		svg_text(p->out, x + p->cell / 2, y + p->cell / 2 + 4, SVG_MIDDLE,
			 svg_shade_ink(share), "%s", bytes_print(bytes, b));
}

/* Names of rows and columns, as many as do not touch. */
static void draw_names(const struct picture *p)
{
	const struct flow *f = p->f;
	uint32_t col = human_digits((f->ncol - 1) * f->to_block);
	uint32_t every = (uint32_t)(SVG_CHAR * (col + 1) / p->cell) + 1;

	for (uint32_t j = 0; j < f->ncol; j += every)
		svg_text(p->out, p->x + p->cell * (j + 0.5), p->y - 6, SVG_MIDDLE, SVG_FAINT, "%u",
			 j * f->to_block);
	every = (uint32_t)(LABEL_HEIGHT / p->cell) + 1;
	for (uint32_t i = 0; i < f->nrow; i += every)
		svg_text(p->out, p->x - 6, p->y + p->cell * (i + 0.5) + 4, SVG_END, SVG_FAINT, "%u",
			 i * f->from_block);
}

/* Bars of what each old rank gives, right of the matrix, and of what each new one takes, below. */
static void draw_totals(const struct picture *p)
{
	const struct flow *f = p->f;
	double right = p->x + p->cell * f->ncol + 10, below = p->y + p->cell * f->nrow + 10;
	uint64_t row = 0, col = 0;
	char tip[3 * HUMAN_BYTES], who[HUMAN_BYTES], b[HUMAN_BYTES];

	for (uint32_t i = 0; i < f->nrow; i++)
		row = MAX(row, flow_row(f, i));
	for (uint32_t j = 0; j < f->ncol; j++)
		col = MAX(col, flow_col(f, j));
	for (uint32_t i = 0; i < f->nrow; i++) {
		double y = p->y + p->cell * i, w = TOTAL * share_of(flow_row(f, i), row);

		snprintf(tip, sizeof tip, "old %s: %s",
			 ranks_print(i, f->from_block, f->nfrom, who),
			 human_bytes(flow_row(f, i), b));
		svg_rect(p->out, right, y + p->cell * 0.15, w, p->cell * 0.7, 1, tip);
		if (p->cell >= LABEL_HEIGHT)
			svg_text(p->out, right + w + 5, y + p->cell / 2 + 4, SVG_START, SVG_TEXT,
				 "%s", bytes_print(flow_row(f, i), b));
	}
	for (uint32_t j = 0; j < f->ncol; j++) {
		double x = p->x + p->cell * j, h = TOTAL * share_of(flow_col(f, j), col);

		snprintf(tip, sizeof tip, "new %s: %s", ranks_print(j, f->to_block, f->nto, who),
			 human_bytes(flow_col(f, j), b));
		svg_rect(p->out, x + p->cell * 0.15, below, p->cell * 0.7, h, 2, tip);
		if (p->cell >= LABEL_WIDTH)
			svg_text(p->out, x + p->cell / 2, below + h + SVG_LINE - 3, SVG_MIDDLE,
				 SVG_TEXT, "%s", bytes_print(flow_col(f, j), b));
	}
	svg_text(p->out, right, p->y - 6, SVG_START, SVG_FAINT, "needed from old ranks");
	svg_text(p->out, right, below + 12, SVG_START, SVG_FAINT, "needed by new ranks,");
	svg_text(p->out, right, below + 12 + SVG_LINE, SVG_START, SVG_FAINT, "at most %s,",
		 human_bytes(col, b));
	svg_text(p->out, right, below + 12 + 2 * SVG_LINE, SVG_START, SVG_FAINT, "%s in all",
		 human_bytes(flow_all(f), b));
}

static void draw_legend(const struct picture *p, double y)
{
	double w = 16, x = MARGIN;
	char b[HUMAN_BYTES];

	svg_text(p->out, x, y + 11, SVG_START, SVG_FAINT, "a cell: 0");
	x += SVG_CHAR * 10;
	for (uint32_t i = 0; i <= LEGEND_STEPS; i++, x += w)
		svg_shade(p->out, x, y, w, 14, (double)i / LEGEND_STEPS, NULL);
	svg_text(p->out, x + 6, y + 11, SVG_START, SVG_FAINT, "%s", human_bytes(p->most, b));
}

/* What of a text fits a picture of decent width; *width grows with it. */
static int text_fit(const char *text, double character, double *width)
{
	size_t n = screen_prefix(text, TEXT_CHARS);
	double w = 2 * MARGIN + character * MIN(screen_columns(text), TEXT_CHARS);

	*width = MAX(*width, w);
	return (int)n;
}

static void picture_draw(struct picture *p, const char *title, const char *const *line)
{
	const struct flow *f = p->f;
	char blocks[LINE_BYTES];
	double y = MARGIN + 8, bottom, width;
	uint32_t n = 0;

	while (line[n])
		n++;
	blocks_print(f, blocks);
	p->cell = PLOT / MAX(f->nrow, f->ncol);
	p->cell = p->cell > CELL_MOST ? CELL_MOST : p->cell < CELL_LEAST ? CELL_LEAST : p->cell;
	p->x = MARGIN + SVG_CHAR * (MAX(human_digits((f->nrow - 1) * f->from_block), 3u) + 1) + 10;
	p->y = y + SVG_LINE * (n + 1 + (*blocks != 0)) + 2 * SVG_LINE;
	bottom = p->y + p->cell * f->nrow + TOTAL + 2 * SVG_LINE + 10;
	width = p->x + p->cell * f->ncol + TOTAL + 60 + MARGIN;
	width = MAX(width, WIDTH_LEAST);
	text_fit(title, TITLE_CHAR, &width);
	for (uint32_t i = 0; i < n; i++)
		text_fit(line[i], SVG_CHAR, &width);
	if (p->rounds)
		width = MAX(width, ROUNDS_SVG_WIDTH);
	svg_begin(p->out, width,
		  bottom + 14 + MARGIN + (p->rounds ? rounds_svg_height(p->rounds) : 0), title);
	svg_text(p->out, MARGIN, y, SVG_START, SVG_TITLE, "%.*s",
		 text_fit(title, TITLE_CHAR, &width), title);
	for (; *line; line++)
		svg_text(p->out, MARGIN, y += SVG_LINE, SVG_START, SVG_TEXT, "%.*s",
			 text_fit(*line, SVG_CHAR, &width), *line);
	svg_text(p->out, MARGIN, y += SVG_LINE, SVG_START, SVG_FAINT,
		 "bytes that each new rank (column) needs from each old rank (row)");
	if (*blocks)
		svg_text(p->out, MARGIN, y + SVG_LINE, SVG_START, SVG_FAINT, "%s", blocks);
	draw_names(p);
	for (uint32_t i = 0; i < f->nrow; i++)
		for (uint32_t j = 0; j < f->ncol; j++)
			draw_cell(p, i, j);
	draw_totals(p);
	draw_legend(p, bottom);
	if (p->rounds)
		rounds_svg(p->rounds, p->out, bottom + 14);
	svg_end(p->out);
}

int flow_svg(const struct flow *f, const struct rounds *rounds, const char *title,
	     const char *const *line, FILE *out)
{
	struct flow g;
	struct picture p = { .f = &g, .rounds = rounds, .out = out };
	int rc = flow_group(f, SVG_SIDE, SVG_SIDE, &g);

	if (rc)
		return rc;
	p.most = flow_most(&g);
	picture_draw(&p, title, line);
	flow_free(&g);
	return 0;
}
