/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_read.c - opens safetensors files: one, a directory of them with or without an index,
 * DCP's shards, and what ckptctl export wrote. Called through the registry.
 * Invariant: every byte of every file is in one range, and every tensor's elements are in its
 * pieces, or nothing is opened.
 */
#include "formats/safetensors/safetensors_reading.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <stdio.h>

#define ORIGINS_MAX 32u /* different checkpoints that a message tells apart */
#define PROBE_FILES 8	/* of a directory: so many headers are looked at */

static bool ends_in(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n > m && !strcmp(s + n - m, end);
}

/* The file that a person named; NULL: the directory. */
static const char *entry_of(const struct source_dir *d)
{
	return d->entry && *d->entry ? d->entry : NULL;
}

/* --- is it this format? --- */

/* The first eight bytes are a length that the file has room for, and '{' comes behind them. */
static int has_header(const struct source_dir *d, const char *name)
{
	struct source src = { 0 };
	uint8_t head[9];
	uint64_t len;
	int rc = d->open(d->ctx, name, &src);

	if (rc < 0)
		return rc;
	if (src.bytes < sizeof head || src.read(src.ctx, head, sizeof head, 0) < 0) {
		source_close(&src);
		return 0;
	}
	len = le64_get(*(const le64 *)head);
	rc = len <= SAFETENSORS_HEADER_MAX && len <= src.bytes - 8 && head[8] == '{';
	source_close(&src);
	return rc;
}

struct looking {
	const struct source_dir *d;
	uint32_t nfile, nheader;
	bool index;
};

static int look_at(void *arg, const char *name, enum source_kind kind)
{
	struct looking *l = arg;

	if (kind == SOURCE_DIR)
		return 0;
	l->index |= ends_in(name, SAFETENSORS_INDEX_ENDING);
	if (!ends_in(name, SAFETENSORS_ENDING))
		return 0;
	if (l->nfile++ < PROBE_FILES)
		l->nheader += has_header(l->d, name) > 0;
	return 0;
}

static int safetensors_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	const char *entry = entry_of(dir);
	struct looking l = { .d = dir };
	int rc;

	if (entry && ends_in(entry, SAFETENSORS_INDEX_ENDING)) {
		snprintf(looked, FORMAT_LOOKED, "an index of safetensors files");
		return 75;
	}
	if (entry) {
		rc = has_header(dir, entry);
		snprintf(looked, FORMAT_LOOKED, "no header of safetensors");
		return rc < 0 ? rc : rc ? 75 : ends_in(entry, SAFETENSORS_ENDING) ? 25 : 0;
	}
	rc = dir->list(dir->ctx, "", look_at, &l);
	snprintf(looked, FORMAT_LOOKED, "no *.safetensors and no *.safetensors.index.json");
	return rc < 0 ? rc : l.nheader ? 75 : l.nfile || l.index ? 25 : 0;
}

/* --- metadata of a file --- */

static bool is_number(const char *s, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(s, &end, 10);
	return *s >= '0' && *s <= '9' && !*end && !errno;
}

/* 1: the key is new; 0: it was there, and its value stays; -ENOMEM. */
static int texts_add(struct texts *t, struct arena *a, const char *key, const char *value)
{
	uint32_t n;
	int rc = strmap_add(&t->map, a, key, strlen(key), &n);

	if (rc <= 0)
		return rc;
	if (!ARRAY_GROW(t->value, n, t->cap))
		return -ENOMEM;
	t->value[n] = value;
	return 1;
}

/* All but what says how the file is made. The first file's word counts. */
static int meta_keep(struct reading *r, const char *key, const char *value)
{
	uint32_t n = strmap_find(&r->meta.map, key, strlen(key));
	char *k, *v;

	if (n != KEYMAP_NONE)
		return 0;
	if (r->meta.map.map.n == SAFETENSORS_ATTRS_MAX)
		return ckpt_error(r->err, -EPROTONOSUPPORT,
				  "%s: more than %u strings of metadata, which ckptd does not open",
				  r->name, SAFETENSORS_ATTRS_MAX);
	k = arena_str(&r->t->arena, key);
	v = arena_str(&r->t->arena, value);
	return k && v && texts_add(&r->meta, &r->tmp, k, v) > 0
		       ? 0
		       : ckpt_error(r->err, -ENOMEM, "no memory for the metadata");
}

