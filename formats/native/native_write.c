/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_write.c - parts and MANIFEST as bytes. Called by move (parts) and by whoever commits
 * (MANIFEST). Invariant: what is written here has been held against the reader's rules first; a
 * MANIFEST exists only for a union that covers every tensor once.
 */
#include "formats/native/native_impl.h"
#include <stdio.h>

bool native_name_ok(const char *name)
{
	size_t n =
		strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	return n && n <= NATIVE_NAME_MAX && !name[n] && name[0] != '.' &&
	       strcmp(name, NATIVE_MANIFEST) != 0;
}

static struct container_info head_of(const struct native_info *info, uint32_t kind, uint32_t writer)
{
	struct hash128 job = container_job(info->job);
	struct container_info h = {
		.kind = kind,
		.step = info->step,
		.generation = info->generation,
		.wall_ns = info->wall_ns,
		.writer = writer,
		.world = info->world,
		.chunk_log2 = NATIVE_CHUNK_LOG2,
		.align_log2 = NATIVE_ALIGN_LOG2,
	};

	memcpy(h.uuid, info->uuid, sizeof h.uuid);
	memcpy(h.job, job.b, sizeof h.job);
	return h;
}

void native_part_head(const struct native_info *info, uint32_t rank, struct ck_head *ret_head)
{
	struct container_info h = head_of(info, CONTAINER_PART, rank);

	container_head_build(ret_head, &h);
}

/* --- the end of a part --- */

/* The caller's chunks must be those that the table asks for. */
static int chunks_check(const struct table *t, const struct chunk *chunk, uint64_t nchunk,
			uint64_t data_end, uint8_t **ret_elem, uint64_t *ret_data_end,
			struct ckpt_err *err)
{
	cleanup_free struct chunk *want = NULL;
	uint64_t n, last = CONTAINER_BLOCK;
	int r = native_chunks(t, &want, ret_elem, &n, ret_data_end, err);

	if (r < 0)
		return r;
	if (n != nchunk)
		return ckpt_error(err, -EINVAL, "a part with %llu chunks was given %llu",
				  (unsigned long long)n, (unsigned long long)nchunk);
	for (uint64_t i = 0; i < n; i++) {
		if (want[i].off != chunk[i].off || want[i].raw_len != chunk[i].raw_len ||
		    want[i].stored_len != chunk[i].stored_len || chunk[i].codec != CODEC_RAW)
			return ckpt_error(err, -EINVAL,
					  "chunk %llu of a part does not lie where it belongs",
					  (unsigned long long)i);
		if (want[i].raw_len)
			last = want[i].off + want[i].stored_len;
	}
	if (data_end != last && data_end != *ret_data_end)
		return ckpt_error(err, -EINVAL, "the data of a part ends at %llu, not at %llu",
				  (unsigned long long)last, (unsigned long long)data_end);
	return 0;
}

static struct ck_chunk *chunks_encode(const struct chunk *chunk, const uint8_t *elem, uint64_t n,
				      struct arena *a)
{
	struct ck_chunk *rec = arena_array(a, n, sizeof *rec);

	for (uint64_t i = 0; rec && i < n; i++) {
		rec[i] = (struct ck_chunk){ .source = le32_of(TABLE_NONE),
					    .base = le32_of(TABLE_NONE) };
		if (!chunk[i].raw_len)
			continue;
		rec[i].off = le64_of(chunk[i].off);
		rec[i].stored_len = le32_of(chunk[i].stored_len);
		rec[i].raw_len = le32_of(chunk[i].raw_len);
		rec[i].codec = chunk[i].codec;
		rec[i].elem_bytes = elem[i];
		rec[i].stored_crc = le32_of(chunk[i].stored_crc);
		memcpy(rec[i].raw_hash, chunk[i].raw_hash.b, sizeof rec[i].raw_hash);
	}
	return rec;
}

static struct container_bytes section_of(const struct codec_section *s)
{
	return (struct container_bytes){ .kind = s->kind,
					 .rec_bytes = s->rec_bytes,
					 .p = s->bytes,
					 .len = s->len,
					 .count = s->count };
}

