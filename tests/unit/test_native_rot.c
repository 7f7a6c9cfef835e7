/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_rot.c - metadata that are wrong under right checksums, as a newer writer, a mistake
 * or somebody with a hex editor would leave them: each number that is held against another, each
 * name that could lead elsewhere, each table that has another shape. And files that cannot be read,
 * at every single read. All of it is refused, and what is only unreadable is not called damaged.
 */
#include "tests/unit/test_native_rig.h"
#include "formats/native/native_impl.h"

/* A section of so many records, of what is there and of zeros behind it. */
static void resize(struct memdir_file *f, uint32_t kind, uint32_t rec_bytes, uint64_t count)
{
	struct ck_sect *s = row(f, kind);
	uint64_t off = le64_get(s->off), len = rec_bytes * count;

	assert_true(align_up(MAX(len, le64_get(s->len)), 4096) == 4096);
	memset(f->bytes + off + len, 0, 4096 - len);
	s->rec_bytes = le32_of(rec_bytes);
	s->len = le64_of(len);
	s->count = le64_of(count);
}

static int open_it(const struct source_dir *dir, struct ckpt_err *err)
{
	struct checkpoint *c;
	int r;

	*err = (struct ckpt_err){ 0 };
	r = format_native.open(&(struct format_open){ .dir = dir }, &c, err);
	assert_int_equal(r < 0, c == NULL);
	checkpoint_free(c);
	return r;
}

/* Sign what was changed; it must be refused, by a sentence that has these words. */
static void refused(struct memdir_file *f, const char *words)
{
	struct source_dir dir = memdir_source(&bad);
	struct ckpt_err err;
	int r;

	memdir_sign(&bad, f);
	r = open_it(&dir, &err);
	if ((r != -EPROTO && r != -EPROTONOSUPPORT) || !strstr(err.msg, words) ||
	    (r == -EPROTONOSUPPORT) != !!strstr(err.msg, "newer version"))
		fail_msg("%d, should say \"%s\": %s", r, words, err.msg);
	afresh();
}

/* Signed, it is opened, but for what is optional. */
static void dropped(struct memdir_file *f)
{
	struct source_dir dir = memdir_source(&bad);
	struct checkpoint *c;
	struct ckpt_err err;

	memdir_sign(&bad, f);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err), &err);
	assert_true(c->newer);
	assert_int_equal(c->nnote, 0);
	checkpoint_free(c);
	afresh();
}

TEST(records_of_another_size_or_number_are_refused)
{
	static const struct {
		uint32_t kind, rec_bytes, count;
	} half[] = { { CK_LINEAGE, 48, 2 }, { CK_PARTS, 48, 4 } };
	struct ck_sect *s;

	afresh();
	for (size_t i = 0; i < ARRAY_LEN(half); i++) {
		resize(manifest(), half[i].kind, half[i].rec_bytes, half[i].count);
		refused(manifest(), "this program knows them");
	}
	resize(manifest(), CK_NOTES, 8, 4);
	dropped(manifest());
	s = row(manifest(), CK_STRINGS);
	resize(manifest(), CK_STRINGS, (uint32_t)le64_get(s->len), 1);
	refused(manifest(), "records");
	s = row(part(0), CK_CHUNKS);
	resize(part(0), CK_CHUNKS, sizeof(struct ck_chunk) / 2, 2 * le64_get(s->count));
	refused(part(0), "this program knows them");
	resize(manifest(), CK_LINEAGE, sizeof(struct ck_lineage), 0);
	refused(manifest(), "lineage");
	resize(manifest(), CK_LINEAGE, sizeof(struct ck_lineage), 2);
	refused(manifest(), "lineage");
	resize(manifest(), CK_NOTES, sizeof(struct ck_note), NATIVE_NOTES_MAX + 1);
	dropped(manifest());
	resize(manifest(), CK_PARTS, sizeof(struct ck_part), 1);
	refused(manifest(), "parts for a world");
	s = row(part(1), CK_CHUNKS);
	resize(part(1), CK_CHUNKS, sizeof(struct ck_chunk), le64_get(s->count) - 1);
	refused(part(1), "chunk");
}

