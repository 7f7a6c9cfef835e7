/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_part.c - parts written from bytes that come in any cuts are those that part_file_write
 * makes of the same state; several at a time in few buffers; left and continued anywhere; and no
 * error goes unheard.
 */
#include "tests/unit/test_move_disk.h"
#include "daemon/part_file.h"
#include "tests/lib/io_faults.h"

#define SEED UINT64_C(0x91)

/* A stream with what surrounds it in a part: header, sections and trailer. */
struct part_writer {
	struct chunk_stream *stream;
	struct chunk_queue *io;
	int fd;
	struct table *t;
	const struct native_info *info;
	uint32_t rank;
};

static void part_writer_close(struct part_writer *w)
{
	if (w)
		chunk_stream_close(w->stream);
	free(w);
}

static int part_writer_open(struct chunk_queue *io, int fd, struct table *t,
			    const struct native_info *info, uint32_t rank,
			    const struct chunk_state *from, struct part_writer **ret,
			    struct ckpt_err *e)
{
	struct part_writer *w = calloc(1, sizeof *w);
	struct ck_head *head = calloc(1, sizeof *head);
	int rc;

	assert_true(w && head);
	*ret = NULL;
	*w = (struct part_writer)ROW(.io = io, .fd = fd, .t = t, .info = info, .rank = rank);
	rc = chunk_stream_open(io, fd, t, NATIVE_DATA_OFF, rank, from, &w->stream, e);
	native_part_head(info, rank, head);
	if (!rc)
		rc = chunk_queue_put(io, fd, rank, head, sizeof *head, 0, e);
	free(head);
	if (rc)
		part_writer_close(w);
	else
		*ret = w;
	return rc;
}

static int part_write(struct part_writer *w, uint64_t off, const void *p, uint64_t len,
		      struct ckpt_err *e)
{
	return chunk_stream_write(w->stream, off, p, len, e);
}

static int part_writer_save(struct part_writer *w, struct chunk_state *ret, struct ckpt_err *e)
{
	return chunk_stream_save(w->stream, ret, e);
}

static int part_writer_finish(struct part_writer *w, struct native_part *ret, struct ckpt_err *e)
{
	struct chunk_written done;
	void *tail = NULL;
	uint64_t len;
	int rc = chunk_stream_end(w->stream, &done, e);

	if (!rc)
		rc = native_part_tail(w->info, w->rank, w->t, done.chunk, done.nchunk,
				      done.data_end, &tail, &len, &ret->root, e);
	if (!rc)
		rc = chunk_queue_put(w->io, w->fd, w->rank, tail, len, done.data_end, e);
	free(tail);
	if (rc)
		return rc;
	ret->rank = w->rank;
	ret->kind = PART_MAIN;
	ret->group = 0;
	ret->step = w->info->step;
	ret->generation = w->info->generation;
	native_part_uuid(w->info, w->rank, ret->uuid);
	ret->file_bytes = done.data_end + len;
	ret->raw_bytes = w->t->place[0].bytes;
	ret->table = w->t;
	return 0;
}

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

static struct ckpt_err err; /* of the call that failed last */

static void write_again(const struct again *a, struct job *j, uint32_t rank, const char *name,
			struct native_part *ret)
{
	const struct io_ops *ops = a->ops;
	uint64_t seed = a->seed, off, len, fp[64] = { 0 };
	struct table *t = &j->part[rank];
	struct native_info info = disk_info;
	struct part_writer *w;
	struct chunk_queue *io;
	struct feed f;
	uint8_t *mem = aligned_alloc(4096, 4 << 20);
	int fd = again_open(a, name, O_CREAT | O_EXCL);

