/* SPDX-License-Identifier: Apache-2.0 */
/*
 * container.c - container.h, encoded and decoded, for formats/native, the daemon and the client.
 * Invariant: what the builders emit passes the checks, and what passes the checks can be addressed
 * without further bounds checks: every section lies inside the file.
 */
#include "ckpt/base/container.h"
#include "ckpt/base/mutant.h"
#include <inttypes.h>

#define SELF_AT (CONTAINER_BLOCK - 16)

static bool is_zero(const void *p, size_t n)
{
	const uint8_t *b = p;

	return !n || (!b[0] && !memcmp(b, b + 1, n - 1));
}

static bool self_right(const void *block)
{
	struct hash128 h = hash128(block, SELF_AT);

	return !memcmp(h.b, (const uint8_t *)block + SELF_AT, sizeof h.b);
}

/* Own checksum first: only then is anything in the block worth a word. */
static int block_check(const void *block, const char *magic, const char *what, uint64_t off,
		       struct ckpt_err *err)
{
	bool known = !memcmp(block, magic, 8);

	if (!self_right(block) && !MUTANT(BLOCK_SUM_IGNORED))
		return ckpt_error(err, -EBADMSG, "%s at offset %" PRIu64 ": %s", what, off,
				  known ? "its checksum is wrong: the file is truncated or damaged"
					: "neither its checksum nor its first bytes are right: not "
					  "a ckptd file, or truncated or damaged");
	if (!known)
		return ckpt_error(err, -EPROTO,
				  "%s at offset %" PRIu64 ": its first bytes are not "
				  "those of a ckptd %s",
				  what, off, what);
	return 0;
}

struct hash128 container_job(const char *name)
{
	return hash128(name, strlen(name));
}

static const char *kind_name(uint32_t kind)
{
	static const char *const name[] = {
		[CONTAINER_PART] = "part",
		[CONTAINER_MANIFEST] = "manifest",
		[CONTAINER_DECLARATION] = "declaration",
		[CONTAINER_JOURNAL] = "journal",
	};

	return kind && kind < ARRAY_LEN(name) ? name[kind] : "file of unknown kind";
}

void container_head_build(struct ck_head *ret_head, const struct container_info *info)
{
	struct ck_head *h = ret_head;
	struct hash128 self;

	assert(info->kind >= CONTAINER_PART && info->kind <= CONTAINER_JOURNAL);
	*h = (struct ck_head){
		.magic = CONTAINER_HEAD_MAGIC,
		.major = le16_of(CONTAINER_MAJOR),
		.minor = le16_of(CONTAINER_MINOR),
		.kind = le32_of(info->kind),
		.incompat = le64_of(CONTAINER_V02),
		.ro_compat = le64_of(info->ro_compat),
		.compat = le64_of(info->compat),
		.step = le64_of(info->step),
		.generation = le64_of(info->generation),
		.wall_ns = le64_of(info->wall_ns),
		.writer = le32_of(info->writer),
		.world = le32_of(info->world),
		.part_kind = le32_of(info->part_kind),
		.chunk_log2 = info->chunk_log2,
		.align_log2 = info->align_log2,
		.hash = CONTAINER_HASH,
	};
	memcpy(h->uuid, info->uuid, sizeof h->uuid);
	memcpy(h->job, info->job, sizeof h->job);
	memcpy(h->checkpoint, info->checkpoint, sizeof h->checkpoint);
	self = hash128(h, SELF_AT);
	memcpy(h->self, self.b, sizeof h->self);
}

bool container_is_older(const void *head_block)
{
	const struct ck_head *h = head_block;
	uint64_t incompat = le64_get(h->incompat);

	if (memcmp(h->magic, CONTAINER_HEAD_MAGIC, sizeof h->magic) != 0 || !self_right(h) ||
	    le16_get(h->major) != 0 || incompat & ~CONTAINER_V02)
		return false;
	return le16_get(h->minor) < 2 || !(incompat & CONTAINER_V02);
}

