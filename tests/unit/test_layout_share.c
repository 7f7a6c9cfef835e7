/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_share.c - random layouts against explicit arrays: every coordinate's share, and that
 * together the shares and the owned parts cover the tensor as often as they should.
 */
#include "tests/unit/test_layout_naive.h"

#define CASES 20000
#define NUMEL_MAX 4096
#define RANKS_MAX 256

struct random_case {
	uint32_t ndim, elem_bytes;
	uint64_t shape[4];
	uint64_t numel;
	uint32_t dim[4], rank[RANKS_MAX];
	struct ckpt_placement place[4];
	struct mesh mesh;
	struct layout layout;
	uint32_t replicas; /* how many coordinates hold an element */
};

static void shuffle(uint32_t *v, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = naive_below(i), x = v[j];

		v[j] = v[i - 1];
		v[i - 1] = x;
	}
}

static void random_mesh(struct random_case *c)
{
	static const char *const name[] = { "pp", "dp", "fsdp", "tp" };

	c->mesh = (struct mesh){ naive_below(5), name, c->dim, 1, c->rank };
	for (uint32_t d = 0; d < c->mesh.ndim; d++) {
		c->dim[d] = 1 + naive_below(naive_below(4) ? 3 : 4);
		c->mesh.nrank *= c->dim[d];
	}
	uint32_t at = naive_below(3); /* ranks of a part of the world, in any order */

	for (uint32_t i = 0; i < c->mesh.nrank; i++, at += 1 + naive_below(2))
		c->rank[i] = at;
	if (naive_below(2))
		shuffle(c->rank, c->mesh.nrank);
}

static void random_placements(struct random_case *c)
{
	uint32_t order[4] = { 0, 1, 2, 3 };

	c->layout = (struct layout){ .place = c->place };
	c->replicas = 1;
	shuffle(order, c->mesh.ndim);
	for (uint32_t i = 0; i < c->mesh.ndim; i++) {
		struct ckpt_placement p = { .mesh_dim = (uint16_t)order[i] };
		uint32_t size = c->dim[order[i]], t = naive_below(20);

		if (t < 11 && c->ndim > 0) {
			p.how = CKPT_SHARD;
			p.tensor_dim = (uint16_t)naive_below(c->ndim);
			p.split_factor = naive_below(2) ? naive_below(7) : 0;
		} else if (t < 14) {
			p.how = CKPT_ONLY;
			p.split_factor = naive_below(size);
		} else {
			c->replicas *= size;
			if (t < 17) /* not named at all */
				continue;
		}
		c->place[c->layout.nplace++] = p;
	}
}

static void random_case(struct random_case *c)
{
	static const uint64_t size[] = { 0, 1, 2, 3, 5, 7, 8, 12, 13, 16 };

	*c = (struct random_case){ .numel = 1 };
	c->ndim = naive_below(4);
	for (uint32_t d = 0; d < c->ndim; d++) {
		c->shape[d] = size[naive_below(8) ? 1 + naive_below(9) : 0];
		c->numel *= c->shape[d];
	}
	c->elem_bytes = naive_below(2) ? 4 : 1u << naive_below(24); /* large: the rule cuts it */
	random_mesh(c);
	random_placements(c);
}

static void naive_share(const struct random_case *c, const uint32_t *coord, struct naive *dim,
			bool *ret_elsewhere)
{
	*ret_elsewhere = false;
	for (uint32_t d = 0; d < c->ndim; d++)
		naive_range(&dim[d], (uint32_t)c->shape[d]);
	for (uint32_t i = 0; i < c->layout.nplace; i++) {
		const struct ckpt_placement *p = &c->place[i];

		if (p->how == CKPT_ONLY && coord[p->mesh_dim] != p->split_factor)
			*ret_elsewhere = true;
		if (p->how == CKPT_SHARD)
			naive_cut(&dim[p->tensor_dim], c->dim[p->mesh_dim], coord[p->mesh_dim],
				  p->split_factor);
	}
}

