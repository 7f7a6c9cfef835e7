/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_container.c - the envelope of all files: what is written is read, nothing else is. */
#include "ckpt/base/container.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define BLOCK CONTAINER_BLOCK

struct file {
	uint8_t *b;
	uint64_t len;
};

static void file_free(struct file *f)
{
	free(f->b);
}
#define cleanup_file __attribute__((cleanup(file_free)))

static struct container_info sample_info(uint32_t kind)
{
	struct container_info i =
		ROW(.kind = kind, .ro_compat = 5, .compat = UINT64_C(1) << 63,
		    .step = UINT64_C(0x1122334455667788), .generation = 3, .wall_ns = 4,
		    .writer = 0xfffffffe, .world = 0xfffffffd, .chunk_log2 = 20, .align_log2 = 12);
	struct hash128 job = container_job("demo");

	for (uint8_t k = 0; k < 16; k++)
		i.uuid[k] = (uint8_t)(k + 1);
	memcpy(i.job, job.b, sizeof i.job);
	return i;
}

static const char rec[24] = "abcdefgh12345678ABCDEFG";
static uint8_t big[5000];

/* Four sections: records, an empty one, bytes that fill more than a page, bytes that end on one. */
static struct file sample(uint32_t kind)
{
	struct container_info info = sample_info(kind);
	struct container_bytes s[] = {
		{ .kind = 7, .flags = 9, .rec_bytes = 8, .p = rec, .len = sizeof rec },
		{ .kind = 3, .rec_bytes = 8 },
		{ .kind = 100, .p = big, .len = sizeof big, .count = 17 },
		{ .kind = 1, .p = big, .len = 4096, .count = 1 },
	};
	struct file f;
	void *bytes;

	for (size_t i = 0; i < sizeof big; i++)
		big[i] = (uint8_t)(i * 7 + 1);
	assert_int_equal(container_encode(&info, s, ARRAY_LEN(s), &bytes, &f.len, NULL), 0);
	f.b = bytes;
	return f;
}

/* Put the block's own checksum right again after a change that a hostile writer would make. */
static void reseal(uint8_t *block)
{
	struct hash128 h = hash128(block, BLOCK - 16);

	memcpy(block + BLOCK - 16, h.b, 16);
}

static struct ckpt_err err; /* of the last decoding */

static int decode(struct file f, uint32_t kind)
{
	/* Only the bytes of the file may be read: a sanitizer watches the end of this copy. */
	cleanup_free uint8_t *copy = malloc(f.len ? f.len : 1);
	static struct container_view v;
	int r;

	assert_non_null(copy);
	memcpy(copy, f.b, f.len);
	err = (struct ckpt_err){ 0 };
	r = container_decode(copy, f.len, kind, &v, &err);
	assert_int_equal(r, err.code);
	return r;
}

static void assert_says(const char *what)
{
	if (!strstr(err.msg, what))
		fail_msg("\"%s\" does not say \"%s\"", err.msg, what);
}

static void assert_refused(struct file f, uint32_t kind, const char *says)
{
	assert_int_equal(decode(f, kind), -EBADMSG);
	assert_says(says);
}

