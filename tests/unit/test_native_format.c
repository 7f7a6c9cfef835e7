/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_format.c - docs/FORMAT.md tells the truth: its offsets, numbers and rules are those
 * of the code, and its worked example is what the code writes. CKPT_FORMAT_UPDATE=1 writes the
 * example anew. Runs in the root of the repository, as make does.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/handmade.h"
#include "ckpt/base/dtype.h"
#include "tests/lib/unit.h"
#include <ctype.h>

#define DOC "docs/FORMAT.md"
#define FILE_MAX (1 << 20)

static char doc[FILE_MAX];

static void slurp(const char *path, char *buf)
{
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		fail_msg("%s cannot be read: run this in the root of the repository", path);
	n = fread(buf, 1, FILE_MAX - 1, f);
	buf[n] = 0;
	fclose(f);
}

static int load(void **state)
{
	(void)state;
	slurp(DOC, doc);
	return 0;
}

/* --- rows of tables: "| 8 | 2 | `major` | ..." --- */

/* The n-th row of the first table of numbers behind a heading; false behind the last one. */
static bool row(const char *heading, uint32_t n, char cell[4][64])
{
	char want[64];
	const char *at;

	snprintf(want, sizeof want, "\n%s", heading);
	at = strstr(doc, want);
	if (!at)
		fail_msg("%s has no heading %s", DOC, heading);
	at = strstr(at, "\n|") + 1;
	for (uint32_t skip = 0; skip < n + 2; skip++) { /* its head, and the line below */
		at = strchr(at, '\n') + 1;
		if (*at != '|')
			return false;
	}
	memset(cell, 0, 4 * sizeof *cell);
	for (int c = 0; c < 4 && *at == '|'; c++) {
		size_t len = strcspn(at + 1, "|\n"), from = 1, to = len;

		while (from <= to && strchr(" `", at[from]))
			from++;
		while (to >= from && strchr(" `", at[to]))
			to--;
		snprintf(cell[c], sizeof cell[c], "%.*s", (int)(to + 1 - from), at + from);
		at += 1 + len;
	}
	return true;
}

struct field {
	const char *name;
	size_t off, bytes;
};

static void check_record(const char *name, size_t bytes, const struct field *field, size_t n)
{
	char heading[64], cell[4][64], want[64];

	snprintf(heading, sizeof heading, "### %s, %zu bytes", name, bytes);
	for (uint32_t i = 0; i < n; i++) {
		if (!row(heading, i, cell))
			fail_msg("%s: %s is missing", name, field[i].name);
		snprintf(want, sizeof want, "%zu %zu %s", field[i].off, field[i].bytes,
			 field[i].name);
		char have[64 * 3 + 3];

		snprintf(have, sizeof have, "%s %s %s", cell[0], cell[1], cell[2]);
		assert_string_equal(have, want);
		/* Nothing is left out between two fields, and nothing behind the last. */
		assert_int_equal(field[i].off + field[i].bytes,
				 i + 1 < n ? field[i + 1].off : bytes);
	}
	assert_false(row(heading, (uint32_t)n, cell));
}

#define F(s, f)                                                       \
	{                                                             \
#f, offsetof(struct s, f), sizeof(((struct s *)0)->f) \
	}
