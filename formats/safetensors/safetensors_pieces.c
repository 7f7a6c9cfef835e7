/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_pieces.c - a tensor of one file as a tensor, or a part of one, of the checkpoint.
 * Called by safetensors_read.c for each entry of each header. Invariant: a piece's set has as many
 * elements as the file has for it, and equal sets are made once.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "formats/safetensors/safetensors_reading.h"
#include <stdio.h>

/* --- sets --- */

/* The number of a key, new or not; *ret_new: its set is yet to be made. */
static int set_number(struct reading *r, const uint64_t *key, size_t bytes, uint32_t *ret,
		      bool *ret_new)
{
	uint64_t *copy;
	int rc;

	*ret = strmap_find(&r->sets.map, key, bytes);
	*ret_new = *ret == KEYMAP_NONE;
	if (!*ret_new)
		return 0;
	copy = arena_dup(&r->tmp, key, bytes);
	rc = copy ? strmap_add(&r->sets.map, &r->tmp, copy, bytes, ret) : -ENOMEM;
	if (rc >= 0)
		rc = ARRAY_GROW(r->sets.set, *ret, r->sets.cap) ? 0 : -ENOMEM;
	return rc;
}

static int box_find(struct reading *r, const struct header_tensor *x, const uint64_t *at,
		    uint32_t *ret)
{
	uint64_t key[2 * CKPT_DIMS_MAX + 1] = { x->ndim };
	bool new;
	int rc;

	for (uint32_t d = 0; d < x->ndim; d++) {
		key[1 + d] = at ? at[d] : 0;
		key[1 + x->ndim + d] = x->shape[d];
	}
	rc = set_number(r, key, (2 * x->ndim + 1) * sizeof *key, ret, &new);
	return rc || !new ? rc
			  : indexset_box(x->ndim, &key[1], &key[1 + x->ndim], &r->t->arena,
					 &r->sets.set[*ret]);
}

/* A share that is no box. Its key are its lists of indices. */
static int share_number(struct reading *r, const struct indexset *s, uint32_t *ret)
{
	uint64_t *key, n = 1, at = 0;
	bool new;
	int rc;

	for (uint32_t d = 0; d < s->ndim; d++)
		n += 1 + 4 * (uint64_t)s->dim[d].n;
	key = arena_array(&r->tmp, n, sizeof *key);
	if (!key)
		return -ENOMEM;
	key[at++] = UINT64_MAX - s->ndim; /* no box has this one */
	for (uint32_t d = 0; d < s->ndim; d++) {
		key[at++] = s->dim[d].n;
		memcpy(&key[at], s->dim[d].run, s->dim[d].n * sizeof *s->dim[d].run);
		at += 4 * (uint64_t)s->dim[d].n;
	}
	rc = set_number(r, key, n * sizeof *key, ret, &new);
	return rc || !new ? rc : indexset_copy(s, &r->t->arena, &r->sets.set[*ret]);
}

/* What the placements of an export by rank say that the file has. */
static int share_find(struct reading *r, const struct header_tensor *x, const struct shard *o,
		      uint32_t *ret, struct json *j, const struct json_token *tok)
{
	uint32_t coord[CKPT_DIMS_MAX];
	struct ckpt_err why = { 0 };
	struct indexset set;
	struct layout l;
	struct mesh m;
	int rc;

	if (!r->mesh || o->nshape != x->ndim || r->rank > UINT32_MAX)
		return json_fail(j, tok, "tensor %.200s has placements without a mesh or a shape",
				 x->name);
	rc = mesh_parse(r->mesh, &r->file_tmp, &m, &why);
	if (!rc)
		rc = layout_parse(o->placements, &m, &r->file_tmp, &l, &why);
	if (!rc)
		rc = layout_check(&m, &l, x->ndim, &why);
	if (!rc && !mesh_coord(&m, (uint32_t)r->rank, coord))
		rc = ckpt_error(&why, -EINVAL, "the mesh has no such rank");
	if (!rc)
		rc = layout_share(&m, &l, x->ndim, o->shape, coord, &r->file_tmp, &set);
	for (uint32_t d = 0; d < x->ndim && !rc; d++)
		if (set.dim[d].total != x->shape[d])
			rc = ckpt_error(&why, -EINVAL, "the share has another shape");
	if (!rc)
		rc = share_number(r, &set, ret);
	if (rc == -ENOMEM)
		return ckpt_error(r->err, rc, "out of memory for the pieces");
	return rc ? json_fail(j, tok, "tensor %.200s: its placements %.100s: %.200s", x->name,
			      o->placements, why.msg)
		  : 0;
}

/* --- one tensor of a file --- */

