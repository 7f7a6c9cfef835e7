/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_verify.c - reads a checkpoint, or some units of it, and says what is wrong with it. Called
 * by ckptctl verify. Invariant: every byte that was asked for is read; it counts as summed only if
 * a sum that its file holds was compared, or if it must be zero; every byte is asked for by exactly
 * one of n parts. Nothing that is found ends the reading.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/move/block_stream.h"
#include "ckpt/move/chunk_check.h"
#include "ckpt/move/made.h"
#include "ckpt/move/move.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/range_sums.h"
#include "ckpt/move/verify_units.h"
#include <stdatomic.h>
#include <stdio.h>

#define LABEL_BYTES 160
#define TEXT_BYTES 400
#define GAP_MAX (64u << 10) /* bytes that are read over, between units of a file without chunks */

/* Found by a worker, told by the caller's thread. */
struct found {
	const char *kind, *text;
	uint64_t off, len;
	uint64_t lo, hi; /* raw bytes that it spoils */
};

/* What came of a block. */
struct outcome {
	struct found *found;
	uint32_t nfound;
	bool no_memory;
	uint64_t summed; /* bytes whose sum was compared */
};

struct verifying {
	const struct move_files *f;
	struct place_pieces pieces;
	_Atomic uint64_t
		*sum; /* [npiece] fingerprints so far; relaxed: read after the workers have ended */
	_Atomic bool *spoilt; /* [npiece] some of its bytes could not be believed, or were not
			       * asked for */
	struct stream stream;
	struct outcome *outcome; /* [stream.n] */
	bool *cut;		 /* [nfile] told to be cut short */
	struct range_sums *sums;
	struct pace pace;
	const struct move_subset *subset;
	struct move_verified *got;
	uint64_t nfault, nunreadable;
	char first_text[TEXT_BYTES];
	format_fault_fn *fault;
	void *arg;
	struct ckpt_err *err;
};

static void fault_tell(struct verifying *k, const struct format_fault *x)
{
	if (!format_fault_is_odd(x) && !k->nfault++)
		snprintf(k->first_text, sizeof k->first_text, "%s, offset %llu: %s", x->file,
			 (unsigned long long)x->offset, x->text);
	if (k->fault)
		k->fault(k->arg, x);
}

/* --- in a worker --- */

static void found_add(struct outcome *x, struct found f)
{
	struct found *p = reallocarray(x->found, (size_t)x->nfound + 1, sizeof *p);

	if (!p) {
		x->no_memory = true;
		return;
	}
	x->found = p;
	p[x->nfound++] = f;
}

static void chunk_pieces(struct verifying *k, uint32_t file, uint64_t lo, uint64_t hi,
			 const uint8_t *raw)
{
	const struct place_pieces *s = &k->pieces;

	for (uint32_t i = place_pieces_from(s, file, lo); i < s->first[file + 1]; i++) {
		const struct table_piece *p = &s->t->piece[s->piece[i]];
		struct piece_bytes b = table_piece_bytes(s->t, p);

		if (b.off >= hi)
			break;
		if (b.off + b.len <= lo)
			continue;
		if (!p->fp_known)
			continue;
		if (!raw || !piece_splits(s->t, p))
			atomic_store_explicit(&k->spoilt[s->piece[i]], true, memory_order_relaxed);
		else
			atomic_fetch_add_explicit(&k->sum[s->piece[i]],
						  piece_fingerprint_window(s->t, p, raw, lo, hi),
						  memory_order_relaxed);
	}
}

static void zeros_check(struct outcome *x, const uint8_t *p, uint64_t n, uint64_t off)
{
	uint64_t from = 0, to = n;

	while (from < to && !p[from])
		from++;
	while (to > from && !p[to - 1])
		to--;
	if (from < to && !MUTANT(PADDING_IGNORED))
		found_add(x, (struct found){ .kind = "padding",
					     .text = "bytes that must be zero are not",
					     .off = off + from,
					     .len = to - from });
}

static void block_chunk(struct verifying *k, uint32_t file, struct outcome *x, uint64_t i,
			const struct chunk *c, const uint8_t *stored)
{
	const struct format_file *f = &k->f->ckpt->file[file];
	uint64_t lo = i << file_chunk_log2(f), hi = lo + c->raw_len;
	const char *why = stored ? chunk_fault(f, c, stored) : NULL;

	if (why)
		found_add(x, (struct found){ .kind = "checksum",
					     .text = why,
					     .off = c->off,
					     .len = c->stored_len,
					     .lo = lo,
					     .hi = hi });
	chunk_pieces(k, file, lo, hi, why ? NULL : stored);
}

