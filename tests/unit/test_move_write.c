/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_write.c - part files: the sums are those of the bytes, what no chunk stores is zero
 * whatever lay in memory, every engine writes the same file, and no failing write is taken for a
 * good one.
 */
#include "tests/unit/test_move_disk.h"
#include "ckpt/move/place_pieces.h"

/* --- fingerprints --- */

/* Element by element, where each one is in the tensor. */
static uint64_t naive_fingerprint(const struct table_tensor *x, const struct table_piece *p,
				  const uint8_t *bytes)
{
	uint64_t *list[CKPT_DIMS_MAX], at[CKPT_DIMS_MAX] = { 0 }, sum = 0;

	for (uint32_t d = 0; d < x->ndim; d++)
		list[d] = sample_indices(&p->set.dim[d]);
	for (uint64_t i = 0; i < p->set.numel; i++) {
		uint64_t g = 0;

		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + list[d][at[d]];
		sum += fingerprint(bytes + i * x->elem_bytes, 1, x->elem_bytes, g);
		for (uint32_t d = x->ndim; d-- > 0;) {
			if (++at[d] < p->set.dim[d].total)
				break;
			at[d] = 0;
		}
	}
	for (uint32_t d = 0; d < x->ndim; d++)
		free(list[d]);
	return sum;
}

TEST(fingerprints_of_pieces_and_of_their_cuts_add_up)
{
	static const char *const mesh[] = { "fsdp=3", "tp=2,fsdp=2", "pp=2,tp=3", "fsdp=5" };
	uint64_t rng = draw_seed(__func__);

	/* One thread: ThreadSanitizer looks at one mesh, the others at all. */
	for (size_t i = 0; i < ARRAY_LEN(mesh); i += EVERY) {
		struct job j;

		job_make(&j, mesh[i], rng, 1);
		for (uint32_t r = 0; r < j.world; r++) {
			const struct table *t = &j.rank[r].decl;

			sample_fill(&j.rank[r], 1);
			for (uint32_t k = 0; k < t->npiece; k++) {
				const struct table_piece *p = &t->piece[k];
				const uint8_t *bytes = (const uint8_t *)j.rank[r].mem + p->off;
				uint64_t want = naive_fingerprint(&t->tensor[p->tensor], p, bytes),
					 sum = 0;

				assert_int_equal(move_fingerprint(t, p, bytes), want);
				for (uint64_t at = 0, n; at < p->set.numel; at += n) {
					n = MIN(1 + draw(&rng) % (p->set.numel / 3 + 1),
						p->set.numel - at);
					sum += piece_fingerprint(
						t, p, at, at + n,
						bytes + at * t->tensor[p->tensor].elem_bytes);
				}
				assert_int_equal(sum, want);
				assert_int_equal(piece_fingerprint(t, p, 1, 1, bytes), 0);
			}
		}
		job_free(&j);
	}
}

/* --- the file --- */

struct image {
	uint8_t *bytes;
	uint64_t len;
};

static struct image image_read(int fd)
{
	struct image m;
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	m.len = (uint64_t)st.st_size;
	m.bytes = malloc(m.len);
	assert_non_null(m.bytes);
	assert_int_equal(io_pread_all(&io_ops_posix, fd, m.bytes, m.len, 0), 0);
	return m;
}

static int part_file(struct disk *d, struct job *j, uint32_t rank, const struct disk_how *how,
		     move_tick_fn *tick, void *arg, struct image *ret, struct native_part *ret_part,
		     struct ckpt_err *err)
{
	struct native_info info = disk_info;
	int fd = openat(d->fd, "x.part",
			O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (how->direct ? O_DIRECT : 0),
			0600),
	    e;

	assert_true(fd >= 0);
	info.world = j->world;
	e = part_file_write(
		&(struct part_file_opts){
			.ops = how->ops, .engine = how->engine, .tick = tick, .arg = arg },
		fd, j->raw[rank], &j->part[rank], &info, rank, ret_part, err);
	close(fd);
	fd = openat(d->fd, "x.part", O_RDONLY | O_CLOEXEC);
	if (ret)
		*ret = image_read(fd);
	close(fd);
	return e;
}

