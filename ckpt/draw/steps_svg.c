/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps_svg.c - a drawn redistribution as a picture that can be put into a bug report. Called by
 * ckptctl plan.
 * Invariant: some thousand rectangles and arrows at most; what is left out is counted in words.
 */
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/steps_impl.h"
#include "ckpt/draw/svg.h"
#include "ckpt/layout/human.h"

#define MARGIN 24.0
#define WIDTH_LEAST 760.0
#define WIDTH_MOST 1400.0
#define TITLE_CHAR 9.3
#define TEXT_CHARS 200u
#define PITCH_LEAST 76.0 /* from box to box */
#define PITCH_MOST 190.0
#define GAP 14.0  /* between boxes */
#define FLAT 16.0 /* height of a tensor of one dimension */
#define HEIGHT_LEAST 26.0
#define HEIGHT_MOST 76.0
#define BAND 78.0 /* height of arrows */
#define CHIP_PITCH 64.0
#define CHIP 36.0
#define CHIPS_MAX 16u
#define BOXES_MAX 64u /* of one state */
#define RUNS_MAX 24u  /* of a dimension that are drawn one by one */
#define CELLS 24u     /* of a dimension with more */
#define FEW 16u	      /* arrows that may be thick */
#define THIN 2.0      /* of elements: less would not be seen beside the outline */
#define SPACE 10.0
#define LINE_BYTES 1024
#define WORD_BYTES 300

struct picture {
	const struct steps_draw *d;
	FILE *f;
	bool apart;		     /* each rank has its own box */
	uint32_t per_line;	     /* boxes */
	double pitch, width, height; /* of a box; of the tensor in it */
	double y;		     /* what is drawn next begins here */
};

/* A box of a state: one rank, or those that hold the same. */
struct box {
	uint32_t nrank, place;
	const uint32_t *rank;
	const struct indexset *set;
};

/* --- boxes --- */

static uint32_t place_of(const struct mesh *m, uint32_t rank)
{
	uint32_t place = 0;

	while (place < m->nrank && m->rank[place] != rank)
		place++;
	return place;
}

static uint32_t boxes_of(const struct picture *p, const struct steps_state *s)
{
	const struct map_facts *f;

	if (p->apart)
		return p->d->problem->mesh->nrank;
	f = map_facts(s->map);
	return f->nshare + (f->nempty > 0);
}

static struct box box_get(const struct picture *p, const struct steps_state *s, uint32_t i)
{
	const struct mesh *m = p->d->problem->mesh;
	const struct map_facts *f;
	struct box b;

	if (p->apart)
		return (struct box){ 1, i, &m->rank[i], &s->set[i] };
	f = map_facts(s->map);
	b.nrank = i < f->nshare ? f->share[i].nrank : f->nempty;
	b.rank = i < f->nshare ? f->share[i].rank : f->empty;
	b.place = place_of(m, b.rank[0]);
	b.set = &s->set[b.place];
	return b;
}

/* The stretches of one drawn dimension: runs, or cells where there are too many. */
static uint32_t parts_of(const struct indexset *set, int32_t dim, uint64_t extent,
			 struct stretch ret[static CELLS])
{
	struct indices_cursor at = { 0 };
	const struct indices *x = dim < 0 ? NULL : &set->dim[dim];
	uint32_t n = 0;

	if (dim < 0) {
		ret[0] = (struct stretch){ .index = 0, .len = 1 };
		return 1;
	}
	if (indices_runs(x) <= RUNS_MAX) {
		for (struct stretch s; indices_next(x, x, &at, &s);)
			ret[n++] = s;
		return n;
	}
	for (; n < CELLS; n++) {
		ret[n].index = (uint64_t)((unsigned __int128)extent * n / CELLS);
		ret[n].len = (uint64_t)((unsigned __int128)extent * (n + 1) / CELLS) - ret[n].index;
	}
	return n;
}

static uint64_t extent_of(const struct picture *p, int32_t dim)
{
	return dim < 0 ? 1 : p->d->problem->shape[dim];
}

/* The stretch of an extent that is drawn over so many pixels: its first one, and *ret_size. */
static double part_at(const struct stretch *s, uint64_t extent, double pixels, double *ret_size)
{
	*ret_size = pixels * ((double)s->len / (double)extent);
	if (*ret_size < THIN)
		*ret_size = THIN;
	return MIN(pixels * ((double)s->index / (double)extent), pixels - *ret_size);
}

/* SVG_MANY: that of its ranks is not the same. */
static uint32_t box_colour(const struct picture *p, const struct box *b)
{
	const struct steps_draw *d = p->d;
	uint32_t colour = steps_colour(d, b->place, SVG_COLOURS);

	for (uint32_t i = 1; i < b->nrank; i++)
		if (steps_colour(d, place_of(d->problem->mesh, b->rank[i]), SVG_COLOURS) != colour)
			return SVG_MANY;
	return colour;
}