static int blob_keep(struct reading *r, const char *name, const char *value)
{
	return texts_add(&r->blobs, &r->file_tmp, name, value) < 0
		       ? ckpt_error(r->err, -ENOMEM, "no memory for the metadata")
		       : 0;
}

static int on_meta(void *arg, char *key, char *value)
{
	struct reading *r = arg;
	char what[400];

	if (safetensors_origin_note(&r->origin[r->file], &r->tmp, key, value))
		return ckpt_error(r->err, -ENOMEM, "no memory for the metadata");
	if (!strcmp(key, "format"))
		return 0;
	if (!strncmp(key, SAFETENSORS_BLOB, sizeof SAFETENSORS_BLOB - 1))
		return blob_keep(r, key + sizeof SAFETENSORS_BLOB - 1, value);
	if (!strcmp(key, SAFETENSORS_SHARDING)) {
		if (entry_of(r->how->dir)) /* one file is what it has */
			return 0;
		r->sharded = r->boxed = true;
		snprintf(what, sizeof what, SAFETENSORS_SHARDING " of %.200s", r->name);
		return sharding_read(value, what, &r->file_tmp, &r->sharding, r->err);
	}
	if (!strcmp(key, SAFETENSORS_OURS))
		r->ours = true;
	if (!strcmp(key, "mesh"))
		r->mesh = value;
	if (!strcmp(key, SAFETENSORS_RANK))
		is_number(value, &r->rank);
	if (!strcmp(key, "keys"))
		r->prefixed |= r->slashed = !strcmp(value, "component/name");
	return meta_keep(r, key, value);
}

static const char *meta_of(const struct reading *r, const char *key)
{
	uint32_t n = strmap_find(&r->meta.map, key, strlen(key));

	return n == KEYMAP_NONE ? NULL : r->meta.value[n];
}

/* --- one file --- */

static int fault_say(const struct reading *r, int rc, const char *file)
{
	struct format_fault f = {
		.kind = rc == -EUCLEAN || rc == -ENOENT ? "missing"
			: rc == -EBADMSG		? "truncated"
			: rc == -EPROTONOSUPPORT	? "newer"
			: rc == -EPROTO			? "malformed"
							: "unreadable",
		.file = file ? file : "",
		.tensor = "",
		.text = r->err->msg,
	};

	if (rc && rc != -ENOMEM && rc != -ECANCELED && r->how->fault)
		r->how->fault(r->how->fault_arg, &f);
	return rc;
}

/* Errors of opening a file that must be there. */
static int open_error(struct reading *r, int rc, const char *name)
{
	switch (rc) {
	case -ENOENT:
		return ckpt_error(r->err, -EUCLEAN, "%s is missing", name);
	case -EINVAL:
	case -EISDIR:
	case -ELOOP:
	case -ENXIO:
	case -ENOTDIR:
	case -ENAMETOOLONG:
		return ckpt_error(
			r->err, -EPROTO,
			"\"%.300s\" is no file in the checkpoint's directory, or its name "
			"leads out of it",
			name);
	default:
		return ckpt_error_errno(r->err, -rc, "%s cannot be read", name);
	}
}

/* "shard-00002-model-..": rank 1; "rank-00001.safetensors": rank 1. */
static uint32_t rank_of(const char *name)
{
	const char *slash = strrchr(name, '/');
	unsigned n;

	name = slash ? slash + 1 : name;
	if (sscanf(name, "shard-%5u-", &n) == 1 && n)
		return n - 1;
	return sscanf(name, "rank-%5u.", &n) == 1 ? n : 0;
}

/* So that arrays are not copied while they grow. */
static int room_make(struct reading *r, const char *head, uint64_t len)
{
	static const char word[] = "\"data_offsets\"";
	const char *at = head, *end = head + len;
	uint64_t n = 0;

	while (at && n <= TABLE_TENSORS_MAX) {
		at = memmem(at, (size_t)(end - at), word, sizeof word - 1);
		n += at != NULL;
		at = at ? at + sizeof word : NULL;
		if (at && at >= end)
			break;
	}
	if (n > TABLE_TENSORS_MAX)
		return ckpt_error(r->err, -EPROTONOSUPPORT,
				  "%s has more than %u tensors, which ckptd does not open", r->name,
				  TABLE_TENSORS_MAX);
	return table_reserve(r->t, n, n) ? ckpt_error(r->err, -ENOMEM, "no memory for %llu tensors",
						      (unsigned long long)n)
					 : 0;
}

