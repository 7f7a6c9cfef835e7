/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_properties.c - what holds for every tensor under every layout, on random cases: more
 * than 100,000 of them, each broken one shrunk to a minimal one. The oracle knows nothing of runs.
 */
#include "tests/unit/test_layout_cases.h"
#include "tests/lib/interval.h"
#include "tests/lib/strided.h"

/* All cases in release; with AddressSanitizer a third of them. */
#if defined(__SANITIZE_ADDRESS__)
#define FEWER(n) ((n) / 3)
#else
#define FEWER(n) (n)
#endif

/* --- the oracle --- */

static void naive_flat(const struct side *s, uint32_t d, const uint32_t *coord, struct naive *x)
{
	uint32_t k = 1, r = 0;

	for (uint32_t i = 0; i < s->nplace; i++)
		if (s->place[i].how == CKPT_SHARD && s->place[i].tensor_dim == d) {
			r = r * s->dim[s->place[i].mesh_dim] + coord[s->place[i].mesh_dim];
			k *= s->dim[s->place[i].mesh_dim];
		}
	naive_cut(x, k, r, 1);
}

/* False: an ONLY keeps it elsewhere. */
static bool naive_share(const struct layout_case *c, const struct side *s, const uint32_t *coord,
			struct naive *dim)
{
	bool here = true;

	for (uint32_t d = 0; d < c->ndim; d++) {
		naive_range(&dim[d], (uint32_t)c->shape[d]);
		if (s->mode == CKPT_FLAT)
			naive_flat(s, d, coord, &dim[d]);
	}
	for (uint32_t i = 0; i < s->nplace; i++) {
		const struct ckpt_placement *p = &s->place[i];

		if (p->how == CKPT_ONLY)
			here = here && coord[p->mesh_dim] == p->split_factor;
		if (p->how == CKPT_SHARD && s->mode == CKPT_CHUNK)
			naive_cut(&dim[p->tensor_dim], s->dim[p->mesh_dim], coord[p->mesh_dim],
				  p->split_factor);
		if (p->how == CKPT_SHARD && s->mode == CKPT_UNFLATTEN_PAD)
			naive_cut_columns(&dim[p->tensor_dim], s->dim[p->mesh_dim],
					  coord[p->mesh_dim], p->split_factor);
	}
	return here;
}

/* --- properties --- */

static bool share_is_the_oracles(const struct layout_case *c, char *why)
{
	static struct naive want[CASE_DIMS], got;
	struct mesh m = side_mesh(&c->side[0]);
	cleanup_arena struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	bool good = true;

	for (uint32_t place = 0; place < m.nrank && good; place++) {
		uint32_t coord[CASE_MESH_DIMS];
		struct indexset x;
		uint64_t numel = 1;

		place_coord(&m, place, coord);
		bool here = naive_share(c, &c->side[0], coord, want);

		if (!side_share(c, &c->side[0], place, &a, &x))
			good = BROKEN("place %u: no share", place);
		for (uint32_t d = 0; d < c->ndim && good; d++) {
			if (indices_check(&x.dim[d], c->shape[d], &err) < 0)
				good = BROKEN("place %u dimension %u: %.160s", place, d, err.msg);
			naive_of(&x.dim[d], &got);
			numel *= want[d].n;
			if (!here)
				want[d].n = 0;
			if (good && (got.n != want[d].n ||
				     memcmp(got.v, want[d].v, got.n * sizeof *got.v) != 0))
				good = BROKEN("place %u dimension %u: not the oracle's indices",
					      place, d);
		}
		if (good && x.numel != (here ? numel : 0))
			good = BROKEN("place %u: numel %" PRIu64, place, x.numel);
	}
	return good;
}

/* Shares cover every element as often as it is replicated, in ascending local order. */
static bool shares_cover(const struct layout_case *c, char *why)
{
	static uint32_t held[CASE_NUMEL], element[CASE_NUMEL];
	const struct side *s = &c->side[0];
	cleanup_arena struct arena a = { 0 };
	bool good = true;

	memset(held, 0, sizeof held);
	for (uint32_t place = 0; place < side_mesh(s).nrank && good; place++) {
		struct indexset x;

		if (!side_share(c, s, place, &a, &x))
			good = BROKEN("place %u: no share", place);
		uint32_t n = good ? elements_of(&x, c->shape, element) : 0;

		for (uint32_t i = 0; i < n && good; i++) {
			held[element[i]]++;
			if (i > 0 && element[i] <= element[i - 1])
				good = BROKEN("place %u: local order does not ascend", place);
		}
	}
	for (uint64_t i = 0; i < case_numel(c) && good; i++)
		if (held[i] != side_holders(s))
			good = BROKEN("element %" PRIu64 " is held %u times, not %u", i, held[i],
				      side_holders(s));
	return good;
}

