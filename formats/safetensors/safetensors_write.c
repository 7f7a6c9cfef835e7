/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_write.c - makes the header of a safetensors file. Called by whoever writes one.
 * Invariant: a header is made whole or not at all; the size of every piece of text is counted by
 * the code that writes it.
 */
#include "formats/safetensors/safetensors_impl.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include <stdio.h>

#define SHOWN 120 /* bytes of a name in a message */

/* The reference's rank of each dtype; 0: the format has no such thing. */
static const uint8_t order[] = {
	[CKPT_BOOL] = 1,	[CKPT_F4] = 2,	    [CKPT_U8] = 3,	[CKPT_I8] = 4,
	[CKPT_F8_E5M2] = 5,	[CKPT_F8_E4M3] = 6, [CKPT_F8_E8M0] = 7, [CKPT_F8_E4M3FNUZ] = 8,
	[CKPT_F8_E5M2FNUZ] = 9, [CKPT_I16] = 10,    [CKPT_U16] = 11,	[CKPT_F16] = 12,
	[CKPT_BF16] = 13,	[CKPT_I32] = 14,    [CKPT_U32] = 15,	[CKPT_F32] = 16,
	[CKPT_C64] = 17,	[CKPT_F64] = 18,    [CKPT_I64] = 19,	[CKPT_U64] = 20,
};

bool safetensors_dtype(uint32_t dtype)
{
	return dtype < ARRAY_LEN(order) && order[dtype] && dtype_bytes(dtype);
}

/* --- text: counted when at is NULL, else written --- */

void header_put(struct header_text *t, const char *s, size_t n)
{
	if (t->at)
		memcpy(t->at + t->len, s, n);
	t->len += n;
}

void header_put_text(struct header_text *t, const char *s)
{
	header_put(t, s, strlen(s));
}

void header_put_number(struct header_text *t, uint64_t x)
{
	char buf[24];

	header_put(t, buf, (size_t)snprintf(buf, sizeof buf, "%llu", (unsigned long long)x));
}

/* As serde_json escapes: what must be, in the short form where there is one. */
void header_put_string(struct header_text *t, const char *s)
{
	static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";

	header_put(t, "\"", 1);
	for (; *s; s++) {
		const char *p = strchr(from, *s);
		char buf[8];

		if (p) {
			buf[0] = '\\';
			buf[1] = to[p - from];
			header_put(t, buf, 2);
		} else if ((unsigned char)*s < 0x20) {
			header_put(t, buf,
				   (size_t)snprintf(buf, sizeof buf, "\\u%04x", (unsigned)*s));
		} else {
			header_put(t, s, 1);
		}
	}
	header_put(t, "\"", 1);
}

/* --- what the format refuses --- */