static bool is_zero(const uint8_t *p, uint64_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static struct ckpt_err err; /* of the call that failed last */

TEST(the_file_holds_the_pieces_their_sums_and_otherwise_zeros)
{
	const struct disk_how how = { .ops = &io_ops_posix, .engine = IO_AUTO, .direct = true };
	uint64_t seed = draw_seed(__func__), nchunk, data_end, at = 4096;
	struct native_part part;
	struct chunk *chunk;
	struct image m;
	struct job j;

	job_make(&j, "fsdp=2,tp=2", seed, 3);
	job_stage(&j, 4, 0xcc); /* gaps between pieces are not zero in memory */
	for (uint32_t r = 0; r < j.world; r++, at = 4096) {
		const struct table *t = &j.part[r];

		assert_ok_err(part_file(&D, &j, r, &how, NULL, NULL, &m, &part, &err), &err);
		assert_int_equal(part.file_bytes, m.len);
		assert_int_equal(part.raw_bytes, t->place[0].bytes);
		assert_int_equal(part.rank, r);
		assert_ptr_equal(part.table, t);
		assert_int_equal(
			chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &nchunk, &data_end, &err), 0);
		for (uint64_t i = 0; i < nchunk; i++) {
			if (!chunk[i].raw_len)
				continue;
			assert_true(is_zero(m.bytes + at, chunk[i].off - at));
			at = chunk[i].off;
			assert_true(!memcmp(m.bytes + at, j.raw[r] + (i << 20), chunk[i].raw_len));
			at += chunk[i].stored_len;
		}
		assert_true(is_zero(m.bytes + at, data_end - at));
		for (uint32_t i = 0; i < t->npiece; i++)
			assert_int_equal(t->piece[i].fp,
					 naive_fingerprint(&t->tensor[t->piece[i].tensor],
							   &t->piece[i],
							   j.raw[r] + t->piece[i].off));
		free(chunk);
		free(m.bytes);
	}
	job_free(&j);
}

TEST(every_engine_writes_the_same_file)
{
	static const enum io_engine engine[] = { IO_INLINE, IO_THREADS, IO_URING, IO_AUTO };
	uint64_t seed = draw_seed(__func__);
	struct image first = { 0 }, m;
	struct native_part part;
	struct job j;

	job_make(&j, "fsdp=2", seed, 4);
	job_stage(&j, 4, 0x11);
	for (uint32_t i = 0; i < 2 * ARRAY_LEN(engine); i++) {
		const struct disk_how how =
			ROW(.ops = &io_ops_posix, .engine = engine[i / 2], .direct = i % 2);

		assert_ok_err(part_file(&D, &j, 1, &how, NULL, NULL, &m, &part, &err), &err);
		if (!i) {
			first = m;
			continue;
		}
		assert_int_equal(m.len, first.len);
		assert_true(!memcmp(m.bytes, first.bytes, m.len));
		free(m.bytes);
	}
	free(first.bytes);
	job_free(&j);
}

/* --- a disk that fails --- */

struct bad_disk {
	struct io_ops ops;
	uint64_t n, nth;
	bool cut; /* move half of the bytes instead of failing */
	bool hit;
};

static int64_t bad_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct bad_disk *b = ctx;

	if (++b->n != b->nth)
		return io_ops_posix.pwrite(NULL, fd, buf, len, off);
	b->hit = true;
	return b->cut ? io_ops_posix.pwrite(NULL, fd, buf, align_up(len / 2, 512), off) : -ENOSPC;
}

TEST(a_write_that_fails_is_reported_and_a_short_one_is_continued)
{
	uint64_t seed = draw_seed(__func__);
	struct bad_disk bad = { .ops = io_ops_posix };
	const struct disk_how good = { .ops = &io_ops_posix, .engine = IO_INLINE },
			      how = { .ops = &bad.ops, .engine = IO_INLINE };
	struct image want, m;
	struct native_part part;
	struct job j;

	bad.ops.ctx = &bad;
	bad.ops.pwrite = bad_pwrite;
	job_make(&j, "fsdp=3", seed, 4);
	job_stage(&j, 4, 0x11);
	assert_int_equal(part_file(&D, &j, 0, &good, NULL, NULL, &want, &part, &err), 0);
	for (uint64_t n = 1;; n += EVERY) { /* with ThreadSanitizer every sixth call */
		int e;

		bad.n = 0;
		bad.nth = n;
		bad.hit = bad.cut = false;
		e = part_file(&D, &j, 0, &how, NULL, NULL, NULL, &part, &err);
		if (!bad.hit) {
			assert_int_equal(e, 0);
			assert_true(n > 3); /* header, data, trailer */
			break;
		}
		assert_int_equal(e, -ENOSPC);
		assert_non_null(strstr(err.msg, "cannot write"));
		bad.n = 0;
		bad.cut = true;
		assert_int_equal(part_file(&D, &j, 0, &how, NULL, NULL, &m, &part, &err), 0);
		assert_int_equal(m.len, want.len);
		assert_true(!memcmp(m.bytes, want.bytes, m.len));
		free(m.bytes);
	}
	free(want.bytes);
	job_free(&j);
}

