/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_vectors.c - tests/vectors/v02: a step of each kind that format v0.2 has, as files. Each
 * is what it was when it was made, to the byte; opens as what it is; and is verified, element by
 * element. CKPT_VECTORS_UPDATE=1 makes them anew. Runs in the root of the repository, as make does.
 */
#include "tests/lib/handmade.h"
#include "tests/lib/tiles.h"
#include "tests/unit/test_move_disk.h"

#define T(...) (&(struct handmade_tensor)ROW(__VA_ARGS__))
#define BOX(...) ((const uint64_t[]){ __VA_ARGS__ })

static const uint64_t origin[4];
static struct ckpt_err err; /* of the call that failed last */

/* --- what they are --- */

/* Each fills *p, whose MANIFEST is made by the caller; *from: an older step, where there is one. */

static void plain_part(struct handmade *p, uint32_t rank, uint32_t world, const uint32_t *source,
		       uint32_t nsource, bool constant)
{
	uint64_t from = 8 / world * rank, rows = 8 / world;
	char mesh[16];
	struct table t;
	uint32_t k;

	snprintf(mesh, sizeof mesh, "fsdp=%u", world);
	handmade_table(&t, mesh);
	k = handmade_layout(&t, "Shard(0)@fsdp");
	(void)handmade_tensor(&t, T(.component = "model", .name = "w", .dtype = CKPT_F32,
				    .role = CKPT_PARAM, .layout = k, .ndim = 2, .shape = { 8, 3 }));
	handmade_piece(&t, rank, 0, 0, 0, BOX(from, 0), BOX(rows, 3));
	if (constant)
		(void)handmade_tensor(&t,
				      T(.component = "model", .name = "rope", .dtype = CKPT_BF16,
					.role = CKPT_BUFFER, .cls = CKPT_CONST, .layout = k,
					.ndim = 2, .shape = { 8, 5 }));
	(void)handmade_add(p, rank, PART_MAIN, 0, &t, source, nsource);
}

static void const_part(struct handmade *p, uint32_t rank, uint32_t world)
{
	uint64_t from = 8 / world * rank, rows = 8 / world;
	char mesh[16];
	struct table t;
	uint32_t k;

	snprintf(mesh, sizeof mesh, "fsdp=%u", world);
	handmade_table(&t, mesh);
	k = handmade_layout(&t, "Shard(0)@fsdp");
	k = handmade_tensor(&t, T(.component = "model", .name = "rope", .dtype = CKPT_BF16,
				  .role = CKPT_BUFFER, .cls = CKPT_CONST, .layout = k, .ndim = 2,
				  .shape = { 8, 5 }));
	handmade_piece(&t, rank, k, 0, 0, BOX(from, 0), BOX(rows, 5));
	(void)handmade_add(p, rank, PART_CONST, 0, &t, NULL, 0);
}

/* Two ranks, each with constants of its own. */
static void make_const(struct handmade *p, struct handmade *from)
{
	(void)from;
	handmade_begin(p, "vectors", 10, 2, 0);
	for (uint32_t r = 0; r < 2; r++)
		const_part(p, r, 2);
	for (uint32_t r = 0; r < 2; r++)
		plain_part(p, r, 2, &r, 1, true);
}

/* One rank, with the constants that these two wrote. */
static void make_linked(struct handmade *p, struct handmade *from)
{
	make_const(from, NULL);
	handmade_begin(p, "vectors", 12, 1, 0);
	(void)handmade_link(p, from, 0);
	(void)handmade_link(p, from, 1);
	plain_part(p, 0, 1, (uint32_t[]){ 0, 1 }, 2, true);
}