TEST(what_was_encoded_is_decoded)
{
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);
	struct container_info want = sample_info(CONTAINER_MANIFEST);
	struct container_view v;
	struct container_bytes s;
	const void *p;
	uint64_t n;

	assert_int_equal((uintptr_t)f.b % BLOCK, 0);
	assert_true(f.len == BLOCK * 6);
	assert_int_equal(container_decode(f.b, f.len, CONTAINER_MANIFEST, &v, NULL), 0);
	assert_int_equal(container_decode(f.b, f.len, 0, &v, NULL), 0);
	assert_int_equal(v.info.kind, CONTAINER_MANIFEST);
	assert_int_equal(v.info.major, CONTAINER_MAJOR);
	assert_true(v.info.ro_compat == want.ro_compat && v.info.compat == want.compat);
	assert_memory_equal(v.info.uuid, want.uuid, 16);
	assert_memory_equal(v.info.job, want.job, 16);
	assert_true(v.info.step == want.step && v.info.generation == 3 && v.info.wall_ns == 4);
	assert_int_equal(v.info.writer, 0xfffffffe);
	assert_int_equal(v.info.chunk_log2, 20);
	assert_int_equal(v.info.align_log2, 12);
	assert_int_equal(v.map.nsect, 4);
	assert_true(v.map.data_end == BLOCK && v.map.file_bytes == f.len);
	assert_memory_equal(v.map.uuid, want.uuid, 16);
	assert_memory_equal(v.map.self.b, f.b + f.len - 16, 16);

	s = container_view_get(&v, 7);
	assert_true(s.len == sizeof rec && s.count == 3 && s.flags == 9 && s.rec_bytes == 8);
	assert_memory_equal(s.p, rec, sizeof rec);
	s = container_view_get(&v, 100);
	assert_true(s.len == sizeof big && s.count == 17);
	assert_memory_equal(s.p, big, sizeof big);
	s = container_view_get(&v, 3);
	assert_true(s.p && s.len == 0 && s.count == 0);
	s = container_view_get(&v, 4);
	assert_true(!s.p && s.len == 0 && s.count == 0);

	assert_int_equal(container_view_records(&v, 7, 8, &p, &n, NULL), 0);
	assert_true(n == 3 && !memcmp(p, rec, sizeof rec));
	assert_int_equal(container_view_records(&v, 7, 16, &p, &n, NULL), -EPROTONOSUPPORT);
	assert_int_equal(container_view_records(&v, 4, 8, &p, &n, NULL), 0);
	assert_true(!p && n == 0);
}

/* The bytes on disk, pinned: who changes them changes the format. */
TEST(the_layout_on_disk_is_the_documented_one)
{
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);
	const uint8_t *t = f.b + f.len - BLOCK;

	assert_memory_equal(f.b, "\211CKPTD\r\n\0\0\2\0\2\0\0\0\1\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0",
			    32);
	assert_memory_equal(f.b + 32,
			    "\0\0\0\0\0\0\0\x80\1\2\3\4\5\6\7\x8\x9\xa\xb\xc\xd\xe\xf\x10", 24);
	assert_memory_equal(f.b + 56,
			    "\xbe\x56\x88\x1f\xd2\xbc\x18\x0c\x60\xcd\x52\xd9\xcb\xf6\x75\x41", 16);
	assert_memory_equal(f.b + 72,
			    "\x88\x77\x66\x55\x44\x33\x22\x11\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 24);
	assert_memory_equal(f.b + 96, "\xfe\xff\xff\xff\x14\xc\1\0", 8);
	assert_memory_equal(t, "\211CKPTE\r\n\0\x60\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\4\0\0\0\0\0\0\0",
			    32);
	assert_memory_equal(t + 32, "\1\2\3\4\5\6\7\x8\x9\xa\xb\xc\xd\xe\xf\x10", 16);
	assert_memory_equal(t + 48, "\7\0\0\0\x9\0\0\0\x8\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0", 24);
	assert_memory_equal(t + 72, "\x18\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16);
}

TEST(every_flipped_byte_is_found)
{
	cleanup_file struct file f = sample(CONTAINER_DECLARATION);
	struct container_view v;

	for (uint64_t i = 0; i < f.len; i++) {
		uint8_t flip = (uint8_t)(1 << i % 8);

		for (int k = 0; k < 2; k++, flip = 0xff) {
			f.b[i] ^= flip;
			if (container_decode(f.b, f.len, CONTAINER_DECLARATION, &v, NULL) !=
			    -EBADMSG)
				fail_msg("byte %llu may be %02x", (unsigned long long)i, f.b[i]);
			f.b[i] ^= flip;
		}
	}
	assert_int_equal(container_decode(f.b, f.len, CONTAINER_DECLARATION, &v, NULL), 0);
}

TEST(every_truncated_or_lengthened_file_is_found)
{
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);
	struct file cut;

	for (uint64_t len = 0; len < f.len; len++) {
		cut = (struct file){ f.b, len };
		assert_int_equal(decode(cut, CONTAINER_MANIFEST), -EBADMSG);
		if (len < 2 * BLOCK || len % BLOCK)
			assert_says("cannot be whole");
	}
	for (uint64_t len = 2 * BLOCK; len < f.len; len += BLOCK) {
		cut = (struct file){ f.b + f.len - len, len }; /* lost at the front */
		assert_int_equal(decode(cut, CONTAINER_MANIFEST), -EBADMSG);
		cut.b = malloc(len); /* lost in the middle */
		assert_non_null(cut.b);
		memcpy(cut.b, f.b, len - BLOCK);
		memcpy(cut.b + len - BLOCK, f.b + f.len - BLOCK, BLOCK);
		assert_refused(cut, CONTAINER_MANIFEST, "bytes were lost or added");
		free(cut.b);
	}
	cut = (struct file){ calloc(1, f.len + BLOCK), f.len + BLOCK };
	assert_non_null(cut.b);
	memcpy(cut.b, f.b, f.len);
	assert_int_equal(decode(cut, CONTAINER_MANIFEST), -EBADMSG);
	memcpy(cut.b + f.len, f.b + f.len - BLOCK, BLOCK);
	assert_refused(cut, CONTAINER_MANIFEST, "bytes were lost or added");
	free(cut.b);
}

