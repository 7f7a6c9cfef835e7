/* SPDX-License-Identifier: Apache-2.0 */
/* screen.h - what the other end of a stream can show, and text fitted to it. Used by
 * drawings and columns, the text output, the help and the progress line. */
#ifndef CKPT_DRAW_SCREEN_H
#define CKPT_DRAW_SCREEN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum cell_style { STYLE_PLAIN, STYLE_STRONG, STYLE_GOOD, STYLE_WARN, STYLE_BAD, STYLE_DIM };

struct screen {
	bool terminal;
	bool dumb; /* a terminal whose lines cannot be overwritten */
	bool colour;
	bool unicode;	/* lines and blocks are drawn with characters beyond ASCII */
	bool ascii;	/* not even names may have them */
	uint32_t width; /* columns; 0: no limit, because it is no terminal */
};

/* color: "auto", "always", "never" or NULL for auto. By NO_COLOR's rule a set and non-empty
 * NO_COLOR means never, unless always was asked for. */
void screen_probe(FILE *f, const char *color, bool ascii, struct screen *ret_screen);

/* The escape sequences around text of a style; "" without colour. */
const char *screen_style(const struct screen *s, enum cell_style style);
const char *screen_plain(const struct screen *s, enum cell_style style);

/* The colours that drawings tell things apart by, near those of svg.h: black on one of them, or
 * text in it. buf, which is "" without colour; screen_plain of STYLE_STRONG ends it. */
#define SCREEN_COLOURS 8u
#define SCREEN_COLOUR_BYTES 32
const char *screen_on(const struct screen *s, uint32_t colour,
		      char buf[static SCREEN_COLOUR_BYTES]);
const char *screen_in(const struct screen *s, uint32_t colour,
		      char buf[static SCREEN_COLOUR_BYTES]);
/* One character, as dark as a share (0 .. 1) of the strongest: nothing, up to a quarter, ... */
#define SCREEN_SHADES 4u
const char *screen_shade(const struct screen *s, double share);
/* Where lines of a drawing meet: has it one upwards, downwards, to the left, to the right? */
const char *screen_junction(const struct screen *s, bool up, bool down, bool left, bool right);

/* Columns that UTF-8 text takes: one per character, two of wide ones, none of what is put on top of
 * the character before. */
uint32_t screen_columns(const char *text);
/* As much of text as fits n columns: its bytes. Never cuts a character. */
size_t screen_prefix(const char *text, uint32_t n);

/* Copy at most bytes-1 bytes with '?' in place of what is no UTF-8 and of characters that are not
 * seen but obeyed (controls, directions): names come out of files. Never cuts a character. */
char *screen_clean(const char *text, char *buf, size_t bytes);
/* text, or, where the screen takes ASCII alone and it has more, a copy with '?' for each other
 * character; buf may be text. */
const char *screen_ascii(const struct screen *s, const char *text, char *buf, size_t bytes);

/* Words of text, cleaned and broken at width (0: only where the text has a '\n'), every line
 * behind `indent` blanks but the first, which continues a line of `column` columns. */
void screen_wrap(FILE *f, const char *text, uint32_t width, uint32_t column, uint32_t indent);
/* The same without the end of the last line. */
void screen_flow(FILE *f, const char *text, uint32_t width, uint32_t column, uint32_t indent);
#endif
