/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_write.c - parts and MANIFEST as bytes. Called by move (parts) and by whoever commits
 * (MANIFEST). Invariant: what is written here has been held against the reader's rules first; a
 * MANIFEST exists only for a union that covers every tensor once.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/table/operand.h"
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
		.chunk_log2 = CHUNK_LOG2,
		.align_log2 = NATIVE_ALIGN_LOG2,
	};

	memcpy(h.uuid, info->uuid, sizeof h.uuid);
	memcpy(h.job, job.b, sizeof h.job);
	return h;
}

static const struct native_role *role_of(const struct native_info *info)
{
	static const struct native_role main_part;

	return info->role ? info->role : &main_part;
}

void native_part_uuid(const struct native_info *info, uint32_t writer, uint8_t ret_uuid[16])
{
	struct {
		uint8_t uuid[16];
		le32 writer, kind, group;
	} of = { .writer = le32_of(writer) };
	const struct native_role *role = role_of(info);
	struct hash128 h;

	of.kind = le32_of(role->kind);
	of.group = le32_of(role->group);
	memcpy(of.uuid, info->uuid, sizeof of.uuid);
	h = hash128(&of, sizeof of);
	memcpy(ret_uuid, h.b, sizeof h.b);
}

void native_part_head(const struct native_info *info, uint32_t rank, struct ck_head *ret_head)
{
	struct container_info h = head_of(info, CONTAINER_PART, rank);

	h.part_kind = role_of(info)->kind;
	memcpy(h.checkpoint, info->uuid, sizeof h.checkpoint);
	native_part_uuid(info, rank, h.uuid);
	container_head_build(ret_head, &h);
}

/* --- the end of a part --- */

/* The caller's chunks must be some that the table allows. */
static int chunks_check(const struct table *t, const struct chunk *chunk, uint64_t nchunk,
			uint64_t data_end, struct ckpt_err *err)
{
	cleanup_free struct chunk *need = NULL;
	uint64_t n, end, at = CONTAINER_BLOCK;
	int r = chunk_map_make(t, NATIVE_DATA_OFF, &need, &n, &end, err);

	if (r < 0)
		return r;
	if (n != nchunk)
		return ckpt_error(err, -EINVAL, "a part with %llu chunks was given %llu",
				  (unsigned long long)n, (unsigned long long)nchunk);
	for (uint64_t i = 0; i < n; i++) {
		r = native_chunk_check(&chunk[i], &need[i], t->place[0].bytes - (i << CHUNK_LOG2),
				       INT64_MAX, &at, err);
		if (r < 0) {
			if (err)
				err->code = -EINVAL;
			return ckpt_error_prefix(err, -EINVAL, "chunk %llu", (unsigned long long)i);
		}
	}
	if (data_end != at && data_end != align_up(at, CONTAINER_BLOCK))
		return ckpt_error(err, -EINVAL, "the data of a part ends at %llu, not at %llu",
				  (unsigned long long)at, (unsigned long long)data_end);
	return 0;
}

static struct ck_chunk *chunks_encode(const struct chunk *chunk, uint64_t n, struct arena *a)
{
	struct ck_chunk *rec = arena_array(a, n, sizeof *rec);

	for (uint64_t i = 0; rec && i < n; i++) {
		rec[i] = (struct ck_chunk){
			.off = le64_of(chunk[i].off),
			.stored_len = le32_of(chunk[i].stored_len),
			.raw_len = le32_of(chunk[i].raw_len),
			.codec = chunk[i].codec,
			.codec_ver = chunk[i].codec_ver,
			.elem_bytes = chunk[i].elem_bytes,
			.source = le32_of(chunk[i].source),
			.base = le32_of(chunk[i].base),
			.stored_crc = le32_of(chunk[i].stored_crc),
		};
		memcpy(rec[i].raw_hash, chunk[i].raw_hash.b, sizeof rec[i].raw_hash);
	}
	return rec;
}

/* STRINGS of table_encode, continued. */
struct strings {
	char *bytes; /* NULL: there was no memory: asked at the end */
	uint64_t n, room;
};

