/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.c - tables to sections and back, as encode.h lays them down. Called by formats/native, the
 * client and the daemon. Invariant: decode trusts nothing: any program may have written
 * a section, and every number in it is a guess until it is compared with the size of what it
 * points into. What decode builds goes through the table's own checks as well.
 */
#include "ckpt/table/encode.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"

_Static_assert(sizeof(struct ck_mesh) == 16, "ck_mesh");
_Static_assert(sizeof(struct ck_layout) == 16, "ck_layout");
_Static_assert(sizeof(struct ck_placement) == 12, "ck_placement");
_Static_assert(sizeof(struct ck_tensor) == 56, "ck_tensor");
_Static_assert(sizeof(struct ck_piece) == 48, "ck_piece");
_Static_assert(sizeof(struct ck_place) == 16, "ck_place");
_Static_assert(sizeof(struct ck_average) == 64, "ck_average");

/* --- encoding: byte strings that are stored once each --- */

/* In the order in which they came. */
struct pool {
	struct strmap map; /* keys are copies in the arena */
	struct arena arena;
	uint64_t *off; /* [cap] by key: where its bytes begin */
	uint32_t cap;
	uint64_t len, max; /* offsets are le32 */
	bool failed;	   /* -ENOMEM, or over max: checked once, at the end */
};

static void pool_free(struct pool *p)
{
	arena_free(&p->arena);
	free(p->off);
}

/* Where these bytes are: a byte offset. len >= 1. */
static uint64_t pool_put(struct pool *p, const void *bytes, uint64_t len)
{
	uint32_t n = p->map.map.n, i = 0;
	int r = p->failed ? -ENOMEM : strmap_add(&p->map, &p->arena, bytes, len, &i);

	if (!r)
		return p->off[i];
	p->failed = r < 0 || len > p->max - p->len || !ARRAY_GROW(p->off, n, p->cap) ||
		    !(p->map.key[i].bytes = arena_dup(&p->arena, bytes, len));
	if (p->failed)
		return 0;
	p->off[i] = p->len;
	p->len += len;
	return p->off[i];
}

struct enc {
	const struct table *t;
	struct arena *a;
	struct pool string, shape, set;
	struct table_section *section;
	uint32_t n;
	le64 *scratch; /* one index set, spelled */
	size_t scratch_cap;
};

static void enc_free(struct enc *e)
{
	pool_free(&e->string);
	pool_free(&e->shape);
	pool_free(&e->set);
	free(e->scratch);
}

static le32 enc_string(struct enc *e, const char *s)
{
	return le32_of((uint32_t)pool_put(&e->string, s, strlen(s) + 1));
}

/* ndim numbers, as the element index of the first. */
static le32 enc_shape(struct enc *e, uint32_t ndim, const uint64_t *v)
{
	le64 x[CKPT_DIMS_MAX];

	if (!ndim)
		return le32_of(0);
	for (uint32_t i = 0; i < ndim; i++)
		x[i] = le64_of(v[i]);
	return le32_of((uint32_t)(pool_put(&e->shape, x, ndim * sizeof *x) / sizeof *x));
}

static le32 enc_set(struct enc *e, const struct indexset *s)
{
	size_t n = 1, at = 0;

	for (uint32_t d = 0; d < s->ndim; d++)
		n += 1 + (size_t)4 * s->dim[d].n;
	if (n > e->scratch_cap) {
		void *p = realloc(e->scratch, n * sizeof *e->scratch);

		if (!p) {
			e->set.failed = true;
			return le32_of(0);
		}
		e->scratch = p;
		e->scratch_cap = n;
	}
	e->scratch[at++] = le64_of(s->ndim);
	for (uint32_t d = 0; d < s->ndim; d++) {
		e->scratch[at++] = le64_of(s->dim[d].n);
		for (uint32_t i = 0; i < s->dim[d].n; i++) {
			const struct run *r = &s->dim[d].run[i];

			e->scratch[at++] = le64_of(r->start);
			e->scratch[at++] = le64_of(r->len);
			e->scratch[at++] = le64_of(r->stride);
			e->scratch[at++] = le64_of(r->count);
		}
	}
	return le32_of((uint32_t)(pool_put(&e->set, e->scratch, n * sizeof *e->scratch) /
				  sizeof *e->scratch));
}

static void enc_section(struct enc *e, uint32_t kind, uint32_t rec_bytes, uint64_t count,
			const void *bytes)
{
	e->section[e->n++] = (struct table_section){
		.kind = kind,
		.rec_bytes = rec_bytes,
		.len = count * rec_bytes,
		.count = count,
		.bytes = bytes,
	};
}

static bool mesh_is_iota(const struct mesh *m)
{
	for (uint32_t i = 0; i < m->nrank; i++)
		if (m->rank[i] != i)
			return false;
	return true;
}

