/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map_svg.c - a map as a picture that can be put into a bug report. Called by show --map --svg.
 * Invariant: some thousand rectangles at most; one that stands for several blocks says so.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/draw/map_impl.h"
#include "ckpt/draw/svg.h"
#include <stdio.h>

#define PLOT_WIDTH 760.0
#define PLOT_LEAST 120.0
#define PLOT_MOST 560.0
#define MARGIN 24.0
#define COLS_MAX 128u /* where nothing is cut along the other dimension */
#define ROWS_MAX 64u
#define JOINED_ROWS 40u /* so that labels fit where neighbours are drawn as one */
#define LINE_ENDS 40u	/* stretches at both ends, where a pattern repeats */
#define LEGEND_MAX 16u
#define TICK_X 56.0 /* pixels between indices across */
#define TICK_Y 14.0
#define LABEL_CHARS 24u
#define LINE_BYTES 700
#define TITLE_CHARS 84u /* that fit the narrowest picture */
#define TEXT_CHARS 115u
#define TEXT_BYTES 4096

struct picture {
	const struct map *m;
	FILE *f;
	struct map_view v;
	enum map_fit fit;
	bool scaled; /* lengths are true */
	double x0, y0, width, height;
	double *x, *y; /* [ncol + 1], [nrow + 1] */
};

/* Do the shares follow each other in long stretches, so that neighbours can be put together? */
static bool can_join(const struct map_axis *a)
{
	return a->whole && a->nspan <= 2 * (uint64_t)a->nlist;
}

static int spans_place(struct picture *p, const struct map_span *span, uint32_t n, double from,
		       double length, double **ret)
{
	double total = 0, at = from;

	*ret = arena_array(&p->v.arena, (size_t)n + 1, sizeof **ret);
	if (!*ret)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		total += p->scaled ? (double)(span[i].stop - span[i].start) : 1;
	for (uint32_t i = 0; i < n; i++) {
		(*ret)[i] = at;
		at += length * (p->scaled ? (double)(span[i].stop - span[i].start) : 1) / total;
	}
	(*ret)[n] = at;
	return 0;
}

static int view_choose(struct picture *p)
{
	const struct map *m = p->m;
	bool flat = m->facts.down < 0;
	uint32_t rows = ROWS_MAX, cols = flat || m->down.nspan == 1 ? COLS_MAX : ROWS_MAX;
	double ratio;
	int rc;

	if (m->down.nspan > rows)
		rows = JOINED_ROWS;
	p->fit = MAP_JOIN;
	p->scaled = m->down.whole && m->across.whole;
	if ((m->down.nspan > rows && !can_join(&m->down)) ||
	    (m->across.nspan > cols && !can_join(&m->across)) || !p->scaled) {
		p->fit = MAP_GAP;
		p->scaled = false;
		rows = MIN(rows, LINE_ENDS);
		cols = MIN(cols, LINE_ENDS);
	}
	rc = map_view_make(m, rows, cols, p->fit, &p->v);
	if (rc)
		return rc;
	ratio = (double)m->down.extent / (double)MAX(m->across.extent, UINT64_C(1));
	p->width = PLOT_WIDTH;
	p->height = flat ? PLOT_LEAST / 2 : PLOT_WIDTH * ratio;
	if (!flat)
		p->height = p->height < PLOT_LEAST ? PLOT_LEAST : MIN(p->height, PLOT_MOST);
	rc = spans_place(p, p->v.col, p->v.ncol, p->x0, p->width, &p->x);
	return rc ? rc : spans_place(p, p->v.row, p->v.nrow, p->y0, p->height, &p->y);
}

/* Indices where spans begin, as many as do not touch. */
static void ticks_draw(const struct picture *p)
{
	double last = -PLOT_WIDTH, end = p->x[p->v.ncol];
	uint32_t nc = p->v.ncol, nr = p->v.nrow;

	for (uint32_t j = 0; j <= nc && p->m->facts.across >= 0; j++) {
		uint64_t at = j < nc ? p->v.col[j].start : p->v.col[j - 1].stop;

		if (p->x[j] - last < TICK_X || (j < nc && end - p->x[j] < TICK_X))
			continue;
		last = p->x[j];
		svg_line(p->f, p->x[j], p->y0 - 5, p->x[j], p->y0);
		svg_text(p->f, p->x[j], p->y0 - 8, SVG_MIDDLE, SVG_FAINT, "%llu",
			 (unsigned long long)at);
	}
	last = -PLOT_MOST;
	end = p->y[nr];
	for (uint32_t i = 0; i <= nr && p->m->facts.down >= 0; i++) {
		uint64_t at = i < nr ? p->v.row[i].start : p->v.row[i - 1].stop;

		if (p->y[i] - last < TICK_Y || (i < nr && end - p->y[i] < TICK_Y))
			continue;
		last = p->y[i];
		svg_line(p->f, p->x0 - 5, p->y[i], p->x0, p->y[i]);
		svg_text(p->f, p->x0 - 8, p->y[i] + 4, SVG_END, SVG_FAINT, "%llu",
			 (unsigned long long)at);
	}
}

