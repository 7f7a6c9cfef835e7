/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_sheet.c - a target as safetensors files (formats/format.h): which files, what lies
 * where, and the bytes of headers and index. The engine calls it to convert and to export.
 * Invariant: a header that is filled in is the one of which the sheet was made: both follow from
 * the target and what is wanted, and nothing else.
 *
 * By rank: rank-00000.safetensors, ..: each rank's shares, in its local shapes, under
 * component/name. Complete tensors: one file, or model-00001-of-00003.safetensors, .. and their
 * index, under component.name.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/table/target.h"
#include "formats/safetensors/safetensors_format.h"
#include "formats/safetensors/safetensors_impl.h"
#include <stdio.h>

#define PAYLOAD_ALIGN 4096 /* whole blocks of tensors go past the page cache */
#define NAME_BYTES 48
#define META_MAX 12

struct files {
	const struct table *target;
	const struct format_want *want;
	uint32_t n; /* files with tensors */
	/* complete tensors: file i has order[first[i]], .., of the target's numbers. alias: the key
	 * of another name that the tensor has; NULL: it is under its own */
	uint32_t *order, *first;
	const char **alias;
	struct tie {
		const char *alias, *key; /* component/name of the second name, and of the tensor */
		uint32_t tensor, file;	 /* file: which says it; TABLE_NONE: each */
	} * tie;			 /* that are stored once */
	uint32_t ntie;
	struct arena arena;
	struct strmap names, seconds; /* in the files: of all tensors, and of ties */
	char (*name)[NAME_BYTES];
	bool flat;	   /* by rank: no reader can tell the keys' components from their names */
	const char *index; /* NULL: none */
	uint64_t index_len;
};

/* What one file holds: tensors of the target, their names and shapes there, and their elements. */
struct list {
	struct arena a;
	uint32_t n, *tensor;
	uint32_t *id; /* the same of complete tensors, by their numbers in `order` */
	struct safetensors_tensor *x;
	struct indexset *set;
	struct table holds; /* of a rank */
};

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for safetensors files");
}

/* --- what a file holds --- */

static bool is_alias(const char *key)
{
	return !strncmp(key, SAFETENSORS_ALIAS, sizeof SAFETENSORS_ALIAS - 1);
}

static bool is_bare(const struct files *f, const struct table_tensor *x)
{
	return f->want->bare || (f->want->strip && !strcmp(f->want->strip, x->component));
}

/* A name with a slash and no component in front of it reads as if it had one. */
static bool is_ambiguous(const struct files *f)
{
	for (uint32_t i = 0; i < f->target->ntensor; i++) {
		const struct table_tensor *x = &f->target->tensor[i];

		if (x->cls != CKPT_SINK && (!*x->component || is_bare(f, x)) &&
		    strchr(x->name, '/'))
			return true;
	}
	return false;
}

/* The rank whose shares are in a file. */
static uint32_t rank_of(const struct files *f, uint32_t file)
{
	return f->want->rank_first + file;
}

/* component/name of a rank's file, component.name of complete tensors; whose it is where it is
 * another rank's. A component that is stripped is left out. */
static const char *key_make(const struct files *f, const struct table_tensor *x, uint32_t rank,
			    struct arena *a)
{
	bool bare = !*x->component || is_bare(f, x);
	size_t bytes = strlen(x->component) + strlen(x->name) + 32;
	char *s = arena_alloc(a, bytes);
	int n;

	if (!s)
		return NULL;
	n = snprintf(s, bytes, "%s%s%s", bare ? "" : x->component,
		     bare		? ""
		     : f->want->by_rank ? "/"
					: ".",
		     x->name);
	if (x->rank != TABLE_NONE && x->rank != rank)
		snprintf(s + n, bytes - (size_t)n, "/rank-%05u", x->rank);
	return s;
}

static bool has_name(const struct files *f, const char *key)
{
	return strmap_find(&f->names, key, strlen(key)) != KEYMAP_NONE;
}

static int whole_set(const struct table_tensor *x, struct arena *a, struct indexset *ret)
{
	static const uint64_t zeros[CKPT_DIMS_MAX];

	return indexset_box(x->ndim, zeros, x->shape, a, ret);
}

/* A tensor under another name, component/name; NULL: under its own. */
static struct table_tensor tensor_called(const struct files *f, uint32_t tensor, const char *alias,
					 char component[CKPT_NAME_MAX + 1])
{
	struct table_tensor x = f->target->tensor[tensor];
	const char *slash = alias ? strchr(alias, '/') : NULL;

	if (slash) {
		snprintf(component, CKPT_NAME_MAX + 1, "%.*s", (int)(slash - alias), alias);
		x.component = component;
		x.name = slash + 1;
	}
	return x;
}