static int ranges_make(struct reading *r, struct format_file *f)
{
	struct format_range *range = arena_array(&r->t->arena, 2, sizeof *range);

	if (!range)
		return ckpt_error(r->err, -ENOMEM, "no memory for %s", f->name);
	range[0] = (struct format_range){ .len = r->data_off, .kind = RANGE_META, .sum = SUM_OPEN };
	range[1] = (struct format_range){ .off = r->data_off,
					  .len = f->file_bytes - r->data_off,
					  .kind = RANGE_DATA,
					  .sum = SUM_NONE };
	f->range = range;
	f->nrange = range[1].len ? 2 : 1;
	return 0;
}

static int header_use(struct reading *r, const struct source *src)
{
	struct format_file *f = &r->c->file[r->file];
	const struct header_sink to = { .meta = on_meta, .tensor = reading_tensor, .arg = r };
	cleanup_free void *head = NULL;
	char what[400];
	uint64_t len = 0;
	int rc = header_load(src, r->name, &head, &len, r->err);

	if (rc)
		return rc;
	f->file_bytes = f->raw_bytes = src->bytes;
	r->c->stored_bytes += src->bytes;
	r->data_off = sizeof(le64) + len;
	rc = table_add_place(
		r->t,
		&(struct table_place){ .name = f->name, .rank = f->rank, .bytes = src->bytes },
		NULL, r->err);
	if (!rc)
		rc = room_make(r, head, len);
	snprintf(what, sizeof what, "the header of %.300s", r->name);
	if (!rc)
		rc = header_read(head, len, src->bytes - r->data_off, what, &to, r->err);
	r->origin[r->file].known = !rc;
	return rc ? rc : ranges_make(r, f);
}

static int file_read(struct reading *r, uint32_t file)
{
	struct format_file *f = &r->c->file[file];
	struct source src = { 0 };
	int rc;

	r->file = file;
	r->name = f->name;
	r->sharded = r->slashed = false;
	r->mesh = NULL;
	r->rank = 0;
	f->rank = rank_of(f->name);
	r->c->world = MAX(r->c->world, f->rank + 1);
	rc = r->how->dir->open(r->how->dir->ctx, f->name, &src);
	if (rc)
		rc = open_error(r, rc, f->name);
	else
		rc = header_use(r, &src);
	source_close(&src);
	free(r->sharding.of);
	free(r->blobs.value);
	r->sharding = (struct sharding){ 0 };
	r->blobs = (struct texts){ 0 };
	arena_free(&r->file_tmp);
	return fault_say(r, rc, f->name);
}

/* --- of which checkpoint each file is --- */

/* Of a file whose tensors are not read any more, because another one has a mistake. */
static void origin_look(struct reading *r, uint32_t file)
{
	const char *name = r->c->file[file].name;
	struct source src = { 0 };

	if (r->how->dir->open(r->how->dir->ctx, name, &src))
		return;
	(void)safetensors_origin_read(&src, name, &r->tmp, &r->origin[file], NULL);
	source_close(&src);
}

/* Files that say the same, by the first of them. */
struct origin_group {
	uint32_t first, n, nshown;
	char names[400]; /* "a, b" of the first ones */
};

static void group_add(struct origin_group *g, const char *name)
{
	size_t n = strlen(g->names);

	if (g->n++ && (g->nshown < g->n - 1 || n + strlen(name) + 3 > sizeof g->names))
		return;
	g->nshown++;
	snprintf(g->names + n, sizeof g->names - n, "%s%s", n ? ", " : "", name);
}

