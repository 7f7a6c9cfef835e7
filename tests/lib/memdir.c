/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memdir.c - see memdir.h. It writes parts as slowly and plainly as possible, so that it is a
 * second hand against move.
 */
#include "tests/lib/row.h"
#include "tests/lib/memdir.h"
#include "tests/lib/sample.h"
#include "ckpt/base/hash.h"
#include <stdio.h>

struct memdir_file *memdir_add(struct memdir *d, const char *name, const void *bytes, uint64_t len)
{
	struct memdir_file *f = &d->file[d->n];

	assert(d->n < MEMDIR_FILES_MAX && strlen(name) < sizeof f->name);
	d->n++;
	*f = (struct memdir_file){ .bytes = malloc(len + 1), .len = len };
	assert(f->bytes);
	memcpy(f->bytes, bytes, len);
	snprintf(f->name, sizeof f->name, "%s", name);
	return f;
}

struct memdir_file *memdir_find(struct memdir *d, const char *name)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (!strcmp(d->file[i].name, name))
			return &d->file[i];
	return NULL;
}

void memdir_remove(struct memdir *d, const char *name)
{
	struct memdir_file *f = memdir_find(d, name);

	assert(f);
	free(f->bytes);
	*f = d->file[--d->n];
}

void memdir_clear(struct memdir *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		free(d->file[i].bytes);
	d->n = 0;
}

static int memdir_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct memdir_file *f = ctx;

	if (off > f->len || len > f->len - off)
		return -EIO;
	memcpy(buf, f->bytes + off, len);
	return 0;
}

static int memdir_open_at(void *ctx, const char *name, struct source *ret)
{
	struct memdir_file *f = memdir_find(ctx, name);

	if (!f)
		return -ENOENT;
	if (f->error)
		return f->error;
	*ret = (struct source){ .ctx = f, .bytes = f->len, .read = memdir_read };
	return 0;
}

static int memdir_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	struct memdir *d = ctx;
	int r = *sub ? -ENOENT : 0;

	for (uint32_t i = 0; !r && i < d->n; i++)
		r = each(arg, d->file[i].name, d->file[i].folder ? SOURCE_OTHER : SOURCE_FILE);
	return r;
}

struct source_dir memdir_source(struct memdir *d)
{
	return (struct source_dir){ .ctx = d, .open = memdir_open_at, .list = memdir_list };
}

struct source memdir_open(struct memdir *d, const char *name)
{
	struct source s;
	int r = memdir_open_at(d, name, &s);

	assert(!r);
	return s;
}

uint64_t memdir_fingerprint(const struct table *t, const struct table_piece *piece,
			    const uint8_t *p)
{
	const struct table_tensor *x = &t->tensor[piece->tensor];
	uint64_t *list[CKPT_DIMS_MAX], at[CKPT_DIMS_MAX] = { 0 }, sum = 0, n = 0;

	for (uint32_t d = 0; d < x->ndim; d++)
		list[d] = sample_indices(&piece->set.dim[d]);
	/* As many elements of a row at a time as follow each other. */
	for (uint64_t i = 0; i < piece->set.numel; i += n, p += n * x->elem_bytes) {
		uint32_t last = x->ndim ? x->ndim - 1 : 0;
		uint64_t g = 0;

		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + list[d][at[d]];
		for (n = 1; x->ndim && at[last] + n < piece->set.dim[last].total; n++)
			if (list[last][at[last] + n] != list[last][at[last]] + n)
				break;
		sum += fingerprint(p, n, x->elem_bytes, g);
		for (uint32_t d = x->ndim; d-- > 0;) {
			at[d] += d == last ? n : 1;
			if (at[d] < piece->set.dim[d].total)
				break;
			at[d] = 0;
		}
	}
	for (uint32_t d = 0; d < x->ndim; d++)
		free(list[d]);
	return sum;
}

void memdir_part(const struct memdir_opts *opts, const struct native_info *info, uint32_t rank,
		 struct native_part *ret_part, struct table *ret_table, uint8_t **ret_bytes)
{
	uint64_t nchunk, data_end, tail_len;
	struct chunk *chunk;
	struct sample s;
	struct ck_head head;
	uint8_t *raw, *file;
	void *tail;
	int r = sample_make(opts->mesh, rank, opts->seed, opts->scale, &s);

