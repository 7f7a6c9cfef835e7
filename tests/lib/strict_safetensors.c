/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict_safetensors.c - one pass over the header's JSON, then the offsets. Included by tests.
 * Invariant: every byte of the file is accounted for before it is called good.
 */
#include "tests/lib/strict_safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct strict_text {
	const uint8_t *at, *end;
	char *why;
};

static bool strict_no(struct strict_text *t, const char *why)
{
	if (!t->why[0])
		snprintf(t->why, 200, "%s, %td bytes before the header's end", why, t->end - t->at);
	return false;
}

static void strict_blank(struct strict_text *t)
{
	while (t->at < t->end &&
	       (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t'))
		t->at++;
}

static bool strict_is(struct strict_text *t, char c)
{
	strict_blank(t);
	if (t->at == t->end || *t->at != (uint8_t)c)
		return false;
	t->at++;
	return true;
}

static bool strict_want(struct strict_text *t, char c)
{
	char why[32];

	snprintf(why, sizeof why, "there is no '%c'", c);
	return strict_is(t, c) || strict_no(t, why);
}

static bool strict_hex(struct strict_text *t, uint32_t *ret)
{
	*ret = 0;
	for (int i = 0; i < 4; i++, t->at++) {
		int c = t->at < t->end ? *t->at : 0;
		int v = c >= '0' && c <= '9'   ? c - '0'
			: c >= 'a' && c <= 'f' ? c - 'a' + 10
			: c >= 'A' && c <= 'F' ? c - 'A' + 10
					       : -1;

		if (v < 0)
			return strict_no(t, "bad \\u");
		*ret = *ret << 4 | (uint32_t)v;
	}
	return true;
}

static size_t strict_encode(uint32_t c, char *out)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 63));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 63));
		out[2] = (char)(0x80 | (c & 63));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 63));
	out[2] = (char)(0x80 | (c >> 6 & 63));
	out[3] = (char)(0x80 | (c & 63));
	return 4;
}

/* Behind a backslash. */
static bool strict_escape(struct strict_text *t, char *out, size_t *n)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *p;
	uint32_t c, low;

	if (t->at == t->end)
		return strict_no(t, "an escape without an end");
	p = memchr(from, *t->at, sizeof from - 1);
	if (p) {
		t->at++;
		out[(*n)++] = to[p - from];
		return true;
	}
	if (*t->at++ != 'u')
		return strict_no(t, "an unknown escape");
	if (!strict_hex(t, &c))
		return false;
	if (c >= 0xd800 && c < 0xdc00) {
		if (t->end - t->at < 6 || t->at[0] != '\\' || t->at[1] != 'u')
			return strict_no(t, "half a surrogate pair");
		t->at += 2;
		if (!strict_hex(t, &low) || low < 0xdc00 || low > 0xdfff)
			return strict_no(t, "half a surrogate pair");
		c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
	} else if (c >= 0xdc00 && c < 0xe000) {
		return strict_no(t, "half a surrogate pair");
	}
	if (!c)
		return strict_no(t, "a zero in a string");
	*n += strict_encode(c, out + *n);
	return true;
}

/* malloc'ed; NULL: bad */
static char *strict_string(struct strict_text *t)
{
	char *out = malloc((size_t)(t->end - t->at) + 1);
	size_t n = 0;

	if (!out || !strict_want(t, '"'))
		goto bad;
	while (t->at < t->end && *t->at != '"') {
		uint8_t c = *t->at++;

		if (c < 0x20) {
			strict_no(t, "a control character in a string");
			goto bad;
		}
		if (c != '\\')
			out[n++] = (char)c;
		else if (!strict_escape(t, out, &n))
			goto bad;
	}
	if (!strict_want(t, '"'))
		goto bad;
	out[n] = 0;
	return out;
bad:
	free(out);
	return NULL;
}

