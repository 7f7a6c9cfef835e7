/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_text.c - the document for people: values become a block of labels, lists become tables.
 * Invariant: what is meant for programs only (no head, no columns, inside a row) leaves no trace.
 */
#include "ckpt/base/util.h"
#include "ckpt/draw/grid.h"
#include "ckpt/layout/human.h"
#include "ckpt/output/output.h"
#include "ckpt/draw/screen.h"

#define LABEL_INDENT 2
#define VALUE_BYTES 8192 /* a path, a name and a set all fit */
#define SAID_BYTES 16384

struct text {
	struct output o; /* first: struct output is what callers hold */
	FILE *out, *err;
	const struct screen *out_screen, *err_screen;
	struct grid *labels;	      /* values that wait for those that follow */
	struct grid *table;	      /* the open list */
	const struct column *columns; /* its columns */
	uint32_t ncol;
	uint32_t depth;	 /* the open list, and what is open inside; 0: none */
	uint32_t hidden; /* open ones for programs only */
	bool printed;	 /* something stands above */
	bool bar;	 /* a bar of progress is on the screen */
};

static const struct column label_columns[] = { { .head = "" }, { .head = "", .fit = FIT_WRAP } };

static struct text *text_of(struct output *o)
{
	return (struct text *)o;
}

static char *cell_print(const struct screen *s, const struct cell *c, char *buf)
{
	char word[HUMAN_BYTES];

	switch (c->kind) {
	case CELL_NONE:
		return strcpy(buf, "-");
	case CELL_TEXT:
		screen_clean(c->text ? c->text : "", buf, VALUE_BYTES);
		screen_ascii(s, buf, buf, VALUE_BYTES);
		return buf;
	case CELL_NUMBER:
		snprintf(buf, VALUE_BYTES, "%llu", (unsigned long long)c->n);
		return buf;
	case CELL_COUNT:
		return human_count(c->n, buf);
	case CELL_BYTES:
		return human_bytes(c->n, buf);
	case CELL_REAL:
		snprintf(buf, VALUE_BYTES, "%.6g", c->real);
		return buf;
	case CELL_FLAG:
		return strcpy(buf, c->n ? "yes" : "no");
	case CELL_TIME:
		human_time(c->n, buf);
		human_age(c->n, wall_ns(), word);
		if (c->n)
			sprintf(buf + strlen(buf), strcmp(word, "now") ? " (%s ago)" : " (%s)",
				word);
		return buf;
	case CELL_AGE:
		return human_age(c->n, wall_ns(), buf);
	case CELL_FINGERPRINT:
		snprintf(buf, VALUE_BYTES, "%016llx", (unsigned long long)c->n);
		return buf;
	case CELL_ID:
		for (uint32_t i = 0; i < 16; i++)
			sprintf(buf + (size_t)2 * i, "%02x", c->id[i]);
		return buf;
	case CELL_SHAPE:
		return human_shape((uint32_t)c->n, c->shape, buf, VALUE_BYTES);
	case CELL_SET:
		return human_set(c->set, c->shape, buf, VALUE_BYTES);
	}
	return strcpy(buf, "");
}

/* A blank line between what was printed and a block that follows. */
static void text_part(struct text *t)
{
	if (t->printed)
		fputc('\n', t->out);
	t->printed = true;
}

/* What is printed must not stand behind a bar. */
static void bar_wipe(struct text *t)
{
	if (!t->bar)
		return;
	t->bar = false;
	fputs("\r\033[K", t->err);
	fflush(t->err);
}

static void labels_flush(struct text *t)
{
	if (!t->labels)
		return;
	grid_print(t->labels, t->out, t->out_screen, LABEL_INDENT, false);
	grid_free(TAKE(t->labels));
	t->printed = true;
}

static void text_begin(struct output *o, const char *schema)
{
	(void)o;
	(void)schema;
}

static void text_line_begin(struct output *o, const char *schema, const char *type)
{
	(void)type;
	text_begin(o, schema);
}