	assert(!r);
	r = native_part_table(&s.decl, rank, ret_table, NULL, NULL);
	assert(!r);
	raw = calloc(1, ret_table->place[0].bytes + 1);
	assert(raw);
	for (uint32_t i = 0; i < ret_table->npiece; i++) {
		struct table_piece *p = &ret_table->piece[i];

		sample_piece(opts->seed, ret_table, p, opts->step, raw + p->off);
		p->fp = memdir_fingerprint(ret_table, p, raw + p->off);
		p->fp_known = true;
	}
	r = chunk_map_make(ret_table, NATIVE_DATA_OFF, &chunk, &nchunk, &data_end, NULL);
	assert(!r);
	for (uint64_t i = 0; i < nchunk; i++) {
		if (!chunk[i].raw_len)
			continue;
		chunk[i].raw_hash = hash128(raw + (i << CHUNK_LOG2), chunk[i].raw_len);
	}
	*ret_part =
		(struct native_part)ROW(.rank = rank, .step = info->step,
					.generation = info->generation,
					.raw_bytes = ret_table->place[0].bytes, .table = ret_table);
	native_part_uuid(info, rank, ret_part->uuid);
	snprintf(ret_part->name, sizeof ret_part->name, "w%04u-%08x-%03u.part", rank,
		 (uint32_t)opts->seed, 0u);
	native_part_head(info, rank, &head);
	r = native_part_tail(info, rank, ret_table, chunk, nchunk, data_end, &tail, &tail_len,
			     &ret_part->root, NULL);
	assert(!r);
	ret_part->file_bytes = data_end + tail_len;
	file = calloc(1, ret_part->file_bytes);
	assert(file);
	memcpy(file, &head, sizeof head);
	for (uint64_t i = 0; i < nchunk; i++)
		if (chunk[i].raw_len)
			memcpy(file + chunk[i].off, raw + (i << CHUNK_LOG2), chunk[i].raw_len);
	memcpy(file + data_end, tail, tail_len);
	*ret_bytes = file;
	free(tail);
	free(chunk);
	free(raw);
	sample_free(&s);
}

