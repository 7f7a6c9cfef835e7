/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_table.c - what a rank writes and where it lies: the raw space. Called by the daemon when a
 * declaration is sealed, and by the reader, which compares.
 * Invariant: everything follows from the rank's own declaration, so that two daemons give the same
 * tensor the same bytes of the raw space.
 */
#include "ckpt/base/mutant.h"
#include "formats/native/native.h"
#include "formats/native/native_impl.h"
#include <stdio.h>

#define CHUNK_BYTES ((uint64_t)1 << CHUNK_LOG2)

/* --- which pieces --- */

struct build {
	const struct table *decl;
	struct table *t;
	uint32_t rank;
	enum native_share share;
	uint32_t *map;		 /* [decl->ntensor] its number in t; TABLE_NONE: not in it */
	uint32_t *mesh, *layout; /* [decl->nmesh], [decl->nlayout] likewise */
	struct where {
		bool known, inside;
		uint32_t at[CKPT_DIMS_MAX];
	} * coord; /* [decl->nmesh] of the rank */
	struct ckpt_errlist *list;
	struct ckpt_err *err;
};

/* The order of the raw space: (component, dtype) groups by their first tensor, and behind all
 * others those of class derived. */
struct order {
	uint32_t tensor, group;
	bool derived;
};

static bool is_derived(const struct table_tensor *x)
{
	return x->cls == CKPT_DERIVED;
}