static void range_print(const struct map_axis *a, const struct map_span *s, char *buf, size_t bytes)
{
	if (a->dim < 0)
		snprintf(buf, bytes, "all");
	else
		snprintf(buf, bytes, "dimension %d: %llu:%llu", a->dim,
			 (unsigned long long)s->start, (unsigned long long)s->stop);
}

/* The tooltip of a block, or of what stands for several. */
static void tip_print(const struct picture *p, uint32_t i, uint32_t j, uint32_t n,
		      const uint32_t *rank, char *buf, size_t bytes)
{
	const struct map_span *row = &p->v.row[i], *col = &p->v.col[j];
	char ranks[300], down[80], across[80];

	range_print(&p->m->down, row, down, sizeof down);
	range_print(&p->m->across, col, across, sizeof across);
	snprintf(buf, bytes, "%s%s%s%s%s%s",
		 n ? map_ranks(n, rank, ranks, sizeof ranks) : "held by no rank", "; ",
		 p->m->facts.down < 0 ? "" : down, p->m->facts.down < 0 ? "" : "; ", across,
		 row->many || col->many ? "; several blocks, drawn as one" : "");
}

/* A cell, and the cells right of it with the same in them, as one rectangle. Returns the column
 * behind it. */
static int cell_draw(struct picture *p, uint32_t i, uint32_t j, uint32_t *ret_next)
{
	uint32_t nc = p->v.ncol, end = j + 1, n, colour, chars;
	bool gap = map_is_gap(&p->v.row[i], p->fit) || map_is_gap(&p->v.col[j], p->fit);
	bool many = p->v.row[i].many || p->v.col[j].many, is_short;
	const uint32_t *rank;
	char label[64], text[LINE_BYTES];
	double x = p->x[j], y = p->y[i], w, h = p->y[i + 1] - y;

	while (end < nc && !many && !p->v.col[end].many &&
	       map_cell_equal(&p->v, i * nc + j, i * nc + end))
		end++;
	*ret_next = end;
	w = p->x[end] - x;
	if (map_cell_ranks(p->m, &p->v, i * nc + j, &n, &rank))
		return -ENOMEM;
	if (gap) {
		svg_rect(p->f, x, y, w, h, SVG_MANY, "left out");
		if (w > 2 * SVG_CHAR && h > SVG_LINE - 4)
			svg_text(p->f, x + w / 2, y + h / 2 + 4, SVG_MIDDLE, SVG_ON + SVG_MANY,
				 "\u2026");
		return 0;
	}
	colour = n ? map_colour(p->m, p->v.share[p->v.first[i * nc + j]], SVG_COLOURS) : SVG_NONE;
	tip_print(p, i, j, n, rank, text, sizeof text);
	if (end > j + 1) { /* the tooltip names the whole of it */
		struct map_span all = { p->v.col[j].start, p->v.col[end - 1].stop, 0 }, was;

		was = p->v.col[j];
		p->v.col[j] = all;
		tip_print(p, i, j, n, rank, text, sizeof text);
		p->v.col[j] = was;
	}
	svg_rect(p->f, x, y, w, h, colour, text);
	chars = w > 6 ? (uint32_t)((w - 6) / SVG_CHAR) : 0;
	map_label(n, rank, MIN(chars, LABEL_CHARS), label, sizeof label, &is_short);
	if (strlen(label) <= chars && h > SVG_LINE - 4)
		svg_text(p->f, x + w / 2, y + h / 2 + 4, SVG_MIDDLE, SVG_ON + colour, "%s", label);
	return 0;
}

static int blocks_draw(struct picture *p)
{
	uint32_t next;

	for (uint32_t i = 0; i < p->v.nrow; i++)
		for (uint32_t j = 0; j < p->v.ncol; j = next)
			if (cell_draw(p, i, j, &next))
				return -ENOMEM;
	return 0;
}

static bool is_joined(const struct picture *p)
{
	return p->fit == MAP_JOIN &&
	       (p->m->down.nspan > p->v.nrow || p->m->across.nspan > p->v.ncol);
}

