/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_verify.c - reads a checkpoint, or some chunks of it, and says what is wrong with it. Called by
 * ckptctl verify. Invariant: every byte of the data areas that was asked for is read, and is covered
 * by a chunk's sums or must be zero; every byte is asked for by exactly one of n parts. Nothing that
 * is found ends the reading.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/move/block_stream.h"
#include "ckpt/move/chunk_check.h"
#include "ckpt/move/move.h"
#include "ckpt/move/pace.h"
#include "ckpt/move/place_pieces.h"
#include <stdatomic.h>
#include <stdio.h>

#define LABEL_BYTES 160
#define TEXT_BYTES 400

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
	struct pace pace;
	const struct move_subset *subset;
	struct move_verified *got;
	uint64_t nfault, nunreadable;
	char first_text[TEXT_BYTES];
	format_fault_fn *fault;
	void *arg;
	struct ckpt_err *err;
};

/* --- which chunks --- */

/* The chunks of a checkpoint, asked one after the other, file by file. */
struct picking {
	const struct move_subset *s;
	bool skip;	      /* the file */
	uint64_t number;      /* of the next chunk, in all files */
	uint64_t left, want;  /* RANDOM: of the file's: those to come, those to be taken of them */
	uint64_t random, all; /* all: bytes of all files */
};

static uint64_t data_bytes(const struct format_file *f)
{
	if (f->lost)
		return 0;
	return f->chunk ? f->data_end - MIN(f->data_off, f->data_end) : f->file_bytes;
}

static void picking_begin(struct picking *x, const struct checkpoint *c,
			  const struct move_subset *s)
{
	*x = (struct picking){ .s = s };
	for (uint32_t i = 0; i < c->nfile; i++)
		x->all += data_bytes(&c->file[i]);
}

static void picking_file(struct picking *x, const struct format_file *f, uint32_t file)
{
	double share = x->all ? (double)x->s->bytes / (double)x->all : 0;

	x->left = x->want = 0;
	x->skip = x->s->skip && x->s->skip[file];
	if (x->skip || x->s->how != SUBSET_RANDOM)
		return;
	x->random = x->s->seed + file * UINT64_C(0x9e3779b97f4a7c15);
	for (uint64_t i = 0; i < file_nchunk(f); i++)
		x->left += file_chunk(f, i).raw_len > 0;
	x->want = share >= 1 ? x->left : (uint64_t)(share * (double)x->left + 0.5);
	x->want = x->want ? x->want : 1;
	x->want = MIN(x->want, x->left);
}

static uint64_t random_below(struct picking *x, uint64_t n)
{
	uint64_t z = x->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (z ^ z >> 31) % n;
}

/* Is the next chunk that has bytes wanted? Of those to come each is as likely as the others. */
static bool picking_next(struct picking *x)
{
	uint64_t number = x->number++;

	if (x->skip)
		return false;
	if (x->s->how == SUBSET_ALL)
		return true;
	if (x->s->how == SUBSET_NTH)
		return number % x->s->n + 1 == x->s->k;
	if (random_below(x, x->left--) >= x->want)
		return false;
	x->want--;
	return true;
}

static void tell(struct verifying *k, const struct format_fault *x)
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
		if (!raw || !piece_splits(s->t, p))
			atomic_store_explicit(&k->spoilt[s->piece[i]], true, memory_order_relaxed);
		else
			atomic_fetch_add_explicit(&k->sum[s->piece[i]],
						  piece_fingerprint_window(s->t, p, raw, lo, hi),
						  memory_order_relaxed);
	}
}

