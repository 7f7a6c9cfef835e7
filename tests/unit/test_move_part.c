/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_part.c - parts written from bytes that come in any cuts are those that move_write_part
 * makes of the same state; several at a time in few buffers; left and continued anywhere; and no
 * error goes unheard.
 */
#include "tests/unit/test_move_disk.h"
#include "ckpt/move/part_writer.h"
#include "tests/lib/io_faults.c"

#define SEED UINT64_C(0x91)

static const struct disk_how plain = { &io_ops_posix, IO_INLINE, false };

static uint8_t *file_bytes(struct disk *d, const char *name, uint64_t *ret_len)
{
	int fd = openat(d->fd, name, O_RDONLY);
	struct stat st;
	uint8_t *p;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	*ret_len = (uint64_t)st.st_size;
	p = malloc(*ret_len + 1);
	assert_int_equal(io_pread_all(&io_ops_posix, fd, p, *ret_len, 0), 0);
	close(fd);
	return p;
}

/* The same part once more, into `name`. */
struct again {
	struct disk *d;
	const struct io_ops *ops;
	enum io_engine engine;
	bool direct;
	uint64_t seed;
};

static int again_open(const struct again *a, const char *name, int flags)
{
	int fd = openat(a->d->fd, name, O_RDWR | O_CLOEXEC | flags | (a->direct ? O_DIRECT : 0),
			0600);

	assert_true(fd >= 0);
	return fd;
}

static int by_off(const void *va, const void *vb)
{
	const struct table_piece *const *a = va, *const *b = vb;

	return ((*a)->off > (*b)->off) - ((*a)->off < (*b)->off);
}

/* Raw bytes of the pieces in random cuts; many lie in memory as on the pages of the raw space. */
struct feed {
	const struct table_piece **piece;
	const struct table *t;
	const uint8_t *raw;
	uint32_t at;
	uint64_t in;
};

static void feed_make(struct feed *f, const struct table *t, const uint8_t *raw)
{
	*f = (struct feed){ .t = t, .raw = raw, .piece = calloc((size_t)t->npiece + 1, 8) };
	for (uint32_t i = 0; i < t->npiece; i++)
		f->piece[i] = &t->piece[i];
	qsort(f->piece, t->npiece, sizeof *f->piece, by_off);
}

/* One cut; false: there is none left. */
static bool feed_next(struct feed *f, uint64_t *seed, uint64_t *ret_off, uint64_t *ret_len)
{
	const struct table_piece *p;
	uint64_t elem, n;

	if (f->at == f->t->npiece)
		return false;
	p = f->piece[f->at];
	elem = f->t->tensor[p->tensor].elem_bytes;
	n = 1 + draw(seed) % (draw(seed) % 4 ? 3000000 : 5000);
	n = MIN(p->len - f->in, align_up(n, elem));
	*ret_off = p->off + f->in;
	*ret_len = n;
	f->in += n;
	if (f->in == p->len) {
		f->at++;
		f->in = 0;
	}
	return true;
}

static void write_again(const struct again *a, struct job *j, uint32_t rank, const char *name,
			struct native_part *ret)
{
	const struct io_ops *ops = a->ops;
	uint64_t seed = a->seed, off, len, fp[64] = { 0 };
	struct table *t = &j->part[rank];
	struct native_info info = disk_info;
	struct part_writer *w;
	struct ckpt_err err;
	struct part_io *io;
	struct feed f;
	uint8_t *mem = aligned_alloc(4096, 4 << 20);
	int fd = again_open(a, name, O_CREAT | O_EXCL);

	info.world = j->world;
	for (uint32_t i = 0; i < t->npiece; i++) {
		assert_true(i < ARRAY_LEN(fp));
		fp[i] = t->piece[i].fp;
		t->piece[i].fp = 0x1234;
	}
	if (part_io_open(&(struct part_io_opts){ .ops = ops, .engine = a->engine, .nbuffer = 2 },
			 &io, &err) < 0 ||
	    part_writer_open(io, fd, t, &info, rank, NULL, &w, &err) < 0)
		fail_msg("%s", err.msg);
	feed_make(&f, t, j->raw[rank]);
	while (feed_next(&f, &seed, &off, &len)) {
		uint64_t at = draw(&seed) % 3 ? off % 4096 : draw(&seed) % 100;

		memcpy(mem + at, j->raw[rank] + off, len);
		assert_int_equal(part_write(w, off, mem + at, len, &err), 0);
		assert_int_equal(part_io_drain(io, &err), 0);
		memset(mem + at, 0xdd, len);
	}
	if (part_writer_finish(w, ret, &err) < 0)
		fail_msg("%s", err.msg);
	part_writer_close(w);
	part_io_close(io);
	for (uint32_t i = 0; i < t->npiece; i++)
		assert_int_equal(t->piece[i].fp, fp[i]);
	free(f.piece);
	free(mem);
	close(fd);
}