/* Each group is a line, each file a fault. */
static int origins_refuse(const struct reading *r, const struct origin_group *g, uint32_t ngroup,
			  uint32_t nfile)
{
	struct ckpt_errlist list = { .code = -EPROTO };
	char said[ORIGIN_TEXT], text[ORIGIN_TEXT + 100], more[40];
	int rc;

	for (uint32_t i = 0; i < nfile && r->how->fault; i++) {
		struct format_fault f = {
			.kind = "mismatch", .file = r->c->file[i].name, .tensor = "", .text = text
		};

		snprintf(text, sizeof text,
			 "other files here are of another checkpoint; this one: %s",
			 safetensors_origin_print(&r->origin[i], said));
		if (r->origin[i].known)
			r->how->fault(r->how->fault_arg, &f);
	}
	for (uint32_t i = 0; i < ngroup; i++) {
		snprintf(more, sizeof more, " and %u more", g[i].n - g[i].nshown);
		ckpt_errlist_add(&list, "%s%s: %s", g[i].names, g[i].n > g[i].nshown ? more : "",
				 safetensors_origin_print(&r->origin[g[i].first], said));
	}
	rc = ckpt_errlist_end(&list, r->err,
			      "these files are of different checkpoints, which are never joined "
			      "(name one of them to read it alone)");
	ckpt_errlist_free(&list);
	return rc;
}

/* rc: what reading found; a mixture explains it better. */
static int origins_check(struct reading *r, uint32_t n, int rc)
{
	struct origin_group group[ORIGINS_MAX] = { 0 };
	uint32_t ngroup = 0, k;

	if (rc == -ENOMEM || rc == -ECANCELED || MUTANT(ORIGINS_NOT_COMPARED))
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		const struct safetensors_origin *o = &r->origin[i];

		if (!o->known)
			continue;
		for (k = 0; k < ngroup; k++)
			if (safetensors_origin_fits(o, &r->origin[group[k].first], r->has_index))
				break;
		if (k == ORIGINS_MAX) /* the last line of all that are refused */
			k--;
		ngroup += k == ngroup;
		group[k].first = group[k].n ? group[k].first : i;
		group_add(&group[k], r->c->file[i].name);
	}
	return ngroup > 1 ? origins_refuse(r, group, ngroup, n) : rc;
}

/* --- which files --- */

struct names {
	struct reading *r;
	const char **name;
	uint32_t n, cap;
	const char *index; /* the one that counts; NULL: none */
	uint32_t nindex;
};

static int foreign_add(struct checkpoint *c, const char *name)
{
	char *copy;

	if (c->nforeign++ >= CHECKPOINT_FOREIGN)
		return 0;
	copy = arena_str(&c->table.arena, name);
	c->foreign[c->nforeign - 1] = copy;
	return copy ? 0 : -ENOMEM;
}

static int names_add(struct names *l, const char *name)
{
	if (!ARRAY_GROW(l->name, l->n, l->cap))
		return -ENOMEM;
	l->name[l->n] = arena_str(&l->r->tmp, name);
	return l->name[l->n++] ? 0 : -ENOMEM;
}

static int on_entry(void *arg, const char *name, enum source_kind kind)
{
	struct names *l = arg;

	if (kind == SOURCE_FILE && ends_in(name, SAFETENSORS_ENDING))
		return names_add(l, name);
	if (kind != SOURCE_FILE || !ends_in(name, SAFETENSORS_INDEX_ENDING))
		return 0;
	/* Of several, the one without a variant's name is the model's. */
	if (!l->index || !strcmp(name, SAFETENSORS_INDEX)) {
		l->index = arena_str(&l->r->tmp, name);
		if (!l->index)
			return -ENOMEM;
	}
	l->nindex++;
	return 0;
}

