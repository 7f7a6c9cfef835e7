/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_json.c - the document for programs: one JSON object with "schema", written as it comes, or
 * lines of them; errors are objects on stderr, one a line. jansson writes the values, this file the
 * brackets around them.
 * Invariant: what is printed parses, however the document ends; a name that is no UTF-8 is shown
 * with '?', a number that JSON's integers cannot hold is null.
 */
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/output/output.h"
#include "ckpt/draw/screen.h"
#include <jansson.h>

#define DEPTH_MAX 16
#define TEXT_BYTES 8192
#define HOLD_BYTES 65536 /* of a document that are kept before the first are printed */

struct json {
	struct output o; /* first */
	FILE *out, *err;
	bool pretty;
	bool line;    /* a line: nothing is printed before it is complete */
	bool printed; /* some of the document is out */
	char schema[64];
	uint32_t depth;	 /* of open containers, the document being the first; 0: none is open */
	uint32_t hidden; /* open ones for people only */
	struct {
		bool array, some; /* some: a member stands in it */
	} open[DEPTH_MAX];
	char *buf; /* not printed yet */
	size_t len, cap;
};

static struct json *json_of(struct output *o)
{
	return (struct json *)o;
}

static json_t *string_of(const char *s)
{
	char clean[TEXT_BYTES];
	json_t *j = json_string(s ? s : "");

	return j ? j : json_string(screen_clean(s, clean, sizeof clean));
}

static json_t *integer_of(uint64_t n)
{
	return n > INT64_MAX ? json_null() : json_integer((json_int_t)n);
}

static json_t *run_of(const struct run *r)
{
	if (r->count == 1)
		return json_pack("[o, o]", integer_of(r->start), integer_of(r->start + r->len));
	return json_pack("{s:o, s:o, s:o, s:o}", "start", integer_of(r->start), "len",
			 integer_of(r->len), "stride", integer_of(r->stride), "count",
			 integer_of(r->count));
}

static json_t *set_of(const struct indexset *set)
{
	json_t *dims = json_array();

	for (uint32_t d = 0; d < set->ndim; d++) {
		json_t *runs = json_array();

		for (uint32_t i = 0; i < set->dim[d].n; i++)
			json_array_append_new(runs, run_of(&set->dim[d].run[i]));
		json_array_append_new(dims, runs);
	}
	return dims;
}

static json_t *shape_of(uint64_t ndim, const uint64_t *shape)
{
	json_t *a = json_array();

	for (uint64_t d = 0; d < ndim; d++)
		json_array_append_new(a, integer_of(shape[d]));
	return a;
}

static json_t *value_of(const struct cell *c)
{
	char word[HUMAN_BYTES];

	switch (c->kind) {
	case CELL_NONE:
		return json_null();
	case CELL_TEXT:
		return string_of(c->text);
	case CELL_NUMBER:
	case CELL_COUNT:
	case CELL_BYTES:
		return integer_of(c->n);
	case CELL_REAL:
		return c->real - c->real == 0 ? json_real(c->real) : json_null();
	case CELL_FLAG:
		return json_boolean(c->n);
	case CELL_TIME:
	case CELL_AGE:
		return c->n ? json_string(human_time_utc(c->n, word)) : json_null();
	case CELL_FINGERPRINT:
		snprintf(word, sizeof word, "%016llx", (unsigned long long)c->n);
		return json_string(word);
	case CELL_ID:
		for (uint32_t i = 0; i < 16; i++)
			sprintf(word + (size_t)2 * i, "%02x", c->id[i]);
		return json_string(word);
	case CELL_SHAPE:
		return shape_of(c->n, c->shape);
	case CELL_SET:
		return set_of(c->set);
	}
	return json_null();
}

/* --- the text --- */

static void json_flush(struct json *j)
{
	fwrite(j->buf, 1, j->len, j->out);
	j->printed |= j->len > 0;
	j->len = 0;
}

