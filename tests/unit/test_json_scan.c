/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_json_scan.c - the JSON scanner: what it takes, what it refuses and where, and what its
 * tokens say.
 */
#include "formats/json/json.h"
#include "tests/lib/unit.h"

static struct ckpt_err err;

/* The tokens as a line: { } [ ], k:KEY s:STRING u:N i:N f:TEXT t f n */
static int scanned(const char *text, size_t len, char *out, size_t bytes)
{
	char *exact = malloc(len ? len : 1);
	struct json j;
	struct json_token t = { .kind = JSON_NULL };
	size_t n = 0;
	int rc = 0;

	memcpy(exact, text, len);
	err = (struct ckpt_err){ 0 };
	json_begin(&j, exact, len, "the text", &err);
	out[0] = 0;
	while (!rc && t.kind != JSON_END) {
		char word[200];
		uint64_t k = 0;

		rc = json_next(&j, &t);
		if (rc)
			break;
		if (t.kind == JSON_KEY || t.kind == JSON_STRING)
			k = json_unescape(&t, word);
		switch (t.kind) {
		case JSON_END:
			break;
		case JSON_OBJECT:
		case JSON_OBJECT_END:
		case JSON_ARRAY:
		case JSON_ARRAY_END:
			n += (size_t)snprintf(out + n, bytes - n, "%c ", *t.text);
			break;
		case JSON_KEY:
		case JSON_STRING:
			n += (size_t)snprintf(out + n, bytes - n, "%c:%.*s ",
					      t.kind == JSON_KEY ? 'k' : 's', (int)k, word);
			break;
		case JSON_UINT:
			n += (size_t)snprintf(out + n, bytes - n, "u:%" PRIu64 " ", t.number);
			break;
		case JSON_INT:
			n += (size_t)snprintf(out + n, bytes - n, "i:%" PRId64 " ",
					      (int64_t)t.number);
			break;
		case JSON_FLOAT:
			n += (size_t)snprintf(out + n, bytes - n, "f:%.*s ", (int)t.len, t.text);
			break;
		case JSON_TRUE:
		case JSON_FALSE:
		case JSON_NULL:
			n += (size_t)snprintf(out + n, bytes - n, "%.*s ", (int)t.len, t.text);
			break;
		}
		assert_true(n < bytes);
	}
	free(exact);
	return rc;
}

TEST(tokens_say_what_the_text_says)
{
	static const struct {
		const char *text, *tokens;
	} good[] = {
		{ "{}", "{ } " },
		{ " \t\r\n[ ] \n", "[ ] " },
		{ "{\"a\":{\"b\":[1,2]},\"c\":\"d\"}", "{ k:a { k:b [ u:1 u:2 ] } k:c s:d } " },
		{ "[0,-1,18446744073709551615,-9223372036854775808]",
		  "[ u:0 i:-1 u:18446744073709551615 i:-9223372036854775808 ] " },
		/* No integers to serde_json either: they are 64-bit floats */
		{ "[18446744073709551616,-9223372036854775809,2.0,1e2,1E+2,0.5e-3,-0,-0.0]",
		  "[ f:18446744073709551616 f:-9223372036854775809 f:2.0 f:1e2 f:1E+2 f:0.5e-3 "
		  "f:-0 f:-0.0 ] " },
		{ "[true,false,null]", "[ true false null ] " },
		{ "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "s:\"\\/\b\f\n\r\t " },
		{ "\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\\u0001\"",
		  "s:A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x01 " },
		{ "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf\x7f\"",
		  "s:\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf\x7f " },
		{ "{\"a\":1,\"a\":2}", "{ k:a u:1 k:a u:2 } " },
		{ "7", "u:7 " },
	};
	char out[1000];

	for (uint32_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_ok_err(scanned(good[i].text, strlen(good[i].text), out, sizeof out), &err);
		assert_string_equal(out, good[i].tokens);
	}
}

