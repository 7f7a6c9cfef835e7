/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_read.c - files to memory: restore from disk, and every verb that reads tensors. Called with
 * a plan whose source is the checkpoint's table. Invariant: a chunk's bytes reach memory only after
 * its sums were found right, each needed chunk is read once, and success means that exactly the
 * plan's bytes were moved.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/move/block_stream.h"
#include "ckpt/move/chunk_check.h"
#include "ckpt/move/move.h"
#include "ckpt/move/move_reduce.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/range_sums.h"
#include "ckpt/move/row_copy.h"
#include "ckpt/plan/coalesce.h"

#define LABEL_BYTES 160

/* What came of a block. */
struct outcome {
	uint64_t moved;
	struct ckpt_err *fail; /* malloc'ed */
	int code;
};

struct reading {
	const struct plan *p;
	const struct move_files *f;
	void *const *dst_base;
	uint64_t *op_first; /* [nplace + 1]: ops of a file, or of a made place */
	uint64_t *hi_max;   /* [nop] the highest src_hi of this and all ops before it in its file */
	uint64_t *need_first; /* [nfile + 1]: a file's chunks in need */
	bool *need;
	struct stream stream;
	struct stream_room *room; /* NULL: one of its own */
	struct outcome *outcome;  /* [stream.n] */
	struct pace pace;
	uint64_t moved;
	struct ckpt_err *err;
};

/* --- what is needed --- */

static int reading_index(struct reading *k)
{
	const struct plan *p = k->p;
	uint32_t nfile = k->f->ckpt->nfile, nplace = nfile + k->f->ckpt->nmade;
	uint64_t at = 0, chunks = 0;

	k->op_first = calloc((size_t)nplace + 1, sizeof *k->op_first);
	k->need_first = calloc((size_t)nfile + 1, sizeof *k->need_first);
	k->hi_max = calloc(p->nop + 1, sizeof *k->hi_max);
	if (!k->op_first || !k->need_first || !k->hi_max)
		return -ENOMEM;
	for (uint32_t i = 0; i < nplace; i++) {
		uint64_t hi = 0;

		if (i < nfile) {
			k->need_first[i] = chunks;
			chunks += file_nchunk(&k->f->ckpt->file[i]);
		}
		k->op_first[i] = at;
		for (; at < p->nop && p->op[at].src_place == i; at++)
			k->hi_max[at] = hi = MAX(hi, p->op[at].src_hi);
	}
	k->op_first[nplace] = at;
	k->need_first[nfile] = chunks;
	k->need = calloc(chunks + 1, sizeof *k->need);
	return k->need ? 0 : -ENOMEM;
}

static int bases_check(const struct reading *k)
{
	for (uint64_t i = 0; i < k->p->nop; i++) {
		const struct plan_op *op = &k->p->op[i];

		if (!k->dst_base[op->dst_place])
			return ckpt_error(k->err, -EINVAL, "%s is wanted, but has no memory",
					  k->p->dst->place[op->dst_place].name);
		assert(op->src_place < k->f->ckpt->nfile + k->f->ckpt->nmade);
		if (op->src_place < k->f->ckpt->nfile && !move_has(k->f, op->src_place))
			return ckpt_error(k->err, -EINVAL, "%s is needed, but not open",
					  k->p->src->place[op->src_place].name);
	}
	return 0;
}

/* Mark the chunks that one operation's rows touch, looking at one row per chunk. */
static int op_mark(struct reading *k, const struct plan_op *op)
{
	const struct format_file *f = &k->f->ckpt->file[op->src_place];
	uint32_t log2 = file_chunk_log2(f);
	bool *need = k->need + k->need_first[op->src_place];
	uint64_t at = op->src_lo, n = file_nchunk(f);
	struct plan_cursor c;
	struct plan_row r;

	range_sums_want(k->f->sums, op->src_place, op->src_lo, op->src_hi);
	while (at < op->src_hi) {
		uint64_t from = at, to = op->src_hi;

		if (plan_rows_ascend(k->p, op)) {
			plan_rows_from(k->p, op, at, &c);
			if (!plan_row_next(&c, &r))
				break;
			from = MAX(r.src_off, at);
			to = r.src_off + plan_row_src_bytes(&r);
		}
		if ((to - 1) >> log2 >= n)
			return ckpt_error(
				k->err, -EPROTO,
				"%s: its chunks end before a piece at byte %llu of the raw space",
				f->name, (unsigned long long)from);
		for (uint64_t i = from >> log2; i <= (to - 1) >> log2; i++)
			need[i] = true;
		at = (((to - 1) >> log2) + 1) << log2;
	}
	return 0;
}

