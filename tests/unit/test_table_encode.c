/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_table_encode.c - tables to sections and back: the same table comes out, equal tables give
 * equal bytes, and no field can be changed without being either refused or seen in the table that
 * comes out.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "ckpt/table/encode.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"

static uint64_t seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)draw_below(&seed, n);
}

/* --- random tables --- */

static void random_mesh(struct table *t)
{
	static const char *const name[] = { "dp", "fsdp", "tp", "pp" };
	uint32_t dim[3] = { 1 + below(4), 1 + below(4), 1 + below(3) }, n = 1 + below(3), rank[64],
		 nrank = 1;
	struct mesh m = { .ndim = n, .name = name + below(2), .dim = dim, .rank = rank };

	for (uint32_t i = 0; i < n; i++)
		nrank *= dim[i];
	m.nrank = nrank;
	for (uint32_t i = 0; i < nrank; i++)
		rank[i] = i;
	if (below(2)) {
		for (uint32_t i = 0; i < nrank; i++) {
			uint32_t k = below(nrank), x = rank[i];

			rank[i] = rank[k];
			rank[k] = x;
		}
	}
	assert_int_equal(table_add_mesh(t, &m, NULL, NULL), 0);
}

static void random_layout(struct table *t)
{
	struct ckpt_placement place[3] = { { 0 } };
	struct layout l = { .mesh = below(t->nmesh), .place = place };
	uint32_t n = t->mesh[l.mesh].ndim;

	for (uint32_t d = 0; d < n; d++) {
		struct ckpt_placement *p = &place[l.nplace];

		if (!below(3))
			continue;
		p->mesh_dim = (uint16_t)d;
		p->how = (uint8_t)below(3);
		p->split_factor = 0;
		if (p->how == CKPT_SHARD)
			p->split_factor = 1 + below(3);
		if (p->how == CKPT_ONLY)
			p->split_factor = below(t->mesh[l.mesh].dim[d]);
		l.nplace++;
	}
	assert_int_equal(table_add_layout(t, &l, NULL, NULL), 0);
}

static void random_tensor(struct table *t, uint32_t i)
{
	static const uint32_t dtype[] = { CKPT_BF16, CKPT_F32, CKPT_U8, CKPT_I64, CKPT_C128 };
	uint64_t shape[4] = { 1 + below(20), 1 + below(9), 1 + below(5), below(8) };
	char name[40];
	struct table_tensor x =
		ROW(.component = below(2) ? "model" : "optim", .name = name,
		    .of = below(2) ? "" : "w", .dtype = dtype[below(5)], .role = below(8),
		    .cls = below(5), .rank = TABLE_NONE, .layout = TABLE_NONE, .ndim = below(5),
		    .shape = shape, .fp_known = below(2));

	snprintf(name, sizeof name, "layers.%u.w%u", i, below(3));
	if (x.fp_known)
		x.fp = below(3) ? sample_mix(i) : 0;
	if (t->naverage && !below(3))
		x.made = 1 + below(t->naverage);
	if (x.ndim && t->nlayout && below(3))
		x.layout = below(t->nlayout);
	if (!below(8)) {
		x.flags = TENSOR_BLOB;
		x.dtype = CKPT_U8;
		x.ndim = 1;
		x.layout = TABLE_NONE;
		x.rank = below(2) ? below(5) : TABLE_NONE;
		x.media = below(CKPT_MEDIA_NPY + 1);
		x.made = 0;
	}
	assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
}

static void random_average(struct table *t, uint32_t i)
{
	static char long_one[TABLE_SCHEDULE_MAX + 1];
	char name[24];
	struct table_average x =
		ROW(.name = name, .schedule = below(3) ? below(2) ? "every=10" : "" : long_one,
		    .product = below(100) / 7.0, .updates = below(50),
		    .last_step = below(2) ? UINT64_MAX : below(1000), .since = below(1000),
		    .flags = below(8), .rule = below(3));

	memset(long_one, 'x', below(2) ? 1500 : sizeof long_one - 1);
	snprintf(name, sizeof name, "ema%u", i);
	for (uint32_t k = 0; k < sizeof x.history; k++)
		x.history[k] = (uint8_t)below(256);
	assert_int_equal(table_add_average(t, &x, NULL, NULL), 0);
}