static int enc_meshes(struct enc *e)
{
	const struct table *t = e->t;
	struct ck_mesh *rec = arena_array(e->a, t->nmesh, sizeof *rec);
	uint64_t n = 0, at = 0;
	le32 *data;

	for (uint32_t i = 0; i < t->nmesh; i++)
		n += 2 * (uint64_t)t->mesh[i].ndim + t->mesh[i].nrank;
	data = n <= UINT32_MAX ? arena_array(e->a, n, sizeof *data) : NULL;
	if (!rec || !data)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->nmesh; i++) {
		const struct mesh *m = &t->mesh[i];
		bool iota = mesh_is_iota(m);

		rec[i] = (struct ck_mesh){
			.ndim = le32_of(m->ndim),
			.nrank = le32_of(m->nrank),
			.data_at = le32_of((uint32_t)at),
			.rank_is_iota = le32_of(iota),
		};
		for (uint32_t d = 0; d < m->ndim; d++)
			data[at++] = enc_string(e, m->name[d]);
		for (uint32_t d = 0; d < m->ndim; d++)
			data[at++] = le32_of(m->dim[d]);
		for (uint32_t r = 0; r < m->nrank && !iota; r++)
			data[at++] = le32_of(m->rank[r]);
	}
	enc_section(e, CK_MESHES, sizeof *rec, t->nmesh, rec);
	enc_section(e, CK_MESHDATA, sizeof *data, at, data);
	return 0;
}

static int enc_layouts(struct enc *e)
{
	const struct table *t = e->t;
	struct ck_layout *rec = arena_array(e->a, t->nlayout, sizeof *rec);
	struct ck_placement *place;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->nlayout; i++)
		n += t->layout[i].nplace;
	place = arena_array(e->a, n, sizeof *place);
	if (!rec || !place)
		return -ENOMEM;
	n = 0;
	for (uint32_t i = 0; i < t->nlayout; i++) {
		const struct layout *l = &t->layout[i];

		rec[i] = (struct ck_layout){
			.mesh = le32_of(l->mesh),
			.mode = le32_of(l->mode),
			.nplace = le32_of(l->nplace),
			.place_at = le32_of(n),
		};
		for (uint32_t k = 0; k < l->nplace; k++) {
			const struct ckpt_placement *p = &l->place[k];

			place[n++] = (struct ck_placement){
				.how = p->how,
				.reduce = p->reduce,
				.mesh_dim = le16_of(p->mesh_dim),
				.tensor_dim = le16_of(p->tensor_dim),
				.flags = le16_of(p->flags),
				.split_factor = le32_of(p->split_factor),
			};
		}
	}
	enc_section(e, CK_LAYOUTS, sizeof *rec, t->nlayout, rec);
	enc_section(e, CK_PLACEMENTS, sizeof *place, n, place);
	return 0;
}

static int enc_tensors(struct enc *e)
{
	const struct table *t = e->t;
	struct ck_tensor *rec = arena_array(e->a, t->ntensor, sizeof *rec);

	if (!rec)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];

		rec[i] = (struct ck_tensor){
			.component = enc_string(e, x->component),
			.name = enc_string(e, x->name),
			.of = enc_string(e, x->of),
			.layout = le32_of(x->layout),
			.shape_at = enc_shape(e, x->ndim, x->shape),
			.avg = le32_of(x->made - 1), /* 0, nothing, is ~0 */
			.dtype = le16_of((uint16_t)x->dtype),
			.elem_bits = le16_of((uint16_t)(8 * x->elem_bytes)),
			.ndim = (uint8_t)x->ndim,
			.role = (uint8_t)x->role,
			.cls = (uint8_t)x->cls,
			.flags = (uint8_t)((x->flags & TENSOR_BLOB ? CK_TENSOR_BLOB : 0) |
					   (x->fp_known ? CK_TENSOR_FP : 0)),
			.numel = le64_of(x->numel),
			.fp = le64_of(x->fp),
			.rank = le32_of(x->rank),
			.media = (uint8_t)x->media,
		};
	}
	enc_section(e, CK_TENSORS, sizeof *rec, t->ntensor, rec);
	return 0;
}

static int enc_pieces(struct enc *e)
{
	const struct table *t = e->t;
	struct ck_piece *rec = arena_array(e->a, t->npiece, sizeof *rec);

	if (!rec)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		le32 stride = le32_of(TABLE_NONE);

		if (p->stride)
			stride = enc_shape(e, p->set.ndim, (const uint64_t *)p->stride);
		rec[i] = (struct ck_piece){
			.tensor = le32_of(p->tensor),
			.indexset = enc_set(e, &p->set),
			.rank = le32_of(p->rank),
			.stride_at = stride,
			.raw_off = le64_of(p->off),
			.raw_len = le64_of(p->len),
			.fp = le64_of(p->fp),
			.flags = le32_of((p->fp_known ? CK_PIECE_FP : 0) |
					 (p->flags & PIECE_DERIVED ? CK_PIECE_DERIVED : 0) |
					 (p->flags & PIECE_TRUSTED ? CK_PIECE_TRUSTED : 0)),
			.place = le32_of(p->place),
		};
	}
	enc_section(e, CK_PIECES, sizeof *rec, t->npiece, rec);
	return 0;
}

