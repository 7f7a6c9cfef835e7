/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_newer.c - every field of every record of a checkpoint, set to what this program does
 * not know, or to what contradicts the rest, with all the sums above it right: a newer version
 * wrote it, or nobody could have; never is the one called the other, and neither is called damage.
 * And of one file damage is told before what is newer, and that before what makes no sense.
 */
#include "tests/lib/row.h"
#include "tests/lib/handmade.h"
#include "tests/lib/unit.h"

/* One rank with a part of each kind: 0 const, 1 averages, 2 main. */
enum { CONST_PART, AVERAGE_PART, MAIN_PART };
enum { IN_CONST = 1, IN_AVERAGE = 2, IN_MAIN = 4, IN_MANIFEST = 8, IN_PARTS = 7, IN_ALL = 15 };

static struct handmade good;
static struct memdir bad;

static void afresh(void)
{
	memdir_clear(&bad);
	for (uint32_t i = 0; i < good.d.n; i++)
		(void)memdir_add(&bad, good.d.file[i].name, good.d.file[i].bytes,
				 good.d.file[i].len);
}

static struct memdir_file *file_of(uint32_t i)
{
	return memdir_find(&bad, i < 3 ? good.part[i].name : NATIVE_MANIFEST);
}

static const uint64_t zero4[4];

static int setup(void **state)
{
	static const struct ckpt_note note = { "loss", 1.5 };
	static const struct checkpoint_attr attr = { "git", "cafe" };
	struct table_average average = ROW(.name = "fast", .schedule = "every=1", .product = 0.5,
					   .updates = 3, .last_step = 9, .since = 2);
	const uint32_t both[2] = { AVERAGE_PART, CONST_PART };
	struct ckpt_err err;
	struct table t;
	uint32_t l, k;

	(void)state;
	handmade_begin(&good, "demo", 12, 1, 0);
	handmade_table(&t, "dp=1");
	l = handmade_layout(&t, "Shard(0)@dp");
	k = handmade_tensor(&t,
			    &(struct handmade_tensor)ROW(.component = "model", .name = "c",
							 .dtype = CKPT_F32, .cls = CKPT_CONST,
							 .layout = l, .ndim = 1, .shape = { 4 }));
	handmade_piece(&t, 0, k, 0, 0, zero4, (uint64_t[]){ 4 });
	(void)handmade_add(&good, 0, PART_CONST, 0, &t, NULL, 0);
	handmade_table(&t, "dp=1");
	l = handmade_layout(&t, "Shard(0)@dp");
	assert_int_equal(table_add_average(&t, &average, NULL, NULL), 0);
	k = handmade_tensor(&t,
			    &(struct handmade_tensor)ROW(.component = "ema.fast", .name = "w",
							 .of = "model/w", .dtype = CKPT_F32,
							 .role = CKPT_AVERAGE, .layout = l,
							 .made = 1, .ndim = 2, .shape = { 8, 3 }));
	handmade_piece(&t, 0, k, 0, 0, zero4, (uint64_t[]){ 8, 3 });
	(void)handmade_add(&good, 0, PART_AVERAGE, 0, &t, NULL, 0);
	handmade_table(&t, "dp=1");
	l = handmade_layout(&t, "Shard(0)@dp");
	k = handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "model", .name = "w",
							     .dtype = CKPT_F32, .layout = l,
							     .ndim = 2, .shape = { 8, 3 }));
	handmade_piece(&t, 0, k, 0, 0, zero4, (uint64_t[]){ 8, 3 });
	k = handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "model", .name = "h",
							     .of = "model/w", .dtype = CKPT_BF16,
							     .cls = CKPT_DERIVED, .layout = l,
							     .ndim = 2, .shape = { 8, 3 }));
	handmade_piece(&t, 0, k, 2 << 20, PIECE_DERIVED, zero4, (uint64_t[]){ 8, 3 });
	(void)handmade_tensor(&t,
			      &(struct handmade_tensor)ROW(.component = "model", .name = "c",
							   .dtype = CKPT_F32, .cls = CKPT_CONST,
							   .layout = l, .ndim = 1, .shape = { 4 }));
	k = handmade_tensor(&t,
			    &(struct handmade_tensor)ROW(.component = "model", .name = "s",
							 .dtype = CKPT_F32, .layout = TABLE_NONE));
	handmade_piece(&t, 0, k, 128, 0, zero4, zero4);
	k = handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "blob", .name = "rng",
							     .dtype = CKPT_U8, .flags = TENSOR_BLOB,
							     .media = CKPT_MEDIA_JSON,
							     .layout = TABLE_NONE, .rank_ = 1,
							     .ndim = 1, .shape = { 5 }));
	handmade_piece(&t, 0, k, 1 << 20, 0, zero4, (uint64_t[]){ 5 });
	l = handmade_layout(&t, "Partial(sum, keep)@dp");
	k = handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "grad", .name = "g",
							     .dtype = CKPT_F32, .layout = l,
							     .ndim = 1, .shape = { 4 }));
	handmade_piece(&t, 0, k, 256, 0, zero4, (uint64_t[]){ 4 });
	(void)handmade_add(&good, 0, PART_MAIN, 0, &t, both, 2);
	good.line.note = &note;
	good.line.nnote = 1;
	good.line.attr = &attr;
	good.line.nattr = 1;
	assert_ok_err(handmade_commit(&good, &err), &err);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	memdir_clear(&bad);
	handmade_free(&good);
	return 0;
}