/* The tensor number i of `order`, under the name that it has there. */
static struct table_tensor tensor_held(const struct files *f, uint32_t i,
				       char component[CKPT_NAME_MAX + 1])
{
	return tensor_called(f, f->order[i], f->alias[i], component);
}

static int complete_list(const struct files *f, uint32_t file, struct list *l)
{
	uint32_t from = f->first[file];

	for (; l->n < f->first[file + 1] - from; l->n++) {
		char component[CKPT_NAME_MAX + 1];
		struct table_tensor x = tensor_held(f, from + l->n, component);

		l->tensor[l->n] = f->order[from + l->n];
		l->id[l->n] = from + l->n;
		l->x[l->n] = (struct safetensors_tensor){ .name = key_make(f, &x, 0, &l->a),
							  .dtype = x.dtype,
							  .ndim = x.ndim,
							  .shape = x.shape };
		if (!l->x[l->n].name || whole_set(&x, &l->a, &l->set[l->n]))
			return -ENOMEM;
	}
	return 0;
}

/* Does an ONLY put the tensor elsewhere? */
static bool lives_elsewhere(const struct table *t, const struct table_tensor *x,
			    const uint32_t *coord)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &t->layout[x->layout];

	for (uint32_t i = 0; l && i < l->nplace; i++)
		if (l->place[i].how == CKPT_ONLY &&
		    coord[l->place[i].mesh_dim] != l->place[i].split_factor)
			return true;
	return false;
}

/* What the rank holds of a tensor, also where that is empty. */
static int share_find(struct list *l, uint32_t tensor, const uint32_t *coord, struct indexset *ret)
{
	static const struct layout whole;
	const struct table *t = &l->holds;
	const struct table_tensor *x = &t->tensor[tensor];

	if (t->first[tensor] < t->first[tensor + 1]) {
		*ret = t->piece[t->first[tensor]].set;
		return 0;
	}
	return layout_share(&t->mesh[0], x->layout == TABLE_NONE ? &whole : &t->layout[x->layout],
			    x->ndim, x->shape, coord, &l->a, ret);
}

static int rank_list(const struct files *f, uint32_t rank, struct list *l, struct ckpt_err *err)
{
	uint32_t world = target_world(f->target), coord[CKPT_DIMS_MAX];
	int rc = target_rank(f->target, rank, &l->holds, err);

	if (rc)
		return rc;
	if (!mesh_coord(&l->holds.mesh[0], rank, coord))
		return ckpt_error(err, -EINVAL, "the mesh has no rank %u", rank);
	for (uint32_t i = 0; i < l->holds.ntensor && !rc; i++) {
		const struct table_tensor *x = &l->holds.tensor[i];
		uint64_t *shape;

		if (x->cls == CKPT_SINK || lives_elsewhere(&l->holds, x, coord) ||
		    (x->rank != TABLE_NONE && x->rank % world != rank))
			continue;
		shape = arena_array(&l->a, (size_t)x->ndim + 1, sizeof *shape);
		rc = shape ? share_find(l, i, coord, &l->set[l->n]) : -ENOMEM;
		for (uint32_t d = 0; d < x->ndim && !rc; d++)
			shape[d] = l->set[l->n].dim[d].total;
		l->tensor[l->n] = l->id[l->n] = i;
		l->x[l->n] = (struct safetensors_tensor){ .name = key_make(f, x, rank, &l->a),
							  .dtype = x->dtype,
							  .ndim = x->ndim,
							  .shape = shape };
		rc = rc || l->x[l->n].name ? rc : -ENOMEM;
		l->n++;
	}
	return rc ? ckpt_error(err, rc, "the shares of rank %u cannot be listed", rank) : 0;
}

static void list_free(struct list *l)
{
	table_free(&l->holds);
	arena_free(&l->a);
}

/* list_free in any case. */
static int list_make(const struct files *f, uint32_t file, struct list *l, struct ckpt_err *err)
{
	size_t most = f->want->by_rank ? f->target->ntensor : f->first[file + 1] - f->first[file];

	*l = (struct list){ 0 };
	l->x = arena_array(&l->a, most + 1, sizeof *l->x);
	l->tensor = arena_array(&l->a, most + 1, sizeof *l->tensor);
	l->set = arena_array(&l->a, most + 1, sizeof *l->set);
	l->id = arena_array(&l->a, most + 1, sizeof *l->id);
	if (!l->x || !l->tensor || !l->set || !l->id)
		return no_memory(err);
	if (f->want->by_rank)
		return rank_list(f, rank_of(f, file), l, err);
	return complete_list(f, file, l) ? no_memory(err) : 0;
}