TEST(numbers_that_contradict_each_other_are_refused)
{
	struct ck_lineage *l;
	struct ck_note *n;
	struct ck_part *p;
	struct ck_head *h;
	struct ck_tail *t;

	afresh();
	l = memdir_section(manifest(), CK_LINEAGE);
	l->zero[43] = 1;
	refused(manifest(), "that this program does not know");
	l = memdir_section(manifest(), CK_LINEAGE);
	l->tool = le32_of(UINT32_MAX);
	refused(manifest(), "lineage");
	l = memdir_section(manifest(), CK_LINEAGE);
	l->job = le32_of(1u << 20);
	refused(manifest(), "lineage");
	n = memdir_section(manifest(), CK_NOTES);
	n[1].key = le32_of(UINT32_MAX);
	dropped(manifest());
	n = memdir_section(manifest(), CK_NOTES);
	n[1].zero = le32_of(1);
	dropped(manifest());
	p = memdir_section(manifest(), CK_PARTS);
	p[1].group = le32_of(1);
	refused(manifest(), "the first 2 are the main parts");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].kind = le32_of(1);
	refused(manifest(), "kind 1");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].file_bytes = le64_of(UINT64_MAX);
	refused(manifest(), "too long");
	p = memdir_section(manifest(), CK_PARTS);
	p[0].file_bytes = p[1].file_bytes = le64_of(INT64_MAX);
	refused(manifest(), "part");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].name = p[0].name;
	refused(manifest(), "two parts are called");
	h = (struct ck_head *)manifest()->bytes;
	h->align_log2++;
	refused(manifest(), "2^");
	h = (struct ck_head *)part(0)->bytes;
	h->align_log2++;
	refused(part(0), "2^13");
	head_of_file(part(0))->chunk_log2++;
	refused(part(0), "2^21");
	((struct ck_chunk *)memdir_section(part(0), CK_CHUNKS))->base = le32_of(0);
	refused(part(0), "its bytes lie in another file, or are told by others");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].raw_bytes = le64_of(NATIVE_PART_BYTES_MAX + 1);
	refused(manifest(), "is too long");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].raw_bytes = le64_of(UINT64_MAX);
	refused(manifest(), "is too long");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].raw_bytes = le64_of(le64_get(p[1].raw_bytes) + 1);
	refused(manifest(), "whose last piece ends at");
	head_of_file(part(1))->world = le32_of(3);
	refused(part(1), "number of ranks is not what MANIFEST says");
	head_of_file(part(1))->world = le32_of(0);
	refused(part(1), "number of ranks is not what MANIFEST says");
	/* Of another checkpoint, head and tail, and signed as if it were this one's. */
	h = (struct ck_head *)part(0)->bytes;
	t = (struct ck_tail *)(part(0)->bytes + part(0)->len - CONTAINER_BLOCK);
	h->uuid[0] ^= 1;
	t->uuid[0] ^= 1;
	refused(part(0), "uuid");
}

