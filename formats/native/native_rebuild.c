/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_rebuild.c - a MANIFEST made again from the parts of its checkpoint. Called by repair.
 * Invariant: what comes out is what native_manifest makes of parts that are all there: no rank is
 * left out, none is of another checkpoint, and every byte of their metadata was under a hash that
 * was right.
 */
#include "formats/native/native_impl.h"
#include "ckpt/base/mutant.h"
#include <stdio.h>

struct rebuilding {
	const struct source_dir *dir;
	struct ckpt_err *err;
	struct native_part *part; /* [npart] */
	struct table *table;	  /* [npart] theirs */
	uint32_t npart, cap, table_cap;
	struct container_info first; /* of the first main part: what all of them must say */
	uint32_t nmain,
		ntable; /* ntable: of table[], also where sources_check has thinned part[] */
	struct native_part *source; /* [nsource] what the main parts name, without tables */
	uint32_t nsource;
	struct ckpt_err
		first_bad; /* of the files that are called like parts and are none; code 0: all are */
};

/* --- one part --- */

struct loaded {
	struct container_info info;
	struct container_map map;
	struct hash128 root;
	struct table_section section[CONTAINER_SECT_MAX];
	struct arena mem;
};

static int load_blocks(const struct source *src, struct loaded *l, struct ckpt_err *err)
{
	uint8_t block[CONTAINER_BLOCK];
	int r;

	if (src->bytes < 2 * CONTAINER_BLOCK || src->bytes % CONTAINER_BLOCK)
		return ckpt_error(err, -EBADMSG, "its %llu bytes are not a complete file",
				  (unsigned long long)src->bytes);
	r = src->read(src->ctx, block, sizeof block, 0);
	if (!r)
		r = container_head_check(block, CONTAINER_PART, &l->info, err);
	else
		return ckpt_error_errno(err, -r, "its header cannot be read");
	if (r)
		return r;
	r = src->read(src->ctx, block, sizeof block, src->bytes - sizeof block);
	if (r)
		return ckpt_error_errno(err, -r, "its trailer cannot be read");
	r = container_tail_check(block, src->bytes, &l->map, err);
	if (!r)
		r = container_check(&l->info, &l->map, err);
	l->root = hash128(block, sizeof block);
	return r;
}

static int load_sections(const struct source *src, struct loaded *l, struct ckpt_err *err)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < l->map.nsect; i++) {
		const struct container_sect *s = &l->map.sect[i];
		uint8_t *p;
		int r;

		total += s->len; /* none is longer than the file */
		if (total > NATIVE_META_BYTES_MAX)
			return ckpt_error(err, -EPROTO, "more than %llu bytes of sections",
					  (unsigned long long)NATIVE_META_BYTES_MAX);
		p = arena_alloc(&l->mem, s->len + 1);
		if (!p)
			return ckpt_error(err, -ENOMEM, "out of memory for its sections");
		r = s->len ? src->read(src->ctx, p, s->len, s->off) : 0;
		if (r)
			return ckpt_error_errno(err, -r, "its sections cannot be read");
		r = container_sect_check(s, p, err);
		if (r)
			return r;
		l->section[i] = (struct table_section){ .kind = s->kind,
							.rec_bytes = s->rec_bytes,
							.len = s->len,
							.count = s->count,
							.bytes = p };
	}
	return 0;
}

static const char *part_stranger(const struct container_info *a, const struct container_info *b)
{
	if (memcmp(a->checkpoint, b->checkpoint, sizeof a->checkpoint) != 0)
		return "checkpoint";
	if (memcmp(a->job, b->job, sizeof a->job) != 0)
		return "job";
	if (a->step != b->step)
		return "step";
	if (a->world != b->world)
		return "number of ranks";
	return a->generation != b->generation ? "launch" : NULL;
}

static uint64_t raw_end(const struct table *t)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < t->npiece; i++)
		end = MAX(end, t->piece[i].off + t->piece[i].len);
	return end;
}

static const struct table_section *section_of(const struct loaded *l, uint32_t kind)
{
	for (uint32_t i = 0; i < l->map.nsect; i++)
		if (l->section[i].kind == kind)
			return &l->section[i];
	return NULL;
}