/* --- a header --- */

static bool is_box(const struct indexset *s)
{
	for (uint32_t d = 0; d < s->ndim; d++)
		if (s->dim[d].n > 1 || (s->dim[d].n && s->dim[d].run[0].count > 1))
			return false;
	return true;
}

/* Where the set begins; an empty one is behind all others. */
static uint64_t set_start(const struct indexset *s, const struct table_tensor *x, uint32_t d)
{
	return s->dim[d].n ? s->dim[d].run[0].start : x->shape[d];
}

/* DCP's reader takes saved_offsets, and fails where there are none: so it never takes a share that
 * is no box for one. The rest is for ours. */
static void sharding_put(const struct files *f, const struct list *l, struct header_text *t)
{
	header_put_text(t, "{");
	for (uint32_t i = 0; i < l->n; i++) {
		const struct table_tensor *x = &f->target->tensor[l->tensor[i]];
		char text[1024];

		header_put(t, ", ", i ? 2 : 0);
		header_put_string(t, l->x[i].name);
		if (is_box(&l->set[i])) {
			header_put_text(t, ": {\"saved_offsets\": [");
			for (uint32_t d = 0; d < x->ndim; d++) {
				header_put(t, ", ", d ? 2 : 0);
				header_put_number(t, set_start(&l->set[i], x, d));
			}
		} else {
			header_put_text(t, ": {\"placements\": ");
			header_put_string(
				t, table_layout_print(f->target, x->layout, text, sizeof text));
			header_put_text(t, ", \"shape\": [");
			for (uint32_t d = 0; d < x->ndim; d++) {
				header_put(t, ", ", d ? 2 : 0);
				header_put_number(t, x->shape[d]);
			}
		}
		header_put_text(t, "]}");
	}
	header_put_text(t, "}");
}

static const char *sharding_text(const struct files *f, struct list *l)
{
	struct header_text t = { 0 };
	char *s;

	sharding_put(f, l, &t);
	s = arena_alloc(&l->a, t.len + 1);
	t = (struct header_text){ .at = s };
	if (s)
		sharding_put(f, l, &t);
	return s;
}

/* What a blob's bytes are, and whose it is: the header's dtype is U8. NULL: no memory. */
static const char *blob_text(const struct table_tensor *x, struct arena *a)
{
	char rank[32] = "", *s = arena_alloc(a, 64);

	if (x->rank != TABLE_NONE)
		snprintf(rank, sizeof rank, SAFETENSORS_BLOB_RANK "%u", x->rank);
	if (s)
		snprintf(s, 64, "%s%s", media_name(x->media), rank);
	return s;
}

static int blobs_put(const struct files *f, struct list *l, struct safetensors_meta *m, uint32_t *n)
{
	for (uint32_t i = 0; i < l->n; i++) {
		const struct table_tensor *x = &f->target->tensor[l->tensor[i]];
		size_t bytes = sizeof SAFETENSORS_BLOB + strlen(l->x[i].name);
		char *key = x->flags & TENSOR_BLOB ? arena_alloc(&l->a, bytes) : NULL;

		if (!(x->flags & TENSOR_BLOB))
			continue;
		if (key)
			snprintf(key, bytes, SAFETENSORS_BLOB "%s", l->x[i].name);
		m[*n] = (struct safetensors_meta){ key, blob_text(x, &l->a) };
		if (!key || !m[(*n)++].value)
			return -ENOMEM;
	}
	return 0;
}

/* Second names of tensors that are stored once, as save_model has them. */
static void ties_put(const struct files *f, uint32_t file, struct safetensors_meta *m, uint32_t *n)
{
	for (uint32_t i = 0; i < f->ntie; i++)
		if (f->tie[i].file == TABLE_NONE || f->tie[i].file == file)
			m[(*n)++] = (struct safetensors_meta){ f->tie[i].alias, f->tie[i].key };
}

/* Would a reader take this attribute for a tie, is a tie called so, or does its own key begin like
 * that? Then its key in the file says that it is an attribute. NULL: no memory. */
