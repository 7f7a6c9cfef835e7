/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_forged.c - what no checkpoint of ours has, but a file or another format may: chunks in
 * any order and far apart, holes that a piece claims, chunks too large to be held, pieces over each
 * other and between elements, files without chunks, errors without a name.
 */
#include "tests/unit/test_move_forged.h"
#include "tests/lib/row.h"
#include <stdio.h>

static struct forged x;
static uint8_t got[2 * sizeof x.raw];

/* --- chunks --- */

/* One tensor in one chunk. */
static void forged_one(const uint64_t *off)
{
	forged_begin(&x, 1, off);
	forged_hold(&x, "w", CKPT_U8, 1, FORGED_BYTES, 0);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
}

static struct ckpt_err err; /* of the call that failed last */

/* In the file's reverse order, or far apart: each is read for itself, and into its place. */
TEST(chunks_lie_anywhere_in_a_file)
{
	enum { N = 150 };
	uint64_t off[N];

	for (int how = 0; how < 2; how++) {
		for (uint32_t i = 0; i < N; i++)
			off[i] = how ? FORGED_BYTES * (N - i) : (1 + i) * (64 * MIB);
		forged_begin(&x, N, off);
		forged_hold(&x, "w", CKPT_U8, 1, N * FORGED_BYTES, 0);
		assert_int_equal(table_seal(&x.c.table, NULL), 0);
		memset(got, 0xee, sizeof got);
		assert_ok_err(forged_read(&x, IO_INLINE, got, &err), &err);
		assert_memory_equal(got, x.raw, N * FORGED_BYTES);
		assert_int_equal(got[N * FORGED_BYTES], 0xee);
		assert_int_equal(x.reads, N);
		if (how) {
			/* A pass over the file goes forward: it would read them more than once. */
			assert_int_equal(forged_verify(&x, NULL, NULL, NULL, NULL, &err), -EPROTO);
			assert_non_null(strstr(err.msg, "forged: chunk 1 at offset"));
		}
		/* The same with one byte that is wrong: nothing of its chunk is believed. */
		x.bad_at = off[N - 1] + 100;
		assert_int_equal(forged_read(&x, IO_INLINE, got, &err), -EBADMSG);
		assert_non_null(strstr(err.msg, "forged is damaged: 4096 bytes at offset"));
		assert_non_null(strstr(err.msg, "m/w"));
		forged_free(&x);
	}
}

TEST(a_piece_over_a_hole_is_not_taken_for_whole)
{
	static const uint64_t off[4] = { 2 * FORGED_BYTES, 0, 3 * FORGED_BYTES, 0 };
	struct move_verified v;

	forged_begin(&x, 4, off);
	forged_hold(&x, "w", CKPT_U8, 1, 3 * FORGED_BYTES, 0);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), -EPROTO);
	assert_non_null(
		strstr(err.msg, "chunks hold 8192 of the 12288 bytes that its pieces claim"));
	assert_int_equal(forged_verify(&x, NULL, NULL, NULL, &v, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "the elements have fingerprint"));
	assert_int_equal(v.all_chunks, 2);
	forged_free(&x);
	/* And where there are no more chunks at all. */
	forged_begin(&x, 4, off);
	x.file.nchunk = 2;
	forged_hold(&x, "w", CKPT_U8, 1, 3 * FORGED_BYTES, 0);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "its chunks end before a piece at byte 0"));
	forged_free(&x);
}

TEST(a_chunk_too_large_to_be_held_is_refused_unread)
{
	static const uint64_t off[1] = { FORGED_BYTES };

	forged_one(off);
	x.file.chunk_log2 = 27;
	x.chunk[0].raw_len = x.chunk[0].stored_len = STREAM_BLOCK_MAX + 1;
	x.data_end = FORGED_BYTES + STREAM_BLOCK_MAX + 1;
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), -EFBIG);
	assert_non_null(strstr(err.msg, "chunks of more than 64 MiB"));
	assert_int_equal(forged_verify(&x, NULL, NULL, NULL, NULL, &err), -EFBIG);
	assert_int_equal(x.reads, 0);
	forged_free(&x);
}

/* --- what verify finds --- */

