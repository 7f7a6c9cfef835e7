/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map_text.c - a map for a terminal or a file: boxes of characters, a label in each, colour only in
 * addition. Called by show --map.
 * Invariant: no line is wider than the screen (80 columns where there is none), but for names.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/draw/map_impl.h"
#include <stdio.h>

#define WIDTH 80
#define LABEL_MAX 11 /* columns of a label; longer ones are abbreviated */
#define LABEL_BYTES 64
#define BOXES_MAX 10u /* rows with borders between them; more stand close */
#define ROWS_MAX 20u  /* rows that stand close */
#define HEIGHT_MAX 3u /* lines of a row */
#define CELL_MAX 10u  /* columns of a cell beside its label, where the drawing has rows */
#define GAP_WIDTH 3u
#define LEGEND_MAX 12u
#define LINE_BYTES 512

struct label {
	char text[LABEL_BYTES];
	bool is_short;
	uint32_t nrank;
	const uint32_t *rank;
};

struct drawing {
	const struct map *m;
	const struct screen *s;
	FILE *f;
	struct map_view v;
	struct label *label; /* [nrow * ncol] */
	uint32_t *width, *height;
	uint32_t left; /* columns in front of the boxes */
	bool close;    /* rows without borders between them */
	bool has_rows; /* row indices are shown */
};

static bool gap_row(const struct drawing *d, uint32_t i)
{
	return map_is_gap(&d->v.row[i], MAP_GAP);
}

static bool gap_col(const struct drawing *d, uint32_t j)
{
	return map_is_gap(&d->v.col[j], MAP_GAP);
}

static bool gap_cell(const struct drawing *d, uint32_t i, uint32_t j)
{
	return gap_row(d, i) || gap_col(d, j);
}

/* Do two cells belong to one box? */
static bool cells_joined(const struct drawing *d, uint32_t i0, uint32_t j0, uint32_t i1,
			 uint32_t j1)
{
	return !gap_cell(d, i0, j0) && !gap_cell(d, i1, j1) &&
	       map_cell_equal(&d->v, i0 * d->v.ncol + j0, i1 * d->v.ncol + j1);
}

/* Is there a border above row i in column j; left of column j in row i? */
static bool border_above(const struct drawing *d, uint32_t i, uint32_t j)
{
	if (!i || i == d->v.nrow)
		return true;
	return !d->close && !cells_joined(d, i - 1, j, i, j);
}

static bool border_left(const struct drawing *d, uint32_t i, uint32_t j)
{
	return !j || j == d->v.ncol || !cells_joined(d, i, j - 1, i, j);
}

/* --- what fits --- */

static int make_labels(struct drawing *d)
{
	uint32_t n = d->v.nrow * d->v.ncol;

	d->label = arena_array(&d->v.arena, (size_t)n + 1, sizeof *d->label);
	if (!d->label)
		return -ENOMEM;
	for (uint32_t c = 0; c < n; c++) {
		struct label *l = &d->label[c];

		if (gap_cell(d, c / d->v.ncol, c % d->v.ncol))
			continue;
		if (map_cell_ranks(d->m, &d->v, c, &l->nrank, &l->rank))
			return -ENOMEM;
		map_label(l->nrank, l->rank, LABEL_MAX, l->text, sizeof l->text, &l->is_short);
	}
	return 0;
}

static uint32_t label_width(const struct drawing *d)
{
	uint32_t w = 1;

	for (uint32_t c = 0; c < d->v.nrow * d->v.ncol; c++)
		w = MAX(w, (uint32_t)strlen(d->label[c].text));
	return w;
}

/* What a span would get beyond the least, if length alone decided. */
static double span_excess(const struct map_span *s, double room, double total, uint32_t least)
{
	double want = total > 0 ? room * (double)(s->stop - s->start) / total : 0;

	return s->many || want < least ? 0 : want - least;
}

/* Share `room` by the length of the spans, at least `least` each; gaps take their own. Equal ones
 * look equal: what cannot be shared evenly is not used. slack: how little is missing to one
 * more. */
