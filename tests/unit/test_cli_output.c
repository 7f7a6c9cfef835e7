/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_output.c - progress, for people and for programs, and exit codes. */
#include <jansson.h>
#include "ckpt/cli/cli.h"
#include "ckpt/cli/progress.h"
#include "tests/lib/page.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

static uint64_t test_ns;

static uint64_t test_clock(void)
{
	return test_ns;
}

/* A movement of `total` bytes in `n` ticks of `bytes`, each of which takes `ns`. */
static void movement(struct cli *c, uint64_t total, uint32_t n, uint64_t ns, uint64_t bytes)
{
	struct progress x;

	progress_clock = test_clock;
	progress_begin(&x, c, total, "step %d", 12);
	for (uint32_t i = 0; i < n; i++) {
		test_ns += ns;
		progress_tick(&x, bytes);
	}
	progress_end(&x);
	progress_clock = now_ns;
}

static struct cli *some_cli(struct page *out, struct page *err, bool terminal, bool json)
{
	static struct cli c;

	page_open(out);
	page_open(err);
	c = (struct cli)ROW(.out = out->f, .err = err->f, .json = json,
			    .err_screen = { .terminal = terminal, .width = terminal ? 80 : 0 });
	c.o = json ? output_json_new(c.out, c.err, false)
		   : output_text_new(c.out, &c.out_screen, c.err, &c.err_screen);
	assert_non_null(c.o);
	return &c;
}

static void cli_drop(struct cli *c, struct page *out, struct page *err)
{
	c->o->ops->free(c->o);
	page_close(out);
	page_close(err);
}

TEST(progress_on_a_terminal_is_a_bar_that_is_wiped)
{
	struct page out, err;
	struct cli *c = some_cli(&out, &err, true, false);

	movement(c, 1000, 1, NS_PER_S, 500);
	assert_non_null(strstr(page_read(&err), "\rstep 12  ##########..........  50 %  500 B"));
	assert_null(strchr(err.text, '\n'));
	assert_string_equal(err.text + err.len - 4, "\r\033[K");
	cli_drop(c, &out, &err);
}

TEST(a_bar_is_never_wider_than_the_terminal_and_is_wiped_by_an_error)
{
	for (uint32_t width = 40; width < 100; width++) {
		struct page out, err;
		struct cli *c = some_cli(&out, &err, true, false);
		struct progress x;

		c->err_screen.width = width;
		progress_begin(&x, c, 200 * GIB, "%s",
			       "a name that is somewhat longer than others");
		x.begin_ns -= 100 * NS_PER_S;
		x.shown_ns = x.begin_ns;
		progress_tick(&x, 100 * GIB);
		assert_true(page_read(&err)[0] == '\r');
		assert_true(screen_columns(err.text) - strlen("\r\033[K") < width);
		c->o->ops->error(c->o, 1, "what", NULL);
		assert_non_null(strstr(page_read(&err), "\033[K\r\033[Kckptctl:"));
		cli_drop(c, &out, &err);
	}
}

static uint32_t lines_of(const char *text)
{
	uint32_t n = 0;

	while ((text = strchr(text, '\n'))) {
		text++;
		n++;
	}
	return n;
}

TEST(progress_elsewhere_is_a_line_a_minute)
{
	struct page out, err;
	struct cli *c = some_cli(&out, &err, false, false);

	movement(c, 1000, 100, 599 * NS_PER_MS, 10); /* all of it within a minute */
	assert_string_equal(page_read(&err), "");
	movement(c, 1000, 100, 3 * NS_PER_S, 10); /* 300 s */
	assert_int_equal(lines_of(page_read(&err)), 5);
	assert_memory_equal(err.text, "step 12: 20 %, 200 B of 1000 B, 0.00 GB/s, ", 43);
	assert_non_null(strstr(err.text, "step 12: 100 %, 1000 B of 1000 B"));
	movement(c, 0, 125, NS_PER_S, 10); /* how much it will be is not known */
	assert_int_equal(lines_of(page_read(&err)), 5 + 2);
	assert_string_equal(page_read(&out), "");
	cli_drop(c, &out, &err);
}

