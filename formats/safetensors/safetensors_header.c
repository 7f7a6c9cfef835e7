/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_header.c - reads the JSON of a safetensors file, of its index and of DCP's sharding
 * info. Called by safetensors_read.c. Invariant: a tensor is given on only if its bytes lie in the
 * data and are as many as its shape and dtype say; a header is good only if its tensors' bytes tile
 * the data.
 */
#include "formats/safetensors/safetensors_impl.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include <stdio.h>

struct extent {
	uint64_t begin, end;
};

struct scan {
	struct json j;
	const char *what;
	const struct header_sink *to;
	struct ckpt_err *err;
	struct extent *extent;
	uint64_t n, cap, data_bytes, sum;
	uint64_t meta_end; /* in the text, of what "__metadata__" is */
	bool ascending, has_meta;
};

int json_name_take(struct json *j, const struct json_token *t, char **ret)
{
	char *s = (char *)(uintptr_t)t->text;
	uint64_t n = json_unescape(t, s);

	s[n] = 0; /* at the closing quote, or before it */
	*ret = s;
	if (strlen(s) == n)
		return 0;
	return json_refuse(j, t, -EPROTONOSUPPORT,
			   "a text has a zero byte in it, which no text of ckptd has");
}

/* --- values that the format does not have, or ckptd --- */

static int tensor_unsupported(struct scan *s, const struct json_token *at, const char *name,
			      const char *why)
{
	return json_refuse(&s->j, at, -EPROTONOSUPPORT, "tensor %.200s: %s", name, why);
}

static int dtype_take(struct scan *s, const struct json_token *t, const char *name, uint32_t *ret)
{
	char text[32], why[200];
	uint64_t n = 0;

	if (t->len < sizeof text) {
		n = json_unescape(t, text);
		text[n] = 0;
		*ret = dtype_of_name(text);
		if (*ret && (safetensors_dtype(*ret) || *ret == CKPT_C32))
			return 0;
	}
	snprintf(why, sizeof why, "its dtype %.*s %s", (int)MIN(t->len, UINT64_C(40)), t->text,
		 t->len > 3 && !memcmp(t->text, "F6_", 3)
			 ? "has elements of 6 bits, which ckptd does not have"
			 : "is not known");
	return tensor_unsupported(s, t, name, why);
}

/* --- one entry --- */

static int shape_read(struct scan *s, struct header_tensor *x)
{
	struct json_token t;
	int rc = json_want(&s->j, JSON_ARRAY, "shape", &t);

	for (x->ndim = 0; !rc;) {
		rc = json_next(&s->j, &t);
		if (rc || t.kind == JSON_ARRAY_END)
			return rc;
		if (t.kind != JSON_UINT)
			return json_fail(
				&s->j, &t,
				"tensor %.200s: its shape must have whole numbers from 0 on",
				x->name);
		if (x->ndim == CKPT_DIMS_MAX)
			return tensor_unsupported(
				s, &t, x->name,
				"it has more than 16 dimensions, which ckptd does not have");
		x->shape[x->ndim++] = t.number;
	}
	return rc;
}

static int offsets_read(struct scan *s, struct header_tensor *x)
{
	struct json_token t;
	int rc = json_want(&s->j, JSON_ARRAY, "data_offsets", &t);

	if (!rc)
		rc = json_want(&s->j, JSON_UINT, "the first of data_offsets", &t);
	x->begin = t.number;
	if (!rc)
		rc = json_want(&s->j, JSON_UINT, "the second of data_offsets", &t);
	x->end = t.number;
	return rc ? rc : json_want(&s->j, JSON_ARRAY_END, "data_offsets, of two numbers,", &t);
}