/* Of the replicas of an element one owns it; every operand of a pending reduction is owned. */
static bool owned_parts_cover_once(const struct layout_case *c, char *why)
{
	static uint32_t owned[CASE_NUMEL], element[CASE_NUMEL];
	const struct side *s = &c->side[0];
	cleanup_arena struct arena a = { 0 };
	uint32_t operands = 1;
	bool good = true;

	memset(owned, 0, sizeof owned);
	for (uint32_t i = 0; i < s->nplace; i++)
		operands *= s->place[i].how == CKPT_PARTIAL ? s->dim[s->place[i].mesh_dim] : 1;
	for (uint32_t place = 0; place < side_mesh(s).nrank && good; place++) {
		struct indexset share, mine, both;

		if (!side_share(c, s, place, &a, &share) || !side_owned(c, s, place, &a, &mine))
			good = BROKEN("place %u: no share", place);
		else if (indexset_intersect(&mine, &share, &a, &both) < 0 ||
			 !indexset_equal(&both, &mine))
			good = BROKEN("place %u: it owns what it does not hold", place);
		uint32_t n = good ? elements_of(&mine, c->shape, element) : 0;

		for (uint32_t i = 0; i < n; i++)
			owned[element[i]]++;
	}
	for (uint64_t i = 0; i < case_numel(c) && good; i++)
		if (owned[i] != operands)
			good = BROKEN("element %" PRIu64 " is owned %u times, not %u", i, owned[i],
				      operands);
	return good;
}

/* Copy what x holds and y needs; buf_x and buf_y are laid out as the sets are. */
static void copy_common(const struct indexset *x, const uint32_t *buf_x, const struct indexset *y,
			uint32_t *buf_y, uint32_t d, uint64_t x_at, uint64_t y_at)
{
	struct indices_cursor cur = { 0 };
	struct stretch s;

	if (d == x->ndim) {
		buf_y[y_at] = buf_x[x_at];
		return;
	}
	while (indices_next(&x->dim[d], &y->dim[d], &cur, &s))
		for (uint64_t i = 0; i < s.len; i++)
			copy_common(x, buf_x, y, buf_y, d + 1, x_at * x->dim[d].total + s.x_pos + i,
				    y_at * y->dim[d].total + s.y_pos + i);
}

/* What the owners of one side write fills every share of the other side. */
static bool reshard(const struct layout_case *c, const struct side *from, const struct side *to,
		    char *why)
{
	static uint32_t have[CASE_NUMEL], got[CASE_NUMEL], want[CASE_NUMEL];
	static struct indexset owned[CASE_RANKS];
	cleanup_arena struct arena a = { 0 };
	bool good = true;

	for (uint32_t r = 0; r < side_mesh(from).nrank && good; r++)
		good = side_owned(c, from, r, &a, &owned[r]) || BROKEN("place %u: no share", r);
	for (uint32_t q = 0; q < side_mesh(to).nrank && good; q++) {
		struct indexset y;

		if (!side_share(c, to, q, &a, &y))
			good = BROKEN("place %u: no share", q);
		memset(got, 0xff, sizeof got);
		uint32_t n = good ? elements_of(&y, c->shape, want) : 0;

		for (uint32_t r = 0; r < side_mesh(from).nrank && n > 0; r++) {
			if (owned[r].numel == 0)
				continue;
			elements_of(&owned[r], c->shape, have);
			copy_common(&owned[r], have, &y, got, 0, 0, 0);
		}
		if (good && memcmp(got, want, n * sizeof *got) != 0)
			good = BROKEN("place %u of the new mesh differs", q);
	}
	return good;
}

static bool resharding_there_and_back_is_direct(const struct layout_case *c, char *why)
{
	return reshard(c, &c->side[0], &c->side[1], why) &&
	       reshard(c, &c->side[1], &c->side[0], why);
}

/* Plain placements for all mesh dimensions, in this order of application. */
static struct side plain_side(const struct side *s)
{
	struct side p = *s;
	uint32_t named = 0;

