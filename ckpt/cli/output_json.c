/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_json.c - the document for programs: one JSON object with "schema", printed when it is
 * complete; errors are objects on stderr, one a line.
 * Invariant: what is printed parses; a name that is no UTF-8 is shown with '?', a number that
 * JSON's integers cannot hold is null.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/human.h"
#include "ckpt/cli/output.h"
#include "ckpt/cli/screen.h"
#include <jansson.h>

#define DEPTH_MAX 8
#define TEXT_BYTES 8192

struct json {
	struct output o; /* first */
	FILE *out, *err;
	bool pretty;
	uint32_t depth;		 /* of open containers, the document being the first */
	uint32_t hidden;	 /* open ones for people only */
	json_t *open[DEPTH_MAX]; /* borrowed, but for the document itself */
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

/* Add to the innermost container; takes v. */
static void add(struct json *j, const char *key, json_t *v)
{
	json_t *to = j->open[j->depth - 1];
	int rc = !v		     ? -1
		 : json_is_array(to) ? json_array_append_new(to, v)
				     : json_object_set_new(to, key, v);

	j->o.failed |= rc != 0;
}

static void enter(struct json *j, const char *key, json_t *v)
{
	if (j->depth == DEPTH_MAX || !v) {
		json_decref(v);
		j->o.failed = true;
		j->hidden++;
		return;
	}
	add(j, key, v);
	j->open[j->depth++] = v;
}

static void doc_begin(struct output *o, const char *schema)
{
	struct json *j = json_of(o);

	j->open[0] = json_object();
	j->depth = 1;
	add(j, "schema", json_string(schema));
}

static void doc_put(struct output *o, const struct column *col, struct cell c)
{
	struct json *j = json_of(o);

	if (!j->hidden && col->key)
		add(j, col->key, value_of(&c));
}

static void doc_object(struct output *o, const char *key)
{
	struct json *j = json_of(o);

	if (j->hidden || !key)
		j->hidden++;
	else
		enter(j, key, json_object());
}

static void doc_list(struct output *o, const char *key, const struct column *cols, uint32_t ncol)
{
	struct json *j = json_of(o);

	(void)cols;
	(void)ncol;
	if (j->hidden || !key)
		j->hidden++;
	else
		enter(j, key, json_array());
}

static void doc_row(struct output *o)
{
	struct json *j = json_of(o);

	if (j->hidden)
		j->hidden++;
	else
		enter(j, NULL, json_object());
}

static void doc_close(struct output *o)
{
	struct json *j = json_of(o);

	if (j->hidden)
		j->hidden--;
	else if (j->depth > 1)
		j->depth--;
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

static void doc_drop(struct json *j)
{
	json_decref(j->open[0]);
	j->open[0] = NULL;
	j->depth = 0;
}

static void doc_end(struct output *o)
{
	struct json *j = json_of(o);

	if (!o->failed) {
		o->failed = json_dumpf(j->open[0], j->out,
				       j->pretty ? JSON_INDENT(2) : JSON_COMPACT) != 0;
		fputc('\n', j->out);
	}
	doc_drop(j);
}

static void doc_error(struct output *o, int exit_code, const char *message, const char *next)
{
	struct json *j = json_of(o);
	json_t *e = json_pack("{s:s, s:i, s:o}", "schema", "ckptd.error/1", "code", exit_code,
			      "message", string_of(message));

	if (e && next)
		json_object_set_new(e, "next", string_of(next));
	if (e)
		json_dumpf(e, j->err, JSON_COMPACT);
	fputc('\n', j->err);
	json_decref(e);
}

static void doc_free(struct output *o)
{
	doc_drop(json_of(o));
	free(o);
}

static const struct output_ops json_ops = {
	.begin = doc_begin,
	.put = doc_put,
	.object = doc_object,
	.list = doc_list,
	.row = doc_row,
	.close = doc_close,
	.say = doc_say,
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