static void spans_scale(const struct map_span *span, uint32_t n, uint32_t room, uint32_t least,
			uint32_t gap, double slack, uint32_t *ret)
{
	double total = 0, sum = 0, spare = room;

	for (uint32_t i = 0; i < n; i++) {
		ret[i] = span[i].many ? gap : least;
		spare -= ret[i];
		total += span[i].many ? 0 : (double)(span[i].stop - span[i].start);
	}
	for (uint32_t i = 0; i < n; i++)
		sum += span_excess(&span[i], room, total, least);
	for (uint32_t i = 0; i < n && spare > 0 && sum > 0; i++)
		ret[i] +=
			(uint32_t)(span_excess(&span[i], room, total, least) / sum * spare + slack);
}

/* Columns of labels in front: indices of rows. */
static uint32_t left_width(const struct drawing *d)
{
	uint32_t w = 0;

	if (!d->has_rows)
		return 1;
	for (uint32_t i = 0; i < d->v.nrow; i++) {
		uint32_t stop = human_digits(d->v.row[i].stop); /* start has no more digits */

		w = MAX(w, d->close ? human_digits(d->v.row[i].start) + 1 + stop : stop);
	}
	return w + 2;
}

static int sizes_make(struct drawing *d)
{
	uint32_t n = d->v.ncol, label = label_width(d), width, room;

	d->left = left_width(d);
	d->width = arena_array(&d->v.arena, n, sizeof *d->width);
	d->height = arena_array(&d->v.arena, d->v.nrow, sizeof *d->height);
	if (!d->width || !d->height)
		return -ENOMEM;
	width = (d->s->width ? d->s->width : WIDTH) - 1;
	room = width > d->left + n + 1 ? width - d->left - n - 1 : 0;
	if (d->has_rows)
		room = MIN(room, n * (CELL_MAX + label));
	spans_scale(d->v.col, n, room, label, GAP_WIDTH, 1e-6, d->width);
	n = d->v.nrow;
	room = d->close || n > BOXES_MAX ? n : MIN(MAP_LINES - 3 - n, HEIGHT_MAX * n);
	spans_scale(d->v.row, n, d->has_rows ? room : 1, 1, 1, 0.1, d->height);
	return 0;
}

static uint32_t drawing_width(const struct drawing *d)
{
	uint32_t w = d->left + 1;

	for (uint32_t j = 0; j < d->v.ncol; j++)
		w += d->width[j] + 1;
	return w;
}

static int try_view(struct drawing *d, uint32_t rows, uint32_t cols)
{
	int rc;

	map_view_free(&d->v);
	rc = map_view_make(d->m, rows, cols, MAP_GAP, &d->v);
	if (rc)
		return rc;
	d->close = d->v.nrow > BOXES_MAX;
	rc = make_labels(d);
	return rc ? rc : sizes_make(d);
}

/* As many columns as fit. */
static int choose_view(struct drawing *d)
{
	uint32_t rows = d->m->down.nspan > BOXES_MAX ? ROWS_MAX : BOXES_MAX;
	uint32_t width = d->s->width ? d->s->width : WIDTH, cols = width / 2, over;
	int rc;

	for (;;) {
		rc = try_view(d, rows, cols);
		if (rc || drawing_width(d) < width || cols <= 3)
			return rc;
		cols = MIN(cols, d->v.ncol);
		over = (drawing_width(d) - width) / (label_width(d) + 1) + 1;
		cols = cols > over + 3 ? cols - over : 3;
	}
}

/* --- drawing --- */

static void pad_print(FILE *f, const char *s, uint32_t n)
{
	while (n--)
		fputs(s, f);
}

/* The indices where columns begin, above their borders; what would touch its neighbour is left
 * out. */
static void print_columns(const struct drawing *d)
{
	char line[LINE_BYTES + 32], word[24];
	uint32_t at = d->left, end = 0, n, last = drawing_width(d) - 1, last_len;

	if (d->m->facts.across < 0 || last >= LINE_BYTES)
		return;
	memset(line, ' ', sizeof line);
	last_len = human_digits(d->v.col[d->v.ncol - 1].stop);
	for (uint32_t j = 0; j < d->v.ncol; at += d->width[j] + 1, j++) {
		n = (uint32_t)snprintf(word, sizeof word, "%llu",
				       (unsigned long long)d->v.col[j].start);
		if ((end && at < end + 1) || at + n + 1 + last_len > last + 1)
			continue;
		memcpy(line + at, word, n);
		end = at + n;
	}
	snprintf(word, sizeof word, "%llu", (unsigned long long)d->v.col[d->v.ncol - 1].stop);
	at = last + 1 > last_len ? last + 1 - last_len : 0;
	memcpy(line + MAX(at, end ? end + 1 : 0), word, last_len);
	fprintf(d->f, "%s%.*s%s\n", screen_style(d->s, STYLE_DIM),
		(int)(MAX(at, end ? end + 1 : 0) + last_len), line, screen_plain(d->s, STYLE_DIM));
}