#define RECORD(s, ...)                                                         \
	do {                                                                   \
		const struct field field_[] = { __VA_ARGS__ };                 \
		check_record(#s, sizeof(struct s), field_, ARRAY_LEN(field_)); \
	} while (0)

TEST(every_record_has_the_offsets_that_are_written_down)
{
	RECORD(ck_head, F(ck_head, magic), F(ck_head, major), F(ck_head, minor), F(ck_head, kind),
	       F(ck_head, incompat), F(ck_head, ro_compat), F(ck_head, compat), F(ck_head, uuid),
	       F(ck_head, job), F(ck_head, step), F(ck_head, generation), F(ck_head, wall_ns),
	       F(ck_head, writer), F(ck_head, chunk_log2), F(ck_head, align_log2), F(ck_head, hash),
	       F(ck_head, pad), F(ck_head, world), F(ck_head, part_kind), F(ck_head, checkpoint),
	       F(ck_head, zero), F(ck_head, self));
	RECORD(ck_tail, F(ck_tail, magic), F(ck_tail, file_bytes), F(ck_tail, data_end),
	       F(ck_tail, nsect), F(ck_tail, zero), F(ck_tail, uuid), F(ck_tail, sect),
	       F(ck_tail, pad), F(ck_tail, self));
	RECORD(ck_sect, F(ck_sect, kind), F(ck_sect, flags), F(ck_sect, rec_bytes),
	       F(ck_sect, zero), F(ck_sect, off), F(ck_sect, len), F(ck_sect, count),
	       F(ck_sect, hash));
	RECORD(ck_mesh, F(ck_mesh, ndim), F(ck_mesh, nrank), F(ck_mesh, data_at),
	       F(ck_mesh, rank_is_iota));
	RECORD(ck_layout, F(ck_layout, mesh), F(ck_layout, mode), F(ck_layout, nplace),
	       F(ck_layout, place_at));
	RECORD(ck_placement, F(ck_placement, how), F(ck_placement, reduce),
	       F(ck_placement, mesh_dim), F(ck_placement, tensor_dim), F(ck_placement, flags),
	       F(ck_placement, split_factor));
	RECORD(ck_tensor, F(ck_tensor, component), F(ck_tensor, name), F(ck_tensor, of),
	       F(ck_tensor, layout), F(ck_tensor, shape_at), F(ck_tensor, avg), F(ck_tensor, dtype),
	       F(ck_tensor, elem_bits), F(ck_tensor, ndim), F(ck_tensor, role), F(ck_tensor, cls),
	       F(ck_tensor, flags), F(ck_tensor, numel), F(ck_tensor, fp), F(ck_tensor, rank),
	       F(ck_tensor, media), F(ck_tensor, zero));
	RECORD(ck_piece, F(ck_piece, tensor), F(ck_piece, indexset), F(ck_piece, rank),
	       F(ck_piece, stride_at), F(ck_piece, raw_off), F(ck_piece, raw_len), F(ck_piece, fp),
	       F(ck_piece, flags), F(ck_piece, place));
	RECORD(ck_place, F(ck_place, name), F(ck_place, rank), F(ck_place, bytes));
	RECORD(ck_chunk, F(ck_chunk, off), F(ck_chunk, stored_len), F(ck_chunk, raw_len),
	       F(ck_chunk, codec), F(ck_chunk, codec_ver), F(ck_chunk, elem_bytes),
	       F(ck_chunk, flags), F(ck_chunk, source), F(ck_chunk, base), F(ck_chunk, stored_crc),
	       F(ck_chunk, raw_hash));
	RECORD(ck_part, F(ck_part, uuid), F(ck_part, root), F(ck_part, file_bytes),
	       F(ck_part, raw_bytes), F(ck_part, step), F(ck_part, generation), F(ck_part, name),
	       F(ck_part, writer), F(ck_part, kind), F(ck_part, group), F(ck_part, zero));
	RECORD(ck_lineage, F(ck_lineage, seq), F(ck_lineage, parent_step),
	       F(ck_lineage, generation), F(ck_lineage, parent_id), F(ck_lineage, world),
	       F(ck_lineage, tool), F(ck_lineage, job), F(ck_lineage, zero));
	RECORD(ck_note, F(ck_note, key), F(ck_note, zero), F(ck_note, value));
	RECORD(ck_attr, F(ck_attr, key), F(ck_attr, value));
	RECORD(ck_average, F(ck_average, name), F(ck_average, schedule), F(ck_average, product),
	       F(ck_average, updates), F(ck_average, last_step), F(ck_average, since),
	       F(ck_average, history), F(ck_average, flags), F(ck_average, rule));
}

TEST(every_number_has_the_meaning_that_is_written_down)
{
	char cell[4][64];
	uint32_t n;

	for (n = 0; row("#### dtype", n, cell); n++) {
		uint32_t number = (uint32_t)strtoul(cell[0], NULL, 10);

		assert_int_equal(number, n + 1);
		assert_string_equal(cell[1], dtype_name(number));
		assert_int_equal(strtoul(cell[2], NULL, 10), dtype_bytes(number));
	}
	assert_int_equal(dtype_bytes(n + 1), 0);
	for (n = 0; row("#### role", n, cell); n++) {
		assert_int_equal(strtoul(cell[0], NULL, 10), n);
		assert_string_equal(cell[1], role_name(n));
	}
	assert_int_equal(n, CKPT_COUNTER + 1);
	for (n = 0; row("#### cls", n, cell); n++) {
		assert_int_equal(strtoul(cell[0], NULL, 10), n);
		assert_string_equal(cell[1], class_name(n));
	}
	assert_int_equal(n, CKPT_SINK + 1);
	for (n = 0; row("#### media", n, cell); n++) {
		static const char *const media[] = {
			"raw", "json", "text", "pickle", "torch", "npy"
		};

		assert_true(n < ARRAY_LEN(media));
		assert_int_equal(strtoul(cell[0], NULL, 10), n);
		assert_string_equal(cell[1], media[n]);
	}
	assert_int_equal(n, CKPT_MEDIA_NPY + 1);
	assert_true(row("| bit of `incompat`", 0, cell));
	assert_int_equal(UINT64_C(1) << strtoul(cell[0], NULL, 10), CONTAINER_V02);
	assert_string_equal(cell[1], "V02");
}

TEST(every_section_has_the_number_and_record_that_is_written_down)
{
	static const struct {
		uint32_t kind;
		const char *name;
		size_t bytes;
	} want[] = ROW({ CK_STRINGS, "STRINGS", 1 }, { CK_SHAPES, "SHAPES", sizeof(le64) },
		       { CK_MESHES, "MESHES", sizeof(struct ck_mesh) },
		       { CK_MESHDATA, "MESHDATA", sizeof(le32) },
		       { CK_LAYOUTS, "LAYOUTS", sizeof(struct ck_layout) },
		       { CK_PLACEMENTS, "PLACEMENTS", sizeof(struct ck_placement) },
		       { CK_TENSORS, "TENSORS", sizeof(struct ck_tensor) },
		       { CK_INDEXSETS, "INDEXSETS", sizeof(le64) },
		       { CK_PIECES, "PIECES", sizeof(struct ck_piece) },
		       { CK_PLACES, "PLACES", sizeof(struct ck_place) },
		       { CK_CHUNKS, "CHUNKS", sizeof(struct ck_chunk) },
		       { CK_NOTES, "NOTES", sizeof(struct ck_note) },
		       { CK_PARTS, "PARTS", sizeof(struct ck_part) },
		       { CK_LINEAGE, "LINEAGE", sizeof(struct ck_lineage) },
		       { CK_ATTRS, "ATTRS", sizeof(struct ck_attr) },
		       { CK_SOURCES, "SOURCES", sizeof(struct ck_part) },
		       { CK_AVERAGES, "AVERAGES", sizeof(struct ck_average) });
	char cell[4][64];

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++) {
		assert_true(row("## Sections", i, cell));
		assert_int_equal(strtoul(cell[0], NULL, 10), want[i].kind);
		assert_string_equal(cell[1], want[i].name);
		assert_int_equal(strtoul(cell[3], NULL, 10), want[i].bytes);
	}
	assert_false(row("## Sections", ARRAY_LEN(want), cell));
}

