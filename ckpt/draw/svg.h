/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg.h - pictures for bug reports: one self-contained SVG file, readable on light and on dark
 * pages, in colours that the colour-blind tell apart (Okabe and Ito). Texts are cleaned and escaped
 * here; coordinates are pixels. Used by maps, flow_draw and
 * steps_draw.
 */
#ifndef CKPT_DRAW_SVG_H
#define CKPT_DRAW_SVG_H
#include <stdint.h>
#include <stdio.h>

/* What each picture begins with: a file that begins so may be overwritten by another one. */
#define SVG_MARK "<!-- ckptctl: a picture that may be overwritten -->"
#define SVG_COLOURS 8
#define SVG_NONE SVG_COLOURS	   /* held by no rank */
#define SVG_MANY (SVG_COLOURS + 1) /* left out, or several together */
#define SVG_CHAR 6.7		   /* width of a character of a label */
#define SVG_LINE 16.0		   /* height of a line of text */

enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END };
enum svg_ink { SVG_TEXT, SVG_TITLE, SVG_FAINT, SVG_ON }; /* ON + a colour: on a block of it */

void svg_begin(FILE *f, double width, double height, const char *title);
/* colour: below SVG_COLOURS, SVG_NONE, SVG_MANY. tip: shown where the mouse stands; NULL: none. */
void svg_rect(FILE *f, double x, double y, double width, double height, uint32_t colour,
	      const char *tip);
/* The same for a block of which a share (0 .. 1) is in this colour; 0: an outline. */
void svg_part(FILE *f, double x, double y, double width, double height, uint32_t colour,
	      double share);
/* An arrow whose tip is at x1, y1; thick: the width of its line. */
void svg_arrow(FILE *f, double x0, double y0, double x1, double y1, double thick, uint32_t colour,
	       const char *tip);
/* A cell of a heat map: share (0 .. 1) of the strongest; 0 is empty. Its text's ink:
 * svg_shade_ink. */
void svg_shade(FILE *f, double x, double y, double width, double height, double share,
	       const char *tip);
uint32_t svg_shade_ink(double share);
/* y: the base line. */
void svg_text(FILE *f, double x, double y, enum svg_anchor anchor, uint32_t ink, const char *fmt,
	      ...) __attribute__((format(printf, 6, 7)));
void svg_line(FILE *f, double x0, double y0, double x1, double y1);
void svg_end(FILE *f);
#endif
