/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_read.c - step directories back into tables. Called by every verb, by restore and by scans
 * of a store. Invariant: nothing is used before the hash over it was right and every number in it
 * was compared with what it counts; and every single byte of MANIFEST and of the parts' metadata is
 * under some check, so that no change goes unseen. Chunk data are move's to check, with the sums
 * given here.
 */
#include "formats/native/native_impl.h"
#include "ckpt/base/mutant.h"
#include "ckpt/table/operand.h"
#include <stdarg.h>
#include <stdio.h>

/* --- faults --- */

struct envelope;

struct reader {
	/* The file that is being read, once its sections are; what of it this program knows. Then what contradicts
	 * itself may be what a newer version means. */
	struct envelope *now;
	uint64_t now_known;
	const struct source *now_src; /* NULL: all its sections are loaded */
	bool now_newer;		      /* that was told */
	bool no_memory;		      /* to look whether it is newer */
	format_fault_fn *fault;	      /* may be NULL */
	void *arg;
	struct ckpt_errlist list; /* the same as sentences; .code: that of the first, or of the
				   * first damage */
	bool manifest;		  /* it was there */
	struct arena room;	  /* for the sections of one part after another */
	uint8_t *spare;		  /* in it, of spare_bytes */
	uint64_t spare_bytes;
};

/* What a caller must hear of before all else (docs/FORMAT.md, verdicts); what could not be read comes last. */
static int gravity(int code)
{
	switch (code) {
	case -EBADMSG:
		return 4;
	case -EUCLEAN:
		return 3;
	case -EPROTONOSUPPORT:
		return 2;
	case -EPROTO:
		return 1;
	default:
		return 0;
	}
}

static bool newer_instead(struct reader *rd, const char *file);

__attribute__((format(printf, 8, 9))) static void fault(struct reader *rd, int code,
							const char *kind, const char *file,
							const char *tensor, uint64_t off,
							uint64_t len, const char *fmt, ...)
{
	struct format_fault f = {
		.kind = kind, .file = file, .tensor = tensor, .offset = off, .length = len
	};
	char text[600];
	va_list ap;

	if (code == -EPROTO && newer_instead(rd, file))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (!rd->list.n || gravity(code) > gravity(rd->list.code))
		rd->list.code = code;
	if (*file)
		ckpt_errlist_add(&rd->list, "%s: %s", file, text);
	else
		ckpt_errlist_add(&rd->list, "%s", text);
	f.text = text;
	if (rd->fault)
		rd->fault(rd->arg, &f);
}

/* What is told and is no obstacle: no tensor's bytes are concerned. */
__attribute__((format(printf, 6, 7))) static void oddity(struct reader *rd, const char *kind,
							 const char *file, uint64_t off,
							 uint64_t len, const char *fmt, ...)
{
	struct format_fault f = {
		.kind = kind, .file = file, .tensor = "", .offset = off, .length = len
	};
	char text[600];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	f.text = text;
	if (rd->fault)
		rd->fault(rd->arg, &f);
}

/* What is right and not known here. */
__attribute__((format(printf, 5, 6))) static void
newer(struct reader *rd, const char *file, uint64_t off, uint64_t len, const char *fmt, ...)
{
	struct ckpt_err err;
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ckpt_newer(&err, "%s", text);
	fault(rd, -EPROTONOSUPPORT, "newer", file, "", off, len, "%s", err.msg);
}

/* Every line of a list as a fault. In lines of the table's checks the tensor comes first. */
static void faults_of_list(struct reader *rd, int code, const char *kind, const char *file,
			   struct ckpt_errlist *l)
{
	char *line = l->text, *next;
	uint64_t n_told = 0;

	for (; line && *line; line = next, n_told++) {
		const char *colon;
		char tensor[200];

		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = 0;
		colon = strstr(line, ": ");
		snprintf(tensor, sizeof tensor, "%.*s", (int)(colon ? colon - line : 0), line);
		fault(rd, code, kind, file, tensor, 0, 0, "%s", line);
	}
	if (n_told < l->n)
		fault(rd, code, kind, file, "", 0, 0, "and %llu more",
		      (unsigned long long)(l->n - n_told));
	ckpt_errlist_free(l);
}

/* What the container's checks said about a block: wrong bytes, or right bytes that say the wrong
 * thing. */
static void fault_of_block(struct reader *rd, int code, const char *file, const void *block,
			   uint64_t off, const struct ckpt_err *e)
{
	struct hash128 h = hash128(block, CONTAINER_BLOCK - sizeof h);
	bool whole = !memcmp(h.b, (const uint8_t *)block + CONTAINER_BLOCK - sizeof h, sizeof h);

	fault(rd, code,
	      !whole			 ? "checksum"
	      : code == -EPROTONOSUPPORT ? "newer"
					 : "malformed",
	      file, "", off, CONTAINER_BLOCK, "%s", e->msg);
}

static const char *error_text(int r)
{
	const char *text = strerrordesc_np(-r);

	return text ? text : "unknown error";
}

/* 0, or 1 after a fault. */
static int bytes_read(struct reader *rd, const struct source *src, const char *file, void *buf,
		      uint64_t len, uint64_t off)
{
	int r = len ? src->read(src->ctx, buf, len, off) : 0;

	if (r >= 0)
		return 0;
	fault(rd, r, "unreadable", file, "", off, len,
	      "%llu bytes at offset %llu cannot be read: %s", (unsigned long long)len,
	      (unsigned long long)off, error_text(r));
	return 1;
}

/* --- the envelope --- */

struct envelope {
	struct container_info info;
	struct container_map map;
	struct arena mem;
	const uint8_t *sect[CONTAINER_SECT_MAX]; /* [map.nsect]; NULL: not loaded */
};

static void envelope_free(struct envelope *e)
{
	arena_free(&e->mem);
}

#define KINDS(...)                                    \
	kinds_mask((const uint32_t[]){ __VA_ARGS__ }, \
		   sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static uint64_t kinds_mask(const uint32_t *kind, size_t n)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < n; i++)
		mask |= UINT64_C(1) << kind[i];
	return mask;
}

static bool in_mask(uint64_t mask, uint32_t kind)
{
	return kind < 64 && mask >> kind & 1;
}

/* What a newer version means by the rest of such a file is not ours to judge. */
static bool is_of_another_version(const void *head_block)
{
	const struct ck_head *h = head_block;

	return le16_get(h->major) != CONTAINER_MAJOR || container_is_older(h) ||
	       le64_get(h->incompat) != CONTAINER_V02 || h->hash != CONTAINER_HASH;
}

/* Header and trailer. root: the hash that the trailer's block must have; NULL: any. 0, 1 after
 * faults; then e->map.file_bytes is 0 unless the sections are still to be held against their hashes. */
static int blocks_read(struct reader *rd, const struct source *src, const char *file, uint32_t kind,
		       const uint8_t *root, struct envelope *e)
{
	uint64_t tail_at = src->bytes - CONTAINER_BLOCK;
	uint8_t block[CONTAINER_BLOCK];
	struct ckpt_err err;
	struct hash128 h;
	bool stop = false;
	int r, bad = 0;

	e->map.file_bytes = 0;
	if (src->bytes < 2 * CONTAINER_BLOCK) {
		fault(rd, -EBADMSG, "truncated", file, "", src->bytes,
		      2 * CONTAINER_BLOCK - src->bytes,
		      "it ends after %llu bytes, before header and trailer",
		      (unsigned long long)src->bytes);
		return 1;
	}
	if (bytes_read(rd, src, file, block, sizeof block, 0))
		return 1;
	r = container_head_check(block, kind, &e->info, &err);
	if (r < 0) {
		fault_of_block(rd, r, file, block, 0, &err);
		if (r == -EPROTONOSUPPORT && is_of_another_version(block))
			return 1;
		bad = 1;
		stop = r != -EPROTONOSUPPORT;
	}
	if (src->bytes % CONTAINER_BLOCK) {
		fault(rd, -EBADMSG, "truncated", file, "", src->bytes, 0,
		      "its %llu bytes are no multiple of %d: the end is missing",
		      (unsigned long long)src->bytes, CONTAINER_BLOCK);
		return 1;
	}
	if (bytes_read(rd, src, file, block, sizeof block, tail_at))
		return 1;
	r = container_tail_check(block, src->bytes, &e->map, &err);
	if (r < 0) {
		fault_of_block(rd, r, file, block, tail_at, &err);
		if (!e->map.file_bytes)
			return 1;
		bad = 1;
	}
	h = hash128(block, sizeof block);
	if (root && memcmp(h.b, root, sizeof h.b) != 0 && !MUTANT(PART_ROOT_IGNORED)) {
		fault(rd, -EBADMSG, "mismatch", file, "", tail_at, CONTAINER_BLOCK,
		      "it is complete, but not the file that MANIFEST names: it was replaced or "
		      "written again");
		e->map.file_bytes = 0;
		return 1;
	}
	r = bad ? 0 : container_check(&e->info, &e->map, &err);
	if (r < 0) /* a trailer with the right root is not the stranger */
		fault(rd, r, "mismatch", file, "", root ? 0 : tail_at, CONTAINER_BLOCK, "%s",
		      err.msg);
	if (stop || r < 0)
		e->map.file_bytes = 0;
	return bad || r < 0;
}