static void gap_check(struct outcome *x, const uint8_t *p, uint64_t n, uint64_t off)
{
	uint64_t from = 0, to = n;

	while (from < to && !p[from])
		from++;
	while (to > from && !p[to - 1])
		to--;
	if (from < to && !MUTANT(PADDING_IGNORED))
		found_add(x,
			  (struct found){ .kind = "padding",
					  .text = "bytes between chunks that must be zero are not",
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

static void verify_work(void *ctx, uint64_t block, const uint8_t *bytes)
{
	struct verifying *k = ctx;
	const struct stream_block *b = &k->stream.block[block];
	const struct format_file *f = &k->f->ckpt->file[b->file];
	uint64_t at = 0, got = b->got < 0 ? 0 : (uint64_t)b->got;
	struct outcome *x = &k->outcome[block];

	for (uint64_t i = b->first; i < b->end; i++) {
		const struct chunk c = file_chunk(f, i);
		uint64_t from = c.off - b->off, to = from + c.stored_len;

		if (!c.raw_len)
			continue;
		if (f->chunk && at < MIN(from, got))
			gap_check(x, bytes + at, MIN(from, got) - at, b->off + at);
		block_chunk(k, b->file, x, i, &c, to <= got ? bytes + from : NULL);
		at = to;
	}
	if (f->chunk && at < got)
		gap_check(x, bytes + at, got - at, b->off + at);
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
		tell(k, &(struct format_fault){ .kind = y->kind,
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
		tell(k, &(struct format_fault){ .kind = "unreadable",
						.file = f->name,
						.tensor = label,
						.text = text,
						.offset = b->off,
						.length = b->len });
		return;
	}
	k->cut[b->file] = true;
	tell(k, &(struct format_fault){ .kind = "truncated",
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
	k->got->bytes += got;
	return pace_add(&k->pace, got);
}

static void pieces_tell(struct verifying *k)
{
	const struct table *t = &k->f->ckpt->table;
	char label[LABEL_BYTES], text[TEXT_BYTES];

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct format_file *f = &k->f->ckpt->file[p->place];
		uint64_t sum = atomic_load_explicit(&k->sum[i], memory_order_relaxed);

		if (!f->chunk || !p->fp_known || sum == p->fp || MUTANT(PIECE_PRINT_IGNORED) ||
		    atomic_load_explicit(&k->spoilt[i], memory_order_relaxed))
			continue;
		table_tensor_print(&t->tensor[p->tensor], label, sizeof label);
		snprintf(text, sizeof text,
			 "the elements have fingerprint %016llx, the file says %016llx",
			 (unsigned long long)sum, (unsigned long long)p->fp);
		tell(k,
		     &(struct format_fault){
			     .kind = "mismatch", .file = f->name, .tensor = label, .text = text });
	}
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

/* The last block of the file, when it can take the bytes up to `to`. */
static struct stream_block *block_room(struct verifying *k, uint32_t file, uint64_t at, uint64_t to)
{
	struct stream_block *b = k->stream.n ? &k->stream.block[k->stream.n - 1] : NULL;

	return b && b->file == file && b->off + b->len == at && to - b->off <= MOVE_BLOCK ? b
											  : NULL;
}

/* The chunk, and the bytes between `at` and it. */
static int chunk_add(struct verifying *k, uint32_t file, uint64_t i, const struct chunk *c,
		     uint64_t at)
{
	uint64_t to = c->off + c->stored_len;
	struct stream_block *b = block_room(k, file, at, to);
	int e;

	if (!b) {
		e = range_add(k, file, at, c->off);
		if (e < 0)
			return e;
		b = stream_block_add(&k->stream);
		if (!b)
			return ckpt_error(k->err, -ENOMEM, "out of memory for the list of reads");
		b->file = file;
		b->off = c->off;
	}
	b->len = to - b->off;
	if (b->first == b->end)
		b->first = i;
	b->end = i + 1;
	return 0;
}

/* What lies behind the file's last chunk. */
static int rest_add(struct verifying *k, uint32_t file, uint64_t at, uint64_t end)
{
	struct stream_block *b = at < end ? block_room(k, file, at, end) : NULL;

	if (!b)
		return range_add(k, file, at, end);
	b->len = end - b->off;
	return 0;
}

static int file_add(struct verifying *k, struct picking *picking, uint32_t file)
{
	const struct format_file *f = &k->f->ckpt->file[file];
	uint64_t at = f->chunk ? f->data_off : 0, end = f->chunk ? f->data_end : f->file_bytes;
	bool wanted = k->subset->how == SUBSET_ALL; /* a file without chunks */
	int e = 0;

	picking_file(picking, f, file);
	wanted &= !picking->skip;
	for (uint64_t i = 0; i < file_nchunk(f); i++) {
		const struct chunk c = file_chunk(f, i);
		uint64_t lo = i << file_chunk_log2(f);

		if (!c.raw_len)
			continue;
		e = chunk_known(f, i, k->err);
		if (e == 0 && (c.off < at || c.off + c.stored_len > end))
			e = ckpt_error(
				k->err, -EPROTO,
				"%s: chunk %llu at offset %llu lies outside of the data or in another chunk",
				f->name, (unsigned long long)i, (unsigned long long)c.off);
		if (e < 0)
			return e;
		k->got->all_chunks++;
		wanted = picking_next(picking);
		if (wanted) {
			k->got->chunks++;
			e = chunk_add(k, file, i, &c, at);
		} else {
			chunk_pieces(k, file, lo, lo + c.raw_len, NULL);
		}
		if (e < 0)
			return e;
		at = c.off + c.stored_len;
	}
	return wanted ? rest_add(k, file, at, end) : 0;
}

static int verifying_begin(struct verifying *k)
{
	const struct checkpoint *c = k->f->ckpt;
	struct picking picking;

	k->sum = calloc((size_t)c->table.npiece + 1, sizeof *k->sum);
	k->spoilt = calloc((size_t)c->table.npiece + 1, sizeof *k->spoilt);
	k->cut = calloc((size_t)c->nfile + 1, sizeof *k->cut);
	if (!k->sum || !k->spoilt || !k->cut || place_pieces_make(&c->table, &k->pieces) < 0)
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
	for (uint32_t i = 0; i < c->table.npiece; i++) {
		k->got->all_pieces++;
		k->got->pieces += !atomic_load_explicit(&k->spoilt[i], memory_order_relaxed);
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
	for (uint64_t i = 0; k.outcome && i < k.stream.n; i++)
		free(k.outcome[i].found);
	free(k.outcome);
	free(k.stream.block);
	free((void *)k.sum);
	free((void *)k.spoilt);
	free(k.cut);
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
		uint64_t at = f->chunk ? f->data_off : 0;
		bool wanted = subset->how == SUBSET_ALL;

		if (f->lost)
			continue;
		picking_file(&picking, f, file);
		wanted &= !picking.skip;
		for (uint64_t i = 0; i < file_nchunk(f); i++) {
			const struct chunk x = file_chunk(f, i);

			if (!x.raw_len)
				continue;
			wanted = picking_next(&picking);
			ret->all_chunks++;
			ret->chunks += wanted;
			ret->bytes += wanted ? x.off + x.stored_len - at : 0;
			at = x.off + x.stored_len;
		}
		if (wanted)
			ret->bytes += (f->chunk ? f->data_end : f->file_bytes) - at;
	}
}
