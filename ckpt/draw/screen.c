/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen.c - what a stream can show, and text fitted to it.
 * Invariant: no byte of a name reaches a terminal before screen_clean has seen it.
 */
#include "ckpt/draw/screen.h"
#include "ckpt/base/util.h"
#include <sys/ioctl.h>

#define WIDTH_DEFAULT 80
#define WIDTH_MIN 40 /* narrower terminals break the lines themselves */

static uint32_t width_of(int fd)
{
	const char *env = getenv("COLUMNS");
	unsigned long n = env ? strtoul(env, NULL, 10) : 0;
	struct winsize w;

	if (!n && !ioctl(fd, TIOCGWINSZ, &w))
		n = w.ws_col;
	if (!n || n > UINT16_MAX)
		n = WIDTH_DEFAULT;
	return (uint32_t)MAX(n, (unsigned long)WIDTH_MIN);
}

/* The locale's name decides, as setlocale(3) would read it; the process's own locale stays "C",
 * so that numbers have a point. */
static bool locale_is_utf8(void)
{
	static const char *const var[] = { "LC_ALL", "LC_CTYPE", "LANG" };

	for (uint32_t i = 0; i < ARRAY_LEN(var); i++) {
		const char *s = getenv(var[i]);

		if (s && *s)
			return strcasestr(s, "utf-8") || strcasestr(s, "utf8");
	}
	return false;
}

void screen_probe(FILE *f, const char *color, bool ascii, struct screen *ret_screen)
{
	const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
	int fd = fileno(f);
	bool terminal = fd >= 0 && isatty(fd);
	bool dumb = !term || !*term || !strcmp(term, "dumb"), utf8 = locale_is_utf8();

	*ret_screen = (struct screen){
		.terminal = terminal,
		.dumb = dumb,
		.colour = terminal && !dumb && !(no_color && *no_color),
		.unicode = terminal && !ascii && utf8,
		.ascii = ascii || (terminal && !utf8),
		.width = terminal ? width_of(fd) : 0,
	};
	if (color && !strcmp(color, "always"))
		ret_screen->colour = true;
	if (color && !strcmp(color, "never"))
		ret_screen->colour = false;
}

const char *screen_style(const struct screen *s, enum cell_style style)
{
	if (!s->colour)
		return "";
	switch (style) {
	case STYLE_PLAIN:
		return "";
	case STYLE_STRONG:
		return "\033[1m";
	case STYLE_GOOD:
		return "\033[32m";
	case STYLE_WARN:
		return "\033[33m";
	case STYLE_BAD:
		return "\033[1;31m";
	case STYLE_DIM:
		return "\033[2m";
	}
	return "";
}

const char *screen_plain(const struct screen *s, enum cell_style style)
{
	return s->colour && style != STYLE_PLAIN ? "\033[0m" : "";
}

/* Of the 256 of a terminal those near the colours of Okabe and Ito, all with black on them. */
static const uint8_t palette[SCREEN_COLOURS] = { 117, 214, 36, 227, 175, 74, 209, 250 };

const char *screen_on(const struct screen *s, uint32_t colour, char buf[static SCREEN_COLOUR_BYTES])
{
	*buf = 0;
	if (s->colour)
		snprintf(buf, SCREEN_COLOUR_BYTES, "\033[30;48;5;%um", palette[colour]);
	return buf;
}

const char *screen_in(const struct screen *s, uint32_t colour, char buf[static SCREEN_COLOUR_BYTES])
{
	*buf = 0;
	if (s->colour)
		snprintf(buf, SCREEN_COLOUR_BYTES, "\033[38;5;%um", palette[colour]);
	return buf;
}

const char *screen_shade(const struct screen *s, double share)
{
	static const char *const block[SCREEN_SHADES] = { "\u2591", "\u2592", "\u2593", "\u2588" };
	static const char *const plain[SCREEN_SHADES] = { "-", "+", "*", "#" };
	uint32_t level = share > 0 ? (uint32_t)(share * SCREEN_SHADES) : 0;

	if (share <= 0)
		return s->unicode ? "\u00b7" : ".";
	level = MIN(level, SCREEN_SHADES - 1);
	return s->unicode ? block[level] : plain[level];
}

const char *screen_junction(const struct screen *s, bool up, bool down, bool left, bool right)
{
	static const char *const box[16] = {
		" ",	  "\u2576", "\u2574", "\u2500", "\u2577", "\u250c", "\u2510", "\u252c",
		"\u2575", "\u2514", "\u2518", "\u2534", "\u2502", "\u251c", "\u2524", "\u253c",
	};
	uint32_t k = (uint32_t)up << 3 | (uint32_t)down << 2 | (uint32_t)left << 1 | right;

	if (s->unicode)
		return box[k];
	return !k ? " " : !(k & 3) ? "|" : !(k & 12) ? "-" : "+";
}

/* The character at s and its bytes; 0 bytes: it is no UTF-8. */
static uint32_t utf8_decode(const char *s, uint32_t *ret)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *p = (const unsigned char *)s;
	uint32_t n = *p < 0x80 ? 1 : *p < 0xc0 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
	uint32_t c = n == 1 ? *p : *p & (0xffu >> (n + 1));

	for (uint32_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	*ret = c;
	/* Overlong forms, surrogates, and what is beyond Unicode. */
	return c < least[n] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff || *p > 0xf4 ? 0 : n;
}

struct range {
	uint32_t first, last;
};

