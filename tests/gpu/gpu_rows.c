// SPDX-License-Identifier: Apache-2.0
// gpu_rows.c - see gpu_rows.h. Called by gpubench and its experiments.
// Invariant: the document is complete or as it was: it is written beside, and renamed.
#include "tests/gpu/gpu_rows.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <jansson.h>
#include <math.h>
#include <stdarg.h>

#define SCHEMA "ckptd.gpu/1"
#define KEPT "docs/results"
#define LINE_MAX_BYTES (64u << 10)

/* --- in an experiment --- */
static FILE *rows_file;
static const char *rows_experiment;

void rows_to(FILE *f, const char *experiment)
{
	rows_file = f;
	rows_experiment = experiment;
}

void rows_line(const char *line)
{
	fputs(line, rows_file);
	fflush(rows_file);
}

static void put_text(json_t *o, const char *key, const char *text)
{
	if (text)
		json_object_set_new(o, key, json_string(text));
}

static void put_number(json_t *o, const char *key, double x)
{
	json_object_set_new(o, key, isfinite(x) ? json_real(x) : json_null());
}

void row_put(const struct row *r)
{
	json_t *o = json_object();

	put_text(o, "experiment", rows_experiment);
	put_text(o, "row", r->name);
	put_text(o, "what", r->what);
	put_text(o, "unit", r->unit);
	if (!r->why && !r->failed)
		put_number(o, "value", r->value);
	if (r->low != 0 || r->high != 0) {
		put_number(o, "low", r->low);
		put_number(o, "high", r->high);
	}
	if (r->denominator != 0) {
		put_number(o, "numerator", r->numerator);
		put_number(o, "denominator", r->denominator);
	}
	if (r->bound != ROW_INFO) {
		put_text(o, "bound", r->bound == ROW_AT_MOST ? "<=" : ">=");
		put_number(o, "limit", r->limit);
	}
	if (r->n)
		json_object_set_new(o, "n", json_integer((json_int_t)r->n));
	if (r->time)
		json_object_set_new(o, "time", json_true());
	put_text(o, "why", r->why);
	put_text(o, "failed", r->failed);
	json_dumpf(o, rows_file, JSON_COMPACT | JSON_REAL_PRECISION(6));
	fputc('\n', rows_file);
	fflush(rows_file);
	json_decref(o);
}