static int on_foreign(void *arg, const char *name, enum source_kind kind)
{
	struct reading *r = arg;

	(void)kind;
	for (uint32_t i = 0; i < r->c->nfile; i++) {
		const char *f = r->c->file[i].name;
		size_t n = strcspn(f, "/");

		if (strlen(name) == n && !strncmp(name, f, n))
			return 0;
	}
	return foreign_add(r->c, name);
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Read the index, which is the last of the checkpoint's files. */
static int index_read(struct reading *r, const char *name)
{
	struct source src = { 0 };
	char *bytes;
	int rc = r->how->dir->open(r->how->dir->ctx, name, &src);

	r->name = name;
	if (rc)
		return open_error(r, rc, name);
	bytes = src.bytes <= SAFETENSORS_HEADER_MAX ? arena_alloc(&r->tmp, src.bytes + 1) : NULL;
	if (src.bytes > SAFETENSORS_HEADER_MAX)
		rc = ckpt_error(r->err, -EPROTO, "%s has %llu bytes: that is no index", name,
				(unsigned long long)src.bytes);
	else if (!bytes)
		rc = ckpt_error(r->err, -ENOMEM, "out of memory for %s", name);
	else
		rc = src.read(src.ctx, bytes, src.bytes, 0);
	if (rc < 0 && !r->err->code)
		ckpt_error_errno(r->err, -rc, "%s cannot be read", name);
	if (!rc)
		rc = weight_index_read(bytes, src.bytes, name, &r->tmp, &r->index, r->err);
	r->has_index = !rc;
	r->seen = rc ? NULL : calloc((size_t)r->index.tensor.map.n + 1, sizeof *r->seen);
	if (!rc && !r->seen)
		rc = ckpt_error(r->err, -ENOMEM, "out of memory for %s", name);
	r->c->stored_bytes += src.bytes;
	source_close(&src);
	return rc;
}

static int index_place(struct reading *r, const char *name)
{
	struct format_file *f = &r->c->file[r->c->nfile - 1];
	struct format_range *range = arena_array(&r->t->arena, 1, sizeof *range);
	struct source src = { 0 };
	int rc = r->how->dir->open(r->how->dir->ctx, name, &src);

	if (rc)
		return open_error(r, rc, name);
	f->file_bytes = f->raw_bytes = src.bytes;
	source_close(&src);
	if (!range)
		return ckpt_error(r->err, -ENOMEM, "no memory for %s", name);
	*range = (struct format_range){ .len = f->file_bytes, .kind = RANGE_META, .sum = SUM_OPEN };
	f->range = range;
	f->nrange = f->file_bytes != 0;
	return table_add_place(r->t,
			       &(struct table_place){ .name = f->name, .bytes = f->file_bytes },
			       NULL, r->err);
}

static int files_list(struct reading *r, struct names *l)
{
	const char *entry = entry_of(r->how->dir);
	int rc = 0;

	if (entry && ends_in(entry, SAFETENSORS_INDEX_ENDING))
		l->index = entry;
	else if (entry)
		rc = names_add(l, entry);
	else
		rc = r->how->dir->list(r->how->dir->ctx, "", on_entry, l);
	if (rc)
		return ckpt_error_errno(r->err, -rc, "the directory cannot be listed");
	if (l->nindex > 1 && strcmp(l->index, SAFETENSORS_INDEX) != 0)
		return ckpt_error(r->err, -EPROTO,
				  "%u indexes are there, and none is " SAFETENSORS_INDEX
				  ": name one of them",
				  l->nindex);
	if (!l->index)
		return l->n ? 0 : ckpt_error(r->err, -EUCLEAN, "no *.safetensors is there");
	rc = index_read(r, l->index);
	if (rc)
		return rc;
	/* In the order of the index, by whose numbers its tensors know them. */
	l->n = 0;
	for (uint32_t i = 0; i < r->index.file.map.n && !rc; i++)
		rc = names_add(l, r->index.file.key[i].bytes);
	return rc ? ckpt_error(r->err, rc, "no memory for the names of files") : 0;
}

static int files_make(struct reading *r, const struct names *l)
{
	struct arena *a = &r->t->arena;
	uint32_t n = l->n + (l->index != NULL);

	if (n > TABLE_PLACES_MAX)
		return ckpt_error(r->err, -EPROTONOSUPPORT, "%u files are more than ckptd opens",
				  n);
	r->c->file = arena_array(a, n, sizeof *r->c->file);
	r->c->nfile = n;
	r->origin = arena_array(&r->tmp, n, sizeof *r->origin);
	if (!r->origin)
		return ckpt_error(r->err, -ENOMEM, "no memory for %u files", n);
	for (uint32_t i = 0; i < n && r->c->file; i++) {
		const char *name = arena_str(a, i < l->n ? l->name[i] : l->index);

		r->c->file[i] = (struct format_file){ .name = name };
		if (!name)
			r->c->file = NULL;
	}
	return r->c->file ? 0 : ckpt_error(r->err, -ENOMEM, "no memory for %u files", n);
}

/* --- what all files say together --- */

/* Each tensor of the index was in its file. */
static int index_complete(struct reading *r)
{
	for (uint32_t i = 0; r->has_index && i < r->index.tensor.map.n; i++) {
		const char *name = r->index.tensor.key[i].bytes;

		if (!MUTANT(SAFETENSORS_INDEX_UNREAD) && !r->seen[i])
			return ckpt_error(
				r->err, -EPROTO,
				"the index says that tensor %.200s is in %.200s, which does "
				"not have it",
				name, (const char *)r->index.file.key[r->index.of[i]].bytes);
	}
	return 0;
}

/* An export by rank: all ranks of its mesh must be there. Without sharding info nothing says which
 * part of a tensor a rank has. */
static int ranks_complete(struct reading *r)
{
	const char *spec =
		r->ours && !entry_of(r->how->dir) && meta_of(r, "rank") ? meta_of(r, "mesh") : NULL;
	uint32_t nrank = 0;
	struct mesh m;

	if (!spec || mesh_parse(spec, &r->tmp, &m, NULL))
		return 0;
	for (uint32_t i = 0; i < r->c->nfile; i++)
		nrank += !i || r->c->file[i].rank != r->c->file[i - 1].rank;
	if (nrank < m.nrank)
		return ckpt_error(r->err, -EUCLEAN, "%u of the %u ranks of mesh %.100s are there",
				  nrank, m.nrank, spec);
	r->c->world = MAX(r->c->world, m.nrank);
	return 0;
}

static int attr_compare(const void *va, const void *vb)
{
	const struct checkpoint_attr *x = va, *y = vb;

	return strcmp(x->key, y->key);
}

/* "component/name" of files of ranks, and the name alone of others. */
static bool is_tensor(const struct reading *r, const char *text)
{
	const char *slash = r->prefixed ? strchr(text, '/') : NULL;
	char component[CKPT_NAME_MAX + 1];

	if (!slash || slash - text > CKPT_NAME_MAX)
		return table_find(r->t, "", text, TABLE_NONE) != TABLE_NONE;
	snprintf(component, sizeof component, "%.*s", (int)(slash - text), text);
	return table_find(r->t, component, slash + 1, TABLE_NONE) != TABLE_NONE;
}

/* The same as a key of docs/FORMAT.md, behind `head`. NULL: no memory. */
static const char *tensor_key(struct reading *r, const char *head, const char *text)
{
	size_t bytes = strlen(head) + strlen(text) + 2;
	char *key = arena_alloc(&r->t->arena, bytes);

	if (key)
		snprintf(key, bytes, "%s%s%s", head, r->prefixed && strchr(text, '/') ? "" : "/",
			 text);
	return key;
}

/* save_model's way to say that two names are one tensor: a key that is no tensor, with a tensor's
 * name. */
static const char *alias_key(struct reading *r, const char *key, const char *value,
			     const char **ret_value)
{
	const size_t escape = sizeof SAFETENSORS_ATTR - 1;

	*ret_value = value;
	if (r->ours && !strncmp(key, SAFETENSORS_ATTR, escape))
		return key + escape;
	if (is_tensor(r, key) || !is_tensor(r, value))
		return key;
	*ret_value = tensor_key(r, "", value);
	return *ret_value ? tensor_key(r, SAFETENSORS_ALIAS, key) : NULL;
}

/* As stores name jobs: a file does not choose a path, or what a terminal does. */
static bool is_job(const char *s)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789._-";
	size_t n = strspn(s, allowed);

	return n && n <= CKPT_JOB_MAX && !s[n] && *s != '.';
}