static void chunks_work(struct verifying *k, const struct stream_block *b, struct outcome *x,
			const uint8_t *bytes, uint64_t got)
{
	const struct format_file *f = &k->f->ckpt->file[b->file];
	uint64_t at = 0;

	x->summed = got;
	for (uint64_t i = b->first; i < b->end; i++) {
		const struct chunk *c = &f->chunk[i];
		uint64_t from = c->off - b->off, to = from + c->stored_len;

		if (!c->raw_len)
			continue;
		if (at < MIN(from, got))
			zeros_check(x, bytes + at, MIN(from, got) - at, b->off + at);
		block_chunk(k, b->file, x, i, c, to <= got ? bytes + from : NULL);
		at = to;
	}
	if (at < got)
		zeros_check(x, bytes + at, got - at, b->off + at);
}

/* range_sum_fn */
static void crc_found(void *arg, const struct format_range *r, bool right)
{
	struct outcome *x = arg;

	x->summed += r->len;
	if (!right)
		found_add(x, (struct found){ .kind = "checksum",
					     .text = "the CRC-32 of its bytes is wrong",
					     .off = r->off,
					     .len = r->len,
					     .lo = r->off,
					     .hi = r->off + r->len });
}

static void plain_work(struct verifying *k, const struct stream_block *b, struct outcome *x,
		       const uint8_t *bytes, uint64_t got)
{
	const struct format_file *f = &k->f->ckpt->file[b->file];
	uint64_t end = b->off + got, n;
	struct format_range one;
	const struct format_range *r = file_ranges(f, &one, &n);

	for (uint64_t i = ranges_from(r, n, b->off); i < n && r[i].off < end; i++) {
		uint64_t from = MAX(b->off, r[i].off), to = MIN(end, r[i].off + r[i].len);

		if (r[i].kind != RANGE_ZERO || !move_reads(&r[i]))
			continue;
		zeros_check(x, bytes + (from - b->off), to - from, from);
		x->summed += r[i].sum == SUM_CRC32 ? 0 : to - from;
	}
	range_sums_add(k->sums, b->file, b->off, got, bytes, crc_found, x);
	for (uint64_t i = b->first; i < b->end; i++) {
		uint64_t lo = MAX(i << CHUNK_PLAIN_LOG2, b->off),
			 hi = MIN((i + 1) << CHUNK_PLAIN_LOG2, b->off + b->len);

		chunk_pieces(k, b->file, lo, hi, hi <= end ? bytes + (lo - b->off) : NULL);
	}
}

static void verify_work(void *ctx, uint64_t block, const uint8_t *bytes)
{
	struct verifying *k = ctx;
	const struct stream_block *b = &k->stream.block[block];
	uint64_t got = b->got < 0 ? 0 : (uint64_t)b->got;

	if (k->f->ckpt->file[b->file].chunk)
		chunks_work(k, b, &k->outcome[block], bytes, got);
	else
		plain_work(k, b, &k->outcome[block], bytes, got);
}

/* --- in the caller's thread --- */

static void block_tell(struct verifying *k, uint64_t block)
{
	const struct stream_block *b = &k->stream.block[block];
	const struct format_file *f = &k->f->ckpt->file[b->file];
	const struct outcome *x = &k->outcome[block];
	char label[LABEL_BYTES], text[TEXT_BYTES];

	for (uint32_t i = 0; i < x->nfound; i++) {
		const struct found *y = &x->found[i];

		place_pieces_name(&k->pieces, b->file, y->lo, y->hi, label, sizeof label);
		fault_tell(k, &(struct format_fault){ .kind = y->kind,
						      .file = f->name,
						      .tensor = label,
						      .text = y->text,
						      .offset = y->off,
						      .length = y->len });
	}
	if (b->got == (int64_t)b->len || k->cut[b->file])
		return;
	label[0] = 0;
	if (b->first < b->end) {
		uint64_t lo = b->first << file_chunk_log2(f);

		place_pieces_name(&k->pieces, b->file, lo, b->end << file_chunk_log2(f), label,
				  sizeof label);
	}
	if (b->got < 0) {
		const char *why = strerrordesc_np((int)-b->got);

		k->nunreadable++;
		snprintf(text, sizeof text, "cannot be read: %s", why ? why : "unknown error");
		fault_tell(k, &(struct format_fault){ .kind = "unreadable",
						      .file = f->name,
						      .tensor = label,
						      .text = text,
						      .offset = b->off,
						      .length = b->len });
		return;
	}
	k->cut[b->file] = true;
	fault_tell(k, &(struct format_fault){ .kind = "truncated",
					      .file = f->name,
					      .tensor = label,
					      .text = "the file ends inside its data",
					      .offset = b->off + (uint64_t)b->got,
					      .length = b->len - (uint64_t)b->got });
}