TEST(names_of_parts_that_lead_elsewhere_are_refused)
{
	static const char *const name[] =
		ROW("../../../etc/passwd", "..", ".hidden", "/etc/passwd", "a/b", "MANIFEST", "",
		    "w0000\\5.part", "w0000-\n.part", "w0000-\x80.part");

	afresh();
	for (size_t i = 0; i < ARRAY_LEN(name); i++) {
		struct ck_part *p = memdir_section(manifest(), CK_PARTS);
		char *s = (char *)memdir_section(manifest(), CK_STRINGS) + le32_get(p[0].name);

		assert_int_equal(strlen(s), 23); /* what stands there now */
		assert_true(strlen(name[i]) <= 23);
		assert_false(native_name_ok(name[i]));
		memcpy(s, name[i], strlen(name[i]) + 1);
		refused(manifest(), "impossible name");
	}
	{
		/* Longer than any; and with what else is in the file behind it, which is no
		 * name. */
		char key[NATIVE_NAME_MAX + 2];
		const struct ckpt_note note = { key, 1 };
		const struct memdir_opts o = {
			.mesh = "fsdp=1", .job = "demo", .seed = 5, .note = &note, .nnote = 1
		};
		struct memdir_opts with = o;
		struct ck_note *n;

		memset(key, 'k', sizeof key - 1);
		key[sizeof key - 1] = 0;
		with.scale = 1;
		memdir_clear(&bad);
		memdir_checkpoint(&bad, &with);
		n = memdir_section(manifest(), CK_NOTES);
		((struct ck_part *)memdir_section(manifest(), CK_PARTS))->name = n->key;
		refused(manifest(), "impossible name");
	}
	assert_true(native_name_ok("w0000-00000005-000.part"));
	assert_true(native_name_ok("123456789012345678901234567890123456789"));
	assert_false(native_name_ok("1234567890123456789012345678901234567890"));
}

/* --- reading that fails --- */

static int choose_second(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	(void)arg;
	(void)k;
	(void)err;
	needed[1] = true;
	return 0;
}

static int act_open(const struct source_dir *dir, struct checkpoint **ret, struct ckpt_err *err)
{
	return format_native.open(&(struct format_open){ .dir = dir }, ret, err);
}

/* What was unreadable is lost to whoever looks for damage. */
static int act_open_partial(const struct source_dir *dir, struct checkpoint **ret,
			    struct ckpt_err *err)
{
	int r = format_native.open(&(struct format_open){ .dir = dir, .partial = true }, ret, err);

	if (r == -ENOMEM)
		assert_null(*ret);
	else if (r < 0 && *ret)
		assert_true((*ret)->nfile == 2 && (*ret)->table.nplace == 2 &&
			    (!(*ret)->partial || (*ret)->file[0].lost || (*ret)->file[1].lost));
	return r;
}

static int act_open_some(const struct source_dir *dir, struct checkpoint **ret,
			 struct ckpt_err *err)
{
	return format_native.open(&(struct format_open){ .dir = dir, .choose = choose_second }, ret,
				  err);
}

static int act_summary(const struct source_dir *dir, struct checkpoint **ret, struct ckpt_err *err)
{
	struct source s;
	int r = dir->open(dir->ctx, NATIVE_MANIFEST, &s);

	*ret = NULL;
	if (r < 0)
		return ckpt_error_errno(err, -r, "cannot be opened");
	r = format_native.root->summary(&s, ret, err);
	s.close(s.ctx);
	return r;
}

static int act_probe(const struct source_dir *dir, struct checkpoint **ret, struct ckpt_err *err)
{
	char looked[FORMAT_LOOKED];
	int r = format_native.probe(dir, looked);

	*ret = NULL;
	return r == 75 ? 0 : ckpt_error_errno(err, -r, "no format");
}

TEST(what_cannot_be_read_is_not_called_damaged)
{
	static const int error[] = { -EIO, -EACCES, -ENOMEM, -4095 };
	static const struct {
		int (*act)(const struct source_dir *dir, struct checkpoint **ret,
			   struct ckpt_err *err);
		uint64_t calls;
	} of[] = ROW({ act_open, 8 }, { act_open_partial, 8 }, { act_open_some, 5 },
		     { act_summary, 3 }, { act_probe, 0 });

	afresh();
	for (size_t e = 0; e < ARRAY_LEN(error); e++)
		for (size_t i = 0; i < ARRAY_LEN(of); i++)
			for (uint64_t n = 0;; n++) {
				struct source_dir dir = failing_source(&bad, n, error[e]);
				struct checkpoint *c = NULL;
				struct ckpt_err err = { 0 };
				int r = of[i].act(&dir, &c, &err);
				bool sees = of[i].act == act_open_partial;

				assert_int_equal(failing.open, 0);
				assert_true(sees || (r < 0) == !c || of[i].act == act_probe);
				checkpoint_free(c);
				if (!failing.did) {
					assert_int_equal(r, 0);
					assert_true(n > of[i].calls);
					break;
				}
				if (r != error[e])
					fail_msg("call %llu failed with %d, opening with %d: %s",
						 (unsigned long long)n, error[e], r, err.msg);
				if (error[e] == -4095)
					assert_non_null(strstr(err.msg, "error"));
			}
}