static const char *attr_key(const struct files *f, struct list *l, const struct checkpoint_attr *x)
{
	size_t bytes = sizeof SAFETENSORS_ATTR + strlen(x->key);
	char *key;

	if (strncmp(x->key, SAFETENSORS_ATTR, sizeof SAFETENSORS_ATTR - 1) != 0 &&
	    strmap_find(&f->seconds, x->key, strlen(x->key)) == KEYMAP_NONE &&
	    (!has_name(f, x->value) || has_name(f, x->key) || MUTANT(ATTRIBUTE_READS_AS_TIE)))
		return x->key;
	key = arena_alloc(&l->a, bytes);
	if (key)
		snprintf(key, bytes, SAFETENSORS_ATTR "%s", x->key);
	return key;
}

/* What the checkpoint says of itself; "format" is what transformers wants. Attributes follow. */
static int meta_make(const struct files *f, uint32_t file, struct list *l,
		     struct safetensors_meta **ret, uint32_t *ret_n)
{
	const struct checkpoint *k = f->want->facts;
	struct safetensors_meta *m =
		arena_array(&l->a, (size_t)k->nattr + f->ntie + l->n + META_MAX, sizeof *m);
	const char *tool = f->want->tool ? f->want->tool : "";
	char *mesh = arena_alloc(&l->a, 1024), *number = arena_alloc(&l->a, 64);
	uint32_t n = 0, nown;

	if (!m || !mesh || !number)
		return -ENOMEM;
	m[n++] = (struct safetensors_meta){ "format", "pt" };
	m[n++] = (struct safetensors_meta){ "ckptd",
					    !strncmp(tool, "ckptctl ", 8) ? tool + 8 : tool };
	if (k->has & HAS_STEP) {
		snprintf(number, 32, "%llu", (unsigned long long)k->step);
		if (*k->job)
			m[n++] = (struct safetensors_meta){ "job", k->job };
		m[n++] = (struct safetensors_meta){ "step", number };
	}
	if (*k->id)
		m[n++] = (struct safetensors_meta){ "checkpoint", k->id };
	if (f->want->by_rank) {
		snprintf(number + 32, 32, "%u", rank_of(f, file));
		m[n++] = (struct safetensors_meta){ "mesh",
						    mesh_print(&f->target->mesh[0], mesh, 1024) };
		m[n++] = (struct safetensors_meta){ "rank", number + 32 };
		m[n++] = (struct safetensors_meta){ "keys", f->flat ? "name" : "component/name" };
		m[n] = (struct safetensors_meta){ SAFETENSORS_SHARDING, sharding_text(f, l) };
		if (!m[n++].value)
			return -ENOMEM;
	}
	nown = n;
	if (blobs_put(f, l, m, &n))
		return -ENOMEM;
	ties_put(f, file, m, &n);
	for (uint32_t i = 0; i < k->nattr; i++) {
		bool own = is_alias(k->attr[i].key);

		for (uint32_t j = 0; j < nown && !own; j++)
			own = !strcmp(m[j].key, k->attr[i].key);
		if (own)
			continue;
		m[n] = (struct safetensors_meta){ attr_key(f, l, &k->attr[i]), k->attr[i].value };
		if (!m[n++].key)
			return -ENOMEM;
	}
	*ret = m;
	*ret_n = n;
	return 0;
}

static int head_make(const struct files *f, uint32_t file, struct list *l,
		     struct safetensors_head *ret, struct ckpt_errlist *cannot,
		     struct ckpt_err *err)
{
	struct safetensors_meta *meta;
	uint32_t nmeta;
	int rc = meta_make(f, file, l, &meta, &nmeta);

	return rc ? no_memory(err)
		  : safetensors_make(l->x, l->n, meta, nmeta, PAYLOAD_ALIGN, &l->a, ret, cannot,
				     err);
}

/* --- which files --- */

/* Another name of a tensor that is held, and no tensor itself: its number, or TABLE_NONE. */
static uint32_t alias_of(const struct files *f, const struct checkpoint_attr *attr)
{
	const char *key = attr->key + sizeof SAFETENSORS_ALIAS - 1;
	const struct table *t = f->target;
	uint32_t of = is_alias(attr->key) ? table_find_key(t, attr->value) : TABLE_NONE, own;

	if (of == TABLE_NONE || t->tensor[of].cls == CKPT_SINK || !strchr(key, '/'))
		return TABLE_NONE;
	own = table_find_key(t, key);
	return own == TABLE_NONE || t->tensor[own].cls == CKPT_SINK ? of : TABLE_NONE;
}