	p.mode = CKPT_CHUNK;
	for (uint32_t i = 0; i < p.nplace; i++) {
		named |= 1u << p.place[i].mesh_dim;
		if (p.place[i].how == CKPT_SHARD)
			p.place[i].split_factor = 0;
	}
	for (uint32_t d = 0; d < p.mesh_ndim; d++)
		if (!(named >> d & 1))
			p.place[p.nplace++] = (struct ckpt_placement){ .mesh_dim = (uint16_t)d };
	return p;
}

/* The mesh dimensions that cut tensor dimension d in this order, without those of size 1. */
static uint32_t order_in(const struct side *s, uint32_t d, uint32_t *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->nplace; i++)
		if (s->place[i].how == CKPT_SHARD && s->place[i].tensor_dim == d &&
		    s->dim[s->place[i].mesh_dim] > 1)
			ret[n++] = s->place[i].mesh_dim;
	return n;
}

static bool order_survives_strided(const struct layout_case *c, char *why)
{
	struct side order = plain_side(&c->side[0]), strided = order, back = order;
	struct mesh m = side_mesh(&order);
	struct ckpt_err err = { 0 };

	strided_of(&m, order.place, strided.place);
	if (layout_order_of(&m, strided.place, back.place, &err) < 0)
		return BROKEN("%.200s", err.msg);
	for (uint32_t d = 0; d < c->ndim; d++) {
		uint32_t x[CASE_MESH_DIMS], y[CASE_MESH_DIMS], n = order_in(&order, d, x);

		if (order_in(&back, d, y) != n || memcmp(x, y, n * sizeof *x) != 0)
			return BROKEN("dimension %u: another order came back", d);
	}
	for (uint32_t i = 0; i < m.ndim; i++)
		if (strided.place[i].mesh_dim != i)
			return BROKEN("placement %u is not of its mesh dimension", i);
	return reshard(c, &order, &back, why);
}

/* Split factors that say an order are those that this order makes. */
static bool decoded_order_has_these_factors(const struct layout_case *c, char *why)
{
	struct side strided = plain_side(&c->side[0]), order = strided, back = strided;
	struct mesh m = side_mesh(&strided);
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < strided.nplace; i++) {
		const struct ckpt_placement *p = &strided.place[i];

		order.place[p->mesh_dim] = *p;
		if (p->how == CKPT_SHARD)
			order.place[p->mesh_dim].split_factor =
				1 + (uint32_t)(c->from + p->mesh_dim * c->to) % 12;
	}
	memcpy(strided.place, order.place, sizeof order.place);
	if (layout_order_of(&m, strided.place, order.place, &err) < 0)
		return err.code == -EINVAL && err.msg[0] ? true : BROKEN("no reason is given");
	strided_of(&m, order.place, back.place);
	for (uint32_t i = 0; i < m.ndim; i++)
		if (back.place[i].how != strided.place[i].how ||
		    MAX(back.place[i].split_factor, 1u) != MAX(strided.place[i].split_factor, 1u))
			return BROKEN("mesh dimension %u: factor %u came back as %u", i,
				      strided.place[i].split_factor, back.place[i].split_factor);
	return true;
}

/*
 * Read literally and as an order, split factors mean the same where every dimension divides by all
 * mesh dimensions that cut it but the last applied.
 */
static bool divides(const struct layout_case *c, const struct side *order)
{
	for (uint32_t d = 0; d < c->ndim; d++) {
		uint64_t product = 1, last = 1;

		for (uint32_t i = 0; i < order->nplace; i++)
			if (order->place[i].how == CKPT_SHARD && order->place[i].tensor_dim == d) {
				last = order->dim[order->place[i].mesh_dim];
				product *= last;
			}
		if (c->shape[d] % (product / last) != 0)
			return false;
	}
	return true;
}

static uint32_t divided;

static bool both_readings_agree_where_sizes_divide(const struct layout_case *c, char *why)
{
	struct side order = plain_side(&c->side[0]), strided = order;
	struct mesh m = side_mesh(&order);
	cleanup_arena struct arena a = { 0 };
	bool good = true;

	if (!divides(c, &order))
		return true;
	for (uint32_t d = 0, at[CASE_MESH_DIMS]; d < c->ndim; d++)
		divided += c->shape[d] > 0 && order_in(&order, d, at) > 1;
	strided_of(&m, order.place, strided.place);
	for (uint32_t r = 0; r < m.nrank && good; r++) {
		struct indexset x, y;

		if (!side_share(c, &order, r, &a, &x) || !side_share(c, &strided, r, &a, &y) ||
		    !indexset_equal(&x, &y))
			good = BROKEN("place %u differs", r);
	}
	return good;
}