TEST(messages_name_the_offset_and_the_reason)
{
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);

	f.b[f.len - 100] ^= 1;
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EBADMSG);
	assert_string_equal(err.msg, "trailer at offset 20480: its checksum is wrong: "
				     "the file is truncated or damaged");
	f.b[f.len - 100] ^= 1;
	f.b[BLOCK + 5] ^= 1;
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EBADMSG);
	assert_string_equal(err.msg,
			    "section of kind 7 at offset 4096, 24 bytes: its checksum is wrong: "
			    "the file is damaged");
	f.b[BLOCK + 5] ^= 1;
	f.b[2 * BLOCK + 5000] ^= 1;
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EBADMSG);
	assert_string_equal(err.msg, "padding at offset 13192, 3192 bytes: it is not zero");
	f.b[2 * BLOCK + 5000] ^= 1;
	assert_int_equal(decode(f, CONTAINER_PART), -EPROTO);
	assert_string_equal(err.msg, "header at offset 0: this is a manifest where a part belongs");
	memset(f.b, 'x', BLOCK);
	assert_refused(f, CONTAINER_MANIFEST, "header at offset 0: ");
	assert_says("not a ckptd file");
	reseal(f.b);
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EPROTO);
	assert_says("first bytes are not those of a ckptd header");
}

TEST(newer_versions_are_refused_and_tolerable_ones_are_read)
{
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);
	struct ck_head *h = (struct ck_head *)f.b;

	h->minor = le16_of(77);
	h->ro_compat = le64_of(UINT64_MAX);
	h->compat = le64_of(UINT64_MAX);
	reseal(f.b);
	assert_int_equal(decode(f, CONTAINER_MANIFEST), 0);
	for (int bit = 1; bit < 64; bit++) {
		h->incompat = le64_of(CONTAINER_V02 | UINT64_C(1) << bit);
		reseal(f.b);
		assert_int_equal(decode(f, CONTAINER_MANIFEST), -EPROTONOSUPPORT);
		assert_says("written by a newer version");
		assert_says("needs features");
	}
	h->incompat = le64_of(CONTAINER_V02);
	h->hash = CONTAINER_HASH + 1;
	reseal(f.b);
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EPROTONOSUPPORT);
	h->hash = CONTAINER_HASH;
	h->major = le16_of(CONTAINER_MAJOR + 1);
	h->kind = le32_of(99); /* of a version that is not ours, nothing else is judged */
	memset(h->zero, 1, sizeof h->zero);
	reseal(f.b);
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EPROTONOSUPPORT);
	assert_says("written by a newer version");
	assert_says("format 1.77");
	h->self[3] ^= 1; /* a version is believed only under a right checksum */
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EBADMSG);
}