/* What the index says of the tensor must be so. */
static int index_check(struct reading *r, const struct header_tensor *x, struct json *j,
		       const struct json_token *at)
{
	uint32_t n = strmap_find(&r->index.tensor, x->name, strlen(x->name));

	if (!r->has_index || MUTANT(SAFETENSORS_INDEX_UNREAD))
		return 0;
	if (n == KEYMAP_NONE)
		return json_fail(j, at, "tensor %.200s is in %s, but not in the index", x->name,
				 r->name);
	if (r->index.of[n] != r->file)
		return json_fail(
			j, at, "tensor %.200s is in %s, but the index says that it is in %s",
			x->name, r->name, (const char *)r->index.file.key[r->index.of[n]].bytes);
	r->seen[n] = true;
	return 0;
}

/* One tensor of a file as a part of a tensor of the checkpoint. */
struct part {
	const struct header_tensor *x;
	const char *component, *name;
	bool blob;
	uint32_t media, rank;	   /* of a blob; rank: TABLE_NONE */
	const struct shard *shard; /* NULL: nothing is said of it */
	const uint64_t *at;	   /* where it begins; NULL: it is all of the tensor, or a share */
	struct json *j;
	const struct json_token *tok;
};

/* Another file's part of a tensor that is known. */
static int tensor_join(struct reading *r, uint32_t id, const struct part *p)
{
	const uint64_t *all = p->at ? NULL : p->shard ? p->shard->shape : NULL;
	const char *name = p->x->name, *other = r->c->file[r->last[id]].name;
	struct table_tensor *y = &r->t->tensor[id];
	uint64_t *shape = (uint64_t *)(uintptr_t)y->shape, end;

	if (r->last[id] == r->file)
		return json_fail(p->j, p->tok, "tensor %.200s is there twice", name);
	if (!p->at && !all)
		return json_fail(
			p->j, p->tok,
			"tensor %.200s is in %s too, and no sharding info says which part of "
			"it each of them has; name one file",
			name, other);
	if (y->dtype != p->x->dtype || y->ndim != p->x->ndim)
		return json_fail(
			p->j, p->tok,
			"tensor %.200s is %s with %u dimensions, and in %s it is %s with %u", name,
			dtype_name(p->x->dtype), p->x->ndim, other, dtype_name(y->dtype), y->ndim);
	for (uint32_t d = 0; d < p->x->ndim; d++) {
		if (all)
			end = all[d];
		else if (ckpt_add(p->at[d], p->x->shape[d], &end))
			end = UINT64_MAX;
		shape[d] = MAX(shape[d], end);
	}
	if (table_shape_count(y))
		return json_fail(p->j, p->tok, "tensor %.200s has more bytes than can be counted",
				 name);
	return 0;
}

static int tensor_new(struct reading *r, const struct part *p, uint32_t *ret)
{
	uint64_t shape[CKPT_DIMS_MAX];
	struct table_tensor y = { .component = p->component,
				  .of = "",
				  .dtype = p->x->dtype,
				  .ndim = p->x->ndim,
				  .shape = shape,
				  .layout = TABLE_NONE,
				  .flags = p->blob ? TENSOR_BLOB : 0,
				  .media = p->media,
				  .rank = p->rank };
	struct ckpt_err why = { 0 };
	int rc;

	for (uint32_t d = 0; d < p->x->ndim; d++)
		if (!p->at && p->shard)
			shape[d] = p->shard->shape[d];
		else if (ckpt_add(p->x->shape[d], p->at ? p->at[d] : 0, &shape[d]))
			shape[d] = UINT64_MAX;
	y.name = arena_str(&r->t->arena, p->name);
	if (!y.name)
		return ckpt_error(r->err, -ENOMEM, "out of memory for the tensors");
	rc = table_put_tensor(r->t, &y, ret, &why);
	if (rc == -ENOMEM)
		return ckpt_error(r->err, rc, "%s", why.msg);
	if (!rc)
		return 0;
	return json_refuse(p->j, p->tok,
			   rc == -ENAMETOOLONG || rc == -E2BIG ? -EPROTONOSUPPORT : -EPROTO, "%s",
			   why.msg);
}

/* The same elements again, of a rank that has a copy? */
static int is_replica(struct reading *r, uint32_t id, uint32_t set)
{
	uint32_t *key = arena_dup(&r->tmp, (const uint32_t[]){ id, set }, 2 * sizeof *key);
	int rc = key ? strmap_add(&r->replicas, &r->tmp, key, 2 * sizeof *key, &(uint32_t){ 0 })
		     : -ENOMEM;

	return rc < 0 ? rc : !rc;
}

static int piece_add(struct reading *r, uint32_t id, const struct part *p)
{
	struct table_piece piece = { .tensor = id,
				     .rank = r->c->file[r->file].rank,
				     .place = r->file,
				     .off = r->data_off + p->x->begin };
	uint32_t set;
	int rc;

	if (p->x->begin == p->x->end)
		return 0;
	if (p->shard && !p->at) {
		rc = share_find(r, p->x, p->shard, &set, p->j, p->tok);
		if (rc)
			return rc;
	} else {
		rc = box_find(r, p->x, p->at, &set);
	}
	if (!rc && (p->at || p->shard))
		rc = is_replica(r, id, set);
	if (rc < 0)
		return ckpt_error(r->err, rc, "out of memory for the pieces");
	if (rc)
		return 0;
	piece.set = r->sets.set[set];
	return table_put_piece(r->t, &piece, r->err);
}