static int verify_done(void *ctx, uint64_t block)
{
	struct verifying *k = ctx;
	const struct stream_block *b = &k->stream.block[block];
	struct outcome *x = &k->outcome[block];
	uint64_t got = b->got < 0 ? 0 : (uint64_t)b->got;

	if (x->no_memory)
		return ckpt_error(k->err, -ENOMEM, "out of memory for the list of faults");
	block_tell(k, block);
	free(TAKE(x->found));
	if (!k->f->ckpt->file[b->file].chunk)
		got = file_read_bytes(&k->f->ckpt->file[b->file], b->off, b->off + got, NULL);
	k->got->bytes += got;
	k->got->summed += x->summed;
	return pace_add(&k->pace, got);
}

static void pieces_tell(struct verifying *k)
{
	const struct table *t = &k->f->ckpt->table;
	char label[LABEL_BYTES], text[TEXT_BYTES];

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		uint32_t root = checkpoint_file_of(k->f->ckpt, p->place);
		uint64_t sum = atomic_load_explicit(&k->sum[i], memory_order_relaxed);

		if (!p->fp_known || sum == p->fp || MUTANT(PIECE_PRINT_IGNORED) ||
		    atomic_load_explicit(&k->spoilt[i], memory_order_relaxed))
			continue;
		table_tensor_print(&t->tensor[p->tensor], label, sizeof label);
		snprintf(text, sizeof text,
			 "the elements have fingerprint %016llx, the file says %016llx",
			 (unsigned long long)sum, (unsigned long long)p->fp);
		fault_tell(k, &(struct format_fault){
				      .kind = "mismatch",
				      .file = root == TABLE_NONE ? "" : k->f->ckpt->file[root].name,
				      .tensor = label,
				      .text = text });
	}
}

/* --- places that are made --- */

struct making {
	struct verifying *k;
	uint32_t place;
};

/* made_fn */
static int made_check(void *arg, uint64_t lo, uint64_t hi, const uint8_t *p)
{
	struct making *x = arg;

	chunk_pieces(x->k, x->place, lo, hi, p);
	return pace_add(&x->k->pace, 0);
}

static int made_verify(struct verifying *k, struct made_reader *m, uint32_t place)
{
	const struct checkpoint *c = k->f->ckpt;
	const struct format_made *x = &c->made[place - c->nfile];
	uint64_t bytes = c->table.place[place].bytes;
	uint32_t root = checkpoint_file_of(c, place);
	struct making making = { .k = k, .place = place };
	struct ckpt_err err = { 0 };
	char label[LABEL_BYTES];
	int e = made_run(m, place, 0, bytes, made_check, &making, &err);

	if (!e && x->has_crc && x->from < c->nfile) /* the bytes that it is made of have that sum */
		k->got->summed += x->len;
	if (!e || e == -ECANCELED || e == -ENOMEM) {
		if (e && k->err)
			*k->err = err;
		return e;
	}
	chunk_pieces(k, place, 0, bytes, NULL);
	place_pieces_name(&k->pieces, place, 0, bytes, label, sizeof label);
	if (e != -EBADMSG && e != -EPROTO && e != -EPROTONOSUPPORT)
		k->nunreadable++;
	fault_tell(k, &(struct format_fault){ .kind = e == -EBADMSG	      ? "checksum"
						      : e == -EPROTO	      ? "malformed"
						      : e == -EPROTONOSUPPORT ? "newer"
									      : "unreadable",
					      .file = root == TABLE_NONE ? "" : c->file[root].name,
					      .tensor = label,
					      .text = err.msg,
					      .offset = x->off,
					      .length = x->len });
	return 0;
}

/* All of them, or, where some of the bytes are asked for, none. */
static int made_verify_all(struct verifying *k)
{
	const struct checkpoint *c = k->f->ckpt;
	struct made_reader *m;
	int e = 0;

	if (!c->nmade || k->subset->how != SUBSET_ALL)
		return 0;
	if (made_open(k->f, &m, k->err))
		return -ENOMEM;
	for (uint32_t i = c->nfile; i < c->nfile + c->nmade && !e; i++) {
		uint32_t root = checkpoint_file_of(c, i);

		if (root == TABLE_NONE ||
		    !(c->file[root].lost || (k->subset->skip && k->subset->skip[root])))
			e = made_verify(k, m, i);
		else
			chunk_pieces(k, i, 0, c->table.place[i].bytes, NULL);
	}
	made_close(m);
	return e;
}