/* The other parts of a main part's rank. */
static int sources_load(struct rebuilding *b, const struct loaded *l)
{
	const struct table_section *s = section_of(l, CK_SOURCES),
				   *names = section_of(l, CK_STRINGS);
	const struct ck_part *rec = s ? s->bytes : NULL;
	uint64_t n = s && !MUTANT(SOURCES_IGNORED) ? s->count : 0;
	struct native_part *source;

	if (n && s->rec_bytes != sizeof *rec)
		return ckpt_newer(b->err, "its sources have records of %u bytes", s->rec_bytes);
	if (n > NATIVE_SOURCES_MAX)
		return ckpt_error(b->err, -EPROTO, "it names %llu other parts",
				  (unsigned long long)n);
	source = reallocarray(b->source, b->nsource + n + 1, sizeof *source);
	if (!source)
		return ckpt_error(b->err, -ENOMEM, "out of memory for the names of parts");
	b->source = source;
	for (uint64_t i = 0; i < n; i++) {
		int r = native_part_decode(&rec[i], names ? names->bytes : NULL,
					   names ? names->len : 0, &source[b->nsource++], b->err);

		if (r)
			return r;
	}
	return 0;
}

/* *ret_stray: it is whole, and a main part of something else. */
static int part_load(struct rebuilding *b, const char *name, const struct source *src,
		     struct loaded *l, bool *ret_stray)
{
	struct native_part *p = &b->part[b->npart];
	struct table_place place = { .name = name, .bytes = NATIVE_PART_BYTES_MAX };
	const char *what;
	int r = load_blocks(src, l, b->err);

	if (r)
		return r;
	if (l->info.part_kind > PART_AVERAGE)
		return ckpt_newer(b->err, "it is a part of kind %u", l->info.part_kind);
	if (l->info.ro_compat)
		return ckpt_newer(b->err,
				  "it may be read, but a MANIFEST for it needs features %#llx that "
				  "this program lacks",
				  (unsigned long long)l->info.ro_compat);
	r = load_sections(src, l, b->err);
	if (r)
		return r;
	what = l->info.part_kind == PART_MAIN && b->nmain ? part_stranger(&l->info, &b->first)
							  : NULL;
	if (what) {
		*ret_stray = true;
		return ckpt_error(b->err, -EBADMSG, "its %s is not that of the other parts", what);
	}
	place.rank = l->info.writer;
	r = table_decode(l->section, l->map.nsect, &place, 1, &b->table[b->npart], b->err);
	if (!r && l->info.part_kind == PART_MAIN) {
		r = sources_load(b, l);
		if (r)
			table_free(&b->table[b->npart]);
	}
	if (r)
		return r;
	*p = (struct native_part){ .rank = l->info.writer,
				   .kind = l->info.part_kind,
				   .step = l->info.step,
				   .generation = l->info.generation,
				   .file_bytes = src->bytes,
				   .raw_bytes = raw_end(&b->table[b->npart]),
				   .root = l->root,
				   .table = NULL };
	if (p->kind == PART_MAIN && !b->nmain++)
		b->first = l->info;
	memcpy(p->uuid, l->info.uuid, sizeof p->uuid);
	(void)snprintf(p->name, sizeof p->name, "%s", name);
	b->npart++;
	b->ntable++;
	return 0;
}

static int parts_grow(struct rebuilding *b)
{
	if (ARRAY_GROW(b->part, b->npart, b->cap) && ARRAY_GROW(b->table, b->ntable, b->table_cap))
		return 0;
	return ckpt_error(b->err, -ENOMEM, "out of memory for %u parts", b->npart + 1);
}

/* What cannot be read may be a leftover that nobody needs; if it is missed, this was why. */
static int set_aside(struct rebuilding *b)
{
	if (!b->first_bad.code)
		b->first_bad = *b->err;
	*b->err = (struct ckpt_err){ .msg = "" };
	return 0;
}

static int entry_add(void *arg, const char *name, enum source_kind kind)
{
	struct rebuilding *b = arg;
	struct loaded l = { .map = { .nsect = 0 } };
	struct source src = { 0 };
	bool stray = false;
	int r;

	if (native_entry(name) != NATIVE_PART)
		return 0;
	if (kind != SOURCE_FILE) {
		(void)ckpt_error(b->err, -EUCLEAN, "%.80s is not a regular file", name);
		return set_aside(b);
	}
	if (b->npart == NATIVE_PARTS_MAX)
		return ckpt_error(b->err, -E2BIG, "it has more than %u parts", NATIVE_PARTS_MAX);
	r = parts_grow(b);
	if (r)
		return r;
	r = b->dir->open(b->dir->ctx, name, &src);
	if (r) {
		(void)ckpt_error_errno(b->err, -r, "%.80s cannot be opened", name);
		return r == -ENOMEM ? r : set_aside(b);
	}
	r = part_load(b, name, &src, &l, &stray);
	if (r)
		(void)ckpt_error_prefix(b->err, r, "%.80s", name);
	arena_free(&l.mem);
	source_close(&src);
	return r && r != -ENOMEM && !stray ? set_aside(b) : r;
}

/* --- the whole --- */