static void files_equal(struct disk *d, const char *x, const char *y)
{
	uint64_t nx, ny;
	uint8_t *bx = file_bytes(d, x, &nx), *by = file_bytes(d, y, &ny);

	assert_int_equal(nx, ny);
	assert_memory_equal(bx, by, nx);
	free(bx);
	free(by);
}

static const char *part_name(uint32_t rank)
{
	static char name[40];

	snprintf(name, sizeof name, "w%04u-%08x-%03u.part", rank, 0xbeefu, 0u);
	return name;
}

static void test_parts_in_any_cuts_are_the_same_files(void **state)
{
	static const char *const meshes[] = { "fsdp=3", "fsdp=2,tp=2", "pp=2,fsdp=2" };
	uint64_t seed = draw_seed(__func__);

	(void)state;
	for (size_t m = 0; m < ARRAY_LEN(meshes); m++) {
		struct disk d;
		struct job j;

		disk_make(&d);
		job_make(&j, meshes[m], SEED, 1);
		job_stage(&j, 5, 0);
		job_write(&j, &d, &plain);
		for (uint32_t r = 0; r < j.world; r++)
			for (int how = 0; how < 3; how++) {
				static const enum io_engine engine[] = { IO_INLINE, IO_THREADS,
									 IO_AUTO };
				struct again a = { &d, &io_ops_posix, engine[how], how == 2,
						   seed + r };
				struct native_part part;

				write_again(&a, &j, r, "again", &part);
				files_equal(&d, part_name(r), "again");
				unlinkat(d.fd, "again", 0);
			}
		job_free(&j);
		disk_free(&d);
	}
}

/* All ranks at once, left after every few cuts and continued by writers that know only what was
 * saved. */
static void test_a_part_is_continued_where_it_was_left(void **state)
{
	uint64_t seed = draw_seed(__func__), rounds = 0;
	struct native_info info = disk_info;
	struct ckpt_err err;
	struct disk d;
	struct job j;

	(void)state;
	disk_make(&d);
	job_make(&j, "fsdp=3", SEED, 1);
	job_stage(&j, 5, 0);
	job_write(&j, &d, &plain);
	info.world = j.world;
	for (uint32_t r = 0; r < j.world; r++) {
		struct again a = { &d, &io_ops_posix, IO_THREADS, r % 2, 0 };
		struct part_state s = { 0 };
		struct chunk *sum = NULL;
		struct table *t = &j.part[r];
		int fd = again_open(&a, "again", O_CREAT | O_EXCL);
		struct native_part part;
		bool more = true;
		uint64_t off, len, end;
		struct feed f;

		feed_make(&f, t, j.raw[r]);
		for (rounds = 0; more; rounds++) {
			struct part_writer *w;
			struct part_io *io;

			assert_int_equal(part_io_open(&(struct part_io_opts){ .ops = &io_ops_posix,
									      .engine = IO_THREADS,
									      .nbuffer = 2 },
						      &io, &err),
					 0);
			if (part_writer_open(io, fd, t, &info, r, rounds ? &s : NULL, &w, &err) < 0)
				fail_msg("%s", err.msg);
			for (int i = 0; i < 3 && more; i++) {
				more = feed_next(&f, &seed, &off, &len);
				if (more && part_write(w, off, j.raw[r] + off, len, &err) < 0)
					fail_msg("%s", err.msg);
			}
			if (more) {
				assert_int_equal(part_writer_save(w, &s, &err), 0);
				end = s.sum[s.nchunk].off + align_up(s.fill, 4096);
				free(sum);
				sum = malloc((s.nchunk + 1) * sizeof *sum);
				memcpy(sum, s.sum, s.nchunk * sizeof *sum);
				s.sum = sum;
				/* What comes after the state did not survive. */
				if (end > 4096)
					assert_int_equal(ftruncate(fd, (off_t)end), 0);
			} else if (part_writer_finish(w, &part, &err) < 0) {
				fail_msg("%s", err.msg);
			}
			part_writer_close(w);
			part_io_close(io);
		}
		assert_true(rounds > 2);
		files_equal(&d, part_name(r), "again");
		unlinkat(d.fd, "again", 0);
		close(fd);
		free(sum);
		free(f.piece);
	}
	job_free(&j);
	disk_free(&d);
}