/* Padding, sections and trailer as they follow data_end in the file. */
static int tail_encode(const struct native_info *info, const struct container_bytes *sect,
		       uint32_t n, uint64_t data_end, uint64_t aligned_end, void **ret_bytes,
		       uint64_t *ret_len, struct hash128 *ret_root, struct ckpt_err *err)
{
	struct container_map m;
	struct ck_tail tail;
	uint8_t *bytes;

	container_map_start(&m, info->uuid, aligned_end);
	for (uint32_t i = 0; i < n; i++)
		container_map_add(&m, &sect[i]);
	if (m.file_bytes - aligned_end > NATIVE_META_BYTES_MAX)
		return ckpt_error(
			err, -EFBIG,
			"a description of more than %llu bytes: this model has too many tensors "
			"for one part",
			(unsigned long long)NATIVE_META_BYTES_MAX);
	container_tail_build(&tail, &m);
	bytes = calloc(1, m.file_bytes - data_end);
	if (!bytes)
		return ckpt_error(err, -ENOMEM, "out of memory for the description of a part");
	for (uint32_t i = 0; i < n; i++)
		if (sect[i].len)
			memcpy(bytes + (m.sect[i].off - data_end), sect[i].p, sect[i].len);
	memcpy(bytes + (m.file_bytes - sizeof tail - data_end), &tail, sizeof tail);
	*ret_root = hash128(&tail, sizeof tail);
	*ret_bytes = bytes;
	*ret_len = m.file_bytes - data_end;
	return 0;
}

int native_part_tail(const struct native_info *info, uint32_t rank, const struct table *t,
		     const struct chunk *chunk, uint64_t nchunk, uint64_t data_end,
		     void **ret_bytes, uint64_t *ret_len, struct hash128 *ret_root,
		     struct ckpt_err *err)
{
	struct codec_section section[CODEC_SECTIONS_MAX];
	struct container_bytes sect[CODEC_SECTIONS_MAX + 1];
	struct table without_places = *t; /* a part is its own place, and has no record of it */
	cleanup_free uint8_t *elem = NULL;
	struct arena a = { 0 };
	uint64_t aligned_end;
	struct ck_chunk *rec;
	uint32_t n;
	int r = chunks_check(t, chunk, nchunk, data_end, &elem, &aligned_end, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < t->npiece; i++)
		assert(t->piece[i].rank == rank);
	for (uint32_t i = 0; i < t->ntensor; i++)
		assert(!t->tensor[i].fp);
	without_places.nplace = 0;
	r = codec_encode(&without_places, true, &a, section, &n, err);
	for (uint32_t i = 0; !r && i < n; i++)
		sect[i] = section_of(&section[i]);
	rec = r ? NULL : chunks_encode(chunk, elem, nchunk, &a);
	if (!r && !rec)
		r = ckpt_error(err, -ENOMEM, "out of memory for the chunks of a part");
	if (!r) {
		sect[n++] = (struct container_bytes){ .kind = CK_CHUNKS,
						      .rec_bytes = sizeof *rec,
						      .p = rec,
						      .len = nchunk * sizeof *rec };
		r = tail_encode(info, sect, n, data_end, aligned_end, ret_bytes, ret_len, ret_root,
				err);
	}
	arena_free(&a);
	return r;
}

/* --- MANIFEST --- */

struct manifest {
	const struct native_info *info;
	const struct native_part **part; /* [npart] in the order of their ranks */
	uint32_t npart;
	const struct native_lineage *lineage;
	struct table *t;	      /* the union */
	struct table made;	      /* where it is not the caller's */
	const struct table *declared; /* where none is needed: its tensors; else NULL */
	struct arena a;
	char *string; /* STRINGS, continued */
	uint64_t nstring;
	struct ckpt_errlist list;
	struct ckpt_err *err;
};