/* Those that this text names: their records do not say whether they are optional, it does. */
#define ALL_KINDS                                                                            \
	KINDS(CK_STRINGS, CK_SHAPES, CK_MESHES, CK_MESHDATA, CK_LAYOUTS, CK_PLACEMENTS,      \
	      CK_TENSORS, CK_INDEXSETS, CK_PIECES, CK_PLACES, CK_CHUNKS, CK_NOTES, CK_PARTS, \
	      CK_LINEAGE, CK_ATTRS, CK_SOURCES, CK_AVERAGES)

static bool is_optional(const struct container_sect *s)
{
	return s->kind == CK_NOTES || s->kind == CK_ATTRS ||
	       (s->flags & CK_SECTION_OPTIONAL && !in_mask(ALL_KINDS, s->kind));
}

/* Is there a section of a kind that this program must understand but does not, or that it does not know in
 * such a file? known: those that it does. */
static int kinds_check(struct reader *rd, const char *file, const struct envelope *e,
		       uint64_t known)
{
	int bad = 0;

	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (s->flags & ~(uint32_t)CK_SECTION_OPTIONAL)
			newer(rd, file, s->off, s->len, "a section of kind %u with flags %#x",
			      s->kind, s->flags);
		else if (!in_mask(known, s->kind) && !is_optional(s))
			newer(rd, file, s->off, s->len,
			      "a section of kind %u, which must be understood", s->kind);
		else
			continue;
		bad = 1;
	}
	return bad;
}

static int section_check(struct reader *rd, const char *file, const struct container_sect *s,
			 const void *bytes)
{
	struct ckpt_err err;
	int r = container_sect_check(s, bytes, &err);

	if (r < 0)
		fault(rd, r, "checksum", file, "", s->off, s->len, "%s", err.msg);
	return r < 0;
}

static void gap_check(struct reader *rd, const char *file, const uint8_t *p, uint64_t off,
		      uint64_t end)
{
	struct ckpt_err err;
	int r = container_gap_check(p, end - off, off, &err);

	if (MUTANT(SECTION_GAPS_IGNORED))
		return;
	if (r < 0)
		oddity(rd, "padding", file, off, end - off, "%s", err.msg);
}

/* Memory that was there already costs no page faults. */
static uint8_t *spare_take(struct reader *rd, uint64_t bytes)
{
	if (bytes > rd->spare_bytes) {
		arena_free(&rd->room);
		rd->spare_bytes = bytes + bytes / 8;
		rd->spare = arena_alloc(&rd->room, rd->spare_bytes);
		if (!rd->spare)
			rd->spare_bytes = 0;
	}
	return rd->spare;
}

/* All sections at once, and the zeros between them: to the spare memory, or to some of its own. 0, 1
 * after faults, -ENOMEM. */
static int sections_read(struct reader *rd, const struct source *src, const char *file, bool spare,
			 struct envelope *e)
{
	uint64_t from = e->map.data_end, at = from, end = e->map.file_bytes - CONTAINER_BLOCK;
	uint8_t *p;
	int bad = 0;

	if (end - from > NATIVE_META_BYTES_MAX) {
		fault(rd, -EPROTO, "malformed", file, "", from, end - from,
		      "%llu bytes of sections; at most %llu are possible",
		      (unsigned long long)(end - from), (unsigned long long)NATIVE_META_BYTES_MAX);
		return 1;
	}
	p = spare ? spare_take(rd, end - from + 1) : arena_alloc(&e->mem, end - from + 1);
	if (!p)
		return -ENOMEM;
	if (bytes_read(rd, src, file, p, end - from, from))
		return 1;
	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		gap_check(rd, file, p + (at - from), at, s->off);
		bad |= section_check(rd, file, s, p + (s->off - from));
		e->sect[i] = p + (s->off - from);
		at = s->off + s->len;
	}
	gap_check(rd, file, p + (at - from), at, end);
	return bad;
}

/* Only the sections of these kinds. */
static int sections_pick(struct reader *rd, const struct source *src, const char *file,
			 uint64_t kinds, struct envelope *e)
{
	uint64_t total = 0;
	uint8_t *p;

	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (!in_mask(kinds, s->kind) || e->sect[i])
			continue;
		total += s->len; /* none is longer than the file */
		if (total > NATIVE_META_BYTES_MAX) {
			fault(rd, -EPROTO, "malformed", file, "", s->off, s->len,
			      "more than %llu bytes of sections",
			      (unsigned long long)NATIVE_META_BYTES_MAX);
			return 1;
		}
		p = arena_alloc(&e->mem, s->len + 1);
		e->sect[i] = p;
		if (!p)
			return -ENOMEM;
		if (bytes_read(rd, src, file, p, s->len, s->off) || section_check(rd, file, s, p))
			return 1;
	}
	return 0;
}

/* The sections that were loaded, as table_decode takes them. */
static uint32_t sections_list(const struct envelope *e, uint64_t kinds, struct table_section *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (e->sect[i] && in_mask(kinds, s->kind))
			ret[n++] = (struct table_section){
				.kind = s->kind,
				.rec_bytes = s->rec_bytes,
				.len = s->len,
				.count = s->count,
				.bytes = e->sect[i],
			};
	}
	return n;
}

/* Is there something in the file that is being read that only a newer version knows? Then it is told, once. */
static bool newer_instead(struct reader *rd, const char *file)
{
	struct table_section section[CONTAINER_SECT_MAX];
	struct envelope *e = rd->now;
	uint64_t off = 0;
	struct ckpt_err err;
	int r = 0;

	if (!e || rd->now_newer || MUTANT(NEWER_IS_MALFORMED))
		return rd->now_newer;
	rd->now = NULL;
	if (rd->now_src && !MUTANT(NEWER_BY_SUMMARY))
		r = sections_pick(rd, rd->now_src, file, rd->now_known, e);
	rd->now_src = NULL;
	rd->no_memory |= r < 0;
	if (r) { /* it is damaged, or cannot be read: told instead */
		rd->now_newer = true;
		return true;
	}
	rd->now_newer = kinds_check(rd, file, e, rd->now_known);
	if (!rd->now_newer &&
	    native_newer(section, sections_list(e, rd->now_known, section), &err) < 0) {
		off = e->map.data_end;
		rd->now_newer = true;
		fault(rd, -EPROTONOSUPPORT, "newer", file, "", off,
		      e->map.file_bytes - CONTAINER_BLOCK - off, "%s", err.msg);
	}
	rd->now = rd->now_newer ? NULL : e;
	return rd->now_newer;
}

static void file_begin(struct reader *rd, struct envelope *e, uint64_t known)
{
	rd->now_src = NULL;
	rd->now = e;
	rd->now_known = known;
	rd->now_newer = false;
}

static void file_end(struct reader *rd)
{
	rd->now = NULL;
	rd->now_newer = false;
}

/* Header, trailer and sections: those of these kinds; 0: all. 0, 1 after faults, -ENOMEM. */
static int envelope_read(struct reader *rd, const struct source *src, const char *file,
			 uint32_t kind, const uint8_t *root, uint64_t kinds, bool spare,
			 struct envelope *e)
{
	int r = blocks_read(rd, src, file, kind, root, e), s = 0;

	/* Also where a newer version wrote it: damage is told before that. */
	if (e->map.file_bytes)
		s = kinds ? sections_pick(rd, src, file, kinds, e)
			  : sections_read(rd, src, file, spare, e);
	return s ? s : r;
}