/* --- what comes of it --- */

struct told {
	uint32_t n;
	char kinds[200], text[600];
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *x = arg;

	x->n++;
	snprintf(x->kinds + strlen(x->kinds), sizeof x->kinds - strlen(x->kinds), "%s ", f->kind);
	snprintf(x->text, sizeof x->text, "%s", f->text);
}

/* N newer. O older. B: contradicts itself. D: damaged or another's. X: opened without what is
 * optional. =: opened. */
static void expect(char verdict, const char *what)
{
	const int code = verdict == 'N' || verdict == 'O' ? -EPROTONOSUPPORT
			 : verdict == 'B'		  ? -EPROTO
			 : verdict == 'D'		  ? -EBADMSG
							  : 0;
	struct source_dir dir = memdir_source(&bad);
	struct told told = { 0 };
	struct checkpoint *c;
	struct ckpt_err err = { 0 };
	int r = format_native.open(
		&(struct format_open){ .dir = &dir, .fault = on_fault, .fault_arg = &told }, &c,
		&err);

	if (r != code)
		fail_msg("%s: %d, should be %c (%d): %s", what, r, verdict, code, err.msg);
	/* Of what is damaged all is told, what is newer as well. */
	if (verdict != 'D' && (verdict == 'N') != !!strstr(err.msg, "written by a newer version"))
		fail_msg("%s: %s", what, err.msg);
	if (verdict == 'N' && (strstr(told.kinds, "malformed") || strstr(told.kinds, "mismatch") ||
			       strstr(told.kinds, "checksum") || strstr(told.kinds, "coverage")))
		fail_msg("%s is newer, but told as %s", what, told.kinds);
	if (verdict == 'O')
		assert_non_null(strstr(err.msg, "format 0.0"));
	if (r == 0) {
		assert_int_equal(c->newer, verdict == 'X');
		assert_true(c->nnote + c->nattr == (verdict == 'X' ? 1 : 2));
	}
	checkpoint_free(c);
}

/* --- every field --- */

/* In these files, of this record, the field becomes this. */
struct change {
	uint8_t in;
	char verdict; /* as expect; V: newer, so that nothing else of the file is looked at. 0: none */
	uint32_t record;
	uint64_t value;
};

struct field {
	const char *name;
	size_t off, bytes;
	struct change change[5]; /* at least one of each field */
};

#define F(s, f, ...)                                             \
	{                                                        \
		.name = #s "." #f, .off = offsetof(struct s, f), \
		.bytes = sizeof(((struct s *)0)->f), .change = { \
			__VA_ARGS__                              \
		}                                                \
	}
#define LAST UINT64_MAX
#define NONE UINT32_MAX

static const struct field head[] = {
	F(ck_head, magic, { IN_ALL, 'B', 0, 1 }),
	F(ck_head, major, { IN_ALL, 'V', 0, 1 }, { IN_ALL, 'V', 0, 0xffff }),
	F(ck_head, minor, { IN_ALL, '=', 0, 7 }, { IN_ALL, 'O', 0, 0 }, { IN_ALL, 'O', 0, 1 }),
	F(ck_head, kind, { IN_ALL, 'N', 0, 9 }, { IN_ALL, 'B', 0, CONTAINER_JOURNAL }),
	F(ck_head, incompat, { IN_ALL, 'V', 0, 3 }, { IN_ALL, 'V', 0, 5 },
	  { IN_ALL, 'V', 0, (UINT64_C(1) << 63) + 1 }, { IN_ALL, 'O', 0, 0 }),
	F(ck_head, ro_compat, { IN_MANIFEST, '=', 0, 1 }, { IN_PARTS, 'N', 0, 1 }),
	F(ck_head, compat, { IN_ALL, '=', 0, UINT64_MAX }),
	F(ck_head, uuid, { IN_ALL, 'D', 0, 1 }),
	F(ck_head, job, { IN_ALL, 'B', 0, 1 }),
	F(ck_head, step, { IN_ALL, 'B', 0, 13 }),
	F(ck_head, generation, { IN_ALL, 'B', 0, 4 }),
	F(ck_head, wall_ns, { IN_ALL, '=', 0, 4 }),
	F(ck_head, writer, { IN_MANIFEST, 'N', 0, 1 }, { IN_PARTS, 'B', 0, 1 }),
	F(ck_head, chunk_log2, { IN_ALL, 'N', 0, 21 }, { IN_ALL, 'N', 0, 0 }),
	F(ck_head, align_log2, { IN_ALL, 'N', 0, 13 }),
	F(ck_head, hash, { IN_ALL, 'V', 0, 2 }, { IN_ALL, 'V', 0, 0 }),
	F(ck_head, pad, { IN_ALL, 'N', 0, 1 }),
	F(ck_head, world, { IN_ALL, 'B', 0, 2 }),
	F(ck_head, part_kind, { IN_MANIFEST, 'N', 0, 1 }, { IN_PARTS, 'N', 0, 3 },
	  { IN_MAIN, 'B', 0, PART_CONST }, { IN_CONST, 'B', 0, PART_MAIN }),
	/* That of a main part is MANIFEST's; any other may be of another step. */
	F(ck_head, checkpoint, { IN_MANIFEST, 'N', 0, 1 }, { IN_MAIN, 'B', 0, 1 },
	  { IN_CONST | IN_AVERAGE, '=', 0, 1 }),
	F(ck_head, zero, { IN_ALL, 'N', 0, 1 }),
	F(ck_head, self, { IN_ALL, 'D', 0, 1 }),
};