static void strings_begin(struct strings *s, const struct table_section *of)
{
	assert(of->kind == CK_STRINGS);
	s->bytes = malloc(of->len);
	s->n = s->room = of->len;
	if (s->bytes)
		memcpy(s->bytes, of->bytes, of->len);
}

/* One more string behind those of the table; 0, which is "", without memory for it. */
static le32 string_add(struct strings *to, const char *s)
{
	size_t n = strlen(s) + 1;
	uint64_t at = to->n;
	char *p = to->bytes;

	if (n == 1)
		return le32_of(0);
	if (p && at + n > to->room) {
		to->room = 2 * (at + n);
		p = realloc(p, to->room);
	}
	if (!p || at + n > UINT32_MAX) {
		free(p ? p : to->bytes);
		to->bytes = NULL;
		return le32_of(0);
	}
	memcpy(p + at, s, n);
	to->bytes = p;
	to->n += n;
	return le32_of((uint32_t)at);
}

static struct ck_part part_encode(const struct native_part *p, struct strings *s)
{
	struct ck_part rec = {
		.file_bytes = le64_of(p->file_bytes),
		.raw_bytes = le64_of(p->raw_bytes),
		.step = le64_of(p->step),
		.generation = le64_of(p->generation),
		.name = string_add(s, p->name),
		.writer = le32_of(p->rank),
		.kind = le32_of(p->kind),
		.group = le32_of(p->group),
	};

	memcpy(rec.uuid, p->uuid, sizeof rec.uuid);
	memcpy(rec.root, p->root.b, sizeof rec.root);
	return rec;
}

static struct container_bytes section_of(const struct table_section *s)
{
	return (struct container_bytes){ .kind = s->kind,
					 .rec_bytes = s->rec_bytes,
					 .p = s->bytes,
					 .len = s->len,
					 .count = s->count };
}

/* Padding, sections and trailer as they follow data_end in the file. */
static int tail_encode(const uint8_t uuid[16], const struct container_bytes *sect, uint32_t n,
		       uint64_t data_end, uint64_t aligned_end, void **ret_bytes, uint64_t *ret_len,
		       struct hash128 *ret_root, struct ckpt_err *err)
{
	struct container_map m;
	struct ck_tail tail;
	uint8_t *bytes;

	container_map_start(&m, uuid, aligned_end);
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

static int by_order(const void *va, const void *vb)
{
	const struct native_part *a = *(const struct native_part *const *)va,
				 *b = *(const struct native_part *const *)vb;

	return native_part_order(a, b);
}

/* In the order of PARTS, whatever that of the caller. */
static int sources_encode(const struct native_role *role, struct strings *s, struct arena *a,
			  struct container_bytes *ret, struct ckpt_err *err)
{
	const struct native_part **sorted = arena_array(a, role->nsource, sizeof *sorted);
	struct ck_part *rec = arena_array(a, role->nsource, sizeof *rec);

	if (role->kind != PART_MAIN)
		return ckpt_error(err, -EINVAL, "a part that is no main one has no sources");
	if (role->nsource > NATIVE_SOURCES_MAX)
		return ckpt_error(err, -EINVAL, "%u parts of one rank; at most %u are possible",
				  role->nsource, NATIVE_SOURCES_MAX);
	for (uint32_t i = 0; sorted && i < role->nsource; i++) {
		sorted[i] = &role->source[i];
		if (sorted[i]->kind == PART_MAIN || !native_name_ok(sorted[i]->name))
			return ckpt_error(err, -EINVAL,
					  "a source is a main part, or has an impossible name");
	}
	if (sorted)
		qsort(sorted, role->nsource, sizeof *sorted, by_order);
	for (uint32_t i = 0; sorted && rec && i < role->nsource; i++) {
		if (i && !by_order(&sorted[i - 1], &sorted[i]))
			return ckpt_error(err, -EINVAL, "%s is a source twice", sorted[i]->name);
		rec[i] = part_encode(sorted[i], s);
	}
	*ret = (struct container_bytes){ .kind = CK_SOURCES,
					 .rec_bytes = sizeof *rec,
					 .p = rec,
					 .len = role->nsource * sizeof *rec };
	return sorted && rec ? 0
			     : ckpt_error(err, -ENOMEM, "out of memory for the sources of a part");
}

/* Without what only MANIFEST knows, and without the place: a part is its own. */
static struct table part_view(const struct table *t)
{
	struct table view = *t;

