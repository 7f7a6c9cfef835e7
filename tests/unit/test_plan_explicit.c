/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_explicit.c - which changes a load makes: against a count element by element and rank
 * by rank on random meshes and layouts, and by hand what layouts do not say (pieces without a
 * layout, pieces that are not where their layout says, blobs, what is left out, what was asked
 * for).
 */
#include "tests/unit/test_layout_cases.h"
#include "ckpt/plan/explicit.h"
#include "ckpt/plan/explicit_copies.h"
#include "ckpt/table/target.h"
#include "tests/lib/row.h"

#if defined(__SANITIZE_ADDRESS__)
#define CASES 600
#else
#define CASES 3000
#endif
#define RANK_MAX 272 /* above what random_side gives a rank */
#define NUMEL_MAX 1000

static uint32_t find_bits(const struct table *src, const struct table *dst,
			  const struct explicit_opts *o)
{
	struct explicit_found f;
	struct ckpt_err err = { 0 };
	uint32_t bits = 0;

	assert_ok_err(explicit_find(src, dst, o, &f, &err), &err);
	for (uint32_t i = 0; i < f.ngroup; i++)
		bits |= explicit_unasked(&f.group[i], 0);
	explicit_free(&f);
	return bits;
}

/* --- the oracle: a byte for each rank and element --- */

struct oracle {
	uint8_t has[RANK_MAX][NUMEL_MAX];
	uint32_t operands, nelement[RANK_MAX];
	bool partial;
};

static bool oracle_make(const struct layout_case *c, const struct side *s, struct oracle *ret)
{
	static uint32_t element[CASE_NUMEL];
	struct mesh m = side_mesh(s);

	memset(ret, 0, sizeof *ret);
	ret->operands = 1;
	for (uint32_t i = 0; i < s->nplace; i++)
		if (s->place[i].how == CKPT_PARTIAL) {
			ret->partial = true;
			ret->operands *= s->dim[s->place[i].mesh_dim];
		}
	for (uint32_t place = 0; place < m.nrank; place++) {
		cleanup_arena struct arena a = { 0 };
		uint32_t rank = s->rank[place];
		struct indexset x;

		if (!side_share(c, s, place, &a, &x))
			return false;
		ret->nelement[rank] = elements_of(&x, c->shape, element);
		for (uint32_t i = 0; i < ret->nelement[rank]; i++)
			ret->has[rank][element[i]] = 1;
	}
	return true;
}

static bool same_elements(const struct oracle *x, uint32_t r, const struct oracle *y, uint32_t q)
{
	return x->nelement[r] == y->nelement[q] && !memcmp(x->has[r], y->has[q], NUMEL_MAX);
}

static bool someone_had(const struct oracle *old, const struct oracle *new, uint32_t rank)
{
	for (uint32_t r = 0; r < RANK_MAX; r++)
		if (same_elements(old, r, new, rank))
			return true;
	return false;
}

/* copies: of each element, of the new ones less the old ones. */
static void rank_count(const struct oracle *old, const struct oracle *new, uint32_t r,
		       int32_t *copies, uint64_t *moved)
{
	for (uint32_t e = 0; e < NUMEL_MAX; e++) {
		*moved += new->has[r][e] && !old->has[r][e];
		copies[e] += (int32_t)(new->has[r][e] * old->operands) -
			     (int32_t)(old->has[r][e] * new->operands);
	}
}

static uint32_t oracle_bits(const struct oracle *old, const struct oracle *new, bool same,
			    uint64_t *ret_moved)
{
	static int32_t copies[NUMEL_MAX];
	uint32_t bits = 0;

	*ret_moved = 0;
	memset(copies, 0, sizeof copies);
	for (uint32_t r = 0; r < RANK_MAX; r++) {
		if (!old->nelement[r] && !new->nelement[r])
			continue;
		if (old->nelement[r] ? !same_elements(old, r, new, r) : !someone_had(old, new, r))
			bits |= EXPLICIT_BIT(RESHARD);
		rank_count(old, new, r, copies, ret_moved);
	}
	for (uint32_t e = 0; e < NUMEL_MAX; e++)
		bits |= copies[e] > 0 ? EXPLICIT_BIT(REPLICATE) : 0;
	if (old->partial && !same)
		bits |= EXPLICIT_BIT(REDUCE);
	if (new->partial && !same)
		bits |= EXPLICIT_BIT(RESHARD);
	return bits;
}