	info.world = j->world;
	for (uint32_t i = 0; i < t->npiece; i++) {
		assert_true(i < ARRAY_LEN(fp));
		fp[i] = t->piece[i].fp;
		t->piece[i].fp = 0x1234;
	}
	assert_ok_err(
		chunk_queue_open(
			&(struct chunk_queue_opts){ .ops = ops, .engine = a->engine, .nbuffer = 2 },
			&io, &err),
		&err);
	assert_ok_err(part_writer_open(io, fd, t, &info, rank, NULL, &w, &err), &err);
	feed_make(&f, t, j->raw[rank]);
	while (feed_next(&f, &seed, &off, &len)) {
		uint64_t at = draw(&seed) % 3 ? off % 4096 : draw(&seed) % 100;

		memcpy(mem + at, j->raw[rank] + off, len);
		assert_int_equal(part_write(w, off, mem + at, len, &err), 0);
		assert_int_equal(chunk_queue_drain(io, &err), 0);
		memset(mem + at, 0xdd, len);
	}
	assert_ok_err(part_writer_finish(w, ret, &err), &err);
	part_writer_close(w);
	chunk_queue_close(io);
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

TEST(test_parts_in_any_cuts_are_the_same_files)
{
	static const char *const meshes[] = { "fsdp=3", "fsdp=2,tp=2", "pp=2,fsdp=2" };
	uint64_t seed = draw_seed(__func__);

	for (size_t m = 0; m < ARRAY_LEN(meshes); m++) {
		struct disk d;
		struct job j;

		disk_make(&d);
		job_written(&j, &d, meshes[m], SEED);
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
TEST(test_a_part_is_continued_where_it_was_left)
{
	uint64_t seed = draw_seed(__func__), rounds = 0;
	struct native_info info = disk_info;
	struct job j;

	job_written(&j, &D, "fsdp=3", SEED);
	info.world = j.world;
	for (uint32_t r = 0; r < j.world; r++) {
		struct again a = { &D, &io_ops_posix, IO_THREADS, r % 2, 0 };
		struct chunk_state s = { 0 };
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
			struct chunk_queue *io;

			assert_ok(chunk_queue_open(
				&(struct chunk_queue_opts)ROW(.ops = &io_ops_posix,
							      .engine = IO_THREADS, .nbuffer = 2),
				&io, &err));
			assert_ok_err(
				part_writer_open(io, fd, t, &info, r, rounds ? &s : NULL, &w, &err),
				&err);
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
			chunk_queue_close(io);
		}
		assert_true(rounds > 2);
		files_equal(&D, part_name(r), "again");
		unlinkat(D.fd, "again", 0);
		close(fd);
		free(sum);
		free(f.piece);
	}
	job_free(&j);
}

TEST(test_a_state_that_the_file_does_not_hold_is_EBADMSG)
{
	struct native_info info = disk_info;
	struct chunk_state s, bad;
	struct part_writer *w, *x;
	struct chunk_queue *io;
	struct table *t;
	struct job j;
	uint8_t b;
	int fd;

	job_make(&j, "fsdp=2", SEED, 1);
	job_stage(&j, 5, 0);
	info.world = j.world;
	t = &j.part[0];
	fd = openat(D.fd, "x", O_RDWR | O_CREAT, 0600);
	assert_ok(chunk_queue_open(&(struct chunk_queue_opts)ROW(.ops = &io_ops_posix,
								 .engine = IO_INLINE, .nbuffer = 4),
				   &io, &err));
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
	chunk_queue_close(io);
	close(fd);
	job_free(&j);
}

TEST(test_bytes_out_of_order_or_left_out_are_refused)
{
	struct native_info info = disk_info;
	struct native_part part;
	struct part_writer *w;
	struct chunk_queue *io;
	struct job j;
	int fd;

	job_make(&j, "fsdp=2", SEED, 1);
	job_stage(&j, 5, 0);
	info.world = j.world;
	fd = openat(D.fd, "x", O_RDWR | O_CREAT, 0600);
	assert_ok(chunk_queue_open(&(struct chunk_queue_opts)ROW(.ops = &io_ops_posix,
								 .engine = IO_INLINE, .nbuffer = 2),
				   &io, &err));
	assert_int_equal(part_writer_open(io, fd, &j.part[0], &info, 0, NULL, &w, &err), 0);
	assert_int_equal(part_write(w, 64, j.raw[0] + 64, 64, &err), 0);
	assert_int_equal(part_write(w, 64, j.raw[0] + 64, 64, &err), -EINVAL);
	assert_int_equal(part_write(w, 2 << 20, j.raw[0], 64, &err), -EINVAL);
	assert_int_equal(part_writer_finish(w, &part, &err), -EINVAL);
	part_writer_close(w);
	chunk_queue_close(io);
	close(fd);
	job_free(&j);
}

TEST(test_every_failing_write_is_told)
{
	struct native_info info = disk_info;
	uint64_t n;
	struct job j;

	job_make(&j, "fsdp=2", SEED, 1);
	job_stage(&j, 5, 0);
	info.world = j.world;
	for (n = 1;; n++) {
		struct io_faults faults;
		struct native_part part;
		int fd = openat(D.fd, "x", O_RDWR | O_CREAT, 0600), e;

		err = (struct ckpt_err){ 0 };
		io_faults_init(&faults, &io_ops_posix);
		io_faults_fail(&faults, IO_ON_WRITE, n, -ENOSPC, n % 2);
		e = part_file_write(
			&(struct part_file_opts){ .ops = &faults.ops,
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
}

/* --- parts that the sample does not make --- */

struct made {
	struct table t;
	uint8_t *raw;
	struct disk d;
};

static const struct native_info alone = {
	.uuid = { 1 }, .job = "demo", .step = 12, .generation = 3, .world = 1
};

/* n tensors of so many bytes; each its own component, or all of one. */
static void made_make(struct made *m, uint32_t n, uint64_t bytes, bool apart)
{
	struct table_place place = { .name = "memory", .bytes = INT64_MAX };
	uint64_t zero = 0, seed = 1;
	struct arena a = { 0 };
	struct table decl = { 0 };

	*m = (struct made){ .raw = NULL };
	disk_make(&m->d);
	assert_int_equal(table_add_place(&decl, &place, NULL, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		char name[16], component[16];
		struct table_tensor x =
			ROW(.component = component, .name = name, .of = "", .dtype = CKPT_U8,
			    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 1, .shape = &bytes);
		struct table_piece p = { .tensor = i, .off = i * bytes };

		snprintf(name, sizeof name, "t%u", i);
		snprintf(component, sizeof component, "c%u", apart ? i : 0);
		assert_int_equal(table_add_tensor(&decl, &x, NULL, NULL), 0);
		assert_int_equal(indexset_box(1, &zero, &bytes, &a, &p.set), 0);
		assert_int_equal(table_add_piece(&decl, &p, NULL), 0);
	}
	assert_int_equal(table_seal(&decl, NULL), 0);
	assert_int_equal(native_part_table(&decl, 0, &m->t, NULL, NULL), 0);
	m->raw = aligned_alloc(4096, align_up(m->t.place[0].bytes + MIB, 4096));
	assert_non_null(m->raw);
	for (uint64_t i = 0; i < align_up(m->t.place[0].bytes + MIB, 4096) / 8; i++)
		((uint64_t *)(void *)m->raw)[i] = draw(&seed);
	table_free(&decl);
	arena_free(&a);
}

static void made_free(struct made *m)
{
	disk_free(&m->d);
	table_free(&m->t);
	free(m->raw);
}

static int made_file(struct made *m, const char *name)
{
	int fd = openat(m->d.fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void made_write(struct made *m, const char *name, struct native_part *ret)
{
	int fd = made_file(m, name);

	assert_ok_err(part_file_write(
			      &(struct part_file_opts){ .ops = &io_ops_posix, .engine = IO_INLINE },
			      fd, m->raw, &m->t, &alone, 0, ret, &err),
		      &err);
	close(fd);
}

struct opened {
	struct chunk_queue *io;
	struct part_writer *w;
	int fd;
};

static void writer_make(struct made *m, const char *name, uint32_t nbuffer,
			const struct io_ops *ops, struct opened *ret)
{
	ret->fd = made_file(m, name);
	assert_ok_err(chunk_queue_open(&(struct chunk_queue_opts){ .ops = ops,
								   .engine = IO_INLINE,
								   .nbuffer = nbuffer },
				       &ret->io, &err),
		      &err);
	assert_ok_err(part_writer_open(ret->io, ret->fd, &m->t, &alone, 0, NULL, &ret->w, &err),
		      &err);
}

static void writer_free(struct opened *o)
{
	part_writer_close(o->w);
	chunk_queue_close(o->io);
	close(o->fd);
}

/* More writes than may be under way, and none of them large: the queue is emptied on the way. */
TEST(test_more_writes_than_the_queue_holds_are_one_file)
{
	enum { N = 2 * CHUNK_QUEUE_DEPTH };
	struct native_part part, again;
	struct opened o;
	struct made m;

	made_make(&m, N, 5, true);
	made_write(&m, "x", &part);
	writer_make(&m, "again", N + 1, &io_ops_posix, &o);
	/* Behind what the first chunk has, and it is still the first that is awaited. */
	assert_int_equal(part_write(o.w, 100, m.raw, 1, &err), -EINVAL);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(part_write(o.w, i * MIB, m.raw + i * MIB, 5, &err), 0);
	assert_int_equal(part_writer_finish(o.w, &again, &err), 0);
	writer_free(&o);
	files_equal(&m.d, "x", "again");
	assert_memory_equal(part.root.b, again.root.b, sizeof part.root.b);
	made_free(&m);
}

/* Whole chunks in one call, more than a block of them; from where they lie, and from where no
 * direct write could take them. */
TEST(test_many_chunks_in_one_call_are_the_same_file)
{
	const uint64_t bytes = 3 * MOVE_BLOCK + MIB / 2;
	struct native_part part;
	struct made m;
	uint8_t *odd;
	uint64_t n;

	made_make(&m, 1, bytes, false);
	made_write(&m, "x", &part);
	odd = malloc(bytes + 1);
	assert_non_null(odd);
	memcpy(odd + 1, m.raw, bytes);
	for (int how = 0; how < 2; how++) {
		struct opened o;

		writer_make(&m, "again", 2, &io_ops_posix, &o);
		assert_ok_err(part_write(o.w, 0, how ? odd + 1 : m.raw, bytes, &err), &err);
		/* Nothing follows. */
		assert_int_equal(part_write(o.w, bytes, m.raw, 1, &err), -EINVAL);
		assert_int_equal(part_write(o.w, 4 * MOVE_BLOCK, m.raw, 1, &err), -EINVAL);
		assert_int_equal(part_writer_finish(o.w, &part, &err), 0);
		writer_free(&o);
		files_equal(&m.d, "x", "again");
	}
	/* What reaches too far is refused, and what of it was good is in the file: it may go on. */
	{
		struct opened o;

		writer_make(&m, "again", 2, &io_ops_posix, &o);
		assert_int_equal(part_write(o.w, 0, m.raw, 2 * MIB, &err), 0);
		assert_int_equal(part_write(o.w, 2 * MIB, m.raw + 2 * MIB, bytes, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "are not what follows"));
		assert_int_equal(part_writer_finish(o.w, &part, &err), 0);
		writer_free(&o);
		files_equal(&m.d, "x", "again");
	}
	/* Each failing write is told, with and without somebody who asks why. */
	for (n = 2;; n++) { /* 1: the header */
		struct io_faults faults;
		struct opened o;
		int e;

		io_faults_init(&faults, &io_ops_posix);
		io_faults_fail(&faults, IO_ON_WRITE, n, -ENOSPC, true);
		writer_make(&m, "again", 2, &faults.ops, &o);
		e = part_write(o.w, 0, m.raw, bytes, NULL);
		if (!e)
			e = part_writer_finish(o.w, &part, NULL);
		assert_int_equal(e, io_faults_hit(&faults) ? -ENOSPC : 0);
		if (e) {
			struct part_writer *more;
			struct chunk_state s;

			assert_int_equal(chunk_queue_drain(o.io, &err), -ENOSPC);
			assert_non_null(strstr(err.msg, "cannot write"));
			assert_int_equal(part_writer_save(o.w, &s, &err), -ENOSPC);
			assert_int_equal(
				part_writer_open(o.io, o.fd, &m.t, &alone, 0, NULL, &more, &err),
				-ENOSPC);
			assert_null(more);
		}
		writer_free(&o);
		if (!e)
			break;
	}
	assert_int_equal(n - 1, 1 + 4 + 1); /* data in blocks, and what surrounds them */
	free(odd);
	made_free(&m);
}

/* A description of more than a buffer: it is written in steps, each of which may fail. */
TEST(test_a_long_description_is_written_or_told)
{
	struct native_part part;
	struct made m;
	struct stat st;
	uint64_t n;
	int fd;

	made_make(&m, 20000, 1, false);
	made_write(&m, "x", &part);
	fd = openat(m.d.fd, "x", O_RDONLY);
	assert_int_equal(fstat(fd, &st), 0);
	close(fd);
	assert_true((uint64_t)st.st_size > m.t.place[0].bytes + 3 * CHUNK_BUFFER / 2);
	for (n = 1;; n++) {
		struct io_faults faults;
		int e;

		err = (struct ckpt_err){ 0 };
		io_faults_init(&faults, &io_ops_posix);
		io_faults_fail(&faults, IO_ON_WRITE, n, -EIO, false);
		fd = made_file(&m, "again");
		e = part_file_write(
			&(struct part_file_opts){ .ops = &faults.ops, .engine = IO_INLINE }, fd,
			m.raw, &m.t, &alone, 0, &part, &err);
		close(fd);
		if (!io_faults_hit(&faults)) {
			assert_int_equal(e, 0);
			break;
		}
		assert_int_equal(e, -EIO);
		assert_non_null(strstr(err.msg, "cannot write"));
	}
	assert_true(n > 1 + 2 + 2); /* header, data, description in steps */
	files_equal(&m.d, "x", "again");
	made_free(&m);
}

/* No table of ours has one, but a part may: nothing of it is in the file. */
TEST(test_a_part_with_a_hole_is_written_without_it)
{
	const struct native_lineage line = { .parent_step = UINT64_MAX, .tool = "test" };
	struct native_part part = { .name = "w0000-0-0.part" };
	struct move_verified v;
	struct checkpoint *c;
	struct move_files f;
	struct opened o;
	struct made m;
	uint8_t id[16];
	uint64_t len;
	void *bytes;
	int fd;

	made_make(&m, 2, MIB, true);
	m.t.piece[1].off += MIB;
	m.t.place[0].bytes += MIB;
	made_write(&m, part.name, &part);
	snprintf(part.name, sizeof part.name, "w0000-0-0.part");
	assert_ok_err(native_manifest(&alone, &part, 1, &line, &bytes, &len, id, &err), &err);
	fd = made_file(&m, "MANIFEST");
	assert_int_equal(io_pwrite_all(&io_ops_posix, fd, bytes, len, 0), 0);
	close(fd);
	free(bytes);
	c = disk_open(&m.d);
	assert_int_equal(c->file[0].nchunk, 3);
	assert_int_equal(c->file[0].chunk[1].raw_len, 0);
	assert_int_equal(move_open(&io_ops_posix, m.d.fd, c, false, IO_INLINE, &f, &err), 0);
	assert_ok(
		move_verify_some(&f, &(struct move_subset){ 0 }, NULL, NULL, NULL, NULL, &v, &err));
	assert_int_equal(v.bytes, 2 * MIB);
	assert_int_equal(v.chunks, 2);
	move_close(&f);
	move_close(&f); /* twice is fine */
	checkpoint_free(c);
	/* In one call or more it is the same, and the hole is none of the bytes. */
	writer_make(&m, "again", 2, &io_ops_posix, &o);
	assert_int_equal(part_write(o.w, 0, m.raw, MIB, &err), 0);
	assert_int_equal(part_write(o.w, MIB, m.raw + MIB, MIB, &err), -EINVAL);
	assert_int_equal(part_write(o.w, 2 * MIB, m.raw + 2 * MIB, MIB, &err), 0);
	assert_int_equal(part_writer_finish(o.w, &part, &err), 0);
	writer_free(&o);
	files_equal(&m.d, "w0000-0-0.part", "again");
	made_free(&m);
}

TEST(test_a_piece_whose_elements_cannot_be_summed_is_refused)
{
	static const int64_t stride[1] = { 1 };
	struct part_writer *w;
	struct opened o;
	struct made m;

	made_make(&m, 3, 100, false);
	writer_make(&m, "x", 3, &io_ops_posix, &o);
	m.t.piece[1].stride = stride;
	assert_int_equal(part_writer_open(o.io, o.fd, &m.t, &alone, 0, NULL, &w, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "piece 1 of rank 0 is not row-major"));
	m.t.piece[1].stride = NULL;
	for (uint32_t i = 0; i < 3; i++)
		m.t.tensor[i].elem_bytes = 3; /* 128 bytes before the second */
	assert_int_equal(part_writer_open(o.io, o.fd, &m.t, &alone, 0, NULL, &w, &err), -EINVAL);
	writer_free(&o);
	made_free(&m);
}

/* --- errors at other moments --- */

static int stop(void *arg, uint64_t bytes)
{
	*(uint64_t *)arg += bytes;
	return 1;
}

/* Less than what is asked about on the way: it is asked at the end, and all the same. */
TEST(test_also_a_small_part_is_given_up_where_its_owner_says)
{
	struct native_part part;
	uint64_t told = 0;
	struct made m;
	int fd;

	made_make(&m, 2, 5000, false);
	fd = made_file(&m, "x");
	assert_int_equal(part_file_write(&(struct part_file_opts)ROW(.ops = &io_ops_posix,
								     .engine = IO_INLINE,
								     .tick = stop, .arg = &told),
					 fd, m.raw, &m.t, &alone, 0, &part, &err),
			 -ECANCELED);
	assert_non_null(strstr(err.msg, "given up"));
	assert_true(told >= 10000);
	close(fd);
	made_free(&m);
}

static int tap_count(void *ctx, const struct walk_span *s)
{
	(void)s;
	++*(uint32_t *)ctx;
	return 0;
}

static int tap_fail(void *ctx, const struct walk_span *s)
{
	(void)ctx;
	return s->off >= 2 * MIB ? -EDOM : 0;
}

/* The third chunk's tap fails, but the first one's write had failed before. */
TEST(test_of_two_errors_the_first_is_told)
{
	for (int fails = 0; fails < 2; fails++) {
		uint32_t seen = 0;
		const struct walk_pass tap[2] = { { .span = tap_fail },
						  { .span = tap_count, .ctx = &seen } };
		struct io_faults faults;
		struct chunk_queue *io;
		struct part_writer *w;
		struct made m;
		int fd, e = 0;

		(void)state;
		made_make(&m, 3, 5, true);
		fd = made_file(&m, "x");
		io_faults_init(&faults, &io_ops_posix);
		io_faults_fail(&faults, IO_ON_WRITE, fails ? 2 : 100, -ENOSPC, false);
		assert_ok(chunk_queue_open(
			&(struct chunk_queue_opts)ROW(.ops = &faults.ops, .engine = IO_INLINE,
						      .nbuffer = 2, .pass = tap, .npass = 2),
			&io, &err));
		assert_int_equal(part_writer_open(io, fd, &m.t, &alone, 0, NULL, &w, &err), 0);
		for (uint32_t i = 0; i < 3 && !e; i++)
			e = part_write(w, i * MIB, m.raw + i * MIB, 5, &err);
		assert_int_equal(e, fails ? -ENOSPC : -EDOM);
		assert_non_null(strstr(err.msg, fails ? "cannot write" : "on the way failed"));
		assert_int_equal(seen, 2); /* what came behind the failing one was not asked */
		part_writer_close(w);
		chunk_queue_close(io);
		close(fd);
		made_free(&m);
	}
}

TEST(test_a_state_that_cannot_be_saved_or_read_is_told)
{
	struct native_part part;
	struct chunk_state s, bad;
	struct part_writer *w;
	struct io_faults faults;
	struct opened o;
	struct made m;
	uint32_t hit = 0;

	made_make(&m, 2, MIB + 5000, false);
	for (uint64_t n = 1; n < 20; n++) {
		int e;

		io_faults_init(&faults, &io_ops_posix);
		writer_make(&m, "x", 3, &faults.ops, &o);
		io_faults_fail(&faults, IO_ON_WRITE, n, -ENOSPC, false);
		assert_int_equal(part_write(o.w, 0, m.raw, MIB + 100, &err), 0);
		e = part_writer_save(o.w, &s, &err);
		assert_int_equal(e, io_faults_hit(&faults) ? -ENOSPC : 0);
		hit += e != 0;
		if (!e) {
			/* Reading it again fails, and is not taken for another file. */
			io_faults_fail(&faults, IO_ON_READ, 1, -EIO, false);
			assert_int_equal(
				part_writer_open(o.io, o.fd, &m.t, &alone, 0, &s, &w, &err), -EIO);
			assert_non_null(strstr(err.msg, "chunk 1 is not there any more"));
			io_faults_fail(&faults, IO_ON_READ, 100, -EIO, false);
			/* Bytes of a chunk behind the last; no bytes of a chunk that has them
			 * all. */
			bad = s;
			bad.nchunk = 3;
			assert_int_equal(
				part_writer_open(o.io, o.fd, &m.t, &alone, 0, &bad, &w, &err),
				-EBADMSG);
			assert_non_null(strstr(err.msg, "of another part"));
			bad.nchunk = 2;
			bad.fill = (uint32_t)(m.t.place[0].bytes - 2 * MIB);
			assert_int_equal(
				part_writer_open(o.io, o.fd, &m.t, &alone, 0, &bad, &w, &err),
				-EBADMSG);
			assert_ok(part_writer_open(o.io, o.fd, &m.t, &alone, 0, &s, &w, &err));
			part_writer_close(w);
			/* Of all bytes, with nothing left but to finish it. */
			assert_ok(part_write(o.w, MIB + 100, m.raw + MIB + 100,
					     m.t.place[0].bytes - MIB - 100, &err));
			assert_int_equal(part_writer_save(o.w, &s, &err), 0);
			assert_int_equal(s.nchunk, 3);
			assert_int_equal(s.fill, 0);
			assert_ok(part_writer_open(o.io, o.fd, &m.t, &alone, 0, &s, &w, &err));
			assert_int_equal(part_writer_finish(w, &part, &err), 0);
			part_writer_close(w);
		}
		writer_free(&o);
		if (!e)
			break;
	}
	assert_true(hit >= 2); /* the whole chunk, and the begun one */
	made_free(&m);
}

UNIT(.setup = disk_setup, .teardown = disk_teardown);