/* As many to a file as it takes. */
static void file_cut(struct files *f, uint32_t *n, uint64_t *bytes, uint32_t tensor,
		     const char *alias)
{
	const struct table_tensor *x = &f->target->tensor[tensor];
	uint64_t more = x->numel * x->elem_bytes, limit = f->want->shard_bytes;

	if (*bytes && limit && !f->want->stem && more > limit - MIN(*bytes, limit)) {
		f->first[++f->n] = *n;
		*bytes = 0;
	}
	f->alias[*n] = alias;
	f->order[(*n)++] = tensor;
	*bytes += more;
}

/* The words of meta_make: a tensor's second name that is one of them is no metadata. */
static bool is_own_word(const char *key)
{
	static const char *const own[] = { "format",	 "ckptd",      "job",
					   "step",	 "checkpoint", "mesh",
					   "rank",	 "keys",       SAFETENSORS_SHARDING,
					   "DCP_VERSION" };

	for (uint32_t i = 0; i < ARRAY_LEN(own); i++)
		if (!strcmp(key, own[i]))
			return true;
	return !strncmp(key, "ckpt.", 5);
}

static bool is_once(const struct files *f, const char *alias)
{
	if (f->want->by_rank)
		return true;
	switch (f->want->tied) {
	case TIED_ONCE:
		return true;
	case TIED_COPY:
		return false;
	case TIED_AS_SAID:
		break;
	}
	return *alias == '/' && !MUTANT(TIED_ALWAYS_COPIED);
}

/* 1: it is one; 0: it is to be a copy; -ENOMEM. */
static int tie_add(struct files *f, uint32_t tensor, const char *alias)
{
	char component[CKPT_NAME_MAX + 1];
	struct table_tensor x = tensor_called(f, tensor, alias, component);
	struct tie *t = &f->tie[f->ntie];

	if (!is_once(f, alias))
		return 0;
	*t = (struct tie){ .tensor = tensor, .file = TABLE_NONE };
	t->alias = key_make(f, &x, x.rank, &f->arena);
	t->key = key_make(f, &f->target->tensor[tensor], x.rank, &f->arena);
	if (!t->alias || !t->key)
		return -ENOMEM;
	if (is_own_word(t->alias))
		return f->want->by_rank; /* there nothing is copied: the name is left out */
	f->flat |= f->want->by_rank && (!*x.component || is_bare(f, &x)) && strchr(x.name, '/');
	f->ntie++;
	return 1;
}

/* Which file has the tensor of each tie: it says so. */
static int ties_place(struct files *f)
{
	cleanup_free uint32_t *file = calloc((size_t)f->target->ntensor + 1, sizeof *file);

	for (uint32_t i = 0, at = 0; file && i < f->first[f->n]; i++) {
		at += i == f->first[at + 1];
		if (!f->alias[i])
			file[f->order[i]] = at;
	}
	for (uint32_t i = 0; file && i < f->ntie; i++)
		f->tie[i].file = file[f->tie[i].tensor];
	return file ? 0 : -ENOMEM;
}

/* Complete tensors, in the target's order, and then those that have a second name under it, where
 * load_state_dict and from_pretrained are to find it. */
static int files_cut(struct files *f)
{
	const struct checkpoint *k = f->want->facts;
	size_t most = (size_t)f->target->ntensor + k->nattr;
	uint64_t bytes = 0;
	uint32_t n = 0;

	f->order = calloc(most + 1, sizeof *f->order);
	f->alias = calloc(most + 1, sizeof *f->alias);
	f->first = calloc(most + 2, sizeof *f->first);
	f->tie = calloc((size_t)k->nattr + 1, sizeof *f->tie);
	if (!f->order || !f->first || !f->alias || !f->tie)
		return -ENOMEM;
	for (uint32_t i = 0; i < f->target->ntensor; i++)
		if (f->target->tensor[i].cls != CKPT_SINK && !f->want->by_rank)
			file_cut(f, &n, &bytes, i, NULL);
	for (uint32_t i = 0; i < k->nattr; i++) {
		const char *alias = k->attr[i].key + sizeof SAFETENSORS_ALIAS - 1;
		uint32_t of = alias_of(f, &k->attr[i]);
		int rc = of == TABLE_NONE ? 1 : tie_add(f, of, alias);

		if (rc < 0)
			return rc;
		if (!rc)
			file_cut(f, &n, &bytes, of, alias);
	}
	if (f->want->by_rank)
		return 0;
	f->first[++f->n] = n;
	return ties_place(f);
}

