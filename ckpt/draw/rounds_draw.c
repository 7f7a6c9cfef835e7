/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds_draw.c - see rounds_draw.h. Called by ckptctl plan, and by flow_draw.c for its picture.
 * Invariant: a cell is what the messages of the ranks' own schedules add up to.
 */
#include "ckpt/draw/rounds_draw.h"
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/svg.h"
#include "ckpt/layout/human.h"
#include "ckpt/plan/schedule_bound.h"

#define WIDTH 80u
#define TEXT_ROWS 24u
#define SVG_ROWS 96u
#define MARGIN 24.0
#define NAMES 150.0 /* width of the names of links */
#define ROW 14.0
#define CELL_MOST 32.0
#define NAME_BYTES 96
#define LINE_BYTES 256
#define BYTES_COLUMNS 11u /* of " 1023 MiB" behind a row */
#define BYTES_WIDTH 70.0

/* What a rank sends or receives over one tier. */
struct link {
	enum links_tier tier;
	bool sends;
	uint32_t rank, last; /* of a block of them: the last one */
	uint64_t bytes;	     /* in all rounds, of one of them */
	double *busy_us;     /* [ncol] */
};

struct rounds {
	struct arena arena;
	uint64_t nround;
	uint32_t ncol;
	uint64_t each;	/* rounds of a column */
	double *col_us; /* [ncol] */
	uint32_t nlink;
	struct link *link; /* by tier, sending first, by rank */
};

/* --- making --- */

struct counting {
	struct rounds *r;
	const struct links *links;
	const struct schedule_rounds *rounds;
	const struct schedule_total *total;
	uint64_t *bytes; /* [nround] of the link that is counted */
	uint64_t messages;
	uint32_t cap;
};

/* Its messages, round by round. */
static int lane_count(struct counting *c, uint32_t from, uint32_t to, uint64_t bytes)
{
	uint64_t n = schedule_messages(c->rounds, bytes);

	c->messages += n;
	if (c->messages > ROUNDS_MESSAGES_MAX)
		return -E2BIG;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t round = schedule_round_of(c->rounds, from, to, bytes, i), a, b;

		schedule_span(c->rounds, from, to, bytes, round, &a, &b);
		c->bytes[round] += b - a;
	}
	return 0;
}

static int link_add(struct counting *c, const struct link *l)
{
	struct rounds *r = c->r;
	struct link *now;

	if (!ARRAY_GROW(r->link, r->nlink, c->cap))
		return -ENOMEM;
	now = &r->link[r->nlink++];
	*now = *l;
	now->busy_us = arena_array(&r->arena, r->ncol, sizeof *now->busy_us);
	if (!now->busy_us)
		return -ENOMEM;
	for (uint64_t i = 0; i < r->nround; i++) {
		double us = c->bytes[i] ? links_us(c->links, l->tier, (double)c->bytes[i]) : 0;

		now->busy_us[i / r->each] += us;
	}
	return 0;
}

/* The lanes of one tier and one direction, if there are any. */
static int lanes_count(struct counting *c, const struct schedule_part *p, enum links_tier tier,
		       bool sends)
{
	const struct schedule_lane *lane = sends ? p->out : p->in;
	struct link l = { .tier = tier, .sends = sends, .rank = p->rank, .last = p->rank };
	int rc = 0;

	memset(c->bytes, 0, c->r->nround * sizeof *c->bytes);
	for (uint32_t i = 0; i < (sends ? p->nout : p->nin) && !rc; i++) {
		if (lane[i].tier != tier)
			continue;
		l.bytes += lane[i].bytes;
		rc = lane_count(c, sends ? p->rank : lane[i].peer, sends ? lane[i].peer : p->rank,
				lane[i].bytes);
	}
	return rc || !l.bytes ? rc : link_add(c, &l);
}

static int rank_count(struct counting *c, struct schedule *s, uint32_t rank, struct ckpt_err *err)
{
	struct schedule_part p;
	int rc = schedule_part(s, rank, &p, err);

	if (rc)
		return rc;
	for (uint32_t tier = LINKS_HOST; tier <= LINKS_NETWORK && !rc; tier++) {
		rc = lanes_count(c, &p, tier, true);
		if (!rc)
			rc = lanes_count(c, &p, tier, false);
	}
	schedule_part_free(&p);
	return rc == -E2BIG
		       ? ckpt_error(err, rc,
				    "its rounds have more than %u messages, too many to be drawn",
				    ROUNDS_MESSAGES_MAX)
	       : rc ? ckpt_error(err, rc, "out of memory for a drawing of rounds")
		    : 0;
}

static int link_compare(const void *va, const void *vb)
{
	const struct link *a = va, *b = vb;

	if (a->tier != b->tier)
		return COMPARE(a->tier, b->tier);
	if (a->sends != b->sends)
		return a->sends ? -1 : 1;
	return COMPARE(a->rank, b->rank);
}

