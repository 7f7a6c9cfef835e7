/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_damage.c - no altered, missing or unreadable byte of a checkpoint's data goes unseen:
 * not by a restore that needs it, and not by verify, which names it and goes on.
 */
#include "tests/unit/test_move_disk.h"
#include "ckpt/move/block_stream.h"

static const struct disk_how inline_how = { .ops = &io_ops_posix, .engine = IO_INLINE };

/* --- a checkpoint, and what verify says about it --- */

struct scene {
	struct disk d;
	struct job from, to;
	struct checkpoint *c;
	uint64_t rng;
};

static void scene_make(struct scene *s, const char *test)
{
	s->rng = draw_seed(test);
	disk_make(&s->d);
	job_make(&s->from, "fsdp=2", s->rng, 3);
	job_stage(&s->from, 9, 0);
	job_write(&s->from, &s->d, &inline_how);
	s->c = disk_open(&s->d);
	job_make(&s->to, "fsdp=3", s->rng, 3);
}

static void scene_free(struct scene *s)
{
	checkpoint_free(s->c);
	job_free(&s->from);
	job_free(&s->to);
	disk_free(&s->d);
}

struct faults {
	uint32_t n, nodd;
	struct {
		char kind[16], file[64], tensor[200], text[200];
		uint64_t off, len;
	} at[32];
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct faults *x = arg;

	assert_true(x->n < ARRAY_LEN(x->at));
	x->nodd += format_fault_is_odd(f);
	snprintf(x->at[x->n].kind, sizeof x->at->kind, "%s", f->kind);
	snprintf(x->at[x->n].file, sizeof x->at->file, "%s", f->file);
	snprintf(x->at[x->n].tensor, sizeof x->at->tensor, "%s", f->tensor);
	snprintf(x->at[x->n].text, sizeof x->at->text, "%s", f->text);
	x->at[x->n].off = f->offset;
	x->at[x->n++].len = f->length;
}

static int verify_with(struct scene *s, const struct io_ops *ops, enum io_engine engine,
		       struct faults *x, uint64_t *ret_bytes)
{
	struct ckpt_err err = { 0 };
	struct move_files f;
	int e;

	*x = (struct faults){ 0 };
	assert_ok_err(move_open(ops, s->d.fd, s->c, false, engine, &f, &err), &err);
	e = move_verify(&f, NULL, NULL, on_fault, x, ret_bytes, &err);
	assert_int_equal(err.code, e);
	assert_int_equal(e<0, x->n> x->nodd);
	if (e < 0 && !x->nodd)
		assert_non_null(strstr(err.msg, x->at[0].text));
	move_close(&f);
	return e;
}

static int verify(struct scene *s, struct faults *x)
{
	uint64_t bytes;

	return verify_with(s, &io_ops_posix, draw(&s->rng) % 2 ? IO_INLINE : IO_AUTO, x, &bytes);
}

static void flip(struct scene *s, uint32_t file, uint64_t off, uint8_t mask)
{
	int fd = openat(s->d.fd, s->c->file[file].name, O_RDWR | O_CLOEXEC);
	uint8_t b;

	assert_int_equal(pread(fd, &b, 1, (off_t)off), 1);
	b ^= mask;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)off), 1);
	close(fd);
}

/* The chunk of a byte of the file; NULL: padding. */
static const struct chunk *chunk_of(const struct format_file *f, uint64_t off, uint64_t *ret_number)
{
	for (uint64_t i = 0; i < f->nchunk; i++)
		if (f->chunk[i].raw_len && off >= f->chunk[i].off &&
		    off < f->chunk[i].off + f->chunk[i].stored_len) {
			*ret_number = i;
			return &f->chunk[i];
		}
	return NULL;
}

/* A byte in the n-th chunk of the file that is large. */
static uint64_t big_chunk(const struct scene *s, uint32_t file, uint32_t n)
{
	const struct format_file *f = &s->c->file[file];

	for (uint64_t i = 0; i < f->nchunk; i++)
		if (f->chunk[i].raw_len > 400000 && n-- == 0)
			return f->chunk[i].off + 300000;
	fail_msg("there are not so many big chunks");
	return 0;
}

/* The piece with the lowest offset in the chunk. */
static const struct table_piece *piece_of(const struct scene *s, uint32_t file, uint64_t chunk)
{
	const struct table *t = &s->c->table;
	const struct table_piece *low = NULL;

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];

		if (p->place == file && p->off < (chunk + 1) << 20 &&
		    p->off + p->len > chunk << 20 && (!low || p->off < low->off))
			low = p;
	}
	assert_non_null(low);
	return low;
}