/* --- random cases --- */

static bool side_table(const struct layout_case *c, const struct side *s, uint32_t dtype,
		       struct table *ret)
{
	struct mesh m = side_mesh(s);
	struct layout l = side_layout(s);
	struct table_tensor x =
		ROW(.component = "model", .name = "w", .of = "", .dtype = dtype, .cls = CKPT_STABLE,
		    .rank = TABLE_NONE, .ndim = c->ndim, .shape = c->shape);

	return !table_add_mesh(ret, &m, &l.mesh, NULL) &&
	       !table_add_layout(ret, &l, &x.layout, NULL) &&
	       !table_add_tensor(ret, &x, NULL, NULL) && !table_seal(ret, NULL);
}

static uint32_t nidentical;

/* Half of the cases are nearly alike: the same side, or the same with other ranks, or as it
 * came. */
static struct side other_side(const struct layout_case *c)
{
	struct side s = c->side[1];

	if (c->to % 4 < 2)
		s = c->side[0];
	if (c->to % 4 == 1) {
		uint32_t r = s.rank[0];

		s.rank[0] = s.rank[1];
		s.rank[1] = r;
	}
	return s;
}

static bool what_differs_is_found(const struct layout_case *c, char *why)
{
	static struct oracle old, new;
	const struct side s = other_side(c);
	const bool same = c->to % 4 == 0 || (c->to % 4 == 1 && side_mesh(&s).nrank == 1 &&
					     s.rank[0] == c->side[0].rank[0]);
	struct table src = { 0 }, dst = { 0 };
	struct explicit_found f = { 0 };
	uint32_t want, got = 0;
	uint64_t moved = 0;
	bool good = case_numel(c) <= NUMEL_MAX && side_table(c, &c->side[0], CKPT_F32, &src) &&
		    side_table(c, &s, CKPT_F32, &dst) && oracle_make(c, &c->side[0], &old) &&
		    oracle_make(c, &s, &new);

	if (good && !explicit_find(&src, &dst, NULL, &f, NULL)) {
		want = oracle_bits(&old, &new, same, &moved);
		got = f.group[0].found;
		nidentical += !want;
		if (got != want)
			good = BROKEN("found %x, not %x", got, want);
		else if (!(want & EXPLICIT_BIT(REDUCE)) && f.group[0].moved != 4 * moved)
			good = BROKEN("%" PRIu64 " bytes move, not %" PRIu64, f.group[0].moved,
				      4 * moved);
	}
	explicit_free(&f);
	table_free(&src);
	table_free(&dst);
	return good;
}

TEST(what_a_rank_holds_that_it_did_not_hold_is_in_the_list)
{
	nidentical = 0;
	cases_hold(__func__, what_differs_is_found, 2, CASES);
	assert_true(nidentical > unit_scaled(CASES) / 10);
	assert_true(nidentical < CASES / 2);
}

/* --- by hand --- */

static void add(struct table *t, const char *mesh, const char *placements, const char *name,
		uint64_t rows)
{
	cleanup_arena struct arena a = { 0 };
	uint64_t shape[] = { rows, 4 };
	struct mesh m;
	struct layout l;
	struct ckpt_err err = { 0 };
	struct table_tensor x = ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_F32,
				    .cls = CKPT_STABLE, .rank = TABLE_NONE, .layout = TABLE_NONE,
				    .ndim = 2, .shape = shape);

	if (mesh) {
		assert_ok_err(mesh_parse(mesh, &a, &m, &err), &err);
		assert_ok_err(table_add_mesh(t, &m, &l.mesh, &err), &err);
	}
	if (placements) {
		uint32_t id = l.mesh;

		assert_ok_err(layout_parse(placements, &m, &a, &l, &err), &err);
		l.mesh = id;
		assert_ok_err(table_add_layout(t, &l, &x.layout, &err), &err);
	}
	assert_ok_err(table_add_tensor(t, &x, NULL, &err), &err);
}

/* Rows [from, to) of the newest tensor lie with a rank. */
static struct table_piece *add_piece(struct table *t, uint32_t rank, uint64_t from, uint64_t to)
{
	cleanup_arena struct arena a = { 0 };
	uint64_t start[] = { from, 0 }, extent[] = { to - from, 4 };
	struct table_piece p = { .tensor = t->ntensor - 1, .rank = rank, .off = from * 16 };
	struct ckpt_err err = { 0 };