/* Which step of which job it is, if it says both; else they are attributes like others. */
static int facts_take(struct reading *r)
{
	static const char *const own[] = { "DCP_VERSION", "ckptd", "checkpoint",       "mesh",
					   "rank",	  "keys",  SAFETENSORS_SOURCE, "job",
					   "step" };
	struct checkpoint *c = r->c;
	const char *job = meta_of(r, "job"), *step = meta_of(r, "step"),
		   *tool = meta_of(r, "ckptd");
	size_t nown = r->ours ? ARRAY_LEN(own) : 1;
	uint64_t n;

	if (r->ours && step && job && is_number(step, &n) && is_job(job)) {
		c->has |= HAS_STEP;
		c->step = n;
		strcpy(c->job, job);
	} else if (r->ours) {
		nown -= 2;
	}
	if (tool)
		snprintf(c->tool, sizeof c->tool, "ckptctl %.50s", tool);
	c->attr = arena_array(&r->t->arena, (size_t)r->meta.map.map.n + 1, sizeof *c->attr);
	for (uint32_t i = 0; c->attr && i < r->meta.map.map.n; i++) {
		const char *key = r->meta.map.key[i].bytes;
		bool skip = false;

		for (size_t k = 0; k < nown; k++)
			skip |= !strcmp(key, own[k]);
		if (skip)
			continue;
		c->attr[c->nattr].key =
			alias_key(r, key, r->meta.value[i], &c->attr[c->nattr].value);
		if (!c->attr[c->nattr++].key)
			c->attr = NULL;
	}
	if (!c->attr)
		return ckpt_error(r->err, -ENOMEM, "no memory for the metadata");
	qsort(c->attr, c->nattr, sizeof *c->attr, attr_compare);
	return 0;
}

