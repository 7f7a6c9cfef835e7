/* SPDX-License-Identifier: Apache-2.0 */
/* screen.h - what the other end of a stream can show, and text fitted to it. Used by the text
 * output, the help and the progress line. */
#ifndef CKPT_CLI_SCREEN_H
#define CKPT_CLI_SCREEN_H
#include "ckpt/cli/output.h"

struct screen {
	bool terminal;
	bool colour;
	bool unicode;
	uint32_t width; /* columns; 0: no limit, because it is no terminal */
};

/* color: "auto", "always", "never" or NULL for auto. By NO_COLOR's rule a set and non-empty
 * NO_COLOR means never, unless always was asked for. */
void screen_probe(FILE *f, const char *color, bool ascii, struct screen *ret_screen);

/* The escape sequences around text of a style; "" without colour. */
const char *screen_style(const struct screen *s, enum cell_style style);
const char *screen_plain(const struct screen *s, enum cell_style style);

/* Columns that valid UTF-8 text takes: one per character. */
uint32_t screen_columns(const char *text);

/* Copy at most bytes-1 bytes with control characters and what is no UTF-8 replaced by '?': names
 * come out of files. Never cuts a character. */
char *screen_clean(const char *text, char *buf, size_t bytes);

/* Words of text, cleaned and broken at width (0: only where the text has a '\n'), every line
 * behind `indent` blanks but the first, which continues a line of `column` columns. */
void screen_wrap(FILE *f, const char *text, uint32_t width, uint32_t column, uint32_t indent);
#endif