/* F4: two values in a byte, side by side in the last dimension. */
static int shape_settle(struct scan *s, const struct json_token *at, struct header_tensor *x)
{
	uint64_t numel = 1, bits, values = dtype_values(x->dtype);
	bool counted = true;

	/* The reference multiplies in this order, so a 0 behind what is too large does not help. */
	for (uint32_t d = 0; d < x->ndim && counted; d++)
		counted = !ckpt_mul(numel, x->shape[d], &numel);
	if (!counted || ckpt_mul(numel, dtype_bytes(x->dtype) * 8 / values, &bits))
		return json_fail(&s->j, at,
				 "tensor %.200s: its shape has more bytes than can be counted",
				 x->name);
	if (shape_numel(x->ndim, x->shape, &numel))
		return tensor_unsupported(s, at, x->name, "a dimension has 2^63 elements or more");
	if (bits % 8)
		return json_fail(&s->j, at,
				 "tensor %.200s: its %llu elements of %s end inside of a byte",
				 x->name, (unsigned long long)numel, dtype_name(x->dtype));
	if (values > 1) {
		if (x->shape[x->ndim - 1] % values)
			return tensor_unsupported(
				s, at, x->name,
				"its last dimension is odd, so rows of 4-bit elements end inside of bytes");
		x->shape[x->ndim - 1] /= values;
	}
	if (x->end < x->begin || (x->end - x->begin != bits / 8 && !MUTANT(SAFETENSORS_SIZE)))
		return json_fail(
			&s->j, at,
			"tensor %.200s: data_offsets %llu and %llu are not around the %llu "
			"bytes that its shape and dtype have",
			x->name, (unsigned long long)x->begin, (unsigned long long)x->end,
			(unsigned long long)bits / 8);
	return 0;
}