static void verify_must_find(struct scene *s, uint32_t file, uint64_t off)
{
	const struct format_file *f = &s->c->file[file];
	uint8_t mask = (uint8_t)(1u << draw(&s->rng) % 8);
	const struct chunk *c;
	struct faults x;
	uint64_t number;
	char label[200];

	flip(s, file, off, mask);
	c = chunk_of(f, off, &number);
	assert_int_equal(verify(s, &x), c ? -EBADMSG : 0);
	assert_int_equal(x.n, 1);
	assert_string_equal(x.at[0].file, f->name);
	if (c) {
		const struct table_piece *p = piece_of(s, file, number);

		assert_string_equal(x.at[0].kind, "checksum");
		assert_int_equal(x.at[0].off, c->off);
		assert_int_equal(x.at[0].len, c->stored_len);
		assert_string_equal(
			x.at[0].tensor,
			table_tensor_print(&s->c->table.tensor[p->tensor], label, sizeof label));
	} else {
		assert_string_equal(x.at[0].kind, "padding");
		assert_int_equal(x.at[0].off, off);
		assert_int_equal(x.at[0].len, 1);
	}
	flip(s, file, off, mask);
}

TEST(a_good_checkpoint_has_no_faults_and_all_its_data_is_read)
{
	static const enum io_engine engine[] = { IO_INLINE, IO_THREADS, IO_URING };
	uint64_t bytes, want = 0;
	struct scene s;
	struct faults x;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < s.c->nfile; i++)
		want += data_to(&s.c->file[i]) - data_from(&s.c->file[i]);
	for (size_t i = 0; i < ARRAY_LEN(engine); i++) {
		assert_int_equal(verify_with(&s, &io_ops_posix, engine[i], &x, &bytes), 0);
		assert_int_equal(bytes, want);
	}
	scene_free(&s);
}

TEST(verify_finds_every_flipped_byte_of_data_and_padding)
{
	uint32_t padding = 0;
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < s.c->nfile; i++) {
		const struct format_file *f = &s.c->file[i];

		verify_must_find(&s, i, data_from(f));
		verify_must_find(&s, i, data_to(f) - 1);
		for (uint64_t k = 0; k < f->nchunk; k += EVERY) {
			const struct chunk *c = &f->chunk[k];
			uint64_t end = c->off + c->stored_len;

			if (!c->raw_len)
				continue;
			verify_must_find(&s, i, c->off);
			verify_must_find(&s, i, end - 1);
			if (end % 4096) {
				verify_must_find(&s, i, end);
				verify_must_find(&s, i, align_up(end, 4096) - 1);
				padding++;
			}
		}
		for (uint32_t k = 0; k < FEWER(30); k++)
			verify_must_find(&s, i,
					 data_from(f) + draw(&s.rng) % (data_to(f) - data_from(f)));
	}
	assert_true(padding >= FEWER(5));
	scene_free(&s);
}

TEST(verify_goes_on_after_faults)
{
	struct scene s;
	struct faults x;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < 2; i++) {
		flip(&s, i, big_chunk(&s, i, 0), 4);
		flip(&s, i, big_chunk(&s, i, 1), 4);
	}
	assert_int_equal(verify(&s, &x), -EBADMSG);
	assert_int_equal(x.n, 4);
	for (uint32_t i = 0; i < 4; i++) { /* in the order of the files */
		assert_string_equal(x.at[i].kind, "checksum");
		assert_string_equal(x.at[i].file, s.c->file[i / 2].name);
	}
	assert_true(x.at[0].off < x.at[1].off);
	scene_free(&s);
}

/* Sums that are right for bytes that are not those that the table was made from. */
TEST(verify_compares_fingerprints)
{
	struct scene s;
	struct faults x;
	char label[200];
	uint32_t n;

	scene_make(&s, __func__);
	n = s.c->table.npiece / 2;
	s.c->table.piece[n].fp ^= 1;
	assert_int_equal(verify(&s, &x), -EBADMSG);
	assert_int_equal(x.n, 1);
	assert_string_equal(x.at[0].kind, "mismatch");
	assert_string_equal(x.at[0].tensor,
			    table_tensor_print(&s.c->table.tensor[s.c->table.piece[n].tensor],
					       label, sizeof label));
	scene_free(&s);
}