static const struct field tail[] = {
	F(ck_tail, magic, { IN_ALL, 'B', 0, 1 }),
	F(ck_tail, file_bytes, { IN_ALL, 'D', 0, 8192 }),
	F(ck_tail, data_end, { IN_ALL, 'B', 0, 0 }, { IN_ALL, 'B', 0, UINT64_MAX }),
	F(ck_tail, nsect, { IN_ALL, 'B', 0, 65 }),
	F(ck_tail, zero, { IN_ALL, 'N', 0, 1 }),
	F(ck_tail, uuid, { IN_ALL, 'D', 0, 1 }),
	F(ck_tail, sect, { 0, '=', 0, 0 }), /* below */
	F(ck_tail, pad, { IN_ALL, 'N', 0, 1 }),
	F(ck_tail, self, { IN_ALL, 'D', 0, 1 }),
};

static const struct field sect[] = {
	F(ck_sect, kind, { IN_ALL, 'N', 0, 60 }, { IN_ALL, 'B', 0, 0 },
	  { IN_ALL, 'B', 0, CK_TENSORS }),
	F(ck_sect, flags, { IN_ALL, '=', 0, 1 }, { IN_ALL, 'N', 0, 2 },
	  { IN_ALL, 'N', 0, 0x80000001 }),
	F(ck_sect, rec_bytes, { IN_ALL, 'B', 0, 3 }, { IN_ALL, 'N', 0, 0 }),
	F(ck_sect, zero, { IN_ALL, 'N', 0, 1 }),
	F(ck_sect, off, { IN_ALL, 'B', 0, 1 }, { IN_ALL, 'B', 0, 0 }),
	F(ck_sect, len, { IN_ALL, 'B', 0, UINT64_MAX }),
	F(ck_sect, count, { IN_ALL, 'B', 0, UINT64_MAX }),
	F(ck_sect, hash, { IN_ALL, 'D', 0, 1 }),
};

static const struct field mesh[] = {
	F(ck_mesh, ndim, { IN_ALL, 'B', 0, 17 }),
	F(ck_mesh, nrank, { IN_ALL, 'B', 0, 5 }, { IN_ALL, 'B', 0, NONE }),
	F(ck_mesh, data_at, { IN_ALL, 'B', 0, 1 }),
	F(ck_mesh, rank_is_iota, { IN_ALL, 'N', 0, 2 }, { IN_ALL, 'B', 0, 0 }),
};

static const struct field layout[] = {
	F(ck_layout, mesh, { IN_ALL, 'B', 0, 7 }),
	F(ck_layout, mode, { IN_ALL, 'N', 0, 3 }, { IN_ALL, 'N', 0, 4 }, { IN_ALL, 'N', 0, 9 }),
	F(ck_layout, nplace, { IN_ALL, 'B', 0, 17 }),
	F(ck_layout, place_at, { IN_ALL, 'B', 0, 7 }),
};

/* 0 is a shard; 1, where it is, pending. */
static const struct field placement[] = {
	F(ck_placement, how, { IN_ALL, 'N', 0, 4 }, { IN_ALL, 'N', 0, 255 }),
	F(ck_placement, reduce, { IN_ALL, 'N', 0, 1 }, { IN_MAIN | IN_MANIFEST, 'N', 1, 5 }),
	F(ck_placement, mesh_dim, { IN_ALL, 'B', 0, 9 }),
	F(ck_placement, tensor_dim, { IN_ALL, 'B', 0, 9 }),
	F(ck_placement, flags, { IN_ALL, 'N', 0, 1 }, { IN_MAIN | IN_MANIFEST, 'N', 1, 3 }),
	F(ck_placement, split_factor, { IN_ALL, 'B', 0, 3 }),
};

/* In main part and MANIFEST: 0 w, 1 h (derived), 2 c, 3 s (0-d), 4 rng (a blob), 5 g (pending);
 * MANIFEST: 6 made. The other parts have one. */
