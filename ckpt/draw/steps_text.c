/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps_text.c - a drawn redistribution for a terminal or a file. Called by ckptctl plan.
 * Invariant: no line is wider than the screen (80 columns where there is none); colours only come
 * in addition.
 */
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/steps_impl.h"
#include "ckpt/layout/human.h"

#define WIDTH 80u
#define INDENT 2u
#define INNER_LEAST 8u /* columns of a box between its borders */
#define INNER_MOST 30u
#define ROWS_FEW 6u   /* of a tensor that has a line for each index */
#define ROWS_MANY 4u  /* of any other */
#define WORDS_MAX 10u /* lines below it */
#define WORD_BYTES 96
#define LINE_BYTES 1024
#define ARROWS_SAID 12u

/* What stands in one box. */
struct box {
	uint32_t place;
	const struct indexset *set;
	uint32_t nword;
	char word[WORDS_MAX][WORD_BYTES];
};

struct drawing {
	const struct steps_draw *d;
	const struct screen *s;
	FILE *f;
	uint32_t width, inner, per_line;  /* columns; of a box; boxes of a line */
	uint32_t rows, cols;		  /* of the tensor in a box */
	struct box box[STEPS_TEXT_BOXES]; /* of one state */
};

static void line_print(const struct drawing *t, enum cell_style style, const char *text)
{
	fprintf(t->f, "%*s%s", (int)INDENT, "", screen_style(t->s, style));
	screen_wrap(t->f, text, t->width, INDENT, INDENT + 2);
	fputs(screen_plain(t->s, style), t->f);
}

/* --- what a box says --- */

static void word_add(struct box *b, const char *text, uint32_t inner)
{
	if (b->nword == WORDS_MAX)
		return;
	if (screen_columns(text) <= inner)
		snprintf(b->word[b->nword++], WORD_BYTES, "%s", text);
	else
		snprintf(b->word[b->nword++], WORD_BYTES, "%.*s..", (int)(inner - 2), text);
}

/* The indices in one line, or a line for each dimension that is cut; then the bytes. */
static void box_words(const struct drawing *t, struct box *b, bool split)
{
	const struct redist_problem *p = t->d->problem;
	char text[LINE_BYTES];

	b->nword = 0;
	steps_set(t->d, b->set, text, sizeof text);
	if ((screen_columns(text) <= t->inner && !split) || !b->set->numel || p->ndim < 2)
		word_add(b, text, t->inner);
	else
		for (uint32_t k = 0; k < p->ndim; k++)
			if (b->set->dim[k].total != p->shape[k]) {
				char dim[WORD_BYTES], runs[WORD_BYTES];

				snprintf(dim, sizeof dim, "%u: %s", k,
					 steps_dim(t->d, b->set, k, runs, WORD_BYTES - 16));
				word_add(b, dim, t->inner);
			}
	word_add(b, human_bytes(steps_bytes(t->d, b->set), text), t->inner);
}

static void state_boxes(struct drawing *t, const struct steps_state *s, bool split)
{
	for (uint32_t i = 0; i < t->d->problem->mesh->nrank; i++) {
		t->box[i].place = i;
		t->box[i].set = &s->set[i];
		box_words(t, &t->box[i], split);
	}
}

/* --- what fits --- */

/* Columns that the words of the boxes of all states want. */
static uint32_t words_width(struct drawing *t, bool split)
{
	uint32_t most = INNER_LEAST;

	t->inner = INNER_MOST;
	for (uint32_t k = 0; k < t->d->nstate; k++) {
		state_boxes(t, &t->d->state[k], split);
		for (uint32_t i = 0; i < t->d->problem->mesh->nrank; i++)
			for (uint32_t w = 0; w < t->box[i].nword; w++)
				most = MAX(most, screen_columns(t->box[i].word[w]));
	}
	return most;
}

static uint32_t rows_of(uint64_t extent)
{
	return extent <= ROWS_FEW ? (uint32_t)extent : ROWS_MANY;
}

/* Boxes as wide as their words in one line want, unless that takes more lines of boxes than words
 * in several lines do. */
static void sizes_choose(struct drawing *t)
{
	const struct redist_problem *p = t->d->problem;
	uint32_t n = p->mesh->nrank, room = t->width - INDENT - 2, most, least, lines;

	most = words_width(t, false);
	least = words_width(t, true);
	lines = (n + room / (least + 1) - 1) / (room / (least + 1));
	t->per_line = (n + lines - 1) / lines;
	t->inner = MIN(most, room / t->per_line - 1);
	t->rows = t->d->down < 0 ? 1 : rows_of(p->shape[t->d->down]);
	t->cols = t->inner / 4 * 4; /* many cuts are into two or four */
	if (t->d->across >= 0 && p->shape[t->d->across] < t->inner)
		t->cols = t->inner / (uint32_t)MAX(p->shape[t->d->across], 1u) *
			  (uint32_t)p->shape[t->d->across];
}