/* The records of a section; none when it is missing. */
struct records {
	const void *rec;
	uint64_t n, off; /* off: in the file */
};

/* 0, 1 after a fault. */
static int records(struct reader *rd, const char *file, const struct envelope *e, uint32_t kind,
		   uint32_t rec_bytes, struct records *ret)
{
	*ret = (struct records){ .n = 0 };
	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (s->kind != kind)
			continue;
		if (s->rec_bytes != rec_bytes) {
			newer(rd, file, s->off, s->len,
			      "section of kind %u: records of %u bytes; this program knows them with %u",
			      kind, s->rec_bytes, rec_bytes);
			return 1;
		}
		*ret = (struct records){ .rec = e->sect[i], .n = s->count, .off = s->off };
	}
	return 0;
}

static bool all_zero(const void *p, size_t n)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		if (b[i])
			return false;
	return true;
}

/* --- MANIFEST --- */

#define TABLE_KINDS                                                                           \
	CK_STRINGS, CK_SHAPES, CK_MESHES, CK_MESHDATA, CK_LAYOUTS, CK_PLACEMENTS, CK_TENSORS, \
		CK_AVERAGES
#define MANIFEST_KINDS KINDS(TABLE_KINDS, CK_NOTES, CK_PARTS, CK_LINEAGE, CK_ATTRS)
/* All but what is left out where it makes no sense. */
#define REQUIRED_KINDS KINDS(TABLE_KINDS, CK_PARTS, CK_LINEAGE)
#define SUMMARY_KINDS \
	KINDS(CK_STRINGS, CK_MESHES, CK_MESHDATA, CK_NOTES, CK_PARTS, CK_LINEAGE, CK_ATTRS)
#define PART_KINDS KINDS(TABLE_KINDS, CK_INDEXSETS, CK_PIECES, CK_CHUNKS, CK_SOURCES)

/* The sections that a part of this kind may have. */
static uint64_t part_kinds(uint32_t kind)
{
	uint64_t not_in = 0;

	if (kind != PART_MAIN)
		not_in |= KINDS(CK_SOURCES);
	if (kind != PART_AVERAGE)
		not_in |= KINDS(CK_AVERAGES);
	return PART_KINDS & ~not_in;
}

/* The fields of a header that only a newer version uses so. manifest: MANIFEST's header, NULL for its own. */
static int head_known(struct reader *rd, const char *file, const struct container_info *h,
		      const struct container_info *manifest)
{
	static const uint8_t zero[sizeof h->checkpoint];
	int bad = 1;

	if (h->chunk_log2 != CHUNK_LOG2 || h->align_log2 != NATIVE_ALIGN_LOG2)
		newer(rd, file, 0, CONTAINER_BLOCK,
		      "chunks of 2^%u bytes on multiples of 2^%u; this program knows 2^%d on 2^%d",
		      h->chunk_log2, h->align_log2, CHUNK_LOG2, NATIVE_ALIGN_LOG2);
	else if (manifest ? h->part_kind > PART_AVERAGE
			  : h->part_kind || h->writer ||
				    memcmp(h->checkpoint, zero, sizeof zero) != 0)
		newer(rd, file, 0, CONTAINER_BLOCK,
		      "its header is of a part of kind %u, of writer %u", h->part_kind, h->writer);
	else if (manifest && h->ro_compat & ~manifest->ro_compat)
		newer(rd, file, 0, CONTAINER_BLOCK,
		      "it has features %#llx that MANIFEST does not speak of",
		      (unsigned long long)(h->ro_compat & ~manifest->ro_compat));
	else
		bad = 0;
	return bad;
}

struct manifest {
	struct reader *rd;
	struct envelope env;
	const char *string;
	uint64_t nstring;
	struct native_part
		*part; /* [npart] as PARTS has them, without tables; in the table's arena */
	uint32_t npart;
	struct checkpoint *c;
};

#define MALFORMED(m, off, len, ...) \
	(fault((m)->rd, -EPROTO, "malformed", NATIVE_MANIFEST, "", off, len, __VA_ARGS__), 1)

/* NULL: none of at most max bytes. */
static const char *string_of(const char *string, uint64_t nstring, le32 at, size_t max)
{
	uint64_t i = le32_get(at);

	if (i >= nstring || !memchr(string + i, 0, MIN(nstring - i, (uint64_t)max + 1)))
		return NULL;
	return string + i;
}

static const char *string_at(const struct manifest *m, le32 at, size_t max)
{
	return string_of(m->string, m->nstring, at, max);
}

static void hex(const uint8_t *b, char *ret)
{
	for (int i = 0; i < 16; i++)
		snprintf(ret + (size_t)2 * (size_t)i, 3, "%02x", b[i]);
}

static int lineage_read(struct manifest *m)
{
	const struct container_info *h = &m->env.info;
	struct checkpoint *c = m->c;
	const struct ck_lineage *l;
	const char *tool, *job;
	struct hash128 job_hash;
	struct records x;
	uint64_t off;

	if (records(m->rd, NATIVE_MANIFEST, &m->env, CK_LINEAGE, sizeof *l, &x))
		return 1;
	off = x.off;
	l = x.rec;
	if (x.n != 1)
		return MALFORMED(m, off, x.n * sizeof *l,
				 "%llu records of lineage; there must be one",
				 (unsigned long long)x.n);
	tool = string_at(m, l->tool, NATIVE_TOOL_MAX);
	job = string_at(m, l->job, CKPT_JOB_MAX);
	if (!all_zero(l->zero, sizeof l->zero)) {
		newer(m->rd, NATIVE_MANIFEST, off, sizeof *l,
		      "the record of lineage has a field that this program does not know");
		return 1;
	}
	if (!tool || !job)
		return MALFORMED(m, off, sizeof *l, "the record of lineage has an impossible name");
	job_hash = container_job(job);
	if (memcmp(job_hash.b, h->job, sizeof h->job) != 0 ||
	    le64_get(l->generation) != h->generation)
		return MALFORMED(
			m, off, sizeof *l,
			"the record of lineage contradicts the header: job %s, generation %llu",
			job, (unsigned long long)le64_get(l->generation));
	c->world = le32_get(l->world);
	if (c->world != h->world)
		return MALFORMED(m, off, sizeof *l, "a world of %u ranks; the header says %u",
				 c->world, h->world);
	if (!c->world || c->world > NATIVE_WORLD_MAX)
		return MALFORMED(m, off, sizeof *l, "a world of %u ranks; 1 to %u are possible",
				 c->world, NATIVE_WORLD_MAX);
	c->step = h->step;
	c->generation = h->generation;
	c->wall_ns = h->wall_ns;
	c->seq = le64_get(l->seq);
	c->parent_step = le64_get(l->parent_step);
	hex(m->env.map.self.b, c->id);
	if (!all_zero(l->parent_id, sizeof l->parent_id))
		hex(l->parent_id, c->parent_id);
	snprintf(c->job, sizeof c->job, "%s", job);
	snprintf(c->tool, sizeof c->tool, "%s", tool);
	return 0;
}

/* An optional section that makes no sense to this program, whatever the reason: left out, and said so. */
static int drop(struct manifest *m)
{
	m->c->newer = true;
	return MUTANT(OPTIONAL_REFUSED) ? MALFORMED(m, 0, 0, "it makes no sense") : 0;
}

/* The records of an optional section. false: it has another form. */
static bool optional(struct manifest *m, uint32_t kind, uint32_t rec_bytes, struct records *ret)
{
	*ret = (struct records){ .n = 0 };
	for (uint32_t i = 0; i < m->env.map.nsect; i++) {
		const struct container_sect *s = &m->env.map.sect[i];

		if (s->kind != kind)
			continue;
		if (s->rec_bytes != rec_bytes)
			return false;
		*ret = (struct records){ .rec = m->env.sect[i], .n = s->count, .off = s->off };
	}
	return true;
}