struct told {
	uint32_t n;
	char kind[4][16], tensor[4][64], text[4][160];
	uint64_t offset[4], length[4];
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *t = arg;

	assert_string_equal(f->file, "forged");
	assert_true(t->n < ARRAY_LEN(t->kind));
	snprintf(t->kind[t->n], sizeof t->kind[0], "%s", f->kind);
	snprintf(t->tensor[t->n], sizeof t->tensor[0], "%s", f->tensor);
	snprintf(t->text[t->n], sizeof t->text[0], "%s", f->text);
	t->offset[t->n] = f->offset;
	t->length[t->n++] = f->length;
}

/* Two names for the same bytes, one for some of them, one that begins between two elements. */
static void overlapping_begin(void)
{
	static const uint64_t off[4] = { 4 * FORGED_BYTES, 5 * FORGED_BYTES, 6 * FORGED_BYTES,
					 7 * FORGED_BYTES };

	forged_begin(&x, 4, off);
	forged_hold(&x, "all", CKPT_U8, 1, 4 * FORGED_BYTES, 0);
	forged_hold(&x, "again", CKPT_U8, 1, 4 * FORGED_BYTES, 0);
	forged_hold(&x, "little", CKPT_U8, 1, 100, 50);
	forged_hold(&x, "odd", CKPT_F32, 4, 1500, 3 * FORGED_BYTES - 2002);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
}

TEST(pieces_may_lie_over_each_other_and_between_elements)
{
	struct told t = { .n = 0 };
	struct move_verified v;

	overlapping_begin();
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), 0);
	assert_memory_equal(got, x.raw, 4 * FORGED_BYTES);
	assert_memory_equal(got + 4 * FORGED_BYTES, x.raw, 4 * FORGED_BYTES);
	assert_memory_equal(got + 8 * FORGED_BYTES, x.raw + 50, 100);
	assert_memory_equal(got + 8 * FORGED_BYTES + 100, x.raw + 3 * FORGED_BYTES - 2002, 6000);
	/* The odd one's elements are cut by chunks: its fingerprint cannot be compared, that of no
	 * other is the worse for it. */
	x.c.table.piece[3].fp ^= 1;
	assert_int_equal(forged_verify(&x, NULL, on_fault, &t, &v, &err), 0);
	assert_int_equal(t.n, 0);
	assert_int_equal(v.all_pieces, 4);
	x.c.table.piece[0].fp ^= 1;
	x.c.table.piece[2].fp ^= 1;
	assert_int_equal(forged_verify(&x, NULL, on_fault, &t, &v, &err), -EBADMSG);
	assert_int_equal(t.n, 2);
	assert_string_equal(t.tensor[0], "m/all");
	assert_string_equal(t.tensor[1], "m/little");
	x.c.table.piece[0].fp ^= 1;
	x.c.table.piece[2].fp ^= 1;
	/* Damage behind the little one is not the little one's. */
	t.n = 0;
	x.bad_at = 5 * FORGED_BYTES + 7;
	assert_int_equal(forged_verify(&x, NULL, on_fault, &t, &v, &err), -EBADMSG);
	assert_int_equal(t.n, 1);
	assert_string_equal(t.kind[0], "checksum");
	assert_string_equal(t.tensor[0], "m/all");
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "which hold m/all"));
	forged_free(&x);
	/* No piece at all in a chunk: damage is damage, of nothing that has a name. */
	{
		static const uint64_t off[3] = { FORGED_BYTES, 2 * FORGED_BYTES, 3 * FORGED_BYTES };

		forged_begin(&x, 3, off);
		forged_hold(&x, "later", CKPT_U8, 1, 10, 100);
		forged_hold(&x, "first", CKPT_U8, 1, 10, 0);
		forged_hold(&x, "last", CKPT_U8, 1, 10, FORGED_BYTES + 7);
		assert_int_equal(table_seal(&x.c.table, NULL), 0);
		for (uint32_t i = 0; i < 3; i++) {
			static const char *const of[] = { "m/first", "m/last", "" };

			t.n = 0;
			x.bad_at = off[i];
			assert_int_equal(forged_verify(&x, NULL, on_fault, &t, &v, &err), -EBADMSG);
			assert_int_equal(t.n, 1);
			assert_string_equal(t.tensor[0], of[i]);
			assert_int_equal(forged_read(&x, IO_INLINE, got, &err),
					 i < 2 ? -EBADMSG : 0);
			if (i < 2)
				assert_non_null(strstr(err.msg, of[i]));
		}
		forged_free(&x);
	}
}

