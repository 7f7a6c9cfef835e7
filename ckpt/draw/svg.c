/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg.c - see svg.h. Called by map_svg.c and flow_draw.c.
 * Invariant: no byte of a name reaches the stream before screen_clean and the escaping have seen
 * it.
 */
#include "ckpt/draw/svg.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/screen.h"
#include <stdarg.h>

#define TEXT_BYTES 4096
#define SHADE_COLOUR 5u	 /* blue, whose ink is white */
#define SHADE_LEAST 0.15 /* opacity of what is nearly nothing */
#define SHADE_EMPTY 0.4	 /* of nothing, in grey */
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
	      ".k8{fill:none;stroke:#666a73;stroke-dasharray:3 2}.k9{fill:#e4e5e9}.o8,.o9{fill:#1b1d22}\n",
	      f);
	for (uint32_t i = 0; i < SVG_COLOURS; i++)
		fprintf(f, ".k%u{fill:%s}.o%u{fill:%s}", i, colours[i].fill, i, colours[i].ink);
	fputs("\n@media (prefers-color-scheme:dark){.bg{fill:#16181d}.t,.h{fill:#e8e9ec}"
	      ".f{fill:#a3a7b0}.l{stroke:#a3a7b0}.b{stroke:#16181d}.k8{stroke:#a3a7b0}"
	      ".k9{fill:#3a3d45}.o8,.o9{fill:#e8e9ec}}\n</style>\n",
	      f);
	fprintf(f, "<rect class=\"bg\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
}

static void rect_end(FILE *f, const char *tip)
{
	if (!tip) {
		fputs("/>\n", f);
		return;
	}
	fputs("><title>", f);
	text_escape(f, tip);
	fputs("</title></rect>\n", f);
}

void svg_rect(FILE *f, double x, double y, double width, double height, uint32_t colour,
	      const char *tip)
{
	fprintf(f, "<rect class=\"b k%u\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"",
		colour, x, y, width, height);
	rect_end(f, tip);
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
