/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_sums.c - after a checkpoint was read for its tensors: the sums of all that holds them.
 * Called by convert. Invariant: after success every wanted range, and every wanted place that is
 * made, was seen to its last byte, and its sum was right.
 */
#include "ckpt/base/util.h"
#include "ckpt/move/block_stream.h"
#include "ckpt/move/made.h"
#include "ckpt/move/move.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/range_sums.h"

#define BUFFER_BYTES (16 * MIB)

struct summing {
	struct move_files f; /* with buffer_bytes */
	struct stream stream;
	const struct format_range **wrong; /* [stream.n] */
	struct pace pace;
	struct ckpt_err *err;
};

/* move_tick_fn of the pace: bytes that are read only for their sums are in no total. */
struct silent {
	move_tick_fn *tick;
	void *arg;
};

static int silent_tick(void *arg, uint64_t done)
{
	const struct silent *x = arg;

	(void)done;
	return x->tick ? x->tick(x->arg, 0) : 0;
}

static void sums_work(void *ctx, uint64_t block, const uint8_t *bytes)
{
	struct summing *k = ctx;
	const struct stream_block *b = &k->stream.block[block];

	if (b->got > 0)
		range_sums_add(k->f.sums, b->file, b->off, (uint64_t)b->got, bytes,
			       range_wrong_keep, &k->wrong[block]);
}

static int sums_done(void *ctx, uint64_t block)
{
	struct summing *k = ctx;
	const struct stream_block *b = &k->stream.block[block];
	const struct format_file *f = &k->f.ckpt->file[b->file];
	const struct format_range *wrong = k->wrong[block];

	if (b->got < 0)
		return ckpt_error_errno(k->err, (int)-b->got,
					"%s: cannot read %llu bytes at offset %llu", f->name,
					(unsigned long long)b->len, (unsigned long long)b->off);
	if (b->got < (int64_t)b->len)
		return ckpt_error(k->err, -EBADMSG, "%s is cut short: it ends at byte %llu",
				  f->name, (unsigned long long)b->off + (uint64_t)b->got);
	if (wrong)
		return range_damaged(&k->f.ckpt->table, f, b->file, wrong, wrong->off,
				     RANGE_CRC_WRONG, k->err);
	return pace_add(&k->pace, b->len);
}

static int missing_read(struct summing *k)
{
	uint64_t most = stream_block_bytes(&k->f), off, len;
	int e;

	for (uint32_t i = 0; i < k->f.ckpt->nfile; i++) {
		struct stream_block *b = NULL;

		for (uint64_t at = 0; range_sums_missing(k->f.sums, i, &at, &off, &len);) {
			if (!b || b->off + b->len != off || b->len + len > most) {
				b = stream_block_add(&k->stream);
				if (!b)
					return -ENOMEM;
				*b = (struct stream_block){ .file = i, .off = off };
			}
			b->len = off + len - b->off;
		}
	}
	k->wrong = calloc(k->stream.n + 1, sizeof *k->wrong);
	e = k->wrong ? stream_run(&k->stream, NULL, k->err) : -ENOMEM;
	free(k->wrong);
	return e;
}

/* made_fn */
static int made_pass(void *arg, uint64_t lo, uint64_t hi, const uint8_t *p)
{
	struct summing *k = arg;

	(void)p;
	return pace_add(&k->pace, hi - lo);
}

static int unended_read(struct summing *k)
{
	const struct checkpoint *c = k->f.ckpt;
	struct made_reader *m = NULL;
	int e = 0;

	for (uint32_t i = c->nfile; i < c->nfile + c->nmade && !e; i++) {
		if (!range_sums_unended(k->f.sums, i))
			continue;
		e = m ? 0 : made_open(&k->f, &m, k->err);
		if (!e)
			e = made_run(m, i, 0, c->table.place[i].bytes, made_pass, k, k->err);
	}
	made_close(m);
	return e;
}

int move_sums_finish(const struct move_files *f, const bool *tensor, move_tick_fn *tick, void *arg,
		     struct ckpt_err *err)
{
	struct silent silent = { tick, arg };
	struct summing k = {
		.f = *f,
		.stream = { .files = &k.f, .ctx = &k, .work = sums_work, .done = sums_done },
		.pace = { .tick = silent_tick, .arg = &silent },
		.err = err
	};
	const struct table *t = &f->ckpt->table;
	int e;

	if (!f->sums)
		return 0;
	k.f.buffer_bytes = BUFFER_BYTES;
	for (uint32_t i = 0; i < t->npiece; i++) {
		struct piece_bytes b = table_piece_bytes(t, &t->piece[i]);

		if (tensor[t->piece[i].tensor])
			range_sums_want(f->sums, t->piece[i].place, b.off, b.off + b.len);
	}
	e = unended_read(&k);
	if (!e)
		e = missing_read(&k);
	if (!e)
		e = pace_end(&k.pace);
	free(k.stream.block);
	if (e == -ENOMEM)
		ckpt_error(err, e, "out of memory for the sums of what was read");
	return e == -ECANCELED ? ckpt_error(err, e, "reading was given up by its caller") : e;
}