/* --- asking on the way --- */

struct ticks {
	uint64_t n, bytes, stop;
};

static int on_tick(void *arg, uint64_t done)
{
	struct ticks *x = arg;

	x->bytes += done;
	return ++x->n == x->stop;
}

TEST(the_owner_of_a_write_a_read_and_a_verify_is_told_all_bytes_and_can_end_it)
{
	const struct disk_how how = { .ops = &io_ops_posix, .engine = IO_AUTO };
	uint64_t seed = draw_seed(__func__), chunks = 0, nchunk, data_end, bytes;
	struct ticks t = { 0 };
	struct native_part part;
	struct checkpoint *c;
	struct move_files f;
	struct chunk *chunk;
	struct job j;
	struct plan p;

	job_make(&j, "fsdp=2", seed, EVERY == 1 ? 9 : 4);
	job_stage(&j, 4, 0);
	assert_int_equal(
		chunk_map_make(&j.part[0], NATIVE_DATA_OFF, &chunk, &nchunk, &data_end, &err), 0);
	free(chunk);
	assert_int_equal(part_file(&D, &j, 0, &how, on_tick, &t, NULL, &part, &err), 0);
	assert_int_equal(t.bytes, data_end - 4096);
	assert_true(t.n >= (EVERY == 1 ? 2 : 1)); /* a small part may be in flight as a whole */
	t = (struct ticks){ .stop = 1 };
	assert_int_equal(part_file(&D, &j, 0, &how, on_tick, &t, NULL, &part, &err), -ECANCELED);
	assert_true(EVERY != 1 || t.bytes < data_end - 4096);
	disk_clear(&D);
	job_write(&j, &D, &how);
	c = disk_open(&D);

	assert_int_equal(plan_make(&c->table, &j.all, NULL, &p, NULL, &err), 0);
	t = (struct ticks){ 0 };
	assert_int_equal(job_restore(&j, &D, c, &how, on_tick, &t, &err), 0);
	assert_int_equal(t.bytes, p.bytes);
	assert_true(t.n >= 3);
	t = (struct ticks){ .stop = 2 };
	assert_int_equal(job_restore(&j, &D, c, &how, on_tick, &t, &err), -ECANCELED);
	assert_int_equal(t.n, 2);
	plan_free(&p);

	for (uint32_t i = 0; i < c->nfile; i++)
		chunks += data_to(&c->file[i]) - data_from(&c->file[i]);
	assert_int_equal(move_open(&io_ops_posix, D.fd, c, false, IO_AUTO, &f, &err), 0);
	t = (struct ticks){ 0 };
	assert_int_equal(move_verify(&f, on_tick, &t, NULL, NULL, &bytes, &err), 0);
	assert_int_equal(t.bytes, chunks);
	t = (struct ticks){ .stop = 1 };
	assert_int_equal(move_verify(&f, on_tick, &t, NULL, NULL, &bytes, &err), -ECANCELED);
	assert_int_equal(t.n, 1);
	move_close(&f);
	checkpoint_free(c);
	job_free(&j);
}

/* A disk that has room for a part must not be refused because of room that nobody needs. */
TEST(the_room_that_is_asked_for_is_enough_and_hardly_more)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=3", "tp=2,fsdp=2" };
	const struct disk_how how = { .ops = &io_ops_posix, .engine = IO_AUTO, .direct = true };
	uint64_t seed = draw_seed(__func__);
	struct native_part part;

	for (size_t i = 0; i < ARRAY_LEN(mesh); i++) {
		struct job j;

		job_make(&j, mesh[i], seed, 2);
		job_stage(&j, 4, 0);
		for (uint32_t r = 0; r < j.world; r++) {
			uint64_t most = native_part_bytes_max(&j.part[r], 0);

			assert_ok_err(part_file(&D, &j, r, &how, NULL, NULL, NULL, &part, &err),
				      &err);
			assert_true(part.file_bytes <= most);
			assert_true(most - part.file_bytes <= 64 << 10);
		}
		job_free(&j);
	}
}

UNIT(.setup = disk_setup, .teardown = disk_teardown);
