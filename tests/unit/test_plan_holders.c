/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_holders.c - who owns the elements of a set, by arithmetic, against asking every
 * coordinate of the mesh: random meshes, placements of every kind and mode, and sets.
 */
#include "tests/unit/test_plan_kinds.h"

#define CASES 60000
static void random_kind(struct random_kind *c)
{
	static const uint32_t elems[] = { 1, 2, 4, 1 << 16,
					  1 << 20 }; /* large shares need few elements */
	uint32_t ndim = naive_below(8) ? 1 + naive_below(3) : naive_below(2) * 4;
	uint32_t order[4] = { 0, 1, 2, 3 };

	random_mesh(c);
	for (uint32_t d = 0; d < ndim; d++)
		c->shape[d] = naive_below(30) ? 1 + naive_below(ndim == 1 ? 60 : 14) : 0;
	c->layout = (struct layout){ .mode = naive_below(3), .place = c->place };
	shuffle(order, c->mesh.ndim);
	for (uint32_t i = 0; i < c->mesh.ndim; i++)
		random_place(c, order[i], ndim);
	c->kind = (struct holders_kind){ &c->mesh, &c->layout, ndim,
					 elems[naive_below(ARRAY_LEN(elems))], c->shape };
	struct ckpt_err err = { 0 };

	if (layout_check(&c->mesh, &c->layout, ndim, &err) < 0)
		fail_msg("%s", err.msg);
}

/* A box, or a strided set, or a rank's share on another mesh. */
static void random_want(const struct random_kind *c, struct arena *a, struct indexset *ret)
{
	struct indices *dim = arena_array(a, 5, sizeof *dim);

	assert_non_null(dim);
	*ret = (struct indexset){ c->kind.ndim, 1, dim };
	for (uint32_t d = 0; d < c->kind.ndim; d++) {
		uint64_t n = c->shape[d], from = n ? naive_below((uint32_t)n + 1) : 0;
		struct indices x;

		assert_int_equal(indices_range(naive_below(3) ? 0 : from,
					       naive_below(3) ? n : from + 3, a, &x),
				 0);
		if (x.total > 0 && x.run[0].start + x.run[0].len > n)
			assert_int_equal(indices_range(0, n, a, &x), 0);
		dim[d] = x;
		for (uint32_t i = naive_below(3); i > 0; i--) {
			uint32_t k = 1 + naive_below(3);

			assert_int_equal(
				indices_cut(&x, k, naive_below(k), naive_below(6), a, &dim[d]), 0);
			x = dim[d];
		}
		ret->numel *= dim[d].total;
	}
}

static uint32_t operand_of(const struct random_kind *c, const uint32_t *coord)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < c->mesh.ndim; d++)
		for (uint32_t i = 0; i < c->layout.nplace; i++)
			if (c->place[i].mesh_dim == d && c->place[i].how == CKPT_PARTIAL)
				n = n * c->dim[d] + coord[d];
	return n;
}

/* What the rank at this coordinate has. */
static void asked(const struct random_kind *c, const uint32_t *coord, enum holders_who who,
		  struct arena *a, struct indexset *ret)
{
	const struct holders_kind *k = &c->kind;
	int r = who == HOLDERS_OWNERS
			? layout_owned(k->mesh, k->layout, k->ndim, c->shape, coord, k->elem_bytes,
				       "model", "layers.0.w", a, ret)
			: layout_share(k->mesh, k->layout, k->ndim, c->shape, coord, a, ret);

	assert_int_equal(r, 0);
}

static void check(struct random_kind *c, const struct indexset *want, enum holders_who who,
		  struct arena *a)
{
	struct holders_cursor cur;
	struct holders h;
	struct holder x;
	bool seen[RANKS_MAX] = { 0 };
	uint32_t coord[4];

	assert_int_equal(holders_find(&c->kind, want, a, &h), 0);
	holders_begin(&h, &c->layout, "model", "layers.0.w", who, 0, &cur);
	while (holders_next(&cur, &x)) {
		struct indexset is, both;

		assert_true(x.place < c->mesh.nrank);
		assert_false(seen[x.place]);
		seen[x.place] = true;
		assert_int_equal(x.rank, c->rank[x.place]);
		coord_of(&c->mesh, x.place, coord);
		assert_int_equal(x.operand, operand_of(c, coord));
		asked(c, coord, who, a, &is);
		assert_true(indexset_equal(&is, &x.set));
		both = is;
		if (want)
			assert_int_equal(indexset_intersect(&is, want, a, &both), 0);
		assert_true(x.part.numel > 0);
		assert_true(indexset_equal(&both, &x.part));
	}
	for (uint32_t i = 0; i < c->mesh.nrank; i++) {
		struct indexset is;

		if (seen[i])
			continue;
		coord_of(&c->mesh, i, coord);
		asked(c, coord, who, a, &is);
		if (want)
			assert_int_equal(indexset_intersect(&is, want, a, &is), 0);
		assert_int_equal(is.numel, 0);
	}
}

TEST(holders_are_those_that_asking_every_coordinate_finds)
{
	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		struct random_kind c;
		struct indexset want;
		cleanup_arena struct arena a = { 0 };

		random_kind(&c);
		random_want(&c, &a, &want);
		check(&c, naive_below(8) ? &want : NULL,
		      naive_below(4) ? HOLDERS_OWNERS : HOLDERS_EACH, &a);
	}
}