static int notes_read(struct manifest *m)
{
	const struct ck_note *rec;
	struct records x;

	if (!optional(m, CK_NOTES, sizeof *rec, &x) || x.n > NATIVE_NOTES_MAX)
		return drop(m);
	rec = x.rec;
	m->c->note = arena_array(&m->c->table.arena, x.n, sizeof *m->c->note);
	if (!m->c->note)
		return -ENOMEM;
	for (uint64_t i = 0; i < x.n; i++) {
		const char *key = string_at(m, rec[i].key, CKPT_NAME_MAX);
		uint64_t bits = le64_get(rec[i].value);

		if (le32_get(rec[i].zero) || !key)
			return drop(m);
		m->c->note[i].key = arena_str(&m->c->table.arena, key);
		if (!m->c->note[i].key)
			return -ENOMEM;
		memcpy(&m->c->note[i].value, &bits, sizeof bits);
	}
	m->c->nnote = (uint32_t)x.n;
	return 0;
}

static int attrs_read(struct manifest *m)
{
	struct arena *a = &m->c->table.arena;
	struct checkpoint_attr *attr;
	const struct ck_attr *rec;
	struct records x;

	if (!optional(m, CK_ATTRS, sizeof *rec, &x) || x.n > NATIVE_ATTRS_MAX)
		return drop(m);
	rec = x.rec;
	attr = arena_array(a, x.n, sizeof *attr);
	if (!attr)
		return -ENOMEM;
	for (uint64_t i = 0; i < x.n; i++) {
		const char *key = string_at(m, rec[i].key, NATIVE_ATTR_KEY_MAX);
		const char *value = string_at(m, rec[i].value, NATIVE_ATTR_VALUE_MAX);

		if (!key || !*key || !value || (i && strcmp(attr[i - 1].key, key) >= 0))
			return drop(m);
		attr[i].key = arena_str(a, key);
		attr[i].value = arena_str(a, value);
		if (!attr[i].key || !attr[i].value)
			return -ENOMEM;
	}
	m->c->attr = attr;
	m->c->nattr = (uint32_t)x.n;
	return 0;
}

int native_part_decode(const struct ck_part *rec, const char *string, uint64_t nstring,
		       struct native_part *ret, struct ckpt_err *err)
{
	const char *name = string_of(string, nstring, rec->name, NATIVE_NAME_MAX);

	*ret = (struct native_part){
		.rank = le32_get(rec->writer),
		.kind = le32_get(rec->kind),
		.group = le32_get(rec->group),
		.step = le64_get(rec->step),
		.generation = le64_get(rec->generation),
		.file_bytes = le64_get(rec->file_bytes),
		.raw_bytes = le64_get(rec->raw_bytes),
	};
	if (ret->kind > PART_AVERAGE)
		return ckpt_newer(err, "a part of kind %u", ret->kind);
	if (!all_zero(rec->zero, sizeof rec->zero))
		return ckpt_newer(err,
				  "a part's record has a field that this program does not know");
	if (!name || !native_name_ok(name))
		return ckpt_error(err, -EPROTO, "it has an impossible name");
	if (ret->file_bytes > INT64_MAX || ret->raw_bytes > NATIVE_PART_BYTES_MAX)
		return ckpt_error(err, -EPROTO, "part %s is too long", name);
	memcpy(ret->uuid, rec->uuid, sizeof ret->uuid);
	memcpy(ret->root.b, rec->root, sizeof ret->root.b);
	(void)snprintf(ret->name, sizeof ret->name, "%s", name);
	return 0;
}

static int part_record_check(struct manifest *m, uint32_t i, const struct ck_part *rec,
			     uint64_t off)
{
	struct native_part *p = &m->part[i];
	uint64_t at = off + (uint64_t)i * sizeof *rec;
	struct checkpoint *c = m->c;
	struct ckpt_err err;
	int r = native_part_decode(rec, m->string, m->nstring, p, &err);

	if (r < 0) {
		fault(m->rd, r, r == -EPROTO ? "malformed" : "newer", NATIVE_MANIFEST, "", at,
		      sizeof *rec, "part %u: %s", i, err.msg);
		return 1;
	}
	if (i < c->world && (p->kind != PART_MAIN || p->rank != i || p->group ||
			     p->step != c->step || p->generation != c->generation))
		return MALFORMED(
			m, at, sizeof *rec,
			"part %s is record %u, of rank %u, kind %u, step %llu; the first %u are "
			"the main parts of this step, in the order of their ranks",
			p->name, i, p->rank, p->kind, (unsigned long long)p->step, c->world);
	if (i >= c->world &&
	    (p->kind == PART_MAIN || (i > c->world && native_part_order(&p[-1], p) >= 0)))
		return MALFORMED(m, at, sizeof *rec, "part %s is out of order", p->name);
	if (ckpt_add(c->stored_bytes, p->file_bytes, &c->stored_bytes) < 0)
		return MALFORMED(m, at, sizeof *rec, "part %s is too long", p->name);
	if (p->step != c->step || p->generation != c->generation)
		c->linked_bytes += p->file_bytes;
	return 0;
}

static int parts_read(struct manifest *m)
{
	const struct ck_part *rec;
	struct records x;
	int r = 0;

	if (records(m->rd, NATIVE_MANIFEST, &m->env, CK_PARTS, sizeof *rec, &x))
		return 1;
	rec = x.rec;
	if (x.n < m->c->world || x.n > NATIVE_PARTS_MAX)
		return MALFORMED(m, x.off, x.n * sizeof *rec, "%llu parts for a world of %u ranks",
				 (unsigned long long)x.n, m->c->world);
	m->npart = (uint32_t)x.n;
	m->part = arena_array(&m->c->table.arena, m->npart, sizeof *m->part);
	if (!m->part)
		return -ENOMEM;
	m->c->stored_bytes = m->env.map.file_bytes;
	for (uint32_t i = 0; !r && i < m->npart; i++)
		r = part_record_check(m, i, &rec[i], x.off);
	return r;
}

/* Lineage, notes, attributes and parts: what a summary tells. 0, 1 after faults, -ENOMEM. */
static int facts_read(struct manifest *m)
{
	struct records x;
	int r;

	if (records(m->rd, NATIVE_MANIFEST, &m->env, CK_STRINGS, 1, &x))
		return 1;
	m->string = x.rec;
	m->nstring = x.n;
	r = lineage_read(m);
	if (!r)
		r = notes_read(m);
	if (!r)
		r = attrs_read(m);
	return r ? r : parts_read(m);
}

/* What table_decode said about the sections of a file. 0, 1 after a fault, -ENOMEM. */
static int decoded(struct reader *rd, const char *file, const struct envelope *e, int r,
		   const struct ckpt_err *err)
{
	if (r == -ENOMEM || !r)
		return r;
	fault(rd, r, r == -EPROTONOSUPPORT ? "newer" : "malformed", file, "", e->map.data_end,
	      e->map.file_bytes - CONTAINER_BLOCK - e->map.data_end, "%s", err->msg);
	return 1;
}

/* The tensors that MANIFEST declares, or of these kinds what it has. */
static int declarations_read(struct reader *rd, const struct envelope *e, uint64_t kinds,
			     struct table *ret)
{
	struct table_section section[CONTAINER_SECT_MAX];
	struct ckpt_err err;
	int r = table_decode_tensors(section, sections_list(e, kinds, section), ret, &err);

	return decoded(rd, NATIVE_MANIFEST, e, r, &err);
}

/* --- parts --- */

#define PIECES_GUESS (4u << 20) /* for so many room is made before they are there */

struct opening {
	struct reader rd;
	const struct source_dir *dir;
	struct manifest m;
	const char **sorted;	  /* [npart] names */
	format_choose_fn *choose; /* NULL: all */
	void *choose_arg;
	struct ckpt_err *err; /* of the choice */
	bool names;	      /* no part is needed */
	bool some;	      /* not all parts are read */
	bool *needed;	      /* [world] */
	bool no_averages;     /* nobody wants what the parts of kind 2 hold */
	bool *named;	      /* [npart] the further parts that a main part names */
	int refusal;
	/* Ranks mostly declare the same: what the newest part did. Without an id: none has yet. */
	struct table declared;
	struct hash128 declared_id;
};

/* Was this part written for another checkpoint? */
static bool is_linked(const struct opening *o, const struct container_info *part)
{
	return memcmp(part->checkpoint, o->m.env.info.uuid, sizeof part->checkpoint) != 0;
}