/* Refuses a file that an older or a newer version wrote, before any other field is looked at. */
static int version_check(const struct ck_head *h, struct ckpt_err *err)
{
	uint64_t incompat = le64_get(h->incompat);
	uint16_t major = le16_get(h->major), minor = le16_get(h->minor);

	if (container_is_older(h))
		return ckpt_error(err, -EPROTONOSUPPORT,
				  CONTAINER_OLDER_TEXT ": use ckptd 0.1 for it");
	if (major != CONTAINER_MAJOR)
		return ckpt_newer(err, "header at offset 0: format %u.%u; this program reads %u.%u",
				  major, minor, CONTAINER_MAJOR, CONTAINER_MINOR);
	if (incompat & ~(uint64_t)CONTAINER_V02)
		return ckpt_newer(err,
				  "header at offset 0: it needs features %#" PRIx64
				  " that this program lacks",
				  incompat & ~(uint64_t)CONTAINER_V02);
	if (h->hash != CONTAINER_HASH)
		return ckpt_newer(err, "header at offset 0: checksum algorithm %u is unknown",
				  h->hash);
	if (h->pad || !is_zero(h->zero, sizeof h->zero))
		return ckpt_newer(
			err,
			"header at offset 0: a field that this program does not know is in use");
	if (!le32_get(h->kind) || le32_get(h->kind) > CONTAINER_JOURNAL)
		return ckpt_newer(err, "header at offset 0: file kind %" PRIu32 " is unknown",
				  le32_get(h->kind));
	return 0;
}

int container_head_check(const void *block, uint32_t want_kind, struct container_info *ret_info,
			 struct ckpt_err *err)
{
	const struct ck_head *h = block;
	uint32_t kind = le32_get(h->kind);
	int r;

	r = block_check(h, CONTAINER_HEAD_MAGIC, "header", 0, err);
	if (r < 0)
		return r;
	r = version_check(h, err);
	if (r < 0)
		return r;
	if (want_kind && kind != want_kind)
		return ckpt_error(err, -EPROTO,
				  "header at offset 0: this is a %s where a %s belongs",
				  kind_name(kind), kind_name(want_kind));
	*ret_info = (struct container_info){
		.kind = kind,
		.major = le16_get(h->major),
		.minor = le16_get(h->minor),
		.ro_compat = le64_get(h->ro_compat),
		.compat = le64_get(h->compat),
		.step = le64_get(h->step),
		.generation = le64_get(h->generation),
		.wall_ns = le64_get(h->wall_ns),
		.writer = le32_get(h->writer),
		.world = le32_get(h->world),
		.part_kind = le32_get(h->part_kind),
		.chunk_log2 = h->chunk_log2,
		.align_log2 = h->align_log2,
	};
	memcpy(ret_info->uuid, h->uuid, sizeof h->uuid);
	memcpy(ret_info->job, h->job, sizeof h->job);
	memcpy(ret_info->checkpoint, h->checkpoint, sizeof h->checkpoint);
	return 0;
}

/* The law of the table, for writer and reader. The map's file_bytes is that of the file. */
static int map_check(const struct container_map *m, struct ckpt_err *err)
{
	uint64_t tail_at = m->file_bytes - CONTAINER_BLOCK, end, bytes;

	if (m->data_end < CONTAINER_BLOCK || m->data_end > tail_at)
		return ckpt_error(err, -EPROTO,
				  "trailer at offset %" PRIu64 ": data that ends at %" PRIu64
				  " does not lie between header and trailer",
				  tail_at, m->data_end);
	end = m->data_end;
	for (uint32_t i = 0; i < m->nsect; i++) {
		const struct container_sect *s = &m->sect[i];
		const char *why = NULL;
		uint64_t free_at = align_up(end, CONTAINER_BLOCK);

		if (!s->kind)
			why = "it has no kind";
		else if (s->off % CONTAINER_BLOCK)
			why = "it does not start on a multiple of 4096";
		else if (s->off < free_at)
			why = "it overlaps what lies before it";
		else if (ckpt_add(s->off, s->len, &end) < 0 || end > tail_at)
			why = "it does not end before the trailer";
		else if (s->rec_bytes &&
			 (ckpt_mul(s->count, s->rec_bytes, &bytes) < 0 || bytes != s->len))
			why = "its length is not that of its records";
		for (uint32_t j = 0; j < i && !why; j++)
			if (m->sect[j].kind == s->kind)
				why = "there is another of its kind";
		if (why)
			return ckpt_error(err, -EPROTO,
					  "trailer at offset %" PRIu64 ": section %" PRIu32
					  " (kind %" PRIu32 ", offset %" PRIu64 ", %" PRIu64
					  " bytes): %s",
					  tail_at, i, s->kind, s->off, s->len, why);
	}
	return 0;
}