static const struct field tensor[] = {
	F(ck_tensor, component, { IN_ALL, 'B', 0, NONE }),
	F(ck_tensor, name, { IN_ALL, 'B', 0, NONE }),
	F(ck_tensor, of, { IN_ALL, 'B', 0, NONE }, { IN_MAIN | IN_MANIFEST, 'B', 1, 0 }),
	F(ck_tensor, layout, { IN_ALL, 'B', 0, 999 }),
	F(ck_tensor, shape_at, { IN_ALL, 'B', 0, NONE }, { IN_MAIN | IN_MANIFEST, 'N', 3, 1 }),
	F(ck_tensor, avg, { IN_ALL, 'B', 0, 7 }, { IN_AVERAGE, 'B', 0, NONE },
	  { IN_MANIFEST, 'B', 0, 0 }, { IN_MANIFEST, 'B', 4, 0 }),
	F(ck_tensor, dtype, { IN_ALL, 'N', 0, 99 }, { IN_ALL, 'N', 0, 0 }),
	F(ck_tensor, elem_bits, { IN_ALL, 'B', 0, 16 }),
	F(ck_tensor, ndim, { IN_ALL, 'B', 0, 17 }),
	F(ck_tensor, role, { IN_ALL, 'N', 0, 8 }, { IN_ALL, 'B', 0, CKPT_COUNTER }),
	F(ck_tensor, cls, { IN_ALL, 'N', 0, 5 }, { IN_ALL, 'B', 0, CKPT_SINK }),
	F(ck_tensor, flags, { IN_ALL, 'N', 0, 4 }, { IN_ALL, 'N', 0, 0x82 },
	  { IN_PARTS, 'B', 0, CK_TENSOR_BLOB }, { IN_PARTS, 'B', 0, CK_TENSOR_FP }),
	F(ck_tensor, numel, { IN_ALL, 'B', 0, 1 }),
	F(ck_tensor, fp, { IN_MANIFEST, 'B', 0, 1 }, { IN_PARTS, 'N', 0, 1 }),
	F(ck_tensor, rank, { IN_ALL, 'N', 0, 3 }, { IN_MAIN | IN_MANIFEST, 'B', 4, 1 }),
	F(ck_tensor, media, { IN_ALL, 'N', 0, 1 }, { IN_MAIN | IN_MANIFEST, 'N', 4, 6 },
	  { IN_MAIN | IN_MANIFEST, 'B', 4, CKPT_MEDIA_TEXT }),
	F(ck_tensor, zero, { IN_ALL, 'N', 0, 1 }),
};

static const struct field piece[] = {
	F(ck_piece, tensor, { IN_PARTS, 'B', 0, 99 }),
	F(ck_piece, indexset, { IN_PARTS, 'B', 0, 1 }),
	F(ck_piece, rank, { IN_PARTS, 'B', 0, 7 }),
	F(ck_piece, stride_at, { IN_PARTS, 'B', 0, NONE - 1 }),
	F(ck_piece, raw_off, { IN_PARTS, 'B', 0, UINT64_MAX }),
	F(ck_piece, raw_len, { IN_PARTS, 'B', 0, 1 }),
	F(ck_piece, fp, { IN_PARTS, 'B', 0, 12345 }),
	F(ck_piece, flags, { IN_PARTS, 'N', 0, 9 }, { IN_PARTS, 'N', 0, 0 },
	  { IN_PARTS, 'B', 0, CK_PIECE_FP | CK_PIECE_TRUSTED },
	  { IN_PARTS, 'B', 0, CK_PIECE_FP | CK_PIECE_DERIVED }, { IN_MAIN, 'B', 1, CK_PIECE_FP }),
	F(ck_piece, place, { IN_PARTS, 'N', 0, 1 }),
};

/* Of the main part 2 is a hole. */
static const struct field chunk[] = {
	F(ck_chunk, off, { IN_PARTS, 'B', 0, 4097 }, { IN_MAIN, 'B', 2, 4096 }),
	F(ck_chunk, stored_len, { IN_PARTS, 'B', 0, 5 }, { IN_MAIN, 'B', 2, 1 }),
	F(ck_chunk, raw_len, { IN_PARTS, 'B', 0, 5 }, { IN_PARTS, 'B', 0, 1 << 21 },
	  { IN_MAIN, 'B', 2, 1 }),
	F(ck_chunk, codec, { IN_PARTS, 'N', 0, 1 }, { IN_PARTS, 'N', 0, 4 },
	  { IN_MAIN, 'B', 2, 1 }),
	F(ck_chunk, codec_ver, { IN_PARTS, 'N', 0, 1 }, { IN_MAIN, 'B', 2, 1 }),
	F(ck_chunk, elem_bytes, { IN_PARTS, 'B', 0, 8 }, { IN_MAIN, 'B', 2, 2 }),
	F(ck_chunk, flags, { IN_PARTS, 'N', 0, 1 }, { IN_MAIN, 'B', 2, 1 }),
	F(ck_chunk, source, { IN_PARTS, 'N', 0, 0 }, { IN_MAIN, 'N', 2, 0 }),
	F(ck_chunk, base, { IN_PARTS, 'N', 0, 0 }, { IN_MAIN, 'N', 2, 0 }),
	F(ck_chunk, stored_crc, { IN_PARTS, 'N', 0, 1 }, { IN_MAIN, 'B', 2, 1 }),
	F(ck_chunk, raw_hash, { IN_PARTS, '=', 0, 1 }, { IN_MAIN, 'B', 2, 1 }),
};