static void json_emit(struct json *j, const char *p, size_t n)
{
	if (!j->line && j->len + n > HOLD_BYTES) {
		json_flush(j);
		if (n > HOLD_BYTES) {
			fwrite(p, 1, n, j->out);
			return;
		}
	}
	if (j->len + n > j->cap) {
		size_t cap = MAX(2 * j->cap, j->len + n);
		char *buf;

		cap = MAX(cap, (size_t)HOLD_BYTES);
		buf = realloc(j->buf, cap);
		if (!buf) {
			j->o.failed = true;
			return;
		}
		j->buf = buf;
		j->cap = cap;
	}
	memcpy(j->buf + j->len, p, n);
	j->len += n;
}

static void emit_str(struct json *j, const char *s)
{
	json_emit(j, s, strlen(s));
}

static void json_newline(struct json *j, uint32_t depth)
{
	json_emit(j, "\n", 1);
	for (uint32_t i = 0; i < depth; i++)
		json_emit(j, "  ", 2);
}

/* jansson indents a value as if it stood alone. Inside of its strings no line ends. */
static int emit_value(const char *p, size_t n, void *arg)
{
	struct json *j = arg;
	const char *end = p + n, *nl;

	for (; (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1) {
		json_emit(j, p, (size_t)(nl - p));
		json_newline(j, j->depth);
	}
	json_emit(j, p, (size_t)(end - p));
	return 0;
}

static size_t ascii_of(const struct json *j)
{
	return j->o.ascii ? JSON_ENSURE_ASCII : 0;
}

/* Takes v; NULL: memory ran out. */
static void value_dump(struct json *j, json_t *v)
{
	bool pretty = j->pretty && !j->line;

	if (!v)
		j->o.failed = true;
	if (!v || json_dump_callback(v, emit_value, j,
				     JSON_ENCODE_ANY | ascii_of(j) |
					     (pretty ? JSON_INDENT(2) : JSON_COMPACT)))
		emit_str(j, "null");
	json_decref(v);
}

/* What stands in front of a member of the innermost container: key NULL in an array. */
static void member_place(struct json *j, const char *key)
{
	bool pretty = j->pretty && !j->line;

	if (j->open[j->depth - 1].some)
		json_emit(j, ",", 1);
	j->open[j->depth - 1].some = true;
	if (pretty)
		json_newline(j, j->depth);
	if (j->open[j->depth - 1].array)
		return;
	value_dump(j, json_string(key));
	json_emit(j, ": ", pretty ? 2 : 1);
}

static void level_enter(struct json *j, const char *key, bool array)
{
	if (j->depth == DEPTH_MAX) {
		j->o.failed = true;
		j->hidden++;
		return;
	}
	if (j->depth)
		member_place(j, key);
	json_emit(j, array ? "[" : "{", 1);
	j->open[j->depth].array = array;
	j->open[j->depth++].some = false;
}

static void level_leave(struct json *j)
{
	j->depth--;
	if (j->pretty && !j->line && j->open[j->depth].some)
		json_newline(j, j->depth);
	json_emit(j, j->open[j->depth].array ? "]" : "}", 1);
}

static void value_add(struct json *j, const char *key, json_t *v)
{
	member_place(j, key);
	value_dump(j, v);
}

/* --- the document --- */

/* It is given up: what is out already is closed. */
static void doc_drop(struct json *j)
{
	if (j->depth && j->printed) {
		while (j->depth > 1)
			level_leave(j);
		value_add(j, "complete", json_false());
		level_leave(j);
		json_emit(j, "\n", 1);
		json_flush(j);
	}
	j->depth = j->hidden = 0;
	j->len = 0;
	j->printed = false;
}

static void doc_start(struct json *j, const char *schema, const char *type)
{
	doc_drop(j);
	j->line = type != NULL;
	snprintf(j->schema, sizeof j->schema, "%s", schema);
	level_enter(j, NULL, false);
	value_add(j, "schema", json_string(schema));
	if (type)
		value_add(j, "type", json_string(type));
}

static void doc_begin(struct output *o, const char *schema)
{
	doc_start(json_of(o), schema, NULL);
}

static void doc_line(struct output *o, const char *schema, const char *type)
{
	doc_start(json_of(o), schema, type);
}

static void doc_put(struct output *o, const struct column *col, struct cell c)
{
	struct json *j = json_of(o);

	assert(j->depth);
	if (!j->hidden && col->key)
		value_add(j, col->key, value_of(&c));
}

static void doc_enter(struct json *j, const char *key, bool array)
{
	assert(j->depth);
	if (j->hidden || (!key && !j->open[j->depth - 1].array))
		j->hidden++;
	else
		level_enter(j, key, array);
}

static void doc_object(struct output *o, const char *key)
{
	doc_enter(json_of(o), key, false);
}

static void doc_list(struct output *o, const char *key, const struct column *cols, uint32_t ncol)
{
	(void)cols;
	(void)ncol;
	doc_enter(json_of(o), key, true);
}

static void doc_row(struct output *o)
{
	doc_enter(json_of(o), NULL, false);
}

static void doc_close(struct output *o)
{
	struct json *j = json_of(o);

	if (j->hidden)
		j->hidden--;
	else if (j->depth > 1)
		level_leave(j);
}

static void doc_progress(struct output *o, const struct output_progress *p)
{
	struct json *j = json_of(o);
	bool total = p && p->total;
	json_t *v;

	if (!p || !j->depth || !j->line)
		return;
	v = json_pack(
		"{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "schema", j->schema, "type", "progress",
		"percent_done",
		total ? json_real((double)(uint64_t)((double)p->done / (double)p->total * 1000) /
				  10)
		      : json_null(),
		"bytes_done", integer_of(p->done), "bytes_total",
		total ? integer_of(p->total) : json_null(), "bytes_per_second",
		integer_of((uint64_t)p->rate), "seconds_remaining", integer_of(p->seconds_left),
		"what", string_of(p->what));
	if (!v) {
		o->failed = true;
		return;
	}
	json_dumpf(v, j->out, JSON_COMPACT | JSON_REAL_PRECISION(4) | ascii_of(j));
	fputc('\n', j->out);
	fflush(j->out); /* programs read it as it comes */
	json_decref(v);
}

static void doc_say(struct output *o, enum cell_style style, const char *mark, uint32_t indent,
		    const char *text)
{
	(void)o;
	(void)style;
	(void)mark;
	(void)indent;
	(void)text;
}

static void doc_end(struct output *o)
{
	struct json *j = json_of(o);

	assert(j->depth == 1 && !j->hidden);
	if (!o->failed) {
		level_leave(j);
		json_emit(j, "\n", 1);
	}
	if (!o->failed) {
		json_flush(j);
		if (j->line)
			fflush(j->out);
	}
	doc_drop(j);
}

static void doc_error(struct output *o, int exit_code, const char *message, const char *next)
{
	struct json *j = json_of(o);
	json_t *e = json_pack("{s:s, s:i, s:o, s:o}", "schema", "ckptd.error/1", "code", exit_code,
			      "message", string_of(message), "next",
			      next ? string_of(next) : json_null());

	if (e)
		json_dumpf(e, j->err, JSON_COMPACT | ascii_of(j));
	fputc('\n', j->err);
	json_decref(e);
}

static void doc_free(struct output *o)
{
	doc_drop(json_of(o));
	free(json_of(o)->buf);
	free(o);
}

static const struct output_ops json_ops = {
	.begin = doc_begin,
	.line = doc_line,
	.put = doc_put,
	.object = doc_object,
	.list = doc_list,
	.row = doc_row,
	.close = doc_close,
	.say = doc_say,
	.progress = doc_progress,
	.end = doc_end,
	.error = doc_error,
	.free = doc_free,
};

struct output *output_json_new(FILE *out, FILE *err, bool pretty)
{
	struct json *j = calloc(1, sizeof *j);

	if (!j)
		return NULL;
	j->o.ops = &json_ops;
	j->o.machine = true;
	j->out = out;
	j->err = err;
	j->pretty = pretty;
	return &j->o;
}