static void print_border(const struct drawing *d, uint32_t i)
{
	uint32_t nr = d->v.nrow, nc = d->v.ncol;

	fprintf(d->f, "%s", screen_style(d->s, STYLE_DIM));
	if (!d->has_rows || d->close)
		fprintf(d->f, "%*s", (int)d->left, "");
	else
		fprintf(d->f, "%*llu ", (int)d->left - 1,
			(unsigned long long)(i < nr ? d->v.row[i].start : d->v.row[i - 1].stop));
	fprintf(d->f, "%s", screen_plain(d->s, STYLE_DIM));
	for (uint32_t j = 0; j <= nc; j++) {
		bool right = j < nc && border_above(d, i, j);

		fputs(screen_junction(d->s, i && border_left(d, i - 1, j),
				      i < nr && border_left(d, i, j),
				      j && border_above(d, i, j - 1), right),
		      d->f);
		if (j < nc)
			pad_print(d->f, !right ? " " : d->s->unicode ? "\u2500" : "-", d->width[j]);
	}
	fputc('\n', d->f);
}

/* Columns j .. ret - 1 of row i are one box. */
static uint32_t box_end(const struct drawing *d, uint32_t i, uint32_t j, uint32_t *ret_width)
{
	*ret_width = d->width[j++];
	for (; j < d->v.ncol && !border_left(d, i, j); j++)
		*ret_width += 1 + d->width[j];
	return j;
}

/* One box in one line of a row. */
static void print_cell(const struct drawing *d, uint32_t i, uint32_t j, uint32_t width, bool label)
{
	const struct label *l = &d->label[i * d->v.ncol + j];
	const char *text = "", *on = "", *off = "";
	uint32_t len, first = d->v.first[i * d->v.ncol + j];
	char colour[SCREEN_COLOUR_BYTES];

	if (gap_cell(d, i, j))
		text = !d->s->unicode			 ? ".."
		       : gap_row(d, i) && !gap_col(d, j) ? "\u22ee"
							 : "\u2026";
	else if (label)
		text = l->text;
	len = screen_columns(text);
	if (len > width) {
		text = "";
		len = 0;
	}
	if (d->s->colour && l->nrank) {
		on = screen_on(d->s, map_colour(d->m, d->v.share[first], SCREEN_COLOURS), colour);
		off = screen_plain(d->s, STYLE_STRONG);
	}
	fprintf(d->f, "%s%*s%s%*s%s", on, (int)((width - len) / 2), "", text,
		(int)(width - len - (width - len) / 2), "", off);
}

static void print_line(const struct drawing *d, uint32_t i, uint32_t y)
{
	uint32_t width, end;

	if (d->has_rows && d->close && !y)
		fprintf(d->f, "%s%*llu:%-*llu %s", screen_style(d->s, STYLE_DIM),
			(int)(d->left - 2 - human_digits(d->v.row[d->v.nrow - 1].stop)),
			(unsigned long long)d->v.row[i].start,
			(int)human_digits(d->v.row[d->v.nrow - 1].stop),
			(unsigned long long)d->v.row[i].stop, screen_plain(d->s, STYLE_DIM));
	else
		fprintf(d->f, "%*s", (int)d->left, "");
	for (uint32_t j = 0; j < d->v.ncol; j = end) {
		bool first = !i || d->close || border_above(d, i, j);

		end = box_end(d, i, j, &width);
		fputs(d->s->unicode ? "\u2502" : "|", d->f);
		print_cell(d, i, j, width, first && y == (d->height[i] - 1) / 2);
	}
	fprintf(d->f, "%s\n", d->s->unicode ? "\u2502" : "|");
}

static void print_boxes(const struct drawing *d)
{
	print_columns(d);
	for (uint32_t i = 0; i < d->v.nrow; i++) {
		bool border = false;

		for (uint32_t j = 0; j < d->v.ncol; j++)
			border |= border_above(d, i, j);
		if (border)
			print_border(d, i);
		for (uint32_t y = 0; y < d->height[i]; y++)
			print_line(d, i, y);
	}
	print_border(d, d->v.nrow);
}

