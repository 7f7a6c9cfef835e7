/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_padding.c - what no chunk stores is zero in the file, also where the buffer that it was
 * written from has held other bytes before.
 */
#include <sys/mman.h>
#include "ckpt/move/chunk_stream.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define CHUNKS 12 /* of two buffers, in turn */
#define CHUNK_BYTES ((uint64_t)1 << CHUNK_LOG2)

/* One tensor of bytes in each chunk, none a multiple of anything, each shorter than the one
 * before. */
static void part_table(struct table *t)
{
	struct table_place place = { .name = "a part", .bytes = CHUNKS * CHUNK_BYTES };

	assert_int_equal(table_add_place(t, &place, NULL, NULL), 0);
	for (uint64_t i = 0; i < CHUNKS; i++) {
		uint64_t start = 0, shape = 900001 - 7001 * i;
		char name[16];
		struct table_tensor x =
			ROW(.component = "m", .name = name, .of = "", .dtype = CKPT_U8,
			    .cls = CKPT_STABLE, .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 1,
			    .shape = &shape);
		struct table_piece p = { .off = i * CHUNK_BYTES };
		struct arena a = { 0 };

		(void)snprintf(name, sizeof name, "t%02u", (unsigned)i);
		assert_int_equal(table_add_tensor(t, &x, &p.tensor, NULL), 0);
		assert_int_equal(indexset_box(1, &start, &shape, &a, &p.set), 0);
		assert_int_equal(table_add_piece(t, &p, NULL), 0);
		arena_free(&a);
	}
	assert_int_equal(table_seal(t, NULL), 0);
}

/* halves: each chunk comes in two pieces. */
static void written(bool halves)
{
	const struct chunk_queue_opts o = { .ops = &io_ops_posix,
					    .engine = IO_INLINE,
					    .nbuffer = 2 };
	uint8_t *raw = aligned_alloc(4096, CHUNK_BYTES), *file = malloc(2 * CHUNK_BYTES);
	int fd = memfd_create("part", MFD_CLOEXEC);
	struct chunk_written done;
	struct table t = { 0 };
	struct chunk_stream *w;
	struct ckpt_err err;
	struct chunk_queue *io;
	struct chunk *chunk;
	uint64_t n, end;

	assert_true(raw && file && fd >= 0);
	memset(raw, 0xa5, CHUNK_BYTES);
	part_table(&t);
	assert_int_equal(chunk_map_make(&t, CHUNK_ALIGN, &chunk, &n, &end, &err), 0);
	assert_int_equal(n, CHUNKS);
	assert_int_equal(chunk_queue_open(&o, &io, &err), 0);
	assert_int_equal(chunk_stream_open(io, fd, &t, CHUNK_ALIGN, 0, NULL, &w, &err), 0);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t cut = halves ? 1000 : 0;

		if (cut && chunk_stream_write(w, i * CHUNK_BYTES, raw, cut, &err))
			fail_msg("%s", err.msg);
		assert_ok_err(chunk_stream_write(w, i * CHUNK_BYTES + cut, raw,
						 chunk[i].raw_len - cut, &err),
			      &err);
	}
	assert_int_equal(chunk_stream_end(w, &done, &err), 0);
	assert_true(done.nchunk == n && done.data_end == end);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t stop = i + 1 < n ? chunk[i + 1].off : end, len = stop - chunk[i].off;

		assert_true(chunk[i].raw_len < len && len < 2 * CHUNK_BYTES);
		assert_int_equal(io_pread_all(&io_ops_posix, fd, file, len, chunk[i].off), 0);
		assert_memory_equal(file, raw, chunk[i].raw_len);
		for (uint64_t k = chunk[i].raw_len; k < len; k++)
			if (file[k])
				fail_msg("byte %llu behind chunk %llu is not zero",
					 (unsigned long long)(k - chunk[i].raw_len),
					 (unsigned long long)i);
	}
	chunk_stream_close(w);
	chunk_queue_close(io);
	free(chunk);
	table_free(&t);
	free(raw);
	free(file);
	(void)close(fd);
}

TEST(padding_is_zero_in_buffers_that_are_used_again)
{
	written(false);
	written(true);
}