static bool intervals_are_their_elements(const struct layout_case *c, char *why)
{
	static uint32_t all[CASE_NUMEL], piece[CASE_NUMEL];
	const struct indexset *set;
	struct indexset x;
	cleanup_arena struct arena a = { 0 };
	uint64_t at = c->from, end;
	uint32_t n = 0;
	bool good = side_share(c, &c->side[0], 0, &a, &x);

	if (!good || indexset_interval(&x, c->from, c->to, &a, &set, &n) < 0)
		good = BROKEN("no interval");
	if (good && n > (c->ndim ? 2 * c->ndim - 1 : 1))
		good = BROKEN("%u pieces", n);
	if (good)
		elements_of(&x, c->shape, all);
	for (uint32_t i = 0; i < n && good; i++) {
		uint32_t k = elements_of(&set[i], c->shape, piece);

		if (k == 0 || k != set[i].numel || at + k > x.numel ||
		    memcmp(piece, all + at, k * sizeof *piece) != 0)
			good = BROKEN("piece %u of %u is not what follows", i, n);
		at += k;
	}
	end = MIN(c->to, x.numel);
	if (good && at != MAX(c->from, end))
		good = BROKEN("it ends at %" PRIu64, at);
	return good;
}

/* --- tests --- */

TEST(every_share_is_what_the_oracle_says)
{
	cases_hold(__func__, share_is_the_oracles, 1, FEWER(60000));
}

TEST(shares_are_disjoint_and_cover_the_tensor_times_its_replicas)
{
	cases_hold(__func__, shares_cover, 1, FEWER(40000));
}

TEST(every_element_has_one_owner_among_its_replicas)
{
	cases_hold(__func__, owned_parts_cover_once, 1, FEWER(40000));
}

TEST(what_owners_write_under_one_layout_fills_any_other)
{
	cases_hold(__func__, resharding_there_and_back_is_direct, 2, FEWER(10000));
}

TEST(shard_order_comes_back_from_split_factors)
{
	cases_hold(__func__, order_survives_strided, 1, FEWER(20000));
}

TEST(split_factors_come_back_from_shard_order)
{
	cases_hold(__func__, decoded_order_has_these_factors, 1, FEWER(40000));
}

TEST(where_sizes_divide_both_readings_of_split_factors_are_one)
{
	divided = 0;
	cases_hold(__func__, both_readings_agree_where_sizes_divide, 1, FEWER(60000));
	printf("%u dimensions were cut more than once and divide\n", divided);
	assert_true(divided > unit_scaled(FEWER(1000)));
}

TEST(an_interval_of_a_flattened_share_is_a_few_boxes)
{
	cases_hold(__func__, intervals_are_their_elements, 1, FEWER(40000));
}

#define TENSORS 5
#define WORLD 24

/* Each tensor on a mesh of its own, of some ranks of the world in any order. */
static void random_model(struct layout_case *t)
{
	uint32_t rank[WORLD];

	for (uint32_t i = 0; i < TENSORS; i++) {
		do
			random_case(&t[i], 1);
		while (side_mesh(&t[i].side[0]).nrank > WORLD);
		for (uint32_t r = 0; r < WORLD; r++)
			rank[r] = r;
		shuffle(rank, WORLD);
		memcpy(t[i].side[0].rank, rank, sizeof rank);
	}
}