/* The header of a file whose trailer is the one that MANIFEST names. */
static int part_identity_check(struct opening *o, const struct native_part *p,
			       const struct container_info *x)
{
	const struct container_info *h = &o->m.env.info;
	bool linked = is_linked(o, x);
	const char *what = NULL;

	if (memcmp(x->uuid, p->uuid, sizeof p->uuid) != 0)
		what = "uuid";
	else if (x->step != p->step)
		what = "step";
	else if (x->generation != p->generation)
		what = "generation";
	else if (x->writer != p->rank)
		what = "writer";
	else if (x->part_kind != p->kind)
		what = "kind";
	else if (linked && p->kind == PART_MAIN)
		what = "checkpoint";
	else if (!linked && memcmp(x->job, h->job, sizeof h->job) != 0)
		what = "job";
	else if (!linked && x->world != o->m.c->world)
		what = "number of ranks";
	else if (!linked && x->step != o->m.c->step)
		what = "step";
	else if (!linked && x->generation != o->m.c->generation)
		what = "generation";
	else if (!linked && x->writer >= o->m.c->world)
		what = "writer";
	if (MUTANT(PART_IDENTITY_IGNORED))
		return 0;
	if (what)
		fault(&o->rd, -EPROTO, "mismatch", p->name, "", 0, CONTAINER_BLOCK,
		      "its header's %s is not what MANIFEST says: it belongs to another checkpoint",
		      what);
	return what != NULL;
}

/* Derived pieces get the place of what they are the rounding of. 0, 1 after a fault, -ENOMEM. */
static int derived_find(struct opening *o, const char *file, struct table *t)
{
	cleanup_free uint32_t *twin = NULL;
	char label[160];
	bool any = false;

	for (uint32_t i = 0; i < t->npiece && !any; i++)
		any = t->piece[i].flags & PIECE_DERIVED;
	if (!any)
		return 0;
	twin = calloc(t->npiece, sizeof *twin);
	if (!twin || table_twins(t, twin) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->npiece; i++) {
		struct table_piece *p = &t->piece[i];

		if (!(p->flags & PIECE_DERIVED) ||
		    (twin[i] == TABLE_NONE && MUTANT(TWINS_NOT_SOUGHT)))
			continue;
		if (twin[i] != TABLE_NONE) {
			p->from = t->piece[twin[i]].off;
			continue;
		}
		table_tensor_print(&t->tensor[p->tensor], label, sizeof label);
		fault(&o->rd, -EPROTO, "malformed", file, label, 0, 0,
		      "%s: a piece that is derived from nothing in this file", label);
		return 1;
	}
	return 0;
}

/* Why tensor i may not be in this part; NULL: it may. */
static const char *misplaced(const struct opening *o, const struct native_part *p,
			     const struct table *t, uint32_t i)
{
	const struct table_tensor *x = &t->tensor[i];

	if (x->cls == CKPT_SINK)
		return "a sink is in no file";
	if (x->fp_known)
		return "a tensor's fingerprint in a part; it belongs in MANIFEST";
	if (!x->made != (p->kind != PART_AVERAGE))
		return "what averages made is in parts of its own";
	if (p->kind == PART_CONST && x->cls != CKPT_CONST)
		return "it is not constant, in a part of constants";
	if (p->kind != PART_MAIN && t->first[i] == t->first[i + 1])
		return "it is listed, but has no piece here";
	if (p->rank >= o->m.c->world && operand_dims(t, x))
		return "an operand of a rank that there is not";
	return NULL;
}

static int pieces_check(struct opening *o, const struct native_part *part, const struct table *t)
{
	const char *file = part->name;
	uint32_t rank = part->rank;
	char label[160];

	for (uint32_t i = 0; i < t->npiece; i++) {
		if (t->piece[i].rank == rank)
			continue;
		table_tensor_print(&t->tensor[t->piece[i].tensor], label, sizeof label);
		fault(&o->rd, -EPROTO, "malformed", file, label, 0, 0,
		      "%s: a piece of rank %u in the part of rank %u", label, t->piece[i].rank,
		      rank);
		return 1;
	}
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const char *why = misplaced(o, part, t, i);

		if (!why)
			continue;
		table_tensor_print(&t->tensor[i], label, sizeof label);
		fault(&o->rd, -EPROTO, "malformed", file, label, 0, 0, "%s: %s", label, why);
		return 1;
	}
	return 0;
}

static struct chunk chunk_decode(const struct ck_chunk *rec)
{
	struct chunk c = {
		.off = le64_get(rec->off),
		.stored_len = le32_get(rec->stored_len),
		.raw_len = le32_get(rec->raw_len),
		.codec = rec->codec,
		.codec_ver = rec->codec_ver,
		.elem_bytes = rec->elem_bytes,
		.source = le32_get(rec->source),
		.base = le32_get(rec->base),
		.stored_crc = le32_get(rec->stored_crc),
	};

	memcpy(c.raw_hash.b, rec->raw_hash, sizeof c.raw_hash.b);
	return c;
}

static int chunks_read(struct opening *o, const char *file, const struct envelope *e,
		       const struct table *t, struct format_file *ret)
{
	cleanup_free struct chunk *need = NULL;
	uint64_t n, end, at = CONTAINER_BLOCK, raw_end = 0;
	const struct ck_chunk *rec;
	struct chunk *chunk;
	struct records x;
	struct ckpt_err err;
	int r = chunk_map_make(t, NATIVE_DATA_OFF, &need, &n, &end, &err);

	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		fault(&o->rd, r, "malformed", file, "", 0, 0, "%s", err.msg);
		return 1;
	}
	for (uint32_t i = 0; i < t->npiece; i++)
		raw_end = MAX(raw_end, t->piece[i].off + t->piece[i].len);
	if (raw_end != t->place[0].bytes) {
		fault(&o->rd, -EPROTO, "malformed", file, "", 0, 0,
		      "a raw space of %llu bytes, whose last piece ends at %llu",
		      (unsigned long long)t->place[0].bytes, (unsigned long long)raw_end);
		return 1;
	}
	if (records(&o->rd, file, e, CK_CHUNKS, sizeof *rec, &x))
		return 1;
	rec = x.rec;
	if (x.n != n) {
		fault(&o->rd, -EPROTO, "malformed", file, "", x.off, x.n * sizeof *rec,
		      "%llu chunks; its raw space has %llu", (unsigned long long)x.n,
		      (unsigned long long)n);
		return 1;
	}
	chunk = arena_array(&o->m.c->table.arena, n, sizeof *chunk);
	if (!chunk)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		chunk[i] = chunk_decode(&rec[i]);
		r = rec[i].flags && !chunk[i].raw_len
			    ? ckpt_error(&err, -EPROTO, "a hole has flags")
		    : rec[i].flags
			    ? ckpt_newer(&err, "its flags are %#x", rec[i].flags)
			    : native_chunk_check(&chunk[i], &need[i], raw_end - (i << CHUNK_LOG2),
						 e->map.data_end, &at, &err);
		if (!r)
			continue;
		fault(&o->rd, r, r == -EPROTO ? "malformed" : "newer", file, "",
		      x.off + i * sizeof *rec, sizeof *rec, "chunk %llu: %s", (unsigned long long)i,
		      err.msg);
		return 1;
	}
	ret->chunk = chunk;
	ret->nchunk = n;
	return native_ranges_make(&e->map, chunk, n, &o->m.c->table.arena, ret);
}

