/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg.c - see svg.h. Called by map_svg.c, flow_draw.c and steps_svg.c.
 * Invariant: no byte of a name reaches the stream before screen_clean and the escaping have seen
 * it.
 */
#include "ckpt/draw/svg.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/screen.h"
#include <math.h>
#include <stdarg.h>

#define TEXT_BYTES 4096
#define SHADE_COLOUR 5u	 /* blue, whose ink is white */
#define SHADE_LEAST 0.15 /* opacity of what is nearly nothing */
#define SHADE_EMPTY 0.4	 /* of nothing, in grey */
#define PART_LEAST 0.25	 /* opacity of a block of which a little is there, */
#define PART_MOST 0.75	 /* and of one of which nearly all is */
#define HEAD 5.0	 /* length of the head of a thin arrow */
#define SHADE_DARK 0.75	 /* where the page's own ink is no longer readable */

static const struct {
	const char *fill, *ink;
} colours[SVG_COLOURS] = {
	{ "#56b4e9", "#000" }, { "#e69f00", "#000" }, { "#009e73", "#000" }, { "#f0e442", "#000" },
	{ "#cc79a7", "#000" }, { "#0072b2", "#fff" }, { "#d55e00", "#000" }, { "#bbbbbb", "#000" },
};

static void text_escape(FILE *f, const char *s)
{
	char clean[TEXT_BYTES];

	for (const char *p = screen_clean(s, clean, sizeof clean); *p; p++) {
		switch (*p) {
		case '&':
			fputs("&amp;", f);
			break;
		case '<':
			fputs("&lt;", f);
			break;
		case '>':
			fputs("&gt;", f);
			break;
		case '"':
			fputs("&quot;", f);
			break;
		default:
			fputc(*p, f);
		}
	}
}

void svg_begin(FILE *f, double width, double height, const char *title)
{
	fprintf(f,
		SVG_MARK
		"\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
		"viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n<title>",
		width, height, width, height);
	text_escape(f, title);
	fputs("</title>\n<style>\n"
	      "text{font:11px ui-monospace,Menlo,Consolas,\"DejaVu Sans Mono\",monospace}\n"
	      ".bg{fill:#fff}.t{fill:#1b1d22}.h{fill:#1b1d22;font-size:15px;font-weight:bold}"
	      ".f{fill:#666a73}.l{stroke:#666a73}.b{stroke:#fff}\n"
	      ".k8{fill:none;pointer-events:all;stroke:#666a73;stroke-dasharray:3 2}.k9{fill:#d3d5da}.o8,.o9{fill:#1b1d22}\n",
	      f);
	for (uint32_t i = 0; i < SVG_COLOURS; i++)
		fprintf(f, ".k%u{fill:%s}.o%u{fill:%s}.s%u{stroke:%s}", i, colours[i].fill, i,
			colours[i].ink, i, colours[i].fill);
	fputs("\n@media (prefers-color-scheme:dark){.bg{fill:#16181d}.t,.h{fill:#e8e9ec}"
	      ".f{fill:#a3a7b0}.l{stroke:#a3a7b0}.b{stroke:#16181d}.k8{stroke:#a3a7b0}"
	      ".k9{fill:#3a3d45}.o8,.o9{fill:#e8e9ec}}\n</style>\n",
	      f);
	fprintf(f, "<rect class=\"bg\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
}

static void tip_put(FILE *f, const char *tip)
{
	fputs("<title>", f);
	text_escape(f, tip);
	fputs("</title>", f);
}

static void rect_end(FILE *f, const char *tip)
{
	if (!tip) {
		fputs("/>\n", f);
		return;
	}
	fputc('>', f);
	tip_put(f, tip);
	fputs("</rect>\n", f);
}

void svg_rect(FILE *f, double x, double y, double width, double height, uint32_t colour,
	      const char *tip)
{
	fprintf(f, "<rect class=\"b k%u\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"",
		colour, x, y, width, height);
	rect_end(f, tip);
}

void svg_part(FILE *f, double x, double y, double width, double height, uint32_t colour,
	      double share)
{
	fprintf(f, "<rect class=\"k%u\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"",
		share > 0 ? colour : (uint32_t)SVG_NONE, x, y, width, height);
	if (share > 0 && share < 1)
		fprintf(f, " fill-opacity=\"%.3f\"", PART_LEAST + (PART_MOST - PART_LEAST) * share);
	rect_end(f, NULL);
}

void svg_arrow(FILE *f, double x0, double y0, double x1, double y1, double thick, uint32_t colour,
	       const char *tip)
{
	double dx = x1 - x0, dy = y1 - y0, len = sqrt(dx * dx + dy * dy), head = HEAD + thick;

	if (len < head)
		return;
	dx *= head / len;
	dy *= head / len;
	fprintf(f,
		"<g class=\"k%u s%u\"><path fill=\"none\" stroke-width=\"%.2f\" d=\"M%.2f %.2fL%.2f "
		"%.2f\"/><path stroke=\"none\" d=\"M%.2f %.2fL%.2f %.2fL%.2f %.2fz\"/>",
		colour, colour, thick, x0, y0, x1 - dx, y1 - dy, x1, y1, x1 - dx - dy / 2,
		y1 - dy + dx / 2, x1 - dx + dy / 2, y1 - dy - dx / 2);
	tip_put(f, tip);
	fputs("</g>\n", f);
}

void svg_shade(FILE *f, double x, double y, double width, double height, double share,
	       const char *tip)
{
	double opacity = share > 0 ? SHADE_LEAST + (1 - SHADE_LEAST) * share : SHADE_EMPTY;

	fprintf(f,
		"<rect class=\"b k%u\" fill-opacity=\"%.3f\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
		"height=\"%.2f\"",
		share > 0 ? SHADE_COLOUR : (uint32_t)SVG_MANY, opacity, x, y, width, height);
	rect_end(f, tip);
}

uint32_t svg_shade_ink(double share)
{
	return share > SHADE_DARK ? SVG_ON + SHADE_COLOUR : SVG_TEXT;
}

void svg_text(FILE *f, double x, double y, enum svg_anchor anchor, uint32_t ink, const char *fmt,
	      ...)
{
	static const char *const name[] = { "start", "middle", "end" };
	static const char *const plain[] = { "t", "h", "f" };
	char text[TEXT_BYTES], cls[16];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (ink >= SVG_ON)
		snprintf(cls, sizeof cls, "o%u", ink - SVG_ON);
	else
		snprintf(cls, sizeof cls, "%s", plain[ink]);
	fprintf(f, "<text class=\"%s\" x=\"%.2f\" y=\"%.2f\" text-anchor=\"%s\">", cls, x, y,
		name[anchor]);
	text_escape(f, text);
	fputs("</text>\n", f);
}

void svg_line(FILE *f, double x0, double y0, double x1, double y1)
{
	fprintf(f, "<line class=\"l\" x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\"/>\n", x0, y0,
		x1, y1);
}

void svg_end(FILE *f)
{
	fputs("</svg>\n", f);
}
