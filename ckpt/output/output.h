/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - a document of named values, lists and objects, which is printed as text for people or
 * as one JSON document. Verbs print through it, so that both are the same program. An output
 * belongs to one thread.
 *
 * A value is put once. Its *column* has a key (JSON) and a head (text: the table's heading, or the
 * label in front of it). A column without a key is for people only, a column without a head for
 * programs only. The same holds for a list without a key, and for a list without columns, with all
 * that is inside. Cells are of the project's own kinds (bytes, a step, an age, an index set): text
 * makes them readable, JSON exact.
 *
 *	output_begin(schema)  put(col, cell)...
 *		list(key, cols, n)  row()  put(&cols[i], cell)...  close()  ...  close()  output_end()
 *
 * A list inside a row is for programs only. Within one object a key is put once.
 *
 * JSON is either one document (output_begin), or JSON Lines (output_line): each line a document
 * with a "type". A verb that may take long has lines: any number of "progress" while its "summary",
 * which it began before them, is still open, and the summary comes last. status -w prints one line
 * each time.
 *
 * A document is written as it comes, 64 KiB at a time; a line is kept until it is complete.
 * Whatever happens, what was printed parses. If a document is given up (the output is freed without
 * output_end, or memory ran out), it is not printed at all as long as it fits in those 64 KiB;
 * otherwise it is closed at that point, and its last member is "complete": false. A line that is
 * given up is not printed. In both cases the error is on stderr and in the exit code.
 */
#ifndef CKPT_OUTPUT_H
#define CKPT_OUTPUT_H
#include "ckpt/base/util.h"
#include "ckpt/draw/grid.h"
#include "ckpt/layout/layout.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum cell_kind {
	CELL_NONE,   /* JSON null, text "-" */
	CELL_TEXT,   /* a string; foreign bytes are made printable */
	CELL_NUMBER, /* 12500 */
	CELL_COUNT,  /* 1,203,200 */
	CELL_BYTES,  /* 1.19 MiB; JSON: bytes */
	CELL_REAL,
	CELL_FLAG,	  /* yes, no */
	CELL_TIME,	  /* ns since 1970: local time and age; JSON: RFC 3339, UTC */
	CELL_AGE,	  /* the same as an age: "2m" */
	CELL_FINGERPRINT, /* 16 hexadecimal digits */
	CELL_ID,	  /* 16 bytes in hexadecimal */
	CELL_SHAPE,	  /* [8192, 1024] */
	CELL_SET,	  /* [0:2048, :]; JSON: per dimension [start, stop] or a progression */
};

struct cell {
	enum cell_kind kind;
	enum cell_style style;
	union {
		const char *text;
		uint64_t n;
		double real;
		const uint8_t *id;
	};
	const uint64_t *shape; /* SHAPE: n dimensions; SET: the tensor's */
	const struct indexset *set;
};

static inline struct cell cell_none(void)
{
	return (struct cell){ .kind = CELL_NONE };
}
static inline struct cell cell_text(const char *s)
{
	return (struct cell){ .kind = CELL_TEXT, .text = s };
}
static inline struct cell cell_of(enum cell_kind kind, uint64_t n)
{
	return (struct cell){ .kind = kind, .n = n };
}
static inline struct cell cell_number(uint64_t n)
{
	return cell_of(CELL_NUMBER, n);
}
static inline struct cell cell_count(uint64_t n)
{
	return cell_of(CELL_COUNT, n);
}
static inline struct cell cell_bytes(uint64_t bytes)
{
	return cell_of(CELL_BYTES, bytes);
}
static inline struct cell cell_flag(bool yes)
{
	return cell_of(CELL_FLAG, yes);
}
/* CELL_NONE for a missing word: NULL or empty. */
static inline struct cell cell_word(const char *s)
{
	return s && *s ? cell_text(s) : cell_none();
}
/* CELL_NONE where n is the value that means "none". */
static inline struct cell cell_unless(enum cell_kind kind, uint64_t n, uint64_t none)
{
	return n == none ? cell_none() : cell_of(kind, n);
}
static inline struct cell cell_real(double x)
{
	return (struct cell){ .kind = CELL_REAL, .real = x };
}
static inline struct cell cell_id(const uint8_t *id)
{
	return (struct cell){ .kind = CELL_ID, .id = id };
}
static inline struct cell cell_shape(uint32_t ndim, const uint64_t *shape)
{
	return (struct cell){ .kind = CELL_SHAPE, .n = ndim, .shape = shape };
}
static inline struct cell cell_set(const struct indexset *set, const uint64_t *shape)
{
	return (struct cell){ .kind = CELL_SET, .set = set, .shape = shape };
}
/* c where it is known, else none; c is evaluated only where it is known. */
#define cell_if(known, c) ((known) ? (c) : cell_none())
static inline struct cell cell_styled(struct cell c, enum cell_style style)
{
	c.style = style;
	return c;
}