static void text_label(struct text *t, const struct column *col, const char *value,
		       enum cell_style style)
{
	if (!t->labels)
		t->labels = grid_new(label_columns, ARRAY_LEN(label_columns));
	if (!t->labels || grid_row(t->labels) || grid_cell(t->labels, 0, col->head, STYLE_DIM) ||
	    grid_cell(t->labels, 1, value, style))
		t->o.failed = true;
}

static void text_put(struct output *o, const struct column *col, struct cell c)
{
	struct text *t = text_of(o);
	char value[VALUE_BYTES];

	if (t->hidden || !col->head)
		return;
	cell_print(t->out_screen, &c, value);
	if (!t->depth)
		text_label(t, col, value, c.style);
	else if (t->table && grid_cell(t->table, (uint32_t)(col - t->columns), value,
				       c.kind == CELL_NONE ? STYLE_DIM : c.style))
		t->o.failed = true;
}

static void text_object(struct output *o, const char *key)
{
	struct text *t = text_of(o);

	(void)key;
	if (t->hidden || t->depth)
		t->hidden++;
}

static void text_list(struct output *o, const char *key, const struct column *cols, uint32_t ncol)
{
	struct text *t = text_of(o);

	(void)key;
	if (t->hidden || t->depth || !cols) {
		t->hidden++;
		return;
	}
	labels_flush(t);
	t->columns = cols;
	t->ncol = ncol;
	t->depth = 1;
	t->table = grid_new(cols, ncol);
	t->o.failed |= !t->table;
}

static void text_row(struct output *o)
{
	struct text *t = text_of(o);

	if (t->hidden) {
		t->hidden++;
		return;
	}
	t->depth++;
	if (!t->table || grid_row(t->table)) {
		grid_free(TAKE(t->table));
		t->o.failed = true;
	}
}

static bool any_head(const struct text *t)
{
	for (uint32_t i = 0; i < t->ncol; i++)
		if (t->columns[i].head)
			return true;
	return false;
}

static void text_close(struct output *o)
{
	struct text *t = text_of(o);

	if (t->hidden) {
		t->hidden--;
		return;
	}
	if (!t->depth || --t->depth)
		return;
	if (t->table && any_head(t) && grid_rows(t->table)) {
		text_part(t);
		grid_print(t->table, t->out, t->out_screen, 0, true);
	}
	grid_free(TAKE(t->table));
}

static void text_say(struct output *o, enum cell_style style, const char *mark, uint32_t indent,
		     const char *text)
{
	struct text *t = text_of(o);
	const struct screen *s = t->out_screen;
	char ascii[SAID_BYTES];

	text = screen_ascii(s, text, ascii, sizeof ascii);
	bar_wipe(t);
	labels_flush(t);
	if (mark)
		fprintf(t->out, "%s%s%s", screen_style(s, style), mark, screen_plain(s, style));
	else
		fputs(screen_style(s, style), t->out);
	screen_wrap(t->out, text, s->width, mark ? screen_columns(mark) : 0, indent);
	if (!mark)
		fputs(screen_plain(s, style), t->out);
	t->printed = true;
	fflush(t->out);
}

static void text_end(struct output *o)
{
	labels_flush(text_of(o));
}

/* --- progress --- */

#define BAR 20

static char *time_left(uint64_t seconds, char *buf)
{
	unsigned long long s = seconds;

	if (seconds == UINT64_MAX)
		return strcpy(buf, "");
	if (s >= 3600)
		sprintf(buf, "%llu:%02llu:%02llu left", s / 3600, s / 60 % 60, s % 60);
	else
		sprintf(buf, "%llu:%02llu left", s / 60, s % 60);
	return buf;
}

static char *bar_print(const struct screen *s, const struct output_progress *p, char *buf)
{
	static const char *const look[2][2] = { { ".", "#" }, { "\u2591", "\u2588" } };
	uint32_t full = p->total ? (uint32_t)((double)p->done / (double)p->total * BAR) : 0;

	*buf = 0;
	for (uint32_t i = 0; p->total && i < BAR; i++)
		strcat(buf, look[s->unicode][i < full]);
	return buf;
}