	if (!t->nplace)
		assert_ok_err(table_add_place(t,
					      &(struct table_place){ "part", TABLE_NONE, 1 << 20 },
					      NULL, &err),
			      &err);
	assert_ok_err(indexset_box(2, start, extent, &a, &p.set), &err);
	assert_ok_err(table_add_piece(t, &p, &err), &err);
	return &t->piece[t->npiece - 1];
}

static void seal(struct table *t)
{
	struct ckpt_err err = { 0 };

	assert_ok_err(table_seal(t, &err), &err);
}

/* One tensor of 8 rows, on both sides. */
static uint32_t between(const char *from_mesh, const char *from, const char *to_mesh,
			const char *to, const struct explicit_opts *o)
{
	struct table src = { 0 }, dst = { 0 };
	uint32_t bits;

	add(&src, from_mesh, from, "w", 8);
	add(&dst, to_mesh, to, "w", 8);
	seal(&src);
	seal(&dst);
	bits = find_bits(&src, &dst, o);
	table_free(&src);
	table_free(&dst);
	return bits;
}

TEST(more_ranks_with_the_same_shares_are_copies_and_fewer_are_a_reshard)
{
	assert_int_equal(between("dp=2,x=2", "Shard(0)@x", "dp=4,x=2", "Shard(0)@x", NULL),
			 EXPLICIT_BIT(REPLICATE));
	assert_int_equal(between("dp=4,x=2", "Shard(0)@x", "dp=2,x=2", "Shard(0)@x", NULL),
			 EXPLICIT_BIT(RESHARD));
	assert_int_equal(between("x=2", "Shard(0)@x", "x=2", "Replicate", NULL),
			 EXPLICIT_BIT(RESHARD) | EXPLICIT_BIT(REPLICATE));
	assert_int_equal(between("x=2", "Shard(0)@x", "x=2", "Shard(1)@x", NULL),
			 EXPLICIT_BIT(RESHARD));
	assert_int_equal(
		between("x=2", "Partial(sum, keep)@x", "x=2", "Partial(sum, keep)@x", NULL), 0);
	assert_int_equal(between("x=2", "Partial(sum, keep)@x", "x=2", "Replicate", NULL),
			 EXPLICIT_BIT(REDUCE) | EXPLICIT_BIT(REPLICATE));
	assert_int_equal(between("y=2,x=2", "Shard(0)@x", "x=2,y=2", "Shard(0)@x", NULL),
			 EXPLICIT_BIT(RESHARD));
}

/* Another name of a dimension moves nothing. */
TEST(names_of_dimensions_are_no_change)
{
	assert_int_equal(between("x=4", "Shard(0)@x", "fsdp=4", "Shard(0)@fsdp", NULL), 0);
}

TEST(copies_are_asked_for_by_the_dimension_that_they_are_over)
{
	struct explicit_opts dp = { .replicate = 1 }, tp = { .replicate = 2 },
			     both = { .replicate = 3 };

	assert_int_equal(between("x=2", "Shard(0)@x", "dp=2,x=2", "Shard(0)@x", &dp), 0);
	assert_int_equal(between("x=2", "Shard(0)@x", "dp=2,x=2", "Shard(0)@x", &tp),
			 EXPLICIT_BIT(REPLICATE));
	/* the copies over dp were there; those over tp were not */
	assert_int_equal(between("dp=2", "Replicate", "dp=2,tp=2", "Replicate", &dp),
			 EXPLICIT_BIT(REPLICATE));
	assert_int_equal(between("dp=2", "Replicate", "dp=2,tp=2", "Replicate", &tp), 0);
	assert_int_equal(between("dp=2", "Replicate", "dp=4,tp=2", "Replicate", &tp),
			 EXPLICIT_BIT(REPLICATE));
	assert_int_equal(between("dp=2", "Replicate", "dp=4,tp=2", "Replicate", &both), 0);
}

TEST(what_was_asked_of_a_tensor_is_not_listed_and_nothing_else_is_asked_by_it)
{
	const uint8_t placed = EXPLICIT_PLACED, copied = EXPLICIT_BIT(REPLICATE);

	assert_int_equal(between("x=2", "Shard(0)@x", "x=2", "Replicate",
				 &(struct explicit_opts){ .asked = &placed }),
			 0);
	assert_int_equal(between("x=2", "Shard(0)@x", "x=2", "Replicate",
				 &(struct explicit_opts){ .asked = &copied }),
			 EXPLICIT_BIT(RESHARD));
	assert_int_equal(between("x=2", "Shard(0)@x", "x=2", "Replicate",
				 &(struct explicit_opts){ .asked_all = EXPLICIT_BIT(RESHARD) }),
			 EXPLICIT_BIT(REPLICATE));
}

