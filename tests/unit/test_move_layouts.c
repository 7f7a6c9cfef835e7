/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_layouts.c - bytes go from any layout to any other by plan_make and move_copy, as the
 * service moves them: a rank's memory, in one piece or several, to the parts that ranks own, and
 * from there to memory again. Random cases of every kind; a broken one is shrunk to a minimal one.
 * The oracle knows what every element is, and nothing of plans.
 */
#include "ckpt/move/move.h"
#include "formats/native/native.h"
#include "tests/unit/test_layout_cases.h"
#include "tests/lib/interval.h"
#include "tests/lib/row.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FEWER(n) ((n) / 10)
#else
#define FEWER(n) (n)
#endif

#define CANARY 0xee /* what lies between the pieces */
#define GAP 3

static const struct {
	uint32_t dtype, bytes;
} kinds[] = {
	{ CKPT_U32, 4 }, { CKPT_U8, 1 }, { CKPT_BF16, 2 }, { CKPT_F64, 8 }, { CKPT_C128, 16 }
};

/* Memory or parts of all ranks of one side, and a table of it. */
struct state {
	struct table t;
	uint32_t elem_bytes;
	uint8_t *base[CASE_RANKS];
	uint64_t bytes[CASE_RANKS];
};

/* How a state lies in memory. */
enum how {
	OWNED,	 /* what the rank owns, in one piece */
	WHOLE,	 /* its share, in one piece */
	DIVIDED, /* its share, in pieces as a flattened one is cut */
	COLUMNS, /* its share, the first dimension running fastest */
	HOWS
};

/* The case without pending reductions, which other tests are about. */
static void plain(struct layout_case *c)
{
	for (uint32_t k = 0; k < c->nside; k++)
		for (uint32_t i = 0; i < c->side[k].nplace; i++)
			if (c->side[k].place[i].how == CKPT_PARTIAL)
				c->side[k].place[i] = (struct ckpt_placement)
					ROW(.mesh_dim = c->side[k].place[i].mesh_dim);
}

/* --- a state --- */

static void add_piece(struct state *x, uint32_t place, const struct indexset *set, enum how how)
{
	int64_t stride[CASE_DIMS];
	struct table_piece p = ROW(.rank = x->t.place[place].rank, .place = place, .set = *set,
				   .off = x->bytes[place]);
	struct ckpt_err err = { 0 };

	for (uint32_t d = 0; d < set->ndim; d++)
		stride[d] = d ? stride[d - 1] * (int64_t)MAX(set->dim[d - 1].total, 1u) : 1;
	p.stride = how == COLUMNS && set->ndim ? stride : NULL;
	assert_ok_err(table_add_piece(&x->t, &p, &err), &err);
	x->bytes[place] += set->numel * x->elem_bytes + GAP;
}

static void add_rank(struct state *x, const struct layout_case *c, const struct side *s,
		     uint32_t place, enum how how)
{
	uint64_t cut[] = { 0, MIN(c->from, c->to), MAX(c->from, c->to), UINT64_MAX };
	const struct indexset *piece;
	struct arena a = { 0 };
	struct indexset set;
	uint32_t n;

	assert_true(how == OWNED ? side_owned(c, s, place, &a, &set)
				 : side_share(c, s, place, &a, &set));
	if (how != DIVIDED)
		add_piece(x, place, &set, how);
	for (uint32_t k = 0; how == DIVIDED && k < 3; k++) {
		assert_int_equal(indexset_interval(&set, cut[k], cut[k + 1], &a, &piece, &n), 0);
		for (uint32_t i = 0; i < n; i++)
			add_piece(x, place, &piece[i], how);
	}
	arena_free(&a);
}

static void state_make(struct state *x, const struct layout_case *c, const struct side *s,
		       enum how how)
{
	uint32_t kind = (uint32_t)(c->to % ARRAY_LEN(kinds));
	struct table_tensor w = ROW(.component = "model", .name = "w", .dtype = kinds[kind].dtype,
				    .elem_bytes = kinds[kind].bytes, .rank = TABLE_NONE,
				    .ndim = c->ndim, .shape = c->shape);
	struct mesh m = side_mesh(s);
	struct layout l = side_layout(s);
	struct ckpt_err err = { 0 };