/* In whatever order they are met; and what is told first is told first. */
TEST(damage_is_told_where_something_else_could_not_be_read)
{
	enum { UNREADABLE, MALFORMED, DAMAGED };
	static const struct {
		int what[2], want;
	} is[] = {
		{ { UNREADABLE, MALFORMED }, -EPROTO },	 { { UNREADABLE, DAMAGED }, -EBADMSG },
		{ { MALFORMED, UNREADABLE }, -EPROTO },	 { { DAMAGED, UNREADABLE }, -EBADMSG },
		{ { MALFORMED, DAMAGED }, -EBADMSG },	 { { DAMAGED, MALFORMED }, -EBADMSG },
		{ { UNREADABLE, UNREADABLE }, -EACCES },
	};
	struct source_dir dir = memdir_source(&bad);
	struct ckpt_err err;

	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		afresh();
		for (uint32_t r = 0; r < 2; r++)
			switch (is[i].what[r]) {
			case UNREADABLE:
				part(r)->error = -EACCES;
				break;
			case MALFORMED:
				((struct ck_tensor *)memdir_section(part(r), CK_TENSORS))->flags =
					CK_TENSOR_FP;
				memdir_sign(&bad, part(r));
				break;
			default:
				part(r)->bytes[part(r)->len - 1] ^= 1;
				break;
			}
		if (open_it(&dir, &err) != is[i].want)
			fail_msg("%zu: %d: %s", i, err.code, err.msg);
		assert_non_null(strstr(err.msg, part(0)->name));
		assert_non_null(strstr(err.msg, part(1)->name));
	}
	afresh();
}

TEST(whoever_looks_for_damage_gets_what_is_whole)
{
	struct source_dir dir = memdir_source(&bad);
	struct checkpoint *c;
	struct ckpt_err err;

	afresh();
	assert_int_equal(
		format_native.open(&(struct format_open){ .dir = &dir, .partial = true }, &c, &err),
		0);
	assert_false(c->partial);
	checkpoint_free(c);
	part(0)->bytes[part(0)->len - 1] ^= 1;
	assert_int_equal(
		format_native.open(&(struct format_open){ .dir = &dir, .partial = true }, &c, &err),
		-EBADMSG);
	assert_non_null(c);
	assert_true(c->partial && c->table.sealed && c->file[0].lost && !c->file[1].lost);
	assert_int_equal(c->nfile, 2);
	assert_int_equal(c->table.nplace, 2);
	assert_true(c->table.npiece > 0);
	for (uint32_t i = 0; i < c->table.npiece; i++)
		assert_int_equal(c->table.piece[i].rank, 1);
	checkpoint_free(c);
	/* A foreign file among them is nothing. */
	afresh();
	(void)memdir_add(&bad, "core", "x", 1);
	assert_int_equal(
		format_native.open(&(struct format_open){ .dir = &dir, .partial = true }, &c, &err),
		0);
	assert_false(c->partial);
	assert_int_equal(c->nforeign, 1);
	checkpoint_free(c);
	/* Without MANIFEST nobody knows what should be there. */
	memdir_remove(&bad, NATIVE_MANIFEST);
	assert_int_equal(
		format_native.open(&(struct format_open){ .dir = &dir, .partial = true }, &c, &err),
		-EUCLEAN);
	assert_null(c);
	afresh();
	((struct ck_part *)memdir_section(manifest(), CK_PARTS))->kind = le32_of(1);
	memdir_sign(&bad, manifest());
	assert_int_equal(
		format_native.open(&(struct format_open){ .dir = &dir, .partial = true }, &c, &err),
		-EPROTO);
	assert_null(c);
	afresh();
}