static void tensor_draw(const struct picture *p, const struct box *b, double x, double y)
{
	struct stretch row[RUNS_MAX], col[RUNS_MAX];
	uint64_t down = extent_of(p, p->d->down), across = extent_of(p, p->d->across);
	uint32_t nrow = b->set->numel ? parts_of(b->set, p->d->down, down, row) : 0;
	uint32_t ncol = b->set->numel ? parts_of(b->set, p->d->across, across, col) : 0;
	uint32_t colour = box_colour(p, b);

	for (uint32_t i = 0; i < nrow; i++)
		for (uint32_t j = 0; j < ncol; j++) {
			struct steps_area a = { row[i].index, row[i].index + row[i].len,
						col[j].index, col[j].index + col[j].len };
			double width, height, share = steps_share(p->d, b->set, &a);
			double left = part_at(&col[j], across, p->width, &width);
			double top = part_at(&row[i], down, p->height, &height);

			if (share > 0)
				svg_part(p->f, x + left, y + top, width, height, colour, share);
		}
}

static void box_tip(const struct picture *p, const struct box *b, char *buf, size_t bytes)
{
	const struct mesh *m = p->d->problem->mesh;
	uint32_t coord[CKPT_DIMS_MAX];
	struct text t = text_in(buf, bytes);
	char ranks[WORD_BYTES], set[WORD_BYTES];

	mesh_place_coord(m, b->place, coord);
	text_add(&t, "%s", map_ranks(b->nrank, b->rank, ranks, sizeof ranks));
	for (uint32_t k = 0; k < m->ndim && b->nrank == 1; k++)
		text_add(&t, "%s%s=%u", k ? ", " : " at ", m->name[k], coord[k]);
	text_add(&t, ": [%s], %s", human_set(b->set, p->d->problem->shape, set, sizeof set),
		 BYTES_TEXT(steps_bytes(p->d, b->set)));
}

static void box_draw(const struct picture *p, const struct box *b, double x, double y)
{
	uint32_t chars = (uint32_t)((p->pitch - 4) / SVG_CHAR);
	double middle = x + p->width / 2;
	char text[WORD_BYTES], tip[LINE_BYTES];

	if (strlen(map_ranks(b->nrank, b->rank, text, sizeof text)) > chars)
		snprintf(text, sizeof text, "r%u, %u more", b->rank[0], b->nrank - 1);
	svg_text(p->f, middle, y + 11, SVG_MIDDLE, SVG_TEXT, "%s", text);
	box_tip(p, b, tip, sizeof tip);
	tensor_draw(p, b, x, y + SVG_LINE);
	svg_rect(p->f, x, y + SVG_LINE, p->width, p->height, SVG_NONE, tip);
	steps_set(p->d, b->set, text, sizeof text);
	if (strlen(text) > chars)
		snprintf(text + chars - 2, 3, "..");
	y += SVG_LINE + p->height;
	svg_text(p->f, middle, y + 13, SVG_MIDDLE, SVG_TEXT, "%s", text);
	svg_text(p->f, middle, y + 13 + SVG_LINE - 2, SVG_MIDDLE, SVG_FAINT, "%s",
		 BYTES_TEXT(steps_bytes(p->d, b->set)));
}

/* --- states --- */

static double box_height(const struct picture *p)
{
	return SVG_LINE + p->height + 2 * SVG_LINE + SPACE / 2;
}

static double box_x(const struct picture *p, uint32_t i)
{
	return MARGIN + p->pitch * (i % p->per_line) + GAP / 2;
}

static void state_draw(struct picture *p, const struct steps_state *s)
{
	uint32_t all = boxes_of(p, s), n = MIN(all, BOXES_MAX);
	char state[LINE_BYTES], words[WORD_BYTES];

	svg_text(p->f, MARGIN, p->y + 12, SVG_START, SVG_TITLE, "%s",
		 redist_state_print(p->d->problem->mesh, s->layout, state, sizeof state));
	svg_text(p->f, MARGIN + TITLE_CHAR * ((double)strlen(state) + 2), p->y + 12, SVG_START,
		 SVG_FAINT, "%s%s%s", steps_state_words(p->d, s, words, sizeof words),
		 n < all ? "; boxes not drawn: " : "", n < all ? COUNT_TEXT(all - n) : "");
	p->y += SVG_LINE + 6;
	for (uint32_t i = 0; i < n; i++) {
		struct box b = box_get(p, s, i);

		box_draw(p, &b, box_x(p, i), p->y + box_height(p) * (i / p->per_line));
	}
	p->y += box_height(p) * ((n + p->per_line - 1) / p->per_line);
}