static int enc_places(struct enc *e)
{
	const struct table *t = e->t;
	struct ck_place *rec = arena_array(e->a, t->nplace, sizeof *rec);

	if (!rec)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->nplace; i++)
		rec[i] = (struct ck_place){
			.name = enc_string(e, t->place[i].name),
			.rank = le32_of(t->place[i].rank),
			.bytes = le64_of(t->place[i].bytes),
		};
	enc_section(e, CK_PLACES, sizeof *rec, t->nplace, rec);
	return 0;
}

static int enc_averages(struct enc *e)
{
	const struct table *t = e->t;
	struct ck_average *rec = arena_array(e->a, t->naverage, sizeof *rec);

	if (!rec)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->naverage; i++) {
		const struct table_average *x = &t->average[i];
		uint64_t product;

		memcpy(&product, &x->product, sizeof product);
		rec[i] = (struct ck_average){
			.name = enc_string(e, x->name),
			.schedule = enc_string(e, x->schedule),
			.product = le64_of(product),
			.updates = le64_of(x->updates),
			.last_step = le64_of(x->last_step),
			.since = le64_of(x->since),
			.flags = le32_of(x->flags),
			.rule = le32_of(x->rule),
		};
		memcpy(rec[i].history, x->history, sizeof rec[i].history);
	}
	enc_section(e, CK_AVERAGES, sizeof *rec, t->naverage, rec);
	return 0;
}

static int enc_pool(struct enc *e, uint32_t kind, const struct pool *p, uint32_t rec_bytes)
{
	uint8_t *bytes = p->failed ? NULL : arena_alloc(e->a, p->len);

	if (!bytes)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->map.map.n; i++)
		memcpy(bytes + p->off[i], p->map.key[i].bytes, p->map.key[i].len);
	enc_section(e, kind, rec_bytes, p->len / rec_bytes, bytes);
	return 0;
}

static int enc_all(struct enc *e, bool with_pieces)
{
	int r;

	(void)enc_string(e, "");
	r = enc_meshes(e);
	if (!r)
		r = enc_layouts(e);
	if (!r)
		r = enc_tensors(e);
	if (!r && with_pieces)
		r = enc_pieces(e);
	if (!r && with_pieces && e->t->nplace)
		r = enc_places(e);
	if (!r && with_pieces)
		r = enc_pool(e, CK_INDEXSETS, &e->set, sizeof(le64));
	if (!r && e->t->naverage)
		r = enc_averages(e);
	if (!r)
		r = enc_pool(e, CK_SHAPES, &e->shape, sizeof(le64));
	if (!r)
		r = enc_pool(e, CK_STRINGS, &e->string, 1);
	return r;
}

int table_encode(const struct table *t, bool with_pieces, struct arena *a,
		 struct table_section *ret_section, uint32_t *ret_n, struct ckpt_err *err)
{
	struct enc e = {
		.t = t,
		.a = a,
		.section = ret_section,
		.string = { .max = UINT32_MAX },
		.shape = { .max = (uint64_t)UINT32_MAX * 8 },
		.set = { .max = (uint64_t)UINT32_MAX * 8 },
	};
	int r;

	assert(t->sealed);
	r = enc_all(&e, with_pieces);
	enc_free(&e);
	if (r < 0)
		return ckpt_error(err, r,
				  "out of memory for a description of %u tensors in %u pieces",
				  t->ntensor, t->npiece);
	/* The order of encode.h: by kind. */
	for (uint32_t i = 1; i < e.n; i++)
		for (uint32_t k = i; k && ret_section[k].kind < ret_section[k - 1].kind; k--) {
			struct table_section s = ret_section[k];

			ret_section[k] = ret_section[k - 1];
			ret_section[k - 1] = s;
		}
	*ret_n = e.n;
	return 0;
}

/* --- decoding --- */

#define DEC_KINDS (CK_AVERAGES + 1)

struct dec {
	struct table *t;
	struct arena a; /* what does not outlive the decoding */
	const char *string;
	uint64_t nstring;
	const le64 *shape;
	uint64_t nshape;
	const le32 *meshdata;
	uint64_t nmeshdata, meshdata_at; /* _at: used so far, front to back */
	const struct ck_placement *placement;
	uint64_t nplacement, placement_at;
	struct dec_set {
		uint32_t at;
		struct indexset set;
	} * set;
	uint32_t nset, nset_cap;
	uint32_t nrank;			/* of all meshes so far */
	const struct ck_tensor *tensor; /* [ntensor]; those before `ahead` are fetched already */
	uint64_t ntensor, ahead;
	bool is_file; /* not a declaration */
	struct ckpt_err *err;
};

#define BAD(d, ...) ckpt_error((d)->err, -EPROTO, __VA_ARGS__)
#define NEW(d, ...) ckpt_newer((d)->err, __VA_ARGS__)