	*x = (struct state){ .elem_bytes = w.elem_bytes };
	assert_ok_err(table_add_mesh(&x->t, &m, &l.mesh, &err), &err);
	assert_ok_err(table_add_layout(&x->t, &l, &w.layout, &err), &err);
	assert_ok_err(table_add_tensor(&x->t, &w, NULL, &err), &err);
	for (uint32_t i = 0; i < m.nrank; i++) {
		struct table_place place = { "a rank", m.rank[i], INT64_MAX };

		assert_int_equal(table_add_place(&x->t, &place, NULL, &err), 0);
		x->bytes[i] = GAP;
		add_rank(x, c, s, i, how);
		x->base[i] = malloc(x->bytes[i]);
		memset(x->base[i], CANARY, x->bytes[i]);
	}
	assert_int_equal(table_seal(&x->t, &err), 0);
}

static void state_free(struct state *x)
{
	for (uint32_t i = 0; i < x->t.nplace; i++)
		free(x->base[i]);
	table_free(&x->t);
}

/* Byte b of the element of this row-major index: never the canary's. */
static uint8_t truth(uint32_t element, uint32_t b)
{
	uint32_t v = (element + 1) * 2654435761u >> 8 * (b % 4);

	return (uint8_t)((v ^ b) % CANARY);
}

/* Write all of a state's elements as they should be, into memory that is laid out so. */
static void state_truth(const struct state *x, const struct layout_case *c, uint8_t *const *base)
{
	static uint32_t element[CASE_NUMEL];

	for (uint32_t i = 0; i < x->t.npiece; i++) {
		const struct table_piece *p = &x->t.piece[i];
		uint32_t n = elements_of(&p->set, c->shape, element);

		for (uint32_t k = 0; k < n; k++) {
			uint64_t at = p->stride ? 0 : k;

			for (uint32_t d = p->set.ndim, rest = k; p->stride && d-- > 0;
			     rest /= (uint32_t)p->set.dim[d].total)
				at += rest % p->set.dim[d].total * (uint64_t)p->stride[d];
			for (uint32_t b = 0; b < x->elem_bytes; b++)
				base[p->place][p->off + at * x->elem_bytes + b] =
					truth(element[k], b);
		}
	}
}

/* All of it is as it should be, and nothing between the pieces was touched. */
static bool state_good(const struct state *x, const struct layout_case *c, const char *what,
		       char *why)
{
	uint8_t *want[CASE_RANKS];
	bool good = true;

	for (uint32_t i = 0; i < x->t.nplace; i++) {
		want[i] = malloc(x->bytes[i]);
		memset(want[i], CANARY, x->bytes[i]);
	}
	state_truth(x, c, want);
	for (uint32_t i = 0; i < x->t.nplace; i++) {
		uint64_t at = 0;

		while (at < x->bytes[i] && x->base[i][at] == want[i][at])
			at++;
		if (good && at < x->bytes[i])
			good = BROKEN("%s: byte %" PRIu64 " of place %u is %u and not %u", what, at,
				      i, x->base[i][at], want[i][at]);
		free(want[i]);
	}
	return good;
}

/* --- from state to state --- */

static uint64_t moved;

static bool carry(const struct state *from, struct state *to, const char *what, char *why)
{
	struct ckpt_err err = { 0 };
	uint64_t bytes = 0;
	struct plan p;

	if (plan_make(&from->t, &to->t, NULL, &p, NULL, &err) < 0)
		return BROKEN("%s: %.200s", what, err.msg);
	for (uint32_t i = 0; i < to->t.npiece; i++)
		bytes += to->t.piece[i].set.numel * to->elem_bytes;
	bool good = p.bytes == bytes && !p.reduced;
	bool done = move_copy(&p, (const void *const *)from->base, (void *const *)to->base, NULL,
			      NULL) == 0;

	moved += p.bytes;
	plan_free(&p);
	if (!good)
		return BROKEN("%s: the plan does not have the bytes of its destination", what);
	return done || BROKEN("%s: not copied", what);
}

static bool covered(const struct state *parts, char *why)
{
	struct ckpt_errlist list = { 0 };

	table_cover(&parts->t, &list);
	bool good = list.n == 0 || BROKEN("the parts: %.200s", list.text);

	ckpt_errlist_free(&list);
	return good;
}

static bool same_bytes(const struct state *x, const struct state *y, const char *what, char *why)
{
	for (uint32_t i = 0; i < x->t.nplace; i++)
		if (x->bytes[i] != y->bytes[i] || memcmp(x->base[i], y->base[i], x->bytes[i]) != 0)
			return BROKEN("%s: place %u differs", what, i);
	return true;
}

static enum how how_of(const struct layout_case *c, uint32_t side)
{
	return WHOLE + (uint32_t)(c->from + side * (c->to + 1)) % (HOWS - WHOLE);
}