/* --- boxes --- */

/* Between `above` boxes and `below` boxes. */
static void border_print(const struct drawing *t, uint32_t above, uint32_t below)
{
	uint32_t n = MAX(above, below);

	fprintf(t->f, "%*s%s", (int)INDENT, "", screen_style(t->s, STYLE_DIM));
	for (uint32_t i = 0; i <= n; i++) {
		fputs(screen_junction(t->s, above && i <= above, below && i <= below, i, i < n),
		      t->f);
		for (uint32_t k = 0; i < n && k < t->inner; k++)
			fputs(screen_junction(t->s, false, false, true, true), t->f);
	}
	fprintf(t->f, "%s\n", screen_plain(t->s, STYLE_DIM));
}

static void side_print(const struct drawing *t)
{
	fprintf(t->f, "%s%s%s", screen_style(t->s, STYLE_DIM), t->s->unicode ? "\u2502" : "|",
		screen_plain(t->s, STYLE_DIM));
}

static void word_print(const struct drawing *t, const char *word)
{
	uint32_t len = screen_columns(word), left = (t->inner - len) / 2;

	fprintf(t->f, "%*s%s%*s", (int)left, "", word, (int)(t->inner - len - left), "");
}

static void name_print(const struct drawing *t, const struct box *b)
{
	char name[WORD_BYTES], on[SCREEN_COLOUR_BYTES];

	snprintf(name, sizeof name, "r%u", t->d->problem->mesh->rank[b->place]);
	name[MIN(strlen(name), (size_t)t->inner)] = 0;
	fputs(screen_on(t->s, steps_colour(t->d, b->place, SCREEN_COLOURS), on), t->f);
	word_print(t, name);
	fputs(screen_plain(t->s, STYLE_STRONG), t->f);
}

static uint64_t index_of(uint64_t extent, uint32_t i, uint32_t n)
{
	return (uint64_t)((unsigned __int128)extent * i / n);
}

static const char *share_text(const struct drawing *t, double share)
{
	if (share <= 0)
		return t->s->unicode ? "\u00b7" : ".";
	if (share < 1)
		return t->s->unicode ? "\u2592" : "+";
	return t->s->unicode ? "\u2588" : "#";
}

/* One line of the tensor. */
static void tensor_print(const struct drawing *t, const struct box *b, uint32_t row)
{
	const struct redist_problem *p = t->d->problem;
	uint64_t down = t->d->down < 0 ? 1 : p->shape[t->d->down];
	uint64_t across = t->d->across < 0 ? 1 : p->shape[t->d->across];
	uint32_t left = (t->inner - t->cols) / 2;
	char in[SCREEN_COLOUR_BYTES];

	fprintf(t->f, "%*s%s", (int)left, "",
		screen_in(t->s, steps_colour(t->d, b->place, SCREEN_COLOURS), in));
	for (uint32_t j = 0; j < t->cols; j++) {
		struct steps_area a = { index_of(down, row, t->rows),
					index_of(down, row + 1, t->rows),
					index_of(across, j, t->cols),
					index_of(across, j + 1, t->cols) };

		if (a.c1 == a.c0) /* an index takes several columns */
			a.c0 = index_of(across, j, t->cols), a.c1 = a.c0 + 1;
		fputs(share_text(t, steps_share(t->d, b->set, &a)), t->f);
	}
	fprintf(t->f, "%*s%s", (int)(t->inner - t->cols - left), "",
		screen_plain(t->s, STYLE_STRONG));
}

static uint32_t words_most(const struct box *b, uint32_t n)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = MAX(most, b[i].nword);
	return most;
}

static void boxes_print(const struct drawing *t, const struct box *b, uint32_t n)
{
	uint32_t words = words_most(b, n), rows = t->rows;

	for (uint32_t y = 0; y < 1 + rows + words; y++) {
		fprintf(t->f, "%*s", (int)INDENT, "");
		for (uint32_t i = 0; i < n; i++) {
			const char *word = y > rows && y - rows - 1 < b[i].nword
						   ? b[i].word[y - rows - 1]
						   : "";

			side_print(t);
			if (!y)
				name_print(t, &b[i]);
			else if (y <= rows)
				tensor_print(t, &b[i], y - 1);
			else
				word_print(t, word);
		}
		side_print(t);
		fputc('\n', t->f);
	}
}