/* What the table said about a record, as malformed input; memory stays memory. */
static int bad_record(struct dec *d, int r, const char *what, uint64_t i)
{
	int code = r == -EPROTONOSUPPORT ? r : -EPROTO;

	if (r == -ENOMEM)
		return r;
	ckpt_error_prefix(d->err, code, "%s %llu", what, (unsigned long long)i);
	if (d->err)
		d->err->code = code;
	return code;
}

static const char *section_name(uint32_t kind)
{
	static const char *const name[] = {
		[CK_STRINGS] = "STRINGS",   [CK_SHAPES] = "SHAPES",
		[CK_MESHES] = "MESHES",	    [CK_MESHDATA] = "MESHDATA",
		[CK_LAYOUTS] = "LAYOUTS",   [CK_PLACEMENTS] = "PLACEMENTS",
		[CK_TENSORS] = "TENSORS",   [CK_INDEXSETS] = "INDEXSETS",
		[CK_PIECES] = "PIECES",	    [CK_PLACES] = "PLACES",
		[CK_AVERAGES] = "AVERAGES",
	};

	return kind < ARRAY_LEN(name) && name[kind] ? name[kind] : "unknown";
}

struct dec_records {
	const uint8_t *rec;
	uint32_t rec_bytes;
	uint64_t n;
};

/* A missing section has no records. */
static int dec_section(struct dec *d, const struct table_section *section, uint32_t n,
		       uint32_t kind, uint32_t rec_bytes, uint64_t max, struct dec_records *ret)
{
	*ret = (struct dec_records){ .n = 0 };
	for (uint32_t i = 0; i < n; i++) {
		const struct table_section *s = &section[i];
		uint64_t len;

		if (s->kind != kind)
			continue;
		if (s->rec_bytes != rec_bytes)
			return NEW(
				d,
				"section %s: records of %u bytes; this program knows them with %u",
				section_name(kind), s->rec_bytes, rec_bytes);
		if (ckpt_mul(s->count, rec_bytes, &len) < 0 || len != s->len)
			return BAD(d, "section %s: %llu records of %u bytes in %llu bytes",
				   section_name(kind), (unsigned long long)s->count, rec_bytes,
				   (unsigned long long)s->len);
		if (s->count > max)
			return BAD(d, "section %s: %llu records; at most %llu are possible",
				   section_name(kind), (unsigned long long)s->count,
				   (unsigned long long)max);
		*ret = (struct dec_records){ s->bytes, rec_bytes, s->count };
	}
	return 0;
}

/* Each record by `one`; what: what messages call a record. */
static int dec_each(struct dec *d, const struct dec_records *x,
		    int (*one)(struct dec *d, const void *rec), const char *what)
{
	int r = 0;

	for (uint64_t i = 0; !r && i < x->n; i++) {
		r = one(d, x->rec + i * x->rec_bytes);
		if (r < 0)
			r = bad_record(d, r, what, i);
	}
	return r;
}

/* NULL: no such string, or a longer one. The empty one is at 0 and nowhere else. */
static const char *dec_string_of(const struct dec *d, le32 at, uint64_t max)
{
	uint32_t i = le32_get(at);
	const char *s = d->string + i;

	if (i >= d->nstring || (i && !*s))
		return NULL;
	return memchr(s, 0, MIN(d->nstring - i, max + 1)) ? s : NULL;
}

static const char *dec_string(const struct dec *d, le32 at)
{
	return dec_string_of(d, at, CKPT_NAME_MAX);
}

static int dec_mesh(struct dec *d, const void *at_rec)
{
	const struct ck_mesh *rec = at_rec;
	uint64_t at = le32_get(rec->data_at), n;
	const char *name[CKPT_DIMS_MAX];
	uint32_t dim[CKPT_DIMS_MAX], id, iota = le32_get(rec->rank_is_iota), before = d->t->nmesh;
	struct mesh m = {
		.ndim = le32_get(rec->ndim), .nrank = le32_get(rec->nrank), .name = name, .dim = dim
	};
	uint32_t *rank;
	int r;

	if (iota > 1)
		return NEW(d, "its ranks are written in form %u", iota);
	if (m.ndim > CKPT_DIMS_MAX)
		return BAD(d, "%u dimensions", m.ndim);
	/* Ranks 0, 1, 2, ... are a few bytes that stand for many: bounded over all meshes. */
	if (m.nrank > TABLE_RANKS_MAX - d->nrank)
		return BAD(d, "more than %u ranks in the meshes of a table", TABLE_RANKS_MAX);
	d->nrank += m.nrank;
	n = 2 * (uint64_t)m.ndim + (iota ? 0 : m.nrank);
	if (at != d->meshdata_at || n > d->nmeshdata - at)
		return BAD(d,
			   "its data lie outside MESHDATA, or not behind those of the mesh before");
	d->meshdata_at += n;
	for (uint32_t i = 0; i < m.ndim; i++) {
		name[i] = dec_string(d, d->meshdata[at + i]);
		if (!name[i])
			return BAD(d, "the name of dimension %u lies outside STRINGS", i);
		dim[i] = le32_get(d->meshdata[at + m.ndim + i]);
	}
	rank = arena_array(&d->a, m.nrank, sizeof *rank);
	if (!rank)
		return ckpt_error(d->err, -ENOMEM, "out of memory for a mesh");
	for (uint32_t i = 0; i < m.nrank; i++)
		rank[i] = iota ? i : le32_get(d->meshdata[at + 2 * (uint64_t)m.ndim + i]);
	m.rank = rank;
	if (!iota && mesh_is_iota(&m))
		return BAD(d, "ranks 0, 1, 2, ... that are spelled out");
	r = table_add_mesh(d->t, &m, &id, d->err);
	if (!r && id != before)
		return BAD(d, "it is mesh %u again", id);
	return r;
}