static void make_derived(struct handmade *p, struct handmade *from)
{
	struct table t;
	uint32_t k;

	(void)from;
	handmade_begin(p, "vectors", 10, 1, 0);
	handmade_table(&t, "fsdp=1");
	k = handmade_layout(&t, "Shard(0)@fsdp");
	(void)handmade_tensor(&t,
			      T(.component = "optim", .name = "w", .dtype = CKPT_F32,
				.role = CKPT_MASTER, .layout = k, .ndim = 2, .shape = { 8, 3 }));
	(void)handmade_tensor(&t, T(.component = "model", .name = "w", .of = "optim/w",
				    .dtype = CKPT_BF16, .role = CKPT_PARAM, .cls = CKPT_DERIVED,
				    .layout = k, .ndim = 2, .shape = { 8, 3 }));
	(void)handmade_tensor(&t, T(.component = "half", .name = "w", .of = "optim/w",
				    .dtype = CKPT_F16, .role = CKPT_PARAM, .cls = CKPT_DERIVED,
				    .layout = k, .ndim = 2, .shape = { 8, 3 }));
	for (uint32_t i = 0; i < 2; i++) {
		handmade_piece(&t, 0, 0, 64 * i, 0, BOX(4 * i, 0), BOX(4, 3));
		handmade_piece(&t, 0, 1, (1 << 20) + 64 * i, PIECE_DERIVED, BOX(4 * i, 0),
			       BOX(4, 3));
		handmade_piece(&t, 0, 2, (2 << 20) + 64 * i,
			       PIECE_DERIVED | (i ? PIECE_TRUSTED : 0), BOX(4 * i, 0), BOX(4, 3));
	}
	(void)handmade_add(p, 0, PART_MAIN, 0, &t, NULL, 0);
}

/* Two ranks hold boxes that no layout describes; and each has a blob. */
static void make_explicit(struct handmade *p, struct handmade *from)
{
	(void)from;
	handmade_begin(p, "vectors", 10, 2, 0);
	for (uint32_t r = 0; r < 2; r++) {
		struct table t;
		uint32_t b;

		handmade_table(&t, "dp=2");
		(void)handmade_tensor(&t, T(.component = "model", .name = "w", .dtype = CKPT_I16,
					    .layout = TABLE_NONE, .ndim = 2, .shape = { 4, 6 }));
		handmade_piece(&t, r, 0, 0, 0, r ? BOX(0, 2) : origin, r ? BOX(3, 4) : BOX(3, 2));
		handmade_piece(&t, r, 0, 64, 0, BOX(3, 3 * r), BOX(1, 3));
		b = handmade_tensor(&t, T(.component = "blob", .name = "rng", .dtype = CKPT_U8,
					  .flags = TENSOR_BLOB, .media = CKPT_MEDIA_JSON,
					  .layout = TABLE_NONE, .rank_ = r + 1, .ndim = 1,
					  .shape = { 5 + r }));
		handmade_piece(&t, r, b, 1 << 20, 0, origin, BOX(5 + r));
		(void)handmade_add(p, r, PART_MAIN, 0, &t, NULL, 0);
	}
}

/* A byte is two values. */
static void make_f4(struct handmade *p, struct handmade *from)
{
	struct table t;
	uint32_t k;

	(void)from;
	handmade_begin(p, "vectors", 10, 1, 0);
	handmade_table(&t, "fsdp=1");
	k = handmade_layout(&t, "Shard(0)@fsdp");
	(void)handmade_tensor(&t, T(.component = "model", .name = "w", .dtype = CKPT_F4,
				    .role = CKPT_PARAM, .layout = k, .ndim = 2, .shape = { 4, 3 }));
	handmade_piece(&t, 0, 0, 0, 0, origin, BOX(4, 3));
	(void)handmade_add(p, 0, PART_MAIN, 0, &t, NULL, 0);
}

/* What a later version will write: a chunk of one byte that is repeated (codec 1), and bit 1 of
 * incompat, in the part and in MANIFEST. */
static void make_coded(struct handmade *p, struct handmade *from)
{
	(void)from;
	handmade_begin(p, "vectors", 10, 1, 0);
	plain_part(p, 0, 1, NULL, 0, false);
}

static void code(struct handmade *p)
{
	struct memdir_file *f = handmade_file(p, 0), *m = memdir_find(&p->d, NATIVE_MANIFEST);
	struct ck_chunk *c = memdir_section(f, CK_CHUNKS);

	c->codec = 1;
	c->stored_len = le32_of(1);
	((struct ck_head *)f->bytes)->incompat = le64_of(3);
	((struct ck_head *)m->bytes)->incompat = le64_of(3);
	memdir_sign(&p->d, f);
}

static const struct vector {
	const char *name;
	void (*make)(struct handmade *p, struct handmade *from);
	void (*change)(struct handmade *p);
	const char *refused; /* NULL: it opens */
} vectors[] = {
	{ "const", make_const, NULL, NULL },
	{ "linked", make_linked, NULL, NULL },
	{ "derived", make_derived, NULL, NULL },
	{ "explicit", make_explicit, NULL, NULL },
	{ "f4", make_f4, NULL, NULL },
	{ "coded", make_coded, code,
	  "written by a newer version: header at offset 0: it needs features 0x2" },
};