struct output {
	const struct output_ops *ops;
	/* for programs: put also what people do not read at a glance, as every piece of every
	 * tensor */
	bool machine;
	bool ascii;  /* JSON: no character beyond ASCII; text asks its screen */
	bool failed; /* out of memory: the document is not complete */
};

/* How far something is. what: its name, "step 90". Unknown: total 0, seconds_left UINT64_MAX. */
struct output_progress {
	const char *what;
	uint64_t done, total; /* bytes */
	double rate;	      /* bytes per second */
	uint64_t seconds_left;
	bool fleeting; /* text: a bar, which the next one overwrites; else a line that stays */
};

struct output_ops {
	void (*begin)(struct output *o, const char *schema);
	void (*line)(struct output *o, const char *schema, const char *type);
	void (*put)(struct output *o, const struct column *col, struct cell c);
	/* Each opens something, and close closes the innermost: a member that is an object (in text
	 * its values simply follow), a list, an element of the list. */
	void (*object)(struct output *o, const char *key);
	void (*list)(struct output *o, const char *key, const struct column *cols, uint32_t ncol);
	void (*row)(struct output *o);
	void (*close)(struct output *o);
	/* People only: a line, wrapped on a terminal with `indent` blanks before what follows.
	 * mark, if any, is what has the style. */
	void (*say)(struct output *o, enum cell_style style, const char *mark, uint32_t indent,
		    const char *text);
	/* Between begin and end, wherever the document stands. Text: to stderr. JSON: a line with
	 * the schema of the open line; nothing in a document. NULL: wipe the bar. */
	void (*progress)(struct output *o, const struct output_progress *p);
	void (*end)(struct output *o); /* the document is complete: print it */
	void (*error)(struct output *o, int exit_code, const char *message,
		      const char *next); /* stderr; next may be NULL */
	void (*free)(struct output *o);
};

/* NULL when out of memory. screens are of out and err, and must outlive the output. */
struct output *output_text_new(FILE *out, const struct screen *out_screen, FILE *err,
			       const struct screen *err_screen);
struct output *output_json_new(FILE *out, FILE *err, bool pretty);

static inline void output_begin(struct output *o, const char *schema)
{
	o->ops->begin(o, schema);
}
/* For a program a line of its own ("type": type), printed by output_end at once. */
static inline void output_line(struct output *o, const char *schema, const char *type)
{
	o->ops->line(o, schema, type);
}
static inline void output_end(struct output *o)
{
	o->ops->end(o);
}
static inline void output_put(struct output *o, const struct column *col, struct cell c)
{
	o->ops->put(o, col, c);
}
/* A value with a key, with a label, or with both: what one column says, without a table. */
static inline void output_field(struct output *o, const char *key, const char *head, struct cell c)
{
	output_put(o, &(const struct column){ .key = key, .head = head }, c);
}
static inline void output_key(struct output *o, const char *key, struct cell c)
{
	output_field(o, key, NULL, c);
}
static inline void output_head(struct output *o, const char *head, struct cell c)
{
	output_field(o, NULL, head, c);
}
/* A line of text behind a label; head "": it goes on below the one before. */
void output_label(struct output *o, const char *head, enum cell_style style, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static inline void output_object(struct output *o, const char *key)
{
	o->ops->object(o, key);
}
static inline void output_list(struct output *o, const char *key, const struct column *cols,
			       uint32_t ncol)
{
	o->ops->list(o, key, cols, ncol);
}
static inline void output_row(struct output *o)
{
	o->ops->row(o);
}
static inline void output_close(struct output *o)
{
	o->ops->close(o);
}
/* The first n columns' cells of the open row. */
static inline void output_cells(struct output *o, const struct column *cols, const struct cell *c,
				uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		output_put(o, &cols[i], c[i]);
}
/* A row of an array of columns, with a cell for each of them. */
#define OUTPUT_ROW(o, cols, ...)                                                        \
	do {                                                                            \
		const struct cell cells_[] = { __VA_ARGS__ };                           \
		_Static_assert(ARRAY_LEN(cells_) == ARRAY_LEN(cols), "cells, columns"); \
		output_row(o);                                                          \
		output_cells(o, cols, cells_, ARRAY_LEN(cells_));                       \
		output_close(o);                                                        \
	} while (0)
#endif