/* --- rules that headers define --- */

/* Only what is neither space, nor the star of a comment. */
static void squeeze(const char *from, const char *to, char *ret)
{
	for (; from < to; from++) {
		bool margin =
			*from == '*' && (from[-1] == '\n' || (from[-1] == ' ' && from[-2] == '\n'));

		if (!isspace((unsigned char)*from) && !margin)
			*ret++ = *from;
	}
	*ret = 0;
}

static void check_rule(const char *header, const char *from, const char *to)
{
	static char text[FILE_MAX], rule[FILE_MAX], all[FILE_MAX];
	const char *a, *b;

	slurp(header, text);
	a = strstr(text, from);
	b = a ? strstr(a, to) : NULL;
	if (!b)
		fail_msg("%s has no text from \"%s\" to \"%s\"", header, from, to);
	squeeze(a, b, rule);
	squeeze(doc + 2, doc + strlen(doc), all);
	if (!strstr(all, rule))
		fail_msg("%s does not repeat what %s says from \"%s\" on", DOC, header, from);
}

TEST(the_rules_are_those_of_the_headers_word_for_word)
{
	check_rule("ckpt/layout/layout.h", "Replicas.  Take", "* Results as layout_share's");
	check_rule("ckpt/base/hash.h", "fingerprint of elements with", "* With FINGERPRINT_SEED_K");
	check_rule("ckpt/base/hash.h", "K[i] = (splitmix64", "* It is additive");
}

