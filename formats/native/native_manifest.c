/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_manifest.c - MANIFEST: lineage, notes, attributes, the list of parts, the tensors. Called
 * when a checkpoint is opened, and alone for a summary. Invariant: every number in it was compared
 * with what it counts.
 */
#include "formats/native/native_reader.h"
#include "ckpt/base/mutant.h"
#include <stdio.h>

#define SUMMARY_KINDS \
	KINDS(CK_STRINGS, CK_MESHES, CK_MESHDATA, CK_NOTES, CK_PARTS, CK_LINEAGE, CK_ATTRS)

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

static void id_print(const uint8_t *b, char *ret)
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

	if (envelope_records(m->rd, NATIVE_MANIFEST, &m->env, CK_LINEAGE, sizeof *l, &x))
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
		reader_newer(m->rd, NATIVE_MANIFEST, off, sizeof *l,
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
	id_print(m->env.map.self.b, c->id);
	if (!all_zero(l->parent_id, sizeof l->parent_id))
		id_print(l->parent_id, c->parent_id);
	snprintf(c->job, sizeof c->job, "%s", job);
	snprintf(c->tool, sizeof c->tool, "%s", tool);
	return 0;
}

/* An optional section that makes no sense to this program, whatever the reason: left out, and said
 * so. */
static int section_drop(struct manifest *m)
{
	m->c->newer = true;
	return MUTANT(OPTIONAL_REFUSED) ? MALFORMED(m, 0, 0, "it makes no sense") : 0;
}

/* The records of an optional section. false: it has another form. */
static bool section_optional(struct manifest *m, uint32_t kind, uint32_t rec_bytes,
			     struct records *ret)
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

	if (!section_optional(m, CK_NOTES, sizeof *rec, &x) || x.n > NATIVE_NOTES_MAX)
		return section_drop(m);
	rec = x.rec;
	m->c->note = arena_array(&m->c->table.arena, x.n, sizeof *m->c->note);
	if (!m->c->note)
		return -ENOMEM;
	for (uint64_t i = 0; i < x.n; i++) {
		const char *key = string_at(m, rec[i].key, CKPT_NAME_MAX);
		uint64_t bits = le64_get(rec[i].value);

		if (le32_get(rec[i].zero) || !key)
			return section_drop(m);
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

	if (!section_optional(m, CK_ATTRS, sizeof *rec, &x) || x.n > NATIVE_ATTRS_MAX)
		return section_drop(m);
	rec = x.rec;
	attr = arena_array(a, x.n, sizeof *attr);
	if (!attr)
		return -ENOMEM;
	for (uint64_t i = 0; i < x.n; i++) {
		const char *key = string_at(m, rec[i].key, NATIVE_ATTR_KEY_MAX);
		const char *value = string_at(m, rec[i].value, NATIVE_ATTR_VALUE_MAX);

		if (!key || !*key || !value || (i && strcmp(attr[i - 1].key, key) >= 0))
			return section_drop(m);
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
		reader_fault(m->rd, r, r == -EPROTO ? "malformed" : "newer", NATIVE_MANIFEST, "",
			     at, sizeof *rec, "part %u: %s", i, err.msg);
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

	if (envelope_records(m->rd, NATIVE_MANIFEST, &m->env, CK_PARTS, sizeof *rec, &x))
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
int manifest_facts(struct manifest *m)
{
	struct records x;
	int r;

	if (envelope_records(m->rd, NATIVE_MANIFEST, &m->env, CK_STRINGS, 1, &x))
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

/* The tensors that MANIFEST declares, or of these kinds what it has. */
int manifest_declarations(struct reader *rd, const struct envelope *e, uint64_t kinds,
			  struct table *ret)
{
	struct table_section section[CONTAINER_SECT_MAX];
	struct ckpt_err err;
	int r = table_decode_tensors(section, envelope_sections(e, kinds, section), ret, &err);

	return reader_decoded(rd, NATIVE_MANIFEST, e, r, &err);
}

/* --- alone --- */

/* What MANIFEST says of it. */
struct format_file manifest_file(const struct native_part *p)
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

/* The checkpoint's files as MANIFEST has them. */
static int files_list(const struct manifest *m)
{
	struct format_file *file = arena_array(&m->c->table.arena, m->npart, sizeof *file);

	if (!file)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->npart; i++) {
		file[i] = manifest_file(&m->part[i]);
		file[i].unread = true;
	}
	m->c->file = file;
	m->c->nfile = m->npart;
	m->c->some = true;
	return 0;
}

int native_summary(const struct source *manifest, struct checkpoint **ret, struct ckpt_err *err)
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
		r = reader_head_known(&rd, NATIVE_MANIFEST, &m.env.info, NULL);
	if (!r)
		r = envelope_kinds_check(&rd, NATIVE_MANIFEST, &m.env, MANIFEST_KINDS);
	reader_file_begin(&rd, &m.env, REQUIRED_KINDS);
	rd.now_src = manifest;
	if (!r)
		r = manifest_declarations(&rd, &m.env, KINDS(CK_STRINGS, CK_MESHES, CK_MESHDATA),
					  &c->table);
	if (!r)
		r = manifest_facts(&m);
	if (!r)
		r = files_list(&m);
	reader_file_end(&rd);
	r = reader_outcome(&rd, rd.no_memory ? -ENOMEM : r, err);
	envelope_free(&m.env);
	ckpt_errlist_free(&rd.list);
	if (r < 0)
		checkpoint_free(c);
	else
		*ret = c;
	return r;
}