static void random_piece(struct table *t)
{
	struct table_piece p = ROW(.tensor = below(t->ntensor), .rank = below(6),
				   .place = below(t->nplace), .fp_known = below(2));
	const struct table_tensor *x = &t->tensor[p.tensor];
	struct indices dim[4], all;
	int64_t stride[4];
	cleanup_arena struct arena a = { 0 };

	p.set = (struct indexset){ .ndim = x->ndim, .numel = 1, .dim = dim };
	for (uint32_t d = 0; d < x->ndim; d++) {
		uint32_t k = 1 + below(3);

		assert_int_equal(indices_range(0, x->shape[d], &a, &all), 0);
		assert_int_equal(indices_cut(&all, k, below(k), 1 + below(4), &a, &dim[d]), 0);
		p.set.numel *= dim[d].total;
		stride[d] = below(50);
	}
	if (p.fp_known)
		p.fp = sample_mix(below(9));
	if (x->cls == CKPT_DERIVED && *x->of && (x->dtype == CKPT_BF16 || x->dtype == CKPT_F16) &&
	    below(2))
		p.flags = PIECE_DERIVED | (below(2) ? PIECE_TRUSTED : 0);
	p.off = below(1000);
	if (!p.flags && below(2))
		p.stride = stride;
	assert_int_equal(table_add_piece(t, &p, NULL), 0);
}

static void random_table(struct table *t)
{
	uint32_t nmesh = below(3), nlayout = nmesh ? below(5) : 0, ntensor = below(12),
		 nplace = below(4), naverage = below(3), npiece;

	*t = (struct table){ 0 };
	for (uint32_t i = 0; i < nmesh; i++)
		random_mesh(t);
	for (uint32_t i = 0; i < nlayout; i++)
		random_layout(t);
	for (uint32_t i = 0; i < naverage; i++)
		random_average(t, i);
	for (uint32_t i = 0; i < ntensor; i++)
		random_tensor(t, i);
	for (uint32_t i = 0; i < nplace; i++) {
		char name[24];
		struct table_place p =
			ROW(.name = name, .rank = below(4) ? i : TABLE_NONE, .bytes = 1 << 20);

		snprintf(name, sizeof name, "place %u", i);
		assert_int_equal(table_add_place(t, &p, NULL, NULL), 0);
	}
	npiece = ntensor && nplace ? below(30) : 0;
	for (uint32_t i = 0; i < npiece; i++)
		random_piece(t);
	assert_int_equal(table_seal(t, NULL), 0);
}

/* --- are two tables the same, to the last field? --- */

static bool same_mesh(const struct mesh *x, const struct mesh *y)
{
	bool same = x->ndim == y->ndim && x->nrank == y->nrank &&
		    !memcmp(x->rank, y->rank, x->nrank * sizeof *x->rank);

	for (uint32_t d = 0; same && d < x->ndim; d++)
		same = x->dim[d] == y->dim[d] && !strcmp(x->name[d], y->name[d]);
	return same;
}

static bool same_layout(const struct layout *x, const struct layout *y)
{
	bool same = x->mesh == y->mesh && x->mode == y->mode && x->nplace == y->nplace;

	for (uint32_t i = 0; same && i < x->nplace; i++) {
		const struct ckpt_placement *p = &x->place[i], *q = &y->place[i];

		same = p->how == q->how && p->reduce == q->reduce && p->mesh_dim == q->mesh_dim &&
		       p->tensor_dim == q->tensor_dim && p->flags == q->flags &&
		       p->split_factor == q->split_factor;
	}
	return same;
}

static bool same_tensor(const struct table_tensor *x, const struct table_tensor *y)
{
	return !strcmp(x->component, y->component) && !strcmp(x->name, y->name) &&
	       !strcmp(x->of, y->of) && x->dtype == y->dtype && x->elem_bytes == y->elem_bytes &&
	       x->role == y->role && x->cls == y->cls && x->flags == y->flags &&
	       x->layout == y->layout && x->rank == y->rank && x->ndim == y->ndim &&
	       !memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape) && x->numel == y->numel &&
	       x->fp == y->fp && x->fp_known == y->fp_known && x->media == y->media &&
	       x->made == y->made;
}

static bool same_average(const struct table_average *x, const struct table_average *y)
{
	return !strcmp(x->name, y->name) && !strcmp(x->schedule, y->schedule) &&
	       !memcmp(&x->product, &y->product, sizeof x->product) && x->updates == y->updates &&
	       x->last_step == y->last_step && x->since == y->since &&
	       !memcmp(x->history, y->history, sizeof x->history) && x->flags == y->flags &&
	       x->rule == y->rule;
}