static int dec_layout(struct dec *d, const void *at_rec)
{
	const struct ck_layout *rec = at_rec;
	/* One placement per mesh dimension at most is what layout_check allows. */
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout l = {
		.mesh = le32_get(rec->mesh),
		.mode = le32_get(rec->mode),
		.nplace = le32_get(rec->nplace),
		.place = place,
	};
	uint64_t at = le32_get(rec->place_at);
	uint32_t id, before = d->t->nlayout;
	int r;

	if (l.mode > CKPT_UNFLATTEN_PAD &&
	    ((d->is_file && !MUTANT(BOXES_IN_FILES)) || l.mode != CKPT_BOXES))
		return NEW(d, "mode %u is unknown", l.mode);
	if (l.nplace > CKPT_DIMS_MAX)
		return BAD(d, "%u placements; at most %d are possible", l.nplace, CKPT_DIMS_MAX);
	if (at != d->placement_at || l.nplace > d->nplacement - at)
		return BAD(d, "its placements lie outside PLACEMENTS, or not behind those of the "
			      "layout before");
	d->placement_at += l.nplace;
	for (uint32_t i = 0; i < l.nplace; i++) {
		const struct ck_placement *p = &d->placement[at + i];

		if (p->how > CKPT_PARTIAL || p->reduce > CKPT_PRODUCT ||
		    le16_get(p->flags) & ~CKPT_KEEP_PARTIAL)
			return NEW(d, "a placement of kind %u, reduction %u, flags %#x", p->how,
				   p->reduce, le16_get(p->flags));
		place[i] = (struct ckpt_placement){
			.how = p->how,
			.reduce = p->reduce,
			.mesh_dim = le16_get(p->mesh_dim),
			.tensor_dim = le16_get(p->tensor_dim),
			.flags = le16_get(p->flags),
			.split_factor = le32_get(p->split_factor),
		};
	}
	r = table_add_layout(d->t, &l, &id, d->err);
	if (!r && id != before)
		return BAD(d, "it is layout %u again", id);
	return r;
}

static bool dec_shape(const struct dec *d, le32 at, uint32_t ndim, uint64_t *ret)
{
	uint64_t i = le32_get(at);

	if (ndim > CKPT_DIMS_MAX || i > d->nshape || ndim > d->nshape - i || (!ndim && i))
		return false;
	for (uint32_t k = 0; k < ndim; k++)
		ret[k] = le64_get(d->shape[i + k]);
	return true;
}

#define AHEAD 8 /* tensors whose keys are looked up meanwhile */

static void dec_tensor_soon(const struct dec *d, const struct ck_tensor *rec)
{
	const char *component = dec_string(d, rec->component), *name = dec_string(d, rec->name);

	if (component && name)
		table_find_soon(d->t, component, name, le32_get(rec->rank));
}

static int dec_tensor(struct dec *d, const void *at_rec)
{
	const struct ck_tensor *rec = at_rec;
	uint64_t shape[CKPT_DIMS_MAX];
	struct table_tensor x = {
		.component = dec_string(d, rec->component),
		.name = dec_string(d, rec->name),
		.of = dec_string_of(d, rec->of, TABLE_KEY_BYTES - 1),
		.dtype = le16_get(rec->dtype),
		.role = rec->role,
		.cls = rec->cls,
		.flags = rec->flags & CK_TENSOR_BLOB ? TENSOR_BLOB : 0,
		.layout = le32_get(rec->layout),
		.rank = le32_get(rec->rank),
		.media = rec->media,
		.made = le32_get(rec->avg) + 1, /* of ~0: 0, nothing */
		.ndim = rec->ndim,
		.shape = shape,
		.fp = le64_get(rec->fp),
		.fp_known = rec->flags & CK_TENSOR_FP,
	};
	uint32_t id;
	int r;

	if (d->ahead < d->ntensor)
		dec_tensor_soon(d, &d->tensor[d->ahead++]);
	if (!dtype_bytes(x.dtype) || x.role > CKPT_COUNTER || x.cls > CKPT_SINK ||
	    x.media > CKPT_MEDIA_NPY || rec->flags & ~(CK_TENSOR_BLOB | CK_TENSOR_FP) ||
	    rec->zero[0] || rec->zero[1] || rec->zero[2])
		return NEW(
			d,
			"dtype %u, role %u, class %u, content type %u, flags %#x, or a field that "
			"must be zero, is unknown",
			x.dtype, x.role, x.cls, x.media, rec->flags);
	if (!x.component || !x.name || !x.of)
		return BAD(d, "a name lies outside STRINGS or is longer than %d bytes",
			   CKPT_NAME_MAX);
	if (!dec_shape(d, rec->shape_at, x.ndim, shape))
		return BAD(d, "its shape of %u dimensions lies outside SHAPES", x.ndim);
	r = table_put_tensor(d->t, &x, &id, d->err);
	if (r < 0)
		return r;
	if (le64_get(rec->numel) != d->t->tensor[id].numel ||
	    le16_get(rec->elem_bits) != 8 * d->t->tensor[id].elem_bytes)
		return BAD(d, "it claims %llu elements of %u bits, but has %llu of %u",
			   (unsigned long long)le64_get(rec->numel), le16_get(rec->elem_bits),
			   (unsigned long long)d->t->tensor[id].numel,
			   8 * d->t->tensor[id].elem_bytes);
	return 0;
}

