/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.c - ranges of indices from a command line. Called by the verbs that take --slice.
 * Invariant: what is returned lies inside the shape.
 */
#include "ckpt/engine/slice.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include <stdarg.h>
#include <stdio.h>

#define SHAPE_BYTES 400

struct scan {
	const char *text, *at;
	uint32_t ndim;
	const uint64_t *shape;
	struct ckpt_err *err;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct scan *s, const char *fmt, ...)
{
	char why[256], shape[SHAPE_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return ckpt_error(s->err, -EINVAL,
			  "--slice \"%.100s\": character %zu: %s (the tensor's shape is %s)",
			  s->text, (size_t)(s->at - s->text) + 1, why,
			  human_shape(s->ndim, s->shape, shape, sizeof shape));
}

static void blanks_skip(struct scan *s)
{
	s->at += strspn(s->at, " \t");
}

/* A number, if there is one: 1, 0, or an error. Its size stops counting where no tensor can be so
 * large, so that it is cut like any other that lies outside. */
static int scan_number(struct scan *s, int64_t *ret)
{
	const char *p = s->at;
	bool minus = *p == '-';
	uint64_t n = 0;

	p += minus || *p == '+';
	if (*p < '0' || *p > '9')
		return p > s->at ? refuse(s, "a number must follow the sign") : 0;
	for (; *p >= '0' && *p <= '9'; p++)
		if (ckpt_mul(n, 10, &n) || ckpt_add(n, (uint64_t)(*p - '0'), &n) || n > INT64_MAX)
			n = INT64_MAX;
	s->at = p;
	*ret = minus ? -(int64_t)n : (int64_t)n;
	return 1;
}

/* The end of a range: inside [0, extent]. */
static uint64_t number_cut(int64_t n, uint64_t extent)
{
	if (n >= 0)
		return MIN((uint64_t)n, extent);
	return (uint64_t)-n > extent ? 0 : extent - (uint64_t)-n;
}

static int scan_item(struct scan *s, uint32_t d, struct slice *ret)
{
	const char *begin = s->at;
	int64_t from = 0, to = 0;
	uint64_t extent = s->shape[d], stop;
	int has_from = scan_number(s, &from), has_to;

	if (has_from < 0)
		return has_from;
	blanks_skip(s);
	if (*s->at != ':') {
		if (!has_from)
			return refuse(s, "expected a range like 0:4, a \":\" or an index");
		if (from >= 0 ? (uint64_t)from >= extent : (uint64_t)-from > extent) {
			s->at = begin;
			return refuse(s, "index %lld is outside of dimension %u, which has %llu",
				      (long long)from, d, (unsigned long long)extent);
		}
		ret->start[d] = number_cut(from, extent);
		ret->count[d] = 1;
		ret->single[d] = true;
		return 0;
	}
	s->at++;
	blanks_skip(s);
	has_to = scan_number(s, &to);
	if (has_to < 0)
		return has_to;
	blanks_skip(s);
	if (*s->at == ':')
		return refuse(s, "a range has no step here: write from:to");
	ret->start[d] = has_from ? number_cut(from, extent) : 0;
	stop = has_to ? number_cut(to, extent) : extent;
	ret->count[d] = stop > ret->start[d] ? stop - ret->start[d] : 0;
	ret->shape[ret->nshape++] = ret->count[d];
	return 0;
}

static int scan_all(struct scan *s, struct slice *ret, uint32_t *ret_n)
{
	uint32_t n = 0;

	do {
		int rc;

		s->at += n > 0; /* the comma */
		blanks_skip(s);
		if (n == s->ndim && !s->ndim)
			return refuse(s, "the tensor is a single value: there is nothing to slice");
		if (n == s->ndim)
			return refuse(s, "this is one item more than the tensor has dimensions");
		rc = scan_item(s, n, ret);
		if (rc)
			return rc;
		n++;
		blanks_skip(s);
	} while (*s->at == ',');
	if (*s->at)
		return refuse(s, "expected a \",\" or the end");
	*ret_n = n;
	return 0;
}

int slice_parse(const char *text, uint32_t ndim, const uint64_t *shape, struct slice *ret,
		struct ckpt_err *err)
{
	struct scan s = { .text = text, .at = text, .ndim = ndim, .shape = shape, .err = err };
	uint32_t n = 0;
	int rc;

	*ret = (struct slice){ .ndim = ndim };
	rc = text ? scan_all(&s, ret, &n) : 0;
	if (rc)
		return rc;
	for (; n < ndim; n++) {
		ret->count[n] = shape[n];
		ret->shape[ret->nshape++] = shape[n];
	}
	return shape_numel(ndim, ret->count, &ret->numel);
}

int slice_pack(const char *text, const struct slice *s, uint32_t values, struct slice *ret,
	       struct ckpt_err *err)
{
	uint32_t d = s->ndim - 1;

	*ret = *s;
	if (values == 1 || !s->ndim)
		return 0;
	if (s->single[d] || s->start[d] % values || s->count[d] % values)
		return ckpt_error(
			err, -EINVAL,
			"--slice \"%.100s\": %u values of the last dimension are one byte: "
			"there write a range whose ends are multiples of %u",
			text, values, values);
	ret->start[d] /= values;
	ret->count[d] /= values;
	ret->shape[s->nshape - 1] /= values;
	ret->numel /= values;
	return 0;
}

char *slice_print(const struct slice *s, const uint64_t *shape, char *buf, size_t bytes)
{
	size_t len = (size_t)snprintf(buf, bytes, "[");

	for (uint32_t d = 0; d < s->ndim && len < bytes; d++) {
		unsigned long long from = s->start[d], to = from + s->count[d];
		const char *comma = d ? ", " : "";
		int n;

		if (s->single[d])
			n = snprintf(buf + len, bytes - len, "%s%llu", comma, from);
		else if (s->count[d] == shape[d])
			n = snprintf(buf + len, bytes - len, "%s:", comma);
		else
			n = snprintf(buf + len, bytes - len, "%s%llu:%llu", comma, from, to);
		len += (size_t)n;
	}
	if (len < bytes)
		snprintf(buf + len, bytes - len, "]");
	return buf;
}