/* Each rank once. Everything else is built upon it, so it is told alone. */
static void parts_order(struct manifest *m, const struct native_part *part, uint32_t npart)
{
	for (uint32_t i = 0; i < npart; i++) {
		if (part[i].rank >= m->npart)
			ckpt_errlist_add(&m->list, "part %s is of rank %u, but there are %u ranks",
					 part[i].name, part[i].rank, m->npart);
		else if (m->part[part[i].rank])
			ckpt_errlist_add(&m->list, "rank %u is in two parts: %s and %s",
					 part[i].rank, m->part[part[i].rank]->name, part[i].name);
		else
			m->part[part[i].rank] = &part[i];
		if (!native_name_ok(part[i].name))
			ckpt_errlist_add(&m->list, "a part of rank %u has an impossible name",
					 part[i].rank);
	}
	for (uint32_t r = 0; r < m->npart; r++)
		if (!m->part[r])
			ckpt_errlist_add(&m->list, "no part holds what rank %u owns", r);
}

static int by_name(const void *va, const void *vb)
{
	const struct native_part *const *a = va, *const *b = vb;

	return strcmp((*a)->name, (*b)->name);
}

static int names_check(struct manifest *m)
{
	const struct native_part **sorted = arena_dup(&m->a, m->part, m->npart * sizeof *sorted);

	if (!sorted)
		return ckpt_error(m->err, -ENOMEM, "out of memory for a MANIFEST");
	qsort(sorted, m->npart, sizeof *sorted, by_name);
	for (uint32_t i = 1; i < m->npart; i++)
		if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
			ckpt_errlist_add(&m->list, "ranks %u and %u have parts of one name, %s",
					 sorted[i - 1]->rank, sorted[i]->rank, sorted[i]->name);
	return 0;
}

/* All parts as one table. */
static int parts_unite(struct manifest *m)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < m->npart; i++) {
		const struct table *t = m->part[i]->table;

		for (uint32_t k = 0; k < t->npiece; k++)
			if (t->piece[k].rank != i)
				ckpt_errlist_add(&m->list,
						 "part %s of rank %u has a piece of rank %u",
						 m->part[i]->name, i, t->piece[k].rank);
		r = table_merge(&m->made, t, NULL, &m->list, m->err);
	}
	m->t = &m->made;
	return r ? r : table_seal(m->t, m->err);
}

static void union_check(struct manifest *m)
{
	struct table *t = m->t;

	for (uint32_t i = 0; i < t->ntensor; i++)
		t->tensor[i].fp = 0;
	for (uint32_t i = 0; i < t->npiece; i++)
		t->tensor[t->piece[i].tensor].fp += t->piece[i].fp;
	table_cover(t, &m->list);
}

/* One more string behind those of the table; 0, which is "", without memory for it: asked at the
 * end. */
static le32 string_add(struct manifest *m, const char *s)
{
	size_t n = strlen(s) + 1;
	uint64_t at = m->nstring;
	char *p = m->string ? realloc(m->string, at + n) : NULL;

	if (!p || at + n > UINT32_MAX) {
		free(p ? p : m->string);
		m->string = NULL;
		return le32_of(0);
	}
	memcpy(p + at, s, n);
	m->string = p;
	m->nstring += n;
	return le32_of((uint32_t)at);
}

static struct container_bytes parts_encode(struct manifest *m)
{
	struct ck_part *rec = arena_array(&m->a, m->npart, sizeof *rec);

	for (uint32_t i = 0; rec && i < m->npart; i++) {
		const struct native_part *p = m->part[i];

		rec[i] = (struct ck_part){
			.file_bytes = le64_of(p->file_bytes),
			.raw_bytes = le64_of(p->raw_bytes),
			.name = string_add(m, p->name),
			.writer = le32_of(p->rank),
		};
		memcpy(rec[i].uuid, m->info->uuid, sizeof rec[i].uuid);
		memcpy(rec[i].root, p->root.b, sizeof rec[i].root);
	}
	return (struct container_bytes){
		.kind = CK_PARTS, .rec_bytes = sizeof *rec, .p = rec, .len = m->npart * sizeof *rec
	};
}

