/* SPDX-License-Identifier: Apache-2.0 */
/* test_table_operand.c - which operand a piece holds, and whether all of them are there once. */
#include "ckpt/table/operand.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define SEED 20261121

static uint64_t rng_state;

static uint32_t below(uint32_t n)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) % n);
}

static const char *const names[] = { "dp", "cp", "tp" };

struct made {
	uint32_t dim[3], rank[27];
	struct mesh mesh;
	struct ckpt_placement place[3];
	uint32_t nplace, partial; /* bits */
	struct table t;
};

static void mesh_make(struct made *m)
{
	m->mesh = (struct mesh){
		.ndim = 1 + below(3), .name = names, .dim = m->dim, .nrank = 1, .rank = m->rank
	};
	for (uint32_t d = 0; d < m->mesh.ndim; d++)
		m->mesh.nrank *= m->dim[d] = 1 + below(3);
	for (uint32_t r = 0; r < m->mesh.nrank; r++) {
		uint32_t at = below(r + 1);

		m->rank[r] = m->rank[at];
		m->rank[at] = 5 + 3 * r;
	}
}

/* An open table with one tensor, pending over some dimensions of a mesh of shuffled ranks. */
static void made_open(struct made *m, const uint64_t *shape)
{
	struct table_place place = { .name = "part", .rank = TABLE_NONE, .bytes = 1 << 20 };
	struct table_tensor x = ROW(.component = "model", .name = "w", .of = "", .dtype = CKPT_F32,
				    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	struct layout l = { .place = m->place };

	*m = (struct made){ 0 };
	mesh_make(m);
	l.place = m->place;
	m->partial = 1u << below(m->mesh.ndim) | below(1u << m->mesh.ndim);
	for (uint32_t d = 0; d < m->mesh.ndim; d++)
		if (m->partial >> d & 1)
			m->place[l.nplace++] =
				(struct ckpt_placement)ROW(.how = CKPT_PARTIAL,
							   .mesh_dim = (uint16_t)d,
							   .flags = CKPT_KEEP_PARTIAL);
	assert_int_equal(table_add_mesh(&m->t, &m->mesh, NULL, NULL), 0);
	assert_int_equal(table_add_layout(&m->t, &l, &x.layout, NULL), 0);
	assert_int_equal(table_add_tensor(&m->t, &x, NULL, NULL), 0);
	assert_int_equal(table_add_place(&m->t, &place, NULL, NULL), 0);
}

/* The coordinates of a rank by looking for it, and the number of its operand by hand. */
static uint32_t number_of(const struct made *m, uint32_t rank)
{
	uint32_t coord[CKPT_DIMS_MAX], n = 0;

	assert_true(mesh_coord(&m->mesh, rank, coord));
	for (uint32_t d = 0; d < m->mesh.ndim; d++)
		if (m->partial >> d & 1)
			n = n * m->dim[d] + coord[d];
	return n;
}

static uint32_t any_rank_with(const struct made *m, uint32_t operand)
{
	for (;;) {
		uint32_t r = m->rank[below(m->mesh.nrank)];

		if (number_of(m, r) == operand)
			return r;
	}
}

static void rows_add(struct made *m, uint32_t rank, uint64_t from, uint64_t to)
{
	struct arena a = { 0 };
	struct table_piece p = { .rank = rank };

	if (from == to)
		return;
	assert_int_equal(
		indexset_box(2, (uint64_t[]){ from, 0 }, (uint64_t[]){ to - from, 3 }, &a, &p.set),
		0);
	assert_int_equal(table_add_piece(&m->t, &p, NULL), 0);
	arena_free(&a);
}

TEST(every_operand_must_be_there_exactly_once)
{
	uint32_t good = 0, missing = 0, twice = 0;
	uint64_t shape[2] = { 9, 3 };

	rng_state = SEED;
	print_message("seed %d\n", SEED);
	for (uint32_t i = 0; i < 20000; i++) {
		struct ckpt_errlist l = { .code = -EINVAL };
		struct made m;
		uint32_t n, what = below(3), hurt;

		made_open(&m, shape);
		n = operand_count(&m.mesh, m.partial);
		hurt = below(n);
		for (uint32_t k = 0; k < n; k++) {
			uint64_t a = below(10), b = a + below(10 - (uint32_t)a);

			/* Also where another operand has the same rows. */
			rows_add(&m, any_rank_with(&m, k), 0, a);
			if (what != 1 || k != hurt)
				rows_add(&m, any_rank_with(&m, k), a, b);
			else if (a == b)
				what = 0;
			rows_add(&m, any_rank_with(&m, k), b, 9);
			if (what == 2 && k == hurt)
				rows_add(&m, any_rank_with(&m, k), 4, 5);
		}
		assert_int_equal(table_seal(&m.t, NULL), 0);
		assert_int_equal(operand_dims(&m.t, &m.t.tensor[0]), m.partial);
		table_cover(&m.t, &l);
		good += what == 0;
		missing += what == 1;
		twice += what == 2;
		if ((what == 0) != (l.n == 0))
			fail_msg("case %u, %u: %s", i, what, l.n ? l.text : "nothing is said");
		if (what == 1)
			assert_non_null(strstr(l.text, "in no piece"));
		if (what == 2)
			assert_non_null(strstr(l.text, "is in two pieces"));
		ckpt_errlist_free(&l);
		table_free(&m.t);
	}
	assert_true(good > 1000 && missing > 1000 && twice > 1000);
}

TEST(ranks_are_found_where_they_are_and_nowhere_else)
{
	uint64_t shape[2] = { 1, 1 };

	rng_state = SEED + 1;
	for (uint32_t i = 0; i < 200; i++) {
		struct rank_map map;
		struct made m;

		made_open(&m, shape);
		assert_int_equal(table_seal(&m.t, NULL), 0);
		assert_int_equal(rank_map_open(&m.t, &map), 0);
		for (uint32_t r = 0; r < 100; r++) {
			uint32_t want[CKPT_DIMS_MAX], is[CKPT_DIMS_MAX];
			bool inside = mesh_coord(&m.mesh, r, want);

			assert_int_equal(rank_map_coord(&map, 0, r, is), inside);
			for (uint32_t d = 0; inside && d < m.mesh.ndim; d++)
				assert_int_equal(is[d], want[d]);
			if (inside)
				assert_int_equal(operand_number(&m.mesh, m.partial, is),
						 number_of(&m, r));
		}
		rank_map_close(&map);
		rank_map_close(&map);
		table_free(&m.t);
	}
}

TEST(operands_are_called_by_their_coordinates)
{
	uint32_t dim[3] = { 2, 3, 4 };
	struct mesh m = { .ndim = 3, .name = names, .dim = dim, .nrank = 24 };
	char buf[64], little[6];

	assert_int_equal(operand_count(&m, 5), 8);
	assert_string_equal(operand_print(&m, 5, 6, buf, sizeof buf), "dp=1, tp=2");
	assert_string_equal(operand_print(&m, 7, 23, buf, sizeof buf), "dp=1, cp=2, tp=3");
	assert_string_equal(operand_print(&m, 3, 4, buf, sizeof buf), "dp=1, cp=1");
	assert_string_equal(operand_print(&m, 0, 0, buf, sizeof buf), "");
	assert_string_equal(operand_print(&m, 7, 23, little, sizeof little), "dp=..");
}

/* What a few bytes can claim costs little. */
TEST(a_million_operands_without_pieces_are_told_in_a_few_lines)
{
	uint32_t dim = LAYOUT_RANKS_MAX, *rank = calloc(dim, sizeof *rank);
	struct mesh m = { .ndim = 1, .name = names, .dim = &dim, .nrank = dim, .rank = rank };
	struct ckpt_placement p = { .how = CKPT_PARTIAL, .flags = CKPT_KEEP_PARTIAL };
	struct layout l = { .nplace = 1, .place = &p };
	struct table_place place = { .name = "part", .rank = TABLE_NONE, .bytes = 1 << 20 };
	struct ckpt_errlist list = { .code = -EINVAL };
	struct table t = { 0 };
	uint64_t one = 1, began;

	assert_non_null(rank);
	for (uint32_t r = 0; r < dim; r++)
		rank[r] = r ^ 1;
	assert_int_equal(table_add_mesh(&t, &m, NULL, NULL), 0);
	assert_int_equal(table_add_place(&t, &place, NULL, NULL), 0);
	for (uint32_t i = 0; i < 1000; i++) {
		char name[16];
		struct table_tensor x =
			ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_F32,
			    .rank = TABLE_NONE, .ndim = 1, .shape = &one);
		struct table_piece piece = { .rank = 1000 };
		struct arena a = { 0 };

		snprintf(name, sizeof name, "w%u", i);
		assert_int_equal(table_add_layout(&t, &l, &x.layout, NULL), 0);
		assert_int_equal(table_add_tensor(&t, &x, &piece.tensor, NULL), 0);
		assert_int_equal(indexset_box(1, (uint64_t[]){ 0 }, &one, &a, &piece.set), 0);
		assert_int_equal(table_add_piece(&t, &piece, NULL), 0);
		arena_free(&a);
	}
	assert_int_equal(table_seal(&t, NULL), 0);
	began = now_ns();
	table_cover(&t, &list);
	assert_true(now_ns() - began < 20 * NS_PER_S); /* some ms; sanitizers on a busy machine */
	assert_true(list.n >= 1000 && list.n <= 6000);
	assert_non_null(strstr(list.text, "model/w0: the operand of dp=0, one of the 1048576"));
	ckpt_errlist_free(&list);
	table_free(&t);
	free(rank);
}