/* The first that fits the screen: with a bar, without, without whose it is. */
static void text_bar(struct text *t, const struct output_progress *p)
{
	const struct screen *s = t->err_screen;
	char line[320], bar[4 * BAR + 1], left[HUMAN_BYTES], done[HUMAN_BYTES], part[16];
	char clean[81];
	const char *what;

	screen_clean(p->what, clean, sizeof clean);
	what = screen_ascii(s, clean, clean, sizeof clean);
	bar_print(s, p, bar);
	time_left(p->seconds_left, left);
	human_bytes(p->done, done);
	if (p->total)
		snprintf(part, sizeof part, "%3.0f %%  ", (double)p->done / (double)p->total * 100);
	else
		snprintf(part, sizeof part, "%.14s", "");
	snprintf(line, sizeof line, "%s  %s%s%s%s  %.2f GB/s%s%s", what, bar, *bar ? " " : "", part,
		 done, p->rate / 1e9, *left ? "  " : "", left);
	if (screen_columns(line) >= s->width)
		snprintf(line, sizeof line, "%s  %s%s  %.2f GB/s", what, part, done, p->rate / 1e9);
	if (screen_columns(line) >= s->width)
		snprintf(line, sizeof line, "%s%s  %.2f GB/s", part, done, p->rate / 1e9);
	if (screen_columns(line) >= s->width)
		return;
	fprintf(t->err, "\r%s\033[K", line);
	t->bar = true;
}

static void text_line(struct text *t, const struct output_progress *p)
{
	char left[HUMAN_BYTES], done[HUMAN_BYTES], total[HUMAN_BYTES], clean[81];

	time_left(p->seconds_left, left);
	human_bytes(p->done, done);
	screen_clean(p->what, clean, sizeof clean);
	fprintf(t->err, "%s: ", screen_ascii(t->err_screen, clean, clean, sizeof clean));
	if (p->total)
		fprintf(t->err, "%.0f %%, %s of %s", (double)p->done / (double)p->total * 100, done,
			human_bytes(p->total, total));
	else
		fputs(done, t->err);
	fprintf(t->err, ", %.2f GB/s%s%s\n", p->rate / 1e9, *left ? ", " : "", left);
}

static void text_progress(struct output *o, const struct output_progress *p)
{
	struct text *t = text_of(o);

	if (p && p->fleeting) {
		text_bar(t, p);
	} else {
		bar_wipe(t);
		if (p)
			text_line(t, p);
	}
	fflush(t->err);
}

static void text_error(struct output *o, int exit_code, const char *message, const char *next)
{
	struct text *t = text_of(o);
	const struct screen *s = t->err_screen;
	char ascii[SAID_BYTES];

	(void)exit_code;
	fflush(t->out);
	bar_wipe(t);
	fprintf(t->err, "%sckptctl:%s ", screen_style(s, STYLE_BAD), screen_plain(s, STYLE_BAD));
	screen_wrap(t->err, screen_ascii(s, message, ascii, sizeof ascii), s->width, 9, 2);
	if (next) {
		fprintf(t->err, "  %snext:%s ", screen_style(s, STYLE_STRONG),
			screen_plain(s, STYLE_STRONG));
		screen_wrap(t->err, screen_ascii(s, next, ascii, sizeof ascii), s->width, 8, 8);
	}
}

static void text_free(struct output *o)
{
	struct text *t = text_of(o);

	grid_free(t->labels);
	grid_free(t->table);
	free(t);
}

static const struct output_ops text_ops = {
	.begin = text_begin,
	.line = text_line_begin,
	.put = text_put,
	.object = text_object,
	.list = text_list,
	.row = text_row,
	.close = text_close,
	.say = text_say,
	.progress = text_progress,
	.end = text_end,
	.error = text_error,
	.free = text_free,
};

struct output *output_text_new(FILE *out, const struct screen *out_screen, FILE *err,
			       const struct screen *err_screen)
{
	struct text *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	t->o.ops = &text_ops;
	t->out = out;
	t->err = err;
	t->out_screen = out_screen;
	t->err_screen = err_screen;
	return &t->o;
}
