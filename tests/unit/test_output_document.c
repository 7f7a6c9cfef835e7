/* SPDX-License-Identifier: Apache-2.0 */
/* test_output_document.c - one document as text and as JSON, and what is left of one that is given
 * up. */
#include <jansson.h>
#include "ckpt/output/output.h"
#include "tests/lib/page.h"
#include "tests/lib/unit.h"

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