static struct container_bytes ranks_encode(struct manifest *m)
{
	struct ck_rank *rec = arena_array(&m->a, m->npart, sizeof *rec);

	for (uint32_t i = 0; rec && i < m->npart; i++)
		rec[i].part = le32_of(i);
	return (struct container_bytes){
		.kind = CK_RANKS, .rec_bytes = sizeof *rec, .p = rec, .len = m->npart * sizeof *rec
	};
}

static struct container_bytes lineage_encode(struct manifest *m)
{
	struct ck_lineage *rec = arena_array(&m->a, 1, sizeof *rec);

	if (rec) {
		*rec = (struct ck_lineage){
			.seq = le64_of(m->lineage->seq),
			.parent_step = le64_of(m->lineage->parent_step),
			.generation = le64_of(m->info->generation),
			.world = le32_of(m->info->world),
			.tool = string_add(m, m->lineage->tool ? m->lineage->tool : ""),
			.job = string_add(m, m->info->job),
		};
		memcpy(rec->parent_id, m->lineage->parent_id, sizeof rec->parent_id);
	}
	return (struct container_bytes){
		.kind = CK_LINEAGE, .rec_bytes = sizeof *rec, .p = rec, .len = sizeof *rec
	};
}

static struct container_bytes notes_encode(struct manifest *m)
{
	uint32_t n = m->lineage->nnote;
	struct ck_note *rec = arena_array(&m->a, n, sizeof *rec);

	for (uint32_t i = 0; rec && i < n; i++) {
		uint64_t bits;

		memcpy(&bits, &m->lineage->note[i].value, sizeof bits);
		rec[i] = (struct ck_note){ .key = string_add(m, m->lineage->note[i].key),
					   .value = le64_of(bits) };
	}
	return (struct container_bytes){
		.kind = CK_NOTES,
		.flags = CK_SECTION_OPTIONAL,
		.rec_bytes = sizeof *rec,
		.p = rec,
		.len = n * sizeof *rec,
	};
}

static int manifest_encode(struct manifest *m, void **ret_bytes, uint64_t *ret_len)
{
	struct container_info head = head_of(m->info, CONTAINER_MANIFEST, 0);
	struct codec_section section[CODEC_SECTIONS_MAX];
	struct container_bytes sect[CODEC_SECTIONS_MAX + 4];
	uint64_t total = 0;
	uint32_t n, k;
	int r = codec_encode(m->declared ? m->declared : m->t, false, &m->a, section, &n, m->err);

	if (r < 0)
		return r;
	assert(section[0].kind == CK_STRINGS);
	m->string = malloc(section[0].len);
	m->nstring = section[0].len;
	if (m->string)
		memcpy(m->string, section[0].bytes, section[0].len);
	for (k = 0; k < n; k++)
		sect[k] = section_of(&section[k]);
	sect[k++] = notes_encode(m);
	sect[k++] = parts_encode(m);
	sect[k++] = ranks_encode(m);
	sect[k++] = lineage_encode(m);
	sect[0].p = m->string;
	sect[0].len = m->nstring;
	for (uint32_t i = 0; i < k; i++) {
		if (!sect[i].p)
			return ckpt_error(m->err, -ENOMEM, "out of memory for a MANIFEST");
		total += align_up(sect[i].len, CONTAINER_BLOCK);
	}
	if (total > NATIVE_META_BYTES_MAX - 2 * CONTAINER_BLOCK)
		return ckpt_error(
			m->err, -EFBIG,
			"a MANIFEST of more than %llu bytes: this model has too many tensors",
			(unsigned long long)NATIVE_META_BYTES_MAX);
	return container_encode(&head, sect, k, ret_bytes, ret_len, m->err);
}

