/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_walk.c - what rides on the one walk over a state sees every byte that the file holds,
 * once and in order, whether it is written, or written twice, or not at all; and small tensors
 * reach the disk in few large writes.
 */
#include "tests/unit/test_move_disk.h"
#include "daemon/part_file.h"
#include "tests/lib/io_faults.h"
#include <stdatomic.h>

static struct ckpt_err err;

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
		    s->len > WALK_SPAN_BYTES || s->off >> CHUNK_LOG2 != (end - 1) >> CHUNK_LOG2 ||
		    s->t != w->t || s->rank != w->rank ||
		    memcmp(s->p, w->raw + s->off, s->len) != 0;
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
		      const struct walk_pass *tap, uint32_t ntap, struct native_part *ret)
{
	struct native_info info = disk_info;
	int fd = openat(d->fd, "x.part", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), e;

	assert_true(fd >= 0);
	info.world = j->world;
	e = part_file_write(
		&(struct part_file_opts){
			.ops = how->ops, .engine = how->engine, .pass = tap, .npass = ntap },
		fd, j->raw[rank], &j->part[rank], &info, rank, ret, &err);
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
			uint64_t n, end, bytes = 0, whole = 0;

			w[1] = w[0];
			assert_ok_err(write_with(&D, &j, r, &how, tap, 2, &part), &err);
			assert_int_equal(
				chunk_map_make(&j.part[r], NATIVE_DATA_OFF, &chunk, &n, &end, &err),
				0);
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
		err = (struct ckpt_err){ 0 };
		int e = write_with(&D, &j, 0, &how, &tap, 1, &part);

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

/* --- a walk without a writer, and writers behind one walk --- */

/* Told of each chunk; ends the call at the stop-th. */
struct told {
	uint64_t n, stop, next;
	bool wrong;
};

static int told_chunk(void *arg, uint64_t i, const uint8_t *p)
{
	struct told *x = arg;

	(void)p;
	x->wrong |= i < x->next;
	x->next = i + 1;
	return ++x->n == x->stop ? -EAGAIN : 0;
}

static void walked_open(struct job *j, uint32_t rank, const struct walk_pass *pass,
			uint32_t nhelper, struct walk **ret)
{
	const struct walk_opts o = {
		.pass = pass, .npass = pass != NULL, .nhelper = nhelper, .data_off = NATIVE_DATA_OFF
	};

	assert_ok_err(walk_open(&o, &j->part[rank], rank, ret, &err), &err);
}

/* What walk_raw of one thread says of a part: its chunks' sums, then its pieces' fingerprints. */
static struct hash128 walked_sum(struct job *j, uint32_t rank, uint32_t nhelper, uint64_t stop)
{
	const struct table *t = &j->part[rank];
	struct told told = { .stop = stop };
	struct hash128_state s;
	const struct chunk *c;
	struct walk *w;
	uint64_t n;

	walked_open(j, rank, NULL, nhelper, &w);
	if (stop) {
		assert_int_equal(walk_raw(w, j->raw[rank], told_chunk, &told, &err), -EAGAIN);
		assert_false(walk_failed(w)); /* helpers may have been at its end */
		told = (struct told){ 0 };
	}
	assert_int_equal(walk_raw(w, j->raw[rank], told_chunk, &told, &err), 0);
	assert_true(walk_ended(w) && !told.wrong);
	hash128_begin(&s);
	c = walk_chunks(w, &n, NULL);
	for (uint64_t i = 0; i < n; i++) {
		hash128_add(&s, &c[i].raw_hash, sizeof c[i].raw_hash);
		told.n -= c[i].raw_len > 0;
	}
	assert_int_equal(told.n, 0);
	for (uint32_t i = 0; i < t->npiece; i++)
		hash128_add(&s, &t->piece[i].fp, sizeof t->piece[i].fp);
	walk_close(w);
	return hash128_end(&s);
}

TEST(a_walk_that_is_interrupted_goes_on_where_it_was_alone_or_with_helpers)
{
	uint64_t seed = draw_seed(__func__);

	for (uint64_t scale = 1; scale < 6; scale += 2) {
		struct job j;

		job_make(&j, "fsdp=2", seed, scale);
		job_stage(&j, 4, 0);
		for (uint32_t r = 0; r < j.world; r++) {
			struct hash128 is, want = walked_sum(&j, r, 0, 0);

			for (uint32_t nhelper = 0; nhelper < 4; nhelper++)
				for (uint64_t stop = 0; stop < 4; stop++) {
					is = walked_sum(&j, r, nhelper, stop);
					assert_memory_equal(&is, &want, sizeof is);
				}
		}
		job_free(&j);
	}
}

static uint64_t file_sum(int fd)
{
	uint64_t n = 0, sum;
	struct hash128 h;
	uint8_t *b;

	assert_ok(io_ops_posix.size(NULL, fd, &n));
	b = malloc(n + 1);
	assert_non_null(b);
	assert_ok(io_pread_all(&io_ops_posix, fd, b, n, 0));
	h = hash128(b, n);
	memcpy(&sum, &h, sizeof sum);
	free(b);
	return sum;
}

/* The n-th write fails: what was seen is not seen again, and the next file is the same. */
TEST(a_part_that_is_written_anew_is_the_same_and_is_walked_once)
{
	uint64_t seed = draw_seed(__func__), want = 0, fails;
	struct job j;

	job_make(&j, "fsdp=2", seed, 5);
	job_stage(&j, 4, 0);
	for (fails = 0; fails < 12; fails++) {
		struct watch w = { .t = &j.part[0], .raw = j.raw[0] };
		struct walk_pass pass = { watch_span, &w };
		struct native_info info = disk_info;
		struct native_part part;
		struct io_faults faults;
		struct walk *walk;
		int fd, e;

		info.world = j.world;
		walked_open(&j, 0, &pass, 0, &walk);
		io_faults_init(&faults, &io_ops_posix);
		if (fails)
			io_faults_fail(&faults, IO_ON_WRITE, fails, -EIO, false);
		for (int tries = 0; tries < 2; tries++) {
			fd = openat(D.fd, "again.part", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
				    0600);
			assert_true(fd >= 0);
			e = part_file_write(&(struct part_file_opts){ .ops = &faults.ops,
								      .engine = IO_INLINE,
								      .walk = walk },
					    fd, j.raw[0], &j.part[0], &info, 0, &part, &err);
			if (e == 0)
				break;
			assert_int_equal(e, -EIO);
			assert_false(walk_failed(walk));
			close(fd);
		}
		assert_int_equal(e, 0);
		assert_true(walk_ended(walk));
		assert_false(w.wrong);
		want = want ? want : file_sum(fd);
		assert_int_equal(file_sum(fd), want);
		close(fd);
		walk_close(walk);
		/* And from sums that were made before: no pass sees it. */
		if (fails == 0) {
			struct watch unseen = { .t = &j.part[0], .raw = j.raw[0] };
			struct walk_opts o = { .resumed = true, .data_off = NATIVE_DATA_OFF };
			cleanup_free struct chunk *sum = NULL;
			const struct chunk *made;

			walked_open(&j, 0, NULL, 0, &walk);
			assert_int_equal(walk_raw(walk, j.raw[0], NULL, NULL, &err), 0);
			made = walk_chunks(walk, &o.nsum, NULL);
			sum = calloc(o.nsum, sizeof *sum);
			assert_non_null(sum);
			memcpy(sum, made, o.nsum * sizeof *sum);
			walk_close(walk);
			pass.ctx = &unseen;
			o.sum = sum;
			o.pass = &pass;
			o.npass = 1;
			assert_ok_err(walk_open(&o, &j.part[0], 0, &walk, &err), &err);
			fd = openat(D.fd, "again.part", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
				    0600);
			assert_ok_err(
				part_file_write(&(struct part_file_opts){ .ops = &io_ops_posix,
									  .engine = IO_INLINE,
									  .walk = walk },
						fd, j.raw[0], &j.part[0], &info, 0, &part, &err),
				&err);
			assert_int_equal(unseen.spans, 0);
			assert_int_equal(file_sum(fd), want);
			close(fd);
			walk_close(walk);
		}
	}
	job_free(&j);
}

TEST(a_walk_whose_pass_has_failed_is_over)
{
	uint64_t seed = draw_seed(__func__);
	struct watch w = { 0 };
	struct walk_pass pass = { watch_span, &w };
	struct told told = { 0 };
	struct walk *walk;
	struct job j;

	job_make(&j, "fsdp=2", seed, 3);
	job_stage(&j, 4, 0);
	w = (struct watch){ .t = &j.part[0], .raw = j.raw[0], .stop = 20 };
	walked_open(&j, 0, &pass, 0, &walk);
	for (int times = 0; times < 3; times++) {
		err = (struct ckpt_err){ 0 };
		assert_int_equal(walk_raw(walk, j.raw[0], told_chunk, &told, &err), -EDOM);
		assert_non_null(strstr(err.msg, "on the way failed"));
		assert_true(walk_failed(walk) && !walk_ended(walk));
	}
	assert_int_equal(w.spans, 20);
	assert_int_equal(told.n, w.ends); /* the chunk in which it failed is nobody's */
	walk_close(walk);
	job_free(&j);
}

TEST(chunks_are_walked_in_their_order_alone)
{
	uint64_t seed = draw_seed(__func__), n, first = 0;
	const struct chunk *c;
	struct walk *walk;
	struct job j;

	job_make(&j, "fsdp=2", seed, 3);
	job_stage(&j, 4, 0);
	walked_open(&j, 0, NULL, 0, &walk);
	c = walk_chunks(walk, &n, NULL);
	while (!c[first].raw_len)
		first++;
	assert_true(n > first + 1);
	assert_int_equal(walk_chunk(walk, n - 1, j.raw[0], &err), -EINVAL);
	assert_ok_err(walk_chunk(walk, first, j.raw[0] + first * MIB, &err), &err);
	assert_ok_err(walk_chunk(walk, first, j.raw[0] + first * MIB, &err), &err); /* it was */
	assert_false(walk_ended(walk));
	walk_close(walk);
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

	assert_int_equal(chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &n, &end, NULL), 0);
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
		assert_ok_err(part_file_write(&(struct part_file_opts){ .ops = &c.ops,
									.engine = IO_INLINE },
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
