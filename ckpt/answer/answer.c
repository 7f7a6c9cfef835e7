/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.c - answers of ckptctl layout --batch. Called for each line of the batch.
 * Invariant: an answer is known to the end before its first byte is written, so that a line is
 * whole, whatever happens.
 */
#include "ckpt/answer/answer.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/answer/answer_reduce.h"
#include "ckpt/answer/answer_steps.h"
#include "ckpt/draw/layout_shares.h"
#include "ckpt/draw/screen.h"

#define NUMBER_BYTES 20 /* digits of the largest one */

/* --- text --- */

void answer_flush(struct answer *a)
{
	fwrite(a->buf, 1, a->used, a->out);
	a->used = 0;
}

static inline void room_for(struct answer *a, size_t n)
{
	if (a->used + n > sizeof a->buf)
		answer_flush(a);
}

static inline void answer_char(struct answer *a, char c)
{
	room_for(a, 1);
	a->buf[a->used++] = c;
}

void answer_text(struct answer *a, const char *text)
{
	for (size_t left = strlen(text), n; left; text += n, left -= n) {
		room_for(a, 1);
		n = MIN(left, sizeof a->buf - a->used);
		memcpy(a->buf + a->used, text, n);
		a->used += n;
	}
}

void answer_number(struct answer *a, uint64_t n)
{
	char digit[NUMBER_BYTES];
	size_t at = sizeof digit;

	do
		digit[--at] = (char)('0' + n % 10);
	while (n /= 10);
	room_for(a, NUMBER_BYTES);
	memcpy(a->buf + a->used, digit + at, sizeof digit - at);
	a->used += sizeof digit - at;
}

void answer_numbers(struct answer *a, uint32_t n, const uint64_t *x)
{
	answer_char(a, '[');
	for (uint32_t i = 0; i < n; i++) {
		if (i)
			answer_char(a, ',');
		answer_number(a, x[i]);
	}
	answer_char(a, ']');
}

/* A line of it, as what stands in a JSON string. */
static void put_clean(struct answer *a, const char *line)
{
	char clean[sizeof((struct ckpt_err *)0)->msg];

	screen_clean(line, clean, sizeof clean);
	for (const char *p = clean; *p; p++) {
		if (*p == '"' || *p == '\\')
			answer_char(a, '\\');
		answer_char(a, *p);
	}
}

void answer_refuse(struct answer *a, const char *why)
{
	char line[sizeof((struct ckpt_err *)0)->msg];

	a->errors++;
	answer_text(a, "{\"error\":\"");
	for (size_t len; *why; why += len + (why[len] == '\n')) {
		len = strcspn(why, "\n");
		snprintf(line, sizeof line, "%.*s", (int)len, why);
		put_clean(a, line);
		if (why[len])
			answer_text(a, "\\n");
	}
	answer_text(a, "\"}\n");
}

/* --- which elements does each rank hold? --- */

static void put_runs(struct answer *a, const struct indices *x)
{
	const char *comma = "[";

	answer_char(a, '[');
	for (uint32_t i = 0; i < x->n; i++) {
		const struct run *r = &x->run[i];
		uint64_t start = r->start;

		for (uint64_t j = 0; j < r->count; j++, start += r->stride) {
			answer_text(a, comma);
			comma = ",[";
			answer_number(a, start);
			answer_char(a, ',');
			answer_number(a, start + r->len);
			answer_char(a, ']');
		}
	}
	answer_char(a, ']');
}