static int file_cut(struct reading *k, uint32_t file)
{
	const struct format_file *f = &k->f->ckpt->file[file];
	const bool *need = k->need + k->need_first[file];
	uint64_t most = stream_block_bytes(k->f), gap = READ_GAP;
	struct stream_block *b = NULL;

	for (uint64_t i = 0; i < file_nchunk(f); i++) {
		const struct chunk c = file_chunk(f, i);
		int e;

		if (!need[i] || !c.raw_len)
			continue;
		e = chunk_known(f, i, k->err);
		if (e < 0)
			return e;
		if (!b || c.off < b->off + b->len || c.off - (b->off + b->len) > gap ||
		    c.off + c.stored_len - b->off > most) {
			b = stream_block_add(&k->stream);
			if (!b)
				return ckpt_error(k->err, -ENOMEM,
						  "out of memory for the list of reads");
			b->file = file;
			b->off = c.off;
			b->first = i;
		}
		b->len = c.off + c.stored_len - b->off;
		b->end = i + 1;
	}
	return 0;
}

/* --- checking and scattering; in a worker --- */

/* Rows of one chunk, whose raw bytes [lo, hi) are at `raw`. */
static uint64_t chunk_scatter(const struct reading *k, uint32_t file, uint64_t lo, uint64_t hi,
			      const uint8_t *raw)
{
	uint64_t from = k->op_first[file], to = k->op_first[file + 1], moved = 0;
	uint64_t end = to;

	while (from < to) {
		uint64_t mid = from + (to - from) / 2;

		if (k->hi_max[mid] <= lo)
			from = mid + 1;
		else
			to = mid;
	}
	for (uint64_t i = from; i < end && k->p->op[i].src_lo < hi; i++) {
		const struct plan_op *op = &k->p->op[i];
		bool ascend = plan_rows_ascend(k->p, op);
		struct plan_cursor c;
		struct plan_row r;

		if (op->src_hi <= lo)
			continue;
		plan_rows_from(k->p, op, lo, &c);
		while (plan_row_next(&c, &r) && !(ascend && r.src_off >= hi))
			moved += row_copy_window(&r, raw, lo, hi, k->dst_base[op->dst_place]);
	}
	return moved;
}

static int chunk_do(const struct reading *k, const struct stream_block *b, struct outcome *x,
		    uint64_t i, const uint8_t *bytes, struct ckpt_err *err)
{
	const struct format_file *f = &k->f->ckpt->file[b->file];
	const struct chunk c = file_chunk(f, i);
	uint64_t lo = i << file_chunk_log2(f), at = c.off - b->off;
	const struct format_range *wrong = NULL;
	char label[LABEL_BYTES];
	const char *why;

	if (b->got < 0)
		return ckpt_error_errno(err, (int)-b->got,
					"%s: cannot read %llu bytes at offset %llu", f->name,
					(unsigned long long)b->len, (unsigned long long)b->off);
	if (at + c.stored_len > (uint64_t)b->got && !MUTANT(SHORT_READ_ACCEPTED)) {
		place_pieces_label(k->p->src, b->file, lo, lo + c.raw_len, label, sizeof label);
		return ckpt_error(
			err, -EBADMSG,
			"%s is cut short: it ends at byte %llu, but %s needs %u bytes at offset %llu; restore an older step",
			f->name, (unsigned long long)(b->off + (uint64_t)b->got), label,
			c.stored_len, (unsigned long long)c.off);
	}
	why = chunk_fault(f, &c, bytes + at);
	if (why)
		return range_damaged(k->p->src, f, b->file,
				     &(struct format_range){ .off = c.off, .len = c.stored_len },
				     lo, why, err);
	range_sums_add(k->f->sums, b->file, lo, c.raw_len, bytes + at, range_wrong_keep, &wrong);
	if (wrong)
		return range_damaged(k->p->src, f, b->file, wrong, wrong->off, RANGE_CRC_WRONG,
				     err);
	x->moved += chunk_scatter(k, b->file, lo, lo + c.raw_len, bytes + at);
	return 0;
}

static void read_work(void *ctx, uint64_t block, const uint8_t *bytes)
{
	const struct reading *k = ctx;
	const struct stream_block *b = &k->stream.block[block];
	const bool *need = k->need + k->need_first[b->file];
	struct outcome *x = &k->outcome[block];
	struct ckpt_err err = { 0 };

	for (uint64_t i = b->first; i < b->end && x->code == 0; i++)
		if (need[i] && file_chunk(&k->f->ckpt->file[b->file], i).raw_len)
			x->code = chunk_do(k, b, x, i, bytes, &err);
	if (x->code < 0) {
		x->fail = malloc(sizeof err);
		if (x->fail)
			*x->fail = err;
	}
}

static int read_done(void *ctx, uint64_t block)
{
	struct reading *k = ctx;
	const struct outcome *x = &k->outcome[block];

	if (x->code < 0) {
		if (x->fail && k->err)
			*k->err = *x->fail;
		else
			ckpt_error(k->err, x->code, "%s cannot be read",
				   k->f->ckpt->file[k->stream.block[block].file].name);
		return x->code;
	}
	k->moved += x->moved;
	return pace_add(&k->pace, x->moved);
}