/* A plain whole number without sign, fraction, exponent or leading zero. */
static bool strict_number(struct strict_text *t, uint64_t *ret)
{
	const uint8_t *first;

	strict_blank(t);
	first = t->at;
	for (*ret = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
		if (__builtin_mul_overflow(*ret, 10, ret) ||
		    __builtin_add_overflow(*ret, (uint64_t)(*t->at - '0'), ret))
			return strict_no(t, "a number that does not fit");
	if (t->at == first || (*first == '0' && t->at - first > 1))
		return strict_no(t, "no number");
	return true;
}

static bool strict_numbers(struct strict_text *t, uint64_t *out, uint32_t max, uint32_t *ret_n)
{
	*ret_n = 0;
	if (!strict_want(t, '['))
		return false;
	if (strict_is(t, ']'))
		return true;
	do {
		if (*ret_n == max)
			return strict_no(t, "too many numbers");
		if (!strict_number(t, &out[(*ret_n)++]))
			return false;
	} while (strict_is(t, ','));
	return strict_want(t, ']');
}

static bool strict_entry(struct strict_text *t, struct strict_tensor *x)
{
	bool has_shape = false, has_offsets = false;
	uint64_t at[2];
	uint32_t n;

	if (!strict_want(t, '{'))
		return false;
	do {
		char *key = strict_string(t);
		bool ok = key && strict_want(t, ':');

		if (ok && !strcmp(key, "dtype") && !x->dtype) {
			x->dtype = strict_string(t);
			ok = x->dtype != NULL;
		} else if (ok && !strcmp(key, "shape") && !has_shape) {
			has_shape = ok = strict_numbers(t, x->shape, 16, &x->ndim);
		} else if (ok && !strcmp(key, "data_offsets") && !has_offsets) {
			ok = strict_numbers(t, at, 2, &n);
			has_offsets = ok = ok && n == 2;
			x->begin = at[0];
			x->end = at[1];
		} else if (ok) {
			ok = strict_no(t, "an unknown or repeated member");
		}
		free(key);
		if (!ok)
			return strict_no(t, "a bad member");
	} while (strict_is(t, ','));
	if (!x->dtype || !has_shape || !has_offsets)
		return strict_no(t, "a member is missing");
	return strict_want(t, '}');
}

static bool strict_metadata(struct strict_text *t, struct strict_file *f)
{
	if (!strict_want(t, '{'))
		return false;
	if (strict_is(t, '}'))
		return true;
	do {
		struct strict_meta *m;

		f->meta = realloc(f->meta, (f->nmeta + 1) * sizeof *m);
		m = &f->meta[f->nmeta++];
		*m = (struct strict_meta){ .key = strict_string(t) };
		if (!m->key || !strict_want(t, ':'))
			return false;
		m->value = strict_string(t);
		if (!m->value)
			return strict_no(t, "metadata that is no string");
		for (uint32_t i = 0; i + 1 < f->nmeta; i++)
			if (!strcmp(f->meta[i].key, m->key))
				return strict_no(t, "metadata twice");
	} while (strict_is(t, ','));
	return strict_want(t, '}');
}

static bool strict_header(struct strict_text *t, struct strict_file *f)
{
	bool has_meta = false;

	if (t->at == t->end || *t->at != '{')
		return strict_no(t, "the header does not begin with '{'");
	t->at++;
	if (!strict_is(t, '}')) {
		do {
			char *name = strict_string(t);
			struct strict_tensor *x;

			if (!name || !strict_want(t, ':')) {
				free(name);
				return false;
			}
			if (!strcmp(name, "__metadata__")) {
				free(name);
				if (has_meta || !strict_metadata(t, f))
					return strict_no(t, "bad metadata");
				has_meta = true;
				continue;
			}
			f->tensor = realloc(f->tensor, (f->ntensor + 1) * sizeof *x);
			x = &f->tensor[f->ntensor++];
			*x = (struct strict_tensor){ .name = name };
			if (!strict_entry(t, x))
				return false;
		} while (strict_is(t, ','));
		if (!strict_want(t, '}'))
			return false;
	}
	strict_blank(t);
	return t->at == t->end || strict_no(t, "something behind the header's object");
}

static bool strict_utf8(const uint8_t *s, uint64_t n)
{
	for (uint64_t i = 0; i < n;) {
		uint32_t c = s[i], more = c < 0x80 ? 0 : c >> 5 == 6 ? 1 : c >> 4 == 14 ? 2 : 3, v;
		static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };

		if (c >= 0x80 && more == 3 && c >> 3 != 30)
			return false;
		if (more > n - i - 1)
			return false;
		v = more ? c & (0x3fu >> more) : c;
		for (uint32_t k = 1; k <= more; k++) {
			if (s[i + k] >> 6 != 2)
				return false;
			v = v << 6 | (s[i + k] & 63);
		}
		if (v < least[more] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
			return false;
		i += more + 1;
	}
	return true;
}

/* 0: unknown */
static uint64_t strict_bits(const char *dtype)
{
	static const struct {
		const char *name;
		uint64_t bits;
	} table[] = {
		{ "BOOL", 8 },	  { "U8", 8 },	    { "I8", 8 },	  { "F8_E5M2", 8 },
		{ "F8_E4M3", 8 }, { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 },
		{ "I16", 16 },	  { "U16", 16 },    { "F16", 16 },	  { "BF16", 16 },
		{ "I32", 32 },	  { "U32", 32 },    { "F32", 32 },	  { "C64", 64 },
		{ "F64", 64 },	  { "I64", 64 },    { "U64", 64 },	  { "F4", 4 },
		{ "F6_E2M3", 6 }, { "F6_E3M2", 6 },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(table[i].name, dtype))
			return table[i].bits;
	return 0;
}

static int strict_order(const void *a, const void *b)
{
	const struct strict_tensor *x = *(struct strict_tensor *const *)a,
				   *y = *(struct strict_tensor *const *)b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

static int strict_name_order(const void *a, const void *b)
{
	const struct strict_tensor *x = *(struct strict_tensor *const *)a,
				   *y = *(struct strict_tensor *const *)b;

	return strcmp(x->name, y->name);
}

static const char *strict_data(const struct strict_file *f, struct strict_tensor **v)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < f->ntensor; i++)
		v[i] = &f->tensor[i];
	qsort(v, f->ntensor, sizeof *v, strict_name_order);
	for (uint32_t i = 1; i < f->ntensor; i++)
		if (!strcmp(v[i - 1]->name, v[i]->name))
			return "two tensors of one name";
	qsort(v, f->ntensor, sizeof *v, strict_order);
	for (uint32_t i = 0; i < f->ntensor; i++) {
		uint64_t bits = strict_bits(v[i]->dtype);

		if (!bits)
			return "an unknown dtype";
		for (uint32_t d = 0; d < v[i]->ndim; d++)
			if (__builtin_mul_overflow(bits, v[i]->shape[d], &bits))
				return "a shape that overflows";
		if (v[i]->begin != at || v[i]->end < at)
			return "a gap or an overlap";
		if (bits % 8 || v[i]->end - at != bits / 8)
			return "a shape that is not of its bytes";
		at = v[i]->end;
	}
	return at == f->len - f->data ? NULL : "the file is shorter or longer than its tensors";
}

