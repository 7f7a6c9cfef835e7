/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_file.c - one file of a checkpoint as its sections, and what is wrong with it. Called by
 * the readers of MANIFEST and of parts. Invariant: nothing is used before the hash over it was
 * right, and every byte of a file's metadata is under some check, so no change goes unseen.
 */
#include "formats/native/native_reader.h"
#include "ckpt/base/mutant.h"
#include <stdarg.h>
#include <stdio.h>

/* --- faults --- */

/* What a caller must hear of before all else (docs/FORMAT.md, verdicts); what could not be read
 * comes last. */
static int code_gravity(int code)
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

void reader_fault(struct reader *rd, int code, const char *kind, const char *file,
		  const char *tensor, uint64_t off, uint64_t len, const char *fmt, ...)
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
	if (!rd->list.n || code_gravity(code) > code_gravity(rd->list.code))
		rd->list.code = code;
	if (*file)
		ckpt_errlist_add(&rd->list, "%s: %s", file, text);
	else
		ckpt_errlist_add(&rd->list, "%s", text);
	f.text = text;
	if (rd->fault)
		rd->fault(rd->arg, &f);
}

/* Reports a fault that does not stop the opening, because it concerns no tensor's bytes. */
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
void reader_newer(struct reader *rd, const char *file, uint64_t off, uint64_t len, const char *fmt,
		  ...)
{
	struct ckpt_err err;
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ckpt_newer(&err, "%s", text);
	reader_fault(rd, -EPROTONOSUPPORT, "newer", file, "", off, len, "%s", err.msg);
}

/* Every line of a list as a fault. In lines of the table's checks the tensor comes first. */
void reader_faults(struct reader *rd, int code, const char *kind, const char *file,
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
		reader_fault(rd, code, kind, file, tensor, 0, 0, "%s", line);
	}
	if (n_told < l->n)
		reader_fault(rd, code, kind, file, "", 0, 0, "and %llu more",
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

	reader_fault(rd, code,
		     !whole			? "checksum"
		     : code == -EPROTONOSUPPORT ? "newer"
						: "malformed",
		     file, "", off, CONTAINER_BLOCK, "%s", e->msg);
}

const char *reader_error_text(int r)
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
	reader_fault(rd, r, "unreadable", file, "", off, len,
		     "%llu bytes at offset %llu cannot be read: %s", (unsigned long long)len,
		     (unsigned long long)off, reader_error_text(r));
	return 1;
}

/* --- the envelope --- */

void envelope_free(struct envelope *e)
{
	arena_free(&e->mem);
}

/* What a newer version means by the rest of such a file is not ours to judge. */
static bool is_of_another_version(const void *head_block)
{
	const struct ck_head *h = head_block;

	return le16_get(h->major) != CONTAINER_MAJOR || container_is_older(h) ||
	       le64_get(h->incompat) != CONTAINER_V02 || h->hash != CONTAINER_HASH;
}