/* Meshes do not say how many ranks there were: each may be of some of them. */
static int world_check(struct rebuilding *b)
{
	uint32_t world = b->first.world;

	if (b->nmain == 0)
		return ckpt_error(b->err, -EBADMSG, "it has no parts");
	if (!world)
		return ckpt_error(b->err, -EPROTO, "its %u parts do not say how many there were",
				  b->nmain);
	if (world > b->nmain)
		return ckpt_error(b->err, -EUCLEAN, "%u of %u parts are missing", world - b->nmain,
				  world);
	if (world < b->nmain)
		return ckpt_error(b->err, -EPROTO, "%u parts, and %u ranks", b->nmain, world);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct native_part *)a)->name, ((const struct native_part *)b)->name);
}

/*
 * What the main parts name must be there, and is what they say; what none names is not of this
 * checkpoint. Leaves in part[] what is, with its group.
 */
static int sources_check(struct rebuilding *b)
{
	uint32_t n = 0, nsource = 0;

	for (uint32_t i = 0; i < b->npart; i++)
		b->part[i].table = &b->table[i];
	qsort(b->source, b->nsource, sizeof *b->source, by_name);
	for (uint32_t i = 0; i < b->nsource; i++) { /* what several ranks name is there once */
		if (!nsource || by_name(&b->source[nsource - 1], &b->source[i]) != 0)
			b->source[nsource++] = b->source[i];
		else if (!native_part_equal(&b->source[nsource - 1], &b->source[i]))
			return ckpt_error(b->err, -EPROTO,
					  "two parts name %s, and mean different files",
					  b->source[i].name);
	}
	b->nsource = nsource;
	for (uint32_t i = 0; i < b->npart; i++) {
		struct native_part *p = &b->part[i], *s = NULL;

		if (p->kind != PART_MAIN) {
			s = bsearch(p, b->source, b->nsource, sizeof *s, by_name);
			if (!s)
				continue;
			p->group = s->group;
			if (!native_part_equal(s, p))
				return ckpt_error(b->err, -EBADMSG,
						  "%s is not the part that rank %u's names",
						  p->name, s->rank);
			s->table = p->table; /* found */
		}
		b->part[n++] = *p;
	}
	b->npart = n;
	for (uint32_t i = 0; i < b->nsource; i++) {
		if (!b->source[i].table)
			return ckpt_error(b->err, -EUCLEAN,
					  "%s is missing, which a part of the checkpoint names",
					  b->source[i].name);
	}
	return 0;
}

static int manifest_rebuild(struct rebuilding *b, const struct checkpoint *facts,
			    const struct native_lineage *lineage, void **ret_bytes,
			    uint64_t *ret_len, uint8_t *ret_id)
{
	struct native_info info = { .job = facts->job, .step = facts->step };
	struct hash128 of_job = container_job(facts->job);
	int r = b->dir->list(b->dir->ctx, "", entry_add, b);

	if (r && !b->err->msg[0])
		return ckpt_error_errno(b->err, -r, "it cannot be listed");
	if (!r)
		r = world_check(b);
	if (!r)
		r = sources_check(b);
	if (r && r != -ENOMEM && b->first_bad.code) {
		*b->err = b->first_bad;
		return b->first_bad.code;
	}
	if (r)
		return r;
	if (memcmp(b->first.job, of_job.b, sizeof b->first.job) != 0 ||
	    b->first.step != facts->step)
		return ckpt_error(b->err, -EBADMSG,
				  "its parts are of step %llu of %s job: the directory was renamed "
				  "or swapped",
				  (unsigned long long)b->first.step,
				  memcmp(b->first.job, of_job.b, sizeof b->first.job) ? "another"
										      : "this");
	memcpy(info.uuid, b->first.checkpoint, sizeof info.uuid);
	info.generation = b->first.generation;
	info.wall_ns = b->first.wall_ns;
	info.world = b->nmain;
	return native_manifest(&info, b->part, b->npart, lineage, ret_bytes, ret_len, ret_id,
			       b->err);
}

int native_rebuild(const struct source_dir *dir, const struct checkpoint *facts, const char *tool,
		   void **ret_bytes, uint64_t *ret_len, uint8_t ret_id[16], struct ckpt_err *err)
{
	struct ckpt_err e = { .msg = "" };
	struct rebuilding b = { .dir = dir, .err = &e };
	struct native_lineage line;
	struct arena a = { 0 };
	int r = native_lineage_of(facts, tool, &a, &line);

	r = r ? ckpt_error(&e, r, "out of memory for notes and attributes")
	      : manifest_rebuild(&b, facts, &line, ret_bytes, ret_len, ret_id);
	for (uint32_t i = 0; i < b.ntable; i++)
		table_free(&b.table[i]);
	free(b.table);
	free(b.part);
	free(b.source);
	arena_free(&a);
	return r ? ckpt_error(err, r, "%s", e.msg) : 0;
}