/* --- the example --- */

struct text {
	char s[FILE_MAX];
	size_t n;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	t->n += (size_t)vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, ap);
	va_end(ap);
	assert_true(t->n < sizeof t->s);
}

/* As hexdump -C. */
static void dump(struct text *t, const uint8_t *b, uint64_t from, uint64_t to)
{
	bool star = false;

	for (uint64_t at = from; at < to; at += 16) {
		if (at > from && at + 16 < to && !memcmp(b + at, b + at - 16, 16)) {
			if (!star)
				say(t, "*\n");
			star = true;
			continue;
		}
		star = false;
		say(t, "%08llx ", (unsigned long long)at);
		for (int i = 0; i < 16; i++)
			say(t, "%s%02x", i == 8 ? "  " : " ", b[at + (uint64_t)i]);
		say(t, "  |");
		for (int i = 0; i < 16; i++) {
			uint8_t c = b[at + (uint64_t)i];

			say(t, "%c", c >= 0x20 && c < 0x7f ? c : '.');
		}
		say(t, "|\n");
	}
}

static const char *kind_name(uint32_t kind)
{
	static char name[64];
	char cell[4][64];

	for (uint32_t i = 0; row("## Sections", i, cell); i++)
		if (strtoul(cell[0], NULL, 10) == kind) {
			snprintf(name, sizeof name, "%s", cell[1]);
			return name;
		}
	return "?";
}

static void dump_file(struct text *t, const uint8_t *b, uint64_t len)
{
	struct container_map m;

	assert_int_equal(container_tail_check(b + len - CONTAINER_BLOCK, len, &m, NULL), 0);
	t->n = 0;
	say(t, "header\n");
	dump(t, b, 0, CONTAINER_BLOCK);
	if (m.data_end > CONTAINER_BLOCK) {
		say(t, "data\n");
		dump(t, b, CONTAINER_BLOCK, m.data_end);
	}
	for (uint32_t i = 0; i < m.nsect; i++) {
		say(t, "%s: %llu bytes, %llu records\n", kind_name(m.sect[i].kind),
		    (unsigned long long)m.sect[i].len, (unsigned long long)m.sect[i].count);
		if (m.sect[i].len)
			dump(t, b, m.sect[i].off,
			     align_up(m.sect[i].off + m.sect[i].len, CONTAINER_BLOCK));
	}
	say(t, "trailer\n");
	dump(t, b, len - CONTAINER_BLOCK, len);
}

/* What a piece of the example holds: 1 to 6, these rounded, what is constant, the blob. */
static const void *tiny_bytes(const struct table_tensor *x)
{
	static const float w[6] = { 1, 2, 3, 4, 5, 6 }, scale[2] = { 0.5, 2 };
	static const uint16_t rounded[6] = { 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0 };

	if (x->flags & TENSOR_BLOB)
		return "abc";
	if (x->cls == CKPT_DERIVED)
		return rounded;
	return x->cls == CKPT_CONST ? scale : w;
}