/* Looked at before all else that a version changed; and never called newer, which it is not. */
TEST(what_an_older_version_wrote_is_told)
{
	static const struct {
		uint16_t minor;
		uint64_t incompat;
		const char *says;
	} older[] = {
		{ 0, 0, "format 0.0 of ckptd 0.1; this program reads 0.2" },
		{ 1, CONTAINER_V02, "format 0.0 of" },
		{ 2, 0, "format 0.0 of" },
	};
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);
	struct ck_head *h = (struct ck_head *)f.b;

	memset(h->zero, 1, sizeof h->zero);
	h->kind = le32_of(99);
	for (size_t i = 0; i < ARRAY_LEN(older); i++) {
		h->minor = le16_of(older[i].minor);
		h->incompat = le64_of(older[i].incompat);
		reseal(f.b);
		assert_int_equal(decode(f, CONTAINER_PART), -EPROTONOSUPPORT);
		assert_says(older[i].says);
		assert_null(strstr(err.msg, "newer"));
	}
}

TEST(unused_bytes_of_the_blocks_are_a_newer_versions)
{
	static const struct {
		bool tail;
		size_t off;
	} at[] = {
		{ false, offsetof(struct ck_head, pad) },
		{ false, offsetof(struct ck_head, zero) },
		{ false, offsetof(struct ck_head, self) - 1 },
		{ true, offsetof(struct ck_tail, zero) + 3 },
		{ true, offsetof(struct ck_tail, pad) },
		{ true, offsetof(struct ck_tail, self) - 1 },
		{ true, offsetof(struct ck_tail, sect) + offsetof(struct ck_sect, zero) },
		{ true, offsetof(struct ck_tail, sect) + 4 * sizeof(struct ck_sect) },
		{ true, offsetof(struct ck_tail, pad) - 1 },
	};

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		cleanup_file struct file f = sample(CONTAINER_MANIFEST);
		uint8_t *block = at[i].tail ? f.b + f.len - BLOCK : f.b;

		block[at[i].off] ^= 1;
		reseal(block);
		assert_int_equal(decode(f, CONTAINER_MANIFEST), -EPROTONOSUPPORT);
		assert_says("written by a newer version");
		assert_says("a field that this program does not know is in use");
	}
}

TEST(a_header_of_unknown_kind_is_refused)
{
	static const uint32_t kind[] = { 0, 5, UINT32_MAX };
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);

	for (size_t i = 0; i < ARRAY_LEN(kind); i++) {
		((struct ck_head *)f.b)->kind = le32_of(kind[i]);
		reseal(f.b);
		assert_int_equal(decode(f, 0), -EPROTONOSUPPORT);
		assert_says("is unknown");
	}
}

TEST(a_header_before_0_2_is_older_and_one_that_asks_for_more_is_not)
{
	static const struct {
		uint16_t major, minor;
		uint64_t incompat;
		bool older;
	} x[] = {
		{ 0, 0, 0, true },
		{ 0, 1, 0, true },
		{ 0, 2, 0, true },
		{ 0, 9, 0, true },
		{ 0, 0, CONTAINER_V02, true },
		{ 0, 1, CONTAINER_V02, true },
		{ 0, 2, CONTAINER_V02, false },
		{ 0, 3, CONTAINER_V02, false },
		{ 0, 0, CONTAINER_TESTED, false },
		{ 0, 0, 2, false },
		{ 0, 2, CONTAINER_V02 | 4, false },
		{ 1, 0, 0, false },
	};
	cleanup_free struct ck_head *h = malloc(sizeof *h);
	struct hash128 self;

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		*h = (struct ck_head){ .magic = CONTAINER_HEAD_MAGIC,
				       .major = le16_of(x[i].major),
				       .minor = le16_of(x[i].minor),
				       .incompat = le64_of(x[i].incompat) };
		self = hash128(h, offsetof(struct ck_head, self));
		memcpy(h->self, self.b, sizeof h->self);
		if (container_is_older(h) != x[i].older)
			fail_msg("%u.%u, %#" PRIx64, x[i].major, x[i].minor, x[i].incompat);
		h->step = le64_of(1); /* damaged */
		assert_false(container_is_older(h));
		h->step = le64_of(0);
		h->magic[0] ^= 1;
		self = hash128(h, offsetof(struct ck_head, self));
		memcpy(h->self, self.b, sizeof h->self);
		assert_false(container_is_older(h));
	}
}