/* --- what layouts do not say --- */

TEST(a_piece_that_is_not_where_its_layout_says_is_a_reshard)
{
	struct table src = { 0 }, dst = { 0 };
	struct explicit_found f;
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < 3; i++) {
		char name[8];

		snprintf(name, sizeof name, "w%u", i);
		add(&src, "x=2", "Shard(0)@x", name, 8);
		add(&dst, "x=2", "Shard(0)@x", name, 8);
		add_piece(&src, i == 1, 0, 4); /* of the second one the ranks are the other way */
		add_piece(&src, i != 1, 4, 8);
	}
	seal(&src);
	seal(&dst);
	assert_ok_err(explicit_find(&src, &dst, NULL, &f, &err), &err);
	assert_int_equal(f.ngroup, 2);
	assert_int_equal(f.group[0].found, 0);
	assert_int_equal(f.group[0].ntensor, 2);
	assert_int_equal(f.group[f.of_dst[1]].found, EXPLICIT_BIT(RESHARD));
	assert_true(f.group[f.of_dst[1]].stray);
	explicit_free(&f);
	table_free(&src);
	table_free(&dst);
}

static uint32_t pieces_to(struct table *src, const char *mesh, const char *placements,
			  const struct explicit_opts *o)
{
	struct table dst = { 0 };
	uint32_t bits;

	add(&dst, mesh, placements, "w", 8);
	seal(&dst);
	bits = find_bits(src, &dst, o);
	table_free(&dst);
	return bits;
}

TEST(without_a_layout_the_ranks_that_wrote_it_held_it)
{
	struct explicit_opts target = { .target = true };
	struct table halves = { 0 };

	add(&halves, NULL, NULL, "w", 8);
	add_piece(&halves, 0, 0, 4);
	add_piece(&halves, 1, 4, 8);
	seal(&halves);
	assert_int_equal(pieces_to(&halves, "x=2", "Shard(0)@x", NULL), 0);
	assert_int_equal(pieces_to(&halves, "x=2", "Shard(1)@x", NULL), EXPLICIT_BIT(RESHARD));
	assert_int_equal(pieces_to(&halves, "x=2", "Shard(1)@x", &target), EXPLICIT_BIT(CUT));
	/* it does not say whether rank 2 and 3 had copies */
	assert_int_equal(pieces_to(&halves, "dp=2,x=2", "Shard(0)@x", NULL),
			 EXPLICIT_BIT(REPLICATE));
	table_free(&halves);
}

TEST(boxes_that_stay_with_their_ranks_are_no_change_and_others_are)
{
	struct table src = { 0 }, same = { 0 }, other = { 0 }, all = { 0 }, more = { 0 };

	add(&src, NULL, NULL, "w", 8);
	add(&same, NULL, NULL, "w", 8);
	add(&other, NULL, NULL, "w", 8);
	add_piece(&src, 0, 0, 3);
	add_piece(&src, 5, 3, 8);
	add_piece(&same, 0, 0, 1);
	add_piece(&same, 0, 1, 3);
	add_piece(&same, 5, 3, 8);
	add_piece(&other, 0, 0, 4);
	add_piece(&other, 5, 4, 8);
	add(&all, "x=1", "Replicate", "w", 8); /* rank 0 held all of it */
	add(&more, NULL, NULL, "w", 8);
	add_piece(&more, 0, 0, 8);
	add_piece(&more, 1, 0, 4);
	seal(&src);
	seal(&same);
	seal(&other);
	seal(&all);
	seal(&more);
	assert_int_equal(find_bits(&all, &more, NULL),
			 EXPLICIT_BIT(RESHARD) | EXPLICIT_BIT(REPLICATE));
	table_free(&all);
	table_free(&more);
	assert_int_equal(find_bits(&src, &same, NULL), 0);
	assert_int_equal(find_bits(&src, &other, NULL), EXPLICIT_BIT(RESHARD));
	table_free(&src);
	table_free(&same);
	table_free(&other);
}