/* A name for a message: what is no printable ASCII is '?'. */
static const char *name_shown(const char *name, char buf[SHOWN + 1])
{
	size_t n = strnlen(name, SHOWN);

	for (size_t i = 0; i < n; i++)
		buf[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
	buf[n] = 0;
	return buf;
}

/* Sets bytes. */
static void tensor_check(struct safetensors_tensor *x, struct ckpt_errlist *list)
{
	char buf[SHOWN + 1];
	uint64_t numel;

	name_shown(x->name, buf);
	if (!json_is_utf8(x->name))
		ckpt_errlist_add(list, "tensor %s: its name is no UTF-8", buf);
	else if (!strcmp(x->name, SAFETENSORS_METADATA))
		ckpt_errlist_add(list, "tensor %s: the format uses this name itself", buf);
	if (!safetensors_dtype(x->dtype))
		ckpt_errlist_add(list, "tensor %s: the format has no dtype %s", buf,
				 dtype_name(x->dtype));
	else if (dtype_values(x->dtype) > 1 && !x->ndim)
		ckpt_errlist_add(list, "tensor %s: %s without a dimension is half a byte", buf,
				 dtype_name(x->dtype));
	else if (shape_numel(x->ndim, x->shape, &numel) ||
		 ckpt_mul(numel, dtype_bytes(x->dtype), &x->bytes) || x->bytes > INT64_MAX)
		ckpt_errlist_add(list, "tensor %s: its size does not fit into 63 bits", buf);
}

static int by_name(const void *a, const void *b)
{
	const struct safetensors_tensor *x = *(struct safetensors_tensor *const *)a,
					*y = *(struct safetensors_tensor *const *)b;

	return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_place(const void *a, const void *b)
{
	const struct safetensors_tensor *x = *(struct safetensors_tensor *const *)a,
					*y = *(struct safetensors_tensor *const *)b;

	if (x->dtype != y->dtype)
		return (int)order[y->dtype] - (int)order[x->dtype];
	return strcmp(x->name, y->name);
}

static void check_names(struct safetensors_tensor **sorted, uint32_t n, struct ckpt_errlist *list)
{
	char buf[SHOWN + 1];

	qsort(sorted, n, sizeof(*sorted), by_name);
	for (uint32_t i = 1; i < n; i++)
		if (!strcmp(sorted[i - 1]->name, sorted[i]->name) &&
		    (i < 2 || strcmp(sorted[i - 2]->name, sorted[i]->name)))
			ckpt_errlist_add(list, "tensor %s: two or more have this name",
					 name_shown(sorted[i]->name, buf));
}

/* ret_key: [n]. */
static void check_meta(const struct safetensors_meta *meta, uint32_t n, const char **ret_key,
		       struct ckpt_errlist *list)
{
	char buf[SHOWN + 1];

	for (uint32_t i = 0; i < n; i++) {
		ret_key[i] = meta[i].key;
		if (!json_is_utf8(meta[i].key) || !json_is_utf8(meta[i].value))
			ckpt_errlist_add(list, "metadata %s: this is no UTF-8",
					 name_shown(meta[i].key, buf));
	}
	qsort(ret_key, n, sizeof *ret_key, by_key);
	for (uint32_t i = 1; i < n; i++)
		if (!strcmp(ret_key[i - 1], ret_key[i]))
			ckpt_errlist_add(list, "metadata %s: the key is there twice",
					 name_shown(ret_key[i], buf));
}

/* --- the header --- */

static void put_tensor(struct header_text *t, const struct safetensors_tensor *x, uint64_t at)
{
	header_put_string(t, x->name);
	header_put_text(t, ":{\"dtype\":\"");
	header_put_text(t, dtype_name(x->dtype));
	header_put_text(t, "\",\"shape\":[");
	for (uint32_t d = 0; d < x->ndim; d++) {
		header_put(t, ",", d != 0);
		header_put_number(t, x->shape[d] * (d + 1 == x->ndim ? dtype_values(x->dtype) : 1));
	}
	header_put_text(t, "],\"data_offsets\":[");
	header_put_number(t, at);
	header_put(t, ",", 1);
	header_put_number(t, at + x->bytes);
	header_put_text(t, "]}");
}

/* *ret_data: the bytes of all tensors, which check_total has found to fit. */
static void put_header(struct header_text *t, struct safetensors_tensor *const *sorted, uint32_t n,
		       const struct safetensors_meta *meta, uint32_t nmeta, uint32_t align,
		       uint64_t *ret_data)
{
	uint64_t at = 0;

	header_put(t, "{", 1);
	if (nmeta)
		header_put_text(t, "\"" SAFETENSORS_METADATA "\":{");
	for (uint32_t i = 0; i < nmeta; i++) {
		header_put(t, ",", i != 0);
		header_put_string(t, meta[i].key);
		header_put(t, ":", 1);
		header_put_string(t, meta[i].value);
	}
	header_put(t, "}", nmeta != 0);
	for (uint32_t i = 0; i < n; i++) {
		header_put(t, ",", i || nmeta);
		put_tensor(t, sorted[i], at);
		at += sorted[i]->bytes;
	}
	header_put(t, "}", 1);
	while ((sizeof(le64) + t->len) % align)
		header_put(t, " ", 1);
	*ret_data = at;
}

static int header_build(struct safetensors_tensor **sorted, uint32_t n,
			const struct safetensors_meta *meta, uint32_t nmeta, uint32_t align,
			struct arena *a, struct safetensors_head *ret, struct ckpt_errlist *list)
{
	struct header_text t = { .at = NULL };
	uint64_t data, at, length;
	le64 first;
	char *head;

	put_header(&t, sorted, n, meta, nmeta, align, &data);
	length = t.len;
	if (length > SAFETENSORS_HEADER_MAX) {
		ckpt_errlist_add(list,
				 "the names and shapes of %u tensors make a header of %llu bytes; "
				 "the format takes %u",
				 n, (unsigned long long)length, SAFETENSORS_HEADER_MAX);
		return 0;
	}
	head = arena_alloc(a, sizeof first + length);
	if (!head)
		return -ENOMEM;
	first = le64_of(length);
	memcpy(head, &first, sizeof first);
	t = (struct header_text){ .at = head + sizeof first };
	put_header(&t, sorted, n, meta, nmeta, align, &data);
	assert(t.len == length);
	at = sizeof first + length;
	*ret = (struct safetensors_head){ .bytes = head, .len = at, .file_bytes = at + data };
	for (uint32_t i = 0; i < n; i++) {
		sorted[i]->off = at;
		at += sorted[i]->bytes;
	}
	return 0;
}

/* A file's size is a signed number of 64 bits; the header takes less than a GiB of it. */
static void check_total(const struct safetensors_tensor *x, uint32_t n, struct ckpt_errlist *list)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		if (ckpt_add(sum, x[i].bytes, &sum) || sum > INT64_MAX - GIB) {
			ckpt_errlist_add(list, "all tensors together do not fit into one file");
			return;
		}
}

int safetensors_make(struct safetensors_tensor *x, uint32_t n, const struct safetensors_meta *meta,
		     uint32_t nmeta, uint32_t align, struct arena *a,
		     struct safetensors_head *ret_head, struct ckpt_errlist *ret_list,
		     struct ckpt_err *err)
{
	cleanup_free struct safetensors_tensor **sorted = calloc((size_t)n + 1, sizeof(*sorted));
	cleanup_free const char **key = calloc((size_t)nmeta + 1, sizeof(*key));
	struct ckpt_errlist own = { .code = -EMEDIUMTYPE }, *list = ret_list ? ret_list : &own;
	uint64_t before = list->n;
	int rc = 0;

	if (!sorted || !key)
		return ckpt_error(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < n; i++) {
		x[i].off = x[i].bytes = 0;
		sorted[i] = &x[i];
		tensor_check(&x[i], list);
	}
	check_names(sorted, n, list);
	check_meta(meta, nmeta, key, list);
	check_total(x, n, list);
	if (list->n == before) {
		qsort(sorted, n, sizeof(*sorted), by_place);
		rc = header_build(sorted, n, meta, nmeta, align, a, ret_head, list);
	}
	if (rc)
		rc = ckpt_error(err, rc, "out of memory");
	else if (list->n > before)
		rc = ckpt_errlist_end(list, err, "safetensors cannot hold this");
	ckpt_errlist_free(&own);
	return rc;
}
