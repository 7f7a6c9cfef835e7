/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_output.c - numbers as people read them, progress, and one document as text and as
 * JSON. */
#include <jansson.h>
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/progress.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

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

TEST(sizes_have_three_digits_and_a_unit)
{
	static const struct {
		uint64_t n;
		const char *text;
	} want[] = ROW({ 0, "0 B" }, { 512, "512 B" }, { 1023, "1023 B" }, { 1024, "1.00 KiB" },
		       { 1536, "1.50 KiB" }, { 10239, "10.0 KiB" }, { 10240, "10.0 KiB" },
		       { 102399, "100 KiB" }, { 1023 * 1024, "1.00 MiB" }, { MIB, "1.00 MiB" },
		       { 999 * MIB, "999 MiB" }, { 5 * GIB / 2, "2.50 GiB" },
		       { UINT64_MAX, "16.0 EiB" });
	char buf[HUMAN_BYTES];

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
		assert_string_equal(human_bytes(want[i].n, buf), want[i].text);
}

TEST(counts_are_grouped_by_thousands)
{
	char buf[HUMAN_BYTES];

	assert_string_equal(human_count(0, buf), "0");
	assert_string_equal(human_count(999, buf), "999");
	assert_string_equal(human_count(1000, buf), "1,000");
	assert_string_equal(human_count(1203200, buf), "1,203,200");
	assert_string_equal(human_count(UINT64_MAX, buf), "18,446,744,073,709,551,615");
}

TEST(ages_take_the_largest_unit_that_fits_twice)
{
	static const struct {
		uint64_t s;
		const char *text;
	} want[] = { { 0, "now" },	   { 1, "1s" },
		     { 119, "119s" },	   { 120, "2m" },
		     { 7199, "119m" },	   { 7200, "2h" },
		     { 2 * 86400, "2d" },  { 13 * 86400, "13d" },
		     { 14 * 86400, "2w" }, { 729 * 86400, "104w" },
		     { 730 * 86400, "2y" } };
	uint64_t now = 2000000000 * NS_PER_S;
	char buf[HUMAN_BYTES];

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
		assert_string_equal(human_age(now - want[i].s * NS_PER_S, now, buf), want[i].text);
	assert_string_equal(human_age(now + NS_PER_S, now, buf), "now");
	assert_string_equal(human_age(0, now, buf), "-");
	assert_string_equal(human_time_utc(UINT64_C(1700000000) * NS_PER_S, buf),
			    "2023-11-14T22:13:20Z");
}

TEST(a_set_is_told_by_its_runs_and_a_full_dimension_by_a_colon)
{
	const struct run rows = { 0, 2, 4, 2 }, many = { 1, 1, 3, 1000000 }, all = { 0, 9, 9, 1 };
	const struct indices dim[] = {
		{ 1, 4, &rows }, { 1, 9, &all }, { 1, 1000000, &many }, { 0, 0, NULL }
	};
	const struct indexset set = { 4, 0, dim };
	const uint64_t shape[] = { 8, 9, 4000000, 5 };
	char buf[256], little[12];

	assert_string_equal(human_set(&set, shape, buf, sizeof buf),
			    "[0:2 4:6, :, 1:2 4:5 7:8 .. 2999998:2999999 (1000000 runs), none]");
	assert_string_equal(human_set(&set, NULL, little, sizeof little), "[0:2 4:6,..");
	assert_string_equal(human_shape(2, shape, buf, sizeof buf), "[8, 9]");
	assert_string_equal(human_shape(0, NULL, buf, sizeof buf), "[]");
}

TEST(names_one_slip_apart_are_near)
{
	assert_int_equal(human_distance("verify", "verify", 2), 0);
	assert_int_equal(human_distance("verfiy", "verify", 2), 1);
	assert_int_equal(human_distance("vrify", "verify", 2), 1);
	assert_int_equal(human_distance("ls", "show", 2), UINT32_MAX);
	assert_int_equal(human_distance("", "ab", 2), 2);
}

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

/* Rows enough for n times 100 bytes; not closed. */
static void rows(struct output *o, uint32_t n)
{
	static const struct column text = { "text", NULL, false, FIT_WHOLE };

	output_list(o, "rows", NULL, 0);
	for (uint32_t i = 0; i < n; i++) {
		output_row(o);
		output_put(o, &text,
			   cell_text("0123456789012345678901234567890123456789012345678901234567890"
				     "12345678901234567890123456"));
		if (i + 1 < n)
			output_close(o);
	}
}