/* A's memory, A's parts, B's memory, B's parts, A's memory again; and B's parts straight from B. */
static bool there_and_back(const struct layout_case *given, char *why)
{
	struct layout_case c = *given;
	struct state a, a_parts, b, b_parts, b_direct, a_again, b_again;

	plain(&c);
	const struct side *x = &c.side[0], *y = &c.side[1];

	state_make(&a, &c, x, how_of(&c, 0));
	state_make(&a_parts, &c, x, OWNED);
	state_make(&b, &c, y, how_of(&c, 1));
	state_make(&b_parts, &c, y, OWNED);
	state_make(&b_direct, &c, y, OWNED);
	state_make(&a_again, &c, x, how_of(&c, 0));
	state_make(&b_again, &c, y, how_of(&c, 1));
	state_truth(&a, &c, a.base);
	bool good = covered(&a_parts, why) && covered(&b_parts, why) &&
		    carry(&a, &a_parts, "A is saved", why) &&
		    state_good(&a_parts, &c, "A is saved", why) &&
		    carry(&a_parts, &b, "A is loaded as B", why) &&
		    state_good(&b, &c, "A is loaded as B", why);

	if (good) {
		state_truth(&b_again, &c, b_again.base);
		good = carry(&b, &b_parts, "B is saved", why) &&
		       carry(&b_again, &b_direct, "a B of its own is saved", why) &&
		       same_bytes(&b_parts, &b_direct, "A to B, and B", why) &&
		       carry(&b_parts, &a_again, "B is loaded as A", why) &&
		       same_bytes(&a, &a_again, "A to B to A", why);
	}
	state_free(&a);
	state_free(&a_parts);
	state_free(&b);
	state_free(&b_parts);
	state_free(&b_direct);
	state_free(&a_again);
	state_free(&b_again);
	return good;
}

TEST(from_any_layout_to_any_other_and_back_nothing_changes)
{
	moved = 0;
	cases_hold(__func__, there_and_back, 2, FEWER(10000));
	printf("%" PRIu64 " bytes moved\n", moved);
	assert_true(moved > unit_scaled(FEWER(10000)) * 100);
}

/* Memory to memory, in which elements are in many places: one of them is taken. */
static bool direct(const struct layout_case *given, char *why)
{
	struct layout_case c = *given;
	struct state a, b, a_again;

	plain(&c);
	state_make(&a, &c, &c.side[0], how_of(&c, 0));
	state_make(&b, &c, &c.side[1], how_of(&c, 1));
	state_make(&a_again, &c, &c.side[0], how_of(&c, 0));
	state_truth(&a, &c, a.base);
	bool good = carry(&a, &b, "A to B", why) && state_good(&b, &c, "A to B", why) &&
		    carry(&b, &a_again, "B to A", why) &&
		    same_bytes(&a, &a_again, "A to B to A", why);

	state_free(&a);
	state_free(&b);
	state_free(&a_again);
	return good;
}

TEST(from_memory_to_memory_nothing_changes)
{
	cases_hold(__func__, direct, 2, FEWER(10000));
}

/* --- one element is lost --- */

/* A's parts without the first element of the last part: every B that wants it says so. */
static bool lost(const struct layout_case *given, char *why)
{
	struct layout_case c = *given;
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };
	struct state a, b;
	struct plan p;
	bool good = true;

	plain(&c);
	state_make(&a, &c, &c.side[0], OWNED);
	state_make(&b, &c, &c.side[1], how_of(&c, 1));
	if (a.t.npiece) {
		struct table less = table_borrow(&a.t);
		struct table_piece *last = &a.t.piece[a.t.npiece - 1];
		const struct indexset *rest;
		uint32_t n;

		for (uint32_t i = 0; i < a.t.nplace; i++)
			assert_int_equal(table_add_place(&less, &a.t.place[i], NULL, &err), 0);
		for (uint32_t i = 0; i + 1 < a.t.npiece; i++)
			assert_int_equal(table_add_piece(&less, &a.t.piece[i], &err), 0);
		assert_ok(indexset_interval(&last->set, 1, UINT64_MAX, &less.arena, &rest, &n));
		for (uint32_t i = 0; i < n; i++) {
			struct table_piece x = *last;

			x.set = rest[i];
			assert_int_equal(table_add_piece(&less, &x, &err), 0);
		}
		assert_int_equal(table_seal(&less, &err), 0);
		table_cover(&less, &list);
		if (list.n != 1)
			good = BROKEN("a gap is told %" PRIu64 " times", list.n);
		ckpt_errlist_free(&list);
		list = (struct ckpt_errlist){ 0 };
		int e = plan_make(&less, &b.t, NULL, &p, &list, &err);

		if (good && e != -EMEDIUMTYPE)
			good = BROKEN("an element that nobody has is planned: %d", e);
		if (!e)
			plan_free(&p);
		ckpt_errlist_free(&list);
		table_free(&less);
	}
	state_free(&a);
	state_free(&b);
	return good;
}