static int by_group_key(const void *va, const void *vb, void *decl)
{
	const struct order *a = va, *b = vb;
	const struct table_tensor *x = &((const struct table *)decl)->tensor[a->tensor];
	const struct table_tensor *y = &((const struct table *)decl)->tensor[b->tensor];
	int r = strcmp(x->component, y->component);

	if (!r)
		r = (x->dtype > y->dtype) - (x->dtype < y->dtype);
	if (!r)
		r = is_derived(x) - is_derived(y);
	return r ? r : (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

static int by_group(const void *va, const void *vb)
{
	const struct order *a = va, *b = vb;

	if (a->derived != b->derived)
		return a->derived ? 1 : -1;
	if (a->group != b->group)
		return a->group < b->group ? -1 : 1;
	return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

/* order[decl->ntensor]; a group is called by its first tensor. */
static void order_make(const struct table *decl, struct order *order)
{
	for (uint32_t i = 0; i < decl->ntensor; i++)
		order[i].tensor = i;
	qsort_r(order, decl->ntensor, sizeof *order, by_group_key, (void *)decl);
	for (uint32_t i = 0; i < decl->ntensor; i++) {
		const struct table_tensor *x = &decl->tensor[order[i].tensor], *y = x;

		if (i)
			y = &decl->tensor[order[i - 1].tensor];
		order[i].derived = is_derived(x);
		if (i && x->dtype == y->dtype && is_derived(x) == is_derived(y) &&
		    !strcmp(x->component, y->component))
			order[i].group = order[i - 1].group;
		else
			order[i].group = order[i].tensor;
	}
	qsort(order, decl->ntensor, sizeof *order, by_group);
}

int native_raw_order(const struct table *decl, uint32_t *ret_tensor)
{
	cleanup_free struct order *order = calloc((size_t)decl->ntensor + 1, sizeof *order);

	if (!order)
		return -ENOMEM;
	order_make(decl, order);
	for (uint32_t i = 0; i < decl->ntensor; i++)
		ret_tensor[i] = order[i].tensor;
	return 0;
}

/* Where the rank sits in a mesh; NULL: nowhere. */
static const uint32_t *coord_of(struct build *b, uint32_t mesh)
{
	struct where *w = &b->coord[mesh];

	if (!w->known) {
		w->known = true;
		w->inside = mesh_coord(&b->decl->mesh[mesh], b->rank, w->at);
	}
	return w->inside ? w->at : NULL;
}

/* A blob's length may differ from step to step and from rank to rank: only its owner speaks of it.
 */
static bool blob_is_mine(const struct build *b, const struct table_tensor *x)
{
	uint32_t world = b->decl->nmesh ? b->decl->mesh[0].nrank : 0;

	if (x->rank == TABLE_NONE)
		return b->rank == 0;
	return x->rank == b->rank || (world && x->rank >= world && x->rank % world == b->rank);
}

/* All of a blob, or nothing of a tensor. */
static int blob_box(const struct table_tensor *x, bool mine, struct arena *a, struct indexset *ret)
{
	static const uint64_t zero[CKPT_DIMS_MAX];

	if (!mine) {
		*ret = (struct indexset){ .ndim = x->ndim };
		return 0;
	}
	return indexset_box(x->ndim, zero, x->shape, a, ret);
}

/* What the rank has to hold of a tensor, and what of that it writes. */
static int tensor_shares(struct build *b, const struct table_tensor *x, struct arena *a,
			 struct indexset *ret_share, struct indexset *ret_owned)
{
	const struct table *d = b->decl;
	const struct table_tensor *as = table_owned_as(d, x);
	const uint32_t *coord;
	const struct layout *l;
	int r;

	if (x->layout == TABLE_NONE) {
		r = blob_box(x, true, a, ret_share);
		return r ? r : blob_box(x, true, a, ret_owned);
	}
	l = &d->layout[x->layout];
	coord = coord_of(b, l->mesh);
	if (!coord) {
		blob_box(x, false, a, ret_share);
		return blob_box(x, false, a, ret_owned);
	}
	r = layout_share(&d->mesh[l->mesh], l, x->ndim, x->shape, coord, a, ret_share);
	if (!r)
		r = layout_owned(&d->mesh[l->mesh], l, x->ndim, x->shape, coord, as->elem_bytes,
				 as->component, as->name, a, ret_owned);
	return r;
}

/* A blob's bytes come by value, and may differ from step to step. */
static bool is_const(const struct table_tensor *x)
{
	return x->cls == CKPT_CONST && !(x->flags & TENSOR_BLOB);
}

/* What the rank writes of a box that it holds: numel 0: nothing. */
static int box_owned(struct build *b, const struct table_tensor *x, const struct indexset *box,
		     struct arena *a, struct indexset *ret)
{
	const struct table_tensor *as = table_owned_as(b->decl, x);
	const struct mesh *m;
	const uint32_t *coord;
	int r;

	*ret = *box;
	if (x->layout == TABLE_NONE)
		return 0;
	m = &b->decl->mesh[b->decl->layout[x->layout].mesh];
	coord = coord_of(b, b->decl->layout[x->layout].mesh);
	if (!coord) {
		*ret = (struct indexset){ .ndim = x->ndim };
		return 0;
	}
	r = layout_owned_box(m, box, x->shape, coord, as->elem_bytes, as->component, as->name, a,
			     ret);
	if (MUTANT(BOXES_WRITTEN_BY_ALL))
		*ret = *box;
	return r;
}

static int owns_some(struct build *b, uint32_t tensor, bool *ret)
{
	const struct table_tensor *x = &b->decl->tensor[tensor];
	struct indexset share, owned = { .ndim = 0 };
	struct arena a = { 0 };
	int r = 0;

	if (table_is_boxes(b->decl, x))
		for (uint32_t i = b->decl->first[tensor];
		     i < b->decl->first[tensor + 1] && !r && !owned.numel; i++)
			r = box_owned(b, x, &b->decl->piece[i].set, &a, &owned);
	else
		r = tensor_shares(b, x, &a, &share, &owned);
	*ret = r == 0 && owned.numel;
	arena_free(&a);
	return r == -ENOMEM ? ckpt_error(b->err, r, "out of memory for the raw space of rank %u",
					 b->rank)
			    : 0; /* what else is wrong is wrong in the main part, too */
}

/* A main part lists what its rank declared, any other one what it has pieces of. */
static int is_listed(struct build *b, uint32_t tensor, bool *ret)
{
	const struct table_tensor *x = &b->decl->tensor[tensor];

	*ret = b->share == NATIVE_CONST
		       ? is_const(x)
		       : x->cls != CKPT_SINK && (!(x->flags & TENSOR_BLOB) || blob_is_mine(b, x));
	return *ret && b->share == NATIVE_CONST ? owns_some(b, tensor, ret) : 0;
}

static int tensors_copy(struct build *b)
{
	const struct table *d = b->decl;
	int r = table_reserve(b->t, d->ntensor, d->npiece);

	if (r < 0)
		return ckpt_error(b->err, r, "out of memory for the raw space of rank %u", b->rank);
	table_boxes_numbers(d, b->mesh, b->layout);
	for (uint32_t i = 0; !r && i < d->nmesh; i++)
		if (b->mesh[i] != TABLE_NONE)
			r = table_add_mesh(b->t, &d->mesh[i], NULL, b->err);
	for (uint32_t i = 0; !r && i < d->nlayout; i++) {
		struct layout l = d->layout[i];

		l.mesh = b->mesh[l.mesh];
		if (b->layout[i] != TABLE_NONE)
			r = table_add_layout(b->t, &l, NULL, b->err);
	}
	for (uint32_t i = 0; !r && i < d->ntensor; i++) {
		struct table_tensor x = d->tensor[i];
		bool listed;

		b->map[i] = TABLE_NONE;
		x.fp = 0;
		x.fp_known = false;
		if (x.layout != TABLE_NONE)
			x.layout = b->layout[x.layout];
		r = is_listed(b, i, &listed);
		if (!r && listed)
			r = table_add_tensor(b->t, &x, &b->map[i], b->err);
	}
	return r;
}

/* Behind what lies there already. */
static int piece_place(struct build *b, uint32_t tensor, const struct indexset *owned,
		       uint64_t *end)
{
	struct table_piece p = { .tensor = b->map[tensor], .rank = b->rank, .set = *owned };
	uint64_t bytes = owned->numel * b->decl->tensor[tensor].elem_bytes;

	if (!bytes || (b->share == NATIVE_MAIN && is_const(&b->decl->tensor[tensor])))
		return 0;
	p.off = align_up(*end, bytes >= NATIVE_BIG ? CHUNK_BYTES : NATIVE_PACK);
	if (bytes > NATIVE_PART_BYTES_MAX || p.off + bytes > NATIVE_PART_BYTES_MAX)
		return ckpt_error(b->err, -EFBIG,
				  "rank %u owns more than %llu bytes: use more ranks", b->rank,
				  (unsigned long long)NATIVE_PART_BYTES_MAX);
	*end = p.off + bytes;
	return table_add_piece(b->t, &p, b->err);
}

static int share_fails(const struct build *b, const struct table_tensor *x, int r)
{
	char label[160];

	return ckpt_error(b->err, r, "%s: its share cannot be computed: %s",
			  table_tensor_print(x, label, sizeof label),
			  r == -ENOMEM ? "out of memory" : "it falls into too many runs");
}

/* By their first elements: not by where they lie in the memory of the rank. */
static int by_first(const void *va, const void *vb)
{
	return indexset_order(*(const struct indexset *const *)va,
			      *(const struct indexset *const *)vb);
}

static int box_place(struct build *b, uint32_t tensor, const struct indexset *box, uint64_t *end)
{
	const struct table_tensor *x = &b->decl->tensor[tensor];
	struct indexset owned;
	struct arena a = { 0 };
	int r = box_owned(b, x, box, &a, &owned);

	r = r < 0 ? share_fails(b, x, r) : piece_place(b, tensor, &owned, end);
	arena_free(&a);
	return r;
}

static void boxes_check(struct build *b, uint32_t tensor)
{
	const struct table_tensor *x = &b->decl->tensor[tensor];
	const struct indexset nothing = { .ndim = x->ndim };
	uint32_t mesh = x->layout == TABLE_NONE ? TABLE_NONE : b->decl->layout[x->layout].mesh;
	char label[160];

	if (mesh != TABLE_NONE && !coord_of(b, mesh) &&
	    b->decl->first[tensor] != b->decl->first[tensor + 1])
		ckpt_errlist_add(b->list, "%s: it has boxes on a mesh that does not have rank %u",
				 table_tensor_print(x, label, sizeof label), b->rank);
	table_covers(b->decl, tensor, &nothing, b->list);
}

/* Each box, or what the rank owns of it, is a piece. */
static int boxes_place(struct build *b, uint32_t tensor, uint64_t *end)
{
	uint32_t first = b->decl->first[tensor], n = b->decl->first[tensor + 1] - first;
	cleanup_free const struct indexset **box = calloc((size_t)n + 1, sizeof *box);
	int r = 0;

	if (!box)
		return share_fails(b, &b->decl->tensor[tensor], -ENOMEM);
	for (uint32_t i = 0; i < n; i++)
		box[i] = &b->decl->piece[first + i].set;
	qsort(box, n, sizeof *box, by_first);
	for (uint32_t i = 0; i < n && !r; i++)
		r = box_place(b, tensor, box[i], end);
	return r;
}

static int tensor_place(struct build *b, uint32_t tensor, uint64_t *end)
{
	const struct table_tensor *x = &b->decl->tensor[tensor];
	struct indexset share, owned;
	struct arena a = { 0 };
	int r;

	if (table_is_boxes(b->decl, x))
		return boxes_place(b, tensor, end);
	r = tensor_shares(b, x, &a, &share, &owned);
	if (r < 0) {
		arena_free(&a);
		return share_fails(b, x, r);
	}
	if (b->share != NATIVE_CONST) /* it is said once */
		table_covers(b->decl, tensor, &share, b->list);
	r = piece_place(b, tensor, &owned, end);
	arena_free(&a);
	return r;
}

static int part_build(struct build *b)
{
	cleanup_free struct order *order = calloc((size_t)b->decl->ntensor + 1, sizeof *order);
	struct table_place place = { .rank = b->rank, .bytes = NATIVE_PART_BYTES_MAX };
	uint64_t end = 0;
	char name[24];
	int r;

	if (!order)
		return ckpt_error(b->err, -ENOMEM, "out of memory for the raw space of rank %u",
				  b->rank);
	snprintf(name, sizeof name, "rank %u", b->rank);
	place.name = name;
	r = tensors_copy(b);
	if (!r)
		r = table_add_place(b->t, &place, NULL, b->err);
	order_make(b->decl, order);
	for (uint32_t i = 0; !r && i < b->decl->ntensor; i++)
		if (table_is_boxes(b->decl, &b->decl->tensor[i]))
			boxes_check(b, i);
	for (uint32_t i = 0; !r && i < b->decl->ntensor; i++) {
		if (i && order[i].group != order[i - 1].group)
			end = align_up(end, CHUNK_BYTES);
		if (b->map[order[i].tensor] != TABLE_NONE)
			r = tensor_place(b, order[i].tensor, &end);
	}
	if (r < 0)
		return r;
	/* A last group of which nothing is owned may have moved the end. */
	end = 0;
	for (uint32_t i = 0; i < b->t->npiece; i++)
		end = MAX(end, b->t->piece[i].off + b->t->piece[i].len);
	b->t->place[0].bytes = end;
	return table_seal(b->t, b->err);
}

int native_part_table_of(const struct table *decl, uint32_t rank, enum native_share share,
			 struct table *ret_table, struct ckpt_errlist *ret_list,
			 struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct table t = { 0 };
	struct build b = {
		.decl = decl,
		.t = &t,
		.rank = rank,
		.share = share,
		.map = calloc((size_t)decl->ntensor + 1, sizeof *b.map),
		.mesh = calloc((size_t)decl->nmesh + 1, sizeof *b.mesh),
		.layout = calloc((size_t)decl->nlayout + 1, sizeof *b.layout),
		.coord = calloc((size_t)decl->nmesh + 1, sizeof *b.coord),
		.list = ret_list ? ret_list : &list,
		.err = err,
	};
	uint64_t before = b.list->n;
	int r;

	assert(decl->sealed);
	r = b.map && b.mesh && b.layout && b.coord
		    ? part_build(&b)
		    : ckpt_error(err, -ENOMEM, "out of memory for the raw space of rank %u", rank);
	free(b.map);
	free(b.mesh);
	free(b.layout);
	free(b.coord);
	if (!r && b.list->n != before) {
		r = -EINVAL;
		(void)ckpt_errlist_end(b.list, err, "rank %u does not hold its share", rank);
		if (err)
			err->code = r;
	}
	if (b.list->code == -ENOMEM) /* what was not checked is not wrong */
		r = ckpt_error(err, -ENOMEM, "out of memory for the raw space of rank %u", rank);
	ckpt_errlist_free(&list);
	if (r < 0) {
		table_free(&t);
		return r;
	}
	*ret_table = t;
	return 0;
}

int native_part_table(const struct table *decl, uint32_t rank, struct table *ret_table,
		      struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	return native_part_table_of(decl, rank, NATIVE_WHOLE, ret_table, ret_list, err);
}

/* --- where they lie in the file --- */

int native_chunk_check(const struct chunk *c, const struct chunk *need, uint64_t room,
		       uint64_t data_end, uint64_t *at, struct ckpt_err *err)
{
	if (c->source != UINT32_MAX || c->base != UINT32_MAX)
		return ckpt_newer(err, "its bytes lie in another file, or are told by others");
	if (!c->raw_len) {
		static const struct chunk hole = { .source = UINT32_MAX, .base = UINT32_MAX };

		if (need->raw_len)
			return ckpt_error(err, -EPROTO, "it is a hole, but pieces lie in it");
		return memcmp(&c->raw_hash, &hole.raw_hash, sizeof hole.raw_hash) || c->off ||
				       c->stored_len || c->stored_crc || c->codec || c->codec_ver ||
				       c->elem_bytes
			       ? ckpt_error(err, -EPROTO, "a hole has bytes or checksums")
			       : 0;
	}
	if (c->codec != CODEC_RAW || c->codec_ver)
		return ckpt_newer(err, "it is coded with codec %u, version %u", c->codec,
				  c->codec_ver);
	if (!need->raw_len)
		return ckpt_error(err, -EPROTO, "it has bytes, and no piece in it has any");
	if (c->raw_len < need->raw_len || c->raw_len > MIN(room, CHUNK_BYTES))
		return ckpt_error(
			err, -EPROTO,
			"it has %u bytes where its pieces reach %u and the raw space %llu",
			c->raw_len, need->raw_len, (unsigned long long)room);
	if (c->elem_bytes != need->elem_bytes)
		return ckpt_error(err, -EPROTO, "elements of %u bytes where its pieces have %u",
				  c->elem_bytes, need->elem_bytes);
	if (c->stored_len != c->raw_len || c->stored_crc)
		return ckpt_error(
			err, -EPROTO,
			"it is not coded, but is stored in another length or has a second sum");
	if (c->off < *at || c->off % CHUNK_ALIGN || c->off > data_end ||
	    c->stored_len > data_end - c->off)
		return ckpt_error(
			err, -EPROTO,
			"it lies at byte %llu of the file: not behind the chunk before it, on a "
			"multiple of %u and before byte %llu",
			(unsigned long long)c->off, CHUNK_ALIGN, (unsigned long long)data_end);
	*at = c->off + c->stored_len;
	return 0;
}