void memdir_checkpoint(struct memdir *d, const struct memdir_opts *opts)
{
	struct native_part part[MEMDIR_FILES_MAX];
	struct table table[MEMDIR_FILES_MAX];
	struct native_info info =
		ROW(.job = opts->job, .step = opts->step, .generation = opts->generation,
		    .wall_ns = 1700000000000000000);
	struct native_lineage line =
		ROW(.seq = opts->seq, .parent_step = opts->step ? opts->step - 1 : UINT64_MAX,
		    .tool = "memdir 1", .note = opts->note, .nnote = opts->nnote);
	struct ckpt_err err = { 0 };
	struct sample first;
	uint8_t id[16];
	uint64_t len;
	void *bytes;
	int r = sample_make(opts->mesh, 0, opts->seed, opts->scale, &first);

	assert(!r);
	info.world = first.world;
	sample_free(&first);
	memcpy(line.parent_id, opts->parent_id, sizeof line.parent_id);
	memcpy(info.uuid, hash128(&(uint64_t[2]){ opts->seed, opts->step }, 16).b,
	       sizeof info.uuid);
	assert(info.world < MEMDIR_FILES_MAX);
	for (uint32_t i = 0; i < info.world; i++) {
		uint8_t *file;

		memdir_part(opts, &info, i, &part[i], &table[i], &file);
		memdir_add(d, part[i].name, file, part[i].file_bytes);
		free(file);
	}
	r = native_manifest(&info, part, info.world, &line, &bytes, &len, id, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	memdir_add(d, NATIVE_MANIFEST, bytes, len);
	free(bytes);
	for (uint32_t i = 0; i < info.world; i++)
		table_free(&table[i]);
}

int memdir_rebuild(const struct source_dir *dir, const char *job, uint64_t step,
		   const struct native_lineage *line, void **ret_bytes, uint64_t *ret_len,
		   uint8_t ret_id[16], struct ckpt_err *err)
{
	static const uint8_t none[16];
	struct checkpoint facts =
		ROW(.step = step, .seq = line->seq, .parent_step = line->parent_step,
		    .nnote = line->nnote, .nattr = line->nattr);
	struct checkpoint_attr attr[64];
	int r;

	assert(line->nattr <= 64 && line->nnote <= NATIVE_NOTES_MAX);
	snprintf(facts.job, sizeof facts.job, "%s", job);
	for (int i = 0; i < 16 && memcmp(line->parent_id, none, 16) != 0; i++)
		snprintf(facts.parent_id + (size_t)2 * (size_t)i, 3, "%02x", line->parent_id[i]);
	if (line->nattr)
		memcpy(attr, line->attr, line->nattr * sizeof *attr);
	facts.attr = attr;
	facts.note = arena_array(&facts.table.arena, line->nnote, sizeof *facts.note);
	if (!facts.note)
		return ckpt_error(err, -ENOMEM, "no memory for notes");
	for (uint32_t i = 0; i < line->nnote; i++) {
		facts.note[i].key = line->note[i].key;
		facts.note[i].value = line->note[i].value;
	}
	r = format_native.root->rebuild(dir, &facts, line->tool, ret_bytes, ret_len, ret_id, err);
	arena_free(&facts.table.arena);
	return r;
}

static void memdir_head_sign(uint8_t *block)
{
	struct hash128 h = hash128(block, CONTAINER_BLOCK - 16);

	memcpy(block + CONTAINER_BLOCK - 16, h.b, 16);
}

static struct ck_sect *memdir_row(struct memdir_file *f, uint32_t kind)
{
	struct ck_tail *t = (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);

	for (uint32_t i = 0; i < le32_get(t->nsect) && i < CONTAINER_SECT_MAX; i++)
		if (le32_get(t->sect[i].kind) == kind)
			return &t->sect[i];
	return NULL;
}

static bool memdir_has(const struct memdir_file *f, const struct ck_sect *s)
{
	uint64_t off = le64_get(s->off), len = le64_get(s->len);

	return off <= f->len && len <= f->len - off;
}

/* Where f names a part of this name, among its sources or parts, the hash becomes this one. */
static bool memdir_names(struct memdir_file *f, uint32_t kind, const char *name, struct hash128 h)
{
	const struct ck_sect *s = memdir_row(f, kind), *strings = memdir_row(f, CK_STRINGS);
	const char *string;
	struct ck_part *rec;
	bool found = false;

	if (!s || !strings || !memdir_has(f, s) || !memdir_has(f, strings))
		return false;
	rec = (struct ck_part *)(f->bytes + le64_get(s->off));
	string = (const char *)f->bytes + le64_get(strings->off);
	for (uint64_t i = 0; i < le64_get(s->len) / sizeof *rec; i++) {
		uint64_t at = le32_get(rec[i].name), n = strlen(name) + 1;

		if (at + n > le64_get(strings->len) || memcmp(string + at, name, n) != 0)
			continue;
		memcpy(rec[i].root, h.b, sizeof rec[i].root);
		found = true;
	}
	return found;
}

void memdir_sign(struct memdir *d, struct memdir_file *f)
{
	struct ck_tail *t = (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);
	uint32_t n = le32_get(t->nsect);
	struct memdir_file *m = memdir_find(d, NATIVE_MANIFEST);
	struct hash128 h;

	memdir_head_sign(f->bytes);
	for (uint32_t i = 0; i < n && i < CONTAINER_SECT_MAX; i++) {
		uint64_t off = le64_get(t->sect[i].off), len = le64_get(t->sect[i].len);

		if (!memdir_has(f, &t->sect[i]))
			continue;
		h = hash128(f->bytes + off, len);
		memcpy(t->sect[i].hash, h.b, 16);
	}
	memdir_head_sign((uint8_t *)t);
	if (f == m)
		return;
	h = hash128(t, CONTAINER_BLOCK);
	(void)memdir_names(m, CK_PARTS, f->name, h);
	for (uint32_t i = 0; i < d->n; i++) /* the main parts that name it */
		if (&d->file[i] != f && &d->file[i] != m &&
		    memdir_names(&d->file[i], CK_SOURCES, f->name, h))
			memdir_sign(d, &d->file[i]);
	memdir_sign(d, m);
}

void *memdir_section(struct memdir_file *f, uint32_t kind)
{
	const struct ck_sect *s = memdir_row(f, kind);

	return s ? f->bytes + le64_get(s->off) : NULL;
}