/* --- what is read --- */

/* Append bytes of the file that no chunk has. */
static int range_add(struct verifying *k, uint32_t file, uint64_t from, uint64_t to)
{
	for (uint64_t at = from, n; at < to; at += n) {
		struct stream_block *b = stream_block_add(&k->stream);

		n = MIN(to - at, MOVE_BLOCK);
		if (!b)
			return ckpt_error(k->err, -ENOMEM, "out of memory for the list of reads");
		b->file = file;
		b->off = at;
		b->len = n;
	}
	return 0;
}

/* The last block of the file, if it ends at most `gap` bytes before `at` and can take the bytes up
 * to `to`. */
static struct stream_block *block_room(struct verifying *k, uint32_t file, uint64_t at, uint64_t to,
				       uint64_t gap)
{
	struct stream_block *b = k->stream.n ? &k->stream.block[k->stream.n - 1] : NULL;

	return b && b->file == file && b->off + b->len <= at && at - (b->off + b->len) <= gap &&
			       to - b->off <= MOVE_BLOCK
		       ? b
		       : NULL;
}

/* The unit, and the bytes between `at` and it. */
static int unit_add(struct verifying *k, uint32_t file, const struct unit *u, uint64_t at)
{
	bool chunks = k->f->ckpt->file[file].chunk;
	uint64_t to = u->off + u->len;
	struct stream_block *b =
		block_room(k, file, chunks ? at : u->off, to, chunks ? 0 : GAP_MAX);
	int e;

	if (b && !chunks && b->end != u->i)
		b = NULL;
	if (!b) {
		e = chunks ? range_add(k, file, at, u->off) : 0;
		if (e < 0)
			return e;
		b = stream_block_add(&k->stream);
		if (!b)
			return ckpt_error(k->err, -ENOMEM, "out of memory for the list of reads");
		b->file = file;
		b->off = u->off;
	}
	b->len = to - b->off;
	if (b->first == b->end)
		b->first = u->i;
	b->end = u->i + 1;
	return 0;
}

/* What lies behind the file's last chunk. */
static int rest_add(struct verifying *k, uint32_t file, uint64_t at, uint64_t end)
{
	struct stream_block *b = at < end ? block_room(k, file, at, end, 0) : NULL;

	if (!b)
		return range_add(k, file, at, end);
	b->len = end - b->off;
	return 0;
}

static int unit_check(struct verifying *k, const struct format_file *f, const struct unit *u,
		      uint64_t at, uint64_t end)
{
	int e = f->chunk ? chunk_known(f, u->i, k->err) : 0;

	if (e == 0 && (u->off < at || u->off + u->len > end))
		e = ckpt_error(
			k->err, -EPROTO,
			"%s: chunk %llu at offset %llu lies outside of the data or in another chunk",
			f->name, (unsigned long long)u->i, (unsigned long long)u->off);
	return e;
}

static int file_add(struct verifying *k, struct picking *picking, uint32_t file)
{
	const struct format_file *f = &k->f->ckpt->file[file];
	bool wanted = k->subset->how == SUBSET_ALL; /* a file without units */
	uint64_t at, end;
	struct units units;
	struct unit u;

	file_span(f, &at, &end);
	picking_file(picking, f, file);
	wanted &= !picking->skip;
	for (units_begin(&units, f); units_next(&units, &u); at = u.off + u.len) {
		int e = unit_check(k, f, &u, at, end);

		if (e < 0)
			return e;
		k->got->all_chunks++;
		wanted = picking_next(picking);
		if (wanted) {
			k->got->chunks++;
			e = unit_add(k, file, &u, at);
		} else if (f->chunk) {
			uint64_t lo = u.i << f->chunk_log2;

			chunk_pieces(k, file, lo, lo + f->chunk[u.i].raw_len, NULL);
		} else {
			chunk_pieces(k, file, u.off, u.off + u.len, NULL);
		}
		if (e < 0)
			return e;
	}
	return wanted && f->chunk ? rest_add(k, file, at, end) : 0;
}