TEST(an_element_that_no_part_has_is_never_planned)
{
	cases_hold(__func__, lost, 2, FEWER(6000));
}

/* --- who knows what --- */

/* Some ranks declare tensors of which they hold nothing, others do not; and in any order. */
static bool coin(const struct layout_case *c, uint32_t rank, uint32_t what)
{
	return ((c->from + 3) * (rank + 5) * (what + 7) * UINT64_C(0x9e3779b97f4a7c15) >> 60) % 2;
}

/* Tensor `side` of the case, as a rank declares it: its elements are rows of elem_bytes bytes. */
static void know(struct table *t, const struct layout_case *c, uint32_t side, uint32_t rank)
{
	static const char *const name[] = { "w0", "w1" };
	const struct side *s = &c->side[side];
	uint64_t shape[CASE_DIMS + 1] = { 0 };
	uint32_t coord[CKPT_DIMS_MAX];
	struct table_tensor w = ROW(.component = "model", .name = name[side], .dtype = CKPT_U8,
				    .rank = TABLE_NONE, .ndim = c->ndim + 1, .shape = shape);
	struct mesh m = side_mesh(s);
	struct layout l = side_layout(s);
	struct table_piece p = { .rank = rank, .off = side * (UINT64_C(1) << 40) };
	bool inside = mesh_coord(&m, rank, coord);
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };

	memcpy(shape, c->shape, c->ndim * sizeof *shape);
	shape[c->ndim] = c->elem_bytes;
	if (inside)
		assert_int_equal(layout_share(&m, &l, w.ndim, shape, coord, &a, &p.set), 0);
	if (!p.set.numel && coin(c, rank, side)) {
		arena_free(&a);
		return;
	}
	assert_ok_err(table_add_mesh(t, &m, &l.mesh, &err), &err);
	assert_ok_err(table_add_layout(t, &l, &w.layout, &err), &err);
	assert_ok_err(table_add_tensor(t, &w, &p.tensor, &err), &err);
	if (inside && table_add_piece(t, &p, &err) < 0)
		fail_msg("%s", err.msg);
	arena_free(&a);
}

/* The parts of all ranks, each made from what that rank declares, hold every tensor once. */
static bool parts_cover_once(const struct layout_case *given, char *why)
{
	struct layout_case c = *given;
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };
	struct table all = { 0 };
	uint32_t ranks = 0, known = 0;
	bool good = true;

	plain(&c);
	for (uint32_t k = 0; k < 2; k++)
		for (uint32_t i = 0; i < side_mesh(&c.side[k]).nrank; i++)
			ranks = MAX(ranks, c.side[k].rank[i] + 1);
	for (uint32_t r = 0; r < ranks && good; r++) {
		struct table_place place = { "memory", r, UINT64_C(1) << 41 };
		struct table decl = { 0 }, part;
		bool swap = coin(&c, r, 2);

		assert_int_equal(table_add_place(&decl, &place, NULL, &err), 0);
		know(&decl, &c, swap, r);
		know(&decl, &c, !swap, r);
		known += decl.ntensor;
		assert_int_equal(table_seal(&decl, &err), 0);
		if (native_part_table(&decl, r, &part, &list, &err) < 0)
			good = BROKEN("rank %u: %.200s", r, err.msg);
		if (good && (table_merge(&all, &part, NULL, &list, &err) < 0 || list.n))
			good = BROKEN("rank %u: %.200s", r, list.n ? list.text : err.msg);
		if (good)
			table_free(&part);
		table_free(&decl);
	}
	assert_int_equal(table_seal(&all, &err), 0);
	if (good && (known < 2 || all.ntensor != 2) && case_numel(&c))
		good = BROKEN("a tensor is not known");
	if (good)
		table_cover(&all, &list);
	if (good && list.n)
		good = BROKEN("%.200s", list.text);
	ckpt_errlist_free(&list);
	table_free(&all);
	return good;
}

TEST(parts_cover_every_tensor_once_whatever_their_ranks_know)
{
	cases_hold(__func__, parts_cover_once, 2, FEWER(4000));
}