static int files_name(struct files *f)
{
	f->flat = f->want->by_rank && (f->want->bare || is_ambiguous(f));
	if (files_cut(f))
		return -ENOMEM;
	if (f->want->by_rank)
		f->n = f->want->nrank ? f->want->nrank : target_world(f->target);
	f->name = calloc(f->n, sizeof *f->name);
	for (uint32_t i = 0; i < f->n && f->name; i++)
		if (f->want->by_rank)
			snprintf(f->name[i], NAME_BYTES, "rank-%05u.safetensors", rank_of(f, i));
		else if (f->n == 1)
			strcpy(f->name[i], "model.safetensors");
		else
			snprintf(f->name[i], NAME_BYTES, "model-%05u-of-%05u.safetensors", i + 1,
				 f->n);
	return f->name ? 0 : -ENOMEM;
}

/* --- the index --- */

struct weight {
	const char *key;
	uint32_t file;
};

static int weight_compare(const void *va, const void *vb)
{
	const struct weight *x = va, *y = vb;

	return strcmp(x->key, y->key);
}

static void index_put(const struct files *f, const struct weight *w, uint32_t n, uint64_t bytes,
		      struct header_text *t)
{
	header_put_text(t, "{\n  \"metadata\": {\n    \"total_size\": ");
	header_put_number(t, bytes);
	header_put_text(t, "\n  },\n  \"weight_map\": {");
	for (uint32_t i = 0; i < n; i++) {
		header_put_text(t, i ? ",\n    " : "\n    ");
		header_put_string(t, w[i].key);
		header_put_text(t, ": ");
		header_put_string(t, f->name[w[i].file]);
	}
	header_put_text(t, "\n  }\n}\n");
}

/* As Hugging Face writes it: by name. */
static int index_make(struct files *f, struct arena *keep)
{
	uint32_t n = f->first[f->n];
	cleanup_free struct weight *w = calloc((size_t)n + 1, sizeof *w);
	struct header_text t = { 0 };
	struct arena a = { 0 };
	uint64_t bytes = 0;
	bool made = w != NULL;

	for (uint32_t i = 0, file = 0; i < n && made; i++) {
		char component[CKPT_NAME_MAX + 1];
		struct table_tensor x = tensor_held(f, i, component);

		file += i == f->first[file + 1];
		w[i] = (struct weight){ key_make(f, &x, 0, &a), file };
		made = w[i].key != NULL;
		bytes += x.numel * x.elem_bytes;
	}
	if (made) {
		qsort(w, n, sizeof *w, weight_compare);
		index_put(f, w, n, bytes, &t);
		f->index = arena_alloc(keep, t.len + 1);
		f->index_len = t.len;
		t = (struct header_text){ .at = (char *)(uintptr_t)f->index };
		if (f->index)
			index_put(f, w, n, bytes, &t);
	}
	arena_free(&a);
	return f->index ? 0 : -ENOMEM;
}

/* --- the sheet --- */

/* A tensor as the files have it: by rank, under its component; else under the flat name. id: of
 * list.id. */
static int tensor_add(const struct files *f, struct sheet *s, uint32_t id, uint32_t *number,
		      struct ckpt_err *err)
{
	uint32_t tensor = f->want->by_rank ? id : f->order[id];
	struct table_tensor x = f->target->tensor[tensor];
	char component[CKPT_NAME_MAX + 1];
	struct arena a = { 0 };
	int rc = 0;

	if (number[id] != TABLE_NONE)
		return 0;
	if (!f->want->by_rank)
		x = tensor_held(f, id, component);
	if (!f->want->by_rank || f->flat) {
		x.name = key_make(f, &x, x.rank, &a);
		x.component = "";
		rc = x.name ? 0 : no_memory(err);
	} else if (is_bare(f, &x)) {
		x.component = "";
	}
	x.of = "";
	x.role = CKPT_OTHER;
	x.cls = CKPT_STABLE;
	x.made = 0;
	x.flags &= TENSOR_BLOB;
	x.layout = TABLE_NONE;
	x.fp = 0;
	x.fp_known = false;
	if (!rc)
		rc = table_add_tensor(&s->table, &x, &number[id], err);
	if (!rc)
		s->origin[number[id]] = tensor;
	arena_free(&a);
	return rc;
}

static int place_compare(const void *va, const void *vb, void *arg)
{
	const struct safetensors_tensor *x = arg;
	uint64_t a = x[*(const uint32_t *)va].off, b = x[*(const uint32_t *)vb].off;

	return (a > b) - (a < b);
}

