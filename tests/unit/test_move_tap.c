/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_tap.c - what rides on the one pass over a state sees every byte that the file holds, once
 * and in order; and small tensors reach the disk in few large writes.
 */
#include "tests/unit/test_move_disk.h"
#include "ckpt/move/walk.h"
#include <stdatomic.h>

struct watch {
	const struct table *t;
	const uint8_t *raw;
	uint32_t rank;
	uint64_t next, bytes, spans, ends;
	uint64_t stop; /* the span that fails; 0: none */
	bool wrong;
};

static int watch_span(void *ctx, const struct walk_span *s)
{
	struct watch *w = ctx;
	uint64_t end = s->off + s->len;

	w->wrong |= s->off < w->next || s->off % WALK_SPAN_BYTES || !s->len ||
		    s->len > WALK_SPAN_BYTES ||
		    s->off >> NATIVE_CHUNK_LOG2 != (end - 1) >> NATIVE_CHUNK_LOG2 || s->t != w->t ||
		    s->rank != w->rank || memcmp(s->p, w->raw + s->off, s->len) != 0;
	/* what was left out since the last span holds no piece */
	for (uint32_t i = 0; s->off > w->next && i < w->t->npiece; i++)
		w->wrong |= w->t->piece[i].off + w->t->piece[i].len > w->next &&
			    w->t->piece[i].off < s->off && w->t->piece[i].len;
	w->next = end;
	w->bytes += s->len;
	w->spans++;
	w->ends += s->last;
	return w->spans == w->stop ? -EDOM : 0;
}

static int write_with(struct disk *d, struct job *j, uint32_t rank, const struct disk_how *how,
		      const struct walk_pass *tap, uint32_t ntap, struct native_part *ret,
		      struct ckpt_err *err)
{
	struct native_info info = disk_info;
	int fd = openat(d->fd, "x.part", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), e;

	assert_true(fd >= 0);
	info.world = j->world;
	e = move_write_part(
		&(struct move_write){
			.ops = how->ops, .engine = how->engine, .pass = tap, .npass = ntap },
		fd, j->raw[rank], &j->part[rank], &info, rank, ret, err);
	close(fd);
	return e;
}

TEST(every_tap_sees_every_byte_of_every_chunk_once_and_in_order)
{
	uint64_t seed = draw_seed(__func__);

	for (uint64_t scale = 1; scale < 6; scale += 2) {
		struct job j;

		job_make(&j, "fsdp=3", seed, scale);
		job_stage(&j, 4, 0);
		for (uint32_t r = 0; r < j.world; r++) {
			struct watch w[2] = { { .t = &j.part[r], .raw = j.raw[r], .rank = r } };
			const struct disk_how how = { .ops = &io_ops_posix,
						      .engine = r ? IO_THREADS : IO_INLINE };
			struct walk_pass tap[2] = { { watch_span, &w[0] }, { watch_span, &w[1] } };
			struct native_part part;
			struct chunk *chunk;
			struct ckpt_err err;
			uint64_t n, end, bytes = 0, whole = 0;

			w[1] = w[0];
			assert_ok_err(write_with(&D, &j, r, &how, tap, 2, &part, &err), &err);
			assert_int_equal(native_part_chunks(&j.part[r], &chunk, &n, &end, &err), 0);
			for (uint64_t i = 0; i < n; i++) {
				bytes += chunk[i].raw_len;
				whole += chunk[i].raw_len > 0;
			}
			free(chunk);
			for (int i = 0; i < 2; i++) {
				assert_false(w[i].wrong);
				assert_int_equal(w[i].bytes, bytes);
				assert_int_equal(w[i].ends, whole);
				assert_int_equal(w[i].spans, w[0].spans);
			}
		}
		job_free(&j);
	}
}

TEST(a_tap_that_fails_ends_the_part_with_its_error)
{
	uint64_t seed = draw_seed(__func__), n;
	struct job j;

	job_make(&j, "fsdp=2", seed, 3);
	job_stage(&j, 4, 0);
	for (n = 1;; n += EVERY) { /* with ThreadSanitizer every sixth span */
		struct watch w = { .t = &j.part[0], .raw = j.raw[0], .stop = n };
		const struct disk_how how = { .ops = &io_ops_posix, .engine = IO_THREADS };
		struct walk_pass tap = { watch_span, &w };
		struct native_part part;
		struct ckpt_err err = { 0 };
		int e = write_with(&D, &j, 0, &how, &tap, 1, &part, &err);

		if (w.spans < n) {
			assert_int_equal(e, 0);
			break;
		}
		assert_int_equal(e, -EDOM);
		assert_non_null(strstr(err.msg, "on the way"));
		assert_int_equal(w.spans, n); /* and is asked no more */
	}
	assert_true(n > 3);
	job_free(&j);
}