/* Shares with a line of their own: none where their colours are not to be seen. */
static uint32_t legend_shares(const struct picture *p)
{
	return is_joined(p) ? 0 : MIN(p->m->facts.nshare, LEGEND_MAX);
}

static uint32_t legend_lines(const struct picture *p)
{
	return legend_shares(p) + (p->m->facts.nshare > LEGEND_MAX) + (p->m->facts.nempty > 0) + 2;
}

static void legend_draw(const struct picture *p, double y)
{
	const struct map_facts *f = &p->m->facts;
	uint32_t shown = legend_shares(p);
	char ranks[120], set[300], n[HUMAN_BYTES];

	for (uint32_t i = 0; i < shown; i++, y += SVG_LINE) {
		const struct map_share *s = &f->share[i];

		svg_rect(p->f, MARGIN, y - 10, 12, 12, map_colour(p->m, i, SVG_COLOURS), NULL);
		svg_text(p->f, MARGIN + 20, y, SVG_START, SVG_TEXT, "%.60s  %.80s  %s elements",
			 map_ranks(s->nrank, s->rank, ranks, 60),
			 human_set(s->set, p->m->shape, set, 80), human_count(s->set->numel, n));
	}
	if (f->nshare > LEGEND_MAX) {
		svg_text(p->f, MARGIN, y, SVG_START, SVG_FAINT, "%s%s blocks",
			 shown ? "and other " : "", human_count(f->nshare - shown, n));
		y += SVG_LINE;
	}
	if (f->nempty && f->numel) {
		svg_text(p->f, MARGIN, y, SVG_START, SVG_TEXT, "%s: empty",
			 map_ranks(f->nempty, f->empty, ranks, sizeof ranks));
		y += SVG_LINE;
	}
	if (is_joined(p))
		svg_text(p->f, MARGIN, y, SVG_START, SVG_FAINT,
			 "too many blocks to draw them all: neighbours are drawn as one");
	else if (!p->scaled && f->numel)
		svg_text(p->f, MARGIN, y, SVG_START, SVG_FAINT,
			 "not to scale: the omitted part continues the pattern that is drawn");
}

/* What is too long loses its middle: the end of a name says more than its beginning. */
static const char *text_fit(const char *text, uint32_t chars, char *buf, size_t bytes)
{
	char clean[TEXT_BYTES];
	const char *end = screen_clean(text, clean, sizeof clean);
	uint32_t columns = screen_columns(clean), head = chars * 2 / 5;

	if (columns <= chars)
		return text;
	end += screen_prefix(clean, columns - (chars - 1 - head));
	snprintf(buf, bytes, "%.*s\u2026%s", (int)screen_prefix(clean, head), clean, end);
	return buf;
}

static int picture_draw(struct picture *p, const char *title, const char *const *line)
{
	double y = MARGIN + 8, bottom;
	char axes[300], text[TEXT_BYTES];
	uint32_t n = 0;
	int rc;

	while (line[n])
		n++;
	map_axes(p->m, axes, sizeof axes);
	n += axes[0] != 0;
	p->x0 = MARGIN + (p->m->facts.down < 0
				  ? 0
				  : SVG_CHAR * (double)human_digits(p->m->down.extent) + 10);
	p->y0 = y + SVG_LINE * (double)(n + 1) + 22;
	rc = p->m->facts.numel ? view_choose(p) : 0;
	if (rc)
		return rc;
	bottom = p->y0 + p->height + 30;
	svg_begin(p->f, p->x0 + PLOT_WIDTH + 2 * MARGIN,
		  bottom + SVG_LINE * legend_lines(p) + MARGIN / 2, title);
	svg_text(p->f, MARGIN, y, SVG_START, SVG_TITLE, "%s",
		 text_fit(title, TITLE_CHARS, text, sizeof text));
	for (; *line; line++)
		svg_text(p->f, MARGIN, y += SVG_LINE, SVG_START, SVG_TEXT, "%s",
			 text_fit(*line, TEXT_CHARS, text, sizeof text));
	if (axes[0])
		svg_text(p->f, MARGIN, y + SVG_LINE, SVG_START, SVG_FAINT, "%s", axes);
	if (p->m->facts.numel) {
		rc = blocks_draw(p);
		ticks_draw(p);
	}
	legend_draw(p, bottom);
	svg_end(p->f);
	return rc;
}

int map_svg(const struct map *m, const char *title, const char *const *line, FILE *f)
{
	struct picture p = { .m = m, .f = f };
	int rc = picture_draw(&p, title, line);

	map_view_free(&p.v);
	return rc;
}