static int pieces_check(struct reading *r)
{
	struct ckpt_errlist list = { .code = -EPROTO };
	int rc = table_seal(r->t, r->err);

	if (!rc && r->boxed) {
		table_cover(r->t, &list);
		rc = ckpt_errlist_end(&list, r->err, "the shards do not make whole tensors");
	}
	ckpt_errlist_free(&list);
	return rc;
}

static int reading_run(struct reading *r)
{
	struct names l = { .r = r };
	int rc = files_list(r, &l);

	rc = fault_say(r, rc, l.index);
	if (!rc && !l.index)
		qsort(l.name, l.n, sizeof *l.name, name_compare);
	if (!rc)
		rc = files_make(r, &l);
	for (uint32_t i = 0; i < l.n && r->origin && r->c->file; i++) {
		if (!rc)
			rc = file_read(r, i);
		if (rc)
			origin_look(r, i);
	}
	rc = origins_check(r, r->origin ? l.n : 0, rc);
	if (!rc && l.index)
		rc = index_place(r, l.index);
	free(l.name);
	if (rc)
		return rc;
	rc = index_complete(r);
	if (!rc)
		rc = ranks_complete(r);
	if (!rc)
		rc = facts_take(r);
	if (!rc)
		rc = pieces_check(r);
	if (!rc && !entry_of(r->how->dir)) {
		rc = r->how->dir->list(r->how->dir->ctx, "", on_foreign, r);
		if (rc)
			ckpt_error_errno(r->err, -rc, "the directory cannot be listed");
	}
	return fault_say(r, rc, NULL);
}

static int safetensors_open(const struct format_open *how, struct checkpoint **ret,
			    struct ckpt_err *err)
{
	struct ckpt_err own = { 0 };
	struct reading r = { .how = how, .err = err ? err : &own };
	int rc;

	*ret = NULL;
	r.c = checkpoint_new(&format_safetensors, 0);
	if (!r.c)
		return ckpt_error(err, -ENOMEM, "out of memory for a checkpoint");
	r.t = &r.c->table;
	rc = reading_run(&r);
	arena_free(&r.tmp);
	free(r.sets.set);
	free(r.last);
	free(r.meta.value);
	free(r.seen);
	if (rc) {
		checkpoint_free(r.c);
		return rc;
	}
	*ret = r.c;
	return 0;
}

const struct format format_safetensors = {
	.name = "safetensors",
	.about =
		"safetensors files: one, or a directory of them, as Hugging Face and DCP have them",
	.ending = SAFETENSORS_ENDING,
	.probe = safetensors_probe,
	.open = safetensors_open,
	.holds = safetensors_holds,
	.says = safetensors_says,
	.sheet = safetensors_sheet,
	.fill = safetensors_fill,
	.sheet_end = safetensors_sheet_end,
};