/* Before the first chunk, between chunks and behind the last. */
TEST(what_no_chunk_has_must_be_zero_and_there)
{
	static const uint64_t off[3] = { 20 * MIB, 20 * MIB + 2 * FORGED_BYTES, 60 * MIB };
	static const uint64_t bad[] = { FORGED_BYTES, 20 * MIB - 1, 20 * MIB + FORGED_BYTES,
					40 * MIB, 60 * MIB + 3 * FORGED_BYTES - 1 };
	struct move_verified v;

	forged_begin(&x, 3, off);
	x.data_end = 60 * MIB + 3 * FORGED_BYTES;
	x.bytes = x.file.file_bytes = x.data_end + FORGED_BYTES;
	forged_hold(&x, "w", CKPT_U8, 1, 3 * FORGED_BYTES, 0);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	assert_int_equal(forged_verify(&x, NULL, NULL, NULL, &v, &err), 0);
	assert_int_equal(v.bytes, x.data_end - x.data_off);
	assert_int_equal(v.bytes, v.all_bytes);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct told t = { .n = 0 };

		x.bad_at = bad[i];
		assert_int_equal(forged_verify(&x, NULL, on_fault, &t, &v, &err), 0);
		assert_int_equal(t.n, 1);
		assert_string_equal(t.kind[0], "padding");
		assert_string_equal(t.tensor[0], "");
		assert_int_equal(t.offset[0], bad[i]);
		assert_int_equal(t.length[0], 1);
	}
	x.bad_at = UINT64_MAX;
	/* It ends inside of what no chunk has, inside of a chunk, before all: it is told once. */
	for (uint64_t end = 0; end < x.data_end; end += 7 * MIB + 1) {
		struct told t = { .n = 0 };

		x.bytes = end;
		assert_int_equal(forged_verify(&x, NULL, on_fault, &t, &v, &err), -EBADMSG);
		assert_int_equal(t.n, 1);
		assert_string_equal(t.kind[0], "truncated");
		assert_int_equal(t.offset[0], MAX(end, x.data_off));
	}
	forged_free(&x);
}

TEST(what_cannot_be_read_is_told_by_its_errno_or_without)
{
	static const uint64_t off[1] = { FORGED_BYTES };
	static const struct {
		int error;
		const char *words;
	} is[] = { { -EIO, "cannot be read: Input/output error" },
		   { -4095, "cannot be read: unknown error" } };

	forged_one(off);
	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		struct told t = { .n = 0 };

		x.error = is[i].error;
		assert_int_equal(forged_verify(&x, NULL, on_fault, &t, NULL, &err), -EIO);
		assert_int_equal(t.n, 1);
		assert_string_equal(t.kind[0], "unreadable");
		assert_string_equal(t.text[0], is[i].words);
		assert_int_equal(forged_read(&x, IO_INLINE, got, &err), is[i].error);
		assert_non_null(strstr(err.msg, "forged: cannot read 4096 bytes at offset 4096"));
		assert_int_equal(forged_read(&x, IO_INLINE, got, NULL), is[i].error);
	}
	forged_free(&x);
}

/* --- what is asked for --- */