TEST(restore_refuses_damage_and_names_file_offset_and_tensor)
{
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t n = 0; n < FEWER(60); n++) {
		uint32_t file = (uint32_t)(draw(&s.rng) % s.c->nfile);
		const struct format_file *f = &s.c->file[file];
		uint64_t k = draw(&s.rng) % f->nchunk, off;
		const struct chunk *c = &f->chunk[k];
		struct disk_how how = inline_how;
		struct ckpt_err err = { 0 };
		char label[200], at[64];

		if (!c->raw_len)
			continue;
		table_tensor_print(&s.c->table.tensor[piece_of(&s, file, k)->tensor], label,
				   sizeof label);
		if (!strncmp(label, "blob/", 5))
			continue; /* not restored, so not read */
		off = n % 3 == 0   ? 0
		      : n % 3 == 1 ? c->stored_len - 1
				   : draw(&s.rng) % c->stored_len;
		how.engine = n % 2 ? IO_URING : IO_INLINE;
		flip(&s, file, c->off + off, 0x10);
		assert_int_equal(job_restore(&s.to, &s.d, s.c, &how, NULL, NULL, &err), -EBADMSG);
		snprintf(at, sizeof at, "offset %llu", (unsigned long long)c->off);
		if (!strstr(err.msg, f->name) || !strstr(err.msg, label) || !strstr(err.msg, at))
			fail_msg("%s; should name %s, %s, %s", err.msg, f->name, at, label);
		flip(&s, file, c->off + off, 0x10);
	}
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, NULL), 0);
	job_check(&s.to, 9);
	scene_free(&s);
}

TEST(a_file_cut_short_is_damage)
{
	struct ckpt_err err = { 0 };
	uint64_t bytes, at;
	struct scene s;
	struct faults x;
	int fd;

	scene_make(&s, __func__);
	at = big_chunk(&s, 1, 1);
	fd = openat(s.d.fd, s.c->file[1].name, O_RDWR | O_CLOEXEC);
	assert_int_equal(ftruncate(fd, (off_t)at), 0);
	close(fd);
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, s.c->file[1].name));
	assert_non_null(strstr(err.msg, "cut short"));
	assert_int_equal(verify_with(&s, &io_ops_posix, IO_AUTO, &x, &bytes), -EBADMSG);
	assert_int_equal(x.n, 1);
	assert_string_equal(x.at[0].kind, "truncated");
	assert_string_equal(x.at[0].file, s.c->file[1].name);
	assert_int_equal(x.at[0].off, at);
	assert_true(strlen(x.at[0].tensor) > 0);
	scene_free(&s);
}

/* --- a disk that fails --- */

struct bad_disk {
	struct io_ops ops;
	uint64_t from, to; /* of every file */
};

static int64_t bad_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	const struct bad_disk *b = ctx;

	return off < b->to && off + len > b->from ? -EIO
						  : io_ops_posix.pread(NULL, fd, buf, len, off);
}

TEST(what_cannot_be_read_is_an_error_of_restore_and_a_fault_of_verify)
{
	struct bad_disk bad = { .ops = io_ops_posix };
	const struct disk_how how = { .ops = &bad.ops, .engine = IO_THREADS };
	struct ckpt_err err = { 0 };
	uint64_t bytes;
	struct scene s;
	struct faults x;

	bad.ops.ctx = &bad;
	bad.ops.pread = bad_pread;
	scene_make(&s, __func__);
	bad.from = big_chunk(&s, 0, 1);
	bad.to = UINT64_MAX;
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &how, NULL, NULL, &err), -EIO);
	assert_non_null(strstr(err.msg, s.c->file[0].name));
	bad.from = UINT64_MAX; /* nothing is bad */
	flip(&s, 0, big_chunk(&s, 0, 0), 1);
	assert_int_equal(verify_with(&s, &bad.ops, IO_THREADS, &x, &bytes), -EBADMSG);
	bad.from = data_from(&s.c->file[0]);
	assert_int_equal(verify_with(&s, &bad.ops, IO_INLINE, &x, &bytes), -EIO);
	assert_true(x.n >= s.c->nfile);
	for (uint32_t i = 0; i < x.n; i++)
		assert_string_equal(x.at[i].kind, "unreadable");
	assert_string_equal(x.at[x.n - 1].file, s.c->file[s.c->nfile - 1].name);
	scene_free(&s);
}

/* --- maps that lie, and no map --- */

TEST(a_chunk_map_that_contradicts_the_pieces_is_refused)
{
	struct ckpt_err err = { 0 };
	struct scene s;
	struct chunk *c;

	scene_make(&s, __func__);
	c = (struct chunk *)&s.c->file[0].chunk[0];
	c->raw_hash.b[3] ^= 1;
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, &err), -EBADMSG);
	c->raw_hash.b[3] ^= 1;
	c->codec = 99;
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, &err),
			 -EPROTONOSUPPORT);
	c->codec = CODEC_RAW;
	c->stored_len--;
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, &err), -EPROTO);
	c->raw_len = c->stored_len = 0; /* a hole, where a piece is */
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, &err), -EPROTO);
	s.c->file[0].nchunk = 1;
	assert_int_equal(job_restore(&s.to, &s.d, s.c, &inline_how, NULL, NULL, &err), -EPROTO);
	scene_free(&s);
}