/* --- files that are too short, too long, or have nothing in them --- */

static void summary_refused(int code, const char *words)
{
	struct source m = memdir_open(&bad, NATIVE_MANIFEST);
	struct checkpoint *c;
	struct ckpt_err err = { 0 };
	int r = format_native.root->summary(&m, &c, &err);

	assert_null(c);
	if (r != code || !strstr(err.msg, words))
		fail_msg("%d, should be %d with \"%s\": %s", r, code, words, err.msg);
}

TEST(a_manifest_that_is_damaged_where_a_summary_looks_has_none)
{
	struct source_dir dir = memdir_source(&bad);
	struct ckpt_err err;
	struct ck_sect *s;

	for (uint64_t len = 0; len < 2 * CONTAINER_BLOCK; len = len * 3 + 1) {
		char words[64];

		afresh();
		manifest()->len = len;
		snprintf(words, sizeof words, "it ends after %llu bytes, before header and trailer",
			 (unsigned long long)len);
		summary_refused(-EBADMSG, words);
		assert_int_equal(open_it(&dir, &err), -EBADMSG);
		assert_non_null(strstr(err.msg, words));
	}
	afresh();
	s = row(manifest(), CK_LINEAGE);
	manifest()->bytes[le64_get(s->off) + 1] ^= 1;
	summary_refused(-EBADMSG, "MANIFEST: section of kind 20");
	/* Of tensors it knows nothing. */
	afresh();
	s = row(manifest(), CK_TENSORS);
	manifest()->bytes[le64_get(s->off) + 1] ^= 1;
	{
		struct source m = memdir_open(&bad, NATIVE_MANIFEST);
		struct checkpoint *c;

		assert_int_equal(format_native.root->summary(&m, &c, &err), 0);
		checkpoint_free(c);
	}
	afresh();
}

static int huge_open(void *ctx, const char *name, struct source *ret)
{
	assert_string_equal(name, NATIVE_MANIFEST);
	*ret = *(struct source *)ctx;
	return 0;
}

TEST(sections_that_no_memory_holds_are_refused_unread)
{
	struct huge h;
	struct source src;
	struct source_dir dir = { .ctx = &src, .open = huge_open };
	struct checkpoint *c;
	struct ckpt_err err;

	afresh();
	src = huge_of(manifest(), CK_STRINGS, 1, NATIVE_META_BYTES_MAX + 1, &h);
	assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err),
			 -EPROTO);
	assert_null(c);
	assert_non_null(strstr(err.msg, "bytes of sections; at most 1073741824 are possible"));
	assert_int_equal(format_native.root->summary(&src, &c, &err), -EPROTO);
	assert_null(c);
	assert_non_null(strstr(err.msg, "more than 1073741824 bytes of sections"));
}

TEST(a_manifest_without_sections_is_refused)
{
	struct container_info info;
	struct container_map m;
	struct ck_tail t;

	afresh();
	assert_int_equal(container_head_check(manifest()->bytes, 0, &info, NULL), 0);
	container_map_start(&m, info.uuid, CONTAINER_BLOCK);
	container_tail_build(&t, &m);
	memcpy(manifest()->bytes + CONTAINER_BLOCK, &t, sizeof t);
	manifest()->len = 2 * CONTAINER_BLOCK;
	refused(manifest(), "STRINGS");
}

