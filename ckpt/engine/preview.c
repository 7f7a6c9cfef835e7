/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preview.c - see preview.h. Called by cat on a terminal.
 * Invariant: no more than PREVIEW_MAX elements, whatever the shape.
 */
#include "ckpt/engine/preview.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/element.h"
#include <stdio.h>

#define DIGITS 4
#define EDGE 3
#define LINE_BYTES 4096

static uint64_t shown_numel(const struct preview *p)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < p->ndim; d++)
		if (ckpt_mul(n, p->head[d] + p->tail[d], &n))
			return UINT64_MAX;
	return n;
}

static void edges_keep(struct preview *p, uint32_t d, uint64_t head, uint64_t tail)
{
	uint64_t grain = d + 1 == p->ndim ? p->grain : 1;
	bool all;

	head = align_up(head, grain);
	tail = align_up(tail, grain);
	all = p->shape[d] <= head + tail;
	p->head[d] = all ? p->shape[d] : head;
	p->tail[d] = all ? 0 : tail;
}

void preview_choose(uint32_t ndim, const uint64_t *shape, uint32_t grain, struct preview *ret)
{
	*ret = (struct preview){ .ndim = ndim, .grain = grain };
	for (uint32_t d = 0; d < ndim; d++) {
		ret->shape[d] = shape[d];
		ret->head[d] = shape[d];
	}
	if (shown_numel(ret) > PREVIEW_ALL)
		for (uint32_t d = 0; d < ndim; d++)
			edges_keep(ret, d, EDGE, EDGE);
	/* Many dimensions: less of the outer ones, until it is little enough. */
	for (uint32_t d = 0; d < ndim && shown_numel(ret) > PREVIEW_MAX; d++)
		edges_keep(ret, d, 1, 1);
	for (uint32_t d = 0; d < ndim && shown_numel(ret) > PREVIEW_MAX; d++)
		edges_keep(ret, d, 1, 0);
	ret->numel = shown_numel(ret);
}

int preview_indices(const struct preview *p, uint32_t d, uint64_t base, struct arena *a,
		    struct indices *ret)
{
	struct indices head, tail;
	struct run *run;
	int rc = indices_range(base, base + p->head[d], a, &head);

	if (!rc)
		rc = indices_range(base + p->shape[d] - p->tail[d], base + p->shape[d], a, &tail);
	if (rc || !p->tail[d]) {
		*ret = head;
		return rc;
	}
	run = arena_array(a, 2, sizeof *run);
	if (!run)
		return -ENOMEM;
	run[0] = head.run[0];
	run[1] = tail.run[0];
	*ret = (struct indices){ .n = 2, .total = head.total + tail.total, .run = run };
	return 0;
}

/* The text, line by line. */
struct preview_text {
	const struct preview *p;
	void (*line_fn)(void *arg, const char *text);
	void *arg;
	uint32_t columns;	      /* of a line */
	uint32_t dtype, bytes, width; /* width: of a value */
	const uint8_t *at;	      /* the next value */
	char line[LINE_BYTES];
	size_t len, indent;
};

static void line_end(struct preview_text *w)
{
	w->line[w->len] = 0;
	while (w->len && w->line[w->len - 1] == ' ')
		w->line[--w->len] = 0;
	w->line_fn(w->arg, w->line);
	w->len = 0;
}

static void line_put(struct preview_text *w, const char *s)
{
	w->len += (size_t)snprintf(w->line + w->len, sizeof w->line - w->len, "%s", s);
}

static void line_indent(struct preview_text *w, size_t n)
{
	w->len += (size_t)snprintf(w->line + w->len, sizeof w->line - w->len, "%*s", (int)n, "");
}

/* A value, or the dots of a row: on a line of its own where it does not fit. */
static void put_cell(struct preview_text *w, const char *s, bool last)
{
	if (w->len > w->indent && w->len + strlen(s) + 1 + w->p->ndim > w->columns) {
		line_end(w);
		line_indent(w, w->indent);
	}
	line_put(w, s);
	if (!last)
		line_put(w, ", ");
}

/* What stands in the brackets of a dimension: indices, and dots in the place of those left out. */
static uint64_t item_count(const struct preview *p, uint32_t d)
{
	uint64_t n = p->head[d] + p->tail[d];

	return n + (n < p->shape[d]);
}

static bool is_dots(const struct preview *p, uint32_t d, uint64_t item)
{
	return item == p->head[d] && p->head[d] + p->tail[d] < p->shape[d];
}

static void put_row(struct preview_text *w, uint32_t d)
{
	uint64_t n = item_count(w->p, d);
	char word[ELEMENT_BYTES], cell[2 * ELEMENT_BYTES];

	for (uint64_t i = 0; i < n; i++) {
		if (is_dots(w->p, d, i)) {
			put_cell(w, "...", i + 1 == n);
			continue;
		}
		snprintf(cell, sizeof cell, "%*s", (int)w->width,
			 element_print(w->dtype, w->at, DIGITS, word));
		put_cell(w, cell, i + 1 == n);
		w->at += w->bytes;
	}
}

/* At most CKPT_DIMS_MAX deep. */
static void put_dim(struct preview_text *w, uint32_t d)
{
	uint64_t n = item_count(w->p, d);

	line_put(w, "[");
	w->indent = d + 1;
	if (d + 1 == w->p->ndim)
		put_row(w, d);
	for (uint64_t i = 0; d + 1 < w->p->ndim && i < n; i++) {
		if (i) {
			line_put(w, ",");
			line_end(w);
			line_indent(w, d + 1);
		}
		if (is_dots(w->p, d, i))
			line_put(w, "...");
		else
			put_dim(w, d + 1);
	}
	line_put(w, "]");
}

int preview_print(const struct preview *p, uint32_t dtype, const uint8_t *values, uint32_t width,
		  void (*line)(void *arg, const char *text), void *arg)
{
	struct preview_text *w = calloc(1, sizeof *w);
	char word[ELEMENT_BYTES];

	if (!w)
		return -ENOMEM;
	*w = (struct preview_text){ .p = p,
				    .line_fn = line,
				    .arg = arg,
				    .columns = width,
				    .dtype = dtype,
				    .bytes = dtype_bytes(dtype) };
	for (uint64_t i = 0; i < p->numel; i++) {
		element_print(dtype, values + i * w->bytes, DIGITS, word);
		w->width = MAX(w->width, (uint32_t)strlen(word));
	}
	w->at = values;
	if (!p->numel)
		line_put(w, "[]");
	else if (p->ndim)
		put_dim(w, 0);
	else
		line_put(w, element_print(dtype, values, 0, word));
	line_end(w);
	free(w);
	return 0;
}
