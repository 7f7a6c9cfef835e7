/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - the scanner: which token may come next is one of six states and a stack of bits. Called
 * by the formats. Invariant: at <= end, and every byte before `at` has been found good.
 */
#include "formats/json/json.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <stdarg.h>
#include <stdio.h>

enum want {
	WANT_VALUE,
	WANT_FIRST_VALUE, /* or the array's end */
	WANT_FIRST_KEY,	  /* or the object's end */
	WANT_NEXT,	  /* a comma, or the end of what is open */
	WANT_END
};

void json_begin(struct json *j, const void *text, uint64_t len, const char *what,
		struct ckpt_err *err)
{
	*j = (struct json){
		.text = text, .at = text, .end = (const char *)text + len, .what = what, .err = err
	};
}

static int refuse_at(struct json *j, const char *at, int code, const char *why)
{
	if (j->bad)
		return j->bad;
	j->bad = code;
	return ckpt_error(j->err, code, "byte %llu of %s: %s", (unsigned long long)(at - j->text),
			  j->what, why);
}

static int fail_at(struct json *j, const char *at, const char *why)
{
	return refuse_at(j, at, -EPROTO, why);
}

int json_refuse(struct json *j, const struct json_token *at, int code, const char *fmt, ...)
{
	char why[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return refuse_at(j, j->text + at->off, code, why);
}

static bool is_object(const struct json *j)
{
	return j->depth && (j->object[(j->depth - 1) / 64 % 2] >> (j->depth - 1) % 64 & 1);
}

static int depth_push(struct json *j, bool object)
{
	uint64_t bit = UINT64_C(1) << j->depth % 64;

	if (j->depth == JSON_DEPTH_MAX && !MUTANT(JSON_DEEP))
		return fail_at(j, j->at, "more than 127 values are in each other");
	if (object)
		j->object[j->depth / 64 % 2] |= bit;
	else
		j->object[j->depth / 64 % 2] &= ~bit;
	j->depth++;
	j->want = object ? WANT_FIRST_KEY : WANT_FIRST_VALUE;
	return 0;
}

static void value_end(struct json *j)
{
	j->want = j->depth ? WANT_NEXT : WANT_END;
}

/* --- strings --- */

/* The value of 4 hexadecimal digits; -1. */
static int32_t hex_read(const char *s, const char *end)
{
	int32_t v = 0;

	if (end - s < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		int c = (unsigned char)s[i], low = c | 0x20;

		if (c >= '0' && c <= '9')
			v = v * 16 + (c - '0');
		else if (low >= 'a' && low <= 'f')
			v = v * 16 + (low - 'a' + 10);
		else
			return -1;
	}
	return v;
}

/* s is behind a backslash. The bytes of the escape from there; 0: it is none, *why says so. */
static uint32_t escape_length(const char *s, const char *end, const char **why)
{
	int32_t c, low;

	*why = "a string has an escape that JSON does not know";
	if (s == end)
		return 0;
	if (*s && strchr("\"\\/bfnrt", *s))
		return 1;
	if (*s != 'u')
		return 0;
	c = hex_read(s + 1, end);
	*why = "\\u needs four hexadecimal digits";
	if (c < 0)
		return 0;
	if (c < 0xd800 || c > 0xdfff)
		return 5;
	*why = "\\u names half of a surrogate pair";
	if (c > 0xdbff || end - s < 11 || s[5] != '\\' || s[6] != 'u')
		return MUTANT(JSON_HALF_PAIR) ? 5 : 0;
	low = hex_read(s + 7, end);
	return low >= 0xdc00 && low <= 0xdfff ? 11 : 0;
}

/* Bytes of the character of several bytes at s, as RFC 3629 has them; 0: it is none. */
static uint32_t utf8_length(const char *text, const char *end)
{
	const unsigned char *s = (const unsigned char *)text;
	uint32_t n = *s < 0xc2 ? 0 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : *s < 0xf5 ? 3 : 0;
	unsigned char low = *s == 0xe0 ? 0xa0 : *s == 0xf0 ? 0x90 : 0x80;
	unsigned char high = *s == 0xed ? 0x9f : *s == 0xf4 ? 0x8f : 0xbf;

	if (!n || end - text <= n)
		return 0;
	for (uint32_t i = 1; i <= n; i++, low = 0x80, high = 0xbf)
		if (s[i] < low || s[i] > high)
			return 0;
	return n + 1;
}

bool json_is_utf8(const char *text)
{
	const char *end = text + strlen(text);
	uint32_t n = 1;

	for (; text < end && n; text += n)
		n = *text & 0x80 ? utf8_length(text, end) : 1;
	return n;
}

/* at is at the opening quote; afterwards it is behind the closing one. */
static int string_scan(struct json *j, struct json_token *ret)
{
	const char *s = j->at + 1, *why;
	uint32_t n;

	*ret = (struct json_token){ JSON_STRING, .off = (uint64_t)(j->at - j->text), .text = s };
	for (; s < j->end && *s != '"'; s += n) {
		unsigned char c = (unsigned char)*s;

		n = 1;
		if (c >= 0x80) {
			n = utf8_length(s, j->end);
			if (!n)
				return fail_at(j, s, "a string is not UTF-8");
		} else if (c == '\\') {
			n = escape_length(s + 1, j->end, &why);
			if (!n)
				return fail_at(j, s, why);
			ret->escaped = true;
			n++;
		} else if (c < 0x20) {
			return fail_at(j, s, "a string has a control character");
		}
	}
	if (s >= j->end)
		return fail_at(j, j->at, "a string has no end");
	ret->len = (uint64_t)(s - ret->text);
	j->at = s + 1;
	return 0;
}

static char *utf8_put(char *to, uint32_t c)
{
	if (c < 0x80) {
		*to++ = (char)c;
		return to;
	}
	if (c < 0x800) {
		*to++ = (char)(0xc0 | c >> 6);
	} else {
		if (c < 0x10000) {
			*to++ = (char)(0xe0 | c >> 12);
		} else {
			*to++ = (char)(0xf0 | c >> 18);
			*to++ = (char)(0x80 | (c >> 12 & 63));
		}
		*to++ = (char)(0x80 | (c >> 6 & 63));
	}
	*to++ = (char)(0x80 | (c & 63));
	return to;
}

uint64_t json_unescape(const struct json_token *t, char *buf)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *s = t->text, *end = s + t->len;
	char *out = buf;

	if (!t->escaped) {
		if (buf != s)
			memcpy(buf, s, t->len);
		return t->len;
	}
	while (s < end) {
		uint32_t c;

		if (*s != '\\') {
			*out++ = *s++;
			continue;
		}
		if (s[1] != 'u') {
			*out++ = to[strchr(from, s[1]) - from];
			s += 2;
			continue;
		}
		c = (uint32_t)hex_read(s + 2, end);
		s += 6;
		if (c >= 0xd800 && c < 0xdc00) {
			c = 0x10000 + ((c - 0xd800) << 10) +
			    ((uint32_t)hex_read(s + 2, end) - 0xdc00);
			s += 6;
		}
		out = utf8_put(out, c);
	}
	return (uint64_t)(out - buf);
}