/* --- arrows --- */

/* Where an arrow begins and ends: at the boxes, if they stand in one line; else at chips of one
 * group. */
struct band {
	const struct steps_move *m;
	bool chips;
	uint32_t nchip;
	uint64_t most;
	double y0, y1;
};

static double band_x(const struct picture *p, const struct band *b, uint32_t place)
{
	uint32_t i = 0;

	if (!b->chips)
		return box_x(p, place) + p->width / 2;
	while (i < b->nchip && b->m->member[i] != place)
		i++;
	return i < b->nchip ? MARGIN + CHIP_PITCH * i + CHIP_PITCH / 2 : -1;
}

static void chips_draw(const struct picture *p, const struct band *b, double y)
{
	for (uint32_t i = 0; i < b->nchip; i++) {
		uint32_t place = b->m->member[i], colour = steps_colour(p->d, place, SVG_COLOURS);
		double x = band_x(p, b, place);

		svg_rect(p->f, x - CHIP / 2, y, CHIP, SVG_LINE, colour, NULL);
		svg_text(p->f, x, y + 12, SVG_MIDDLE, SVG_ON + colour, "r%u",
			 p->d->problem->mesh->rank[place]);
	}
}

/* What a rank sends, below where its arrows begin, and what it gets, above where they end. */
static void totals_draw(const struct picture *p, const struct band *b)
{
	uint32_t n = p->d->problem->mesh->nrank;

	for (uint32_t i = 0; i < n; i++) {
		double x = band_x(p, b, i);
		uint64_t out = 0, in = 0;

		for (uint32_t k = 0; k < b->m->narrow && x >= 0; k++) {
			out += b->m->arrow[k].from == i ? b->m->arrow[k].bytes : 0;
			in += b->m->arrow[k].to == i ? b->m->arrow[k].bytes : 0;
		}
		if (out)
			svg_text(p->f, x, b->y0 - 3, SVG_MIDDLE, SVG_FAINT, "%s", BYTES_TEXT(out));
		if (in)
			svg_text(p->f, x, b->y1 + 12, SVG_MIDDLE, SVG_FAINT, "%s", BYTES_TEXT(in));
	}
}

static void arrow_draw(const struct picture *p, const struct band *b, const struct steps_arrow *a)
{
	const uint32_t *rank = p->d->problem->mesh->rank;
	double x0 = band_x(p, b, a->from), x1 = band_x(p, b, a->to);
	double thick = 1 + (b->m->narrow > FEW ? 0.4 : 3) * (double)a->bytes / (double)b->most;
	char tip[WORD_BYTES];

	if (x0 < 0 || x1 < 0)
		return;
	snprintf(tip, sizeof tip, "r%u to r%u: %s", rank[a->from], rank[a->to],
		 BYTES_TEXT(a->bytes));
	svg_arrow(p->f, x0, b->y0, x1, b->y1, thick, steps_colour(p->d, a->from, SVG_COLOURS), tip);
}

static void band_open(const struct picture *p, const struct steps_move *m, struct band *b)
{
	*b = (struct band){ .m = m, .nchip = MIN(m->members, CHIPS_MAX), .most = 1 };
	b->chips = !p->apart || p->d->problem->mesh->nrank > p->per_line;
	for (uint32_t i = 0; i < m->narrow; i++)
		b->most = MAX(b->most, m->arrow[i].bytes);
}

/* "one of 16 groups of ranks; 16 of the 64 ranks of a group" */
static char *band_words(const struct band *b, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	if (b->m->too_many_runs)
		return steps_left_out(b->m, buf, bytes);
	if (!b->chips || !b->m->narrow)
		return buf;
	if (b->m->ngroup > 1)
		text_add(&t, "one of %u groups of ranks", b->m->ngroup);
	if (b->nchip < b->m->size)
		text_add(&t, "%s%u of the %u ranks of a group", t.len ? "; " : "", b->nchip,
			 b->m->size);
	return buf;
}

static void move_draw(struct picture *p, const struct steps_move *m)
{
	char words[LINE_BYTES];
	struct band b;

	band_open(p, m, &b);
	p->y += SPACE;
	svg_text(p->f, MARGIN, p->y + 12, SVG_START, SVG_TEXT, "%s",
		 steps_move_words(p->d, m, words, sizeof words));
	p->y += SVG_LINE;
	if (*band_words(&b, words, sizeof words)) {
		svg_text(p->f, MARGIN, p->y + 12, SVG_START, SVG_FAINT, "%s", words);
		p->y += SVG_LINE;
	}
	if (m->narrow) {
		b.y0 = p->y + SVG_LINE + (b.chips ? SVG_LINE + 2 : 0);
		b.y1 = b.y0 + BAND;
		if (b.chips)
			chips_draw(p, &b, p->y + 2);
		for (uint32_t i = 0; i < m->narrow; i++)
			arrow_draw(p, &b, &m->arrow[i]);
		totals_draw(p, &b);
		p->y = b.y1 + SVG_LINE;
		if (b.chips) {
			chips_draw(p, &b, p->y);
			p->y += SVG_LINE + SPACE;
		}
	}
	p->y += SPACE;
}