TEST(malformed_text_is_refused_with_the_byte)
{
	static const struct {
		const char *text, *why;
	} bad[] = {
		{ "", "byte 0 of the text: the text ends" },
		{ "  ", "byte 2 of the text: the text ends" },
		{ "{", "byte 1 of the text: the text ends" },
		{ "[1,", "byte 3 of the text: the text ends" },
		{ "[1,]", "byte 3 of the text: a value is wanted" },
		{ "{\"a\":1,}", "byte 7 of the text: a name in quotes" },
		{ "{\"a\" 1}", "byte 5 of the text: a colon" },
		{ "{\"a\":}", "byte 5 of the text: a value" },
		{ "{a:1}", "byte 1 of the text: a name in quotes" },
		{ "{1:1}", "byte 1 of the text: a name in quotes" },
		{ "[1 2]", "byte 3 of the text: a comma or ']'" },
		{ "{\"a\":1]", "byte 6 of the text: a comma or '}'" },
		{ "[1}", "byte 2 of the text: a comma or ']'" },
		{ "]", "byte 0 of the text: a value" },
		{ "{} {}", "byte 3 of the text: there is something behind" },
		{ "{}\v", "byte 2 of the text: there is something behind" },
		{ "[01]", "byte 1 of the text: this is no number" },
		{ "[-]", "byte 1 of the text: this is no number" },
		{ "[1.]", "byte 1 of the text: this is no number" },
		{ "[.5]", "byte 1 of the text: a value" },
		{ "[+1]", "byte 1 of the text: a value" },
		{ "[1e]", "byte 1 of the text: this is no number" },
		{ "[1e+]", "byte 1 of the text: this is no number" },
		{ "[0x1]", "byte 2 of the text: a comma" },
		{ "[NaN]", "byte 1 of the text: a value" },
		{ "[nul]", "byte 1 of the text: a value" },
		{ "[truex]", "byte 5 of the text: a comma" },
		{ "'a'", "byte 0 of the text: a value" },
		{ "/**/1", "byte 0 of the text: a value" },
		{ "\xef\xbb\xbf{}", "byte 0 of the text: a value" },
		{ "\"abc", "byte 0 of the text: a string has no end" },
		{ "\"a\\", "byte 2 of the text: a string has an escape" },
		{ "\"a\\\"", "byte 0 of the text: a string has no end" },
		{ "\"\\x\"", "byte 1 of the text: a string has an escape" },
		{ "\"\\u12\"", "byte 1 of the text: \\u needs four" },
		{ "\"\\u12g4\"", "byte 1 of the text: \\u needs four" },
		{ "\"\\ud800\"", "byte 1 of the text: \\u names half" },
		{ "\"\\udc00\"", "byte 1 of the text: \\u names half" },
		{ "\"\\ud800\\u0041\"", "byte 1 of the text: \\u names half" },
		{ "\"\\ud800\\ud800\"", "byte 1 of the text: \\u names half" },
		{ "\"\\ud800xxxxxx\"", "byte 1 of the text: \\u names half" },
		{ "\"a\nb\"", "byte 2 of the text: a string has a control" },
		{ "\"\x1f\"", "byte 1 of the text: a string has a control" },
		{ "\"\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xc0\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xc3\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xe0\x80\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xed\xa0\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xf0\x80\x80\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xf4\x90\x80\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xf5\x80\x80\x80\"", "byte 1 of the text: a string is not UTF-8" },
		{ "\"\xe2\x82", "byte 1 of the text: a string is not UTF-8" },
	};
	char out[1000];

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (scanned(bad[i].text, strlen(bad[i].text), out, sizeof out) != -EPROTO ||
		    !strstr(err.msg, bad[i].why))
			fail_msg("%s: \"%s\" is not in \"%s\"", bad[i].text, bad[i].why, err.msg);
		assert_int_equal(err.code, -EPROTO);
	}
}