static bool same_piece(const struct table_piece *x, const struct table_piece *y)
{
	bool same = x->tensor == y->tensor && x->rank == y->rank && x->place == y->place &&
		    x->flags == y->flags && x->off == y->off && x->len == y->len &&
		    x->fp == y->fp && x->fp_known == y->fp_known && !x->stride == !y->stride &&
		    x->set.ndim == y->set.ndim && x->set.numel == y->set.numel;

	for (uint32_t d = 0; same && d < x->set.ndim; d++) {
		const struct indices *p = &x->set.dim[d], *q = &y->set.dim[d];

		same = p->n == q->n && p->total == q->total &&
		       !memcmp(p->run, q->run, p->n * sizeof *p->run) &&
		       (!x->stride || x->stride[d] == y->stride[d]);
	}
	return same;
}

static bool same_table(const struct table *x, const struct table *y, bool pieces)
{
	bool same = x->nmesh == y->nmesh && x->nlayout == y->nlayout && x->ntensor == y->ntensor &&
		    x->naverage == y->naverage;

	for (uint32_t i = 0; same && i < x->naverage; i++)
		same = same_average(&x->average[i], &y->average[i]);

	for (uint32_t i = 0; same && i < x->nmesh; i++)
		same = same_mesh(&x->mesh[i], &y->mesh[i]);
	for (uint32_t i = 0; same && i < x->nlayout; i++)
		same = same_layout(&x->layout[i], &y->layout[i]);
	for (uint32_t i = 0; same && i < x->ntensor; i++)
		same = same_tensor(&x->tensor[i], &y->tensor[i]);
	if (!pieces)
		return same && !y->npiece && !y->nplace;
	same = same && x->npiece == y->npiece && x->nplace == y->nplace;
	for (uint32_t i = 0; same && i < x->npiece; i++)
		same = same_piece(&x->piece[i], &y->piece[i]);
	for (uint32_t i = 0; same && i < x->nplace; i++)
		same = x->place[i].rank == y->place[i].rank &&
		       x->place[i].bytes == y->place[i].bytes &&
		       !strcmp(x->place[i].name, y->place[i].name);
	return same;
}

/* --- round trips --- */

/* Declarations once, pieces twice. */
static void two_steps(const struct table *t, const struct table_section *s, uint32_t n)
{
	struct table tensors, both[2];
	struct ckpt_err err = { 0 };

	assert_int_equal(table_decode_tensors(s, n, &tensors, &err), 0);
	assert_true(same_table(t, &tensors, false));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(table_decode_pieces(s, n, &tensors, NULL, 0, &both[i], &err), 0);
		assert_true(same_table(t, &both[i], true));
	}
	table_free(&both[0]);
	assert_true(same_table(t, &both[1], true));
	table_free(&both[1]);
	assert_true(same_table(t, &tensors, false));
	table_free(&tensors);
}

static void round_trip(const struct table *t)
{
	for (int pieces = 0; pieces < 2; pieces++) {
		struct table_section s[TABLE_SECTIONS_MAX], again[TABLE_SECTIONS_MAX];
		cleanup_table struct table u = { 0 };
		struct ckpt_err err = { 0 };
		cleanup_arena struct arena a = { 0 }, b = { 0 };
		uint32_t n, m;

		assert_int_equal(table_encode(t, pieces, &a, s, &n, &err), 0);
		for (uint32_t i = 1; i < n; i++)
			assert_true(s[i - 1].kind < s[i].kind);
		if (table_decode(s, n, NULL, 0, &u, &err) < 0)
			fail_msg("%s", err.msg);
		arena_free(&a); /* nothing of u points there */
		assert_true(same_table(t, &u, pieces));
		for (uint32_t i = 0; i < u.ntensor; i++)
			assert_int_equal(table_find(&u, u.tensor[i].component, u.tensor[i].name,
						    u.tensor[i].rank),
					 i);
		if (pieces) {
			assert_int_equal(table_encode(t, true, &a, s, &n, &err), 0);
			two_steps(t, s, n);
			arena_free(&a);
		}
		/* Again, from the copy: the same bytes. */
		assert_int_equal(table_encode(t, pieces, &a, s, &n, &err), 0);
		assert_int_equal(table_encode(&u, pieces, &b, again, &m, &err), 0);
		assert_int_equal(n, m);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(s[i].kind, again[i].kind);
			assert_int_equal(s[i].rec_bytes, again[i].rec_bytes);
			assert_int_equal(s[i].len, again[i].len);
			assert_int_equal(s[i].len, s[i].count * s[i].rec_bytes);
			assert_memory_equal(s[i].bytes, again[i].bytes, s[i].len);
		}
	}
}