/* PARTS of MANIFEST: 0 main, 1 const, 2 averages. SOURCES of the main part: 0 const, 1 averages. */
static const struct field part[] = {
	F(ck_part, uuid, { IN_MAIN | IN_MANIFEST, 'B', 0, 1 }),
	F(ck_part, root, { IN_MANIFEST, 'D', 0, 1 }, { IN_MAIN, 'B', 0, 1 }),
	F(ck_part, file_bytes, { IN_MANIFEST, 'D', 0, 8192 }, { IN_MAIN, 'B', 0, 8192 },
	  { IN_MAIN | IN_MANIFEST, 'B', 0, UINT64_MAX }),
	F(ck_part, raw_bytes, { IN_MAIN | IN_MANIFEST, 'B', 0, 17 },
	  { IN_MAIN | IN_MANIFEST, 'B', 0, UINT64_MAX }),
	F(ck_part, step, { IN_MAIN | IN_MANIFEST, 'B', 0, 11 }),
	F(ck_part, generation, { IN_MAIN | IN_MANIFEST, 'B', 0, 2 }),
	F(ck_part, name, { IN_MAIN | IN_MANIFEST, 'B', 0, NONE }),
	F(ck_part, writer, { IN_MAIN | IN_MANIFEST, 'B', 0, 9 }),
	F(ck_part, kind, { IN_MAIN | IN_MANIFEST, 'N', 0, 3 }, { IN_MANIFEST, 'B', 0, PART_CONST },
	  { IN_MAIN, 'B', 0, PART_MAIN }),
	F(ck_part, group, { IN_MAIN | IN_MANIFEST, 'B', 0, 1 }),
	F(ck_part, zero, { IN_MAIN | IN_MANIFEST, 'N', 0, 1 }),
};

static const struct field lineage[] = {
	F(ck_lineage, seq, { IN_MANIFEST, '=', 0, 1 }),
	F(ck_lineage, parent_step, { IN_MANIFEST, '=', 0, 11 }),
	F(ck_lineage, generation, { IN_MANIFEST, 'B', 0, 4 }),
	F(ck_lineage, parent_id, { IN_MANIFEST, '=', 0, 1 }),
	F(ck_lineage, world, { IN_MANIFEST, 'B', 0, 2 }),
	F(ck_lineage, tool, { IN_MANIFEST, 'B', 0, NONE }),
	F(ck_lineage, job, { IN_MANIFEST, 'B', 0, NONE }, { IN_MANIFEST, 'B', 0, 0 }),
	F(ck_lineage, zero, { IN_MANIFEST, 'N', 0, 1 }),
};

static const struct field note[] = {
	F(ck_note, key, { IN_MANIFEST, 'X', 0, NONE }),
	F(ck_note, zero, { IN_MANIFEST, 'X', 0, 1 }),
	F(ck_note, value, { IN_MANIFEST, '=', 0, 1 }),
};

static const struct field attr[] = {
	F(ck_attr, key, { IN_MANIFEST, 'X', 0, NONE }, { IN_MANIFEST, 'X', 0, 0 }),
	F(ck_attr, value, { IN_MANIFEST, 'X', 0, NONE }, { IN_MANIFEST, '=', 0, 0 }),
};

static const struct field average[] = {
	F(ck_average, name, { IN_AVERAGE | IN_MANIFEST, 'B', 0, NONE },
	  { IN_AVERAGE | IN_MANIFEST, 'B', 0, 0 }),
	F(ck_average, schedule, { IN_AVERAGE | IN_MANIFEST, 'B', 0, NONE }),
	F(ck_average, product, { IN_AVERAGE | IN_MANIFEST, '=', 0, 1 }),
	F(ck_average, updates, { IN_AVERAGE | IN_MANIFEST, '=', 0, 1 }),
	F(ck_average, last_step, { IN_AVERAGE | IN_MANIFEST, '=', 0, 1 }),
	F(ck_average, since, { IN_AVERAGE | IN_MANIFEST, '=', 0, 1 }),
	F(ck_average, history, { IN_AVERAGE | IN_MANIFEST, '=', 0, 1 }),
	F(ck_average, flags, { IN_AVERAGE | IN_MANIFEST, 'N', 0, 8 }),
	F(ck_average, rule, { IN_AVERAGE | IN_MANIFEST, 'B', 0, 1 }),
};