/* One dimension of a set at v[*at]. Its n says how many records of v it takes; those are there, for
 * n is compared with what is left. */
static int dec_list(struct dec *d, const le64 *v, uint64_t nv, uint64_t *at, struct indices *ret)
{
	uint64_t n, total = 0, of_run;
	struct run *run;

	if (*at == nv)
		return BAD(d, "it ends in the middle");
	n = le64_get(v[(*at)++]);
	if (!n || n > LAYOUT_RUNS_MAX || n > (nv - *at) / 4)
		return BAD(d, "a list of %llu progressions", (unsigned long long)n);
	run = arena_array(&d->t->arena, n, sizeof *run);
	if (!run)
		return ckpt_error(d->err, -ENOMEM, "out of memory for index sets");
	for (uint64_t i = 0; i < n; i++) {
		run[i] = (struct run){
			.start = le64_get(v[*at]),
			.len = le64_get(v[*at + 1]),
			.stride = le64_get(v[*at + 2]),
			.count = le64_get(v[*at + 3]),
		};
		*at += 4;
		if (ckpt_mul(run[i].len, run[i].count, &of_run) < 0 ||
		    ckpt_add(total, of_run, &total) < 0)
			return BAD(d, "a list has more than 2^64 indices");
	}
	*ret = (struct indices){ .n = (uint32_t)n, .total = total, .run = run };
	return indices_check(ret, INT64_MAX, d->err);
}

static int dec_set(struct dec *d, const le64 *v, uint64_t nv, uint64_t *at, struct indexset *ret)
{
	uint64_t ndim = le64_get(v[(*at)++]);
	struct indices *dim;

	if (ndim > CKPT_DIMS_MAX)
		return BAD(d, "%llu dimensions", (unsigned long long)ndim);
	dim = arena_array(&d->t->arena, ndim, sizeof *dim);
	if (!dim)
		return ckpt_error(d->err, -ENOMEM, "out of memory for index sets");
	*ret = (struct indexset){ .ndim = (uint32_t)ndim, .numel = 1, .dim = dim };
	for (uint64_t i = 0; i < ndim; i++) {
		int r = dec_list(d, v, nv, at, &dim[i]);

		if (r < 0)
			return r;
		if (ckpt_mul(ret->numel, dim[i].total, &ret->numel) < 0)
			return BAD(d, "it has more than 2^64 elements");
	}
	return 0;
}

/* All sets, front to back; pieces then find theirs by where it begins. */
static int dec_sets(struct dec *d, const le64 *v, uint64_t nv)
{
	uint64_t at = 0;

	while (at < nv) {
		int r;

		if (!ARRAY_GROW(d->set, d->nset, d->nset_cap))
			return ckpt_error(d->err, -ENOMEM, "out of memory for index sets");
		d->set[d->nset].at = (uint32_t)at;
		r = dec_set(d, v, nv, &at, &d->set[d->nset].set);
		if (r < 0)
			return bad_record(d, r, "index set", d->nset);
		d->nset++;
	}
	return 0;
}

static const struct indexset *dec_set_at(const struct dec *d, uint32_t at)
{
	uint32_t i = SEARCH(k, 0u, d->nset, d->set[k].at < at);

	return i < d->nset && d->set[i].at == at ? &d->set[i].set : NULL;
}