/* "component/name" of a rank's file; else all is the name. NULL: out of memory. */
static const char *component_of(struct reading *r, const char *name)
{
	const char *slash = r->slashed ? strchr(name, '/') : NULL;
	size_t len = slash ? (size_t)(slash - name) : 0;
	uint32_t n = strmap_find(&r->components, name, len);
	char *s;

	if (n != KEYMAP_NONE)
		return r->components.key[n].bytes;
	s = arena_alloc(&r->t->arena, len + 1);
	if (!s || strmap_add(&r->components, &r->tmp, memcpy(s, name, len), len, &n) < 0)
		return NULL;
	return s;
}

/* "json", or "json, rank 3"? */
static bool blob_parse(struct part *p, const char *text)
{
	size_t n = strcspn(text, ",");
	const char *word;
	char *end;

	for (p->media = 0; p->media <= CKPT_MEDIA_NPY; p->media++) {
		word = media_name(p->media);
		if (strlen(word) == n && !strncmp(text, word, n))
			break;
	}
	text += n;
	p->rank = TABLE_NONE;
	if (p->media > CKPT_MEDIA_NPY || !*text)
		return p->media <= CKPT_MEDIA_NPY;
	n = sizeof SAFETENSORS_BLOB_RANK - 1;
	if (strncmp(text, SAFETENSORS_BLOB_RANK, n) || text[n] < '0' || text[n] > '9')
		return false;
	errno = 0;
	p->rank = (uint32_t)MIN(strtoull(text + n, &end, 10), (unsigned long long)UINT32_MAX);
	return !*end && p->rank < TABLE_RANKS_MAX;
}

/* A rank's blob in another rank's file says whose it is behind its name. */
static int blob_take(struct reading *r, struct part *p, const char *text)
{
	char *name = (char *)(uintptr_t)p->name, behind[32];
	size_t n = strlen(name), m;

	p->blob = true;
	if (!blob_parse(p, text))
		return json_fail(p->j, p->tok, "tensor %.200s is said to be a blob of type %.100s",
				 name, text);
	if (p->x->dtype != CKPT_U8 || p->x->ndim != 1)
		return json_fail(p->j, p->tok,
				 "tensor %.200s is said to be a blob, but it is no U8 of one "
				 "dimension",
				 name);
	m = (size_t)snprintf(behind, sizeof behind, "/rank-%05u", p->rank);
	if (p->rank != r->rank && n > m && !strcmp(name + n - m, behind))
		name[n - m] = 0;
	return 0;
}

static int part_make(struct reading *r, struct part *p)
{
	static const uint64_t zeros[CKPT_DIMS_MAX];
	const struct header_tensor *x = p->x;
	size_t len = strlen(x->name);
	uint32_t n = r->sharded ? strmap_find(&r->sharding.tensor, x->name, len) : KEYMAP_NONE;
	uint32_t blob = strmap_find(&r->blobs.map, x->name, len);
	int rc;

	p->component = component_of(r, x->name);
	if (!p->component)
		return ckpt_error(r->err, -ENOMEM, "out of memory for the tensors");
	p->name = x->name + (*p->component ? strlen(p->component) + 1 : 0);
	p->rank = TABLE_NONE;
	/* DCP lists all of a file's tensors but those that are complete in it. */
	p->at = r->sharded ? zeros : NULL;
	rc = blob == KEYMAP_NONE ? 0 : blob_take(r, p, r->blobs.value[blob]);
	if (rc || n == KEYMAP_NONE)
		return rc;
	p->shard = &r->sharding.of[n];
	p->at = p->shard->at;
	if (p->at ? p->shard->n != x->ndim : p->shard->nshape != x->ndim)
		return json_fail(
			p->j, p->tok,
			"tensor %.200s has %u dimensions, and %u offsets in " SAFETENSORS_SHARDING,
			x->name, x->ndim, p->at ? p->shard->n : p->shard->nshape);
	return 0;
}

int reading_tensor(void *arg, const struct header_tensor *x, struct json *j,
		   const struct json_token *tok)
{
	struct part p = { .x = x, .j = j, .tok = tok };
	struct reading *r = arg;
	uint32_t id;
	int rc = index_check(r, x, j, tok);

	if (!rc)
		rc = part_make(r, &p);
	if (rc)
		return rc;
	id = table_find(r->t, p.component, p.name, p.rank);
	rc = id == TABLE_NONE ? tensor_new(r, &p, &id) : tensor_join(r, id, &p);
	if (rc)
		return rc;
	if (!ARRAY_GROW(r->last, id, r->last_cap))
		return ckpt_error(r->err, -ENOMEM, "out of memory for the tensors");
	r->last[id] = r->file;
	return piece_add(r, id, &p);
}
