/* SPDX-License-Identifier: Apache-2.0 */
/* test_table_piece_tree.c - a tree of bounds returns the pieces that a set may meet, each once. */
#include "ckpt/table/piece_tree.h"
#include "tests/lib/draw.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define PIECES 300

static struct indexset random_set(uint32_t ndim, uint64_t side, struct arena *a, uint64_t *seed)
{
	struct indices *dim = arena_array(a, MAX(ndim, 1u), sizeof *dim);
	struct indexset s = { .ndim = ndim, .numel = 1, .dim = dim };

	for (uint32_t d = 0; d < ndim; d++) {
		uint64_t at = draw_below(seed, side), len = 1 + draw_below(seed, side / 4);
		struct indices all;

		assert_ok(indices_range(at, at + len, a, &all));
		if (len > 3 && !draw_below(seed, 4)) /* a comb */
			assert_ok(indices_cut(&all, 2, 0, (uint32_t)len / 2, a, &dim[d]));
		else
			dim[d] = all;
		s.numel *= dim[d].total;
	}
	return s;
}

static bool bounds_meet(const struct indexset *x, const struct indexset *y)
{
	for (uint32_t d = 0; d < x->ndim; d++) {
		const struct run *a = &x->dim[d].run[x->dim[d].n - 1],
				 *b = &y->dim[d].run[y->dim[d].n - 1];

		if (x->dim[d].run[0].start >= b->start + b->stride * (b->count - 1) + b->len ||
		    y->dim[d].run[0].start >= a->start + a->stride * (a->count - 1) + a->len)
			return false;
	}
	return true;
}

TEST(a_tree_returns_what_a_look_at_every_piece_returns)
{
	uint64_t seed = draw_seed("pieces"), met = 0;
	struct piece_tree tree = { 0 }; /* its memory is used again by the next one */

	for (uint32_t round = 0; round < 300; round++) {
		static struct table_piece piece[PIECES];
		uint32_t n = (uint32_t)draw_below(&seed, round % 10 ? 40 : PIECES),
			 ndim = 1 + (uint32_t)draw_below(&seed, 4), found;
		uint64_t side = 4 + draw_below(&seed, 60);
		cleanup_arena struct arena a = { 0 };

		for (uint32_t i = 0; i < n; i++)
			piece[i].set = random_set(ndim, side, &a, &seed);
		assert_ok(piece_tree_make(&tree, piece, n, ndim));
		for (uint32_t k = 0; k < 20; k++) {
			struct indexset s = random_set(ndim, side, &a, &seed);
			uint32_t times[PIECES] = { 0 };
			struct piece_tree_cursor c;

			piece_tree_begin(&tree, &s, &c);
			while (piece_tree_next(&c, &found))
				times[found]++;
			for (uint32_t i = 0; i < n; i++) {
				assert_int_equal(times[i], bounds_meet(&piece[i].set, &s));
				met += times[i];
			}
		}
	}
	piece_tree_free(&tree);
	assert_true(met > 1000);
}

/* Pieces of 1 x 1 x 1 in a cube, without one or with one twice: no dimension tells many of them
 * apart. */
static void cube(uint32_t side, uint32_t lacks, uint32_t twice, struct ckpt_errlist *l)
{
	const uint64_t shape[] = { side, side, side }, one[] = { 1, 1, 1 };
	struct table_tensor x =
		ROW(.component = "model", .name = "w", .of = "", .dtype = CKPT_U8,
		    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 3, .shape = shape);
	struct table t = { 0 };

	assert_ok(table_add_tensor(&t, &x, NULL, NULL));
	assert_ok(table_add_place(&t, &(struct table_place){ "memory", 0, 1 << 20 }, NULL, NULL));
	for (uint32_t i = 0; i <= side * side * side; i++) {
		uint32_t at = i < side * side * side ? i : twice;
		const uint64_t start[] = { at / side / side, at / side % side, at % side };
		struct table_piece p = { .rank = i, .off = i };
		cleanup_arena struct arena a = { 0 };

		if (at == lacks || at == TABLE_NONE)
			continue;
		assert_ok(indexset_box(3, start, one, &a, &p.set));
		assert_ok(table_add_piece(&t, &p, NULL));
	}
	assert_ok(table_seal(&t, NULL));
	table_cover(&t, l);
	table_free(&t);
}

TEST(in_a_cube_of_pieces_the_one_that_lacks_and_the_one_that_is_there_twice_are_found)
{
	uint64_t seed = draw_seed("cube");

	for (uint32_t i = 0; i < 20; i++) {
		uint32_t side = 12 + (uint32_t)draw_below(&seed, 6),
			 at = (uint32_t)draw_below(&seed, side * side * side);
		cleanup_errlist struct ckpt_errlist good = { .code = -EINVAL }, lacks = good,
						    twice = good;
		char want[160];

		cube(side, TABLE_NONE, TABLE_NONE, &good);
		assert_int_equal(good.n, 0);
		cube(side, at, TABLE_NONE, &lacks);
		snprintf(want, sizeof want, "model/w: element [%u, %u, %u] is in no piece",
			 at / side / side, at / side % side, at % side);
		assert_int_equal(lacks.n, 1);
		assert_non_null(strstr(lacks.text, want));
		cube(side, TABLE_NONE, at, &twice);
		snprintf(want, sizeof want,
			 "model/w: element [%u, %u, %u] is in two pieces: in box %u-%u x ",
			 at / side / side, at / side % side, at % side, at / side / side,
			 at / side / side + 1);
		assert_int_equal(twice.n, 1);
		assert_non_null(strstr(twice.text, want));
	}
}

struct found {
	uint32_t n;
	uint8_t (*times)[PIECES];
};

static bool pair_found(void *arg, uint32_t i, uint32_t k)
{
	struct found *f = arg;

	assert_true(i < k && k < f->n);
	f->times[i][k]++;
	return true;
}

static bool pair_first(void *arg, uint32_t i, uint32_t k)
{
	(void)i;
	(void)k;
	++*(uint32_t *)arg;
	return false;
}

TEST(a_tree_lists_each_pair_that_may_meet_once)
{
	static uint8_t times[PIECES][PIECES];
	uint64_t seed = draw_seed("pairs"), met = 0;
	struct piece_tree tree = { 0 };

	for (uint32_t round = 0; round < 100; round++) {
		static struct table_piece piece[PIECES];
		uint32_t n = (uint32_t)draw_below(&seed, round % 10 ? 40 : PIECES),
			 ndim = (uint32_t)draw_below(&seed, 4), calls = 0;
		uint64_t side = 4 + draw_below(&seed, 60);
		cleanup_arena struct arena a = { 0 };
		struct found f = { n, times };
		uint64_t here = 0;

		for (uint32_t i = 0; i < n; i++)
			piece[i].set = random_set(ndim, side, &a, &seed);
		assert_ok(piece_tree_make(&tree, piece, n, ndim));
		memset(times, 0, sizeof times);
		piece_tree_pairs(&tree, pair_found, &f);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = i + 1; k < n; k++) {
				assert_int_equal(times[i][k],
						 bounds_meet(&piece[i].set, &piece[k].set));
				here += times[i][k];
			}
		piece_tree_pairs(&tree, pair_first, &calls);
		assert_int_equal(calls, here != 0);
		met += here;
	}
	piece_tree_free(&tree);
	assert_true(met > 1000);
}