static void expect_share(const struct random_case *c, const uint32_t *coord,
			 const struct indexset *got)
{
	static struct naive dim[4];
	const struct naive none = { 0 };
	bool elsewhere;
	uint64_t numel = 1;

	naive_share(c, coord, dim, &elsewhere);
	assert_int_equal(got->ndim, c->ndim);
	for (uint32_t d = 0; d < c->ndim; d++) {
		naive_assert(&got->dim[d], elsewhere ? &none : &dim[d]);
		numel *= dim[d].n;
	}
	assert_int_equal(got->numel, elsewhere ? 0 : numel);
}

static uint64_t nth_index(const struct indices *x, uint64_t i)
{
	const struct run *r = x->run;

	for (; i >= r->len * r->count; r++)
		i -= r->len * r->count;
	return r->start + i / r->len * r->stride + i % r->len;
}

/* Count the elements of the set in a tensor-sized array. */
static void count_elements(const struct indexset *x, const uint64_t *shape, uint32_t *count)
{
	for (uint64_t i = 0; i < x->numel; i++) {
		uint64_t at = 0, rest = i, index[4];

		for (uint32_t d = x->ndim; d-- > 0; rest /= x->dim[d].total)
			index[d] = nth_index(&x->dim[d], rest % x->dim[d].total);
		for (uint32_t d = 0; d < x->ndim; d++)
			at = at * shape[d] + index[d];
		count[at]++;
	}
}

static void expect_within(const struct indexset *x, const struct indexset *share, struct arena *a)
{
	struct indexset both;

	assert_int_equal(indexset_intersect(x, share, a, &both), 0);
	assert_true(indexset_equal(&both, x));
}

static void coordinate_of(const struct mesh *m, uint32_t place, uint32_t *coord)
{
	for (uint32_t d = m->ndim; d-- > 0; place /= m->dim[d])
		coord[d] = place % m->dim[d];
}

TEST(shares_are_right_and_owned_parts_cover_every_element_once)
{
	static struct random_case c;
	static uint32_t held[NUMEL_MAX], owned[NUMEL_MAX]; /* there may be 256 replicas */
	uint64_t replicated = 0, partly = 0;

	naive_seed(__func__);
	for (uint32_t n = 0; n < CASES; n++) {
		cleanup_arena struct arena a = { 0 };
		struct ckpt_err err = { 0 };
		char name[32];

		random_case(&c);
		snprintf(name, sizeof name, "w%u", naive_below(1000));
		if (mesh_check(&c.mesh, &err) < 0 ||
		    layout_check(&c.mesh, &c.layout, c.ndim, &err) < 0)
			fail_msg("%s", err.msg);
		assert_true(c.numel <= NUMEL_MAX);
		memset(held, 0, sizeof held);
		memset(owned, 0, sizeof owned);
		for (uint32_t i = 0; i < c.mesh.nrank; i++) {
			uint32_t want[4], coord[4];
			struct indexset share, mine;

			coordinate_of(&c.mesh, i, want);
			assert_true(mesh_coord(&c.mesh, c.rank[i], coord));
			assert_memory_equal(want, coord, c.mesh.ndim * sizeof *want);
			assert_int_equal(layout_share(&c.mesh, &c.layout, c.ndim, c.shape, coord,
						      &a, &share),
					 0);
			expect_share(&c, coord, &share);
			count_elements(&share, c.shape, held);
			assert_int_equal(layout_owned(&c.mesh, &c.layout, c.ndim, c.shape, coord,
						      c.elem_bytes, "model", name, &a, &mine),
					 0);
			expect_within(&mine, &share, &a);
			count_elements(&mine, c.shape, owned);
			partly += mine.numel > 0 && mine.numel < share.numel;
		}
		for (uint32_t i = 0; i < c.numel; i++) {
			assert_int_equal(held[i], c.replicas);
			assert_int_equal(owned[i], 1);
		}
		replicated += c.replicas > 1;
	}
	printf("%u layouts, %" PRIu64 " of them replicated, %" PRIu64 " shares owned in part\n",
	       CASES, replicated, partly);
	assert_true(replicated > CASES / 10 && partly > CASES / 10);
}