bool json_is(const struct json_token *t, const char *text)
{
	uint64_t len = strlen(text);
	char buf[6 * JSON_IS_MAX]; /* an escape has at most 6 bytes for one */

	assert(len <= JSON_IS_MAX);
	if (!t->escaped)
		return t->len == len && !memcmp(t->text, text, len);
	return t->len <= 6 * len && json_unescape(t, buf) == len && !memcmp(buf, text, len);
}

/* --- other values --- */

static const char *digits_skip(const char *s, const char *end)
{
	while (s < end && *s >= '0' && *s <= '9')
		s++;
	return s;
}

/* Digits alone: what they say, if it fits. */
static bool number_take(const char *s, const char *end, bool minus, struct json_token *ret)
{
	uint64_t x = 0;

	for (; s < end; s++)
		if (ckpt_mul(x, 10, &x) || ckpt_add(x, (uint64_t)(*s - '0'), &x))
			return false;
	if (minus && (!x || x > (uint64_t)INT64_MAX + 1))
		return false;
	ret->kind = minus ? JSON_INT : JSON_UINT;
	ret->number = minus ? -x : x;
	return true;
}

static int number_scan(struct json *j, struct json_token *ret)
{
	const char *s = j->at, *first, *behind;
	bool minus = *s == '-', plain = true;

	*ret = (struct json_token){ JSON_FLOAT, .off = (uint64_t)(s - j->text), .text = s };
	first = s + minus;
	s = digits_skip(first, j->end);
	if (s == first || (*first == '0' && s - first > 1))
		return fail_at(j, j->at, "this is no number of JSON");
	behind = s;
	if (s < j->end && *s == '.') {
		plain = false;
		behind = s + 1;
		s = digits_skip(behind, j->end);
		if (s == behind)
			return fail_at(j, j->at, "this is no number of JSON");
	}
	if (s < j->end && (*s == 'e' || *s == 'E')) {
		plain = false;
		s++;
		s += s < j->end && (*s == '+' || *s == '-');
		behind = s;
		s = digits_skip(behind, j->end);
		if (s == behind)
			return fail_at(j, j->at, "this is no number of JSON");
	}
	if (plain)
		number_take(first, s, minus, ret);
	ret->len = (uint64_t)(s - ret->text);
	j->at = s;
	return 0;
}