/* Tensors and pieces, as they lie in the file. */
static int pieces_add(const struct files *f, struct sheet *s, uint32_t file, const struct list *l,
		      uint32_t *number, struct ckpt_err *err)
{
	cleanup_free uint32_t *at = calloc((size_t)l->n + 1, sizeof *at);
	int rc = at ? 0 : no_memory(err);

	for (uint32_t i = 0; i < l->n && at; i++)
		at[i] = i;
	if (at)
		qsort_r(at, l->n, sizeof *at, place_compare, l->x);
	for (uint32_t i = 0; i < l->n && !rc; i++) {
		struct table_piece p = { .rank = f->want->by_rank ? rank_of(f, file) : 0,
					 .place = file,
					 .set = l->set[at[i]],
					 .off = l->x[at[i]].off };

		rc = tensor_add(f, s, l->id[at[i]], number, err);
		p.tensor = number[l->id[at[i]]];
		if (!rc)
			rc = table_add_piece(&s->table, &p, err);
	}
	return rc;
}

static int file_add(const struct files *f, struct sheet *s, uint32_t file, uint32_t *number,
		    struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	struct sheet_file *to = &s->file[file];
	struct sheet_run *run = &s->run[file];
	struct safetensors_head head = { 0 };
	struct table_place place;
	struct list l;
	int rc = list_make(f, file, &l, err);

	if (!rc)
		rc = head_make(f, file, &l, &head, cannot, err);
	if (!rc) {
		*to = (struct sheet_file){ .name = f->want->stem ? f->want->stem : f->name[file],
					   .bytes = head.file_bytes,
					   .ntensor = l.n };
		*run = (struct sheet_run){ .file = file, .len = head.len };
		place = (struct table_place){ to->name,
					      f->want->by_rank ? rank_of(f, file) : TABLE_NONE,
					      head.file_bytes };
		rc = table_add_place(&s->table, &place, NULL, err);
	}
	if (!rc)
		rc = pieces_add(f, s, file, &l, number, err);
	list_free(&l);
	return rc;
}

static int index_add(struct files *f, struct sheet *s, struct ckpt_err *err)
{
	struct sheet_file *to = &s->file[f->n];
	struct sheet_run *run = &s->run[f->n];

	if (index_make(f, &s->table.arena))
		return no_memory(err);
	*to = (struct sheet_file){ .name = SAFETENSORS_INDEX, .bytes = f->index_len };
	*run = (struct sheet_run){ .file = f->n, .len = f->index_len };
	s->nfile++;
	s->nrun++;
	return table_add_place(&s->table, &(struct table_place){ SAFETENSORS_INDEX, TABLE_NONE, 0 },
			       NULL, err);
}

static int sheet_make(struct files *f, struct sheet *s, struct ckpt_errlist *cannot,
		      struct ckpt_err *err)
{
	size_t most = (size_t)f->target->ntensor + f->want->facts->nattr + 1;
	cleanup_free uint32_t *number = NULL;
	struct arena *a = &s->table.arena;
	int rc = 0;

	number = malloc(most * sizeof *number);
	s->origin = arena_array(a, most, sizeof *s->origin);
	s->file = arena_array(a, (size_t)f->n + 1, sizeof *s->file);
	s->run = arena_array(a, (size_t)f->n + 1, sizeof *s->run);
	if (!number || !s->origin || !s->file || !s->run ||
	    table_reserve(&s->table, f->target->ntensor, f->target->ntensor))
		return no_memory(err);
	memset(number, 0xff, most * sizeof *number);
	s->nfile = s->nrun = f->n;
	for (uint32_t i = 0; i < f->n && !rc; i++)
		rc = file_add(f, s, i, number, cannot, err);
	if (!rc && !f->want->by_rank && f->n > 1)
		rc = index_add(f, s, err);
	return rc ? rc : table_seal(&s->table, err);
}

static int name_check(struct files *f, const char *key, bool repeats, struct ckpt_errlist *cannot)
{
	int rc = key ? strmap_add(&f->names, &f->arena, key, strlen(key), &(uint32_t){ 0 })
		     : -ENOMEM;

	if (!rc && !repeats)
		ckpt_errlist_add(cannot, "tensor %.300s: two or more have this name in the files",
				 key);
	return rc;
}

/* Finds two tensors that would have one name in the files; tensors of different components get
 * different prefixes. The second name of a tensor that is stored once counts, too, although no
 * tensor is stored under it. */