TEST(small_replicas_are_spread_over_the_ranks)
{
	const uint32_t size = 8, rank[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const char *const dp = "dp";
	const struct mesh m = { 1, &dp, &size, 8, rank };
	const struct layout l = { 0 };
	uint32_t owner[8] = { 0 };
	cleanup_arena struct arena a = { 0 };

	for (uint32_t i = 0; i < 4000; i++) {
		char name[64];
		struct indexset x;

		snprintf(name, sizeof name, "model.layers.%u.%s", i / 4,
			 (const char *const[]){ "q", "k", "v", "norm" }[i % 4]);
		for (uint32_t r = 0; r < 8; r++) {
			assert_int_equal(layout_owned(&m, &l, 1, (uint64_t[]){ 64 }, &r, 4, "model",
						      name, &a, &x),
					 0);
			owner[r] += x.numel == 64;
		}
	}
	for (uint32_t r = 0; r < 8; r++)
		assert_in_range(owner[r], 400, 600);
}

TEST(the_size_where_replicas_begin_to_share_the_work_is_exact)
{
	const uint32_t size = 2, rank[2] = { 0, 1 }, coord[2] = { 0, 1 };
	const char *const dp = "dp";
	const struct mesh m = { 1, &dp, &size, 2, rank };
	const struct layout l = { 0 };
	cleanup_arena struct arena a = { 0 };
	struct indexset x, y;

	/* 2 MiB - 4 bytes: whole; 2 MiB: in halves, along the first dimension with two indices */
	for (uint32_t i = 0; i < 2; i++) {
		const uint64_t small[] = { 524287 }, large[] = { 1, 524288 };

		assert_int_equal(
			layout_owned(&m, &l, 1, small, &coord[i], 4, NULL, "w", &a, i ? &y : &x),
			0);
		assert_int_equal(
			layout_owned(&m, &l, 2, large, &coord[i], 4, NULL, "w", &a, i ? &y : &x),
			0);
		assert_int_equal((i ? &y : &x)->numel, 262144);
		assert_int_equal((i ? &y : &x)->dim[1].run[0].start, i * 262144);
		assert_int_equal(
			layout_owned(&m, &l, 1, small, &coord[i], 4, NULL, "w", &a, i ? &y : &x),
			0);
	}
	assert_true((x.numel == 524287 && y.numel == 0) || (x.numel == 0 && y.numel == 524287));
	/* an odd number of rows: the first replica has one more */
	assert_int_equal(
		layout_owned(&m, &l, 1, (uint64_t[]){ INT64_MAX }, coord, 16, "c", "w", &a, &x), 0);
	assert_int_equal(x.numel, (uint64_t)INT64_MAX / 2 + 1);
	/* 2^64 bytes are not 0 bytes */
	assert_int_equal(
		layout_owned(&m, &l, 1, (uint64_t[]){ 1ull << 60 }, coord, 16, "c", "w", &a, &x),
		0);
	assert_int_equal(x.numel, 1ull << 59);
	/* one element that is large: nothing to cut */
	assert_int_equal(
		layout_owned(&m, &l, 1, (uint64_t[]){ 1 }, &coord[0], 1u << 22, "", "w", &a, &x),
		0);
	assert_int_equal(
		layout_owned(&m, &l, 1, (uint64_t[]){ 1 }, &coord[1], 1u << 22, "", "w", &a, &y),
		0);
	assert_int_equal(x.numel + y.numel, 1);
}

/* As if the box were a tensor that nothing cuts; but for the hash, which has its place in the
 * tensor. */
TEST(each_element_of_a_box_has_one_owner_among_the_ranks_that_hold_it)
{
	static const char *const name[] = { "dp", "tp" };
	static const uint32_t dim[] = { 3, 2 }, rank[] = { 4, 0, 9, 7, 5, 2 };
	static const struct mesh m = { 2, name, dim, 6, rank };
	static const uint64_t shape[] = { 5000, 900 };
	static const struct {
		uint64_t start[2], extent[2];
		uint32_t owners;
	} box[] = {
		{ { 0, 0 }, { 5000, 900 }, 6 }, { { 17, 3 }, { 4000, 800 }, 6 },
		{ { 4999, 899 }, { 1, 1 }, 1 }, { { 20, 0 }, { 100, 900 }, 1 },
		{ { 2, 100 }, { 5, 700 }, 1 },	{ { 1, 1 }, { 2000, 786 }, 1 },
		{ { 1, 1 }, { 2000, 787 }, 6 }, /* from 6 MiB on they share it */
	};

	for (uint32_t i = 0; i < ARRAY_LEN(box); i++) {
		struct arena a = { 0 };
		struct indexset all, mine[6], both;
		uint64_t numel = 0;
		uint32_t owners = 0;

		assert_int_equal(indexset_box(2, box[i].start, box[i].extent, &a, &all), 0);
		for (uint32_t r = 0; r < 6; r++) {
			const uint32_t at[] = { r / 2, r % 2 };

			assert_int_equal(
				layout_owned_box(&m, &all, shape, at, 4, "c", "n", &a, &mine[r]),
				0);
			numel += mine[r].numel;
			owners += mine[r].numel > 0;
			assert_int_equal(indexset_intersect(&mine[r], &all, &a, &both), 0);
			assert_int_equal(both.numel, mine[r].numel);
			for (uint32_t k = 0; k < r; k++) {
				assert_int_equal(indexset_intersect(&mine[r], &mine[k], &a, &both),
						 0);
				assert_int_equal(both.numel, 0);
			}
			if (i ==
			    0) { /* all of the tensor is the share of a layout that cuts nothing */
				const struct layout whole = { 0 };
				struct indexset same;

				assert_int_equal(layout_owned(&m, &whole, 2, shape, at, 4, "c", "n",
							      &a, &same),
						 0);
				assert_true(indexset_equal(&same, &mine[r]));
			}
		}
		assert_int_equal(numel, all.numel);
		assert_int_equal(owners, box[i].owners);
		arena_free(&a);
	}
}

TEST(a_shape_above_the_limit_is_refused)
{
	const struct mesh m = { .nrank = 1, .rank = (uint32_t[]){ 0 } };
	const struct layout l = { 0 };
	const uint64_t shape[] = { 1ull << 32, 1ull << 31 };
	cleanup_arena struct arena a = { 0 };
	struct indexset x;

	assert_int_equal(layout_share(&m, &l, 2, shape, NULL, &a, &x), -EOVERFLOW);
	assert_int_equal(layout_owned(&m, &l, 2, shape, NULL, 1, "", "w", &a, &x), -EOVERFLOW);
}

TEST(a_million_pieces_on_every_rank_are_a_few_records)
{
	const uint32_t dim[] = { 4, 2 }, rank[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const char *const name[] = { "dp", "tp" };
	const struct mesh m = { 2, name, dim, 8, rank };
	const struct ckpt_placement place[] = {
		{ .how = CKPT_SHARD, .mesh_dim = 0, .split_factor = 1000000 },
		{ .how = CKPT_SHARD, .mesh_dim = 1 },
	};
	const struct layout l = { .nplace = 2, .place = place };
	const uint64_t shape[] = { UINT64_C(1000000007) };
	cleanup_arena struct arena a = { 0 };
	uint64_t total = 0;

	for (uint32_t r = 0; r < 8; r++) {
		uint32_t coord[2];
		struct indexset x;

		assert_true(mesh_coord(&m, r, coord));
		assert_int_equal(layout_share(&m, &l, 1, shape, coord, &a, &x), 0);
		assert_true(x.dim[0].n <= 5);
		assert_int_equal(indices_check(&x.dim[0], shape[0], NULL), 0);
		total += x.numel;
	}
	assert_int_equal(total, shape[0]);
	assert_true(a.total_bytes < 1 << 20);
}
