/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_sink.c - files that are their own bytes (sink_plain), through each I/O engine: bytes
 * that come in any order, from any address, at any offset, are in their file and in no other; a
 * write that fails fails the sink; what was taken is not looked at after a drain.
 */
#include "ckpt/engine/sink.h"
#include "ckpt/table/table.h"
#include "tests/lib/draw.h"
#include "tests/lib/row.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <unistd.h>

#define NFILE 3u
#define HEAD 4096u		/* of a file, before its piece */
#define LEN ((uint64_t)5 << 20) /* of a piece, and a few bytes */
#define MEM ((size_t)2 * LEN)

static const enum io_engine engines[] = { IO_INLINE, IO_THREADS, IO_AUTO };
static char top[SCRATCH_MAX];
static uint8_t *mem;
static struct ckpt_err err;

struct rig {
	struct engine e;
	struct sheet sheet;
	struct sheet_file file[NFILE];
	char name[NFILE][16];
	uint32_t piece[NFILE], first[NFILE + 1];
	struct publish *to;
	struct sink *sink;
	uint8_t *want[NFILE]; /* [len] */
	uint64_t len;	      /* of a piece */
};

/* File i has one piece, of tensor i. */
static void rig_begin(struct rig *x, const struct io_ops *ops, enum io_engine io, uint64_t len)
{
	struct publish_opts o = { .ops = ops, .dir = true, .resume = true, .mode = 0600 };
	struct sink_env env = { .e = &x->e, .sheet = &x->sheet, .nbuffer = 16 };
	struct table *t = &x->sheet.table;
	char path[SCRATCH_MAX + 8];

	*x = (struct rig){ .e = { .ops = ops, .io = io }, .len = len };
	for (uint32_t i = 0; i < NFILE; i++) {
		struct table_tensor tensor =
			ROW(.component = "", .name = x->name[i], .dtype = CKPT_U8, .ndim = 1,
			    .shape = &len, .layout = TABLE_NONE, .rank = TABLE_NONE);
		struct table_place place = { .name = x->name[i], .bytes = HEAD + len };
		struct table_piece p = { .tensor = i, .place = i, .off = HEAD };
		uint64_t start = 0;

		snprintf(x->name[i], sizeof x->name[i], "file-%u", i);
		assert_ok_err(table_add_tensor(t, &tensor, NULL, &err), &err);
		assert_ok_err(table_add_place(t, &place, NULL, &err), &err);
		assert_ok(indexset_box(1, &start, &len, &t->arena, &p.set));
		assert_ok_err(table_add_piece(t, &p, &err), &err);
		x->file[i] = (struct sheet_file){ .name = x->name[i], .bytes = HEAD + len };
		x->piece[i] = x->first[i] = i;
		x->want[i] = calloc(1, len);
		assert_non_null(x->want[i]);
	}
	x->first[NFILE] = NFILE;
	assert_ok_err(table_seal(t, &err), &err);
	x->sheet.nfile = NFILE;
	x->sheet.file = x->file;
	snprintf(path, sizeof path, "%s/dst", top);
	o.path = path;
	assert_ok_err(publish_begin(&o, 0, &x->to, &err), &err);
	env.to = x->to;
	env.piece = x->piece;
	env.first = x->first;
	assert_ok_err(sink_plain(&env, &x->sink, &err), &err);
	assert_ok_err(x->sink->open(x->sink, 0, NFILE, NULL, &err), &err);
}

static void rig_end(struct rig *x)
{
	if (x->sink)
		x->sink->close(x->sink);
	publish_end(x->to, false);
	table_free(&x->sheet.table);
	for (uint32_t i = 0; i < NFILE; i++)
		free(x->want[i]);
}

static int take(struct rig *x, uint32_t file, uint64_t at, const uint8_t *p, uint64_t len)
{
	memcpy(x->want[file] + at, p, len);
	return x->sink->take(
		x->sink,
		&(struct sink_bytes){ .piece = file, .off = HEAD + at, .p = p, .len = len }, &err);
}