/* Four rows lose a copy, four others get one: as many copies in all. */
TEST(copies_that_some_elements_lose_do_not_hide_those_that_others_get)
{
	struct table src = { 0 }, dst = { 0 };
	struct explicit_found f;

	add(&src, NULL, NULL, "w", 8);
	add_piece(&src, 0, 0, 8);
	add_piece(&src, 1, 0, 4);
	add(&dst, NULL, NULL, "w", 8);
	add_piece(&dst, 0, 0, 8);
	add_piece(&dst, 1, 4, 8);
	seal(&src);
	seal(&dst);
	assert_ok(explicit_find(&src, &dst, NULL, &f, NULL));
	assert_int_equal(f.group[0].found, EXPLICIT_BIT(RESHARD) | EXPLICIT_BIT(REPLICATE));
	assert_int_equal(f.group[0].price[EXPLICIT_REPLICATE], 4 * 4 * 4);
	explicit_free(&f);
	table_free(&src);
	table_free(&dst);
}

#define GRID_MAX 12 /* along each of up to three dimensions */

static void random_list(uint64_t size, struct arena *a, struct indices *ret)
{
	struct run r = { .start = naive_below((uint32_t)size), .count = 1 };
	struct run *run = arena_array(a, 1, sizeof *run);

	r.len = 1 + naive_below((uint32_t)(size - r.start));
	r.stride = r.len;
	if (naive_below(2)) {
		r.stride = r.len + 1 + naive_below(3);
		r.count = 1 + naive_below((uint32_t)((size - r.start - r.len) / r.stride + 1));
	}
	if (r.count == 1)
		r.stride = r.len;
	assert_non_null(run);
	*run = r;
	*ret = (struct indices){ .n = 1, .total = r.len * r.count, .run = run };
}

static bool list_has(const struct indices *x, uint64_t i)
{
	const struct run *r = x->run;

	return i >= r->start && (i - r->start) / r->stride < r->count &&
	       (i - r->start) % r->stride < r->len;
}

static void random_copies(uint32_t ndim, const uint64_t *shape, struct arena *a, struct copies *ret)
{
	struct held *at = arena_array(a, 5, sizeof *at);

	*ret = (struct copies){ .operands = 1 + naive_below(3), .n = naive_below(5), .at = at };
	if (naive_below(3) == 0)
		ret->each = ret->operands * (1 + naive_below(3));
	assert_non_null(at);
	for (uint32_t i = 0; i < ret->n; i++) {
		struct indices *dim = arena_array(a, ndim + 1, sizeof *dim);

		assert_non_null(dim);
		at[i].set = (struct indexset){ ndim, 1, dim };
		for (uint32_t d = 0; d < ndim; d++)
			random_list(shape[d], a, &dim[d]);
	}
}

/* How many copies of the element there are, times the operands of the other side. */
static int64_t copies_of(const struct copies *c, uint32_t ndim, const uint64_t *pos,
			 uint32_t others)
{
	int64_t n = (int64_t)c->each;

	for (uint32_t i = 0; i < c->n && !c->each; i++) {
		bool has = true;

		for (uint32_t d = 0; d < ndim; d++)
			has = has && list_has(&c->at[i].set.dim[d], pos[d]);
		n += has;
	}
	return n * others;
}

static void narrow(struct table *t, uint32_t tensor)
{
	t->tensor[tensor].dtype = CKPT_BF16;
	t->tensor[tensor].elem_bytes = 2;
}

TEST(of_what_is_derived_the_f32_elements_are_read)
{
	struct table src = { 0 }, dst = { 0 };
	struct explicit_found f;

	add(&src, NULL, NULL, "w", 8);
	narrow(&src, 0);
	add_piece(&src, 0, 0, 8)->flags = PIECE_DERIVED;
	add(&src, NULL, NULL, "x", 8);
	narrow(&src, 1);
	add_piece(&src, 0, 0, 8);
	for (uint32_t i = 0; i < 2; i++) {
		add(&dst, NULL, NULL, i ? "x" : "w", 8);
		narrow(&dst, i);
		add_piece(&dst, 0, 0, 4);
	}
	seal(&src);
	seal(&dst);
	assert_ok(explicit_find(&src, &dst, NULL, &f, NULL));
	assert_int_equal(f.ngroup, 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(f.group[i].held, 4 * 4 * 2);
		assert_int_equal(f.group[i].read, 4 * 4 * (i ? 2 : 4));
	}
	explicit_free(&f);
	table_free(&src);
	table_free(&dst);
}