TEST(quiet_is_quiet_but_answers_when_it_is_asked)
{
	for (int how = 0; how < 4; how++) {
		struct page out, err;
		struct cli *c = some_cli(&out, &err, how & 1, how & 2);
		struct progress x;

		(void)state;
		c->quiet = true;
		output_line(c->o, "ckptd.test/1", "summary");
		movement(c, 1000, 100, 10 * NS_PER_S, 10);
		assert_string_equal(page_read(&err), "");
		assert_string_equal(page_read(&out), "");
		progress_begin(&x, c, 1000, "it");
		cli_asked = 1;
		progress_tick(&x, 250);
		progress_tick(&x, 250);
		progress_end(&x);
		assert_int_equal(cli_asked, 0);
		if (how & 2) {
			assert_string_equal(page_read(&err), "");
			assert_non_null(strstr(page_read(&out), "\"percent_done\":25.0,"));
			assert_ptr_equal(strchr(out.text, '\n') + 1, out.text + out.len);
		} else {
			assert_memory_equal(page_read(&err), "it: 25 %, 250 B of 1000 B", 25);
			assert_ptr_equal(strchr(err.text, '\n') + 1, err.text + err.len);
		}
		cli_drop(c, &out, &err);
	}
}

TEST(progress_for_programs_is_lines_before_the_summary)
{
	static const struct column n = { "n", NULL, false, FIT_WHOLE };
	struct page out, err;
	struct cli *c = some_cli(&out, &err, false, true);
	uint32_t lines = 0;

	output_line(c->o, "ckptd.test/1", "summary");
	output_list(c->o, "rows", NULL, 0);
	output_row(c->o);
	output_put(c->o, &n, cell_of(CELL_NUMBER, 1));
	movement(c, 1000, 100, NS_PER_MS, 10);
	movement(c, 0, 3, 2 * NS_PER_S, 10);
	output_close(c->o);
	output_close(c->o);
	output_end(c->o);
	for (const char *s = page_read(&out), *end; *s; s = end + 1, lines++) {
		json_t *j = json_loads(s, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, NULL);

		end = strchr(s, '\n');
		assert_non_null(j);
		assert_string_equal(json_string_value(json_object_get(j, "schema")),
				    "ckptd.test/1");
		assert_string_equal(json_string_value(json_object_get(j, "type")),
				    lines < 13 ? "progress" : "summary");
		if (lines < 10) {
			assert_string_equal(json_string_value(json_object_get(j, "what")),
					    "step 12");
			assert_int_equal(json_number_value(json_object_get(j, "percent_done")),
					 10 * lines + 10);
			assert_int_equal(json_integer_value(json_object_get(j, "bytes_done")),
					 100 * lines + 100);
			assert_int_equal(json_integer_value(json_object_get(j, "bytes_total")),
					 1000);
			assert_true(json_is_integer(json_object_get(j, "bytes_per_second")));
			assert_true(json_is_integer(json_object_get(j, "seconds_remaining")));
		} else if (lines < 13) {
			assert_true(json_is_null(json_object_get(j, "percent_done")));
			assert_true(json_is_null(json_object_get(j, "bytes_total")));
			assert_true(json_is_null(json_object_get(j, "seconds_remaining")));
		}
		json_decref(j);
	}
	assert_int_equal(lines, 14);
	cli_drop(c, &out, &err);
}

TEST(a_document_has_no_progress_in_it)
{
	struct page out, err;
	struct cli *c = some_cli(&out, &err, false, true);

	movement(c, 1000, 10, 0, 100);
	output_begin(c->o, "ckptd.test/1");
	movement(c, 1000, 10, 0, 100);
	output_end(c->o);
	assert_string_equal(page_read(&out), "{\"schema\":\"ckptd.test/1\"}\n");
	cli_drop(c, &out, &err);
}

TEST(exit_codes_say_what_the_caller_should_do)
{
	static const struct {
		int rc, code;
	} want[] = ROW({ 0, 0 }, { 7, 0 }, { -EINVAL, 2 }, { -EBADMSG, 4 }, { -EPROTO, 4 },
		       { -EUCLEAN, 5 }, { -EMEDIUMTYPE, 7 }, { -ENOENT, 10 }, { -ENOTDIR, 10 },
		       { -EBUSY, 11 }, { -ESTALE, 11 }, { -EACCES, 12 }, { -EPERM, 12 },
		       { -ENOSPC, 13 }, { -EDQUOT, 13 }, { -ENOMEM, 13 }, { -ECONNREFUSED, 14 },
		       { -ETIMEDOUT, 15 }, { -EIO, 1 }, { -EPROTONOSUPPORT, 8 });

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
		assert_int_equal(cli_exit(want[i].rc), want[i].code);
	assert_int_equal(cli_worse(10, 4), 4);
	assert_int_equal(cli_worse(12, 10), 12);
	assert_int_equal(cli_worse(0, 5), 5);
	assert_int_equal(cli_worse(5, 10), 5);
	assert_int_equal(cli_worse(0, 0), 0);
}