static int extent_add(struct scan *s, const struct json_token *at, const struct header_tensor *x)
{
	uint64_t last = s->n ? s->extent[s->n - 1].end : 0;

	if (x->end > s->data_bytes)
		return json_refuse(
			&s->j, at, -EBADMSG,
			"tensor %.200s: its data end at byte %llu of the data, of which the "
			"file has %llu",
			x->name, (unsigned long long)x->end, (unsigned long long)s->data_bytes);
	s->sum += x->end - x->begin;
	if (s->sum > s->data_bytes)
		return json_fail(&s->j, at,
				 "tensor %.200s: it and those before it have more bytes than the "
				 "data: some overlap",
				 x->name);
	s->ascending &= x->begin == last;
	if (!ARRAY_GROW(s->extent, s->n, s->cap))
		return ckpt_error(s->err, -ENOMEM, "out of memory for %s", s->what);
	s->extent[s->n++] = (struct extent){ x->begin, x->end };
	return 0;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

static int member_read(struct scan *s, const struct json_token *key, struct header_tensor *x,
		       uint32_t *has)
{
	uint32_t bit = json_is(key, "dtype")	      ? HAS_DTYPE
		       : json_is(key, "shape")	      ? HAS_SHAPE
		       : json_is(key, "data_offsets") ? HAS_OFFSETS
						      : 0;
	struct json_token t;
	int rc;

	if (*has & bit)
		return json_fail(&s->j, key, "tensor %.200s: %.*s is there twice", x->name,
				 (int)key->len, key->text);
	*has |= bit;
	switch (bit) {
	case HAS_DTYPE:
		rc = json_want(&s->j, JSON_STRING, "dtype", &t);
		return rc ? rc : dtype_take(s, &t, x->name, &x->dtype);
	case HAS_SHAPE:
		return shape_read(s, x);
	case HAS_OFFSETS:
		return offsets_read(s, x);
	default:
		rc = json_next(&s->j, &t);
		return rc ? rc : json_skip(&s->j, &t);
	}
}

static int tensor_read(struct scan *s, const struct json_token *name)
{
	struct header_tensor x;
	struct json_token t;
	uint32_t has = 0;
	int rc = json_name_take(&s->j, name, &x.name);

	if (!rc)
		rc = json_want(&s->j, JSON_OBJECT, x.name, &t);
	while (!rc) {
		rc = json_next(&s->j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			break;
		rc = member_read(s, &t, &x, &has);
	}
	if (!rc && has != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS))
		return json_fail(&s->j, name, "tensor %.200s: %s is missing", x.name,
				 !(has & HAS_DTYPE)   ? "dtype"
				 : !(has & HAS_SHAPE) ? "shape"
						      : "data_offsets");
	if (!rc)
		rc = shape_settle(s, name, &x);
	if (!rc)
		rc = extent_add(s, name, &x);
	return rc ? rc : s->to->tensor(s->to->arg, &x, &s->j, name);
}

/* --- metadata --- */

/* Keys and values stay where they are in the text, which is not read again here. */
static int meta_read(struct scan *s)
{
	struct arena a = { 0 };
	struct strmap seen = { 0 };
	struct json_token t = { 0 }, v;
	char *key, *value;
	int rc = json_next(&s->j, &t);

	if (!rc && t.kind != JSON_NULL && t.kind != JSON_OBJECT)
		rc = json_fail(&s->j, &t, "\"__metadata__\" must be an object");
	while (!rc && t.kind != JSON_NULL) {
		rc = json_next(&s->j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			break;
		rc = json_want(&s->j, JSON_STRING, "a value of \"__metadata__\"", &v);
		if (!rc)
			rc = json_name_take(&s->j, &t, &key);
		if (!rc)
			rc = json_name_take(&s->j, &v, &value);
		if (!rc && seen.map.n == TABLE_TENSORS_MAX)
			rc = json_refuse(&s->j, &t, -EPROTONOSUPPORT,
					 "\"__metadata__\" has more than %u strings",
					 TABLE_TENSORS_MAX);
		if (rc)
			break;
		rc = strmap_add(&seen, &a, key, strlen(key), &(uint32_t){ 0 });
		if (!rc)
			rc = json_fail(&s->j, &t, "%.200s is in \"__metadata__\" twice", key);
		else if (rc > 0)
			rc = s->to->meta(s->to->arg, key, value);
		else
			rc = ckpt_error(s->err, rc, "out of memory for %s", s->what);
	}
	arena_free(&a);
	s->meta_end = t.off + t.len;
	return rc;
}

/* --- all of it --- */

static int members_read(struct scan *s, bool tensors)
{
	struct json_token t, v;
	int rc = json_want(&s->j, JSON_OBJECT, "it", &t);

	while (!rc) {
		rc = json_next(&s->j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			break;
		if (json_is(&t, SAFETENSORS_METADATA)) {
			if (!tensors)
				return meta_read(s);
			if (s->has_meta)
				return json_fail(&s->j, &t, "\"__metadata__\" is there twice");
			s->has_meta = true;
			json_jump(&s->j, s->meta_end);
		} else if (tensors) {
			rc = tensor_read(s, &t);
		} else {
			rc = json_next(&s->j, &v);
			if (!rc)
				rc = json_skip(&s->j, &v);
		}
	}
	return rc ? rc : json_want(&s->j, JSON_END, "it", &t);
}

static int extent_compare(const void *va, const void *vb)
{
	const struct extent *x = va, *y = vb;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

static int extents_check(struct scan *s)
{
	uint64_t at = 0;

	if (!s->ascending)
		qsort(s->extent, s->n, sizeof *s->extent, extent_compare);
	for (uint64_t i = 0; i < s->n; at = s->extent[i++].end)
		if (s->extent[i].begin != at && !MUTANT(SAFETENSORS_HOLES))
			return ckpt_error(s->err, -EPROTO,
					  "%s: byte %llu of the data belongs to %s tensor%s",
					  s->what, (unsigned long long)MIN(at, s->extent[i].begin),
					  s->extent[i].begin > at ? "no" : "more than one",
					  s->extent[i].begin > at ? "" : ": they overlap");
	if (at != s->data_bytes && !MUTANT(SAFETENSORS_TAIL))
		return ckpt_error(s->err, -EPROTO,
				  "%s: %llu bytes behind the last tensor belong to none", s->what,
				  (unsigned long long)(s->data_bytes - at));
	return 0;
}

int header_read(void *bytes, uint64_t len, uint64_t data_bytes, const char *what,
		const struct header_sink *to, struct ckpt_err *err)
{
	struct ckpt_err own;
	struct scan s = { .what = what,
			  .to = to,
			  .err = err ? err : &own,
			  .data_bytes = data_bytes,
			  .ascending = true };
	int rc;

	json_begin(&s.j, bytes, len, what, s.err);
	rc = members_read(&s, false);
	if (!rc) {
		json_begin(&s.j, bytes, len, what, s.err);
		rc = members_read(&s, true);
	}
	if (!rc)
		rc = extents_check(&s);
	free(s.extent);
	return rc;
}

int header_meta(void *bytes, uint64_t len, const char *what, const struct header_sink *to,
		struct ckpt_err *err)
{
	struct ckpt_err own;
	struct scan s = { .what = what, .to = to, .err = err ? err : &own };

	json_begin(&s.j, bytes, len, what, s.err);
	return members_read(&s, false);
}

int header_load(const struct source *src, const char *name, void **ret, uint64_t *ret_len,
		struct ckpt_err *err)
{
	uint64_t len;
	le64 first;
	int rc;

	if (src->bytes < sizeof first)
		return ckpt_error(err, -EBADMSG, "%s has %llu bytes: a header begins with 8 bytes",
				  name, (unsigned long long)src->bytes);
	rc = src->read(src->ctx, &first, sizeof first, 0);
	if (rc < 0)
		return ckpt_error_errno(err, -rc, "%s cannot be read", name);
	len = le64_get(first);
	if (len > SAFETENSORS_HEADER_MAX && !MUTANT(SAFETENSORS_HEADER_HUGE))
		return ckpt_error(
			err, -EPROTO,
			"%s: its first bytes say that the header has %llu bytes; the format "
			"allows %u",
			name, (unsigned long long)len, SAFETENSORS_HEADER_MAX);
	if (len > src->bytes - sizeof first)
		return ckpt_error(err, -EBADMSG,
				  "%s: its header has %llu bytes, the file %llu: it is cut, or no "
				  "safetensors file",
				  name, (unsigned long long)len, (unsigned long long)src->bytes);
	*ret = malloc(len + 1);
	if (!*ret)
		return ckpt_error(err, -ENOMEM, "out of memory for the header of %s", name);
	rc = src->read(src->ctx, *ret, len, sizeof first);
	*ret_len = len;
	return rc < 0 ? ckpt_error_errno(err, -rc, "%s cannot be read", name) : 0;
}

/* --- the index --- */

static int tensors_too_many(struct json *j, const struct json_token *at)
{
	return json_refuse(j, at, -EPROTONOSUPPORT,
			   "more than %u tensors, which ckptd does not open", TABLE_TENSORS_MAX);
}

static int weights_read(struct json *j, struct arena *a, struct weight_index *w, uint32_t **of,
			uint32_t *cap, struct ckpt_err *err)
{
	struct json_token t, v;
	uint32_t tensor, file;
	char *name, *value;
	int rc = json_want(j, JSON_OBJECT, "weight_map", &t);

	while (!rc) {
		rc = json_next(j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			return rc;
		rc = json_want(j, JSON_STRING, "a value of weight_map", &v);
		if (!rc)
			rc = json_name_take(j, &t, &name);
		if (!rc)
			rc = json_name_take(j, &v, &value);
		if (rc)
			return rc;
		rc = strmap_add(&w->tensor, a, name, strlen(name), &tensor);
		if (!rc)
			return json_fail(j, &t, "tensor %.200s is in weight_map twice", name);
		if (rc > 0 && tensor == TABLE_TENSORS_MAX)
			return tensors_too_many(j, &t);
		if (rc > 0)
			rc = strmap_add(&w->file, a, value, strlen(value), &file);
		if (rc >= 0 && !ARRAY_GROW(*of, tensor, *cap))
			rc = -ENOMEM;
		if (rc < 0)
			return ckpt_error(err, rc, "no memory for the index");
		(*of)[tensor] = file;
		rc = 0;
	}
	return rc;
}

int weight_index_read(void *bytes, uint64_t len, const char *what, struct arena *a,
		      struct weight_index *ret, struct ckpt_err *err)
{
	cleanup_free uint32_t *of = NULL;
	struct json_token t;
	struct json j;
	uint32_t cap = 0;
	bool found = false;
	int rc;

	*ret = (struct weight_index){ 0 };
	json_begin(&j, bytes, len, what, err);
	rc = json_want(&j, JSON_OBJECT, "it", &t);
	while (!rc) {
		rc = json_next(&j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			break;
		if (json_is(&t, "weight_map")) {
			if (found)
				return json_fail(&j, &t, "weight_map is there twice");
			found = true;
			rc = weights_read(&j, a, ret, &of, &cap, err);
			continue;
		}
		rc = json_next(&j, &t);
		if (!rc)
			rc = json_skip(&j, &t);
	}
	if (!rc && !found)
		rc = json_fail(&j, &t, "it has no weight_map");
	if (!rc)
		rc = json_want(&j, JSON_END, "it", &t);
	if (rc)
		return rc;
	ret->of = arena_dup(a, of ? of : &cap, ret->tensor.map.n * sizeof *of);
	return ret->of ? 0 : ckpt_error(err, -ENOMEM, "out of memory for %s", what);
}

/* --- DCP's sharding info: JSON in a string --- */

static int numbers_read(struct json *j, const char *member, struct arena *a, uint32_t *ret_n,
			const uint64_t **ret, struct ckpt_err *err)
{
	uint64_t at[CKPT_DIMS_MAX];
	struct json_token t;
	uint32_t n = 0;
	int rc = json_want(j, JSON_ARRAY, member, &t);

	while (!rc) {
		rc = json_next(j, &t);
		if (rc || t.kind == JSON_ARRAY_END)
			break;
		if (t.kind != JSON_UINT || n == CKPT_DIMS_MAX)
			return json_fail(j, &t, "%s must be at most 16 whole numbers from 0 on",
					 member);
		at[n++] = t.number;
	}
	if (rc)
		return rc;
	*ret_n = n;
	*ret = arena_dup(a, at, n * sizeof *at);
	return *ret ? 0 : ckpt_error(err, -ENOMEM, "out of memory for %s", member);
}

static int shard_member(struct json *j, const struct json_token *key, struct arena *a,
			struct shard *ret, struct ckpt_err *err)
{
	struct json_token t;
	char *text;
	int rc;

	if (!ret->at && json_is(key, "saved_offsets"))
		return numbers_read(j, "saved_offsets", a, &ret->n, &ret->at, err);
	if (!ret->shape && json_is(key, "shape"))
		return numbers_read(j, "shape", a, &ret->nshape, &ret->shape, err);
	rc = json_next(j, &t);
	if (rc)
		return rc;
	if (t.kind == JSON_STRING && json_is(key, "placements")) {
		rc = json_name_take(j, &t, &text);
		ret->placements = text;
		return rc;
	}
	return json_skip(j, &t);
}

static int shard_read(struct json *j, struct arena *a, struct shard *ret, struct ckpt_err *err)
{
	struct json_token t;
	int rc = json_want(j, JSON_OBJECT, "a tensor", &t);

	*ret = (struct shard){ 0 };
	while (!rc) {
		rc = json_next(j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			break;
		rc = shard_member(j, &t, a, ret, err);
	}
	if (rc || ret->at || (ret->placements && ret->shape))
		return rc;
	return json_fail(j, &t, "a tensor has no saved_offsets");
}

int sharding_read(char *text, const char *what, struct arena *a, struct sharding *ret,
		  struct ckpt_err *err)
{
	uint32_t cap = 0, number;
	char *name;
	struct json_token t;
	struct json j;
	int rc;

	json_begin(&j, text, strlen(text), what, err);
	rc = json_want(&j, JSON_OBJECT, "it", &t);
	while (!rc) {
		rc = json_next(&j, &t);
		if (rc || t.kind == JSON_OBJECT_END)
			break;
		rc = json_name_take(&j, &t, &name);
		if (rc)
			return rc;
		rc = strmap_add(&ret->tensor, a, name, strlen(name), &number);
		if (!rc)
			return json_fail(&j, &t, "tensor %.200s is there twice", name);
		if (rc > 0 && number == TABLE_TENSORS_MAX)
			return tensors_too_many(&j, &t);
		if (rc > 0 && !ARRAY_GROW(ret->of, number, cap))
			rc = -ENOMEM;
		if (rc < 0)
			return ckpt_error(err, rc, "no memory for %s", what);
		rc = shard_read(&j, a, &ret->of[number], err);
	}
	return rc ? rc : json_want(&j, JSON_END, "it", &t);
}