void row_skip(const char *name, const char *fmt, ...)
{
	char why[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	row_put(&(struct row){ .name = name, .why = why });
}

void row_fail(const char *name, const char *fmt, ...)
{
	char failed[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(failed, sizeof failed, fmt, ap);
	va_end(ap);
	row_put(&(struct row){ .name = name, .failed = failed });
}

/* --- judging --- */
static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static double number_of(const json_t *o, const char *key, double otherwise)
{
	const json_t *x = json_object_get(o, key);

	return json_is_number(x) ? json_number_value(x) : otherwise;
}

static void judge(json_t *o, bool fake, char *verdict, size_t bytes)
{
	const char *why = text_of(o, "why"), *failed = text_of(o, "failed"),
		   *bound = text_of(o, "bound");
	double value = number_of(o, "value", NAN), limit = number_of(o, "limit", NAN);
	double low = number_of(o, "low", value), high = number_of(o, "high", value);
	bool most = strcmp(bound, "<=") == 0;

	if (*failed)
		snprintf(verdict, bytes, "fail: %s", failed);
	else if (*why)
		snprintf(verdict, bytes, "not judged: %s", why);
	else if (!*bound && (!isnan(value) || *text_of(o, "what")))
		snprintf(verdict, bytes, "info");
	else if (isnan(value))
		snprintf(verdict, bytes, "fail: it has no value");
	else if ((!most && strcmp(bound, ">=") != 0) || isnan(limit))
		snprintf(verdict, bytes, "fail: its bound or its limit cannot be read");
	else if (fake && json_is_true(json_object_get(o, "time")))
		snprintf(verdict, bytes,
			 "not judged: a driver without a GPU shows nothing of this");
	else if (most ? high <= limit : low >= limit)
		snprintf(verdict, bytes, "pass");
	else if (most ? low > limit : high < limit)
		snprintf(verdict, bytes, "fail");
	else
		snprintf(verdict, bytes, "not judged: the interval contains the limit");
}

static void verdict_count(const char *verdict, struct rows_count *count)
{
	if (strcmp(verdict, "pass") == 0)
		count->passed++;
	else if (strcmp(verdict, "info") == 0)
		count->info++;
	else if (strncmp(verdict, "fail", 4) == 0)
		count->failed++;
	else
		count->unjudged++;
}

static void row_print(const json_t *o, const char *verdict)
{
	char bound[32] = "", interval[48] = "", figure[32];
	double value = number_of(o, "value", NAN);
	bool whole = value == floor(value) && fabs(value) < 1e10;

	if (*text_of(o, "bound"))
		snprintf(bound, sizeof bound, "%s %g", text_of(o, "bound"),
			 number_of(o, "limit", NAN));
	if (json_object_get(o, "low"))
		snprintf(interval, sizeof interval, "[%.4g, %.4g]", number_of(o, "low", NAN),
			 number_of(o, "high", NAN));
	snprintf(figure, sizeof figure, whole ? "%.0f" : "%.4g", value);
	printf("%-3s %-34s ", text_of(o, "experiment"), text_of(o, "row"));
	if (!isnan(value))
		printf("%10s %-6s %-22s %-10s ", figure, text_of(o, "unit"), interval, bound);
	else
		printf("%-51s ", strcmp(verdict, "info") == 0 ? text_of(o, "what") : "");
	printf("%s\n", verdict);
	if (strcmp(verdict, "fail") == 0) /* of a fail with a sentence that is enough */
		printf("    %s\n", text_of(o, "what"));
	fflush(stdout);
}

/* A row of this line, with its verdict. Of a line that is none: a failed one. */
static json_t *row_of(const char *line, const struct rows_from *from, struct rows_count *count)
{
	json_error_t e;
	json_t *o = json_loads(line, 0, &e);
	char verdict[1200];

	if (!json_is_object(o) || !*text_of(o, "experiment") || !*text_of(o, "row")) {
		json_decref(o);
		o = json_pack("{s:s, s:s, s:s%}", "experiment", "?", "row", "?", "failed", line,
			      MIN(strcspn(line, "\n"), (size_t)200));
		if (!o) /* it is not even UTF-8 */
			o = json_pack("{s:s, s:s, s:s}", "experiment", "?", "row", "?", "failed",
				      "a line that is no row");
	}
	judge(o, from->fake, verdict, sizeof verdict);
	json_object_set_new(o, "verdict", json_string(verdict));
	verdict_count(verdict, count);
	row_print(o, verdict);
	return o;
}

/* --- the document --- */
int rows_may(const struct rows_from *from, const char *path, struct ckpt_err *err)
{
	cleanup_free char *real = NULL;
	char dir[4096];
	char *slash;

	if (!from->fake || !path)
		return 0;
	snprintf(dir, sizeof dir, "%s", path);
	slash = strrchr(dir, '/');
	if (slash)
		*slash = 0;
	real = realpath(slash ? dir : ".", NULL);
	if (strstr(path, KEPT) || (real && strstr(real, KEPT)))
		return ckpt_error(err, -EINVAL,
				  "%s is for measurements, and %s is a driver without a GPU: "
				  "write its rows elsewhere (--out FILE)",
				  path, from->device);
	return 0;
}

static int document_read(const char *path, const struct rows_from *from, json_t **ret,
			 struct ckpt_err *err)
{
	json_error_t e;
	const char *device;

	*ret = NULL;
	if (access(path, F_OK) != 0)
		return 0;
	*ret = json_load_file(path, 0, &e);
	if (!*ret || strcmp(text_of(*ret, "schema"), SCHEMA) != 0 ||
	    !json_is_array(json_object_get(*ret, "rows")))
		return ckpt_error(err, -EINVAL,
				  "%s is no document of gpubench (%s): nothing is merged into it",
				  path, *ret ? "its schema is not " SCHEMA : e.text);
	device = text_of(*ret, "device");
	if (strcmp(device, from->device) != 0 || strcmp(text_of(*ret, "driver"), from->driver) != 0)
		return ckpt_error(
			err, -EINVAL,
			"%s has rows of %s, driver %s; this is %s, driver %s. Write these "
			"rows to another file (--out FILE)",
			path, device, text_of(*ret, "driver"), from->device, from->driver);
	return 0;
}

/* Those of the document that no new row replaces: of other experiments. */
static void document_keep(json_t *rows, const json_t *old, const json_t *fresh)
{
	size_t i, j;
	json_t *o, *f;

	json_array_foreach(json_object_get(old, "rows"), i, o)
	{
		bool replaced = false;

		json_array_foreach(fresh, j, f) replaced |=
			strcmp(text_of(o, "experiment"), text_of(f, "experiment")) == 0;
		if (!replaced)
			json_array_append(rows, o);
	}
}

static int experiment_number(const json_t *o)
{
	return atoi(text_of(o, "experiment") + (*text_of(o, "experiment") != 0));
}

static void document_print(FILE *f, const struct rows_from *from, const json_t *rows)
{
	json_t *head = json_pack("{s:s, s:s, s:s, s:s}", "schema", SCHEMA, "device", from->device,
				 "driver", from->driver, "machine", from->machine);
	size_t i;
	json_t *o;
	bool first = true;

	fprintf(f, "{");
	{
		const char *key;
		json_t *value;

		json_object_foreach(head, key, value)
		{
			fprintf(f, "\"%s\": ", key);
			json_dumpf(value, f, JSON_ENCODE_ANY);
			fprintf(f, ",\n ");
		}
	}
	fprintf(f, "\"rows\": [");
	for (int number = 0; number < 100; number++)
		json_array_foreach(rows, i, o) if (experiment_number(o) == number)
		{
			fprintf(f, "%s\n  ", first ? "" : ",");
			json_dumpf(o, f, JSON_REAL_PRECISION(6));
			first = false;
		}
	fprintf(f, "\n]}\n");
	json_decref(head);
}

static int document_write(const char *path, const struct rows_from *from, const json_t *fresh,
			  struct ckpt_err *err)
{
	json_t *old, *rows = json_array();
	char beside[4096];
	FILE *f = NULL;
	int rc = document_read(path, from, &old, err);

	if (rc == 0) {
		document_keep(rows, old, fresh);
		json_array_extend(rows, (json_t *)fresh);
		snprintf(beside, sizeof beside, "%s.new", path);
		f = fopen(beside, "w");
		if (!f)
			rc = ckpt_error(err, -errno, "%s cannot be written: %s", beside,
					strerror(errno));
	}
	if (f) {
		document_print(f, from, rows);
		if (fclose(f) || rename(beside, path) < 0)
			rc = ckpt_error(err, -errno, "%s cannot be written: %s", path,
					strerror(errno));
	}
	json_decref(rows);
	json_decref(old);
	return rc;
}

int rows_merge(FILE *f, const struct rows_from *from, const char *path, struct rows_count *count,
	       struct ckpt_err *err)
{
	cleanup_free char *line = malloc(LINE_MAX_BYTES);
	json_t *fresh = json_array();
	int rc = rows_may(from, path, err);

	if (!line)
		abort();
	while (rc == 0 && fgets(line, LINE_MAX_BYTES, f))
		json_array_append_new(fresh, row_of(line, from, count));
	if (rc == 0 && path && json_array_size(fresh))
		rc = document_write(path, from, fresh, err);
	json_decref(fresh);
	return rc;
}