static int verifying_begin(struct verifying *k)
{
	const struct checkpoint *c = k->f->ckpt;
	struct picking picking;

	k->sum = calloc((size_t)c->table.npiece + 1, sizeof *k->sum);
	k->spoilt = calloc((size_t)c->table.npiece + 1, sizeof *k->spoilt);
	k->cut = calloc((size_t)c->nfile + 1, sizeof *k->cut);
	if (!k->sum || !k->spoilt || !k->cut || range_sums_make(c, true, &k->sums) < 0 ||
	    place_pieces_make(&c->table, &k->pieces) < 0)
		return ckpt_error(k->err, -ENOMEM, "out of memory for the sums of %u pieces",
				  c->table.npiece);
	picking_begin(&picking, c, k->subset);
	k->got->all_bytes = picking.all;
	for (uint32_t i = 0; i < c->nfile; i++) {
		int e = 0;

		if (c->file[i].lost)
			continue;
		e = !move_has(k->f, i)
			    ? ckpt_error(k->err, -EINVAL, "%s is not open", c->file[i].name)
			    : file_add(k, &picking, i);
		if (e < 0)
			return e;
	}
	for (uint32_t i = c->nfile; i < c->nfile + c->nmade && k->subset->how != SUBSET_ALL; i++)
		chunk_pieces(k, i, 0, c->table.place[i].bytes, NULL);
	for (uint32_t i = 0; i < c->table.npiece; i++) {
		bool known = c->table.piece[i].fp_known;

		k->got->all_pieces += known;
		k->got->pieces +=
			known && !atomic_load_explicit(&k->spoilt[i], memory_order_relaxed);
	}
	k->outcome = calloc(k->stream.n + 1, sizeof *k->outcome);
	return k->outcome ? 0 : ckpt_error(k->err, -ENOMEM, "out of memory for the list of reads");
}

static int verifying_run(struct verifying *k)
{
	int e = verifying_begin(k);

	if (e < 0)
		return e;
	e = stream_run(&k->stream, NULL, k->err);
	if (e == 0)
		e = made_verify_all(k);
	if (e == 0)
		e = pace_end(&k->pace);
	if (e == -ECANCELED)
		return ckpt_error(k->err, e, "verifying was given up by its caller");
	if (e < 0)
		return e;
	pieces_tell(k);
	if (!k->nfault)
		return 0;
	return ckpt_error(k->err, k->nunreadable == k->nfault ? -EIO : -EBADMSG,
			  "%llu faults in the data; the first: %s; restore an older step",
			  (unsigned long long)k->nfault, k->first_text);
}

int move_verify_some(const struct move_files *f, const struct move_subset *subset,
		     move_tick_fn *tick, void *tick_arg, format_fault_fn *fault, void *arg,
		     struct move_verified *ret, struct ckpt_err *err)
{
	struct verifying k = {
		.f = f,
		.stream = { .files = f, .ctx = &k, .work = verify_work, .done = verify_done },
		.pace = { .tick = tick, .arg = tick_arg },
		.subset = subset,
		.got = ret,
		.fault = fault,
		.arg = arg,
		.err = err,
	};
	int e;

	*ret = (struct move_verified){ 0 };
	e = verifying_run(&k);
	ret->summed = MIN(ret->summed, ret->bytes);
	ret->unsummed = ret->bytes - ret->summed;
	for (uint64_t i = 0; k.outcome && i < k.stream.n; i++)
		free(k.outcome[i].found);
	free(k.outcome);
	free(k.stream.block);
	free((void *)k.sum);
	free((void *)k.spoilt);
	free(k.cut);
	range_sums_free(k.sums);
	place_pieces_free(&k.pieces);
	return e;
}

int move_verify(const struct move_files *f, move_tick_fn *tick, void *tick_arg,
		format_fault_fn *fault, void *arg, uint64_t *ret_bytes, struct ckpt_err *err)
{
	static const struct move_subset all;
	struct move_verified got;
	int e = move_verify_some(f, &all, tick, tick_arg, fault, arg, &got, err);

	*ret_bytes = got.bytes;
	return e;
}

void move_subset_size(const struct checkpoint *c, const struct move_subset *subset,
		      struct move_verified *ret)
{
	struct picking picking;

	*ret = (struct move_verified){ 0 };
	picking_begin(&picking, c, subset);
	ret->all_bytes = picking.all;
	for (uint32_t file = 0; file < c->nfile; file++) {
		const struct format_file *f = &c->file[file];
		bool wanted = subset->how == SUBSET_ALL;
		uint64_t at, end;
		struct units units;
		struct unit u;

		if (f->lost)
			continue;
		file_span(f, &at, &end);
		picking_file(&picking, f, file);
		wanted &= !picking.skip;
		for (units_begin(&units, f); units_next(&units, &u); at = u.off + u.len) {
			wanted = picking_next(&picking);
			ret->all_chunks++;
			ret->chunks += wanted;
			ret->bytes += !wanted	 ? 0
				      : f->chunk ? u.off + u.len - at
						 : file_read_bytes(f, u.off, u.off + u.len, NULL);
		}
		if (wanted && f->chunk)
			ret->bytes += end - at;
	}
}