static int columns_make(struct rounds *r, const struct schedule_total *total, struct ckpt_err *err)
{
	r->col_us = arena_array(&r->arena, (size_t)r->ncol + 1, sizeof *r->col_us);
	if (!r->col_us)
		return ckpt_error(err, -ENOMEM, "out of memory for a drawing of rounds");
	for (uint64_t i = 0; i < r->nround; i++)
		r->col_us[i / r->each] += total->round[i].us;
	return 0;
}

int rounds_make(struct schedule *s, const struct links *links, const struct schedule_total *total,
		struct rounds **ret, struct ckpt_err *err)
{
	struct counting c = { .links = links, .rounds = schedule_rounds(s), .total = total };
	const struct ranks *ranks = schedule_ranks(s);
	struct rounds *r;
	int rc = 0;

	*ret = NULL;
	if (ranks->n > ROUNDS_WORLD_MAX)
		return ckpt_error(err, -E2BIG, "rounds are drawn for %u ranks at most",
				  ROUNDS_WORLD_MAX);
	r = calloc(1, sizeof *r);
	c.r = r;
	c.bytes = calloc(total->rounds + 1, sizeof *c.bytes);
	if (!r || !c.bytes)
		rc = ckpt_error(err, -ENOMEM, "out of memory for a drawing of rounds");
	else {
		r->nround = total->rounds;
		r->each = MAX(div_up(r->nround, ROUNDS_COLUMNS), UINT64_C(1));
		r->ncol = (uint32_t)div_up(r->nround, r->each);
		rc = columns_make(r, total, err);
	}
	for (uint32_t i = 0; i < ranks->n && !rc; i++)
		rc = rank_count(&c, s, ranks->rank[i], err);
	free(c.bytes);
	if (rc) {
		rounds_free(r);
		return rc;
	}
	if (r->nlink) /* else there is no array */
		qsort(r->link, r->nlink, sizeof *r->link, link_compare);
	*ret = r;
	return 0;
}

void rounds_free(struct rounds *r)
{
	if (!r)
		return;
	arena_free(&r->arena);
	free(r->link);
	free(r);
}

/* --- rows --- */

/* How a drawing puts neighbours together: links of a row, and columns of those that are stored. */
struct view {
	uint32_t links, cols, ncol;
};

/* Links that one row of a drawing of so many rows stands for. */
static uint32_t block_of(const struct rounds *r, uint32_t rows)
{
	uint32_t sections = 0, block;

	for (uint32_t i = 0; i < r->nlink; i++)
		sections += !i || r->link[i].tier != r->link[i - 1].tier ||
			    r->link[i].sends != r->link[i - 1].sends;
	/* The last block of each section may have fewer. */
	block = r->nlink <= rows ? 1 : (r->nlink + rows - sections - 1) / (rows - sections);
	return block;
}

/* The part of a column's time for which a link is busy; 1 but for what rounding adds. */
static double column_busy(const struct rounds *r, const struct link *l, const struct view *v,
			  uint32_t column)
{
	double busy = 0, of = 0;

	for (uint32_t i = column * v->cols; i < r->ncol && i < (column + 1) * v->cols; i++) {
		busy += l->busy_us[i];
		of += r->col_us[i];
	}
	return of > 0 ? (busy < of ? busy / of : 1) : 0;
}

/* The links from number `from` on that are one row; busy: of its columns. Returns the number behind
 * them. */
static uint32_t row_get(const struct rounds *r, uint32_t from, const struct view *v,
			struct link *ret, double busy[static ROUNDS_COLUMNS])
{
	uint32_t i = from;

	*ret = r->link[from];
	memset(busy, 0, ROUNDS_COLUMNS * sizeof *busy);
	for (; i < r->nlink && i < from + v->links && r->link[i].tier == ret->tier &&
	       r->link[i].sends == ret->sends;
	     i++) {
		ret->last = r->link[i].rank;
		ret->bytes = MAX(ret->bytes, r->link[i].bytes);
		for (uint32_t k = 0; k < v->ncol; k++)
			busy[k] = MAX(busy[k], column_busy(r, &r->link[i], v, k));
	}
	return i;
}

static char *name_print(const struct link *l, char buf[static NAME_BYTES])
{
	struct text t = text_in(buf, NAME_BYTES);

	text_add(&t, "%s r%u", links_tier_name(l->tier), l->rank);
	if (l->last != l->rank)
		text_add(&t, "-r%u", l->last);
	text_add(&t, l->last != l->rank ? " %s" : " %ss", l->sends ? "send" : "receive");
	return buf;
}

/* "a column is 4 rounds; a row is up to 8 links and shows the busiest of them"; "" where each is
 * one. */
static char *blocks_print(const struct rounds *r, const struct view *v, char buf[static LINE_BYTES])
{
	struct text t = text_in(buf, LINE_BYTES);
	uint64_t each = r->each * v->cols;

	if (each > 1)
		text_add(&t, "a column is %llu rounds", (unsigned long long)each);
	if (v->links > 1)
		text_add(&t, "%sa row is up to %u links and shows the busiest of them",
			 t.len ? "; " : "", v->links);
	return buf;
}