void container_map_start(struct container_map *ret_map, const uint8_t uuid[16], uint64_t data_end)
{
	assert(data_end >= CONTAINER_BLOCK && data_end <= INT64_MAX);
	*ret_map = (struct container_map){
		.data_end = data_end,
		.file_bytes = align_up(data_end, CONTAINER_BLOCK) + CONTAINER_BLOCK,
	};
	memcpy(ret_map->uuid, uuid, sizeof ret_map->uuid);
}

const struct container_sect *container_map_add(struct container_map *m,
					       const struct container_bytes *b)
{
	struct container_sect *s = &m->sect[m->nsect];

	assert(m->nsect < CONTAINER_SECT_MAX && b->kind);
	assert(!b->rec_bytes || b->len % b->rec_bytes == 0);
	assert(b->len <= INT64_MAX - m->file_bytes);
	m->nsect++;
	*s = (struct container_sect){
		.kind = b->kind,
		.flags = b->flags,
		.rec_bytes = b->rec_bytes,
		.off = m->file_bytes - CONTAINER_BLOCK,
		.len = b->len,
		.count = b->rec_bytes ? b->len / b->rec_bytes : b->count,
		.hash = hash128(b->p, (size_t)b->len),
	};
	m->file_bytes = align_up(s->off + s->len, CONTAINER_BLOCK) + CONTAINER_BLOCK;
	return s;
}

void container_tail_build(struct ck_tail *ret_tail, struct container_map *m)
{
	struct ck_tail *t = ret_tail;

	assert(m->nsect <= CONTAINER_SECT_MAX && m->file_bytes % CONTAINER_BLOCK == 0);
	assert(m->file_bytes >= 2 * CONTAINER_BLOCK && map_check(m, NULL) == 0);
	*t = (struct ck_tail){
		.magic = CONTAINER_TAIL_MAGIC,
		.file_bytes = le64_of(m->file_bytes),
		.data_end = le64_of(m->data_end),
		.nsect = le32_of(m->nsect),
	};
	memcpy(t->uuid, m->uuid, sizeof t->uuid);
	for (uint32_t i = 0; i < m->nsect; i++) {
		const struct container_sect *s = &m->sect[i];

		t->sect[i] = (struct ck_sect){
			.kind = le32_of(s->kind),
			.flags = le32_of(s->flags),
			.rec_bytes = le32_of(s->rec_bytes),
			.off = le64_of(s->off),
			.len = le64_of(s->len),
			.count = le64_of(s->count),
		};
		memcpy(t->sect[i].hash, s->hash.b, sizeof t->sect[i].hash);
	}
	m->self = hash128(t, SELF_AT);
	memcpy(t->self, m->self.b, sizeof t->self);
}

/* The unused bytes of a trailer, and the number of sections, before its table is believed. */
static int tail_form_check(const struct ck_tail *t, uint64_t off, struct ckpt_err *err)
{
	uint32_t n = le32_get(t->nsect);
	bool clean = is_zero(&t->zero, sizeof t->zero) && is_zero(t->pad, sizeof t->pad);

	if (n > CONTAINER_SECT_MAX)
		return ckpt_error(err, -EPROTO,
				  "trailer at offset %" PRIu64 ": %" PRIu32
				  " sections, more than %d",
				  off, n, CONTAINER_SECT_MAX);
	for (uint32_t i = 0; i < n; i++)
		clean = clean && is_zero(&t->sect[i].zero, sizeof t->sect[i].zero);
	if (!clean || !is_zero(t->sect + n, sizeof *t->sect * (CONTAINER_SECT_MAX - n)))
		return ckpt_newer(err,
				  "trailer at offset %" PRIu64
				  ": a field that this program does not know is in use",
				  off);
	return 0;
}