/* --- how many writes --- */

struct counted {
	struct io_ops ops;
	atomic_uint_fast64_t writes, small;
};

static int64_t counted_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct counted *c = ctx;

	c->writes++;
	c->small += len < MIB;
	return io_ops_posix.pwrite(NULL, fd, buf, len, off);
}

/* Tensors of these sizes in turn on one rank. */
static void many_make(const uint64_t *bytes, uint32_t nbytes, uint32_t n, struct table *ret)
{
	struct table_place mem = { .name = "memory", .bytes = (uint64_t)1 << 40 };
	struct layout replicated = { 0 };
	struct ckpt_errlist list = { .code = -EINVAL };
	struct table decl = { 0 };
	struct arena a = { 0 };
	struct mesh mesh;
	uint64_t at = 0;

	assert_int_equal(mesh_parse("fsdp=1", &a, &mesh, NULL), 0);
	assert_int_equal(table_add_mesh(&decl, &mesh, NULL, NULL), 0);
	assert_int_equal(table_add_layout(&decl, &replicated, NULL, NULL), 0);
	assert_int_equal(table_add_place(&decl, &mem, NULL, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t shape = bytes[i % nbytes] / 4, zero = 0;
		char name[32];
		struct table_tensor x =
			ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_F32,
			    .cls = CKPT_STABLE, .rank = TABLE_NONE, .ndim = 1, .shape = &shape);
		struct table_piece p = { .off = at };

		snprintf(name, sizeof name, "t%u", i);
		assert_int_equal(table_add_tensor(&decl, &x, &p.tensor, NULL), 0);
		assert_int_equal(indexset_box(1, &zero, &shape, &a, &p.set), 0);
		assert_int_equal(table_add_piece(&decl, &p, NULL), 0);
		at += shape * 4;
	}
	assert_int_equal(table_seal(&decl, NULL), 0);
	assert_int_equal(native_part_table(&decl, 0, ret, &list, NULL), 0);
	ckpt_errlist_free(&list);
	table_free(&decl);
	arena_free(&a);
}

/* A buffer that is used again still holds what was in it. */
static void padding_check(int fd, const struct table *t)
{
	struct chunk *chunk;
	uint64_t n, end;

	assert_int_equal(native_part_chunks(t, &chunk, &n, &end, NULL), 0);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t pad = align_up(chunk[i].raw_len, 4096) - chunk[i].raw_len;
		uint8_t b[4096];

		assert_ok(io_pread_all(&io_ops_posix, fd, b, pad, chunk[i].off + chunk[i].raw_len));
		for (uint64_t k = 0; k < pad; k++)
			assert_int_equal(b[k], 0);
	}
	free(chunk);
}

TEST(tensors_of_any_size_are_written_in_blocks)
{
	static const uint64_t sizes[][4] = { { 4, 100, 4096, 68 },
					     { 65536, 65536, 65540, 61440 },
					     { 300 << 10, 280004, 700 << 10, 262144 },
					     { (1 << 20) + 4, 300 << 10, 3 << 20, 1048576 },
					     { 64, 9 << 20, 64, 300 << 10 } };
	struct native_info info = disk_info;

	/* One thread: ThreadSanitizer looks at the smallest alone, the others at all. */
	for (size_t i = 0; i < ARRAY_LEN(sizes); i += EVERY) {
		struct counted c = { .ops = io_ops_posix };
		struct native_part part;
		struct ckpt_err err;
		struct table t;
		uint64_t raw_bytes, own = 0;
		uint8_t *raw;
		int fd = openat(D.fd, "many.part", O_RDWR | O_CREAT | O_TRUNC, 0600);

		c.ops.ctx = &c;
		c.ops.pwrite = counted_pwrite;
		many_make(sizes[i], 4, 60, &t);
		raw_bytes = align_up(t.place[0].bytes, 4096);
		raw = aligned_alloc(4096, raw_bytes);
		assert_non_null(raw);
		memset(raw, 7, raw_bytes);
		info.world = 1;
		assert_ok_err(
			move_write_part(&(struct move_write){ .ops = &c.ops, .engine = IO_INLINE },
					fd, raw, &t, &info, 0, &part, &err),
			&err);
		/* Header, trailer, blocks; and each tensor that has blocks of its own ends with one
		 * that is not whole, and with what is left of a chunk. */
		for (uint32_t k = 0; k < t.npiece; k++) {
			if (t.piece[k].len < NATIVE_BIG)
				continue;
			assert_int_equal(t.piece[k].off % MIB, 0);
			own += 3;
		}
		assert_true(c.writes <= 4 + own + part.file_bytes / MOVE_BLOCK);
		padding_check(fd, &t);
		close(fd);
		free(raw);
		table_free(&t);
	}
}

UNIT(.setup = disk_setup, .teardown = disk_teardown);