TEST(copies_are_counted_element_by_element)
{
	uint32_t none = 0;

	naive_seed(__func__);
	for (uint32_t i = 0; i < 2000; i++) {
		cleanup_arena struct arena a = { 0 };
		uint64_t shape[3], pos[3] = { 0 }, numel = 1, want = 0, got;
		uint32_t ndim = naive_below(4);
		struct copies old, new;

		for (uint32_t d = 0; d < ndim; d++)
			numel *= shape[d] = 1 + naive_below(GRID_MAX);
		random_copies(ndim, shape, &a, &old);
		random_copies(ndim, shape, &a, &new);
		for (uint64_t k = 0; k < numel; k++) {
			int64_t more = copies_of(&new, ndim, pos, old.operands) -
				       copies_of(&old, ndim, pos, new.operands);

			want += more > 0 ? div_up((uint64_t)more,
						  (uint64_t)old.operands * new.operands)
					 : 0;
			for (uint32_t d = ndim; d-- > 0 && ++pos[d] == shape[d];)
				pos[d] = 0;
		}
		assert_ok(copies_added(ndim, shape, &old, &new, &got));
		assert_int_equal(got, want);
		none += !want;
	}
	assert_true(none > 100 && none < 1500);
}

/* A cut behind every second element, along both dimensions. */
TEST(more_ranges_than_are_compared_are_all_that_moves)
{
	static const uint64_t shape[] = { 4096, 4096 };
	const struct run run = { 0, 1, 2, 2048 };
	const struct indices dim[] = { { 1, 2048, &run }, { 1, 2048, &run } };
	const struct held one = { 0, { 2, 2048 * 2048, dim } };
	const struct copies none = { .operands = 1 }, some = { .operands = 1, .n = 1, .at = &one };
	uint64_t added;

	assert_int_equal(copies_added(2, shape, &none, &some, &added), -E2BIG);
}

TEST(what_no_rank_held_is_cut_or_copied_by_default)
{
	struct explicit_opts target = { .target = true };
	struct table whole = { 0 }, parts = { 0 };

	add(&whole, NULL, NULL, "w", 8);
	add_piece(&whole, TABLE_NONE, 0, 8);
	seal(&whole);
	add(&parts, NULL, NULL, "w", 8);
	add_piece(&parts, TABLE_NONE, 0, 6);
	add_piece(&parts, TABLE_NONE, 6, 8);
	seal(&parts);
	assert_int_equal(pieces_to(&whole, "x=1", NULL, &target), 0);
	assert_int_equal(pieces_to(&whole, "x=4", NULL, &target), EXPLICIT_BIT(REPLICATE));
	assert_int_equal(pieces_to(&whole, "x=4", "Shard(0)@x", &target), EXPLICIT_BIT(CUT));
	assert_int_equal(pieces_to(&parts, "x=1", NULL, &target), EXPLICIT_BIT(RESHARD));
	table_free(&whole);
	table_free(&parts);
}

static void add_blob(struct table *t, const char *name, uint32_t rank)
{
	uint64_t eight = 8;
	struct table_tensor x = ROW(.component = "blob", .name = name, .of = "", .dtype = CKPT_U8,
				    .cls = CKPT_VOLATILE, .flags = TENSOR_BLOB, .rank = rank,
				    .layout = TABLE_NONE, .ndim = 1, .shape = &eight);
	struct ckpt_err err = { 0 };

	assert_ok_err(table_add_tensor(t, &x, NULL, &err), &err);
}

static bool is_blob(void *arg, const struct table_tensor *x)
{
	(void)arg;
	return x->flags & TENSOR_BLOB;
}

static uint32_t dropped_bits(const struct table *src, struct table *dst, uint32_t left,
			     const struct explicit_opts *o)
{
	dst->tensor[left].cls = CKPT_SINK;
	return find_bits(src, dst, o);
}