	for (uint32_t i = 0; i < t->ntensor; i++)
		assert(!t->tensor[i].fp_known);
	view.nplace = 0;
	return view;
}

int native_part_tail(const struct native_info *info, uint32_t rank, const struct table *t,
		     const struct chunk *chunk, uint64_t nchunk, uint64_t data_end,
		     void **ret_bytes, uint64_t *ret_len, struct hash128 *ret_root,
		     struct ckpt_err *err)
{
	struct table_section section[TABLE_SECTIONS_MAX];
	struct container_bytes sect[TABLE_SECTIONS_MAX + 2];
	const struct native_role *role = role_of(info);
	struct table view = part_view(t);
	struct strings strings = { 0 };
	struct arena a = { 0 };
	uint8_t uuid[16];
	uint32_t n = 0, k = 0;
	struct ck_chunk *rec;
	int r = chunks_check(t, chunk, nchunk, data_end, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < t->npiece; i++)
		assert(t->piece[i].rank == rank);
	native_part_uuid(info, rank, uuid);
	r = table_encode(&view, true, &a, section, &n, err);
	if (!r)
		strings_begin(&strings, &section[0]);
	/* In the order of their kinds: CHUNKS and SOURCES stand before AVERAGES. */
	for (; !r && k < n && section[k].kind < CK_CHUNKS; k++)
		sect[k] = section_of(&section[k]);
	rec = r ? NULL : chunks_encode(chunk, nchunk, &a);
	if (!r && !rec)
		r = ckpt_error(err, -ENOMEM, "out of memory for the chunks of a part");
	if (!r) {
		sect[k++] = (struct container_bytes){ .kind = CK_CHUNKS,
						      .rec_bytes = sizeof *rec,
						      .p = rec,
						      .len = nchunk * sizeof *rec };
		if (role->nsource)
			r = sources_encode(role, &strings, &a, &sect[k++], err);
	}
	for (uint32_t i = 0; !r && i < n; i++)
		if (section[i].kind > CK_CHUNKS)
			sect[k++] = section_of(&section[i]);
	if (!r && !strings.bytes)
		r = ckpt_error(err, -ENOMEM, "out of memory for the names of a part");
	if (!r) {
		sect[0].p = strings.bytes;
		sect[0].len = strings.n;
		r = tail_encode(uuid, sect, k, data_end, align_up(data_end, CONTAINER_BLOCK),
				ret_bytes, ret_len, ret_root, err);
	}
	free(strings.bytes);
	arena_free(&a);
	return r;
}

/* --- MANIFEST --- */

struct manifest {
	const struct native_info *info;
	const struct native_part *
		*part; /* [npart] the main ones in the order of their ranks, then the others */
	uint32_t npart;
	const struct native_lineage *lineage;
	struct table *t;	      /* the union */
	struct table made;	      /* it, if it is needed */
	const struct table *declared; /* where none is needed: its tensors; else NULL */
	struct arena a;
	struct strings strings;
	struct ckpt_errlist list;
	struct ckpt_err *err;
};

int native_part_order(const struct native_part *a, const struct native_part *b)
{
	if ((a->kind == PART_MAIN) != (b->kind == PART_MAIN))
		return a->kind == PART_MAIN ? -1 : 1;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->group != b->group)
		return a->group < b->group ? -1 : 1;
	return memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

bool native_part_equal(const struct native_part *a, const struct native_part *b)
{
	return !native_part_order(a, b) && !strcmp(a->name, b->name) &&
	       a->generation == b->generation && a->file_bytes == b->file_bytes &&
	       a->raw_bytes == b->raw_bytes && !memcmp(a->root.b, b->root.b, sizeof a->root.b);
}

/* Was this part written for another checkpoint than the one of this uuid? By the part's uuid. */
static bool part_is_linked(const struct native_part *p, const uint8_t checkpoint[16])
{
	const struct native_role role = { .kind = p->kind, .group = p->group };
	struct native_info info = { .role = &role };
	uint8_t own[16];

	memcpy(info.uuid, checkpoint, sizeof info.uuid);
	native_part_uuid(&info, p->rank, own);
	return memcmp(own, p->uuid, sizeof own) != 0;
}

static int by_uuid(const void *va, const void *vb)
{
	const struct native_part *const *a = va, *const *b = vb;

	return memcmp((*a)->uuid, (*b)->uuid, sizeof(*a)->uuid);
}

/* Each rank's main part once, and no other twice. Everything else is built upon it, so it is told
 * alone. */
static void parts_order(struct manifest *m)
{
	uint32_t world = m->info->world, rank = 0;

	qsort(m->part, m->npart, sizeof *m->part, by_order);
	for (uint32_t i = 0; i < m->npart; i++) {
		const struct native_part *p = m->part[i];

		if (!native_name_ok(p->name))
			ckpt_errlist_add(&m->list, "a part of rank %u has an impossible name",
					 p->rank);
		if (i && p->kind == PART_MAIN && m->part[i - 1]->rank == p->rank) {
			ckpt_errlist_add(&m->list, "rank %u is in two parts: %s and %s", p->rank,
					 m->part[i - 1]->name, p->name);
			continue;
		}
		if (p->kind != PART_MAIN)
			continue;
		if (p->step != m->info->step || p->generation != m->info->generation)
			ckpt_errlist_add(&m->list,
					 "part %s of rank %u is of another step or launch", p->name,
					 p->rank);
		if (p->rank >= world)
			ckpt_errlist_add(&m->list, "part %s is of rank %u, but there are %u ranks",
					 p->name, p->rank, world);
		for (; rank < MIN(p->rank, world); rank++)
			ckpt_errlist_add(&m->list, "no part holds what rank %u owns", rank);
		rank = p->rank + 1;
	}
	for (; rank < world; rank++)
		ckpt_errlist_add(&m->list, "no part holds what rank %u owns", rank);
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
	qsort(sorted, m->npart, sizeof *sorted, by_uuid);
	for (uint32_t i = 1; i < m->npart; i++)
		if (!by_uuid(&sorted[i - 1], &sorted[i]))
			ckpt_errlist_add(&m->list, "%s and %s are one file", sorted[i - 1]->name,
					 sorted[i]->name);
	return 0;
}

/* All parts as one table. What another step's launch wrote may have been cut by another layout. */
static int parts_unite(struct manifest *m)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < m->npart; i++) {
		const struct native_part *p = m->part[i];
		const struct table *t = p->table;

		for (uint32_t k = 0; k < t->npiece; k++)
			if (t->piece[k].rank != p->rank)
				ckpt_errlist_add(&m->list,
						 "part %s of rank %u has a piece of rank %u",
						 p->name, p->rank, t->piece[k].rank);
		/* What an average made no main part declares. */
		if (p->kind != PART_CONST || !part_is_linked(p, m->info->uuid))
			r = table_merge(&m->made, t, NULL, &m->list, m->err);
		else
			r = table_join(&m->made, t, "the others", p->name, true, &m->list, m->err);
	}
	m->t = &m->made;
	return r ? r : table_seal(m->t, m->err);
}