TEST(of_each_share_one_replica_is_taken_and_the_turn_says_which)
{
	naive_seed(__func__);
	for (int i = 0; i < 2000; i++) {
		struct random_kind c;
		cleanup_arena struct arena a = { 0 };
		struct holders h;
		struct holder x;
		struct holders_cursor cur;
		uint32_t turn = naive_below(9);
		uint64_t one = 0, each = 0;

		random_kind(&c);
		assert_int_equal(holders_find(&c.kind, NULL, &a, &h), 0);
		holders_begin(&h, &c.layout, "m", "w", HOLDERS_ONE, turn, &cur);
		while (holders_next(&cur, &x)) {
			uint32_t coord[4], number = 0, at[4];

			coord_of(&c.mesh, x.place, coord);
			for (uint32_t d = 0; d < c.mesh.ndim; d++)
				at[d] = 0;
			for (uint32_t k = 0; k < c.layout.nplace; k++)
				at[c.place[k].mesh_dim] = c.place[k].how;
			for (uint32_t d = 0; d < c.mesh.ndim; d++)
				if (at[d] == CKPT_REPLICATE)
					number = number * c.dim[d] + coord[d];
			assert_int_equal(number, turn % h.nreplica);
			one += x.part.numel;
		}
		holders_begin(&h, &c.layout, "m", "w", HOLDERS_EACH, 0, &cur);
		while (holders_next(&cur, &x))
			each += x.part.numel;
		assert_int_equal(each, one * h.nreplica);
	}
}

TEST(a_factor_of_a_million_costs_what_the_answer_costs)
{
	static const char *const name[] = { "a", "b" };
	uint32_t dim[] = { 64, 512 };
	cleanup_free uint32_t *rank = calloc(64 * 512, sizeof *rank);
	struct ckpt_placement place[] = {
		{ .how = CKPT_SHARD, .mesh_dim = 0, .split_factor = 1000000 },
		{ .how = CKPT_SHARD, .mesh_dim = 1 },
	};
	uint64_t shape[] = { UINT64_C(1) << 40 }, from[] = { 12345 }, n[] = { 3000000 };
	struct layout l = { .nplace = 2, .place = place };
	struct mesh m = { 2, name, dim, 64 * 512, rank };
	struct holders_kind kind = { &m, &l, 1, 4, shape };
	struct indexset want;
	struct holders h;
	struct holders_cursor cur;
	struct holder x;
	cleanup_arena struct arena a = { 0 };
	uint64_t sum = 0;

	alarm(60); /* milliseconds; without arithmetic, hours */
	assert_non_null(rank);
	for (uint32_t i = 0; i < m.nrank; i++)
		rank[i] = i;
	for (int i = 0; i < 2; i++) { /* a box, and the share of a rank with the same factor */
		uint32_t coord[] = { 5, 17 };

		if (i == 0)
			assert_int_equal(indexset_box(1, from, n, &a, &want), 0);
		else
			assert_int_equal(layout_share(&m, &l, 1, shape, coord, &a, &want), 0);
		assert_int_equal(holders_find(&kind, &want, &a, &h), 0);
		holders_begin(&h, &l, "", "w", HOLDERS_OWNERS, 0, &cur);
		for (sum = 0; holders_next(&cur, &x);)
			sum += x.part.numel;
		assert_int_equal(sum, want.numel);
		if (i == 1)
			assert_int_equal(h.nshare[0], 1);
	}
	alarm(0);
}

/* Layouts come from files. */
TEST(cuts_that_would_take_hours_are_refused)
{
	static const char *const name[] = { "a", "b" };
	uint32_t dim[] = { 1024, 1024 };
	cleanup_free uint32_t *rank = calloc(1024 * 1024, sizeof *rank);
	struct ckpt_placement place[] = {
		{ .how = CKPT_SHARD, .mesh_dim = 0, .split_factor = 999983 },
		{ .how = CKPT_SHARD, .mesh_dim = 1, .split_factor = 1000003 },
	};
	uint64_t shape[] = { UINT64_C(1) << 40 }, begin = now_ns();
	struct layout l = { .nplace = 2, .place = place };
	struct mesh m = { 2, name, dim, 1024 * 1024, rank };
	struct holders_kind kind = { &m, &l, 1, 4, shape };
	uint32_t coord[] = { 3, 4 };

	assert_non_null(rank);
	for (uint32_t mode = 0; mode < 3; mode += 2) {
		struct ckpt_placement other[] = {
			{ .how = CKPT_SHARD, .mesh_dim = 1, .split_factor = 31337 },
			{ .how = CKPT_SHARD, .mesh_dim = 0, .split_factor = 777 },
		};
		struct layout dst = { .nplace = 2, .place = other };
		struct indexset want;
		cleanup_arena struct arena a = { 0 };
		struct holders h;

		l.mode = mode;
		assert_int_equal(holders_find(&kind, NULL, &a, &h), -E2BIG);
		assert_int_equal(layout_share(&m, &dst, 1, shape, coord, &a, &want), 0);
		assert_int_equal(holders_find(&kind, &want, &a, &h), -E2BIG);
		assert_true(a.total_bytes < 4 * GIB);
	}
	printf("refused after %" PRIu64 " ms\n", (now_ns() - begin) / NS_PER_MS);
}