static int word_scan(struct json *j, struct json_token *ret)
{
	static const struct {
		const char *text;
		enum json_kind kind;
	} words[] = { { "true", JSON_TRUE }, { "false", JSON_FALSE }, { "null", JSON_NULL } };

	for (uint32_t i = 0; i < ARRAY_LEN(words); i++) {
		size_t n = strlen(words[i].text);

		if ((size_t)(j->end - j->at) < n || memcmp(j->at, words[i].text, n))
			continue;
		*ret = (struct json_token){ words[i].kind, .off = (uint64_t)(j->at - j->text),
					    .text = j->at, .len = n };
		j->at += n;
		return 0;
	}
	return fail_at(j, j->at, "a value is wanted");
}

static int value_scan(struct json *j, struct json_token *ret)
{
	char c = *j->at;
	int rc;

	if (c == '{' || c == '[') {
		*ret = (struct json_token){ c == '{' ? JSON_OBJECT : JSON_ARRAY,
					    .off = (uint64_t)(j->at - j->text), .text = j->at,
					    .len = 1 };
		rc = depth_push(j, c == '{');
		j->at += !rc;
		return rc;
	}
	rc = c == '"'				  ? string_scan(j, ret)
	     : c == '-' || (c >= '0' && c <= '9') ? number_scan(j, ret)
						  : word_scan(j, ret);
	if (!rc)
		value_end(j);
	return rc;
}

static void blanks_skip(struct json *j)
{
	while (j->at < j->end &&
	       (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
		j->at++;
}

static int key_scan(struct json *j, struct json_token *ret)
{
	int rc;

	if (*j->at != '"')
		return fail_at(j, j->at, "a name in quotes is wanted");
	rc = string_scan(j, ret);
	if (rc)
		return rc;
	ret->kind = JSON_KEY;
	blanks_skip(j);
	if (j->at == j->end || *j->at != ':')
		return fail_at(j, j->at, "a colon is wanted");
	j->at++;
	j->want = WANT_VALUE;
	return 0;
}

static int close_scan(struct json *j, struct json_token *ret)
{
	*ret = (struct json_token){ is_object(j) ? JSON_OBJECT_END : JSON_ARRAY_END,
				    .off = (uint64_t)(j->at - j->text), .text = j->at, .len = 1 };
	j->at++;
	j->depth--;
	value_end(j);
	return 0;
}

/* A comma, and what comes behind it. */
static int next_scan(struct json *j, struct json_token *ret)
{
	if (*j->at != ',')
		return fail_at(j, j->at,
			       is_object(j) ? "a comma or '}' is wanted"
					    : "a comma or ']' is wanted");
	j->at++;
	blanks_skip(j);
	if (j->at == j->end)
		return fail_at(j, j->at, "the text ends inside of a value");
	return is_object(j) ? key_scan(j, ret) : value_scan(j, ret);
}

int json_next(struct json *j, struct json_token *ret)
{
	if (j->bad)
		return j->bad;
	blanks_skip(j);
	if (j->at == j->end) {
		if (j->want != WANT_END)
			return fail_at(j, j->at, "the text ends inside of a value");
		*ret = (struct json_token){ JSON_END, .off = (uint64_t)(j->at - j->text),
					    .text = j->at };
		return 0;
	}
	switch ((enum want)j->want) {
	case WANT_VALUE:
		return value_scan(j, ret);
	case WANT_FIRST_VALUE:
		return *j->at == ']' ? close_scan(j, ret) : value_scan(j, ret);
	case WANT_FIRST_KEY:
		return *j->at == '}' ? close_scan(j, ret) : key_scan(j, ret);
	case WANT_NEXT:
		return *j->at == (is_object(j) ? '}' : ']') ? close_scan(j, ret)
							    : next_scan(j, ret);
	case WANT_END:
		break;
	}
	return fail_at(j, j->at, "there is something behind the value");
}

int json_want(struct json *j, enum json_kind kind, const char *member, struct json_token *ret)
{
	static const char *const words[] = {
		[JSON_END] = "the end of the text",
		[JSON_OBJECT] = "an object",
		[JSON_OBJECT_END] = "complete here",
		[JSON_ARRAY] = "an array",
		[JSON_ARRAY_END] = "complete here",
		[JSON_KEY] = "a name",
		[JSON_STRING] = "a string",
		[JSON_UINT] = "a whole number from 0 to 18446744073709551615",
		[JSON_INT] = "a negative whole number",
		[JSON_FLOAT] = "a number",
		[JSON_TRUE] = "true",
		[JSON_FALSE] = "false",
		[JSON_NULL] = "null",
	};
	int rc = json_next(j, ret);

	if (rc || ret->kind == kind)
		return rc;
	return json_fail(j, ret, "%s must be %s", member, words[kind]);
}

void json_jump(struct json *j, uint64_t off)
{
	j->at = j->text + off;
	value_end(j);
}

int json_skip(struct json *j, const struct json_token *first)
{
	struct json_token t = *first;
	uint32_t depth = j->depth;
	int rc = 0;

	if (t.kind != JSON_OBJECT && t.kind != JSON_ARRAY)
		return 0;
	for (depth--; !rc && j->depth > depth;)
		rc = json_next(j, &t);
	return rc;
}
