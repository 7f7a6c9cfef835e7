/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_rot.c - metadata that are wrong under right checksums, as a newer writer, a mistake or
 * somebody with a hex editor would leave them: each number that is held against another, each name
 * that could lead elsewhere, each table that has another shape. And files that cannot be read, at
 * every single read. All of it is refused, and what is only unreadable is not called damaged.
 */
#include "tests/lib/sample.c"
#include "tests/lib/memdir.c"
#include "formats/native/native_impl.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct memdir good, bad;

static int setup(void **state)
{
	static const struct ckpt_note note[2] = { { "loss", 1.5 }, { "lr", 0.1 } };
	const struct memdir_opts o = { .mesh = "fsdp=2",
				       .job = "demo",
				       .seed = 5,
				       .scale = 1,
				       .step = 12,
				       .generation = 3,
				       .seq = 7,
				       .note = note,
				       .nnote = 2 };

	(void)state;
	memdir_checkpoint(&good, &o);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	memdir_clear(&good);
	memdir_clear(&bad);
	return 0;
}

static void afresh(void)
{
	memdir_clear(&bad);
	for (uint32_t i = 0; i < good.n; i++)
		(void)memdir_add(&bad, good.file[i].name, good.file[i].bytes, good.file[i].len);
}

static struct memdir_file *manifest(void)
{
	return memdir_find(&bad, NATIVE_MANIFEST);
}

static struct memdir_file *part(uint32_t rank)
{
	char name[40];

	snprintf(name, sizeof name, "w%04u-00000005-000.part", rank);
	return memdir_find(&bad, name);
}

static struct ck_sect *row(struct memdir_file *f, uint32_t kind)
{
	struct ck_tail *t = (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);

	for (uint32_t i = 0; i < le32_get(t->nsect); i++)
		if (le32_get(t->sect[i].kind) == kind)
			return &t->sect[i];
	fail_msg("no section of kind %u", kind);
	return NULL;
}

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
	r = format_native.open(dir, &c, NULL, NULL, err);
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
	if ((r != -EPROTO && r != -EBADMSG) || !strstr(err.msg, words))
		fail_msg("%d, should say \"%s\": %s", r, words, err.msg);
	afresh();
}

static void records_of_another_size_or_number_are_refused(void **state)
{
	static const struct {
		uint32_t kind, rec_bytes, count;
	} half[] = {
		{ CK_LINEAGE, 48, 2 }, { CK_NOTES, 8, 4 }, { CK_PARTS, 32, 4 }, { CK_RANKS, 4, 4 }
	};
	struct ck_sect *s;

	(void)state;
	afresh();
	for (size_t i = 0; i < ARRAY_LEN(half); i++) {
		resize(manifest(), half[i].kind, half[i].rec_bytes, half[i].count);
		refused(manifest(), "this program knows them");
	}
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
	refused(manifest(), "notes");
	resize(manifest(), CK_RANKS, sizeof(struct ck_rank), 1);
	refused(manifest(), "records of ranks");
	resize(manifest(), CK_RANKS, sizeof(struct ck_rank), 3);
	refused(manifest(), "records of ranks");
	resize(manifest(), CK_PARTS, sizeof(struct ck_part), 1);
	refused(manifest(), "parts for a world");
	s = row(part(1), CK_CHUNKS);
	resize(part(1), CK_CHUNKS, sizeof(struct ck_chunk), le64_get(s->count) - 1);
	refused(part(1), "chunk");
}

