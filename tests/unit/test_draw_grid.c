/* SPDX-License-Identifier: Apache-2.0 */
/* test_draw_grid.c - text fitted to a screen, and columns that line up. */
#include "ckpt/draw/grid.h"
#include "tests/lib/unit.h"

/* Collects what is printed. */
struct page {
	FILE *f;
	char *text;
	size_t len;
};

static void page_open(struct page *p)
{
	p->f = open_memstream(&p->text, &p->len);
	assert_non_null(p->f);
}

static const char *page_read(struct page *p)
{
	fflush(p->f);
	return p->text;
}

static void page_close(struct page *p)
{
	fclose(p->f);
	free(p->text);
}

TEST(what_a_terminal_would_obey_is_made_visible)
{
	char buf[64];

	assert_string_equal(screen_clean("a\033[31mb\x7f\r\n", buf, sizeof buf), "a?[31mb???");
	assert_string_equal(screen_clean("gr\xc3\xbc\xc3\x9f", buf, sizeof buf),
			    "gr\xc3\xbc\xc3\x9f");
	assert_string_equal(screen_clean("\xc2\x9b"
					 "1m",
					 buf, sizeof buf),
			    "?1m");
	assert_string_equal(screen_clean("\xff\xc3", buf, sizeof buf), "??");
	assert_string_equal(screen_clean("\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80", buf, sizeof buf),
			    "?????????");
	assert_string_equal(screen_clean("ab\xc3\xbc", buf, 4), "ab");
	assert_int_equal(screen_columns("gr\xc3\xbc\xc3\x9f"), 4);
}

TEST(words_are_broken_at_the_width_and_lines_indented)
{
	struct page p;

	page_open(&p);
	screen_wrap(p.f, "one two  three\nfour averyveryverylongword x", 12, 0, 2);
	assert_string_equal(page_read(&p),
			    "one two\n  three\n  four\n  averyveryverylongword\n  x\n");
	page_close(&p);
	page_open(&p);
	screen_wrap(p.f, "a  b   c", 0, 0, 2);
	assert_string_equal(page_read(&p), "a  b   c\n");
	page_close(&p);
}

TEST(what_may_be_left_out_goes_from_the_right)
{
	static const struct column col[] = { { "a", "A", false, FIT_WHOLE },
					     { "b", "B", false, FIT_DROP },
					     { "c", "C", false, FIT_DROP } };
	static const char *const want[] = { "abcdef  123456  uvwxyz\n", "abcdef  123456\n",
					    "abcdef\n" };
	static const uint32_t width[] = { 22, 21, 13 };
	struct grid *g = grid_new(col, 3);

	assert_int_equal(grid_row(g), 0);
	assert_int_equal(grid_cell(g, 0, "abcdef", STYLE_PLAIN), 0);
	assert_int_equal(grid_cell(g, 1, "123456", STYLE_PLAIN), 0);
	assert_int_equal(grid_cell(g, 2, "uvwxyz", STYLE_PLAIN), 0);
	for (uint32_t i = 0; i < 3; i++) {
		struct screen s = { .width = width[i] };
		struct page p;

		page_open(&p);
		grid_print(g, p.f, &s, 0, false);
		assert_string_equal(page_read(&p), want[i]);
		page_close(&p);
	}
	grid_free(g);
}

static struct grid *some_grid(const struct column *col)
{
	static const char *const text[2][4] = { { "model/layers.0.attention.wq.weight", "12", "",
						  "0123456789abcdef" },
						{ "x", "12500", "", "fedcba9876543210" } };
	struct grid *g = grid_new(col, 4);

	assert_non_null(g);
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(grid_row(g), 0);
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(grid_cell(g, i, text[r][i], STYLE_PLAIN), 0);
	}
	return g;
}

static const struct column some_columns[] = { { "a", "TENSOR", false, FIT_LAST },
					      { "b", "N", true, FIT_WHOLE },
					      { "c", "NEVER", false, FIT_WHOLE },
					      { "d", "FP", false, FIT_FIRST } };

TEST(columns_line_up_and_empty_ones_are_left_out)
{
	struct screen s = { 0 };
	struct grid *g = some_grid(some_columns);
	struct page p;

	page_open(&p);
	grid_print(g, p.f, &s, 1, true);
	assert_string_equal(page_read(&p),
			    " TENSOR                                  N  FP\n"
			    " model/layers.0.attention.wq.weight     12  0123456789abcdef\n"
			    " x                                   12500  fedcba9876543210\n");
	page_close(&p);
	grid_free(g);
}

TEST(a_narrow_screen_shortens_the_dispensable_first)
{
	struct screen s = { .width = 50 }, uni = { .width = 40, .unicode = true };
	struct grid *g = some_grid(some_columns);
	struct page p;

	page_open(&p);
	grid_print(g, p.f, &s, 0, false);
	assert_string_equal(page_read(&p), "model/layer..tention.wq.weight     12  012..abcdef\n"
					   "x                               12500  fed..543210\n");
	page_close(&p);
	page_open(&p);
	grid_print(g, p.f, &uni, 0, false);
	assert_non_null(strstr(page_read(&p), "\u2026"));
	for (const char *line = p.text; *line; line = strchr(line, '\n') + 1) {
		char copy[256];

		snprintf(copy, sizeof copy, "%.*s", (int)strcspn(line, "\n"), line);
		assert_true(screen_columns(copy) <= 40);
	}
	page_close(&p);
	grid_free(g);
}