static void test_a_state_that_the_file_does_not_hold_is_EBADMSG(void **state)
{
	struct native_info info = disk_info;
	struct part_state s, bad;
	struct part_writer *w, *x;
	struct ckpt_err err;
	struct part_io *io;
	struct table *t;
	struct disk d;
	struct job j;
	uint8_t b;
	int fd;

	(void)state;
	disk_make(&d);
	job_make(&j, "fsdp=2", SEED, 1);
	job_stage(&j, 5, 0);
	info.world = j.world;
	t = &j.part[0];
	fd = openat(d.fd, "x", O_RDWR | O_CREAT, 0600);
	assert_int_equal(part_io_open(&(struct part_io_opts){ .ops = &io_ops_posix,
							      .engine = IO_INLINE,
							      .nbuffer = 4 },
				      &io, &err),
			 0);
	assert_int_equal(part_writer_open(io, fd, t, &info, 0, NULL, &w, &err), 0);
	assert_int_equal(part_write(w, 0, j.raw[0], 100, &err), 0);
	assert_int_equal(part_writer_save(w, &s, &err), 0);
	assert_int_equal(s.fill, 100);
	assert_int_equal(part_writer_open(io, fd, t, &info, 0, &s, &x, &err), 0);
	part_writer_close(x);
	bad = s;
	bad.nchunk = 1 << 20;
	assert_int_equal(part_writer_open(io, fd, t, &info, 0, &bad, &x, &err), -EBADMSG);
	bad = s;
	bad.fill = 1 << 20;
	assert_int_equal(part_writer_open(io, fd, t, &info, 0, &bad, &x, &err), -EBADMSG);
	assert_int_equal(pread(fd, &b, 1, 4096 + 99), 1);
	b ^= 1;
	assert_int_equal(pwrite(fd, &b, 1, 4096 + 99), 1);
	assert_int_equal(part_writer_open(io, fd, t, &info, 0, &s, &x, &err), -EBADMSG);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(part_writer_open(io, fd, t, &info, 0, &s, &x, &err), -EBADMSG);
	part_writer_close(w);
	part_io_close(io);
	close(fd);
	job_free(&j);
	disk_free(&d);
}

static void test_bytes_out_of_order_or_left_out_are_refused(void **state)
{
	struct native_info info = disk_info;
	struct native_part part;
	struct part_writer *w;
	struct ckpt_err err;
	struct part_io *io;
	struct disk d;
	struct job j;
	int fd;

	(void)state;
	disk_make(&d);
	job_make(&j, "fsdp=2", SEED, 1);
	job_stage(&j, 5, 0);
	info.world = j.world;
	fd = openat(d.fd, "x", O_RDWR | O_CREAT, 0600);
	assert_int_equal(part_io_open(&(struct part_io_opts){ .ops = &io_ops_posix,
							      .engine = IO_INLINE,
							      .nbuffer = 2 },
				      &io, &err),
			 0);
	assert_int_equal(part_writer_open(io, fd, &j.part[0], &info, 0, NULL, &w, &err), 0);
	assert_int_equal(part_write(w, 64, j.raw[0] + 64, 64, &err), 0);
	assert_int_equal(part_write(w, 64, j.raw[0] + 64, 64, &err), -EINVAL);
	assert_int_equal(part_write(w, 2 << 20, j.raw[0], 64, &err), -EINVAL);
	assert_int_equal(part_writer_finish(w, &part, &err), -EINVAL);
	part_writer_close(w);
	part_io_close(io);
	close(fd);
	job_free(&j);
	disk_free(&d);
}

static void test_every_failing_write_is_told(void **state)
{
	struct native_info info = disk_info;
	uint64_t n;
	struct disk d;
	struct job j;

	(void)state;
	disk_make(&d);
	job_make(&j, "fsdp=2", SEED, 1);
	job_stage(&j, 5, 0);
	info.world = j.world;
	for (n = 1;; n++) {
		struct io_faults faults;
		struct native_part part;
		struct ckpt_err err = { 0 };
		int fd = openat(d.fd, "x", O_RDWR | O_CREAT, 0600), e;

		io_faults_init(&faults, &io_ops_posix);
		io_faults_fail(&faults, IO_ON_WRITE, n, -ENOSPC, n % 2);
		e = move_write_part(
			&(struct move_write){ .ops = &faults.ops,
					      .engine = n % 3 ? IO_INLINE : IO_THREADS },
			fd, j.raw[0], &j.part[0], &info, 0, &part, &err);
		close(fd);
		if (!io_faults_hit(&faults)) {
			assert_int_equal(e, 0);
			break;
		}
		assert_int_equal(e, -ENOSPC);
		assert_non_null(strstr(err.msg, "cannot write"));
	}
	assert_true(n > 3); /* header, data, trailer */
	job_free(&j);
	disk_free(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_in_any_cuts_are_the_same_files),
		cmocka_unit_test(test_a_part_is_continued_where_it_was_left),
		cmocka_unit_test(test_a_state_that_the_file_does_not_hold_is_EBADMSG),
		cmocka_unit_test(test_bytes_out_of_order_or_left_out_are_refused),
		cmocka_unit_test(test_every_failing_write_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