TEST(a_document_that_is_given_up_parses_or_is_not_there)
{
	for (int how = 0; how < 16; how++) {
		bool big = how & 1, line = how & 2, failed = how & 4, pretty = how & 8;
		struct page out, err;
		struct output *o;

		page_open(&out);
		page_open(&err);
		o = output_json_new(out.f, err.f, pretty);
		if (line)
			output_line(o, "ckptd.test/1", "summary");
		else
			output_begin(o, "ckptd.test/1");
		rows(o, big ? 5000 : 50);
		if (failed) {
			o->failed = true;
			output_close(o);
			output_close(o);
			output_end(o);
		}
		o->ops->free(o);
		page_read(&out);
		if (big && !line) {
			json_t *j = json_loads(out.text, JSON_REJECT_DUPLICATES, NULL);

			assert_non_null(j);
			assert_int_equal(json_array_size(json_object_get(j, "rows")), 5000);
			assert_true(json_is_false(json_object_get(j, "complete")));
			json_decref(j);
		} else {
			assert_int_equal(out.len, 0);
		}
		page_close(&out);
		page_close(&err);
	}
}

TEST(a_large_document_is_printed_as_it_comes)
{
	struct page out, err;
	struct output *o;

	page_open(&out);
	page_open(&err);
	o = output_json_new(out.f, err.f, false);
	output_begin(o, "ckptd.test/1");
	rows(o, 5000);
	page_read(&out);
	assert_in_range(out.len, 5000 * 90 - 65536, 5000 * 110);
	output_close(o);
	output_close(o);
	output_end(o);
	o->ops->free(o);
	page_close(&out);
	page_close(&err);
}

TEST(lines_follow_each_other_and_are_never_broken)
{
	struct page out, err;
	struct output *o;

	page_open(&out);
	page_open(&err);
	o = output_json_new(out.f, err.f, true);
	for (int i = 0; i < 3; i++) {
		output_line(o, "ckptd.test/1", "look");
		rows(o, 2);
		output_close(o);
		output_close(o);
		output_end(o);
	}
	o->ops->free(o);
	for (const char *s = page_read(&out), *end; *s; s = end + 1) {
		end = strchr(s, '\n');
		assert_non_null(end);
		assert_memory_equal(s, "{\"schema\":\"ckptd.test/1\",\"type\":\"look\",", 39);
		assert_true(end[-1] == '}');
	}
	page_close(&out);
	page_close(&err);
}

/* One document with something of everything. */
static void document(struct output *o)
{
	static const struct column col[] = { { "name", "NAME", false, FIT_WHOLE },
					     { "bytes", "SIZE", true, FIT_WHOLE },
					     { "secret", NULL, false, FIT_WHOLE },
					     { NULL, "NOTE", false, FIT_WHOLE } };
	static const struct column path = { "path", "path", false, FIT_WHOLE },
				   fp = { "fp", "fingerprint", false, FIT_WHOLE },
				   nan = { "nan", "nan", false, FIT_WHOLE },
				   big = { "big", NULL, false, FIT_WHOLE },
				   when = { "when", NULL, false, FIT_WHOLE },
				   index = { "index", NULL, false, FIT_WHOLE };
	static const struct run run[] = { { 0, 2, 2, 1 }, { 10, 1, 3, 4 } };
	static const struct indices dim = { 2, 6, run };
	static const struct indexset set = { 1, 6, &dim };

	o->ops->begin(o, "ckptd.test/1");
	o->ops->say(o, STYLE_STRONG, NULL, 0, "title");
	output_put(o, &path, cell_text("/a\033b\xff"));
	output_put(o, &fp, cell_of(CELL_FINGERPRINT, 0xabc));
	output_put(o, &nan, cell_real(__builtin_nan("")));
	output_put(o, &big, cell_of(CELL_NUMBER, UINT64_MAX));
	output_put(o, &when, cell_of(CELL_TIME, UINT64_C(1700000000) * NS_PER_S));
	output_list(o, "rows", col, 4);
	for (int i = 0; i < 2; i++) {
		output_row(o);
		output_put(o, &col[0], cell_text(i ? "second" : "first"));
		output_put(o, &col[1], i ? cell_none() : cell_of(CELL_BYTES, 2048));
		output_put(o, &col[2], cell_text("hidden"));
		output_put(o, &col[3], cell_text("noted"));
		output_list(o, "pieces", col, 4);
		output_row(o);
		output_put(o, &index, cell_set(&set, NULL));
		output_close(o);
		output_close(o);
		output_close(o);
	}
	output_close(o);
	output_list(o, NULL, col, 4);
	output_row(o);
	output_put(o, &col[0], cell_text("for people"));
	output_close(o);
	output_close(o);
	output_list(o, "programs", NULL, 0);
	output_row(o);
	output_put(o, &col[0], cell_text("for programs"));
	output_close(o);
	output_close(o);
	output_object(o, "notes");
	output_put(o, &(struct column){ "loss", NULL, false, FIT_WHOLE }, cell_real(2.5));
	output_close(o);
	o->ops->end(o);
}