/* From the plan to the list of blocks. */
static int reading_begin(struct reading *k)
{
	int e = bases_check(k);

	if (e == 0 && reading_index(k) < 0)
		e = ckpt_error(k->err, -ENOMEM, "out of memory for the list of needed chunks");
	for (uint64_t i = 0; e == 0 && i < k->op_first[k->f->ckpt->nfile]; i++)
		e = op_mark(k, &k->p->op[i]);
	for (uint32_t i = 0; i < k->f->ckpt->nfile && e == 0; i++)
		e = file_cut(k, i);
	if (e < 0)
		return e;
	k->outcome = calloc(k->stream.n + 1, sizeof *k->outcome);
	return k->outcome ? 0 : ckpt_error(k->err, -ENOMEM, "out of memory for the list of reads");
}

/* --- places that are made --- */

struct making {
	struct reading *k;
	uint32_t place;
};

/* made_fn */
static int made_scatter(void *arg, uint64_t lo, uint64_t hi, const uint8_t *p)
{
	struct making *x = arg;
	uint64_t n = chunk_scatter(x->k, x->place, lo, hi, p);

	x->k->moved += n;
	return pace_add(&x->k->pace, n);
}

/* One place after the other, as far as rows of it are wanted. */
static int made_read(struct reading *k)
{
	const struct checkpoint *c = k->f->ckpt;
	struct made_reader *own = NULL, *m;
	int e = 0;

	if (k->op_first[c->nfile] == k->p->nop)
		return 0;
	m = k->room ? stream_room_made(k->room) : NULL;
	if (!k->room && !made_open(k->f, &own, k->err))
		m = own;
	if (!m)
		return ckpt_error(k->err, -ENOMEM, "out of memory for decoders");
	for (uint32_t i = c->nfile; i < c->nfile + c->nmade && !e; i++) {
		uint64_t first = k->op_first[i], end = k->op_first[i + 1];
		struct making x = { .k = k, .place = i };

		if (first == end)
			continue;
		range_sums_want(k->f->sums, i, 0, 0);
		e = made_run(m, i, k->p->op[first].src_lo, k->hi_max[end - 1], made_scatter, &x,
			     k->err);
	}
	made_close(own);
	return e;
}

static int reading_run(struct reading *k)
{
	uint64_t copied = k->p->bytes - (k->p->reduced ? k->p->reduced->bytes : 0);
	int e = reading_begin(k);

	if (e == 0)
		e = stream_run(&k->stream, k->room, k->err);
	if (e == 0)
		e = made_read(k);
	if (e == 0)
		e = pace_end(&k->pace);
	if (e == -ECANCELED)
		return ckpt_error(k->err, e, "reading was given up by its caller");
	if (e == 0 && k->moved != copied && !MUTANT(MOVED_NOT_COUNTED))
		return ckpt_error(
			k->err, -EPROTO,
			"the checkpoint's chunks hold %llu of the %llu bytes that its pieces claim; see ckptctl verify",
			(unsigned long long)k->moved, (unsigned long long)copied);
	return e;
}

/* All that is only copied. */
static int read_copies(struct stream_room *room, const struct plan *p, const struct move_files *f,
		       void *const *dst_base, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	struct reading k = {
		.p = p,
		.f = f,
		.dst_base = dst_base,
		.stream = { .files = f, .ctx = &k, .work = read_work, .done = read_done },
		.room = room,
		.pace = { .tick = tick, .arg = arg },
		.err = err,
	};
	int e = reading_run(&k);

	for (uint64_t i = 0; k.outcome && i < k.stream.n; i++)
		free(k.outcome[i].fail);
	free(k.outcome);
	free(k.stream.block);
	free(k.op_first);
	free(k.need_first);
	free(k.hi_max);
	free(k.need);
	return e;
}

/* --- what is made of operands --- */

struct operands {
	struct stream_room *room;
	const struct move_files *f;
	move_tick_fn *tick;
	void *arg;
};

static int read_operand(void *arg, const struct plan *p, void *const *dst_base,
			struct ckpt_err *err)
{
	const struct operands *x = arg;

	return read_copies(x->room, p, x->f, dst_base, x->tick, x->arg, err);
}

/* Half of the buffers' bytes are for windows and what is made of them. */
static int read_reduced(struct stream_room *room, const struct plan *p, const struct move_files *f,
			void *const *dst_base, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	struct move_files half = *f;
	struct operands x = { room, &half, tick, arg };
	int e = room ? 0 : stream_room_open(f, &x.room, err);

	half.buffer_bytes = f->buffer_bytes / 2;
	if (!e)
		e = reduce_run(p, half.buffer_bytes, dst_base, read_operand, &x, err);
	if (!room)
		stream_room_close(x.room);
	return e;
}

int move_read_in(struct stream_room *room, const struct plan *p, const struct move_files *f,
		 void *const *dst_base, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	int e = reduce_check(p, dst_base, err);

	if (!e && p->reduced)
		e = read_reduced(room, p, f, dst_base, tick, arg, err);
	if (!e && (p->nop || !p->reduced))
		e = read_copies(room, p, f, dst_base, tick, arg, err);
	return e;
}

int move_read(const struct plan *p, const struct move_files *f, void *const *dst_base,
	      move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	return move_read_in(NULL, p, f, dst_base, tick, arg, err);
}