/* The further parts that a main part names are those of MANIFEST. */
static int sources_check(struct opening *o, const struct native_part *p, const struct envelope *e)
{
	const struct ck_part *rec;
	struct records x, strings;
	struct native_part last;
	struct ckpt_err err;

	if (records(&o->rd, p->name, e, CK_SOURCES, sizeof *rec, &x) ||
	    records(&o->rd, p->name, e, CK_STRINGS, 1, &strings))
		return 1;
	rec = x.rec;
	if (x.n > NATIVE_SOURCES_MAX) {
		fault(&o->rd, -EPROTO, "malformed", p->name, "", x.off, x.n * sizeof *rec,
		      "%llu other parts of one rank; at most %u are possible",
		      (unsigned long long)x.n, NATIVE_SOURCES_MAX);
		return 1;
	}
	for (uint64_t i = 0; i < x.n; i++) {
		struct native_part s, *at = o->m.part + o->m.c->world;
		uint32_t from = o->m.c->world, to = o->m.npart;
		int r = native_part_decode(&rec[i], strings.rec, strings.n, &s, &err);

		if (!r && s.kind == PART_MAIN)
			r = ckpt_error(&err, -EPROTO, "it is a main part");
		if (!r && i && native_part_order(&last, &s) >= 0)
			r = ckpt_error(&err, -EPROTO, "it is out of order");
		last = s;
		if (r < 0) {
			fault(&o->rd, r, r == -EPROTO ? "malformed" : "newer", p->name, "",
			      x.off + i * sizeof *rec, sizeof *rec, "source %llu: %s",
			      (unsigned long long)i, err.msg);
			return 1;
		}
		while (from < to) {
			uint32_t mid = from + (to - from) / 2;

			at = &o->m.part[mid];
			if (native_part_order(at, &s) < 0)
				from = mid + 1;
			else
				to = mid;
		}
		at = &o->m.part[MIN(from, o->m.npart - 1)];
		if (!native_part_equal(at, &s)) {
			fault(&o->rd, -EPROTO, "mismatch", p->name, "", x.off + i * sizeof *rec,
			      sizeof *rec,
			      "it names %s, which MANIFEST does not name, or names otherwise",
			      s.name);
			return 1;
		}
		o->named[MIN(from, o->m.npart - 1)] = true;
	}
	return 0;
}

/* A part's declarations must be MANIFEST's; then its pieces join the checkpoint's. linked: it was declared by
 * another launch. */
static int part_join(struct opening *o, const struct native_part *p, bool linked,
		     const struct table *t)
{
	const char *file = p->name;
	struct ckpt_errlist l = { .code = -EPROTO };
	struct table *all = &o->m.c->table;
	int r;

	/* The others will have as many. Where they do not, nothing is lost but a guess. */
	if (!all->npiece)
		(void)table_reserve(all, 0, MIN(t->npiece * o->m.npart, (uint64_t)PIECES_GUESS));
	r = table_join(all, t, NATIVE_MANIFEST, file, linked, &l, NULL);
	if (!r && l.n) {
		faults_of_list(&o->rd, -EPROTO, "mismatch", file, &l);
		r = 1;
	}
	ckpt_errlist_free(&l);
	return r;
}

/* Names the bytes of a part's declarations. */
static struct hash128 declarations_id(const struct envelope *e)
{
	struct {
		uint64_t kind, rec_bytes, len, count;
		struct hash128 hash;
	} known[CONTAINER_SECT_MAX];
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (!in_mask(KINDS(TABLE_KINDS), s->kind))
			continue;
		known[n].kind = s->kind;
		known[n].rec_bytes = s->rec_bytes;
		known[n].len = s->len;
		known[n].count = s->count;
		known[n++].hash = s->hash;
	}
	return hash128(known, n * sizeof *known);
}

static int part_table(struct opening *o, const char *file, const struct envelope *e,
		      const struct table_place *place, struct table *ret)
{
	struct table_section section[CONTAINER_SECT_MAX];
	uint32_t n = sections_list(e, PART_KINDS, section);
	struct hash128 id = declarations_id(e);
	struct ckpt_err err;
	int r = 0;

	if (memcmp(id.b, o->declared_id.b, sizeof id.b) != 0) {
		table_free(&o->declared);
		o->declared_id = (struct hash128){ 0 };
		r = table_decode_tensors(section, n, &o->declared, &err);
		if (!r)
			o->declared_id = id;
	}
	if (!r)
		r = table_decode_pieces(section, n, &o->declared, place, 1, ret, &err);
	return decoded(&o->rd, file, e, r, &err);
}

static int part_sections(struct opening *o, const struct source *src, const struct native_part *p,
			 struct envelope *e, struct format_file *f)
{
	struct table_place place = { .name = f->name, .rank = f->rank, .bytes = f->raw_bytes };
	struct table t = { 0 };
	uint64_t known = part_kinds(p->kind);
	int r = envelope_read(&o->rd, src, f->name, CONTAINER_PART, p->root.b, 0, true, e);

	if (!r)
		r = head_known(&o->rd, f->name, &e->info, &o->m.env.info);
	if (!r)
		r = kinds_check(&o->rd, f->name, e, known);
	if (r)
		return r;
	file_begin(&o->rd, e, known);
	r = part_identity_check(o, p, &e->info);
	if (!r)
		r = sources_check(o, p, e);
	if (!r)
		r = part_table(o, f->name, e, &place, &t);
	if (!r)
		r = pieces_check(o, p, &t);
	if (!r)
		r = derived_find(o, f->name, &t);
	if (!r)
		r = chunks_read(o, f->name, e, &t, f);
	if (!r)
		r = part_join(o, p, is_linked(o, &e->info), &t);
	file_end(&o->rd);
	table_free(&t);
	return r;
}

/* What MANIFEST says of it. */
static struct format_file part_known(const struct native_part *p)
{
	struct format_file f = {
		.name = p->name,
		.file_bytes = p->file_bytes,
		.raw_bytes = p->raw_bytes,
		.chunk_log2 = CHUNK_LOG2,
		.rank = p->rank,
		.kind = p->kind,
		.group = p->group,
		.step = p->step,
		.generation = p->generation,
	};

	memcpy(f.uuid, p->uuid, sizeof f.uuid);
	return f;
}

/* 0, 1 after faults, -ENOMEM. Without its pieces a part is still the place of its number. */
static int part_lost(struct opening *o, uint32_t places, const struct native_part *p,
		     struct format_file *f)
{
	struct table_place place = { .name = p->name, .rank = p->rank };

	*f = part_known(p);
	f->raw_bytes = 0;
	f->lost = true;
	return o->m.c->table.nplace > places || !table_add_place(&o->m.c->table, &place, NULL, NULL)
		       ? 1
		       : -ENOMEM;
}

static int part_read(struct opening *o, const struct native_part *p, struct format_file *f)
{
	struct envelope e = { .map = { .nsect = 0 } };
	struct source src = { 0 };
	int r = o->dir->open(o->dir->ctx, f->name, &src);

	if (r == -ENOMEM)
		return r;
	if (r == -ENOENT) {
		fault(&o->rd, -EUCLEAN, "missing", f->name, "", 0, f->file_bytes,
		      "this file of %llu bytes is missing: it holds what rank %u owned",
		      (unsigned long long)f->file_bytes, p->rank);
		return 1;
	}
	if (r < 0) {
		fault(&o->rd, r, "unreadable", f->name, "", 0, f->file_bytes,
		      "it cannot be opened: %s", error_text(r));
		return 1;
	}
	if (src.bytes < f->file_bytes) {
		fault(&o->rd, -EBADMSG, "truncated", f->name, "", src.bytes,
		      f->file_bytes - src.bytes, "it ends after %llu of %llu bytes",
		      (unsigned long long)src.bytes, (unsigned long long)f->file_bytes);
		r = 1;
	} else if (src.bytes > f->file_bytes && !MUTANT(PART_BYTES_IGNORED)) {
		fault(&o->rd, -EBADMSG, "unexpected", f->name, "", f->file_bytes,
		      src.bytes - f->file_bytes, "it has %llu bytes; MANIFEST says %llu",
		      (unsigned long long)src.bytes, (unsigned long long)f->file_bytes);
		r = 1;
	} else {
		r = part_sections(o, &src, p, &e, f);
	}
	envelope_free(&e);
	source_close(&src);
	return r;
}

/* Not needed: a place without pieces. */
static int part_pass(struct opening *o, const struct native_part *p, struct format_file *f)
{
	struct table_place place = { .name = p->name, .rank = p->rank, .bytes = p->raw_bytes };

	f->unread = true;
	return table_add_place(&o->m.c->table, &place, NULL, NULL);
}

static int part_open(struct opening *o, uint32_t i, struct format_file *f)
{
	const struct native_part *p = &o->m.part[i];
	uint32_t places = o->m.c->table.nplace;
	int r;

	*f = part_known(p);
	if (o->names)
		return part_pass(o, p, f);
	/* What a writer beside the ranks has made is anybody's. */
	if (o->needed && p->rank < o->m.c->world && !o->needed[p->rank])
		return part_pass(o, p, f);
	if (o->no_averages && p->kind == PART_AVERAGE)
		return part_pass(o, p, f);
	r = part_read(o, p, f);
	return r == 1 ? part_lost(o, places, p, f) : r;
}

/* --- the whole directory --- */