TEST(random_tables_come_back_as_they_were)
{
	seed = draw_seed(__func__);
	for (int i = 0; i < 500; i++) {
		cleanup_table struct table t = { 0 };

		random_table(&t);
		round_trip(&t);
	}
}

TEST(the_sample_comes_back_as_it_was)
{
	struct sample s;

	for (uint32_t r = 0; r < 8; r++) {
		assert_int_equal(sample_make("pp=2,tp=2,fsdp=2", r, 3, 1, &s), 0);
		round_trip(&s.decl);
		sample_free(&s);
	}
}

TEST(equal_strings_shapes_and_sets_are_stored_once)
{
	uint64_t shape[2] = { 64, 8 };
	struct table_section s[TABLE_SECTIONS_MAX];
	cleanup_table struct table t = { 0 };
	struct table_place place = { .name = "p", .rank = 0, .bytes = 1 << 20 };
	cleanup_arena struct arena a = { 0 }, b = { 0 };
	struct table_piece p = { .rank = 0 };
	uint32_t n;
	uint64_t zero[2] = { 0, 0 };

	assert_int_equal(table_add_place(&t, &place, NULL, NULL), 0);
	assert_int_equal(indexset_box(2, zero, shape, &b, &p.set), 0);
	for (uint32_t i = 0; i < 100; i++) {
		char name[8];
		struct table_tensor x =
			ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_F32,
			    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 2, .shape = shape);

		snprintf(name, sizeof name, "w%02u", i);
		assert_int_equal(table_add_tensor(&t, &x, &p.tensor, NULL), 0);
		assert_int_equal(table_add_piece(&t, &p, NULL), 0);
	}
	assert_int_equal(table_seal(&t, NULL), 0);
	assert_int_equal(table_encode(&t, true, &a, s, &n, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		if (s[i].kind == CK_STRINGS)
			assert_int_equal(s[i].len, 1 + 6 + 100 * 4 + 2);
		if (s[i].kind == CK_SHAPES)
			assert_int_equal(s[i].count, 2);
		if (s[i].kind == CK_INDEXSETS)
			assert_int_equal(s[i].count, 1 + 2 * 5);
	}
}

/* --- damage --- */

/* A copy of the sections that can be written to, in blocks of exact size, so that ASan sees the
 * byte behind. */
static void sections_copy(const struct table_section *s, uint32_t n, struct table_section *ret)
{
	for (uint32_t i = 0; i < n; i++) {
		ret[i] = s[i];
		ret[i].bytes = malloc(s[i].len ? s[i].len : 1);
		assert_non_null(ret[i].bytes);
		memcpy((void *)ret[i].bytes, s[i].bytes, s[i].len);
	}
}

static void sections_free(struct table_section *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free((void *)s[i].bytes);
}

TEST(no_byte_can_change_unseen_or_do_harm)
{
	uint64_t refused = 0, seen = 0, unseen = 0;

	seed = 77;
	for (int round = 0; round < 12; round++) {
		struct table_section s[TABLE_SECTIONS_MAX], m[TABLE_SECTIONS_MAX];
		cleanup_arena struct arena a = { 0 };
		cleanup_table struct table t = { 0 }, u = { 0 };
		uint32_t n;

		random_table(&t);
		assert_int_equal(table_encode(&t, true, &a, s, &n, NULL), 0);
		sections_copy(s, n, m);
		for (uint32_t i = 0; i < n; i++) {
			for (uint64_t k = 0; k < m[i].len; k++) {
				uint8_t *b = (uint8_t *)m[i].bytes + k, was = *b;
				struct ckpt_err err = { 0 };
				int r;

				*b = (uint8_t)(below(2) ? was ^ 1u << below(8) : below(256));
				if (*b == was)
					continue;
				r = table_decode(m, n, NULL, 0, &u, &err);
				if (r < 0) {
					assert_true(r == -EPROTO || r == -EPROTONOSUPPORT);
					assert_int_equal(err.code, r);
					if (r == -EPROTONOSUPPORT)
						assert_non_null(strstr(err.msg, "newer version"));
					assert_true(*err.msg);
					refused++;
				} else {
					if (same_table(&t, &u, true))
						unseen++;
					else
						seen++;
					table_free(&u);
				}
				*b = was;
			}
		}
		sections_free(m, n);
	}
	assert_true(refused > 1000 && seen > 1000);
	assert_int_equal(unseen, 0);
}