static void numbers_that_contradict_each_other_are_refused(void **state)
{
	struct ck_lineage *l;
	struct ck_note *n;
	struct ck_part *p;
	struct ck_head *h;
	struct ck_tail *t;

	(void)state;
	afresh();
	l = memdir_section(manifest(), CK_LINEAGE);
	l->zero[43] = 1;
	refused(manifest(), "lineage");
	l = memdir_section(manifest(), CK_LINEAGE);
	l->tool = le32_of(UINT32_MAX);
	refused(manifest(), "lineage");
	l = memdir_section(manifest(), CK_LINEAGE);
	l->job = le32_of(1u << 20);
	refused(manifest(), "lineage");
	n = memdir_section(manifest(), CK_NOTES);
	n[1].key = le32_of(UINT32_MAX);
	refused(manifest(), "note");
	n = memdir_section(manifest(), CK_NOTES);
	n[1].zero = le32_of(1);
	refused(manifest(), "note");
	p = memdir_section(manifest(), CK_PARTS);
	p[1].group = le32_of(1);
	refused(manifest(), "group 1");
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
	refused(part(0), "chunk size");
	/* Of another checkpoint, head and tail, and signed as if it were this one's. */
	h = (struct ck_head *)part(0)->bytes;
	t = (struct ck_tail *)(part(0)->bytes + part(0)->len - CONTAINER_BLOCK);
	h->uuid[0] ^= 1;
	t->uuid[0] ^= 1;
	refused(part(0), "uuid");
}

static void names_of_parts_that_lead_elsewhere_are_refused(void **state)
{
	static const char *const name[] = { "../../../etc/passwd",
					    "..",
					    ".hidden",
					    "/etc/passwd",
					    "a/b",
					    "MANIFEST",
					    "",
					    "w0000\\5.part",
					    "w0000-\n.part",
					    "w0000-\x80.part" };

	(void)state;
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
	assert_true(native_name_ok("w0000-00000005-000.part"));
	assert_true(native_name_ok("123456789012345678901234567890123456789"));
	assert_false(native_name_ok("1234567890123456789012345678901234567890"));
}

/* --- reading that fails --- */

static struct {
	uint64_t n; /* reads, openings and listings until one fails */
	int error;
	bool did;
} failing;

static bool fails(void)
{
	if (failing.n-- != 0)
		return false;
	failing.did = true;
	return true;
}

static struct source inner[64];
static uint32_t ninner;

static int failing_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct source *s = ctx;

	return fails() ? failing.error : s->read(s->ctx, buf, len, off);
}

static int failing_open(void *ctx, const char *name, struct source *ret)
{
	struct source_dir dir = memdir_source(ctx);
	struct source *s = &inner[ninner++ % ARRAY_LEN(inner)];
	int r = fails() ? failing.error : dir.open(dir.ctx, name, s);

	if (r == 0)
		*ret = (struct source){ .ctx = s, .bytes = s->bytes, .read = failing_read };
	return r;
}

static int failing_list(void *ctx, int (*each)(void *arg, const char *name, int is_file), void *arg)
{
	struct source_dir dir = memdir_source(ctx);

	return fails() ? failing.error : dir.list(dir.ctx, each, arg);
}

static int choose_second(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	(void)arg;
	(void)k;
	(void)err;
	needed[1] = true;
	return 0;
}

static void what_cannot_be_read_is_not_called_damaged(void **state)
{
	static const int error[] = { -EIO, -EACCES, -ENOMEM };
	const struct source_dir dir = { .ctx = &bad, .open = failing_open, .list = failing_list };

	(void)state;
	afresh();
	for (size_t e = 0; e < ARRAY_LEN(error); e++)
		for (int some = 0; some < 2; some++)
			for (uint64_t n = 0;; n++) {
				struct checkpoint *c = NULL;
				struct ckpt_err err = { 0 };
				int r;

				failing.n = n;
				failing.error = error[e];
				failing.did = false;
				r = some ? format_native.open_some(&dir, choose_second, NULL, &c,
								   &err)
					 : format_native.open(&dir, &c, NULL, NULL, &err);
				checkpoint_free(c);
				if (!failing.did) {
					assert_int_equal(r, 0);
					assert_true(n > (some ? 5 : 8));
					break;
				}
				if (r != error[e])
					fail_msg("call %llu failed with %d, opening with %d: %s",
						 (unsigned long long)n, error[e], r, err.msg);
			}
	/* Damage beside it is what is told. */
	part(0)->bytes[5000] ^= 1;
	part(0)->bytes[part(0)->len - 1] ^= 1;
	part(1)->error = -EIO;
	{
		struct source_dir plain = memdir_source(&bad);
		struct ckpt_err err;

		assert_int_equal(open_it(&plain, &err), -EBADMSG);
	}
}