/* The file of a part, as docs/FORMAT.md says that this version writes it. */
static void tiny_part(struct memdir *d, struct native_info *info, const struct native_role *role,
		      const char *name, struct table *t, struct native_part *ret)
{
	uint64_t n, data_end, len;
	struct chunk *chunk;
	struct ck_head head;
	uint8_t *raw, *file;
	void *tail;

	t->place[0].bytes = 0;
	for (uint32_t i = 0; i < t->npiece; i++)
		t->place[0].bytes = MAX(t->place[0].bytes, t->piece[i].off + t->piece[i].len);
	assert_int_equal(table_seal(t, NULL), 0);
	info->role = role;
	raw = calloc(1, t->place[0].bytes);
	assert_non_null(raw);
	for (uint32_t i = 0; i < t->npiece; i++) {
		struct table_piece *p = &t->piece[i];
		const void *bytes = tiny_bytes(&t->tensor[p->tensor]);

		if (!(p->flags & PIECE_DERIVED))
			memcpy(raw + p->off, bytes, p->len);
		p->fp = memdir_fingerprint(t, p, bytes);
		p->fp_known = true;
	}
	assert_int_equal(chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &n, &data_end, NULL), 0);
	native_part_head(info, 0, &head);
	file = calloc(1, data_end);
	assert_non_null(file);
	memcpy(file, &head, sizeof head);
	for (uint64_t i = 0; i < n; i++) {
		const uint8_t *at = raw + (i << CHUNK_LOG2);

		if (!chunk[i].raw_len)
			continue;
		chunk[i].raw_hash = hash128(at, chunk[i].raw_len);
		memcpy(file + chunk[i].off, at, chunk[i].raw_len);
	}
	*ret = (struct native_part)ROW(.kind = role->kind, .step = info->step,
				       .generation = info->generation,
				       .raw_bytes = t->place[0].bytes, .table = t);
	snprintf(ret->name, sizeof ret->name, "%s", name);
	native_part_uuid(info, 0, ret->uuid);
	assert_ok(native_part_tail(info, 0, t, chunk, n, data_end, &tail, &len, &ret->root, NULL));
	file = realloc(file, data_end + len);
	assert_non_null(file);
	memcpy(file + data_end, tail, len);
	ret->file_bytes = data_end + len;
	memdir_add(d, name, file, ret->file_bytes);
	info->role = NULL;
	free(tail);
	free(file);
	free(raw);
	free(chunk);
}