TEST(a_file_without_chunks_is_read_as_it_is)
{
	const struct move_subset some = { .how = SUBSET_RANDOM, .bytes = FORGED_BYTES, .seed = 3 };
	struct move_verified v, size;

	forged_begin(&x, 200, NULL);
	forged_hold(&x, "w", CKPT_F32, 4, 50000, 8);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), 0);
	assert_memory_equal(got, x.raw + 8, 200000);
	for (int how = 0; how < 2; how++) {
		const struct move_subset *s = how ? &some : &(struct move_subset){ 0 };

		/* Nothing in it must be zero, and no sum says what it was. */
		x.bad_at = 150;
		x.c.table.piece[0].fp_known = false;
		assert_int_equal(forged_verify(&x, s, NULL, NULL, &v, &err), 0);
		move_subset_size(&x.c, s, &size);
		assert_int_equal(v.bytes, size.bytes);
		assert_int_equal(v.all_bytes, x.bytes);
		assert_int_equal(v.chunks, size.chunks);
		assert_true(v.chunks > 0 && v.bytes > 0);
		assert_int_equal(v.all_chunks, size.all_chunks);
		assert_int_equal(v.all_pieces, 0);
		assert_int_equal(v.unsummed, v.bytes);
		/* But for the fingerprint of its elements, where one is known. */
		x.c.table.piece[0].fp_known = true;
		assert_int_equal(forged_verify(&x, s, NULL, NULL, &v, &err), -EBADMSG);
		assert_non_null(strstr(err.msg, "the elements have fingerprint"));
		assert_int_equal(v.pieces, 1);
		x.bad_at = UINT64_MAX;
		assert_int_equal(forged_verify(&x, s, NULL, NULL, &v, &err), 0);
	}
	forged_free(&x);
}

TEST(of_nothing_a_part_is_nothing)
{
	static const uint64_t off[2] = { 0, 0 };
	struct move_subset s = { .k = 1, .n = 2, .bytes = 100 };
	struct move_verified v, size;

	forged_begin(&x, 2, off);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	for (int how = SUBSET_ALL; how <= SUBSET_RANDOM; how++) {
		s.how = (__typeof__(s.how))how;
		assert_int_equal(forged_verify(&x, &s, NULL, NULL, &v, &err), 0);
		move_subset_size(&x.c, &s, &size);
		assert_int_equal(v.bytes, 0);
		assert_int_equal(size.bytes, 0);
		assert_int_equal(v.all_chunks, 0);
		assert_int_equal(size.all_chunks, 0);
	}
	/* Lost files have nothing to be asked for, and are neither opened nor read. */
	x.file.lost = true;
	x.data_end += FORGED_BYTES;
	assert_int_equal(forged_verify(&x, &s, NULL, NULL, &v, &err), 0);
	move_subset_size(&x.c, &s, &size);
	assert_int_equal(size.all_bytes, 0);
	forged_free(&x);
}

/* A part that was not opened has no pieces: whoever names one all the same is told. */
TEST(a_file_that_is_not_open_is_not_read)
{
	static const uint64_t off[1] = { FORGED_BYTES };

	forged_one(off);
	x.file.unread = true;
	assert_int_equal(forged_read(&x, IO_INLINE, got, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "forged is needed, but not open"));
	assert_int_equal(forged_verify(&x, NULL, NULL, NULL, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "forged is not open"));
	assert_int_equal(x.reads, 0);
	forged_free(&x);
}

/* Files that refuse direct I/O are read without it; every other refusal is told. */
TEST(a_file_is_opened_directly_where_that_is_possible)
{
	static const uint64_t off[1] = { FORGED_BYTES };
	static const struct {
		int direct_error, plain_error, want;
	} is[] = ROW({ 0, -EMFILE, 0 }, { -EINVAL, 0, 0 }, { -EOPNOTSUPP, 0, 0 }, { -EIO, 0, -EIO },
		     { -EINVAL, -EMFILE, -EMFILE }, { -EOPNOTSUPP, -EMFILE, -EMFILE });
	struct move_files f;

	forged_one(off);
	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		x.direct_error = is[i].direct_error;
		x.plain_error = is[i].plain_error;
		assert_int_equal(move_open(&x.ops, 0, &x.c, true, IO_INLINE, &f, &err), 0);
		assert_int_equal(MIN(move_take(&f, 0, &err), 0), is[i].want);
		if (is[i].want)
			assert_non_null(strstr(err.msg, "cannot open forged of the checkpoint"));
		else
			io_files_give(f.files, 0);
		assert_int_equal(x.nopens, is[i].want == 0);
		move_close(&f); /* also where nothing was opened */
		assert_int_equal(x.nopens, 0);
	}
	forged_free(&x);
}