static void a_directory_is_known_by_names(void **state)
{
	static const struct {
		const char *name;
		bool folder;
		int want;
	} is[] = { { "w0000-00000005-000.part", false, 1 },
		   { "w0000-00000005-000.part", true, 0 },
		   { ".part", false, 0 },
		   { "x0000.part", false, 0 },
		   { "w0000.parts", false, 0 },
		   { "wpart", false, 0 } };
	struct source_dir dir = memdir_source(&bad);
	struct ckpt_err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		memdir_clear(&bad);
		memdir_add(&bad, is[i].name, "x", 1)->folder = is[i].folder;
		assert_int_equal(format_native.probe(&dir), is[i].want);
	}
	memdir_clear(&bad);
	memdir_add(&bad, NATIVE_MANIFEST, "x", 1)->error = -EIO;
	assert_int_equal(format_native.probe(&dir), -EIO);
	/* A MANIFEST that was set aside is no stranger; what is nearly called so is. */
	afresh();
	memdir_add(&bad, NATIVE_MANIFEST ".damaged-0123abcd", "x", 1);
	assert_int_equal(open_it(&dir, &err), 0);
	memdir_add(&bad, NATIVE_MANIFEST ".damaged-0123abcde", "x", 1);
	assert_int_equal(open_it(&dir, &err), -EBADMSG);
	afresh();
	memdir_add(&bad, NATIVE_MANIFEST ".damaged-0123abcg", "x", 1);
	assert_int_equal(open_it(&dir, &err), -EBADMSG);
	afresh();
}

/* --- a writer that is given nonsense --- */

static void nonsense_is_not_written(void **state)
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

	(void)state;
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
	assert_int_equal(native_part_chunks(&t, &chunk, &n, &end, &err), 0);
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
	assert_int_equal(native_part_tail(&info, 0, &t, chunk, n, end, &bytes, &len, &root, NULL),
			 0);
	free(bytes);
	free(chunk);
	table_free(&t);
	sample_free(&s);
}

static int rebuild(struct ckpt_err *err)
{
	const struct native_lineage line = { .seq = 9, .parent_step = UINT64_MAX, .tool = "test" };
	struct source_dir dir = memdir_source(&bad);
	cleanup_free void *bytes = NULL;
	uint8_t id[16];
	uint64_t len;

	*err = (struct ckpt_err){ 0 };
	return native_rebuild(&dir, "demo", 12, &line, &bytes, &len, id, err);
}

static void world_set(uint32_t rank, uint32_t world)
{
	struct memdir_file *f = part(rank);

	((struct ck_head *)f->bytes)->world = le32_of(world);
	memdir_sign(&bad, f);
}

/* Ranks of a pipeline declare a mesh of their own stage: it does not say how many others there were. */
static void a_manifest_is_made_again_of_all_parts_or_not_at_all(void **state)
{
	static const struct {
		uint32_t world[2];
		const char *words;
	} wrong[] = {
		{ { 4, 4 }, "2 of 4 parts are missing" },
		{ { 4, 2 }, "its number of ranks is not that of the other parts" },
		{ { 0, 0 }, "do not say how many there were" },
		{ { 1, 1 }, "2 parts, and 1 ranks" },
	};
	struct ckpt_err err;

	(void)state;
	afresh();
	assert_int_equal(rebuild(&err), 0);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		for (uint32_t r = 0; r < 2; r++)
			world_set(r, wrong[i].world[r]);
		assert_int_equal(rebuild(&err), -EBADMSG);
		if (!strstr(err.msg, wrong[i].words))
			fail_msg("%s", err.msg);
	}
	afresh();
	world_set(1, 3);
	refused(part(1), "number of ranks is not what MANIFEST says");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_of_another_size_or_number_are_refused),
		cmocka_unit_test(numbers_that_contradict_each_other_are_refused),
		cmocka_unit_test(names_of_parts_that_lead_elsewhere_are_refused),
		cmocka_unit_test(a_manifest_is_made_again_of_all_parts_or_not_at_all),
		cmocka_unit_test(what_cannot_be_read_is_not_called_damaged),
		cmocka_unit_test(a_directory_is_known_by_names),
		cmocka_unit_test(nonsense_is_not_written),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