static void put_lists(struct answer *a, const struct shares *s, uint64_t elements,
		      const struct shares_list *const *dim)
{
	uint64_t runs[CKPT_DIMS_MAX], records[CKPT_DIMS_MAX];

	if (a->counts) {
		for (uint32_t d = 0; d < s->ndim; d++) {
			runs[d] = dim[d]->runs;
			records[d] = dim[d]->x.n;
		}
		answer_text(a, ",\"elements\":");
		answer_number(a, elements);
		answer_text(a, ",\"run_counts\":");
		answer_numbers(a, s->ndim, runs);
		answer_text(a, ",\"progression_counts\":");
		answer_numbers(a, s->ndim, records);
		return;
	}
	answer_text(a, ",\"runs\":[");
	for (uint32_t d = 0; d < s->ndim; d++) {
		if (d)
			answer_char(a, ',');
		put_runs(a, &dim[d]->x);
	}
	answer_char(a, ']');
}

static void put_shares(struct answer *a, const struct question *q, const struct shares *s)
{
	uint32_t coord[CKPT_DIMS_MAX];
	const struct shares_list *dim[CKPT_DIMS_MAX];

	answer_char(a, '[');
	for (uint32_t i = 0; i < q->mesh.nrank; i++) {
		uint64_t elements;

		question_rank_ascending(q, i, coord);
		elements = shares_at(s, coord, dim);
		answer_text(a, i ? ",{\"coord\":[" : "{\"coord\":[");
		for (uint32_t d = 0; d < q->mesh.ndim; d++) {
			if (d)
				answer_char(a, ',');
			answer_number(a, coord[d]);
		}
		answer_char(a, ']');
		put_lists(a, s, elements, dim);
		answer_char(a, '}');
	}
	answer_text(a, "]\n");
}

static int answer_shares(struct answer *a, const struct question *q, struct arena *arena,
			 struct ckpt_err *err)
{
	struct shares_totals sum;
	struct shares s;
	int rc = shares_make(&q->mesh, &q->layout, q->ndim, q->shape, arena, &s, err);

	if (rc)
		return rc;
	if (!a->counts) {
		shares_count(&s, &sum);
		if (sum.runs > ANSWER_RUNS_MAX)
			return ckpt_error(err, -E2BIG,
					  "the answer has %llu runs, at most %u are listed; "
					  "--summary counts them",
					  (unsigned long long)sum.runs, ANSWER_RUNS_MAX);
	}
	put_shares(a, q, &s);
	return 0;
}

/* --- which order do split factors say? --- */

static void answer_order(struct answer *a, const struct question *q)
{
	struct ckpt_placement place[CKPT_DIMS_MAX];
	const char *entry = "[";

	if (layout_order_of(&q->mesh, q->src.place, place, NULL)) {
		answer_text(a, "{\"decoded\":null}\n");
		return;
	}
	answer_text(a, "{\"decoded\":[");
	for (uint32_t d = 0; d < CKPT_DIMS_MAX; d++) {
		const char *comma = ",[";
		bool any = false;

		for (uint32_t i = 0; i < q->mesh.ndim; i++) {
			if (place[i].how != CKPT_SHARD || place[i].tensor_dim != d)
				continue;
			if (!any) {
				answer_text(a, entry);
				answer_number(a, d);
				entry = ",[";
			}
			answer_text(a, comma);
			answer_number(a, place[i].mesh_dim);
			comma = ",";
			any = true;
		}
		if (any)
			answer_text(a, "]]");
	}
	answer_text(a, "]}\n");
}

/* --- a line --- */

void answer_line(struct answer *a, const char *line, size_t len)
{
	struct arena arena = { 0 };
	struct ckpt_err err;
	struct question q;
	int rc;

	err.msg[0] = 0;
	rc = question_parse(line, len, &arena, &q, &err);
	if (!rc && q.kind == ASK_SHARES)
		rc = answer_shares(a, &q, &arena, &err);
	else if (!rc && q.kind == ASK_REDUCE)
		rc = answer_reduction(a, &q, &arena, &err);
	else if (!rc && q.kind == ASK_STEPS)
		rc = answer_steps(a, &q, &arena, &err);
	else if (!rc)
		answer_order(a, &q);
	if (rc)
		answer_refuse(a, err.msg[0] ? err.msg : strerror(-rc));
	question_free(&q);
	arena_free(&arena);
}