/* Whatever else a rank knows, and in whichever order it asks: each tensor has its owners. */
TEST(ownership_is_the_same_for_every_subset_of_tensors_that_a_rank_knows)
{
	static struct layout_case t[TENSORS];
	static uint32_t owned[TENSORS][CASE_NUMEL], element[CASE_NUMEL];

	naive_seed(__func__);
	for (uint32_t n = 0; n < 2000; n++) {
		random_model(t);
		memset(owned, 0, sizeof owned);
		for (uint32_t r = 0; r < WORLD; r++) {
			uint32_t known[TENSORS] = { 0, 1, 2, 3, 4 }, coord[CASE_MESH_DIMS];
			cleanup_arena struct arena a = { 0 };

			shuffle(known, TENSORS);
			for (uint32_t i = 0; i < TENSORS; i++) {
				const struct layout_case *c = &t[known[i]];
				struct mesh m = side_mesh(&c->side[0]);
				struct layout l = side_layout(&c->side[0]);
				struct indexset x;
				char name[16];

				if (!mesh_coord(&m, r, coord))
					continue;
				snprintf(name, sizeof name, "w%u", known[i]);
				assert_int_equal(layout_owned(&m, &l, c->ndim, c->shape, coord,
							      c->elem_bytes, "model", name, &a, &x),
						 0);
				uint32_t k = elements_of(&x, c->shape, element);

				while (k-- > 0)
					owned[known[i]][element[k]]++;
			}
		}
		for (uint32_t i = 0; i < TENSORS; i++) {
			uint32_t operands = 1;
			const struct side *s = &t[i].side[0];

			for (uint32_t k = 0; k < s->nplace; k++)
				operands *= s->place[k].how == CKPT_PARTIAL
						    ? s->dim[s->place[k].mesh_dim]
						    : 1;
			for (uint64_t e = 0; e < case_numel(&t[i]); e++)
				assert_int_equal(owned[i][e], operands);
		}
	}
}

/* Up to 10^12 indices a dimension and any factor: counts and disjointness need no list. */
TEST(cuts_of_very_long_dimensions_are_disjoint_and_complete)
{
	uint32_t refused = 0;

	naive_seed(__func__);
	for (uint32_t n = 0; n < 3000; n++) {
		uint32_t k[2] = { 1 + naive_below(9), 1 + naive_below(9) };
		const char *const name[] = { "a", "b" };
		uint32_t rank[81], mode = naive_below(2) ? CKPT_CHUNK : CKPT_UNFLATTEN_PAD;
		struct mesh m = { 2, name, k, k[0] * k[1], rank };
		uint64_t size = 1 + ((uint64_t)naive_below(1u << 20) << naive_below(20)) +
				naive_below(1000);
		struct ckpt_placement p[2] = {
			{ .how = CKPT_SHARD, .split_factor = 1u << naive_below(24) },
			{ .how = CKPT_SHARD, .mesh_dim = 1, .split_factor = naive_below(40) },
		};
		struct layout l = { .mode = mode, .nplace = 2, .place = p };
		cleanup_arena struct arena a = { 0 };
		struct indexset x[81], both;
		uint64_t total = 0;
		int e = 0;

		p[0].split_factor += naive_below(3);
		for (uint32_t i = 0; i < m.nrank && e == 0; i++) {
			uint32_t coord[2] = { i / k[1], i % k[1] };

			rank[i] = i;
			e = layout_share(&m, &l, 1, &size, coord, &a, &x[i]);
			if (e == 0)
				total += x[i].numel;
		}
		if (e == -E2BIG) { /* a list of more than 2^16 progressions */
			refused++;
			arena_free(&a);
			continue;
		}
		assert_int_equal(e, 0);
		assert_int_equal(total, size);
		for (uint32_t i = 0; i < 3; i++) {
			uint32_t r = naive_below(m.nrank), s = naive_below(m.nrank);

			if (r == s || indexset_intersect(&x[r], &x[s], &a, &both) == -E2BIG)
				continue;
			assert_int_equal(both.numel, 0);
		}
	}
	printf("%u of 3000 had too many progressions\n", refused);
	assert_true(refused < 300);
}

/* Made up: broken by a factor of at least 3 on a dimension of at least 5. */
static bool no_wide_strides(const struct layout_case *c, char *why)
{
	for (uint32_t i = 0; i < c->side[0].nplace; i++) {
		const struct ckpt_placement *p = &c->side[0].place[i];

		if (p->how == CKPT_SHARD && p->split_factor >= 3 && c->shape[p->tensor_dim] >= 5)
			return BROKEN("placement %u", i);
	}
	return true;
}

TEST(a_broken_case_shrinks_to_a_minimal_one)
{
	static struct layout_case c;
	char why[CASE_WHY], text[1024];
	uint32_t broken = 0;

	naive_seed(__func__);
	for (uint32_t n = 0; n < 2000; n++) {
		random_case(&c, 1);
		if (no_wide_strides(&c, why))
			continue;
		broken++;
		case_shrink(&c, no_wide_strides, why);
		assert_string_equal(case_print(&c, text, sizeof text),
				    "shape [5] of 1 bytes; mesh \"a=1\" \"StridedShard(0, 3)@a\"; "
				    "interval [0, 0)");
		assert_string_equal(why, "placement 0");
	}
	assert_true(broken > 100);
}
