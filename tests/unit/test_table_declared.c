/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_table_declared.c - pieces that are what was declared cover their tensors, and this is known
 * without comparing every two of them; those that are not are found, as ever.
 */
#include "ckpt/table/declared.h"
#include "tests/unit/test_layout_cases.h"
#include "tests/lib/row.h"

#define RANKS 8192u

static uint32_t add_tensor(struct table *t, const char *name, uint32_t layout, uint32_t ndim,
			   const uint64_t *shape)
{
	struct table_tensor x =
		ROW(.component = "model", .name = name, .dtype = CKPT_F32, .layout = layout,
		    .rank = TABLE_NONE, .ndim = ndim, .shape = shape);
	struct ckpt_err err = { 0 };
	uint32_t id;

	if (table_add_tensor(t, &x, &id, &err) < 0)
		fail_msg("%s", err.msg);
	return id;
}

static void add_place(struct table *t)
{
	const struct table_place place = { "memory", TABLE_NONE, INT64_MAX };

	assert_int_equal(table_add_place(t, &place, NULL, NULL), 0);
}

/* What the coordinate owns, as a piece of the rank. */
static void add_owned(struct table *t, uint32_t tensor, const uint32_t *coord, uint32_t rank)
{
	const struct table_tensor *x = &t->tensor[tensor];
	const struct layout *l = &t->layout[x->layout];
	struct table_piece p = { .tensor = tensor, .rank = rank };
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };

	assert_int_equal(layout_owned(&t->mesh[l->mesh], l, x->ndim, x->shape, coord, x->elem_bytes,
				      x->component, x->name, &a, &p.set),
			 0);
	if (table_add_piece(t, &p, &err) < 0)
		fail_msg("%s", err.msg);
	arena_free(&a);
}

/* Several tensors whose pieces all lie in each other; the last rank has what rank `last` should. */
static void woven(struct table *t, uint32_t ntensor, uint32_t ranks, bool partial, uint32_t last)
{
	const struct ckpt_placement place[] = {
		{ .how = CKPT_SHARD, .split_factor = 100 },
		{ .how = CKPT_PARTIAL, .mesh_dim = 1, .flags = CKPT_KEEP_PARTIAL },
	};
	const uint32_t dim[] = { partial ? ranks / 2 : ranks, partial ? 2 : 1 };
	const char *const name[] = { "fsdp", "tp" };
	uint32_t *rank = calloc(ranks, sizeof *rank);
	const struct mesh m = { 2, name, dim, ranks, rank };
	const struct layout l = { .nplace = partial ? 2 : 1, .place = place };
	const uint64_t shape[] = { ranks * 200 };
	uint32_t id;

	*t = (struct table){ 0 };
	for (uint32_t r = 0; r < ranks; r++)
		rank[r] = ranks - 1 - r;
	add_place(t);
	assert_int_equal(table_add_mesh(t, &m, NULL, NULL), 0);
	assert_int_equal(table_add_layout(t, &l, &id, NULL), 0);
	for (uint32_t i = 0; i < ntensor; i++) {
		char w[16];

		snprintf(w, sizeof w, "w%u", i);
		uint32_t tensor = add_tensor(t, w, id, 1, shape);

		for (uint32_t r = 0; r < ranks; r++) {
			uint32_t at = r == ranks - 1 ? last : r, coord[2];

			place_coord(&m, at, coord);
			add_owned(t, tensor, coord, rank[r]);
		}
	}
	assert_int_equal(table_seal(t, NULL), 0);
	free(rank);
}

/* Pair by pair this takes 20 seconds, and of a few tensors more it would be refused. */
TEST(interleaved_tensors_of_thousands_of_ranks_are_covered)
{
	for (uint32_t partial = 0; partial < 2; partial++) {
		struct ckpt_errlist list = { 0 };
		struct table t;
		uint64_t t0;

		woven(&t, 8, RANKS, partial, RANKS - 1);
		t0 = now_ns();
		table_cover(&t, &list);
		printf("%.1f ms\n", (double)(now_ns() - t0) / 1e6);
		assert_int_equal(list.n, 0);
		assert_true(now_ns() - t0 < 30 * NS_PER_S);
		table_free(&t);
	}
}

TEST(an_overlap_that_a_declaration_does_not_have_is_told)
{
	for (uint32_t partial = 0; partial < 2; partial++) {
		struct ckpt_errlist list = { 0 };
		struct table t;

		woven(&t, 1, 256, partial, 253); /* of the same operand */
		table_cover(&t, &list);
		assert_int_equal(list.n, 1);
		assert_non_null(strstr(list.text, "is in two pieces: in memory of rank 0 and in "
						  "memory of rank 2"));
		ckpt_errlist_free(&list);
		table_free(&t);
	}
}

/* --- any layout --- */

static void case_table(const struct layout_case *c, uint32_t leave, uint32_t twice, struct table *t)
{
	struct mesh m = side_mesh(&c->side[0]);
	struct layout l = side_layout(&c->side[0]);
	uint32_t id, tensor, coord[CASE_MESH_DIMS];

	*t = (struct table){ 0 };
	add_place(t);
	assert_int_equal(table_add_mesh(t, &m, &l.mesh, NULL), 0);
	assert_int_equal(table_add_layout(t, &l, &id, NULL), 0);
	tensor = add_tensor(t, "w", id, c->ndim, c->shape);
	for (uint32_t i = 0; i < m.nrank; i++) {
		place_coord(&m, i == leave ? twice : i, coord);
		add_owned(t, tensor, coord, m.rank[i]);
	}
	assert_int_equal(table_seal(t, NULL), 0);
}

static bool as_declared(const struct table *t)
{
	struct rank_map ranks = { 0 };
	bool yes = pieces_as_declared(t, 0, t->piece, t->npiece, &ranks);

	rank_map_close(&ranks);
	return yes;
}

/* What ranks own is as declared. Where a rank has another's there may be a gap, but no overlap that
 * is not seen. */
static bool declared(const struct layout_case *c, char *why)
{
	uint32_t n = side_mesh(&c->side[0]).nrank, leave = (uint32_t)c->from % n,
		 twice = (uint32_t)c->to % n;
	struct ckpt_errlist list = { 0 };
	struct table t;
	bool good = true;

	case_table(c, n, n, &t);
	table_cover(&t, &list);
	if (!as_declared(&t) || list.n)
		good = BROKEN("what is owned is not as declared: %.100s",
			      list.text ? list.text : "");
	table_free(&t);
	case_table(c, leave, twice, &t);
	ckpt_errlist_free(&list);
	list = (struct ckpt_errlist){ 0 };
	table_cover(&t, &list);
	if (good && as_declared(&t) && list.n && strstr(list.text, "two pieces"))
		good = BROKEN("declared, and yet: %.100s", list.text);
	ckpt_errlist_free(&list);
	table_free(&t);
	return good;
}

TEST(what_ranks_own_is_as_declared_and_no_overlap_is)
{
	cases_hold(__func__, declared, 1, 3000);
}