bool strict_parse(const void *bytes, uint64_t len, struct strict_file *ret, char why[200])
{
	struct strict_text t = { .why = why };
	struct strict_tensor **v;
	const char *bad;
	uint64_t n = 0;

	*ret = (struct strict_file){ .bytes = malloc(len + 1), .len = len };
	memcpy(ret->bytes, bytes, len);
	why[0] = 0;
	for (int i = 7; len >= 8 && i >= 0; i--)
		n = n << 8 | ret->bytes[i];
	if (len < 8 || n > 100000000 || n > len - 8) {
		snprintf(why, 200, "a header of %llu bytes in a file of %llu",
			 (unsigned long long)n, (unsigned long long)len);
		return false;
	}
	ret->data = 8 + n;
	t.at = ret->bytes + 8;
	t.end = t.at + n;
	if (!strict_utf8(t.at, n))
		return strict_no(&t, "the header is no UTF-8");
	if (!strict_header(&t, ret))
		return strict_no(&t, "malformed");
	v = calloc((size_t)ret->ntensor + 1, sizeof *v);
	bad = strict_data(ret, v);
	free(v);
	if (bad)
		snprintf(why, 200, "%s", bad);
	return !bad;
}

bool strict_load(const char *path, struct strict_file *ret, char why[200])
{
	FILE *f = fopen(path, "rb");
	uint8_t *bytes;
	long len;
	bool ok;

	*ret = (struct strict_file){ 0 };
	if (!f || fseek(f, 0, SEEK_END) || (len = ftell(f)) < 0) {
		snprintf(why, 200, "%.150s cannot be read", path);
		if (f)
			fclose(f);
		return false;
	}
	rewind(f);
	bytes = malloc((size_t)len + 1);
	ok = fread(bytes, 1, (size_t)len, f) == (size_t)len;
	fclose(f);
	if (ok)
		ok = strict_parse(bytes, (uint64_t)len, ret, why);
	else
		snprintf(why, 200, "%.150s cannot be read", path);
	free(bytes);
	return ok;
}

void strict_free(struct strict_file *f)
{
	for (uint32_t i = 0; i < f->ntensor; i++) {
		free(f->tensor[i].name);
		free(f->tensor[i].dtype);
	}
	for (uint32_t i = 0; i < f->nmeta; i++) {
		free(f->meta[i].key);
		free(f->meta[i].value);
	}
	free(f->tensor);
	free(f->meta);
	free(f->bytes);
	*f = (struct strict_file){ 0 };
}

const struct strict_tensor *strict_find(const struct strict_file *f, const char *name)
{
	for (uint32_t i = 0; i < f->ntensor; i++)
		if (!strcmp(f->tensor[i].name, name))
			return &f->tensor[i];
	return NULL;
}

const char *strict_meta(const struct strict_file *f, const char *key)
{
	for (uint32_t i = 0; i < f->nmeta; i++)
		if (!strcmp(f->meta[i].key, key))
			return f->meta[i].value;
	return NULL;
}