TEST(a_zero_byte_is_no_text_and_an_escaped_one_is)
{
	char out[100];
	struct json_token t;
	struct json j;

	assert_int_equal(scanned("\"a\0b\"", 5, out, sizeof out), -EPROTO);
	assert_int_equal(scanned("\0", 1, out, sizeof out), -EPROTO);
	assert_int_equal(scanned("\"\\\0\"", 4, out, sizeof out), -EPROTO);
	json_begin(&j, "\"a\\u0000b\"", 10, "x", &err);
	assert_ok(json_next(&j, &t));
	assert_int_equal(json_unescape(&t, out), 3);
	assert_memory_equal(out, "a\0b", 3);
	assert_false(json_is(&t, "a"));
}

TEST(the_depth_is_limited)
{
	char text[400], out[2000];

	memset(text, '[', 127);
	memset(text + 127, ']', 127);
	assert_ok_err(scanned(text, 254, out, sizeof out), &err);
	memset(text, '[', 128);
	memset(text + 128, ']', 128);
	assert_int_equal(scanned(text, 256, out, sizeof out), -EPROTO);
	assert_non_null(strstr(err.msg, "byte 127 of the text: more than 127 values"));
}

TEST(objects_and_arrays_close_in_their_order_at_any_depth)
{
	char text[1000], out[4000];
	size_t n = 0;

	for (uint32_t i = 0; i < JSON_DEPTH_MAX; i++)
		n += (size_t)sprintf(text + n, "%s", i % 3 ? "[" : "{\"\":");
	n += (size_t)sprintf(text + n, "1");
	for (uint32_t i = JSON_DEPTH_MAX; i-- > 0;)
		text[n++] = i % 3 ? ']' : '}';
	assert_ok_err(scanned(text, n, out, sizeof out), &err);
	text[n - 100] = text[n - 100] == ']' ? '}' : ']';
	assert_int_equal(scanned(text, n, out, sizeof out), -EPROTO);
}

TEST(a_value_is_skipped_with_all_that_is_in_it)
{
	static const char text[] = "{\"x\":[1,{\"y\":[]},\"z\"],\"w\":5,\"v\":{},\"u\":6}";
	struct json_token t;
	struct json j;

	json_begin(&j, text, sizeof text - 1, "x", &err);
	assert_ok(json_want(&j, JSON_OBJECT, "it", &t));
	for (uint32_t i = 0; i < 4; i++) {
		static const char *const keys[] = { "x", "w", "v", "u" };

		assert_ok(json_want(&j, JSON_KEY, "it", &t));
		assert_true(json_is(&t, keys[i]));
		assert_ok(json_next(&j, &t));
		assert_ok(json_skip(&j, &t));
	}
	assert_ok(json_want(&j, JSON_OBJECT_END, "it", &t));
	assert_ok(json_want(&j, JSON_END, "it", &t));
	assert_ok(json_want(&j, JSON_END, "it", &t));
	json_begin(&j, "[[[1,2", 6, "x", &err);
	assert_ok(json_next(&j, &t));
	assert_int_equal(json_skip(&j, &t), -EPROTO);
	assert_int_equal(json_next(&j, &t), -EPROTO);
}

TEST(another_kind_than_the_wanted_one_is_an_error_with_its_byte)
{
	struct json_token t;
	struct json j;

	json_begin(&j, "[2.0]", 5, "header of a", &err);
	assert_ok(json_next(&j, &t));
	assert_int_equal(json_want(&j, JSON_UINT, "the shape", &t), -EPROTO);
	assert_string_equal(err.msg, "byte 1 of header of a: the shape must be a whole number from "
				     "0 to 18446744073709551615");
	assert_int_equal(json_next(&j, &t), -EPROTO);
}

TEST(a_text_is_compared_with_what_its_escapes_mean)
{
	struct json_token t;
	struct json j;

	json_begin(&j, "\"d\\u0074yp\\u0065\"", 17, "x", &err);
	assert_ok(json_next(&j, &t));
	assert_true(t.escaped && json_is(&t, "dtype"));
	assert_false(json_is(&t, "dtypo"));
	assert_false(json_is(&t, "d"));
	assert_false(json_is(&t, "dtypes"));
}
