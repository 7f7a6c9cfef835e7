/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen.c - what a stream can show, and text fitted to it.
 * Invariant: no byte of a name reaches a terminal before screen_clean has seen it.
 */
#include "ckpt/cli/screen.h"
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
	bool dumb = !term || !*term || !strcmp(term, "dumb");

	*ret_screen = (struct screen){
		.terminal = terminal,
		.colour = terminal && !dumb && !(no_color && *no_color),
		.unicode = terminal && !ascii && locale_is_utf8(),
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

uint32_t screen_columns(const char *text)
{
	uint32_t n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

/* Length of the valid UTF-8 character at s that is no control character; 0: there is none. */
static uint32_t utf8_len(const unsigned char *s)
{
	uint32_t n = *s < 0x80		       ? 1
		     : *s >= 0xc2 && *s < 0xe0 ? 2
		     : *s >= 0xe0 && *s < 0xf0 ? 3
		     : *s >= 0xf0 && *s < 0xf5 ? 4
					       : 0;

	if (n == 1)
		return *s >= ' ' && *s != 0x7f;
	for (uint32_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* C1 controls, surrogates, overlong and too large forms. */
	if ((n == 2 && s[0] == 0xc2 && s[1] < 0xa0) || (n == 3 && s[0] == 0xed && s[1] >= 0xa0) ||
	    (n == 3 && s[0] == 0xe0 && s[1] < 0xa0) || (n == 4 && s[0] == 0xf0 && s[1] < 0x90) ||
	    (n == 4 && s[0] == 0xf4 && s[1] >= 0x90))
		return 0;
	return n;
}

char *screen_clean(const char *text, char *buf, size_t bytes)
{
	size_t at = 0;

	while (*text) {
		uint32_t n = utf8_len((const unsigned char *)text);

		if (at + MAX(n, 1u) >= bytes)
			break;
		if (n)
			memcpy(buf + at, text, n);
		else
			buf[at] = '?';
		n = MAX(n, 1u);
		at += n;
		text += n;
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

void screen_wrap(FILE *f, const char *text, uint32_t width, uint32_t column, uint32_t indent)
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
	fputc('\n', f);
}