/* The same maps, as verify reads them: it goes by the map and not by the pieces. */
TEST(a_chunk_map_that_cannot_be_is_refused_by_verify)
{
	struct scene s;
	struct chunk *c, *last, good, good_last;
	struct faults x;

	scene_make(&s, __func__);
	c = (struct chunk *)&s.c->file[0].chunk[1];
	last = (struct chunk *)&s.c->file[0].chunk[s.c->file[0].nchunk - 1];
	assert_true(last > c && last->raw_len > 1);
	good = *c;
	good_last = *last;
	for (int i = 0; i < 6; i++) {
		struct ckpt_err err = { 0 };
		struct move_files f;
		uint64_t bytes;
		int e;

		*c = good;
		*last = good_last;
		if (i == 0)
			last->off = data_to(&s.c->file[0]) - 1; /* half behind the data */
		else if (i == 1)
			c->off = 4096; /* in the chunk before */
		else if (i == 2)
			c->off = UINT64_MAX - 4096;
		else if (i == 3)
			c->stored_len = c->raw_len = (1u << 20) + 1;
		else if (i == 4)
			c->stored_len++;
		else
			c->codec = 7;
		assert_ok(move_open(&io_ops_posix, s.d.fd, s.c, false, IO_INLINE, &f, &err));
		e = move_verify(&f, NULL, NULL, NULL, NULL, &bytes, &err);
		if (e != (i == 5 ? -EPROTONOSUPPORT : -EPROTO) ||
		    !strstr(err.msg, s.c->file[0].name))
			fail_msg("%d: %d, %s", i, e, err.msg);
		move_close(&f);
	}
	*last = good_last;
	/* A hole where bytes are: they are padding that is not zero, and a piece without its
	 * bytes. */
	*c = good;
	c->raw_len = c->stored_len = 0;
	assert_int_equal(verify(&s, &x), -EBADMSG);
	assert_string_equal(x.at[0].kind, "padding");
	*c = good;
	assert_int_equal(verify(&s, &x), 0);
	scene_free(&s);
}

TEST(what_is_not_open_or_has_no_memory_is_said_before_a_byte_moves)
{
	struct ckpt_err err = { 0 };
	void *base[DISK_RANKS_MAX];
	struct move_files f;
	struct faults x;
	struct scene s;
	struct plan p;
	uint64_t bytes;

	scene_make(&s, __func__);
	assert_int_equal(plan_make(&s.c->table, &s.to.all, NULL, &p, NULL, &err), 0);
	assert_int_equal(move_open(&io_ops_posix, s.d.fd, s.c, false, IO_INLINE, &f, &err), 0);
	for (uint32_t i = 0; i < s.to.world; i++)
		sample_clear(&s.to.rank[i]);
	memcpy(base, s.to.base, sizeof base);
	base[1] = NULL;
	assert_int_equal(move_read(&p, &f, base, NULL, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "no memory"));
	assert_int_equal(move_read(&p, &f, base, NULL, NULL, NULL), -EINVAL);
	s.c->file[1].unread = true;
	assert_int_equal(move_read(&p, &f, s.to.base, NULL, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "not open"));
	assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &bytes, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "not open"));
	s.c->file[1].unread = false;
	for (uint32_t i = 0; i < s.to.world; i++) { /* no byte has moved */
		char why[200];

		assert_false(sample_check(&s.to.rank[i], 9, why, sizeof why));
	}
	/* Nobody listens to the faults, and no place for the sentence. */
	flip(&s, 0, big_chunk(&s, 0, 0), 1);
	assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &bytes, NULL), -EBADMSG);
	assert_int_equal(move_read(&p, &f, s.to.base, NULL, NULL, NULL), -EBADMSG);
	assert_int_equal(verify(&s, &x), -EBADMSG);
	move_close(&f);
	/* A file that went away between the reading of its metadata and of its data. */
	assert_int_equal(unlinkat(s.d.fd, s.c->file[1].name, 0), 0);
	assert_int_equal(move_open(&io_ops_posix, s.d.fd, s.c, true, IO_INLINE, &f, &err), 0);
	assert_int_equal(move_read(&p, &f, s.to.base, NULL, NULL, &err), -ENOENT);
	assert_non_null(strstr(err.msg, s.c->file[1].name));
	assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &bytes, &err), -ENOENT);
	assert_non_null(strstr(err.msg, s.c->file[1].name));
	move_close(&f);
	plan_free(&p);
	scene_free(&s);
}