TEST(truncated_longer_and_missing_sections_are_refused_or_empty)
{
	struct table_section s[TABLE_SECTIONS_MAX], m[TABLE_SECTIONS_MAX];
	cleanup_arena struct arena a = { 0 };
	cleanup_sample struct sample x = { 0 };
	cleanup_table struct table u = { 0 };
	uint32_t n;

	assert_int_equal(sample_make("pp=2,fsdp=2", 1, 3, 1, &x), 0);
	assert_int_equal(table_encode(&x.decl, true, &a, s, &n, NULL), 0);
	assert_int_equal(n, TABLE_SECTIONS_MAX - 1); /* all but AVERAGES */
	for (uint32_t i = 0; i < n; i++) {
		for (uint64_t keep = 0; keep < s[i].count; keep += 1 + s[i].count / 50) {
			struct ckpt_err err = { 0 };
			int r;

			sections_copy(s, n, m);
			m[i].bytes = realloc((void *)m[i].bytes, keep * s[i].rec_bytes + 1);
			m[i].count = keep;
			m[i].len = keep * s[i].rec_bytes;
			r = table_decode(m, n, NULL, 0, &u, &err);
			if (r == 0) { /* fewer pieces or places nobody points to */
				assert_true(s[i].kind == CK_PIECES);
				table_free(&u);
			} else {
				assert_int_equal(r, -EPROTO);
			}
			m[i].len++;
			assert_int_equal(table_decode(m, n, NULL, 0, &u, &err), -EPROTO);
			m[i].len--;
			m[i].rec_bytes++;
			assert_int_equal(table_decode(m, n, NULL, 0, &u, &err), -EPROTONOSUPPORT);
			sections_free(m, n);
		}
	}
	assert_int_equal(table_decode(s, 0, NULL, 0, &u, NULL), -EPROTO); /* not even STRINGS */
	assert_int_equal(table_decode(s, 1, NULL, 0, &u, NULL), 0);
	assert_int_equal(u.ntensor, 0);
}

/* One tensor with one piece, to change one field after the other. */
struct one {
	struct table t;
	struct arena a;
	struct table_section s[TABLE_SECTIONS_MAX];
	uint32_t n;
	void *bytes[CK_PLACES + 1];
};

static void one_make(struct one *o)
{
	cleanup_sample struct sample s = { 0 };
	struct table_section enc[TABLE_SECTIONS_MAX];

	*o = (struct one){ .n = 0 };
	assert_int_equal(sample_make("fsdp=2", 0, 3, 1, &s), 0);
	assert_int_equal(table_encode(&s.decl, true, &o->a, enc, &o->n, NULL), 0);
	sections_copy(enc, o->n, o->s);
	for (uint32_t i = 0; i < o->n; i++)
		o->bytes[o->s[i].kind] = (void *)o->s[i].bytes;
}

static void one_free(struct one *o)
{
	sections_free(o->s, o->n);
	arena_free(&o->a);
}

static void refused(struct one *o, int code, const char *why)
{
	struct ckpt_err err = { 0 };
	struct table u;
	int r = table_decode(o->s, o->n, NULL, 0, &u, &err);

	if (r != code || err.code != code)
		fail_msg("%d, should be %d and say \"%s\"", r, code, why);
	if (!strstr(err.msg, why))
		fail_msg("said \"%s\", should say \"%s\"", err.msg, why);
}

#define REFUSED_AS(code, field, value, why)       \
	do {                                      \
		__typeof__(field) was_ = (field); \
		(field) = (value);                \
		refused(&o, code, why);           \
		(field) = was_;                   \
	} while (0)
#define REFUSED(field, value, why) REFUSED_AS(-EPROTO, field, value, why)
#define NEWER(field, value, why) REFUSED_AS(-EPROTONOSUPPORT, field, value, why)