/* The checkpoint of the example, in memory. */
static void tiny_checkpoint(struct memdir *d)
{
	static const uint64_t origin[2], w_box[2] = { 3, 2 }, two = 2, three = 3;
	static const struct handmade_tensor constant =
		ROW(.component = "model", .name = "scale", .dtype = CKPT_F32, .role = CKPT_BUFFER,
		    .cls = CKPT_CONST, .ndim = 1, .shape = { 2 });
	struct native_info info = ROW(.job = "tiny", .step = 3, .generation = 1,
				      .wall_ns = UINT64_C(1700000000000000000), .world = 1);
	struct native_part part[2];
	struct native_role main_role = { .nsource = 1, .source = &part[1] },
			   const_role = { .kind = PART_CONST };
	struct ckpt_note note = { "loss", 0.5 };
	struct checkpoint_attr attr = { "git", "cafe" };
	struct native_lineage line = ROW(.seq = 1, .parent_step = UINT64_MAX, .tool = "example",
					 .note = &note, .nnote = 1, .attr = &attr, .nattr = 1);
	struct table t, k;
	uint8_t id[16];
	void *manifest;
	uint64_t len;

	for (uint8_t i = 0; i < 16; i++)
		info.uuid[i] = (uint8_t)(0xa0 + i);
	handmade_table(&k, "fsdp=1");
	(void)handmade_layout(&k, "Shard(0)@fsdp");
	handmade_piece(&k, 0, handmade_tensor(&k, &constant), 0, 0, origin, &two);
	tiny_part(d, &info, &const_role, "w0000-00000001-000.part", &k, &part[1]);
	handmade_table(&t, "fsdp=1");
	(void)handmade_layout(&t, "Shard(0)@fsdp");
	(void)handmade_tensor(&t,
			      &(struct handmade_tensor)ROW(.component = "model", .name = "w",
							   .dtype = CKPT_F32, .role = CKPT_PARAM,
							   .ndim = 2, .shape = { 3, 2 }));
	(void)handmade_tensor(&t,
			      &(struct handmade_tensor)ROW(.component = "model", .name = "w16",
							   .of = "model/w", .dtype = CKPT_BF16,
							   .role = CKPT_PARAM, .cls = CKPT_DERIVED,
							   .ndim = 2, .shape = { 3, 2 }));
	(void)handmade_tensor(&t, &constant);
	(void)handmade_tensor(
		&t,
		&(struct handmade_tensor)ROW(.component = "blob", .name = "rng", .dtype = CKPT_U8,
					     .cls = CKPT_VOLATILE, .flags = TENSOR_BLOB,
					     .media = CKPT_MEDIA_TEXT, .layout = TABLE_NONE,
					     .rank_ = 1, .ndim = 1, .shape = { 3 }));
	handmade_piece(&t, 0, 0, 0, 0, origin, w_box);
	handmade_piece(&t, 0, 3, 1 << 20, 0, origin, &three);
	handmade_piece(&t, 0, 1, 2 << 20, PIECE_DERIVED, origin, w_box);
	tiny_part(d, &info, &main_role, "w0000-00000001-001.part", &t, &part[0]);
	assert_int_equal(native_manifest(&info, part, 2, &line, &manifest, &len, id, NULL), 0);
	memdir_add(d, NATIVE_MANIFEST, manifest, len);
	free(manifest);
	table_free(&t);
	table_free(&k);
}

/* What stands between "<!-- mark -->\n```\n" and "```". */
static char *block(const char *mark, size_t *ret_len)
{
	char want[64];
	char *at;

	snprintf(want, sizeof want, "<!-- %s -->\n```\n", mark);
	at = strstr(doc, want);
	if (!at)
		fail_msg("%s has no example of %s", DOC, mark);
	at += strlen(want);
	*ret_len = (size_t)(strstr(at, "```") - at);
	return at;
}

static void update(const char *mark, const struct text *t)
{
	size_t len;
	char *at = block(mark, &len);
	FILE *f;

	assert_true(strlen(doc) - len + t->n < sizeof doc);
	memmove(at + t->n, at + len, strlen(at + len) + 1);
	memcpy(at, t->s, t->n);
	f = fopen(DOC, "we");
	assert_non_null(f);
	assert_int_equal(fwrite(doc, 1, strlen(doc), f), strlen(doc));
	assert_int_equal(fclose(f), 0);
}

TEST(the_worked_example_is_what_is_written)
{
	static struct text t;
	struct memdir d = { .n = 0 };
	struct source_dir dir = memdir_source(&d);
	struct checkpoint *c;
	struct ckpt_err err;

	tiny_checkpoint(&d);
	assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err), 0);
	checkpoint_free(c);
	for (uint32_t i = 0; i < d.n; i++) {
		static const char *const marks[] = { "const part", "main part", NATIVE_MANIFEST };
		const char *mark = marks[i];
		size_t len;
		char *at;

		dump_file(&t, d.file[i].bytes, d.file[i].len);
		if (getenv("CKPT_FORMAT_UPDATE"))
			update(mark, &t);
		at = block(mark, &len);
		if (len != t.n || memcmp(at, t.s, len) != 0)
			fail_msg("the example of %s in %s is not what is written: "
				 "CKPT_FORMAT_UPDATE=1 make unit-native_format, and say why",
				 mark, DOC);
	}
	memdir_clear(&d);
}

UNIT(.group_setup = load);