TEST(header_and_trailer_of_different_files_do_not_match)
{
	cleanup_file struct file f = sample(CONTAINER_MANIFEST);

	((struct ck_head *)f.b)->uuid[15] ^= 1;
	reseal(f.b);
	assert_refused(f, CONTAINER_MANIFEST, "two files were mixed");
}

TEST(hostile_section_tables_are_refused)
{
	const uint64_t tail_at = 5 * BLOCK;
	static const uint64_t two63 = UINT64_C(1) << 63, top = UINT64_MAX - BLOCK + 1;
	const struct {
		uint32_t i; /* row; 0, 1, 2, 3 are kinds 7, 3, 100, 1 */
		const char *field;
		uint64_t value;
		const char *says;
	} t[] = {
		{ 0, "kind", 0, "no kind" },
		{ 3, "kind", 7, "another of its kind" },
		{ 1, "kind", 7, "another of its kind" },
		{ 0, "off", 0, "overlaps" },
		{ 0, "off", BLOCK + 1, "multiple of 4096" },
		{ 0, "off", BLOCK - 1, "multiple of 4096" },
		{ 2, "off", BLOCK, "overlaps" },
		{ 3, "off", 2 * BLOCK, "overlaps" },
		{ 3, "off", 3 * BLOCK, "overlaps" },
		{ 3, "off", tail_at, "before the trailer" },
		{ 3, "off", 6 * BLOCK, "before the trailer" },
		{ 3, "off", two63, "before the trailer" },
		{ 3, "off", top, "before the trailer" },
		{ 1, "off", tail_at + BLOCK, "before the trailer" },
		{ 3, "len", 4097, "before the trailer" },
		{ 3, "len", UINT64_MAX, "before the trailer" },
		{ 3, "len", UINT64_MAX - 4 * BLOCK, "before the trailer" },
		{ 2, "len", 3 * BLOCK, "overlaps" }, /* row 3 begins inside it */
		{ 0, "len", 25, "not that of its records" },
		{ 0, "count", 4, "not that of its records" },
		{ 0, "count", UINT64_MAX, "not that of its records" },
		{ 0, "count", (UINT64_C(1) << 61) + 3, "not that of its records" },
		{ 0, "rec_bytes", UINT32_MAX, "not that of its records" },
		{ 1, "count", 1, "not that of its records" },
		{ 0, "nsect", 3, "a field that this program does not know" },
		{ 0, "nsect", 65, "more than 64" },
		{ 0, "nsect", UINT32_MAX, "more than 64" },
		{ 0, "nsect", 5, "no kind" },
		{ 0, "data_end", 0, "between header and trailer" },
		{ 0, "data_end", BLOCK - 1, "between header and trailer" },
		{ 0, "data_end", tail_at + 1, "between header and trailer" },
		{ 0, "data_end", UINT64_MAX, "between header and trailer" },
		{ 0, "data_end", BLOCK + 1, "overlaps" },
		{ 0, "data_end", tail_at, "overlaps" },
		{ 0, "file_bytes", 5 * BLOCK, "lost or added" },
		{ 0, "file_bytes", 0, "lost or added" },
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		cleanup_file struct file f = sample(CONTAINER_PART);
		struct ck_tail *tail = (struct ck_tail *)(f.b + f.len - BLOCK);
		struct ck_sect *s = &tail->sect[t[i].i];
		const char *n = t[i].field;
		int want;

		if (!strcmp(n, "kind"))
			s->kind = le32_of((uint32_t)t[i].value);
		else if (!strcmp(n, "rec_bytes"))
			s->rec_bytes = le32_of((uint32_t)t[i].value);
		else if (!strcmp(n, "off"))
			s->off = le64_of(t[i].value);
		else if (!strcmp(n, "len"))
			s->len = le64_of(t[i].value);
		else if (!strcmp(n, "count"))
			s->count = le64_of(t[i].value);
		else if (!strcmp(n, "nsect"))
			tail->nsect = le32_of((uint32_t)t[i].value);
		else if (!strcmp(n, "data_end"))
			tail->data_end = le64_of(t[i].value);
		else
			tail->file_bytes = le64_of(t[i].value);
		reseal((uint8_t *)tail);
		want = !strcmp(n, "file_bytes")			? -EBADMSG
		       : !strcmp(n, "nsect") && t[i].value == 3 ? -EPROTONOSUPPORT
								: -EPROTO;
		if (decode(f, CONTAINER_PART) != want || !strstr(err.msg, t[i].says))
			fail_msg("row %u, %s = %llu: \"%s\"", t[i].i, n,
				 (unsigned long long)t[i].value, err.msg);
	}
}