static int dec_piece(struct dec *d, const void *at_rec)
{
	const struct ck_piece *rec = at_rec;
	const struct indexset *set = dec_set_at(d, le32_get(rec->indexset));
	struct table_piece p = {
		.tensor = le32_get(rec->tensor),
		.rank = le32_get(rec->rank),
		.place = le32_get(rec->place),
		.off = le64_get(rec->raw_off),
		.fp = le64_get(rec->fp),
	};
	uint64_t stride[CKPT_DIMS_MAX];
	uint32_t flags = le32_get(rec->flags);
	int r;

	if (flags & ~(uint32_t)(CK_PIECE_FP | CK_PIECE_DERIVED | CK_PIECE_TRUSTED))
		return NEW(d, "flags %#x", flags);
	p.fp_known = flags & CK_PIECE_FP;
	p.flags = (flags & CK_PIECE_DERIVED ? PIECE_DERIVED : 0) |
		  (flags & CK_PIECE_TRUSTED ? PIECE_TRUSTED : 0);
	if (!set)
		return BAD(d, "no index set begins at %u", le32_get(rec->indexset));
	p.set = *set;
	if (le32_get(rec->stride_at) != TABLE_NONE) {
		if (!dec_shape(d, rec->stride_at, p.set.ndim, stride))
			return BAD(d, "its strides lie outside SHAPES");
		p.stride = arena_dup(&d->t->arena, stride, p.set.ndim * sizeof *stride);
		if (!p.stride)
			return ckpt_error(d->err, -ENOMEM, "out of memory for pieces");
	}
	r = table_put_piece(d->t, &p, d->err);
	if (r < 0)
		return r;
	if (p.flags &&
	    (d->t->tensor[p.tensor].cls != CKPT_DERIVED || !*d->t->tensor[p.tensor].of || p.stride))
		return BAD(d, "a derived piece of a tensor that is not derived, or with strides");
	if (d->t->piece[d->t->npiece - 1].len != le64_get(rec->raw_len))
		return BAD(d, "it claims %llu bytes, but has %llu",
			   (unsigned long long)le64_get(rec->raw_len),
			   (unsigned long long)d->t->piece[d->t->npiece - 1].len);
	if (d->t->npiece > 1 &&
	    table_piece_order(&d->t->piece[d->t->npiece - 2], &d->t->piece[d->t->npiece - 1]) > 0)
		return BAD(d, "it is out of order");
	return 0;
}

static int dec_place(struct dec *d, const void *at_rec)
{
	const struct ck_place *rec = at_rec;
	struct table_place p = {
		.name = dec_string(d, rec->name),
		.rank = le32_get(rec->rank),
		.bytes = le64_get(rec->bytes),
	};

	return p.name ? table_add_place(d->t, &p, NULL, d->err)
		      : BAD(d, "its name lies outside STRINGS");
}

static int dec_average(struct dec *d, const void *at_rec)
{
	const struct ck_average *rec = at_rec;
	uint64_t product = le64_get(rec->product);
	struct table_average x = {
		.name = dec_string(d, rec->name),
		.schedule = dec_string_of(d, rec->schedule, TABLE_SCHEDULE_MAX),
		.updates = le64_get(rec->updates),
		.last_step = le64_get(rec->last_step),
		.since = le64_get(rec->since),
		.flags = le32_get(rec->flags),
		.rule = le32_get(rec->rule),
	};
	uint32_t id, before = d->t->naverage;
	int r;

	if (x.flags & ~(uint32_t)(AVERAGE_KAHAN | AVERAGE_MIXED | AVERAGE_SEEDED))
		return NEW(d, "flags %#x", x.flags);
	if (!x.name || !x.schedule)
		return BAD(d,
			   "a string lies outside STRINGS, its name is longer than %d bytes, or "
			   "its schedule is longer than %u",
			   CKPT_NAME_MAX, TABLE_SCHEDULE_MAX);
	memcpy(&x.product, &product, sizeof x.product);
	memcpy(x.history, rec->history, sizeof x.history);
	r = table_add_average(d->t, &x, &id, d->err);
	if (!r && id != before)
		return BAD(d, "it is average %u again", id);
	return r;
}

/* Section by section, by kind. */
static int dec_sections(struct dec *d, const struct table_section *s, uint32_t n,
			struct dec_records *x)
{
	static const struct {
		uint32_t rec_bytes, max; /* what refers to records does so in 32 bits */
	} known[DEC_KINDS] = {
		[CK_STRINGS] = { 1, UINT32_MAX },
		[CK_SHAPES] = { sizeof(le64), UINT32_MAX },
		[CK_MESHES] = { sizeof(struct ck_mesh), TABLE_MESHES_MAX },
		[CK_MESHDATA] = { sizeof(le32), UINT32_MAX },
		[CK_LAYOUTS] = { sizeof(struct ck_layout), TABLE_LAYOUTS_MAX },
		[CK_PLACEMENTS] = { sizeof(struct ck_placement), UINT32_MAX },
		[CK_TENSORS] = { sizeof(struct ck_tensor), TABLE_TENSORS_MAX },
		[CK_INDEXSETS] = { sizeof(le64), UINT32_MAX },
		[CK_PIECES] = { sizeof(struct ck_piece), TABLE_PIECES_MAX },
		[CK_PLACES] = { sizeof(struct ck_place), TABLE_PLACES_MAX },
		[CK_AVERAGES] = { sizeof(struct ck_average), TABLE_AVERAGES_MAX },
	};
	int r = 0;