TEST(blobs_of_ranks_that_are_not_there_move_and_what_is_left_out_is_dropped)
{
	struct explicit_opts target = { .target = true }, drops = { .drops = true },
			     blobs = { .target = true, .wanted = is_blob };
	struct table src = { 0 }, to = { 0 }, less = { 0 };
	struct ckpt_err err = { 0 };

	add(&src, "x=2", "Shard(0)@x", "w", 8);
	add_blob(&src, "cursor", TABLE_NONE);
	add_blob(&src, "rng", 0);
	add_blob(&src, "rng", 1);
	seal(&src);
	assert_ok_err(target_make(&src, "x=2", NULL, 0, &to, NULL, NULL, &err), &err);
	assert_int_equal(find_bits(&src, &to, &target), 0);
	assert_int_equal(dropped_bits(&src, &to, 0, &target), EXPLICIT_BIT(DROP));
	table_free(&to);
	assert_ok_err(target_make(&src, "y=1,x=1", NULL, 0, &to, NULL, NULL, &err), &err);
	assert_int_equal(find_bits(&src, &to, &blobs), EXPLICIT_BIT(RESHARD));
	table_free(&to);
	assert_ok_err(target_make(&src, "y=2,x=1", NULL, 0, &to, NULL, NULL, &err), &err);
	assert_int_equal(find_bits(&src, &to, &blobs), 0);
	table_free(&to);
	add_blob(&less, "cursor", TABLE_NONE);
	seal(&less);
	assert_int_equal(find_bits(&src, &less, &drops), EXPLICIT_BIT(DROP));
	assert_int_equal(find_bits(&src, &less, NULL), 0);
	table_free(&less);
	table_free(&src);
}

/* --- lists --- */

struct seen {
	uint32_t n;
	char line[2][400];
};

static void on_change(void *arg, const struct explicit_group *g, enum explicit_kind kind,
		      const struct table_tensor *x)
{
	struct seen *s = arg;

	assert_true(s->n < 2);
	snprintf(s->line[s->n++], sizeof s->line[0], "%s %s %u of %u", explicit_words(kind)->name,
		 x->name, (uint32_t)g->price[kind], g->ntensor);
}

TEST(each_change_is_listed_with_its_tensor_and_price)
{
	struct table src = { 0 }, dst = { 0 };
	struct explicit_found f;
	struct ckpt_err err = { 0 };
	struct seen seen = { 0 };
	char text[600];
	uint32_t ntensor;

	add(&src, "x=2", "Shard(0)@x", "a", 8);
	add(&src, "x=2", "Shard(0)@x", "b", 8);
	add(&src, "x=2", "Shard(1)@x", "c", 8);
	add(&dst, "x=4", "Shard(0)@x", "a", 8);
	add(&dst, "x=4", "Shard(0)@x", "b", 8);
	add(&dst, "x=2", "Shard(1)@x", "c", 8);
	seal(&src);
	seal(&dst);
	assert_ok_err(explicit_find(&src, &dst, NULL, &f, &err), &err);
	assert_int_equal(f.ngroup, 2); /* a and b are alike */
	assert_int_equal(explicit_count(&f, 0, &ntensor), 2);
	assert_int_equal(ntensor, 2);
	explicit_each(&f, 0, on_change, &seen);
	assert_int_equal(seen.n, 2);
	/* rank 0 keeps its rows 0, 1; the other three take two rows of 16 bytes each */
	assert_string_equal(seen.line[0], "reshard a 96 of 2");
	assert_string_equal(seen.line[1], "reshard b 96 of 2");
	explicit_line_print(&f, &f.group[0], EXPLICIT_RESHARD, &dst.tensor[0], text, sizeof text);
	assert_string_equal(text, "model/a: reshard, Shard(0)@x on x=2 -> Shard(0)@x on x=4: 96 B");
	assert_int_equal(explicit_count(&f, EXPLICIT_BIT(RESHARD), &ntensor), 0);
	assert_int_equal(ntensor, 0);
	explicit_free(&f);
	table_free(&src);
	table_free(&dst);
}

TEST(words_of_kinds_are_read_and_all_unknown_ones_are_named)
{
	struct ckpt_err err = { 0 };
	uint32_t bits = EXPLICIT_BIT(CAST);

	assert_ok_err(explicit_parse("reshard,cut", "--allow", &bits, &err), &err);
	assert_int_equal(bits, EXPLICIT_BIT(CAST) | EXPLICIT_BIT(RESHARD) | EXPLICIT_BIT(CUT));
	assert_int_equal(explicit_parse("reshape,drop,,x", "--allow", &bits, &err), -EINVAL);
	assert_string_equal(err.msg,
			    "--allow reshape,drop,,x: there is no \"reshape\", \"\", \"x\"; the "
			    "kinds are reshard, cast, reduce, replicate, drop, cut");
}