TEST(only_a_part_has_data)
{
	struct container_info info = sample_info(CONTAINER_PART);
	struct container_bytes b = { .kind = 7, .rec_bytes = 8, .p = rec, .len = sizeof rec };
	cleanup_file struct file f = { calloc(1, 5 * BLOCK), 5 * BLOCK };
	const struct container_sect *s;
	struct container_view v;
	struct container_map m;

	assert_non_null(f.b);
	container_map_start(&m, info.uuid, 2 * BLOCK + 100);
	assert_true(m.file_bytes == 4 * BLOCK);
	s = container_map_add(&m, &b);
	assert_true(s->off == 3 * BLOCK && m.file_bytes == f.len);
	container_head_build((struct ck_head *)f.b, &info);
	memset(f.b + BLOCK, 0xdd, BLOCK + 100);
	memcpy(f.b + s->off, rec, sizeof rec);
	container_tail_build((struct ck_tail *)(f.b + f.len - BLOCK), &m);
	assert_int_equal(decode(f, CONTAINER_PART), 0);
	assert_int_equal(container_decode(f.b, f.len, CONTAINER_PART, &v, NULL), 0);
	assert_memory_equal(&v.map.self, &m.self, sizeof m.self);
	f.b[2 * BLOCK + 99] ^= 1; /* the data is the using format's business, */
	assert_int_equal(decode(f, CONTAINER_PART), 0);
	f.b[2 * BLOCK + 100] ^= 1; /* the padding behind it is not */
	assert_int_equal(decode(f, CONTAINER_PART), -EBADMSG);
	assert_string_equal(err.msg, "padding at offset 8292, 3996 bytes: it is not zero");
	f.b[2 * BLOCK + 100] ^= 1;
	((struct ck_head *)f.b)->kind = le32_of(CONTAINER_MANIFEST);
	reseal(f.b);
	assert_int_equal(decode(f, CONTAINER_MANIFEST), -EPROTO);
	assert_says("a manifest has none");
}

TEST(a_gap_of_zeros_before_a_section_may_be_larger_than_needed)
{
	cleanup_file struct file f = sample(CONTAINER_PART);
	struct ck_tail *tail = (struct ck_tail *)(f.b + f.len - BLOCK);

	/* Row 3 (the last, one page) is dropped: its page becomes padding and has to be zero. */
	memset(&tail->sect[3], 0, sizeof tail->sect[3]);
	tail->nsect = le32_of(3);
	reseal((uint8_t *)tail);
	assert_refused(f, CONTAINER_PART, "padding at offset 13192, 7288 bytes");
	memset(f.b + 4 * BLOCK, 0, BLOCK);
	assert_int_equal(decode(f, CONTAINER_PART), 0);
}

TEST(none_and_sixty_four_sections_fit)
{
	struct container_info info = sample_info(CONTAINER_MANIFEST);
	struct container_bytes s[CONTAINER_SECT_MAX];
	struct container_view v;
	uint64_t len;
	void *bytes;

	assert_int_equal(container_encode(&info, NULL, 0, &bytes, &len, NULL), 0);
	assert_true(len == 2 * BLOCK);
	assert_int_equal(container_decode(bytes, len, 0, &v, NULL), 0);
	free(bytes);
	for (uint32_t i = 0; i < CONTAINER_SECT_MAX; i++)
		s[i] = (struct container_bytes){ .kind = 1000 - i, .p = rec, .len = i % 3 };
	assert_int_equal(container_encode(&info, s, CONTAINER_SECT_MAX, &bytes, &len, NULL), 0);
	assert_int_equal(container_decode(bytes, len, 0, &v, NULL), 0);
	for (uint32_t i = 0; i < CONTAINER_SECT_MAX; i++)
		assert_true(container_view_get(&v, 1000 - i).len == i % 3);
	free(bytes);
}