static void map_fill(struct container_map *m, const struct ck_tail *t)
{
	*m = (struct container_map){
		.file_bytes = le64_get(t->file_bytes),
		.data_end = le64_get(t->data_end),
		.nsect = le32_get(t->nsect),
	};
	memcpy(m->uuid, t->uuid, sizeof m->uuid);
	memcpy(m->self.b, t->self, sizeof m->self.b);
	for (uint32_t i = 0; i < m->nsect; i++) {
		m->sect[i] = (struct container_sect){
			.kind = le32_get(t->sect[i].kind),
			.flags = le32_get(t->sect[i].flags),
			.rec_bytes = le32_get(t->sect[i].rec_bytes),
			.off = le64_get(t->sect[i].off),
			.len = le64_get(t->sect[i].len),
			.count = le64_get(t->sect[i].count),
		};
		memcpy(m->sect[i].hash.b, t->sect[i].hash, sizeof m->sect[i].hash.b);
	}
}

static int length_check(uint64_t file_bytes, struct ckpt_err *err)
{
	if (file_bytes < 2 * CONTAINER_BLOCK || file_bytes % CONTAINER_BLOCK)
		return ckpt_error(
			err, -EBADMSG,
			"a file of %" PRIu64 " bytes cannot be whole: it has to be "
			"a multiple of 4096 and at least 8192: truncated, or not a ckptd file",
			file_bytes);
	return 0;
}

int container_tail_check(const void *block, uint64_t file_bytes, struct container_map *ret_map,
			 struct ckpt_err *err)
{
	const struct ck_tail *t = block;
	uint64_t off, said;
	int r, bad;

	r = length_check(file_bytes, err);
	if (r < 0)
		return r;
	off = file_bytes - CONTAINER_BLOCK;
	r = block_check(t, CONTAINER_TAIL_MAGIC, "trailer", off, err);
	if (r < 0)
		return r;
	said = le64_get(t->file_bytes);
	if (said != file_bytes)
		return ckpt_error(err, -EBADMSG,
				  "trailer at offset %" PRIu64 ": it closes a file of %" PRIu64
				  " bytes, but this one has %" PRIu64 ": bytes were lost or added",
				  off, said, file_bytes);
	r = tail_form_check(t, off, err);
	if (r < 0 && r != -EPROTONOSUPPORT)
		return r;
	map_fill(ret_map, t);
	/* A trailer that a newer version wrote is called newer even if its table contradicts
	 * itself. If the table is good, the caller can still compare the sections with their
	 * sums. */
	bad = map_check(ret_map, r < 0 ? NULL : err);
	if (bad < 0)
		ret_map->file_bytes = 0;
	return r < 0 ? r : bad;
}

int container_check(const struct container_info *info, const struct container_map *m,
		    struct ckpt_err *err)
{
	uint64_t off = m->file_bytes - CONTAINER_BLOCK;

	if (memcmp(info->uuid, m->uuid, sizeof m->uuid))
		return ckpt_error(err, -EBADMSG,
				  "trailer at offset %" PRIu64 ": its uuid is not the "
				  "header's: two files were mixed",
				  off);
	if (info->kind != CONTAINER_PART && m->data_end != CONTAINER_BLOCK)
		return ckpt_error(err, -EPROTO,
				  "trailer at offset %" PRIu64 ": data up to %" PRIu64
				  ", but a %s has none",
				  off, m->data_end, kind_name(info->kind));
	return 0;
}

int container_sect_check(const struct container_sect *s, const void *bytes, struct ckpt_err *err)
{
	struct hash128 h = hash128(bytes, (size_t)s->len);

	if (memcmp(h.b, s->hash.b, sizeof h.b) && !MUTANT(SECTION_SUM_IGNORED))
		return ckpt_error(err, -EBADMSG,
				  "section of kind %" PRIu32 " at offset %" PRIu64 ", %" PRIu64
				  " bytes: its checksum is wrong: the file is damaged",
				  s->kind, s->off, s->len);
	return 0;
}

int container_gap_check(const void *p, uint64_t bytes, uint64_t off, struct ckpt_err *err)
{
	if (!is_zero(p, (size_t)bytes))
		return ckpt_error(err, -EBADMSG,
				  "padding at offset %" PRIu64 ", %" PRIu64
				  " bytes: it is not zero",
				  off, bytes);
	return 0;
}