static const struct of {
	const char *name;
	size_t bytes;
	uint32_t kind[2]; /* sections; the block's: 0 */
	const struct field *field;
	size_t n;
} all[] = {
	{ "ck_head", sizeof(struct ck_head), { 0 }, head, ARRAY_LEN(head) },
	{ "ck_tail", sizeof(struct ck_tail), { 0 }, tail, ARRAY_LEN(tail) },
	{ "ck_sect", sizeof(struct ck_sect), { 0 }, sect, ARRAY_LEN(sect) },
	{ "ck_mesh", sizeof(struct ck_mesh), { CK_MESHES }, mesh, ARRAY_LEN(mesh) },
	{ "ck_layout", sizeof(struct ck_layout), { CK_LAYOUTS }, layout, ARRAY_LEN(layout) },
	{ "ck_placement",
	  sizeof(struct ck_placement),
	  { CK_PLACEMENTS },
	  placement,
	  ARRAY_LEN(placement) },
	{ "ck_tensor", sizeof(struct ck_tensor), { CK_TENSORS }, tensor, ARRAY_LEN(tensor) },
	{ "ck_piece", sizeof(struct ck_piece), { CK_PIECES }, piece, ARRAY_LEN(piece) },
	{ "ck_chunk", sizeof(struct ck_chunk), { CK_CHUNKS }, chunk, ARRAY_LEN(chunk) },
	{ "ck_part", sizeof(struct ck_part), { CK_PARTS, CK_SOURCES }, part, ARRAY_LEN(part) },
	{ "ck_lineage", sizeof(struct ck_lineage), { CK_LINEAGE }, lineage, ARRAY_LEN(lineage) },
	{ "ck_note", sizeof(struct ck_note), { CK_NOTES }, note, ARRAY_LEN(note) },
	{ "ck_attr", sizeof(struct ck_attr), { CK_ATTRS }, attr, ARRAY_LEN(attr) },
	{ "ck_average", sizeof(struct ck_average), { CK_AVERAGES }, average, ARRAY_LEN(average) },
};

/* Where the records of this struct begin in a file; NULL: it has none. */
static uint8_t *records_at(struct memdir_file *f, const struct of *s)
{
	uint8_t *p = NULL, *t = f->bytes + f->len - CONTAINER_BLOCK;

	if (!strcmp(s->name, "ck_head"))
		return f->bytes;
	if (!strcmp(s->name, "ck_tail"))
		return t;
	if (!strcmp(s->name, "ck_sect"))
		return t + offsetof(struct ck_tail, sect);
	for (int i = 0; i < 2 && !p; i++)
		if (s->kind[i])
			p = memdir_section(f, s->kind[i]);
	return p;
}

/* byte: of a field that is no number, the first or the last. */
static void change_make(uint8_t *p, const struct field *x, const struct change *c, int byte)
{
	if (x->bytes > 8) {
		p[byte ? x->bytes - 1 : 0] ^= (uint8_t)c->value;
		return;
	}
	for (size_t i = 0; i < x->bytes; i++)
		p[i] = (uint8_t)(c->value >> 8 * i);
}

/* Only then are they wrong. */
static bool is_sum(const struct field *x)
{
	return strstr(x->name, ".self") || strstr(x->name, ".hash");
}

enum { ALONE, AND_MALFORMED, AND_DAMAGED };

/* What a scan makes of MANIFEST, which reads only some of its sections. */
static int summary_code(void)
{
	struct source m = memdir_open(&bad, NATIVE_MANIFEST);
	struct checkpoint *c = NULL;
	struct ckpt_err err;
	int r = format_native.root->summary(&m, &c, &err);

	checkpoint_free(c);
	return r;
}

static void try(const struct of *s, const struct field *x, const struct change *c, uint32_t file,
		int byte, int with)
{
	struct memdir_file *f;
	uint8_t *p;
	char what[128], verdict = c->verdict == 'V' ? 'N' : c->verdict;

	afresh();
	f = file_of(file);
	p = records_at(f, s);
	if (!p)
		fail_msg("file %u has no %s", file, s->name);
	p += c->record * s->bytes + x->off;
	if (with == AND_MALFORMED)
		((struct ck_mesh *)memdir_section(f, CK_MESHES))->ndim = le32_of(17);
	if (!is_sum(x) || !strcmp(x->name, "ck_head.hash"))
		change_make(p, x, c, byte);
	memdir_sign(&bad, f);
	if (is_sum(x) && strcmp(x->name, "ck_head.hash") != 0)
		change_make(p, x, c, byte);
	if (with == AND_DAMAGED) {
		*(uint8_t *)memdir_section(f, CK_SHAPES) ^= 1;
		if (c->verdict != 'V' && c->verdict != 'O')
			verdict = 'D';
	}
	snprintf(what, sizeof what, "%s[%u] = %#llx in file %u%s", x->name, c->record,
		 (unsigned long long)c->value, file,
		 with == ALONE	       ? ""
		 : with == AND_DAMAGED ? ", which is damaged, too"
				       : ", which is malformed, too");
	expect(verdict, what);
	if (with == AND_MALFORMED && file == 3 && summary_code() != -EPROTONOSUPPORT)
		fail_msg("%s: a scan says %d", what, summary_code());
}