/* Each tensor says of its own fingerprint whether it is known. */
#define NATIVE_HAS ((uint32_t)(HAS_PRINTS | HAS_SUMS | HAS_LAYOUTS | HAS_STEP))

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_uuid(const void *a, const void *b)
{
	return memcmp(*(const uint8_t *const *)a, *(const uint8_t *const *)b, 16);
}

static int uuids_check(struct opening *o)
{
	cleanup_free const uint8_t **sorted = calloc(o->m.npart, sizeof *sorted);

	if (!sorted)
		return -ENOMEM;
	for (uint64_t i = 0; i < o->m.npart; i++)
		sorted[i] = o->m.part[i].uuid;
	qsort(sorted, o->m.npart, sizeof *sorted, by_uuid);
	for (uint64_t i = 1; i < o->m.npart; i++)
		if (!by_uuid(&sorted[i - 1], &sorted[i]))
			return MALFORMED(&o->m, 0, 0, "two parts have one uuid");
	return 0;
}

static int names_sort(struct opening *o)
{
	o->sorted = calloc(o->m.npart, sizeof *o->sorted);
	o->named = calloc(o->m.npart, sizeof *o->named);
	if (!o->sorted || !o->named)
		return -ENOMEM;
	for (uint64_t i = 0; i < o->m.npart; i++)
		o->sorted[i] = o->m.part[i].name;
	qsort(o->sorted, o->m.npart, sizeof *o->sorted, by_name);
	for (uint64_t i = 1; i < o->m.npart; i++)
		if (!strcmp(o->sorted[i - 1], o->sorted[i]))
			return MALFORMED(&o->m, 0, 0, "two parts are called %s", o->sorted[i]);
	return uuids_check(o);
}

/* n of these digits, or more where any. */
static bool take_digits(const char **p, const char *digits, size_t n, bool any)
{
	size_t have = strspn(*p, digits);

	if (have < n || (have > n && !any))
		return false;
	*p += have;
	return true;
}

static bool take_text(const char **p, const char *text)
{
	size_t n = strlen(text);

	if (strncmp(*p, text, n) != 0)
		return false;
	*p += n;
	return true;
}

enum native_entry native_entry(const char *name)
{
	static const char dec[] = "0123456789", hexa[] = "0123456789abcdef";

	if (take_text(&name, "w"))
		return take_digits(&name, dec, 4, true) && take_text(&name, "-") &&
				       take_digits(&name, hexa, 8, false) &&
				       take_text(&name, "-") && take_digits(&name, dec, 3, true) &&
				       !strcmp(name, ".part")
			       ? NATIVE_PART
			       : NATIVE_FOREIGN;
	if (!take_text(&name, NATIVE_MANIFEST))
		return NATIVE_FOREIGN;
	if (!*name)
		return NATIVE_IS_MANIFEST;
	return (take_text(&name, ".damaged-") || take_text(&name, ".")) &&
			       take_digits(&name, hexa, 8, false) && !*name
		       ? NATIVE_SPENT
		       : NATIVE_FOREIGN;
}

static int foreign_add(struct checkpoint *c, const char *name)
{
	const char *copy;

	if (c->nforeign++ >= CHECKPOINT_FOREIGN)
		return 0;
	copy = arena_str(&c->table.arena, name);
	c->foreign[c->nforeign - 1] = copy;
	return copy ? 0 : -ENOMEM;
}

/* What nobody here made is no damage: an editor's backup, what a file server keeps, a lost+found. */
static int entry_check(void *arg, const char *name, enum source_kind kind)
{
	struct opening *o = arg;
	bool known = !strcmp(name, NATIVE_MANIFEST) ||
		     bsearch(&name, o->sorted, o->m.npart, sizeof *o->sorted, by_name);

	if (kind == SOURCE_FILE && native_entry(name) == NATIVE_SPENT)
		return 0;
	if (!known && MUTANT(FOREIGN_IS_DAMAGE))
		fault(&o->rd, -EBADMSG, "unexpected", name, "", 0, 0, "it does not belong here");
	if (!known)
		return foreign_add(o->m.c, name);
	if (kind != SOURCE_FILE)
		fault(&o->rd, -EUCLEAN, "unexpected", name, "", 0, 0, "it is not a regular file");
	return 0;
}

static int sinks_check(struct opening *o)
{
	const struct table *t = &o->m.c->table;

	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].cls == CKPT_SINK)
			return MALFORMED(&o->m, 0, 0, "tensor %u is a sink, which is in no file",
					 i);
	return 0;
}

static int manifest_read(struct opening *o)
{
	struct manifest *m = &o->m;
	struct source src = { 0 };
	int r = o->dir->open(o->dir->ctx, NATIVE_MANIFEST, &src);

	if (r == -ENOENT) {
		fault(&o->rd, -EUCLEAN, "missing", NATIVE_MANIFEST, "", 0, 0,
		      "there is none: this checkpoint was never committed, or is something else");
		return 1;
	}
	if (r < 0 && r != -ENOMEM) {
		fault(&o->rd, r, "unreadable", NATIVE_MANIFEST, "", 0, 0, "it cannot be opened: %s",
		      error_text(r));
		return 1;
	}
	if (r < 0)
		return r;
	o->rd.manifest = true;
	r = envelope_read(&o->rd, &src, NATIVE_MANIFEST, CONTAINER_MANIFEST, NULL, 0, false,
			  &m->env);
	source_close(&src);
	if (!r)
		r = head_known(&o->rd, NATIVE_MANIFEST, &m->env.info, NULL);
	if (!r)
		r = kinds_check(&o->rd, NATIVE_MANIFEST, &m->env, MANIFEST_KINDS);
	file_begin(&o->rd, &m->env, REQUIRED_KINDS);
	/* The checkpoint's tensors are MANIFEST's, in its order; the parts bring the pieces. */
	if (!r)
		r = declarations_read(&o->rd, &m->env, MANIFEST_KINDS, &m->c->table);
	if (!r)
		r = facts_read(m);
	if (!r)
		r = sinks_check(o);
	if (!r)
		r = names_sort(o);
	file_end(&o->rd);
	return r;
}

/* 0, 1 after a refusal, -ENOMEM. */
static int parts_choose(struct opening *o)
{
	int r;

	o->needed = calloc(o->m.c->world, sizeof *o->needed);
	if (!o->needed)
		return -ENOMEM;
	r = o->choose(o->choose_arg, o->m.c, o->needed, o->err);
	o->no_averages = r == FORMAT_NO_AVERAGES;
	if (r < 0)
		o->refusal = r;
	return r < 0 ? 1 : 0;
}

/* Of pieces that do not overlap: are all there? */
static bool is_all_there(const struct table *t, uint32_t tensor)
{
	const struct table_tensor *x = &t->tensor[tensor];
	uint64_t want = x->numel * operands_of(t, x), have = 0;

	for (uint32_t k = t->first[tensor]; k < t->first[tensor + 1]; k++)
		have += t->piece[k].set.numel;
	return have == want;
}

/* some: of the tensors all of whose pieces were opened. */
static void sums_check(struct opening *o, bool some)
{
	const struct table *t = &o->m.c->table;
	char label[160];

	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint64_t fp = 0;
		bool known = true;

		for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++) {
			fp += t->piece[k].fp;
			known &= t->piece[k].fp_known || MUTANT(FP_ZERO_KNOWN);
		}
		if (MUTANT(FINGERPRINTS_NOT_SUMMED) || (some && !is_all_there(t, i)))
			continue;
		table_tensor_print(&t->tensor[i], label, sizeof label);
		if (known != t->tensor[i].fp_known) {
			fault(&o->rd, -EPROTO, "mismatch", NATIVE_MANIFEST, label, 0, 0,
			      "%s: its fingerprint is known, or those of all its pieces are, but not "
			      "both",
			      label);
			continue;
		}
		if (!known || fp == t->tensor[i].fp)
			continue;
		fault(&o->rd, -EPROTO, "mismatch", NATIVE_MANIFEST, label, 0, 0,
		      "%s: the fingerprints of its pieces add up to %016llx, MANIFEST says %016llx",
		      label, (unsigned long long)fp, (unsigned long long)t->tensor[i].fp);
	}
}

