/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_batch.c - ckptctl layout --batch: lines in, lines out.
 * Invariant: as many answers as questions, in their order; memory is that of the longest line and
 * of its JSON, which may be 80 times as much.
 */
#include "ckpt/answer/answer_batch.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/answer/answer.h"
#include "ckpt/io/io_input.h"

#define READ_BYTES ((size_t)1 << 20)

struct batch {
	int fd;
	bool (*stopped)(void);
	struct answer *a;
	char *buf; /* [cap]: [from, to) is not answered yet, [from, seen) has no end of a line */
	size_t cap, from, seen, to;
	bool skip; /* the rest of a line that is too long */
};

static void answer_too_long(struct batch *b)
{
	char why[80];

	snprintf(why, sizeof why, "the line is longer than %u bytes", BATCH_LINE_MAX);
	answer_refuse(b->a, why);
}

/* The line that ends in front of `end`. */
static void answer_to(struct batch *b, size_t end)
{
	if (b->skip)
		b->skip = false;
	else if (end - b->from > BATCH_LINE_MAX)
		answer_too_long(b);
	else
		answer_line(b->a, b->buf + b->from, end - b->from);
}

/* Whatever line is complete. */
static void answer_complete(struct batch *b)
{
	char *end;

	while ((end = memchr(b->buf + b->seen, '\n', b->to - b->seen)) && !ferror(b->a->out)) {
		answer_to(b, (size_t)(end - b->buf));
		b->from = b->seen = (size_t)(end - b->buf) + 1;
		if (b->stopped())
			return;
	}
	b->seen = b->to;
}

/* Room for more: the line that is not complete goes to the front, or is given up. */
static int make_room(struct batch *b)
{
	size_t kept = b->to - b->from;
	char *p;

	if (!b->skip && kept > BATCH_LINE_MAX) {
		answer_too_long(b);
		b->skip = true;
	}
	if (b->skip)
		b->from = b->to;
	kept = b->to - b->from;
	if (b->from)
		memmove(b->buf, b->buf + b->from, kept);
	b->from = 0;
	b->seen = b->to = kept;
	if (b->cap - kept >= READ_BYTES)
		return 0;
	p = realloc(b->buf, 2 * b->cap);
	if (!p)
		return -ENOMEM;
	b->buf = p;
	b->cap *= 2;
	return 0;
}

static int batch_run(struct batch *b, struct ckpt_err *err)
{
	for (;;) {
		ssize_t n;

		answer_complete(b);
		if (ferror(b->a->out))
			return 0;
		if (make_room(b))
			return ckpt_error(err, -ENOMEM, "out of memory for a line of %zu bytes",
					  b->to);
		answer_flush(b->a);
		fflush(b->a->out);
		n = io_input_read(b->fd, b->buf + b->to, b->cap - b->to, b->stopped);
		if (n == -ECANCELED)
			return -ECANCELED;
		if (n < 0)
			return ckpt_error_errno(err, (int)-n, "questions cannot be read");
		if (!n)
			break;
		b->to += (size_t)n;
	}
	if (b->to > b->from)
		answer_to(b, b->to);
	return 0;
}

int answer_batch(int fd, FILE *out, bool counts, bool (*stopped)(void), struct ckpt_err *err)
{
	cleanup_free struct answer *a = calloc(1, sizeof *a);
	struct batch b = { .fd = fd,
			   .stopped = stopped,
			   .a = a,
			   .buf = malloc(2 * READ_BYTES),
			   .cap = 2 * READ_BYTES };
	int rc = -ENOMEM;

	if (a && b.buf) {
		a->out = out;
		a->counts = counts;
		rc = batch_run(&b, err);
		answer_flush(a);
	}
	free(b.buf);
	return rc;
}