/* A field that comes later needs a row here: the rows cover all the bytes of their records. */
TEST(every_byte_of_every_record_is_a_fields_and_every_field_is_tried)
{
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		size_t at = 0;

		for (size_t k = 0; k < all[i].n; k++) {
			const struct field *x = &all[i].field[k];

			if (x->off != at)
				fail_msg("%s: %zu bytes before it are in no row", x->name,
					 x->off - at);
			if (!x->change[0].verdict)
				fail_msg("%s is not tried", x->name);
			at += x->bytes;
		}
		if (at != all[i].bytes)
			fail_msg("%s: what begins at %zu is in no row", all[i].name, at);
	}
	afresh();
	expect('=', "nothing");
}

static void try_all(int with)
{
	uint32_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		for (size_t k = 0; k < all[i].n; k++) {
			const struct field *x = &all[i].field[k];

			for (const struct change *c = x->change;
			     c < x->change + ARRAY_LEN(x->change) && c->verdict; c++)
				for (uint32_t file = 0; file < 4; file++) {
					bool is_new = c->verdict == 'N' || c->verdict == 'V';

					if (!(c->in >> file & 1) || (with != ALONE && !is_new))
						continue;
					if (with != ALONE && !strcmp(all[i].name, "ck_sect"))
						continue; /* the section is what is looked for */
					for (int byte = 0; byte < (x->bytes > 8 ? 2 : 1); byte++) {
						try(&all[i], x, c, file, byte, with);
						n++;
					}
				}
		}
	assert_true(n > 100);
}

TEST(what_nobody_knows_is_newer_and_what_contradicts_itself_is_malformed)
{
	try_all(ALONE);
}

TEST(newer_is_told_before_malformed)
{
	try_all(AND_MALFORMED);
}

/* Of sections that it does not read while all is well, the hashes count. */
TEST(a_scan_that_finds_a_contradiction_looks_at_all_of_manifest)
{
	struct ck_mesh *m;
	struct ck_tensor *x;

	afresh();
	m = memdir_section(file_of(3), CK_MESHES);
	x = memdir_section(file_of(3), CK_TENSORS);
	m->ndim = le32_of(17);
	memdir_sign(&bad, file_of(3));
	assert_int_equal(summary_code(), -EPROTO);
	x->dtype = le16_of(23);
	assert_int_equal(summary_code(), -EBADMSG);
	memdir_sign(&bad, file_of(3));
	assert_int_equal(summary_code(), -EPROTONOSUPPORT);
}

TEST(damage_is_told_before_newer)
{
	try_all(AND_DAMAGED);
}

/* --- sections --- */

static struct ck_tail *tail_of(struct memdir_file *f)
{
	return (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);
}

static bool is_optional(uint32_t kind)
{
	return kind == CK_NOTES || kind == CK_ATTRS;
}

/* As one record, or as records of one byte: newer, unless it can do without. */
TEST(sections_with_records_of_another_size_are_newer)
{
	uint32_t n = 0;

	for (uint32_t file = 0; file < 4; file++)
		for (uint32_t i = 0;; i++) {
			char what[64];
			struct memdir_file *f;
			struct ck_sect *s;
			uint32_t kind, bytes;

			afresh();
			f = file_of(file);
			if (i == le32_get(tail_of(f)->nsect))
				break;
			s = &tail_of(f)->sect[i];
			kind = le32_get(s->kind);
			bytes = le32_get(s->rec_bytes) == 1 ? (uint32_t)le64_get(s->len) : 1;
			if (!le64_get(s->len))
				continue;
			s->rec_bytes = le32_of(bytes);
			s->count = le64_of(le64_get(s->len) / bytes);
			memdir_sign(&bad, f);
			snprintf(what, sizeof what, "section %u of file %u", kind, file);
			expect(is_optional(kind) ? 'X' : 'N', what);
			n++;
		}
	assert_true(n > 25);
}

/* One more, of some bytes, before the trailer. */
static void section_add(struct memdir_file *f, uint32_t kind, uint32_t flags)
{
	uint64_t len = f->len;
	struct ck_tail t = *tail_of(f);
	struct ck_part *rec;

	f->bytes = realloc(f->bytes, len + CONTAINER_BLOCK);
	assert_non_null(f->bytes);
	memset(f->bytes + len - CONTAINER_BLOCK, 0, CONTAINER_BLOCK);
	memcpy(f->bytes + len - CONTAINER_BLOCK, "abcdefgh", 8);
	t.sect[le32_get(t.nsect)] =
		(struct ck_sect)ROW(.kind = le32_of(kind), .flags = le32_of(flags),
				    .rec_bytes = le32_of(1), .off = le64_of(len - CONTAINER_BLOCK),
				    .len = le64_of(8), .count = le64_of(8));
	t.nsect = le32_of(le32_get(t.nsect) + 1);
	f->len += CONTAINER_BLOCK;
	t.file_bytes = le64_of(f->len);
	memcpy(f->bytes + len, &t, sizeof t);
	for (uint32_t i = 0; i < 4; i++) {
		struct memdir_file *m = file_of(i);
		const char *string = memdir_section(m, CK_STRINGS);

		rec = memdir_section(m, i == 3 ? CK_PARTS : CK_SOURCES);
		for (uint32_t k = 0; rec && k < (i == 3 ? 3 : 2); k++)
			if (!strcmp(string + le32_get(rec[k].name), f->name))
				rec[k].file_bytes = le64_of(f->len);
	}
	memdir_sign(&bad, f);
}