/* --- what the drawing does not say --- */

static void legend_line(const struct drawing *d, const char *text)
{
	fputs("  ", d->f);
	screen_wrap(d->f, text, d->s->width, 2, 4);
}

static void say_gap(const struct drawing *d, const char *what, const struct map_axis *a,
		    const struct map_span *span, uint32_t n)
{
	char line[LINE_BYTES], x[HUMAN_BYTES], y[HUMAN_BYTES];

	for (uint32_t i = 0; i < n; i++) {
		if (!span[i].many)
			continue;
		if (span[i].many == UINT64_MAX)
			snprintf(line, sizeof line, "%s %llu:%llu: more cuts than can be drawn",
				 what, (unsigned long long)span[i].start,
				 (unsigned long long)span[i].stop);
		else
			snprintf(line, sizeof line,
				 "%s %llu:%llu: %s of %s stretches are not drawn", what,
				 (unsigned long long)span[i].start,
				 (unsigned long long)span[i].stop, human_count(span[i].many, x),
				 human_count(a->nspan, y));
		legend_line(d, line);
	}
}

/* The runs of the lists of an axis that is not drawn whole. */
static int say_patterns(const struct drawing *d, const struct map_axis *a,
			const struct map_span *span, uint32_t n)
{
	struct arena arena = { 0 };
	uint32_t nrank, shown = 0, more = 0;
	bool gap = false;
	const uint32_t *rank;
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		gap |= span[i].many != 0;
	for (uint32_t i = 0; gap && i < a->nlist && !rc; i++) {
		char line[LINE_BYTES], ranks[64], runs[256];

		if (indices_is_range(a->list[i]))
			continue;
		if (shown == LEGEND_MAX) {
			more++;
			continue;
		}
		shown++;
		rc = map_list_ranks(d->m, a, i, &arena, &nrank, &rank);
		if (rc)
			break;
		snprintf(line, sizeof line, "%s: %s", map_ranks(nrank, rank, ranks, sizeof ranks),
			 map_pattern(a->list[i], runs, sizeof runs));
		legend_line(d, line);
	}
	if (more) {
		char line[64];

		snprintf(line, sizeof line, "and %u more patterns", more);
		legend_line(d, line);
	}
	arena_free(&arena);
	return rc;
}

static void say_abbreviations(const struct drawing *d)
{
	uint32_t n = d->v.nrow * d->v.ncol, shown = 0;
	char line[LINE_BYTES], ranks[300];
	bool nobody = false;

	for (uint32_t c = 0; c < n; c++) {
		const struct label *l = &d->label[c];
		bool told = false;

		nobody |= !strcmp(l->text, "-");
		if (!l->is_short || shown == LEGEND_MAX)
			continue;
		for (uint32_t b = 0; b < c; b++)
			told |= d->label[b].is_short && map_cell_equal(&d->v, b, c);
		if (told)
			continue;
		shown++;
		snprintf(line, sizeof line, "%s: %s (%u ranks)", l->text,
			 map_ranks(l->nrank, l->rank, ranks, sizeof ranks), l->nrank);
		legend_line(d, line);
	}
	if (nobody)
		legend_line(d, "-: held by no rank");
}

static int legend_print(const struct drawing *d)
{
	const struct map_facts *f = &d->m->facts;
	char line[LINE_BYTES], ranks[300];
	int rc;

	say_abbreviations(d);
	say_gap(d, "down", &d->m->down, d->v.row, d->v.nrow);
	say_gap(d, "across", &d->m->across, d->v.col, d->v.ncol);
	rc = say_patterns(d, &d->m->down, d->v.row, d->v.nrow);
	if (!rc)
		rc = say_patterns(d, &d->m->across, d->v.col, d->v.ncol);
	if (f->nempty && f->numel) {
		snprintf(line, sizeof line, "%s: empty",
			 map_ranks(f->nempty, f->empty, ranks, sizeof ranks));
		legend_line(d, line);
	}
	return rc;
}

int map_print(const struct map *m, FILE *f, const struct screen *s)
{
	struct drawing d = { .m = m, .s = s, .f = f, .has_rows = m->facts.down >= 0 };
	int rc = 0;

	if (m->facts.numel) {
		rc = choose_view(&d);
		if (!rc) {
			print_boxes(&d);
			rc = legend_print(&d);
		}
	}
	map_view_free(&d.v);
	return rc;
}