static int directory_read(struct opening *o)
{
	struct checkpoint *c = o->m.c;
	struct ckpt_errlist cover = { 0 };
	int r = manifest_read(o), bad = 0;
	bool overlaps;

	if (!r && o->choose && !o->names)
		r = parts_choose(o);
	if (r)
		return r;
	table_reopen(&c->table);
	c->file = arena_array(&c->table.arena, o->m.npart, sizeof *c->file);
	if (!c->file)
		return -ENOMEM;
	c->nfile = o->m.npart;
	for (uint32_t i = 0; i < c->nfile; i++) {
		r = part_open(o, i, &c->file[i]);
		if (r < 0)
			return r;
		bad |= r;
	}
	r = o->some ? 0 : o->dir->list(o->dir->ctx, "", entry_check, o);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		fault(&o->rd, r, "unreadable", "", "", 0, 0, "the directory cannot be listed: %s",
		      error_text(r));
	r = table_seal(&c->table, NULL);
	if (r < 0)
		return r;
	for (uint32_t i = c->world; i < c->nfile && !o->some && !bad; i++) {
		if (o->named[i])
			continue;
		fault(&o->rd, -EPROTO, "mismatch", NATIVE_MANIFEST, "", 0, 0,
		      "it names %s, which no main part names", c->file[i].name);
		bad = 1;
	}
	c->partial = bad;
	c->some = o->some;
	if (bad)
		return 1; /* without all pieces, coverage and sums are known to be wrong */
	if (o->some)
		table_disjoint(&c->table, &cover);
	else
		table_cover(&c->table, &cover);
	if (cover.code == -ENOMEM) { /* nothing is known to be wrong */
		ckpt_errlist_free(&cover);
		return -ENOMEM;
	}
	overlaps = cover.n > 0;
	faults_of_list(&o->rd, -EPROTO, "coverage", "", &cover);
	if (!o->some || !overlaps)
		sums_check(o, o->some);
	return 0;
}

static int outcome(struct reader *rd, int r, struct ckpt_err *err)
{
	const char *what = "this checkpoint is damaged";

	if (r < 0)
		return ckpt_error(err, r, "out of memory while reading a checkpoint");
	if (rd->list.code == -EUCLEAN)
		what = rd->manifest ? "this checkpoint is not complete" : "no committed checkpoint";
	else if (rd->list.code == -EPROTONOSUPPORT)
		what = "this program cannot read this checkpoint";
	else if (rd->list.code == -EPROTO)
		what = "this checkpoint contradicts itself";
	else if (rd->list.code != -EBADMSG)
		what = "this checkpoint cannot be read";
	return ckpt_errlist_end(&rd->list, err, "%s", what);
}

static int native_open(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err)
{
	struct opening o = { .rd = { .fault = how->fault, .arg = how->fault_arg },
			     .dir = how->dir,
			     .choose = how->choose,
			     .choose_arg = how->choose_arg,
			     .names = how->depth == FORMAT_NAMES,
			     .some = how->choose || how->depth == FORMAT_NAMES,
			     .err = err };
	struct checkpoint *c = calloc(1, sizeof *c);
	int r;

	*ret = NULL;
	if (!c)
		return ckpt_error(err, -ENOMEM, "out of memory while reading a checkpoint");
	c->format = &format_native;
	c->has = NATIVE_HAS;
	c->depth = how->depth;
	o.m.rd = &o.rd;
	o.m.c = c;
	r = directory_read(&o);
	r = o.refusal ? o.refusal : outcome(&o.rd, r, err);
	envelope_free(&o.m.env);
	arena_free(&o.rd.room);
	table_free(&o.declared);
	free(o.sorted);
	free(o.needed);
	free(o.named);
	ckpt_errlist_free(&o.rd.list);
	if (r < 0 && !(how->partial && r != -ENOMEM && c->table.sealed && c->nfile))
		checkpoint_free(c);
	else
		*ret = c;
	return r;
}

static int is_part(void *arg, const char *name, enum source_kind kind)
{
	size_t n = strlen(name);

	(void)arg;
	return kind == SOURCE_FILE && n > 5 && name[0] == 'w' && !strcmp(name + n - 5, ".part");
}

/* 1, 0, -errno. */
static int magic_read(const struct source *src)
{
	char magic[sizeof CONTAINER_HEAD_MAGIC - 1];
	int r = src->bytes < sizeof magic ? 1 : src->read(src->ctx, magic, sizeof magic, 0);

	return r < 0 ? r : !r && !memcmp(magic, CONTAINER_HEAD_MAGIC, sizeof magic);
}

/* Parts without a MANIFEST, or beside a damaged one, are ours to complain about; a file called MANIFEST
 * is not, if it is something else. */
static int native_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	struct source src = { 0 };
	bool there;
	int r;

	if (dir->entry) {
		snprintf(looked, FORMAT_LOOKED, "it has directories alone");
		return 0;
	}
	r = dir->open(dir->ctx, NATIVE_MANIFEST, &src);
	there = r == 0;
	if (there) {
		r = magic_read(&src);
		source_close(&src);
	}
	snprintf(looked, FORMAT_LOOKED, "%s",
		 there ? NATIVE_MANIFEST " is another program's, and no part (w*.part)"
		       : "no " NATIVE_MANIFEST " and no part (w*.part)");
	if (r > 0)
		return 75;
	if (r < 0 && r != -ENOENT && r != -EISDIR)
		return r;
	r = dir->list(dir->ctx, "", is_part, NULL);
	return r > 0 ? 25 : r;
}

static bool is_ours(const char *name)
{
	return native_entry(name) != NATIVE_FOREIGN;
}

const struct format format_native = {
	.name = "native",
	.about = "ckptd's own: a directory of parts and a MANIFEST",
	.probe = native_probe,
	.open = native_open,
	.holds = native_holds,
	.sheet = native_sheet,
	.fill = native_fill,
	.sheet_end = native_sheet_end,
	.root =
		&(const struct format_root){
			.name = NATIVE_MANIFEST,
			.summary = native_summary,
			.rebuild = native_rebuild_of,
			.owns = is_ours,
		},
};

/* The checkpoint's files as MANIFEST has them. */
static int files_list(const struct manifest *m)
{
	struct format_file *file = arena_array(&m->c->table.arena, m->npart, sizeof *file);

	if (!file)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->npart; i++) {
		file[i] = part_known(&m->part[i]);
		file[i].unread = true;
	}
	m->c->file = file;
	m->c->nfile = m->npart;
	m->c->some = true;
	return 0;
}

static int parts_each(const struct manifest *m, native_part_fn *each, void *arg)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < m->npart; i++)
		r = each(arg, &m->part[i]);
	return r;
}

int native_summary(const struct source *manifest, struct checkpoint **ret, struct ckpt_err *err)
{
	return native_summary_parts(manifest, NULL, NULL, ret, err);
}

int native_summary_parts(const struct source *manifest, native_part_fn *each, void *arg,
			 struct checkpoint **ret, struct ckpt_err *err)
{
	struct checkpoint *c = calloc(1, sizeof *c);
	struct reader rd = { .list = { 0 } };
	struct manifest m = { .rd = &rd, .c = c };
	int r;

	*ret = NULL;
	if (!c)
		return ckpt_error(err, -ENOMEM, "out of memory while reading a checkpoint");
	c->format = &format_native;
	c->has = NATIVE_HAS;
	c->depth = FORMAT_NAMES;
	r = envelope_read(&rd, manifest, NATIVE_MANIFEST, CONTAINER_MANIFEST, NULL, SUMMARY_KINDS,
			  false, &m.env);
	if (!r)
		r = head_known(&rd, NATIVE_MANIFEST, &m.env.info, NULL);
	if (!r)
		r = kinds_check(&rd, NATIVE_MANIFEST, &m.env, MANIFEST_KINDS);
	file_begin(&rd, &m.env, REQUIRED_KINDS);
	rd.now_src = manifest;
	if (!r)
		r = declarations_read(&rd, &m.env, KINDS(CK_STRINGS, CK_MESHES, CK_MESHDATA),
				      &c->table);
	if (!r)
		r = facts_read(&m);
	if (!r)
		r = files_list(&m);
	file_end(&rd);
	r = outcome(&rd, rd.no_memory ? -ENOMEM : r, err);
	if (!r && each)
		(void)parts_each(&m, each, arg);
	envelope_free(&m.env);
	ckpt_errlist_free(&rd.list);
	if (r < 0)
		checkpoint_free(c);
	else
		*ret = c;
	return r;
}
