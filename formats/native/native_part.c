/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_part.c - a part: its pieces and chunks join the checkpoint that MANIFEST began. Called
 * when a checkpoint is opened. Invariant: a piece joins only if the part is the file that MANIFEST
 * names, declares what MANIFEST declares, and says of every chunk where it lies. The data are
 * checked by move, with the sums given here.
 */
#include "formats/native/native_reader.h"
#include "ckpt/base/mutant.h"
#include "ckpt/table/operand.h"

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

#define PIECES_GUESS (4u << 20) /* for so many room is made before they are there */

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
		reader_fault(
			&o->rd, -EPROTO, "mismatch", p->name, "", 0, CONTAINER_BLOCK,
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
		reader_fault(&o->rd, -EPROTO, "malformed", file, label, 0, 0,
			     "%s: a piece that is derived from nothing in this file", label);
		return 1;
	}
	return 0;
}

/* Why tensor i may not be in this part; NULL: it may. */
static const char *tensor_misplaced(const struct opening *o, const struct native_part *p,
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
		reader_fault(&o->rd, -EPROTO, "malformed", file, label, 0, 0,
			     "%s: a piece of rank %u in the part of rank %u", label,
			     t->piece[i].rank, rank);
		return 1;
	}
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const char *why = tensor_misplaced(o, part, t, i);

		if (!why)
			continue;
		table_tensor_print(&t->tensor[i], label, sizeof label);
		reader_fault(&o->rd, -EPROTO, "malformed", file, label, 0, 0, "%s: %s", label, why);
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
		reader_fault(&o->rd, r, "malformed", file, "", 0, 0, "%s", err.msg);
		return 1;
	}
	for (uint32_t i = 0; i < t->npiece; i++)
		raw_end = MAX(raw_end, t->piece[i].off + t->piece[i].len);
	if (raw_end != t->place[0].bytes) {
		reader_fault(&o->rd, -EPROTO, "malformed", file, "", 0, 0,
			     "a raw space of %llu bytes, whose last piece ends at %llu",
			     (unsigned long long)t->place[0].bytes, (unsigned long long)raw_end);
		return 1;
	}
	if (envelope_records(&o->rd, file, e, CK_CHUNKS, sizeof *rec, &x))
		return 1;
	rec = x.rec;
	if (x.n != n) {
		reader_fault(&o->rd, -EPROTO, "malformed", file, "", x.off, x.n * sizeof *rec,
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
		reader_fault(&o->rd, r, r == -EPROTO ? "malformed" : "newer", file, "",
			     x.off + i * sizeof *rec, sizeof *rec, "chunk %llu: %s",
			     (unsigned long long)i, err.msg);
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

	if (envelope_records(&o->rd, p->name, e, CK_SOURCES, sizeof *rec, &x) ||
	    envelope_records(&o->rd, p->name, e, CK_STRINGS, 1, &strings))
		return 1;
	rec = x.rec;
	if (x.n > NATIVE_SOURCES_MAX) {
		reader_fault(&o->rd, -EPROTO, "malformed", p->name, "", x.off, x.n * sizeof *rec,
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
			reader_fault(&o->rd, r, r == -EPROTO ? "malformed" : "newer", p->name, "",
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
			reader_fault(
				&o->rd, -EPROTO, "mismatch", p->name, "", x.off + i * sizeof *rec,
				sizeof *rec,
				"it names %s, which MANIFEST does not name, or names otherwise",
				s.name);
			return 1;
		}
		o->named[MIN(from, o->m.npart - 1)] = true;
	}
	return 0;
}

/* A part's declarations must be MANIFEST's; then its pieces join the checkpoint's. linked: it was
 * declared by another launch. */
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
		reader_faults(&o->rd, -EPROTO, "mismatch", file, &l);
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
	uint32_t n = envelope_sections(e, PART_KINDS, section);
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
	return reader_decoded(&o->rd, file, e, r, &err);
}

static int part_sections(struct opening *o, const struct source *src, const struct native_part *p,
			 struct envelope *e, struct format_file *f)
{
	struct table_place place = { .name = f->name, .rank = f->rank, .bytes = f->raw_bytes };
	struct table t = { 0 };
	uint64_t known = part_kinds(p->kind);
	int r = envelope_read(&o->rd, src, f->name, CONTAINER_PART, p->root.b, 0, true, e);

	if (!r)
		r = reader_head_known(&o->rd, f->name, &e->info, &o->m.env.info);
	if (!r)
		r = envelope_kinds_check(&o->rd, f->name, e, known);
	if (r)
		return r;
	reader_file_begin(&o->rd, e, known);
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
	reader_file_end(&o->rd);
	table_free(&t);
	return r;
}

/* 0, 1 after faults, -ENOMEM. Without its pieces a part is still the place of its number. */
static int part_lost(struct opening *o, uint32_t places, const struct native_part *p,
		     struct format_file *f)
{
	struct table_place place = { .name = p->name, .rank = p->rank };

	*f = manifest_file(p);
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
		reader_fault(&o->rd, -EUCLEAN, "missing", f->name, "", 0, f->file_bytes,
			     "this file of %llu bytes is missing: it holds what rank %u owned",
			     (unsigned long long)f->file_bytes, p->rank);
		return 1;
	}
	if (r < 0) {
		reader_fault(&o->rd, r, "unreadable", f->name, "", 0, f->file_bytes,
			     "it cannot be opened: %s", reader_error_text(r));
		return 1;
	}
	if (src.bytes < f->file_bytes) {
		reader_fault(&o->rd, -EBADMSG, "truncated", f->name, "", src.bytes,
			     f->file_bytes - src.bytes, "it ends after %llu of %llu bytes",
			     (unsigned long long)src.bytes, (unsigned long long)f->file_bytes);
		r = 1;
	} else if (src.bytes > f->file_bytes && !MUTANT(PART_BYTES_IGNORED)) {
		reader_fault(&o->rd, -EBADMSG, "unexpected", f->name, "", f->file_bytes,
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

int opening_part(struct opening *o, uint32_t i, struct format_file *f)
{
	const struct native_part *p = &o->m.part[i];
	uint32_t places = o->m.c->table.nplace;
	int r;

	*f = manifest_file(p);
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