TEST(a_document_as_text_shows_what_has_a_head)
{
	struct screen s = { 0 };
	struct page out, err;
	struct output *o;

	page_open(&out);
	page_open(&err);
	o = output_text_new(out.f, &s, err.f, &s);
	document(o);
	assert_string_equal(page_read(&out), "title\n"
					     "  path         /a?b?\n"
					     "  fingerprint  0000000000000abc\n"
					     "  nan          nan\n"
					     "\n"
					     "NAME        SIZE  NOTE\n"
					     "first   2.00 KiB  noted\n"
					     "second         -  noted\n"
					     "\n"
					     "NAME\n"
					     "for people\n");
	assert_int_equal(o->failed, false);
	o->ops->error(o, 4, "what\nand more", "do this");
	assert_string_equal(page_read(&err), "ckptctl: what\n  and more\n  next: do this\n");
	o->ops->free(o);
	page_close(&out);
	page_close(&err);
}

TEST(a_document_as_json_holds_what_has_a_key)
{
	struct page out, err;
	struct output *o;
	json_t *j, *row;

	page_open(&out);
	page_open(&err);
	o = output_json_new(out.f, err.f, false);
	document(o);
	j = json_loads(page_read(&out), 0, NULL);
	assert_non_null(j);
	assert_string_equal(json_string_value(json_object_get(j, "schema")), "ckptd.test/1");
	assert_string_equal(json_string_value(json_object_get(j, "path")), "/a?b?");
	assert_string_equal(json_string_value(json_object_get(j, "fp")), "0000000000000abc");
	assert_true(json_is_null(json_object_get(j, "nan")));
	assert_true(json_is_null(json_object_get(j, "big")));
	assert_string_equal(json_string_value(json_object_get(j, "when")), "2023-11-14T22:13:20Z");
	assert_int_equal(json_array_size(json_object_get(j, "rows")), 2);
	row = json_array_get(json_object_get(j, "rows"), 0);
	assert_int_equal(json_integer_value(json_object_get(row, "bytes")), 2048);
	assert_string_equal(json_string_value(json_object_get(row, "secret")), "hidden");
	assert_int_equal(json_object_size(row), 4);
	row = json_array_get(json_object_get(row, "pieces"), 0);
	row = json_array_get(json_object_get(row, "index"), 0);
	assert_int_equal(json_integer_value(json_array_get(json_array_get(row, 0), 1)), 2);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(row, 1), "count")), 4);
	assert_int_equal(json_array_size(json_object_get(j, "programs")), 1);
	assert_true(json_real_value(json_object_get(json_object_get(j, "notes"), "loss")) == 2.5);
	assert_int_equal(json_object_size(j), 9);
	json_decref(j);
	o->ops->error(o, 10, "gone\xff", "look");
	j = json_loads(page_read(&err), 0, NULL);
	assert_non_null(j);
	assert_string_equal(json_string_value(json_object_get(j, "schema")), "ckptd.error/1");
	assert_int_equal(json_integer_value(json_object_get(j, "code")), 10);
	assert_string_equal(json_string_value(json_object_get(j, "message")), "gone?");
	assert_string_equal(json_string_value(json_object_get(j, "next")), "look");
	json_decref(j);
	o->ops->free(o);
	page_close(&out);
	page_close(&err);
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