/* A tensor's fingerprint is known where all its pieces' are. */
static void union_check(struct manifest *m)
{
	struct table *t = m->t;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		struct table_tensor *x = &t->tensor[i];

		x->fp = 0;
		x->fp_known = true;
		for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++) {
			x->fp += t->piece[k].fp;
			x->fp_known &= t->piece[k].fp_known;
		}
		if (!x->fp_known)
			x->fp = 0;
	}
	table_cover(t, &m->list);
}

static struct container_bytes parts_encode(struct manifest *m)
{
	struct ck_part *rec = arena_array(&m->a, m->npart, sizeof *rec);

	for (uint32_t i = 0; rec && i < m->npart; i++)
		rec[i] = part_encode(m->part[i], &m->strings);
	return (struct container_bytes){
		.kind = CK_PARTS, .rec_bytes = sizeof *rec, .p = rec, .len = m->npart * sizeof *rec
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
			.tool = string_add(&m->strings, m->lineage->tool ? m->lineage->tool : ""),
			.job = string_add(&m->strings, m->info->job),
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
		rec[i] = (struct ck_note){ .key = string_add(&m->strings, m->lineage->note[i].key),
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

static int by_key(const void *va, const void *vb)
{
	const struct checkpoint_attr *const *a = va, *const *b = vb;

	return strcmp((*a)->key, (*b)->key);
}

static struct container_bytes attrs_encode(struct manifest *m)
{
	const struct native_lineage *l = m->lineage;
	const struct checkpoint_attr **sorted = arena_array(&m->a, l->nattr, sizeof *sorted);
	struct ck_attr *rec = arena_array(&m->a, l->nattr, sizeof *rec);

	for (uint32_t i = 0; sorted && i < l->nattr; i++)
		sorted[i] = &l->attr[i];
	if (sorted)
		qsort(sorted, l->nattr, sizeof *sorted, by_key);
	for (uint32_t i = 0; sorted && rec && i < l->nattr; i++)
		rec[i] = (struct ck_attr){ .key = string_add(&m->strings, sorted[i]->key),
					   .value = string_add(&m->strings, sorted[i]->value) };
	return (struct container_bytes){
		.kind = CK_ATTRS,
		.flags = CK_SECTION_OPTIONAL,
		.rec_bytes = sizeof *rec,
		.p = sorted ? rec : NULL,
		.len = l->nattr * sizeof *rec,
	};
}

static int manifest_encode(struct manifest *m, void **ret_bytes, uint64_t *ret_len)
{
	struct container_info head = head_of(m->info, CONTAINER_MANIFEST, 0);
	struct table_section section[TABLE_SECTIONS_MAX];
	struct container_bytes sect[TABLE_SECTIONS_MAX + 4];
	uint64_t total = 0;
	uint32_t n, k = 0;
	int r = table_encode(m->declared ? m->declared : m->t, false, &m->a, section, &n, m->err);

	if (r < 0)
		return r;
	strings_begin(&m->strings, &section[0]);
	for (; k < n && section[k].kind < CK_NOTES; k++)
		sect[k] = section_of(&section[k]);
	sect[k++] = notes_encode(m);
	sect[k++] = parts_encode(m);
	sect[k++] = lineage_encode(m);
	if (m->lineage->nattr)
		sect[k++] = attrs_encode(m);
	for (uint32_t i = 0; i < n; i++)
		if (section[i].kind > CK_NOTES)
			sect[k++] = section_of(&section[i]);
	sect[0].p = m->strings.bytes;
	sect[0].len = m->strings.n;
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

/* An id of this format; another's is none that a record of lineage could hold. */
static void id_parse(const char *hex, uint8_t ret[16])
{
	static const char digits[] = "0123456789abcdef";

	memset(ret, 0, 16);
	if (strlen(hex) != 32 || strspn(hex, digits) != 32)
		return;
	for (int i = 0; i < 32; i++)
		ret[i / 2] = (uint8_t)(ret[i / 2] << 4 | (strchr(digits, hex[i]) - digits));
}

int native_lineage_of(const struct checkpoint *facts, const char *tool, struct arena *a,
		      struct native_lineage *ret)
{
	struct ckpt_note *note = arena_array(a, facts->nnote, sizeof *note);

	if (!note)
		return -ENOMEM;
	for (uint32_t i = 0; i < facts->nnote; i++)
		note[i] = (struct ckpt_note){ .key = facts->note[i].key,
					      .value = facts->note[i].value };
	*ret = (struct native_lineage){ .seq = facts->seq,
					.parent_step = facts->parent_step,
					.tool = tool,
					.nnote = facts->nnote,
					.note = note,
					.nattr = facts->nattr,
					.attr = facts->attr };
	id_parse(facts->parent_id, ret->parent_id);
	return 0;
}

static int attrs_check(const struct native_lineage *l, struct ckpt_err *err)
{
	cleanup_free const struct checkpoint_attr **sorted = NULL;

	if (l->nattr > NATIVE_ATTRS_MAX)
		return ckpt_error(err, -EINVAL, "%u attributes; at most %u are possible", l->nattr,
				  NATIVE_ATTRS_MAX);
	sorted = calloc((size_t)l->nattr + 1, sizeof *sorted);
	if (!sorted)
		return ckpt_error(err, -ENOMEM, "no memory for %u attributes", l->nattr);
	for (uint32_t i = 0; i < l->nattr; i++) {
		const struct checkpoint_attr *x = sorted[i] = &l->attr[i];

		if (!x->key || !*x->key || strlen(x->key) > NATIVE_ATTR_KEY_MAX || !x->value ||
		    strlen(x->value) > NATIVE_ATTR_VALUE_MAX)
			return ckpt_error(
				err, -EINVAL,
				"attribute %u: a key has 1 to %d bytes, a value at most %d", i,
				NATIVE_ATTR_KEY_MAX, NATIVE_ATTR_VALUE_MAX);
	}
	qsort(sorted, l->nattr, sizeof *sorted, by_key);
	for (uint32_t i = 1; i < l->nattr; i++)
		if (!strcmp(sorted[i - 1]->key, sorted[i]->key))
			return ckpt_error(err, -EALREADY, "attribute %.200s is given twice",
					  sorted[i]->key);
	return 0;
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
	return attrs_check(l, err);
}

static int manifest_make(struct manifest *m, const struct native_part *part, uint32_t npart,
			 void **ret_bytes, uint64_t *ret_len)
{
	int r = lineage_check(m->info, m->lineage, m->err);

	if (r < 0)
		return r;
	if (npart > NATIVE_PARTS_MAX)
		return ckpt_error(m->err, -EFBIG, "%u parts; at most %u are possible", npart,
				  NATIVE_PARTS_MAX);
	m->part = arena_array(&m->a, npart, sizeof *m->part);
	if (!m->part)
		return ckpt_error(m->err, -ENOMEM, "out of memory for a MANIFEST");
	for (uint32_t i = 0; i < npart; i++)
		m->part[i] = &part[i];
	parts_order(m);
	if (!m->list.n)
		r = names_check(m);
	if (!r && !m->list.n && !m->declared)
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

/* declared NULL: the union of the parts' tables. */
static int manifest_of(const struct native_info *info, const struct native_part *part,
		       uint32_t npart, const struct table *declared,
		       const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
		       uint8_t *ret_id, struct ckpt_err *err)
{
	struct manifest m = { .info = info,
			      .npart = npart,
			      .lineage = lineage,
			      .declared = declared,
			      .list = { .code = -EINVAL },
			      .err = err };
	int r = manifest_make(&m, part, npart, ret_bytes, ret_len);

	if (!r)
		memcpy(ret_id, (const uint8_t *)*ret_bytes + *ret_len - 16, 16);
	ckpt_errlist_free(&m.list);
	free(m.strings.bytes);
	table_free(&m.made);
	arena_free(&m.a);
	return r;
}

int native_manifest(const struct native_info *info, const struct native_part *part, uint32_t npart,
		    const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
		    uint8_t *ret_id, struct ckpt_err *err)
{
	return manifest_of(info, part, npart, NULL, lineage, ret_bytes, ret_len, ret_id, err);
}

int native_manifest_declared(const struct native_info *info, const struct table *declared,
			     const struct native_part *part, uint32_t npart,
			     const struct native_lineage *lineage, void **ret_bytes,
			     uint64_t *ret_len, uint8_t *ret_id, struct ckpt_err *err)
{
	assert(declared->sealed);
	return manifest_of(info, part, npart, declared, lineage, ret_bytes, ret_len, ret_id, err);
}

/* --- of a union that was made before --- */

/* What the parts' pieces bring: elements and fingerprints; of a blob its length. */
static int whole_fill(const struct native_whole *w, const struct native_part *part, uint32_t npart,
		      struct table *t, uint64_t *element, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < npart; i++) {
		const struct table *p = part[i].table;

		if (p->ntensor != w->map_n[i])
			return ckpt_error(err, -EINVAL,
					  "part %s has %u tensors where %u were declared",
					  part[i].name, p->ntensor, w->map_n[i]);
		for (uint32_t k = 0; k < p->ntensor; k++) {
			struct table_tensor *x = &t->tensor[w->map[i][k]];

			for (uint32_t n = p->first[k]; n < p->first[k + 1]; n++) {
				element[w->map[i][k]] += p->piece[n].set.numel;
				x->fp += p->piece[n].fp;
				x->fp_known &= p->piece[n].fp_known;
			}
			if (x->flags & TENSOR_BLOB && part[i].kind == PART_MAIN) {
				x->shape = p->tensor[k].shape;
				x->numel = p->tensor[k].numel;
			}
		}
	}
	return 0;
}

static const struct table_average *average_in(const struct table *t, const struct table_average *x,
					      uint32_t guess)
{
	for (uint32_t n = 0; n < t->naverage; n++) {
		const struct table_average *y = &t->average[(guess + n) % t->naverage];

		if (y->rule == x->rule && !strcmp(y->name, x->name))
			return y;
	}
	return NULL;
}

/* What the parts say of averages: as the lowest writer has it, MIXED where they differ. */
static void whole_averages(const struct native_part *part, uint32_t npart, struct table *t)
{
	for (uint32_t i = 0; i < t->naverage; i++) {
		struct table_average *to = &t->average[i];
		const struct native_part *first = NULL;
		const struct table_average *is = NULL;
		bool mixed = false;

		for (uint32_t k = 0; k < npart; k++) {
			const struct table_average *x = part[k].kind == PART_AVERAGE
								? average_in(part[k].table, to, i)
								: NULL;

			if (!x)
				continue;
			mixed |= x->flags & AVERAGE_MIXED || (is && !table_averages_equal(x, is));
			if (first && first->rank <= part[k].rank)
				continue;
			first = &part[k];
			is = x;
		}
		if (!is)
			continue;
		*to = *is;
		to->flags |= mixed ? (uint32_t)AVERAGE_MIXED : 0;
	}
}

/* No piece is lost, and none is there twice. */
static void whole_check(const struct table *t, const uint64_t *element,
			struct ckpt_errlist *ret_list)
{
	char label[160];

	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];
		uint64_t want = x->cls == CKPT_SINK ? 0 : x->numel * operands_of(t, x);

		if (element[i] != want && !MUTANT(WHOLE_NOT_COUNTED))
			ckpt_errlist_add(ret_list,
					 "%s: %llu elements in its pieces, and it has %llu",
					 table_tensor_print(x, label, sizeof label),
					 (unsigned long long)element[i], (unsigned long long)want);
	}
}

int native_manifest_whole(const struct native_info *info, const struct native_whole *whole,
			  const struct native_part *part, uint32_t npart,
			  const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
			  uint8_t *ret_id, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	uint64_t *element;
	struct table t;
	int r = table_twin(whole->all, &t);

	if (r < 0)
		return ckpt_error(err, r, "out of memory for a MANIFEST");
	for (uint32_t i = 0; i < t.ntensor; i++) {
		t.tensor[i].fp = 0;
		t.tensor[i].fp_known = true;
	}
	element = arena_array(&t.arena, t.ntensor, sizeof *element);
	r = element ? whole_fill(whole, part, npart, &t, element, err)
		    : ckpt_error(err, -ENOMEM, "out of memory for a MANIFEST");
	for (uint32_t i = 0; i < t.ntensor && !r; i++)
		t.tensor[i].fp = t.tensor[i].fp_known ? t.tensor[i].fp : 0;
	if (!r)
		whole_check(&t, element, &list);
	if (!r)
		whole_averages(part, npart, &t);
	if (!r)
		r = ckpt_errlist_end(&list, err,
				     "step %llu of job %s is not complete and was not committed",
				     (unsigned long long)info->step, info->job);
	if (!r)
		r = native_manifest_declared(info, &t, part, npart, lineage, ret_bytes, ret_len,
					     ret_id, err);
	ckpt_errlist_free(&list);
	table_free(&t);
	return r;
}