static void assert_written(struct rig *x)
{
	uint8_t *got = malloc(x->len);

	assert_non_null(got);
	for (uint32_t i = 0; i < NFILE; i++) {
		struct sheet_done done;
		int fd;

		assert_ok_err(x->sink->end(x->sink, i, &done, &err), &err);
		assert_ok_err(x->sink->put(x->sink, i, "head", 4, 0, &err), &err);
		assert_ok_err(x->sink->finish(x->sink, i, HEAD + x->len, &err), &err);
		fd = openat(publish_fd(x->to), x->name[i], O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(pread(fd, got, x->len, HEAD), x->len);
		if (memcmp(got, x->want[i], x->len))
			fail_msg("file %u has other bytes", i);
		assert_int_equal(pread(fd, got, 4, 0), 4);
		assert_memory_equal(got, "head", 4);
		assert_int_equal(lseek(fd, 0, SEEK_END), HEAD + x->len);
		close(fd);
	}
	free(got);
}

static void window_fill(uint64_t *rng)
{
	for (size_t i = 0; i < MEM / 8; i++)
		((uint64_t *)(void *)mem)[i] = draw(rng);
}

TEST(bytes_in_any_order_from_any_address_are_in_their_files)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t k = 0; k < ARRAY_LEN(engines); k++) {
		uint64_t at[NFILE] = { 0 };
		struct rig x;

		rig_begin(&x, &io_ops_posix, engines[k], LEN + 777);
		for (bool more = true; more;) {
			uint64_t from = 0;

			window_fill(&rng);
			more = false;
			/* One after another in memory, of one file or the next one. */
			for (uint32_t i = 0; i < 12; i++) {
				uint32_t f = (uint32_t)draw_below(&rng, NFILE);
				uint64_t len = 1 + draw_below(&rng, i % 4 ? 9000 : MEM / 4);

				len = MIN(len, MEM - from);
				len = MIN(len, x.len - at[f]);
				if (!len)
					continue;
				more = true;
				assert_ok_err(take(&x, f, at[f], mem + from, len), &err);
				at[f] += len;
				from += len;
				if (draw_below(&rng, 2))
					from += draw_below(&rng, 64);
				from = MIN(from, MEM);
			}
			assert_ok_err(x.sink->drain(x.sink, &err), &err);
			for (uint32_t i = 0; i < NFILE; i++)
				more |= at[i] < x.len;
		}
		assert_written(&x);
		rig_end(&x);
	}
}

TEST(what_follows_in_memory_and_by_its_offset_is_not_of_the_same_file)
{
	uint64_t rng = draw_seed(__func__);

	window_fill(&rng);
	for (uint32_t k = 0; k < ARRAY_LEN(engines); k++) {
		uint64_t half = LEN / 2;
		struct rig x;

		rig_begin(&x, &io_ops_posix, engines[k], LEN);
		assert_ok_err(take(&x, 0, 0, mem, half), &err);
		assert_ok_err(take(&x, 1, half, mem + half, half), &err);
		assert_ok_err(take(&x, 2, 0, mem, LEN), &err);
		assert_ok_err(take(&x, 0, half, mem + 1, half), &err);
		assert_ok_err(take(&x, 1, 0, mem + 3, half), &err);
		assert_ok_err(x.sink->drain(x.sink, &err), &err);
		assert_written(&x);
		rig_end(&x);
	}
}

static _Atomic uint32_t nwrite;
static uint32_t bad_write;

/* Whole blocks alone: these are written in other threads. */
static int64_t write_that_fails(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	if (len >= 4096 && off && ++nwrite == bad_write)
		return -ENOSPC;
	return io_ops_posix.pwrite(ctx, fd, buf, len, off);
}

TEST(a_write_that_fails_fails_the_sink_and_nothing_is_under_way)
{
	struct io_ops ops = io_ops_posix;
	uint64_t rng = draw_seed(__func__);

	ops.pwrite = write_that_fails;
	window_fill(&rng);
	for (uint32_t k = 0; k < 2; k++)
		for (bad_write = 1; bad_write < 6; bad_write++) {
			struct rig x;
			int rc;

			nwrite = 0;
			rig_begin(&x, &ops, engines[k], LEN);
			rc = take(&x, 0, 0, mem, LEN);
			rc = rc ? rc : take(&x, 1, 0, mem + 5, LEN); /* through buffers */
			if (!rc)
				rc = x.sink->drain(x.sink, &err);
			assert_int_equal(rc, -ENOSPC);
			assert_non_null(strstr(err.msg, "cannot be written"));
			/* And so do all calls that follow. */
			assert_int_equal(x.sink->drain(x.sink, &err), -ENOSPC);
			assert_int_equal(x.sink->end(x.sink, 0, &(struct sheet_done){ 0 }, &err),
					 -ENOSPC);
			rig_end(&x);
		}
}

static int64_t write_that_is_slow(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	if (len >= 4096 && off)
		usleep(20000);
	return io_ops_posix.pwrite(ctx, fd, buf, len, off);
}

TEST(after_a_drain_memory_is_the_callers_again)
{
	struct io_ops ops = io_ops_posix;
	uint64_t rng = draw_seed(__func__);
	struct rig x;

	ops.pwrite = write_that_is_slow;
	rig_begin(&x, &ops, IO_THREADS, LEN);
	for (uint32_t i = 0; i < NFILE; i++) {
		window_fill(&rng);
		assert_ok_err(take(&x, i, 0, mem + i, LEN), &err);
		assert_ok_err(x.sink->drain(x.sink, &err), &err);
	}
	memset(mem, 0, MEM);
	assert_written(&x);
	rig_end(&x);
}

static int made(void **state)
{
	scratch_make(top);
	mem = aligned_alloc(4096, MEM);
	return mem ? 0 : -1;
}

static int removed(void **state)
{
	free(mem);
	return scratch_remove(top);
}

UNIT(.setup = made, .teardown = removed);