TEST(every_malformed_field_is_refused_with_its_record_and_reason)
{
	struct one o;
	cleanup_table struct table u = { 0 };

	one_make(&o);
	struct ck_mesh *mesh = o.bytes[CK_MESHES];
	struct ck_layout *layout = o.bytes[CK_LAYOUTS];
	struct ck_placement *place = o.bytes[CK_PLACEMENTS];
	struct ck_tensor *tensor = o.bytes[CK_TENSORS];
	struct ck_piece *piece = o.bytes[CK_PIECES];
	struct ck_place *where = o.bytes[CK_PLACES];
	le64 *set = o.bytes[CK_INDEXSETS];
	char *string = o.bytes[CK_STRINGS];

	REFUSED(mesh->ndim, le32_of(CKPT_DIMS_MAX + 1), "mesh 0");
	REFUSED(mesh->nrank, le32_of(3), "mesh 0");
	REFUSED(mesh->nrank, le32_of(UINT32_MAX), "more than 16777216 ranks");
	REFUSED(mesh->data_at, le32_of(UINT32_MAX), "outside MESHDATA");
	NEWER(mesh->rank_is_iota, le32_of(2), "in form 2");
	REFUSED(mesh->rank_is_iota, le32_of(0), "outside MESHDATA");
	REFUSED(*(le32 *)o.bytes[CK_MESHDATA], le32_of(1 << 30), "outside STRINGS");
	REFUSED(layout->mesh, le32_of(7), "layout 0: a layout names mesh 7");
	NEWER(layout->mode, le32_of(7), "layout 0");
	REFUSED(layout->nplace, le32_of(17), "17 placements");
	REFUSED(layout->place_at, le32_of(UINT32_MAX), "outside PLACEMENTS");
	REFUSED(place[1].split_factor, le32_of(1), "layout 1: it is layout 0 again");
	NEWER(place->how, 9, "layout 0");
	REFUSED(place->mesh_dim, le16_of(9), "layout 0");
	REFUSED(place->flags, le16_of(1), "layout 0");
	REFUSED(place->tensor_dim, le16_of(9), "dimension");
	REFUSED(tensor->name, le32_of(UINT32_MAX), "tensor 0: a name lies outside STRINGS");
	REFUSED(tensor->component, le32_of(1 << 20), "tensor 0: a name lies outside STRINGS");
	REFUSED(tensor->of, le32_of(1 << 20), "tensor 0: a name lies outside STRINGS");
	REFUSED(tensor->of, le32_of((uint32_t)o.s[0].len - 1),
		"tensor 0: a name lies outside STRINGS"); /* "", but not at 0 */
	REFUSED(tensor->layout, le32_of(999), "layout 999");
	REFUSED(tensor->shape_at, le32_of(UINT32_MAX), "outside SHAPES");
	REFUSED(tensor->avg, le32_of(0), "average");
	for (int i = 0; i < 3; i++)
		NEWER(tensor->zero[i], 1, "must be zero");
	NEWER(tensor->dtype, le16_of(77), "dtype 77");
	REFUSED(tensor->elem_bits, le16_of(32), "elements of 32 bits");
	REFUSED(tensor->ndim, 17, "17 dimensions");
	NEWER(tensor->role, 77, "role 77");
	NEWER(tensor->cls, 77, "class 77");
	NEWER(tensor->flags, 4, "flags 0x4");
	NEWER(tensor->media, 77, "content type 77");
	REFUSED(tensor->media, 1, "only a blob");
	REFUSED(tensor->fp, le64_of(1), "not known");
	REFUSED(tensor->numel, le64_of(1), "it claims 1 elements");
	REFUSED(tensor->rank, le32_of(1), "only a blob");
	REFUSED(tensor[1], tensor[0], "declared twice");
	REFUSED(piece->tensor, le32_of(999), "piece 0: a piece names tensor 999");
	REFUSED(piece->tensor, le32_of(1), "piece 0"); /* other element size: other length */
	REFUSED(piece->indexset, le32_of(1), "no index set begins at 1");
	REFUSED(piece->stride_at, le32_of(0xfffffffe), "outside SHAPES");
	REFUSED(piece->raw_off, le64_of(UINT64_MAX), "beyond");
	REFUSED(piece->raw_len, le64_of(1), "it claims 1 bytes");
	NEWER(piece->flags, le32_of(8), "flags 0x8");
	REFUSED(piece->flags, le32_of(CK_PIECE_TRUSTED), "piece flags");
	REFUSED(piece->flags, le32_of(CK_PIECE_DERIVED), "not derived");
	REFUSED(piece->fp, le64_of(1), "not known");
	REFUSED(piece->place, le32_of(1), "place 1 of 1");
	REFUSED(piece[0], piece[2], "piece 1: it is out of order");
	REFUSED(where->name, le32_of(1 << 20), "place 0: its name");
	REFUSED(where->bytes, le64_of(100), "beyond");
	REFUSED(set[0], le64_of(17), "index set 0: 17 dimensions");
	REFUSED(set[1], le64_of(0), "index set 0: a list of 0");
	REFUSED(set[1], le64_of(UINT64_MAX), "index set 0: a list of");
	REFUSED(set[2], le64_of(UINT64_MAX), "index set 0"); /* start */
	REFUSED(set[2], le64_of(4000), "beyond");
	REFUSED(set[3], le64_of(0), "index set 0"); /* len */
	REFUSED(set[3], le64_of(UINT64_MAX), "index set 0");
	REFUSED(set[4], le64_of(1), "index set 0"); /* stride */
	REFUSED(set[5], le64_of(0), "index set 0"); /* count */
	REFUSED(set[5], le64_of(UINT64_MAX), "index set 0");
	REFUSED(string[0], 'x', "STRINGS");
	REFUSED(string[o.s[0].len - 1], 'x', "STRINGS");
	assert_int_equal(table_decode(o.s, o.n, NULL, 0, &u, NULL), 0); /* all was put back */
	one_free(&o);
}