static int state_print(struct drawing *t, const struct steps_state *s)
{
	const struct mesh *m = t->d->problem->mesh;
	char line[LINE_BYTES], words[LINE_BYTES / 4], state[LINE_BYTES / 2];

	snprintf(line, sizeof line, "%s: %s", redist_state_print(m, s->layout, state, sizeof state),
		 steps_state_words(t->d, s, words, sizeof words));
	line_print(t, STYLE_STRONG, line);
	if (s->map)
		return map_print(s->map, t->f, t->s);
	state_boxes(t, s, false);
	for (uint32_t i = 0, n = 0, was; i < m->nrank; i += n) {
		was = n;
		n = MIN(t->per_line, m->nrank - i);
		border_print(t, was, n);
		boxes_print(t, t->box + i, n);
		if (i + n == m->nrank)
			border_print(t, n, 0);
	}
	return 0;
}

/* --- moves --- */

/* The bytes of the arrow from one place to another; 0: there is none. */
static uint64_t arrow_bytes(const struct steps_move *m, uint32_t from, uint32_t to)
{
	for (uint32_t i = 0; i < m->narrow; i++)
		if (m->arrow[i].from == from && m->arrow[i].to == to)
			return m->arrow[i].bytes;
	return 0;
}

static bool arrows_alike(const struct steps_move *m)
{
	for (uint32_t i = 1; i < m->narrow; i++)
		if (m->arrow[i].bytes != m->arrow[0].bytes)
			return false;
	return true;
}

/* "r0 <-> r4 50 B, r1 -> r5 40 B, ...": those of the first group that sends anything come first. */
static void arrows_say(const struct drawing *t, const struct steps_move *m, char *buf, size_t bytes)
{
	const uint32_t *rank = t->d->problem->mesh->rank;
	bool alike = arrows_alike(m);
	struct text x = text_in(buf, bytes);
	uint32_t said = 0, covered = 0;

	for (uint32_t i = 0; i < m->narrow && said < (alike ? 1 : ARROWS_SAID); i++) {
		const struct steps_arrow *a = &m->arrow[i];
		uint64_t back = arrow_bytes(m, a->to, a->from);

		if (a->from > a->to && back == a->bytes)
			continue; /* stands there already */
		text_add(&x, "%sr%u %s r%u %s", said ? ", " : "", rank[a->from],
			 back == a->bytes ? "<->" : "->", rank[a->to], BYTES_TEXT(a->bytes));
		said++;
		covered += back == a->bytes ? 2 : 1;
	}
	if (covered < m->narrow)
		text_add(&x, ", and %u more arrows%s", m->narrow - covered,
			 alike ? " of as many bytes" : "");
	if (m->narrow && m->drawn < m->ngroup)
		text_add(&x, ", in %u of %u groups of ranks", m->drawn, m->ngroup);
}

static void move_print(const struct drawing *t, const struct steps_move *m)
{
	char line[LINE_BYTES];

	fprintf(t->f, "%*s%s ", (int)INDENT, "", t->s->unicode ? "\u2193" : "v");
	screen_wrap(t->f, steps_move_words(t->d, m, line, sizeof line), t->width, INDENT + 2,
		    INDENT + 2);
	arrows_say(t, m, line, sizeof line);
	for (int i = 0; i < 2; i++) {
		if (*line) {
			fprintf(t->f, "%*s%s", (int)INDENT + 2, "", screen_style(t->s, STYLE_DIM));
			screen_wrap(t->f, line, t->width, INDENT + 2, INDENT + 2);
			fputs(screen_plain(t->s, STYLE_DIM), t->f);
		}
		steps_left_out(m, line, sizeof line);
	}
}

/* What a box's signs mean. */
static void legend_print(const struct drawing *t)
{
	char line[LINE_BYTES], colours[LINE_BYTES / 4];
	struct text x = text_in(line, sizeof line);
	bool both = t->d->down >= 0;

	if (t->d->problem->mesh->nrank > STEPS_TEXT_BOXES || !t->rows || !t->cols)
		return;
	text_add(&x, "in a box the rank's elements: %s all there, %s some, %s none",
		 share_text(t, 1), share_text(t, .5), share_text(t, 0));
	if (t->d->problem->ndim > 1)
		text_add(&x, "; %s%d%s%d", both ? "down: dimension " : "across: dimension ",
			 both ? t->d->down : t->d->across, both ? ", across: dimension " : "",
			 t->d->across);
	if (t->s->colour && *steps_coloured(t->d, colours, sizeof colours))
		text_add(&x, "; a colour is a coordinate of %s", colours);
	line_print(t, STYLE_DIM, line);
}

int steps_print(const struct steps_draw *d, FILE *f, const struct screen *s)
{
	struct drawing t = { .d = d, .s = s, .f = f, .width = s->width ? s->width : WIDTH };
	int rc = 0;

	if (d->problem->mesh->nrank <= STEPS_TEXT_BOXES)
		sizes_choose(&t);
	legend_print(&t);
	for (uint32_t i = 0; i < d->nstate && !rc; i++) {
		rc = state_print(&t, &d->state[i]);
		if (!rc && i + 1 < d->nstate)
			move_print(&t, &d->move[i]);
	}
	return rc;
}