static const char what_it_is[] =
	"how busy links are in each round: a rank sends, or receives, over one tier";

/* --- text --- */

static void row_print(const struct view *v, const struct link *l, const double *busy, uint32_t left,
		      FILE *f, const struct screen *s)
{
	char name[NAME_BYTES];

	fprintf(f, "%s%*s%s ", screen_style(s, STYLE_STRONG), (int)left, name_print(l, name),
		screen_plain(s, STYLE_STRONG));
	for (uint32_t k = 0; k < v->ncol; k++)
		fputs(screen_shade(s, busy[k]), f);
	fprintf(f, " %s\n", BYTES_TEXT(l->bytes));
}

static uint32_t names_width(const struct rounds *r, const struct view *v)
{
	double busy[ROUNDS_COLUMNS];
	char name[NAME_BYTES];
	uint32_t most = 0;
	struct link l;

	for (uint32_t i = 0; i < r->nlink;) {
		i = row_get(r, i, v, &l, busy);
		most = MAX(most, (uint32_t)strlen(name_print(&l, name)));
	}
	return most + 2;
}

static char *legend_text(const struct screen *s, char buf[static LINE_BYTES])
{
	struct text t = text_in(buf, LINE_BYTES);

	text_add(&t, "busy: %s never", screen_shade(s, 0));
	for (uint32_t i = 0; i < SCREEN_SHADES; i++)
		text_add(&t, ", %s up to %u %%", screen_shade(s, (i + 0.5) / SCREEN_SHADES),
			 100 / SCREEN_SHADES * (i + 1));
	text_add(&t, " of the round; after it the bytes of all rounds");
	return buf;
}

static void words_print(FILE *f, const char *text, uint32_t width)
{
	if (!*text)
		return;
	fputs("  ", f);
	screen_wrap(f, text, width, 2, 2);
}

void rounds_print(const struct rounds *r, FILE *f, const struct screen *s)
{
	struct view v = { .links = block_of(r, TEXT_ROWS), .cols = 1, .ncol = r->ncol };
	uint32_t width = s->width ? s->width : WIDTH, left = names_width(r, &v);
	uint32_t room = width > left + BYTES_COLUMNS + 1 ? width - left - BYTES_COLUMNS : 1;
	double busy[ROUNDS_COLUMNS];
	char line[LINE_BYTES];
	struct link l;

	v.cols = (r->ncol + room - 1) / room;
	v.cols = MAX(v.cols, 1u);
	v.ncol = (r->ncol + v.cols - 1) / v.cols;
	words_print(f, what_it_is, width);
	words_print(f, blocks_print(r, &v, line), width);
	words_print(f, legend_text(s, line), width);
	for (uint32_t i = 0; i < r->nlink;) {
		i = row_get(r, i, &v, &l, busy);
		row_print(&v, &l, busy, left, f, s);
	}
}

/* --- picture --- */

static struct view svg_view(const struct rounds *r)
{
	return (struct view){ block_of(r, SVG_ROWS), 1, r->ncol };
}

double rounds_svg_height(const struct rounds *r)
{
	struct view v = svg_view(r);
	double busy[ROUNDS_COLUMNS];
	uint32_t rows = 0;
	struct link l;

	for (uint32_t i = 0; i < r->nlink; rows++)
		i = row_get(r, i, &v, &l, busy);
	return ROW * rows + 4 * SVG_LINE;
}

void rounds_svg(const struct rounds *r, FILE *f, double y)
{
	double cell = (ROUNDS_SVG_WIDTH - 2 * MARGIN - NAMES - BYTES_WIDTH) / MAX(r->ncol, 1u);
	struct view v = svg_view(r);
	double busy[ROUNDS_COLUMNS];
	char name[NAME_BYTES], line[LINE_BYTES], tip[LINE_BYTES];
	struct link l;

	cell = cell > CELL_MOST ? CELL_MOST : cell;
	svg_text(f, MARGIN, y += 2 * SVG_LINE, SVG_START, SVG_TEXT, "%s", what_it_is);
	if (*blocks_print(r, &v, line))
		svg_text(f, MARGIN, y += SVG_LINE, SVG_START, SVG_FAINT, "%s", line);
	y += SVG_LINE / 2;
	for (uint32_t i = 0; i < r->nlink; y += ROW) {
		i = row_get(r, i, &v, &l, busy);
		svg_text(f, MARGIN + NAMES - 6, y + ROW - 3, SVG_END, SVG_FAINT, "%s",
			 name_print(&l, name));
		for (uint32_t k = 0; k < r->ncol; k++) {
			snprintf(tip, sizeof tip, "%s, round %llu: busy for %.0f %% of it", name,
				 (unsigned long long)(r->each * k), 100.0 * busy[k]);
			svg_shade(f, MARGIN + NAMES + cell * k, y, cell, ROW, busy[k], tip);
		}
		svg_text(f, MARGIN + NAMES + cell * r->ncol + 6, y + ROW - 3, SVG_START, SVG_FAINT,
			 "%s", BYTES_TEXT(l.bytes));
	}
}