static int lineage_check(const struct native_info *info, const struct native_lineage *l,
			 struct ckpt_err *err)
{
	if (!info->world || info->world > NATIVE_WORLD_MAX)
		return ckpt_error(err, -EINVAL, "a world of %u ranks; 1 to %u are possible",
				  info->world, NATIVE_WORLD_MAX);
	if (l->nnote > NATIVE_NOTES_MAX)
		return ckpt_error(err, -EINVAL, "%u notes; at most %d are possible", l->nnote,
				  NATIVE_NOTES_MAX);
	for (uint32_t i = 0; i < l->nnote; i++)
		if (!l->note[i].key || strlen(l->note[i].key) > CKPT_NAME_MAX)
			return ckpt_error(err, -EINVAL,
					  "the key of note %u is missing or longer than %d bytes",
					  i, CKPT_NAME_MAX);
	if (strlen(info->job) > CKPT_JOB_MAX || (l->tool && strlen(l->tool) > NATIVE_TOOL_MAX))
		return ckpt_error(err, -EINVAL,
				  "a job name is longer than %d bytes, or a tool's than %d",
				  CKPT_JOB_MAX, NATIVE_TOOL_MAX);
	return 0;
}

static int manifest_make(struct manifest *m, const struct native_part *part, uint32_t npart,
			 void **ret_bytes, uint64_t *ret_len)
{
	int r = lineage_check(m->info, m->lineage, m->err);

	if (r < 0)
		return r;
	m->part = arena_array(&m->a, m->npart, sizeof *m->part);
	if (!m->part)
		return ckpt_error(m->err, -ENOMEM, "out of memory for a MANIFEST");
	parts_order(m, part, npart);
	if (!m->list.n)
		r = names_check(m);
	if (!r && !m->list.n && !m->t && !m->declared)
		r = parts_unite(m);
	/* With the sums of the fingerprints, and whole. */
	if (!r && !m->list.n && !m->declared)
		union_check(m);
	if (m->list.code == -ENOMEM) /* what was not checked is not wrong */
		r = ckpt_error(m->err, -ENOMEM, "out of memory for a MANIFEST");
	if (!r)
		r = ckpt_errlist_end(&m->list, m->err,
				     "step %llu of job %s is not complete and was not committed",
				     (unsigned long long)m->info->step, m->info->job);
	return r ? r : manifest_encode(m, ret_bytes, ret_len);
}

/* all NULL and declared NULL: the union of the parts' tables. */
static int manifest_of(const struct native_info *info, const struct native_part *part,
		       uint32_t npart, struct table *all, const struct table *declared,
		       const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
		       uint8_t *ret_id, struct ckpt_err *err)
{
	struct manifest m = { .info = info,
			      .npart = info->world,
			      .lineage = lineage,
			      .t = all,
			      .declared = declared,
			      .list = { .code = -EINVAL },
			      .err = err };
	int r = manifest_make(&m, part, npart, ret_bytes, ret_len);

	if (!r)
		memcpy(ret_id, (const uint8_t *)*ret_bytes + *ret_len - 16, 16);
	ckpt_errlist_free(&m.list);
	free(m.string);
	table_free(&m.made);
	arena_free(&m.a);
	return r;
}

int native_manifest(const struct native_info *info, const struct native_part *part, uint32_t npart,
		    const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
		    uint8_t *ret_id, struct ckpt_err *err)
{
	return manifest_of(info, part, npart, NULL, NULL, lineage, ret_bytes, ret_len, ret_id, err);
}

int native_manifest_united(const struct native_info *info, const struct native_part *part,
			   uint32_t npart, struct table *all, const struct native_lineage *lineage,
			   void **ret_bytes, uint64_t *ret_len, uint8_t *ret_id,
			   struct ckpt_err *err)
{
	return manifest_of(info, part, npart, all, NULL, lineage, ret_bytes, ret_len, ret_id, err);
}

int native_manifest_declared(const struct native_info *info, const struct table *declared,
			     const struct native_part *part, uint32_t npart,
			     const struct native_lineage *lineage, void **ret_bytes,
			     uint64_t *ret_len, uint8_t *ret_id, struct ckpt_err *err)
{
	assert(declared->sealed);
	return manifest_of(info, part, npart, NULL, declared, lineage, ret_bytes, ret_len, ret_id,
			   err);
}