	for (uint32_t k = CK_STRINGS; !r && k < ARRAY_LEN(known); k++)
		if (known[k].rec_bytes)
			r = dec_section(d, s, n, k, known[k].rec_bytes, known[k].max, &x[k]);
	if (r < 0)
		return r;
	d->string = (const char *)x[CK_STRINGS].rec;
	d->nstring = x[CK_STRINGS].n;
	d->shape = (const le64 *)x[CK_SHAPES].rec;
	d->nshape = x[CK_SHAPES].n;
	d->meshdata = (const le32 *)x[CK_MESHDATA].rec;
	d->nmeshdata = x[CK_MESHDATA].n;
	d->placement = (const struct ck_placement *)x[CK_PLACEMENTS].rec;
	d->nplacement = x[CK_PLACEMENTS].n;
	d->tensor = (const struct ck_tensor *)x[CK_TENSORS].rec;
	d->ntensor = x[CK_TENSORS].n;
	d->ahead = AHEAD;
	if (!d->nstring || d->string[0] || d->string[d->nstring - 1])
		return BAD(d, "section STRINGS: it does not begin and end with a zero byte");
	return 0;
}

static int dec_declarations(struct dec *d, const struct dec_records *x)
{
	int r;

	/* The table's names are these bytes, once, however many tensors share them. */
	d->string = arena_dup(&d->t->arena, d->string, d->nstring);
	if (!d->string)
		return ckpt_error(d->err, -ENOMEM, "out of memory for names");
	r = dec_each(d, &x[CK_MESHES], dec_mesh, "mesh");
	if (!r)
		r = dec_each(d, &x[CK_LAYOUTS], dec_layout, "layout");
	if (!r && (d->meshdata_at != d->nmeshdata || d->placement_at != d->nplacement))
		r = BAD(d, "MESHDATA or PLACEMENTS hold more than meshes and layouts use");
	if (!r)
		r = dec_each(d, &x[CK_AVERAGES], dec_average, "average");
	if (!r && table_reserve(d->t, d->ntensor, 0) < 0)
		r = ckpt_error(d->err, -ENOMEM, "out of memory for tensors");
	return r ? r : dec_each(d, &x[CK_TENSORS], dec_tensor, "tensor");
}

static int dec_contents(struct dec *d, const struct dec_records *x, const struct table_place *place,
			uint32_t nplace)
{
	int r = dec_each(d, &x[CK_PLACES], dec_place, "place");

	for (uint32_t i = 0; !r && !x[CK_PLACES].n && i < nplace; i++)
		r = table_add_place(d->t, &place[i], NULL, d->err);
	if (!r)
		r = dec_sets(d, (const le64 *)x[CK_INDEXSETS].rec, x[CK_INDEXSETS].n);
	if (!r && table_reserve(d->t, 0, x[CK_PIECES].n) < 0)
		r = ckpt_error(d->err, -ENOMEM, "out of memory for pieces");
	return r ? r : dec_each(d, &x[CK_PIECES], dec_piece, "piece");
}

/* Seals the table, or frees it and all else. */
static int dec_end(struct dec *d, int r, struct table *ret_table)
{
	if (!r)
		r = table_seal(d->t, d->err);
	arena_free(&d->a);
	free(d->set);
	if (r < 0)
		table_free(d->t);
	else
		*ret_table = *d->t;
	return r;
}

int table_decode(const struct table_section *section, uint32_t n, const struct table_place *place,
		 uint32_t nplace, struct table *ret_table, struct ckpt_err *err)
{
	struct dec_records x[DEC_KINDS];
	struct table t = { 0 };
	struct dec d = { .t = &t, .is_file = place != NULL, .err = err };
	int r = dec_sections(&d, section, n, x);

	if (!r)
		r = dec_declarations(&d, x);
	if (!r)
		r = dec_contents(&d, x, place, nplace);
	return dec_end(&d, r, ret_table);
}

int table_decode_tensors(const struct table_section *section, uint32_t n, struct table *ret_table,
			 struct ckpt_err *err)
{
	struct dec_records x[DEC_KINDS];
	struct table t = { 0 };
	struct dec d = { .t = &t, .is_file = true, .err = err };
	int r = dec_sections(&d, section, n, x);

	if (!r)
		r = dec_declarations(&d, x);
	return dec_end(&d, r, ret_table);
}

int table_decode_pieces(const struct table_section *section, uint32_t n,
			const struct table *tensors, const struct table_place *place,
			uint32_t nplace, struct table *ret_table, struct ckpt_err *err)
{
	struct dec_records x[DEC_KINDS];
	struct table t = table_borrow(tensors);
	struct dec d = { .t = &t, .err = err };
	int r = dec_sections(&d, section, n, x);

	if (!r)
		r = dec_contents(&d, x, place, nplace);
	return dec_end(&d, r, ret_table);
}