/* As foreign formats have them: bytes at odd offsets, elements across every bound, no sums. */
/* KiB of this process that the kernel may take back without a word. */
static uint64_t lazy_kib(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	uint64_t kib = 0;
	char line[200];

	while (f && fgets(line, sizeof line, f))
		(void)sscanf(line, "LazyFree: %" SCNu64, &kib);
	if (f)
		(void)fclose(f);
	return kib;
}

TEST(files_without_chunks_are_read_as_they_are)
{
	const uint64_t shape[] = { 700, 900 }, start[] = { 0, 0 }, bytes = 700 * 900 * 4 + 13;
	const uint64_t few[] = { 3, 900 };
	const int64_t across[] = { 1, 700 };
	struct table_tensor x =
		ROW(.component = "m", .name = "x", .dtype = CKPT_F32, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	uint32_t *have = malloc(bytes), *mem = malloc(bytes);
	struct format_file file = { .name = "plain", .file_bytes = bytes, .raw_bytes = bytes };
	struct checkpoint c = { .nfile = 1, .file = &file };
	struct table dst = { 0 };
	struct indexset set;
	struct move_files f;
	struct ckpt_err err;
	uint32_t rows[3 * 900];
	void *base[] = { mem, rows };
	uint64_t read;
	struct disk d;
	struct plan p;
	int fd;

	disk_make(&d);
	assert_int_equal(table_add_tensor(&c.table, &x, NULL, &err), 0);
	assert_ok(table_add_place(
		&c.table, &(struct table_place){ .name = "plain", .bytes = bytes }, NULL, &err));
	assert_int_equal(indexset_box(2, start, shape, &c.table.arena, &set), 0);
	assert_ok(table_add_piece(&c.table, &(struct table_piece){ .set = set, .off = 13 }, &err));
	assert_int_equal(table_seal(&c.table, &err), 0);
	assert_int_equal(table_add_tensor(&dst, &x, NULL, &err), 0);
	assert_ok(table_add_place(&dst, &(struct table_place){ .name = "memory", .bytes = bytes },
				  NULL, &err));
	assert_ok(
		table_add_piece(&dst, &(struct table_piece){ .set = set, .stride = across }, &err));
	/* And its first rows once more: a short operation inside the long one. */
	assert_ok(table_add_place(
		&dst, &(struct table_place){ .name = "rows", .bytes = sizeof rows }, NULL, &err));
	assert_int_equal(indexset_box(2, start, few, &dst.arena, &set), 0);
	assert_ok(table_add_piece(&dst, &(struct table_piece){ .place = 1, .set = set }, &err));
	assert_int_equal(table_seal(&dst, &err), 0);
	for (uint32_t i = 0; i < 700 * 900; i++)
		have[i] = i * 2654435761u;
	fd = openat(d.fd, "plain", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(pwrite(fd, have, 700 * 900 * 4, 13), 700 * 900 * 4);
	assert_int_equal(plan_make(&c.table, &dst, NULL, &p, NULL, &err), 0);
	for (int direct = 0; direct < 2; direct++) {
		uint64_t mapped = stream_mapped_bytes;

		assert_int_equal(move_open(&io_ops_posix, d.fd, &c, direct, IO_AUTO, &f, &err), 0);
		memset(mem, 0xee, bytes);
		assert_ok_err(move_read(&p, &f, base, NULL, NULL, &err), &err);
		for (uint32_t i = 0; i < 700 * 900; i++)
			assert_int_equal(mem[i % 900 * 700 + i / 900], have[i]);
		assert_memory_equal(rows, have, sizeof rows);
		assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &read, &err), 0);
		assert_int_equal(read, bytes);
		/* the buffers are those of the reads before */
		assert_true(!direct || stream_mapped_bytes == mapped);
		/* A direct read into a page that the kernel takes back is lost (before Linux 5.18) */
		assert_int_equal(lazy_kib(), 0);
		move_close(&f);
	}
	assert_int_equal(ftruncate(fd, (off_t)bytes - 1), 0);
	assert_int_equal(move_open(&io_ops_posix, d.fd, &c, true, IO_AUTO, &f, &err), 0);
	assert_int_equal(move_read(&p, &f, base, NULL, NULL, &err), -EBADMSG);
	move_close(&f);
	close(fd);
	plan_free(&p);
	table_free(&dst);
	table_free(&c.table);
	free(have);
	free(mem);
	disk_free(&d);
}