/* --- the picture --- */

static void sizes_choose(struct picture *p)
{
	double down = (double)extent_of(p, p->d->down), across = (double)extent_of(p, p->d->across);
	char text[WORD_BYTES];
	uint32_t chars = 0, n = 0, lines;

	for (uint32_t k = 0; k < p->d->nstate; k++) {
		uint32_t boxes = MIN(boxes_of(p, &p->d->state[k]), BOXES_MAX);

		n = MAX(n, boxes);
		for (uint32_t i = 0; i < boxes; i++) {
			struct box b = box_get(p, &p->d->state[k], i);

			chars = MAX(chars,
				    (uint32_t)strlen(steps_set(p->d, b.set, text, sizeof text)));
			chars = MAX(chars, (uint32_t)strlen(map_ranks(b.nrank, b.rank, text, 24)));
		}
	}
	p->pitch = SVG_CHAR * (chars + 1) + GAP;
	p->pitch = p->pitch < PITCH_LEAST ? PITCH_LEAST : MIN(p->pitch, PITCH_MOST);
	lines = (uint32_t)(p->pitch * n / WIDTH_MOST) + 1;
	p->per_line = MAX((n + lines - 1) / lines, 1u);
	p->width = p->pitch - GAP;
	p->height = p->d->down < 0 ? FLAT : across > 0 ? p->width * down / across : FLAT;
	if (p->d->down >= 0)
		p->height = p->height < HEIGHT_LEAST ? HEIGHT_LEAST : MIN(p->height, HEIGHT_MOST);
}

static void head_draw(struct picture *p, const char *title, const char *const *line)
{
	char words[LINE_BYTES], colours[WORD_BYTES];
	struct text t = text_in(words, sizeof words);

	svg_text(p->f, MARGIN, p->y, SVG_START, SVG_TITLE, "%s", title);
	for (; *line; line++)
		svg_text(p->f, MARGIN, p->y += SVG_LINE, SVG_START, SVG_TEXT, "%s", *line);
	if (p->d->down >= 0)
		text_add(&t,
			 "in a box the rank's elements, down: dimension %d, across: dimension %d",
			 p->d->down, p->d->across);
	if (*steps_coloured(p->d, colours, sizeof colours))
		text_add(&t, "%sa colour is a coordinate of %s%s", t.len ? "; " : "", colours,
			 p->apart ? "" : ", light grey several");
	if (t.len)
		svg_text(p->f, MARGIN, p->y += SVG_LINE, SVG_START, SVG_FAINT, "%s", words);
	p->y += SVG_LINE;
}

/* What of a text fits a picture of decent width; *width grows with it. */
static void width_grow(const char *text, double character, double *width)
{
	double w = 2 * MARGIN + character * MIN(screen_columns(text), TEXT_CHARS);

	*width = MAX(*width, w);
}

static double picture_width(const struct picture *p, const char *title, const char *const *line)
{
	double width = 2 * MARGIN + p->pitch * p->per_line;

	width = MAX(width, WIDTH_LEAST);
	width_grow(title, TITLE_CHAR, &width);
	for (; *line; line++)
		width_grow(*line, SVG_CHAR, &width);
	return width;
}

int steps_svg(const struct steps_draw *d, const char *title, const char *const *line, FILE *f)
{
	struct picture p = { .d = d, .y = MARGIN + 8 };
	cleanup_free char *body = NULL;
	size_t len = 0;

	p.f = open_memstream(&body, &len); /* its height is known at its end */
	if (!p.f)
		return -ENOMEM;
	p.apart = d->problem->mesh->nrank <= STEPS_SVG_BOXES;
	sizes_choose(&p);
	head_draw(&p, title, line);
	for (uint32_t i = 0; i < d->nstate; i++) {
		state_draw(&p, &d->state[i]);
		if (i + 1 < d->nstate)
			move_draw(&p, &d->move[i]);
	}
	if (fclose(p.f))
		return -ENOMEM;
	svg_begin(f, picture_width(&p, title, line), p.y + MARGIN, title);
	fwrite(body, 1, len, f);
	svg_end(f);
	return 0;
}