static int names_check(struct files *f, struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	uint32_t n = f->want->by_rank ? f->target->ntensor : f->first[f->n];
	uint64_t before = cannot->n;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc >= 0; i++) {
		char component[CKPT_NAME_MAX + 1];
		struct table_tensor x =
			f->want->by_rank ? f->target->tensor[i] : tensor_held(f, i, component);

		if (x.cls == CKPT_SINK)
			continue;
		rc = name_check(f, key_make(f, &x, f->want->by_rank ? x.rank : 0, &f->arena),
				f->want->by_rank && x.rank != TABLE_NONE, cannot);
	}
	for (uint32_t i = 0; i < f->ntie && rc >= 0; i++) {
		const char *key = f->tie[i].alias;

		rc = strmap_add(&f->seconds, &f->arena, key, strlen(key), &(uint32_t){ 0 });
		if (rc >= 0 && (!rc || has_name(f, key)))
			ckpt_errlist_add(cannot,
					 "tensor %.300s: two or more have this name in the files",
					 key);
	}
	if (rc < 0)
		return no_memory(err);
	return cannot->n == before
		       ? 0
		       : ckpt_error(
				 err, -EMEDIUMTYPE,
				 "%llu tensors have a name that another one has: a view (--view) "
				 "can rename them",
				 (unsigned long long)(cannot->n - before));
}

bool safetensors_holds(const struct table *t, uint32_t tensor, char why[FORMAT_WHY])
{
	const struct table_tensor *x = &t->tensor[tensor];

	if (!safetensors_dtype(x->dtype)) {
		snprintf(why, FORMAT_WHY, "the format has no dtype %s", dtype_name(x->dtype));
		return false;
	}
	if (!json_is_utf8(x->component) || !json_is_utf8(x->name)) {
		snprintf(why, FORMAT_WHY, "its name is no UTF-8");
		return false;
	}
	if (dtype_values(x->dtype) > 1 && !x->ndim) {
		snprintf(why, FORMAT_WHY, "%s without a dimension is half a byte",
			 dtype_name(x->dtype));
		return false;
	}
	return true;
}

/* What makes no sense of this format is refused, not passed over. */
static int want_check(const struct format_want *w, struct ckpt_err *err)
{
	if (w->by_rank && w->stem && w->nrank != 1)
		return ckpt_error(err, -EINVAL,
				  "the files of ranks are a directory, not the file %s", w->stem);
	if (w->shard_bytes && w->by_rank)
		return ckpt_error(err, -EINVAL,
				  "an index of shards lists complete tensors: what a rank holds is "
				  "one file, as large as the mesh makes it");
	if (w->shard_bytes && w->stem)
		return ckpt_error(err, -EINVAL,
				  "shards are several files with an index, a directory: not the "
				  "file %s",
				  w->stem);
	return 0;
}

bool safetensors_says(const struct checkpoint_attr *attr, char why[FORMAT_WHY])
{
	snprintf(why, FORMAT_WHY, "it is no UTF-8");
	return json_is_utf8(attr->key) && json_is_utf8(attr->value);
}

int safetensors_sheet(const struct table *target, const struct format_want *want,
		      struct sheet **ret, struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	struct ckpt_errlist own = { .code = -EMEDIUMTYPE };
	struct sheet *s = calloc(1, sizeof *s);
	struct files *f = calloc(1, sizeof *f);
	int rc;

	*ret = NULL;
	if (!s || !f) {
		free(s);
		free(f);
		return no_memory(err);
	}
	*f = (struct files){ .target = target, .want = want };
	s->format = &format_safetensors;
	s->priv = f;
	rc = want_check(want, err);
	if (!rc && files_name(f))
		rc = no_memory(err);
	if (!rc)
		rc = names_check(f, cannot ? cannot : &own, err);
	if (!rc)
		rc = sheet_make(f, s, cannot ? cannot : &own, err);
	ckpt_errlist_free(&own);
	if (rc)
		sheet_free(s);
	else
		*ret = s;
	return rc;
}

void safetensors_sheet_end(struct sheet *s)
{
	struct files *f = s->priv;

	arena_free(&f->arena);
	free(f->tie);
	free(f->order);
	free(f->alias);
	free(f->first);
	free(f->name);
	free(f);
}

int safetensors_fill(const struct sheet *s, uint32_t run, const struct sheet_state *state,
		     struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		     struct ckpt_err *err)
{
	const struct files *f = s->priv;
	struct safetensors_head head = { 0 };
	struct list l;
	int rc;

	(void)state;
	*ret_seal = (struct hash128){ 0 };
	if (run == f->n) {
		*ret = f->index;
		*ret_len = f->index_len;
		return 0;
	}
	rc = list_make(f, run, &l, err);
	if (!rc)
		rc = head_make(f, run, &l, &head, NULL, err);
	*ret = rc ? NULL : arena_dup(a, head.bytes, head.len);
	*ret_len = head.len;
	list_free(&l);
	return rc || *ret ? rc : no_memory(err);
}