TEST(a_mesh_of_a_few_bytes_cannot_ask_for_much_memory)
{
	static const char strings[] = "\0a";
	enum { N = 1000 };
	struct ck_mesh mesh[N];
	le32 data[2 * N];
	struct table_section s[] = {
		{ .kind = CK_STRINGS, .rec_bytes = 1, .len = 3, .count = 3, .bytes = strings },
		ROW(.kind = CK_MESHES, .rec_bytes = 16, .len = sizeof mesh, .count = N,
		    .bytes = mesh),
		ROW(.kind = CK_MESHDATA, .rec_bytes = 4, .len = sizeof data,
		    .count = ARRAY_LEN(data), .bytes = data),
	};
	struct ckpt_err err;
	struct table u;

	for (uint32_t i = 0; i < N; i++) {
		mesh[i] =
			(struct ck_mesh)ROW(.ndim = le32_of(1), .nrank = le32_of((1 << 20) - i),
					    .data_at = le32_of(2 * i), .rank_is_iota = le32_of(1));
		data[2 * i] = le32_of(1);
		data[2 * i + 1] = le32_of((1 << 20) - i);
	}
	assert_int_equal(table_decode(s, ARRAY_LEN(s), NULL, 0, &u, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "mesh 16: more than 16777216 ranks"));
}

/* A declaration has places; of a file they are said by who reads it. */
TEST(boxes_are_a_layout_in_declarations_and_in_no_file)
{
	struct ckpt_err err = { 0 };
	struct table t;
	struct one o;

	one_make(&o);
	struct ck_layout *layout = o.bytes[CK_LAYOUTS];

	layout[0].mode = le32_of(CKPT_BOXES);
	assert_int_equal(table_decode(o.s, o.n, NULL, 0, &t, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "nplace must be 0"));
	assert_int_equal(table_decode_tensors(o.s, o.n, &t, &err), -EPROTONOSUPPORT);
	assert_non_null(strstr(err.msg, "mode 4 is unknown"));
	assert_int_equal(
		table_decode(o.s, o.n, &(struct table_place){ "file", 0, 1 << 20 }, 1, &t, &err),
		-EPROTONOSUPPORT);
	assert_non_null(strstr(err.msg, "mode 4 is unknown"));
	one_free(&o);
}

/* `of` may be as long as any key. */
TEST(the_longest_key_comes_back)
{
	static char component[CKPT_NAME_MAX + 1], key[TABLE_KEY_BYTES];
	struct table_tensor x = ROW(.component = component, .name = component, .of = "",
				    .dtype = CKPT_F32, .layout = TABLE_NONE, .rank = TABLE_NONE);
	cleanup_table struct table t = { 0 };

	memset(component, 'c', CKPT_NAME_MAX);
	assert_ok(table_add_tensor(&t, &x, NULL, NULL));
	x.of = table_key(&t.tensor[0], key);
	x.name = "w";
	assert_ok(table_add_tensor(&t, &x, NULL, NULL));
	assert_int_equal(table_seal(&t, NULL), 0);
	round_trip(&t);
}