TEST(a_directory_is_known_by_names)
{
	static const struct {
		const char *name;
		bool folder;
		int want;
	} is[] =
		ROW({ "w0000-00000005-000.part", false, 25 },
		    { "w0000-00000005-000.part", true, 0 }, { ".part", false, 0 },
		    { "x0000.part", false, 0 }, { "w0000.parts", false, 0 }, { "wpart", false, 0 });
	struct source_dir dir = memdir_source(&bad);
	char looked[FORMAT_LOOKED];

	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		memdir_clear(&bad);
		memdir_add(&bad, is[i].name, "x", 1)->folder = is[i].folder;
		assert_int_equal(format_native.probe(&dir, looked), is[i].want);
	}
	memdir_clear(&bad);
	memdir_add(&bad, NATIVE_MANIFEST, "x", 1)->error = -EIO;
	assert_int_equal(format_native.probe(&dir, looked), -EIO);
}

/* --- a writer that is given nonsense --- */

TEST(nonsense_is_not_written)
{
	char longer[CKPT_NAME_MAX + 2], job[CKPT_JOB_MAX + 2], tool[NATIVE_TOOL_MAX + 2];
	struct ckpt_note note = { "loss", 1 };
	struct native_info info = { .job = "demo", .world = 1 };
	struct native_lineage line = { .tool = "test", .nnote = 1, .note = &note };
	struct native_part p = { .name = "w0000-00000001-000.part" };
	struct sample s;
	struct table t;
	struct chunk *chunk;
	struct hash128 root;
	struct ckpt_err err;
	uint64_t n, end, len;
	uint8_t id[16];
	void *bytes = NULL;

	memset(longer, 'x', sizeof longer - 1);
	longer[sizeof longer - 1] = 0;
	memcpy(job, longer, sizeof job - 1);
	job[sizeof job - 1] = 0;
	memcpy(tool, longer, sizeof tool - 1);
	tool[sizeof tool - 1] = 0;
	assert_int_equal(sample_make("fsdp=1", 0, 1, 1, &s), 0);
	assert_int_equal(native_part_table(&s.decl, 0, &t, NULL, &err), 0);
	p.table = &t;
#define REFUSED() \
	assert_int_equal(native_manifest(&info, &p, 1, &line, &bytes, &len, id, &err), -EINVAL)
	info.world = 0;
	REFUSED();
	info.world = NATIVE_WORLD_MAX + 1;
	REFUSED();
	info.world = 1;
	line.nnote = NATIVE_NOTES_MAX + 1;
	REFUSED();
	line.nnote = 1;
	note.key = NULL;
	REFUSED();
	note.key = longer;
	REFUSED();
	note.key = "loss";
	info.job = job;
	REFUSED();
	info.job = "demo";
	line.tool = tool;
	REFUSED();
	line.tool = NULL; /* may be left out */
	assert_int_equal(native_manifest(&info, &p, 1, &line, &bytes, &len, id, &err), 0);
	free(TAKE(bytes));
	assert_int_equal(chunk_map_make(&t, NATIVE_DATA_OFF, &chunk, &n, &end, &err), 0);
#define NO_TAIL()                                                                                  \
	assert_int_equal(native_part_tail(&info, 0, &t, chunk, n, end, &bytes, &len, &root, &err), \
			 -EINVAL)
	chunk[0].stored_len--;
	NO_TAIL();
	chunk[0].stored_len++;
	chunk[0].raw_len--;
	NO_TAIL();
	chunk[0].raw_len++;
	chunk[0].codec = 1;
	NO_TAIL();
	chunk[0].codec = CODEC_RAW;
	chunk[0].off += 4096;
	NO_TAIL();
	chunk[0].off -= 4096;
	end += 4096;
	NO_TAIL();
	end -= 4096;
	assert_ok(native_part_tail(&info, 0, &t, chunk, n, end, &bytes, &len, &root, NULL));
	free(bytes);
	free(chunk);
	table_free(&t);
	sample_free(&s);
}

UNIT(.group_setup = setup, .group_teardown = teardown);