TEST(a_section_that_does_not_belong_into_its_file_is_newer_unless_it_is_optional)
{
	static const struct {
		uint8_t in;
		char verdict;
		uint32_t kind, flags;
	} add[] = {
		{ IN_ALL, '=', 60, CK_SECTION_OPTIONAL },
		{ IN_ALL, '=', 32, CK_SECTION_OPTIONAL },
		{ IN_ALL, 'N', 60, CK_SECTION_OPTIONAL | 2 },
		{ IN_ALL, 'N', 60, 0 },
		{ IN_ALL, 'N', 19, 0 },
		{ IN_ALL, 'N', UINT32_MAX, 0 },
		/* Of this text's own kinds the bit says nothing. */
		{ IN_ALL, 'N', CK_PLACES, CK_SECTION_OPTIONAL },
		{ IN_PARTS, 'N', CK_PARTS, CK_SECTION_OPTIONAL },
		{ IN_PARTS, 'N', CK_LINEAGE, 0 },
		{ IN_CONST | IN_AVERAGE | IN_MANIFEST, 'N', CK_SOURCES, CK_SECTION_OPTIONAL },
		{ IN_CONST | IN_MAIN, 'N', CK_AVERAGES, CK_SECTION_OPTIONAL },
		{ IN_MANIFEST, 'N', CK_PIECES, 0 },
		{ IN_MANIFEST, 'N', CK_CHUNKS, CK_SECTION_OPTIONAL },
		{ IN_PARTS, '=', CK_NOTES, 0 },
		{ IN_PARTS, '=', CK_ATTRS, 0 },
		{ IN_MANIFEST, 'B', CK_NOTES, 0 }, /* the second one */
	};

	for (size_t i = 0; i < ARRAY_LEN(add); i++)
		for (uint32_t file = 0; file < 4; file++) {
			char what[64];

			if (!(add[i].in >> file & 1))
				continue;
			snprintf(what, sizeof what, "section %u, flags %u, in file %u", add[i].kind,
				 add[i].flags, file);
			afresh();
			section_add(file_of(file), add[i].kind, add[i].flags);
			expect(add[i].verdict, what);
			/* Known or not, its hash is right. */
			file_of(file)->bytes[file_of(file)->len - 2 * CONTAINER_BLOCK] ^= 1;
			if (add[i].verdict != 'B')
				expect('D', what);
		}
}

/* NOTES and ATTRS are optional also where the bit says otherwise. */
TEST(an_optional_section_never_keeps_anybody_from_restoring)
{
	for (uint32_t kind = CK_NOTES; kind <= CK_ATTRS; kind += CK_ATTRS - CK_NOTES)
		for (int other_size = 0; other_size < 2; other_size++) {
			struct ck_tail *t;

			afresh();
			t = tail_of(file_of(3));
			for (uint32_t i = 0; i < le32_get(t->nsect); i++) {
				struct ck_sect *s = &t->sect[i];

				if (le32_get(s->kind) != kind)
					continue;
				s->flags = le32_of(0);
				if (other_size) {
					s->rec_bytes = le32_of(le32_get(s->rec_bytes) / 2);
					s->count = le64_of(2);
				}
			}
			memdir_sign(&bad, file_of(3));
			expect(other_size ? 'X' : '=', "without the bit");
		}
}

/* What MANIFEST alone says: the summary judges as the whole does. */
TEST(a_summary_has_the_verdict_of_the_whole)
{
	static const struct {
		uint32_t kind;
		size_t off;
		int code;
	} of[] = {
		{ CK_MESHES, offsetof(struct ck_mesh, rank_is_iota), -EPROTONOSUPPORT },
		{ CK_PARTS, offsetof(struct ck_part, zero) + 15, -EPROTONOSUPPORT },
		{ CK_LINEAGE, offsetof(struct ck_lineage, zero), -EPROTONOSUPPORT },
		{ CK_LINEAGE, offsetof(struct ck_lineage, generation), -EPROTO },
		{ CK_NOTES, offsetof(struct ck_note, zero), 0 },
		{ CK_ATTRS, offsetof(struct ck_attr, key) + 3, 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		struct checkpoint *c;
		struct ckpt_err err;
		struct source m;

		afresh();
		((uint8_t *)memdir_section(file_of(3), of[i].kind))[of[i].off] = 77;
		memdir_sign(&bad, file_of(3));
		m = memdir_open(&bad, NATIVE_MANIFEST);
		if (format_native.root->summary(&m, &c, &err) != of[i].code)
			fail_msg("%zu: %d: %s", i, err.code, err.msg);
		if (c)
			assert_true(c->newer && c->nnote + c->nattr == 1);
		checkpoint_free(c);
	}
}

UNIT(.group_setup = setup, .group_teardown = teardown);