int container_encode(const struct container_info *info, const struct container_bytes *sect,
		     uint32_t nsect, void **ret_bytes, uint64_t *ret_len, struct ckpt_err *err)
{
	struct container_map m;
	struct ck_head head;
	struct ck_tail tail;
	uint8_t *bytes;
	uint64_t at;

	container_map_start(&m, info->uuid, CONTAINER_BLOCK);
	for (uint32_t i = 0; i < nsect; i++)
		container_map_add(&m, &sect[i]);
	bytes = aligned_alloc(CONTAINER_BLOCK, (size_t)m.file_bytes);
	if (!bytes)
		return ckpt_error(err, -ENOMEM, "no memory for a %s of %" PRIu64 " bytes",
				  kind_name(info->kind), m.file_bytes);
	container_head_build(&head, info);
	container_tail_build(&tail, &m);
	memcpy(bytes, &head, sizeof head);
	at = sizeof head;
	for (uint32_t i = 0; i < nsect; i++) {
		const struct container_sect *s = &m.sect[i];

		memset(bytes + at, 0, s->off - at);
		if (s->len)
			memcpy(bytes + s->off, sect[i].p, s->len);
		at = s->off + s->len;
	}
	memset(bytes + at, 0, m.file_bytes - sizeof tail - at);
	memcpy(bytes + m.file_bytes - sizeof tail, &tail, sizeof tail);
	*ret_bytes = bytes;
	*ret_len = m.file_bytes;
	return 0;
}

/* Everything behind the data area: padding and sections. */
static int body_check(const uint8_t *bytes, const struct container_map *m, struct ckpt_err *err)
{
	uint64_t at = m->data_end;
	int r;

	for (uint32_t i = 0; i < m->nsect; i++) {
		const struct container_sect *s = &m->sect[i];

		r = container_gap_check(bytes + at, s->off - at, at, err);
		if (r < 0)
			return r;
		r = container_sect_check(s, bytes + s->off, err);
		if (r < 0)
			return r;
		at = s->off + s->len;
	}
	return container_gap_check(bytes + at, m->file_bytes - CONTAINER_BLOCK - at, at, err);
}

int container_decode(const void *bytes, uint64_t len, uint32_t want_kind,
		     struct container_view *ret_view, struct ckpt_err *err)
{
	const uint8_t *b = bytes;
	int r;

	r = length_check(len, err);
	if (r < 0)
		return r;
	r = container_head_check(b, want_kind, &ret_view->info, err);
	if (r < 0)
		return r;
	r = container_tail_check(b + len - CONTAINER_BLOCK, len, &ret_view->map, err);
	if (r < 0)
		return r;
	r = container_check(&ret_view->info, &ret_view->map, err);
	if (r < 0)
		return r;
	ret_view->bytes = b;
	return body_check(b, &ret_view->map, err);
}

static const struct container_sect *map_find(const struct container_map *m, uint32_t kind)
{
	for (uint32_t i = 0; i < m->nsect; i++)
		if (m->sect[i].kind == kind)
			return &m->sect[i];
	return NULL;
}

struct container_bytes container_view_get(const struct container_view *v, uint32_t kind)
{
	const struct container_sect *s = map_find(&v->map, kind);

	if (!s)
		return (struct container_bytes){ .kind = kind };
	return (struct container_bytes){
		.kind = kind,
		.flags = s->flags,
		.rec_bytes = s->rec_bytes,
		.p = v->bytes + s->off,
		.len = s->len,
		.count = s->count,
	};
}

int container_view_records(const struct container_view *v, uint32_t kind, uint32_t rec_bytes,
			   const void **ret_rec, uint64_t *ret_count, struct ckpt_err *err)
{
	const struct container_sect *s = map_find(&v->map, kind);

	if (s && s->rec_bytes != rec_bytes)
		return ckpt_newer(err,
				  "section of kind %" PRIu32 " at offset %" PRIu64
				  ": records of %" PRIu32
				  " bytes; this program knows them with %" PRIu32,
				  kind, s->off, s->rec_bytes, rec_bytes);
	*ret_rec = s ? v->bytes + s->off : NULL;
	*ret_count = s ? s->count : 0;
	return 0;
}