/* --- on disk --- */

static void run(const char *command)
{
	if (system(command) != 0)
		fail_msg("failed: %s", command);
}

static void archive_of(const struct vector *v, char ret[64])
{
	snprintf(ret, 64, "tests/vectors/v02/%s.tar.gz", v->name);
}

static void update(const struct vector *v, struct handmade *p)
{
	char archive[64], command[5000];
	struct disk d;

	disk_make(&d);
	for (uint32_t i = 0; i < p->d.n; i++) {
		int fd = openat(d.fd, p->d.file[i].name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

		assert_true(fd >= 0);
		assert_int_equal(write(fd, p->d.file[i].bytes, p->d.file[i].len), p->d.file[i].len);
		close(fd);
	}
	archive_of(v, archive);
	snprintf(command, sizeof command,
		 "mkdir -p tests/vectors/v02 && tar -C '%s' --sort=name --mtime=@0 --owner=0 "
		 "--group=0 --numeric-owner -cf - . | gzip -9n >%s",
		 d.path, archive);
	run(command);
	disk_free(&d);
}

static void compare(struct disk *d, struct handmade *p)
{
	for (uint32_t i = 0; i < p->d.n; i++) {
		const struct memdir_file *f = &p->d.file[i];
		uint8_t *have = malloc(f->len);
		int fd = openat(d->fd, f->name, O_RDONLY | O_CLOEXEC);
		struct stat st;

		assert_non_null(have);
		if (fd < 0)
			fail_msg("%s is missing", f->name);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_size, f->len);
		assert_int_equal(io_pread_all(&io_ops_posix, fd, have, f->len, 0), 0);
		if (memcmp(have, f->bytes, f->len) != 0)
			fail_msg(
				"%s is not what is made now: the format has changed, or its writer; "
				"CKPT_VECTORS_UPDATE=1 make unit-move_vectors, and say why",
				f->name);
		free(have);
		close(fd);
	}
}

static void on_fault(void *arg, const struct format_fault *f)
{
	(void)arg;
	fail_msg("%s: %s", f->file, f->text);
}

static void verified(struct disk *d)
{
	struct checkpoint *c = disk_open(d);
	struct move_files f;
	uint64_t bytes;

	assert_null(tiles_all_wrong(c));
	assert_ok_err(move_open(&io_ops_posix, d->fd, c, false, IO_INLINE, &f, &err), &err);
	assert_ok_err(move_verify(&f, NULL, NULL, on_fault, NULL, &bytes, &err), &err);
	assert_true(bytes > 0);
	move_close(&f);
	checkpoint_free(c);
}

static void refused(struct disk *d, const char *words)
{
	const struct source_dir dir =
		ROW(.ctx = d, .open = disk_source_open, .list = disk_source_list);
	struct checkpoint *c;
	int r = format_native.open(&(struct format_open){ .dir = &dir }, &c, &err);

	assert_null(c);
	if (r != -EPROTONOSUPPORT || !strstr(err.msg, words))
		fail_msg("%d: %s; should say \"%s\"", r, err.msg, words);
}

TEST(steps_of_each_kind_are_what_they_were_and_hold_what_they_should)
{
	for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
		const struct vector *v = &vectors[i];
		struct handmade p, from = { .n = 0 };
		char archive[64], command[5000];
		struct stat st;
		struct disk d;

		v->make(&p, &from);
		assert_ok_err(handmade_commit(&p, &err), &err);
		if (v->change)
			v->change(&p);
		if (getenv("CKPT_VECTORS_UPDATE"))
			update(v, &p);
		archive_of(v, archive);
		assert_int_equal(stat(archive, &st), 0);
		assert_true(st.st_size < 100 * 1000);
		disk_make(&d);
		snprintf(command, sizeof command, "tar -xzf %s -C '%s'", archive, d.path);
		run(command);
		compare(&d, &p);
		if (v->refused)
			refused(&d, v->refused);
		else
			verified(&d);
		disk_free(&d);
		handmade_free(&p);
		handmade_free(&from);
	}
}

UNIT();