static bool in_range(uint32_t c, const struct range *r, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (c >= r[i].first && c <= r[i].last)
			return true;
	return false;
}

/* Is it obeyed instead of being shown? */
static bool is_control(uint32_t c)
{
	static const struct range controls[] = {
		{ 0, 0x1f },	    { 0x7f, 0x9f },	{ 0x61c, 0x61c },
		{ 0x200b, 0x200f }, { 0x2028, 0x202e }, { 0x2060, 0x206f },
		{ 0xfeff, 0xfeff }, { 0xfff9, 0xfffb }, { 0xe0000, 0xe007f },
	};

	return in_range(c, controls, ARRAY_LEN(controls));
}

/* Unicode's East Asian Width W and F, and its nonspacing marks, as far as names have them. */
static uint32_t char_columns(uint32_t c)
{
	static const struct range marks[] = {
		{ 0x300, 0x36f },   { 0x483, 0x489 },	{ 0x591, 0x5bd },
		{ 0x64b, 0x65f },   { 0x1ab0, 0x1aff }, { 0x1dc0, 0x1dff },
		{ 0x20d0, 0x20ff }, { 0xfe00, 0xfe0f }, { 0xfe20, 0xfe2f },
	};
	static const struct range wide[] = {
		{ 0x1100, 0x115f },   { 0x231a, 0x231b },   { 0x2e80, 0x303e },
		{ 0x3041, 0x33ff },   { 0x3400, 0x4dbf },   { 0x4e00, 0xa4cf },
		{ 0xa960, 0xa97f },   { 0xac00, 0xd7a3 },   { 0xf900, 0xfaff },
		{ 0xfe30, 0xfe6f },   { 0xff00, 0xff60 },   { 0xffe0, 0xffe6 },
		{ 0x1f300, 0x1f64f }, { 0x1f680, 0x1f6ff }, { 0x1f900, 0x1f9ff },
		{ 0x1fa70, 0x1faff }, { 0x20000, 0x3fffd },
	};

	if (c < 0x300)
		return 1;
	return in_range(c, marks, ARRAY_LEN(marks)) ? 0
	       : in_range(c, wide, ARRAY_LEN(wide)) ? 2
						    : 1;
}

/* Bytes of the character at s, or of what is none. */
static uint32_t char_next(const char *s, uint32_t *ret_columns)
{
	uint32_t c, n;

	*ret_columns = 1;
	if (!((unsigned char)*s & 0x80))
		return 1;
	n = utf8_decode(s, &c);
	if (n)
		*ret_columns = char_columns(c);
	return MAX(n, 1u);
}

uint32_t screen_columns(const char *text)
{
	uint32_t sum = 0, columns;

	for (; *text; sum += columns)
		text += char_next(text, &columns);
	return sum;
}

size_t screen_prefix(const char *text, uint32_t n)
{
	const char *p = text;
	uint32_t columns;

	while (*p) {
		uint32_t bytes = char_next(p, &columns);

		if (columns > n)
			break;
		n -= columns;
		p += bytes;
	}
	return (size_t)(p - text);
}

const char *screen_ascii(const struct screen *s, const char *text, char *buf, size_t bytes)
{
	size_t at = 0;

	if (!s->ascii)
		return text;
	for (; *text && at + 1 < bytes; text++)
		if (((unsigned char)*text & 0xc0) != 0x80)
			buf[at++] = (char)((unsigned char)*text < 0x80 ? *text : '?');
	buf[at] = 0;
	return buf;
}

char *screen_clean(const char *text, char *buf, size_t bytes)
{
	size_t at = 0;

	while (*text) {
		uint32_t c, n, len;
		bool shown;

		while (*text >= ' ' && *text < 0x7f && at + 1 < bytes) /* nearly all there is */
			buf[at++] = *text++;
		n = utf8_decode(text, &c);
		shown = n && !is_control(c);
		len = shown ? n : 1;
		if (!*text || at + len >= bytes)
			break;
		if (shown)
			memcpy(buf + at, text, n);
		else
			buf[at] = '?';
		at += len;
		text += MAX(n, 1u);
	}
	buf[at] = 0;
	return buf;
}

/* The word at s without its end: cleaned into word. Returns the bytes of s that it took. */
static size_t word_next(const char *s, char *word, size_t bytes)
{
	char raw[1024];
	size_t len = MIN(strcspn(s, " \n"), sizeof raw - 1);

	memcpy(raw, s, len);
	raw[len] = 0;
	screen_clean(raw, word, bytes);
	return len;
}

void screen_flow(FILE *f, const char *text, uint32_t width, uint32_t column, uint32_t indent)
{
	while (*text) {
		uint32_t blanks = (uint32_t)strspn(text, " "), cols;
		char word[1024];

		text += blanks;
		if (*text == '\n') {
			column = indent;
			if (*++text)
				fprintf(f, "\n%*s", (int)indent, "");
			continue;
		}
		text += word_next(text, word, sizeof word);
		cols = screen_columns(word);
		if (width && column > indent && column + blanks + cols > width) {
			fprintf(f, "\n%*s", (int)indent, "");
			column = indent;
			blanks = 0;
		}
		fprintf(f, "%*s%s", (int)blanks, "", word);
		column += blanks + cols;
	}
}

void screen_wrap(FILE *f, const char *text, uint32_t width, uint32_t column, uint32_t indent)
{
	screen_flow(f, text, width, column, indent);
	fputc('\n', f);
}