/* Header and trailer. root: the hash that the trailer's block must have; NULL: any. 0, 1 after
 * faults; then e->map.file_bytes is 0 unless the sections are still to be held against their
 * hashes. */
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
		reader_fault(rd, -EBADMSG, "truncated", file, "", src->bytes,
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
		reader_fault(rd, -EBADMSG, "truncated", file, "", src->bytes, 0,
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
		reader_fault(
			rd, -EBADMSG, "mismatch", file, "", tail_at, CONTAINER_BLOCK,
			"it is complete, but not the file that MANIFEST names: it was replaced or "
			"written again");
		e->map.file_bytes = 0;
		return 1;
	}
	r = bad ? 0 : container_check(&e->info, &e->map, &err);
	if (r < 0) /* a trailer with the right root is not the stranger */
		reader_fault(rd, r, "mismatch", file, "", root ? 0 : tail_at, CONTAINER_BLOCK, "%s",
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

/* Is there a section of a kind that this program must understand but does not, or that it does not
 * know in such a file? known: those that it does. */
int envelope_kinds_check(struct reader *rd, const char *file, const struct envelope *e,
			 uint64_t known)
{
	int bad = 0;

	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (s->flags & ~(uint32_t)CK_SECTION_OPTIONAL)
			reader_newer(rd, file, s->off, s->len,
				     "a section of kind %u with flags %#x", s->kind, s->flags);
		else if (!in_mask(known, s->kind) && !is_optional(s))
			reader_newer(rd, file, s->off, s->len,
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
		reader_fault(rd, r, "checksum", file, "", s->off, s->len, "%s", err.msg);
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

/* All sections at once, and the zeros between them: to the spare memory, or to some of its own. 0,
 * 1 after faults, -ENOMEM. */
static int sections_read(struct reader *rd, const struct source *src, const char *file, bool spare,
			 struct envelope *e)
{
	uint64_t from = e->map.data_end, at = from, end = e->map.file_bytes - CONTAINER_BLOCK;
	uint8_t *p;
	int bad = 0;

	if (end - from > NATIVE_META_BYTES_MAX) {
		reader_fault(rd, -EPROTO, "malformed", file, "", from, end - from,
			     "%llu bytes of sections; at most %llu are possible",
			     (unsigned long long)(end - from),
			     (unsigned long long)NATIVE_META_BYTES_MAX);
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
			reader_fault(rd, -EPROTO, "malformed", file, "", s->off, s->len,
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
uint32_t envelope_sections(const struct envelope *e, uint64_t kinds, struct table_section *ret)
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

/* Is there something in the file that is being read that only a newer version knows? Then it is
 * told, once. */
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
	rd->now_newer = envelope_kinds_check(rd, file, e, rd->now_known);
	if (!rd->now_newer &&
	    native_newer(section, envelope_sections(e, rd->now_known, section), &err) < 0) {
		off = e->map.data_end;
		rd->now_newer = true;
		reader_fault(rd, -EPROTONOSUPPORT, "newer", file, "", off,
			     e->map.file_bytes - CONTAINER_BLOCK - off, "%s", err.msg);
	}
	rd->now = rd->now_newer ? NULL : e;
	return rd->now_newer;
}

void reader_file_begin(struct reader *rd, struct envelope *e, uint64_t known)
{
	rd->now_src = NULL;
	rd->now = e;
	rd->now_known = known;
	rd->now_newer = false;
}

void reader_file_end(struct reader *rd)
{
	rd->now = NULL;
	rd->now_newer = false;
}

/* Header, trailer and sections: those of these kinds; 0: all. 0, 1 after faults, -ENOMEM. */
int envelope_read(struct reader *rd, const struct source *src, const char *file, uint32_t kind,
		  const uint8_t *root, uint64_t kinds, bool spare, struct envelope *e)
{
	int r = blocks_read(rd, src, file, kind, root, e), s = 0;

	/* Damage is reported first, also in a file that a newer version wrote. */
	if (e->map.file_bytes)
		s = kinds ? sections_pick(rd, src, file, kinds, e)
			  : sections_read(rd, src, file, spare, e);
	return s ? s : r;
}

/* 0, 1 after a fault. */
int envelope_records(struct reader *rd, const char *file, const struct envelope *e, uint32_t kind,
		     uint32_t rec_bytes, struct records *ret)
{
	*ret = (struct records){ .n = 0 };
	for (uint32_t i = 0; i < e->map.nsect; i++) {
		const struct container_sect *s = &e->map.sect[i];

		if (s->kind != kind)
			continue;
		if (s->rec_bytes != rec_bytes) {
			reader_newer(
				rd, file, s->off, s->len,
				"section of kind %u: records of %u bytes; this program knows them with %u",
				kind, s->rec_bytes, rec_bytes);
			return 1;
		}
		*ret = (struct records){ .rec = e->sect[i], .n = s->count, .off = s->off };
	}
	return 0;
}

/* --- what readers have in common --- */

/* The fields of a header that only a newer version uses so. manifest: MANIFEST's header, NULL for
 * its own. */
int reader_head_known(struct reader *rd, const char *file, const struct container_info *h,
		      const struct container_info *manifest)
{
	static const uint8_t zero[sizeof h->checkpoint];
	int bad = 1;

	if (h->chunk_log2 != CHUNK_LOG2 || h->align_log2 != NATIVE_ALIGN_LOG2)
		reader_newer(
			rd, file, 0, CONTAINER_BLOCK,
			"chunks of 2^%u bytes on multiples of 2^%u; this program knows 2^%d on 2^%d",
			h->chunk_log2, h->align_log2, CHUNK_LOG2, NATIVE_ALIGN_LOG2);
	else if (manifest ? h->part_kind > PART_AVERAGE
			  : h->part_kind || h->writer ||
				    memcmp(h->checkpoint, zero, sizeof zero) != 0)
		reader_newer(rd, file, 0, CONTAINER_BLOCK,
			     "its header is of a part of kind %u, of writer %u", h->part_kind,
			     h->writer);
	else if (manifest && h->ro_compat & ~manifest->ro_compat)
		reader_newer(rd, file, 0, CONTAINER_BLOCK,
			     "it has features %#llx that MANIFEST does not speak of",
			     (unsigned long long)(h->ro_compat & ~manifest->ro_compat));
	else
		bad = 0;
	return bad;
}

/* What table_decode said about the sections of a file. 0, 1 after a fault, -ENOMEM. */
int reader_decoded(struct reader *rd, const char *file, const struct envelope *e, int r,
		   const struct ckpt_err *err)
{
	if (r == -ENOMEM || !r)
		return r;
	reader_fault(rd, r, r == -EPROTONOSUPPORT ? "newer" : "malformed", file, "",
		     e->map.data_end, e->map.file_bytes - CONTAINER_BLOCK - e->map.data_end, "%s",
		     err->msg);
	return 1;
}

int reader_outcome(struct reader *rd, int r, struct ckpt_err *err)
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
